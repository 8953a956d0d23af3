"""Events older than the ring come from the log, or from history. No event is skipped silently."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import httpx
import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_event_publisher.errors import OldEventsUnavailable, SinkUnavailable
from muster_event_publisher.event_json import event_json
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.log_search import LogSearch, OldEvents
from muster_event_publisher.ring import BLOCK, Rings
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import INSTANCE, Feeder, event
from unit.publisher.running import TOPICS, Running, running, until_next
from unit.publisher.test_stream import FIRST_LINE, Lines, lines_of, opened
from waiting import eventually

BATCH = "/ws/v1/events/batch"


async def filled(publisher: Running, count: int) -> None:
    await publisher.service.start()
    await publisher.feeder.events("rm", range(count))
    await until_next(publisher, "rm", count)


class Store:
    """A history with some ids."""

    name = "store"

    def __init__(self, *ranges: range, broken: bool = False) -> None:
        self._ranges, self._broken, self.asked = ranges, broken, 0

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        self.asked += 1
        if self._broken:
            raise SinkUnavailable(self.name, "OSError: Connect call failed ('db-7.intern', 5432)")
        for ids in self._ranges:
            if ids.stop > start:
                first = max(start, ids.start)
                return OldEvents(first, [event(n) for n in range(first, min(ids.stop, first + count))])
        return None

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("stores", "start", "first", "source"),
    [
        ([], 20, 20, "log"),
        ([Store(range(100))], 20, 20, "log"),
        ([Store(broken=True)], 20, 20, "log"),
        ([], 5, 20, "log"),
        ([Store(range(10))], 5, 5, "history"),
        ([Store(range(2)), Store(range(3, 10))], 5, 5, "history"),
        ([Store(range(7, 10))], 5, 7, "history"),
        ([Store(range(7, 10)), Store(range(6, 8)), Store()], 5, 6, "history"),
        ([Store(broken=True), Store(range(5, 6))], 5, 5, "history"),
        ([Store(broken=True), Store(range(6, 8))], 5, None, ""),
        ([Store(broken=True)], 5, None, ""),
    ],
)
async def test_log_then_history(stores: list[Store], start: int, first: int | None, source: str) -> None:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    await Feeder(log, TOPICS).events("rm", range(40))
    partition = TOPICS.partition_of("rm")
    log.store.delete_before(TOPICS.events, partition, 20)
    rings = Rings(5)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(n) for n in range(40)])
    searches = [LogSearch(log, TOPICS.events, number, 1_000_000) for number in range(TOPICS.partitions)]
    source_of_events = EventSource(rings, searches, TOPICS, stores)
    if first is None:
        with pytest.raises(OldEventsUnavailable, match=r"read now: the store 'store' does not answer$"):
            await source_of_events.old(ring, start, 3)
    else:
        found = await source_of_events.old(ring, start, 3)
        assert found is not None
        assert (found.first_id, found.source) == (first, source)
        assert found.values == [event(n) for n in range(first, first + len(found.values))]
        if source == "log" and first == start:
            assert [store.asked for store in stores] == [0] * len(stores)
    for search in searches:
        await search.close()
    await log.close()


async def test_a_batch_says_where_it_is_from_and_what_is_gone(tmp_path: Path) -> None:
    log = MemoryLog(TOPICS.specs(), SystemClock())
    await log.start()
    feeder = Feeder(log, TOPICS)
    wanted = PublisherSettings(http_address="", ring_capacity=10, parquet_dir=tmp_path, parquet_roll_s=0.01)
    service = PublisherService(wanted, log, TOPICS, SystemClock())
    try:
        await service.start()
        # 1. thirty events are exported; then the log deletes those and ten more; the ring has the last ten
        await feeder.events("rm", range(30))
        await eventually(lambda: any(tmp_path.rglob("*.parquet")) and _exported(service))
        await service.stop()
        service = PublisherService(wanted.model_copy(update={"parquet_roll_s": 3600}), log, TOPICS, SystemClock())
        await feeder.events("rm", range(30, 60))
        log.store.delete_before(TOPICS.events, TOPICS.partition_of("rm"), 40)
        await service.start()
        transport = httpx.ASGITransport(service.asgi)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as http:
            for start, ids, source, missing, next_id in (
                (0, range(30), "history", None, 30),
                (12, range(12, 30), "history", None, 30),
                (29, range(29, 30), "history", None, 30),
                (30, range(0), "ring", "30-39", 40),
                (39, range(0), "ring", "39-39", 40),
                (40, range(40, 60), "log", None, 60),
                (49, range(49, 60), "log", None, 60),
                (50, range(50, 60), "ring", None, 60),
                (60, range(0), "ring", None, 60),
                (61, range(0), "ring", None, 60),
            ):
                answer = await http.get(BATCH, params={"start": start})
                body = json.loads(answer.content)
                assert [r["objectID"] for r in body["EventRecords"] or ()] == [f"app-{n}" for n in ids], start
                assert (body["InstanceUUID"], body["LowestID"], body["HighestID"]) == (INSTANCE, 50, 59)
                assert answer.headers["x-muster-events-source"] == source, start
                assert answer.headers.get("x-muster-events-missing") == missing, start
                assert answer.headers["x-muster-next-id"] == str(next_id), start
                note = answer.headers.get("x-muster-events-note", "")
                assert note.startswith("event 61 is not present yet" if start == 61 else "events" if missing else ""), (
                    start
                )
                assert bool(note) == (start == 61 or missing is not None)
    finally:
        await service.stop()
        await log.close()


def _exported(service: PublisherService) -> bool:
    return all(exporter.problem is None for exporter in service._exports.exporters)


async def test_a_count_above_the_limit_is_cut_and_said() -> None:
    async with running(rest_response_size=4) as publisher:
        await filled(publisher, 9)
        answer = await publisher.http.get(BATCH + "?count=7")
        assert len(answer.json()["EventRecords"]) == 4
        assert answer.headers["x-muster-events-note"] == "count 7 is more than one answer holds, which is 4"
        for query in ("?count=4", "", "?count=7&start=6"):
            assert "x-muster-events-note" not in (await publisher.http.get(BATCH + query)).headers


async def test_a_batch_over_packed_blocks_is_what_was_written() -> None:
    async with running(ring_capacity=10 * BLOCK) as publisher:
        await publisher.service.start()
        count = 12 * BLOCK + 100
        await publisher.feeder.events("rm", range(count))
        await until_next(publisher, "rm", count)
        ring = publisher.service.rings.get("rm")
        assert ring is not None
        await eventually(lambda: ring.plain_from == 9 * BLOCK)
        lowest = count - 10 * BLOCK
        for start in (lowest, lowest + 1, 5 * BLOCK - 1, 5 * BLOCK, 9 * BLOCK - 7, ring.plain_from - 1, count - 5_000):
            answer = await publisher.http.get(f"{BATCH}?start={start}&count=5000")
            ids = range(start, min(start + 5_000, count))
            records = b",".join([event_json(event(n)) for n in ids])
            assert answer.content.partition(b'"EventRecords":')[2] == b"[" + records + b"]}\n"
            assert answer.headers["x-muster-events-source"] == "ring"


@pytest.mark.parametrize("seed", range(2))
async def test_streams_cross_from_log_to_packed_to_plain_to_live_while_events_are_written(seed: int) -> None:
    random, before, total = Random(seed), 4 * BLOCK, 7 * BLOCK
    async with running(listen=True, ring_capacity=3 * BLOCK) as publisher:
        await filled(publisher, before)

        async def follow(start: int) -> None:
            async with opened(publisher, f"?start={start}") as lines:
                assert await lines.next() == FIRST_LINE
                for first in range(start, total, 100):
                    ids = range(first, min(first + 100, total))
                    assert await lines.take(len(ids)) == lines_of(ids), first

        async def write() -> None:
            first = before
            while first < total:
                end = min(first + random.randint(1, 300), total)
                await publisher.feeder.events("rm", range(first, end))
                await asyncio.sleep(0)
                first = end

        ring = publisher.service.rings.get("rm")
        assert ring is not None
        starts = [0, ring.lowest - 1, ring.lowest, before - 1, before, *(random.randrange(before) for _ in range(3))]
        await asyncio.gather(write(), *map(follow, starts))


async def test_missing_events_are_reported_in_a_stream_and_unreadable_ones_end_it() -> None:
    async with running(listen=True, ring_capacity=10) as publisher:
        await filled(publisher, 50)
        source = publisher.service._rest._source
        publisher.log.store.delete_before(TOPICS.events, TOPICS.partition_of("rm"), 30)
        source._history = [Store(range(5, 12))]
        async with opened(publisher, "?start=2") as lines:
            assert await lines.next() == FIRST_LINE
            await _missing(lines, 2, 5)
            assert await lines.take(7) == lines_of(range(5, 12))
            await _missing(lines, 12, 30)
            assert await lines.take(20) == lines_of(range(30, 50))
        source._history = [Store(broken=True)]
        async with opened(publisher, "?start=2") as lines:
            last = json.loads((await lines.rest())[-1])
            away = "older events cannot be read now: the store 'store' does not answer"
            assert last["message"] == f"{away}; go on with ?start=2"
        answer = await publisher.http.get("/ws/v1/events/batch?start=2")
        assert (answer.status_code, answer.json()["message"]) == (503, away)


async def _missing(lines: Lines, first: int, next_id: int) -> None:
    said = json.loads(await lines.next())
    assert said["message"] == f"events {first} to {next_id - 1} are missing from the log"
    assert (said["NextID"], said["InstanceUUID"]) == (next_id, INSTANCE)


async def test_of_old_events_one_look_up_reads_ten_thousand_whatever_an_rm_allows() -> None:
    asked: list[int] = []

    class Large(Store):
        async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
            asked.append(count)
            return OldEvents(start, [event(start)])

    rings = Rings(10)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(5, [event(5)])
    found = await EventSource(rings, [], TOPICS, [Large()]).old(ring, 0, 2**32 - 1)
    assert found is not None
    assert asked == [10_000]


RESTORED = "3f1d2c8e-0000-4000-8000-000000000002"


async def restored(publisher: Running, before: int, after: int) -> None:
    """The log of a restored Muster: after its old events come those of a new instance, with the next ids."""
    await publisher.feeder.events("rm", range(before))
    await publisher.feeder.events("other", range(40))
    await publisher.feeder.events("rm", range(before, before + after), instance=RESTORED)


async def batch(publisher: Running, start: int, count: int) -> tuple[list[str], str | None]:
    """The objects of an answer, and the ids that are missing."""
    answer = await publisher.http.get(f"{BATCH}?rm=rm&start={start}&count={count}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["InstanceUUID"] == RESTORED
    records = answer.json()["EventRecords"] or []
    return [each["objectID"] for each in records], answer.headers.get("X-Muster-Events-Missing")


@pytest.mark.parametrize("capacity", [5, 30, 100_000])
@pytest.mark.parametrize("starts", ["before", "after"])
async def test_ids_from_before_a_restore_are_read_from_the_instance_before(capacity: int, starts: str) -> None:
    """With the old instance's events in memory, with a part of them, and with none."""
    async with running(ring_capacity=capacity) as publisher:
        if starts == "before":
            await publisher.service.start()
            await restored(publisher, 60, 10)
        else:
            await restored(publisher, 60, 10)
            await publisher.service.start()
        await until_next(publisher, "rm", 70)
        assert await batch(publisher, 57, 5) == ([f"app-{n}" for n in range(57, 62)], None)
        assert await batch(publisher, 0, 100) == ([f"app-{n}" for n in range(70)], None)
        assert await batch(publisher, 59, 1) == (["app-59"], None)


async def test_ids_of_an_instance_that_no_other_goes_on_from_are_missing() -> None:
    """The ids of the instance before end elsewhere: they are another life's, and what is between is missing."""
    async with running(ring_capacity=100_000) as publisher:
        await publisher.feeder.events("rm", range(50))
        await publisher.feeder.events("rm", range(60, 70), instance=RESTORED)
        await publisher.service.start()
        await until_next(publisher, "rm", 70)
        assert await batch(publisher, 40, 5) == ([], "40-59")


async def test_a_store_has_what_the_restored_log_no_longer_has() -> None:
    """Retention deleted a part of the old events; the store answers under the old instance."""

    class Exported(Store):
        async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
            return await super().read(rm_id, instance, start, count) if instance == INSTANCE else None

    async with running(ring_capacity=100_000) as publisher:
        await publisher.feeder.events("rm", range(30, 60))
        await publisher.feeder.events("rm", range(60, 70), instance=RESTORED)
        await publisher.service.start()
        await until_next(publisher, "rm", 70)
        publisher.service._rest._source._history = [Exported(range(60))]
        assert await batch(publisher, 10, 20) == ([f"app-{n}" for n in range(10, 30)], None)
