"""Creates, starts, awaits and ends the informers of one process (the event handler framework: SchedulerCache.Run,
WaitForCacheSync).

The steps: 1 create everything that is configured before anything is opened, so that a mistake fails the call; 2 start
an informer, handler and cache for each table whose RM's partition this instance owns; 3 wait for all of them, up to
``sync_timeout_s``; 4 follow the sources until the process ends.

For each informer the service writes notes to the log: LISTING, LIVE, STALE. The service does not decide whether the
scheduler may decide: the machine reads the notes together with the changes (``sync_gate.py``).

LIVE removes the objects that a life has not named. So the service notes no source of an RM as LIVE before all other
sources of that RM have listed or were given up. Else an object that moved between two sources meanwhile (after an
informer was renamed, for example) would be gone from the old one before it is with the new one, and its allocations
would end.

A defect of an informer or handler ends only that informer, and its source becomes stale.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import LogError
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_core.external.errors import InformerSettingsWrong, InvalidExternalSettings, NotSynced
from muster_core.external.model import SourceState
from muster_core.external.validation import sanitize
from muster_runtime.processor_time import own_usage
from muster_runtime.secrets import masked_text
from muster_runtime.watchdog import Usage
from muster_state.external_codec import SourceStateNote, encode

from muster_informers import registry
from muster_informers.contract import EventHandler, HandlerContext, InformerContext
from muster_informers.filters import responsible_for
from muster_informers.informer import SharedIndexInformer
from muster_informers.log_cache import LogCache
from muster_informers.native_handler import NATIVE, CallResult, HandlerCall, NativeCache, NativeHandler
from muster_informers.offer_return import OfferReturner, offer_target
from muster_informers.registry import Registry
from muster_informers.settings import ExternalSettings, InformerTable
from muster_informers.sync_gate import SyncGate

log = structlog.get_logger(__name__)

# An informer or cache that does not end in this time is abandoned.
STOP_TIMEOUT_S = 5.0


class _DeferredWriter:
    """A writer that is opened together with the log: caches and handlers are made before."""

    def __init__(self) -> None:
        self.opened: LogWriter | None = None

    def append(self, record: OutRecord) -> Awaitable[int]:
        return self._writer().append(record)

    async def wait_writable(self) -> None:
        await self._writer().wait_writable()

    async def close(self) -> None:
        if self.opened is not None:
            await self.opened.close()

    def _writer(self) -> LogWriter:
        assert self.opened is not None, "start comes first"
        return self.opened


@dataclass(slots=True)
class _InformerTask:
    """One informer with its parts.

    :ivar synced: its first listing is on the log.
    :ivar is_abandoned: the scheduler no longer waits for it.
    :ivar is_live_note_pending: it is LIVE, but the note waits: other sources of its RM are still listing.
    :ivar outlet: gives offers back; None: its source has no offers.
    :ivar died: the reason why it ended by itself; "": it did not. ``outlet_died``: likewise.
    """

    name: str
    table: InformerTable
    cache: LogCache
    informer: SharedIndexInformer
    outlet: OfferReturner | None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    synced: bool = False
    is_abandoned: bool = False
    is_live_note_pending: bool = False
    died: str = ""
    outlet_died: str = ""

    @property
    def drains(self) -> bool:
        return self.table.when_lost == "drain"

    @property
    def can_be_abandoned(self) -> bool:
        """Whether the scheduler may decide without it. (For a required informer only after its first sync.)"""
        return self.synced or not self.table.required

    @property
    def blocks_others(self) -> bool:
        """Whether its listing is still open: its objects may have belonged to other sources, so those must not lose
        theirs yet.
        """
        return not (self.synced or self.is_abandoned or (self.died and self.can_be_abandoned))

    def activity(self) -> str:
        """Returns what prevents it from being synced, for people."""
        if self.died:
            return self.died
        if self.cache.last_error:
            return f"the log does not accept its statements: {self.cache.last_error}"
        return "its listing is not on the log yet" if self.informer.has_synced() else self.informer.activity()


class ExternalService:
    """See the module's docstring.

    :param partitions: the partitions of the requests topic that this instance owns.
    :param life: the id of this start, for all informers of this process.
    :param usage: this process's, for watchdogs.
    :raises InvalidExternalSettings: with all problems; nothing was opened.
    """

    def __init__(
        self,
        settings: ExternalSettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        partitions: Collection[int],
        life: str,
        *,
        informers: Registry = registry.informers,
        event_handlers: Registry = registry.event_handlers,
        usage: Callable[[], Usage] = own_usage,
    ) -> None:
        self._settings = settings
        self._log = bus
        self._topics = topics
        self._clock = clock
        self._incarnation = life
        self.usage = usage
        self._informers, self._event_handlers = informers, event_handlers
        self._writer = _DeferredWriter()
        self._informer_tasks: list[_InformerTask] = []
        self._native_handlers: dict[str, NativeHandler] = {}
        self._waiting: asyncio.Task[None] | None = None
        self._synced = False
        self._make(partitions)

    # ---- 1 create ----------------------------------------------------------------------------------------------------

    def _make(self, partitions: Collection[int]) -> None:
        settings = self._settings
        problems: list[str] = []
        # (A name that is registered twice is an error, even if no table uses it.)
        for plugins in (self._informers, self._event_handlers):
            plugins.names()
        self._event_handlers.origin(settings.event_handler)
        registry.read_config(settings.config_path)
        for name, table in settings.informers.items():
            is_owned = self._topics.partition_of(table.rm) in partitions
            try:
                if table.kind == NATIVE:
                    judge = self._create_native_handler(name, table)
                    if is_owned:
                        self._native_handlers[name] = judge
                    continue
                bringing = self._create_task(name, table)
            except InvalidExternalSettings as error:
                path = f"scheduler.external.informers.{name}"
                problems += [problem if path in problem else f"{path}: {problem}" for problem in error.problems]
            else:
                if is_owned:
                    self._informer_tasks.append(bringing)
        if problems:
            raise InvalidExternalSettings(*problems)

    def _create_task(self, name: str, table: InformerTable) -> _InformerTask:
        """An informer with its handler and cache, not yet connected. Raises InvalidExternalSettings."""
        log_context = {"rm": table.rm, "partition": table.partition_name}
        made_in = InformerContext(name, self._clock, str(self._settings.base))
        source = registry.get_informer(table.kind, table.options(), made_in, self._informers)
        cache = LogCache(
            rm_id=table.rm,
            partition=table.partition_name,
            source=name,
            life=self._incarnation,
            topic=self._topics.requests,
            log_partition=self._topics.partition_of(table.rm),
            writer=self._writer,
            clock=self._clock,
            changes_per_s_max=table.changes_per_s_max,
        )
        context = HandlerContext(table.kind, self._clock, table.handler_options(), {"source": name, **log_context})
        handler_name = table.handler or self._settings.event_handler
        handler = registry.get_event_handler(
            handler_name, self._settings.config_path, cache, context, self._event_handlers
        )
        informer = SharedIndexInformer(
            name,
            source,
            self._clock,
            stale_after_s=table.stale_after_s,
            resync_s=table.resync_s,
            usage=self.usage,
            on_state=lambda state, reason: self._on_source_state(bringing, state, reason),
            log_context=log_context,
        )
        shared = self._settings.instances
        predicate = responsible_for(self._settings.instance, shared) if shared else None
        informer.add_event_handler(handler, predicate, distrust=cache.distrust, ready=cache.ready, forget=cache.delete)
        taker = offer_target(source)
        outlet = (
            None
            if taker is None
            else OfferReturner(
                rm_id=table.rm,
                partition=table.partition_name,
                source=name,
                topic=self._topics.state,
                log_partition=self._topics.partition_of(table.rm),
                log=self._log,
                taker=taker,
            )
        )
        bringing = _InformerTask(name, table, cache, informer, outlet)  # on_state refers to this
        return bringing

    def _create_native_handler(self, name: str, table: InformerTable) -> NativeHandler:
        """Makes the handler of an RM's own objects. Raises InvalidExternalSettings."""
        for other_name, other_table in self._settings.informers.items():
            is_same = (other_table.kind, other_table.rm, other_table.partition_name) == (
                NATIVE,
                table.rm,
                table.partition_name,
            )
            if other_name != name and is_same:
                raise InformerSettingsWrong(
                    f"scheduler.external.informers.{name}: another one of kind {NATIVE!r} beside {other_name}, "
                    f"expected one for partition {table.partition_name!r} of {table.rm!r}"
                )
        log_context = {"source": name, "rm": table.rm, "partition": table.partition_name}
        handler_name = table.handler or self._settings.event_handler
        context = HandlerContext(NATIVE, self._clock, table.handler_options(), log_context)

        def make(cache: NativeCache) -> EventHandler:
            path = self._settings.config_path
            return registry.get_event_handler(handler_name, path, cache, context, self._event_handlers)

        settings = self._settings
        return NativeHandler(name, table, handler_name, make, self._clock, settings.instance, settings.instances)

    @property
    def natives(self) -> dict[str, NativeHandler]:
        """The handlers of RMs' own objects, by the informer's name."""
        return self._native_handlers

    @property
    def gate(self) -> SyncGate:
        """The sources that the machines of this process wait for."""
        sources: dict[str, tuple[tuple[str, str], ...]] = {}
        for informer_task in self._informer_tasks:
            sources[informer_task.table.rm] = (
                *sources.get(informer_task.table.rm, ()),
                (informer_task.table.partition_name, informer_task.name),
            )
        natives: dict[str, tuple[tuple[str, str], ...]] = {}
        for judge in self._native_handlers.values():
            table = judge.table
            natives[table.rm] = (*natives.get(table.rm, ()), (table.partition_name, judge.name))
        return SyncGate(self._incarnation, sources, natives)

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the informers. Raises the log's errors."""
        # 2. start each of them
        if self._informer_tasks:
            self._writer.opened = await self._log.writer("external")
        for informer_task in self._informer_tasks:
            informer_task.tasks = [
                asyncio.create_task(self._run_cache(informer_task), name=f"external-{informer_task.name}-cache"),
                asyncio.create_task(self._run_informer(informer_task), name=f"external-{informer_task.name}"),
            ]
            if informer_task.outlet is not None:
                informer_task.tasks.append(
                    asyncio.create_task(self._run_outlet(informer_task), name=f"external-{informer_task.name}-outlet")
                )
        # 3. wait for all of them
        self._waiting = asyncio.create_task(self._wait_synced(), name="external-sync")

    async def wait(self) -> None:
        """Returns when all informers have synced or were given up. Raises NotSynced: a required one has not synced."""
        assert self._waiting is not None, "start comes first"
        await asyncio.shield(self._waiting)

    async def stop(self) -> None:
        """Ends all informers in bounded time. (The next life lists objects again that are not on the log yet.)"""
        tasks = [task for informer_task in self._informer_tasks for task in informer_task.tasks]
        if self._waiting is not None:
            tasks.append(self._waiting)
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
            for task in tasks:
                if task in pending:
                    log.warning("informer did not end in time", task=task.get_name(), timeout_s=STOP_TIMEOUT_S)
        with contextlib.suppress(LogError):
            await self._writer.close()

    @property
    def synced(self) -> bool:
        """Whether the service no longer waits for any informer."""
        return self._synced

    def synced_once(self) -> list[str]:
        """Returns the informers that have synced once."""
        return [informer_task.name for informer_task in self._informer_tasks if informer_task.synced]

    @property
    def tables(self) -> dict[str, InformerTable]:
        """The tables of this instance's informers, by name."""
        return {informer_task.name: informer_task.table for informer_task in self._informer_tasks}

    @property
    def is_of_this_process(self) -> bool:
        """Whether an informer or handler was registered by this process: another process would not know it."""
        handlers = {
            informer_task.table.handler or self._settings.event_handler for informer_task in self._informer_tasks
        }
        handlers |= {judge.handler_name for judge in self._native_handlers.values()}
        kinds = {informer_task.table.kind for informer_task in self._informer_tasks}
        return any(map(self._informers.is_registered, kinds)) or any(map(self._event_handlers.is_registered, handlers))

    def problems(self) -> list[str]:
        """Returns the present problems, one sentence for each informer."""
        problems = [problem for informer_task in self._informer_tasks if (problem := _problem(informer_task))]
        return problems + [problem for judge in self._native_handlers.values() if (problem := judge.problem())]

    # ---- the RM's own objects ----------------------------------------------------------------------------------------

    async def handlers_ready(self) -> int:
        """Returns at once, always with the same life, because the handlers are in this process."""
        return 1

    async def call_handler(self, name: str, life: int, begins: bool, calls: Sequence[HandlerCall]) -> list[CallResult]:
        """Asks the handler of an RM's own objects.

        :param begins: it begins anew.
        """
        judge = self._native_handlers[name]
        if begins:
            judge.restart()
        return judge.call(calls)

    def abandon(self, life: int, reason: str) -> None:
        """Does nothing: a part of this process cannot be ended alone."""

    # ---- one informer ------------------------------------------------------------------------------------------------

    async def _run_informer(self, informer_task: _InformerTask) -> None:
        try:
            await informer_task.informer.run()
        except Exception as error:
            self._died(informer_task, "informer", error)
            if informer_task.can_be_abandoned:
                informer_task.is_live_note_pending = False
                informer_task.cache.set_source_state(SourceState.STALE, informer_task.drains, informer_task.died)
                self._write_pending_notes(informer_task.table.rm)

    async def _run_cache(self, informer_task: _InformerTask) -> None:
        try:
            await informer_task.cache.run()
        except LogError:
            return  # the log is closed: the process ends
        except Exception as error:
            self._died(informer_task, "cache", error)
            for task in informer_task.tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            if not informer_task.can_be_abandoned:
                return
            self._write_pending_notes(informer_task.table.rm)
            # Written directly: the cache writes nothing any more.
            note = SourceStateNote(SourceState.STALE, informer_task.drains, informer_task.died)
            value = encode(
                informer_task.table.rm,
                informer_task.table.partition_name,
                informer_task.name,
                self._incarnation,
                (),
                note,
            )
            partition = self._topics.partition_of(informer_task.table.rm)
            with contextlib.suppress(LogError):
                await self._writer.append(
                    OutRecord(self._topics.requests, partition, informer_task.table.rm.encode(), value)
                )

    async def _run_outlet(self, informer_task: _InformerTask) -> None:
        assert informer_task.outlet is not None
        try:
            await informer_task.outlet.run()
        except LogError:
            return  # the log is closed: the process ends
        except Exception as error:
            log.exception("offers are given back no more", source=informer_task.name)
            informer_task.outlet_died = sanitize(f"{type(error).__name__}: {masked_text(str(error))}")

    def _died(self, informer_task: _InformerTask, component: str, error: Exception) -> None:
        informer_task.died = sanitize(f"its {component} failed: {type(error).__name__}: {masked_text(str(error))}")
        log.error("informer ended by a defect", source=informer_task.name, what=component, exc_info=error)

    def _on_source_state(self, informer_task: _InformerTask, state: SourceState, reason: str) -> None:
        """Notes an informer's state; LIVE only once no other source of its RM is still listing."""
        informer_task.is_live_note_pending = state is SourceState.LIVE and any(
            other_task.blocks_others
            for other_task in self._informer_tasks
            if other_task.table.rm == informer_task.table.rm
        )
        if not informer_task.is_live_note_pending:
            informer_task.cache.set_source_state(state, informer_task.drains, reason)

    def _write_pending_notes(self, rm: str) -> None:
        """Writes the waiting notes of an RM, if none of its sources is still listing."""
        of_rm = [informer_task for informer_task in self._informer_tasks if informer_task.table.rm == rm]
        if any(informer_task.blocks_others for informer_task in of_rm):
            return
        for informer_task in of_rm:
            if informer_task.is_live_note_pending:
                informer_task.is_live_note_pending = False
                informer_task.cache.set_source_state(SourceState.LIVE, informer_task.drains)

    # ---- 3 wait for all ----------------------------------------------------------------------------------------------

    async def _wait_synced(self) -> None:
        timeout_s = self._settings.sync_timeout_s
        waits = [
            asyncio.create_task(self._wait_for(informer_task), name=f"external-{informer_task.name}-sync")
            for informer_task in self._informer_tasks
        ]
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout_s)
        finally:
            for task in waits:
                task.cancel()
        late = [informer_task for informer_task in self._informer_tasks if not informer_task.synced]
        for informer_task in late:
            if not informer_task.table.required:
                informer_task.is_abandoned = True
                log.warning(
                    "continuing without an informer",
                    source=informer_task.name,
                    why=informer_task.activity(),
                    timeout_s=timeout_s,
                )
                informer_task.informer.stop_waiting(
                    sanitize(f"not synced after {timeout_s:g} s: {informer_task.activity()}")
                )
                self._write_pending_notes(informer_task.table.rm)
        required = {
            informer_task.name: informer_task.activity() for informer_task in late if informer_task.table.required
        }
        if required:
            raise NotSynced(timeout_s, required)
        for informer_task in self._informer_tasks:  # the waiting notes are written first
            with contextlib.suppress(LogError):
                if not informer_task.died:
                    await informer_task.cache.wait_flushed()
        self._synced = True
        if self._informer_tasks:
            log.info("informers synced", informers=len(self._informer_tasks) - len(late), given_up=len(late))

    async def _wait_for(self, informer_task: _InformerTask) -> None:
        """Returns when the first listing is on the log; never, if it never is."""
        await informer_task.informer.wait_synced()
        try:
            await informer_task.cache.wait_flushed()
        except LogError:
            await asyncio.Event().wait()
        informer_task.synced = True
        self._write_pending_notes(informer_task.table.rm)


def _problem(informer_task: _InformerTask) -> str:
    """Returns an informer's problem; "": none."""
    who = f"informer {informer_task.name} ({informer_task.table.kind})"
    then = "its nodes take no new allocations" if informer_task.drains else "its last report still counts"
    if informer_task.died:
        return f"{who}: {informer_task.died}; {then}"
    if informer_task.cache.last_error:
        return f"{who}: {informer_task.activity()}"
    if not informer_task.synced and not informer_task.is_abandoned:
        return f"{who} has not synced: {informer_task.activity()}"
    if informer_task.informer.state is SourceState.STALE:
        return f"{who}: {informer_task.informer.last_error or informer_task.informer.reason}; {then}"
    if distrusted := informer_task.informer.distrusted():
        first, *others = distrusted
        more = f" (and of {len(others)} more)" if others else ""
        return f"{who}: what it says of {first.kind} {first.object_id}{more} cannot be relied on: {first.text}"
    if informer_task.outlet is not None and (reason := informer_task.outlet_died or informer_task.outlet.last_error):
        return f"{who}: offers cannot be given back: {reason}"
    return ""
