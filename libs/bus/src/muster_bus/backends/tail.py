"""The newest visible records of one partition, in memory, and the tasks that wait for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster_bus.backends.reading import Changing
from muster_bus.log import Record

# Dropped records are deleted together, when they are this part of the list. Until then they keep their memory: with one
# half, a tail of 64 MiB took up to 128. Each deletion moves the references that stay: each up to seven times, in 5 ns.
_DROPPED_PARTS = 8


class PartitionTail(Changing):
    """A run of records ``[base, end)`` without holes, oldest first. Belongs to one event loop.

    :param end: offset of the next record to come.
    """

    __slots__ = ("_calls", "_head", "_records", "base", "end")

    def __init__(self, end: int) -> None:
        super().__init__()
        self.base = end
        self.end = end
        self._records: list[Record] = []
        self._calls: tuple[Callable[[], None], ...] = ()
        self._head = 0  # index of ``base``; dropped records before it are deleted together

    def extend(self, records: Sequence[Record]) -> None:
        """Makes records visible and wakes all waiting tasks. The records' offsets start at ``end``, without holes."""
        self._records.extend(records)
        self.end += len(records)
        for call in self._calls:
            call()
        self.wake()

    def on_more(self, call: Callable[[], None]) -> None:
        """Calls back after each :meth:`extend`. The call must not raise."""
        self._calls = (*self._calls, call)

    def drop(self, count: int) -> None:
        """Forgets the ``count`` oldest records."""
        self._head += count
        self.base += count
        if self._head * _DROPPED_PARTS > len(self._records):
            del self._records[: self._head]
            self._head = 0

    def slice(self, position: int, max_records: int) -> Sequence[Record] | None:
        """Returns up to ``max_records`` from ``position`` on; None if the position is before ``base``."""
        if position < self.base:
            return None
        start = self._head + position - self.base
        return self._records[start : start + max_records]
