"""Exporters: no event is lost or doubled, at any crash."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.clock import SystemClock
from muster_bus.log import LogReader, Record
from muster_event_publisher import metrics
from muster_event_publisher.event_runs import EventBatch
from muster_event_publisher.history.exporter import Exporter, FlushPolicy
from muster_event_publisher.history.pieces import pieces
from muster_event_publisher.history.sink import SinkProgress
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from prometheus_client import Gauge
from unit.publisher.feeding import INSTANCE, event, headers
from unit.publisher.memory_sink import MemorySink, MemoryTarget
from unit.publisher.running import TOPICS, Running, running, until_next
from virtual.plugin import advance

AT_ONCE = FlushPolicy(records=1, size_bytes=1, wait_s=0.001)
AT_STOP = FlushPolicy(records=10**9, size_bytes=10**12, wait_s=3600)
FAST_RETRY = {"retry_min_s": 0.001, "retry_max_s": 0.01}


def stored(target: MemoryTarget, instance: str = INSTANCE) -> dict[int, bytes]:
    return {event_id: value for (who, _, event_id), value in target.events.items() if who == instance}


def events(*ranges: range) -> dict[int, bytes]:
    return {n: event(n) for ids in ranges for n in ids}


class CountingSink(MemorySink):
    """Counts its input, so that doubles show even if the target hides them."""

    def __init__(self, target: MemoryTarget | None = None) -> None:
        super().__init__(target)
        self.given: list[int] = []

    async def write(self, batch: EventBatch) -> None:
        await super().write(batch)
        for run in batch.runs:
            self.given += range(run.first_id, run.last_id + 1)


@settings(max_examples=25)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(["crash", "stop"]), st.booleans()), min_size=1, max_size=6
    ),
    policy=st.sampled_from([AT_ONCE, AT_STOP, FlushPolicy(records=7, size_bytes=10**9, wait_s=3600)]),
    tail_records=st.sampled_from([0, 10, 1_000]),
)
def test_every_event_is_stored_once(
    rounds: list[tuple[int, str, bool]], policy: FlushPolicy, tail_records: int
) -> None:
    async def run() -> None:
        store, target, next_id = MemoryStore(), MemoryTarget(), 0
        for count, ending, down in rounds:
            sink = CountingSink(target)
            sink.down = down
            limits = {"stop_timeout_s": 0.2 if down else 60, "tail_records": tail_records, **FAST_RETRY}
            async with running(store=store, sinks=[(sink, policy)], **limits) as publisher:
                await publisher.service.start()
                for _ in range(count):
                    await publisher.feeder.events("rm", [next_id])
                    next_id += 1
                    await asyncio.sleep(0)
                if ending == "crash":
                    await publisher.service.abandon()
            assert sink.given == sorted(set(sink.given)), "a sink is given each event once, in order"
        async with running(store=store, sinks=[(MemorySink(target), policy)], **FAST_RETRY) as publisher:
            await publisher.service.start()
        assert stored(target) == events(range(next_id))

    asyncio.run(run())


async def test_stop_writes_what_waits() -> None:
    target = MemoryTarget()
    async with running(sinks=[(MemorySink(target), AT_STOP)]) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(500))
        await publisher.service.stop()
        assert stored(target) == events(range(500))
        await publisher.service.wait()


async def test_a_sink_that_is_away_is_waited_for_and_named() -> None:
    sink = CountingSink()
    async with running(sinks=[(sink, AT_ONCE)], tail_records=10, **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(5))
        await advance()
        assert len(sink.given) == 5
        sink.down = True
        for start in range(5, 300, 5):
            await publisher.feeder.events("rm", range(start, start + 5))
            await asyncio.sleep(0)

        async def is_named() -> bool:
            return await publisher.service.problems() == ["memory: it is down"]

        await advance()
        assert await is_named(), "the store is named"
        await until_next(publisher, "rm", 300)
        sink.down = False
        await advance()
        assert len(sink.given) == 300
        assert sink.given == list(range(300))
        await advance()
        assert await publisher.service.healthy()


async def test_two_sinks_do_not_wait_for_each_other() -> None:
    up, down = CountingSink(), CountingSink()
    down.down = True
    async with running(sinks=[(up, AT_ONCE), (down, AT_ONCE)], stop_timeout_s=0.1, **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(50))
        await advance()
        assert up.given == list(range(50))
        assert down.given == []


async def test_events_that_retention_took_are_counted_and_the_rest_goes_on() -> None:
    store, target = MemoryStore(), MemoryTarget()
    async with running(store=store, sinks=[(MemorySink(target), AT_ONCE)]) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(10))
    async with running(store=store, sinks=[]) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(10, 100))
    store.delete_before(TOPICS.events, TOPICS.partition_of("rm"), 40)
    before = metrics.EXPORT_MISSING.labels("memory")._value.get()
    async with running(store=store, sinks=[(MemorySink(target), AT_ONCE)]) as publisher:
        await publisher.service.start()
    assert stored(target) == events(range(10), range(40, 100))
    assert metrics.EXPORT_MISSING.labels("memory")._value.get() - before == 30


@pytest.mark.parametrize("length", [3, 10, 50])
async def test_another_log_is_exported_from_its_start(length: int) -> None:
    target = MemoryTarget()
    async with running(sinks=[(MemorySink(target), AT_ONCE)]) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(10))
    async with running(store=MemoryStore(), sinks=[(MemorySink(target), AT_ONCE)]) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(length), instance="another")
    assert stored(target) == events(range(10))
    assert stored(target, "another") == events(range(length))


async def test_shim_events_are_not_exported_and_do_not_hold_the_progress() -> None:
    target = MemoryTarget()
    async with running(sinks=[(MemorySink(target), AT_ONCE)]) as publisher:
        await publisher.service.start()
        await publisher.feeder.shim("rm", 3)
        await publisher.feeder.events("rm", range(2))
        await publisher.feeder.shim("rm", 3)
    assert stored(target) == events(range(2))


async def refill(publisher: Running) -> dict[str, tuple[int, int, int]]:
    await publisher.service.start()
    return {ring.rm_id: (ring.lowest, ring.next_id, len(ring)) for ring in publisher.service.rings.all()}


async def test_after_a_restart_rings_are_full_and_ids_go_on() -> None:
    store = MemoryStore()
    async with running(store=store) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("busy", range(3_000))
        await publisher.feeder.events("quiet", range(20))
        await publisher.feeder.events("busy", range(3_000, 6_000))
    async with running(store=store, ring_capacity=100) as publisher:
        rings = await refill(publisher)
        assert rings["busy"] == (5_900, 6_000, 100)
        missing = metrics.MISSING.labels("busy")._value.get()
        await publisher.feeder.events("busy", range(6_000, 6_010))
        await advance()
        assert publisher.service.rings.get("busy").next_id == 6_010  # type: ignore[union-attr]
        assert metrics.MISSING.labels("busy")._value.get() == missing
    async with running(store=store, ring_capacity=10_000) as publisher:
        assert await refill(publisher) == {"busy": (0, 6_010, 6_010), "quiet": (0, 20, 20)}


async def test_a_dead_follower_ends_the_service() -> None:
    async with running() as publisher:
        await publisher.service.start()
        await publisher.log.close()
        with pytest.raises(Exception, match="closed"):
            await asyncio.wait_for(publisher.service.wait(), 60)


# --- events that a store refuses ------------------------------------------------------------------------------------


async def letters(publisher: Running) -> list[Record]:
    found: list[Record] = []
    for partition in range(TOPICS.partitions):
        reader = await publisher.log.reader(TOPICS.dead_letters, partition)
        while reader.position < await reader.end_offset():
            found += await reader.read(1_000, 1)
    return found


class PieceSink(CountingSink):
    """Stores in pieces, so that a refused batch is stored in part."""

    async def write(self, batch: EventBatch) -> None:
        for piece in pieces(batch, 3):
            await super().write(piece)


@pytest.mark.parametrize("kind", [CountingSink, PieceSink])
@pytest.mark.parametrize("bad", [{0}, {99}, {50}, {1, 2, 3, 60, 61}, set(range(40, 56))])
async def test_refused_events_go_to_the_dead_letters_and_the_rest_is_stored(
    kind: type[CountingSink], bad: set[int]
) -> None:
    sink = kind()
    sink.refuse = lambda rm_id, event_id: event_id in bad
    store, counted = MemoryStore(), metrics.EXPORT_DEAD_LETTERS.labels("memory")._value.get()
    policy = FlushPolicy(records=100, size_bytes=10**9, wait_s=0.05)
    async with running(store=store, sinks=[(sink, policy)], refusals_max=2, **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(100))
        await advance()
        assert len(sink.given) == 100 - len(bad)
        assert sink.given == [n for n in range(100) if n not in bad]
        # Later events are not held up, and health is good again.
        await publisher.feeder.events("rm", range(100, 120))
        await advance()
        assert len(sink.given) == 120 - len(bad)
        await advance()
        assert sink.target.progress.get(TOPICS.partition_of("rm")) is not None
        assert await publisher.service.healthy()
        found = await letters(publisher)
    assert [record.value for record in found] == [event(n) for n in sorted(bad)]
    assert [dict(record.headers)["id"] for record in found] == [str(n).encode() for n in sorted(bad)]
    partition = TOPICS.partition_of("rm")
    for record, n in zip(found, sorted(bad), strict=True):
        told = dict(record.headers)
        assert told["origin"] == f"{TOPICS.events}/{partition}/{n}".encode()
        assert told["error"] == b"store memory: there is an event that it does not like"
        assert (record.key, told["rm"], told["instance"]) == (b"rm", b"rm", INSTANCE.encode())
    assert metrics.EXPORT_DEAD_LETTERS.labels("memory")._value.get() - counted == len(bad)


async def test_a_store_that_refuses_everything_loses_little_and_is_named() -> None:
    sink = CountingSink()
    sink.refuse = lambda rm_id, event_id: True
    limits = {"refusals_max": 1, "dead_letters_in_a_row_max": 7, "stop_timeout_s": 0.1, **FAST_RETRY}
    async with running(sinks=[(sink, AT_ONCE)], **limits) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(50))
        await advance()
        assert any("none of the last 7 events" in (e.problem or "") for e in exporters(publisher))
        assert len(await letters(publisher)) == 7
        assert [problem for problem in await publisher.service.problems() if "does not like" in problem]
        # An operator acts: no other event is lost.
        sink.refuse = lambda rm_id, event_id: False
        await advance()
        assert sink.given == list(range(7, 50))
        assert await publisher.service.healthy()


def exporters(publisher: Running) -> list[Exporter]:
    return publisher.service._exports.exporters


class DefectiveSink(CountingSink):
    """Raises an error that a sink should not raise."""

    def __init__(self, target: MemoryTarget | None = None) -> None:
        super().__init__(target)
        self.defects = {"start": 2, "progress": 2}

    async def start(self) -> None:
        self._trip("start")

    async def progress(self, partition: int) -> SinkProgress | None:
        self._trip("progress")
        return await super().progress(partition)

    async def write(self, batch: EventBatch) -> None:
        if any(n == 3 for run in batch.runs for n in range(run.first_id, run.last_id + 1)):
            raise KeyError("s3cret of the store")
        await super().write(batch)

    def _trip(self, what: str) -> None:
        self.defects[what] -= 1
        if self.defects[what] >= 0:
            raise RuntimeError("s3cret of the store")


async def test_a_defective_store_does_not_end_the_service_or_others() -> None:
    bad, good = DefectiveSink(), CountingSink()
    async with running(sinks=[(bad, AT_STOP), (good, AT_ONCE)], refusals_max=2, **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(10))
        await advance()
        assert good.given == list(range(10))
        for exporter in exporters(publisher):
            exporter.finish()
        await advance()
        assert bad.given == [n for n in range(10) if n != 3]
        found = await letters(publisher)
    assert [record.value for record in found] == [event(3)]
    assert b"KeyError in write (test_exporter.py:" in dict(found[0].headers)["error"]
    assert b"s3cret" not in dict(found[0].headers)["error"]


async def test_the_lag_is_given_in_offsets_and_seconds() -> None:
    sink = CountingSink()
    partition = str(TOPICS.partition_of("rm"))
    offsets = metrics.EXPORT_LAG.labels("memory", partition)
    seconds = metrics.EXPORT_LAG_SECONDS.labels("memory", partition)

    def value(gauge: Gauge) -> float:
        return gauge.collect()[0].samples[0].value

    retries = metrics.EXPORT_RETRIES.labels("memory")._value.get()
    async with running(sinks=[(sink, AT_ONCE)], stop_timeout_s=0.1, **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(1))
        await advance()
        assert sink.given == [0]
        sink.down = True
        ages = [(event(n, at_ns=SystemClock().now_ns() - 90 * 10**9), headers("rm", n)) for n in range(1, 5)]
        await publisher.feeder.write("rm", ages)
        await advance()
        assert value(offsets) == 4
        assert 90 <= value(seconds) < 1_000
        await advance()
        assert metrics.EXPORT_RETRIES.labels("memory")._value.get() > retries + 2
        sink.down = False
        await advance()
        assert value(offsets) == 0
        assert value(seconds) == 0


async def test_another_log_that_fails_half_way_loses_nothing() -> None:
    """The progress in the former log does not show which events of the new one are stored."""
    target = MemoryTarget()
    async with running(sinks=[(MemorySink(target), AT_ONCE)]) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(10))
    sink = MemorySink(target)
    async with running(store=MemoryStore(), sinks=[(sink, AT_STOP)], **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(30), instance="another")
        fails = iter([True, True, False])
        sink.refuse = lambda rm_id, event_id: next(fails, False)
    assert stored(target, "another") == events(range(30))


class Dozing:
    """A reader whose every other read is empty, as with a slow broker."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self._reads = reader, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        self._reads += 1
        await asyncio.sleep(0.001)
        return await self._reader.read(max_records, timeout_s) if self._reads % 2 == 0 else ()


class SlowLog(MemoryLog):
    async def reader(self, topic: str, partition: int, start: int | None = None) -> LogReader:
        return Dozing(await super().reader(topic, partition, start))  # type: ignore[return-value]


async def test_a_log_that_answers_late_does_not_leave_the_exporter_waiting() -> None:
    store, target = MemoryStore(), MemoryTarget()
    async with running(store=store) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(300))
    log = SlowLog(TOPICS.specs(), SystemClock(), store=store)
    await log.start()
    plan = (MemorySink(target), FlushPolicy(records=20, size_bytes=10**9, wait_s=0.01))
    service = PublisherService(
        PublisherSettings(http_address="", tail_records=0), log, TOPICS, SystemClock(), sinks=[plan]
    )
    await service.start()
    await advance()
    assert stored(target) == events(range(300))
    await service.stop()
    await log.close()
