"""The contract of muster_event_publisher.history.sink, over every sink. Those that need a server are marked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import asyncpg
import duckdb
import pytest
from muster_bus.log import Record
from muster_event_publisher.errors import SinkError, SinkUnavailable, SinkUnfit
from muster_event_publisher.events import EventBatch, batch_of
from muster_event_publisher.history.memory import MemorySink, MemoryTarget
from muster_event_publisher.history.parquet import ParquetSink
from muster_event_publisher.history.postgres import PostgresSink
from muster_event_publisher.history.sink import LastEvent, Progress, Sink
from pydantic import SecretStr
from unit.publisher.feeding import INSTANCE, event, record

Ids = list[tuple[str, int]]


class Bench(Protocol):
    """A target that outlives its sinks."""

    def sink(self) -> Sink: ...

    async def ids(self) -> Ids:
        """(instance, id) of every stored row, sorted."""
        ...


class MemoryBench:
    def __init__(self) -> None:
        self._target = MemoryTarget()

    def sink(self) -> Sink:
        return MemorySink(self._target)

    async def ids(self) -> Ids:
        return sorted((instance, event_id) for instance, _, event_id in self._target.events)


class ParquetBench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self) -> Sink:
        return ParquetSink(self.folder)

    async def ids(self) -> Ids:
        if not list(self.folder.glob("*.parquet")):
            return []
        return duckdb.sql(f"select instance, id from read_parquet('{self.folder}/*.parquet') order by all").fetchall()


class PostgresBench:
    def __init__(self, dsn: str) -> None:
        self.dsn, self.schema = dsn, f"t{uuid4().hex}"

    def sink(self) -> PostgresSink:
        return PostgresSink(SecretStr(self.dsn), "si.events.v1", schema=self.schema, transaction_records=7)

    async def query(self, text: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(text.format(schema=self.schema))
        finally:
            await connection.close()

    async def ids(self) -> Ids:
        rows = await self.query('select instance, id from {schema}.events order by instance collate "C", id')
        return [(row["instance"], row["id"]) for row in rows]


@pytest.fixture
async def postgres(postgres_dsn: str) -> AsyncIterator[PostgresBench]:
    bench = PostgresBench(postgres_dsn)
    yield bench
    await bench.query("drop schema if exists {schema} cascade")


@pytest.fixture(params=["memory", "parquet", pytest.param("postgres", marks=pytest.mark.postgres)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "memory":
        return MemoryBench()
    if request.param == "parquet":
        return ParquetBench(tmp_path / "history")
    given: Bench = request.getfixturevalue("postgres")
    return given


@pytest.fixture
async def opened(bench: Bench) -> AsyncIterator[Callable[[], Awaitable[Sink]]]:
    """Opens a sink on the bench; the one before is closed first, as after a restart."""
    sinks: list[Sink] = []

    async def open_sink() -> Sink:
        if sinks:
            await sinks.pop().close()
        sinks.append(bench.sink())
        await sinks[0].start()
        return sinks[0]

    yield open_sink
    for sink in sinks:
        await sink.close()


Opened = Callable[[], Awaitable[Sink]]


def batch(records: list[Record], start: int, end: int, partition: int = 0) -> EventBatch:
    return batch_of(partition, records, start, end)


def pairs(*ranges: range, instance: str = INSTANCE) -> Ids:
    return [(instance, n) for ids in ranges for n in ids]


async def test_a_new_target_has_no_progress(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    assert await sink.progress(0) is None
    assert await bench.ids() == []


async def test_what_was_written_is_durable_and_so_is_the_progress(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    # Offsets have holes; the position after them is what counts.
    await sink.write(batch([record(10 + 2 * n, "rm", n) for n in range(20)], 8, 55))
    expected = Progress(55, LastEvent(48, "rm", INSTANCE, 19))
    assert await sink.progress(0) == expected
    assert await bench.ids() == pairs(range(20))
    sink = await opened()
    assert await sink.progress(0) == expected
    await sink.write(batch([record(60, "rm", 20)], 55, 61))
    assert await sink.progress(0) == Progress(61, LastEvent(60, "rm", INSTANCE, 20))
    assert await bench.ids() == pairs(range(21))


async def test_partitions_are_apart(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    await sink.write(batch([record(0, "a", 0)], 0, 1, partition=0))
    await sink.write(batch([record(7, "b", 0, instance="other")], 0, 8, partition=3))
    assert await sink.progress(0) == Progress(1, LastEvent(0, "a", INSTANCE, 0))
    assert await sink.progress(3) == Progress(8, LastEvent(7, "b", "other", 0))
    assert await sink.progress(1) is None
    assert await bench.ids() == sorted([(INSTANCE, 0), ("other", 0)])


@pytest.mark.parametrize("restart", [False, True])
async def test_writing_again_leaves_one_of_each(bench: Bench, opened: Opened, restart: bool) -> None:
    records = [record(n, "rm", n) for n in range(30)]
    sink = await opened()
    await sink.write(batch(records, 0, 30))
    if restart:
        sink = await opened()
    await sink.write(batch(records, 0, 30))
    await sink.write(batch(records[10:] + [record(n, "rm", n) for n in range(30, 40)], 10, 40))
    assert await bench.ids() == pairs(range(40))
    assert await sink.progress(0) == Progress(40, LastEvent(39, "rm", INSTANCE, 39))


async def test_several_rms_and_instances_in_one_batch(bench: Bench, opened: Opened) -> None:
    rms = ["a", "b/../c", "ü ~%", "x" * 300]
    records = [record(i, rms[i % 4], i // 4, instance=f"i{i % 4}") for i in range(40)]
    records += [record(40 + i, "a", i, instance="i9") for i in range(5)]
    sink = await opened()
    await sink.write(batch(records, 0, 45))
    sink = await opened()
    await sink.write(batch(records, 0, 45))
    expected = [(f"i{k}", n) for k in range(4) for n in range(10)] + [("i9", n) for n in range(5)]
    assert await bench.ids() == sorted(expected)


async def test_rms_with_the_same_instance_are_apart(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    await sink.write(batch([record(n, f"rm-{n % 2}", n // 2) for n in range(10)], 0, 10))
    assert await bench.ids() == sorted(pairs(range(5)) * 2)


async def test_gaps_stay_gaps(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    await sink.write(batch([record(n, "rm", n) for n in (0, 1, 5, 6)], 0, 7))
    assert await bench.ids() == pairs(range(2), range(5, 7))


async def test_content_that_is_hard_to_store_is_stored(bench: Bench, opened: Opened) -> None:
    hard = [
        event(0, message="nul \0 in the middle"),
        b"\xff\xff not a record",
        event(2, message="\u2028 <&> 😀" * 1000),
        event(3, at_ns=-(2**63)),
        event(4, at_ns=2**63 - 1),
        b"\x08\x63\x38\x63\x40\xe7\x07",  # numbers of a newer interface: type 99, change 99, detail 999
        b"",
    ]
    sink = await opened()
    await sink.write(batch([record(n, "rm", n, value) for n, value in enumerate(hard)], 0, 7))
    assert await bench.ids() == pairs(range(7))


ROW = (
    "rm", INSTANCE, 3, 1_750_000_000_003_000_000, "APP", 2, "ADD", 2, "APP_ALLOC", 200, "app-3", "alloc-3", "hello",
)  # fmt: skip
COLUMNS = (
    "rm, instance, id, timestamp_ns, type, type_number, change_type, change_type_number, change_detail, "
    "change_detail_number, object_id, reference_id, message"
)


async def test_parquet_rows(tmp_path: Path) -> None:
    bench = ParquetBench(tmp_path)
    sink = bench.sink()
    await sink.start()
    await sink.write(batch([record(3, "rm", 3, event(3, message="hello"))], 0, 4))
    await sink.close()
    source = f"read_parquet('{tmp_path}/*.parquet')"
    assert duckdb.sql(f"select {COLUMNS} from {source}").fetchall() == [ROW]
    assert duckdb.sql(f"select resource['memory'], resource['vcore'] from {source}").fetchall() == [(2**33, 3)]
    assert duckdb.sql(f"select typeof(resource), typeof(id) from {source}").fetchall() == [
        ("MAP(VARCHAR, BIGINT)", "BIGINT")
    ]


async def test_parquet_files_appear_whole_and_leftovers_go(tmp_path: Path) -> None:
    bench = ParquetBench(tmp_path)
    sink = bench.sink()
    await sink.start()
    await sink.write(batch([record(n, "rm", n) for n in range(5)], 0, 5))
    await sink.close()
    (tmp_path / ".rm~x~p0~1-2.parquet.writing").write_bytes(b"half a fi")
    sink = bench.sink()
    await sink.start()
    await sink.close()
    names = await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.iterdir()))
    assert [name for name in names if name.endswith(".parquet")] == [f"rm~{INSTANCE}~p0~{0:020d}-{4:020d}.parquet"]
    assert not [name for name in names if "writing" in name]


async def test_parquet_crash_between_files_and_progress(tmp_path: Path) -> None:
    bench = ParquetBench(tmp_path)
    records = [record(n, "rm", n) for n in range(10)]
    sink = bench.sink()
    await sink.start()
    await sink.write(batch(records, 0, 10))
    await sink.close()
    (tmp_path / ".progress-p0.json").write_text('{"end": 3, "offse')  # as good as none
    sink = bench.sink()
    await sink.start()
    assert await sink.progress(0) is None
    await sink.write(batch([*records, record(10, "rm", 10)], 0, 11))
    await sink.close()
    assert await bench.ids() == pairs(range(11))


async def test_parquet_folder_has_one_writer(tmp_path: Path) -> None:
    first, second = ParquetSink(tmp_path), ParquetSink(tmp_path)
    await first.start()
    with pytest.raises(SinkUnavailable, match="another publisher"):
        await second.start()
    await first.close()
    await second.start()
    await second.close()


async def test_parquet_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    sink = ParquetSink(tmp_path / "file")
    with pytest.raises(SinkUnavailable, match="file"):
        await sink.start()
    await sink.close()


@pytest.mark.postgres
async def test_postgres_rows(postgres: PostgresBench) -> None:
    sink = postgres.sink()
    await sink.start()
    await sink.write(batch([record(3, "rm", 3, event(3, message="hello"))], 0, 4))
    rows = await postgres.query(f"select {COLUMNS} from {{schema}}.events")
    assert [tuple(row) for row in rows] == [ROW]
    rows = await postgres.query("select resource ->> 'memory' as memory from {schema}.events where resource ? 'vcore'")
    assert rows[0]["memory"] == str(2**33)
    await sink.close()


@pytest.mark.postgres
async def test_postgres_keeps_what_was_stored_of_a_batch_that_failed(postgres: PostgresBench) -> None:
    sink = postgres.sink()
    await sink.start()
    # Pieces of seven: the second one meets a table that refuses it.
    await postgres.query("alter table {schema}.events add constraint stop check (id <> 10)")
    records = [record(n, "rm", n) for n in range(20)]
    with pytest.raises(SinkUnavailable, match="stop"):
        await sink.write(batch(records, 0, 20))
    progress = await sink.progress(0)
    assert progress == Progress(7, LastEvent(6, "rm", INSTANCE, 6))
    assert await postgres.ids() == pairs(range(7))
    await postgres.query("alter table {schema}.events drop constraint stop")
    await sink.write(batch(records, 0, 20).since(7))
    assert await postgres.ids() == pairs(range(20))
    assert await sink.progress(0) == Progress(20, LastEvent(19, "rm", INSTANCE, 19))
    await sink.close()


@pytest.mark.postgres
async def test_postgres_days_are_tables(postgres: PostgresBench) -> None:
    sink = postgres.sink()
    await sink.start()
    day_ns = 86_400 * 10**9
    await sink.write(batch([record(n, "rm", n, event(n, at_ns=n * day_ns)) for n in range(3)], 0, 3))
    rows = await postgres.query(
        "select inhrelid::regclass::text as name from pg_inherits"
        " where inhparent = '{schema}.events'::regclass order by 1"
    )
    assert [row["name"].rpartition(".")[2] for row in rows] == ["events_19700101", "events_19700102", "events_19700103"]
    await sink.close()


@pytest.mark.postgres
async def test_postgres_newer_schema_is_refused(postgres: PostgresBench) -> None:
    sink = postgres.sink()
    await sink.start()
    await sink.close()
    await postgres.query("insert into {schema}.schema_version (version) values (99)")
    with pytest.raises(SinkUnfit, match="version 99"):
        await sink.start()
    await sink.close()


async def test_postgres_errors_never_show_the_password() -> None:
    for dsn in ("postgresql://user:s3cret@127.0.0.1:1/db", "postgresql://user:s3cret@127.0.0.1:notaport/db"):
        sink = PostgresSink(SecretStr(dsn), "si.events.v1", timeout_s=2)
        with pytest.raises(SinkError) as raised:
            await sink.start()
        assert "s3cret" not in f"{raised.value}{raised.value!r}{raised.value.__cause__}"
        await sink.close()
