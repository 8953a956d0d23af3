"""The search for the next allocation, in numbered steps: best leaf, best application, oldest ask, limits, node."""

from __future__ import annotations

from collections.abc import Generator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from muster_core.config.properties import duration_text
from muster_core.model.application import Application, Ask, AskGroup
from muster_core.model.node import Node
from muster_core.model.outcome import Outcome
from muster_core.model.queue import Queue
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.resources import Shape, fits
from muster_core.model.steps import SOME
from muster_core.model.wait_points import ALONE_FROM, DURATION_FROM, placed
from muster_core.queues.rank import highest, outranks

if TYPE_CHECKING:
    from muster_core.allocation.allocator import Allocator
    from muster_core.allocation.ask_events import AskEvents
    from muster_core.allocation.backfill import Backfill
    from muster_core.allocation.escalation import Escalation
    from muster_core.allocation.exclusivity import ScopeExclusivity
    from muster_core.allocation.limit_checks import LimitChecks
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.partition_state import PartitionState
    from muster_core.model.queue import Waitlist
    from muster_core.nodes.node_stats import NodeStats
    from muster_core.predicates.predicate_calls import PredicateCalls
    from muster_core.queues.queue_tree import QueueTree


class SchedulingCycle:
    """Makes the allocations of one partition."""

    def __init__(
        self,
        state: PartitionState,
        *,
        waiting: SchedulingQueue,
        notifications: AskEvents,
        figures: NodeStats,
        queue_tree: QueueTree,
        gangs: Gangs,
        turns: ScopeExclusivity,
        questions: PredicateCalls,
        limit_checks: LimitChecks,
        reservations: Reservations,
        placing: Allocator,
        backfill: Backfill,
        long_wait: Escalation,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._notifications = notifications
        self._figures = figures
        self._queue_tree = queue_tree
        self._gangs = gangs
        self._turns = turns
        self._questions = questions
        self._limit_checks = limit_checks
        self._reservations = reservations
        self._placing = placing
        self._backfill = backfill
        self._long_wait = long_wait
        self._explained_version = -1
        # Reserved nodes with room, whose asks are held back by a limit.
        self._held_back: dict[Node, None] = {}

    def run(self, out: Outcome, now_ns: int, budget: int) -> Generator[None, None, int]:
        """Makes up to ``budget`` allocations and returns their number. Fewer than ``budget``: nothing more fits now.

        In steps; nothing else may use the partition between them.
        """
        state, gangs, questions = self._state, self._gangs, self._questions
        if not state.deciding:
            return 0
        # 1. Shares depend on the cluster's capacity: if that changed, all keys are computed again, once.
        if state.capacity_moved:
            state.capacity_moved = False
            self._queue_tree.recompute_fair_max()
        # 2. Asks that wait for something that gained room are tried again.
        if self._waiting.nodes_gained:
            gangs.retry_stuck()
        questions.retry_changed(out, now_ns)
        gangs.reconcile(out)
        questions.refresh_records(out)
        self._waiting.wake()
        turns = self._turns
        turns.stopped = False
        allocated = self._place_reserved(out, now_ns, budget)
        while True:
            allocated, found_all = self._search(out, now_ns, allocated, budget)
            if found_all or allocated >= budget:
                break
            yield
        # 8. Woken groups that do not wait any more leave their lists. (Without budget left, some were not tried yet.)
        all_tried = allocated < budget and not turns.stopped
        if all_tried:
            self._waiting.drop_idle_waitlists(out, now_ns)
        # 9. Asks that have waited long may reserve a node or preempt. (But what this search set free helps other asks
        #    first, in the next pass.)
        if not self._waiting.has_wakeups:
            if not all_tried and state.reserved:  # (the next search gives room by rank to what was parked in this one)
                state.contested.update(self._contested_nodes())
            yield from self._long_wait.request(out, now_ns, all_tried=all_tried)
            yield from self._long_wait.run(out, now_ns, all_tried=all_tried)
        # 10. If nodes changed, the reason of an ask may change, even if the ask still fits nowhere.
        if self._explained_version != state.capacity_version:
            self._explained_version = state.capacity_version
            for shape in self._waiting.no_node:
                reason = self._figures.reason(shape)
                for count, waitlist in enumerate(self._waiting.no_node.lists(shape), 1):
                    if not count % SOME:
                        yield
                    # Otherwise its reason may be a refusal by the RM.
                    if not waitlist.apart or waitlist.apart > ALONE_FROM:
                        head = waitlist.groups[0][-1].head() if waitlist.groups else None
                        self._waiting.set_reason(waitlist, self._backfill.explained(reason, head, now_ns), out, now_ns)
                yield
        # 11. Events for people: asks whose obstacle changed.
        if self._notifications.waiting:
            self._notifications.run(out, now_ns)
        return allocated

    def _search(self, out: Outcome, now_ns: int, allocated: int, budget: int) -> tuple[int, bool]:
        """Tries a few groups, best first. Returns how many allocations there are then, and whether nothing is left to
        try.
        """
        state, gangs, questions, turns, root = self._state, self._gangs, self._questions, self._turns, self._state.root
        for _ in range(SOME):
            if allocated >= budget:
                return allocated, False
            # 3. Gangs decide which real asks wait for placeholders. Then the best leaf: from root down, the first child
            #    in its parent's order.
            if gangs.dirty or gangs.reopened:
                gangs.reconcile(out)
            queue = root
            while not queue.leaf and queue.ready:
                queue = queue.ready[0][-1]
            if not queue.leaf:
                if state.reserved:
                    ranked = self._place_by_rank(out, now_ns, budget - allocated)
                    allocated += ranked
                    if ranked or root.ready:
                        continue
                if (turns.on or turns.crowded) and turns.wake_next():
                    continue
                break
            # 4. The leaf's best application, the application's best group, and the group's oldest ask.
            app: Application = queue.ready_apps.first()[-1]
            group: AskGroup = app.ready[0][-1]
            ask = group.head()
            assert ask is not None, f"{group} is ready without an ask"
            if questions.predicates and questions.is_at_limit:
                turns.crowded = turns.stopped = True
                break
            if self._refuse_urgent(queue, app, out, now_ns):
                continue
            if (turns.on or turns.crowded) and questions.predicates:
                # (A refused ask gives way to others; later they give way to it.)
                chosen = turns.chosen(ask, group, now_ns)
                if chosen is None:
                    continue
                if chosen is not group:
                    app, group, ask = chosen.app, chosen, chosen.head()
                    assert ask is not None, f"{group} is ready without an ask"
                # (While the RM sees one proposal at a time, other asks stand in line.)
                if turns.blocks_search(ask):
                    break
                if turns.enqueue_if_blocked(ask, group):
                    continue
            # 5. A placeholder of the gang makes room for the ask. No limit is checked: the placeholder was checked.
            if (
                app.gang is not None
                and self._limit_checks.full_ledger(app) is None
                and gangs.replace_placeholder(ask, group, out, now_ns)
            ):
                allocated += 1  # it counts like an allocation: the RM gets a message about it
                continue
            # 6. First the limits, then a node. A refusal parks the group with its reason.
            if self._park_over_limit(app, group, out, now_ns):
                continue
            node = self._placing.find_node(ask, group)
            if node is None:
                if self._backfill.on and not questions.predicates and self._backfilled(ask, group, out, now_ns):
                    allocated += 1
                    continue
                self._park_without_node(group, out, now_ns)
                continue
            # 7. The allocation, in all books; or the RM is asked first, while the proposal counts in all books.
            self._place(ask, group, node, out, now_ns)
            allocated += 1
        else:
            return allocated, False
        return allocated, True

    def _refuse_urgent(self, leaf: Queue, app: Application, out: Outcome, now_ns: int) -> bool:
        """A queue whose order does not begin with priority may have been chosen for an ask that is not its first.
        Refuses such an ask if it cannot be placed now. Returns whether it did: then another queue may come first.
        """
        chosen: Application | Queue = app
        for queue in leaf.line:
            if not queue.priority_first and not queue.policy.priority_fence:
                best, part = queue.ready_priorities.best()
                if chosen.ready_key is not None and best < chosen.ready_key[-1]:
                    while isinstance(part, Queue):
                        if not part.priority_first:
                            _, part = part.ready_priorities.best()
                        else:
                            *_, part = part.ready_apps.first() if part.leaf else part.ready[0]
                    if self._refuse(part, out, now_ns):
                        return True
            chosen = queue
        return False

    def _refuse(self, app: Application, out: Outcome, now_ns: int) -> bool:
        """Parks the application's first group if it cannot be placed now. Returns whether it did."""
        group: AskGroup = app.ready[0][-1]
        ask = group.head()
        assert ask is not None, f"{group} is ready without an ask"
        predicates, gang = self._questions.predicates, app.gang
        if self._turns.on and predicates and self._turns.enqueue_if_blocked(ask, group):
            return True
        if gang is not None and gang.can_be_replaced_by(group) and self._limit_checks.full_ledger(app) is None:
            return False
        if self._park_over_limit(app, group, out, now_ns):
            return True
        if self._placing.find_node(ask, group) is not None:
            return False
        if self._backfill.on and not predicates and self._backfill.node_for(ask, now_ns) is not None:
            return False
        self._park_without_node(group, out, now_ns)
        return True

    def _place_reserved(self, out: Outcome, now_ns: int, budget: int) -> int:
        """Places asks on reserved nodes that gained room: the asks of the reservations come first, unless another ask
        fits there to which the reservation gives way.
        """
        allocated = 0
        waiting, reservations = self._waiting, self._reservations
        gained = {**self._held_back, **self._state.contested, **waiting.changed_claims}
        gained.update(dict.fromkeys(waiting.gained_reserved))
        if not gained:
            return 0
        self._held_back, self._state.contested = {}, {}
        waiting.gained_reserved, waiting.changed_claims = [], {}
        ready: list[Ask] | None = None
        pairs = [(ask, node) for node in gained for ask in node.reservations]
        for ask, node in sorted(pairs, key=_urgency) if len(pairs) > 1 else pairs:
            if ask.reserved_node != node.node_id:
                continue  # its claim has ended just now
            if ask.yields and not self._state.config.reservation.enabled:  # (recorded by an earlier version)
                reservations.unreserve(ask, out, now_ns)
                continue
            if ask.yields:
                has_room = fits(ask.shape.items, node.available)
                if has_room and ready is None:
                    ready = self._ready_asks()
                if not has_room or self._is_contested(node, ask, ready or []):
                    self._state.contested[node] = None
                    continue
            group = ask.group
            if group is None or group.held or ask.awaits_placeholders:
                continue
            if not fits(ask.shape.items, node.available):
                reservations.review(ask, node, out, now_ns, limited=False)
                continue
            if ask.app.gang is not None and ask.app.gang.can_be_replaced_by(group):
                continue  # it need not wait for room there any more
            if allocated < budget and not self._must_wait(ask, node):
                if not self._hold_back(ask, group, out, now_ns):
                    self._place(ask, group, node, out, now_ns)
                    allocated += 1
                    continue
                reservations.review(ask, node, out, now_ns, limited=True)
            if ask.reserved_node == node.node_id:
                self._held_back[node] = None
        if self._backfill.on:
            self._wake_short([node for node in gained if node not in self._state.contested])
        return allocated

    def _place(self, ask: Ask, group: AskGroup, node: Node, out: Outcome, now_ns: int) -> None:
        """Makes the allocation on the node, or asks the RM first."""
        if self._questions.predicates:
            self._questions.propose_allocation(ask, group, node, out, now_ns)
        else:
            self._placing.allocate(ask, group, node, out, now_ns)

    # ---- reservations that give way --------------------------------------------------------------------------------

    def _ready_asks(self) -> list[Ask]:
        """Of what is ready and may run on any node, the oldest ask of each leaf, priority and shape."""
        oldest: dict[tuple[Queue, int, Shape], Ask] = {}
        queues = [self._state.root]
        while queues:
            queue = queues.pop()
            if not queue.leaf:
                queues += [entry[-1] for entry in queue.ready]
                continue
            users = queue.fair_uses.users.values() if queue.fair_uses is not None else ()
            for line in [use.line for use in users] or [queue.ready_apps]:
                for *_, app in line:
                    for *_, group in app.ready:
                        head = group.head()
                        key = (queue, group.priority, group.shape)
                        current = oldest.get(key)
                        if head is not None and not group.required_node and (current is None or head.age < current.age):
                            oldest[key] = head
        return list(oldest.values())

    def _is_contested(self, node: Node, holder: Ask, ready: list[Ask]) -> bool:
        """Whether another ask that fits on the node ranks above the ask of its reservation: a parked one, or one of
        these, which are ready.
        """
        for ask in ready:
            if ask is not holder and fits(ask.shape.items, node.available) and outranks(ask, holder):
                return True
        return self._first_by_rank(node, holder, {}) is not None

    def _place_by_rank(self, out: Outcome, now_ns: int, budget: int) -> int:
        """After the search, gives the room on nodes that are reserved by age to the asks that outrank the ask of the
        reservation, by rank; what is left, to the latter. Returns the number of allocations.
        """
        if self._turns.stopped:
            return 0
        waited = list(self._state.contested)
        nodes, self._state.contested = self._contested_nodes(), {}
        allocated = 0
        for node in nodes:
            refused: dict[AskGroup, None] = {}
            while allocated < budget and len(node.reservations) == 1:
                (holder,) = node.reservations
                if not holder.yields:
                    break
                ask = self._first_by_rank(node, holder, refused)
                if ask is None:
                    allocated += self._place_holder(node, holder, out, now_ns)
                    break
                group = ask.group
                assert group is not None, f"{ask} is in no group"
                waits = self._must_wait(ask, node)
                if waits or self._hold_back(ask, group, out, now_ns):
                    refused[group] = None
                    if waits:
                        self._held_back[node] = None
                    continue
                self._place(ask, group, node, out, now_ns)
                allocated += 1
            if allocated >= budget and node.reservations:
                self._state.contested[node] = None
        if self._backfill.on and allocated < budget:
            self._wake_short(waited)
        return allocated

    def _place_holder(self, node: Node, holder: Ask, out: Outcome, now_ns: int) -> int:
        """Places the ask of a reservation after those that outrank it. Returns 1, or 0 if it still waits."""
        group, gang = holder.group, holder.app.gang
        if group is None or group.held or not fits(holder.shape.items, node.available):
            return 0
        if gang is not None and gang.can_be_replaced_by(group):
            return 0
        if self._must_wait(holder, node) or self._hold_back(holder, group, out, now_ns):
            self._held_back[node] = None
            return 0
        self._place(holder, group, node, out, now_ns)
        return 1

    def _contested_nodes(self) -> dict[Node, None]:
        """The nodes reserved by age on which an ask of higher rank may fit: those with more room; those for groups that
        were parked in this search; and those for queues that got below their guarantees, or reached them.
        """
        waiting, figures = self._waiting, self._figures
        nodes = {**self._state.contested, **self._held_back}
        lists: dict[Waitlist, None] = {}
        for group in waiting.parked:
            waitlist = group.app.queue.waitlists.get(group.wait_key)
            if waitlist is not None:
                lists[waitlist] = None
        lowered, raised = self._reservations.guarantees_moved()
        for leaf in self._state.queues.values() if lowered else ():
            if not lowered.isdisjoint(leaf.ancestry):
                lists.update(dict.fromkeys(leaf.waitlists.values()))
        shapes = {waitlist.shape: None for waitlist in lists if waitlist.wait_point is waiting.no_node}
        for shape in shapes:
            nodes.update(dict.fromkeys(figures.reserved_with_room(shape)))
        for node in self._state.reserved if raised else ():
            if not all(raised.isdisjoint(holder.app.queue.ancestry) for holder in node.reservations):
                nodes[node] = None
        return dict.fromkeys(sorted(nodes, key=attrgetter("node_id")))

    def _first_by_rank(self, node: Node, holder: Ask, refused: dict[AskGroup, None]) -> Ask | None:
        """Of the parked asks that fit on a node that is reserved by age and outrank the ask of the reservation, the
        one of the highest rank; None if there is none.
        """
        no_node = self._waiting.no_node
        if not node.usable or node.taken:
            return None
        candidates: list[Ask] = []
        for shape in no_node.fitting([node.available]):
            for waitlist in no_node.lists(shape):
                self._outranking(waitlist, node, holder, refused, candidates)
        return highest(candidates)

    def _outranking(
        self, waitlist: Waitlist, node: Node, holder: Ask, refused: dict[AskGroup, None], candidates: list[Ask]
    ) -> None:
        """Adds the asks of the list that may outrank all others there and outrank the ask of the reservation: of each
        priority, the oldest one that may run on the node.
        """
        for line in self._waiting.parking.ages_of(waitlist).lines():
            for group in line:
                head = group.head()
                if head is None or head is holder:
                    continue
                if not outranks(head, holder):
                    break
                gang = group.app.gang
                is_gated = (
                    group.held or head.awaits_placeholders or (gang is not None and gang.can_be_replaced_by(group))
                )
                if is_gated or group in refused or (head.refusals is not None and node.node_id in head.refusals.nodes):
                    continue
                candidates.append(head)
                break

    def _must_wait(self, ask: Ask, node: Node) -> bool:
        """Whether another proposal must be answered first, because one of the two must be alone."""
        turns = self._turns
        if not turns.on or not self._questions.predicates:
            return False
        return not turns.may_propose(ask, node) or turns.blocks_search(ask) or turns.is_locked(ask)

    def _hold_back(self, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Whether a limit stops an ask whose node has room. If the ask is the first of its waitlist, the waitlist waits
        at the limit.
        """
        app = ask.app
        if self._limit_checks.full_ledger(app) is not None or self._limit_checks.blocking_gang_limit(app) is not None:
            return True
        over = self._limit_checks.exceeded_limit(app, ask.demand.shape)
        if over is None:
            return False
        waitlist = app.queue.waitlists.get(group.wait_key)
        if waitlist is None or any(waitlist.wait_point is ledger.blocked for ledger in app.bounds):
            return True  # it waits there already
        if waitlist.groups and waitlist.groups[0][-1] is group and group.head() is ask:
            waitlist.register(over[0].blocked)
            self._waiting.set_reason(waitlist, self._limit_checks.limit_reason(*over), out, now_ns)
        return True

    def _park_without_node(self, group: AskGroup, out: Outcome, now_ns: int) -> None:
        waiting, head = self._waiting, group.head()
        awaited = self._turns.blocked_reason(head) if self._turns.on and head is not None else None
        if awaited is not None:
            wait_point = waiting.required_wait_point(group.required_node) if group.required_node else waiting.turns
            waiting.park(group, wait_point, awaited, out, now_ns)
            return
        refused = self._questions.refusal_reason(group) if group.apart else None
        if group.required_node:
            wait_point = waiting.required_wait_point(group.required_node)
            waiting.park(group, wait_point, refused or self._required_node_reason(group), out, now_ns)
        else:
            reason = refused or self._backfill.explained(self._figures.reason(group.shape), head, now_ns)
            waitlist = self._woken_for_all(group)
            position = placed(waitlist, waiting.wait_key(group)) if waitlist is not None else ()
            waiting.park(group, waiting.no_node, reason, out, now_ns)
            if waitlist is not None:
                self._wake_shorter(waitlist, position, now_ns)

    # ---- backfill --------------------------------------------------------------------------------------------------

    def _wake_short(self, nodes: list[Node]) -> None:
        """Wakes the waitlists of asks that declare how long they run, if these nodes are reserved and have room."""
        no_node = self._waiting.no_node
        for node in nodes:
            for shape in no_node.fitting([node.available]):
                for bench in no_node.benches(shape) if node.reservations else ():
                    if bench.durations is not None and not bench.moving:
                        self._waiting.wake_queue(bench, no_node)

    def _woken_for_all(self, group: AskGroup) -> Waitlist | None:
        """The group's list, if it was woken for all that wait for the same, and its asks may be backfilled."""
        if group.apart < DURATION_FROM or not self._backfill.on or self._questions.predicates:
            return None
        waitlist = group.app.queue.waitlists.get(group.wait_key)
        return waitlist if waitlist is not None and waitlist.relay is not None else None

    def _wake_shorter(self, waitlist: Waitlist, position: tuple[Any, ...], now_ns: int) -> bool:
        """No node is open to the lists of the bench. Wakes the first behind the place that may be backfilled. Returns
        whether there is one.
        """
        bench = self._waiting.no_node.bench_of(waitlist)
        if bench is None:
            return False
        bench.moving = waitlist.relay is not None
        longest_ms = self._backfill.longest_ms(waitlist.shape, now_ns)
        return longest_ms > 0 and self._waiting.wake_shorter(bench, longest_ms, position)

    def _backfilled(self, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Places the ask on a reserved node, if it surely ends before the reservation is due."""
        match = self._backfill.node_for(ask, now_ns)
        if match is None:
            return False
        node, by = match
        waiting, waitlist = self._waiting, self._woken_for_all(group)
        position: tuple[Any, ...] = ()
        if waitlist is not None and waitlist.relay is waiting.no_node:  # (elsewhere, the next may find an open node)
            waitlist.relay, position = None, placed(waitlist, waiting.wait_key(group))
        else:
            waitlist = None
        self._placing.allocate(ask, group, node, out, now_ns, backfilled=by)
        if waitlist is not None:
            waitlist.relay = waiting.no_node if waiting.parking.in_flight_group(waitlist) is not None else None
            if not self._wake_shorter(waitlist, position, now_ns) and waitlist.relay is None:
                bench = waiting.no_node.bench_of(waitlist)
                if bench is not None:  # a last one is refused, because the reason of all may be another one now
                    waiting.wake_queue(bench, waiting.no_node)
        due, runs = duration_text(by.due_ns - now_ns), duration_text(by.end_ns - now_ns)
        message = (
            f"Backfilled on node {node.node_id} for up to {runs}: reserved for {by.key} of {by.app_id}, due in {due}"
        )
        out.add_user_event(ask.key, ask.app.app_id, ask.shape, message, now_ns)
        return True

    # ---- limits and reasons ----------------------------------------------------------------------------------------

    def _park_over_limit(self, app: Application, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Parks the group (or the application) if a limit stops it. Returns whether a limit did."""
        full = None if app.counted else self._limit_checks.full_ledger(app)
        if full is not None:
            self._waiting.park_app(app, full, out, now_ns)
            self._skipped(group, app, out)
            return True
        lacking = self._limit_checks.blocking_gang_limit(app) if app.gang is not None else None
        if lacking is not None:
            self._waiting.park_gang(app, lacking[0], self._limit_checks.room_reason(*lacking), out, now_ns)
            self._skipped(group, app, out)
            return True
        over = self._limit_checks.exceeded_limit(app, group.shape)
        if over is None:
            return False
        self._waiting.park(group, over[0].blocked, self._limit_checks.limit_reason(*over), out, now_ns)
        return True

    def _skipped(self, group: AskGroup, app: Application, out: Outcome) -> None:
        if self._questions.states:
            self._questions.notify_skipped(group, app.reason, out)

    def _required_node_reason(self, group: AskGroup) -> Reason:
        node = self._state.nodes.get(group.required_node)
        if node is None:
            return Reason(ReasonCode.REQUIRED_NODE_UNKNOWN, node=group.required_node)
        names = self._state.types.names
        for number, value in group.shape.items:
            if value > node.available[number]:
                return Reason(
                    ReasonCode.REQUIRED_NODE_FULL,
                    "",
                    names[number],
                    value,
                    limit=node.capacity[number],
                    free=node.available[number],
                    node=node.node_id,
                )
        raise AssertionError(f"{group} fits on {node}")


def _urgency(reserved: tuple[Ask, Node]) -> tuple[int, int, int]:
    """The order of asks: it does not depend on which node gained room first."""
    demand = reserved[0].demand
    return (-demand.priority, demand.created_ns, demand.submission)
