"""The smallest number of further machines with which a goal is reached: by doubling, then by bisection.

More machines may, now and then, make a single wait longer (other tasks start first). Then the number that is found
reaches the goal, and the one before it does not; a smaller one that does may exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from muster_whatif.errors import InvalidScenario
from muster_whatif.matrix import ExperimentPoint
from muster_whatif.stats import SimulationStats, WaitStats

_GOAL = re.compile(
    r"(p50|p95|max) wait(?: of (queue |user |priority )?(\S+))? < ([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|min|h|d)"
)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
MACHINES_MAX = 1 << 14


@dataclass(frozen=True, slots=True)
class CapacityGoal:
    """A wait that must be shorter than a limit.

    :param group: "queues", "users" or "priorities"; "": all tasks.
    """

    text: str
    percentile: str
    group: str
    name: str
    below_s: float

    @classmethod
    def parse(cls, text: str) -> CapacityGoal:
        """Reads ``p95 wait of root.ml < 10m``, ``max wait of user ann < 2 h``. Raises InvalidScenario."""
        parts = _GOAL.fullmatch(text.strip())
        if parts is None:
            raise InvalidScenario(
                f"goal: {text!r}, expected (p50|p95|max) wait [of [queue|user|priority] NAME] < TIME, "
                "such as: p95 wait of root.ml < 10m"
            )
        kind = (parts[2] or "queue ").strip() if parts[3] else ""
        group = {"": "", "queue": "queues", "user": "users", "priority": "priorities"}[kind]
        return cls(text, parts[1], group, parts[3] or "", float(parts[4]) * _SECONDS[parts[5]])

    def value_s(self, stats: SimulationStats) -> float | None:
        """Returns the wait; None: not all tasks started, so it has no end. Raises InvalidScenario."""
        waits: WaitStats = stats.all
        if self.group:
            groups = getattr(stats, self.group)
            if self.name not in groups:
                raise InvalidScenario(f"goal: no task of {self.name!r}, expected one of {', '.join(groups)}")
            waits = groups[self.name]
        value: float | None = getattr(waits, f"{self.percentile}_s")
        return None if waits.never or value is None else value

    def is_reached(self, stats: SimulationStats) -> bool:
        value_s = self.value_s(stats)
        return value_s is not None and value_s < self.below_s


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One simulation of the search."""

    more: int
    value_s: float | None
    is_reached: bool


def search(
    point: ExperimentPoint, kind: str, goal: CapacityGoal, run: Callable[[ExperimentPoint], SimulationStats]
) -> tuple[int | None, list[SearchStep]]:
    """Returns the number of further machines, and all steps. None: not even ``MACHINES_MAX`` are enough."""
    steps: dict[int, SearchStep] = {}

    def reaches(more: int) -> bool:
        changes = (*point.scenario.changes, *((f"+{more}:{kind}",) if more else ()))
        stats = run(replace(point, scenario=replace(point.scenario, changes=changes)))
        steps[more] = SearchStep(more, goal.value_s(stats), goal.is_reached(stats))
        return steps[more].is_reached

    # 1. a number that is enough
    low, high = -1, 0
    while not reaches(high):
        low, high = high, max(2 * high, 1)
        if high > MACHINES_MAX:
            return None, list(steps.values())
    # 2. the smallest between the last one that was not and this one
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high, list(steps.values())
