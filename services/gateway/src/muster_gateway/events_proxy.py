"""muster.v1.Events at the gateway: passes calls to the event publisher, byte for byte (proto/muster/v1/events.proto).

The proxy parses and keeps nothing. It passes a Watch's messages one at a time, so a slow caller delays only the
publisher's side of its own call. The proxy sends the caller's metadata, the caller's address as ``x-forwarded-for``,
and ``gateway.default_rm``; it returns the publisher's status and trailing metadata. If the publisher runs in this
process, its own handlers take the proxy's place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import grpc
import structlog
from muster_proto.muster.v1 import events_pb2
from muster_runtime.addresses import host_of_peer
from muster_runtime.caller import current
from muster_runtime.default_rm import DEFAULT_RM_METADATA, default_rm_metadata
from muster_runtime.grpc_headers import send_headers
from muster_runtime.read_scope import REACH_METADATA
from muster_runtime.service_lifecycle import run_until

from muster_gateway import metrics
from muster_gateway.errors import GatewayError, GatewayStopping
from muster_gateway.servicer import refuse

log = structlog.get_logger(__name__)

# Taken from the descriptor, which reflection needs in this process.
SERVICE = events_pb2.DESCRIPTOR.services_by_name["Events"].full_name
# The publisher's own statuses carry this metadata. A status without it comes from the connection.
SOURCE_METADATA = "muster-source"
_FORWARDED = "x-forwarded-for"
# These belong to one connection, or the library makes new ones.
_NOT_FORWARDED = ("grpc-", ":")
_NOT_FORWARDED_NAMES = frozenset(
    {"user-agent", "content-type", "te", "authorization", _FORWARDED, DEFAULT_RM_METADATA, REACH_METADATA}
)
_RECONNECT_MAX_MS = 2_000

Metadata = tuple[tuple[str, Any], ...]


class EventsEndpoint(Protocol):
    """The gateway's muster.v1.Events: this proxy, or the publisher's service in the same process."""

    def handlers(self) -> grpc.GenericRpcHandler: ...

    async def stop(self) -> None:
        """Refuses new calls and ends open ones."""
        ...


class ForwardedError(GatewayError):
    """The publisher's status, unchanged."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        super().__init__(details)
        self.code, self.trailing = code, trailing


class EventsProxy:
    """Passes calls to the publisher.

    :param url: grpc://host:port of the publisher.
    :param default_rm: the RM of a call that names none, where there are several; "": none.
    :param before: awaited before each call is passed on.
    """

    def __init__(
        self,
        url: str,
        keepalive_time_s: float,
        keepalive_timeout_s: float,
        default_rm: str = "",
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._before = before
        self._url, self._default_rm = url, default_rm_metadata(default_rm)
        # One channel for all calls. It connects at its first use, and again after a lost connection.
        self._channel = grpc.aio.insecure_channel(
            url.removeprefix("grpc://").rstrip("/"),
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", round(keepalive_time_s * 1000)),
                ("grpc.keepalive_timeout_ms", round(keepalive_timeout_s * 1000)),
                ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._stopping = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns generic handlers without serialisers."""
        methods: dict[str, Any] = {
            "Batch": grpc.unary_unary_rpc_method_handler(self._batch),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stop(self) -> None:
        """Refuses new calls and ends open ones with "connect again"."""
        self._stopping.set()

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    async def _batch(self, raw: bytes, context: Any) -> bytes:
        method = "Batch"
        try:
            await self._prepare()
            call: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")
            call = call(raw, metadata=self._forwarded(context), timeout=context.time_remaining())
            try:
                answer: bytes = await call
            except grpc.aio.AioRpcError as error:
                raise self._error(error.code(), error.details(), error.trailing_metadata()) from None
        except asyncio.CancelledError:
            metrics.events_calls.labels(method, "CANCELLED").inc()
            raise
        except Exception as error:
            await _refuse(context, error, method)
            raise
        metrics.events_calls.labels(method, "OK").inc()
        return answer

    async def _watch(self, raw: bytes, context: Any) -> None:
        method = "Watch"
        call: Any = None
        try:
            await self._prepare()
            opened: Any = self._channel.unary_stream(f"/{SERVICE}/{method}")
            call = opened(raw, metadata=self._forwarded(context), timeout=context.time_remaining())
            await self._pass(call, context)
        except asyncio.CancelledError:
            metrics.events_calls.labels(method, "CANCELLED").inc()
            raise
        except Exception as error:
            await _refuse(context, error, method)
        finally:
            if call is not None:
                call.cancel()
        metrics.events_calls.labels(method, "OK").inc()

    async def _pass(self, call: Any, context: Any) -> None:
        """Passes messages until either side ends the call, or the gateway stops. Raises GatewayError."""
        await send_headers(context)
        if not await run_until(self._pass_messages(call, context), self._stopping.wait()):
            raise GatewayStopping

    async def _pass_messages(self, call: Any, context: Any) -> None:
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                await context.write(message)
        except grpc.aio.AioRpcError:
            pass  # the call's status has the same error
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise self._error(code, await call.details(), await call.trailing_metadata())

    def _forwarded(self, context: Any) -> grpc.aio.Metadata:
        """Returns the caller's metadata, the caller's address, what the caller may read, and the default RM."""
        metadata = [(name, value) for name, value in context.invocation_metadata() or () if _is_forwarded(name)]
        own = ((_FORWARDED, host_of_peer(context.peer())), *current().read_scope().metadata(), *self._default_rm)
        return grpc.aio.Metadata(*metadata, *own)

    async def _prepare(self) -> None:
        if self._stopping.is_set():
            raise GatewayStopping
        if self._before is not None:
            await self._before()

    def _error(
        self, code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, Any]] | None
    ) -> Exception:
        passed = tuple((name, value) for name, value in trailing or () if _is_forwarded(name))
        if any(name == SOURCE_METADATA for name, _ in passed) or code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ForwardedError(code, details or "", passed)
        # The library's text is of no use to the caller, and it names addresses.
        log.warning("event publisher away", url=self._url, status=code.name, details=details)
        return ForwardedError(
            grpc.StatusCode.UNAVAILABLE, "the event publisher is not reachable, or broke off: call again", passed
        )


async def _refuse(context: Any, error: Exception, method: str) -> None:
    if isinstance(error, ForwardedError):
        metrics.events_calls.labels(method, error.code.name).inc()
        await context.abort(error.code, str(error), error.trailing)
    await refuse(context, error, lambda status: metrics.events_calls.labels(method, status))


def _is_forwarded(name: str) -> bool:
    return not name.startswith(_NOT_FORWARDED) and name not in _NOT_FORWARDED_NAMES
