"""The embedded log's writers, readers and owners."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from muster_bus import metrics
from muster_bus.backends.read_ahead import ReadAheadReader
from muster_bus.backends.record_limits import RecordRules
from muster_bus.backends.sqlite_work_items import LARGE_RECORDS, AppendRun, CommitUnit, OwnerEpoch, StoredPartition
from muster_bus.errors import (
    Fenced,
    LogClosed,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    TransactionFailed,
    TransactionTimeout,
)
from muster_bus.log import OutRecord, Record
from muster_bus.settings import LogSettings

CLOSE_TIMEOUT_S = 10.0

# Looked up once: each look-up costs some microseconds.
_TRANSACTION_SECONDS = metrics.transaction_seconds.labels("sqlite")
_TRANSACTION_RECORDS = metrics.transaction_records.labels("sqlite")


class OpenLog(Protocol):
    """The log's interface for its writers, readers and owners."""

    @property
    def settings(self) -> LogSettings: ...

    @property
    def path(self) -> Path: ...

    @property
    def rules(self) -> RecordRules: ...

    def check_open(self) -> None:
        """Raises LogClosed or LogUnavailable if the log is not open."""

    async def wait_writable(self) -> None:
        """Returns when fewer than ``max_queued_bytes`` wait for the writer."""

    def submit(self, unit: CommitUnit) -> None:
        """Commits a unit, or gives it to the writer."""

    def submit_appends(self, unit: CommitUnit) -> None:
        """Does the same with a unit of appends, which may be staged before."""

    async def pack(self, unit: CommitUnit) -> None:
        """Makes the blocks of a large unit before its commit, beside other commits. Raises LogClosed."""

    def partition(self, topic: str, partition: int) -> StoredPartition:
        """Returns a partition. The caller has checked that it exists."""

    async def read_file(self, partition: StoredPartition, position: int, max_records: int) -> list[Record]:
        """Reads records that are no longer in the tail. May return more than asked for. Raises OffsetOutOfRange,
        LogUnavailable, LogDamaged.
        """

    def now_ms(self) -> int: ...

    def monotonic_s(self) -> float: ...


class SqliteWriter:
    """See :class:`muster_bus.log.LogWriter`. The records appended in one turn of the event loop are one unit."""

    def __init__(self, embedded: OpenLog, name: str) -> None:
        self._log = embedded
        self._name = name
        self._closed = False
        self._runs: dict[int, AppendRun] = {}
        self._size = 0
        # Of the appends, oldest first, without the first ones that are done. (A callback that takes each out when it is
        # done would be a step of the loop for each append.)
        self._waiting: deque[asyncio.Future[int]] = deque()

    def append(self, record: OutRecord) -> Awaitable[int]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        try:
            if self._closed:
                raise LogClosed(f"writer {self._name} is closed")
            self._log.check_open()
            size = self._log.rules.check(record)
        except LogError as error:  # the contract raises errors when the result is awaited
            done.set_exception(error)
            return done
        partition = self._log.partition(record.topic, record.partition)
        if not self._runs and partition.waiting is None:
            loop.call_soon(self._flush)
        run = self._runs.get(partition.id)
        if run is None:
            run = self._runs[partition.id] = AppendRun(partition)
        run.add(record, size)
        run.done.append(done)
        self._size += size
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        self._waiting.append(done)
        if partition.waiting is not None:
            self._flush()  # the owner waits for just this
        return done

    async def wait_writable(self) -> None:
        if self._closed:
            raise LogClosed(f"writer {self._name} is closed")
        if self._size >= self._log.settings.max_queued_bytes:
            self._flush()
        await self._log.wait_writable()

    async def close(self) -> None:
        """Waits until the appended records are durable."""
        self._closed = True
        self._flush()
        if waiting := [future for future in self._waiting if not future.done()]:
            await asyncio.wait(waiting, timeout=CLOSE_TIMEOUT_S)

    def _flush(self) -> None:
        if self._runs:
            unit = CommitUnit(list(self._runs.values()), self._log.now_ms(), self._size)
            self._runs, self._size = {}, 0
            self._log.submit_appends(unit)


