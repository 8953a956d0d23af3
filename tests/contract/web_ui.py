"""YuniKorn's web UI: what each of its pages asks, and what it takes for granted. One quirk of its readers, one check.

A browser forgives less than it seems: it looks into objects without asking whether they are there, and divides times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx

NEVER_MS = -62_135_596_800_000
INT32_MIN = -(1 << 31)
STATES = (
    "New",
    "Accepted",
    "Running",
    "Rejected",
    "Completing",
    "Completed",
    "Failing",
    "Failed",
    "Expired",
    "Resuming",
)
# Nothing here happened before this test was written, nor will in ten years.
SINCE_S, UNTIL_S = 1_600_000_000, time.time() + 10 * 365 * 24 * 3600


class WebUi:
    """A browser on the pages of the web UI.

    :param client: of a gateway.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def every_page(self) -> None:
        await self.dashboard()
        for partition in await self._get("/ws/v1/partitions"):
            queues = await self.queues(partition["name"])
            for queue in queues:
                await self.applications(partition["name"], queue)
            await self.nodes(partition["name"])
        await self.status()
        await self.errors()

    async def dashboard(self) -> None:
        cluster = (await self._get("/ws/v1/clusters"))[0]
        assert isinstance(cluster["clusterName"], str)
        assert isinstance(cluster["rmBuildInformation"][0]["rmId"], str)
        partition = (await self._get("/ws/v1/partitions"))[0]
        assert isinstance(partition["nodeSortingPolicy"]["type"], str)
        assert isinstance(partition["applications"]["total"], int)  # (read unguarded)
        counts = [partition["applications"].get(state, 0) for state in STATES]
        assert sum(counts) == partition["applications"]["total"]
        for path, number in (("apps", "totalApplications"), ("containers", "totalContainers")):
            for sample in await self._get(f"/ws/v1/history/{path}"):
                assert SINCE_S < sample["timestamp"] / 1e9 < UNTIL_S
                assert isinstance(sample[number], str)
                assert float(sample[number]) >= 0  # (+x)
        for of_partition in await self._get("/ws/v1/scheduler/node-utilizations"):
            for of_type in of_partition["utilizations"]:
                assert len(of_type["utilization"]) == 10
                assert all("bucketName" in bucket for bucket in of_type["utilization"])

    async def queues(self, partition: str) -> list[str]:
        root = await self._get(f"/ws/v1/partition/{partition}/queues")
        assert isinstance(root, dict), "one queue, not a list of them"
        assert root["partition"] == partition
        found = []
        for queue in _below(root):
            found.append(queue["queuename"])
            assert queue is root or queue["partition"] == "", "only root carries the name"
            assert isinstance(queue.get("children", []), list)
            for name in ("isLeaf", "isManaged"):
                assert isinstance(queue[name], bool)
            assert isinstance(queue["currentPriority"], int)
            for name in (
                "maxResource",
                "guaranteedResource",
                "allocatedResource",
                "pendingResource",
                "absUsedCapacity",
            ):
                _integers(queue.get(name, {}))
            assert all(isinstance(value, str) for value in queue.get("properties", {}).values())
            assert queue.get("status") in ("Active", "Draining", "Stopped")
        return found

    async def applications(self, partition: str, queue: str) -> None:
        for app in await self._get(f"/ws/v1/partition/{partition}/queue/{quote(queue, safe='')}/applications"):
            assert isinstance(app["applicationID"], str)
            for name in ("usedResource", "pendingResource", "maxUsedResource"):
                _integers(app.get(name, {}))
            assert SINCE_S < app["submissionTime"] / 1e9 < UNTIL_S, "nanoseconds"
            assert app["startTime"] == NEVER_MS or SINCE_S < app["startTime"] / 1e3 < UNTIL_S, "milliseconds"
            assert all(SINCE_S < entry["time"] / 1e9 < UNTIL_S for entry in app["stateLog"])
            assert isinstance(app["resourceHistory"], dict), "always there"
            if "requests" not in app:
                assert app["maxRequestPriority"] == INT32_MIN
            for held in (*app.get("allocations", []), *app.get("requests", [])):
                _held(held)

    async def nodes(self, partition: str) -> None:
        for node in await self._get(f"/ws/v1/partition/{partition}/nodes"):
            assert isinstance(node["attributes"], dict), "an object, also when it is empty"
            for name in ("capacity", "allocated", "occupied", "available", "utilized"):
                _integers(node.get(name, {}))
            assert 0 not in node.get("available", {}).values(), "zero drops out"
            for held in (*node.get("allocations", []), *node.get("foreignAllocations", [])):
                _held(held)

    async def status(self) -> None:
        health = await self._get("/ws/v1/scheduler/healthcheck")
        assert isinstance(health["Healthy"], bool)
        for check in health["HealthChecks"]:
            assert isinstance(check["Succeeded"], bool)
            assert all(isinstance(check[name], str) for name in ("Name", "Description"))
            assert isinstance(check.get("DiagnosisMessage", ""), str)

    async def errors(self) -> None:
        answer = await self._client.get("/ws/v1/partition/nope/queues")
        said = answer.json()
        assert (answer.status_code, said["status_code"]) == (404, 404)
        assert said["message"] == said["description"] == "Partition not found"

    async def _get(self, path: str) -> Any:
        answer = await self._client.get(path, headers={"Accept": "application/json, text/plain, */*"})
        assert answer.status_code == 200, (path, answer.text)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert b"null" not in answer.content.replace(b'"null"', b""), path
        return answer.json()


def _below(queue: Any) -> Iterator[Any]:
    yield queue
    for child in queue.get("children", []):
        yield from _below(child)


def _held(held: Any) -> None:
    assert isinstance(held["allocationKey"], str)
    assert isinstance(held.get("priority", "0"), str)
    assert isinstance(held.get("allocationTags", {}), dict)
    _integers(held.get("resource", {}))
    if "allocationDelay" in held:
        assert held["placeholderUsed"] is True, "only of an allocation that replaced a placeholder"


def _integers(values: dict[str, Any]) -> None:
    assert all(type(value) is int for value in values.values()), values
