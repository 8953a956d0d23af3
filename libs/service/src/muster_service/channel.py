"""Messages between a process and its child, over a pair of sockets.

A frame is a length (4 bytes, big-endian) and a message as MessagePack. An end of file says that the other one is gone.
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
    """What goes over, by its class's name."""


class Channel(Generic[T]):
    """One end. ``send`` never waits: how much may be under way is for its users to bound.

    :param messages: what can come: a union of messages.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, messages: Any) -> None:
        self._reader, self._writer = reader, writer
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(messages)

    @classmethod
    async def over(cls, end: socket.socket, messages: Any) -> Channel[T]:
        """Takes the socket over."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_BUFFER_BYTES), messages)

    @property
    def unsent_bytes(self) -> int:
        """What the other end has left in the way: sent, and not with the system yet."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: msgspec.Struct) -> None:
        if self._writer.is_closing():
            return  # nobody is there any more; whoever receives hears of it
        body = _encoder.encode(message)
        self._writer.write(len(body).to_bytes(_HEAD_BYTES, "big") + body)

    async def receive(self) -> T | None:
        """The next one; None: the other end is gone. Raises ValueError for what makes no sense."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_HEAD_BYTES), "big")
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes, expected at most {FRAME_BYTES_MAX}")
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return self._decoder.decode(body)

    async def flush(self) -> None:
        """Returns when everything that was sent is with the system."""
        self._writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()
