"""``fragmentation``: fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

Each node has some free GPU that the workload cannot use: an expectation over the shapes of the workload. The value of a
node is the growth of this expectation if the ask goes there. Of nodes with equal values, fuller ones come first.
YuniKorn has no such policy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sortedcontainers import SortedList

from muster_core.model.resources import INT64_MAX, INT64_MIN, ResourceTypes, Shape
from muster_core.nodes.node_index import Items
from muster_core.nodes.policies.policy import NodePolicy, minus_used_share
from muster_core.nodes.policies.shape_index import Ints, ShapeIndex, Slots, Values

# The workload consists of at most so many shapes, the most frequent ones.
WORKLOAD_SHAPES_MAX = 128
# Beyond these limits, integers would not be exact any more: 2 million GPUs on a node, a million asks of one shape.
_MILLI_MAX = 1 << 31
_WEIGHT_MAX = 1 << 20

MILLI_PER_GPU = 1_000
# The end of a type's name, after its domain, and thousandths of a GPU in one unit of the type.
GPU_NAMES = {"gpu": MILLI_PER_GPU, "gpu-milli": 1}


class ShapeFrequencies:
    """The workload of a partition: how many asks of each GPU shape are pending or allocated.

    A shape's weight is its count with all but the two highest binary digits set to 0 (…, 4, 6, 8, 12, 16, …). All
    values of all nodes depend on the weights. So the weights change only a few times while a count doubles, and equal
    counts have equal weights, however they came about.

    :ivar version: grows with each change of :meth:`shapes`.
    """

    def __init__(self) -> None:
        self._counts: dict[Shape, int] = {}
        self._order: Any = SortedList()  # (-weight, name, shape)
        self.version = 0

    def add(self, shape: Shape, count: int) -> None:
        """Adds so many of the shape; negative: fewer."""
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
        index = WORKLOAD_SHAPES_MAX
        if old:
            entry = (-old, shape.name, shape)
            index = self._order.index(entry)
            del self._order[index]
        if new:
            entry = (-new, shape.name, shape)
            index = min(index, self._order.bisect_left(entry))
            self._order.add(entry)
        if index < WORKLOAD_SHAPES_MAX:
            self.version += 1

    def shapes(self) -> list[tuple[Shape, int]]:
        """The most frequent shapes with their weights."""
        return [(shape, -negative) for negative, _, shape in self._order[:WORKLOAD_SHAPES_MAX]]


def weight(count: int) -> int:
    """The count with all but its two highest binary digits set to 0."""
    spare = max(count.bit_length() - 2, 0)
    return min(count >> spare << spare, _WEIGHT_MAX)


class FragmentationIndex(ShapeIndex):
    """Nodes by how much unusable GPU an ask would add; of equal nodes, the fuller one first.

    The part of a node's free GPU that a shape of the workload cannot use:

    * all of it, if the node lacks room of any type for one ask of the shape;
    * otherwise, the rest of a partly used GPU, if it is less than the shape needs of one GPU (a share, or the whole);
      whole free GPUs can be used.

    The expectation over the workload, here a sum with the shapes' weights, is the node's fragmentation. The value is
    the fragmentation with the ask on the node minus the present one.

    Types are GPUs by name: ``…/gpu`` in whole units, ``…/gpu-milli`` in thousandths. A node's GPUs are one pool here,
    because it is not known how each is used. Of a pool with 2,300 free, two GPUs are whole and one has 300 left: the
    best case. Shapes without GPU can use none wherever an ask goes; they make no difference between nodes and do not
    count.
    """

    __slots__ = ("_demands", "_gpus", "_needs", "_seen_version", "_unusable", "_weights", "workload")

    nowhere: int | float = INT64_MAX
    counts_work = True

    def __init__(self, types: ResourceTypes) -> None:
        super().__init__(types)
        self.workload = ShapeFrequencies()
        self._seen_version = 0
        self._gpus: list[tuple[int, int]] = []  # (type number, thousandths in a unit)
        self._demands: list[tuple[int, Ints]] = []  # for each type that any shape wants: how much each shape wants
        self._needs: list[Ints] = []  # for each GPU type: how much of one GPU each shape needs (0: none)
        self._weights: Ints = np.zeros(0, np.int64)
        self._unusable: Ints = self._weights

    def count_shape(self, shape: Shape, count: int) -> None:
        """Counts ``count`` more asks of the shape as pending or allocated (fewer, if negative)."""
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
        pooled = self._types.pooled  # (no node has any of these)
        gpus = ((number, _milli(name)) for number, name in enumerate(names) if number not in pooled)
        self._gpus = [(number, milli) for number, milli in gpus if milli]
        requests = [dict(shape.items) for shape, _ in shapes]
        self._weights = np.array([weight for _, weight in shapes], np.int64)
        self._demands = [
            (number, np.array([request.get(number, INT64_MIN) for request in requests], np.int64))
            for number in sorted({number for request in requests for number in request})
        ]
        self._needs = [
            np.array([min(request.get(number, 0) * milli, MILLI_PER_GPU) for request in requests], np.int64)
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
        """For each column of free amounts: the GPU that the workload cannot use, in thousandths times weight."""
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
    """Thousandths of a GPU in a unit of the type; 0: the type is not a GPU."""
    return GPU_NAMES.get(name.rpartition("/")[2], 0)


POLICY: NodePolicy = NodePolicy("fragmentation", score=minus_used_share, new_index=FragmentationIndex)
