"""The HTTP front: YuniKorn's REST port. It answers nothing itself but its own health and metrics.

Who asks is found out here (``identity.py``), and whether they may (``http_roles.py``), before a request goes anywhere.
What is behind is told in headers that only this front sets, and never sees a token.

path                                             goes to
/ws/v1/events/…, /ws/v1/usage                    the event publisher
/ws/v1/…, /debug/…                               the view
/health, /health/live, /health/ready, /metrics   this gateway
anything else                                    404 as YuniKorn's router says it

A target is a URL (bodies are streamed both ways) or an ASGI application in this process (called as it is).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping, Set
from pathlib import Path
from typing import Any, Protocol

import httpx
import structlog
from muster_service.go_json import error_body
from muster_service.identity import IDENTITY_HEADERS, Identity, Role
from muster_service.life import until
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import Receive, Scope, Send

from muster_gateway import http_roles, metrics
from muster_gateway.errors import NotIdentified, RoleTooLow, shown
from muster_gateway.identity import Doorman, Refusal

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
_RETRY_AFTER_S = b"1"
_TEXT = "text/plain; charset=utf-8"
_NOT_FOUND = b"404 page not found\n"
# These change nothing.
_LOOKS = ("GET", "HEAD", "OPTIONS")
_PATH_CHARACTERS = 200
_JSON = "application/json; charset=UTF-8"


class Target(Protocol):
    """Something that answers HTTP requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


OWN_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")
# What a client says of itself, and what is for this front alone.
_NOT_PASSED = IDENTITY_HEADERS | {b"authorization"}
# Refusals are told so often; a client that tries without end would fill the log.
_REFUSED_TOLD_S = 1.0


