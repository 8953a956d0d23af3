"""muster.v1.Admin over real gRPC, with a scripted scheduler: answers, errors, undisturbed streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from integration.gateway_rig import PATIENCE_S, Rig, asks, crash, scheduler_silent
from muster_bus.errors import LogUnavailable
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.v1 import admin_pb2
from muster_proto.si.v1 import si_pb2
from virtual.plugin import advance

ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE
Code = grpc.StatusCode
Problem = admin_pb2.ConfigurationProblem


@pytest.fixture
def world(embedded: Rig) -> Rig:
    return embedded


async def status_of(call: Awaitable[Any]) -> tuple[Code, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


# ---- answers --------------------------------------------------------------------------------------------------------


async def test_an_accepted_configuration_is_answered_with_what_it_changed(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    answer = await channel.configure("rm", "good", extraConfig={"log.level": "DEBUG"}, policyGroup="queues")
    assert answer == admin_pb2.UpdateConfigurationResponse(
        accepted=True,
        changes=["[default] root.a maxapplications: not set -> 3"],
        problems=[Problem(severity=Problem.WARNING, path="checksum", line=9, column=1, message="has no effect")],
    )
    (body,) = world.scheduler.bodies("rm", "configuration")
    sent = si_pb2.UpdateConfigurationRequest.FromString(body)
    assert (sent.config, sent.policyGroup, dict(sent.extraConfig)) == ("good", "queues", {"log.level": "DEBUG"})


async def test_a_refused_configuration_is_an_answer_with_every_problem_and_its_place(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    answer = await channel.configure("rm", "bad")
    assert not answer.accepted
    assert not answer.changes
    assert [(each.severity, each.path, each.line, each.column, each.message) for each in answer.problems] == [
        (Problem.ERROR, "partitions[0].name", 3, 5, "is bad"),
        (Problem.WARNING, "checksum", 9, 1, "has no effect"),
    ]


async def test_many_updates_at_once_are_each_answered(world: Rig) -> None:
    gateway = await world.gateway()
    channel = world.channel(gateway)
    for rm_id in ("rm1", "rm2"):
        await channel.register(rm_id)
    texts = ["good" if number % 3 else "bad" for number in range(30)]
    answers = await asyncio.gather(*(channel.configure(f"rm{n % 2 + 1}", text) for n, text in enumerate(texts)))
    assert [answer.accepted for answer in answers] == [text == "good" for text in texts]
    assert all(tail._waiting == {} and tail._waiting_keys == {} for tail in gateway._tails)


# ---- streams and sessions -------------------------------------------------------------------------------------------


async def test_no_stream_notices_on_any_gateway(world: Rig) -> None:
    gateways = [await world.gateway(), await world.gateway()]
    channels = [await world.registered(gateways[0]), world.channel(gateways[1])]
    streams = [channels[0].open(ALLOCATION, "rm"), channels[1].open(NODE, "rm")]
    await advance()
    assert all(gateway._table.all() for gateway in gateways), "each gateway has a stream"
    await world.scheduler.emit("rm", [ALLOCATION, NODE])
    before = await world.sessions.get("rm")
    for number in range(5):
        assert (await channels[number % 2].configure("rm", "good")).accepted
        assert not (await channels[number % 2].configure("rm", "bad")).accepted
    await world.scheduler.emit("rm", [ALLOCATION, NODE])
    assert await streams[0].take(2) == [2, 4]
    assert await streams[1].take(2) == [3, 5]
    assert await world.sessions.get("rm") == before
    await streams[0].send(asks("rm", "a"))
    assert await streams[0].take(1) == [6]


async def test_a_stream_that_lags_passes_over_the_answers(world: Rig) -> None:
    gateway = await world.gateway(queue_responses=2, read_batch=3)
    channel = await world.registered(gateway)
    for number in range(6):
        await world.scheduler.emit("rm", [ALLOCATION] * 3)
        await channel.configure("rm", "good" if number % 2 else "bad")
    assert await channel.open(ALLOCATION, "rm").take(18) == list(range(2, 20))


async def test_a_rebuilt_session_is_not_misled_by_an_answer(world: Rig) -> None:
    """Responses from before the update belong to the present registration, and are still delivered."""
    channel = await world.registered(await world.gateway())
    await world.scheduler.emit("rm", [ALLOCATION] * 3)
    await channel.configure("rm", "good")
    fresh = await world.gateway(sessions=MemorySessions(world.clock))
    stream = world.channel(fresh).open(ALLOCATION, "rm")
    assert await stream.take(3) == [2, 3, 4]
    await world.channel(fresh).configure("rm", "good")
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await stream.take(1) == [5]


@pytest.mark.parametrize("text", ["good", "bad"])
async def test_an_answer_behind_a_registration_is_no_response_number(world: Rig, text: str) -> None:
    """A client resumes after its registration, and only an answer without a number follows."""
    channel = await world.registered(await world.gateway())
    await channel.configure("rm", text)
    stream = channel.open(ALLOCATION, "rm", resume_after=1)
    async with asyncio.timeout(PATIENCE_S):
        await stream.call.initial_metadata()
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await stream.take(1) == [2]


async def test_after_a_crash_of_the_gateway_the_streams_go_on(world: Rig) -> None:
    gateway = await world.gateway(lease_ttl_s=0.3)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    await channel.configure("rm", "good")
    await crash(gateway)
    other = await world.gateway(lease_ttl_s=0.3)
    again = world.channel(other).open(ALLOCATION, "rm", resume_after=2)
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await again.take(1) == [3]


# ---- errors ---------------------------------------------------------------------------------------------------------


async def test_an_rm_that_is_not_there_is_said_and_nothing_reaches_the_log(world: Rig) -> None:
    channel = world.channel(await world.gateway())
    code, details = await status_of(channel.configure("rm", "good"))
    assert (code, details) == (
        Code.FAILED_PRECONDITION,
        "rmID 'rm' is not registered: call RegisterResourceManager first",
    )
    assert world.scheduler.bodies("rm", "configuration") == []


async def test_a_stopped_rm_is_said_a_paused_one_is_configured(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    stream.cancel()
    await advance()
    assert world.scheduler.states("rm")[-1] == "DISCONNECTED", "the gateway has noticed"
    assert (await channel.configure("rm", "good")).accepted
    assert world.scheduler.states("rm")[-1] == "DISCONNECTED", "an update is no sign of life of the RM"
    await channel.open(NODE, "rm", muster_shutdown="true").status()
    code, details = await status_of(channel.configure("rm", "good"))
    assert (code, details) == (
        Code.FAILED_PRECONDITION,
        "rmID 'rm' is stopped (the RM shut down): register again",
    )


async def test_a_silent_scheduler_is_reported_in_time_and_a_late_answer_is_ignored(world: Rig) -> None:
    gateway = await world.gateway(registration_timeout_s=3.0, max_registrations_waiting=1)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await advance()
    assert gateway._table.all(), "the stream is seated"
    world.scheduler.mute = True
    code, details = await status_of(channel.configure("rm", "good"))
    assert code is Code.UNAVAILABLE
    assert re.fullmatch(f"{scheduler_silent()}: update it again", details)
    world.scheduler.mute = False
    (late,) = [request for request in world.scheduler.requests if request.WhichOneof("body") == "configuration"]
    partition = world.topics.partition_of("rm")
    await world.scheduler._owners[partition].commit(world.scheduler._configure(late), None)
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await stream.take(1) == [2]
    assert (await channel.configure("rm", "good")).accepted, "its place is free again"


async def test_a_log_that_takes_nothing_is_said(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    writer = gateway._writer
    assert writer is not None
    append = writer.append

    def failing(_record: object) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(LogUnavailable("broker away"))
        return future

    writer.append = failing  # type: ignore[method-assign,assignment]
    code, details = await status_of(channel.configure("rm", "good"))
    assert (code, details) == (
        Code.UNAVAILABLE,
        "the log does not take the configuration update (LogUnavailable): update it again",
    )
    writer.append = append  # type: ignore[method-assign]
    assert (await channel.configure("rm", "good")).accepted


async def test_only_so_many_wait_together_with_registrations(world: Rig) -> None:
    gateway = await world.gateway(max_registrations_waiting=1)
    channel = await world.registered(gateway)
    world.scheduler.mute = True
    waiting = asyncio.create_task(channel.configure("rm", "good"))
    await advance()
    assert world.scheduler.bodies("rm", "configuration"), "the first one is under way"
    for call in (channel.configure("rm", "good"), channel.register("other")):
        code, details = await status_of(call)
        assert (code, details) == (
            Code.RESOURCE_EXHAUSTED,
            "1 requests wait for the scheduler already: try again",
        )
    world.scheduler.mute = False
    (first,) = [request for request in world.scheduler.requests if request.WhichOneof("body") == "configuration"]
    partition = world.topics.partition_of("rm")
    await world.scheduler._owners[partition].commit(world.scheduler._configure(first), None)
    assert (await waiting).accepted
    assert (await channel.configure("rm", "good")).accepted, "a place is free again"


async def test_a_gateway_that_stops_says_so(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    assert gateway._admin is not None
    gateway._admin.stopping = True
    code, details = await status_of(channel.configure("rm", "good"))
    assert code is Code.UNAVAILABLE
    assert details.startswith("this gateway is stopping")


async def test_a_defect_ends_in_a_number_not_in_a_traceback(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    gateway._codec.configuration = None  # type: ignore[method-assign,assignment]
    code, details = await status_of(channel.configure("rm", "good"))
    assert code is Code.INTERNAL
    assert details.startswith("internal error ")
    assert "NoneType" not in details


# ---- to be found ----------------------------------------------------------------------------------------------------


async def test_reflection_and_health_list_it(world: Rig) -> None:
    gateway = await world.gateway(health_interval_s=0.02)
    channel = world.channel(gateway)
    stub = reflection_pb2_grpc.ServerReflectionStub(channel.grpc)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="muster.v1.Admin"),
    ]
    answers = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
    assert "muster.v1.Admin" in {service.name for service in answers[0].list_services_response.service}
    files = answers[1].file_descriptor_response.file_descriptor_proto
    packages = {descriptor_pb2.FileDescriptorProto.FromString(file).package for file in files}
    assert "muster.v1" in packages
    health = health_pb2_grpc.HealthStub(channel.grpc)
    answer = await health.Check(health_pb2.HealthCheckRequest(service="muster.v1.Admin"))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
