"""Sets up Python's cyclic garbage collector for a scheduler's memory.

A scheduler holds hundreds of thousands of objects for hours, and a full collection walks all of them: 100 to 300 ms
with 20,000 to 100,000 allocations, during which nothing is decided. So a process that decides has none. It looks for
circles among young objects only: what refers to itself and lives longer would stay for ever. Nothing of Muster's does
(``tests/integration/test_no_garbage.py``): reference counts free it, and what ends is taken apart where it would be a
circle.

Python counts what is made less what is freed, also of what is old. Where as much ends as begins, that count stays where
it is while young objects become very many, and the collection that comes at last takes 50 ms. So they are also
collected by time (:class:`Young`).

Followers decide nothing. A registration there leaves all that the RM had before, since a reader may be in the middle of
it. So they look, when their memory has grown by a quarter.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from muster_runtime.backoff import aligned_s
from muster_runtime.process_stats import resident_bytes

# A young collection per 5,000 new objects (under a millisecond). Every second one is a middle one, of 10,000 objects
# (some three milliseconds; all wait meanwhile). Python's number for full ones is never reached.
_YOUNG, _MIDDLE, _NEVER = 5_000, 1, 1 << 30
# Memory that grows from 200 to 1,000 MiB for good reason so costs seven full collections.
_GROWN, _GROWN_BYTES = 1.25, 64 << 20
_GROWTH_CHECK_INTERVAL_S = 20.0
# How often young objects are collected by time. A process that uses less than this share of a core has few.
_YOUNG_S, _YOUNG_IDLE_S, _IDLE_SHARE = 0.1, 1.0, 0.02


def collect_young() -> None:
    """Sets the thresholds. Call this at the start of a process."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


def freeze() -> None:
    """Excludes the present objects from later collections. Call this when a process is ready.

    It collects nothing before: a start leaves ten objects in circles, and to find them takes 60 ms.
    """
    gc.freeze()


class Young:
    """Collects young objects by time, every second time with the middle generation, as the thresholds do."""

    def __init__(self) -> None:
        self._middle = False
        self._used_s, self._at_s = time.process_time(), time.monotonic()

    def collect(self) -> float:
        """Collects. Returns after how many seconds to look again."""
        gc.collect(int(self._middle))
        self._middle = not self._middle
        used_s, at_s = time.process_time(), time.monotonic()
        is_idle = used_s - self._used_s < _IDLE_SHARE * (at_s - self._at_s)
        self._used_s, self._at_s = used_s, at_s
        return _YOUNG_IDLE_S if is_idle else _YOUNG_S


def collect_in_time() -> None:
    """Collects young objects by time, as long as the running loop runs."""
    loop, young = asyncio.get_running_loop(), Young()

    def collect() -> None:
        loop.call_later(aligned_s(young.collect()), collect)

    loop.call_later(_YOUNG_S, collect)


class HeapGrowth:
    """Whether memory grew so much since the last full collection that another one is worth its time.

    :param resident: returns the process's resident memory in bytes.
    """

    def __init__(self, resident: Callable[[], int]) -> None:
        self._resident = resident
        self._after = resident()

    def collect_if_grown(self) -> bool:
        """Collects if it is worth it. Returns whether it did."""
        now = self._resident()
        if now < max(self._after * _GROWN, self._after + _GROWN_BYTES):
            self._after = min(self._after, now)
            return False
        gc.collect()
        self._after = self._resident()
        return True


def collect_when_grown() -> None:
    """Looks at the memory every 20 s, as long as the running loop runs. For processes that decide nothing."""
    loop, growth = asyncio.get_running_loop(), HeapGrowth(resident_bytes)

    def check() -> None:
        growth.collect_if_grown()
        loop.call_later(_GROWTH_CHECK_INTERVAL_S, check)

    loop.call_later(_GROWTH_CHECK_INTERVAL_S, check)
