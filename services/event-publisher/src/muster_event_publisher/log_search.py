"""Events that are older than the ring, read from the log where it still has them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from muster_bus.damage import Readers
from muster_bus.errors import LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader, Record

from muster_event_publisher import metrics
from muster_event_publisher.errors import SearchLimitExceeded
from muster_event_publisher.event_runs import EventBatch, EventRun, batch_of

# With fewer offsets left, reading on is cheaper than another step of the search.
_NEAR = 512
# Records per read while scanning: about two milliseconds of work, so that other tasks can run. Larger than _NEAR, so
# that a guess that is off by at most half of _NEAR finds the event in the piece that it reads.
_SCAN = 600
# So many reads back from an instance's first event look for the last one of the instance before.
_BACKWARD_READS_MAX = 16
# Records per read when the search only needs the id at an offset.
_PROBE_RECORDS = 16
# Bytes that the reader fetches ahead: a few pieces. The next step of a search would throw more away.
_FETCH_MAX_BYTES = 1 << 20
# Remembered pieces, about 0.2 MB each: as many as the largest answer has, and some for streams.
_PIECES_MAX = 32
# Remembered offsets where a read began or ended, by (rm, id): a stream that continues there needs no search.
_START_OFFSETS_MAX = 1_000
# Remembered pairs of id and offset per RM and instance, and for how many RMs: they narrow later searches.
_MARKS_MAX, _MARKED_RMS_MAX = 1_024, 64
# Longest wait for records that the log has.
_READ_TIMEOUT_S = 5.0
# Records per read, and most offsets per step, while the rings are filled.
_PIECE, _STEP_MAX = 5_000, 200_000
# After so many such waits without a record, the log counts as unavailable.
_ATTEMPTS = 6
# Pause before the next read from a log that did not answer.
_AGAIN_S = 1.0


class OldEvents(NamedTuple):
    """Events that are older than the ring: consecutive ids from ``first_id`` on.

    :param source: ``log`` or ``history``.
    """

    first_id: int
    values: list[bytes]
    source: str = "log"


class Former(NamedTuple):
    """The instance of an RM before the present one: its ids below ``end`` are the RM's own."""

    instance: str
    end: int


