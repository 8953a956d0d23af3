"""Shows where the processor time of one ask goes, by stage, thread and system call. Prints Markdown tables.

.venv/bin/python -m tests.perf.profile_bench [--seconds 10] [--asks-per-s 500] [--syscalls | --path]

An RM sends single asks at a steady rate to an embedded Muster. In the deciding process some functions and all tasks of
the event loop are timed, by the processor time of their thread. An inner one does not count for an outer one. Timing
costs about a tenth. The followers' process is measured as a whole. The plain form is timed, because calls within
the compiled one cannot be replaced. ``--syscalls`` takes the form that is installed.

``--path`` shows when each step of an ask begins instead, by the clock, for asks that nothing else delays (at 100 a
second or less).

``--syscalls`` counts system calls with strace instead. This slows Muster down, so that no time is shown then.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import collections
import functools
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from chaos.harness import Deployment, embedded  # noqa: E402
from muster_client import RmClient  # noqa: E402
from muster_gateway.stream_kind import StreamKind  # noqa: E402
from muster_replay.local import LocalProcess  # noqa: E402
from perf.driver import Driver, Shape  # noqa: E402
from perf.path_trace import be_traced, usual_path  # noqa: E402

_OUT = "MUSTER_PROFILE_OUT"
_PATH = "MUSTER_PROFILE_PATH"
_ROWS = 24
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What is timed in the deciding process: module, class or "", function, stage. Inner ones do not count for outer ones.
_TIMED = (
    ("asyncio.base_events", "BaseEventLoop", "_run_once", "event loop: turns"),
    ("selectors", "EpollSelector", "select", "event loop: wait for sockets"),
    ("muster_gateway.admission", "", "_admit_allocation", "gateway: admission"),
    ("muster_gateway.codec", "RequestCodec", "request", "gateway: envelope"),
    ("muster_gateway.response_reader", "ResponseTail", "_dispatch", "gateway: responses to their streams"),
    ("muster_bus.backends.sqlite_handles", "SqliteWriter", "append", "log: append"),
    ("muster_bus.backends.sqlite_handles", "SqliteWriter", "_flush", "log: append"),
    ("muster_bus.backends.sqlite_handles", "SqliteOwner", "_unit", "log: commit"),
    ("muster_bus.backends.sqlite", "SqliteLog", "submit", "log: hand-over to the writer"),
    ("muster_bus.backends.sqlite", "SqliteLog", "_settle", "log: publishing"),
    ("muster_bus.pipe.serving", "LogServer", "_tell", "log: news for followers"),
    ("muster_bus.partition_worker", "_Life", "_decide", "machine"),
    ("muster_scheduler.ingest", "", "read_allocations", "machine: ingest"),
    ("muster_core.scheduler", "SchedulerCore", "apply", "core: apply"),
    ("muster_core.scheduler", "SchedulerCore", "cycle", "core: cycle"),
    ("muster_scheduler.emit", "Emitter", "emit_steps", "machine: emit"),
    ("muster_bus.partition_worker", "_Life", "_take", "partition worker"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_commit", "writer: units"),
    ("muster_bus.backends.blocks", "", "_pack", "writer: blocks"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_execute", "writer: SQLite and fsync"),
    ("muster_bus.backends.sqlite", "SqliteLog", "_on_loop", "writer: hand-over to the loop"),
)
# Tasks and callbacks of the event loop, by a part of their name.
_TASKS = (
    ("_read_requests", "gateway: reading task"),
    ("_write_responses", "gateway: writing task"),
    ("ResponseTail.run", "gateway: responses' task"),
    ("SchedulerService._run", "partition worker"),
    ("_Life._commit", "log: commit"),
    ("_cython", "grpc.aio: calls"),
    ("_handle_events", "grpc.aio: events"),
    ("_read_from_self", "event loop: wake-ups"),
)


# ---- in the deciding process -----------------------------------------------------------------------------------------


class Stages:
    """Gives each thread's processor time to the innermost stage that the thread is in."""

    def __init__(self) -> None:
        self.spent_s: dict[tuple[str, str], float] = collections.defaultdict(float)
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


@functools.lru_cache(maxsize=4096)
def _named_stage(name: str) -> str:
    return next((stage for part, stage in _TASKS if part in name), "event loop: others")


