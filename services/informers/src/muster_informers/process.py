"""The informers in a process of their own, as seen from the scheduler: starts, watches, restarts and ends the process.

This object takes the place of an ``ExternalService``, which is in the other process (``child.py``). It still checks the
configuration here, before anything is opened. The log stays here, with its one owner. The child's appends and reads
come over the pipe (``pipe_messages.py``), in order.

========  ========================================  ==================================================================
state     becomes                                   then
========  ========================================  ==================================================================
begun     heard                                     the child reports the informers' state
heard     gone: it ended, or was stuck and killed   records that it had sent still go to the log; then each source that
                                                    had synced once, or is not required, is noted STALE with the reason
gone      begun                                     after a wait that grows: another life (``sync_gate.py``)
========  ========================================  ==================================================================

Until all have synced once, a required informer that does not sync in time ends the scheduler, also if the informer is
in the child. Later no failure does: decisions continue by each source's ``when_lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import LogClosed, LogError, LogUnavailable
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.pipe.messages import Append
from muster_bus.topics import Topics, state_key
from muster_core.external.errors import HandlerExited, InvalidExternalSettings, NotSynced
from muster_core.external.model import ExternalKind, SourceState
from muster_core.external.validation import sanitize
from muster_runtime import logs
from muster_runtime.backoff import backoff_s
from muster_runtime.child_process import BEGIN_AVAILABLE_S, WAIT_MIN_S, ChildProcess, keep_running
from muster_runtime.message_channel import Channel
from muster_runtime.watchdog import Usage, until_stuck
from muster_state.external_codec import SourceStateNote, encode

from muster_informers import metrics
from muster_informers.child_metrics import ChildSamples
from muster_informers.native_handler import NATIVE, CallResult, HandlerCall
from muster_informers.pipe_log_server import PipeLogServer
from muster_informers.pipe_messages import (
    HandlerReply,
    HandlerRequest,
    InformersEnded,
    InformersStatus,
    LogRequest,
    Message,
    MetricSamples,
    StartInformers,
    StopInformers,
)
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings, InformerTable
from muster_informers.sync_gate import SyncGate, restarted_incarnation

log = structlog.get_logger(__name__)

# Longer than the child's own time-outs (tasks, writer), shorter than the process's limit for a service.
STOP_TIMEOUT_S = 8.0
# Of a child that sends nothing. A living one sends a message every second.
AVAILABLE_S = 30.0

_AGAIN = "it is started again"


class ExternalProcess:
    """See the module's docstring; :class:`~muster_informers.service.ExternalService` describes the methods.

    :param judged: the informers, created in this process and never started, to check the configuration.
    :param life: the id of this start, for the first child.
    """

    def __init__(
        self,
        judged: ExternalService,
        settings: ExternalSettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        partitions: Collection[int],
        life: str,
        *,
        wait_min_s: float = WAIT_MIN_S,
        available_s: float = AVAILABLE_S,
    ) -> None:
        self._gate = judged.gate
        self._tables: dict[str, InformerTable] = judged.tables
        self._natives = judged.natives
        self._settings = settings
        self._log = bus
        self._topics = topics
        self._clock = clock
        self._partitions = tuple(partitions)
        self._incarnation = life
        self._wait_min_s = wait_min_s
        self._available_s = available_s
        self._samples = ChildSamples()
        self._writer: LogWriter | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._begun_s = clock.monotonic()
        # -- the child's state
        self._child: _InformerChild | None = None
        self._status: InformersStatus | None = None
        self._synced_once: set[str] = set()
        self._synced = False
        self._exit_reason = ""  # why no child runs; "": one runs
        # ``first`` is done when all informers have synced, or never will; ``over`` when the children have ended for
        # good.
        self._first: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None
        # -- questions about the RM's own objects
        self._starts = 0
        self._number = 0
        self._runs = asyncio.Event()
        self._last_request_number = 0
        self._answers: dict[int, asyncio.Future[HandlerReply]] = {}

    @property
    def gate(self) -> SyncGate:
        return self._gate

    @property
    def pid(self) -> int:
        """The pid of the running child; 0: none runs."""
        return self._child.pid if self._child is not None else 0

    @property
    def synced(self) -> bool:
        return self._synced

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the child. Raises LogError."""
        loop = asyncio.get_running_loop()
        self._first, self._over = loop.create_future(), loop.create_future()
        self._writer = await self._log.writer("external")
        self._begun_s = self._clock.monotonic()
        self._samples.begin()
        self._supervisor = asyncio.create_task(self._run_children(), name="external-process")

    async def wait(self) -> None:
        """Returns when the service was stopped. Raises NotSynced: a required informer has not synced in time."""
        assert self._first is not None, "start comes first"
        assert self._over is not None
        await asyncio.shield(self._first)
        await asyncio.shield(self._over)

    async def stop(self) -> None:
        """Ends the child, in bounded time."""
        self._stopping.set()
        self._runs.set()
        if self._supervisor is not None:
            if self._child is not None:
                self._child.request_stop()
            await asyncio.wait({self._supervisor}, timeout=STOP_TIMEOUT_S)
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._samples.end()
        if self._writer is not None:
            with contextlib.suppress(LogError):
                await self._writer.close()

    def problems(self) -> list[str]:
        if self._status is not None and not self._exit_reason:
            return list(self._status.problems)
        return [self._problem(name) for name in self._tables] + [
            f"informer {name} ({NATIVE}): {self._exit_reason or 'its process begins'}" for name in self._natives
        ]

    # ---- the RM's own objects ----------------------------------------------------------------------------------------

    async def handlers_ready(self) -> int:
        """Waits until a child can be asked. Returns its number. Raises LogUnavailable: the service stops."""
        await self._runs.wait()
        if self._stopping.is_set():
            raise LogUnavailable("the scheduler stops: the RM's requests are not accepted any more")
        return self._number

    async def call_handler(
        self, name: str, life: int, begins: bool, calls: Sequence[HandlerCall]
    ) -> Sequence[CallResult]:
        """Asks the handler of an RM's own objects.

        :param life: the child's number. Raises HandlerExited when that child has ended.
        :param begins: the handler starts again.
        """
        child = self._child
        if child is None or life != self._number:
            raise HandlerExited(f"the informers' process {life}")
        self._last_request_number += 1
        number = self._last_request_number
        answer: asyncio.Future[HandlerReply] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            child.send(HandlerRequest(number, name, begins, tuple(calls)))
            return (await answer).results
        finally:
            self._answers.pop(number, None)

    def usage(self) -> Usage:
        """Returns what the handlers' process had of the processor. (None runs: it counts as asleep.)"""
        return self._child.usage() if self._child is not None else Usage()

    def abandon(self, life: int, reason: str) -> None:
        """Ends a child that does not answer; the next one is started."""
        if self._child is not None and life == self._number:
            self._child.kill(f"was ended: {reason}")

    def _problem(self, name: str) -> str:
        table, reason = self._tables[name], self._exit_reason or "their process begins"
        who = f"informer {name} ({table.kind})"
        if name not in self._synced_once and not self._synced:
            return f"{who} has not synced: {reason}"
        then = "its nodes take no new allocations" if table.when_lost == "drain" else "its last report still counts"
        return f"{who}: {reason}; {then}"

    # ---- one child after the other -----------------------------------------------------------------------------------

    async def _run_children(self) -> None:
        assert self._first is not None
        assert self._over is not None
        late = asyncio.create_task(self._watch_start(), name="external-process-start")
        try:
            await keep_running(
                self._run, self._on_child_exited, self._stopping, self._clock.monotonic, self._wait_min_s
            )
        except LogClosed:
            pass  # the process ends
        except Exception as error:
            for future in (self._first, self._over):
                _fail(future, error)
        finally:
            late.cancel()
            for future in (self._first, self._over):
                if not future.done():
                    future.set_result(None)

    async def _on_child_exited(self, reason: str, again_after_s: float) -> None:
        self._exit_reason = f"the informers' process {reason}; {_AGAIN}"
        self._status = None
        self._samples.mark_stale()
        log.error("the informers' process is gone", why=reason, again_after_s=again_after_s)
        await self._note_lost(restarted_incarnation(self._incarnation, self._starts))

    async def _run(self) -> str:
        """Runs a child to its end. Returns the reason of the end."""
        assert self._writer is not None
        self._starts += 1
        life = restarted_incarnation(self._incarnation, self._starts)
        metrics.process_starts.inc()
        try:
            child = await _InformerChild.start(self._writer, self._log, self._offers(), self._clock)
        except OSError as error:
            return f"cannot be started: {error.strerror or error}"
        self._child = child
        try:
            child.begin(self._begin(life))
            self._number += 1
            self._runs.set()
            if self._stopping.is_set():
                child.request_stop()
            return await child.listen(self._handle, self._available_s)
        finally:
            self._child = None
            if not self._stopping.is_set():
                self._runs.clear()
            for answer in self._answers.values():
                _fail(answer, HandlerExited(f"the informers' process {self._number}"))
            await child.end()

    def _begin(self, life: str) -> StartInformers:
        settings = self._settings.in_clear()
        informer_settings: dict[str, dict[str, object]] = settings["informers"]  # type: ignore[assignment]
        for name in self._tables:
            # The scheduler waits only for the first sync of a required informer, not for that of a restarted one.
            if self._synced or name in self._synced_once:
                informer_settings[name]["required"] = False
        if not self._synced:
            spent_s = self._clock.monotonic() - self._begun_s
            settings["sync_timeout_s"] = max(1.0, self._settings.sync_timeout_s - spent_s)
            if life == self._incarnation:
                settings["sync_timeout_s"] = self._settings.sync_timeout_s
        level, form = logs.configured()
        return StartInformers(settings, asdict(self._topics), self._partitions, life, level, form, tuple(sys.path))

    def _offers(self) -> tuple[bytes, ...]:
        """The prefixes of the keys of these sources' offers."""
        return tuple(
            state_key(table.rm, "ext", table.partition_name, name, ExternalKind.OFFER.value) + b"/"
            for name, table in self._tables.items()
        )

    def _handle(self, message: HandlerReply | InformersStatus | MetricSamples | InformersEnded) -> None:
        assert self._first is not None
        match message:
            case HandlerReply():
                answer = self._answers.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case InformersStatus():
                self._status, self._exit_reason = message, ""
                self._synced_once.update(message.synced_once)
                if message.synced and not self._synced:
                    self._synced = True
                    if not self._first.done():
                        self._first.set_result(None)
            case MetricSamples():
                self._samples.replace(message.families)
            case InformersEnded() if not self._synced:
                error: Exception = NotSynced(self._settings.sync_timeout_s, message.late)
                if message.problems:
                    error = InvalidExternalSettings(*message.problems)
                _fail(self._first, error)
            case InformersEnded():
                log.error("informers cannot begin again", problems=message.problems)
                if self._child is not None:
                    self._child.kill(f"could not begin: {'; '.join(message.problems)}")

    async def _watch_start(self) -> None:
        """Fails the start when the child does not even report that it is late."""
        assert self._first is not None
        allowed_s = self._settings.sync_timeout_s + BEGIN_AVAILABLE_S
        await until_stuck(lambda: self._status is not None, self.usage, lambda: allowed_s)
        while not self._synced and not self._first.done():
            late = {
                name: self._exit_reason or "their process is silent"
                for name, table in self._tables.items()
                if table.required and name not in self._synced_once
            }
            if late and self._status is None:
                _fail(self._first, NotSynced(self._settings.sync_timeout_s, late))
            await asyncio.sleep(1.0)

    async def _note_lost(self, life: str) -> None:
        """Writes to the log that the sources are lost, each with its own ``when_lost``. Raises LogClosed."""
        assert self._writer is not None
        for name, table in self._tables.items():
            if table.required and name not in self._synced_once:
                continue  # the scheduler decides nothing before it has synced
            note = SourceStateNote(SourceState.STALE, table.when_lost == "drain", sanitize(self._exit_reason))
            value = encode(table.rm, table.partition_name, name, life, (), note)
            record = OutRecord(self._topics.requests, self._topics.partition_of(table.rm), table.rm.encode(), value)
            failures = 0
            while not self._stopping.is_set():
                try:
                    await self._writer.wait_writable()
                    await self._writer.append(record)
                except LogUnavailable:
                    await asyncio.sleep(backoff_s(failures, 0.1, 5.0))
                    failures += 1
                else:
                    break


