"""Turns between streams: admission in steps, and who is active."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from admitting import admit
from muster_bus.clock import SystemClock
from muster_bus.contention import Work
from muster_bus.log import OutRecord
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_client import ask
from muster_gateway import response_delivery
from muster_gateway.admission import admission_steps
from muster_gateway.response_delivery import ResponseTail
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_fairness import ActiveRms, StepTurns
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.emit import decided_report
from waiting import eventually

LIMITS = AdmissionLimits.model_validate({})
PATIENCE_S = 60.0
WORK = Work(1_500, 4_096, 20)


def message(count: int) -> bytes:
    asks = [ask(f"a{number}", "app", {"vcore": 1}) for number in range(count)]
    return si.AllocationRequest(rmID="rm", allocations=asks).SerializeToString()


async def test_other_tasks_run_between_the_steps_of_a_large_message() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    running = asyncio.create_task(other())
    admitted = await StepTurns().run("rm", admission_steps(StreamKind.ALLOCATION, message(5_000), "rm", LIMITS))
    running.cancel()
    assert turns > 10
    assert admitted.items == 5_000
    assert admitted == admit(StreamKind.ALLOCATION, message(5_000), "rm", LIMITS)


async def test_a_small_message_is_one_step_and_stays_as_received() -> None:
    steps = admission_steps(StreamKind.ALLOCATION, message(10), "rm", LIMITS)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value.payloads == [message(10)]


async def test_steps_that_fail_raise_in_their_caller() -> None:
    def failing() -> Generator[None, None, int]:
        yield
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await StepTurns().run("rm", failing())


def test_an_rm_is_alone_again_when_no_other_has_been_active_for_a_while() -> None:
    active = ActiveRms(0.0)
    active.record(b"big")
    assert active.other_count(b"big") == 0
    active.record(b"small")
    assert (active.other_count(b"big"), active.other_count(b"small"), active.other_count(b"new")) == (1, 1, 2)
    active.expire(59.0)
    assert active.other_count(b"big") == 1
    active.expire(61.0)  # earlier notes count until the next turn
    active.record(b"big")
    assert active.other_count(b"big") == 1
    active.expire(121.0)
    assert active.other_count(b"big") == 0
    assert active.other_count(b"small") == 1


async def test_a_tail_tells_of_the_schedulers_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_delivery, "_REPORT_S", 0.05)
    settings = LogSettings(backend="memory", partitions=1)
    topics = settings.topics()
    log = make_log(settings, SystemClock())
    await log.start()
    tail = ResponseTail(log, topics, 0, 100)
    await tail.start()
    running = asyncio.create_task(tail.run())
    owner = await log.take_over("scheduler", topics.requests, 0)
    try:
        assert not await tail.wait_decided(), "nothing was ever reported"
        # 1. a report among other records
        strange = OutRecord(topics.responses, 0, None, b"\xff\xff")
        nothing = OutRecord(topics.responses, 0, None, envelope_pb2.ResponseEnvelope(rm_id="rm").SerializeToString())
        await owner.commit([strange, nothing, decided_report(topics, 0, 7, WORK)], None)
        async with asyncio.timeout(PATIENCE_S):
            while tail.report.decided != 7:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        # 2. a caller waits for the next one
        monkeypatch.setattr(response_delivery, "_REPORT_S", PATIENCE_S)
        waiting = asyncio.create_task(tail.wait_decided())
        await asyncio.sleep(0)
        await owner.commit([decided_report(topics, 0, 9, WORK)], None)
        assert await waiting
        assert tail.report == (9, *WORK)
        # 3. the RMs whose responses it saw, at any gateway
        response = envelope_pb2.ResponseEnvelope(rm_id="elsewhere").SerializeToString()
        await owner.commit([OutRecord(topics.responses, 0, b"elsewhere", response)], None)
        await eventually(lambda: tail.active.other_count(b"here") == 1, "an RM of another gateway", PATIENCE_S)
        # 4. a scheduler that has become silent
        monkeypatch.setattr(response_delivery, "_REPORT_S", 0.01)
        assert not await tail.wait_decided()
        assert tail.report.decided == 0
    finally:
        running.cancel()
        await log.close()


async def test_many_large_messages_share_one_go_of_each_pass() -> None:
    """So many callers at once hold up the loop no longer than one: between two of their goes, others run."""
    turns, order, passes = StepTurns(now_s=lambda: float(len(order))), [], 0  # a go is one step

    def steps(name: str) -> Generator[None, None, str]:
        for _ in range(10):
            order.append((passes, name))
            yield
        return name

    async def others() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    running = asyncio.create_task(others())
    names = [f"rm-{number}" for number in range(4) for _ in range(3)]  # three messages of each
    done = await asyncio.gather(*(turns.run(name, steps(name)) for name in names))
    running.cancel()
    assert done == names
    later = order[len(names) :]  # each begins at once: a small message has no second step
    assert len({at for at, _ in later}) == len(later), "two goes in one pass of the loop"
    first = [name for _, name in later[:40]]
    assert {first.count(name) for name in set(names)} <= {9, 10, 11}, "callers take turns"


async def test_a_cancelled_message_leaves_its_place() -> None:
    turns = StepTurns(now_s=iter(range(1_000)).__next__)  # a go is one step

    def steps() -> Generator[None, None, int]:
        for _ in range(5):
            yield
        return 5

    tasks = [asyncio.create_task(turns.run(f"rm-{number}", steps())) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[0] == found[2] == 5
    assert isinstance(found[1], asyncio.CancelledError)
