"""Two futures of the present state: under the configuration in force, and under another one.

Both run forward with the same lengths of what runs now, and with the same asks to come. What is compared is when the
asks start that wait now.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from muster_core.config.queue_config import ClusterConfig
from muster_core.model.commands import UpdateConfiguration
from muster_core.model.outcome import ConfigurationResult
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_state.snapshot import Entry

from muster_whatif.errors import ForecastUnavailable, InvalidScenario
from muster_whatif.forecast.forecast import HORIZON_S, fold_entries, future_asks, past_asks, run_time_source, running_of
from muster_whatif.forecast.forward_simulation import AskName, ForwardSimulation, pending
from muster_whatif.forecast.run_time_model import PastAsk, RunTimeKey, RunTimeSampler, RunTimeSamples
from muster_whatif.stats import percentile
from muster_whatif.workload import NS_PER_S

RUNS = 9  # pairs of runs, if the processor time is enough
MOMENTS = 60
_NEVER = float("inf")
_SHOWN = 98  # percent of the starts that the curves show; a few late ones would press the others together


@dataclass(frozen=True, slots=True)
class StartOutlook:
    """When the asks of a queue that wait now start, over all runs. Seconds from now; None: not within the horizon.

    :ivar started: the share that starts within the horizon.
    :ivar half_s: half of them have started by then; ``most_s``: 95 %.
    """

    started: float
    half_s: float | None
    most_s: float | None


@dataclass(frozen=True, slots=True)
class StartCurve:
    """The share of a partition's waiting asks that have started by each moment, under both configurations."""

    moments_s: Sequence[float]
    present: Sequence[float]
    other: Sequence[float]


@dataclass(frozen=True, slots=True)
class ConfigComparison:
    """Both futures.

    :ivar queues: by partition and queue: how many asks wait there; when they start as it is; and under the other one.
    :ivar rises: by partition.
    :ivar runs: pairs of runs.
    """

    queues: Mapping[tuple[str, str], tuple[int, StartOutlook, StartOutlook]]
    rises: Mapping[str, StartCurve]
    runs: int


def compare(
    entries: Sequence[Entry],
    config: str,
    learnt: Mapping[RunTimeKey, RunTimeSamples],
    now_ns: int,
    *,
    seed: int = 1,
    runs: int = RUNS,
    came: Sequence[PastAsk] = (),
    since_ns: int = 0,
    cpu_s: float = float("inf"),
    spent_s: Callable[[], float] = lambda: 0.0,
) -> ConfigComparison:
    """Returns both futures of the asks that wait now.

    :param config: the other queue configuration (YAML).
    :param cpu_s: processor time; with less than the runs need, fewer runs. The other parameters are those of
        :func:`muster_whatif.forecast.forecast.forecast`.

    Raises InvalidScenario with the configuration's errors, one in a line; ForecastUnavailable if the time is not enough
    for one pair of runs. Raises CodecError.
    """
    new_config, problems = load_queue_config(config)
    if new_config is None:
        raise InvalidScenario("\n".join(str(problem) for problem in problems))
    began_s, longest_s, done = spent_s(), 0.0, 0
    queue_of: dict[AskName, str] = {}
    past: list[PastAsk] = []
    starts: tuple[dict[AskName, list[float]], dict[AskName, list[float]]] = ({}, {})
    while done < runs and spent_s() - began_s + longest_s <= cpu_s:
        run_began_s = spent_s()
        for side, changed in enumerate((None, new_config)):
            core = fold_entries(entries, now_ns).core
            ask_names = pending(core)
            if not done and changed is None:
                past = past_asks(core, came, since_ns)
                queue_of = {name: core.partitions[name[0]].apps[name[1]].queue.path for name in ask_names}
            # (The state decides about what is to come, not the configuration.)
            dice = random.Random(f"{seed}/{done}")  # noqa: S311 - a simulation
            draw = run_time_source(RunTimeSampler(learnt, running_of(core, now_ns), dice))
            comers = future_asks(past, since_ns, now_ns, dice) if since_ns else iter(())
            if changed is not None:
                _reconfigure(core, changed, now_ns)
            until_s = run_began_s + cpu_s
            forward = ForwardSimulation(core, draw, now_ns, comers, lambda until_s=until_s: spent_s() <= until_s)  # type: ignore[misc]
            for name, started_ns in forward.run(ask_names, now_ns + round(HORIZON_S * NS_PER_S)).items():
                starts[side].setdefault(name, []).append((started_ns - now_ns) / NS_PER_S)
        longest_s = max(longest_s, spent_s() - run_began_s)
        if longest_s > cpu_s:
            break  # the pair was broken off
        done += 1
    if not done:
        raise ForecastUnavailable(f"a pair of runs takes more than {cpu_s:.0f} s of processor time")
    return _futures(queue_of, starts, done)


def _reconfigure(core: SchedulerCore, config: ClusterConfig, now_ns: int) -> None:
    """Replaces the configuration. Raises InvalidScenario with what is in the way."""
    for fact in core.apply(UpdateConfiguration(config), now_ns).facts:
        if isinstance(fact, ConfigurationResult) and fact.obstacles:
            raise InvalidScenario("\n".join(fact.obstacles))


def _futures(
    queue_of: Mapping[AskName, str],
    starts: tuple[Mapping[AskName, list[float]], Mapping[AskName, list[float]]],
    runs: int,
) -> ConfigComparison:
    asks: dict[tuple[str, str], list[AskName]] = {}
    for name, queue in queue_of.items():
        asks.setdefault((name[0], queue), []).append(name)
    queues = {
        queue_key: (len(names), *(_outlook(_of(side, names), len(names) * runs) for side in starts))
        for queue_key, names in sorted(asks.items())
    }
    rises = {}
    for partition in sorted({partition for partition, _ in asks}):
        names = [name for name in queue_of if name[0] == partition]
        present_s, other_s = (_of(side, names) for side in starts)
        rises[partition] = _rise(present_s, other_s, len(names) * runs)
    return ConfigComparison(queues, rises, runs)  # type: ignore[arg-type]


def _of(starts: Mapping[AskName, list[float]], names: Sequence[AskName]) -> list[float]:
    return sorted(start_s for name in names for start_s in starts.get(name, ()))


def _outlook(times_s: Sequence[float], count: int) -> StartOutlook:
    every = [*times_s, *[_NEVER] * (count - len(times_s))]
    half_s, most_s = (percentile(every, percent) for percent in (50, 95))
    return StartOutlook(
        len(times_s) / count, None if half_s == _NEVER else half_s, None if most_s == _NEVER else most_s
    )


def _rise(present_s: Sequence[float], other_s: Sequence[float], count: int) -> StartCurve:
    last_s = max(percentile(times_s, _SHOWN) or 0.0 for times_s in (present_s, other_s)) or 1.0
    moments = [last_s * number / MOMENTS for number in range(MOMENTS + 1)]
    return StartCurve(
        moments, *([bisect_right(times_s, at) / count for at in moments] for times_s in (present_s, other_s))
    )
