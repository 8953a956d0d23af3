"""The followers of ``muster up`` in a process of their own, as seen from the deciding process.

This object takes the followers' place in three ways: as a service, as the target of the gateway's front, and in health
and metrics. The log stays here, with its one owner. The followers read its file themselves (``muster_bus.pipe``). Their
process also has the HTTP front, as long as it answers (``followers_handover.py``).

========  ========================================  ==================================================================
state     becomes                                   then
========  ========================================  ==================================================================
spawned   begun: the log is open                    the child reads the log
begun     ready: the child reports that it answers  it accepts HTTP connections, and gets gRPC's questions
begun     refused, or a follower cannot start       at the first start: the start fails, as if it were this process's
ready     gone: it ended, or was stuck and killed   requests get 503 and Retry-After; nothing else is affected
gone      begun                                     after a wait that grows
========  ========================================  ==================================================================

Records that the child had sent before it was gone still go to the log. It makes the others again from the log:
followers know their places from the log, or from the stores that they fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
from collections.abc import Sequence
from functools import partial

import structlog
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import Anchor, Clock, SystemClock
from muster_bus.errors import LogError
from muster_bus.log import LogWriter
from muster_bus.pipe import messages as of_log
from muster_bus.pipe.log_server import LogServer
from muster_gateway.errors import GatewayError
from muster_gateway.events_proxy import EventsProxy
from muster_gateway.http_forwarder import HttpForwarder
from muster_gateway.http_front import HttpBackend, respond_error
from muster_gateway.view_client import ViewClient
from muster_rest.system_health import Part, ServiceCheck, ServiceFacts
from muster_runtime import exposition, logs
from muster_runtime.child_process import WAIT_MIN_S, ChildProcess, keep_running
from muster_runtime.message_channel import Channel
from prometheus_client import Counter
from starlette.types import Message, Receive, Scope, Send

from muster_cli.errors import UsageError
from muster_cli.followers_handover import FrontHandover
from muster_cli.followers_messages import (
    EVENTS_SOCKET,
    LEVEL_PATH,
    OWN_PATHS,
    PUBLISHER_SOCKET,
    VIEW_SOCKET,
    FollowerFailed,
    FollowersStatus,
    Forwarded,
    FromFollowers,
    SettingsRejected,
    StartFollowers,
    StopFollowers,
    in_clear,
    socket_directory,
)
from muster_cli.settings import MusterSettings

log = structlog.get_logger(__name__)

STARTS = Counter(
    "muster_followers_process_starts", "Starts of the followers' own process; more than one: it has failed."
)

# A living child reports once a second. A pause of the garbage collector on a large cluster takes a second or two of
# processor time.
AVAILABLE_S = 20.0
# After so long a silence the child gets no requests, because they would wait for its end.
_SILENCE_MAX_S = 5.0
_SOON_S = 0.1
# Part of the time that the process allows a service to stop. After it the child is killed, and loses nothing.
_STOP_MARGIN_S = 1.0
_METRICS_TIMEOUT_S = 2.0
_METRICS_BYTES_MAX = 64 << 20
_METRICS_PATH = "/metrics"
_OF_FOLLOWERS = "muster_followers_"
# The sections of settings that the followers use.
_SECTIONS = ("process", "log", "gateway", "view", "publisher", "derive")
# Gauges of both processes whose values are parts of a whole.
_ADDED_UP = frozenset({"muster_gateway_audit_waiting"})

_MODULE = "muster_cli.followers_child"


class FollowersFailed(Exception):
    """A follower could not start."""


class FollowersSilent(OSError):
    """The followers' process is gone, or reports nothing."""


