"""Measures the latency of one RM's asks beside another RM, or a reader, with a high load. One JSON line.

.venv/bin/python -m tests.perf.neighbours_bench [--seconds 8] [--only asks]

A quiet RM sends one ask at a time, twenty in a second. The figure is the time to the allocation. Beside it:

quiet      nothing
asks       an RM of the same partition sends messages of 20,000 asks, as fast as they are taken
configs    RMs register with hostile and with large configurations, three at a time
streams    20 connections open 200 streams each, send nothing, and open each ended stream again
metrics    40 readers ask for /metrics without a pause
leavers    one thread connects to the HTTP port, sends a request and closes, 3,500 times in a second

The others run in a process of their own. Percentiles are of the quiet RM's asks, in ms. ``loop_…`` is the processor
time that Muster's event loop used meanwhile: other load of the machine does not change it, and on a quiet machine the
latency is little more. ``neighbour_per_s`` is what the RM of ``asks`` gets meanwhile (allocations per second).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import grpc  # noqa: E402
import httpx  # noqa: E402
from chaos.harness import Deployment, embedded  # noqa: E402
from muster_bus.settings import LogSettings  # noqa: E402
from muster_client import RmClient, application, ask, node  # noqa: E402
from muster_proto.si.v1 import si_pb2 as si  # noqa: E402
from muster_replay.accounts import percentile  # noqa: E402
from perf.driver import Driver, Shape, queue_config  # noqa: E402
from perf.neighbours_http import leave_unread  # noqa: E402

ATTACKS = ("asks", "configs", "streams", "metrics", "leavers")
QUIET_RM = "quiet"
ASKS_PER_S = 20.0
ASKS_PER_MESSAGE = 20_000
MESSAGES = 10
READERS = 40
CONNECTIONS, STREAMS = 20, 200
_RETRY_S = 0.1
REGISTRATIONS_AT_ONCE = 3
_SERVICE = "/si.v1.Scheduler/"


# ---- the other process -----------------------------------------------------------------------------------------------


def neighbour_of(rm_id: str) -> str:
    """Returns the id of an RM of the same partition."""
    topics = LogSettings().topics()
    wanted = topics.partition_of(rm_id)
    return next(name for number in range(1000) if topics.partition_of(name := f"noisy-{number}") == wanted)


async def attack(name: str, gateway: str, http: str) -> None:
    """Print a line at the begin, and run until the process is ended."""
    async with grpc.aio.insecure_channel(gateway, options=[("grpc.max_send_message_length", -1)]) as channel:
        if name == "asks":
            await _ask_for_much(channel)
        elif name == "configs":
            await asyncio.gather(*(_register(channel, number) for number in range(REGISTRATIONS_AT_ONCE)))
        elif name == "streams":
            await _be_silent(gateway)
        elif name == "leavers":
            await asyncio.to_thread(leave_unread, http, _begin)
        else:
            await asyncio.gather(*(_read_metrics(http) for _ in range(READERS)))


def _begin() -> None:
    print("begins", flush=True)


async def _ask_for_much(channel: grpc.aio.Channel) -> None:
    rm_id = neighbour_of(QUIET_RM)
    await channel.unary_unary(f"{_SERVICE}RegisterResourceManager")(
        si.RegisterResourceManagerRequest(rmID=rm_id, config=queue_config(10)).SerializeToString()
    )

    def open_stream(method: str) -> Any:
        return channel.stream_stream(f"{_SERVICE}{method}")(metadata=[("muster-rm-id", rm_id)])

    async def drain(call: Any) -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    nodes, apps, asks = (open_stream(f"Update{what}") for what in ("Node", "Application", "Allocation"))
    draining = [asyncio.create_task(drain(call)) for call in (nodes, apps, asks)]
    capacity = {"vcore": 1 << 40, "memory": 1 << 50}
    await nodes.write(
        si.NodeRequest(rmID=rm_id, nodes=[node(f"n-{number}", capacity) for number in range(500)]).SerializeToString()
    )
    await apps.write(
        si.ApplicationRequest(
            rmID=rm_id, new=[application(f"app-{number}", f"root.q{number % 10}", user="x") for number in range(100)]
        ).SerializeToString()
    )
    quantities = {"vcore": 1000, "memory": 1 << 30}
    messages = [
        si.AllocationRequest(
            rmID=rm_id,
            allocations=[
                ask(f"a-{message}-{number}", f"app-{number % 100}", quantities, tags={"creationTime": "1"})
                for number in range(ASKS_PER_MESSAGE)
            ],
        ).SerializeToString()
        for message in range(MESSAGES)
    ]
    _begin()
    for message in messages:
        await asks.write(message)
    await asyncio.gather(*draining)


def configurations() -> list[str]:
    """Return expensive texts, refused and accepted ones, below and above the default limit."""
    head = "partitions:\n- name: default\n  queues:\n  - name: root\n    submitacl: '*'\n    queues:\n"
    line = "    - {name: queue-%05d, submitacl: '*', resources: {max: {memory: 10Gi, vcore: 10}}}\n"
    return [
        "a: [" + "x," * 470_000 + "]\n",
        "a: [" + "x," * 60_000 + "]\n",
        head + "".join(line % number for number in range(1_400)),
        head + "".join(f"    - {{name: q{number}}}\n" for number in range(5_500)),
    ]


async def _register(channel: grpc.aio.Channel, number: int) -> None:
    texts = configurations()
    call = channel.unary_unary(f"{_SERVICE}RegisterResourceManager")
    if not number:
        _begin()
    while True:
        for text in texts:
            request = si.RegisterResourceManagerRequest(rmID=f"hostile-{number}", config=text)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(request.SerializeToString(), timeout=60)


async def _be_silent(gateway: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                # (gRPC shares connections of channels with the same options)
                grpc.aio.insecure_channel(gateway, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(CONNECTIONS)
        ]
        opened = 0

        async def stay_silent(channel: grpc.aio.Channel) -> None:
            nonlocal opened
            while True:
                call: Any = channel.stream_stream(f"{_SERVICE}UpdateNode")()
                opened += 1
                if opened == CONNECTIONS * STREAMS:
                    _begin()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    while await call.read() is not grpc.aio.EOF:
                        pass
                await asyncio.sleep(_RETRY_S)

        await asyncio.gather(*(stay_silent(channel) for channel in channels for _ in range(STREAMS)))


async def _read_metrics(http: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        (await client.get(f"{http}/metrics")).raise_for_status()
        _begin()
        while True:
            with contextlib.suppress(httpx.HTTPError):
                await client.get(f"{http}/metrics")


# ---- the measure -----------------------------------------------------------------------------------------------------


class Quiet(Driver):
    """An RM that notes the processor time of Muster's event loop with each ask."""

    def watch(self, pid: int) -> None:
        """``pid``: the process whose first thread is the loop."""
        self._used = Path(f"/proc/{pid}/schedstat")
        self.loop_s: list[float] = []
        self.used_at: dict[str, float] = {}

    def used_s(self) -> float:
        return int(self._used.read_text().split()[0]) / 1e9

    async def ask_beside(self, rm: RmClient, prefix: str, duration_s: float) -> dict[str, float]:
        """Like ``ask_on_a_clock``."""
        asks = self.asks(prefix, int(ASKS_PER_S * duration_s))
        self._begin(self.allocated + len(asks))
        self.loop_s.clear()
        began = time.monotonic()
        for number, item in enumerate(asks):
            due = began + number / ASKS_PER_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.due_at[item.allocationKey] = due
            self.used_at[item.allocationKey] = self.used_s()
            await rm.send_asks([item])
        await self._until_reached("allocations")
        loop = {
            f"loop_p{percent}_ms": round(percentile(self.loop_s, percent) * 1_000, 1) for percent in (50, 95, 99, 100)
        }
        return {**self._percentiles(), **loop}

    def _on_allocated(self, items: Sequence[si.Allocation]) -> None:
        now_s = self.used_s()
        self.loop_s += [
            now_s - self.used_at[item.allocationKey] for item in items if item.allocationKey in self.used_at
        ]
        super()._on_allocated(items)


