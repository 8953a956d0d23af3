"""A server accepts few connections in a turn of its loop, so that clients that leave at once stop nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
from muster_runtime import acceptor
from muster_runtime.http_server import HttpServer
from starlette.responses import PlainTextResponse

PATIENCE_S = 60.0
CLIENTS = 300
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Turns:
    """Counts the turns of the running loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._turn()

    def _turn(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()


@contextmanager
def left(port: int, count: int) -> Iterator[None]:
    """Clients that have sent a request and left: all of them wait in the kernel's queue."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(REQUEST)
    yield


async def test_clients_that_left_are_accepted_a_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HttpServer(PlainTextResponse("x"), "127.0.0.1:0", 1.0)
    turns, accepted = Turns(), Counter[int]()
    accept = socket.socket.accept

    def counted(listener: socket.socket) -> object:
        found = accept(listener)
        accepted[turns.number] += 1
        return found

    monkeypatch.setattr(socket.socket, "accept", counted)
    with left(server.port, CLIENTS):
        await server.start()
        async with asyncio.timeout(PATIENCE_S):
            while accepted.total() < CLIENTS:  # noqa: ASYNC110 - turns are counted
                await asyncio.sleep(0)
    turns.stop()
    assert max(accepted.values()) <= acceptor.AT_ONCE <= 8
    await server.stop()


async def test_a_paused_server_accepts_nothing_and_serves_what_waited_later() -> None:
    server = HttpServer(PlainTextResponse("x"), "127.0.0.1:0", 1.0)
    await server.start()
    server.pause()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(REQUEST)
    for _ in range(100):
        await asyncio.sleep(0)
    assert server.accepted == 0
    server.resume()
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert server.accepted == 1
    writer.close()
    await server.stop()


async def test_a_paused_server_ends_its_connections_with_their_next_answer() -> None:
    server = HttpServer(PlainTextResponse("x"), "127.0.0.1:0", 1.0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for paused in (False, True):
        if paused:
            server.pause()
        writer.write(REQUEST)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert (b"connection: close" in head) is paused
            await reader.readexactly(1)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    await server.stop()


async def test_without_files_it_waits_and_logs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_RETRY_S", 0.01)
    server = HttpServer(PlainTextResponse("x"), "127.0.0.1:0", 1.0)
    tries, accept = 0, socket.socket.accept

    def refused(listener: socket.socket) -> object:
        nonlocal tries
        tries += 1
        if tries <= 5:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refused)
    with structlog.testing.capture_logs() as logged:
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert [each["event"] for each in logged].count("no connection can be accepted") == 1
    writer.close()
    await server.stop()


async def test_connections_within_their_handshake_count() -> None:
    """A client that never begins TLS takes a place, too."""
    held = asyncio.Event()

    class Slow(asyncio.Protocol):
        pass

    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    opening: list[int] = []

    def is_full(under_way: int) -> bool:
        opening.append(under_way)
        return under_way >= 2

    async def never(*_given: object, **_more: object) -> None:
        await held.wait()

    found = acceptor.Acceptor(listener, Slow, None, 1.0, is_full)
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "connect_accepted_socket", never)
        found.start()
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.getsockname()[1]))) for _ in range(3)
        ]
        clients[2].settimeout(PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.to_thread(clients[2].recv, 1) == b""
        assert opening == [0, 1, 2]
        held.set()
        found.close()
        await found.wait_closed()
