"""A standby: keeps a machine up to date with a partition's state, so that a take-over reads only the tail.

It reads what its owner has committed, and writes nothing. It works in slices with pauses between them, because the
process may run other partitions meanwhile. A failure drops the machine, and the standby begins again.

===========  =====================================  ===============================================================
state        becomes                                then
===========  =====================================  ===============================================================
reading      settling: at the end of the state      builds the objects
settling     warm: they are built                   applies each further record
any          taken: the worker takes over           finishes what it has read without pauses; the worker reads on
any          reading: a failure, after a wait       from the first record
===========  =====================================  ===============================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import structlog

from muster_bus import metrics
from muster_bus.backends.live_keys import LiveKeys, live_keys_of
from muster_bus.clock import Clock
from muster_bus.errors import BusError
from muster_bus.log import Log, LogReader, Record
from muster_bus.poison_tracker import StateMachineError, call_machine, one_line
from muster_bus.state_machine import StandbyStateMachine, StateMachine
from muster_bus.topics import Topics
from muster_bus.worker_settings import WorkerSettings

log = structlog.get_logger(__name__)

_SLICE_S = 0.002  # other tasks wait so long
_READ_S = 1.0
_END_INTERVAL_S = 1.0  # of the looks at the lag
_END_AGE_S = 5.0  # greatest age of its end; while nothing comes, no broker is asked for it
# With more records to fold than this, a standby takes all the time that is left; with fewer, half of it.
_HURRY_RECORDS = 4000
_CLOSE_TIMEOUT_S = 5.0
_END = object()


class StandbyState(StrEnum):
    """See the module's docstring."""

    READING = "reading"
    SETTLING = "settling"
    WARM = "warm"
    BACKING_OFF = "backing_off"


class StandbyHandover(NamedTuple):
    """What a standby gives to the worker: a machine, and the reader that stands behind the machine's last record.

    :param live: the account of these records; None: the log needs none.
    """

    machine: StandbyStateMachine
    reader: LogReader
    live: LiveKeys | None = None


