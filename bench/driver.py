"""The load driver: an RM that asks up front, releases everything, or asks on a clock."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from muster_client import Callbacks, RmClient, application, ask, node, release
from muster_client.access import PLAIN, Access
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.accounts import percentile

T = TypeVar("T")

CORES_MILLI, MEMORY_BYTES = 1_000, 4 << 30  # demand of each ask
ROOM = 1.25  # the nodes' capacity, as a multiple of the whole demand
STEP_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A scenario's size."""

    nodes: int = 1_000
    asks: int = 10_000
    queues: int = 10
    applications: int = 100
    asks_per_message: int = 100


def queue_config(queues: int) -> str:
    """root.q0 … without quotas; nodes in fair order."""
    leaves = "".join(f"          - name: q{number}\n" for number in range(queues))
    return (
        "partitions:\n  - name: default\n    nodesortpolicy:\n      type: fair\n    queues:\n"
        f"      - name: root\n        submitacl: '*'\n        queues:\n{leaves}"
    )


@dataclass(slots=True)
class Driver:
    """One RM's run. All times are monotonic seconds of this process.

    :param refused_percent: the RM answers predicates, and refuses this share of all pairs of ask and node, always the
        same ones; None: it does not want predicates.
    :param access: certificate and token.
    """

    gateway: str
    rm_id: str
    shape: Shape
    refused_percent: int | None = None
    access: Access = PLAIN
    questions: int = 0
    due_at: dict[str, float] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    allocated: int = 0
    released: int = 0
    rejected: list[str] = field(default_factory=list)
    last_at: float = 0.0
    _wanted: int = 0
    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def client(self) -> RmClient:
        """An RmClient with this driver's callbacks."""
        config = queue_config(self.shape.queues)
        return RmClient(self.gateway, self.rm_id, config=config, callbacks=self.callbacks(), access=self.access)

    def callbacks(self) -> Callbacks:
        """The driver's callbacks, with predicates if it refuses pairs."""
        return Callbacks(
            on_allocated=self._on_allocated,
            on_released=self._on_released,
            on_rejected_allocation=lambda items: self.rejected.extend(item.reason for item in items),
            on_application=lambda _, rejected, __: self.rejected.extend(item.reason for item in rejected),
            on_node=lambda _, rejected: self.rejected.extend(item.reason for item in rejected),
            on_stream=self._on_stream,
            predicates=None if self.refused_percent is None else self._fits,
        )

    def applications(self) -> list[si.AddApplicationRequest]:
        """Round robin over the queues."""
        return [
            application(f"app-{number}", f"root.q{number % self.shape.queues}", user="bench")
            for number in range(self.shape.applications)
        ]

    def asks(self, prefix: str, count: int) -> list[si.Allocation]:
        """Return so many asks, round robin over the applications."""
        quantities = {"vcore": CORES_MILLI, "memory": MEMORY_BYTES}
        return [
            ask(f"{prefix}-{number}", f"app-{number % self.shape.applications}", quantities, tags={"creationTime": "1"})
            for number in range(count)
        ]

    async def set_up(self, rm: RmClient) -> float:
        """Register, add nodes and applications; return the seconds from the first node to the last acceptance."""
        shape = self.shape
        await rm.register()
        if self.refused_percent is not None:
            await asyncio.wait_for(self._asked.wait(), STEP_TIMEOUT_S)
        share = max(1, -(-int(shape.asks * ROOM) // shape.nodes))
        capacity = {"vcore": share * CORES_MILLI, "memory": share * MEMORY_BYTES, "pods": 1_048_576}
        nodes = [node(f"node-{number}", capacity) for number in range(shape.nodes)]
        began = time.monotonic()
        for part in chunks(nodes, 100):
            await rm.send_nodes(part)
        await asyncio.wait_for(rm.nodes_answered(), STEP_TIMEOUT_S)
        nodes_s = time.monotonic() - began
        await rm.send_applications(self.applications())
        await asyncio.wait_for(rm.applications_answered(), STEP_TIMEOUT_S)
        assert not self.rejected, self.rejected[:3]
        return nodes_s

    async def ask_up_front(self, rm: RmClient, prefix: str) -> dict[str, float]:
        """Send all asks as fast as Muster takes them."""
        asks = self.asks(prefix, self.shape.asks)
        self._begin(self.allocated + len(asks))
        began = time.monotonic()
        for part in chunks(asks, self.shape.asks_per_message):
            now = time.monotonic()
            self.due_at.update((item.allocationKey, now) for item in part)
            await rm.send_asks(part)
        await self._until_reached("allocations")
        return {"allocations_per_s": round(len(asks) / (self.last_at - began), 1), **self._percentiles()}

    async def ask_on_a_clock(self, rm: RmClient, prefix: str, asks_per_s: float, duration_s: float) -> dict[str, float]:
        """Send one ask in a message, each at its time, without waiting for earlier ones."""
        asks = self.asks(prefix, int(asks_per_s * duration_s))
        self._begin(self.allocated + len(asks))
        began = time.monotonic() + 0.05
        for number, item in enumerate(asks):
            due = began + number / asks_per_s
            wait_s = due - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.due_at[item.allocationKey] = due
            await rm.send_asks([item])
        await self._until_reached("allocations")
        return {"asks_per_s": asks_per_s, "allocations_per_s": round(len(asks) / (self.last_at - began), 1)} | (
            self._percentiles()
        )

    async def release_all(self, rm: RmClient, prefix: str) -> float:
        """Release the allocations of ask_up_front; return releases/s."""
        asks = self.asks(prefix, self.shape.asks)
        releases = [release(item.applicationID, item.allocationKey) for item in asks]
        self._begin(self.released + len(releases))
        began = time.monotonic()
        for part in chunks(releases, self.shape.asks_per_message):
            await rm.send_releases(part)
        await self._until_reached("releases")
        return round(len(releases) / (self.last_at - began), 1)

    def _begin(self, wanted: int) -> None:
        self._wanted = wanted
        self._reached.clear()
        self.latencies_s.clear()

    async def _until_reached(self, what: str) -> None:
        try:
            await asyncio.wait_for(self._reached.wait(), STEP_TIMEOUT_S)
        except TimeoutError:
            raise TimeoutError(
                f"{what}: {self.allocated} allocated, {self.released} released, {len(self.rejected)} rejected "
                f"({self.rejected[:1]}), {self._wanted} wanted within {STEP_TIMEOUT_S:.0f} s"
            ) from None

    def _percentiles(self) -> dict[str, float]:
        values = self.latencies_s
        found = {f"latency_p{percent}_ms": percentile(values, percent) * 1_000 for percent in (50, 95, 99)}
        found["latency_max_ms"] = max(values) * 1_000
        return {name: round(value, 2) for name, value in found.items()}

    def _on_stream(self, stream: str, opened: bool) -> None:
        if stream == "callback" and opened:
            self._asked.set()

    def _fits(self, question: pb.PredicatesQuestion) -> bool:
        self.questions += 1
        pair = f"{question.args.allocationKey} {question.args.nodeID}"
        return zlib.crc32(pair.encode()) % 100 >= (self.refused_percent or 0)

    def _on_allocated(self, items: Sequence[si.Allocation]) -> None:
        self.last_at = now = time.monotonic()
        for item in items:
            self.latencies_s.append(now - self.due_at[item.allocationKey])
        self.allocated += len(items)
        if self.allocated >= self._wanted:
            self._reached.set()

    def _on_released(self, items: Sequence[si.AllocationRelease]) -> None:
        self.last_at = time.monotonic()
        self.released += len(items)
        if self.released >= self._wanted:
            self._reached.set()


def chunks(items: Sequence[T], size: int) -> Iterator[Any]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
