"""A resource manager of either generation at the gateway of a whole Muster, with short calls for messages and REST."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from e2e.gang_rig import Muster
from scenario.lifecycles.peer import Heard, Peer

DEFAULT = "/ws/v1/partition/default"
# Nothing is told twice and no time is lost by waiting for a sweep; the rest is as `muster up` has it.
SETTINGS = ("gateway.resend_window_s=0", "gateway.lease_ttl_s=0.5", "scheduler.worker.idle_wait_s=0.05")


class Played:
    """One resource manager.

    :ivar heard: all that came on its streams, in order, as (method, kind, item).
    """

    def __init__(self, muster: Muster, http: httpx.AsyncClient, generation: str, rm_id: str = "") -> None:
        self.muster, self.http, self.generation = muster, http, generation
        self.rm_id = rm_id or f"{generation}-{uuid.uuid4().hex[:8]}"
        self.peer = Peer(muster.gateway, self.rm_id, generation)

    async def begins(self, config: str, node: Mapping[str, int], **fields: Any) -> None:
        """It registers and has a node, n1."""
        refused = await self.peer.register(config=config, **fields)
        assert not refused, refused
        await self.nodes({"nodeID": "n1", "action": "CREATE", "schedulableResource": node})
        await self.hears("UpdateNode", "accepted", nodeID="n1")

    async def nodes(self, *items: Mapping[str, Any]) -> None:
        await self.peer.send("UpdateNode", {"nodes": list(items)})

    async def application(self, app_id: str, queue: str, **fields: Any) -> None:
        item = {"applicationID": app_id, "queueName": queue, "partitionName": "default", "ugi": {"user": "ann"}}
        await self.peer.send("UpdateApplication", {"new": [{**item, **fields}]})

    async def reports(self, app_id: str, key: str, vcore: int, node: str = "n1", **fields: Any) -> None:
        await self.allocations(self.allocation(app_id, key, vcore, nodeID=node, **fields))

    async def asks(self, app_id: str, key: str, vcore: int, **fields: Any) -> None:
        """Sends an ask in the form of its generation."""
        if self.generation == "current":
            await self.allocations(self.allocation(app_id, key, vcore, **fields))
            return
        if "allocationTags" in fields:
            fields["tags"] = fields.pop("allocationTags")
        item = {"allocationKey": key, "applicationID": app_id, "partitionName": "default", "maxAllocations": 1}
        await self.peer.send("UpdateAllocation", {"asks": [{**item, "resourceAsk": {"vcore": vcore}, **fields}]})

    async def allocations(self, *items: Mapping[str, Any]) -> None:
        await self.peer.send("UpdateAllocation", {"allocations": list(items)})

    def allocation(self, app_id: str, key: str, vcore: int, **fields: Any) -> dict[str, Any]:
        item = {"allocationKey": key, "applicationID": app_id, "partitionName": "default", **fields}
        return {**item, "resourcePerAlloc": {"vcore": vcore}}

    async def releases(self, *items: Mapping[str, Any]) -> None:
        said = [{"partitionName": "default", "terminationType": "STOPPED_BY_RM", **item} for item in items]
        await self.peer.send("UpdateAllocation", {"releases": {"allocationsToRelease": said}})

    async def hears(self, method: str, kind: str, **fields: Any) -> dict[str, Any]:
        """Waits for an item of that kind with those fields, removes it from ``heard`` and returns it."""
        waiting = self.peer.heard[method]

        def found() -> Heard | None:
            return next((each for each in waiting if each.kind == kind and fields.items() <= each.item.items()), None)

        def what() -> str:
            return f"{method} {kind} {fields}; heard: {waiting}; ended: {self.peer.ended}"

        await self.peer.until(lambda: found() is not None or method in self.peer.ended, what)
        item = found()
        assert item is not None, what()
        waiting.remove(item)
        return item.item

    async def sees(self, path: str, **parameters: str) -> Any:
        """REST's answer for this resource manager."""
        answer = await self.http.get(path, params={"rm": self.rm_id, **parameters})
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    async def events(self) -> list[dict[str, Any]]:
        """The event records so far. There may be none yet, because the publisher follows the log."""
        answer = await self.http.get("/ws/v1/events/batch", params={"rm": self.rm_id, "count": "10000"})
        if answer.status_code == 404:
            return []
        assert answer.status_code == 200, answer.text
        return list(answer.json()["EventRecords"] or ())


@asynccontextmanager
async def rest_of(muster: Muster) -> AsyncIterator[httpx.AsyncClient]:
    plain = httpx.AsyncHTTPTransport(verify=False)  # no certificates are read, which takes long
    async with httpx.AsyncClient(base_url=muster.http, timeout=60, transport=plain) as http:
        yield http
