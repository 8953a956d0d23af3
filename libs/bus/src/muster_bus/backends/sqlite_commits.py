"""The embedded log's writer: a thread that commits all waiting units together, with one fsync.

The event loop may commit, too, while the thread has nothing to do: a hand-over to the thread and back takes a quarter
of a small commit's time.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from muster_bus import metrics
from muster_bus.backends.sqlite_chain import Chains
from muster_bus.backends.sqlite_schema import INSERT_BLOCKS, PAGE_BYTES, ROWS_PER_INSERT, stored_bytes
from muster_bus.backends.sqlite_work_items import CommitUnit, GroupClaim, StopWriter, StoredPartition, WriterTask
from muster_bus.errors import Fenced, LogFull, LogUnavailable

log = structlog.get_logger(__name__)

_GROUP_BYTES = 4 << 20  # limit of one commit; bounds the wait of its last units
_GROUP_UNITS = 512
_WAL_BYTES = 8 << 20  # maintenance does a checkpoint when this much was written since the last one
_WAL_LIMIT_BYTES = 64 << 20  # if maintenance falls behind, the writer does the checkpoint itself
_WAL_FILE_BYTES_MAX = 128 << 20  # a larger file, which some reader held, is cut; a smaller one is written again
_FRAME_BYTES = PAGE_BYTES + 24  # of a page in the write-ahead log
_READERS_WAIT_MS = 200  # Muster's own readers have snapshots of a few milliseconds
_READERS_PAUSE_S = 5.0  # between two waits for a reader that does not end

# Takes the units of a commit, and the reason if the commit failed.
CommitReport = Callable[[list[CommitUnit], BaseException | None], None]


class Committer:
    """Owns the writing connection, the offsets and the owners' epochs.

    Any thread may call ``put`` and ``alive``. The writer's thread calls the two callbacks. Whoever uses the connection
    holds the lock ``_using``.

    :param report_commit: called after each commit, in commit order.
    :param broke: called with the reason when the file can no longer be written.
    :param chains: of the partitions.
    :param syncs_commits: a commit that has returned is on the disk; False: only what a checkpoint took is.
    :ivar checkpoint_requested: set when the write-ahead log has grown; maintenance clears it.
    """

    def __init__(
        self,
        path: Path,
        writing: sqlite3.Connection,
        report_commit: CommitReport,
        broke: Callable[[str], None],
        chains: Chains,
        *,
        syncs_commits: bool = True,
    ) -> None:
        self._path = path
        self._chains = chains
        self._wal = Path(f"{path}-wal")
        self._syncs_commits = syncs_commits
        self._synced_heads: Mapping[str, tuple[int, int]] = {}
        self._waited_s = float("-inf")  # the last wait for readers
        self._writing = writing
        self._report_commit = report_commit
        self._broke = broke
        self._queue: queue.SimpleQueue[list[CommitUnit] | WriterTask | StopWriter] = queue.SimpleQueue()
        self._written_bytes = 0  # since the last checkpoint
        self.checkpoint_requested = threading.Event()
        self._using = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="muster-log-writer", daemon=True)
        self.full = False  # the last write found no room on the disk
        self.blocked_wal_bytes = 0  # size of a write-ahead log that a reader keeps from being emptied; 0: none does

    def start(self) -> None:
        self._thread.start()

    def put(self, item: list[CommitUnit] | WriterTask) -> None:
        """Queues units for one commit, or an order. The writer handles items in the order of these calls."""
        self._queue.put(item)

    def commit_now(self, units: list[CommitUnit]) -> tuple[bool, BaseException | None]:
        """Commits units in the caller's thread, unless the writer's thread has work or the disk is in doubt.

        The caller knows that all units which it queued before are reported. Returns whether the units were handled, and
        the reason if the commit failed. Does not call ``report_commit``.
        """
        if self.full or self._written_bytes >= _WAL_LIMIT_BYTES or not self._using.acquire(blocking=False):
            return False, None
        try:
            reason = self._commit(units)
        except BaseException as error:
            self._died(error)
            raise
        finally:
            self._using.release()
        if self._written_bytes >= _WAL_BYTES and not self.checkpoint_requested.is_set():
            self.checkpoint_requested.set()
        return True, reason

    def stop(self, timeout_s: float) -> None:
        """Commits everything that was queued before, then ends the thread. Blocks."""
        self._queue.put(StopWriter())
        self._thread.join(timeout_s)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def durable_heads(self) -> Mapping[str, tuple[int, int]]:
        """Returns the end of each partition (``topic/partition``) and the digest there, as far as they are on the disk.
        Any thread.
        """
        return self._chains.heads() if self._syncs_commits else self._synced_heads

    def is_noted(self) -> bool:
        """Tells whether the heads of all partitions are noted in the file. Any thread."""
        return self._chains.is_noted()

    def _run(self) -> None:
        """1 wait for work, 2 take the waiting units, 3 commit them together, 4 report to the event loop."""
        try:
            item = self._queue.get()  # 1
            while not isinstance(item, StopWriter):
                if isinstance(item, WriterTask):
                    with self._using:
                        self._run_order(item)
                    item = self._queue.get()
                    continue
                units, size = list(item), _size_of(item)
                following = self._next()
                while isinstance(following, list) and size < _GROUP_BYTES and len(units) < _GROUP_UNITS:  # 2
                    units += following
                    size += _size_of(following)
                    following = self._next()
                with self._using:
                    reason = self._commit(units)  # 3
                self._report_commit(units, reason)  # 4
                with self._using:
                    self._checkpoint()
                item = following if following is not None else self._queue.get()
            with self._using, contextlib.suppress(sqlite3.Error):  # without it, the next start notes what came
                self._note()
        except BaseException as error:
            self._died(error)
            raise

    def _died(self, error: BaseException) -> None:
        log.error("log.writer_died", path=str(self._path), exc_info=error)
        self._broke(f"its writer failed ({type(error).__name__}: {error})")

    def _next(self) -> list[CommitUnit] | WriterTask | StopWriter | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def _commit(self, units: list[CommitUnit]) -> BaseException | None:
        """Writes all units in one SQL transaction. Returns None, or the reason why nothing was written."""
        rows: list[tuple[object, ...]] = []
        positions: list[tuple[int, int]] = []
        next_offsets: dict[int, tuple[StoredPartition, int]] = {}
        claims: dict[int, tuple[GroupClaim, int]] = {}
        for unit in units:
            if self._is_refused(unit):
                continue
            first_row = len(rows)
            for run in unit.runs:
                partition = run.partition
                run.first_offset = next_offsets.get(partition.id, (partition, partition.next_offset))[1]
                next_offsets[partition.id] = (partition, run.first_offset + len(run.keys))
                rows.extend(run.rows(unit.timestamp_ms))
            if unit.owner_epoch is not None and unit.input_position is not None:
                claim = unit.owner_epoch.claim
                claims[claim.id] = (claim, unit.input_position)
                if len(rows) > first_row:
                    rows[-1] = (*rows[-1][:5], claim.id, unit.input_position, None, None, None)
                else:
                    positions.append((unit.input_position, claim.id))
        sealed = self._chains.seal(rows)
        try:
            self._execute(sealed.rows, positions)
        except sqlite3.Error as error:
            reason = self._unavailable(error)
            for unit in units:
                if unit.read_by is not None:
                    unit.read_by.lost = str(reason)
            return reason
        self._chains.appended(sealed)
        for partition, next_offset in next_offsets.values():
            partition.next_offset = next_offset
        for claim, position in claims.values():
            claim.position = position
        return None

    def _is_refused(self, unit: CommitUnit) -> bool:
        """Tells whether the unit's owner may not commit any more, and gives the unit its error."""
        owner_epoch = unit.owner_epoch
        if owner_epoch is None:
            return False
        if owner_epoch.epoch != owner_epoch.claim.epoch:
            unit.error = Fenced(
                f"{owner_epoch.story}: taken over (epoch {owner_epoch.epoch}, now {owner_epoch.claim.epoch})"
            )
        elif owner_epoch.lost:
            unit.error = LogUnavailable(f"it has read what was not written: {owner_epoch.lost}")
        return unit.error is not None

    def _execute(self, rows: Sequence[tuple[object, ...]], positions: list[tuple[int, int]]) -> None:
        writing = self._writing
        if len(rows) <= ROWS_PER_INSERT and not positions:
            if rows:
                writing.execute(INSERT_BLOCKS[len(rows)], _flat(rows))  # a SQL transaction of its own
        else:
            try:
                writing.execute("BEGIN IMMEDIATE")
                for start in range(0, len(rows), ROWS_PER_INSERT):
                    some = rows[start : start + ROWS_PER_INSERT]
                    writing.execute(INSERT_BLOCKS[len(some)], _flat(some))
                # A later unit's position must replace an earlier one's. The blocks' positions are already set. A group
                # has one owner, whose commits follow each other, so no group is in both lists.
                for position in positions:
                    writing.execute("UPDATE claims SET position = ? WHERE id = ?", position)
                    writing.execute("UPDATE chain_claims SET position = ? WHERE id = ?", position)
                writing.execute("COMMIT")
            except sqlite3.Error:
                self._rollback()
                raise
        self.full = False
        self._written_bytes += sum(stored_bytes(row) for row in rows)

    def _rollback(self) -> None:
        if self._writing.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # report the error that led here
                self._writing.execute("ROLLBACK")

    def _unavailable(self, error: sqlite3.Error) -> LogUnavailable:
        """Translates an error of SQLite. A damaged file ends all use of the log."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            if not self.full:
                log.error("log.full", path=str(self._path))
            self.full = True
            return LogFull(f"log {self._path} cannot be written: the disk is full; this transaction was not written")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._broke(f"the file is damaged ({error})")
        return LogUnavailable(f"log {self._path} cannot be written: {error}; this transaction was not written")

    def _run_order(self, order: WriterTask) -> None:
        result, failure = None, None
        changes = self._writing.total_changes
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            if order.notes:
                self._chains.note(self._writing)
            result = order.work(self._writing)
            self._writing.execute("COMMIT")
            if order.notes:
                self._chains.noted()
            if self._writing.total_changes > changes:
                self.full = False
        except sqlite3.Error as error:
            self._rollback()
            failure = self._unavailable(error)
        except Exception as error:  # the error goes to the sender of the order
            self._rollback()
            order.done(None, error)
            return
        order.done(result, failure)

    def _note(self) -> None:
        """Notes the heads of all partitions in the file. Raises sqlite3.Error."""
        if self._chains.is_noted() or self._writing.in_transaction:
            return
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            self._chains.note(self._writing)
            self._writing.execute("COMMIT")
        except sqlite3.Error:
            self._rollback()
            raise
        self._chains.noted()

    def _checkpoint(self) -> None:
        """Keeps the write-ahead log bounded.

        Maintenance does most of each checkpoint beside the commits. The writer does the rest while nothing else writes.
        The next commit then starts the write-ahead log from its beginning.
        """
        if self._written_bytes >= _WAL_LIMIT_BYTES:
            self.finish_checkpoint()
        elif self._written_bytes >= _WAL_BYTES:
            self.checkpoint_requested.set()

    def finish_checkpoint(self) -> None:
        """Moves the rest of the write-ahead log into the file. Called in the writer's thread only.

        SQLite continues the write-ahead log from its beginning only if no reader uses it at that moment. With readers
        that never pause it would grow without end. So above the limit the writer waits a moment for the present
        readers; later ones read the file alone. A reader of another program may keep its snapshot longer: then the
        log grows, and says so.
        """
        heads = self._chains.heads()
        try:
            self._note()
            busy, pages, moved = self._writing.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and pages == moved:
                self._written_bytes, self._synced_heads = 0, heads
            else:
                self._written_bytes = _WAL_BYTES // 2  # not at every commit
            self._bound(pages * _FRAME_BYTES)
        except (sqlite3.Error, OSError) as error:
            self._written_bytes = _WAL_BYTES // 2
            log.warning("log.checkpoint_failed", path=str(self._path), error=str(error))

    def _bound(self, used_bytes: int) -> None:
        """Begins the write-ahead log anew if what it has is over its limit. Raises sqlite3.Error, OSError.

        The file keeps its size, up to a limit: the disk would have to find the room again for the next commits.

        :param used_bytes: the part of the file that commits have written since the log began anew.
        """
        size = self._wal.stat().st_size
        metrics.wal_bytes.set(size)
        if used_bytes < _WAL_LIMIT_BYTES and size < _WAL_FILE_BYTES_MAX:
            self.blocked_wal_bytes = 0
            return
        now_s = time.monotonic()
        if now_s - self._waited_s < _READERS_PAUSE_S:
            return
        self._waited_s = now_s
        (before_ms,) = self._writing.execute("PRAGMA busy_timeout").fetchone()
        self._writing.execute(f"PRAGMA busy_timeout = {_READERS_WAIT_MS}")
        try:
            how = "TRUNCATE" if size >= _WAL_FILE_BYTES_MAX else "RESTART"
            (busy, _, _) = self._writing.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        finally:
            self._writing.execute(f"PRAGMA busy_timeout = {before_ms}")
        blocked_bytes = size if busy else 0
        if blocked_bytes and not self.blocked_wal_bytes:
            log.warning("log.wal_held", path=str(self._path), wal_bytes=size, why="another program reads the file")
        self.blocked_wal_bytes = blocked_bytes
        metrics.wal_bytes.set(self._wal.stat().st_size)


def _size_of(units: list[CommitUnit]) -> int:
    return sum(unit.size_bytes for unit in units)


def _flat(rows: Sequence[tuple[object, ...]]) -> list[object]:
    return [value for row in rows for value in row]
