"""The status of a call, for each way in which its stream ends."""

from __future__ import annotations

import grpc
import pytest
from muster_bus.errors import LogUnavailable
from muster_gateway.errors import LogDown
from muster_gateway.servicer import StreamCalls
from muster_gateway.stream_kind import StreamKind


class Stream:
    """A stream that ends with the given result."""

    kind, rm_id = StreamKind.ALLOCATION, "rm"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def run(self) -> None:
        raise self._error

    async def finish(self) -> None:
        return


class Context:
    ended: tuple[grpc.StatusCode, str] | None = None

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.ended = (code, details)


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
    await StreamCalls(10).serve(Stream(error), context)  # type: ignore[arg-type]
    assert context.ended is not None
    assert context.ended[0] is code
    assert details in context.ended[1]
    assert "10.0.0.1" not in context.ended[1]
