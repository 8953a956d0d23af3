"""History in a real PostgreSQL: migrations, views, retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from chaos.harness import embedded
from manual_clock import ManualClock
from msgspec.json import decode
from muster_bus.clock import Clock
from muster_bus.log import Record
from muster_event_publisher import metrics
from muster_event_publisher.event_runs import batch_of
from muster_event_publisher.history.postgres import PostgresSink
from muster_event_publisher.history.postgres_schema import MIGRATIONS
from muster_event_publisher.history.sink import LastEvent, SinkProgress
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource
from pydantic import SecretStr
from unit.publisher.feeding import INSTANCE, event, record

from bench.driver import Driver, Shape

pytestmark = pytest.mark.postgres

SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS


class History:
    """A schema of its own."""

    def __init__(self, dsn: str, connection: asyncpg.Connection) -> None:
        self.dsn, self.connection, self.schema = dsn, connection, f"t{uuid4().hex}"

    def sink(self, *, clock: Clock | None = None, retention_days: int = 0) -> PostgresSink:
        return PostgresSink(
            SecretStr(self.dsn), "si.events.v1", schema=self.schema, clock=clock, retention_days=retention_days
        )

    async def write(self, records: Sequence[Record], **options: Any) -> None:
        sink = self.sink(**options)
        await sink.start()
        if records:
            await sink.write(batch_of(0, records, records[0].offset, records[-1].offset + 1))
        await sink.close()

    async def ask(self, text: str, *arguments: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(text.format(s=self.schema), *arguments)]


@pytest.fixture
async def history(postgres_dsn: str) -> AsyncIterator[History]:
    connection = await asyncpg.connect(postgres_dsn)
    history = History(postgres_dsn, connection)
    yield history
    await connection.execute(f"drop schema if exists {history.schema} cascade")
    await connection.close()


class Story:
    """Events like the scheduler's, one second apart."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now_ns = 1_750_000_000 * SECOND_NS

    def at(self, second: int) -> Story:
        self.now_ns = (1_750_000_000 + second) * SECOND_NS
        return self

    def add(
        self,
        kind: str,
        change: str,
        detail: str,
        object_id: str,
        reference_id: str = "",
        resource: dict[str, int] | None = None,
        message: str = "",
    ) -> Story:
        quantities = {name: Quantity(value=value) for name, value in (resource or {}).items()}
        value = EventRecord(
            type=EventRecord.Type.Value(kind),
            objectID=object_id,
            message=message,
            timestampNano=self.now_ns,
            eventChangeType=EventRecord.ChangeType.Value(change),
            eventChangeDetail=EventRecord.ChangeDetail.Value(detail),
            referenceID=reference_id,
            resource=Resource(resources=quantities) if resource is not None else None,
        ).SerializeToString()
        number = len(self.records)
        self.records.append(record(number, "rm", number, value))
        return self

    def submitted(self, app_id: str, queue: str) -> Story:
        self.add("APP", "ADD", "DETAILS_NONE", app_id).add("APP", "SET", "APP_NEW", app_id)
        return self.add("QUEUE", "ADD", "QUEUE_APP", queue, app_id)

    def state(self, app_id: str, state: str, message: str = "") -> Story:
        return self.add("APP", "SET", f"APP_{state}", app_id, message=message)

    def begins(self, app_id: str, key: str, node: str, resource: dict[str, int]) -> Story:
        self.add("APP", "ADD", "APP_ALLOC", app_id, key, resource)
        self.add("NODE", "ADD", "NODE_ALLOC", node, key, resource)
        return self.add("USERGROUP", "ADD", "UG_USER_RESOURCE", f"user-of-{app_id}", "root.x", resource)

    def ends(self, app_id: str, key: str, node: str, resource: dict[str, int], how: str = "CANCEL") -> Story:
        self.add("APP", "REMOVE", f"ALLOC_{how}", app_id, key, resource, f"by {how}")
        self.add("NODE", "REMOVE", "NODE_ALLOC", node, key, resource)
        return self.add("USERGROUP", "REMOVE", "UG_USER_RESOURCE", f"user-of-{app_id}", "root.x", resource)


SMALL, LARGE = {"vcore": 100, "memory": 2**33}, {"vcore": 1_000}


