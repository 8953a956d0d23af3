"""The HTTP front: YuniKorn's REST port. It answers nothing itself but its own health and metrics, and the page.

Who asks is found out here (``identity.py``), and whether they may (``http_roles.py``), before a request goes anywhere.
What is behind is told in headers that only this front sets, and never sees a token.

path                                             goes to
/ws/v1/events/…, /ws/v1/usage                    the event publisher
/ws/v1/…, /debug/…                               the view
/health, /health/live, /health/ready, /metrics   this gateway
/, /page/…, /favicon.ico                         the page's files (``page``)
anything else                                    404 as YuniKorn's router says it

A target is a URL (``http_target.py``) or an ASGI application in this process (called as it is).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

import structlog
from muster_service.go_json import error_body
from muster_service.identity import IDENTITY_HEADERS, Identity, Role
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.types import Receive, Scope, Send

from muster_gateway import http_roles, metrics
from muster_gateway.errors import NotIdentified, RoleTooLow, shown
from muster_gateway.identity import Doorman, Refusal
from muster_gateway.page import Page

log = structlog.get_logger(__name__)

RawHeaders = list[tuple[bytes, bytes]]

_TEXT = "text/plain; charset=utf-8"
_NOT_FOUND = b"404 page not found\n"
# These change nothing.
_LOOKS = ("GET", "HEAD", "OPTIONS")
_PATH_CHARACTERS = 200
_SLASHES = re.compile("/+")
_JSON = "application/json; charset=UTF-8"


class Target(Protocol):
    """Something that answers HTTP requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


OWN_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")
# What a client says of itself, and what is for this front alone.
_NOT_PASSED = IDENTITY_HEADERS | {b"authorization"}
# Refusals are told so often; a client that tries without end would fill the log.
_REFUSED_TOLD_S = 1.0
# What was found of the gateway's health is said again for so long.
_LOOKED_S = 0.25


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
        self._looking: asyncio.Task[tuple[bool, list[str]]] | None = None
        self._looked_until_s = 0.0
        self._page = Page()

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
        # (In other letters, and with more slashes, as well: those behind know where to send such requests.)
        near = _SLASHES.sub("/", path).lower()
        if near.startswith("/ws/v1/events/") or near == "/ws/v1/usage":
            await self._pass(self._publisher, "publisher", scope, receive, send)
        elif near.startswith(("/ws/v1/", "/debug/")):
            await self._pass(self._view, "view", scope, receive, send)
        else:
            await self._own(scope, identity, send)

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

    async def _own(self, scope: Scope, identity: Identity, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        file = self._page.answer(path, scope["headers"])
        if path not in OWN_PATHS and file is None:
            await respond(send, 404, _TEXT, _NOT_FOUND)
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, _TEXT, b"Method Not Allowed\n", [(b"allow", b"GET, HEAD")])
        elif file is not None:
            await respond(send, file.status, file.content_type, file.body, file.headers, body_wanted=method == "GET")
        elif path == "/metrics":
            text = generate_latest() if self._exposition is None else await self._exposition()
            await respond(send, 200, CONTENT_TYPE_PLAIN_0_0_4, text, body_wanted=method == "GET")
        else:
            good, problems = (self._live(), []) if path == "/health/live" else await self._problems()
            # What a probe reads is in the first line; what a person wants to know is below, for who may read.
            problems = problems if identity.role.includes(Role.READ) else []
            text = "".join(f"{line}\n" for line in ("SERVING" if good else "NOT_SERVING", *problems)).encode()
            await respond(send, 200 if good else 503, _TEXT, text, body_wanted=method == "GET")

    async def _problems(self) -> tuple[bool, list[str]]:
        """Whether the gateway can serve, and everything that does not work.

        Looking asks servers and takes milliseconds: who comes meanwhile, or right after it, gets the same answer.
        """
        if self._looking is None or (self._looking.done() and time.monotonic() >= self._looked_until_s):
            self._looking = asyncio.create_task(self._look(), name="health")
        return await asyncio.shield(self._looking)

    async def _look(self) -> tuple[bool, list[str]]:
        try:
            problems = await self._unready()
            return not problems, [*problems, *await self._beside()]
        finally:
            self._looked_until_s = time.monotonic() + _LOOKED_S


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
