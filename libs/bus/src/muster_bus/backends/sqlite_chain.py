"""The chain of an embedded log's blocks: what the file knows of itself, so that a hole in it is not silent.

Each block has a digest of its content and its place, and names the digest of the block before it in its partition. The
last block of a transaction also has the sum of the newest digests of all partitions (*heads*). So whatever block is
missing, a later one knows.

The table ``chains`` notes for each partition up to where it was written (``next_offset``), the digest there
(``head``), that of the last block which retention deleted (``start``), and, in topics that are compacted, number and
sum of the digests of the blocks before. The note costs commits nothing: it is written once a second, before each
checkpoint, before maintenance removes something, and at the end. What came after it is chained to it, and a later start
notes it. Maintenance corrects number and sum as it removes blocks and writes others in their place.

The table ``chain_claims`` and the first columns of ``chains`` repeat the small tables, on other pages.

An older version of Muster can use the file. It writes blocks without digests and corrects no note. It always takes
claims over, which raises their epochs above the noted ones: then the note begins anew with what is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from muster_bus.backends.blocks import DIGEST_MASK, Block, digest_at, digest_name, digest_of
from muster_bus.backends.sqlite_schema import INSERT_BLOCKS, OFFSET_BITS, OFFSET_MASK
from muster_bus.errors import LogDamaged

Row = tuple[Any, ...]

_NOTHING = (0, 0)

_NAME_OF_CLAIM = "{0}group_name || ' ' || {0}topic || '/' || {0}partition"
_NAME_OF_PARTITION = (
    "{0}topic || '/' || {0}partition || ' ' || coalesce((SELECT cleanup FROM topics WHERE name = {0}topic), '')"
)

_TABLES = """
CREATE TABLE chains (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL,        -- of the partition, with the topic's cleanup
    first_offset INTEGER NOT NULL, cleaned_to INTEGER NOT NULL, kept INTEGER NOT NULL,  -- as in partitions
    next_offset INTEGER NOT NULL DEFAULT 0,            -- the note is about the blocks that begin before it
    head INTEGER,                                      -- digest of the block that ends there; NULL: unknown
    start INTEGER,                                     -- the same of the last block that retention deleted
    blocks INTEGER NOT NULL DEFAULT 0,                 -- number of the blocks
    total INTEGER NOT NULL DEFAULT 0,                  -- sum of their digests
    unchained INTEGER NOT NULL DEFAULT 0               -- so many of them have none
);
CREATE TABLE chain_claims (id INTEGER PRIMARY KEY, name TEXT NOT NULL, epoch INTEGER NOT NULL, position INTEGER);
CREATE TABLE chain_heads (one INTEGER PRIMARY KEY CHECK (one = 1), heads INTEGER NOT NULL);
CREATE TABLE chain_gaps (                              -- what an operator has accepted (muster repair)
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    previous INTEGER,                                  -- what the block after the gap names as its previous one
    accepted_ms INTEGER NOT NULL, story TEXT NOT NULL
);
INSERT INTO chain_heads VALUES (1, 0);
"""

_ADD_PARTITIONS = f"""
INSERT INTO chains (id, name, first_offset, cleaned_to, kept, next_offset)
    SELECT id, {_NAME_OF_PARTITION.format("partitions.")}, first_offset, cleaned_to, kept,
        coalesce((SELECT next_offset FROM blocks WHERE blocks.id >= partitions.id << {OFFSET_BITS}
            AND blocks.id < (partitions.id + 1) << {OFFSET_BITS} ORDER BY blocks.id DESC LIMIT 1), first_offset)
    FROM partitions WHERE id NOT IN (SELECT id FROM chains)
"""  # noqa: S608
_NOTE_CLAIMS = (
    f"INSERT OR REPLACE INTO chain_claims SELECT id, {_NAME_OF_CLAIM.format('')}, epoch, position FROM claims"  # noqa: S608
)
_FIRST = "SELECT previous FROM blocks WHERE id >= ? AND id < ? ORDER BY id LIMIT 1"
_NEWEST = "SELECT next_offset, digest FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1"


def is_chained(connection: sqlite3.Connection) -> bool:
    """Tells whether a log has chains: a version before 0.3 wrote the file if not. Raises sqlite3.Error."""
    tables: int
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'chains'").fetchone()
    return bool(tables)


def adopt(connection: sqlite3.Connection) -> None:
    """Gives a log its chains, from its present end on, if it has none. Runs in the caller's transaction. Raises
    sqlite3.Error.
    """
    if is_chained(connection):
        return
    for name in ("previous", "heads", "digest"):
        connection.execute(f"ALTER TABLE blocks ADD COLUMN {name} INTEGER")
    for statement in _statements(_TABLES):
        connection.execute(statement)
    begin(connection)


def begin(connection: sqlite3.Connection) -> None:
    """Begins the note anew with what is in the file. Runs in the caller's transaction. Raises sqlite3.Error."""
    connection.execute("DELETE FROM chains")
    connection.execute("DELETE FROM chain_claims")
    add_partitions(connection)
    note_claims(connection)
    heads = 0
    for id_, name in connection.execute("SELECT id, name FROM chains").fetchall():
        low, high = id_ << OFFSET_BITS, (id_ + 1) << OFFSET_BITS
        newest = connection.execute(_NEWEST, (low, high)).fetchone()
        head = newest[1] if newest is not None else None
        heads = (heads + (head or 0)) & DIGEST_MASK
        counted = count(connection, low, high) if is_compacted(name) else _NONE
        previous = connection.execute(_FIRST, (low, high)).fetchone()
        connection.execute(
            "UPDATE chains SET head = ?, start = ?, blocks = ?, total = ?, unchained = ? WHERE id = ?",
            (head, previous[0] if previous is not None else None, *counted, id_),
        )
    connection.execute("UPDATE chain_heads SET heads = ?", (heads,))


