"""REST: ``/ws/v1/events/batch`` and ``/ws/v1/events/stream`` as YuniKorn's core answers them (core-features §2.19).

What Muster adds never changes a body that the core would send; it is in headers and in one more parameter:

``?rm=``
    whose events; needed only where several RMs have some.
``?start=`` of a stream
    the id of the first event: a client that lost its stream goes on where it was.
``X-Muster-Events-Source``
    ``log`` when the answer was read from the log because the events are older than the ring; else ``ring``.
``X-Muster-Next-ID``
    batch: the ``start`` for the next request; stream: the id of its first event line.
``X-Muster-Events-Missing``
    ids (first-last, comma-separated) that the log itself does not have. In a batch each has a stand-in record with a
    message, so that the n-th record always has the id ``start + n``.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qsl

from muster_bus.errors import LogError
from muster_service.go_json import error_body
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_event_publisher import render
from muster_event_publisher.errors import RequestRefused, SearchTooLong
from muster_event_publisher.ring import EventRing
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
}
# The core compresses from this size on.
_GZIP_FROM_BYTES = 1400
# Above this, compressing is done in a thread.
_GZIP_IN_THREAD_BYTES = 32 * 1024
# Events rendered before the event loop gets a turn: about a millisecond.
_SLICE = 200

Handler = Callable[[Request], Awaitable[ASGIApp]]
HealthCheck = Callable[[], Awaitable[list[str]]]


class EventsRest:
    """The endpoints. ``app`` is the whole as one ASGI application.

    :param extra_routes: what else is served beside the events; :func:`get_endpoint` gives them the same manners.
    """

    def __init__(
        self,
        source: EventSource,
        streams: EventStreams,
        settings: PublisherSettings,
        problems: HealthCheck,
        extra_routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._source, self._streams, self._settings, self._problems = source, streams, settings, problems
        self.app = Starlette(
            routes=[
                Route(BATCH_PATH, _Get(self._batch)),
                Route(STREAM_PATH, _Get(self._stream)),
                Route("/health", self._health),
                Route("/metrics", _metrics),
                *extra_routes,
            ],
            exception_handlers={404: _not_found},
        )
        self.app.router.redirect_slashes = False  # the core's redirects have another status; see _not_found

    async def _batch(self, request: Request) -> ASGIApp:
        query = _query(request)
        # 1. what is asked
        limit = self._settings.rest_response_size
        count = min(_number(query, "count", limit, lowest=1), limit)
        start = _number(query, "start", 0)
        ring = self._ring(query)
        if ring is None:
            return await _answer(request, render.batch_json("", 0, 0, None), {})
        # 2. from the ring, or from the log when it is older
        lowest, highest, headers = ring.lowest, ring.highest, {"X-Muster-Events-Source": "ring"}
        values: list[bytes | None] = list(ring.slice(start, count))
        if not values and start < lowest:
            values = await self._old(ring, start, count, headers)
        elif missing := ring.gaps(start, start + len(values)):
            headers["X-Muster-Events-Missing"] = ",".join(f"{first}-{last}" for first, last in missing)
        headers.setdefault(
            "X-Muster-Next-ID", str(start + len(values) if values else max(lowest, min(start, highest + 1)))
        )
        # 3. as JSON, in slices
        lines, get = [], self._source.lines(ring).get
        for index, value in enumerate(values):
            lines.append(get(start + index, value))
            if index % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        return await _answer(request, render.batch_json(ring.instance, lowest, highest, lines), headers)

    async def _old(self, ring: EventRing, start: int, count: int, headers: dict[str, str]) -> list[bytes | None]:
        try:
            found = await self._source.old(ring, start, count)
        except (SearchTooLong, LogError) as error:
            raise RequestRefused(503, f"older events cannot be read now: {error}") from error
        if found is None or found.first_id >= ring.lowest:
            return []
        headers["X-Muster-Events-Source"] = "log"
        if found.first_id != start:
            # Retention has deleted it: say which is the first that exists.
            headers["X-Muster-Next-ID"] = str(found.first_id)
            return []
        return list(found.values)

    async def _stream(self, request: Request) -> ASGIApp:
        query = _query(request)
        # 1. what is asked
        count = _number(query, "count", 0)
        start = _number(query, "start", 0) if query.get("start") else None
        ring = self._ring(query)
        # 2. where it begins
        cursor = 0
        if ring is not None and start is not None:
            if start > ring.next_id:
                raise RequestRefused(
                    400, f'parameter "start": {start} is not present yet, the next event has the id {ring.next_id}'
                )
            cursor = start
        elif ring is not None:
            cursor = max(ring.next_id - count, ring.lowest)
        # 3. whether there is room
        host = self._peer(request)
        self._streams.check_room(host)
        headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
        if ring is not None:
            headers.append((b"x-muster-next-id", str(cursor).encode()))
        return EventStream(self._streams, self._source, ring, cursor, host, headers)

    def _ring(self, query: dict[str, str]) -> EventRing | None:
        if not self._settings.tracking_enabled or self._settings.ring_capacity == 0:
            raise RequestRefused(500, "Event tracking is disabled")
        return self._source.choose(query.get("rm") or None)

    def _peer(self, request: Request) -> str:
        """The peer's address; never the Host header, which a client sets as it likes."""
        peer = request.client.host if request.client is not None else ""
        trusted = self._settings.trusted_proxies
        if peer in trusted:
            for address in reversed(request.headers.get("x-forwarded-for", "").split(",")):
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
                answer = Response(body, refused.status, headers=_HEADERS)
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


def _plain(body: str, status: int, headers: dict[str, str]) -> Response:
    headers = headers | {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return Response(body, status, headers=headers)


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


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
    if text.isascii() and text.isdigit() and len(text.lstrip("0")) <= 20 and lowest <= int(text) < 2**64:
        return int(text)
    raise RequestRefused(
        400, f'parameter "{name}": {text[:40]!r} is not valid, expected a whole number from {lowest} to {2**64 - 1}'
    )
