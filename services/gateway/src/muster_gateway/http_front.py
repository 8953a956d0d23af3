"""The HTTP front: YuniKorn's REST port. It answers only health, metrics, and the page by itself.

Before a request goes anywhere, the front identifies the caller (``authentication.py``) and checks the caller's right
(``route_rights.py``). It tells the services behind it the caller in headers that only this front sets. They never see a
token. The routes (``muster_rest``) say where a request goes, and which right it needs. ``/`` and ``/page/…`` are the
page's files (``page``). For an unknown path the front answers 404 like YuniKorn's router.

A target is a URL (``http_forwarder.py``) or an ASGI application in this process, which the front calls directly. The
front itself runs in the gateway's process, or in another one that the gateway trusts (``front_end.py``). That one
passes what only the gateway can answer to the gateway's front (:meth:`HttpFront.answer_admitted`).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl

import structlog
from muster_bus.errors import BusError
from muster_rest import openapi, system_health
from muster_rest.route_table import GATEWAY, PUBLISHER, VIEW, RouteTable
from muster_rest.shapes.health import Grade, SystemHealthDao
from muster_runtime.caller import Caller, current
from muster_runtime.default_rm import DEFAULT_RM_HEADER, default_rm_header
from muster_runtime.elapsed import elapsed_s
from muster_runtime.exposition import ExpositionBusy, SharedExposition
from muster_runtime.gateway_note import HEADER as NOTE_HEADER
from muster_runtime.gateway_note import GatewayNote
from muster_runtime.go_json import error_body, go_json
from muster_runtime.http_server import CLIENT_LEFT, cutter
from muster_runtime.identity import IDENTITY_HEADERS, Identity, Right, Role
from muster_runtime.positions import position_given
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import Receive, Scope, Send

from muster_gateway import metrics, route_rights
from muster_gateway.access.active_calls import ActiveCalls
from muster_gateway.audit import AuditWriter
from muster_gateway.audit_codec import AuditResult
from muster_gateway.audit_pages import AuditPages
from muster_gateway.authentication import Authenticator, AuthFailure
from muster_gateway.errors import (
    InvalidRequest,
    OverLimit,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
    ViewUnavailable,
    append_failure_text,
    shortened,
)
from muster_gateway.healthcheck import answer_healthcheck
from muster_gateway.log_throttle import LogThrottle
from muster_gateway.operator_http import whoami
from muster_gateway.page import Page
from muster_gateway.rates import RateLimiter

log = structlog.get_logger(__name__)

RawHeaders = list[tuple[bytes, bytes]]
T = TypeVar("T")

_TEXT = "text/plain; charset=utf-8"
_NOT_FOUND = b"404 page not found\n"
# Methods that change nothing.
_LOOKS = ("GET", "HEAD", "OPTIONS")
_PATH_CHARACTERS = 200
_SLASHES = re.compile("/+")
_JSON = "application/json; charset=UTF-8"


_ROUTE_TABLE = RouteTable()
# The front's own handlers by path, without the page's files.
_OWN = {route.path: route.handler for route in GATEWAY.routes if route.handler != "front.page"}


class HttpBackend(Protocol):
    """An object that answers HTTP requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


# Rights that are about the RM of a request.
_OF_RMS = frozenset({Right.READ, Right.ACT, Right.CONFIGURE, Right.OPERATE})
# The caller's own claims, and headers for this front alone.
_NOT_PASSED = IDENTITY_HEADERS | {b"authorization", DEFAULT_RM_HEADER, NOTE_HEADER}
# Limits the log messages about refusals. A client that keeps trying would fill the log.
_REFUSAL_LOG_INTERVAL_S = 1.0
# Time for which a health result is reused.
_LOOKED_S = 0.25


