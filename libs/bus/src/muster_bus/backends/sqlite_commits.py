"""The embedded log's writer: a thread that commits all waiting units together, with one fsync."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from muster_bus.backends.sqlite_format import INSERT_BLOCKS, ROWS_PER_INSERT, stored_bytes
from muster_bus.backends.sqlite_units import Claim, Order, Stop, StoredPartition, Unit
from muster_bus.errors import Fenced, LogUnavailable

log = structlog.get_logger(__name__)

_GROUP_BYTES = 4 << 20  # limit of one commit; bounds the wait of its last units
_GROUP_UNITS = 512
_WAL_BYTES = 8 << 20  # maintenance does a checkpoint when this much was written since the last one
_WAL_LIMIT_BYTES = 64 << 20  # if maintenance falls behind, the writer does the checkpoint itself

# Takes the units of a commit, and the reason if the commit failed.
Settled = Callable[[list[Unit], BaseException | None], None]


class Committer:
    """Owns the writing connection, the offsets and the owners' epochs.

    Any thread may call ``put`` and ``alive``. The writer's thread calls the two callbacks.

    :param settled: called after each commit, in commit order.
    :param broke: called with the reason when the file can no longer be written.
    :ivar checkpoint_wanted: set when the write-ahead log has grown; maintenance clears it.
    """

    def __init__(self, path: Path, writing: sqlite3.Connection, settled: Settled, broke: Callable[[str], None]) -> None:
        self._path = path
        self._writing = writing
        self._settled = settled
        self._broke = broke
        self._queue: queue.SimpleQueue[Unit | Order | Stop] = queue.SimpleQueue()
        self._written_bytes = 0  # since the last checkpoint
        self.checkpoint_wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="muster-log-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Unit | Order) -> None:
        """Queues a unit or an order. The writer handles items in the order of these calls."""
        self._queue.put(item)

    def stop(self, timeout_s: float) -> None:
        """Commits everything that was queued before, then ends the thread. Blocks."""
        self._queue.put(Stop())
        self._thread.join(timeout_s)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        """1 wait for work, 2 take the waiting units, 3 commit them together, 4 report to the event loop."""
        try:
            item = self._queue.get()  # 1
            while not isinstance(item, Stop):
                if isinstance(item, Order):
                    self._run_order(item)
                    item = self._queue.get()
                    continue
                units, size = [item], item.size_bytes
                following = self._next()
                while isinstance(following, Unit) and size < _GROUP_BYTES and len(units) < _GROUP_UNITS:  # 2
                    units.append(following)
                    size += following.size_bytes
                    following = self._next()
                reason = self._commit(units)  # 3
                self._settled(units, reason)  # 4
                self._checkpoint()
                item = following if following is not None else self._queue.get()
        except BaseException as error:
            log.exception("log.writer_died", path=str(self._path))
            self._broke(f"its writer failed ({type(error).__name__}: {error})")
            raise

    def _next(self) -> Unit | Order | Stop | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def _commit(self, units: list[Unit]) -> BaseException | None:
        """Writes all units in one SQL transaction. Returns None, or the reason why nothing was written."""
        rows: list[tuple[object, ...]] = []
        positions: list[tuple[int, int]] = []
        next_offsets: dict[int, tuple[StoredPartition, int]] = {}
        claims: dict[int, tuple[Claim, int]] = {}
        for unit in units:
            if self._is_fenced(unit):
                continue
            first_row = len(rows)
            for run in unit.runs:
                place = run.partition
                run.first_offset = next_offsets.get(place.id, (place, place.next_offset))[1]
                next_offsets[place.id] = (place, run.first_offset + len(run.keys))
                rows.extend(run.rows(unit.timestamp_ms))
            if unit.hold is not None and unit.input_position is not None:
                claim = unit.hold.claim
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

    def _is_fenced(self, unit: Unit) -> bool:
        hold = unit.hold
        if hold is None or hold.epoch == hold.claim.epoch:
            return False
        unit.error = Fenced(f"{hold.story}: taken over (epoch {hold.epoch}, now {hold.claim.epoch})")
        return True

    def _execute(self, rows: list[tuple[object, ...]], positions: list[tuple[int, int]]) -> None:
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
                writing.execute("COMMIT")
            except sqlite3.Error:
                self._rollback()
                raise
        self._written_bytes += sum(stored_bytes(row) for row in rows)

    def _rollback(self) -> None:
        if self._writing.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # report the error that led here
                self._writing.execute("ROLLBACK")

    def _unavailable(self, error: sqlite3.Error) -> LogUnavailable:
        """Translates an error of SQLite. A damaged file ends all use of the log."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return LogUnavailable(f"log {self._path} cannot be written: disk full; this transaction was not written")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._broke(f"the file is damaged ({error})")
        return LogUnavailable(f"log {self._path} cannot be written: {error}; this transaction was not written")

    def _run_order(self, order: Order) -> None:
        result, failure = None, None
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            result = order.work(self._writing)
            self._writing.execute("COMMIT")
        except sqlite3.Error as error:
            self._rollback()
            failure = self._unavailable(error)
        except Exception as error:  # the error goes to the sender of the order
            self._rollback()
            order.done(None, error)
            return
        order.done(result, failure)

    def _checkpoint(self) -> None:
        """Keeps the write-ahead log bounded.

        Maintenance does most of each checkpoint beside the commits. The writer does the rest while nothing else writes.
        The next commit then starts the write-ahead log from its beginning.
        """
        if self._written_bytes >= _WAL_LIMIT_BYTES:
            self.finish_checkpoint()
        elif self._written_bytes >= _WAL_BYTES:
            self.checkpoint_wanted.set()

    def finish_checkpoint(self) -> None:
        """Moves the rest of the write-ahead log into the file. Called in the writer's thread only."""
        try:
            self._writing.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._written_bytes = 0
        except sqlite3.Error as error:
            log.warning("log.checkpoint_failed", path=str(self._path), error=str(error))


def _flat(rows: list[tuple[object, ...]]) -> list[object]:
    return [value for row in rows for value in row]
