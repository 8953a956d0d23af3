"""Search for old events by id, and for the newest ones backwards, in partitions of every shape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest
from manual_clock import ManualClock
from muster_bus.backends.memory import MemoryLog
from muster_bus.errors import LogUnavailable
from muster_bus.log import LogReader, Record
from muster_bus.topics import Topics
from muster_event_publisher import log_search, metrics
from muster_event_publisher.errors import SearchLimitExceeded
from muster_event_publisher.event_runs import batch_of
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
    """Write events of three RMs at very different rates, with shim events between. Return the next id of each."""
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
    with pytest.raises(SearchLimitExceeded) as raised:
        await search(log, records_max=3_000).read("rare", INSTANCE, 0, 1)
    assert raised.value.records > 3_000
    assert await search(log).read("rare", INSTANCE, 0, 1) is not None


# ---- nothing is read twice -------------------------------------------------------------------------------------------


def costs() -> tuple[int, int]:
    """Return the number of records read, and of seeks."""
    return int(metrics.LOG_LOOKUP_RECORDS._value.get()), int(metrics.LOG_LOOKUP_SEEKS._value.get())


async def test_a_walk_reads_each_record_once_and_goes_to_another_offset_once(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(10_000))
    searching, before = search(log), costs()
    for start in range(0, 10_000, 250):
        found = await searching.read("rm", INSTANCE, start, 250)
        assert found is not None
        assert found.values == [event(n) for n in range(start, start + 250)]
    after = costs()
    assert after[0] - before[0] <= 10_000 + 3 * 600  # plus the cost of finding the beginning
    assert after[1] - before[1] <= 4


async def test_the_same_question_again_reads_nothing(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(20_000))
    searching = search(log)
    first = await searching.read("rm", INSTANCE, 3, 10_000)
    before = costs()
    assert await searching.read("rm", INSTANCE, 3, 10_000) == first
    assert costs() == before


async def test_a_guess_finds_what_lies_evenly_in_two_steps_or_three(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(60_000))
    searching, random = search(log), Random(1)
    await searching.read("rm", INSTANCE, 0, 1)
    for start in (random.randrange(60_000) for _ in range(20)):
        before = costs()
        found = await searching.read("rm", INSTANCE, start, 10)
        assert found is not None
        assert found.first_id == start
        assert costs()[1] - before[1] <= 3


async def test_walks_at_different_places_do_not_disturb_each_other(log: MemoryLog) -> None:
    next_ids, searching, random = await feed_mixed(log, 6, 300), search(log), Random(6)
    walks: dict[tuple[str, int], list[bytes]] = {(rm_id, n): [] for rm_id in next_ids for n in range(4)}
    open_walks = sorted(walks)
    while open_walks:
        rm_id, number = walk = random.choice(open_walks)
        values = walks[walk]
        found = await searching.read(rm_id, INSTANCE, number + len(values), random.randint(1, 900))
        if found is None:
            open_walks.remove(walk)
        else:
            assert found.first_id == number + len(values)
            values += found.values
    for (rm_id, number), values in walks.items():
        assert values == [event(n) for n in range(number, next_ids[rm_id])]


async def test_a_log_that_begins_anew_is_not_mixed_with_the_one_before(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(2_000))
    searching = search(log)
    await searching.read("rm", INSTANCE, 0, 2_000)
    other = MemoryLog(TOPICS.specs(), ManualClock())
    await other.start()
    await Feeder(other, TOPICS).events("rm", range(500), instance="other")
    searching._reader = await other.reader(TOPICS.events, 0)
    searching._reader_at = None
    found = await searching.read("rm", "other", 0, 2_000)
    assert found is not None
    assert len(found.values) == 500
    assert await searching.read("rm", INSTANCE, 0, 2_000) is None
    await other.close()


class GatedReader:
    """A reader that waits after fetching its records, before it returns them. (Kafka's reader fetches ahead, too.)

    :ivar silent: it returns nothing, as if its broker were away.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.gate, self.reading, self.silent = asyncio.Event(), asyncio.Event(), False
        self.gate.set()

    @property
    def position(self) -> int:
        return self._reader.position

    async def read(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        if self.silent:
            return ()
        records = await self._reader.read(max_records, timeout_s)
        self.reading.set()
        await self.gate.wait()
        return records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


async def test_a_read_that_is_broken_off_loses_nothing_for_the_next(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(5_000))
    searching = search(log)
    await searching.read("rm", INSTANCE, 0, 700)
    assert searching._reader is not None
    searching._reader = gated = GatedReader(searching._reader)  # type: ignore[assignment]
    gated.gate.clear()
    gated.reading.clear()
    task = asyncio.create_task(searching.read("rm", INSTANCE, 700, 2_000))
    await asyncio.wait_for(gated.reading.wait(), 60)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    gated.gate.set()
    found = await searching.read("rm", INSTANCE, 700, 2_000)
    assert found is not None
    assert (found.first_id, found.values) == (700, [event(n) for n in range(700, 2_700)])


async def test_a_log_that_gives_nothing_is_not_taken_for_its_end(log: MemoryLog) -> None:
    await Feeder(log, TOPICS).events("rm", range(5_000))
    searching = search(log)
    await searching.read("rm", INSTANCE, 0, 700)
    assert searching._reader is not None
    searching._reader = gated = GatedReader(searching._reader)  # type: ignore[assignment]
    gated.silent = True
    with pytest.raises(LogUnavailable, match=r"^no records from position \d+, though the log ends at 5000$"):
        await searching.read("rm", INSTANCE, 700, 2_000)
    gated.silent = False
    found = await searching.read("rm", INSTANCE, 700, 2_000)
    assert found is not None
    assert len(found.values) == 2_000


async def newest(
    log: MemoryLog, capacity: int, records_max: int = 1_000_000, registered: Sequence[str] = ()
) -> dict[str, list[int]]:
    """Return ids by RM, read forward from the tail's start."""
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


class Faltering:
    """A reader whose broker is silent before each n-th read, ``times`` times in a row."""

    def __init__(self, inner: LogReader, times: int) -> None:
        self._inner, self._times, self._left = inner, times, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, records_max: int, timeout_s: float) -> Sequence[Record]:
        if self._left:
            self._left -= 1
            raise LogUnavailable("broker silent for 15 s")
        self._left = self._times
        return await self._inner.read(min(records_max, 1_000), timeout_s)


async def test_rings_are_filled_though_the_broker_is_silent_now_and_then(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "_AGAIN_S", 0.0)
    await Feeder(log, TOPICS).events("rm", range(5_000))
    patient: Any = Faltering(await log.reader(TOPICS.events, 0), 5)
    assert [record.offset async for piece in read_range(patient, 0, 5_000) for record in piece] == list(range(5_000))
    silent: Any = Faltering(await log.reader(TOPICS.events, 0), 6)
    with pytest.raises(LogUnavailable, match=r"^broker silent for 15 s$"):
        _ = [piece async for piece in read_range(silent, 0, 5_000)]
