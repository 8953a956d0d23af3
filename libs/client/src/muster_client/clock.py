"""The client's source of time: it measures durations only."""

from __future__ import annotations

import time
from asyncio import BaseEventLoop
from asyncio import _get_running_loop as running_loop
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Returns the running event loop's time in seconds."""
        ...


class SystemClock:
    """The time of the event loop that runs when this is made: asyncio's sleeps and time-outs count it, too.

    It is the operating system's if none runs yet, since asyncio's own loops read that.
    """

    def __init__(self) -> None:
        loop = running_loop()
        # (The method of asyncio's own loops would cost as much again.)
        own = loop is None or getattr(type(loop), "time", None) is BaseEventLoop.time
        self._monotonic_s = time.monotonic if loop is None or own else loop.time

    def monotonic(self) -> float:
        return self._monotonic_s()
