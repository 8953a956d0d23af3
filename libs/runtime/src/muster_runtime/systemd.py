"""Tells systemd when a service is ready, and when it stops (sd_notify; units with ``Type=notify``)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_VARIABLE = "NOTIFY_SOCKET"
READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> None:
    """Sends a state to the supervisor that started this process; does nothing if there is none, or if it is gone.

    :param state: READY or STOPPING.
    """
    path = os.environ.get(_VARIABLE, "")
    if path[:1] not in ("/", "@"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.sendto(state.encode(), "\0" + path[1:] if path[0] == "@" else path)
