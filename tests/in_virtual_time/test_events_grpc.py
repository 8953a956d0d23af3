"""muster.v1.Events over real gRPC, with a publisher on a log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from in_virtual_time.test_rm_settings import say
from muster_bus.backends.memory import MemoryStore
from muster_bus.log import OutRecord
from muster_bus.topics import state_key
from muster_event_publisher import grpc_watch as watching
from muster_event_publisher.app_queues import APPLICATION
from muster_proto.muster.bus.v1.state_pb2 import ApplicationObject
from muster_proto.muster.v1 import events_pb2 as pb
from muster_proto.muster.v1.events_pb2_grpc import EventsStub
from muster_proto.si.v1.si_pb2 import EventRecord
from muster_state import state_codec
from unit.publisher.feeding import INSTANCE, START_NS, event, headers, shim_headers
from unit.publisher.running import TOPICS, Running, running, until_next
from virtual.plugin import advance

PATIENCE_S = 60.0
Code = grpc.StatusCode
From, Filter = pb.EventsFrom, pb.EventFilter


@dataclass
class World:
    """A publisher and a client of it."""

    publisher: Running
    channel: grpc.aio.Channel
    stub: Any
    open: list[Watching] = field(default_factory=list)

    async def events(self, first: int, count: int, rm_id: str = "rm") -> None:
        """Write events, and wait until the ring has them."""
        await self.publisher.feeder.events(rm_id, range(first, first + count))
        await until_next(self.publisher, rm_id, first + count)

    def watch(self, channel: grpc.aio.Channel | None = None, **fields: Any) -> Watching:
        place = fields.pop("from_", None)
        request = pb.WatchEventsRequest(**{"rm_id": "rm", **fields, **({"from": place} if place else {})})
        stub: Any = self.stub if channel is None else EventsStub(channel)
        self.open.append(Watching(stub.Watch(request)))
        return self.open[-1]

    async def batch(self, **fields: Any) -> pb.EventBatch:
        place = fields.pop("from_", None)
        request = pb.EventBatchRequest(**{"rm_id": "rm", **fields, **({"from": place} if place else {})})
        answer: pb.EventBatch = await self.stub.Batch(request, timeout=PATIENCE_S)
        return answer

    async def refused(self, call: Any) -> tuple[Code, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(PATIENCE_S):
                await call
        return caught.value.code(), caught.value.details() or ""


@dataclass
class Watching:
    """A call of Watch and its messages."""

    call: Any
    got: list[pb.WatchedEvents] = field(default_factory=list)

    async def take(self) -> pb.WatchedEvents:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.call.read()
            assert message is not grpc.aio.EOF, "it has not ended"
        self.got.append(message)
        return self.got[-1]

    @property
    def ids(self) -> list[int]:
        return [each.id for message in self.got for each in message.events]

    @property
    def asks(self) -> list[str]:
        return [each.objectID for message in self.got for each in message.request_events]

    async def until(self, last_id: int) -> list[int]:
        """Wait for this id, and return all ids so far."""
        while not self.ids or self.ids[-1] < last_id:
            await self.take()
        return self.ids

    async def until_asks(self, count: int) -> list[str]:
        while len(self.asks) < count:
            await self.take()
        return self.asks

    async def end(self) -> tuple[Code, str, dict[str, str]]:
        """Read the remaining messages, and return the status."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while (message := await self.call.read()) is not grpc.aio.EOF:
                    self.got.append(message)
            except grpc.aio.AioRpcError:
                pass
            trailing = {name: str(value) for name, value in await self.call.trailing_metadata() or ()}
            return await self.call.code(), await self.call.details() or "", trailing


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    settings = {"grpc_address": "127.0.0.1:0", "request_push_interval_s": 0.05, **settings}
    async with running(**settings) as publisher:
        await publisher.service.start()
        target = f"127.0.0.1:{publisher.service.grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel:
            it = World(publisher, channel, EventsStub(channel))
            yield it
            for each in it.open:
                each.call.cancel()


