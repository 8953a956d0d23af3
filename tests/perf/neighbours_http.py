"""HTTP clients beside the quiet RM of ``neighbours_bench``: they leave without reading their answer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

REQUEST = b"GET /ws/v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# What one thread reaches on a quiet machine.
CONNECTIONS_PER_S = 3_500
_STEP_S = 0.01


def leave_unread(http: str, begin: Callable[[], None]) -> None:
    """Connect, send a request and close, at a steady rate, until the process is ended. Needs no credentials."""
    parts = urlsplit(http)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    began_s, number = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began_s) * CONNECTIONS_PER_S)
        if number == due:
            time.sleep(_STEP_S)
            continue
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as client:
            client.sendall(REQUEST)
        number += 1
        if number == 1:
            begin()
