"""Measures the effect of readers on decisions, and the latency of answers.

.venv/bin/python -m bench.view_bench [--only reads|dump] [--form FORM …] [--rounds 3] [--seconds 20] [--quick]
    [--json FILE]

Standard output carries one JSON object, standard error the progress. Forms: ``embedded`` (``muster up``),
``one-process`` (the same with ``process.followers_own_process = false``) and ``kafka`` (scheduler, view, publisher and
gateway as processes). Readers, driver, services and broker share the cores. Two parts, each with a deployment of its
own:

reads
    1,000 nodes, 20,000 allocations, 100 pending asks. ``view_load.py`` sends the gateway 1,000 requests of its ``MIX``
    a second, from a process of its own, on a clock that does not wait for answers. A latency counts from the request's
    due time to the last byte of its answer. ``still``: no asks meanwhile; ``deciding``: 100 asks/s, one in a message.
    Goal: p99 under 100 ms.
dump
    1,000 nodes, 100,000 allocations. 5,000 asks/s, 50 in a message, without and with a reader that takes one state dump
    after the other, in turns in one run. ``slower_percent`` compares the medians of allocations per second (goal: under
    5); latencies of the asks and CPU are beside it. ``saturated``: the same with 10,000 asks up front again and again;
    there, each process's CPU for readers costs allocations. ``grown_mb``: growth of each process's memory during a
    dump.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.path.insert(0, str(ROOT))

import servers  # noqa: E402
from chaos.harness import Deployment, embedded, on_kafka  # noqa: E402
from muster_client import RmClient, application, ask  # noqa: E402
from muster_replay.accounts import percentile  # noqa: E402
from rich.console import Console  # noqa: E402

from bench import view_load  # noqa: E402
from bench.driver import STEP_TIMEOUT_S, Driver, Shape, chunks  # noqa: E402
from bench.results import put  # noqa: E402
from bench.scenarios_bench import machine  # noqa: E402

LOAD = "bench.view_load"
FORMS = ("embedded", "one-process", "kafka")
READS_PER_S, TARGET_P99_MS = 1_000.0, 100.0
ASKS_PER_S, ASKS_PER_MESSAGE, TARGET_SLOWER_PERCENT = 5_000.0, 50, 5.0
PACED_ASKS_PER_S = 100.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

console = Console(stderr=True)


def deploy(form: str, place: Path, addresses: dict[str, str]) -> Deployment:
    """Start Muster in one of its forms."""
    place.mkdir(parents=True, exist_ok=True)
    if form == "kafka":
        return on_kafka(place, addresses["kafka"], addresses["redis"])
    own = {"MUSTER_PROCESS__FOLLOWERS_OWN_PROCESS": "false"} if form == "one-process" else {}
    return embedded(place, own)


# ---- use of processes ------------------------------------------------------------------------------------------------


def processes(deployment: Deployment) -> dict[str, int]:
    """The pids of all processes, those below ours with a number behind the name."""
    found = {}
    for name, process in deployment.processes.items():
        found[name] = process.pid
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found |= {f"{name} {number}": int(pid) for number, pid in enumerate(children, 1)}
    return found


def cpu_seconds(deployment: Deployment) -> dict[str, float]:
    """CPU time of each process so far."""
    found = {}
    for name, pid in processes(deployment).items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


def memory_mb(deployment: Deployment, field: str) -> dict[str, float]:
    """VmRSS (now) or VmHWM (the most since :func:`forget_peak`) of each process."""
    found = {}
    for name, pid in processes(deployment).items():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                found[name] = int(line.split()[1]) / 1024
    return found


def forget_peak(deployment: Deployment) -> None:
    for pid in processes(deployment).values():
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_percent(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """CPU of each process, in % of one core."""
    return {name: round(100 * (after[name] - before.get(name, 0.0)) / seconds, 1) for name in after}


# ---- reads -----------------------------------------------------------------------------------------------------------


async def loaded(deployment: Deployment, rm_id: str, seconds: float, nodes: int, per_s: float) -> dict[str, Any]:
    """Run the mix once."""
    before, began = cpu_seconds(deployment), time.monotonic()
    arguments = ["reads", deployment.http, "--rm", rm_id, "--seconds", str(seconds), "--per-s", str(per_s)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", LOAD, *arguments, "--nodes", str(nodes), cwd=ROOT, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the load broke off")
    found: dict[str, Any] = json.loads(output)
    found["cpu_percent"] = cpu_percent(before, cpu_seconds(deployment), time.monotonic() - began)
    return found


async def reads(deployment: Deployment, rounds: int, seconds: float, shape: Shape, per_s: float) -> dict[str, Any]:
    """Measure reads without and with decisions."""
    rm_id = "bench-reads"
    driver = Driver(deployment.gateway, rm_id, shape)
    result: dict[str, Any] = {"target_p99_ms": TARGET_P99_MS}
    async with deployment.running(), driver.client() as rm:
        await populate(driver, rm, 2 * round(rounds * PACED_ASKS_PER_S * (seconds + 1)))
        await warmed(deployment, rm_id, shape.nodes)
        for name in ("still", "deciding"):
            runs = []
            for number in range(rounds):
                run = loaded(deployment, rm_id, seconds, shape.nodes, per_s)
                if name == "still":
                    runs.append(await run)
                else:
                    found, asked = await asyncio.gather(
                        run, driver.ask_on_a_clock(rm, f"d{number}", PACED_ASKS_PER_S, seconds + 1)
                    )
                    runs.append(found | {"asks": asked})
                console.print(f"reads, {name}: { {k: v for k, v in runs[-1].items() if k != 'kinds'} }")
            names = ("requests_per_s", "p50_ms", "p95_ms", "p99_ms", "max_ms")
            result[name] = {key: statistics.median(run[key] for run in runs) for key in names}
            good = all(set(run["statuses"]) == {"200"} and not run["broken"] for run in runs)
            result[name] |= {"good": good and result[name]["p99_ms"] < TARGET_P99_MS, "rounds": runs}
    return result


async def set_up(driver: Driver, rm: RmClient, more: int) -> None:
    """Create nodes and applications with extra room for so many allocations; make the shape's allocations."""
    shape = driver.shape
    driver.shape = replace(shape, asks=shape.asks + more)
    await driver.set_up(rm)
    driver.shape = shape
    await driver.ask_up_front(rm, "a")


