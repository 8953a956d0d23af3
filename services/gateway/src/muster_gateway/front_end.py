"""The HTTP front in a process that decides nothing, so that no flood of requests delays a decision.

:class:`FrontEnd` serves the gateway's listening socket with an ``HttpFront`` of its own: it identifies callers, checks
rights, counts rates and writes audit entries as the gateway's front does, from the same settings and files. Requests
that only the gateway can answer go to it as a :class:`Backend`: operators' actions, health, metrics, and what is about
the deciding process.

The gateway keeps the socket, too, and serves it itself while no front end does (:class:`OtherFront`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

import structlog
from muster_bus.clock import Clock
from muster_bus.damage import DamagedParts
from muster_bus.log import Log, LogWriter
from muster_bus.topics import Topics
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import failed_cause
from muster_runtime.backoff import aligned_s
from muster_runtime.caller import Caller
from muster_runtime.chance import SYSTEM, new_id
from muster_runtime.gateway_note import GatewayNote
from muster_runtime.http_server import HttpServer
from muster_runtime.service_lifecycle import ServiceLifecycle
from starlette.types import Receive, Scope, Send

from muster_gateway.access.active_calls import ActiveCalls
from muster_gateway.audit import AuditWriter
from muster_gateway.audit_pages import AuditPages
from muster_gateway.audit_reader import AuditLogReader
from muster_gateway.authentication import Authenticator
from muster_gateway.http_front import HttpBackend, HttpFront
from muster_gateway.quotas import QuotaBook
from muster_gateway.rates import RateLimiter
from muster_gateway.settings import GatewaySettings
from muster_gateway.view_client import ViewClient

log = structlog.get_logger(__name__)

# Between two looks at the state of the whole.
_HEALTH_S = 2.0

Admitted = Callable[[Caller, Scope, Receive, Send], Awaitable[None]]


class OtherFront(Protocol):
    """A front end of the gateway's socket in another process, as the gateway sees it."""

    def open(self, gateway_id: str, answer: Admitted, server: HttpServer) -> None:
        """The gateway serves.

        :param answer: answers a request that the front end has admitted.
        :param server: the gateway's own server of the socket, which the front end's owner pauses and resumes.
        """
        ...

    async def close(self) -> None:
        """Returns when the front end accepts no more and its open requests have ended, in bounded time."""
        ...


class Backend(Protocol):
    """The gateway, as a front end sees it."""

    async def live(self) -> bool:
        """Tells whether the gateway's process should be kept. Bounded in time; never raises."""
        ...

    async def ready(self) -> tuple[bool, list[str]]:
        """Returns whether the gateway can serve, and why not. Bounded in time; never raises."""
        ...

    async def health(self) -> SystemHealthDao:
        """Returns the state of the whole. Bounded in time; never raises."""
        ...

    async def exposition(self) -> bytes:
        """Returns the answer of /metrics. Raises OSError if there is none."""
        ...

    @property
    def answer(self) -> HttpBackend:
        """Passes a request on, with the present caller, and its answer back."""
        ...


class FrontEnd:
    """See the module's docstring.

    :param bus: started; the front end reads and writes audit entries.
    :param gateway_id: whose front it is, for audit entries.
    :param view, publisher: in this process.
    :param listener: a listening socket, which the front end closes at its end.
    :param chance: makes its id.

    The constructor raises InvalidGatewaySettings, as ``Authenticator`` does.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        gateway_id: str,
        view: HttpBackend,
        publisher: HttpBackend,
        backend: Backend,
        listener: socket.socket,
        *,
        chance: Random = SYSTEM,
    ) -> None:
        self._settings, self._bus = settings, bus
        self._doorman = Authenticator(settings)
        self._backend, self._partitions = backend, topics.partitions
        self._note = GatewayNote(settings.pause_timeout_s)
        self._callers = ActiveCalls()
        self._rates = RateLimiter(QuotaBook(settings.quotas, self._doorman.quota_rules), clock)
        # (A front end that was started again has entries of the same gateway.)
        self._audit = AuditWriter(topics, clock, gateway_id, series=f"http-{new_id(chance, 4)}-")
        self._damage = DamagedParts("the audit entries in them are not shown")
        trail = AuditLogReader(bus, topics, self._damage)
        client = ViewClient(view, settings.view_timeout_s, settings.view_answer_bytes)
        trail.wait_for_position = client.wait_for_position
        front = HttpFront(
            view,
            publisher,
            self._doorman,
            backend.live,
            backend.ready,
            backend.health,
            backend.exposition,
            settings.default_rm,
            self._callers,
            self._rates,
            self._audit,
            AuditPages(trail),
            backend.answer,
            tokens=bool(settings.tokens) or settings.jwt.enabled,
            note=lambda: self._note,
        )
        door = self._doorman.tls if settings.tls.http else None
        self._server = HttpServer(
            front, listener, settings.stop_grace_s, tls=door.context() if door is not None else None
        )
        self._writer: LogWriter | None = None
        self._lifecycle = ServiceLifecycle("front end")

    async def start(self) -> None:
        """Returns when connections are accepted. Raises OSError, BusError."""
        self._lifecycle.start()
        self._writer = await self._bus.writer("front end")
        self._lifecycle.spawn(self._audit.run(self._writer), "audit")
        self._lifecycle.spawn(self._watch_files(), "files")
        self._lifecycle.spawn(self._watch_health(), "health")
        self._lifecycle.spawn(self._server.serve(), "http")
        await self._server.wait_started()

    async def wait(self) -> None:
        """Returns when the front end has stopped. Raises the error that ended it."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Accepts no more, lets open requests end within ``gateway.stop_grace_s``, and writes audit entries."""
        if not self._lifecycle.begin_stop():
            return
        await self._server.stop()
        await self._lifecycle.cancel_tasks()
        if self._writer is not None:
            await self._audit.finish(self._writer, self._settings.stop_grace_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stop_grace_s):
                    await self._writer.close()
        self._lifecycle.finish()

    def log_notes(self) -> list[str]:
        """Returns the damaged parts of the log that this front end met, one sentence each."""
        return self._damage.problems()

    async def _watch_health(self) -> None:
        """Keeps what the view's texts say of the scheduler."""
        while True:
            cause = failed_cause(await self._backend.health())
            unscheduled = dict.fromkeys(range(self._partitions), cause) if cause else {}
            self._note = GatewayNote(self._settings.pause_timeout_s, unscheduled)
            await asyncio.sleep(_HEALTH_S)

    async def _watch_files(self) -> None:
        """Takes changed tokens, policies, certificates and keys. Ends the calls whose callers lost their rights."""
        while True:
            if await self._doorman.refresh():
                self._callers.apply_rights(self._doorman.current_rights)
                self._rates.reload()
            await asyncio.sleep(aligned_s(self._settings.reload_interval_s))
