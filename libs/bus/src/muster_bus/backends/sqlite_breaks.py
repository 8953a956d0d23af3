"""Finds breaks of an embedded log: what is not as it was written, or missing (``sqlite_chain.py``).

A start checks what it must rely on: the small tables, the newest blocks of each partition, and all blocks of the topics
that are compacted, since state is folded from them. ``muster verify`` checks every block, the ids of events and the
numbers of responses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from muster_bus.backends import blocks
from muster_bus.backends.blocks import DIGEST_MASK, Block
from muster_bus.backends.breaks import Break, BreakKind, RecordNumbers, time_text
from muster_bus.backends.sqlite_chain import is_chained, is_compacted
from muster_bus.backends.sqlite_mark import mark_path, read_mark
from muster_bus.backends.sqlite_schema import OFFSET_BITS, OFFSET_MASK, block_columns
from muster_bus.backends.sqlite_wal import unread_commits
from muster_bus.clock import SystemClock
from muster_bus.errors import LogDamaged
from muster_bus.topics import parse_state_key

SMALL_TABLES = ("topics", "partitions", "claims", "identity", "chains", "chain_claims", "chain_heads", "chain_gaps")
# (Whatever is in a column: SQLite itself compares no types, and has no limits for numbers from elsewhere.)
_UNREADABLE = (sqlite3.DatabaseError, OverflowError, TypeError, ValueError)
_TIME_MAX_MS = 253_402_300_799_000  # the year 9999


class Gap(NamedTuple):
    """A part that is missing, which an operator has accepted.

    :param previous: what the block after it names as its previous one; None: no block followed.
    """

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    previous: int | None
    accepted_ms: int
    story: str

    def __str__(self) -> str:
        return f"accepted at {time_text(self.accepted_ms)}: {self.story}"


class Checked(NamedTuple):
    """:param records: number of the records that were read."""

    breaks: list[Break]
    gaps: list[Gap]
    records: int


def gaps_of(connection: sqlite3.Connection) -> list[Gap]:
    """Returns the accepted gaps. Raises sqlite3.Error."""
    if not is_chained(connection):
        return []
    rows = connection.execute(
        "SELECT topic, partition, first_offset, next_offset, previous, accepted_ms, story FROM chain_gaps ORDER BY id"
    )
    return [Gap(*row) for row in rows]


def was_written_by_older(connection: sqlite3.Connection) -> bool:
    """Tells whether a version without chains has used the log since the last note: it took claims over and did not note
    that. Raises sqlite3.Error.
    """
    count: int
    (count,) = connection.execute(
        "SELECT count(*) FROM claims c JOIN chain_claims n ON n.id = c.id WHERE c.epoch > n.epoch"
    ).fetchone()
    return bool(count)


def refuse_breaks(connection: sqlite3.Connection, path: Path, needed: Collection[str]) -> None:
    """Checks what a start relies on. Raises LogDamaged, sqlite3.Error.

    :param needed: topics whose records decisions need. Readers of the others pass over a damaged block, and say so
        (``muster_bus.damage``); what is missing without a trace they could not notice.
    """
    breaks = check_side_files(connection, path) + [
        break_
        for break_ in check(connection, whole=False).breaks
        if break_.kind is not BreakKind.BLOCK or break_.topic in needed
    ]
    if not breaks:
        return
    first = breaks[0]
    more = f" (and {len(breaks) - 1} more)" if len(breaks) > 1 else ""
    remedy = (
        "nothing was changed; put whole files back, or restore a backup, or run muster repair --data-dir "
        f"{path.parent}, which lists all such parts and goes on without those that you accept (docs/backup.md)"
    )
    error = LogDamaged(first.topic, first.partition, first.first_offset, first.next_offset, first.reason, remedy)
    error.args = (f"log {path} is damaged: {first}{more}; {remedy}",)
    raise error


def check_side_files(connection: sqlite3.Connection, path: Path) -> list[Break]:
    """Compares a log with the files beside it: its write-ahead log, and the heads in its side file. Raises
    sqlite3.Error, OSError.
    """
    side = read_mark(path)
    boot_id = side.clock.boot_id
    breaks: list[Break] = []
    unread = unread_commits(path, interrupted=not boot_id or boot_id != SystemClock().anchor().boot_id)
    if unread is not None:
        lost = f"{unread.commits} commits from there on cannot be read"
        reason = f"{path}-wal is damaged at frame {unread.frame}: {lost}"
        breaks.append(Break(BreakKind.WAL, "", 0, 0, 0, reason))
    if side.mark is None or not is_chained(connection) or was_written_by_older(connection):
        return breaks
    if (side.mark.log_id,) not in connection.execute("SELECT id FROM identity").fetchall():
        return breaks  # another log, which is refused as that
    for partition, head in side.mark.heads.items():
        topic, _, number = partition.rpartition("/")
        end = side.mark.ends.get(partition, 0)
        row = connection.execute(
            "SELECT b.id, b.digest, b.timestamp_ms FROM partitions p JOIN blocks b ON b.id = "
            "(SELECT max(id) FROM blocks WHERE id >= p.id << ? AND id < (p.id << ?) + ?) "
            "WHERE p.topic = ? AND p.partition = ? AND b.next_offset = ?",
            (OFFSET_BITS, OFFSET_BITS, end, topic, int(number), end),
        ).fetchone()
        # (In a topic that is compacted the block may be another one by now. Its count and sum are checked.)
        cleanup = connection.execute("SELECT cleanup FROM topics WHERE name = ?", (topic,)).fetchone()
        if row is not None and row[1] not in (None, head) and cleanup is not None and not is_compacted(cleanup[0]):
            reason = f"its block is another one than {mark_path(path).name} knows"
            breaks.append(Break(BreakKind.BLOCK, topic, int(number), row[0] & OFFSET_MASK, end, reason, row[2]))
    return breaks


def check(connection: sqlite3.Connection, *, whole: bool) -> Checked:
    """Checks a log in one snapshot.

    :param whole: reads every record. Otherwise see the module's docstring.

    Raises sqlite3.Error if the file's structure is damaged.
    """
    began = not connection.in_transaction
    if began:
        connection.execute("BEGIN")
    try:
        return _Check(connection, whole=whole).run()
    finally:
        if began:
            connection.execute("ROLLBACK")


class _PartitionRow(NamedTuple):
    """A partition, and its note; all numbers of the note are None in a log without chains."""

    id: int
    topic: str
    partition: int
    first_offset: int
    cleanup: str
    noted_to: int | None
    head: int | None
    start: int | None
    blocks: int | None
    total: int | None
    unchained: int | None

    @property
    def is_compacted(self) -> bool:
        return is_compacted(self.cleanup)


class _Check:
    def __init__(self, connection: sqlite3.Connection, *, whole: bool) -> None:
        self._connection, self._whole = connection, whole
        self._chained = is_chained(connection)
        self._older = self._chained and was_written_by_older(connection)
        self._select = f"SELECT {block_columns(connection)} FROM blocks WHERE id >= ? AND id < ? ORDER BY id"  # noqa: S608
        self._breaks: list[Break] = []
        self._gaps = gaps_of(connection)
        self._records = 0
        self._positions: dict[int, int] = {}  # of claims, in the blocks after the note
        self._ends: dict[tuple[str, int], int] = {}
        self._newest: dict[tuple[str, int], Block] = {}
        self._heads, self._is_all_noted = 0, True
        self._numbers = RecordNumbers()

    def run(self) -> Checked:
        try:
            self._check_all()
        except _UNREADABLE as error:
            self._breaks.append(Break(BreakKind.FILE, "", 0, 0, 0, f"the small tables cannot be read ({error})"))
        if self._breaks:
            rms = _rms_of(self._connection, self._select)
            self._breaks = [
                break_._replace(rms=rms.get(break_.partition, ())) if break_.topic else break_
                for break_ in self._breaks
            ]
        return Checked(self._breaks, self._gaps, self._records)

    def _check_all(self) -> None:
        self._check_tables()
        for partition in self._partitions():
            before = len(self._breaks)
            try:
                self._check_partition(partition)
            except _UNREADABLE as error:
                self._add(BreakKind.FILE, partition, 0, 0, f"the file cannot be read there ({error})")
            self._breaks[before:] = self._merged(self._breaks[before:])
        if self._chained:
            self._check_claims()
            if not self._breaks:
                self._check_heads()

    def _add(
        self,
        kind: BreakKind,
        partition: _PartitionRow,
        first: int,
        end: int,
        reason: str,
        *,
        around: tuple[int, int] = (0, 0),
    ) -> None:
        from_ms, to_ms = (ms if 0 < ms < _TIME_MAX_MS else 0 for ms in around)
        self._breaks.append(Break(kind, partition.topic, partition.partition, first, end, reason, from_ms, to_ms))

    def _table(self, reason: str) -> None:
        self._breaks.append(Break(BreakKind.TABLE, "", 0, 0, 0, reason))

    # ---- small tables ------------------------------------------------------------------------------------------------

    def _partitions(self) -> list[_PartitionRow]:
        note = (
            "c.next_offset, c.head, c.start, c.blocks, c.total, c.unchained"
            if self._chained
            else ", ".join(["NULL"] * 6)
        )
        join = "LEFT JOIN chains c ON c.id = p.id" if self._chained else ""
        rows = self._connection.execute(
            "SELECT p.id, p.topic, p.partition, p.first_offset, coalesce(t.cleanup, ''), "  # noqa: S608
            f"{note} FROM partitions p LEFT JOIN topics t ON t.name = p.topic {join} ORDER BY p.id"
        ).fetchall()
        return [_PartitionRow(*row) for row in rows]

    def _check_tables(self) -> None:
        """The small tables have sound indexes, agree with each other and with their repetition."""
        connection = self._connection
        present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for name in (name for name in SMALL_TABLES if name in present):
            for (text,) in connection.execute(f"PRAGMA integrity_check({name})"):
                if text != "ok":
                    self._table(f"table {name}: {text}")
        for name, expected, counted in connection.execute(
            "SELECT t.name, t.partitions, count(p.id) FROM topics t LEFT JOIN partitions p ON p.topic = t.name "
            "GROUP BY t.name HAVING t.partitions IS NOT count(p.id)"
        ):
            self._table(f"topic {name} has {counted} partitions instead of {expected}")
        for topic, partition in connection.execute(
            "SELECT topic, partition FROM partitions WHERE topic NOT IN (SELECT name FROM topics)"
        ):
            self._table(f"{topic}[{partition}] belongs to no topic")
        if self._whole:
            statement = f"SELECT count(*) FROM blocks WHERE id >> {OFFSET_BITS} NOT IN (SELECT id FROM partitions)"  # noqa: S608
            (count,) = connection.execute(statement).fetchone()
            if count:
                self._table(f"{count} blocks belong to no partition")
        if not self._chained or self._older:
            return
        for name, kept in connection.execute(
            "SELECT p.topic || '/' || p.partition || ' ' || coalesce(t.cleanup, ''), c.name "
            "FROM partitions p LEFT JOIN topics t ON t.name = p.topic LEFT JOIN chains c ON c.id = p.id "
            "WHERE (p.first_offset, p.cleaned_to, p.kept) IS NOT (c.first_offset, c.cleaned_to, c.kept) "
            "OR c.name IS NOT p.topic || '/' || p.partition || ' ' || coalesce(t.cleanup, '')"
        ):
            self._table(f"partition {name} is noted otherwise than it is{f' (as {kept})' if kept != name else ''}")
        for (name,) in connection.execute("SELECT name FROM chains WHERE id NOT IN (SELECT id FROM partitions)"):
            self._table(f"partition {name} is missing")

    def _check_claims(self) -> None:
        """Each group is where its last commit left it."""
        rows = self._connection.execute(
            "SELECT c.id, c.group_name || ' ' || c.topic || '/' || c.partition, n.name, c.topic, c.partition, "
            "c.epoch, n.epoch, c.position, n.position FROM claims c LEFT JOIN chain_claims n ON n.id = c.id"
        ).fetchall()
        for id_, name, noted_name, topic, partition, epoch, noted_epoch, position, noted in rows:
            if name != noted_name:
                if noted_name is not None or not self._older:
                    self._table(f"group {name} is noted as {noted_name}")
                continue
            values = (epoch, noted_epoch, *(number for number in (position, noted) if number is not None))
            if not all(isinstance(number, int) for number in values):
                self._table(f"group {name} has no number as its epoch or position")
                continue
            after = max(-1 if noted is None else noted, self._positions.get(id_, -1))
            at = -1 if position is None else position
            if epoch < noted_epoch:
                self._table(f"group {name} has epoch {epoch}, noted is {noted_epoch}")
            elif at < after or (at > after and not self._older):
                self._table(f"group {name} is at {position}, its last commit was at {after}")
            elif self._whole and at > (end := self._ends.get((topic, partition), 0)):
                self._table(f"group {name} is at {position} of {topic}[{partition}], which ends at {end}")
        for (name,) in self._connection.execute(
            "SELECT name FROM chain_claims WHERE id NOT IN (SELECT id FROM claims)"
        ):
            self._table(f"group {name} is missing")

    def _check_heads(self) -> None:
        """The newest blocks of all partitions are those that one commit left."""
        newest = list(self._newest.values())
        if any(block.digest is None for block in newest):
            return  # an older version of Muster wrote last
        rows = self._connection.execute("SELECT heads FROM chain_heads").fetchall()
        sums = {row[0] for row in rows} | {
            (block.heads + (block.digest or 0)) & DIGEST_MASK for block in newest if block.heads is not None
        }
        if self._is_all_noted:
            sums = {row[0] for row in rows}
        if not self._older and self._heads not in sums:
            self._table("the newest blocks of the partitions are not of one moment: the newest of one is missing")

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def _check_partition(self, partition: _PartitionRow) -> None:
        base, top = partition.id << OFFSET_BITS, (partition.id + 1) << OFFSET_BITS
        noted_to = partition.noted_to
        reads_all = self._whole or partition.is_compacted
        walk, low = _Walk(partition, self._add, self._gaps, is_older=self._older), base
        if not reads_all:
            self._check_first(partition, base, top)
            (last_noted,) = self._connection.execute(
                "SELECT max(id) FROM blocks WHERE id >= ? AND id < ?",
                (base, top if noted_to is None else base | noted_to),
            ).fetchone()
            if last_noted is not None:
                low = last_noted
                walk.begins_at(low & OFFSET_MASK)
        for row in self._connection.execute(self._select, (low, top)):
            block = Block(row[0] & OFFSET_MASK, *row[1:])
            if walk.check_block(block) and self._whole:
                self._read(partition, block, walk)
            if noted_to is not None and block.first_offset >= noted_to and block.claim is not None:
                position = -1 if block.position is None else block.position
                self._positions[block.claim] = max(position, self._positions.get(block.claim, -1))
        walk.finish(counts=reads_all)
        self._ends[partition.topic, partition.partition] = walk.end
        self._is_all_noted = self._is_all_noted and walk.end == noted_to
        if walk.newest is not None:
            self._newest[partition.topic, partition.partition] = walk.newest
            self._heads = (self._heads + (walk.newest.digest or 0)) & DIGEST_MASK
        else:
            self._heads = (self._heads + (partition.start or 0)) & DIGEST_MASK

    def _check_first(self, partition: _PartitionRow, base: int, top: int) -> None:
        """The partition begins where retention left it."""
        (lowest,) = self._connection.execute(
            "SELECT min(id) FROM blocks WHERE id >= ? AND id < ?", (base, top)
        ).fetchone()
        if lowest is None:
            return
        first = lowest & OFFSET_MASK
        if first != partition.first_offset and not _is_accepted(self._gaps, partition, partition.first_offset, first):
            low, high = sorted((first, partition.first_offset))
            self._add(
                BreakKind.GAP,
                partition,
                low,
                high,
                f"the partition begins at {partition.first_offset}, its blocks at {first}",
            )

    def _read(self, partition: _PartitionRow, block: Block, walk: _Walk) -> None:
        """Reads the records of a block."""
        try:
            records = blocks.decode(partition.topic, partition.partition, block)
        except LogDamaged as error:
            walk.damaged(block, error.reason)
            return
        self._records += len(records)
        if any(not block.first_offset <= record.offset < block.next_offset for record in records):
            walk.damaged(block, "its records are of other offsets")
        for record in records:
            gap = self._numbers.check(record)
            if gap is not None and not self._is_gap_between(partition, gap.first_offset - 1, gap.next_offset):
                times = (block.timestamp_ms, 0)
                self._add(BreakKind.NUMBERS, partition, gap.first_offset, gap.next_offset, gap.reason, around=times)

    def _is_gap_between(self, partition: _PartitionRow, first: int, end: int) -> bool:
        return any(
            (gap.topic, gap.partition) == (partition.topic, partition.partition) and first < gap.next_offset <= end
            for gap in self._gaps
        )

    def _merged(self, breaks: list[Break]) -> list[Break]:
        """Leaves out what another break of the partition explains."""
        for kinds in ((BreakKind.COUNT,), (BreakKind.COUNT, BreakKind.NUMBERS)):
            breaks = [break_ for break_ in breaks if break_.kind not in kinds] or breaks
        return breaks


class _Add(Protocol):
    """Adds a break."""

    def __call__(
        self,
        kind: BreakKind,
        partition: _PartitionRow,
        first: int,
        end: int,
        reason: str,
        *,
        around: tuple[int, int] = (0, 0),
    ) -> None: ...


class _Walk:
    """Follows the chain of one partition."""

    def __init__(self, partition: _PartitionRow, add: _Add, gaps: list[Gap], *, is_older: bool) -> None:
        self._partition, self._add, self._gaps, self._is_older = partition, add, gaps, is_older
        self._at: int | None = None if partition.is_compacted else partition.first_offset  # where the next block begins
        self._previous: int | None = partition.start or 0
        self._last: Block | None = None
        self._is_first = True
        self._checks_links = not is_older  # (it notes no start)
        self._blocks = self._total = self._unchained = 0
        self.end = partition.first_offset
        self.newest: Block | None = None

    def begins_at(self, first_offset: int) -> None:
        """The walk begins in the middle: the first block's previous one is not read."""
        self._at, self._checks_links = first_offset, False

    def damaged(self, block: Block, reason: str) -> None:
        ms = block.timestamp_ms
        end = max(block.next_offset, block.first_offset + 1)
        self._add(BreakKind.BLOCK, self._partition, block.first_offset, end, reason, around=(ms, 0))

    def check_block(self, block: Block) -> bool:
        """Takes the next block. Returns whether its digest is right."""
        partition, last = self._partition, self._last
        self._count(block)
        good = True
        if block.digest is not None and block.digest != blocks.digest_of(partition.topic, partition.partition, block):
            self.damaged(block, "its block is not as it was written")
            good = False
        elif block.next_offset <= block.first_offset or (last is not None and block.first_offset < last.next_offset):
            self.damaged(block, "its block is not in its place")
            good = False
        elif not self._follows(block):
            good = False
        is_noted_end = good and partition.noted_to is not None and block.next_offset == partition.noted_to
        if is_noted_end and not self._is_older and block.digest != partition.head:
            self.damaged(block, "its block is another one than is noted")
        self._last, self.newest = block, block
        self._at = block.next_offset if good or self._at is None else max(block.next_offset, self._at)
        self._previous = block.digest if good else None
        self._checks_links = good
        self.end = max(self.end, self._at or 0)
        return good

    def _count(self, block: Block) -> None:
        if self._partition.noted_to is not None and block.first_offset < self._partition.noted_to:
            self._blocks += 1
            self._total = (self._total + (block.digest or 0)) & DIGEST_MASK
            self._unchained += block.digest is None

    def _follows(self, block: Block) -> bool:
        """Checks that nothing is missing between the last block and this one."""
        partition, last = self._partition, self._last
        at = self._at
        is_new = partition.noted_to is not None and block.first_offset >= partition.noted_to
        accepted = at is not None and _is_accepted(self._gaps, partition, at, block.first_offset, block.previous)
        if accepted:
            return True
        around = (last.timestamp_ms if last is not None else 0, block.timestamp_ms)
        if not partition.is_compacted and at is not None and block.first_offset != at:
            low, high = sorted((at, block.first_offset))
            self._add(BreakKind.GAP, partition, low, high, "blocks are missing", around=around)
            return True
        if not self._checks_links or block.digest is None or block.previous is None:
            return True
        if partition.is_compacted and (self._is_older or not is_new or self._previous is None):
            return True
        if block.previous != (self._previous or 0):
            first = last.first_offset if last is not None else block.first_offset
            self._add(
                BreakKind.GAP, partition, first, block.first_offset,
                "the block before is another one than the next one names", around=around,
            )  # fmt: skip
        return True

    def finish(self, *, counts: bool) -> None:
        """Compares with the note at the end of the partition."""
        partition, noted_to = self._partition, self._partition.noted_to
        if noted_to is None:
            return
        if self.end < noted_to and not self._is_end_accepted(noted_to):
            ms = self._last.timestamp_ms if self._last is not None else 0
            self._add(BreakKind.END, partition, self.end, noted_to, "its newest blocks are missing", around=(ms, 0))
            return
        if not counts or self._is_older or not partition.is_compacted:
            return
        noted, actual = (
            (partition.blocks, partition.total, partition.unchained),
            (self._blocks, self._total, self._unchained),
        )
        if noted == actual:
            return
        if partition.blocks == self._blocks:
            reason = f"its {self._blocks} blocks are others than noted"
        else:
            reason = f"it has {self._blocks} blocks instead of {partition.blocks}"
        self._add(BreakKind.COUNT, partition, partition.first_offset, noted_to, reason)

    def _is_end_accepted(self, noted_to: int) -> bool:
        return _is_accepted(self._gaps, self._partition, self.end, noted_to)


