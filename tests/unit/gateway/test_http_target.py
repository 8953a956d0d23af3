"""Clients of a gateway that stall, read or send slowly, leave, or give two lengths of their body, and their effects on
the services behind the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from muster_gateway import http_forwarder
from muster_gateway.http_forwarder import HttpForwarder
from muster_runtime.http_server import HttpServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

PIECE = b"x" * (64 << 10)
PATIENCE_S = 60.0


@dataclass
class Behind:
    """A service. By path: ``/endless`` sends as fast as the client reads, ``/seldom`` a line on the test's demand,
    ``/slow`` nothing until the test's demand. All of them notice when the client stops reading."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(scope["path"], send))
        while (await receive())["type"] != "http.disconnect":
            pass
        answering.cancel()
        self.left.set()

    async def _answer(self, path: str, send: Send) -> None:
        self.began.set()
        if path == "/slow":
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        while True:
            if path == "/seldom":
                await self.go.wait()
                self.go.clear()
            await send(
                {"type": "http.response.body", "body": PIECE if path == "/endless" else b"line\n", "more_body": True}
            )
            if path == "/slow":
                break
            await asyncio.sleep(0)  # sending to nobody takes no time at all
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass
class Front:
    behind: Behind
    port: int

    async def ask(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        return reader, writer


@asynccontextmanager
async def fronted(stalled_s: float) -> AsyncIterator[Front]:
    behind = Behind()
    service = HttpServer(behind, "127.0.0.1:0", 1.0)
    await service.start()
    target = HttpForwarder(f"http://127.0.0.1:{service.port}", "view", 5.0, stalled_s=stalled_s)
    server = HttpServer(target, "127.0.0.1:0", 1.0)
    await server.start()
    try:
        yield Front(behind, server.port)
    finally:
        await target.close()
        for each in (server, service):
            each.kill()
            await each.stop()


async def noticed(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def test_a_reader_that_takes_nothing_is_cut_and_the_service_behind_is_free_of_it() -> None:
    async with fronted(stalled_s=0.2) as front:
        reader, writer = await front.ask("/endless")
        await noticed(front.behind.left)
        # Data on its way arrives; then the connection breaks off without the body's end.
        last = b""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                while piece := await reader.read(1 << 20):
                    last = (last + piece)[-5:]
        assert last != b"0\r\n\r\n"
        writer.close()


async def test_a_client_that_reads_a_little_each_time_is_not_cut() -> None:
    async with fronted(stalled_s=PATIENCE_S) as front:
        reader, writer = await front.ask("/endless")
        taken = 0
        async with asyncio.timeout(PATIENCE_S):
            while taken < 64 * len(PIECE):
                piece = await reader.read(16 << 10)
                assert piece
                taken += len(piece)
                await asyncio.sleep(0.001)
        assert not front.behind.left.is_set()
        writer.close()
        await noticed(front.behind.left)


async def test_a_silent_service_is_no_stalled_reader() -> None:
    async with fronted(stalled_s=0.1) as front:
        reader, writer = await front.ask("/seldom")
        for _ in range(3):
            front.behind.go.set()
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"line\n")
            await asyncio.sleep(0.15)  # longer than a reader may stall
        assert not front.behind.left.is_set()
        writer.close()


async def test_a_client_that_leaves_before_the_answer_begins_cancels_the_request() -> None:
    async with fronted(stalled_s=PATIENCE_S) as front:
        _, writer = await front.ask("/slow")
        await noticed(front.behind.began)
        writer.close()
        await noticed(front.behind.left)


async def test_an_answer_that_begins_late_comes_whole() -> None:
    async with fronted(stalled_s=PATIENCE_S) as front:
        reader, writer = await front.ask("/slow")
        await noticed(front.behind.began)
        await asyncio.sleep(0.3)  # longer than it takes until the client is watched
        front.behind.go.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"line\n\r\n0\r\n\r\n")
        writer.close()


# ---- bodies ---------------------------------------------------------------------------------------------------------


async def _told(request: Request) -> JSONResponse:
    names = [name for name, _ in request.headers.items()]
    body = await request.body() if request.method == "POST" else b""
    return JSONResponse({"method": request.method, "path": request.url.path, "names": names, "size": len(body)})


async def _unread(_request: Request) -> JSONResponse:
    return JSONResponse("too much")


TELLING = Starlette(
    routes=[
        Route("/unread", _unread, methods=["POST"]),
        Route("/{rest:path}", _told, methods=["GET", "POST", "PUT", "OPTIONS"]),
    ]
)


