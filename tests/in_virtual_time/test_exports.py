"""Which exporters run: those of the partitions that the group gives to a publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import Clock, SystemClock
from muster_bus.membership import Assignment, GroupTerms
from muster_bus.topics import Topics
from muster_event_publisher.history.exporter import FlushPolicy
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import INSTANCE, Feeder
from unit.publisher.memory_sink import MemorySink, MemoryTarget
from virtual.plugin import advance

TOPICS = Topics(partitions=3)
RMS = [next(f"rm-{n}" for n in range(100) if TOPICS.partition_of(f"rm-{n}") == partition) for partition in range(3)]
AT_ONCE = FlushPolicy(records=1, size_bytes=1, wait_s=0.001)
AT_STOP = FlushPolicy(records=10**9, size_bytes=10**12, wait_s=3600)


class Given:
    """A membership whose shares the test gives."""

    def __init__(self, terms: GroupTerms) -> None:
        self.terms = terms
        self.assignment: Assignment | None = None
        self.started = self.closed = False
        self._changed = asyncio.Event()

    def give(self, *owned: int, members: int = 2) -> None:
        generation = self.assignment.generation + 1 if self.assignment is not None else 1
        self.assignment = Assignment(generation, frozenset(owned), members=members)
        self._changed.set()

    async def start(self) -> None:
        self.started = True

    async def changed(self, after: Assignment | None) -> Assignment:
        while self.assignment is None or self.assignment is after:
            self._changed.clear()
            await self._changed.wait()
        return self.assignment

    def report_warm(self, warm: Collection[int]) -> None: ...

    def rejoin(self) -> None: ...

    def retire(self) -> None: ...

    def error_text(self) -> str:
        return "" if self.assignment is not None else "group event-publisher: it has not joined yet"

    async def close(self) -> None:
        self.closed = True


class GroupedLog(MemoryLog):
    """A log on which publishers share exports.

    :ivar members: in the order of their making.
    """

    members: list[Given]

    def membership(self, terms: GroupTerms, clock: Clock) -> Given:
        self.members.append(Given(terms))
        return self.members[-1]


class WatchedSink(MemorySink):
    """Notes what it is given, and which partitions it lets go."""

    def __init__(self, target: MemoryTarget | None = None) -> None:
        super().__init__(target)
        self.given: list[tuple[str, int]] = []
        self.released: list[int] = []

    async def write(self, batch: Any) -> None:
        await super().write(batch)
        self.given += [(run.rm_id, number) for run in batch.runs for number in range(run.first_id, run.last_id + 1)]

    async def release(self, partition: int) -> None:
        self.released.append(partition)


class World:
    """Publishers on one log, with sinks of one target."""

    def __init__(self, log: GroupedLog, policy: FlushPolicy = AT_ONCE, publishers: int = 2, **settings: Any) -> None:
        self.target = MemoryTarget()
        self.sinks = [WatchedSink(self.target) for _ in range(publishers)]
        wanted = PublisherSettings(http_address="", retry_min_s=0.001, retry_max_s=0.01, **settings)
        self.services = [
            PublisherService(wanted, log, TOPICS, SystemClock(), sinks=[(sink, policy)]) for sink in self.sinks
        ]
        self.members, self.feeder = log.members, Feeder(log, TOPICS)
        self.next_id = 0

    async def feed(self, count: int = 5) -> None:
        for rm_id in RMS:
            await self.feeder.events(rm_id, range(self.next_id, self.next_id + count))
        self.next_id += count

    def stored(self) -> bool:
        expected = {(INSTANCE, rm_id, number) for rm_id in RMS for number in range(self.next_id)}
        return self.target.events.keys() == expected

    def exports(self) -> list[Any]:
        return [service.facts()["event-publisher"] for service in self.services]


@pytest.fixture
async def log() -> Any:
    log = GroupedLog(TOPICS.specs(), SystemClock())
    log.members = []
    await log.start()
    yield log
    await log.close()


async def test_partitions_move_and_each_event_is_given_once(log: GroupedLog) -> None:
    world = World(log)
    first, second = world.members
    for service in world.services:
        await service.start()
    assert first.terms.topic == TOPICS.events
    assert first.terms.standbys_max == 0
    for mine, others in (((0, 1, 2), ()), ((0,), (1, 2)), ((1,), (0, 2)), ((), (0, 1, 2)), ((0, 2), (1,))):
        first.give(*mine)
        second.give(*others)
        expected = [{"exports": list(each), "publishers": 2} for each in (mine, others)]
        await advance()
        assert world.exports() == expected
        await world.feed()
        await advance()
        assert world.stored()
    for service in world.services:
        assert await service.healthy()
        await service.stop()
    given = [each for sink in world.sinks for each in sink.given]
    assert sorted(given) == sorted((rm_id, number) for rm_id in RMS for number in range(world.next_id))
    assert set(world.sinks[0].released) == {0, 1, 2}
    assert first.closed
    assert second.closed


async def test_a_share_that_is_given_up_leaves_what_waits_to_the_next_one(log: GroupedLog) -> None:
    world = World(log, AT_STOP)
    first, second = world.members
    for service in world.services:
        await service.start()
    first.give(0, 1, 2)
    second.give()
    await advance()
    assert world.exports()[0]["exports"] == [0, 1, 2]
    await world.feed()
    assert world.sinks[0].given == []
    first.give()
    second.give(0, 1, 2)
    await advance()
    assert world.exports() == [{"exports": [], "publishers": 2}, {"exports": [0, 1, 2], "publishers": 2}]
    for service in world.services:
        await service.stop()
    assert world.stored()
    assert world.sinks[0].given == []


async def test_a_publisher_that_is_stopped_before_its_share_comes_exports_it(log: GroupedLog) -> None:
    world = World(log, publishers=1)
    (service,), (member,) = world.services, world.members
    await service.start()
    await world.feed()
    assert await service.problems() == ["group event-publisher: it has not joined yet"]
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    member.give(0, 1, 2, members=1)
    await stopping
    assert world.stored()


async def test_without_a_group_a_publisher_exports_everything(log: GroupedLog) -> None:
    world = World(log, publishers=1, group="")
    assert world.members == []
    (service,) = world.services
    await service.start()
    assert world.exports() == [{"exports": [0, 1, 2], "publishers": 1}]
    await world.feed()
    await service.stop()
    assert world.stored()


async def test_a_publisher_without_stores_is_no_member(log: GroupedLog) -> None:
    service = PublisherService(PublisherSettings(http_address=""), log, TOPICS, SystemClock(), sinks=[])
    (member,) = log.members
    await service.start()
    assert not member.started
    assert service.facts() == {}
    assert await service.healthy()
    await service.stop()
