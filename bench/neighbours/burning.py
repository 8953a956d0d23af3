"""The control of a row: processes that use as much processor time as the row does, outside of Muster."""

from __future__ import annotations

import asyncio
import time

_STEP_S = 0.005


def burn(cores: float) -> None:
    """Use this share of a core until the process is killed, in steps as long as those of a loop."""
    began, before_s = time.monotonic(), time.thread_time()
    while True:
        used = time.thread_time() - before_s
        behind_s = cores * (time.monotonic() - began) - used
        if behind_s <= 0:
            time.sleep(_STEP_S)
            continue
        until_s = time.thread_time() + min(behind_s, _STEP_S)
        while time.thread_time() < until_s:
            sum(range(200))


async def spawn(command: list[str], shares: list[float]) -> list[asyncio.subprocess.Process]:
    """Start one burner for each share of a core over 1 %; ``command`` ends where the share is to be added."""
    return [await asyncio.create_subprocess_exec(*command, f"{share:.3f}") for share in shares if share > 0.01]
