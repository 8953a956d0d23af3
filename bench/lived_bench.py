"""Measures a Muster that has lived beside new ones, by turns, in the same minutes. JSON.

.venv/bin/python -m bench.lived_bench [--operations 3600000] [--rounds 7] [--small] [--json FILE]

A round: an RM registers with 5,000 nodes and 100 applications, asks for 50,000 allocations up front, releases them all,
and removes its applications and nodes: 110,200 operations. The lived Muster first goes through rounds until it has done
``--operations`` of them: as many as an hour at 500 asks a second, each of which is released. (Each round registers the
same RM again, as after a restart of it.) Then each measured round runs on it, and in the same minute on a new Muster.

``cpu_s`` is the processor time of the deciding process, of all its threads, for a round; ``allocations_per_s`` by the
clock. Ratios are new / lived for the time and lived / new for the rate: 1 is as fast as a new one. Other load of the
machine changes the rate, and the processor time little.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.harness import Deployment, embedded  # noqa: E402
from muster_proto.si.v1 import si_pb2 as si  # noqa: E402

from bench.driver import Driver, Shape, chunks  # noqa: E402
from bench.idle_bench import cpu_s, rss_mib  # noqa: E402
from bench.results import put  # noqa: E402
from bench.scenarios_bench import console, machine  # noqa: E402

# 500 asks a second for an hour, and as many releases.
HOUR_OPERATIONS = 2 * 500 * 3_600
LARGE, SMALL = Shape(nodes=5_000, asks=50_000), Shape(nodes=1_000, asks=10_000)
REST_S = 1.0  # after a round: what it left to do is done in its own time


def operations(shape: Shape) -> int:
    """Return how many operations a round has."""
    return 2 * (shape.asks + shape.nodes + shape.applications)


async def play(deployment: Deployment, shape: Shape) -> dict[str, float]:
    """Run one round. Return its figures."""
    pid = deployment.processes["up"].pid
    before_s = cpu_s(pid)
    driver = Driver(deployment.gateway, "bench-lived", shape)
    async with driver.client() as rm:
        await driver.set_up(rm)
        asked_s = cpu_s(pid)
        found = await driver.ask_up_front(rm, "a")
        asked_s = cpu_s(pid) - asked_s
        released = await driver.release_all(rm, "a")
        gone = [
            si.RemoveApplicationRequest(applicationID=each.applicationID, partitionName="default")
            for each in driver.applications()
        ]
        await rm.send_applications(remove=gone)
        drop = si.NodeInfo.DECOMISSION
        for part in chunks([si.NodeInfo(nodeID=f"node-{n}", action=drop) for n in range(shape.nodes)], 100):
            await rm.send_nodes(part)
        await asyncio.sleep(REST_S)
    return {
        "allocations_per_s": found["allocations_per_s"],
        "releases_per_s": released,
        "cpu_s": round(cpu_s(pid) - before_s, 2),
        "cpu_asking_s": round(asked_s, 2),
        "rss_mib": rss_mib(pid),
    }


async def play_on_a_new_one(work: Path, shape: Shape) -> dict[str, float]:
    """Run one round on a Muster that begins with it."""
    with tempfile.TemporaryDirectory(dir=work) as place:
        deployment = embedded(Path(place))
        async with deployment.running():
            return await play(deployment, shape)


def ratios(lived: list[dict[str, float]], new: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return, for each figure, median and worst of what the lived one reaches of a new one."""
    found = {}
    for figure in ("allocations_per_s", "releases_per_s", "cpu_s", "cpu_asking_s"):
        usual = median(each[figure] for each in new)
        parts = [usual / each[figure] if figure.startswith("cpu") else each[figure] / usual for each in lived]
        found[figure] = {"median": round(median(parts), 3), "worst": round(min(parts), 3)}
    return found


async def measure(work: Path, shape: Shape, before: int, rounds: int) -> dict[str, Any]:
    lived, new, did, earlier = [], [], 0, []
    deployment = embedded(work)
    async with deployment.running():
        while did < before:
            earlier.append(await play(deployment, shape))
            did += operations(shape)
            console.print(f"lives: {did:,} operations, {earlier[-1]}", highlight=False)
        for number in range(rounds):
            lived.append(await play(deployment, shape))
            did += operations(shape)
            new.append(await play_on_a_new_one(work, shape))
            console.print(f"{number + 1}: lived {lived[-1]}\n   new   {new[-1]}", highlight=False)
    return {
        "operations": did,
        "operations_a_round": operations(shape),
        "ratios": ratios(lived, new),
        "lived": lived,
        "new": new,
        "earlier": earlier,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=HOUR_OPERATIONS, help="of the lived one, before the rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="1,000 nodes and 10,000 asks a round")
    parser.add_argument("--json", type=Path, help="where the result goes; standard output otherwise")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    result: dict[str, Any] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory(prefix="muster-lived-") as work:
        shape = SMALL if options.small else LARGE
        result |= asyncio.run(measure(Path(work), shape, options.operations, options.rounds))
    put(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
