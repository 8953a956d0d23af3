"""A Muster that lives leaves no garbage, and its deciding process has no full collection, however it grows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from chaos.harness import Deployment, embedded
from garbage_probe import OUT
from muster_client import ask, node
from muster_client.client import RmClient
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

from bench.driver import Driver, Shape
from bench.idle_bench import rss_mib

WITHIN_S = 240.0
SHAPE = Shape(nodes=50, asks=500, applications=20)
ROOM = {"vcore": 20_000, "memory": 80 << 30, "pods": 1_000}
# Each ask has 300 tags of 200 bytes; the memory grows by more than that.
HEAVY, TAGS, TAG = 40, 300, "x" * 190
GROWN_MIB = 200
# An earlier version looked at the memory 20 s after it was ready, and then every 20 s.
LOOKED_S = 21.0

pytestmark = pytest.mark.timeout(2 * WITHIN_S)


def probed(directory: Path) -> Deployment:
    """A Muster whose deciding process says what garbage it has."""
    found = embedded(directory, {OUT: str(directory / "garbage.json"), "MUSTER_COMPILED": "0"})
    found.processes["up"].command[:1] = [sys.executable, str(Path(__file__).parents[1] / "garbage_probe.py")]
    return found


async def begin(deployment: Deployment, directory: Path) -> None:
    """From now on, everything in a circle stays."""
    os.kill(deployment.processes["up"].pid, signal.SIGUSR2)
    await eventually(lambda: (directory / "garbage.begun").exists(), "young collections are off", WITHIN_S)


async def garbage(deployment: Deployment, directory: Path) -> dict[str, Any]:
    """What garbage the deciding process has."""
    out = directory / "garbage.json"
    out.unlink(missing_ok=True)
    os.kill(deployment.processes["up"].pid, signal.SIGUSR1)
    await eventually(out.exists, "the garbage is written", WITHIN_S)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


async def no_circles(deployment: Deployment, directory: Path, after: str) -> None:
    """Fails if anything has been in a circle so far. (What ends later than its answer, a later look finds.)"""
    assert not (await garbage(deployment, directory))["circles"], f"after {after}"


async def live(rm: RmClient, driver: Driver, deployment: Deployment, directory: Path) -> None:
    """One of each operation of an RM."""

    async def checked(after: str) -> None:
        await no_circles(deployment, directory, after)

    await driver.set_up(rm)
    await checked("a registration, nodes and applications")
    await driver.ask_up_front(rm, "a")
    await driver.release_all(rm, "a")
    await checked("asks and releases")
    await driver.ask_up_front(rm, "b")
    await rm.send_asks([ask(f"never-{number}", f"app-{number}", {"vcore": 1 << 40}) for number in range(20)])
    gone = [si.RemoveApplicationRequest(applicationID=f"app-{n}", partitionName="default") for n in range(10)]
    await rm.send_applications(remove=gone)
    await rm.send_nodes([si.NodeInfo(nodeID=f"node-{n}", action=si.NodeInfo.DECOMISSION) for n in range(25)])
    await rm.send_nodes([node(f"node-{number}", ROOM) for number in range(5)])
    await rm.nodes_answered()
    await checked("applications and nodes that went")


async def test_nothing_that_ends_waits_for_a_collection_and_none_is_full(tmp_path: Path) -> None:
    deployment = probed(tmp_path)
    async with deployment.running():
        ready_s = time.monotonic()
        await begin(deployment, tmp_path)
        driver = Driver(deployment.gateway, "garbage", SHAPE)
        async with driver.client() as rm:
            await live(rm, driver, deployment, tmp_path)
        await no_circles(deployment, tmp_path, "the streams' end")
        for _ in range(3):
            async with Driver(deployment.gateway, "garbage", SHAPE).client() as rm:
                await rm.register()
        await no_circles(deployment, tmp_path, "registrations anew")
        for path in ("/health", "/metrics", "/ws/v1/partitions", "/ws/v1/partition/default/nodes"):
            await asyncio.to_thread(lambda path=path: urlopen(deployment.http + path).read())
        await no_circles(deployment, tmp_path, "reads")
        await grow(deployment)
        await asyncio.sleep(max(0.0, ready_s + LOOKED_S - time.monotonic()))
        assert await garbage(deployment, tmp_path) == {"circles": {}, "full_collections": 0}


async def grow(deployment: Deployment) -> None:
    """Lets the deciding process grow by 200 MiB that it needs."""
    pid = deployment.processes["up"].pid
    before_mib, number = rss_mib(pid), 0
    driver = Driver(deployment.gateway, "heavy", Shape(nodes=1, asks=1, applications=1))
    tags = {f"tag-{number}": TAG for number in range(TAGS)}
    async with driver.client() as rm, asyncio.timeout(WITHIN_S):
        await driver.set_up(rm)
        while rss_mib(pid) < before_mib + GROWN_MIB:
            asks = [ask(f"heavy-{number + each}", "app-0", {"vcore": 1 << 40}, tags=tags) for each in range(HEAVY)]
            await rm.send_asks(asks)
            number += HEAVY
