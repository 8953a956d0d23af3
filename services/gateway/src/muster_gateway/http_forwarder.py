"""A service behind a URL, as an ASGI application. It streams bodies both ways, and a slow reader delays the sender.

It uses aiohttp's client because its parser is compiled: a request takes a fraction of httpx's time. The front must pass
on a thousand requests a second (docs/rest.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Set

import aiohttp
import structlog
from multidict import CIMultiDict
from muster_runtime.default_rm import DEFAULT_RM_HEADER
from muster_runtime.gateway_note import HEADER as NOTE_HEADER
from muster_runtime.http_server import cut
from muster_runtime.identity import IDENTITY_HEADERS
from muster_runtime.service_lifecycle import run_until, wait_disconnected
from starlette.types import Receive, Scope, Send
from yarl import URL

from muster_gateway.backend_pool import BackendPool
from muster_gateway.errors import shortened
from muster_gateway.http_bodies import (
    BODIES_BYTES_MAX,
    BODY_S,
    RETRY_AFTER_S,
    WITHOUT_BODY,
    HeldBodies,
    NoRoom,
    refuse_body,
)
from muster_gateway.http_front import RawHeaders, respond, respond_error

log = structlog.get_logger(__name__)

# RFC 9110, section 7.6.1: headers of one connection, not of the message.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_MAX_CONNECTIONS = 1_000
# Shorter than the servers behind keep an unused connection (uvicorn: 5 s), so that the client never uses a closed one.
_KEEP_ALIVE_S = 4.0
# A listener of /ws/v1/events/stream may get nothing for hours. So only connecting is bounded, not reading.
_READ_BYTES = 256 * 1024
# A client that reads nothing for this long is cut. The services behind cut earlier, because they can give the reason.
_STALLED_S = 60.0
# Most answers begin earlier than this. For a slower one, the target checks whether the client is still there.
_DISCONNECT_CHECK_S = 0.1
_HEAD_BYTES_MAX = 64 * 1024
# This much of a body, or all of it, must arrive before a connection is used, so that slow senders cannot use up all
# connections.
_AHEAD_BYTES = 256 * 1024
# The framing of a body belongs to each connection. A client's headers about it may be wrong or ambiguous (RFC 9112,
# section 6.3), and then the connection would take the next request for the rest of the body.
_OF_THE_BODY = (b"content-length", b"expect")
# A client's Connection header cannot drop these headers of the front.
_NEVER_DROPPED = IDENTITY_HEADERS | {DEFAULT_RM_HEADER, NOTE_HEADER}
# Headers that the library would add by itself.
_SUPPRESSED_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# How many records an answer of the view is behind.
LAG_HEADER = "X-Muster-Lag-Records"
_NOT_FOUND = b"404 page not found\n"
_TEXT = "text/plain; charset=utf-8"


class HttpForwarder:
    """See the module's docstring.

    :param url: http://host:port; several of them, with commas: of processes that answer alike.
    :param name: for messages.
    :param socket_path: a Unix socket that replaces the URL's host and port.
    :param stalled_s: a client that reads nothing for so long is cut.
    :param body_s: a client that takes longer to send a body is refused.
    """

    def __init__(
        self,
        url: str,
        name: str,
        connect_timeout_s: float,
        *,
        socket_path: str = "",
        stalled_s: float = _STALLED_S,
        body_s: float = BODY_S,
    ) -> None:
        self._name, self._socket_path = name, socket_path
        self._backends = BackendPool(url if not socket_path else "http://127.0.0.1")
        self._stalled_s, self._body_s = stalled_s, body_s
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s, sock_connect=connect_timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._ahead = HeldBodies()
        self._is_away = False

    async def close(self) -> None:
        """Closes all connections."""
        await self._backends.close()
        if self._session is not None:
            await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        if not raw_path.isascii():  # no path of Muster has such characters
            await respond(send, 404, _TEXT, _NOT_FOUND)
            return
        body = _RequestBody(receive, self._body_s, self._ahead) if _has_body(scope) else None
        try:
            await self._pass_on(scope, receive, send, raw_path, body)
        finally:
            if body is not None:
                body.release()

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, raw_path: bytes, body: _RequestBody | None
    ) -> None:
        try:
            if body is not None:
                await body.read_ahead()
            response = await self._ask_while_connected(scope, receive, raw_path, body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if body is not None and body.failed:
                await refuse_body(send, body.failed, self._body_s)
                return
            if not self._is_away:  # the state of the whole asks each second or so
                log.warning("http target away", target=self._name, error=type(error).__name__)
            self._is_away = True
            headers = [(b"retry-after", RETRY_AFTER_S)]
            await respond_error(send, 503, f"The {self._name} is not reachable, try again", headers)
            return
        if response is None:
            return
        self._is_away = False
        try:
            await self._relay(response, scope, receive, send)
        finally:
            if not response.content.at_eof():
                response.close()  # closes the connection, too: more data is under way
            response.release()

    async def _ask_while_connected(
        self, scope: Scope, receive: Receive, raw_path: bytes, body: _RequestBody | None
    ) -> aiohttp.ClientResponse | None:
        """Returns the answer's head; None: the client has left, and the request was cancelled."""
        asking, watching = asyncio.current_task(), list[asyncio.Task[None]]()
        assert asking is not None, "a coroutine runs in a task"

        async def watch() -> None:
            await wait_disconnected(receive)
            asking.cancel()

        timer = asyncio.get_running_loop().call_later(
            _DISCONNECT_CHECK_S, lambda: watching.append(asyncio.create_task(watch(), name="http client"))
        )
        if body is not None and not body.whole:
            timer.cancel()  # the task that reads the body notices a lost client
        try:
            return await self._ask(scope, raw_path, body)
        except asyncio.CancelledError:
            if not any(task.done() and not task.cancelled() for task in watching):
                raise
            asking.uncancel()
            return None
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()

    async def _ask(self, scope: Scope, raw_path: bytes, body: _RequestBody | None) -> aiohttp.ClientResponse:
        query: bytes = scope.get("query_string", b"")
        path = (raw_path + (b"?" + query if query else b"")).decode("ascii")
        raw_headers: RawHeaders = scope["headers"]
        headers: CIMultiDict[str] = CIMultiDict()
        host = b""
        for name, value in raw_headers:
            host = value if name == b"host" else host
        for name, value in end_to_end(raw_headers, also=(b"host", *_OF_THE_BODY), never=_NEVER_DROPPED):
            headers.add(name.decode("latin-1"), value.decode("latin-1"))
        headers.add("x-forwarded-host", host.decode("latin-1"))
        if scope.get("client"):
            headers.add("x-forwarded-for", str(scope["client"][0]))
        backends = await self._backends.candidates()
        for number, backend in enumerate(backends, start=1):
            try:
                response = await self._opened().request(
                    scope["method"],
                    URL(backend + path, encoded=True),
                    headers=headers,
                    data=body.content() if body is not None else None,
                    allow_redirects=False,
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):  # nothing was sent
                self._backends.mark_down(backend)
                if number == len(backends):
                    raise
            else:
                self._backends.mark_up(backend, _lag_of(response))
                return response
        raise OSError(f"there is no {self._name}")

    def _opened(self) -> aiohttp.ClientSession:
        # The session must be made in its event loop.
        if self._session is None:
            keep: float = _KEEP_ALIVE_S
            connector: aiohttp.BaseConnector
            if self._socket_path:
                connector = aiohttp.UnixConnector(self._socket_path, limit=_MAX_CONNECTIONS, keepalive_timeout=keep)
            else:
                connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=keep)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,  # proxies of the environment are not for traffic between Muster's services
                skip_auto_headers=_SUPPRESSED_HEADERS,
                read_bufsize=_READ_BYTES,
                max_line_size=_HEAD_BYTES_MAX,
                max_field_size=_HEAD_BYTES_MAX,
            )
        return self._session

    async def _relay(self, response: aiohttp.ClientResponse, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": end_to_end(response.raw_headers, also=(b"date",)),  # this server adds its own date
            }
        )
        try:
            if response.content.is_eof():  # the whole body came with the head
                await send({"type": "http.response.body", "body": await response.content.read(), "more_body": False})
            else:
                await run_until(self._pass_body(response, send), wait_disconnected(receive))
        except TimeoutError:
            path = shortened(scope["path"])
            log.warning("http reader stalled", target=self._name, path=path, after_s=self._stalled_s)
            await cut(scope)
        except (aiohttp.ClientError, OSError) as error:
            # An unfinished return breaks the connection, so the client sees that the answer is cut.
            log.warning("http target broke off", target=self._name, error=type(error).__name__)

    async def _pass_body(self, response: aiohttp.ClientResponse, send: Send) -> None:
        async for chunk in response.content.iter_any():
            async with asyncio.timeout(self._stalled_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _lag_of(response: aiohttp.ClientResponse) -> bytes | None:
    lag = response.headers.get(LAG_HEADER)
    return None if lag is None else lag.encode()


def end_to_end(
    headers: Iterable[tuple[bytes, bytes]], also: tuple[bytes, ...] = (), never: Set[bytes] = frozenset()
) -> RawHeaders:
    """Returns the headers without those of one connection: the standard ones, those that Connection names, and
    ``also``.

    :param never: headers that stay even if Connection names them.
    """
    lower = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in lower if name == b"connection" for part in value.split(b",")}
    dropped = (_HOP_BY_HOP | named | set(also)) - never
    return [(name, value) for name, value in lower if name not in dropped]


