"""Measures what it costs a read to wait for the newest position.

.venv/bin/python -m bench.positions_bench [--form FORM …] [--rounds 3] [--seconds 20] [--reads-per-s 50] [--quick]
    [--json FILE]

Standard output carries one JSON object, standard error the progress. Forms as in ``view_bench.py``: ``embedded`` and
``kafka``. 1,000 nodes, 10,000 allocations. An RM sends 5,000 asks/s, 50 in a message. Beside it, in the same process,
readers ask the gateway's REST on a clock that does not wait for answers: a queue at the view, and one event at the
publisher, each in turns without a position and with the newest one that the RM has (``RmClient.position``). So the
client process pays for both; what a position costs is the difference.

A latency counts from a request's due time to the last byte of its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
from muster_client import RmClient  # noqa: E402
from muster_replay.accounts import percentile  # noqa: E402
from rich.console import Console  # noqa: E402

from bench.driver import Driver, Shape  # noqa: E402
from bench.results import put  # noqa: E402
from bench.scenarios_bench import machine  # noqa: E402
from bench.view_bench import (  # noqa: E402
    ASKS_PER_S,
    ask_in_messages,
    cpu_percent,
    cpu_seconds,
    deploy,
    release,
    set_up,
)

console = Console(stderr=True)

FORMS = ("embedded", "kafka")
_KINDS = {
    "view": "/ws/v1/partition/default/queue/root.q0",
    "events": "/ws/v1/events/batch?count=1",
}
_TIMEOUT_S = 60.0


class Reads:
    """Reads on a clock.

    :ivar latencies_s: by kind, and whether the read had a position.
    """

    def __init__(self, http: str, rm_id: str, session: aiohttp.ClientSession) -> None:
        self._http, self._rm_id, self._session = http, rm_id, session
        self.latencies_s: dict[tuple[str, bool], list[float]] = defaultdict(list)
        self.statuses: Counter[int] = Counter()

    async def read(self, kind: str, due: float, after: str) -> None:
        path = _KINDS[kind]
        url = f"{self._http}{path}{'&' if '?' in path else '?'}rm={self._rm_id}"
        async with self._session.get(url, headers={"Muster-After": after} if after else {}) as answer:
            await answer.read()
        self.statuses[answer.status] += 1
        self.latencies_s[kind, bool(after)].append(time.monotonic() - due)

    async def on_a_clock(self, rm: RmClient, per_s: float, seconds: float) -> None:
        began, reads = time.monotonic(), set[asyncio.Task[None]]()
        for number in range(int(per_s * seconds)):
            due = began + number / per_s
            await asyncio.sleep(max(due - time.monotonic(), 0))
            kind = tuple(_KINDS)[number // 2 % len(_KINDS)]
            task = asyncio.create_task(self.read(kind, time.monotonic(), rm.position if number % 2 else ""))
            reads.add(task)
            task.add_done_callback(reads.discard)
        await asyncio.gather(*reads)

    def found(self) -> dict[str, Any]:
        result: dict[str, Any] = {"statuses": {str(status): count for status, count in self.statuses.items()}}
        for (kind, has_position), values in sorted(self.latencies_s.items()):
            which = "with_position" if has_position else "without"
            figures = {f"p{percent}_ms": round(percentile(values, percent) * 1e3, 2) for percent in (50, 99)}
            result.setdefault(kind, {})[which] = {"reads": len(values), **figures}
        return result


async def measured(form: str, place: Path, addresses: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures one form."""
    deployment, rm_id = deploy(form, place, addresses), "bench-positions"
    driver = Driver(deployment.gateway, rm_id, Shape(nodes=arguments.nodes))
    runs: list[dict[str, Any]] = []
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with deployment.running(), driver.client() as rm, aiohttp.ClientSession(timeout=timeout) as session:
        await set_up(driver, rm, int(ASKS_PER_S * arguments.seconds))
        for number in range(arguments.rounds):
            reads, before, began = Reads(deployment.http, rm_id, session), cpu_seconds(deployment), time.monotonic()
            asked, _ = await asyncio.gather(
                ask_in_messages(driver, rm, f"p{number}", arguments.seconds),
                reads.on_a_clock(rm, arguments.reads_per_s, arguments.seconds),
            )
            cpu = cpu_percent(before, cpu_seconds(deployment), time.monotonic() - began)
            runs.append({**reads.found(), "asks": asked, "cpu_percent": cpu})
            console.print(f"{form}: {runs[-1]}")
            await release(driver, rm, f"p{number}", int(ASKS_PER_S * arguments.seconds))
    medians = {
        kind: {
            which: {name: statistics.median(run[kind][which][name] for run in runs) for name in ("p50_ms", "p99_ms")}
            for which in ("without", "with_position")
        }
        for kind in _KINDS
    }
    return {**medians, "rounds": runs}


def main() -> None:
    """Parses the arguments and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--reads-per-s", type=float, default=50.0)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.nodes = 1, 4.0, 100
    forms = arguments.form or FORMS
    result: dict[str, Any] = {"machine": machine(), "asks_per_s": ASKS_PER_S, "reads_per_s": arguments.reads_per_s}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        addresses: dict[str, str] = {}
        if "kafka" in forms:
            directory = servers.session_directory()
            stack.callback(servers.stop_all, directory)
            addresses = {kind: servers.find(kind, directory).address for kind in ("redis", "kafka")}
        for form in forms:
            result[form] = asyncio.run(measured(form, work / form, addresses, arguments))
    put(result, arguments.json)


if __name__ == "__main__":
    main()
