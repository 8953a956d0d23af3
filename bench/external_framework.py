"""Measures the informer framework, from a source's documents to the embedded log, without core and RM.

    .venv/bin/python -m bench.external_framework --json framework.json

Prints one JSON object:

``listed_s``
    5,000 nodes in one listing, until all are in the store and the handler has had them (``has_synced``).
``synced_s``
    The same, until all of them and the note LIVE are durable.
``blocked_ms``
    The wait of another task of the same event loop meanwhile: p99 and the longest.
``change_us``
    CPU of the process for one change of a node (read, compared, stored, handled, coalesced, encoded, written), by the
    number of changes at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import structlog
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_cli import gc_tuning
from muster_informers.contract import ChangeType, Delta, Document, HandlerContext, Listing
from muster_informers.handlers.default import make_handler
from muster_informers.informer import SharedIndexInformer
from muster_informers.log_cache import LogCache

NODES, CHANGES = 5_000, 20_000
AT_ONCE = (1, 20, 500)


def document(number: int, version: int, used: int) -> Document:
    return {
        "id": f"host-{number:05}",
        "version": version,
        "capacity": {"vcore": 64_000, "memory": "256Gi"},
        "occupied": {"vcore": used, "memory": 8 << 30},
        "attributes": {"zone": "a", "rack": f"rack-{number % 40}"},
    }


class Source:
    """Nodes that change on demand."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[Sequence[Delta]] = asyncio.Queue()

    async def list(self) -> Listing:
        return Listing([document(number, 1, 2_000) for number in range(NODES)], "0")

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        yield []
        while True:
            yield await self.changes.get()
            self.changes.task_done()

    async def close(self) -> None: ...


async def waits(into: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        into.append(now - last)
        last = now


async def measured(place: Path) -> dict[str, Any]:
    clock, topics = SystemClock(), Topics()
    log = make_log(LogSettings(backend="sqlite", sqlite_path=place / "log.db"), clock)
    await log.start()
    writer = await log.writer("external")
    cache = LogCache(
        rm_id="rm",
        partition="default",
        source="hosts",
        life="1",
        topic=topics.requests,
        log_partition=0,
        writer=writer,
        clock=clock,
    )
    source = Source()
    informer = SharedIndexInformer(
        "hosts", source, clock, on_state=lambda state, reason: cache.set_source_state(state, True, reason)
    )
    handler = make_handler(cache, None, HandlerContext("bench", clock))
    informer.add_event_handler(handler, distrust=cache.distrust, ready=cache.ready)
    gc_tuning.freeze()
    blocked: list[float] = []
    probe = asyncio.create_task(waits(blocked))
    # 1. the listing
    began = time.perf_counter()
    tasks = [asyncio.create_task(cache.run()), asyncio.create_task(informer.run())]
    await informer.wait_synced()
    listed_s = time.perf_counter() - began
    await cache.wait_flushed()
    synced_s = time.perf_counter() - began
    probe.cancel()
    blocked.sort()
    figures: dict[str, Any] = {
        "nodes": NODES,
        "listed_s": round(listed_s, 3),
        "synced_s": round(synced_s, 3),
        "blocked_ms": {"p99": round(blocked[len(blocked) * 99 // 100] * 1e3, 2), "max": round(blocked[-1] * 1e3, 2)},
    }
    # 2. changes
    version, change_us = 1, {}
    for at_once in AT_ONCE:
        cpu_s = 0.0
        for start in range(0, CHANGES, 2_000):
            batches = []
            for first in range(start, start + 2_000, at_once):
                version += 1
                batches.append(
                    [
                        Delta(ChangeType.MODIFIED, document((first + n) % NODES, version, 2_000 + version), "0")
                        for n in range(at_once)
                    ]
                )
            began = time.process_time()
            for batch in batches:
                source.changes.put_nowait(batch)
            await source.changes.join()
            await cache.wait_flushed()
            cpu_s += time.process_time() - began
        change_us[str(at_once)] = round(cpu_s / CHANGES * 1e6, 1)
    figures["change_us"] = change_us
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await writer.close()
    await log.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of the median of synced_s is told")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    gc_tuning.collect_young()
    runs = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as place:
            runs.append(asyncio.run(measured(Path(place))))
    median = statistics.median_low(run["synced_s"] for run in runs)
    text = json.dumps(next(run for run in runs if run["synced_s"] == median))
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