def _has_body(scope: Scope) -> bool:
    if scope["method"] in WITHOUT_BODY:
        return False
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


class _RequestBody:
    """The body of a client's request.

    :param within_s: time for the whole body.
    :param of_all: counts the bytes that were read ahead and are still held.
    :ivar whole: the whole body is here.
    :ivar failed: why the rest will never come: the client has left or too slow, or there is no room. None: it may come.
    """

    def __init__(self, receive: Receive, within_s: float, of_all: HeldBodies) -> None:
        self._receive, self._until_s = receive, asyncio.get_running_loop().time() + within_s
        self._ahead = bytearray()
        self._of_all, self._counted = of_all, 0
        self.whole = False
        self.failed: OSError | None = None

    async def read_ahead(self) -> None:
        """Reads the beginning of the body, or all of it. Raises OSError, as :meth:`content` does."""
        while not self.whole and len(self._ahead) < _AHEAD_BYTES:
            piece = await self._next()
            self._counted += len(piece)
            self._of_all.size += len(piece)
            if self._of_all.size > BODIES_BYTES_MAX:
                self.failed = NoRoom()
                raise self.failed
            self._ahead += piece

    def release(self) -> None:
        """Frees the room of the bytes that were read ahead."""
        self._of_all.size -= self._counted
        self._counted = 0

    def content(self) -> bytes | AsyncIterator[bytes]:
        """Returns the whole body, or an iterator of the bytes read ahead and of the rest."""
        return bytes(self._ahead) if self.whole else self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield bytes(self._ahead)
        self._ahead.clear()
        while not self.whole:
            yield await self._next()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError as error:  # TimeoutError is an OSError
            self.failed = error
            raise
        if message["type"] == "http.disconnect":
            self.failed = ConnectionResetError("the client has left")
            raise self.failed
        self.whole = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
