"""Checks that something listens before a command calls it, so that a wrong address is clear within seconds."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from muster_cli.errors import CommandError

# A host that drops packets would hold a call for its whole time-out.
_CONNECT_S = 3.0
_PORTS = {"http": 80, "https": 443}


def check_reachable(address: str) -> None:
    """Raises CommandError if nothing listens at an address. Does nothing if it is not host:port or an URL: other
    targets of gRPC (dns:, unix:, several addresses) are left to gRPC.
    """
    text = address.strip()
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host = parts.hostname
        port = parts.port if parts.port is not None else _PORTS.get(parts.scheme)
    except ValueError:
        return
    if parts.scheme not in ("", *_PORTS) or not host or port is None:
        return
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        raise CommandError(no_answer(address, getattr(error, "strerror", None) or error)) from None


def no_answer(address: str, cause: object) -> str:
    """Returns the sentence about an address where nothing answers."""
    return f"nothing answers at {address}: is `muster up` running? ({cause})"
