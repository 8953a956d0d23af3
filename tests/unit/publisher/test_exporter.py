"""Exporters: nothing lost, nothing doubled, whatever dies when."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from muster_bus.backends.memory import MemoryStore
from muster_event_publisher import metrics
from muster_event_publisher.events import EventBatch
from muster_event_publisher.history.exporter import FlushPolicy
from muster_event_publisher.history.memory import MemorySink, MemoryTarget
from unit.publisher.feeding import INSTANCE, event
from unit.publisher.running import TOPICS, Running, eventually, running

AT_ONCE = FlushPolicy(records=1, size_bytes=1, wait_s=0.001)
AT_STOP = FlushPolicy(records=10**9, size_bytes=10**12, wait_s=3600)
FAST_RETRY = {"retry_min_s": 0.001, "retry_max_s": 0.01}


def stored(target: MemoryTarget, instance: str = INSTANCE) -> dict[int, bytes]:
    return {event_id: value for (who, _, event_id), value in target.events.items() if who == instance}


def events(*ranges: range) -> dict[int, bytes]:
    return {n: event(n) for ids in ranges for n in ids}


class CountingSink(MemorySink):
    """Counts what it is given, so that doubles show even where the target hides them."""

    def __init__(self, target: MemoryTarget | None = None) -> None:
        super().__init__(target)
        self.given: list[int] = []

    async def write(self, batch: EventBatch) -> None:
        await super().write(batch)
        for run in batch.runs:
            self.given += range(run.first_id, run.last_id + 1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
            limits = {"stop_timeout_s": 0.2 if down else 10, "tail_records": tail_records, **FAST_RETRY}
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
        await eventually(lambda: len(sink.given) == 5)
        sink.down = True
        for start in range(5, 300, 5):
            await publisher.feeder.events("rm", range(start, start + 5))
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert await publisher.service.problems() == ["memory: it is down"]
        assert publisher.service.rings.get("rm").next_id == 300  # type: ignore[union-attr]
        sink.down = False
        await eventually(lambda: len(sink.given) == 300)
        assert sink.given == list(range(300))
        assert await publisher.service.healthy()


async def test_two_sinks_do_not_wait_for_each_other() -> None:
    up, down = CountingSink(), CountingSink()
    down.down = True
    async with running(sinks=[(up, AT_ONCE), (down, AT_ONCE)], stop_timeout_s=0.1, **FAST_RETRY) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(50))
        await eventually(lambda: up.given == list(range(50)))
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
        await eventually(lambda: publisher.service.rings.get("busy").next_id == 6_010)  # type: ignore[union-attr]
        assert metrics.MISSING.labels("busy")._value.get() == missing
    async with running(store=store, ring_capacity=10_000) as publisher:
        assert await refill(publisher) == {"busy": (0, 6_010, 6_010), "quiet": (0, 20, 20)}


async def test_a_dead_follower_ends_the_service() -> None:
    async with running() as publisher:
        await publisher.service.start()
        await publisher.log.close()
        with pytest.raises(Exception, match="closed"):
            await asyncio.wait_for(publisher.service.wait(), 10)
