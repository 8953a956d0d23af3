"""Measures Muster on this machine, embedded and on Kafka. README.md in this folder explains the scenarios.

.venv/bin/python -m bench.scenarios_bench [--backend embedded|kafka|both] [--runs 3] [--quick] [--only gangs]
    [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
from chaos.harness import Deployment, embedded, on_kafka  # noqa: E402
from muster_cli import versions  # noqa: E402
from muster_replay.replay import ReplayOptions, replay  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.driver import Driver, Shape  # noqa: E402
from bench.gang_driver import Gangs, run_gangs, run_gangs_on_a_clock  # noqa: E402
from bench.results import put  # noqa: E402
from bench.turns_driver import MODES, broken_promises, run_turns, scenario_of  # noqa: E402

GOAL_ASKS_PER_S = {"embedded": 3_000.0, "kafka": 2_000.0}
BACKENDS = tuple(GOAL_ASKS_PER_S)
CLOCK_ASKS_PER_S = 500.0
PACED_CHUNK, BURST_CHUNK = 5, 100
# The figures, in the order of the table.
SCENARIOS = (
    "throughput",
    "churn",
    "latency",
    "callbacks",
    "callbacks_refusing",
    "callbacks_latency",
    *map(scenario_of, MODES),
    "burst",
    "paced",
    "gangs",
    "gangs_latency",
)
# The share of all pairs of ask and node that the RM refuses, in %.
REFUSED_PERCENT = 30
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

console = Console(stderr=True)


async def throughput_and_churn(deployment: Deployment, shape: Shape) -> dict[str, dict[str, Any]]:
    """Send 10,000 asks up front, release all, and send as many again."""
    driver = Driver(deployment.gateway, "bench-throughput", shape)
    async with driver.client() as rm:
        nodes_s = await driver.set_up(rm)
        cpu_before = cpu_seconds(deployment)
        up_front = await driver.ask_up_front(rm, "a")
        cpu_s = {name: round(after - cpu_before[name], 2) for name, after in cpu_seconds(deployment).items()}
        releases_per_s = await driver.release_all(rm, "a")
        again = await driver.ask_up_front(rm, "b")
    return {
        "throughput": {
            "nodes_s": round(nodes_s, 3),
            "asks_per_message": shape.asks_per_message,
            **up_front,
            "server_cpu_s": round(sum(cpu_s.values()), 2),
            "server_cpu_s_each": cpu_s,
            "server_rss_mb": round(sum(resident_mb(deployment).values())),
        },
        "churn": {"releases_per_s": releases_per_s, "allocations_per_s": again["allocations_per_s"]},
    }


async def asked(deployment: Deployment, shape: Shape, refused_percent: int) -> dict[str, Any]:
    """Send 10,000 asks up front from an RM that answers predicates."""
    driver = Driver(deployment.gateway, f"bench-callbacks-{refused_percent}", shape, refused_percent)
    async with driver.client() as rm:
        await driver.set_up(rm)
        cpu_before = sum(cpu_seconds(deployment).values())
        up_front = await driver.ask_up_front(rm, "a")
        cpu_s = round(sum(cpu_seconds(deployment).values()) - cpu_before, 2)
    return {
        "refused_percent": refused_percent,
        **up_front,
        "questions_each": round(driver.questions / shape.asks, 2),
        "server_cpu_s": cpu_s,
    }


async def latency(
    deployment: Deployment, shape: Shape, duration_s: float, refused_percent: int | None = None
) -> dict[str, Any]:
    """Send 500 asks/s, one in a message."""
    rm_id = "bench-latency" if refused_percent is None else "bench-callbacks-latency"
    driver = Driver(deployment.gateway, rm_id, shape, refused_percent)
    async with driver.client() as rm:
        await driver.set_up(rm)
        await driver.ask_on_a_clock(rm, "warm", CLOCK_ASKS_PER_S, 1.0)
        return await driver.ask_on_a_clock(rm, "k", CLOCK_ASKS_PER_S, duration_s)


async def trace(deployment: Deployment, mode: str, goal_asks_per_s: float) -> dict[str, Any]:
    """Replay the openb trace: "paced" at the goal's rate, "burst" as fast as Muster takes it."""
    paced = mode == "paced"
    options = ReplayOptions(
        deployment.gateway,
        deployment.http,
        f"bench-{mode}",
        chunk=PACED_CHUNK if paced else BURST_CHUNK,
        asks_per_s=goal_asks_per_s if paced else 0.0,
    )
    report = (await replay(ROOT / "examples" / "openb", options)).as_dict()
    names = ("nodes", "tasks", "placed", "pending", "good", "complaints", "events_written", "nodes_s", "total_s")
    return {
        "asks_per_s": options.asks_per_s,
        "asks_per_message": options.chunk,
        "allocations_per_s": round(report["placement_rate_per_s"], 1),
        **{f"latency_p{p}_ms": round(report[f"latency_p{p}_ms"], 2) for p in (50, 95, 99)},
        **{name: report[name] for name in names},
    }


