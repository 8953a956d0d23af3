"""The publisher with an S3 store that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import zstandard
from contract.test_sinks import S3Bench
from moto.server import ThreadedMotoServer
from msgspec.json import decode
from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.clock import SystemClock
from muster_event_publisher.history.jsonl import JsonlFormat
from muster_event_publisher.history.parquet import ParquetFormat
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from pyarrow.fs import S3FileSystem
from unit.publisher.feeding import INSTANCE, Feeder
from unit.publisher.running import TOPICS
from waiting import eventually

FAST = {"retry_min_s": 0.05, "retry_max_s": 0.1, "stop_timeout_s": 120}


class Store:
    """An S3 store that keeps its objects while it is away."""

    def __init__(self) -> None:
        self._server: ThreadedMotoServer | None = None
        self.port = 0

    def open(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = Store()
    store.open()
    files = S3FileSystem(endpoint_override=f"127.0.0.1:{store.port}", scheme="http", allow_bucket_creation=True)
    files.create_dir("outages")
    yield store
    store.close()


async def test_json_lines_are_compressed_once(store: Store) -> None:
    """(Arrow's streams compress by the name's ending, so a test that reads through them would notice nothing.)"""
    location = f"s3://outages/lines?endpoint=http://127.0.0.1:{store.port}&region=us-east-1"
    log = MemoryLog(TOPICS.specs(), SystemClock(), store=MemoryStore())
    await log.start()
    sinks: dict[str, dict[str, Any]] = {"jsonl": {"location": location, "roll_records": 10, "roll_s": 0.05}}
    settings = PublisherSettings.model_validate({"http_address": "", "sinks": sinks, **FAST})
    service = PublisherService(settings, log, TOPICS, SystemClock())
    await service.start()
    await Feeder(log, TOPICS).events("rm", range(10))
    bench = S3Bench(location, JsonlFormat())
    await eventually(lambda: bench.files() != [])
    await service.stop()
    await log.close()
    (key,) = bench.files()
    assert key.endswith(".jsonl.zst")
    with bench.place.open(key) as file:
        stored = file.read()
    lines = zstandard.ZstdDecompressor().stream_reader(stored).read().splitlines()
    assert [(event["instance"], event["id"]) for event in map(decode, lines)] == [(INSTANCE, n) for n in range(10)]


async def test_away_and_back(store: Store, tmp_path: Path) -> None:
    location = f"s3://outages/{uuid4().hex}?endpoint=http://127.0.0.1:{store.port}&region=us-east-1"
    sinks: dict[str, dict[str, Any]] = {
        "bucket": {"kind": "parquet", "location": location, "roll_records": 50, "roll_s": 0.05},
        "parquet": {"location": str(tmp_path), "roll_records": 50, "roll_s": 0.05},
    }
    log = MemoryLog(TOPICS.specs(), SystemClock(), store=MemoryStore())
    await log.start()
    settings = PublisherSettings.model_validate({"http_address": "", "sinks": sinks, **FAST})
    service = PublisherService(settings, log, TOPICS, SystemClock())
    feeder = Feeder(log, TOPICS)
    bench = S3Bench(location, ParquetFormat())

    def local() -> int:
        return sum(int(path.name[21:41]) - int(path.name[:20]) for path in tmp_path.rglob("*.parquet"))

    async def until_ring(count: int) -> None:
        await eventually(
            lambda: (ring := service.rings.get("rm")) is not None and ring.next_id >= count, "REST has the events"
        )

    transport = httpx.ASGITransport(service.asgi)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as http:
        await service.start()
        await feeder.events("rm", range(100))
        await eventually(lambda: bench.files() != [])
        for turn in range(1, 4):
            # 1. away: health names the store, REST and the other store continue
            await asyncio.to_thread(store.close)
            await feeder.events("rm", range(turn * 200 - 100, turn * 200))
            await eventually(lambda: local() == turn * 200)  # noqa: B023
            problems = await eventually(service.problems, "the failure is reported")
            await until_ring(turn * 200)
            assert [problem.partition(": s3://")[0] for problem in problems] == ["bucket"]
            health = await http.get("/health")
            assert "bucket: s3://outages/" in health.text
            assert "a-secret" not in health.text
            answer = (await http.get(f"/ws/v1/events/batch?start={turn * 200 - 1}")).json()
            assert [one["objectID"] for one in answer["EventRecords"]] == [f"app-{turn * 200 - 1}"]
            # 2. back: the store has each event once
            await asyncio.to_thread(store.open)
            await feeder.events("rm", range(turn * 200, turn * 200 + 100))
            expected = [(INSTANCE, n) for n in range(turn * 200 + 100)]

            async def enough(count: int = len(expected)) -> bool:
                return len(await bench.ids()) >= count

            await eventually(enough, "the store has all events", every_s=0.02)
            assert await bench.ids() == expected
        await eventually(service.healthy, "no failure is reported any more")  # (The file is visible a moment before.)
        await service.stop()
    await log.close()
