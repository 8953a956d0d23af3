"""An RM whose predicates depend on running allocations, in each mode of proposals in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubelet import Kubelet
from muster_client import Callbacks, ask
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

from bench.driver import Driver, Shape

# The modes of the hello. In all but the first one, the RM never gets two open proposals of a kind for one node.
MODES = {
    "all": pb.OPEN_PROPOSALS_ALL,
    "node": pb.OPEN_PROPOSALS_NODE,
    "task-group": pb.OPEN_PROPOSALS_TASK_GROUP,
    "application": pb.OPEN_PROPOSALS_APPLICATION,
    "one": pb.OPEN_PROPOSALS_ONE,
}
SIZE = Shape(nodes=50, asks=400, queues=2, applications=10)
TASK_GROUPS = 2  # task groups of an application; each is a service, which a node may run once
VCORES = (250, 500, 1_000)
ASKS_PER_S, DURATION_S = 40.0, 4.0


def scenario_of(mode: str) -> str:
    """The scenario's name in the benchmark."""
    return f"stateful_{mode.replace('-', '_')}"


@dataclass
class TurnsDriver(Driver):
    """One RM's run."""

    mode: str = "all"
    kubelet: Kubelet = field(default_factory=Kubelet)

    def callbacks(self) -> Callbacks:
        return replace(super().callbacks(), predicates=self.kubelet, open_proposals=MODES[self.mode])

    def asks(self, prefix: str, count: int) -> list[si.Allocation]:
        """Return asks, round robin over the applications and their task groups."""
        made = []
        for number in range(count):
            app = number % self.shape.applications
            group = number // self.shape.applications % TASK_GROUPS
            quantities = {"vcore": VCORES[number % len(VCORES)], "memory": 1 << 30}
            key = f"{prefix}{app}g{group}-{number}"
            made.append(ask(key, f"app-{app}", quantities, task_group=f"g{group}", tags={"creationTime": "1"}))
        return made

    def _on_allocated(self, items: Sequence[si.Allocation]) -> None:
        self.kubelet.allocated(items)
        super()._on_allocated(items)

    def _on_released(self, items: Sequence[si.AllocationRelease]) -> None:
        self.kubelet.released(items)
        super()._on_released(items)


async def run_turns(gateway: str, mode: str, size: Shape = SIZE, duration_s: float = DURATION_S) -> dict[str, Any]:
    """Measure a burst, then asks one by one on a clock."""
    driver = TurnsDriver(gateway, f"bench-turns-{mode}", size, refused_percent=0, mode=mode)
    async with driver.client() as rm:
        await driver.set_up(rm)
        burst = await driver.ask_up_front(rm, "a")
        single = await driver.ask_on_a_clock(rm, "k", ASKS_PER_S, duration_s)
    return {
        "asks": size.asks,
        "nodes": size.nodes,
        "allocations_per_s": burst["allocations_per_s"],
        "asks_per_s": ASKS_PER_S,
        **{name: value for name, value in single.items() if name.startswith("latency")},
        "questions_each": round(driver.kubelet.questions / driver.allocated, 2),
        "violations": driver.kubelet.wrong,
    }


def broken_promises(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the scenarios with violations in a mode that promises none."""
    named = (scenario_of(mode) for mode in MODES if mode != "all")
    return [name for name in named if found.get(name, {}).get("violations")]
