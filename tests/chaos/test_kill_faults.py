"""`kill -9` under a full disk, after a step of the clock and in a rotation of certificates: each task counts once.

The first kill has all three faults at once. MUSTER_FAULT_KILLS=30 kills more often: the next kills have one fault each,
in an order of MUSTER_FAULT_SEED.
"""

from __future__ import annotations

import asyncio
import os
import random
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from chaos.harness import Deployment, assert_each_task_once, embedded
from chaos.rotation import Certificates
from chaos.test_kill import OPENB, RM_ID, TASKS, options
from e2e.full_disk import SmallDisk, small_disk
from e2e.wall_clock import WallClock
from muster_replay.replay import replay
from waiting import eventually

KILLS = int(os.environ.get("MUSTER_FAULT_KILLS", "1"))
SEED = int(os.environ.get("MUSTER_FAULT_SEED", "1"))
PATIENCE_S = 300.0  # for a start on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 300 * KILLS)]


@dataclass(frozen=True)
class Fault:
    """What happens around a kill.

    :ivar full: the disk is full when Muster starts again.
    :ivar days: the clock is set so many days off before the kill; None: it stays as it is.
    :ivar rotation: certificates are replaced before the kill, and the kill comes in the middle of the next rotation.
    """

    full: bool = False
    days: int | None = None
    rotation: bool = False


def faults(kills: int, seed: int) -> list[Fault]:
    found = [Fault(full=True, days=400, rotation=True)]
    kinds = [Fault(full=True), Fault(days=-400), Fault(rotation=True), Fault(days=400)]
    chance = random.Random(seed)
    while len(found) < kills:
        found += chance.sample(kinds, len(kinds))
    return found[:kills]


class Kills:
    """Kills, each with its faults, when so many asks were sent."""

    def __init__(self, deployment: Deployment, disk: SmallDisk, clock: WallClock, certificates: Certificates) -> None:
        self._deployment, self._disk, self._clock, self._certificates = deployment, disk, clock, certificates
        self._due = faults(KILLS, SEED)
        self._kills: list[asyncio.Task[None]] = []
        self.seen: Counter[str] = Counter()

    async def on_sent(self, sent: int) -> None:
        number = len(self._kills)
        if number == KILLS or sent < 200 + number * (TASKS - 500) // KILLS:
            return
        if self._kills:
            await self._kills[-1]
        fault = self._due[number]
        if fault.rotation:
            await self._certificates.rotate(self._deployment.gateway)
            self._certificates.begin()
        if fault.days is not None:
            self._clock.set(fault.days)
            self.seen["steps"] += 1
        if fault.full:
            await asyncio.to_thread(self._disk.fill)
        await self._deployment.kill("up")
        self._kills.append(asyncio.create_task(self._start_again(fault)))

    async def over(self) -> None:
        assert len(self._kills) == KILLS, "not every kill came to pass: the test has shown nothing"
        await asyncio.gather(*self._kills)
        expected = Counter[str]()
        for fault in self._due:
            expected.update(
                {"steps": fault.days is not None, "full starts": fault.full, "refused starts": fault.rotation}
            )
        assert self.seen == expected
        assert self._certificates.rotations == 2 * self.seen["refused starts"]

    async def _start_again(self, fault: Fault) -> None:
        up = self._deployment.processes["up"]
        if fault.rotation:
            up.start()
            await eventually(lambda: not up.running, "it refuses files that do not fit each other", PATIENCE_S)
            assert "server.key" in up.log_tail(), up.log_tail()
            self._certificates.finish()
            self.seen["refused starts"] += 1
        if fault.full:
            await asyncio.to_thread(self._disk.fill)
        up.start()
        if fault.full:
            async with asyncio.timeout(PATIENCE_S):
                while "is full" not in await asyncio.to_thread(_health, self._deployment):
                    assert up.running, up.log_tail()
                    await asyncio.sleep(0.1)
            self.seen["full starts"] += 1
            self._disk.free()
        await up.serving(self._deployment.gateway, 2 * PATIENCE_S, self._deployment.access)


def _health(deployment: Deployment) -> str:
    try:
        with urllib.request.urlopen(
            f"{deployment.http}/health", timeout=10, context=deployment.access.context()
        ) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


async def test_each_task_once_over_kills_full_disks_clock_steps_and_rotations(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "faketime")
    certificates = Certificates(tmp_path / "certificates")
    with small_disk(tmp_path / "disk", 256) as disk:
        deployment = embedded(disk.path, clock.environment | certificates.environment, certificates.access)
        kills = Kills(deployment, disk, clock, certificates)
        async with deployment.running():
            given = replace(options(deployment), settle_timeout_s=PATIENCE_S, rest_timeout_s=PATIENCE_S)
            report = await replay(OPENB, given, on_sent=kills.on_sent)
            await kills.over()
        await assert_each_task_once(deployment, report, RM_ID, TASKS)
    print(f"{KILLS} kills, seed {SEED}: {dict(kills.seen)}, {report.streams_lost} streams lost")