class _InformerChild:
    """A child process of informers, and the end of its pipe that serves the log."""

    def __init__(
        self,
        child: ChildProcess[Message],
        channel: Channel[Message],
        writer: LogWriter,
        bus: Log,
        offers: tuple[bytes, ...],
        clock: Clock,
    ) -> None:
        self._child, self._channel = child, channel
        self._log_server = PipeLogServer(channel, writer, bus, offers, clock, self._cannot_be_served)

    @classmethod
    async def start(cls, writer: LogWriter, bus: Log, offers: tuple[bytes, ...], clock: Clock) -> _InformerChild:
        """Raises OSError."""
        child: ChildProcess[Message] = ChildProcess.spawn("muster_informers.child", Message)
        return cls(child, await child.connect(), writer, bus, offers, clock)

    @property
    def pid(self) -> int:
        return self._child.pid

    def usage(self) -> Usage:
        return self._child.usage()

    def begin(self, begin: StartInformers) -> None:
        log.info("the informers' process was started", pid=self.pid, life=begin.incarnation)
        self._channel.send(begin)

    def send(self, message: HandlerRequest) -> None:
        self._channel.send(message)

    def request_stop(self) -> None:
        self._channel.send(StopInformers())

    def kill(self, reason: str) -> None:
        """Ends the child at once.

        :param reason: the reason that is reported.
        """
        self._child.kill(reason)

    async def listen(
        self,
        take: Callable[[HandlerReply | InformersStatus | MetricSamples | InformersEnded], None],
        available_s: float,
    ) -> str:
        """Serves the child until it is gone and all its records are on the log. Returns the reason of its end."""

        def heard(message: Message) -> None:
            match message:
                case Append() | LogRequest():
                    self._log_server.handle(message)
                case HandlerReply() | InformersStatus() | MetricSamples() | InformersEnded():
                    take(message)
                case _:
                    raise ValueError(f"a {type(message).__name__}")

        return await self._child.listen(heard, available_s, self._log_server.wait_flushed)

    async def end(self) -> None:
        """Ends the child and closes the pipe."""
        self._child.kill("was ended")
        await self._log_server.close()
        await self._child.end()

    def _cannot_be_served(self, error: BaseException) -> None:
        log.error("the informers' process cannot be served", exc_info=error)
        self.kill(f"could not be served: {type(error).__name__}")


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # (marks it as retrieved, even if no task waits)
