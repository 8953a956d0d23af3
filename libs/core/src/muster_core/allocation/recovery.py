"""Adopts allocations that the RM reports, and applies the RM's later changes to them.

The scheduler adopts them even above limits, because they run already. ``cycle.py`` makes the new decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.allocation.backfill import in_force, outlives, promised
from muster_core.config.properties import duration_text
from muster_core.model.application import Allocation
from muster_core.model.demand import Demand
from muster_core.model.node import Node
from muster_core.model.outcome import EventDetail, NewAllocation, Outcome
from muster_core.model.quotas import text_bytes
from muster_core.queues import quota_enforcement

if TYPE_CHECKING:
    from muster_core.allocation.accounting import Accounting
    from muster_core.allocation.allocation_facts import AllocationFacts
    from muster_core.allocation.backfill import Backfill
    from muster_core.allocation.fair_share_accounting import FairShareAccounting
    from muster_core.allocation.releases import Releases
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.applications.lifecycle import ApplicationLifecycle
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting
    from muster_core.predicates.predicate_calls import PredicateCalls


class Recovery:
    """Adopts the reported allocations of one partition."""

    def __init__(
        self,
        state: PartitionState,
        *,
        books: Accounting,
        fair_shares: FairShareAccounting,
        node_books: NodeAccounting,
        waiting: SchedulingQueue,
        lifecycle: ApplicationLifecycle,
        gangs: Gangs,
        releases: Releases,
        announcements: AllocationFacts,
        questions: PredicateCalls,
        backfill: Backfill,
    ) -> None:
        self._state = state
        self._books = books
        self._fair_shares = fair_shares
        self._node_books = node_books
        self._waiting = waiting
        self._lifecycle = lifecycle
        self._gangs = gangs
        self._releases = releases
        self._announcements = announcements
        self._questions = questions
        self._backfill = backfill

    def adopt(self, allocation: Allocation, out: Outcome, now_ns: int, *, echo: bool = True) -> None:
        """Adopts an allocation that the RM reports, without checking any limit, and echoes it.

        Also adopts allocations of external sources; these are not echoed to the RM.
        """
        out.reported += not allocation.foreign
        kept = self._backfill.kept_there(allocation.node_id, now_ns)
        self._take(allocation, out, now_ns, echo=echo)
        self._backfill.tell_moved(kept, allocation, out, now_ns)

    def _take(self, allocation: Allocation, out: Outcome, now_ns: int, *, echo: bool) -> None:
        state = self._state
        node = state.nodes[allocation.node_id]
        self._books.charge(allocation, node)
        out.mark_changed(allocation, state.name)
        self._questions.on_node_shrunk(node, out)  # (it may have taken the room of an open proposal)
        if allocation.foreign:
            self._node_books.occupied_event(node.node_id, out, now_ns)
            if echo:
                out.facts.append(NewAllocation(state.name, allocation, allocation.demand, adopted=True))
            return
        app = allocation.app
        assert app is not None
        self._fair_shares.charge(app, allocation.shape, 1, out, now_ns)
        self._waiting.requeue_app(app)  # (a woken group of the application may be on its list again)
        self._waiting.requeue_queue(app.queue)
        if allocation.demand.placeholder:
            self._gangs.adjust_requested(allocation.demand, app, 1)
            out.mark_changed(app, state.name)
            self._gangs.on_placeholder_allocated(allocation, out, now_ns)
        else:
            self._waiting.on_run_allowed(app, out, now_ns)  # (it runs, whatever the limits say)
            self._lifecycle.on_first_allocation(app, out, now_ns)
        self._announcements.on_allocated(allocation, out, now_ns, adopted=True, echo=echo)
        if not allocation.source:
            self._tell_excess(allocation, node, out, now_ns)
        quota_enforcement.on_usage_changed(state, app.queue, allocation.shape.items, out, now_ns)

    def change(
        self,
        existing: Allocation,
        demand: Demand,
        node_id: str,
        uuid: str,
        out: Outcome,
        now_ns: int,
        *,
        echo: bool,
        declared: bool = True,
    ) -> Allocation:
        """Applies the RM's change of an existing allocation: its size, its node, its priority or its tags.

        No limit is checked, and the allocation may become larger than its node. A released allocation stays released,
        and one that was backfilled ends no later than promised: the RM gets the end that is in force.

        :param echo: the RM reported the allocation, and gets it as an answer; False: the RM sent its ask again.
        :param declared: the RM said how long it runs at the most, or that it does not say so.
        """
        late = declared and outlives(existing, demand.execution_timeout_ms)
        kept = self._backfill.kept_there(node_id, now_ns)
        allocation = self._change(existing, demand, node_id, uuid, out, now_ns, echo=echo or late)
        if late:
            self._emit_promise(allocation, out, now_ns)
        self._backfill.tell_moved(kept, allocation, out, now_ns)
        return allocation

    def _change(
        self, existing: Allocation, demand: Demand, node_id: str, uuid: str, out: Outcome, now_ns: int, *, echo: bool
    ) -> Allocation:
        state = self._state
        demand.changed_ns = existing.demand.changed_ns
        moved, sized = node_id != existing.node_id, demand.shape is not existing.shape
        role = (demand.task_group, demand.placeholder) == (existing.task_group, existing.placeholder)
        if role and not moved and not sized and uuid in ("", existing.uuid):
            if not demand.same_as(existing.demand):
                state.text_bytes += text_bytes(demand.tags) - text_bytes(existing.tags)
                if existing.app is not None and demand.priority != existing.priority:
                    self._books.count_priority(existing.app, existing.priority, -1)
                    self._books.count_priority(existing.app, demand.priority, 1)
                existing.demand, existing.backfilled = demand, promised(existing, demand)
                state.version += 1
                self._announcements.set_execution_deadline(existing)
                out.mark_changed(existing, state.name)
            if echo:
                out.facts.append(NewAllocation(state.name, existing, in_force(existing), adopted=True))
            return existing
        if sized or moved:
            demand.changed_ns = now_ns
        new = Allocation(existing.app, demand, node_id, existing.allocated_ns, existing.ordinal, uuid or existing.uuid)
        new.preempted, new.timed_out, new.replaces = existing.preempted, existing.timed_out, existing.replaces
        new.source, new.backfilled = existing.source, promised(existing, demand)
        if demand.placeholder:  # otherwise the allocation is no placeholder any more, and no ask replaces it
            new.replaced_by = existing.replaced_by if self._gangs.still_suits(new, existing.replaced_by) else ""
        self.detach(existing, out, now_ns)
        new.published, existing.published = existing.published, False  # the same record
        if new.releasing:
            new.releasing_since_ns, new.reminder_ns = existing.releasing_since_ns, existing.reminder_ns
            state.deadlines.append((new.reminder_ns, new))
        self._take(new, out, now_ns, echo=echo)
        return new

    def detach(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Takes an allocation off the books because the RM changed its size or its node. The caller then books the new
        one.
        """
        state = self._state
        self._releases.record_usage(allocation, out, now_ns)
        self._books.uncharge(allocation)
        if allocation.foreign:
            self._node_books.occupied_event(allocation.node_id, out, now_ns)
        else:
            if allocation.demand.placeholder and allocation.app is not None:
                self._gangs.adjust_requested(allocation.demand, allocation.app, -1)
                out.mark_changed(allocation.app, state.name)
            self._releases.emit_ended(allocation, EventDetail.ALLOC_REPLACED, out, now_ns)

    @staticmethod
    def _emit_promise(allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Adds an event for people if the RM says that a backfilled allocation lasts for longer than promised."""
        by, said_ms = allocation.backfilled, allocation.demand.execution_timeout_ms
        assert by is not None, f"{allocation} promised nothing"
        reported = duration_text(said_ms * 1_000_000) if said_ms > 0 else "none"
        promised_ns = by.end_ns - allocation.allocated_ns
        message = (
            f"Its execution time-out stays {duration_text(promised_ns)} (reported: {reported}): it was "
            f"backfilled for that time, where a node was reserved for {by.key} of {by.app_id}"
        )
        out.add_user_event(allocation.key, allocation.app_id, allocation.shape, message, now_ns)

    def _tell_excess(self, allocation: Allocation, node: Node, out: Outcome, now_ns: int) -> None:
        """Adds an event for people if a reported allocation exceeds a limit or its node: it is accepted anyway."""
        app, names = allocation.app, self._state.types.names
        assert app is not None, f"{allocation} is foreign"
        excesses = [
            f"node {node.node_id} has {-node.available[number]} {names[number]} less than it holds"
            for number, _ in allocation.shape.items
            if node.available[number] < 0
        ]
        excesses += [
            f"{ledger.who or 'queue'} in {ledger.path} has {ledger.allocated[number]} of {ledger.limit[number]} "
            f"{names[number]}"
            for ledger in app.bounds
            for number, _ in allocation.shape.items
            if ledger.allocated[number] > ledger.limit[number]
        ]
        if excesses:
            message = f"adopted as the resource manager reports it: {'; '.join(excesses)}"
            out.add_user_event(allocation.key, app.app_id, allocation.shape, message, now_ns)
