"""Finds the node for an ask, and makes the allocation there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.model.allocation import ReplacedPlaceholder, made_uuid, unique_key
from muster_core.model.application import Allocation
from muster_core.model.resources import Shape, fits
from muster_core.model.states import AppState, GangPhase

if TYPE_CHECKING:
    from collections.abc import Collection

    from muster_core.allocation.accounting import Accounting
    from muster_core.allocation.allocation_facts import AllocationFacts
    from muster_core.allocation.ask_events import AskEvents
    from muster_core.allocation.asks import Asks
    from muster_core.allocation.exclusivity import ScopeExclusivity
    from muster_core.allocation.fair_share_accounting import FairShareAccounting
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.applications.lifecycle import ApplicationLifecycle
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.allocation import BackfillRecord
    from muster_core.model.application import Ask, AskGroup
    from muster_core.model.node import Node
    from muster_core.model.outcome import Outcome
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting


class Allocator:
    """Places the asks of one partition."""

    def __init__(
        self,
        state: PartitionState,
        *,
        notifications: AskEvents,
        waiting: SchedulingQueue,
        node_books: NodeAccounting,
        books: Accounting,
        fair_shares: FairShareAccounting,
        reservations: Reservations,
        announcements: AllocationFacts,
        asks: Asks,
        lifecycle: ApplicationLifecycle,
        gangs: Gangs,
        turns: ScopeExclusivity,
    ) -> None:
        self._state = state
        self._notifications = notifications
        self._waiting = waiting
        self._node_books = node_books
        self._books = books
        self._fair_shares = fair_shares
        self._reservations = reservations
        self._announcements = announcements
        self._asks = asks
        self._lifecycle = lifecycle
        self._gangs = gangs
        self._turns = turns

    def find_node(self, ask: Ask, group: AskGroup) -> Node | None:
        """The node for the ask now: the required one, the reserved one, or the best one; None: no node has room."""
        items = group.shape.items
        if group.required_node:
            # A daemon may run on its node even while the node drains, or is reserved for asks that are not daemons.
            node = self._state.nodes.get(group.required_node)
            if node is None or (ask.refusals is not None and node.node_id in ask.refusals.nodes):
                return None
            return node if fits(items, node.available) and self._turns.may_propose(ask, node) else None
        reserved = self._state.nodes[ask.reserved_node] if ask.reserved_node else None
        if reserved in self._state.contested:
            reserved = None  # (others may have a better right to its room)
        kept = reserved is not None and not ask.awaits_placeholders and reserved.usable
        if reserved is not None and kept and fits(items, reserved.available) and self._turns.may_propose(ask, reserved):
            return reserved
        return self._find_node(group.shape, ask)

    def _find_node(self, shape: Shape, ask: Ask) -> Node | None:
        waiting = self._waiting
        if shape in waiting.found_no_node:
            return None
        but: Collection[str] = ask.refusals.nodes if ask.refusals is not None else ()
        if self._turns.on:
            but = self._turns.excluded_nodes(ask, but)
        if but:
            # (The result cannot be reused for other asks of the shape.)
            if shape in waiting.only_gained:
                candidates = [node for node in waiting.gained if node.node_id not in but]
                return self._node_books.index.first_of(candidates, shape.items)
            return next(iter(self._node_books.index.fitting(shape.items, but, 1)), None)
        if shape in waiting.only_gained:
            node = self._node_books.index.first_of(waiting.gained, shape.items)
        else:
            node = self._node_books.index.first_fit(shape.items)
        if node is None:
            waiting.found_no_node.add(shape)
        return node

    def allocate(
        self,
        ask: Ask,
        group: AskGroup | None,
        node: Node,
        out: Outcome,
        now_ns: int,
        replaces: Allocation | None = None,
        backfilled: BackfillRecord | None = None,
        *,
        proposed: bool = False,
    ) -> None:
        """Makes one allocation of an ask on a node that has room.

        :param group: None: the ask is in no group, because it waited for placeholders.
        :param replaces: the placeholder that the allocation replaces.
        :param backfilled: the reservation on whose node it is backfilled.
        :param proposed: the RM agreed to it, and the books count its amounts on the node already.
        """
        state = self._state
        app, demand = ask.app, ask.demand
        queue = app.queue
        if ask.notified:
            self._notifications.on_allocated(ask, out, now_ns)
        if app.reason is not None:
            self._waiting.on_run_allowed(app, out, now_ns)
        if ask.reserved_node or ask.planned_ns:
            self._reservations.placed(ask, node, out, now_ns)
        ordinal = ask.allocated
        ask.allocated = ordinal + 1
        while ordinal and unique_key(demand.key, ordinal) in app.allocations:
            ordinal += 1  # an earlier one came back, while later ones still run
        allocation = Allocation(
            app,
            demand,
            node.node_id,
            now_ns,
            ordinal,
            made_uuid(demand.submission, ordinal, now_ns) if demand.previous_generation else "",
        )
        allocation.backfilled = backfilled
        if replaces is not None:
            allocation.replaces = ReplacedPlaceholder(replaces.key, replaces.created_ns)
            if replaces.node_id == node.node_id:  # (the RM may make a placeholder of what was backfilled)
                allocation.backfilled = replaces.backfilled
        self._books.allocate(ask, allocation, node, proposed=proposed)
        out.mark_changed(allocation, state.name)
        gang = app.gang
        if demand.placeholder:
            self._gangs.on_placeholder_allocated(allocation, out, now_ns)
        elif app.state is not AppState.RUNNING or (gang is not None and gang.phase is not GangPhase.USED):
            self._lifecycle.on_first_allocation(app, out, now_ns)
        self._announcements.on_allocated(allocation, out, now_ns)
        ask.pending -= 1
        if queue.fair_apps:  # before the next one is woken, by its present share
            app.share = None
            self._waiting.rekey_app(app)
        elif queue.fair_uses is not None:
            self._fair_shares.charge(app, demand.shape, 1, out, now_ns)
        if ask.pending:
            out.mark_changed(ask, state.name)
            if gang is not None and ask.open <= 0 and ask.group is not None:
                self._asks.leave_group(ask, out)
        else:
            self._asks.drop_ask(ask, out, now_ns)
        if not self._waiting.requeue_app(app):
            self._waiting.requeue_queue(queue)
        if group is not None and group.asks:  # otherwise drop_ask woke the next
            self._waiting.wake_next(group)
