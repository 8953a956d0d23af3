"""What several schedulers, gateways and RMs cost: one line of JSON for each combination.

A whole Muster on Kafka, each service a process, all on this machine: so many schedulers and gateways, a view, and an
event publisher. The RMs share the asks evenly, on 1,024 nodes in sum, and are spread over the gateways. They ask as
fast as they are let. Combinations that differ in their RMs only run one after the other on the same processes.

per_s     allocations of all RMs, until the last one came
cpu_us    processor time of each kind of process for one allocation, until all are folded and exported
net_us    the same without what the processes use for nothing in the same time (with --idle)
idle      percent of a core that each kind uses afterwards, with all RMs connected and nothing to do
rss_mib   memory of each kind at the end
transactions  of all schedulers: a small one costs more for each allocation
lost      allocations that an RM did not hear of exactly once: 0, or the exit status is 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
import structlog  # noqa: E402
from muster_client import RmClient  # noqa: E402
from muster_replay.local_process import LocalProcess, free_ports, muster_command  # noqa: E402
from waiting import eventually  # noqa: E402

from bench.driver import Driver, Shape  # noqa: E402
from bench.idle_bench import cpu_s, ready, rss_mib  # noqa: E402

NODES = 1_024  # of all RMs
WITHIN_S = 300.0
SETTLE_S = 6.0
_TRANSACTIONS = re.compile(r"^muster_bus_transaction_seconds_count{.*} ([0-9.e+]+)$", re.MULTILINE)


class Stack:
    """The processes, and where they answer."""

    def __init__(
        self, directory: Path, kafka: str, redis: str, schedulers: int, gateways: int, environment: Mapping[str, str]
    ) -> None:
        prefix = f"scale-{secrets.token_hex(4)}"
        ports = iter(free_ports(schedulers + 2 * gateways + 2))
        view, publisher = next(ports), next(ports)
        common = {
            "MUSTER_LOG__BACKEND": "kafka",
            "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": kafka,
            "MUSTER_LOG__TOPIC_PREFIX": f"{prefix}.",
            "MUSTER_GATEWAY__SESSIONS_URL": redis,
            "MUSTER_GATEWAY__SESSIONS_PREFIX": f"{prefix}:",
            "MUSTER_GATEWAY__VIEW_URL": f"http://127.0.0.1:{view}",
            "MUSTER_GATEWAY__PUBLISHER_URL": f"http://127.0.0.1:{publisher}",
            "MUSTER_GATEWAY__HTTP_OPEN": "true",
            "MUSTER_VIEW__HTTP_ADDRESS": f"127.0.0.1:{view}",
            "MUSTER_PUBLISHER__HTTP_ADDRESS": f"127.0.0.1:{publisher}",
            **environment,
        }
        self.addresses: list[str] = []
        self.schedulers: list[str] = []
        self.health: list[str] = [f"http://127.0.0.1:{view}", f"http://127.0.0.1:{publisher}"]
        self.processes: list[tuple[str, LocalProcess]] = []

        def add(kind: str, name: str, more: Mapping[str, str]) -> None:
            process = LocalProcess(muster_command(kind), directory / f"{name}.log", {**common, **more})
            self.processes.append((kind, process))

        for number in range(schedulers):
            address = f"127.0.0.1:{next(ports)}"
            self.health.append(f"http://{address}")
            self.schedulers.append(f"http://{address}")
            add("scheduler", f"scheduler-{number}", {"MUSTER_SCHEDULER__HTTP_ADDRESS": address})
        add("view", "view", {})
        add("event-publisher", "event-publisher", {})
        for number in range(gateways):
            grpc, http = f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}"
            self.addresses.append(grpc)
            add(
                "gateway",
                f"gateway-{number}",
                {"MUSTER_GATEWAY__GRPC_ADDRESS": grpc, "MUSTER_GATEWAY__HTTP_ADDRESS": http},
            )

    async def start(self) -> None:
        for _, process in self.processes:
            process.start()
        for address in self.health:
            await eventually(lambda address=address: ready(address), f"{address} is ready", WITHIN_S, 0.1)
        for (kind, process), address in zip(self.processes[-len(self.addresses) :], self.addresses, strict=True):
            assert kind == "gateway"
            await process.serving(address, WITHIN_S)

    async def stop(self) -> None:
        for _, process in reversed(self.processes):
            await asyncio.to_thread(process.stop)

    def cpu(self, kafka: int) -> Counter[str]:
        """Processor time of each kind of process so far, in microseconds."""
        found: Counter[str] = Counter()
        for kind, process in self.processes:
            found[kind] += round(cpu_s(process.pid) * 1e6)
        if kafka:
            found["broker"] = round(cpu_s(kafka) * 1e6)
        return found

    async def transactions(self) -> int:
        """Transactions of all schedulers so far."""

        def ask() -> int:
            found = 0
            for address in self.schedulers:
                with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
                    found += sum(int(float(each)) for each in _TRANSACTIONS.findall(answer.read().decode()))
            return found

        return await asyncio.to_thread(ask)

    def rss(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for kind, process in self.processes:
            found[kind] += rss_mib(process.pid)
        return dict(found)

    def logs(self) -> str:
        return "\n".join(process.log_tail()[-4000:] for _, process in self.processes)


async def settled(stack: Stack) -> None:
    """Returns when no process has worked for a moment: all is folded and exported."""
    while True:
        before = stack.cpu(0)
        await asyncio.sleep(1.0)
        used = stack.cpu(0)
        if all(used[kind] - before[kind] < 100_000 for kind in used):
            return


async def measure(stack: Stack, rms: int, asks: int, idle_s: float, kafka: int) -> dict[str, Any]:
    """Runs new RMs on a running stack.

    :param kafka: the broker's pid.
    """
    shape = Shape(nodes=NODES // rms, asks=asks // rms, queues=4, applications=8)
    sum_of_asks = shape.asks * rms
    life, addresses = secrets.token_hex(3), stack.addresses
    drivers = [Driver(addresses[number % len(addresses)], f"rm-{life}-{number}", shape) for number in range(rms)]
    async with AsyncExitStack() as clients:
        opened: list[RmClient] = [await clients.enter_async_context(driver.client()) for driver in drivers]
        for driver, client in zip(drivers, opened, strict=True):
            await driver.set_up(client)
        await settled(stack)
        transactions = await stack.transactions()
        before, began_s = stack.cpu(kafka), time.monotonic()
        await asyncio.gather(
            *(driver.ask_up_front(client, "a") for driver, client in zip(drivers, opened, strict=True))
        )
        took_s = max(driver.last_at for driver in drivers) - began_s
        await settled(stack)
        used, window_s = stack.cpu(kafka) - before, time.monotonic() - began_s
        transactions = await stack.transactions() - transactions
        lost = sum(abs(driver.allocated - shape.asks) for driver in drivers)
        lost += sum(len(client.missing_sequences()) for client in opened)
        idle: dict[str, float] = {}
        net: dict[str, int] = {}
        if idle_s:
            await asyncio.sleep(SETTLE_S)
            before, began_s = stack.cpu(kafka), time.monotonic()
            await asyncio.sleep(idle_s)
            slept_s = time.monotonic() - began_s
            still = stack.cpu(kafka)
            still.subtract(before)
            idle = {kind: round(each / slept_s / 1e4, 1) for kind, each in still.items()}
            net = {kind: round((used[kind] - each / slept_s * window_s) / sum_of_asks) for kind, each in still.items()}
        rss = stack.rss()
    return {
        "rms": rms,
        "allocations": sum_of_asks,
        "per_s": round(sum_of_asks / took_s),
        "transactions": transactions,
        "cpu_us": {kind: round(value / sum_of_asks) for kind, value in used.items()},
        **({"net_us": net, "idle": idle} if idle_s else {}),
        "rss_mib": rss,
        "lost": lost,
    }


async def run(cells: list[tuple[int, int, int]], asks: int, idle_s: float, environment: dict[str, str]) -> int:
    lost = 0
    with tempfile.TemporaryDirectory() as work:
        kafka = servers.own_local("kafka", Path(work))
        redis = servers.own_local("redis", Path(work))
        try:
            for (schedulers, gateways), some in groupby(cells, key=lambda cell: cell[:2]):
                directory = Path(tempfile.mkdtemp(dir=work))
                stack = Stack(directory, kafka.address, redis.address, schedulers, gateways, environment)
                try:
                    await stack.start()
                    for _, _, rms in some:
                        found = await measure(stack, rms, asks, idle_s, kafka.pid)
                        lost += found["lost"]
                        print(json.dumps({"schedulers": schedulers, "gateways": gateways, **found}), flush=True)
                except BaseException:
                    print(stack.logs(), file=sys.stderr)
                    raise
                finally:
                    await stack.stop()
        finally:
            servers.stop(kafka)
            servers.stop(redis)
    return int(lost > 0)


def _cell(text: str) -> tuple[int, int, int]:
    schedulers, gateways, rms = map(int, text.split(","))
    return schedulers, gateways, rms


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    every = [(schedulers, 1, rms) for schedulers in (1, 2, 4) for rms in (1, 4, 16, 64)]
    arguments.add_argument("--cells", type=_cell, nargs="+", default=every, metavar="SCHEDULERS,GATEWAYS,RMS")
    arguments.add_argument("--asks", type=int, default=16_384, help="of all RMs together")
    arguments.add_argument("--idle", type=float, default=0.0, help="seconds to measure without work")
    arguments.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE", help="for all processes")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    environment = dict(os.path.expandvars(each).split("=", 1) for each in given.set)
    sys.exit(asyncio.run(run(given.cells, given.asks, given.idle, environment)))


if __name__ == "__main__":
    main()
