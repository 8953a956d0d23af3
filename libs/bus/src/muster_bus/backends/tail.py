"""The newest visible records of one partition, in memory, and the tasks that wait for more."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from muster_bus.backends.read_ahead import ChangeSignal
from muster_bus.log import Record

# Limits of a part. To free the records of one costs some 50 µs.
_SEGMENT_RECORDS, _SEGMENT_BYTES = 256, 64 << 10


class TailPart:
    """Consecutive records that are dropped together."""

    __slots__ = ("first", "records", "size")

    def __init__(self, first: int, records: list[Record], size: int) -> None:
        self.first, self.records, self.size = first, records, size


class PartitionTail(ChangeSignal):
    """A run of records ``[base, end)`` without holes, oldest first. Belongs to one event loop.

    It is kept in parts of bounded size, which are dropped one by one: to drop does not move what stays, and frees few
    records at once.

    :param end: offset of the next record to come.
    """

    __slots__ = ("_calls", "_segments", "base", "end")

    def __init__(self, end: int) -> None:
        super().__init__()
        self.base = end
        self.end = end
        self._calls: tuple[Callable[[], None], ...] = ()
        self._segments: deque[TailPart] = deque()  # after records that nobody kept, the older ones are before ``base``

    def extend(self, records: Sequence[Record], size: int = 0) -> int:
        """Makes records visible and wakes all waiting tasks. The records' offsets start at ``end``, without holes.

        :param size: their bytes; :meth:`drop_oldest` returns them again.

        Returns the number of parts that are there in addition.
        """
        before = len(self._segments)
        if records:
            self._append(records, size)
        added = len(self._segments) - before
        self._grow(len(records))
        return added

    @staticmethod
    def split_records(first: int, records: Sequence[Record], size: int) -> list[TailPart]:
        """Returns the parts of records from an offset on, for :meth:`extend_by`.

        :param size: their bytes.
        """
        parts: list[TailPart] = []
        count = len(records)
        for start in range(0, count, _SEGMENT_RECORDS):
            some = list(records[start : start + _SEGMENT_RECORDS])
            share = size * (start + len(some)) // count - size * start // count
            parts.append(TailPart(first + start, some, share))
        return parts

    def extend_by(self, parts: Sequence[TailPart]) -> None:
        """Makes parts visible, as :meth:`extend` does, without a look at each record."""
        assert parts[0].first == self.end, "parts follow each other"
        self._segments.extend(parts)
        self._grow(parts[-1].first + len(parts[-1].records) - self.end)

    def skip(self, count: int) -> None:
        """Makes so many records visible, and wakes all waiting tasks, without the records: nobody reads them here."""
        self._grow(count)
        self.base = self.end

    def on_more(self, call: Callable[[], None]) -> None:
        """Calls back after each :meth:`extend`. The call must not raise."""
        self._calls = (*self._calls, call)

    def drop_oldest(self) -> int:
        """Forgets the oldest part. Returns its bytes; 0 if nothing is left."""
        if not self._segments:
            return 0
        part = self._segments.popleft()
        self.base = max(self.base, part.first + len(part.records))
        return part.size

    def drop_before(self, offset: int) -> None:
        """Forgets the records before ``offset``, which is at most ``end``."""
        parts = self._segments
        while parts and parts[0].first + len(parts[0].records) <= offset:
            parts.popleft()
        self.base = max(self.base, offset)

    def slice(self, position: int, max_records: int) -> Sequence[Record] | None:
        """Returns up to ``max_records`` from ``position`` on; None if the position is before ``base``."""
        if position < self.base:
            return None
        if position >= self.end:
            return ()
        last = self._segments[-1]
        if position >= last.first:  # (nearly always)
            start = position - last.first
            return last.records[start : start + max_records]
        records: list[Record] = []
        at = bisect_right(self._segments, position, key=_first) - 1
        start = position - self._segments[at].first
        for part in islice(self._segments, at, None):
            records += part.records[start : start + max_records - len(records)]
            if len(records) >= max_records:
                break
            start = 0
        return records

    def _append(self, records: Sequence[Record], size: int) -> None:
        parts, count = self._segments, len(records)
        last = parts[-1] if parts else None
        if (
            last is not None
            and last.first + len(last.records) == self.end
            and len(last.records) + count <= _SEGMENT_RECORDS
            and last.size + size <= _SEGMENT_BYTES
        ):
            last.records += records
            last.size += size
            return
        parts.extend(self.split_records(self.end, records, size))

    def _grow(self, count: int) -> None:
        self.end += count
        for call in self._calls:
            call()
        self.signal()


def _first(part: TailPart) -> int:
    return part.first
