"""Follows one partition of ``si.state``: what the scheduler decided becomes the objects that REST shows.

In numbered steps (:meth:`PartitionFollower.follow`): 1 nap while nobody asks, 2 read, 3 fold in slices, 4 say where it
stands. When folding fails, or the log no longer has what comes next, everything is folded anew beside the old state,
which goes on answering until the new one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import LogClosed, LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader, Record
from muster_bus.topics import Topics, is_rm_state_key, parse_state_key

from muster_scheduler import state_codec
from muster_scheduler.core.external_books import ExternalBooks
from muster_scheduler.follower import RmState, StateFolder
from muster_scheduler.view import metrics
from muster_scheduler.view.census import Census, Counts
from muster_scheduler.view.object_states import Departed
from muster_scheduler.view.settings import ViewSettings
from muster_scheduler.view.turns import FoldGate, Slice

log = structlog.get_logger(__name__)

# While nobody asks, a slice of folding is followed by so many slices' time for others: a third of a core at most, twice
# what 5,000 decisions a second need.
_IDLE_PAUSE_SLICES = 2
# How long the rest of a transaction may take to come, once its beginning did: it is visible already.
_REST_OF_TRANSACTION_S = 0.05
# While a read is under way, whether it is over.
_LOOK_AGAIN_S = 0.001
# Registrations above this have a configuration that takes longer to read than others wait gladly: 50 ms.
_LARGE_BYTES = 8 * 1024


class PartitionFollower:
    """One partition's state, kept up to date.

    :ivar version: grows with each fold: the same version is the same state.
    :ivar departed: what objects were like that are gone.
    :ivar problem: why it does not follow now; "" when it does.
    """

    def __init__(
        self, log_: Log, topics: Topics, partition: int, settings: ViewSettings, clock: Clock, gate: FoldGate
    ) -> None:
        self.partition = partition
        self.version = 0
        self.problem = ""
        self._log, self._topic, self._settings, self._clock, self._gate = log_, topics.state, settings, clock, gate
        self._folder: StateFolder | None = None
        self._counts: dict[str, Counts] = {}
        self._census = Census(self._counts)
        self.departed = Departed()
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
        self._broken = False  # what is in memory is not to be folded on

    # ---- what is known ---------------------------------------------------------------------------------------------

    @property
    def rms(self) -> dict[str, RmState]:
        """The partition's RMs, by id."""
        return self._folder.rms if self._folder is not None else {}

    @property
    def external(self) -> dict[str, ExternalBooks]:
        """What sources outside of the RMs said, by the RM's id; also of RMs that have not registered."""
        return self._folder.external if self._folder is not None else {}

    @property
    def census(self) -> Census:
        """What was counted of them while they were folded."""
        return self._census

    @property
    def settled(self) -> bool:
        """Whether there is a state to show."""
        return self._folder is not None

    @property
    def lag_records(self) -> int:
        """Offsets that are written and not folded, as far as it is known."""
        return max(0, self._end - self._position) + len(self._kept)

    def lag_s(self, now_ns: int) -> float:
        """Age of the newest record that is folded, while there are newer ones; 0 when there are none."""
        if not self.lag_records or not self._folded_at_ms:
            return 0.0
        return max(0.0, now_ns / 1e9 - self._folded_at_ms / 1e3)

    @property
    def torn(self) -> bool:
        """Whether a transaction is folded in part: what is shown now never was."""
        return not self._whole.is_set()

    async def whole(self) -> None:
        """Returns between two folds, when no transaction is folded in part. Callers bound the wait."""
        await self._whole.wait()

    def want(self) -> None:
        """A request is there: no napping."""
        self._wanted_s = self._clock.monotonic()
        self._wanted.set()

    def known_end(self) -> int:
        """One past the newest record that is known to be visible."""
        return self._reader.known_end() if self._reader is not None else 0

    def is_fresh(self, end: int) -> bool:
        """Whether what is visible before ``end`` is folded, and no fold is under way."""
        return self._fresh.is_set() and self._position >= end

    async def fresh(self, end: int) -> None:
        """Returns between two folds, when what is visible before ``end`` is folded. Callers bound the wait."""
        await self._fresh.wait()
        while not self.is_fresh(end):
            await asyncio.sleep(_LOOK_AGAIN_S)  # what came is being read
            await self._fresh.wait()

    # ---- following -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Folds what is there. Raises what the log raises, and what cannot be read (CodecError, DecodeError)."""
        self._folder = await self._build()
        self.version += 1
        self._whole.set()
        self._fresh.set()

    async def follow(self) -> None:
        """Follows for ever; ends by being cancelled, or when the log is closed."""
        wait_s = self._settings.retry_min_s
        while True:
            try:
                if self._broken:
                    await self._rebuild()
                await self._step()
                self.problem, wait_s = "", self._settings.retry_min_s
            except LogClosed:
                raise
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, self._settings.retry_max_s)

    async def close(self) -> None:
        """Lets the reader go."""
        if self._reader is not None:
            await self._reader.close()

    async def _step(self) -> None:
        reader = self._reader
        assert reader is not None, "start comes first"
        # 1. nobody asks: larger steps, fewer wake-ups
        timeout_s = self._settings.poll_s
        if self._kept or self.torn:
            timeout_s = min(timeout_s, _REST_OF_TRANSACTION_S)
        elif self._flowing and await self._nap():
            timeout_s = 0.0
        # 2. what is visible by now
        records = list(await reader.read(self._settings.read_records_max, timeout_s))
        full = len(records) >= self._settings.read_records_max
        self._flowing = bool(records)
        self._end = max(self._end, reader.position)
        # 3. whole transactions, as far as the records tell
        if records or self._kept:
            self._fresh.clear()
            await self._gate.passed()
            ready, kept = self._split(self._kept + records, full=full)
            self._kept = kept
            await self._fold(ready)
        if self._kept or not full:
            self._whole.set()
            await asyncio.sleep(0)  # who waits for it gets a turn, before the next fold
        # 4. where it stands
        self._position = reader.position
        await self._look_at_end(reader, behind=full)
        if not full:
            self._fresh.set()

    async def _nap(self) -> bool:
        """Whether it napped: only when there was no request for a while."""
        if self._settings.idle_interval_s <= 0 or self._is_wanted():
            return False
        if self._wanted.is_set():
            self._wanted.clear()  # whoever set it may still be on the way to its answer: one round awake
            return False
        self._fresh.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.idle_interval_s):
                await self._wanted.wait()
        return True

    def _is_wanted(self) -> bool:
        """Whether a request came not long ago."""
        return self._clock.monotonic() - self._wanted_s < self._settings.idle_after_s

    def _split(self, records: list[Record], *, full: bool) -> tuple[list[Record], list[Record]]:
        """What to fold now, and what to keep until the rest of its transaction is read."""
        if full:
            for index in range(len(records) - 1, 0, -1):
                key = records[index].key
                if is_rm_state_key(key):  # the first of a transaction
                    return records[:index], records[index:]
        return records, []

    async def _fold(self, records: Sequence[Record]) -> None:
        folder = self._folder
        assert folder is not None, "start comes first"
        # 1. beside the event loop, what takes seconds: it answers as it was meanwhile
        for record in records:
            key, value = record.key, record.value
            if value is None or key is None or len(value) <= _LARGE_BYTES:
                continue
            if parse_state_key(key)[1] == state_codec.REGISTRATION:
                await asyncio.to_thread(folder.read_ahead, key, value)
        # 2. in slices, all of it
        slice_s = self._settings.fold_slice_ms / 1000
        slice_ = Slice(self._clock, slice_s)
        if records:
            self._whole.clear()
        for record in records:
            folder.take(record)
            if slice_.used_up():
                self.version += 1
                await slice_.rest(0.0 if self._is_wanted() else _IDLE_PAUSE_SLICES * slice_s)
        if records:
            self.version += 1
            self._folded_at_ms = records[-1].timestamp_ms
            metrics.FOLDED.labels(str(self.partition)).inc(len(records))
            metrics.FOLD_SECONDS.labels(str(self.partition)).inc(slice_.worked_s)

    async def _look_at_end(self, reader: LogReader, *, behind: bool) -> None:
        now_s = self._clock.monotonic()
        if behind or now_s - self._end_asked_s >= self._settings.poll_s:
            self._end_asked_s = now_s
            self._end = await reader.end_offset()
            metrics.LAG_RECORDS.labels(str(self.partition)).set(self.lag_records)
            metrics.LAG_SECONDS.labels(str(self.partition)).set(self.lag_s(self._clock.now_ns()))

    # ---- building --------------------------------------------------------------------------------------------------

    async def _build(self) -> StateFolder:
        """A folder with all that is there; the reader stands behind it."""
        if self._reader is None:
            self._reader = await self._log.reader(self._topic, self.partition)
        else:
            self._reader.seek(await self._reader.first_offset())
        reader, census = self._reader, Census(self._counts)
        folder = StateFolder(census, self.departed.note)
        end = await reader.end_offset()
        while reader.position < end:
            before = reader.position
            for record in await reader.read(self._settings.read_records_max, self._settings.poll_s):
                folder.take(record)
                self._folded_at_ms = record.timestamp_ms
            if reader.position > before:
                await asyncio.sleep(0)
        # Building everything takes seconds for a large cluster: beside the event loop, nobody else has this folder.
        await asyncio.to_thread(folder.settle)
        self._position, self._end, self._kept = reader.position, max(end, reader.position), []
        self._census = census
        return folder

    async def _rebuild(self) -> None:
        """Folds anew; the old state answers until the new one is there."""
        metrics.REBUILDS.labels(str(self.partition)).inc()
        self._folder = folder = await self._build()
        self._broken = False
        self._whole.set()
        self.version += 1
        log.info("view.rebuilt", partition=self.partition, rms=len(folder.rms))

    def _failed(self, error: Exception) -> None:
        metrics.FOLLOW_ERRORS.labels(str(self.partition)).inc()
        self._fresh.clear()
        self._broken = self._broken or not isinstance(error, LogUnavailable)
        if isinstance(error, LogUnavailable):
            self.problem = f"partition {self.partition}: the log does not answer: {error}"
        elif isinstance(error, OffsetGone):
            self.problem = f"partition {self.partition}: the log no longer has what comes next; folding anew"
        else:
            self.problem = f"partition {self.partition}: cannot be folded: {type(error).__name__}: {error}"
        log.warning("view.not_following", partition=self.partition, error=type(error).__name__, detail=str(error))
