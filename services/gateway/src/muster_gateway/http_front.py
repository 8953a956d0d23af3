"""The HTTP front: YuniKorn's REST port. It answers nothing itself but its own health and metrics.

path                                             goes to
/ws/v1/events/…, /ws/v1/usage                    the event publisher
/ws/v1/…, /debug/…                               the view
/health, /health/live, /health/ready, /metrics   this gateway
anything else                                    404 as YuniKorn's router says it

A target is a URL (bodies are streamed both ways) or an ASGI application in this process (called as it is).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

import httpx
import structlog
from muster_service.go_json import error_body
from muster_service.life import until
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import Receive, Scope, Send

from muster_gateway import metrics

log = structlog.get_logger(__name__)

RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110, section 7.6.1: these concern one connection, not the message.
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
# A listener of /ws/v1/events/stream may hear nothing for hours: only connecting is bounded, not reading.
_MAX_CONNECTIONS = 1_000
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=UTF-8"


class Target(Protocol):
    """Something that answers HTTP requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class HttpFront:
    """An ASGI application. See the module's words.

    :param live: whether the process is worth keeping.
    :param unready: why it cannot serve, one sentence each; none: it can.
    :param beside: what does not work in other services of this process; it does not keep the gateway from serving.
    """

    def __init__(
        self,
        view: Target,
        publisher: Target,
        live: Callable[[], bool],
        unready: Callable[[], Awaitable[list[str]]],
        beside: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._view, self._publisher, self._live, self._unready, self._beside = view, publisher, live, unready, beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # web sockets are nobody's here
            await send({"type": "websocket.close", "code": 1000})
            return
        path: str = scope["path"]
        # (In other letters as well: the publisher knows where to send those.)
        if path.lower().startswith("/ws/v1/events/") or path == "/ws/v1/usage":
            await self._pass(self._publisher, "publisher", scope, receive, send)
        elif path.startswith(("/ws/v1/", "/debug/")):
            await self._pass(self._view, "view", scope, receive, send)
        else:
            await self._own(path, scope["method"], send)

    async def _pass(self, target: Target, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await target(scope, receive, counted)
        finally:
            metrics.http_forwarded.labels(name, str(status)).inc()

    async def _own(self, path: str, method: str, send: Send) -> None:
        if path not in ("/health", "/health/live", "/health/ready", "/metrics"):
            await respond(send, 404, _TEXT, b"404 page not found\n")
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, _TEXT, b"Method Not Allowed\n", [(b"allow", b"GET, HEAD")])
        elif path == "/metrics":
            await respond(send, 200, CONTENT_TYPE_LATEST, generate_latest(), body_wanted=method == "GET")
        else:
            good, problems = (self._live(), []) if path == "/health/live" else await self._problems()
            # What a probe reads is in the first line; what a person wants to know is below.
            text = "".join(f"{line}\n" for line in ("SERVING" if good else "NOT_SERVING", *problems)).encode()
            await respond(send, 200 if good else 503, _TEXT, text, body_wanted=method == "GET")

    async def _problems(self) -> tuple[bool, list[str]]:
        """Whether the gateway can serve, and everything that does not work."""
        problems = await self._unready()
        return not problems, [*problems, *await self._beside()]


class HttpTarget:
    """A service behind a URL."""

    def __init__(self, url: str, name: str, connect_timeout_s: float) -> None:
        self._name = name
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=connect_timeout_s, pool=connect_timeout_s),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
            follow_redirects=False,
            trust_env=False,  # a proxy of the environment is not for traffic between our own services
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request(scope, receive)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            log.warning("http target away", target=self._name, error=type(error).__name__)
            await respond_error(send, 503, f"The {self._name} is not reachable, try again")
            return
        try:
            await self._relay(response, receive, send)
        finally:
            await response.aclose()

    def _request(self, scope: Scope, receive: Receive) -> httpx.Request:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        url = self._client.base_url.copy_with(raw_path=raw_path + (b"?" + query if query else b""))
        headers = end_to_end(scope["headers"], also=(b"host",))
        names = {name for name, _ in scope["headers"]}
        headers.append((b"x-forwarded-host", dict(scope["headers"]).get(b"host", b"")))
        if scope.get("client"):
            headers.append((b"x-forwarded-for", str(scope["client"][0]).encode()))
        has_body = b"content-length" in names or b"transfer-encoding" in names
        return httpx.Request(scope["method"], url, headers=headers, content=_body(receive) if has_body else None)

    async def _relay(self, response: httpx.Response, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": end_to_end(response.headers.raw, also=(b"date",)),  # this server adds its own
            }
        )
        try:
            await until(self._pass_body(response, send), _client_gone(receive))
        except httpx.HTTPError as error:  # returning unfinished breaks the connection: the client sees it is cut
            log.warning("http target broke off", target=self._name, error=type(error).__name__)

    async def _pass_body(self, response: httpx.Response, send: Send) -> None:
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def end_to_end(headers: Iterable[tuple[bytes, bytes]], also: tuple[bytes, ...] = ()) -> RawHeaders:
    """The headers without those of one connection: the standard ones, those that Connection names, and ``also``."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in lower if name == b"connection" for part in value.split(b",")}
    dropped = _HOP_BY_HOP | named | set(also)
    return [(name, value) for name, value in lower if name not in dropped]


async def respond(
    send: Send,
    status: int,
    content_type: str,
    body: bytes,
    headers: RawHeaders | None = None,
    *,
    body_wanted: bool = True,
) -> None:
    """Sends a whole small response."""
    start: RawHeaders = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body if body_wanted else b"", "more_body": False})


async def respond_error(send: Send, status: int, message: str) -> None:
    """An error in the shape that YuniKorn's REST clients know: both texts are equal."""
    await respond(send, status, _JSON, error_body(status, message), [(b"access-control-allow-origin", b"*")])


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise httpx.WriteError("the client is gone")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
