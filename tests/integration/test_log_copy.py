"""Copies of logs into new ones with more partitions: complete, in order, with their times, over interruptions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from manual_clock import ManualClock
from muster_bus.backends.memory import MemoryLog
from muster_bus.backends.sqlite_copy_target import SqliteTarget
from muster_bus.clock import SystemClock
from muster_bus.copying.copier import copy, home_of, main_topics
from muster_bus.copying.target import CopyTarget
from muster_bus.errors import LogBehind, LogUnavailable, SourceChanged, TargetNotEmpty, TargetTooSmall, TopicMismatch
from muster_bus.log import Log, OutRecord, Record
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics, state_key

RMS = [f"rm-{number}" for number in range(7)]
GROUP = "scheduler"
# A record's content, without its place in a log.
Content = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


class Interrupted(Exception):
    """Raised to end the copy's process."""


class Broken:
    """A target whose process ends at a write; earlier commits stay.

    :param before: the write is lost; otherwise it is committed without an answer.
    """

    def __init__(self, target: CopyTarget, writes: int, *, before: bool) -> None:
        self._target, self._left, self._before = target, writes, before
        self.topics, self.name = target.topics, target.name

    async def write(self, topic: str, records: Mapping[int, Sequence[Record]], copied: Mapping[int, int]) -> None:
        self._left -= 1
        if self._left <= 0 and self._before:
            raise Interrupted
        await self._target.write(topic, records, copied)
        if self._left <= 0:
            raise Interrupted

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)


@asynccontextmanager
async def a_source(seed: int, partitions: int) -> AsyncIterator[tuple[MemoryLog, Topics]]:
    """A log with records of several RMs, whose times repeat; the scheduler has answered a part of the requests."""
    # (An hour ago: Kafka deletes records that are older than the topic's retention.)
    rng, clock = random.Random(seed), ManualClock(SystemClock().now_ns() - 3_600_000_000_000)
    topics = Topics(partitions=partitions)
    log = MemoryLog(topics.specs(), clock)
    await log.start()
    writer = await log.writer("gateway")
    for number in range(600):
        rm_id = rng.choice(RMS)
        partition, value = topics.partition_of(rm_id), f"{rm_id} {number}".encode()
        kind = rng.randrange(6)
        if kind == 0:
            record = OutRecord(topics.responses, partition, None, b"decided")
        elif kind == 1:
            key = state_key(rm_id, "node", "default", f"n{rng.randrange(5)}")
            record = OutRecord(topics.state, partition, key, rng.choice([value, None]))
        elif kind == 2:
            record = OutRecord(topics.dead_letters, partition, b"", value, (("error", b"unreadable"),))
        else:
            topic = rng.choice([topics.requests, topics.responses, topics.events])
            record = OutRecord(topic, partition, rm_id.encode(), value, (("id", str(number).encode()),))
        await writer.append(record)
        clock.advance(rng.choice([0, 0, 0.001, 2]))
    for partition in range(partitions):
        reader = await log.reader(topics.requests, partition)
        owner = await log.take_over(GROUP, topics.requests, partition)
        if end := await reader.end_offset():
            await owner.commit([], rng.randrange(end + 1))
    yield log, topics
    await log.close()


async def records_of(log: Log, topics: Topics) -> dict[str, list[list[Record]]]:
    """All records of the main topics, by topic and partition."""
    found: dict[str, list[list[Record]]] = {}
    for spec in main_topics(topics):
        found[spec.name.removeprefix(topics.prefix)] = partitions = []
        for partition in range(spec.partitions):
            reader = await log.reader(spec.name, partition)
            end, records = await reader.end_offset(), list[Record]()
            while reader.position < end:
                records += await reader.read(1_000, 1)
            await reader.close()
            partitions.append(records)
    return found


def content(record: Record) -> Content:
    return record.key, record.value, record.timestamp_ms, tuple(record.headers)


async def undecided(log: Log, topics: Topics) -> set[Content]:
    """The requests that the scheduler has not answered."""
    found = set()
    for partition in range(topics.partitions):
        owner = await log.take_over(GROUP, topics.requests, partition)
        position = await owner.committed() or 0
        await owner.close()
        reader = await log.reader(topics.requests, partition)
        end = await reader.end_offset()
        reader.seek(position)
        while reader.position < end:
            found |= {content(record) for record in await reader.read(1_000, 1)}
        await reader.close()
    return found


