"""GET /ws/v1/events/stream over real sockets: order, old and live events, limits, slow clients, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock
from muster_bus.log import OutRecord
from muster_bus.topics import state_key
from muster_event_publisher import metrics
from muster_event_publisher.errors import GrpcError, HttpError, WatchEnded
from muster_event_publisher.event_json import event_json
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.grpc_events import _serve
from muster_event_publisher.rest_streams import EventStream, EventStreams, StreamLimits
from muster_event_publisher.ring import Rings
from muster_proto.muster.bus.v1.state_pb2 import ForgottenObject
from muster_runtime.ending import Ending
from muster_runtime.event_settings import EventSettings
from unit.publisher.feeding import INSTANCE, event, headers
from unit.publisher.running import TOPICS, Running, running, until_next
from waiting import eventually

STREAM = "/ws/v1/events/stream"
FIRST_LINE = b'{"InstanceUUID":"%b"}' % INSTANCE.encode()


class Lines:
    """The lines of an open stream, one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> bytes:
        async with asyncio.timeout(60):
            return (await anext(self._lines)).encode()

    async def take(self, count: int) -> list[bytes]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[bytes]:
        async with asyncio.timeout(60):
            return [line.encode() async for line in self._lines]


@asynccontextmanager
async def opened(publisher: Running, query: str = "", **kwargs: Any) -> AsyncIterator[Lines]:
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", publisher.url + STREAM + query, **kwargs) as response,
    ):
        yield Lines(response)


async def filled(publisher: Running, count: int, rm_id: str = "rm") -> None:
    await publisher.service.start()
    await publisher.feeder.events(rm_id, range(count))
    await until_next(publisher, rm_id, count)


def lines_of(ids: range) -> list[bytes]:
    return [event_json(event(n)) for n in ids]


@pytest.mark.parametrize(
    ("query", "first"),
    [("", 20), ("?count=0", 20), ("?count=5", 15), ("?count=500", 0), ("?start=20", 20), ("?start=3", 3),
     ("?start=3&count=1", 3)],
)  # fmt: skip
async def test_history_then_live(query: str, first: int) -> None:
    async with running(listen=True) as publisher:
        await filled(publisher, 20)
        async with opened(publisher, query) as lines:
            assert lines.response.status_code == 200
            assert lines.response.headers["content-type"] == "application/json; charset=UTF-8"
            assert lines.response.headers["access-control-allow-origin"] == "*"
            assert lines.response.headers["x-muster-next-id"] == str(first)
            assert await lines.next() == FIRST_LINE
            assert await lines.take(20 - first) == lines_of(range(first, 20))
            await publisher.feeder.events("rm", range(20, 23))
            assert await lines.take(3) == lines_of(range(20, 23))


async def test_older_than_the_ring_comes_from_the_log() -> None:
    async with running(listen=True, ring_capacity=10) as publisher:
        await filled(publisher, 2_000)
        async with opened(publisher, "?start=100") as lines:
            assert await lines.next() == FIRST_LINE
            assert await lines.take(1_900) == lines_of(range(100, 2_000))
            await publisher.feeder.events("rm", range(2_000, 2_002))
            assert await lines.take(2) == lines_of(range(2_000, 2_002))


async def test_missing_ids_are_reported() -> None:
    async with running(listen=True, ring_capacity=10) as publisher:
        await filled(publisher, 50)
        publisher.log.store.delete_before(TOPICS.events, TOPICS.partition_of("rm"), 45)
        async with opened(publisher, "?start=7") as lines:
            assert await lines.next() == FIRST_LINE
            note = json.loads(await lines.next())
            assert (note["NextID"], note["InstanceUUID"]) == (40, INSTANCE)
            assert "7 to 39" in note["message"]
            assert await lines.take(10) == lines_of(range(40, 50))


async def test_a_gap_is_said() -> None:
    async with running(listen=True) as publisher:
        await filled(publisher, 2)
        async with opened(publisher) as lines:
            assert await lines.next() == FIRST_LINE
            await publisher.feeder.events("rm", [2, 9, 10])
            assert await lines.next() == event_json(event(2))
            note = json.loads(await lines.next())
            assert (note["NextID"], note["InstanceUUID"]) == (9, INSTANCE)
            assert await lines.take(2) == lines_of(range(9, 11))


async def test_a_start_that_is_not_there_yet_is_refused() -> None:
    async with running() as publisher:
        await filled(publisher, 20)
        answer = await publisher.http.get(STREAM + "?start=21")
        assert answer.status_code == 400
        assert "21 is not present yet, the next event has the id 20" in answer.json()["message"]


