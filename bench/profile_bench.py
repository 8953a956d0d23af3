"""Shows where the processor time of one ask goes, by process, thread and stage. Prints Markdown tables.

.venv/bin/python -m bench.profile_bench [--backend kafka] [--bulk | --asks-per-s 500] [--seconds 10]
                                             [--syscalls | --path]

An RM sends single asks at a steady rate, or with ``--bulk`` all asks up front, 100 in a message. Two Musters are
measured. The first one runs as it is installed: the processor time of each process, and on Kafka of the broker and of
Redis, too. In the second one the stages of the deciding process, and on Kafka of the gateway, are timed by
``stages.py``. It has the plain form, because calls within the compiled one cannot be replaced.

``--path`` shows the steps of an ask by the clock instead: on the embedded log when each step begins, for asks that
nothing else delays (100 a second or less); on Kafka what each ask waits for. ``--syscalls`` counts the system calls of
an embedded Muster with strace instead. This slows Muster down, so that no time is shown then.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import servers  # noqa: E402
from chaos.harness import Deployment, embedded, on_kafka  # noqa: E402
from muster_client import RmClient  # noqa: E402

from bench import kafka_path  # noqa: E402
from bench.driver import Driver, Shape  # noqa: E402
from bench.path_trace import be_traced, usual_path  # noqa: E402
from bench.stages import time_stages  # noqa: E402

_OUT = "MUSTER_PROFILE_OUT"
_PATH = "MUSTER_PROFILE_PATH"
_ROWS = 24
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The processes whose stages are timed, by the name of their deployment.
_TIMED = {"embedded": ("up",), "kafka": ("scheduler", "gateway")}
_WORDS = {"up": "deciding process"}
_WARM_ASKS = 1_000
_SETTLE_S = 0.5
_IDLE_SHARE = 0.1  # a process that takes so much of a core, or less, has nothing left to do
_TRANSACTIONS = re.compile(r"^muster_bus_transaction_seconds_(count|sum){.*} ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """What the RM asks for.

    :ivar asks_per_s: single asks at this rate; 0: all asks up front.
    """

    asks: int
    asks_per_s: float

    @property
    def words(self) -> str:
        if not self.asks_per_s:
            return f"{self.asks:,} asks up front, 100 in a message"
        return f"{self.asks:,} single asks, {self.asks_per_s:g} a second"


async def apply_load(driver: Driver, rm: RmClient, prefix: str, load: Load) -> dict[str, float]:
    """Sends the asks, and returns what the driver found when all are placed."""
    if load.asks_per_s:
        return await driver.ask_on_a_clock(rm, prefix, load.asks_per_s, load.asks / load.asks_per_s)
    driver.shape = Shape(nodes=driver.shape.nodes, asks=load.asks)
    return await driver.ask_up_front(rm, prefix)


@asynccontextmanager
async def warm(deployment: Deployment, load: Load) -> AsyncIterator[tuple[Driver, RmClient]]:
    """Connects an RM with 1,000 nodes, which has asked before. The nodes have room for the load."""
    driver = Driver(deployment.gateway, "profile", Shape(nodes=1_000, asks=2 * load.asks + 2 * _WARM_ASKS))
    async with driver.client() as rm:
        await driver.set_up(rm)
        await apply_load(driver, rm, "warm", Load(_WARM_ASKS, load.asks_per_s))
        yield driver, rm


def file_of(directory: Path, name: str) -> Path:
    """Returns the file of what a process notes."""
    return directory / f"{name}.json"


# ---- in the measured processes ---------------------------------------------------------------------------------------


def be_measured() -> None:
    """Runs Muster with this process's arguments, and notes what the environment asks for."""
    from muster_cli.main import main as muster

    out = file_of(Path(os.environ[_OUT]), sys.argv[1])
    on_brokers = os.environ.get("MUSTER_LOG__BACKEND") == "kafka"
    if _PATH not in os.environ:
        time_stages(out, kafka=on_brokers)
    elif on_brokers:
        kafka_path.be_noted(out)
    else:
        be_traced(out)
    muster()


# ---- beside them -----------------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    """Returns the processes below a process."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(each) for one in listed for each in one.read_text().split()]
    return below + [deeper for each in below for deeper in children_of(each)]


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def cpu_of_all(deployment: Deployment, beside: Mapping[str, int]) -> dict[str, float]:
    """Returns the processor time of each process, and of those below it together.

    :param beside: pids of other programs, by name.
    """
    found = {}
    for name, process in deployment.processes.items():
        found[_WORDS.get(name, name)] = cpu_s(process.pid)
        found["followers, informers" if name == "up" else f"{name}: below it"] = sum(
            cpu_s(each) for each in children_of(process.pid)
        )
    return found | {name: cpu_s(pid) for name, pid in beside.items()}


async def settled(deployment: Deployment) -> None:
    """Returns when no process of Muster works any more: followers have followed."""
    while True:
        before = cpu_of_all(deployment, {})
        await asyncio.sleep(_SETTLE_S)
        if all(now - before[name] <= _IDLE_SHARE * _SETTLE_S for name, now in cpu_of_all(deployment, {}).items()):
            return