async def asked(it: World, *names: str, rm_id: str = "rm", application: str = "app") -> None:
    values = [
        EventRecord(type=EventRecord.REQUEST, objectID=name, referenceID=application).SerializeToString()
        for name in names
    ]
    await it.publisher.feeder.write(rm_id, [(value, shim_headers(rm_id)) for value in values])


def store(it: World, rm_id: str = "rm") -> Any:
    return it.publisher.service.requests.get(rm_id)


# ---- Batch ----------------------------------------------------------------------------------------------------------


async def test_a_batch_from_an_id() -> None:
    async with world() as it:
        await it.events(0, 50)
        found = await it.batch(from_=From(id=10), count=5)
        assert [each.id for each in found.events] == [10, 11, 12, 13, 14]
        assert found.events[0].record == EventRecord.FromString(event(10))
        assert (found.rm_id, found.instance, found.next_id, found.end_id) == ("rm", INSTANCE, 15, 50)
        assert found.source == pb.EventBatch.RING
        assert not found.missing


async def test_batches_one_after_the_other_give_each_event_once() -> None:
    async with world(ring_capacity=100) as it:
        await it.events(0, 1_000)
        ids: list[int] = []
        sources = set()
        next_id = 0
        while True:
            found = await it.batch(from_=From(id=next_id), count=77)
            ids += [each.id for each in found.events]
            next_id = found.next_id
            sources.add(found.source)
            if next_id == found.end_id:
                break
        assert ids == list(range(1_000))
        assert sources == {pb.EventBatch.LOG, pb.EventBatch.RING}


async def test_without_a_place_a_batch_begins_with_the_oldest_that_is_left() -> None:
    async with world(ring_capacity=10) as it:
        await it.events(0, 100)
        partition = it.publisher.service._topics.partition_of("rm")
        it.publisher.log.store.delete_before("si.events.v1", partition, 40)
        found = await it.batch(count=3)
        assert [each.id for each in found.events] == [40, 41, 42]
        assert not found.missing
        said = await it.batch(from_=From(id=5), count=3)
        assert [(each.first_id, each.last_id) for each in said.missing] == [(5, 39)]
        assert [each.id for each in said.events] == [40, 41, 42]


async def test_ids_that_the_log_does_not_have_are_said() -> None:
    async with world() as it:
        await it.events(0, 10)
        await it.events(20, 5)
        found = await it.batch(from_=From(id=8))
        assert [each.id for each in found.events] == [8, 9, 20, 21, 22, 23, 24]
        assert [(each.first_id, each.last_id) for each in found.missing] == [(10, 19)]


@pytest.mark.parametrize("capacity", [100_000, 40])
async def test_a_batch_since_a_time(capacity: int) -> None:
    async with world(ring_capacity=capacity) as it:
        await it.events(0, 300)  # event n: n ms behind START_NS
        for time_ns, expected in [
            (START_NS + 120_000_000, 120),
            (START_NS + 120_000_001, 121),
            (START_NS + 280_500_000, 281),
            (0, 0),
            (START_NS + 299_000_000, 299),
        ]:
            found = await it.batch(from_=From(time_ns=time_ns), count=1)
            assert [each.id for each in found.events] == [expected], time_ns
            assert not found.missing
        found = await it.batch(from_=From(time_ns=START_NS + 300_000_000))
        assert (len(found.events), found.next_id) == (0, 300)


async def test_the_newest() -> None:
    async with world() as it:
        await it.events(0, 20)
        assert [each.id for each in (await it.batch(from_=From(newest=3))).events] == [17, 18, 19]
        assert len((await it.batch(from_=From(newest=2**64 - 1))).events) == 20


async def test_a_filter_that_lets_nothing_pass_does_not_make_one_call_read_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "_BATCH_EXAMINED_MAX", 500)
    async with world() as it:
        await it.events(0, 2_000)
        found = await it.batch(from_=From(id=0), filter=Filter(object_ids=["app-1700"]))
        assert (len(found.events), found.next_id, found.end_id) == (0, 512, 2_000)
        calls = 1
        while not found.events:
            found = await it.batch(from_=From(id=found.next_id), filter=Filter(object_ids=["app-1700"]))
            calls += 1
        assert (found.events[0].id, calls) == (1_700, 4)