def life() -> Story:
    story = Story()
    story.at(0).add("NODE", "ADD", "DETAILS_NONE", "n1", resource={"vcore": 8_000}, message="added")
    story.at(1).submitted("app-1", "root.a.b").state("app-1", "ACCEPTED")
    for key in ("k1", "k2", "k2"):
        story.add("APP", "ADD", "APP_REQUEST", "app-1", key, SMALL)
    story.at(2).begins("app-1", "k1", "n1", SMALL).state("app-1", "RUNNING")
    story.at(3).begins("app-1", "k2", "n1", SMALL).begins("app-1", "k2", "n2", SMALL)
    story.at(4).submitted("app-2", "root.c").begins("app-2", "k1", "n1", LARGE)
    story.add("USERGROUP", "SET", "UG_APP_LINK", "developers", "app-1")
    story.at(10).ends("app-1", "k2", "n1", SMALL, "PREEMPT")
    story.at(12).ends("app-1", "k1", "n1", SMALL).ends("app-1", "k2", "n2", SMALL)
    story.at(13).state("app-1", "COMPLETING").state("app-1", "COMPLETED", "all done")
    story.add("APP", "REMOVE", "DETAILS_NONE", "app-1").add("QUEUE", "REMOVE", "QUEUE_APP", "root.a.b", "app-1")
    story.at(15).add("APP", "SET", "APP_EXPIRED", "app-1")
    story.at(20).submitted("app-1", "root.c").state("app-1", "ACCEPTED")
    story.at(21).add("APP", "REMOVE", "APP_REJECT", "app-3", message="no such queue")
    # An RM with many objects registers again: the application's allocations get no events of their own.
    story.at(25).add("APP", "REMOVE", "DETAILS_NONE", "app-2", message="the resource manager registered again")
    return story


def at(second: int) -> datetime:
    return datetime.fromtimestamp(1_750_000_000, UTC) + timedelta(seconds=second)


async def test_views_tell_what_happened(history: History) -> None:
    await history.write(life().records)
    # 1. allocations: one key twice is two allocations; begin, end, node and cause
    rows = await history.ask(
        "select application, allocation_key, node, queue, begin_time, end_time, seconds::float, ended, message"
        " from {s}.allocations order by begin_id"
    )
    assert rows == [
        ("app-1", "k1", "n1", "root.a.b", at(2), at(12), 10.0, "released", "by CANCEL"),
        ("app-1", "k2", "n1", "root.a.b", at(3), at(10), 7.0, "preempted", "by PREEMPT"),
        ("app-1", "k2", "n2", "root.a.b", at(3), at(12), 9.0, "released", "by CANCEL"),
        ("app-2", "k1", "n1", "root.c", at(4), at(25), 21.0, "dropped", ""),
    ]
    # 2. applications: each with one life
    rows = await history.ask(
        "select application, life, queue, user_name, user_group, state, submitted_time, accepted_time, started_time,"
        " finished_time, asks, allocations, running, preempted, resource_seconds, message"
        " from {s}.applications order by first_id"
    )
    seconds = {"vcore": 100 * 26, "memory": 2**33 * 26}
    assert [(*row[:14], row[14] and {k: int(v) for k, v in decode(row[14]).items()}, row[15]) for row in rows] == [
        ("app-1", 1, "root.a.b", "user-of-app-1", "developers", "Completed", at(1), at(1), at(2), at(13), 3, 3, 0, 1,
         seconds, "all done"),
        ("app-2", 1, "root.c", "user-of-app-2", None, "Removed", at(4), None, None, at(25), 0, 1, 0, 0,
         {"vcore": 21_000}, "the resource manager registered again"),
        ("app-1", 2, "root.c", None, "developers", "Accepted", at(20), at(20), None, None, 0, 0, 0, 0, None, ""),
        ("app-3", 0, None, None, None, "Rejected", None, None, None, at(21), 0, 0, 0, 0, None, "no such queue"),
    ]  # fmt: skip
    # 3. usage of queues and their parents
    rows = await history.ask(
        "select queue, time, delta::int, used::int from {s}.queue_usage where resource_type = 'vcore'"
        " and queue in ('root', 'root.a') order by queue, id"
    )
    assert rows == [
        ("root", at(2), 100, 100), ("root", at(3), 100, 200), ("root", at(3), 100, 300), ("root", at(4), 1000, 1300),
        ("root", at(10), -100, 1200), ("root", at(12), -100, 1100), ("root", at(12), -100, 1000),
        ("root", at(25), -1000, 0),
        ("root.a", at(2), 100, 100), ("root.a", at(3), 100, 200), ("root.a", at(3), 100, 300),
        ("root.a", at(10), -100, 200), ("root.a", at(12), -100, 100), ("root.a", at(12), -100, 0),
    ]  # fmt: skip
    # 4. users
    rows = await history.ask(
        "select kind, name, queue, time, delta::int, used::int from {s}.user_usage where resource_type = 'vcore'"
        " and name = 'user-of-app-1' order by id"
    )
    steps = [(at(2), 100, 100), (at(3), 100, 200), (at(3), 100, 300), (at(10), -100, 200), (at(12), -100, 100)]
    assert rows == [("user", "user-of-app-1", "root.x", *step) for step in [*steps, (at(12), -100, 0)]]
    # 5. nodes
    rows = await history.ask("select time, what, key, allocations from {s}.node_timeline where node = 'n1' order by id")
    assert rows == [
        (at(0), "added", "", 0), (at(2), "allocation begins", "k1", 1), (at(3), "allocation begins", "k2", 2),
        (at(4), "allocation begins", "k1", 3), (at(10), "allocation ends", "k2", 2),
        (at(12), "allocation ends", "k1", 1),
    ]  # fmt: skip


