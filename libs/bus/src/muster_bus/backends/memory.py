"""A log in memory. It keeps the whole contract except durability. For tests and simulation.

Several logs with one store are what several processes have of one log. Each may have faults of its own
(``memory_faults.py``).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import Counter

from muster_bus import metrics
from muster_bus.backends.memory_faults import Faults, Outcome
from muster_bus.backends.record_limits import RecordRules
from muster_bus.backends.tail import PartitionTail
from muster_bus.clock import Clock
from muster_bus.errors import (
    Fenced,
    LogClosed,
    LogUnavailable,
    OffsetOutOfRange,
    TopicMismatch,
    TransactionFailed,
)
from muster_bus.log import OutRecord, Record
from muster_bus.topics import TopicSpec

_PartitionKey = tuple[str, int]
# Records of one writer and partition become visible one after the other.
_APART_S = 1e-6


@dataclass
class _Claim:
    """A group's hold on an input partition.

    :ivar open: commits whose outcome is not decided yet. Each finishes one, if it is called.
    """

    epoch: int = 0
    position: int | None = None
    open: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class _Compacted:
    """The newest record of each key before an offset, as compaction leaves them: there are holes."""

    until: int = 0
    records: list[Record] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


@dataclass
class MemoryStore:
    """The content of a :class:`MemoryLog`. A new log that gets this store finds everything, as after a restart.

    :ivar identity: of the log; tests with several logs give each another one.
    """

    specs: dict[str, TopicSpec] = field(default_factory=dict)
    tails: dict[_PartitionKey, PartitionTail] = field(default_factory=dict)
    claims: dict[tuple[str, str, int], _Claim] = field(default_factory=dict)
    compacted: dict[_PartitionKey, _Compacted] = field(default_factory=dict)
    identity: str = "memory"

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before ``offset`` at once, as retention would."""
        tail = self.tails[topic, partition]
        tail.drop_before(min(offset, tail.end))

    def first_offset(self, topic: str, partition: int) -> int:
        """Returns the lowest offset that exists; for an empty partition the end offset."""
        compacted = self.compacted.get((topic, partition))
        return (
            compacted.offsets[0] if compacted is not None and compacted.offsets else self.tails[topic, partition].base
        )

    def compact(self, topic: str, partition: int, until: int | None = None) -> None:
        """Keeps the newest record of each key, and no tombstone, as Kafka does it in the background.

        :param until: offset of the first record that is not looked at; None: all are. A reader that is behind it may
            miss that a key was deleted.
        """
        tail, before = self.tails[topic, partition], self.compacted.get((topic, partition), _Compacted())
        until = tail.end if until is None else max(until, tail.base)
        newest = {record.key: record for record in before.records}
        for record in tail.slice(tail.base, until - tail.base) or ():
            newest.pop(record.key, None)
            if record.value is not None:
                newest[record.key] = record
        kept = list(newest.values())
        self.compacted[topic, partition] = _Compacted(until, kept, [record.offset for record in kept])
        tail.drop_before(until)


