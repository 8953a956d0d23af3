"""What readers of a partition have in common: the wait for more, and what was read ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from muster_bus.log import Record


class Changing:
    """Something that is waited for. Belongs to one event loop."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Ends all waits."""
        if self._waiters:
            for waiter in self._waiters:
                _finish(waiter)
            self._waiters.clear()

    async def wait(self, timeout_s: float) -> None:
        """Returns when something changed, or after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(timeout_s, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


class Ahead:
    """Records that were read and not given yet; the first one is at a reader's position, or after it."""

    __slots__ = ("_given", "_records")

    def __init__(self) -> None:
        self._records: Sequence[Record] = ()
        self._given = 0  # index into them

    def __bool__(self) -> bool:
        return bool(self._records)

    def put(self, records: Sequence[Record]) -> None:
        """These, in the place of what there was."""
        self._records, self._given = records, 0

    def clear(self) -> None:
        """The position is another one."""
        self.put(())

    def take(self, max_records: int) -> Sequence[Record]:
        """The next ones; what was given to its end is let go."""
        records = self._records[self._given : self._given + max_records]
        self._given += len(records)
        if self._given >= len(self._records):
            self.clear()
        return records


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
