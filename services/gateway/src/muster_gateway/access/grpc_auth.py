"""The door of gRPC: an interceptor that identifies the caller of every call and checks the method's right.

The table of rights (``muster_rest.grpc_methods``) says what a method needs, and which field of its request names the
RM. A method without a row needs the role admin. The door hands the caller to the method (``muster_runtime.caller``). A
stream of an RM names its RM later, so its servicer checks that one.

A refused call leaves an audit entry, and so does one that ends because of a limit. So does every call of an audited
method, unless the scheduler writes it.

A call that answers with a stream ends with PERMISSION_DENIED when its caller loses the right.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import grpc
import structlog
from muster_rest.grpc_methods import METHODS, Method, by_path
from muster_runtime.addresses import host_of_peer
from muster_runtime.caller import Caller
from muster_runtime.elapsed import elapsed_s
from muster_runtime.grpc_headers import send_headers
from muster_runtime.identity import Proof, Right
from muster_runtime.service_lifecycle import run_until
from muster_si.positions import AFTER_METADATA, WAIT_METADATA

from muster_gateway import metrics
from muster_gateway.access.active_calls import ActiveCalls
from muster_gateway.access.request_codec import REQUEST_BYTES_MAX, may_be_large, rm_steps
from muster_gateway.audit import AuditWriter
from muster_gateway.audit_codec import AuditResult
from muster_gateway.authentication import Authenticator, PresentedCredentials
from muster_gateway.call_limits import CallLimits
from muster_gateway.errors import OverLimit, PermissionDenied, RateLimited, RightRevoked, Unauthenticated, shortened
from muster_gateway.log_throttle import LogThrottle
from muster_gateway.rates import RateLimiter, pushback
from muster_gateway.stream_fairness import StepTurns

log = structlog.get_logger(__name__)

# Limits the log messages about refusals. A client that keeps trying would fill the log.
_REFUSAL_LOG_INTERVAL_S = 1.0
# The others are many parties with one name.
_OF_ONE_PARTY = frozenset({Proof.TOKEN, Proof.CERTIFICATE, Proof.JWT})

# What calls over a limit end with; streams also because they did not name their RM in time.
_LIMITS = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED})
_STREAM_LIMITS = _LIMITS | {grpc.StatusCode.DEADLINE_EXCEEDED}

Handler = Callable[[Any, Any], Any]


class GrpcAuthInterceptor(grpc.aio.ServerInterceptor):
    """See the module's docstring.

    :param methods: by their names in calls.
    :param calls: keeps the calls that are under way.
    :param rates: of identities; None: no limits.
    :param audit: takes the entries; None: nothing is audited.
    :param limits: of an identity's open calls; None: no limits.
    :param step_runner: those of the gateway's large messages.
    """

    def __init__(
        self,
        doorman: Authenticator,
        calls: ActiveCalls,
        methods: dict[str, Method] | None = None,
        rates: RateLimiter | None = None,
        audit: AuditWriter | None = None,
        limits: CallLimits | None = None,
        step_runner: StepTurns | None = None,
    ) -> None:
        self._step_runner = step_runner if step_runner is not None else StepTurns()
        self._doorman, self._calls, self._rates, self._audit = doorman, calls, rates, audit
        self._limits = limits
        self._methods = by_path(METHODS) if methods is None else methods
        self._refusals = LogThrottle(_REFUSAL_LOG_INTERVAL_S)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Returns the method's handler, behind the checks. (The library's interface.)"""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        path: str = handler_call_details.method
        method = self._methods.get(path) or Method(*_named(path), Right.ADMIN)
        if inspect.isasyncgenfunction(handler.stream_stream):
            return _remade(handler, self._generating(method, handler.stream_stream))
        if handler.response_streaming and not handler.request_streaming and method.right is not Right.NONE:
            return _remade(handler, self._ending(method, handler.unary_stream))
        return _remade(handler, self._calling(method, _behaviour(handler)))

    def _calling(self, method: Method, inner: Handler) -> Handler:
        async def handle(request: Any, context: Any) -> Any:
            rm_id = await self._rm_in(method, request, context)
            caller = await self._admit(method, request, rm_id, context)
            async with self._under_way(method, request, rm_id, caller, context):
                return await inner(request, context)

        return handle

    def _ending(self, method: Method, inner: Handler) -> Handler:
        """Wraps a method that answers with a stream, which may have to end."""

        async def handle(request: Any, context: Any) -> None:
            withdrawn = asyncio.Event()
            rm_id = await self._rm_in(method, request, context)
            caller = await self._admit(method, request, rm_id, context)
            caller.on_withdrawn(withdrawn.set)
            async with self._under_way(method, request, rm_id, caller, context):
                await send_headers(context)
                if not await run_until(inner(request, context), withdrawn.wait()):
                    gone = RightRevoked(caller.identity.name)
                    await context.abort(gone.code, str(gone))

        return handle

    def _generating(self, method: Method, inner: Handler) -> Handler:
        """Wraps a generator, of a library. It learns nothing of the caller."""

        async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
            await self._admit(method, requests, "", context)
            async for answer in inner(requests, context):
                yield answer

        return handle

    @contextmanager
    def _audited(self, method: Method, request: Any, rm_id: str, caller: Caller, context: Any) -> Iterator[None]:
        """Notes how a call of an audited method ends, and of the others those that a limit ends."""
        if self._audit is None:
            yield
            return
        if not method.audited:
            try:
                yield
            except Exception:
                ends = _LIMITS if isinstance(request, bytes) else _STREAM_LIMITS
                if context.code() in ends:
                    named = rm_id or next((claimed for _, claimed in caller.claims if claimed), "")
                    self._audit.record_refused(caller, "call", named, OverLimit(_status(context)))
                raise
            return
        result, reason = AuditResult.ACCEPTED, ""
        try:
            yield
        except asyncio.CancelledError:
            result, reason = AuditResult.FAILED, "the caller ended the call"
            raise
        except BaseException:
            result, reason = AuditResult.FAILED, _status(context)
            raise
        finally:
            self._audit.record_ended(caller, method.action, rm_id, result, reason)

    @asynccontextmanager
    async def _under_way(
        self, method: Method, request: Any, rm_id: str, caller: Caller, context: Any
    ) -> AsyncIterator[None]:
        """Holds one of the identity's open calls while an admitted call is under way, and notes how it ends. Ends the
        call with RESOURCE_EXHAUSTED if the identity has too many.
        """
        with ExitStack() as slots:
            if self._limits is not None and caller.identity.proof in _OF_ONE_PARTY:
                try:
                    slots.enter_context(self._limits.identity_slot(caller.identity.name))
                except OverLimit as error:
                    if self._audit is not None:
                        self._audit.record_refused(caller, method.action, rm_id, error)
                    await context.abort(error.code, str(error))
            with self._calls.track(caller), self._audited(method, request, rm_id, caller, context):
                yield

    async def _rm_in(self, method: Method, request: Any, context: Any) -> str:
        """Returns the RM that a request names; "": it is a stream, or names none. Ends a call whose request is larger
        than any request of its kind can be with RESOURCE_EXHAUSTED.
        """
        if not isinstance(request, bytes):
            return ""
        if len(request) > REQUEST_BYTES_MAX and not may_be_large(method.path):
            error = OverLimit(f"request: {len(request)} bytes, expected at most {REQUEST_BYTES_MAX}")
            await context.abort(error.code, str(error))
        return await self._step_runner.run(host_of_peer(context.peer()), rm_steps(method.path, request))

    async def _admit(self, method: Method, request: Any, rm_id: str, context: Any) -> Caller:
        """Returns the call's caller, or ends the call with UNAUTHENTICATED or PERMISSION_DENIED."""
        peer: str = context.peer()
        credentials: PresentedCredentials | None = None
        try:
            credentials = self._doorman.grpc_credentials(method.path, context)
            caller = await self._doorman.authorize(credentials, method.right, rm_id)
        except (Unauthenticated, PermissionDenied) as refused:
            metrics.grpc_refused.labels(refused.reason).inc()
            if self._audit is not None and credentials is not None:
                self._audit.record_refused(self._doorman.best_effort_caller(credentials), method.action, rm_id, refused)
            if (left_out := self._refusals.suppressed_if_due()) is not None:
                more = {"not_told": left_out} if left_out else {}
                log.warning(
                    "grpc call refused",
                    method=shortened(method.path),
                    client=shortened(peer),
                    status=refused.code.name,
                    why=str(refused),
                    **more,
                )
            await context.abort(refused.code, str(refused))
            raise AssertionError("abort raises") from refused
        if self._rates is not None and method.right is not Right.NONE and isinstance(request, bytes):
            try:
                self._rates.check_call(caller, len(request))
            except RateLimited as error:
                if self._audit is not None:
                    self._audit.record_refused(caller, method.action, rm_id, error)
                context.set_trailing_metadata(pushback(error.wait_s))
                await context.abort(error.code, str(error))
        if method.rm:
            caller.claims.append((method.right, rm_id))
        if (left_s := context.time_remaining()) is not None:
            caller.ends_s = elapsed_s() + left_s
        for name, value in context.invocation_metadata() or ():
            if name == AFTER_METADATA and isinstance(value, str):
                caller.after = value
            elif name == WAIT_METADATA and isinstance(value, str):
                caller.after_wait = value
        return caller


def _status(context: Any) -> str:
    """Returns the status with which a method ended its call, and its text."""
    code, details = context.code(), context.details()
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    text = details.decode(errors="replace") if isinstance(details, bytes) else str(details or "")
    return f"{name}: {text}" if text else name


def _named(path: str) -> tuple[str, str]:
    service, _, name = path.lstrip("/").partition("/")
    return service, name


def _behaviour(handler: Any) -> Handler:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    behaviour: Handler = next(method for method in kinds if method is not None)
    return behaviour


_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _remade(handler: Any, behaviour: Handler) -> Any:
    """Returns the handler with another behaviour."""
    make: Any = _MAKERS[handler.request_streaming, handler.response_streaming]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)
