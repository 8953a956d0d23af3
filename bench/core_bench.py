"""Measures the scheduling core alone, in one process, on the scenarios that YuniKorn was measured on.

.venv/bin/python -m bench.core_bench [--only SCENARIO,NODES,ASKS,APPLICATIONS] [--runs 3] [--no-memory]
.venv/bin/python -m bench.core_bench --only gangs [--runs 3]
.venv/bin/python -m bench.core_bench --forms [--only single,1000,50000,10] [--runs 3]

Standard output carries one JSON line for each run, standard error a table beside YuniKorn's figures. Each run is
a process of its own, with the service's settings of the garbage collector. It drives the core like the scheduler
service, without protobuf: all asks are submitted up front in requests of 1,000 (``apply``), then ``cycle`` is called
with the service's budget until nothing more fits. Every outcome is drained (facts, events, changed objects).

The figures:

* ``allocations_per_s``: allocations over the time from the first ask submitted to the last allocation handed out. The
  requests are decoded before the clock starts: decoding is the shell's work.
* ``first_decile_per_s``, ``last_decile_per_s``: the rate of the first and of the last tenth of the allocations, over
  the time of the cycles alone (submission is over by then), interpolated within a budget.
* ``allocations_per_cpu_s``: the same over the processor time, which other load of the machine changes less. ``--forms``
  runs the plain and the compiled core (``make compiled``) by turns, and prints both rates of both.
* ``live_bytes_per_allocation``: from a second run of the same scenario under tracemalloc, because tracing costs time.
  The figure is the growth of the Python allocator's memory, per allocation, from the registration of nodes, queues and
  applications to the end (asks placed, outcome drained, garbage collected). This run decodes requests one by one, so
  that keys, tags and quantities that the core keeps are counted. The allocator's own overhead is not counted; resident
  memory shows it.

The ``pending`` run submits 20,000 asks that cannot fit, waits until the core is idle, and then ticks it as the service
does (when a deadline is due, or the last budget was used up): CPU seconds over seconds.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import json
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from muster_cli import gc_tuning
from muster_core.model.commands import UpdateAllocations
from muster_core.scheduler import SchedulerCore
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import ingest
from rich.console import Console
from rich.table import Table

from bench import core_gangs
from bench.core_gangs import GangScenario
from bench.core_parts import (
    ASKS_PER_REQUEST,
    CREATED_S,
    HEADROOM,
    MIB,
    PODS_PER_NODE,
    START_NS,
    at_rest,
    budget,
    clock,
    drain,
    in_a_process,
    resource,
    started,
)

SHAPES = 50
PRIORITIES = 10
SEED = 20230710
GOAL_PER_S = 20_000
GOAL_BYTES = 2_048
MODULE = "bench.core_bench"
PENDING, GANGS = "pending", "gangs"
PENDING_ASKS, PENDING_NODES = 20_000, 1_000

# Allocations/s of Apache YuniKorn's core (be3bb487, July 2026; Go, two busy cores) by (scenario, applications, asks):
# on 1,000, 5,000 and 10,000 nodes. Runs that a time limit stopped have their rate until then.
SIZES = (1_000, 5_000, 10_000)
REAL_CORE: dict[tuple[str, int, int], tuple[int, int, int]] = {
    ("single", 10, 50_000): (1_440, 1_324, 912),
    ("single", 10, 100_000): (465, 403, 364),
    ("single", 200, 50_000): (3_803, 5_686, 4_218),
    ("single", 200, 100_000): (2_792, 3_376, 2_764),
    ("mixed", 10, 50_000): (1_344, 1_364, 357),
    ("mixed", 10, 100_000): (489, 395, 417),
    ("mixed", 200, 50_000): (3_937, 4_938, 185),
    ("mixed", 200, 100_000): (2_947, 3_478, 2_572),
    ("binpack", 100, 50_000): (1_031, 359, 179),
    ("binpack", 100, 100_000): (972, 338, 217),
}


@dataclass(frozen=True)
class Scenario:
    """One line of the table: kind, nodes, asks, applications."""

    scenario: str
    nodes: int
    asks: int
    applications: int

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """``binpack,5000,50000,100``."""
        name, *numbers = text.split(",")
        if name not in ("single", "mixed", "binpack") or len(numbers) != 3 or not all(map(str.isdecimal, numbers)):
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected SCENARIO,NODES,ASKS,APPLICATIONS or {PENDING!r} or "
                f"{'|'.join(core_gangs.KINDS)},NODES,GANGS,MEMBERS"
            )
        nodes, asks, applications = map(int, numbers)
        return cls(name, nodes, asks, applications)

    def __str__(self) -> str:
        return f"{self.scenario},{self.nodes},{self.asks},{self.applications}"


SCENARIOS = [Scenario(name, nodes, asks, applications) for name, applications, asks in REAL_CORE for nodes in SIZES]


@dataclass(frozen=True)
class Result:
    """One JSON line."""

    scenario: str
    nodes: int
    asks: int
    applications: int
    allocated: int
    allocations_per_s: float
    first_decile_per_s: float
    last_decile_per_s: float
    live_bytes_per_allocation: int | None


# ---- the scenarios ---------------------------------------------------------------------------------------------------


def leaves(name: str) -> list[str]:
    """The paths of the scenario's leaf queues."""
    if name == "binpack":
        return [f"root.t{parent}.l{leaf}" for parent in range(4) for leaf in range(5)]
    return [f"root.q{number}" for number in range(10)]


