"""Follows one partition of ``si.events``: fills the rings, and keeps a short tail for the exporters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

import structlog
from muster_bus.damage import Readers
from muster_bus.errors import LogError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader
from muster_runtime.backoff import aligned_s

from muster_event_publisher import metrics
from muster_event_publisher.event_runs import EventBatch, ShimEvent, batch_of
from muster_event_publisher.log_search import read_range, tail_start
from muster_event_publisher.ring import Rings, Signal
from muster_event_publisher.settings import PublisherSettings

log = structlog.get_logger(__name__)

_END_AGE_S = 5.0  # greatest age of the log's end in the lag


class PartitionFeed:
    """Fills the rings from the end of the partition at start, then follows the partition.

    tail
        The newest batches; they cover the positions ``[tail_start, tail_end)``. An exporter whose position is inside
        reads from memory. An exporter that is behind reads the log until its position is inside. Only positions count,
        so no event is lost or doubled between memory and log.

    :param on_shim_events: receives the shim events, also those that are read at start; it must not raise.
    :param registered: gives the partition's RMs: each gets its ring at start, however old its events are.
    """

    def __init__(
        self,
        partition: int,
        bus: Readers,
        topic: str,
        rings: Rings,
        settings: PublisherSettings,
        on_shim_events: Callable[[list[ShimEvent]], None] = lambda events: None,
        registered: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.partition = partition
        self.changed = Signal()
        self.healthy = False
        self.tail_start = self.tail_end = 0
        self._bus, self._topic, self._rings, self._settings = bus, topic, rings, settings
        self._on_shim_events, self._registered = on_shim_events, registered
        self._tail: deque[tuple[EventBatch, int]] = deque()
        self._tail_records = 0
        self._reader: LogReader | None = None
        self._stop_at: int | None = None

    async def start(self) -> None:
        """Fills the rings with the newest events of the log, and seeks the position where following begins."""
        self._reader = reader = await self._bus.reader(self._topic, self.partition)
        end = await reader.end_offset()
        limit = self._settings.backfill_records_max
        start = await tail_start(reader, self.partition, end, self._rings.capacity_of, self._registered(), limit)
        async for piece in read_range(reader, start, end):
            batch = batch_of(self.partition, piece, 0, 0)
            self._into_rings(batch)
            await self._pack(batch)
        reader.seek(end)
        self.tail_start = self.tail_end = end
        self.healthy = True

    async def follow(self) -> None:
        """Takes new events until :meth:`stop_at_end` ends it. Raises LogError that no retry can solve."""
        assert self._reader is not None, "start comes first"
        pause_s = self._settings.retry_min_s
        while self._stop_at is None or self.tail_end < self._stop_at:
            start = self._reader.position
            try:
                # 1. read
                timeout_s = aligned_s(self._settings.poll_s) if self._stop_at is None else 0.05
                records = await self._reader.read(self._settings.read_records_max, timeout_s)
            except OffsetOutOfRange as gone:
                # Retention deleted events before this follower read them; the ids will show the gap.
                log.warning("events were deleted before they were read", partition=self.partition, error=str(gone))
                self._jump(gone.first)
                continue
            except LogUnavailable as error:
                self.healthy = False
                metrics.LOG_ERRORS.inc()
                log.warning("the log does not answer", partition=self.partition, error=str(error), retry_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, self._settings.retry_max_s)
                continue
            self.healthy, pause_s = True, self._settings.retry_min_s
            if records or self._reader.position != start:
                # 2. the rings first, because REST and streams are waiting
                batch = batch_of(self.partition, records, start, self._reader.position)
                self._into_rings(batch)
                # 3. then the tail, for the exporters
                self._into_tail(batch, len(records))
                # 4. then pack the rings' old blocks, which no caller waits for
                await self._pack(batch)
            elif self._stop_at is not None:
                break  # the end that was seen at stop may lie behind holes

    async def stop_at_end(self) -> bool:
        """Lets :meth:`follow` return once it has read all records that are visible now. True: it has read them
        already.
        """
        assert self._reader is not None, "start comes first"
        self._stop_at = await self._reader.end_offset()
        return self.tail_end >= self._stop_at

    async def has_all(self) -> bool:
        """Whether all events that are visible now are taken. Raises LogError."""
        assert self._reader is not None, "start comes first"
        return self.tail_end >= await self._reader.end_offset()

    async def lag(self) -> int:
        """How many visible offsets are not taken yet; 0 when the log does not answer."""
        assert self._reader is not None, "start comes first"
        try:
            return max(await self._reader.end_offset(_END_AGE_S) - self.tail_end, 0)
        except LogError:
            return 0

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    def read_tail(self, position: int, records_max: int) -> EventBatch | None:
        """The tail's events from ``position`` on (perhaps none yet); None when the position is older than the tail.

        The next call continues at the answer's ``end``.
        """
        if position < self.tail_start:
            return None
        taken = EventBatch(self.partition, position, position, [])
        count = 0
        # From the newest batch backwards: an exporter that keeps up looks at the new batches only.
        newer = list(takewhile(lambda entry: entry[0].end > position, reversed(self._tail)))
        for batch, records in reversed(newer):
            newer_part = batch.since(position)
            taken.runs += newer_part.runs
            taken.shim += newer_part.shim
            taken.end = batch.end
            count += records
            if count >= records_max:
                break
        return taken

    def _into_rings(self, batch: EventBatch) -> None:
        metrics.SHIM_EVENTS.inc(len(batch.shim))
        if batch.shim:
            self._on_shim_events(batch.shim)
        if batch.malformed:
            metrics.MALFORMED.inc(batch.malformed)
            log.error("records that are not events", partition=self.partition, count=batch.malformed, before=batch.end)
        for run in batch.runs:
            ring = self._rings.ring_for(run.rm_id, run.instance)
            missing, repeated = ring.append(run.first_id, run.values)
            metrics.EVENTS.labels(run.rm_id).inc(len(run) - repeated)
            metrics.RING_EVENTS.labels(run.rm_id).set(len(ring))
            if missing is not None:
                metrics.MISSING.labels(run.rm_id).inc(missing[1] - missing[0] + 1)
                log.error("event ids are missing in the log", rm=run.rm_id, first=missing[0], last=missing[1])
            if repeated:
                metrics.REPEATED.labels(run.rm_id).inc(repeated)
                log.error("event ids are repeated in the log", rm=run.rm_id, first=run.first_id, count=repeated)

    async def _pack(self, batch: EventBatch) -> None:
        """Packs the blocks that are old now; other tasks run after each block."""
        await asyncio.sleep(0)
        for rm_id in dict.fromkeys(run.rm_id for run in batch.runs):
            ring = self._rings.get(rm_id)
            packed = ring is not None
            while ring is not None and packed:
                packed = ring.pack()
                await asyncio.sleep(0)

    def _into_tail(self, batch: EventBatch, records: int) -> None:
        self._tail.append((batch, records))
        self._tail_records += records
        self.tail_end = batch.end
        while self._tail and self._tail_records > self._settings.tail_records:
            dropped, count = self._tail.popleft()
            self._tail_records -= count
            self.tail_start = dropped.end
        self.changed.notify()

    def _jump(self, position: int) -> None:
        assert self._reader is not None, "start comes first"
        self._reader.seek(position)
        self._tail.clear()
        self._tail_records = 0
        self.tail_start = self.tail_end = position
        self.changed.notify()
