"""Events through a real Kafka, by a publisher in a process of its own, to every store; and what is in the stores."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from history_files import rows_of
from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_bus.topics import HEADER_EVENT_ID, HEADER_INSTANCE, HEADER_RM_ID, HEADER_TRACKING
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource
from muster_replay.local_process import LocalProcess, free_ports, muster_command

STORES = ("postgres", "parquet", "jsonl")
POLL_S = 0.1
_CHUNK = 5_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r'^(muster_publisher_export\w+)\{(?:partition="\d+",)?sink="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE)


@dataclass
class Exported:
    """A topic of events on Kafka, and stores of its own.

    :param rms: how many RMs the events are of.
    :param options: of each store, beside where it is.
    """

    kafka: str
    postgres: str
    folder: Path
    events: int
    rms: int = 6
    partitions: int = 4
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = f"export-{secrets.token_hex(4)}"
        self.log_settings = LogSettings(
            backend="kafka",
            kafka_bootstrap_servers=self.kafka,
            topic_prefix=f"{self.prefix}.",
            partitions=self.partitions,
        )

    @property
    def schema(self) -> str:
        return self.prefix.replace("-", "_")

    async def feed(self) -> float:
        """Writes the events; gives the seconds that it took."""
        log, topics = make_log(self.log_settings, SystemClock()), self.log_settings.topics()
        await log.start()
        began = time.monotonic()
        try:
            writer = await log.writer("feed")
            per_rm = [self.events // self.rms + (number < self.events % self.rms) for number in range(self.rms)]
            next_ids = [0] * self.rms
            while any(next_id < count for next_id, count in zip(next_ids, per_rm, strict=True)):
                for number in range(self.rms):
                    rm_id = f"rm-{number}"
                    partition = topics.partition_of(rm_id)
                    tail = (
                        (HEADER_RM_ID, rm_id.encode()),
                        (HEADER_INSTANCE, f"instance-{number}".encode()),
                        (HEADER_TRACKING, b"1"),
                    )
                    last = None
                    for event_id in range(next_ids[number], min(next_ids[number] + _CHUNK, per_rm[number])):
                        headers = ((HEADER_EVENT_ID, b"%d" % event_id), *tail)
                        await writer.wait_writable()
                        last = writer.append(
                            OutRecord(topics.events, partition, rm_id.encode(), event_of(event_id), headers)
                        )
                        next_ids[number] = event_id + 1
                    if last is not None:
                        await last
            await writer.close()
        finally:
            await log.close()
        return time.monotonic() - began

    def publisher(self, stores: Sequence[str], name: str = "publisher") -> Publisher:
        """A publisher that exports to these stores; not started."""
        (port,) = free_ports(1)
        places: dict[str, dict[str, Any]] = {
            "postgres": {"dsn": self.postgres, "schema": self.schema},
            "parquet": {"location": str(self.folder / "parquet")},
            "jsonl": {"location": str(self.folder / "jsonl")},
        }
        sinks = {store: {**places[store], **self.options.get(store, {})} for store in stores}
        environment = {
            "MUSTER_LOG__BACKEND": "kafka",
            "MUSTER_LOG__KAFKA_BOOTSTRAP_SERVERS": self.kafka,
            "MUSTER_LOG__TOPIC_PREFIX": f"{self.prefix}.",
            "MUSTER_LOG__PARTITIONS": str(self.partitions),
            "MUSTER_PUBLISHER__HTTP_ADDRESS": f"127.0.0.1:{port}",
            "MUSTER_PUBLISHER__GRPC_ADDRESS": "",
            "MUSTER_PUBLISHER__SINKS": json.dumps(sinks),
        }
        process = LocalProcess(muster_command("event-publisher"), self.folder / f"{name}.log", environment)
        return Publisher(process, f"http://127.0.0.1:{port}", tuple(stores))

    async def rows(self, store: str) -> tuple[int, int, int]:
        """Rows, distinct events and the sum of all ids in a store."""
        if store == "postgres":
            connection = await asyncpg.connect(self.postgres)
            try:
                row = await connection.fetchrow(
                    f"select count(*), count(distinct (rm, instance, id)), sum(id)::bigint from {self.schema}.events"
                )
            finally:
                await connection.close()
            return tuple(row)
        read = "read_parquet" if store == "parquet" else "read_json"
        suffix = "parquet" if store == "parquet" else "jsonl.zst"
        query = (
            "select count(*), count(distinct (rm, instance, id)), sum(id)::bigint"
            f" from {read}('{self.folder / store}/**/*.{suffix}')"
        )
        [(rows, events, id_sum)] = await asyncio.to_thread(rows_of, query)
        return rows, events, id_sum

    @property
    def expected(self) -> tuple[int, int, int]:
        per_rm = [self.events // self.rms + (number < self.events % self.rms) for number in range(self.rms)]
        return self.events, self.events, sum(count * (count - 1) // 2 for count in per_rm)

    async def clear(self) -> None:
        connection = await asyncpg.connect(self.postgres)
        await connection.execute(f"drop schema if exists {self.schema} cascade")
        await connection.close()


@dataclass
class Publisher:
    process: LocalProcess
    url: str
    stores: tuple[str, ...]

    async def figures(self) -> dict[str, dict[str, float]] | None:
        """The export figures of each store, summed over partitions; None while it does not answer."""
        try:
            async with httpx.AsyncClient(timeout=60) as http:
                text = (await http.get(f"{self.url}/metrics")).text
        except httpx.HTTPError:
            assert self.process.running, self.process.log_tail()
            return None
        found: dict[str, dict[str, float]] = {store: {} for store in self.stores}
        for name, store, value in _SAMPLE.findall(text):
            figures = found.setdefault(store, {})
            figures[name] = figures.get(name, 0.0) + float(value)
        return found

    async def health(self) -> dict[str, Any]:
        """What its /health says; {} if it does not answer."""
        try:
            async with httpx.AsyncClient(timeout=5) as http:
                found = (await http.get(f"{self.url}/health")).json()
        except httpx.HTTPError:
            return {}
        assert isinstance(found, dict)
        return found

    def send(self, what: signal.Signals) -> None:
        os.kill(self.process.pid, what)

    async def until(self, exported: int | None, timeout_s: float) -> dict[str, float]:
        """Waits until some store took so many events in this life, or (None) all are there in every store.

        Gives when each store had everything, in seconds from the first answer.
        """
        began: float | None = None
        done: dict[str, float] = {}
        async with asyncio.timeout(timeout_s):
            while True:
                figures = await self.figures()
                if figures is not None:
                    began = time.monotonic() if began is None else began
                    for store, values in figures.items():
                        lag = values.get("muster_publisher_export_lag_offsets")
                        if lag == 0 and values.get("muster_publisher_exported_events_total", 0) > 0:
                            done.setdefault(store, time.monotonic() - began)
                    most = max(values.get("muster_publisher_exported_events_total", 0) for values in figures.values())
                    if len(done) == len(self.stores) or (exported is not None and most >= exported):
                        return done
                await asyncio.sleep(POLL_S)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def event_of(number: int) -> bytes:
    """An event out of a batch workload's mix: half about applications, half about nodes; 100 allocations each."""
    app, key = f"application-{number // 400:08d}", f"allocation-{number // 2:010d}"
    add = number % 4 < 2
    return EventRecord(
        type=EventRecord.APP if number % 2 == 0 else EventRecord.NODE,
        objectID=app if number % 2 == 0 else f"node-{number // 2 % 1000:04d}",
        referenceID=key,
        timestampNano=1_750_000_000_000_000_000 + number * 50_000_000,
        eventChangeType=EventRecord.ADD if add else EventRecord.REMOVE,
        eventChangeDetail=(EventRecord.APP_ALLOC if add else EventRecord.ALLOC_CANCEL)
        if number % 2 == 0
        else EventRecord.NODE_ALLOC,
        resource=Resource(resources={"vcore": Quantity(value=1_000), "memory": Quantity(value=4 << 30)}),
    ).SerializeToString()
