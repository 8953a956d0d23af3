"""Attacks with calls: silent streams, headers without a request, many calls, connections and resets of one host. An RM
on the same host, the worst case, stays served.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from integration.gateway_rig import PATIENCE_S, Channel, Rig, Stream, asks
from muster_bus.clock import SystemClock
from muster_gateway.call_limits import CallLimits, PeerCaller
from muster_gateway.errors import OverLimit
from muster_gateway.settings import CallSettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2
from virtual.plugin import advance

ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE
OVER = grpc.StatusCode.RESOURCE_EXHAUSTED


async def _is_served(channel: Channel, name: str, *, named: bool) -> None:
    """Check that an RM can open a stream, and that its ask is allocated."""
    await channel.register(name)
    stream = channel.open(ALLOCATION, name if named else None)
    await stream.send(asks(name, f"{name}-1"))
    assert [made.allocationKey for made in (await stream.receive()).new] == [f"{name}-1"]
    stream.cancel()


@pytest.mark.parametrize("named", [True, False], ids=["named in metadata", "named by its first message"])
async def test_silent_streams_of_many_connections_take_nobody_s_place(world: Rig, *, named: bool) -> None:
    gateway = await world.gateway(max_streams=60, calls={"max_silent": 30, "max_silent_per_peer": 20})
    attackers = [world.channel(gateway) for _ in range(10)]
    before = world.channel(gateway)
    await before.register("before")
    living = before.open(NODE, "before")
    await living.call.initial_metadata()
    silent: list[Stream] = []
    for attacker in attackers * 12:  # 120 streams, twice the limit
        silent.append(attacker.open(ALLOCATION))
        if len(silent) % 10 == 0:
            await asyncio.sleep(0)
    await advance()
    assert sum(each.call.done() for each in silent) >= 100, "the oldest silent streams ended"
    code, story = await next(each for each in silent if each.call.done()).status()
    assert code is OVER
    assert "muster-rm-id" in story
    await _is_served(world.channel(gateway), "rm", named=named)
    assert not living.call.done(), "a stream that has named its RM stays"
    assert gateway._limits.silent_streams() <= 30


async def test_a_stream_that_says_nothing_ends(world: Rig) -> None:
    gateway = await world.gateway(calls={"first_message_timeout_s": 0.2})
    channel = await world.registered(gateway, "rm")
    other = world.channel(gateway)
    named = channel.open(NODE, "rm")
    await named.call.initial_metadata()
    beside, silent = channel.open(ALLOCATION), other.open(ALLOCATION)
    code, story = await silent.status()
    assert (code, story.partition(":")[0]) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "no message within 0.2 s (gateway.calls.first_message_timeout_s)",
    )
    assert not named.call.done(), "an RM that is named may be silent for ever"
    assert not beside.call.done(), "and so may the other streams of its connection"
    await beside.send(asks("rm", "k"))
    assert len(await beside.take(1)) == 1


@pytest.mark.parametrize(
    "method",
    ["si.v1.Scheduler/RegisterResourceManager", "muster.v1.Admin/DumpState", "muster.v1.Metrics/Get",
     "grpc.health.v1.Health/Check"],
)  # fmt: skip
async def test_headers_without_a_request_hold_no_place_for_ever(world: Rig, method: str) -> None:
    gateway = await world.gateway(calls={"first_message_timeout_s": 0.2})
    call = world.channel(gateway).grpc.stream_stream(f"/{method}")()  # headers only: it writes nothing
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no request within 0.2 s" in await call.details()
    await advance()
    assert not gateway._limits._of_host, "its place is free"


async def test_one_host_has_so_many_calls_and_connections(world: Rig) -> None:
    gateway = await world.gateway(calls={"max_per_peer": 6, "max_connections_per_peer": 3, "max_silent": 1_000})
    channels = [world.channel(gateway) for _ in range(4)]
    for channel in channels[:3]:
        await channel.register("rm")
        first = channel.connection(None)
        await first.call.initial_metadata()
    code, story = await channels[3].connection(None).status()
    assert (code, story) == (
        OVER,
        "127.0.0.1 has 3 connections with calls, expected at most 3 (gateway.calls.max_connections_per_peer)",
    )
    for _ in range(3):
        await channels[0].connection(None).call.initial_metadata()
    code, story = await channels[0].connection(None).status()
    assert (code, story) == (OVER, "127.0.0.1 has 6 open calls, expected at most 6 (gateway.calls.max_per_peer)")


async def test_an_identity_has_so_many_calls_over_all_its_connections(world: Rig) -> None:
    tokens = {name: {"role": "admin", "token": f"{name}-token-0123456789"} for name in ("ann", "bob")}
    gateway = await world.gateway(calls={"max_per_identity": 2}, tokens=tokens)

    def opened(name: str, kind: StreamKind) -> Stream:
        return world.channel(gateway).open(kind, name, authorization=f"Bearer {name}-token-0123456789")

    for name in tokens:
        request = si_pb2.RegisterResourceManagerRequest(rmID=name)
        metadata = (("authorization", f"Bearer {name}-token-0123456789"),)
        await world.channel(gateway).stub.RegisterResourceManager(request, metadata=metadata, timeout=PATIENCE_S)
    streams = [opened("ann", NODE), opened("ann", ALLOCATION)]
    for stream in streams:
        await stream.call.initial_metadata()
    code, story = await opened("ann", APPLICATION).status()
    assert (code, story) == (
        OVER,
        "identity ann has 2 open calls, expected at most 2 (gateway.calls.max_per_identity)",
    )
    await opened("bob", APPLICATION).call.initial_metadata()
    streams[0].cancel()

    async def taken() -> bool:
        stream = opened("ann", APPLICATION)
        await asyncio.wait({asyncio.ensure_future(stream.call.initial_metadata())}, timeout=PATIENCE_S)
        return not stream.call.done()

    await advance()
    assert await taken(), "a call that ended leaves its place"


async def test_a_connection_has_so_many_calls_and_the_client_waits_with_more(world: Rig) -> None:
    gateway = await world.gateway(calls={"max_per_connection": 2})
    channel = world.channel(gateway)
    await channel.register("rm")
    first, second = channel.open(NODE, "rm"), channel.open(ALLOCATION, "rm")
    for stream in (first, second):
        await stream.call.initial_metadata()
    third = channel.open(APPLICATION, "rm")
    first.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await third.call.initial_metadata()


async def test_rapid_resets_close_a_connection_for_a_while_and_no_other(world: Rig) -> None:
    gateway = await world.gateway(calls={"max_resets": 20, "resets_window_s": 600})
    attacker = world.channel(gateway)

    async def refused() -> bool:
        """Open and reset calls until they are refused."""
        stream = attacker.open(ALLOCATION)
        await asyncio.wait({asyncio.ensure_future(stream.call.initial_metadata())}, timeout=PATIENCE_S)
        if stream.call.done():
            code, story = await stream.status()
            assert code is OVER, story
            assert "reset more than 20 calls within 600 s" in story
            return True
        stream.cancel()
        return False

    async with asyncio.timeout(PATIENCE_S):
        while not await refused():
            pass
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attacker.register("rm")
    assert caught.value.code() is OVER
    await _is_served(world.channel(gateway), "rm", named=True)


async def test_a_guarded_call_is_the_same_for_its_client(world: Rig) -> None:
    channel = world.channel(await world.gateway())
    health = health_pb2_grpc.HealthStub(channel.grpc)
    answer = await health.Check(health_pb2.HealthCheckRequest(service="si.v1.Scheduler"), timeout=PATIENCE_S)
    assert answer.status in (health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING)
    watched = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
    watched.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.stub.RegisterResourceManager(si_pb2.RegisterResourceManagerRequest(), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await channel.register("rm")


# ---- counting --------------------------------------------------------------------------------------------------------


class Clock(SystemClock):
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Sleeper:
    def __init__(self) -> None:
        self.rm_id, self.ended = "", None

    @property
    def has_ended(self) -> bool:
        return self.ended is not None

    def end(self, error: Any) -> None:
        self.ended = error


def test_the_oldest_of_the_busiest_connection_of_the_busiest_host_ends() -> None:
    limits = CallLimits(CallSettings(max_silent=6, max_silent_per_peer=5), SystemClock())
    good, beside, many = Sleeper(), Sleeper(), [Sleeper() for _ in range(4)]
    limits.add_silent(good, PeerCaller("good", "good:1"))
    limits.add_silent(beside, PeerCaller("bad", "bad:1"))
    for each in many:
        limits.add_silent(each, PeerCaller("bad", "bad:2"))
    assert not [each for each in (good, beside, *many) if each.ended]
    limits.add_silent(Sleeper(), PeerCaller("other", "other:1"))
    assert isinstance(many[0].ended, OverLimit)
    assert (good.ended, beside.ended) == (None, None)
    many[1].rm_id = "rm"  # it has sent a message: it is no longer silent
    limits.add_silent(Sleeper(), PeerCaller("bad", "bad:2"))
    assert [each.ended is not None for each in many] == [True, False, False, False]
    for _ in range(20):
        limits.add_silent(Sleeper(), PeerCaller("bad", "bad:3"))
    assert (good.ended, beside.ended) == (None, None)
    assert limits.silent_streams() == 6


def test_an_identity_counts_over_all_its_hosts() -> None:
    limits = CallLimits(CallSettings(max_per_identity=2), SystemClock())
    with limits.identity_slot("ann"), limits.identity_slot("ann"):
        with (
            pytest.raises(OverLimit, match="identity ann has 2 open calls, expected at most 2"),
            limits.identity_slot("ann"),
        ):
            pass
        with limits.identity_slot("bob"):
            pass
    with limits.identity_slot("ann"):
        pass
    assert not limits._of_identity


def test_a_host_gets_so_many_refusals_in_a_second() -> None:
    clock = Clock()
    limits = CallLimits(CallSettings(max_refusals=2), clock)
    assert [limits.refusal_wait_s("bad") for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert limits.refusal_wait_s("good") == 0.0
    clock.now_s = 10.0
    assert [limits.refusal_wait_s("bad") for _ in range(3)] == [0.0, 0.0, 0.5]


async def test_a_call_that_waits_for_its_refusal_holds_no_place() -> None:
    limits, bad = CallLimits(CallSettings(max_refusals=1), Clock()), PeerCaller("bad", "bad:1")
    await limits.delay_refusal(bad, placed=False)  # the first one of the second
    with limits.call_slot(bad):
        assert limits._of_host == {"bad": 1}
        waiting = asyncio.create_task(limits.delay_refusal(bad, placed=True))
        await advance(0.001)
        assert not waiting.done()
        assert not limits._of_host
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert limits._of_host == {"bad": 1}
    assert not limits._of_host
    assert limits._late == 0


def test_a_connection_with_many_resets_gets_calls_again_after_a_window() -> None:
    clock = Clock()
    limits = CallLimits(CallSettings(max_resets=3, resets_window_s=10), clock)
    bad = PeerCaller("a", "a:1")

    def reset() -> None:
        with pytest.raises(asyncio.CancelledError), limits.call_slot(bad):
            raise asyncio.CancelledError

    for _ in range(4):
        reset()
    with pytest.raises(OverLimit, match="reset more than 3 calls within 10 s"), limits.call_slot(bad):
        pass
    with limits.call_slot(PeerCaller("a", "a:2")):
        pass
    clock.now_s = 10.1
    for _ in range(3):
        reset()
    clock.now_s = 30
    reset()
    with limits.call_slot(bad):
        pass


def test_a_call_that_lasted_is_no_reset() -> None:
    clock = Clock()
    limits = CallLimits(CallSettings(max_resets=1), clock)

    def last() -> None:
        with limits.call_slot(PeerCaller("a", "a:1")):
            clock.now_s += 2
            raise asyncio.CancelledError

    for _ in range(5):
        with pytest.raises(asyncio.CancelledError):
            last()
