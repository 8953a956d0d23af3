"""The log: what Muster needs of Kafka, in words that three backends keep.

The words first.

topic, partition, offset
    A *topic* is a set of *partitions*; a partition is a sequence of records in one order. A record's *offset* is its
    place there. Offsets grow; they may have holes (Kafka's transaction markers, compaction), so "the next offset" is
    what a reader says, never ``offset + 1`` of something counted.

visible
    A record is visible once the transaction that wrote it is committed. Readers see visible records only, in offset
    order, each once per reading.

position
    The offset that a reader reads next. It lives in memory and moves with each read.

staged
    What a transaction carries before its commit: records, and the input position that they answer. Nobody sees it; a
    crash forgets it.

committed
    The input position that the last committed transaction of a *group* carried for a partition. It is durable, and it
    always belongs to exactly the output that was committed with it. That is what "exactly once" means here.

owner, fencing
    At most one owner writes transactions for an input partition. Taking over fences the previous owner: its later
    commits fail with :class:`~muster_bus.errors.Fenced`, and those that were under way are finished or undone *before*
    take-over returns. Hence the only right order: take over, then ask ``committed``, then seek, then fold, then read.

end offset
    One past the highest visible record. Reading up to it and finding nothing more means: caught up with that moment.

backends
    ``backends.kafka`` is the distributed engine, ``backends.sqlite`` the embedded default (durable, one process),
    ``backends.memory`` for tests and simulation. ``pipe.following`` is the embedded one in a child of the process that
    has it. ``tests/contract`` runs the same tests over all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

Headers = tuple[tuple[str, bytes], ...]


class Record(NamedTuple):
    """A visible record. ``value is None`` is a tombstone: the key's object is gone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class OutRecord(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class LogWriter(Protocol):
    """Appends single records outside of any transaction (the gateway's way to ``si.requests``).

    Records appended by one writer to one partition keep their order. An append is durable when its awaitable is done;
    a writer's retries never double a record while the writer lives.
    """

    def append(self, record: OutRecord) -> Awaitable[int]:
        """Queues a record at once (the order is fixed here); the awaitable gives its offset when it is durable.

        Raises (when awaited): RecordTooLarge, LogUnavailable, LogClosed.
        """
        ...

    async def ready(self) -> None:
        """Returns when there is room for more. Callers wait here before each ``append``: that is the back-pressure."""
        ...

    async def close(self) -> None: ...


class LogReader(Protocol):
    """Reads one partition from a position on. Not shared between tasks."""

    @property
    def position(self) -> int: ...

    def seek(self, offset: int) -> None:
        """Sets the position. An offset that retention has deleted makes the next ``read`` raise OffsetGone."""
        ...

    def known_end(self) -> int:
        """One past the highest record that is known to be visible, without asking anybody: at least the position."""
        ...

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Up to ``max_records`` visible records from the position on; empty when none came within ``timeout_s``.

        Raises: OffsetGone, LogUnavailable, LogClosed.
        """
        ...

    async def first_offset(self) -> int:
        """Lowest offset that still exists (the end offset when the partition is empty)."""
        ...

    async def end_offset(self) -> int:
        """One past the highest visible record, now."""
        ...

    async def close(self) -> None: ...


class PartitionOwner(Protocol):
    """The one writer of transactions that answer an input partition."""

    async def committed(self) -> int | None:
        """The group's committed input position; ``None`` when nothing was ever committed."""
        ...

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        """Writes the records and the input position in one transaction: all of it or nothing.

        ``input_position`` None commits records only (decisions that time alone caused). Commits are called one after
        the other, never at the same time.

        Raises: Fenced; TransactionFailed, TransactionTimeout (then the owner is of no further use); RecordTooLarge.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Log(Protocol):
    """A connection to a log. One per process; everything else comes from it."""

    async def start(self) -> None:
        """Connects; creates absent topics; checks existing ones.

        Raises: LogUnavailable, TopicMismatch.
        """
        ...

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        """Whether the log answers now (bounded in time)."""
        ...

    async def writer(self, name: str) -> LogWriter:
        """A writer; ``name`` is for logs and metrics."""
        ...

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> LogReader:
        """A reader at ``start``; ``None`` is the first offset that exists.

        :param fetch_max_bytes: what it fetches ahead at most, beside a record that is larger: for who looks here and
            there and throws the rest away. None: as the settings say. (Logs that fetch nothing ahead need not know.)
        """
        ...

    async def take_over(self, group: str, topic: str, partition: int) -> PartitionOwner:
        """Becomes the owner of an input partition; fences the previous one. See the module's words for the order."""
        ...
