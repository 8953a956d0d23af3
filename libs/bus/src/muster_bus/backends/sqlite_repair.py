"""Writes what is whole of a damaged log into a new file, which Muster starts on.

Blocks are copied as they are, with their digests. What is not whole stays behind, and becomes a gap that the new log
knows (``chain_gaps``). The small tables are derived: from their repetition in the chains' tables, from the topics'
names, and from the blocks.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.breaks import Break, BreakKind
from muster_bus.backends.sqlite_breaks import Gap, check, gaps_of
from muster_bus.backends.sqlite_chain import adopt, begin, is_chained, is_compacted
from muster_bus.backends.sqlite_read_only import open_read_only
from muster_bus.backends.sqlite_schema import (
    INSERT_BLOCKS,
    OFFSET_BITS,
    OFFSET_MASK,
    block_columns,
    connect,
    create,
    identify,
    mark_of,
)
from muster_bus.errors import LogDamaged, LogUnavailable
from muster_bus.log_mark import LogMark
from muster_bus.topics import Topics

_ROUNDS_MAX = 4  # of checks of the new file: a gap may show another one behind it
_PASSED_OVER = 10_000  # places where the file cannot be read, of one partition


class Repaired(NamedTuple):
    """:param mark: of the new log.
    :param gaps: that were accepted now.
    :param ends_earlier: a partition ends before the place where the old log said.
    """

    mark: LogMark
    gaps: list[Gap]
    ends_earlier: bool


def repair_log(path: Path, target: Path, accepted: Sequence[Break], now_ms: int) -> Repaired:
    """Writes the new log. The old one is not changed.

    :param target: the new file; does not exist.
    :param accepted: all breaks of the old log.

    Raises LogUnavailable if the new log would not be whole: then only a backup helps.
    """
    try:
        with (
            contextlib.closing(open_read_only(path)) as old,
            contextlib.closing(connect(target, "full")) as new,
        ):
            create(new, target)
            new.execute("BEGIN IMMEDIATE")
            adopt(new)
            _Copy(old, new).run()
            gaps = [_gap_of(break_, now_ms) for break_ in accepted]
            _write_gaps(new, gaps_of(old))
            _write_gaps(new, gaps)
            begin(new)
            for _ in range(_ROUNDS_MAX):
                breaks = check(new, whole=True).breaks
                if not breaks:
                    break
                _write_gaps(new, [_gap_of(break_, now_ms, previous=_previous(new, break_)) for break_ in breaks])
            if breaks:
                raise LogUnavailable(f"log {path} cannot be repaired: {breaks[0]}. Restore a backup (docs/backup.md)")
            mark = mark_of(new)
            new.execute("COMMIT")
            new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            new.execute("PRAGMA journal_mode = DELETE")
    except (sqlite3.Error, OSError, OverflowError, TypeError, ValueError) as error:
        raise LogUnavailable(
            f"log {path} cannot be repaired: {error}. Put whole files back, or restore a backup (docs/backup.md)"
        ) from error
    ends = {(break_.topic, break_.partition): break_.next_offset for break_ in accepted}
    earlier = any(mark.ends.get(f"{topic}/{partition}", 0) < end for (topic, partition), end in ends.items() if topic)
    return Repaired(mark, gaps, earlier or any(break_.kind in (BreakKind.WAL, BreakKind.FILE) for break_ in accepted))


def _gap_of(break_: Break, now_ms: int, *, previous: int | None = None) -> Gap:
    first, end = break_.first_offset, break_.next_offset
    return Gap(break_.topic, break_.partition, first, end, previous, now_ms, str(break_))


def _write_gaps(new: sqlite3.Connection, gaps: Sequence[Gap]) -> None:
    new.executemany(
        "INSERT INTO chain_gaps (topic, partition, first_offset, next_offset, previous, accepted_ms, story) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        gaps,
    )


def _previous(new: sqlite3.Connection, break_: Break) -> int | None:
    """What the block behind a gap names as the one before it."""
    row = new.execute(
        "SELECT b.previous FROM partitions p JOIN blocks b ON b.id = (p.id << ?) | ? "
        "WHERE p.topic = ? AND p.partition = ?",
        (OFFSET_BITS, break_.next_offset, break_.topic, break_.partition),
    ).fetchone()
    return row[0] if row is not None else None


class _Copy:
    """Copies tables and whole blocks."""

    def __init__(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        self._old, self._new = old, new
        self._chained = is_chained(old)
        self._columns = block_columns(old)
        self._positions: dict[int, int] = {}  # of claims, in the blocks
        self._ends: dict[tuple[str, int], int] = {}

    def run(self) -> None:
        identity = self._rows("SELECT id FROM identity")
        identify(self._new)
        if identity:
            self._new.execute("UPDATE identity SET id = ?", identity[0])
        self._copy_topics()
        for id_, topic, partition, first in self._partitions():
            self._copy_partition(id_, topic, partition, first)
        self._copy_claims()

    def _rows(self, statement: str) -> list[Any]:
        """The rows of a small table; none if it cannot be read."""
        with contextlib.suppress(sqlite3.Error):
            return self._old.execute(statement).fetchall()
        return []

    def _partitions(self) -> list[tuple[int, str, int, int]]:
        """Id, topic, partition and first offset: as the chains repeat them, or as they are."""
        partitions = {id_: (topic, number, first) for id_, topic, number, first in self._rows(
            "SELECT id, topic, partition, first_offset FROM partitions NOT INDEXED"
        )}  # fmt: skip
        noted = self._rows("SELECT id, name, first_offset FROM chains") if self._chained else []
        for id_, name, first in noted:
            with contextlib.suppress(ValueError, AttributeError):
                topic, _, suffix = name.rpartition("/")
                its_first = partitions[id_][2] if id_ in partitions else first
                firsts = [offset for offset in (first, its_first) if isinstance(offset, int) and offset >= 0]
                partitions[id_] = topic, int(suffix.split(" ")[0]), min(firsts, default=0)
        return [(id_, *partitions[id_]) for id_ in sorted(partitions)]

    def _copy_topics(self) -> None:
        retention = dict(self._rows("SELECT name, retention_ms FROM topics NOT INDEXED"))
        partitions: dict[str, int] = {}
        for _, topic, _, _ in self._partitions():
            partitions[topic] = partitions.get(topic, 0) + 1
        for topic, count in partitions.items():
            kept = retention.get(topic, -1)
            row = (topic, count, _cleanup_of(topic), kept if isinstance(kept, int) else -1)
            self._new.execute("INSERT INTO topics VALUES (?, ?, ?, ?)", row)

    def _copy_partition(self, id_: int, topic: str, partition: int, first: int) -> None:
        base = id_ << OFFSET_BITS
        end, lowest = 0, -1
        for row in self._blocks(base, (id_ + 1) << OFFSET_BITS):
            block = Block(row[0] & OFFSET_MASK, *row[1:])
            try:
                blocks.decode(topic, partition, block)
            except LogDamaged:
                continue
            if block.first_offset < end or block.next_offset <= block.first_offset:
                continue
            self._new.execute(INSERT_BLOCKS[1], row)
            lowest = block.first_offset if lowest < 0 else lowest
            end = block.next_offset
            if block.claim is not None and block.position is not None:
                self._positions[block.claim] = max(block.position, self._positions.get(block.claim, 0))
        if lowest < 0:
            end = first
        elif not is_compacted(_cleanup_of(topic)) or lowest < first:
            first = lowest
        self._ends[topic, partition] = end
        self._new.execute(
            "INSERT INTO partitions (id, topic, partition, first_offset) VALUES (?, ?, ?, ?)",
            (id_, topic, partition, first),
        )

    def _blocks(self, low: int, high: int) -> Iterator[tuple[Any, ...]]:
        """Yields the rows that can be read. Passes over places of the file that cannot."""
        step = 1
        for _ in range(_PASSED_OVER):
            try:
                for row in self._old.execute(
                    f"SELECT {self._columns} FROM blocks WHERE id >= ? AND id < ? ORDER BY id",  # noqa: S608
                    (low, high),
                ):
                    yield row
                    low, step = row[0] + 1, 1
                return
            except sqlite3.DatabaseError:
                low, step = low + step, min(step * 2, 1 << 20)
                if low >= high:
                    return

    def _copy_claims(self) -> None:
        """Each group where its last commit left it, but not after the end of what is left."""
        claims = self._rows("SELECT id, group_name, topic, partition, epoch, position FROM claims NOT INDEXED")
        table = "chain_claims" if self._chained else "claims"
        rows = self._rows(f"SELECT id, epoch, position FROM {table}")  # noqa: S608
        noted = {id_: (epoch, position) for id_, epoch, position in rows}
        for id_, group, topic, partition, epoch, position in claims:
            end = self._ends.get((topic, partition))
            if end is None:
                raise ValueError(f"group {group!r} reads {topic}[{partition}], which does not exist")
            its_epoch, its_position = noted.get(id_, (0, None))
            positions: list[int] = [
                number for number in (position, its_position, self._positions.get(id_)) if _is_offset(number)
            ]
            at = None if not positions else max((number for number in positions if number <= end), default=end)
            last_epoch = max([number for number in (0, epoch, its_epoch) if _is_offset(number)])
            self._new.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?)", (id_, group, topic, partition, last_epoch, at)
            )


def _is_offset(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < 1 << OFFSET_BITS


def _cleanup_of(topic: str) -> str:
    """The cleanup of a topic, by the end of its name."""
    for spec in Topics(derived=True).specs():
        if topic.endswith(spec.name):
            return spec.cleanup
    return "delete"
