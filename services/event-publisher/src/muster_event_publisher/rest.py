"""REST: ``/ws/v1/events/batch`` and ``/ws/v1/events/stream`` as YuniKorn's core answers them.

Muster adds headers, parameters and one field:

``?rm=``
    the RM of the events; needed only when several RMs have events.
``?start=`` of a stream
    the id of the first event: a client that lost its stream continues where it was.
``?state=``
    true or false: whether each event carries the state of its object (``state``, docs/history-servers.md). The default
    is true for a stream of a publisher that knows a view, because history servers send no parameters; it is false for
    a batch.
``X-Muster-Events-Source``
    batch: the source of the records: ``ring``; ``log`` or ``history`` (the exported events) when they are older.
``X-Muster-Next-ID``
    batch: the ``start`` for the next request; stream: the id of its first event line.
``X-Muster-Events-Missing``
    ids (first-last, comma-separated) that ring, log and history do not have. A batch has a stand-in record with a
    message for each one between two others, so that the n-th record always has the id ``start + n``.
``X-Muster-Events-Note``
    batch: one sentence when the answer is shorter than requested: an id that is not present yet, events that are gone,
    a count above the limit.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from muster_rest.publisher_routes import BATCH, OPEN_STREAMS, PUBLISHER, STREAM
from muster_rest.system_health import ServiceCheck
from muster_runtime.default_rm import default_from_headers
from muster_runtime.elapsed import elapsed_s
from muster_runtime.go_json import error_body
from muster_runtime.positions import PositionWaits
from muster_runtime.read_scope import scope_from_headers
from muster_runtime.service_lifecycle import run_until, wait_disconnected
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_event_publisher import event_json, metrics
from muster_event_publisher.errors import HttpError, OldEventsUnavailable, quote
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.object_states import EventSlice, ObjectStates
from muster_event_publisher.old_read_limiter import ReadSlots
from muster_event_publisher.rest_streams import EventStream, EventStreams
from muster_event_publisher.ring import EventRing, RingSlice
from muster_event_publisher.settings import PublisherSettings
from muster_event_publisher.startup_gate import StartupFill, StartupGate

_HEADERS = {
    "Content-Type": "application/json; charset=UTF-8",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "X-Requested-With,Content-Type,Accept,Origin",
    # Without this header, scripts of other origins cannot read them.
    "Access-Control-Expose-Headers": ",".join(
        ["X-Muster-Next-ID", "X-Muster-Events-Source", "X-Muster-Events-Missing", "X-Muster-Events-Note"]
    ),
}
# A request for nearly one of these paths (letter case, a slash at the end) is redirected there.
_NEAR = frozenset({BATCH.path, STREAM.path, OPEN_STREAMS.path})
# Requests that do not need the rings.
_PASSING = frozenset({OPEN_STREAMS.path, "/health", "/readyz", "/livez", "/metrics"})
# With every 503: a full limit has room again soon.
_TRY_AGAIN = {"Retry-After": "1"}
# YuniKorn's core compresses answers from this size on.
_GZIP_FROM_BYTES = 1400
# Larger answers are compressed in a thread.
_GZIP_IN_THREAD_BYTES = 32 * 1024
# Events that are rendered between two pauses for other tasks: about a millisecond of work.
_SLICE = 200

Handler = Callable[[Request], Awaitable[ASGIApp]]


class _BatchQuery(NamedTuple):
    """A batch request.

    :param requested_count: how many events the client wants; an answer holds at most ``limit``.
    :param states: adds the objects' states to the events; None: no states.
    """

    ring: EventRing
    start: int
    requested_count: int
    limit: int
    states: ObjectStates | None
    began_s: float

    @property
    def count_max(self) -> int:
        """The most events that the answer may have."""
        return min(self.requested_count, self.limit)


@dataclass(slots=True)
class _BatchAnswer:
    """An answer in the making; ``lowest``, ``highest`` and ``next_id`` are the ring's at the time of the request."""

    lowest: int
    highest: int
    next_id: int
    source: str
    lines: list[bytes] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)

    def note_missing(self, first_id: int, values: Sequence[bytes | None]) -> None:
        for event_id in (first_id + index for index, value in enumerate(values) if value is None):
            if self.missing and self.missing[-1][1] == event_id - 1:
                self.missing[-1] = (self.missing[-1][0], event_id)
            else:
                self.missing.append((event_id, event_id))

    def next_start(self, start: int) -> int:
        """The ``start`` of the next request."""
        if self.lines:
            return start + len(self.lines)
        if self.missing:
            return self.missing[-1][1] + 1
        return min(start, self.next_id)

    def note(self, start: int, count: int, limit: int) -> str:
        if start > self.next_id:
            return f"event {start} is not present yet, the next event has the id {self.next_id}"
        if self.missing and not self.lines:
            first, last = self.missing[-1]
            return f"events {first} to {last} are gone, go on with start={last + 1}"
        if not limit:
            return "RESTResponseSize is 0: no answer holds events"
        if count > limit and len(self.lines) == limit:
            return f"count {count} is more than one answer holds, which is {limit}"
        return ""


