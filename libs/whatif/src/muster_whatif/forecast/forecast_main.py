"""The process that makes one forecast; ``forecaster.py`` starts it. It has the lowest priority, and hard limits."""

from __future__ import annotations

import math
import os
import resource
import time
from pathlib import Path

from muster_runtime.child_main import become_child, run_child
from muster_runtime.message_channel import Channel

from muster_whatif.errors import InvalidScenario, WhatIfError
from muster_whatif.forecast.config_comparison import compare
from muster_whatif.forecast.forecast import forecast
from muster_whatif.forecast.messages import (
    AskEstimate,
    ComparisonResult,
    ForecastFailed,
    ForecastRequest,
    ForecastResult,
    PartitionComparison,
    QueueComparison,
    ToChild,
)
from muster_whatif.forecast.run_time_model import PastAsk, RunTimeKey, RunTimeSample, RunTimeSamples

_NICE = 19
# The forecast keeps its time itself; the kernel's limit catches what does not return.
_CPU_MARGIN = 2.0


def main() -> None:
    """Runs the child."""
    run_child(become_child("muster"), ToChild, _serve)


async def _serve(channel: Channel[ForecastRequest]) -> int:
    os.nice(_NICE)
    situation = await channel.receive()
    if situation is None:
        raise EOFError
    limit(situation.cpu_s * _CPU_MARGIN, situation.memory_bytes)
    channel.send(_answer(situation))
    await channel.flush()
    return 0


def _answer(situation: ForecastRequest) -> ForecastResult | ComparisonResult | ForecastFailed:
    try:
        return _made(situation) if situation.config is None else _compared(situation, situation.config)
    except InvalidScenario as error:
        return ForecastFailed("the configuration would be refused", tuple(str(error).splitlines()))
    except WhatIfError as error:
        return ForecastFailed(str(error))
    except MemoryError:
        return ForecastFailed(f"it needs more than {situation.memory_bytes >> 20} MiB of memory")


def _known(situation: ForecastRequest) -> dict[RunTimeKey, RunTimeSamples]:
    return {
        RunTimeKey(each.queue, each.user, each.task_group): RunTimeSamples(
            each.ended, [RunTimeSample(*ran) for ran in each.lengths]
        )
        for each in situation.learnt
    }


def _came(situation: ForecastRequest) -> list[PastAsk]:
    return [PastAsk(each[0], RunTimeKey(*each[1:4]), *each[4:]) for each in situation.came]


def _made(situation: ForecastRequest) -> ForecastResult:
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
        AskEstimate(*name, each.earliest_ns, each.likely_ns, each.latest_ns, each.started)
        for name, each in found.estimates.items()
    ]
    return ForecastResult(asks, found.runs, dict(found.unknown), dict(found.declared), dict(found.learnt))


def _compared(situation: ForecastRequest, config: str) -> ComparisonResult:
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
        QueueComparison(*place, asks, *((each.started, each.half_s, each.most_s) for each in (present, other)))
        for place, (asks, present, other) in found.queues.items()
    ]
    rises = [
        PartitionComparison(partition, list(each.moments_s), list(each.present), list(each.other))
        for partition, each in found.rises.items()
    ]
    return ComparisonResult(queues, rises, found.runs)


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
