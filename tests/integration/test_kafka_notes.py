"""What is lost on Kafka is found at the next start by the note of the last commit, and refused until it is accepted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_copy_target import delete_topics
from muster_bus.clock import SystemClock
from muster_bus.errors import LogDamaged
from muster_bus.log import OutRecord, Record
from muster_bus.partition_worker import PartitionWorker
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics, rm_state_key, state_key
from muster_cli.main import run
from muster_proto.muster.bus.v1 import envelope_pb2
from own_kafka import OwnKafka, own_kafka
from unit.bus.toy import CountingMachine, read_all, write_inputs
from waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.kafka

KEYS = [rm_state_key("one"), *(state_key("one", "node", "default", f"n{number}") for number in range(4))]
INPUTS = [(key, b"m%d" % number) for number, key in enumerate(KEYS * 3)]


class Machine(CountingMachine):
    """It forgets a count with its tombstone."""

    def fold(self, record: Record) -> None:
        if record.value is None:
            self.counts.pop(record.key or b"", None)
        else:
            super().fold(record)


def settings_at(address: str) -> LogSettings:
    return LogSettings(
        backend="kafka",
        partitions=1,
        kafka_bootstrap_servers=address,
        topic_prefix=f"notes-{secrets.token_hex(4)}.",
        derived_topics=False,
    )


@pytest.fixture
def settings(kafka_bootstrap: str) -> LogSettings:
    return settings_at(kafka_bootstrap)


@pytest.fixture
def topics(settings: LogSettings) -> Topics:
    return settings.topics()


@contextlib.asynccontextmanager
async def opened(settings: LogSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(settings.topics().specs(), settings, SystemClock())
    await log.start()
    try:
        yield log
    finally:
        await log.close()


async def has_decided(worker: PartitionWorker, end: int) -> None:
    await eventually(lambda: worker.progress().serving and worker.committed >= end)


async def work(settings: LogSettings, inputs: Sequence[tuple[bytes, bytes]] = INPUTS) -> None:
    """A scheduler starts, decides the requests, and stops."""
    topics = settings.topics()
    async with opened(settings) as log:
        worker = PartitionWorker(log, topics, "scheduler", 0, lambda: Machine(topics), SystemClock())
        running = asyncio.create_task(worker.run())
        writer = await log.writer("gateway")
        await write_inputs(writer, topics, inputs)
        reader = await log.reader(topics.requests, 0)
        end = await reader.end_offset()
        deciding = asyncio.create_task(has_decided(worker, end))
        await asyncio.wait({running, deciding}, return_when=asyncio.FIRST_COMPLETED)
        deciding.cancel()
        worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await running


async def refused(settings: LogSettings) -> str:
    """Returns why a scheduler does not start."""
    with pytest.raises(LogDamaged) as found:
        await work(settings, ())
    return str(found.value)


async def command(settings: LogSettings, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Runs a command on the log. Returns its exit code, and what it shows."""
    given = {
        "backend": "kafka",
        "kafka_bootstrap_servers": settings.kafka_bootstrap_servers,
        "topic_prefix": settings.topic_prefix,
        "derived_topics": "false",
    }
    sets = [word for name, value in given.items() for word in ("--set", f"log.{name}={value}")]
    capsys.readouterr()
    code = await asyncio.to_thread(run, [*words, *sets])
    shown = capsys.readouterr()
    return code, " ".join((shown.out + shown.err).split())


async def is_found(settings: LogSettings, capsys: pytest.CaptureFixture[str], *wanted: str, ends: bool = True) -> None:
    """A start is refused, twice, and each command names the break.

    :param wanted: parts of the messages; the first one is in the refusal, too.
    :param ends: the break is one that `muster topics verify` finds, too.
    """
    for _ in range(2):
        assert wanted[0] in await refused(settings)
    code, shown = await command(settings, capsys, "verify")
    assert code == 1
    assert all(part in shown for part in wanted), shown
    code, shown = await command(settings, capsys, "topics", "verify")
    assert code == (1 if ends else 0), shown


async def is_found_and_accepted(
    settings: LogSettings, capsys: pytest.CaptureFixture[str], *wanted: str, ends: bool = True
) -> None:
    """The same, and the log works after the break is accepted, not before."""
    await is_found(settings, capsys, *wanted, ends=ends)
    code, shown = await command(settings, capsys, "repair", "--accept", "00000000")
    assert code == 1
    accepted = re.findall("--accept [0-9a-f]{8}", shown)
    assert accepted, shown
    await refused(settings)
    code, shown = await command(settings, capsys, "repair", *" ".join(accepted).split())
    assert code == 0, shown
    await work(settings)
    code, shown = await command(settings, capsys, "verify")
    assert (code, "whole" in shown) == (0, True), shown


