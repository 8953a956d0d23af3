"""The free placeholders of one task group, found by what they can make room for and where.

A real ask takes the oldest that is large enough and on whose node it may run. Those of one shape on one node are alike
in that, so one look decides for all of them: a gang of thousands on nodes that drain costs one look for each node.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Allocation
    from muster_scheduler.core.resources import Shape

# (allocated_ns, submission, ordinal, placeholder): by age, in an order that a fold finds again.
_Entry = tuple[int, int, int, Any]


class FreePlaceholders:
    """Those that hold room and were not told to go; iterated oldest first."""

    __slots__ = ("_nodes", "_oldest")

    def __init__(self) -> None:
        self._nodes: dict[Shape, dict[str, Any]] = {}
        # The oldest of each node.
        self._oldest: dict[Shape, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __len__(self) -> int:
        return sum(len(found) for nodes in self._nodes.values() for found in nodes.values())

    def __contains__(self, placeholder: Allocation) -> bool:
        found = self._nodes.get(placeholder.shape, {}).get(placeholder.node_id)
        return found is not None and _entry(placeholder) in found

    def __iter__(self) -> Iterator[Allocation]:
        lists = [found for nodes in self._nodes.values() for found in nodes.values()]
        return (entry[-1] for entry in heapq.merge(*lists))

    def add(self, placeholder: Allocation) -> None:
        """It is free."""
        nodes = self._nodes.setdefault(placeholder.shape, {})
        oldest = self._oldest.setdefault(placeholder.shape, SortedList())
        found = nodes.setdefault(placeholder.node_id, SortedList())
        before = found[0] if found else None
        found.add(_entry(placeholder))
        if before is not found[0]:
            if before is not None:
                oldest.remove(before)
            oldest.add(found[0])

    def discard(self, placeholder: Allocation) -> None:
        """It is free no more, if it was."""
        if placeholder not in self:
            return
        shape, node_id = placeholder.shape, placeholder.node_id
        nodes, oldest = self._nodes[shape], self._oldest[shape]
        found = nodes[node_id]
        before = found[0]
        found.remove(_entry(placeholder))
        if found and found[0] is before:
            return
        oldest.remove(before)
        if found:
            oldest.add(found[0])
            return
        del nodes[node_id]
        if not nodes:
            del self._nodes[shape], self._oldest[shape]

    def on(self, node_id: str) -> bool:
        """Whether any of them is on the node."""
        return any(node_id in nodes for nodes in self._nodes.values())

    def first(self) -> Allocation:
        """The oldest of all."""
        entry: _Entry = min(oldest[0] for oldest in self._oldest.values())
        placeholder: Allocation = entry[-1]
        return placeholder

    def covering(self, shape: Shape) -> Iterator[Allocation]:
        """The oldest of each node that holds at least as much of everything, oldest first."""
        lists = [oldest for own, oldest in self._oldest.items() if covers(own, shape)]
        return (entry[-1] for entry in (lists[0] if len(lists) == 1 else heapq.merge(*lists)))


def _entry(placeholder: Allocation) -> _Entry:
    return (placeholder.allocated_ns, placeholder.submission, placeholder.ordinal, placeholder)


def covers(placeholder: Shape, real: Shape) -> bool:
    """Whether the real ask takes no more than the placeholder, in any type."""
    if placeholder is real:
        return True
    has = dict(placeholder.items)
    return all(value <= has.get(number, 0) for number, value in real.items)
