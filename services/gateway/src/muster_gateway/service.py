"""The gateway as a service: start, wait, stop, healthy.

Start order: log → sessions (filled from the log if need be) → response tails → gRPC → HTTP. The gateway serves nothing
before all of it is ready. Stopping goes the other way: the gateway tells every stream to connect elsewhere and stores
its position.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random

import structlog
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as grpc_health_aio
from muster_bus.clock import Clock
from muster_bus.damage import DamagedParts, PassingReaders
from muster_bus.errors import BusError, LogBehind
from muster_bus.log import Log, LogHealth, LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_rest.system_health import Part, SchedulerFacts, ServiceCheck
from muster_runtime.addresses import on_loopback
from muster_runtime.backoff import aligned_s, backoff_s
from muster_runtime.chance import SYSTEM, new_id
from muster_runtime.gateway_note import GatewayNote
from muster_runtime.http_server import HttpServer
from muster_runtime.service_lifecycle import ServiceLifecycle

from muster_gateway import admin, audit_reader, callbacks, events_proxy, health_service, metrics, metrics_service
from muster_gateway.access.active_calls import ActiveCalls
from muster_gateway.access.certificate_ends import CertificateEnds
from muster_gateway.access.grpc_auth import GrpcAuthInterceptor
from muster_gateway.admin import AdminServicer
from muster_gateway.audit import AuditWriter
from muster_gateway.audit_pages import AuditPages
from muster_gateway.audit_reader import AuditLogReader, AuditServicer
from muster_gateway.authentication import Authenticator
from muster_gateway.call_limits import CallGuard, CallLimits
from muster_gateway.callback_codec import disconnected_note
from muster_gateway.callbacks import CallbackServicer
from muster_gateway.codec import RequestCodec
from muster_gateway.config_preparser import ConfigPreparser
from muster_gateway.connections import Accounts
from muster_gateway.doors import Doors, GrpcOffer, HttpServing, SocketDoors
from muster_gateway.errors import GatewayError, LogDown, SessionStoreDown, SessionStoreFull, append_failure_text
from muster_gateway.event_tail import EventTail
from muster_gateway.events_proxy import EventsEndpoint, EventsProxy
from muster_gateway.front_end import OtherFront
from muster_gateway.health_monitor import GatewayFacts, HealthMonitor, check_of
from muster_gateway.health_service import HealthServicer
from muster_gateway.http_forwarder import HttpForwarder
from muster_gateway.http_front import HttpBackend, HttpFront
from muster_gateway.log_loss import LogLossDetector
from muster_gateway.metrics_service import MetricsServicer
from muster_gateway.operator_http import OperatorHttp
from muster_gateway.policy_group_warnings import GroupComparison
from muster_gateway.quotas import CallerQuotas, QuotaBook, QuotaNotifier, RmCounts, RmLimits
from muster_gateway.rates import RateLimiter
from muster_gateway.registration import RegistrationService
from muster_gateway.response_delivery import CatchUp, ResponseTail, ResumePoint
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.scheduler_reports import RequestWriter, SchedulerReports
from muster_gateway.scheduler_rpc import SchedulerRpc
from muster_gateway.servicer import SERVICE, SchedulerServicer, StreamCalls
from muster_gateway.session_manager import SessionManager, seat_loss_error
from muster_gateway.sessions.contract import SessionStore
from muster_gateway.sessions.rebuild import rebuild
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream import StreamDependencies, StreamTable
from muster_gateway.stream_fairness import StepTurns
from muster_gateway.view_client import ViewClient

log = structlog.get_logger(__name__)

Ready = Callable[[], Awaitable[bool]]

_SERVICES = (
    SERVICE,
    admin.SERVICE,
    callbacks.SERVICE,
    metrics_service.SERVICE,
    events_proxy.SERVICE,
    audit_reader.SERVICE,
    health_service.SERVICE,
)

# Within one lease a gateway renews the lease this many times: two renewals may be lost.
_SWEEPS_PER_LEASE = 3
# A log or store that takes longer to answer counts as unhealthy.
_HEALTH_TIMEOUT_S = 2.0
# What the gateway has seen of itself is reused for this time.
_LOOKED_S = 0.25
# A gateway that is not ready looks again after so long, then after longer and longer.
_SOON_S = 0.02


class Gateway:
    """SI over gRPC on one side, the log on the other.

    :param settings: see there.
    :param bus: a started log; its owner closes it after the gateway has stopped.
    :param sessions: not yet started; the gateway starts and closes it.
    :param view: an application in this process that answers instead of ``settings.view_url``.
    :param publisher: the same for ``settings.publisher_url``.
    :param events: the same for ``settings.publisher_grpc_url``: it answers muster.v1.Events.
    :param ready_when: further conditions of readiness, for a process with several services.
    :param services: checks of other services, which do not affect readiness; None: view and publisher are asked.
    :param scheduler: the schedulers of this process; None: they report over the log.
    :param one_process: all services belong to one ``muster up``.
    :param log_notes: what another process of it met in the log.
    :param exposition: returns the answer of the front's /metrics; None: this process's metrics.
    :param listener: a bound socket for HTTP, in place of one at ``settings.http_address``.
    :param other_front: serves that socket from another process; this gateway serves it while the other does not.
    :param doors: opens the gateway to clients; None: it listens on the addresses of the settings.
    :param judge: reads queue configurations; None: in a process of its own.
    :param chance: makes its id, and others.

    The constructor raises InvalidGatewaySettings (see errors.py) if a door cannot be opened with these settings.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        bus: Log,
        topics: Topics,
        sessions: SessionStore,
        clock: Clock,
        *,
        view: HttpBackend | None = None,
        publisher: HttpBackend | None = None,
        events: EventsEndpoint | None = None,
        ready_when: Sequence[Ready] = (),
        services: Mapping[Part, ServiceCheck] | None = None,
        scheduler: Callable[[], SchedulerFacts] | None = None,
        one_process: bool = False,
        log_notes: Callable[[], Sequence[str]] = tuple,
        exposition: Callable[[], Awaitable[bytes]] | None = None,
        listener: socket.socket | None = None,
        other_front: OtherFront | None = None,
        doors: Doors | None = None,
        judge: SandboxedParser | None = None,
        chance: Random = SYSTEM,
    ) -> None:
        self._other_front = other_front
        self.settings, self.sessions = settings, sessions
        self.gateway_id = settings.gateway_id or f"{socket.gethostname()}-{new_id(chance, 4)}"
        self._bus, self._topics, self._clock, self._chance = bus, topics, clock, chance
        self._view, self._publisher, self._events = view, publisher, events
        self._ready_when, self._services, self._one_process = ready_when, services, one_process
        self._log_notes, self._exposition = log_notes, exposition
        self._doorman, self._callers = Authenticator(settings), ActiveCalls()
        self._audit = AuditWriter(topics, clock, self.gateway_id)
        self._damage = DamagedParts(
            "the responses, events and audit entries in them are not sent (an RM that lacks some must register again)"
        )
        self._readers = PassingReaders(bus, self._damage)
        self._trail = AuditLogReader(bus, topics, self._damage)
        self._book = QuotaBook(settings.quotas, self._doorman.quota_rules)
        self._rates = RateLimiter(self._book, clock, self._notify_slow_stream)
        self._notifying: set[asyncio.Task[None]] = set()
        self._quotas: CallerQuotas | None = None
        self._codec = RequestCodec(topics, self.gateway_id)
        self._owners = SchedulerReports(topics.partitions, clock)
        self._table = StreamTable()
        on_moved = self._table.positions_moved.set
        self._tails = [
            ResponseTail(bus, topics, p, settings.read_batch, on_moved, self._damage, self._owners, clock.monotonic)
            for p in range(topics.partitions)
        ]
        self._writer: LogWriter | None = None
        self._http: HttpServing | None = None
        self._limits = CallLimits(settings.calls, clock)
        self._accounts = Accounts(settings.max_message_bytes)
        self._listeners: Doors = (
            doors
            if doors is not None
            else SocketDoors(settings, self._doorman, self._accounts, self._audit.connection_ended, listener)
        )
        self._judge = judge if judge is not None else SandboxedParser(settings.queue_config)
        self._step_runner = StepTurns(clock.monotonic)
        self._auth = GrpcAuthInterceptor(
            self._doorman,
            self._callers,
            rates=self._rates,
            audit=self._audit,
            limits=self._limits,
            step_runner=self._step_runner,
        )
        self._calls = StreamCalls(settings.max_streams, self._limits, self._audit)
        self._servicer: SchedulerServicer | None = None
        self._admin: AdminServicer | None = None
        self._forgetting: dict[str, asyncio.Task[None]] = {}
        self._metrics: MetricsServicer | None = None
        self._health = grpc_health_aio.HealthServicer()
        self._stack = AsyncExitStack()
        self._lifecycle = ServiceLifecycle("gateway")
        self._sessions_full = False
        self._looked: tuple[float, GatewayFacts] | None = None
        self._scheduler = scheduler if scheduler is not None else self._owners.facts
        self._monitor: HealthMonitor | None = None
        self.grpc_port = 0
        self.grpc_mtls_port = 0
        self.http_port = 0

    # ---- the service ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the gateway serves. Raises LogUnavailable, LogBehind, SessionStoreDown, OSError (an address that
        is taken).
        """
        self._lifecycle.start()
        try:
            # 1. the writer of the log
            self._writer = RequestWriter(
                await self._bus.writer(f"gateway {self.gateway_id}"), self._topics.requests, self._owners, self._clock
            )
            self._stack.push_async_callback(self._writer.close)
            # 2. sessions
            await self.sessions.start()
            self._stack.push_async_callback(self.sessions.close)
            watch, keeper = LogLossDetector(self._bus, self.sessions), self._create_session_manager()
            try:
                await self._sweep(keeper, watch)
            except SessionStoreFull as error:  # reading works; a later sweep does the rest
                log.error("the gateway starts on a full disk", error=str(error))
                self._sessions_full = True
            # 3. response tails
            for tail in self._tails:
                await tail.start()
                self._stack.push_async_callback(tail.close)
                self._lifecycle.spawn(tail.run(), f"response tail {tail.partition}")
            # 4. periodic work
            self._lifecycle.spawn(self._flush_for_ever(), "cursor flush")
            self._lifecycle.spawn(self._sweep_for_ever(keeper, watch), "sweep")
            self._lifecycle.spawn(self._watch_files(), "files")
            self._lifecycle.spawn(self._audit.run(self._writer), "audit")
            # 5. the state of the whole
            view = await self._target(self._view, self.settings.view_url, "view")
            publisher = await self._target(self._publisher, self.settings.publisher_url, "event publisher")
            monitor = self._monitor = self._health_monitor(view, publisher)
            self._lifecycle.spawn(self._watch_health(monitor), "health")
            # 6. the servers
            offer = self._grpc_offer(keeper, view, publisher)
            await self._set_health(serving=await self.is_ready())
            self.grpc_port, self.grpc_mtls_port = await self._listeners.open_grpc(offer)
            self._warn_of_grpc()
            await self._open_http(view, publisher, monitor)
        except BaseException:
            await self.stop()
            raise
        log.info("gateway serves", gateway_id=self.gateway_id, grpc_port=self.grpc_port, http_port=self.http_port)

    async def wait(self) -> None:
        """Returns when the gateway has stopped. Raises the error that ended it."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Ends every stream with "connect again", stores the streams' positions, and frees all resources.
        Idempotent.
        """
        if not self._lifecycle.begin_stop():
            return
        await self._set_health(serving=False)
        if self._admin is not None:
            self._admin.stopping = True
        if self._metrics is not None:
            await self._metrics.stop()
        if self._events is not None:
            await self._events.stop()
        await self._calls.stop()
        closing = self._other_front.close() if self._other_front is not None else _nothing()
        _, *stopped = await asyncio.gather(closing, self._stop_servers(), return_exceptions=True)
        for error in stopped:
            if isinstance(error, BaseException):
                raise error
        await self._lifecycle.cancel_tasks()
        if self._writer is not None:
            await self._audit.finish(self._writer, self.settings.stop_grace_s)
        for task in self._forgetting.values():
            task.cancel()
        await asyncio.gather(*self._forgetting.values(), return_exceptions=True)
        with contextlib.suppress(SessionStoreDown):
            await self.sessions.drop_lease(self.gateway_id)
        await self._listeners.close()
        await self._stack.aclose()
        self._lifecycle.finish()

    async def _stop_servers(self) -> None:
        await self._listeners.stop_grpc(self.settings.stop_grace_s)
        if self._http is not None:
            await self._http.stop()

    async def healthy(self) -> bool:
        """Tells whether everything of the gateway works; :meth:`problems` has the details."""
        return not await self.problems()

    async def problems(self) -> list[str]:
        """Returns the present problems, one sentence each. Bounded; never raises."""
        facts = await self._check_self()
        refusal = self._bus.refusal() if isinstance(self._bus, LogHealth) else ""
        silent = "" if facts.log_answers else "the log does not answer"
        return [problem for problem in (silent, refusal, facts.disk_full, *facts.problems) if problem]

    async def _check_self(self) -> GatewayFacts:
        """Looks at the gateway itself. Bounded; never raises."""
        if self._lifecycle.stopping or self._writer is None:
            return GatewayFacts(log_answers=True, problems=["the gateway is not running"])
        log_answers, sessions_answer = await asyncio.gather(
            _in_time(self._log_answers(self._writer)), _in_time(self.sessions.healthy())
        )
        silent = [str(tail.partition) for tail in self._tails if not tail.answering]
        problems = [f"the responses of partition {', '.join(silent)} cannot be read"] if silent and log_answers else []
        problems += [] if sessions_answer else ["the session store does not answer"]
        facts = GatewayFacts(
            log_answers,
            problems,
            notes=[*self._doorman.problems(), *self._rates.problems()],
            log_notes=[*self._damage.problems(), *self._log_notes()],
            disk_full=str(SessionStoreFull()) if self._sessions_full else "",
        )
        self._looked = self._clock.monotonic(), facts
        return facts

    async def _looked_lately(self) -> GatewayFacts:
        if self._looked is not None and self._clock.monotonic() - self._looked[0] < _LOOKED_S:
            return self._looked[1]
        return await self._check_self()

    async def _log_answers(self, writer: LogWriter) -> bool:
        await writer.wait_writable()
        return await self._bus.healthy()

    async def is_ready(self) -> bool:
        """Tells whether the gateway is healthy and every condition in ``ready_when`` holds."""
        return not await self.readiness_problems()

    async def readiness_problems(self) -> list[str]:
        """Returns why the gateway is not ready, one sentence each."""
        if problems := await self.problems():
            return problems
        agreed = [await condition() for condition in self._ready_when]
        return [] if all(agreed) else ["another service of this process is not ready"]

    async def readiness(self) -> tuple[bool, list[str]]:
        """Returns whether the gateway can serve, and why not, one sentence each."""
        unready = await self.readiness_problems()
        return not unready, unready

    async def _lives(self) -> bool:
        return self._lifecycle.alive

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _health_monitor(self, view: HttpBackend, publisher: HttpBackend) -> HealthMonitor:
        services = self._services
        if services is None:
            services = {Part.VIEW: check_of(view), Part.PUBLISHER: check_of(publisher)}
        return HealthMonitor(
            self._bus,
            self._clock,
            self._looked_lately,
            self._scheduler,
            self._owners.waiting_s,
            CertificateEnds.of(self.settings).facts,
            services,
            one_process=self._one_process,
        )

    def _create_session_manager(self) -> SessionManager:
        return SessionManager(
            self.sessions,
            self._announce,
            self._send_callbacks_disconnected,
            self._clock,
            self.gateway_id,
            self.settings.lease_ttl_s,
            self.settings.pause_timeout_s,
        )

    def _note(self) -> GatewayNote:
        unscheduled = self._monitor.unscheduled() if self._monitor is not None else {}
        return GatewayNote(self.settings.pause_timeout_s, unscheduled)

    async def _announce(self, rm_id: str, state: RmLifecycleState, reason: str) -> None:
        await self._write_note(self._codec.lifecycle(rm_id, state, reason, self._clock.now_ns()))

    async def _send_callbacks_disconnected(self, rm_id: str, epoch: int) -> None:
        await self._write_note(self._codec.callback_stream(rm_id, disconnected_note(epoch), self._clock.now_ns()))

    async def _send_loss(self, watch: LogLossDetector) -> None:
        """Asks the scheduler to record an accepted loss as an event of each RM. Raises LogDown, SessionStoreDown."""
        if not watch.loss:
            return
        for session in await self.sessions.all():
            await self._write_note(self._codec.loss(session.rm_id, watch.loss, self._clock.now_ns()))
        await watch.mark_reported()

    async def _note_quotas(self, rm_id: str, limits: RmLimits) -> None:
        await self._write_note(self._codec.quotas(rm_id, limits, self._clock.now_ns()))

    def _notify_slow_stream(self, rm_id: str, message: str) -> None:
        """Has an RM's slow streams recorded as an event, beside the stream."""

        async def notify() -> None:
            with contextlib.suppress(LogDown):
                await self._write_note(self._codec.notice(rm_id, message, self._clock.now_ns()))

        task = asyncio.create_task(notify(), name="tell slow stream")
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _write_note(self, record: OutRecord) -> None:
        assert self._writer is not None
        try:
            async with asyncio.timeout(self.settings.registration_timeout_s):
                await self._writer.wait_writable()
                await self._writer.append(record)
        except (BusError, TimeoutError) as error:
            raise LogDown(f"the log does not take the RM's state ({append_failure_text(error)}): try again") from error

    def _grpc_offer(self, manager: SessionManager, view: HttpBackend, publisher: HttpBackend) -> GrpcOffer:
        """Assembles what the gateway answers over gRPC."""
        assert self._writer is not None
        settings = self.settings
        counts = RmCounts(self.sessions, self._topics.partition_of, self._clock)
        notes = QuotaNotifier(self._book, self._note_quotas)
        self._quotas = CallerQuotas(self._book, notes, counts if self._topics.partitions > 1 else None)
        parts = StreamDependencies(
            settings=settings,
            gateway_id=self.gateway_id,
            bus=self._readers,
            topics=self._topics,
            clock=self._clock,
            writer=self._writer,
            codec=self._codec,
            sessions=self.sessions,
            session_manager=manager,
            tails=self._tails,
            event_tails=[EventTail(self._readers, self._topics.events, p) for p in range(self._topics.partitions)],
            catch_up=CatchUp(self._bus, self._topics, settings.read_batch, settings.max_catch_up_readers, self._damage),
            starting_point=ResumePoint(
                self._readers, self._topics, settings.read_batch, settings.registration_timeout_s
            ),
            table=self._table,
            quotas=self._quotas,
            rates=self._rates,
            accounts=self._accounts,
            step_runner=self._step_runner,
        )
        assert self._monitor is not None
        questions = SchedulerRpc(settings, self._topics, self._writer, self._tails, self._monitor.fault)
        groups = GroupComparison(manager)
        configs = ConfigPreparser(self._judge, settings.limits.max_record_bytes)
        self._stack.push_async_callback(configs.close)
        registrar = RegistrationService(
            settings, self._clock, self._codec, manager, questions, groups, configs, self._quotas, self._step_runner
        )
        self._servicer = SchedulerServicer(parts, registrar, self._calls)
        view_client = ViewClient(
            view, settings.view_timeout_s, settings.view_answer_bytes, settings.default_rm, self._note
        )
        self._trail.wait_for_position = view_client.wait_for_position
        history = ViewClient(publisher, settings.view_timeout_s, settings.view_answer_bytes, settings.default_rm)
        self._admin = AdminServicer(
            settings,
            self._clock,
            self._codec,
            manager,
            questions,
            self.sessions,
            view_client,
            history,
            groups,
            configs,
            self._step_runner,
            lambda rm_id: self._note().facts(self._topics.partition_of(rm_id)),
        )
        guard = CallGuard(self._limits, settings.calls, refused=self._audit.over_limit, accounts=self._accounts)
        self._metrics = MetricsServicer(settings, self._clock, view_client, self._calls, self._admin.status)
        callback_servicer = CallbackServicer(
            parts, self._calls, self._audit.of_updates(self._admin.update_configuration)
        )
        trail, whole = AuditServicer(self._trail), HealthServicer(self._monitor.state)
        servicers = (
            self._servicer,
            self._admin,
            callback_servicer,
            self._metrics,
            self._events_endpoint(),
            trail,
            whole,
        )
        return GrpcOffer((guard, self._auth), [servicer.handlers() for servicer in servicers], _SERVICES, self._health)

    def _warn_of_grpc(self) -> None:
        settings, tls = self.settings, self.settings.tls
        plain = self._doorman.tls is None or (bool(settings.http_address) and not tls.http)
        if settings.tokens and plain and not _local(settings):
            log.warning("tokens travel in plain text: other machines reach a door without TLS (gateway.tls)")
        required = tls.client_ca is not None and tls.client_certificates == "required"
        if tls.client_ca is not None and not required and not settings.grpc_mtls_address:
            log.warning("no grpc address asks for client certificates: set gateway.grpc_mtls_address")
        if settings.grpc_open:
            log.warning(
                "grpc is open: any client that reaches it may act as any RM and operate it, without a token",
                grpc_address=settings.grpc_address,
            )

    def _events_endpoint(self) -> EventsEndpoint:
        if self._events is None:
            settings = self.settings
            proxy = EventsProxy(
                settings.publisher_grpc_url,
                settings.keepalive_time_s,
                settings.keepalive_timeout_s,
                settings.default_rm,
            )
            self._stack.push_async_callback(proxy.close)
            self._events = proxy
        return self._events

    async def _open_http(self, view: HttpBackend, publisher: HttpBackend, monitor: HealthMonitor) -> None:
        front = self._front(view, publisher, monitor)
        http = self._http = self._listeners.open_http(front)
        if http is None:
            return
        self.http_port = http.port
        self._lifecycle.spawn(http.serve(), "http front")
        await http.wait_started()
        if self._other_front is not None and isinstance(http, HttpServer):
            self._other_front.open(self.gateway_id, front.answer_admitted, http)
        if self.settings.http_open:
            log.warning(
                "http front is open: every client that reaches it has access without a token",
                http_address=self.settings.http_address,
                role=self.settings.http_open_role,
            )

    def _front(self, view: HttpBackend, publisher: HttpBackend, monitor: HealthMonitor) -> HttpFront:
        """Assembles the HTTP application."""
        assert self._admin is not None
        return HttpFront(
            view,
            publisher,
            self._doorman,
            self._lives,
            self.readiness,
            monitor.state,
            self._exposition,
            self.settings.default_rm,
            self._callers,
            self._rates,
            self._audit,
            AuditPages(self._trail),
            OperatorHttp(self._admin, record_bytes_max=self.settings.limits.max_record_bytes),
            tokens=bool(self.settings.tokens) or self.settings.jwt.enabled,
            note=self._note,
        )

    async def _target(self, app: HttpBackend | None, url: str, name: str) -> HttpBackend:
        if app is not None:
            return app
        target = HttpForwarder(url, name, self.settings.http_connect_timeout_s)
        self._stack.push_async_callback(target.close)
        return target

    # ---- periodic work ----------------------------------------------------------------------------------------------

    async def _flush_for_ever(self) -> None:
        stored, table = True, self._table
        while True:
            if not table.has_unsaved_position():
                await table.positions_moved.wait()
            table.positions_moved.clear()
            await asyncio.sleep(self.settings.cursor_flush_ms / 1000)
            try:
                await self.flush()
                stored = True
            except SessionStoreDown as error:
                if stored:  # not repeated: ten lines a second would have no more information
                    log.warning("positions not stored", error=str(error))
                stored = False

    async def flush(self) -> None:
        """Stores the delivered position of each stream. Ends a stream whose seat another stream has."""
        streams = [(stream, move) for stream in self._table.all() if (move := stream.unsaved_position()) is not None]
        if not streams:
            return
        storing = asyncio.get_running_loop().create_future()
        for stream, _ in streams:
            stream.storing = storing
        try:
            done = await self.sessions.advance([move for _, move in streams])
            for (stream, move), moved in zip(streams, done, strict=True):
                if moved:
                    stream.stored = move.cursor
        finally:
            storing.set_result(None)
        for (stream, _), moved in zip(streams, done, strict=True):
            if moved:
                continue
            session = await self.sessions.get(stream.rm_id)
            # (A seat that the store lost is repaired by a sweep.)
            lost = seat_loss_error(session, stream.seat) if session is not None else None
            if lost is not None:
                stream.end(lost)

    async def _sweep_for_ever(self, manager: SessionManager, watch: LogLossDetector) -> None:
        while True:
            await asyncio.sleep(aligned_s(self.settings.lease_ttl_s / _SWEEPS_PER_LEASE))
            try:
                await self._sweep(manager, watch)
                self._sessions_full = False
            except LogBehind:
                raise
            except (GatewayError, BusError) as error:
                self._sessions_full = isinstance(error, SessionStoreFull)
                log.warning("sweep not finished", error=str(error))

    async def _sweep(self, manager: SessionManager, watch: LogLossDetector) -> None:
        """Raises LogBehind, GatewayError, BusError."""
        await watch.check()
        if not await self.sessions.filled():
            await rebuild(self._bus, self._topics, self.sessions, self._clock, self._chance)
        await self._send_loss(watch)
        for rm_id in await manager.sweep(self._table):
            self._finish_forgetting(rm_id)
        await watch.store_mark()

    def _finish_forgetting(self, rm_id: str) -> None:
        """Runs beside the sweep, whose next lease renewal must not wait for the scheduler."""
        admin = self._admin
        if admin is None:
            return

        async def ask() -> None:
            try:
                await admin.finish_forgetting(rm_id)
            except (GatewayError, BusError) as error:
                log.warning("not known yet whether an rm is forgotten", rm_id=rm_id, error=str(error))

        running = self._forgetting.get(rm_id)
        if running is None or running.done():
            self._forgetting[rm_id] = asyncio.create_task(ask(), name=f"forgetting {rm_id}")

    async def _watch_health(self, monitor: HealthMonitor) -> None:
        interval_s, failures, serving = self.settings.health_interval_s, 0, False
        while True:
            await asyncio.sleep(aligned_s(interval_s) if serving else backoff_s(failures, _SOON_S, interval_s))
            serving = await self.is_ready()
            failures = 0 if serving else failures + 1
            await self._set_health(serving=serving)
            if not self._lifecycle.stopping:
                await monitor.compute()

    async def _watch_files(self) -> None:
        """Takes changed tokens, policies, certificates and keys. Ends the calls whose callers lost their rights."""
        while True:
            if await self._doorman.refresh():
                self._callers.apply_rights(self._doorman.current_rights)
                self._rates.reload()
                if self._quotas is not None:
                    await self._quotas.on_policy_changed(
                        (session.rm_id, session.identity) for session in self._table.all()
                    )
            await asyncio.sleep(aligned_s(self.settings.reload_interval_s))

    async def _set_health(self, *, serving: bool) -> None:
        metrics.ready.set(int(serving))
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *_SERVICES):
            await self._health.set(name, status)


async def _nothing() -> None:
    pass


def _local(settings: GatewaySettings) -> bool:
    """Tells whether only this machine can reach the doors."""
    addresses = {"grpc_address": settings.grpc_address, "http_address": settings.http_address}
    return all(on_loopback(f"gateway.{name}", address) for name, address in addresses.items() if address)


async def _in_time(answer: Awaitable[bool]) -> bool:
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT_S):
            return await answer
    except (TimeoutError, BusError, SessionStoreDown):
        return False