async def change_from_outside(settings: LogSettings, topic: str, key: bytes, value: bytes | None) -> None:
    async with opened(settings) as log:
        writer = await log.writer("stranger")
        await writer.append(OutRecord(topic, 0, key, value))


async def test_a_log_that_lost_nothing_starts(
    settings: LogSettings, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        await work(settings)
    code, shown = await command(settings, capsys, "verify")
    assert (code, "whole" in shown, "no note" in shown) == (0, True, False), shown
    assert (await command(settings, capsys, "topics", "verify"))[0] == 0
    # Commits that time alone causes are noted, too; those that are undone count for nothing.
    async with opened(settings) as log:
        owner = await log.take_over("scheduler", topics.requests, 0)
        await owner.commit([OutRecord(topics.state, 0, KEYS[0], b"9")], await owner.committed())
        await owner.commit([OutRecord(topics.state, 0, KEYS[1], None)], None)
        await owner._producer.begin_transaction()
        await owner._producer.send_and_wait(topics.state, b"7", key=KEYS[2], partition=0)
        await owner._producer.flush()
    await work(settings)
    assert (await command(settings, capsys, "verify"))[0] == 0


async def test_a_note_costs_no_request(settings: LogSettings, topics: Topics) -> None:
    """Commits of an owner without notes send the same requests."""
    sent: dict[str, list[str]] = {}
    async with opened(settings) as log:
        for group, topic in (("scheduler", topics.requests), ("derive", topics.events)):
            owner = await log.take_over(group, topic, 0)
            assert (owner.notes is None) == (group == "derive")
            client, kinds = owner._producer.client, sent.setdefault(group, [])
            send = client.send

            async def counted(node: int, request: Any, *, of: Any = (send, kinds), **more: Any) -> Any:
                of[1].append(type(request).__name__)
                return await of[0](node, request, **more)

            for number in range(4):
                if number == 1:  # the first one learns where coordinators and leaders are
                    client.send = counted
                await owner.commit([OutRecord(topics.state, 0, KEYS[0], b"1")], number)
    # (Lookups have their own times; some requests are sent again while markers of the last transaction are written.)
    lookups = {"FindCoordinatorRequest", "MetadataRequest"}
    assert set(sent["scheduler"]) - lookups == set(sent["derive"]) - lookups
    # (Kafka may have a request for a transaction repeated, until the last one's markers are written: it counts once.)
    once = {
        group: [kind for kind, _ in groupby(kind for kind in kinds if kind not in lookups)]
        for group, kinds in sent.items()
    }
    for kind in ("TxnOffsetCommitRequest", "EndTxnRequest"):
        assert once["scheduler"].count(kind) == once["derive"].count(kind) == 3, (kind, sent)


async def test_topics_that_were_deleted_and_created_again(
    settings: LogSettings, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in ((topics.requests,), (topics.state, topics.audit)):
        await work(settings)
        async with opened(settings) as log:
            assert log.admin is not None
            await delete_topics(log.admin, names)
        async with opened(settings):
            pass  # it creates them
        wanted = [f"{name}[0] from 0 to" for name in names]
        await is_found_and_accepted(settings, capsys, "the topic was deleted and created again", *wanted)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (KEYS[1], None, "it has 4 keys instead of 5"),
        (state_key("one", "node", "default", "new"), b"1", "it has 6 keys instead of 5"),
        (KEYS[1], b"77", "the content of its 5 keys is another one than noted"),
    ],
)
async def test_a_change_from_outside(
    settings: LogSettings,
    topics: Topics,
    capsys: pytest.CaptureFixture[str],
    key: bytes,
    value: bytes | None,
    reason: str,
) -> None:
    """While a scheduler works."""
    async with opened(settings) as log:
        worker = PartitionWorker(log, topics, "scheduler", 0, lambda: Machine(topics), SystemClock())
        running = asyncio.create_task(worker.run())
        writer = await log.writer("gateway")
        await write_inputs(writer, topics, INPUTS)
        await has_decided(worker, len(INPUTS))
        await writer.append(OutRecord(topics.state, 0, key, value))
        await write_inputs(writer, topics, [(KEYS[0], b"again")])
        await has_decided(worker, len(INPUTS) + 1)
        worker.stop()
        await running
    await is_found(settings, capsys, reason, f"{topics.state}[0]", "'one'", ends=False)


