"""The contract of muster_event_publisher.history.sink, over every sink. Those that need a server are marked."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import asyncpg
import pyarrow.parquet
import pytest
import redis.asyncio
import zstandard
from history_files import rows_of
from moto.server import ThreadedMotoServer
from muster_bus.clock import SystemClock
from muster_bus.log import Record
from muster_event_publisher.errors import SinkError, SinkRejected, SinkUnavailable, SinkUnusable
from muster_event_publisher.event_runs import EventBatch, batch_of
from muster_event_publisher.history.file_stores import LocalFileStore, store_from_location
from muster_event_publisher.history.files import FileFormat, FileSink
from muster_event_publisher.history.jsonl import JsonlFormat
from muster_event_publisher.history.parquet import ParquetFormat
from muster_event_publisher.history.postgres import PostgresSink
from muster_event_publisher.history.postgres_reader import PostgresReader
from muster_event_publisher.history.registry import SinkContext
from muster_event_publisher.history.sink import LastEvent, LockingSink, Sink, SinkProgress
from pyarrow.fs import S3FileSystem
from pydantic import SecretStr
from unit.publisher.feeding import INSTANCE, event, record
from unit.publisher.memory_sink import MemorySink, MemoryTarget

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


class FilesBench:
    """Files in a folder, read with duckdb."""

    def __init__(self, folder: Path, form: FileFormat, source: str) -> None:
        self.folder, self._form = folder, form
        self.source = source.format(f"{folder}/**/*{form.suffix}")

    def sink(self) -> FileSink:
        return FileSink("files", LocalFileStore(self.folder), self._form)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob(f"*{self._form.suffix}"))

    async def ids(self) -> Ids:
        if not self.files():
            return []
        return rows_of(f"select instance, id from {self.source} order by all")


def parquet_bench(folder: Path) -> FilesBench:
    return FilesBench(folder, ParquetFormat(), "read_parquet('{}')")


def jsonl_bench(folder: Path, *, compress: bool = True) -> FilesBench:
    # duckdb takes texts that look like UUIDs for such.
    source = "(select * replace (instance::varchar as instance) from read_json('{}'))"
    return FilesBench(folder, JsonlFormat(compress), source)


class S3Bench:
    """Objects in a store that speaks S3 over HTTP."""

    def __init__(self, location: str, form: FileFormat) -> None:
        self.location, self._form = location, form
        self.place = store_from_location(location)

    def sink(self) -> FileSink:
        return FileSink("files", store_from_location(self.location), self._form)

    async def ids(self) -> Ids:
        return await asyncio.to_thread(self._ids)

    def files(self) -> list[str]:
        return [
            f"{folder}/{partition}/{name}"
            for folder in self.place.folders("")
            for partition in self.place.folders(folder)
            for name in self.place.names(f"{folder}/{partition}")
        ]

    def _ids(self) -> Ids:
        found: Ids = []
        for path in self.files():
            if path.endswith(".parquet"):
                with self.place.open(path) as file:
                    table = pyarrow.parquet.read_table(file, columns=["instance", "id"])
                found += zip(table["instance"].to_pylist(), table["id"].to_pylist(), strict=True)
            elif path.endswith(".jsonl.zst"):
                lines = zstandard.ZstdDecompressor().decompressobj().decompress(self.place.get(path)).splitlines()
                found += [(line["instance"], line["id"]) for line in map(json.loads, lines)]
        return sorted(found)


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


class DocumentedBench:
    """The store of one's own that docs/history-own-store.md shows."""

    def __init__(self, url: str) -> None:
        page = (Path(__file__).parents[2] / "docs" / "history-own-store.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        names: dict[str, Any] = {}
        exec(code, names)
        self._make, self._url, self.name = names["make"], url, f"t{uuid4().hex}"

    def sink(self) -> Sink:
        context = SinkContext(self.name, "si.events.v1", 4, SystemClock())
        sink: Sink = self._make({"url": self._url}, context)[0]
        return sink

    async def ids(self) -> Ids:
        async with redis.asyncio.from_url(self._url, decode_responses=True) as client:
            keys = [key async for key in client.scan_iter(f"{self.name}:*") if ":progress:" not in key]
            found: Ids = []
            for key in keys:
                found += [(key.rpartition(":")[2], int(number)) for number in await client.hkeys(key)]
            return sorted(found)


@pytest.fixture
async def postgres(postgres_dsn: str) -> AsyncIterator[PostgresBench]:
    bench = PostgresBench(postgres_dsn)
    yield bench
    await bench.query("drop schema if exists {schema} cascade")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A store that speaks S3, on loopback, with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "an-id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        store = S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True)
        store.create_dir("bucket")
        yield endpoint
    server.stop()


@pytest.fixture
def s3_location(s3_endpoint: str) -> str:
    return f"s3://bucket/{uuid4().hex}/history?endpoint={s3_endpoint}&region=us-east-1"


PARAMS = [
    "memory", "parquet", "parquet-s3", "jsonl", "jsonl-plain", "jsonl-s3",
    pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("documented", marks=pytest.mark.redis),
]  # fmt: skip


@pytest.fixture(params=PARAMS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    folder = tmp_path / "history"
    if request.param == "memory":
        return MemoryBench()
    if request.param == "documented":
        return DocumentedBench(request.getfixturevalue("redis_url"))
    if request.param.endswith("-s3"):
        location = request.getfixturevalue("s3_location")
        return S3Bench(location, ParquetFormat() if request.param == "parquet-s3" else JsonlFormat())
    if request.param == "parquet":
        return parquet_bench(folder)
    if request.param.startswith("jsonl"):
        return jsonl_bench(folder, compress=request.param == "jsonl")
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


async def test_written_events_and_the_progress_are_durable(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    # Offsets have holes; the position after them is what counts.
    await sink.write(batch([record(10 + 2 * n, "rm", n) for n in range(20)], 8, 55))
    expected = SinkProgress(55, LastEvent(48, "rm", INSTANCE, 19))
    assert await sink.progress(0) == expected
    assert await bench.ids() == pairs(range(20))
    sink = await opened()
    assert await sink.progress(0) == expected
    await sink.write(batch([record(60, "rm", 20)], 55, 61))
    assert await sink.progress(0) == SinkProgress(61, LastEvent(60, "rm", INSTANCE, 20))
    assert await bench.ids() == pairs(range(21))


async def test_partitions_are_apart(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    await sink.write(batch([record(0, "a", 0)], 0, 1, partition=0))
    await sink.write(batch([record(7, "b", 0, instance="other")], 0, 8, partition=3))
    assert await sink.progress(0) == SinkProgress(1, LastEvent(0, "a", INSTANCE, 0))
    assert await sink.progress(3) == SinkProgress(8, LastEvent(7, "b", "other", 0))
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
    assert await sink.progress(0) == SinkProgress(40, LastEvent(39, "rm", INSTANCE, 39))


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


async def test_a_new_log_begins_anew_and_repeats_nothing(bench: Bench, opened: Opened) -> None:
    sink = await opened()
    await sink.write(batch([record(n, "rm", n) for n in range(10)], 0, 10))
    await sink.new_log(0)
    assert await sink.progress(0) is None
    # It repeats some of the events, at other positions, and goes on with others.
    await sink.write(batch([record(n, "rm", n + 5) for n in range(3)], 0, 3))
    sink = await opened()
    more = [record(n, "rm", n + 5) for n in range(3, 10)]
    await sink.write(batch(more, 3, 10))
    assert await sink.progress(0) == SinkProgress(10, LastEvent(9, "rm", INSTANCE, 14))
    sink = await opened()
    assert await sink.progress(0) == SinkProgress(10, LastEvent(9, "rm", INSTANCE, 14))
    await sink.write(batch([record(10, "other", 0, instance="i")], 10, 11))
    assert await bench.ids() == sorted([*pairs(range(15)), ("i", 0)])


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


async def written(bench: FilesBench | S3Bench, *batches: EventBatch) -> None:
    """By a sink of its own, as after a restart."""
    sink = bench.sink()
    await sink.start()
    for one in batches:
        await sink.write(one)
    await sink.close()


@pytest.mark.parametrize("make", [parquet_bench, jsonl_bench])
async def test_rows_of_files(tmp_path: Path, make: Callable[[Path], FilesBench]) -> None:
    bench = make(tmp_path)
    await written(bench, batch([record(7, "rm", 3, event(3, message="hello"))], 0, 9, partition=2))
    assert rows_of(f'select {COLUMNS}, partition, "offset" from {bench.source}') == [(*ROW, 2, 7)]
    assert bench.files() == [f"000001/p2/{0:020d}-{9:020d}{bench.sink()._form.suffix}"]


async def test_parquet_types(tmp_path: Path) -> None:
    bench = parquet_bench(tmp_path)
    await written(bench, batch([record(0, "rm", 3)], 0, 1))
    found = rows_of(
        "select resource['memory'], resource['vcore'], typeof(resource), typeof(id), typeof(partition),"
        f' typeof("offset") from {bench.source}'
    )
    assert found == [(2**33, 3, "MAP(VARCHAR, BIGINT)", "BIGINT", "INTEGER", "BIGINT")]


async def test_jsonl_lines_are_whole_objects(tmp_path: Path) -> None:
    bench = jsonl_bench(tmp_path, compress=False)
    await written(bench, batch([record(0, "rm", 3, event(3, message="a\nb\u2028c"))], 0, 1))
    lines = (tmp_path / bench.files()[0]).read_bytes().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["a\nb\u2028c"]
    assert json.loads(lines[0])["resource"] == {"memory": 2**33, "vcore": 3}


async def test_files_appear_whole_and_leftovers_go(tmp_path: Path) -> None:
    bench = parquet_bench(tmp_path)
    await written(bench, batch([record(n, "rm", n) for n in range(5)], 0, 5))
    (tmp_path / f"000001/p0/.{5:020d}-{9:020d}.parquet.writing").write_bytes(b"half a fi")
    await written(bench)
    names = await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.rglob("*")))
    assert names == sorted([".lock", ".lock-p0", "000001", f"{0:020d}-{5:020d}.parquet", "p0"])


def spread(start: int, end: int) -> EventBatch:
    return batch([record(n, "rm", n) for n in range(start, end)], start, end)


# What two publishers on one prefix can leave, as (start, end) in the order of writing.
OVERLAPS = [
    [(0, 10), (0, 6)],
    [(0, 6), (0, 10), (6, 10)],
    [(0, 10), (5, 20), (20, 30)],
    [(0, 10), (5, 20), (6, 30), (10, 20)],
    [(0, 4), (0, 30), (3, 9), (29, 31)],
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "s3"])
@pytest.mark.parametrize("parts", OVERLAPS)
async def test_overlaps_are_mended_at_the_next_start(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, parts: list[tuple[int, int]]
) -> None:
    bench: FilesBench | S3Bench
    if kind == "s3":
        bench = S3Bench(request.getfixturevalue("s3_location"), ParquetFormat())
    else:
        bench = {"parquet": parquet_bench, "jsonl": jsonl_bench}[kind](tmp_path)
    form = bench.sink()._form
    place = store_from_location(bench.location) if isinstance(bench, S3Bench) else LocalFileStore(tmp_path)
    for start, end in parts:
        runs = spread(start, end).runs
        last = LastEvent(end - 1, "rm", INSTANCE, end - 1)
        content = form.encode(0, runs, last, {("rm", INSTANCE): end - 1})
        await asyncio.to_thread(place.write, f"000001/p0/{start:020d}-{end:020d}{form.suffix}", content)
    for _ in range(2):
        sink = bench.sink()
        await sink.start()
        end = max(end for _, end in parts)
        assert await sink.progress(0) == SinkProgress(end, LastEvent(end - 1, "rm", INSTANCE, end - 1))
        await sink.close()
        assert await bench.ids() == pairs(range(end))
        names = [path.rpartition("/")[2] for path in bench.files()]
        spans = [(int(name[:20]), int(name[21:41])) for name in names]
        assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    bench = parquet_bench(tmp_path)
    await written(bench, spread(0, 5))
    name = bench.files()[0]
    (tmp_path / name).write_bytes(b"PAR1 of another program")
    sink = bench.sink()
    await sink.start()
    with pytest.raises(SinkUnusable, match=name):
        await sink.progress(0)
    await sink.close()


async def test_files_of_the_earlier_layout_are_taken_over(tmp_path: Path) -> None:
    """Flat, named by ids, without positions; with the progress in a file of its own."""
    old = sorted((Path(__file__).parent / "history_by_ids").iterdir())
    assert len(old) == 4
    for path in old:
        (tmp_path / path.name.removeprefix("dot")).write_bytes(path.read_bytes())
    bench = parquet_bench(tmp_path)
    # A crash in the middle of it: one is written already, and still there in the old place.
    sink = bench.sink()
    await sink.start()
    await sink.close()
    shutil.copy(old[1], tmp_path / old[1].name)
    # The log is exported from its start, and repeats what is there.
    sink = bench.sink()
    await sink.start()
    assert await sink.progress(0) is None
    assert await bench.ids() == [("i", n) for n in range(5)] + [("j", n) for n in range(3)]
    records = [record(n, "a", n, instance="i") for n in range(8)] + [record(8, "b", 2, instance="j")]
    await sink.write(batch(records, 0, 9))
    await sink.close()
    assert await bench.ids() == [("i", n) for n in range(8)] + [("j", n) for n in range(3)]
    found = rows_of(
        f'select count(*), count(distinct (rm, instance, id)), count("offset"), min(partition) from {bench.source}'
    )
    assert found == [(11, 11, 3, 0)]
    assert await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.iterdir())) == [
        ".lock", ".lock-p0", "000000", "000001"
    ]  # fmt: skip


