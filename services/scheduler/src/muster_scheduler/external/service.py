"""The informers of one process: made, started, waited for, ended (seed 004: SchedulerCache.Run, WaitForCacheSync).

In numbered steps: 1 everything that is configured is made, before anything is opened, so that a mistake in it is a
mistake of the call; 2 one informer, handler and cache are started for each table whose RM's partition this instance
owns; 3 all of them are waited for, up to ``sync_timeout_s``; 4 they follow their sources until the process ends.

What it tells the log, an informer at a time, are its notes: LISTING, LIVE, STALE. Whether anything is decided is not
said here: the machine hears the notes where it hears the changes (``gate.py``).

LIVE takes away what a life did not name. So no source of an RM is noted LIVE before all others of it have listed, or
were given up: what moved from one source to another while nobody looked (a new name for an informer, say) is with the
new one before it is gone from the old one, and what runs there goes on.

A defect of an informer or handler ends that informer, and its source is stale: nothing else ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import LogError
from muster_bus.log import Log, LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_service.secrets import masked_text

from muster_scheduler.core.external import SourceState
from muster_scheduler.external import registry
from muster_scheduler.external.cache import LogCache
from muster_scheduler.external.checks import plain
from muster_scheduler.external.codec import SourceNote, encode
from muster_scheduler.external.contract import HandlerContext, InformerContext
from muster_scheduler.external.errors import NotSynced, SettingsWrong
from muster_scheduler.external.filters import responsible_for
from muster_scheduler.external.gate import Gate
from muster_scheduler.external.informer import SharedIndexInformer
from muster_scheduler.external.outlet import OfferOutlet, taker_of
from muster_scheduler.external.registry import Registry
from muster_scheduler.external.settings import ExternalSettings, InformerTable

log = structlog.get_logger(__name__)

# An informer or cache that does not end by then is left behind.
STOP_TIMEOUT_S = 5.0


class _LateWriter:
    """A writer that is opened when the log is: caches and handlers are made before."""

    def __init__(self) -> None:
        self.opened: LogWriter | None = None

    def append(self, record: OutRecord) -> Awaitable[int]:
        return self._writer().append(record)

    async def ready(self) -> None:
        await self._writer().ready()

    async def close(self) -> None:
        if self.opened is not None:
            await self.opened.close()

    def _writer(self) -> LogWriter:
        assert self.opened is not None, "start comes first"
        return self.opened


@dataclass(slots=True)
class _Bringing:
    """One informer with all that belongs to it.

    :ivar synced: everything of its first listing is on the log.
    :ivar given_up: nobody waits for it any longer.
    :ivar held: it is LIVE, and this is not noted yet: others of its RM are still listing.
    :ivar outlet: what gives offers back; None: its source lends nothing.
    :ivar died: why it ended by itself; "": it did not. ``outlet_died``: likewise.
    """

    name: str
    table: InformerTable
    cache: LogCache
    informer: SharedIndexInformer
    outlet: OfferOutlet | None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    synced: bool = False
    given_up: bool = False
    held: bool = False
    died: str = ""
    outlet_died: str = ""

    @property
    def drains(self) -> bool:
        return self.table.when_lost == "drain"

    @property
    def may_be_given_up(self) -> bool:
        """Decisions may go on without it. (Not before one that is required has synced once.)"""
        return self.synced or not self.table.required

    @property
    def holds_others(self) -> bool:
        """What it will say may have been another source's before: nothing of those is gone yet."""
        return not (self.synced or self.given_up or (self.died and self.may_be_given_up))

    def doing(self) -> str:
        """What keeps it from being synced, for people."""
        if self.died:
            return self.died
        if self.cache.last_error:
            return f"the log does not take what it says: {self.cache.last_error}"
        return "its listing is not on the log yet" if self.informer.has_synced() else self.informer.doing()


