"""The log: the contract that three backends keep. It has what Muster needs of Kafka.

The terms:

topic, partition, offset
    A *topic* is a set of *partitions*; a partition is a sequence of records in one order. A record's *offset* is its
    place there. Offsets grow, but there may be holes (Kafka's transaction markers, compaction). So only a reader knows
    the next offset; never compute it as ``offset + 1``.
visible
    A record is visible once the transaction that wrote it is committed. Readers see visible records only, in offset
    order, each once per reading.
position
    The offset that a reader reads next. It lives in memory and moves with each read.
staged
    The content of a transaction before its commit: records, and the input position that they answer. No reader sees
    it. A crash loses it. An append may be staged, too, for a moment: only the owner of its partition reads it then.
committed
    The input position that the last committed transaction of a *group* carried for a partition. It is durable, and it
    always belongs to exactly the output that was committed with it. This is the meaning of "exactly once" here.
owner, fencing
    At most one owner writes transactions for an input partition. A take-over fences the previous owner: its later
    commits fail with :class:`~muster_bus.errors.Fenced`, and its open ones are finished or undone *before* the
    take-over returns. So the only right order is: take over, ask for ``committed``, seek, fold, read.
end offset
    One past the highest visible record. A reader that reaches it has caught up with the moment of the question.
backends
    ``backends.kafka`` is the distributed engine, ``backends.sqlite`` the embedded default (durable, one process),
    ``backends.memory`` is for tests and simulation. ``pipe.following`` is the embedded log in a child of the process
    that owns it. ``tests/contract`` runs the same tests over all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

Headers = tuple[tuple[str, bytes], ...]


class Record(NamedTuple):
    """A visible record. ``value is None`` is a tombstone: the key's object was deleted."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class OutRecord(NamedTuple):
    """A record to write."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class LogWriter(Protocol):
    """Appends single records outside of any transaction. The gateway writes ``si.requests`` in this way.

    Records that one writer appends to one partition keep their order. An append is durable when its awaitable is done.
    A living writer's retries never duplicate a record.
    """

    def append(self, record: OutRecord) -> Awaitable[int]:
        """Queues a record at once, which fixes the order. The awaitable gives the record's offset when the record is
        durable.

        Raises (when awaited): RecordTooLarge, LogUnavailable, LogClosed.
        """
        ...

    async def wait_writable(self) -> None:
        """Returns when there is room for more. Callers wait here before each ``append``; this is the back-pressure."""
        ...

    async def close(self) -> None: ...


class LogReader(Protocol):
    """Reads one partition from a position on. Tasks must not share a reader."""

    @property
    def position(self) -> int: ...

    def seek(self, offset: int) -> None:
        """Sets the position. An offset that retention has deleted makes the next ``read`` raise OffsetOutOfRange."""
        ...

    def cached_end(self) -> int:
        """Returns one past the highest record that this process knows to be visible. Never less than the position."""
        ...

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Returns up to ``max_records`` visible records from the position on; none if none came within ``timeout_s``.

        Raises: OffsetOutOfRange, LogUnavailable, LogDamaged, LogClosed.
        """
        ...

    async def first_offset(self) -> int:
        """Returns the lowest offset that exists; for an empty partition the end offset."""
        ...

    async def end_offset(self, max_age_s: float = 0.0) -> int:
        """Returns one past the highest visible record, as of now.

        :param max_age_s: an answer that was right so many seconds ago serves, too; for figures. It may cost nothing.
        """
        ...

    async def written_end(self) -> int:
        """Returns one past the highest record that is written now, even if readers here do not see it yet.

        A transaction that anyone has seen has all its records before it. Raises LogUnavailable.
        """
        ...

    async def close(self) -> None: ...


class PartitionOwner(Protocol):
    """The only writer of transactions that answer an input partition."""

    async def committed(self) -> int | None:
        """Returns the group's committed input position; None if the group never committed."""
        ...

    async def commit(self, records: Sequence[OutRecord], input_position: int | None) -> None:
        """Writes the records and the input position in one transaction: all or nothing.

        ``input_position`` None commits records only (for decisions that time alone caused). The caller awaits each
        commit before the next one.

        Raises: Fenced; TransactionFailed, TransactionTimeout (the owner is then of no further use); RecordTooLarge.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class EarlyInputOwner(Protocol):
    """An owner that may read its input before it is durable, so that a request and what follows from it need one
    commit.
    """

    def early_reader(self) -> LogReader:
        """Returns a reader of the owner's input that also gets staged appends. An owner has one at a time.

        The owner tells nobody of a decision before its commit is done. If a staged append is lost, the reader and each
        later commit of this owner fail: the decision may follow from the append.
        """
        ...


@runtime_checkable
class InlineCommitOwner(Protocol):
    """An owner whose small commits are often done at once, so that they need no task."""

    def commit_at_once(self, records: Sequence[OutRecord], input_position: int | None) -> Awaitable[None] | None:
        """Does the same as ``commit``. Returns None if the commit is done, else what the caller must await.

        Raises as ``commit``, now or when awaited.
        """
        ...


@runtime_checkable
class PushReader(Protocol):
    """A reader that can say when there is more, so that its owner needs no task that waits."""

    @property
    def position(self) -> int: ...

    def on_more(self, call: Callable[[], None]) -> None:
        """Calls back in the event loop, right after records became visible."""
        ...

    def read_now(self, max_records: int) -> Sequence[Record]:
        """Returns the records from the position on that are in memory; none if there are none. Raises as ``read``."""
        ...


@runtime_checkable
class Log(Protocol):
    """A connection to a log. A process has one, which makes all writers, readers and owners."""

    async def start(self) -> None:
        """Connects, creates absent topics, and checks the existing ones.

        Raises: LogUnavailable, TopicMismatch.
        """
        ...

    async def close(self) -> None: ...

    async def healthy(self) -> bool:
        """Tells whether the log answers now. Bounded in time."""
        ...

    async def identity(self) -> str:
        """Returns a text that is another one for each log, and the same after a restart, in each process and in a
        restored backup. Offsets of two logs have nothing to do with each other.

        Raises: LogUnavailable, LogClosed.
        """
        ...

    async def writer(self, name: str) -> LogWriter:
        """Returns a writer; ``name`` is for logs and metrics."""
        ...

    async def reader(
        self, topic: str, partition: int, start: int | None = None, *, fetch_max_bytes: int | None = None
    ) -> LogReader:
        """Returns a reader at ``start``; None is the first offset that exists.

        :param fetch_max_bytes: limit of read-ahead, for a caller that reads single places; a larger record is still
            read. None: as the settings say. Logs without read-ahead ignore it.
        """
        ...

    async def take_over(self, group: str, topic: str, partition: int) -> PartitionOwner:
        """Becomes the owner of an input partition and fences the previous one. The module's docstring has the order of
        a take-over.
        """
        ...


@runtime_checkable
class LogHealth(Protocol):
    """A log that knows its own troubles."""

    def refusal(self) -> str:
        """Returns why the log takes no record now, in a sentence; "": it takes records."""
        ...

    def problems(self) -> list[str]:
        """Returns what an operator must know although the log works, one sentence each."""
        ...


@runtime_checkable
class LogOnDisk(Protocol):
    """A log in a file of this machine. What it refuses (:class:`LogHealth`) is for want of room on the disk."""

    @property
    def path(self) -> Path: ...


async def end_of(bus: Log, topic: str, partition: int) -> int:
    """Returns where a partition ends now. Raises LogUnavailable, LogClosed."""
    reader = await bus.reader(topic, partition)
    try:
        return await reader.end_offset()
    finally:
        await reader.close()