def queue_config(name: str) -> str:
    """The scenario's queues and node sort policy, as YAML."""
    if name != "binpack":
        return _partition("fair", ", ".join(f"{{name: q{number}}}" for number in range(10)))
    parents = []
    for parent in range(4):
        below = ", ".join(
            f"{{name: l{leaf}, properties: {{application.sort.policy: fair}}, "
            f"resources: {{guaranteed: {{memory: {1000 * (leaf + 1)}M, vcore: {10 * (leaf + 1)}}}}}}}"
            for leaf in range(5)
        )
        properties = f"{{application.sort.policy: fair, priority.offset: '{parent}'}}"
        parents.append(f"{{name: t{parent}, properties: {properties}, queues: [{below}]}}")
    return _partition("binpacking", ", ".join(parents))


def _partition(node_sort_policy: str, queues: str) -> str:
    root = f"{{name: root, submitacl: '*', queues: [{queues}]}}"
    return f"partitions: [{{name: default, nodesortpolicy: {{type: {node_sort_policy}}}, queues: [{root}]}}]"


def demands(scenario: Scenario) -> list[tuple[dict[str, int], int]]:
    """(quantities, priority) of each ask."""
    if scenario.scenario == "single":
        return [({"vcore": 1_000, "memory": 4 << 30}, 0)] * scenario.asks
    chance = random.Random(SEED)
    shapes = [{"vcore": 100 + 97 * i, "memory": (64 + 53 * ((7 * i) % SHAPES)) * MIB} for i in range(SHAPES)]
    prioritised = scenario.scenario == "binpack"
    return [(chance.choice(shapes), chance.randrange(PRIORITIES) if prioritised else 0) for _ in range(scenario.asks)]


def requests(scenario: Scenario) -> Iterator[bytes]:
    """The asks as AllocationRequests, round robin over the applications."""
    request = si.AllocationRequest()
    for number, (quantities, priority) in enumerate(demands(scenario)):
        request.allocations.append(
            si.Allocation(
                allocationKey=f"ask-{number:06}",
                applicationID=f"app-{number % scenario.applications:03}",
                partitionName="default",
                resourcePerAlloc=resource(quantities),
                priority=priority,
                allocationTags={"creationTime": str(CREATED_S)},
            )
        )
        if len(request.allocations) == ASKS_PER_REQUEST:
            yield request.SerializeToString()
            request.Clear()
    if request.allocations:
        yield request.SerializeToString()