class SqliteReader(ReadAheadReader):
    """See :class:`muster_bus.log.LogReader`."""

    def __init__(self, embedded: OpenLog, partition: StoredPartition, position: int) -> None:
        super().__init__(position)
        self._log, self._partition = embedded, partition
        partition.readers += 1
        self._count_read = metrics.records_read.labels(partition.topic).inc

    def cached_end(self) -> int:
        return max(self._position, self._end())

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._check()
        tail = self._partition.tail
        if self._position == tail.end and timeout_s > 0:
            await tail.wait(timeout_s)
            self._check()
        records = tail.slice(self._position, max_records)
        if records is None:
            records = await self._read_old(max_records)
        elif self._ahead:
            self._ahead.clear()
        if records:
            self._position = records[-1].offset + 1
            self._count_read(len(records))
        return records

    def on_more(self, call: Callable[[], None]) -> None:
        self._partition.tail.on_more(call)

    def read_now(self, max_records: int) -> Sequence[Record]:
        self._check()
        records = self._partition.tail.slice(self._position, max_records)
        if not records:
            return ()
        self._ahead.clear()
        self._position = records[-1].offset + 1
        self._count_read(len(records))
        return records

    async def first_offset(self) -> int:
        self._log.check_open()
        return self._partition.first_offset

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        self._log.check_open()
        return self._end()

    async def written_end(self) -> int:
        return await self.end_offset()

    async def close(self) -> None:
        if not self._closed:
            self._partition.readers -= 1
        self._closed = True
        self._partition.tail.signal()

    async def _read_old(self, max_records: int) -> Sequence[Record]:
        if not self._ahead:
            records = await self._log.read_file(self._partition, self._position, max_records)
            self._check()
            self._ahead.replace(records)
        return self._ahead.pop(max_records)

    def _end(self) -> int:
        return self._partition.tail.end

    def _check(self) -> None:
        self._log.check_open()
        partition = self._partition
        if self._closed:
            raise LogClosed(f"the reader of {partition.topic}[{partition.partition}] is closed")
        if not partition.first_offset <= self._position <= self._end():
            raise OffsetOutOfRange(
                partition.topic, partition.partition, self._position, partition.first_offset, partition.tail.end
            )


class EarlyReader(SqliteReader):
    """See :class:`muster_bus.log.EarlyInputOwner`."""

    def __init__(self, embedded: OpenLog, partition: StoredPartition, owner_epoch: OwnerEpoch) -> None:
        super().__init__(embedded, partition, partition.first_offset)
        self._owner_epoch = owner_epoch

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._check()
        partition = self._partition
        if self._position == self._end() and timeout_s > 0:
            partition.waiting = self._owner_epoch
            try:
                await partition.tail.wait(timeout_s)
            finally:
                partition.waiting = None
            self._check()
        if self._position < partition.tail.end:
            return await super().read(max_records, 0)
        if self._position == self._end():
            return ()
        start = self._position - partition.tail.end
        records = partition.staged[start : start + max_records]
        self._position += len(records)
        self._count_read(len(records))
        return records

    def _end(self) -> int:
        partition = self._partition
        return partition.tail.end + (len(partition.staged) if partition.staged_for is self._owner_epoch else 0)

    def _check(self) -> None:
        if self._owner_epoch.lost:
            raise LogUnavailable(f"{self._owner_epoch.story} has read what was not written: {self._owner_epoch.lost}")
        super()._check()


