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

from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.sqlite_chain import is_compacted, refuse_hole
from muster_bus.backends.sqlite_read_only import open_read_only
from muster_bus.backends.sqlite_schema import (
    APPLICATION_ID,
    OFFSET_BITS,
    OFFSET_MASK,
    SCHEMA_VERSION,
    block_columns,
    reading_error,
)
from muster_bus.errors import InvalidRecord, LogDamaged, LogIncompatible, LogUnavailable, OffsetOutOfRange
from muster_bus.log import Record

_BLOCKS_PER_READ = 16


class LogFile:
    """The records of an embedded log's file, read only.

    :param path: the file (``DATA_DIR/log.db``).
    :param any_thread: several threads may use the object, but only one at a time.
    :ivar partition_ids: the number of each (topic, partition) in the file.

    The constructor raises LogUnavailable if the file does not exist or cannot be read, and LogIncompatible if it is no
    log of this version. Every method raises LogUnavailable, those that return records also LogDamaged.
    """

    def __init__(self, path: Path, *, any_thread: bool = False) -> None:
        self.path = path
        if not path.is_file():
            raise LogUnavailable(f"log {path} does not exist")
        try:
            self._connection = open_read_only(path, any_thread=any_thread)
            try:
                (application_id,) = self._connection.execute("PRAGMA application_id").fetchone()
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
                if application_id != APPLICATION_ID:
                    raise LogIncompatible(f"{path} is not a log of Muster")
                if version != SCHEMA_VERSION:
                    raise LogIncompatible(f"log {path} has schema {version}, this version needs {SCHEMA_VERSION}")
                self.partition_ids: dict[tuple[str, int], int] = {
                    (topic, partition): number
                    for number, topic, partition in self._connection.execute(
                        "SELECT id, topic, partition FROM partitions"
                    )
                }
                self._compacted = {
                    topic
                    for topic, cleanup in self._connection.execute("SELECT name, cleanup FROM topics")
                    if is_compacted(cleanup)
                }
                self._columns = block_columns(self._connection)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
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
        return sorted(partition for name, partition in self.partition_ids if name == topic)

    def version(self) -> int:
        """Returns a number that changes when another connection commits."""
        try:
            version: int
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except (sqlite3.Error, ValueError) as error:
            raise LogUnavailable(f"log {self.path} cannot be read: {error}") from error
        return version

    def identity(self) -> str:
        """Returns the log's identity; "": it has none. Raises LogUnavailable."""
        try:
            row = self._connection.execute("SELECT id FROM identity").fetchone()
        except (sqlite3.Error, ValueError) as error:
            raise LogUnavailable(f"log {self.path} cannot be read: {error}") from error
        return str(row[0]) if row is not None else ""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the lowest existing offset and one past the highest one."""
        partition_id = self._partition_id(topic, partition)
        with self._snapshot(topic, partition, 0):
            return self._bounds(partition_id)

    def read(self, topic: str, partition: int, start: int) -> tuple[list[Record], int]:
        """Returns some records from an offset on, and the offset of the next read. No records: there are none yet.

        Raises OffsetOutOfRange if retention deleted the offset, or if the offset is past the end.
        """
        partition_id = self._partition_id(topic, partition)
        with self._snapshot(topic, partition, start):
            first, end = self._bounds(partition_id)
            if not first <= start <= end:
                raise OffsetOutOfRange(topic, partition, start, first, end)
            records: list[Record] = []
            at, low = start, self._block_at(partition_id, start)
            for block in self._blocks("id >= ? AND id < ? ORDER BY id", low, (partition_id + 1) << OFFSET_BITS):
                if block.next_offset <= start:
                    continue
                try:
                    decoded = self._decode(topic, partition, block, at)
                except LogDamaged:
                    if records:  # the next read begins at the damaged block
                        break
                    raise
                records += [record for record in decoded if record.offset >= start]
                at = end = block.next_offset
            return records, end

    def blocks_from(self, topic: str, partition: int, start: int) -> Generator[tuple[Block, list[Record]], None, None]:
        """Yields the blocks from an offset on, up to the present end, each with its records from that offset on.

        All blocks come from one snapshot, which lasts until the iteration ends. Raises OffsetOutOfRange if retention
        deleted the offset.
        """
        partition_id = self._partition_id(topic, partition)
        with self._snapshot(topic, partition, start):
            if start < (first := self._first(partition_id)):
                raise OffsetOutOfRange(topic, partition, start, first, self._bounds(partition_id)[1])
            at, low = start, self._block_at(partition_id, start)
            statement = f"SELECT {self._columns} FROM blocks WHERE id >= ? AND id < ? ORDER BY id"  # noqa: S608
            for row in self._connection.execute(statement, (low, (partition_id + 1) << OFFSET_BITS)):
                block = Block(row[0] & OFFSET_MASK, *row[1:])
                if block.next_offset <= start:
                    continue
                records = self._decode(topic, partition, block, at)
                at = block.next_offset
                if block.first_offset < start:
                    records = [record for record in records if record.offset >= start]
                yield block, records

    def newest_first(
        self, topic: str, partition: int, passed: list[LogDamaged] | None = None
    ) -> Iterator[Sequence[Record]]:
        """Yields the records of a partition from its end to its beginning: one list per block, each list in offset
        order.

        :param passed: gets the damaged blocks, which are passed over; None: the first one is raised.
        """
        partition_id = self._partition_id(topic, partition)
        low, high = partition_id << OFFSET_BITS, (partition_id + 1) << OFFSET_BITS
        while True:
            with self._snapshot(topic, partition, 0):
                newest_blocks = list(self._blocks("id >= ? AND id < ? ORDER BY id DESC", low, high))
            if not newest_blocks:
                return
            for block in newest_blocks:
                try:
                    records = blocks.decode(topic, partition, block)
                except LogDamaged as error:
                    if passed is None:
                        raise
                    passed.append(error)
                    continue
                yield records
            high = low | newest_blocks[-1].first_offset

    # ---- methods that run in a snapshot -----------------------------------------------------------------------------

    def _first(self, partition_id: int) -> int:
        first: int
        (first,) = self._connection.execute(
            "SELECT first_offset FROM partitions WHERE id = ?", (partition_id,)
        ).fetchone()
        return first

    def _bounds(self, partition_id: int) -> tuple[int, int]:
        low, high = partition_id << OFFSET_BITS, (partition_id + 1) << OFFSET_BITS
        first = self._first(partition_id)
        newest = self._connection.execute(
            "SELECT next_offset FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1", (low, high)
        ).fetchone()
        return first, newest[0] if newest is not None else first

    def _blocks(self, which: str, low: int, high: int) -> Iterator[Block]:
        statement = f"SELECT {self._columns} FROM blocks WHERE {which} LIMIT ?"  # noqa: S608 - words of this module
        for row in self._connection.execute(statement, (low, high, _BLOCKS_PER_READ)).fetchall():
            yield Block(row[0] & OFFSET_MASK, *row[1:])

    def _decode(self, topic: str, partition: int, block: Block, at: int) -> list[Record]:
        """Returns the records of the block that is the next one from an offset on. Raises LogDamaged."""
        if block.first_offset > at and topic not in self._compacted:
            refuse_hole(self._connection, topic, partition, at, block.first_offset)
        return blocks.decode(topic, partition, block)

    def _block_at(self, partition_id: int, start: int) -> int:
        """Returns the row of the last block that begins at or before an offset. After compaction there may be none;
        then base.
        """
        base = partition_id << OFFSET_BITS
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

    def _partition_id(self, topic: str, partition: int) -> int:
        try:
            return self.partition_ids[topic, partition]
        except KeyError as error:
            raise InvalidRecord(f"log {self.path} has no {topic}[{partition}]") from error
