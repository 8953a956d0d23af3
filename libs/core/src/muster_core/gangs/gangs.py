"""Gangs (the gang design): placeholders hold room for real asks that arrive later and replace them.

``Gang`` in ``model/application.py`` describes one gang. This module works on all gangs of a partition.

* A gang starts when its limits have room for all of it (``gang.start: whole``). The scheduler *promises* the gang the
  room that it has not taken yet, so that no two gangs count on the same room. The gang's real asks wait until it is
  formed.
* A real ask replaces a placeholder in two steps. First the scheduler releases the placeholder, and the ask leaves its
  group; only the placeholder counts. When the RM confirms the release, the scheduler allocates the ask.
* Unused placeholders are released when they time out, or when their application has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.allocation.allocation_facts import released
from muster_core.gangs import messages
from muster_core.gangs.placeholders import fits_after, move, timeout_ns
from muster_core.gangs.protocols import NodeExclusivity, RealAskAllocator, ReplacementChecks, StuckAskReporter
from muster_core.model.application import Allocation, Application, Ask, AskGroup, Gang
from muster_core.model.commands import Termination
from muster_core.model.demand import Demand
from muster_core.model.free_placeholders import covers
from muster_core.model.node import Node
from muster_core.model.outcome import EventDetail, Outcome
from muster_core.model.queue import Queue
from muster_core.model.resources import INT64_MAX, fits
from muster_core.model.states import (
    AppEvent,
    AppState,
    GangEvent,
    GangPhase,
    PlaceholderEvent,
    next_gang_phase,
)
from muster_core.model.steps import Steps
from muster_core.model.text_format import format_quantities

if TYPE_CHECKING:
    from muster_core.allocation.asks import Asks
    from muster_core.allocation.releases import Releases
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.applications.lifecycle import ApplicationLifecycle
    from muster_core.gangs.gang_headroom import GangHeadroom
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.predicate_checks import PredicateCheck
    from muster_core.nodes.node_accounting import NodeAccounting


class Gangs:
    """The gangs of one partition.

    :ivar dirty: applications whose gang changed, with the changed task groups (None: all); for :meth:`reconcile`.
    :ivar reopened: asks that lost their placeholder and may be tried again.
    """

    _questions: ReplacementChecks
    _turns: NodeExclusivity
    _placing: RealAskAllocator
    _long_wait: StuckAskReporter

    def __init__(
        self,
        state: PartitionState,
        *,
        room: GangHeadroom,
        waiting: SchedulingQueue,
        node_books: NodeAccounting,
        asks: Asks,
        reservations: Reservations,
        releases: Releases,
        lifecycle: ApplicationLifecycle,
    ) -> None:
        self._state = state
        self._room = room
        self._waiting = waiting
        self._node_books = node_books
        self._asks = asks
        self._reservations = reservations
        self._releases = releases
        self._lifecycle = lifecycle
        self.dirty: dict[Application, dict[str, None] | None] = {}
        self.reopened: dict[Ask, None] = {}
        self._stuck: dict[Application, None] = {}
        # Gangs that wait again for room for all of them.
        self._anew: dict[Application, None] = {}

    def connect(
        self,
        *,
        questions: ReplacementChecks,
        turns: NodeExclusivity,
        placing: RealAskAllocator,
        long_wait: StuckAskReporter,
    ) -> None:
        """Takes the parts that are built after this one."""
        self._questions = questions
        self._turns = turns
        self._placing = placing
        self._long_wait = long_wait

    @property
    def waiting(self) -> bool:
        """Whether something changed that :meth:`reconcile` has not processed yet."""
        return bool(self.dirty or self.reopened)

    def _stir(self, app: Application, task_group: str | None = None) -> None:
        if not self._state.searching:  # (No ask waits in a follower, nor while states are folded.)
            return
        if task_group is None:
            self.dirty[app] = None
            return
        names = self.dirty.setdefault(app, {})
        if names is not None:
            names[task_group] = None

    def get_or_create(self, app: Application) -> Gang:
        """Returns the application's gang. Creates the gang if the application has none."""
        if app.gang is None:
            placeholder_ask = app.placeholder_ask
            total = (
                self._state.types.shape(placeholder_ask) if placeholder_ask and any(placeholder_ask.values()) else None
            )
            app.gang = Gang(app, total)
            self._state.version += 1  # preemption may treat its allocations differently now
            self._waiting.parking.review_all(app)
            if any(not allocation.placeholder for allocation in app.allocations.values()):
                app.gang.phase = GangPhase.USED  # running allocations came before its first placeholder
        return app.gang

    # ---- the books -------------------------------------------------------------------------------------------------

    def adjust_pending(self, ask: Ask, count: int) -> None:
        """Counts ``count`` more of a placeholder ask as pending (fewer, if negative)."""
        gang = self.get_or_create(ask.app)
        group = gang.task_group(ask.demand)
        before = group.pending
        group.pending += count
        self._count(gang, gang.pending, ask.demand, count)
        if not before or not group.pending:
            self._stir(ask.app, group.name)

    def adjust_requested(self, demand: Demand, app: Application, count: int) -> None:
        """Counts ``count`` more placeholders as asked for (fewer, if negative: others take their place)."""
        self.get_or_create(app).task_group(demand).asked += count

    def restore_pending(self, demand: Demand, app: Application, pending: int) -> None:
        """Counts a placeholder that could not start as pending again. ``pending``: the present number of its ask."""
        group = (gang := self.get_or_create(app)).task_group(demand)
        group.lost -= 1
        group.asked += pending - 1
        self._count(gang, gang.ended, demand, -1)

    def charge(self, placeholder: Allocation) -> None:
        """Books a placeholder."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.get_or_create(app)
        group = gang.task_group(placeholder.demand)
        group.held += 1
        for number, value in placeholder.shape.items:
            gang.taken[number] = gang.taken.get(number, 0) + value
        if placeholder.preempted is None and not placeholder.timed_out:
            self._place(gang, placeholder, 1)
        if not placeholder.releasing:
            if not group.free or gang.stuck:
                self._stir(app, group.name)
            group.free.add(placeholder)
        if placeholder.replaced_by:
            gang.replacing.setdefault(placeholder.replaced_by, {})[placeholder.unique_key] = None
            ask = app.asks.get(placeholder.replaced_by)
            if ask is not None and ask.group is not None and ask.open <= 0:
                self._asks.leave_group(ask, None)

    def uncharge(self, placeholder: Allocation) -> None:
        """Undoes :meth:`charge`. If the placeholder was leaving for an ask, that ask is open again."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        assert app.gang is not None, f"{placeholder} has no gang"
        gang = app.gang
        group = gang.groups[placeholder.task_group]
        self._break_off(gang, placeholder)
        group.held -= 1
        for number, value in placeholder.shape.items:
            gang.taken[number] -= value
        group.free.discard(placeholder)
        if placeholder.preempted is None and not placeholder.timed_out:
            self._place(gang, placeholder, -1)
        if placeholder.replaced_by:
            self._unlink(gang, placeholder)
        self._stir(app, group.name)

    def _unlink(self, gang: Gang, placeholder: Allocation) -> None:
        key = placeholder.replaced_by or ""
        leaving = gang.replacing.get(key)
        if leaving is None:
            return
        leaving.pop(placeholder.unique_key, None)
        if not leaving:
            del gang.replacing[key]
        ask = gang.app.asks.get(key)
        if ask is None or ask.group is not None or ask.open <= 0:
            return
        if self._state.searching:
            self.reopened[ask] = None
        else:
            self._asks.group_of(ask).push(ask)

    def _place(self, gang: Gang, placeholder: Allocation, sign: int) -> None:
        for number, value in placeholder.shape.items:
            gang.placed[number] = gang.placed.get(number, 0) + sign * value
        self._promise(gang)

    def on_released(self, placeholder: Allocation, event: PlaceholderEvent) -> None:
        """Notes that the scheduler released a free placeholder without a real ask for it."""
        move(placeholder, event)
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        assert app.gang is not None, f"{placeholder} has no gang"
        self._break_off(app.gang, placeholder)
        app.gang.groups[placeholder.task_group].free.discard(placeholder)
        self._place(app.gang, placeholder, -1)
        self._stir(app, placeholder.task_group)

    def count_ended(self, placeholder: Allocation, detail: EventDetail) -> None:
        """Counts why a placeholder left the books."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        assert app.gang is not None, f"{placeholder} has no gang"
        group = app.gang.groups[placeholder.task_group]
        self._count(app.gang, app.gang.ended, placeholder.demand, 1)
        if placeholder.timed_out:
            group.timed_out += 1
        elif placeholder.replaced_by is not None and detail is not EventDetail.ALLOC_NODEREMOVED:
            group.replaced += 1
        else:
            group.lost += 1

    def count_withdrawn(self, ask: Ask, count: int, detail: EventDetail | None) -> None:
        """Counts why ``count`` of a placeholder ask are no longer pending; None: another ask takes its place."""
        group = (gang := self.get_or_create(ask.app)).task_group(ask.demand)
        if detail is not None:
            self._count(gang, gang.ended, ask.demand, count)
        if detail is None:
            group.asked -= count
        elif detail is EventDetail.REQUEST_TIMEOUT:
            group.timed_out += count
        else:
            group.lost += count

    def _count(self, gang: Gang, amounts: dict[int, int], demand: Demand, count: int) -> None:
        """Counts ``count`` placeholders among those that are pending, or that ended."""
        expected = gang.expects
        for number, value in demand.shape.items:
            amounts[number] = amounts.get(number, 0) + count * value
        (self.promise_less if amounts is gang.ended else self._promise)(gang)
        if gang.whole and gang.expects != expected:  # its real asks wait for placeholders, or not any more
            self._stir(gang.app)

    # ---- while the RM is asked -------------------------------------------------------------------------------------

    def adjust_proposed(self, ask: Ask, sign: int) -> None:
        """Counts a placement of this placeholder ask as proposed to the RM (1), or no longer proposed (-1)."""
        gang = self.get_or_create(ask.app)
        for number, value in ask.shape.items:
            remaining = gang.proposed.get(number, 0) + sign * value
            if remaining:
                gang.proposed[number] = remaining
            else:
                gang.proposed.pop(number, None)
        if sign > 0:  # (Otherwise the placeholder is placed now, or :meth:`on_refused` follows.)
            self._promise(gang)
            if gang.phase is GangPhase.WAITING:
                self._waiting.wake_gangs_beside(ask.app)  # it took its room: other gangs may start

    def on_refused(self, app: Application) -> None:
        """Handles a refusal by the RM: a gang without placed or proposed placeholders starts again as a whole."""
        gang = self.get_or_create(app)
        self.promise_less(gang)
        if gang.waits_for_room:
            self._anew[app] = None
            self._stir(app)

    def mark_candidate(self, placeholder: Allocation, check: PredicateCheck) -> None:
        """Marks a placeholder as not free while the RM is asked whether it may make room."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.get_or_create(app)
        gang.groups[placeholder.task_group].free.discard(placeholder)
        self._state.checks.of_placeholders[placeholder] = check
        self._stir(app, placeholder.task_group)

    def unmark_candidate(self, placeholder: Allocation) -> None:
        """Frees the placeholder after the RM's answer, unless it was released meanwhile."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.get_or_create(app)
        was_candidate = self._state.checks.of_placeholders.pop(placeholder, None) is not None
        if was_candidate and not placeholder.releasing and not placeholder.gone:
            gang.groups[placeholder.task_group].free.add(placeholder)
            self._stir(app, placeholder.task_group)

    def _break_off(self, gang: Gang, placeholder: Allocation) -> None:
        """Withdraws a placeholder that ends for another reason. Its candidate ask looks for another one."""
        check = self._state.checks.of_placeholders.pop(placeholder, None)
        if check is not None:
            self._questions.withdraw(check, None)
            self.reopened[check.ask] = None

    def start_replacement(self, placeholder: Allocation, ask: Ask, node: Node, out: Outcome, now_ns: int) -> bool:
        """Starts a replacement on this node to which the RM agreed. Returns whether it could start."""
        state, gang = self._state, ask.app.gang
        if gang is None or ask.gone or placeholder.gone or placeholder.releasing or not state.deciding:
            return False
        if not _suits(ask, placeholder):
            return False
        if node.node_id == placeholder.node_id:
            if not fits_after(node, ask, placeholder):
                return False
            if ask.reserved_node and not ask.awaits_placeholders:
                self._reservations.unreserve(ask, out, now_ns)  # the ask need not wait for room there
        else:
            if ask.awaits_placeholders or not fits(ask.shape.items, node.available):
                return False
            if ask.reserved_node != node.node_id:
                if node.index_key is None:
                    return False  # the node is reserved for another ask now
                if ask.reserved_node:
                    self._reservations.unreserve(ask, out, now_ns)
                self._reservations.reserve(ask, node, out, now_ns)
        placeholder.agreed_node = node.node_id
        self._replace(placeholder, ask, gang, out, now_ns)
        return True

    def review_group(self, group: AskGroup) -> None:
        """Reviews a group whose obstacle may have ended."""
        self._stir(group.app, group.task_group)

    # ---- phases ----------------------------------------------------------------------------------------------------

    def on_placeholder_allocated(self, placeholder: Allocation, out: Outcome, now_ns: int) -> None:
        """Notes a placeholder that was allocated, or reported by the RM."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.get_or_create(app)
        if app.state is AppState.NEW:
            self._lifecycle.change_state(app, AppEvent.RUN, out, now_ns)
        if gang.phase is GangPhase.WAITING:
            self._advance(gang, GangEvent.FIRST_PLACEHOLDER, out)
        if not gang.deadline_ns:
            self._start_clock(gang, out, now_ns)
            self._stir(app)  # while the clock runs, real asks may wait for placeholders again
        if gang.phase is GangPhase.FORMING and gang.is_complete:
            self._advance(gang, GangEvent.ALL_PLACED, out)
            if not gang.whole and app.state is AppState.ACCEPTED:  # YuniKorn's way
                self._lifecycle.change_state(app, AppEvent.RUN, out, now_ns)

    def on_real_allocated(self, app: Application, out: Outcome) -> None:
        """Notes a real allocation of the application that was made, or reported by the RM."""
        gang = app.gang
        if gang is not None and gang.phase is not GangPhase.USED:
            self._advance(gang, GangEvent.REAL_ALLOCATION, out)

    def on_preempted(self, app: Application, out: Outcome) -> None:
        """Handles the preemption of an allocation: a gang that lost all its placeholders starts again, as a whole."""
        gang = app.gang
        if gang is None or not gang.whole or not app.queue.policy.gangs_preempted_whole:
            return
        forms = gang.phase in (GangPhase.FORMING, GangPhase.FORMED)
        if forms and not gang.replacing and not any(group.free for group in gang.groups.values()):
            self._advance(gang, GangEvent.PREEMPTED, out)
            self._anew[app] = None

    def _start_clock(self, gang: Gang, out: Outcome, now_ns: int) -> None:
        gang.deadline_ns = min(now_ns + timeout_ns(gang.app), INT64_MAX)
        self._state.deadlines.append((gang.deadline_ns, gang.app))
        out.mark_changed(gang.app, self._state.name)

    def _advance(self, gang: Gang, event: GangEvent, out: Outcome) -> None:
        app = gang.app
        if gang.too_large_since_ns:  # it does not wait for that limit any more
            gang.too_large_since_ns = gang.deadline_ns = 0
        gang.phase = next_gang_phase(f"gang of application {app.app_id}", gang.phase, event)
        self.promise_less(gang)  # it took its room, or needs none any more
        self._lifecycle.recount(app)
        if app.waiting_at is not None and not gang.waits_for_room and app.waits_whole:
            self._waiting.unpark_app(app)  # it started another way: the RM reported its allocations
            self._waiting.requeue_app(app)
        self._stir(app)
        out.mark_changed(app, self._state.name)

    # ---- starting as a whole ---------------------------------------------------------------------------------------

    def on_limits_changed(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Reviews gangs after limits of the queue, of queues below it, or of users and groups there changed."""
        for app in self._state.apps_in(queue):
            self.review_timeout(app, out, now_ns)
        for child in queue.children.values():
            self.on_limits_changed(child, out, now_ns)

    def review_timeout(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Runs the time-out of a waiting gang while a limit is smaller than the whole gang, which could never start."""
        gang = app.gang
        if gang is None or gang.phase is not GangPhase.WAITING or app.state is AppState.FAILING:
            return
        below = self._room.unsatisfiable_limit(app)
        if below is None and gang.too_large_since_ns:
            gang.too_large_since_ns = gang.deadline_ns = 0
            out.mark_changed(app, self._state.name)
            messages.emit_user_event(
                gang, "Gang may start again: no limit is smaller than its placeholderAsk", out, now_ns
            )
        elif below is not None and not gang.deadline_ns:  # (Otherwise it waits again, and its clock runs already.)
            gang.too_large_since_ns = now_ns
            self._start_clock(gang, out, now_ns)
            messages.emit_user_event(gang, f"Gang cannot start: {self._room.smaller_limit(*below)}", out, now_ns)

    def _promise(self, gang: Gang) -> None:
        """Counts the amounts that the gang has still to take, at each of its limits."""
        if self._state.searching:
            self._set_promise(gang, {} if gang.app.gone else gang.unplaced_by_type)

    def promise_less(self, gang: Gang) -> None:
        """Counts what the gang has still to take. If it is less than before, other gangs may start."""
        self._promise(gang)
        self._waiting.wake_gangs_beside(gang.app)

    @staticmethod
    def _set_promise(gang: Gang, promise: dict[int, int]) -> None:
        before, gang.promised = gang.promised, promise
        if promise == before:
            return
        for ledger in gang.app.bounds:
            promised = ledger.promised
            for number in {**before, **promise}:
                remaining = promised.get(number, 0) - before.get(number, 0) + promise.get(number, 0)
                if remaining:
                    promised[number] = remaining
                else:
                    promised.pop(number, None)

    def remove_promises(self, app: Application) -> None:
        """Withdraws the gang's promises from the limits, because the application does not count there any more."""
        if app.gang is not None:
            self._set_promise(app.gang, {})
            self._waiting.wake_gangs_beside(app)

    def add_promises(self, app: Application) -> None:
        """Counts the gang's promises in the limits: the application counts there (again), or its state changed."""
        if app.gang is not None:
            self.promise_less(app.gang)
            self._stir(app)

    # ---- which asks are held back ----------------------------------------------------------------------------------

    def reconcile(self, out: Outcome) -> None:
        """Brings back asks that lost their placeholder. Then decides again which asks wait for placeholders."""
        while self.waiting:
            reopened, self.reopened = self.reopened, {}
            for ask in reopened:
                if not ask.gone and ask.group is None and ask.open > 0:
                    self._asks.enter_group(ask)
            dirty, self.dirty = self.dirty, {}
            for app, names in dirty.items():
                self._stuck.pop(app, None)
                if app.gone:
                    self._anew.pop(app, None)
                if app.gang is not None and not app.gone:
                    self._review(app.gang, names, out)
                    if app in self._anew:
                        self._start_anew(app, out)
                    if app.gang.stuck:
                        self._stuck[app] = None
                    idle = app.gang.waits_for_room and not app.ready
                    if app.waiting_at is not None and app.waits_whole and (idle or not app.gang.waits_for_room):
                        self._waiting.unpark_app(app)  # nothing of it can start, or its asks need not wait for room
                        self._waiting.requeue_app(app)
                    if idle:
                        self._waiting.wake_gangs_beside(app)  # it may have been woken before its asks went

    def _start_anew(self, app: Application, out: Outcome) -> None:
        """Lets the gang's placeholder asks, which waited for nodes, wait for room for the whole gang first."""
        del self._anew[app]
        for group in list(app.groups.values()):
            if group.placeholder and group.parked_key is not None:
                self._waiting.unpark(group, out)
                self._waiting.make_ready(group)

    def _review(self, gang: Gang, names: dict[str, None] | None, out: Outcome) -> None:
        waiting = self._waiting
        for group in [group for name in (gang.reals if names is None else names) for group in gang.reals.get(name, ())]:
            gang.stuck.pop(group, None)
            if not group.asks:
                continue
            if gang.gates(group):
                if not group.held:
                    self._take_out(group, out)
            elif group.held:
                waiting.make_ready(group)
            elif group.parked_key is not None and gang.can_be_replaced_by(group):
                waiting.unpark(group, out)
                waiting.make_ready(group)

    def _take_out(self, group: AskGroup, out: Outcome) -> None:
        """Holds the group back: it is neither ready nor parked until its gang permits it."""
        waiting = self._waiting
        group.held = True
        if group.parked_key is not None:
            waiting.unpark(group, out)
        else:
            waiting.remove_ready(group)
            waiting.wake_next(group)
        waiting.requeue_app(group.app)

    def retry_stuck(self) -> None:
        """Reviews stuck groups after nodes gained room: they may fit now."""
        for app in self._stuck:
            for group in app.gang.stuck if app.gang is not None else ():
                self._stir(app, group.task_group)

    # ---- replacement -----------------------------------------------------------------------------------------------

    def replace_placeholder(self, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Lets a placeholder of the ask's task group make room for the real ask; False: the ask is placed as usual.

        Takes the first placeholder that is large enough and on whose node the ask may run; else the first that is large
        enough, and reserves another node that has room now. (The gang design, "Scheduler logic changes".)
        """
        gang = ask.app.gang
        own = gang.groups.get(group.task_group) if gang is not None and not group.placeholder else None
        if gang is None or own is None or not own.free:
            return False
        state, required = self._state, ask.demand.required_node
        first: Allocation | None = None
        questions, refused = self._questions, self._questions.refused_ids(ask)
        waits = False
        for placeholder in own.free.covering(ask.shape):
            if required and placeholder.node_id != required:
                continue
            own_node = state.nodes[placeholder.node_id]
            if own_node.node_id not in refused and fits_after(own_node, ask, placeholder):
                if questions.predicates:
                    if not self._turns.may_propose(ask, own_node):
                        waits = True  # another proposal uses that node
                        continue
                    questions.propose_replacement(ask, group, placeholder, own_node, out, now_ns)
                    return True
                if ask.reserved_node and not ask.awaits_placeholders:
                    self._reservations.unreserve(ask, out, now_ns)  # the ask need not wait for room there
                self._replace(placeholder, ask, gang, out, now_ns)
                return True
            first = first or placeholder
        if first is None and not waits:
            if not required:
                self._cancel(own.free.first(), ask, out, now_ns)
            return not required
        go_on = not waits and first is not None and not required and not ask.awaits_placeholders
        node = self._placing.find_node(ask, group) if go_on else None
        if node is not None and first is not None and questions.predicates:
            questions.propose_replacement(ask, group, first, node, out, now_ns)
            return True
        if node is not None and first is not None:
            if ask.reserved_node != node.node_id:
                if ask.reserved_node:
                    self._reservations.unreserve(ask, out, now_ns)
                self._reservations.reserve(ask, node, out, now_ns)
            self._replace(first, ask, gang, out, now_ns)
            return True
        gang.stuck[group] = None
        self._stuck[ask.app] = None
        self._take_out(group, out)
        if not waits:
            self._long_wait.request_scale_up(group, now_ns)
        return True

    def _replace(self, placeholder: Allocation, ask: Ask, gang: Gang, out: Outcome, now_ns: int) -> None:
        """Step one: releases the placeholder; the ask waits until the placeholder has ended."""
        state, app = self._state, gang.app
        move(placeholder, PlaceholderEvent.REPLACE)
        gang.groups[placeholder.task_group].free.discard(placeholder)
        placeholder.replaced_by = ask.key
        gang.replacing.setdefault(ask.key, {})[placeholder.unique_key] = None
        self._releases.mark_releasing(placeholder, out, now_ns)
        message = messages.replacing_message(ask.key)
        out.facts.append(released(state, placeholder, Termination.PLACEHOLDER_REPLACED, message))
        if ask.open <= 0 and ask.group is not None:  # (Otherwise the RM was asked, and the ask waited for the answer.)
            self._asks.leave_group(ask, out)
            self._waiting.requeue_app(app)
        self._stir(app, placeholder.task_group)

    def _cancel(self, placeholder: Allocation, ask: Ask, out: Outcome, now_ns: int) -> None:
        """No placeholder is as large as the ask. Releases one for it; the ask looks for room without a placeholder."""
        state = self._state
        message = (
            f"Task group '{placeholder.task_group}' in application '{ask.app.app_id}': allocation resources "
            f"'{format_quantities(ask.shape.quantities)}' are not matching placeholder "
            f"'{format_quantities(placeholder.shape.quantities)}' allocation with ID '{placeholder.key}'"
        )
        out.add_user_event(placeholder.key, ask.app.app_id, ask.shape, message, now_ns)
        self._releases.time_out(placeholder, messages.MISMATCH_MESSAGE, out, now_ns)
        self._asks.leave_group(ask, out)
        ask.mismatched = True
        out.mark_changed(ask, state.name)
        self._asks.enter_group(ask)
        self._waiting.requeue_app(ask.app)

    def cancel_stale_replacements(self, ask: Ask, out: Outcome) -> None:
        """Drops placeholders that leave for this key but do not suit its ask, which is new or was sent again."""
        gang = ask.app.gang
        for key in list(gang.replacing.get(ask.key, ())) if gang is not None else ():
            placeholder = ask.app.allocations[key]
            if gang is not None and not _suits(ask, placeholder):
                self._unlink(gang, placeholder)
                placeholder.replaced_by = ""
                out.mark_changed(placeholder, self._state.name)

    @staticmethod
    def still_suits(placeholder: Allocation, key: str | None) -> bool:
        """Whether a changed placeholder still makes room for the ask with this key, for which it is leaving."""
        ask = placeholder.app.asks.get(key) if placeholder.app is not None and key else None
        return ask is None or _suits(ask, placeholder)

    def complete_replacement(
        self, placeholder: Allocation, out: Outcome, now_ns: int, *, elsewhere: bool = True
    ) -> None:
        """Step two: the placeholder is off the books; allocates the ask for which it made room.

        Tries the placeholder's node, then the reserved node, then (``elsewhere``) any node. Checks no limit, because
        the ask takes no more than the placeholder did. If the ask fits nowhere, it is an ordinary ask again.
        """
        state, app = self._state, placeholder.app
        ask = app.asks.get(placeholder.replaced_by or "") if app is not None else None
        if ask is None or app is None or ask.open <= 0 or not state.deciding or not _suits(ask, placeholder):
            return
        items = ask.shape.items
        required = ask.demand.required_node
        own, reserved = state.nodes.get(placeholder.node_id), state.nodes.get(ask.reserved_node)
        agreed, refused = placeholder.agreed_node, self._questions.refused_ids(ask)
        # (A restart forgets to which node the RM agreed. If a node is reserved for the ask, it was that one.)
        kept_first = self._questions.predicates and not agreed
        for node in (reserved, own) if kept_first else (own, reserved):
            if node is None or node.node_id in refused or (agreed and node.node_id != agreed):
                continue
            if (node.usable or required) and fits(items, node.available):
                break
        else:
            # (The RM would first have to be asked about any other node.)
            any_other = elsewhere and not required and not self._questions.predicates
            node = self._node_books.index.first_fit(items) if any_other else None
        if node is not None:
            self._placing.allocate(ask, ask.group, node, out, now_ns, replaces=placeholder)

    # ---- time-out and end ------------------------------------------------------------------------------------------

    def time_out(self, app: Application, out: Outcome, now_ns: int) -> Steps:
        """Ends the time of the gang's placeholders (the gang design, "Cleanup"), in steps.

        Without a real allocation the gang has failed: a hard gang's application fails, a soft gang's goes on without
        placeholders. With a real allocation, only unused placeholders go. The order is that of the gang design: asks,
        allocations, state.
        """
        state, gang = self._state, self.get_or_create(app)
        over = messages.time_out_message(gang, self._room)
        gang.deadline_ns = 0
        out.mark_changed(app, state.name)
        unused = gang.phase is not GangPhase.USED and not any(key in app.asks for key in gang.replacing)
        asks = (ask for ask in app.asks.values() if ask.demand.placeholder)
        yield from self._asks.time_out_all(asks, over, EventDetail.REQUEST_TIMEOUT, out, now_ns)
        yield from self.release_unused(app, over, out, now_ns)
        if gang.phase in (GangPhase.WAITING, GangPhase.FORMING) or (unused and gang.phase is GangPhase.FORMED):
            self._advance(gang, GangEvent.TIME_OUT, out)
        waits = app.state in (AppState.NEW, AppState.ACCEPTED)
        # (It runs without a real allocation: it was Completing meanwhile; or its gang is formed, YuniKorn's way.)
        if unused and gang.is_hard and (waits or (app.state is AppState.RUNNING and gang.whole)):
            yield from self._lifecycle.fail(app, messages.TIMEOUT_MESSAGE, out, now_ns)
        elif unused and waits:
            self._lifecycle.change_state(app, AppEvent.RESUME, out, now_ns, messages.TIMEOUT_MESSAGE)
        self._stir(app)
        self._lifecycle.complete_if_idle(app, out, now_ns)

    def release_unused(self, app: Application, message: str, out: Outcome, now_ns: int) -> Steps:
        """Releases the placeholders that no real ask has replaced, in steps."""
        for check in self._state.checks.about_places_of(app):
            self._questions.withdraw(check, out)
            self.reopened[check.ask] = None
        groups = app.gang.groups.values() if app.gang is not None else ()
        free = (placeholder for group in groups for placeholder in group.free)
        yield from self._releases.time_out_all(free, message, out, now_ns)

    # ---- after a fold ----------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """After a fold: puts free placeholders in order, counts promises and starts clocks."""
        state = self._state
        for app in state.apps.values():
            gang = app.gang
            if gang is None:
                continue
            self.add_promises(app)
            if gang.deadline_ns:
                state.deadlines.append((gang.deadline_ns, app))


def _suits(ask: Ask, placeholder: Allocation) -> bool:
    return (
        not ask.demand.placeholder
        and ask.demand.task_group == placeholder.task_group
        and covers(placeholder.shape, ask.shape)
    )
