"""The contract of gRPC calls, as the gateway and the clients use them: over real gRPC, and over its stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Protocol

import grpc
import grpc.aio
import pytest
from virtual.ports import Ports

PATIENCE_S = 30.0
QUIET_S = 0.1  # long enough to see what must not happen, if it does
LARGE = bytes(1 << 15)
MANY = 1_000  # of them are more than sockets and gRPC keep for a reader that takes none
Methods = dict[str, Any]


async def stands_still(count: Callable[[], int]) -> None:
    """Waits until a count is not 0 and no longer grows."""
    before = 0
    while count() == 0 or count() != before:
        before = count()
        await asyncio.sleep(QUIET_S)


class Bench(Protocol):
    async def serve(self, methods: Methods, interceptors: tuple[Any, ...] = ()) -> Any:
        """Serves methods of the service ``t.T``. Returns a channel to them."""
        ...

    async def stop(self) -> None:
        """Stops the server at once."""
        ...

    def nowhere(self) -> Any:
        """A channel to a place where nobody serves."""
        ...


class RealBench:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, methods: Methods, interceptors: tuple[Any, ...] = ()) -> Any:
        self._server = server = grpc.aio.server(interceptors=interceptors)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._stack.push_async_callback(server.stop, 0)
        return await self._stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))

    async def stop(self) -> None:
        await self._server.stop(0)

    def nowhere(self) -> Any:
        channel = grpc.aio.insecure_channel("127.0.0.1:1")
        self._stack.push_async_callback(channel.close)
        return channel


class VirtualBench:
    def __init__(self) -> None:
        self._ports = Ports(Random(1))

    async def serve(self, methods: Methods, interceptors: tuple[Any, ...] = ()) -> Any:
        self._server = server = self._ports.server(interceptors=interceptors)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return self._ports.channel(f"127.0.0.1:{port}")

    async def stop(self) -> None:
        await self._server.stop(0)

    def nowhere(self) -> Any:
        return self._ports.channel("127.0.0.1:1")


@pytest.fixture(params=["grpc", "virtual"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        yield RealBench(stack) if request.param == "grpc" else VirtualBench()


def streams(behaviour: Callable[[Any, Any], Any]) -> Methods:
    return {"Call": grpc.stream_stream_rpc_method_handler(behaviour)}


def unary(behaviour: Callable[[Any, Any], Any]) -> Methods:
    return {"Call": grpc.unary_unary_rpc_method_handler(behaviour)}


async def echo(_: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def test_messages_come_in_order_both_ways_and_the_end_after_them(bench: Bench) -> None:
    call = (await bench.serve(streams(echo))).stream_stream("/t.T/Call")()
    for number in range(50):
        await call.write(b"%d" % number)
    await call.done_writing()
    assert [await call.read() for _ in range(50)] == [b"%d" % number for number in range(50)]
    assert await call.read() is grpc.aio.EOF
    assert (await call.code(), await call.details()) == (grpc.StatusCode.OK, "")
    assert call.done()


async def test_a_half_closed_call_still_receives(bench: Bench) -> None:
    async def late(_: Any, context: Any) -> None:
        assert await context.read() == b"a"
        assert await context.read() is grpc.aio.EOF
        for each in (b"1", b"2", b"3"):
            await asyncio.sleep(0.01)
            await context.write(each)

    call = (await bench.serve(streams(late))).stream_stream("/t.T/Call")()
    await call.write(b"a")
    await call.done_writing()
    await call.done_writing()  # as often as one wants
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"b")
    assert [await call.read() for _ in range(4)] == [b"1", b"2", b"3", grpc.aio.EOF]


async def test_a_cancelled_call_cancels_its_handler(bench: Bench) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(_: Any, context: Any) -> None:
        await context.write(b"here")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set_result("cancelled")
            raise

    call = (await bench.serve(streams(wait))).stream_stream("/t.T/Call")()
    assert await call.read() == b"here"
    assert call.cancel()
    assert not call.cancel()
    assert await ended == "cancelled"
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    assert await call.code() is grpc.StatusCode.CANCELLED
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"late")


async def test_a_cancelled_read_cancels_the_call(bench: Bench) -> None:
    ended = asyncio.Event()

    async def wait(_: Any, context: Any) -> None:
        try:
            await context.write(b"here")
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = (await bench.serve(streams(wait))).stream_stream("/t.T/Call")()
    assert await call.read() == b"here"
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await ended.wait()
    assert call.done()


async def test_a_reader_that_takes_nothing_stops_the_writer(bench: Bench) -> None:
    goes_on = asyncio.Event()

    async def slow(_: Any, context: Any) -> None:
        await goes_on.wait()
        await echo(_, context)

    call = (await bench.serve(streams(slow))).stream_stream("/t.T/Call")()
    written = 0

    async def write() -> None:
        nonlocal written
        for _ in range(MANY):
            await call.write(LARGE)
            written += 1
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    await stands_still(lambda: written)
    assert written < MANY
    goes_on.set()
    count = 0
    while await call.read() is not grpc.aio.EOF:
        count += 1
    await writing
    assert count == written == MANY


async def test_a_client_that_takes_nothing_stops_the_handler(bench: Bench) -> None:
    written = 0

    async def much(_: Any, context: Any) -> None:
        nonlocal written
        for _number in range(MANY):
            await context.write(LARGE)
            written += 1

    call = (await bench.serve(streams(much))).stream_stream("/t.T/Call")()
    await stands_still(lambda: written)
    assert written < MANY
    count = 0
    while await call.read() is not grpc.aio.EOF:
        count += 1
    assert count == MANY


async def test_what_a_task_of_the_handler_gets_when_the_client_leaves(bench: Bench) -> None:
    found: dict[str, object] = {}
    done = asyncio.Event()

    async def work(_: Any, context: Any) -> None:
        async def read() -> None:
            found["read"] = await context.read()

        async def write() -> None:
            try:
                while True:
                    await context.write(LARGE)
            except grpc.aio.InternalError:
                found["write"] = "internal error"

        tasks = [asyncio.ensure_future(read()), asyncio.ensure_future(write())]
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.gather(*tasks).add_done_callback(lambda _: done.set())

    call = (await bench.serve(streams(work))).stream_stream("/t.T/Call")()
    await call.read()
    call.cancel()
    await done.wait()
    assert found == {"read": grpc.aio.EOF, "write": "internal error"}


async def test_an_aborted_call_says_why_behind_what_was_written(bench: Bench) -> None:
    async def refuse(_: Any, context: Any) -> None:
        await context.write(b"first")
        context.set_trailing_metadata([("reason", "none")])
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")

    call = (await bench.serve(streams(refuse))).stream_stream("/t.T/Call")()
    assert await call.read() == b"first"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert raised.value.details() == "not now"
    assert ("reason", "none") in [tuple(each) for each in await call.trailing_metadata()]


async def test_a_handler_that_ends_ends_the_call_of_a_client_that_writes(bench: Bench) -> None:
    async def short(_: Any, context: Any) -> None:
        await context.read()
        await context.abort(grpc.StatusCode.ABORTED, "another one")

    call = (await bench.serve(streams(short))).stream_stream("/t.T/Call")()

    async def write() -> None:
        while True:
            await call.write(LARGE)

    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await write()
    # (A write that meets the end hides its reason.)
    found = await call.code(), await call.details()
    assert found in (
        (grpc.StatusCode.ABORTED, "another one"),
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
    )


async def test_headers_come_once(bench: Bench) -> None:
    opens, second = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def late(_: Any, context: Any) -> None:
        await opens.wait()
        await context.send_initial_metadata(())
        try:
            await context.send_initial_metadata(())
        except grpc.aio.UsageError:
            second.set_result("refused")
        await asyncio.Event().wait()

    call = (await bench.serve(streams(late))).stream_stream("/t.T/Call")()
    headers = asyncio.ensure_future(call.initial_metadata())
    await asyncio.sleep(QUIET_S)
    assert not headers.done()
    opens.set()
    await headers
    assert await second == "refused"
    call.cancel()


async def test_a_call_that_ends_has_its_headers(bench: Bench) -> None:
    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no")

    call = (await bench.serve(streams(refuse))).stream_stream("/t.T/Call")()
    await call.initial_metadata()
    assert await call.code() is grpc.StatusCode.NOT_FOUND


async def test_a_unary_call_answers_with_metadata(bench: Bench) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        given = dict(context.invocation_metadata())
        context.set_trailing_metadata([("rm", given["rm"])])
        assert context.peer().startswith("ipv4:127.0.0.1")
        return request * 2

    channel = await bench.serve(unary(answer))
    asked = channel.unary_unary("/t.T/Call", request_serializer=str.encode, response_deserializer=bytes.decode)(
        "ab", metadata=(("rm", "one"),), timeout=20.0
    )
    assert await asked == "abab"
    assert ("rm", "one") in [tuple(each) for each in await asked.trailing_metadata()]
    assert await asked.code() is grpc.StatusCode.OK


async def test_a_refused_unary_call(bench: Bench) -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
        return request

    asked = (await bench.serve(unary(refuse))).unary_unary("/t.T/Call")(b"x")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.PERMISSION_DENIED, "not you")


async def test_a_deadline_ends_the_call_on_both_sides(bench: Bench) -> None:
    ended, left = asyncio.Event(), list[float]()

    async def wait(request: bytes, context: Any) -> bytes:
        left.append(context.time_remaining())
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return request

    asked = (await bench.serve(unary(wait))).unary_unary("/t.T/Call")(b"x", timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await ended.wait()
    assert 0 < left[0] <= 0.3


async def test_an_unknown_method(bench: Bench) -> None:
    asked = (await bench.serve(streams(echo))).unary_unary("/t.T/Other")(b"x")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_handler_that_fails(bench: Bench) -> None:
    async def fail(request: bytes, context: Any) -> bytes:
        raise ValueError("no")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    asked = (await bench.serve(unary(fail))).unary_unary("/t.T/Call")(b"x")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked
    assert raised.value.code() is grpc.StatusCode.UNKNOWN
    assert "no" in raised.value.details()


async def test_interceptors_stand_before_the_handler_and_may_remake_it(bench: Bench) -> None:
    seen: list[str] = []

    class Noting(grpc.aio.ServerInterceptor):
        def __init__(self, name: str) -> None:
            self._name = name

        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append(f"{self._name} {details.method}")
            return await continuation(details)

    class Streaming(grpc.aio.ServerInterceptor):
        """One request is a stream of one message."""

        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = await continuation(details)

            async def call(_: Any, context: Any) -> bytes:
                request = await context.read()
                assert await context.read() is grpc.aio.EOF
                answered: bytes = await handler.unary_unary(request, context)
                return answered

            return grpc.stream_unary_rpc_method_handler(call)

    async def answer(request: bytes, context: Any) -> bytes:
        return request.upper()

    channel = await bench.serve(unary(answer), (Noting("outer"), Noting("inner"), Streaming()))
    assert await channel.unary_unary("/t.T/Call")(b"x") == b"X"
    assert seen == ["outer /t.T/Call", "inner /t.T/Call"]


async def test_a_generator_answers_with_a_stream(bench: Bench) -> None:
    async def many(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(3):
            yield request + b"%d" % number

    channel = await bench.serve({"Call": grpc.unary_stream_rpc_method_handler(many)})
    assert [each async for each in channel.unary_stream("/t.T/Call")(b"x")] == [b"x0", b"x1", b"x2"]


async def test_nobody_serves(bench: Bench) -> None:
    asked = bench.nowhere().unary_unary("/t.T/Call")(b"x")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    call = bench.nowhere().stream_stream("/t.T/Call")()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_stops_ends_its_calls(bench: Bench) -> None:
    async def wait(_: Any, context: Any) -> None:
        await context.write(b"here")
        await asyncio.Event().wait()

    channel = await bench.serve(streams(wait))
    call = channel.stream_stream("/t.T/Call")()
    assert await call.read() == b"here"
    await bench.stop()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call.read()
    assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    later = channel.stream_stream("/t.T/Call")()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await later.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_closed_channel_ends_its_calls(bench: Bench) -> None:
    ended = asyncio.Event()

    async def wait(_: Any, context: Any) -> None:
        try:
            await context.write(b"here")
            await asyncio.Event().wait()
        finally:
            ended.set()

    channel = await bench.serve(streams(wait))
    call = channel.stream_stream("/t.T/Call")()
    assert await call.read() == b"here"
    await channel.close()
    await ended.wait()
    assert call.done()


@pytest.mark.parametrize("is_async", [False, True])
async def test_requests_may_be_given_as_an_iterable(bench: Bench, *, is_async: bool) -> None:
    async def three() -> AsyncIterator[bytes]:
        for each in (b"1", b"2", b"3"):
            yield each

    channel = await bench.serve(streams(echo))
    call = channel.stream_stream("/t.T/Call")(three() if is_async else iter((b"1", b"2", b"3")))
    assert [message async for message in call] == [b"1", b"2", b"3"]
    assert await call.code() is grpc.StatusCode.OK


async def test_what_a_cancelled_writer_wrote_arrives(bench: Bench) -> None:
    sent, written = 0, asyncio.Event()

    async def write_all(context: Any) -> None:
        nonlocal sent
        for sent in range(10_000):
            await context.write(b"%9d" % sent * 1_000)

    async def write_much(_: Any, context: Any) -> None:
        writing = asyncio.ensure_future(write_all(context))
        await asyncio.wait({writing}, timeout=0.2)
        writing.cancel()
        await asyncio.wait({writing})
        written.set()
        await context.abort(grpc.StatusCode.ABORTED, "over")

    call = (await bench.serve(streams(write_much))).stream_stream("/t.T/Call")()
    await written.wait()
    heard = [int((await call.read())[:9]) for _ in range(sent + 1)]
    assert heard == list(range(sent + 1))
    assert await call.code() is grpc.StatusCode.ABORTED