class SqliteOwner:
    """See :class:`muster_bus.log.PartitionOwner` and :class:`muster_bus.log.EarlyInputOwner`."""

    def __init__(self, embedded: OpenLog, partition: StoredPartition, owner_epoch: OwnerEpoch) -> None:
        self._log = embedded
        self._partition = partition
        self._owner_epoch = owner_epoch
        self._ended = ""

    def early_reader(self) -> EarlyReader:
        self._log.check_open()
        return EarlyReader(self._log, self._partition, self._owner_epoch)

    async def committed(self) -> int | None:
        self._check()
        owner_epoch, claim = self._owner_epoch, self._owner_epoch.claim
        if owner_epoch.epoch != claim.epoch:
            raise Fenced(f"{owner_epoch.story}: taken over (epoch {owner_epoch.epoch}, now {claim.epoch})")
        return claim.position

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        if len(records) <= LARGE_RECORDS:
            waiting = self.commit_at_once(records, input_position)
        else:
            self._check()
            unit = self._unit(records[:0], input_position)
            for start in range(0, len(records), LARGE_RECORDS):
                self._add(unit, records[start : start + LARGE_RECORDS])
                await asyncio.sleep(0)
            await self._log.pack(unit)
            waiting = self._submit(unit, len(records))
        if waiting is not None:
            await waiting

    def commit_at_once(self, records: Sequence[OutRecord], input_position: int | None) -> Awaitable[None] | None:
        return self._submit(self._unit(records, input_position), len(records))

    def _submit(self, unit: CommitUnit, count: int) -> Awaitable[None] | None:
        self._check()
        started_s = self._log.monotonic_s()
        self._log.submit(unit)
        assert unit.done is not None
        if not unit.done.done():
            return self._committed(unit.done, started_s, count)
        self._end(unit.done, started_s, count)
        return None

    async def _committed(self, done: asyncio.Future[None], started_s: float, count: int) -> None:
        """Waits for a commit."""
        deadline_s = self._log.settings.transaction_deadline_s
        await asyncio.wait({done}, timeout=deadline_s)
        if not done.done():
            done.cancel()
            self._fail("timeout", "a commit had no answer in time")
            raise TransactionTimeout(f"{self._owner_epoch.story}: no answer from {self._log.path} in {deadline_s} s")
        self._end(done, started_s, count)

    def _end(self, done: asyncio.Future[None], started_s: float, count: int) -> None:
        """Takes the result of a commit."""
        try:
            done.result()
        except Fenced:
            self._fail("fenced", "it was fenced")
            raise
        except LogUnavailable as error:
            self._fail("unavailable", "a commit failed")
            raise TransactionFailed(f"{self._owner_epoch.story}: {error}") from error
        _TRANSACTION_SECONDS.observe(self._log.monotonic_s() - started_s)
        _TRANSACTION_RECORDS.observe(count)

    async def close(self) -> None:
        self._ended = self._ended or "it was closed"

    def _unit(self, records: Sequence[OutRecord], input_position: int | None) -> CommitUnit:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        unit = CommitUnit([], self._log.now_ms(), 0, self._owner_epoch, input_position, done)
        self._add(unit, records)
        return unit

    def _add(self, unit: CommitUnit, records: Sequence[OutRecord]) -> None:
        """Adds records to a unit. Raises RecordTooLarge, InvalidRecord."""
        runs = {(run.partition.topic, run.partition.partition): run for run in unit.runs}
        check = self._log.rules.check
        total = 0
        for record in records:
            size = check(record)
            total += size
            partition = (record.topic, record.partition)
            run = runs.get(partition)
            if run is None:
                run = runs[partition] = AppendRun(self._log.partition(*partition))
                unit.runs.append(run)
            run.add(record, size)
        unit.size_bytes += total

    def _fail(self, reason: str, story: str) -> None:
        self._ended = story
        metrics.transactions_failed.labels("sqlite", reason).inc()

    def _check(self) -> None:
        self._log.check_open()
        if self._ended:
            raise LogClosed(f"owner {self._owner_epoch.story} is of no further use: {self._ended}")
