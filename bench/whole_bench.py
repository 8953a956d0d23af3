"""Measures a whole Muster beside its allocations per second: start, memory, idle, growth. One line of JSON.

.venv/bin/python -m bench.whole_bench [--only start,size] [--backend embedded|kafka] [--minutes 5] [--json FILE]

start    an empty Muster: ``ready_s`` from its start until the gateway serves, ``pss_mib`` of all processes.
size     ``nodes_s`` until 10,000 nodes are answered; then 100,000 asks up front, ``pss_mib`` of all processes,
         ``ready_again_s`` until the gateway serves after ``kill -9`` of all, and ``cpu_again_s`` that they used for it.
idle     10,000 nodes and 5,000 asks that fit nowhere: ``cpu_percent`` of a core that all processes use, over 20 s.
tenfold  allocations/s with ten times the nodes, applications or asks, as a ratio to those with 1,000, 100 and 10,000.
rms      allocations/s of 16 RMs in sum, as a ratio to that of one RM with as many asks.
flat     as long as ``--minutes``: an RM registers, asks for 9,000 allocations at 3,000/s and releases them, again and
         again. ``growth`` of the resident memory from the tenth minute (or a sixth of the time) to the end, by process.

``pss_mib`` is the memory that the machine has less with Muster: a page that several processes share counts once
(PSS). ``rss_mib`` beside it counts it in each of them.

Kafka's broker and Redis do not count. The driver shares the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
from chaos.harness import Deployment, embedded, on_kafka  # noqa: E402
from muster_client import ask  # noqa: E402

from bench.driver import Driver, Shape, chunks  # noqa: E402
from bench.idle_bench import cpu_s  # noqa: E402
from bench.results import put  # noqa: E402
from bench.scenarios_bench import console, machine  # noqa: E402

PARTS = ("start", "size", "idle", "tenfold", "rms", "flat")
SETTLE_S, IDLE_S = 12.0, 20.0
BASE = Shape()
RMS = 16
LIFE, RATE_PER_S = Shape(asks=9_000), 3_000
# Followers write what they have read, and memory is given back.
REST_S = 5.0

New = Callable[[], Deployment]


def processes(deployment: Deployment) -> dict[str, list[int]]:
    """Return the ids of each process and of all processes below it, by name."""

    def below(pid: int) -> list[int]:
        listed = Path(f"/proc/{pid}/task").glob("*/children")
        return [pid, *(found for each in listed for child in each.read_text().split() for found in below(int(child)))]

    return {name: below(process.pid) for name, process in deployment.processes.items()}


def rss_mib(pids: list[int]) -> float:
    """Return the resident memory of the processes."""
    return _mib(pids, "status", "VmRSS:")


def pss_mib(pids: list[int]) -> float:
    """Return the memory of the processes. A page that n processes share counts as an nth of it in each."""
    return _mib(pids, "smaps_rollup", "Pss:")


def _mib(pids: list[int], file: str, line: str) -> float:
    """Return the sum of a line, in KiB, of a file that /proc has for each process."""
    kib = 0
    for pid in pids:
        said = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        kib += next(int(each.split()[1]) for each in said if each.startswith(line))
    return round(kib / 1024, 1)


def memory(deployment: Deployment) -> dict[str, float]:
    """Return the memory of all processes, by both ways of counting."""
    pids = [pid for each in processes(deployment).values() for pid in each]
    return {"pss_mib": pss_mib(pids), "rss_mib": rss_mib(pids)}


@asynccontextmanager
async def timed_start(deployment: Deployment) -> AsyncIterator[float]:
    """Start everything. Yield the seconds until the gateway served. Stop everything."""
    began = time.monotonic()
    async with deployment.running():
        yield round(time.monotonic() - began, 2)


async def start(new: New) -> dict[str, Any]:
    async with timed_start(deployment := new()) as ready_s:
        await asyncio.sleep(REST_S)
        return {"ready_s": ready_s, **memory(deployment)}


async def size(new: New) -> dict[str, Any]:
    shape = Shape(nodes=10_000, asks=100_000)
    async with timed_start(deployment := new()):
        driver = Driver(deployment.gateway, "bench-size", shape)
        async with driver.client() as rm:
            nodes_s = await driver.set_up(rm)
            found = await driver.ask_up_front(rm, "a")
            await asyncio.sleep(REST_S)
            used = memory(deployment)
        for name in deployment.processes:
            await deployment.kill(name)
        began = time.monotonic()
        await deployment.start()
        ready_again_s = time.monotonic() - began
        cpu_again_s = sum(cpu_s(pid) for each in processes(deployment).values() for pid in each)
    return {
        "nodes_s": round(nodes_s, 2),
        "allocations_per_s": found["allocations_per_s"],
        **used,
        "ready_again_s": round(ready_again_s, 2),
        "cpu_again_s": round(cpu_again_s, 2),
    }


async def idle(new: New) -> dict[str, Any]:
    shape = Shape(nodes=10_000, asks=5_000)
    async with timed_start(deployment := new()):
        driver = Driver(deployment.gateway, "bench-idle", shape)
        async with driver.client() as rm:
            await driver.set_up(rm)
            large = {"vcore": 1 << 40, "memory": 1 << 50}
            for part in chunks([ask(f"a-{n}", f"app-{n % shape.applications}", large) for n in range(shape.asks)], 100):
                await rm.send_asks(part)
            await asyncio.sleep(SETTLE_S)
            pids = [pid for each in processes(deployment).values() for pid in each]
            before = sum(map(cpu_s, pids))
            await asyncio.sleep(IDLE_S)
            used = sum(map(cpu_s, pids)) - before
    assert not driver.allocated, "an ask was placed that fits nowhere"
    return {"cpu_percent": round(100 * used / IDLE_S, 2)}


async def rate(new: New, shape: Shape) -> float:
    """Return allocations/s of one RM on a new Muster."""
    async with timed_start(deployment := new()):
        driver = Driver(deployment.gateway, "bench-rate", shape)
        async with driver.client() as rm:
            await driver.set_up(rm)
            return (await driver.ask_up_front(rm, "a"))["allocations_per_s"]


async def tenfold(new: New) -> dict[str, Any]:
    larger = {
        "nodes": Shape(nodes=10 * BASE.nodes),
        "applications": Shape(applications=10 * BASE.applications),
        "asks": Shape(asks=10 * BASE.asks),
    }
    base = median([await rate(new, BASE) for _ in range(3)])
    found = {name: await rate(new, shape) for name, shape in larger.items()}
    return {"base_per_s": base, "ratios": {name: round(value / base, 2) for name, value in found.items()}}


async def rms(new: New) -> dict[str, Any]:
    one = await rate(new, Shape(asks=RMS * 1_000))
    async with timed_start(deployment := new()):
        shape = Shape(nodes=64, asks=1_000, applications=10)
        drivers = [Driver(deployment.gateway, f"bench-{number:02}", shape) for number in range(RMS)]
        clients = [driver.client() for driver in drivers]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.__aenter__())
        for driver, client in zip(drivers, clients, strict=True):
            await driver.set_up(client)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for driver, client in zip(drivers, clients, strict=True):
                group.create_task(driver.ask_up_front(client, "a"))
        many = RMS * shape.asks / (max(driver.last_at for driver in drivers) - began)
        for client in clients:
            await client.__aexit__(None, None, None)
    return {"one_per_s": one, "sixteen_per_s": round(many, 1), "ratio": round(many / one, 2)}


async def flat(new: New, minutes: float) -> dict[str, Any]:
    async with timed_start(deployment := new()):
        began, lives, seen = time.monotonic(), 0, []
        while (passed := time.monotonic() - began) < 60 * minutes or lives < 2:
            driver = Driver(deployment.gateway, "bench-flat", LIFE)
            async with driver.client() as rm:
                await driver.set_up(rm)
                for part in range(3):  # (3,000 in a second)
                    begun = time.monotonic()
                    driver.shape = Shape(asks=LIFE.asks // 3)
                    await driver.ask_up_front(rm, f"{lives}-{part}")
                    await asyncio.sleep(max(0.0, begun + LIFE.asks / 3 / RATE_PER_S - time.monotonic()))
                    await driver.release_all(rm, f"{lives}-{part}")
            lives += 1
            seen.append((passed, {name: rss_mib(pids[:1]) for name, pids in processes(deployment).items()}))
            console.print(f"flat: {passed:.0f} s, {lives} lives, MiB {seen[-1][1]}", highlight=False)
    from_s = min(600.0, 10 * minutes)
    first = next(each for passed, each in seen if passed >= from_s or passed == seen[-1][0])
    last = seen[-1][1]
    return {
        "minutes": minutes,
        "lives": lives,
        "rss_mib": last,
        "growth": {name: round(value / first[name], 3) for name, value in last.items()},
    }


async def measure(parts: list[str], new: New, minutes: float) -> dict[str, Any]:
    """Run the parts, each on a new Muster."""
    found: dict[str, Any] = {}
    for part in parts:
        match part:
            case "start":
                found[part] = await start(new)
            case "size":
                found[part] = await size(new)
            case "idle":
                found[part] = await idle(new)
            case "tenfold":
                found[part] = await tenfold(new)
            case "rms":
                found[part] = await rms(new)
            case "flat":
                found[part] = await flat(new, minutes)
        console.print(f"{part}: {json.dumps(found[part])}", highlight=False)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="which parts")
    parser.add_argument("--backend", choices=["embedded", "kafka"], default="embedded")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the part flat lasts; 60 for the whole")
    parser.add_argument("--json", type=Path, help="where the result goes; standard output otherwise")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    parts = options.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only {options.only}: expected some of {', '.join(PARTS)}")
    result: dict[str, Any] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "backend": options.backend,
    }
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-whole-")))
        addresses: list[str] = []
        if options.backend == "kafka":
            directory = servers.session_directory()
            stack.callback(servers.stop_all, directory)
            addresses = [servers.find(kind, directory).address for kind in ("kafka", "redis")]

        def new() -> Deployment:
            place = Path(tempfile.mkdtemp(dir=work))
            return on_kafka(place, *addresses) if addresses else embedded(place)

        result["parts"] = asyncio.run(measure(parts, new, options.minutes))
    put(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
