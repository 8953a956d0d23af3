"""Clocks. Muster gets the time from a clock object, never directly from the operating system."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ns(self) -> int:
        """Returns wall-clock time in nanoseconds since 1970, UTC. Never less than an earlier result of the same
        clock.
        """
        ...

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment. For measuring durations."""
        ...


class SystemClock:
    """The operating system's time. If the wall clock is set back, ``now_ns`` stands still until the old time is
    passed.
    """

    def __init__(self) -> None:
        self._last_ns = 0

    def now_ns(self) -> int:
        now_ns = time.time_ns()
        if now_ns < self._last_ns:
            return self._last_ns
        self._last_ns = now_ns
        return now_ns

    def monotonic(self) -> float:
        return time.monotonic()
