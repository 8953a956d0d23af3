"""One partition: its objects, and the books of what is asked for and held.

Whoever changes something comes here: the books of asks, allocations and reservations are kept in this module, the rest
by a part each, which the partition holds: queues (``queue_tree.py``), nodes (``node_books.py``, ``node_lives.py``),
applications (``lifecycle.py``), the ends of allocations (``releases.py``), what the RM reports of them
(``adoption.py``), and what sources outside of the RM say (``external_partition.py``).

Every change keeps the books: what is allocated and pending on nodes, applications and all queues up to root; and tells
``waiting.py`` what gained, so that those who wait for it are looked at again. All of it is O(changed).
"""

from __future__ import annotations

from collections.abc import Mapping

from muster_si.constants import CREATION_TIME, K8S_CREATION_TIME_TAG, REQUIRED_NODE_TAG

from muster_scheduler.core import quota
from muster_scheduler.core.adoption import Adoption
from muster_scheduler.core.claims import Claims
from muster_scheduler.core.commands import AskItem, Termination
from muster_scheduler.core.config import PartitionConfig, types_named
from muster_scheduler.core.cycle import Cycle
from muster_scheduler.core.external_books import ExternalEntry, PartitionBooks
from muster_scheduler.core.external_partition import PartitionExternal
from muster_scheduler.core.figures import NodeFigures
from muster_scheduler.core.gangs import Gangs
from muster_scheduler.core.inquiries import Refusals
from muster_scheduler.core.lifecycle import Lifecycle
from muster_scheduler.core.limits import Limits, usage_events
from muster_scheduler.core.node_books import NodeBooks
from muster_scheduler.core.node_index import NodeIndex
from muster_scheduler.core.node_lives import NodeLives
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    AskGroup,
    Demand,
    Node,
    Queue,
    Waitlist,
    made_uuid,
)
from muster_scheduler.core.offers import Offers, due_of
from muster_scheduler.core.outcome import (
    Change,
    Detail,
    Event,
    EventType,
    NewAllocation,
    Outcome,
    ReleasedAsk,
    SchedulingState,
)
from muster_scheduler.core.pools import Pools
from muster_scheduler.core.questions import Questions
from muster_scheduler.core.queue_tree import QueueTree
from muster_scheduler.core.releases import Releases
from muster_scheduler.core.resources import Shape, Types, add, subtract
from muster_scheduler.core.states import APP_TERMINAL, DYNAMIC_QUEUE_LINGER_NS, QueueState
from muster_scheduler.core.telling import Telling
from muster_scheduler.core.waiting import Waiting

# What a deadline can be of.
Timed = Application | Queue | Waitlist | Allocation | Ask | Claims | Questions | Refusals | ExternalEntry | Offers


