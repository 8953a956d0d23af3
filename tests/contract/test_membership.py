"""The contract of memberships (``muster_bus.membership``): Kafka's own group protocol, the group of a log in memory,
and the group of one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from integration.takeover_rig import kafka_settings, started
from muster_bus.backends.kafka import KafkaLog
from muster_bus.backends.kafka_membership import KafkaMembership
from muster_bus.backends.memory import MemoryStore
from muster_bus.backends.memory_group import MemoryGroups, MemoryMembership, SharedMemoryLog
from muster_bus.clock import SystemClock
from muster_bus.membership import FixedMembership, GroupLog, GroupTerms, Membership
from muster_bus.settings import LogSettings
from waiting import eventually

PARTITIONS = 6
CLOCK = SystemClock()


LOGS = ["memory", pytest.param("kafka", marks=pytest.mark.kafka)]


@asynccontextmanager
async def on_kafka(bootstrap: str) -> AsyncIterator[KafkaLog]:
    settings = kafka_settings(bootstrap, "membership").model_copy(update={"partitions": PARTITIONS})
    async with started(settings) as log:
        yield log


@pytest.fixture
async def kafka_bus(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    async with on_kafka(kafka_bootstrap) as log:
        yield log


@pytest.fixture(params=LOGS)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[GroupLog]:
    if request.param == "kafka":
        async with on_kafka(request.getfixturevalue("kafka_bootstrap")) as log:
            yield log
        return
    topics = LogSettings(backend="memory", partitions=PARTITIONS).topics()
    in_memory = SharedMemoryLog(topics.specs(), CLOCK, MemoryStore(), MemoryGroups())
    await in_memory.start()
    yield in_memory
    await in_memory.close()


def member(bus: GroupLog, standbys_max: int = 16, *, session_s: float = 30.0) -> Membership:
    """(A session that may last, unless a test waits for its end: no busy machine drops a member.)"""
    topic = bus.settings.topics().requests if isinstance(bus, KafkaLog) else "si.requests.v1"
    return bus.membership(GroupTerms("scheduler", topic, PARTITIONS, standbys_max, session_s, 0.1), CLOCK)


def silence(one: Membership) -> Callable[[], None]:
    """Lets a member send nothing, as that of a paused process. Returns what ends that."""
    if isinstance(one, MemoryMembership):
        one.silence()
        return one.speak
    assert isinstance(one, KafkaMembership)
    assert one._loop is not None
    held = threading.Event()
    one._loop.call_soon_threadsafe(held.wait, 60)
    return held.set


def shared(members: Sequence[Membership]) -> bool:
    """Each partition has one owner, all know of each other, and each follows partitions of others only."""
    shares = [each.assignment for each in members]
    if any(share is None or share.members != len(members) for share in shares):
        return False
    found = [share for share in shares if share is not None]
    owned = sorted(partition for share in found for partition in share.owned)
    return owned == list(range(PARTITIONS)) and not any(share.owned & share.standbys for share in found)


def owned(one: Membership) -> frozenset[int]:
    assert one.assignment is not None
    return one.assignment.owned


def standbys(one: Membership) -> frozenset[int]:
    assert one.assignment is not None
    return one.assignment.standbys


async def warmed(members: Sequence[Membership]) -> None:
    """Every standby says that it is warm until nothing moves any more."""

    def settled() -> bool:
        for each in members:
            each.report_warm(standbys(each))
        return shared(members) and not any(each.assignment and each.assignment.moving for each in members)

    await eventually(settled)


async def test_partitions_by_hand_are_all_of_a_group_of_one() -> None:
    given = FixedMembership([0, 2])
    await given.start()
    share = await given.changed(None)
    assert share.owned == {0, 2}
    assert not share.standbys
    assert share.members == 1
    given.rejoin()
    given.retire()
    waiting = asyncio.ensure_future(given.changed(share))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    assert given.error_text() == ""
    await given.close()


async def test_members_come_and_go_and_only_what_must_move_moves(bus: GroupLog) -> None:
    async with AsyncExitStack() as stack:
        a, b, c = (member(bus) for _ in range(3))
        for each in (a, b, c):
            stack.push_async_callback(each.close)
        # 1 alone: all partitions, and nobody to stand by for
        await a.start()
        share = await a.changed(None)
        assert share.owned == frozenset(range(PARTITIONS))
        assert share.standbys == frozenset()
        # 2 a second one follows first, and gets its half when it is warm
        await b.start()
        await eventually(lambda: shared([a, b]))
        assert owned(a) == frozenset(range(PARTITIONS))
        await eventually(lambda: len(b.assignment.moving if b.assignment else ()) == 3)
        moving = b.assignment.moving if b.assignment else frozenset()
        await warmed([a, b])
        assert owned(b) == moving
        await eventually(lambda: standbys(a) == owned(b) and standbys(b) == owned(a))
        # 3 a third one takes two, from whoever has most
        before = {a: owned(a), b: owned(b)}
        await c.start()
        await eventually(lambda: shared([a, b, c]))
        await warmed([a, b, c])
        assert sorted(map(len, map(owned, (a, b, c)))) == [2, 2, 2]
        assert all(owned(each) < before[each] for each in (a, b))
        # 4 one retires: the standbys that follow its partitions get them; it keeps nothing
        followers = {partition: each for each in (a, b) for partition in standbys(each) & owned(c)}
        goes = owned(c)
        for each in (a, b, c):
            each.report_warm(standbys(each))
        c.retire()
        await eventually(lambda: not owned(c) and shared([a, b, c]))
        assert all(partition in owned(followers[partition]) for partition in goes if partition in followers)
        await c.close()
        await eventually(lambda: shared([a, b]))
        # 5 the last one keeps all, even if it retires
        await b.close()
        await eventually(lambda: shared([a]))
        a.retire()
        generation = a.assignment.generation if a.assignment else 0
        await eventually(lambda: a.assignment is not None and a.assignment.generation > generation)
        assert owned(a) == frozenset(range(PARTITIONS))


async def test_a_silent_member_is_dropped_and_comes_back_without_taking_anything(bus: GroupLog) -> None:
    async with AsyncExitStack() as stack:
        a, b = (member(bus, session_s=1.5) for _ in range(2))
        for each in (a, b):
            stack.push_async_callback(each.close)
        await a.start()
        await b.start()
        await eventually(lambda: shared([a, b]))
        await warmed([a, b])
        was = owned(a)
        speak = silence(a)
        await eventually(lambda: owned(b) == frozenset(range(PARTITIONS)))
        assert owned(a) == was  # it does not know
        speak()
        await eventually(lambda: shared([a, b]))
        await warmed([a, b])
        assert len(owned(a)) == len(owned(b)) == PARTITIONS // 2


async def test_without_standbys_partitions_move_at_once(bus: GroupLog) -> None:
    async with AsyncExitStack() as stack:
        a, b = (member(bus, standbys_max=0) for _ in range(2))
        for each in (a, b):
            stack.push_async_callback(each.close)
            await each.start()
        await eventually(lambda: shared([a, b]) and len(owned(a)) == len(owned(b)))
        assert not standbys(a)
        assert not standbys(b)


@pytest.mark.kafka
async def test_a_member_takes_the_shortest_session_that_any_broker_allows(kafka_bus: KafkaLog) -> None:
    topic = kafka_bus.settings.topics().requests
    one = kafka_bus.membership(
        GroupTerms("scheduler", topic, PARTITIONS, 16, 0.1, 0.05), CLOCK
    )  # the broker refuses 0.1 s
    async with AsyncExitStack() as stack:
        stack.push_async_callback(one.close)
        await one.start()
        await eventually(lambda: shared([one]))
