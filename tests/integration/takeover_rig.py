"""Shared by the tests of take-overs: a log on Kafka with its own topics, and manual answers of workers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from contract.log_contract import drain
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics


def kafka_settings(bootstrap: str, name: str) -> LogSettings:
    """Settings with one partition and topics of this test only."""
    prefix = f"{name}-{uuid.uuid4().hex[:12]}."
    return LogSettings(backend="kafka", partitions=1, kafka_bootstrap_servers=bootstrap, topic_prefix=prefix)


@asynccontextmanager
async def started(settings: LogSettings) -> AsyncIterator[KafkaLog]:
    """A log on Kafka, open within the block."""
    log = KafkaLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    try:
        yield log
    finally:
        await log.close()


async def with_requests(bus: KafkaLog, topics: Topics, *messages: bytes) -> Topics:
    """Create topics with these messages as requests."""
    writer = await bus.writer("test")
    for message in messages:
        await writer.append(OutRecord(topics.requests, 0, b"k", message))
    return topics


async def answer(bus: KafkaLog, topics: Topics, who: str, start: int | None) -> tuple[OutRecord, int]:
    """Return a worker's answer to the request at ``start``, and the input position after it. Nothing is written."""
    reader = await bus.reader(topics.requests, 0, start)
    (record,) = await drain(reader, 1)
    return OutRecord(topics.responses, 0, b"k", f"{who}:".encode() + (record.value or b"")), reader.position
