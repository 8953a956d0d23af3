"""Events that are older than the ring, read from the log where it still has them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from muster_bus.errors import LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader, Record

from muster_event_publisher import metrics
from muster_event_publisher.errors import SearchTooLong
from muster_event_publisher.events import EventBatch, EventRun, batch_of

# Below so many offsets reading on is cheaper than another step of the search.
_NEAR = 512
# Records per read while scanning: about two milliseconds, so that others get their turn. More than _NEAR: a guess that
# is right within half of that has the event in the piece it reads.
_SCAN = 600
# Records per read where the search only wants to know which id is there.
_LOOK = 16
# What is fetched ahead at most: some pieces; the rest of more would be thrown away at the next step.
_FETCH_MAX_BYTES = 1 << 20
# Pieces that were read are remembered, about 0.2 MB each: as many as the largest answer has, and some for streams.
_PIECES_KEPT = 32
# (rm, id) -> offset of places where a reading began or ended: a stream that goes on needs no search.
_PLACES_KEPT = 1_000
# Marks per RM and instance, and of how many RMs: where ids are, for the searches to come.
_MARKS_KEPT, _MARKED_KEPT = 1_024, 64
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

    Ids of an RM grow with the offsets, so a search over offsets finds an id; other RMs' records in between are passed
    over. One reader, one search at a time: old events are the exception, and must not weigh on the log.

    What costs is to begin at another offset: on Kafka each such step fetches anew and lets go what was fetched
    ahead. So reading goes on where it was, the newest pieces are remembered, and where ids were seen narrows the next
    search. A search guesses before it halves: an RM's ids are spread evenly, mostly.

    :param records_max: records that one search may read before it raises SearchTooLong.
    """

    def __init__(self, bus: Log, topic: str, partition: int, records_max: int) -> None:
        self._bus, self._topic, self._partition, self._records_max = bus, topic, partition, records_max
        self._lock = asyncio.Lock()
        self._reader: LogReader | None = None
        # Where the reader is for sure; None: a read was broken off.
        self._reader_at: int | None = None
        # First offset and end, asked once for each read; and those of the read before.
        self._limits: tuple[int, int] | None = None
        self._limits_before = (0, 0)
        self._pieces: OrderedDict[int, EventBatch] = OrderedDict()
        self._places: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._marks: OrderedDict[tuple[str, str], _Marks] = OrderedDict()
        self._records_read = 0

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        """Up to ``count`` consecutive events of the RM from the first id at or after ``start``.

        None when the log has no such event (any more). Raises SearchTooLong, and what the log raises.
        """
        async with self._lock:
            self._records_read, self._limits = 0, None
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
        # 1. where it may begin
        offset = self._places.get((rm_id, instance, start))
        if offset is None or (self._known(offset) is None and offset < (await self._ends())[0]):
            offset = await self._search(rm_id, instance, start)
        # 2. read on until there is enough, or the ids are no longer consecutive
        found: OldEvents | None = None
        while found is None or len(found.values) < count:
            piece = await self._piece(rm_id, start, offset)
            if piece is None:
                break
            for run in piece.since(offset).runs:
                if run.rm_id != rm_id or run.instance != instance or run.last_id < start:
                    continue
                run = run.from_index(max(start - run.first_id, 0))
                if found is None:
                    found = OldEvents(run.first_id, [])
                    self._remember(rm_id, instance, run.first_id, run.offsets[0])
                elif run.first_id != found.first_id + len(found.values):
                    return found
                wanted = count - len(found.values)
                found.values.extend(run.values[:wanted])
                if len(run) >= wanted:
                    self._remember(rm_id, instance, run.first_id + wanted, run.offsets[wanted - 1] + 1)
                    return found
            offset = piece.end
        return found

    async def _search(self, rm_id: str, instance: str, start: int) -> int:
        """An offset at or before the RM's first event with an id of at least ``start``, and near it."""
        # 1. between which places it is, and which ids are there
        low, high = await self._ends()
        marks = self._marks.get((rm_id, instance))
        low_id, high_id = 0, None
        if marks is not None:
            below, above = marks.around(start)
            if below is not None and below[1] >= low:
                low_id, low = below
            if above is not None and low <= above[1] < high:
                high_id, high = above[0], above[1] + 1
        # 2. which id is last, unless it is known; then a guess a little before the event, one a little behind it, and
        # half: three times the steps of halving at worst
        step = 0 if high_id is not None else -1
        while high - low > _NEAR:
            looked, size = (low + high) // 2, _LOOK
            if step < 0:
                looked = high - _NEAR
            elif high_id is not None and high_id > low_id and step % 3 < 2:
                expected = low + (high - low) * (start - low_id) // (high_id - low_id)
                looked = min(max(expected + (_NEAR // 2 if step % 3 else -_NEAR // 2), low), high - 1)
                size = _SCAN
            probe = await self._probe(rm_id, instance, start, looked, high, size)
            if probe is None:
                high = looked
            elif probe.first_id >= start:
                high, high_id = looked, probe.first_id
            elif probe.last_id >= start:
                return probe.offsets[0]
            else:
                low, low_id = probe.offsets[-1] + 1, probe.last_id + 1
            step += 1
        return low

    async def _probe(self, rm_id: str, instance: str, start: int, offset: int, end: int, size: int) -> EventRun | None:
        """The RM's first events in ``[offset, end)``."""
        while offset < end:
            piece = await self._piece(rm_id, start, offset, size)
            if piece is None:
                return None
            for run in piece.since(offset).runs:
                if run.rm_id == rm_id and run.instance == instance and run.offsets[0] < end:
                    return run
            offset, size = piece.end, _SCAN
        return None

    async def _ends(self) -> tuple[int, int]:
        """The first offset and the end, as they are when a search begins."""
        if self._limits is None:
            if self._reader is None:
                self._reader = await self._bus.reader(self._topic, self._partition, fetch_max_bytes=_FETCH_MAX_BYTES)
            first, end = self._limits = await self._reader.first_offset(), await self._reader.end_offset()
            if first < self._limits_before[0] or end < self._limits_before[1]:
                # Another log in the place of the one that was known.
                self._pieces.clear()
                self._places.clear()
                self._marks.clear()
            self._limits_before = first, end
        return self._limits

    async def _piece(self, rm_id: str, start: int, offset: int, size: int = _SCAN) -> EventBatch | None:
        """Events from ``offset`` on, remembered or read; None: the log ends there.

        Raises SearchTooLong, and what the log raises.
        """
        if self._records_read > self._records_max:
            raise SearchTooLong(rm_id, start, self._records_read)
        piece = self._known(offset)
        if piece is not None:
            self._records_read += piece.records
            return piece
        _, end = await self._ends()
        if offset >= end:
            return None
        records, after = await self._records(offset, end, size)
        piece = batch_of(self._partition, records, offset, after)
        piece.shim.clear()
        for run in piece.runs:
            self._mark(run)
        if size == _SCAN:
            self._pieces[offset] = piece
            if len(self._pieces) > _PIECES_KEPT:
                self._pieces.popitem(last=False)
        # (A log in this process gives records without a pause.)
        await asyncio.sleep(0)
        return piece

    async def _records(self, offset: int, end: int, size: int) -> tuple[list[Record], int]:
        """The next records, and where to go on; none where transactions left nothing to see."""
        assert self._reader is not None, "made in _ends"
        if self._reader_at != offset:
            metrics.LOG_LOOKUP_SEEKS.inc()
            self._reader.seek(offset)
        self._reader_at = None
        records = list(await self._reader.read(size, _READ_TIMEOUT_S))
        after = self._reader_at = self._reader.position
        if after <= offset:
            raise LogUnavailable(f"no records from position {offset}, though the log ends at {end}")
        self._records_read += len(records)
        metrics.LOG_LOOKUP_RECORDS.inc(len(records))
        return records, after

    def _known(self, offset: int) -> EventBatch | None:
        for start, piece in self._pieces.items():
            if start <= offset < piece.end:
                self._pieces.move_to_end(start)
                return piece
        return None

    def _remember(self, rm_id: str, instance: str, event_id: int, offset: int) -> None:
        self._places[rm_id, instance, event_id] = offset
        while len(self._places) > _PLACES_KEPT:
            self._places.popitem(last=False)

    def _mark(self, run: EventRun) -> None:
        key = run.rm_id, run.instance
        marks = self._marks.get(key)
        if marks is None:
            marks = self._marks[key] = _Marks()
            if len(self._marks) > _MARKED_KEPT:
                self._marks.popitem(last=False)
        self._marks.move_to_end(key)
        marks.add(run.first_id, run.offsets[0])
        marks.add(run.last_id, run.offsets[-1])


class _Marks:
    """Where some ids of one RM are, in their order."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._offsets: list[int] = []

    def add(self, event_id: int, offset: int) -> None:
        place = bisect_left(self._ids, event_id)
        if self._ids[place : place + 1] == [event_id]:
            return
        self._ids.insert(place, event_id)
        self._offsets.insert(place, offset)
        if len(self._ids) > _MARKS_KEPT:
            del self._ids[1::2], self._offsets[1::2]

    def around(self, event_id: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The last one with at most this id, and the first one with at least it."""
        below, above = bisect_right(self._ids, event_id) - 1, bisect_left(self._ids, event_id)
        return (
            (self._ids[below], self._offsets[below]) if below >= 0 else None,
            (self._ids[above], self._offsets[above]) if above < len(self._ids) else None,
        )


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
