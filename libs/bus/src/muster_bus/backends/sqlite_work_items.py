"""The work that the event loop gives to the embedded log's writer: units to commit, and orders."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from muster_bus.backends import blocks
from muster_bus.backends.blocks import Block
from muster_bus.backends.sqlite_schema import OFFSET_BITS
from muster_bus.backends.tail import PartitionTail
from muster_bus.log import OutRecord, Record

# A unit of more records is large: what is done for each of them is done in steps of so many.
LARGE_RECORDS = 2048


class StopWriter:
    """The last item in the writer's queue."""


@dataclass(slots=True)
class StoredPartition:
    """A partition. The event loop owns the first fields; the writer owns the fields from ``next_offset`` on."""

    id: int
    topic: str
    partition: int
    tail: PartitionTail
    first_offset: int
    cleaned_to: int
    live_records: int
    next_offset: int  # the writer's: offset of the next record to write
    readers: int = 0  # the loop's: the open readers; without any the tail keeps nothing
    # The loop's: records from the tail's end on that only the reader of one owner gets; the owner whose reader waits.
    staged: Sequence[Record] = ()
    staged_for: OwnerEpoch | None = None
    waiting: OwnerEpoch | None = None


@dataclass(slots=True)
class GroupClaim:
    """A group's hold on an input partition, as in the file. The writer owns it; other threads read only
    ``position``.
    """

    id: int
    epoch: int
    position: int | None


@dataclass(slots=True)
class OwnerEpoch:
    """An owner's right to commit. It is valid while the claim's epoch equals its own, and the owner has read nothing
    that was lost.
    """

    claim: GroupClaim
    epoch: int
    story: str  # names the owner in errors
    lost: str = ""  # why something that the owner has read was not written; the committer sets it


@dataclass(slots=True)
class AppendRun:
    """Consecutive records of one partition within a unit."""

    partition: StoredPartition
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[tuple[tuple[str, bytes], ...]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    size_bytes: int = 0  # their sum
    done: list[asyncio.Future[int]] = field(default_factory=list)  # futures of single appends, one per record
    first_offset: int = -1  # the writer sets it
    blocks: list[Block] | None = None  # made before the commit, with offsets from 0 on

    def add(self, record: OutRecord, size: int) -> None:
        self.keys.append(record.key)
        self.values.append(record.value)
        self.headers.append(record.headers)
        self.sizes.append(size)
        self.size_bytes += size

    def extend(self, more: AppendRun) -> None:
        """Adds the records of a run of the same partition."""
        self.keys += more.keys
        self.values += more.values
        self.headers += more.headers
        self.sizes += more.sizes
        self.size_bytes += more.size_bytes
        self.done += more.done

    def records(self, first_offset: int, timestamp_ms: int, start: int = 0, count: int | None = None) -> list[Record]:
        """Returns the records as readers get them: all, or ``count`` from the one with this index on."""
        topic, number = self.partition.topic, self.partition.partition
        keys, values, headers = self.keys, self.values, self.headers
        if count is not None:
            end = start + count
            keys, values, headers = keys[start:end], values[start:end], headers[start:end]
        return [
            Record(topic, number, first_offset + index, timestamp_ms, key, value, header)
            for index, (key, value, header) in enumerate(zip(keys, values, headers, strict=True), start)
        ]

    def pack(self, timestamp_ms: int) -> None:
        """Makes the blocks, before their offsets are known. Any thread; nothing may be added afterwards."""
        self.blocks = list(self._blocks(timestamp_ms))

    def rows(self, timestamp_ms: int) -> Iterator[tuple[object, ...]]:
        """Yields rows of table ``blocks``. The writer has set the first offset."""
        base, first = self.partition.id << OFFSET_BITS, self.first_offset
        for block in self._blocks(timestamp_ms) if self.blocks is None else self.blocks:
            yield (base | first + block.first_offset, first + block.next_offset, *block[2:])

    def _blocks(self, timestamp_ms: int) -> Iterator[Block]:
        """Yields the blocks, with offsets from 0 on."""
        start, size = 0, 0
        count = len(self.keys)
        if count <= blocks.MAX_RECORDS and self.size_bytes <= blocks.MAX_BYTES:
            cuts = [count]
        else:
            cuts = []
            for index in range(count):
                if index > start and (
                    index - start >= blocks.MAX_RECORDS or size + self.sizes[index] > blocks.MAX_BYTES
                ):
                    cuts.append(index)
                    start, size = index, 0
                size += self.sizes[index]
            cuts.append(count)
        start = 0
        for end in cuts:
            yield blocks.encode_run(
                start, timestamp_ms, self.keys[start:end], self.values[start:end], self.headers[start:end]
            )
            start = end


@dataclass(slots=True)
class CommitUnit:
    """Runs of records that are committed as a whole or not at all."""

    runs: list[AppendRun]
    timestamp_ms: int
    size_bytes: int
    owner_epoch: OwnerEpoch | None = None
    input_position: int | None = None
    done: asyncio.Future[None] | None = None  # future of a transaction
    error: BaseException | None = None
    read_by: OwnerEpoch | None = None  # the owner that has read the records before their commit

    @property
    def is_large(self) -> bool:
        """Tells whether to publish it takes long."""
        return self.read_by is None and sum(len(run.keys) for run in self.runs) > LARGE_RECORDS

    def try_merge(self, more: CommitUnit, bytes_max: int) -> bool:
        """Adds the records of another unit of appends to the same partition, if there is room. Returns whether."""
        own, added = self.runs[0], more.runs[0]
        if len(more.runs) > 1 or added.partition is not own.partition or self.size_bytes + more.size_bytes > bytes_max:
            return False
        own.extend(added)
        self.size_bytes += more.size_bytes
        return True


class TimeBudget:
    """How long a thread may do something: a share of its time, saved up to a limit. Overdrafts are paid back.

    :param share: 0 to 1; 0: never.
    :param most_s: limit of what is saved.
    """

    def __init__(self, share: float, most_s: float, now_s: float) -> None:
        self._share, self._most_s = share, most_s
        self._left_s, self._noted_s = most_s if share else 0.0, now_s

    def has_some(self, now_s: float) -> bool:
        """Tells whether something is left."""
        self._left_s = min(self._most_s, self._left_s + self._share * (now_s - self._noted_s))
        self._noted_s = now_s
        return self._left_s > 0

    def spend(self, seconds: float) -> None:
        """Takes what was used."""
        self._left_s -= seconds


@dataclass(slots=True)
class WriterTask:
    """Work for the writer's connection, in a SQL transaction of its own (take-over, maintenance)."""

    work: Callable[[sqlite3.Connection], object]
    done: Callable[[object, BaseException | None], None]
    notes: bool = False  # the heads of the partitions are noted first, in the same transaction
