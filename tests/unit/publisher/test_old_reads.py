"""Reads of events older than the ring: running, waiting and refused ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import httpx
import pytest
from muster_event_publisher import metrics
from muster_event_publisher.errors import TooManyOldReads
from muster_event_publisher.old_read_limiter import OldReadLimiter
from muster_event_publisher.service import PublisherService
from unit.publisher.running import Running, running, until_next
from unit.publisher.test_stream import lines_of, opened
from waiting import eventually

BATCH = "/ws/v1/events/batch"


async def _batch(reads: OldReadLimiter, name: str, done: list[str], go: asyncio.Event) -> None:
    async with reads.batch_slot() as turns, turns.slot():
        done.append(name)
        await go.wait()


async def _walk(reads: OldReadLimiter, name: str, done: list[str], go: asyncio.Event) -> None:
    async with reads.slot():
        done.append(name)
        await go.wait()


async def test_the_lines_take_turns_and_each_is_in_order() -> None:
    reads, done, go = OldReadLimiter(1, 10), list[str](), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        async with reads.slot():
            for number in range(4):
                group.create_task(_batch(reads, f"b{number}", done, go))
            for number in range(3):
                group.create_task(_walk(reads, f"w{number}", done, go))
            await eventually(lambda: reads.waiting == 7)
            assert (done, reads.running) == ([], 1)
        go.set()
    assert done == ["b0", "w0", "b1", "w1", "b2", "w2", "b3"]
    assert (reads.running, reads.waiting, reads.running_peak) == (0, 0, 1)


async def test_batches_beyond_the_line_are_refused_and_walks_are_not() -> None:
    reads, done, go = OldReadLimiter(2, 1), list[str](), asyncio.Event()
    refused = metrics.OLD_READS_REFUSED.labels("waiting")._value.get()
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(_batch(reads, f"b{number}", done, go))
        await eventually(lambda: (reads.running, reads.waiting) == (2, 1))
        with pytest.raises(TooManyOldReads, match="cannot be read now: 2 answers read them and 1 wait"):
            await _batch(reads, "refused", done, go)
        group.create_task(_walk(reads, "w", done, go))
        await eventually(lambda: reads.waiting == 2)
        go.set()
    assert sorted(done) == ["b0", "b1", "b2", "w"]
    assert metrics.OLD_READS_REFUSED.labels("waiting")._value.get() == refused + 1


async def test_a_batch_that_waits_too_long_is_refused_and_leaves_the_line() -> None:
    reads = OldReadLimiter(1, 5, wait_s=0.01)
    async with reads.slot():
        with pytest.raises(TooManyOldReads, match="none ended in time"):
            await _batch(reads, "late", [], asyncio.Event())
        assert reads.waiting == 0
    assert reads.running == 0


async def test_a_batch_keeps_its_turn_for_all_its_reads() -> None:
    reads = OldReadLimiter(1, 0)
    async with reads.batch_slot() as turns:
        for _ in range(3):
            async with turns.slot():
                assert reads.running == 1
        with pytest.raises(TooManyOldReads):
            await _batch(reads, "another", [], asyncio.Event())
    assert reads.running == 0
    async with reads.batch_slot():  # one that reads nothing old takes none
        assert reads.running == 0


@pytest.mark.parametrize("seed", range(20))
async def test_leaving_at_any_moment_loses_or_doubles_no_turn(seed: int) -> None:
    random, reads, now, most = Random(seed), OldReadLimiter(2, 6), 0, 0

    async def one(number: int) -> None:
        nonlocal now, most
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        async with AsyncExitStack() as stack:
            if number % 2:
                await stack.enter_async_context(reads.slot())
            else:
                turns = await stack.enter_async_context(reads.batch_slot())
                await stack.enter_async_context(turns.slot())
            now += 1
            most = max(most, now)
            try:
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                now -= 1

    tasks = [asyncio.create_task(one(number)) for number in range(60)]
    while not all(task.done() for task in tasks):
        for task in random.sample(tasks, 3):
            if random.random() < 0.3:
                task.cancel()
        await asyncio.sleep(0)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError, TooManyOldReads}
    assert (reads.running, reads.waiting, now, most) == (0, 0, 0, 2)


# ---- in the publisher ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def filled(**settings: object) -> AsyncIterator[Running]:
    """A publisher with 3,000 events, of which the ring has 100."""
    async with running(listen=True, ring_capacity=100, old_reads_max=2, **settings) as publisher:
        await publisher.service.start()
        await publisher.feeder.events("rm", range(3_000))
        await until_next(publisher, "rm", 3_000)
        yield publisher


@asynccontextmanager
async def all_turns(service: PublisherService) -> AsyncIterator[None]:
    async with service.old_reads.slot(), service.old_reads.slot():
        yield


async def test_a_batch_without_room_gets_503_and_when_to_come_again_and_the_ring_answers_on() -> None:
    async with filled(old_reads_waiting_max=0) as publisher:
        async with all_turns(publisher.service):
            for start in (0, 2_899):
                answer = await publisher.http.get(BATCH, params={"start": start})
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                story = "older events cannot be read now: 2 answers read them and 0 wait"
                assert answer.json() == {"status_code": 503, "message": story, "description": story}
            await publisher.feeder.events("rm", range(3_000, 3_010))
            await until_next(publisher, "rm", 3_010)
            answer = await publisher.http.get(BATCH, params={"start": 2_950})
            assert (answer.status_code, len(answer.json()["EventRecords"])) == (200, 60)
            async with opened(publisher, "?start=2990") as lines:
                assert (await lines.take(21))[1:] == lines_of(range(2_990, 3_010))
        answer = await publisher.http.get(BATCH, params={"start": 0})
        assert (answer.status_code, len(answer.json()["EventRecords"])) == (200, 3_010)
        assert answer.headers["x-muster-events-source"] == "log"


async def test_waiting_answers_get_their_turns_in_order() -> None:
    async with filled() as publisher:
        reads = publisher.service.old_reads
        async with asyncio.TaskGroup() as group, all_turns(publisher.service):
            asked = [group.create_task(publisher.http.get(BATCH, params={"start": n})) for n in range(5)]
            await eventually(lambda: reads.waiting == 5)
        assert [len(task.result().json()["EventRecords"]) for task in asked] == [3_000 - n for n in range(5)]
        assert reads.running_peak == 2


async def test_a_client_that_goes_away_leaves_the_line() -> None:
    async with filled() as publisher, httpx.AsyncClient(timeout=30) as client:
        reads = publisher.service.old_reads
        async with all_turns(publisher.service):
            asked = [asyncio.create_task(client.get(publisher.url + BATCH)) for _ in range(6)]
            await eventually(lambda: reads.waiting == 6)
            for task in asked[:5]:
                task.cancel()
            await eventually(lambda: reads.waiting == 1)
        assert len((await asked[5]).json()["EventRecords"]) == 3_000
        await eventually(lambda: reads.running == 0)


async def test_streams_wait_for_their_turn_and_have_every_event_and_may_leave() -> None:
    async with filled(old_reads_waiting_max=0) as publisher:
        reads = publisher.service.old_reads
        async with AsyncExitStack() as stack:
            async with all_turns(publisher.service):
                streams = [await stack.enter_async_context(opened(publisher, "?start=7")) for _ in range(3)]
                async with opened(publisher, "?start=0") as lines:
                    await lines.next()
                    await eventually(lambda: reads.waiting == 4)
                await eventually(lambda: reads.waiting == 3)
            for lines in streams:
                assert (await lines.take(2_994))[1:] == lines_of(range(7, 3_000))
        assert reads.running_peak == 2
        await eventually(lambda: publisher.service.open_streams == 0)
