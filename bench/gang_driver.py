"""The load driver of gangs: an RM that announces gangs, asks for placeholders, and confirms each replacement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from muster_client import RmClient, application, ask, release
from muster_proto.si.v1 import si_pb2 as si

from bench.driver import CORES_MILLI, MEMORY_BYTES, Driver, Shape

TASK_GROUP = "workers"
PLACEHOLDERS, REAL = "p", "r"  # prefix of the keys


@dataclass(frozen=True, slots=True)
class Gangs:
    """A scenario's size."""

    nodes: int = 1_000
    gangs: int = 200
    members: int = 64
    queues: int = 10

    def shape(self) -> Shape:
        """The driver's shape: an application for each gang, its members in one message."""
        return Shape(self.nodes, self.gangs * self.members, self.queues, self.gangs, self.members)


@dataclass(slots=True)
class GangDriver(Driver):
    """One RM's run; each application is a gang.

    :ivar announces: False: ordinary applications, whose members come without placeholders.
    :ivar replaced: placeholders that Muster released for a real ask.
    :ivar wrong: other releases by Muster.
    """

    announces: bool = True
    replaced: int = 0
    wrong: list[str] = field(default_factory=list)
    _to_confirm: asyncio.Queue[list[si.AllocationRelease]] = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[RmClient]:
        """A client whose RM confirms released placeholders at once, with one message for each response."""
        async with self.client() as rm:
            task = asyncio.create_task(self._confirm(rm))
            try:
                yield rm
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def place_all(self, rm: RmClient, kind: str) -> dict[str, float]:
        """Place all placeholders or all real members as fast as possible. Return the seconds, and Driver's result."""
        found = await self.ask_up_front(rm, kind)
        return {"s": round(self.shape.asks / found["allocations_per_s"], 3), **found}

    def applications(self) -> list[si.AddApplicationRequest]:
        """See Driver; each application announces its placeholders' resources."""
        members = self.shape.asks_per_message
        whole = {"vcore": members * CORES_MILLI, "memory": members * MEMORY_BYTES}
        return [
            application(
                f"app-{number}",
                f"root.q{number % self.shape.queues}",
                user="bench",
                placeholder_ask=whole if self.announces else None,
            )
            for number in range(self.shape.applications)
        ]

    def asks(self, prefix: str, count: int) -> list[si.Allocation]:
        """See Driver; gang after gang."""
        quantities = {"vcore": CORES_MILLI, "memory": MEMORY_BYTES}
        return [
            ask(
                f"{prefix}-{number}",
                f"app-{number // self.shape.asks_per_message}",
                quantities,
                tags={"creationTime": "1"},
                task_group=TASK_GROUP,
                placeholder=prefix == PLACEHOLDERS,
            )
            for number in range(count)
        ]

    def check(self) -> None:
        """Check that every placeholder was replaced, and that Muster released nothing else."""
        assert not self.wrong, self.wrong[:3]
        assert not self.rejected, self.rejected[:3]
        expected = self.shape.asks if self.announces else 0
        assert self.replaced == expected, f"{self.replaced} of {expected} placeholders were replaced"

    def _on_released(self, items: Sequence[si.AllocationRelease]) -> None:
        told = [item for item in items if item.terminationType == si.PLACEHOLDER_REPLACED]
        self.wrong += [
            f"{item.allocationKey}: {item.message}" for item in items if item.terminationType != si.PLACEHOLDER_REPLACED
        ]
        self.replaced += len(told)
        if told:
            self._to_confirm.put_nowait(
                [
                    release(item.applicationID, item.allocationKey, termination_type=si.PLACEHOLDER_REPLACED)
                    for item in told
                ]
            )

    async def _confirm(self, rm: RmClient) -> None:
        while True:
            await rm.send_releases(await self._to_confirm.get())


async def run_gangs(gateway: str, rm_id: str, size: Gangs) -> dict[str, float]:
    """Measure all placeholders, then all real members, then the same members as ordinary applications of another RM."""
    ordinary = GangDriver(gateway, f"{rm_id}-ordinary", size.shape(), announces=False)
    async with ordinary.connected() as rm:
        await ordinary.set_up(rm)
        without = await ordinary.place_all(rm, REAL)
    ordinary.check()
    driver = GangDriver(gateway, rm_id, size.shape())
    async with driver.connected() as rm:
        await driver.set_up(rm)
        began = time.monotonic()
        placeholders = await driver.place_all(rm, PLACEHOLDERS)
        real = await driver.place_all(rm, REAL)
        all_s = driver.last_at - began
    driver.check()
    return {
        "nodes": size.nodes,
        "gangs": size.gangs,
        "members": size.members,
        "placeholders_s": placeholders["s"],
        "placeholders_per_s": placeholders["allocations_per_s"],
        "replaced_s": real["s"],
        "replacements_per_s": real["allocations_per_s"],
        "latency_p50_ms": real["latency_p50_ms"],
        "latency_p99_ms": real["latency_p99_ms"],
        "all_s": round(all_s, 3),
        "ordinary_s": without["s"],
        "ordinary_per_s": without["allocations_per_s"],
        "ordinary_latency_p50_ms": without["latency_p50_ms"],
        "ordinary_latency_p99_ms": without["latency_p99_ms"],
    }


async def run_gangs_on_a_clock(gateway: str, rm_id: str, size: Gangs, asks_per_s: float) -> dict[str, float]:
    """Measure formed gangs whose real asks come one by one, from each ask's due time to its allocation."""
    driver = GangDriver(gateway, rm_id, size.shape())
    async with driver.connected() as rm:
        await driver.set_up(rm)
        await driver.place_all(rm, PLACEHOLDERS)
        found = await driver.ask_on_a_clock(rm, REAL, asks_per_s, size.gangs * size.members / asks_per_s)
    driver.check()
    return {"gangs": size.gangs, "members": size.members, **found}