class LogSearch:
    """Finds events of one partition by id.

    An RM's ids grow with the offsets, so a search over the offsets finds an id; it skips other RMs' records. There is
    one reader, and one search at a time: reads of old events are rare and must not burden the log.

    A jump to another offset is expensive: Kafka fetches again and drops the records that were fetched ahead. So the
    search continues where the reader is if it can, remembers the newest pieces, and remembers ids with their offsets
    to narrow later searches. A search guesses before it halves, because an RM's ids are mostly spread evenly.

    :param records_max: records that one search may read before it raises SearchLimitExceeded.
    """

    def __init__(self, bus: Readers, topic: str, partition: int, records_max: int) -> None:
        self._bus, self._topic, self._partition, self._records_max = bus, topic, partition, records_max
        self._lock = asyncio.Lock()
        self._reader: LogReader | None = None
        # The reader's position; None: not known, because a read was broken off.
        self._reader_at: int | None = None
        # First offset and end offset, measured once for each call of read(); and those of the call before.
        self._limits: tuple[int, int] | None = None
        self._limits_before = (0, 0)
        self._pieces: OrderedDict[int, EventBatch] = OrderedDict()
        self._start_offsets: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._marks: OrderedDict[tuple[str, str], _OffsetIndex] = OrderedDict()
        self._records_read = 0

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        """Up to ``count`` consecutive events of the RM from the first id at or after ``start``.

        None when the log has no such event (any more). Raises SearchLimitExceeded and LogError.
        """
        async with self._lock:
            self._records_read, self._limits = 0, None
            try:
                old_events = await self._read(rm_id, instance, start, count)
            except SearchLimitExceeded:
                metrics.LOG_LOOKUPS.labels("too_long").inc()
                raise
            metrics.LOG_LOOKUPS.labels("found" if old_events else "absent").inc()
            return old_events

    async def former(self, rm_id: str, instance: str) -> Former | None:
        """The instance whose ids an instance goes on from; None: the log does not have its end.

        Raises SearchLimitExceeded and LogError.
        """
        async with self._lock:
            self._records_read, self._limits = 0, None
            begun = await self._read(rm_id, instance, 0, 1)
            if begun is None or not begun.first_id:
                return None
            end = self._start_offsets[rm_id, instance, begun.first_id]
            low = (await self._ends())[0]
            # (Other RMs' records may be in between.)
            for _ in range(_BACKWARD_READS_MAX):
                start, last = max(low, end - _SCAN), None
                piece = await self._piece(rm_id, 0, start)
                for run in piece.runs if piece is not None else ():
                    if run.rm_id == rm_id and run.offsets[0] < end and run.instance != instance:
                        last = run
                if last is not None:
                    return Former(last.instance, begun.first_id) if last.last_id == begun.first_id - 1 else None
                if start == low:
                    return None
                end = start
            return None

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    async def _read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        # 1. the offset to begin at
        offset = self._start_offsets.get((rm_id, instance, start))
        if offset is None or (self._cached_piece(offset) is None and offset < (await self._ends())[0]):
            offset = await self._search(rm_id, instance, start)
        # 2. read on until there is enough, or the ids are no longer consecutive
        old_events: OldEvents | None = None
        while old_events is None or len(old_events.values) < count:
            piece = await self._piece(rm_id, start, offset)
            if piece is None:
                break
            for run in piece.since(offset).runs:
                if run.rm_id != rm_id or run.instance != instance or run.last_id < start:
                    continue
                run = run.from_index(max(start - run.first_id, 0))
                if old_events is None:
                    old_events = OldEvents(run.first_id, [])
                    self._remember(rm_id, instance, run.first_id, run.offsets[0])
                elif run.first_id != old_events.first_id + len(old_events.values):
                    return old_events
                remaining = count - len(old_events.values)
                old_events.values.extend(run.values[:remaining])
                if len(run) >= remaining:
                    self._remember(rm_id, instance, run.first_id + remaining, run.offsets[remaining - 1] + 1)
                    return old_events
            offset = piece.end
        return old_events

    async def _search(self, rm_id: str, instance: str, start: int) -> int:
        """An offset at or before the RM's first event with an id of at least ``start``, and near it."""
        # 1. the offsets that enclose it, with their ids
        low, high = await self._ends()
        marks = self._marks.get((rm_id, instance))
        low_id, high_id = 0, None
        if marks is not None:
            below, above = marks.around(start)
            if below is not None and below[1] >= low:
                low_id, low = below
            if above is not None and low <= above[1] < high:
                high_id, high = above[0], above[1] + 1
        # 2. the last id, unless it is known; then in turn a guess a little before the event, a guess a little behind
        # it, and the middle: at worst three times the steps of halving
        step = 0 if high_id is not None else -1
        while high - low > _NEAR:
            looked, size = (low + high) // 2, _PROBE_RECORDS
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
        """The first offset and the end offset, as they were when the search began."""
        if self._limits is None:
            if self._reader is None:
                self._reader = await self._bus.reader(self._topic, self._partition, fetch_max_bytes=_FETCH_MAX_BYTES)
            first, end = self._limits = await self._reader.first_offset(), await self._reader.end_offset()
            if first < self._limits_before[0] or end < self._limits_before[1]:
                # Another log has taken the place of the one that was searched before.
                self._pieces.clear()
                self._start_offsets.clear()
                self._marks.clear()
            self._limits_before = first, end
        return self._limits

    async def _piece(self, rm_id: str, start: int, offset: int, size: int = _SCAN) -> EventBatch | None:
        """Events from ``offset`` on, remembered or read; None: the log ends there.

        Raises SearchLimitExceeded and LogError.
        """
        if self._records_read > self._records_max:
            raise SearchLimitExceeded(rm_id, start, self._records_read)
        piece = self._cached_piece(offset)
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
            if len(self._pieces) > _PIECES_MAX:
                self._pieces.popitem(last=False)
        # (A log in this process answers without a pause, so other tasks run here.)
        await asyncio.sleep(0)
        return piece

    async def _records(self, offset: int, end: int, size: int) -> tuple[list[Record], int]:
        """The next records and the position behind them; no records where transactions left only holes."""
        assert self._reader is not None, "made in _ends"
        if self._reader_at != offset:
            metrics.LOG_LOOKUP_SEEKS.inc()
            self._reader.seek(offset)
        self._reader_at = None
        records: list[Record] = []
        # A busy broker answers late, and a stream that ended here would be the reader's loss.
        for _ in range(_ATTEMPTS):
            records = list(await self._reader.read(size, _READ_TIMEOUT_S))
            after = self._reader_at = self._reader.position
            if after > offset:
                break
        else:
            raise LogUnavailable(f"no records from position {offset}, though the log ends at {end}")
        self._records_read += len(records)
        metrics.LOG_LOOKUP_RECORDS.inc(len(records))
        return records, after

    def _cached_piece(self, offset: int) -> EventBatch | None:
        for start, piece in self._pieces.items():
            if start <= offset < piece.end:
                self._pieces.move_to_end(start)
                return piece
        return None

    def _remember(self, rm_id: str, instance: str, event_id: int, offset: int) -> None:
        self._start_offsets[rm_id, instance, event_id] = offset
        while len(self._start_offsets) > _START_OFFSETS_MAX:
            self._start_offsets.popitem(last=False)

    def _mark(self, run: EventRun) -> None:
        key = run.rm_id, run.instance
        marks = self._marks.get(key)
        if marks is None:
            marks = self._marks[key] = _OffsetIndex()
            if len(self._marks) > _MARKED_RMS_MAX:
                self._marks.popitem(last=False)
        self._marks.move_to_end(key)
        marks.add(run.first_id, run.offsets[0])
        marks.add(run.last_id, run.offsets[-1])


