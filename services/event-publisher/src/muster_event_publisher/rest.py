"""REST: ``/ws/v1/events/batch`` and ``/ws/v1/events/stream`` as YuniKorn's core answers them (core-features §2.19).

What Muster adds is in headers, in further parameters and in one field:

``?rm=``
    whose events; needed only where several RMs have some.
``?start=`` of a stream
    the id of the first event: a client that lost its stream goes on where it was.
``?state=``
    whether each event says what its object is like (``state``, docs/history-servers.md): true or false. Without it a
    stream does where the publisher knows a view, because history servers ask for nothing; a batch does not.
``X-Muster-Events-Source``
    batch: where the records are from: ``ring``; ``log`` or ``history`` (the exported events) when they are older.
``X-Muster-Next-ID``
    batch: the ``start`` for the next request; stream: the id of its first event line.
``X-Muster-Events-Missing``
    ids (first-last, comma-separated) that are nowhere. In a batch each has a stand-in record with a message where
    others surround it, so that the n-th record always has the id ``start + n``.
``X-Muster-Events-Note``
    batch: one sentence when the answer is not all that was asked for: an id that is not present yet, events that are
    gone, a count above the limit.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qsl

from muster_service.go_json import error_body
from muster_service.life import until
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_event_publisher import metrics, render
from muster_event_publisher.errors import OldEventsAway, RequestRefused, shown
from muster_event_publisher.object_states import Events, ObjectStates
from muster_event_publisher.old_reads import Turns
from muster_event_publisher.ring import EventRing, Piece
from muster_event_publisher.settings import PublisherSettings
from muster_event_publisher.source import EventSource
from muster_event_publisher.streams import EventStream, EventStreams

BATCH_PATH = "/ws/v1/events/batch"
STREAM_PATH = "/ws/v1/events/stream"

_HEADERS = {
    "Content-Type": "application/json; charset=UTF-8",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "X-Requested-With,Content-Type,Accept,Origin",
    # Else scripts of other origins cannot read them.
    "Access-Control-Expose-Headers": ",".join(
        ["X-Muster-Next-ID", "X-Muster-Events-Source", "X-Muster-Events-Missing", "X-Muster-Events-Note"]
    ),
}
# With every 503: what is full now has room soon.
_TRY_AGAIN = {"Retry-After": "1"}
# The core compresses from this size on.
_GZIP_FROM_BYTES = 1400
# Above this, compressing is done in a thread.
_GZIP_IN_THREAD_BYTES = 32 * 1024
# Events rendered before the event loop gets a turn: about a millisecond.
_SLICE = 200

Handler = Callable[[Request], Awaitable[ASGIApp]]
HealthCheck = Callable[[], Awaitable[list[str]]]


class _Asked(NamedTuple):
    """What a batch request is about.

    :param wanted: events that the client wants, of which ``limit`` may be in an answer.
    :param states: to be added to the events; None: not.
    """

    ring: EventRing
    start: int
    wanted: int
    limit: int
    states: ObjectStates | None
    began_s: float

    @property
    def most(self) -> int:
        """Events that the answer may have."""
        return min(self.wanted, self.limit)


@dataclass(slots=True)
class _Batch:
    """An answer while it is made; ``lowest``, ``highest`` and ``next_id`` are of the ring as it was asked."""

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

    def go_on_at(self, start: int) -> int:
        """The ``start`` of the next request."""
        if self.lines:
            return start + len(self.lines)
        if self.missing:
            return self.missing[-1][1] + 1
        return min(start, self.next_id)

    def note(self, start: int, wanted: int, limit: int) -> str:
        if start > self.next_id:
            return f"event {start} is not present yet, the next event has the id {self.next_id}"
        if self.missing and not self.lines:
            first, last = self.missing[-1]
            return f"events {first} to {last} are gone, go on with start={last + 1}"
        if not limit:
            return "RESTResponseSize is 0: no answer holds events"
        if wanted > limit and len(self.lines) == limit:
            return f"count {wanted} is more than one answer holds, which is {limit}"
        return ""


class EventsRest:
    """The endpoints. ``app`` is the whole as one ASGI application.

    :param states: what objects are like; None: there is no view to ask.
    :param extra_routes: what else is served beside the events; :func:`get_endpoint` gives them the same manners.
    """

    def __init__(
        self,
        source: EventSource,
        streams: EventStreams,
        settings: PublisherSettings,
        problems: HealthCheck,
        extra_routes: Sequence[BaseRoute] = (),
        states: ObjectStates | None = None,
    ) -> None:
        self._source, self._streams, self._settings, self._problems = source, streams, settings, problems
        self._states = states
        self.app = Starlette(
            routes=[
                Route(BATCH_PATH, _Get(self._batch)),
                Route(STREAM_PATH, _Get(self._stream)),
                Route("/health", self._health),
                Route("/metrics", _own_metrics),
                *extra_routes,
            ],
            exception_handlers={404: _not_found},
        )
        self.app.router.redirect_slashes = False  # the core's redirects have another status; see _not_found

    async def _batch(self, request: Request) -> ASGIApp:
        began_s = time.monotonic()
        query = _query(request)
        # 1. what is asked
        ring = self._source.choose(query.get("rm") or None)
        limit = self._source.settings.of(ring.rm_id if ring is not None else "").rest_response_size
        wanted, start = _number(query, "count", limit, lowest=1), _number(query, "start", 0)
        states = self._states_of(query, usually=False)
        if ring is None:
            return await _answer(request, render.batch_json("", 0, 0, None), {"X-Muster-Next-ID": "0"})
        # 2. from the ring, or from behind it when it is older: for one who is still there
        asked = _Asked(ring, start, wanted, limit, states, began_s)
        if ring.lowest <= start or not asked.most:
            return await self._found(request, asked)
        made: list[ASGIApp] = [_nothing]

        async def make() -> None:
            async with self._source.old_reads.batch() as turns:
                made[:] = [await self._found(request, asked, turns)]

        await until(make(), _gone(request))
        return made[0]

    async def _found(self, request: Request, asked: _Asked, turns: Turns | None = None) -> ASGIApp:
        """The answer to a batch request; ``turns`` to read what is older than the ring."""
        ring, start, wanted, limit, states, began_s = asked
        count = asked.most
        # 1. the events. (The ring goes on while they are rendered.)
        found = _Batch(ring.lowest, ring.highest, ring.next_id, "ring")
        if ring.lowest <= start:
            await self._render(found, ring, ring.pieces(start, count), states)
        elif count:
            await self._render_old(found, asked, turns)
        # 2. and what there is to say about them
        headers = {"X-Muster-Events-Source": found.source, "X-Muster-Next-ID": str(found.go_on_at(start))}
        if found.missing:
            headers["X-Muster-Events-Missing"] = ",".join(f"{first}-{last}" for first, last in found.missing)
        if note := found.note(start, wanted, limit):
            headers["X-Muster-Events-Note"] = note
        body = render.batch_json(ring.instance, found.lowest, found.highest, found.lines)
        metrics.BATCH_SECONDS.labels(found.source).observe(time.monotonic() - began_s)
        return await _answer(request, body, headers)

    async def _render(
        self, found: _Batch, ring: EventRing, pieces: Sequence[Piece], states: ObjectStates | None
    ) -> None:
        """Renders in slices, so that others get their turn. The newest are rendered once for all who ask."""
        lines, plain_from = self._source.lines(ring).get, ring.plain_from
        for piece in pieces:
            values = piece.values()
            for index in range(0, len(values), _SLICE):
                part, first_id = values[index : index + _SLICE], piece.first_id + index
                if first_id >= plain_from:
                    rendered = [lines(event_id, value) for event_id, value in enumerate(part, first_id)]
                else:
                    rendered = [
                        render.event_json(value) if value is not None else render.missing_json(event_id)
                        for event_id, value in enumerate(part, first_id)
                    ]
                if states is not None:
                    rendered = await states.add(Events(ring.rm_id, ring.instance, first_id, rendered, part))
                found.lines += rendered
                if None in part:
                    found.note_missing(first_id, part)
                await asyncio.sleep(0)

    async def _render_old(self, found: _Batch, asked: _Asked, turns: Turns | None) -> None:
        ring, start, states = asked.ring, asked.start, asked.states
        try:
            old = await self._source.old(ring, start, asked.most, turns)
        except OldEventsAway as error:
            raise RequestRefused(503, str(error)) from error
        first_id = min(old.first_id, ring.lowest) if old is not None else ring.lowest
        if old is None or old.first_id != start:
            # Gone, or lost: say which is the first that exists, and leave it to the client to go on there.
            found.missing = [(start, first_id - 1)]
            return
        found.source = old.source
        for index in range(0, len(old.values), _SLICE):
            part = old.values[index : index + _SLICE]
            rendered = [render.event_json(value) for value in part]
            if states is not None:
                events = Events(ring.rm_id, ring.instance, old.first_id + index, rendered, part)
                rendered = await states.add(events)
            found.lines += rendered
            await asyncio.sleep(0)

    async def _stream(self, request: Request) -> ASGIApp:
        query = _query(request)
        # 1. what is asked
        count = _number(query, "count", 0)
        start = _number(query, "start", 0) if query.get("start") else None
        states = self._states_of(query, usually=True)
        ring = self._source.choose(query.get("rm") or None)
        # 2. where it begins
        next_id = ring.next_id if ring is not None else 0
        if start is not None and start > next_id:
            raise RequestRefused(
                400, f'parameter "start": {start} is not present yet, the next event has the id {next_id}'
            )
        cursor = 0
        if ring is not None:
            cursor = start if start is not None else max(ring.next_id - count, ring.lowest)
        # 3. whether there is room
        host = self._peer(request)
        self._streams.check_room(host, ring.rm_id if ring is not None else "")
        headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
        if ring is not None:
            headers.append((b"x-muster-next-id", str(cursor).encode()))
        return EventStream(self._streams, self._source, ring, cursor, host, headers, states)

    def _states_of(self, query: dict[str, str], *, usually: bool) -> ObjectStates | None:
        """What to add states with, or None for events without; ``usually``: when the request does not say."""
        text = query.get("state", "")
        wanted = {"": usually, "true": True, "false": False}.get(text.lower())
        if wanted is None:
            raise RequestRefused(400, f'parameter "state": {shown(text)} is not valid, expected true or false')
        if wanted and text and self._states is None:
            raise RequestRefused(400, 'parameter "state": this publisher knows no view (publisher.view_url)')
        return self._states if wanted else None

    def _peer(self, request: Request) -> str:
        """The peer's address; never the Host header, which a client sets as it likes."""
        peer = request.client.host if request.client is not None else ""
        trusted = self._settings.trusted_proxies
        if peer in trusted:
            # (A proxy may add a line of its own behind what the client has sent.)
            forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
            for address in reversed(forwarded.split(",")):
                peer = address.strip() or peer
                if peer not in trusted:
                    break
        return peer

    async def _health(self, request: Request) -> Response:
        problems = await self._problems()
        body = json.dumps({"healthy": not problems, "problems": problems}) + "\n"
        return Response(body, 503 if problems else 200, media_type="application/json")


