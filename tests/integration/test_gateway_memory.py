"""The gateway never holds a large answer as a whole, for any reader."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from muster_replay.local_process import free_ports
from muster_runtime.http_server import HttpServer
from starlette.types import Receive, Scope, Send

ANSWER_BYTES = int(os.environ.get("MUSTER_TEST_ANSWER_MB", "60")) << 20
# The allowed growth of the process meanwhile: buffers of both connections, and Python's own arenas.
GROWN_BYTES_MAX = 16 << 20
CHUNK = b"x" * (64 << 10)
# The gateway's proxy alone in a process.
PROXY = """
import asyncio, sys
from muster_gateway.http_forwarder import HttpForwarder
from muster_runtime.http_server import HttpServer

async def main():
    server = HttpServer(HttpForwarder(sys.argv[1], "view", 5.0), sys.argv[2], 1.0)
    await server.serve()

asyncio.run(main())
"""


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(ANSWER_BYTES // len(CHUNK)):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
async def proxy() -> AsyncIterator[tuple[int, int]]:
    """(pid, port)."""
    server = HttpServer(answer, "127.0.0.1:0", 1.0)
    await server.start()
    (port,) = free_ports(1)
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
        [sys.executable, "-c", PROXY, f"http://127.0.0.1:{server.port}", f"127.0.0.1:{port}"]
    )
    try:
        await read(port, ANSWER_BYTES)  # (the first answer allocates what later ones reuse)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()
        server.kill()


async def read(port: int, wanted: int, *, slowly: bool = False) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
                break
            except OSError:
                await asyncio.sleep(0.05)
        writer.write(b"GET /ws/v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = 0
        while got < wanted and (piece := await reader.read(1 << 18)):
            got += len(piece)
            if slowly and got < 1 << 21:
                await asyncio.sleep(0.02)
        writer.close()
    assert got >= wanted


def memory(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{field}:"))


async def test_a_large_answer_takes_no_memory_of_the_gateway(proxy: tuple[int, int]) -> None:
    pid, port = proxy
    before = memory(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # noqa: ASYNC240 - forgets the peak
    await asyncio.gather(read(port, ANSWER_BYTES), read(port, ANSWER_BYTES // 2, slowly=True))
    grown = memory(pid, "VmHWM") - before
    assert grown < GROWN_BYTES_MAX, f"grown by {grown >> 20} MB while {ANSWER_BYTES >> 20} MB passed"
