"""Asks and allocations of no application ("Independent allocation", the scheduler interface lines 250-251, the previous
generation lines 143-144)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from e2e.gang_rig import Muster, muster_here
from scenario.through_gateway import DEFAULT, SETTINGS, Played, rest_of
from waiting import eventually

OWN = "@independent@"
QUEUES = """\
partitions:
- name: default
  queues:
  - name: root
    submitacl: '*'
    maxapplications: 1
    limits: [{limit: x, users: ['*'], maxresources: {vcore: 5m}, maxapplications: 1}]
    queues: [{name: a, maxapplications: 1}]
"""
UPDATE = "UpdateAllocation"


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    async with muster_here(tmp_path, SETTINGS) as it:
        yield it


def _sums(events: list[dict[str, Any]], kind: int) -> dict[str, int]:
    """ADD minus REMOVE of allocations by object, for nodes (3) or applications (2)."""
    details = {3: (303,), 2: (200, 500, 501, 502, 503, 504)}[kind]
    sums: dict[str, int] = {}
    for each in events:
        if each["type"] == kind and each.get("eventChangeDetail") in details:
            sign = {2: 1, 3: -1}[each["eventChangeType"]]
            value = each["resource"]["resources"]["vcore"]["value"]
            sums[each["objectID"]] = sums.get(each["objectID"], 0) + sign * value
    return sums


async def _adds_up(rm: Played) -> int:
    """Fails unless REST's node, queue and partition and the events agree. Returns the figure."""

    async def agree() -> tuple[int] | None:
        node = await rm.sees(f"{DEFAULT}/node/n1")
        root = await rm.sees(f"{DEFAULT}/queue/root", subtree="")
        on_node = node.get("allocated", {}).get("vcore", 0)
        (partition,) = await rm.sees("/ws/v1/partitions")
        events = await rm.events()
        below = {each["queuename"]: each for each in root.get("children", [])}
        own = below.get(f"root.{OWN}", {}).get("allocatedResource", {}).get("vcore", 0)
        held = sum(each["resource"]["vcore"] for each in node.get("allocations", []) if each["applicationId"] == OWN)
        figures = {
            "node": on_node,
            "root": root.get("allocatedResource", {}).get("vcore", 0),
            "partition": partition["capacity"].get("usedCapacity", {}).get("vcore", 0),
            "events of the node": _sums(events, 3).get("n1", 0),
            "events of applications": sum(_sums(events, 2).values()),
        }
        assert own == held
        return (on_node,) if len(set(figures.values())) == 1 else None

    (found,) = await eventually(agree, "REST and the events agree")
    return int(found)


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_an_ask_of_no_application_is_scheduled_shown_and_released(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await rm.begins(QUEUES, {"vcore": 20})
            await rm.asks("", "k", 8)  # over the limit of any user, which is nobody's here
            new = await rm.hears(UPDATE, "new", allocationKey="k", applicationID="", nodeID="n1")
            assert new["resourcePerAlloc"] == {"vcore": 8}
            assert new["partitionName"] == "default"
            await rm.asks("", "w", 15)

            async def waits() -> dict[str, Any] | None:
                return (await rm.sees(f"{DEFAULT}/application/{OWN}")).get("requests")

            (asked,) = await eventually(waits, "w waits")
            assert asked["allocationKey"] == "w"
            explained = await rm.sees(f"/ws/v1/explain/ask/{OWN}/w")
            assert "n1" in str(explained) or "node" in str(explained)
            assert await _adds_up(rm) == 8
            (listed,) = await rm.sees(f"{DEFAULT}/queue/root.{OWN}/applications/active")
            assert (listed["applicationID"], listed["applicationState"]) == (OWN, "Running")
            assert "user" not in listed or not listed["user"]
            assert not [each for each in await rm.sees(f"{DEFAULT}/usage/users") if not each.get("userName")]
            dump = await rm.sees("/debug/fullstatedump")
            assert OWN in str(dump)
            # The maximum of applications counts it not: another one runs beside it.
            await rm.application("app", "root.a")
            await rm.hears("UpdateApplication", "accepted", applicationID="app")
            await rm.asks("app", "k", 2)
            await rm.hears(UPDATE, "new", allocationKey="k", applicationID="app")
            assert await _adds_up(rm) == 10
            # (The other one has an allocation of the same key, which stays.)
            await rm.releases({"allocationKey": "k"})
            await rm.hears(UPDATE, "released", allocationKey="k", applicationID="", terminationType="STOPPED_BY_RM")
            await rm.hears(UPDATE, "new", allocationKey="w", applicationID="", nodeID="n1")
            assert await _adds_up(rm) == 17
            await rm.releases({"allocationKey": "w"})
            await rm.hears(UPDATE, "released", allocationKey="w", applicationID="")
            assert await _adds_up(rm) == 2
            told = {each.item["applicationID"] for each in rm.peer.heard["UpdateApplication"]}
            assert told == {"app"}, "the RM gets no answer for an application that it did not send"
            assert not [each for each in rm.peer.heard[UPDATE] if "rejected" in each.kind]
        finally:
            await rm.peer.lose_connection()


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_an_allocation_of_no_application_is_taken_in(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await rm.begins(QUEUES, {"vcore": 20})
            uuid = {"UUID": "u-1"} if generation == "previous" else {}
            await rm.reports("", "k", 8, **uuid)
            new = await rm.hears(UPDATE, "new", allocationKey="k", applicationID="", nodeID="n1")
            assert new.get("UUID", "") == uuid.get("UUID", "")
            assert await _adds_up(rm) == 8
            await rm.reports("", "k", 6, **uuid)  # it is smaller now
            await rm.hears(UPDATE, "new", allocationKey="k", applicationID="")
            assert await _adds_up(rm) == 6
            if generation == "previous":
                existing = rm.allocation("", "e", 3, UUID="u-2")
                node = {"nodeID": "n2", "action": "CREATE", "schedulableResource": {"vcore": 4}}
                await rm.nodes({**node, "existingAllocations": [existing]})
                await rm.hears(UPDATE, "new", allocationKey="e", applicationID="", nodeID="n2")
                await rm.releases({"UUID": "u-2"})
                await rm.hears(UPDATE, "released", UUID="u-2", applicationID="")
            await rm.reports("", "lost", 8, node="moon")
            refused = await rm.hears(UPDATE, "rejectedAllocations", allocationKey="lost", applicationID="")
            assert "moon" in refused["reason"]
            await rm.releases({"allocationKey": "k"}, {"allocationKey": "k"})
            await rm.hears(UPDATE, "released", allocationKey="k", applicationID="", message="")
            again = await rm.hears(UPDATE, "released", allocationKey="k", applicationID="")
            assert "nothing to release" in again["message"]
            assert await _adds_up(rm) == 0
        finally:
            await rm.peer.lose_connection()


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_one_message_or_one_for_each_the_outcome_is_the_same(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        seen = []
        for split in (False, True):
            rm = Played(muster, http, generation)
            try:
                await rm.begins(QUEUES, {"vcore": 20})
                items = [rm.allocation("", f"k{number}", number + 1, nodeID="n1") for number in range(4)]
                items += [rm.allocation("", "k1", 7, nodeID="n1"), rm.allocation("", "f", 1, nodeID="n1")]
                items.append({**items[0], "allocationTags": {"foreign": "static"}})  # it is an independent one
                for part in [[item] for item in items] if split else [items]:
                    await rm.allocations(*part)
                heard = [await rm.hears(UPDATE, "new", allocationKey=item["allocationKey"]) for item in items[:-1]]
                await rm.hears(UPDATE, "rejectedAllocations", allocationKey="k0", applicationID="")
                node = await rm.sees(f"{DEFAULT}/node/n1")
                held = sorted((each["allocationKey"], each["resource"]["vcore"]) for each in node["allocations"])
                seen.append(([each["allocationKey"] for each in heard], held, node["allocated"]))
            finally:
                await rm.peer.lose_connection()
        assert seen[0] == seen[1]
        assert seen[0][2]["vcore"] == 1 + 7 + 3 + 4 + 1


@pytest.mark.asyncio
async def test_a_restart_loses_none_of_it(tmp_path: Path) -> None:
    at = tmp_path / "muster"
    async with muster_here(at, SETTINGS) as muster, rest_of(muster) as http:
        rm = Played(muster, http, "current", "rm")
        await rm.begins(QUEUES, {"vcore": 20})
        await rm.asks("", "k", 8)
        await rm.hears(UPDATE, "new", allocationKey="k")
        await rm.reports("", "e", 4)
        await rm.hears(UPDATE, "new", allocationKey="e")
        await rm.asks("", "w", 15)
        before = await eventually(lambda: rm.sees(f"{DEFAULT}/application/{OWN}"), "it is shown")
        await rm.peer.lose_connection()
    async with muster_here(at, SETTINGS) as muster, rest_of(muster) as http:
        rm = Played(muster, http, "current", "rm")
        await rm.releases({"allocationKey": "e"})
        await rm.hears(UPDATE, "released", allocationKey="e", applicationID="")
        assert before["submissionTime"] == (await rm.sees(f"{DEFAULT}/application/{OWN}"))["submissionTime"]
        await rm.releases({"allocationKey": "k"})
        await rm.hears(UPDATE, "released", allocationKey="k", applicationID="")
        await rm.hears(UPDATE, "new", allocationKey="w", applicationID="", nodeID="n1")
        assert await _adds_up(rm) == 15
        await rm.peer.lose_connection()
