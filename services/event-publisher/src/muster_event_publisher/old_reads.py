"""Whose turn it is to read events older than the ring.

Old events cost a hundred times what events of the ring cost: they are fetched from the log or a store, decoded, and
rendered for one reader alone. So few answers do that at once; the others stand in one of two lines, which take turns:

==============  ======================================  ==============================================
line            who                                     when it is long
==============  ======================================  ==============================================
batches         an answer, from its first old event on  refused: the client asks again
walks           streams and Watches, a turn per read    waits: they are few (maxStreams), and have begun
==============  ======================================  ==============================================

Who is answered from the ring stands in neither. Who leaves (its client is gone) leaves its line, or gives back its
turn: a turn lasts as long as an ``async with``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from muster_event_publisher import metrics
from muster_event_publisher.errors import TooManyOldReads

_Line = deque[asyncio.Future[None]]


class Turns(Protocol):
    """How somebody gets their turns."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """For one read. Raises TooManyOldReads."""
        ...


class OldReads:
    """The turns. Belongs to one event loop.

    :param running_max: turns at once.
    :param waiting_max: batches in their line.
    :param wait_s: longest wait of a batch.
    :ivar running: turns now.
    :ivar running_most: the most there ever were.
    """

    def __init__(self, running_max: int = 2, waiting_max: int = 16, wait_s: float = 5.0) -> None:
        self._running_max, self._waiting_max, self._wait_s = running_max, waiting_max, wait_s
        self.running = self.running_most = 0
        self._batches: _Line = deque()
        self._walks: _Line = deque()
        self._walk_is_next = False

    @property
    def waiting(self) -> int:
        """How many stand in the lines."""
        return len(self._batches) + len(self._walks)

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Turns]:
        """For one answer: its first read takes a turn, or is refused; the turn lasts until the answer is made."""
        visit = _Visit(self)
        try:
            yield visit
        finally:
            visit.end()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """For one read of a walk; it waits as long as it takes."""
        await self._take(self._walks)
        try:
            yield
        finally:
            self.give_back()

    async def take_for_batch(self) -> None:
        """To be given back. Raises TooManyOldReads."""
        if self.running >= self._running_max and len(self._batches) >= self._waiting_max:
            metrics.OLD_READS_REFUSED.labels("waiting").inc()
            raise TooManyOldReads(f"{self.running} answers read them and {len(self._batches)} wait")
        try:
            async with asyncio.timeout(self._wait_s):
                await self._take(self._batches)
        except TimeoutError:
            metrics.OLD_READS_REFUSED.labels("wait").inc()
            raise TooManyOldReads(f"{self.running} answers read them, and none came to its end in time") from None

    def give_back(self) -> None:
        """A turn that was taken."""
        self.running -= 1
        self._call()

    async def _take(self, line: _Line) -> None:
        if self.running < self._running_max:  # then nobody waits
            self._begin()
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(called)
        self._say()
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self.give_back()  # it was called in the same moment
            elif called in line:
                line.remove(called)
                self._say()
            raise

    def _call(self) -> None:
        """Gives free turns to who waits: the lines take turns."""
        while self.waiting and self.running < self._running_max:
            from_walks = bool(self._walks) and (self._walk_is_next or not self._batches)
            self._walk_is_next = not from_walks
            called = (self._walks if from_walks else self._batches).popleft()
            if not called.done():
                self._begin()
                called.set_result(None)
        self._say()

    def _begin(self) -> None:
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        self._say()

    def _say(self) -> None:
        metrics.OLD_READS.set(self.running)
        metrics.OLD_READS_WAITING.set(self.waiting)


class _Visit:
    """One answer."""

    def __init__(self, reads: OldReads) -> None:
        self._reads = reads
        self._taken = False

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if not self._taken:
            await self._reads.take_for_batch()
            self._taken = True
        yield

    def end(self) -> None:
        if self._taken:
            self._taken = False
            self._reads.give_back()
