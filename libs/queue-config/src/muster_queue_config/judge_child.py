"""The reading process: reads one configuration after the other within limits. ``judge.py`` starts it.

Its limits are the operating system's. Too much processor time ends the process, and the parent starts another one.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import signal
from pathlib import Path

from muster_runtime.as_child import become_child, run_child
from muster_runtime.channel import Channel

from muster_queue_config import compiled
from muster_queue_config.judge_messages import OUT_OF_MEMORY, Limits, Ready, Text, ToChild, Verdict
from muster_queue_config.queue_yaml import load_queue_config

# The kernel's limit counts whole seconds and catches what the timer does not.
_CPU_MARGIN_S = 2


def main() -> None:
    """Runs the child."""
    run_child(become_child("muster"), ToChild, _serve)


async def _serve(channel: Channel[Limits | Text]) -> int:
    limits = await channel.receive()
    if not isinstance(limits, Limits):
        raise EOFError
    os.nice(limits.nice)
    gc.disable()  # reading makes no circles to speak of, and many objects
    _limit_memory(limits.memory_bytes)
    channel.send(Ready())
    while True:
        message = await channel.receive()
        if not isinstance(message, Text):
            raise EOFError
        _limit_processor(limits.cpu_s)
        try:
            channel.send(_verdict(message))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
        await channel.flush()
        gc.collect()


def _verdict(message: Text) -> Verdict:
    config, problems = load_queue_config(message.text, bytes_max=message.bytes_max, queues_max=message.queues_max)
    if config is None:
        return Verdict(accepted=False, compiled=b"", problems=problems)
    return Verdict(accepted=True, compiled=compiled.encode(message.text, config), problems=problems)


def _limit_memory(more_bytes: int) -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return  # not Linux
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_processor(cpu_s: float) -> None:
    """From now on the process may use so much processor time, in Python or in C. Then the system ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = math.ceil(used.ru_utime + used.ru_stime + cpu_s) + _CPU_MARGIN_S
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process


if __name__ == "__main__":
    main()