def _is_accepted(gaps: list[Gap], partition: _PartitionRow, first: int, end: int, previous: int | None = None) -> bool:
    """Tells whether an operator has accepted that the part is missing."""
    return any(
        (gap.topic, gap.partition) == (partition.topic, partition.partition)
        and gap.next_offset == end
        and gap.first_offset <= first
        and (gap.previous is None or previous is None or gap.previous == previous)
        for gap in gaps
    )


def _rms_of(connection: sqlite3.Connection, select: str) -> Mapping[int, tuple[str, ...]]:
    """Returns the RMs of each partition, as far as the state can be read."""
    rms: dict[int, tuple[str, ...]] = {}
    try:
        for id_, topic, partition in connection.execute(
            "SELECT id, topic, partition FROM partitions WHERE topic LIKE '%si.state.v1'"
        ).fetchall():
            names: dict[str, None] = {}
            for row in connection.execute(select, (id_ << OFFSET_BITS, (id_ + 1) << OFFSET_BITS)):
                names |= dict.fromkeys(_names(topic, partition, Block(row[0] & OFFSET_MASK, *row[1:])))
            rms[partition] = tuple(sorted(names))
    except _UNREADABLE:
        return rms
    return rms


def _names(topic: str, partition: int, block: Block) -> Iterator[str]:
    try:
        for record in blocks.decode(topic, partition, block):
            if record.key:
                yield parse_state_key(record.key)[0]
    except (LogDamaged, ValueError):
        return