async def test_an_application_that_is_sent_again_is_not_rejected(history: History) -> None:
    """(The same story as in tests/unit/cli/test_history.py.)"""

    def rejected(story: Story, app_id: str, why: str) -> None:
        story.add("APP", "REMOVE", "APP_REJECT", app_id, message=why)

    story = Story()
    story.at(1).submitted("app", "root.a").state("app", "ACCEPTED")
    rejected(story.at(2), "app", "it existed already")
    story.at(3).state("app", "RUNNING")
    rejected(story.at(4), "app", "it existed already")
    applications = "select application, life, state, finished_time, message from {s}.applications order by 1, 2"
    await history.write(story.records)
    assert await history.ask(applications) == [("app", 1, "Running", None, "")]
    told = len(story.records)
    story.at(5).state("app", "COMPLETED").add("APP", "REMOVE", "DETAILS_NONE", "app")
    for second in (6, 7):
        rejected(story.at(second), "app", "no such queue")
    story.at(8).submitted("app", "root.a")
    rejected(story.at(9), "never", "no such queue")
    sink = history.sink()
    await sink.start()
    await sink.write(batch_of(0, story.records[told:], told, len(story.records)))
    await sink.close()
    assert await history.ask(applications) == [
        ("app", 1, "Completed", at(5), ""),
        ("app", 2, "Rejected", at(6), "no such queue"),
        ("app", 3, "Rejected", at(7), "no such queue"),
        ("app", 4, "New", None, ""),
        ("never", 0, "Rejected", at(9), "no such queue"),
    ]


async def test_a_change_of_size_is_no_further_allocation(history: History) -> None:
    story = Story().at(1).submitted("app", "root.a").begins("app", "k", "n1", SMALL).begins("app", "p", "n1", SMALL)
    story.at(3).ends("app", "k", "n1", SMALL, "REPLACED").begins("app", "k", "n1", LARGE)
    # (The event of a replaced placeholder names the real ask, which may have the same key.)
    story.add("APP", "REMOVE", "ALLOC_REPLACED", "app", "p", SMALL, "replaced by real")
    story.add("NODE", "REMOVE", "NODE_ALLOC", "n1", "p", SMALL).begins("app", "p", "n1", SMALL)
    await history.write(story.records)
    rows = await history.ask(
        "select allocation_key, seconds::float, ended, resource->>'vcore' from {s}.allocations order by begin_id"
    )
    assert rows == [
        ("k", 2.0, "changed", "100"),
        ("p", 2.0, "replaced", "100"),
        ("k", None, None, "1000"),
        ("p", None, None, "100"),
    ]
    assert await history.ask("select allocations, running from {s}.applications") == [(3, 2)]


async def test_views_without_the_beginning(history: History) -> None:
    """Retention has deleted the begins. Their ends do not match other begins, and nothing becomes negative."""
    records = life().records
    begun = next(n for n, one in enumerate(records) if b"k2" in (one.value or b"") and b"n1" in (one.value or b""))
    late = [one for one in records[begun:] if one.value != records[begun].value]
    late += [record(1_000 + n, "rm", 1_000 + n, one.value) for n, one in enumerate(records[begun - 1 : begun + 1])]
    await history.write(late)
    rows = await history.ask("select begin_id, end_id, seconds::float from {s}.allocations where allocation_key = 'k1'")
    assert [row for row in rows if row[0] is None] == [(None, row[1], None) for row in rows if row[0] is None]
    assert await history.ask("select count(*) from {s}.allocations where seconds < 0") == [(0,)]
    assert await history.ask("select count(*) from {s}.queue_usage where used < 0") == [(0,)]
    rows = await history.ask("select begin_id is null, end_id is null from {s}.allocations where allocation_key = 'k2'")
    assert sorted(rows) == [(False, False), (False, True), (True, False)]


