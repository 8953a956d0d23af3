"""The client for resource managers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Literal

import grpc
import grpc.aio
import structlog
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_si.positions import newest

from muster_client.access import PLAIN, Access, AccessWrong
from muster_client.admin import DEFAULT_TIMEOUT_S, ConfigurationAnswer, configuration_answer
from muster_client.backoff import Backoff
from muster_client.callback_stream import NAME as CALLBACK
from muster_client.callback_stream import CallbackStream, wants_callbacks
from muster_client.callbacks import Callbacks, Rejection, Result
from muster_client.chance import SYSTEM
from muster_client.clock import Clock, SystemClock
from muster_client.errors import (
    CallbackFailed,
    ClientClosed,
    ClientError,
    RegistrationFailed,
    RegistrationRejected,
    ReregistrationNeeded,
)
from muster_client.gateway_client import position_in
from muster_client.metrics import ClientMetrics
from muster_client.renewing_channel import Channel, RenewedChannel
from muster_client.resumable_stream import Metadata, ResumableStream
from muster_client.sequences import Sequences
from muster_client.settings import ClientSettings

log = structlog.get_logger(__name__)

RM_ID_METADATA = "muster-rm-id"  # names the stream's RM before the first message
WARNING_METADATA = "muster-warning-bin"  # warnings about an accepted registration

_SERVICE = "/si.v1.Scheduler/"
_CALLBACKS = "/muster.v1.Callbacks/Connect"
_TRY_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)
_CREATIONS = frozenset({si.NodeInfo.CREATE, si.NodeInfo.CREATE_DRAIN})


class RmClient:
    """A resource manager's connection to a gateway, or to several in turn.

    ::

        async with RmClient("127.0.0.1:9090", "my-cluster", callbacks=Callbacks(on_allocated=start)) as rm:
            await rm.register()
            await rm.send_nodes([node("n1", {"vcore": 8000, "memory": 32 << 30})])

    Every ``send_…`` makes one message of its arguments and returns when there is room for it: that is the
    back-pressure. Answers come through the callbacks. The README.md beside this package explains lost connections.

    :param address: a gRPC target: host:port, or ipv4:host:port,host:port for several gateways.
    :param rm_id: names the RM's cluster (the scheduler interface: rmID). Printable ASCII, because it also travels in
        metadata.
    :param config: the queue configuration, as YAML text; empty: the gateway's default.
    :param callbacks: the functions to call; see :class:`Callbacks`.
    :param credentials: of the channel; None: plain text.
    :param metadata: sent with every call.
    :param access: TLS and token; ``credentials`` come first.
    :param channel: makes the calls, in place of one to ``address``. The client closes it.
    :ivar warnings: the scheduler's warnings about the last registration, such as a configuration's key without effect;
        the client also logs them.

    Raises: ClientError for an rm_id that metadata cannot carry. AccessWrong for files that cannot be used.
    """

    def __init__(
        self,
        address: str,
        rm_id: str,
        *,
        config: str = "",
        version: str = "",
        policy_group: str = "",
        build_info: Mapping[str, str] | None = None,
        extra_config: Mapping[str, str] | None = None,
        callbacks: Callbacks | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
        chance: Random = SYSTEM,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        access: Access = PLAIN,
        channel: Channel | None = None,
    ) -> None:
        if not (rm_id.isascii() and rm_id.isprintable()):
            raise ClientError(f"rm_id: {rm_id!r}, expected printable ASCII: it is sent in the calls' metadata")
        self.rm_id = rm_id
        self.warnings: tuple[str, ...] = ()
        self.metrics = ClientMetrics()
        self._registration = si.RegisterResourceManagerRequest(
            rmID=rm_id,
            version=version,
            policyGroup=policy_group,
            buildInfo=build_info,
            config=config,
            extraConfig=extra_config,
        )
        self._callbacks = callbacks or Callbacks()
        self._settings = settings or ClientSettings()
        self._clock, self._chance = clock or SystemClock(), chance
        self._metadata: Metadata = ((RM_ID_METADATA, rm_id), *metadata)
        self._access, self._token = access, access.metadata()
        self._channel: Channel = (
            channel if channel is not None else _channel(address, credentials, self._settings, access)
        )
        self._sequences = Sequences()
        self._allocations = self._stream("allocation", "UpdateAllocation", si.AllocationResponse, self._on_allocation)
        self._applications = self._stream(
            "application", "UpdateApplication", si.ApplicationResponse, self._on_application
        )
        self._nodes = self._stream("node", "UpdateNode", si.NodeResponse, self._on_node)
        self._streams: tuple[ResumableStream[Any], ...] = (self._nodes, self._applications, self._allocations)
        self._positions: dict[str, str] = {}  # the last one of each stream
        self._asked = self._callback_stream() if wants_callbacks(self._callbacks) else None
        if self._asked is not None:
            self._streams += (self._asked,)
        # For each node, its unanswered items in order: True for a creation (which the journal knows), False for a
        # change.
        self._node_items: defaultdict[str, deque[bool]] = defaultdict(deque)
        self._register_lock = asyncio.Lock()
        self._supervisor: asyncio.Task[None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._stream_tasks: list[asyncio.Task[None]] = []
        self._unknown = ""  # the gateway's text, while it does not know the RM
        self._failure: ClientError | None = None
        self._finished = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> RmClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ---- registration and life -----------------------------------------------------------------------------------

    async def register(self) -> None:
        """Registers the RM and opens its streams. A repeated call starts the scheduler's and the client's state afresh.

        The scheduler sends questions about everything that an RM with callbacks sends after this method has returned.

        Retries for ``register_timeout_s`` while no gateway answers. Do not call it from a stream's callback (it would
        wait for itself); ``on_reregister_needed`` may call it.

        Raises: RegistrationFailed, RegistrationRejected, ClientClosed.
        """
        if asyncio.current_task() in self._stream_tasks:
            raise ClientError("register() called from a stream's callback; use on_reregister_needed, or a task")
        async with self._register_lock:
            self._must_be_open()
            await self._stop_streams()
            await self._call_register()
            self._sequences.restart()
            self._start_streams()
            await self._welcomed()

    async def attach(self) -> None:
        """Opens the streams of an RM that is already registered (for example by another member of its HA pair).

        Responses continue where the RM's streams ended. Raises: ClientClosed.
        """
        async with self._register_lock:
            self._must_be_open()
            await self._stop_streams()
            self._start_streams()
            await self._welcomed()

    async def wait(self) -> None:
        """Returns when the client is closed. Raises the error that ended it: StreamRefused, CallbackFailed,
        RegistrationRejected, ReregistrationNeeded (without a callback for it).
        """
        await self._finished.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Writes the waiting messages, half-closes the streams, waits until the messages are known as taken, and ends.

        Bounded by ``close_timeout_s`` and ``linger_s``. A gateway keeps sending on a half-closed stream, so this side
        must end it.
        """
        if self._closed:
            return
        self._closed = True
        for stream in self._streams:
            stream.close()
        await self._bounded((stream.written() for stream in self._streams), self._settings.close_timeout_s)
        await self._bounded((stream.proven() for stream in self._streams), self._settings.linger_s)
        await self._stop_streams()
        if self._recovery is not None and self._recovery is not asyncio.current_task():
            await _cancel(self._recovery)
        await self._channel.close()
        self._finish(None)

    # ---- sending -------------------------------------------------------------------------------------------------

    async def send_nodes(self, nodes: Sequence[si.NodeInfo]) -> None:
        """Sends nodes to create, update, drain or decommission. The answers come to on_node."""
        message = si.NodeRequest(nodes=nodes, rmID=self.rm_id)
        items = [(item.nodeID, item.action in _CREATIONS) for item in nodes]
        await self._send(self._nodes, message, [node_id for node_id, creation in items if creation])
        for node_id, creation in items:  # the writer is another task, so no answer has come yet
            self._node_items[node_id].append(creation)

    async def send_applications(
        self, new: Sequence[si.AddApplicationRequest] = (), remove: Sequence[si.RemoveApplicationRequest] = ()
    ) -> None:
        """Sends applications to add and to remove. The answers to additions come to on_application.

        Send an application's asks after it was accepted, because the streams are independent of each other.
        """
        message = si.ApplicationRequest(new=new, remove=remove, rmID=self.rm_id)
        await self._send(self._applications, message, [item.applicationID for item in new])

    async def send_asks(self, asks: Sequence[si.Allocation | si.AllocationAsk]) -> None:
        """Sends asks of either generation, and existing allocations (with a nodeID)."""
        message = si.AllocationRequest(
            rmID=self.rm_id,
            asks=[item for item in asks if isinstance(item, si.AllocationAsk)],
            allocations=[item for item in asks if isinstance(item, si.Allocation)],
        )
        keys = [(item.applicationID, item.allocationKey) for item in asks]
        once = all(isinstance(item, si.Allocation) or item.maxAllocations <= 1 for item in asks)
        await self._send(self._allocations, message, keys, proves=once)

    async def send_releases(
        self, allocations: Sequence[si.AllocationRelease] = (), asks: Sequence[si.AllocationAskRelease] = ()
    ) -> None:
        """Ends allocations, and withdraws asks."""
        releases = si.AllocationReleasesRequest(allocationsToRelease=allocations, allocationAsksToRelease=asks)
        hints = [_release_hint(item) for item in allocations if item.allocationKey]
        await self._send(self._allocations, si.AllocationRequest(rmID=self.rm_id, releases=releases), (), hints)

    async def update_configuration(
        self,
        config: str,
        *,
        policy_group: str = "",
        extra_config: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> ConfigurationAnswer:
        """Gives this RM another configuration at run time, as a whole or not at all, over its callback stream.

        An RM without that stream (see :class:`Callbacks`) uses :meth:`AdminClient.update_configuration`.

        :param config: YAML text; empty: the scheduler's default.

        Raises: AdminFailed if there is no answer (the call may be repeated), ClientClosed.
        """
        self._must_be_open()
        if self._asked is None:
            raise ClientError("update_configuration: there is no callback stream, expected a callback that needs one")
        if self._supervisor is None:
            raise ClientClosed("the streams are not open: register() comes first")
        request = si.UpdateConfigurationRequest(
            rmID=self.rm_id, policyGroup=policy_group, config=config, extraConfig=extra_config
        )
        response = await self._asked.update_configuration(request, timeout_s)
        self._note_callback_position(response.position)
        return configuration_answer(response)

    async def nodes_answered(self) -> None:
        """Returns when every sent node item is accepted or rejected: creations, updates, drains, removals.

        Bound it with asyncio.timeout. After a lost stream a change may be answered twice. The second answer may then
        count for a later change of the same node.
        """
        await self._nodes.all_answered(lambda: bool(self._node_items))

    async def applications_answered(self) -> None:
        """Returns when every added application is accepted or rejected. Bound it with asyncio.timeout."""
        await self._applications.all_answered()

    def unanswered_asks(self) -> int:
        """Returns the number of asks that are neither allocated nor rejected nor released."""
        return self._allocations.journal.unanswered

    def missing_sequences(self) -> list[int]:
        """Returns response numbers that no stream has brought yet. One that stays is a gap."""
        return self._sequences.missing()

    def last_sequence(self, stream: Literal["allocation", "application", "node", "callback"]) -> int:
        """Returns the number of the last response processed on a stream."""
        return self._sequences.last(stream)

    @property
    def position(self) -> str:
        """The position of all that Muster has told this client, the response of a running callback included; "" before.

        A read of REST (``Muster-After``) or gRPC that is given it shows all of that (docs/consistency.md).
        """
        return functools.reduce(newest, self._positions.values(), "")

    # ---- responses -----------------------------------------------------------------------------------------------

    async def _on_allocation(self, response: si.AllocationResponse) -> None:
        numbered, answered, calls = response.responseSequence > 0, self._allocations.answered, self._callbacks
        # Even a second allocation or rejection is never kept back: it would be a defect that the RM should see.
        for item in response.new:
            answered((item.applicationID, item.allocationKey), numbered=numbered)
        gone = [(item.applicationID, item.allocationKey) for item in response.released]
        gone += [(item.applicationID, item.allocationKey) for item in response.releasedAsks]
        for ask in gone:  # such an ask will not be allocated
            self._allocations.journal.withdrawn(ask)
        if numbered:
            for ended in response.released:
                if ended.terminationType == si.STOPPED_BY_RM:
                    self._allocations.journal.confirmed(_release_hint(ended))
        rejections = [
            Rejection(item.allocationKey, item.applicationID, item.reason, previous)
            for previous, items in ((True, response.rejected), (False, response.rejectedAllocations))
            for item in items
        ]
        for rejection in rejections:
            answered((rejection.application_id, rejection.allocation_key), numbered=numbered)
        if response.new and calls.on_allocated:
            await _settle(calls.on_allocated(response.new))
        if response.released and calls.on_released:
            await _settle(calls.on_released(response.released))
        if response.releasedAsks and calls.on_released_asks:
            await _settle(calls.on_released_asks(response.releasedAsks))
        if rejections and calls.on_rejected_allocation:
            await _settle(calls.on_rejected_allocation(rejections))

    async def _on_application(self, response: si.ApplicationResponse) -> None:
        numbered = response.responseSequence > 0
        accepted = [i for i in response.accepted if self._first(self._applications, i.applicationID, numbered)]
        rejected = [i for i in response.rejected if self._first(self._applications, i.applicationID, numbered)]
        if self._callbacks.on_application and (accepted or rejected or response.updated):
            await _settle(self._callbacks.on_application(accepted, rejected, response.updated))

    async def _on_node(self, response: si.NodeResponse) -> None:
        numbered = response.responseSequence > 0
        accepted = [i for i in response.accepted if self._first_of_node(i.nodeID, numbered, rejected=False)]
        rejected = [i for i in response.rejected if self._first_of_node(i.nodeID, numbered, rejected=True)]
        if self._callbacks.on_node and (accepted or rejected):
            await _settle(self._callbacks.on_node(accepted, rejected))

    def _first_of_node(self, node_id: str, numbered: bool, *, rejected: bool) -> bool:
        """Tells whether an answer is the first for its node item. A numbered answer is for the oldest unanswered item;
        admission's answer overtakes others, so it is for the newest.
        """
        items = self._node_items.get(node_id)
        creation = items is None or (items[0] if numbered else items[-1])
        if not creation and rejected and self._nodes.journal.is_repeated(node_id):
            # A creation that was sent twice is rejected the second time, because the node exists.
            return self._first(self._nodes, node_id, numbered)
        if items is not None:
            items.popleft() if numbered else items.pop()
            if not items:
                del self._node_items[node_id]
        return self._first(self._nodes, node_id, numbered) if creation else True

    def _first(self, stream: ResumableStream[Any], key: str, numbered: bool) -> bool:
        if stream.answered(key, numbered=numbered):
            return True
        self.metrics.answers_dropped_as_repeated += 1
        return False

    # ---- inside --------------------------------------------------------------------------------------------------

    def _sent(self, more: Metadata = ()) -> grpc.aio.Metadata:
        """Returns the metadata of a call, with the token as it is now; the last one while its file is unreadable."""
        try:
            self._token = self._access.metadata()
        except AccessWrong as error:
            log.warning("token not read", rm_id=self.rm_id, error=str(error))
        return grpc.aio.Metadata(*self._metadata, *self._token, *more)

    def _stream(self, name: str, method: str, response: Any, handler: Any) -> ResumableStream[Any]:
        make_call: Any = self._channel.stream_stream(_SERVICE + method, response_deserializer=response.FromString)

        def open_call(metadata: Metadata) -> Any:
            return make_call(metadata=self._sent(metadata))

        async def deliver(item: Any) -> None:
            if item.position:
                self._positions[name] = item.position
            try:
                await handler(item)
            except Exception as error:
                raise CallbackFailed(f"a callback of the {name} stream raised {type(error).__name__}") from error

        return ResumableStream(
            name,
            open_call,
            deliver,
            self._indicate,
            self._sequences,
            self._settings,
            self.metrics,
            self._clock,
            self._backoff(name),
            self._chance.randbytes(8).hex(),
        )

    def _note_callback_position(self, position: str) -> None:
        # Questions and events are of two orders.
        self._positions[CALLBACK] = newest(self._positions.get(CALLBACK, ""), position)

    def _callback_stream(self) -> CallbackStream:
        respond = callbacks_pb2.ToResourceManager.FromString
        make_call: Any = self._channel.stream_stream(_CALLBACKS, response_deserializer=respond)

        def open_call(metadata: Metadata) -> Any:
            return make_call(metadata=self._sent(metadata))

        async def guard(call: Callable[[], Awaitable[None]]) -> None:
            try:
                await call()
            except Exception as error:
                raise CallbackFailed(f"a callback of the {CALLBACK} stream raised {type(error).__name__}") from error

        return CallbackStream(
            self.rm_id,
            self._callbacks,
            open_call,
            guard,
            self._note_callback_position,
            self._indicate,
            self._sequences,
            self._settings,
            self.metrics,
            self._clock,
            self._backoff(CALLBACK),
            self._chance.randbytes(8).hex(),
        )

    def _backoff(self, name: str) -> Backoff:
        settings = self._settings
        chance = self._chance if settings.backoff_seed is None else Random(_seed(settings.backoff_seed, name))  # noqa: S311 - jitter
        return Backoff(settings.backoff_min_ms, settings.backoff_max_ms, self._clock, chance=chance)

    async def _indicate(self, stream: str, opened: bool) -> None:
        if self._callbacks.on_stream is None:
            return
        try:
            await _settle(self._callbacks.on_stream(stream, opened))
        except Exception:  # an indicator's error must not end the connection
            log.exception("on_stream raised", rm=self.rm_id, stream=stream)

    async def _send(
        self,
        stream: ResumableStream[Any],
        message: Any,
        keys: Iterable[Any],
        hints: Iterable[Any] = (),
        *,
        proves: bool = True,
    ) -> None:
        self._must_be_open()
        if self._unknown:
            raise ReregistrationNeeded(self._unknown)
        if self._supervisor is None:
            raise ClientClosed("the streams are not open: register() comes first")
        await stream.send(message.SerializeToString(deterministic=True), keys, hints, proves=proves)

    async def _call_register(self) -> None:
        call = self._channel.unary_unary(
            f"{_SERVICE}RegisterResourceManager",
            request_serializer=si.RegisterResourceManagerRequest.SerializeToString,
            response_deserializer=si.RegisterResourceManagerResponse.FromString,
        )
        settings, deadline = self._settings, self._clock.monotonic() + self._settings.register_timeout_s
        backoff, refusal = self._backoff("register"), ""
        while True:
            left_s = deadline - self._clock.monotonic()
            pending_call = call(self._registration, timeout=max(left_s, 0.001), metadata=self._sent())
            try:
                await pending_call
                trailing = await pending_call.trailing_metadata()
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    # An earlier attempt's answer says more than this code, whose text is the library's own.
                    reason = refusal or details
                    raise RegistrationFailed(f"no answer within {settings.register_timeout_s} s: {reason}") from error
                if code not in _TRY_AGAIN:
                    raise RegistrationRejected(code, details) from error
                refusal, wait_s = details, backoff.failed()
                if self._clock.monotonic() + wait_s >= deadline:
                    raise RegistrationFailed(f"{code.name} for {settings.register_timeout_s} s: {details}") from error
                await asyncio.sleep(wait_s)
            else:
                self.metrics.registrations += 1
                self._positions = {"registration": position_in(trailing)}
                self.warnings = tuple(_text(value) for key, value in trailing or () if key == WARNING_METADATA)
                for warning in self.warnings:
                    log.warning("the registration was taken with a warning", rm=self.rm_id, warning=warning)
                return

    def _start_streams(self) -> None:
        self._unknown = ""
        self._node_items.clear()
        for stream in self._streams:
            stream.begin()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"muster client {self.rm_id}")

    async def _welcomed(self) -> None:
        """Waits for the callback stream, because the streams are independent: an ask must not reach the scheduler
        earlier.

        The wait is bounded. Without the stream, the RM counts as one without callbacks, and the stream keeps trying.
        """
        if self._asked is None:
            return
        welcomed = asyncio.ensure_future(self._asked.welcomed())
        over = asyncio.ensure_future(self._finished.wait())
        try:
            await asyncio.wait(
                {welcomed, over}, timeout=self._settings.welcome_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not welcomed.done() and not over.done():
                log.warning("the callback stream is not open yet", timeout_s=self._settings.welcome_timeout_s)
        finally:
            welcomed.cancel()
            over.cancel()

    async def _stop_streams(self) -> None:
        if self._supervisor is not None:
            await _cancel(self._supervisor)
            self._supervisor = None

    async def _supervise(self) -> None:
        tasks = [asyncio.create_task(stream.run(), name=f"muster {stream.name} stream") for stream in self._streams]
        self._stream_tasks = tasks
        ended: list[asyncio.Task[None]] = []  # in this order: what fails first is the cause
        for task in tasks:
            task.add_done_callback(ended.append)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                await _cancel(task)
        failure = next((task.exception() for task in ended if not task.cancelled() and task.exception()), None)
        if isinstance(failure, ReregistrationNeeded) and not self._closed:
            self._unknown = str(failure)
            log.warning("the gateway does not know the RM", rm=self.rm_id, details=self._unknown)
            self._recovery = asyncio.create_task(self._recover(failure), name=f"muster client {self.rm_id} recovery")
        elif isinstance(failure, ClientError):
            self._finish(failure)
        elif failure is not None:
            self._finish(ClientError(f"the client failed: {type(failure).__name__}: {failure}"), failure)
        for stream in self._streams:
            stream.end(failure if isinstance(failure, ClientError) else ClientClosed("the client is closed"))

    async def _recover(self, needed: ReregistrationNeeded) -> None:
        """Follows the settings for an RM that the gateway does not know any more."""
        try:
            if self._settings.reregister == "automatic":
                while True:
                    try:
                        await self.register()
                        break
                    except RegistrationFailed as error:
                        log.warning("registration not answered", rm=self.rm_id, error=str(error))
                if self._callbacks.on_registered:
                    await _settle(self._callbacks.on_registered())
            elif self._callbacks.on_reregister_needed:
                await _settle(self._callbacks.on_reregister_needed(self._unknown))
            else:
                raise needed
        except ClientError as error:
            self._finish(error)
        except Exception as error:
            self._finish(CallbackFailed(f"a callback for a new registration raised {type(error).__name__}"), error)

    def _finish(self, failure: ClientError | None, cause: BaseException | None = None) -> None:
        if self._finished.is_set():
            return
        if failure is not None:
            failure.__cause__ = cause or failure.__cause__
            self._failure = failure
        for stream in self._streams:
            stream.end(self._failure or ClientClosed("the client is closed"))
        self._finished.set()

    async def _bounded(self, steps: Iterable[Coroutine[Any, Any, None]], timeout_s: float) -> None:
        """Awaits the steps together, at most until the streams end or the time is over."""
        together = asyncio.ensure_future(asyncio.gather(*steps))
        if self._supervisor is not None:
            either: set[asyncio.Future[Any]] = {together, self._supervisor}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        together.cancel()
        await asyncio.gather(together, return_exceptions=True)

    def _must_be_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise ClientClosed("the client is closed")


def _release_hint(item: si.AllocationRelease) -> tuple[str, str, str, str]:
    """Returns what tells this release from others of the same allocation: the scheduler repeats the RM's message. When
    it removes an application or a node, the message says so.
    """
    return "released", item.applicationID, item.allocationKey, item.message


async def _settle(result: Result) -> None:
    if inspect.isawaitable(result):
        await result


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _seed(seed: int, name: str) -> int:
    """Returns a separate seed for each user of jitter, the same in every run."""
    return seed * 31 + sum(name.encode())


def _channel(
    address: str, credentials: grpc.ChannelCredentials | None, settings: ClientSettings, access: Access
) -> RenewedChannel:
    options: list[tuple[str, int | str]] = [
        *access.options(),
        # gRPC's own reconnection waits grow to two minutes. The streams' backoff replaces them.
        ("grpc.initial_reconnect_backoff_ms", settings.backoff_min_ms),
        ("grpc.min_reconnect_backoff_ms", settings.backoff_min_ms),
        ("grpc.max_reconnect_backoff_ms", settings.backoff_max_ms),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # the gateway's limit counts
    ]
    return RenewedChannel(address, options, access, credentials)
