"""What a new user waits for and installs: sizes, and the time from `pip install` to the first allocation.

Builds the wheels, installs each into an empty environment, starts `muster up` of the one and runs examples/rm_minimal.py
with the other. Prints JSON: MiB, and seconds by step. pip takes what it has in its cache; the figures say so. Run from
the root of the repository:

    PYTHONPATH=tests python tests/dist/first_allocation.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from dist.test_dist import ROOT, VERSION, Installed, environment, up

WANTED = ("muster-client", "muster", "muster[all]")


def main() -> None:
    found: dict[str, dict[str, float]] = {"mib": {}, "seconds": {}}
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(sys.stderr):
        place = Path(directory)
        subprocess.run([ROOT / "scripts/dist", place / "dist"], check=True, capture_output=True, env=environment())
        installed = {}
        for number, wanted in enumerate(WANTED):
            installed[wanted] = one = Installed(place / f"env-{number}", place / "dist", f"{wanted}=={VERSION}")
            found["mib"][wanted] = round(one.mib(), 1)
            found["seconds"][f"pip install {wanted}"] = round(one.took_s, 1)
        shutil.copy(ROOT / "examples/rm_minimal.py", installed["muster-client"].work)
        began = time.monotonic()
        with up(installed["muster"], place / "data") as address:
            found["seconds"]["muster up, the first start"] = round(time.monotonic() - began, 1)
            asked = time.monotonic()
            first = _first_line(installed["muster-client"], address)
            assert first.startswith("run task-0 on "), first
            found["seconds"]["the resource manager's start to its first allocation"] = round(time.monotonic() - asked, 1)
            through = time.monotonic() - began + installed["muster"].took_s
            found["seconds"]["from pip install muster to the first allocation"] = round(through, 1)
    print(json.dumps(found, indent=1))


def _first_line(client: Installed, address: str) -> str:
    """The first line of the example's output, as soon as it is there."""
    command = [client.directory / "bin/python", "-u", "rm_minimal.py", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=client.work, env=environment()) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.stdout.read()
    return line


if __name__ == "__main__":
    main()