async def test_a_partition_of_a_folder_has_one_writer(tmp_path: Path) -> None:
    bench = parquet_bench(tmp_path)
    first, second = bench.sink(), bench.sink()
    await first.start()
    await second.start()
    await first.progress(0)
    with pytest.raises(SinkUnavailable, match="another publisher writes partition 0"):
        await second.progress(0)
    assert await second.progress(1) is None
    await second.write(batch([record(0, "rm", 3)], 0, 1, partition=1))
    await first.release(0)
    await second.progress(0)
    with pytest.raises(SinkUnavailable, match="another publisher writes partition 0"):
        await first.write(batch([record(0, "rm", 3)], 0, 1))
    await first.close()
    await second.close()


async def test_an_older_version_shares_a_folder_with_nobody(tmp_path: Path) -> None:
    bench = parquet_bench(tmp_path)
    sink = bench.sink()
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SinkUnavailable, match="another publisher"):
            await sink.start()
    await sink.start()
    with (tmp_path / ".lock").open("a") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await sink.close()


async def test_a_sink_notices_that_another_one_goes_on(bench: Bench) -> None:
    """As after a pause of a process whose partitions others have taken meanwhile."""
    paused, other = bench.sink(), bench.sink()
    await paused.start()
    await paused.progress(0)
    await paused.write(spread(0, 5))
    if isinstance(paused, LockingSink):  # as if the lock did not hold: an S3 prefix has none
        await paused.release(0)
    await other.start()
    await other.progress(0)
    await other.write(spread(5, 12))
    with contextlib.suppress(SinkUnavailable):
        await paused.write(spread(5, 9))
    await paused.close()
    await other.write(spread(12, 15))
    await other.close()
    last = bench.sink()
    await last.start()
    found = await last.progress(0)
    await last.close()
    assert found is not None
    assert found.end == 15
    assert await bench.ids() == pairs(range(15))


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    sink = parquet_bench(tmp_path / "file").sink()
    with pytest.raises(SinkUnavailable, match="file"):
        await sink.start()
    await sink.close()


