"""The process's own state: ``/debug/stack``, and the parts of ``/debug/pprof`` that make sense in Python.

Go profiles goroutines and Go's heap. For Python this module shows the present stacks of threads and tasks, and a CPU
profile of the threads from a hundred samples per second.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import structlog
from muster_runtime.secrets import masked_text

PROFILE_S = 30  # as in Go
PROFILE_S_MAX = 60
_PERIOD_S = 0.01
# There may be as many tasks as clients; a person reads no more than this.
_TASKS_MAX = 1_000

# The entries of pprof's index, and their meaning here.
PROFILES = {
    "cmdline": "the command line, secrets masked",
    "goroutine": "the stacks of threads and tasks, as in /debug/stack",
    "profile": f"samples of threads' stacks for ?seconds= (1 to {PROFILE_S_MAX}): lines of stack and count, as flame"
    " graphs take them",
}
MISSING = {
    "heap": "Python's memory is not that of Go's heap profile",
    "threadcreate": "threads are few, and in goroutine",
    "allocs": "Python's memory is not that of Go's allocation profile",
    "block": "there is no record of waits",
    "mutex": "there is no record of locks",
    "symbol": "stacks have names already",
    "trace": "there is no execution tracer",
}
LEVELS = ("debug", "info", "warning", "error", "critical")


def stacks(tasks: list[asyncio.Task[object]]) -> Iterator[bytes]:
    """The stack of every thread and every task, one piece each."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        yield f"thread {thread.name}\n{_shown(frame)}\n".encode()
    for task in tasks[:_TASKS_MAX]:
        where = task.get_stack(limit=20)
        text = "".join(f"  {_place(stack_frame)}\n" for stack_frame in where)
        yield f"task {task.get_name()}\n{text or '  (ended)' + chr(10)}\n".encode()
    if len(tasks) > _TASKS_MAX:
        yield f"and {len(tasks) - _TASKS_MAX} more tasks\n".encode()


def profile(seconds: int) -> bytes:
    """Samples all threads for this time; it blocks, so it runs in a thread of its own."""
    own, samples = threading.get_ident(), Counter[str]()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for ident, frame in sys._current_frames().items():
            if ident != own:
                samples[";".join(_places(frame))] += 1
        time.sleep(_PERIOD_S)
    return "".join(f"{stack} {count}\n" for stack, count in sorted(samples.items())).encode()


def command_line() -> bytes:
    """The arguments, each ended by a zero byte as in Go's."""
    return b"\0".join(masked_text(argument).encode() for argument in sys.argv)


def index() -> bytes:
    """The index, for a browser."""
    rows = "".join(f'<li><a href="{name}">{name}</a>: {description}</li>\n' for name, description in PROFILES.items())
    return f"<html><head><title>/debug/pprof/</title></head><body><ul>\n{rows}</ul></body></html>\n".encode()


def level() -> str:
    """The lowest level that this process logs."""
    return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()


def set_level(name: str) -> None:
    """Sets the level of logging until the process ends or the next call.

    :param name: one of LEVELS.
    """
    threshold = logging.getLevelNamesMapping()[name.upper()]
    logging.getLogger().setLevel(threshold)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(threshold))


def _places(frame: FrameType) -> list[str]:
    locations = [_place(stack_frame) for stack_frame, _ in traceback.walk_stack(frame)]
    return locations[::-1]


def _shown(frame: FrameType | None) -> str:
    return (
        "".join(f"  {_place(stack_frame)}\n" for stack_frame, _ in traceback.walk_stack(frame))
        if frame is not None
        else ""
    )


def _place(frame: FrameType) -> str:
    # (Without source lines and values: either may contain a secret.)
    module = frame.f_globals.get("__name__", "?")
    return f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"
