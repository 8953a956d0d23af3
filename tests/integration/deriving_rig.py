"""The input and the expected output of a deriver on a real Kafka: records, aborted transactions, and sums."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import faust
import structlog
from aiokafka import AIOKafkaProducer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from muster_bus.clock import SystemClock
from muster_bus.log import Log, Record
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import EVENT_KINDS, Topics
from muster_event_publisher.derive.faust_app import FaustDerive
from muster_event_publisher.derive.faust_patches import PatchedTable, PatchedTransport, _SteadyThread
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.usage_fold import S_IN_NS
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_proto.si.v1.si_pb2 import EventRecord
from unit.publisher.feeding import headers
from unit.publisher.using import Life, integrate

WINDOW_NS = 60 * S_IN_NS
READ_TIMEOUT_S = 120.0


def derive_until_killed(settings: LogSettings, derive: DeriveSettings) -> None:
    """``muster derive`` in a process of its own, without its HTTP."""
    logging.basicConfig(level=logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    async def run() -> None:
        log = make_log(settings, SystemClock())
        await log.start()
        service = FaustDerive(derive, settings, log)
        await service.start()
        await service.wait()

    asyncio.run(run())


def one_start(bootstrap: str, prefix: str, file: Path, mended: bool, seek_s: float) -> None:
    """A minimal application that prints its agent's events. Its seek is slow, as on a distant broker."""
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw", "partitions": 2}
    app = faust.App(
        f"{prefix}app", broker=f"kafka://{bootstrap}", store="memory://", topic_partitions=2, web_enabled=False,
        topic_allow_declare=False, topic_disable_leader=True, autodiscover=False, datadir=str(file.parent / "data"),
        **({"Table": PatchedTable} if mended else {}),
    )  # fmt: skip
    if mended:
        app.transport = PatchedTransport(app.conf.broker_consumer, app)
    consumer = app.transport.Consumer
    seek = consumer.perform_seek

    async def seek_slowly(self: object) -> None:
        await seek(self)
        await asyncio.sleep(seek_s)

    consumer.perform_seek = seek_slowly
    app.Table("table", key_type=bytes, value_type=bytes, partitions=2, changelog_topic=app.topic(f"{prefix}t", **raw))

    async def agent(stream: faust.Stream[bytes]) -> None:
        with file.open("a", buffering=1) as out:
            async for event in stream.events():
                out.write(f"{event.message.partition} {event.message.offset}\n")
                await asyncio.sleep(0.005)  # some work on the event

    app.agent(app.topic(f"{prefix}events", **raw), name="agent")(agent)

    async def run() -> None:
        await app.start()
        await app.wait_until_stopped()

    asyncio.run(run())


def counting(bootstrap: str, prefix: str, file: Path, mended: bool) -> None:
    """A static member of a group that counts events in a table, and prints each count.

    :param mended: False: it uses each assignment, like Faust.
    """
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw", "partitions": 1}
    app = faust.App(
        f"{prefix}app", broker=f"kafka://{bootstrap}", store="memory://", topic_partitions=1, web_enabled=False,
        topic_allow_declare=False, topic_disable_leader=True, autodiscover=False, datadir=str(file.parent / "data"),
        consumer_auto_offset_reset="earliest", consumer_group_instance_id=f"{prefix}0", broker_commit_interval=0.2,
        Table=PatchedTable,
    )  # fmt: skip
    app.transport = PatchedTransport(app.conf.broker_consumer, app)
    if not mended:
        thread: Any = _SteadyThread
        thread.on_partitions_assigned = AIOKafkaConsumerThread.on_partitions_assigned
    changelog = app.topic(f"{prefix}t", **raw)
    table = app.Table("table", key_type=bytes, value_type=bytes, partitions=1, changelog_topic=changelog)

    async def agent(stream: faust.Stream[bytes]) -> None:
        with file.open("a", buffering=1) as out:
            async for event in stream.noack().events():
                table[b"events"] = count = b"%d" % (int(table.get(b"events", b"0")) + 1)
                await table.written()
                event.ack()
                out.write(f"{count.decode()}\n")

    app.agent(app.topic(f"{prefix}events", **raw), name="agent")(agent)

    async def run() -> None:
        await app.start()
        await app.wait_until_stopped()

    asyncio.run(run())


