"""The SharedIndexInformer: keeps what a source said, and tells event handlers what changes (seed 004).

``SharedIndexInformer(name, source, clock)``, ``add_event_handler(handler)``, ``run()`` in a task, and ``has_synced()``
becomes true. The steps, again and again:

1. list      everything; only the difference to the store goes on (ADDED, MODIFIED, DELETED are decided here)
2. watch     from the listing's cursor; each change in its order
3. break     the watch failed: it goes on from its cursor after a wait; where it cannot (CursorExpired, no cursor, or an
             answer that makes no sense), list again

Its states, told to ``on_state``:

========  ================================  ========================================================================
state     becomes                           when
========  ================================  ========================================================================
LISTING   LIVE                              the first listing is in the store and was handed to the handlers
LISTING   STALE                             the same, and the listing was not whole
LISTING   STALE                             :meth:`give_up`: nobody waits for it any longer
LIVE      STALE                             the source was not heard for ``stale_after_s``
STALE     LIVE                              it was heard again (and was whole once)
========  ================================  ========================================================================

heard
    A source is heard when it answers a listing, and with each item of a watch, an empty one too. A watch has to give
    one at least every :data:`HEARTBEAT_S`, or nobody could tell a quiet source from one that is gone: a watch that was
    silent for ``stale_after_s`` (and three heartbeats) is cut off and begun anew.

late, double
    A version that is not newer than the known one is dropped, and so is a content that is known. The version of a
    deletion is remembered, so that a late change does not bring the object back; a listing may.

distrusted
    A document of a known object that cannot be read, two contents of one object in one listing, a handler that failed
    on it: the handlers' ``distrust`` is called, and what was said before stays, until it is said anew.

whole
    A listing is whole if of each document it can be told whose it is. What a listing lacks that is not whole is
    distrusted, not deleted, and it is listed again every :data:`RELIST_S`. A source is LIVE only once a listing of it
    was whole, because LIVE also says that what an earlier life said and this one did not is gone.

slices
    Whatever is long is done in slices of :data:`SLICE` objects; in between others run, and the handlers' ``ready`` is
    waited for (the back-pressure of the log).

Time comes from the clock and from ``sleep`` only.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from muster_bus.clock import Clock
from muster_service.secrets import masked_text
from muster_service.waits import growing_s

from muster_scheduler.core.external import ExternalAllocation, ExternalKind, ExternalObject, SourceState
from muster_scheduler.external import metrics
from muster_scheduler.external.checks import plain
from muster_scheduler.external.contract import ChangeType, Delta, Document, EventHandler, Listing, ListWatch
from muster_scheduler.external.documents import Said, read_document, read_identity
from muster_scheduler.external.errors import (
    BadDocument,
    CursorExpired,
    ExternalError,
    SourceError,
    SourceUnavailable,
)
from muster_scheduler.external.problems import Problem, Problems
from muster_scheduler.external.registration import Distrust, Forget, Predicate, Ready, Registration
from muster_scheduler.external.store import IndexFunction, Key, Store

log = structlog.get_logger(__name__)

HEARTBEAT_S = 5.0
RELIST_S = 60.0
NOT_WHOLE = "a part of its listing cannot be read, and it cannot be told whose that is: nothing is taken for gone"
# 64 objects take 1 to 3 ms.
SLICE = 64
# A watch that held for so long was good: the next failure is the first one of a new row.
_SETTLED_S = 5.0
# What is remembered of objects that are not in the store: bounds for sources that never stop making up names.
_DELETIONS_MAX = _UNREAD_MAX = 10_000
STATE_NUMBERS = {SourceState.LISTING: 0, SourceState.LIVE: 1, SourceState.STALE: 2}

OnState = Callable[[SourceState, str], None]
Sleep = Callable[[float], Awaitable[None]]


class _Untold(SourceError):
    """A change came of which cannot be told whose it is: only a listing can say what was changed."""


class _Again(CursorExpired):
    """The last listing was not whole, and it is time for another one."""


class SharedIndexInformer:
    """See the module's words.

    :param name: of the source, for logs and metrics.
    :param stale_after_s: a source that was not heard for so long is STALE; 0: never.
    :param resync_s: default for handlers: each object is given to ``update`` again in every such period; 0: never.
    :param indexers: beside ``node``.
    :param on_state: told of each new state, with the reason of STALE. It must not block.
    :param wait_min_s: after the first failure of a row; doubled with each one, up to ``wait_max_s``.
    :param list_timeout_s: a listing that takes longer is given up and begun anew.
    :param sleep: how time is waited for.
    :param log_context: for structlog.
    """

    def __init__(
        self,
        name: str,
        source: ListWatch,
        clock: Clock,
        *,
        stale_after_s: float = 30.0,
        resync_s: float = 0.0,
        indexers: Mapping[str, IndexFunction] | None = None,
        on_state: OnState | None = None,
        wait_min_s: float = 0.2,
        wait_max_s: float = 10.0,
        list_timeout_s: float = 120.0,
        sleep: Sleep = asyncio.sleep,
        log_context: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.store = Store(indexers)
        self.state = SourceState.LISTING
        self.reason = ""
        self.last_error = ""
        self._source = source
        self._clock = clock
        self._sleep = sleep
        self._stale_after_s = stale_after_s
        self._silent_after_s = max(stale_after_s, 3 * HEARTBEAT_S)
        self._list_timeout_s = list_timeout_s
        self._resync_s = resync_s
        self._wait_min_s, self._wait_max_s = wait_min_s, wait_max_s
        self._on_state = on_state
        self._log = log.bind(source=name, **(log_context or {}))
        self._registrations: list[Registration] = []
        self._running = False
        self._synced = asyncio.Event()
        # -- the way through list and watch
        self._cursor = ""
        self._must_list = True
        self._is_whole = self._was_whole = False
        self._listed_at = clock.monotonic()
        self._listing_since: float | None = None
        self._watching = False
        self._failing = False
        self._heard_at = clock.monotonic()
        self._attempt: asyncio.Task[None] | None = None
        self._cut = ""  # why the attempt is cut off
        self._deletions: OrderedDict[Key, int] = OrderedDict()
        # Distrusted, and not in the store: the scheduler may know them from an earlier life.
        self._unread: dict[Key, None] = {}
        # -- what is told to people
        self._problems = Problems(clock, self._log)
        self._counts = dict.fromkeys([*ChangeType, "DROPPED"], 0)

    # ---- for those who use it ---------------------------------------------------------------------------------------

    def add_event_handler(
        self,
        handler: EventHandler,
        predicate: Predicate | None = None,
        resync_s: float | None = None,
        distrust: Distrust | None = None,
        ready: Ready | None = None,
        forget: Forget | None = None,
    ) -> Registration:
        """Adds a handler; while the informer runs, too: then it is told of everything that is there.

        :param predicate: the handler sees only what this is true for; an object that starts or stops to be so is added
            or deleted (seed 004: FilteringResourceEventHandler).
        :param resync_s: None: as the informer's.
        :param distrust: called for what cannot be relied on any more; of a cache: ``cache.distrust``.
        :param ready: awaited before each slice; of a cache: ``cache.ready``.
        :param forget: called for what is gone and could not be read since the informer started, so that the handler
            never saw it; of a cache: ``cache.delete``.
        """
        registration = Registration(handler, predicate, distrust, ready, forget)
        registration.resync_s = self._resync_s if resync_s is None else resync_s
        self._registrations.append(registration)
        if self._running:
            self._start(registration)
            if len(self.store):
                registration.caught_up = False
                registration.tasks.append(asyncio.create_task(self._catch_up(registration)))
        return registration

    def has_synced(self) -> bool:
        """Whether everything of the first listing is in the store and was handed to the handlers (seed 004)."""
        return self._synced.is_set() and all(registration.caught_up for registration in self._registrations)

    async def wait_synced(self) -> None:
        """Returns when the first listing was handed to the handlers."""
        await self._synced.wait()

    def give_up(self, reason: str) -> None:
        """Nobody waits for the first listing any longer: LISTING becomes STALE. It goes on trying."""
        if self.state is SourceState.LISTING:
            self._tell(SourceState.STALE, reason)

    @property
    def problems(self) -> Sequence[Problem]:
        """What it and the handlers did wrong, newest first; bounded."""
        return self._problems.newest()

    def distrusted(self) -> list[Problem]:
        """The objects that cannot be relied on now, each with what was wrong with it last; newest first, bounded."""
        keys = set(self._unread).union(*(registration.doubtful for registration in self._registrations))
        found: dict[tuple[str, str], Problem] = {}
        for problem in self.problems:
            if (problem.kind, problem.object_id) in keys:
                found.setdefault((problem.kind, problem.object_id), problem)
        return list(found.values())

    def doing(self) -> str:
        """What it is at, or what keeps it from that, for people."""
        if self.last_error:
            return self.last_error
        if self._listing_since is not None:
            return f"waiting for the listing for {self._clock.monotonic() - self._listing_since:.1f} s"
        return self.state.value if self.has_synced() else f"handing over the listing, {len(self.store)} objects so far"

    async def run(self) -> None:
        """Follows the source until it is cancelled; then the source is closed."""
        self._running = True
        began = self._heard_at = self._clock.monotonic()
        self._tell(SourceState.LISTING, "")
        for registration in self._registrations:
            self._start(registration)
        watchdog = asyncio.create_task(self._watch_over())
        try:
            await self._follow(began)
        finally:
            self._running = False
            tasks = [watchdog, *(task for each in self._registrations for task in each.tasks)]
            if self._attempt is not None:
                tasks.append(self._attempt)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # nothing is lost by a source that cannot be closed
                await self._source.close()

    # ---- list, watch, and again -----------------------------------------------------------------------------------

    async def _follow(self, began: float) -> None:
        failures = 0
        while True:
            started = self._clock.monotonic()
            self._attempt = asyncio.create_task(self._list_and_watch(began))
            await asyncio.wait({self._attempt})
            attempt, self._attempt = self._attempt, None
            error = SourceUnavailable(self._cut) if attempt.cancelled() else attempt.exception()
            self._cut = ""
            if error is not None and not isinstance(error, Exception):
                raise error
            expired = isinstance(error, CursorExpired)
            if not expired:
                self._failed(error)
            # 1. where it goes on
            if not isinstance(error, SourceUnavailable) or not self._cursor:
                self._must_list = True
            # 2. when: at once only after a watch that was good and whose cursor is gone
            if self._heard_at >= started and self._clock.monotonic() - started >= _SETTLED_S:
                failures = 0
            if not expired or failures:
                await self._sleep(growing_s(failures - expired, self._wait_min_s, self._wait_max_s))
            failures += 1

    async def _list_and_watch(self, began: float) -> None:
        if self._must_list:
            self._listing_since = self._clock.monotonic()
            try:
                listing = await self._source.list()
                self._hear()
            finally:
                self._listing_since = None
            self._is_whole = await self._take_listing(listing)
            self._was_whole |= self._is_whole
            self._listed_at = self._clock.monotonic()
            self._cursor, self._must_list = listing.cursor, False
            metrics.listings.labels(self.name).inc()
            self._hear()
            if not self._synced.is_set():
                seconds = self._clock.monotonic() - began
                metrics.sync_seconds.labels(self.name).set(seconds)
                self._log.info("informer synced", objects=len(self.store), seconds=round(seconds, 3))
                self._synced.set()
            self._answered()
        watch = self._source.watch(self._cursor)
        self._watching = True
        try:
            async for deltas in watch:
                self._hear()
                if deltas:
                    self._watching = False  # what follows is our time, not the source's
                    await self._take_deltas(deltas)
                    self._watching = True
                    self._hear()
                self._answered()
                if not self._is_whole and self._heard_at - self._listed_at >= RELIST_S:
                    raise _Again
        finally:
            self._watching = False
            await _close(watch)
        raise SourceUnavailable("the watch ended")

    def _hear(self) -> None:
        self._heard_at = self._clock.monotonic()
        if self._failing:
            self._failing = False
            self.last_error = ""
            self._log.info("source answers again")

    def _answered(self) -> None:
        """What follows for its state from being heard."""
        if not self._synced.is_set():
            return
        wanted = (SourceState.LIVE, "") if self._was_whole else (SourceState.STALE, NOT_WHOLE)
        if (self.state, self.reason) != wanted:
            self._tell(*wanted)

    def _failed(self, error: BaseException | None) -> None:
        text = _text_of(error)
        metrics.failures.labels(self.name).inc()
        if not self._failing or text != self.last_error:
            self._problems.add("", "", text)
        self._failing, self.last_error = True, text

    def _tell(self, state: SourceState, reason: str) -> None:
        self.state, self.reason = state, plain(reason)
        metrics.state.labels(self.name).set(STATE_NUMBERS[state])
        if reason:
            self._log.warning("source's state", state=state.value, reason=self.reason)
        else:
            self._log.info("source's state", state=state.value)
        if self._on_state is not None:
            self._on_state(state, self.reason)

    async def _watch_over(self) -> None:
        """Looks after the source while nothing comes of it."""
        step_s = min(1.0, self._stale_after_s / 4) if self._stale_after_s else 1.0
        while True:
            await self._sleep(step_s)
            now = self._clock.monotonic()
            is_listing, silent_s = self._listing_since is not None, now - self._heard_at
            metrics.silent_seconds.labels(self.name).set(silent_s if is_listing or self._watching else 0)
            # 1. what does not come to an end is cut off
            if self._attempt is not None and not self._cut:
                if self._listing_since is not None and now - self._listing_since >= self._list_timeout_s:
                    self._cut = f"no listing within {self._list_timeout_s:g} s"
                elif self._watching and self._stale_after_s and silent_s >= self._silent_after_s:
                    self._cut = f"silent for {silent_s:.0f} s"
                if self._cut:
                    self._attempt.cancel()
            # 2. what was not heard is stale
            is_lost = self._stale_after_s and (self._failing or is_listing or self._cut)
            if self.state is SourceState.LIVE and is_lost and silent_s >= self._stale_after_s:
                why = self._cut or self.last_error or "waiting for a listing"
                self._tell(SourceState.STALE, f"not heard for {silent_s:.0f} s: {why}")

    # ---- what it said ---------------------------------------------------------------------------------------------

    async def _take_listing(self, listing: Listing) -> bool:
        """Takes everything that there is. False: it was not whole."""
        initial = not self._synced.is_set()
        # 1. read all of it
        said: dict[ExternalKind, dict[str, Said]] = {kind: {} for kind in ExternalKind}
        bad: dict[Key, ExternalAllocation | None] = {}
        is_whole = True
        async for documents in self._slices(listing.documents):
            for document in documents:
                is_whole &= self._read_listed(document, said, bad)
        for key in bad:
            said[key.kind].pop(key.object_id, None)
        # 2. what is there; parents first
        for objects in said.values():
            async for some in self._slices(list(objects.values())):
                for each in some:
                    self._take(each, initial=initial, is_listed=True)
        # 3. what is not there any more; parents last
        gone = [key for key in self.store if key.object_id not in said[key.kind] and key not in bad]
        gone.sort(key=lambda key: _RANKS[key.kind], reverse=True)
        async for keys in self._slices(gone):
            for key in keys:
                if is_whole:
                    self._remove(key)
                else:
                    text = "it is not in a listing of which a part cannot be read"
                    self._problem(key.kind, key.object_id, text)
                    self._distrust(key)
        if is_whole:
            for key in [key for key in self._unread if key.object_id not in said[key.kind] and key not in bad]:
                self._forget(key)
        # 4. what cannot be relied on
        for key, believed in bad.items():
            self._distrust(key, believed=believed)
        return is_whole

    def _read_listed(
        self,
        document: Document,
        said: dict[ExternalKind, dict[str, Said]],
        bad: dict[Key, ExternalAllocation | None],
    ) -> bool:
        """Reads one document of a listing. False: it cannot be told whose it is.

        :param bad: what cannot be relied on, with what to believe of it.
        """
        try:
            each = read_document(document)
        except BadDocument as error:
            self._problem(error.kind, error.object_id, str(error))
            if not (error.kind and error.object_id):
                return False
            bad[Key(ExternalKind(error.kind), error.object_id)] = _believed(error)
            return True
        key = Key(each.kind, each.object_id)
        other = said[each.kind].setdefault(each.object_id, each)
        if other is not each:
            if other.what != each.what:
                bad[key] = other.what if isinstance(other.what, ExternalAllocation) else None
                text = "it is in one listing twice, with different contents"
                self._problem(key.kind, key.object_id, text)
            elif (each.version or 0) > (other.version or 0):
                said[each.kind][each.object_id] = each
        return True

    async def _take_deltas(self, deltas: Sequence[Delta]) -> None:
        untold = ""
        async for some in self._slices(deltas):
            for delta in some:
                try:
                    if delta.type == ChangeType.DELETED:
                        kind, object_id, version = read_identity(delta.document)
                        self._take_deletion(Key(kind, object_id), version)
                    else:
                        self._take(read_document(delta.document), initial=False)
                except BadDocument as error:
                    self._problem(error.kind, error.object_id, str(error))
                    if error.kind and error.object_id:
                        self._distrust(Key(ExternalKind(error.kind), error.object_id), believed=_believed(error))
                    else:
                        untold = str(error)
                self._cursor = delta.cursor
        if untold:
            raise _Untold(f"a change of which cannot be told whose it is: {untold}")

    def _take(self, said: Said, *, initial: bool, is_listed: bool = False) -> None:
        """Takes an object's state. The order of the conditions is that of their likeliness."""
        key, what, version = Key(said.kind, said.object_id), said.what, said.version
        kept = self.store.kept(key)
        # Those that are told; who doubts is told again of what is known.
        to = [registration for registration in self._registrations if key in registration.doubtful]
        if kept is not None:
            is_same = what == kept.what
            if version is not None and kept.version is not None and version <= kept.version:
                if version < kept.version or not to:
                    self._drop(key, version, kept.version, is_same=is_same, is_listed=is_listed)
                    return
            elif is_same and not to:
                if version is not None:
                    self.store.put(key, kept.what, version)
                self._counts["DROPPED"] += 1
                return
            self._counts[ChangeType.MODIFIED] += 1
            if not is_same:
                to = self._registrations
        else:
            deleted = self._deletions.get(key)
            if deleted is not None:
                if not is_listed and version is not None and version <= deleted:
                    self._counts["DROPPED"] += 1
                    return
                del self._deletions[key]
            self._counts[ChangeType.ADDED] += 1
            to = self._registrations
        self.store.put(key, what, version)
        self._unread.pop(key, None)
        for registration in to:
            self._deliver(registration, key, what, initial=initial)

    def _drop(self, key: Key, version: int, known: int, *, is_same: bool, is_listed: bool) -> None:
        """Drops a version that is not newer than the known one. Told is what should not be; doubles are usual."""
        self._counts["DROPPED"] += 1
        if version == known and not is_same:
            text = f"version {version} is known with another content, expected a newer version"
            self._problem(key.kind, key.object_id, text)
        elif version < known and is_listed:
            text = f"version {version} is listed and {known} is known, expected none that is older"
            self._problem(key.kind, key.object_id, text)

    def _take_deletion(self, key: Key, version: int | None) -> None:
        kept = self.store.kept(key)
        if version is not None:
            if kept is not None and kept.version is not None and version < kept.version:
                self._counts["DROPPED"] += 1
                return  # late: the object was changed, or made anew, after this
            self._deletions[key] = max(version, self._deletions.pop(key, 0))
            if len(self._deletions) > _DELETIONS_MAX:
                self._deletions.popitem(last=False)
        if kept is not None:
            self._remove(key)
        elif key in self._unread:
            self._counts[ChangeType.DELETED] += 1
            self._forget(key)
        else:
            self._counts["DROPPED"] += 1

    def _remove(self, key: Key) -> None:
        self._counts[ChangeType.DELETED] += 1
        self.store.remove(key)
        for registration in self._registrations:
            self._deliver(registration, key, None, initial=False)

    def _deliver(self, registration: Registration, key: Key, what: ExternalObject | None, *, initial: bool) -> None:
        try:
            registration.deliver(key, what, initial=initial)
        except Exception as error:
            handler = type(registration.handler).__name__
            place = "" if isinstance(error, ExternalError) else f" ({_place_of(error)})"
            text = f"{handler}: {type(error).__name__}: {masked_text(str(error))}{place}"
            self._problem(key.kind, key.object_id, text)
            self._distrust(key, (registration,), what if isinstance(what, ExternalAllocation) else None)

    def _distrust(
        self,
        key: Key,
        registrations: Iterable[Registration] | None = None,
        believed: ExternalAllocation | None = None,
    ) -> None:
        """What was said of the object cannot be relied on. (Of one that is not in the store the scheduler may know from
        an earlier life; of one that nobody knows, ``believed`` says what to believe.)"""
        if self.store.kept(key) is None:
            self._unread[key] = None
            if len(self._unread) > _UNREAD_MAX:
                del self._unread[next(iter(self._unread))]
        for registration in self._registrations if registrations is None else registrations:
            known = self.store.get(*key)
            if what := known or believed:
                with suppress(Exception):  # a predicate that fails was told of
                    if registration.predicate is not None and not registration.predicate(what):
                        continue
            if known:
                registration.doubtful[key] = None
            if registration.distrust is None:
                continue
            if believed is None:
                registration.distrust(key.kind, key.object_id)
            else:
                registration.distrust(key.kind, key.object_id, believed)

    def _forget(self, key: Key) -> None:
        """What could not be read is gone."""
        del self._unread[key]
        for registration in self._registrations:
            if registration.forget is not None:
                registration.forget(key.kind, key.object_id)

    # ---- in slices ------------------------------------------------------------------------------------------------

    async def _slices(self, things: Sequence[Any], pause_s: float = 0.0) -> AsyncIterator[Sequence[Any]]:
        """The things, a slice at a time; others run in between."""
        for start in range(0, len(things), SLICE):
            for registration in self._registrations:
                if registration.ready is not None:
                    await registration.ready()
            if pause_s:
                await self._sleep(pause_s)
            elif start:
                await asyncio.sleep(0)
            yield things[start : start + SLICE]
            self._count()

    def _count(self) -> None:
        """Brings what was counted to the metrics."""
        for kind, count in self._counts.items():
            if count:
                metrics.changes.labels(self.name, str(kind)).inc(count)
                self._counts[kind] = 0
        for kind in ExternalKind:
            metrics.objects.labels(self.name, kind.value).set(self.store.count(kind))

    def _start(self, registration: Registration) -> None:
        if registration.resync_s > 0:
            registration.tasks.append(asyncio.create_task(self._resync(registration)))

    async def _resync(self, registration: Registration) -> None:
        """Gives every object to the handler again, once in each period, spread over half of it."""
        while True:
            await self._sleep(registration.resync_s / 2)
            keys = self.store.keys()
            pause_s = registration.resync_s / 2 / max(1, -(-len(keys) // SLICE))
            if not keys:
                await self._sleep(pause_s)
            async for some in self._slices(keys, pause_s):
                self._give(registration, some, initial=False)

    async def _catch_up(self, registration: Registration) -> None:
        """Tells a handler that came late what is there. What changes meanwhile it is told as everyone."""
        async for some in self._slices(self.store.keys()):
            self._give(registration, [key for key in some if key not in registration.told], initial=True)
        registration.caught_up = True

    def _give(self, registration: Registration, keys: Iterable[Key], *, initial: bool) -> None:
        for key in keys:
            if kept := self.store.kept(key):
                self._deliver(registration, key, kept.what, initial=initial)

    def _problem(self, kind: str, object_id: str, text: str) -> None:
        metrics.problems.labels(self.name).inc()
        self._problems.add(kind, object_id, text)


_RANKS = {kind: rank for rank, kind in enumerate(ExternalKind)}


async def _close(watch: AsyncIterator[Sequence[Delta]]) -> None:
    """Ends a watch where it stands, if it is a generator."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        with suppress(Exception):
            await close()


def _text_of(error: BaseException | None) -> str:
    """A failure for people. What sources raise on purpose says it itself; of others the place matters too."""
    if isinstance(error, ExternalError):
        return plain(masked_text(str(error)) or type(error).__name__)
    if error is None:
        return "the watch ended"
    return plain(f"{type(error).__name__}: {masked_text(str(error))} ({_place_of(error)})")


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _believed(error: BadDocument) -> ExternalAllocation | None:
    """An allocation that cannot be read is on its node all the same, of unknown size."""
    return ExternalAllocation(error.object_id, error.node_id, {}) if error.node_id else None