async def test_a_batch_stays_under_what_a_client_takes() -> None:
    async with world() as it:
        big = [(event(n, message="x" * 1_000) + b"", headers("rm", n)) for n in range(6_000)]
        await it.publisher.feeder.write("rm", big)
        await until_next(it.publisher, "rm", 6_000)
        found = await it.batch(from_=From(id=0), count=10_000)
        assert 2_000 < len(found.events) < 6_000
        assert found.next_id == len(found.events)
        assert found.ByteSize() < 4 * 1024 * 1024


# ---- Watch ----------------------------------------------------------------------------------------------------------


async def test_the_first_message_says_where_it_begins() -> None:
    async with world() as it:
        await it.events(0, 5)
        watch = it.watch()
        first = await watch.take()
        assert (first.rm_id, first.instance, first.next_id, first.end_id) == ("rm", INSTANCE, 5, 5)
        assert not first.events
        await it.events(5, 3)
        assert await watch.until(7) == [5, 6, 7]
        assert (watch.got[-1].next_id, watch.got[-1].instance) == (8, INSTANCE)


async def test_history_first_then_live_each_once_while_events_come() -> None:
    async with world(ring_capacity=500) as it:
        await it.events(0, 3_000)

        async def more() -> None:
            for start in range(3_000, 6_000, 50):
                await it.publisher.feeder.events("rm", range(start, start + 50))
                await asyncio.sleep(0.002)

        writing = asyncio.create_task(more())
        watches = [it.watch(from_=From(id=first)) for first in (0, 1, 2_499, 2_500, 2_999)]
        for first, watch in zip((0, 1, 2_499, 2_500, 2_999), watches, strict=True):
            assert await watch.until(5_999) == list(range(first, 6_000))
        await writing


async def test_a_broken_watch_resumes_without_loss_or_duplicates() -> None:
    chance = random.Random(7)
    async with world(ring_capacity=300) as it:

        async def more() -> None:
            for start in range(0, 4_000, 40):
                await it.publisher.feeder.events("rm", range(start, start + 40))
                await asyncio.sleep(0.001)

        await it.events(0, 40)
        writing = asyncio.create_task(more())
        ids: list[int] = []
        next_id, breaks = 0, 0
        while not ids or ids[-1] < 3_999:
            watch = it.watch(from_=From(id=next_id), instance=INSTANCE)
            for _ in range(chance.randint(1, 4)):
                message = await watch.take()
                ids += [each.id for each in message.events]
                next_id = message.next_id
                if ids and ids[-1] == 3_999:
                    break
            watch.call.cancel()
            breaks += 1
        await writing
        assert ids == list(range(4_000))
        assert breaks > 3


async def test_filtered_and_resumed_is_the_same_as_filtered() -> None:
    values: list[tuple[bytes, Any]] = []

    def add(kind: str, detail: str, object_id: str, reference_id: str = "") -> None:
        record = EventRecord(
            type=EventRecord.Type.Value(kind),
            eventChangeType=EventRecord.ADD,
            eventChangeDetail=EventRecord.ChangeDetail.Value(detail),
            objectID=object_id,
            referenceID=reference_id,
        )
        values.append((record.SerializeToString(), headers("rm", len(values))))

    for number in range(600):
        app = f"app-{number % 3}"
        if number < 3:
            add("QUEUE", "QUEUE_APP", f"root.q{number}", app)
        add("APP", "APP_ALLOC", app, f"k{number}")
        add("NODE", "NODE_ALLOC", "node", f"k{number}")
    async with world(ring_capacity=400) as it:
        await it.publisher.feeder.write("rm", values)
        await until_next(it.publisher, "rm", len(values))
        for wanted in (Filter(application_id="app-1"), Filter(queue="root.q1")):
            whole = it.watch(from_=From(id=0), filter=wanted)
            while whole.got[-1:] == [] or whole.got[-1].next_id < len(values) - 3:
                await whole.take()
            assert len(whole.ids) == 401
            pieces: list[int] = []
            next_id = 0
            while next_id < len(values):
                found = await it.batch(from_=From(id=next_id), filter=wanted, count=1)
                pieces += [each.id for each in found.events]
                next_id = found.next_id
            assert pieces == whole.ids


