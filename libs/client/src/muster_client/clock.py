"""The client's source of time: it measures durations only."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Returns seconds since some fixed moment."""
        ...


class SystemClock:
    """The operating system's time."""

    def monotonic(self) -> float:
        return time.monotonic()