class HttpFront:
    """An ASGI application. See the module's docstring.

    :param doorman: identifies callers.
    :param live: tells whether the gateway's process should be kept.
    :param ready: returns whether the gateway can serve, and why not, one sentence each.
    :param health: returns the state of the whole.
    :param exposition: returns the answer of ``/metrics``; None: this process's metrics.
    :param default_rm: the RM of a request that names none, where there are several; "": none.
    :param calls: keeps the requests that are under way.
    :param rates: of identities; None: no limits.
    :param audit: takes refused requests, and those that may change something; None: nothing is audited.
    :param trail: answers the route of the audit trail; None: there is none.
    :param operate: answers operators' actions; None: there are none.
    :param tokens: the gateway takes tokens.
    :param note: returns what the services behind need for their texts.
    """

    def __init__(
        self,
        view: HttpBackend,
        publisher: HttpBackend,
        doorman: Authenticator,
        live: Callable[[], Awaitable[bool]],
        ready: Callable[[], Awaitable[tuple[bool, list[str]]]],
        health: Callable[[], Awaitable[SystemHealthDao]],
        exposition: Callable[[], Awaitable[bytes]] | None = None,
        default_rm: str = "",
        calls: ActiveCalls | None = None,
        rates: RateLimiter | None = None,
        audit: AuditWriter | None = None,
        trail: AuditPages | None = None,
        operate: HttpBackend | None = None,
        *,
        tokens: bool = False,
        note: Callable[[], GatewayNote] = GatewayNote,
    ) -> None:
        self._trail, self._operate, self._tokens = trail, operate, tokens
        self._calls, self._rates, self._audit = calls if calls is not None else ActiveCalls(), rates, audit
        self._default_rm, self._note = default_rm_header(default_rm), note
        self._view, self._publisher, self._doorman = view, publisher, doorman
        self._live, self._ready, self._health = _Shared(live), _Shared(ready), _Shared(health)
        self._exposition = SharedExposition(exposition)
        self._refusals = LogThrottle(_REFUSAL_LOG_INTERVAL_S)
        self._page = Page()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no service here has web sockets
            await send({"type": "websocket.close", "code": 1000})
            return
        # 1. the caller and its right
        needed = route_rights.needed(scope["method"], scope["path"])
        rm_id = _rm_of(scope) if needed in _OF_RMS else ""
        try:
            caller = await self._doorman.authorize(self._doorman.http_credentials(scope), needed, rm_id)
        except (Unauthenticated, PermissionDenied) as refused:
            if self._audit is not None:
                caller = self._doorman.best_effort_caller(self._doorman.http_credentials(scope))
                self._audit.record_refused(caller, str(needed), rm_id, refused)
            await self._refuse(refused, scope, send)
            return
        if self._rates is not None and needed is not Right.NONE:
            try:
                self._rates.check_call(caller, 0)
            except RateLimited as error:
                if self._audit is not None:
                    self._audit.record_refused(caller, str(needed), rm_id, error)
                metrics.http_refused.labels("rate").inc()
                headers = [(b"retry-after", str(math.ceil(error.wait_s)).encode())]
                await respond_error(send, 429, str(error), headers, body_wanted=scope["method"] != "HEAD")
                return
        identity = caller.identity
        # 2. the answer
        answered = _Answered(send)
        try:
            headers = _forwarded_headers(
                scope["headers"], identity.headers(needed), [*self._default_rm, *self._note().header()]
            )
            if route_rights.is_stream(scope["method"], scope["path"]):
                caller.claims.append((needed, rm_id))
                caller.on_withdrawn(cutter(scope))
            with self._calls.track(caller), answered:
                await self._route({**scope, "headers": headers}, identity, receive, answered.send)
        finally:
            status = answered.status
            # 3. the log: requests that may change something at level info, others at debug
            strong = needed.role is Role.ADMIN or scope["method"] not in _LOOKS
            tell = log.info if strong else log.debug
            tell("http request", **self._who(scope), identity=identity.name, role=str(identity.role), status=status)
            if strong and needed is not Right.NONE and self._audit is not None:
                good = 200 <= status < 400
                reason = "" if good else f"status {status}"
                result = AuditResult.ACCEPTED if good else AuditResult.FAILED
                self._audit.record_ended(caller, str(needed), rm_id, result, reason)
            elif status == 503 and self._audit is not None and route_rights.is_stream(scope["method"], scope["path"]):
                self._audit.record_refused(caller, "call", rm_id, OverLimit("status 503: no place for the stream"))

    async def answer_admitted(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request that another process's front has admitted, and audits.

        Only that process may reach this method: the caller is what it says.
        """
        with self._calls.track(caller):
            await self._route(scope, caller.identity, receive, send)

    async def _route(self, scope: Scope, identity: Identity, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if _has_steps(scope):
            await respond(send, 404, _TEXT, _NOT_FOUND)
            return
        # Ignores letter case and doubled slashes: the services behind know such paths.
        near = _SLASHES.sub("/", path).lower()
        service = _ROUTE_TABLE.of(near)
        if service is PUBLISHER:
            await self._pass(self._publisher, service.name, scope, receive, send)
        elif service is VIEW:
            await self._pass(self._view, service.name, scope, receive, send)
        else:
            await self._own(scope, identity, receive, send)

    async def _refuse(self, refused: Unauthenticated | PermissionDenied, scope: Scope, send: Send) -> None:
        if isinstance(refused, Unauthenticated):
            reason, status = refused.reason, 401
            # A client that sent no token gets no error code (RFC 6750, section 3.1).
            wrong = refused.reason in (AuthFailure.UNKNOWN, AuthFailure.MALFORMED)
            challenge = 'Bearer realm="muster"' + (', error="invalid_token"' if wrong else "")
        else:
            reason, status = refused.reason, 403
            challenge = f'Bearer realm="muster", error="insufficient_scope", scope="{refused.needed.role}"'
        metrics.http_refused.labels(reason).inc()
        if (left_out := self._refusals.suppressed_if_due()) is not None:
            more = {"not_told": left_out} if left_out else {}
            log.warning("http request refused", **self._who(scope), status=status, why=str(refused), **more)
        headers = [(b"www-authenticate", challenge.encode())]
        await respond_error(send, status, str(refused), headers, body_wanted=scope["method"] != "HEAD")

    def _who(self, scope: Scope) -> dict[str, str]:
        """Returns the request's fields for the log, without query and headers, which may hold anything."""
        return {
            "method": shortened(scope["method"]),
            "path": shortened(scope["path"], _PATH_CHARACTERS),
            "client": shortened(self._doorman.client(scope)),
        }

    async def _pass(self, target: HttpBackend, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        answered = _Answered(send)
        try:
            with answered:
                await target(scope, receive, answered.send)
        finally:
            metrics.http_forwarded.labels(name, str(answered.status)).inc()

    async def _own(self, scope: Scope, identity: Identity, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        file = self._page.answer(path, scope["headers"])
        handler = _OWN.get(path)
        if handler is None and file is None:
            await respond(send, 404, _TEXT, _NOT_FOUND)
        elif handler == "front.operate":
            await self._operated(scope, receive, send)
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, _TEXT, b"Method Not Allowed\n", [(b"allow", b"GET, HEAD")])
        elif file is not None:
            await respond(send, file.status, file.content_type, file.body, file.headers, body_wanted=method == "GET")
        elif handler == "front.metrics":
            try:
                async with self._exposition as text:
                    await respond(send, 200, CONTENT_TYPE_PLAIN_0_0_4, text, body_wanted=method == "GET")
            except (ExpositionBusy, OSError) as error:
                await respond(send, 503, _TEXT, f"{error}\n".encode(), [(b"retry-after", b"1")])
        elif handler == "front.audit":
            await self._audit_page(scope, send, body_wanted=method == "GET")
        elif handler == "front.whoami":
            try:
                body = whoami(identity, scope.get("query_string", b""), tokens=self._tokens)
            except InvalidRequest as error:
                await respond_error(send, 400, str(error), body_wanted=method == "GET")
            else:
                await respond(send, 200, _JSON, body, body_wanted=method == "GET")
        elif handler == "front.openapi":
            document = await asyncio.to_thread(openapi.document_json)
            await respond(
                send, 200, _JSON, document, [(b"access-control-allow-origin", b"*")], body_wanted=method == "GET"
            )
        elif handler == "front.healthcheck":
            await answer_healthcheck(self._view, _visible_health(await self._health(), identity), scope, receive, send)
        elif handler == "front.system_health":
            await self._system_health(identity, send, body_wanted=method == "GET")
        else:
            good, problems = await self._probed(handler)
            # The first line is for probes. The problems below are for readers.
            problems = problems if identity.rights.may(Right.INSPECT) else []
            text = "".join(f"{line}\n" for line in ("SERVING" if good else "NOT_SERVING", *problems)).encode()
            await respond(send, 200 if good else 503, _TEXT, text, body_wanted=method == "GET")

    async def _probed(self, handler: str | None) -> tuple[bool, list[str]]:
        """Answers a probe: whether all is well, and what is not, one line each."""
        if handler == "front.live":
            return await self._live(), []
        if handler == "front.ready":
            return await self._ready()
        state = await self._health()
        return state.grade is not Grade.FAILED, system_health.lines(state)

    async def _system_health(self, identity: Identity, send: Send, *, body_wanted: bool) -> None:
        state = _visible_health(await self._health(), identity)
        headers: RawHeaders = [(b"access-control-allow-origin", b"*"), (b"cache-control", b"no-store")]
        await respond(send, 200, _JSON, go_json(state) + b"\n", headers, body_wanted=body_wanted)

    async def _operated(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await respond(send, 405, _TEXT, b"Method Not Allowed\n", [(b"allow", b"POST")])
        elif self._operate is None:
            await respond(send, 404, _TEXT, _NOT_FOUND)
        else:
            await self._operate(scope, receive, send)

    async def _audit_page(self, scope: Scope, send: Send, *, body_wanted: bool) -> None:
        if self._trail is None:
            await respond(send, 404, _TEXT, _NOT_FOUND)
            return
        caller = current()
        caller.after, caller.after_wait = position_given(scope["headers"])
        try:
            page = await self._trail.answer(scope.get("query_string", b""))
        except InvalidRequest as error:
            await respond_error(send, 400, str(error), body_wanted=body_wanted)
        except (OverLimit, ViewUnavailable, BusError) as error:
            text = (
                f"the log cannot be read ({append_failure_text(error)}): try again"
                if isinstance(error, BusError)
                else str(error)
            )
            await respond_error(send, 503, text, [(b"retry-after", b"1")], body_wanted=body_wanted)
        else:
            headers: RawHeaders = [(b"access-control-allow-origin", b"*")]
            await respond(send, 200, _JSON, page, headers, body_wanted=body_wanted)


def _visible_health(state: SystemHealthDao, identity: Identity) -> SystemHealthDao:
    may = identity.rights.may
    return system_health.shown_to(state, inspects=may(Right.INSPECT), reads=may(Right.READ))


class _Answered:
    """Is around an answer, and has its status afterwards.

    :ivar status: CLIENT_LEFT: it did not begin, because the client had left, or the request was cancelled.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not self.status:
            self.status = 500 if isinstance(error, Exception) else CLIENT_LEFT


class _Shared(Generic[T]):
    """The answer to a question that takes milliseconds. Who asks meanwhile, or shortly after it, gets the same one."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self._until_s = 0.0

    async def __call__(self) -> T:
        if self._asking is None or (self._asking.done() and elapsed_s() >= self._until_s):
            self._asking = asyncio.create_task(self._answer(), name="health")
        return await asyncio.shield(self._asking)

    async def _answer(self) -> T:
        try:
            return await self._ask()
        finally:
            self._until_s = elapsed_s() + _LOOKED_S


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
    """Sends an error in the shape that YuniKorn's REST clients expect: both texts are equal."""
    all_headers = [(b"access-control-allow-origin", b"*"), *(headers or [])]
    await respond(send, status, _JSON, error_body(status, message), all_headers, body_wanted=body_wanted)


def _forwarded_headers(headers: Iterable[tuple[bytes, bytes]], identity: RawHeaders, more: RawHeaders) -> RawHeaders:
    """Returns a request's headers for a service behind this front.

    :param identity: those that tell the caller and what the answer may show.
    """
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_PASSED]
    return [*kept, *identity, *more]


def _rm_of(scope: Scope) -> str:
    """Returns the RM that a request names, as the services behind read it: the first one counts. ""; none."""
    query: bytes = scope.get("query_string", b"")
    if b"rm" not in query and b"%" not in query:
        return ""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return next((value for name, value in pairs if name == "rm"), "")


def _has_steps(scope: Scope) -> bool:
    """Tells whether a path has a step like ``.`` or ``..``.

    A service that follows such steps would reach another endpoint than the one whose role was checked. No path of
    Muster has such a step.
    """
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return any(part in (b".", b"..") for part in raw_path.split(b"/"))
