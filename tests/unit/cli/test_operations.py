"""Health, metrics, addresses and the probe."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent import futures
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from muster_cli import addresses, health_app
from muster_cli.errors import UsageError
from muster_cli.probe import probe
from muster_runtime.http_server import HttpServer
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

asked = Counter("muster_test_asked", "Counts in this test.")


async def _good() -> list[str]:
    return []


async def _bad() -> list[str]:
    return ["the log does not answer"]


async def _raises() -> list[str]:
    raise OSError("lost")


async def _hangs() -> list[str]:
    await asyncio.Event().wait()
    return []


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    server = HttpServer(app, "127.0.0.1:0", health_app.STOP_TIMEOUT_S)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("check", "problems"),
    [
        (_good, []),
        (_bad, ["b: the log does not answer"]),
        (_raises, ["b: it cannot say how it is: OSError"]),
        (_hangs, ["b: no answer in 0.05 s"]),
    ],
    ids=["good", "bad", "raises", "hangs"],
)
async def test_ready_is_what_every_service_says(
    check: health_app.ProblemCheck, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_app, "HEALTH_TIMEOUT_S", 0.05)
    status = 503 if problems else 200
    async with served(health_app.operations_app({"a": _good, "b": check})) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/health/ready")
        assert answer.status_code == status
        assert answer.json()["problems"] == problems
        assert answer.json()["services"] == {"a": "ready", "b": "ready" if status == 200 else "not ready"}
        assert (await client.get(f"{url}/health/live")).status_code == 200
        assert (await asyncio.to_thread(probe, url, 2.0))[0] is (status == 200)


@pytest.mark.parametrize(("healthy", "status"), [(True, 200), (False, 503)])
async def test_a_ready_service_shows_its_problem(healthy: bool, status: int) -> None:
    async def check() -> bool:
        return healthy

    app = health_app.operations_app({"b": _bad}, healthy={"b": check})
    async with served(app) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/health/ready")
        assert (answer.status_code, answer.json()["problems"]) == (status, ["b: the log does not answer"])
        assert answer.json()["services"] == {"b": "ready" if healthy else "not ready"}


async def test_metrics_are_exposed_and_the_rest_goes_to_the_service() -> None:
    service = Starlette(routes=[Route("/ws/v1/x", lambda request: PlainTextResponse("from the service"))])
    asked.inc()
    async with served(health_app.operations_app({}, service)) as url, httpx.AsyncClient() as client:
        assert "muster_test_asked_total 1.0" in (await client.get(f"{url}/metrics")).text
        assert (await client.get(f"{url}/ws/v1/x")).text == "from the service"
        assert (await client.get(f"{url}/absent")).status_code == 404


def test_a_taken_port_is_said_with_the_setting_and_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--grpc-address: {address} is taken by another process"):
            addresses.check_free("--grpc-address", address)
    addresses.check_free("--grpc-address", address)
    addresses.check_free("--grpc-address", "")


@pytest.mark.parametrize("address", ["9090", "host", ":9090", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:x"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="expected host:port"):
        addresses.check_free("--http-address", address)


@pytest.mark.parametrize("address", ["127.0.0.1:9090", "ftp://127.0.0.1", "grpc://"])
def test_services_that_cannot_be_probed(address: str) -> None:
    with pytest.raises(UsageError, match="expected grpc://"):
        probe(address, 1.0)


@pytest.mark.parametrize("status", ["SERVING", "NOT_SERVING"])
def test_the_probe_asks_grpc_health(status: str) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert probe(f"grpc://127.0.0.1:{port}", 5.0) == (status == "SERVING", status)
    finally:
        server.stop(0)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_no_answer_is_not_ready(scheme: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ready, said = probe(f"{scheme}://127.0.0.1:{closed.getsockname()[1]}", 2.0)
    assert not ready
    assert said
