"""Runs Muster with this process's arguments and, each time it gets SIGUSR1, writes what garbage it has.

Young collections are off, so that all that ended in a circle of references is still there. Nothing else is changed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from simulation.circles import unreachable

OUT = "MUSTER_GARBAGE_OUT"


def be_probed(out: Path) -> None:
    """Runs Muster, and writes into a file: circles of Muster's classes, and full collections that Muster began."""
    full, found = 0, Counter[str]()
    probing = False

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        full += phase == "stop" and info["generation"] == 2 and not probing

    def write() -> None:
        nonlocal probing, full
        probing = True
        found.update(unreachable("muster_"))  # (To look for it frees it.)
        probing = False
        beside = out.with_suffix(".new")
        beside.write_text(json.dumps({"circles": found, "full_collections": full}))
        beside.rename(out)

    def begin() -> None:
        nonlocal full, probing
        gc.disable()
        if hasattr(gc_tuning, "Young"):
            gc_tuning.Young.collect = lambda _: 1.0  # type: ignore[method-assign]
        probing = True
        unreachable("muster_")
        probing, full = False, 0
        out.with_suffix(".begun").touch()

    gc.callbacks.append(collected)
    signal.signal(signal.SIGUSR1, lambda *_: write())
    signal.signal(signal.SIGUSR2, lambda *_: begin())
    from muster_cli import gc_tuning
    from muster_cli.main import main as muster

    muster()


if __name__ == "__main__":
    be_probed(Path(os.environ[OUT]))
