"""The informers in a process of their own, seen from the scheduler's: started, listened to, started again, ended.

Stands where an ``ExternalService`` would, which is in the other process (``child.py``). What was configured is judged
here all the same, before anything is opened. The log stays here, with its one owner: what the child appends and reads
comes by the pipe (``pipe.py``), in its order.

========  ========================================  ==================================================================
state     becomes                                   then
========  ========================================  ==================================================================
begun     heard                                     it tells how far the informers are
heard     gone: it ended, or was silent and killed  what it had sent still goes to the log; then each source that had
                                                    synced once, or is not required, is noted STALE with the reason
gone      begun                                     after a wait that grows: in another life of this start (``gate.py``)
========  ========================================  ==================================================================

Before all have synced once a required informer that does not sync in time ends the scheduler, whichever process it is
in. Later nothing does: decisions go on, by what each source's table says of its loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import LogClosed, LogError, LogUnavailable
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.pipe.messages import Append
from muster_bus.topics import Topics, state_key
from muster_service import logs
from muster_service.channel import Channel
from muster_service.child_process import BEGIN_TIMEOUT_S, ChildProcess
from muster_service.waits import growing_s

from muster_scheduler.core.external import ExternalKind, SourceState
from muster_scheduler.external import metrics
from muster_scheduler.external.checks import plain
from muster_scheduler.external.codec import SourceNote, encode
from muster_scheduler.external.errors import NotSynced, SettingsWrong
from muster_scheduler.external.gate import Gate, life_again
from muster_scheduler.external.log_end import LogEnd
from muster_scheduler.external.pipe import Ask, Begin, Ended, Message, Sampled, Stop, Told
from muster_scheduler.external.samples import ChildSamples
from muster_scheduler.external.service import ExternalService
from muster_scheduler.external.settings import ExternalSettings, InformerTable

log = structlog.get_logger(__name__)

# Longer than the child's own time-outs (tasks, writer), shorter than what the process allows a service.
STOP_TIMEOUT_S = 8.0
# A child that lives is heard every second.
SILENT_MAX_S = 30
_WAIT_MIN_S, _WAIT_MAX_S = 0.5, 30.0
# One that held for so long was good: the next failure is the first one of a new row.
_SETTLED_S = 60.0

_AGAIN = "it is started again"


class ExternalProcess:
    """See the module's words; :class:`~muster_scheduler.external.service.ExternalService` has those of the methods.

    :param judged: the informers, made here and never started: what is configured can be used.
    :param life: of this start; the child's first one.
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
        wait_min_s: float = _WAIT_MIN_S,
        silent_max_s: int = SILENT_MAX_S,
    ) -> None:
        self._gate = judged.gate
        self._tables: dict[str, InformerTable] = judged.tables
        self._settings = settings
        self._log = bus
        self._topics = topics
        self._clock = clock
        self._partitions = tuple(partitions)
        self._life = life
        self._wait_min_s = wait_min_s
        self._silent_max_s = silent_max_s
        self._samples = ChildSamples()
        self._writer: LogWriter | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._begun_s = clock.monotonic()
        # -- what is known of it
        self._child: _Informers | None = None
        self._told: Told | None = None
        self._known: set[str] = set()
        self._synced = False
        self._gone = ""  # why there is none; "": there is
        # Done when everything has synced, or never will; and when nothing is to be waited for any more.
        self._first: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None

    @property
    def gate(self) -> Gate:
        return self._gate

    @property
    def pid(self) -> int:
        """Of the child that runs; 0: none does."""
        return self._child.pid if self._child is not None else 0

    @property
    def synced(self) -> bool:
        return self._synced

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the child. Raises what the log raises."""
        loop = asyncio.get_running_loop()
        self._first, self._over = loop.create_future(), loop.create_future()
        self._writer = await self._log.writer("external")
        self._begun_s = self._clock.monotonic()
        self._samples.begin()
        self._keeping = asyncio.create_task(self._keep(), name="external-process")

    async def wait(self) -> None:
        """Returns when it was stopped. Raises NotSynced: a required informer has not."""
        assert self._first is not None, "start comes first"
        assert self._over is not None
        await asyncio.shield(self._first)
        await asyncio.shield(self._over)

    async def stop(self) -> None:
        """Ends everything, in bounded time."""
        self._stopping.set()
        if self._keeping is not None:
            if self._child is not None:
                self._child.tell_to_stop()
            await asyncio.wait({self._keeping}, timeout=STOP_TIMEOUT_S)
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._samples.end()
        if self._writer is not None:
            with contextlib.suppress(LogError):
                await self._writer.close()

    def problems(self) -> list[str]:
        if self._told is not None and not self._gone:
            return list(self._told.problems)
        return [self._problem(name) for name in self._tables]

    def _problem(self, name: str) -> str:
        table, why = self._tables[name], self._gone or "their process begins"
        who = f"informer {name} ({table.kind})"
        if name not in self._known and not self._synced:
            return f"{who} has not synced: {why}"
        then = "its nodes take nothing new" if table.when_lost == "drain" else "what it said last still counts"
        return f"{who}: {why}; {then}"

    # ---- one child after the other -----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        assert self._first is not None
        assert self._over is not None
        late = asyncio.create_task(self._watch_start(), name="external-process-start")
        try:
            await self._keep_one()
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

    async def _keep_one(self) -> None:
        number = failures = 0
        while not self._stopping.is_set():
            # 1. it runs
            number += 1
            life = life_again(self._life, number)
            began_s = self._clock.monotonic()
            why = await self._run(life)
            if self._stopping.is_set():
                return
            # 2. it is gone
            self._gone = f"the informers' process {why}; {_AGAIN}"
            self._told = None
            self._samples.lost()
            if self._clock.monotonic() - began_s >= _SETTLED_S:
                failures = 0
            wait_s = growing_s(failures, self._wait_min_s, _WAIT_MAX_S)
            failures += 1
            log.error("the informers' process is gone", why=why, again_after_s=wait_s)
            await self._note_lost(life)
            # 3. and again
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    async def _run(self, life: str) -> str:
        """Runs a child to its end; says how it ended."""
        assert self._writer is not None
        metrics.process_starts.inc()
        try:
            child = await _Informers.start(self._writer, self._log, self._offers(), self._clock)
        except OSError as error:
            return f"cannot be started: {error.strerror or error}"
        self._child = child
        try:
            child.begin(self._begin(life))
            if self._stopping.is_set():
                child.tell_to_stop()
            return await child.listen(self._take, self._silent_max_s)
        finally:
            self._child = None
            await child.end()

    def _begin(self, life: str) -> Begin:
        settings = self._settings.in_clear()
        given: dict[str, dict[str, object]] = settings["informers"]  # type: ignore[assignment]
        for name in self._tables:
            # One that has synced once is never waited for again as if nothing could be decided without it.
            if self._synced or name in self._known:
                given[name]["required"] = False
        if not self._synced:
            spent_s = self._clock.monotonic() - self._begun_s
            settings["sync_timeout_s"] = max(1.0, self._settings.sync_timeout_s - spent_s)
            if life == self._life:
                settings["sync_timeout_s"] = self._settings.sync_timeout_s
        level, form = logs.configured()
        return Begin(settings, asdict(self._topics), self._partitions, life, level, form, tuple(sys.path))

    def _offers(self) -> tuple[bytes, ...]:
        """How the keys of offers begin that its sources lend."""
        return tuple(
            state_key(table.rm, "ext", table.partition_name, name, ExternalKind.OFFER.value) + b"/"
            for name, table in self._tables.items()
        )

    def _take(self, message: Told | Sampled | Ended) -> None:
        assert self._first is not None
        match message:
            case Told():
                self._told, self._gone = message, ""
                self._known.update(message.known)
                if message.synced and not self._synced:
                    self._synced = True
                    if not self._first.done():
                        self._first.set_result(None)
            case Sampled():
                self._samples.take(message.families)
            case Ended() if not self._synced:
                error: Exception = NotSynced(self._settings.sync_timeout_s, message.late)
                if message.problems:
                    error = SettingsWrong(*message.problems)
                _fail(self._first, error)
            case Ended():
                log.error("informers cannot begin again", problems=message.problems)
                if self._child is not None:
                    self._child.kill(f"could not begin: {'; '.join(message.problems)}")

    async def _watch_start(self) -> None:
        """A child that cannot even say that it is late."""
        assert self._first is not None
        await asyncio.sleep(self._settings.sync_timeout_s + BEGIN_TIMEOUT_S)
        while not self._synced and not self._first.done():
            late = {
                name: self._gone or "their process says nothing"
                for name, table in self._tables.items()
                if table.required and name not in self._known
            }
            if late and self._told is None:
                _fail(self._first, NotSynced(self._settings.sync_timeout_s, late))
            await asyncio.sleep(1.0)

    async def _note_lost(self, life: str) -> None:
        """Notes on the log that sources are lost, each as its table says. Raises LogClosed."""
        assert self._writer is not None
        for name, table in self._tables.items():
            if table.required and name not in self._known:
                continue  # nothing is decided before it has synced
            note = SourceNote(SourceState.STALE, table.when_lost == "drain", plain(self._gone))
            value = encode(table.rm, table.partition_name, name, life, (), note)
            record = OutRecord(self._topics.requests, self._topics.partition_of(table.rm), table.rm.encode(), value)
            failures = 0
            while not self._stopping.is_set():
                try:
                    await self._writer.ready()
                    await self._writer.append(record)
                except LogUnavailable:
                    await asyncio.sleep(growing_s(failures, 0.1, 5.0))
                    failures += 1
                else:
                    break


class _Informers:
    """A process of informers, and the log's end of its pipe."""

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
        self._log_end = LogEnd(channel, writer, bus, offers, clock, self._cannot_be_served)

    @classmethod
    async def start(cls, writer: LogWriter, bus: Log, offers: tuple[bytes, ...], clock: Clock) -> _Informers:
        """Raises OSError."""
        child: ChildProcess[Message] = ChildProcess.spawn("muster_scheduler.external.child", Message)
        return cls(child, await child.connect(), writer, bus, offers, clock)

    @property
    def pid(self) -> int:
        return self._child.pid

    def begin(self, begin: Begin) -> None:
        log.info("the informers' process was started", pid=self.pid, life=begin.life)
        self._channel.send(begin)

    def tell_to_stop(self) -> None:
        self._channel.send(Stop())

    def kill(self, why: str) -> None:
        """:param why: what will be said of its end."""
        self._child.kill(why)

    async def listen(self, take: Callable[[Told | Sampled | Ended], None], silent_max_s: int) -> str:
        """Does what it asks, until it is gone and all that it sent is on the log; says how it ended."""

        def heard(message: Message) -> None:
            match message:
                case Append() | Ask():
                    self._log_end.take(message)
                case Told() | Sampled() | Ended():
                    take(message)
                case _:
                    raise ValueError(f"a {type(message).__name__}")

        return await self._child.listen(heard, silent_max_s, self._log_end.settled, BEGIN_TIMEOUT_S)

    async def end(self) -> None:
        """Leaves nothing behind."""
        self._child.kill("was ended")
        await self._log_end.close()
        await self._child.end()

    def _cannot_be_served(self, error: BaseException) -> None:
        log.error("the informers' process cannot be served", exc_info=error)
        self.kill(f"could not be served: {type(error).__name__}")


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # (whether somebody waits or not)
