"""Services without authentication, and browsers that send requests for pages of other hosts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from muster_runtime.cross_site import for_programs
from muster_runtime.http_server import HttpServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def _hello(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


APP = Starlette(routes=[Route("/", _hello)])
TOLD = {"X-Muster-Identity": "anyone", "X-Muster-Role": "read"}


@asynccontextmanager
async def asked(*, private: bool) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(for_programs(APP, private=private))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9081") as client:
        yield client


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_a_page_of_another_host_is_refused(headers: dict[str, str], *, private: bool) -> None:
    async with asked(private=private) as client:
        answer = await client.get("/", headers=headers)
        assert answer.status_code == 403
        assert answer.json()["message"] == "it is a request of another host's page: ask the gateway"
        assert "access-control-allow-origin" not in answer.headers
        assert (await client.head("/", headers=headers)).content == b""
        # The gateway has admitted the requests that it passes on: an open front is open to every page.
        assert (await client.get("/", headers=headers | TOLD)).status_code == 200


@pytest.mark.parametrize(
    ("host", "private", "status"),
    [
        ("127.0.0.1:9081", True, 200),
        ("[::1]:9081", True, 200),
        ("localhost", True, 200),
        ("view:9081", True, 200),
        ("evil.example:9081", True, 403),
        ("10.0.0.1", True, 403),
        ("[2001:db8::1]", True, 403),
        ("", True, 403),
        ("view.cluster.example:9081", False, 200),
    ],
)
async def test_a_name_that_was_bound_to_the_loopback_is_found_out(host: str, status: int, *, private: bool) -> None:
    async with asked(private=private) as client:
        # After rebinding, the page has the same origin, and may claim to be the gateway.
        for headers in ({"Host": host}, {"Host": host} | TOLD):
            assert (await client.get("/", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("name", "ours", "foreign"),
    [
        ("Origin", "http://localhost:4200", "http://evil.example"),
        ("Host", "127.0.0.1:9081", "evil.example"),
        ("Sec-Fetch-Site", "same-origin", "cross-site"),
    ],
)
async def test_of_a_header_that_is_there_twice_each_value_counts(name: str, ours: str, foreign: str) -> None:
    async with asked(private=True) as client:
        for values, status in (((ours, ours), 200), ((ours, foreign), 403), ((foreign, ours), 403)):
            answer = await client.get("/", headers=[(name, value) for value in values])
            assert answer.status_code == status


async def test_programs_and_pages_of_this_machine_are_let_in() -> None:
    async with asked(private=True) as client:
        for headers in ({}, {"Origin": "http://localhost:4200", "Sec-Fetch-Site": "cross-site"}):
            assert (await client.get("/", headers=headers)).text == "hello"


@pytest.mark.parametrize("programs_only", [True, False])
async def test_the_server_checks_pages_if_configured(*, programs_only: bool) -> None:
    server = HttpServer(APP, "127.0.0.1:0", 1.0, programs_only=programs_only)
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert (await client.get("/", headers=headers)).status_code == (403 if programs_only else 200)
    await server.stop()
