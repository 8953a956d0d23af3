"""Event ids over `kill -9`: a batch gives the same events before and after, and new ids have no gap and no repeat."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from chaos.harness import Deployment, embedded, on_kafka
from perf.driver import Driver, Shape

SHAPE = Shape(nodes=5, asks=60, queues=2, applications=4, asks_per_message=20)
BATCH = "/ws/v1/events/batch"
# Small, so that most events are older than the ring and come from the log.
ENVIRONMENT = {"MUSTER_PUBLISHER__RING_CAPACITY": "50"}
# A killed publisher is back after seconds, on a busy machine after a minute.
PATIENCE_S = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ask(deployment: Deployment, path: str) -> Any:
    with urllib.request.urlopen(deployment.http + path, timeout=60) as answer:
        return json.loads(answer.read())


async def all_events(deployment: Deployment, at_least: int) -> tuple[str, list[dict[str, Any]]]:
    """Wait for so many events and no more; return the instance and all events from id 0 on."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            end = ask(deployment, f"{BATCH}?count=1")["HighestID"] + 1
            await asyncio.sleep(0.3)
            newest = ask(deployment, f"{BATCH}?count=1")
            if end >= at_least and newest["HighestID"] + 1 == end:
                break
        except OSError:
            await asyncio.sleep(0.1)  # the publisher is starting
    else:
        raise AssertionError(f"not {at_least} events\n{deployment.logs()}")
    assert newest["LowestID"] == max(end - 50, 0)
    found: list[dict[str, Any]] = []
    while len(found) < end:
        records = ask(deployment, f"{BATCH}?start={len(found)}")["EventRecords"]
        assert records, f"nothing from {len(found)} on"
        found += records
    assert len(found) == end
    return newest["InstanceUUID"], found


async def ids_stay(deployment: Deployment, victims: list[str]) -> None:
    driver = Driver(deployment.gateway, "ids", SHAPE)
    async with deployment.running(), driver.client() as rm:
        await driver.set_up(rm)
        await driver.ask_up_front(rm, "a")
        instance, before = await all_events(deployment, 3 * SHAPE.asks)
        for number, victim in enumerate(victims):
            await deployment.kill(victim)
            await deployment.restart(victim)
            again = await all_events(deployment, len(before))
            assert again == (instance, before)
            # (This makes room: the nodes fit the first asks only.)
            await driver.release_all(rm, "a" if not number else f"b{number - 1}")
            await driver.ask_up_front(rm, f"b{number}")
            instance_now, now = await all_events(deployment, len(before) + 4 * SHAPE.asks)
            assert (instance_now, now[: len(before)]) == (instance, before)
            # Each event was made once: kills do not change the number of an ask's events.
            news = [event["referenceID"] for event in now[len(before) :] if event.get("eventChangeDetail") == 200]
            assert sorted(news) == sorted(f"b{number}-{n}" for n in range(SHAPE.asks))
            before = now


async def test_ids_survive_kills_embedded(tmp_path: Path) -> None:
    await ids_stay(embedded(tmp_path, ENVIRONMENT), ["up", "up"])


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.timeout(600)
async def test_ids_survive_kills_on_kafka(tmp_path: Path, kafka_bootstrap: str, redis_url: str) -> None:
    await ids_stay(on_kafka(tmp_path, kafka_bootstrap, redis_url, ENVIRONMENT), ["event-publisher", "scheduler"])
