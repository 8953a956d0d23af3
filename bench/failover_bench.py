"""Measures the time without decisions when a scheduler dies or stops: one line of JSON.

One RM with many nodes and live allocations, asks at a fixed rate, and two schedulers as processes. All asks are written
to the log, and an allocation counts when its response is visible there. For each round:

kill    ``kill -9`` of the owner. ``first_s``: from the kill to the first allocation that the other scheduler makes.
        ``noticed_s``: until the group has shared out anew, after the session time-out. ``after_notice_s``: the rest.
stop    SIGTERM of the owner. ``gap_s``: the longest time between two allocations around the hand-over, and
        ``slowest_s`` the slowest ask.

Before each round both schedulers run, and the standby is warm. ``cold`` is a kill without standbys, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
import structlog  # noqa: E402
from group_rig import DirectRm, Schedulers, opened  # noqa: E402
from muster_bus.log import Log  # noqa: E402
from muster_bus.settings import LogSettings  # noqa: E402
from waiting import eventually  # noqa: E402

PARTITIONS = 1
RATE_PER_S = 100
_SHARED = re.compile(r'"event": "group.shared".*"timestamp": "([^"]+)"')


class Rounds:
    """Two schedulers and one RM.

    :ivar owner: the scheduler that decides.
    """

    def __init__(self, schedulers: Schedulers, rm: DirectRm) -> None:
        self.schedulers, self.rm = schedulers, rm
        self.owner = 0

    async def load(self) -> None:
        while True:
            await self.rm.ask()
            await asyncio.sleep(1 / RATE_PER_S)

    async def ready(self, *, warm: bool) -> None:
        """Wait until one scheduler owns and the other follows."""

        async def look() -> bool:
            answers = [await self.schedulers.health(number) for number in (0, 1)]
            if any(answer.get("status") != "ready" for answer in answers):
                return False
            facts = [answer["scheduler"] for answer in answers]
            owners = [number for number in (0, 1) if facts[number]["partitions"]]
            if len(owners) != 1 or (warm and not facts[1 - owners[0]]["warm"]):
                return False
            self.owner = owners[0]
            return True

        await eventually(look, "an owner and a standby", within_s=600.0, every_s=0.1)
        rm = self.rm
        await eventually(lambda: rm.waiting < RATE_PER_S // 4, "the load is followed", within_s=600.0)
        await asyncio.sleep(1.0)

    async def kill(self) -> dict[str, float]:
        other = 1 - self.owner
        size = self.schedulers.processes[other].log_file.stat().st_size
        began_s, began = time.monotonic(), time.time()
        await asyncio.to_thread(self.schedulers.processes[self.owner].kill)
        first_s = await self._first_after(began_s, began_s)
        text = self.schedulers.processes[other].log_file.read_bytes()[size:].decode(errors="replace")
        shared = _SHARED.search(text)
        assert shared is not None, text
        noticed_s = datetime.fromisoformat(shared[1]).timestamp() - began
        self.schedulers.start(self.owner)
        return {"first_s": first_s, "noticed_s": noticed_s, "after_notice_s": first_s - noticed_s}

    async def stop(self) -> dict[str, float]:
        began_s = time.monotonic()
        code = await asyncio.to_thread(self.schedulers.processes[self.owner].stop, 60.0)
        stopped_s = time.monotonic()
        await self._first_after(stopped_s, began_s)
        await asyncio.sleep(0.5)
        ended_s = time.monotonic()
        times = sorted(at for at in self.rm.allocated.values() if began_s - 0.5 <= at <= ended_s)
        asked = [(key, at) for key, at in self.rm.sent.items() if began_s - 0.5 <= at <= ended_s - 0.5]
        self.schedulers.start(self.owner)
        return {
            "gap_s": max(after - before for before, after in pairwise(times)),
            "slowest_s": max(self.rm.allocated.get(key, ended_s) - at for key, at in asked),
            "stopped_s": stopped_s - began_s,
            "exit_code": float(code),
        }

    async def _first_after(self, sent_s: float, began_s: float) -> float:
        """Return when the first ask sent after this time had its allocation, in seconds since the beginning."""
        rm = self.rm

        def look() -> float:
            times = [rm.allocated[key] for key, at in reversed(rm.sent.items()) if at > sent_s and key in rm.allocated]
            return min(times, default=0.0)

        found: float = await eventually(look, "an allocation", within_s=600.0)
        return found - began_s


async def measure(
    settings: LogSettings, log: Log, directory: Path, nodes: int, allocations: int, rounds: int
) -> dict[str, Any]:
    """Runs all rounds on a state of this size."""
    topics = settings.topics()
    found: dict[str, Any] = {"nodes": nodes, "allocations": allocations, "rate_per_s": RATE_PER_S}
    rm = DirectRm(log, topics, await log.writer("bench"), "rm")
    for kind in ("warm", "cold"):
        standbys = {} if kind == "warm" else {"MUSTER_SCHEDULER__STANDBY_PARTITIONS": "0"}
        schedulers = Schedulers(directory / kind, settings, 2, standbys)
        (directory / kind).mkdir()
        here = Rounds(schedulers, rm)
        load: asyncio.Task[None] | None = None
        try:
            schedulers.start(0)
            if kind == "warm":
                await rm.start(nodes, allocations // nodes + 100)
                for _ in range(allocations // 1000):
                    await rm.ask(1000)
                await eventually(lambda: rm.waiting == 0, "all are allocated", within_s=600.0, every_s=0.1)
                began_s = time.monotonic()
            schedulers.start(1)
            load = asyncio.create_task(here.load())
            await here.ready(warm=kind == "warm")
            if kind == "warm":
                found["warm_after_s"] = round(time.monotonic() - began_s, 1)
            kills = []
            for _ in range(rounds if kind == "warm" else 1):
                kills.append(await here.kill())
                await here.ready(warm=kind == "warm")
            found["kill" if kind == "warm" else "cold"] = _medians(kills)
            if kind == "warm":
                stops = []
                for _ in range(rounds):
                    stops.append(await here.stop())
                    await here.ready(warm=True)
                found["stop"] = _medians(stops)
        except BaseException:
            print(schedulers.logs(), file=sys.stderr)
            raise
        finally:
            if load is not None:
                load.cancel()
            await schedulers.stop()
    await rm.stop()
    assert set(rm.answers.values()) == {1}, "an ask was answered twice"
    found["asks"], found["unanswered"] = len(rm.sent), rm.waiting
    return found


def _medians(rounds: list[dict[str, float]]) -> dict[str, Any]:
    names = rounds[0]
    return {name: round(median(each[name] for each in rounds), 3) for name in names} | {
        f"worst_{name}": round(max(each[name] for each in rounds), 3) for name in names if name != "exit_code"
    }


async def run(nodes: int, allocations: int, rounds: int) -> dict[str, Any]:
    directory = servers.session_directory()
    try:
        kafka = servers.find("kafka", directory)
        with tempfile.TemporaryDirectory() as work:
            async with opened(kafka.address, "failover", PARTITIONS) as (settings, log):
                return await measure(settings, log, Path(work), nodes, allocations, rounds)
    finally:
        servers.stop_all(directory)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--nodes", type=int, default=10_000)
    arguments.add_argument("--allocations", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print(json.dumps(asyncio.run(run(given.nodes, given.allocations, given.rounds))))


if __name__ == "__main__":
    main()
