"""Turns between the streams of a gateway: by steps of work, and by requests that the scheduler has not decided."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Runs steps to their end; other tasks run between them. Returns the steps' result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


class Undecided:
    """One stream's requests that the scheduler has not decided, by the work that they are, in the log's order."""

    def __init__(self) -> None:
        self._work = 0.0
        self._unplaced: deque[float] = deque()  # without an offset yet
        self._placed: deque[tuple[int, float]] = deque()  # by offset

    def add(self, work: float) -> None:
        """Takes a request that goes to the log."""
        self._unplaced.append(work)
        self._work += work

    def appended(self, offset: int, decided: int) -> None:
        """The log has the first request without an offset. ``decided`` is as for :meth:`after`; 0: nobody says."""
        if self._unplaced:
            self._placed.append((offset, self._unplaced.popleft()))
        if decided:
            self.after(decided)
        else:
            self.forget()

    def after(self, decided: int) -> float:
        """Returns the work that is not decided.

        :param decided: all requests before this offset are decided.
        """
        placed = self._placed
        while placed and placed[0][0] < decided:
            self._work -= placed.popleft()[1]
        return self._work

    def forget(self) -> None:
        """Forgets the requests that the log has: the gateway does not learn when they are decided."""
        self._work -= sum(work for _, work in self._placed)
        self._placed.clear()
