"""Events that are older than the ring, read from the log where it still has them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from muster_bus.errors import LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader, Record

from muster_event_publisher import metrics
from muster_event_publisher.errors import SearchTooLong
from muster_event_publisher.events import EventRun, batch_of

# Below so many offsets reading on is cheaper than another step of the search.
_NEAR = 512
# Records per read while scanning.
_SCAN = 1_000
# (rm, id) -> offset of places where a reading ended: a stream that goes on needs no search.
_PLACES_KEPT = 1_000
# Longest wait for records that are known to be there.
_READ_TIMEOUT_S = 5.0
# Records per read, and most offsets per step, while the rings are filled.
_PIECE, _STEP_MAX = 5_000, 200_000
# So many such waits without a record: the log does not answer.
_ATTEMPTS = 6


class OldEvents(NamedTuple):
    """Events that are older than the ring: consecutive ids from ``first_id`` on.

    :param source: where they were found: ``log`` or ``history``.
    """

    first_id: int
    values: list[bytes]
    source: str = "log"


class LogSearch:
    """Finds events of one partition by id.

    Ids of an RM grow with the offsets, so a binary search over offsets finds an id; other RMs' records in between are
    passed over. One reader, one search at a time: old events are the exception, and must not weigh on the log.

    :param records_max: records that one search may read before it raises SearchTooLong.
    """

    def __init__(self, bus: Log, topic: str, partition: int, records_max: int) -> None:
        self._bus, self._topic, self._partition, self._records_max = bus, topic, partition, records_max
        self._lock = asyncio.Lock()
        self._reader: LogReader | None = None
        self._places: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._records_read = 0

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        """Up to ``count`` consecutive events of the RM from the first id at or after ``start``.

        None when the log has no such event (any more). Raises SearchTooLong, and what the log raises.
        """
        async with self._lock:
            self._records_read = 0
            try:
                found = await self._read(rm_id, instance, start, count)
            except SearchTooLong:
                metrics.LOG_LOOKUPS.labels("too_long").inc()
                raise
            metrics.LOG_LOOKUPS.labels("found" if found else "absent").inc()
            return found

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    async def _read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        if self._reader is None:
            self._reader = await self._bus.reader(self._topic, self._partition)
        first, end = await self._reader.first_offset(), await self._reader.end_offset()
        # 1. where it may begin
        offset = self._places.get((rm_id, instance, start))
        if offset is None or offset < first:
            offset = await self._search(rm_id, instance, start, first, end)
        # 2. read on until there is enough, or the ids are no longer consecutive
        found: OldEvents | None = None
        while offset < end and (found is None or len(found.values) < count):
            records, offset = await self._scan(rm_id, start, offset, end)
            for run in batch_of(self._partition, records, offset, offset).runs:
                if run.rm_id != rm_id or run.instance != instance or run.last_id < start:
                    continue
                run = run.from_index(max(start - run.first_id, 0))
                if found is None:
                    found = OldEvents(run.first_id, [])
                elif run.first_id != found.first_id + len(found.values):
                    return found
                wanted = count - len(found.values)
                found.values.extend(run.values[:wanted])
                if len(run) >= wanted:
                    self._remember(rm_id, instance, run, wanted)
                    return found
        return found

    async def _search(self, rm_id: str, instance: str, start: int, low: int, high: int) -> int:
        """An offset at or before the RM's first event with an id of at least ``start``, and near it."""
        while high - low > _NEAR:
            middle = (low + high) // 2
            probe = await self._probe(rm_id, instance, start, middle, high)
            if probe is None or probe[1] >= start:
                high = middle
            else:
                low = probe[0] + 1
        return low

    async def _probe(self, rm_id: str, instance: str, start: int, offset: int, end: int) -> tuple[int, int] | None:
        """Offset and id of the RM's first event in ``[offset, end)``."""
        size = 16
        while offset < end:
            records, offset = await self._scan(rm_id, start, offset, end, size)
            for run in batch_of(self._partition, records, offset, offset).runs:
                if run.rm_id == rm_id and run.instance == instance and run.offsets[0] < end:
                    return run.offsets[0], run.first_id
            size = _SCAN
        return None

    async def _scan(self, rm_id: str, start: int, offset: int, end: int, size: int = _SCAN) -> tuple[list[Record], int]:
        """Records from ``offset`` on, and where to go on; a read that gives nothing ends the range."""
        assert self._reader is not None, "made in _read"
        if self._records_read > self._records_max:
            raise SearchTooLong(rm_id, start, self._records_read)
        self._reader.seek(offset)
        records = list(await self._reader.read(size, _READ_TIMEOUT_S))
        self._records_read += len(records)
        if not records:
            return [], end
        return records, max(self._reader.position, records[-1].offset + 1)

    def _remember(self, rm_id: str, instance: str, run: EventRun, taken: int) -> None:
        self._places[rm_id, instance, run.first_id + taken] = run.offsets[taken - 1] + 1
        while len(self._places) > _PLACES_KEPT:
            self._places.popitem(last=False)


async def tail_start(
    reader: LogReader,
    partition: int,
    end: int,
    capacity_of: Callable[[str], int],
    registered: Sequence[str],
    records_max: int,
) -> int:
    """Where reading forward to ``end`` has to begin to fill the rings of the partition's RMs.

    It reads backwards until every RM that is registered or was seen has ``capacity_of`` events, or id 0, or until the
    log or ``records_max`` ends. What is read is not kept: a ring may be larger than what memory takes twice.
    """
    first = await reader.first_offset()
    missing = {rm_id: capacity_of(rm_id) for rm_id in registered}
    read, step, low = 0, 1_000, end
    while low > first and read < records_max:
        start = max(first, low - min(step, records_max - read))
        count = 0
        async for piece in read_range(reader, start, low):
            count += len(piece)
            for run in batch_of(partition, piece, start, low).runs:
                left = missing.get(run.rm_id, capacity_of(run.rm_id)) - len(run)
                missing[run.rm_id] = left if run.first_id else 0
        read, low = read + count, start
        if missing and all(left <= 0 for left in missing.values()):
            break
        step = min(step * 2, _STEP_MAX)
    return low


async def read_range(reader: LogReader, start: int, end: int) -> AsyncIterator[list[Record]]:
    """The visible records in ``[start, end)``, in pieces; those that retention has left by the time they are read."""
    reader.seek(start)
    attempts = 0
    while reader.position < end:
        try:
            records = list(await reader.read(_PIECE, _READ_TIMEOUT_S))
        except OffsetGone as gone:
            if gone.first <= reader.position:
                raise  # not retention: the log has lost its end
            reader.seek(gone.first)
            continue
        attempts = 0 if records else attempts + 1
        if attempts == _ATTEMPTS:
            raise LogUnavailable(f"no records from position {reader.position}, though the log ends at {end}")
        while records and records[-1].offset >= end:
            records.pop()
        if records:
            yield records
