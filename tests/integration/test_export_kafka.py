"""The publisher on a real Kafka: offsets with holes (transaction markers), restart, history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from history_files import rows_of
from muster_bus.clock import SystemClock
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_event_publisher.service import PublisherService
from muster_event_publisher.settings import PublisherSettings
from unit.publisher.feeding import INSTANCE, Feeder
from waiting import eventually

pytestmark = pytest.mark.kafka


def settings(bootstrap: str, prefix: str) -> LogSettings:
    return LogSettings(backend="kafka", kafka_bootstrap_servers=bootstrap, topic_prefix=prefix, partitions=1)


async def test_restart_ring_rest_and_history(kafka_bootstrap: str, tmp_path: Path) -> None:
    log_settings = settings(kafka_bootstrap, f"t{uuid4().hex}.")
    log: Log = make_log(log_settings, SystemClock())
    await log.start()

    def service(**more: Any) -> PublisherService:
        publisher = PublisherSettings(
            http_address="", ring_capacity=50, parquet_dir=tmp_path, stop_timeout_s=120, **more
        )
        return PublisherService(publisher, log, log_settings.topics(), SystemClock())

    feeder = Feeder(log, log_settings.topics())
    try:
        # 1. a publisher crashes before it has written most of its history
        first = service(parquet_roll_records=70, parquet_roll_s=3600)
        await first.start()
        await feeder.events("rm", range(100), per_transaction=3)
        await feeder.shim("rm", 5)
        await feeder.events("rm", range(100, 200), per_transaction=7)
        await eventually(lambda: (ring := first.rings.get("rm")) is not None and ring.next_id == 200)
        await first.abandon()
        await feeder.events("rm", range(200, 230), per_transaction=4)
        # 2. the next one: ids go on, the ring is full, older events come from the log
        second = service()
        await second.start()
        # (Kafka acknowledges a commit a moment before everybody sees it.)
        await eventually(lambda: (ring := second.rings.get("rm")) is not None and ring.next_id == 230)
        ring = second.rings.get("rm")
        assert ring is not None
        assert (ring.lowest, ring.next_id, ring.instance) == (180, 230, INSTANCE)
        transport = httpx.ASGITransport(second.asgi)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://publisher") as http:
            for start in (0, 99, 100, 150, 179, 200):
                answer = (await http.get(f"/ws/v1/events/batch?start={start}&count=20")).json()
                assert [record["objectID"] for record in answer["EventRecords"]] == [
                    f"app-{n}" for n in range(start, start + 20)
                ]
        # (The first one is in the group until its session ends.)
        await eventually(lambda: second.facts()["event-publisher"]["exports"] == [0])  # type: ignore[index]
        await second.stop()
        # 3. history has every event once
        query = f"select id from read_parquet('{tmp_path}/**/*.parquet') order by id"
        ids = await asyncio.to_thread(rows_of, query)
        assert ids == [(n,) for n in range(230)]
    finally:
        await log.close()
