"""Event streams: one cursor per client over ring and log (the event history design, streaming).

A stream has no buffer of events. It has a cursor, the next id to send: while the cursor is in the ring, events come
from there; when it is older, from the log; at the end it waits for more. History and live events are the same walk, so
there is no seam where one could be lost, doubled or out of order, and a slow client delays no other client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from muster_bus.clock import Clock, day_ns
from muster_runtime.backoff import aligned_s
from muster_runtime.ending import Ending
from muster_runtime.go_json import error_body
from muster_runtime.http_server import cut
from muster_runtime.service_lifecycle import wait_disconnected
from starlette.types import Receive, Scope, Send

from muster_event_publisher import event_json, metrics
from muster_event_publisher.errors import HttpError, OldEventsUnavailable
from muster_event_publisher.event_json import EventLines
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.object_states import EventSlice, ObjectStates
from muster_event_publisher.ring import EventRing
from muster_event_publisher.subscriber_limits import LagLimits, SubscriberCounts

log = structlog.get_logger(__name__)

# Events per chunk sent: some 60 KB, about a millisecond to render.
_CHUNK = 256
# Events older than the ring in one read: to begin a read costs as much as reading some thousand events.
_OLD_CHUNK = 8 * _CHUNK
# A stream that has caught up pauses for this time, times the number of open streams, before it sends again. So the cost
# of a hundred clients does not grow with the rate of decisions: more events go into one chunk instead.
_REST_S, _REST_MAX_S = 0.0002, 0.05
# How often the lag and stall of all streams are checked.
_CHECK_INTERVAL_S = 1.0
# A client whose stream ends has at least this long to read the last line, which gives the reason.
_LAST_LINE_S = 5.0


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """See the settings of the same names. ``total`` and ``per_host`` apply to RMs without settings of their own."""

    total: int
    per_host: int
    lag_records: int
    stall_s: float
    keepalive_s: float


class _End(NamedTuple):
    """Why a stream ends.

    :param reason: for the metric.
    :param message: for the client.
    """

    reason: str
    message: str


_DISCONNECTED = _End("left", "the client has left")


class EventStreams:
    """All open streams, and their limits."""

    def __init__(
        self, limits: StreamLimits, clock: Clock, room_of: Callable[[str], tuple[int, int]] | None = None
    ) -> None:
        self.limits, self.clock = limits, clock
        self.stopping = False
        self._limits_for = room_of or (lambda _rm_id: (limits.total, limits.per_host))
        self.open: SubscriberCounts[EventStream] = SubscriberCounts(metrics.STREAMS)

    def check_limits(self, host: str, rm_id: str = "") -> None:
        """Raises RequestRefused (503) when a limit of the RM is reached; without an id: no RM has events yet."""
        total, per_host = self._limits_for(rm_id)
        limit = "total" if self.open.of_rm(rm_id) >= total else ""
        if self.open.of_host(rm_id, host) >= per_host:
            limit = "host"
        if limit or self.stopping:
            metrics.STREAMS_REFUSED.labels(limit or "stopping").inc()
            raise HttpError(503, "Too many streaming connections" if limit else "The event publisher is stopping")

    async def watch(self) -> None:
        """Regularly ends the streams that are too far behind or stalled; never returns."""
        while True:
            await asyncio.sleep(aligned_s(_CHECK_INTERVAL_S))
            for stream in self.open:
                stream.check()


class EventStream:
    """One client's stream; an ASGI application that answers one request.

    The first line is ``{"InstanceUUID":…}``; it comes again after ``keepalive_s`` without another line. Then each event
    has a line, and their ids have no gap. Where ids are missing in the log, a line with InstanceUUID, NextID and a
    message says so. When the publisher ends the stream, the last line is an error object whose message gives the reason
    and the id to continue with.

    :ivar opened_ns: when the client connected.
    :param ring: None: no RM has events yet, and the stream begins with the first RM that has some.
    :param cursor: id of the first event to send.
    :param states: adds the state of its object to each event; None: events as YuniKorn sends them.
    """

    def __init__(
        self,
        streams: EventStreams,
        source: EventSource,
        ring: EventRing | None,
        cursor: int,
        host: str,
        headers: list[tuple[bytes, bytes]],
        states: ObjectStates | None = None,
    ) -> None:
        self.host = host
        self.opened_ns = day_ns(streams.clock)
        # The RM at the time of the request, for the limits.
        self.rm_id = ring.rm_id if ring is not None else ""
        self.cursor = cursor
        self._streams, self._source, self._ring, self._headers = streams, source, ring, headers
        self._states = states
        self._limits = streams.limits
        behind = ring.next_id - cursor if ring is not None else 0
        self._patience = LagLimits(self._limits.lag_records, self._limits.stall_s, streams.clock, behind)
        self._task: asyncio.Task[None] | None = None
        self._ending: Ending[_End] = Ending("an event stream")
        self._is_disconnected = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch_disconnect(receive))
        self._streams.open.enter(self)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            try:
                await self._run(send)
            except asyncio.CancelledError:
                if self._ending.cause is None:
                    raise
                assert self._task is not None, "set above"
                self._task.uncancel()
            if not self._is_disconnected and not await self._last_line(send):
                await cut(scope)
        except asyncio.CancelledError:
            if not self._is_disconnected:
                raise  # (a client that leaves during its first or last line ends like any other)
        finally:
            watcher.cancel()
            self._streams.open.leave(self)

    def check(self) -> None:
        """Ends the stream when its client is too far behind, or has read nothing for too long."""
        if self._ring is None or self._ending.cause is not None:
            return
        over = self._patience.exceeded_limit(self._ring.next_id - self.cursor)
        if over is not None:
            reason, words = over
            self._finish(reason, f"the client {words}")
            if self._task is not None:
                self._task.cancel()

    async def _run(self, send: Send) -> None:
        # 1. the RM
        while self._ring is None:
            if self._streams.stopping:
                self._finish("stopping", "the event publisher is stopping")
                return
            self._ring = self._source.first()
            if self._ring is None:
                await self._source.rings.changed.wait(None)
            else:
                self.cursor = self._ring.lowest
        ring, lines = self._ring, self._source.lines(self._ring)
        await self._put(send, event_json.instance_line(ring.instance))
        while self._ending.cause is None:
            if not self._source.settings.tracks(ring.rm_id):
                self._finish("disabled", "event tracking is disabled")
            # 2. events older than the ring come from the log
            elif self.cursor < ring.lowest:
                await self._send_old(send, ring)
            # 3. newer events come from the ring
            elif self.cursor < ring.next_id:
                await self._send_ring(send, ring, lines)
                if self.cursor == ring.next_id and not self._streams.stopping:
                    await asyncio.sleep(min(len(self._streams.open) * _REST_S, _REST_MAX_S))
            # 4. nothing left: wait for more
            else:
                self._patience.caught_up()
                if self._streams.stopping:
                    self._finish("stopping", "the event publisher is stopping")
                elif self._source.rings.get(ring.rm_id) is not ring:
                    self._finish("instance", "the event ids start again with another instance")
                elif not await ring.changed.wait(self._limits.keepalive_s or None):
                    await self._put(send, event_json.instance_line(ring.instance))

    async def _send_ring(self, send: Send, ring: EventRing, lines: EventLines) -> None:
        end = min(self.cursor + _CHUNK, ring.next_id)
        if self._states is not None:
            texts, values = _events(ring, lines, self.cursor, end)
            body = await self._states.chunk(EventSlice(ring.rm_id, ring.instance, self.cursor, texts, values))
        else:
            kept = lines.chunk(self.cursor, end)
            body = kept if kept is not None else _chunk(ring, lines, self.cursor, end)
            if kept is None:
                lines.store_chunk(self.cursor, end, body)
        await self._put(send, body)
        self.cursor = end

    async def _send_old(self, send: Send, ring: EventRing) -> None:
        try:
            old_events = await self._source.old(ring, self.cursor, _OLD_CHUNK)
        except OldEventsUnavailable as error:
            self._finish("log", str(error))
            return
        first_id = min(old_events.first_id, ring.lowest) if old_events else ring.lowest
        if first_id > self.cursor:
            await self._put(send, event_json.resync_line(ring.instance, self.cursor, first_id))
            self.cursor = first_id
        values = old_events.values if old_events and old_events.first_id == first_id else []
        for index in range(0, len(values), _CHUNK):
            part = values[index : index + _CHUNK]
            texts = [event_json.event_json(value) for value in part]
            if self._states is not None:
                texts = await self._states.add(EventSlice(ring.rm_id, ring.instance, self.cursor, texts, part))
            await self._put(send, b"".join([text + b"\n" for text in texts]))
            self.cursor += len(part)
            await asyncio.sleep(0)

    async def _put(self, send: Send, body: bytes) -> None:
        self._patience.sending(True)
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._patience.sending(False)

    async def _last_line(self, send: Send) -> bool:
        """Sends the reason of the end; False: the client did not read it in time."""
        assert self._ending.cause is not None, "what has ended has a cause"
        body = error_body(503, f"{self._ending.cause.message}; go on with ?start={self.cursor}")
        wait_s = _LAST_LINE_S
        stalled_s = self._patience.stalled_s
        if stalled_s is not None and not self._streams.stopping:
            # A stalled client gets the rest of its allowed stall to read the line.
            wait_s = max(wait_s, self._limits.stall_s - stalled_s)
        try:
            async with asyncio.timeout(wait_s):
                await send({"type": "http.response.body", "body": body, "more_body": False})
        except TimeoutError:
            log.info("a dropped client did not take its last line", host=self.host)
            return False
        return True

    def _finish(self, reason: str, message: str) -> None:
        end = _End(reason, message)
        if self._ending.by(end) is end:
            metrics.STREAMS_DROPPED.labels(reason).inc()
            log.info("event stream ended", host=self.host, reason=message, cursor=self.cursor)

    async def _watch_disconnect(self, receive: Receive) -> None:
        await wait_disconnected(receive)
        self._is_disconnected = True
        self._ending.by(_DISCONNECTED)
        if self._task is not None:
            self._task.cancel()


def _chunk(ring: EventRing, lines: EventLines, start: int, end: int) -> bytes:
    """The lines of the events ``start`` to ``end - 1``, which the ring holds."""
    texts, _ = _events(ring, lines, start, end)
    return b"\n".join([*texts, b""])


def _events(ring: EventRing, lines: EventLines, start: int, end: int) -> tuple[list[bytes], list[bytes | None]]:
    """The events as lines without line feeds, and as the log has them (None: a line that is no event)."""
    texts: list[bytes] = []
    values: list[bytes | None] = []

    def resync(next_id: int) -> None:
        assert missing_from is not None, "called where something is missing"
        texts.append(event_json.resync_line(ring.instance, missing_from, next_id).rstrip(b"\n"))
        values.append(None)

    missing_from: int | None = None
    live = start >= ring.plain_from
    for event_id, value in enumerate(ring.slice(start, end - start), start):
        if value is None:
            missing_from = event_id if missing_from is None else missing_from
            continue
        if missing_from is not None:
            resync(event_id)
            missing_from = None
        # Old lines are not cached: they would push out the lines that most clients need.
        texts.append(lines.get(event_id, value) if live else event_json.event_json(value))
        values.append(value)
    if missing_from is not None:
        resync(end)
    return texts, values
