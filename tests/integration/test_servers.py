"""The servers of the fixtures have the properties that tests assume."""

from __future__ import annotations

import asyncio
import secrets

import asyncpg
import pytest
import redis.asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic


@pytest.mark.kafka
async def test_kafka_has_a_broker(kafka_bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        assert len((await admin.describe_cluster())["brokers"]) >= 1
    finally:
        await admin.close()


@pytest.mark.kafka
async def test_kafka_ends_transactions(kafka_bootstrap: str) -> None:
    topic = f"test-servers-{secrets.token_hex(4)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=topic)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka_bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with asyncio.timeout(60), producer, consumer:
        for value in (b"a", b"b"):  # the second one cannot begin before the first one has ended
            async with producer.transaction():
                await producer.send_and_wait(topic, value)
        assert [(await consumer.getone()).value for _ in range(2)] == [b"a", b"b"]


@pytest.mark.redis
async def test_redis_answers(redis_url: str) -> None:
    client = redis.asyncio.from_url(redis_url)
    try:
        assert await client.ping()
    finally:
        await client.aclose()


@pytest.mark.postgres
async def test_postgres_is_15_or_newer_and_lets_us_create_schemas(postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    try:
        assert connection.get_server_version().major >= 15
        assert await connection.fetchval("select has_database_privilege(current_database(), 'create')")
    finally:
        await connection.close()
