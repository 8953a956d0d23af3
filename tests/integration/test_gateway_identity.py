"""Callers over HTTP at a real gateway: 401, 403 and 200, streams, and the identity that its services get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_cli.probe import probe
from muster_client.access import Access
from muster_gateway import metrics
from muster_gateway.errors import UnprotectedListener
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_runtime.http_server import HttpServer
from muster_runtime.identity import identity_of
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from structlog.testing import capture_logs
from waiting import eventually

ADMIN, READER = "admin-token-0123456789", "reader-token-9876543210"
TOKENS = {"ops": {"role": "admin", "token": ADMIN}, "dashboard": {"role": "read", "token": READER}}
AS_ADMIN, AS_READER = {"Authorization": f"Bearer {ADMIN}"}, {"Authorization": f"Bearer {READER}"}


async def _echo(request: Request) -> Response:
    identity = identity_of(request.headers.raw)
    return JSONResponse(
        {
            "path": request.scope["raw_path"].decode(),
            "headers": request.headers.items(),
            "identity": [identity.name, identity.role],
        }
    )


async def _endless(_request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        for number in range(1_000_000):
            yield f"{number}\n".encode()
            await asyncio.sleep(0.005)

    return StreamingResponse(lines(), media_type="application/x-ndjson")


APP = Starlette(
    routes=[
        Route("/ws/v1/events/stream", _endless),
        Route("/{rest:path}", _echo, methods=["GET", "POST", "PUT", "OPTIONS"]),
    ]
)


@dataclass
class Front:
    """A gateway's front and its client."""

    gateway: Gateway
    client: httpx.AsyncClient

    async def status(self, method: str, path: str, headers: dict[str, str] | None = None) -> int:
        return (await self.client.request(method, path, headers=headers)).status_code


@asynccontextmanager
async def opened(behind: str = "asgi", **settings: Any) -> AsyncIterator[Front]:
    """Start a front with an application behind it: in this process, or behind a URL."""
    topics, clock = Topics(partitions=1), SystemClock()
    log = MemoryLog(topics.specs(), clock)
    await log.start()
    server = HttpServer(APP, "127.0.0.1:0", 1.0)
    await server.start()
    url = f"http://127.0.0.1:{server.port}"
    given = {
        "grpc_address": "127.0.0.1:0",
        "http_address": "127.0.0.1:0",
        "view_url": url,
        "publisher_url": url,
        "stop_grace_s": 0.05,
        **settings,
    }
    chosen = GatewaySettings.model_validate(given)
    mounted = {"view": APP, "publisher": APP} if behind == "asgi" else {}
    gateway = Gateway(chosen, log, topics, make_sessions(chosen, clock), clock, **mounted)
    await gateway.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60) as client:
            yield Front(gateway, client)
    finally:
        await gateway.stop()
        await server.stop()
        await log.close()


def _refused(reason: str) -> float:
    return REGISTRY.get_sample_value(f"{metrics.Metric.HTTP_REFUSED}_total", {"reason": reason}) or 0.0


