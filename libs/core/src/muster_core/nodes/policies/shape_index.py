"""The base of policies whose order of nodes depends on the ask's shape.

Under ``fair`` and ``binpacking`` there is one order of nodes for all asks (``node_index.py``). Here each shape has its
own order: by a *value* of each node, lowest first, then by the policy's score, then by node id.

A value is a function of the node, the shape and the workload as they are, never of their past: it is the same after a
recovery. The index keeps the values of each shape and corrects them lazily. A search measures the nodes that changed
since the last search for that shape, all at once (numpy), and takes the lowest value. Integers are computed as
integers; floating-point values by the same operations in the same order for each node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from muster_core.model.resources import INT64_MAX, INT64_MIN, ResourceTypes
from muster_core.nodes.node_index import Items, NodeIndex

if TYPE_CHECKING:
    from muster_core.model.node import Node

# The values of so many shapes are kept: 20 MB at 10,000 nodes. The shape measured first is dropped first.
KEPT_SHAPES_MAX = 256

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Values = Ints | Floats
Slots = Ints


class _ShapeScores:
    """A shape's value of each node, with the index version at which they were measured."""

    __slots__ = ("values", "version")

    def __init__(self, values: Values, version: int) -> None:
        self.values = values
        self.version = version


class ShapeIndex(NodeIndex):
    """Nodes with an own order for each shape. A node's score decides between equal values.

    Slots number the nodes in the order of their ids.
    """

    __slots__ = (
        "_capacity",
        "_changed",
        "_free",
        "_measured",
        "_nodes",
        "_present",
        "_renumber",
        "_scores",
        "_slots",
        "_types",
        "_unread",
    )

    #: The value of a node that has no room.
    nowhere: int | float

    def __init__(self, types: ResourceTypes) -> None:
        super().__init__()
        self._types = types
        self._renumber = True
        self._slots: dict[str, int] = {}
        self._nodes: list[Node] = []
        self._free: Ints = np.empty((0, 0), np.int64)
        self._capacity: Ints = self._free
        self._scores: Floats = np.empty(0, np.float64)
        self._present = np.empty(0, np.bool_)
        self._changed: dict[int, int] = {}  # slot → version of its last change, in that order
        self._unread: dict[int, None] = {}
        self._measured: dict[Items, _ShapeScores] = {}

    # ---- changes ---------------------------------------------------------------------------------------------------

    def add(self, node: Node, score: float) -> None:
        """Adds a node."""
        super().add(node, score)
        slot = self._slots.get(node.node_id)
        if slot is None:
            self._renumber = True
        else:
            self._nodes[slot] = node
            self._note(slot)

    def remove(self, node: Node) -> None:
        """Removes a node. Its slot stays, because the node may return (reservations take nodes out for a while)."""
        super().remove(node)
        self._note(self._slots.get(node.node_id))
        if len(self._slots) > 2 * self.count:
            self._renumber = True

    def move(self, node: Node, score: float) -> None:
        """The node's free amounts changed, and perhaps its score."""
        super().move(node, score)
        self._note(self._slots.get(node.node_id))

    def _note(self, slot: int | None) -> None:
        if slot is not None:
            self._changed.pop(slot, None)
            self._changed[slot] = self.version
            self._unread[slot] = None

    # ---- searches --------------------------------------------------------------------------------------------------

    def first_fit(self, items: Items) -> Node | None:
        """The node with room for all items and the lowest value; None: there is none."""
        return self._lowest(self._values(items), None)

    def fitting(self, items: Items, but: Collection[str], count: int) -> list[Node]:
        """The ``count`` nodes with room for all items and the lowest values, without the nodes with these ids."""
        nodes: list[Node] = []
        values = self._values(items)
        # (By value, then by score, then by id, as in :meth:`first_fit`.)
        for slot in np.lexsort((np.arange(len(values)), self._scores, values)):
            if values[slot] == self.nowhere or len(nodes) == count:
                break
            if self._nodes[slot].node_id not in but:
                nodes.append(self._nodes[slot])
        return nodes

    def _values(self, items: Items) -> Values:
        """The present value of each slot's node."""
        self._read()
        measured = self._measured.get(items)
        if measured is None:
            if len(self._measured) >= KEPT_SHAPES_MAX:
                del self._measured[next(iter(self._measured))]
            everyone = np.arange(len(self._nodes))
            self._measured[items] = measured = _ShapeScores(self._measure(items, everyone), self.version)
        elif measured.version != self.version:
            self._correct(items, measured)
        return measured.values

    def first_of(self, nodes: Iterable[Node], items: Items) -> Node | None:
        """Like :meth:`first_fit`, among a few nodes."""
        self._read()
        slots = np.array(sorted(self._slots[node.node_id] for node in nodes if node.index_key is not None), np.int64)
        return self._lowest(self._measure(items, slots), slots)

    def _correct(self, items: Items, measured: _ShapeScores) -> None:
        changed = []
        for slot, version in reversed(self._changed.items()):
            if version <= measured.version:
                break
            changed.append(slot)
        slots = np.array(changed, np.int64)
        measured.values[slots] = self._measure(items, slots)
        measured.version = self.version

    def _lowest(self, values: Values, slots: Slots | None) -> Node | None:
        """The node with the lowest value. ``slots``: the slots of the values; None: all slots."""
        if not len(values):
            return None
        lowest = values.min()
        if lowest == self.nowhere:
            return None
        places = np.flatnonzero(values == lowest)
        if slots is not None:
            places = slots[places]
        # Of equal scores, argmin takes the first, which has the lowest id.
        return self._nodes[int(places[self._scores[places].argmin()]) if len(places) > 1 else int(places[0])]

    def _room(self, items: Items, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        room = self._present[slots]
        for number, quantity in items:
            room &= self._free[number, slots] >= quantity
        return room

    def _measure(self, items: Items, slots: Slots) -> Values:
        """The values of some nodes; ``nowhere`` for a node without room."""
        raise NotImplementedError

    # ---- the nodes as columns --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads the nodes that changed."""
        if self._renumber or len(self._free) != len(self._types.names):
            self._number()
        if self._unread:
            for slot in self._unread:
                self._read_node(slot)
            slots = np.fromiter(self._unread, np.int64, len(self._unread))
            self._unread.clear()
            self._was_read(slots)

    def _was_read(self, slots: Slots) -> None:
        """Called when some nodes were read again."""

    def _number(self) -> None:
        self._nodes = sorted(self, key=lambda node: node.node_id)
        self._slots = {node.node_id: slot for slot, node in enumerate(self._nodes)}
        size = len(self._types.names), len(self._nodes)
        self._free, self._capacity = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._scores, self._present = np.zeros(size[1]), np.zeros(size[1], np.bool_)
        self._changed.clear()
        self._measured.clear()
        self._unread = dict.fromkeys(range(size[1]))
        self._renumber = False

    def _read_node(self, slot: int) -> None:
        node = self._nodes[slot]
        key = node.index_key
        self._present[slot] = key is not None
        if key is not None:
            self._scores[slot] = key[0]
            self._free[:, slot] = _int64(node.available)
            self._capacity[:, slot] = _int64(node.capacity)


def _int64(vector: list[int]) -> list[int]:
    if max(vector, default=0) > INT64_MAX or min(vector, default=0) < INT64_MIN:
        return [max(min(value, INT64_MAX), INT64_MIN) for value in vector]
    return vector
