"""Time as an argument: nothing in Muster asks the operating system for the time directly."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_ns(self) -> int:
        """Wall-clock time, nanoseconds since 1970 in UTC. Never less than what this clock said before."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring how long something takes."""
        ...


class SystemClock:
    """The operating system's time. A wall clock that is set back stands still until it is passed again."""

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


class ManualClock:
    """Time that moves only when told: for tests and simulation.

    :param start_ns: first value of ``now_ns``; by default 2024-01-01T00:00:00Z.
    """

    def __init__(self, start_ns: int = 1_704_067_200_000_000_000) -> None:
        self._now_ns = start_ns
        self._elapsed_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic(self) -> float:
        return self._elapsed_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward; never back."""
        if seconds < 0:
            raise ValueError(f"seconds {seconds}: time does not go back")
        step_ns = round(seconds * 1e9)
        self._now_ns += step_ns
        self._elapsed_ns += step_ns
