"""The partition worker on the logs that need no server."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from manual_clock import ManualClock
from muster_bus.clock import SystemClock
from muster_bus.contention import Work
from muster_bus.errors import Fenced, LogUnavailable, MachineFailed
from muster_bus.log import Log, OutRecord, Record
from muster_bus.log_factory import make_log
from muster_bus.partition_worker import PartitionWorker
from muster_bus.settings import LogSettings
from muster_bus.state_machine import StateMachine
from muster_bus.topics import HEADER_ERROR, HEADER_ORIGIN, Topics
from muster_bus.worker_progress import WorkerState
from muster_bus.worker_settings import WorkerSettings
from muster_runtime.watchdog import Usage
from unit.bus.toy import CountingMachine, FaultyLog, expected_responses, read_all, write_inputs
from waiting import eventually

FAST = WorkerSettings(backoff_first_s=0.001, backoff_limit_s=0.01, idle_wait_s=0.02, max_records_batch=40)


@pytest.fixture(params=["memory", "sqlite"])
async def settings(request: pytest.FixtureRequest, tmp_path: Path) -> LogSettings:
    return LogSettings(backend=request.param, partitions=1, sqlite_path=tmp_path / "log.db")


@pytest.fixture
async def bus(settings: LogSettings) -> AsyncIterator[Log]:
    log = make_log(settings, SystemClock())
    await log.start()
    yield log
    await log.close()


@pytest.fixture
def topics(settings: LogSettings) -> Topics:
    return settings.topics()


def _inputs(count: int, keys: int = 7) -> list[tuple[bytes, bytes]]:
    return [(b"key-%d" % (number % keys), b"%d" % number) for number in range(count)]


class Running:
    """A worker that runs for the time of a ``with`` block."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        factory: Callable[[], StateMachine],
        settings: WorkerSettings = FAST,
        consult: Callable[[StateMachine, Sequence[Record]], Awaitable[None]] | None = None,
    ) -> None:
        self.worker = PartitionWorker(log, topics, "test", 0, factory, SystemClock(), settings, consult)

    async def __aenter__(self) -> PartitionWorker:
        self.task = asyncio.create_task(self.worker.run())
        return self.worker

    async def __aexit__(self, *_: object) -> None:
        self.worker.stop()
        async with asyncio.timeout(60):
            await asyncio.wait({self.task})
        if not self.task.cancelled() and self.task.exception() is not None:
            self.task.result()


async def test_answers_each_input_once_and_in_order(bus: Log, topics: Topics) -> None:
    inputs = _inputs(500)
    async with Running(bus, topics, lambda: CountingMachine(topics)) as worker:
        await write_inputs(await bus.writer("test"), topics, inputs)
        await eventually(lambda: worker.progress().committed == 500)
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(inputs)


async def test_folds_the_state_and_goes_on_where_the_last_worker_stopped(bus: Log, topics: Topics) -> None:
    inputs = _inputs(300)
    writer = await bus.writer("test")
    for start, end in ((0, 120), (120, 300)):
        async with Running(bus, topics, lambda: CountingMachine(topics)) as worker:
            await write_inputs(writer, topics, inputs[start:end])
            await eventually(lambda end=end: worker.progress().committed == end)
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(inputs)


@pytest.mark.parametrize("seed", range(6))
async def test_random_failures_leave_no_gap_and_no_double(bus: Log, topics: Topics, seed: int) -> None:
    chance = random.Random(seed)
    faults = FaultyLog(bus, lambda: chance.choice(["", "", "", "before", "after", "away"]))
    broken: list[CountingMachine] = []
    calls = 0

    class Fragile(CountingMachine):
        def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
            nonlocal calls
            assert self not in broken, "a machine is never used after an error"
            outputs = super().apply(records, now_ns)
            calls += 1
            if calls == 3 or chance.random() < 0.1:  # (A run may have few calls.)
                broken.append(self)
                raise ValueError("the test breaks the machine")
            return outputs

    inputs = _inputs(400)
    settings = FAST.model_copy(update={"quarantine_after": 1000, "max_machine_failures": 1000})
    async with Running(faults, topics, lambda: Fragile(topics), settings) as worker:
        writer = await bus.writer("test")
        for start in range(0, 400, 50):
            await write_inputs(writer, topics, inputs[start : start + 50])
            await asyncio.sleep(0.001)
        await eventually(lambda: worker.progress().committed == 400, within_s=60)
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(inputs)
    assert broken
    assert faults.most_in_flight == 1


