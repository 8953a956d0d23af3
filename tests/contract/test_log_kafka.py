from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from contract.log_contract import LogContract
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings

pytestmark = pytest.mark.kafka


class KafkaBench:
    def __init__(self, bootstrap: str) -> None:
        self.settings = LogSettings(
            backend="kafka",
            partitions=2,
            kafka_bootstrap_servers=bootstrap,
            topic_prefix=f"contract-{uuid.uuid4().hex[:12]}.",
        )
        self.logs: list[KafkaLog] = []

    async def open(self, settings: LogSettings | None = None) -> KafkaLog:
        settings = settings or self.settings
        log = KafkaLog(settings.topics().specs(), settings, SystemClock())
        self.logs.append(log)
        await log.start()
        return log

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.kafka_bootstrap_servers)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(offset)})
        finally:
            await admin.close()


@pytest.fixture
async def bench(kafka_bootstrap: str) -> AsyncIterator[KafkaBench]:
    bench = KafkaBench(kafka_bootstrap)
    yield bench
    for log in bench.logs:
        await log.close()


class TestKafkaLog(LogContract):
    async def test_a_reader_fetches_no_more_than_its_bound(self, bench: KafkaBench) -> None:
        bus, topics = await bench.open(), bench.settings.topics()
        writer = await bus.writer("test")
        for _ in range(40):
            await writer.append(OutRecord(topics.events, 0, b"k", bytes(10_000)))  # each a batch of its own
        small = await bus.reader(topics.events, 0, fetch_max_bytes=100_000)
        # (A read gives of one fetch.)
        assert 1 <= len(await small.read(1_000, 10.0)) <= 10
        usual = await bus.reader(topics.events, 0)
        assert len(await usual.read(1_000, 10.0)) == 40
