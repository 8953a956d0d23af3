"""The embedded log's file: its tables, its statements, and how to open it."""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from muster_runtime import durable
from muster_runtime.private_files import open_private

from muster_bus.backends import blocks
from muster_bus.errors import LogDamaged, LogError, LogIncompatible, LogUnavailable
from muster_bus.log import Record
from muster_bus.log_mark import LogMark

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4D555354  # "MUST" in the file's header marks a file of Muster

OFFSET_BITS = 40  # low bits of a block's row id; the others are the partition's id: 10^12 records, 4 million partitions
OFFSET_MASK = (1 << OFFSET_BITS) - 1
ROWS_PER_INSERT = 64  # 10 variables per row; SQLite allows 32,766
PAGE_BYTES = 8192  # a commit of a few blocks touches half as many pages as with SQLite's default

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
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL  -- a random text, from the log's creation on
);
CREATE TRIGGER blocks_position AFTER INSERT ON blocks WHEN new.claim IS NOT NULL BEGIN
    UPDATE claims SET position = new.position WHERE id = new.claim;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""  # noqa: S608 - numbers of this module only

INSERT_BLOCKS = [
    "INSERT INTO blocks (id, next_offset, timestamp_ms, codec, body, claim, position, previous, heads, digest) VALUES "  # noqa: S608
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * rows)
    for rows in range(ROWS_PER_INSERT + 1)
]
# The columns of a Block. SQLite keeps any type in any column; with the casts, a damaged one is a wrong value at worst.
# None is possible, too, where a row was cut off.
_OLD_COLUMNS = (
    "id, coalesce(CAST(next_offset AS INTEGER), -1), coalesce(CAST(timestamp_ms AS INTEGER), -1), "
    "coalesce(CAST(codec AS INTEGER), -1), coalesce(CAST(body AS BLOB), x''), "
    "CAST(claim AS INTEGER), CAST(position AS INTEGER)"
)
BLOCK_COLUMNS = f"{_OLD_COLUMNS}, CAST(previous AS INTEGER), CAST(heads AS INTEGER), CAST(digest AS INTEGER)"
SELECT_BLOCKS = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"  # noqa: S608


def block_columns(connection: sqlite3.Connection) -> str:
    """Returns the columns of a Block in a log that may be of an older version. Raises sqlite3.Error."""
    names = {name for _, name, *_ in connection.execute("PRAGMA table_info(blocks)")}
    return BLOCK_COLUMNS if "digest" in names else f"{_OLD_COLUMNS}, NULL, NULL, NULL"


def lock(path: Path) -> IO[bytes]:
    """Takes a log's file for this log alone, until the returned file is closed. Raises LogUnavailable, OSError."""
    # The lock is on a file of its own: closing any descriptor of the database's file would drop SQLite's locks on it.
    file = open_private(Path(f"{path}.lock"), append=True)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LogUnavailable(
            f"log {path} is in use by another process (or another log of this one); "
            "the embedded log belongs to one at a time"
        ) from error
    return file


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """Returns a connection that any thread may use, one thread at a time. Raises sqlite3.Error.

    :param synchronous: SQLite's setting of that name.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=5.0
    )
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous.upper()}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # the committer and maintenance do checkpoints
        connection.execute("PRAGMA cache_size = -8192")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Tells whether the file has no tables yet. Raises LogIncompatible if it is no log of this version."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == 0 and version == 0 and tables == 0:
        return True
    if application_id != APPLICATION_ID:
        raise LogIncompatible(f"{path} is not a log of Muster")
    if version != SCHEMA_VERSION:
        raise LogIncompatible(f"log {path} has schema {version}, this version needs {SCHEMA_VERSION}")
    return False


def create(connection: sqlite3.Connection, path: Path) -> None:
    """Creates the tables in a new file."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    durable.sync(path.parent)  # makes the new file's directory entry durable


def identify(connection: sqlite3.Connection) -> str:
    """Returns the log's identity, and gives it one if it has none. Runs in the caller's transaction."""
    # (Logs of 0.2.0 have no such table.)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL)"
    )
    connection.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (secrets.token_hex(16),))
    (identity,) = connection.execute("SELECT id FROM identity").fetchone()
    return str(identity)


def mark_of(connection: sqlite3.Connection) -> LogMark:
    """Returns the mark of a log's file."""
    (has_identity,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'identity'").fetchone()
    row = connection.execute("SELECT id FROM identity").fetchone() if has_identity else None
    ends: dict[str, int] = {}
    for id_, topic, partition, first in connection.execute(
        "SELECT id, topic, partition, first_offset FROM partitions"
    ).fetchall():
        newest = connection.execute(
            "SELECT next_offset FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1",
            (id_ << OFFSET_BITS, (id_ + 1) << OFFSET_BITS),
        ).fetchone()
        ends[f"{topic}/{partition}"] = newest[0] if newest is not None else first
    return LogMark(row[0] if row is not None else "", ends)


def reading_error(path: Path, error: Exception, topic: str, partition: int, start: int, end: int) -> LogError:
    """Returns the log's error for one of SQLite while a partition was read from ``start`` on, up to ``end``."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogDamaged(topic, partition, start, end, f"{path} cannot be read there ({error})")
    return LogUnavailable(f"log {path} cannot be read: {error}")


def split_into_blocks(records: list[Record]) -> Iterator[list[Record]]:
    """Yields parts of the records, each small enough for one block."""
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


def stored_bytes(row: tuple[object, ...]) -> int:
    body = row[4]
    assert isinstance(body, bytes)
    return len(body) + PAGE_BYTES  # a commit writes whole pages
