"""Silent streams that are opened again as fast as they end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from bench.neighbours.rm import SERVICE, connected
from bench.neighbours.rows import Row, Target, begin

CONNECTIONS, STREAMS = 20, 200
_RETRY_S = 0.1


async def be_silent(target: Target) -> None:
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connected(target)) for _ in range(CONNECTIONS)]
        opened = 0

        async def stay_silent(channel: grpc.aio.Channel) -> None:
            nonlocal opened
            while True:
                call: Any = channel.stream_stream(f"{SERVICE}UpdateNode")()
                opened += 1
                if opened == CONNECTIONS * STREAMS:
                    begin()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    while await call.read() is not grpc.aio.EOF:
                        pass
                await asyncio.sleep(_RETRY_S)

        await asyncio.gather(*(stay_silent(channel) for channel in channels for _ in range(STREAMS)))


ROWS = (Row("streams", f"{CONNECTIONS * STREAMS:,} silent streams, opened again as fast as they end", be_silent),)
