"""Exports events from a real Kafka to PostgreSQL, Parquet and JSON lines; then kills the publisher in the middle.

.venv/bin/python -m bench.export_bench [--records 1000000] [--kills 5] [--stores parquet,jsonl] [--json FILE]

The events are on the log before the start. 1. Each store alone, with a new publisher: records/s from its first answer
until everything is durable, and its processor time. 2. All stores at once, with ``kill -9`` several times. Then the
rows of each store are counted, and the distinct (RM, instance, id). Publisher, broker and database share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
from chaos.exporting import STORES, Exported  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

console = Console(stderr=True)

# The default settings, but for the last file's wait.
OPTIONS = {"parquet": {"roll_s": 2.0}, "jsonl": {"roll_s": 2.0}}


async def measure(exported: Exported, stores: list[str]) -> dict[str, Any]:
    """Measure all stores on one topic."""
    timeout_s = 120 + exported.events / 1_000
    console.print(f"writing {exported.events:,} events to Kafka …")
    fed_s = await exported.feed()
    alone: dict[str, dict[str, Any]] = {}
    for store in stores:
        console.print(f"exporting to {store} …")
        publisher = exported.publisher([store])
        publisher.process.start()
        try:
            seconds = (await publisher.until(None, timeout_s))[store]
            cpu_s = publisher.cpu_s()
        finally:
            publisher.process.stop()
        rows, distinct, ids = await exported.rows(store)
        alone[store] = {
            "records_per_s": round(exported.events / seconds),
            "seconds": round(seconds, 1),
            "publisher_cpu_s": round(cpu_s, 1),
            "rows": rows,
            "distinct": distinct,
            "exact": (rows, distinct, ids) == exported.expected,
        }
    return {"written_per_s": round(exported.events / fed_s), "alone": alone}


async def killed(exported: Exported, stores: list[str], kills: int) -> dict[str, Any]:
    """Measure all stores at once, with kills in the middle."""
    timeout_s = 120 + exported.events / 500
    console.print(f"exporting to {', '.join(stores)} with kill -9, {kills} times …")
    publisher = exported.publisher(stores)
    at: list[dict[str, int]] = []
    try:
        for _ in range(kills):
            publisher.process.start()
            await publisher.until(int(0.8 * exported.events / (kills + 1)), timeout_s)
            figures = await publisher.figures() or {}
            publisher.process.kill()
            at.append(
                {
                    store: int(values.get("muster_publisher_exported_events_total", 0))
                    for store, values in figures.items()
                }
            )
        publisher.process.start()
        await publisher.until(None, timeout_s)
    finally:
        publisher.process.stop()
    found: dict[str, Any] = {"kills": kills, "exported_in_each_life": at}
    for store in stores:
        rows, distinct, ids = await exported.rows(store)
        found[store] = {"rows": rows, "distinct": distinct, "exact": (rows, distinct, ids) == exported.expected}
    return found


async def run(records: int, kills: int, stores: list[str], kafka: str, postgres: str, folder: Path) -> dict[str, Any]:
    (folder / "alone").mkdir()
    exported = Exported(kafka, postgres, folder / "alone", records, options=OPTIONS)
    try:
        found = await measure(exported, stores)
        await exported.clear()
        exported.folder = folder / "killed"
        exported.folder.mkdir()
        found["killed"] = await killed(exported, stores, kills)
    finally:
        await exported.clear()
    return {"records": records, "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}", **found}


def show(found: dict[str, Any]) -> None:
    table = Table(
        "store", "records/s", "s", "CPU of the publisher, s", "rows", f"rows after {found['killed']['kills']} x kill -9"
    )
    for store, figures in found["alone"].items():
        after = found["killed"][store]
        table.add_row(
            store, f"{figures['records_per_s']:,}", f"{figures['seconds']}", f"{figures['publisher_cpu_s']}",
            f"{figures['rows']:,}{'' if figures['exact'] else ' WRONG'}",
            f"{after['rows']:,}, distinct {after['distinct']:,}{'' if after['exact'] else ' WRONG'}",
        )  # fmt: skip
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--json", type=Path, help="also writes the figures there")
    given = parser.parse_args()
    stores = [store for store in given.stores.split(",") if store]
    if unknown := set(stores) - set(STORES):
        parser.error(f"--stores {', '.join(sorted(unknown))}: expected some of {', '.join(STORES)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-export-")))
        directory = folder / "servers"
        stack.callback(servers.stop_all, directory)
        try:
            kafka, postgres = (servers.find(kind, directory).address for kind in ("kafka", "postgres"))
        except servers.NoServer as error:
            console.print(str(error))
            return 1
        found = asyncio.run(run(given.records, given.kills, stores, kafka, postgres, folder))
    show(found)
    print(json.dumps(found))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    exact = [figures["exact"] for figures in found["alone"].values()] + [
        found["killed"][store]["exact"] for store in stores
    ]
    return 0 if all(exact) else 1


if __name__ == "__main__":
    sys.exit(main())
