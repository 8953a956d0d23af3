"""Sessions in a SQLite file: for the embedded service, so that cursors and seats survive ``kill -9``.

One thread does all the work, so that a checkpoint's fsync never stops the event loop.

A file that SQLite or this program cannot read is set aside, and a new one takes its place, without a fill: the
gateway then fills it from the log. On a full disk the file is read, and writes fail until there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import structlog
from muster_bus.clock import Clock
from muster_runtime.private_files import make_private_database, make_private_directory

from muster_gateway.errors import SessionStoreDown, SessionStoreFull
from muster_gateway.sessions.codec import from_json, to_json
from muster_gateway.sessions.contract import Advance, Cursor, Session
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (rm_id TEXT PRIMARY KEY, version INTEGER NOT NULL, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS seat (rm_id TEXT, kind INTEGER, epoch INTEGER NOT NULL, PRIMARY KEY (rm_id, kind));
CREATE TABLE IF NOT EXISTS cursor (
  rm_id TEXT, kind INTEGER, sequence INTEGER NOT NULL, offset INTEGER NOT NULL, last_sent INTEGER NOT NULL,
  PRIMARY KEY (rm_id, kind));
CREATE TABLE IF NOT EXISTS lease (gateway_id TEXT PRIMARY KEY, until_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS fill (name TEXT PRIMARY KEY, complete INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS log_mark (one INTEGER PRIMARY KEY, content TEXT NOT NULL);
"""
_TABLES = frozenset({"session", "seat", "cursor", "lease", "fill", "log_mark"})
_LEASE_MAX_NS = 3_600_000_000_000  # longer than any lease
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Another process (a second gateway on the same file) holds the lock for microseconds. A wait this long is an error.
_BUSY_TIMEOUT_S = 2.0


