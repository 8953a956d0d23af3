"""Adds asks to a partition, puts them into groups of asks that are alike, and removes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster_core.model.allocation_order import asks_in_steps
from muster_core.model.application import AskGroup
from muster_core.model.commands import Termination
from muster_core.model.outcome import EventChange, EventDetail, Outcome, ReleasedAsk
from muster_core.model.steps import STEP, Steps, emptied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster_core.allocation.accounting import Accounting
    from muster_core.allocation.allocation_facts import AllocationFacts
    from muster_core.allocation.ask_events import AskEvents
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.model.application import Ask
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.scopes import Scope
    from muster_core.nodes.node_accounting import NodeAccounting


class GangAskListener(Protocol):
    """The operations on gangs that asks need."""

    def cancel_stale_replacements(self, ask: Ask, out: Outcome) -> None:
        """Reviews the placeholders that are being released for the ask's key: keeps only those that suit the ask."""

    def adjust_pending(self, ask: Ask, count: int) -> None:
        """Counts ``count`` more of a placeholder ask as pending (fewer, if negative)."""

    def count_withdrawn(self, ask: Ask, count: int, detail: EventDetail | None) -> None:
        """Counts the reason why ``count`` of a placeholder ask are no longer pending; None: another ask takes its
        place.
        """


class OpenCheckSource(Protocol):
    """The predicate questions to the RM about asks."""

    @property
    def has_open(self) -> bool:
        """Whether a question about an ask is open, or its answer is not used yet."""

    def on_ask_removed(self, ask: Ask, out: Outcome | None) -> None:
        """Withdraws all questions about an ask that has ended."""


class ScopeEnabler(Protocol):
    """The scopes in which proposals must be alone."""

    def enable(self, scope: Scope) -> None:
        """Begins to take turns in this scope."""


