"""Measures the path of asks in the deciding process, from the stream's bytes to the response's, without gRPC.

.venv/bin/python -m bench.deciding_bench [--runs 3] [--asks 20000] [--a-message 100] [--single]
.venv/bin/python -m bench.deciding_bench --count [--single]

Prints one line of JSON: allocations per second of processor time, of the plain and of the compiled form by turns, and
their ratio. Each run is a process of its own. It has the gateway's admission and codec, the embedded log with its
threads, a partition worker with the scheduler's machine, and a tail that gives the responses to a feed. Only the event
loop's gRPC is not there.

With ``--single`` each message has one ask, and the next one follows when the answer has come. ``--count`` counts turns
and callbacks of the event loop for each ask instead, which other load of the machine does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

import structlog
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.clock import SystemClock
from muster_bus.contention import Work
from muster_bus.partition_worker import PartitionWorker
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from muster_cli import gc_tuning
from muster_core.model.steps import finish
from muster_gateway.admission import admission_steps
from muster_gateway.codec import RequestCodec
from muster_gateway.response_delivery import ResponseFeed, ResponseTail
from muster_gateway.sessions.contract import Cursor
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.emit import decided_report
from muster_scheduler.machine import SchedulerMachine
from muster_scheduler.settings import SchedulerSettings

from bench.core_parts import in_a_process, resource

MODULE = "bench.deciding_bench"
RM = "rm-bench"
NODES, QUEUES, APPLICATIONS, SHAPES = 1_000, 10, 100, 20
TAIL_BATCH = 500
CONFIG = (
    "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: ["
    + ", ".join(f"{{name: q{number}}}" for number in range(QUEUES))
    + "]}]}]"
)


def _nodes() -> si.NodeRequest:
    capacity = resource({"vcore": 1 << 30, "memory": 1 << 50, "pods": 1 << 20})
    return si.NodeRequest(
        rmID=RM,
        nodes=[
            si.NodeInfo(nodeID=f"node-{number:05}", action=si.NodeInfo.CREATE, schedulableResource=capacity)
            for number in range(NODES)
        ],
    )


def _applications() -> si.ApplicationRequest:
    return si.ApplicationRequest(
        rmID=RM,
        new=[
            si.AddApplicationRequest(
                applicationID=f"app-{number:03}",
                queueName=f"root.q{number % QUEUES}",
                partitionName="default",
                ugi=si.UserGroupInformation(user="bench", groups=["bench"]),
            )
            for number in range(APPLICATIONS)
        ],
    )


def _asks(begin: int, end: int) -> bytes:
    return si.AllocationRequest(
        rmID=RM,
        allocations=[
            si.Allocation(
                allocationKey=f"ask-{number:06}",
                applicationID=f"app-{number % APPLICATIONS:03}",
                partitionName="default",
                resourcePerAlloc=resource({"vcore": 100 + number % SHAPES, "memory": 1 << 27}),
                allocationTags={"creationTime": "1750000000"},
            )
            for number in range(begin, end)
        ],
    ).SerializeToString()


class DecidingPath:
    """A deciding process without gRPC."""

    def __init__(self, directory: Path) -> None:
        self.topics, self.clock = Topics(partitions=1), SystemClock()
        self.log = SqliteLog(
            self.topics.specs(), LogSettings(backend="sqlite", sqlite_path=directory / "muster.log"), self.clock
        )
        self.codec = RequestCodec(self.topics, "bench")
        self.tail = ResponseTail(self.log, self.topics, 0, TAIL_BATCH)
        self.came = asyncio.Event()
        self.placed = self.accepted = 0

    async def __aenter__(self) -> DecidingPath:
        await self.log.start()
        await self.tail.start()
        self.writer = await self.log.writer("bench")
        self.worker = PartitionWorker(
            self.log, self.topics, "scheduler", 0, self._machine, self.clock, report=self._report
        )
        self.tasks = [asyncio.create_task(self.worker.run()), asyncio.create_task(self.tail.run())]
        request = si.RegisterResourceManagerRequest(rmID=RM, version="1", policyGroup="queues", config=CONFIG)
        answer = self.tail.register_call(RM, request_id := self.codec.new_request_id())
        payload = request.SerializeToString()
        await self.writer.append(self.codec.registration(RM, request_id, payload, self.clock.now_ns()))
        registration, cursor = await answer
        assert registration.accepted, registration
        self.tail.cancel_call(request_id)
        self.feeds = [self._feed(kind, cursor) for kind in StreamKind if kind is not StreamKind.CALLBACK]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.worker.stop()
        await self.tasks[0]
        self.tasks[1].cancel()
        await self.log.close()

    def _machine(self) -> SchedulerMachine:
        settings = SchedulerSettings()
        monotonic = self.clock.monotonic
        return SchedulerMachine(
            self.topics, lambda: "uuid", "", settings.max_allocations_batch, monotonic_s=monotonic, holds=True
        )

    def _report(self, position: int, work: Work):
        return decided_report(self.topics, 0, position, work)

    def _feed(self, kind: StreamKind, start: Cursor) -> ResponseFeed:
        start = start._replace(offset=max(start.offset, self.tail._dispatched))  # the report of the decision follows
        feed = ResponseFeed(RM, kind, start, 0, 1 << 20, 1 << 30, self.came.set, self.clock.monotonic)
        assert self.tail.attach(feed)
        return feed

    async def send(self, kind: StreamKind, raw: bytes, limits: AdmissionLimits) -> None:
        admitted = finish(admission_steps(kind, raw, RM, limits))
        assert not admitted.answers
        for payload in admitted.payloads:
            await self.writer.wait_writable()
            self.writer.append(self.codec.request(RM, 0, kind, payload, self.clock.now_ns()))

    async def answered(self, count: int) -> None:
        """Take responses until so many asks are placed."""
        while self.placed < count:
            self.came.clear()
            for feed in self.feeds:
                while (due := feed.next_due()) is not None:
                    if feed.kind is StreamKind.ALLOCATION:
                        response = si.AllocationResponse.FromString(due.payload)
                        assert not response.rejectedAllocations
                        self.placed += len(response.new)
                    elif feed.kind is StreamKind.NODE:
                        self.accepted += len(si.NodeResponse.FromString(due.payload).accepted)
                    feed.mark_written(due)
            if self.placed < count:
                await self.came.wait()


class Steps:
    """Counts the event loop's turns and callbacks."""

    def __init__(self) -> None:
        self.turns = self.callbacks = 0
        loop, handle = asyncio.BaseEventLoop, asyncio.Handle
        turn, run = loop._run_once, handle._run

        def counted_turn(self_: object) -> None:
            self.turns += 1
            turn(self_)

        def counted_run(self_: object) -> None:
            self.callbacks += 1
            run(self_)

        loop._run_once, handle._run = counted_turn, counted_run


