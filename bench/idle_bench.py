"""What partitions cost that nobody uses: one line of JSON for each number of them.

A whole Muster on Kafka, each service a process of its own, and a broker of its own. One RM registers, with one node and
one allocation; then nothing happens. ``cpu`` is each process's share of a core meanwhile, in percent; ``rss_mib`` its
memory; ``ready_s`` the time from the start of all processes until the gateway serves and all others are ready.
``again_s``: the same for a second start, on topics that exist.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
import structlog  # noqa: E402
from chaos.harness import Deployment, on_kafka  # noqa: E402
from waiting import eventually  # noqa: E402

SETTLE_S = 12.0  # idle readers wait longer for each fetch after some seconds
WITHIN_S = 300.0


def cpu_s(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


async def ready(address: str) -> bool:
    """Whether a process says that it is ready."""

    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.HTTPError, OSError):
            return False

    return await asyncio.to_thread(ask)


async def started(deployment: Deployment) -> float:
    """Starts everything; returns how long it took, in seconds."""
    began_s = time.monotonic()
    await deployment.start()
    for address in deployment.operations.values():
        await eventually(lambda address=address: ready(address), f"{address} is ready", WITHIN_S, 0.05)
    return time.monotonic() - began_s


async def measure(partitions: int, seconds: float, kafka: servers.Server, redis: servers.Server) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work:
        # Until a service is ready, others wait: none of them shall give up.
        environment = {
            "MUSTER_LOG__PARTITIONS": str(partitions),
            "MUSTER_LOG__KAFKA_START_TIMEOUT_S": "120",
            "MUSTER_PUBLISHER__PARQUET_DIR": f"{work}/history",
            "MUSTER_DERIVE__HTTP_ADDRESS": "",
        }
        deployment = on_kafka(Path(work), kafka.address, redis.address, environment, ("derive",))
        try:
            ready_s = await started(deployment)
            await deployment.stop()
            again_s = await started(deployment)
            await asyncio.sleep(SETTLE_S)
            pids = {name: process.pid for name, process in deployment.processes.items()} | {"broker": kafka.pid}
            before, began_s = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
            await asyncio.sleep(seconds)
            took_s = time.monotonic() - began_s
            cpu = {name: round(100 * (cpu_s(pid) - before[name]) / took_s, 1) for name, pid in pids.items()}
            rss = {name: rss_mib(pid) for name, pid in pids.items()}
        except BaseException:
            print(deployment.logs(), file=sys.stderr)
            raise
        finally:
            await deployment.stop()
    return {
        "partitions": partitions,
        "ready_s": round(ready_s, 1),
        "again_s": round(again_s, 1),
        "cpu_percent": cpu | {"sum": round(sum(cpu.values()), 1)},
        "rss_mib": rss | {"sum": sum(rss.values())},
    }


async def run(numbers: list[int], seconds: float) -> None:
    with tempfile.TemporaryDirectory() as work:
        for partitions in numbers:
            directory = Path(work) / str(partitions)
            kafka = servers.own_local("kafka", directory)
            redis = servers.own_local("redis", directory)
            try:
                print(json.dumps(await measure(partitions, seconds, kafka, redis)), flush=True)
            finally:
                servers.stop(kafka)
                servers.stop(redis)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--partitions", type=int, nargs="+", default=[4, 8, 32])
    arguments.add_argument("--seconds", type=float, default=15.0)
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(run(given.partitions, given.seconds))


if __name__ == "__main__":
    main()
