"""The reading process: reads one configuration after the other within limits. ``sandboxed_parser.py`` starts it.

Its limits are the operating system's. Too much processor time ends the process, and the parent starts another one. A
thread ends it a little before the limit of memory: Python does not always survive that one. (CPython 3.11 turns for
ever if the memory for the place of an exception is missing.)
"""

from __future__ import annotations

import gc
import math
import os
import resource
import signal
import threading
import time
from pathlib import Path

from muster_runtime.child_main import become_child, run_child
from muster_runtime.message_channel import Channel

from muster_queue_config.parser_messages import OUT_OF_MEMORY, ParseRequest, ParserLimits, ParserReady, ToChild
from muster_queue_config.verdict import verdict_on

# The kernel's limit counts whole seconds and catches what the timer does not.
_CPU_MARGIN_S = 2
# A text that needs much memory needs about 1 MiB in so long.
_WATCH_S = 0.01
_WATCHED_PART = 7 / 8


def main() -> None:
    """Runs the child."""
    run_child(become_child("muster"), ToChild, _serve)


async def _serve(channel: Channel[ParserLimits | ParseRequest]) -> int:
    limits = await channel.receive()
    if not isinstance(limits, ParserLimits):
        raise EOFError
    os.nice(limits.nice)
    gc.disable()  # reading makes no circles to speak of, and many objects
    watched, reading = threading.Event(), threading.Event()
    threading.Thread(target=_watch_memory, args=(limits.memory_bytes, watched, reading), daemon=True).start()
    watched.wait()  # what a thread reserves is not counted
    _limit_memory(limits.memory_bytes)
    channel.send(ParserReady())
    while True:
        message = await channel.receive()
        if not isinstance(message, ParseRequest):
            raise EOFError
        _limit_processor(limits.cpu_s)
        reading.set()
        try:
            channel.send(verdict_on(message))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        reading.clear()
        signal.setitimer(signal.ITIMER_PROF, 0)
        await channel.flush()
        gc.collect()


def _watch_memory(more_bytes: int, watched: threading.Event, reading: threading.Event) -> None:
    """Ends the process when it has nearly as much memory more than now, while it reads."""
    at_first = _memory_bytes()
    watched.set()
    while at_first:
        reading.wait()
        time.sleep(_WATCH_S)
        if _memory_bytes() - at_first > more_bytes * _WATCHED_PART:
            os._exit(OUT_OF_MEMORY)


def _memory_bytes() -> int:
    """The address space of this process; 0: not known, because this is not Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _limit_memory(more_bytes: int) -> None:
    used_bytes = _memory_bytes()
    if not used_bytes:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = used_bytes + more_bytes
    resource.setrlimit(
        resource.RLIMIT_AS, (limit_bytes if most == resource.RLIM_INFINITY else min(limit_bytes, most), most)
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_processor(cpu_s: float) -> None:
    """From now on the process may use so much processor time, in Python or in C. Then the system ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit_s = math.ceil(used.ru_utime + used.ru_stime + cpu_s) + _CPU_MARGIN_S
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s if most == resource.RLIM_INFINITY else min(limit_s, most), most))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process


if __name__ == "__main__":
    main()