async def assert_copied(source: Log, here: Topics, target: Log, there: Topics) -> None:
    """Each partition of the target has the records of its RMs, each RM's in their order, by time."""
    before, after = await records_of(source, here), await records_of(target, there)
    assert before.keys() == after.keys()
    for topic, partitions in after.items():
        for partition, records in enumerate(partitions):
            for rm_id in [*RMS, ""]:
                belongs = rm_id.encode()
                expected = [
                    content(record)
                    for some in before[topic]
                    for record in some
                    if (record.key or b"").split(b"/")[0] == belongs and home_of(record, here, there) == partition
                ]
                got = [content(record) for record in records if (record.key or b"").split(b"/")[0] == belongs]
                # (Records without an RM may come from several partitions.)
                assert (got if rm_id else sorted(got)) == (expected if rm_id else sorted(expected)), (topic, rm_id)
            assert {
                there.partition_of((record.key or b"").split(b"/")[0].decode()) for record in records if record.key
            } <= {partition}
            if topic != here.requests:
                times = [record.timestamp_ms for record in records]
                assert times == sorted(times)
    assert await undecided(target, there) == await undecided(source, here)


def no_progress(topic: str, done: int, total: int) -> None:
    assert 0 <= done <= total, topic


def sqlite_settings(directory: Path, partitions: int) -> LogSettings:
    return LogSettings(sqlite_path=directory / "log.db", partitions=partitions, derived_topics=False)


def kafka_settings(bootstrap: str, partitions: int) -> LogSettings:
    return LogSettings(
        backend="kafka",
        kafka_bootstrap_servers=bootstrap,
        topic_prefix=f"copy{uuid4().hex[:8]}.",
        partitions=partitions,
        derived_topics=False,
    )


async def copy_with_interruptions(source: Log, topics: Topics, settings: LogSettings, rng: random.Random) -> None:
    """Every copy but the last is interrupted after a few writes."""
    for attempt in range(100):
        target = _target(settings)
        try:
            await target.start()
            broken = Broken(target, rng.randrange(1, 4), before=rng.random() < 0.5)
            await copy(source, topics, broken if attempt < 8 else target, GROUP, no_progress)  # type: ignore[arg-type]
            await target.finish()
        except Interrupted:
            continue
        finally:
            await target.close()
        return
    raise AssertionError("the copy never ends")


def _target(settings: LogSettings) -> CopyTarget:
    if settings.backend == "sqlite":
        return SqliteTarget(settings, SystemClock())
    from muster_bus.backends.kafka_copy_target import KafkaTarget

    return KafkaTarget(settings, SystemClock())


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_bus.copying.merged_reader._BATCH_RECORDS", 20)


@pytest.mark.parametrize("seed", range(6))
async def test_a_copy_into_a_file_is_whole_over_interruptions(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    settings = sqlite_settings(tmp_path, rng.choice([3, 4, 8]))
    async with a_source(seed, 3) as (source, topics):
        await copy_with_interruptions(source, topics, settings, rng)
        log = make_log(settings, SystemClock())
        await log.start()
        await assert_copied(source, topics, log, settings.topics())
        await log.close()


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(2))
async def test_a_copy_into_topics_is_whole_over_interruptions(kafka_bootstrap: str, seed: int) -> None:
    rng = random.Random(seed)
    settings = kafka_settings(kafka_bootstrap, 5)
    prefix = settings.topic_prefix
    async with a_source(seed, 3) as (source, topics):
        target = _target(settings)
        await target.start()
        with pytest.raises(Interrupted):
            await copy(source, topics, Broken(target, 3, before=True), GROUP, no_progress)  # type: ignore[arg-type]
        await target.close()
        unfinished = make_log(settings, SystemClock())
        with pytest.raises(TopicMismatch, match="was interrupted"):
            await unfinished.start()
        await unfinished.close()

        await copy_with_interruptions(source, topics, settings, rng)
        log = make_log(settings, SystemClock())
        await log.start()
        await assert_copied(source, topics, log, settings.topics())
        # From now on the broker gives the times.
        writer = await log.writer("gateway")
        began_ms = SystemClock().now_ns() // 1_000_000
        await writer.append(OutRecord(f"{prefix}{topics.events}", 0, RMS[0].encode(), b"new"))
        *_, last = (await records_of(log, settings.topics()))[topics.events][0]
        assert last.timestamp_ms >= began_ms - 60_000
        await log.close()
        again = _target(settings)
        with pytest.raises(TargetNotEmpty, match="exist at Kafka"):
            await again.start()
        await again.close()


