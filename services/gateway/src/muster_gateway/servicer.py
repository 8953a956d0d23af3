"""si.v1.Scheduler on grpc.aio, with bytes in and bytes out: nothing is parsed here.

Every call ends in one of three ways: normally, with the status of a GatewayError, or, after a defect, with INTERNAL and
a number. No traceback ever reaches a client. ``CancelledError`` is always raised again: if a handler swallows it,
grpc.aio sends a status on a dead call and leaks (github.com/grpc/grpc/issues/43360).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import structlog
from muster_bus.errors import LogUnavailable
from muster_runtime.caller import current
from muster_si.positions import POSITION_METADATA

from muster_gateway import metrics
from muster_gateway.audit import AuditWriter
from muster_gateway.call_limits import CallLimits, caller_of
from muster_gateway.errors import GatewayError, GatewayStopping, LogDown, OverLimit, PermissionDenied
from muster_gateway.registration import RegistrationService, format_problem
from muster_gateway.stream import RmStream, StreamDependencies, unexpected
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

SERVICE = "si.v1.Scheduler"
# A registration's warnings travel as trailing metadata, one entry each, which has no room for a long list.
WARNING_METADATA = "muster-warning-bin"
_MAX_WARNINGS = 20
_MAX_WARNING_BYTES = 200
# Time for the last writes, cursor and seat of every stream; an unreachable session store needs its own time-out.
_STOP_WAIT_S = 5.0

_STREAM_METHODS = {
    "UpdateAllocation": StreamKind.ALLOCATION,
    "UpdateApplication": StreamKind.APPLICATION,
    "UpdateNode": StreamKind.NODE,
}


class StreamCalls:
    """The open streaming calls of a gateway, of all its services: counts, limits and ends them.

    :param limits: of each caller; None: only the number of all streams is limited.
    :param audit: takes the streams whose caller has no right to their RM.
    """

    def __init__(self, max_streams: int, limits: CallLimits | None = None, audit: AuditWriter | None = None) -> None:
        self._audit = audit
        self._max_streams, self._limits = max_streams, limits
        self._finishing: set[asyncio.Task[None]] = set()
        self._calls: dict[RmStream, None] = {}  # in the order of their coming
        self.stopping = False

    def __len__(self) -> int:
        return len(self._calls)

    async def serve(self, stream: RmStream, context: Any) -> None:
        """Runs a stream to its end, and sets the call's status: the first reason for the end."""
        name = stream.kind.name.lower()
        self._calls[stream] = None
        metrics.streams_open.labels(name).inc()
        if self._limits is not None:
            self._limits.add_silent(stream, caller_of(context))
        try:
            self._check_stream_limit()
            stream.end(await stream.run())
        except asyncio.CancelledError:
            metrics.streams_ended.labels(name, "CANCELLED" if stream.reason is None else stream.reason.code.name).inc()
            raise
        except GatewayError as error:
            stream.end(error)
            if self._audit is not None and isinstance(error, PermissionDenied):
                self._audit.record_refused(current(), str(error.needed), stream.rm_id, error)
        except LogUnavailable as error:
            log.warning("stream ends, the log is unavailable", stream=name, rm_id=stream.rm_id, error=str(error))
            stream.end(LogDown("the log does not answer: try again"))
        except Exception as error:
            stream.end(unexpected(error))
        finally:
            metrics.streams_open.labels(name).dec()
            if self._limits is not None:
                self._limits.remove_silent(stream, caller_of(context))
            self._finish(stream)
        ending = stream.reason
        assert ending is not None, "it has ended"
        metrics.streams_ended.labels(name, ending.code.name).inc()
        if self._limits is not None and isinstance(ending, OverLimit):
            await self._limits.delay_refusal(caller_of(context), placed=True)
        if ending.code is not grpc.StatusCode.OK:
            await context.abort(ending.code, str(ending))

    async def stop(self) -> None:
        """Refuses new calls and ends the open streams. Returns when all have left their seats."""
        self.stopping = True
        for stream in list(self._calls):
            stream.end(GatewayStopping())
        await asyncio.gather(*(stream.wait_finished(_STOP_WAIT_S) for stream in list(self._calls)))

    def _check_stream_limit(self) -> None:
        if self.stopping:
            raise GatewayStopping
        limit = self._max_streams
        if len(self._calls) > limit:
            raise OverLimit(f"{len(self._calls) - 1} streams are open, expected at most {limit}: try another gateway")

    def _finish(self, stream: RmStream) -> None:
        """Finishes a stream in a task of its own, because a cancelled handler must end at once."""
        task = asyncio.create_task(stream.finish(), name="finish stream")
        self._finishing.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._finishing.discard(task)
            self._calls.pop(stream, None)

        task.add_done_callback(done)


class SchedulerServicer:
    """The four methods of SI."""

    def __init__(self, parts: StreamDependencies, registrar: RegistrationService, calls: StreamCalls) -> None:
        self._dependencies, self._registrar, self._calls = parts, registrar, calls

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns generic handlers without serialisers: messages stay bytes."""
        methods: dict[str, Any] = {
            "RegisterResourceManager": grpc.unary_unary_rpc_method_handler(self._register),
        }
        for name, kind in _STREAM_METHODS.items():
            methods[name] = grpc.stream_stream_rpc_method_handler(self._stream_handler(kind))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _register(self, raw: bytes, context: Any) -> bytes:
        try:
            if self._calls.stopping:
                raise GatewayStopping
            warnings = await self._registrar.register(raw)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await refuse(context, error, metrics.registrations.labels)
        metrics.registrations.labels("OK").inc()
        texts = [format_problem(warning).encode()[:_MAX_WARNING_BYTES] for warning in warnings[:_MAX_WARNINGS]]
        send_position(context, [(WARNING_METADATA, text) for text in texts])
        return b""

    def _stream_handler(self, kind: StreamKind) -> Callable[[Any, Any], Awaitable[None]]:
        async def handle(_requests: Any, context: Any) -> None:
            await self._calls.serve(RmStream(self._dependencies, kind, context), context)

        return handle


def send_position(context: Any, beside: Sequence[tuple[str, str | bytes]] = ()) -> None:
    """Sets a call's trailing metadata: the position of what the present call changed, if anything, and others."""
    position = current().position
    if metadata := [*beside, *([(POSITION_METADATA, position)] if position else [])]:
        context.set_trailing_metadata(metadata)


async def refuse(context: Any, error: Exception, labels: Callable[[str], Any]) -> NoReturn:
    """Ends a unary call with an error's status, and counts it. An unexpected error gives INTERNAL and a number."""
    reported = error if isinstance(error, GatewayError) else unexpected(error)
    labels(reported.code.name).inc()
    await context.abort(reported.code, str(reported))
    raise AssertionError("abort raises")
