"""The HTTP front sends a request to its service, in any letter case and with doubled slashes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from counters import by_status
from muster_gateway.authentication import Authenticator
from muster_gateway.http_front import HttpBackend, HttpFront, respond
from muster_gateway.settings import GatewaySettings
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import unreachable
from muster_runtime.caller import Caller
from starlette.types import Receive, Scope, Send


def _called(name: str, status: int = 200) -> HttpBackend:
    async def target(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status, "text/plain", f"{name} {scope['path']}".encode())

    return target


async def _live() -> bool:
    return True


async def _fine() -> tuple[bool, list[str]]:
    return True, []


async def _well() -> SystemHealthDao:
    return unreachable("it is a test's", "", 0)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/ws/v1/partitions", "view"),
        ("/WS/v1/Partitions/", "view"),
        ("//ws//v1//partitions", "view"),
        ("/Debug/stack", "view"),
        ("/ws/v1/events/batch", "publisher"),
        ("/ws//v1/Events/Batch/", "publisher"),
        ("/ws/v1/usage", "publisher"),
        ("/ws/v1/partition/usage", "view"),
        ("/ws/v1", None),
        ("/ws", None),
        ("/x/ws/v1/partitions", None),
    ],
)
async def test_a_path_leads_to_its_service(path: str, target: str | None) -> None:
    front = HttpFront(_called("view"), _called("publisher"), Authenticator(GatewaySettings()), _live, _fine, _well)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())  # as it is written
        answer = await client.send(request)
    if target is None:
        assert (answer.status_code, answer.text) == (404, "404 page not found\n")
    else:
        # (The service knows the right path, and redirects.)
        assert answer.text == f"{target} {path}"


class Trail:
    """Takes audit entries."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, str, str]] = []

    def record_refused(self, caller: Caller, action: str, rm_id: str, error: Exception) -> None:
        self.entries.append((caller.method, action, rm_id, str(error)))

    def record_ended(self, *_: object) -> None:
        raise AssertionError("a read that may be made is not audited")


async def test_a_stream_without_a_place_is_audited_and_no_other_read() -> None:
    trail: Any = Trail()
    down = _called("publisher", 503)
    front = HttpFront(down, down, Authenticator(GatewaySettings()), _live, _fine, _well, audit=trail)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as client:
        for path in ("/ws/v1/events/batch?rm=mine", "/ws/v1/partitions", "/ws/v1/events/stream?rm=mine"):
            assert (await client.get(path)).status_code == 503
    assert trail.entries == [("GET /ws/v1/events/stream", "call", "mine", "status 503: no place for the stream")]


def _forwarded() -> dict[str, float]:
    """Return the requests that were sent to the view so far, by status."""
    return by_status("muster_gateway_http_forwarded", target="view")


async def _answers_nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """As where the client has left."""


async def _answers_never(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


async def _fails(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise KeyError


@pytest.mark.parametrize(
    ("target", "status"),
    [(_answers_nothing, "499"), (_answers_never, "499"), (_fails, "500"), (_called("view"), "200")],
)
async def test_a_request_whose_client_leaves_is_counted_as_such(target: HttpBackend, status: str) -> None:
    front = HttpFront(target, _called("publisher"), Authenticator(GatewaySettings()), _live, _fine, _well)
    before = _forwarded()
    asking = asyncio.create_task(front(_scope("/ws/v1/partitions"), _left, _into_nothing))
    await asyncio.wait([asking], timeout=0.05)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert _forwarded() == {**before, status: before.get(status, 0) + 1}


def _scope(path: str) -> Scope:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


async def _left() -> Any:
    return {"type": "http.disconnect"}


async def _into_nothing(_: Any) -> None:
    pass