class _OffsetIndex:
    """Some ids of one RM with their offsets, in order."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._offsets: list[int] = []

    def add(self, event_id: int, offset: int) -> None:
        index = bisect_left(self._ids, event_id)
        if self._ids[index : index + 1] == [event_id]:
            return
        self._ids.insert(index, event_id)
        self._offsets.insert(index, offset)
        if len(self._ids) > _MARKS_MAX:
            del self._ids[1::2], self._offsets[1::2]

    def around(self, event_id: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The last entry with at most this id, and the first entry with at least this id."""
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
    """The offset from which reading forward to ``end`` fills the rings of the partition's RMs.

    It reads backwards until each registered or seen RM has ``capacity_of`` events or its id 0, or until the log or
    ``records_max`` ends. It keeps no records, because a ring may be too large to be in memory twice.
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
                remaining = missing.get(run.rm_id, capacity_of(run.rm_id)) - len(run)
                missing[run.rm_id] = remaining if run.first_id else 0
        read, low = read + count, start
        if missing and all(remaining <= 0 for remaining in missing.values()):
            break
        step = min(step * 2, _STEP_MAX)
    return low


async def read_range(reader: LogReader, start: int, end: int) -> AsyncIterator[list[Record]]:
    """The visible records in ``[start, end)``, in pieces, without those that retention deletes meanwhile.

    Rings are filled from hundreds of thousands of records, which takes a busy machine minutes. So a broker that is
    silent for a while ends nothing: the read goes on where it is. Raises LogUnavailable if the log stays away.
    """
    reader.seek(start)
    attempts = 0
    while (before := reader.position) < end:
        try:
            records = list(await reader.read(_PIECE, _READ_TIMEOUT_S))
        except LogUnavailable:
            attempts += 1
            if attempts == _ATTEMPTS:
                raise
            await asyncio.sleep(_AGAIN_S)
            continue
        except OffsetOutOfRange as gone:
            if gone.first <= reader.position:
                raise  # not retention: the end of the log is lost
            reader.seek(gone.first)
            continue
        attempts = 0 if records or reader.position > before else attempts + 1
        if attempts == _ATTEMPTS:
            raise LogUnavailable(f"no records from position {reader.position}, though the log ends at {end}")
        while records and records[-1].offset >= end:
            records.pop()
        if records:
            yield records