@pytest.mark.parametrize("where", ["no-such-bucket", "nobody-listens", "wrong-key"])
async def test_s3_that_does_not_answer_and_no_secret_in_errors(s3_endpoint: str, where: str) -> None:
    endpoint = "http://127.0.0.1:9" if where == "nobody-listens" else s3_endpoint
    bucket = "absent" if where == "no-such-bucket" else "bucket"
    place = store_from_location(
        f"s3://{bucket}/p?endpoint={endpoint}&region=us-east-1", SecretStr("some-id"), SecretStr("s3cret-key")
    )
    sink = FileSink("files", place, ParquetFormat())
    if where == "wrong-key":  # the store does not look at keys
        await sink.start()
    else:
        with pytest.raises(SinkUnavailable, match=f"s3://{bucket}/p") as raised:  # noqa: PT012
            await sink.start()
            await sink.write(spread(0, 1))
        assert "s3cret" not in f"{raised.value}{raised.value!r}{raised.value.__cause__}"
    assert "s3cret" not in f"{place!r}{place.display_name}"
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
    with pytest.raises(SinkRejected, match="stop"):
        await sink.write(batch(records, 0, 20))
    progress = await sink.progress(0)
    assert progress == SinkProgress(7, LastEvent(6, "rm", INSTANCE, 6))
    assert await postgres.ids() == pairs(range(7))
    await postgres.query("alter table {schema}.events drop constraint stop")
    await sink.write(batch(records, 0, 20).since(7))
    assert await postgres.ids() == pairs(range(20))
    assert await sink.progress(0) == SinkProgress(20, LastEvent(19, "rm", INSTANCE, 19))
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
    with pytest.raises(SinkUnusable, match="version 99"):
        await sink.start()
    await sink.close()


async def test_postgres_errors_never_show_the_password() -> None:
    # In the last three a character of the password that should have been percent-encoded makes the rest an odd address.
    for password, host in (
        ("s3cret", "127.0.0.1:1"), ("s3cret", "127.0.0.1:port"), ("s3cret/x", "h"), ("s3cret#x", "h"), ("s3cret?x", "h")
    ):  # fmt: skip
        dsn = SecretStr(f"postgresql://user:{password}@{host}/db")
        sink = PostgresSink(dsn, "si.events.v1", timeout_s=2)
        reader = PostgresReader("postgres", dsn, timeout_s=2)
        for call in (sink.start(), reader.read("rm", "instance", 0, 1)):
            with pytest.raises(SinkError) as raised:
                await call
            assert "s3cret" not in f"{raised.value}{raised.value!r}{raised.value.__cause__}"
        await sink.close()
        await reader.close()
