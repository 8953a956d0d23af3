"""Copies of an embedded log's file, taken while Muster writes, and the check of a whole file.

A copy is one snapshot: SQLite's backup interface reads all pages in one step, while commits go on in the write-ahead
log. The copy is a single file without a write-ahead log of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from muster_runtime import durable

from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.sqlite_format import OFFSET_BITS, OFFSET_MASK, SELECT_BLOCKS, is_new, mark_of
from muster_bus.errors import LogDamaged, LogIncompatible, LogUnavailable
from muster_bus.log_mark import LogMark

_BLOCKS_PER_READ = 256
_PROBLEMS_MAX = 20
_BUSY_S = 10.0


class Verified(NamedTuple):
    """A check's result.

    :param records: number of records in the file.
    :param problems: one sentence each; none: the file is whole.
    """

    mark: LogMark
    records: int
    problems: list[str]


def copy_database(source: Path, target: Path) -> None:
    """Copies a SQLite file, even while another process uses it. Returns when the copy is durable. Raises
    LogUnavailable.

    :param target: does not exist yet.
    """
    try:
        with contextlib.closing(_read_only(source)) as reading, contextlib.closing(sqlite3.connect(target)) as writing:
            reading.backup(writing, pages=-1)
            writing.execute("PRAGMA journal_mode = DELETE")
        target.chmod(0o600)
        durable.sync(target)
    except sqlite3.Error as error:
        raise LogUnavailable(f"{source} cannot be copied to {target}: {error}") from error
    except OSError as error:
        raise LogUnavailable(f"{source} cannot be copied to {target}: {error.strerror}") from error


def verify_database(path: Path) -> list[str]:
    """Checks the structure of a SQLite file. Returns the problems."""
    try:
        with contextlib.closing(_read_only(path)) as connection:
            found = [str(text) for (text,) in connection.execute(f"PRAGMA quick_check({_PROBLEMS_MAX})")]
    except sqlite3.Error as error:
        return [f"{path}: {error}"]
    return [f"{path}: {text}" for text in found if text != "ok"]


def verify_log(path: Path) -> Verified:
    """Checks a log's file: its structure, each block's checksum and place, and the groups' positions.

    The blocks are read in one snapshot, so that a check beside a working Muster sees one moment.
    """
    nothing = LogMark("", {})
    if problems := verify_database(path):
        return Verified(nothing, 0, problems)
    records = 0
    try:
        with contextlib.closing(_read_only(path)) as connection:
            if is_new(connection, path):
                return Verified(nothing, 0, [f"{path}: is empty"])
            connection.execute("BEGIN")
            mark = mark_of(connection)
            places = connection.execute("SELECT id, topic, partition, first_offset FROM partitions").fetchall()
            for id_, topic, partition, first in places:
                records += _verify_partition(connection, id_, topic, partition, first, problems)
            for group, topic, partition, position in connection.execute(
                "SELECT group_name, topic, partition, position FROM claims WHERE position IS NOT NULL"
            ):
                end = mark.ends.get(f"{topic}/{partition}", 0)
                if position > end:
                    problems.append(f"{group} is at {position} of {topic}[{partition}], which ends at {end}")
    except (sqlite3.Error, LogIncompatible) as error:
        return Verified(nothing, records, [*problems, f"{path}: {error}"])
    return Verified(mark, records, problems[:_PROBLEMS_MAX])


def _verify_partition(
    connection: sqlite3.Connection, id_: int, topic: str, partition: int, first: int, problems: list[str]
) -> int:
    """Checks a partition's blocks. Adds the problems. Returns the number of records."""
    count, at = 0, id_ << OFFSET_BITS
    after = 0
    while rows := connection.execute(SELECT_BLOCKS, (at, (id_ + 1) << OFFSET_BITS, _BLOCKS_PER_READ)).fetchall():
        for row in rows:
            block = Block(row[0] & OFFSET_MASK, *row[1:])
            if block.first_offset < after or block.next_offset <= max(block.first_offset, first - 1):
                problems.append(f"block {block.first_offset} of {topic}[{partition}] is not in its place")
            after = block.next_offset
            try:
                count += len(blocks.decode(topic, partition, block))
            except LogDamaged as error:
                problems.append(str(error))
        at = rows[-1][0] + 1
    return count


def _read_only(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    location = f"file:{quote(str(path.absolute()))}?mode=ro"
    return sqlite3.connect(location, uri=True, timeout=_BUSY_S, isolation_level=None)
