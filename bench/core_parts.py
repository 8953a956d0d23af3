"""Shared by the core's benchmarks: a service's part around a core, without logs and protobuf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from muster_core.model.outcome import NewAllocation, Outcome
from muster_core.scheduler import SchedulerCore
from muster_proto.si.v1 import si_pb2 as si
from muster_queue_config.queue_yaml import load_queue_config
from muster_scheduler import ingest
from muster_scheduler.settings import SchedulerSettings

ROOT = Path(__file__).parents[1]
ASKS_PER_REQUEST = 1_000
PODS_PER_NODE = 1_048_576
MIB = 1 << 20
CREATED_S = 1_750_000_000
START_NS = CREATED_S * 1_000_000_000
HEADROOM = 1.25
EMPTY_TICK_WAIT_S = 0.005  # WorkerSettings.empty_tick_wait_s

T = TypeVar("T")


def resource(quantities: dict[str, int]) -> si.Resource:
    """Quantities as an si.Resource."""
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def drain(out: Outcome) -> int:
    """Read a whole outcome as the service does; return the number of its allocations."""
    made = sum(1 for fact in out.facts if isinstance(fact, NewAllocation))
    for _ in out.events:
        pass
    for _ in out.objects():
        pass
    return made


def started(config: str, nodes: int, capacity: dict[str, int]) -> SchedulerCore:
    """Return a core with these queues (YAML) and so many nodes of this capacity."""
    parsed, problems = load_queue_config(config)
    assert parsed is not None, problems
    core = SchedulerCore(parsed)
    drain(core.start(START_NS))
    each = resource(capacity)
    request = si.NodeRequest(
        nodes=[
            si.NodeInfo(nodeID=f"node-{number:05}", action=si.NodeInfo.CREATE, schedulableResource=each)
            for number in range(nodes)
        ]
    )
    drain(core.apply(ingest.nodes(request.SerializeToString()), START_NS))
    return core


def budget() -> int:
    """The service's limit of allocations in one cycle."""
    return SchedulerSettings().max_allocations_batch


def clock() -> Callable[[], int]:
    """Return a clock in nanoseconds that starts when the asks are created and runs in real time."""
    begun = time.perf_counter_ns()
    return lambda: START_NS + time.perf_counter_ns() - begun


def at_rest(core: SchedulerCore, seconds: float) -> dict[str, float]:
    """Tick an idle core as the service does. Return CPU seconds over seconds, and the number of ticks."""
    cpu, begun, ticks = time.process_time(), time.monotonic(), 0
    while (left := begun + seconds - time.monotonic()) > 0:
        deadline_ns = core.next_deadline_ns() if core.exhausted else 0
        wait = left if deadline_ns is None else min(left, (deadline_ns - time.time_ns()) / 1e9)
        if wait > 0:
            time.sleep(wait)
            continue
        ticks += 1
        if not drain(core.cycle(time.time_ns(), budget())):
            time.sleep(EMPTY_TICK_WAIT_S)
    cpu = time.process_time() - cpu
    return {"idle_s": seconds, "ticks": ticks, "cpu_percent": round(100 * cpu / seconds, 3)}


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split the items into lists of this size."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def in_a_process(module: str, *arguments: str, compiled: str | None = None) -> dict[str, float]:
    """Run one part of a benchmark in a process of its own, which prints one JSON object.

    :param compiled: the value of MUSTER_COMPILED there; None: that of this process.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=None if compiled is None else {**os.environ, "MUSTER_COMPILED": compiled},
        stdout=subprocess.PIPE,
        check=True,
        timeout=3600,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
