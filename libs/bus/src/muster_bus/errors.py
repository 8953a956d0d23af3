"""All errors of the bus, in one tree.

* BusError
  x LogError              the log, or the connection to it, failed
    - LogUnavailable      not reachable now; retry with backoff
    - LogRefused          the log refuses this client: user, password, certificate, right; an operator must act
    - TopicMismatch       a topic exists, but not as this configuration needs it; an operator must decide
    - LogIncompatible     another version or another program wrote the log; an operator must decide
    - LogBehind           the log has less than others know of it; an operator must decide
    - LogDamaged          a part of the log is damaged or missing; never retried; an operator must decide
    - NotEnoughReplicas   a LogUnavailable: Kafka has too few copies in sync to take writes
    - LogFull             a LogUnavailable: the disk is full; it works again when there is room
    - RecordTooLarge      the record is over the log's limit; never retried
    - InvalidRecord       no log accepts it: unknown topic or partition, missing key; never retried
    - OffsetOutOfRange    retention deleted the offset; carries the range that exists
    - LogClosed           used after close
    - CopyRejected        a log cannot be copied there (muster migrate, muster topics grow); an operator must act
      + SourceChanged     records came while the log was copied
      + TargetTooSmall    the target has fewer partitions than the source
      + TargetNotEmpty    the target has records that are not of this copy
  x Fenced                another owner took the partition over; drop all in-memory state, restart or end
  x TransactionFailed     a commit failed or its outcome is unknown; drop the in-memory state, it is ahead of the log
    - TransactionTimeout  no answer before the deadline
  x MachineFailed         a partition's machine fails repeatedly, and no single input record is to blame
  x CodecError            bytes that do not fit their topic; the record goes to the dead letters
"""

from __future__ import annotations

# The end of each message about a damaged part of the embedded log.
DAMAGE_REMEDY = (
    "put whole files back, or restore a backup, or stop Muster and run muster repair, which goes on without that part "
    "(docs/backup.md)"
)


class BusError(Exception):
    """Root of the tree above."""


class LogError(BusError):
    """The log, or the connection to it, failed."""


class LogUnavailable(LogError):
    """The log is not reachable now. A retry with backoff is safe."""


class LogRefused(LogError):
    """The log refuses this client: its user, password, certificate, protocol or rights. The text names the setting."""


class TopicMismatch(LogError):
    """A topic exists, but its partitions or its cleanup differ from the configuration."""


class LogIncompatible(LogError):
    """Another version of Muster wrote the log, or it is no log of Muster. Nothing was changed."""


class LogBehind(LogError):
    """The log is older than others know it, or another one. Nothing was changed.

    :param token: accepts this loss (``log.accept_loss``).
    """

    def __init__(self, problem: str, token: str) -> None:
        super().__init__(problem)
        self.token = token


class LogDamaged(LogError):
    """A part of the log cannot be read as it was written: its bytes changed, or it is missing. A retry does not help.

    The text is one sentence with the place, the reason and the remedy.

    :param topic: of the damaged part; "": the part belongs to no topic.
    :param partition: its partition.
    :param first_offset: lowest offset of the part.
    :param next_offset: one past its highest offset. A reader that may go on without the part continues there.
    :param reason: what is wrong, without the place.
    :param remedy: what the operator can do.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        first_offset: int,
        next_offset: int,
        reason: str,
        remedy: str = DAMAGE_REMEDY,
    ) -> None:
        location = f"{topic}[{partition}] from {first_offset} to {next_offset}: " if topic else ""
        super().__init__(f"the log is damaged: {location}{reason}; {remedy}")
        self.topic, self.partition = topic, partition
        self.first_offset, self.next_offset = first_offset, next_offset
        self.reason, self.remedy = reason, remedy

    def __reduce__(self) -> tuple[object, ...]:
        location = (self.topic, self.partition, self.first_offset, self.next_offset)
        return type(self), (*location, self.reason, self.remedy)


class LogFull(LogUnavailable):
    """The log's disk is full. Nothing was written. The log can be read, and takes records again when there is room."""


class NotEnoughReplicas(LogUnavailable):
    """Kafka takes no writes, because fewer copies of a partition are in sync than its topic demands. Nothing was lost;
    it works again when more brokers are back.
    """


class InvalidRecord(LogError):
    """A record that no log accepts. The caller has a defect."""


class RecordTooLarge(LogError):
    """A record over the log's limit.

    :param topic: topic of the record.
    :param size_bytes: its size.
    :param limit_bytes: the topic's limit.
    """

    def __init__(self, topic: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"record of {size_bytes} bytes for {topic} is over the limit of {limit_bytes}")
        self.topic, self.size_bytes, self.limit_bytes = topic, size_bytes, limit_bytes


class OffsetOutOfRange(LogError):
    """The offset no longer exists, or does not exist yet.

    :param position: the offset asked for.
    :param first: lowest offset that exists.
    :param end: one past the highest offset that exists.
    """

    def __init__(self, topic: str, partition: int, position: int, first: int, end: int) -> None:
        super().__init__(f"{topic}[{partition}] has no offset {position}: it holds {first} to {end}")
        self.topic, self.partition, self.position, self.first, self.end = topic, partition, position, first, end


class LogClosed(LogError):
    """Used after close."""


class CopyRejected(LogError):
    """A log cannot be copied into another one. The source is unchanged."""


class SourceChanged(CopyRejected):
    """Records came while the log was copied. They are copied when the same command runs again.

    :param topics: that grew.
    """

    def __init__(self, topics: list[str]) -> None:
        super().__init__(
            f"records came meanwhile on {', '.join(topics)}: expected that no process of Muster runs. Stop all of "
            "them and run the same command again; it copies the rest"
        )
        self.topics = topics


class TargetTooSmall(CopyRejected):
    """The target has fewer partitions than the source."""

    def __init__(self, target: str, partitions: int, least: int) -> None:
        super().__init__(f"{target} has {partitions} partitions: expected at least {least}, as many as the source")
        self.partitions, self.least = partitions, least


class TargetNotEmpty(CopyRejected):
    """The target has records that are not of this copy."""


class Fenced(BusError):
    """Another owner took the partition over. The in-memory state of this owner is void."""


class TransactionFailed(BusError):
    """A commit failed, or its outcome is unknown. The in-memory state is ahead of the log: drop it."""


class TransactionTimeout(TransactionFailed):
    """A commit had no answer before its deadline."""


class MachineFailed(BusError):
    """A machine failed repeatedly without progress; carries the last failure as its cause."""


class CodecError(BusError):
    """Bytes that do not decode as their topic requires."""
