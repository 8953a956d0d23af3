"""The HTTP front sends a request to its service, in any letter case and with doubled slashes."""

from __future__ import annotations

import httpx
import pytest
from muster_gateway.http_front import HttpFront, Target, respond
from muster_gateway.identity import Doorman
from muster_gateway.settings import GatewaySettings
from starlette.types import Receive, Scope, Send


def _called(name: str) -> Target:
    async def target(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, "text/plain", f"{name} {scope['path']}".encode())

    return target


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
    async def none() -> list[str]:
        return []

    front = HttpFront(_called("view"), _called("publisher"), Doorman(GatewaySettings()), lambda: True, none, none)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())  # as it is written
        answer = await client.send(request)
    if target is None:
        assert (answer.status_code, answer.text) == (404, "404 page not found\n")
    else:
        # (The service knows the right path, and redirects.)
        assert answer.text == f"{target} {path}"