async def populate(driver: Driver, rm: RmClient, more: int) -> None:
    """Create the cluster, and pending asks that are too large for each node."""
    await set_up(driver, rm, more)
    await rm.send_applications([application(view_load.WAITING_APP, "root.q0", user="bench")])
    await asyncio.wait_for(rm.applications_answered(), STEP_TIMEOUT_S)
    much = {"vcore": 1 << 40, "memory": 1 << 50}
    await rm.send_asks([ask(f"w-{number}", view_load.WAITING_APP, much) for number in range(view_load.WAITING)])


async def warmed(deployment: Deployment, rm_id: str, nodes: int) -> None:
    """Wait until the view has folded everything."""
    await asyncio.sleep(1.0)
    await loaded(deployment, rm_id, 2.0, nodes, 100.0)


# ---- dumps -----------------------------------------------------------------------------------------------------------


async def ask_in_messages(driver: Driver, rm: RmClient, prefix: str, seconds: float) -> dict[str, float]:
    """Send 5,000 asks/s, 50 in a message, each message at its time, without waiting for earlier ones."""
    asks = driver.asks(prefix, int(ASKS_PER_S * seconds))
    before, first = driver.allocated, len(driver.latencies_s)
    wanted = before + len(asks)
    late_s = 0.0
    began = time.monotonic() + 0.05
    for number, part in enumerate(chunks(asks, ASKS_PER_MESSAGE)):
        due = began + number * ASKS_PER_MESSAGE / ASKS_PER_S
        await asyncio.sleep(max(due - time.monotonic(), 0))
        late_s = max(late_s, time.monotonic() - due)
        driver.due_at.update((item.allocationKey, due) for item in part)
        await rm.send_asks(part)
    # Decisions within the time; later ones do not count.
    await asyncio.sleep(max(began + seconds - time.monotonic(), 0))
    decided, took = driver.allocated - before, time.monotonic() - began
    give_up = time.monotonic() + STEP_TIMEOUT_S
    while driver.allocated < wanted:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{driver.allocated - before} of {len(asks)} asks were allocated")
        await asyncio.sleep(0.02)
    values = driver.latencies_s[first:]
    return {
        "allocations_per_s": round(decided / took, 1),
        "until_last_per_s": round(len(asks) / (driver.last_at - began), 1),
        "driver_late_ms": round(late_s * 1e3, 1),
        **{f"p{percent}_ms": round(percentile(values, percent) * 1e3, 1) for percent in (50, 95, 99)},
    }


async def release(driver: Driver, rm: RmClient, prefix: str, count: int) -> None:
    """Release the allocations of the asks with a prefix."""
    shape = driver.shape
    driver.shape = replace(shape, asks=count)
    try:
        await driver.release_all(rm, prefix)
    finally:
        driver.shape = shape


async def saturate(driver: Driver, rm: RmClient, prefix: str, seconds: float, asks: int) -> dict[str, float]:
    """Send asks up front, again and again."""
    shape = driver.shape
    driver.shape = replace(shape, asks=asks)
    rates, began, wave = [], time.monotonic(), 0
    try:
        while time.monotonic() - began < seconds:
            rates.append((await driver.ask_up_front(rm, f"{prefix}.{wave}"))["allocations_per_s"])
            await driver.release_all(rm, f"{prefix}.{wave}")
            wave += 1
    finally:
        driver.shape = shape
    return {"allocations_per_s": round(statistics.median(rates)), "waves": wave}