async def measure(backend: str, deployment: Deployment, quick: bool, only: str) -> dict[str, dict[str, Any]]:
    """Run every scenario (or those whose names begin with ``only``) once on one set of processes."""
    shape = Shape()
    found: dict[str, dict[str, Any]] = {}
    await deployment.start()
    try:
        if "throughput".startswith(only):
            found |= await throughput_and_churn(deployment, shape)
        if "latency".startswith(only):
            found["latency"] = await latency(deployment, shape, 5.0 if quick else 20.0)
        if "callbacks".startswith(only):
            found["callbacks"] = await asked(deployment, shape, 0)
            found["callbacks_refusing"] = await asked(deployment, shape, REFUSED_PERCENT)
            found["callbacks_latency"] = await latency(deployment, shape, 5.0 if quick else 20.0, 0)
        if "stateful".startswith(only):
            for mode in MODES:
                found[scenario_of(mode)] = await run_turns(deployment.gateway, mode)
        for mode in ("burst", "paced"):
            if mode.startswith(only):
                found[mode] = await trace(deployment, mode, GOAL_ASKS_PER_S[backend])
        if "gangs".startswith(only):
            found["gangs"] = await run_gangs(deployment.gateway, "bench-gangs", Gangs())
            few = Gangs(gangs=20 if quick else 100)
            found["gangs_latency"] = await run_gangs_on_a_clock(
                deployment.gateway, "bench-gangs-latency", few, CLOCK_ASKS_PER_S
            )
    except BaseException:
        console.print(deployment.logs(), markup=False, highlight=False)
        raise
    finally:
        await deployment.stop()
    return found


def medians(runs: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return each scenario's medians. Values that are no numbers come from the last run."""
    result: dict[str, dict[str, Any]] = {}
    for scenario, last in runs[-1].items():
        result[scenario] = {}
        for name, value in last.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            result[scenario][name] = statistics.median(run[scenario][name] for run in runs) if is_number else value
    return result


def cpu_seconds(deployment: Deployment) -> dict[str, float]:
    """CPU time of each process so far, its children's (informers) included."""
    found = {}
    for name, process in deployment.processes.items():
        found[name] = 0.0
        for pid in (process.pid, *_children(process.pid)):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in listed for child in each.read_text().split()]


def resident_mb(deployment: Deployment) -> dict[str, float]:
    """Resident memory of each process now."""
    found = {}
    for name, process in deployment.processes.items():
        status = Path(f"/proc/{process.pid}/status").read_text()
        found[name] = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
    return found


def machine() -> dict[str, Any]:
    """Return facts of the machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "commit": commit,
        "form": versions.form(),  # of Muster in this environment
        "load_before": round(os.getloadavg()[0], 2),
    }


def flat(backend: str, found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace's scenarios as `scripts/figures` reads them."""
    return [{"log": backend, "mode": mode, **found[mode]} for mode in ("burst", "paced") if mode in found]


def show(results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print the backends side by side."""
    table = Table(title="medians", title_justify="left")
    table.add_column("scenario")
    table.add_column("figure")
    for backend in results:
        table.add_column(backend, justify="right")
    hidden = {"asks_per_message", "asks", "nodes", "tasks", "server_cpu_s_each", "good", "complaints", "pending"}
    for scenario in SCENARIOS:
        names = [name for found in results.values() for name in found.get(scenario, {}) if name not in hidden]
        for name in dict.fromkeys(names):
            cells = [found[scenario].get(name, "") for found in results.values()]
            table.add_row(scenario, name, *(_shown(cell) for cell in cells))
        table.add_section()
    console.print(table)


def _shown(value: Any) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}" if value != "" else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=(*BACKENDS, "both"), default="both")
    parser.add_argument("--runs", type=int, default=3, help="so many times, on new processes")
    parser.add_argument("--quick", action="store_true", help="one run, five seconds of latency")
    parser.add_argument(
        "--only",
        choices=("throughput", "latency", "callbacks", "stateful", "burst", "paced", "gangs"),
        default="",
        help="not for docs/performance.md",
    )
    parser.add_argument("--json", "--out", type=Path, help="where the result goes; standard output otherwise")
    options = parser.parse_args()
    backends = BACKENDS if options.backend == "both" else (options.backend,)
    result: dict[str, Any] = {
        "muster": version("muster"),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "medians": {},
        "each": {},
        "runs": [],
    }
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        kafka = redis = ""
        if "kafka" in backends:
            directory = servers.session_directory()
            stack.callback(servers.stop_all, directory)
            kafka, redis = (servers.find(kind, directory).address for kind in ("kafka", "redis"))
        for backend in backends:
            runs = []
            for number in range(1 if options.quick else options.runs):
                console.print(f"{backend}, run {number + 1}")
                place = work / f"{backend}-{number}"
                place.mkdir()
                deployment = embedded(place) if backend == "embedded" else on_kafka(place, kafka, redis)
                runs.append(asyncio.run(measure(backend, deployment, options.quick, options.only)))
            result["each"][backend] = runs
            result["medians"][backend] = medians(runs)
            result["runs"] += flat(backend, result["medians"][backend])
    show(result["medians"])
    put(result, options.json)
    for scenario in (
        broken := [name for runs in result["each"].values() for run in runs for name in broken_promises(run)]
    ):
        console.print(f"{scenario}: two of a kind on one node, although proposals take turns")
    return 0 if all(run["good"] for run in result["runs"]) and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