def _task_stage(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return _named_stage(getattr(callback, "__qualname__", None) or repr(getattr(callback, "func", callback))[:60])
    made = task.get_coro()
    return _named_stage(getattr(made, "__qualname__", None) or repr(made)[:40])


def be_timed(out: Path) -> None:
    """Runs Muster with this process's arguments, and writes what each stage took until its end to ``out``. SIGUSR1
    begins anew.
    """
    from muster_cli.main import main as muster

    if _PATH in os.environ:
        be_traced(out)
        muster()
        return
    stages = Stages()
    for module, owner, function, stage in _TIMED:
        place: Any = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        setattr(place, function, stages.timed(getattr(place, function), stage))
    # (Names that other modules or tables have already)
    importlib.import_module("muster_gateway.admission")._ADMIT[StreamKind.ALLOCATION] = importlib.import_module(
        "muster_gateway.admission"
    )._admit_allocation
    stages.time_tasks()
    signal.signal(signal.SIGUSR1, lambda *_: stages.spent_s.clear())
    atexit.register(lambda: out.write_text(json.dumps([[*key, spent] for key, spent in stages.spent_s.items()])))
    muster()


# ---- beside it -------------------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    """Returns the processes below a process."""
    below = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return below + [deeper for each in below for deeper in children_of(each)]


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def followers_of(pid: int) -> float:
    return sum(cpu_s(each) for each in children_of(pid))


def table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---|" + "---:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


async def drive(deployment: Deployment, seconds: float, asks_per_s: float, *, syscalls: bool) -> None:
    pid = deployment.processes["up"].pid
    driver = Driver(deployment.gateway, "profile", Shape(nodes=1_000, asks=20_000))
    async with driver.client() as rm:
        await driver.set_up(rm)
        await driver.ask_on_a_clock(rm, "warm", asks_per_s, 1.0)
        asks = round(seconds * asks_per_s)
        if syscalls:
            await count_calls(driver, rm, pid, asks, asks_per_s)
            return
        os.kill(pid, signal.SIGUSR1)
        before_s, beside_s = cpu_s(pid), followers_of(pid)
        found = await driver.ask_on_a_clock(rm, "k", asks_per_s, seconds)
        spent_s, beside_s = cpu_s(pid) - before_s, followers_of(pid) - beside_s
        print(f"{asks} single asks, {asks_per_s:g} a second; ask to allocation: {found}\n")
        rows = [("deciding process", spent_s), ("followers, informers", beside_s)]
        table(("process", "ms an ask"), ((name, f"{each / asks * 1e3:.3f}") for name, each in rows))
        await asyncio.to_thread(deployment.processes["up"].stop)
        if _PATH in os.environ:
            show_path(Path(os.environ[_OUT]))
            return
        show(Path(os.environ[_OUT]), spent_s, asks)


def show(out: Path, all_s: float, asks: int) -> None:
    """Prints the tables of threads and stages."""
    spent: list[tuple[str, str, float]] = json.loads(out.read_text())
    threads: dict[str, float] = collections.defaultdict(float)
    stages: dict[tuple[str, str], float] = collections.defaultdict(float)
    for thread, stage, each_s in spent:
        threads[thread] += each_s
        stages[thread, stage] += each_s
    threads["threads of gRPC, and others without Python"] = all_s - sum(threads.values())
    of_stages = {f"{thread}: {stage}": each for (thread, stage), each in stages.items()}
    for head, found in (("thread", threads), ("thread: stage", of_stages)):
        largest = sorted(found.items(), key=lambda each: -each[1])[:_ROWS]
        table((head, "ms an ask"), ((name, f"{each / asks * 1e3:.3f}") for name, each in largest))


def show_path(out: Path) -> None:
    """Prints the steps of an ask."""
    steps, changes, asks = usual_path(json.loads(out.read_text()))
    print(f"{asks} asks took these steps, with {changes} changes of the thread\n")
    times = [at for _, at in steps]
    rows = zip(steps, [*times[1:], times[-1]], strict=True)
    table(("step", "begins, µs", "until the next"), ((name, f"{at:.0f}", f"{to - at:.0f}") for (name, at), to in rows))


async def count_calls(driver: Driver, rm: RmClient, pid: int, asks: int, asks_per_s: float) -> None:
    """Prints the system calls of the deciding process and of the followers' process for each ask."""
    for name, which in (("deciding process", pid), *(("a process below it", each) for each in children_of(pid))):
        with tempfile.NamedTemporaryFile("r") as out:
            tracing = await asyncio.create_subprocess_exec("strace", "-f", "-c", "-o", out.name, "-p", str(which))
            await driver.ask_on_a_clock(rm, f"s{which}", asks_per_s, asks / asks_per_s)
            tracing.terminate()
            await tracing.wait()
            calls = [line.split() for line in out.read().splitlines()]
        counted = [(line[-1], int(line[3])) for line in calls if len(line) >= 5 and line[3].isdigit()]
        counted = sorted((each for each in counted if each[0] != "total"), key=lambda each: -each[1])
        rows = ((call, f"{count / asks:.2f}") for call, count in counted if count / asks >= 0.05)
        table((f"{name}: system call", "an ask"), rows)


async def profile(seconds: float, asks_per_s: float, *, syscalls: bool, path: bool) -> None:
    if path:
        os.environ[_PATH] = "1"
    with tempfile.TemporaryDirectory() as directory:
        deployment = embedded(Path(directory))
        if not syscalls:
            os.environ["MUSTER_COMPILED"] = "0"
            os.environ[_OUT] = str(Path(directory) / "profile.json")
            up = deployment.processes["up"]
            command = [sys.executable, str(Path(__file__)), *up.command[1:]]
            deployment.processes["up"] = LocalProcess(command, up.log_file)
        async with deployment.running():
            await drive(deployment, seconds, asks_per_s, syscalls=syscalls)


def main() -> None:
    if _OUT in os.environ:
        be_timed(Path(os.environ[_OUT]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--asks-per-s", type=float, default=500.0)
    parser.add_argument("--syscalls", action="store_true")
    parser.add_argument("--path", action="store_true")
    given = parser.parse_args()
    if given.syscalls and shutil.which("strace") is None:
        parser.error("strace is not installed")
    asyncio.run(profile(given.seconds, given.asks_per_s, syscalls=given.syscalls, path=given.path))


if __name__ == "__main__":
    main()
