"""A log in memory. It keeps the whole contract except durability. For tests and simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from muster_bus import metrics
from muster_bus.backends.rules import RecordRules
from muster_bus.backends.tail import PartitionTail
from muster_bus.clock import Clock
from muster_bus.errors import Fenced, LogClosed, OffsetGone, TopicMismatch
from muster_bus.log import OutRecord, Record
from muster_bus.topics import TopicSpec

_Place = tuple[str, int]


@dataclass
class _Claim:
    """A group's hold on an input partition."""

    epoch: int = 0
    position: int | None = None


@dataclass
class MemoryStore:
    """The content of a :class:`MemoryLog`. A new log that gets this store finds everything, as after a restart.

    :ivar identity: of the log; tests with several logs give each another one.
    """

    specs: dict[str, TopicSpec] = field(default_factory=dict)
    tails: dict[_Place, PartitionTail] = field(default_factory=dict)
    claims: dict[tuple[str, str, int], _Claim] = field(default_factory=dict)
    identity: str = "memory"

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before ``offset`` at once, as retention would."""
        tail = self.tails[topic, partition]
        tail.drop_before(min(offset, tail.end))


class MemoryLog:
    """See :class:`muster_bus.log.Log`.

    :param store: the store of an earlier log; None: a new one.
    """

    def __init__(
        self,
        specs: Sequence[TopicSpec],
        clock: Clock,
        *,
        max_record_bytes: int = 1 << 20,
        store: MemoryStore | None = None,
    ) -> None:
        self.store = store if store is not None else MemoryStore()
        self.rules = RecordRules(specs, max_record_bytes)
        self.closed = False
        self._specs = specs
        self._clock = clock

    async def start(self) -> None:
        for spec in self._specs:
            known = self.store.specs.setdefault(spec.name, spec)
            if known.partitions != spec.partitions or known.cleanup != spec.cleanup:
                raise TopicMismatch(
                    f"topic {spec.name} has {known.partitions} partitions ({known.cleanup}), "
                    f"configured are {spec.partitions} ({spec.cleanup})"
                )
            for partition in range(spec.partitions):
                self.store.tails.setdefault((spec.name, partition), PartitionTail(0))

    async def close(self) -> None:
        self.closed = True
        for tail in self.store.tails.values():
            tail.wake()

    async def healthy(self) -> bool:
        return not self.closed

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
        tail = self.store.tails[topic, partition]
        return MemoryReader(self, tail, topic, partition, tail.base if start is None else start)

    async def take_over(self, group: str, topic: str, partition: int) -> MemoryOwner:
        self.check_open()
        self.rules.spec(topic, partition)
        claim = self.store.claims.setdefault((group, topic, partition), _Claim())
        claim.epoch += 1
        return MemoryOwner(self, claim, f"{group} on {topic}[{partition}]")

    def check_open(self) -> None:
        """Raises LogClosed if the log is closed."""
        if self.closed:
            raise LogClosed("the log is closed")

    def publish(self, records: Sequence[OutRecord]) -> list[int]:
        """Makes records visible. No task sees only some of them. Returns their offsets."""
        now_ms = self._clock.now_ns() // 1_000_000
        places: dict[_Place, list[Record]] = {}
        offsets = []
        for out in records:
            place = (out.topic, out.partition)
            new = places.setdefault(place, [])
            offset = self.store.tails[place].end + len(new)
            new.append(Record(out.topic, out.partition, offset, now_ms, out.key, out.value, out.headers))
            offsets.append(offset)
        for place, new in places.items():
            self.store.tails[place].extend(new)
            metrics.records_written.labels(place[0]).inc(len(new))
        return offsets


class MemoryWriter:
    """See :class:`muster_bus.log.LogWriter`. ``append`` writes at once, so there is never a queue."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._closed = False

    def append(self, record: OutRecord) -> Awaitable[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            if self._closed:
                raise LogClosed("the writer is closed")
            self._log.check_open()
            self._log.rules.check(record)
            done.set_result(self._log.publish((record,))[0])
        except Exception as error:  # the contract raises errors when the result is awaited
            done.set_exception(error)
        return done

    async def ready(self) -> None:
        if self._closed:
            raise LogClosed("the writer is closed")

    async def close(self) -> None:
        self._closed = True


class MemoryReader:
    """See :class:`muster_bus.log.LogReader`."""

    def __init__(self, log: MemoryLog, tail: PartitionTail, topic: str, partition: int, position: int) -> None:
        self._log, self._tail, self._topic, self._partition = log, tail, topic, partition
        self._position = position
        self._closed = False

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset

    def known_end(self) -> int:
        return max(self._position, self._tail.end)

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._check()
        if self._position == self._tail.end and timeout_s > 0:
            await self._tail.wait(timeout_s)
            self._check()
        records = self._tail.slice(self._position, max_records)
        assert records is not None, "checked above: the position is not before the first record"
        if records:
            self._position = records[-1].offset + 1
            metrics.records_read.labels(self._topic).inc(len(records))
        return records

    async def first_offset(self) -> int:
        self._log.check_open()
        return self._tail.base

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        self._log.check_open()
        return self._tail.end

    async def close(self) -> None:
        self._closed = True
        self._tail.wake()

    def _check(self) -> None:
        self._log.check_open()
        if self._closed:
            raise LogClosed(f"the reader of {self._topic}[{self._partition}] is closed")
        if not self._tail.base <= self._position <= self._tail.end:
            raise OffsetGone(self._topic, self._partition, self._position, self._tail.base, self._tail.end)


class MemoryOwner:
    """See :class:`muster_bus.log.PartitionOwner`."""

    def __init__(self, log: MemoryLog, claim: _Claim, story: str) -> None:
        self._log, self._claim, self._story = log, claim, story
        self._epoch = claim.epoch
        self._closed = False

    async def committed(self) -> int | None:
        self._check()
        return self._claim.position

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        for record in records:
            self._log.rules.check(record)
        await asyncio.sleep(0)  # as with any log, another task may run before the commit
        self._check()
        self._log.publish(records)
        if input_position is not None:
            self._claim.position = input_position
        metrics.transaction_records.labels("memory").observe(len(records))

    async def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"owner {self._story} is closed")
        self._log.check_open()
        if self._epoch != self._claim.epoch:
            raise Fenced(f"{self._story}: taken over (epoch {self._epoch}, now {self._claim.epoch})")
