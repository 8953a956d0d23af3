"""One partition: its objects, and everything that changes them except the search (``cycle.py``).

Every change keeps the books: what is allocated and pending on nodes, applications and all queues up to root; and tells
``waiting.py`` what gained, so that those who wait for it are looked at again. All of it is O(changed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster_si.constants import (
    APP_TAG_STATE_AWARE_DISABLE,
    CREATION_TIME,
    K8S_CREATION_TIME_TAG,
    REQUIRED_NODE_TAG,
)

from muster_scheduler.core import ordering, properties, quota, usage
from muster_scheduler.core.claims import Claims
from muster_scheduler.core.commands import AppItem, AskItem, Termination
from muster_scheduler.core.config import RECOVERY_QUEUE, NodeSortPolicy, PartitionConfig, QueueConfig, types_named
from muster_scheduler.core.cycle import Cycle
from muster_scheduler.core.figures import NodeFigures
from muster_scheduler.core.gangs import LEFTOVER_MESSAGE, Gangs, released, replacing_message
from muster_scheduler.core.inquiries import Refusals
from muster_scheduler.core.limits import Limits
from muster_scheduler.core.node_index import NodeIndex
from muster_scheduler.core.node_policies import Fragmentation, node_search
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    AskGroup,
    Demand,
    Node,
    Preempted,
    Queue,
    Waitlist,
    in_order,
)
from muster_scheduler.core.outcome import (
    Change,
    Detail,
    Event,
    EventType,
    NewAllocation,
    Outcome,
    ReleasedAsk,
    SchedulingState,
    UpdatedApplication,
)
from muster_scheduler.core.questions import Questions
from muster_scheduler.core.resources import INT64_MAX, Shape, Types, add, subtract
from muster_scheduler.core.states import (
    APP_TERMINAL,
    COMPLETING_TIMEOUT_NS,
    DYNAMIC_QUEUE_LINGER_NS,
    REMINDER_NS,
    STARTING,
    TERMINATED_TIMEOUT_NS,
    AppEvent,
    AppState,
    GangPhase,
    PlaceholderEvent,
    QueueEvent,
    QueueState,
    next_app_state,
    next_queue_state,
)
from muster_scheduler.core.waiting import Waiting

_APP_DETAILS = {
    AppState.NEW: Detail.APP_NEW,
    AppState.ACCEPTED: Detail.APP_ACCEPTED,
    AppState.RUNNING: Detail.APP_RUNNING,
    AppState.COMPLETING: Detail.APP_COMPLETING,
    AppState.COMPLETED: Detail.APP_COMPLETED,
    AppState.FAILING: Detail.APP_FAILING,
    AppState.FAILED: Detail.APP_FAILED,
    AppState.RESUMING: Detail.APP_RESUMING,
    AppState.EXPIRED: Detail.APP_EXPIRED,
}
# States that an application remembers: one that runs and idles by turns for months must not grow with each turn.
STORY_MAX = 64
# Of rejected applications kept: an RM that is refused again and again must not fill the memory.
REJECTED_MAX = 1000
REMINDER_MESSAGE = "told again: it was not confirmed that the allocation is gone"
_REJECTED_TEXT_MAX, _REJECTED_GROUPS_MAX = 256, 16
# What a deadline can be of.
Timed = Application | Queue | Waitlist | Allocation | Ask | Claims | Questions | Refusals


class Partition:
    """One partition of one RM.

    :ivar searching: False while states are folded, and always in a follower: no order of nodes is kept then.
    :ivar apps: by id; finished ones stay until they expire, under ``<id>-<seconds>`` once their id is used again.
    :ivar rejected: by id, the latest that were not let in, oldest first.
    :ivar foreign: by key: what others hold of the nodes.
    :ivar capacity: sum over all nodes, draining ones too.
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

    def __init__(self, config: PartitionConfig, *, searching: bool = True) -> None:
        self.name = config.name
        self.searching = searching
        self.config = config
        self.types = Types()
        self.nodes: dict[str, Node] = {}
        self.index = NodeIndex()
        self.apps: dict[str, Application] = {}
        self.rejected: dict[str, Application] = {}
        self.queues: dict[str, Queue] = {}
        self.foreign: dict[str, Allocation] = {}
        self.capacity = self.types.vector()
        self.gangs = Gangs(self)
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
        self._weights: list[tuple[int, float]] = []
        self.version = 0
        self.deadlines: list[tuple[int, Timed]] = []
        self.allocations_count = 0
        self.configure(config)
        if searching:
            self.index = self._new_index()

    # ---- queues ----------------------------------------------------------------------------------------------------

    def configure(self, config: PartitionConfig) -> None:
        """Builds the queue tree (a partition's first configuration)."""
        self.types.reserve(types_named(config))
        self.limits.configure(config.root)
        self.take_policies(config)
        self.root = self.build_queue(config.root, None, {})

    def take_policies(self, config: PartitionConfig) -> None:
        """Takes what the configuration says of the partition as a whole."""
        self.config = config
        weights = [(self.types.number(name), weight) for name, weight in config.node_sort_weights.items() if weight > 0]
        self._weights = weights

    def build_queue(self, config: QueueConfig, parent: Queue | None, inherited: Mapping[str, str]) -> Queue:
        """Makes a configured queue and what is below it."""
        leaf = parent is not None and not (config.queues or config.parent)
        queue = Queue(self.types, config.name.lower(), parent, leaf=leaf, managed=True)
        self.configure_queue(queue, config, inherited)
        self.link(queue)
        for child in config.queues:
            self.build_queue(child, queue, properties.inherited(queue.properties))
        return queue

    def configure_queue(self, queue: Queue, config: QueueConfig, inherited: Mapping[str, str]) -> None:
        """Takes what the configuration says of one queue."""
        queue.set_limits(config.guaranteed, config.maximum)
        queue.max_applications = config.max_applications
        queue.submit_acl, queue.admin_acl = config.submit_acl, config.admin_acl
        above = queue.parent.template if queue.parent is not None else None
        queue.template = None if queue.leaf else config.child_template or above
        self.set_properties(queue, {**inherited, **config.properties})

    def set_properties(self, queue: Queue, texts: dict[str, str]) -> None:
        """Takes a queue's properties and what they mean; unknown values mean the default (core-features §2.2)."""
        queue.properties = texts
        queue.policy = policy = properties.policy_of(texts)
        queue.fair_apps = queue.leaf and policy.app_sort.fair
        queue.priority_first = policy.priority_first

    def link(self, queue: Queue) -> None:
        """Puts a new queue into the tree."""
        self.queues[queue.path] = queue
        if queue.parent is not None:
            queue.parent.children[queue.name] = queue
            queue.fair_max[:] = queue.parent.fair_max
            self._own_fair_max(queue)

    def announce_queues(self, out: Outcome, now_ns: int) -> None:
        """The events and objects of a fresh configuration."""
        for queue in self.queues.values():
            self.announce_queue(queue, out, now_ns)

    def announce_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """The events and the object of one new queue."""
        detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
        out.events.append(Event(EventType.QUEUE, Change.ADD, detail, queue.path, now_ns=now_ns))
        for quantities, what in ((queue.maximum, Detail.QUEUE_MAX), (queue.guaranteed, Detail.QUEUE_GUARANTEED)):
            if quantities is not None:
                by_name = queue.by_name(quantities)
                out.events.append(Event(EventType.QUEUE, Change.SET, what, queue.path, resource=by_name, now_ns=now_ns))
        out.touch(queue, self.name)

    def limit_events(
        self,
        queue: Queue,
        guaranteed: Mapping[int, int] | None,
        maximum: Mapping[int, int] | None,
        out: Outcome,
        now_ns: int,
    ) -> None:
        """The events of a queue whose guaranteed and max were these before."""
        for old, new, detail in (
            (guaranteed, queue.guaranteed, Detail.QUEUE_GUARANTEED),
            (maximum, queue.maximum, Detail.QUEUE_MAX),
        ):
            if old != new:
                by_name = queue.by_name(new) or {}
                out.events.append(
                    Event(EventType.QUEUE, Change.SET, detail, queue.path, resource=by_name, now_ns=now_ns)
                )

    def limit_dynamic_queue(
        self,
        queue: Queue,
        guaranteed: Mapping[str, int] | None,
        maximum: Mapping[str, int] | None,
        max_applications: int,
        out: Outcome,
        now_ns: int,
    ) -> None:
        """Sets what an application's tags say of its dynamic queue; None or 0: as it was (core-features §2.9)."""
        before = (queue.guaranteed, queue.maximum)
        most = queue.max_applications
        queue.set_limits(
            guaranteed if guaranteed is not None else queue.by_name(queue.guaranteed),
            maximum if maximum is not None else queue.by_name(queue.maximum),
        )
        queue.max_applications = max_applications or queue.max_applications
        if (queue.guaranteed, queue.maximum, queue.max_applications) == (*before, most):
            return
        if queue.guaranteed != before[0]:
            for app in queue.applications.values():
                app.share = None
                if queue.fair_apps:
                    self.waiting.rekey(app)
                    self.waiting.refresh_app(app)
        self.capacity_moved = True
        self.version += 1
        self.limit_events(queue, *before, out, now_ns)
        self.waiting.stir((queue,))
        out.touch(queue, self.name)

    def create_queue(self, path: str) -> tuple[Queue | None, list[Queue], str]:
        """Makes the missing queues of a path, dynamic, the last a leaf.

        Gives the leaf, the queues that were made (for :meth:`announce_queue`), and ""; or None, nothing, and why not.
        """
        parts = path.split(".")
        queue = self.root
        created: list[Queue] = []
        for depth, part in enumerate(parts[1:], start=1):
            child = queue.children.get(part)
            if child is None:
                if queue.leaf:
                    return None, [], f"creation of queue {path} failed: {queue.path} is a leaf"
                if queue.state is not QueueState.ACTIVE:
                    return None, [], f"creation of queue {path} failed: {queue.path} is {queue.state.lower()}"
                child = Queue(self.types, part, queue, leaf=depth == len(parts) - 1, managed=False)
                self._take_template(child)
                self.link(child)
                created.append(child)
            queue = child
        if not queue.leaf:
            return None, [], f"queue {path} is not a leaf"
        return queue, created, ""

    def _take_template(self, queue: Queue) -> None:
        """A dynamic leaf is made as its parent's template says; a dynamic parent hands the template on (§2.1)."""
        template = queue.parent.template if queue.parent is not None else None
        if not queue.leaf:
            queue.template = template
        elif template is not None and queue.name != RECOVERY_QUEUE:  # which must take whatever comes (§2.2)
            queue.set_limits(template.guaranteed, template.maximum)
            queue.max_applications = template.max_applications
            self.set_properties(queue, dict(template.properties))

    def remove_queue(self, queue: Queue) -> None:
        """Takes an empty queue out of the tree."""
        assert not queue.applications, f"{queue} still has applications"
        assert not queue.children, f"{queue} still has children"
        assert queue.parent is not None, "root stays"
        self.waiting.set_ready(queue, None)
        del self.queues[queue.path], queue.parent.children[queue.name]
        queue.gone = True
        self.types.release(queue.limit, queue.fair_max, queue.allocated, queue.pending, queue.preempting)

    def sweep_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Removes a dynamic or draining queue that is empty, and then its parents for which the same is true."""
        while (
            queue.parent is not None
            and not queue.gone
            and not queue.applications
            and not queue.children
            and (not queue.managed or queue.state is QueueState.DRAINING)
        ):
            self.drop_queue(queue, out, now_ns)
            queue = queue.parent

    def drop_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Takes an empty queue out of the tree, and says so."""
        self.waiting.forget_lists(queue, out)
        self.remove_queue(queue)
        detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
        out.events.append(Event(EventType.QUEUE, Change.REMOVE, detail, queue.path, now_ns=now_ns))
        out.touch(queue, self.name)

    def change_queue_state(self, queue: Queue, event: QueueEvent) -> None:
        """Moves a queue along its table."""
        queue.state = next_queue_state(queue.path, queue.state, event)

    def measure_fair_max(self) -> None:
        """Measures every queue's fair max anew, and puts the ready ones in their new order."""
        for queue in self.queues.values():  # parents come before their children
            above = self.capacity if queue.parent is None else queue.parent.fair_max
            queue.fair_max[:] = above
            self._own_fair_max(queue)
        for queue in self.queues.values():
            if queue.ready_key is not None:
                self.waiting.set_ready(queue, ordering.queue_key(queue))

    def _own_fair_max(self, queue: Queue) -> None:
        for number, value in (queue.maximum or {}).items():
            queue.fair_max[number] = value

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def add_node(self, node: Node, capacity: Mapping[str, int], occupied: Mapping[str, int]) -> None:
        """Takes a new node in."""
        self.nodes[node.node_id] = node
        self._set_vector(node.capacity, capacity)
        node.reported_occupied = dict(occupied)
        add(node.occupied, self.types.items(occupied))
        self._measure(node)
        add(self.capacity, enumerate(node.capacity))
        self.capacity_moved = True
        self.capacity_version += 1
        self.list_node(node)
        self.waiting.node_came(node)

    def list_node(self, node: Node) -> None:
        """Puts the node into the search, or takes it out, as its state says: schedulable, and kept free for nobody."""
        self.version += 1
        if not self.searching:
            return
        self.figures.changed(node)
        listed = node.usable and not node.reservations
        if listed and node.index_key is None:
            self.index.add(node, self.score(node))
        elif not listed and node.index_key is not None:
            self.index.remove(node)
        self.waiting.node_gained(node)

    def reindex(self) -> None:
        """Puts the nodes into the order of another policy."""
        if not self.searching:
            return
        for node in self.nodes.values():
            if node.index_key is not None:
                self.index.remove(node)
        self.index = self._new_index()
        for node in self.nodes.values():
            self.list_node(node)

    def _new_index(self) -> NodeIndex:
        """An empty index of the policy, which knows the work that there is."""
        index = node_search(self.config.node_sort_policy, self.types)
        if isinstance(index, Fragmentation):
            for app in self.apps.values():
                for ask in app.asks.values():
                    index.seen(ask.shape, ask.pending)
                for allocation in app.allocations.values():
                    index.seen(allocation.shape, 1)
        return index

    def set_node_capacity(self, node: Node, capacity: Mapping[str, int]) -> None:
        """Replaces a node's capacity; below what is allocated, the node is over-committed until releases mend it."""
        subtract(self.capacity, enumerate(node.capacity))
        self._set_vector(node.capacity, capacity)
        add(self.capacity, enumerate(node.capacity))
        self.capacity_moved = True
        self.capacity_version += 1
        self._node_moved(node)

    def set_node_occupied(self, node: Node, occupied: Mapping[str, int]) -> None:
        """Replaces what others hold of a node, as the RM reports it."""
        subtract(node.occupied, self.types.items(node.reported_occupied))
        add(node.occupied, self.types.items(occupied))
        node.reported_occupied = dict(occupied)
        self._node_moved(node)

    def set_node_state(self, node: Node, attributes: Mapping[str, str], *, schedulable: bool) -> None:
        """Lets new allocations on the node, or no more: it drains, or its attributes say that it is not ready."""
        was_usable = node.usable
        node.set_attributes(attributes)
        node.schedulable = schedulable
        if node.usable != was_usable:
            self.capacity_version += 1
            self.list_node(node)

    def remove_node(self, node: Node) -> None:
        """Takes a node out; its allocations must be gone before."""
        assert not node.allocations, f"{node} still has allocations"
        assert not node.reservations, f"{node} is still kept free for somebody"
        if node.index_key is not None:
            self.index.remove(node)
        self.version += 1
        self.waiting.node_gone(node)
        self.figures.gone(node)
        subtract(self.capacity, enumerate(node.capacity))
        self.capacity_moved = True
        self.capacity_version += 1
        del self.nodes[node.node_id]
        node.gone = True
        self.types.release(node.capacity, node.occupied, node.allocated, node.available)

    def _set_vector(self, vector: list[int], quantities: Mapping[str, int]) -> None:
        items = self.types.items(quantities)
        for number in range(len(vector)):
            vector[number] = 0
        add(vector, items)

    def _measure(self, node: Node) -> None:
        available, capacity, allocated, occupied = node.available, node.capacity, node.allocated, node.occupied
        for number in range(len(available)):
            available[number] = capacity[number] - allocated[number] - occupied[number]

    def _node_moved(self, node: Node) -> None:
        self._measure(node)
        self.version += 1
        if node.index_key is not None:
            self.index.move(node, self.score(node))
        if self.searching:
            self.figures.changed(node)
            self.waiting.node_gained(node)

    def _node_took(self, node: Node, items: Iterable[tuple[int, int]]) -> None:
        subtract(node.available, items)
        if node.index_key is not None:
            self.index.move(node, self.score(node))
        if self.searching:
            self.figures.changed(node)

    def score(self, node: Node) -> float:
        """The node's place in the search."""
        binpacking = self.config.node_sort_policy is not NodeSortPolicy.FAIR
        return ordering.node_score(node, self._weights, binpacking=binpacking)

    # ---- applications ----------------------------------------------------------------------------------------------

    def add_application(self, app: Application) -> None:
        """Takes an application into its queue."""
        self.apps[app.app_id] = app
        if app.state not in APP_TERMINAL:
            app.queue.applications[app.app_id] = app
            self.limits.join(app)

    def live_application(self, app_id: str) -> Application | None:
        """The application that now answers to the id."""
        app = self.apps.get(app_id)
        return None if app is None or app.state in APP_TERMINAL else app

    def change_state(self, app: Application, event: AppEvent, out: Outcome, now_ns: int, message: str = "") -> None:
        """Moves the application along its table, with everything that follows from it."""
        before = app.state
        app.state = state = next_app_state(f"application {app.app_id}", before, event, tuple(app.story))
        if state is before:
            return
        if state is AppState.RUNNING and not app.started_ns and self.previous_generation:
            self._tell_starting(app, event, out, now_ns)
        app.story.append((now_ns, state))
        if len(app.story) > STORY_MAX:
            del app.story[1]
        app.deadline_ns = 0
        self.recount(app)
        if state is AppState.RUNNING:
            if not app.started_ns:
                app.started_ns = now_ns
            if app.execution_timeout_ms > 0 and app.placeholder_ask is None:  # else it is the placeholders' time-out
                self._set_deadline(app, app.started_ns + app.execution_timeout_ms * 1_000_000)
        if state is AppState.COMPLETING:
            self._set_deadline(app, now_ns + COMPLETING_TIMEOUT_NS)
        elif state in APP_TERMINAL and state is not AppState.EXPIRED:
            app.finished_ns = now_ns
            app.reason = None
            self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
            self._leave_queue(app, out, now_ns)
        out.events.append(
            Event(EventType.APP, Change.SET, _APP_DETAILS[state], app.app_id, message=message, now_ns=now_ns)
        )
        out.facts.append(UpdatedApplication(app.app_id, state, now_ns, message or event))
        out.touch(app, self.name)

    def _tell_starting(self, app: Application, event: AppEvent, out: Outcome, now_ns: int) -> None:
        if app.tags.get(APP_TAG_STATE_AWARE_DISABLE, "").lower() == "true":
            return
        app.story.append((now_ns, STARTING))
        out.events.append(Event(EventType.APP, Change.SET, Detail.APP_STARTING, app.app_id, now_ns=now_ns))
        out.facts.append(UpdatedApplication(app.app_id, STARTING, now_ns, event))

    def recount(self, app: Application) -> None:
        """Whether the application counts against the maxima of applications, as its state and its gang say."""
        counts = counts_as_running(app)
        if counts != app.counted:
            self._count(app, 1 if counts else -1)

    def _count(self, app: Application, step: int) -> None:
        app.counted = step > 0
        if app.counted and app.waiting_at is not None:  # an allocation that the RM reported made it run
            self.waiting.stop_waiting(app)
            self.waiting.refresh_app(app)
        for ledger in app.ledgers:
            ledger.running_applications += step
            self.waiting.wake_app(ledger)

    def _leave_queue(self, app: Application, out: Outcome, now_ns: int) -> None:
        queue = app.queue
        if queue.applications.pop(app.app_id, None) is None:
            return
        if app.waiting_at is not None:
            self.waiting.stop_waiting(app)
        self.waiting.refresh_app(app)
        self.gangs.withdraw(app)
        trackers = app.trackers
        self.limits.leave(app)
        if trackers:
            self.waiting.forget_those_of(queue, trackers, out)
        out.events.append(Event(EventType.APP, Change.REMOVE, Detail.NONE, app.app_id, now_ns=now_ns))
        out.events.append(
            Event(EventType.QUEUE, Change.REMOVE, Detail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        )
        if not queue.applications and (not queue.managed or queue.state is QueueState.DRAINING):
            self.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    def _set_deadline(self, app: Application, deadline_ns: int) -> None:
        app.deadline_ns = min(deadline_ns, INT64_MAX)  # (what the RM says may be centuries)
        self.deadlines.append((app.deadline_ns, app))

    def expire(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The deadline of the application's state has come."""
        app.deadline_ns = 0
        if app.state is AppState.REJECTED:
            self.forget_rejected(app, out)
        elif app.state is AppState.COMPLETING:
            # Placeholders that nobody needed go first; the application is completed when all of them are gone.
            self.gangs.release_unused(app, LEFTOVER_MESSAGE, out, now_ns)
            out.touch(app, self.name)
            self.complete_if_idle(app, out, now_ns)
        elif app.state is AppState.RUNNING:
            over = f"the application's execution time-out of {app.execution_timeout_ms} ms is over"
            self.fail(app, over, out, now_ns)
        elif app.state in APP_TERMINAL:
            if app.state is not AppState.EXPIRED:
                self.change_state(app, AppEvent.EXPIRE, out, now_ns)
            self.forget_application(app)
            out.touch(app, self.name)

    def fail(self, app: Application, message: str, out: Outcome, now_ns: int) -> None:
        """Ends an application: its asks go, its allocations are told to; when all are gone it is Failed."""
        # (In this order: an RM that works off what it is told has ended everything before it hears of the end.)
        for ask in sorted(app.asks.values(), key=lambda ask: ask.submission):
            self.time_out_ask(ask, message, Detail.REQUEST_CANCEL, out, now_ns)
        for allocation in in_order(app.allocations.values()):
            self.time_out(allocation, message, out, now_ns)
        self.change_state(app, AppEvent.FAIL, out, now_ns, message)
        self.complete_if_idle(app, out, now_ns)

    def time_out(self, allocation: Allocation, message: str, out: Outcome, now_ns: int) -> None:
        """Tells an allocation to go because its time is up. It counts until the RM confirms that it went."""
        if allocation.told or allocation.gone:
            return
        if allocation.demand.placeholder:
            self.gangs.tell(allocation, PlaceholderEvent.TIME_OUT)
        allocation.timed_out = True
        self.told(allocation, out, now_ns)
        out.facts.append(released(self, allocation, Termination.TIMEOUT, message))

    def told(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """An allocation was told to go: it is no victim any more, and will be reminded."""
        allocation.told_ns = now_ns
        self.version += 1
        self.remind_at(allocation, now_ns)
        out.touch(allocation, self.name)

    def remind(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """The RM has not confirmed that an allocation is gone: it may not have heard, or its answer was lost."""
        termination, message = Termination.TIMEOUT, REMINDER_MESSAGE
        if allocation.preempted is not None:
            termination = Termination.PREEMPTED_BY_SCHEDULER
        elif allocation.replaced_by is not None:
            termination = Termination.PLACEHOLDER_REPLACED
            if allocation.replaced_by:
                message = f"{replacing_message(allocation.replaced_by)} ({REMINDER_MESSAGE})"
        out.facts.append(released(self, allocation, termination, message)._replace(reminder=True))
        self.remind_at(allocation, now_ns)

    def remind_at(self, allocation: Allocation, now_ns: int) -> None:
        """At the next whole multiple after it was told: the same after a restart."""
        reminders = max(now_ns - allocation.told_ns, 0) // REMINDER_NS + 1
        allocation.reminder_ns = allocation.told_ns + reminders * REMINDER_NS
        self.deadlines.append((allocation.reminder_ns, allocation))

    def remove_application(self, app: Application, out: Outcome, now_ns: int) -> None:
        """Removes an application with everything under it, at the RM's word."""
        for ask in sorted(app.asks.values(), key=lambda ask: ask.submission):
            self.remove_ask(ask, out, now_ns, Detail.REQUEST_CANCEL)
        for allocation in in_order(app.allocations.values()):
            self.release(
                allocation,
                Termination.STOPPED_BY_RM,
                f"Application {app.app_id} Removed",
                Detail.ALLOC_CANCEL,
                out,
                now_ns,
                completing=False,
            )
        if app.counted:
            self._count(app, -1)
        self._leave_queue(app, out, now_ns)
        self.forget_application(app)
        out.touch(app, self.name)

    def forget_application(self, app: Application) -> None:
        """Drops a finished application."""
        if self.apps.get(app.app_id) is app:
            del self.apps[app.app_id]
        if app.queue.applications.pop(app.app_id, None) is not None:
            self.gangs.withdraw(app)
            self.limits.leave(app)
        app.gone = True
        self.types.release(app.allocated, app.pending)

    @property
    def unfinished(self) -> bool:
        """The last cycle left something that the next one can do at once."""
        return self.deciding and (
            self.waiting.stirred or self.claims.waiting or self.gangs.waiting or bool(self.root.ready)
        )

    def come(self, what: Timed, due_ns: int, out: Outcome, now_ns: int) -> None:
        """A deadline has come; one that was moved meanwhile is passed over."""
        match what:
            case Queue():
                if what.quota_ns and what.quota_ns == due_ns:
                    quota.due(self, what, out, now_ns)
                self.sweep_queue(what, out, now_ns)
            case Application():
                if what.deadline_ns == due_ns:
                    self.expire(what, out, now_ns)
                if what.gang is not None and what.gang.deadline_ns == due_ns:
                    self.gangs.time_out(what, out, now_ns)
            case Waitlist():
                if what.due_ns == due_ns:
                    self.claims.come(what)
            case Allocation() if what.told:
                if due_ns == what.reminder_ns:
                    self.remind(what, out, now_ns)
            case Allocation() if is_awaited(what, due_ns):
                over = f"the execution time-out of {what.execution_timeout_ms} ms is over"
                self.time_out(what, over, out, now_ns)
            case Ask():
                self.claims.reservation_timed_out(what, out, now_ns)
            case Questions():
                what.come(out, now_ns)
            case Refusals():
                what.armed = False
                self.questions.retry(what, out, now_ns)

    # ---- applications that were not let in -------------------------------------------------------------------------

    def keep_rejected(self, item: AppItem, reason: str, submission: int, out: Outcome, now_ns: int) -> None:
        """Remembers an application that was refused, for those who look for it; the same id again replaces it."""
        app = Application(self.types, item.app_id, self.root, submission, now_ns)
        self.types.release(app.allocated, app.pending)
        # As much as tells which one it was: what is refused may be refused for its size.
        app.requested_queue, app.user = item.queue[:_REJECTED_TEXT_MAX], item.user[:_REJECTED_TEXT_MAX]
        app.groups_of_user = tuple(group[:_REJECTED_TEXT_MAX] for group in item.groups[:_REJECTED_GROUPS_MAX])
        app.rejected_message = reason
        app.story = [(now_ns, AppState.NEW)]
        app.state = next_app_state(f"application {app.app_id}", app.state, AppEvent.REJECT, tuple(app.story))
        app.story.append((now_ns, app.state))
        app.finished_ns = now_ns
        self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
        old = self.rejected.pop(app.app_id, None)
        if old is not None:
            app.published, old.published, old.gone = old.published, False, True
        self.rejected[app.app_id] = app
        out.touch(app, self.name)
        while len(self.rejected) > REJECTED_MAX:
            self.forget_rejected(next(iter(self.rejected.values())), out)

    def forget_rejected(self, app: Application, out: Outcome) -> None:
        """Nobody looks for it any more."""
        del self.rejected[app.app_id]
        app.gone = True
        out.touch(app, self.name)

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
            out.events.append(
                Event(EventType.APP, Change.REMOVE, detail, app.app_id, ask.key, ask.shape, now_ns=now_ns)
            )
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
            self.foreign[allocation.key] = allocation
            if node is not None:
                node.foreign[allocation.key] = allocation
                add(node.occupied, items)
                self._node_took(node, items)
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
            self._add_preempting(app.queue, items, 1)
        if node is not None:
            node.allocations[(app.app_id, allocation.unique_key)] = allocation
            add(node.allocated, items)
            self._node_took(node, items)
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
            self.foreign.pop(allocation.key, None)
            if node is not None and node.foreign.pop(allocation.key, None) is not None:
                subtract(node.occupied, items)
                self._node_moved(node)
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
            self._add_preempting(app.queue, items, -1)
        if node is not None:
            del node.allocations[(app.app_id, allocation.unique_key)]
            subtract(node.allocated, items)
            self._node_moved(node)
        if app.queue.fair_apps:
            self.waiting.rekey(app)
        self.waiting.ledgers_gained(app)
        self.waiting.refresh_app(app)
        self.waiting.refresh(app.queue)

    def release(
        self,
        allocation: Allocation,
        termination: Termination,
        message: str,
        detail: Detail,
        out: Outcome,
        now_ns: int,
        *,
        tell: bool = True,
        completing: bool = True,
    ) -> None:
        """Ends an allocation and says so to the RM (``tell``) and in the events."""
        self._account(allocation, out, now_ns)
        self.unhold(allocation)
        out.touch(allocation, self.name)
        if tell:
            out.facts.append(released(self, allocation, termination, message))
        if allocation.foreign:
            self._occupied_event(allocation.node_id, out, now_ns)
            return
        self._tell_gone(allocation, detail, out, now_ns)
        app = allocation.app
        if app is None:
            return
        if allocation.demand.placeholder:
            self.gangs.count_gone(allocation, detail)
            out.touch(app, self.name)
        for queue in app.queue.ancestry:
            if queue.quota_ns:
                quota.usage_changed(self, app.queue, (), out, now_ns)
                break
        if completing:
            self.complete_if_idle(app, out, now_ns)

    def _account(self, ended: Allocation, out: Outcome, now_ns: int) -> None:
        app = ended.app
        if app is not None and usage.account(app.usage, ended, self.nodes.get(ended.node_id), now_ns):
            out.touch(app, self.name)

    # ---- reservations and preemption -------------------------------------------------------------------------------

    def reserve(self, ask: Ask, node: Node, out: Outcome, now_ns: int) -> None:
        """Keeps the node free for the ask: nobody else is placed there until it is, or gives it up."""
        assert ask.reserved is None, f"{ask} has {ask.reserved} already"
        ask.reserved, ask.reserved_ns = node, now_ns
        node.reservations[ask] = None
        self.list_node(node)
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
        self.list_node(node)
        out.touch(ask, self.name)
        self._reservation_event(Change.REMOVE, ask, node, out, now_ns)
        if not ask.gone and ask.group is not None:
            self.waiting.next_in_line(ask.group)

    def pass_on(self, old: Ask, new: Ask) -> None:
        """An ask that is sent again for the same amount keeps what it came to by waiting."""
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
        out.events.append(Event(EventType.NODE, change, detail, node.node_id, ask.key, ask.shape, "", now_ns))

    def preempt(self, allocation: Allocation, why: Preempted, message: str, out: Outcome, now_ns: int) -> None:
        """Tells an allocation to go. It counts until the RM confirms that it went."""
        app = allocation.app
        assert app is not None, f"{allocation} is foreign"
        assert not allocation.told, f"{allocation} was told to go already"
        if allocation.demand.placeholder:
            self.gangs.tell(allocation, PlaceholderEvent.PREEMPT)
        allocation.preempted = why
        self._add_preempting(app.queue, allocation.shape.items, 1)
        self.told(allocation, out, now_ns)
        self.gangs.preempted(app, out)
        out.facts.append(released(self, allocation, Termination.PREEMPTED_BY_SCHEDULER, message))
        _tell_people(allocation, message, out, now_ns)

    def _add_preempting(self, leaf: Queue, items: tuple[tuple[int, int], ...], sign: int) -> None:
        for number, value in items:
            for queue in leaf.ancestry:
                queue.preempting[number] += sign * value

    def give_back(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Takes an allocation off the books because the RM changed its size or its node; the new one follows."""
        self._account(allocation, out, now_ns)
        self.unhold(allocation)
        if allocation.foreign:
            self._occupied_event(allocation.node_id, out, now_ns)
        else:
            if allocation.demand.placeholder and allocation.app is not None:
                self.gangs.ask_more(allocation.demand, allocation.app, -1)
                out.touch(allocation.app, self.name)
            self._tell_gone(allocation, Detail.ALLOC_REPLACED, out, now_ns)

    def _tell_gone(self, allocation: Allocation, detail: Detail, out: Outcome, now_ns: int) -> None:
        app_id, key, shape = allocation.app_id, allocation.key, allocation.shape
        by = (
            f"replaced by {allocation.replaced_by}"
            if allocation.replaced_by and detail is Detail.ALLOC_REPLACED
            else ""
        )
        out.events.append(Event(EventType.APP, Change.REMOVE, detail, app_id, key, shape, by, now_ns))
        out.events.append(
            Event(EventType.NODE, Change.REMOVE, Detail.NODE_ALLOC, allocation.node_id, key, shape, now_ns=now_ns)
        )

    def change(
        self,
        held: Allocation,
        demand: Demand,
        node_id: str,
        uuid: str,
        out: Outcome,
        now_ns: int,
        *,
        echo: bool,
    ) -> Allocation:
        """The RM says otherwise of an allocation that there is: of its size, its node, its priority, its tags.

        No limit is asked, and it may become larger than its node. What was told to go stays told.

        :param echo: the RM reported the allocation, and is answered with it; else it sent its ask again.
        """
        demand.changed_ns = held.demand.changed_ns
        moved, sized = node_id != held.node_id, demand.shape is not held.shape
        role = (demand.task_group, demand.placeholder) == (held.task_group, held.placeholder)
        if role and not moved and not sized and uuid in ("", held.uuid):
            if not demand.same_as(held.demand):
                held.demand = demand
                self.version += 1
                self._end_in_time(held)
                out.touch(held, self.name)
            if echo:
                out.facts.append(NewAllocation(self.name, held, adopted=True))
            return held
        if sized and not moved:
            demand.changed_ns = now_ns
        new = Allocation(
            held.app, demand, node_id, now_ns if moved else held.allocated_ns, held.ordinal, uuid or held.uuid
        )
        new.preempted, new.timed_out, new.replaces = held.preempted, held.timed_out, held.replaces
        if demand.placeholder:  # else it is no placeholder any more, and nobody takes its place
            new.replaced_by = held.replaced_by if self.gangs.still_does(new, held.replaced_by) else ""
        self.give_back(held, out, now_ns)
        new.published, held.published = held.published, False  # the same record
        if new.told:
            new.told_ns, new.reminder_ns = held.told_ns, held.reminder_ns
            self.deadlines.append((new.reminder_ns, new))
        self.adopt(new, out, now_ns, echo=echo)
        return new

    def adopt(self, allocation: Allocation, out: Outcome, now_ns: int, *, echo: bool = True) -> None:
        """Takes an allocation that the RM reports, without asking any limit, and echoes it (core-features §2.9)."""
        node = self.nodes[allocation.node_id]
        self.hold(allocation, node)
        out.touch(allocation, self.name)
        if allocation.foreign:
            self._occupied_event(node.node_id, out, now_ns)
            out.facts.append(NewAllocation(self.name, allocation, adopted=True))
            return
        app = allocation.app
        assert app is not None
        self.waiting.refresh_app(app)  # (a group of it that was woken may be on its list again)
        self.waiting.refresh(app.queue)
        if allocation.demand.placeholder:
            self.gangs.ask_more(allocation.demand, app, 1)
            out.touch(app, self.name)
            self.gangs.placed(allocation, out, now_ns)
        else:
            self.started(app, out, now_ns)
        self.tell_new(allocation, out, now_ns, adopted=True, echo=echo)
        self._tell_excess(allocation, node, out, now_ns)
        quota.usage_changed(self, app.queue, allocation.shape.items, out, now_ns)

    def _tell_excess(self, allocation: Allocation, node: Node, out: Outcome, now_ns: int) -> None:
        """What the RM reports is taken in whatever the limits say; where it goes over one, people are told."""
        app, names = allocation.app, self.types.names
        assert app is not None, f"{allocation} is foreign"
        found = [
            f"node {node.node_id} has {-node.available[number]} {names[number]} less than it holds"
            for number, _ in allocation.shape.items
            if node.available[number] < 0
        ]
        found += [
            f"{ledger.who or 'queue'} in {ledger.path} has {ledger.allocated[number]} of {ledger.limit[number]} "
            f"{names[number]}"
            for ledger in app.bounds
            for number, _ in allocation.shape.items
            if ledger.allocated[number] > ledger.limit[number]
        ]
        if found:
            message = f"taken in as the resource manager reports it: {'; '.join(found)}"
            _tell_people(allocation, message, out, now_ns)

    def _occupied_event(self, node_id: str, out: Outcome, now_ns: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            absolute = self.types.quantities(node.occupied)
            out.events.append(
                Event(EventType.NODE, Change.SET, Detail.NODE_OCCUPIED, node_id, resource=absolute, now_ns=now_ns)
            )

    def _end_in_time(self, allocation: Allocation) -> None:
        """Puts the end of its execution time on the clock, if the RM said one (seed 001)."""
        timeout_ms = allocation.demand.execution_timeout_ms
        if timeout_ms > 0:
            self.deadlines.append((allocation.allocated_ns + timeout_ms * 1_000_000, allocation))

    def tell_new(
        self, allocation: Allocation, out: Outcome, now_ns: int, *, adopted: bool = False, echo: bool = True
    ) -> None:
        """The fact (``echo``) and the events of a new allocation, and the end of its time."""
        if echo:
            out.facts.append(NewAllocation(self.name, allocation, adopted))
        demand = allocation.demand
        if demand.execution_timeout_ms > 0:
            self._end_in_time(allocation)
        app_id, key, shape = allocation.app_id, demand.key, demand.shape
        out.events.append(Event(EventType.APP, Change.ADD, Detail.APP_ALLOC, app_id, key, shape, "", now_ns))
        out.events.append(
            Event(EventType.NODE, Change.ADD, Detail.NODE_ALLOC, allocation.node_id, key, shape, "", now_ns)
        )

    def started(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The application has its first real allocation (or has one again)."""
        self.gangs.real_placed(app, out)
        if app.state in (AppState.NEW, AppState.RESUMING):
            self.change_state(app, AppEvent.RUN, out, now_ns)
        if app.state in (AppState.ACCEPTED, AppState.COMPLETING):
            self.change_state(app, AppEvent.RUN, out, now_ns)

    def complete_if_idle(self, app: Application, out: Outcome, now_ns: int) -> None:
        """An application without asks and real allocations begins to complete; one that is ending may have ended.

        Placeholders are not what an application runs (seed 003, "Application completion"). But while its gang is still
        to be used, they are what it waits with.
        """
        gang = app.gang
        placeholders = gang.held if gang is not None else 0
        if app.state is AppState.RESUMING and not placeholders:
            self.change_state(app, AppEvent.RUN, out, now_ns)
        if app.asks or len(app.allocations) > placeholders:
            return
        if app.state is AppState.FAILING:
            if not placeholders:
                self.change_state(app, AppEvent.FAIL, out, now_ns)
        elif app.state is AppState.COMPLETING:
            if not placeholders and not app.deadline_ns:  # its time was up before
                self.change_state(app, AppEvent.COMPLETE, out, now_ns)
        elif app.state in (AppState.ACCEPTED, AppState.RUNNING) and (
            not placeholders or (gang is not None and gang.phase is GangPhase.USED)
        ):
            self.change_state(app, AppEvent.COMPLETE, out, now_ns)

    def activate(self, now_ns: int, decided_ns: int) -> None:
        """After a fold: orders the nodes, and makes everything ready that has something pending.

        :param decided_ns: the last time that something was decided before.
        """
        self.searching = True
        self.capacity_moved = True
        self.capacity_version += 1
        self.index = self._new_index()
        for node in self.nodes.values():
            self.list_node(node)
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
                    self.remind_at(allocation, decided_ns)
                self._end_in_time(allocation)
        for queue in self.queues.values():
            self.waiting.resume(queue)
            if queue.quota_ns:
                self.deadlines.append((queue.quota_ns, queue))
            for waitlist in queue.waitlists.values():
                waitlist.seen_ns = decided_ns
            going = not queue.managed or queue.state is QueueState.DRAINING
            if going and not queue.applications and not queue.children:
                self.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

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
        uuid = item.uuid or (f"{submission:x}-0" if item.previous_generation else "")
        return Allocation(app, demand, item.node_id, now_ns, 0, uuid)


def counts_as_running(app: Application) -> bool:
    """Whether the application counts against the maxima of applications: it runs, or its gang forms."""
    if app.state is AppState.ACCEPTED:  # (the RM may be asked about its first allocation)
        return app.proposed > 0 or (app.gang is not None and app.gang.counts_as_running)
    if app.state is AppState.RESUMING:
        return app.proposed > 0
    return app.state is AppState.RUNNING


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
        case Allocation() if not what.told:
            timeout_ms = what.execution_timeout_ms  # (the RM may have changed it meanwhile)
            return timeout_ms > 0 and what.allocated_ns + timeout_ms * 1_000_000 == due_ns
    return True


def _tell_people(allocation: Allocation, message: str, out: Outcome, now_ns: int) -> None:
    """An event about the request, which changes nothing."""
    key, app_id, shape = allocation.key, allocation.app_id, allocation.shape
    out.events.append(Event(EventType.REQUEST, Change.NONE, Detail.NONE, key, app_id, shape, message, now_ns))


def _created_ns(tags: Mapping[str, str], now_ns: int) -> int:
    """When it was asked for: the tag creationTime (seconds since the epoch), else now. Garbage is not an error."""
    text = tags.get(CREATION_TIME) or tags.get(K8S_CREATION_TIME_TAG)
    if text and text.isascii() and text.isdigit() and len(text) <= 12:
        return min(int(text) * 1_000_000_000, now_ns)
    return now_ns
