"""Attacks before any call: floods of HTTP/2 frames, and idle connections. What the gateway ends comes again."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Awaitable, Callable

from raw_http2 import connect, flood

from bench.neighbours.rows import Row, Target, begin

FLOODS, CONNECTIONS = ("continuation", "settings", "ping", "metadata"), 3
FILES, IDLE = 4_096, 4_300
_RETRY_S = 0.05


def flooding(kind: str) -> Callable[[Target], Awaitable[None]]:
    async def attack(target: Target) -> None:
        host, _, port = target.gateway.rpartition(":")
        begin()
        for _ in range(CONNECTIONS):
            threading.Thread(target=_flood, args=(kind, host, int(port)), daemon=True).start()
        await asyncio.Event().wait()

    return attack


def _flood(kind: str, host: str, port: int) -> None:
    pause = threading.Event()
    while not pause.wait(_RETRY_S):
        with contextlib.suppress(OSError), connect(host, port) as one:
            threading.Thread(target=_drain, args=(one,), daemon=True).start()
            for piece in flood(kind):
                one.sendall(piece)


def _drain(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while one.recv(1 << 16):
            pass


async def be_idle(target: Target) -> None:
    host, _, port = target.gateway.rpartition(":")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = 0

    async def stay() -> None:
        nonlocal opened
        while True:
            with contextlib.suppress(OSError):
                one = await asyncio.to_thread(connect, host, int(port))
                one.setblocking(False)
                opened += 1
                if opened == IDLE:
                    begin()
                with one:
                    while await asyncio.get_running_loop().sock_recv(one, 1 << 12):
                        pass
            await asyncio.sleep(_RETRY_S)

    await asyncio.gather(*(stay() for _ in range(IDLE)))


ROWS = (
    *(Row(kind, f"{CONNECTIONS} connections without end of {kind}", flooding(kind)) for kind in FLOODS),
    Row("idle", f"{IDLE:,} idle connections, opened again, {FILES:,} files", be_idle, files=FILES),
)
