"""One partition: its objects, and everything that changes them except the search (``cycle.py``).

Every change keeps the books: what is allocated and pending on nodes, applications and all queues up to root; and tells
``waiting.py`` what gained, so that those who wait for it are looked at again. All of it is O(changed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster_scheduler.core import ordering
from muster_scheduler.core.commands import AskItem, Termination
from muster_scheduler.core.config import PartitionConfig, QueueConfig
from muster_scheduler.core.cycle import Cycle
from muster_scheduler.core.node_index import NodeIndex
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    AskGroup,
    Node,
    Queue,
    in_order,
)
from muster_scheduler.core.outcome import (
    Change,
    Detail,
    Event,
    EventType,
    NewAllocation,
    Outcome,
    ReleasedAllocation,
    UpdatedApplication,
)
from muster_scheduler.core.resources import Shape, Types, add, subtract
from muster_scheduler.core.states import (
    APP_TERMINAL,
    COMPLETING_TIMEOUT_NS,
    TERMINATED_TIMEOUT_NS,
    AppEvent,
    AppState,
    QueueState,
    next_app_state,
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
# How long a dynamic queue stays when its last application is gone (the real core's cleaner runs every 10 s).
DYNAMIC_QUEUE_LINGER_NS = 10 * 1_000_000_000


class Partition:
    """One partition of one RM.

    :ivar searching: False while states are folded, and always in a follower: no order of nodes is kept then.
    :ivar apps: by id; finished ones stay until they expire, under ``<id>-<seconds>`` once their id is used again.
    :ivar foreign: by key: what others hold of the nodes.
    :ivar capacity: sum over all nodes, draining ones too.
    :ivar waiting: who is ready, parked or to be woken.
    :ivar cycle: the search.
    :ivar deciding: False: the RM is stopped, nothing is decided for it.
    :ivar capacity_moved: the sum changed since shares were last measured.
    :ivar capacity_version: grows with each change of which nodes are in the search, and of their capacities.
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
        self.queues: dict[str, Queue] = {}
        self.foreign: dict[str, Allocation] = {}
        self.capacity = self.types.vector()
        self.waiting = Waiting(config.name)
        self.cycle = Cycle(self)
        self.deciding = True
        self.capacity_moved = True
        self.capacity_version = 0
        self._weights: list[tuple[int, float]] = []
        self.deadlines: list[tuple[int, Application | Queue]] = []
        self.allocations_count = 0
        self.configure(config)

    # ---- queues ----------------------------------------------------------------------------------------------------

    def configure(self, config: PartitionConfig) -> None:
        """Builds the queue tree (a partition's first configuration)."""
        self.config = config
        weights = [(self.types.number(name), weight) for name, weight in config.node_sort_weights.items() if weight > 0]
        self._weights = weights
        self.root = self._build_queue(config.root, None, {})

    def _build_queue(self, config: QueueConfig, parent: Queue | None, inherited: Mapping[str, str]) -> Queue:
        leaf = parent is not None and not (config.queues or config.parent)
        queue = Queue(self.types, config.name.lower(), parent, leaf=leaf, managed=True)
        queue.set_limits(config.guaranteed, config.maximum)
        queue.max_applications = config.max_applications
        queue.submit_acl, queue.admin_acl = config.submit_acl, config.admin_acl
        self.set_properties(queue, {**inherited, **config.properties})
        self.link(queue)
        for child in config.queues:
            self._build_queue(child, queue, _inheritable(queue.properties))
        return queue

    def set_properties(self, queue: Queue, properties: dict[str, str]) -> None:
        """Takes a queue's properties and what they mean; unknown values mean the default (core-features §2.2)."""
        queue.properties = properties
        queue.fair_apps = queue.leaf and properties.get("application.sort.policy") == "fair"
        queue.priority_first = properties.get("application.sort.priority") != "disabled"

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
                self.set_properties(child, {})
                self.link(child)
                created.append(child)
            queue = child
        if not queue.leaf:
            return None, [], f"queue {path} is not a leaf"
        return queue, created, ""

    def remove_queue(self, queue: Queue) -> None:
        """Takes an empty queue out of the tree."""
        assert not queue.applications, f"{queue} still has applications"
        assert not queue.children, f"{queue} still has children"
        assert queue.parent is not None, "root stays"
        self.waiting.set_ready(queue, None)
        del self.queues[queue.path], queue.parent.children[queue.name]
        queue.gone = True
        self.types.release(queue.limit, queue.fair_max, queue.allocated, queue.pending)

    def sweep_queue(self, queue: Queue, out: Outcome, now_ns: int) -> None:
        """Removes a dynamic or draining queue that is empty, and then its parents for which the same is true."""
        while (
            queue.parent is not None
            and not queue.gone
            and not queue.applications
            and not queue.children
            and (not queue.managed or queue.state is QueueState.DRAINING)
        ):
            self.waiting.forget_lists(queue, out)
            self.remove_queue(queue)
            detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
            out.events.append(Event(EventType.QUEUE, Change.REMOVE, detail, queue.path, now_ns=now_ns))
            out.touch(queue, self.name)
            queue = queue.parent

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
        if node.schedulable and self.searching:
            self.index.add(node, self.score(node))
            self.waiting.node_gained(node)

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

    def set_node_schedulable(self, node: Node, *, schedulable: bool) -> None:
        """Lets new allocations on the node, or no more."""
        if node.schedulable == schedulable:
            return
        node.schedulable = schedulable
        self.capacity_version += 1
        if not self.searching:
            return
        if schedulable:
            self.index.add(node, self.score(node))
            self.waiting.node_gained(node)
        else:
            self.index.remove(node)

    def remove_node(self, node: Node) -> None:
        """Takes a node out; its allocations must be gone before."""
        assert not node.allocations, f"{node} still has allocations"
        if node.index_key is not None:
            self.index.remove(node)
        self.waiting.node_gone(node)
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
        if node.index_key is not None:
            self.index.move(node, self.score(node))
            self.waiting.node_gained(node)

    def _node_took(self, node: Node, items: Iterable[tuple[int, int]]) -> None:
        subtract(node.available, items)
        if node.index_key is not None:
            self.index.move(node, self.score(node))

    def score(self, node: Node) -> float:
        """The node's place in the search."""
        return ordering.node_score(node, self._weights, binpacking=self.config.node_sort_policy == "binpacking")

    # ---- applications ----------------------------------------------------------------------------------------------

    def add_application(self, app: Application) -> None:
        """Takes an application into its queue."""
        self.apps[app.app_id] = app
        if app.state not in APP_TERMINAL:
            app.queue.applications[app.app_id] = app

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
        app.story.append((now_ns, state))
        if len(app.story) > STORY_MAX:
            del app.story[1]
        app.deadline_ns = 0
        if state is AppState.RUNNING:
            if not app.started_ns:
                app.started_ns = now_ns
            self._count(app, 1)
        elif before is AppState.RUNNING:
            self._count(app, -1)
        if state is AppState.COMPLETING:
            self._set_deadline(app, now_ns + COMPLETING_TIMEOUT_NS)
        elif state in APP_TERMINAL and state is not AppState.EXPIRED:
            app.finished_ns = now_ns
            self._set_deadline(app, now_ns + TERMINATED_TIMEOUT_NS)
            self._leave_queue(app, out, now_ns)
        out.events.append(
            Event(EventType.APP, Change.SET, _APP_DETAILS[state], app.app_id, message=message, now_ns=now_ns)
        )
        out.facts.append(UpdatedApplication(app.app_id, state, now_ns, message or event))
        out.touch(app, self.name)

    def _count(self, app: Application, step: int) -> None:
        app.counted = step > 0
        if app.counted and app.waiting_at is not None:  # an allocation that the RM reported made it run
            self.waiting.stop_waiting(app)
            self.waiting.refresh_app(app)
        for queue in app.queue.ancestry:
            queue.running_applications += step
            self.waiting.wake_app(queue)

    def _leave_queue(self, app: Application, out: Outcome, now_ns: int) -> None:
        queue = app.queue
        if queue.applications.pop(app.app_id, None) is None:
            return
        if app.waiting_at is not None:
            self.waiting.stop_waiting(app)
        self.waiting.refresh_app(app)
        out.events.append(Event(EventType.APP, Change.REMOVE, Detail.NONE, app.app_id, now_ns=now_ns))
        out.events.append(
            Event(EventType.QUEUE, Change.REMOVE, Detail.QUEUE_APP, queue.path, app.app_id, now_ns=now_ns)
        )
        if not queue.applications and (not queue.managed or queue.state is QueueState.DRAINING):
            self.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    def _set_deadline(self, app: Application, deadline_ns: int) -> None:
        app.deadline_ns = deadline_ns
        self.deadlines.append((deadline_ns, app))

    def expire(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The deadline of the application's state has come."""
        app.deadline_ns = 0
        if app.state is AppState.COMPLETING:
            self.change_state(app, AppEvent.COMPLETE, out, now_ns)
        elif app.state in APP_TERMINAL:
            if app.state is not AppState.EXPIRED:
                self.change_state(app, AppEvent.EXPIRE, out, now_ns)
            self.forget_application(app)
            out.touch(app, self.name)

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
        if app.state is AppState.RUNNING:
            self._count(app, -1)
        self._leave_queue(app, out, now_ns)
        self.forget_application(app)
        out.touch(app, self.name)

    def forget_application(self, app: Application) -> None:
        """Drops a finished application."""
        if self.apps.get(app.app_id) is app:
            del self.apps[app.app_id]
        app.queue.applications.pop(app.app_id, None)
        app.gone = True
        self.types.release(app.allocated, app.pending)

    # ---- asks ------------------------------------------------------------------------------------------------------

    def add_ask(self, ask: Ask) -> None:
        """Takes an ask into its group; the group is tried at the next cycle unless it is parked already."""
        app = ask.app
        app.asks[ask.key] = ask
        items = ask.shape.items
        self.add_pending(app, items, ask.pending)
        key = (ask.shape, ask.priority)
        group = app.groups.get(key)
        if group is None:
            app.groups[key] = group = AskGroup(app, ask.shape, ask.priority)
        group.push(ask)
        if ask.created_ns < app.submitted_ns:
            app.submitted_ns = ask.created_ns
            self.waiting.rekey_parked(app)
            self.waiting.refresh_app(app)
        if group.parked_key is not None:
            return
        waitlist = app.queue.waitlists.get(ask.shape)
        held = waitlist is not None and waitlist.place is not None and app.waiting_at is None
        if waitlist is not None and held and group.ready_key is None:
            waitlist.park(group, self.waiting.wait_key(group))  # what holds the others of its shape holds it too
        else:
            self.waiting.make_ready(group)

    def remove_ask(self, ask: Ask, out: Outcome, now_ns: int, detail: Detail | None) -> None:
        """Takes an ask out; ``detail`` None: without an event (it was replaced)."""
        app = ask.app
        if ask.pending:
            self.add_pending(app, ask.shape.items, -ask.pending)
            ask.pending = 0
        if detail is not None:
            out.events.append(
                Event(EventType.APP, Change.REMOVE, detail, app.app_id, ask.key, ask.shape, now_ns=now_ns)
            )
        self.drop_ask(ask, out)
        self.waiting.refresh_app(app)

    def drop_ask(self, ask: Ask, out: Outcome) -> None:
        """The ask has nothing pending any more: out of its group and its application."""
        app, group = ask.app, ask.group
        ask.gone = True
        if app.asks.get(ask.key) is ask:
            del app.asks[ask.key]
        out.touch(ask, self.name)
        if group is None:
            return
        group.pull(ask)
        if group.asks:
            if group.ready_key is not None:
                self.waiting.place_ready(group)
            return
        del app.groups[group.shape, group.priority]
        if group.parked_key is not None:
            waitlist = app.queue.waitlists[group.shape]
            waitlist.unpark(group)
            if not waitlist.groups and waitlist.place is not None:
                self.waiting.forget_list(waitlist, out)
        else:
            self.waiting.unready(group)
            self.waiting.wake_next(app.queue, group.shape)

    def add_pending(self, app: Application, items: tuple[tuple[int, int], ...], count: int) -> None:
        """Adds ``count`` times the items to what is pending, from the application up to root."""
        vectors = [app.pending, *(queue.pending for queue in app.queue.ancestry)]
        for number, value in items:
            step = value * count
            for vector in vectors:
                vector[number] += step

    # ---- allocations -----------------------------------------------------------------------------------------------

    def hold(self, allocation: Allocation, node: Node | None) -> None:
        """Books an allocation everywhere where it counts."""
        items = allocation.shape.items
        app = allocation.app
        self.allocations_count += 1
        if allocation.foreign or app is None:
            self.foreign[allocation.key] = allocation
            if node is not None:
                node.foreign[allocation.key] = allocation
                add(node.occupied, items)
                self._node_took(node, items)
            return
        app.book(allocation)
        for number, value in items:
            app.allocated[number] += value
            for queue in app.queue.ancestry:
                queue.allocated[number] += value
        if node is not None:
            node.allocations[(app.app_id, allocation.unique_key)] = allocation
            add(node.allocated, items)
            self._node_took(node, items)
        if app.queue.fair_apps:
            self.waiting.rekey_parked(app)

    def unhold(self, allocation: Allocation) -> None:
        """Takes an allocation off the books; what it gave back wakes who waits for it."""
        items = allocation.shape.items
        node = self.nodes.get(allocation.node_id)
        app = allocation.app
        self.allocations_count -= 1
        allocation.gone = True
        if allocation.foreign or app is None:
            self.foreign.pop(allocation.key, None)
            if node is not None and node.foreign.pop(allocation.key, None) is not None:
                subtract(node.occupied, items)
                self._node_moved(node)
            return
        app.unbook(allocation)
        for number, value in items:
            app.allocated[number] -= value
            for queue in app.queue.ancestry:
                queue.allocated[number] -= value
        if node is not None:
            del node.allocations[(app.app_id, allocation.unique_key)]
            subtract(node.allocated, items)
            self._node_moved(node)
        if app.queue.fair_apps:
            self.waiting.rekey_parked(app)
        self.waiting.queues_gained(app.queue)
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
        self.unhold(allocation)
        out.touch(allocation, self.name)
        app_id, key = allocation.app_id, allocation.key
        if tell:
            out.facts.append(
                ReleasedAllocation(
                    self.name, app_id, key, allocation.uuid, termination, message, allocation.previous_generation
                )
            )
        if allocation.foreign:
            self._occupied_event(allocation.node_id, out, now_ns)
            return
        self._tell_gone(allocation, detail, out, now_ns)
        if completing and allocation.app is not None:
            self.complete_if_idle(allocation.app, out, now_ns)

    def give_back(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Takes an allocation off the books because the RM changed its size or its node; the new one follows."""
        self.unhold(allocation)
        if not allocation.foreign:
            self._tell_gone(allocation, Detail.ALLOC_REPLACED, out, now_ns)

    def _tell_gone(self, allocation: Allocation, detail: Detail, out: Outcome, now_ns: int) -> None:
        app_id, key, shape = allocation.app_id, allocation.key, allocation.shape
        out.events.append(Event(EventType.APP, Change.REMOVE, detail, app_id, key, shape, now_ns=now_ns))
        out.events.append(
            Event(EventType.NODE, Change.REMOVE, Detail.NODE_ALLOC, allocation.node_id, key, shape, now_ns=now_ns)
        )

    def adopt(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """Takes an allocation that the RM reports, without asking any limit, and echoes it (core-features §2.9)."""
        node = self.nodes[allocation.node_id]
        self.hold(allocation, node)
        out.touch(allocation, self.name)
        if allocation.foreign:
            self._occupied_event(node.node_id, out, now_ns)
            return
        app = allocation.app
        assert app is not None
        self.waiting.refresh(app.queue)
        self.started(app, out, now_ns)
        self.tell_new(allocation, out, now_ns)

    def _occupied_event(self, node_id: str, out: Outcome, now_ns: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            absolute = self.types.quantities(node.occupied)
            out.events.append(
                Event(EventType.NODE, Change.SET, Detail.NODE_OCCUPIED, node_id, resource=absolute, now_ns=now_ns)
            )

    def tell_new(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
        """The fact and the events of a new allocation."""
        out.facts.append(NewAllocation(self.name, allocation))
        app_id, key, shape = allocation.app_id, allocation.key, allocation.shape
        out.events.append(Event(EventType.APP, Change.ADD, Detail.APP_ALLOC, app_id, key, shape, "", now_ns))
        out.events.append(
            Event(EventType.NODE, Change.ADD, Detail.NODE_ALLOC, allocation.node_id, key, shape, "", now_ns)
        )

    def started(self, app: Application, out: Outcome, now_ns: int) -> None:
        """The application has its first allocation (or has one again)."""
        if app.state in (AppState.NEW, AppState.RESUMING):
            self.change_state(app, AppEvent.RUN, out, now_ns)
        if app.state in (AppState.ACCEPTED, AppState.COMPLETING):
            self.change_state(app, AppEvent.RUN, out, now_ns)

    def complete_if_idle(self, app: Application, out: Outcome, now_ns: int) -> None:
        """An application without asks and allocations begins to complete."""
        if not app.asks and not app.allocations and app.state in (AppState.ACCEPTED, AppState.RUNNING):
            self.change_state(app, AppEvent.COMPLETE, out, now_ns)

    def activate(self, now_ns: int) -> None:
        """After a fold: orders the nodes, and makes everything ready that has something pending."""
        self.searching = True
        self.capacity_moved = True
        self.capacity_version += 1
        for node in self.nodes.values():
            if node.schedulable:
                self.index.add(node, self.score(node))
        for app in self.apps.values():
            for group in app.groups.values():
                if group.parked_key is None and group.ready_key is None and group.asks:
                    self.waiting.make_ready(group)
        for queue in self.queues.values():
            self.waiting.resume(queue)
            if not queue.applications and not queue.children and not queue.managed:
                self.deadlines.append((now_ns + DYNAMIC_QUEUE_LINGER_NS, queue))

    # ---- asks and allocations from items ---------------------------------------------------------------------------

    def ask_of(self, item: AskItem, app: Application, shape: Shape, submission: int, now_ns: int) -> Ask:
        """An Ask object from what came in."""
        return Ask(
            app,
            item.key,
            shape,
            item.wanted,
            item.priority,
            submission,
            _created_ns(item.tags, now_ns),
            item.tags,
            task_group=item.task_group,
            placeholder=item.placeholder and bool(item.task_group),
            originator=item.originator,
            allow_preempt_self=item.allow_preempt_self,
            allow_preempt_other=item.allow_preempt_other,
            has_preemption_policy=item.has_preemption_policy,
            execution_timeout_ms=item.execution_timeout_ms,
            previous_generation=item.previous_generation,
        )

    def allocation_of(
        self, item: AskItem, app: Application | None, shape: Shape, submission: int, now_ns: int
    ) -> Allocation:
        """An Allocation object from what the RM reports."""
        return Allocation(
            app,
            item.key,
            item.node_id,
            shape,
            item.priority,
            submission,
            _created_ns(item.tags, now_ns),
            now_ns,
            item.tags,
            uuid=item.uuid or (f"{submission:x}-0" if item.previous_generation else ""),
            task_group=item.task_group,
            placeholder=item.placeholder and bool(item.task_group),
            originator=item.originator,
            allow_preempt_self=item.allow_preempt_self,
            allow_preempt_other=item.allow_preempt_other,
            has_preemption_policy=item.has_preemption_policy,
            execution_timeout_ms=item.execution_timeout_ms,
            previous_generation=item.previous_generation,
            foreign=app is None,
        )


def _created_ns(tags: Mapping[str, str], now_ns: int) -> int:
    """When it was asked for: the tag creationTime (seconds since the epoch), else now. Garbage is not an error."""
    text = tags.get("creationTime") or tags.get("kubernetes.io/meta/creationTime")
    if text and text.isascii() and text.isdigit() and len(text) <= 12:
        return min(int(text) * 1_000_000_000, now_ns)
    return now_ns


def _inheritable(properties: Mapping[str, str]) -> dict[str, str]:
    """What a configured child takes from its parent (core-features §2.2)."""
    own = {"priority.policy", "priority.offset"}
    return {
        name: value
        for name, value in properties.items()
        if name not in own and (name != "preemption.policy" or value.lower() == "disabled")
    }