async def test_a_start_without_an_rm_is_refused() -> None:
    """It would begin at an id of the first RM, and the client would count from another RM's id."""
    async with running(listen=True) as publisher:
        await publisher.service.start()
        answer = await publisher.http.get(STREAM + "?start=7")
        assert answer.status_code == 400
        assert "7 is not present yet, the next event has the id 0" in answer.json()["message"]
        async with opened(publisher, "?start=0") as lines:
            await publisher.feeder.events("rm", range(1))
            assert await lines.take(2) == [FIRST_LINE, *lines_of(range(1))]


async def test_a_stream_opened_before_any_event_begins_with_the_first() -> None:
    async with running(listen=True) as publisher:
        await publisher.service.start()
        async with opened(publisher) as lines:
            await publisher.feeder.events("rm", range(3))
            assert await lines.take(4) == [FIRST_LINE, *lines_of(range(3))]


async def test_a_stream_that_waits_for_any_rm_does_not_begin_with_a_forgotten_one() -> None:
    async with running(listen=True) as publisher:
        key, value = state_key("gone", "forgotten", "-"), ForgottenObject(rm_id="gone").SerializeToString()
        partition = TOPICS.partition_of("gone")
        writer = await publisher.log.writer("scheduler")
        await writer.append(OutRecord(TOPICS.state, partition, key, value))
        await writer.close()
        await publisher.feeder.events("gone", range(2))
        await publisher.service.start()
        async with opened(publisher) as lines:
            await publisher.feeder.events("rm", range(3))
            assert await lines.take(4) == [FIRST_LINE, *lines_of(range(3))]


async def test_an_idle_stream_is_kept_alive() -> None:
    async with running(listen=True, keepalive_s=0.02) as publisher:
        await filled(publisher, 1)
        async with opened(publisher) as lines:
            assert await lines.take(4) == [FIRST_LINE] * 4
            await publisher.feeder.events("rm", [1])
            while (line := await lines.next()) == FIRST_LINE:
                pass
            assert line == event_json(event(1))


async def test_limits_count_peers_not_host_headers() -> None:
    async with running(listen=True, max_streams=3, max_streams_per_host=2) as publisher:
        await filled(publisher, 1)
        async with opened(publisher) as one, opened(publisher) as two:
            await one.next()
            await two.next()
            async with opened(publisher, headers={"Host": "elsewhere", "X-Forwarded-For": "10.0.0.1"}) as refused:
                assert refused.response.status_code == 503
                message = "Too many streaming connections"
                assert json.loads((await refused.rest())[0]) == {
                    "status_code": 503, "message": message, "description": message
                }  # fmt: skip
        await no_streams(publisher)
        async with opened(publisher) as again:
            assert await again.next() == FIRST_LINE


