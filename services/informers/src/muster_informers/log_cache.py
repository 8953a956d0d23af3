"""Writes an event handler's objects to the log, for the scheduler (the event handler framework: "external
modification").

newest wins
    The cache keeps the newest state of each object until it is written. An object that changes again before that is
    written once, in its newest state. So while the log is away, each object costs one entry for any number of changes.

order
    Parents are written before the objects that refer to them (pool, queue, node, offer, application, allocation), then
    distrusted objects, then deletions in reverse order. So used resources come before free ones: an allocation that
    moves counts on both nodes for a moment, never on none.

note
    A record of the source's state, written after all earlier changes and before all later ones. The changes between two
    notes are a *part*. While the log is away the cache merges parts when there are many: the last note counts, and
    LISTING (a life begins) stays in front.

written
    A record has at most 250 changes and 256 KiB. It is written at most ``linger_s`` after its first change, and at once
    for a note or for a caller that waits in ``flushed``. A record that the log does not accept is tried again, with
    growing waits. A record that the log never accepts (too large) is cut in two; a single change that is too large is
    dropped and reported as a problem.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import InvalidRecord, LogError, LogUnavailable, RecordTooLarge
from muster_bus.log import LogWriter, OutRecord
from muster_core.external.errors import BadDocument
from muster_core.external.model import (
    ExternalAllocation,
    ExternalChange,
    ExternalKind,
    ExternalObject,
    SourceState,
    id_of,
    kind_of,
)
from muster_runtime.backoff import backoff_s
from muster_state.external_codec import SourceStateNote, check, encode

from muster_informers import metrics
from muster_informers.indexer import SourceKey

log = structlog.get_logger(__name__)

# Changes that are encoded in one go: other tasks wait at most 3 ms.
CHANGES_MAX = 250
RECORD_BYTES_MAX = 256 * 1024
LINGER_S = 0.01
# With more pending objects, a caller of put() should wait (``ready``). 5,000 hosts with four VMs each stay below.
PENDING_MAX = 50_000
SEGMENTS_MAX = 4

_RANKS = {kind: rank for rank, kind in enumerate(ExternalKind)}

OnProblem = Callable[[str, str, str], None]


# The period in which a limit of changes per second is applied: short, so that changes are written evenly.
_PACE_S = 0.1


class _PendingChanges:
    """The waiting changes between two notes.

    :ivar changes: the newest change of each object.
    :ivar doubted: the objects that were put and then distrusted.
    :ivar note: the note that ends the part; None: the part is still open.
    :ivar since: when the first change arrived.
    """

    __slots__ = ("changes", "doubted", "note", "since", "waiters")

    def __init__(self) -> None:
        self.changes: dict[SourceKey, ExternalChange] = {}
        self.doubted: dict[SourceKey, None] = {}
        self.note: SourceStateNote | None = None
        self.since = 0.0
        self.waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self.changes) or self.note is not None or bool(self.waiters)

    def merge(self, later: _PendingChanges) -> None:
        """Adds the changes of a later part, and ends with that part's note."""
        for key, change in later.changes.items():
            earlier = self.changes.get(key)
            if change.stale and earlier is not None:
                if earlier.what is not None:
                    self.doubted[key] = None
                continue  # (a deleted object is unknown, hence not distrusted)
            self.changes[key] = change
            self.doubted.pop(key, None)
        self.doubted.update(later.doubted)
        self.note = later.note
        self.waiters += later.waiters

    def first(self, count: int) -> _PendingChanges:
        """Takes out the changes that wait longest, as a part of their own."""
        part = _PendingChanges()
        part.since = self.since
        for key in list(islice(self.changes, count)):
            part.changes[key] = self.changes.pop(key)
            if key in self.doubted:
                part.doubted[key] = self.doubted.pop(key)
        return part

    def ordered(self) -> list[ExternalChange]:
        """Returns the changes in writing order."""
        put = [change for change in self.changes.values() if change.what is not None]
        stale = [change for change in self.changes.values() if change.what is None and change.stale]
        gone = [change for change in self.changes.values() if change.what is None and not change.stale]
        put.sort(key=lambda change: _RANKS[change.kind])
        stale += [ExternalChange(kind, object_id, None, stale=True) for kind, object_id in self.doubted]
        gone.sort(key=lambda change: -_RANKS[change.kind])
        return put + stale + gone


