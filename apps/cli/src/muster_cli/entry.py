"""Entry point of the ``muster`` script.

Each container's health check starts ``muster health --process`` every few seconds. All other commands together take
0.4 s of a processor to load, so this one is answered before they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from muster_runtime.plain_terminal import write

from muster_cli.probe import ADDRESS_VARIABLE, DEFAULT_ADDRESS, TIMEOUT_S, probe

# What they set needs the command's own reading of TLS and tokens.
_ACCESS_VARIABLES = ("MUSTER_TLS", "MUSTER_TOKEN")


def main() -> None:
    """Runs the command of the process's arguments, and ends the process."""
    address = plain_probe(sys.argv[1:], os.environ)
    if address is not None:
        ready, text = probe(address, TIMEOUT_S)
        write(f"{address}: {text.strip()}\n")
        sys.exit(0 if ready else 1)
    from muster_cli.main import main as whole

    whole()


def plain_probe(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Returns the address to probe, if this is a probe without flags, TLS and tokens of a well-formed address."""
    if list(arguments) != ["health", "--process"] or any(name.startswith(_ACCESS_VARIABLES) for name in environment):
        return None
    address = environment.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    return address if address.startswith(("http://", "grpc://")) else None