def capacity(scenario: Scenario) -> dict[str, int]:
    """The capacity of each node: 1.25 times its share of the total demand, at least the largest ask."""
    asked = [quantities for quantities, _ in demands(scenario)]
    found = {"pods": PODS_PER_NODE}
    for name in asked[0]:
        share = int(HEADROOM * sum(quantities[name] for quantities in asked) / scenario.nodes)
        found[name] = max(share, *(quantities[name] for quantities in asked))
    return found


def cluster(scenario: Scenario) -> SchedulerCore:
    """A core with the scenario's queues, nodes and applications."""
    core = started(queue_config(scenario.scenario), scenario.nodes, capacity(scenario))
    paths = leaves(scenario.scenario)
    applications = [
        si.AddApplicationRequest(
            applicationID=f"app-{number:03}",
            queueName=paths[number % len(paths)],
            partitionName="default",
            ugi=si.UserGroupInformation(user="bench", groups=["bench"]),
        )
        for number in range(scenario.applications)
    ]
    request = si.ApplicationRequest(new=applications)
    drain(core.apply(ingest.applications(request.SerializeToString()), START_NS))
    (partition,) = core.partitions.values()
    assert len(partition.apps) == scenario.applications, "applications were refused"
    return core


# ---- one run ---------------------------------------------------------------------------------------------------------


def decide(core: SchedulerCore, now_ns: Callable[[], int], each: Callable[[int], None]) -> int:
    """Run cycles until nothing more fits; call ``each`` with the number of placed asks."""
    allocated, limit = 0, budget()
    while True:
        allocated += drain(core.cycle(now_ns(), limit))
        each(allocated)
        if core.exhausted:
            return allocated


def timed(scenario: Scenario, profile: Path | None) -> dict[str, float]:
    """Measure the rates of one run."""
    core = cluster(scenario)
    commands = [ingest.allocations(value) for value in requests(scenario)]
    gc.collect()
    gc.freeze()  # a service does not keep decoded requests
    commands.reverse()
    profiler = cProfile.Profile() if profile is not None else None
    placed: list[tuple[float, int]] = []
    if profiler is not None:
        profiler.enable()
    submitted, now_ns, cpu = time.perf_counter(), clock(), time.process_time()
    while commands:
        drain(core.apply(commands.pop(), now_ns()))
    begun = time.perf_counter()
    placed.append((begun, 0))
    allocated = decide(core, now_ns, lambda count: placed.append((time.perf_counter(), count)))
    cpu = time.process_time() - cpu
    if profiler is not None:
        profiler.disable()
        profiler.dump_stats(str(profile))
    assert allocated, "nothing was placed"
    last = next(moment for moment, count in placed if count == allocated)
    tenth = allocated / 10
    return {
        "allocated": allocated,
        "allocations_per_s": allocated / (last - submitted),
        "allocations_per_cpu_s": allocated / cpu,
        "first_decile_per_s": tenth / (_when(placed, tenth) - begun),
        "last_decile_per_s": tenth / (last - _when(placed, allocated - tenth)),
    }


def _when(placed: list[tuple[float, int]], count: float) -> float:
    """Return the time at which so many were placed."""
    for (before, low), (after, high) in itertools.pairwise(placed):
        if high >= count > low:
            return before + (after - before) * (count - low) / (high - low)
    raise AssertionError(f"{count} allocations were never made")


def traced(scenario: Scenario) -> int:
    """Measure the live bytes per allocation of one run."""
    core = cluster(scenario)
    gc.collect()
    tracemalloc.start()
    before, now_ns = tracemalloc.get_traced_memory()[0], clock()
    for value in requests(scenario):
        command: UpdateAllocations | None = ingest.allocations(value)
        assert command is not None
        drain(core.apply(command, now_ns()))
        command = None
    allocated = decide(core, now_ns, lambda _: None)
    del value, command
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    return round((after - before) / allocated)


