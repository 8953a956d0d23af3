"""How far events are shown: the state names the ids that a stamp goes up to, and the rings must have them."""

from __future__ import annotations

import asyncio
from typing import Any

from muster_bus.errors import LogUnavailable
from muster_bus.log import Record
from muster_event_publisher.derive.usage_table import UsageTable
from muster_event_publisher.ring import EventRing, Rings, Signal
from muster_event_publisher.shown import ShownEvents, ShownUsage
from muster_proto.si.v1.si_pb2 import EventRecord
from muster_si.positions import Stamp
from waiting import eventually

RM = "rm1"


class Feed:
    """A feed that the test moves.

    :ivar at_end: whether it has all that is visible; None: the log does not answer.
    """

    def __init__(self) -> None:
        self.changed = Signal()
        self.at_end: bool | None = False
        self.asked = 0

    async def has_all(self) -> bool:
        self.asked += 1
        if self.at_end is None:
            raise LogUnavailable("away")
        return self.at_end


class Bench:
    def __init__(self) -> None:
        self.rings, self.feed = Rings(100), Feed()
        feed: Any = self.feed
        self.shown = ShownEvents(feed, self.rings)

    def state(self, before: int, next_id: int, instance: str = "i") -> None:
        self.shown.note(RM, Stamp(before), instance, next_id)
        self.shown.was_read()

    def events(self, first: int, count: int, instance: str = "i") -> None:
        self.rings.ring_for(RM, instance).append(first, [b""] * count)
        self.feed.changed.notify()


async def test_events_are_shown_when_the_rings_have_what_the_state_names() -> None:
    bench = Bench()
    waiting = asyncio.create_task(bench.shown.wait_included(Stamp(5)))
    bench.state(4, 2)
    bench.events(0, 2)
    await asyncio.sleep(0.01)
    assert bench.shown.includes(Stamp(4))
    bench.state(5, 4)
    assert not bench.shown.includes(Stamp(5))
    bench.events(2, 1)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    bench.events(3, 1)
    await waiting
    assert bench.shown.includes(Stamp(5))
    assert bench.feed.asked == 0


async def test_events_may_come_before_their_state() -> None:
    bench = Bench()
    bench.events(0, 9)
    assert not bench.shown.includes(Stamp(5))
    bench.state(6, 3)
    assert bench.shown.includes(Stamp(5))


async def test_another_instance_has_ids_of_its_own() -> None:
    bench = Bench()
    bench.events(0, 9)
    bench.state(6, 1, "later")
    assert not bench.shown.includes(Stamp(6))
    bench.events(0, 1, "later")
    assert bench.shown.includes(Stamp(6))


async def test_events_that_never_come_are_not_waited_for_at_the_end_of_the_log() -> None:
    """They are in a damaged part, or retention deleted them."""
    bench = Bench()
    bench.state(5, 4)
    bench.feed.at_end = None
    waiting = asyncio.create_task(bench.shown.wait_included(Stamp(5)))
    await eventually(lambda: bench.feed.asked > 0)
    assert not waiting.done()
    bench.feed.at_end = False
    asked = bench.feed.asked
    await eventually(lambda: bench.feed.asked > asked)
    assert not waiting.done()
    bench.feed.at_end = True
    await waiting


async def test_an_rm_without_events_or_that_is_forgotten_is_not_waited_for() -> None:
    bench = Bench()
    bench.state(5, 0)
    assert bench.shown.includes(Stamp(5))
    bench.state(6, 3)
    bench.shown.drop(RM)
    bench.shown.note_stamp(Stamp(7))
    assert bench.shown.includes(Stamp(7))


async def test_a_read_that_waits_wakes_the_reader_of_the_state() -> None:
    bench = Bench()
    woken = asyncio.create_task(bench.shown.needed.wait(None))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(bench.shown.wait_included(Stamp(1)))
    assert await woken
    bench.state(1, 0)
    await waiting


async def test_what_comes_while_a_read_waits_is_not_waited_for() -> None:
    bench = Bench()
    bench.state(5, 4)
    bench.events(0, 2)
    waiting = asyncio.create_task(bench.shown.wait_included(Stamp(5)))
    await asyncio.sleep(0)
    bench.state(9, 8)
    bench.events(2, 2)
    await waiting
    assert bench.shown.includes(Stamp(5))
    assert not bench.shown.includes(Stamp(6))


class Counting:
    """A :class:`muster_event_publisher.shown.Derived` that the test moves."""

    def __init__(self) -> None:
        self.changed = Signal()
        self.counted = -1

    def includes(self, ring: EventRing, instance: str, event_id: int) -> bool:
        return self.counted >= event_id

    def count(self, event_id: int) -> None:
        self.counted = event_id
        self.changed.notify()


async def test_usage_is_shown_when_that_of_the_events_is() -> None:
    bench, counting = Bench(), Counting()
    usage = ShownUsage(bench.shown, bench.rings.all, counting)
    bench.state(5, 4)
    bench.events(0, 4)
    counting.count(2)
    assert not usage.includes(Stamp(5))
    waiting = asyncio.create_task(usage.wait_included(Stamp(5)))
    await asyncio.sleep(0)
    bench.state(6, 6)
    bench.events(4, 2)
    assert not waiting.done()
    counting.count(3)
    await waiting
    assert usage.includes(Stamp(5))
    assert not usage.includes(Stamp(6))


def known(table: UsageTable, instance: str, event_id: int, *, missing_before: bool = False, at_ms: int = 9) -> None:
    value = b'{"rm":"rm1","kind":"rm","known_until_ns":5,"window_s":60}'
    headers = (("id", b"%d" % event_id), ("instance", instance.encode()))
    table.fold(Record("si.usage.v1", 0, 0, at_ms, b"rm1/rm/-", value, headers), missing_before)


def test_usage_has_the_events_of_an_instance_up_to_its_note() -> None:
    table, ring = UsageTable(10, 10), EventRing(RM, "i", 10)
    assert not table.includes(ring, "i", 0)
    known(table, "i", 4)
    known(table, "i", 3)  # a deriver that restarted writes it again
    assert table.includes(ring, "i", 4)
    assert not table.includes(ring, "i", 5)
    assert not table.includes(ring, "later", 0)
    known(table, "later", 0)
    assert table.includes(ring, "i", 5), "a later instance is counted: the events before it are, too"


def test_an_rm_whose_note_is_older_than_what_was_read_is_not_waited_for() -> None:
    table = UsageTable(10, 10)
    known(table, "i", 4, missing_before=True, at_ms=1_000)
    old, new = EventRing("old", "i", 10), EventRing("new", "i", 10)
    for ring, at_ms in ((old, 999), (new, 1_001)):
        ring.append(0, [EventRecord(timestampNano=at_ms * 1_000_000).SerializeToString()])
    assert table.includes(old, "i", 0)
    assert not table.includes(new, "i", 0)
