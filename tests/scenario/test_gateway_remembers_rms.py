"""A gateway whose session store forgot everything reads who is registered from what the real scheduler wrote."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_gateway.service import Gateway
from muster_gateway.sessions.contract import Session
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from waiting import eventually

from tests.integration.gateway_rig import Channel

CLOCK = SystemClock()


@pytest.fixture
async def parts() -> AsyncIterator[tuple]:
    settings = LogSettings(backend="memory", topic_prefix=f"{uuid.uuid4()}.", partitions=2)
    log = make_log(settings, CLOCK)
    await log.start()
    scheduler = SchedulerService(SchedulerSettings(), log, settings.topics(), CLOCK)
    await scheduler.start()
    try:
        yield log, settings.topics()
    finally:
        await scheduler.stop()
        await log.close()


@contextlib.asynccontextmanager
async def serving(parts: tuple, sessions: MemorySessions, lease_ttl_s: float = 0.3) -> AsyncIterator[Channel]:
    settings = GatewaySettings(grpc_address="127.0.0.1:0", http_address="", lease_ttl_s=lease_ttl_s, stop_grace_s=0.2)
    gateway = Gateway(settings, *parts, sessions, CLOCK)
    await gateway.start()
    channel = Channel(gateway.grpc_port)
    try:
        yield channel
    finally:
        await channel.close()
        await gateway.stop()


def forget(sessions: MemorySessions) -> None:
    for content in (sessions._sessions, sessions._cursors, sessions._leases):
        content.clear()
    sessions._filling.clear()
    sessions._filled = ""


def a_node(rm_id: str, node_id: str) -> si.NodeRequest:
    return si.NodeRequest(rmID=rm_id, nodes=[si.NodeInfo(nodeID=node_id, action=si.NodeInfo.CREATE)])


@pytest.mark.parametrize("rm_id", ["rm", "a/b%c", "rm/rm/-"])
async def test_a_second_gateway_with_an_empty_store_knows_the_rm(parts: tuple, rm_id: str) -> None:
    async with serving(parts, MemorySessions(CLOCK)) as channel:
        await channel.register(rm_id)
    async with serving(parts, MemorySessions(CLOCK)) as channel:
        stream = channel.open(StreamKind.NODE)
        await stream.send(a_node(rm_id, "n"))
        assert [item.nodeID for item in (await stream.receive()).accepted] == ["n"]


async def test_an_rm_lives_through_the_loss_of_the_store(parts: tuple) -> None:
    sessions = MemorySessions(CLOCK)
    async with serving(parts, sessions) as channel:
        await channel.register("rm")
        stream = channel.open(StreamKind.NODE, "rm")
        await stream.send(a_node("rm", "n0"))
        await stream.receive()
        forget(sessions)
        await eventually(sessions.filled, "the store is filled again")
        await stream.send(a_node("rm", "n1"))
        assert [item.nodeID for item in (await stream.receive()).accepted] == ["n1"]


class LostOnce(MemorySessions):
    """Has lost its content when it is read next; another gateway has filled it again right after that."""

    is_lost = False

    async def get(self, rm_id: str) -> Session | None:
        if self.is_lost:
            self.is_lost, self._filled = False, "by another gateway"
            return None
        return await super().get(rm_id)

    async def all(self) -> list[Session]:
        if self.is_lost:
            self.is_lost, self._filled = False, "by another gateway"
            return []
        return await super().all()


async def test_a_store_that_is_full_again_when_the_gateway_looks_twice_refuses_no_rm(parts: tuple) -> None:
    sessions = LostOnce(CLOCK)
    async with serving(parts, sessions, lease_ttl_s=3600.0) as channel:
        await channel.register("rm")
        sessions.is_lost = True
        code, details = await channel.open(StreamKind.NODE, "rm").status()
        assert code is grpc.StatusCode.UNAVAILABLE, details
        stream = channel.open(StreamKind.NODE, "rm")
        await stream.send(a_node("rm", "n0"))
        assert [item.nodeID for item in (await stream.receive()).accepted] == ["n0"]


async def test_such_a_store_ends_no_stream(parts: tuple) -> None:
    sessions = LostOnce(CLOCK)
    async with serving(parts, sessions) as channel:
        await channel.register("rm")
        stream = channel.open(StreamKind.NODE, "rm")
        await stream.send(a_node("rm", "n0"))
        await stream.receive()
        sessions.is_lost = True
        await eventually(lambda: not sessions.is_lost, "a sweep has read it")
        renewed = dict(sessions._leases)
        await eventually(lambda: sessions._leases != renewed, "the next sweep has begun")
        await stream.send(a_node("rm", "n1"))
        assert [item.nodeID for item in (await stream.receive()).accepted] == ["n1"]


class LostWhileFilled(MemorySessions):
    """Loses its content when the first session is added."""

    losses = 0

    async def compare_and_set(self, session: Session) -> bool:
        done = await super().compare_and_set(session)
        if not self.losses:
            self.losses += 1
            await self.clear()
        return done


async def test_a_store_that_loses_its_content_while_it_is_filled_is_filled_again(parts: tuple) -> None:
    async with serving(parts, MemorySessions(CLOCK)) as channel:
        await channel.register("rm")
    sessions = LostWhileFilled(CLOCK)
    async with serving(parts, sessions) as channel:
        stream = channel.open(StreamKind.NODE, "rm")
        await stream.send(a_node("rm", "n"))
        assert [item.nodeID for item in (await stream.receive()).accepted] == ["n"]
    assert sessions.losses == 1


async def test_meanwhile_no_rm_is_asked_to_register_again(parts: tuple) -> None:
    sessions = MemorySessions(CLOCK)
    async with serving(parts, sessions, lease_ttl_s=3600.0) as channel:  # no sweep comes to repair it
        await channel.register("rm")
        forget(sessions)
        code, details = await channel.open(StreamKind.NODE, "rm").status()
        assert code is grpc.StatusCode.UNAVAILABLE, details
        await sessions.begin_fill("by another gateway")
        await sessions.end_fill("by another gateway")
        code, _ = await channel.open(StreamKind.NODE, "stranger").status()
        assert code is grpc.StatusCode.FAILED_PRECONDITION
