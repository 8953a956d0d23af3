"""The TCP connections that this process has accepted on some ports, whoever owns their descriptors (Linux).

gRPC's core accepts connections, and reads from them, without a word to Python. The kernel shows them all the same:
each has a descriptor in /proc/self/fd, a cookie that no other socket of the machine ever gets (``SO_COOKIE``), and
counters (``TCP_INFO``, linux/tcp.h). ``connect(2)`` to no address resets a connection whose descriptor belongs to
somebody else, with all that waits to be read: its owner reads an error, and closes it. (After ``shutdown(2)`` it would
first read what waits, which can be megabytes.)

The calls into libc do not release the interpreter's lock. Each takes a microsecond, and after each release a thread
would wait for its next turn, which is longer than that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

# socket(7), since Linux 4.12. Python's socket module has no name for it.
_SO_COOKIE = 57
# As integers: ctypes converts an enumeration's members slowly.
_SOL_SOCKET, _IPPROTO_TCP, _TCP_INFO = int(socket.SOL_SOCKET), int(socket.IPPROTO_TCP), int(socket.TCP_INFO)
# Of struct tcp_info: the two counters begin at byte 120, in every kernel since 4.1.
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120
_INFO_BYTES = _COUNTERS_AT + _COUNTERS.size
# Of a listener this field is the number of connections that wait to be accepted.
_UNACKED, _UNACKED_AT = struct.Struct("=I"), 24
# Of struct linux_dirent64: inode and offset of 8 bytes, length of the entry, type; then the name, to a zero.
_LENGTH_AT = 16 if sys.byteorder == "little" else 17
_NAME_AT = 19
_ENTRIES_BYTES = 32 * 1024
# Of struct sockaddr: two bytes of the family, two of the port; then the address of IPv4, or four bytes and IPv6's.
_ADDRESS_BYTES = 128
# A struct sockaddr of the family AF_UNSPEC.
_UNSPECIFIED = b"\0" * 16
# Of socket(7) and linux/filter.h: a program of one instruction, which returns 0, the length of what is accepted.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# After so many descriptors (about 0.3 ms) other threads get a moment.
_AT_ONCE = 200
_MOMENT_S = 0.001


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


_RETURN_CONSTANT = 0x06
_DROP_ALL = _Program(1, ctypes.pointer(_Instruction(_RETURN_CONSTANT, 0, 0, 0)))


class TcpSocket(NamedTuple):
    """One accepted connection.

    :ivar cookie: names the connection for ever; ``descriptor`` may belong to another one later.
    :ivar host: address of the peer, as ``addresses.host_of_peer`` has it.
    :ivar port: the peer's.
    """

    cookie: int
    descriptor: int
    host: str
    port: int


class Counters(NamedTuple):
    """Bytes of one connection since its begin: those from the peer, and those that the peer has acknowledged."""

    received: int
    acknowledged: int


class AcceptedSockets:
    """Lists accepted connections with their counters, and ends them. For one thread.

    :param ports: the local ports of the listeners.
    :param pause: called between the pieces of a long list; for tests.
    :ivar listeners: descriptors of the listeners, when the connections were last listed.

    The constructor raises OSError if this system has none of this; see :func:`has_counters`.
    """

    def __init__(self, ports: Collection[int], pause: Callable[[], None] = lambda: time.sleep(_MOMENT_S)) -> None:
        self._ports, self._pause = frozenset(ports), pause
        self.listeners: list[int] = []
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._entries = ctypes.create_string_buffer(_ENTRIES_BYTES)
        self._info = ctypes.create_string_buffer(_INFO_BYTES)
        self._cookie = ctypes.c_uint64()
        self._address = ctypes.create_string_buffer(_ADDRESS_BYTES)
        self._length = ctypes.c_uint32()
        # (Made once: a reference costs as much as a call.)
        self._references = tuple(map(ctypes.byref, (self._length, self._cookie, self._info)))
        # Descriptor → cookie of its socket, and the connection if it is one of ours.
        self._cache: dict[int, tuple[int, TcpSocket | None]] = {}
        if not has_counters():
            raise OSError(f"{sys.platform} has no counters of other threads' sockets")
        # Three descriptors of its own: with none left, connections can still be listed and ended.
        self._directory = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._copy = os.dup(self._nothing)

    def close(self) -> None:
        """Frees its own descriptors."""
        for descriptor in (self._directory, self._nothing, self._copy):
            os.close(descriptor)

    def connections(self) -> dict[TcpSocket, Counters]:
        """Returns all present connections. Costs some 3 µs for each, and 1 µs for any other open file."""
        counters_by_socket: dict[TcpSocket, Counters] = {}
        self.listeners.clear()
        cache: dict[int, tuple[int, TcpSocket | None]] = {}
        for number, descriptor in enumerate(self._descriptors(), 1):
            if not number % _AT_ONCE:
                self._pause()
            cookie = self._cookie_of(descriptor)
            if cookie is None:
                continue
            former, connection = self._cache.get(descriptor, (0, None))
            if former != cookie:
                connection = self._connection(descriptor, cookie)
            cache[descriptor] = (cookie, connection)
            if connection is not None and connection.port == 0:
                self.listeners.append(descriptor)
            elif connection is not None and (counters := self._counters(descriptor)) is not None:
                counters_by_socket[connection] = counters
        self._cache = cache
        return counters_by_socket

    def has_waiting(self) -> bool:
        """Tells whether connections wait to be accepted on listeners. Those accepted before are in the next list."""
        return any(
            self._read_info(listener) and _UNACKED.unpack_from(self._info, _UNACKED_AT)[0]
            for listener in self.listeners
        )

    def pause(self, connection: TcpSocket) -> None:
        """Lets the kernel drop what a connection sends from now on. Its peer sends it again later."""
        with self._copied(connection) as descriptor:
            if descriptor is not None:
                size = ctypes.sizeof(_DROP_ALL)
                self._libc.setsockopt(descriptor, _SOL_SOCKET, _SO_ATTACH_FILTER, ctypes.byref(_DROP_ALL), size)

    def resume(self, connection: TcpSocket) -> None:
        """Ends a pause."""
        with self._copied(connection) as descriptor:
            if descriptor is not None:
                size = ctypes.sizeof(ctypes.c_int)
                self._libc.setsockopt(descriptor, _SOL_SOCKET, _SO_DETACH_FILTER, ctypes.byref(ctypes.c_int(0)), size)

    def end(self, connection: TcpSocket) -> bool:
        """Resets a connection. Returns False if it is no more."""
        with self._copied(connection) as descriptor:
            return descriptor is not None and not self._libc.connect(descriptor, _UNSPECIFIED, len(_UNSPECIFIED))

    @contextlib.contextmanager
    def _copied(self, connection: TcpSocket) -> Iterator[int | None]:
        """Gives a copy of a descriptor: it stays of one connection, even if the original gets another one now."""
        try:
            os.dup2(connection.descriptor, self._copy, inheritable=False)
        except OSError:
            yield None
            return
        try:
            yield self._copy if self._cookie_of(self._copy) == connection.cookie else None
        finally:
            os.dup2(self._nothing, self._copy, inheritable=False)

    # ---- the kernel -------------------------------------------------------------------------------------------------

    def _descriptors(self) -> Iterator[int]:
        os.lseek(self._directory, 0, os.SEEK_SET)
        own = {self._directory, self._nothing, self._copy}
        while (size := self._libc.getdents64(self._directory, self._entries, _ENTRIES_BYTES)) > 0:
            entries, at = self._entries.raw[:size], 0
            while at < size:
                name = entries[at + _NAME_AT : entries.index(b"\0", at + _NAME_AT)]
                at += entries[at + _LENGTH_AT]  # (below 256: a name has at most ten digits)
                if name.isdigit() and (descriptor := int(name)) not in own:
                    yield descriptor

    def _cookie_of(self, descriptor: int) -> int | None:
        """Returns None for what is no socket."""
        length, cookie, _ = self._references
        self._length.value = 8
        if self._libc.getsockopt(descriptor, _SOL_SOCKET, _SO_COOKIE, cookie, length):
            return None
        return self._cookie.value

    def _read_info(self, descriptor: int) -> bool:
        """Reads TCP_INFO into its buffer. Returns whether the descriptor has any."""
        length, _, info = self._references
        self._length.value = _INFO_BYTES
        return not self._libc.getsockopt(descriptor, _IPPROTO_TCP, _TCP_INFO, info, length)

    def _counters(self, descriptor: int) -> Counters | None:
        if not self._read_info(descriptor):
            return None
        acknowledged, received = _COUNTERS.unpack_from(self._info, _COUNTERS_AT)
        return Counters(received, acknowledged)

    def _connection(self, descriptor: int, cookie: int) -> TcpSocket | None:
        local = self._name(self._libc.getsockname, descriptor)
        if local is None or local[1] not in self._ports:
            return None
        peer = self._name(self._libc.getpeername, descriptor)  # listeners have none
        return TcpSocket(cookie, descriptor, *(peer or _NO_PEER))

    def _name(self, function: Callable[..., int], descriptor: int) -> tuple[str, int] | None:
        """Returns the host and port of one end of a TCP socket."""
        self._length.value = _ADDRESS_BYTES
        if function(descriptor, self._address, ctypes.byref(self._length)) != 0:
            return None
        raw = self._address.raw
        (family,) = struct.unpack_from("=H", raw)
        (port,) = struct.unpack_from("!H", raw, 2)
        if family == socket.AF_INET:
            return socket.inet_ntop(family, raw[4:8]), port
        if family != socket.AF_INET6:
            return None
        address = raw[8:24]
        if address.startswith(_MAPPED):
            return socket.inet_ntop(socket.AF_INET, address[len(_MAPPED) :]), port
        return socket.inet_ntop(family, address), port


_NO_PEER = ("", 0)
_MAPPED = b"\0" * 10 + b"\xff\xff"


def has_counters() -> bool:
    """Tells whether :class:`AcceptedSockets` works on this system."""
    if not sys.platform.startswith("linux") or not hasattr(ctypes.PyDLL(None), "getdents64"):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            info = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            cookie = probe.getsockopt(_SOL_SOCKET, _SO_COOKIE, 8)
        except OSError:
            return False
    return len(info) >= _INFO_BYTES and len(cookie) == 8 and Path("/proc/self/fd").is_dir()