def transactions(deployment: Deployment) -> tuple[int, float]:
    """Returns the number of the scheduler's transactions on Kafka, and their time together (seconds)."""
    if "scheduler" not in deployment.operations:
        return 0, 0.0
    with urllib.request.urlopen(f"{deployment.operations['scheduler']}/metrics", timeout=30) as answer:
        found = collections.Counter[str]()
        for name, value in _TRANSACTIONS.findall(answer.read().decode()):
            found[name] += float(value)  # type: ignore[assignment]
    return int(found["count"]), float(found["sum"])


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---|" + "---:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def table_of_asks(head: str, spent_s: Iterable[tuple[str, float]], asks: int) -> None:
    of_asks = ((name, each / asks * 1e6) for name, each in spent_s)
    table((head, "µs an ask"), ((name, f"{each:.0f}" if each >= 10 else f"{each:.1f}") for name, each in of_asks))


async def measure_processes(
    deployment: Deployment, load: Load, beside: Mapping[str, int], timed: Iterable[str]
) -> dict[str, float]:
    """Prints what each process takes for an ask, and returns it.

    :param timed: names of the processes that begin to note now.
    """
    async with warm(deployment, load) as (driver, rm):
        await settled(deployment)
        for name in timed:
            os.kill(deployment.processes[name].pid, signal.SIGUSR1)
        before, made, began_s = cpu_of_all(deployment, beside), transactions(deployment), time.monotonic()
        found = await apply_load(driver, rm, "k", load)
        number, length_s = (now - then for now, then in zip(transactions(deployment), made, strict=True))
        await settled(deployment)
        took_s = time.monotonic() - began_s
        spent_s = {name: each - before[name] for name, each in cpu_of_all(deployment, beside).items()}
    print(f"{load.words}; until all followers had them {took_s:.1f} s; {found}")
    if number:
        print(f"{number:.0f} transactions, {load.asks / number:.1f} asks and {length_s / number * 1e3:.1f} ms for each")
    print()
    table_of_asks("process", spent_s.items(), load.asks)
    return spent_s


def show_stages(found: dict[str, Any], all_s: float, asks: int) -> None:
    """Prints the tables of threads, stages and requests to the brokers."""
    threads: dict[str, float] = collections.defaultdict(float)
    stages: dict[tuple[str, str], float] = collections.defaultdict(float)
    for thread, stage, each_s in found["spent"]:
        threads[thread] += each_s
        stages[thread, stage] += each_s
    threads["threads of gRPC, and others without Python"] = all_s - sum(threads.values())
    of_stages = {f"{thread}: {stage}": each for (thread, stage), each in stages.items()}
    for head, some in (("thread", threads), ("thread: stage", of_stages)):
        table_of_asks(head, sorted(some.items(), key=lambda each: -each[1])[:_ROWS], asks)
    if counted := sorted(found["counted"].items(), key=lambda each: -each[1]):
        table(("request to a broker", "an ask"), ((name, f"{count / asks:.3f}") for name, count in counted))


def show_path(stamps: list[tuple[str, float, str]]) -> None:
    """Prints the steps of an ask."""
    steps, changes, asks = usual_path(stamps)
    print(f"{asks} asks took these steps, with {changes} changes of the thread\n")
    times = [at for _, at in steps]
    rows = zip(steps, [*times[1:], times[-1]], strict=True)
    table(("step", "begins, µs", "until the next"), ((name, f"{at:.0f}", f"{to - at:.0f}") for (name, at), to in rows))


def show_kafka_path(scheduler: kafka_path.Notes, gateway: kafka_path.Notes) -> None:
    """Prints the steps of the asks through Kafka, and how long transactions are."""
    asks = kafka_path.times_of_asks(gateway, scheduler)
    length_ms, pause_ms = kafka_path.transactions_of(scheduler)
    made = len(scheduler[kafka_path.COMMITTED])
    print(f"{made} transactions of {length_ms:.1f} ms with {pause_ms:.1f} ms between two (medians)\n")
    table(
        (f"{len(asks)} asks", "median, ms", "mean, ms", "median, transactions"),
        (
            (step, f"{half:.1f}", f"{mean:.1f}", f"{half / length_ms:.2f}")
            for step, half, mean in kafka_path.steps_of(asks)
        ),
    )


async def count_calls(deployment: Deployment, load: Load) -> None:
    """Prints the system calls of the deciding process and of the followers' process for each ask."""
    pid = deployment.processes["up"].pid
    async with warm(deployment, load) as (driver, rm):
        for name, which in (("deciding process", pid), *(("a process below it", each) for each in children_of(pid))):
            with tempfile.NamedTemporaryFile("r") as out:
                tracing = await asyncio.create_subprocess_exec("strace", "-f", "-c", "-o", out.name, "-p", str(which))
                await apply_load(driver, rm, f"s{which}", load)
                tracing.terminate()
                await tracing.wait()
                calls = [line.split() for line in out.read().splitlines()]
            counted = [(line[-1], int(line[3])) for line in calls if len(line) >= 5 and line[3].isdigit()]
            counted = sorted((each for each in counted if each[0] != "total"), key=lambda each: -each[1])
            rows = ((call, f"{count / load.asks:.2f}") for call, count in counted if count / load.asks >= 0.05)
            table((f"{name}: system call", "an ask"), rows)


