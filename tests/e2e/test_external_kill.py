"""`muster up` with an informer, killed in the middle of changes, or stopped while it waits."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from e2e.external_rig import ExternalUp, HttpSource, get, host, vm, write
from waiting import eventually

KILLS = int(os.environ.get("MUSTER_EXTERNAL_KILLS", "2"))
HOSTS = [f"h{number}" for number in range(6)]
CORES = 4


class Inventory:
    """A file of hosts and of VMs with one core each, which come, go and move.

    :ivar vms: host by VM.
    """

    def __init__(self, file: Path, seed: int) -> None:
        self._file, self._dice, self._made = file, random.Random(seed), 0
        self.vms: dict[str, str] = {}
        self.change()

    def change(self) -> None:
        """At most three VMs stay or come to be on a host."""
        dice = self._dice
        for name in dice.sample(sorted(self.vms), len(self.vms) // 2):
            on = self.vms.pop(name)
            if dice.random() < 0.3:
                self._put(name, dice.choice([each for each in HOSTS if each != on]))
        for on in dice.choices(HOSTS, k=6):
            self._put(f"vm-{self._made}", on)
            self._made += 1
        documents = [*(host(name, CORES) for name in HOSTS), *(vm(name, on, 1) for name, on in self.vms.items())]
        write(self._file, json.dumps(documents))

    def _put(self, name: str, on: str) -> None:
        if list(self.vms.values()).count(on) < 3:
            self.vms[name] = on


async def shown(up: ExternalUp) -> dict[str, str]:
    """VM → host, as REST shows the nodes."""
    nodes = await get(up.http, "/ws/v1/partition/default/nodes", rm="rm-1")
    return {
        held["allocationKey"].removeprefix("vms/"): node["nodeID"]
        for node in nodes
        for held in node.get("foreignAllocations", [])
    }


async def test_killed_in_the_middle_of_changes_it_has_just_what_the_source_has(tmp_path: Path) -> None:
    inventory, dice = Inventory(tmp_path / "hosts.json", 7), random.Random(8)
    often = {"poll_s": 0.05, "settle_s": 0.0}
    up = ExternalUp(tmp_path, {"vms": {"kind": "file", "rm": "rm-1", "path": "hosts.json", **often}})
    try:
        await up.start()
        async with up.rm("rm-1") as rm:
            await rm.joins(own=1)
            for _ in range(KILLS):
                for _ in range(dice.randint(1, 5)):
                    inventory.change()
                    await asyncio.sleep(dice.uniform(0, 0.12))
                await asyncio.to_thread(up.process.kill)
                inventory.change()  # (while nobody looks)
                await up.start()

            async def agrees() -> bool:
                return await shown(up) == inventory.vms

            await eventually(agrees, "the nodes run just the VMs of the file")
            # What is left, and no more, is given to the RM's tasks.
            free = Counter({name: CORES - list(inventory.vms.values()).count(name) for name in HOSTS})
            assert await rm.fills(CORES * len(HOSTS)) == +free + Counter(own=1)
            for name in HOSTS:
                assert len(await rm.event(name, lambda message: message.startswith("Node added"))) == 1
        assert sorted(await up.objects("rm-1", "vms")) == sorted([*HOSTS, *inventory.vms])
        source = await up.source("rm-1", "vms")
        assert (source["state"], source["stale"], source["problems"]) == ("LIVE", 0, 0)
    finally:
        await asyncio.to_thread(up.process.kill)


@pytest.mark.parametrize("when", ["waiting", "serving"])
async def test_it_stops_on_sigterm_with_and_without_its_sources(tmp_path: Path, when: str) -> None:
    source = HttpSource(host("h1", 1))
    if when == "serving":
        source.start()
    up = ExternalUp(tmp_path, {"vms": {"kind": "http", "rm": "rm-1", "url": source.url, "poll_s": 0.1}})
    try:
        await (up.start() if when == "serving" else up.begin())
        if when == "waiting":

            async def is_told() -> bool:
                return "informer vms (http) has not synced" in await up.health()

            await eventually(is_told, "health names the informer")
            assert "Muster is ready" not in await up.log()
        os.kill(up.process.pid, signal.SIGTERM)
        assert await up.ended() == 0
        assert "Traceback" not in await up.log()
    finally:
        await asyncio.to_thread(up.process.kill)
        source.stop()