async def _raw(port: int, head: str) -> str:
    """Return the answer to raw bytes, because clients of libraries normalize paths."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace("\n", "\r\n").encode() + b"Connection: close\r\n\r\n")
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_no_token_is_401_in_yunikorns_shape() -> None:
    before = _refused("no_token")
    async with opened(tokens=TOKENS) as front:
        answer = await front.client.get("/ws/v1/partitions")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="muster"'
        assert answer.headers["content-type"] == "application/json; charset=UTF-8"
        said = answer.json()
        assert said["status_code"] == 401
        assert said["message"] == said["description"]
        assert "Authorization: Bearer TOKEN" in said["message"]
        head = await front.client.head("/ws/v1/partitions")
        assert (head.status_code, head.content) == (401, b"")
    assert _refused("no_token") == before + 2


async def test_a_wrong_token_is_401_and_says_so() -> None:
    before = _refused("unknown_token")
    async with opened(tokens=TOKENS) as front:
        answer = await front.client.get("/metrics", headers={"Authorization": f"Bearer {ADMIN}0"})
        assert (answer.status_code, ADMIN in answer.text) == (401, False)
        assert answer.headers["www-authenticate"] == 'Bearer realm="muster", error="invalid_token"'
    assert _refused("unknown_token") == before + 1


async def test_each_role_gets_what_is_its() -> None:
    before = _refused("role")
    async with opened(tokens=TOKENS) as front:
        for method, path, needs_admin in (
            ("GET", "/ws/v1/partitions", False),
            ("POST", "/ws/v1/validate-conf", False),
            ("GET", "/metrics", False),
            ("GET", "/debug/stack", True),
            ("PUT", "/ws/v1/loglevel/debug", True),
            ("POST", "/ws/v1/partitions", True),
        ):
            assert await front.status(method, path) == 401
            assert await front.status(method, path, AS_READER) == (403 if needs_admin else 200)
            assert await front.status(method, path, AS_ADMIN) == 200
        answer = await front.client.get("/debug/stack", headers=AS_READER)
        assert answer.json()["message"] == "this needs the role admin, and dashboard has read"
        assert 'error="insufficient_scope", scope="admin"' in answer.headers["www-authenticate"]
    assert _refused("role") == before + 4


async def test_options_and_probes_need_none() -> None:
    async with opened(tokens=TOKENS) as front:
        assert await front.status("OPTIONS", "/ws/v1/partitions") == 200
        assert await front.status("OPTIONS", "/debug/stack") == 200
        for path in ("/livez", "/readyz", "/health/live", "/health/ready", "/ws/v1/health"):
            assert await front.status("GET", path) == 200
            assert await front.status("GET", path, {"Authorization": "Bearer whatever-it-may-be"}) == 200
        assert await front.status("GET", "/nothing") == 401
        assert await front.status("GET", "/nothing", AS_READER) == 404


async def test_a_probe_without_a_token_gets_only_the_status() -> None:
    async with opened(tokens=TOKENS) as front:
        address = f"http://127.0.0.1:{front.gateway.http_port}"
        assert isinstance(front.gateway._bus, MemoryLog)
        front.gateway._bus.closed = True
        assert (await front.client.get("/readyz")).text == "NOT_SERVING\n"
        assert (await front.client.get("/readyz", headers=AS_READER)).text.splitlines()[1:] == [
            "the log does not answer"
        ]
        assert await asyncio.to_thread(probe, address, 5.0) == (False, "NOT_SERVING\n")
        ready, said = await asyncio.to_thread(probe, address, 5.0, Access(token=READER))
        assert (ready, said) == (False, "NOT_SERVING\nthe log does not answer\n")
        front.gateway._bus.closed = False


@pytest.mark.parametrize("behind", ["asgi", "url"])
async def test_services_get_the_caller_and_never_a_token(behind: str) -> None:
    forged = {
        "X-Muster-Identity": "root",
        "X-Muster-Role": "admin",
        # A header that Connection names belongs to this hop only, and does not reach the service.
        "Connection": "x-muster-identity, x-muster-role",
    }
    async with opened(behind, tokens=TOKENS) as front:
        for path in ("/ws/v1/partitions", "/ws/v1/events/batch"):
            seen = (await front.client.get(path, headers={**AS_READER, **forged})).json()
            assert seen["identity"] == ["dashboard", "read"]
            names = [name for name, _ in seen["headers"]]
            assert names.count("x-muster-identity") == names.count("x-muster-role") == 1
            assert "authorization" not in names
            assert READER not in json.dumps(seen)


@pytest.mark.parametrize("behind", ["asgi", "url"])
async def test_on_the_loopback_every_caller_is_admin_and_claims_are_dropped(behind: str) -> None:
    async with opened(behind) as front:
        seen = await front.client.get("/debug/stack", headers={"x-muster-identity": "root", "x-muster-role": "none"})
        assert seen.json()["identity"] == ["loopback", "admin"]
        foreign = await front.client.get("/ws/v1/partitions", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 401
        assert "another host's page" in foreign.json()["message"]
        assert await front.status("GET", "/ws/v1/partitions", {"Host": "evil.example"}) == 401
        assert await front.status("GET", "/ws/v1/partitions", {"Host": "localhost:1"}) == 200


@pytest.mark.parametrize("behind", ["asgi", "url"])
async def test_no_path_leads_around_its_role(behind: str) -> None:
    async with opened(behind, tokens=TOKENS) as front:
        port = front.gateway.http_port
        for path, status in (
            ("/ws/v1/partitions/../../../debug/stack", 404),
            ("/ws/v1/./partitions", 404),
            ("/ws/v1/events/../../../debug/stack", 404),
            ("/ws/v1/x%2F..%2F..%2F..%2Fdebug/stack", 200),  # one part with slashes in it: no step
            ("//debug/stack", 403),
            ("/debug%2Fstack", 403),
            ("/DEBUG/stack", 403),
        ):
            head = f"GET {path} HTTP/1.1\nHost: muster\nAuthorization: Bearer {READER}\n"
            answer = await _raw(port, head)
            assert answer.startswith(f"HTTP/1.1 {status} "), path
            assert '"path":"/debug/stack"' not in answer.replace(" ", "")
        strange = await _raw(port, f"GET /ws/v1/x#/../y HTTP/1.1\nHost: muster\nAuthorization: Bearer {READER}\n")
        assert strange.startswith("HTTP/1.1 404 ")


@pytest.mark.parametrize("behind", ["asgi", "url"])
async def test_a_streams_role_is_looked_at_when_it_begins(behind: str) -> None:
    async with opened(behind, tokens=TOKENS) as front:
        assert await front.status("GET", "/ws/v1/events/stream") == 401
        async with front.client.stream("GET", "/ws/v1/events/stream", headers=AS_READER) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            assert [await anext(lines) for _ in range(3)] == ["0", "1", "2"]


async def test_a_wide_front_is_open_by_setting_and_logs_it() -> None:
    with capture_logs() as said:
        async with opened(http_address="0.0.0.0:0", http_open=True) as front:
            assert await front.status("GET", "/ws/v1/partitions", {"Host": "muster.example"}) == 200
            assert await front.status("GET", "/debug/stack") == 403
    told = [line for line in said if line["event"].startswith("http front is open")]
    assert [(line["log_level"], line["role"]) for line in told] == [("warning", "read")]
    with pytest.raises(UnprotectedListener):
        async with opened(http_address="0.0.0.0:0"):
            pytest.fail("it must not open")


@pytest.mark.parametrize(("address", "warned"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
async def test_an_open_grpc_port_says_so(address: str, *, warned: bool) -> None:
    with capture_logs() as said:
        async with opened(grpc_address=address, grpc_open=warned):
            pass
    told = [line for line in said if line["event"].startswith("grpc is open")]
    assert [line["log_level"] for line in told] == ["warning"] * warned


async def test_ipv6_and_ipv4_in_it_are_the_same_machine() -> None:
    try:
        async with opened(http_address="[::1]:0") as front:
            url = f"http://[::1]:{front.gateway.http_port}/debug/stack"
            assert (await front.client.get(url)).json()["identity"] == ["loopback", "admin"]
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    async with opened(http_address="[::ffff:127.0.0.1]:0") as front:
        assert (await front.client.get("/debug/stack")).json()["identity"] == ["loopback", "admin"]


async def test_a_token_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ADMIN}\n")
    async with opened(tokens={"ops": {"role": "admin", "token_file": str(file)}}) as front:
        assert await front.status("GET", "/debug/stack", AS_ADMIN) == 200
        assert await front.status("GET", "/debug/stack") == 401


async def test_the_log_has_caller_and_request_and_no_secret() -> None:
    with capture_logs() as said:
        async with opened(tokens=TOKENS) as front:
            await front.client.put("/ws/v1/loglevel/debug?password=secret-word", headers=AS_ADMIN)
            await front.client.get("/ws/v1/partitions", headers=AS_READER)
            await front.client.get("/debug/stack", headers=AS_READER)
            await eventually(lambda: any(line["event"] == "http request refused" for line in said), "it is told")
    requests = [line for line in said if line["event"] == "http request"]
    assert [(line["log_level"], line["identity"], line["role"], line["status"]) for line in requests] == [
        ("info", "ops", "admin", 200),
        ("debug", "dashboard", "read", 200),
    ]
    assert (requests[0]["method"], requests[0]["path"]) == ("PUT", "/ws/v1/loglevel/debug")
    refused = [line for line in said if line["event"] == "http request refused"]
    assert [(line["log_level"], line["status"]) for line in refused] == [("warning", 403)]
    assert "dashboard has read" in refused[0]["why"]
    assert not [line for line in said if any(word in str(line) for word in (ADMIN, READER, "secret-word"))]
