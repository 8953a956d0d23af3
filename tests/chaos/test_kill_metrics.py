"""`kill -9` during decisions: the tally counts each of them once, in every answer, watch and page."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import urllib.request
from pathlib import Path

import pytest
from chaos.harness import Deployment, embedded, on_kafka
from muster_client import Callbacks, RmClient, application, ask, node, release
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.metrics_client import MetricsClient, MetricsSnapshot, Section, Tally
from muster_client.settings import ClientSettings
from muster_replay.local_process import muster_command
from waiting import eventually

RM_ID = "counted"
PATIENCE_S = 180.0  # a restart is a part of some waits
NODES, ASKS, RELEASED, KILLS = 10, 300, 50, 3
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues: [{name: work, resources: {max: {vcore: 1000}}}]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def snapshot(deployment: Deployment, rm_id: str = RM_ID) -> MetricsSnapshot:
    """Reads a snapshot as a user does: repeats the call until it is answered."""
    async with asyncio.timeout(PATIENCE_S), MetricsClient(deployment.gateway) as metrics:
        while True:
            try:
                return await metrics.get(rm_id)
            except AdminFailed:
                await asyncio.sleep(0.1)


async def tally(deployment: Deployment) -> Tally:
    return (await snapshot(deployment)).scheduler.tally


async def _is_known(deployment: Deployment) -> bool:
    async with MetricsClient(deployment.gateway) as metrics:
        try:
            return bool((await metrics.get(RM_ID)).rm_id)
        except (AdminRefused, AdminFailed):  # it follows a moment later, or its view is not up yet
            return False


class Watcher:
    """Watches the tally, and again whenever the watch breaks.

    :ivar seen: every tally received, in order.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.seen: list[Tally] = []

    def is_done(self) -> bool:
        return bool(self.seen) and self.seen[-1].released == RELEASED

    async def watch(self) -> None:
        async with MetricsClient(self._deployment.gateway) as metrics:
            while True:
                with contextlib.suppress(AdminFailed):
                    async for found in metrics.watch(RM_ID, sections=[Section.SCHEDULER], interval_s=0.1):
                        assert found.HasField("scheduler")
                        self.seen.append(found.scheduler.tally)
                await asyncio.sleep(0.05)


async def count_and_kill(deployment: Deployment, name: str) -> None:
    allocated: set[str] = set()
    released: set[str] = set()
    callbacks = Callbacks(
        on_allocated=lambda new: allocated.update(item.allocationKey for item in new),
        on_released=lambda gone: released.update(item.allocationKey for item in gone),
    )
    settings = ClientSettings(backoff_seed=7)
    async with RmClient(deployment.gateway, RM_ID, config=QUEUES, callbacks=callbacks, settings=settings) as rm:
        # 1. nodes, an application, one that is refused, and somebody who watches
        await rm.register()
        await rm.send_nodes([node(f"n{number}", {"vcore": 100_000}) for number in range(NODES)])
        await rm.send_applications([application("app", "root.work"), application("lost", "root.nowhere")])
        await rm.nodes_answered()
        await rm.applications_answered()
        await eventually(lambda: _is_known(deployment), "the view knows the RM", PATIENCE_S)
        watcher = Watcher(deployment)
        watching = asyncio.create_task(watcher.watch())
        # 2. asks, and kills among them
        part = ASKS // (KILLS + 1)
        for start in range(0, ASKS, part):
            await rm.send_asks([ask(f"k{number}", "app", {"vcore": 1_000}) for number in range(start, start + part)])
            if start:
                await deployment.kill(name)
                await deployment.restart(name)
        await eventually(lambda: len(allocated) == ASKS, "all are allocated", PATIENCE_S)
        # 3. some go
        await rm.send_releases([release("app", f"k{number}") for number in range(RELEASED)])
        await eventually(lambda: len(released) == RELEASED, "some are released", PATIENCE_S)
        await eventually(watcher.is_done, "who watches sees it", PATIENCE_S)
        found = await snapshot(deployment)
        assert found.HasField("scheduler")
        counted = found.scheduler.tally
        # 4. each was counted once
        assert (counted.allocated, counted.released) == (ASKS, RELEASED)
        assert (counted.nodes_accepted, counted.nodes_rejected) == (NODES, 0)
        assert (counted.applications_accepted, counted.applications_rejected, counted.asks_rejected) == (1, 1, 0)
        assert counted.decisions > KILLS
        assert counted.deciding_us > 0
        assert (found.scheduler.allocations, found.scheduler.nodes) == (ASKS - RELEASED, NODES)
        assert found.queues[1].allocated == {"vcore": 1_000 * (ASKS - RELEASED)}
        assert sum(each.allocations for each in found.nodes) == ASKS - RELEASED
        # 5. whoever watched saw it grow, and never go back
        assert not watching.done()
        watching.cancel()
        amounts = [each.allocated for each in watcher.seen]
        assert amounts == sorted(amounts)
        assert amounts[-1] == ASKS
        # 6. others look at the same
        shown = await asyncio.to_thread(_top, deployment)
        assert f"{ASKS:,} allocated, 0 reported, {RELEASED:,} ended" in shown
    # 7. a registration again keeps it
    async with RmClient(deployment.gateway, RM_ID, config=QUEUES, settings=settings) as again:
        await again.register()
        assert (await tally(deployment)).allocated == ASKS
        await again.send_nodes([node("n1", {"vcore": 1_000})])
        await again.nodes_answered()

        async def one_more() -> bool:
            return (await tally(deployment)).nodes_accepted == NODES + 1

        await eventually(one_more, "the view sees it, a moment later", PATIENCE_S)


def _top(deployment: Deployment) -> str:
    command = muster_command("top", "--gateway", deployment.gateway, "--rm", RM_ID, "--once")
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


def processes(found: MetricsSnapshot) -> list[str]:
    assert found.HasField("runtime")
    running = found.runtime.processes
    assert all(each.memory_bytes and each.cpu_seconds and each.uptime_seconds for each in running)
    return [each.name for each in running]


def _exposed(deployment: Deployment) -> str:
    with urllib.request.urlopen(f"{deployment.http}/metrics", timeout=60) as answer:
        found: str = answer.read().decode()
    return found


async def test_in_muster_up(tmp_path: Path) -> None:
    deployment = embedded(tmp_path)
    async with deployment.running():
        await count_and_kill(deployment, "up")
        assert processes(await snapshot(deployment)) == ["gateway", "view"]
        exposed = await asyncio.to_thread(_exposed, deployment)
        assert f'muster_scheduler_nodes_accepted_total{{rm="{RM_ID}"}} 1.0' in exposed, "since this process began"
        assert 'muster_gateway_metrics_calls_total{method="Get",status="OK"}' in exposed


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.parametrize("name", ["scheduler", "view"])
async def test_on_kafka(tmp_path: Path, kafka_bootstrap: str, redis_url: str, name: str) -> None:
    deployment = on_kafka(tmp_path, kafka_bootstrap, redis_url)
    async with deployment.running():
        await count_and_kill(deployment, name)
        assert processes(await snapshot(deployment)) == ["gateway", "view"]
