"""An operator and a reader beside the RMs: pauses, lists, asks why, dumps, and reads REST through a gateway's front."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muster_client import AdminClient
from muster_client.errors import AdminFailed, AdminRefused
from starlette.types import ASGIApp

from virtual.http import BrokenOff, fetch
from virtual.incarnations import Incarnation

if TYPE_CHECKING:
    from virtual.rms import VirtualRm
    from virtual.world import World

EVERY_S = (4.0, 12.0)
_HEARS_S = 40  # no fault lasts longer
_LAST = 1500  # events, among which is that of the newest allocation
_WHAT = ("read", "read", "read", "pause", "list", "why", "dump", "follow", "own", "own", "own", "own")
PATHS = (
    "/ws/v1/partitions", "/ws/v1/partition/default/queues", "/ws/v1/partition/default/nodes",
    "/ws/v1/partition/default/usage/users", "/ws/v1/events/batch?count=200", "/ws/v1/explain/summary",
    "/ws/v1/explain/pending", "/ws/v1/health", "/ws/v1/resource-managers", "/health", "/readyz", "/livez",
    "/ws/v1/scheduler/healthcheck", "/ws/v1/clusters", "/ws/v1/audit", "/ws/v1/nowhere",
)  # fmt: skip


class Operator:
    """See the module's docstring. Its answers must be answers: anything but a known refusal is a defect."""

    def __init__(self, world: World, rms: Sequence[VirtualRm]) -> None:
        self._world, self._rms = world, {rm.rm_id: rm for rm in rms}
        self.life = Incarnation(world.loop, "operator")
        self._dice = random.Random(f"{world.seed}/operator")
        self._admin = self.life.run(lambda: AdminClient("virtual", channel=world.channel(0, 99)))
        self._paused: dict[str, None] = {}

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            await asyncio.sleep(self._dice.uniform(*EVERY_S))
            rm_id = self._dice.choice(list(self._rms))
            what = self._dice.choice(_WHAT)
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
            paused = await self._admin.pause(rm_id, "a look")
            if paused.changed:
                await self._shows_held(rm_id, held=True)
        await asyncio.sleep(self._dice.uniform(1.0, 10.0))
        await self._resume(rm_id)

    async def _resume(self, rm_id: str) -> None:
        while rm_id in self._paused:
            try:
                resumed = await self._admin.resume(rm_id)
                del self._paused[rm_id]
                if resumed.changed:
                    await self._shows_held(rm_id, held=False)
            except (AdminFailed, AdminRefused):
                await asyncio.sleep(1.0)

    # ---- reads that follow what their caller knows -------------------------------------------------------------------

    async def _shows_held(self, rm_id: str, *, held: bool) -> None:
        """Whoever is told of a change and reads with its position sees it."""
        rows = await self._after(f"/ws/v1/resource-managers?rm={rm_id}", self._admin.position)
        if rows is not None and [row["held"] for row in rows if row["rmID"] == rm_id] != [held]:
            self._fail(f"read with the position of an answer: {rm_id} is not shown as held={held}: {rows}")

    async def _own(self, rm_id: str) -> None:
        """What an RM has heard is shown to it: its allocations, none of them pending, and the event of the newest."""
        rm = self._rms[rm_id]
        position, answered = rm.client.position, set(rm.running)
        newest = next((each.key for each in reversed(rm.heard) if each.what == "new"), None)
        if not position or newest is None:
            return
        shown = await self._after(f"/ws/v1/explain/pending?rm={rm_id}", position)
        if shown is not None:
            again = answered & {each["allocationKey"] for each in shown["pending"]} & set(rm.running)
            if again:
                self._fail(f"read with the position of {rm_id}: shown as pending are {sorted(again)}, which it has")
        await self._shows_running(rm)
        of_it = f"/ws/v1/events/batch?rm={rm_id}"
        last = await self._after(f"{of_it}&count=1", position)
        if last is None:
            return
        batch = await self._after(f"{of_it}&count={_LAST}&start={max(0, last['HighestID'] - _LAST + 1)}", position)
        if batch is not None:
            about = {each.get("referenceID") for each in batch.get("EventRecords") or ()}
            if newest not in about:
                self._fail(f"read with the position of {rm_id}: there is no event of {newest}, of which it heard")

    async def _shows_running(self, rm: VirtualRm) -> None:
        if rm.is_adopting:
            return
        # (All of one moment: a position of before another read is older than what the RM heard since.)
        position, registrations, has = rm.client.position, rm.registrations, list(rm.still_has(rm.running))
        rows = await self._after(f"/ws/v1/partition/default/nodes?rm={rm.rm_id}", position)
        if rows is None or rm.registrations != registrations or rm.is_adopting:
            return
        shown = {each["allocationKey"] for row in rows for each in row.get("allocations") or ()}
        missing = [key for key in has if key not in shown]
        if missing:
            self.life.task(self._has_ended(rm, missing))

    async def _has_ended(self, rm: VirtualRm, missing: list[str]) -> None:
        """What is not shown has ended, although its RM may hear of that later."""
        registrations = rm.registrations
        for _ in range(_HEARS_S):
            if not rm.still_has(missing) or rm.registrations != registrations:
                return
            await asyncio.sleep(1.0)
        if not rm.is_adopting:
            self._fail(
                f"read with the position of {rm.rm_id}: not shown is what it has: {sorted(rm.still_has(missing))}"
            )

    async def _after(self, path: str, position: str) -> Any:
        """Reads with a position. None: the answer was that it takes too long, or nobody serves."""
        headers = {"muster-after": position, "muster-wait": "20"}
        try:
            answer = await fetch(self._front(), path, headers=headers)
        except BrokenOff:
            return None
        self._world.counts[f"read after a position: {answer.status}"] += 1
        if answer.status == 200:
            return json.loads(answer.body)
        if answer.status != 503:
            self._fail(f"read with a position: {path}: {answer.status} {answer.body[:300]!r}")
        return None

    def _fail(self, what: str) -> None:
        self._world.failures.append(f"{self._world.now_s:.3f} {what}")

    # ---- other reads -------------------------------------------------------------------------------------------------

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
