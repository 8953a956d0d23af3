"""The end of a service's life, and the error that its owner gets."""

from __future__ import annotations

import asyncio
import re

import pytest
from muster_runtime.service_lifecycle import ServiceLifecycle, gather_all, run_until


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _fails() -> None:
    raise ValueError("broken")


async def _returns() -> None:
    return


async def waited(life: ServiceLifecycle) -> None:
    await asyncio.wait_for(life.wait(), 5)


async def test_a_stop_ends_it_in_order() -> None:
    life = ServiceLifecycle("x")
    life.start()
    task = life.spawn(_for_ever(), "work")
    waiting = asyncio.create_task(waited(life))
    await asyncio.sleep(0)
    assert life.begin_stop()
    assert not life.begin_stop(), "the second stop has nothing to do"
    await life.cancel_tasks()
    assert task.cancelled()
    assert life.alive
    assert not waiting.done()
    life.finish()
    await waiting
    assert not life.alive


@pytest.mark.parametrize(
    ("work", "kind", "said"), [(_fails, ValueError, "broken"), (_returns, RuntimeError, "x: work ended")]
)
async def test_a_task_that_ends_is_the_end(work: type, kind: type[Exception], said: str) -> None:
    life = ServiceLifecycle("x")
    life.start()
    life.spawn(_for_ever(), "other")
    life.spawn(work(), "work")
    with pytest.raises(kind, match=re.escape(said)):
        await waited(life)
    assert not life.alive
    assert life.begin_stop(), "a stop after a failure stops the rest"
    await life.cancel_tasks()
    life.finish()
    with pytest.raises(kind):  # still: a regular end does not hide the earlier error
        await waited(life)


async def test_a_task_that_ends_while_it_is_stopped_is_none() -> None:
    life = ServiceLifecycle("x")
    life.start()
    life.begin_stop()
    await asyncio.wait({life.spawn(_fails(), "work")})
    life.finish()
    await waited(life)


async def test_one_that_waits_no_longer_does_not_disturb_the_others() -> None:
    life = ServiceLifecycle("x")
    life.start()
    impatient = asyncio.create_task(life.wait())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait({impatient})
    assert life.alive
    life.finish()
    await waited(life)


def test_a_life_before_its_beginning_is_neither_alive_nor_stopped() -> None:
    life = ServiceLifecycle("x")
    assert not life.alive
    assert not life.begin_stop()
    assert not life.stopping


async def test_a_cancellation_that_is_swallowed_is_said_again() -> None:
    life = ServiceLifecycle("tested")
    life.start()
    swallowed = 0

    async def deaf_once() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed += 1

    task = life.spawn(deaf_once(), "deaf once")
    await asyncio.sleep(0)
    life.begin_stop()
    async with asyncio.timeout(20):
        await life.cancel_tasks()
    assert swallowed == 1
    assert task.cancelled()


async def test_all_tasks_have_ended_when_one_has_failed() -> None:
    done: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.01)
        done.append("slow")

    with pytest.raises(ValueError, match="broken"):
        await gather_all([_fails(), slow()])
    assert done == ["slow"]


async def test_work_goes_on_until_something_is_over() -> None:
    over, ended = asyncio.Event(), list[str]()

    async def work() -> None:
        try:
            await _for_ever()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    # 1. the work is cancelled, and has ended
    over.set()
    assert not await run_until(work(), over.wait())
    assert ended == ["work"]
    # 2. the work ends or fails first
    over.clear()
    assert await run_until(_returns(), over.wait())
    with pytest.raises(ValueError, match="broken"):
        await run_until(_fails(), over.wait())
    # 3. the waiter is cancelled: both have ended
    waiting = asyncio.create_task(run_until(work(), over.wait()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["work", "work"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
