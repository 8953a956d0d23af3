"""The figures of a play, counted naively: from the lives alone, with nothing of muster_whatif.stats."""

from __future__ import annotations

from collections.abc import Iterable

from muster_whatif.simulation import SimulationResult, TaskOutcome


def wait_reached_by(lives: Iterable[TaskOutcome], percent: float) -> float | None:
    """Return the shortest wait that at least so many percent of the started tasks did not exceed."""
    times = [life.first_started_s - life.task.arrives_s for life in lives if life.first_started_s is not None]
    for limit in sorted(times):
        if sum(1 for time in times if time <= limit) * 100 >= percent * len(times):
            return limit
    return None


def used_at(played: SimulationResult, resource: str, moment_s: float) -> int:
    """Return what runs at a moment, if no task was preempted."""
    return sum(
        life.task.quantities.get(resource, 0)
        for life in played.lives.values()
        if life.started_s is not None
        and life.started_s <= moment_s
        and (life.ended_s is None or moment_s < life.ended_s)
    )


def over_nodes(played: SimulationResult, capacity: dict[str, dict[str, int]]) -> list[str]:
    """Return the nodes on which more ran at some moment than they have."""
    found = []
    lives = [life for life in played.lives.values() if life.started_s is not None]
    for moment_s in sorted({life.started_s for life in lives if life.started_s is not None}):
        sums: dict[tuple[str, str], int] = {}
        for life in lives:
            assert life.started_s is not None
            if life.started_s <= moment_s and (life.ended_s is None or moment_s < life.ended_s):
                for name, quantity in life.task.quantities.items():
                    sums[life.node, name] = sums.get((life.node, name), 0) + quantity
        found += [node for (node, name), quantity in sums.items() if quantity > capacity[node].get(name, 0)]
    return found
