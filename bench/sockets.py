"""Measures schedulers from socket to socket: the driver in Go, the measured systems, and their figures.

A measurement runs each scenario on each system in turn, each time on new processes, and compares medians, because the
machine's other work affects all systems.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.harness import Deployment
from rich.console import Console

ROOT = Path(__file__).parents[1]
SOURCES = Path(__file__).parent / "peer"
BINARIES = ROOT / ".cache" / "peer"
# A run of the driver ends by itself after four minutes.
RUN_TIMEOUT_S = 300
# (Both cores are building.)
BUILD_TIMEOUT_S = 900

console = Console(stderr=True, width=200)

# Starts a new system in a directory of its own. Yields its address, and its processes by role.
Started = AbstractContextManager[tuple[str, dict[str, int]]]
System = Callable[[Path], Started]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario of the driver.

    :ivar arguments: the driver's arguments.
    """

    name: str
    arguments: str


SCENARIOS = (
    Scenario("front", "--scenario front"),
    Scenario("large", "--scenario front --nodes 5000 --asks 50000"),
    Scenario("mixed", "--scenario front --asks 20000 --shapes 50 --priorities 5 --queues 20"),
    Scenario("churn", "--scenario churn"),
    Scenario("clock-500", "--scenario clock --rate 500"),
    Scenario("clock-100", "--scenario clock --rate 100"),
)


def build(*programs: str) -> None:
    """Build the programs of ``peer``, unless they are newer than their sources. Needs Go."""
    sources = [*SOURCES.rglob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]
    newest_s = max(each.stat().st_mtime for each in sources)
    for name in programs:
        binary = BINARIES / name
        if binary.exists() and binary.stat().st_mtime > newest_s:
            continue
        if shutil.which("go") is None:
            raise SystemExit("Go is not here: driver and peer are Go programs")
        console.print(f"building {name} (once; a minute)")
        command = ["go", "build", "-o", str(binary), f"./{name}"]
        subprocess.run(command, cwd=SOURCES, check=True, timeout=BUILD_TIMEOUT_S)


@contextmanager
def peer(_: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Start a new peer. Yield its address, and its processes by role."""
    process = subprocess.Popen([BINARIES / "server"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the peer ended with status {process.wait()}")
        yield address, {"deciding": process.pid}
    finally:
        process.kill()
        process.wait()


@contextmanager
def muster(deployment: Deployment) -> Iterator[tuple[str, dict[str, int]]]:
    """Start a new Muster. Yield its gateway's address, and its processes by role."""
    asyncio.run(deployment.start())
    try:
        pids = {name: process.pid for name, process in deployment.processes.items()}
        if "up" in pids:
            (followers,) = Path(f"/proc/{pids['up']}/task/{pids['up']}/children").read_text().split()
            yield deployment.gateway, {"deciding": pids["up"], "followers": int(followers)}
        else:
            yield deployment.gateway, {"deciding": pids["scheduler"], "gateway": pids["gateway"]}
    finally:
        asyncio.run(deployment.stop())


def drive(address: str, scenario: Scenario, pids: dict[str, int]) -> dict[str, float]:
    """Run a scenario and return its figures. Raise CalledProcessError."""
    counted = ",".join(f"{name}={pid}" for name, pid in pids.items())
    command = [str(BINARIES / "driver"), "--address", address, "--pids", counted, *scenario.arguments.split()]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=RUN_TIMEOUT_S)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(
    scenarios: Sequence[Scenario], systems: Mapping[str, System], rounds: int, work: Path
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Run all rounds. Return, by scenario and system, the figures of each round."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        each.name: {system: [] for system in systems} for each in scenarios
    }
    for number in range(rounds):
        for scenario in scenarios:
            for name, system in systems.items():
                place = work / f"{name}-{scenario.name}-{number}"
                place.mkdir()
                with system(place) as (address, pids):
                    figures = drive(address, scenario, pids)
                found[scenario.name][name].append(figures)
                told = ", ".join(f"{figure} {shown(value)}" for figure, value in figures.items())
                console.print(f"round {number + 1}/{rounds}, {scenario.name}, {name}: {told}", highlight=False)
                shutil.rmtree(place)
    return found


def median(runs: list[dict[str, float]], figure: str) -> float | None:
    """Return the median of a figure; None: not measured."""
    values = [run[figure] for run in runs if figure in run]
    return statistics.median(values) if values else None


def spread(runs: list[dict[str, float]], figure: str) -> str:
    """Return the smallest and the largest value."""
    values = sorted(run[figure] for run in runs)
    return f"{shown(values[0])}-{shown(values[-1])}"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def measured(result: Mapping[str, Any]) -> str:
    """Return the time and the machine of a measurement."""
    machine = result["machine"]
    return (
        f"{result['measured_at'][:10]}, {machine['commit']}: {machine['cores']} cores ({machine['architecture']}), "
        f"Python {machine['python']}, Muster {machine.get('form', 'plain')}; load before: {machine['load_before']}."
    )
