"""The figures of a "no": of all nodes that may be used, how many have too little of what.

The free amounts of all nodes stand in one matrix, of which only the rows of nodes that changed are written anew before
a look: a look is one comparison of columns, whatever happened in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import Shape, Types, saturated

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Node

_ROWS_FIRST = 64
# Columns of the marks.
_LISTED, _RESERVED = 0, 1


class NodeFigures:
    """What the nodes have, for the reasons of those that find no room."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._dirty: dict[Node, None] = {}
        self._rows: dict[Node, int] = {}
        self._nodes: list[Node] = []
        self._free: Any = np.zeros((_ROWS_FIRST, 1), dtype=np.int64)
        self._capacity: Any = np.zeros((_ROWS_FIRST, 1), dtype=np.int64)
        self._marks: Any = np.zeros((_ROWS_FIRST, 2), dtype=bool)

    def changed(self, node: Node) -> None:
        """Something of the node changed, or it is new."""
        self._dirty[node] = None

    def gone(self, node: Node) -> None:
        """The node is no more."""
        self._dirty.pop(node, None)
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
        """Why no node takes the shape."""
        self._refresh()
        count = len(self._nodes)
        listed = self._marks[:count, _LISTED]
        usable = int(np.count_nonzero(listed))
        if not usable:
            return Reason(ReasonCode.NO_NODES)
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
        # Nodes with room are kept free for others: else the search would have found them.
        reserved = int(np.count_nonzero(room & self._marks[:count, _RESERVED]))
        code = ReasonCode.RESERVED_FOR_OTHERS if reserved else ReasonCode.FREE_RESOURCES_SCATTERED
        return (short or Reason(code)).with_nodes(usable, reserved, tuple(lacking))

    def _refresh(self) -> None:
        size = len(self._types.names)
        if self._free.shape[1] < size:
            self._free, self._capacity = (
                np.pad(matrix, ((0, 0), (0, size - matrix.shape[1]))) for matrix in (self._free, self._capacity)
            )
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
            except OverflowError:  # sums beyond int64: as on the wire
                self._free[row, :size] = [saturated(value) for value in node.available]
                self._capacity[row, :size] = [saturated(value) for value in node.capacity]
            self._marks[row] = (node.schedulable, bool(node.reservations))
        self._dirty.clear()