def until_ns(usage: UsageRest, life: Life) -> int:
    known = usage.table.covered_period(life.rm_id)
    return known.until_ns if known is not None else 0


async def read_all(log: Log, topic: str, partition: int) -> list[Record]:
    reader = await log.reader(topic, partition)
    end = await reader.end_offset()
    records: list[Record] = []
    async with asyncio.timeout(READ_TIMEOUT_S):
        while reader.position < end:  # (A read may find nothing but transactions' markers.)
            records += await reader.read(10_000, 2)
    await reader.close()
    return records


async def abort(bootstrap: str, topics: Topics, life: Life, next_id: int) -> None:
    """Abort a transaction with an allocation; its ids are used again."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=uuid4().hex)
    await producer.start()
    value = EventRecord(
        type=EventRecord.APP, eventChangeType=EventRecord.ADD, eventChangeDetail=EventRecord.APP_ALLOC,
        objectID="never", referenceID="k", timestampNano=life.now_ns,
    )  # fmt: skip
    value.resource.resources["vcore"].value = 1_000_000
    await producer.begin_transaction()
    for number in range(next_id, next_id + 5):
        await producer.send(
            topics.events,
            value.SerializeToString(),
            key=life.rm_id.encode(),
            partition=topics.partition_of(life.rm_id),
            headers=list(headers(life.rm_id, number)),
        )
    await producer.flush()
    await producer.abort_transaction()
    await producer.stop()


def origin(record: Record) -> int:
    return int(dict(record.headers)["origin"].rsplit(b"/", 1)[1])


async def until_fanned_out(log: Log, topics: Topics, lives: list[Life], within_s: float = 180) -> None:
    """Wait until the last event of each RM is in the topic of its kind."""
    async with asyncio.timeout(within_s):
        for life in lives:
            partition = topics.partition_of(life.rm_id)
            last = (await read_all(log, topics.events, partition))[-1].offset
            seen = -1
            while seen < last:
                found = [one for kind in EVENT_KINDS for one in await read_all(log, topics.events_of(kind), partition)]
                seen = max((origin(one) for one in found), default=-1)
                await asyncio.sleep(0.05)


def assert_usage(usage: UsageRest, life: Life) -> None:
    assert "never" not in usage.table.names(life.rm_id, "application"), "an aborted transaction was counted"
    for subject, changes in life.changes.items():
        expected = integrate(changes, WINDOW_NS, life.at_ns)
        windows = usage.table.windows(life.rm_id, *subject, 0, 1 << 62, WINDOW_NS)
        found = {one.start_ns: (+Counter(one.quantity_ns), one.allocations) for one in windows}
        assert found == {start: (+one.quantity_ns, one.allocations) for start, one in expected.items()}, subject


async def assert_fan_out(log: Log, topics: Topics, life: Life) -> None:
    partition = topics.partition_of(life.rm_id)
    source = {record.offset: record for record in await read_all(log, topics.events, partition)}
    assert len(source) == len(life.records)
    routed: dict[int, Record] = {}
    for kind in EVENT_KINDS:
        newest = -1
        for record in await read_all(log, topics.events_of(kind), partition):
            at = origin(record)
            if at <= newest:
                continue  # a repeat, which consumers drop
            newest = at
            routed[at] = record
            assert EventRecord.Type.Name(EventRecord.FromString(record.value or b"").type).lower() == kind
    assert routed.keys() == source.keys(), f"not routed: {sorted(source.keys() - routed.keys())}"
    for at, record in routed.items():
        assert (record.key, record.value, record.headers[:-1]) == (source[at].key, source[at].value, source[at].headers)
