"""The embedded log: one file, one process, durable. README.md of libs/bus has a picture.

Each thread owns some parts:

    event loop      tails (sqlite_publishing.py), waiting readers, queued bytes, futures. All public methods run here.
                    It commits small units itself while the writer has nothing to do, for a bounded share of its time.
    writer          the writing connection, offsets, owners' epochs. It takes all waiting units from a queue and
                    commits them together: one SQL transaction, one fsync, off the event loop.
    reader          a reading connection, for records that are no longer in the tail.
    maintenance     a reading connection. It finds the records that retention and compaction may remove, and gives the
                    removal to the writer in small units. It also moves the write-ahead log into the file, so that
                    commits need not.

A unit is a transaction, or the records that the writers appended in one turn of the event loop. The writer commits a
unit as a whole or not at all. A trigger updates the group when a block carries an input position. So the usual commit
is one SQL statement: each call into SQLite releases the interpreter's lock and must wait to get it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import structlog
from muster_runtime.private_files import make_private_database, make_private_directory, tighten

from muster_bus import log_mark, metrics
from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.record_limits import RecordRules
from muster_bus.backends.sqlite_breaks import refuse_breaks, was_written_by_older
from muster_bus.backends.sqlite_chain import (
    Chains,
    add_partitions,
    adopt,
    begin,
    is_chained,
    is_compacted,
    note_claims,
    refuse_hole,
)
from muster_bus.backends.sqlite_commits import Committer
from muster_bus.backends.sqlite_handles import CLOSE_TIMEOUT_S, SqliteOwner, SqliteReader, SqliteWriter
from muster_bus.backends.sqlite_maintenance import Maintenance
from muster_bus.backends.sqlite_mark import MarkWriter, mark_path, read_mark, write_mark
from muster_bus.backends.sqlite_publishing import Publisher, Watcher
from muster_bus.backends.sqlite_read_only import open_read_only
from muster_bus.backends.sqlite_schema import (
    OFFSET_BITS,
    OFFSET_MASK,
    SELECT_BLOCKS,
    connect,
    create,
    identify,
    is_new,
    lock,
    mark_of,
    reading_error,
)
from muster_bus.backends.sqlite_work_items import (
    CommitUnit,
    GroupClaim,
    OwnerEpoch,
    StoredPartition,
    TimeBudget,
    WriterTask,
)
from muster_bus.backends.tail import PartitionTail
from muster_bus.clock import Clock, SystemClock
from muster_bus.errors import LogClosed, LogDamaged, LogError, LogUnavailable, OffsetOutOfRange, TopicMismatch
from muster_bus.log import Record
from muster_bus.log_mark import LogMark
from muster_bus.topics import TopicSpec

if TYPE_CHECKING:
    from muster_bus.settings import LogSettings

log = structlog.get_logger(__name__)

_ALONE_BYTES = 16 << 10  # the loop commits no larger unit
_STAGED_S = 0.005  # an append waits for what follows from it for so long
_ALLOWED_S = 0.01  # saved for a few commits on a slow disk
_READ_BYTES = 4 << 20  # limit of stored bytes per read from the file

T = TypeVar("T")


class SqliteLog:
    """See :class:`muster_bus.log.Log`.

    A file belongs to one log of one process at a time. The start of a second log raises LogUnavailable. The start of a
    log that has less than its side file knows raises LogBehind.

    :ivar loss: what is lost, if an operator accepted it and the RMs' histories do not know yet; "": nothing.
    """

    def __init__(self, specs: Sequence[TopicSpec], settings: LogSettings, clock: Clock) -> None:
        self.settings = settings
        self.path = Path(settings.sqlite_path)
        self._clock = clock
        self.rules = RecordRules(specs, settings.max_record_bytes)
        self._specs = specs
        self._partitions: dict[tuple[str, int], StoredPartition] = {}
        count_written = {spec.name: metrics.records_written.labels(spec.name).inc for spec in specs}
        self._publisher = Publisher(settings.sqlite_tail_bytes, count_written, clock.processor_s)
        self._claims: dict[tuple[str, str, int], GroupClaim] = {}
        self._state = "new"  # new → open → closed; any state → broken
        self._broken = ""
        self._lock_file: IO[bytes] | None = None
        self._queued_bytes = 0
        self._queued_units = 0  # that the writer's thread has not settled
        self._staged: tuple[CommitUnit, asyncio.TimerHandle] | None = None  # waits for what follows from it
        self._allowance = TimeBudget(settings.sqlite_loop_share, _ALLOWED_S, clock.monotonic())
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._log_id = ""
        self._accepts = False
        self.loss = ""

    # ---- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        assert self._state == "new", "a log is started once"
        self._loop = asyncio.get_running_loop()
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="muster-log-reader")
        self._packer_thread = ThreadPoolExecutor(1, thread_name_prefix="muster-log-packer")  # starts when it is needed
        await self._loop.run_in_executor(self._reader_thread, self._open)
        self._state = "open"
        self._committer = Committer(
            self.path,
            self._writing,
            report_commit=lambda units, reason: self._on_loop(self._resolve_queued, units, reason),
            broke=lambda cause: self._on_loop(self._break, cause),
            chains=self._chains,
            syncs_commits=self.settings.sqlite_synchronous == "full",
        )
        clock = self._clock if isinstance(self._clock, SystemClock) else None
        self._keeper = MarkWriter(self.path, self._log_id, read_mark(self.path), self._committer.durable_heads, clock)
        self._maintenance = Maintenance(
            self.path,
            self.settings,
            self._specs,
            self._partitions,
            self._committer,
            now_ms=self.now_ms,
            is_open=lambda: self._state == "open",
            first_moved=lambda partition, first_offset: self._on_loop(self._set_first, partition, first_offset),
            store_mark=self._keeper.store,
        )
        self._committer.start()
        self._maintenance.start()
        log.info("log.opened", path=str(self.path), partitions=len(self._partitions))

    async def close(self) -> None:
        """Commits all appended records, then closes. Later commits and appends raise LogClosed."""
        if self._state not in ("open", "broken"):
            self._state = "closed"
            return
        self._release()
        self._state = "closed"
        self._writable.set()
        for partition in self._partitions.values():
            partition.tail.signal()
        await asyncio.to_thread(self._maintenance.stop, CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self._committer.stop, CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self._keeper.store)  # (both threads have ended)
        await self._loop.run_in_executor(self._reader_thread, self._close_files)
        self._reader_thread.shutdown(wait=False)
        self._packer_thread.shutdown(wait=False)
        self._publisher.finish()  # what is durable is answered

    async def healthy(self) -> bool:
        """True when the writer's thread answers within the health time-out."""
        if self._state != "open":
            return False
        try:
            async with asyncio.timeout(self.settings.health_timeout_s):
                await self._order(lambda connection: connection.execute("SELECT 1").fetchone())
        except (TimeoutError, LogError):
            return False
        return True

    def refusal(self) -> str:
        """See :class:`muster_bus.log.LogHealth`."""
        if self._state != "open" or not self._committer.full:
            return ""
        return f"the disk of log {self.path} is full: no request is taken until there is room; reading works"

    def problems(self) -> list[str]:
        """See :class:`muster_bus.log.LogHealth`."""
        if self._state != "open" or not (wal_bytes := self._committer.blocked_wal_bytes):
            return []
        return [
            f"log {self.path}-wal has {wal_bytes >> 20} MiB, because another program reads the log and does not end"
        ]

    @property
    def name(self) -> str:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        return f"log {self.path}"

    @property
    def accepted_loss(self) -> str:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        return self.settings.accept_loss

    async def mark_loss_reported(self) -> None:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        self.loss = ""
        await asyncio.to_thread(self._keeper.mark_loss_reported)

    async def mark(self) -> LogMark:
        """See :class:`muster_bus.log_mark.MarkedLog`."""
        self.check_open()
        return self._keeper.mark()

    async def identity(self) -> str:
        self.check_open()
        return self._log_id

    async def writer(self, name: str) -> SqliteWriter:
        self.check_open()
        return SqliteWriter(self, name)

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> SqliteReader:
        self.check_open()
        self.rules.spec(topic, partition)
        stored = self._partitions[topic, partition]
        return SqliteReader(self, stored, stored.first_offset if start is None else start)

    async def take_over(self, group: str, topic: str, partition: int) -> SqliteOwner:
        self.check_open()
        self.rules.spec(topic, partition)

        def claim_partition(connection: sqlite3.Connection) -> tuple[GroupClaim, int]:
            # Runs in the writer's thread, after every commit that was queued before.
            row = connection.execute(
                "INSERT INTO claims (group_name, topic, partition, epoch) VALUES (?, ?, ?, 1) "
                "ON CONFLICT (group_name, topic, partition) DO UPDATE SET epoch = epoch + 1 "
                "RETURNING id, epoch, position",
                (group, topic, partition),
            ).fetchall()[0]
            note_claims(connection)
            claim = self._claims.setdefault((group, topic, partition), GroupClaim(row[0], 0, row[2]))
            claim.epoch = row[1]
            return claim, row[1]

        claim, epoch = await self._order(claim_partition)
        await self._publisher.wait_published()  # whoever takes over finds all that was committed before
        stored = self._partitions[topic, partition]
        return SqliteOwner(self, stored, OwnerEpoch(claim, epoch, f"{group} on {topic}[{partition}]"))

    def watch(self, watcher: Watcher) -> None:
        """Registers a watcher. The event loop calls it when a partition has a new end or beginning."""
        self._publisher.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Removes a watcher that :meth:`watch` registered."""
        self._publisher.watchers.remove(watcher)

    async def maintain(self) -> None:
        """Runs retention and compaction now, to their end. The log also runs them at intervals."""
        self.check_open()
        await asyncio.to_thread(self._maintenance.run_once)

    def check_open(self) -> None:
        """Raises LogClosed or LogUnavailable if the log is not open."""
        if self._state == "open":
            return
        if self._state == "broken":
            raise LogUnavailable(f"log {self.path} is not usable any more: {self._broken}")
        raise LogClosed(f"log {self.path} is {'not started' if self._state == 'new' else 'closed'}")

    # ---- opening (in the reader's thread, before any other thread exists) -----------------------------------------

    def _open(self) -> None:
        try:
            make_private_directory(self.path.parent)
            self._lock_file = lock(self.path)  # held until close
            self._examine()
            make_private_database(self.path)
            tighten([mark_path(self.path)])
            self._writing = connect(self.path, self.settings.sqlite_synchronous)
            self._recognise(self._writing)
            self._reading = connect(self.path, self.settings.sqlite_synchronous)
            self._load(self._writing)
        except sqlite3.Error as error:
            self._close_files()
            raise LogUnavailable(f"log {self.path} cannot be opened: {error}") from error
        except OSError as error:
            self._close_files()
            raise LogUnavailable(f"log {self.path} cannot be opened: {error.strerror}") from error
        except BaseException:
            self._close_files()
            raise

    def _examine(self) -> None:
        """Refuses a log that is not whole, before anything is changed. Raises LogBehind, LogDamaged, LogIncompatible.

        (SQLite deletes the write-ahead log beside an empty file. It also moves what it can read of one into the file
        when the last connection that may write is closed.)
        """
        if not self.path.exists() or not self.path.stat().st_size:
            self._compare(LogMark("", {}))
            return
        with contextlib.closing(open_read_only(self.path)) as reading:
            if not is_new(reading, self.path):
                topics = self.settings.topics()
                refuse_breaks(reading, self.path, (topics.requests, topics.state))
                self._compare(mark_of(reading))

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Compares the file with its side file, then creates the tables of a new log. Raises LogIncompatible,
        LogBehind.
        """
        new = is_new(connection, self.path)
        present = LogMark("", {}) if new else mark_of(connection)
        self._compare(present)
        if new:
            create(connection, self.path)
        connection.execute("PRAGMA journal_mode = WAL")
        if not present.log_id:
            connection.execute("BEGIN IMMEDIATE")
            present = LogMark(identify(connection), present.ends)
            connection.execute("COMMIT")
        if not is_chained(connection) or was_written_by_older(connection):
            connection.execute("BEGIN IMMEDIATE")
            adopt(connection)
            begin(connection)
            connection.execute("COMMIT")
        self._log_id = present.log_id
        if self._accepts:
            log.warning("log.loss_accepted", path=str(self.path), story=self.loss)
            write_mark(self.path, present, self.loss)

    def _compare(self, present: LogMark) -> None:
        side = read_mark(self.path)
        loss = log_mark.check(self.name, present, mark_path(self.path).name, side.mark, self.accepted_loss)
        self._accepts, self.loss = bool(loss), loss or side.loss

    def _load(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for spec in self._specs:
            row = connection.execute("SELECT partitions, cleanup FROM topics WHERE name = ?", (spec.name,)).fetchone()
            if row is not None and row != (spec.partitions, spec.cleanup):
                connection.execute("ROLLBACK")
                raise TopicMismatch(
                    f"topic {spec.name} in {self.path} has {row[0]} partitions ({row[1]}), "
                    f"configured are {spec.partitions} ({spec.cleanup})"
                )
            # Only what differs is written: a log on a full disk can be opened, and read.
            retention = connection.execute("SELECT retention_ms FROM topics WHERE name = ?", (spec.name,)).fetchone()
            if retention != (spec.retention_ms,):
                connection.execute(
                    "INSERT INTO topics VALUES (?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET retention_ms = excluded.retention_ms",
                    (spec.name, spec.partitions, spec.cleanup, spec.retention_ms),
                )
            if row is None:
                connection.executemany(
                    "INSERT INTO partitions (topic, partition) VALUES (?, ?) ON CONFLICT DO NOTHING",
                    [(spec.name, partition) for partition in range(spec.partitions)],
                )
        add_partitions(connection)
        connection.execute("COMMIT")
        self._chains = Chains(connection)
        rows = connection.execute("SELECT id, topic, partition, first_offset, cleaned_to, kept FROM partitions")
        for id_, topic, partition, first, cleaned_to, kept in rows.fetchall():
            newest = connection.execute(
                "SELECT next_offset FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1",
                (id_ << OFFSET_BITS, (id_ + 1) << OFFSET_BITS),
            ).fetchone()
            end = newest[0] if newest is not None else first
            self._partitions[topic, partition] = StoredPartition(
                id_, topic, partition, PartitionTail(end), first, cleaned_to, kept, end
            )
        for id_, group, topic, partition, epoch, position in connection.execute("SELECT * FROM claims"):
            self._claims[group, topic, partition] = GroupClaim(id_, epoch, position)

    def _close_files(self) -> None:
        for name in ("_reading", "_writing"):
            connection = getattr(self, name, None)
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # a broken file is closed as far as possible
                    connection.close()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    # ---- the event loop's side ------------------------------------------------------------------------------------

    async def wait_writable(self) -> None:
        """Returns when fewer than ``max_queued_bytes`` wait for the writer."""
        self.check_open()
        await self._writable.wait()
        self.check_open()

    def submit(self, unit: CommitUnit) -> None:
        """Commits a unit after the staged one, or gives both to the writer."""
        units = [unit]
        if self._staged is not None:
            units.insert(0, self._staged[0])
            self._staged[1].cancel()
            self._staged = None
        if not self._has_queued and unit.size_bytes <= _ALONE_BYTES and self._commit_now(units):
            return
        self._queued_units += len(units)
        self._queued_bytes += sum(queued.size_bytes for queued in units)
        metrics.append_queue_bytes.set(self._queued_bytes)
        if self._queued_bytes >= self.settings.max_queued_bytes:
            self._writable.clear()
        self._committer.put(units)

    @property
    def _has_queued(self) -> bool:
        """Whether a unit is not settled: the loop commits nothing before the offsets of all others are visible."""
        return self._queued_units > 0 or self._publisher.is_busy

    def submit_appends(self, unit: CommitUnit) -> None:
        """Stages a unit of appends if the owner of their partition waits for just that. Otherwise commits it."""
        partition = unit.runs[0].partition
        if self._staged is not None and partition.waiting is not None and partition.waiting is partition.staged_for:
            staged = self._staged[0]
            if staged.try_merge(unit, _ALONE_BYTES):  # the owner has not read it yet: it gets both
                partition.staged = staged.runs[0].records(partition.tail.end, staged.timestamp_ms)
                return
        if (
            partition.waiting is None
            or len(unit.runs) > 1
            or unit.size_bytes > _ALONE_BYTES
            or self._has_queued
            or self._staged is not None
            or self._state != "open"
            or self._committer.full
        ):
            self.submit(unit)
            return
        unit.read_by = partition.staged_for = partition.waiting
        partition.staged = unit.runs[0].records(partition.tail.end, unit.timestamp_ms)
        self._staged = unit, self._loop.call_later(_STAGED_S, self._release)
        partition.tail.signal()

    def _release(self) -> None:
        """Commits the staged unit without what follows from it."""
        if self._staged is not None:
            unit, timer = self._staged
            timer.cancel()
            self._staged = None
            self.submit(unit)

    def _commit_now(self, units: list[CommitUnit]) -> bool:
        """Commits units in the loop, if it has time for that and the writer has nothing to do. Returns whether."""
        began_s = self._clock.monotonic()
        if self._state != "open" or not self._allowance.has_some(began_s):
            return False
        done, reason = self._committer.commit_now(units)
        if done:
            self._allowance.spend(self._clock.monotonic() - began_s)
            self._publisher.publish(units, reason)
        return done

    def partition(self, topic: str, partition: int) -> StoredPartition:
        """Returns a partition. The caller has checked that it exists."""
        return self._partitions[topic, partition]

    def ids_of(self, topic: str) -> frozenset[int]:
        """Returns the ids of a topic's partitions, as watchers get them."""
        return frozenset(partition.id for partition in self._partitions.values() if partition.topic == topic)

    def now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return self._clock.monotonic()

    async def read_file(self, partition: StoredPartition, position: int, max_records: int) -> list[Record]:
        """Reads records that are no longer in the tail. May return more than asked for. Raises OffsetOutOfRange,
        LogUnavailable, LogDamaged.
        """
        try:
            return await self._loop.run_in_executor(
                self._reader_thread, self._read_blocks, partition, position, partition.tail.end, max_records
            )
        except RuntimeError as error:  # the executor is shut down
            raise LogClosed(f"log {self.path} is closed") from error

    def _read_blocks(self, partition: StoredPartition, position: int, end: int, max_records: int) -> list[Record]:
        base, size, at = partition.id << OFFSET_BITS, 0, position
        is_contiguous = not is_compacted(self.rules.spec(partition.topic, partition.partition).cleanup)
        records: list[Record] = []
        reading = self._reading
        try:
            reading.execute("BEGIN")  # one snapshot for both queries
            try:
                (first,) = reading.execute(
                    "SELECT first_offset FROM partitions WHERE id = ?", (partition.id,)
                ).fetchone()
                if position < first:
                    raise OffsetOutOfRange(partition.topic, partition.partition, position, first, end)
                (start,) = reading.execute(
                    "SELECT coalesce(max(id), ?) FROM blocks WHERE id >= ? AND id <= ?", (base, base, base | position)
                ).fetchone()
                for row in reading.execute(SELECT_BLOCKS, (start, base + (1 << OFFSET_BITS), -1)):
                    block = Block(row[0] & OFFSET_MASK, *row[1:])
                    if block.next_offset <= position:
                        continue
                    try:
                        if is_contiguous and block.first_offset > at:
                            refuse_hole(reading, partition.topic, partition.partition, at, block.first_offset)
                        decoded = blocks.decode(partition.topic, partition.partition, block)
                    except LogDamaged:
                        if records:  # the next read begins at the damaged block
                            break
                        raise
                    if decoded[0].offset < position or block.next_offset > end:  # the file may be ahead of the tail
                        decoded = [record for record in decoded if position <= record.offset < end]
                    records.extend(decoded)
                    at = block.next_offset
                    size += len(block.body)
                    if len(records) >= max_records or size >= _READ_BYTES or block.next_offset >= end:
                        break
            finally:
                reading.execute("ROLLBACK")
        except (sqlite3.Error, ValueError) as error:
            raise reading_error(self.path, error, partition.topic, partition.partition, position, end) from error
        if not records:  # retention and compaction never remove the newest record before the end
            raise LogDamaged(partition.topic, partition.partition, position, end, "nothing is there")
        return records

    async def _order(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work`` in the writer's thread, in a SQL transaction, after everything that was submitted before."""
        self._release()
        answer: asyncio.Future[T] = self._loop.create_future()

        def resolve(result: T, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self._committer.put(WriterTask(work, lambda result, error: self._on_loop(resolve, result, error)))
        return await answer

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            self._loop.call_soon_threadsafe(call, *arguments)

    async def pack(self, unit: CommitUnit) -> None:
        """See :class:`OpenLog`."""

        def work() -> None:
            for run in unit.runs:
                run.pack(unit.timestamp_ms)

        try:
            await self._loop.run_in_executor(self._packer_thread, work)
        except RuntimeError as error:  # the executor is shut down
            raise LogClosed(f"log {self.path} is closed") from error

    def _resolve_queued(self, units: Sequence[CommitUnit], reason: BaseException | None) -> None:
        self._queued_units -= len(units)
        self._queued_bytes -= sum(unit.size_bytes for unit in units)
        metrics.append_queue_bytes.set(self._queued_bytes)
        if self._queued_bytes < self.settings.max_queued_bytes:
            self._writable.set()
        self._publisher.publish_queued(units, reason)

    def _set_first(self, partition: StoredPartition, first_offset: int) -> None:
        partition.first_offset = first_offset
        self._publisher.notify_watchers(partition)

    def _break(self, reason: str) -> None:
        if self._state != "open":
            return
        self._state, self._broken = "broken", reason
        log.error("log.broken", path=str(self.path), why=reason)
        self._writable.set()
        for partition in self._partitions.values():
            partition.tail.signal()
