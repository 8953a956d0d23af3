"""Claims on nodes as an RM of either generation meets them at the gateway (decision 258)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from e2e.gang_rig import Muster, muster_here
from scenario.through_gateway import DEFAULT, SETTINGS, Played, rest_of
from waiting import eventually

CONFIG = """\
partitions:
- name: default
  queues:
  - name: root
    submitacl: '*'
    queues:
    - {name: a, resources: {guaranteed: {vcore: 7m}}, properties: {preemption.delay: 1s}}
    - {name: b}
"""
UPDATE = "UpdateAllocation"
MAY_GO, PREEMPTS = {"allowPreemptSelf": True}, {"allowPreemptOther": True}
GENERATIONS = pytest.mark.parametrize("generation", ["current", "previous"])


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    async with muster_here(tmp_path, SETTINGS) as it:
        yield it


async def _two_full_nodes(rm: Played) -> dict[str, str]:
    """Queue b, without a guarantee, fills two nodes of 3 cores with allocations of 1. Returns the node of each."""
    await rm.begins(CONFIG, {"vcore": 3})
    await rm.nodes({"nodeID": "n2", "action": "CREATE", "schedulableResource": {"vcore": 3}})
    await rm.hears("UpdateNode", "accepted", nodeID="n2")
    for app_id, queue in (("needy", "root.a"), ("rich", "root.b")):
        await rm.application(app_id, queue)
        await rm.hears("UpdateApplication", "accepted", applicationID=app_id)
    nodes = {}
    for number in range(6):
        await rm.asks("rich", f"v{number}", 1, preemptionPolicy=MAY_GO)
        nodes[f"v{number}"] = (await rm.hears(UPDATE, "new", allocationKey=f"v{number}"))["nodeID"]
    return nodes


async def _waits(rm: Played, app_id: str, key: str) -> None:
    async def shows() -> bool:
        asked = (await rm.sees(f"{DEFAULT}/application/{app_id}")).get("requests") or ()
        return key in [each["allocationKey"] for each in asked]

    await eventually(shows, f"{key} waits")


async def _preempted(rm: Played) -> dict[str, Any]:
    return await rm.hears(UPDATE, "released", terminationType="PREEMPTED_BY_SCHEDULER")


async def _confirms(rm: Played, told: dict[str, Any]) -> None:
    uuid = {"UUID": told["UUID"]} if told.get("UUID") else {}
    named = {"applicationID": told["applicationID"], "allocationKey": told["allocationKey"], **uuid}
    await rm.releases({**named, "terminationType": "PREEMPTED_BY_SCHEDULER"})


@GENERATIONS
async def test_a_guarantee_is_met_though_another_queue_has_reserved_every_node(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await _two_full_nodes(rm)
            for key, size in (("large", 2), ("larger", 3)):
                await rm.asks("rich", key, size)
                await _waits(rm, "rich", key)
            muster.clock.forward(3)

            async def are_reserved() -> bool:
                return all([(await rm.sees(f"{DEFAULT}/node/{node}"))["isReserved"] for node in ("n1", "n2")])

            await eventually(are_reserved, "both nodes are reserved for queue b")
            for key in ("k0", "k1"):
                await rm.asks("needy", key, 1, preemptionPolicy=PREEMPTS)
                await _waits(rm, "needy", key)
            muster.clock.forward(1)
            for told in [await _preempted(rm), await _preempted(rm)]:
                assert told["applicationID"] == "rich"
                await _confirms(rm, told)
            for key in ("k0", "k1"):
                await rm.hears(UPDATE, "new", allocationKey=key)
        finally:
            await rm.peer.lose_connection()


@GENERATIONS
async def test_room_that_is_lost_with_its_node_is_made_again(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            nodes = await _two_full_nodes(rm)
            await rm.asks("needy", "k", 1, preemptionPolicy=PREEMPTS)
            await _waits(rm, "needy", "k")
            muster.clock.forward(1)
            lost = nodes[(await _preempted(rm))["allocationKey"]]
            await rm.nodes({"nodeID": lost, "action": "DECOMISSION"})
            await rm.hears(UPDATE, "released", terminationType="STOPPED_BY_RM")
            muster.clock.forward(15)
            told = await _preempted(rm)
            assert nodes[told["allocationKey"]] != lost
            await _confirms(rm, told)
            assert (await rm.hears(UPDATE, "new", allocationKey="k"))["nodeID"] != lost
        finally:
            await rm.peer.lose_connection()


@GENERATIONS
async def test_a_freed_core_goes_to_the_higher_priority(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await rm.begins(CONFIG, {"vcore": 1})
            await rm.application("app", "root.b")
            await rm.hears("UpdateApplication", "accepted", applicationID="app")
            await rm.asks("app", "first", 1)
            told = await rm.hears(UPDATE, "new", allocationKey="first")
            await rm.asks("app", "low", 1)
            await _waits(rm, "app", "low")
            muster.clock.forward(3)

            async def is_reserved() -> bool:
                return bool((await rm.sees(f"{DEFAULT}/node/n1"))["isReserved"])

            await eventually(is_reserved, "n1 is reserved")
            await rm.asks("app", "high", 1, priority=800)
            await _waits(rm, "app", "high")
            uuid = {"UUID": told["UUID"]} if told.get("UUID") else {}
            await rm.releases({"applicationID": "app", "allocationKey": "first", **uuid})
            placed = await rm.hears(UPDATE, "new", nodeID="n1")
            assert placed["allocationKey"] == "high"
        finally:
            await rm.peer.lose_connection()
