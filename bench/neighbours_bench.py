"""Measures the latency of one RM's asks beside neighbours that ask for much, or attack. One JSON object.

.venv/bin/python -m bench.neighbours_bench [--only asks,configs] [--seconds 8] [--rounds 3] [--json FILE] [--list]

A quiet RM sends one ask at a time, twenty in a second. The figures are the time to the allocation. Each row
(``bench/neighbours``) has a `muster up` of its own, and four phases:

quiet      nothing beside
beside     the row's neighbour, in a process of its own
after      the neighbour was killed; what it left is there
control    another `muster up`; beside it, outside of Muster, processes use as much processor time as the neighbour did,
           and as much as Muster's processes used more than in ``quiet``

p50 … max are percentiles of the quiet RM's asks, in ms. ``loop_p…`` is the processor time that Muster's event loop used
meanwhile: other load of the machine does not change it, and on a quiet machine the latency is little more. ``burned``
is what each process of the control uses (cores). ``memory`` is of Muster's main process and its followers, in MiB, at
the end of each phase. ``callbacks`` are the steps of both processes' loops that used the processor for 1 ms and more
in each phase: the longest, how many, and what they were (without ``--plain``; to note them costs a microsecond for each
callback). With rounds, all figures are medians; the callbacks are those of the worst round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.harness import Deployment, embedded  # noqa: E402
from muster_client import RmClient  # noqa: E402

from bench.driver import Shape  # noqa: E402
from bench.neighbours.burning import burn, spawn  # noqa: E402
from bench.neighbours.processes import followers_of, long_callbacks, memory_mib, processor_s, tree  # noqa: E402
from bench.neighbours.quiet import Quiet  # noqa: E402
from bench.neighbours.rows import QUIET_RM, Row, Target, all_rows  # noqa: E402

INSTRUMENT = Path(__file__).parent / "neighbours" / "instrument"
THIS = [sys.executable, "-m", "bench.neighbours_bench"]
WARM_S = 1.0
BEGIN_TIMEOUT_S = 120.0
Figures = dict[str, Any]


class Measured:
    """A `muster up` with a quiet RM, and what its processes used in the phases so far."""

    def __init__(self, deployment: Deployment, driver: Quiet, rm: RmClient, notes: Path | None) -> None:
        self.deployment, self._driver, self._rm, self._notes = deployment, driver, rm, notes
        self._pid = deployment.processes["up"].pid
        self.figures: Figures = {"memory": {}, "callbacks": {}}
        self.cores: dict[str, dict[str, float]] = {}

    async def phase(self, name: str, seconds: float, other: int = 0) -> None:
        """Measure a phase. ``other``: the pid of the neighbour's process."""
        used, began = self._used(other), time.monotonic()
        self.figures[name] = await self._driver.ask_beside(self._rm, name, seconds)
        until = time.monotonic()
        now = self._used(other)
        self.cores[name] = {who: (now[who] - used.get(who, 0.0)) / (until - began) for who in now}
        followers = followers_of(self._pid)
        self.figures["memory"][name] = {"main": memory_mib(self._pid), "followers": memory_mib(followers)}
        if self._notes is not None:
            pids = {"main": self._pid, "followers": followers}
            noted = {who: long_callbacks(self._notes, pid, began, until) for who, pid in pids.items()}
            self.figures["callbacks"][name] = noted

    def burned(self) -> list[float]:
        """Return what the neighbour used, and what Muster's processes used beside it and not without it (cores)."""
        quiet, beside = self.cores["quiet"], self.cores["beside"]
        return [round(max(0.0, used - quiet.get(who, 0.0)), 3) for who, used in beside.items()]

    def _used(self, other: int) -> dict[str, float]:
        own = tree(self._pid)
        followers = followers_of(self._pid)
        used = {"main": processor_s(self._pid), "followers": processor_s(followers)}
        used["others"] = sum(processor_s(each.pid) for each in own if each.pid not in (self._pid, followers))
        used["neighbour"] = sum(processor_s(each.pid) for each in tree(other)) if other else 0.0
        return used