async def test_trusted_proxies_name_the_client_and_the_total_still_holds() -> None:
    proxied = {"max_streams": 3, "max_streams_per_host": 1, "trusted_proxies": ("127.0.0.1", "10.9.9.9")}
    async with running(listen=True, **proxied) as publisher:
        await filled(publisher, 1)
        async with (
            opened(publisher, headers={"X-Forwarded-For": "10.0.0.1"}) as one,
            opened(publisher, headers={"X-Forwarded-For": "10.0.0.1, 10.0.0.2, 10.9.9.9"}) as two,
            opened(publisher, headers={"X-Forwarded-For": "10.0.0.2"}) as same_as_two,
            opened(publisher, headers=[("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "10.0.0.1")]) as forged,
            opened(publisher, headers={"X-Forwarded-For": "10.0.0.3"}) as three,
            opened(publisher, headers={"X-Forwarded-For": "10.0.0.4"}) as four,
        ):
            statuses = [lines.response.status_code for lines in (one, two, same_as_two, forged, three, four)]
            assert statuses == [200, 200, 503, 503, 200, 503]


async def no_streams(publisher: Running) -> None:
    await eventually(lambda: not publisher.service.open_streams)


async def test_a_client_that_goes_away_frees_its_place() -> None:
    async with running(listen=True) as publisher:
        await filled(publisher, 1)
        async with opened(publisher) as lines:
            await lines.next()
            assert publisher.service.open_streams == 1
        await no_streams(publisher)


async def test_a_stalled_client_delays_no_other_and_gets_the_id_to_resume_from() -> None:
    # More than sockets can buffer, so that the publisher notices that nobody reads.
    total, message, dropped_before = 12_000, "m" * 10_000, dropped("lag")
    async with running(listen=True, ring_capacity=200, stream_lag_records_max=1_000, tail_records=0) as publisher:
        await filled(publisher, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", publisher.service.http_port, limit=1024)
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % STREAM.encode())
        assert b"200" in await reader.readline()
        async with opened(publisher) as lines:
            assert await lines.next() == FIRST_LINE
            for start in range(1, total, 200):
                ids = range(start, min(start + 200, total))
                await publisher.feeder.write("rm", [(event(n, message=message), headers("rm", n)) for n in ids])
                assert await lines.take(len(ids)) == [event_json(event(n, message=message)) for n in ids]
                if dropped("lag") > dropped_before:
                    break
            await eventually(lambda: dropped("lag") > dropped_before)
        # When the client reads again, it finds the first events without a gap, then the reason of the end.
        received = await asyncio.wait_for(_rest(reader), 60)
        events = [line for line in received if line.startswith(b'{"type"')]
        assert events == [event_json(event(n, message=message)) for n in range(1, 1 + len(events))]
        last = json.loads(received[-1])
        assert last["status_code"] == 503
        assert f"go on with ?start={1 + len(events)}" in last["message"]
        assert "events behind, allowed are 1000" in last["message"]
        writer.close()


async def test_a_client_that_does_not_even_take_its_last_line_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("muster_event_publisher.rest_streams._LAST_LINE_S", 0.1)
    monkeypatch.setattr("muster_event_publisher.rest_streams._CHECK_INTERVAL_S", 0.05)
    # More than sockets can buffer.
    total, message = 2_000, "m" * 10_000
    async with running(listen=True, stream_stall_s=0.2) as publisher:
        await publisher.service.start()
        await publisher.feeder.write("rm", [(event(n, message=message), headers("rm", n)) for n in range(total)])
        await until_next(publisher, "rm", total)
        reader, writer = await asyncio.open_connection("127.0.0.1", publisher.service.http_port, limit=1024)
        writer.write(b"GET %b?start=0 HTTP/1.1\r\nHost: x\r\n\r\n" % STREAM.encode())
        assert b"200" in await reader.readline()
        await eventually(lambda: publisher.service.open_streams == 1)
        await no_streams(publisher)
        # The connection has ended, in the middle of the answer.
        with contextlib.suppress(ConnectionError):
            received = await asyncio.wait_for(reader.read(-1), 60)
            assert not received.endswith(b"\r\n0\r\n\r\n")
        writer.close()
    complaints = [
        each for each in caplog.records if each.name.startswith("uvicorn") and each.levelno >= logging.WARNING
    ]
    assert [each.getMessage() for each in complaints] == []


def dropped(reason: str) -> float:
    return metrics.STREAMS_DROPPED.labels(reason)._value.get()


async def _rest(reader: asyncio.StreamReader) -> list[bytes]:
    """Lines of a chunked body until the connection ends."""
    data = await reader.read(-1)
    _, _, body = data.partition(b"\r\n\r\n")
    text = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        text, body = text + body[:length], body[length + 2 :]
        if not length:
            break
    return text.splitlines()


async def test_stopping_says_where_to_go_on_and_gives_the_last_events() -> None:
    async with running(listen=True) as publisher:
        await filled(publisher, 1)
        async with opened(publisher) as lines:
            assert await lines.next() == FIRST_LINE
            await publisher.feeder.events("rm", range(1, 4))
            await publisher.service.stop()
            rest = await lines.rest()
            assert rest[:-1] == lines_of(range(1, 4))
            assert "stopping; go on with ?start=4" in json.loads(rest[-1])["message"]


async def test_a_new_instance_ends_the_stream() -> None:
    async with running(listen=True) as publisher:
        await filled(publisher, 3)
        async with opened(publisher) as lines:
            assert await lines.next() == FIRST_LINE
            await publisher.feeder.events("rm", range(2), instance="another")
            assert "another instance" in json.loads((await lines.rest())[-1])["message"]
        async with opened(publisher, "?start=0") as lines:
            assert await lines.take(3) == [b'{"InstanceUUID":"another"}', *lines_of(range(2))]


# The change from old to live events without sockets: appends and a client's reads in every order.

LIMITS = StreamLimits(total=10, per_host=10, lag_records=10_000, stall_s=60, keepalive_s=0)


async def turns() -> None:
    """Lets all tasks do what they can do without more input, however busy the machine is."""
    for _ in range(50):
        await asyncio.sleep(0)


class SlowClient:
    """An ASGI client that takes one chunk each time it is allowed to."""

    def __init__(self) -> None:
        self.body = b""
        self.turns = asyncio.Semaphore(0)
        self.left = asyncio.Event()

    async def send(self, message: Any) -> None:
        await self.turns.acquire()
        self.body += message.get("body", b"")

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


@settings(max_examples=60)
@given(
    before=st.integers(0, 700),
    count=st.integers(0, 900),
    moves=st.lists(st.one_of(st.tuples(st.just("append"), st.integers(1, 300)), st.just(("read", 1))), max_size=25),
)
def test_no_loss_no_double_no_disorder_at_the_seam(before: int, count: int, moves: list[tuple[str, int]]) -> None:
    async def run() -> None:
        rings = Rings(100_000)
        ring = rings.ring_for("rm", INSTANCE)
        ring.append(0, [event(n) for n in range(before)])
        streams = EventStreams(LIMITS, ManualClock())
        client = SlowClient()
        first = max(before - count, 0)
        stream = EventStream(streams, EventSource(rings, [], TOPICS), ring, first, "host", [])
        task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
        for what, n in moves:
            if what == "append":
                ring.append(ring.next_id, [event(i) for i in range(ring.next_id, ring.next_id + n)])
            else:
                client.turns.release()
            await asyncio.sleep(0)
        for _ in range(100):
            client.turns.release()
        expected = [FIRST_LINE, *lines_of(range(first, ring.next_id))]
        # Wait for the body, not the cursor: without an event to send, the cursor comes before the first line.
        await eventually(lambda: stream.cursor == ring.next_id and client.body.count(b"\n") >= len(expected))
        client.left.set()
        await task
        assert client.body.splitlines() == expected
        assert len(streams.open) == 0

    asyncio.run(run())


async def test_a_client_that_reads_nothing_for_too_long_is_dropped() -> None:
    clock, rings, client = ManualClock(), Rings(100), SlowClient()
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(0)])
    streams = EventStreams(LIMITS, clock)
    stream = EventStream(streams, EventSource(rings, [], TOPICS), ring, 0, "host", [])
    task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    client.turns.release()
    client.turns.release()
    await eventually(lambda: client.body)
    clock.advance(59)
    stream.check()
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(2)
    stream.check()
    client.turns.release()
    await asyncio.wait_for(task, 60)
    assert b"has read nothing for 61 s" in client.body
    assert b"?start=0" in client.body


def test_limits_are_freed() -> None:
    streams = EventStreams(StreamLimits(1, 1, 1, 1, 1), ManualClock())
    stream = EventStream(streams, EventSource(Rings(1), [], TOPICS), None, 0, "host", [])
    streams.check_limits("host")
    streams.open.enter(stream)
    with pytest.raises(HttpError):
        streams.check_limits("other")
    streams.open.leave(stream)
    streams.check_limits("host")


class Collector:
    """An ASGI client that takes everything at once, and nothing while it is stalled."""

    def __init__(self, *, stalled: bool) -> None:
        self.body = b""
        self.reads, self.left = asyncio.Event(), asyncio.Event()
        if not stalled:
            self.reads.set()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            return  # so little is always sent
        await self.reads.wait()
        self.body += message["body"]
        if not message.get("more_body", True):
            self.left.set()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def events(self) -> list[bytes]:
        return [line for line in self.body.splitlines() if line.startswith(b'{"type"')]


async def test_ten_stalled_clients_of_a_hundred_delay_no_other() -> None:
    limits = StreamLimits(total=110, per_host=110, lag_records=500, stall_s=60, keepalive_s=0)
    rings = Rings(300)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(0)])
    streams, source = EventStreams(limits, ManualClock()), EventSource(rings, [], TOPICS)
    clients = [Collector(stalled=number % 10 == 0) for number in range(100)]

    def begin(client: Collector, start: int) -> asyncio.Task[None]:
        stream = EventStream(streams, source, ring, start, "host", [])
        return asyncio.create_task(stream({"type": "http"}, client.receive, client.send))

    tasks = [begin(client, 0) for client in clients]
    stalled, others = clients[::10], [client for client in clients if client.reads.is_set()]
    total = 2_000
    while ring.next_id < total:
        # Never more than the ring holds at once, so that readers take all of it from memory.
        ids = range(ring.next_id, min(ring.next_id + 100, total))
        ring.append(ids.start, [event(n) for n in ids])
        await eventually(lambda: all(client.body.count(b"\n") == ring.next_id + 1 for client in others))
        for stream in streams.open:
            stream.check()
    wanted = lines_of(range(total))
    assert [client.events for client in others] == [wanted] * 90
    # The stalled clients read again: all events so far, the reason of the end, and the place to resume.
    for client in stalled:
        client.reads.set()
    await eventually(lambda: all(client.left.is_set() for client in stalled))
    for client in stalled:
        got = len(client.events)
        assert client.events == wanted[:got]
        last = json.loads(client.body.splitlines()[-1])
        assert last["status_code"] == 503
        assert last["message"].startswith("the client is ")
        assert last["message"].endswith(f"events behind, allowed are 500; go on with ?start={got}")
        assert got < 300
    for client in others:
        client.left.set()
    await asyncio.gather(*tasks)
    assert len(streams.open) == 0


