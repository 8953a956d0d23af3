"""The followers' process: a child of ``muster up``, which ``followers_process.py`` starts.

The followers (the view, the event publisher with its exports, usage) need as much time for a decision as the decision
itself, and a Python process does one thing at a time. So they have a process of their own. It has the same parts, over
a log whose file it reads itself (``muster_bus.pipe.child_log``). The followers answer on Unix sockets in a directory
that only this user can enter. All callers come through the gateway, which identifies them, or through the gateway's
HTTP front, which is in this process (``followers_front.py``), so that no flood of requests delays a decision.

``muster_runtime.child_process`` describes the life of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import NoReturn, cast

import structlog
from muster_bus.clock import Clock, SystemClock
from muster_bus.errors import LogDamaged
from muster_bus.pipe import messages as of_log
from muster_bus.pipe.child_log import ChildLog
from muster_event_publisher.errors import InvalidSinkSettings
from muster_event_publisher.grpc_events import EventsServer
from muster_rest.system_health import ServiceCheck, ServiceFacts
from muster_runtime import logs
from muster_runtime.addresses import listen_at
from muster_runtime.backoff import aligned_s
from muster_runtime.child_main import become_child, run_child
from muster_runtime.ending import first_of
from muster_runtime.http_server import HttpServer
from muster_runtime.message_channel import Channel
from muster_runtime.service_lifecycle import ServiceLifecycle
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_cli import gc_tuning
from muster_cli.errors import ServiceDied, StartFailed
from muster_cli.followers import Followers, followers_of
from muster_cli.followers_front import FollowersFront
from muster_cli.followers_messages import (
    EVENTS_SOCKET,
    PUBLISHER_SOCKET,
    VIEW_SOCKET,
    CloseFront,
    FollowerFailed,
    FollowersStatus,
    FromParent,
    FrontState,
    OpenFront,
    Response,
    SettingsRejected,
    StartFollowers,
    StopFollowers,
)
from muster_cli.health_app import HEALTH_TIMEOUT_S
from muster_cli.priority import lower_priority
from muster_cli.service_runner import ManagedResource, NamedService, run
from muster_cli.settings import MusterSettings

log = structlog.get_logger(__name__)

_REPORT_INTERVAL_S, _STARTUP_REPORT_INTERVAL_S = 1.0, 0.05
_STOP_TIMEOUT_S = 1.0  # of the servers; their only client, the gateway, has already stopped
_HEALTH_INTERVAL_S = 1.0


class GatewaySockets:
    """The servers for the gateway: two for HTTP and one for gRPC. They open last and close first."""

    def __init__(self, followers: Followers, sockets: Path) -> None:
        self._followers, self._sockets = followers, sockets
        self._servers: list[HttpServer] = []
        self._events: EventsServer | None = None
        self._lifecycle = ServiceLifecycle("followers' doors")

    async def start(self) -> None:
        """Raises OSError."""
        self._lifecycle.start()
        publisher = self._followers.publisher
        for name, app in ((VIEW_SOCKET, self._followers.view.asgi), (PUBLISHER_SOCKET, publisher.asgi)):
            server = HttpServer(with_forwarded_client(app), listen_at(self._sockets / name), _STOP_TIMEOUT_S)
            self._servers.append(server)
            self._lifecycle.spawn(server.serve(), name)
            await server.wait_started()
        self._events = EventsServer(
            publisher.events_service, f"unix:{self._sockets / EVENTS_SOCKET}", publisher.healthy
        )
        await self._events.start()
        self._lifecycle.spawn(self._events.watch_health(_HEALTH_INTERVAL_S), "health")

    async def wait(self) -> None:
        await self._lifecycle.wait()

    async def stop(self) -> None:
        if self._lifecycle.begin_stop():
            if self._events is not None:
                await self._events.stop()
            await asyncio.gather(*(server.stop() for server in self._servers))
            await self._lifecycle.cancel_tasks()
            self._lifecycle.finish()

    async def healthy(self) -> bool:
        return self._lifecycle.alive


def with_forwarded_client(app: ASGIApp) -> ASGIApp:
    """Wraps an application so that it sees requests as the gateway's front got them: the caller's address, and the
    host.

    The gateway appends both as the last headers, and is the only client.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = list(scope["headers"])
            client, host = _pop_header(headers, b"x-forwarded-for"), _pop_header(headers, b"x-forwarded-host")
            if host:
                headers = [(name, value) for name, value in headers if name != b"host"]
                headers.append((b"host", host))
            scope = {**scope, "headers": headers, "client": (client.decode("latin-1"), 0) if client else None}
        await app(scope, receive, send)

    return serve


