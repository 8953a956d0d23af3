"""Ends allocations: releases them (preempted, timed out), reminds the RM until it confirms, and removes them.

A released allocation stays on the books until the RM confirms its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster_core.allocation.allocation_facts import released
from muster_core.applications import usage
from muster_core.gangs.messages import replacing_message
from muster_core.model.allocation import PreemptionRecord
from muster_core.model.allocation_order import ordered_in_steps
from muster_core.model.application import Allocation
from muster_core.model.commands import Termination
from muster_core.model.outcome import EventChange, EventDetail, EventType, Outcome, event_of
from muster_core.model.states import REMINDER_NS, PlaceholderEvent
from muster_core.model.steps import STEP, Steps, emptied
from muster_core.queues import quota_enforcement
from muster_core.queues.limits import usage_events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster_core.allocation.accounting import Accounting
    from muster_core.allocation.fair_share_accounting import FairShareAccounting
    from muster_core.model.application import Application
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting

REMINDER_MESSAGE = "reminder: the release of the allocation was not confirmed"


class PlaceholderReleaseListener(Protocol):
    """The operations on gangs when placeholders are released or have ended."""

    def on_released(self, placeholder: Allocation, event: PlaceholderEvent) -> None:
        """Notes that the scheduler released a free placeholder without a real ask for it."""

    def on_preempted(self, app: Application, out: Outcome) -> None:
        """Notes that an allocation of the application was preempted."""

    def count_ended(self, placeholder: Allocation, detail: EventDetail) -> None:
        """Counts why a placeholder left the books."""


class IdleCompleter(Protocol):
    """The consequences of an end for the application."""

    def complete_if_idle(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Completes an application without asks and real allocations."""


