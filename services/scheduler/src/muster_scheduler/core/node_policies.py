"""Two node sort policies whose order depends on what is asked for: ``dotproduct`` and ``fragmentation``.

Neither is in the real core. Under fair and binpacking there is one order of nodes for all asks (``node_index.py``);
here each shape has its own, by a *value* of each node, lowest first, then fuller nodes first, then by node id:

* ``dotproduct``: minus the product of what is asked and what is free, both as parts of the node's capacity, summed over
  the types asked for: the ask goes where most is free of what it wants most of (the alignment of Grandl et al.,
  "Multi-resource Packing for Cluster Schedulers", SIGCOMM 2014).
* ``fragmentation``: fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023). Of each
  node is known how much of its free GPU the workload could not use, as an expectation over the shapes that it consists
  of; the value is by how much that grows when the ask goes there. See :class:`Fragmentation`.

A value is a function of the node, the shape and the workload as they are, never of how they came to be: the same after
a recovery. Values are kept for each shape and corrected lazily: a search measures the nodes that changed since that
shape was last searched for, all at once (numpy), and takes the lowest. Whole numbers are computed as such;
floating-point ones by the same operations in the same order for each node by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from sortedcontainers import SortedList

from muster_scheduler.core.config import NodeSortPolicy
from muster_scheduler.core.node_index import Items, NodeIndex
from muster_scheduler.core.resources import INT64_MAX, INT64_MIN, Shape, Types

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Node

# Shapes whose values are kept: at 10,000 nodes 20 MB. The one that was measured first goes first.
KEPT_SHAPES_MAX = 256
# Shapes that the workload is taken to consist of, most frequent first.
WORKLOAD_SHAPES_MAX = 128
# Beyond these, whole numbers would no longer be exact: 2 million GPUs on a node, a million asks of one shape.
_MILLI_MAX = 1 << 31
_WEIGHT_MAX = 1 << 20

MILLI_PER_GPU = 1_000
# What a type's name ends in, behind its domain, and thousandths of a GPU in one of its units.
GPU_NAMES = {"gpu": MILLI_PER_GPU, "gpu-milli": 1}

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Values = Ints | Floats
Slots = Ints


def node_search(policy: NodeSortPolicy, types: Types) -> NodeIndex:
    """The nodes of a partition, to be searched by its policy."""
    match policy:
        case NodeSortPolicy.DOTPRODUCT:
            return DotProduct(types)
        case NodeSortPolicy.FRAGMENTATION:
            return Fragmentation(types)
        case _:
            return NodeIndex()


class _Measured:
    """A shape's value of each node, and the version of the index of which they are."""

    __slots__ = ("values", "version")

    def __init__(self, values: Values, version: int) -> None:
        self.values = values
        self.version = version


