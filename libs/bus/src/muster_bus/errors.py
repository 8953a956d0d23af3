"""Everything that the bus raises, in one tree.

* BusError
  x LogError                the log, or the way to it
    - LogUnavailable        not reachable now; try again with backoff
    - TopicMismatch         a topic exists, but not as this configuration needs it; a person must decide
    - LogIncompatible       the log was written by another version or another program; a person must decide
    - RecordTooLarge        the record is over the log's limit; never retried
    - BadRecord             no log takes it: unknown topic or partition, no key where one is needed; never retried
    - OffsetGone            the asked offset was deleted by retention; carries what still exists
    - LogClosed             used after close
  x Fenced                  another owner took the partition over: drop all in-memory state and start again, or end
  x TransactionFailed       the outcome of a commit is unknown or negative: in-memory state is ahead of the log, drop it
    - TransactionTimeout    no answer before the deadline
  x MachineFailed           a partition's machine fails again and again, and no single input record is to blame
  x CodecError              bytes that are not what their topic promises; the record goes to the dead letters
"""

from __future__ import annotations


class BusError(Exception):
    """Root of the tree above."""


class LogError(BusError):
    """The log, or the way to it, failed."""


class LogUnavailable(LogError):
    """Not reachable now. Safe to retry with backoff."""


class TopicMismatch(LogError):
    """A topic exists with other partitions or cleanup than configured."""


class LogIncompatible(LogError):
    """Written by another version of Muster, or not a log of Muster at all. Nothing was changed."""


class BadRecord(LogError):
    """A record that no log takes. A defect of the caller."""


class RecordTooLarge(LogError):
    """A record over the log's limit.

    :param topic: where it was to go.
    :param size_bytes: its size.
    :param limit_bytes: what the topic takes.
    """

    def __init__(self, topic: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"record of {size_bytes} bytes for {topic} is over the limit of {limit_bytes}")
        self.topic, self.size_bytes, self.limit_bytes = topic, size_bytes, limit_bytes


class OffsetGone(LogError):
    """The asked offset is not there any more (or not yet).

    :param asked: the offset asked for.
    :param first: lowest offset that exists.
    :param end: one past the highest offset that exists.
    """

    def __init__(self, topic: str, partition: int, asked: int, first: int, end: int) -> None:
        super().__init__(f"{topic}[{partition}] has no offset {asked}: it holds {first} to {end}")
        self.topic, self.partition, self.asked, self.first, self.end = topic, partition, asked, first, end


class LogClosed(LogError):
    """Used after close."""


class Fenced(BusError):
    """Another owner took the partition over. What this one holds in memory is void."""


class TransactionFailed(BusError):
    """A commit did not (or may not have) come through. What is in memory is ahead of the log: drop it."""


class TransactionTimeout(TransactionFailed):
    """A commit had no answer before its deadline."""


class MachineFailed(BusError):
    """A machine failed repeatedly without progress; carries the last failure as its cause."""


class CodecError(BusError):
    """Bytes that do not decode as their topic promises."""
