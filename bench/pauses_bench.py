"""Measures the longest pauses of the deciding loop at a steady rate, with what ran in each. A table, and JSON.

.venv/bin/python -m bench.pauses_bench [--minutes 60] [--asks-per-s 500] [--nodes 1000] [--json FILE]

An RM with 1,000 nodes and 100 applications sends single asks on a fixed clock, and releases each allocation 20 s after
it came. Once in ten minutes (or a sixth of the time) it leaves, comes back and registers anew with all of it, as an RM
that restarts. A pause is one callback of the loop (``pauses.py``): nothing is decided while it runs. Its length is
given by the clock and in processor time of the loop's thread: on a busy machine the clock's are longer.

``ask_ms`` are the times from ask to allocation as the RM has them, in which several pauses may follow each other; those
of asks that wait for the RM's own registration do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.harness import embedded  # noqa: E402
from muster_client import Callbacks, RmClient, ask, release  # noqa: E402
from muster_proto.si.v1 import si_pb2 as si  # noqa: E402
from muster_replay.accounts import percentile  # noqa: E402

from bench.driver import CORES_MILLI, MEMORY_BYTES, Driver, Shape, queue_config  # noqa: E402
from bench.pauses import Pause, note_pauses  # noqa: E402
from bench.results import put  # noqa: E402
from bench.scenarios_bench import console, machine  # noqa: E402

_OUT = "MUSTER_PAUSES_OUT"
LIVES_S = 20.0
SHOWN = 25
_QUANTITIES = {"vcore": CORES_MILLI, "memory": MEMORY_BYTES}


@dataclass(slots=True)
class Load:
    """The RM: asks on a clock, releases later."""

    gateway: str
    shape: Shape
    asks_per_s: float
    asked: int = 0
    due_s: dict[str, float] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)
    living: deque[tuple[float, str, str]] = field(default_factory=deque)

    def _allocated(self, items: Sequence[si.Allocation]) -> None:
        now_s = time.monotonic()
        for each in items:
            due_s = self.due_s.pop(each.allocationKey, None)
            if due_s is not None:
                self.took_s.append(now_s - due_s)
                self.living.append((now_s + LIVES_S, each.applicationID, each.allocationKey))

    async def life(self, seconds: float) -> None:
        """Runs from a registration to a disconnection."""
        driver = Driver(self.gateway, "bench-pauses", self.shape)
        callbacks = driver.callbacks()
        callbacks = Callbacks(
            on_allocated=self._allocated, on_application=callbacks.on_application, on_node=callbacks.on_node
        )
        config = queue_config(self.shape.queues)
        async with RmClient(self.gateway, "bench-pauses", config=config, callbacks=callbacks) as rm:
            await driver.set_up(rm)
            began_s = time.monotonic()
            for number in range(round(seconds * self.asks_per_s)):
                due_s = began_s + number / self.asks_per_s
                if (wait_s := due_s - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                key = f"a-{self.asked}"
                self.asked += 1
                self.due_s[key] = due_s
                await rm.send_asks([ask(key, f"app-{number % self.shape.applications}", _QUANTITIES)])
                await self._release(rm)
        self.due_s.clear()
        self.living.clear()

    async def _release(self, rm: RmClient) -> None:
        now_s, due = time.monotonic(), []
        while self.living and self.living[0][0] <= now_s:
            _, app_id, key = self.living.popleft()
            due.append(release(app_id, key))
        if due:
            await rm.send_releases(due)


def be_noted() -> None:
    """Runs Muster with this process's arguments, and notes its pauses."""
    from muster_cli.main import main as muster

    note_pauses(Path(os.environ[_OUT]))
    muster()


async def measure(minutes: float, load: Load, work: Path) -> dict[str, Any]:
    out = work / "pauses.json"
    deployment = embedded(work, {_OUT: str(out)})
    deployment.processes["up"].command[:1] = [sys.executable, str(Path(__file__))]
    async with deployment.running():
        os.kill(deployment.processes["up"].pid, signal.SIGUSR1)  # without its start
        load.gateway = deployment.gateway
        began_s, life_s = time.monotonic(), min(600.0, 10 * minutes)
        while (left_s := 60 * minutes - (time.monotonic() - began_s)) > 1:
            await load.life(min(life_s, left_s))
            console.print(f"{time.monotonic() - began_s:.0f} s, {load.asked:,} asks", highlight=False)
    took_ms = [1e3 * each for each in load.took_s]
    return {
        **json.loads(out.read_text()),
        "asked": load.asked,
        "ask_ms": {
            **{f"p{each:g}": round(percentile(took_ms, each), 2) for each in (50, 99, 99.9)},
            "longest": round(max(took_ms), 1),
        },
    }


def table(found: dict[str, Any], shown: int = SHOWN) -> str:
    """Returns the longest pauses as Markdown, by processor time and by the clock."""
    lines = []
    for way, name in (("By processor time", "by_processor"), ("By the clock", "by_clock")):
        lines += [f"{way}:", "", *rows(found[name], shown), ""]
    lines.append(f"{found['steps']:,} steps; {found['full_collections']} full collections; from ask to allocation: ")
    lines[-1] += ", ".join(f"{name} {ms} ms" for name, ms in found["ask_ms"].items()) + f" ({found['asked']:,} asks)."
    return "\n".join(lines)


def rows(longest: list[Pause], shown: int) -> list[str]:
    """Returns pauses as a table."""
    lines = ["| at, s | ms | processor, ms | what ran | in | garbage collections |", "|---:|---:|---:|---|---|---|"]
    for each in longest[:shown]:
        collected = ", ".join(f"{('young', 'middle', 'full')[which]} {ms} ms" for which, ms in each["collections"])
        place = each["where"][0] if each["where"] else ""
        lines.append(
            f"| {each['at_s']:.0f} | {each['ms']} | {each['cpu_ms']} | `{each['what']}` | `{place}` | {collected} |"
        )
    kinds = Counter(each["what"] for each in longest)
    lines += [
        "",
        f"Of the {len(longest)} longest: " + ", ".join(f"{many} `{what}`" for what, many in kinds.most_common()),
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--asks-per-s", type=float, default=500.0)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--json", type=Path, help="where the result goes, beside the table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    # (The nodes have room for what lives at once, and for three times as much.)
    shape = Shape(nodes=options.nodes, asks=round(4 * LIVES_S * options.asks_per_s))
    with tempfile.TemporaryDirectory(prefix="muster-pauses-") as work:
        found = asyncio.run(measure(options.minutes, Load("", shape, options.asks_per_s), Path(work)))
    print(table(found))
    if options.json is not None:
        at = {"measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine()}
        put({**at, "minutes": options.minutes, **found}, options.json)
    return 0


if __name__ == "__main__":
    if _OUT in os.environ:
        be_noted()
    else:
        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(main())
