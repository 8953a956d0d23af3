"""Follows single asks through an embedded Muster by the clock: when each step of the path begins, and in which thread.

``profile_bench --path`` starts Muster with this. Only asks that are alone in Muster are taken: those between which
and the next one each step came as often as usual.
"""

from __future__ import annotations

import atexit
import collections
import importlib
import itertools
import json
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Module, class or "", function, step; "<" notes the function's begin, ">" its end.
_STEPS = (
    ("muster_gateway.stream", "RmStream", "_handle_message", "<", "gateway: has the message"),
    ("muster_bus.backends.sqlite_handles", "SqliteWriter", "append", "<", "gateway: append"),
    ("muster_bus.backends.sqlite", "SqliteLog", "submit_appends", "<", "log: takes or stages the request"),
    ("muster_bus.backends.sqlite", "SqliteLog", "submit", "<", "log: a unit is submitted"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_commit", "<", "log: a commit begins"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_execute", "<", "log: SQLite and fsync begin"),
    ("muster_bus.backends.sqlite_commits", "Committer", "_execute", ">", "log: they end"),
    ("muster_bus.backends.sqlite", "SqliteLog", "_resolve_queued", "<", "log: publishes"),
    ("muster_scheduler.machine", "SchedulerMachine", "apply", "<", "scheduler: apply begins"),
    ("muster_scheduler.machine", "SchedulerMachine", "apply", ">", "scheduler: apply ends"),
    ("muster_bus.backends.sqlite_handles", "SqliteOwner", "_unit", "<", "scheduler: commits (emit is done)"),
    ("muster_gateway.response_delivery", "ResponseTail", "_dispatch", "<", "gateway: dispatches the response"),
    ("muster_gateway.response_delivery", "ResponseFeed", "next_due", "<", "gateway: writes it"),
    ("muster_gateway.response_delivery", "ResponseFeed", "mark_written", "<", "gateway: it is written"),
)
_FIRST = _STEPS[0][4]

_Stamp = tuple[str, float, str]  # step, clock (seconds), thread


def be_traced(out: Path) -> None:
    """Notes the steps in this process from now on, and writes them to ``out`` at its end. SIGUSR1 begins anew."""
    stamps: list[_Stamp] = []
    by_function: dict[tuple[str, str, str], dict[str, str]] = collections.defaultdict(dict)
    for module, owner, function, which, step in _STEPS:
        by_function[module, owner, function][which] = step
    for (module, owner, function), steps in by_function.items():
        place: Any = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        setattr(place, function, _noted(getattr(place, function), steps.get("<"), steps.get(">"), stamps))
    signal.signal(signal.SIGUSR1, lambda *_: stamps.clear())
    atexit.register(lambda: out.write_text(json.dumps(stamps)))


def _noted(
    function: Callable[..., Any], before: str | None, after: str | None, stamps: list[_Stamp]
) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            stamps.append((before, time.monotonic(), threading.current_thread().name))
        result = function(*arguments, **named)
        if after is not None:
            stamps.append((after, time.monotonic(), threading.current_thread().name))
        return result

    return call


def usual_path(stamps: Sequence[_Stamp]) -> tuple[list[tuple[str, float]], int, int]:
    """Returns the commonest order of steps with the median time since the first (µs), its number of changes of the
    thread, and the number of asks that went this way.
    """
    asks: list[list[_Stamp]] = []
    for stamp in stamps:
        if stamp[0] == _FIRST:
            asks.append([])
        if asks:
            asks[-1].append(stamp)
    ways = collections.defaultdict(list)
    for ask in asks:
        ask.sort(key=lambda stamp: stamp[1])
        ways[tuple(step for step, _, _ in ask)].append(ask)
    way, taken = max(ways.items(), key=lambda each: len(each[1]))
    rows = [
        (step, statistics.median(ask[index][1] - ask[0][1] for ask in taken) * 1e6) for index, step in enumerate(way)
    ]
    threads = [thread for _, _, thread in taken[0]]
    changes = sum(before != now for before, now in itertools.pairwise(threads))
    return rows, changes, len(taken)
