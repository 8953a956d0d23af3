"""The embedded log's maintenance: a thread that finds the records that retention and compaction may remove.

It reads on a connection of its own. It gives each removal to the writer in steps so small that commits hardly wait.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from muster_bus import metrics
from muster_bus.backends import blocks, sqlite_chain
from muster_bus.backends.blocks import Block
from muster_bus.backends.sqlite_commits import Committer
from muster_bus.backends.sqlite_schema import (
    OFFSET_BITS,
    OFFSET_MASK,
    SELECT_BLOCKS,
    connect,
    split_into_blocks,
)
from muster_bus.backends.sqlite_work_items import StoredPartition, WriterTask
from muster_bus.errors import LogClosed, LogError
from muster_bus.log import Record
from muster_bus.settings import LogSettings
from muster_bus.topics import TopicSpec

log = structlog.get_logger(__name__)

_STEP_BYTES = 1 << 20  # stored bytes that one maintenance step removes or rewrites
_STEP_BLOCKS = 256
_COMPACTION_KEYS = 200_000  # distinct keys that one pass holds in memory; further keys wait for the next pass

T = TypeVar("T")


class Maintenance:
    """Retention, compaction, and checkpoints beside the commits.

    :param is_open: tells whether the log is open.
    :param first_moved: called, in maintenance's thread, with a partition and its new first offset.
    :param store_mark: writes the side file if records came.
    """

    def __init__(
        self,
        path: Path,
        settings: LogSettings,
        specs: Sequence[TopicSpec],
        partitions: Mapping[tuple[str, int], StoredPartition],
        committer: Committer,
        *,
        now_ms: Callable[[], int],
        is_open: Callable[[], bool],
        first_moved: Callable[[StoredPartition, int], None],
        store_mark: Callable[[], None],
    ) -> None:
        self._path = path
        self._settings = settings
        self._specs = specs
        self._partitions = partitions
        self._committer = committer
        self._now_ms = now_ms
        self._is_open = is_open
        self._first_moved = first_moved
        self._store_mark = store_mark
        self._stopped = threading.Event()
        self._maintaining = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="muster-log-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends after the current step. Blocks."""
        self._stopped.set()
        self._committer.checkpoint_requested.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        due_s = time.monotonic() + self._settings.sqlite_maintenance_interval_s
        mark_due_s = 0.0  # at once: a new log has a mark from its beginning
        while not self._stopped.is_set():
            self._committer.checkpoint_requested.wait(max(0.0, min(due_s, mark_due_s) - time.monotonic()))
            if self._stopped.is_set():
                return
            try:
                if time.monotonic() >= mark_due_s:
                    self._note_heads()
                    self._store_mark()
                    self._retry_full_disk()
                    mark_due_s = time.monotonic() + self._settings.sqlite_mark_interval_s
                if self._committer.checkpoint_requested.is_set():
                    self._checkpoint_concurrently()
                if time.monotonic() >= due_s:
                    self.run_once()
            except (LogError, sqlite3.Error, OSError, ValueError) as error:
                log.error("log.maintenance_failed", path=str(self._path), error=str(error))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + self._settings.sqlite_maintenance_interval_s

    def _note_heads(self) -> None:
        """Notes the heads of all partitions in the file, if there are new ones."""
        if not self._committer.full and not self._committer.is_noted():
            with contextlib.suppress(LogError):  # a disk that is full: the chain goes on from the last note
                self._order_and_wait(lambda _: None, notes=True)

    def _retry_full_disk(self) -> None:
        """Tries to write after the disk was full: while nothing is asked of Muster, nothing else would notice."""
        if not self._committer.full:
            return
        with contextlib.suppress(LogError):
            self._order_and_wait(lambda writing: writing.execute("UPDATE identity SET id = id"))
            log.info("log.has_room", path=str(self._path))

    def _checkpoint_concurrently(self) -> None:
        self._note_heads()  # so that a page which the disk loses is missed
        with contextlib.closing(connect(self._path, self._settings.sqlite_synchronous)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        with contextlib.suppress(LogClosed):
            self._order_and_wait(lambda _: None, after=self._committer.finish_checkpoint)
        self._committer.checkpoint_requested.clear()

    def _order_and_wait(
        self,
        work: Callable[[sqlite3.Connection], T],
        after: Callable[[], None] | None = None,
        *,
        notes: bool = False,
    ) -> T:
        """Runs ``work`` in the writer's thread, in a SQL transaction. Returns its result. Raises LogClosed.

        :param notes: the heads of all partitions are noted first: ``work`` changes blocks.
        """
        finished = threading.Event()
        box: list[tuple[object, BaseException | None]] = []

        def done(result: object, error: BaseException | None) -> None:
            if after is not None and error is None:
                after()
            box.append((result, error))
            finished.set()

        self._committer.put(WriterTask(work, done, notes))
        while not finished.wait(0.5):
            if not self._committer.alive():
                raise LogClosed(f"log {self._path} is closed")
        result, error = box[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def run_once(self) -> None:
        """Maintains all partitions once, in steps so small that commits hardly wait."""
        with self._maintaining:
            self._maintain_partitions(self._now_ms())

    def _maintain_partitions(self, now_ms: int) -> None:
        metrics.log_bytes.set(self._path.stat().st_size)
        with contextlib.closing(connect(self._path, self._settings.sqlite_synchronous)) as reading:
            for spec in self._specs:
                for number in range(spec.partitions):
                    partition = self._partitions[spec.name, number]
                    if "delete" in spec.cleanup and spec.retention_ms >= 0:
                        self._retain(reading, partition, now_ms - spec.retention_ms)
                    if "compact" in spec.cleanup:
                        self._compact(
                            reading, partition, now_ms - round(self._settings.sqlite_tombstone_grace_s * 1000)
                        )

    def _retain(self, reading: sqlite3.Connection, partition: StoredPartition, before_ms: int) -> None:
        """Deletes, from the partition's start, the blocks whose newest record is older than ``before_ms``."""
        low, high = partition.id << OFFSET_BITS, (partition.id + 1) << OFFSET_BITS
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
                sqlite_chain.remove(writing, low, last_id)
                writing.execute("UPDATE partitions SET first_offset = ? WHERE id = ?", (first_offset, partition.id))
                sqlite_chain.note_partition(writing, partition.id)

            removed = first_offset - (old[0][0] & OFFSET_MASK)
            self._order_and_wait(delete, notes=True)
            self._first_moved(partition, first_offset)
            metrics.maintenance_removed.labels(partition.topic, "retention").inc(removed)
            if len(old) < _STEP_BLOCKS:
                return

    def _compact(self, reading: sqlite3.Connection, partition: StoredPartition, tombstones_before_ms: int) -> None:
        """Keeps the newest record of each key.

        1 Find the newest offset of each key in the records since the last pass. 2 Go through all blocks, oldest first,
        and rewrite those that hold superseded records. The newest block is never touched, because it carries the end
        offset. A tombstone is removed when it is old enough. The records it superseded are already gone then, because
        older blocks come first.
        """
        newest = reading.execute(
            "SELECT max(id) FROM blocks WHERE id >= ? AND id < ?",
            (partition.id << OFFSET_BITS, (partition.id + 1) << OFFSET_BITS),
        ).fetchone()[0]
        if newest is None:
            return
        boundary = newest & OFFSET_MASK
        new_records = boundary - partition.cleaned_to
        if new_records < max(self._settings.sqlite_compaction_min_records, partition.live_records):
            return
        latest: dict[bytes | None, int] = {}
        for block in self._iterate(reading, partition, partition.cleaned_to, boundary):  # 1
            for record in blocks.decode(partition.topic, partition.partition, block):
                latest[record.key] = record.offset
            if len(latest) >= _COMPACTION_KEYS:
                boundary = block.next_offset
                break
        kept, removed, pending_blocks, size = 0, 0, 0, 0
        pending_records: list[Record] = []
        span: tuple[int, int] | None = None
        for block in self._iterate(reading, partition, 0, boundary):  # 2
            records = blocks.decode(partition.topic, partition.partition, block)
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
                self._rewrite(partition, span, pending_records)
                span, pending_blocks, pending_records, size = None, 0, [], 0
        if span is not None:
            self._rewrite(partition, span, pending_records)
        if self._closing():  # the passes above may have ended early
            return

        def note(writing: sqlite3.Connection) -> None:
            writing.execute(
                "UPDATE partitions SET cleaned_to = ?, kept = ? WHERE id = ?", (boundary, kept, partition.id)
            )
            sqlite_chain.note_partition(writing, partition.id)

        self._order_and_wait(note)
        partition.cleaned_to, partition.live_records = boundary, kept
        metrics.maintenance_removed.labels(partition.topic, "compaction").inc(removed)

    def _iterate(
        self, reading: sqlite3.Connection, partition: StoredPartition, start: int, end: int
    ) -> Iterator[Block]:
        """Yields the blocks that begin in ``[start, end)``. Each query reads a few, so that no snapshot lives long."""
        base = partition.id << OFFSET_BITS
        while start < end and not self._closing():
            rows = reading.execute(SELECT_BLOCKS, (base | start, base | end, 32)).fetchall()
            if not rows:
                return
            for row in rows:
                yield Block(row[0] & OFFSET_MASK, *row[1:])
            start = (rows[-1][0] & OFFSET_MASK) + 1

    def _rewrite(self, partition: StoredPartition, span: tuple[int, int], records: list[Record]) -> None:
        """Replaces the blocks that begin in ``span`` (both ends included) with blocks of ``records``."""
        base = partition.id << OFFSET_BITS
        rows = [
            (base | block.first_offset, *block[1:])
            for block in (blocks.encode_records(part, part[-1].offset + 1) for part in split_into_blocks(records))
        ]

        def replace(writing: sqlite3.Connection) -> None:
            sqlite_chain.remove(writing, base | span[0], base | span[1])
            sqlite_chain.replace_blocks(writing, partition.topic, partition.partition, rows)

        started_s = time.monotonic()
        self._order_and_wait(replace, notes=True)
        self._stopped.wait(time.monotonic() - started_s)  # use at most half of the writer's time

    def _closing(self) -> bool:
        return self._stopped.is_set() or not self._is_open()
