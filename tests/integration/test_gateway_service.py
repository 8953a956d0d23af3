"""The gateway as a service: health, reflection, HTTP front, Redis sessions shared by two gateways."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import grpc
import httpx
import pytest
import uvicorn
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from integration.gateway_rig import Rig, asks, crash
from muster_bus.backends.memory import MemoryLog
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from waiting import eventually

ALLOCATION = StreamKind.ALLOCATION
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_gateway_that_is_not_ready_yet_looks_again_soon(world: Rig) -> None:
    ready = False

    async def condition() -> bool:
        return ready

    gateway = await world.gateway(ready_when=[condition], health_interval_s=600)
    stub = health_pb2_grpc.HealthStub(world.channel(gateway).grpc)
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    ready = True
    async with asyncio.timeout(30):
        while (await stub.Check(health_pb2.HealthCheckRequest())).status != SERVING:  # noqa: ASYNC110 - from outside
            await asyncio.sleep(0.01)


async def test_health_says_serving_while_everything_answers(world: Rig) -> None:
    other_is_ready = asyncio.Event()
    other_is_ready.set()

    async def condition() -> bool:
        return other_is_ready.is_set()

    gateway = await world.gateway(ready_when=[condition], health_interval_s=0.02, http_address="127.0.0.1:0")
    stub = health_pb2_grpc.HealthStub(world.channel(gateway).grpc)

    async def says(status: int) -> bool:
        answers = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("", "si.v1.Scheduler")]
        return all(answer.status == status for answer in answers)

    assert await says(SERVING)
    other_is_ready.clear()
    await eventually(lambda: says(NOT_SERVING), "a condition that does not hold counts")
    other_is_ready.set()
    await eventually(lambda: says(SERVING), "and once it holds, all is well")
    assert isinstance(world.log, MemoryLog)
    world.log.closed = True
    await eventually(lambda: says(NOT_SERVING), "the log is away")
    assert not await gateway.healthy()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text.splitlines()[0]) == (503, "NOT_SERVING")
        assert "the log does not answer" in answer.text
        assert (await client.get("/health/live")).text == "SERVING\n"
    world.log.closed = False


async def test_reflection_knows_the_interface(world: Rig) -> None:
    gateway = await world.gateway()
    stub = reflection_pb2_grpc.ServerReflectionStub(world.channel(gateway).grpc)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="si.v1.Scheduler"),
    ]
    answers = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {"si.v1.Scheduler", "grpc.health.v1.Health"} <= names
    files = answers[1].file_descriptor_response.file_descriptor_proto
    packages = {descriptor_pb2.FileDescriptorProto.FromString(file).package for file in files}
    assert "si.v1" in packages


async def test_an_address_that_is_taken_is_said(world: Rig) -> None:
    first = await world.gateway(http_address="127.0.0.1:0")
    with pytest.raises(OSError, match="grpc_address"):
        await world.gateway(grpc_address=f"127.0.0.1:{first.grpc_port}")
    with pytest.raises(OSError, match="http_address"):
        await world.gateway(http_address=f"127.0.0.1:{first.http_port}")


async def test_a_task_that_dies_takes_the_gateway_with_it(world: Rig) -> None:
    gateway = await world.gateway()
    reader = gateway._tails[0]._reader
    assert reader is not None
    await reader.close()
    with pytest.raises(Exception, match="closed"):
        await asyncio.wait_for(gateway.wait(), 60)
    await gateway.stop()


# ---- the HTTP front -----------------------------------------------------------------------------------------------


async def echo(request: Request) -> Response:
    body = await request.body()
    seen = {
        "path": request.scope["raw_path"].decode(),
        "query": request.url.query,
        "headers": dict(request.headers),
        "body": body.decode(),
        "method": request.method,
    }
    headers = {"connection": "x-hop", "x-hop": "1", "x-kept": "2", "content-encoding": "identity"}
    return Response(json.dumps(seen), status_code=201, headers=headers)


async def endless(_request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        for number in range(1_000_000):
            yield f"{number}\n".encode()
            await asyncio.sleep(0.005)

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def an_app() -> Starlette:
    methods = ["GET", "POST"]
    return Starlette(
        routes=[
            Route("/ws/v1/events/stream", endless),
            Route("/ws/v1/{rest:path}", echo, methods=methods),
            Route("/debug/{rest:path}", echo),
        ]
    )


class Upstream(uvicorn.Server):
    """A real HTTP server on a free port."""

    def install_signal_handlers(self) -> None: ...


@pytest.fixture(params=["url", "asgi"])
async def front(request: pytest.FixtureRequest, world: Rig) -> AsyncIterator[httpx.AsyncClient]:
    app = an_app()
    server = Upstream(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server._serve())
    await eventually(lambda: server.started, "the upstream listens")
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    settings = GatewaySettings(
        grpc_address="127.0.0.1:0", http_address="127.0.0.1:0", view_url=url, publisher_url=url, stop_grace_s=0.5
    )
    mounted = {"view": app, "publisher": app} if request.param == "asgi" else {}
    gateway = Gateway(settings, world.log, world.topics, world.sessions, world.clock, **mounted)
    await gateway.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60) as client:
        yield client
    await gateway.stop()
    server.should_exit = True
    server.force_exit = True
    await asyncio.wait({serving})


async def test_paths_queries_and_bodies_go_through_as_they_are(front: httpx.AsyncClient) -> None:
    answer = await front.post("/ws/v1/validate-conf?a=b%2Fc", content=b"partitions: []")
    seen = answer.json()
    assert answer.status_code == 201
    assert (seen["path"], seen["query"]) == ("/ws/v1/validate-conf", "a=b%2Fc")
    assert (seen["method"], seen["body"]) == ("POST", "partitions: []")
    answer = await front.get("/ws/v1/partition/default/queue/root%2Fa%20b")
    assert answer.json()["path"] == "/ws/v1/partition/default/queue/root%2Fa%20b"
    assert (await front.get("/debug/stack")).json()["path"] == "/debug/stack"


async def test_a_stream_flows_and_ends_when_the_client_goes(front: httpx.AsyncClient) -> None:
    async with front.stream("GET", "/ws/v1/events/stream") as answer:
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(3)] == ["0", "1", "2"]
    assert (await front.get("/health/live")).text == "SERVING\n"


async def test_events_in_other_letters_go_to_the_publisher(world: Rig) -> None:
    dead = "http://127.0.0.1:1"
    gateway = await world.gateway(http_address="127.0.0.1:0", view_url=dead, publisher_url=dead)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as client:
        for path in ("/ws/v1/events/batch", "/ws/v1/Events/batch", "/WS/V1/EVENTS/batch"):
            assert (await client.get(path)).json()["message"] == "The event publisher is not reachable, try again"


async def test_the_fronts_own_paths(front: httpx.AsyncClient) -> None:
    assert (await front.get("/health/ready")).status_code == 200
    assert (await front.get("/readyz")).content == b"SERVING\n"
    assert "muster_gateway_streams_open" in (await front.get("/metrics")).text
    unknown = await front.get("/nothing")
    assert (unknown.status_code, unknown.text) == (404, "404 page not found\n")
    assert unknown.headers["content-type"].startswith("text/plain")
    wrong = await front.post("/metrics")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_hop_by_hop_headers_stay_on_their_hop(world: Rig) -> None:
    async for client in _front_with(world, an_app()):
        answer = await client.get(
            "/ws/v1/x", headers={"connection": "x-mine", "x-mine": "1", "te": "gzip", "x-kept": "2"}
        )
        seen = answer.json()["headers"]
        assert "x-mine" not in seen
        assert "te" not in seen
        assert seen["x-kept"] == "2"
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert "x-hop" not in answer.headers
        assert answer.headers["x-kept"] == "2"
        assert len(answer.headers.get_list("date")) == 1


async def _front_with(world: Rig, app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    server = Upstream(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server._serve())
    await eventually(lambda: server.started, "the upstream listens")
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    gateway = await world.gateway(http_address="127.0.0.1:0", view_url=url)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as client:
        yield client
    server.should_exit = True
    server.force_exit = True
    await asyncio.wait({serving})


async def test_an_upstream_that_is_away_is_503_in_yunikorns_shape(world: Rig) -> None:
    gateway = await world.gateway(http_address="127.0.0.1:0", view_url="http://127.0.0.1:1")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as client:
        answer = await client.get("/ws/v1/partitions")
    assert answer.status_code == 503
    message = "The view is not reachable, try again"
    assert answer.json() == {"status_code": 503, "message": message, "description": message}
    assert answer.headers["content-type"] == "application/json; charset=UTF-8"


# ---- sessions shared in Redis ---------------------------------------------------------------------------------------


@pytest.mark.redis
async def test_two_gateways_with_redis_hand_an_rm_over(world: Rig, redis_url: str) -> None:
    settings = GatewaySettings(sessions_url=SecretStr(redis_url), sessions_prefix=f"test-{uuid.uuid4().hex}:")
    first = await world.gateway(sessions=make_sessions(settings, world.clock), lease_ttl_s=3.0)
    second = await world.gateway(sessions=make_sessions(settings, world.clock), lease_ttl_s=3.0)
    channel = await world.registered(first)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 3)
    assert await stream.take(3) == [2, 3, 4]
    await eventually(lambda: not first._table.all()[0].has_unsaved_position, "the position is stored")
    await crash(first)
    await world.scheduler.emit("rm", [ALLOCATION] * 2)
    await eventually(
        lambda: world.scheduler.states("rm")[-1] == "DISCONNECTED", "the second gateway sees the first one dead"
    )
    moved = world.channel(second).open(ALLOCATION, "rm")
    assert await moved.take(2) == [5, 6]
    await moved.send(asks("rm", "a"))
    assert [a.allocationKey for a in (await moved.receive()).new] == ["a"]
    assert world.scheduler.states("rm")[-1] == "RUNNING"


@pytest.mark.redis
async def test_a_stream_in_another_gateway_supersedes_an_idle_one(world: Rig, redis_url: str) -> None:
    settings = GatewaySettings(sessions_url=SecretStr(redis_url), sessions_prefix=f"test-{uuid.uuid4().hex}:")
    first = await world.gateway(sessions=make_sessions(settings, world.clock), lease_ttl_s=6.0)
    second = await world.gateway(sessions=make_sessions(settings, world.clock), lease_ttl_s=6.0)
    channel = await world.registered(first)
    older = channel.open(ALLOCATION, "rm")
    await eventually(lambda: first._table.all(), "the older stream is seated")
    newer = world.channel(second).open(ALLOCATION, "rm")
    code, _ = await older.status()
    assert code is grpc.StatusCode.ABORTED
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await newer.take(1) == [2]


async def test_an_oversized_message_ends_its_stream_only(world: Rig) -> None:
    gateway = await world.gateway(max_message_bytes=100_000)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await stream.send(asks("rm", *[f"{n:0200}" for n in range(2_000)]))
    code, _ = await stream.status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    again = channel.open(ALLOCATION, "rm")
    await again.send(asks("rm", "a"))
    await again.take(1)
