"""The books of a replay: the outcome of each task. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Resources = Mapping[str, int]


@dataclass(slots=True)
class Accounts:
    """One entry for each task: asked, then allocated or rejected; and all defects.

    :param demands: task → the resources that it asks for.
    :param capacities: node → its resources.
    """

    demands: Mapping[str, Resources]
    capacities: Mapping[str, Resources]
    asked_at: dict[str, float] = field(default_factory=dict)
    placed_on: dict[str, str] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    placed_twice: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    never_asked: list[str] = field(default_factory=list)
    last_placed_at: float = 0.0

    def asked(self, keys: Iterable[str], at_s: float) -> None:
        """Records asks just before they are given to the stream."""
        for key in keys:
            self.asked_at.setdefault(key, at_s)

    def allocated(self, key: str, node: str, at_s: float) -> None:
        """Records an allocation. A second one for the same task is a defect, on whatever node."""
        if key in self.placed_on:
            self.placed_twice.append(key)
            return
        if key not in self.asked_at:
            self.never_asked.append(key)
            return
        self.placed_on[key] = node
        self.latencies_s.append(at_s - self.asked_at[key])
        self.last_placed_at = at_s

    def refused(self, key: str, reason: str) -> None:
        """Records a rejection."""
        self.rejected[key] = reason

    def ended(self, key: str) -> None:
        """Records a release, though the replay releases nothing."""
        self.released.append(key)

    def open(self) -> set[str]:
        """Returns the tasks that are neither allocated nor rejected."""
        return self.demands.keys() - self.placed_on.keys() - self.rejected.keys()

    def overcommitted(self) -> list[str]:
        """Returns the nodes whose allocations exceed their capacity, and unknown nodes."""
        used: dict[str, dict[str, int]] = {}
        for key, node in self.placed_on.items():
            on_node = used.setdefault(node, {})
            for name, quantity in self.demands[key].items():
                on_node[name] = on_node.get(name, 0) + quantity
        return sorted(
            node
            for node, on_node in used.items()
            if any(quantity > self.capacities.get(node, {}).get(name, 0) for name, quantity in on_node.items())
        )

    def used(self) -> dict[str, int]:
        """Returns the sum of all allocations, by type."""
        sums: dict[str, int] = {}
        for key in self.placed_on:
            for name, quantity in self.demands[key].items():
                sums[name] = sums.get(name, 0) + quantity
        return sums


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that ``percent`` of all values do not exceed (nearest rank); 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