@pytest.mark.kafka
async def test_what_was_just_copied_is_before_the_ends(kafka_bootstrap: str) -> None:
    """The scheduler's position is set there. (Kafka acknowledges a transaction before it ends it in each partition.)"""
    settings = kafka_settings(kafka_bootstrap, 12)
    async with a_source(0, 1) as (source, topics):
        reader = await source.reader(topics.requests, 0)
        request = (await reader.read(1, 0))[0]
        target = _target(settings)
        await target.start()
        try:
            for number in range(1, 31):
                everywhere = {partition: [request] for partition in range(settings.partitions)}
                await target.write(target.topics.requests, everywhere, {0: number})
                # (A marker takes a place, too.)
                assert await target.ends(target.topics.requests) == [2 * number] * settings.partitions
        finally:
            await target.close()


async def test_an_interrupted_copy_is_no_log(tmp_path: Path) -> None:
    settings = sqlite_settings(tmp_path, 3)
    async with a_source(1, 3) as (source, topics):
        target = SqliteTarget(settings, SystemClock())
        await target.start()
        with pytest.raises(Interrupted):
            await copy(source, topics, Broken(target, 3, before=False), GROUP, no_progress)  # type: ignore[arg-type]
        await target.close()
    assert not settings.sqlite_path.exists()


@pytest.mark.parametrize("place", ["before the older log is moved", "after it", "without an older log"])
async def test_a_copy_whose_end_was_interrupted_is_put_in_place_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    settings = sqlite_settings(tmp_path, 3)
    aside = tmp_path / "older.db"

    def make_way(kept: Sequence[Path]) -> None:
        assert settings.sqlite_path not in kept
        if place == "before the older log is moved":
            raise Interrupted
        if settings.sqlite_path.exists():
            settings.sqlite_path.rename(aside)
        raise Interrupted

    if place != "without an older log":
        older = make_log(settings, SystemClock())
        await older.start()
        await older.close()
    async with a_source(1, 3) as (source, topics):
        target = SqliteTarget(settings, SystemClock(), make_way)
        assert not target.finish_interrupted()
        await target.start()
        await copy(source, topics, target, GROUP, no_progress)
        with pytest.raises(Interrupted):
            await target.finish()
        await target.close()
        log = make_log(settings, SystemClock())
        with pytest.raises(LogBehind):
            await log.start()
        await log.close()
        settings.sqlite_path.unlink(missing_ok=True)
        assert SqliteTarget(settings, SystemClock()).finish_interrupted()
        log = make_log(settings, SystemClock())
        await log.start()
        await assert_copied(source, topics, log, settings.topics())
        await log.close()


async def test_records_that_come_meanwhile_are_refused_and_copied_by_the_next_run(tmp_path: Path) -> None:
    settings = sqlite_settings(tmp_path, 3)
    async with a_source(2, 3) as (source, topics):
        writer = await source.writer("gateway")
        partition = topics.partition_of(RMS[0])
        target = SqliteTarget(settings, SystemClock())
        await target.start()

        class Busy(Broken):
            async def write(
                self, topic: str, records: Mapping[int, Sequence[Record]], copied: Mapping[int, int]
            ) -> None:
                await target.write(topic, records, copied)
                await writer.append(OutRecord(topics.requests, partition, RMS[0].encode(), b"late"))

        with pytest.raises(SourceChanged, match=r"si\.requests\.v1: expected that no process of Muster runs"):
            await copy(source, topics, Busy(target, 0, before=False), GROUP, no_progress)  # type: ignore[arg-type]
        await copy(source, topics, target, GROUP, no_progress)
        await target.finish()
        await target.close()
        log = make_log(settings, SystemClock())
        await log.start()
        await assert_copied(source, topics, log, settings.topics())
        await log.close()


async def test_a_target_must_be_new_and_large_enough(tmp_path: Path) -> None:
    async with a_source(3, 3) as (source, topics):
        small = SqliteTarget(sqlite_settings(tmp_path / "small", 2), SystemClock())
        await small.start()
        with pytest.raises(TargetTooSmall, match="has 2 partitions: expected at least 3"):
            await copy(source, topics, small, GROUP, no_progress)
        await small.close()
    (tmp_path / "log.db").touch()
    with pytest.raises(TargetNotEmpty, match="exists already"):
        await SqliteTarget(sqlite_settings(tmp_path, 3), SystemClock()).start()
    running = make_log(sqlite_settings(tmp_path / "running", 3), SystemClock())
    await running.start()
    with pytest.raises(LogUnavailable, match="in use by another process"):
        await SqliteTarget(sqlite_settings(tmp_path / "running", 3), SystemClock()).start()
    await running.close()
