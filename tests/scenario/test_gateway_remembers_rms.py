"""A gateway whose session store forgot everything reads who is registered from what the real scheduler wrote."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
from muster_bus.clock import SystemClock
from muster_bus.engines import make_log
from muster_bus.settings import LogSettings
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.app import SchedulerService
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
    sessions._marked = False


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
        await eventually(sessions.marked, "the store is filled again")
        await stream.send(a_node("rm", "n1"))
        assert [item.nodeID for item in (await stream.receive()).accepted] == ["n1"]


async def test_meanwhile_no_rm_is_asked_to_register_again(parts: tuple) -> None:
    sessions = MemorySessions(CLOCK)
    async with serving(parts, sessions, lease_ttl_s=3600.0) as channel:  # no sweep comes to repair it
        await channel.register("rm")
        forget(sessions)
        code, details = await channel.open(StreamKind.NODE, "rm").status()
        assert code is grpc.StatusCode.UNAVAILABLE, details
        await sessions.mark()
        code, _ = await channel.open(StreamKind.NODE, "stranger").status()
        assert code is grpc.StatusCode.FAILED_PRECONDITION
