"""The HTTP engine: finds the endpoint, renders its answer within bounds, compresses and sends it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import structlog
from muster_bus.clock import Clock
from muster_queue_config.queue_yaml import TEXT_BYTES_MAX
from muster_rest.route import Route
from muster_runtime import rm_status_text
from muster_runtime.default_rm import default_from_headers
from muster_runtime.gateway_note import note_of
from muster_runtime.go_json import error_body
from muster_runtime.http_server import CLIENT_LEFT
from muster_runtime.positions import PositionWaits
from muster_runtime.read_scope import scope_from_headers
from starlette.types import Receive, Scope, Send

from muster_view.answer_limits import AnswerLimits, AnswerMemory
from muster_view.errors import HttpError, ReaderStalled
from muster_view.fold_gate import FoldGate, TimeSlice
from muster_view.metrics import metrics
from muster_view.rest.http_messages import ALLOW, HEADERS, HEADERS_OF, TEXT, Endpoint, HttpAnswer, HttpCall, redirect
from muster_view.rest.json_render import Pieces
from muster_view.rest.routes import RouteMatch, Routes
from muster_view.rest.state_source import StateSource
from muster_view.settings import ViewSettings

log = structlog.get_logger(__name__)

# YuniKorn's core compresses from this size on.
_GZIP_FROM_BYTES = 1400
# Pieces are joined to about this size before they are compressed or sent: half a millisecond of compression.
_CHUNK_BYTES = 32 * 1024
# A larger answer is sent in chunks, and compressed in a thread.
_SEND_BYTES = 256 * 1024
_GZIP_LEVEL = 1  # this level shrinks such JSON to a tenth; a higher one would take the scheduler's time
_GZIP_WBITS = 31

# YuniKorn has no endpoint with these methods.
_OWN_PATHS = ("/ws/v1/explain/", "/ws/v1/external/")
_TRY_AGAIN = 503


class BoundEndpoint(NamedTuple):
    """The handler of a path."""

    route: Route
    endpoint: Endpoint


class HttpEngine:
    """Endpoints as one ASGI application.

    :ivar routes: the routes that it answers.
    :ivar limits: the memory that answers use now, and its limit.
    """

    def __init__(
        self,
        routes: Iterable[tuple[Route, Endpoint]],
        source: StateSource,
        settings: ViewSettings,
        clock: Clock,
        gate: FoldGate,
        waits: PositionWaits | None = None,
    ) -> None:
        self._waits = waits
        bound = list(routes)
        self.routes = [route for route, _ in bound]
        self._routes: Routes[BoundEndpoint] = Routes(
            (route.path, BoundEndpoint(route, endpoint)) for route, endpoint in bound
        )
        self._source, self._settings, self._clock, self._gate = source, settings, clock, gate
        self.limits = AnswerLimits(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._waits is not None and not await self._waits.admit_http(scope, receive, send):
            return
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        started_s = self._clock.monotonic()
        match = self._find(scope, path)
        if match is None:
            await _send(send, *self._unknown(scope, path))
            return
        action = match.endpoint
        if scope["method"] != action.route.method:
            await _send(send, *_other_method(scope["method"], action.route.method))
            return
        call = HttpCall(
            match.parameters,
            _query(scope),
            default_rm=default_from_headers(scope["headers"]),
            note=note_of(scope["headers"]),
            raw_query=scope.get("query_string", b"").decode("latin-1"),
            accept=_header(scope, b"accept"),
            reach=scope_from_headers(scope["headers"]),
            body=await _body(receive, TEXT_BYTES_MAX) if action.route.method == "POST" else b"",
        )
        status = 500
        send = self.limits.sending(scope, send)
        try:
            with self.limits.account() as memory, self._gate.answering():
                status = await self._answer(action, call, scope, send, match.pattern, started_s, memory)
        except ReaderStalled:
            status = CLIENT_LEFT  # the body is cut there
        except asyncio.CancelledError:
            status = CLIENT_LEFT
            raise
        finally:
            metrics.REQUESTS.labels(match.pattern, str(status)).inc()

    async def _answer(
        self,
        action: BoundEndpoint,
        call: HttpCall,
        scope: Scope,
        send: Send,
        pattern: str,
        started_s: float,
        memory: AnswerMemory,
    ) -> int:
        # 1. wait until visible records are folded
        torn = False
        await self._source.wait_fresh()
        # 2. find the endpoint, 3. render the part that fits in memory
        try:
            if action.route.dump:
                memory.take_dump()
            answer = await action.endpoint(call)
            version, torn = self._source.version(), self._source.is_partial(call.rm_id)
            chunks, complete = await self._render(answer.pieces, memory)
        except HttpError as refused:
            answer, version = _refusal(refused), self._source.version()
            chunks, complete = list(answer.pieces), True
        except Exception:
            log.exception("view.request_failed", route=pattern)
            failed = HttpError(500, "the view failed on this request; its log says why")
            answer, version = _refusal(failed), self._source.version()
            chunks, complete = list(answer.pieces), True
        metrics.RENDER_SECONDS.labels(pattern).observe(self._clock.monotonic() - started_s)
        # 4. sent
        headers = dict(answer.headers if answer.headers is not None else HEADERS_OF[action.route.method])
        headers["X-Muster-Lag-Records"] = str(self._source.lag_records(call.rm_id))
        headers["X-Muster-Consistency"] = (
            "snapshot" if complete and not torn and version == self._source.version() else "object"
        )
        if (state := self._source.states().get(call.rm_id or "")) is not None:
            headers["X-Muster-Rm-State"] = rm_status_text.label(state.info.life, paused=state.info.paused)
        headers["Vary"] = "Accept-Encoding"
        size = sum(map(len, chunks))
        gzip = _accepts_gzip(scope) and (size >= _GZIP_FROM_BYTES or not complete)
        if complete and gzip:
            headers["Content-Encoding"] = "gzip"
            chunks = await self._compress(chunks, size)
        if complete:
            await _send_chunks(send, answer.status, headers, chunks)
        else:
            size += await self._stream(send, answer, headers, chunks, gzip=gzip)
        metrics.ANSWER_BYTES.labels(pattern).inc(size)
        return answer.status

    async def _render(self, pieces: Pieces, memory: AnswerMemory) -> tuple[list[bytes], bool]:
        """Returns the first chunks, and whether there are no more. Folding waits meanwhile, up to its limit."""
        limit = self._settings.snapshot_bytes_max
        chunks: list[bytes] = []
        slice_ = TimeSlice(self._clock, self._settings.render_slice_ms / 1000)
        gathered = _gather(pieces, slice_.is_over)
        size = 0
        with self._gate.block_folding():
            for chunk in gathered:
                chunks.append(chunk)
                size += len(chunk)
                memory.charge(len(chunk))
                if size > limit:
                    return chunks, False
                if slice_.is_over():
                    await slice_.yield_loop()
        return chunks, True

    async def _compress(self, chunks: list[bytes], size: int) -> list[bytes]:
        """The body, compressed; a large one in a thread (zlib releases the interpreter)."""
        if size > _SEND_BYTES:
            return await asyncio.to_thread(_compressed, chunks)
        return _compressed(chunks)

    async def _stream(
        self, send: Send, answer: HttpAnswer, headers: dict[str, str], chunks: list[bytes], *, gzip: bool
    ) -> int:
        """Sends the rendered part, then the rest while it is rendered. Returns the size of the rest."""
        compress = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS) if gzip else None
        if gzip:
            headers["Content-Encoding"] = "gzip"
        await send({"type": "http.response.start", "status": answer.status, "headers": _raw(headers)})
        slice_ = TimeSlice(self._clock, self._settings.render_slice_ms / 1000)
        size = 0

        async def part(chunk: bytes, *, more: bool = True) -> None:
            if compress is not None:
                chunk = compress.compress(chunk) + (b"" if more else compress.flush())
            if chunk or not more:
                await send({"type": "http.response.body", "body": chunk, "more_body": more})
            if slice_.is_over():
                await slice_.yield_loop()

        for chunk in chunks:
            await part(chunk)
        chunks.clear()
        for chunk in _gather(answer.pieces, slice_.is_over):
            size += len(chunk)
            await part(chunk)
        await part(b"", more=False)
        return size

    def _find(self, scope: Scope, path: str) -> RouteMatch[BoundEndpoint] | None:
        """The endpoint of a path, unescaped as a whole like in YuniKorn's router. If no route matches, the parts are
        unescaped one by one, so that an id may contain a slash. Muster's own paths are always read that way.
        """
        if path.startswith(_OWN_PATHS):
            return self._routes.find(path, _parts(scope))
        return self._routes.find(path) or self._routes.find(path, _parts(scope))

    def _unknown(self, scope: Scope, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """Answers like the router of YuniKorn's core: redirects nearly right paths; else 404."""
        near = self._routes.canonical(path)
        if near is None or near.endpoint.route.method != scope["method"]:
            return 404, TEXT, b"404 page not found\n"
        status = 301 if scope["method"] == "GET" else 308  # (the latter keeps the method, and the body)
        return redirect(near.path, scope.get("query_string", b"").decode("latin-1"), status)


