"""``dotproduct``: an ask goes to the node with most free of the types that the ask wants most.

The value of a node is minus the product of the wanted and the free amounts, both as parts of the node's capacity,
summed over the wanted types: the alignment of Grandl et al., "Multi-resource Packing for Cluster Schedulers", SIGCOMM
2014. Of nodes with equal values, fuller ones come first. YuniKorn has no such policy.
"""

from __future__ import annotations

import numpy as np

from muster_core.nodes.node_index import Items
from muster_core.nodes.policies.policy import NodePolicy, minus_used_share
from muster_core.nodes.policies.shape_index import ShapeIndex, Slots, Values


class DotProductIndex(ShapeIndex):
    """Nodes by minus the product of wanted and free amounts; of equal nodes, the fuller one first."""

    __slots__ = ()
    nowhere: int | float = float("inf")

    def _measure(self, items: Items, slots: Slots) -> Values:
        product = np.zeros(len(slots))
        for number, quantity in items:
            capacity = np.maximum(self._capacity[number, slots], 1).astype(np.float64)
            product += (quantity / capacity) * (self._free[number, slots] / capacity)
        return np.where(self._room(items, slots), -product, self.nowhere)


POLICY: NodePolicy = NodePolicy("dotproduct", score=minus_used_share, new_index=DotProductIndex)
