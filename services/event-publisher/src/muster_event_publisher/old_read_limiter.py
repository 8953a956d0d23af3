"""Bounds how many reads of events older than the ring run at once.

An old event costs a hundred times as much as an event of the ring: it is fetched from the log or a store, decoded and
rendered for one reader alone. So only a few answers read old events at once. The others wait in two lines, from which
the next ones are taken alternately:

==============  =======================================  ==================================================
line            waiting                                  when it is long
==============  =======================================  ==================================================
batches         an answer, from its first old event on   refuses; the client asks again
walks           streams and Watches, for each read       lets them wait: they are few (maxStreams)
==============  =======================================  ==================================================

An answer from the ring never waits. When a client leaves, its answer leaves the line or gives its turn back: a turn
lasts as long as an ``async with``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from muster_event_publisher import metrics
from muster_event_publisher.errors import TooManyOldReads

_WaitQueue = deque[asyncio.Future[None]]


class ReadSlots(Protocol):
    """Gives turns to one caller."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """A turn for one read. Raises TooManyOldReads."""
        ...


class OldReadLimiter:
    """The turns. Belongs to one event loop.

    :param running_max: the most turns at once.
    :param waiting_max: the most batches in their line.
    :param wait_s: the longest wait of a batch.
    :ivar running: the turns that are taken now.
    :ivar running_peak: the most turns that were ever taken at once.
    """

    def __init__(self, running_max: int = 2, waiting_max: int = 16, wait_s: float = 5.0) -> None:
        self._running_max, self._waiting_max, self._wait_s = running_max, waiting_max, wait_s
        self.running = self.running_peak = 0
        self._batches: _WaitQueue = deque()
        self._walks: _WaitQueue = deque()
        self._walk_is_next = False

    @property
    def waiting(self) -> int:
        """How many wait in both lines."""
        return len(self._batches) + len(self._walks)

    @asynccontextmanager
    async def batch_slot(self) -> AsyncIterator[ReadSlots]:
        """A turn for one answer: its first read takes the turn or is refused; the turn lasts until the answer is
        complete.
        """
        visit = _ReadSlot(self)
        try:
            yield visit
        finally:
            visit.end()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A turn for one read of a walk, which waits without a limit."""
        await self._acquire(self._walks)
        try:
            yield
        finally:
            self.release()

    async def acquire_batch_slot(self) -> None:
        """Takes a turn, which the caller gives back. Raises TooManyOldReads."""
        if self.running >= self._running_max and len(self._batches) >= self._waiting_max:
            metrics.OLD_READS_REFUSED.labels("waiting").inc()
            raise TooManyOldReads(f"{self.running} answers read them and {len(self._batches)} wait")
        try:
            async with asyncio.timeout(self._wait_s):
                await self._acquire(self._batches)
        except TimeoutError:
            metrics.OLD_READS_REFUSED.labels("wait").inc()
            raise TooManyOldReads(f"{self.running} answers read them, and none ended in time") from None

    def release(self) -> None:
        """Gives back a turn."""
        self.running -= 1
        self._call()

    async def _acquire(self, line: _WaitQueue) -> None:
        if self.running < self._running_max:  # then both lines are empty
            self._begin()
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(called)
        self._update_metrics()
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self.release()  # it got its turn in the same moment
            elif called in line:
                line.remove(called)
                self._update_metrics()
            raise

    def _call(self) -> None:
        """Gives free turns to those that wait, from both lines alternately."""
        while self.waiting and self.running < self._running_max:
            from_walks = bool(self._walks) and (self._walk_is_next or not self._batches)
            self._walk_is_next = not from_walks
            called = (self._walks if from_walks else self._batches).popleft()
            if not called.done():
                self._begin()
                called.set_result(None)
        self._update_metrics()

    def _begin(self) -> None:
        self.running += 1
        self.running_peak = max(self.running_peak, self.running)
        self._update_metrics()

    def _update_metrics(self) -> None:
        metrics.OLD_READS.set(self.running)
        metrics.OLD_READS_WAITING.set(self.waiting)


class _ReadSlot:
    """The turn of one answer."""

    def __init__(self, reads: OldReadLimiter) -> None:
        self._reads = reads
        self._is_acquired = False

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        if not self._is_acquired:
            await self._reads.acquire_batch_slot()
            self._is_acquired = True
        yield

    def end(self) -> None:
        if self._is_acquired:
            self._is_acquired = False
            self._reads.release()
