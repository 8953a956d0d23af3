"""Addresses: reading them, listening on them, and telling which ones are local."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import AfterValidator, ValidationInfo

# A socket's family and type, and the address to bind it to.
_Place = tuple[socket.AddressFamily, socket.SocketKind, tuple[Any, ...]]

_EXPECTED = "expected host:port with a port from 0 to 65535, an IPv6 host in brackets"


def parse_address(field: str, text: str) -> tuple[str, int]:
    """Returns ``host:port`` as a pair, the host without brackets.

    :param field: name of the setting, for the error.
    :raises ValueError: the text is no address; the error names field, value and expectation.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    well_formed = colon and host and bracketed == (":" in host) and not set(host) & set("[]/ ")
    if not well_formed or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{field} {text!r}: {_EXPECTED}")
    return host, int(port)


def host_of_peer(peer: str) -> str:
    """Returns the address in gRPC's name of a peer (``ipv4:127.0.0.1:5000``), without the port."""
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].strip("[]")


def ip_of(text: str) -> IPv4Address | IPv6Address | None:
    """Returns an address as an object; None if the text is no address. An IPv4 address in IPv6 form becomes IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(text: str) -> bool:
    """Tells whether the text is a loopback address, which no other machine can reach. False for names."""
    address = ip_of(text)
    return address is not None and address.is_loopback


def on_loopback(field: str, text: str) -> bool:
    """Tells whether only this machine can reach ``host:port``. A name counts if all its addresses are loopback
    addresses.

    :raises ValueError: see :func:`parse_address`.
    :raises OSError: the host is unknown here; see :func:`listen`.
    """
    return all(is_loopback(str(address[0])) for _, _, address in _places(field, text))


def _checked(value: str, info: ValidationInfo) -> str:
    parse_address(info.field_name or "address", value)
    return value


ListenAddress = Annotated[str, AfterValidator(_checked)]
"""The type of a setting: host:port."""

OptionalListenAddress = Annotated[str, AfterValidator(lambda value, info: _checked(value, info) if value else value)]
"""The type of a setting: host:port, or "" for not listening."""


def listen(field: str, text: str, *, at_once: bool = True) -> socket.socket:
    """Returns a socket that listens on an address; port 0: any free one. Clients that connect wait until it is served.

    :param at_once: False: it is only bound to the address. Until it listens, clients are refused.
    :raises ValueError: see :func:`parse_address`.
    :raises OSError: listening failed; its ``strerror`` names field, value and reason.
    """
    family, kind, address = _places(field, text)[0]
    # asyncio sends at once only if the protocol is given. Otherwise Nagle's algorithm holds a small answer back until
    # the client acknowledges earlier data, and clients delay that by 40 ms.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not block the port
        listener.bind(address)
        if at_once:
            listener.listen(1024)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "is taken by another process" if taken else f"cannot be listened on: {error.strerror}"
        raise OSError(error.errno, f"{field}: {text} {reason}") from error
    return listener


def listen_at(path: Path) -> socket.socket:
    """Returns a Unix socket that listens at a path. Replaces a socket that an earlier process left there.

    Every user who may enter the directory can connect.

    :raises OSError: listening failed; its ``strerror`` gives the reason.
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
    """Returns the sockets that an address stands for, at least one. The first is the one to listen on."""
    host, port = parse_address(field, text)
    try:
        return [
            (family, kind, address)
            for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ]
    except OSError as error:
        raise OSError(errno.EADDRNOTAVAIL, f"{field}: {text}: no such host here: {error.strerror}") from error
