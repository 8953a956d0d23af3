"""A neighbour's RM: raw messages, and every answer is read and dropped, with as little work as possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from muster_proto.si.v1 import si_pb2 as si

from bench.neighbours.rows import Target

SERVICE = "/si.v1.Scheduler/"
# (gRPC shares connections of channels with the same options)
OPTIONS: list[tuple[str, Any]] = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[grpc.aio.Channel]:
    """Open a connection that no other channel shares."""
    async with grpc.aio.insecure_channel(target.gateway, options=OPTIONS) as channel:
        yield channel


async def register(channel: grpc.aio.Channel, rm_id: str, config: str) -> None:
    """Register; raises grpc.aio.AioRpcError."""
    request = si.RegisterResourceManagerRequest(rmID=rm_id, config=config)
    await channel.unary_unary(f"{SERVICE}RegisterResourceManager")(request.SerializeToString(), timeout=120)


class Stream:
    """One of the RM's streams. It counts what the answers name."""

    def __init__(self, channel: grpc.aio.Channel, method: str, rm_id: str, answer: type[Any] | None = None) -> None:
        self._call: Any = channel.stream_stream(f"{SERVICE}{method}")(metadata=[("muster-rm-id", rm_id)])
        self._answer = answer
        self._changed = asyncio.Condition()
        self.counts: dict[str, int] = {}
        self._reading = asyncio.create_task(self._read())

    async def write(self, message: Any) -> None:
        """Send a message, or its bytes."""
        await self._call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def reached(self, field: str, count: int) -> None:
        """Wait until the answers have had so many items of this field."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.counts.get(field, 0) >= count)

    async def ended(self) -> None:
        """Wait for the end of the stream."""
        await self._reading

    async def _read(self) -> None:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            if self._answer is None:
                continue
            async with self._changed:
                for field, items in self._answer.FromString(data).ListFields():
                    self.counts[field.name] = self.counts.get(field.name, 0) + len(items)
                self._changed.notify_all()
