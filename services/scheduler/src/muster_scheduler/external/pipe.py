"""What the scheduler and the process of its informers tell one another, over a pair of sockets.

The informers' process is a child of the scheduler's (``process.py``, ``child.py``), and has no log of its own: what it
appends and reads goes through its parent. A frame is a length (4 bytes, big-endian) and one of the messages below as
MessagePack. Secrets come this way too, in :class:`Begin`: they are in no command line and in no environment.

=========  =========  ==================================================================
from       message    says
=========  =========  ==================================================================
scheduler  Begin      the first: what to run, in which life
scheduler  Settled    records are durable, or were refused
scheduler  Answer     to an Ask
scheduler  Stop       end in bounded time
informers  Append     records, many at once; their order is the log's
informers  Ask        open, read, close a reader
informers  Told       how far the informers are, and what does not work
informers  Sampled    metrics; once a second, hence a sign of life
informers  Ended      they cannot begin, or had not synced in time
=========  =========  ==================================================================

An end of file says that the other one is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Literal, cast

import msgspec
from muster_bus.errors import BadRecord, LogClosed, LogError, LogUnavailable, OffsetGone, RecordTooLarge

FRAME_BYTES_MAX = 256 << 20
_HEAD_BYTES = 4
_BUFFER_BYTES = 1 << 20


class _Message(msgspec.Struct, array_like=True, tag=True):
    """Of the table above."""


class Begin(_Message):
    """:param settings: ``ExternalSettings.in_clear``; :param topics: the fields of ``Topics``.
    :param path: where modules are looked for, as in the parent.
    """

    settings: dict[str, object]
    topics: dict[str, object]
    partitions: tuple[int, ...]
    life: str
    log_level: str
    log_format: str
    path: tuple[str, ...]


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An error of the log: its name in :mod:`muster_bus.errors` and what it is made of."""

    name: str
    arguments: tuple[str | int, ...]


class Settled(_Message):
    """:param durable: (number, offset); :param refused: (number, why)."""

    durable: tuple[tuple[int, int], ...]
    refused: tuple[tuple[int, Failure], ...] = ()


class ReadRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record with an offer of one of the informers' sources."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Answer(_Message):
    """:param number: the Ask's; :param offset: the position behind what was read, or what was asked for."""

    number: int
    offset: int = 0
    records: tuple[ReadRecord, ...] = ()
    failure: Failure | None = None


class Stop(_Message):
    """The scheduler stops."""


class NewRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record for the log; ``number`` is its own."""

    number: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Append(_Message):
    records: tuple[NewRecord, ...]


class Ask(_Message):
    """:param reader: which one; :param offset: of ``open`` and ``read``: from where; None: from the first."""

    number: int
    reader: int
    what: Literal["open", "read", "first", "end", "close"]
    topic: str = ""
    partition: int = 0
    offset: int | None = None
    records_max: int = 0
    timeout_s: float = 0.0


class Told(_Message):
    """:param synced: nobody is waited for any longer; :param known: the sources that have synced once."""

    synced: bool
    known: tuple[str, ...]
    problems: tuple[str, ...]


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric with its samples: (name, labels, value)."""

    name: str
    documentation: str
    type: str
    samples: tuple[tuple[str, dict[str, str], float], ...]


class Sampled(_Message):
    families: tuple[Family, ...]


class Ended(_Message):
    """:param late: by informer, why it had not synced; :param problems: else: what is wrong with the settings."""

    late: dict[str, str]
    problems: tuple[str, ...] = ()


Message = Begin | Settled | Answer | Stop | Append | Ask | Told | Sampled | Ended

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end. ``send`` never waits: how much may be under way is for its users to bound."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Takes the socket over."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_BUFFER_BYTES))

    def send(self, message: Message) -> None:
        if self._writer.is_closing():
            return  # nobody is there any more; whoever receives hears of it
        body = _encoder.encode(message)
        self._writer.write(len(body).to_bytes(_HEAD_BYTES, "big") + body)

    async def receive(self) -> Message | None:
        """The next one; None: the other end is gone. Raises ValueError for what makes no sense."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_HEAD_BYTES), "big")
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes, expected at most {FRAME_BYTES_MAX}")
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return _decoder.decode(body)

    async def flush(self) -> None:
        """Returns when everything that was sent is with the system."""
        self._writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


_PLAIN: dict[str, type[LogError]] = {kind.__name__: kind for kind in (LogUnavailable, LogClosed, BadRecord, LogError)}


def failure_of(error: BaseException) -> Failure:
    """An error of the log, for the other side. What is none is a log that is not there."""
    match error:
        case RecordTooLarge():
            return Failure("RecordTooLarge", (error.topic, error.size_bytes, error.limit_bytes))
        case OffsetGone():
            return Failure("OffsetGone", (str(error), error.asked, error.first, error.end))
    name = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _PLAIN), "LogUnavailable")
    return Failure(name, (str(error) or type(error).__name__,))


def error_of(failure: Failure) -> LogError:
    """Inverse of :func:`failure_of`."""
    match failure.name:
        case "RecordTooLarge":
            return RecordTooLarge(*cast("tuple[str, int, int]", failure.arguments))
        case "OffsetGone":
            text, *offsets = cast("tuple[str, int, int, int]", failure.arguments)
            gone = OffsetGone("", 0, *offsets)
            gone.args = (text,)
            return gone
    return _PLAIN.get(failure.name, LogError)(*failure.arguments)
