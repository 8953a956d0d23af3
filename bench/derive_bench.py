"""Measures the derivation in events/s: by the pure code, in transactions of the embedded log, by Faust on Kafka.

.venv/bin/python -m bench.derive_bench [--records 100000] [--only pure,embedded,faust] [--json FILE]

The events are those of allocations that begin and end: three events at each end (application, user, node). 1,000
applications in 10 queues make ten allocations a second. The measured ways are usage, fan-out, and both. Faust and the
broker share the machine (tests/servers.py finds one Kafka for all ways). Beside Faust's rate stands the processor time
of its process for each event (Linux), which is more exact on a busy machine. 20,000 records are enough for that. One
JSON line on standard output, the table on standard error.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httpx  # noqa: E402
import servers  # noqa: E402
from muster_bus.clock import SystemClock  # noqa: E402
from muster_bus.log import Log, Record  # noqa: E402
from muster_bus.log_factory import make_log  # noqa: E402
from muster_bus.settings import LogSettings  # noqa: E402
from muster_bus.topics import EVENT_KINDS, Topics  # noqa: E402
from muster_event_publisher.derive.partition_deriver import PartitionDeriver  # noqa: E402
from muster_event_publisher.derive.settings import DeriveSettings  # noqa: E402
from muster_event_publisher.derive.transactional_driver import PlainDerive  # noqa: E402
from muster_proto.si.v1.si_pb2 import EventRecord as E  # noqa: E402
from muster_replay.local_process import LocalProcess, free_ports, muster_command  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from unit.publisher.feeding import START_NS, Feeder, headers  # noqa: E402
from unit.publisher.using import usage_event  # noqa: E402

console = Console(stderr=True)

APPLICATIONS, QUEUES, USERS, NODES, HELD = 1_000, 10, 50, 500, 5_000
WAYS = {"usage": (True, False), "fan-out": (False, True), "both": (True, True)}  # (usage, fan-out)
STALL_S = 60.0  # without progress for so long it will not end by itself
AMOUNTS = {"vcore": 1_000, "memory": 4 << 30}


def events() -> Iterator[bytes]:
    """Yield events without end: first applications, then allocations. Each allocation ends after HELD later ones."""
    at_ns = START_NS
    for app in range(APPLICATIONS):
        yield usage_event(E.QUEUE, E.ADD, E.QUEUE_APP, f"root.q{app % QUEUES}", f"app-{app}", at_ns)
    number = 0
    while True:
        at_ns += 100_000_000
        ends = [(number - HELD, E.REMOVE, E.ALLOC_CANCEL)] if number >= HELD else []
        for key, change, detail in [*ends, (number, E.ADD, E.APP_ALLOC)]:
            app, node, user = key % APPLICATIONS, key % NODES, key % USERS
            name, path = f"app-{app}", f"root.q{app % QUEUES}"
            yield usage_event(E.APP, change, detail, name, f"pod-{key}", at_ns, AMOUNTS)
            yield usage_event(E.USERGROUP, change, E.UG_USER_RESOURCE, f"user-{user}", path, at_ns, AMOUNTS)
            yield usage_event(E.NODE, change, E.NODE_ALLOC, f"node-{node}", f"pod-{key}", at_ns, AMOUNTS)
        number += 1


def some(count: int) -> list[Record]:
    source = events()
    return [Record("si.events.v1", 0, n, 0, b"rm", next(source), headers("rm", n)) for n in range(count)]


def pure(records: list[Record], usage: bool, fan_out: bool) -> float:
    topics, batch = Topics(partitions=1, derived=True), DeriveSettings().batch_records_max
    deriver = PartitionDeriver(topics, 0, window_s=60, refresh_windows=60, fan_out=fan_out, usage=usage)
    began = time.perf_counter()
    for start in range(0, len(records), batch):
        deriver.derive(records[start : start + batch])
        deriver.flush()
    return time.perf_counter() - began


async def feed(log: Log, topics: Topics, records: list[Record]) -> None:
    feeder = Feeder(log, topics)
    for start in range(0, len(records), 1_000):
        part = records[start : start + 1_000]
        await feeder.write("rm", [(record.value or b"", record.headers) for record in part])


async def embedded(records: list[Record], usage: bool, fan_out: bool) -> float:
    with tempfile.TemporaryDirectory() as directory:
        settings = LogSettings(backend="sqlite", sqlite_path=Path(directory, "log.db"), partitions=1)
        log, topics = make_log(settings, SystemClock()), settings.topics()
        await log.start()
        await feed(log, topics, records)
        wanted = DeriveSettings(usage=usage, fan_out=fan_out, processor_share=1.0)
        derive = PlainDerive(wanted, log, topics, SystemClock())
        began = time.perf_counter()
        await derive.start()
        await caught_up(log, topics, len(records), usage, lambda: None)
        took_s = time.perf_counter() - began
        await derive.stop()
        await log.close()
        return took_s


async def faust(records: list[Record], usage: bool, fan_out: bool, bootstrap: str) -> tuple[float, float]:
    """Return the duration and the processor time."""
    prefix = f"b{uuid4().hex}."
    settings = LogSettings(backend="kafka", kafka_bootstrap_servers=bootstrap, topic_prefix=prefix, partitions=1)
    log, topics = make_log(settings, SystemClock()), settings.topics()
    await log.start()
    await feed(log, topics, records)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        process = LocalProcess(
            muster_command("derive", "--http-address", f"127.0.0.1:{port}"),
            Path(directory, "derive.log"),
            {
                "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": bootstrap,
                "MUSTER_LOG__TOPIC_PREFIX": prefix,
                "MUSTER_LOG__PARTITIONS": "1",
                "MUSTER_DERIVE__USAGE": str(usage).lower(),
                "MUSTER_DERIVE__FAN_OUT": str(fan_out).lower(),
            },
        )

        def must_run() -> None:
            if not process.running:
                raise RuntimeError(process.log_tail())

        process.start()
        try:
            async with httpx.AsyncClient() as http:
                while True:
                    must_run()
                    with contextlib.suppress(httpx.HTTPError):
                        if (await http.get(f"http://127.0.0.1:{port}/health", timeout=2)).status_code == 200:
                            break
                    await asyncio.sleep(0.02)
            cpu_s, began = cpu_seconds(process.pid), time.perf_counter()
            await caught_up(log, topics, len(records), usage, must_run)
            return time.perf_counter() - began, cpu_seconds(process.pid) - cpu_s
        finally:
            process.kill()
            await log.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def caught_up(log: Log, topics: Topics, count: int, usage: bool, look: Callable[[], None]) -> None:
    """Wait until the last event has arrived: in the mark of usage, or in its topic.

    :param look: raises an error if the process has failed.
    """
    last = b"%d" % (count - 1)
    names = [topics.usage] if usage else [topics.events_of(kind) for kind in EVENT_KINDS]
    readers = [await log.reader(name, 0) for name in names]
    came_s = time.monotonic()
    try:
        while True:
            look()
            for reader in readers:
                for record in await reader.read(10_000, 0.01):
                    came_s = time.monotonic()
                    if dict(record.headers)["id"] == last:
                        return
            if time.monotonic() - came_s > STALL_S:
                raise RuntimeError(f"nothing more came for {STALL_S:.0f} s")
    finally:
        for one in readers:
            await one.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--only", default="pure,embedded,faust")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    records = some(given.records)
    figures: dict[str, Any] = {"records": given.records}
    table = Table("", *WAYS, title=f"events derived from, per second ({given.records:,} events)")
    with tempfile.TemporaryDirectory() as directory:
        try:
            for place in given.only.split(","):
                row = []
                for way, (usage, fan_out) in WAYS.items():
                    name, shown = f"{place}_{way.replace('-', '_')}", ""
                    if place == "pure":
                        took_s = await asyncio.to_thread(pure, records, usage, fan_out)
                    elif place == "embedded":
                        took_s = await embedded(records, usage, fan_out)
                    else:
                        bootstrap = (await asyncio.to_thread(servers.find, "kafka", Path(directory))).address
                        took_s, cpu_s = await faust(records, usage, fan_out, bootstrap)
                        figures[f"{name}_cpu_us"] = round(cpu_s / given.records * 1e6)
                        shown = f" ({figures[f'{name}_cpu_us']} µs each)"
                    figures[f"{name}_per_s"] = round(given.records / took_s)
                    row.append(f"{given.records / took_s:,.0f}{shown}")
                    console.print(f"{place}, {way}: {row[-1]}")
                table.add_row(place, *row)
        finally:
            servers.stop_all(Path(directory))
    console.print(table)
    line = json.dumps(figures)
    print(line)
    if given.json is not None:
        given.json.write_text(line + "\n")


if __name__ == "__main__":
    asyncio.run(main())