def add_partitions(connection: sqlite3.Connection) -> None:
    """Gives new partitions their chains. Runs in the caller's transaction. Raises sqlite3.Error."""
    connection.execute(_ADD_PARTITIONS)


def is_compacted(cleanup: str) -> bool:
    """Tells whether compaction removes blocks in the middle of a partition."""
    return "compact" in cleanup


class Counted(NamedTuple):
    """Number of blocks, the sum of their digests, and the number of those without one."""

    blocks: int
    total: int
    unchained: int


_NONE = Counted(0, 0, 0)


def count(connection: sqlite3.Connection, low: int, high: int) -> Counted:
    """Counts the blocks with ids from ``low`` to before ``high``. Raises sqlite3.Error."""
    blocks = total = unchained = 0
    for (digest,) in connection.execute("SELECT digest FROM blocks WHERE id >= ? AND id < ?", (low, high)):
        blocks += 1
        total += digest or 0
        unchained += digest is None
    return Counted(blocks, total & DIGEST_MASK, unchained)


def _statements(script: str) -> Iterable[str]:
    """Yields the statements of a script. (``executescript`` would end the transaction.)"""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@dataclass(slots=True)
class Chain:
    """A partition's chain, as far as its blocks are committed.

    :ivar head: where the newest block ends, and its digest; 0: it has none. One object, which other threads may read.
    :ivar digest_name: the partition's name in digests.
    :ivar blocks: number of the blocks that are not noted.
    :ivar total: sum of their digests.
    :ivar unchained: number of those without one.
    """

    topic: str
    partition: int
    head: tuple[int, int]
    digest_name: bytes
    blocks: int = 0
    total: int = 0
    unchained: int = 0


class Sealed(NamedTuple):
    """Rows with their digests, and what the chains become when they are committed."""

    rows: Sequence[Row]
    heads: Mapping[int, tuple[int, int]]  # by the partition's id
    added: Mapping[int, tuple[int, int]]  # number of blocks and sum of digests
    sum_of_heads: int


class Chains:
    """The chains of a log that is being written. Whoever writes into the file uses it, one at a time.

    :raises sqlite3.Error:
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._chains: dict[int, Chain] = {}
        rows = connection.execute(
            "SELECT p.id, p.topic, p.partition, p.first_offset, c.start, c.next_offset "
            "FROM partitions p JOIN chains c ON c.id = p.id"
        )
        for id_, topic, partition, first, start, noted in rows.fetchall():
            low, high = id_ << OFFSET_BITS, (id_ + 1) << OFFSET_BITS
            newest = connection.execute(_NEWEST, (low, high)).fetchone()
            end, head = newest if newest is not None else (first, start)
            counted = count(connection, low | noted, high)
            self._chains[id_] = Chain(topic, partition, (end, head or 0), digest_name(topic, partition), *counted)
        self._sum = sum(chain.head[1] for chain in self._chains.values()) & DIGEST_MASK

    def heads(self) -> dict[str, tuple[int, int]]:
        """Returns the head of each partition (``topic/partition``). Any thread."""
        return {f"{chain.topic}/{chain.partition}": chain.head for chain in self._chains.values()}

    def seal(self, rows: Sequence[Row]) -> Sealed:
        """Returns rows of new blocks, of one transaction and in its order, with their digests."""
        sealed: list[Row] = []
        heads: dict[int, tuple[int, int]] = {}
        added: dict[int, tuple[int, int]] = {}
        total, remaining = self._sum, len(rows)
        for id_, next_offset, timestamp_ms, codec, body, claim, position, *_ in rows:
            number = id_ >> OFFSET_BITS
            chain = self._chains[number]
            previous = (heads.get(number) or chain.head)[1]
            remaining -= 1
            # (A digest cannot cover itself: the sum is of all heads but this one.)
            of_others = None if remaining else (total - previous) & DIGEST_MASK
            digest = digest_at(
                chain.digest_name,
                id_ & OFFSET_MASK,
                next_offset,
                timestamp_ms,
                codec,
                body,
                claim,
                position,
                previous,
                of_others,
            )
            total = (total - previous + digest) & DIGEST_MASK
            heads[number] = next_offset, digest
            count, so_far = added.get(number, _NOTHING)
            added[number] = count + 1, so_far + digest
            sealed.append((id_, next_offset, timestamp_ms, codec, body, claim, position, previous, of_others, digest))
        return Sealed(sealed, heads, added, total)

    def appended(self, sealed: Sealed) -> None:
        """Takes over what was committed."""
        for id_, head in sealed.heads.items():
            chain, (count, total) = self._chains[id_], sealed.added[id_]
            chain.head = head
            chain.blocks += count
            chain.total = (chain.total + total) & DIGEST_MASK
        self._sum = sealed.sum_of_heads

    def is_noted(self) -> bool:
        """Tells whether a note would change nothing."""
        return not any(chain.blocks for chain in self._chains.values())

    def note(self, connection: sqlite3.Connection) -> None:
        """Writes the note. Runs in the caller's transaction; :meth:`noted` follows its commit. Raises sqlite3.Error."""
        connection.executemany(
            f"UPDATE chains SET next_offset = ?, head = ?, blocks = blocks + ?, total = (total + ?) & {DIGEST_MASK}, "  # noqa: S608
            "unchained = unchained + ? WHERE id = ?",
            [
                (chain.head[0], chain.head[1] or None, chain.blocks, chain.total, chain.unchained, id_)
                for id_, chain in self._chains.items()
                if chain.blocks
            ],
        )
        connection.execute("UPDATE chain_heads SET heads = ?", (self._sum,))
        note_claims(connection)

    def noted(self) -> None:
        """The note is committed."""
        for chain in self._chains.values():
            chain.blocks = chain.total = chain.unchained = 0


