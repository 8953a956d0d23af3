"""The driver on Faust: settings, liveness, batches, mended defects. (Kafka: tests/integration.)"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from faust.tables.base import Collection as Table
from faust.tables.recovery import Recovery
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.transport.drivers.aiokafka import Consumer as KafkaConsumer
from faust.types import TP
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_event_publisher.derive.faust_app import FaustDerive, faust_app
from muster_event_publisher.derive.faust_patches import (
    PatchedConsumer,
    PatchedProducer,
    PatchedStream,
    PatchedTable,
    PatchedTransport,
)
from muster_event_publisher.derive.settings import DeriveSettings
from muster_runtime.watchdog import Usage
from unit.publisher.feeding import Feeder
from waiting import eventually

LOG_SETTINGS = LogSettings(backend="memory", partitions=1, kafka_bootstrap_servers="a:1, b:2", topic_prefix="x.")


def test_the_mended_defects_still_exist() -> None:
    for name in ("perform_seek", "pause_partitions", "resume_partitions", "resume_flow", "_getmany", "_add_gap"):
        assert name in vars(BaseConsumer), name
    assert "_committed_offset" in BaseConsumer.perform_seek.__code__.co_names
    assert "_add_gap" in inspect.getsource(BaseConsumer._drain_messages)
    assert "wait_first(" in inspect.getsource(BaseConsumer._drain_messages)
    assert "in_transaction" in AIOKafkaConsumerThread._create_worker_consumer.__code__.co_names
    assert "_new_consumer_thread" in vars(KafkaConsumer)
    assert "consumer.topic_partitions" in inspect.getsource(Table._verify_source_topic_partitions)
    # Faust's wrong order. (If a version has another order, drop the mend: tests/integration/test_faust_starts.py.)
    source = inspect.getsource(Recovery.on_recovery_completed)
    steps = ["resume_partitions", "perform_seek", "flow_control.resume", "resume_flow"]
    assert sorted(steps, key=source.index) == steps


def test_the_app_has_no_doors_and_no_topics_of_its_own() -> None:
    connection = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "sasl_plain_password": "s3cret"}
    app = faust_app(DeriveSettings(member="7"), LOG_SETTINGS, connection)
    conf = app.conf
    assert [str(url) for url in conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert (conf.id, conf.consumer_group_instance_id) == ("x.muster-derive", "x.muster-derive-7")
    assert (conf.web_enabled, conf.topic_allow_declare, conf.topic_disable_leader) == (False, False, True)
    assert (conf.worker_redirect_stdouts, conf.autodiscover) == (False, False)
    assert conf.Stream is PatchedStream
    assert conf.Table is PatchedTable
    assert isinstance(app.transport, PatchedTransport)
    assert conf.broker_heartbeat_interval * 3 <= conf.broker_session_timeout + 0.001
    assert conf.broker_credentials.username == "me"
    assert "s3cret" not in repr(conf.broker_credentials)


class Stalled(Exception):
    pass


class Watched(FaustDerive):
    looked = seen_waiting = 0

    async def _measure(self, *arguments: Any) -> int:
        lag = await super()._measure(*arguments)
        self.looked += 1
        self.seen_waiting += lag > 0
        return lag

    def _fail(self, error: BaseException) -> None:
        raise Stalled(str(error))


async def watched(log: MemoryLog, position: int, usage: Callable[[], Usage] = Usage) -> Watched:
    derive = Watched(DeriveSettings(stall_s=0.05), LOG_SETTINGS, log, usage)
    derive._recovered = True
    derive.positions[0] = position
    return derive


async def watch(derive: Watched) -> None:
    """Looks at the lag and at the watchdog until one of them fails."""
    async with asyncio.TaskGroup() as group:
        group.create_task(derive._measure_lags())
        group.create_task(derive._watch())


@contextlib.contextmanager
def stalls(match: str) -> Iterator[None]:
    with pytest.raises(ExceptionGroup) as failed:
        yield
    assert failed.group_contains(Stalled, match=match)


@pytest.fixture
async def log() -> MemoryLog:
    topics = LOG_SETTINGS.topics()
    log = MemoryLog(topics.specs(), SystemClock())
    await log.start()
    await Feeder(log, topics).events("rm", range(3))
    return log


async def test_a_process_that_takes_no_waiting_events_ends(log: MemoryLog) -> None:
    derive = await watched(log, 2)
    with stalls("nothing was taken of partition 0 from 2 on"):
        await asyncio.wait_for(watch(derive), 30)


async def test_a_process_that_has_taken_all_events_continues(log: MemoryLog) -> None:
    derive = await watched(log, 3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch(derive), 0.5)


async def test_a_process_that_gets_no_processor_continues(log: MemoryLog) -> None:
    waits = itertools.count()  # (seconds: more than passes)
    derive = await watched(log, 2, lambda: Usage(0.0, next(waits)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch(derive), 0.5)


async def test_an_idle_process_has_time_for_the_events_that_come(log: MemoryLog) -> None:
    """It was idle for longer than a stall may last, and looks just when events have come."""
    derive = await watched(log, 3)
    watching = asyncio.create_task(watch(derive))
    looks = 20
    await eventually(lambda: derive.looked > looks, within_s=30)
    await Feeder(log, LOG_SETTINGS.topics()).events("rm", range(3, 5))
    with stalls("nothing was taken of partition 0 from 3 on"):
        await asyncio.wait_for(watching, 30)
    assert derive.seen_waiting >= 2


async def test_states_that_are_never_read_back_end_it(log: MemoryLog) -> None:
    derive = await watched(log, 0)
    derive._recovered = False
    with stalls(r"not read back in (0\.[2-9]|[1-9])"):
        await asyncio.wait_for(watch(derive), 30)


class Sent:
    """Stands in for Faust's app and table: keeps the writes and acknowledgements in order."""

    def __init__(self) -> None:
        self.producer = self
        self.said: list[str] = []
        self.states: dict[bytes, bytes] = {}

    async def send_all(self, records: Iterable[OutRecord]) -> None:
        self.said += [one.topic.split(".")[2] for one in records]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.states[key] = value

    async def written(self) -> None:
        self.said.append("states")


