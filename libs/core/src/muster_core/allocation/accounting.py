"""The books: pending and allocated amounts of nodes, applications and all queues up to root.

Only the books count asks, proposals to the RM, and allocations that are made, reported or ended. Each booking costs
O(changed). At each end, the books tell ``scheduling_queue.py`` which nodes and limits gained room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster_core.model.allocation import unique_key
from muster_core.model.application import NOTHING_HELD
from muster_core.model.quotas import text_bytes
from muster_core.model.resources import add, subtract

if TYPE_CHECKING:
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.application import Allocation, Application, Ask
    from muster_core.model.node import Node
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Queue
    from muster_core.nodes.node_accounting import NodeAccounting


class PlaceholderAccounting(Protocol):
    """The books of placeholders in their gangs."""

    def adjust_pending(self, ask: Ask, count: int) -> None:
        """Counts ``count`` more of a placeholder ask as pending (fewer, if negative)."""

    def charge(self, placeholder: Allocation) -> None:
        """Books a placeholder."""

    def uncharge(self, placeholder: Allocation) -> None:
        """Undoes :meth:`charge`."""


class RefusalInvalidator(Protocol):
    """Reviews the RM's refusals of a node."""

    def mark_changed(self, node: Node) -> None:
        """The allocations on the node changed."""