def noted_in(directory: Path) -> dict[str, str]:
    """Returns the environment of processes that note in this directory what they do."""
    return {"MUSTER_COMPILED": "0", _OUT: str(directory)}


def noting(deployment: Deployment, names: Iterable[str]) -> None:
    """Makes processes note what they do, as the deployment's environment says."""
    for name in names:
        deployment.processes[name].command[:1] = [sys.executable, str(Path(__file__))]


@dataclass(frozen=True, slots=True)
class Place:
    """Where Musters run.

    :ivar addresses: of Kafka and Redis; empty: embedded.
    :ivar beside: pids of Kafka and Redis, where they are processes of this machine.
    """

    backend: str
    addresses: tuple[str, ...]
    beside: Mapping[str, int]

    def deployment(self, directory: Path, environment: Mapping[str, str]) -> Deployment:
        """Returns a new Muster."""
        if not self.addresses:
            return embedded(directory, environment)
        kafka, redis = self.addresses
        return on_kafka(directory, kafka, redis, environment)


def place_of(backend: str, stack: ExitStack) -> Place:
    """Finds or starts what Musters of this backend need."""
    if backend == "embedded":
        return Place(backend, (), {})
    directory = servers.session_directory()
    stack.callback(servers.stop_all, directory)
    found = [servers.find(kind, directory) for kind in ("kafka", "redis")]
    names = ("broker", "Redis")
    return Place(
        backend,
        tuple(each.address for each in found),
        {name: each.pid for name, each in zip(names, found, strict=True) if each.pid},
    )


async def profile(place: Place, load: Load) -> None:
    """Measures the processes of one Muster, and the stages of another one."""
    with tempfile.TemporaryDirectory(prefix="muster-profile-") as made:
        for number, timed in enumerate(((), _TIMED[place.backend])):
            directory = Path(made) / str(number)
            directory.mkdir()
            deployment = place.deployment(directory, noted_in(directory) if timed else {})
            noting(deployment, timed)
            if timed:
                print("The same with timed stages:\n")
            async with deployment.running():
                spent_s = await measure_processes(deployment, load, place.beside, timed)
            for name in timed:
                word = _WORDS.get(name, name)
                print(f"{word}:\n")
                show_stages(json.loads(file_of(directory, name).read_text()), spent_s[word], load.asks)


async def show_calls(load: Load) -> None:
    """Shows the system calls of an embedded Muster."""
    with tempfile.TemporaryDirectory(prefix="muster-profile-") as made:
        deployment = embedded(Path(made))
        async with deployment.running():
            await count_calls(deployment, load)


async def follow(place: Place, load: Load) -> None:
    """Shows the path of asks through a Muster, by the clock."""
    with tempfile.TemporaryDirectory(prefix="muster-profile-") as made:
        directory, timed = Path(made), _TIMED[place.backend]
        deployment = place.deployment(directory, {**noted_in(directory), _PATH: "1"})
        noting(deployment, timed)
        async with deployment.running(), warm(deployment, load) as (driver, rm):
            for name in timed:
                os.kill(deployment.processes[name].pid, signal.SIGUSR1)
            print(f"{load.words}; ask to allocation: {await apply_load(driver, rm, 'k', load)}\n")
        notes = [json.loads(file_of(directory, name).read_text()) for name in timed]
    if place.backend == "embedded":
        show_path(notes[0])
    else:
        show_kafka_path(*notes)


def main() -> None:
    if _OUT in os.environ:
        be_measured()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=tuple(_TIMED), default="embedded")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--asks-per-s", type=float, default=500.0)
    parser.add_argument("--bulk", action="store_true", help="all asks up front")
    parser.add_argument("--asks", type=int, default=20_000, help="so many, with --bulk")
    parser.add_argument("--syscalls", action="store_true")
    parser.add_argument("--path", action="store_true")
    given = parser.parse_args()
    if given.syscalls and shutil.which("strace") is None:
        parser.error("strace is not installed")
    if given.syscalls and given.backend != "embedded":
        parser.error("--syscalls: expected the embedded log")
    if (given.syscalls or given.path) and given.bulk:
        parser.error("--syscalls and --path: expected single asks")
    load = Load(given.asks, 0.0) if given.bulk else Load(round(given.seconds * given.asks_per_s), given.asks_per_s)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    if given.syscalls:
        asyncio.run(show_calls(load))
        return
    with ExitStack() as stack:
        place = place_of(given.backend, stack)
        asyncio.run((follow if given.path else profile)(place, load))


if __name__ == "__main__":
    main()
