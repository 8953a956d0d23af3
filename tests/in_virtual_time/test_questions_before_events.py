"""Questions overtake the events that wait at the gateway, once it has read them.

A gateway reads responses and events with two readers. So a question that is on the log is not before events until its
reader has it, and then it waits for the batch that is being written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from integration.gateway_rig import CallbackConversation, Rig
from muster_bus.backends.memory import MemoryLog
from muster_bus.backends.memory_faults import Outcome
from muster_gateway.stream_kind import StreamKind
from virtual.plugin import advance

LAG_S = 2.0


class LateResponses:
    """Faults of a log: each reader gets responses late, each at its time. All else works at once."""

    def __init__(self, dice: Random, topic: str) -> None:
        self._dice, self._topic = dice, topic

    def check(self) -> None:
        """The log is reached."""

    def append(self, topic: str, partition: int) -> tuple[float, Outcome]:
        return 0.0, Outcome.DONE

    def commit(self, group: str, partition: int) -> tuple[float, Outcome]:
        return 0.0, Outcome.DONE

    def lag_s(self, topic: str, partition: int) -> float:
        return self._dice.uniform(0.0, LAG_S) if topic == self._topic else 0.0

    def share_s(self) -> float:
        return 0.0

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, call)


async def kinds(stream: CallbackConversation, count: int) -> list[str]:
    """Returns what the next messages have."""
    messages = [await stream.receive() for _ in range(count)]
    return ["question" if message.predicates else "events" for message in messages]


async def catching_up(world: Rig, seed: int, before_writing: Callable[[], Any]) -> CallbackConversation:
    """Opens a stream with more events than may wait. They wait when it calls back, right before it writes."""
    assert isinstance(world.log, MemoryLog)
    world.log.faults = LateResponses(Random(seed), world.topics.responses)
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    await world.scheduler.happen("rm", *[f"e{n}" for n in range(2_000)], padding="x" * 1_000)
    quotas = gateway._servicer._dependencies.quotas  # type: ignore[union-attr]
    opened = quotas.on_stream_opened

    async def full(*of: Any) -> None:
        """The last step before the stream writes: until then events pile up."""
        await opened(*of)
        await advance()
        feed = gateway._table.get("rm", StreamKind.CALLBACK)._events  # type: ignore[union-attr]
        assert feed._waiting_bytes >= 500_000, "what may wait is full"
        await before_writing()

    quotas.on_stream_opened = full  # type: ignore[method-assign]
    return await channel.connect(events=True, events_after=0, predicates=True)


@pytest.mark.parametrize("seed", range(5))
async def test_a_question_that_the_gateway_has_read_comes_before_the_events_that_wait(quick: Rig, seed: int) -> None:
    async def ask() -> None:
        await quick.scheduler.ask("rm", 1)
        await advance()  # the gateway reads it

    stream = await catching_up(quick, seed, ask)
    assert await kinds(stream, 3) == ["question", "events", "events"]
    last = 1_999 - sum(len(message.events.events) for message in stream.got)
    assert (await stream.events(last))[-1] == ("e1999", 1_999)


@pytest.mark.parametrize("seed", range(5))
async def test_a_question_that_the_gateway_reads_later_waits_for_one_batch(quick: Rig, seed: int) -> None:
    stream = await catching_up(quick, seed, lambda: quick.scheduler.ask("rm", 1))
    await advance()  # it reads the question while the first batch waits for the RM
    assert await kinds(stream, 3) == ["events", "question", "events"]
    await quick.scheduler.ask("rm", 2)
    await advance()
    assert await kinds(stream, 3) == ["events", "question", "events"]
