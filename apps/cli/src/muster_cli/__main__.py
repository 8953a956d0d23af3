"""``python -m muster_cli``: the ``muster`` command, where its script is not there."""

from muster_cli.entry import main

if __name__ == "__main__":
    main()