async def dump(deployment: Deployment, rounds: int, seconds: float, shape: Shape, asks: int) -> dict[str, Any]:
    """Measure decisions without and with dumps, in turns."""
    rm_id = "bench-dump"
    driver = Driver(deployment.gateway, rm_id, shape)
    result: dict[str, Any] = {"target_slower_percent": TARGET_SLOWER_PERCENT}
    async with deployment.running(), driver.client() as rm:
        await set_up(driver, rm, max(asks, int(ASKS_PER_S * seconds)))
        await dumped(deployment, rm_id, 0.1)
        result["grown_mb"] = await grown(deployment, rm_id)
        console.print(f"dump: grown by MB {result['grown_mb']}")
        await saturate(driver, rm, "warm", 1.0, asks)

        async def paced(prefix: str) -> dict[str, float]:
            found = await ask_in_messages(driver, rm, prefix, seconds)
            await release(driver, rm, prefix, int(ASKS_PER_S * seconds))
            return found

        result["paced"] = await in_turns(deployment, rm_id, "paced", rounds, seconds, paced)
        result["saturated"] = await in_turns(
            deployment,
            rm_id,
            "saturated",
            rounds,
            seconds,
            lambda prefix: saturate(driver, rm, prefix, seconds, asks),
        )
    result["good"] = result["paced"]["slower_percent"] < TARGET_SLOWER_PERCENT
    return result


async def in_turns(
    deployment: Deployment, rm_id: str, name: str, rounds: int, seconds: float, work: Callable[[str], Any]
) -> dict[str, Any]:
    """Run the work without and with dumps beside it."""
    segments: list[dict[str, Any]] = []
    for number in range(2 * rounds):
        with_dumps = number % 4 in (1, 2)  # (without, with; with, without; …: so drift affects both)
        before, began = cpu_seconds(deployment), time.monotonic()
        read: dict[str, Any] = {}
        if with_dumps:
            task = asyncio.create_task(dumped(deployment, rm_id, seconds))
            await asyncio.sleep(0.5)  # (its process begins)
            found = await work(f"{name}{number}")
            read = await task
        else:
            found = await work(f"{name}{number}")
        cpu = cpu_percent(before, cpu_seconds(deployment), time.monotonic() - began)
        segments.append({"with_dumps": with_dumps, **found, **read, "cpu_percent": cpu})
        console.print(f"dump, {name}: {segments[-1]}")
        await asyncio.sleep(1.0)

    def of(which: bool, figure: str) -> float:
        return statistics.median(each[figure] for each in segments if each["with_dumps"] is which)

    names = [figure for figure in ("allocations_per_s", "p50_ms", "p99_ms") if figure in segments[0]]
    slower = 100 * (1 - of(True, "allocations_per_s") / of(False, "allocations_per_s"))
    return {
        "without": {figure: of(False, figure) for figure in names},
        "with": {figure: of(True, figure) for figure in names},
        "slower_percent": round(slower, 1),
        "rounds": segments,
    }


async def dumped(deployment: Deployment, rm_id: str, seconds: float) -> dict[str, Any]:
    """Read dumps for so long, one after the other, in a process of its own."""
    arguments = ["dumps", deployment.http, "--rm", rm_id, "--seconds", str(seconds)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", LOAD, *arguments, cwd=ROOT, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the reader of dumps broke off")
    found: dict[str, Any] = json.loads(output)
    return found


async def grown(deployment: Deployment, rm_id: str) -> dict[str, float]:
    """Measure the growth of memory during a dump."""
    forget_peak(deployment)
    before = memory_mb(deployment, "VmRSS")
    await dumped(deployment, rm_id, 0.1)
    after = memory_mb(deployment, "VmHWM")
    return {name: round(after[name] - before[name], 1) for name in after}


# ---- all of it -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("reads", "dump"), default="")
    parser.add_argument("--form", choices=FORMS, action="append", help="several times for several; none: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run and each segment")
    parser.add_argument("--nodes", type=int, default=view_load.NODES)
    parser.add_argument("--allocations", type=int, default=0, help="instead of 20,000 (reads) and 100,000 (dump)")
    parser.add_argument("--per-s", type=float, default=READS_PER_S, help="requests a second")
    parser.add_argument("--quick", action="store_true", help="one round, three seconds: to see that it works")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, options.seconds)
    forms = tuple(options.form or FORMS)
    result: dict[str, Any] = {"machine": machine(), "nodes": options.nodes}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        addresses: dict[str, str] = {}
        if "kafka" in forms:
            directory = servers.session_directory()
            stack.callback(servers.stop_all, directory)
            addresses = {kind: servers.find(kind, directory).address for kind in ("redis", "kafka")}
        for form in forms:
            result[form] = {}
            if options.only in ("", "reads"):
                shape = Shape(options.nodes, options.allocations or 20_000)
                deployment = deploy(form, work / f"{form}-reads", addresses)
                result[form]["reads"] = asyncio.run(reads(deployment, rounds, seconds, shape, options.per_s))
            if options.only in ("", "dump"):
                shape = Shape(options.nodes, options.allocations or 100_000)
                deployment = deploy(form, work / f"{form}-dump", addresses)
                asks = min(10_000, shape.asks)
                result[form]["dump"] = asyncio.run(dump(deployment, rounds, seconds, shape, asks))
    put(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