async def test_cached_lines_of_one_stream_are_not_too_many_for_the_next() -> None:
    rings = Rings(1_000)
    ring = rings.ring_for("rm", INSTANCE)
    streams, source = EventStreams(LIMITS, ManualClock()), EventSource(rings, [], TOPICS)
    clients, tasks = [], []
    for end in (10, 15, 15, 300, 600):
        if end > ring.next_id:
            ring.append(ring.next_id, [event(n) for n in range(ring.next_id, end)])
        clients.append(client := Collector(stalled=False))
        stream = EventStream(streams, source, ring, 0, "host", [])
        tasks.append(asyncio.create_task(stream({"type": "http"}, client.receive, client.send)))
        await eventually(lambda: all(one.body.count(b"\n") > ring.next_id for one in clients))
        assert [client.events for client in clients] == [lines_of(range(end))] * len(clients)
    for client in clients:
        client.left.set()
    await asyncio.gather(*tasks)


async def test_a_dropped_client_has_as_long_for_the_reason_as_it_may_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_event_publisher.rest_streams._LAST_LINE_S", 0.01)
    clock, rings = ManualClock(), Rings(100)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(0)])
    for stall_s, told in ((3600.0, True), (0.05, False)):
        streams = EventStreams(StreamLimits(10, 10, 5, stall_s, 0), clock)
        client = Collector(stalled=True)
        stream = EventStream(streams, EventSource(rings, [], TOPICS), ring, 0, "host", [])
        task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
        await asyncio.sleep(0)
        ring.append(ring.next_id, [event(n) for n in range(ring.next_id, ring.next_id + 20)])
        await turns()
        stream.check()
        stream.check()
        if not told:
            await task  # it gave up
            assert (client.body, len(streams.open)) == (b"", 0)
            continue
        await asyncio.sleep(0.1)  # far longer than the least
        assert len(streams.open) == 1
        client.reads.set()
        await task
        assert b"go on with ?start=0" in client.body


