"""Addresses to listen on: read, and checked before anything starts."""

from __future__ import annotations

import errno
import socket

from muster_cli.errors import UsageError


def parse(setting: str, address: str) -> tuple[str, int]:
    """``host:port`` as a pair. IPv6 hosts stand in brackets.

    :raises UsageError: naming the setting.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"{setting}: expected host:port with a port from 0 to 65535, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen(setting: str, address: str) -> socket.socket:
    """A socket that listens on an address.

    :raises UsageError: the address is taken, or not this machine's.
    """
    host, port = parse(setting, address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"{setting}: {host!r} is no host that is known here: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections do not hold the port
        listener.bind(place)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        why = "is taken by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise UsageError(f"{setting}: {address} {why}") from error
    return listener


def check_free(setting: str, address: str) -> None:
    """Raises UsageError when nobody could listen on an address now.

    gRPC shares a port silently with another process that asks for it; a person who starts a second Muster by mistake
    must hear of it instead.
    """
    if address:
        listen(setting, address).close()
