"""A log that fails at an unlucky moment: no task ends or leaks, and silence is not taken for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from in_virtual_time.test_rm_settings import say
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader, Record
from muster_bus.topics import Topics
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.feed import PartitionFeed
from muster_event_publisher.history.dead_letters import DeadLetters
from muster_event_publisher.history.exporter import ExportBackoff, Exporter, FlushPolicy
from muster_event_publisher.history.sink import LastEvent, SinkProgress
from muster_event_publisher.ring import Rings
from muster_event_publisher.rm_settings import RmSettings
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import INSTANCE, Feeder
from unit.publisher.memory_sink import MemorySink, MemoryTarget
from virtual.plugin import advance

TOPICS = Topics(partitions=1, derived=True)
TWO = Topics(partitions=2)


class Reader:
    """A reader with some answers of the test."""

    def __init__(self, reader: LogReader, partition: int) -> None:
        self._reader, self.partition, self.closed = reader, partition, False
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return self.answers.get(name) or getattr(self._reader, name)

    async def close(self) -> None:
        self.closed = True
        await self._reader.close()


class Troubled(MemoryLog):
    """A log that gives each new reader to the test before its first read."""

    made: list[Reader]
    prepare: Callable[[Reader], None]

    async def reader(self, topic: str, partition: int, start: int | None = None) -> LogReader:
        reader = Reader(await super().reader(topic, partition, start), partition)
        self.prepare(reader)
        self.made.append(reader)
        return reader  # type: ignore[return-value]


async def troubled(topics: Topics = TOPICS) -> Troubled:
    log = Troubled(topics.specs(), SystemClock())
    log.made, log.prepare = [], lambda reader: None
    await log.start()
    return log


async def test_a_partition_that_fails_at_start_leaves_no_reading_of_another_behind() -> None:
    log = await troubled(TWO)
    under_way = 0

    async def end_offset_fails() -> int:
        raise LogUnavailable("not now")

    async def end_offset_takes_time() -> int:
        nonlocal under_way
        under_way += 1
        await asyncio.sleep(0.02)
        under_way -= 1
        return 0

    def prepare(reader: Reader) -> None:
        reader.answers["end_offset"] = end_offset_fails if reader.partition == 0 else end_offset_takes_time

    log.prepare = prepare
    settings = RmSettings(log, TWO, PublisherSettings(), lambda rm_id: None)
    await settings.start()
    assert under_way == 0, "the reader must be idle before follow() uses it"
    assert len(settings.problems) == 1
    await settings.close()


async def exporting(log: Troubled, target: MemoryTarget) -> tuple[Exporter, asyncio.Task[None]]:
    feed = PartitionFeed(0, log, TOPICS.events, Rings(10), PublisherSettings())
    await feed.start()
    log.made.clear()
    exporter = Exporter(
        MemorySink(target), feed, log, TOPICS.events, FlushPolicy(1, 1, 0.01), ExportBackoff(0.001, 0.005),
        SystemClock(), DeadLetters(log, TOPICS),
    )  # fmt: skip
    return exporter, asyncio.create_task(exporter.run())


async def ended(exporter: Exporter, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await exporter.close()


async def test_an_exporter_that_begins_again_and_again_holds_one_reader() -> None:
    log = await troubled()
    await Feeder(log, TOPICS).events("rm", range(5))
    target, failures = MemoryTarget(), 3

    def prepare(reader: Reader) -> None:
        first_offset = reader.first_offset

        async def fails_at_first() -> int:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise LogUnavailable("not now")
            return int(await first_offset())

        reader.answers["first_offset"] = fails_at_first

    exporter, task = await _prepared(log, target, prepare)
    await advance()
    assert len(target.events) == 5
    await ended(exporter, task)
    assert failures < 0
    assert [reader.closed for reader in log.made] == [True] * len(log.made)


async def _prepared(
    log: Troubled, target: MemoryTarget, prepare: Callable[[Reader], None]
) -> tuple[Exporter, asyncio.Task[None]]:
    """Prepare the exporter's readers, not the follower's."""
    exporter, task = await exporting(log, target)
    log.prepare = prepare
    return exporter, task


@pytest.mark.parametrize("gone", [False, True])
async def test_silence_or_retention_at_the_last_event_does_not_make_it_another_log(gone: bool) -> None:
    log = await troubled()
    await Feeder(log, TOPICS).events("rm", range(5))
    was = SinkProgress(3, LastEvent(2, "rm", INSTANCE, 2))
    target, asked = MemoryTarget(progress={0: was}), 0
    forgotten = False

    def prepare(reader: Reader) -> None:
        read = reader.read

        async def silent_at_first(max_records: int, timeout_s: float) -> Sequence[Record]:
            nonlocal asked, forgotten
            asked += 1
            forgotten |= 0 not in target.progress
            if asked <= 3 and gone:
                raise OffsetOutOfRange(TOPICS.events, 0, 2, 3, 5)
            return () if asked <= 3 else await read(max_records, timeout_s)

        reader.answers["read"] = silent_at_first

    exporter, task = await _prepared(log, target, prepare)
    await advance()
    assert len(target.events) == 2
    await ended(exporter, task)
    assert asked > 3
    assert not forgotten
    assert sorted(event_id for _, _, event_id in target.events) == [3, 4]


async def test_records_deleted_while_the_rings_are_filled_are_left_out() -> None:
    log = await troubled()
    await Feeder(log, TOPICS).events("rm", range(9))

    def prepare(reader: Reader) -> None:
        read = reader.read

        async def retention_took_two(max_records: int, timeout_s: float) -> Sequence[Record]:
            if reader.position < 2:
                raise OffsetOutOfRange(TOPICS.events, 0, reader.position, 2, 9)
            records: Sequence[Record] = await read(max_records, timeout_s)
            return records

        reader.answers["read"] = retention_took_two

    log.prepare = prepare
    rings = Rings(100)
    feed = PartitionFeed(0, log, TOPICS.events, rings, PublisherSettings())
    await feed.start()
    ring = rings.get("rm")
    assert ring is not None
    assert (ring.lowest, ring.next_id) == (2, 9)
    await feed.close()


async def test_usage_waits_for_a_log_that_does_not_say_where_it_ends() -> None:
    log = await troubled()
    silent = True

    def prepare(reader: Reader) -> None:
        first_offset = reader.first_offset

        async def fails_at_first() -> int:
            if silent:
                raise LogUnavailable("not now")
            return int(await first_offset())

        reader.answers["first_offset"] = fails_at_first

    log.prepare = prepare
    usage = UsageRest(DeriveSettings(retry_min_s=0.001), log, TOPICS)
    await usage.start()
    waiting = asyncio.create_task(usage.wait())

    async def is_named() -> bool:
        return await usage.problems() == ["usage of partition 0 is not followed"]

    await advance()
    assert await is_named(), "the partition is named"
    assert not waiting.done()
    silent = False
    await advance()
    assert await usage.healthy(), "it is followed"
    assert not waiting.done()
    await usage.stop()
    await waiting


async def test_settings_whose_reading_was_cut_at_start_are_read_again() -> None:
    log = await troubled(TWO)
    partition = TWO.partition_of("rm")
    await say(log, "rm", {"event.ringBufferCapacity": "4"})
    cut = asyncio.Event()

    def prepare(reader: Reader) -> None:
        read = reader.read

        async def moves_and_is_late(max_records: int, timeout_s: float) -> Sequence[Record]:
            records: Sequence[Record] = await read(max_records, timeout_s)
            if reader.partition == partition and not cut.is_set():
                cut.set()
                await asyncio.Event().wait()
            return records

        reader.answers["read"] = moves_and_is_late

    log.prepare = prepare
    wanted = PublisherSettings(rm_settings_timeout_s=0.05, poll_s=0.01)
    settings = RmSettings(log, TWO, wanted, lambda rm_id: None)
    await settings.start()
    assert cut.is_set()
    assert settings.ring_capacity("rm") == wanted.ring_capacity
    following = asyncio.create_task(settings.follow(partition))
    await advance()
    assert settings.ring_capacity("rm") == 4
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await settings.close()
