"""The checks that every backend makes before it accepts a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster_bus.errors import InvalidRecord, RecordTooLarge
from muster_bus.log import OutRecord
from muster_bus.topics import TopicSpec

# Kafka's framing of a record alone in its batch: 61 bytes of batch header and up to 21 of record header.
RECORD_OVERHEAD_BYTES = 96
HEADER_OVERHEAD_BYTES = 10


def size_of(record: OutRecord) -> int:
    """Returns the record's counted size: the bytes of its content and an upper bound of the framing."""
    unchecked: Any = record
    key, value = unchecked.key, unchecked.value
    size = RECORD_OVERHEAD_BYTES
    # Checks types here: a backend would store a str as something else, or not at all.
    if key is not None:
        if type(key) is not bytes:
            raise InvalidRecord(f"key of a record for {record.topic} is {type(key).__name__}, bytes or None expected")
        size += len(key)
    if value is not None:
        if type(value) is not bytes:
            raise InvalidRecord(
                f"value of a record for {record.topic} is {type(value).__name__}, bytes or None expected"
            )
        size += len(value)
    for name, content in unchecked.headers:
        if type(name) is not str or type(content) is not bytes:
            raise InvalidRecord(f"header {name!r} of a record for {record.topic}: (str, bytes) expected")
        size += len(name) + len(content) + HEADER_OVERHEAD_BYTES
    return size


class RecordRules:
    """Checks records against the topics and the size limit, alike for every backend."""

    def __init__(self, specs: Sequence[TopicSpec], max_record_bytes: int) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._max_record_bytes = max_record_bytes

    def check(self, record: OutRecord) -> int:
        """Returns the record's size in bytes. Raises InvalidRecord, RecordTooLarge."""
        spec = self.spec(record.topic, record.partition)
        if record.key is None and ("compact" in spec.cleanup or record.value is None):
            raise InvalidRecord(f"record for {record.topic}[{record.partition}] has no key and needs one")
        size = size_of(record)
        if size > self._max_record_bytes:
            raise RecordTooLarge(record.topic, size, self._max_record_bytes)
        return size

    def spec(self, topic: str, partition: int) -> TopicSpec:
        """Returns the topic's spec. Raises InvalidRecord if there is no such topic or partition."""
        spec = self._specs.get(topic)
        if spec is None:
            raise InvalidRecord(f"no topic {topic!r}; known are {', '.join(sorted(self._specs))}")
        if not 0 <= partition < spec.partitions:
            raise InvalidRecord(f"{topic} has no partition {partition}: it has {spec.partitions}")
        return spec