def pending(seconds: float) -> dict[str, float]:
    """Measure the cost of an idle scheduler with asks that cannot fit."""
    base = Scenario("mixed", PENDING_NODES, PENDING_ASKS, 200)
    core = cluster(base)
    too_large = {name: 3 * value for name, value in capacity(base).items() if name != "pods"}
    request = si.AllocationRequest()
    for number, (quantities, _) in enumerate(demands(base)):
        request.allocations.append(
            si.Allocation(
                allocationKey=f"ask-{number:06}",
                applicationID=f"app-{number % base.applications:03}",
                partitionName="default",
                resourcePerAlloc=resource({name: too_large[name] + quantities[name] for name in too_large}),
            )
        )
    drain(core.apply(ingest.allocations(request.SerializeToString()), time.time_ns()))
    allocated = decide(core, time.time_ns, lambda _: None)
    (partition,) = core.partitions.values()
    assert sum(len(app.asks) for app in partition.apps.values()) == PENDING_ASKS, "asks were refused or placed"
    return {
        "asks": PENDING_ASKS,
        "nodes": base.nodes,
        "allocated": allocated,
        **at_rest(core, seconds),
    }


# ---- all runs --------------------------------------------------------------------------------------------------------


def measure(scenario: Scenario, options: argparse.Namespace) -> Result:
    """Measure one scenario: medians of the timed runs, and one run under tracemalloc."""
    profile = [] if options.profile is None else ["--profile", str(options.profile.resolve())]
    runs = [in_a_process(MODULE, "--part", "time", "--only", str(scenario), *profile) for _ in range(options.runs)]
    middle = statistics.median_low(run["allocations_per_s"] for run in runs)
    run = next(run for run in runs if run["allocations_per_s"] == middle)
    live = None
    if options.memory:
        live = int(in_a_process(MODULE, "--part", "memory", "--only", str(scenario))["live_bytes_per_allocation"])
    return Result(
        **asdict(scenario),
        allocated=int(run["allocated"]),
        allocations_per_s=round(run["allocations_per_s"], 1),
        first_decile_per_s=round(run["first_decile_per_s"], 1),
        last_decile_per_s=round(run["last_decile_per_s"], 1),
        live_bytes_per_allocation=live,
    )


def measure_forms(scenario: Scenario, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one scenario on the plain and on the compiled core by turns: medians."""
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "compiled": []}
    for _ in range(options.runs):
        for form, variable in zip(runs, "01", strict=True):
            runs[form].append(in_a_process(MODULE, "--part", "time", "--only", str(scenario), compiled=variable))
    found: dict[str, Any] = asdict(scenario)
    for figure in ("allocations_per_s", "allocations_per_cpu_s"):
        for form, measured in runs.items():
            found[f"{form}_{figure}"] = round(statistics.median(run[figure] for run in measured), 1)
    found["ratio"] = round(found["compiled_allocations_per_cpu_s"] / found["plain_allocations_per_cpu_s"], 2)
    return found


def measure_gangs(scenario: GangScenario, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one scenario of gangs: the median of each figure over the runs."""
    profile = [] if options.profile is None else ["--profile", str(options.profile.resolve())]
    arguments = ["--part", "gangs", "--only", str(scenario), "--idle-s", str(options.idle_s), *profile]
    runs = [in_a_process(MODULE, *arguments) for _ in range(options.runs)]
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0] if name not in asdict(scenario)}
    return {**asdict(scenario), **figures}


