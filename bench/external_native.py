"""The cost of an event handler for the RM's own objects (docs/external-native.md).

Run by ``external_bench.py`` in a process of its own; prints one JSON object. The machine is fed as its worker feeds it:
consulted, then applied. Three ways in turns: ``none`` (no informer of kind ``native``: the worker has nothing to ask),
``here`` (the default handler in this process), ``process`` (in the informers' process, as ``muster up`` has it).

``allocations_per_s``
    Placed asks per second, as fast as possible, in messages of 100, two to a batch; medians of the rounds.
``cpu_us_per_ask``
    CPU of the scheduler's process for a placed ask: the figure with the least noise.
``message_ms``
    The duration of a batch of one ask, median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import structlog
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.log import Record
from muster_bus.topics import Topics
from muster_cli import gc_tuning
from muster_informers.process import ExternalProcess
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.consult import NativeConsultation
from muster_scheduler.informer_host import natives_of
from muster_si.constants import NODE_PARTITION

from bench.core_parts import resource
from bench.external_core import GIB, RM, Machine, asks, releases

WAYS = ("none", "here", "process")
NODES, PER_MESSAGE, PER_BATCH = 5_000, 100, 2


class Consulted(Machine):
    """A machine with a handler of its RM's objects, or without."""

    def __init__(self) -> None:
        super().__init__()
        self.natives: NativeConsultation | None = None

    async def take_all(self, values: Sequence[bytes]) -> int:
        """Process one batch as the worker does."""
        records = []
        for value in values:
            records.append(Record(self.topics.requests, 0, self._offset, 0, RM.encode(), value))
            self._offset += 1
        if self.natives is not None:
            await self.natives.consult(self.machine, records)
        return self._placed(self.machine.apply(records, self.now_ns()))


def envelope(kind: str, value: bytes) -> bytes:
    return pb.RequestEnvelope(rm_id=RM, **{kind: value}).SerializeToString()  # type: ignore[arg-type]


def nodes(count: int) -> bytes:
    size = resource({"vcore": 64_000, "memory": 256 * GIB, "pods": 1_000_000})
    return si.NodeRequest(
        nodes=[
            si.NodeInfo(
                nodeID=f"node-{number:05}",
                action=si.NodeInfo.CREATE,
                schedulableResource=size,
                attributes={NODE_PARTITION: "default", "rack": f"{number % 40}"},
            )
            for number in range(count)
        ]
    ).SerializeToString()


async def measure(node_count: int, rounds: int, asked: int) -> dict[str, Any]:
    settings = ExternalSettings.model_validate({"informers": {"itself": {"kind": "native", "rm": RM}}})
    clock, topics = SystemClock(), Topics(partitions=1)
    bus = MemoryLog(topics.specs(), clock)
    await bus.start()
    here = ExternalService(settings, bus, topics, clock, (0,), "life")
    process = ExternalProcess(here, settings, bus, topics, clock, (0,), "life")
    await process.start()
    under = Consulted()
    ways = {
        "none": None,
        "here": natives_of(here, here, 60.0, clock, "here"),
        "process": natives_of(here, process, 60.0, clock, "process"),
    }
    await under.take_all([envelope("node", nodes(node_count))])
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    waits: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for number in range(rounds + 1):
            for way in WAYS:
                under.natives = ways[way]
                prefix = f"{way}{number}"
                await under.take_all([envelope("allocation", asks(f"{prefix}.first", 1))])  # (a handler begins here)
                # 1. as many as possible in the time
                parts = range(asked // PER_MESSAGE)
                messages = [envelope("allocation", asks(f"{prefix}.{part}", PER_MESSAGE)) for part in parts]
                began, cpu, made = time.perf_counter(), time.process_time(), 0
                for start in range(0, len(messages), PER_BATCH):
                    made += await under.take_all(messages[start : start + PER_BATCH])
                while made < asked:
                    made += under.go_on()
                took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
                # 2. one by one
                alone = []
                for part in range(100):
                    value = envelope("allocation", asks(f"{prefix}.alone{part}", 1))
                    began = time.perf_counter()
                    await under.take_all([value])
                    alone.append(time.perf_counter() - began)
                if number:  # (the first one warms up)
                    rates[way].append(made / took_s)
                    spent[way].append(cpu_s / made)
                    waits[way].append(statistics.median(alone))
                for part in parts:
                    await under.take_all([envelope("allocation", releases(f"{prefix}.{part}", PER_MESSAGE))])
    finally:
        await process.stop()
        await bus.close()
    middle = {way: statistics.median(rates[way]) for way in WAYS}
    return {
        "allocations_per_s": {way: round(middle[way]) for way in WAYS},
        "cpu_us_per_ask": {way: round(statistics.median(spent[way]) * 1e6, 1) for way in WAYS},
        "message_ms": {way: round(statistics.median(waits[way]) * 1e3, 2) for way in WAYS},
        "rounds_per_s": {way: [round(rate) for rate in rates[way]] for way in WAYS},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--asks", type=int, default=10_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc_tuning.collect_young()
    print(json.dumps(asyncio.run(measure(options.nodes, options.rounds, options.asks))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
