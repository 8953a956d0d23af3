"""The log on Kafka: properties that the contract test cannot demand of every backend."""

from __future__ import annotations

import asyncio
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator
from itertools import pairwise

import aiokafka.producer.sender
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import CoordinatorNotAvailableError
from aiokafka.partitioner import DefaultPartitioner
from contract.log_contract import all_of, drain, values
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import SystemClock
from muster_bus.errors import Fenced, LogUnavailable, TopicMismatch, TransactionTimeout
from muster_bus.log import OutRecord
from muster_bus.partition_worker import PartitionWorker
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_bus.worker_settings import WorkerSettings
from unit.bus.toy import CountingMachine, FaultyLog, expected_responses, write_inputs
from waiting import eventually

pytestmark = pytest.mark.kafka

WORKER = WorkerSettings(backoff_first_s=0.001, backoff_limit_s=0.01, max_records_batch=40)


@pytest.fixture
def settings(kafka_bootstrap: str) -> LogSettings:
    return LogSettings(
        backend="kafka",
        partitions=1,
        kafka_bootstrap_servers=kafka_bootstrap,
        topic_prefix=f"log-{uuid.uuid4().hex[:12]}.",
    )


async def _open(settings: LogSettings) -> KafkaLog:
    log = KafkaLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    return log


@pytest.fixture
async def bus(settings: LogSettings) -> AsyncIterator[KafkaLog]:
    log = await _open(settings)
    yield log
    await log.close()


@pytest.fixture
def topics(settings: LogSettings) -> Topics:
    return settings.topics()


# ---- the worker ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
async def test_random_failures_leave_no_gap_and_no_double(bus: KafkaLog, topics: Topics, seed: int) -> None:
    chance = random.Random(seed)
    faults = FaultyLog(bus, lambda: chance.choice(["", "", "", "before", "after"]))
    inputs = [(b"key-%d" % (number % 7), b"%d" % number) for number in range(300)]
    worker = PartitionWorker(faults, topics, "test", 0, lambda: CountingMachine(topics), SystemClock(), WORKER)
    running = asyncio.create_task(worker.run())
    writer = await bus.writer("test")
    for start in range(0, 300, 30):
        await write_inputs(writer, topics, inputs[start : start + 30])
    await eventually(lambda: worker.progress().lag == 0 and worker.progress().committed >= 300, within_s=60)
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert values(await all_of(bus, topics.responses, at_least=len(inputs))) == expected_responses(inputs)


async def test_workers_that_take_over_from_each_other_answer_each_input_once(
    bus: KafkaLog, topics: Topics, settings: LogSettings
) -> None:
    inputs = [(b"key-%d" % (number % 5), b"%d" % number) for number in range(600)]
    writer = await bus.writer("test")
    writing = asyncio.create_task(_write_slowly(writer, topics, inputs))
    logs, endings = [], []
    for _ in range(4):  # each with its own log, as in a process of its own
        log = await _open(settings)
        logs.append(log)
        worker = PartitionWorker(log, topics, "test", 0, lambda: CountingMachine(topics), SystemClock(), WORKER)
        endings.append(asyncio.create_task(worker.run()))
        before = worker.progress().committed
        await eventually(lambda worker=worker, before=before: worker.progress().committed > before + 40)
    await writing
    await eventually(lambda: worker.progress().committed >= 600 and worker.progress().lag == 0, within_s=60)
    worker.stop()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*endings, return_exceptions=True)
    assert [type(result) for result in results] == [Fenced, Fenced, Fenced, type(None)]
    assert values(await all_of(bus, topics.responses, at_least=len(inputs))) == expected_responses(inputs)
    for log in logs:
        await log.close()


async def _write_slowly(writer: object, topics: Topics, inputs: list[tuple[bytes, bytes]]) -> None:
    for start in range(0, len(inputs), 10):
        await write_inputs(writer, topics, inputs[start : start + 10])  # type: ignore[arg-type]
        await asyncio.sleep(0.01)


# ---- lost brokers -------------------------------------------------------------------------------------------------


async def test_an_absent_broker_is_reported_in_bounded_time() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        settings = LogSettings(
            backend="kafka",
            kafka_bootstrap_servers=f"127.0.0.1:{unused.getsockname()[1]}",
            kafka_start_timeout_s=0.5,
        )
        log = KafkaLog(settings.topics().specs(), settings, SystemClock())
        async with asyncio.timeout(60):
            with pytest.raises(LogUnavailable, match=settings.kafka_bootstrap_servers):
                await log.start()
        assert not await log.healthy()
        await log.close()


