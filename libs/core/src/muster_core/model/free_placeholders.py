"""The free placeholders of one task group, by size and by node.

A real ask takes the oldest placeholder that is large enough and on whose node it may run. Placeholders of one shape on
one node are alike in this respect, so one check decides for all of them: a gang of thousands on draining nodes costs
one check for each node.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from muster_core.model.resources import Shape

# (allocated_ns, submission, ordinal, placeholder): by age, in an order that a fold restores.
_Entry = tuple[int, int, int, Any]


class PlaceholderLike(Protocol):
    """A placeholder: its shape, its node and its age."""

    @property
    def shape(self) -> Shape:
        """The amounts that it takes."""

    @property
    def node_id(self) -> str:
        """The id of its node."""

    @property
    def allocated_ns(self) -> int:
        """When it was allocated."""

    @property
    def submission(self) -> int:
        """The order of arrival of its ask."""

    @property
    def ordinal(self) -> int:
        """Its number among the allocations of its ask."""


H = TypeVar("H", bound=PlaceholderLike)


class FreePlaceholders(Generic[H]):
    """The placeholders that hold room and are not released; iterated oldest first."""

    __slots__ = ("_nodes", "_oldest")

    def __init__(self) -> None:
        self._nodes: dict[Shape, dict[str, Any]] = {}
        # By shape, the oldest placeholder of each node.
        self._oldest: dict[Shape, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __len__(self) -> int:
        return sum(len(entries) for nodes in self._nodes.values() for entries in nodes.values())

    def __contains__(self, placeholder: H) -> bool:
        entries = self._nodes.get(placeholder.shape, {}).get(placeholder.node_id)
        return entries is not None and _entry(placeholder) in entries

    def __iter__(self) -> Iterator[H]:
        lists = [entries for nodes in self._nodes.values() for entries in nodes.values()]
        for entry in heapq.merge(*lists):
            yield entry[-1]

    def add(self, placeholder: H) -> None:
        """Adds a free placeholder."""
        shape, node_id, entry = placeholder.shape, placeholder.node_id, _entry(placeholder)
        nodes = self._nodes.get(shape)
        if nodes is None:
            nodes = self._nodes[shape] = {}
            self._oldest[shape] = SortedList()
        entries = nodes.get(node_id)
        if entries is None:
            nodes[node_id] = SortedList((entry,))
            self._oldest[shape].add(entry)
            return
        before = entries[0]
        entries.add(entry)
        if entries[0] == entry:
            self._oldest[shape].remove(before)
            self._oldest[shape].add(entry)

    def discard(self, placeholder: H) -> None:
        """Removes a placeholder that is not free any more; does nothing if it was not free."""
        shape, node_id, entry = placeholder.shape, placeholder.node_id, _entry(placeholder)
        nodes = self._nodes.get(shape)
        entries = nodes.get(node_id) if nodes is not None else None
        if nodes is None or entries is None:
            return
        was_oldest = entries[0] == entry
        before = len(entries)
        entries.discard(entry)
        if len(entries) == before or not was_oldest:
            return
        oldest = self._oldest[shape]
        oldest.remove(entry)
        if entries:
            oldest.add(entries[0])
            return
        del nodes[node_id]
        if not nodes:
            del self._nodes[shape], self._oldest[shape]

    def on(self, node_id: str) -> bool:
        """Whether any of them is on the node."""
        return any(node_id in nodes for nodes in self._nodes.values())

    def first(self) -> H:
        """The oldest placeholder."""
        entry: _Entry = min(oldest[0] for oldest in self._oldest.values())
        placeholder: H = entry[-1]
        return placeholder

    def covering(self, shape: Shape) -> Iterator[H]:
        """Yields the oldest placeholder of each node that holds at least as much of every type, oldest first."""
        lists = [oldest for own, oldest in self._oldest.items() if covers(own, shape)]
        for entry in lists[0] if len(lists) == 1 else heapq.merge(*lists):
            yield entry[-1]


def _entry(placeholder: PlaceholderLike) -> _Entry:
    return (placeholder.allocated_ns, placeholder.submission, placeholder.ordinal, placeholder)


def covers(placeholder: Shape, real: Shape) -> bool:
    """Whether the real ask takes no more of any type than the placeholder."""
    if placeholder is real:
        return True
    has = dict(placeholder.items)
    return all(value <= has.get(number, 0) for number, value in real.items)


def to_come(
    total: Shape | None,
    placed: Mapping[int, int],
    taken: Mapping[int, int],
    pending: Mapping[int, int],
    ended: Mapping[int, int],
) -> dict[int, int]:
    """By type number, what a gang's placeholders may still take of the announced total: what is pending, or was not
    asked for yet. A placeholder that ended does not come back, unless the RM asks for another one.
    """
    amounts: dict[int, int] = {}
    for number, value in total.items if total is not None else ():
        unasked = value - taken.get(number, 0) - ended.get(number, 0)
        remaining = min(value - placed.get(number, 0), max(pending.get(number, 0), unasked))
        if remaining > 0:
            amounts[number] = remaining
    return amounts