class FollowersProcess:
    """See the module's docstring; :class:`~muster_cli.service_runner.RoutedService` describes the methods.

    :param parts: of the followers, for the state of the whole.
    :param first: the first child, if it was started before; None: it is started here.
    :param listener: the bound socket of the HTTP front, which children inherit; None: there is none.
    :ivar view, publisher, events: for the gateway.
    """

    def __init__(
        self,
        settings: MusterSettings,
        bus: SqliteLog,
        clock: Clock,
        parts: Sequence[Part],
        *,
        first: ChildProcess[FromFollowers] | None = None,
        listener: socket.socket | None = None,
        available_s: float = AVAILABLE_S,
        wait_min_s: float = WAIT_MIN_S,
    ) -> None:
        self._settings, self._log, self._clock, self._parts = settings, bus, clock, tuple(parts)
        self._available_s, self._wait_min_s = available_s, wait_min_s
        self._listener = listener
        self._spawned: ChildProcess[FromFollowers] | None = first or self._spawn()
        self.front = FrontHandover(lambda: self.is_responsive, settings.gateway.stop_grace_s)
        self._silence: asyncio.TimerHandle | None = None
        self._sockets = socket_directory(settings.log.sqlite_path)
        connect_s, gateway = settings.gateway.http_connect_timeout_s, settings.gateway
        view, publisher = (str(self._sockets / name) for name in (VIEW_SOCKET, PUBLISHER_SOCKET))
        self._view = HttpForwarder("http://view", "view", connect_s, socket_path=view)
        self._publisher = HttpForwarder("http://publisher", "event publisher", connect_s, socket_path=publisher)
        self._metrics = ViewClient(self._view, _METRICS_TIMEOUT_S, _METRICS_BYTES_MAX)
        self._unstarted: HttpBackend | None = None
        self.view: HttpBackend = self._serve_view
        self.publisher: HttpBackend = self._serve_publisher
        self.events = EventsProxy(
            f"unix:{self._sockets / EVENTS_SOCKET}",
            gateway.keepalive_time_s,
            gateway.keepalive_timeout_s,
            gateway.default_rm,
            self._wait_synced,
        )
        self._writer: LogWriter | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._first: asyncio.Future[None] | None = None
        # -- state of the child
        self._child: ChildProcess[FromFollowers] | None = None
        self._channel: Channel[FromFollowers] | None = None
        self._log_server: LogServer | None = None
        self._status: FollowersStatus | None = None
        self._status_at_s = 0.0
        self._failed = ""
        self._down_reason = "their process begins"  # why there is no child; "": there is one

    @property
    def pid(self) -> int:
        """Pid of the running child; 0: none runs."""
        return self._child.pid if self._child is not None else 0

    # ---- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lets the child begin. Call this after the log has started. Raises OSError, and the log's errors."""
        # 1. the directory of the sockets; an earlier process's remains are unused, because the log has one owner
        shutil.rmtree(self._sockets, ignore_errors=True)
        self._sockets.mkdir(mode=0o700, parents=True)
        # 2. the child
        self._first = asyncio.get_running_loop().create_future()
        self._writer = await self._log.writer("followers")
        self._supervising = asyncio.create_task(self._supervise(), name="followers-process")

    async def start(self) -> None:
        """Returns when the followers answer. Raises FollowersFailed; UsageError if their settings are wrong."""
        assert self._first is not None, "open comes first"
        await asyncio.shield(self._first)

    async def wait(self) -> None:
        """Returns after :meth:`stop`. Failures of the child do not end the other services."""
        assert self._supervising is not None
        await asyncio.shield(self._supervising)

    async def stop(self) -> None:
        """Lets the followers take the log's present records, in bounded time, then ends the child."""
        self._stopping.set()
        if self._spawned is not None:
            await self._spawned.end()
            self._spawned = None
        if self._supervising is not None:
            if self._channel is not None:
                self._channel.send(StopFollowers())
            timeout_s = max(_STOP_MARGIN_S, self._settings.process.stop_timeout_s - _STOP_MARGIN_S)
            await asyncio.wait({self._supervising}, timeout=timeout_s)
            if not self._supervising.done():
                log.warning("the followers' process did not stop in time", timeout_s=timeout_s)
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        if self._writer is not None:
            with contextlib.suppress(LogError):
                await self._writer.close()
            self._writer = None

    async def close(self) -> None:
        """Frees all resources. Calls :meth:`stop` first."""
        await self.stop()
        if self._silence is not None:
            self._silence.cancel()
        await self.events.close()
        for target in (self._view, self._publisher):
            await target.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    # ---- the followers' state ---------------------------------------------------------------------------------------

    async def healthy(self) -> bool:
        """Tells whether the followers answer."""
        return self.is_responsive and self._status is not None and self._status.ready

    def checks(self) -> dict[Part, ServiceCheck]:
        """Returns the checks, as :class:`~muster_cli.followers.Followers` has them."""
        return {part: partial(self._facts, part) for part in self._parts}

    def log_notes(self) -> Sequence[str]:
        """Returns the damaged parts of the log that the child's front end met, one sentence each."""
        return self._status.log_notes if self._status is not None else ()

    async def _facts(self, part: Part) -> ServiceFacts:
        if self._status is None:
            raise FollowersSilent(self._down_reason)
        if not self.is_responsive:
            silent_s = self._clock.monotonic() - self._status_at_s
            raise FollowersSilent(f"the followers' process has reported nothing for {silent_s:.0f} s")
        return self._status.services.get(part) or ServiceFacts()

    # ---- requests to the followers ----------------------------------------------------------------------------------

    async def exposition(self) -> bytes:
        """Returns the metrics of both processes; of this one alone while the other does not answer."""
        text = await exposition.own_beside()
        if not self.is_responsive:
            return text
        await self._wait_synced()
        try:
            answer = await self._metrics.get(_METRICS_PATH)
        except GatewayError as error:
            log.warning("the followers' metrics are not shown", error=str(error))
            return text
        if answer.status != 200:
            return text
        return await asyncio.to_thread(exposition.merged, text, answer.body, _OF_FOLLOWERS, _ADDED_UP)

    @property
    def is_responsive(self) -> bool:
        """Tells whether the child reported recently. A child that hangs gets no requests."""
        return self._status is not None and self._clock.monotonic() - self._status_at_s < _SILENCE_MAX_S

    async def _serve_view(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(OWN_PATHS):
            await self._forward(self._view, "view", scope, receive, send)
            return
        # Requests that show or change a process are about the deciding process.
        await self._local_view()(scope, receive, send)
        if scope["method"] == "PUT" and path.startswith(LEVEL_PATH) and self.is_responsive:
            await self._view(scope, receive, _discard)  # sets the same level there

    async def _serve_publisher(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._forward(self._publisher, "event publisher", scope, receive, send)

    async def _forward(self, target: HttpBackend, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_responsive:
            await self._wait_synced()
            await target(scope, receive, send)
        else:
            await respond_error(send, 503, f"The {name} is not reachable, try again", [(b"retry-after", b"1")])

    async def _wait_synced(self) -> None:
        """Returns when the followers know what is visible now, so that an answer includes it."""
        if self._log_server is not None:
            await self._log_server.wait_synced()

    def _local_view(self) -> HttpBackend:
        """Returns a view of this process that never starts: it knows only the process."""
        if self._unstarted is None:
            from muster_view import ViewService

            settings = self._settings
            self._unstarted = ViewService(settings.view, self._log, settings.log.topics(), self._clock).asgi
        return self._unstarted

    # ---- one child after the other -----------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        assert self._first is not None
        try:
            await keep_running(self._run, self._on_child_ended, self._stopping, self._clock.monotonic, self._wait_min_s)
        except Exception as error:
            _resolve_future(self._first, error)
            raise
        finally:
            _resolve_future(self._first, None)

    async def _on_child_ended(self, reason: str, again_after_s: float) -> None:
        assert self._first is not None
        if self._failed and not self._first.done():
            raise FollowersFailed(self._failed)
        self._down_reason = f"the followers' process {reason}; it is started again"
        log.error("the followers' process is gone", why=reason, again_after_s=again_after_s)

    async def _run(self) -> str:
        """Runs a child to its end. Returns how it ended."""
        assert self._writer is not None
        STARTS.inc()
        try:
            child = self._spawned or self._spawn()
        except OSError as error:
            return f"cannot be started: {error.strerror or error}"
        self._spawned, self._child, self._failed = None, child, ""
        channel = self._channel = await child.connect()
        served = LogServer(
            self._log, self._writer, channel.send, lambda: channel.unsent_bytes, partial(_cannot_be_served, child)
        )
        self._log_server = served
        try:
            log.info("the followers' process was started", pid=child.pid)
            channel.send(self._start_message())
            self.front.on_child_started(channel)
            if self._stopping.is_set():
                channel.send(StopFollowers())
            return await child.listen(partial(self._handle_message, served), self._available_s, served.wait_flushed)
        finally:
            self._child = self._channel = self._log_server = self._status = None
            self.front.on_child_ended()
            child.kill("was ended")
            await served.close()
            await child.end()

    def _spawn(self) -> ChildProcess[FromFollowers]:
        return ChildProcess.spawn(_MODULE, FromFollowers, () if self._listener is None else (self._listener,))

    def _start_message(self) -> StartFollowers:
        level, form = logs.configured()
        sections = {name: in_clear(getattr(self._settings, name)) for name in _SECTIONS}
        anchor = self._clock.anchor() if isinstance(self._clock, SystemClock) else Anchor()
        listener = self._listener.fileno() if self._listener is not None else -1
        return StartFollowers(sections, str(self._sockets), level, form, tuple(sys.path), anchor, listener)

    def _handle_message(self, served: LogServer, message: FromFollowers) -> None:
        assert self._first is not None
        match message:
            case FollowersStatus():
                self._status, self._status_at_s = message, self._clock.monotonic()
                self.front.on_child_reported(message.front)
                self._watch_silence()
                if message.ready:
                    _resolve_future(self._first, None)
            case SettingsRejected():
                self._stopping.set()  # the settings are wrong, also for another child
                _resolve_future(self._first, UsageError("\n".join(message.problems)))
            case FollowerFailed():
                self._failed = message.reason
            case Forwarded():
                self.front.forward(message)
            case (
                of_log.Append()
                | of_log.TakeOver()
                | of_log.Commit()
                | of_log.GetCommitted()
                | of_log.Release()
                | of_log.GetHealth()
                | of_log.SyncDone()
            ):
                served.handle(message)
            case _:
                raise ValueError(f"a {type(message).__name__}")

    def _watch_silence(self) -> None:
        """Has the deciding process accept HTTP connections when the child is silent for too long."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(_SILENCE_MAX_S + _SOON_S, self.front.check)


async def _discard(_message: Message) -> None:
    """Drops an answer."""


def _cannot_be_served(child: ChildProcess[FromFollowers], error: BaseException) -> None:
    log.error("the followers' process cannot be served", exc_info=error)
    child.kill(f"could not be served: {type(error).__name__}")


def _resolve_future(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # marks the error as retrieved: perhaps no task waits