class Partition:
    """One partition of one RM.

    :ivar rm_id: whose it is, for who shows it; nothing is decided by it.
    :ivar searching: False while states are folded, and always in a follower: no order of nodes is kept then.
    :ivar apps: by id; finished ones stay until they expire, under ``<id>-<seconds>`` once their id is used again.
    :ivar rejected: by id, the latest that were not let in, oldest first.
    :ivar foreign: what others hold of the nodes, by :attr:`Allocation.foreign_id`.
    :ivar capacity: sum over all nodes, draining ones too; of pooled types what the pools have.
    :ivar queue_tree: how queues come, change and go.
    :ivar node_books: the sums of nodes, and their places in the search.
    :ivar node_lives: how nodes come, change and go.
    :ivar external: what counts of what sources outside of the RM say.
    :ivar pools: the types that are on no node.
    :ivar offers: the parts of nodes that are lent.
    :ivar lifecycle: what becomes of applications.
    :ivar releases: how allocations end.
    :ivar adoption: what the RM reports of allocations.
    :ivar telling: what people are told of asks that wait.
    :ivar waiting: who is ready, parked or to be woken.
    :ivar cycle: the search.
    :ivar deciding: False: the RM is stopped, nothing is decided for it.
    :ivar previous_generation: the RM is told that an application starts before it runs (seed 001).
    :ivar capacity_moved: the sum changed since shares were last measured.
    :ivar capacity_version: grows with each change of which nodes are in the search, and of their capacities.
    :ivar figures: what the nodes have, for reasons.
    :ivar limits: of users and groups.
    :ivar claims: the rights of those who wait long: reservations, preemption, telling the autoscaler.
    :ivar gangs: placeholders, and the real asks that take their places.
    :ivar questions: what the RM is asked before something is decided.
    :ivar version: grows with everything that could change an answer: what is held, what nodes and limits are.
    :ivar deadlines: (when, what) that came up and that the scheduler has not yet put on its clock.
    """

    def __init__(
        self,
        config: PartitionConfig,
        *,
        searching: bool = True,
        external: PartitionBooks | None = None,
        rm_id: str = "",
        reports_until_ns: int = 0,
    ) -> None:
        self.name = config.name
        self.rm_id = rm_id
        self.searching = searching
        self.config = config
        self.types = Types()
        self.types.bounded = searching
        self.nodes: dict[str, Node] = {}
        self.index = NodeIndex()
        self.apps: dict[str, Application] = {}
        self.rejected: dict[str, Application] = {}
        self.queues: dict[str, Queue] = {}
        self.foreign: dict[str, Allocation] = {}
        self.capacity = self.types.vector()
        self.queue_tree = QueueTree(self)
        self.node_books = NodeBooks(self)
        self.node_lives = NodeLives(self)
        self.external = PartitionExternal(self, external if external is not None else PartitionBooks(config.name))
        self.pools = Pools(self)
        self.offers = Offers(self, reports_until_ns)
        self.lifecycle = Lifecycle(self)
        self.releases = Releases(self)
        self.adoption = Adoption(self)
        self.gangs = Gangs(self)
        self.telling = Telling(self)
        self.waiting = Waiting(self)
        self.figures = NodeFigures(self.types)
        self.limits = Limits(self.types)
        self.claims = Claims(self)
        self.questions = Questions(self)
        self.cycle = Cycle(self)
        self.deciding = True
        self.previous_generation = False
        self.capacity_moved = True
        self.capacity_version = 0
        self.version = 0
        self.deadlines: list[tuple[int, Timed]] = []
        self.allocations_count = 0
        self._configure(config)
        if searching:
            self.index = self.node_books.new_index()

    # ---- the whole of it -------------------------------------------------------------------------------------------

    def _configure(self, config: PartitionConfig) -> None:
        """Builds the queue tree (a partition's first configuration)."""
        self.types.reserve(types_named(config))
        self.limits.configure(config.root)
        self.take_policies(config)
        self.root = self.queue_tree.build_queue(config.root, None, {})

    def take_policies(self, config: PartitionConfig) -> None:
        """Takes what the configuration says of the partition as a whole."""
        self.config = config
        self.node_books.weigh(config)

    def activate(self, now_ns: int, decided_ns: int) -> None:
        """After a fold: orders the nodes, and makes everything ready that has something pending.

        :param decided_ns: the last time that something was decided before.
        """
        self.searching = self.types.bounded = True
        self.capacity_moved = True
        self.capacity_version += 1
        self.index = self.node_books.new_index()
        for node in self.nodes.values():
            self.node_books.list_node(node)
        self.external.activate()
        self.offers.activate()
        self.gangs.activate()
        self.questions.activate()
        for app in self.apps.values():
            for group in app.groups.values():
                if group.parked_key is None and group.ready_key is None and group.asks:
                    self.waiting.make_ready(group)
        for node in self.nodes.values():
            # (By arrival, as before; a fold brings them in the asks' order of arrival, whatever reserved first.)
            node.reservations = dict.fromkeys(
                sorted(node.reservations, key=lambda ask: (ask.reserved_ns, ask.submission))
            )
            for ask in node.reservations:
                self.deadlines.append((ask.reserved_ns + self.config.reservation.timeout_ns, ask))
            for allocation in node.allocations.values():
                if allocation.told:
                    self.releases.remind_at(allocation, decided_ns)
                self.end_in_time(allocation)
        for queue in self.queues.values():
            self.waiting.resume(queue)
            if queue.quota_ns:
                self.deadlines.append((queue.quota_ns, queue))
            for waitlist in queue.waitlists.values():
                waitlist.seen_ns = decided_ns
            going = not queue.managed or queue.state is QueueState.DRAINING
            if going and not queue.applications and not queue.children:
                self.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    @property
    def unfinished(self) -> bool:
        """The last cycle left something that the next one can do at once."""
        return self.deciding and (
            self.waiting.stirred
            or self.claims.waiting
            or self.gangs.waiting
            or self.telling.waiting
            or bool(self.root.ready)
        )

    def come(self, what: Timed, due_ns: int, out: Outcome, now_ns: int) -> None:
        """A deadline has come; one that was moved meanwhile is passed over."""
        match what:
            case Queue():
                if what.quota_ns and what.quota_ns == due_ns:
                    quota.due(self, what, out, now_ns)
                self.queue_tree.sweep_queue(what, out, now_ns)
            case Application():
                if what.deadline_ns == due_ns:
                    self.lifecycle.expire(what, out, now_ns)
                if what.gang is not None and what.gang.deadline_ns == due_ns:
                    self.gangs.time_out(what, out, now_ns)
            case Waitlist():
                if what.due_ns == due_ns:
                    self.claims.come(what)
            case Allocation() if what.told:
                if due_ns == what.reminder_ns:
                    self.releases.remind(what, out, now_ns)
            case Allocation() if is_awaited(what, due_ns):
                over = f"the execution time-out of {what.execution_timeout_ms} ms is over"
                self.releases.time_out(what, over, out, now_ns)
            case Ask():
                self.claims.reservation_timed_out(what, out, now_ns)
            case ExternalEntry():
                if due_of(what) == due_ns:
                    self.offers.come(what, out, now_ns)
            case Offers():
                what.reported(out, now_ns)
            case Questions():
                what.come(out, now_ns)
            case Refusals():
                what.armed = False
                self.questions.retry(what, out, now_ns)

    def live_application(self, app_id: str) -> Application | None:
        """The application that now answers to the id."""
        app = self.apps.get(app_id)
        return None if app is None or app.state in APP_TERMINAL else app

    # ---- asks ------------------------------------------------------------------------------------------------------

    def add_ask(self, ask: Ask, out: Outcome) -> None:
        """Takes an ask in; its group is tried at the next cycle unless it is parked already."""
        app, demand = ask.app, ask.demand
        if app.gang is not None:
            self.gangs.keep_heir(ask, out)
        app.asks[demand.key] = ask
        self.add_pending(app, demand.shape.items, ask.pending)
        self.index.seen(demand.shape, ask.pending)
        out.touch(ask, self.name)
        if demand.created_ns < app.submitted_ns:
            app.submitted_ns = demand.created_ns
            self.waiting.rekey(app)
            self.waiting.refresh_app(app)
            out.touch(app, self.name)
        if demand.placeholder:
            self.gangs.pend(ask, ask.pending)
        # (Else placeholders are leaving for an earlier ask with its key, which makes room for it.)
        if app.gang is None or ask.open > 0:
            self.enter_group(ask)

    def enter_group(self, ask: Ask) -> None:
        """The ask is to be tried: ready, or parked with those that are alike."""
        app, demand = ask.app, ask.demand
        group = self.group_of(ask)
        group.push(ask)
        if self.telling.wanted:
            self.telling.entered(ask, group)
        ready = group.ready_key
        if ready is not None and (demand.created_ns, demand.submission) > ready[1:]:
            return  # behind others of its group, which are tried first
        if group.parked_key is not None:
            if group.head() is ask:
                self.waiting.next_in_line(group)
            else:
                self.waiting.parked[group] = None
            return
        waitlist = app.queue.waitlists.get(group.wait_key)
        held = waitlist is not None and waitlist.holds and app.waiting_at is None
        gang = app.gang
        if gang is not None and (gang.waits_for_room or gang.holds(group) or gang.gives_way_to(group)):
            held = False  # it waits for room for all of it, or for placeholders: not for what the others wait for
        if waitlist is not None and held and ready is None:
            self.waiting.join(group, waitlist)
        else:
            self.waiting.make_ready(group)

    def group_of(self, ask: Ask) -> AskGroup:
        """The group that the ask belongs to; a new one when there is none."""
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
                app.gang.take(group)
        return group

    def remove_ask(self, ask: Ask, out: Outcome, now_ns: int, detail: Detail | None) -> None:
        """Takes an ask out; ``detail`` None: without an event (it was replaced)."""
        app = ask.app
        if ask.pending:
            self.add_pending(app, ask.shape.items, -ask.pending)
            self.index.seen(ask.shape, -ask.pending)
            if ask.demand.placeholder:
                self.gangs.pend(ask, -ask.pending)
                self.gangs.count_gone_ask(ask, ask.pending, detail)
                out.touch(app, self.name)
            ask.pending = 0
        if detail is not None:
            out.track(EventType.APP, Change.REMOVE, detail, app.app_id, ask.key, ask.shape, now_ns=now_ns)
        self.drop_ask(ask, out, now_ns)
        self.waiting.refresh_app(app)

    def time_out_ask(self, ask: Ask, message: str, detail: Detail, out: Outcome, now_ns: int) -> None:
        """Takes an ask out because its time is up, and says so to the RM."""
        previous = ask.demand.previous_generation
        out.facts.append(ReleasedAsk(self.name, ask.app.app_id, ask.key, Termination.TIMEOUT, message, previous))
        self.remove_ask(ask, out, now_ns, detail)

    def drop_ask(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """The ask has nothing pending any more: out of its group and its application."""
        asks, key = ask.app.asks, ask.demand.key
        ask.gone = True
        if self.questions.concern_somebody or ask.refusals is not None:
            self.questions.ask_gone(ask, out)
        if ask.reserved is not None:
            self.unreserve(ask, out, now_ns)
        if asks.get(key) is ask:
            del asks[key]
        out.touch(ask, self.name)
        if ask.group is not None:
            self.leave_group(ask, out)

    def leave_group(self, ask: Ask, out: Outcome | None) -> None:
        """The ask is not to be tried (any more, or for now); ``out`` None: states are being folded, nobody waits."""
        app, group = ask.app, ask.group
        assert group is not None, f"{ask} is in no group"
        group.pull(ask)
        if not group.asks:
            del app.groups[group.key]
            if app.gang is not None:
                app.gang.drop(group)
        if out is None:
            return
        if group.asks:
            if group.ready_key is not None:
                self.waiting.place_ready(group)
                self.waiting.later_now(group)
            else:
                self.waiting.next_in_line(group)
            return
        if group.parked_key is not None:
            self.waiting.leave_list(group, out)
        else:
            self.waiting.unready(group)
            self.waiting.wake_next(group)

    def add_pending(self, app: Application, items: tuple[tuple[int, int], ...], count: int) -> None:
        """Adds ``count`` times the items to what is pending, from the application up to root."""
        own, ancestry = app.pending, app.queue.ancestry
        for number, value in items:
            step = value * count
            own[number] += step
            for queue in ancestry:
                queue.pending[number] += step

    # ---- allocations -----------------------------------------------------------------------------------------------

    def hold(self, allocation: Allocation, node: Node | None) -> None:
        """Books an allocation everywhere where it counts."""
        items = allocation.shape.items
        app = allocation.app
        self.allocations_count += 1
        self.version += 1
        if allocation.foreign or app is None:
            self.foreign[allocation.foreign_id] = allocation
            if node is not None:
                node.foreign[allocation.foreign_id] = allocation
                add(node.occupied, items)
                self.node_books.node_took(node, items)
            return
        app.book(allocation)
        app.share = None
        if allocation.demand.placeholder:
            self.gangs.book(allocation)
        self.index.seen(allocation.shape, 1)
        for number, value in items:
            app.allocated[number] += value
            for ledger in app.ledgers:
                ledger.allocated[number] += value
        if allocation.preempted is not None:
            self.add_preempting(app.queue, items, 1)
        if node is not None:
            node.allocations[(app.app_id, allocation.unique_key)] = allocation
            add(node.allocated, items)
            self.node_books.node_took(node, items)
        if app.queue.fair_apps:
            self.waiting.rekey(app)

    def unhold(self, allocation: Allocation) -> None:
        """Takes an allocation off the books; what it gave back wakes who waits for it."""
        items = allocation.shape.items
        node = self.nodes.get(allocation.node_id)
        app = allocation.app
        self.allocations_count -= 1
        self.version += 1
        allocation.gone = True
        if allocation.foreign or app is None:
            self.foreign.pop(allocation.foreign_id, None)
            if node is not None and node.foreign.pop(allocation.foreign_id, None) is not None:
                subtract(node.occupied, items)
                self.node_books.node_moved(node)
            return
        app.unbook(allocation)
        app.share = None
        if allocation.demand.placeholder:
            self.gangs.unbook(allocation)
        self.index.seen(allocation.shape, -1)
        for number, value in items:
            app.allocated[number] -= value
            for ledger in app.ledgers:
                ledger.allocated[number] -= value
        if allocation.preempted is not None:
            self.add_preempting(app.queue, items, -1)
        if node is not None:
            del node.allocations[(app.app_id, allocation.unique_key)]
            subtract(node.allocated, items)
            self.node_books.node_moved(node)
        if app.queue.fair_apps:
            self.waiting.rekey(app)
        self.waiting.ledgers_gained(app)
        self.waiting.refresh_app(app)
        self.waiting.refresh(app.queue)

    def add_preempting(self, leaf: Queue, items: tuple[tuple[int, int], ...], sign: int) -> None:
        """Adds the items (``sign`` 1) to what was told to go, from the leaf up to root; or takes them off (-1)."""
        for number, value in items:
            for queue in leaf.ancestry:
                queue.preempting[number] += sign * value

    def tell_new(
        self, allocation: Allocation, out: Outcome, now_ns: int, *, adopted: bool = False, echo: bool = True
    ) -> None:
        """The fact (``echo``) and the events of a new allocation, and the end of its time."""
        if echo:
            out.facts.append(NewAllocation(self.name, allocation, adopted))
        demand = allocation.demand
        if demand.execution_timeout_ms > 0:
            self.end_in_time(allocation)
        app, key, shape = allocation.app, demand.key, demand.shape
        assert app is not None, f"{allocation} is foreign"
        if out.tracking:  # (inlined: the hottest path of all)
            added, node_id = Change.ADD, allocation.node_id
            out.events += (
                Event(EventType.APP, added, Detail.APP_ALLOC, app.app_id, key, shape, "", now_ns),
                Event(EventType.NODE, added, Detail.NODE_ALLOC, node_id, key, shape, "", now_ns),
            )
            usage_events(app, added, shape, out, now_ns)
        if out.requests and not adopted:
            out.tell_people(key, app.app_id, shape, "Successful allocation", now_ns)

    def end_in_time(self, allocation: Allocation) -> None:
        """Puts the end of its execution time on the clock, if the RM said one (seed 001)."""
        timeout_ms = allocation.demand.execution_timeout_ms
        if timeout_ms > 0:
            self.deadlines.append((allocation.allocated_ns + timeout_ms * 1_000_000, allocation))

    # ---- reservations ----------------------------------------------------------------------------------------------

    def reserve(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Keeps the node free for the ask: nobody else is placed there until it is, or gives it up."""
        assert ask.reserved is None, f"{ask} has {ask.reserved} already"
        ask.reserved, ask.reserved_ns = node, now_ns
        node.reservations[ask] = None
        self.node_books.list_node(node)
        out.touch(ask, self.name)
        self._reservation_event(Change.ADD, ask, node, out, now_ns)
        self.questions.tell(ask, SchedulingState.RESERVED, f"Node {node.node_id} is kept free for it.", out)
        if self.config.reservation.timeout_ns:
            self.deadlines.append((now_ns + self.config.reservation.timeout_ns, ask))

    def unreserve(self, ask: Ask, out: Outcome, now_ns: int) -> None:
        """The node is there for all again."""
        node = ask.reserved
        assert node is not None, f"{ask} has no reservation"
        ask.reserved, ask.reserved_ns = None, 0
        del node.reservations[ask]
        self.node_books.list_node(node)
        out.touch(ask, self.name)
        self._reservation_event(Change.REMOVE, ask, node, out, now_ns)
        if not ask.gone and ask.group is not None:
            self.waiting.next_in_line(ask.group)

    def pass_on(self, old: Ask, new: Ask) -> None:
        """An ask that is sent again for the same amount keeps what it came to by waiting."""
        new.told = old.told
        same = old.shape is new.shape and old.demand.required_node == new.demand.required_node
        if not same:
            return
        new.preempts, new.scaled_up, new.mismatched = old.preempts, old.scaled_up, old.mismatched
        node = old.reserved
        if node is not None:
            new.reserved, new.reserved_ns, old.reserved = node, old.reserved_ns, None
            node.reservations = {new if ask is old else ask: None for ask in node.reservations}
            self.deadlines.append((new.reserved_ns + self.config.reservation.timeout_ns, new))

    def _reservation_event(self, change: Change, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        detail = Detail.NODE_RESERVATION
        out.track(EventType.NODE, change, detail, node.node_id, ask.key, ask.shape, now_ns=now_ns)

    # ---- asks and allocations from items ---------------------------------------------------------------------------

    def demand_of(self, item: AskItem, shape: Shape, submission: int, now_ns: int) -> Demand:
        """What the RM said, as a demand. (A placeholder without a task group is an ordinary ask: seed 000.)"""
        return Demand(
            item.key,
            shape,
            item.priority,
            submission,
            _created_ns(item.tags, now_ns),
            item.tags,
            item.task_group,
            item.placeholder and bool(item.task_group),
            item.originator,
            item.allow_preempt_self,
            item.allow_preempt_other,
            item.has_preemption_policy,
            item.execution_timeout_ms,
            item.previous_generation,
            item.tags.get(REQUIRED_NODE_TAG, "") if item.tags else "",
        )

    def allocation_of(
        self, item: AskItem, app: Application | None, shape: Shape, submission: int, now_ns: int
    ) -> Allocation:
        """An Allocation object from what the RM reports."""
        demand = self.demand_of(item, shape, submission, now_ns)
        uuid = item.uuid or (made_uuid(submission, 0, now_ns) if item.previous_generation else "")
        return Allocation(app, demand, item.node_id, now_ns, 0, uuid)


def is_awaited(what: Timed, due_ns: int) -> bool:
    """Whether a deadline still means something; False: its object is gone, or has another one."""
    if what.gone:
        return False
    match what:
        case Application():
            return what.deadline_ns == due_ns or (what.gang is not None and what.gang.deadline_ns == due_ns)
        case Waitlist():
            return what.due_ns == due_ns
        case Ask():
            return what.reserved is not None
        case ExternalEntry():
            return due_of(what) == due_ns
        case Allocation() if not what.told:
            timeout_ms = what.execution_timeout_ms  # (the RM may have changed it meanwhile)
            return timeout_ms > 0 and what.allocated_ns + timeout_ms * 1_000_000 == due_ns
    return True


def _created_ns(tags: Mapping[str, str], now_ns: int) -> int:
    """When it was asked for: the tag creationTime (seconds since the epoch), else now. Garbage is not an error."""
    text = tags.get(CREATION_TIME) or tags.get(K8S_CREATION_TIME_TAG)
    if text and text.isascii() and text.isdigit() and len(text) <= 12:
        return min(int(text) * 1_000_000_000, now_ns)
    return now_ns
