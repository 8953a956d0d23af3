"""Follows one partition of ``si.state``: turns the scheduler's records into the objects that REST shows.

The steps of :meth:`PartitionFollower.follow`: 1 pause while there are no requests, 2 read, 3 fold in slices, 4 note the
position. When folding fails, or the log no longer has the next record, the follower folds everything again beside the
old state. The old state answers until the new one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections import deque
from collections.abc import Sequence

import structlog
from muster_bus.clock import Clock, recorded_ns
from muster_bus.errors import LogClosed, LogDamaged, LogUnavailable, OffsetOutOfRange
from muster_bus.log import Log, LogReader, Record
from muster_bus.topics import Topics, is_rm_state_key, parse_state_key
from muster_core.external.reports import ExternalReports
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_runtime.backoff import aligned_s
from muster_runtime.disposal import Disposal
from muster_si.positions import NO_STAMP, Stamp
from muster_state import state_codec
from muster_state.state_folder import RmEntry, StateFolder
from muster_whatif.forecast.run_time_model import RunTimeHistory, came_of

from muster_view.fold_gate import FoldGate, TimeSlice
from muster_view.metrics import metrics
from muster_view.metrics.object_counts import ObjectCounts, StateCounts
from muster_view.metrics.recent import RecentAllocations
from muster_view.rest.object_states import RemovedObjects
from muster_view.settings import ViewSettings

log = structlog.get_logger(__name__)

# Without requests, each slice of folding is followed by a pause of so many slices. So folding uses at most a third of a
# core, twice the need of 5,000 decisions per second.
_IDLE_PAUSE_SLICES = 2
# How long the rest of a transaction may take to arrive after its beginning: it is visible already.
_REST_OF_TRANSACTION_S = 0.05
# Interval of the checks whether a read is over.
_LOOK_AGAIN_S = 0.001
# Greatest age of the log's end; while nothing comes, no broker is asked for it.
_END_AGE_S = 5.0
# A larger registration has a configuration that takes more than 50 ms to read, which is too long for other tasks.
_LARGE_BYTES = 8 * 1024
_NS_PER_S = 1_000_000_000


class PartitionFollower:
    """One partition's state, kept up to date.

    :ivar version: grows with each fold, so an equal version means an equal state.
    :ivar departed: the last states of removed objects.
    :ivar lengths: by RM, the allocations that ended by themselves since this process began to follow.
    :ivar recent: by RM, its allocations of the last minute.
    :ivar stamp: how far the shown state is, in the order of the partition's decisions.
    :ivar met_damage: whether the next part of the log is damaged: the state before it is shown until a restart.
    :ivar problem: the reason why the follower does not follow now; "": it follows.
    """

    def __init__(
        self, log_: Log, topics: Topics, partition: int, settings: ViewSettings, clock: Clock, gate: FoldGate
    ) -> None:
        self.partition = partition
        self.version = 0
        self.problem = ""
        self._log, self._topic, self._settings, self._clock, self._gate = log_, topics.state, settings, clock, gate
        self._folder: StateFolder | None = None
        self._counts: dict[str, ObjectCounts] = {}
        self._census = StateCounts(self._counts, self._core_ended)
        # Cores that were dropped, and how many answers had begun then.
        self._ended: deque[tuple[int, SchedulerCore]] = deque()
        self._disposal = Disposal(clock.processor_s)
        self.departed = RemovedObjects()
        self.lengths: dict[str, RunTimeHistory] = {}
        self.recent: dict[str, RecentAllocations] = {}
        self._since_ns = clock.now_ns()
        self._reader: LogReader | None = None
        self._position = 0
        self._end = 0
        self._end_asked_s = 0.0
        self._folded_at_ms = 0
        self._kept: list[Record] = []
        self._fresh = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted_s = float("-inf")
        self._flowing = False  # the last read brought records
        self._whole = asyncio.Event()  # no transaction is folded in part
        self.stamp = NO_STAMP
        self._stamped = asyncio.Event()  # set at the next change of the stamp, and replaced
        self._awaited: list[Stamp] = []  # by the reads that wait, the lowest first
        self.met_damage = False
        self._broken = False  # the state in memory cannot be continued

    # ---- the state -------------------------------------------------------------------------------------------------

    @property
    def rms(self) -> dict[str, RmEntry]:
        """The partition's RMs, by id."""
        return self._folder.rms if self._folder is not None else {}

    @property
    def external(self) -> dict[str, ExternalReports]:
        """The objects of external sources by RM id; also for RMs that have not registered."""
        return self._folder.external if self._folder is not None else {}

    @property
    def census(self) -> StateCounts:
        """The counts of the RMs, made during the fold."""
        return self._census

    @property
    def is_ready(self) -> bool:
        """Whether there is a state to show."""
        return self._folder is not None

    @property
    def lag_records(self) -> int:
        """The number of written offsets that are not folded, as far as the follower knows."""
        return max(0, self._end - self._position) + len(self._kept)

    def lag_s(self, now_ns: int) -> float:
        """The age of the newest folded record while there are newer ones; 0 when there are none."""
        if not self.lag_records or not self._folded_at_ms:
            return 0.0
        return max(0.0, now_ns / 1e9 - self._folded_at_ms / 1e3)

    @property
    def is_partial(self) -> bool:
        """Whether a transaction is folded in part: the shown state never existed."""
        return not self._whole.is_set()

    async def wait_whole(self) -> None:
        """Returns between two folds, when no transaction is folded in part. Callers bound the wait."""
        await self._whole.wait()

    def note_request(self) -> None:
        """Notes a request, which ends a pause."""
        self._wanted_s = self._clock.monotonic()
        self._wanted.set()

    def known_end(self) -> int:
        """The offset after the newest record that is known to be visible."""
        return self._reader.cached_end() if self._reader is not None else 0

    def is_fresh(self, end: int) -> bool:
        """Whether all visible records before ``end`` are folded, and no fold is under way."""
        return self._fresh.is_set() and self._position >= end

    async def wait_fresh(self, end: int) -> None:
        """Returns between two folds, when all visible records before ``end`` are folded. Callers bound the wait."""
        await self._fresh.wait()
        while not self.is_fresh(end):
            await asyncio.sleep(_LOOK_AGAIN_S)  # new records are being read
            await self._fresh.wait()

    def includes(self, stamp: Stamp) -> bool:
        """Whether everything up to a stamp is shown."""
        return self.stamp >= stamp

    async def wait_included(self, stamp: Stamp) -> None:
        """Returns between two folds, when everything up to a stamp is shown. Callers bound the wait."""
        if self.stamp >= stamp:
            return
        insort(self._awaited, stamp)
        self.note_request()  # ends a pause
        try:
            with self._gate.awaiting():
                while self.stamp < stamp:
                    await self._stamped.wait()
        finally:
            self._awaited.remove(stamp)

    def _note_stamp(self) -> None:
        """Notes how far the folded state is."""
        assert self._folder is not None, "start comes first"
        if (stamp := self._folder.stamps.folded) > self.stamp:
            self.stamp = stamp
            self._stamped.set()
            self._stamped = asyncio.Event()

    # ---- following -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Folds the present records. Raises the log's errors, and CodecError or DecodeError for unreadable records."""
        self._folder = await self._build()
        self.version += 1
        self._whole.set()
        self._note_stamp()
        self._fresh.set()

    async def follow(self) -> None:
        """Follows until it is cancelled or the log is closed."""
        wait_s = self._settings.retry_min_s
        while True:
            try:
                if self._broken:
                    await self._rebuild()
                await self._step()
                self.problem, self.met_damage, wait_s = "", False, self._settings.retry_min_s
            except LogClosed:
                raise
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, self._settings.retry_max_s)

    async def close(self) -> None:
        """Closes the reader."""
        if self._reader is not None:
            await self._reader.close()

    async def _step(self) -> None:
        reader = self._reader
        assert reader is not None, "start comes first"
        # 1. without requests: larger steps, fewer wake-ups
        timeout_s = aligned_s(self._settings.poll_s)
        if self._kept or self.is_partial:
            timeout_s = min(timeout_s, _REST_OF_TRANSACTION_S)
        elif self._flowing and await self._nap():
            timeout_s = 0.0
        # 2. read the records that are visible now
        records = list(await reader.read(self._settings.read_records_max, timeout_s))
        full = len(records) >= self._settings.read_records_max
        self._flowing = bool(records)
        self._end = max(self._end, reader.position)
        # 3. whole transactions, as far as the records tell
        if records or self._kept:
            self._fresh.clear()
            await self._gate.wait_open()
            ready, kept = self._split(self._kept + records, full=full)
            self._kept = kept
            await self._fold(ready)
        if self._kept or not full:
            self._whole.set()
            await asyncio.sleep(0)  # waiting tasks get a turn before the next fold
        self._take_apart()
        # 4. note the position
        self._position = reader.position
        self._note_stamp()
        await self._look_at_end(reader, behind=full)
        if not full:
            self._fresh.set()

    async def _nap(self) -> bool:
        """Pauses if there was no request for a while. Returns whether it did."""
        if self._settings.idle_interval_s <= 0 or self._is_wanted():
            return False
        if self._wanted.is_set():
            self._wanted.clear()  # the request that set it may not have its answer yet: stay awake for one round
            return False
        self._fresh.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.idle_interval_s):
                await self._wanted.wait()
        return True

    def _is_wanted(self) -> bool:
        """Whether there was a request recently, or one waits."""
        return bool(self._awaited) or self._clock.monotonic() - self._wanted_s < self._settings.idle_after_s

    def _split(self, records: list[Record], *, full: bool) -> tuple[list[Record], list[Record]]:
        """The records to fold now, and those to keep until the rest of their transaction is read."""
        if full:
            for index in range(len(records) - 1, 0, -1):
                key = records[index].key
                if is_rm_state_key(key):  # the first of a transaction
                    return records[:index], records[index:]
        return records, []

    async def _fold(self, records: Sequence[Record]) -> None:
        folder = self._folder
        assert folder is not None, "start comes first"
        # 1. build in a thread, because it takes seconds; the old state answers meanwhile
        for record in records:
            key, value = record.key, record.value
            if value is None or key is None or len(value) <= _LARGE_BYTES:
                continue
            if parse_state_key(key)[1] == state_codec.REGISTRATION:
                await asyncio.to_thread(folder.read_ahead, key, value)
        # 2. in slices, all of it
        slice_ = TimeSlice(self._clock, self._slice_s())
        if records:
            self._whole.clear()
        for record in records:
            for _ in folder.take_in_steps(record):
                if slice_.is_over():
                    await self._rest(slice_)
            if is_rm_state_key(record.key):  # the first of a transaction: its counts are those after it
                self._count(folder, record)
            if self._awaited and self.stamp < self._awaited[0] <= folder.stamps.folded:
                await self._wake_readers(slice_)
            elif slice_.is_over():
                await self._rest(slice_)
        if records:
            self.version += 1
            self._folded_at_ms = records[-1].timestamp_ms
            metrics.FOLDED.labels(str(self.partition)).inc(len(records))
            metrics.FOLD_SECONDS.labels(str(self.partition)).inc(slice_.worked_s)

    async def _rest(self, slice_: TimeSlice) -> None:
        """Lets other tasks run between two slices. A partition that reads wait for goes before the others."""
        self.version += 1
        slice_s = slice_.length_s = self._slice_s()
        goes_on = self._awaited or (self._is_wanted() and not self._gate.is_awaited())
        await slice_.yield_loop(0.0 if goes_on else _IDLE_PAUSE_SLICES * slice_s)

    async def _wake_readers(self, slice_: TimeSlice) -> None:
        """Shows the state between two transactions to the reads that wait for it."""
        self.version += 1
        self._note_stamp()
        self._whole.set()
        await slice_.yield_loop()
        await self._gate.wait_open()
        self._whole.clear()

    def _slice_s(self) -> float:
        settings = self._settings
        return (settings.fold_awaited_slice_ms if self._awaited else settings.fold_slice_ms) / 1000

    def _count(self, folder: StateFolder, record: Record) -> None:
        rm_id = parse_state_key(record.key or b"")[0]
        state = folder.rms.get(rm_id)
        if state is None:
            self.recent.pop(rm_id, None)
            return
        if rm_id not in self.recent:
            self.recent[rm_id] = RecentAllocations()
        self.recent[rm_id].note(state.info.last_decided_ns, state.info.tally)

    def _core_ended(self, core: SchedulerCore) -> None:
        self._ended.append((self._gate.answers, core))

    def _take_apart(self) -> None:
        """Frees the memory of cores that were dropped, once no answer reads them."""
        while self._ended and self._gate.ended(self._ended[0][0]):
            self._disposal.add(self._ended.popleft()[1].dispose())

    async def _look_at_end(self, reader: LogReader, *, behind: bool) -> None:
        now_s = self._clock.monotonic()
        if behind or now_s - self._end_asked_s >= self._settings.poll_s:
            self._end_asked_s = now_s
            self._end = await reader.end_offset(0.0 if behind else _END_AGE_S)
            metrics.LAG_RECORDS.labels(str(self.partition)).set(self.lag_records)
            metrics.LAG_SECONDS.labels(str(self.partition)).set(self.lag_s(self._clock.now_ns()))

    # ---- building --------------------------------------------------------------------------------------------------

    async def _build(self) -> StateFolder:
        """A folder with all records up to now; the reader's position is behind them."""
        if self._reader is None:
            self._reader = await self._log.reader(self._topic, self.partition)
        else:
            self._reader.seek(await self._reader.first_offset())
        reader, census = self._reader, StateCounts(self._counts, self._core_ended)
        folder = StateFolder(census, self._leaving)
        end = await reader.end_offset()
        while reader.position < end:
            before = reader.position
            for record in await reader.read(self._settings.read_records_max, self._settings.poll_s):
                folder.fold(record)
                self._folded_at_ms = record.timestamp_ms
            if reader.position > before:
                await asyncio.sleep(0)
        # Building takes seconds for a large cluster, so it runs in a thread; no other task uses this folder.
        await asyncio.to_thread(folder.build)
        self.recent = {rm_id: RecentAllocations() for rm_id in folder.rms}
        for rm_id, state in folder.rms.items():
            self.recent[rm_id].note(recorded_ns(self._clock, state.info.clock), state.info.tally)
        self._position, self._end, self._kept = reader.position, max(end, reader.position), []
        self._census = census
        return folder

    def _leaving(self, rm_id: str, partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
        if kind == state_codec.ALLOC:
            self._learn(rm_id, partition, *parts[:2])
        self.departed.add(rm_id, partition, kind, parts)

    def _learn(self, rm_id: str, partition: Partition, app_id: str, unique_key: str = "") -> None:
        """Takes the length of an allocation that ended by itself: this runs for each one."""
        app, state = partition.apps.get(app_id), self.rms.get(rm_id)
        allocation = app.allocations.get(unique_key) if app is not None else None
        if app is None or allocation is None or state is None or allocation.releasing or allocation.demand.placeholder:
            return
        learnt = self.lengths.get(rm_id)
        if learnt is None:
            self.lengths[rm_id] = learnt = RunTimeHistory(self._since_ns)
        ran_s = (state.info.last_decided_ns - allocation.allocated_ns) / _NS_PER_S
        learnt.record(came_of(app, allocation.demand), ran_s)

    async def _rebuild(self) -> None:
        """Folds everything again; the old state answers until the new one is complete."""
        metrics.REBUILDS.labels(str(self.partition)).inc()
        self._folder = folder = await self._build()
        self._broken = False
        self._whole.set()
        self._note_stamp()
        self.version += 1
        log.info("view.rebuilt", partition=self.partition, rms=len(folder.rms))

    def _failed(self, error: Exception) -> None:
        metrics.FOLLOW_ERRORS.labels(str(self.partition)).inc()
        self._fresh.clear()
        self.met_damage = isinstance(error, LogDamaged)
        if isinstance(error, LogDamaged):  # what is shown stays as it was before the damaged part
            problem = f"partition {self.partition}: {error}; the state before it is shown"
            if problem != self.problem:
                self.problem = problem
                log.error("view.not_following", partition=self.partition, error="LogDamaged", detail=str(error))
            return
        self._broken = self._broken or not isinstance(error, LogUnavailable)
        if isinstance(error, LogUnavailable):
            self.problem = f"partition {self.partition}: the log does not answer: {error}"
        elif isinstance(error, OffsetOutOfRange):
            self.problem = f"partition {self.partition}: the log no longer has the next record; folding again"
        else:
            self.problem = f"partition {self.partition}: cannot be folded: {type(error).__name__}: {error}"
        log.warning("view.not_following", partition=self.partition, error=type(error).__name__, detail=str(error))