def slow_log(bus: Log) -> tuple[Log, list[int], asyncio.Event]:
    """Returns a log whose commits with records wait for the event, and the number of records of each of them."""
    gate = asyncio.Event()
    commits: list[int] = []

    class SlowLog(FaultyLog):
        async def take_over(self, *arguments: object) -> object:
            owner = await super().take_over(*arguments)
            commit = owner.commit

            async def slow(records: Sequence[OutRecord], position: int | None) -> None:
                if records:
                    commits.append(len(records))
                    await gate.wait()
                await commit(records, position)

            owner.commit, owner.commit_at_once = slow, None
            return owner

    return SlowLog(bus, lambda: ""), commits, gate


async def test_applies_while_a_commit_is_in_flight_and_makes_one_batch_of_what_came_meanwhile(
    bus: Log, topics: Topics
) -> None:
    slow, commits, gate = slow_log(bus)
    machine = CountingMachine(topics)
    async with Running(slow, topics, lambda: machine) as worker:
        writer = await bus.writer("test")
        await write_inputs(writer, topics, _inputs(1))
        await eventually(lambda: len(commits) == 1)
        await write_inputs(writer, topics, _inputs(10))
        await eventually(lambda: sum(machine.batches) >= 2)  # applied, although the first commit has no answer yet
        assert len(commits) == 1
        gate.set()
        await eventually(lambda: worker.progress().committed == 11)
    assert sum(commits) == 22


async def test_what_comes_later_during_a_commit_is_in_the_next_one_too() -> None:
    settings = LogSettings(backend="memory", partitions=1)
    memory, topics = make_log(settings, SystemClock()), settings.topics()
    await memory.start()
    slow, commits, gate = slow_log(memory)
    machine = CountingMachine(topics)
    async with Running(slow, topics, lambda: machine) as worker:
        writer = await memory.writer("test")
        for number in range(6):
            await write_inputs(writer, topics, _inputs(1))
            await eventually(lambda number=number: sum(machine.batches) == number + 1)
        assert len(commits) == 1
        gate.set()
        await eventually(lambda: worker.progress().committed == 6)
    assert commits == [2, 10]
    await memory.close()


async def test_a_fenced_worker_ends_and_does_not_take_the_partition_back(bus: Log, topics: Topics) -> None:
    worker = PartitionWorker(bus, topics, "test", 0, lambda: CountingMachine(topics), SystemClock(), FAST)
    running = asyncio.create_task(worker.run())
    writer = await bus.writer("test")
    await eventually(lambda: worker.progress().state is WorkerState.RUNNING)
    new_owner = await bus.take_over("test", topics.requests, 0)
    await write_inputs(writer, topics, _inputs(1))
    with pytest.raises(Fenced):
        await asyncio.wait_for(running, 60)
    assert worker.progress().state is WorkerState.FAILED
    assert not worker.progress().serving
    assert await read_all(bus, topics.responses) == []
    await new_owner.commit([], 1)  # still the owner


async def test_a_record_that_the_machine_fails_on_is_put_aside_and_the_others_are_answered(
    bus: Log, topics: Topics
) -> None:
    class Picky(CountingMachine):
        def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
            if any(record.value == b"13" for record in records):
                raise KeyError("content of the request")
            return super().apply(records, now_ns)

    inputs = _inputs(30)
    await write_inputs(await bus.writer("test"), topics, inputs)
    async with Running(bus, topics, lambda: Picky(topics)) as worker:
        await eventually(lambda: worker.progress().committed == 30)
        assert worker.progress().serving
    good = [pair for pair in inputs if pair[1] != b"13"]
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(good)
    (letter,) = await read_all(bus, topics.dead_letters)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == inputs[13]
    assert headers[HEADER_ORIGIN] == f"{topics.requests}/0/13".encode()
    assert b"KeyError" in headers[HEADER_ERROR]
    assert b"content" not in headers[HEADER_ERROR]


