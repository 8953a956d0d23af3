"""``muster derive`` on a real Kafka: killed again and again, with some aborted transactions in its input.

Afterwards usage is exact, and each event is in the topic of its kind, in order, after repeats are dropped by their
original offset. ``MUSTER_DERIVE_STEPS`` makes the life longer (default 400 steps of an RM).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from integration.deriving_rig import abort, assert_fan_out, assert_usage, read_all, until_fanned_out, until_ns
from muster_bus.clock import SystemClock
from muster_bus.log import Log, Record
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.usage_fold import S_IN_NS
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_proto.si.v1.si_pb2 import EventRecord
from muster_replay.local_process import LocalProcess, free_ports, muster_command
from unit.publisher.feeding import Feeder
from unit.publisher.using import Life
from waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]  # a dozen processes start one after the other

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "consume_events.py"
FAUST_EXAMPLE = EXAMPLE.with_name("faust_consumer.py")
STEPS = int(os.environ.get("MUSTER_DERIVE_STEPS", "400"))
PARTITIONS = 2
RMS = ("rm-1", "rm-4")  # in each partition
WITHIN_S = 180.0


class Deriving:
    """The command, started as by a supervisor."""

    def __init__(self, settings: LogSettings, directory: Path, member: str = "0") -> None:
        self.settings = settings
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/health"
        self.process = LocalProcess(
            muster_command("derive", "--http-address", f"127.0.0.1:{port}"),
            directory / "derive.log",
            {
                "MUSTER_LOG__BACKEND": "kafka",
                "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
                "MUSTER_LOG__TOPIC_PREFIX": settings.topic_prefix,
                "MUSTER_LOG__PARTITIONS": str(settings.partitions),
                "MUSTER_DERIVE__MEMBER": member,
                "MUSTER_DERIVE__BATCH_RECORDS_MAX": "40",
                "MUSTER_DERIVE__BACKLOG_RECORDS_MAX": "100",
                "MUSTER_DERIVE__BATCH_WAIT_S": "0.05",
                "MUSTER_DERIVE__COMMIT_INTERVAL_S": "0.3",
                "MUSTER_DERIVE__SESSION_TIMEOUT_S": "6",
                "MUSTER_DERIVE__REFRESH_WINDOWS": "5",
            },
        )

    async def ready(self) -> None:
        async with httpx.AsyncClient() as http:
            until_s = time.monotonic() + WITHIN_S
            while time.monotonic() < until_s:
                assert self.process.running, self.process.log_tail()
                try:
                    if (await http.get(self._url, timeout=5)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(self.process.log_tail())

    async def partitions(self) -> int:
        """Return the number of partitions that the process reports; 0: it does not answer."""
        async with httpx.AsyncClient() as http:
            try:
                text = (await http.get(self._url.replace("/health", "/metrics"), timeout=60)).text
            except httpx.HTTPError:
                return 0
        return len(re.findall(r"^muster_publisher_derive_lag_offsets\{", text, re.MULTILINE))

    async def not_behind(self) -> None:
        """Wait until the metric shows no lag, although markers of transactions have the last offsets."""
        found: list[str] = []
        async with httpx.AsyncClient() as http:
            until_s = time.monotonic() + WITHIN_S
            while time.monotonic() < until_s:
                text = (await http.get(self._url.replace("/health", "/metrics"), timeout=60)).text
                found = re.findall(r"^muster_publisher_derive_lag_offsets\{.*\} (.*)$", text, re.MULTILINE)
                if len(found) == PARTITIONS and set(found) == {"0.0"}:
                    return
                await asyncio.sleep(0.05)
        raise AssertionError(f"behind by {found}")


@asynccontextmanager
async def deriving(bootstrap: str, directory: Path) -> AsyncIterator[tuple[Log, Topics, UsageRest, Deriving]]:
    settings = LogSettings(
        backend="kafka", kafka_bootstrap_servers=bootstrap, topic_prefix=f"t{uuid4().hex}.", partitions=PARTITIONS
    )
    log = make_log(settings, SystemClock())
    await log.start()
    usage = UsageRest(DeriveSettings(rest_windows_max=10**7, rest_records_max=10**7), log, settings.topics())
    await usage.start()
    derive = Deriving(settings, directory)
    try:
        yield log, settings.topics(), usage, derive
    finally:
        derive.process.kill()
        await usage.stop()
        await log.close()


async def until(condition: object, running: LocalProcess, within_s: float = WITHIN_S) -> None:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if condition():  # type: ignore[operator]
            return
        assert running.running, running.log_tail()
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s} s:\n{running.log_tail()}")


async def committed(bootstrap: str, group: str, topic: str) -> list[int | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    found = [await consumer.committed(TopicPartition(topic, n)) for n in range(PARTITIONS)]
    await consumer.stop()
    return found


async def test_killed_again_and_again_it_derives_everything(kafka_bootstrap: str, tmp_path: Path) -> None:
    lives = [Life(number, rm_id).live(STEPS) for number, rm_id in enumerate(RMS)]
    async with deriving(kafka_bootstrap, tmp_path) as (log, topics, usage, derive):
        assert {topics.partition_of(life.rm_id) for life in lives} == set(range(PARTITIONS))
        feeder, chance = Feeder(log, topics), random.Random(1)
        rounds = 3
        for number in range(rounds):
            derive.process.start()
            # 1. transactions of all sizes, and an aborted one
            before = [until_ns(usage, life) for life in lives]
            for life in lives:
                end = len(life.records) * (number + 1) // rounds
                part = life.records[len(life.records) * number // rounds : end]
                while part:
                    count = chance.choice((1, 5, 60))
                    values = [(record.value or b"", record.headers) for record in part[:count]]
                    await feeder.write(life.rm_id, values)
                    part = part[count:]
                next_id = sum(dict(record.headers)["tracking"] == b"1" for record in life.records[:end])
                await abort(kafka_bootstrap, topics, life, next_id)
            # 2. killed as soon as it has written something
            await until(lambda b=before: [until_ns(usage, life) for life in lives] > b, derive.process)  # type: ignore[misc]
            derive.process.kill()
        # 3. the last one derives everything, and stops in order
        derive.process.start()
        await until(lambda: [until_ns(usage, life) for life in lives] == [life.at_ns for life in lives], derive.process)
        await derive.ready()
        await until_fanned_out(log, topics, lives)
        await derive.not_behind()
        assert derive.process.stop() == 0, derive.process.log_tail()
        for life in lives:
            assert_usage(usage, life)
            await assert_fan_out(log, topics, life)
        await assert_example(kafka_bootstrap, log, topics, lives, tmp_path / "counts.json")
        # 4. its position is stored: the next one repeats nothing
        places = await committed(kafka_bootstrap, f"{topics.prefix}muster-derive", topics.events)
        ends = [(await read_all(log, topics.events, n))[-1].offset + 1 for n in range(PARTITIONS)]
        assert places == ends
        written = [len(await read_all(log, topics.events_of("app"), n)) for n in range(PARTITIONS)]
        derive.process.start()
        await derive.ready()
        await feeder.write(lives[0].rm_id, [(r.value or b"", r.headers) for r in more(lives[0])])
        await until(lambda: until_ns(usage, lives[0]) == lives[0].at_ns, derive.process)
        derive.process.kill()
        again = [len(await read_all(log, topics.events_of("app"), n)) for n in range(PARTITIONS)]
        assert again == written
        # 5. with windows of another length it does not continue
        derive.process.command += ["--set", "derive.window_s=30"]
        derive.process.start()
        await eventually(lambda: not derive.process.running, "it ends by itself", WITHIN_S)
        assert derive.process.stop() == 1
        assert "derive.window_s is 30, but the usage on the log is in windows of 60 s" in derive.process.log_tail()


async def assert_example(bootstrap: str, log: Log, topics: Topics, lives: list[Life], file: Path) -> None:
    """Run the example, a consumer that drops repeats: it counts each event once, also if it is started twice."""
    topic = topics.events_of("app")
    expected: Counter[str] = Counter()
    for record in (record for life in lives for record in life.records):
        event = EventRecord.FromString(record.value or b"")
        if event.type == EventRecord.APP:
            change = EventRecord.ChangeType.Name(event.eventChangeType)
            expected[f"{change} {EventRecord.ChangeDetail.Name(event.eventChangeDetail)}"] += 1
    for _ in range(2):
        command = [sys.executable, str(EXAMPLE), bootstrap, "--topic", topic, "--file", str(file), "--until-end"]
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=WITHIN_S)
        assert ran.returncode == 0, ran.stderr
    counted = json.loads(await asyncio.to_thread(file.read_text))
    assert counted["events"] == expected
    written = sum([len(await read_all(log, topic, number)) for number in range(PARTITIONS)])
    assert counted["repeats"] == written - sum(expected.values())


def more(life: Life) -> list[Record]:
    before = len(life.records)
    life.wait(2)
    return life.records[before:]


async def test_the_faust_example_counts_each_event_once_under_repeats_and_kills(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """The topic has some events twice, as after a crash of the deriver. The program is killed in the middle."""
    lives = [Life(number, rm_id).live(150) for number, rm_id in enumerate(RMS)]
    settings = LogSettings(
        backend="kafka", kafka_bootstrap_servers=kafka_bootstrap, topic_prefix=f"t{uuid4().hex}.", partitions=PARTITIONS
    )
    log, topics, chance = make_log(settings, SystemClock()), settings.topics(), random.Random(7)
    await log.start()
    topic, file = topics.events_of("app"), tmp_path / "counts.json"
    example = LocalProcess(
        [
            *(sys.executable, str(FAUST_EXAMPLE), kafka_bootstrap, "--topic", topic),
            *("--group", f"{topics.prefix}counts", "--file", str(file)),
        ],
        tmp_path / "example.log",
    )
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
    await producer.start()
    expected: dict[str, Counter[str]] = {"applications": Counter(), "minutes": Counter()}
    try:
        for number in range(3):
            example.start()
            # 1. a third of the events, some of which are repeated
            for life in lives:
                records = [
                    one for one in life.records if EventRecord.FromString(one.value or b"").type == EventRecord.APP
                ]
                part = records[len(records) * number // 3 : len(records) * (number + 1) // 3]
                for record in part:
                    count(expected, life.rm_id, event_of(record))
                cut = chance.randrange(len(part))
                for record in [*part, *part[cut:]]:
                    await producer.send(
                        topic, record.value, key=record.key, partition=topics.partition_of(life.rm_id),
                        headers=list(record.headers),
                    )  # fmt: skip
            await producer.flush()
            # 2. killed as soon as it has counted something; the last one counts everything
            before = counted(file)
            await until(lambda b=before: counted(file) != b, example)  # type: ignore[misc]
            if number == 2:
                try:
                    await until(lambda: counted(file) == expected, example)
                except AssertionError as error:
                    where = await places(kafka_bootstrap, f"{topics.prefix}counts", topic)
                    raise AssertionError(f"{differences(counted(file), expected)}\n{where}\n{error}") from None
            example.kill()
    finally:
        example.kill()
        await producer.stop()
        await log.close()


def differences(found: dict[str, dict[str, int]], expected: dict[str, Counter[str]]) -> str:
    """What was counted otherwise, and how often it should be."""
    return "\n".join(
        f"{table} {key}: {found.get(table, {}).get(key, 0)} counted, {counts[key]} expected"
        for table, counts in expected.items()
        for key in sorted(counts | found.get(table, {}))
        if found.get(table, {}).get(key, 0) != counts[key]
    )


async def places(bootstrap: str, group: str, topic: str) -> str:
    """The offsets that the example committed, and the ends of what it reads and writes."""
    committed_at = await committed(bootstrap, group, topic)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    names = (topic, f"{group}-totals-changelog", f"{group}-minutes-changelog")
    ends = await consumer.end_offsets([TopicPartition(name, number) for name in names for number in range(PARTITIONS)])
    await consumer.stop()
    return f"committed: {committed_at}, ends: {[(*tp, end) for tp, end in ends.items()]}"


def event_of(record: Record) -> EventRecord:
    return EventRecord.FromString(record.value or b"")


def count(expected: dict[str, Counter[str]], rm_id: str, event: EventRecord) -> None:
    if (event.eventChangeType, event.eventChangeDetail) == (EventRecord.ADD, EventRecord.APP_ALLOC):
        second = event.timestampNano // S_IN_NS
        expected["applications"][f"{rm_id}/{event.objectID}"] += 1
        expected["minutes"][f"{rm_id}/{second - second % 60}"] += 1


def counted(file: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(file.read_text()) if file.exists() else {}
    return found