async def test_a_client_that_leaves_during_its_last_line_ends_like_any_other() -> None:
    rings = Rings(100)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(0)])
    streams = EventStreams(StreamLimits(10, 10, 5, 3600.0, 0), ManualClock())
    client = Collector(stalled=True)
    stream = EventStream(streams, EventSource(rings, [], TOPICS), ring, 0, "host", [])
    task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    await asyncio.sleep(0)
    ring.append(1, [event(n) for n in range(1, 20)])
    await turns()
    stream.check()
    await turns()
    assert not task.done(), "it waits until the client has taken the last line"
    client.left.set()
    await asyncio.wait({task}, timeout=60)
    assert task.done()
    assert not task.cancelled(), "the server would call that an error of the application"
    assert task.exception() is None
    assert len(streams.open) == 0


async def test_a_stream_that_waits_for_any_rm_begins_when_tracking_of_one_is_turned_on() -> None:
    rings, on = Rings(100), {"other"}
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(0)])

    class Settings:
        def settings_for(self, rm_id: str) -> EventSettings:
            return EventSettings()

        def tracks(self, rm_id: str) -> bool:
            return rm_id in on

        def registered(self) -> list[str]:
            return ["other"]

        def stopped_by_rm(self, rm_ids: Iterable[str]) -> dict[str, bool]:
            return dict.fromkeys(rm_ids, False)

    streams = EventStreams(StreamLimits(10, 10, 100, 3600.0, 0), ManualClock())
    client = Collector(stalled=False)
    stream = EventStream(streams, EventSource(rings, [], TOPICS, settings=Settings()), None, 0, "host", [])
    task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    await turns()
    assert client.body == b""
    on.add("rm")
    rings.resize("rm")
    await eventually(lambda: client.events == lines_of(range(1)))
    client.left.set()
    await task


