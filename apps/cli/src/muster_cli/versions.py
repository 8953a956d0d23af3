"""``muster version``: what runs here."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from importlib.util import find_spec

from muster_runtime.terminal import print_json, print_lines

# A part of the core that is compiled where anything is (libs/compiled).
_CORE = "muster_core.partition"


def show(*, as_json: bool) -> int:
    """Prints the version, the form of the core (plain or compiled), and the Python."""
    now, obstacle = form(), obstacle_to_compiled()
    facts = {
        "muster": version("muster"),
        "form": now,
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}-{platform.machine()}",
        "grpc": version("grpcio"),
    }
    if obstacle:
        facts["not_compiled_because"] = obstacle
    if as_json:
        print_json(facts)
    else:
        description = f"{now}: {obstacle}" if obstacle else now
        print_lines(f"muster {facts['muster']} ({description}) on Python {facts['python']}, {facts['platform']}")
    return 0


def form() -> str:
    """Returns "plain" if Python interprets the core, "compiled" if it is machine code."""
    spec = find_spec(_CORE)
    origin = spec.origin if spec is not None else None
    return "plain" if origin is None or origin.endswith(".py") else "compiled"


def obstacle_to_compiled() -> str:
    """Why the compiled form that is installed here does not run; "": it runs, or none is installed."""
    find_spec(_CORE)  # (the finder decides at the first question)
    finders = (
        getattr(finder, "obstacle", None) for finder in sys.meta_path if type(finder).__name__ == "CompiledFinder"
    )
    return next((obstacle for obstacle in finders if obstacle), "")
