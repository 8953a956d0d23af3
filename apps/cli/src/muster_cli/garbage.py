"""Sets up Python's cyclic garbage collector for a scheduler's memory.

A scheduler holds hundreds of thousands of objects for hours, and a full collection walks all of them: 40 to 60 ms with
20,000 allocations, during which nothing is decided. Reference counts free almost everything here. Only removed
applications, nodes and connections leave cycles, and in followers a registration that replaces another one: all that it
had. (The scheduler takes its ended core apart.) So full collections are rare, and they exclude the objects that remain
from the start (modules, settings). But memory that grew by a quarter is a reason for one: it may be garbage.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from muster_runtime.process import resident_bytes

# A young collection per 5,000 new objects (under a millisecond). Every third is a middle one, of 15,000 objects (some
# three milliseconds; all wait meanwhile). One of 8,000 middle ones may be full.
_YOUNG, _MIDDLE, _FULL = 5_000, 1, 8_000
# Memory that grows from 200 to 1,000 MiB for good reason so costs seven full collections.
_GROWN, _GROWN_BYTES = 1.25, 64 << 20
_LOOK_S = 20.0


def collect_rarely() -> None:
    """Sets the thresholds. Call this at the start of a process."""
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)


def settle() -> None:
    """Excludes the present objects from later collections. Call this when a process is ready.

    It collects nothing before: a start leaves ten objects in circles, and to find them takes 60 ms.
    """
    gc.freeze()


class Growth:
    """Whether memory grew so much since the last full collection that another one is worth its time.

    :param resident: returns the process's resident memory in bytes.
    """

    def __init__(self, resident: Callable[[], int]) -> None:
        self._resident = resident
        self._after = resident()

    def look(self) -> bool:
        """Collects if it is worth it. Returns whether it did."""
        now = self._resident()
        if now < max(self._after * _GROWN, self._after + _GROWN_BYTES):
            self._after = min(self._after, now)
            return False
        gc.collect()
        self._after = self._resident()
        return True


def collect_when_grown() -> None:
    """Looks at the memory every 20 s, as long as the running loop runs."""
    loop, growth = asyncio.get_running_loop(), Growth(resident_bytes)

    def look() -> None:
        growth.look()
        loop.call_later(_LOOK_S, look)

    loop.call_later(_LOOK_S, look)
