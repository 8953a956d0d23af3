#!/usr/bin/env python3
"""Four node sort policies on the openb trace, with more demand than the cluster has GPUs.

python examples/openb/compare.py [--seeds 10] [--demand 1.3] [--write docs]     (or: make openb)

Tasks of the trace are drawn at random, with replacement, until they ask for 130 % of the cluster's GPUs (the
"inflation" of Weng et al., USENIX ATC 2023). They arrive one after the other at the scheduler's core, in this process;
what does not fit when it arrives stays pending, nothing ends, nothing is preempted and no node is kept free. Each
policy gets the same tasks; figures are means over the seeds. Prints a table; with --write also draws node-policies.svg
there and puts the table into node-policies.md.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import drawing
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import NewAllocation
from muster_core.nodes.policies.registry import SHIPPED
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_replay.trace import GPU, Trace, TraceTask, read_trace
from muster_si.constants import CPU, MEMORY

HERE = Path(__file__).parent
POLICIES = tuple(policy.name for policy in SHIPPED)
#: Of the cluster's GPUs, as arrived demand: where the table looks.
MARKS = (0.9, 1.0, 1.3)
STEPS = 130  # points of each curve
FEW_CORES, LARGE_GPUS = 4, 8
NOW_NS = 1_700_000_000_000_000_000
BEGIN = "<!-- figures: begin (make openb) -->"

# GPUs count most, as in queues.yaml: else fair and binpacking would not see them at all.
QUEUES = f"""
partitions:
  - name: default
    nodesortpolicy:
      type: {{policy}}
      resourceweights: {{{{{GPU}: 4.0, {CPU}: 1.0, {MEMORY}: 1.0}}}}
    preemption: {{{{enabled: false}}}}
    reservation: {{{{enabled: false}}}}
    queues:
      - {{{{name: root, submitacl: '*', queues: [{{{{name: openb}}}}]}}}}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one policy did with one seed's tasks.

    :ivar stranded_gpus: of the unallocated, those on nodes with fewer than :data:`FEW_CORES` free cores.
    :ivar refused: tasks of :data:`LARGE_GPUS` or more that found no node, of so many that arrived.
    :ivar curve: GPUs allocated (of the cluster's, 0 to 1) when the arrived demand was 1, 2, … steps.
    """

    arrived: int
    placed: int
    unallocated_gpus: float
    stranded_gpus: float
    refused: tuple[int, int]
    curve: tuple[float, ...]
    seconds: float

    def at(self, demand: float, most: float) -> float:
        """Allocated when so much had arrived."""
        return self.curve[round(demand / most * len(self.curve)) - 1]


def inflated(trace: Trace, demand: float, seed: int) -> Iterator[TraceTask]:
    """Tasks at random until they ask for ``demand`` times the cluster's GPUs."""
    chance = random.Random(seed)
    wanted = demand * trace.capacity()[GPU]
    asked = 0
    while asked < wanted:
        task = chance.choice(trace.tasks)
        asked += task.resources.get(GPU, 0)
        yield task


def cluster(trace: Trace, policy: str) -> SchedulerCore:
    """A core with the trace's nodes and one application."""
    config, problems = load_queue_config(QUEUES.format(policy=policy))
    assert config is not None, problems
    core = SchedulerCore(config)
    nodes = tuple(NodeItem(node.name, NodeAction.CREATE, capacity=node.resources) for node in trace.nodes)
    core.apply(UpdateNodes(nodes), NOW_NS)
    core.apply(UpdateApplications((AppItem("openb", "root.openb", "default", "openb", ("openb",)),)), NOW_NS)
    return core


def run(trace: Trace, policy: str, demand: float, seed: int) -> Run:
    """One policy, one seed."""
    core = cluster(trace, policy)
    gpus = trace.capacity()[GPU]
    arrived = placed = asked = held = large = refused = 0
    curve: list[float] = []
    begun = time.perf_counter()
    for number, task in enumerate(inflated(trace, demand, seed)):
        ask = AskItem(f"{task.name}-{number}", "openb", "default", task.resources)
        core.apply(UpdateAllocations([ask]), NOW_NS)
        facts = core.cycle(NOW_NS, 1).facts
        gpu = task.resources.get(GPU, 0)
        arrived += 1
        asked += gpu
        if any(isinstance(fact, NewAllocation) for fact in facts):
            placed += 1
            held += gpu
        elif gpu >= LARGE_GPUS * 1000:
            refused += 1
        large += gpu >= LARGE_GPUS * 1000
        curve += [held / gpus] * (int(asked / gpus / demand * STEPS) - len(curve))
    seconds = time.perf_counter() - begun
    return Run(arrived, placed, (gpus - held) / 1000, stranded(core), (refused, large), tuple(curve[:STEPS]), seconds)


def stranded(core: SchedulerCore) -> float:
    """Free GPUs that have next to no cores beside them."""
    (partition,) = core.partitions.values()
    cpu, gpu = partition.types.number(CPU), partition.types.number(GPU)
    free = [node.available[gpu] for node in partition.nodes.values() if node.available[cpu] < FEW_CORES * 1000]
    return sum(free) / 1000


# ---- table and plot --------------------------------------------------------------------------------------------------


def table(results: dict[str, list[Run]], demand: float) -> list[list[str]]:
    """Headings, then a line for each policy."""
    marks = [mark for mark in MARKS if mark <= demand]
    rows = [
        [
            "policy",
            "placed tasks",
            f"refused tasks of {LARGE_GPUS} GPUs",
            "unallocated GPUs",
            f"beside < {FEW_CORES} free cores",
            *(f"allocated at {mark:.0%}" for mark in marks),
        ]
    ]
    for policy, runs in results.items():
        free = [each.unallocated_gpus for each in runs]
        refused, large = (sum(column) for column in zip(*(each.refused for each in runs), strict=True))
        rows.append(
            [
                policy,
                f"{statistics.mean(each.placed for each in runs):,.0f}",
                f"{refused / max(large, 1):.0%}",
                f"{statistics.mean(free):,.0f} ± {statistics.pstdev(free):,.0f}",
                f"{statistics.mean(each.stranded_gpus for each in runs):,.0f}",
                *(f"{statistics.mean(each.at(mark, demand) for each in runs):.2%}" for mark in marks),
            ]
        )
    return rows


def markdown(rows: list[list[str]], runs: list[Run]) -> str:
    """The table for the document."""
    arrived = statistics.mean(each.arrived for each in runs)
    lines = [" | ".join(row) for row in rows]
    lines.insert(1, " | ".join(["---"] + ["---:"] * (len(rows[0]) - 1)))
    note = (
        f"Means over {len(runs)} seeds (± standard deviation); of {arrived:,.0f} tasks; percentages of demand, of GPUs."
    )
    return "\n".join([*(f"| {line} |" for line in lines), "", note, ""])


def write(directory: Path, results: dict[str, list[Run]], demand: float) -> None:
    """Puts the table into node-policies.md and the plot beside it."""
    figures = markdown(table(results, demand), next(iter(results.values())))
    drawing.put(directory / "node-policies.md", BEGIN, figures)
    curves = {
        policy: [statistics.mean(column) for column in zip(*(each.curve for each in runs), strict=True)]
        for policy, runs in results.items()
    }
    (directory / "node-policies.svg").write_text(plot(curves, demand), encoding="utf-8")


# The part of the plane that shows a difference; pixels.
X_FROM, Y_FROM, Y_TO = 0.80, 0.78, 1.00
HEIGHT = 440
HEADING = "GPUs allocated over arrived demand (openb trace, in % of the cluster's GPUs)"
STYLES = {"fair": ("#b3541e", "7 4"), "binpacking": ("#2a6f97", "2 3"), "dotproduct": ("#6a4c93", "10 3 2 3")}
MOST = ("#1b7837", "")


def plot(curves: dict[str, list[float]], demand: float) -> str:
    """GPUs allocated over arrived demand, as SVG."""
    title = "GPUs allocated over arrived demand, by node sort policy"
    drawn = drawing.Plot(title, HEADING, (X_FROM, demand), (Y_FROM, Y_TO), HEIGHT)
    for percent in range(round(100 * Y_FROM) + 2, 101, 5):
        drawn.mark_y(percent / 100, str(percent))
    for percent in range(round(100 * X_FROM), round(100 * demand) + 1, 10):
        drawn.mark_x(percent / 100, str(percent))
    drawn.axis("arrived demand, %")
    from_x, from_y, one_x, one_y = drawn.across(X_FROM), drawn.down(X_FROM), drawn.across(1), drawn.down(1)
    drawn.add(
        f'<path d="M{from_x:.1f} {from_y:.1f}L{one_x:.1f} {one_y:.1f}H{drawing.WIDTH - drawing.RIGHT}" '
        'fill="none" stroke="#999" stroke-width="1"/>'
    )
    for name, curve in curves.items():
        points = [(demand * step / len(curve), share) for step, share in enumerate(curve, start=1)]
        drawn.line(name, ((x, y) for x, y in points if x >= X_FROM and y >= Y_FROM), *STYLES.get(name, MOST))
    return drawn.text()


def show(rows: Sequence[Sequence[str]]) -> None:
    """The table as text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Four node sort policies on the openb trace.")
    parser.add_argument("--seeds", type=int, default=10, help="how many draws of tasks")
    parser.add_argument("--demand", type=float, default=1.3, help="demand for GPUs, in parts of the cluster's")
    parser.add_argument(
        "--write", type=Path, metavar="DIRECTORY", help="where node-policies.md is: table and plot go there"
    )
    options = parser.parse_args()
    trace = read_trace(HERE)
    results: dict[str, list[Run]] = {policy: [] for policy in POLICIES}
    for seed, policy in itertools.product(range(1, options.seeds + 1), POLICIES):
        each = run(trace, policy, options.demand, seed)
        results[policy].append(each)
        print(
            f"seed {seed}, {policy}: {each.placed:,} of {each.arrived:,} tasks placed, "
            f"{each.unallocated_gpus:,.1f} GPUs unallocated, {each.seconds:.1f} s",
            file=sys.stderr,
        )
    show(table(results, options.demand))
    if options.write is not None:
        write(options.write, results, options.demand)
    return 0


if __name__ == "__main__":
    sys.exit(main())
