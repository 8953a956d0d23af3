"""What ends the parts of Muster's children is told as it came first, also where two causes come in one turn."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_cli.followers_child import _wait_ended
from muster_cli.followers_front import FollowersFront, FrontState
from muster_informers.child import serve
from muster_informers.pipe_messages import InformersStatus, StartInformers, StopInformers
from muster_informers.settings import ExternalSettings
from muster_runtime import logs
from muster_runtime.ending import first_of

WITHIN_S = 60.0
BOTH_ORDERS = pytest.mark.parametrize("order", [(0, 1), (1, 0)])


class Gates:
    """Work that ends when its gate is opened: the first with an error, the others well."""

    def __init__(self, count: int = 2) -> None:
        self.gates = [asyncio.Event() for _ in range(count)]

    async def work(self, number: int) -> None:
        await self.gates[number].wait()
        if number == 0:
            raise ValueError(number)

    def open(self, order: tuple[int, ...]) -> None:
        """All in one turn of the loop."""
        for number in order:
            self.gates[number].set()


@BOTH_ORDERS
async def test_the_first_of_two_tasks_that_end_in_one_turn(order: tuple[int, int]) -> None:
    gates = Gates()
    tasks = [asyncio.create_task(gates.work(number)) for number in range(2)]
    await asyncio.sleep(0)
    gates.open(order)
    assert await first_of(*tasks) is tasks[order[0]]
    await asyncio.gather(*tasks, return_exceptions=True)


@BOTH_ORDERS
async def test_followers_end_by_their_own_cause_or_with_their_parent(order: tuple[int, int]) -> None:
    """The pipe fails (0) and the followers end well (1), because their service does."""
    gates = Gates()
    listening, running = (asyncio.create_task(gates.work(number)) for number in range(2))
    await asyncio.sleep(0)
    gates.open(order)
    if order[0] == 0:
        with pytest.raises(ValueError, match="0"):
            await _wait_ended(cast("Any", listening), running)
    else:
        await _wait_ended(cast("Any", listening), running)
    await asyncio.gather(listening, running, return_exceptions=True)


async def test_followers_that_fail_say_so_although_the_parent_goes_then() -> None:
    gates = Gates(1)
    running = asyncio.create_task(gates.work(0))
    listening = asyncio.create_task(asyncio.Event().wait())
    running.add_done_callback(lambda _: listening.cancel())
    gates.open((0,))
    with pytest.raises(ValueError, match="0"):
        await _wait_ended(cast("Any", listening), running)


@BOTH_ORDERS
async def test_a_front_end_that_ends_while_it_is_closed_has_no_error(order: tuple[int, int]) -> None:
    """It fails (0), and the gateway stops (1)."""
    gates, states = Gates(), list[FrontState]()

    async def stop() -> None:
        gates.open((0,))

    front = SimpleNamespace(wait=lambda: gates.work(0), stop=stop)
    of = SimpleNamespace(_closing=gates.gates[1], _set_state=states.append)
    serving = asyncio.create_task(FollowersFront._serve(cast("Any", of), cast("Any", front)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gates.open(order)
    if order[0] == 0:
        with pytest.raises(ValueError, match="0"):
            await serving
    else:
        await serving
    assert states == [FrontState.CLOSED]


class Pipe:
    """The child's end of its pipe.

    :param breaks: what the first report of the informers' state meets; None: it is sent.
    :param then: comes from the parent in that moment.
    """

    def __init__(self, *messages: Any, breaks: Exception | None = None, then: tuple[Any, ...] = ()) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.breaks, self.then, self.sent = breaks, then, list[Any]()
        for each in messages:
            self.messages.put_nowait(each)

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, InformersStatus):
            for each in self.then:
                self.messages.put_nowait(each)
            if self.breaks is not None:
                raise self.breaks

    async def receive(self) -> Any:
        return await self.messages.get()

    async def flush(self) -> None:
        """All is sent."""


def _begin() -> StartInformers:
    return StartInformers(
        ExternalSettings().in_clear(), asdict(Topics()), (0,), "life", *logs.configured(), tuple(sys.path)
    )


async def _served(pipe: Pipe) -> None:
    async with asyncio.timeout(WITHIN_S):
        await serve(cast("Any", pipe), SystemClock())


async def test_informers_that_are_told_to_stop_end_well_although_a_report_fails_then() -> None:
    await _served(Pipe(_begin(), StopInformers(), breaks=OSError("the report")))


async def test_informers_say_what_failed_although_they_are_told_to_stop_then() -> None:
    with pytest.raises(OSError, match="the report"):
        await _served(Pipe(_begin(), breaks=OSError("the report"), then=(StopInformers(),)))


async def test_informers_whose_parent_goes_end_with_that() -> None:
    with pytest.raises(EOFError):
        await _served(Pipe(_begin(), then=(None, StopInformers())))