class Got(NamedTuple):
    """An event as Faust gives it."""

    message: Any
    said: list[str]

    def ack(self) -> None:
        self.said.append("ack")


async def got(log: MemoryLog, said: list[str]) -> list[Got]:
    found = await (await log.reader(LOG_SETTINGS.topics().events, 0)).read(100, 1.0)
    return [
        Got(SimpleNamespace(**one._asdict() | {"timestamp": 1.5, "headers": list(one.headers)}), said) for one in found
    ]


async def test_a_batch_is_acknowledged_when_its_records_and_then_its_states_are_written(log: MemoryLog) -> None:
    sent = Sent()
    derive = FaustDerive(DeriveSettings(), LOG_SETTINGS, log)
    derive._app = derive._states = sent  # type: ignore[assignment]
    await derive._batch(await got(log, sent.said))
    assert sent.said == ["events"] * 3 + ["usage"] * 4 + ["states"] + ["ack"] * 3
    assert derive.positions == {0: 3}
    # A known event goes to its topic again, and into no sum.
    before = dict(sent.states)
    sent.said.clear()
    await derive._batch(await got(log, sent.said))
    assert sent.said == ["events"] * 3 + ["states"] + ["ack"] * 3
    assert sent.states == before


async def test_unwritten_events_are_not_acknowledged(log: MemoryLog) -> None:
    class Refusing(Sent):
        async def written(self) -> None:
            raise LogUnavailable("nobody there")

    sent = Refusing()
    derive = FaustDerive(DeriveSettings(), LOG_SETTINGS, log)
    derive._app = derive._states = sent  # type: ignore[assignment]
    with pytest.raises(LogUnavailable):
        await derive._batch(await got(log, sent.said))
    assert "ack" not in sent.said
    assert not derive.positions


