"""Measures the memory of each object that a quota counts, in a scheduler's core: ``make bench-memory``.

Each kind is measured in a process of its own, by the resident memory before and after. A follower (the view) holds
the same objects once more.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

from builders import Cluster, configured
from muster_bus.log import Record
from muster_bus.topics import Topics
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.machine import SchedulerMachine

TREE = "{name: root, submitacl: '*', queues: [{name: a}, {name: users, parent: true}]}"
COUNTS = {
    "resource_managers": 3_000,
    "nodes": 20_000,
    "queues": 20_000,
    "applications": 20_000,
    "asks": 100_000,
    "asks of one kind": 100_000,
    "allocations": 100_000,
    "users": 20_000,
}


def tags() -> dict[str, str]:
    """Labels and annotations as the Kubernetes shim sends them. Each text is a separate object, as after decoding."""
    return {f"kubernetes.io/label/app-{number}": f"value-{number}" for number in range(6)}


def resident() -> int:
    """Return the resident memory in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _rms(count: int) -> object:
    topics = Topics(partitions=1)
    machine = SchedulerMachine(topics, lambda: "00000000-0000-0000-0000-000000000000")
    machine.finish_fold(1)
    for number in range(count):
        rm_id = f"rm-{number}"
        request = si.RegisterResourceManagerRequest(rmID=rm_id, version="1", buildInfo={"k": "v"})
        envelope = pb.RequestEnvelope(rm_id=rm_id, request_id="r", register=request.SerializeToString())
        machine.apply([Record(topics.requests, 0, number, 0, rm_id.encode(), envelope.SerializeToString())], number + 2)
    return machine


def _applications(count: int, *, queues: bool = False, users: bool = False) -> list[AppItem]:
    return [
        AppItem(
            f"application-{number}",
            f"root.users.queue-{number}" if queues else "root.a",
            "default",
            f"user-{number}" if users else "ann",
            tags=tags(),
        )
        for number in range(count)
    ]


def measure(kind: str) -> float:
    """Return the bytes of one object."""
    count = COUNTS[kind]
    if kind == "resource_managers":
        _rms(1)
        before = resident()
        kept = _rms(count)
        return (resident() - before) / (count if kept is not None else 1)
    cluster = Cluster(TREE, partition="placementrules: [{name: provided, create: true}],")
    cluster.app("app", "root.a")
    core, now_ns = cluster.core, cluster.now_ns
    if kind == "allocations":
        core.apply(
            UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 1 << 40, "memory": 1 << 60}),)), now_ns
        )
    before = resident()
    match kind:
        case "nodes":
            capacity = {"vcore": 64_000, "memory": 1 << 38, "pods": 110}
            for number in range(count):
                item = NodeItem(f"node-{number}.example", NodeAction.CREATE, tags(), capacity=dict(capacity))
                core.apply(UpdateNodes((item,)), now_ns)
        case "queues" | "users" | "applications":
            for item in _applications(count, queues=kind == "queues", users=kind == "users"):
                core.apply(UpdateApplications((item,)), now_ns)
        case _:
            alike = kind == "asks of one kind"
            for number in range(count):
                amounts = {"vcore": 1_000 + (0 if alike else number % 50_000), "memory": 1 << 30}
                core.apply(
                    UpdateAllocations([AskItem(f"pod-uid-{number:036}", "app", "default", amounts, tags=tags())]),
                    now_ns,
                )
            if kind == "allocations":
                while not core.exhausted:
                    core.cycle(now_ns, 10_000)
    return (resident() - before) / count


def main() -> None:
    if len(sys.argv) > 1:
        print(f"{measure(sys.argv[1]):.0f}")
        return
    print("| thing | bytes in the scheduler |\n|---|---:|")
    for kind in COUNTS:
        done = subprocess.run([sys.executable, __file__, kind], capture_output=True, text=True, check=True)
        print(f"| {kind} | {int(done.stdout.splitlines()[-1]):,} |")


if __name__ == "__main__":
    configured(TREE)
    main()
