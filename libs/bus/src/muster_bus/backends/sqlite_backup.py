"""Copies of an embedded log's file, taken while Muster writes, and the check of a whole file.

A copy is one snapshot: SQLite's backup interface reads all pages in one step, while commits go on in the write-ahead
log. The copy is a single file without a write-ahead log of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from muster_runtime import durable

from muster_bus.backends.sqlite_breaks import Gap, check, check_side_files
from muster_bus.backends.sqlite_read_only import open_read_only
from muster_bus.backends.sqlite_schema import is_new, mark_of
from muster_bus.errors import LogIncompatible, LogUnavailable
from muster_bus.log_mark import LogMark

_PROBLEMS_MAX = 20


class VerificationResult(NamedTuple):
    """A check's result.

    :param records: number of records in the file.
    :param problems: one sentence each; none: the file is whole.
    :param gaps: parts that an operator has accepted as missing.
    """

    mark: LogMark
    records: int
    problems: list[str]
    gaps: Sequence[Gap] = ()


def copy_database(source: Path, target: Path) -> None:
    """Copies a SQLite file, even while another process uses it. Returns when the copy is durable. Raises
    LogUnavailable.

    :param target: does not exist yet.
    """
    try:
        with (
            contextlib.closing(open_read_only(source)) as reading,
            contextlib.closing(sqlite3.connect(target)) as writing,
        ):
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
        with contextlib.closing(open_read_only(path)) as connection:
            messages = [str(text) for (text,) in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_MAX})")]
    except (sqlite3.Error, OSError) as error:
        return [f"{path}: {error}"]
    return [f"{path}: {text}" for text in messages if text != "ok"]


def verify_log(path: Path) -> VerificationResult:
    """Checks a log's file: its structure, and each block, table and event id (``sqlite_breaks.py``).

    The blocks are read in one snapshot, so that a check beside a working Muster sees one moment.
    """
    nothing = LogMark("", {})
    if problems := verify_database(path):
        return VerificationResult(nothing, 0, problems)
    try:
        with contextlib.closing(open_read_only(path)) as connection:
            if is_new(connection, path):
                return VerificationResult(nothing, 0, [f"{path}: is empty"])
            unread = check_side_files(connection, path)
            connection.execute("BEGIN")
            checked, mark = check(connection, whole=True), mark_of(connection)
    except (sqlite3.Error, OSError, OverflowError, TypeError, LogIncompatible) as error:
        return VerificationResult(nothing, 0, [f"{path}: {error}"])
    return VerificationResult(
        mark, checked.records, list(map(str, [*unread, *checked.breaks][:_PROBLEMS_MAX])), checked.gaps
    )