class Asks:
    """Adds and removes the asks of one partition. Their applications hold them."""

    _gangs: GangAskListener
    _questions: OpenCheckSource
    _turns: ScopeEnabler

    def __init__(
        self,
        state: PartitionState,
        *,
        waiting: SchedulingQueue,
        node_books: NodeAccounting,
        books: Accounting,
        reservations: Reservations,
        announcements: AllocationFacts,
        notifications: AskEvents,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._node_books = node_books
        self._books = books
        self._reservations = reservations
        self._announcements = announcements
        self._notifications = notifications

    def connect(self, *, gangs: GangAskListener, questions: OpenCheckSource, turns: ScopeEnabler) -> None:
        """Takes the parts that are built after this one."""
        self._gangs = gangs
        self._questions = questions
        self._turns = turns

    def add_ask(self, ask: Ask, out: Outcome) -> None:
        """Adds an ask. The next cycle tries its group, unless the group is parked already."""
        app, demand = ask.app, ask.demand
        if demand.alone:
            self._turns.enable(demand.alone)
        if app.gang is not None:
            self._gangs.cancel_stale_replacements(ask, out)
        app.asks[demand.key] = ask
        self._books.add_pending(ask, ask.pending)
        self._node_books.index.count_shape(demand.shape, ask.pending)
        out.mark_changed(ask, self._state.name)
        if demand.created_ns < app.submitted_ns:
            app.submitted_ns = demand.created_ns
            self._waiting.rekey_app(app)
            self._waiting.requeue_app(app)
            out.mark_changed(app, self._state.name)
        if demand.placeholder:
            self._gangs.adjust_pending(ask, ask.pending)
        # (Otherwise placeholders are being released for an earlier ask with its key; the new ask takes their places.)
        if app.gang is None or ask.open > 0:
            self.enter_group(ask)

    def enter_group(self, ask: Ask) -> None:
        """Lets the ask be tried: its group is ready, or parked on the waitlist of groups that are alike."""
        app, demand = ask.app, ask.demand
        group = self.group_of(ask)
        group.push(ask)
        if self._notifications.wanted:
            self._notifications.on_ask_added(ask, group)
        ready = group.ready_key
        if ready is not None and (demand.created_ns, demand.submission) > ready[1:]:
            return  # behind other asks of its group, which are tried first
        if group.in_line:
            self._waiting.queue_ready(group)
            return
        if group.parked_key is not None:
            if group.head() is ask:
                self._waiting.rekey_head(group)
            else:
                self._waiting.parked[group] = None
            return
        waitlists = app.queue.waitlists
        waitlist = waitlists.get(group.wait_key) if waitlists else None
        should_park = waitlist is not None and waitlist.is_blocked and app.waiting_at is None
        gang = app.gang
        if gang is not None and (gang.waits_for_room or gang.gates(group) or gang.can_be_replaced_by(group)):
            # It waits for room for the gang or for placeholders; the others wait for something else.
            should_park = False
        if waitlist is not None and should_park and ready is None:
            self._waiting.park_on(group, waitlist)
        else:
            self._waiting.make_ready(group)

    def group_of(self, ask: Ask) -> AskGroup:
        """The group to which the ask belongs, created if there is none."""
        app, demand = ask.app, ask.demand
        key = (
            demand.shape,
            demand.priority,
            demand.required_node,
            demand.allow_preempt_other,
            "" if ask.mismatched else demand.task_group,
            demand.placeholder,
            ask.apart,
        )
        group = app.groups.get(key)
        if group is None:
            app.groups[key] = group = AskGroup(app, key)
            if app.gang is not None:
                app.gang.on_group_added(group)
        return group

    def regroup(self, ask: Ask) -> None:
        """Moves the ask to the group of its kind, because the rules changed. No ask waits at that time."""
        assert ask.group is not None, f"{ask} is in no group"
        self._waiting.remove_ready(ask.group)
        self.leave_group(ask, None)
        self.group_of(ask).push(ask)

    def remove_ask(self, ask: Ask, out: Outcome, now_ns: int, detail: EventDetail | None) -> None:
        """Removes an ask. ``detail`` None: another ask takes its place (see :meth:`AllocationFacts.ask_changed`)."""
        app = ask.app
        if detail is not None:
            self._announcements.ask_event(EventChange.REMOVE, detail, ask, out, now_ns)
        if ask.pending:
            self._books.add_pending(ask, -ask.pending)
            self._node_books.index.count_shape(ask.shape, -ask.pending)
            if ask.demand.placeholder:
                self._gangs.adjust_pending(ask, -ask.pending)
                self._gangs.count_withdrawn(ask, ask.pending, detail)
                out.mark_changed(app, self._state.name)
            ask.pending = 0
        self.drop_ask(ask, out, now_ns)
        self._waiting.requeue_app(app)

    def time_out_ask(self, ask: Ask, message: str, detail: EventDetail, out: Outcome, now_ns: int) -> None:
        """Removes an ask that timed out, and tells the RM."""
        previous = ask.demand.previous_generation
        out.facts.append(ReleasedAsk(self._state.name, ask.app.app_id, ask.key, Termination.TIMEOUT, message, previous))
        self.remove_ask(ask, out, now_ns, detail)

    def time_out_all(self, asks: Iterable[Ask], message: str, detail: EventDetail, out: Outcome, now_ns: int) -> Steps:
        """Does so with several asks of an application, in their order; in steps."""
        ordered = yield from asks_in_steps(asks)
        for count, ask in enumerate(emptied(ordered), 1):
            self.time_out_ask(ask, message, detail, out, now_ns)
            if not count % STEP:
                yield

    def drop_ask(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """Drops an ask with nothing pending from its group and its application."""
        asks, key = ask.app.asks, ask.demand.key
        ask.gone = True
        if self._questions.has_open or ask.refusals is not None:
            self._questions.on_ask_removed(ask, out)
        if ask.reserved_node:
            self._reservations.unreserve(ask, out, now_ns)
        if asks.get(key) is ask:
            del asks[key]
        out.mark_changed(ask, self._state.name)
        if ask.group is not None:
            self.leave_group(ask, out)

    def leave_group(self, ask: Ask, out: Outcome | None) -> None:
        """Takes the ask out of the search, for good or for now. ``out`` None: states are being folded, and no ask
        waits.
        """
        app, group = ask.app, ask.group
        assert group is not None, f"{ask} is in no group"
        group.pull(ask)
        if not group.asks:
            del app.groups[group.key]
            if app.gang is not None:
                app.gang.on_group_removed(group)
        if out is None:
            return
        if group.asks:
            if group.ready_key is not None or group.in_line:
                self._waiting.queue_ready(group)
                self._waiting.on_head_changed(group)
            else:
                self._waiting.rekey_head(group)
            return
        if group.parked_key is not None:
            self._waiting.unpark(group, out)
        else:
            self._waiting.remove_ready(group)
            self._waiting.wake_next(group)