class SqliteSessions:
    """See :class:`muster_gateway.sessions.contract.SessionStore`.

    :param path: of the file; the store creates its folder.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sessions")
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        if self._connection is not None:
            await self._run(self._connection.close)
            self._connection = None
        self._thread.shutdown(wait=True)

    async def healthy(self) -> bool:
        try:
            await self.filled()
        except SessionStoreDown:
            return False
        return True

    async def get(self, rm_id: str) -> Session | None:
        rows = await self._run(self._query, "SELECT content, version FROM session WHERE rm_id = ?", (rm_id,))
        return from_json(*rows[0]) if rows else None

    async def all(self) -> list[Session]:
        rows = await self._run(self._query, "SELECT content, version FROM session ORDER BY rm_id", ())
        return [from_json(content, version) for content, version in rows]

    async def compare_and_set(self, session: Session) -> bool:
        return await self._run(self._set, session)

    async def cursors(self, rm_id: str) -> dict[StreamKind, Cursor]:
        rows = await self._run(
            self._query, "SELECT kind, sequence, offset, last_sent FROM cursor WHERE rm_id = ?", (rm_id,)
        )
        return {StreamKind(kind): Cursor(*columns) for kind, *columns in rows}

    async def advance(self, moves: Sequence[Advance]) -> list[bool]:
        return await self._run(self._advance, moves)

    async def renew_lease(self, gateway_id: str, ttl_s: float) -> None:
        until_ns = self._clock.now_ns() + round(ttl_s * 1e9)
        await self._run(self._execute, "INSERT OR REPLACE INTO lease VALUES (?, ?)", (gateway_id, until_ns))

    async def drop_lease(self, gateway_id: str) -> None:
        await self._run(self._execute, "DELETE FROM lease WHERE gateway_id = ?", (gateway_id,))

    async def live_gateways(self) -> frozenset[str]:
        now_ns = self._clock.now_ns()
        # A lease that ends much later comes from a clock that was set back since.
        far_ns = now_ns + _LEASE_MAX_NS
        await self._run(self._execute, "DELETE FROM lease WHERE until_ns <= ? OR until_ns > ?", (now_ns, far_ns))
        rows = await self._run(self._query, "SELECT gateway_id FROM lease", ())
        return frozenset(gateway_id for (gateway_id,) in rows)

    async def filled(self) -> str:
        rows = await self._run(self._query, "SELECT name FROM fill WHERE complete", ())
        return str(rows[0][0]) if rows else ""

    async def begin_fill(self, name: str) -> None:
        await self._run(self._execute, "INSERT INTO fill VALUES (?, 0)", (name,))

    async def end_fill(self, name: str) -> bool:
        return await self._run(self._end_fill, name)

    async def log_mark(self) -> str:
        rows = await self._run(self._query, "SELECT content FROM log_mark", ())
        return str(rows[0][0]) if rows else ""

    async def store_log_mark(self, mark: str) -> None:
        await self._run(self._execute, "INSERT OR REPLACE INTO log_mark VALUES (1, ?)", (mark,))

    async def clear(self) -> None:
        await self._run(self._clear)

    # ---- in the thread --------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work, *arguments)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise SessionStoreFull from error
            raise SessionStoreDown(f"the session store does not answer: {type(error).__name__}") from error
        except (OSError, RuntimeError) as error:  # RuntimeError: the thread was shut down
            raise SessionStoreDown(f"the session store does not answer: {type(error).__name__}") from error

    def _do(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return work(*arguments)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise
            # The next call finds a new file. (The fill is gone with the old one.)
            self._set_aside(str(error))
            self._open_file()
            raise

    def _open(self) -> None:
        make_private_directory(self._path.parent)
        try:
            self._open_file()
            self._check()
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF not in _DAMAGED:
                raise
            self._set_aside(str(error))
            self._open_file()

    def _open_file(self) -> None:
        """Raises sqlite3.Error."""
        make_private_database(self._path)
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        # The log is the truth. If the last cursors are lost at a power failure, some responses are sent again.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables >= _TABLES:  # (on a full disk nothing is written)
            self._connection.executescript(_SCHEMA)

    def _check(self) -> None:
        """Reads the whole file once. Raises sqlite3.DatabaseError, ValueError, KeyError, TypeError."""
        for (text,) in self._query("PRAGMA quick_check(1)", ()):
            if text != "ok":
                raise ValueError(text)
        for content, version in self._query("SELECT content, version FROM session", ()):
            from_json(content, version)

    def _set_aside(self, reason: str) -> None:
        """Renames the file, and what SQLite keeps beside it. Raises OSError."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        stamp = datetime.fromtimestamp(self._clock.now_ns() / 1e9, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = f"{self._path}.damaged-{stamp}"
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{end}").rename(f"{aside}{end}")
        log.warning("sessions.db is damaged and was set aside; sessions are read from the log", aside=aside, why=reason)

    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("not started")
        return self._connection

    def _query(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self._db().execute(sql, arguments).fetchall()

    def _execute(self, sql: str, arguments: tuple[object, ...]) -> None:
        self._db().execute(sql, arguments)

    def _set(self, session: Session) -> bool:
        with _Transaction(self._db()) as db:
            row = db.execute("SELECT version FROM session WHERE rm_id = ?", (session.rm_id,)).fetchone()
            if (row[0] if row else 0) != session.version:
                return False
            db.execute(
                "INSERT OR REPLACE INTO session VALUES (?, ?, ?)",
                (session.rm_id, session.version + 1, to_json(session)),
            )
            db.executemany(
                "INSERT OR REPLACE INTO seat VALUES (?, ?, ?)",
                [(session.rm_id, int(kind), seat.epoch) for kind, seat in session.seats.items()],
            )
        return True

    def _end_fill(self, name: str) -> bool:
        with _Transaction(self._db()) as db:
            if not db.execute("DELETE FROM fill WHERE name = ? AND NOT complete", (name,)).rowcount:
                return False
            db.execute("INSERT INTO fill SELECT ?, 1 WHERE NOT EXISTS (SELECT 1 FROM fill WHERE complete)", (name,))
        return True

    def _clear(self) -> None:
        with _Transaction(self._db()) as db:
            for table in ("session", "seat", "cursor", "fill", "log_mark"):
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - names of this module

    def _advance(self, moves: Sequence[Advance]) -> list[bool]:
        done = []
        with _Transaction(self._db()) as db:
            for rm_id, kind, epoch, cursor in moves:
                changed = db.execute(
                    "INSERT OR REPLACE INTO cursor SELECT rm_id, kind, ?, ?, ? FROM seat "
                    "WHERE rm_id = ? AND kind = ? AND epoch = ?",
                    (*cursor, rm_id, int(kind), epoch),
                ).rowcount
                done.append(changed > 0)
        return done


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT: no other writer can change what the transaction reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
