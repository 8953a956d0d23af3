"""A take-over just before the old owner's commit: input that it still commits must not be answered again.

The experiment: A has sent its output and its input position, B takes over, A commits in time. A question for the
committed position before the fence gets the old one; the last test shows the double answer that follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalOperation
from contract.log_contract import all_of, values
from integration.takeover_rig import answer, kafka_settings, started, with_requests
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_owner import KafkaOwner
from muster_bus.backends.kafka_stable_offset import stable_offset
from muster_bus.errors import Fenced
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka_bootstrap: str) -> LogSettings:
    return kafka_settings(kafka_bootstrap, "late")


@pytest.fixture
async def bus(settings: LogSettings) -> AsyncIterator[KafkaLog]:
    async with started(settings) as log:
        yield log


@pytest.fixture
async def topics(bus: KafkaLog, settings: LogSettings) -> Topics:
    return await with_requests(bus, settings.topics(), b"m0", b"m1")


class Held:
    """An owner's commit that waits before the transaction's end, after it has sent everything."""

    def __init__(self, owner: KafkaOwner, answer: OutRecord, position: int) -> None:
        self.sent, self.go = asyncio.Event(), asyncio.Event()
        finish = owner._producer.commit_transaction

        async def held() -> None:
            self.sent.set()
            await self.go.wait()
            await finish()

        owner._producer.commit_transaction = held
        self.commit = asyncio.create_task(owner.commit([answer], position))


async def test_input_committed_in_time_is_not_read_again(bus: KafkaLog, topics: Topics) -> None:
    a = await bus.take_over("scheduler", topics.requests, 0)
    held = Held(a, *await answer(bus, topics, "A", await a.committed()))
    await held.sent.wait()
    held.go.set()
    await held.commit
    b = await bus.take_over("scheduler", topics.requests, 0)  # at once, while the group's offsets may be on their way
    answer_b, position = await answer(bus, topics, "B", await b.committed())
    await b.commit([answer_b], position)
    assert values(await all_of(bus, topics.responses, at_least=2)) == [b"A:m0", b"B:m1"]


async def test_input_not_committed_in_time_is_undone_and_read_again(bus: KafkaLog, topics: Topics) -> None:
    a = await bus.take_over("scheduler", topics.requests, 0)
    held = Held(a, *await answer(bus, topics, "A", await a.committed()))
    await held.sent.wait()
    b = await bus.take_over("scheduler", topics.requests, 0)
    answer_b, position = await answer(bus, topics, "B", await b.committed())
    held.go.set()
    with pytest.raises(Fenced):
        await held.commit
    await b.commit([answer_b], position)
    assert values(await all_of(bus, topics.responses, at_least=1)) == [b"B:m0"]


async def test_an_owner_that_is_replaced_between_two_steps_is_fenced(bus: KafkaLog, topics: Topics) -> None:
    """The client learns of the fence outside of the commit, and only calls the commit's next step illegal."""
    a = await bus.take_over("scheduler", topics.requests, 0)
    answer_a, position = await answer(bus, topics, "A", await a.committed())
    await bus.take_over("scheduler", topics.requests, 0)
    send_offsets, refused = a._producer.send_offsets_to_transaction, []

    async def late(*arguments: Any) -> None:
        await asyncio.wait({a._producer._sender.sender_task}, timeout=60)
        try:
            await send_offsets(*arguments)
        except Exception as error:
            refused.append(type(error))
            raise

    a._producer.send_offsets_to_transaction = late
    with pytest.raises(Fenced):
        await a.commit([answer_a], position)
    assert refused == [IllegalOperation]


@pytest.mark.parametrize("pause_s", [0, 0.001, 0.002, 0.004, 0.008])
async def test_a_race_between_both_ends_one_way_or_the_other(bus: KafkaLog, topics: Topics, pause_s: float) -> None:
    a = await bus.take_over("scheduler", topics.requests, 0)
    held = Held(a, *await answer(bus, topics, "A", await a.committed()))
    await held.sent.wait()
    held.go.set()
    await asyncio.sleep(pause_s)
    b = await bus.take_over("scheduler", topics.requests, 0)
    answer_b, position = await answer(bus, topics, "B", await b.committed())
    await b.commit([answer_b], position)
    await asyncio.wait({held.commit}, timeout=60)
    told = held.commit.exception()
    async with asyncio.timeout(60):  # a commit is acknowledged a moment before it is visible to all
        while answer_b.value not in (seen := values(await all_of(bus, topics.responses))):  # noqa: ASYNC110 - a server
            await asyncio.sleep(0.01)
    assert seen in ([b"A:m0", b"B:m1"], [b"B:m0"])
    if told is None:
        assert seen == [b"A:m0", b"B:m1"], "an acknowledged commit must be visible"
    if isinstance(told, Fenced):
        assert seen == [b"B:m0"], "a refused commit must not be visible"


async def test_an_offset_that_is_not_decided_yet_is_waited_for(bus: KafkaLog, topics: Topics) -> None:
    """The question must be for the stable offset. The plain question gets the older one."""
    a = await bus.take_over("scheduler", topics.requests, 0)
    held = Held(a, *await answer(bus, topics, "A", None))
    await held.sent.wait()
    client = (await bus.writer("other"))._producer.client  # type: ignore[union-attr]
    question = asyncio.create_task(stable_offset(client, a._group, topics.requests, 0))
    await asyncio.sleep(0.3)
    assert not question.done()
    held.go.set()
    await held.commit
    assert await asyncio.wait_for(question, 60) == await a.committed() == 1


async def test_asking_before_fencing_would_double(bus: KafkaLog, topics: Topics, settings: LogSettings) -> None:
    a = await bus.take_over("scheduler", topics.requests, 0)
    await a.commit([], 0)
    held = Held(a, *await answer(bus, topics, "A", await a.committed()))
    await held.sent.wait()
    place = TopicPartition(topics.requests, 0)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka_bootstrap_servers)
    b = AIOKafkaProducer(
        bootstrap_servers=settings.kafka_bootstrap_servers,
        transactional_id=a._producer._txn_manager.transactional_id,
        transaction_timeout_ms=10_000,
    )
    await admin.start()
    try:
        stale = (await admin.list_consumer_group_offsets(a._group))[place].offset  # asked first ...
        held.go.set()
        await held.commit
        await b.start()  # ... and fenced afterwards
        answer_b, position = await answer(bus, topics, "B", stale)
        async with b.transaction():
            await b.send(topics.responses, answer_b.value, partition=0)
            await b.send_offsets_to_transaction({place: position}, a._group)
        assert values(await all_of(bus, topics.responses, at_least=2)) == [b"A:m0", b"B:m0"]
    finally:
        await b.stop()
        await admin.close()