def note_claims(connection: sqlite3.Connection) -> None:
    """Notes the groups' epochs and positions. Runs in the caller's transaction. Raises sqlite3.Error."""
    connection.execute(_NOTE_CLAIMS)


def refuse_hole(connection: sqlite3.Connection, topic: str, partition: int, first: int, end: int) -> None:
    """Raises LogDamaged for missing blocks of a topic without compaction, unless an operator has accepted that."""
    if is_chained(connection):
        gap = connection.execute(
            "SELECT 1 FROM chain_gaps WHERE topic = ? AND partition = ? AND first_offset <= ? AND next_offset = ?",
            (topic, partition, first, end),
        ).fetchone()
        if gap is not None:
            return
    raise LogDamaged(topic, partition, first, end, "blocks are missing")


def remove(connection: sqlite3.Connection, low: int, high: int) -> None:
    """Removes the noted blocks with ids from ``low`` to ``high`` (included) of one partition, also from the note. Runs
    in the caller's transaction. Raises sqlite3.Error.
    """
    id_ = low >> OFFSET_BITS
    (name,) = connection.execute("SELECT name FROM chains WHERE id = ?", (id_,)).fetchone()
    if is_compacted(name):
        counted = count(connection, low, high + 1)
        _correct(connection, id_, -counted.blocks, -counted.total, -counted.unchained)
    connection.execute(
        "UPDATE chains SET start = (SELECT digest FROM blocks WHERE id >= ? AND id <= ? ORDER BY id DESC LIMIT 1) "
        "WHERE id = ?",
        (low, high, id_),
    )
    connection.execute("DELETE FROM blocks WHERE id >= ? AND id <= ?", (low, high))


def replace_blocks(connection: sqlite3.Connection, topic: str, partition: int, rows: Sequence[Row]) -> None:
    """Writes blocks in the place of removed ones of a topic that is compacted, also into the note. Runs in the caller's
    transaction. Raises sqlite3.Error.
    """
    total = 0
    for row in rows:
        digest = digest_of(topic, partition, Block(row[0] & OFFSET_MASK, *row[1:]))
        total += digest
        connection.execute(INSERT_BLOCKS[1], (*row[:-1], digest))
    if rows:
        _correct(connection, rows[0][0] >> OFFSET_BITS, len(rows), total, 0)


def note_partition(connection: sqlite3.Connection, id_: int) -> None:
    """Notes the row of a partition after a change. Runs in the caller's transaction. Raises sqlite3.Error."""
    connection.execute(
        "UPDATE chains SET (first_offset, cleaned_to, kept) = "
        "(SELECT first_offset, cleaned_to, kept FROM partitions WHERE partitions.id = chains.id) WHERE id = ?",
        (id_,),
    )


def _correct(connection: sqlite3.Connection, id_: int, blocks: int, total: int, unchained: int) -> None:
    connection.execute(
        f"UPDATE chains SET blocks = blocks + ?, total = (total + ?) & {DIGEST_MASK}, unchained = unchained + ? "  # noqa: S608
        "WHERE id = ?",
        (blocks, total & DIGEST_MASK, unchained, id_),
    )