class HttpFront:
    """An ASGI application. See the module's words.

    :param doorman: says who asks.
    :param live: whether the process is worth keeping.
    :param unready: why it cannot serve, one sentence each; none: it can.
    :param beside: what does not work in other services of this process; it does not keep the gateway from serving.
    :param exposition: what ``/metrics`` answers; None: this process's metrics.
    """

    def __init__(
        self,
        view: Target,
        publisher: Target,
        doorman: Doorman,
        live: Callable[[], bool],
        unready: Callable[[], Awaitable[list[str]]],
        beside: Callable[[], Awaitable[list[str]]],
        exposition: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self._view, self._publisher, self._doorman = view, publisher, doorman
        self._live, self._unready, self._beside = live, unready, beside
        self._exposition = exposition
        self._refusals = Seldom(_REFUSED_TOLD_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # web sockets are nobody's here
            await send({"type": "websocket.close", "code": 1000})
            return
        # 1. who, and whether they may
        needed = http_roles.needed(scope["method"], scope["path"])
        try:
            identity = self._doorman.admit(scope, needed)
        except (NotIdentified, RoleTooLow) as refused:
            await self._refuse(refused, scope, send)
            return
        # 2. the answer
        status = 0

        async def seen(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._route({**scope, "headers": _told(scope["headers"], identity)}, identity, receive, seen)
        finally:
            # 3. the log: what may change something always, the rest for who looks closely
            tell = log.info if needed is Role.ADMIN or scope["method"] not in _LOOKS else log.debug
            tell("http request", **self._who(scope), identity=identity.name, role=str(identity.role), status=status)

    async def _route(self, scope: Scope, identity: Identity, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if _has_steps(scope):
            await respond(send, 404, _TEXT, _NOT_FOUND)
            return
        # (In other letters as well: the publisher knows where to send those.)
        if path.lower().startswith("/ws/v1/events/") or path == "/ws/v1/usage":
            await self._pass(self._publisher, "publisher", scope, receive, send)
        elif path.startswith(("/ws/v1/", "/debug/")):
            await self._pass(self._view, "view", scope, receive, send)
        else:
            await self._own(path, scope["method"], identity, send)

    async def _refuse(self, refused: NotIdentified | RoleTooLow, scope: Scope, send: Send) -> None:
        if isinstance(refused, NotIdentified):
            reason, status = refused.reason, 401
            # A client that sent no token is not told what is wrong with it (RFC 6750, section 3.1).
            wrong = refused.reason in (Refusal.UNKNOWN, Refusal.MALFORMED)
            challenge = 'Bearer realm="muster"' + (', error="invalid_token"' if wrong else "")
        else:
            reason, status = Refusal.ROLE, 403
            challenge = f'Bearer realm="muster", error="insufficient_scope", scope="{refused.needed}"'
        metrics.http_refused.labels(reason).inc()
        if (left_out := self._refusals.due()) is not None:
            more = {"not_told": left_out} if left_out else {}
            log.warning("http request refused", **self._who(scope), status=status, why=str(refused), **more)
        headers = [(b"www-authenticate", challenge.encode())]
        await respond_error(send, status, str(refused), headers, body_wanted=scope["method"] != "HEAD")

    def _who(self, scope: Scope) -> dict[str, str]:
        """Of a request what is in the log. (Not its query, nor its headers: they may hold anything.)"""
        return {
            "method": shown(scope["method"]),
            "path": shown(scope["path"], _PATH_CHARACTERS),
            "client": shown(self._doorman.client(scope)),
        }

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

    async def _own(self, path: str, method: str, identity: Identity, send: Send) -> None:
        if path not in OWN_PATHS:
            await respond(send, 404, _TEXT, _NOT_FOUND)
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, _TEXT, b"Method Not Allowed\n", [(b"allow", b"GET, HEAD")])
        elif path == "/metrics":
            text = generate_latest() if self._exposition is None else await self._exposition()
            await respond(send, 200, CONTENT_TYPE_LATEST, text, body_wanted=method == "GET")
        else:
            good, problems = (self._live(), []) if path == "/health/live" else await self._problems()
            # What a probe reads is in the first line; what a person wants to know is below, for who may read.
            problems = problems if identity.role.includes(Role.READ) else []
            text = "".join(f"{line}\n" for line in ("SERVING" if good else "NOT_SERVING", *problems)).encode()
            await respond(send, 200 if good else 503, _TEXT, text, body_wanted=method == "GET")

    async def _problems(self) -> tuple[bool, list[str]]:
        """Whether the gateway can serve, and everything that does not work."""
        problems = await self._unready()
        return not problems, [*problems, *await self._beside()]


class HttpTarget:
    """A service behind a URL.

    :param uds: it listens on a Unix socket there; of the URL only the name counts.
    """

    def __init__(self, url: str, name: str, connect_timeout_s: float, uds: Path | None = None) -> None:
        self._name = name
        limits = httpx.Limits(max_connections=_MAX_CONNECTIONS)
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=connect_timeout_s, pool=connect_timeout_s),
            limits=limits,
            transport=httpx.AsyncHTTPTransport(uds=str(uds), limits=limits) if uds is not None else None,
            follow_redirects=False,
            trust_env=False,  # a proxy of the environment is not for traffic between our own services
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = self._request(scope, receive)
        except httpx.InvalidURL:  # characters that no path of ours has
            await respond(send, 404, _TEXT, _NOT_FOUND)
            return
        try:
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            log.warning("http target away", target=self._name, error=type(error).__name__)
            headers = [(b"retry-after", _RETRY_AFTER_S)]
            await respond_error(send, 503, f"The {self._name} is not reachable, try again", headers)
            return
        try:
            await self._relay(response, receive, send)
        finally:
            await response.aclose()

    def _request(self, scope: Scope, receive: Receive) -> httpx.Request:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        url = self._client.base_url.copy_with(raw_path=raw_path + (b"?" + query if query else b""))
        headers = end_to_end(scope["headers"], also=(b"host",), never=IDENTITY_HEADERS)
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


def end_to_end(
    headers: Iterable[tuple[bytes, bytes]], also: tuple[bytes, ...] = (), never: Set[bytes] = frozenset()
) -> RawHeaders:
    """The headers without those of one connection: the standard ones, those that Connection names, and ``also``.

    :param never: stays, also when Connection names it.
    """
    lower = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in lower if name == b"connection" for part in value.split(b",")}
    dropped = (_HOP_BY_HOP | named | set(also)) - never
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


async def respond_error(
    send: Send, status: int, message: str, headers: RawHeaders | None = None, *, body_wanted: bool = True
) -> None:
    """An error in the shape that YuniKorn's REST clients know: both texts are equal."""
    all_headers = [(b"access-control-allow-origin", b"*"), *(headers or [])]
    await respond(send, status, _JSON, error_body(status, message), all_headers, body_wanted=body_wanted)


def _told(headers: Iterable[tuple[bytes, bytes]], identity: Identity) -> RawHeaders:
    """A request's headers as a service behind this front gets them."""
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_PASSED]
    return [*kept, *identity.headers()]


def _has_steps(scope: Scope) -> bool:
    """Whether a path has a step up or on the spot. Who takes such steps would come out at another endpoint than the one
    whose role was looked at; and no path of ours has any."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return any(part in (b".", b"..") for part in raw_path.split(b"/"))


class Seldom:
    """Lets something be said once in a while.

    :param every_s: in seconds.
    :param monotonic: seconds, for tests to turn.
    """

    def __init__(self, every_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._monotonic = every_s, monotonic
        self._next_s, self._left_out = float("-inf"), 0

    def due(self) -> int | None:
        """How many were left out since the last that was said, when it is time for one; None: it is left out too."""
        now_s = self._monotonic()
        if now_s < self._next_s:
            self._left_out += 1
            return None
        left_out, self._left_out, self._next_s = self._left_out, 0, now_s + self._every_s
        return left_out


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
