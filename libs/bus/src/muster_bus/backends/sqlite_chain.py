"""The chain of an embedded log's blocks: what the file knows of itself, so that a hole in it is not silent.

Each block has a digest of its content and its place, and names the digest of the block before it in its partition. The
last block of a transaction also has the sum of the newest digests of all partitions (*heads*). So whatever block is
missing, a later one knows.

The table ``chains`` notes for each partition up to where it was written (``next_offset``), the digest there
(``head``), that of the last block which retention deleted (``start``), and number and sum of the digests of the blocks
before. The note costs commits nothing: it is written once a second, before each checkpoint, before maintenance removes
something, and at the end. What came after it is chained to it, and a later start notes it. A trigger keeps number and
sum while blocks are removed and rewritten.

An older version of Muster can use the file. It writes blocks without digests. Triggers count those that it puts among
the noted ones, and the others come after the note. So a block without a digest is either counted, or newer than the
note.

The tables ``chain_claims`` and the first columns of ``chains`` repeat the small tables, on other pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muster_bus.backends.blocks import DIGEST_MASK, Block, digest_of
from muster_bus.backends.sqlite_format import OFFSET_BITS, OFFSET_MASK

Row = tuple[object, ...]

_NAME_OF_CLAIM = "{0}group_name || ' ' || {0}topic || '/' || {0}partition"
_NAME_OF_PARTITION = (
    "{0}topic || '/' || {0}partition || ' ' || coalesce((SELECT cleanup FROM topics WHERE name = {0}topic), '')"
)

_TABLES = f"""
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
CREATE TRIGGER chains_rewritten AFTER INSERT ON blocks WHEN new.previous IS NULL BEGIN
    UPDATE chains SET blocks = blocks + 1, total = (total + coalesce(new.digest, 0)) & {DIGEST_MASK},
        unchained = unchained + (new.digest IS NULL)
    WHERE id = new.id >> {OFFSET_BITS} AND next_offset > new.id & {OFFSET_MASK};
END;
CREATE TRIGGER chains_removed AFTER DELETE ON blocks BEGIN
    UPDATE chains SET start = old.digest WHERE id = old.id >> {OFFSET_BITS};
    UPDATE chains SET blocks = blocks - 1, total = (total - coalesce(old.digest, 0)) & {DIGEST_MASK},
        unchained = unchained - (old.digest IS NULL),
        head = CASE WHEN old.next_offset = next_offset THEN NULL ELSE head END
    WHERE id = old.id >> {OFFSET_BITS} AND next_offset > old.id & {OFFSET_MASK};
END;
CREATE TRIGGER chains_partition AFTER INSERT ON partitions BEGIN
    INSERT INTO chains (id, name, first_offset, cleaned_to, kept)
    VALUES (new.id, {_NAME_OF_PARTITION.format("new.")}, new.first_offset, new.cleaned_to, new.kept);
END;
CREATE TRIGGER chains_moved AFTER UPDATE ON partitions BEGIN
    UPDATE chains SET first_offset = new.first_offset, cleaned_to = new.cleaned_to, kept = new.kept WHERE id = new.id;
END;
CREATE TRIGGER chains_claim AFTER INSERT ON claims BEGIN
    INSERT INTO chain_claims VALUES (new.id, {_NAME_OF_CLAIM.format("new.")}, new.epoch, new.position);
END;
INSERT INTO chains (id, name, first_offset, cleaned_to, kept, next_offset)
    SELECT id, {_NAME_OF_PARTITION.format("partitions.")}, first_offset, cleaned_to, kept,
        coalesce((SELECT next_offset FROM blocks WHERE blocks.id >= partitions.id << {OFFSET_BITS}
            AND blocks.id < (partitions.id + 1) << {OFFSET_BITS} ORDER BY blocks.id DESC LIMIT 1), first_offset)
    FROM partitions;
INSERT INTO chain_claims SELECT id, {_NAME_OF_CLAIM.format("")}, epoch, position FROM claims;
INSERT INTO chain_heads VALUES (1, 0);
"""  # noqa: S608 - numbers and names of this module only

# A range of ids for each partition: one pass over the table's leaves.
_COUNT_OLD = f"""
UPDATE chains SET (blocks, unchained) = (SELECT count(*), count(*) FROM blocks
    WHERE blocks.id >= chains.id << {OFFSET_BITS} AND blocks.id < (chains.id + 1) << {OFFSET_BITS})
"""  # noqa: S608

_NOTE_CLAIMS = (
    f"INSERT OR REPLACE INTO chain_claims SELECT id, {_NAME_OF_CLAIM.format('')}, epoch, position FROM claims"  # noqa: S608
)
_NEWEST = "SELECT next_offset, digest FROM blocks WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1"


def is_chained(connection: sqlite3.Connection) -> bool:
    """Tells whether a log has chains: a version before 0.3 wrote the file if not. Raises sqlite3.Error."""
    found: int
    (found,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'chains'").fetchone()
    return bool(found)


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
    connection.execute(_COUNT_OLD)


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
    :ivar blocks: number of the blocks that are not noted.
    :ivar total: sum of their digests.
    :ivar unchained: number of those without one.
    """

    topic: str
    partition: int
    head: tuple[int, int]
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
            chain = self._chains[id_] = Chain(topic, partition, (end, head or 0))
            for (digest,) in connection.execute(
                "SELECT digest FROM blocks WHERE id >= ? AND id < ?", (low | noted, high)
            ):
                chain.blocks += 1
                chain.total = (chain.total + (digest or 0)) & DIGEST_MASK
                chain.unchained += digest is None
        self._sum = sum(chain.head[1] for chain in self._chains.values()) & DIGEST_MASK

    def heads(self) -> dict[str, tuple[int, int]]:
        """Returns the head of each partition (``topic/partition``). Any thread."""
        return {f"{chain.topic}/{chain.partition}": chain.head for chain in self._chains.values()}

    def seal(self, rows: Sequence[Row]) -> Sealed:
        """Returns rows of new blocks, of one transaction and in its order, with their digests."""
        sealed: list[Row] = []
        heads: dict[int, tuple[int, int]] = {}
        added: dict[int, tuple[int, int]] = {}
        total, last = self._sum, len(rows) - 1
        for index, row in enumerate(rows):
            block = Block(row[0] & OFFSET_MASK, *row[1:])  # type: ignore[operator, arg-type]
            id_ = row[0] >> OFFSET_BITS  # type: ignore[operator]
            chain = self._chains[id_]
            previous = heads.get(id_, chain.head)[1]
            block = block._replace(previous=previous)
            if index == last:
                # (A digest cannot cover itself: the sum is of all heads but this one.)
                block = block._replace(heads=(total - previous) & DIGEST_MASK)
            digest = digest_of(chain.topic, chain.partition, block)
            total = (total - previous + digest) & DIGEST_MASK
            heads[id_] = block.next_offset, digest
            count, so_far = added.get(id_, (0, 0))
            added[id_] = count + 1, (so_far + digest) & DIGEST_MASK
            sealed.append((row[0], *block[1:9], digest))
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


def seal_rewritten(topic: str, partition: int, rows: Sequence[Row]) -> list[Row]:
    """Returns rows of blocks that replace others, with their digests. They are in no chain."""
    sealed: list[Row] = []
    for row in rows:
        block = Block(row[0] & OFFSET_MASK, *row[1:])  # type: ignore[operator, arg-type]
        sealed.append((*row[:-1], digest_of(topic, partition, block)))
    return sealed