async def test_a_queue_s_events_are_known_after_a_restart_though_memory_no_longer_tells_of_their_application() -> None:
    store = MemoryStore()
    queued = EventRecord(
        type=EventRecord.QUEUE,
        eventChangeType=EventRecord.ADD,
        eventChangeDetail=EventRecord.QUEUE_APP,
        objectID="root.q",
    )
    async with world(store=store, poll_s=0.01, ring_capacity=8) as it:
        values: list[tuple[bytes, Any]] = []
        for app in ("app-30", "app-31"):
            queued.referenceID = app
            values.append((queued.SerializeToString(), headers("rm", len(values))))
        await it.publisher.feeder.write("rm", values)
        await it.events(2, 40)  # event n is of app-n
        partition = TOPICS.partition_of("rm")
        writer = await it.publisher.log.writer("scheduler")
        for app in ("app-30", "app-31"):
            value = ApplicationObject(application_id=app, queue="root.q").SerializeToString()
            await writer.append(OutRecord(TOPICS.state, partition, state_key("rm", APPLICATION, "default", app), value))
        await writer.close()
        before = await it.batch(filter=Filter(queue="root"), from_=From(id=0))
        assert [each.id for each in before.events] == [0, 1, 30, 31]
    async with world(store=store, poll_s=0.01, ring_capacity=8) as it:
        await until_next(it.publisher, "rm", 42)
        watch = it.watch(from_=From(id=20), filter=Filter(queue="root"))
        assert await watch.until(31) == [30, 31]


def test_the_scheduler_writes_applications_under_the_kind_that_is_read_here() -> None:
    assert APPLICATION == state_codec.APP


async def test_filters_by_kind() -> None:
    async with world() as it:
        await it.events(0, 30)
        watch = it.watch(from_=From(id=0), filter=Filter(object_ids=["app-3", "app-20"]))
        assert await watch.until(20) == [3, 20]
        other = it.watch(
            from_=From(id=0),
            filter=Filter(
                types=[EventRecord.APP], change_types=[EventRecord.ADD], change_details=[EventRecord.APP_ALLOC]
            ),
        )
        assert await other.until(29) == list(range(30))
        none = it.watch(from_=From(id=0), filter=Filter(types=[EventRecord.NODE]))
        await none.take()
        await it.publisher.feeder.write(
            "rm", [(EventRecord(type=EventRecord.NODE).SerializeToString(), headers("rm", 30))]
        )
        assert await none.until(30) == [30]


async def test_an_unreadable_event_says_so_and_the_rest_comes() -> None:
    async with world() as it:
        await it.publisher.feeder.write(
            "rm", [(event(0), headers("rm", 0)), (b"\xff\xff", headers("rm", 1)), (event(2), headers("rm", 2))]
        )
        await until_next(it.publisher, "rm", 3)
        watch = it.watch(from_=From(id=0))
        assert await watch.until(2) == [0, 1, 2]
        records = [each.record for message in watch.got for each in message.events]
        assert records[1].message == "the event record cannot be read"


async def test_gaps_are_said_while_watching() -> None:
    async with world() as it:
        await it.events(0, 3)
        watch = it.watch(from_=From(id=1))
        await watch.until(2)
        await it.events(10, 2)
        assert await watch.until(11) == [1, 2, 10, 11]
        missing = [(each.first_id, each.last_id) for message in watch.got for each in message.missing]
        assert missing == [(3, 9)]