class ExternalService:
    """See the module's words.

    :param partitions: of the requests topic, that this instance owns.
    :param life: of all informers of this process; another one for each start.
    :raises SettingsWrong: with everything that is wrong; nothing was opened.
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
    ) -> None:
        self._settings = settings
        self._log = bus
        self._topics = topics
        self._clock = clock
        self._life = life
        self._informers, self._event_handlers = informers, event_handlers
        self._writer = _LateWriter()
        self._bringing: list[_Bringing] = []
        self._waiting: asyncio.Task[None] | None = None
        self._synced = False
        self._make(partitions)

    # ---- 1 what is configured ----------------------------------------------------------------------------------------

    def _make(self, partitions: Collection[int]) -> None:
        settings = self._settings
        problems: list[str] = []
        # (Whoever registered a name twice is told so, also if nobody asks for it.)
        for known in (self._informers, self._event_handlers):
            known.names()
        self._event_handlers.origin(settings.event_handler)
        registry.read_config(settings.config_path)
        for name, table in settings.informers.items():
            try:
                bringing = self._bring(name, table)
            except SettingsWrong as error:
                place = f"scheduler.external.informers.{name}"
                problems += [each if place in each else f"{place}: {each}" for each in error.problems]
            else:
                if self._topics.partition_of(table.rm) in partitions:
                    self._bringing.append(bringing)
        if problems:
            raise SettingsWrong(*problems)

    def _bring(self, name: str, table: InformerTable) -> _Bringing:
        """An informer with its handler and cache, connected to nothing. Raises SettingsWrong."""
        place = {"rm": table.rm, "partition": table.partition_name}
        made_in = InformerContext(name, self._clock, str(self._settings.base))
        source = registry.get_informer(table.kind, table.options(), made_in, self._informers)
        cache = LogCache(
            rm_id=table.rm,
            partition=table.partition_name,
            source=name,
            life=self._life,
            topic=self._topics.requests,
            log_partition=self._topics.partition_of(table.rm),
            writer=self._writer,
            clock=self._clock,
            changes_per_s_max=table.changes_per_s_max,
        )
        context = HandlerContext(table.kind, self._clock, table.handler_options(), {"source": name, **place})
        wanted = table.handler or self._settings.event_handler
        handler = registry.get_event_handler(wanted, self._settings.config_path, cache, context, self._event_handlers)
        informer = SharedIndexInformer(
            name,
            source,
            self._clock,
            stale_after_s=table.stale_after_s,
            resync_s=table.resync_s,
            on_state=lambda state, reason: self._heard(bringing, state, reason),
            log_context=place,
        )
        shared = self._settings.instances
        predicate = responsible_for(self._settings.instance, shared) if shared else None
        informer.add_event_handler(handler, predicate, distrust=cache.distrust, ready=cache.ready, forget=cache.delete)
        taker = taker_of(source)
        outlet = (
            None
            if taker is None
            else OfferOutlet(
                rm_id=table.rm,
                partition=table.partition_name,
                source=name,
                topic=self._topics.state,
                log_partition=self._topics.partition_of(table.rm),
                log=self._log,
                taker=taker,
            )
        )
        bringing = _Bringing(name, table, cache, informer, outlet)  # (what on_state tells of)
        return bringing

    @property
    def gate(self) -> Gate:
        """What the machines of this process wait for."""
        sources: dict[str, tuple[tuple[str, str], ...]] = {}
        for each in self._bringing:
            sources[each.table.rm] = (*sources.get(each.table.rm, ()), (each.table.partition_name, each.name))
        return Gate(self._life, sources)

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the informers. Raises what the log raises."""
        # 2. each for itself
        if self._bringing:
            self._writer.opened = await self._log.writer("external")
        for each in self._bringing:
            each.tasks = [
                asyncio.create_task(self._run_cache(each), name=f"external-{each.name}-cache"),
                asyncio.create_task(self._run_informer(each), name=f"external-{each.name}"),
            ]
            if each.outlet is not None:
                each.tasks.append(asyncio.create_task(self._run_outlet(each), name=f"external-{each.name}-outlet"))
        # 3. all of them
        self._waiting = asyncio.create_task(self._wait_synced(), name="external-sync")

    async def wait(self) -> None:
        """Returns when all informers have synced, or were given up. Raises NotSynced: a required one has not."""
        assert self._waiting is not None, "start comes first"
        await asyncio.shield(self._waiting)

    async def stop(self) -> None:
        """Ends everything, in bounded time. (What is not on the log yet is listed anew by the next life.)"""
        tasks = [task for each in self._bringing for task in each.tasks]
        if self._waiting is not None:
            tasks.append(self._waiting)
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
            for task in left:
                log.warning("informer did not end in time", task=task.get_name(), timeout_s=STOP_TIMEOUT_S)
        with contextlib.suppress(LogError):
            await self._writer.close()

    @property
    def synced(self) -> bool:
        """Whether nobody is waited for any longer."""
        return self._synced

    def known(self) -> list[str]:
        """The informers that have synced once."""
        return [each.name for each in self._bringing if each.synced]

    @property
    def tables(self) -> dict[str, InformerTable]:
        """The informers of this instance, by name."""
        return {each.name: each.table for each in self._bringing}

    @property
    def is_of_this_process(self) -> bool:
        """Whether an informer or handler is one that was registered here: another process would not know it."""
        handlers = {each.table.handler or self._settings.event_handler for each in self._bringing}
        kinds = {each.table.kind for each in self._bringing}
        return any(map(self._informers.is_registered, kinds)) or any(map(self._event_handlers.is_registered, handlers))

    def problems(self) -> list[str]:
        """What does not work now, one sentence for each informer."""
        return [problem for each in self._bringing if (problem := _problem(each))]

    # ---- one informer ------------------------------------------------------------------------------------------------

    async def _run_informer(self, each: _Bringing) -> None:
        try:
            await each.informer.run()
        except Exception as error:
            self._died(each, "informer", error)
            if each.may_be_given_up:
                each.held = False
                each.cache.note(SourceState.STALE, each.drains, each.died)
                self._let_go(each.table.rm)

    async def _run_cache(self, each: _Bringing) -> None:
        try:
            await each.cache.run()
        except LogError:
            return  # it is closed: the process ends
        except Exception as error:
            self._died(each, "cache", error)
            for task in each.tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            if not each.may_be_given_up:
                return
            self._let_go(each.table.rm)
            # By a way of its own: nothing goes through the cache any more.
            note = SourceNote(SourceState.STALE, each.drains, each.died)
            value = encode(each.table.rm, each.table.partition_name, each.name, self._life, (), note)
            partition = self._topics.partition_of(each.table.rm)
            with contextlib.suppress(LogError):
                await self._writer.append(OutRecord(self._topics.requests, partition, each.table.rm.encode(), value))

    async def _run_outlet(self, each: _Bringing) -> None:
        assert each.outlet is not None
        try:
            await each.outlet.run()
        except LogError:
            return  # it is closed: the process ends
        except Exception as error:
            log.exception("offers are given back no more", source=each.name)
            each.outlet_died = plain(f"{type(error).__name__}: {masked_text(str(error))}")

    def _died(self, each: _Bringing, what: str, error: Exception) -> None:
        each.died = plain(f"its {what} failed: {type(error).__name__}: {masked_text(str(error))}")
        log.error("informer ended by a defect", source=each.name, what=what, exc_info=error)

    def _heard(self, each: _Bringing, state: SourceState, reason: str) -> None:
        """Notes an informer's state: LIVE once nobody of its RM is waited for."""
        each.held = state is SourceState.LIVE and any(
            other.holds_others for other in self._bringing if other.table.rm == each.table.rm
        )
        if not each.held:
            each.cache.note(state, each.drains, reason)

    def _let_go(self, rm: str) -> None:
        """Notes what was held, if nobody of the RM is waited for any longer."""
        of_rm = [each for each in self._bringing if each.table.rm == rm]
        if any(each.holds_others for each in of_rm):
            return
        for each in of_rm:
            if each.held:
                each.held = False
                each.cache.note(SourceState.LIVE, each.drains)

    # ---- 3 all of them -----------------------------------------------------------------------------------------------

    async def _wait_synced(self) -> None:
        timeout_s = self._settings.sync_timeout_s
        waits = [
            asyncio.create_task(self._wait_for(each), name=f"external-{each.name}-sync") for each in self._bringing
        ]
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout_s)
        finally:
            for task in waits:
                task.cancel()
        late = [each for each in self._bringing if not each.synced]
        for each in late:
            if not each.table.required:
                each.given_up = True
                log.warning("going on without an informer", source=each.name, why=each.doing(), timeout_s=timeout_s)
                each.informer.give_up(plain(f"not synced after {timeout_s:g} s: {each.doing()}"))
                self._let_go(each.table.rm)
        required = {each.name: each.doing() for each in late if each.table.required}
        if required:
            raise NotSynced(timeout_s, required)
        for each in self._bringing:  # (those that were held have more to write)
            with contextlib.suppress(LogError):
                if not each.died:
                    await each.cache.flushed()
        self._synced = True
        if self._bringing:
            log.info("informers synced", informers=len(self._bringing) - len(late), given_up=len(late))

    async def _wait_for(self, each: _Bringing) -> None:
        """Returns when everything of the first listing is on the log; never, if it never is."""
        await each.informer.wait_synced()
        try:
            await each.cache.flushed()
        except LogError:
            await asyncio.Event().wait()
        each.synced = True
        self._let_go(each.table.rm)


def _problem(each: _Bringing) -> str:
    """What does not work of an informer; "": everything does."""
    who = f"informer {each.name} ({each.table.kind})"
    then = "its nodes take nothing new" if each.drains else "what it said last still counts"
    if each.died:
        return f"{who}: {each.died}; {then}"
    if each.cache.last_error:
        return f"{who}: {each.doing()}"
    if not each.synced and not each.given_up:
        return f"{who} has not synced: {each.doing()}"
    if each.informer.state is SourceState.STALE:
        return f"{who}: {each.informer.last_error or each.informer.reason}; {then}"
    if distrusted := each.informer.distrusted():
        first, *others = distrusted
        more = f" (and of {len(others)} more)" if others else ""
        return f"{who}: what it says of {first.kind} {first.object_id}{more} cannot be relied on: {first.text}"
    if each.outlet is not None and (why := each.outlet_died or each.outlet.last_error):
        return f"{who}: offers cannot be given back: {why}"
    return ""
