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

from bench.driver import Driver, Shape

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


def places(events: list[dict[str, Any]]) -> list[str]:
    """Return the asks that got a place, in the order of the events."""
    return [event["referenceID"] for event in events if event.get("eventChangeDetail") == 200]


async def all_events(deployment: Deployment, prefix: str, at_least: int = 0) -> tuple[str, list[dict[str, Any]]]:
    """Wait for the places of all asks of this prefix; return the instance and all events from id 0 on.

    (More events may come at any later moment: a publisher that gets no processor time looks like one that has all.)
    """
    wanted = set(keys(prefix))
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            newest = ask(deployment, f"{BATCH}?count=1")
            end = newest["HighestID"] + 1
            assert newest["LowestID"] == max(end - 50, 0)
            found: list[dict[str, Any]] = []
            while len(found) < end:
                records = ask(deployment, f"{BATCH}?start={len(found)}")["EventRecords"]
                assert records, f"nothing from {len(found)} on"
                found += records
            if len(found) >= at_least and wanted <= set(places(found)):
                return newest["InstanceUUID"], found
        except OSError:
            pass  # the publisher is starting
        await asyncio.sleep(0.1)
    raise AssertionError(f"no places for all asks of {prefix}\n{deployment.logs()}")


def keys(prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(SHAPE.asks)]


async def ids_stay(deployment: Deployment, victims: list[str]) -> None:
    driver = Driver(deployment.gateway, "ids", SHAPE)
    async with deployment.running(), driver.client() as rm:
        await driver.set_up(rm)
        await driver.ask_up_front(rm, "a")
        instance, before = await all_events(deployment, "a")
        for number, victim in enumerate(victims):
            name, earlier = f"b{number}", f"b{number - 1}" if number else "a"
            await deployment.kill(victim)
            await deployment.restart(victim)
            instance_again, again = await all_events(deployment, earlier, len(before))
            assert (instance_again, again[: len(before)]) == (instance, before)
            assert places(again) == places(before)
            # (This makes room: the nodes fit the first asks only.)
            await driver.release_all(rm, earlier)
            await driver.ask_up_front(rm, name)
            instance_now, now = await all_events(deployment, name, len(again))
            assert (instance_now, now[: len(again)]) == (instance, again)
            # Each event was made once: kills do not change the number of an ask's events.
            assert sorted(places(now[len(again) :])) == sorted(keys(name))
            before = now


async def test_ids_survive_kills_embedded(tmp_path: Path) -> None:
    await ids_stay(embedded(tmp_path, ENVIRONMENT), ["up", "up"])


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.timeout(600)
async def test_ids_survive_kills_on_kafka(tmp_path: Path, kafka_bootstrap: str, redis_url: str) -> None:
    await ids_stay(on_kafka(tmp_path, kafka_bootstrap, redis_url, ENVIRONMENT), ["event-publisher", "scheduler"])
