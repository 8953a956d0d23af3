"""Limits of the HTTP server for a client: time to send its request, connections, lines of the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from muster_runtime.http_server import HttpServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

PATIENCE_S = 60.0


async def _read(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def _slow(_request: Request) -> PlainTextResponse:
    await asyncio.sleep(0.4)
    return PlainTextResponse("at last")


APP = Starlette(routes=[Route("/read", _read, methods=["GET", "POST"]), Route("/slow", _slow, methods=["GET", "POST"])])


@asynccontextmanager
async def served(request_s: float = 60.0, connections_max: int = 0) -> AsyncIterator[int]:
    server = HttpServer(APP, "127.0.0.1:0", 1.0, request_s=request_s, connections_max=connections_max)
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


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /read HTTP/1.1\r\nHost: x\r\n",
        b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfour",
    ],
    ids=["nothing", "part of a head", "part of a body"],
)
async def test_a_client_that_does_not_finish_its_request_is_cut(sent: bytes) -> None:
    async with served(request_s=0.1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await rest(reader) == b""
        writer.close()


async def test_nor_is_a_second_request_waited_for_that_comes_in_drops() -> None:
    async with served(request_s=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /read HTTP/1.1\r\nHost: x\r\n\r\nGET /read HTTP/1.1\r\nX: ")

        async def drop() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        dropping = asyncio.create_task(drop())
        said = await rest(reader)
        dropping.cancel()
        assert said.count(b"HTTP/1.1 200 OK") == 1
        writer.close()


@pytest.mark.parametrize("sent", [b"GET /slow HTTP/1.1\r\nHost: x\r\n", b"POST /slow HTTP/1.1\r\nHost: x\r\n"])
async def test_a_client_that_waits_for_its_answer_is_not_cut(sent: bytes) -> None:
    async with served(request_s=0.1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent + b"Connection: close\r\n\r\n")
        assert (await rest(reader)).endswith(b"at last")
        writer.close()


async def test_a_slow_reader_is_not_cut_and_a_stalled_one_is() -> None:
    """This holds also when the application has written all of it: much still waits in this process."""
    body = b"x" * (32 << 20)  # (the kernel takes some megabytes)
    server = HttpServer(PlainTextResponse(body), "127.0.0.1:0", 1.0, request_s=60.0)
    await server.start()
    look, connections = server._server._cut_the_late, server._server.server_state.connections
    loop = asyncio.get_running_loop()

    async def take(client: socket.socket) -> int:
        return len(await asyncio.wait_for(loop.sock_recv(client, 1 << 16), PATIENCE_S))

    try:
        for takes in (True, False):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", server.port))
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                taken, now_s = await take(client), 0.0
                (transport,) = (each.transport for each in connections)
                look(now_s)
                while takes and (unsent := transport.get_write_buffer_size()):
                    while transport.get_write_buffer_size() == unsent:
                        taken += await take(client)
                    now_s += 50.0
                    look(now_s)
                assert not takes or now_s > 100.0, "not all of it was with the kernel at once"
                look(now_s + 50.0)
                look(now_s + 100.0)
                while piece := await take(client):
                    taken += piece
                assert (taken > len(body)) is takes
    finally:
        server.kill()
        await server.stop()


_SERVES = """
import asyncio, resource, sys
from muster_runtime.http_server import HttpServer
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
async def serve():
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    server = HttpServer(None, "127.0.0.1:0", 1.0)
    await server.start()
    print(server.port, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(told, flush=True)
    server.kill()
    await server.stop()
asyncio.run(serve())
"""


def test_many_simultaneous_connections_do_not_use_up_the_open_files() -> None:
    command = [sys.executable, "-c", _SERVES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdin is not None
        assert serving.stdout is not None
        port = int(serving.stdout.readline())
        with contextlib.ExitStack() as stack:
            for _ in range(32):  # the limit of connections: a quarter of the files
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(400):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            time.sleep(0.2)  # (the server checks at its own times; an early check would find nothing)
            serving.stdin.write("\n")
            serving.stdin.flush()
            assert serving.stdout.readline() == "[]\n"


async def test_beyond_the_limit_no_connection_is_served_until_one_ends() -> None:
    async with served(connections_max=2) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:  # (answered: so they count)
            writer.write(b"GET /read HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"0 bytes")
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await rest(reader) == b""
        held[0][1].close()
        said = b""
        async with asyncio.timeout(PATIENCE_S):
            while not said:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.suppress(ConnectionResetError):
                    writer.write(b"GET /read HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    said = await rest(reader)
        assert said.endswith(b"0 bytes")
        held[1][1].close()


async def test_a_head_has_a_bound_whatever_parsers_are_installed() -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET /read HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (256 << 10))
            await writer.drain()
        assert b"200 OK" not in await rest(reader)
        writer.close()


async def test_input_that_is_not_http_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as port:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert b"400" in await rest(reader)
            writer.close()
        await asyncio.sleep(0)
        # (Every second request. Twenty of them took twenty seconds.)
        assert len([each for each in caplog.records if each.name == "uvicorn.error"]) < 20
        logging.getLogger("uvicorn.error").error("worse")
        assert caplog.records[-1].message == "worse"
