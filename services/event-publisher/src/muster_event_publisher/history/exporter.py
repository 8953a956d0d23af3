"""Exports one partition's events to one sink: in order, each at least once, even if processes crash meanwhile."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from muster_bus.clock import Clock, day_ns
from muster_bus.damage import DamagedParts, Readers
from muster_bus.errors import LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader

from muster_event_publisher import metrics
from muster_event_publisher.errors import SinkError, SinkRejected, SinkUnavailable
from muster_event_publisher.event_decoding import decode
from muster_event_publisher.event_runs import EventBatch, EventRun, batch_of
from muster_event_publisher.feed import PartitionFeed
from muster_event_publisher.history.dead_letters import DeadLetters
from muster_event_publisher.history.pieces import pieces
from muster_event_publisher.history.sink import FlushPolicy, Sink, SinkProgress

__all__ = ["ExportBackoff", "Exporter", "FlushPolicy"]

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Longest wait for the one record by which the log is recognised.
_POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class ExportBackoff:
    """Waits between attempts: doubled from ``min_s`` to ``max_s``.

    :param refusals: after so many refusals of a batch, its halves are tried separately.
    :param dead_letters_in_a_row: after so many dead letters without a stored event in between, the fault is the
        store's: no further event becomes a dead letter until the store takes one.
    """

    min_s: float
    max_s: float
    refusals: int = 5
    dead_letters_in_a_row: int = 100


class Exporter:
    """Exports one partition to one sink.

    In memory it holds at most the events that the policy lets wait plus those of one read. While the sink is away it
    reads nothing: the log keeps the rest. After a crash a new exporter asks the sink for its progress and continues
    there.
    """

    def __init__(
        self,
        sink: Sink,
        feed: PartitionFeed,
        bus: Readers,
        topic: str,
        policy: FlushPolicy,
        retry: ExportBackoff,
        clock: Clock,
        dead_letters: DeadLetters,
        damage: DamagedParts | None = None,
    ) -> None:
        self.problem: str | None = None
        self._sink, self._feed, self._bus, self._topic = sink, feed, bus, topic
        self._dead_letters, self._damage = dead_letters, damage or DamagedParts("the events in them are not exported")
        self._policy, self._retry, self._clock = policy, retry, clock
        self._reader: LogReader | None = None
        self._runs: list[EventRun] = []
        self._records = self._bytes = 0
        self._start = self._position = 0
        self._waiting_since = 0.0
        self._caught_up_at = clock.monotonic()
        self._dead_lettered = self._consecutive_dead_letters = 0
        self._finishing = False
        labels = (sink.name, str(feed.partition))
        self._gauges = (metrics.EXPORT_LAG.labels(*labels), metrics.EXPORT_LAG_SECONDS.labels(*labels))
        self._gauges[0].set_function(lambda: self.lag)
        self._gauges[1].set_function(lambda: self.lag_s)

    async def run(self) -> None:
        """Exports until :meth:`finish` was called and all events of the feed are durable."""
        # 1. the position at which the sink stopped
        await self._begin()
        while True:
            # 2. a batch that is due becomes durable
            caught_up = self._position >= self._feed.tail_end
            if self._records and (self._due() or (self._finishing and caught_up)):
                await self._flush()
            elif self._finishing and caught_up:
                return
            # 3. the next events join the batch
            else:
                await self._next()

    def finish(self) -> None:
        """Lets :meth:`run` return once all events up to the feed's end are durable. The feed must have stopped."""
        self._finishing = True
        self._feed.changed.notify()

    async def close(self) -> None:
        for gauge in self._gauges:
            gauge.set_function(lambda: 0.0)
        await self._close_reader()

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    @property
    def lag(self) -> int:
        """How many offsets the feed has that the sink does not have."""
        return max(self._feed.tail_end - (self._start if self._records else self._position), 0)

    @property
    def lag_s(self) -> float:
        """Age of the oldest event that is not durable; if it is not in memory, the time since the sink had all."""
        if self._runs:
            return max(day_ns(self._clock) - decode(self._runs[0].values[0]).timestampNano, 0) / 1e9
        return self._clock.monotonic() - self._caught_up_at if self.lag else 0.0

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
                progress = await self._started_at(self._feed.partition)
                if self._reader is None:
                    self._reader = await self._bus.reader(self._topic, self._feed.partition)
                self._position = self._start = await self._resume_at(progress)
                self.problem = None
                return
            except (
                SinkError,
                LogUnavailable,
                OffsetOutOfRange,
            ) as error:  # OffsetOutOfRange: retention has deleted it meanwhile
                pause_s = await self._pause(error, pause_s)

    async def _resume_at(self, progress: SinkProgress | None) -> int:
        """The position to continue from; the start of the log, if it is not the log that the sink has seen."""
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
            records = await self._reader.read(1, _POLL_S)
            if not records and self._reader.position <= progress.last.offset:
                # Without an answer the log is not recognised. (At a hole in the offsets the position moves.)
                raise LogUnavailable(f"{self._topic}[{self._feed.partition}] gives nothing at {progress.last.offset}")
            runs = batch_of(self._feed.partition, records, 0, 0).runs
            last = progress.last
            if self._damage.at(self._topic, self._feed.partition, last.offset) is not None:
                return min(progress.end, end)  # what would show whether it is the same log is damaged
            if runs and (runs[0].offsets[0], runs[0].rm_id, runs[0].instance, runs[0].first_id) == last:
                return min(progress.end, end)
        # The sink recognises each event by instance and id, so starting over does no harm.
        log.warning("the log is not the one that was exported before; exporting it from its start", **story)
        await self._own(self._sink.new_log(self._feed.partition))
        return first

    async def _next(self) -> None:
        batch = self._feed.read_tail(self._position, self._policy.records)
        behind = batch is None
        if batch is not None:
            await self._close_reader()  # it would fetch what the feed has
        else:
            try:
                batch = await self._read_behind()
            except LogUnavailable as error:
                await self._pause(error, self._retry.min_s)
                return
            self.problem = None
        if batch.end == self._position and behind:
            return  # the log gave nothing in time; it has more, whether or not the feed gets new events
        if batch.end == self._position:
            if not self._records:
                self._caught_up_at = self._clock.monotonic()
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

    def _wait_s(self) -> float | None:
        if not self._records:
            return None
        return max(self._waiting_since + self._policy.wait_s - self._clock.monotonic(), 0.001)

    async def _read_behind(self) -> EventBatch:
        """Reads the log, because the tail does not reach back so far."""
        if self._reader is None:
            self._reader = await self._bus.reader(self._topic, self._feed.partition, self._position)
        self._reader.seek(self._position)
        try:
            records = await self._reader.read(min(self._policy.records, 5_000), 0.5)
        except OffsetOutOfRange as gone:
            log.error(
                "events were deleted from the log before they were exported",
                sink=self._sink.name, partition=self._feed.partition, position=self._position, first=gone.first,
            )  # fmt: skip
            metrics.EXPORT_MISSING.labels(self._sink.name).inc(max(gone.first - self._position, 0))
            return EventBatch(self._feed.partition, self._position, gone.first, [])
        end = max(self._reader.position, self._position)
        if not records and await self._reader.end_offset() <= self._position:
            # Only holes (transaction markers, for example) lie before the feed's tail.
            end = self._feed.tail_start
        return batch_of(self._feed.partition, records, self._position, end)

    async def _flush(self) -> None:
        """Makes the waiting events durable. Returns when they are."""
        self._dead_lettered = 0
        await self._store(
            EventBatch(self._feed.partition, self._start, self._position, self._runs), self._retry.refusals
        )
        metrics.EXPORTED.labels(self._sink.name).inc(self._records - self._dead_lettered)
        self.problem = None
        self._runs, self._records, self._bytes, self._start = [], 0, 0, self._position

    async def _store(self, batch: EventBatch, refusals: int) -> None:
        """Makes a batch durable; events that the sink refuses go to the dead letters.

        :param refusals: after so many refusals the batch is halved.
        """
        pause_s, refused = self._retry.min_s, 0
        while batch.runs:
            try:
                # 1. the whole batch
                began = self._clock.monotonic()
                await self._written(batch)
                metrics.EXPORT_SECONDS.labels(self._sink.name).observe(self._clock.monotonic() - began)
                self._consecutive_dead_letters = 0
                return
            except SinkRejected as error:
                refused += 1
                batch = await self._rest_of(batch)
                if refused >= refusals and batch.records > 1:
                    # 2. its halves, one after the other, which keeps the order of positions
                    for half in pieces(batch, (batch.records + 1) // 2):
                        await self._store(half, 1)
                    return
                if refused >= refusals and batch.runs:
                    # 3. down to the one event that the sink refuses
                    if self._consecutive_dead_letters < self._retry.dead_letters_in_a_row:
                        await self._write_dead_letter(batch.runs[0], error)
                        return
                    nothing = (
                        f"it took none of the last {self._consecutive_dead_letters} events, so no more are given up"
                    )
                    error = SinkRejected(self._sink.name, f"{nothing}: {error.reason}")
                pause_s = await self._pause(error, pause_s)
            except SinkError as error:
                pause_s = await self._pause(error, pause_s)
                batch = await self._rest_of(batch)

    async def _write_dead_letter(self, run: EventRun, error: SinkRejected) -> None:
        pause_s = self._retry.min_s
        while True:
            try:
                await self._dead_letters.write(run, self._sink.name, error.reason)
                self._dead_lettered += 1
                self._consecutive_dead_letters += 1
                return
            except LogUnavailable as unavailable:
                pause_s = await self._pause(unavailable, pause_s)

    async def _rest_of(self, batch: EventBatch) -> EventBatch:
        """The part of a failed batch that is not durable: a sink may have stored the first pieces."""
        try:
            progress = await self._started_at(batch.partition)
        except SinkError as error:
            self.problem = str(error)
            return batch
        return batch.since(progress.end) if progress is not None and progress.end <= batch.end else batch

    async def _started_at(self, partition: int) -> SinkProgress | None:
        await self._own(self._sink.start())
        return await self._own(self._sink.progress(partition))

    async def _own(self, call: Awaitable[T]) -> T:
        """The sink's answer; an error outside of the sink's contract becomes SinkUnavailable, which is retried."""
        try:
            return await call
        except SinkError:
            raise
        except Exception as error:
            raise SinkUnavailable(self._sink.name, _defect(error)) from error

    async def _written(self, batch: EventBatch) -> None:
        try:
            await self._sink.write(batch)
        except SinkError:
            raise
        except Exception as error:
            raise SinkRejected(self._sink.name, _defect(error)) from error

    async def _pause(self, error: Exception, pause_s: float) -> float:
        """Waits before the next attempt; returns the wait after that."""
        self.problem = str(error)
        metrics.EXPORT_ERRORS.labels(self._sink.name).inc()
        log.warning("export waits", sink=self._sink.name, partition=self._feed.partition, error=str(error), s=pause_s)
        await asyncio.sleep(pause_s)
        metrics.EXPORT_RETRIES.labels(self._sink.name).inc()
        return min(pause_s * 2, self._retry.max_s)


def _defect(error: Exception) -> str:
    """Where a sink broke its contract. Without the error's text, which may quote the store's address and password."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