async def allocated_by_neighbour(http: str) -> float:
    """Return the number of allocations of the RM of ``asks`` so far."""
    async with httpx.AsyncClient(timeout=60) as client:
        text = (await client.get(f"{http}/metrics")).text
    name = f'muster_scheduler_allocations_total{{rm="{neighbour_of(QUIET_RM)}"}} '
    return next((float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)), 0.0)


async def measure(deployment: Deployment, seconds: float, only: str) -> dict[str, dict[str, float]]:
    """Measure the quiet RM beside each attack."""
    driver = Quiet(deployment.gateway, QUIET_RM, Shape(nodes=100, asks=20_000, applications=10))
    driver.watch(deployment.processes["up"].pid)
    results: dict[str, dict[str, float]] = {}
    async with driver.client() as rm:
        await driver.set_up(rm)
        await driver.ask_beside(rm, "warm", 1.0)
        results["quiet"] = await driver.ask_beside(rm, "quiet", seconds)
        for name in ATTACKS if not only else (only,):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.perf.neighbours_bench",
                "--attack",
                name,
                deployment.gateway,
                deployment.http,
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ,
            )
            try:
                assert process.stdout is not None
                assert await process.stdout.readline(), "the other process ended"
                before, began_s = await allocated_by_neighbour(deployment.http), time.monotonic()
                results[name] = await driver.ask_beside(rm, name, seconds)
                if name == "asks":
                    more = await allocated_by_neighbour(deployment.http) - before
                    results[name]["neighbour_per_s"] = round(more / (time.monotonic() - began_s))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    return results


async def run(seconds: float, only: str) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as directory:
        deployment = embedded(Path(directory))
        async with deployment.running():
            return await measure(deployment, seconds, only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", choices=ATTACKS, default="")
    parser.add_argument("--attack", nargs=3, metavar=("NAME", "GATEWAY", "HTTP"))
    given = parser.parse_args()
    if given.attack:
        asyncio.run(attack(*given.attack))
        return
    began_s = time.monotonic()
    results = asyncio.run(run(given.seconds, given.only))
    print(json.dumps({"took_s": round(time.monotonic() - began_s, 1), **results}))


if __name__ == "__main__":
    main()
