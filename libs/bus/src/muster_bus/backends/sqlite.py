"""The embedded log: one file, one process, durable. See README.md of libs/bus for the picture.

Threads, and what belongs to each
    event loop      tails, waiting readers, queued bytes, futures. Everything public runs here.
    writer          the writing connection, offsets, owners' epochs. Takes units from a queue, all that wait at once,
                    and commits them together: one SQL transaction, one fsync, off the event loop.
    reader          a reading connection, for records that are not in the tail any more.
    maintenance     a reading connection; finds what retention and compaction may remove, and gives the removal to the
                    writer in small units. It also moves the write-ahead log into the file, away from the commits.

A unit is a transaction, or what the writers appended in one turn of the event loop. It is committed whole or not
at all. A block with an input position updates the group by a trigger, so that the common commit is one SQL statement:
each call into SQLite gives the interpreter's lock away and has to wait for it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import structlog

from muster_bus import metrics
from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.reading import Ahead
from muster_bus.backends.rules import RecordRules
from muster_bus.backends.tail import PartitionTail
from muster_bus.clock import Clock
from muster_bus.errors import (
    Fenced,
    LogClosed,
    LogError,
    LogIncompatible,
    LogUnavailable,
    OffsetGone,
    TopicMismatch,
    TransactionFailed,
    TransactionTimeout,
)
from muster_bus.log import OutRecord, Record
from muster_bus.topics import TopicSpec

if TYPE_CHECKING:
    from muster_bus.settings import LogSettings

log = structlog.get_logger(__name__)

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4D555354  # "MUST", in the file's header: tells our file from any other SQLite file

OFFSET_BITS = 40  # of a block's row id; the rest is the partition's id: 10^12 records, 4 million partitions
OFFSET_MASK = (1 << OFFSET_BITS) - 1
_RECORD_MEMORY_BYTES = 250  # what a record in the tail costs beside its content (tuple, bytes objects)
_GROUP_BYTES = 4 << 20  # most that is committed together: bounds what those at the end wait
_GROUP_UNITS = 512
_ROWS_PER_INSERT = 64  # 7 variables a row; SQLite takes 32,766
_READ_BYTES = 4 << 20  # stored bytes that one read from the file takes at most
_PAGE_BYTES = 8192  # a commit of a few blocks touches half as many pages as with SQLite's default
_WAL_BYTES = 8 << 20  # written since the last checkpoint: time for the next
_WAL_LIMIT_BYTES = 64 << 20  # maintenance did not keep pace: the writer does the checkpoint itself
_STEP_BYTES = 1 << 20  # stored bytes that one maintenance step removes or rewrites
_STEP_BLOCKS = 256
_COMPACTION_KEYS = 200_000  # distinct keys that one pass holds in memory; what is beyond waits for the next pass
_CLOSE_TIMEOUT_S = 10.0

_SCHEMA = f"""
CREATE TABLE topics (
    name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, cleanup TEXT NOT NULL, retention_ms INTEGER NOT NULL
);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL DEFAULT 0,  -- what retention left
    cleaned_to INTEGER NOT NULL DEFAULT 0,    -- before it, compaction left one record per key
    kept INTEGER NOT NULL DEFAULT 0,          -- so many of them
    UNIQUE (topic, partition)
);
CREATE TABLE claims (
    id INTEGER PRIMARY KEY, group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL, position INTEGER,
    UNIQUE (group_name, topic, partition)
);
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY,                   -- partition id << {OFFSET_BITS} | first offset
    next_offset INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL, codec INTEGER NOT NULL, body BLOB NOT NULL,
    claim INTEGER, position INTEGER           -- the input position that this block's transaction answers
);
CREATE TRIGGER blocks_position AFTER INSERT ON blocks WHEN new.claim IS NOT NULL BEGIN
    UPDATE claims SET position = new.position WHERE id = new.claim;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""  # noqa: S608 - numbers of this module only

_INSERT_BLOCKS = [
    "INSERT INTO blocks (id, next_offset, timestamp_ms, codec, body, claim, position) VALUES "  # noqa: S608
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * rows)
    for rows in range(_ROWS_PER_INSERT + 1)
]
_SELECT_BLOCKS = (
    "SELECT id, next_offset, timestamp_ms, codec, body FROM blocks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
)

T = TypeVar("T")

# Called with a partition's id in the file, its lowest offset that exists, and one past its highest visible one.
Watcher = Callable[[int, int, int], None]


class _Stop:
    """Last thing in the writer's queue."""


@dataclass(slots=True)
class _Partition:
    """A partition; the event loop's part and, below, the writer's."""

    id: int
    topic: str
    partition: int
    tail: PartitionTail
    first_offset: int
    cleaned_to: int
    kept: int
    next_offset: int  # the writer's: offset of the next record to be written


