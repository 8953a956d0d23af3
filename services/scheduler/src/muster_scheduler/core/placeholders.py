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
        shape, node_id, entry = placeholder.shape, placeholder.node_id, _entry(placeholder)
        nodes = self._nodes.get(shape)
        if nodes is None:
            nodes = self._nodes[shape] = {}
            self._oldest[shape] = SortedList()
        found = nodes.get(node_id)
        if found is None:
            nodes[node_id] = SortedList((entry,))
            self._oldest[shape].add(entry)
            return
        before = found[0]
        found.add(entry)
        if found[0] is entry:
            self._oldest[shape].remove(before)
            self._oldest[shape].add(entry)

    def discard(self, placeholder: Allocation) -> None:
        """It is free no more, if it was."""
        shape, node_id, entry = placeholder.shape, placeholder.node_id, _entry(placeholder)
        nodes = self._nodes.get(shape)
        found = nodes.get(node_id) if nodes is not None else None
        if nodes is None or found is None:
            return
        was_oldest = found[0] == entry
        before = len(found)
        found.discard(entry)
        if len(found) == before or not was_oldest:
            return
        oldest = self._oldest[shape]
        oldest.remove(entry)
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
