"""The log in memory: the contract, and again with a reader that gets each record late and writes that take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from contract.log_contract import LogContract, drain, values
from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.backends.memory_faults import Outcome
from muster_bus.clock import SystemClock
from muster_bus.errors import Fenced, LogUnavailable, TransactionFailed
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings


class Slow:
    """Everything takes a while. See ``muster_bus.backends.memory_faults.Faults``.

    :ivar ends: how the next writes end; then all are done.
    """

    def __init__(self) -> None:
        self.ends: list[Outcome] = []
        self.lag = 0.003
        self.wait_s = 0.001

    def check(self) -> None:
        """It is reached."""

    def append(self, topic: str, partition: int) -> tuple[float, Outcome]:
        return self.wait_s, self.ends.pop(0) if self.ends else Outcome.DONE

    def commit(self, group: str, partition: int) -> tuple[float, Outcome]:
        return self.append("", partition)

    def lag_s(self, topic: str, partition: int) -> float:
        return self.lag

    def share_s(self) -> float:
        return 0.0

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, call)


class MemoryBench:
    def __init__(self, faults: Slow | None = None) -> None:
        self.faults = faults
        self.settings = LogSettings(backend="memory", partitions=2)
        self.store = MemoryStore()

    async def open(self, settings: LogSettings | None = None) -> MemoryLog:
        specs = (settings or self.settings).topics().specs()
        log = MemoryLog(specs, SystemClock(), store=self.store, faults=self.faults)
        await log.start()
        return log

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.store.delete_before(topic, partition, offset)


class TestMemoryLog(LogContract):
    @pytest.fixture
    def bench(self) -> MemoryBench:
        return MemoryBench()


class TestSlowMemoryLog(LogContract):
    @pytest.fixture
    def bench(self) -> MemoryBench:
        return MemoryBench(Slow())


@pytest.fixture
def slow() -> MemoryBench:
    return MemoryBench(Slow())


def out(value: bytes, topic: str = "si.requests.v1", key: bytes = b"k") -> OutRecord:
    return OutRecord(topic, 0, key, value)


async def test_a_failed_append_takes_those_behind_it_along(slow: MemoryBench) -> None:
    log, requests = await slow.open(), slow.settings.topics().requests
    assert slow.faults is not None
    writer = await log.writer("test")
    slow.faults.ends = [Outcome.DONE, Outcome.WRITTEN, Outcome.DONE]
    ends = await asyncio.gather(
        *(writer.append(out(value, requests)) for value in (b"1", b"2", b"3")), return_exceptions=True
    )
    assert [type(end) for end in ends] == [int, LogUnavailable, LogUnavailable]
    await writer.append(out(b"4", requests))
    assert values(await drain(await log.reader(requests, 0), 3)) == [b"1", b"2", b"4"]


@pytest.mark.parametrize("end", [Outcome.LOST, Outcome.WRITTEN, Outcome.LATE])
async def test_an_owner_whose_commit_failed_is_of_no_further_use(slow: MemoryBench, end: Outcome) -> None:
    log, topics = await slow.open(), slow.settings.topics()
    assert slow.faults is not None
    owner = await log.take_over("g", topics.requests, 0)
    slow.faults.ends = [end]
    with pytest.raises(TransactionFailed):
        await owner.commit([out(b"1", topics.events)], 5)
    with pytest.raises(TransactionFailed):
        await owner.commit([out(b"2", topics.events)], 6)
    # What was open is decided when a take-over has returned.
    after = await log.take_over("g", topics.requests, 0)
    expected = None if end is Outcome.LOST else 5
    assert await after.committed() == expected
    reader = await log.reader(topics.events, 0)
    assert await reader.end_offset() == (0 if end is Outcome.LOST else 1)
    with pytest.raises(Fenced):
        await owner.committed()


async def test_a_late_commit_is_undone_by_a_take_over_that_wants_it_so(slow: MemoryBench) -> None:
    log, topics = await slow.open(), slow.settings.topics()
    assert slow.faults is not None
    owner = await log.take_over("g", topics.requests, 0)
    slow.faults.ends = [Outcome.LATE, Outcome.LOST]
    with pytest.raises(TransactionFailed):
        await owner.commit([out(b"1", topics.events)], 5)
    after = await log.take_over("g", topics.requests, 0)
    await asyncio.sleep(0.01)
    assert await after.committed() is None


async def test_a_late_commit_is_done_by_itself(slow: MemoryBench) -> None:
    log, topics = await slow.open(), slow.settings.topics()
    assert slow.faults is not None
    owner = await log.take_over("g", topics.requests, 0)
    slow.faults.ends = [Outcome.LATE]
    with pytest.raises(TransactionFailed):
        await owner.commit([out(b"1", topics.events)], 5)
    reader = await log.reader(topics.events, 0)
    assert values(await drain(reader, 1)) == [b"1"]


async def test_each_reader_gets_a_record_at_its_own_time(slow: MemoryBench) -> None:
    log, requests = await slow.open(), slow.settings.topics().requests
    assert slow.faults is not None
    late = await log.reader(requests, 0)
    slow.faults.lag = 60.0
    await (await log.writer("test")).append(out(b"1", requests))
    assert await late.read(10, 0.01) == ()
    assert late.cached_end() == 0
    assert await late.end_offset() == 1
    slow.faults.lag = 0.0
    assert values(await drain(await log.reader(requests, 0), 1)) == [b"1"]
    assert await late.read(10, 0.01) == ()


@pytest.mark.parametrize("faults", [None, Slow()])
async def test_compaction_leaves_the_newest_of_each_key(faults: Slow | None) -> None:
    bench = MemoryBench(faults)
    log, state = await bench.open(), bench.settings.topics().state
    writer = await log.writer("test")
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None)):
        await writer.append(OutRecord(state, 0, key, value))
    behind = await log.reader(state, 0, 1)
    bench.store.compact(state, 0)
    await writer.append(OutRecord(state, 0, b"d", b"1"))
    read = await drain(await log.reader(state, 0), 3)
    assert [(each.offset, each.key, each.value) for each in read] == [(2, b"a", b"2"), (3, b"c", b"1"), (5, b"d", b"1")]
    assert [each.offset for each in await drain(behind, 3)] == [2, 3, 5]
    bench.store.compact(state, 0)
    assert [each.offset for each in bench.store.compacted[state, 0].records] == [2, 3, 5]