async def test_a_schema_of_version_1_is_brought_forward(history: History) -> None:
    await history.connection.execute(f"create schema {history.schema}")
    await history.connection.execute(
        f"create table {history.schema}.schema_version"
        " (version integer primary key, applied_at timestamptz not null default now())"
    )
    await history.connection.execute(MIGRATIONS[0].format(schema=history.schema))
    await history.connection.execute(f"insert into {history.schema}.schema_version (version) values (1)")
    day = life().now_ns // DAY_NS
    name = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y%m%d")
    await history.connection.execute(
        f"create table {history.schema}.events_{name} partition of {history.schema}.events"
        f" for values from ({day * DAY_NS}) to ({(day + 1) * DAY_NS})"
    )
    story = life()
    for number, one in enumerate(story.records[:20]):
        told = EventRecord.FromString(one.value or b"")
        await history.connection.execute(
            f"insert into {history.schema}.events values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            INSTANCE, number, "rm", told.timestampNano, EventRecord.Type.Name(told.type), told.type,
            EventRecord.ChangeType.Name(told.eventChangeType), told.eventChangeType,
            EventRecord.ChangeDetail.Name(told.eventChangeDetail), told.eventChangeDetail, told.objectID,
            told.referenceID, told.message,
            str({n: q.value for n, q in told.resource.resources.items()}).replace("'", '"'),
        )  # fmt: skip
    await history.connection.execute(
        f"insert into {history.schema}.export_progress values ('si.events.v1', 0, 20, 19, 'rm', $1, 19)", INSTANCE
    )
    sink = history.sink()
    await sink.start()
    assert await history.ask("select version from {s}.schema_version order by 1") == [
        (n,) for n in range(1, len(MIGRATIONS) + 1)
    ]
    assert await sink.progress(0) == SinkProgress(20, LastEvent(19, "rm", INSTANCE, 19))
    await sink.write(batch_of(0, story.records[20:], 20, len(story.records)))
    await sink.close()
    upgraded = {view: await history.ask(f"select * from {{s}}.{view} order by 1, 2, 3, 4, 5") for view in VIEWS}
    # The same events in a schema that is a day older.
    other = History(history.dsn, history.connection)
    await other.write(life().records)
    for view in VIEWS:
        assert upgraded[view], view
        assert await other.ask(f"select * from {{s}}.{view} order by 1, 2, 3, 4, 5") == upgraded[view]
    rows = await history.ask("select indexdef from pg_indexes where schemaname = $1", history.schema)
    indexes = [text for (text,) in rows if f"events_{name}" in text]
    assert len(indexes) == 7  # the day of the old events has the new ones, too
    await history.connection.execute(f"drop schema {other.schema} cascade")


VIEWS = ("allocations", "applications", "queue_usage", "user_usage", "node_timeline")


async def days(history: History) -> list[str]:
    rows = await history.ask(
        "select relname from pg_inherits join pg_class on oid = inhrelid"
        " where inhparent = $1::text::regclass order by 1",
        f"{history.schema}.events",
    )
    return [name.removeprefix("events_") for (name,) in rows]


def daily(first: int, last: int, *, of_day: int | None = None) -> list[Record]:
    """Make an event a day (or all of one day), from 1970-01-01."""
    return [
        record(n, "rm", n, event(n, at_ns=(n if of_day is None else of_day) * DAY_NS + 5)) for n in range(first, last)
    ]


async def test_retention_drops_days_and_late_events_do_not_bring_them_back(history: History) -> None:
    clock = ManualClock(5 * DAY_NS + 7)
    await history.write(daily(0, 6), clock=clock)
    assert await days(history) == [f"1970010{n}" for n in range(1, 7)]
    # 1. two whole days before today stay
    sink = history.sink(clock=clock, retention_days=2)
    await sink.start()
    assert await days(history) == ["19700104", "19700105", "19700106"]
    # 2. too old events are skipped, and progress continues
    before = metrics.EXPORT_EXPIRED.labels("postgres")._value.get()
    await sink.write(batch_of(0, [*daily(6, 9, of_day=1), *daily(9, 10, of_day=3)], 6, 10))
    assert await days(history) == ["19700104", "19700105", "19700106"]
    assert metrics.EXPORT_EXPIRED.labels("postgres")._value.get() - before == 3
    assert await sink.progress(0) == SinkProgress(10, LastEvent(9, "rm", INSTANCE, 9))
    assert await history.ask("select id from {s}.events order by id") == [(3,), (4,), (5,), (9,)]
    # 3. a batch of too old events only
    await sink.write(batch_of(0, daily(10, 12, of_day=0), 10, 12))
    assert await sink.progress(0) == SinkProgress(12, LastEvent(11, "rm", INSTANCE, 11))
    # 4. the next day begins meanwhile
    clock.advance(86_400)
    await sink.write(batch_of(0, daily(12, 13, of_day=6), 12, 13))
    assert await days(history) == ["19700105", "19700106", "19700107"]
    await sink.close()


