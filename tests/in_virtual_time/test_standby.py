"""A standby on the log in memory: it follows, and a worker that takes it over reads the tail only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord, Record
from muster_bus.partition_worker import PartitionWorker
from muster_bus.standby import Standby, StandbyState
from muster_bus.topics import Topics
from muster_bus.worker_settings import WorkerSettings
from unit.bus.toy import CountingMachine, expected_responses, read_all, write_inputs
from virtual.plugin import advance

TOPICS = Topics(partitions=1)
FAST = WorkerSettings(backoff_first_s=0.001, backoff_limit_s=0.01, idle_wait_s=0.02)


class Follower(CountingMachine):
    """Collects records, then applies all at once, as the scheduler's machine does.

    :ivar folds: number of records that it got.
    """

    made = 0

    def __init__(self) -> None:
        super().__init__(TOPICS)
        type(self).made += 1
        self.folds = 0
        self.is_settled = False

    def fold(self, record: Record) -> None:
        super().fold(record)
        self.folds += 1

    def build_state(self) -> Iterator[None]:
        for _ in range(3):
            yield
        self.is_settled = True


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    Follower.made = 0
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    yield log
    await log.close()


def standby_on(log: MemoryLog, made: list[Follower], warm: list[bool] | None = None) -> Standby:
    def make() -> Follower:
        made.append(Follower())
        return made[-1]

    tell = (lambda: warm.append(True)) if warm is not None else (lambda: None)
    return Standby(log, TOPICS, 0, make, SystemClock(), FAST, tell)


def worker_on(log: MemoryLog, standby: Standby | None = None) -> PartitionWorker:
    return PartitionWorker(log, TOPICS, "g", 0, Follower, SystemClock(), FAST, standby=standby)


async def test_a_worker_takes_the_machine_and_reads_only_the_tail(log: MemoryLog) -> None:
    made: list[Follower] = []
    warm: list[bool] = []
    writer = await log.writer("test")
    inputs = [(b"k%d" % (number % 7), b"v%d" % number) for number in range(60)]
    first = worker_on(log)
    running = asyncio.create_task(first.run())
    await write_inputs(writer, TOPICS, inputs[:20])
    await advance()
    assert first.committed == 20
    # 1 it reads what is there, and then follows
    standby = standby_on(log, made, warm)
    standby.start()
    await advance()
    assert standby.warm
    assert warm == [True]
    await write_inputs(writer, TOPICS, inputs[20:40])
    await advance()
    assert made[0].counts.get(b"k4") == 6
    assert standby.lag_records == 0
    first.stop()
    await running
    folds, makes = made[0].folds, Follower.made
    # 2 the worker continues with its machine
    second = worker_on(log, standby)
    running = asyncio.create_task(second.run())
    await write_inputs(writer, TOPICS, inputs[40:])
    await advance()
    assert second.committed == 60
    assert Follower.made == makes, "the worker has built no machine of its own"
    assert made[0].is_settled
    assert made[0].folds == folds, "nothing was folded twice"
    second.stop()
    await running
    assert [record.value for record in await read_all(log, TOPICS.responses)] == expected_responses(inputs)


async def test_a_standby_that_is_taken_before_it_is_warm_gives_what_it_has(log: MemoryLog) -> None:
    made: list[Follower] = []
    owner = await log.take_over("g", TOPICS.requests, 0)
    for number in range(50):
        await owner.commit([OutRecord(TOPICS.state, 0, b"k%d" % number, b"1")], None)
    standby = standby_on(log, made)
    standby.start()
    worker = worker_on(log, standby)
    running = asyncio.create_task(worker.run())
    await advance()
    assert worker.progress().serving
    assert Follower.made == 1
    assert made[0].folds == 50
    worker.stop()
    await running


async def test_a_machine_that_fails_while_it_follows_is_made_anew(log: MemoryLog) -> None:
    made: list[Fragile] = []

    class Fragile(Follower):
        def fold(self, record: Record) -> None:
            if record.value == b"13" and len(made) == 1:
                raise ValueError("a defect")
            super().fold(record)

    def make() -> Follower:
        made.append(Fragile())
        return made[-1]

    standby = Standby(log, TOPICS, 0, make, SystemClock(), FAST)
    standby.start()
    await advance()
    assert standby.warm
    owner = await log.take_over("g", TOPICS.requests, 0)
    await owner.commit([OutRecord(TOPICS.state, 0, b"k", b"13")], None)
    await advance()
    assert len(made) == 2
    assert standby.warm
    assert made[1].counts == {b"k": 13}
    assert standby.last_error == ""
    await standby.close()
    assert standby.state is StandbyState.WARM  # of its last machine, which it drops


async def test_a_standby_without_a_machine_leaves_the_worker_to_fold_by_itself(log: MemoryLog) -> None:
    def fails() -> Follower:
        raise ValueError("no machine today")

    standby = Standby(log, TOPICS, 0, fails, SystemClock(), FAST)
    standby.start()
    await advance()
    assert bool(standby.last_error)
    worker = worker_on(log, standby)
    running = asyncio.create_task(worker.run())
    await advance()
    assert worker.progress().serving
    assert Follower.made == 1
    worker.stop()
    await running
    await standby.close()