async def test_the_past_that_a_client_asked_for_counts_until_it_has_caught_up() -> None:
    rings = Rings(100)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(n) for n in range(50)])
    streams = EventStreams(StreamLimits(10, 10, 5, 3600.0, 0), ManualClock())
    client = Collector(stalled=True)
    stream = EventStream(streams, EventSource(rings, [], TOPICS), ring, 0, "host", [])
    task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    await turns()
    stream.check()
    client.reads.set()
    await eventually(lambda: client.events == lines_of(range(50)))
    await turns()
    client.reads.clear()
    for first in (50, 51):  # it takes the first one only
        ring.append(first, [event(n) for n in range(first, first + 1 + 9 * (first - 50))])
        await turns()
    stream.check()
    client.reads.set()
    await asyncio.wait({task}, timeout=60)
    assert b"events behind, allowed are 5" in client.body


# ---- two causes -----------------------------------------------------------------------------------------------------


async def behind() -> tuple[Collector, EventStream, asyncio.Task[None]]:
    """A stream whose client reads nothing and is too far behind."""
    rings = Rings(100)
    ring = rings.ring_for("rm", INSTANCE)
    ring.append(0, [event(0)])
    streams = EventStreams(StreamLimits(10, 10, 5, 3600.0, 0), ManualClock())
    client = Collector(stalled=True)
    stream = EventStream(streams, EventSource(rings, [], TOPICS), ring, 0, "host", [])
    task = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
    await turns()
    ring.append(1, [event(n) for n in range(1, 20)])
    return client, stream, task


async def test_a_client_that_leaves_after_it_was_dropped_counts_as_dropped() -> None:
    client, stream, task = await behind()
    before = dropped("lag")
    stream.check()
    client.left.set()
    await asyncio.wait({task}, timeout=60)
    assert task.exception() is None
    assert stream._ending.cause is not None
    assert (stream._ending.cause.reason, dropped("lag")) == ("lag", before + 1)


async def test_a_client_that_has_left_is_not_dropped() -> None:
    client, stream, task = await behind()
    before = dropped("lag")
    client.left.set()
    while not stream._is_disconnected:  # noqa: ASYNC110 - right after it
        await asyncio.sleep(0)
    stream.check()
    await asyncio.wait({task}, timeout=60)
    assert task.exception() is None
    assert stream._ending.cause is not None
    assert (stream._ending.cause.reason, dropped("lag")) == ("left", before)


@pytest.mark.parametrize("first", ["lag", "log"])
async def test_a_client_is_told_what_ended_its_stream_first(first: str) -> None:
    client, stream, task = await behind()
    if first == "log":
        stream._finish("log", "the events are away")
    stream.check()
    stream._finish("log", "the events are away")
    client.reads.set()
    assert stream._task is not None
    stream._task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert (b"the events are away" in client.body, b"events behind" in client.body) == (first == "log", first == "lag")


class Watch:
    """A call of Watch that fails."""

    def __init__(self, fails: Exception, ends: GrpcError | None) -> None:
        self.ending: Ending[GrpcError] = Ending()
        self._fails, self._ends = fails, ends

    def end(self, error: GrpcError) -> None:
        self.ending.by(error)

    async def messages(self) -> AsyncIterator[bytes]:
        if self._ends is not None:
            self.end(self._ends)
        yield b""

    def sending(self, now: bool) -> None:
        if not now:
            raise self._fails


class Call:
    async def send_initial_metadata(self, _: object) -> None: ...

    async def write(self, _: bytes) -> None: ...


@pytest.mark.parametrize("fails", [WatchEnded("the events are away"), KeyError("a defect")])
@pytest.mark.parametrize("ends", [WatchEnded("the caller is 7 events behind"), None])
async def test_a_call_of_watch_is_told_what_ended_it_first(fails: Exception, ends: GrpcError | None) -> None:
    watch = Watch(fails, ends)
    with pytest.raises(type(ends or fails)) as raised:
        await _serve(watch, Call())  # type: ignore[arg-type]
    assert raised.value is (ends or fails)
    if isinstance(raised.value, WatchEnded):
        watch.end(WatchEnded("the event publisher is stopping"))
        assert watch.ending.cause is raised.value