async def _measured(asks: int, a_message: int, single: bool, steps: Steps | None) -> dict[str, float]:
    gc_tuning.collect_young()
    gc_tuning.freeze()
    limits = AdmissionLimits()
    with tempfile.TemporaryDirectory(prefix="muster-deciding-") as directory:
        async with DecidingPath(Path(directory)) as path:
            await path.send(StreamKind.NODE, _nodes().SerializeToString(), limits)
            await path.send(StreamKind.APPLICATION, _applications().SerializeToString(), limits)
            warm = 200
            for number in range(warm):  # caches are filled, nodes and applications are known
                await path.send(StreamKind.ALLOCATION, _asks(number, number + 1), limits)
                await path.answered(number + 1)
            messages = [_asks(at, min(at + a_message, warm + asks)) for at in range(warm, warm + asks, a_message)]
            gc_tuning.freeze()
            before = (steps.turns, steps.callbacks) if steps else (0, 0)
            cpu_s, begun_s = time.process_time(), time.monotonic()
            if single:
                for number, message in enumerate(messages, 1):
                    await path.send(StreamKind.ALLOCATION, message, limits)
                    await path.answered(warm + number * a_message)
            else:
                for message in messages:
                    await path.send(StreamKind.ALLOCATION, message, limits)
                    await asyncio.sleep(0)
                await path.answered(warm + asks)
            if steps is not None:
                turns, callbacks = steps.turns - before[0], steps.callbacks - before[1]
                return {"turns": round(turns / asks, 2), "callbacks": round(callbacks / asks, 2)}
            return {"per_cpu_s": asks / (time.process_time() - cpu_s), "per_s": asks / (time.monotonic() - begun_s)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--asks", type=int)
    parser.add_argument("--a-message", type=int)
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    asks = options.asks or (2_000 if options.single else 20_000)
    a_message = options.a_message or (1 if options.single else 100)
    if options.part or options.count:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        steps = Steps() if options.count else None
        print(json.dumps(asyncio.run(_measured(asks, a_message, options.single, steps))))
        return 0
    arguments = ["--part", "--asks", str(asks), "--a-message", str(a_message)]
    arguments += ["--single"] if options.single else []
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "compiled": []}
    for _ in range(options.runs):
        for form, variable in zip(runs, "01", strict=True):
            runs[form].append(in_a_process(MODULE, *arguments, compiled=variable))
    found: dict[str, float] = {"asks": asks, "a_message": a_message, "single": options.single}
    for form, measurements in runs.items():
        found[f"{form}_per_cpu_s"] = round(statistics.median(each["per_cpu_s"] for each in measurements))
    found["ratio"] = round(found["compiled_per_cpu_s"] / found["plain_per_cpu_s"], 2)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
