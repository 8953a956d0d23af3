"""HTTP clients that connect, send a request and leave without reading. They need no credentials."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from urllib.parse import urlsplit

from bench.neighbours.rows import Row, Target, begin

# What one thread reaches on a quiet machine.
CONNECTIONS_PER_S = 3_500
_REQUEST = b"GET /ws/v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_STEP_S = 0.01


async def leave_unread(target: Target) -> None:
    await asyncio.to_thread(_leave, target.http)


def _leave(http: str) -> None:
    """Runs until the process is ended."""
    parts = urlsplit(http)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    began_s, number = time.monotonic(), 0
    while True:
        if number >= (time.monotonic() - began_s) * CONNECTIONS_PER_S:
            time.sleep(_STEP_S)
            continue
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as client:
            client.sendall(_REQUEST)
        number += 1
        if number == 1:
            begin()


ROWS = (Row("leavers", f"{CONNECTIONS_PER_S} HTTP clients a second that send a request and leave", leave_unread),)
