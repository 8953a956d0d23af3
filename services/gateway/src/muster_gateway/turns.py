"""Turns between the streams of a gateway: by steps of work, and by requests that the scheduler has not decided."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

# An RM without a request and without a response for one to two of these times is not active.
_ACTIVE_S = 60.0


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Runs steps to their end; other tasks run between them. Returns the steps' result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


class Active:
    """The RMs of a partition that were active lately: through whichever gateway, since all read the same responses."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._since_s = now_s
        self._present: set[bytes] = set()
        self._before: set[bytes] = set()  # those of the time before
        self._all: set[bytes] = set()

    def note(self, key: bytes) -> None:
        """Notes a request of an RM, or a response to it. Cheap."""
        self._present.add(key)
        self._all.add(key)

    def turn(self, now_s: float) -> None:
        """Forgets RMs that have not been active for a while. The caller calls this now and then."""
        if now_s - self._since_s >= _ACTIVE_S:
            self._since_s = now_s
            self._before, self._present = self._present, set()
            self._all = set(self._before)

    def others(self, key: bytes) -> int:
        """Returns the number of active RMs beside this one."""
        return len(self._all) - (key in self._all)


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
