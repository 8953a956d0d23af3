"""Notes the long callbacks of each event loop of a Muster that the bench starts (it is first on its PYTHONPATH).

Each callback that used at least ``MUSTER_BENCH_CALLBACK_MS`` of its thread's processor time becomes a line of JSON in
``MUSTER_BENCH_CALLBACKS``/PID.jsonl: when it ended (monotonic seconds), how long it used the processor and took in all
(ms), what ran, and where it is now. A cyclic collection within it counts, and is named. A thread notes the innermost
functions of one that has lasted for ``_STACK_AFTER_S`` by the clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from pathlib import Path
from time import monotonic, sleep, thread_time
from typing import Any

_DIRECTORY = os.environ.get("MUSTER_BENCH_CALLBACKS", "")
_MIN_S = float(os.environ.get("MUSTER_BENCH_CALLBACK_MS", "1")) / 1_000
_plain_run = asyncio.Handle._run
_collected_s = [0.0, 0.0]
_STACK_AFTER_S, _STACK_FRAMES = 0.02, 6
_now: list[Any] = [0.0, 0, []]  # when the callback began (0: none), its thread, the stacks


def _on_collection(phase: str, _: dict[str, int]) -> None:
    if phase == "start":
        _collected_s[1] = thread_time()
    else:
        _collected_s[0] += thread_time() - _collected_s[1]


def _described(callback: Any) -> tuple[str, str]:
    """What runs, and where a task waits now."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return getattr(callback, "__qualname__", repr(callback)[:80]), ""
    coroutine: Any = task.get_coro()
    name = f"{task.get_name()}: {getattr(coroutine, '__qualname__', coroutine)}"
    where = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None)
    return name, where


def _watch() -> None:
    while True:
        sleep(_STACK_AFTER_S / 2)
        began, thread, stacks = _now
        if not began or monotonic() - began < _STACK_AFTER_S or len(stacks) > 3:
            continue
        frame, names = sys._current_frames().get(thread), list[str]()
        while frame is not None and len(names) < _STACK_FRAMES:
            names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        stacks.append(" < ".join(names))


def _run(handle: Any) -> None:
    callback = handle._callback  # (a handle that is cancelled meanwhile has none)
    collected_s, began, began_s = _collected_s[0], monotonic(), thread_time()
    stacks: list[str] = []
    _now[:] = began, threading.get_ident(), stacks
    _plain_run(handle)
    _now[0] = 0.0
    used_s = thread_time() - began_s
    if used_s < _MIN_S:
        return
    what, where = _described(callback)
    line = {
        "at": round(monotonic(), 4),
        "used_ms": round(used_s * 1_000, 2),
        "took_ms": round((monotonic() - began) * 1_000, 2),
        "collected_ms": round((_collected_s[0] - collected_s) * 1_000, 2),
        "what": what,
        "where": where,
        "stacks": stacks,
    }
    with Path(_DIRECTORY, f"{os.getpid()}.jsonl").open("a") as file:  # (after a fork: the child's own)
        file.write(json.dumps(line) + "\n")


if _DIRECTORY:
    asyncio.Handle._run = _run  # type: ignore[method-assign]
    gc.callbacks.append(_on_collection)
    threading.Thread(target=_watch, daemon=True).start()