class Releases:
    """The ends of one partition's allocations."""

    _gangs: PlaceholderReleaseListener
    _lifecycle: IdleCompleter

    def __init__(
        self,
        state: PartitionState,
        *,
        books: Accounting,
        node_books: NodeAccounting,
        fair_shares: FairShareAccounting,
    ) -> None:
        self._state = state
        self._fair_shares = fair_shares
        self._books = books
        self._node_books = node_books

    def connect(self, *, gangs: PlaceholderReleaseListener, lifecycle: IdleCompleter) -> None:
        """Takes the parts that are built after this one."""
        self._gangs = gangs
        self._lifecycle = lifecycle

    # ---- release by the scheduler ----------------------------------------------------------------------------------

    def preempt(
        self, allocation: Allocation, record: PreemptionRecord, message: str, out: Outcome, now_ns: int
    ) -> None:
        """Releases an allocation by preemption. The allocation counts until the RM confirms its end."""
        state = self._state
        app = allocation.app
        assert app is not None, f"{allocation} is foreign"
        assert not allocation.releasing, f"{allocation} is released already"
        if allocation.demand.placeholder:
            self._gangs.on_released(allocation, PlaceholderEvent.PREEMPT)
        allocation.preempted = record
        self._books.add_preempting(allocation, app.queue, 1)
        self.mark_releasing(allocation, out, now_ns)
        self._gangs.on_preempted(app, out)
        out.facts.append(released(state, allocation, Termination.PREEMPTED_BY_SCHEDULER, message))
        out.add_user_event(allocation.key, app.app_id, allocation.shape, message, now_ns)

    def time_out(self, allocation: Allocation, message: str, out: Outcome, now_ns: int) -> None:
        """Releases an allocation that timed out. The allocation counts until the RM confirms its end."""
        state = self._state
        if allocation.releasing or allocation.gone:
            return
        if allocation.demand.placeholder:
            self._gangs.on_released(allocation, PlaceholderEvent.TIME_OUT)
        allocation.timed_out = True
        self.mark_releasing(allocation, out, now_ns)
        out.facts.append(released(state, allocation, Termination.TIMEOUT, message))

    def time_out_all(self, allocations: Iterable[Allocation], message: str, out: Outcome, now_ns: int) -> Steps:
        """Does so with several allocations, in their order; in steps."""
        ordered = yield from ordered_in_steps(allocations)
        for count, allocation in enumerate(emptied(ordered), 1):
            self.time_out(allocation, message, out, now_ns)
            if not count % STEP:
                yield

    def mark_releasing(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Notes a release: the allocation can no longer be a victim, and a reminder to the RM is scheduled."""
        state = self._state
        allocation.releasing_since_ns = now_ns
        state.version += 1
        self.schedule_resend(allocation, now_ns)
        out.mark_changed(allocation, state.name)

    def resend(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Reminds the RM of a release that it has not confirmed: the message or the confirmation may be lost."""
        termination, message = Termination.TIMEOUT, REMINDER_MESSAGE
        if allocation.preempted is not None:
            termination = Termination.PREEMPTED_BY_SCHEDULER
        elif allocation.replaced_by is not None:
            termination = Termination.PLACEHOLDER_REPLACED
            if allocation.replaced_by:
                message = f"{replacing_message(allocation.replaced_by)} ({REMINDER_MESSAGE})"
        out.facts.append(released(self._state, allocation, termination, message)._replace(reminder=True))
        self.schedule_resend(allocation, now_ns)

    def schedule_resend(self, allocation: Allocation, now_ns: int) -> None:
        """Sets the next reminder: a whole multiple of the interval after the release, so a restart does not change its
        time.
        """
        reminders = max(now_ns - allocation.releasing_since_ns, 0) // REMINDER_NS + 1
        allocation.reminder_ns = allocation.releasing_since_ns + reminders * REMINDER_NS
        self._state.deadlines.append((allocation.reminder_ns, allocation))

    # ---- confirmed -------------------------------------------------------------------------------------------------

    def release(
        self,
        allocation: Allocation,
        termination: Termination,
        message: str,
        detail: EventDetail,
        out: Outcome,
        now_ns: int,
        *,
        tell: bool = True,
        completing: bool = True,
    ) -> None:
        """Ends an allocation. Tells the RM (``tell``), and adds the events."""
        state = self._state
        self.record_usage(allocation, out, now_ns)
        self._books.uncharge(allocation)
        out.mark_changed(allocation, state.name)
        if tell:
            out.facts.append(released(state, allocation, termination, message))
        if allocation.foreign:
            self._node_books.occupied_event(allocation.node_id, out, now_ns)
            return
        out.ended += 1
        self.emit_ended(allocation, detail, out, now_ns)
        app = allocation.app
        if app is None:
            return
        if allocation.demand.placeholder:
            self._gangs.count_ended(allocation, detail)
            out.mark_changed(app, state.name)
        for queue in app.queue.ancestry:
            if queue.quota_ns:
                quota_enforcement.on_usage_changed(state, app.queue, (), out, now_ns)
                break
        if completing:
            self._lifecycle.complete_if_idle(app, out, now_ns)

    def record_usage(self, ended: Allocation, out: Outcome, now_ns: int) -> None:
        """Adds the allocation's use to its application's, and to its user's."""
        state = self._state
        app = ended.app
        if app is None:
            return
        used = usage.account(app.usage, ended, state.nodes.get(ended.node_id), now_ns)
        # (Runs before the end: the sums still include what the allocation held.)
        if usage.record_peak(app, ended) or used:
            out.mark_changed(app, state.name)
        if app.queue.fair_uses is not None:
            self._fair_shares.charge(app, ended.shape, -1, out, now_ns)

    def emit_ended(self, allocation: Allocation, detail: EventDetail, out: Outcome, now_ns: int) -> None:
        """Adds the events of an allocation that ended."""
        if (detail is EventDetail.ALLOC_CANCEL or detail is EventDetail.ALLOC_NODEREMOVED) and not allocation.source:
            out.released += 1
        app = allocation.app
        if app is None or not out.tracking:
            return
        key, shape = allocation.key, allocation.shape
        by = (
            f"replaced by {allocation.replaced_by}"
            if allocation.replaced_by and detail is EventDetail.ALLOC_REPLACED
            else ""
        )
        remove, node_id = EventChange.REMOVE, allocation.node_id
        out.events += (
            event_of((EventType.APP, remove, detail, app.app_id, key, shape, by, now_ns)),
            event_of((EventType.NODE, remove, EventDetail.NODE_ALLOC, node_id, key, shape, "", now_ns)),
        )
        usage_events(app, remove, shape, out, now_ns)
