"""Times the stages of a process of Muster by the processor time of its threads.

``profile_bench`` starts processes of Muster with this. Some functions and all tasks of the event loop are timed. An
inner one does not count for an outer one. Timing costs about a tenth. On Kafka it also counts the requests to the
brokers, and those that are sent again after a refusal.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import functools
import importlib
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

# Module, class or "", function, stage. Inner ones do not count for outer ones.
_TIMED = (
    ("asyncio.base_events", "BaseEventLoop", "_run_once", "event loop: turns"),
    ("selectors", "EpollSelector", "select", "event loop: wait for sockets"),
    ("muster_gateway.admission", "", "admission_steps", "gateway: admission"),
    ("muster_gateway.codec", "RequestCodec", "request", "gateway: envelope"),
    ("muster_gateway.response_delivery", "ResponseTail", "_dispatch", "gateway: responses to their streams"),
    ("muster_bus.backends.sqlite_handles", "SqliteWriter", "append", "log: append"),
    ("muster_bus.backends.sqlite_handles", "SqliteWriter", "_flush", "log: append"),
    ("muster_bus.backends.sqlite_handles", "SqliteOwner", "_unit", "log: commit"),
    ("muster_bus.backends.sqlite", "SqliteLog", "submit", "log: hand-over to the writer"),
    ("muster_bus.backends.sqlite", "SqliteLog", "_resolve_queued", "log: publishing"),
    ("muster_bus.pipe.log_server", "LogServer", "_on_timer", "log: news for followers"),
    ("muster_bus.partition_worker", "_WorkerRun", "_decide", "machine"),
    ("muster_scheduler.ingest", "", "read_allocations", "machine: ingest"),
    ("muster_core.scheduler", "SchedulerCore", "apply", "core: apply"),
    ("muster_core.scheduler", "SchedulerCore", "cycle", "core: cycle"),
    ("muster_scheduler.emit", "Emitter", "emit_steps", "machine: emit"),
    ("muster_bus.partition_worker", "_WorkerRun", "_add_outputs", "partition worker"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_commit", "writer: units"),
    ("muster_bus.backends.blocks", "", "_pack", "writer: blocks"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_execute", "writer: SQLite and fsync"),
    ("muster_bus.backends.sqlite", "SqliteLog", "_on_loop", "writer: hand-over to the loop"),
)
_TIMED_ON_KAFKA = (
    ("muster_bus.backends.kafka_owner", "", "filled_batch", "log: batches of outcomes"),
    ("muster_bus.backends.kafka_writer", "", "add_to_batch", "log: append"),
    ("aiokafka.conn", "AIOKafkaConnection", "send", "Kafka's client: requests"),
    ("aiokafka.conn", "AIOKafkaConnection", "_handle_frame", "Kafka's client: answers"),
    ("aiokafka.consumer.fetcher", "FetchResult", "getall", "Kafka's client: records"),
)
# Tasks and callbacks of the event loop, by a part of their name.
_TASKS = (
    ("_read_requests", "gateway: reading task"),
    ("_write_responses", "gateway: writing task"),
    ("ResponseTail.run", "gateway: responses' task"),
    ("SchedulerService._run", "partition worker"),
    ("_WorkerRun._commit", "log: commit"),
    ("KafkaOwner", "log: commit"),
    ("_PartitionStream._run", "log: append"),
    ("Sender.", "Kafka's client: producer"),
    ("send_offsets_to_transaction", "Kafka's client: producer"),
    ("Fetcher.", "Kafka's client: fetches"),
    ("AIOKafka", "Kafka's client: connections"),
    ("_SelectorSocketTransport", "event loop: sockets"),
    ("_cython", "grpc.aio: calls"),
    ("_handle_events", "grpc.aio: events"),
    ("_read_from_self", "event loop: wake-ups"),
)
# What answers the requests of a transaction; they ask for a pause before the next try.
_HANDLERS = (
    "AddPartitionsToTxnHandler",
    "AddOffsetsToTxnHandler",
    "TxnOffsetCommitHandler",
    "EndTxnHandler",
)
AGAIN = " again"


class Stages:
    """Gives each thread's processor time to the innermost stage that the thread is in.

    :ivar counted: how often things happened.
    """

    def __init__(self) -> None:
        self.spent_s: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.counted: collections.Counter[str] = collections.Counter()
        self._threads = threading.local()

    def enter(self, stage: str) -> None:
        here, now_s = self._threads.__dict__, time.thread_time()
        stack = here.get("stack")
        if stack is None:
            stack = here["stack"] = []
            here["name"] = re.sub(r"[-_]\d+$", "", threading.current_thread().name)
        elif stack:
            self.spent_s[here["name"], stack[-1]] += now_s - here["since_s"]
        stack.append(stage)
        here["since_s"] = now_s

    def leave(self) -> None:
        here, now_s = self._threads.__dict__, time.thread_time()
        self.spent_s[here["name"], here["stack"].pop()] += now_s - here["since_s"]
        here["since_s"] = now_s

    def timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """Returns the function with its time, or each step's of a generator, given to the stage."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.enter(stage)
            try:
                result = function(*arguments, **named)
            finally:
                self.leave()
            return self._steps(result, stage) if isinstance(result, Generator) else result

        return call

    def _steps(self, steps: Generator[Any, None, Any], stage: str) -> Generator[Any, None, Any]:
        while True:
            self.enter(stage)
            try:
                each = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self.leave()
            yield each

    def time_tasks(self) -> None:
        """Gives the time of each task and callback of the event loop to its stage."""
        handles: Any = asyncio.Handle
        run = handles._run

        def timed(handle: Any) -> None:
            self.enter(_task_stage(handle._callback))
            try:
                run(handle)
            finally:
                self.leave()

        handles._run = timed

    def count_requests(self) -> None:
        """Counts the requests to Kafka's brokers by their kind, and the answers that ask for another try."""
        connection: Any = importlib.import_module("aiokafka.conn").AIOKafkaConnection
        send = connection.send

        def counted(self_: Any, request: Any, expect_response: bool = True) -> Any:
            self.counted[type(request).__name__.removesuffix("Request")] += 1
            return send(self_, request, expect_response)

        connection.send = counted
        sender: Any = importlib.import_module("aiokafka.producer.sender")
        for name in _HANDLERS:
            handler = getattr(sender, name)
            handler.handle_response = self._again(handler.handle_response, name.removesuffix("Handler") + AGAIN)
        batches: Any = importlib.import_module("aiokafka.producer.message_accumulator").MessageAccumulator
        reenqueue = batches.reenqueue

        def counted_batch(self_: Any, batch: Any) -> None:
            self.counted["Produce" + AGAIN] += 1
            reenqueue(self_, batch)

        batches.reenqueue = counted_batch

    def _again(self, handle: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            pause_s = handle(*arguments)
            self.counted[name] += pause_s is not None
            return pause_s

        return call

    def clear(self) -> None:
        self.spent_s.clear()
        self.counted.clear()

    def as_json(self) -> str:
        return json.dumps({"spent": [[*key, spent] for key, spent in self.spent_s.items()], "counted": self.counted})


@functools.lru_cache(maxsize=4096)
def _named_stage(name: str) -> str:
    return next((stage for part, stage in _TASKS if part in name), "event loop: others")


def _task_stage(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return _named_stage(getattr(callback, "__qualname__", None) or repr(getattr(callback, "func", callback))[:60])
    made = task.get_coro()
    return _named_stage(getattr(made, "__qualname__", None) or repr(made)[:40])


def time_stages(out: Path, *, kafka: bool) -> None:
    """Times this process from now on, and writes what each stage took to ``out`` at its end. SIGUSR1 begins anew."""
    stages = Stages()
    if kafka:
        stages.count_requests()
    for module, owner, function, stage in (*_TIMED, *(_TIMED_ON_KAFKA if kafka else ())):
        place: Any = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        setattr(place, function, stages.timed(getattr(place, function), stage))
    # (A name that another module has already)
    admission: Any = importlib.import_module("muster_gateway.admission")
    streams: Any = importlib.import_module("muster_gateway.stream")
    streams.admission_steps = admission.admission_steps
    stages.time_tasks()
    signal.signal(signal.SIGUSR1, lambda *_: stages.clear())
    atexit.register(lambda: out.write_text(stages.as_json()))
