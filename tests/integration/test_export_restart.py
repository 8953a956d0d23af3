"""kill -9 of the publisher while events flow, on the embedded log: every event once, in order, in ring and history."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from history_files import rows_of
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from muster_replay.local_process import free_ports
from pydantic import SecretStr
from unit.publisher.feeding import INSTANCE, Feeder
from waiting import eventually

RMS = ("rm-one", "rm-two", "rm-three")
# A publisher that stops writes its whole history first, however busy the machine is.
STOP_TIMEOUT_S = 120.0

# A program that the test kills: a publisher with a feeder, which writes events and prints their number.
VICTIM = """
import asyncio, sys
from pathlib import Path
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import Feeder

async def main(folder: Path, rms: list[str]) -> None:
    settings = LogSettings(backend="sqlite", sqlite_path=folder / "log.db", partitions=2)
    log = make_log(settings, SystemClock())
    await log.start()
    publisher = PublisherSettings(
        http_address="", parquet_dir=folder / "history", parquet_roll_records=700, parquet_roll_s=0.05
    )
    service = PublisherService(publisher, log, settings.topics(), SystemClock())
    await service.start()
    feeder = Feeder(log, settings.topics())
    next_ids = {rm: ring.next_id if (ring := service.rings.get(rm)) else 0 for rm in rms}
    while True:
        for rm in rms:
            await feeder.events(rm, range(next_ids[rm], next_ids[rm] + 50))
            next_ids[rm] += 50
        print(next_ids[rms[0]], flush=True)
        await asyncio.sleep(0.005)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