class Standby:
    """Follows one partition of ``topics.state``.

    :param machine_factory: builds an empty machine.
    :param on_warm: called when the machine is whole for the first time since it was made.
    :ivar last_error: one line, or "".
    """

    def __init__(
        self,
        log: Log,
        topics: Topics,
        partition: int,
        machine_factory: Callable[[], StandbyStateMachine],
        clock: Clock,
        settings: WorkerSettings,
        on_warm: Callable[[], None] = lambda: None,
    ) -> None:
        self._log, self._topics, self._partition = log, topics, partition
        self._machine_factory, self._clock, self._settings = machine_factory, clock, settings
        self._on_warm = on_warm
        self._promoted = asyncio.Event()
        self._task: asyncio.Task[StandbyHandover | None] | None = None
        self._end = self._position = 0
        self._end_checked_s = float("-inf")
        self._failures = 0
        self.state = StandbyState.READING
        self.last_error = ""

    def start(self) -> None:
        """Begins to follow."""
        self._task = asyncio.create_task(self._run(), name=f"standby-{self._partition}")

    @property
    def warm(self) -> bool:
        """Whether a take-over would read the tail only."""
        return self.state is StandbyState.WARM

    @property
    def lag_records(self) -> int:
        """State offsets that are not folded, as of about a second ago."""
        return max(0, self._end - self._position)

    async def promote(self) -> StandbyHandover | None:
        """Ends the standby. Returns its machine, which may not be whole; None: it has none. Does not raise."""
        assert self._task is not None, "start comes first"
        self._promoted.set()
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        except Exception as error:
            log.warning("standby.failed", partition=self._partition, error=one_line(error))
            return None

    async def close(self) -> None:
        """Ends the standby and drops its machine."""
        if self._task is None:
            return
        folded = await self.promote()
        if folded is not None:
            await close_reader(folded.reader)

    # ---- following ---------------------------------------------------------------------------------------------------

    async def _run(self) -> StandbyHandover | None:
        while not self._promoted.is_set():
            try:
                return await self._follow()
            except (BusError, StateMachineError) as error:
                self.state, self._failures = StandbyState.BACKING_OFF, self._failures + 1
                self.last_error = one_line(error.__cause__ or error)
                settings, doublings = self._settings, min(self._failures - 1, 20)
                wait_s = min(settings.backoff_limit_s, settings.backoff_first_s * 2**doublings)
                log.warning("standby.again", partition=self._partition, error=self.last_error, wait_s=wait_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._promoted.wait()
        return None

    async def _follow(self) -> StandbyHandover:
        self.state = StandbyState.READING
        machine: StandbyStateMachine = call_machine(self._machine_factory)
        live = live_keys_of(self._log)
        reader = await self._log.reader(self._topics.state, self._partition)
        taken = asyncio.create_task(self._promoted.wait(), name=f"standby-{self._partition}-taken")
        try:
            # 1 all records up to now
            self._position, self._end = reader.position, await reader.end_offset()
            while self._position < self._end and not self._promoted.is_set():
                await self._fold(machine, live, await self._read(reader, taken))
                self._position = reader.position
            # 2 the objects
            if not self._promoted.is_set():
                self.state = StandbyState.SETTLING
                await self._in_slices(call_machine(machine.build_state))
                self.state, self._failures, self.last_error = StandbyState.WARM, 0, ""
                log.info("standby.warm", partition=self._partition, position=self._position)
                self._on_warm()
            # 3 each further one
            while not self._promoted.is_set():
                records = await self._read(reader, taken)
                await self._fold(machine, live, records)
                self._position = reader.position
                await self._update_end(reader, busy=bool(records))
        except BaseException:
            await close_reader(reader)
            raise
        finally:
            taken.cancel()
        metrics.standby_lag_records.labels(str(self._partition)).set(0)
        return StandbyHandover(machine, reader, live)

    async def _read(self, reader: LogReader, taken: asyncio.Task[bool]) -> Sequence[Record]:
        """Reads; a take-over does not wait for a read that finds nothing."""
        before = reader.position
        reading = asyncio.ensure_future(reader.read(self._settings.max_records_fold, _READ_S))
        try:
            await asyncio.wait({reading, taken}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
        finally:
            reading.cancel()
        if not reading.cancelled():
            return reading.result()
        if reader.position != before:
            reader.seek(before)
        return ()

    async def _fold(self, machine: StandbyStateMachine, live: LiveKeys | None, records: Sequence[Record]) -> None:
        def steps() -> Iterable[None]:
            for record in records:
                fold_all(machine, live, (record,))
                yield

        await self._in_slices(steps())

    async def _in_slices(self, steps: Iterable[None]) -> None:
        """Takes all steps; when the worker takes over, without pauses."""
        clock, began_s = self._clock, self._clock.monotonic()
        every = iter(steps)
        while call_machine(next, every, _END) is not _END:
            if clock.monotonic() - began_s >= _SLICE_S:
                hurries = self._promoted.is_set() or self.lag_records > _HURRY_RECORDS
                await asyncio.sleep(0.0 if hurries else clock.monotonic() - began_s)
                began_s = clock.monotonic()

    async def _update_end(self, reader: LogReader, *, busy: bool) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._end_checked_s >= _END_INTERVAL_S:
            self._end_checked_s = now_s
            self._end = await reader.end_offset(0.0 if busy else _END_AGE_S)
            metrics.standby_lag_records.labels(str(self._partition)).set(self.lag_records)


def fold_all(machine: StateMachine, live: LiveKeys | None, records: Sequence[Record]) -> None:
    """Folds records of the state into a machine, and into its account, if there is one."""
    for record in records:
        machine.fold(record)
    if live is not None:
        live.fold(records)


async def close_reader(reader: LogReader) -> None:
    """Closes a reader in bounded time. Does not raise."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await reader.close()
    except Exception as error:
        log.warning("standby.close_failed", error=one_line(error))
