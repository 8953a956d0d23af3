"""An operator and a reader beside the RMs: pauses, lists, asks why, dumps, and reads REST through a gateway's front."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster_client import AdminClient
from muster_client.errors import AdminFailed, AdminRefused
from starlette.types import ASGIApp

from virtual.http import BrokenOff, fetch
from virtual.incarnations import Incarnation

if TYPE_CHECKING:
    from virtual.world import World

EVERY_S = (4.0, 12.0)
PATHS = (
    "/ws/v1/partitions", "/ws/v1/partition/default/queues", "/ws/v1/partition/default/nodes",
    "/ws/v1/partition/default/usage/users", "/ws/v1/events/batch?count=200", "/ws/v1/explain/summary",
    "/ws/v1/explain/pending", "/ws/v1/health", "/ws/v1/resource-managers", "/health", "/readyz", "/livez",
    "/ws/v1/scheduler/healthcheck", "/ws/v1/clusters", "/ws/v1/audit", "/ws/v1/nowhere",
)  # fmt: skip


class Operator:
    """See the module's docstring. Its answers must be answers: anything but a known refusal is a defect."""

    def __init__(self, world: World, rm_ids: Sequence[str]) -> None:
        self._world, self._rm_ids = world, rm_ids
        self.life = Incarnation(world.loop, "operator")
        self._dice = random.Random(f"{world.seed}/operator")
        self._admin = self.life.run(lambda: AdminClient("virtual", channel=world.channel(0, 99)))
        self._paused: dict[str, None] = {}

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            await asyncio.sleep(self._dice.uniform(*EVERY_S))
            rm_id = self._dice.choice(self._rm_ids)
            what = self._dice.choice(("read", "read", "read", "pause", "list", "why", "dump", "follow"))
            try:
                async with asyncio.timeout(60.0):
                    await getattr(self, f"_{what}")(rm_id)
                self._world.counts[f"operator: {what}"] += 1
            except (AdminFailed, AdminRefused) as error:
                code = error.code.name if isinstance(error, AdminRefused) else "no answer"
                self._world.counts[f"operator: {what}: {code}"] += 1
                if code in ("UNKNOWN", "INTERNAL"):
                    self._world.failures.append(f"{self._world.now_s:.3f} operator: {what}: {error}")
            except BrokenOff:
                self._world.counts[f"operator: {what}: broken off"] += 1

    async def resume_all(self) -> None:
        """Ends all pauses."""
        for rm_id in list(self._paused):
            await self._resume(rm_id)

    async def _pause(self, rm_id: str) -> None:
        self._paused[rm_id] = None
        with contextlib.suppress(AdminFailed):
            await self._admin.pause(rm_id, "a look")
        await asyncio.sleep(self._dice.uniform(1.0, 10.0))
        await self._resume(rm_id)

    async def _resume(self, rm_id: str) -> None:
        while rm_id in self._paused:
            try:
                await self._admin.resume(rm_id)
                del self._paused[rm_id]
            except (AdminFailed, AdminRefused):
                await asyncio.sleep(1.0)

    async def _list(self, rm_id: str) -> None:
        await self._admin.list_resource_managers()

    async def _why(self, rm_id: str) -> None:
        await self._admin.explain_queue(rm_id, "root.batch")

    async def _dump(self, rm_id: str) -> None:
        async for _ in self._admin.dump_state(rm_id, timeout_s=30.0):
            pass

    async def _read(self, rm_id: str) -> None:
        path = self._dice.choice(PATHS)
        joint = "&" if "?" in path else "?"
        answer = await fetch(self._front(), f"{path}{joint}rm={rm_id}")
        self._world.counts[f"REST: {answer.status}"] += 1
        if answer.status == 500:
            self._world.failures.append(f"{self._world.now_s:.3f} REST: {path}: {answer.body[:200]!r}")

    async def _follow(self, rm_id: str) -> None:
        """Follows the events of an RM for a while, and leaves."""
        left = self._dice.randint(1, 30)

        def enough(piece: bytes) -> bool:
            nonlocal left
            left -= piece.count(b"\n")
            return left <= 0

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._dice.uniform(1.0, 20.0)):
                await fetch(self._front(), f"/ws/v1/events/stream?count=50&rm={rm_id}", pieces=enough)

    def _front(self) -> ASGIApp:
        return self._world.web.target(self._dice.choice(self._world.gateways))
