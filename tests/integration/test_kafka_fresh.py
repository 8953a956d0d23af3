"""A broker that was started a moment ago: its internal topics do not exist yet, and its coordinators load."""

from __future__ import annotations

import asyncio

import pytest
from contract.log_contract import all_of, values
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def test_the_first_commits_on_a_fresh_kafka_bootstrap(fresh_kafka_bootstrap: str) -> None:
    partitions = 4
    settings = LogSettings(backend="kafka", partitions=partitions, kafka_bootstrap_servers=fresh_kafka_bootstrap)
    topics = settings.topics()
    log = KafkaLog(topics.specs(), settings, SystemClock())
    await log.start()

    async def first_commit(partition: int, *, ask: bool) -> None:
        owner = await log.take_over("scheduler", topics.requests, partition)
        if ask:
            assert await owner.committed() is None
        await owner.commit([OutRecord(topics.responses, partition, b"k", b"first")], 1)
        assert await owner.committed() == 1

    try:
        await asyncio.gather(*(first_commit(partition, ask=partition % 2 == 0) for partition in range(partitions)))
        for partition in range(partitions):
            assert values(await all_of(log, topics.responses, partition, at_least=1)) == [b"first"]
    finally:
        await log.close()
