"""Positions where the followers have a process of their own, with the HTTP front: the log is the same one there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from integration.test_followers_front import OPS, OURS, WITHIN_S, Rig, running
from muster_bus.clock import SystemClock
from muster_client import Callbacks, ClientSettings, RmClient, application, ask, node
from muster_client.access import Access
from muster_client.events_client import EventsClient
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_si.positions import Position, Stamp

pytestmark = pytest.mark.timeout(3 * WITHIN_S)

RM = "rm1"
QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
QUICK = ClientSettings(backoff_min_ms=20, backoff_max_ms=200, close_timeout_s=1, linger_s=0.2)


class Whole(Rig):
    """The rig, with a scheduler."""

    def __init__(self, directory: Path, tokens: Path) -> None:
        super().__init__(directory, tokens)
        self.scheduler = SchedulerService(  # type: ignore[assignment]
            SchedulerSettings(), self.log, self.log.settings.topics(), SystemClock()
        )

    async def json(self, path: str, after: str, status: int = 200) -> object:
        found, text, _ = await self.ask(path, headers={"Muster-After": after})
        assert found == status, text
        return json.loads(text)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Whole]:
    async with running(Whole, tmp_path) as one:
        yield one


async def test_reads_of_the_followers_process_show_what_a_client_was_told(rig: Whole) -> None:
    allocated: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def on_allocated(new: object) -> None:
        for each in new:  # type: ignore[attr-defined]
            allocated.put_nowait((each.allocationKey, client.position))

    client = RmClient(
        f"127.0.0.1:{rig.gateway.grpc_port}",
        RM,
        config=QUEUES,
        callbacks=Callbacks(on_allocated=on_allocated),
        settings=QUICK,
        access=Access(token=OPS),
    )
    async with client, asyncio.timeout(2 * WITHIN_S):
        await client.register()
        await client.send_nodes([node("n1", {"vcore": 100_000})])
        await client.send_applications([application("x", "root.a")])
        await client.applications_answered()
        for turn in range(2):
            for number in range(10):
                await client.send_asks([ask(f"k{turn}.{number}", "x", {"vcore": 1})])
                key, position = await allocated.get()
                shown = await rig.json(f"/ws/v1/partition/default/queue/root.a/application/x?rm={RM}", position)
                assert key in {each["allocationKey"] for each in shown["allocations"]}  # type: ignore[index]
                batch = await rig.json(f"/ws/v1/events/batch?rm={RM}&count=10000", position)
                assert key in {each.get("referenceID") for each in batch["EventRecords"]}  # type: ignore[index]
            address = f"127.0.0.1:{rig.gateway.grpc_port}"
            async with EventsClient(address, access=Access(token=OPS, after=position)) as events:
                assert key in str(await events.batch(RM, count=10_000))
            # an operator's change, which goes over the pipe, and the other process's end
            path = f"/ws/v1/operate/{'resume' if turn else 'pause'}?rm={RM}"
            status, text, headers = await rig.ask(path, method="POST", headers=OURS)
            assert status == 200, text
            changed = headers["muster-position"]
            assert json.loads(text)["position"] == changed
            (manager,) = await rig.json("/ws/v1/resource-managers", changed)  # type: ignore[misc]
            assert manager["held"] is not bool(turn)
            if turn == 0:
                assert (await rig.ask(f"/ws/v1/operate/resume?rm={RM}", method="POST", headers=OURS))[0] == 200
                os.kill(rig.followers.pid, signal.SIGKILL)
                await rig.child_accepts(does=False)
                await rig.child_accepts()
                assert await rig.json("/ws/v1/resource-managers", changed)
        known = Position.parse(changed)
        ((partition, stamp),) = known.stamps.items()
        later = Position(known.log, {partition: Stamp(stamp.before + 1_000)}).text()
        refused = await rig.json("/ws/v1/resource-managers", later, status=400)
        assert "one of the future" in refused["message"]  # type: ignore[index]
