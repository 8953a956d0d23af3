"""The process that makes one forecast; ``forecaster.py`` starts it. It has the lowest priority, and hard limits."""

from __future__ import annotations

import math
import os
import resource
import time
from pathlib import Path

from muster_runtime.child_main import become_child, run_child
from muster_runtime.message_channel import Channel

from muster_whatif.errors import ScenarioWrong, WhatIfError
from muster_whatif.forecast.config_comparison import compare
from muster_whatif.forecast.forecast import forecast
from muster_whatif.forecast.messages import Compared, Failed, Made, OfAsk, OfPartition, OfQueue, Situation, ToChild
from muster_whatif.forecast.run_time_model import Came, Key, Known, Ran

_NICE = 19
# The forecast keeps its time itself; the kernel's limit catches what does not return.
_CPU_MARGIN = 2.0


def main() -> None:
    """Runs the child."""
    run_child(become_child("muster"), ToChild, _serve)


async def _serve(channel: Channel[Situation]) -> int:
    os.nice(_NICE)
    situation = await channel.receive()
    if situation is None:
        raise EOFError
    limit(situation.cpu_s * _CPU_MARGIN, situation.memory_bytes)
    channel.send(_answer(situation))
    await channel.flush()
    return 0


def _answer(situation: Situation) -> Made | Compared | Failed:
    try:
        return _made(situation) if situation.config is None else _compared(situation, situation.config)
    except ScenarioWrong as error:
        return Failed("the configuration would be refused", tuple(str(error).splitlines()))
    except WhatIfError as error:
        return Failed(str(error))
    except MemoryError:
        return Failed(f"it needs more than {situation.memory_bytes >> 20} MiB of memory")


def _known(situation: Situation) -> dict[Key, Known]:
    return {
        Key(each.queue, each.user, each.task_group): Known(each.ended, [Ran(*ran) for ran in each.lengths])
        for each in situation.learnt
    }


def _came(situation: Situation) -> list[Came]:
    return [Came(each[0], Key(*each[1:4]), *each[4:]) for each in situation.came]


def _made(situation: Situation) -> Made:
    found = forecast(
        situation.entries,
        _known(situation),
        situation.now_ns,
        seed=situation.seed,
        came=_came(situation),
        since_ns=situation.since_ns,
        cpu_s=situation.cpu_s,
        spent_s=time.process_time,
    )
    asks = [
        OfAsk(*name, each.earliest_ns, each.likely_ns, each.latest_ns, each.started)
        for name, each in found.estimates.items()
    ]
    return Made(asks, found.runs, dict(found.unknown), dict(found.declared), dict(found.learnt))


def _compared(situation: Situation, config: str) -> Compared:
    found = compare(
        situation.entries,
        config,
        _known(situation),
        situation.now_ns,
        seed=situation.seed,
        came=_came(situation),
        since_ns=situation.since_ns,
        cpu_s=situation.cpu_s,
        spent_s=time.process_time,
    )
    queues = [
        OfQueue(*place, asks, *((each.started, each.half_s, each.most_s) for each in (present, other)))
        for place, (asks, present, other) in found.queues.items()
    ]
    rises = [
        OfPartition(partition, list(each.moments_s), list(each.present), list(each.other))
        for partition, each in found.rises.items()
    ]
    return Compared(queues, rises, found.runs)


def limit(cpu_s: float, more_bytes: int) -> None:
    """Limits this process: the system ends it after so much more processor time, and refuses more memory."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + cpu_s) + 1)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return  # not Linux
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + more_bytes)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(what: int, wanted: int) -> None:
    _, most = resource.getrlimit(what)
    resource.setrlimit(what, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


if __name__ == "__main__":
    main()