def show_gangs(results: list[dict[str, Any]]) -> None:
    """Print the figures of gangs on standard error, by name, because each kind has others."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    for result in results:
        words = [f"{name} {value:,}" for name, value in list(result.items())[4:]]
        head = f"{result['scenario']}, {result['nodes']:,} nodes, {result['gangs']:,} x {result['members']:,}"
        console.print(f"{head}: {', '.join(words)}", highlight=False, soft_wrap=True)


def show(results: list[Result], idle: dict[str, float] | None) -> None:
    """Print the table on standard error."""
    table = Table(title="the core alone, allocations per second")
    for heading in (
        "scenario",
        "nodes",
        "asks",
        "apps",
        "placed",
        "all",
        "first ⅒",
        "last ⅒",
        "bytes each",
        "YuniKorn",
        "factor",
    ):
        table.add_column(heading, justify="left" if heading == "scenario" else "right")
    for result in results:
        row = REAL_CORE.get((result.scenario, result.applications, result.asks))
        real = row[SIZES.index(result.nodes)] if row is not None and result.nodes in SIZES else None
        live = result.live_bytes_per_allocation
        table.add_row(
            result.scenario,
            f"{result.nodes:,}",
            f"{result.asks:,}",
            f"{result.applications:,}",
            f"{result.allocated:,}",
            _marked(f"{result.allocations_per_s:,.0f}", good=result.allocations_per_s >= GOAL_PER_S),
            f"{result.first_decile_per_s:,.0f}",
            f"{result.last_decile_per_s:,.0f}",
            "" if live is None else _marked(f"{live:,}", good=live <= GOAL_BYTES),
            "" if real is None else f"{real:,}",
            "" if real is None else f"{result.allocations_per_s / real:,.0f}",
        )
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    if results:
        console.print(table)
    if idle is not None:
        console.print(
            f"idle with {idle['asks']:,} asks that cannot fit: {idle['cpu_percent']} % CPU, "
            f"{idle['ticks']} ticks in {idle['idle_s']} s"
        )


def _marked(text: str, *, good: bool) -> str:
    return text if good else f"[red]{text}[/red]"


def one_of_all(text: str) -> str | Scenario | GangScenario:
    """The scenario that ``--only`` names."""
    if text in (PENDING, GANGS):
        return text
    return GangScenario.parse(text) if text.startswith("gang") else Scenario.parse(text)


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Measures the scheduling core alone.")
    parser.add_argument(
        "--only",
        type=one_of_all,
        help=f"one scenario: SCENARIO,NODES,ASKS,APPLICATIONS; or {PENDING!r}; or {GANGS!r}: all of those; or "
        "gangs,NODES,GANGS,MEMBERS",
    )
    parser.add_argument("--runs", type=int, default=1, help="timed runs of each; the median counts")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="without the run under tracemalloc")
    parser.add_argument("--forms", action="store_true", help="plain and compiled by turns; needs `make compiled`")
    parser.add_argument("--idle-s", type=float, default=10.0, help="how long the pending run idles")
    parser.add_argument("--profile", type=Path, help="writes cProfile's statistics of the (slower) timed run there")
    parser.add_argument("--part", choices=["time", "memory", "pending", "gangs"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    gc_tuning.collect_young()
    gc_tuning.freeze()
    match options.part:
        case "time":
            print(json.dumps(timed(options.only, options.profile)))
            return 0
        case "memory":
            print(json.dumps({"live_bytes_per_allocation": traced(options.only)}))
            return 0
        case "pending":
            print(json.dumps(pending(options.idle_s)))
            return 0
        case "gangs":
            print(json.dumps(core_gangs.measured(options.only, options.profile, options.idle_s)))
            return 0
    if options.forms:
        for scenario in SCENARIOS if options.only is None else [options.only]:
            print(json.dumps(measure_forms(scenario, options)), flush=True)
        return 0
    idle = None
    results: list[Result] = []
    for scenario in SCENARIOS if options.only is None else [options.only]:
        if isinstance(scenario, Scenario):
            results.append(measure(scenario, options))
            print(json.dumps(asdict(results[-1])), flush=True)
    gangs: list[dict[str, Any]] = []
    for gang_scenario in core_gangs.SCENARIOS if options.only in (None, GANGS) else [options.only]:
        if isinstance(gang_scenario, GangScenario):
            gangs.append(measure_gangs(gang_scenario, options))
            print(json.dumps(gangs[-1]), flush=True)
    if options.only in (None, PENDING):
        idle = in_a_process(MODULE, "--part", "pending", "--idle-s", str(options.idle_s))
        if options.only == PENDING:
            print(json.dumps({"scenario": PENDING, **idle}), flush=True)
    show(results, idle)
    show_gangs(gangs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
