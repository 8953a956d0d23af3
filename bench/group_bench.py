"""Measures the cost of several schedulers and their standbys: one line of JSON for each number of schedulers.

Eight RMs in four partitions ask for 4,000 allocations each, on 200 nodes each, as fast as the log takes them.
``per_s`` counts until the last allocation is visible; it depends on the cores that schedulers, broker and RMs share.
``cpu_us`` is the processor time of all schedulers for one allocation; other work of the machine changes it little.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
import structlog  # noqa: E402
from group_rig import DirectRm, Schedulers, opened  # noqa: E402
from muster_bus.topics import Topics  # noqa: E402
from waiting import eventually  # noqa: E402

PARTITIONS, RMS_EACH = 4, 2
NODES, ROOM = 200, 100
ROUNDS, ASKS = 10, 400
WITHIN_S = 600.0


def ids_of(topics: Topics) -> list[str]:
    """Return RM ids so that each partition has the same number of RMs."""
    found: dict[int, list[str]] = {partition: [] for partition in range(topics.partitions)}
    number = 0
    while any(len(ids) < RMS_EACH for ids in found.values()):
        ids = found[topics.partition_of(f"rm-{number}")]
        if len(ids) < RMS_EACH:
            ids.append(f"rm-{number}")
        number += 1
    return [rm_id for ids in found.values() for rm_id in ids]


def cpu_s(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(bootstrap: str, directory: Path, count: int, standbys: int) -> dict[str, Any]:
    """Runs ``count`` schedulers, each of which follows up to ``standbys`` partitions."""
    async with opened(bootstrap, "several", PARTITIONS) as (settings, log):
        topics, writer = settings.topics(), await log.writer("bench")
        environment = {"MUSTER_SCHEDULER__STANDBY_PARTITIONS": str(standbys)}
        schedulers = Schedulers(directory, settings, count, environment)
        rms = [DirectRm(log, topics, writer, rm_id) for rm_id in ids_of(topics)]

        async def shared() -> bool:
            owned = await schedulers.owned(range(count))
            sizes = [len(each) for each in owned.values()]
            return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

        try:
            schedulers.start(*range(count))
            if standbys:
                await schedulers.settled(list(range(count)), PARTITIONS)
            else:
                await eventually(shared, "the partitions are shared", every_s=0.1)
            await asyncio.gather(*(rm.start(NODES, ROOM) for rm in rms))
            await asyncio.sleep(1.0)
            before, began_s = [cpu_s(process.pid) for process in schedulers.processes], time.monotonic()
            for _ in range(ROUNDS):
                for rm in rms:
                    await rm.ask(ASKS)
            await eventually(lambda: all(rm.waiting == 0 for rm in rms), "all are allocated", WITHIN_S, 0.02)
            took_s = time.monotonic() - began_s
            await asyncio.sleep(2.0)  # standbys fold the rest
            used_s = sum(cpu_s(process.pid) for process in schedulers.processes) - sum(before)
        finally:
            for rm in rms:
                await rm.stop()
            await schedulers.stop()
    total = sum(len(rm.sent) for rm in rms)
    return {
        "schedulers": count,
        "standbys": standbys,
        "allocations": total,
        "per_s": round(total / took_s),
        "cpu_us": round(used_s / total * 1e6),
    }


async def run() -> None:
    directory = servers.session_directory()
    try:
        kafka = servers.find("kafka", directory)
        with tempfile.TemporaryDirectory() as work:
            for count, standbys in ((1, 0), (2, 0), (2, PARTITIONS), (4, 0), (4, PARTITIONS)):
                found = await measure(kafka.address, Path(tempfile.mkdtemp(dir=work)), count, standbys)
                print(json.dumps(found), flush=True)
    finally:
        servers.stop_all(directory)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(run())
