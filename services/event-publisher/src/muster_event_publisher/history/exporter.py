"""Brings one partition's events to one sink: in order, each at least once, however often anything dies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader

from muster_event_publisher import metrics
from muster_event_publisher.errors import SinkError
from muster_event_publisher.events import EventBatch, EventRun, batch_of
from muster_event_publisher.feed import PartitionFeed
from muster_event_publisher.history.sink import Progress, Sink

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When what waits is written: whatever comes first. The reason for waiting at all is larger, fewer writes."""

    records: int
    size_bytes: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits between attempts: doubled from ``min_s`` to ``max_s``."""

    min_s: float
    max_s: float


class Exporter:
    """One sink, one partition.

    It holds at most what the policy lets wait plus one reading. While the sink is away it reads nothing: the log keeps
    the rest. Crash-only: a new one asks the sink for its progress and goes on from there.
    """

    def __init__(
        self, sink: Sink, feed: PartitionFeed, bus: Log, topic: str, policy: FlushPolicy, retry: Retry, clock: Clock
    ) -> None:
        self.problem: str | None = None
        self._sink, self._feed, self._bus, self._topic = sink, feed, bus, topic
        self._policy, self._retry, self._clock = policy, retry, clock
        self._reader: LogReader | None = None
        self._runs: list[EventRun] = []
        self._records = self._bytes = 0
        self._start = self._position = 0
        self._waiting_since = 0.0
        self._finishing = False

    async def run(self) -> None:
        """Until :meth:`finish` was called and everything that the feed has is durable."""
        # 1. where the sink stopped
        await self._begin()
        while True:
            # 2. what is due is made durable
            caught_up = self._position >= self._feed.tail_end
            if self._records and (self._due() or (self._finishing and caught_up)):
                await self._flush()
            elif self._finishing and caught_up:
                return
            # 3. what comes next is put to the rest
            else:
                await self._next()

    def finish(self) -> None:
        """Asks :meth:`run` to return once everything up to the feed's end is durable. The feed must have stopped."""
        self._finishing = True
        self._feed.changed.notify()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    @property
    def lag(self) -> int:
        """Offsets that the follower has and the sink has not."""
        return max(self._feed.tail_end - (self._start if self._records else self._position), 0)

    def _due(self) -> bool:
        policy = self._policy
        return (
            self._records >= policy.records
            or self._bytes >= policy.size_bytes
            or self._clock.monotonic() - self._waiting_since >= policy.wait_s
        )

    async def _begin(self) -> None:
        pause_s = self._retry.min_s
        while True:
            try:
                await self._sink.start()
                progress = await self._sink.progress(self._feed.partition)
                self._reader = await self._bus.reader(self._topic, self._feed.partition)
                self._position = self._start = await self._resume_at(progress)
                self.problem = None
                return
            except (SinkError, LogUnavailable) as error:
                pause_s = await self._pause(error, pause_s)

    async def _resume_at(self, progress: Progress | None) -> int:
        """The position to go on from, once the log is recognised as the one that the sink has seen."""
        assert self._reader is not None, "made in _begin"
        first, end = await self._reader.first_offset(), await self._reader.end_offset()
        if progress is None:
            return first
        story = {"sink": self._sink.name, "partition": self._feed.partition, "stored": progress.end, "first": first}
        if progress.last.offset < first:
            if progress.end < first:
                metrics.EXPORT_MISSING.labels(self._sink.name).inc(first - progress.end)
                log.error("events were deleted from the log before they were exported", **story)
            return first
        if progress.last.offset < end:
            self._reader.seek(progress.last.offset)
            records = await self._reader.read(1, 5.0)
            runs = batch_of(self._feed.partition, records, 0, 0).runs
            last = progress.last
            if runs and (runs[0].offsets[0], runs[0].rm_id, runs[0].instance, runs[0].first_id) == last:
                return min(progress.end, end)
        # Its events are recognised one by one (instance and id), so starting over does no harm.
        log.warning("the log is not the one that was exported before; exporting it from its start", **story)
        return first

    async def _next(self) -> None:
        batch = self._feed.take(self._position, self._policy.records)
        if batch is None:
            try:
                batch = await self._read_behind()
            except LogUnavailable as error:
                await self._pause(error, self._retry.min_s)
                return
            self.problem = None
        if batch.end == self._position:
            await self._feed.changed.wait(self._wait_s())
            return
        if batch.runs and not self._records:
            self._start, self._waiting_since = self._position, self._clock.monotonic()
        self._position = batch.end
        self._runs += batch.runs
        self._records += batch.records
        self._bytes += batch.size_bytes
        if not self._records:
            self._start = self._position
        metrics.EXPORT_LAG.labels(self._sink.name, str(self._feed.partition)).set(self.lag)

    def _wait_s(self) -> float | None:
        if not self._records:
            return None
        return max(self._waiting_since + self._policy.wait_s - self._clock.monotonic(), 0.001)

    async def _read_behind(self) -> EventBatch:
        """Reads the log itself: the tail does not reach back so far."""
        assert self._reader is not None, "made in _begin"
        self._reader.seek(self._position)
        try:
            records = await self._reader.read(min(self._policy.records, 5_000), 0.5)
        except OffsetGone as gone:
            log.error(
                "events were deleted from the log before they were exported",
                sink=self._sink.name, partition=self._feed.partition, position=self._position, first=gone.first,
            )  # fmt: skip
            metrics.EXPORT_MISSING.labels(self._sink.name).inc(max(gone.first - self._position, 0))
            return EventBatch(self._feed.partition, self._position, gone.first, [])
        end = max(self._reader.position, self._position)
        if not records and await self._reader.end_offset() <= self._position:
            # Only holes (transaction markers, say) up to where the follower has been.
            end = self._feed.tail_start
        return batch_of(self._feed.partition, records, self._position, end)

    async def _flush(self) -> None:
        """Makes what waits durable; comes back only when it is."""
        batch = EventBatch(self._feed.partition, self._start, self._position, self._runs)
        pause_s = self._retry.min_s
        while batch.runs:
            try:
                began = self._clock.monotonic()
                await self._sink.write(batch)
                metrics.EXPORT_SECONDS.labels(self._sink.name).observe(self._clock.monotonic() - began)
                break
            except SinkError as error:
                pause_s = await self._pause(error, pause_s)
                batch = await self._rest_of(batch)
        metrics.EXPORTED.labels(self._sink.name).inc(self._records)
        self.problem = None
        self._runs, self._records, self._bytes, self._start = [], 0, 0, self._position
        metrics.EXPORT_LAG.labels(self._sink.name, str(self._feed.partition)).set(self.lag)

    async def _rest_of(self, batch: EventBatch) -> EventBatch:
        """The part of a failed batch that is not durable: a sink may have stored the first pieces."""
        try:
            await self._sink.start()
            progress = await self._sink.progress(batch.partition)
        except SinkError as error:
            self.problem = str(error)
            return batch
        return batch.since(progress.end) if progress is not None and progress.end <= batch.end else batch

    async def _pause(self, error: Exception, pause_s: float) -> float:
        """Waits before the next attempt; returns the wait after that."""
        self.problem = str(error)
        metrics.EXPORT_ERRORS.labels(self._sink.name).inc()
        log.warning("export waits", sink=self._sink.name, partition=self._feed.partition, error=str(error), s=pause_s)
        await asyncio.sleep(pause_s)
        return min(pause_s * 2, self._retry.max_s)
