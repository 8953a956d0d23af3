"""A gateway's clients that stall, read slowly, or go away: what the services behind it notice, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from muster_gateway.http_target import HttpTarget
from muster_service.http_server import HttpServer
from starlette.types import Receive, Scope, Send

PIECE = b"x" * (64 << 10)
PATIENCE_S = 20.0


@dataclass
class Behind:
    """A service. By path: ``/endless`` sends as fast as it is taken, ``/seldom`` a line each time it is told to,
    ``/slow`` nothing until it is told to; all of them notice when nobody reads any more."""

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
    target = HttpTarget(f"http://127.0.0.1:{service.port}", "view", 5.0, stalled_s=stalled_s)
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
        # What was on its way arrives; then the connection is broken off, without the body's end.
        last = b""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                while piece := await reader.read(1 << 20):
                    last = (last + piece)[-5:]
        assert last != b"0\r\n\r\n"
        writer.close()


async def test_who_takes_a_little_each_time_is_not_cut() -> None:
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


async def test_a_client_that_leaves_before_the_answer_begins_is_told_to_the_service() -> None:
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
