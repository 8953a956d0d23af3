"""Makes the facts for the RM and the events of asks and allocations: new ones, changed ones and ended ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_si.event_texts import REPORTED, REQUEST_CHANGED

from muster_core.allocation.backfill import in_force
from muster_core.model.outcome import (
    EventChange,
    EventDetail,
    EventType,
    NewAllocation,
    Outcome,
    ReleasedAllocation,
    event_of,
)
from muster_core.queues.limits import usage_events

if TYPE_CHECKING:
    from muster_core.model.application import Allocation, Ask
    from muster_core.model.commands import Termination
    from muster_core.model.partition_state import PartitionState


class AllocationFacts:
    """The facts and events of one partition's asks and allocations."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def ask_changed(self, before: Ask | None, after: Ask | None, out: Outcome, now_ns: int, message: str = "") -> None:
        """Adds the events of an ask that is new, wants another amount, or is reported as an allocation. Runs before the
        booking.

        Each event carries everything pending of the ask. A change that keeps the amount makes no event.
        """
        if not out.tracking:
            return
        if before is not None and after is not None and (before.shape, before.pending) == (after.shape, after.pending):
            return
        if before is not None:
            reason = REQUEST_CHANGED if after is not None else REPORTED
            self.ask_event(EventChange.REMOVE, EventDetail.APP_REQUEST, before, out, now_ns, reason)
        if after is not None:
            self.ask_event(EventChange.ADD, EventDetail.APP_REQUEST, after, out, now_ns, message)

    @staticmethod
    def ask_event(
        change: EventChange, detail: EventDetail, ask: Ask, out: Outcome, now_ns: int, message: str = ""
    ) -> None:
        """Adds the event of everything pending of an ask."""
        demand, pending = ask.demand, ask.pending
        requested = demand.shape if pending == 1 else demand.shape.times(pending)
        out.add_event(EventType.APP, change, detail, ask.app.app_id, demand.key, requested, message, now_ns=now_ns)

    def on_allocated(
        self, allocation: Allocation, out: Outcome, now_ns: int, *, adopted: bool = False, echo: bool = True
    ) -> None:
        """Adds the fact (``echo``) and the events of a new allocation, and sets its time-out."""
        if not adopted:
            out.made += 1
        if echo:
            demand_in_force = allocation.demand if allocation.backfilled is None else in_force(allocation)
            out.facts.append(NewAllocation(self._state.name, allocation, demand_in_force, adopted))
        demand = allocation.demand
        if demand.execution_timeout_ms > 0 or allocation.backfilled is not None:
            self.set_execution_deadline(allocation)
        app, key, shape = allocation.app, demand.key, demand.shape
        assert app is not None, f"{allocation} is foreign"
        if out.tracking:  # (inlined: the hottest path)
            added, node_id = EventChange.ADD, allocation.node_id
            if adopted:  # it has had no ask, so the event of an ask comes first
                out.events.append(
                    event_of((EventType.APP, added, EventDetail.APP_REQUEST, app.app_id, key, shape, REPORTED, now_ns))
                )
            out.events += (
                event_of((EventType.APP, added, EventDetail.APP_ALLOC, app.app_id, key, shape, "", now_ns)),
                event_of((EventType.NODE, added, EventDetail.NODE_ALLOC, node_id, key, shape, "", now_ns)),
            )
            usage_events(app, added, shape, out, now_ns)
        if out.requests and not adopted:
            out.add_user_event(key, app.app_id, shape, "Successful allocation", now_ns)

    def set_execution_deadline(self, allocation: Allocation) -> None:
        """Sets a deadline at the end of its execution time, if it has one."""
        if end_ns := allocation.end_ns:
            self._state.deadlines.append((end_ns, allocation))


def released(
    state: PartitionState, allocation: Allocation, termination: Termination, message: str
) -> ReleasedAllocation:
    """Makes the fact that an allocation is released, or has ended."""
    return ReleasedAllocation(
        state.name,
        allocation.app_id,
        allocation.key,
        allocation.uuid,
        termination,
        message,
        allocation.previous_generation,
    )
