"""The scheduler's process ends by the failure that came first."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from muster_scheduler.service import SchedulerService

BOTH_ORDERS = pytest.mark.parametrize("order", [(0, 1), (1, 0)])
WITHIN_S = 60.0


class Failing:
    """Two pieces of work that fail in this order, in one turn of the loop."""

    def __init__(self, order: tuple[int, int]) -> None:
        self._order, self._gates = order, [asyncio.Event(), asyncio.Event()]

    async def work(self, number: int) -> None:
        await self._gates[number].wait()
        raise ValueError(number)

    def fail(self) -> None:
        for number in self._order:
            self._gates[number].set()


def service(**attributes: Any) -> SchedulerService:
    made = SchedulerService.__new__(SchedulerService)
    made.__dict__.update(attributes)
    return made


@BOTH_ORDERS
async def test_of_two_tasks_of_the_service(order: tuple[int, int]) -> None:
    failing = Failing(order)
    tasks = [asyncio.create_task(failing.work(number)) for number in range(2)]
    waiting = asyncio.create_task(service(_tasks=tasks).wait())
    await asyncio.sleep(0)
    failing.fail()
    with pytest.raises(ValueError, match=f"^{order[0]}$"):
        await asyncio.wait_for(waiting, WITHIN_S)


@BOTH_ORDERS
async def test_of_two_workers(order: tuple[int, int]) -> None:
    failing = Failing(order)

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    made = service(
        _news=asyncio.Event(),
        _ends=deque(),
        _running={},
        _workers={},
        _is_grouped=False,
        _clock=SimpleNamespace(monotonic=lambda: 0.0),
        _membership=SimpleNamespace(assignment=None, changed=never),
        _ownership=SimpleNamespace(on_time=lambda _: [], next_due_s=lambda: None),
        _contention=None,
        _make_machine=object(),
    )
    steering = asyncio.create_task(made._steer())
    for number in range(2):
        task = made._running[number] = asyncio.create_task(failing.work(number))
        task.add_done_callback(lambda _, number=number: made._note_end(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    failing.fail()
    with pytest.raises(ValueError, match=f"^{order[0]}$"):
        await asyncio.wait_for(steering, WITHIN_S)


@BOTH_ORDERS
async def test_of_a_worker_and_its_informers(order: tuple[int, int]) -> None:
    failing = Failing(order)

    async def start() -> None: ...

    outside = SimpleNamespace(start=start, wait=lambda: failing.work(0))
    worker = SimpleNamespace(partition=3, run=lambda: failing.work(1))
    running = asyncio.create_task(service(_whole=None)._run(worker, outside))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    failing.fail()
    with pytest.raises(ValueError, match=f"^{order[0]}$"):
        await asyncio.wait_for(running, WITHIN_S)
