"""The status of a call, for each way in which its stream ends. Of several causes it is the first."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from muster_bus.errors import LogUnavailable
from muster_gateway import metrics
from muster_gateway.errors import GatewayError, GatewayStopping, LogDown, RightRevoked, RmShutDown, Superseded
from muster_gateway.servicer import StreamCalls
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream import RmStream, StreamTable
from muster_gateway.stream_kind import StreamKind

KIND = StreamKind.ALLOCATION


class Context:
    """A call. Its writes wait until the client reads.

    :ivar ended: its status.
    """

    ended: tuple[grpc.StatusCode, str] | None = None

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.written: list[bytes] = []

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.ended = (code, details)

    def peer(self) -> str:
        return "ipv4:192.0.2.1:5"

    def invocation_metadata(self) -> tuple[()]:
        return ()


class Stream(RmStream):
    """A stream that fails, or waits for its end."""

    def __init__(self, context: Context, fails: Exception | None = None, **parts: object) -> None:
        all_parts: Any = SimpleNamespace(settings=GatewaySettings(), table=StreamTable(), **parts)
        super().__init__(all_parts, KIND, context)  # type: ignore[arg-type]
        self.rm_id, self.fails = "rm", fails

    async def run(self) -> GatewayError:
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        return await self._ending.wait()


def told(reason: GatewayError | None) -> tuple[grpc.StatusCode, str] | None:
    """The status of a call with this reason; None: it ends regularly."""
    assert reason is not None
    return None if reason.code is grpc.StatusCode.OK else (reason.code, str(reason))


def ended_as(status: str) -> float:
    return metrics.streams_ended.labels(KIND.name.lower(), status)._value.get()


@pytest.mark.parametrize(
    ("error", "code", "details"),
    [
        (LogDown("the log is away: try again"), grpc.StatusCode.UNAVAILABLE, "the log is away"),
        (LogUnavailable("Kafka at 10.0.0.1:9092 is away"), grpc.StatusCode.UNAVAILABLE, "the log does not answer"),
        (KeyError("a defect"), grpc.StatusCode.INTERNAL, "internal error"),
    ],
)
async def test_a_log_that_is_away_is_no_defect(error: Exception, code: grpc.StatusCode, details: str) -> None:
    context = Context()
    await StreamCalls(10).serve(Stream(context, error), context)
    assert context.ended is not None
    assert context.ended[0] is code
    assert details in context.ended[1]
    assert "10.0.0.1" not in context.ended[1]


FAILURES = [
    LogDown("the log is away"),
    LogUnavailable("Kafka is away"),
    KeyError("a defect"),
]
ENDS = [
    GatewayStopping(),
    Superseded.by_stream("rm", KIND),
    Superseded.by_registration("rm"),
    RightRevoked("somebody"),
    RmShutDown("the RM shut down"),
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("end", ENDS)
async def test_a_failure_after_the_reason_does_not_hide_it(end: GatewayError, failure: Exception) -> None:
    context = Context()
    stream = Stream(context, failure)
    stream.end(end)
    before = ended_as(end.code.name)
    await StreamCalls(10).serve(stream, context)
    assert (context.ended, stream.reason) == (told(end), end)
    assert ended_as(end.code.name) == before + 1


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("end", ENDS)
async def test_a_reason_after_a_failure_does_not_hide_it(end: GatewayError, failure: Exception) -> None:
    context = Context()
    stream = Stream(context, failure)
    await StreamCalls(10).serve(stream, context)
    stream.end(end)
    assert stream.reason is not end
    assert context.ended == told(stream.reason)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("pair", list(pairwise(ENDS)))
async def test_of_two_ends_the_first_is_told(pair: tuple[GatewayError, GatewayError], order: tuple[int, int]) -> None:
    context = Context()
    stream = Stream(context)
    serving = asyncio.create_task(StreamCalls(10).serve(stream, context))
    await asyncio.sleep(0)
    for number in order:
        stream.end(pair[number])
    await serving
    assert context.ended == told(pair[order[0]])


async def test_a_client_that_leaves_after_the_end_is_counted_by_its_reason() -> None:
    context = Context()
    stream = Stream(context)
    serving = asyncio.create_task(StreamCalls(10).serve(stream, context))
    await asyncio.sleep(0)
    before, cancelled = ended_as("UNAVAILABLE"), ended_as("CANCELLED")
    stream.end(GatewayStopping())
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (ended_as("UNAVAILABLE"), ended_as("CANCELLED")) == (before + 1, cancelled)


async def test_an_end_after_the_client_left_changes_nothing() -> None:
    context = Context()
    stream = Stream(context)
    serving = asyncio.create_task(StreamCalls(10).serve(stream, context))
    await asyncio.sleep(0)
    before, cancelled = ended_as("UNAVAILABLE"), ended_as("CANCELLED")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    stream.end(GatewayStopping())
    assert (ended_as("UNAVAILABLE"), ended_as("CANCELLED")) == (before, cancelled + 1)


@pytest.mark.parametrize("first", ["the feed", "the gateway"])
async def test_what_happens_while_the_last_answers_are_written_comes_later(first: str) -> None:
    context = Context()
    failure = LogDown("the response log is damaged")

    async def catch_up(*_: object) -> None:
        if first == "the gateway":
            stream.end(stopping)
        stream._answers.append(b"rejected")
        raise failure

    stopping = GatewayStopping()
    stream = Stream(context, catch_up=SimpleNamespace(run=catch_up))
    stream._feed = SimpleNamespace(error=None, attached=False, has_due=False, next_due=lambda: None)  # type: ignore[assignment]
    stream._tail = object()  # type: ignore[assignment]
    writing = asyncio.create_task(stream._write_responses())
    for _ in range(10):
        await asyncio.sleep(0)
    stream.end(stopping)
    context.reads.set()
    await writing
    assert stream.reason is (failure if first == "the feed" else stopping)
    assert context.written == [b"rejected"]