@contextlib.asynccontextmanager
async def measured(row: Row, plain: bool) -> AsyncIterator[Measured]:
    """Start a Muster as the row wants it, with a quiet RM that has sent a few asks."""
    with tempfile.TemporaryDirectory(prefix="muster-neighbours-") as directory:
        notes = None if plain else Path(directory, "callbacks")
        environment = dict(row.environment)
        if notes is not None:
            notes.mkdir()
            environment |= {"PYTHONPATH": str(INSTRUMENT), "MUSTER_BENCH_CALLBACKS": str(notes)}
        deployment = embedded(Path(directory), environment)
        with _files(row.files):
            deployment.processes["up"].start()
        try:
            await deployment.serving()
            driver = Quiet(deployment.gateway, QUIET_RM, Shape(nodes=100, asks=20_000, applications=10))
            driver.watch(deployment.processes["up"].pid)
            async with driver.client() as rm:
                await driver.set_up(rm)
                await driver.ask_beside(rm, "warm", WARM_S)
                yield Measured(deployment, driver, rm, notes)
        except BaseException:
            print(deployment.logs(), file=sys.stderr)
            raise
        finally:
            await deployment.stop()


@contextlib.contextmanager
def _files(limit: int) -> Any:
    """Lower the limit of open files for the processes that start meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def measure(row: Row, seconds: float, plain: bool) -> Figures:
    """Measure all phases of a row once."""
    async with measured(row, plain) as muster:
        await muster.phase("quiet", seconds)
        place = (muster.deployment.gateway, muster.deployment.http)
        process = await asyncio.create_subprocess_exec(
            *THIS, "--attack", row.name, *place, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), BEGIN_TIMEOUT_S)
            assert line, f"{row.name}: the neighbour ended before it began"
            await muster.phase("beside", seconds, process.pid)
            assert process.returncode is None, f"{row.name}: the neighbour ended while it was measured"
        finally:
            await end(process)
        await muster.phase("after", seconds)
        burned = muster.burned()
    async with measured(row, plain) as control:
        burners = await spawn([*THIS, "--burn"], burned)
        try:
            await control.phase("control", seconds)
        finally:
            for process in burners:
                await end(process)
    return {**muster.figures, "control": control.figures["control"], "burned": burned}


def together(rounds: list[Figures]) -> Figures:
    """Return the medians of all numbers; of the callbacks, the worst of each."""

    def merged(values: list[Any]) -> Any:
        if isinstance(values[0], Mapping):
            if "longest" in values[0]:
                return max(values, key=lambda each: each["max_ms"])
            return {name: merged([each[name] for each in values]) for name in values[0]}
        if isinstance(values[0], list):
            return [merged(list(each)) for each in zip(*values, strict=True)]
        return round(median(values), 3)

    return merged(rounds)  # type: ignore[no-any-return]


def table(results: Mapping[str, Figures], rows: Mapping[str, Row]) -> str:
    """Return the rows for docs/security-neighbours.md."""
    lines = [
        "| a single ask every 50 ms, beside | p50 | p95 | p99 | p99 after it | control: p50, p99 | longest steps |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in results.items():
        beside, after, control = found["beside"], found["after"], found["control"]
        steps = found["callbacks"].get("beside")
        longest = f"{steps['main']['max_ms']:.0f}, {steps['followers']['max_ms']:.0f} ms" if steps else ""
        lines.append(
            f"| {rows[name].about} | {beside['p50']:.0f} ms | {beside['p95']:.0f} ms | {beside['p99']:.0f} ms "
            f"| {after['p99']:.0f} ms | {control['p50']:.0f}, {control['p99']:.0f} ms | {longest} |"
        )
    return "\n".join(lines)


def main() -> None:
    rows = all_rows()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help=f"some of {', '.join(rows)}; with commas")
    parser.add_argument("--plain", action="store_true", help="do not note callbacks")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too, after each row")
    parser.add_argument("--table", action="store_true", help="print a table of docs/security-neighbours.md instead")
    parser.add_argument("--list", action="store_true", help="print the rows, and end")
    parser.add_argument("--attack", nargs=3, metavar=("ROW", "GATEWAY", "HTTP"), help=argparse.SUPPRESS)
    parser.add_argument("--burn", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        asyncio.run(rows[given.attack[0]].attack(Target(*given.attack[1:])))  # type: ignore[arg-type]
        return
    if given.burn:
        burn(given.burn)
    if given.list:
        print("\n".join(f"{row.name:<16} {row.about}" for row in rows.values()))
        return
    names = given.only.split(",") if given.only else list(rows)
    if unknown := set(names) - set(rows):
        parser.error(f"--only: must be of {', '.join(rows)}, got {', '.join(sorted(unknown))}")
    results: dict[str, Figures] = {}
    for name in names:
        found = [asyncio.run(measure(rows[name], given.seconds, given.plain)) for _ in range(given.rounds)]
        results[name] = together(found)
        if given.json:
            given.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, rows) if given.table else json.dumps(results))


if __name__ == "__main__":
    main()
