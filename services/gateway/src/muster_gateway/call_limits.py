"""Limits of gRPC calls for each caller: no caller takes the places of the others.

caller
    Who counts together: the peer's host, and the identity if it is known. A connection is one host and port.
silent
    A stream that has not said which RM it belongs to: neither by metadata nor by a first message. Such streams cost
    their sender nothing, so there are few places for them. When these are full, the oldest silent stream of the
    connection with most of them ends, of the host with most, and the new one gets its place. So an RM that speaks soon
    is served beside any number of streams that never do.
reset
    A call that its client cancelled within a second. Opening and resetting calls costs a client little and the gateway
    much (CVE-2023-44487), so a connection with many resets gets no calls for a while.
late refusal
    A client that opens at once what was refused keeps the gateway busy with refusals. So a host gets a number of them
    in a second; later ones wait. A call that waits for its refusal holds no place.

The guard sees every call of the server, of all its services. It also gives calls with one request a deadline for it:
headers alone hold no place for ever. Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio
from muster_bus.clock import Clock
from muster_runtime.addresses import host_of_peer

from muster_gateway import metrics
from muster_gateway.connections import Accounts
from muster_gateway.errors import FirstMessageTimeout, GatewayError, InvalidRequest, OverLimit
from muster_gateway.settings import CallSettings

# A call that lives longer was worth its costs.
_RESET_WITHIN_S = 1.0
_CONNECTIONS_REMEMBERED = 10_000
_HOSTS_REMEMBERED = 10_000
# Calls that wait for their refusal, each of some 20 KiB. More of them are refused at once.
_LATE_MAX = 5_000

# gRPC has refused larger metadata by their bytes, unless its header block did not end (connections.py).
_METADATA_MAX = 1_000

Handler = Callable[[Any, Any], Awaitable[Any]]


class UnidentifiedStream(Protocol):
    """A stream as far as this module knows it."""

    @property
    def rm_id(self) -> str:
        """Returns its RM; "" as long as the stream is silent."""
        ...

    @property
    def has_ended(self) -> bool: ...

    def end(self, error: GatewayError) -> None: ...


class PeerCaller(NamedTuple):
    """:ivar connection: gRPC's name of the peer, with its port."""

    host: str
    connection: str


def caller_of(context: Any) -> PeerCaller:
    """Returns a call's caller."""
    peer: str = context.peer()
    return PeerCaller(host_of_peer(peer), peer)


