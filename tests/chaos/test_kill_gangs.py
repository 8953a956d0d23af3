"""`kill -9` in the middle of replacements: each real ask is allocated once and replaces one placeholder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chaos.harness import (
    Deployment,
    assert_counted_through,
    embedded,
    event_ids,
    folded_state,
    on_kafka,
    opened_log,
    response_sequences,
)
from e2e.gang_rig import P, Rm, live_through
from waiting import eventually

GANGS = [f"gang-{number}" for number in range(12)]
# Room for one gang and a half: they come one after the other.
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues: [{name: gangs, resources: {max: {vcore: 5}}}]
"""
# After so many replacements that were told: some of them in the middle of a gang, and one right after another.
KILLS = (3, 14, 15, 30)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def ended(rm: Rm, app: str) -> dict[str, Any]:
    """REST's answer for a finished application: Completing for 30 s, then Completed."""

    async def found() -> dict[str, Any] | None:
        said: dict[str, Any] | None = await rm.get(f"{P}/application/{app}")
        if said is not None and said["applicationState"] == "Completing":
            return said
        completed = await rm.get(f"{P}/applications/completed") or []
        return next((each for each in completed if each["applicationID"] == app), None)

    application: dict[str, Any] = await eventually(found, f"{app} has worked")
    return application


async def live_and_kill(deployment: Deployment, name: str, *, previous: bool) -> None:
    killed = 0

    async def kill(rm: Rm) -> None:
        nonlocal killed
        for told in KILLS:
            while sum(heard.how == "PLACEHOLDER_REPLACED" for heard in rm.heard) < told:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await deployment.kill(name)
            await deployment.restart(name)
            killed += 1

    async with deployment.running(), Rm(deployment.gateway, deployment.http, "rm", QUEUES, previous=previous) as rm:
        await rm.nodes(n1=2_500, n2=2_500)
        killing = asyncio.create_task(kill(rm))
        await live_through(rm, "root.gangs", GANGS)
        await killing
        assert killed == len(KILLS), "not every kill came to pass: the test has shown nothing"
        # 1. as the client was told (it watches the nodes itself)
        placed = [told.name for told in rm.heard if told.kind == "new"]
        assert len(placed) == len(set(placed)) == 8 * len(GANGS)
        assert rm.overcommitted == []
        for app in GANGS:
            shown = await ended(rm, app)
            assert shown["placeholderData"][0]["replaced"] == 4
    async with opened_log(deployment.log_settings) as (log, topics):
        # 2. as the folded state says
        state = await folded_state(log, topics, "rm")
        assert not state.placements()
        assert not state.waiting()
        # 3. as the numbers on the log say
        assert_counted_through(await event_ids(log, topics, "rm"), 0, "event ids")
        assert_counted_through(await response_sequences(log, topics, "rm"), 1, "response numbers")


async def test_gangs_of_the_previous_generation_outlive_muster_up(tmp_path: Path) -> None:
    await live_and_kill(embedded(tmp_path), "up", previous=True)


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.parametrize("name", ["scheduler", "gateway"])
async def test_gangs_outlive_a_service_on_kafka(
    tmp_path: Path, kafka_bootstrap: str, redis_url: str, name: str
) -> None:
    await live_and_kill(on_kafka(tmp_path, kafka_bootstrap, redis_url), name, previous=False)