def get_endpoint(handler: Handler) -> ASGIApp:
    """An endpoint for a route: answers GET by ``handler``, and all else as the core does.

    ``handler`` may raise RequestRefused. Use :func:`answer_json` for what it gives.
    """
    return _Get(handler)


async def answer_json(request: Request, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """A JSON body with the core's headers; compressed when it is large and the client wants it so."""
    return await _answer(request, body, headers or {})


class _Get:
    """A GET endpoint with the core's answers to other methods and to refused requests."""

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
            except RequestRefused as refused:
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
    """The core's router: another letter case or a slash at the end is sent to the right path; the rest is unknown."""
    path = request.url.path
    canonical = path.rstrip("/").lower()
    if canonical in (BATCH_PATH, STREAM_PATH) and canonical != path and request.method == "GET":
        target = canonical + (f"?{request.url.query}" if request.url.query else "")
        link = target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
        headers = {"Location": target, "Content-Type": "text/html; charset=utf-8"}
        return Response(f'<a href="{link}">Moved Permanently</a>.\n\n', 301, headers=headers)
    return _plain("404 page not found\n", 404, {})


async def _gone(request: Request) -> None:
    """Returns when the client is."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """For nobody."""


def _plain(body: str, status: int, headers: dict[str, str]) -> Response:
    headers = headers | {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return Response(body, status, headers=headers)


async def _own_metrics(request: Request) -> Response:
    return Response(generate_latest(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _query(request: Request) -> dict[str, str]:
    """Parameters; the first of a name counts, as in Go."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(request.url.query, keep_blank_values=True):
        query.setdefault(name, value)
    return query


def _number(query: dict[str, str], name: str, default: int, lowest: int = 0) -> int:
    """An unsigned 64-bit decimal, as Go's ParseUint takes it. Raises RequestRefused (400)."""
    text = query.get(name, "")
    if not text:
        return default
    digits = text.lstrip("0")
    # (Python refuses to read thousands of digits; twenty are enough to know.)
    if text.isascii() and text.isdigit() and len(digits) <= 20 and lowest <= int(digits or "0") < 2**64:
        return int(digits or "0")
    raise RequestRefused(
        400, f'parameter "{name}": {text[:40]!r} is not valid, expected a whole number from {lowest} to {2**64 - 1}'
    )
