"""Callback streams on the logs and session stores of real deployments: SQLite, and Kafka with Redis.

All else about them is in in_virtual_time/test_gateway_callbacks.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from integration.gateway_rig import Rig, rig
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.sessions.contract import NOBODY, Seat
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.v1 import callbacks_pb2 as pb
from waiting import eventually

ALLOCATION, NODE, CALLBACK = StreamKind.ALLOCATION, StreamKind.NODE, StreamKind.CALLBACK
Code = grpc.StatusCode
Said = pb.FromResourceManager


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.redis])])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    clock = SystemClock()
    if request.param == "kafka":
        name = f"callbacks-{uuid.uuid4().hex[:12]}."
        log_settings = LogSettings(
            backend="kafka",
            partitions=2,
            topic_prefix=name,
            kafka_bootstrap_servers=request.getfixturevalue("kafka_bootstrap"),
        )
        url, prefix = request.getfixturevalue("redis_url"), name
    else:
        log_settings = LogSettings(backend=request.param, sqlite_path=tmp_path / "log.db", partitions=2)
        url, prefix = f"sqlite://{tmp_path}/sessions.db", "muster:"
    settings = GatewaySettings(sessions_url=url, sessions_prefix=prefix)
    sessions = make_sessions(settings, clock)
    await sessions.start()
    log = make_log(log_settings, clock)
    await log.start()
    async with rig(log, log_settings.topics(), sessions, lambda: make_sessions(settings, clock)) as it:
        yield it
    await log.close()
    await sessions.close()


async def test_an_rm_is_asked_and_answers(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = await channel.connect(predicates=True, scheduling_states=True)
    assert stream.got[0] == pb.ToResourceManager(welcome=pb.Welcome(gateway_id=gateway.gateway_id))
    await eventually(lambda: world.scheduler.notes("rm") == [(True, 1)], "the scheduler knows of it")
    note = world.scheduler.bodies("rm", "callback_stream")[0]
    assert (note.predicates, note.preemption_predicates, note.scheduling_states) == (True, False, True)
    assert (note.state_dump, note.events) == (False, False)
    await world.scheduler.ask("rm", 1, 2, 3)
    assert await stream.asked(3) == [1, 2, 3]
    assert [message.response_sequence for message in stream.got[1:]] == [2, 3, 4]
    await stream.say(2, 1)
    await stream.say(3, fits=False)
    await eventually(lambda: len(world.scheduler.answers("rm")) == 2, "the answers are on the log")
    first, second = world.scheduler.answers("rm")
    assert [(answer.id, answer.fits) for answer in first.predicates] == [(2, True), (1, True)]
    assert [(answer.id, answer.fits) for answer in second.predicates] == [(3, False)]
    stream.cancel()
    await eventually(lambda: world.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end")


async def test_a_newer_stream_takes_the_place_on_any_gateway(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    channel = await world.registered(first)
    older = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1)
    assert await older.asked(1) == [1]
    newer = await channel.connect(predicates=True)
    assert await older.status() == (
        Code.ABORTED,
        "superseded: a newer callback stream of rmID 'rm' was opened",
    )
    await world.scheduler.ask("rm", 2)
    assert await newer.asked(1) == [2]
    last = newer.got[-1].response_sequence
    elsewhere = await world.channel(second).connect(state_dump=True, resume_after=last)
    assert (await newer.status())[0] is Code.ABORTED
    await world.scheduler.ask("rm", 3)
    assert await elsewhere.asked(1) == [3]
    await eventually(lambda: world.scheduler.notes("rm") == [(True, 1), (True, 2), (True, 3)], "it was never away")


@pytest.mark.parametrize("tells", [True, False], ids=["with a number", "without"])
async def test_no_question_is_lost_between_streams(world: Rig, *, tells: bool) -> None:
    gateways = [await world.gateway(), await world.gateway()]
    channel = await world.registered(gateways[0])
    stream = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1, 2)
    assert await stream.asked(2) == [1, 2]
    await eventually(lambda: _stored(gateways[0]) == 3, "the place is stored")
    stream.cancel()
    await eventually(lambda: world.scheduler.notes("rm")[-1] == (False, 2), "the gateway has noticed")
    await world.scheduler.ask("rm", 3, 4)
    last = stream.got[-1].response_sequence if tells else None
    stream = await world.channel(gateways[1]).connect(predicates=True, resume_after=last)
    await world.scheduler.ask("rm", 5)
    assert await stream.asked(3) == [3, 4, 5]


async def test_a_gateway_that_stops_notes_the_end_and_the_next_one_goes_on(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    channel = await world.registered(first)
    stream = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1)
    await stream.asked(1)
    await first.stop()
    code, details = await stream.status()
    assert code is Code.UNAVAILABLE
    assert details.startswith("this gateway is stopping: connect again")
    await eventually(lambda: world.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end")
    await world.scheduler.ask("rm", 2)
    stream = await world.channel(second).connect(predicates=True)
    assert await stream.asked(1) == [2]
    await eventually(lambda: world.scheduler.notes("rm")[-1] == (True, 3), "and of the new one")


async def test_request_events_continue_behind_those_that_another_gateway_sent(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    stream = await (await world.registered(first)).connect(request_events_only=True, events=True)
    await world.scheduler.happen("rm", "a", "b", tracked=False)
    assert await stream.events(2) == [("a", None), ("b", None)]
    await first.stop()  # (it has stored the position when it has stopped)
    await world.scheduler.happen("rm", "c", tracked=False)
    stream = await world.channel(second).connect(request_events_only=True, events=True)
    assert await stream.events(1) == [("c", None)]


async def test_a_store_that_lost_everything_goes_on_with_the_epochs_of_the_log(world: Rig) -> None:
    gateway = await world.gateway(lease_ttl_s=0.3)
    channel = await world.registered(gateway)
    for _ in range(3):
        stream = await channel.connect(predicates=True)
    await eventually(lambda: world.scheduler.notes("rm") == [(True, 1), (True, 2), (True, 3)], "it is in the state")
    await world.scheduler.ask("rm", 0)
    await stream.asked(1)
    await _forget(world)

    async def seated() -> bool:
        session = await gateway.sessions.get("rm")
        return session is not None and session.seats.get(CALLBACK, NOBODY) == Seat(gateway.gateway_id, 3)

    await eventually(seated, "the session is back, and the stream has its seat")
    await world.scheduler.ask("rm", 1)
    assert await stream.asked(1) == [1]
    stream.cancel()
    await eventually(lambda: world.scheduler.notes("rm")[-1] == (False, 4), "the end is noted")


@pytest.mark.parametrize("after", [0, 503, 1_499, 2_998])
async def test_events_go_on_behind_an_id(world: Rig, after: int) -> None:
    channel = await world.registered(await world.gateway())
    for start in range(0, 3_000, 100):  # between events of other RMs, and the RM's own without an id
        await world.scheduler.happen("rm", *[f"e{n}" for n in range(start, start + 100)])
        await world.scheduler.happen("rm", f"ask{start}", tracked=False)
        await world.scheduler.happen("other", *["x"] * 60)
    stream = await channel.connect(events=True, events_after=after)
    await world.scheduler.happen("rm", "last")
    tracked = [*((f"e{number}", number) for number in range(after + 1, 3_000)), ("last", 3_000)]
    asks = [f"ask{number - 99}" for number in range(after, 3_000) if number % 100 == 99]
    assert apart(await stream.events(len(tracked) + len(asks))) == (tracked, asks)


def _stored(gateway: Gateway) -> int:
    return max((stream.stored.sequence for stream in gateway._table.all()), default=0)


async def _forget(world: Rig) -> None:
    store: Any = world.sessions
    if hasattr(store, "_redis"):
        for key in [key async for key in store._redis.scan_iter(match=f"{store._prefix}*")]:
            await store._redis.delete(key)
    else:
        for table in ("session", "seat", "cursor", "lease", "fill"):
            await store._run(store._execute, f"DELETE FROM {table}", ())


def apart(told: list[tuple[str, int | None]]) -> tuple[list[tuple[str, int]], list[str]]:
    """Split into tracked events and request events, each in its order."""
    return [(name, number) for name, number in told if number is not None], [n for n, number in told if number is None]
