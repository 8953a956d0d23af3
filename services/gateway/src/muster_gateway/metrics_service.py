"""muster.v1.Metrics on grpc.aio: the state in figures, once or repeatedly (proto/muster/v1/metrics.proto).

The view has the figures; this gateway asks the view and adds its own process. All watchers of the same query with the
same interval ask at the same moments, so one question to the view serves them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sized
from dataclasses import replace
from typing import Any

import grpc
from muster_bus.clock import Clock
from muster_runtime.caller import current
from muster_runtime.process_stats import process_figures

from muster_gateway import metrics
from muster_gateway.errors import GatewayStopping, InvalidRequest, NotFound, OverLimit, ViewUnavailable
from muster_gateway.metrics_codec import MetricsQuery, RmStatus, SnapshotEncoder, decode_request, decode_watch
from muster_gateway.servicer import refuse
from muster_gateway.settings import GatewaySettings
from muster_gateway.shared_snapshots import SharedSnapshots
from muster_gateway.view_client import ViewAnswer, ViewClient, path_of

SERVICE = "muster.v1.Metrics"

_SNAPSHOT = path_of("metrics", "snapshot")
# A watcher's first snapshot may be as old as this.
_NEW_ENOUGH_S = 0.1
_OK = 200


class MetricsServicer:
    """The methods of muster.v1.Metrics.

    :param streams: the open streams of this gateway, for its figures.
    :param rm_status: returns an RM's state as the gateways have it, which is ahead of the view's while no scheduler
        decides; None: they have none.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        clock: Clock,
        view: ViewClient,
        streams: Sized,
        rm_status: Callable[[str, bool], Awaitable[RmStatus | None]] | None = None,
    ) -> None:
        self._settings, self._clock, self._view, self._streams = settings, clock, view, streams
        self._rm_status = rm_status
        self._shared = SharedSnapshots(self.snapshot, clock)
        self._watchers = 0
        self._stopping = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Returns generic handlers without serialisers."""
        methods: dict[str, Any] = {
            "Get": grpc.unary_unary_rpc_method_handler(self._get),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stop(self) -> None:
        """Refuses new calls. Ends each watcher as soon as its reader has taken the last snapshot."""
        self._stopping.set()
        await self._shared.close()

    async def snapshot(self, query: MetricsQuery) -> bytes:
        """Takes a MetricsSnapshot now. Raises InvalidRequest, NotFound, ViewUnavailable."""
        with metrics.snapshot_seconds.time():
            answer = await self._view.get(_SNAPSHOT, query.rm_id, query.parameters(), query.read_scope)
            _check(answer)
            encoder = SnapshotEncoder(answer.body, process_figures(), len(self._streams))
            for _ in encoder.steps():
                await asyncio.sleep(0)
            if self._rm_status is not None:
                encoder.set_status(await self._rm_status(encoder.rm_id, encoder.is_paused))
            return encoder.message()

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def _get(self, raw: bytes, context: Any) -> bytes:
        try:
            self._check_open()
            query = decode_request(raw, self._settings.limits)
            snapshot = await self.snapshot(replace(query, read_scope=current().read_scope()))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await refuse(context, error, _ended("Get"))
        metrics.metrics_calls.labels("Get", "OK").inc()
        return snapshot

    async def _watch(self, raw: bytes, context: Any) -> None:
        try:
            self._check_open()
            query, interval_s = decode_watch(raw, self._settings.limits)
            # (Watchers share snapshots: no watcher waits for another one's position.)
            await self._view.wait_for_position()
            current().after = ""
            with self._watcher_slot():
                query = replace(query, read_scope=current().read_scope())
                async for snapshot in self._snapshots(query, interval_s):
                    await context.write(snapshot)
                    metrics.snapshots_watched.inc()
        except asyncio.CancelledError:
            metrics.metrics_calls.labels("Watch", "CANCELLED").inc()
            raise
        except Exception as error:
            await refuse(context, error, _ended("Watch"))

    async def _snapshots(self, query: MetricsQuery, interval_s: float) -> AsyncIterator[bytes]:
        """Yields a snapshot at once, then one at each multiple of the interval. Skips those for which the reader was
        too slow.

        If the view needs long for an answer, the next question comes after a pause of the same length. Raises
        GatewayStopping at the end, and the errors of :meth:`snapshot`.
        """
        with self._shared.watching(query):
            due_s = self._clock.monotonic() - _NEW_ENOUGH_S
            while True:
                taken = await self._shared.get(query, due_s)
                yield taken.payload
                now_s = self._clock.monotonic()
                rested_s = taken.began_s + 2 * taken.took_s
                due_s = _next(max(now_s, due_s, rested_s), interval_s)
                await self._sleep(due_s - now_s)

    async def _sleep(self, length_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(length_s):
                await self._stopping.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self._stopping.is_set():
            raise GatewayStopping

    @contextlib.contextmanager
    def _watcher_slot(self) -> Iterator[None]:
        """Takes one of the places for watchers."""
        limit = self._settings.max_metrics_watchers
        if self._watchers >= limit:
            raise OverLimit(f"{self._watchers} calls watch metrics here, expected at most {limit}: try another gateway")
        self._watchers += 1
        metrics.metrics_watchers.inc()
        try:
            yield
        finally:
            self._watchers -= 1
            metrics.metrics_watchers.dec()


def _ended(method: str) -> Callable[[str], Any]:
    return lambda status: metrics.metrics_calls.labels(method, status)


def _next(after_s: float, interval_s: float) -> float:
    """Returns the first multiple of the interval after a moment."""
    return (after_s // interval_s + 1) * interval_s


def _check(answer: ViewAnswer) -> None:
    """Raises the gRPC error for an error answer of the view."""
    if answer.status == _OK:
        return
    try:
        message = str(json.loads(answer.body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the view answered with HTTP status {answer.status}"
    match answer.status:
        case 400:
            raise InvalidRequest(message)
        case 404:
            raise NotFound(message)
    raise ViewUnavailable(message)
