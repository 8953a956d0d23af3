"""Old events by id, and the newest events backwards, over every shape of partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import ManualClock
from muster_bus.log import Record
from muster_bus.topics import Topics
from muster_event_publisher.errors import SearchTooLong
from muster_event_publisher.events import batch_of
from muster_event_publisher.log_search import LogSearch, read_range, tail_start
from unit.publisher.feeding import INSTANCE, Feeder, event

TOPICS = Topics(partitions=1)


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    log = MemoryLog(TOPICS.specs(), ManualClock())
    await log.start()
    yield log
    await log.close()


def search(log: MemoryLog, records_max: int = 1_000_000) -> LogSearch:
    return LogSearch(log, TOPICS.events, 0, records_max)


async def feed_mixed(log: MemoryLog, seed: int, steps: int) -> dict[str, int]:
    """Three RMs of very different rates, shim events in between. Returns the next id of each."""
    random, feeder = Random(seed), Feeder(log, TOPICS)
    next_ids = {"busy": 0, "slow": 0, "rare": 0}
    for _ in range(steps):
        rm_id = random.choices(["busy", "slow", "rare"], [100, 10, 1])[0]
        count = random.randint(1, 40)
        await feeder.events(rm_id, range(next_ids[rm_id], next_ids[rm_id] + count))
        next_ids[rm_id] += count
        if random.random() < 0.3:
            await feeder.shim(rm_id, random.randint(1, 20))
    return next_ids


@pytest.mark.parametrize("seed", range(3))
async def test_every_id_is_found_where_it_is(log: MemoryLog, seed: int) -> None:
    next_ids, random, searching = await feed_mixed(log, seed, 400), Random(seed), search(log)
    for rm_id, next_id in next_ids.items():
        for start in [0, next_id - 1, *(random.randrange(next_id) for _ in range(15))] if next_id else []:
            count = random.randint(1, 300)
            found = await searching.read(rm_id, INSTANCE, start, count)
            assert found is not None
            assert found.first_id == start
            assert found.values == [event(n) for n in range(start, min(start + count, next_id))]
        assert await searching.read(rm_id, INSTANCE, next_id, 5) is None


async def test_a_walk_through_the_log_is_complete(log: MemoryLog) -> None:
    next_ids, searching = await feed_mixed(log, 9, 200), search(log)
    values: list[bytes] = []
    while found := await searching.read("busy", INSTANCE, len(values), 97):
        assert found.first_id == len(values)
        values += found.values
    assert values == [event(n) for n in range(next_ids["busy"])]


async def test_after_retention_the_first_that_is_left(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(3_000))
    log.store.delete_before(TOPICS.events, 0, 1_234)
    searching = search(log)
    found = await searching.read("rm", INSTANCE, 5, 2)
    assert found is not None
    assert (found.first_id, found.values) == (1_234, [event(1_234), event(1_235)])


async def test_a_gap_ends_the_answer_and_begins_the_next(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", [0, 1, 2, 7, 8])
    searching = search(log)
    first, second = await searching.read("rm", INSTANCE, 1, 9), await searching.read("rm", INSTANCE, 3, 9)
    assert first is not None
    assert (first.first_id, len(first.values)) == (1, 2)
    assert second is not None
    assert (second.first_id, len(second.values)) == (7, 2)


async def test_unknown_rm_or_instance_is_absent(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(10))
    assert await search(log).read("other", INSTANCE, 0, 1) is None
    assert await search(log).read("rm", "another instance", 0, 1) is None


async def test_a_search_is_bounded(log: MemoryLog) -> None:
    feeder = Feeder(log, TOPICS)
    await feeder.events("busy", range(5_000))
    await feeder.events("rare", [0])
    await feeder.events("busy", range(5_000, 10_000))
    with pytest.raises(SearchTooLong) as raised:
        await search(log, records_max=3_000).read("rare", INSTANCE, 0, 1)
    assert raised.value.records > 3_000
    assert await search(log).read("rare", INSTANCE, 0, 1) is not None


async def newest(
    log: MemoryLog, capacity: int, records_max: int = 1_000_000, registered: Sequence[str] = ()
) -> dict[str, list[int]]:
    """Ids by RM of what reading forward from the tail's start gives."""
    reader = await log.reader(TOPICS.events, 0)
    end = await reader.end_offset()
    start = await tail_start(reader, 0, end, lambda _rm_id: capacity, registered, records_max)
    records: list[Record] = [record async for piece in read_range(reader, start, end) for record in piece]
    assert [record.offset for record in records] == sorted({record.offset for record in records})
    ids: dict[str, list[int]] = {}
    for run in batch_of(0, records, 0, 0).runs:
        ids.setdefault(run.rm_id, []).extend(range(run.first_id, run.last_id + 1))
    return ids


@pytest.mark.parametrize("capacity", [1, 50, 5_000])
async def test_the_tail_has_the_newest_of_every_rm(log: MemoryLog, capacity: int) -> None:
    next_ids = await feed_mixed(log, 4, 300)
    for rm_id, ids in (await newest(log, capacity)).items():
        wanted = min(capacity, next_ids[rm_id])
        assert ids[-wanted:] == list(range(next_ids[rm_id] - wanted, next_ids[rm_id]))


async def test_the_tail_costs_what_the_rings_hold(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(20_000))
    assert (await newest(log, 1_000))["rm"] == list(range(19_000, 20_000))
    assert len((await newest(log, 5_000))["rm"]) <= 10_000
    assert len((await newest(log, 10_000, 2_500))["rm"]) == 2_500
    assert len((await newest(log, 0))["rm"]) <= 1_000


async def test_an_rm_that_is_registered_is_found_however_long_it_was_quiet(log: MemoryLog) -> None:
    feeder = Feeder(log, TOPICS)
    await feeder.events("quiet", range(5))
    await feeder.events("busy", range(20_000))
    assert "quiet" not in await newest(log, 1_000)
    assert (await newest(log, 1_000, registered=["quiet", "busy"]))["quiet"] == list(range(5))
    assert "quiet" not in await newest(log, 1_000, 5_000, registered=["quiet", "busy"])
