"""Event feeds of many streams on one partition: each gets every event once, and at the end they share one reader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable
from muster_bus.log import LogReader, LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_gateway import event_feed
from muster_gateway.event_feed import EventFeed, SubscribedEvents
from muster_gateway.event_tail import EventTail
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1.si_pb2 import EventRecord
from virtual.plugin import advance
from waiting import eventually

TOPICS = Topics(partitions=1)
PATIENCE_S = 60.0


class CountingLog:
    """A log that counts its open readers, and may be away or break once."""

    def __init__(self, log: MemoryLog) -> None:
        self._log, self.open, self.away, self.broken = log, 0, False, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def reader(self, topic: str, partition: int, start: int | None = None) -> LogReader:
        reader = await self._log.reader(topic, partition, start)
        close, read = reader.close, reader.read
        self.open += 1

        async def counted() -> None:
            self.open -= 1
            await close()

        async def there(count: int, timeout_s: float) -> Any:
            records = await read(count, timeout_s) if not self.away else ()
            if self.away:
                reader.seek(reader.position - len(records))
                raise LogUnavailable("away")
            if self.broken:
                self.broken = False
                raise RuntimeError("a defect")
            return records

        reader.close, reader.read = counted, there  # type: ignore[method-assign]
        return reader


@dataclass
class World:
    log: CountingLog
    writer: LogWriter
    tail: EventTail
    next_ids: dict[str, int] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    feeds: list[EventFeed] = field(default_factory=list)

    async def happen(self, rm_id: str, count: int = 1) -> None:
        for _ in range(count):
            number = self.next_ids.get(rm_id, 0)
            self.next_ids[rm_id] = number + 1
            value = EventRecord(type=EventRecord.APP, objectID=f"{rm_id}-{number}").SerializeToString()
            headers = (("id", b"%d" % number), ("tracking", b"1"))
            await self.writer.append(OutRecord(TOPICS.events, 0, rm_id.encode(), value, headers))

    async def feed(self, rm_id: str, after: int | None = None) -> EventFeed:
        bus: Any = self.log
        feed = EventFeed(bus, TOPICS, self.tail, rm_id, SubscribedEvents(after), lambda: None, 5.0, 0.05)
        await feed.start()
        self.tasks += [asyncio.create_task(feed.run()), asyncio.create_task(feed.push())]
        self.feeds.append(feed)
        return feed


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    counting = CountingLog(log)
    bus: Any = counting
    it = World(counting, await log.writer("w"), EventTail(bus, TOPICS.events, 0))
    yield it
    for task in it.tasks:
        task.cancel()
    await asyncio.gather(*it.tasks, return_exceptions=True)
    for feed in it.feeds:
        await feed.close()
    await advance()
    assert counting.open == 0
    await log.close()


def drained(feed: EventFeed) -> list[int]:
    ids: list[int] = []
    while (batch := feed.next_batch()) is not None:
        ids += [event.id for event in callbacks_pb2.ToResourceManager.FromString(batch).events.events]
    return ids


async def test_many_streams_share_one_reader_once_they_have_caught_up() -> None:
    async with world() as it:
        await it.happen("a", 3_000)
        await it.happen("b", 10)
        feeds = [await it.feed("a"), await it.feed("a", after=0), await it.feed("b", after=3), await it.feed("c")]
        got: list[list[int]] = [[] for _ in feeds]

        def caught_up() -> bool:
            for ids, feed in zip(got, feeds, strict=True):
                ids += drained(feed)
            return it.log.open == 1 and len(got[1]) == 2_999

        await eventually(caught_up, "all are up to date")
        assert got == [[], list(range(1, 3_000)), [4, 5, 6, 7, 8, 9], []]
        for rm_id in ("a", "b", "c"):
            await it.happen(rm_id)
        await advance()
        assert all(feed._waiting for feed in feeds)
        assert [drained(feed) for feed in feeds] == [[3_000], [3_000], [10], [0]]
        assert it.log.open == 1
        # the last one that leaves closes it
        for feed in feeds:
            await feed.close()
        await advance()
        assert it.log.open == 0


@pytest.mark.parametrize("seed", range(5))
async def test_each_feed_gets_each_event_once_even_beside_slow_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(event_feed, "_WAITING_EVENTS", 20)
    monkeypatch.setattr(event_feed, "_READ_RECORDS", 7)
    monkeypatch.setattr("muster_gateway.event_tail._READ_RECORDS", 5)
    async with world() as it:
        await it.happen("a", chance.randint(1, 60))
        await it.happen("b", chance.randint(1, 60))
        readers: list[tuple[str, EventFeed, list[int], float]] = []
        for rm_id, after in [("a", 0), ("a", 0), ("b", 0), ("b", 0)]:
            readers.append((rm_id, await it.feed(rm_id, after), [], chance.choice([0.9, 0.5, 0.1])))
        for _ in range(150):
            await it.happen(chance.choice("ab"), chance.randint(1, 8))
            for _, feed, ids, likely in readers:
                if chance.random() < likely:
                    ids += drained(feed)
            await asyncio.sleep(chance.choice([0, 0, 0.001]))

        def done() -> bool:
            for _, feed, ids, _ in readers:
                ids += drained(feed)
            return all(len(ids) == it.next_ids[rm_id] - 1 for rm_id, _, ids, _ in readers) and it.log.open == 1

        await eventually(done, "each has all of its events")
        for rm_id, _, ids, _ in readers:
            assert ids == list(range(1, it.next_ids[rm_id]))


async def test_a_log_that_is_away_for_a_while_costs_nothing() -> None:
    async with world() as it:
        feeds = [await it.feed("a"), await it.feed("b")]
        await advance()
        assert it.log.open == 1
        it.log.away = True
        await it.happen("a", 5)
        await it.happen("b", 5)
        late = await it.feed("a", after=1)
        await asyncio.sleep(0.1)
        it.log.away = False
        await advance()
        assert [len(feed._waiting) for feed in (*feeds, late)] == [5, 5, 3]
        assert [drained(feed) for feed in (*feeds, late)] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [2, 3, 4]]


async def test_a_stream_that_fails_at_an_event_reads_on_by_itself_and_the_others_lose_nothing() -> None:
    async with world() as it:
        feeds = [await it.feed("a"), await it.feed("b")]
        await advance()
        assert it.log.open == 1
        left: list[int] = []

        class Broken:
            key = b"c"

            def offer(self, record: Any) -> bool:
                raise RuntimeError("a defect")

            def on_detached(self, offset: int) -> None:
                left.append(offset)

        assert it.tail.subscribe(Broken(), it.tail._position or 0, at_end=True)
        # One read returns all of these.
        it.log.away = True
        for rm_id in ("a", "c", "a", "c", "b"):
            await it.happen(rm_id)
        it.log.away = False
        await advance()
        assert [len(feed._waiting) for feed in feeds] == [2, 1]
        assert left == [1]
        assert it.log.open == 1


async def test_a_log_that_fails_for_good_leaves_each_to_itself() -> None:
    async with world() as it:
        feeds = [await it.feed("a"), await it.feed("b")]
        await advance()
        assert it.log.open == 1
        task = it.tail._task
        assert task is not None
        it.log.broken = True
        await it.happen("a")
        await advance()
        assert task.done()
        await it.happen("b", 2)
        await advance()
        assert [len(feed._waiting) for feed in feeds] == [1, 2]