class MemoryLog:
    """See :class:`muster_bus.log.Log`.

    :param store: the store of an earlier log; None: a new one.
    :param faults: of this process's connection; None: everything succeeds at once.
    """

    def __init__(
        self,
        specs: Sequence[TopicSpec],
        clock: Clock,
        *,
        max_record_bytes: int = 1 << 20,
        store: MemoryStore | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.store = store if store is not None else MemoryStore()
        self.rules = RecordRules(specs, max_record_bytes)
        self.closed = False
        self.faults = faults
        self._specs = specs
        self._clock = clock
        self._written: dict[str, Counter] = {}  # by topic

    async def start(self) -> None:
        for spec in self._specs:
            self._written[spec.name] = metrics.records_written.labels(spec.name)
            existing = self.store.specs.setdefault(spec.name, spec)
            if existing.partitions != spec.partitions or existing.cleanup != spec.cleanup:
                raise TopicMismatch(
                    f"topic {spec.name} has {existing.partitions} partitions ({existing.cleanup}), "
                    f"configured are {spec.partitions} ({spec.cleanup})"
                )
            for partition in range(spec.partitions):
                self.store.tails.setdefault((spec.name, partition), PartitionTail(0))

    async def close(self) -> None:
        self.closed = True
        for tail in self.store.tails.values():
            tail.signal()

    def cut(self) -> None:
        """Ends the connection as the end of its process does: at once, and nobody is told."""
        self.closed = True

    async def healthy(self) -> bool:
        try:
            self.check_reached()
        except (LogClosed, LogUnavailable):
            return False
        return True

    async def identity(self) -> str:
        self.check_open()
        return self.store.identity

    async def writer(self, name: str) -> MemoryWriter:
        self.check_open()
        return MemoryWriter(self)

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> MemoryReader:
        self.check_open()
        self.rules.spec(topic, partition)
        first = self.store.first_offset(topic, partition) if start is None else start
        return MemoryReader(self, self.store.tails[topic, partition], topic, partition, first)

    async def take_over(self, group: str, topic: str, partition: int) -> MemoryOwner:
        self.check_open()
        self.rules.spec(topic, partition)
        self.check_reached()
        claim = self.store.claims.setdefault((group, topic, partition), _Claim())
        claim.epoch += 1
        # What is open is finished or undone before this returns; an open one goes on, or it does not.
        for finish in claim.open:
            if self.faults is None or self.faults.commit(group, partition)[1] is not Outcome.LOST:
                finish()
        claim.open.clear()
        return MemoryOwner(self, claim, group, topic, partition)

    def check_open(self) -> None:
        """Raises LogClosed if the log is closed."""
        if self.closed:
            raise LogClosed("the log is closed")

    def check_reached(self) -> None:
        """Raises LogClosed, or LogUnavailable if this process does not reach the log."""
        self.check_open()
        if self.faults is not None:
            self.faults.check()

    def publish(self, records: Sequence[OutRecord]) -> list[int]:
        """Makes records visible. No task sees only some of them. Returns their offsets."""
        now_ms = self._clock.now_ns() // 1_000_000
        by_partition: dict[_PartitionKey, list[Record]] = {}
        offsets = []
        for out in records:
            partition = (out.topic, out.partition)
            new = by_partition.setdefault(partition, [])
            offset = self.store.tails[partition].end + len(new)
            new.append(Record(out.topic, out.partition, offset, now_ms, out.key, out.value, out.headers))
            offsets.append(offset)
        for partition, new in by_partition.items():
            self.store.tails[partition].extend(new)
            self._written[partition[0]].inc(len(new))
        return offsets


class MemoryWriter:
    """See :class:`muster_bus.log.LogWriter`. Without faults ``append`` writes at once, so there is never a queue.

    After a failure, all queued records of the partition fail, too.
    """

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._closed = False
        self._lanes: dict[_PartitionKey, tuple[float, int]] = {}  # when its last record is written; failures so far

    def append(self, record: OutRecord) -> Awaitable[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            if self._closed:
                raise LogClosed("the writer is closed")
            self._log.check_reached()
            self._log.rules.check(record)
            if self._log.faults is not None:
                self._queue(self._log.faults, record, done)
            else:
                done.set_result(self._log.publish((record,))[0])
        except Exception as error:  # the contract raises errors when the result is awaited
            done.set_exception(error)
        return done

    async def wait_writable(self) -> None:
        if self._closed:
            raise LogClosed("the writer is closed")

    async def close(self) -> None:
        self._closed = True

    def _queue(self, faults: Faults, record: OutRecord, done: asyncio.Future[int]) -> None:
        partition, now_s = (record.topic, record.partition), done.get_loop().time()
        delay_s, outcome = faults.append(*partition)
        last_s, failures = self._lanes.get(partition, (0.0, 0))
        due_s = max(now_s + delay_s, last_s + _APART_S)
        self._lanes[partition] = (due_s, failures)
        faults.later(due_s - now_s, partial(self._write, record, done, outcome, failures))

    def _write(self, record: OutRecord, done: asyncio.Future[int], outcome: Outcome, failures: int) -> None:
        partition = (record.topic, record.partition)
        due_s, failed = self._lanes[partition]
        offset = -1
        if outcome is not Outcome.LOST and failed == failures:
            offset = self._log.publish((record,))[0]
        if outcome is Outcome.DONE and offset >= 0:
            if not done.done():
                done.set_result(offset)
            return
        if failed == failures:
            self._lanes[partition] = (due_s, failures + 1)
        if not done.done():
            done.set_exception(LogUnavailable(f"{record.topic}: no answer from the log before the deadline"))


class MemoryReader:
    """See :class:`muster_bus.log.LogReader`."""

    def __init__(self, log: MemoryLog, tail: PartitionTail, topic: str, partition: int, position: int) -> None:
        self._log, self._tail, self._topic, self._partition = log, tail, topic, partition
        self._position = position
        self._closed = False
        self._count = metrics.records_read.labels(topic).inc
        # With faults: the end of what this reader gets now, the end that it noticed, and when it gets what is between.
        self._visible_end = self._noticed = 0
        self._due: deque[tuple[float, int]] = deque()

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset

    def cached_end(self) -> int:
        return max(self._position, self._tail.end if self._log.faults is None else self._visible_end)

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._check()
        if self._log.faults is not None:
            await self._wait_for_more(self._log.faults, timeout_s)
            max_records = min(max_records, max(0, self._visible_end - self._position))
        elif self._position == self._tail.end and timeout_s > 0:
            await self._tail.wait(timeout_s)
            self._check()
        if max_records <= 0:
            return ()
        if self._position < self._tail.base:
            return self._of_compacted(max_records)
        records = self._tail.slice(self._position, max_records)
        assert records is not None, "checked above: the position is not before the first record"
        if records:
            self._position = records[-1].offset + 1
            self._count(len(records))
        return records

    async def first_offset(self) -> int:
        self._log.check_reached()
        return self._log.store.first_offset(self._topic, self._partition)

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        self._log.check_reached()
        return self._tail.end

    async def written_end(self) -> int:
        return await self.end_offset()

    async def close(self) -> None:
        self._closed = True
        self._tail.signal()

    async def _wait_for_more(self, faults: Faults, timeout_s: float) -> None:
        """Returns when this reader gets a record at its position, or after ``timeout_s``."""
        loop, tail = asyncio.get_running_loop(), self._tail
        now_s = loop.time()
        until_s = now_s + timeout_s
        while True:
            if tail.end > self._noticed:
                self._noticed = tail.end
                self._due.append((now_s + faults.lag_s(self._topic, self._partition), tail.end))
            while self._due and self._due[0][0] <= now_s:
                self._visible_end = max(self._visible_end, self._due.popleft()[1])
            if self._position < self._visible_end or now_s >= until_s:
                return
            next_s = min(until_s, self._due[0][0]) if self._due else until_s
            await tail.wait(max(next_s - now_s, 0.0))
            self._check()
            now_s = loop.time()

    def _of_compacted(self, max_records: int) -> Sequence[Record]:
        compacted = self._compacted()
        assert compacted is not None, "checked: there are records at the position"
        start = bisect_left(compacted.offsets, self._position)
        records = compacted.records[start : start + max_records]
        is_last = start + len(records) == len(compacted.records)
        self._position = compacted.until if is_last else records[-1].offset + 1
        self._count(len(records))
        return records

    def _compacted(self) -> _Compacted | None:
        return self._log.store.compacted.get((self._topic, self._partition))

    def _check(self) -> None:
        self._log.check_reached()
        if self._closed:
            raise LogClosed(f"the reader of {self._topic}[{self._partition}] is closed")
        base = self._tail.base if self._compacted() is None else 0
        if not base <= self._position <= self._tail.end:
            raise OffsetOutOfRange(self._topic, self._partition, self._position, base, self._tail.end)


class MemoryOwner:
    """See :class:`muster_bus.log.PartitionOwner`."""

    def __init__(self, log: MemoryLog, claim: _Claim, group: str, topic: str, partition: int) -> None:
        self._log, self._claim, self._group, self._partition = log, claim, group, partition
        self._story = f"{group} on {topic}[{partition}]"
        self._epoch = claim.epoch
        self._closed = self._failed = False

    async def committed(self) -> int | None:
        self._check()
        return self._claim.position

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        for record in records:
            self._log.rules.check(record)
        faults = self._log.faults
        if faults is None:
            await asyncio.sleep(0)  # as with any log, another task may run before the commit
            self._check()
            self._publish(records, input_position)
            return
        delay_s, outcome = faults.commit(self._group, self._partition)
        await asyncio.sleep(delay_s)
        self._check()
        self._log.check_reached()
        if outcome in (Outcome.DONE, Outcome.WRITTEN):
            self._publish(records, input_position)
        if outcome is Outcome.DONE:
            return
        self._failed = True
        if outcome is Outcome.LATE:
            finish = partial(self._publish, records, input_position)
            self._claim.open.append(finish)
            faults.later(delay_s, partial(self._finish, finish))
        raise TransactionFailed(f"{self._story}: no answer from the log before the deadline")

    async def close(self) -> None:
        self._closed = True

    def _publish(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        self._log.publish(records)
        if input_position is not None:
            self._claim.position = input_position
        metrics.transaction_records.labels("memory").observe(len(records))

    def _finish(self, finish: Callable[[], None]) -> None:
        """Finishes an open commit, unless a take-over did or undid it."""
        if finish in self._claim.open:
            self._claim.open.remove(finish)
            finish()

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"owner {self._story} is closed")
        self._log.check_open()
        if self._epoch != self._claim.epoch:
            raise Fenced(f"{self._story}: taken over (epoch {self._epoch}, now {self._claim.epoch})")
        if self._failed:
            raise TransactionFailed(f"{self._story}: a commit before failed")