class LogCache:
    """An :class:`~muster_informers.contract.ExternalCache` on a log. ``run`` writes the changes.

    :param source: the informer's name.
    :param life: the id of this start of the informer.
    :param topic: the topic of requests; ``log_partition`` is the RM's partition of it.
    :param changes_per_s_max: the most changes that are written per second; while they wait, the newest state of each
        object counts. 0: no limit.
    :param on_problem: called with (kind, id, text) for a change that the log never accepts.
    """

    def __init__(
        self,
        *,
        rm_id: str,
        partition: str,
        source: str,
        life: str,
        topic: str,
        log_partition: int,
        writer: LogWriter,
        clock: Clock,
        linger_s: float = LINGER_S,
        pending_max: int = PENDING_MAX,
        changes_per_s_max: int = 0,
        wait_min_s: float = 0.1,
        wait_max_s: float = 5.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_problem: OnProblem | None = None,
    ) -> None:
        self.last_error = ""
        self._rm_id, self._partition, self._source, self._incarnation = rm_id, partition, source, life
        self._topic, self._log_partition, self._key = topic, log_partition, rm_id.encode()
        self._writer = writer
        self._clock = clock
        self._linger_s = linger_s
        self._pending_max = pending_max
        self._per_s_max = changes_per_s_max
        self._is_live = False
        self._wait_min_s, self._wait_max_s = wait_min_s, wait_max_s
        self._sleep = sleep
        self._on_problem = on_problem
        self._log = log.bind(source=source, rm=rm_id, partition=partition)
        # -- waiting: parts that a note ended, then the open one; and the part that is being written
        self._segments: deque[_PendingChanges] = deque()
        self._open = _PendingChanges()
        self._writing: _PendingChanges | None = None
        self._put_keys: set[SourceKey] = set()  # objects that this life has put, on the log or on the way there
        # -- waiting tasks
        self._woken = asyncio.Event()  # changes or notes wait to be written
        self._hurry = asyncio.Event()  # a caller waits for the write
        self._capacity_waiters: list[asyncio.Future[None]] = []
        self._ended: BaseException | None = None

    @property
    def source(self) -> str:
        return self._source

    @property
    def pending(self) -> int:
        """How many objects are not on the log yet."""
        writing = len(self._writing.changes) if self._writing is not None else 0
        return writing + sum(len(part.changes) for part in self._segments) + len(self._open.changes)

    # ---- calls of handlers ----------------------------------------------------------------------------------------

    def put(self, what: ExternalObject) -> None:
        """Sets the new state of an object, which is the whole object. Raises BadDocument: it cannot go to the log."""
        key = SourceKey(kind_of(what), id_of(what))
        change = ExternalChange(*key, what)
        check(change)
        self._open.doubted.pop(key, None)
        self._enqueue(key, change)

    def delete(self, kind: ExternalKind, object_id: str) -> None:
        """Removes an object that does not exist any more. Raises BadDocument: no object can have this id."""
        key = SourceKey(kind, object_id)
        change = ExternalChange(*key, None)
        check(change)
        self._open.doubted.pop(key, None)
        waiting = self._open.changes.get(key)
        if waiting is not None and waiting.what is not None and not self._was_put(key):
            # The object was put and removed before it was written, so the log never gets it. (If an earlier life wrote
            # it, it ends with the other objects that this life has not named.)
            del self._open.changes[key]
            return
        self._enqueue(key, change)

    def distrust(self, kind: ExternalKind, object_id: str, believed: ExternalAllocation | None = None) -> None:
        """Marks the object's last state as unreliable until it is put again.

        :param believed: see :class:`~muster_informers.contract.ExternalCache`.
        """
        key = SourceKey(kind, object_id)
        waiting = self._open.changes.get(key)
        if waiting is None:
            change = ExternalChange(*key, believed, stale=True)
            check(change)
            self._enqueue(key, change)
        elif waiting.what is not None:
            self._open.doubted[key] = None
        # (An object that is stale or removed stays so.)

    def set_source_state(self, state: SourceState, drains: bool = True, reason: str = "") -> None:
        """Notes the source's state, after all earlier changes."""
        self._is_live = state is SourceState.LIVE
        part, self._open = self._open, _PendingChanges()
        part.note = SourceStateNote(state, drains, reason)
        if not part.changes:
            part.since = self._clock.monotonic()
        self._segments.append(part)
        if len(self._segments) > SEGMENTS_MAX:
            self._merge()
        self._hurry.set()
        self._woken.set()

    async def ready(self) -> None:
        """Returns when there is room for more. A handler that puts many objects in a loop waits here."""
        while self.pending >= self._pending_max and self._ended is None:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._capacity_waiters.append(room)
            await room

    async def wait_flushed(self) -> None:
        """Returns when all earlier changes and notes are durable. Raises LogClosed: they never will be."""
        parts = [part for part in (self._writing, *self._segments, self._open) if part]
        if not parts:
            return
        if self._ended is not None:
            raise self._ended
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parts[-1].waiters.append(done)
        self._hurry.set()
        await done

    # ---- writes to the log ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes until it is cancelled. Raises LogClosed."""
        try:
            while True:
                await self._woken.wait()
                if not self._hurry.is_set():
                    await self._linger(self._linger_s)
                self._woken.clear()
                self._hurry.clear()
                while part := self._next():
                    self._writing = part
                    await self._write(part)
                    self._writing = None
                    self._on_written(part)
                    if self._is_paced and part.note is None and not part.waiters:
                        await self._linger(len(part.changes) / self._per_s_max)
        except BaseException as error:
            self._end(error)
            raise

    def _enqueue(self, key: SourceKey, change: ExternalChange) -> None:
        open_part = self._open
        if not open_part.changes:
            open_part.since = self._clock.monotonic()
        elif not self._is_paced:
            # It moves to the end, because it may refer to objects that were put since its first change. (With a limit
            # per second, an object that changes often would then wait for ever; so it keeps its place, and the
            # scheduler itself waits for objects that a change refers to.)
            open_part.changes.pop(key, None)
        open_part.changes[key] = change
        if len(open_part.changes) >= CHANGES_MAX and not self._is_paced:
            self._hurry.set()
        self._woken.set()

    def _was_put(self, key: SourceKey) -> bool:
        return key in self._put_keys or any(key in part.changes for part in self._segments)

    def _merge(self) -> None:
        """Merges the waiting parts into one, except the beginning of a life."""
        first = self._segments.popleft()
        heads = [first]
        if first.note is not None and first.note.state is SourceState.LISTING:
            heads.append(self._segments.popleft())
        while self._segments:
            heads[-1].merge(self._segments.popleft())
        self._segments.extend(heads)

    async def _linger(self, seconds: float) -> None:
        """Waits for more changes, until a caller waits for the present ones."""
        hurried = asyncio.ensure_future(self._hurry.wait())
        slept = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({hurried, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurried.cancel()
            slept.cancel()

    @property
    def _is_paced(self) -> bool:
        """Whether the limit of changes per second applies: it does not apply to a listing."""
        return self._per_s_max > 0 and self._is_live

    def _next(self) -> _PendingChanges | None:
        if self._segments:
            return self._segments.popleft()
        if not self._open:
            return None
        if self._is_paced and not self._open.waiters:
            count = max(round(self._per_s_max * _PACE_S), 1)
            if len(self._open.changes) > count:
                return self._open.first(count)
        part, self._open = self._open, _PendingChanges()
        return part

    async def _write(self, part: _PendingChanges) -> None:
        changes = part.ordered()
        for key, change in part.changes.items():
            if change.what is not None:
                self._put_keys.add(key)
            elif not change.stale:
                self._put_keys.discard(key)
        metrics.cache_pending.labels(self._source).set(self.pending)
        batches = [changes[start : start + CHANGES_MAX] for start in range(0, len(changes), CHANGES_MAX)]
        await self._append(batches)
        if part.note is not None:
            # A record of its own, behind all others, even if one of those must be written again.
            await self._append([[]], part.note)

    def _record(self, changes: Sequence[ExternalChange], note: SourceStateNote | None = None) -> OutRecord:
        value = encode(self._rm_id, self._partition, self._source, self._incarnation, changes, note)
        return OutRecord(self._topic, self._log_partition, self._key, value)

    async def _append(self, batches: Sequence[list[ExternalChange]], note: SourceStateNote | None = None) -> None:
        """Writes the batches, in order unless one must be tried again. Returns when all are durable."""
        failures = 0
        waiting = deque(batches)
        while waiting:
            sent: list[tuple[list[ExternalChange], Awaitable[int]]] = []
            failed: list[list[ExternalChange]] = []
            error: LogError | None = None
            while waiting and error is None:
                batch = waiting.popleft()
                try:
                    record = self._record(batch, note)
                except BadDocument:
                    # The object was valid when it was put: the caller has changed it since.
                    waiting.appendleft(self._still_good(batch))
                    continue
                if len(record.value or b"") > RECORD_BYTES_MAX and len(batch) > 1:
                    middle = len(batch) // 2
                    waiting.extendleft((batch[middle:], batch[:middle]))
                    continue
                try:
                    await self._writer.wait_writable()
                    sent.append((batch, self._writer.append(record)))
                except LogUnavailable as unavailable:
                    failed.append(batch)
                    error = unavailable
                if waiting:
                    await asyncio.sleep(0)  # encoding takes a few ms
            for batch, done in sent:
                try:
                    await done
                except LogUnavailable as unavailable:
                    failed.append(batch)
                    error = unavailable
                except (RecordTooLarge, InvalidRecord) as never:
                    failed += self._halves(batch, never)
            if not failed:
                failures = 0
                continue
            waiting.extendleft(reversed(failed))
            if error is not None:
                metrics.cache_retries.labels(self._source).inc()
                if not self.last_error:
                    self._log.warning("the log refuses sources' statements", why=str(error), pending=self.pending)
                self.last_error = str(error) or type(error).__name__
                await self._sleep(backoff_s(failures, self._wait_min_s, self._wait_max_s))
                failures += 1
        if self.last_error:
            self.last_error = ""
            self._log.info("the log accepts sources' statements again")

    def _still_good(self, batch: list[ExternalChange]) -> list[ExternalChange]:
        good: list[ExternalChange] = []
        for change in batch:
            try:
                check(change)
            except BadDocument as error:
                self._drop_change(change, error)
            else:
                good.append(change)
        return good

    def _drop_change(self, change: ExternalChange, error: Exception) -> None:
        """Drops a change that the log never accepts, and reports it."""
        self._log.error("a change cannot be written", kind=change.kind.value, id=change.object_id, why=str(error))
        if self._on_problem is not None:
            self._on_problem(change.kind.value, change.object_id, f"it cannot be written to the log: {error}")

    def _halves(self, batch: list[ExternalChange], error: LogError) -> list[list[ExternalChange]]:
        """Returns the batches to write instead of a batch that the log never accepts."""
        if len(batch) > 1:
            middle = len(batch) // 2
            return [batch[:middle], batch[middle:]]
        for change in batch:
            self._drop_change(change, error)
        return []

    def _on_written(self, part: _PendingChanges) -> None:
        now = self._clock.monotonic()
        metrics.cache_seconds.labels(self._source).observe(now - part.since)
        metrics.cache_pending.labels(self._source).set(self.pending)
        for done in part.waiters:
            if not done.done():
                done.set_result(None)
        if self._capacity_waiters and self.pending < self._pending_max:
            self._wake_capacity_waiters()

    def _wake_capacity_waiters(self) -> None:
        waiting, self._capacity_waiters = self._capacity_waiters, []
        for room in waiting:
            if not room.done():
                room.set_result(None)

    def _end(self, error: BaseException) -> None:
        """Ends the cache: waiting tasks get the error."""
        self._ended = error if isinstance(error, LogError) else LogError("the cache is closed")
        self._wake_capacity_waiters()
        for part in (self._writing, *self._segments, self._open):
            for done in part.waiters if part is not None else ():
                if not done.done():
                    done.set_exception(self._ended)
