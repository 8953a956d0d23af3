"""The shapes of contract/rest_shapes.py through the gateway: what a real Muster answers over real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from contract import rest_shapes as shapes
from contract.rest_reader import Reader
from e2e.gang_rig import P, Rm, live_through, muster_here

QUEUES = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    limits: [{users: ['*'], maxapplications: 50}, {groups: [ops], maxapplications: 9}]
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: free}
          - {name: limited, resources: {max: {vcore: 4}}}
          - {name: dynamic, parent: true, childtemplate: {resources: {max: {vcore: 2}}}}
"""


@pytest.mark.parametrize("previous", [False, True], ids=["current words", "previous words"])
async def test_every_answer_behind_the_gateway_has_its_shape(tmp_path: Path, *, previous: bool) -> None:
    async with (
        muster_here(tmp_path) as muster,
        Rm(muster.gateway, muster.http, "rm", QUEUES, previous=previous) as rm,
        httpx.AsyncClient(base_url=muster.http, timeout=60) as client,
    ):
        # 1. gangs that are over, an application that is refused, one that runs, asks that wait
        await rm.nodes(n1=9_000, n2=4_000)
        await live_through(rm, "root.free", ["gang-1", "gang-2"])
        assert (await rm.application("bad", "root.dynamic.new", 3_000)).how == "Rejected"
        await rm.application("app", "root.limited")
        first = await rm.real("app", "first", 3_000, group="")
        await rm.real("app", "second", 3_000, group="")
        await rm.hears("new", first)
        await rm.barrier()
        muster.clock.forward(31)
        await rm.shows(f"{P}/applications/completed", lambda found: len(found) == 2)
        await rm.shows(f"{P}/application/app", lambda app: "pendingReason" in app["requests"][0])
        # 2. everything there is to ask
        reader = Reader(client)
        await reader.everything()
        batch = await reader.get("/ws/v1/events/batch", shapes.EventBatch)
        assert len(batch.records) == batch.highest - batch.lowest + 1
        async with client.stream("GET", "/ws/v1/events/stream?count=5") as stream:
            lines = stream.aiter_lines()
            assert json.loads(await anext(lines)) == {"InstanceUUID": batch.instance}
            for _ in range(5):
                shapes.valid((await anext(lines)).encode() + b"\n", shapes.Event)
        judged = await client.post("/ws/v1/validate-conf", content=QUEUES)
        assert shapes.valid(judged.content, shapes.Validated).allowed
        # 3. what history servers begin with, as they ask for it
        dump: Any = (await client.get("/ws/v1/fullstatedump", follow_redirects=True)).json()
        states = sorted(app["applicationState"] for app in dump["applications"])
        assert states == ["Completed", "Completed", "Rejected", "Running"]
