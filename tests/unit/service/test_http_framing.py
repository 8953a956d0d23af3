"""A request whose end is in doubt is refused, and nothing after it is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from muster_runtime.http_server import HttpServer
from starlette.types import Receive, Scope, Send

PATIENCE_S = 60.0
HEAD = b"POST /first HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"
BODY = b"5\r\nhello\r\n0\r\n\r\n"
SECOND = b"GET /second HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

DOUBTFUL = {
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY,
    "chunks and length": CHUNKED + b"Content-Length: 50\r\n\r\n" + BODY,
    "chunks and no length": CHUNKED + b"Content-Length: 0\r\n\r\n" + BODY,
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a list of lengths": HEAD + b"Content-Length: 5, 6\r\n\r\nhello",
    "a signed length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "a folded length": HEAD + b"Content-Length:\r\n 5\r\n\r\nhello",
    "a folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + BODY,
    "a folded header": HEAD + b"X: a\r\n\tb\r\nContent-Length: 5\r\n\r\nhello",
    "a coding in a folded line": HEAD + b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
    "a blank before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + BODY,
    "another coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + BODY,
    "a coding that is no word": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + BODY,
    "chunks twice": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n" + BODY,
    "a line feed in the head": HEAD + b"X: a\nContent-Length: 5\r\n\r\nhello",
    "line feeds alone": b"POST /first HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello",
    "a carriage return in a value": HEAD + b"X: a\rContent-Length: 3\r\nContent-Length: 5\r\n\r\nhello",
    "a chunk's line feed": CHUNKED + b"\r\n5\nhello\r\n0\r\n\r\n",
    "an extension with a carriage return": CHUNKED + b"\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
    "an extension with a line feed": CHUNKED + b"\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    "a blank after the size": CHUNKED + b"\r\n5 \r\nhello\r\n0\r\n\r\n",
    "a size with a prefix": CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a size over 64 bits": CHUNKED + b"\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
    "a chunk without its end": CHUNKED + b"\r\n5\r\nhelloXX0\r\n\r\n",
    "a folded trailer": CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n",
    "a trailer's line feed": CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX: y\nZ: z\r\n\r\n",
    "two hosts": HEAD + b"Host: y\r\nContent-Length: 5\r\n\r\nhello",
}
CLEAR = {
    "a length": HEAD + b"Content-Length: 5\r\n\r\nhello",
    "chunks": CHUNKED + b"\r\n" + BODY,
    "chunks with extensions": CHUNKED + b'\r\n5;a=b; c="d"\r\nhello\r\n0;e\r\n\r\n',
    "chunks with a trailer": CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
    "a read with a body": b"GET /first HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    "no body": b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n",
}


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    more = scope["path"] != "/at-once"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    answer = scope["path"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    server = HttpServer(_echo, "127.0.0.1:0", 1.0)
    await server.start()
    try:
        yield server.port
    finally:
        server.kill()
        await server.stop()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return all bytes until the server ends the connection."""
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            while piece := await reader.read(4096):
                said += piece
    return said


async def answers_to(port: int, sent: bytes, piece_bytes: int) -> bytes:
    """Return the answers to a request and one that follows it, sent in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    everything = sent + SECOND
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(everything), piece_bytes):
            writer.write(everything[start : start + piece_bytes])
            await writer.drain()
            await asyncio.sleep(0)
    found = await rest(reader)
    writer.close()
    return found


@pytest.mark.parametrize("piece_bytes", [10_000, 1], ids=["at once", "byte by byte"])
async def test_a_request_whose_end_is_in_doubt_is_refused_and_ends_the_connection(piece_bytes: int) -> None:
    async with served() as port:
        for name, sent in DOUBTFUL.items():
            answers = await answers_to(port, sent, piece_bytes)
            # (What a client still sends may cost it the answer: the kernel resets the connection.)
            assert answers.startswith(b"HTTP/1.1 400 ") or (piece_bytes == 1 and not answers), name
            assert answers.count(b"HTTP/1.1") <= 1, f"{name}: nothing after it is answered"


@pytest.mark.parametrize("piece_bytes", [10_000, 1], ids=["at once", "byte by byte"])
async def test_others_are_answered_and_so_is_what_follows(piece_bytes: int) -> None:
    async with served() as port:
        for name, sent in CLEAR.items():
            answers = await answers_to(port, sent, piece_bytes)
            assert answers.count(b"HTTP/1.1 200 ") == 2, name
            assert answers.index(b"/first") < answers.index(b"/second")


async def test_a_body_that_cannot_be_read_after_its_answer_ends_the_connection_and_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED.replace(b"/first", b"/at-once") + b"\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"/at-once")
        writer.write(b"x\r\n" + SECOND)
        assert await rest(reader) == b""
        writer.close()
    assert not [each for each in caplog.records if each.name == "asyncio"]
