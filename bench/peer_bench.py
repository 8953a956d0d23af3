"""Measures Muster beside YuniKorn's own core, socket to socket, in one run.

`peer/server` is YuniKorn's core behind gRPC, in memory; `peer/driver` is the resource manager that measures both. In
each round, every scenario runs on the peer, on Muster embedded and on Muster on Kafka, each time on new processes.
The results are ratios of medians, because the machine's other work affects all systems.

.venv/bin/python -m bench.peer_bench [--rounds 5] [--only front] [--on peer,embedded,kafka] [--write] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
from chaos.harness import embedded, on_kafka  # noqa: E402

from bench.results import put  # noqa: E402
from bench.scenarios_bench import machine  # noqa: E402
from bench.sockets import (  # noqa: E402
    SCENARIOS,
    System,
    build,
    measure,
    measured,
    median,
    muster,
    peer,
    shown,
    spread,
)

PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- peer figures: written by make bench-peer; edit bench/peer_bench.py -->"
END = "<!-- end of peer figures -->"
SYSTEMS = ("peer", "embedded", "kafka")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    :ivar figure: the name in the driver's JSON object.
    :ivar goals: goals embedded and on Kafka: a ratio to the peer, or, with ``absolute``, a largest value.
    """

    scenario: str
    figure: str
    words: str
    goals: tuple[float | None, float | None]
    absolute: bool = False


ROWS = (
    Row("front", "allocations_per_s", "1,000 nodes, 10,000 asks up front, 10 queues: allocations/s", (1.5, 1.3)),
    Row("large", "allocations_per_s", "5,000 nodes, 50,000 asks up front: allocations/s", (2.5, 2.0)),
    Row("mixed", "allocations_per_s", "20,000 asks of 50 sizes, 5 priorities, 20 queues: allocations/s", (1.5, 1.3)),
    Row("churn", "releases_per_s", "10,000 releases while as many are asked for again: releases/s", (1.3, 1.2)),
    Row("churn", "allocations_per_s", "the same: allocations/s", (1.3, 1.2)),
    Row("clock-500", "latency_p50_ms", "500 asks/s, one by one: ask to allocation, p50, ms", (1.5, 12.0), True),
    Row("clock-500", "latency_p99_ms", "the same, p99, ms", (5.0, 30.0), True),
    Row("clock-500", "cpu_ms_deciding", "the same: CPU of the deciding process for an ask, ms", (0.5, None), True),
    Row("clock-500", "cpu_ms_followers", "the same: CPU of its followers for an ask, ms", (0.2, None), True),
    Row("clock-100", "latency_p50_ms", "100 asks/s, one by one: ask to allocation, p50, ms", (1.5, 10.0), True),
    Row("large", "nodes_s", "5,000 nodes until all are answered, s", (None, None), True),
)


def systems_of(names: list[str], stack: ExitStack) -> dict[str, System]:
    """Return the systems by name. Find or start Kafka and Redis if they are needed."""
    known: dict[str, System] = {"peer": peer, "embedded": lambda place: muster(embedded(place))}
    if "kafka" in names:
        directory = servers.session_directory()
        stack.callback(servers.stop_all, directory)
        kafka, redis = (servers.find(kind, directory).address for kind in ("kafka", "redis"))
        known["kafka"] = lambda place: muster(on_kafka(place, kafka, redis))
    return {name: known[name] for name in names}


def table(result: dict[str, Any]) -> str:
    """Return the figures as Markdown: a line for each measured row."""
    systems = result["systems"]
    heads = ["peer"] if "peer" in systems else []
    for system in systems:
        if system != "peer":
            heads += [system, "ratio" if "peer" in systems else "", "goal"]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row in ROWS:
        runs = result["runs"].get(row.scenario)
        if runs is None:
            continue
        base = median(runs.get("peer", []), row.figure)
        cells = [] if "peer" not in systems else [_cell(runs["peer"], row.figure)]
        for system in systems:
            if system == "peer":
                continue
            own = median(runs[system], row.figure)
            goal = row.goals[SYSTEMS.index(system) - 1]
            ratio = f"{own / base:.2f}" if own is not None and base else ""
            wanted = "" if goal is None else f"≤ {goal:g}" if row.absolute else f"≥ {goal:g} x"
            cells += [_cell(runs[system], row.figure), ratio, wanted]
        lines.append(f"| {row.words} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Medians of {result['rounds']} rounds by `make bench-peer`, in brackets the smallest and the largest value.",
        measured(result),
        "The driver, the broker and whatever is measured share the cores. Muster is durable, the peer's memory is not.",
    ]
    return "\n".join(lines)


def _cell(runs: list[dict[str, float]], figure: str) -> str:
    own = median(runs, figure)
    return "-" if own is None else f"{shown(own)} ({spread(runs, figure)})"


def between_marks(page: str, text: str) -> str:
    """Return the page with another table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios whose names begin like this")
    parser.add_argument("--on", default=",".join(SYSTEMS), help="which systems")
    parser.add_argument("--write", action="store_true", help=f"the table goes into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--json", type=Path, help="where the result goes; standard output otherwise")
    options = parser.parse_args()
    systems = [each for each in SYSTEMS if each in options.on.split(",")]
    scenarios = [each for each in SCENARIOS if each.name.startswith(options.only)]
    if not systems or not scenarios:
        parser.error(f"expected systems of {', '.join(SYSTEMS)} and scenarios of {[each.name for each in SCENARIOS]}")
    build("driver", *(["server"] if "peer" in systems else []))
    result: dict[str, Any] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "rounds": options.rounds,
        "systems": systems,
    }
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-peer-")))
        result["runs"] = measure(scenarios, systems_of(systems, stack), options.rounds, work)
    made = table(result)
    sys.stderr.write(f"{made}\n")
    if options.write:
        PAGE.write_text(between_marks(PAGE.read_text(), made))
    put(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
