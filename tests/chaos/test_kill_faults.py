"""`kill -9` under a full disk and while somebody sets the clock: each task is accounted for exactly once.

MUSTER_FAULT_KILLS=30 kills more often (default 3: each fault once).
"""

from __future__ import annotations

import asyncio
import os
import urllib.error
import urllib.request
from itertools import cycle, islice
from pathlib import Path

import pytest
from chaos.harness import Deployment, assert_each_task_once, embedded
from chaos.test_kill import OPENB, RM_ID, TASKS, options
from e2e.full_disk import SmallDisk, small_disk
from e2e.wall_clock import WallClock
from muster_client.replay import replay

KILLS = int(os.environ.get("MUSTER_FAULT_KILLS", "3"))
PATIENCE_S = 300.0  # for a start on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 300 * KILLS)]


def health(deployment: Deployment) -> str:
    try:
        with urllib.request.urlopen(f"{deployment.http}/health", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


class Faults:
    """Kills, each under another fault, when so many asks were sent."""

    def __init__(self, deployment: Deployment, disk: SmallDisk, clock: WallClock) -> None:
        self._deployment, self._disk, self._clock = deployment, disk, clock
        self._due = list(islice(cycle(("full", 400, -400)), KILLS))
        self.seen: list[asyncio.Task[None]] = []
        self.starts_on_a_full_disk = 0

    async def on_sent(self, sent: int) -> None:
        if len(self.seen) == KILLS or sent < 200 + len(self.seen) * (TASKS - 500) // KILLS:
            return
        if self.seen:
            await self.seen[-1]
        fault = self._due[len(self.seen)]
        if isinstance(fault, int):
            self._clock.set(fault)
        else:
            await asyncio.to_thread(self._disk.fill)
        await self._deployment.kill("up")
        self.seen.append(asyncio.create_task(self._start_again(fault)))

    async def _start_again(self, fault: str | int) -> None:
        up = self._deployment.processes["up"]
        if not isinstance(fault, int):
            await asyncio.to_thread(self._disk.fill)
            up.start()
            async with asyncio.timeout(PATIENCE_S):
                while "is full" not in await asyncio.to_thread(health, self._deployment):
                    assert up.running, up.log_tail()
                    await asyncio.sleep(0.1)
            self.starts_on_a_full_disk += 1
            self._disk.free()
        else:
            up.start()
        await up.serving(self._deployment.gateway, 2 * PATIENCE_S)


async def test_each_task_once_over_kills_full_disks_and_clock_steps(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "faketime")
    with small_disk(tmp_path / "disk", 256) as disk:
        deployment = embedded(disk.path, clock.environment)
        faults = Faults(deployment, disk, clock)
        async with deployment.running():
            report = await replay(OPENB, options(deployment), on_sent=faults.on_sent)
            assert len(faults.seen) == KILLS, "not every kill came to pass: the test has shown nothing"
            await asyncio.gather(*faults.seen)
        assert faults.starts_on_a_full_disk == len(range(0, KILLS, 3))
        await assert_each_task_once(deployment, report, RM_ID, TASKS)