def _pop_header(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Removes and returns the last of these headers."""
    for index in range(len(headers) - 1, -1, -1):
        if headers[index][0] == name:
            return headers.pop(index)[1]
    return b""


class _StatusReporter:
    """Reports the followers' state to the parent.

    :ivar front: in this process; None: it has none.
    """

    def __init__(self, channel: Channel[FromParent], followers: Followers) -> None:
        self._channel, self._followers = channel, followers
        self._up, self._news = False, asyncio.Event()
        self.front: FollowersFront | None = None

    def up(self) -> None:
        """Everything runs: reports it at once."""
        self._up = True
        self._news.set()

    def changed(self) -> None:
        """The front end's state is another one: reports it at once."""
        self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            was_up = self._up
            services = {part: await _ask(check) for part, check in self._followers.checks.items()}
            ready = was_up and await self._followers.view.healthy()
            front = self.front.state if self.front is not None else FrontState.CLOSED
            notes = self.front.log_notes() if self.front is not None else ()
            self._channel.send(FollowersStatus(ready, services, tuple(notes), front))
            wait_s = _STARTUP_REPORT_INTERVAL_S if was_up and not ready else aligned_s(_REPORT_INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()


async def _ask(check: ServiceCheck) -> ServiceFacts:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await check()
    except TimeoutError:
        return ServiceFacts(serves=False, problems=(f"no answer in {HEALTH_TIMEOUT_S:g} s",))


async def serve(channel: Channel[FromParent], clock: Clock) -> int:
    """Runs the followers as the parent says, until it sends Stop. Returns the exit code. Raises EOFError if the parent
    is gone.
    """
    # 1. the parent's instructions
    begin = await channel.receive()
    if not isinstance(begin, StartFollowers):
        raise EOFError
    logs.configure(cast("logs.Level", begin.log_level), cast("logs.Format", begin.log_format), brief_start=True)
    sys.path[:] = begin.path
    if isinstance(clock, SystemClock):
        clock.resume(begin.clock)
    settings = MusterSettings.model_validate(begin.settings)
    lower_priority(settings.process.follower_nice)
    bus = ChildLog(settings.log, channel.send)
    try:
        followers = followers_of(settings, bus, clock)
    except InvalidSinkSettings as error:
        channel.send(SettingsRejected(tuple(error.problems)))
        await channel.flush()
        return 1
    # 2. run
    stop = asyncio.Event()
    reporter = _StatusReporter(channel, followers)
    parts = [*followers.services, NamedService("doors", GatewaySockets(followers, Path(begin.sockets)))]
    if begin.listener >= 0:
        listener = socket.socket(fileno=begin.listener)
        listener.set_inheritable(False)
        reporter.front = FollowersFront(settings, bus, clock, followers, channel, listener, reporter.changed)
        parts.append(NamedService("front end", reporter.front))
    listening = asyncio.create_task(_listen(channel, bus, stop, reporter.front), name="pipe")
    reporting = asyncio.create_task(reporter.run(), name="reporter")

    def ready() -> None:
        reporter.up()
        logs.end_startup()
        gc_tuning.freeze()
        gc_tuning.collect_in_time()
        gc_tuning.collect_when_grown()

    running = asyncio.create_task(
        run(
            [ManagedResource("log", bus.start, bus.close)],
            parts,
            stop=stop,
            stop_timeout_s=settings.process.stop_timeout_s,
            checks=[followers.view.healthy],
            on_ready=ready,
        ),
        name="followers",
    )
    try:
        # 3. stop: keep reading the pipe, for records that are on the way to the log
        await _wait_ended(listening, running)
    except (StartFailed, ServiceDied) as error:
        if isinstance(error.cause, LogDamaged):  # an operator must decide; another child would meet it, too
            log.error("a follower ended", service=error.service, error=str(error.cause))
            channel.send(SettingsRejected((str(error.cause),)))
            return 1
        log.error("a follower ended", service=error.service, exc_info=error.cause)
        channel.send(FollowerFailed(error.service, str(error)))
        return 1
    finally:
        for task in (listening, reporting, running):
            task.cancel()
        await asyncio.gather(listening, reporting, running, return_exceptions=True)
        await channel.flush()
    return 0


async def _wait_ended(listening: asyncio.Task[NoReturn], running: asyncio.Task[None]) -> None:
    """Returns when the followers have ended. Raises what ended them, or the end of the pipe: whichever was first."""
    if await first_of(listening, running) is listening:
        listening.result()
    await running


async def _listen(
    channel: Channel[FromParent], bus: ChildLog, stop: asyncio.Event, front: FollowersFront | None
) -> NoReturn:
    """Takes messages, also while the followers stop. Raises EOFError."""
    while True:
        message = await channel.receive()
        match message:
            case None:
                raise EOFError
            case StopFollowers():
                stop.set()
            case OpenFront() if front is not None:
                front.open(message.gateway_id)
            case CloseFront() if front is not None:
                front.close()
            case Response() if front is not None:
                front.backend.on_response(message)
            case of_log.AppendResults() | of_log.EndsChanged() | of_log.Reply() | of_log.SyncRequest():
                bus.handle(message)


def main() -> None:
    """:raises SystemExit: the command line is not the parent's."""
    run_on(become_child("muster up"))


def run_on(end: socket.socket) -> NoReturn:
    """Runs the process, with its end of the pipe."""
    gc_tuning.collect_young()
    run_child(end, FromParent, lambda channel: serve(channel, SystemClock()))


if __name__ == "__main__":
    main()
