"""The search for the next allocation, in numbered steps: best leaf, best application, oldest ask, limits, node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    AskGroup,
    Ledger,
    Node,
    Replaced,
    Tracker,
    made_uuid,
    unique_key,
)
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import Shape, fits
from muster_scheduler.core.states import AppState, GangPhase

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


class Cycle:
    """Decides for one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._waiting = partition.waiting
        self._gangs = partition.gangs
        self._explained_version = -1
        # Kept-free nodes with room, whose asks are held back by a limit.
        self._held_back: dict[Node, None] = {}

    def run(self, out: Outcome, now_ns: int, budget: int) -> int:
        """Makes up to ``budget`` allocations; gives how many. Fewer means: nothing more fits now."""
        partition, gangs, questions = self._partition, self._gangs, self._partition.questions
        if not partition.deciding:
            return 0
        # 1. Shares move with the cluster's capacity: all keys anew, once.
        if partition.capacity_moved:
            partition.capacity_moved = False
            partition.queue_tree.measure_fair_max()
        # 2. Who waits for what has gained is tried again.
        if self._waiting.nodes_gained:
            gangs.look_again()
        gangs.settle(out)
        questions.refresh_records(out)
        self._waiting.wake()
        made = self._place_reserved(out, now_ns, budget)
        root = partition.root
        while made < budget:
            # 3. Real asks wait for their placeholders, or no more; the best leaf: from root down, the first child in
            # its parent's order.
            if gangs.dirty or gangs.reopened:
                gangs.settle(out)
            queue = root
            while not queue.leaf and queue.ready:
                queue = queue.ready[0][-1]
            if not queue.leaf:
                break
            # 4. Its best application, that one's best group, that one's oldest ask.
            app: Application = queue.ready_apps[0][-1]
            group: AskGroup = app.ready[0][-1]
            ask = group.head()
            assert ask is not None, f"{group} is ready without an ask"
            # 5. A placeholder of its gang makes room for it (no limit is asked: it was asked for the placeholder).
            if app.gang is not None and self.full_ledger(app) is None and gangs.give_way(ask, group, out, now_ns):
                made += 1  # it is said to the RM, as an allocation is
                continue
            # 6. Limits first, then a node; a "no" parks the group with its reason.
            if self._park_over_limit(app, group, out, now_ns):
                continue
            node = self.node_for(ask, group)
            if node is None:
                self._park_without_node(group, out, now_ns)
                continue
            # 7. The allocation, on all books; or the RM is asked first, while it counts there already.
            if questions.predicates:
                questions.place(ask, group, node, out, now_ns)
            else:
                self.allocate(ask, group, node, out, now_ns)
            made += 1
        # 8. Whoever was woken and waits no more is off the lists. (Out of budget: some were not yet looked at.)
        if made < budget:
            self._waiting.land(out, now_ns)
        # 9. Those who have waited long come to their rights: a node kept free, the preemption of others. (But first
        # whoever can be helped by what this search set free: in the next pass.)
        if not self._waiting.stirred:
            partition.claims.parked(out, now_ns)
            partition.claims.run(out, now_ns)
        # 10. Other nodes may mean another "no", even where they do not mean a "yes".
        if self._explained_version != partition.capacity_version:
            self._explained_version = partition.capacity_version
            for shape in self._waiting.no_node:
                reason = partition.figures.reason(shape)
                for waitlist in self._waiting.no_node.lists(shape):
                    if not waitlist.apart:  # (whose own "no" may be the RM's)
                        self._waiting.note(waitlist, reason, out, now_ns)
        # 11. People are told of those who stand otherwise now.
        if partition.telling.waiting:
            partition.telling.run(out, now_ns)
        return made

    def _place_reserved(self, out: Outcome, now_ns: int, budget: int) -> int:
        """Nodes that gained while they are kept free: those for whom they are come first."""
        made = 0
        gained, self._held_back = {**self._held_back, **dict.fromkeys(self._waiting.gained_reserved)}, {}
        self._waiting.gained_reserved = []
        waiting = [(ask, node) for node in gained for ask in node.reservations]
        for ask, node in sorted(waiting, key=_urgency) if len(waiting) > 1 else waiting:
            group = ask.group
            if group is None or group.held or ask.awaits_placeholders or not fits(ask.shape.items, node.available):
                continue
            if ask.app.gang is not None and ask.app.gang.gives_way_to(group):
                continue  # it need not wait for room there any more
            if made < budget and not self._hold_back(ask, group, out, now_ns):
                if self._partition.questions.predicates:
                    self._partition.questions.place(ask, group, node, out, now_ns)
                else:
                    self.allocate(ask, group, node, out, now_ns)
                made += 1
            else:
                self._held_back[node] = None
        return made

    def _hold_back(self, ask: Ask, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Whether a limit stands against an ask whose node has room; if it is first in line, its list waits there."""
        app = ask.app
        if self.full_ledger(app) is not None or self._lacking_room(app) is not None:
            return True
        over = self.over_limit(app, ask.demand.shape)
        if over is None:
            return False
        waitlist = app.queue.waitlists.get(group.wait_key)
        if waitlist is None or any(waitlist.place is ledger.blocked for ledger in app.bounds):
            return True  # it waits there already
        if waitlist.groups and waitlist.groups[0][-1] is group and group.head() is ask:
            waitlist.register(over[0].blocked)
            self._waiting.note(waitlist, self._limit_reason(*over), out, now_ns)
        return True

    def node_for(self, ask: Ask, group: AskGroup) -> Node | None:
        """The node that the ask may have now: the one required, the one kept free for it, the best one; None: none."""
        items = group.shape.items
        if group.required_node:
            # A daemon's node takes it even while it is draining, or kept free for others than daemons.
            node = self._partition.nodes.get(group.required_node)
            if node is None or (ask.refusals is not None and node.node_id in ask.refusals.nodes):
                return None
            return node if fits(items, node.available) else None
        reserved = ask.reserved
        if reserved is not None and not ask.awaits_placeholders and reserved.usable and fits(items, reserved.available):
            return reserved
        return self._find_node(group.shape, ask)

    def _park_without_node(self, group: AskGroup, out: Outcome, now_ns: int) -> None:
        waiting = self._waiting
        refused = self._partition.questions.why_refused(group) if group.apart else None
        if group.required_node:
            place = waiting.required_place(group.required_node)
            waiting.park(group, place, refused or self._required_node_reason(group), out, now_ns)
        else:
            waiting.park(group, waiting.no_node, refused or self._partition.figures.reason(group.shape), out, now_ns)

    def _find_node(self, shape: Shape, ask: Ask) -> Node | None:
        waiting = self._waiting
        if shape in waiting.found_no_node:
            return None
        if ask.refusals is not None and ask.refusals.nodes:
            # (What it finds says nothing of the shape.)
            but = ask.refusals.nodes
            if shape in waiting.only_gained:
                left = [node for node in waiting.gained if node.node_id not in but]
                return self._partition.index.first_of(left, shape.items)
            return next(iter(self._partition.index.fitting(shape.items, but, 1)), None)
        if shape in waiting.only_gained:
            node = self._partition.index.first_of(waiting.gained, shape.items)
        else:
            node = self._partition.index.first_fit(shape.items)
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
    ) -> None:
        """Makes one allocation of an ask on a node that has room.

        :param group: None: the ask waited for placeholders, in no group.
        :param replaces: the placeholder that was there before it.
        """
        partition = self._partition
        app, demand = ask.app, ask.demand
        shape, queue = demand.shape, app.queue
        if ask.told:
            partition.telling.passed(ask, out, now_ns)
        if app.reason is not None:
            self._waiting.may_run(app, out, now_ns)
        if ask.reserved is not None and (node is ask.reserved or not ask.awaits_placeholders):
            partition.unreserve(ask, out, now_ns)
        ordinal = ask.allocated
        ask.allocated = ordinal + 1
        while ordinal and unique_key(demand.key, ordinal) in app.allocations:
            ordinal += 1  # an earlier one came back, those behind it did not
        allocation = Allocation(
            app,
            demand,
            node.node_id,
            now_ns,
            ordinal,
            made_uuid(demand.submission, ordinal, now_ns) if demand.previous_generation else "",
        )
        if replaces is not None:
            allocation.replaces = Replaced(replaces.key, replaces.created_ns)
        # Inlined booking (as in `hold` and `add_pending`): this is the hottest path of all.
        partition.allocations_count += 1
        partition.version += 1
        if ordinal or allocation.uuid:
            app.book(allocation)
        key = unique_key(demand.key, ordinal)
        app.allocations[key] = allocation
        node.allocations[(app.app_id, key)] = allocation
        node_allocated, available = node.allocated, node.available
        app_allocated, app_pending = app.allocated, app.pending
        ancestry, trackers = queue.ancestry, app.trackers
        for number, value in shape.items:
            node_allocated[number] += value
            available[number] -= value
            app_allocated[number] += value
            app_pending[number] -= value
            for q in ancestry:
                q.allocated[number] += value
                q.pending[number] -= value
            for tracker in trackers:
                tracker.allocated[number] += value
        partition.figures.changed(node)
        if node.lent:
            partition.offers.moved[node.node_id] = None
        if node.index_key is not None:  # else it is draining, or kept free
            partition.index.move(node, partition.node_books.score(node))
        out.touch(allocation, partition.name)
        gang = app.gang
        if demand.placeholder:
            self._gangs.pend(ask, -1)
            self._gangs.book(allocation)
            self._gangs.placed(allocation, out, now_ns)
        elif app.state is not AppState.RUNNING or (gang is not None and gang.phase is not GangPhase.USED):
            partition.lifecycle.started(app, out, now_ns)
        partition.tell_new(allocation, out, now_ns)
        ask.pending -= 1
        if queue.fair_apps:  # before the next in line is woken: by the shares of now
            app.share = None
            self._waiting.rekey(app)
        if ask.pending:
            out.touch(ask, partition.name)
            if gang is not None and ask.open <= 0 and ask.group is not None:
                partition.leave_group(ask, out)
        else:
            partition.drop_ask(ask, out, now_ns)
        if not self._waiting.refresh_app(app):
            self._waiting.refresh(queue)
        if group is not None and group.asks:  # else drop_ask woke the next
            self._waiting.wake_next(group)

    # ---- limits and reasons ----------------------------------------------------------------------------------------

    def _park_over_limit(self, app: Application, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Parks the group (or the application) when a limit stands against it; says whether."""
        full = None if app.counted else self.full_ledger(app)
        if full is not None:
            self._waiting.wait_to_run(app, full, out, now_ns)
            self._skipped(group, app, out)
            return True
        lacking = self._lacking_room(app) if app.gang is not None else None
        if lacking is not None:
            self._waiting.wait_for_room(app, lacking[0], self._room_reason(*lacking), out, now_ns)
            self._skipped(group, app, out)
            return True
        over = self.over_limit(app, group.shape)
        if over is None:
            return False
        self._waiting.park(group, over[0].blocked, self._limit_reason(*over), out, now_ns)
        return True

    def _skipped(self, group: AskGroup, app: Application, out: Outcome) -> None:
        if self._partition.questions.states:
            self._partition.questions.skipped(group, app.reason, out)

    def _limit_reason(self, ledger: Ledger, number: int, value: int) -> Reason:
        code = ReasonCode.QUEUE_MAX
        if isinstance(ledger, Tracker):
            code = ReasonCode.GROUP_LIMIT if ledger.group else ReasonCode.USER_LIMIT
        name = self._partition.types.names[number]
        said = self._partition.pools.why_held(name) if ledger is self._partition.root else ""
        used, limit = ledger.allocated[number], ledger.limit[number]
        return Reason(code, ledger.path, name, value, used, limit, who=ledger.who, said=said)

    def _lacking_room(self, app: Application) -> tuple[Ledger, int, int] | None:
        """The limit that keeps the application's gang from starting; None: nothing does, or it has started."""
        gang = app.gang
        return self._gangs.lacking_room(app) if gang is not None and gang.waits_for_room else None

    def _room_reason(self, ledger: Ledger, number: int, value: int) -> Reason:
        return replace(
            self._limit_reason(ledger, number, value),
            code=ReasonCode.GANG_ROOM,
            promised=ledger.promised.get(number, 0),
            of_group=isinstance(ledger, Tracker) and ledger.group,
        )

    def full_ledger(self, app: Application) -> Ledger | None:
        """Who runs as many applications as it may, so that this one cannot start: user and group first, then queues."""
        if app.counted:
            return None
        for ledger in app.ledgers:
            if ledger.is_full:
                return ledger
        return None

    def held_back(self, ask: Ask) -> bool:
        """Whether a limit stands against the ask, room or not."""
        app = ask.app
        if self.full_ledger(app) is not None or self._lacking_room(app) is not None:
            return True
        return self.over_limit(app, ask.demand.shape) is not None

    def over_limit(self, app: Application, shape: Shape) -> tuple[Ledger, int, int] | None:
        """The first limit that one more of the shape would go over: whose, which type, how much it asks."""
        items = shape.items
        for ledger in app.bounds:
            used, limit = ledger.allocated, ledger.limit
            for number, value in items:
                if used[number] + value > limit[number]:
                    return ledger, number, value
        return None

    def _required_node_reason(self, group: AskGroup) -> Reason:
        node = self._partition.nodes.get(group.required_node)
        if node is None:
            return Reason(ReasonCode.REQUIRED_NODE_UNKNOWN, node=group.required_node)
        names = self._partition.types.names
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
    """As asks are ordered, whichever of their nodes gained first."""
    demand = reserved[0].demand
    return (-demand.priority, demand.created_ns, demand.submission)