async def test_a_position_that_went_back(
    settings: LogSettings, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    await work(settings)
    group = f"{settings.topic_prefix}scheduler"
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka_bootstrap_servers, group_id=group, enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign([TopicPartition(topics.requests, 0)])
    await consumer.commit({TopicPartition(topics.requests, 0): 3})
    await consumer.stop()
    await is_found_and_accepted(settings, capsys, f"group {group} is at 3, but its last commit was at {len(INPUTS)}")
    async with opened(settings) as log:
        answers = [record.value for record in await read_all(log, topics.responses)]
    assert len(answers) == len(set(answers)) == 2 * len(INPUTS) + 1  # no request was decided twice; one notice


async def test_an_older_version_uses_the_log_in_between(
    settings: LogSettings, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """It commits its position without a note. Its records count, and the notes begin anew."""
    await work(settings)
    place = TopicPartition(topics.requests, 0)
    async with opened(settings) as log:
        older = AIOKafkaProducer(
            bootstrap_servers=settings.kafka_bootstrap_servers,
            transactional_id=f"{settings.topic_prefix}scheduler.{topics.requests}.0",
        )
        writer = await log.writer("gateway")
        await write_inputs(writer, topics, [(KEYS[0], b"older")])
        await older.start()
        async with older.transaction():
            await older.send(topics.state, b"99", key=KEYS[0], partition=0)
            await older.send_offsets_to_transaction({place: len(INPUTS) + 1}, f"{settings.topic_prefix}scheduler")
        async with older.transaction():  # without input
            await older.send(topics.state, None, key=KEYS[1], partition=0)
        await older.stop()
    await work(settings, ())
    assert (await command(settings, capsys, "verify"))[0] == 0
    await work(settings)
    await change_from_outside(settings, topics.state, KEYS[2], None)
    await is_found_and_accepted(settings, capsys, "ended before these records", ends=False)


async def test_a_log_without_notes_starts_and_gains_them(
    settings: LogSettings, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(settings) as log:
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.kafka_bootstrap_servers, transactional_id=secrets.token_hex(4)
        )
        await write_inputs(await log.writer("gateway"), topics, [(KEYS[0], b"older")])
        await producer.start()
        async with producer.transaction():
            await producer.send(topics.state, b"1", key=KEYS[0], partition=0)
            place = TopicPartition(topics.requests, 0)
            await producer.send_offsets_to_transaction({place: 1}, f"{settings.topic_prefix}scheduler")
        await producer.stop()
    code, shown = await command(settings, capsys, "verify")
    assert (code, "1 partitions have no note" in shown) == (0, True), shown
    await work(settings)
    await change_from_outside(settings, topics.state, KEYS[0], None)
    assert "ended before these records" in await refused(settings)


async def test_a_gap_in_the_numbers_of_responses_and_events(
    settings: LogSettings, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(settings) as log:
        owner = await log.take_over("scheduler", topics.requests, 0)
        for number in (1, 2, 4, 5):
            value = envelope_pb2.ResponseEnvelope(rm_id="one", sequence=number, response=b"r").SerializeToString()
            headers = (("id", b"%d" % number), ("rm", b"one"), ("instance", b"i"), ("tracking", b"1"))
            event = OutRecord(topics.events, 0, b"one", b"e", headers)
            await owner.commit([OutRecord(topics.responses, 0, b"one", value), event], 0)
    for what in ("verify", "repair"):
        code, shown = await command(settings, capsys, what)
        assert code == 1
        assert "a response to 'one' has the number 4 after 2" in shown
        assert "an event of 'one' has the id 4 after 2" in shown
    words = " ".join(re.findall("--accept [0-9a-f]{8}", shown)).split()
    assert (await command(settings, capsys, "repair", *words))[0] == 0
    code, shown = await command(settings, capsys, "verify")
    assert (code, "but for 2 accepted gaps" in shown) == (0, True), shown


# ---- files of a broker ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[OwnKafka]:
    with own_kafka() as it:
        yield it


async def test_a_tail_that_a_broker_lost(broker: OwnKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """As after the election of a leader that had not all, or a volume that was put back."""
    settings = settings_at(broker.address)
    topics = settings.topics()
    await work(settings)
    broker.stop()
    short = (topics.responses, topics.state, topics.requests)
    for topic in short:
        for each in broker.folder(topic).iterdir():  # the broker makes them again
            if each.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                each.unlink()
        _cut(broker, topic)
    broker.start()
    wanted = [f"{topic}[0] from" for topic in short]
    await is_found_and_accepted(settings, capsys, "its newest records are missing", *wanted)


async def test_brokers_that_take_no_notes(broker: OwnKafka, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_at(broker.address)
    await work(settings)
    broker.stop()
    broker.configure("offset.metadata.max.bytes", "100")
    broker.start()
    await work(settings)
    await change_from_outside(settings, settings.topics().state, KEYS[0], None)
    await work(settings)
    code, shown = await command(settings, capsys, "verify")
    assert (code, "whole" in shown) == (0, True), shown


def _cut(broker: OwnKafka, topic: str) -> None:
    """Removes the last two batches of a partition's file."""
    path = broker.segment(topic)
    content, starts = path.read_bytes(), [0]
    while starts[-1] < len(content):
        starts.append(starts[-1] + 12 + int.from_bytes(content[starts[-1] + 8 : starts[-1] + 12]))
    path.write_bytes(content[: starts[max(0, len(starts) - 3)]])