def _refusal(refused: HttpError) -> HttpAnswer:
    headers = {**HEADERS, "Retry-After": "1"} if refused.status == _TRY_AGAIN else None
    return HttpAnswer(iter([error_body(refused.status, refused.message)]), refused.status, headers)


def _other_method(method: str, right: str) -> tuple[int, Mapping[str, str], bytes]:
    if method == "OPTIONS":
        return 200, ALLOW[right], b""
    return 405, {**ALLOW[right], **TEXT}, b"Method Not Allowed\n"


def _parts(scope: Scope) -> list[str] | None:
    """The parts between a path's slashes, each unescaped by itself; None: nothing in the path is escaped."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        return None
    return [unquote(part) for part in raw.decode("latin-1").partition("?")[0].split("/")[1:]]


def _gather(pieces: Pieces, used_up: Callable[[], bool]) -> Iterator[bytes]:
    """Joins pieces into chunks of a useful size; a smaller chunk ends when other tasks must run."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES or used_up():
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _query(scope: Scope) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True):
        query.setdefault(name, value)
    return query


def _header(scope: Scope, header_name: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == header_name), "")


async def _body(receive: Receive, most: int) -> bytes:
    """A request's body, up to one byte more than ``most``, so that the endpoint sees that it is too large."""
    gathered = bytearray()
    while len(gathered) <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        gathered += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(gathered[: most + 1])


def _accepts_gzip(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for coding in value.decode("latin-1").split(","):
                token, _, quality = coding.partition(";")
                if token.strip().lower() in ("gzip", "*"):
                    return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _compressed(chunks: list[bytes]) -> list[bytes]:
    compress = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return [*(compress.compress(chunk) for chunk in chunks), compress.flush()]


async def _send_chunks(send: Send, status: int, headers: Mapping[str, str], chunks: list[bytes]) -> None:
    """Sends a whole answer; a large one as its reader takes it."""
    size = sum(map(len, chunks))
    if size <= _SEND_BYTES:
        await _send(send, status, headers, b"".join(chunks))
        return
    raw = _raw({**headers, "Content-Length": str(size)})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    for number, chunk in enumerate(chunks):
        chunks[number] = b""  # (the chunk is not in memory any more)
        if chunk:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    raw = _raw({**headers, "Content-Length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})
