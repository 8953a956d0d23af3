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
        RunTimeKey(message.queue, message.user, message.task_group): RunTimeSamples(
            message.ended, [RunTimeSample(*ran) for ran in message.lengths]
        )
        for message in situation.learnt
    }


def _came(situation: ForecastRequest) -> list[PastAsk]:
    return [PastAsk(row[0], RunTimeKey(*row[1:4]), *row[4:]) for row in situation.came]


def _made(situation: ForecastRequest) -> ForecastResult:
    prediction = forecast(
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
        AskEstimate(*name, estimate.earliest_ns, estimate.likely_ns, estimate.latest_ns, estimate.started)
        for name, estimate in prediction.estimates.items()
    ]
    return ForecastResult(
        asks, prediction.runs, dict(prediction.unknown), dict(prediction.declared), dict(prediction.learnt)
    )


def _compared(situation: ForecastRequest, config: str) -> ComparisonResult:
    comparison = compare(
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
        QueueComparison(
            *queue_key, asks, *((outlook.started, outlook.half_s, outlook.most_s) for outlook in (present, changed))
        )
        for queue_key, (asks, present, changed) in comparison.queues.items()
    ]
    rises = [
        PartitionComparison(partition, list(curve.moments_s), list(curve.present), list(curve.other))
        for partition, curve in comparison.rises.items()
    ]
    return ComparisonResult(queues, rises, comparison.runs)


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


def _lower(resource_id: int, new_limit: int) -> None:
    _, most = resource.getrlimit(resource_id)
    resource.setrlimit(resource_id, (new_limit if most == resource.RLIM_INFINITY else min(new_limit, most), most))


if __name__ == "__main__":
    main()