async def _never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def test_a_silent_broker_fails_commits_appends_and_health_in_bounded_time(
    settings: LogSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await _open(
        settings.model_copy(update={"transaction_deadline_s": 5.0, "health_timeout_s": 0.3, "kafka_silence_s": 0.5})
    )
    owner, writer = await log.take_over("group", topics.requests, 0), await log.writer("test")
    reader = await log.reader(topics.requests, 0)
    await reader.read(1, 0.1)
    await eventually(log.healthy)
    with monkeypatch.context() as broken:
        broken.setattr("aiokafka.client.AIOKafkaClient.send", _never)
        async with asyncio.timeout(60):
            with pytest.raises(TransactionTimeout):
                await owner.commit([OutRecord(topics.responses, 0, b"k", b"v")], 1)
            with pytest.raises(LogUnavailable):
                await writer.append(OutRecord(topics.requests, 0, b"k", b"lost"))
            assert not await log.healthy()
            with pytest.raises(LogUnavailable, match="silent"):
                await drain(reader, 1)
            await owner.close()
    assert await writer.append(OutRecord(topics.requests, 0, b"k", b"found")) >= 0  # with a new producer
    again = await log.take_over("group", topics.requests, 0)
    await again.commit([OutRecord(topics.responses, 0, b"k", b"v")], 1)
    await log.close()
    patient = await _open(settings)  # (The short times are for the silence.)
    assert values(await all_of(patient, topics.responses, at_least=1)) == [b"v"]
    await patient.close()


async def test_a_batch_that_fails_inside_a_transaction_fails_the_transaction(
    bus: KafkaLog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_bus.errors import TransactionFailed

    owner = await bus.take_over("group", topics.requests, 0)
    send = owner._producer.send_batch

    async def refuse(batch: object, topic: str, *, partition: int) -> object:
        if topic == topics.events:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(aiokafka.errors.MessageSizeTooLargeError())
            return future
        return await send(batch, topic, partition=partition)

    monkeypatch.setattr(owner._producer, "send_batch", refuse)
    with pytest.raises(TransactionFailed, match="MessageSizeTooLarge"):
        await owner.commit([OutRecord(topic, 0, b"k", b"v") for topic in (topics.responses, topics.events)], 1)
    assert await all_of(bus, topics.responses) == []
    again = await bus.take_over("group", topics.requests, 0)
    assert await again.committed() is None


async def test_a_topic_of_another_kind_or_too_small_is_refused(bus: KafkaLog, settings: LogSettings) -> None:
    specs = [
        spec.__class__(spec.name, spec.partitions, "delete", 1000) if spec.cleanup == "compact" else spec
        for spec in settings.topics().specs()
    ]
    with pytest.raises(TopicMismatch, match=r"cleanup\.policy compact"):
        await KafkaLog(specs, settings, SystemClock()).start()
    larger = settings.model_copy(update={"max_record_bytes": 4 << 20})
    with pytest.raises(TopicMismatch, match=r"max\.message\.bytes"):
        await _open(larger)


# ---- names of libraries -------------------------------------------------------------------------------------------


def test_aiokafkas_private_back_off_still_exists_and_is_used() -> None:
    assert aiokafka.producer.sender.BACKOFF_OVERRIDE == 0.001
    handler = aiokafka.producer.sender.AddPartitionsToTxnHandler.handle_response
    assert "BACKOFF_OVERRIDE" in handler.__code__.co_names


async def test_an_owner_looks_for_its_coordinator_at_a_moderate_rate(
    bus: KafkaLog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker makes its internal topics there is no coordinator, and each look costs all metadata, too."""
    looks: list[float] = []
    find = AIOKafkaClient.coordinator_lookup

    async def vain(client: AIOKafkaClient, kind: int, key: str) -> int:
        looks.append(time.monotonic())
        if len(looks) <= 5:
            raise CoordinatorNotAvailableError
        return int(await find(client, kind, key))

    monkeypatch.setattr(AIOKafkaClient, "coordinator_lookup", vain)
    owner = await bus.take_over("calm", topics.requests, 0)
    pauses = [later - earlier for earlier, later in pairwise(looks[:6])]
    assert min(pauses) >= 0.05
    assert owner._producer._sender._retry_backoff == 0.005, "a transaction is tried again sooner"
    await owner.close()


def test_partitions_are_those_of_kafkas_own_partitioner() -> None:
    chance = random.Random(1)
    for count in (1, 3, 4, 64):
        topics, partitioner = Topics(partitions=count), DefaultPartitioner()
        for _ in range(500):
            rm_id = "".join(chance.choices("abcxyz0189-_./äÄ漢", k=chance.randrange(1, 40)))
            assert topics.partition_of(rm_id) == partitioner(rm_id.encode(), list(range(count)), list(range(count)))