class CallLimits:
    """Counts open calls, connections, silent streams and resets; refuses what is over a limit."""

    def __init__(self, settings: CallSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._of_host: Counter[str] = Counter()
        self._of_identity: Counter[str] = Counter()
        # Host → connection → open calls.
        self._connections: defaultdict[str, Counter[str]] = defaultdict(Counter)
        # Host → connection → its silent streams, the oldest first. Those that spoke leave at the next look.
        self._silent: dict[str, dict[str, OrderedDict[UnidentifiedStream, None]]] = {}
        # Connection → end of the present window, resets in it.
        self._resets: OrderedDict[str, tuple[float, int]] = OrderedDict()
        # Host → until when its refusals last if each takes its share of a second. Those of one second come at once.
        self._refusals: OrderedDict[str, float] = OrderedDict()
        self._late = 0

    # ---- all calls -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call_slot(self, caller: PeerCaller) -> Iterator[None]:
        """Holds a place during a call. Raises OverLimit."""
        self._check(caller)
        begun_s = self._clock.monotonic()
        self._count(caller, 1)
        try:
            yield
        except asyncio.CancelledError:
            if self._clock.monotonic() - begun_s < _RESET_WITHIN_S:
                self._add_reset(caller.connection)
            raise
        finally:
            self._count(caller, -1)

    def _check(self, caller: PeerCaller) -> None:
        limits = self._settings
        connections = self._connections.get(caller.host, ())
        if self._has_many_resets(caller.connection):
            raise _over(
                "resets",
                f"this connection reset more than {limits.max_resets} calls within {limits.resets_window_s:g} s: "
                "it gets no calls for as long",
            )
        if caller.connection not in connections and len(connections) >= limits.max_connections_per_peer:
            raise _over(
                "connections",
                f"{caller.host} has {len(connections)} connections with calls, expected at most "
                f"{limits.max_connections_per_peer} (gateway.calls.max_connections_per_peer)",
            )
        if self._of_host[caller.host] >= limits.max_per_peer:
            raise _over(
                "peer",
                f"{caller.host} has {self._of_host[caller.host]} open calls, expected at most {limits.max_per_peer} "
                "(gateway.calls.max_per_peer)",
            )

    def _count(self, caller: PeerCaller, change: int) -> None:
        self._of_host[caller.host] += change
        if not self._of_host[caller.host]:
            del self._of_host[caller.host]
        connections = self._connections[caller.host]
        connections_before = len(connections)
        connections[caller.connection] += change
        if not connections[caller.connection]:
            del connections[caller.connection]
        metrics.connections.inc(len(connections) - connections_before)
        metrics.calls_open.inc(change)
        if not connections:
            del self._connections[caller.host]

    @contextlib.contextmanager
    def identity_slot(self, identity: str) -> Iterator[None]:
        """Holds a place of an identity during a call, beside :meth:`call_slot`. Raises OverLimit."""
        limit, open_calls = self._settings.max_per_identity, self._of_identity
        if open_calls[identity] >= limit:
            raise _over(
                "identity",
                f"identity {identity} has {open_calls[identity]} open calls, expected at most {limit} "
                "(gateway.calls.max_per_identity)",
            )
        open_calls[identity] += 1
        try:
            yield
        finally:
            open_calls[identity] -= 1
            if not open_calls[identity]:
                del open_calls[identity]

    # ---- refusals --------------------------------------------------------------------------------------------------

    def refusal_wait_s(self, host: str) -> float:
        """Counts one more refusal of a host. Returns how long it must wait (seconds)."""
        now_s, limit = self._clock.monotonic(), self._settings.max_refusals
        due_s = max(self._refusals.get(host, float("-inf")), now_s - 1.0) + 1.0 / limit
        self._refusals[host] = due_s
        self._refusals.move_to_end(host)
        if len(self._refusals) > _HOSTS_REMEMBERED:
            self._refusals.popitem(last=False)
        return max(0.0, due_s - now_s)

    async def delay_refusal(self, caller: PeerCaller, *, placed: bool) -> None:
        """Returns when a refusal of the caller is due.

        :param placed: the call has a place. It has none meanwhile.
        """
        if self._late >= _LATE_MAX or (wait_s := self.refusal_wait_s(caller.host)) <= 0:
            return
        self._late += 1
        if placed:
            self._count(caller, -1)
        try:
            await asyncio.sleep(wait_s)
        finally:
            self._late -= 1
            if placed:
                self._count(caller, 1)

    # ---- resets ----------------------------------------------------------------------------------------------------

    def _add_reset(self, connection: str) -> None:
        now_s = self._clock.monotonic()
        until_s, count = self._resets.get(connection, (0.0, 0))
        if now_s >= until_s:
            until_s, count = now_s + self._settings.resets_window_s, 0
        count += 1
        if count == self._settings.max_resets + 1:  # from now on, as long as it took at most
            until_s = now_s + self._settings.resets_window_s
        self._resets[connection] = (until_s, count)
        self._resets.move_to_end(connection)
        if len(self._resets) > _CONNECTIONS_REMEMBERED:
            self._resets.popitem(last=False)
        metrics.calls_reset.inc()

    def _has_many_resets(self, connection: str) -> bool:
        resets = self._resets.get(connection)
        return resets is not None and resets[1] > self._settings.max_resets and self._clock.monotonic() < resets[0]

    # ---- silent streams --------------------------------------------------------------------------------------------

    def add_silent(self, stream: UnidentifiedStream, caller: PeerCaller) -> None:
        """Counts a stream until it speaks or ends. Over a limit, another one of the host with most ends."""
        limits, host = self._settings, caller.host
        self._silent.setdefault(host, {}).setdefault(caller.connection, OrderedDict())[stream] = None
        if self._silent_of(host) > limits.max_silent_per_peer:
            self._drop_identified(host)
            if self._silent_of(host) > limits.max_silent_per_peer:
                self._end_oldest(host, f"{host} has more than {limits.max_silent_per_peer} streams")
        if self.silent_streams() > limits.max_silent:
            for silent_host in list(self._silent):
                self._drop_identified(silent_host)
            if self.silent_streams() > limits.max_silent:
                most = max(self._silent, key=self._silent_of)
                self._end_oldest(most, f"this gateway has more than {limits.max_silent} streams")
        metrics.streams_silent.set(self.silent_streams())

    def remove_silent(self, stream: UnidentifiedStream, caller: PeerCaller) -> None:
        """The stream spoke or ended."""
        if stream in self._silent.get(caller.host, {}).get(caller.connection, ()):
            self._drop(caller.host, caller.connection, stream)
            metrics.streams_silent.set(self.silent_streams())

    def silent_streams(self) -> int:
        """Returns the number of silent streams, of all hosts."""
        return sum(map(self._silent_of, self._silent))

    def _silent_of(self, host: str) -> int:
        return sum(map(len, self._silent.get(host, {}).values()))

    def _drop(self, host: str, connection: str, stream: UnidentifiedStream) -> None:
        connections = self._silent[host]
        del connections[connection][stream]
        if not connections[connection]:
            del connections[connection]
        if not connections:
            del self._silent[host]

    def _drop_identified(self, host: str) -> None:
        connections = self._silent[host]
        for connection, stream in [(name, stream) for name, streams in connections.items() for stream in streams]:
            if stream.rm_id or stream.has_ended:
                self._drop(host, connection, stream)

    def _end_oldest(self, host: str, message: str) -> None:
        connections = self._silent[host]
        connection = max(connections, key=lambda name: len(connections[name]))
        stream = next(iter(connections[connection]))
        self._drop(host, connection, stream)
        stream.end(
            _over(
                "silent",
                f"{message} that have not said their rmID, and this one waits longest: name it in the metadata "
                "muster-rm-id, or send the first message sooner",
            )
        )


def _over(reason: str, message: str) -> OverLimit:
    metrics.calls_refused.labels(reason).inc()
    return OverLimit(message)


class CallGuard(grpc.aio.ServerInterceptor):
    """Gives each call its place, and calls with one request a deadline for it.

    :param refused: is told of a call over a limit, also of time: its method, its host, and the error.
    :param accounts: of the connections of these calls.
    """

    def __init__(
        self,
        limits: CallLimits,
        settings: CallSettings,
        refused: Callable[[str, str, GatewayError], None] = lambda *_: None,
        accounts: Accounts | None = None,
    ) -> None:
        self._refused = refused
        self._accounts = accounts or Accounts(0)
        self._limits, self._settings = limits, settings

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        # (Each look at a call's metadata converts all of it.)
        if len(details.invocation_metadata or ()) > _METADATA_MAX:
            return grpc.stream_stream_rpc_method_handler(_refuse_metadata)
        handler = await continuation(details)
        return None if handler is None else self._guarded(handler, details.method)

    def _guarded(self, handler: Any, name: str) -> Any:
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming:
            streamed: Handler = handler.stream_stream if handler.response_streaming else handler.stream_unary
            method = self._in_slot(streamed, name)
        else:
            single: Handler = handler.unary_stream if handler.response_streaming else handler.unary_unary
            method = self._in_slot(self._in_time(single, name), name)
        # The client sees no difference: one request is a stream of one message. So the wait for it is this guard's.
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(method, *coders)

    def _in_slot(self, method: Handler, name: str) -> Handler:
        async def call(requests: Any, context: Any) -> Any:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._accounts.call(context.peer()))
                try:
                    stack.enter_context(self._limits.call_slot(caller_of(context)))
                except OverLimit as error:
                    self._refused(name, host_of_peer(context.peer()), error)
                    await self._limits.delay_refusal(caller_of(context), placed=False)
                    await context.abort(error.code, str(error))
                return await _called(method, requests, context)

        return call

    def _in_time(self, method: Handler, name: str) -> Handler:
        timeout_s = self._settings.first_message_timeout_s

        async def call(_: Any, context: Any) -> Any:
            try:
                async with asyncio.timeout(timeout_s):
                    request = await context.read()
            except TimeoutError:
                metrics.calls_refused.labels("no_message").inc()
                silent = FirstMessageTimeout(
                    f"no request within {timeout_s:g} s (gateway.calls.first_message_timeout_s)"
                )
                self._refused(name, host_of_peer(context.peer()), silent)
                await context.abort(silent.code, str(silent))
            if isinstance(request, bytes):
                self._accounts.message(context.peer(), len(request))
            if request is grpc.aio.EOF:
                wrong = InvalidRequest("the call was closed before its request")
                await context.abort(wrong.code, str(wrong))
            return await _called(method, request, context)

        return call


async def _refuse_metadata(_requests: Any, context: Any) -> None:
    metrics.calls_refused.labels("metadata").inc()
    large = OverLimit(f"metadata: must have at most {_METADATA_MAX} entries")
    await context.abort(large.code, str(large))


async def _called(method: Handler, requests: Any, context: Any) -> Any:
    """Calls a handler of any kind: one that returns or writes its answers, or an asynchronous generator of them."""
    result = method(requests, context)
    if hasattr(result, "__aiter__"):
        async for answer in result:
            await context.write(answer)
        return None
    return await result
