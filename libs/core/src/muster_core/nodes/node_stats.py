"""The figures of a refusal: how many of the usable nodes have too little, by type. Also the choice of a node to
reserve.

One matrix holds the free amounts of all nodes. Before each use, only the rows of changed nodes are written. A use is
one comparison of columns.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from muster_core.model.cordons import Cordon, CordonCount, closed_counts
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.resources import ResourceTypes, Shape, saturated

if TYPE_CHECKING:
    from muster_core.model.node import Node

_ROWS_FIRST = 64
# Limit of reasons kept while no node changes: unused shapes must not fill the memory.
_REASONS_MAX = 4096
# The columns of the marks.
_LISTED, _RESERVED = 0, 1


class NodeStats:
    """The amounts of the nodes, for reasons of asks that find no room, and for the choice of a node to reserve."""

    def __init__(self, types: ResourceTypes) -> None:
        self._types = types
        self._dirty: dict[Node, None] = {}
        self._rows: dict[Node, int] = {}
        self._nodes: list[Node] = []
        self._free: Any = np.zeros((_ROWS_FIRST, 1), dtype=np.int64)
        self._capacity: Any = np.zeros((_ROWS_FIRST, 1), dtype=np.int64)
        self._marks: Any = np.zeros((_ROWS_FIRST, 2), dtype=bool)
        # Kept while no node changes: thousands of waitlists may wait with one shape.
        self._reasons: dict[Shape, Reason] = {}
        # By node, its closer; and by closer, how many nodes it closes. Nodes that do not exist any more are known by
        # their ids.
        self._closers: dict[Node | str, Cordon] = {}
        self._closed: Counter[Cordon] = Counter()

    def dispose(self) -> None:
        """Forgets all nodes. It is no longer used, see ``Partition.dispose``."""
        self._dirty.clear()
        self._rows.clear()
        self._nodes.clear()
        self._closers.clear()
        self._free = self._capacity = self._marks = None

    def closed(self) -> tuple[CordonCount, ...]:
        """By closer, how many nodes are closed or taken back."""
        self._refresh()
        return closed_counts(self._closed)

    def on_node_withdrawn(self, node_id: str, closer: Cordon | None) -> None:
        """Notes that the node does not exist; ``closer`` took it back (None: no closer did)."""
        self._close(node_id, closer)

    def _close(self, node: Node | str, closer: Cordon | None) -> None:
        """Sets the closer of the node; None: no closer."""
        old = self._closers.get(node)
        if old == closer:
            return
        if old is not None:
            self._closed[old] -= 1
            del self._closers[node]
        if closer is not None:
            self._closed[closer] += 1
            self._closers[node] = closer
        self._reasons.clear()

    def on_node_changed(self, node: Node) -> None:
        """Notes a node that changed, or is new."""
        self._dirty[node] = None

    def on_node_removed(self, node: Node) -> None:
        """Forgets a node that was removed."""
        self._dirty.pop(node, None)
        self._close(node, None)
        self._reasons.clear()
        row = self._rows.pop(node, None)
        if row is None:
            return
        last = self._nodes.pop()
        if last is not node:
            self._nodes[row] = last
            self._rows[last] = row
            for matrix in (self._free, self._capacity, self._marks):
                matrix[row] = matrix[len(self._nodes)]

    def reason(self, shape: Shape) -> Reason:
        """Why no node has room for the shape."""
        self._refresh()
        cached = self._reasons.get(shape)
        if cached is None:
            if len(self._reasons) >= _REASONS_MAX:
                self._reasons.clear()
            self._reasons[shape] = cached = self._find_reason(shape)
        return cached

    def best_to_reserve(
        self, shape: Shape, but: Iterable[Node] = (), most: int = 1, among: Iterable[Node] | None = None
    ) -> list[Node]:
        """The best nodes to reserve, the very best first: of the nodes without a reservation that could hold the shape
        when empty, those whose free resources it would use up most.

        :param but: nodes that are not eligible.
        :param most: at most so many.
        :param among: of these nodes instead, which have reservations.

        That is the lowest sum, over the types with free amounts, of the part that would be left (YuniKorn's
        FitInScore); of equal nodes, the first in the index, or by id.
        """
        self._refresh()
        count = len(self._nodes)
        if among is None:
            usable = self._marks[:count, _LISTED] & ~self._marks[:count, _RESERVED]
        else:
            usable = np.zeros(count, dtype=bool)
            usable[[self._rows[node] for node in among if node.usable and not node.taken]] = True
        for number, value in shape.items:
            usable = usable & (self._capacity[:count, number] >= saturated(value))
        for node in but:
            usable[self._rows[node]] = False
        rows = np.flatnonzero(usable)
        if not len(rows):
            return []
        requested = dict(shape.items)
        scores: Any = np.zeros(len(rows))
        # (In the order of names: type numbers differ from one fold to the next, and the order changes the last digit of
        # a sum.)
        for _, number in sorted(self._types.numbers.items()):
            free = self._free[rows, number]
            if not free.any():
                continue
            remaining = free - saturated(requested.get(number, 0))
            scores += np.divide(remaining, free, out=np.zeros(len(rows)), where=(free > 0) & (remaining > 0))
        if most == 1:
            best: Iterable[Node] = map(self._nodes.__getitem__, rows[scores == scores.min()])
            # (Nodes in the index have a key there. The others have reservations.)
            return [min(best, key=attrgetter("index_key" if among is None else "node_id"))]
        last = np.partition(scores, most - 1)[most - 1] if most < len(rows) else scores.max()
        candidates = [(scores[index], self._nodes[rows[index]]) for index in np.flatnonzero(scores <= last)]
        return [node for _, node in heapq.nsmallest(most, candidates, key=_score_and_place)]

    def reserved_with_room(self, shape: Shape) -> list[Node]:
        """The usable reserved nodes with room for the shape."""
        self._refresh()
        count = len(self._nodes)
        room = self._marks[:count, _LISTED] & self._marks[:count, _RESERVED]
        for number, value in shape.items:
            room = room & (self._free[:count, number] >= saturated(value))
        nodes = [self._nodes[row] for row in np.flatnonzero(room)]
        return [node for node in nodes if node.reservations and not node.taken]

    def _find_reason(self, shape: Shape) -> Reason:
        count = len(self._nodes)
        listed = self._marks[:count, _LISTED]
        usable = int(np.count_nonzero(listed))
        closed = closed_counts(self._closed)
        if not usable:
            return Reason(ReasonCode.NO_NODES, closed=closed)
        names = self._types.names
        short: Reason | None = None
        lacking: list[tuple[str, int]] = []
        room: Any = listed.copy()
        for number, value in shape.items:
            enough = self._free[:count, number] >= saturated(value)
            missing = int(np.count_nonzero(listed & ~enough))
            if missing:
                lacking.append((names[number], missing))
            room &= enough
            if missing < usable:
                continue
            free = max(int(self._free[:count, number][listed].max()), 0)
            largest = int(self._capacity[:count, number][listed].max())
            code = ReasonCode.LARGER_THAN_ANY_NODE if value > largest else ReasonCode.NO_NODE_HAS_ROOM
            if short is None or (code is ReasonCode.LARGER_THAN_ANY_NODE and short.code is not code):
                short = Reason(code, "", names[number], value, limit=largest, free=free)
        # The nodes with room are reserved for others: otherwise the search would have found them.
        reserved = int(np.count_nonzero(room & self._marks[:count, _RESERVED]))
        code = ReasonCode.RESERVED_FOR_OTHERS if reserved else ReasonCode.FREE_RESOURCES_SCATTERED
        return (short or Reason(code)).with_nodes(usable, reserved, tuple(lacking), closed)

    def _refresh(self) -> None:
        size = len(self._types.names)
        if self._free.shape[1] < size:
            self._free, self._capacity = (
                np.pad(matrix, ((0, 0), (0, size - matrix.shape[1]))) for matrix in (self._free, self._capacity)
            )
        if self._dirty:
            self._reasons.clear()
        for node in self._dirty:
            row = self._rows.get(node)
            if row is None:
                row = self._rows[node] = len(self._nodes)
                self._nodes.append(node)
                if row >= len(self._free):
                    self._free, self._capacity, self._marks = (
                        np.concatenate([matrix, np.zeros_like(matrix)])
                        for matrix in (self._free, self._capacity, self._marks)
                    )
            try:
                self._free[row, :size] = node.available
                self._capacity[row, :size] = node.capacity
            except OverflowError:  # sums beyond int64 are cut, as on the wire
                self._free[row, :size] = [saturated(value) for value in node.available]
                self._capacity[row, :size] = [saturated(value) for value in node.capacity]
            self._marks[row] = (node.usable, bool(node.reservations) or node.taken)
            closer = node.closer
            if closer is not None or self._closers:
                self._close(node, closer)
                self._close(node.node_id, None)
        self._dirty.clear()


def _score_and_place(scored: tuple[float, Node]) -> tuple[float, Any]:
    node = scored[1]
    return scored[0], node.node_id if node.index_key is None else node.index_key
