"""muster.v1.Events on grpc.aio: bytes in and bytes out (proto/muster/v1/events.proto, docs/events-grpc.md).

There is one class for two servers. A publisher in a process of its own listens itself (:class:`EventsEndpoint`). If all
services share a process, the gateway adds the same handlers to its server.

``CancelledError`` is always raised again: a handler that swallows it makes grpc.aio send a status on a dead call and
leak (github.com/grpc/grpc/issues/43360).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
import structlog
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as grpc_health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from muster_runtime.addresses import host_of_peer
from muster_runtime.backoff import aligned_s
from muster_runtime.caller import INTERNAL, current
from muster_runtime.chance import SYSTEM, new_id
from muster_runtime.default_rm import default_from_metadata
from muster_runtime.grpc_headers import send_headers
from muster_runtime.positions import PositionWaits, ReadRefused
from muster_runtime.read_scope import ReadScope, scope_from_metadata
from muster_runtime.service_lifecycle import run_until
from prometheus_client import Counter

from muster_event_publisher import metrics
from muster_event_publisher.errors import BadRequest, GrpcError, TooManyReaders, Unavailable
from muster_event_publisher.grpc_codec import SERVICE, read_batch, read_watch
from muster_event_publisher.grpc_watch import EventHub, EventWatch
from muster_event_publisher.startup_gate import StartupFill

log = structlog.get_logger(__name__)

# The metadata key that marks an end by the publisher itself, not by a proxy on the way.
SOURCE_METADATA = ("muster-source", "event-publisher")
# The metadata key with which a trusted proxy names its caller.
FORWARDED_METADATA = "x-forwarded-for"
# Time for a caller to take the status of its ended call.
_STATUS_TIMEOUT_S = 5.0
_STOP_GRACE_S = 2.0
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS, _MIN_PING_INTERVAL_MS = 30_000, 10_000, 10_000
_REQUEST_BYTES_MAX = 1024 * 1024
_AGAIN = 503  # HTTP's status of what may be answered later


class EventsService:
    """The methods of muster.v1.Events.

    :param trusted_proxies: peers whose metadata x-forwarded-for names the caller.
    :param default_rm: the RM of calls that name none, if there are several; None: the gateway sends it in metadata.
    :param filling: calls wait for it; None: there is nothing to wait for.
    :param waits: of calls that name a position; None: positions are passed over.
    """

    def __init__(
        self,
        hub: EventHub,
        trusted_proxies: tuple[str, ...] = (),
        default_rm: str | None = None,
        filling: StartupFill | None = None,
        waits: PositionWaits | None = None,
    ) -> None:
        self._waits = waits
        self._hub, self._trusted, self._default_rm = hub, trusted_proxies, default_rm
        self._filling = filling if filling is not None else StartupFill(over=True)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Generic handlers without serialisers."""
        methods: dict[str, Any] = {
            "Batch": grpc.unary_unary_rpc_method_handler(self._batch),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stop(self) -> None:
        """Refuses new calls, and ends those that watch."""
        self._hub.stop()

    async def _batch(self, raw: bytes, context: Any) -> bytes:
        try:
            await self._wait(context)
            answer = await self._hub.batch(read_batch(raw), self._default(context), self._read_scope(context))
        except asyncio.CancelledError:
            metrics.BATCHES.labels("CANCELLED").inc()
            raise
        except Exception as error:
            await _refuse(context, error, metrics.BATCHES)
        metrics.BATCHES.labels("OK").inc()
        return answer

    async def _watch(self, raw: bytes, context: Any) -> None:
        watch: EventWatch | None = None
        try:
            await self._wait(context)
            watch = self._hub.watch(
                read_watch(raw), self._peer(context), self._default(context), self._read_scope(context)
            )
            await _serve(watch, context)
        except asyncio.CancelledError:
            cause = watch.ending.cause if watch is not None else None
            metrics.WATCHES_ENDED.labels("CANCELLED" if cause is None else cause.code.name).inc()
            raise
        except Exception as error:
            continuation = watch.continuation_metadata if watch is not None else ()
            if watch is not None:
                watch.close()  # the place is free before the caller gets the end, because it may call again at once
            await _refuse(context, error, metrics.WATCHES_ENDED, continuation)
        finally:
            if watch is not None:
                watch.close()

    async def _wait(self, context: Any) -> None:
        """Waits for the rings, and for the position that the call names. Raises GrpcError."""
        await self._filling.wait()
        if self._waits is None:
            return
        try:
            await self._waits.admit_grpc(context, self._peer(context))
        except ReadRefused as refused:
            if refused.is_over_limit:
                raise TooManyReaders(str(refused)) from None
            raise (Unavailable if refused.status == _AGAIN else BadRequest)(str(refused)) from None

    def _default(self, context: Any) -> str:
        if self._default_rm is not None:
            return self._default_rm
        return default_from_metadata(context.invocation_metadata() or ())

    def _read_scope(self, context: Any) -> ReadScope:
        """What the caller may read. In the gateway's process the gateway has set the caller. In another process only
        the gateway can call, and it sends this in metadata.
        """
        caller = current()
        return scope_from_metadata(context.invocation_metadata() or ()) if caller is INTERNAL else caller.read_scope()

    def _peer(self, context: Any) -> str:
        """The caller's address; through a trusted proxy, the one that the proxy names. On a Unix socket the gateway is
        that proxy.
        """
        peer: str = context.peer()
        host = host_of_peer(peer)
        if host in self._trusted or peer.startswith("unix:"):
            for name, value in context.invocation_metadata() or ():
                if name == FORWARDED_METADATA and isinstance(value, str):
                    host = value.split(",")[-1].strip() or host
        return host


async def _serve(watch: EventWatch, context: Any) -> None:
    """Writes until the caller leaves or the call must end. Raises GrpcError: the first reason for the end."""
    try:
        await send_headers(context)
        await run_until(_write(watch, context), watch.ending.wait())
    except GrpcError as error:
        watch.end(error)
    except Exception:
        if watch.ending.cause is None:
            raise
    if watch.ending.cause is not None:
        raise watch.ending.cause


async def _write(watch: EventWatch, context: Any) -> None:
    async with aclosing(watch.messages()) as messages:
        async for message in messages:
            watch.sending(True)
            await context.write(message)
            watch.sending(False)


async def _refuse(
    context: Any, error: Exception, counter: Counter, continuation: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    """Ends a call with the status of an error; an unexpected one gives INTERNAL and a number for the operator."""
    if isinstance(error, GrpcError):
        code, reason = error.code, str(error)
    else:
        number = new_id(SYSTEM, 6)
        log.error("internal error", number=number, exc_info=error)
        code, reason = grpc.StatusCode.INTERNAL, f"internal error {number}: the event publisher's log has the details"
    counter.labels(code.name).inc()
    if continuation:
        log.info("watching ended", status=code.name, reason=reason, **dict(continuation))
    async with asyncio.timeout(_STATUS_TIMEOUT_S):
        await context.abort(code, reason, (SOURCE_METADATA, *continuation))
    raise AssertionError("abort raises")


class EventsServer:
    """The publisher's own gRPC address: the service, with health and reflection.

    :param address: host:port; port 0: any free.
    """

    def __init__(self, service: EventsService, address: str, healthy: Callable[[], Awaitable[bool]]) -> None:
        self.port = 0
        self._service, self._address, self._healthy = service, address, healthy
        self._health = grpc_health_aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Starts the server, which serves when this returns. Raises OSError."""
        server = self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            ]
        )
        server.add_generic_rpc_handlers((self._service.handlers(),))
        add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        try:
            self.port = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"grpc_address: {self._address!r} cannot be listened on") from error
        await self.update_health()
        await server.start()

    async def update_health(self) -> None:
        """Checks the publisher's health regularly and sets it in gRPC's health service."""
        good = self._server is not None and await self._healthy()
        status = health_pb2.HealthCheckResponse.SERVING if good else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def watch_health(self, interval_s: float) -> None:
        """Reports the health regularly, without end."""
        while True:
            await asyncio.sleep(aligned_s(interval_s))
            await self.update_health()

    async def stop(self) -> None:
        """Ends open calls and closes."""
        await self._service.stop()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)

    async def kill(self) -> None:
        """Closes at once, like a crash. For tests."""
        if self._server is not None:
            await self._server.stop(None)
