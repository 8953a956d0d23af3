"""The figures of a play: waits, use, fairness. Times in seconds, use in resource-seconds, shares from 0 to 1."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster_whatif.simulation import SimulationResult, TaskOutcome, steps

_PERCENTILES = (50, 95)
PIECES = 200


@dataclass(frozen=True, slots=True)
class WaitStats:
    """How long tasks waited for their first start. Tasks that never started are counted, not averaged.

    :ivar never: neither started nor refused.
    """

    tasks: int
    started: int
    never: int
    refused: int
    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    preemptions: int


@dataclass(frozen=True, slots=True)
class UsageStats:
    """Use of one resource type.

    :ivar used_seconds: by runs that ended, or run at the end.
    :ivar share: of the capacity, while tasks arrive: the rest of the play only empties the cluster.
    :ivar series: the share in equal pieces of the time from the first arrival to the last end.
    """

    capacity: int
    used_seconds: float
    share: float
    series: Sequence[float]


@dataclass(frozen=True, slots=True)
class SimulationStats:
    """All figures of a play.

    :ivar fairness: Jain's index over the users' dominant shares: 1 all alike, 1/n one has everything. None: one user.
    :ivar makespan_s: from the first arrival to the last end.
    :ivar starts: task → first start.
    """

    name: str
    all: WaitStats
    queues: Mapping[str, WaitStats]
    users: Mapping[str, WaitStats]
    priorities: Mapping[str, WaitStats]
    use: Mapping[str, UsageStats]
    queue_seconds: Mapping[str, Mapping[str, float]]
    fairness: float | None
    makespan_s: float
    decisions: int
    starts: Mapping[str, float]


def figures(played: SimulationResult) -> SimulationStats:
    """Returns the figures of a play."""
    lives = list(played.lives.values())
    first_s = min((life.task.arrives_s for life in lives), default=0.0)
    last_s = max((life.ended_s for life in lives if life.ended_s is not None), default=first_s)
    span_s = last_s - first_s
    seconds = _resource_seconds(lives, played.until_s)
    queue_seconds = _by(lives, lambda life: life.task.queue, played.until_s)
    user_seconds = _by(lives, lambda life: life.task.user, played.until_s)
    arrived_s = max((life.task.arrives_s for life in lives), default=first_s)
    use = {
        name: UsageStats(
            capacity,
            seconds.get(name, 0.0),
            _pieces(played, name, capacity, first_s, arrived_s, 1)[0],
            _pieces(played, name, capacity, first_s, last_s, PIECES),
        )
        for name, capacity in sorted(played.capacity.items())
    }
    dominant = [
        max((used / played.capacity[name] for name, used in usage.items() if played.capacity.get(name)), default=0.0)
        for usage in user_seconds.values()
    ]
    return SimulationStats(
        played.scenario.name,
        wait_stats(lives),
        _grouped(lives, lambda life: life.task.queue),
        _grouped(lives, lambda life: life.task.user),
        _grouped(lives, lambda life: str(life.task.priority)),
        use,
        queue_seconds,
        jain(dominant) if len(dominant) > 1 else None,
        span_s,
        played.decisions,
        {name: life.first_started_s for name, life in played.lives.items() if life.first_started_s is not None},
    )


def _pieces(
    played: SimulationResult, name: str, capacity: int, begin_s: float, end_s: float, count: int
) -> list[float]:
    """Returns the mean share in use in each of so many equal pieces of a time."""
    width_s = (end_s - begin_s) / count
    sums = [0.0] * count
    if width_s <= 0 or not capacity:
        return sums
    for from_s, to_s, used in steps(played, name):
        # From the beginning on: beside times since 1970 a small part of a piece would be lost in rounding.
        low, high = max(from_s - begin_s, 0.0), min(to_s, end_s) - begin_s
        while low < high:
            piece = min(int(low / width_s), count - 1)
            edge = high if piece == count - 1 else min(high, (piece + 1) * width_s)
            sums[piece] += used * (max(edge, low) - low)
            if edge <= low:  # rounding: the next piece
                edge = low + width_s * 1e-9
            low = edge
    return [piece_sum / (capacity * width_s) for piece_sum in sums]


def wait_stats(lives: Iterable[TaskOutcome]) -> WaitStats:
    """Returns how long these tasks waited."""
    lives = list(lives)
    times = sorted(
        max(life.first_started_s - life.task.arrives_s, 0.0) for life in lives if life.first_started_s is not None
    )
    refused = sum(1 for life in lives if life.rejected)
    p50_s, p95_s = (percentile(times, percent) for percent in _PERCENTILES)
    return WaitStats(
        len(lives),
        len(times),
        len(lives) - len(times) - refused,
        refused,
        p50_s,
        p95_s,
        times[-1] if times else None,
        sum(life.preempted for life in lives),
    )


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Returns the smallest value that so many percent of the values do not exceed; None: there are none."""
    if not ordered:
        return None
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def jain(shares: Sequence[float]) -> float:
    """Returns Jain's fairness index of shares."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _groups(lives: Iterable[TaskOutcome], key: Callable[[TaskOutcome], str]) -> dict[str, list[TaskOutcome]]:
    """Returns the lives by key, in the keys' order."""
    groups: dict[str, list[TaskOutcome]] = defaultdict(list)
    for life in lives:
        groups[key(life)].append(life)
    return dict(sorted(groups.items()))


def _grouped(lives: Iterable[TaskOutcome], key: Callable[[TaskOutcome], str]) -> dict[str, WaitStats]:
    return {name: wait_stats(group) for name, group in _groups(lives, key).items()}


def _by(lives: Iterable[TaskOutcome], key: Callable[[TaskOutcome], str], until_s: float) -> dict[str, dict[str, float]]:
    return {name: _resource_seconds(group, until_s) for name, group in _groups(lives, key).items()}


def _resource_seconds(lives: Iterable[TaskOutcome], until_s: float) -> dict[str, float]:
    """Returns what the runs used that ended, or still run; a run that was preempted counts as lost work."""
    sums: dict[str, float] = defaultdict(float)
    for life in lives:
        if life.started_s is None:
            continue
        ran_s = (until_s if life.ended_s is None else life.ended_s) - life.started_s
        for name, quantity in life.task.quantities.items():
            sums[name] += quantity * ran_s
    return dict(sums)
