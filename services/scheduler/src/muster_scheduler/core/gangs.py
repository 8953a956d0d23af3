"""Gangs (seed 003): placeholders hold room for the real asks that follow, which then take their places.

What one gang is stands in ``gang.py``; here is what is done with those of a partition.

* A gang starts when its limits have room for all of it (``gang.start: whole``); what it has started to take and not yet
  got is *promised* to it, so that no two gangs count on the same room. Its real asks wait until it is formed.
* A real ask takes a placeholder's place in two steps. First the placeholder is told to go; it counts on, and the ask
  leaves its group: nothing is counted twice. When the RM confirms, the placeholder goes and the ask is allocated.
* Unused placeholders go when their time is up, or when their application is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster_scheduler.core.commands import Termination
from muster_scheduler.core.gang import Gang, timeout_ns
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    AskGroup,
    Demand,
    Ledger,
    Node,
    Queue,
    Tracker,
    in_order,
)
from muster_scheduler.core.outcome import Detail, Outcome, ReleasedAllocation
from muster_scheduler.core.placeholders import covers
from muster_scheduler.core.properties import PreemptionPolicy
from muster_scheduler.core.resources import INT64_MAX, Vector, fits
from muster_scheduler.core.states import (
    APP_TERMINAL,
    AppEvent,
    AppState,
    GangEvent,
    GangPhase,
    PlaceholderEvent,
    PlaceholderState,
    next_gang_phase,
    next_placeholder_state,
)

if TYPE_CHECKING:
    from muster_scheduler.core.inquiries import Inquiry
    from muster_scheduler.core.partition import Partition

# What shims know the time-out by.
TIMEOUT_MESSAGE = "ResourceReservationTimeout"
MISMATCH_MESSAGE = "cancel placeholder: resource incompatible"
LEFTOVER_MESSAGE = "the application is over: the placeholder is not needed any more"


class Gangs:
    """The gangs of one partition.

    :ivar dirty: applications whose gang moved, and in which task groups (None: in all): who of them is held back may be
        others now.
    :ivar reopened: asks whose placeholder is gone: they may be tried again.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.dirty: dict[Application, dict[str, None] | None] = {}
        self.reopened: dict[Ask, None] = {}
        self._stuck: dict[Application, None] = {}
        # Gangs that wait for room for all of them again.
        self._anew: dict[Application, None] = {}

    @property
    def waiting(self) -> bool:
        """Something moved that :meth:`settle` has not seen to."""
        return bool(self.dirty or self.reopened)

    def _stir(self, app: Application, task_group: str | None = None) -> None:
        if not self._partition.searching:  # (nobody waits in a follower, nor while states are folded)
            return
        if task_group is None:
            self.dirty[app] = None
            return
        names = self.dirty.setdefault(app, {})
        if names is not None:
            names[task_group] = None

    def of(self, app: Application) -> Gang:
        """The application's gang; a new one when it has none."""
        if app.gang is None:
            asked = app.placeholder_ask
            total = self._partition.types.shape(asked) if asked and any(asked.values()) else None
            app.gang = Gang(app, total)
            self._partition.version += 1  # what its allocations are to preemption may be another thing now
            if any(not held.placeholder for held in app.allocations.values()):
                app.gang.phase = GangPhase.USED  # its first placeholder comes behind what runs already
        return app.gang

    # ---- the books -------------------------------------------------------------------------------------------------

    def pend(self, ask: Ask, count: int) -> None:
        """So many more of a placeholder ask are pending (or fewer)."""
        gang = self.of(ask.app)
        group = gang.task_group(ask.demand)
        before = group.pending
        group.pending += count
        if not before or not group.pending:
            self._stir(ask.app, group.name)

    def ask_more(self, demand: Demand, app: Application, count: int) -> None:
        """So many more placeholders are asked for (or fewer: others take their place)."""
        self.of(app).task_group(demand).asked += count

    def not_lost(self, demand: Demand, app: Application, pending: int) -> None:
        """A placeholder that could not start is asked for again, with those of its ask that are pending still."""
        group = self.of(app).task_group(demand)
        group.lost -= 1
        group.asked += pending - 1

    def book(self, placeholder: Allocation) -> None:
        """A placeholder is on the books."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.of(app)
        group = gang.task_group(placeholder.demand)
        group.held += 1
        for number, value in placeholder.shape.items:
            gang.taken[number] = gang.taken.get(number, 0) + value
        if placeholder.preempted is None and not placeholder.timed_out:
            self._place(gang, placeholder, 1)
        if not placeholder.told:
            if not group.free or gang.stuck:
                self._stir(app, group.name)
            group.free.add(placeholder)
        if placeholder.replaced_by:
            gang.replacing.setdefault(placeholder.replaced_by, {})[placeholder.unique_key] = None
            ask = app.asks.get(placeholder.replaced_by)
            if ask is not None and ask.group is not None and ask.open <= 0:
                self._partition.leave_group(ask, None)

    def unbook(self, placeholder: Allocation) -> None:
        """Inverse of :meth:`book`. The ask that it was leaving for, if any, is open again."""
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
        if self._partition.searching:
            self.reopened[ask] = None
        else:
            self._partition.group_of(ask).push(ask)

    def _place(self, gang: Gang, placeholder: Allocation, sign: int) -> None:
        for number, value in placeholder.shape.items:
            gang.placed[number] = gang.placed.get(number, 0) + sign * value
        self._promise(gang)

    def tell(self, placeholder: Allocation, event: PlaceholderEvent) -> None:
        """A placeholder that was free is told to go, for nothing."""
        _move(placeholder, event)
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        assert app.gang is not None, f"{placeholder} has no gang"
        self._break_off(app.gang, placeholder)
        app.gang.groups[placeholder.task_group].free.discard(placeholder)
        self._place(app.gang, placeholder, -1)
        self._stir(app, placeholder.task_group)

    def count_gone(self, placeholder: Allocation, detail: Detail) -> None:
        """A placeholder is off the books: what became of it."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        assert app.gang is not None, f"{placeholder} has no gang"
        group = app.gang.groups[placeholder.task_group]
        if placeholder.timed_out:
            group.timed_out += 1
        elif placeholder.replaced_by is not None and detail is not Detail.ALLOC_NODEREMOVED:
            group.replaced += 1
        else:
            group.lost += 1

    def count_gone_ask(self, ask: Ask, count: int, detail: Detail | None) -> None:
        """So many of a placeholder ask are pending no more, without allocation; None: another takes its place."""
        group = self.of(ask.app).task_group(ask.demand)
        if detail is None:
            group.asked -= count
        elif detail is Detail.REQUEST_TIMEOUT:
            group.timed_out += count
        else:
            group.lost += count

    # ---- while the RM is asked -------------------------------------------------------------------------------------

    def propose(self, ask: Ask, sign: int) -> None:
        """A placeholder of this ask would be placed if the RM agrees (or would no more)."""
        gang = self.of(ask.app)
        for number, value in ask.shape.items:
            left = gang.proposed.get(number, 0) + sign * value
            if left:
                gang.proposed[number] = left
            else:
                gang.proposed.pop(number, None)
        if sign > 0:  # else it is placed now, or :meth:`not_placed` follows
            self._promise(gang)
            if gang.phase is GangPhase.WAITING:
                self._partition.waiting.wake_gangs_beside(ask.app)  # it took its room: others may come

    def not_placed(self, app: Application) -> None:
        """The RM did not agree. A gang of which nothing is placed nor proposed starts again as a whole."""
        gang = self.of(app)
        self._promise(gang)
        self._partition.waiting.wake_gangs_beside(app)
        if gang.waits_for_room:
            self._anew[app] = None
            self._stir(app)

    def court(self, placeholder: Allocation, inquiry: Inquiry) -> None:
        """The RM is asked whether the placeholder may make room: it is not free meanwhile."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.of(app)
        gang.groups[placeholder.task_group].free.discard(placeholder)
        gang.courted[placeholder.unique_key] = inquiry
        self._stir(app, placeholder.task_group)

    def uncourt(self, placeholder: Allocation) -> None:
        """The RM has answered, or is asked no more: it is free again, if it is still what it was."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        gang = self.of(app)
        if gang.courted.pop(placeholder.unique_key, None) is not None and not placeholder.told and not placeholder.gone:
            gang.groups[placeholder.task_group].free.add(placeholder)
            self._stir(app, placeholder.task_group)

    def _break_off(self, gang: Gang, placeholder: Allocation) -> None:
        """The placeholder goes for something else: the ask that it would have made room for looks for another."""
        inquiry = gang.courted.pop(placeholder.unique_key, None)
        if inquiry is not None:
            self._partition.questions.withdraw(inquiry, None)
            self.reopened[inquiry.ask] = None

    def agreed(self, placeholder: Allocation, ask: Ask, node: Node, out: Outcome, now_ns: int) -> bool:
        """The RM agreed that the placeholder makes room for the ask, to run on this node; says whether it does now."""
        partition, gang = self._partition, ask.app.gang
        if gang is None or ask.gone or placeholder.gone or placeholder.told or not partition.deciding:
            return False
        if not _suits(ask, placeholder):
            return False
        if node.node_id == placeholder.node_id:
            if not self._takes(node, ask, placeholder):
                return False
            if ask.reserved is not None and not ask.awaits_placeholders:
                partition.unreserve(ask, out, now_ns)  # it need not wait for room there
        else:
            if ask.awaits_placeholders or not fits(ask.shape.items, node.available):
                return False
            if ask.reserved is not node:
                if node.index_key is None:
                    return False  # it is kept free for another one now
                if ask.reserved is not None:
                    partition.unreserve(ask, out, now_ns)
                partition.reserve(ask, node, out, now_ns)
        placeholder.agreed_node = node.node_id
        self._replace(placeholder, ask, gang, out, now_ns)
        return True

    def look_again_at(self, group: AskGroup) -> None:
        """Something that held the group back may hold no more."""
        self._stir(group.app, group.task_group)

    # ---- phases ----------------------------------------------------------------------------------------------------

    def placed(self, placeholder: Allocation, out: Outcome, now_ns: int) -> None:
        """A placeholder was allocated, or reported by the RM."""
        app = placeholder.app
        assert app is not None, f"{placeholder} is foreign"
        partition, gang = self._partition, self.of(app)
        if app.state is AppState.NEW:
            partition.lifecycle.change_state(app, AppEvent.RUN, out, now_ns)
        if not gang.deadline_ns:
            gang.deadline_ns = min(now_ns + timeout_ns(app), INT64_MAX)
            partition.deadlines.append((gang.deadline_ns, app))
            out.touch(app, partition.name)
            self._stir(app)  # while it runs real asks may wait for placeholders again
        if gang.phase is GangPhase.WAITING:
            self._advance(gang, GangEvent.FIRST_PLACEHOLDER, out)
        if gang.phase is GangPhase.FORMING and gang.is_complete:
            self._advance(gang, GangEvent.ALL_PLACED, out)
            if not gang.whole and app.state is AppState.ACCEPTED:  # the real core's way
                partition.lifecycle.change_state(app, AppEvent.RUN, out, now_ns)

    def real_placed(self, app: Application, out: Outcome) -> None:
        """A real allocation of the application was made, or reported by the RM."""
        gang = app.gang
        if gang is not None and gang.phase is not GangPhase.USED:
            self._advance(gang, GangEvent.REAL_ALLOCATION, out)

    def preempted(self, app: Application, out: Outcome) -> None:
        """One of the application's was told to go for others. A gang that lost all it had starts again as a whole."""
        gang = app.gang
        if gang is None or not gang.whole or not app.queue.policy.gangs_preempted_whole:
            return
        forms = gang.phase in (GangPhase.FORMING, GangPhase.FORMED)
        if forms and not gang.replacing and not any(group.free for group in gang.groups.values()):
            self._advance(gang, GangEvent.PREEMPTED, out)
            self._anew[app] = None

    def _advance(self, gang: Gang, event: GangEvent, out: Outcome) -> None:
        app = gang.app
        gang.phase = next_gang_phase(f"gang of application {app.app_id}", gang.phase, event)
        self._promise(gang)
        self._partition.waiting.wake_gangs_beside(app)  # it took its room, or needs it no more: others may come
        self._partition.lifecycle.recount(app)
        if app.waiting_at is not None and not gang.waits_for_room and app.waits_whole:
            self._partition.waiting.stop_waiting(app)  # it has started otherwise (the RM reported what it runs)
            self._partition.waiting.refresh_app(app)
        self._stir(app)
        out.touch(app, self._partition.name)

    # ---- starting as a whole ---------------------------------------------------------------------------------------

    def lacking_room(self, app: Application) -> tuple[Ledger, int, int] | None:
        """The first limit that all of the gang, and what others are promised, go over: whose, type, how much."""
        total = app.gang.total if app.gang is not None else None
        for ledger in app.bounds if total is not None else ():
            used, limit, promised = ledger.allocated, ledger.limit, ledger.promised
            for number, value in total.items if total is not None else ():
                if used[number] + promised.get(number, 0) + value > limit[number] and value > self.owed(
                    app.queue, ledger, number
                ):
                    return ledger, number, value
        return None

    def owed(self, leaf: Queue, ledger: Ledger, number: int) -> int:
        """How much of a type a gang may start with by its queue's guarantee, though the limit above is full.

        Others hold then what is guaranteed to it; its placeholders get it back by preemption, one by one.
        """
        if not self._partition.config.preemption.enabled or isinstance(ledger, Tracker):
            return 0
        for queue in leaf.line:
            if queue is ledger or queue.policy.preemption is PreemptionPolicy.FENCE:
                return 0
            least = (queue.guaranteed or {}).get(number)
            if least is not None:
                return least - queue.allocated[number] - queue.promised.get(number, 0)
        return 0

    def room_for(self, leaf: Queue, ledger: Ledger) -> Vector:
        """What gangs of the leaf may start with, as far as the ledger is concerned."""
        promised, owed = ledger.promised, self.owed
        return [
            max(most - used - promised.get(number, 0), owed(leaf, ledger, number))
            for number, (most, used) in enumerate(zip(ledger.limit, ledger.allocated, strict=True))
        ]

    def _promise(self, gang: Gang) -> None:
        """What the gang will still take counts where it is limited."""
        if not self._partition.searching:
            return
        app = gang.app
        live = app.state not in APP_TERMINAL and not app.gone
        self._set_promise(gang, gang.still_to_take if live else {})

    @staticmethod
    def _set_promise(gang: Gang, wanted: dict[int, int]) -> None:
        before, gang.promised = gang.promised, wanted
        if wanted == before:
            return
        for ledger in gang.app.bounds:
            promised = ledger.promised
            for number in before.keys() | wanted.keys():
                left = promised.get(number, 0) - before.get(number, 0) + wanted.get(number, 0)
                if left:
                    promised[number] = left
                else:
                    promised.pop(number, None)

    def withdraw(self, app: Application) -> None:
        """The application counts in its limits no more: neither does what it was promised."""
        gang = app.gang
        if gang is None:
            return
        self._set_promise(gang, {})
        self._partition.waiting.wake_gangs_beside(app)

    def promise(self, app: Application) -> None:
        """The application counts in its limits (again): so does what it is promised."""
        if app.gang is not None:
            self._promise(app.gang)
            self._stir(app)

    # ---- who is held back ------------------------------------------------------------------------------------------

    def settle(self, out: Outcome) -> None:
        """Brings those back whose placeholder is gone, and looks who must wait for placeholders, and who no more."""
        partition = self._partition
        while self.waiting:
            reopened, self.reopened = self.reopened, {}
            for ask in reopened:
                if not ask.gone and ask.group is None and ask.open > 0:
                    partition.enter_group(ask)
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
                    if app.gang.waits_for_room and not app.ready:
                        if app.waiting_at is not None and app.waits_whole:
                            partition.waiting.stop_waiting(app)
                        partition.waiting.wake_gangs_beside(app)  # it may have been woken before its asks went

    def _start_anew(self, app: Application, out: Outcome) -> None:
        """Its placeholder asks have waited for nodes; now they wait for room for all of them first."""
        del self._anew[app]
        for group in list(app.groups.values()):
            if group.placeholder and group.parked_key is not None:
                self._partition.waiting.leave_list(group, out)
                self._partition.waiting.make_ready(group)

    def _review(self, gang: Gang, names: dict[str, None] | None, out: Outcome) -> None:
        waiting = self._partition.waiting
        for group in [group for name in (gang.reals if names is None else names) for group in gang.reals.get(name, ())]:
            gang.stuck.pop(group, None)
            if not group.asks:
                continue
            if gang.holds(group):
                if not group.held:
                    self._take_out(group, out)
            elif group.held:
                waiting.make_ready(group)
            elif group.parked_key is not None and gang.gives_way_to(group):
                waiting.leave_list(group, out)
                waiting.make_ready(group)

    def _take_out(self, group: AskGroup, out: Outcome) -> None:
        """The group is neither ready nor parked, until the gang lets it."""
        waiting = self._partition.waiting
        group.held = True
        if group.parked_key is not None:
            waiting.leave_list(group, out)
        else:
            waiting.unready(group)
            waiting.wake_next(group)
        waiting.refresh_app(group.app)

    def look_again(self) -> None:
        """Nodes gained: those who fitted on none may now."""
        for app in self._stuck:
            for group in app.gang.stuck if app.gang is not None else ():
                self._stir(app, group.task_group)

    # ---- replacement -----------------------------------------------------------------------------------------------

    def give_way(self, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Lets a placeholder of its task group make room for a real ask; False: the ask goes the normal way.

        The first that is large enough and on whose node the ask may run; else the first that is large enough, for
        another node that has room now and is kept free meanwhile. (Seed 003, "Scheduler logic changes".)
        """
        gang = ask.app.gang
        own = gang.groups.get(group.task_group) if gang is not None and not group.placeholder else None
        if gang is None or own is None or not own.free:
            return False
        partition, required = self._partition, ask.demand.required_node
        first: Allocation | None = None
        questions, refused = partition.questions, partition.questions.refused(ask)
        for placeholder in own.free.covering(ask.shape):
            if required and placeholder.node_id != required:
                continue
            own_node = partition.nodes[placeholder.node_id]
            if own_node.node_id not in refused and self._takes(own_node, ask, placeholder):
                if questions.predicates:
                    questions.court(ask, group, placeholder, own_node, out, now_ns)
                    return True
                if ask.reserved is not None and not ask.awaits_placeholders:
                    partition.unreserve(ask, out, now_ns)  # it need not wait for room there
                self._replace(placeholder, ask, gang, out, now_ns)
                return True
            first = first or placeholder
        if first is None:
            if not required:
                self._cancel(own.free.first(), ask, out, now_ns)
            return not required
        node = None if required or ask.awaits_placeholders else partition.cycle.node_for(ask, group)
        if node is not None and questions.predicates:
            questions.court(ask, group, first, node, out, now_ns)
            return True
        if node is not None:
            if ask.reserved is not node:
                if ask.reserved is not None:
                    partition.unreserve(ask, out, now_ns)
                partition.reserve(ask, node, out, now_ns)
            self._replace(first, ask, gang, out, now_ns)
            return True
        gang.stuck[group] = None
        self._stuck[ask.app] = None
        self._take_out(group, out)
        partition.claims.stuck(group, now_ns)
        return True

    @staticmethod
    def _takes(node: Node, ask: Ask, leaving: Allocation) -> bool:
        """Whether the ask may run on the node once the placeholder is gone from it."""
        if not node.usable and not ask.demand.required_node:
            return False
        freed = dict(leaving.shape.items)
        return all(value <= node.available[number] + freed.get(number, 0) for number, value in ask.shape.items)

    def _replace(self, placeholder: Allocation, ask: Ask, gang: Gang, out: Outcome, now_ns: int) -> None:
        """Phase one: the placeholder is told to go, the ask waits for it."""
        partition, app = self._partition, gang.app
        _move(placeholder, PlaceholderEvent.REPLACE)
        gang.groups[placeholder.task_group].free.discard(placeholder)
        placeholder.replaced_by = ask.key
        gang.replacing.setdefault(ask.key, {})[placeholder.unique_key] = None
        partition.releases.told(placeholder, out, now_ns)
        message = replacing_message(ask.key)
        out.facts.append(released(partition, placeholder, Termination.PLACEHOLDER_REPLACED, message))
        if ask.open <= 0 and ask.group is not None:  # (else the RM was asked, and it waited for that)
            partition.leave_group(ask, out)
            partition.waiting.refresh_app(app)
        self._stir(app, placeholder.task_group)

    def _cancel(self, placeholder: Allocation, ask: Ask, out: Outcome, now_ns: int) -> None:
        """No placeholder is as large as the ask: one goes for it, and it looks for room without (§2.17)."""
        partition = self._partition
        message = (
            f"Task group '{placeholder.task_group}' in application '{ask.app.app_id}': allocation resources "
            f"'{as_map(ask.shape.quantities)}' are not matching placeholder "
            f"'{as_map(placeholder.shape.quantities)}' allocation with ID '{placeholder.key}'"
        )
        out.tell_people(placeholder.key, ask.app.app_id, ask.shape, message, now_ns)
        partition.releases.time_out(placeholder, MISMATCH_MESSAGE, out, now_ns)
        partition.leave_group(ask, out)
        ask.mismatched = True
        out.touch(ask, partition.name)
        partition.enter_group(ask)
        partition.waiting.refresh_app(ask.app)

    def keep_heir(self, ask: Ask, out: Outcome) -> None:
        """An ask (new, or sent again) with the key of one for which placeholders are leaving: it must fit in them."""
        gang = ask.app.gang
        for key in list(gang.replacing.get(ask.key, ())) if gang is not None else ():
            placeholder = ask.app.allocations[key]
            if gang is not None and not _suits(ask, placeholder):
                self._unlink(gang, placeholder)
                placeholder.replaced_by = ""
                out.touch(placeholder, self._partition.name)

    @staticmethod
    def still_does(placeholder: Allocation, key: str | None) -> bool:
        """Whether a placeholder that was changed still makes room for the ask with this key that it is leaving for."""
        ask = placeholder.app.asks.get(key) if placeholder.app is not None and key else None
        return ask is None or _suits(ask, placeholder)

    def swap(self, placeholder: Allocation, out: Outcome, now_ns: int, *, elsewhere: bool = True) -> None:
        """Phase two: the placeholder is off the books, the ask that it made room for is allocated.

        On the placeholder's node, else on the one that is kept for it, else (``elsewhere``) on any. No limit is asked:
        it takes no more than the placeholder did. Where it fits nowhere it is an ordinary ask again.
        """
        partition, app = self._partition, placeholder.app
        ask = app.asks.get(placeholder.replaced_by or "") if app is not None else None
        if ask is None or app is None or ask.open <= 0 or not partition.deciding or not _suits(ask, placeholder):
            return
        items = ask.shape.items
        required = ask.demand.required_node
        own = partition.nodes.get(placeholder.node_id)
        agreed, refused = placeholder.agreed_node, partition.questions.refused(ask)
        # (After a restart it is not known what was agreed to: if a node is kept for the ask, it was that one.)
        kept_first = partition.questions.predicates and not agreed
        for node in (ask.reserved, own) if kept_first else (own, ask.reserved):
            if node is None or node.node_id in refused or (agreed and node.node_id != agreed):
                continue
            if (node.usable or required) and fits(items, node.available):
                break
        else:
            # (About any other node the RM would have to be asked first.)
            any_other = elsewhere and not required and not partition.questions.predicates
            node = partition.index.first_fit(items) if any_other else None
        if node is not None:
            partition.cycle.allocate(ask, ask.group, node, out, now_ns, replaces=placeholder)

    # ---- time-out and end ------------------------------------------------------------------------------------------

    def time_out(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The placeholders' time is up (seed 003, "Cleanup").

        Before any real allocation the gang has failed: the application with it (Hard), or it goes on as one without
        placeholders (Soft). Afterwards only what is not used goes. In the order of the seed: asks, allocations, state.
        """
        partition, gang = self._partition, self.of(app)
        gang.deadline_ns = 0
        out.touch(app, partition.name)
        unused = gang.phase is not GangPhase.USED and not any(key in app.asks for key in gang.replacing)
        over = f"the placeholders' time-out of {timeout_ns(app) // 1_000_000} ms is over"
        for ask in sorted(app.asks.values(), key=lambda ask: ask.submission):
            if ask.demand.placeholder:
                partition.time_out_ask(ask, over, Detail.REQUEST_TIMEOUT, out, now_ns)
        self.release_unused(app, over, out, now_ns)
        if gang.phase in (GangPhase.WAITING, GangPhase.FORMING) or (unused and gang.phase is GangPhase.FORMED):
            self._advance(gang, GangEvent.TIME_OUT, out)
        waits = app.state in (AppState.NEW, AppState.ACCEPTED)
        # (It runs without a real allocation: it was Completing meanwhile; or its gang is formed, the real core's way.)
        if unused and gang.is_hard and (waits or (app.state is AppState.RUNNING and gang.whole)):
            partition.lifecycle.fail(app, TIMEOUT_MESSAGE, out, now_ns)
        elif unused and waits:
            partition.lifecycle.change_state(app, AppEvent.RESUME, out, now_ns, TIMEOUT_MESSAGE)
        self._stir(app)
        partition.lifecycle.complete_if_idle(app, out, now_ns)

    def release_unused(self, app: Application, message: str, out: Outcome, now_ns: int) -> None:
        """Tells the placeholders to go that no real ask has taken the place of."""
        for inquiry in list(app.gang.courted.values()) if app.gang is not None else ():
            self._partition.questions.withdraw(inquiry, out)
            self.reopened[inquiry.ask] = None
        groups = app.gang.groups.values() if app.gang is not None else ()
        for placeholder in in_order(placeholder for group in groups for placeholder in group.free):
            self._partition.releases.time_out(placeholder, message, out, now_ns)

    # ---- after a fold ----------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """After a fold: free placeholders in their order, promises, clocks."""
        partition = self._partition
        for app in partition.apps.values():
            gang = app.gang
            if gang is None:
                continue
            self.promise(app)
            if gang.deadline_ns:
                partition.deadlines.append((gang.deadline_ns, app))


def replacing_message(key: str) -> str:
    """What the RM is told when a placeholder is to go for the real ask with this key."""
    return f"replacing allocationKey: {key}"


def _suits(ask: Ask, placeholder: Allocation) -> bool:
    return (
        not ask.demand.placeholder
        and ask.demand.task_group == placeholder.task_group
        and covers(placeholder.shape, ask.shape)
    )


def released(partition: Partition, held: Allocation, termination: Termination, message: str) -> ReleasedAllocation:
    """The fact that an allocation is told to go, or went."""
    return ReleasedAllocation(
        partition.name, held.app_id, held.key, held.uuid, termination, message, held.previous_generation
    )


def state_of(placeholder: Allocation) -> PlaceholderState:
    """Where the placeholder is in its life."""
    if placeholder.gone:
        return PlaceholderState.GONE
    if placeholder.replaced_by is not None:
        return PlaceholderState.LEAVING
    if placeholder.timed_out:
        return PlaceholderState.TIMING_OUT
    return PlaceholderState.PREEMPTED if placeholder.preempted is not None else PlaceholderState.HELD


def _move(placeholder: Allocation, event: PlaceholderEvent) -> None:
    next_placeholder_state(f"placeholder {placeholder.key}", state_of(placeholder), event)


def as_map(quantities: Mapping[str, int]) -> str:
    """Quantities as the real core's messages write them."""
    return f"map[{' '.join(f'{name}:{quantities[name]}' for name in sorted(quantities))}]"
