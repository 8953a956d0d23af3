"""The parts that readers share: waiting for a change, and records that were read ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from muster_bus.log import Record


class ChangeSignal:
    """An object that tasks of one event loop wait for."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order of their coming

    def signal(self) -> None:
        """Ends all waits."""
        if self._waiters:
            for waiter in self._waiters:
                _finish(waiter)
            self._waiters.clear()

    async def wait(self, timeout_s: float) -> None:
        """Returns after the next ``wake``, or after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        timer = loop.call_later(timeout_s, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)


class ReadAheadBuffer:
    """Records that were read and not yet given to the caller. The first one is at the reader's position or after it."""

    __slots__ = ("_next_index", "_records")

    def __init__(self) -> None:
        self._records: Sequence[Record] = ()
        self._next_index = 0  # index of the next record to give

    def __bool__(self) -> bool:
        return bool(self._records)

    def replace(self, records: Sequence[Record]) -> None:
        """Replaces all records."""
        self._records, self._next_index = records, 0

    def clear(self) -> None:
        """Forgets all records, because the position has changed."""
        self.replace(())

    def pop(self, max_records: int) -> Sequence[Record]:
        """Returns the next records. Frees the list once all its records were given."""
        records = self._records[self._next_index : self._next_index + max_records]
        self._next_index += len(records)
        if self._next_index >= len(self._records):
            self.clear()
        return records


class ReadAheadReader:
    """The position of a reader of stored blocks, and its read-ahead: a block may hold more records than the caller
    asked for.
    """

    def __init__(self, position: int) -> None:
        self._position = position
        self._ahead = ReadAheadBuffer()
        self._closed = False

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset
        self._ahead.clear()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