async def test_an_answer_over_the_limit_puts_its_request_aside(bus: Log, topics: Topics) -> None:
    class Verbose(CountingMachine):
        def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
            outputs = super().apply(records, now_ns)
            if any(record.value == b"3" for record in records):
                outputs.append(OutRecord(topics.events, 0, b"k", bytes(2 << 20)))
            return outputs

    await write_inputs(await bus.writer("test"), topics, _inputs(8))
    async with Running(bus, topics, lambda: Verbose(topics)) as worker:
        await eventually(lambda: worker.progress().committed == 8)
    assert len(await read_all(bus, topics.responses)) == 7
    (letter,) = await read_all(bus, topics.dead_letters)
    assert b"RecordTooLarge" in dict(letter.headers)[HEADER_ERROR]


class HoldingMachine(CountingMachine):
    """Holds all records back until its transaction ends."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics)
        self.waiting: list[OutRecord] = []

    def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
        self.waiting += super().apply(records, now_ns)
        return []

    def flush(self, now_ns: int) -> list[list[OutRecord]]:
        outputs, self.waiting = self.waiting, []
        return [[], outputs[:1], [], outputs[1:]]

    def pending_records(self) -> int:
        return len(self.waiting)


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_machine_holds_back_is_in_the_transaction_of_its_input(
    bus: Log, topics: Topics, seed: int
) -> None:
    chance = random.Random(seed)
    faults = FaultyLog(bus, lambda: chance.choice(["", "", "", "before", "after"]))

    class Fragile(HoldingMachine):
        def flush(self, now_ns: int) -> list[list[OutRecord]]:
            if chance.random() < 0.1:
                raise ValueError("the test breaks the machine")
            return super().flush(now_ns)

    inputs = _inputs(400)
    settings = FAST.model_copy(
        update={"quarantine_after": 1000, "max_machine_failures": 1000, "max_bytes_apply": 8, "gather_s": 0.002}
    )
    async with Running(faults, topics, lambda: Fragile(topics), settings) as worker:
        writer = await bus.writer("test")
        for start in range(0, 400, 50):
            await write_inputs(writer, topics, inputs[start : start + 50])
            await asyncio.sleep(0.001)
        await eventually(lambda: worker.progress().committed == 400, within_s=60)
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(inputs)


async def test_every_transaction_that_answers_input_reports_how_far_it_is(bus: Log, topics: Topics) -> None:
    """A writer may wait for the report with a single request, so that none is too small for one."""

    bytes_of: list[int] = []

    def report(position: int, work: Work) -> OutRecord:
        bytes_of.append(work.input_bytes)
        return OutRecord(topics.responses, 0, None, b"%d" % position)

    worker = PartitionWorker(bus, topics, "test", 0, lambda: HoldingMachine(topics), SystemClock(), FAST, report=report)
    running = asyncio.create_task(worker.run())
    writer = await bus.writer("test")
    for number in (1, 2, 3):
        await write_inputs(writer, topics, [(b"a", b"x" * number)])
        await eventually(lambda number=number: worker.progress().committed == number)
    worker.stop()
    await asyncio.wait_for(running, 60)
    reports = [record.value for record in await read_all(bus, topics.responses) if record.key is None]
    assert reports == [b"1", b"2", b"3"]
    assert bytes_of == [1, 2, 3]


async def test_a_record_whose_held_records_cannot_be_written_is_put_aside(bus: Log, topics: Topics) -> None:
    class Verbose(HoldingMachine):
        def flush(self, now_ns: int) -> list[list[OutRecord]]:
            parts = super().flush(now_ns)
            if any((record.value or b"").startswith(b"3:") for outputs in parts for record in outputs):
                parts.append([OutRecord(topics.events, 0, b"k", bytes(2 << 20))])
            return parts

    inputs = _inputs(8)
    await write_inputs(await bus.writer("test"), topics, inputs)
    async with Running(bus, topics, lambda: Verbose(topics)) as worker:
        await eventually(lambda: worker.progress().committed == 8)
    good = [pair for pair in inputs if pair[1] != b"3"]
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(good)
    (letter,) = await read_all(bus, topics.dead_letters)
    assert (letter.key, letter.value) == inputs[3]


async def test_a_transaction_gathers_while_more_input_waits(bus: Log, topics: Topics) -> None:
    commits: list[int] = []

    class Counting(FaultyLog):
        async def take_over(self, *arguments: object) -> object:
            owner = await super().take_over(*arguments)  # type: ignore[arg-type]
            commit = owner.commit

            async def counted(records: Sequence[OutRecord], position: int | None) -> None:
                commits.append(len(records))
                await commit(records, position)

            owner.commit, owner.commit_at_once = counted, None  # type: ignore[method-assign]
            return owner

    inputs = _inputs(300)
    await write_inputs(await bus.writer("test"), topics, inputs)
    settings = WorkerSettings(max_bytes_apply=8, gather_s=60.0, idle_wait_s=0.02)
    machines: list[HoldingMachine] = []

    def machine() -> HoldingMachine:
        machines.append(HoldingMachine(topics))
        return machines[-1]

    async with Running(Counting(bus, lambda: ""), topics, machine, settings) as worker:
        await eventually(lambda: worker.progress().committed == 300)
    assert len(machines[0].batches) > 30
    assert len([count for count in commits if count]) < len(machines[0].batches) / 3


async def test_a_report_is_in_the_transaction_that_answers_the_input(bus: Log, topics: Topics) -> None:
    inputs = [(b"key", b"x" * 5_000) for _ in range(20)]

    def report(position: int, _work: Work) -> OutRecord:
        return OutRecord(topics.responses, 0, None, b"%d" % position)

    running = Running(bus, topics, lambda: CountingMachine(topics))
    running.worker.report = report
    async with running as worker:
        await write_inputs(await bus.writer("test"), topics, inputs)
        await eventually(lambda: worker.progress().committed == 20)
    answered, reported = 0, 0
    for record in await read_all(bus, topics.responses):
        if record.key is None:
            reported = int(record.value or b"")
            assert reported <= answered, "reported before it was answered"
        else:
            answered += 1
    assert reported >= 18, "at most 8 KiB stay unreported"


@pytest.mark.parametrize("where", ["fold", "finish_fold", "tick", "next_deadline_ns"])
async def test_a_machine_that_fails_without_input_to_blame_ends_the_worker(
    bus: Log, topics: Topics, where: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    def machine() -> CountingMachine:
        made = CountingMachine(topics)
        made.next_deadline_ns = lambda: 0  # type: ignore[method-assign]
        setattr(made, where, fail)
        return made

    owner = await bus.take_over("other", topics.requests, 0)
    await owner.commit([OutRecord(topics.state, 0, b"k", b"1")], None)
    worker = PartitionWorker(bus, topics, "test", 0, machine, SystemClock(), FAST)
    with pytest.raises(MachineFailed, match="5 times"):
        await asyncio.wait_for(worker.run(), 60)
    assert worker.progress().state is WorkerState.FAILED


async def test_ticks_at_the_deadline_and_leaves_the_input_position(bus: Log, topics: Topics) -> None:
    clock = ManualClock()
    ticks: list[int] = []

    class Ticking(CountingMachine):
        deadline_ns: int | None = clock.now_ns() + 10_000_000_000

        def tick(self, now_ns: int) -> list[OutRecord]:
            ticks.append(now_ns)
            self.deadline_ns = None
            return [OutRecord(topics.events, 0, b"k", b"tick")]

        def flush(self, now_ns: int) -> list[list[OutRecord]]:
            return []

        def pending_records(self) -> int:
            return 0

        def next_deadline_ns(self) -> int | None:
            return self.deadline_ns

    worker = PartitionWorker(bus, topics, "test", 0, lambda: Ticking(topics), clock, FAST)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.progress().state is WorkerState.RUNNING)
    await asyncio.sleep(0.1)
    assert ticks == []
    clock.advance(10)
    await eventually(lambda: len(ticks) == 1)
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert len(ticks) == 1
    assert [record.value for record in await read_all(bus, topics.events)] == [b"tick"]
    owner = await bus.take_over("test", topics.requests, 0)
    assert await owner.committed() == 0


async def test_commits_its_position_again_after_long_silence(bus: Log, topics: Topics) -> None:
    clock = ManualClock()
    positions: list[int | None] = []

    class Watched(FaultyLog):
        async def take_over(self, *arguments: object) -> object:
            owner = await super().take_over(*arguments)
            commit = owner.commit

            async def watch(records: Sequence[OutRecord], position: int | None) -> None:
                positions.append(position)
                await commit(records, position)

            owner.commit, owner.commit_at_once = watch, None
            return owner

    worker = PartitionWorker(Watched(bus, lambda: ""), topics, "test", 0, lambda: CountingMachine(topics), clock, FAST)
    running = asyncio.create_task(worker.run())
    await write_inputs(await bus.writer("test"), topics, _inputs(3))
    await eventually(lambda: worker.progress().committed == 3)
    count = len(positions)
    await asyncio.sleep(0.1)
    assert len(positions) == count
    clock.advance(3601)
    await eventually(lambda: len(positions) == count + 1)
    assert positions[-1] == 3
    worker.stop()
    await asyncio.wait_for(running, 60)


async def test_a_deadline_that_stays_past_does_not_make_the_worker_spin(bus: Log, topics: Topics) -> None:
    ticks = 0

    class Restless(CountingMachine):
        def tick(self, now_ns: int) -> list[OutRecord]:
            nonlocal ticks
            ticks += 1
            return []

        def flush(self, now_ns: int) -> list[list[OutRecord]]:
            return []

        def pending_records(self) -> int:
            return 0

        def next_deadline_ns(self) -> int | None:
            return 0

    settings = FAST.model_copy(update={"empty_tick_wait_s": 0.02})
    async with Running(bus, topics, lambda: Restless(topics), settings):
        await eventually(lambda: ticks)
        before, began_s = ticks, time.monotonic()
        await asyncio.sleep(0.2)
        assert ticks - before <= 2 + (time.monotonic() - began_s) / 0.02


async def test_a_stop_ends_a_long_wait_for_input(bus: Log, topics: Topics) -> None:
    settings = FAST.model_copy(update={"idle_wait_s": 3_600.0})
    async with Running(bus, topics, lambda: CountingMachine(topics), settings) as worker:
        await eventually(lambda: worker.progress().state is WorkerState.RUNNING)
        await asyncio.sleep(0.5)  # (the first wait is short, the next one is an hour)
        inputs = _inputs(3)
        await write_inputs(await bus.writer("test"), topics, inputs)
        await eventually(lambda: worker.progress().committed == 3)
        await asyncio.sleep(0.5)
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(inputs)


async def test_serves_only_after_folding_and_not_when_it_stalls(bus: Log, topics: Topics) -> None:
    gate = asyncio.Event()
    has_processor = False
    waited_s = 0.0

    def usage() -> Usage:
        nonlocal waited_s
        waited_s += 0.0 if has_processor else 100.0  # more than passes
        return Usage(0.0, waited_s)

    class Stuck(FaultyLog):
        async def take_over(self, *arguments: object) -> object:
            owner = await super().take_over(*arguments)

            commit = owner.commit

            async def stuck(records: Sequence[OutRecord], position: int | None) -> None:
                if records:
                    await gate.wait()
                await commit(records, position)

            owner.commit, owner.commit_at_once = stuck, None
            return owner

    settings = FAST.model_copy(update={"stall_after_s": 0.2})
    worker = PartitionWorker(
        Stuck(bus, lambda: ""), topics, "test", 0, lambda: CountingMachine(topics), SystemClock(), settings, usage=usage
    )
    assert not worker.progress().serving
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.progress().serving)
    await asyncio.sleep(0.5)
    assert worker.progress().serving, "no input: no stall, however long"
    await write_inputs(await bus.writer("test"), topics, _inputs(5))
    await eventually(lambda: worker.progress().position > 0)
    await asyncio.sleep(0.5)
    assert worker.progress().serving, "it gets no processor"
    has_processor = True
    await eventually(lambda: not worker.progress().serving)
    assert worker.progress().lag > 0
    assert worker.progress().idle_s >= 0.2
    gate.set()
    await eventually(lambda: worker.progress().serving)
    worker.stop()
    await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("first", ["the fence", "the standby"])
async def test_a_standby_that_fails_does_not_hide_what_ended_the_worker(bus: Log, topics: Topics, first: str) -> None:
    fenced, given_up = asyncio.Event(), Fenced("another owner")

    class Taken(FaultyLog):
        async def take_over(self, *arguments: object) -> object:
            fenced.set()
            if first == "the fence":
                raise given_up
            return await super().take_over(*arguments)

    class FailingStandby:
        async def promote(self) -> None:
            await fenced.wait()
            raise KeyError("a defect of the standby")

    worker = PartitionWorker(
        Taken(bus, lambda: ""), topics, "test", 0, lambda: CountingMachine(topics), SystemClock(), FAST,
        standby=FailingStandby(),
    )  # fmt: skip
    with pytest.raises(Fenced if first == "the fence" else KeyError):
        await asyncio.wait_for(worker.run(), 60)
    assert worker.progress().state is WorkerState.FAILED


def test_the_backend_for_kafka_is_not_imported_by_the_worker() -> None:
    import sys

    assert importlib.util.find_spec("aiokafka") is not None
    import subprocess

    code = "import sys, muster_bus.partition_worker, muster_bus.settings; sys.exit('aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_others_are_asked_about_what_a_machine_gets_next(bus: Log, topics: Topics) -> None:
    asked: dict[StateMachine, list[int]] = {}
    applied: dict[StateMachine, list[int]] = {}
    chance = random.Random(5)

    class Told(CountingMachine):
        def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
            applied.setdefault(self, []).extend(record.offset for record in records)
            assert asked[self] == applied[self], "the machine was asked about the same batch before"
            return super().apply(records, now_ns)

    async def consult(machine: StateMachine, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        if chance.random() < 0.2:
            raise LogUnavailable("who is asked is away") if chance.random() < 0.5 else KeyError("a defect")
        asked.setdefault(machine, []).extend(record.offset for record in records)

    inputs = _inputs(100)
    await write_inputs(await bus.writer("test"), topics, inputs)
    settings = FAST.model_copy(update={"quarantine_after": 100, "max_records_apply": 5})
    async with Running(bus, topics, lambda: Told(topics), settings, consult) as worker:
        await eventually(lambda: worker.progress().committed == 100)
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(inputs)
    assert len(asked) > 1


async def test_a_record_on_which_the_consulted_handlers_fail_is_put_aside(bus: Log, topics: Topics) -> None:
    async def consult(_machine: StateMachine, records: Sequence[Record]) -> None:
        if any(record.value == b"3" for record in records):
            raise KeyError("content of the request")

    inputs = _inputs(10)
    await write_inputs(await bus.writer("test"), topics, inputs)
    async with Running(bus, topics, lambda: CountingMachine(topics), consult=consult) as worker:
        await eventually(lambda: worker.progress().committed == 10)
    good = [pair for pair in inputs if pair[1] != b"3"]
    assert [record.value for record in await read_all(bus, topics.responses)] == expected_responses(good)
    assert len(await read_all(bus, topics.dead_letters)) == 1
