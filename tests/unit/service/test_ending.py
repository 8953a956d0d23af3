"""The first cause of an end is what everybody is told, in both orders of two causes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import structlog
from muster_runtime.child_process import ChildProcess
from muster_runtime.ending import Ending, error_of
from muster_runtime.service_lifecycle import ServiceLifecycle, gather_all, run_until
from unit.service.watched_child import Beat, Do

WITHIN_S = 60.0
BOTH_ORDERS = pytest.mark.parametrize("order", [(0, 1), (1, 0)])


def test_the_first_cause_stays_and_later_ones_are_logged() -> None:
    ending: Ending[str] = Ending("a stream")
    with structlog.testing.capture_logs() as logged:
        assert ending.by("the log fails") == "the log fails"
        assert ending.by("the client leaves") == "the log fails"
    assert ending.cause == "the log fails"
    assert [(each["what"], each["cause"], each["later"]) for each in logged] == [
        ("a stream", "the log fails", "the client leaves")
    ]


@BOTH_ORDERS
async def test_of_two_tasks_that_end_in_one_turn_the_first_is_the_cause(order: tuple[int, int]) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def fails(number: int) -> None:
        await gates[number].wait()
        raise ValueError(number)

    ending: Ending[BaseException] = Ending()
    tasks = [asyncio.create_task(fails(number)) for number in range(2)]
    for task in tasks:
        ending.watch(task, error_of)
    await asyncio.sleep(0)
    for number in order:
        gates[number].set()
    assert (await ending.wait()).args == (order[0],)
    await asyncio.wait(tasks)
    assert str(ending.cause) == str(order[0])


@BOTH_ORDERS
async def test_together_raises_what_came_first(order: tuple[int, int]) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def fails(number: int) -> None:
        await gates[number].wait()
        if number == order[0]:
            gates[order[1]].set()
        raise ValueError(number)

    gates[order[0]].set()
    with pytest.raises(ValueError, match=f"^{order[0]}$"):
        await gather_all(fails(number) for number in range(2))


async def test_work_that_fails_because_it_was_over_did_not_end_by_itself() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("the other end is gone") from None

    assert not await run_until(fails_when_cancelled(), asyncio.sleep(0))


async def test_work_that_failed_before_it_was_over_tells_so() -> None:
    over = asyncio.Event()

    async def fails() -> None:
        over.set()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run_until(fails(), over.wait())


@BOTH_ORDERS
async def test_a_service_ends_by_the_task_that_failed_first(order: tuple[int, int]) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def fails(number: int) -> None:
        await gates[number].wait()
        raise ValueError(number)

    life = ServiceLifecycle("x")
    life.start()
    for number in range(2):
        life.spawn(fails(number), f"work {number}")
    await asyncio.sleep(0)
    for number in order:
        gates[number].set()
    with pytest.raises(ValueError, match=f"^{order[0]}$"):
        await asyncio.wait_for(life.wait(), WITHIN_S)
    assert life.begin_stop()
    await life.cancel_tasks()
    with pytest.raises(ValueError, match=f"^{order[0]}$"):
        await life.wait()


@pytest.mark.parametrize("first", ["the child", "the parent"])
async def test_a_child_ended_by_what_came_first(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    child: ChildProcess[Beat] = ChildProcess.spawn("unit.service.watched_child", Beat)
    channel = await child.connect()

    async def left_behind() -> None:
        child.kill("could not be served")

    def take(_: Beat) -> None:
        if first == "the child":
            os.kill(child.pid, signal.SIGKILL)
        else:
            child.kill("was ended by an operator")

    try:
        channel.send(Do("work"))
        async with asyncio.timeout(WITHIN_S):
            why = await child.listen(take, WITHIN_S, left_behind)
    finally:
        await child.end()
    assert why == ("was killed by SIGKILL" if first == "the child" else "was ended by an operator")