async def test_a_quiet_watch_says_that_it_is_there_and_how_far_it_looked() -> None:
    async with world(keepalive_s=0.05) as it:
        await it.events(0, 5)
        watch = it.watch(filter=Filter(object_ids=["nobody"]))
        await watch.take()
        await it.events(5, 100)
        while (await watch.take()).next_id < 105:
            pass
        assert watch.ids == []
        assert (await watch.take()).next_id == 105


# ---- slow callers ---------------------------------------------------------------------------------------------------


def narrow(it: World) -> grpc.aio.Channel:
    """A channel with a receive window of 64 KiB."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{it.publisher.service.grpc_port}", [("grpc.http2.bdp_probe", 0)])


async def fat(it: World, first: int, count: int) -> None:
    values = [(event(n, message="x" * 900), headers("rm", n)) for n in range(first, first + count)]
    await it.publisher.feeder.write("rm", values)


async def test_a_slow_caller_delays_no_other_and_gets_the_place_to_resume_from() -> None:
    async with world(stream_lag_records_max=2_000, ring_capacity=1_000) as it:
        await fat(it, 0, 10)
        await until_next(it.publisher, "rm", 10)
        slow_channel = narrow(it)
        slow, quick = it.watch(slow_channel), it.watch()
        await slow.take()
        await quick.take()
        for start in range(10, 8_010, 500):
            await fat(it, start, 500)
            assert await quick.until(start + 499) == list(range(10, start + 500))
        await advance()
        assert it.publisher.service.open_watches == 1
        code, story, trailing = await slow.end()
        assert code is Code.ABORTED
        assert "events behind, allowed are 2000" in story
        next_id = int(trailing["muster-next-id"])
        assert story.endswith(f"go on with from.id {next_id}")
        assert trailing["muster-instance"] == INSTANCE
        assert slow.ids == list(range(10, 10 + len(slow.ids)))
        assert next_id == slow.ids[-1] + 1, "the message that was being written comes before the status"
        again = it.watch(from_=From(id=next_id), instance=INSTANCE)
        assert await again.until(8_009) == list(range(next_id, 8_010))
        await slow_channel.close()


async def test_a_caller_that_reads_nothing_is_dropped() -> None:
    async with world(stream_stall_s=0.2) as it:
        await fat(it, 0, 4_000)
        await until_next(it.publisher, "rm", 4_000)
        channel = narrow(it)
        watch = it.watch(channel, from_=From(id=0))
        await watch.take()
        await advance()
        assert it.publisher.service.open_watches == 0
        code, story, _ = await watch.end()
        assert code is Code.ABORTED
        assert "has read nothing for" in story
        await channel.close()


async def test_only_so_many_may_watch() -> None:
    async with world(max_streams=3, max_streams_per_host=2) as it:
        await it.events(0, 1)
        watches = [it.watch() for _ in range(2)]
        for watch in watches:
            await watch.take()
        code, story, _ = await it.watch().end()
        assert (code, story) == (
            Code.RESOURCE_EXHAUSTED,
            "2 calls of 127.0.0.1 watch events of 'rm', expected at most 2",
        )
        watches[0].call.cancel()
        await advance()
        assert it.publisher.service.open_watches == 1
        await it.watch().take()
    async with world(max_streams=1) as it:
        await it.events(0, 1)
        await it.watch().take()
        code, story, _ = await it.watch().end()
        assert (code, story) == (Code.RESOURCE_EXHAUSTED, "1 calls watch events of 'rm', expected at most 1")


async def test_batches_of_old_events_are_bounded_and_watches_wait_for_their_turn() -> None:
    async with world(ring_capacity=100, old_reads_max=1, old_reads_waiting_max=1) as it:
        await it.events(0, 3_000)
        reads = it.publisher.service.old_reads
        async with reads.slot():
            # 1. one batch, the most allowed, waits; the next one is refused, by id and by time
            waiting = asyncio.create_task(it.batch(from_=From(id=5), count=10))
            await advance(0.1)
            assert reads.waiting == 1
            for place in (From(id=5), From(time_ns=START_NS)):
                code, story = await it.refused(it.batch(from_=place))
                assert code is Code.RESOURCE_EXHAUSTED
                assert story == "older events cannot be read now: 1 answers read them and 1 wait"
            # 2. a watch is not refused, and a caller that leaves gives up its place
            old, leaving = it.watch(from_=From(id=7)), it.watch(from_=From(id=8))
            for watch in (old, leaving):
                await watch.take()
            await advance(0.1)
            assert reads.waiting == 3
            leaving.call.cancel()
            await advance(0.1)
            assert reads.waiting == 2
            # 3. the ring answers meanwhile
            assert [each.id for each in (await it.batch(from_=From(id=2_990))).events] == list(range(2_990, 3_000))
            assert await it.watch(from_=From(id=2_950)).until(2_999) == list(range(2_950, 3_000))
        assert [each.id for each in (await waiting).events] == list(range(5, 15))
        assert await old.until(2_999) == list(range(7, 3_000))
        await advance()
        assert (reads.running, reads.waiting) == (0, 0)
        assert reads.running_peak == 1


async def test_stopping_ends_each_watch_with_the_place_to_resume_from() -> None:
    async with world() as it:
        await it.events(0, 5)
        watch = it.watch(from_=From(id=0))
        await watch.until(4)
        stopping = asyncio.create_task(it.publisher.service.stop())
        code, story, trailing = await watch.end()
        assert (code, story) == (Code.UNAVAILABLE, "the event publisher is stopping: call again")
        assert (trailing["muster-next-id"], trailing["muster-source"]) == ("5", "event-publisher")
        await stopping


async def test_a_new_instance_ends_each_watch() -> None:
    async with world() as it:
        await it.events(0, 5)
        watch = it.watch(instance=INSTANCE)
        await watch.take()
        await it.publisher.feeder.events("rm", range(3), instance="another")
        code, story, _ = await watch.end()
        assert code is Code.ABORTED
        assert "start again" in story
        assert await it.refused(it.batch(instance=INSTANCE)) == (
            Code.FAILED_PRECONDITION,
            f"instance: '{INSTANCE}' is gone; event ids started again with instance 'another'",
        )
        assert [each.id for each in (await it.batch(instance="another")).events] == [0, 1, 2]


# ---- request events -------------------------------------------------------------------------------------------------


async def test_request_events_come_at_the_interval_and_once() -> None:
    async with world() as it:
        await it.events(0, 2)
        watch = it.watch(request_events=True, from_=From(id=0))
        plain = it.watch(from_=From(id=0))
        await watch.until(1)
        await asked(it, "a", "b")
        await it.events(2, 1)
        await asked(it, "c")
        assert await watch.until_asks(3) == ["a", "b", "c"]
        assert await watch.until(2) == [0, 1, 2]
        await advance()
        assert len(store(it)) == 0  # sent events are removed
        assert await plain.until(2) == [0, 1, 2]
        assert plain.asks == []
        position = watch.got[-1].request_position
        watch.call.cancel()
        await advance()
        assert it.publisher.service.open_watches == 1, "the publisher has noticed"
        await asked(it, "d")
        await advance()
        assert len(store(it)) == 1
        again = it.watch(request_events=True, request_events_after=position)
        assert await again.until_asks(1) == ["d"]


async def test_a_named_position_excludes_earlier_events_over_a_restart() -> None:
    kept = MemoryStore()
    async with world(store=kept) as it:
        await it.events(0, 1)
        await asked(it, "a", "b")
        watch = it.watch(request_events=True)
        await watch.until_asks(2)
        position = watch.got[-1].request_position
        await asked(it, "c")
        await watch.until_asks(3)
    async with world(store=kept) as it:
        assert await it.watch(request_events=True, request_events_after=position).until_asks(1) == ["c"]


async def test_without_anybody_the_newest_are_kept_and_the_rest_counted() -> None:
    async with world(request_store_capacity=3) as it:
        await it.events(0, 1)
        await asked(it, *[f"k{n}" for n in range(10)])
        await advance()
        assert store(it) is not None
        assert store(it).dropped == 7
        watch = it.watch(request_events=True)
        assert await watch.until_asks(3) == ["k7", "k8", "k9"]


async def test_two_watchers_each_get_all_events() -> None:
    async with world() as it:
        await it.events(0, 1)
        watches = [it.watch(request_events=True) for _ in range(2)]
        for watch in watches:
            await watch.take()
        await asked(it, *[f"k{n}" for n in range(700)])
        for watch in watches:
            assert await watch.until_asks(700) == [f"k{n}" for n in range(700)]
        await advance()
        assert len(store(it)) == 0


async def test_request_events_only_and_filtered_even_of_an_rm_without_other_events() -> None:
    async with world() as it:
        await asked(it, "first", rm_id="new")
        await advance()
        assert store(it, "new") is not None
        only = it.watch(rm_id="new", request_events=True, no_tracked_events=True)
        mine = it.watch(rm_id="new", request_events=True, filter=Filter(application_id="app-7"))
        first = await only.take()
        assert (first.rm_id, first.instance, first.next_id) == ("new", "", 0)
        await mine.take()
        await asked(it, "a", rm_id="new")
        await asked(it, "b", rm_id="new", application="app-7")
        assert await only.until_asks(3) == ["first", "a", "b"]
        assert await mine.until_asks(1) == ["b"]
        await it.events(0, 3, rm_id="new")
        await it.publisher.feeder.events("new", [3])
        await asked(it, "c", rm_id="new")
        await only.until_asks(4)
        assert only.ids == []
        tracked = it.watch(rm_id="new", from_=From(id=0), filter=Filter(object_ids=["app-3"]))
        assert await tracked.until(3) == [3]


async def test_a_watch_that_waits_for_an_rm_s_first_event_has_it() -> None:
    async with world() as it:
        await asked(it, "first", rm_id="new")
        await advance()
        assert store(it, "new") is not None
        watch = it.watch(rm_id="new", request_events=True)
        await watch.take()
        await it.events(0, 3, rm_id="new")
        assert await watch.until(2) == [0, 1, 2]


async def test_nil_empty_and_unreadable_request_events_are_skipped() -> None:
    async with world() as it:
        await it.events(0, 1)
        watch = it.watch(request_events=True)
        await watch.take()
        given = shim_headers("rm")
        bad: Any = [(None, given), (b"", given), (b"\xff\xff\xff", given), (b"\x08\x01" * 3, (("tracking", b"0"),))]
        await it.publisher.feeder.write("rm", bad)
        await asked(it, "good")
        assert await watch.until_asks(1) == ["good"]
        await it.events(1, 1)
        assert await watch.until(1) == [1]


async def test_with_tracking_off_only_request_events_are_to_be_had() -> None:
    async with world(tracking_enabled=False) as it:
        await it.publisher.feeder.events("rm", range(3))
        await asked(it, "before")
        await advance()
        assert store(it) is not None
        code, story = await it.refused(it.batch())
        assert (code, story) == (
            Code.FAILED_PRECONDITION,
            "rm_id: events of 'rm' are not tracked (service.event.trackingEventsEnabled)",
        )
        assert (await it.watch().end())[0] is Code.FAILED_PRECONDITION
        watch = it.watch(request_events=True)
        await watch.take()
        await asked(it, "a")
        assert await watch.until_asks(2) == ["before", "a"]


async def test_an_rms_event_settings_count_at_once() -> None:
    async with world() as it:
        await it.events(0, 20)
        watch = it.watch()
        await watch.take()
        await say(it.publisher.log, "rm", {"event.maxStreams": "1", "event.RESTResponseSize": "5"})
        await advance()
        assert it.publisher.service.rm_settings.settings_for("rm").max_streams == 1
        assert (await it.watch().end())[0] is Code.RESOURCE_EXHAUSTED
        assert len((await it.batch(from_=From(id=0))).events) == 5
        assert (await it.refused(it.batch(count=6)))[0] is Code.INVALID_ARGUMENT
        # the store of request events
        await asked(it, *[f"k{n}" for n in range(10)])
        await advance()
        assert store(it) is not None
        assert len(store(it)) == 10
        await say(it.publisher.log, "rm", {"service.event.requestStoreCapacity": "3"})
        await advance()
        assert len(store(it)) == 3
        assert await it.watch(request_events=True).until_asks(3) == ["k7", "k8", "k9"]
        # tracking
        await say(it.publisher.log, "rm", {"service.event.trackingEventsEnabled": "false"})
        code, story, _ = await watch.end()
        assert (code, "are not tracked" in story) == (Code.FAILED_PRECONDITION, True)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "story"),
    [
        ({"rm_id": "nope"}, Code.NOT_FOUND, "rm_id: no events of 'nope'; known RMs: 'other', 'rm'"),
        (
            {"rm_id": ""},
            Code.INVALID_ARGUMENT,
            "rm_id: empty, expected an RM's id; known RMs: 'other', 'rm'",
        ),
        ({"from_": From(id=4)}, Code.OUT_OF_RANGE, "from.id: 4 is not there yet, the next event has the id 3"),
        ({"from_": From()}, Code.INVALID_ARGUMENT, "from: empty, expected id, time_ns or newest"),
        (
            {"from_": From(time_ns=-1)},
            Code.INVALID_ARGUMENT,
            "from.time_ns: -1, expected nanoseconds since 1970",
        ),
        (
            {"filter": Filter(types=[99])},  # type: ignore[list-item]
            Code.INVALID_ARGUMENT,
            "filter.types[0]: 99, expected a number of REQUEST, APP, NODE, QUEUE, USERGROUP ...",
        ),
        (
            {"filter": Filter(queue="default")},
            Code.INVALID_ARGUMENT,
            "filter.queue: 'default', expected a full path, such as root.default",
        ),
        (
            {"filter": Filter(object_ids=["x"] * 101)},
            Code.INVALID_ARGUMENT,
            "filter.object_ids: 101 of them, expected at most 100",
        ),
        (
            {"instance": "x"},
            Code.FAILED_PRECONDITION,
            f"instance: 'x' is gone; event ids started again with instance {INSTANCE!r}",
        ),
    ],
)
async def test_a_wrong_request_is_answered_clearly(fields: dict[str, Any], code: Code, story: str) -> None:
    async with world() as it:
        await it.events(0, 3)
        await it.events(0, 3, rm_id="other")
        assert await it.refused(it.batch(**fields)) == (code, story)
        ended = await it.watch(**fields).end()
        assert ended[:2] == (code, story)
        assert it.publisher.service.open_watches == 0
        assert len((await it.batch(from_=From(id=0))).events) == 3, "it goes on"


async def test_requests_that_only_one_method_refuses() -> None:
    async with world(rest_response_size=500) as it:
        await it.events(0, 3)
        assert await it.refused(it.batch(count=501)) == (
            Code.INVALID_ARGUMENT,
            "count: 501, expected at most 500, or 0 for 500",
        )
        assert (await it.watch(no_tracked_events=True).end())[0] is Code.INVALID_ARGUMENT
        assert (await it.watch(request_events_after=3).end())[0] is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Batch", "Watch"])
async def test_bytes_that_are_no_request(method: str) -> None:
    async with world() as it:
        call = it.channel.unary_unary(f"/muster.v1.Events/{method}")
        code, story = await it.refused(call(b"\xff\xff\xff"))
        kind = "EventBatchRequest" if method == "Batch" else "WatchEventsRequest"
        assert (code, story) == (Code.INVALID_ARGUMENT, f"not a muster.v1.{kind}: 3 bytes that do not decode")


# ---- to be found ----------------------------------------------------------------------------------------------------


async def test_the_publisher_lists_it_in_reflection_and_health() -> None:
    async with world() as it:
        listed = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(it.channel)
        answers = [answer async for answer in reflection.ServerReflectionInfo(iter([listed]))]
        assert "muster.v1.Events" in {service.name for service in answers[0].list_services_response.service}
        health: Any = health_pb2_grpc.HealthStub(it.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="muster.v1.Events"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
