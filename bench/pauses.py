"""Notes the longest steps of a process's event loop, with what ran in each.

``pauses_bench`` starts Muster with this. A step is one callback: while it runs, nothing else of the loop does. Its
length is noted by the clock (which counts what else ran on the machine) and in processor time of its thread. Where it
was, another thread looks up when it has lasted for some milliseconds.
"""

from __future__ import annotations

import asyncio.events
import atexit
import gc
import heapq
import json
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

KEPT = 400
# Steps below this are not noted; longer ones are looked into; where they are then counts for their cause.
_NOTED_S, _LOOKED_AT_S, _LOOKS_S = 0.004, 0.006, 0.003
_FRAMES = 6
_THIS = __name__


class Pause(TypedDict):
    """One step: when (seconds since the process began to note), what, how long, where, and the collections in it."""

    at_s: float
    what: str
    ms: float
    cpu_ms: float
    where: list[str]
    collections: list[tuple[int, float]]


class Pauses:
    """The longest steps so far.

    :ivar full_collections: how many there were of the oldest generation.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._number = 0
        self._step_s = 0.0  # when the present one began; 0: there is none
        self._where: list[str] = []
        self._collections: list[tuple[int, float]] = []
        self._collecting_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Begins anew."""
        self._began_s = time.monotonic()
        self._by_clock: list[tuple[float, int, Pause]] = []
        self._by_processor: list[tuple[float, int, Pause]] = []
        self.steps = self.full_collections = 0

    def run(self, handle: Any) -> None:
        """Runs a callback of the loop, in place of asyncio's own method."""
        self.steps += 1
        self._where, self._collections = [], []
        cpu_s, self._step_s = time.thread_time(), time.monotonic()
        began_s = self._step_s
        _RUN(handle)
        self._step_s = 0.0
        took_s = time.monotonic() - began_s
        if took_s >= _NOTED_S:
            self._note(handle, began_s, took_s, time.thread_time() - cpu_s)

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """Notes a collection of garbage. (The library's interface.)"""
        if phase == "start":
            self._collecting_s = time.thread_time()
            return
        self.full_collections += info["generation"] == 2
        if threading.get_ident() == self._main:
            self._collections.append((info["generation"], round(1e3 * (time.thread_time() - self._collecting_s), 2)))

    def look(self) -> None:
        """Looks where a long step is, again and again. Runs in a thread of its own."""
        looked = 0.0
        while True:
            time.sleep(_LOOKS_S)
            began_s = self._step_s
            if not began_s or began_s == looked or time.monotonic() - began_s < _LOOKED_AT_S:
                continue
            frame = sys._current_frames().get(self._main or 0)
            if frame is not None and self._step_s == began_s:
                self._where, looked = _places(frame), began_s

    def write(self, out: Path) -> None:
        """Writes what was found."""
        found: dict[str, Any] = {"steps": self.steps, "full_collections": self.full_collections}
        for name, some in (("by_clock", self._by_clock), ("by_processor", self._by_processor)):
            found[name] = [each for _, _, each in sorted(some, reverse=True)]
        out.write_text(json.dumps(found))

    def _note(self, handle: Any, began_s: float, took_s: float, cpu_s: float) -> None:
        self._number += 1
        pause = Pause(
            at_s=round(began_s - self._began_s, 2),
            what=_name(handle),
            ms=round(1e3 * took_s, 1),
            cpu_ms=round(1e3 * cpu_s, 1),
            where=self._where,
            collections=self._collections,
        )
        for length_s, longest in ((took_s, self._by_clock), (cpu_s, self._by_processor)):
            entry = (length_s, self._number, pause)
            if len(longest) < KEPT:
                heapq.heappush(longest, entry)
            else:
                heapq.heappushpop(longest, entry)


def note_pauses(out: Path) -> None:
    """Notes the steps of this process's loop, and writes them to ``out`` at its end. SIGUSR1 begins anew."""
    pauses = Pauses()
    asyncio.events.Handle._run = lambda handle: pauses.run(handle)  # type: ignore[attr-defined]
    gc.callbacks.append(pauses.collected)
    threading.Thread(target=pauses.look, name="pauses", daemon=True).start()
    signal.signal(signal.SIGUSR1, lambda *_: pauses.begin())
    atexit.register(pauses.write, out)


def _name(handle: Any) -> str:
    """What a callback is: a task's coroutine, or a function."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return f"task {getattr(coroutine, '__qualname__', coroutine)}"
    return str(getattr(callback, "__qualname__", None) or getattr(callback, "func", callback))[:100]


def _places(frame: FrameType | None) -> list[str]:
    """The innermost functions, the innermost one first."""
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        module = frame.f_globals.get("__name__", "?")
        if module == _THIS:
            break
        found.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return found


_RUN = asyncio.events.Handle._run  # type: ignore[attr-defined]