@dataclass(slots=True)
class _Claim:
    """A group's hold on an input partition, as the file has it. The writer's; others read ``position`` only."""

    id: int
    epoch: int
    position: int | None


@dataclass(slots=True)
class _Run:
    """Consecutive records of one partition within a unit."""

    partition: _Partition
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[tuple[tuple[str, bytes], ...]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    done: list[asyncio.Future[int]] = field(default_factory=list)  # of single appends, one per record
    first_offset: int = -1  # the writer fixes it

    def add(self, record: OutRecord, size: int) -> None:
        self.keys.append(record.key)
        self.values.append(record.value)
        self.headers.append(record.headers)
        self.sizes.append(size)


@dataclass(slots=True)
class _Unit:
    """What is committed whole or not at all."""

    runs: list[_Run]
    timestamp_ms: int
    size_bytes: int
    owner: SqliteOwner | None = None
    input_position: int | None = None
    done: asyncio.Future[None] | None = None  # of a transaction
    error: BaseException | None = None


@dataclass(slots=True)
class _Order:
    """A piece of work for the writer's connection, in a SQL transaction of its own (take-over, maintenance)."""

    work: Callable[[sqlite3.Connection], object]
    done: Callable[[object, BaseException | None], None]


class SqliteLog:
    """See :class:`muster_bus.log.Log`.

    A file belongs to one process at a time, and within it to one log: a second one gets LogUnavailable.
    """

    def __init__(self, specs: Sequence[TopicSpec], settings: LogSettings, clock: Clock) -> None:
        self.settings = settings
        self.path = Path(settings.sqlite_path)
        self.clock = clock
        self.rules = RecordRules(specs, settings.max_record_bytes)
        self._specs = specs
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._claims: dict[tuple[str, str, int], _Claim] = {}
        self._state = "new"  # → open → closed; broken from any
        self._broken = ""
        self._lock_file: IO[bytes] | None = None
        self._queue: queue.SimpleQueue[_Unit | _Order | _Stop] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._tail_order: deque[tuple[PartitionTail, int, int]] = deque()  # tail, records, bytes; oldest first
        self._tail_bytes = 0
        self._written_bytes = 0  # since the last checkpoint; the writer's
        self._checkpoint_wanted = threading.Event()
        self._maintaining = threading.Lock()
        self._watchers: list[Watcher] = []

    # ---- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        assert self._state == "new", "a log is started once"
        self._loop = asyncio.get_running_loop()
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="muster-log-reader")
        await self._loop.run_in_executor(self._reader_thread, self._open)
        self._state = "open"
        self._writer_thread = threading.Thread(target=self._write_loop, name="muster-log-writer", daemon=True)
        self._writer_thread.start()
        self._stop_maintenance = threading.Event()
        self._maintenance_thread = threading.Thread(
            target=self._maintenance_loop, name="muster-log-maintenance", daemon=True
        )
        self._maintenance_thread.start()
        log.info("log.opened", path=str(self.path), partitions=len(self._partitions))

    async def close(self) -> None:
        """Commits what was appended, then closes. Commits and appends that come later raise LogClosed."""
        if self._state not in ("open", "broken"):
            self._state = "closed"
            return
        self._state = "closed"
        self._room.set()
        for partition in self._partitions.values():
            partition.tail.wake()
        self._stop_maintenance.set()
        self._checkpoint_wanted.set()
        await asyncio.to_thread(self._maintenance_thread.join, _CLOSE_TIMEOUT_S)
        self._queue.put(_Stop())
        await asyncio.to_thread(self._writer_thread.join, _CLOSE_TIMEOUT_S)
        await self._loop.run_in_executor(self._reader_thread, self._close_files)
        self._reader_thread.shutdown(wait=False)

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

    async def writer(self, name: str) -> SqliteWriter:
        self.check_open()
        return SqliteWriter(self, name)

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> SqliteReader:
        self.check_open()
        self.rules.spec(topic, partition)
        place = self._partitions[topic, partition]
        return SqliteReader(self, place, place.first_offset if start is None else start)

    async def take_over(self, group: str, topic: str, partition: int) -> SqliteOwner:
        self.check_open()
        self.rules.spec(topic, partition)

        def take(connection: sqlite3.Connection) -> tuple[_Claim, int]:
            # Runs in the writer's thread after every commit that was queued before: those are finished.
            row = connection.execute(
                "INSERT INTO claims (group_name, topic, partition, epoch) VALUES (?, ?, ?, 1) "
                "ON CONFLICT (group_name, topic, partition) DO UPDATE SET epoch = epoch + 1 "
                "RETURNING id, epoch, position",
                (group, topic, partition),
            ).fetchall()[0]
            claim = self._claims.setdefault((group, topic, partition), _Claim(row[0], 0, row[2]))
            claim.epoch = row[1]
            return claim, row[1]

        claim, epoch = await self._order(take)
        return SqliteOwner(self, claim, epoch, f"{group} on {topic}[{partition}]")

    def watch(self, watcher: Watcher) -> None:
        """Has each partition's new ends and beginnings told, on the event loop, as they become visible."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Takes :meth:`watch` back."""
        self._watchers.remove(watcher)

    async def maintain(self) -> None:
        """Runs retention and compaction now, to their end. The log does so itself from time to time."""
        self.check_open()
        await asyncio.to_thread(self._maintain_once)

    def check_open(self) -> None:
        """Raises LogClosed, LogUnavailable."""
        if self._state == "open":
            return
        if self._state == "broken":
            raise LogUnavailable(f"log {self.path} is not usable any more: {self._broken}")
        raise LogClosed(f"log {self.path} is {'not started' if self._state == 'new' else 'closed'}")

    # ---- opening (in the reader's thread, before any other thread exists) -----------------------------------------

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock()
            self._writing = self._connect()
            self._check_schema(self._writing)
            self._reading = self._connect()
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

    def _lock(self) -> None:
        # A file of its own: closing any descriptor of the database's file would drop SQLite's locks on it.
        self._lock_file = Path(f"{self.path}.lock").open("ab")  # noqa: SIM115 - held until close
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogUnavailable(
                f"log {self.path} is in use by another process (or another log of this one); "
                "the embedded log belongs to one at a time"
            ) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=5.0
        )
        try:
            connection.execute(f"PRAGMA synchronous = {self.settings.sqlite_synchronous.upper()}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # see _checkpoint
            connection.execute("PRAGMA cache_size = -8192")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application_id == 0 and version == 0 and tables == 0:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            _sync_directory(self.path.parent)
        elif application_id != APPLICATION_ID:
            raise LogIncompatible(f"{self.path} is not a log of Muster")
        elif version != SCHEMA_VERSION:
            raise LogIncompatible(f"log {self.path} has schema {version}, this version needs {SCHEMA_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")

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
            connection.execute(
                "INSERT INTO topics VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET retention_ms = excluded.retention_ms",
                (spec.name, spec.partitions, spec.cleanup, spec.retention_ms),
            )
            for partition in range(spec.partitions):
                connection.execute(
                    "INSERT INTO partitions (topic, partition) VALUES (?, ?) ON CONFLICT DO NOTHING",
                    (spec.name, partition),
                )
        connection.execute("COMMIT")
        rows = connection.execute("SELECT id, topic, partition, first_offset, cleaned_to, kept FROM partitions")
        for id_, topic, partition, first, cleaned_to, kept in rows.fetchall():
            newest = connection.execute(
                "SELECT next_offset FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1",
                (id_ << OFFSET_BITS, (id_ + 1) << OFFSET_BITS),
            ).fetchone()
            end = newest[0] if newest is not None else first
            self._partitions[topic, partition] = _Partition(
                id_, topic, partition, PartitionTail(end), first, cleaned_to, kept, end
            )
        for id_, group, topic, partition, epoch, position in connection.execute("SELECT * FROM claims"):
            self._claims[group, topic, partition] = _Claim(id_, epoch, position)

    def _close_files(self) -> None:
        for name in ("_reading", "_writing"):
            connection = getattr(self, name, None)
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # a broken file is closed as far as it goes
                    connection.close()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    # ---- the event loop's side ------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Returns when fewer than ``max_queued_bytes`` wait for the writer."""
        self.check_open()
        await self._room.wait()
        self.check_open()

    def submit(self, unit: _Unit) -> None:
        """Gives a unit to the writer."""
        self._queued_bytes += unit.size_bytes
        metrics.append_queue_bytes.set(self._queued_bytes)
        if self._queued_bytes >= self.settings.max_queued_bytes:
            self._room.clear()
        self._queue.put(unit)

    def partition(self, topic: str, partition: int) -> _Partition:
        """A partition that was checked before."""
        return self._partitions[topic, partition]

    def now_ms(self) -> int:
        return self.clock.now_ns() // 1_000_000

    async def read_file(self, place: _Partition, position: int, max_records: int) -> list[Record]:
        """Records that are older than the tail; may give more than asked for. Raises OffsetGone, LogUnavailable."""
        try:
            return await self._loop.run_in_executor(
                self._reader_thread, self._read_blocks, place, position, place.tail.end, max_records
            )
        except RuntimeError as error:  # the executor is shut down
            raise LogClosed(f"log {self.path} is closed") from error

    def _read_blocks(self, place: _Partition, position: int, end: int, max_records: int) -> list[Record]:
        base, records, size = place.id << OFFSET_BITS, [], 0
        reading = self._reading
        try:
            reading.execute("BEGIN")  # one snapshot for both questions
            try:
                (first,) = reading.execute("SELECT first_offset FROM partitions WHERE id = ?", (place.id,)).fetchone()
                if position < first:
                    raise OffsetGone(place.topic, place.partition, position, first, end)
                (start,) = reading.execute(
                    "SELECT coalesce(max(id), ?) FROM blocks WHERE id >= ? AND id <= ?",
                    (base, base, base | position),
                ).fetchone()
                for row in reading.execute(_SELECT_BLOCKS, (start, base + (1 << OFFSET_BITS), -1)):
                    block = Block(row[0] & OFFSET_MASK, *row[1:])
                    if block.next_offset <= position:
                        continue
                    found = blocks.decode(place.topic, place.partition, block)
                    if found[0].offset < position or block.next_offset > end:  # the file may be ahead of the tail
                        found = [record for record in found if position <= record.offset < end]
                    records.extend(found)
                    size += len(block.body)
                    if len(records) >= max_records or size >= _READ_BYTES or block.next_offset >= end:
                        break
            finally:
                reading.execute("ROLLBACK")
        except (sqlite3.Error, ValueError) as error:
            raise LogUnavailable(f"log {self.path} cannot be read: {error}") from error
        if not records:  # the newest record before the end is never removed
            raise LogUnavailable(
                f"log {self.path} is damaged: {place.topic}[{place.partition}] has nothing from {position} to {end}"
            )
        return records

    async def _order(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Has the writer's thread do something, in a SQL transaction, after all that was queued before."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def settle(result: T, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self._queue.put(_Order(work, lambda result, error: self._on_loop(settle, result, error)))
        return await answer

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call, *arguments)

    def _settle(self, units: Sequence[_Unit], reason: BaseException | None) -> None:
        """Publishes committed units, or tells those who wait why not. Called on the loop, in commit order."""
        for unit in units:
            self._queued_bytes -= unit.size_bytes
            error = unit.error or reason
            if error is None:
                for run in unit.runs:
                    self._publish(run, unit.timestamp_ms)
            if unit.done is not None and not unit.done.done():
                if error is None:
                    unit.done.set_result(None)
                else:
                    unit.done.set_exception(error)
        metrics.append_queue_bytes.set(self._queued_bytes)
        if self._queued_bytes < self.settings.max_queued_bytes:
            self._room.set()
        if reason is not None:
            for unit in units:
                for run in unit.runs:
                    for waiter in run.done:
                        if not waiter.done():
                            waiter.set_exception(reason)

    def _publish(self, run: _Run, timestamp_ms: int) -> None:
        place, first = run.partition, run.first_offset
        topic, number = place.topic, place.partition
        records = [
            Record(topic, number, first + index, timestamp_ms, key, value, headers)
            for index, (key, value, headers) in enumerate(zip(run.keys, run.values, run.headers, strict=True))
        ]
        assert first == place.tail.end, "commits are published in their order"
        size = sum(run.sizes) + len(records) * _RECORD_MEMORY_BYTES
        self._tail_order.append((place.tail, len(records), size))
        self._tail_bytes += size
        place.tail.extend(records)
        for watcher in self._watchers:
            watcher(place.id, place.first_offset, place.tail.end)
        for index, waiter in enumerate(run.done):
            if not waiter.done():
                waiter.set_result(first + index)
        metrics.records_written.labels(topic).inc(len(records))
        while self._tail_bytes > self.settings.sqlite_tail_bytes:
            tail, count, freed = self._tail_order.popleft()
            tail.drop(count)
            self._tail_bytes -= freed

    def _set_first(self, place: _Partition, first_offset: int) -> None:
        place.first_offset = first_offset
        for watcher in self._watchers:
            watcher(place.id, first_offset, place.tail.end)

    def _break(self, why: str) -> None:
        if self._state != "open":
            return
        self._state, self._broken = "broken", why
        log.error("log.broken", path=str(self.path), why=why)
        self._room.set()
        for partition in self._partitions.values():
            partition.tail.wake()

    # ---- the writer's thread --------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        """1 wait for work, 2 take what waits, 3 commit it together, 4 tell the event loop."""
        try:
            item = self._queue.get()  # 1
            while not isinstance(item, _Stop):
                if isinstance(item, _Order):
                    self._run_order(item)
                    item = self._queue.get()
                    continue
                units, size = [item], item.size_bytes
                following = self._next()
                while isinstance(following, _Unit) and size < _GROUP_BYTES and len(units) < _GROUP_UNITS:  # 2
                    units.append(following)
                    size += following.size_bytes
                    following = self._next()
                reason = self._commit(units)  # 3
                self._on_loop(self._settle, units, reason)  # 4
                self._checkpoint()
                item = following if following is not None else self._queue.get()
        except BaseException as error:
            log.exception("log.writer_died", path=str(self.path))
            self._on_loop(self._break, f"its writer failed ({type(error).__name__}: {error})")
            raise

    def _next(self) -> _Unit | _Order | _Stop | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def _commit(self, units: list[_Unit]) -> BaseException | None:
        """Writes all units in one SQL transaction. Returns why nothing was written, or None."""
        rows: list[tuple[object, ...]] = []
        positions: list[tuple[int, int]] = []
        next_offsets: dict[int, tuple[_Partition, int]] = {}
        claims: dict[int, tuple[_Claim, int]] = {}
        for unit in units:
            if self._is_fenced(unit):
                continue
            first_row = len(rows)
            for run in unit.runs:
                place = run.partition
                run.first_offset = next_offsets.get(place.id, (place, place.next_offset))[1]
                next_offsets[place.id] = (place, run.first_offset + len(run.keys))
                rows.extend(_rows_of(run, unit.timestamp_ms))
            if unit.owner is not None and unit.input_position is not None:
                claim = unit.owner.claim
                claims[claim.id] = (claim, unit.input_position)
                if len(rows) > first_row:
                    rows[-1] = (*rows[-1][:5], claim.id, unit.input_position)
                else:
                    positions.append((unit.input_position, claim.id))
        try:
            self._execute(rows, positions)
        except sqlite3.Error as error:
            return self._unavailable(error)
        for place, next_offset in next_offsets.values():
            place.next_offset = next_offset
        for claim, position in claims.values():
            claim.position = position
        return None

    def _is_fenced(self, unit: _Unit) -> bool:
        owner = unit.owner
        if owner is None or owner.epoch == owner.claim.epoch:
            return False
        unit.error = Fenced(f"{owner.story}: taken over (epoch {owner.epoch}, now {owner.claim.epoch})")
        return True

    def _execute(self, rows: list[tuple[object, ...]], positions: list[tuple[int, int]]) -> None:
        writing = self._writing
        if len(rows) <= _ROWS_PER_INSERT and not positions:
            if rows:
                writing.execute(_INSERT_BLOCKS[len(rows)], _flat(rows))  # a SQL transaction of its own
        else:
            try:
                writing.execute("BEGIN IMMEDIATE")
                for start in range(0, len(rows), _ROWS_PER_INSERT):
                    some = rows[start : start + _ROWS_PER_INSERT]
                    writing.execute(_INSERT_BLOCKS[len(some)], _flat(some))
                # A later unit's position must win over an earlier one's, and blocks' positions are set by now: a group
                # has one owner and its commits come one after the other, so no group is in both.
                for position in positions:
                    writing.execute("UPDATE claims SET position = ? WHERE id = ?", position)
                writing.execute("COMMIT")
            except sqlite3.Error:
                self._rollback()
                raise
        self._written_bytes += sum(_stored_bytes(row) for row in rows)

    def _rollback(self) -> None:
        if self._writing.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # the error that led here is the one to tell
                self._writing.execute("ROLLBACK")

    def _unavailable(self, error: sqlite3.Error) -> LogUnavailable:
        """What an error of SQLite means; a damaged file ends all use of the log."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return LogUnavailable(f"log {self.path} cannot be written: the disk is full; nothing of this was written")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._on_loop(self._break, f"the file is damaged ({error})")
        return LogUnavailable(f"log {self.path} cannot be written: {error}; nothing of this was written")

    def _run_order(self, order: _Order) -> None:
        result, failure = None, None
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            result = order.work(self._writing)
            self._writing.execute("COMMIT")
        except sqlite3.Error as error:
            self._rollback()
            failure = self._unavailable(error)
        except Exception as error:  # whoever gave the order is told
            self._rollback()
            order.done(None, error)
            return
        order.done(result, failure)

    def _checkpoint(self) -> None:
        """Keeps the write-ahead log bounded. Maintenance does most of it beside the commits; the writer does the rest
        when nothing else writes, so that the next commit starts the write-ahead log from its beginning again."""
        if self._written_bytes >= _WAL_LIMIT_BYTES:
            self._finish_checkpoint()
        elif self._written_bytes >= _WAL_BYTES:
            self._checkpoint_wanted.set()

    def _finish_checkpoint(self) -> None:
        try:
            self._writing.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._written_bytes = 0
        except sqlite3.Error as error:
            log.warning("log.checkpoint_failed", path=str(self.path), error=str(error))

    # ---- maintenance's thread -------------------------------------------------------------------------------------

    def _maintenance_loop(self) -> None:
        due_s = time.monotonic() + self.settings.sqlite_maintenance_interval_s
        while not self._stop_maintenance.is_set():
            self._checkpoint_wanted.wait(max(0.0, due_s - time.monotonic()))
            if self._stop_maintenance.is_set():
                return
            try:
                if self._checkpoint_wanted.is_set():
                    self._checkpoint_beside()
                if time.monotonic() >= due_s:
                    self._maintain_once()
            except (LogError, sqlite3.Error, OSError, ValueError) as error:
                log.error("log.maintenance_failed", path=str(self.path), error=str(error))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + self.settings.sqlite_maintenance_interval_s

    def _checkpoint_beside(self) -> None:
        with contextlib.closing(self._connect()) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        with contextlib.suppress(LogClosed):
            self._order_and_wait(lambda _: None, after=self._finish_checkpoint)
        self._checkpoint_wanted.clear()

    def _order_and_wait(self, work: Callable[[sqlite3.Connection], T], after: Callable[[], None] | None = None) -> T:
        """Like _order, from maintenance's thread; gives up when the log closes."""
        finished = threading.Event()
        box: list[tuple[object, BaseException | None]] = []

        def done(result: object, error: BaseException | None) -> None:
            if after is not None and error is None:
                after()
            box.append((result, error))
            finished.set()

        self._queue.put(_Order(work, done))
        while not finished.wait(0.5):
            if not self._writer_thread.is_alive():
                raise LogClosed(f"log {self.path} is closed")
        result, error = box[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _maintain_once(self) -> None:
        """One run over all partitions, in steps that are small enough not to be felt by commits."""
        with self._maintaining:
            self._maintain_partitions(self.now_ms())

    def _maintain_partitions(self, now_ms: int) -> None:
        metrics.log_bytes.set(self.path.stat().st_size)
        with contextlib.closing(self._connect()) as reading:
            for spec in self._specs:
                for number in range(spec.partitions):
                    place = self._partitions[spec.name, number]
                    if "delete" in spec.cleanup and spec.retention_ms >= 0:
                        self._retain(reading, place, now_ms - spec.retention_ms)
                    if "compact" in spec.cleanup:
                        self._compact(reading, place, now_ms - round(self.settings.sqlite_tombstone_grace_s * 1000))

    def _retain(self, reading: sqlite3.Connection, place: _Partition, before_ms: int) -> None:
        """Deletes the blocks from the partition's start whose newest record is older than ``before_ms``."""
        low, high = place.id << OFFSET_BITS, (place.id + 1) << OFFSET_BITS
        while not self._closing():
            rows = reading.execute(
                "SELECT id, next_offset, timestamp_ms FROM blocks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
                (low, high, _STEP_BLOCKS),
            ).fetchall()
            keep = next((index for index, row in enumerate(rows) if row[2] >= before_ms), len(rows))
            old = rows[:keep]
            if not old:
                return
            first_offset, last_id = old[-1][1], old[-1][0]

            def delete(writing: sqlite3.Connection, first_offset: int = first_offset, last_id: int = last_id) -> None:
                writing.execute("DELETE FROM blocks WHERE id >= ? AND id <= ?", (low, last_id))
                writing.execute("UPDATE partitions SET first_offset = ? WHERE id = ?", (first_offset, place.id))

            removed = first_offset - (old[0][0] & OFFSET_MASK)
            self._order_and_wait(delete)
            self._on_loop(self._set_first, place, first_offset)
            metrics.maintenance_removed.labels(place.topic, "retention").inc(removed)
            if len(old) < _STEP_BLOCKS:
                return

    def _compact(self, reading: sqlite3.Connection, place: _Partition, tombstones_before_ms: int) -> None:
        """Leaves the newest record of each key.

        1 find the newest offset of each key in what came since the last pass; 2 go through all blocks, oldest first,
        and write again those that hold superseded records. The newest block is never touched, as it carries the end
        offset. A tombstone goes when it is old enough; what it superseded went before, since older blocks come first.
        """
        newest = reading.execute(
            "SELECT max(id) FROM blocks WHERE id >= ? AND id < ?",
            (place.id << OFFSET_BITS, (place.id + 1) << OFFSET_BITS),
        ).fetchone()[0]
        if newest is None:
            return
        boundary = newest & OFFSET_MASK
        new_records = boundary - place.cleaned_to
        if new_records < max(self.settings.sqlite_compaction_min_records, place.kept):
            return
        latest: dict[bytes | None, int] = {}
        for block in self._iterate(reading, place, place.cleaned_to, boundary):  # 1
            for record in blocks.decode(place.topic, place.partition, block):
                latest[record.key] = record.offset
            if len(latest) >= _COMPACTION_KEYS:
                boundary = block.next_offset
                break
        kept, removed, pending_blocks, size = 0, 0, 0, 0
        pending_records: list[Record] = []
        span: tuple[int, int] | None = None
        for block in self._iterate(reading, place, 0, boundary):  # 2
            records = blocks.decode(place.topic, place.partition, block)
            survivors = [
                record
                for record in records
                if latest.get(record.key, -1) <= record.offset
                and not (record.value is None and record.timestamp_ms < tombstones_before_ms)
            ]
            kept += len(survivors)
            untouched = len(survivors) == len(records) and len(block.body) * 4 >= blocks.MAX_BYTES
            if untouched and span is None:
                continue
            removed += len(records) - len(survivors)
            span = (span[0] if span else block.first_offset, block.first_offset)
            pending_records += survivors
            pending_blocks += 1
            size += len(block.body)
            if size >= _STEP_BYTES or pending_blocks >= _STEP_BLOCKS:
                self._rewrite(place, span, pending_records)
                span, pending_blocks, pending_records, size = None, 0, [], 0
        if span is not None:
            self._rewrite(place, span, pending_records)
        if self._closing():  # then the passes above may have ended early
            return

        def note(writing: sqlite3.Connection) -> None:
            writing.execute("UPDATE partitions SET cleaned_to = ?, kept = ? WHERE id = ?", (boundary, kept, place.id))

        self._order_and_wait(note)
        place.cleaned_to, place.kept = boundary, kept
        metrics.maintenance_removed.labels(place.topic, "compaction").inc(removed)

    def _iterate(self, reading: sqlite3.Connection, place: _Partition, start: int, end: int) -> Iterator[Block]:
        """Blocks that begin in ``[start, end)``, a few per question, so that no snapshot lives long."""
        base = place.id << OFFSET_BITS
        while start < end and not self._closing():
            rows = reading.execute(_SELECT_BLOCKS, (base | start, base | end, 32)).fetchall()
            if not rows:
                return
            for row in rows:
                yield Block(row[0] & OFFSET_MASK, *row[1:])
            start = (rows[-1][0] & OFFSET_MASK) + 1

    def _rewrite(self, place: _Partition, span: tuple[int, int], records: list[Record]) -> None:
        """Replaces the blocks that begin in ``span`` (both ends included) with blocks of ``records``."""
        base = place.id << OFFSET_BITS
        rows = [
            (base | block.first_offset, *block[1:], None, None)
            for block in (blocks.encode_records(part, part[-1].offset + 1) for part in _split(records))
        ]

        def replace(writing: sqlite3.Connection) -> None:
            writing.execute("DELETE FROM blocks WHERE id >= ? AND id <= ?", (base | span[0], base | span[1]))
            for row in rows:
                writing.execute(_INSERT_BLOCKS[1], row)

        started_s = time.monotonic()
        self._order_and_wait(replace)
        self._stop_maintenance.wait(time.monotonic() - started_s)  # at most half of the writer's time

    def _closing(self) -> bool:
        return self._stop_maintenance.is_set() or self._state != "open"


class SqliteWriter:
    """See :class:`muster_bus.log.LogWriter`. What is appended in one turn of the event loop is one unit."""

    def __init__(self, owner_log: SqliteLog, name: str) -> None:
        self._log = owner_log
        self._name = name
        self._closed = False
        self._runs: dict[int, _Run] = {}
        self._size = 0
        self._waiting: set[asyncio.Future[int]] = set()

    def append(self, record: OutRecord) -> Awaitable[int]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        try:
            if self._closed:
                raise LogClosed(f"writer {self._name} is closed")
            self._log.check_open()
            size = self._log.rules.check(record)
        except LogError as error:  # the contract gives errors to whoever awaits
            done.set_exception(error)
            return done
        if not self._runs:
            loop.call_soon(self._flush)
        place = self._log.partition(record.topic, record.partition)
        run = self._runs.get(place.id)
        if run is None:
            run = self._runs[place.id] = _Run(place)
        run.add(record, size)
        run.done.append(done)
        self._size += size
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        return done

    async def ready(self) -> None:
        if self._closed:
            raise LogClosed(f"writer {self._name} is closed")
        if self._size >= self._log.settings.max_queued_bytes:
            self._flush()
        await self._log.room()

    async def close(self) -> None:
        """Waits for what was appended."""
        self._closed = True
        self._flush()
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=_CLOSE_TIMEOUT_S)

    def _flush(self) -> None:
        if self._runs:
            unit = _Unit(list(self._runs.values()), self._log.now_ms(), self._size)
            self._runs, self._size = {}, 0
            self._log.submit(unit)


class SqliteReader:
    """See :class:`muster_bus.log.LogReader`."""

    def __init__(self, owner_log: SqliteLog, place: _Partition, position: int) -> None:
        self._log, self._place = owner_log, place
        self._position = position
        self._ahead = Ahead()  # of the file
        self._closed = False

    @property
    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset
        self._ahead.clear()

    def known_end(self) -> int:
        return max(self._position, self._place.tail.end)

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._check()
        tail = self._place.tail
        if self._position == tail.end and timeout_s > 0:
            await tail.wait(timeout_s)
            self._check()
        records = tail.slice(self._position, max_records)
        if records is None:
            records = await self._read_old(max_records)
        elif self._ahead:
            self._ahead.clear()
        if records:
            self._position = records[-1].offset + 1
            metrics.records_read.labels(self._place.topic).inc(len(records))
        return records

    async def first_offset(self) -> int:
        self._log.check_open()
        return self._place.first_offset

    async def end_offset(self) -> int:
        self._log.check_open()
        return self._place.tail.end

    async def close(self) -> None:
        self._closed = True
        self._place.tail.wake()

    async def _read_old(self, max_records: int) -> Sequence[Record]:
        if not self._ahead:
            records = await self._log.read_file(self._place, self._position, max_records)
            self._check()
            self._ahead.put(records)
        return self._ahead.take(max_records)

    def _check(self) -> None:
        self._log.check_open()
        place = self._place
        if self._closed:
            raise LogClosed(f"the reader of {place.topic}[{place.partition}] is closed")
        if not place.first_offset <= self._position <= place.tail.end:
            raise OffsetGone(place.topic, place.partition, self._position, place.first_offset, place.tail.end)


class SqliteOwner:
    """See :class:`muster_bus.log.PartitionOwner`."""

    def __init__(self, owner_log: SqliteLog, claim: _Claim, epoch: int, story: str) -> None:
        self._log = owner_log
        self.claim, self.epoch, self.story = claim, epoch, story
        self._ended = ""

    async def committed(self) -> int | None:
        self._check()
        if self.epoch != self.claim.epoch:
            raise Fenced(f"{self.story}: taken over (epoch {self.epoch}, now {self.claim.epoch})")
        return self.claim.position

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        self._check()
        unit = self._unit(records, input_position)
        started_s = self._log.clock.monotonic()
        self._log.submit(unit)
        assert unit.done is not None
        try:
            async with asyncio.timeout(self._log.settings.transaction_deadline_s):
                await unit.done
        except Fenced:
            self._fail("fenced", "it was fenced")
            raise
        except LogUnavailable as error:
            self._fail("unavailable", "a commit failed")
            raise TransactionFailed(f"{self.story}: {error}") from error
        except TimeoutError as error:
            self._fail("timeout", "a commit had no answer in time")
            deadline_s = self._log.settings.transaction_deadline_s
            raise TransactionTimeout(f"{self.story}: no answer from {self._log.path} in {deadline_s} s") from error
        metrics.transaction_seconds.labels("sqlite").observe(self._log.clock.monotonic() - started_s)
        metrics.transaction_records.labels("sqlite").observe(len(records))

    async def close(self) -> None:
        self._ended = self._ended or "it was closed"

    def _unit(self, records: Sequence[OutRecord], input_position: int | None) -> _Unit:
        runs: dict[tuple[str, int], _Run] = {}
        check = self._log.rules.check
        total = 0
        for record in records:
            size = check(record)
            total += size
            place = (record.topic, record.partition)
            run = runs.get(place)
            if run is None:
                run = runs[place] = _Run(self._log.partition(*place))
            run.add(record, size)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return _Unit(list(runs.values()), self._log.now_ms(), total, self, input_position, done)

    def _fail(self, reason: str, story: str) -> None:
        self._ended = story
        metrics.transactions_failed.labels("sqlite", reason).inc()

    def _check(self) -> None:
        self._log.check_open()
        if self._ended:
            raise LogClosed(f"owner {self.story} is of no further use: {self._ended}")


def _rows_of(run: _Run, timestamp_ms: int) -> Iterator[tuple[object, ...]]:
    """Rows of table ``blocks`` for a run whose first offset is fixed."""
    base, start, size = run.partition.id << OFFSET_BITS, 0, 0
    count = len(run.keys)
    if count <= blocks.MAX_RECORDS and sum(run.sizes) <= blocks.MAX_BYTES:
        cuts = [count]
    else:
        cuts = []
        for index in range(count):
            if index > start and (index - start >= blocks.MAX_RECORDS or size + run.sizes[index] > blocks.MAX_BYTES):
                cuts.append(index)
                start, size = index, 0
            size += run.sizes[index]
        cuts.append(count)
    start = 0
    for end in cuts:
        block = blocks.encode_run(
            run.first_offset + start, timestamp_ms, run.keys[start:end], run.values[start:end], run.headers[start:end]
        )
        yield (base | block.first_offset, *block[1:], None, None)
        start = end


def _split(records: list[Record]) -> Iterator[list[Record]]:
    """Parts that fit into a block each."""
    part: list[Record] = []
    size = 0
    for record in records:
        weight = len(record.key or b"") + len(record.value or b"")
        if part and (len(part) >= blocks.MAX_RECORDS or size + weight > blocks.MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += weight
    if part:
        yield part


def _stored_bytes(row: tuple[object, ...]) -> int:
    body = row[4]
    assert isinstance(body, bytes)
    return len(body) + _PAGE_BYTES  # a commit writes whole pages


def _flat(rows: Sequence[tuple[object, ...]]) -> list[object]:
    return [value for row in rows for value in row]


def _sync_directory(path: Path) -> None:
    """Makes a new file's name durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