"""


def log_settings(folder: Path) -> LogSettings:
    return LogSettings(backend="sqlite", sqlite_path=folder / "log.db", partitions=2)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    log = make_log(log_settings(tmp_path), SystemClock())
    await log.start()
    yield log
    await log.close()


def topics(folder: Path) -> Topics:
    return log_settings(folder).topics()


def service_on(log: Log, folder: Path, **settings: Any) -> PublisherService:
    chosen = PublisherSettings(http_address="", stop_timeout_s=STOP_TIMEOUT_S, **settings)
    return PublisherService(chosen, log, topics(folder), SystemClock())


async def ids_in_log(log: Log, topics: Topics) -> list[tuple[str, int]]:
    ids: list[tuple[str, int]] = []
    for partition in range(topics.partitions):
        reader = await log.reader(topics.events, partition)
        end = await reader.end_offset()
        while reader.position < end:
            for record in await reader.read(10_000, 1):
                headers = dict(record.headers)
                ids.append((headers["rm"].decode(), int(headers["id"])))
        await reader.close()
    return sorted(ids)


def ids_in_parquet(folder: Path) -> list[tuple[str, int]]:
    return [
        (rm, event_id)
        for rm, event_id in rows_of(f"select rm, id from read_parquet('{folder}/**/*.parquet') order by all")
    ]


@pytest.mark.timeout(600)
async def test_kill_9_in_the_middle_several_times(tmp_path: Path) -> None:
    # 1. killed four times while it writes events and history
    for kill in range(4):
        victim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(VICTIM), str(tmp_path), *RMS,
            stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""},
        )  # fmt: skip
        assert victim.stdout is not None
        try:
            async with asyncio.timeout(120):
                for _ in range(15 + 7 * kill):
                    assert await victim.stdout.readline(), "the publisher ended before its kill"
        finally:
            victim.kill()
            await victim.wait()
    # 2. a last one that may finish
    log = make_log(log_settings(tmp_path), SystemClock())
    await log.start()
    service = service_on(log, tmp_path, parquet_dir=tmp_path / "history")
    await service.start()
    await service.stop()
    # 3. the log has every id once, and history has what the log has
    in_log = await ids_in_log(log, topics(tmp_path))
    await log.close()
    for rm_id in RMS:
        ids = [event_id for rm, event_id in in_log if rm == rm_id]
        assert ids == list(range(len(ids)))
        assert len(ids) > 1_000
    assert await asyncio.to_thread(ids_in_parquet, tmp_path / "history") == in_log


async def test_ids_and_rest_go_on_after_a_crash(log: SqliteLog, tmp_path: Path) -> None:
    feeder = Feeder(log, topics(tmp_path))
    before = service_on(log, tmp_path, ring_capacity=100)
    await before.start()
    await feeder.events("rm-one", range(1_000))
    await before.abandon()
    await feeder.events("rm-one", range(1_000, 1_050))
    after = service_on(log, tmp_path, ring_capacity=100)
    await after.start()
    transport = httpx.ASGITransport(after.asgi)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as http:
        answer = (await http.get("/ws/v1/events/batch?start=950")).json()
        assert (answer["InstanceUUID"], answer["LowestID"], answer["HighestID"]) == (INSTANCE, 950, 1_049)
        assert [record["objectID"] for record in answer["EventRecords"]] == [f"app-{n}" for n in range(950, 1_050)]
        answer = (await http.get("/ws/v1/events/batch?start=17&count=3")).json()
        assert [record["objectID"] for record in answer["EventRecords"]] == ["app-17", "app-18", "app-19"]
    await after.stop()


async def test_parquet_and_duckdb_answer_about_a_day(log: SqliteLog, tmp_path: Path) -> None:
    service = service_on(log, tmp_path, parquet_dir=tmp_path / "history")
    await service.start()
    await Feeder(log, topics(tmp_path)).events("rm-one", range(500))
    await service.stop()
    query = (
        "select change_detail, count(*), sum(resource['vcore']), min(object_id)"
        f" from read_parquet('{tmp_path}/history/**/*.parquet') group by 1"
    )
    assert await asyncio.to_thread(rows_of, query) == [("APP_ALLOC", 500, 499 * 250, "app-0")]


@pytest.mark.postgres
async def test_postgres_down_and_back(log: SqliteLog, tmp_path: Path, postgres_dsn: str) -> None:
    """The server is behind a port that closes (connections break, new ones are refused) and opens again."""
    schema = f"t{uuid4().hex}"
    door = Door(postgres_dsn)
    await door.open()
    service = service_on(
        log, tmp_path, postgres_dsn=SecretStr(door.dsn), postgres_schema=schema, postgres_flush_records=100,
        postgres_flush_s=0.02, postgres_transaction_records=50,
        postgres_timeout_s=2, retry_min_s=0.01, retry_max_s=0.05,
    )  # fmt: skip
    feeder = Feeder(log, topics(tmp_path))
    connection = await asyncpg.connect(postgres_dsn)
    next_ids = dict.fromkeys(RMS, 0)

    async def feed() -> None:
        for rm_id in RMS:
            await feeder.events(rm_id, range(next_ids[rm_id], next_ids[rm_id] + 200))
            next_ids[rm_id] += 200

    async def stored() -> int:
        if await connection.fetchval("select to_regclass($1)", f"{schema}.events") is None:
            return 0
        return await connection.fetchval(f"select count(*) from {schema}.events")

    async def until_stored(count: int) -> None:
        async def enough() -> bool:
            return await stored() >= count

        await eventually(enough, f"{count} events are stored", every_s=0.02)

    async def postgres_has_problems() -> bool:
        return any(problem.startswith("postgres: ") for problem in await service.problems())

    try:
        await service.start()
        await feed()
        await until_stored(1)
        # 1. the server is away three times; new events still come, and REST's ring takes them
        for _ in range(3):
            await feed()
            await door.close()
            await feed()
            await eventually(lambda: all(service.rings.get(rm).next_id == n for rm, n in next_ids.items()))  # type: ignore[union-attr]
            await eventually(postgres_has_problems, "the failure is reported")
            await door.open()
            await feed()
        # 2. at the end the history has each event once
        await until_stored(sum(next_ids.values()))
        rows = await connection.fetch(f"select rm, id from {schema}.events order by rm, id")
        expected = sorted((rm, n) for rm, next_id in next_ids.items() for n in range(next_id))
        assert [tuple(row) for row in rows] == expected
        await eventually(service.healthy, "no failure is reported any more")  # (The rows are visible a moment before.)
        # 3. after a crash another publisher continues at the target's progress
        await service.abandon()
        await feed()
        after = service_on(log, tmp_path, postgres_dsn=SecretStr(postgres_dsn), postgres_schema=schema)
        await after.start()
        await after.stop()
        assert await stored() == sum(next_ids.values())
    finally:
        await service.abandon()
        await door.close()
        await connection.execute(f"drop schema if exists {schema} cascade")
        await connection.close()


class Door:
    """A TCP port in front of the server that can be closed."""

    def __init__(self, dsn: str) -> None:
        address = dsn.rsplit("@", 1)[1].split("/", 1)[0]
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._address = address
        self._dsn = dsn
        (self._port,) = free_ports(1)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def dsn(self) -> str:
        return self._dsn.replace(self._address, f"127.0.0.1:{self._port}")

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._through, "127.0.0.1", self._port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        if self._server is None or not self._server.is_serving():  # it was closed meanwhile
            writer.transport.abort()
            there_writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