# ---- mended defects --------------------------------------------------------------------------------------------------

EVENTS, STATES = TP("events", 0), TP("states", 0)


@pytest.fixture
async def consumer(monkeypatch: pytest.MonkeyPatch) -> PatchedConsumer:
    app = faust_app(DeriveSettings(), LOG_SETTINGS, {})
    monkeypatch.setattr(type(app.tables), "changelog_topics", {"states"})
    found = app.consumer
    assert isinstance(found, PatchedConsumer)
    return found


def broker(consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch, committed: int | None, oldest: int) -> list[Any]:
    """Fake the consumer's calls to the broker: the group's position, the oldest offset, seeks. Return the seeks."""
    sought: list[Any] = []

    async def seek_to_committed() -> dict[TP, int | None]:
        return {EVENTS: committed, STATES: None}

    async def earliest_offsets(*tps: TP) -> dict[TP, int]:
        return dict.fromkeys(tps, oldest)

    async def seek_wait(partitions: dict[TP, int]) -> None:
        sought.append(partitions)

    for fake in (seek_to_committed, earliest_offsets, seek_wait):
        monkeypatch.setattr(consumer, fake.__name__, fake)
    return sought


async def test_a_stream_is_not_fetched_before_it_is_sought_and_the_queues_are_empty(
    consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker(consumer, monkeypatch, 7, 0)
    consumer.pause_partitions({EVENTS, STATES})
    consumer.resume_partitions({STATES})  # while the tables are read back
    consumer.resume_flow()
    assert consumer._get_active_partitions() == {STATES}
    consumer.resume_partitions({EVENTS})  # and then the order of on_recovery_completed
    assert consumer._get_active_partitions() == {STATES}
    await consumer.perform_seek()
    assert consumer._get_active_partitions() == {STATES}
    consumer.resume_flow()
    assert consumer._get_active_partitions() == {STATES, EVENTS}
    consumer.pause_partitions({EVENTS})  # another member joined
    consumer.resume_partitions({EVENTS})
    consumer.resume_flow()
    assert consumer._get_active_partitions() == {STATES}


@pytest.mark.parametrize(
    ("committed", "oldest", "place"), [(7, 0, 7), (None, 0, 0), (None, 5, 5), (7, 9, 9), (0, 0, 0), (7, 7, 7)]
)
async def test_a_stream_begins_at_its_place_or_at_the_oldest_record(
    consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch, committed: int | None, oldest: int, place: int
) -> None:
    sought = broker(consumer, monkeypatch, committed, oldest)
    consumer.resume_partitions({EVENTS})
    await consumer.perform_seek()
    assert consumer.start_offsets == {EVENTS: place}
    assert sought == ([] if place and place == committed else [{EVENTS: place}])


async def test_the_place_passes_every_hole_at_once(consumer: PatchedConsumer) -> None:
    consumer._committed_offset[EVENTS] = 10
    before = 10
    for offset in (12, 13, 20, 22):
        await consumer._add_gap(EVENTS, before + 1, offset)
        consumer._acked[EVENTS].append(offset)
        before = offset
    assert consumer._new_offset(EVENTS) == 23


async def test_a_topic_that_is_being_made_has_no_known_number_of_partitions(
    consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"new": 0, "events": 2}
    monkeypatch.setattr(consumer._thread, "topic_partitions", known.get)
    assert [consumer.topic_partitions(topic) for topic in ("new", "events", "none")] == [None, 2, None]


async def test_a_fetch_keeps_the_partitions_that_it_began_with(
    consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[TP]] = []

    async def getmany(active_partitions: set[TP], timeout: float) -> dict[TP, Any]:  # noqa: ASYNC109 - Faust's
        consumer.pause_partitions({STATES})
        asked.append(active_partitions)
        return {}

    monkeypatch.setattr(consumer._thread, "getmany", getmany)
    consumer.resume_partitions({STATES})
    await consumer._getmany(consumer._get_active_partitions(), 1.0)
    assert asked == [{STATES}]


async def test_an_idle_fetcher_continues_as_soon_as_a_queue_has_room(
    consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getmany(active_partitions: set[TP], timeout: float) -> dict[TP, Any]:  # noqa: ASYNC109 - Faust's
        return {tp: [] for tp in active_partitions}

    monkeypatch.setattr(consumer._thread, "getmany", getmany)
    consumer.resume_partitions({STATES})
    consumer.on_buffer_full(STATES)
    waiting = asyncio.create_task(consumer._wait_next_records(3_600))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    consumer.on_buffer_drop(STATES)
    assert (await asyncio.wait_for(waiting, 30))[0] == {STATES: []}


async def test_only_committed_records_are_read_though_we_write_at_least_once(consumer: PatchedConsumer) -> None:
    read = consumer._thread._create_worker_consumer(consumer.transport)
    assert read._isolation_level == "read_committed"
    assert not consumer.in_transaction


async def test_a_tables_changes_are_sent_in_order_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    app = faust_app(DeriveSettings(), LOG_SETTINGS, {})
    table: Any = app.Table("states", use_partitioner=True)
    sent: list[Any] = []
    arrived = asyncio.Event()

    async def send_all(messages: Iterable[Any]) -> None:
        sent.extend(messages)
        await arrived.wait()

    async def producer() -> Any:
        return SimpleNamespace(send_all=send_all)

    monkeypatch.setattr(app, "maybe_start_producer", producer)
    monkeypatch.setattr(type(table), "partition_for_key", lambda *_: 1)
    for number in range(5):
        table[b"k%d" % number] = b"v"
    del table[b"k0"]
    assert not sent
    writing = asyncio.create_task(table.written())
    await eventually(lambda: sent, "they are sent")
    topic = table.changelog_topic.get_topic_name()
    assert sent == [*((topic, 1, b"k%d" % n, b"v", ()) for n in range(5)), (topic, 1, b"k0", None, ())]
    assert not writing.done()
    arrived.set()
    await asyncio.wait_for(writing, 60)


# ---- costs -----------------------------------------------------------------------------------------------------------


async def test_a_call_without_waiting_needs_no_task(consumer: PatchedConsumer) -> None:
    async def at_once() -> int:
        seen.append(asyncio.current_task())
        return 7

    async def never() -> None:
        await asyncio.Event().wait()

    seen: list[Any] = []
    result = await consumer.wait_first(at_once(), never())
    assert (result.results, result.stopped) == ([7], False)
    assert seen == [asyncio.current_task()]


async def test_a_waiting_coroutine_continues_where_it_began(consumer: PatchedConsumer) -> None:
    steps: list[str] = []
    room = asyncio.Event()

    async def later() -> str:
        steps.append("began")
        await room.wait()
        await asyncio.sleep(0)
        steps.append("ended")
        return "done"

    waiting = asyncio.create_task(consumer.wait_first(later(), asyncio.Event().wait()))
    await asyncio.sleep(0.01)
    assert steps == ["began"]
    room.set()
    assert (await asyncio.wait_for(waiting, 60)).results == ["done"]
    assert steps == ["began", "ended"]


async def test_a_waiting_coroutine_gets_its_result_when_another_ends_first(consumer: PatchedConsumer) -> None:
    told: list[str] = []

    async def later() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    suspended = asyncio.Event()
    waiting = asyncio.create_task(consumer.wait_first(later(), suspended.wait()))
    await asyncio.sleep(0.01)
    suspended.set()
    await asyncio.wait_for(waiting, 60)
    await eventually(lambda: told == ["cancelled"], "it is cancelled")


@pytest.mark.parametrize("waits", [False, True])
async def test_a_failed_send_raises(consumer: PatchedConsumer, waits: bool) -> None:
    async def failing() -> None:
        if waits:
            await asyncio.sleep(0.001)
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        await consumer.wait_first(failing(), asyncio.Event().wait())


async def test_holes_that_do_not_meet_are_not_merged(
    consumer: PatchedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each small transaction leaves a hole. A merge of all holes for each one would take quadratic time."""
    gaps = consumer._gap[EVENTS]
    merged: list[int] = []
    monkeypatch.setattr(gaps, "merge_overlaps", lambda: merged.append(len(gaps)))
    consumer._committed_offset[EVENTS] = 10
    for offset in range(12, 112, 2):
        await consumer._add_gap(EVENTS, offset - 1, offset)
    assert (len(gaps), merged) == (50, [])
    await consumer._add_gap(EVENTS, 11, 20)  # it was sought anew
    assert merged


async def test_a_batch_has_what_is_there_and_nothing_of_an_earlier_assignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = faust_app(DeriveSettings(), LOG_SETTINGS, {})
    app.flow_control.resume()
    stream: Any = app.stream(app.topic("events", key_type=bytes, value_type=bytes))
    queue = stream.channel.queue

    async def events() -> Any:
        while True:
            yield await queue.get()

    monkeypatch.setattr(stream, "noack", lambda: SimpleNamespace(events=events))
    batches = stream.batches(2, 5, 0.05)
    generation = app.consumer_generation_id
    for number in range(8):
        old = generation - 1 if number in (2, 3) else generation
        queue.put_nowait(SimpleNamespace(message=SimpleNamespace(generation_id=old), number=number))
    assert [event.number for event in await anext(batches)] == [0, 1, 4, 5, 6]
    assert [event.number for event in await anext(batches)] == [7]
    more = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    for number in (8, 9):
        queue.put_nowait(SimpleNamespace(message=SimpleNamespace(generation_id=generation), number=number))
    assert [event.number for event in await more] == [8, 9]


class Batch:
    """Like aiokafka's batch, with room for two records."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.closed = False

    def append(self, *, timestamp: None, key: bytes, value: bytes, headers: list[Any]) -> object | None:
        assert isinstance(headers, list)
        if len(self.keys) == 2:
            return None
        self.keys.append(key)
        return object()

    def close(self) -> None:
        self.closed = True


async def test_messages_sent_together_go_in_batches_by_partition_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = faust_app(DeriveSettings(), LOG_SETTINGS, {})
    producer: Any = app.producer
    assert isinstance(producer, PatchedProducer)
    sent: list[tuple[str, int, Sequence[bytes]]] = []
    answers: deque[asyncio.Future[None]] = deque()

    async def send_batch(batch: Batch, topic: str, *, partition: int) -> asyncio.Future[None]:
        assert batch.closed
        sent.append((topic, partition, batch.keys))
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    kafka = SimpleNamespace(create_batch=Batch, send_batch=send_batch)
    monkeypatch.setattr(producer, "_ensure_producer", lambda: kafka)
    messages: list[Any] = [("a", 0, b"1", b"", ()), ("b", 1, b"2", None, ())]
    messages += [("a", 0, b"%d" % n, b"", ()) for n in (3, 4, 5, 6)]
    sending = asyncio.create_task(producer.send_all(messages))
    await eventually(lambda: len(answers) == 4, "four batches are sent")
    assert sent == [("a", 0, [b"1", b"3"]), ("a", 0, [b"4", b"5"]), ("a", 0, [b"6"]), ("b", 1, [b"2"])]
    for answer in answers:
        assert not sending.done()
        answer.set_result(None)
        await asyncio.sleep(0)
    await asyncio.wait_for(sending, 60)
    await producer.send_all([])
    refused = asyncio.create_task(producer.send_all(messages[:1]))
    await eventually(lambda: len(answers) == 5, "another one is sent")
    answers[-1].set_exception(LogUnavailable("no"))
    with pytest.raises(LogUnavailable):
        await refused
