"""Elapsed time comes from the running event loop, other times from a clock object, and ids and random numbers from a
generator that is an argument (docs/decisions/0298, 0299). Other sources only in the files that are named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(
    path for top in ("apps", "libs", "services") for path in (ROOT / top).glob("*/src/**/*.py") if path.is_file()
)
TIMES = frozenset(
    {
        "clock_gettime",
        "clock_gettime_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "process_time_ns",
        "sleep",
        "thread_time",
        "thread_time_ns",
        "time",
        "time_ns",
    }
)
FORBIDDEN: Mapping[str, frozenset[str]] = {
    "time": TIMES,
    "datetime.datetime": frozenset({"now", "today", "utcnow"}),
    "datetime.date": frozenset({"today"}),
    "os": frozenset({"getrandom", "urandom", "times"}),
    "resource": frozenset({"getrusage"}),
    "uuid": frozenset({"uuid1", "uuid4", "uuid6", "uuid7"}),
    "muster_runtime.chance": frozenset({"SYSTEM"}),
    "muster_runtime.processor_time": frozenset({"own_usage", "usage_of"}),
    "muster_client.chance": frozenset({"SYSTEM"}),
}
# All of these modules are forbidden but for these names.
CHANCE: Mapping[str, frozenset[str]] = {"random": frozenset({"Random"}), "secrets": frozenset()}


class Exempt(NamedTuple):
    """Why a file reads other sources, and which."""

    why: str
    sources: frozenset[str]


def _exempt(why: str, *sources: str) -> Exempt:
    return Exempt(why, frozenset(sources))


_CLI, _BUS, _RUNTIME = "apps/cli/src/muster_cli", "libs/bus/src/muster_bus", "libs/runtime/src/muster_runtime"
_CLIENT, _REPLAY, _VIEW = "libs/client/src/muster_client", "libs/replay/src/muster_replay", "services/view/src"
_GATEWAY, _PUBLISHER = "services/gateway/src/muster_gateway", "services/event-publisher/src/muster_event_publisher"
_INFORMERS = "services/informers/src/muster_informers"
_COMMAND = "a command that a person waits for: it has no event loop"
_COMPOSED = "the service gets the system's generator if nobody gives another one"
_WATCHES = "a watchdog gets this process's use of the processor if nobody gives another one"
_USAGE = "muster_runtime.processor_time.own_usage"
_DEFECT = "numbers a defect, for whoever looks for it in the log"
EXEMPT: Mapping[str, Exempt] = {
    # The sources.
    f"{_BUS}/clock.py": _exempt(
        "the clock",
        "time.clock_gettime_ns",
        "time.thread_time",
        "time.time_ns",
    ),
    f"{_RUNTIME}/elapsed.py": _exempt("elapsed time without an event loop", "time.monotonic"),
    f"{_RUNTIME}/chance.py": _exempt("the source", "random.SystemRandom"),
    f"{_CLIENT}/clock.py": _exempt("the client's clock", "time.monotonic"),
    f"{_CLIENT}/chance.py": _exempt("the client's source", "random.SystemRandom"),
    # Where a service is made.
    f"{_CLIENT}/client.py": _exempt(_COMPOSED, "muster_client.chance.SYSTEM"),
    f"{_CLIENT}/events_client.py": _exempt(_COMPOSED, "muster_client.chance.SYSTEM"),
    f"{_GATEWAY}/service.py": _exempt(_COMPOSED, "muster_runtime.chance.SYSTEM"),
    f"{_GATEWAY}/front_end.py": _exempt(_COMPOSED, "muster_runtime.chance.SYSTEM"),
    "services/scheduler/src/muster_scheduler/service.py": _exempt(_COMPOSED, "muster_runtime.chance.SYSTEM", _USAGE),
    f"{_BUS}/partition_worker.py": _exempt(_WATCHES, _USAGE),
    f"{_INFORMERS}/informer.py": _exempt(_WATCHES, _USAGE),
    f"{_INFORMERS}/service.py": _exempt(_WATCHES, _USAGE),
    f"{_PUBLISHER}/derive/faust_app.py": _exempt(_WATCHES, _USAGE),
    # Numbers of defects.
    f"{_GATEWAY}/stream.py": _exempt(_DEFECT, "muster_runtime.chance.SYSTEM"),
    f"{_PUBLISHER}/grpc_events.py": _exempt(_DEFECT, "muster_runtime.chance.SYSTEM"),
    # Threads and processes beside an event loop.
    f"{_BUS}/backends/sqlite_commits.py": _exempt("the writer's thread", "time.monotonic"),
    f"{_BUS}/backends/sqlite_maintenance.py": _exempt("the thread of maintenance", "time.monotonic"),
    f"{_BUS}/backends/sqlite_schema.py": _exempt("the id of a log's file, made once", "secrets.token_hex"),
    f"{_BUS}/backends/kafka_reader.py": _exempt("compares what Kafka's client stamped with this", "time.time"),
    f"{_RUNTIME}/liveness.py": _exempt("watches this process", _USAGE),
    f"{_RUNTIME}/child_process.py": _exempt("watches a process", "muster_runtime.processor_time.usage_of"),
    f"{_RUNTIME}/tcp_sockets.py": _exempt("runs in the thread of connection_guard.py", "time.sleep"),
    f"{_GATEWAY}/connection_guard.py": _exempt("a thread", "time.monotonic", "time.thread_time"),
    f"{_PUBLISHER}/history/thread_yield.py": _exempt("a thread lets the event loop have the interpreter", "time.sleep"),
    f"{_VIEW}/muster_view/rest/process_debug.py": _exempt(
        "a thread that samples the others", "time.monotonic", "time.sleep"
    ),
    "libs/queue-config/src/muster_queue_config/parser_main.py": _exempt(
        "a child: its processor time is limited, and a thread watches its memory", "resource.getrusage", "time.sleep"
    ),
    "libs/whatif/src/muster_whatif/forecast/forecast_main.py": _exempt(
        "a child: its processor time is limited", "resource.getrusage", "time.process_time"
    ),
    # The operating system's figures, which decide nothing.
    f"{_RUNTIME}/process_stats.py": _exempt(
        "a process's figures", "resource.getrusage", "time.monotonic", "time.process_time"
    ),
    f"{_RUNTIME}/young_garbage.py": _exempt("when memory is collected decides nothing", "time.thread_time"),
    f"{_CLI}/gc_tuning.py": _exempt("when memory is collected decides nothing", "time.monotonic", "time.process_time"),
    # Others' clocks.
    f"{_GATEWAY}/access/jwt.py": _exempt("a token ends by the wall clock, as PyJWT reads it", "time.time"),
    # Commands.
    f"{_CLI}/audit.py": _exempt(_COMMAND, "time.sleep"),
    f"{_CLI}/backup.py": _exempt(_COMMAND, "datetime.datetime.now"),
    f"{_CLI}/events.py": _exempt(_COMMAND, "datetime.datetime.now"),
    f"{_CLI}/explain_output.py": _exempt(_COMMAND, "time.monotonic"),
    f"{_CLI}/get/command.py": _exempt(_COMMAND, "time.sleep", "time.time_ns"),
    f"{_CLI}/health.py": _exempt(_COMMAND, "time.time_ns"),
    f"{_CLI}/health_text.py": _exempt(_COMMAND, "time.time_ns"),
    f"{_CLI}/repair.py": _exempt(_COMMAND, "time.time"),
    f"{_CLI}/bootstrap.py": _exempt("waits for a port before there is an event loop", "time.sleep"),
    f"{_REPLAY}/demo.py": _exempt(_COMMAND, "time.monotonic", "time.sleep"),
    f"{_REPLAY}/local_process.py": _exempt("starts processes, for a command", "time.monotonic", "random.SystemRandom"),
}


def _is_forbidden(module: str, name: str) -> bool:
    if module in CHANCE:
        return name not in CHANCE[module]
    return name in FORBIDDEN.get(module, ())


def sources(text: str) -> Iterator[tuple[int, str]]:
    """The sources of time and chance that a module reads: line, and the name in full."""
    tree = ast.parse(text)
    known = dict[str, str]()  # the module's name → what it stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                module = str(node.module)
                if alias.name == "*" and (module in FORBIDDEN or module in CHANCE):
                    yield node.lineno, f"{module}.*"
                elif _is_forbidden(module, alias.name):
                    yield node.lineno, f"{module}.{alias.name}"
                known[alias.asname or alias.name] = f"{module}.{alias.name}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                module = known.get(name, name)
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr=inner), attr=attribute):
                module = f"{known.get(name, name)}.{inner}"
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if known.get(name) == "random.Random":
                yield node.lineno, "random.Random()"
                continue
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="Random"), args=[], keywords=[]):
                if known.get(name) == "random":
                    yield node.lineno, "random.Random()"
                continue
            case ast.Call(func=ast.Name(id="hash")):
                yield node.lineno, "hash"
                continue
            case _:
                continue
        if _is_forbidden(module, attribute):
            yield node.lineno, f"{module}.{attribute}"


def _of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_time_and_chance_come_from_their_source() -> None:
    assert MODULES
    found = [
        f"{_of(path)}:{line}: {name}"
        for path in MODULES
        for line, name in sources(path.read_text(encoding="utf-8"))
        if _of(path) not in EXEMPT or name not in EXEMPT[_of(path)].sources
    ]
    assert not found


def test_every_exemption_is_needed() -> None:
    used = {path: {name for _, name in sources((ROOT / path).read_text(encoding="utf-8"))} for path in EXEMPT}
    assert {path: unneeded for path, each in EXEMPT.items() if (unneeded := each.sources - used[path])} == {}


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("import time\ntime.monotonic()", "time.monotonic"),
        ("import time as t\ndef f(now=t.time): ...", "time.time"),
        ("from time import perf_counter", "time.perf_counter"),
        ("from time import *", "time.*"),
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("import time\ntime.thread_time()", "time.thread_time"),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", "datetime.datetime.now"),
        ("import datetime\ndatetime.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import date\ndate.today()", "datetime.date.today"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("import secrets\nsecrets.token_hex(4)", "secrets.token_hex"),
        ("from random import choice", "random.choice"),
        ("import random\nrandom.random()", "random.random"),
        ("import random\nrandom.Random()", "random.Random()"),
        ("from random import Random\nRandom()", "random.Random()"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("from muster_runtime.chance import SYSTEM", "muster_runtime.chance.SYSTEM"),
        ("from muster_runtime.processor_time import own_usage", "muster_runtime.processor_time.own_usage"),
        ("hash('a')", "hash"),
    ],
)
def test_it_notices(text: str, source: str) -> None:
    assert source in [name for _, name in sources(text)]


@pytest.mark.parametrize(
    "text",
    [
        "from random import Random\ndef f(chance: Random) -> float: return chance.random()",
        "import random\ndice = random.Random(7)",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import time\ntime.strftime('%H')",
        "import asyncio\nasyncio.sleep(1)",
        "from muster_runtime.elapsed import elapsed_s\nelapsed_s()",
        "from muster_runtime.secrets import masked_text\nmasked_text('')",
    ],
)
def test_it_lets_through(text: str) -> None:
    assert not list(sources(text))