class EventsRest:
    """The endpoints. ``app`` serves all of them as one ASGI application.

    :param states: gives the states of objects; None: the publisher knows no view.
    :param facts: what /health says beside the problems.
    :param filling: requests for events wait for it.
    :param waits: of reads that name a position; None: positions are passed over. ``waits_at``: of a path's reads, where
        they are others.
    :param extra_routes: further routes; :func:`get_endpoint` makes endpoints that answer like those of the events.
    """

    def __init__(
        self,
        source: EventSource,
        streams: EventStreams,
        settings: PublisherSettings,
        health: ServiceCheck,
        extra_routes: Sequence[BaseRoute] = (),
        states: ObjectStates | None = None,
        facts: Callable[[], dict[str, object]] = dict,
        filling: StartupFill | None = None,
        waits: PositionWaits | None = None,
        waits_at: Mapping[str, PositionWaits] = MappingProxyType({}),
    ) -> None:
        self._source, self._streams, self._settings, self._health_facts = source, streams, settings, health
        self._facts = facts
        self._states = states
        endpoints: dict[str, Callable[..., Any]] = {
            "events.batch": _GetEndpoint(self._batch),
            "events.stream": _GetEndpoint(self._stream),
            "events.open_streams": _GetEndpoint(self._open_streams),
            "process.health": self._health,
            "process.live": _live,
            "process.metrics": _own_metrics,
        }
        app = Starlette(
            routes=[*routes_of(endpoints), *extra_routes],
            exception_handlers={404: _not_found},
        )
        app.router.redirect_slashes = False  # the core's redirects have another status; see _not_found
        self.app = StartupGate(app, filling or StartupFill(over=True), _HEADERS | _TRY_AGAIN, _PASSING, waits, waits_at)

    async def _batch(self, request: Request) -> ASGIApp:
        began_s = elapsed_s()
        query = query_of(request)
        # 1. the parameters
        ring = self._chosen(request, query)
        limit = self._source.settings.settings_for(ring.rm_id if ring is not None else "").rest_response_size
        count, start = _number(query, "count", limit, lowest=1), _number(query, "start", 0)
        states = self._states_of(query, usually=False)
        if ring is None:
            return await _answer(request, event_json.batch_json("", 0, 0, None), {"X-Muster-Next-ID": "0"})
        # 2. the answer from the ring; or from the log and history, which ends when the client leaves
        batch_query = _BatchQuery(ring, start, count, limit, states, began_s)
        if ring.lowest <= start or not batch_query.count_max:
            return await self._batch_answer(request, batch_query)
        return await run_until_disconnected(request, lambda: self._old(request, batch_query))

    async def _old(self, request: Request, batch_query: _BatchQuery) -> ASGIApp:
        async with self._source.old_reads.batch_slot() as turns:
            return await self._batch_answer(request, batch_query, turns)

    async def _batch_answer(
        self, request: Request, batch_query: _BatchQuery, turns: ReadSlots | None = None
    ) -> ASGIApp:
        """The answer to a batch request; ``turns`` is the right to read events older than the ring."""
        ring, start, requested_count, limit, states, began_s = batch_query
        count = batch_query.count_max
        # 1. the events (the ring grows while they are rendered)
        answer = _BatchAnswer(ring.lowest, ring.highest, ring.next_id, "ring")
        if ring.lowest <= start:
            await self._render(answer, ring, ring.pieces(start, count), states)
        elif count:
            await self._render_old(answer, batch_query, turns)
        # 2. the headers about them
        headers = {"X-Muster-Events-Source": answer.source, "X-Muster-Next-ID": str(answer.next_start(start))}
        if answer.missing:
            headers["X-Muster-Events-Missing"] = ",".join(f"{first}-{last}" for first, last in answer.missing)
        if note := answer.note(start, requested_count, limit):
            headers["X-Muster-Events-Note"] = note
        body = event_json.batch_json(ring.instance, answer.lowest, answer.highest, answer.lines)
        metrics.BATCH_SECONDS.labels(answer.source).observe(elapsed_s() - began_s)
        return await _answer(request, body, headers)

    async def _render(
        self, answer: _BatchAnswer, ring: EventRing, pieces: Sequence[RingSlice], states: ObjectStates | None
    ) -> None:
        """Renders in slices, so that other tasks can run. The newest events are rendered once for all requests."""
        lines, plain_from = self._source.lines(ring).get, ring.plain_from
        for piece in pieces:
            values = piece.values()
            for index in range(0, len(values), _SLICE):
                part, first_id = values[index : index + _SLICE], piece.first_id + index
                if first_id >= plain_from:
                    rendered = [lines(event_id, value) for event_id, value in enumerate(part, first_id)]
                else:
                    rendered = [
                        event_json.event_json(value) if value is not None else event_json.missing_json(event_id)
                        for event_id, value in enumerate(part, first_id)
                    ]
                if states is not None:
                    rendered = await states.add(EventSlice(ring.rm_id, ring.instance, first_id, rendered, part))
                answer.lines += rendered
                if None in part:
                    answer.note_missing(first_id, part)
                await asyncio.sleep(0)

    async def _render_old(self, answer: _BatchAnswer, batch_query: _BatchQuery, turns: ReadSlots | None) -> None:
        ring, start, states = batch_query.ring, batch_query.start, batch_query.states
        try:
            old = await self._source.old(ring, start, batch_query.count_max, turns)
        except OldEventsUnavailable as error:
            raise HttpError(503, str(error)) from error
        first_id = min(old.first_id, ring.lowest) if old is not None else ring.lowest
        if old is None or old.first_id != start:
            # Deleted or lost: the answer names the first event that exists, and the client decides to continue there.
            answer.missing = [(start, first_id - 1)]
            return
        answer.source = old.source
        for index in range(0, len(old.values), _SLICE):
            part = old.values[index : index + _SLICE]
            rendered = [event_json.event_json(value) for value in part]
            if states is not None:
                events = EventSlice(ring.rm_id, ring.instance, old.first_id + index, rendered, part)
                rendered = await states.add(events)
            answer.lines += rendered
            await asyncio.sleep(0)

    async def _stream(self, request: Request) -> ASGIApp:
        query = query_of(request)
        # 1. the parameters
        count = _number(query, "count", 0)
        start = _number(query, "start", 0) if query.get("start") else None
        states = self._states_of(query, usually=True)
        ring = self._chosen(request, query)
        # 2. the first event
        next_id = ring.next_id if ring is not None else 0
        if start is not None and start > next_id:
            raise HttpError(400, f'parameter "start": {start} is not present yet, the next event has the id {next_id}')
        cursor = 0
        if ring is not None:
            cursor = start if start is not None else max(ring.next_id - count, ring.lowest)
        # 3. the limits of streams
        host = self._peer(request)
        self._streams.check_limits(host, ring.rm_id if ring is not None else "")
        headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
        if ring is not None:
            headers.append((b"x-muster-next-id", str(cursor).encode()))
        return EventStream(self._streams, self._source, ring, cursor, host, headers, states)

    def _chosen(self, request: Request, query: Mapping[str, str]) -> EventRing | None:
        headers = request.headers.raw
        return self._source.choose(query.get("rm") or None, default_from_headers(headers), scope_from_headers(headers))

    async def _open_streams(self, request: Request) -> ASGIApp:
        """The open streams of an RM's events, and those that wait for the first RM with events; without ``rm`` all."""
        rm_id = query_of(request).get("rm") or ""
        streams = [stream for stream in self._streams.open if not rm_id or stream.rm_id in (rm_id, "")]
        streams.sort(key=lambda stream: stream.opened_ns)
        body = [{"Name": stream.host, "CreatedAt": _rfc3339(stream.opened_ns)} for stream in streams]
        return await _answer(request, f"{json.dumps(body, separators=(',', ':'))}\n".encode(), {})

    def _states_of(self, query: dict[str, str], *, usually: bool) -> ObjectStates | None:
        """The source of states; None: events without states. ``usually``: the default of the parameter."""
        text = query.get("state", "")
        includes_states = {"": usually, "true": True, "false": False}.get(text.lower())
        if includes_states is None:
            raise HttpError(400, f'parameter "state": {quote(text)} is not valid, expected true or false')
        if includes_states and text and self._states is None:
            raise HttpError(400, 'parameter "state": this publisher knows no view (publisher.view_url)')
        return self._states if includes_states else None

    def _peer(self, request: Request) -> str:
        """The peer's address; never the Host header, which a client sets as it likes."""
        peer = request.client.host if request.client is not None else ""
        trusted = self._settings.trusted_proxies
        if peer in trusted:
            # (A proxy may add a header of its own after the client's.)
            forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
            for address in reversed(forwarded.split(",")):
                peer = address.strip() or peer
                if peer not in trusted:
                    break
        return peer

    async def _health(self, request: Request) -> Response:
        facts = await self._health_facts()
        lag_fields = {"behind": list(facts.behind)} if facts.behind else {}
        body = {"healthy": not facts.problems, "problems": list(facts.problems), **lag_fields, **self._facts()}
        return JSONResponse(body, 200 if facts.serves else 503)


