"""Messages between a process and its child, over a pair of sockets.

A frame is a length (4 bytes, big-endian) and a message as MessagePack. End of file means that the other end is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Generic, TypeVar

import msgspec

FRAME_BYTES_MAX = 256 << 20
_HEAD_BYTES = 4
_BUFFER_BYTES = 1 << 20

T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, array_like=True, tag=True):
    """A message. Its class's name is its tag."""


class Channel(Generic[T]):
    """One end of a channel. ``send`` never waits; its callers bound the unsent data.

    :param messages: the union of message types that this end can receive.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, messages: Any) -> None:
        self._reader, self._writer = reader, writer
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(messages)

    @classmethod
    async def over(cls, end: socket.socket, messages: Any) -> Channel[T]:
        """Makes a channel that takes the socket over."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_BUFFER_BYTES), messages)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that ``send`` accepted and that the operating system has not yet taken."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: msgspec.Struct) -> None:
        if self._writer.is_closing():
            return  # the other end is gone; the receiving task detects that
        body = _encoder.encode(message)
        self._writer.write(len(body).to_bytes(_HEAD_BYTES, "big") + body)

    async def receive(self) -> T | None:
        """Returns the next message; None: the other end is gone. Raises ValueError for a frame that cannot be read."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_HEAD_BYTES), "big")
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes, expected at most {FRAME_BYTES_MAX}")
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return self._decoder.decode(body)

    async def flush(self) -> None:
        """Returns when the operating system has taken all sent data."""
        self._writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()
