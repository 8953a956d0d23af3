"""The late output of a worker that lost its partition must never be visible.

The experiment: A holds a message, B takes the partition over and answers it, then A finishes. With one transactional id
per worker, A's commit would succeed. The last test shows that, so the other tests can fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from contract.log_contract import all_of, values
from integration.takeover_rig import answer, kafka_settings, started, with_requests
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_owner import transactional_id
from muster_bus.errors import Fenced, LogClosed
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka_bootstrap: str) -> LogSettings:
    return kafka_settings(kafka_bootstrap, "zombie")


@pytest.fixture
async def bus(settings: LogSettings) -> AsyncIterator[KafkaLog]:
    async with started(settings) as log:
        yield log


@pytest.fixture
async def topics(bus: KafkaLog, settings: LogSettings) -> Topics:
    return await with_requests(bus, settings.topics(), b"m0")


async def test_a_zombies_late_commit_is_fenced_and_leaves_nothing(bus: KafkaLog, topics: Topics) -> None:
    a = await bus.take_over("scheduler", topics.requests, 0)
    answer_a, position = await answer(bus, topics, "A", await a.committed())
    b = await bus.take_over("scheduler", topics.requests, 0)
    answer_b, _ = await answer(bus, topics, "B", await b.committed())
    await b.commit([answer_b], position)
    with pytest.raises(Fenced):
        await a.commit([answer_a], position)
    assert values(await all_of(bus, topics.responses, at_least=1)) == [b"B:m0"]
    assert await b.committed() == position
    with pytest.raises(LogClosed):  # never used again
        await a.commit([answer_a], position)
    await b.commit([answer_b], position)  # the new owner is not disturbed


async def test_a_zombie_between_sending_and_committing_is_fenced_and_leaves_nothing(
    bus: KafkaLog, topics: Topics
) -> None:
    a = await bus.take_over("scheduler", topics.requests, 0)
    answer_a, position = await answer(bus, topics, "A", await a.committed())
    producer = a._producer
    await producer.begin_transaction()
    await (await producer.send(topics.responses, answer_a.value, partition=0))
    await producer.send_offsets_to_transaction({TopicPartition(topics.requests, 0): position}, a._group)
    b = await bus.take_over("scheduler", topics.requests, 0)
    assert await b.committed() is None  # aborted before take_over returned
    answer_b, _ = await answer(bus, topics, "B", None)
    await b.commit([answer_b], position)
    with pytest.raises(Exception, match=r"newer producer|Fenced|epoch"):
        await producer.commit_transaction()
    assert values(await all_of(bus, topics.responses, at_least=1)) == [b"B:m0"]


async def test_one_transactional_id_per_worker_would_double(
    bus: KafkaLog, topics: Topics, settings: LogSettings
) -> None:
    place = TopicPartition(topics.requests, 0)
    producers = {}
    for who in "AB":
        producers[who] = AIOKafkaProducer(
            bootstrap_servers=settings.kafka_bootstrap_servers,
            transactional_id=f"{settings.topic_prefix}worker-{who}",
            transaction_timeout_ms=10_000,
        )
        await producers[who].start()
    try:
        for who in "BA":  # B takes over and answers; then A finishes
            given, position = await answer(bus, topics, who, None)
            async with producers[who].transaction():
                await producers[who].send(topics.responses, given.value, partition=0)
                await producers[who].send_offsets_to_transaction({place: position}, "scheduler")
        assert values(await all_of(bus, topics.responses, at_least=2)) == [b"B:m0", b"A:m0"]
    finally:
        for producer in producers.values():
            await producer.stop()


def test_the_transactional_id_names_group_topic_and_partition() -> None:
    assert transactional_id("staging.", "scheduler", "staging.si.requests.v1", 3) == (
        "staging.scheduler.staging.si.requests.v1.3"
    )