async def _live(_request: Request) -> Response:
    return JSONResponse({"healthy": True, "problems": []})


def routes_of(endpoints: Mapping[str, Callable[..., Any]]) -> list[BaseRoute]:
    """The publisher's routes whose handlers are among these."""
    return [Route(route.path, endpoints[route.handler]) for route in PUBLISHER if route.handler in endpoints]


def get_endpoint(handler: Handler) -> ASGIApp:
    """An endpoint for a route: ``handler`` answers GET; other methods are answered as YuniKorn's core does.

    ``handler`` may raise RequestRefused. It makes its answer by :func:`answer_json`.
    """
    return _GetEndpoint(handler)


async def answer_json(request: Request, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer with the headers of YuniKorn's core; compressed when it is large and the client accepts that."""
    return await _answer(request, body, headers or {})


class _GetEndpoint:
    """A GET endpoint that answers other methods and refused requests as YuniKorn's core does."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer: ASGIApp
        if request.method == "OPTIONS":
            answer = Response(status_code=200, headers={"Allow": "GET, OPTIONS"})
        elif request.method != "GET":
            answer = _plain("Method Not Allowed\n", 405, {"Allow": "GET, OPTIONS"})
        else:
            try:
                answer = await self._handler(request)
            except HttpError as refused:
                body = error_body(refused.status, refused.message)
                headers = _HEADERS | _TRY_AGAIN if refused.status == 503 else _HEADERS
                answer = Response(body, refused.status, headers=headers)
        await answer(scope, receive, send)


async def _answer(request: Request, body: bytes, headers: dict[str, str]) -> Response:
    headers = _HEADERS | headers
    if len(body) >= _GZIP_FROM_BYTES:
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            if len(body) >= _GZIP_IN_THREAD_BYTES:
                body = await asyncio.to_thread(gzip.compress, body, 5)
            else:
                body = gzip.compress(body, 5)
    return Response(body, headers=headers)


async def _not_found(request: Request, _error: Exception) -> Response:
    """Answers like the router of YuniKorn's core: redirects other letter case or a slash at the end; else 404."""
    path = request.url.path
    canonical = path.rstrip("/").lower()
    if canonical in _NEAR and canonical != path and request.method == "GET":
        target = canonical + (f"?{request.url.query}" if request.url.query else "")
        link = target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
        headers = {"Location": target, "Content-Type": "text/html; charset=utf-8"}
        return Response(f'<a href="{link}">Moved Permanently</a>.\n\n', 301, headers=headers)
    return _plain("404 page not found\n", 404, {})


async def run_until_disconnected(request: Request, work: Callable[[], Awaitable[ASGIApp]]) -> ASGIApp:
    """The answer that ``work`` makes. It ends when the client leaves; then the answer is nothing."""
    answers: list[ASGIApp] = [_nothing]

    async def make() -> None:
        answers[:] = [await work()]

    await run_until(make(), wait_disconnected(request.receive))
    return answers[0]


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers nothing: the client has left."""


def _plain(body: str, status: int, headers: dict[str, str]) -> Response:
    headers = headers | {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return Response(body, status, headers=headers)


async def _own_metrics(request: Request) -> Response:
    return Response(generate_latest(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _rfc3339(at_ns: int) -> str:
    """A moment as Go writes it in JSON, in UTC."""
    seconds, rest_ns = divmod(at_ns, 1_000_000_000)
    fraction = f".{rest_ns:09d}".rstrip("0") if rest_ns else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def query_of(request: Request) -> dict[str, str]:
    """The parameters; of several with one name the first counts, as in Go."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(request.url.query, keep_blank_values=True):
        query.setdefault(name, value)
    return query


def _number(query: dict[str, str], name: str, default: int, lowest: int = 0) -> int:
    """An unsigned 64-bit decimal, in the form that Go's ParseUint accepts. Raises RequestRefused (400)."""
    text = query.get(name, "")
    if not text:
        return default
    digits = text.lstrip("0")
    # (Python refuses to read thousands of digits; twenty are enough to decide.)
    if text.isascii() and text.isdigit() and len(digits) <= 20 and lowest <= int(digits or "0") < 2**64:
        return int(digits or "0")
    raise HttpError(
        400, f'parameter "{name}": {text[:40]!r} is not valid, expected a whole number from {lowest} to {2**64 - 1}'
    )
