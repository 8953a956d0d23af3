"""Partitions with fewer copies in sync than the topics demand (``min.insync.replicas``).

Kafka refuses every write to such a partition, and clients only see that nothing is answered. So the log looks at the
topics' metadata whenever its health is asked, and after a write without an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

_NAMED_MAX = 3


class ReplicaShortage(NamedTuple):
    """What is short.

    :param partitions: topic, partition and the number of its copies in sync.
    :param least: the number that the topics demand.
    :param brokers: number of brokers that answer.
    """

    partitions: tuple[tuple[str, int, int], ...] = ()
    least: int = 1
    brokers: int = 0

    @property
    def sentence(self) -> str:
        """The shortage in a sentence; "": there is none."""
        if not self.partitions:
            return ""
        named = ", ".join(f"{topic}[{number}] has {copies}" for topic, number, copies in self.partitions[:_NAMED_MAX])
        more = f", and {len(self.partitions) - _NAMED_MAX} more" if len(self.partitions) > _NAMED_MAX else ""
        return (
            f"too few copies are in sync: {named}{more}; expected at least {self.least} "
            f"(log.kafka_min_insync_replicas), {self.brokers} brokers answer. Nothing is written there, and nothing is "
            "lost, until more brokers are back"
        )

    def has_all(self, topic: str, partitions: int) -> bool:
        """Tells whether each partition of a topic is short."""
        return sum(name == topic for name, _, _ in self.partitions) == partitions


def shortage(topics: Iterable[dict[str, Any]], brokers: int, least: int) -> ReplicaShortage:
    """Finds what is short.

    :param topics: as Kafka's answer to a metadata request has them.
    :param brokers: number of brokers that answer.
    :param least: number of copies in sync that the topics demand.
    """
    short = [
        (topic["topic"], partition["partition"], len(partition["isr"]))
        for topic in topics
        for partition in sorted(topic["partitions"], key=lambda partition: int(partition["partition"]))
        if len(partition["isr"]) < least
    ]
    return ReplicaShortage(tuple(short), least, brokers)