async def test_a_reader_holds_up_a_drop_and_not_the_export(history: History) -> None:
    clock = ManualClock(5 * DAY_NS)
    await history.write(daily(0, 6), clock=clock)
    reader = await asyncpg.connect(history.dsn)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch(f"select * from {history.schema}.events_19700101")
    sink = history.sink(clock=clock, retention_days=2)
    await sink.start()
    assert await days(history) == [f"1970010{n}" for n in range(1, 7)]
    await sink.write(batch_of(0, daily(6, 7, of_day=5), 6, 7))
    await transaction.rollback()
    await reader.close()
    clock.advance(3_600)
    await sink.write(batch_of(0, daily(7, 8, of_day=5), 7, 8))
    assert await days(history) == ["19700104", "19700105", "19700106"]
    assert (await history.ask("select count(*) from {s}.events"))[0] == (5,)
    await sink.close()


async def test_views_agree_with_what_a_whole_muster_did(history: History, tmp_path: Path) -> None:
    """Real events of 600 asks in 5 queues, half of them released. The views' figures equal REST's."""
    environment = {
        "MUSTER_PUBLISHER__POSTGRES_DSN": history.dsn,
        "MUSTER_PUBLISHER__POSTGRES_SCHEMA": history.schema,
        "MUSTER_PUBLISHER__POSTGRES_FLUSH_S": "0.05",
    }
    deployment = embedded(tmp_path, environment)
    await deployment.start()
    try:
        driver = Driver(deployment.gateway, "rm", Shape(nodes=20, asks=300, queues=5, applications=10))
        async with driver.client() as rm:
            await driver.set_up(rm)
            await driver.ask_up_front(rm, "a")
            await driver.release_all(rm, "a")
            await driver.ask_up_front(rm, "b")
            async with httpx.AsyncClient(base_url=deployment.http, timeout=60) as http:
                async with asyncio.timeout(60):  # (the view follows the log, and may be behind the RM's responses)
                    while True:
                        nodes = (await http.get("/ws/v1/partition/default/nodes")).json()
                        if sum(len(node.get("allocations") or []) for node in nodes) == 300:
                            break
                        await asyncio.sleep(0.02)
                queues = (await http.get("/ws/v1/partition/default/queues")).json()
                highest = (await http.get("/ws/v1/events/batch?count=1")).json()["HighestID"]
            # (There may be more events since the REST request: the publisher exports the rest before it stops.)
            async with asyncio.timeout(60):
                while ((await history.ask("select max(id) from {s}.events"))[0][0] or 0) < highest:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
    finally:
        await deployment.stop()
    # 1. each allocation once, with its node and queue
    rows = await history.ask(
        "select count(*), count(node), count(queue), count(end_id), count(distinct allocation_key),"
        " count(*) filter (where seconds < 0) from {s}.allocations"
    )
    assert rows == [(600, 600, 600, 300, 600, 0)]
    rows = await history.ask("select ended, count(*) from {s}.allocations group by 1 order by 1")
    assert rows == [("released", 300), (None, 300)]
    # 2. the queues' usage at the end
    told = {"root": queues, **{child["queuename"]: child for child in queues["children"]}}
    rows = await history.ask(
        "select distinct on (queue, resource_type) queue, resource_type, used::bigint"
        " from {s}.queue_usage order by queue, resource_type, id desc"
    )
    used = {(queue, kind): value for queue, kind, value in rows}
    assert used == {
        (name, kind): value for name, queue in told.items() for kind, value in queue["allocatedResource"].items()
    }
    assert len(used) >= 12
    # 3. the nodes' allocations
    rows = await history.ask(
        "select distinct on (node) node, allocations::int from {s}.node_timeline order by node, id desc"
    )
    assert dict(rows) == {node["nodeID"]: len(node.get("allocations") or []) for node in nodes}  # type: ignore[arg-type]
    # 4. the applications
    rows = await history.ask(
        "select state, sum(asks)::int, sum(allocations)::int, sum(running)::int, count(started_time), count(queue)"
        " from {s}.applications group by 1"
    )
    assert rows == [("Running", 600, 600, 300, 10, 10)]
    rows = await history.ask(
        "select a.application, (a.resource_seconds ->> 'vcore')::numeric = (select sum(1000 * seconds)"
        " from {s}.allocations l where l.application = a.application) from {s}.applications a"
    )
    assert [same for _, same in rows] == [True] * 10
