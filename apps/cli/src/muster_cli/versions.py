"""``muster version``: what runs here."""

from __future__ import annotations

import platform
from importlib.metadata import version
from importlib.util import find_spec

from muster_runtime.terminal import say, say_json

# A part of the core that a compiler would turn into machine code first.
_CORE = "muster_core.partition"


def show(*, as_json: bool) -> int:
    """Prints the version, the form of the core (plain or compiled), and the Python."""
    found = {
        "muster": version("muster"),
        "form": form(),
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}-{platform.machine()}",
        "grpc": version("grpcio"),
    }
    if as_json:
        say_json(found)
    else:
        say(f"muster {found['muster']} ({found['form']}) on Python {found['python']}, {found['platform']}")
    return 0


def form() -> str:
    """Returns "plain" if Python interprets the core, "compiled" if it is machine code."""
    spec = find_spec(_CORE)
    origin = spec.origin if spec is not None else None
    return "plain" if origin is None or origin.endswith(".py") else "compiled"