class ShapedIndex(NodeIndex):
    """Nodes that each shape has in an order of its own. The score given with a node decides between equal values.

    Slots are numbers of nodes, in the order of their ids.
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

    def __init__(self, types: Types) -> None:
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
        self._measured: dict[Items, _Measured] = {}

    # ---- changes ---------------------------------------------------------------------------------------------------

    def add(self, node: Node, score: float) -> None:
        """Takes a node in."""
        super().add(node, score)
        slot = self._slots.get(node.node_id)
        if slot is None:
            self._renumber = True
        else:
            self._nodes[slot] = node
            self._note(slot)

    def remove(self, node: Node) -> None:
        """Takes a node out. Its slot stays, for it may come back (nodes are kept free for a while)."""
        super().remove(node)
        self._note(self._slots.get(node.node_id))
        if len(self._slots) > 2 * self.count:
            self._renumber = True

    def move(self, node: Node, score: float) -> None:
        """The node's free resources, and with them perhaps its score, changed."""
        super().move(node, score)
        self._note(self._slots.get(node.node_id))

    def _note(self, slot: int | None) -> None:
        if slot is not None:
            self._changed.pop(slot, None)
            self._changed[slot] = self.version
            self._unread[slot] = None

    # ---- searches --------------------------------------------------------------------------------------------------

    def first_fit(self, items: Items) -> Node | None:
        """The node with room for all items whose value is lowest."""
        return self._lowest(self._values(items), None)

    def fitting(self, items: Items, but: Collection[str], count: int) -> list[Node]:
        """The so many nodes with room for all items whose values are lowest, without those with these ids."""
        found: list[Node] = []
        values = self._values(items)
        # (By value, of equal ones by score, then by id, as the one search does.)
        for slot in np.lexsort((np.arange(len(values)), self._scores, values)):
            if values[slot] == self.nowhere or len(found) == count:
                break
            if self._nodes[slot].node_id not in but:
                found.append(self._nodes[slot])
        return found

    def _values(self, items: Items) -> Values:
        """Everyone's value now."""
        self._read()
        measured = self._measured.get(items)
        if measured is None:
            if len(self._measured) >= KEPT_SHAPES_MAX:
                del self._measured[next(iter(self._measured))]
            everyone = np.arange(len(self._nodes))
            self._measured[items] = measured = _Measured(self._measure(items, everyone), self.version)
        elif measured.version != self.version:
            self._correct(items, measured)
        return measured.values

    def first_of(self, nodes: Iterable[Node], items: Items) -> Node | None:
        """As :meth:`first_fit`, among a few nodes."""
        self._read()
        slots = np.array(sorted(self._slots[node.node_id] for node in nodes if node.index_key is not None), np.int64)
        return self._lowest(self._measure(items, slots), slots)

    def _correct(self, items: Items, measured: _Measured) -> None:
        changed = []
        for slot, version in reversed(self._changed.items()):
            if version <= measured.version:
                break
            changed.append(slot)
        slots = np.array(changed, np.int64)
        measured.values[slots] = self._measure(items, slots)
        measured.version = self.version

    def _lowest(self, values: Values, slots: Slots | None) -> Node | None:
        """``slots``: whose the values are; None: everyone's."""
        if not len(values):
            return None
        lowest = values.min()
        if lowest == self.nowhere:
            return None
        places = np.flatnonzero(values == lowest)
        if slots is not None:
            places = slots[places]
        # Of equal scores argmin takes the first, which has the lowest id.
        return self._nodes[int(places[self._scores[places].argmin()]) if len(places) > 1 else int(places[0])]

    def _room(self, items: Items, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        room = self._present[slots]
        for number, quantity in items:
            room &= self._free[number, slots] >= quantity
        return room

    def _measure(self, items: Items, slots: Slots) -> Values:
        """The values of some nodes; ``nowhere`` for one without room."""
        raise NotImplementedError

    # ---- the nodes as columns --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Takes over what changed at the nodes."""
        if self._renumber or len(self._free) != len(self._types.names):
            self._number()
        if self._unread:
            for slot in self._unread:
                self._read_node(slot)
            slots = np.fromiter(self._unread, np.int64, len(self._unread))
            self._unread.clear()
            self._was_read(slots)

    def _was_read(self, slots: Slots) -> None:
        """Some nodes are not what they were."""

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


class DotProduct(ShapedIndex):
    """``dotproduct``: where most is free of what the ask wants most of."""

    __slots__ = ()
    nowhere = float("inf")

    def _measure(self, items: Items, slots: Slots) -> Values:
        product = np.zeros(len(slots))
        for number, quantity in items:
            capacity = np.maximum(self._capacity[number, slots], 1).astype(np.float64)
            product += (quantity / capacity) * (self._free[number, slots] / capacity)
        return np.where(self._room(items, slots), -product, self.nowhere)


class Workload:
    """What a partition's work consists of: how many asks of each GPU shape are pending or allocated.

    A shape's weight is its count with all but the two highest binary digits made 0 (…, 4, 6, 8, 12, 16, …): so the
    weights, on which all values of all nodes rest, change a few times while a count doubles, not with each ask, and are
    the same for the same counts however those came about.

    :ivar version: grows with each change of :meth:`shapes`.
    """

    def __init__(self) -> None:
        self._counts: dict[Shape, int] = {}
        self._order: Any = SortedList()  # (-weight, name, shape)
        self.version = 0

    def add(self, shape: Shape, count: int) -> None:
        """So many more of the shape; negative: fewer."""
        before = self._counts.get(shape, 0)
        after = before + count
        assert after >= 0, f"{after} of {shape}"
        if after:
            self._counts[shape] = after
        else:
            self._counts.pop(shape, None)
        old, new = weight(before), weight(after)
        if old == new:
            return
        place = WORKLOAD_SHAPES_MAX
        if old:
            entry = (-old, shape.name, shape)
            place = self._order.index(entry)
            del self._order[place]
        if new:
            entry = (-new, shape.name, shape)
            place = min(place, self._order.bisect_left(entry))
            self._order.add(entry)
        if place < WORKLOAD_SHAPES_MAX:
            self.version += 1

    def shapes(self) -> list[tuple[Shape, int]]:
        """The most frequent shapes with their weights."""
        return [(shape, -negative) for negative, _, shape in self._order[:WORKLOAD_SHAPES_MAX]]


def weight(count: int) -> int:
    """The count with all but its two highest binary digits made 0."""
    spare = max(count.bit_length() - 2, 0)
    return min(count >> spare << spare, _WEIGHT_MAX)


class Fragmentation(ShapedIndex):
    """``fragmentation``: where the GPU that the workload cannot use grows least.

    What of a node's free GPU a shape of the workload cannot use:

    * all of it, if the node has not enough room for one ask of the shape, of whatever type;
    * else what is left of a GPU that is partly taken, when that is less than the shape needs of one GPU (a share, or
      the whole); whole free GPUs can be used.

    The expectation over the workload, here a sum with the shapes' weights, is the node's fragmentation; the value is
    what it is with the ask on the node less what it is now.

    Types are GPUs by name: ``…/gpu`` in whole units, ``…/gpu-milli`` in thousandths. A node's GPUs are one pool
    here: how they are taken one by one is not known, so of a pool with 2,300 free two GPUs are whole and one has 300
    left, the best that can be. Shapes that want no GPU cannot use any, wherever an ask goes: they make no difference
    between nodes and are not counted.
    """

    __slots__ = ("_demands", "_gpus", "_needs", "_seen_version", "_unusable", "_weights", "workload")

    nowhere = INT64_MAX

    def __init__(self, types: Types) -> None:
        super().__init__(types)
        self.workload = Workload()
        self._seen_version = 0
        self._gpus: list[tuple[int, int]] = []  # (type number, thousandths in a unit)
        self._demands: list[tuple[int, Ints]] = []  # of each type that any shape wants: how much each does
        self._needs: list[Ints] = []  # of each GPU type: of one GPU, how much each shape needs (0: none)
        self._weights: Ints = np.zeros(0, np.int64)
        self._unusable: Ints = self._weights

    def seen(self, shape: Shape, count: int) -> None:
        """So many more asks of the shape are pending or allocated; negative: fewer."""
        names = self._types.names
        if any(_milli(names[number]) for number, _ in shape.items):
            self.workload.add(shape, count)

    def _read(self) -> None:
        super()._read()
        if self.workload.version != self._seen_version:
            self._seen_version = self.workload.version
            self._take_workload()
            self._unusable = self._fragmentation(self._free)
            self._measured.clear()

    def _take_workload(self) -> None:
        shapes = self.workload.shapes()
        names = self._types.names
        pooled = self._types.pooled  # (of which no node has any)
        gpus = ((number, _milli(name)) for number, name in enumerate(names) if number not in pooled)
        self._gpus = [(number, milli) for number, milli in gpus if milli]
        wanted = [dict(shape.items) for shape, _ in shapes]
        self._weights = np.array([weight for _, weight in shapes], np.int64)
        self._demands = [
            (number, np.array([each.get(number, INT64_MIN) for each in wanted], np.int64))
            for number in sorted({number for each in wanted for number in each})
        ]
        self._needs = [
            np.array([min(each.get(number, 0) * milli, MILLI_PER_GPU) for each in wanted], np.int64)
            for number, milli in self._gpus
        ]

    def _was_read(self, slots: Slots) -> None:
        if len(self._unusable) != len(self._nodes):
            self._unusable = np.zeros(len(self._nodes), np.int64)
        self._unusable[slots] = self._fragmentation(self._free[:, slots])

    def _measure(self, items: Items, slots: Slots) -> Values:
        values = np.full(len(slots), self.nowhere, np.int64)
        room = np.flatnonzero(self._room(items, slots))
        slots = slots[room]
        after = self._free[:, slots]
        for number, quantity in items:
            after[number] -= quantity
        values[room] = self._fragmentation(after) - self._unusable[slots]
        return values

    def _fragmentation(self, free: Ints) -> Ints:
        """Of each column of free amounts: the GPU that the workload cannot use, in thousandths times weight."""
        can = np.ones((len(self._weights), free.shape[1]), np.bool_)
        for number, demand in self._demands:
            can &= free[number] >= demand[:, None]
        total = np.zeros(free.shape[1], np.int64)
        for (number, milli), need in zip(self._gpus, self._needs, strict=True):
            pool = np.clip(free[number], 0, _MILLI_MAX // milli) * milli
            partly = pool % MILLI_PER_GPU
            none_of_it = self._weights @ (~can & (need > 0)[:, None])
            not_the_rest = self._weights @ (can & (partly < need[:, None]))
            total += pool * none_of_it + partly * not_the_rest
        return total


def _milli(name: str) -> int:
    """Thousandths of a GPU in a unit of the type; 0: it is not a GPU."""
    return GPU_NAMES.get(name.rpartition("/")[2], 0)
