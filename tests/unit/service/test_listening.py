"""Addresses, and the HTTP server that every service has."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from muster_runtime.addresses import ListenAddress, OptionalListenAddress, host_of_peer, listen, parse_address
from muster_runtime.http_server import HttpServer
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("127.0.0.1:9081", ("127.0.0.1", 9081)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses(text: str, pair: tuple[str, int]) -> None:
    assert parse_address("x", text) == pair


@pytest.mark.parametrize(
    "text",
    ["", "9081", ":9081", "host:", "host:65536", "host:x", "host:-1", "host:\u0661", "::1:80", "[host:80", "[]:80",
     "[host]:80", "http://host:80", "ho st:80"],
)  # fmt: skip
def test_an_invalid_address_is_named_with_the_expectation(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port with a port from 0 to 65535") as raised:
        parse_address("http_address", text)
    assert str(raised.value).startswith(f"http_address {text!r}: ")


def test_a_taken_address_and_an_unknown_host_are_named() -> None:
    with listen("first", "127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"second: {address} is taken by another process"):
            listen("second", address)
    with pytest.raises(OSError, match=r"far: 192\.0\.2\.1:0 cannot be listened on"):
        listen("far", "192.0.2.1:0")  # an address of nobody's machine (RFC 5737)


async def _who(request: Request) -> PlainTextResponse:
    assert request.client is not None
    return PlainTextResponse(request.client.host)


async def _endless(request: Request) -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        yield b"first\n"
        await asyncio.Event().wait()

    return StreamingResponse(lines())


APP = Starlette(routes=[Route("/who", _who), Route("/endless", _endless)])


@asynccontextmanager
async def served(stop_timeout_s: float = 1.0) -> AsyncIterator[tuple[HttpServer, asyncio.Task[None]]]:
    server = HttpServer(APP, "127.0.0.1:0", stop_timeout_s)
    serving = asyncio.create_task(server.serve())
    await asyncio.wait_for(server.wait_started(), 5)
    try:
        yield server, serving
    finally:
        server.kill()
        await asyncio.wait({serving}, timeout=5)


async def test_small_answers_are_sent_at_once() -> None:
    with listen("x", "127.0.0.1:0") as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def test_a_client_cannot_set_its_own_address() -> None:
    async with served() as (server, _), httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        answer = await client.get("/who", headers={"x-forwarded-for": "203.0.113.9"})
        assert answer.text == "127.0.0.1"
        assert "server" not in answer.headers


async def test_an_early_connection_is_answered_once_the_server_serves() -> None:
    server = HttpServer(APP, "127.0.0.1:0", 1.0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=5) as client:
        early = asyncio.create_task(client.get("/who"))
        await server.start()
        assert (await early).status_code == 200
    await server.stop()


async def test_signals_stay_with_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with served():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_it_ends_though_an_answer_never_does(how: str) -> None:
    async with served() as (server, serving), httpx.AsyncClient(timeout=30) as client:
        async with client.stream("GET", f"http://127.0.0.1:{server.port}/endless") as answer:
            assert await anext(answer.aiter_lines()) == "first"
            if how == "stop":
                await asyncio.wait_for(server.stop(), 10)
            else:
                server.kill()
            await asyncio.wait_for(serving, 10)
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{server.port}/who")


async def test_one_that_never_served_gives_its_port_back() -> None:
    server = HttpServer(APP, "127.0.0.1:0", 1.0)
    await server.stop()
    listen("again", f"127.0.0.1:{server.port}").close()


async def test_an_end_before_it_served_is_an_error() -> None:
    server = HttpServer(APP, "127.0.0.1:0", 1.0)
    server._socket.close()
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid"):
        await asyncio.wait_for(server.start(), 5)
    with pytest.raises(OSError, match=r"http_address .* ended before it served"):
        await server.wait_started()


class _Settings(BaseModel):
    grpc_address: ListenAddress = "127.0.0.1:0"
    http_address: OptionalListenAddress = ""


@pytest.mark.parametrize(("field", "value"), [("grpc_address", ""), ("grpc_address", "x"), ("http_address", "9080")])
def test_a_setting_that_is_no_address_is_named(field: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"{field} '{value}': expected host:port"):
        _Settings.model_validate({field: value})
    assert _Settings(http_address="[::1]:80").http_address == "[::1]:80"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:[::1]:5000", "::1"),
        ("ipv6:%5Bfe80::1%5D:5000", "fe80::1"),
        ("unix:/run/muster.sock", "unix:/run/muster.sock"),
        ("", ""),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of_peer(peer) == host