@asynccontextmanager
async def telling(body_s: float = PATIENCE_S) -> AsyncIterator[int]:
    service = HttpServer(TELLING, "127.0.0.1:0", 1.0)
    await service.start()
    target = HttpForwarder(f"http://127.0.0.1:{service.port}", "view", 5.0, body_s=body_s)
    server = HttpServer(target, "127.0.0.1:0", 1.0)
    await server.start()
    try:
        yield server.port
    finally:
        await target.close()
        for each in (server, service):
            each.kill()
            await each.stop()


async def said_to(port: int, method: str, path: str, headers: str = "", body: bytes = b"") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode() + body)
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):  # (it may be ended before all of a body was read)
            while piece := await reader.read(4096):
                said += piece
    writer.close()
    return said.decode()


async def test_large_slow_bodies_do_not_use_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_forwarder, "BODIES_BYTES_MAX", 100_000)
    async with telling() as port:
        slow_reader, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(
            b"POST /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 80000\r\n\r\n" + b"x" * 79_999
        )
        length, body = "Content-Length: 80000\r\n", b"y" * 80_000
        async with asyncio.timeout(PATIENCE_S):
            while "503" not in (said := await said_to(port, "POST", "/other", length, body)):
                assert '"size":80000' in said, "the slow one has not sent enough yet"
        assert "try again" in said
        assert "retry-after: 1" in said
        assert '"size":10' in await said_to(port, "POST", "/small", "Content-Length: 10\r\n", b"z" * 10)
        slow.write(b"x")
        assert b'"size":80000' in await asyncio.wait_for(slow_reader.read(), PATIENCE_S)
        slow.close()
        assert '"size":80000' in await said_to(port, "POST", "/again", length, body)


CHUNKED = "Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /debug/fullstatedump HTTP/1.1\r\nHost: x\r\nX-Muster-Role: admin\r\n\r\n"


@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
async def test_a_body_of_two_lengths_takes_nothing_of_the_next_request(method: str) -> None:
    """Otherwise a client without a role (OPTIONS) could make the service read a second request as the gateway's own."""
    async with telling() as port:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
        said = await said_to(port, method, "/first", f"{CHUNKED}Content-Length: 300\r\n", body)
        assert said.startswith("HTTP/1.1 400 ")
        for _ in range(3):
            said = await said_to(port, "GET", "/second")
            assert said.count("HTTP/1.1 200 OK") == 1
            assert '"path":"/second"' in said


async def test_the_body_of_a_request_without_a_role_is_not_read() -> None:
    async with telling() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # (The body never comes, and nobody waits for it.)
        writer.write(b"OPTIONS /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            said = await reader.readuntil(b"}")
        assert not {b"content-length", b"transfer-encoding"} & {*said.partition(b'"names"')[2].split(b'"')}
        writer.close()


async def test_a_body_comes_whole_however_it_is_sent() -> None:
    async with telling() as port:
        for size in (0, 1, 300 << 10, 2 << 20):
            body = b"x" * size
            for headers, sent in (
                (f"Content-Length: {size}\r\nExpect: nonsense\r\n", body),
                (CHUNKED, (b"%x\r\n%b\r\n" % (size, body) if size else b"") + b"0\r\n\r\n"),
            ):
                assert f'"size":{size}}}' in await said_to(port, "POST", "/x", headers, sent)


async def test_a_body_that_is_answered_before_it_ends_spoils_no_connection() -> None:
    async with telling() as port:
        for _ in range(3):
            body = SMUGGLED + b"x" * (2 << 20)
            await said_to(port, "POST", "/unread", f"Content-Length: {len(body)}\r\n", body)
            assert '"path":"/second"' in await said_to(port, "GET", "/second")


async def test_a_slow_body_uses_no_connection_and_is_refused_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_forwarder, "_MAX_CONNECTIONS", 1)
    async with telling(body_s=1.5) as port:
        slow = asyncio.create_task(said_to(port, "POST", "/slow", "Content-Length: 10\r\n", b"x"))
        await asyncio.sleep(0.1)
        assert '"path":"/second"' in await said_to(port, "GET", "/second")
        assert not slow.done()
        said = await slow
        assert said.startswith("HTTP/1.1 408 ")
        assert "The request's body did not arrive within 1.5 s" in said


async def test_a_client_that_leaves_within_its_body_spoils_no_connection() -> None:
    async with telling() as port:
        for size in (10, 1 << 20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * (size * 2 // 3))
            await writer.drain()
            writer.close()
            assert '"path":"/second"' in await said_to(port, "GET", "/second")
