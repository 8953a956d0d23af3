"""Measures the scheduler's cost of external changes, in one process: the core alone, and its machine with all protobuf.

Run by ``external_bench.py`` in a process of its own; prints one JSON object.

``listing_s``
    5,000 nodes of one source, in records of 500 as the cache writes them, from the first to LIVE, decided and written.
``change_us``
    CPU of one change (a node's use or size, or a VM that starts or stops) when nothing is asked for.
``allocations_per_s``, ``with_changes_per_s``
    Placed asks per second, as fast as possible, without and with 2,000 changes per second of wall-clock time, in turns;
    medians of the rounds, and ``slower_percent`` of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics
from muster_cli import gc_tuning
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    SetSourceState,
    SourceState,
)
from muster_core.model.outcome import Outcome
from muster_core.scheduler import SchedulerCore
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_queue_config.queue_yaml import load_queue_config
from muster_scheduler import ingest
from muster_scheduler.machine import SchedulerMachine
from muster_state import external_codec as codec

from bench.core_parts import START_NS, budget, clock, drain, resource
from bench.driver import queue_config

RM, SOURCE, LIFE = "bench", "vms", "life"
NODES, CHANGES_PER_S, PER_RECORD, PER_BATCH = 5_000, 2_000, 500, 100
GIB = 1 << 30
CORES = 64
APPLICATIONS, QUEUES = 100, 10


# ---- changes by the other manager ----------------------------------------------------------------------------------


def host(number: int, cores: int = CORES, used: int = 0) -> ExternalNode:
    """A VM host."""
    capacity = {"vcore": cores * 1_000, "memory": 256 * GIB, "pods": 1_000_000}
    return ExternalNode(
        f"host-{number:05}", capacity, {"vcore": used * 1_000} if used else {}, {"rack": f"{number % 40}"}
    )


def listing(nodes: int) -> list[ExternalChange]:
    """The first listing."""
    return [changed(host(number)) for number in range(nodes)]


def changed(what: ExternalNode | ExternalAllocation) -> ExternalChange:
    """A host as a change."""
    if isinstance(what, ExternalNode):
        return ExternalChange(ExternalKind.NODE, what.node_id, what)
    return ExternalChange(ExternalKind.ALLOCATION, what.key, what)


def changes(nodes: int, seed: int = 4) -> Iterator[ExternalChange]:
    """Yield changes without end: use of hosts, sizes of hosts, VMs that start and stop, a third each."""
    dice = random.Random(seed)
    running: list[str] = []
    number = 0
    while True:
        fate = dice.random()
        on = dice.randrange(nodes)
        if fate < 0.34:
            yield changed(host(on, used=dice.randrange(1, 9)))
        elif fate < 0.67:
            yield changed(host(on, cores=CORES - dice.randrange(9)))
        elif len(running) < nodes or dice.random() < 0.5:
            number += 1
            running.append(f"vm-{number}")
            yield changed(ExternalAllocation(f"vm-{number}", f"host-{on:05}", {"vcore": 2_000, "memory": 4 * GIB}))
        else:
            place = dice.randrange(len(running))
            running[place], running[-1] = running[-1], running[place]
            yield ExternalChange(ExternalKind.ALLOCATION, running.pop(), None)


def some(stream: Iterator[ExternalChange], count: int) -> ApplyExternalChanges:
    """Return the next changes as one command; an object that comes twice has its last state, as in the cache."""
    newest: dict[tuple[ExternalKind, str], ExternalChange] = {}
    for _ in range(count):
        change = next(stream)
        key = (change.kind, change.object_id)
        newest.pop(key, None)
        newest[key] = change
    return ApplyExternalChanges("default", SOURCE, LIFE, tuple(newest.values()))


# ---- the core ------------------------------------------------------------------------------------------------------


def applications() -> bytes:
    request = si.ApplicationRequest()
    for number in range(APPLICATIONS):
        owner = si.UserGroupInformation(user="bench", groups=["bench"])
        request.new.add(
            applicationID=f"app-{number}", queueName=f"root.q{number % QUEUES}", partitionName="default", ugi=owner
        )
    return request.SerializeToString()


def asks(prefix: str, count: int) -> bytes:
    request = si.AllocationRequest()
    for number in range(count):
        request.allocations.add(
            allocationKey=f"{prefix}-{number}",
            applicationID=f"app-{number % APPLICATIONS}",
            partitionName="default",
            resourcePerAlloc=resource({"vcore": 1_000, "memory": 2 * GIB}),
        )
    return request.SerializeToString()


def releases(prefix: str, count: int) -> bytes:
    request = si.AllocationRequest()
    for number in range(count):
        request.releases.allocationsToRelease.add(
            partitionName="default",
            applicationID=f"app-{number % APPLICATIONS}",
            allocationKey=f"{prefix}-{number}",
            terminationType=si.STOPPED_BY_RM,
        )
    return request.SerializeToString()


class CoreAlone:
    """The core alone: takes commands and drains outcomes."""

    def __init__(self) -> None:
        config, problems = load_queue_config(queue_config(QUEUES))
        assert config is not None, problems
        self.core = SchedulerCore(config)
        self.now_ns = clock()
        drain(self.core.start(START_NS))
        drain(self.core.apply(ingest.applications(applications()), START_NS))

    def say(self, *commands: ApplyExternalChanges | SetSourceState) -> int:
        out = Outcome()
        for command in commands:
            self.core.apply(command, self.now_ns(), out)
        return drain(self.core.cycle(self.now_ns(), budget(), out))

    def ask(self, value: bytes) -> int:
        out = self.core.apply(ingest.allocations(value), self.now_ns())
        return drain(self.core.cycle(self.now_ns(), budget(), out))

    def go_on(self) -> int:
        return drain(self.core.cycle(self.now_ns(), budget()))

    def prepared(self, command: ApplyExternalChanges) -> object:
        return command

    def take(self, prepared: Any) -> int:
        return self.say(prepared)


class Machine:
    """The machine: takes records and makes records (states, answers, events), with decoding and encoding."""

    def __init__(self) -> None:
        self.topics = Topics(partitions=1)
        self.machine = SchedulerMachine(self.topics, lambda: "uuid", "", budget())
        self.now_ns = clock()
        self.machine.finish_fold(START_NS)
        self._offset = 0
        request = si.RegisterResourceManagerRequest(rmID=RM, version="1", config=queue_config(QUEUES))
        self._apply(pb.RequestEnvelope(rm_id=RM, register=request.SerializeToString()).SerializeToString())
        self._apply(pb.RequestEnvelope(rm_id=RM, application=applications()).SerializeToString())

    def _apply(self, *values: bytes) -> int:
        records = []
        for value in values:
            records.append(Record(self.topics.requests, 0, self._offset, 0, RM.encode(), value))
            self._offset += 1
        return self._placed(self.machine.apply(records, self.now_ns()))

    def _placed(self, outputs: list[OutRecord]) -> int:
        count = 0
        dead_letters, responses = self.topics.dead_letters, self.topics.responses  # (made anew each time)
        for output in outputs:
            assert output.topic != dead_letters, output
            if output.topic == responses:
                envelope = pb.ResponseEnvelope.FromString(output.value or b"")
                if envelope.stream == pb.STREAM_ALLOCATION:
                    count += len(si.AllocationResponse.FromString(envelope.response).new)
        return count

    def say(self, *commands: ApplyExternalChanges | SetSourceState) -> int:
        return self._apply(*(self._value(command) for command in commands))

    @staticmethod
    def _value(command: ApplyExternalChanges | SetSourceState) -> bytes:
        if isinstance(command, SetSourceState):
            note = codec.SourceStateNote(command.state)
            return codec.encode(RM, command.partition, command.source, command.life, (), note)
        return codec.encode(RM, command.partition, command.source, command.life, command.changes)

    def ask(self, value: bytes) -> int:
        return self._apply(pb.RequestEnvelope(rm_id=RM, allocation=value).SerializeToString())

    def go_on(self) -> int:
        return self._placed(self.machine.tick(self.now_ns()))

    def prepared(self, command: ApplyExternalChanges) -> object:
        return self._value(command)

    def take(self, prepared: Any) -> int:
        return self._apply(prepared)


# ---- measured ------------------------------------------------------------------------------------------------------


def measure(make: Callable[[], CoreAlone | Machine], nodes: int, rounds: int, asked: int) -> dict[str, Any]:
    """Measure the core or the machine."""
    under = make()
    # 1. listing
    all_of_it = listing(nodes)
    parts = [
        under.prepared(ApplyExternalChanges("default", SOURCE, LIFE, tuple(all_of_it[start : start + PER_RECORD])))
        for start in range(0, nodes, PER_RECORD)
    ]
    began = time.perf_counter()
    under.say(SetSourceState("default", SOURCE, LIFE, SourceState.LISTING))
    for part in parts:
        under.take(part)
    under.say(SetSourceState("default", SOURCE, LIFE, SourceState.LIVE))
    listing_s = time.perf_counter() - began
    # 2. changes alone
    stream = changes(nodes)
    batches = [under.prepared(some(stream, PER_BATCH)) for _ in range(100)]
    cpu = time.process_time()
    for batch in batches:
        under.take(batch)
    change_us = (time.process_time() - cpu) / (100 * PER_BATCH) * 1e6
    # 3. asks without and with changes, in turns
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds + 1):
        with_changes = bool(number % 2)
        prefix = f"r{number}"
        ready = [under.prepared(some(stream, PER_BATCH)) for _ in range(200)] if with_changes else []
        ready.reverse()
        messages = [asks(f"{prefix}.{part}", 1_000) for part in range(asked // 1_000)]
        gc.collect()
        began = time.perf_counter()
        made, said = 0, 0
        for message in messages:
            made += under.ask(message)
            while ready and said < (time.perf_counter() - began) * CHANGES_PER_S:
                made += under.take(ready.pop())
                said += PER_BATCH
        while made < asked:
            made += under.go_on()
        if number:  # (the first one warms up)
            rates[with_changes].append(made / (time.perf_counter() - began))
        for part in range(asked // 1_000):
            under.ask(releases(f"{prefix}.{part}", 1_000))
    without, beside = (statistics.median(rates[which]) for which in (False, True))
    return {
        "listing_s": round(listing_s, 3),
        "change_us": round(change_us, 1),
        "allocations_per_s": round(without),
        "with_changes_per_s": round(beside),
        "slower_percent": round(100 * (1 - beside / without), 1),
        "rounds_per_s": {str(which): [round(rate) for rate in rates[which]] for which in rates},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=("core", "machine"))
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--asks", type=int, default=20_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc_tuning.collect_young()
    make = CoreAlone if options.which == "core" else Machine
    print(json.dumps(measure(make, options.nodes, options.rounds, options.asks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
