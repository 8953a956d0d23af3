"""Checks that something listens before a command calls it, so that a wrong address is clear within seconds."""

from __future__ import annotations

import re
import socket

from muster_cli.errors import CommandError

# A host that drops packets would hold a call for its whole time-out.
_CONNECT_S = 3.0
# An address, perhaps as an URL. Other targets of gRPC (dns:, unix:, several addresses) are left to gRPC.
_ADDRESS = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^/:\[\],]+)(?::(?P<port>\d+))?/?")
_PORTS = {"http": 80, "https": 443}


def check_reachable(address: str) -> None:
    """Raises CommandError if nothing listens at an address. Does nothing if it is not host:port or an URL."""
    found = _ADDRESS.fullmatch(address.strip())
    if found is None:
        return
    port = int(found["port"]) if found["port"] else _PORTS.get(found["scheme"] or "")
    if port is None:
        return
    try:
        socket.create_connection((found["host"].strip("[]"), port), _CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise CommandError(no_answer(address, getattr(error, "strerror", None) or error)) from None


def no_answer(address: str, why: object) -> str:
    """Returns the sentence about an address where nothing answers."""
    return f"nothing answers at {address}: is `muster up` running? ({why})"