class Accounting:
    """The books of one partition."""

    _gangs: PlaceholderAccounting
    _questions: RefusalInvalidator

    def __init__(self, state: PartitionState, *, waiting: SchedulingQueue, node_books: NodeAccounting) -> None:
        self._state = state
        self._waiting = waiting
        self._node_books = node_books

    def connect(self, *, gangs: PlaceholderAccounting, questions: RefusalInvalidator) -> None:
        """Takes the parts that are built after this one."""
        self._gangs = gangs
        self._questions = questions

    def add_pending(self, ask: Ask, count: int) -> None:
        """Adds ``count`` times the ask's items to the pending amounts, from its application up to root."""
        app, state = ask.app, self._state
        state.asks_pending += count
        if ask.demand.tags:
            state.text_bytes += count * text_bytes(ask.demand.tags)
        own, ancestry = app.pending, app.queue.ancestry
        for number, value in ask.demand.shape.items:
            step = value * count
            own[number] += step
            for queue in ancestry:
                queue.pending[number] += step

    def allocate(self, ask: Ask, allocation: Allocation, node: Node, *, proposed: bool = False) -> None:
        """Books one pending allocation of the ask on a node that has room. (The hottest path.)

        :param proposed: the RM agreed to it: :meth:`adjust_proposed` has counted its amounts there already.
        """
        state, app = self._state, ask.app
        state.allocations_count += 1
        state.asks_pending -= 1
        state.version += 1
        key = unique_key(ask.demand.key, allocation.ordinal)
        if allocation.ordinal or allocation.uuid:
            app.index(allocation)
        else:
            app.allocations[key] = allocation
        node.allocations[(app.app_id, key)] = allocation
        self.count_priority(app, ask.demand.priority, 1)
        app_pending, ancestry = app.pending, app.queue.ancestry
        if proposed:  # the node keeps its place in the node index
            app.proposed -= 1
            for number, value in ask.demand.shape.items:
                app_pending[number] -= value
                for queue in ancestry:
                    queue.pending[number] -= value
            if node.has_offers:
                state.moved_offers[node.node_id] = None
            self._placeholder_placed(ask, allocation)
            return
        node_allocated, available = node.allocated, node.available
        app_allocated, trackers = app.allocated, app.trackers
        for number, value in ask.demand.shape.items:
            node_allocated[number] += value
            available[number] -= value
            app_allocated[number] += value
            app_pending[number] -= value
            for queue in ancestry:
                queue.allocated[number] += value
                queue.pending[number] -= value
            for tracker in trackers:
                tracker.allocated[number] += value
        self._node_books.on_changed(node)
        self._placeholder_placed(ask, allocation)

    def _placeholder_placed(self, ask: Ask, allocation: Allocation) -> None:
        if ask.demand.placeholder:
            self._gangs.adjust_pending(ask, -1)
            self._gangs.charge(allocation)

    def adjust_proposed(self, ask: Ask, node: Node, sign: int) -> None:
        """Counts a proposal to the RM as if it were allocated (``sign`` 1), or not any more (-1). Wakes no waitlist."""
        app = ask.app
        self._state.version += 1
        app.proposed += sign
        node_allocated, available = node.allocated, node.available
        app_allocated, ledgers = app.allocated, app.ledgers
        for number, value in ask.demand.shape.items:
            amount = sign * value
            node_allocated[number] += amount
            available[number] -= amount
            app_allocated[number] += amount
            for ledger in ledgers:
                ledger.allocated[number] += amount
        self._node_books.on_changed(node)

    def charge(self, allocation: Allocation, node: Node | None) -> None:
        """Books an allocation at its node, its application and all its queues and limits."""
        items = allocation.shape.items
        app = allocation.app
        state = self._state
        state.allocations_count += 1
        if allocation.demand.tags:
            state.text_bytes += text_bytes(allocation.demand.tags)
        state.version += 1
        if allocation.foreign or app is None:
            state.foreign[allocation.foreign_id] = allocation
            if node is not None:
                node.foreign[allocation.foreign_id] = allocation
                add(node.occupied, items)
                self._node_books.on_allocated(node, items)
                self._stir(node)
            return
        app.index(allocation)
        app.share = None
        self.count_priority(app, allocation.demand.priority, 1)
        if allocation.demand.placeholder:
            self._gangs.charge(allocation)
        self._node_books.index.count_shape(allocation.shape, 1)
        for number, value in items:
            app.allocated[number] += value
            for ledger in app.ledgers:
                ledger.allocated[number] += value
        if allocation.preempted is not None:
            self.add_preempting(allocation, app.queue, 1)
        if node is not None:
            node.allocations[(app.app_id, allocation.unique_key)] = allocation
            add(node.allocated, items)
            self._node_books.on_allocated(node, items)
            self._stir(node)
        if app.queue.fair_apps:
            self._waiting.rekey_app(app)

    def _stir(self, node: Node) -> None:
        """The allocations on the node changed."""
        if self._state.searching and (node.refused_by or node in self._state.checks.of_nodes):
            self._questions.mark_changed(node)

    def uncharge(self, allocation: Allocation) -> None:
        """Takes an allocation off the books, and wakes asks that wait for the room that it gave back."""
        items = allocation.shape.items
        state = self._state
        node = state.nodes.get(allocation.node_id)
        app = allocation.app
        state.allocations_count -= 1
        if allocation.demand.tags:
            state.text_bytes -= text_bytes(allocation.demand.tags)
        state.version += 1
        allocation.gone = True
        if allocation.foreign or app is None:
            state.foreign.pop(allocation.foreign_id, None)
            if node is not None and node.foreign.pop(allocation.foreign_id, None) is not None:
                subtract(node.occupied, items)
                self._node_books.on_gained(node)
                self._stir(node)
            return
        app.unindex(allocation)
        app.share = None
        self.count_priority(app, allocation.demand.priority, -1)
        if not app.allocations:
            app.lowest_held = NOTHING_HELD
        if allocation.demand.placeholder:
            self._gangs.uncharge(allocation)
        self._node_books.index.count_shape(allocation.shape, -1)
        for number, value in items:
            app.allocated[number] -= value
            for ledger in app.ledgers:
                ledger.allocated[number] -= value
        if allocation.preempted is not None:
            self.add_preempting(allocation, app.queue, -1)
        if node is not None:
            del node.allocations[(app.app_id, allocation.unique_key)]
            subtract(node.allocated, items)
            self._node_books.on_gained(node)
            self._stir(node)
        if app.queue.fair_apps:
            self._waiting.rekey_app(app)
        self._waiting.on_limit_gained(app)
        self._waiting.requeue_app(app)
        self._waiting.requeue_queue(app.queue)

    def count_priority(self, app: Application, priority: int, step: int) -> None:
        """Counts one more allocation of the priority (or one less) in the application and its leaf."""
        counts = app.queue.held_priorities
        count = counts.get(priority, 0) + step
        if count:
            counts[priority] = count
        else:
            del counts[priority]
        if step > 0 and priority < app.lowest_held:
            app.lowest_held = priority
            self._waiting.parking.review_all(app)

    def add_preempting(self, victim: Allocation, leaf: Queue, sign: int) -> None:
        """Counts an allocation that preemption released (``sign`` 1) from its leaf up to root and for its preemptor, or
        not any more (-1).
        """
        record = victim.preempted
        assert record is not None, f"{victim} was not preempted"
        if record.app_id:
            victims, asker = self._state.victims, (record.app_id, record.key)
            remaining = victims.get(asker, 0) + sign
            if remaining:
                victims[asker] = remaining
            else:
                del victims[asker]
        for number, value in victim.shape.items:
            for queue in leaf.ancestry:
                queue.preempting[number] += sign * value
