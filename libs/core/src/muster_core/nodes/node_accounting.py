"""The nodes of a partition: their capacity and use, the sum of both, and their places in the node index
(``node_index.py``).

Whenever a node gains room, asks that wait for room are woken (``scheduling_queue.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from muster_core.config.queue_config import DEFAULT_NODE_SORT_POLICY, PartitionConfig
from muster_core.model.node import Node
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome
from muster_core.model.quotas import text_bytes
from muster_core.model.resources import UNLIMITED, add, subtract
from muster_core.nodes.node_index import NodeIndex
from muster_core.nodes.policies.registry import policy_named

if TYPE_CHECKING:
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_stats import NodeStats


class NodeAccounting:
    """Books the capacity and use of one partition's nodes. They are in ``PartitionState.nodes``, by id."""

    def __init__(
        self,
        state: PartitionState,
        *,
        figures: NodeStats,
        waiting: SchedulingQueue,
    ) -> None:
        self._state = state
        self._figures = figures
        self._waiting = waiting
        self.index = NodeIndex()
        self._weights: list[tuple[int, float]] = []
        self._policy = policy_named(DEFAULT_NODE_SORT_POLICY)
        self._score = self._policy.score

    def set_policy(self, config: PartitionConfig) -> None:
        """Takes the configured node sort policy, and the weight of each type in a node's score."""
        number = self._state.types.number
        # (The weight of a pooled type makes no difference: each node has as much of the type as any other.)
        self._weights = [(number(name), weight) for name, weight in config.node_sort_weights.items() if weight > 0]
        self._policy = policy_named(config.node_sort_policy)
        self._score = self._policy.score

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def add_node(self, node: Node, capacity: Mapping[str, int], occupied: Mapping[str, int]) -> None:
        """Adds a new node."""
        state = self._state
        state.nodes[node.node_id] = node
        state.text_bytes += text_bytes(node.attributes)
        self._set_capacity(node, capacity)
        node.reported_occupied = dict(occupied)
        add(node.occupied, state.types.items(occupied))
        self._measure(node)
        state.capacity_moved = True
        state.capacity_version += 1
        self.update_index(node)
        self._waiting.on_node_added(node)

    def set_node(self, node: Node, capacity: Mapping[str, int], occupied: Mapping[str, int]) -> tuple[bool, bool]:
        """Sets the node's capacity, and the amounts that others use of it. Returns whether each of the two changed.

        If the capacity is below what is allocated, the node is over-committed until releases mend it. Sources call this
        thousands of times in a second: equal values cost a comparison, and the node moves in the index once for both.
        """
        state = self._state
        resized = self._resize(node, capacity)
        if resized:
            state.capacity_moved = True
            state.capacity_version += 1
        used = occupied != node.reported_occupied
        if used:
            subtract(node.occupied, state.types.items(node.reported_occupied))
            add(node.occupied, state.types.items(occupied))
            node.reported_occupied = dict(occupied)
        if resized or used:
            self.on_gained(node)
        return resized, used

    def _resize(self, node: Node, capacity: Mapping[str, int]) -> bool:
        state = self._state
        if state.types.pooled:
            if node.named_capacity() == {name: value for name, value in capacity.items() if value}:
                return False
            self._count(node, -1)
            self._set_capacity(node, capacity)
            return True
        items = state.types.items(capacity)
        vector, total = node.capacity, state.capacity
        resized = [0] * len(vector)
        for number, value in items:
            resized[number] = value
        if resized == vector:
            return False
        for number, value in enumerate(resized):
            total[number] += value - vector[number]
        vector[:] = resized
        return True

    def set_node_state(self, node: Node, attributes: Mapping[str, str], *, schedulable: bool) -> None:
        """Opens the node for new allocations or closes it (it drains, or its attributes say that it is not ready)."""
        was_usable = node.usable
        if attributes != node.attributes:
            self._state.text_bytes += text_bytes(attributes) - text_bytes(node.attributes)
        node.set_attributes(attributes)
        node.schedulable = schedulable
        if node.usable != was_usable:
            self._state.capacity_version += 1
            self.update_index(node)

    def remove_node(self, node: Node) -> None:
        """Removes a node, whose allocations must have ended before."""
        state = self._state
        assert not node.allocations, f"{node} still has allocations"
        assert not node.reservations, f"{node} still has reservations"
        if node.index_key is not None:
            self.index.remove(node)
        state.version += 1
        self._waiting.on_node_removed(node)
        self._figures.on_node_removed(node)
        self._count(node, -1)
        state.capacity_moved = True
        state.capacity_version += 1
        del state.nodes[node.node_id]
        state.text_bytes -= text_bytes(node.attributes)
        node.gone = True
        state.types.release(node.capacity, node.occupied, node.allocated, node.available)

    def occupied_event(self, node_id: str, out: Outcome, now_ns: int) -> None:
        """Adds the event of a change in the amounts that others use of a node."""
        state = self._state
        node = state.nodes.get(node_id)
        if node is not None and out.tracking:
            absolute = state.types.quantities(node.occupied)
            out.add_event(
                EventType.NODE, EventChange.SET, EventDetail.NODE_OCCUPIED, node_id, resource=absolute, now_ns=now_ns
            )

    def set_pooled_types(self, pooled: frozenset[int]) -> None:
        """Makes these types the pooled ones: O(nodes), and rare."""
        state, types = self._state, self._state.types
        added, gone = sorted(pooled - types.pooled), sorted(types.pooled - pooled)
        types.pooled = pooled
        for number in (*added, *gone):
            state.capacity[number] = 0
        for node in state.nodes.values():
            for number in gone:
                node.capacity[number] = own = node.pooled.pop(number, 0)
                state.capacity[number] += own
            self._set_aside(node, added)
            self._measure(node)
        self.reindex()

    # ---- the index -------------------------------------------------------------------------------------------------

    def update_index(self, node: Node) -> None:
        """Puts the node into the index, or takes it out: only usable nodes without reservations belong there."""
        state = self._state
        state.version += 1
        if node.has_offers:
            state.moved_offers[node.node_id] = None
        if not state.searching:
            return
        self._figures.on_node_changed(node)
        listed = node.usable and not node.reservations and not node.taken
        if listed and node.index_key is None:
            self.index.add(node, self.score(node))
        elif not listed and node.index_key is not None:
            self.index.remove(node)
        self._waiting.on_node_gained(node)

    def reindex(self) -> None:
        """Puts the nodes into the order of the present policy."""
        state = self._state
        if not state.searching:
            return
        for node in state.nodes.values():
            if node.index_key is not None:
                self.index.remove(node)
        self.index = self.new_index()
        for node in state.nodes.values():
            self.update_index(node)

    def new_index(self) -> NodeIndex:
        """An empty index of the policy, informed of the present asks and allocations."""
        state = self._state
        index = self._policy.new_index(state.types)
        if index.counts_work:
            for app in state.apps.values():
                for ask in app.asks.values():
                    index.count_shape(ask.shape, ask.pending)
                for allocation in app.allocations.values():
                    index.count_shape(allocation.shape, 1)
        return index

    def score(self, node: Node) -> float:
        """The node's score under the policy."""
        return self._score(node, self._weights)

    # ---- sums ------------------------------------------------------------------------------------------------------

    def on_gained(self, node: Node) -> None:
        """Updates a node that changed, and may have gained room."""
        state = self._state
        self._measure(node)
        state.version += 1
        if node.has_offers:
            state.moved_offers[node.node_id] = None
        if node.index_key is not None:
            self.index.move(node, self._score(node, self._weights))
        if state.searching:
            self._figures.on_node_changed(node)
            self._waiting.on_node_gained(node)

    def on_allocated(self, node: Node, items: Iterable[tuple[int, int]]) -> None:
        """Takes the items from the node's free amounts."""
        subtract(node.available, items)
        self.on_changed(node)

    def on_changed(self, node: Node) -> None:
        """Updates a node that changed, and gained no room."""
        state = self._state
        if node.has_offers:
            state.moved_offers[node.node_id] = None
        if node.index_key is not None:
            self.index.move(node, self._score(node, self._weights))
        if state.searching:
            self._figures.on_node_changed(node)
            for ask in node.reservations:
                if ask.preempts:
                    self._waiting.changed_claims[node] = None

    def _measure(self, node: Node) -> None:
        node.available[:] = [
            has - allocated - occupied
            for has, allocated, occupied in zip(node.capacity, node.allocated, node.occupied, strict=True)
        ]

    def _set_capacity(self, node: Node, capacity: Mapping[str, int]) -> None:
        self._set_vector(node.capacity, capacity)
        node.pooled.clear()
        self._set_aside(node, self._state.types.pooled)
        self._count(node, 1)

    @staticmethod
    def _set_aside(node: Node, pooled: Iterable[int]) -> None:
        """Sets aside the node's own amounts of pooled types: any ask for these types may run on the node."""
        for number in pooled:
            if own := node.capacity[number]:
                node.pooled[number] = own
            node.capacity[number] = UNLIMITED

    def _count(self, node: Node, sign: int) -> None:
        """Adds the node's capacity to the partition's (1), or takes it off (-1). The pools set the capacity of pooled
        types.
        """
        total, pooled = self._state.capacity, self._state.types.pooled
        for number, value in enumerate(node.capacity):
            if number not in pooled:
                total[number] += sign * value

    def _set_vector(self, vector: list[int], quantities: Mapping[str, int]) -> None:
        items = self._state.types.items(quantities)
        for number in range(len(vector)):
            vector[number] = 0
        add(vector, items)
