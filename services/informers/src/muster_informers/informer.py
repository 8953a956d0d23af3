"""The SharedIndexInformer: stores a source's objects and tells event handlers about changes (the event handler
framework).

Use: ``SharedIndexInformer(name, source, clock)``, ``add_event_handler(handler)``, ``run()`` in a task; then
``has_synced()`` becomes true. The informer repeats three steps:

1. list      all objects; handlers get only the difference to the store (it decides ADDED, MODIFIED, DELETED)
2. watch     from the listing's cursor; each change in order
3. break     the watch failed: after a wait it continues from its cursor; without a usable cursor (CursorExpired, no
             cursor, or a nonsensical answer) the informer lists again

Its states, reported to ``on_state``:

========  ================================  ========================================================================
state     becomes                           when
========  ================================  ========================================================================
LISTING   LIVE                              the first listing is in the store and was handed to the handlers
LISTING   STALE                             the same, but the listing was not whole
LISTING   STALE                             :meth:`stop_waiting`: the scheduler waits no longer for the listing
LIVE      STALE                             the source was not heard for ``stale_after_s``
STALE     LIVE                              it was heard again (and a listing was whole once)
========  ================================  ========================================================================

heard
    A source is *heard* when it answers a listing, and with each item of a watch, even an empty one. A watch must give
    an item at least every :data:`HEARTBEAT_S`; otherwise a quiet source and a lost one would look the same. The
    informer cuts off a watch that was silent for ``stale_after_s`` (and three heartbeats), and starts it again. Only
    time counts in which this process could listen (``muster_runtime.watchdog``).

late or repeated
    A version that is not newer than the known one is dropped; so is a known content. The informer remembers the
    version of a deletion, so that a late change does not bring the object back. A listing may bring it back.

distrusted
    An object is distrusted when its document cannot be read, when one listing has two contents of it, or when a handler
    failed on it. The informer calls the handlers' ``distrust``; the object's last state stays until a new one comes.

whole
    A listing is whole if each document names its object. An object that is missing in a listing that is not whole is
    distrusted, not deleted, and the informer lists again every :data:`RELIST_S`. A source is LIVE only once a listing
    was whole, because LIVE also means: objects of an earlier run that the source has not named again are gone.

slices
    Long work is done in slices of :data:`SLICE` objects. Between two slices other tasks run, and the informer waits for
    the handlers' ``ready`` (the back-pressure of the log).

The informer takes time from the clock and from ``sleep`` only.
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
from muster_core.external.errors import (
    BadDocument,
    CursorExpired,
    ExternalError,
    SourceError,
    SourceUnavailable,
)
from muster_core.external.model import ExternalAllocation, ExternalKind, ExternalObject, SourceState
from muster_core.external.validation import sanitize
from muster_runtime.backoff import backoff_s
from muster_runtime.processor_time import own_usage
from muster_runtime.secrets import masked_text
from muster_runtime.watchdog import LOOK_S, Reading, Usage, Watchdog, look_every_s

from muster_informers import metrics
from muster_informers.contract import ChangeType, Delta, Document, EventHandler, Listing, ListWatch
from muster_informers.documents import DocumentContent, read_document, read_identity
from muster_informers.handler_registration import Distrust, Forget, HandlerRegistration, Predicate, Ready
from muster_informers.indexer import IndexFunction, ObjectIndexer, SourceKey
from muster_informers.problems import SourceProblem, SourceProblems

log = structlog.get_logger(__name__)

HEARTBEAT_S = 5.0
RELIST_S = 60.0
NOT_WHOLE = "a part of its listing cannot be read and names no object: no object counts as removed"
# 64 objects take 1 to 3 ms of work.
SLICE = 64
# After a watch that lasted so long, the next failure counts as the first of a new series.
_STABLE_S = 5.0
# Bounds of what is remembered about objects outside of the store, against sources that invent names without end.
_DELETIONS_MAX = _UNREAD_MAX = 10_000
STATE_NUMBERS = {SourceState.LISTING: 0, SourceState.LIVE: 1, SourceState.STALE: 2}

OnState = Callable[[SourceState, str], None]
Sleep = Callable[[float], Awaitable[None]]


class _UnnamedChange(SourceError):
    """A change does not name its object: only a new listing can show what has changed."""


class _IncompleteListing(CursorExpired):
    """The last listing was not whole, and the next one is due."""


class SharedIndexInformer:
    """See the module's docstring.

    :param name: of the source, for logs and metrics.
    :param stale_after_s: a source that was not heard for so long is STALE; 0: never.
    :param resync_s: default for handlers: each object goes to ``update`` again once in this period; 0: never.
    :param indexers: further indexers; the index ``node`` is always there.
    :param on_state: called with each new state, and with the reason of STALE. It must not block.
    :param wait_min_s: wait after the first failure of a series; doubled with each failure, up to ``wait_max_s``.
    :param list_timeout_s: a listing that takes longer is abandoned and started again.
    :param sleep: waits for a time; tests give a manual clock's.
    :param usage: this process's, for watchdogs: times without an answer are available (``muster_runtime.watchdog``).
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
        usage: Callable[[], Usage] = own_usage,
        log_context: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.store = ObjectIndexer(indexers)
        self.state = SourceState.LISTING
        self.reason = ""
        self.last_error = ""
        self._source = source
        self._clock = clock
        self._sleep, self._usage = sleep, usage
        self._stale_after_s = stale_after_s
        self._silent_after_s = max(stale_after_s, 3 * HEARTBEAT_S)
        self._list_timeout_s = list_timeout_s
        self._resync_s = resync_s
        self._wait_min_s, self._wait_max_s = wait_min_s, wait_max_s
        self._on_state = on_state
        self._log = log.bind(source=name, **(log_context or {}))
        self._registrations: list[HandlerRegistration] = []
        self._running = False
        self._synced = asyncio.Event()
        # -- the state of list and watch
        self._cursor = ""
        self._must_list = True
        self._is_whole = self._was_whole = False
        self._listed_at = clock.monotonic()
        self._listing_since: float | None = None
        self._watching = False
        self._failing = False
        self._last_contact_at = clock.monotonic()
        self._attempt: asyncio.Task[None] | None = None
        self._cut = ""  # the reason why the attempt is cut off
        self._deletions: OrderedDict[SourceKey, int] = OrderedDict()
        # Distrusted objects that are not in the store: the scheduler may know them from an earlier run.
        self._unread: dict[SourceKey, None] = {}
        # -- for operators
        self._problems = SourceProblems(clock, self._log)
        self._counts = dict.fromkeys([*ChangeType, "DROPPED"], 0)

    # ---- use --------------------------------------------------------------------------------------------------------

    def add_event_handler(
        self,
        handler: EventHandler,
        predicate: Predicate | None = None,
        resync_s: float | None = None,
        distrust: Distrust | None = None,
        ready: Ready | None = None,
        forget: Forget | None = None,
    ) -> HandlerRegistration:
        """Adds a handler. While the informer runs, the new handler first gets all objects in the store.

        :param predicate: the handler sees only objects for which this is true. It gets ADD or DELETE when an object
            starts or stops to pass (the event handler framework: FilteringResourceEventHandler).
        :param resync_s: None: the informer's.
        :param distrust: called for an object that is not reliable any more; a cache's ``cache.distrust``.
        :param ready: awaited before each slice; a cache's ``cache.ready``.
        :param forget: called for a removed object that was never readable since the informer started, so that the
            handler never got it; a cache's ``cache.delete``.
        """
        registration = HandlerRegistration(handler, predicate, distrust, ready, forget)
        registration.resync_s = self._resync_s if resync_s is None else resync_s
        self._registrations.append(registration)
        if self._running:
            self._start(registration)
            if len(self.store):
                registration.caught_up = False
                registration.tasks.append(asyncio.create_task(self._catch_up(registration)))
        return registration

    def has_synced(self) -> bool:
        """Whether the first listing is in the store and the handlers have all of it (the event handler framework)."""
        return self._synced.is_set() and all(registration.caught_up for registration in self._registrations)

    async def wait_synced(self) -> None:
        """Returns when the handlers have the first listing."""
        await self._synced.wait()

    def stop_waiting(self, reason: str) -> None:
        """Ends the wait for the first listing: LISTING becomes STALE. The informer continues to try."""
        if self.state is SourceState.LISTING:
            self._set_state(SourceState.STALE, reason)

    @property
    def problems(self) -> Sequence[SourceProblem]:
        """The problems of the source and of the handlers, newest first; bounded."""
        return self._problems.newest()

    def distrusted(self) -> list[SourceProblem]:
        """The distrusted objects, each with its last problem; newest first, bounded."""
        keys = set(self._unread).union(*(registration.doubtful for registration in self._registrations))
        last_problems: dict[tuple[str, str], SourceProblem] = {}
        for problem in self.problems:
            if (problem.kind, problem.object_id) in keys:
                last_problems.setdefault((problem.kind, problem.object_id), problem)
        return list(last_problems.values())

    def activity(self) -> str:
        """The present activity or the last error, for operators."""
        if self.last_error:
            return self.last_error
        if self._listing_since is not None:
            return f"waiting for the listing for {self._clock.monotonic() - self._listing_since:.1f} s"
        return self.state.value if self.has_synced() else f"handing over the listing, {len(self.store)} objects so far"

    async def run(self) -> None:
        """Follows the source until cancelled, then closes the source."""
        self._running = True
        began = self._last_contact_at = self._clock.monotonic()
        self._set_state(SourceState.LISTING, "")
        for registration in self._registrations:
            self._start(registration)
        watchdog = asyncio.create_task(self._watch_over())
        try:
            await self._follow(began)
        finally:
            self._running = False
            tasks = [watchdog, *(task for registration in self._registrations for task in registration.tasks)]
            if self._attempt is not None:
                tasks.append(self._attempt)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # a source that cannot be closed loses nothing
                await self._source.close()

    # ---- list, watch, and repeat ------------------------------------------------------------------------------------

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
            # 1. find the place to continue from
            if not isinstance(error, SourceUnavailable) or not self._cursor:
                self._must_list = True
            del attempt, error  # (kept in this frame, it would be part of a circle through its traceback)
            # 2. choose the time: at once only if the watch was good and only its cursor has expired
            if self._last_contact_at >= started and self._clock.monotonic() - started >= _STABLE_S:
                failures = 0
            if not expired or failures:
                await self._sleep(backoff_s(failures - expired, self._wait_min_s, self._wait_max_s))
            failures += 1

    async def _list_and_watch(self, began: float) -> None:
        if self._must_list:
            self._listing_since = self._clock.monotonic()
            try:
                listing = await self._source.list()
                self._note_alive()
            finally:
                self._listing_since = None
            self._is_whole = await self._apply_listing(listing)
            self._was_whole |= self._is_whole
            self._listed_at = self._clock.monotonic()
            self._cursor, self._must_list = listing.cursor, False
            metrics.listings.labels(self.name).inc()
            self._note_alive()
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
                self._note_alive()
                if deltas:
                    self._watching = False  # from here on the informer's own time counts, not the source's
                    await self._apply_deltas(deltas)
                    self._watching = True
                    self._note_alive()
                self._answered()
                if not self._is_whole and self._last_contact_at - self._listed_at >= RELIST_S:
                    raise _IncompleteListing
        finally:
            self._watching = False
            await _close(watch)
        raise SourceUnavailable("the watch ended")

    def _note_alive(self) -> None:
        self._last_contact_at = self._clock.monotonic()
        if self._failing:
            self._failing = False
            self.last_error = ""
            self._log.info("source answers again")

    def _answered(self) -> None:
        """Updates the state after the source was heard."""
        if not self._synced.is_set():
            return
        expected = (SourceState.LIVE, "") if self._was_whole else (SourceState.STALE, NOT_WHOLE)
        if (self.state, self.reason) != expected:
            self._set_state(*expected)

    def _failed(self, error: BaseException | None) -> None:
        text = _text_of(error)
        metrics.failures.labels(self.name).inc()
        if not self._failing or text != self.last_error:
            self._problems.add("", "", text)
        self._failing, self.last_error = True, text

    def _set_state(self, state: SourceState, reason: str) -> None:
        self.state, self.reason = state, sanitize(reason)
        metrics.state.labels(self.name).set(STATE_NUMBERS[state])
        if reason:
            self._log.warning("source's state", state=state.value, reason=self.reason)
        else:
            self._log.info("source's state", state=state.value)
        if self._on_state is not None:
            self._on_state(state, self.reason)

    async def _watch_over(self) -> None:
        """Watches over a source that is silent."""
        step_s = look_every_s(self._stale_after_s) if self._stale_after_s else LOOK_S
        heard, listing = Watchdog(), Watchdog()
        while True:
            due_s = self._clock.monotonic() + step_s
            await self._sleep(step_s)
            now_s = self._clock.monotonic()
            is_listing = self._listing_since is not None
            # (While this process gets no processor, no source is heard.)
            for watchdog, mark in ((heard, self._last_contact_at), (listing, self._listing_since)):
                if not watchdog.moves(mark):
                    watchdog.look(Reading(now_s, now_s - due_s, self._usage()), self._silent_after_s)
            silent_s = heard.available_s
            metrics.silent_seconds.labels(self.name).set(silent_s if is_listing or self._watching else 0)
            # 1. cut off a listing or a watch that does not end
            if self._attempt is not None and not self._cut:
                if is_listing and listing.available_s >= self._list_timeout_s:
                    self._cut = f"no listing within {self._list_timeout_s:g} s"
                elif self._watching and self._stale_after_s and silent_s >= self._silent_after_s:
                    self._cut = f"silent for {silent_s:.0f} s"
                if self._cut:
                    self._attempt.cancel()
            # 2. a source that was not heard for long is stale
            is_lost = self._stale_after_s and (self._failing or is_listing or self._cut)
            if self.state is SourceState.LIVE and is_lost and silent_s >= self._stale_after_s:
                reason = self._cut or self.last_error or "waiting for a listing"
                self._set_state(SourceState.STALE, f"not heard for {silent_s:.0f} s: {reason}")

    # ---- listings and changes -------------------------------------------------------------------------------------

    async def _apply_listing(self, listing: Listing) -> bool:
        """Takes a listing. False: it was not whole."""
        initial = not self._synced.is_set()
        # 1. read all documents
        listed: dict[ExternalKind, dict[str, DocumentContent]] = {kind: {} for kind in ExternalKind}
        bad: dict[SourceKey, ExternalAllocation | None] = {}
        is_whole = True
        async for documents in self._slices(listing.documents):
            for document in documents:
                is_whole &= self._read_listed(document, listed, bad)
        for key in bad:
            listed[key.kind].pop(key.object_id, None)
        # 2. the objects that exist; parents first
        for objects in listed.values():
            async for some in self._slices(list(objects.values())):
                for content in some:
                    self._apply(content, initial=initial, is_listed=True)
        # 3. the objects that are gone; parents last
        gone = [key for key in self.store if key.object_id not in listed[key.kind] and key not in bad]
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
            for key in [key for key in self._unread if key.object_id not in listed[key.kind] and key not in bad]:
                self._forget(key)
        # 4. unreliable objects
        for key, believed in bad.items():
            self._distrust(key, believed=believed)
        return is_whole

    def _read_listed(
        self,
        document: Document,
        listed: dict[ExternalKind, dict[str, DocumentContent]],
        bad: dict[SourceKey, ExternalAllocation | None],
    ) -> bool:
        """Reads one document of a listing. Returns False if it cannot be assigned to an object.

        :param bad: the unreliable objects, each with the state to assume.
        """
        try:
            content = read_document(document)
        except BadDocument as error:
            self._problem(error.kind, error.object_id, str(error))
            if not (error.kind and error.object_id):
                return False
            bad[SourceKey(ExternalKind(error.kind), error.object_id)] = _believed(error)
            return True
        key = SourceKey(content.kind, content.object_id)
        existing = listed[content.kind].setdefault(content.object_id, content)
        if existing is not content:
            if existing.what != content.what:
                bad[key] = existing.what if isinstance(existing.what, ExternalAllocation) else None
                text = "it is in one listing twice, with different contents"
                self._problem(key.kind, key.object_id, text)
            elif (content.version or 0) > (existing.version or 0):
                listed[content.kind][content.object_id] = content
        return True

    async def _apply_deltas(self, deltas: Sequence[Delta]) -> None:
        untold = ""
        async for some in self._slices(deltas):
            for delta in some:
                try:
                    if delta.type == ChangeType.DELETED:
                        kind, object_id, version = read_identity(delta.document)
                        self._apply_deletion(SourceKey(kind, object_id), version)
                    else:
                        self._apply(read_document(delta.document), initial=False)
                except BadDocument as error:
                    self._problem(error.kind, error.object_id, str(error))
                    if error.kind and error.object_id:
                        self._distrust(SourceKey(ExternalKind(error.kind), error.object_id), believed=_believed(error))
                    else:
                        untold = str(error)
                self._cursor = delta.cursor
        if untold:
            raise _UnnamedChange(f"a change that names no object: {untold}")

    def _apply(self, content: DocumentContent, *, initial: bool, is_listed: bool = False) -> None:
        """Takes an object's state. The most likely conditions come first."""
        key, obj, version = SourceKey(content.kind, content.object_id), content.what, content.version
        kept = self.store.get_stored(key)
        # The handlers to call. A handler that doubts the object also gets a known state again.
        to = [registration for registration in self._registrations if key in registration.doubtful]
        if kept is not None:
            is_same = obj == kept.obj
            if version is not None and kept.version is not None and version <= kept.version:
                if version < kept.version or not to:
                    self._drop(key, version, kept.version, is_same=is_same, is_listed=is_listed)
                    return
            elif is_same and not to:
                if version is not None:
                    self.store.put(key, kept.obj, version)
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
        self.store.put(key, obj, version)
        self._unread.pop(key, None)
        for registration in to:
            self._deliver(registration, key, obj, initial=initial)

    def _drop(self, key: SourceKey, version: int, stored_version: int, *, is_same: bool, is_listed: bool) -> None:
        """Drops a version that is not newer than the known one. Reports only contradictions; duplicates are usual."""
        self._counts["DROPPED"] += 1
        if version == stored_version and not is_same:
            text = f"version {version} is known with another content, expected a newer version"
            self._problem(key.kind, key.object_id, text)
        elif version < stored_version and is_listed:
            text = f"version {version} is listed and {stored_version} is known, expected none that is older"
            self._problem(key.kind, key.object_id, text)

    def _apply_deletion(self, key: SourceKey, version: int | None) -> None:
        kept = self.store.get_stored(key)
        if version is not None:
            if kept is not None and kept.version is not None and version < kept.version:
                self._counts["DROPPED"] += 1
                return  # late: the object was changed, or created again, after this
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

    def _remove(self, key: SourceKey) -> None:
        self._counts[ChangeType.DELETED] += 1
        self.store.remove(key)
        for registration in self._registrations:
            self._deliver(registration, key, None, initial=False)

    def _deliver(
        self, registration: HandlerRegistration, key: SourceKey, obj: ExternalObject | None, *, initial: bool
    ) -> None:
        try:
            registration.deliver(key, obj, initial=initial)
        except Exception as error:
            handler = type(registration.handler).__name__
            location = "" if isinstance(error, ExternalError) else f" ({_code_location(error)})"
            text = f"{handler}: {type(error).__name__}: {masked_text(str(error))}{location}"
            self._problem(key.kind, key.object_id, text)
            self._distrust(key, (registration,), obj if isinstance(obj, ExternalAllocation) else None)

    def _distrust(
        self,
        key: SourceKey,
        registrations: Iterable[HandlerRegistration] | None = None,
        believed: ExternalAllocation | None = None,
    ) -> None:
        """Distrusts an object. (The scheduler may know an object that is not in the store from an earlier life. For an
        unknown object, ``believed`` is the state to assume.)
        """
        if self.store.get_stored(key) is None:
            self._unread[key] = None
            if len(self._unread) > _UNREAD_MAX:
                del self._unread[next(iter(self._unread))]
        for registration in self._registrations if registrations is None else registrations:
            stored = self.store.get(*key)
            if obj := stored or believed:
                with suppress(Exception):  # the predicate's failure was reported before
                    if registration.predicate is not None and not registration.predicate(obj):
                        continue
            if stored:
                registration.doubtful[key] = None
            if registration.distrust is None:
                continue
            if believed is None:
                registration.distrust(key.kind, key.object_id)
            else:
                registration.distrust(key.kind, key.object_id, believed)

    def _forget(self, key: SourceKey) -> None:
        """Notifies the handlers that an unreadable object was removed."""
        del self._unread[key]
        for registration in self._registrations:
            if registration.forget is not None:
                registration.forget(key.kind, key.object_id)

    # ---- in slices ------------------------------------------------------------------------------------------------

    async def _slices(self, things: Sequence[Any], pause_s: float = 0.0) -> AsyncIterator[Sequence[Any]]:
        """Yields the items in slices; other tasks run in between."""
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
        """Adds the counts to the metrics."""
        for kind, count in self._counts.items():
            if count:
                metrics.changes.labels(self.name, str(kind)).inc(count)
                self._counts[kind] = 0
        for kind in ExternalKind:
            metrics.objects.labels(self.name, kind.value).set(self.store.count(kind))

    def _start(self, registration: HandlerRegistration) -> None:
        if registration.resync_s > 0:
            registration.tasks.append(asyncio.create_task(self._resync(registration)))

    async def _resync(self, registration: HandlerRegistration) -> None:
        """Gives every object to the handler again once in each period, spread over half the period."""
        while True:
            await self._sleep(registration.resync_s / 2)
            keys = self.store.keys()
            pause_s = registration.resync_s / 2 / max(1, -(-len(keys) // SLICE))
            if not keys:
                await self._sleep(pause_s)
            async for some in self._slices(keys, pause_s):
                self._deliver_stored(registration, some, initial=False)

    async def _catch_up(self, registration: HandlerRegistration) -> None:
        """Gives the objects in the store to a late handler. Meanwhile it gets changes like every handler."""
        async for some in self._slices(self.store.keys()):
            self._deliver_stored(registration, [key for key in some if key not in registration.delivered], initial=True)
        registration.caught_up = True

    def _deliver_stored(self, registration: HandlerRegistration, keys: Iterable[SourceKey], *, initial: bool) -> None:
        for key in keys:
            if kept := self.store.get_stored(key):
                self._deliver(registration, key, kept.obj, initial=initial)

    def _problem(self, kind: str, object_id: str, text: str) -> None:
        metrics.problems.labels(self.name).inc()
        self._problems.add(kind, object_id, text)


_RANKS = {kind: rank for rank, kind in enumerate(ExternalKind)}


async def _close(watch: AsyncIterator[Sequence[Delta]]) -> None:
    """Ends a watch in its present state, if it is a generator."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        with suppress(Exception):
            await close()


def _text_of(error: BaseException | None) -> str:
    """A failure, for operators. A source's own error explains itself; for others the place in the code is added."""
    if isinstance(error, ExternalError):
        return sanitize(masked_text(str(error)) or type(error).__name__)
    if error is None:
        return "the watch ended"
    return sanitize(f"{type(error).__name__}: {masked_text(str(error))} ({_code_location(error)})")


def _code_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _believed(error: BadDocument) -> ExternalAllocation | None:
    """An unreadable allocation still occupies its node, with an unknown size."""
    return ExternalAllocation(error.object_id, error.node_id, {}) if error.node_id else None
