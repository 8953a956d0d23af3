"""The time of the running event loop: the one source of elapsed time.

asyncio's sleeps, time-outs and timers count it, so what Muster measures and compares beside them counts it, too. A loop
whose ``time()`` is not the operating system's (a simulation's) so moves all of Muster.
"""

from __future__ import annotations

import time
from asyncio import BaseEventLoop
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable


def elapsed_s() -> float:
    """Returns the running event loop's time in seconds. A thread without a loop gets the operating system's monotonic
    time, which is that of asyncio's own loops. For what is seldom asked: to find the loop takes longer than to read it.
    """
    loop = running_loop()
    return time.monotonic() if loop is None else loop.time()


def loop_time() -> Callable[[], float]:
    """Returns what reads the time of the loop that runs now, for an object that belongs to this loop."""
    loop = running_loop()
    # (asyncio's own loops read the operating system's in a method of theirs, which would cost as much again.)
    if loop is None or getattr(type(loop), "time", None) is BaseEventLoop.time:
        return time.monotonic
    return loop.time
