"""Request events over the callback streams of an RM that names no position: each comes once, whatever gateway the RM
connects to, and however its streams end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import grpc
import pytest
from integration.gateway_rig import Channel, Rig, crash
from muster_gateway.errors import SessionStoreDown
from virtual.plugin import advance
from virtual.sessions import SessionsOfProcess

STREAMS = 8


class SlowStore:
    """A session store that answers within 20 ms, or not at all.

    :ivar sessions_answer: see StoreFaults.
    """

    sessions_answer = True

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    async def sessions_turn(self, *, writes: bool) -> None:
        await asyncio.sleep(self._dice.uniform(0.0, 0.02))
        if not self.sessions_answer:
            raise SessionStoreDown("the store is away")


class Rm:
    """An RM that opens one callback stream after the other, and counts what it gets on all of them."""

    def __init__(self) -> None:
        self.got: Counter[str] = Counter()
        self._reading: list[asyncio.Task[None]] = []

    async def open(self, channel: Channel) -> Any:
        stream = await channel.connect(request_events_only=True, events=True)
        self._reading.append(asyncio.create_task(self._read(stream)))
        return stream

    async def ended(self) -> None:
        await asyncio.gather(*self._reading)

    async def _read(self, stream: Any) -> None:
        try:
            while (message := await stream.call.read()) is not grpc.aio.EOF:
                self.got.update(event.record.objectID for event in message.events.events)
        except (grpc.RpcError, asyncio.CancelledError):
            return  # the stream is over


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("elsewhere", [False, True], ids=["the same gateway", "another gateway"])
@pytest.mark.parametrize("how", ["broken", "replaced", "stopped"])
async def test_each_request_event_comes_once_over_streams_and_gateways(
    quick: Rig, how: str, seed: int, *, elsewhere: bool
) -> None:
    dice = Random(seed)

    async def gateway() -> Any:
        sessions = SessionsOfProcess(quick.sessions, SlowStore(dice))
        return await quick.gateway(sessions=sessions, request_push_interval_s=2.0)

    gateways = [await gateway(), await gateway()]
    channels = [await quick.registered(gateways[0]), quick.channel(gateways[1])]
    happened: list[str] = []

    async def happen() -> None:
        while True:
            happened.append(f"ask{len(happened)}")
            await quick.scheduler.happen("rm", happened[-1], tracked=False)
            if dice.random() < 0.5:  # records that are none of the stream's
                await quick.scheduler.happen("rm", "tracked")
            await asyncio.sleep(dice.uniform(0.0, 1.0))

    happening = asyncio.create_task(happen())
    rm, at = Rm(), 0
    for _ in range(STREAMS):
        stream = await rm.open(channels[at])
        await asyncio.sleep(dice.choice([0.0, dice.uniform(0.0, 10.0), 2.0 + dice.uniform(0.0, 0.02)]))
        if how == "broken":
            stream.cancel()
        elif how == "stopped":
            await gateways[at].stop()
            gateways[at] = await gateway()
            channels[at] = quick.channel(gateways[at])
        at = 1 - at if elsewhere else at
    happening.cancel()
    stream = await rm.open(channels[at])
    await advance()
    stream.cancel()
    await rm.ended()
    assert [name for name in happened if rm.got[name] != 1] == [], "each comes once"
    assert len(rm.got) == len(happened)


async def test_a_position_that_the_session_store_did_not_accept_is_stored_when_it_answers_again(quick: Rig) -> None:
    faults = SlowStore(Random(1))
    gateway = await quick.gateway(sessions=SessionsOfProcess(quick.sessions, faults), lease_ttl_s=3.0)
    rm = Rm()
    await rm.open(await quick.registered(gateway))
    faults.sessions_answer = False
    await quick.scheduler.happen("rm", "while it is away", tracked=False)
    await advance()
    assert rm.got == {"while it is away": 1}
    faults.sessions_answer = True
    await advance()
    await crash(gateway)
    await quick.scheduler.happen("rm", "after it", tracked=False)
    await rm.open(quick.channel(await quick.gateway(lease_ttl_s=3.0)))
    await advance()
    assert rm.got == {"while it is away": 1, "after it": 1}


async def test_a_stream_that_another_gateway_replaced_pushes_nothing_more(quick: Rig) -> None:
    gateways = [await quick.gateway(request_push_interval_s=2.0) for _ in range(2)]
    older = await (await quick.registered(gateways[0])).connect(request_events_only=True, events=True)
    newer = await quick.channel(gateways[1]).connect(request_events_only=True, events=True)
    await quick.scheduler.happen("rm", "ask", tracked=False)
    assert await newer.events(1) == [("ask", None)]
    assert (await older.status())[0] is grpc.StatusCode.ABORTED
    assert [len(message.events.events) for message in older.got] == [0], "it had its welcome only"


async def test_an_rm_that_names_its_position_gets_what_an_older_stream_wrote_behind_it(quick: Rig) -> None:
    """What the older stream wrote may not have arrived: the RM's own position counts."""
    gateways = [await quick.gateway(request_push_interval_s=2.0) for _ in range(2)]
    older = await (await quick.registered(gateways[0])).connect(request_events_only=True, events=True)
    await quick.scheduler.happen("rm", "first", tracked=False)
    assert await older.events(1) == [("first", None)]
    position = older.got[-1].events.request_position
    await quick.scheduler.happen("rm", "second", tracked=False)
    assert await older.events(1) == [("second", None)]
    newer = await quick.channel(gateways[1]).connect(
        request_events_only=True, events=True, request_events_after=position
    )
    assert await newer.events(1) == [("second", None)]
