"""Reads an embedded log's file while another process owns it, or while no process does.

With SQLite's write-ahead log, any number of readers see the last commit and do not delay the writer. Every query here
is a short snapshot of its own, so that checkpoints can proceed. This module never writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.sqlite_format import (
    APPLICATION_ID,
    BLOCK_COLUMNS,
    OFFSET_BITS,
    OFFSET_MASK,
    SCHEMA_VERSION,
    reading_error,
)
from muster_bus.errors import BadRecord, LogIncompatible, LogUnavailable, OffsetGone
from muster_bus.log import Record

_BLOCKS_PER_READ = 16
_SELECT_FROM = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE id >= ? AND id < ? ORDER BY id"  # noqa: S608


class LogFile:
    """The records of an embedded log's file, read only.

    :param path: the file (``DATA_DIR/log.db``).
    :param any_thread: several threads may use the object, but only one at a time.
    :ivar places: the number of each (topic, partition) in the file.

    The constructor raises LogUnavailable if the file does not exist or cannot be read, and LogIncompatible if it is no
    log of this version. Every method raises LogUnavailable, those that return records also LogDamaged.
    """

    def __init__(self, path: Path, *, any_thread: bool = False) -> None:
        self.path = path
        if not path.is_file():
            raise LogUnavailable(f"log {path} does not exist")
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode=ro",
                uri=True,
                timeout=5.0,
                isolation_level=None,
                check_same_thread=not any_thread,
            )
            try:
                self._connection.execute("PRAGMA query_only = 1")
                (application_id,) = self._connection.execute("PRAGMA application_id").fetchone()
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
                if application_id != APPLICATION_ID:
                    raise LogIncompatible(f"{path} is not a log of Muster")
                if version != SCHEMA_VERSION:
                    raise LogIncompatible(f"log {path} has schema {version}, this version needs {SCHEMA_VERSION}")
                self.places: dict[tuple[str, int], int] = {
                    (topic, partition): number
                    for number, topic, partition in self._connection.execute(
                        "SELECT id, topic, partition FROM partitions"
                    )
                }
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise LogUnavailable(f"log {path} cannot be read: {error}") from error

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def partitions(self, topic: str) -> list[int]:
        """Returns the partitions of a topic; an empty list if the log has no such topic."""
        return sorted(partition for name, partition in self.places if name == topic)

    def version(self) -> int:
        """Returns a number that changes when another connection commits."""
        try:
            found: int
            (found,) = self._connection.execute("PRAGMA data_version").fetchone()
        except (sqlite3.Error, ValueError) as error:
            raise LogUnavailable(f"log {self.path} cannot be read: {error}") from error
        return found

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the lowest existing offset and one past the highest one."""
        place = self._place(topic, partition)
        with self._snapshot(topic, partition, 0):
            return self._bounds(place)

    def read(self, topic: str, partition: int, start: int) -> tuple[list[Record], int]:
        """Returns some records from an offset on, and the offset of the next read. No records: there are none yet.

        Raises OffsetGone if retention deleted the offset, or if the offset is past the end.
        """
        place = self._place(topic, partition)
        with self._snapshot(topic, partition, start):
            first, end = self._bounds(place)
            if not first <= start <= end:
                raise OffsetGone(topic, partition, start, first, end)
            records: list[Record] = []
            low = self._block_at(place, start)
            for block in self._blocks("id >= ? AND id < ? ORDER BY id", low, (place + 1) << OFFSET_BITS):
                if block.next_offset <= start:
                    continue
                records += [r for r in blocks.decode(topic, partition, block) if r.offset >= start]
                end = block.next_offset
            return records, end

    def blocks_from(self, topic: str, partition: int, start: int) -> Generator[tuple[Block, list[Record]], None, None]:
        """Yields the blocks from an offset on, up to the present end, each with its records from that offset on.

        All blocks come from one snapshot, which lasts until the iteration ends. Raises OffsetGone if retention deleted
        the offset.
        """
        place = self._place(topic, partition)
        with self._snapshot(topic, partition, start):
            if start < (first := self._first(place)):
                raise OffsetGone(topic, partition, start, first, self._bounds(place)[1])
            low = self._block_at(place, start)
            for row in self._connection.execute(_SELECT_FROM, (low, (place + 1) << OFFSET_BITS)):
                block = Block(row[0] & OFFSET_MASK, *row[1:])
                if block.next_offset <= start:
                    continue
                records = blocks.decode(topic, partition, block)
                if block.first_offset < start:
                    records = [record for record in records if record.offset >= start]
                yield block, records

    def newest_first(self, topic: str, partition: int) -> Iterator[Sequence[Record]]:
        """Yields the records of a partition from its end to its beginning: one list per block, each list in offset
        order.
        """
        place = self._place(topic, partition)
        low, high = place << OFFSET_BITS, (place + 1) << OFFSET_BITS
        while True:
            with self._snapshot(topic, partition, 0):
                found = list(self._blocks("id >= ? AND id < ? ORDER BY id DESC", low, high))
            if not found:
                return
            for block in found:
                yield blocks.decode(topic, partition, block)
            high = low | found[-1].first_offset

    # ---- methods that run in a snapshot -----------------------------------------------------------------------------

    def _first(self, place: int) -> int:
        first: int
        (first,) = self._connection.execute("SELECT first_offset FROM partitions WHERE id = ?", (place,)).fetchone()
        return first

    def _bounds(self, place: int) -> tuple[int, int]:
        low, high = place << OFFSET_BITS, (place + 1) << OFFSET_BITS
        first = self._first(place)
        newest = self._connection.execute(
            "SELECT next_offset FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1", (low, high)
        ).fetchone()
        return first, newest[0] if newest is not None else first

    def _blocks(self, which: str, low: int, high: int) -> Iterator[Block]:
        statement = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE {which} LIMIT ?"  # noqa: S608 - words of this module
        for row in self._connection.execute(statement, (low, high, _BLOCKS_PER_READ)).fetchall():
            yield Block(row[0] & OFFSET_MASK, *row[1:])

    def _block_at(self, place: int, start: int) -> int:
        """Returns the row of the last block that begins at or before an offset. After compaction there may be none;
        then base.
        """
        base = place << OFFSET_BITS
        row: int
        (row,) = self._connection.execute(
            "SELECT coalesce(max(id), ?) FROM blocks WHERE id >= ? AND id <= ?", (base, base, base | start)
        ).fetchone()
        return row

    @contextmanager
    def _snapshot(self, topic: str, partition: int, start: int) -> Iterator[None]:
        """Runs the queries of the ``with`` block, which read a partition from an offset on, on one snapshot. Raises
        LogUnavailable, LogDamaged.
        """
        try:
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")
        except (sqlite3.Error, ValueError) as error:
            raise reading_error(self.path, error, topic, partition, start, start + 1) from error

    def _place(self, topic: str, partition: int) -> int:
        try:
            return self.places[topic, partition]
        except KeyError as error:
            raise BadRecord(f"log {self.path} has no {topic}[{partition}]") from error
