"""The nodes of a partition: what they have and hold, their sum, and their places in the search (``node_index.py``).

Whatever a node gains wakes those who wait for it (``waiting.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core import ordering
from muster_scheduler.core.config import NodeSortPolicy, PartitionConfig
from muster_scheduler.core.node_index import NodeIndex
from muster_scheduler.core.node_policies import Fragmentation, node_search
from muster_scheduler.core.objects import Node
from muster_scheduler.core.outcome import Change, Detail, EventType, Outcome
from muster_scheduler.core.resources import UNLIMITED, add, subtract

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class NodeBooks:
    """How the nodes of one partition come, change and go; they are in ``Partition.nodes``, by id."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._weights: list[tuple[int, float]] = []
        self._binpacking = False

    def weigh(self, config: PartitionConfig) -> None:
        """Takes what the configuration says of a node's score: how much each type counts, and which end is first."""
        number = self._partition.types.number
        # (One of a pooled type changes nothing: each node has as much of it as any other.)
        self._weights = [(number(name), weight) for name, weight in config.node_sort_weights.items() if weight > 0]
        self._binpacking = config.node_sort_policy is not NodeSortPolicy.FAIR

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def add_node(self, node: Node, capacity: Mapping[str, int], occupied: Mapping[str, int]) -> None:
        """Takes a new node in."""
        partition = self._partition
        partition.nodes[node.node_id] = node
        self._set_capacity(node, capacity)
        node.reported_occupied = dict(occupied)
        add(node.occupied, partition.types.items(occupied))
        self._measure(node)
        partition.capacity_moved = True
        partition.capacity_version += 1
        self.list_node(node)
        partition.waiting.node_came(node)

    def set_node(self, node: Node, capacity: Mapping[str, int], occupied: Mapping[str, int]) -> tuple[bool, bool]:
        """Replaces what a node has, and what others hold of it as the RM and sources say; which of both is another.

        With less than what is allocated the node is over-committed until releases mend it. Sources say so thousands of
        times in a second: what is as before costs a comparison, and the node moves in the search once for both.
        """
        partition = self._partition
        resized = self._resize(node, capacity)
        if resized:
            partition.capacity_moved = True
            partition.capacity_version += 1
        used = occupied != node.reported_occupied
        if used:
            subtract(node.occupied, partition.types.items(node.reported_occupied))
            add(node.occupied, partition.types.items(occupied))
            node.reported_occupied = dict(occupied)
        if resized or used:
            self.node_moved(node)
        return resized, used

    def _resize(self, node: Node, capacity: Mapping[str, int]) -> bool:
        partition = self._partition
        if partition.types.pooled:
            if node.named_capacity() == {name: value for name, value in capacity.items() if value}:
                return False
            self._count(node, -1)
            self._set_capacity(node, capacity)
            return True
        items = partition.types.items(capacity)
        vector, total = node.capacity, partition.capacity
        wanted = [0] * len(vector)
        for number, value in items:
            wanted[number] = value
        if wanted == vector:
            return False
        for number, value in enumerate(wanted):
            total[number] += value - vector[number]
        vector[:] = wanted
        return True

    def set_node_state(self, node: Node, attributes: Mapping[str, str], *, schedulable: bool) -> None:
        """Lets new allocations on the node, or no more: it drains, or its attributes say that it is not ready."""
        was_usable = node.usable
        node.set_attributes(attributes)
        node.schedulable = schedulable
        if node.usable != was_usable:
            self._partition.capacity_version += 1
            self.list_node(node)

    def remove_node(self, node: Node) -> None:
        """Takes a node out; its allocations must be gone before."""
        partition = self._partition
        assert not node.allocations, f"{node} still has allocations"
        assert not node.reservations, f"{node} is still kept free for somebody"
        if node.index_key is not None:
            partition.index.remove(node)
        partition.version += 1
        partition.waiting.node_gone(node)
        partition.figures.gone(node)
        self._count(node, -1)
        partition.capacity_moved = True
        partition.capacity_version += 1
        del partition.nodes[node.node_id]
        node.gone = True
        partition.types.release(node.capacity, node.occupied, node.allocated, node.available)

    def occupied_event(self, node_id: str, out: Outcome, now_ns: int) -> None:
        """The event of what others hold of a node, when that changed."""
        partition = self._partition
        node = partition.nodes.get(node_id)
        if node is not None and out.tracking:
            absolute = partition.types.quantities(node.occupied)
            out.track(EventType.NODE, Change.SET, Detail.NODE_OCCUPIED, node_id, resource=absolute, now_ns=now_ns)

    def take_pools(self, pooled: frozenset[int]) -> None:
        """Types are pooled from now on that were not, or are no more: O(nodes), and rare."""
        partition, types = self._partition, self._partition.types
        come, gone = sorted(pooled - types.pooled), sorted(types.pooled - pooled)
        types.pooled = pooled
        for number in (*come, *gone):
            partition.capacity[number] = 0
        for node in partition.nodes.values():
            for number in gone:
                node.capacity[number] = own = node.pooled.pop(number, 0)
                partition.capacity[number] += own
            self._set_aside(node, come)
            self._measure(node)
        self.reindex()

    # ---- search ----------------------------------------------------------------------------------------------------

    def list_node(self, node: Node) -> None:
        """Puts the node into the search, or takes it out, as its state says: schedulable, and kept free for nobody."""
        partition = self._partition
        partition.version += 1
        if node.lent:
            partition.offers.moved[node.node_id] = None
        if not partition.searching:
            return
        partition.figures.changed(node)
        listed = node.usable and not node.reservations
        if listed and node.index_key is None:
            partition.index.add(node, self.score(node))
        elif not listed and node.index_key is not None:
            partition.index.remove(node)
        partition.waiting.node_gained(node)

    def reindex(self) -> None:
        """Puts the nodes into the order of another policy."""
        partition = self._partition
        if not partition.searching:
            return
        for node in partition.nodes.values():
            if node.index_key is not None:
                partition.index.remove(node)
        partition.index = self.new_index()
        for node in partition.nodes.values():
            self.list_node(node)

    def new_index(self) -> NodeIndex:
        """An empty index of the policy, which knows the work that there is."""
        partition = self._partition
        index = node_search(partition.config.node_sort_policy, partition.types)
        if isinstance(index, Fragmentation):
            for app in partition.apps.values():
                for ask in app.asks.values():
                    index.seen(ask.shape, ask.pending)
                for allocation in app.allocations.values():
                    index.seen(allocation.shape, 1)
        return index

    def score(self, node: Node) -> float:
        """The node's place in the search."""
        return ordering.node_score(node, self._weights, binpacking=self._binpacking)

    # ---- sums ------------------------------------------------------------------------------------------------------

    def node_moved(self, node: Node) -> None:
        """Something of the node changed by which it may have gained."""
        partition = self._partition
        self._measure(node)
        partition.version += 1
        if node.lent:
            partition.offers.moved[node.node_id] = None
        if node.index_key is not None:
            partition.index.move(node, ordering.node_score(node, self._weights, binpacking=self._binpacking))
        if partition.searching:
            partition.figures.changed(node)
            partition.waiting.node_gained(node)

    def node_took(self, node: Node, items: Iterable[tuple[int, int]]) -> None:
        """The items on the node are taken."""
        partition = self._partition
        subtract(node.available, items)
        if node.lent:
            partition.offers.moved[node.node_id] = None
        if node.index_key is not None:
            partition.index.move(node, ordering.node_score(node, self._weights, binpacking=self._binpacking))
        if partition.searching:
            partition.figures.changed(node)

    def _measure(self, node: Node) -> None:
        node.available[:] = [
            has - allocated - occupied
            for has, allocated, occupied in zip(node.capacity, node.allocated, node.occupied, strict=True)
        ]

    def _set_capacity(self, node: Node, capacity: Mapping[str, int]) -> None:
        self._set_vector(node.capacity, capacity)
        node.pooled.clear()
        self._set_aside(node, self._partition.types.pooled)
        self._count(node, 1)

    @staticmethod
    def _set_aside(node: Node, pooled: Iterable[int]) -> None:
        """Whatever the node says itself of pooled types: an ask that wants them may run on it."""
        for number in pooled:
            if own := node.capacity[number]:
                node.pooled[number] = own
            node.capacity[number] = UNLIMITED

    def _count(self, node: Node, sign: int) -> None:
        """Adds the node's capacity to the partition's, or takes it off; of pooled types that is what the pools have."""
        total, pooled = self._partition.capacity, self._partition.types.pooled
        for number, value in enumerate(node.capacity):
            if number not in pooled:
                total[number] += sign * value

    def _set_vector(self, vector: list[int], quantities: Mapping[str, int]) -> None:
        items = self._partition.types.items(quantities)
        for number in range(len(vector)):
            vector[number] = 0
        add(vector, items)
