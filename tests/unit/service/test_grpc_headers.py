"""A call's status reaches the caller although a write was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from muster_runtime.grpc_headers import send_headers
from muster_runtime.service_lifecycle import run_until

MESSAGE = b"x" * (1 << 20)  # more than flow control lets through at once
PATIENCE_S = 60

Handler = Callable[[bytes, Any], Awaitable[None]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[grpc.aio.UnaryStreamMultiCallable]:
    server = grpc.aio.server()
    methods = {"Watch": grpc.unary_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(PATIENCE_S):
            yield channel.unary_stream("/test.Service/Watch")
    finally:
        await server.stop(None)


async def test_the_status_arrives_although_the_first_write_was_cancelled() -> None:
    async def ended_while_it_wrote(_: bytes, context: Any) -> None:
        await send_headers(context)
        await run_until(context.write(MESSAGE), asyncio.sleep(0))
        await context.abort(grpc.StatusCode.ABORTED, "the right was withdrawn")

    async with served(ended_while_it_wrote) as watch:
        with pytest.raises(grpc.aio.AioRpcError, match="the right was withdrawn") as ended:
            async for _ in watch(b""):
                pass
        assert ended.value.code() is grpc.StatusCode.ABORTED


async def test_headers_that_were_sent_are_not_sent_again() -> None:
    async def twice(_: bytes, context: Any) -> None:
        await send_headers(context)
        await send_headers(context)
        await context.write(b"one")

    async with served(twice) as watch:
        assert [each async for each in watch(b"")] == [b"one"]


async def test_a_cancelled_call_has_sent_its_headers() -> None:
    async def cancelled(_: bytes, context: Any) -> None:
        assert not await run_until(send_headers(context), asyncio.sleep(0))
        await context.abort(grpc.StatusCode.ABORTED, "the right was withdrawn")

    async with served(cancelled) as watch:
        call = watch(b"")
        assert await call.code() is grpc.StatusCode.ABORTED
        assert await call.details() == "the right was withdrawn"
