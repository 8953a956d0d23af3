"""Which partitions lack copies, from Kafka's metadata."""

from __future__ import annotations

from typing import Any

from muster_bus.backends.kafka_replication import ReplicaShortage, shortage


def topic(name: str, *in_sync: int) -> dict[str, Any]:
    partitions = [{"partition": number, "isr": list(range(copies))} for number, copies in enumerate(in_sync)]
    return {"topic": name, "partitions": partitions[::-1]}


def test_partitions_with_too_few_copies_are_named_in_order() -> None:
    found = shortage([topic("requests", 2, 1), topic("state", 1, 2), topic("events", 2, 2)], brokers=2, least=2)
    assert found.partitions == (("requests", 1, 1), ("state", 0, 1))
    assert found.sentence.startswith(
        "too few copies are in sync: requests[1] has 1, state[0] has 1; expected at least 2 "
        "(log.kafka_min_insync_replicas), 2 brokers answer."
    )
    assert not found.has_all("requests", 2)


def test_a_topic_may_lack_copies_of_all_its_partitions() -> None:
    found = shortage([topic("requests", 1, 1, 0, 1, 1)], brokers=1, least=2)
    assert found.has_all("requests", 5)
    assert "requests[2] has 0, and 2 more;" in found.sentence


def test_enough_copies_are_no_problem() -> None:
    assert shortage([topic("requests", 2, 3)], brokers=3, least=2).sentence == ""
    assert ReplicaShortage().sentence == ""
    assert not ReplicaShortage().has_all("requests", 1)
