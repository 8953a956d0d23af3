"""The partition worker: drives one machine from one input partition, exactly once.

Its rules, and the reasons:

- Crash-only. After any failure (a commit without a good answer, an exception of the machine, an unreachable log) the
  machine in memory may be ahead of the log. The worker drops the machine and builds a new one from the log; it repairs
  nothing.
- A fenced worker ends. Another owner has the partition; two owners that take it back from each other would never
  finish. ``run`` raises Fenced. In a group the caller asks for a new share; otherwise the process exits with an error,
  and its supervisor decides when to restart it.
- One commit in flight. The worker applies the next batch while the last one commits. The next batch takes all input
  that arrives meanwhile: a slow log makes larger transactions, not a longer queue.
- The worker moves an input record to the dead letters if the machine fails on it repeatedly, so that one record cannot
  stop the partition for all its RMs. It does the same if the answer to a record is over the log's size limit. If the
  machine fails without one record to blame (in ``tick``, while folding), ``run`` raises MachineFailed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import structlog
from muster_runtime.backoff import aligned_s
from muster_runtime.disposal import Disposal
from muster_runtime.processor_time import own_usage
from muster_runtime.watchdog import Reading, Usage, Watchdog, look_every_s
from muster_runtime.young_garbage import YoungGarbage

from muster_bus import metrics
from muster_bus.backends.live_keys import check_ends, check_state, live_keys_of
from muster_bus.backends.record_limits import size_of
from muster_bus.clock import Clock
from muster_bus.contention import Contention, Work, WorkMeter
from muster_bus.errors import (
    BusError,
    Fenced,
    InvalidRecord,
    LogUnavailable,
    MachineFailed,
    OffsetOutOfRange,
    RecordTooLarge,
    TransactionFailed,
)
from muster_bus.log import EarlyInputOwner, InlineCommitOwner, Log, LogReader, OutRecord, PartitionOwner, Record
from muster_bus.poison_tracker import PoisonTracker, StateMachineError, call_machine, kind_of, one_line
from muster_bus.standby import Standby, StandbyHandover, close_reader, fold_all
from muster_bus.state_machine import StateMachine, SteppedMachine
from muster_bus.topics import HEADER_ERROR, HEADER_ORIGIN, Topics
from muster_bus.worker_progress import WorkerProgress, WorkerState
from muster_bus.worker_settings import WorkerSettings

log = structlog.get_logger(__name__)
T = TypeVar("T")

_END_OFFSET_INTERVAL_S = 1.0  # of the looks at the lag in progress()
_END_OFFSET_AGE_S = 5.0  # greatest age of its end; while nothing comes, no broker is asked for it
_FOLD_READ_S = 1.0  # wait for the rest of the state; needed only with a slow broker
# A longer wait ends with the worker's stop, and is a task of its own. A worker that has work never waits for so long.
_STOPPABLE_S = 0.2
_GATHER_WAIT = 10  # a transaction gathers for so many times gather_s by the clock
# Processor time (s) after which a machine that works in steps lets other tasks run: while several resource managers ask
# for something, and otherwise. A turn of the loop costs 0.05 ms.
_TIME_SLICE_S, _TIME_SLICE_ALONE_S = 0.0005, 0.005
# While several ask, a transaction gathers for this part of gather_s.
_GATHER_SHARED = 0.2
# More records are no small commit, so that the log takes them in steps: each costs a microsecond.
_PROMPT_RECORDS = 2048
_CLOSE_TIMEOUT_S = 5.0  # the worker abandons an owner or reader that does not close in this time


class PartitionWorker:
    """Runs one partition of ``topics.requests`` through machines made by ``machine_factory``.

    :param group: name under which the input position is committed.
    :param machine_factory: builds an empty machine; called for each take-over.
    :param consult: called, in bounded time, with the machine and its next input. It asks others about the input and
        tells the machine. A BusError counts as a failure of the log, any other error as one of the machine.
    :param letter_value: what a dead letter keeps of a record's value, and a text about the rest; None: all of it.
    :param report: makes a record that says that all input before an offset is answered, and what work that was. It is
        in the transaction that answers it, for writers of the input that wait for that.
    :param standby: has followed the partition's state; the first life takes its machine, if it has one.
    :param usage: this process's, for the watchdog.
    :param contention: shared by all workers of a process, which share its loop; None: the worker is alone.
    """

    def __init__(
        self,
        log: Log,
        topics: Topics,
        group: str,
        partition: int,
        machine_factory: Callable[[], StateMachine],
        clock: Clock,
        settings: WorkerSettings | None = None,
        consult: Callable[[Any, Sequence[Record]], Awaitable[None]] | None = None,
        letter_value: Callable[[bytes], tuple[bytes, str]] | None = None,
        report: Callable[[int, Work], OutRecord] | None = None,
        standby: Standby | None = None,
        contention: Contention | None = None,
        usage: Callable[[], Usage] = own_usage,
    ) -> None:
        self._standby = standby
        self.contention = contention if contention is not None else Contention()
        self._taking: asyncio.Task[StandbyHandover | None] | None = None  # from the standby
        self.consult, self.letter_value, self.report = consult, letter_value, report
        self.log, self.topics, self.group, self.partition = log, topics, group, partition
        self.clock = clock
        self.settings = settings or WorkerSettings()
        self.label = str(partition)
        self.suspicion = PoisonTracker()
        self.stopping = asyncio.Event()
        self.position = 0
        self.committed = 0
        self.end_offset = 0
        self._machine_factory = machine_factory
        self._state = WorkerState.STARTING
        self._moves = 0
        self._watchdog, self._usage = Watchdog(), usage
        self._committed_s = clock.monotonic()
        self._last_error = ""
        self._failures = 0  # since the last commit
        self._blameless_failures = 0  # those of the machine that no input record caused

    # ---- public interface -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until :meth:`stop`.

        Raises: Fenced (another owner took over); LogDamaged; MachineFailed; any error that no restart cures.
        """
        if self._standby is not None:
            self._taking = asyncio.create_task(self._standby.promote())
        watching = asyncio.create_task(self._watch(), name=f"watchdog of partition {self.partition}")
        try:
            while not self.stopping.is_set():
                try:
                    await self._live()
                except (TransactionFailed, LogUnavailable) as error:
                    await self._back_off(error, "log")
                except OffsetOutOfRange as error:  # retention overtook the fold (a restart cures that) or the group
                    self._count_blameless(error)
                    await self._back_off(error, "offset")
                except StateMachineError as error:
                    cause = error.__cause__ or error
                    if not error.blamed:
                        self._count_blameless(cause)
                    await self._back_off(cause, "machine")
        except asyncio.CancelledError:
            self._state = WorkerState.STOPPED
            raise
        except BaseException as error:
            self._state, self._last_error = WorkerState.FAILED, one_line(error)
            if isinstance(error, Fenced):
                metrics.fenced.labels(self.label).inc()
                log.warning("worker.fenced", partition=self.partition, group=self.group, error=self._last_error)
            else:
                log.error("worker.failed", partition=self.partition, group=self.group, error=self._last_error)
            raise
        finally:
            watching.cancel()
            metrics.lag_records.labels(self.label).set(0)
            if self._taking is not None:
                (folded,) = await asyncio.gather(self._taking, return_exceptions=True)  # its error would hide the first
                if isinstance(folded, StandbyHandover):
                    await close_reader(folded.reader)
        self._state = WorkerState.STOPPED

    def stop(self) -> None:
        """Makes :meth:`run` commit everything applied so far and return."""
        self.stopping.set()

    def progress(self) -> WorkerProgress:
        """Returns the worker's progress. Cheap; for health checks and metrics."""
        idle_s = self._available_s()
        stalled = self.end_offset > self.committed and idle_s > self.settings.stall_after_s
        return WorkerProgress(
            partition=self.partition,
            state=self._state,
            position=self.position,
            committed=self.committed,
            end_offset=self.end_offset,
            idle_s=idle_s,
            failures=self._failures,
            last_error=self._last_error,
            serving=self._state is WorkerState.RUNNING and not stalled,
        )

    # ---- one life of a machine ------------------------------------------------------------------------------------

    async def _live(self) -> None:
        self._state = WorkerState.FOLDING
        self.record_progress()
        started_s = self.clock.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            # 1 take over, which fences the previous owner
            owner = await self.log.take_over(self.group, self.topics.requests, self.partition)
            stack.push_async_callback(_close, owner.close)
            check_ends(owner)
            committed = await owner.committed()  # 2
            reader = await self._reader_of(owner)  # 3 seek
            stack.push_async_callback(_close, reader.close)
            start = await reader.first_offset() if committed is None else committed
            reader.seek(start)
            self._committed_s = self.clock.monotonic()
            self.position = self.committed = start
            self.end_offset = await reader.end_offset()
            machine = await self._folded(owner, is_new=committed is None)  # 4, 5
            if machine is None:
                return
            metrics.fold_seconds.labels(self.label).observe(self.clock.monotonic() - started_s)
            self._state = WorkerState.RUNNING
            self.record_progress()
            log.info("worker.running", partition=self.partition, group=self.group, position=start)
            await _WorkerRun(self, machine, owner, reader).run()  # 6, 7, 8

    async def _reader_of(self, owner: PartitionOwner) -> LogReader:
        """Returns the reader of the input. Others are not asked about input that is not durable."""
        if self.consult is None and isinstance(owner, EarlyInputOwner):
            return owner.early_reader()
        return await self.log.reader(self.topics.requests, self.partition)

    async def _folded(self, owner: PartitionOwner, *, is_new: bool) -> StateMachine | None:
        """Folds the state topic to its end (4), then calls the machine's ``folded`` (5). None: stopped meanwhile.

        Raises LogDamaged if the state is not what the last commit left.
        """
        taking, self._taking = self._taking, None
        prepared = None if taking is None else await taking
        machine: StateMachine = call_machine(self._machine_factory) if prepared is None else prepared.machine
        reader = await self.log.reader(self.topics.state, self.partition) if prepared is None else prepared.reader
        live = live_keys_of(self.log) if prepared is None else prepared.live
        try:
            end = await reader.end_offset()
            if is_new and end > 0:
                # The first commit carries the input position. So another group wrote this state, or the log lost the
                # position.
                log.warning("worker.state_without_position", partition=self.partition, group=self.group)
            if prepared is not None:
                log.info("worker.takes_standby", partition=self.partition, records=max(0, end - reader.position))
            while reader.position < end:
                before = reader.position
                records = await reader.read(self.settings.max_records_fold, _FOLD_READ_S)
                if reader.position > before:
                    self.record_progress()
                elif self._available_s() > self.settings.fold_stall_s:
                    state = f"{self.topics.state}[{self.partition}]"
                    raise LogUnavailable(f"{state}: no records from offset {before} on; its end is {end}")
                call_machine(fold_all, machine, live, records)
                await asyncio.sleep(0)  # let other tasks run
                if self.stopping.is_set():
                    return None
        finally:
            await _close(reader.close)
        check_state(owner, live)
        call_machine(machine.finish_fold, self.clock.now_ns())
        return machine

    async def _back_off(self, error: BaseException, reason: str) -> None:
        """Records a failure and waits. The caller then builds a new machine."""
        self._state = WorkerState.BACKING_OFF
        self._failures += 1
        self._last_error = one_line(error)
        metrics.rebuilds.labels(self.label, reason).inc()
        wait_s = min(self.settings.backoff_limit_s, self.settings.backoff_first_s * 2 ** min(self._failures - 1, 20))
        log.error(
            "worker.rebuild",
            partition=self.partition,
            reason=reason,
            error=self._last_error,
            wait_s=wait_s,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.stopping.wait()

    def _count_blameless(self, error: BaseException) -> None:
        self._blameless_failures += 1
        if self._blameless_failures >= self.settings.max_machine_failures:
            raise MachineFailed(
                f"partition {self.partition} failed {self._blameless_failures} times without a commit between; "
                f"the last time: {one_line(error)}"
            ) from error

    # ---- reports of a life ------------------------------------------------------------------------------------------

    def record_progress(self) -> None:
        """Records that there was progress, or nothing to do."""
        self._moves += 1

    def _available_s(self) -> float:
        """Returns the worker's available time since it moved."""
        return 0.0 if self._watchdog.moves(self._moves) else self._watchdog.available_s

    async def _watch(self) -> None:
        """Counts the worker's available time while it does not move; never returns."""
        loop, allowed_s = asyncio.get_running_loop(), min(self.settings.stall_after_s, self.settings.fold_stall_s)
        while True:
            due_s = loop.time() + aligned_s(look_every_s(allowed_s))
            await asyncio.sleep(due_s - loop.time())
            if not self._watchdog.moves(self._moves):
                now_s = loop.time()
                self._watchdog.look(Reading(now_s, now_s - due_s, self._usage()), allowed_s)

    def is_recommit_due(self) -> bool:
        """Tells whether the last commit of the position is too long ago."""
        return self.clock.monotonic() - self._committed_s >= self.settings.recommit_after_s

    def was_committed(self, position: int) -> None:
        """Records that outputs up to ``position`` are durable."""
        self.committed = position
        self._committed_s = self.clock.monotonic()
        self._failures = self._blameless_failures = 0
        self._last_error = ""
        self.suspicion.forget_before(position)
        self.record_progress()


class _WorkerRun:
    """The main loop over one machine's life. Its state dies with the machine."""

    def __init__(
        self, worker: PartitionWorker, machine: StateMachine, owner: PartitionOwner, reader: LogReader
    ) -> None:
        self._worker, self._machine, self._owner, self._reader = worker, machine, owner, reader
        self._prompt = owner if isinstance(owner, InlineCommitOwner) else None
        self._stepped = machine if isinstance(machine, SteppedMachine) else None
        self._settings, self._clock = worker.settings, worker.clock
        self._disposal, self._young = Disposal(self._clock.processor_s), YoungGarbage()
        self._meter = WorkMeter(self._clock.processor_s, self._clock.monotonic)
        self._observe = metrics.apply_seconds.labels(worker.label).observe
        self._in_flight: asyncio.Task[None] | None = None
        self._outputs: list[OutRecord] = []  # of the next transaction, as are the next three
        self._output_bytes = 0
        self._inputs = 0
        self._dirty = False  # there is something to commit
        self._gathers_since: tuple[float, float] | None = None  # processor time and clock (seconds)
        self._deferred_from: int | None = None  # the first input whose records the machine may hold back
        self._unapplied: Sequence[Record] = ()  # read, but beyond the limits of one call of the machine
        self._is_position_new = True  # the next transaction carries the input position
        self._tick_was_empty = False
        self._read_none = False  # the last read gave nothing
        self._end_checked_s = self._clock.monotonic()

    async def run(self) -> None:
        try:
            while not self._worker.stopping.is_set():
                await self._commit_if_free()  # 8 one transaction; the loop does not wait for its end
                if self._is_full():
                    await self._finish_commit()
                    continue
                records = await self._next()  # 6 read until records arrive or the deadline passes
                if records:
                    await self._apply(records)  # 7 apply, tick
                if await self._tick_if_due():
                    await asyncio.sleep(0)  # decisions may take long, too
                if not records and self._dirty:
                    await self._finish_commit()  # nothing to add: wait until the next commit may start
                elif not records and self._in_flight is None:
                    self._worker.record_progress()  # nothing to do is not a stall
                    self._dirty = self._is_position_new = self._is_position_new or self._worker.is_recommit_due()
                await self._update_end()
            await self._finish_commit()
            await self._commit_if_free()
            await self._finish_commit()
        finally:
            await self._wait_for_commit()

    # ---- 6 read ---------------------------------------------------------------------------------------------------

    def _is_careful(self) -> bool:
        """Tells whether a machine failed on input near here. Then each transaction answers one input record."""
        return self._worker.position < self._worker.suspicion.until

    def _appetite(self) -> int:
        if self._is_careful():
            return 1
        return min(self._settings.max_records_apply, self._settings.max_records_batch - self._inputs)

    async def _next(self) -> Sequence[Record]:
        """Returns the input of one call of the machine; empty if none came in time."""
        if not self._unapplied:
            self._unapplied = await self._read()
        most, count, size_bytes = min(self._appetite(), len(self._unapplied)), 0, 0
        while count < most and size_bytes < self._settings.max_bytes_apply:
            size_bytes += len(self._unapplied[count].value or b"")
            count += 1
        taken, self._unapplied = self._unapplied[:count], self._unapplied[count:]
        self._meter.input_bytes += size_bytes
        now_s = self._clock.monotonic()
        for record in taken:
            self._worker.contention.note(record.key, now_s)
        return taken

    async def _read(self) -> Sequence[Record]:
        """Reads; none if none came in time, the transaction in flight ended, or the worker shall stop."""
        is_idle, self._read_none = self._read_none, False
        if self._dirty and self._in_flight is not None and self._prompt is None:
            # What comes meanwhile is in the next transaction. Without this, whatever came after the first of them would
            # wait for one transaction more. (A commit of an owner that is prompt is over sooner than a task is made.)
            return await self._read_until(self._in_flight, self._idle_s())
        wait_s = self._wait_s()
        if wait_s <= _STOPPABLE_S or not is_idle:
            records = await self._reader.read(self._appetite(), min(wait_s, _STOPPABLE_S))
        else:
            stopping = asyncio.ensure_future(self._worker.stopping.wait())
            try:
                is_longest = wait_s == self._settings.idle_wait_s
                records = await self._read_until(stopping, aligned_s(wait_s) if is_longest else wait_s)
            finally:
                stopping.cancel()
        self._read_none = not records
        return records

    async def _read_until(self, ended: asyncio.Future[Any], wait_s: float) -> Sequence[Record]:
        """Reads until records arrive, or ``ended`` is done."""
        reading = asyncio.ensure_future(self._reader.read(self._appetite(), wait_s))
        try:
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                reading.cancel()  # a reader that is cancelled loses nothing
                await asyncio.wait({reading})
        return () if reading.cancelled() else reading.result()

    def _is_full(self) -> bool:
        """Tells whether the next transaction has reached its limits."""
        settings = self._settings
        return (
            self._inputs >= settings.max_records_batch
            or len(self._outputs) + self._machine.pending_records() >= settings.max_output_records
            or self._output_bytes >= settings.max_output_bytes
            or (self._is_careful() and self._in_flight is not None)
        )

    def _wait_s(self) -> float:
        """Returns how long a read may wait (seconds): until the machine's deadline; 0 with something to commit."""
        return 0.0 if self._dirty else self._idle_s()

    def _idle_s(self) -> float:
        """Returns how long the worker may do nothing (seconds)."""
        deadline_ns = call_machine(self._machine.next_deadline_ns)
        if deadline_ns is None:
            return self._settings.idle_wait_s
        left_s = (deadline_ns - self._clock.now_ns()) / 1e9
        least_s = self._settings.empty_tick_wait_s if self._tick_was_empty else 0.0
        return max(least_s, min(self._settings.idle_wait_s, left_s))

    async def _update_end(self) -> None:
        """Updates the end offset, and with it the lag."""
        worker, now_s = self._worker, self._clock.monotonic()
        if worker.position > worker.end_offset:
            worker.end_offset = worker.position
        if now_s - self._end_checked_s >= _END_OFFSET_INTERVAL_S:
            self._end_checked_s = now_s
            is_idle = not self._dirty and self._in_flight is None
            worker.end_offset = await self._reader.end_offset(_END_OFFSET_AGE_S if is_idle else 0.0)
            metrics.lag_records.labels(worker.label).set(worker.progress().lag)

    # ---- 7 apply, tick --------------------------------------------------------------------------------------------

    async def _apply(self, records: Sequence[Record]) -> None:
        worker = self._worker
        first, after = records[0].offset, records[-1].offset + 1
        reason = worker.suspicion.put_aside.get(first)
        if reason is not None and len(records) == 1:
            self._add_outputs([self._dead_letter(records[0], reason)])
        else:
            try:
                if worker.consult is not None:
                    await self._consult(worker.consult, records)
                if self._deferred_from is None:
                    self._deferred_from = first
                if self._stepped is not None:
                    await self._gather(self._stepped.apply_in_steps(records, self._clock.now_ns()))
                else:
                    self._add_outputs(self._decide(self._machine.apply, records, self._clock.now_ns()))
                if self._is_careful():
                    await self._flush_machine()
            except StateMachineError as error:
                reason = f"the machine fails on this record ({kind_of(error.__cause__)})"
                worker.suspicion.record_failure(first, after, reason, self._settings.quarantine_after)
                error.blamed = True
                raise
        worker.position = after if self._unapplied else self._reader.position
        self._inputs += len(records)
        self._dirty = self._is_position_new = True
        await asyncio.sleep(0)  # a batch may take long: let other tasks run

    async def _consult(
        self, consult: Callable[[Any, Sequence[Record]], Awaitable[None]], records: Sequence[Record]
    ) -> None:
        try:
            await consult(self._machine, records)
        except BusError:
            raise
        except Exception as error:
            raise StateMachineError(blamed=False) from error

    def _decide(self, call: Callable[..., T], *arguments: object) -> T:
        """Calls a part of the machine's work and measures its duration."""
        started_s = self._clock.monotonic()
        try:
            return call_machine(call, *arguments)
        finally:
            self._observe(self._clock.monotonic() - started_s)

    async def _tick_if_due(self) -> bool:
        """Calls the machine's ``tick`` if its deadline has come. Returns whether this gave records."""
        deadline_ns = call_machine(self._machine.next_deadline_ns)
        now_ns = self._clock.now_ns()
        if deadline_ns is None or deadline_ns > now_ns or self._is_full():
            self._tick_was_empty = False
            return False
        pending = self._machine.pending_records()
        before = len(self._outputs)
        if self._stepped is not None:
            await self._gather(self._stepped.tick_in_steps(now_ns))
        else:
            self._add_outputs(self._decide(self._machine.tick, now_ns))
        outputs, more = len(self._outputs) - before, self._machine.pending_records()
        self._tick_was_empty = not outputs and more == pending
        self._dirty = self._dirty or outputs > 0 or more > 0
        return not self._tick_was_empty

    def _add_outputs(self, outputs: Sequence[OutRecord]) -> None:
        """Adds outputs to the next transaction.

        An output that no log accepts is the machine's failure. It is detected here, while the input that caused it is
        known.
        """
        limit = self._settings.max_record_bytes
        for record in outputs:
            try:
                size = size_of(record)
                if size > limit:
                    raise RecordTooLarge(record.topic, size, limit)
            except (RecordTooLarge, InvalidRecord) as error:
                raise StateMachineError(blamed=False) from error
            self._output_bytes += size
        self._outputs.extend(outputs)

    def _dead_letter(self, record: Record, reason: str) -> OutRecord:
        worker = self._worker
        origin = f"{record.topic}/{record.partition}/{record.offset}"
        value = record.value
        if worker.letter_value is not None and value:
            value, left_out = worker.letter_value(value)
            reason += left_out
        metrics.quarantined.labels(worker.label).inc()
        log.error("worker.put_aside", origin=origin, why=reason)
        headers = (*record.headers, (HEADER_ERROR, reason.encode()), (HEADER_ORIGIN, origin.encode()))
        letter = OutRecord(worker.topics.dead_letters, record.partition, record.key or b"", value, headers)
        if size_of(letter) > self._settings.max_record_bytes:  # the origin header tells where the whole record is
            letter = letter._replace(value=b"", headers=headers[-2:])
        return letter

    # ---- 8 commit -------------------------------------------------------------------------------------------------

    async def _commit_if_free(self) -> None:
        if self._in_flight is not None and self._in_flight.done():
            await self._finish_commit()
        if not self._dirty or self._in_flight is not None or self._gathers():
            return
        await self._flush()
        outputs, position = self._outputs, self._worker.position if self._is_position_new else None
        is_small = len(outputs) <= _PROMPT_RECORDS
        report = self._worker.report
        if report is not None and position is not None:
            outputs.append(report(position, self._meter.read()))
        self._is_position_new = False
        self._outputs, self._output_bytes, self._inputs, self._dirty = [], 0, 0, False
        if self._prompt is not None and is_small:
            with _as_of_the_machine(), self._meter.working():
                waiting = self._prompt.commit_at_once(outputs, position)
            if waiting is None:
                self._was_committed(position)
                if self._unapplied or self._reader.cached_end() > self._reader.position:
                    await asyncio.sleep(0)  # others learn of it before the machine occupies the loop again
                return
        else:
            waiting = self._owner.commit(outputs, position)
        self._in_flight = asyncio.create_task(self._commit(waiting, position, outputs))
        await asyncio.sleep(0)  # starts the commit before the machine occupies the loop again

    def _gathers(self) -> bool:
        """Tells whether the next transaction is young and small, and more comes at once.

        What a transaction changes several times, it writes once. So a few larger ones cost less than many small ones.
        Processor time measures the work, also on a machine that does other things; the clock bounds the wait.
        """
        settings, work_s, now_s = self._settings, self._clock.processor_s(), self._clock.monotonic()
        if self._gathers_since is None:
            self._gathers_since = (work_s, now_s)
        since_work_s, since_s = self._gathers_since
        gather_s = settings.gather_s * (_GATHER_SHARED if self._worker.contention.is_shared(now_s) else 1)
        young = work_s - since_work_s < gather_s and now_s - since_s < _GATHER_WAIT * gather_s
        small = self._machine.pending_records() + len(self._outputs) < settings.gather_records
        if young and small and not self._is_full() and not self._is_careful() and not self._worker.stopping.is_set():
            deadline_ns = call_machine(self._machine.next_deadline_ns)
            if self._unapplied or self._reader.cached_end() > self._reader.position:
                return True
            if deadline_ns is not None and deadline_ns <= self._clock.now_ns() and not self._tick_was_empty:
                return True
        self._gathers_since = None
        return False

    async def _flush_machine(self) -> None:
        """Takes what the machine held back. Other tasks run meanwhile. Raises StateMachineError."""
        await self._gather(iter(self._decide(self._machine.flush, self._clock.now_ns())))
        self._deferred_from = None

    async def _gather(self, parts: Iterator[Sequence[OutRecord]]) -> None:
        """Takes the machine's records in parts. Other tasks run at an empty one, if there was enough work before."""
        is_shared, meter = self._worker.contention.is_shared, self._meter
        meter.start()
        while (part := self._decide(next, parts, None)) is not None:
            if part:
                self._add_outputs(part)
            elif meter.has_worked(_TIME_SLICE_S if is_shared(self._clock.monotonic()) else _TIME_SLICE_ALONE_S):
                self._young.collect_if_due()
                meter.stop()
                await asyncio.sleep(0)
                meter.start()
        meter.stop()

    async def _flush(self) -> None:
        """Takes what the machine held back, for a transaction that ends."""
        try:
            await self._flush_machine()
        except StateMachineError as error:
            if self._deferred_from is not None:
                reason = f"the machine fails on this record ({kind_of(error.__cause__)})"
                after = self._worker.position
                self._worker.suspicion.record_failure(
                    self._deferred_from, after, reason, self._settings.quarantine_after
                )
                error.blamed = True
            raise

    async def _commit(self, waiting: Awaitable[None], position: int | None, outputs: list[OutRecord]) -> None:
        began_s = self._clock.monotonic()
        await waiting
        if self._prompt is None:
            self._meter.commit_s = self._clock.monotonic() - began_s
        self._was_committed(position)
        self._disposal.add_lists(outputs)

    def _was_committed(self, position: int | None) -> None:
        self._worker.was_committed(self._worker.committed if position is None else position)

    async def _finish_commit(self) -> None:
        """Waits for the commit in flight, and raises its error."""
        if self._in_flight is None:
            return
        try:
            with _as_of_the_machine():
                await asyncio.shield(self._in_flight)
        finally:
            if self._in_flight.done():
                self._in_flight = None

    async def _wait_for_commit(self) -> None:
        """Waits until the commit in flight ends, so that the owner is not closed during it. Raises only Fenced."""
        task = self._in_flight
        if task is None:
            return
        await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT_S)
        if not task.done():
            task.cancel()
            return
        if not task.cancelled() and isinstance(task.exception(), Fenced):
            task.result()


@contextlib.contextmanager
def _as_of_the_machine() -> Iterator[None]:
    """The log's rules are stricter than those of ``_add_outputs``."""
    try:
        yield
    except (RecordTooLarge, InvalidRecord) as error:
        raise StateMachineError(blamed=False) from error


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    """Closes in bounded time. Does not raise, so that the error that led here stays visible."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await close()
    except Exception as error:
        log.warning("worker.close_failed", error=one_line(error))
