"""Addresses to listen on: read, and bound; and who calls."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import AfterValidator, ValidationInfo

# Family and type of a socket, and the address to bind it to.
_Place = tuple[socket.AddressFamily, socket.SocketKind, tuple[Any, ...]]

_EXPECTED = "expected host:port with a port from 0 to 65535, an IPv6 host in brackets"


def parse_address(field: str, text: str) -> tuple[str, int]:
    """``host:port`` as a pair; the host without brackets.

    :param field: the setting that holds it, for the error.
    :raises ValueError: it is not one; names field, value and what was expected.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    well_formed = colon and host and bracketed == (":" in host) and not set(host) & set("[]/ ")
    if not well_formed or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{field} {text!r}: {_EXPECTED}")
    return host, int(port)


def host_of_peer(peer: str) -> str:
    """The address of gRPC's name for a peer (``ipv4:127.0.0.1:5000``), without its port."""
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].strip("[]")


def ip_of(text: str) -> IPv4Address | IPv6Address | None:
    """An address as a number; an IPv4 address that is written as an IPv6 one is IPv4. None: it is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(text: str) -> bool:
    """Whether an address (not a name) is one of the machine's own that no other machine reaches."""
    address = ip_of(text)
    return address is not None and address.is_loopback


def on_loopback(field: str, text: str) -> bool:
    """Whether only this machine reaches what listens on ``host:port``. A name must stand for loopback addresses only.

    :raises ValueError: see :func:`parse_address`.
    :raises OSError: there is no such host here; see :func:`listen`.
    """
    return all(is_loopback(str(place[0])) for _, _, place in _places(field, text))


def _checked(value: str, info: ValidationInfo) -> str:
    parse_address(info.field_name or "address", value)
    return value


ListenAddress = Annotated[str, AfterValidator(_checked)]
"""A setting's type: host:port."""

OptionalListenAddress = Annotated[str, AfterValidator(lambda value, info: _checked(value, info) if value else value)]
"""The same, or "": do not listen."""


def listen(field: str, text: str) -> socket.socket:
    """A socket that listens on an address; port 0: any free one. Who connects waits until it is served.

    :raises ValueError: see :func:`parse_address`.
    :raises OSError: it cannot be listened on; its ``strerror`` names field, value and why.
    """
    family, kind, place = _places(field, text)[0]
    # The protocol is named: only then asyncio sends at once. Else a small answer waits 40 ms (Nagle's algorithm holds
    # it back until the client acknowledges what came before, which clients put off).
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections do not hold the port
        listener.bind(place)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "is taken by another process" if taken else f"cannot be listened on: {error.strerror}"
        raise OSError(error.errno, f"{field}: {text} {why}") from error
    return listener


def listen_at(path: Path) -> socket.socket:
    """A Unix socket that listens at a path, in the place of what an earlier process left there. Whoever may enter the
    directory reaches it.

    :raises OSError: it cannot be listened on; its ``strerror`` says why.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{path} cannot be listened on: {error.strerror or error}") from error
    return listener


def _places(field: str, text: str) -> Sequence[_Place]:
    """What an address stands for, the one to listen on first; at least one."""
    host, port = parse_address(field, text)
    try:
        return [
            (family, kind, place)
            for family, kind, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ]
    except OSError as error:
        raise OSError(errno.EADDRNOTAVAIL, f"{field}: {text}: no such host here: {error.strerror}") from error
