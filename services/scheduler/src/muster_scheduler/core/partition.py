"""One partition: its objects, what changes them, and the search for the next allocation.

Everything here is O(changed). What was found not to fit is *parked* on what it waits for, by shape, and looked at
again only when that very thing gained (``_wake``):

* at a queue, when an ask would take it over its max (woken by a release under that queue);
* at the nodes, when no node has room (woken by a node that gained room for this shape);
* at a queue's maximum of running applications (woken when one stops running).

Of the groups of one shape in one leaf only the first is woken; each success wakes the next (``_wake_next``). So a
release in front of 100,000 waiting asks costs as many looks as it makes allocations.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from muster_scheduler.core import acl
from muster_scheduler.core.commands import AskItem, Termination
from muster_scheduler.core.config import ROOT, PartitionConfig, QueueConfig
from muster_scheduler.core.node_index import NodeIndex
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    AskGroup,
    Figures,
    Node,
    Place,
    Queue,
    Waitlist,
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
from muster_scheduler.core.reasons import Reason, ReasonCode
from muster_scheduler.core.resources import Shape, Types, add, fits, subtract
from muster_scheduler.core.states import (
    APP_TERMINAL,
    COMPLETING_TIMEOUT_NS,
    TERMINATED_TIMEOUT_NS,
    AppEvent,
    AppState,
    QueueState,
    next_app_state,
)

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
# How long a dynamic queue stays when its last application is gone (the real core's cleaner runs every 10 s).
DYNAMIC_QUEUE_LINGER_NS = 10 * 1_000_000_000


class Partition:
    """One partition of one RM.

    :ivar searching: False while states are folded, and always in a follower: no order of nodes is kept then.
    :ivar apps: by id; finished ones stay until they expire, under ``<id>-<seconds>`` once their id is used again.
    :ivar foreign: by key: what others hold of the nodes.
    :ivar capacity: sum over all nodes, draining ones too.
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
        self.no_node: Place = {}
        self._in_flight: dict[Waitlist, None] = {}
        self._woken_apps: dict[Application, None] = {}
        self._queues_with_waiting_apps: dict[Queue, None] = {}
        self.deciding = True
        # Shapes that found no node since a node last gained anything: they need not look again. Never iterated.
        self._found_no_node: set[Shape] = set()
        self._figures = Figures(-1)
        self._gained_nodes: dict[Node, None] = {}
        self._gained_queues: dict[Queue, None] = {}
        self._capacity_moved = True
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
        self._capacity_moved = True

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
        self._set_ready(queue, None)
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
            self.remove_queue(queue)
            detail = Detail.NONE if queue.managed else Detail.QUEUE_DYNAMIC
            out.events.append(Event(EventType.QUEUE, Change.REMOVE, detail, queue.path, now_ns=now_ns))
            out.touch(queue, self.name)
            queue = queue.parent

    # ---- placement -------------------------------------------------------------------------------------------------

    def place(self, requested: str, user: str, groups: tuple[str, ...], tags: Mapping[str, str]) -> tuple[str, str]:
        """The leaf's path for an application, by the placement rules in their order: path, or "" and why not."""
        lowered = {name.lower(): value for name, value in tags.items()}
        for rule in self.config.placement_rules:
            match rule.name.lower():
                case "provided":
                    wanted = requested
                case "user":
                    wanted = user.replace(".", "_dot_")
                case "fixed":
                    wanted = rule.value.lower()
                case "tag":
                    wanted = lowered.get(rule.value.lower(), "")
                case _:
                    wanted = ""
            if not wanted:
                continue
            path = _qualified(wanted, dots=rule.name.lower() in ("provided", "fixed"))
            problem = _path_problem(path)
            if problem:
                return "", f"queue {path!r}: {problem}"
            queue = self.queues.get(path)
            if queue is None and not rule.create:
                continue
            nearest = queue or self._nearest(path)
            if not any(
                acl.allows(text, user, groups) for q in nearest.ancestry for text in (q.submit_acl, q.admin_acl)
            ):
                continue
            if queue is not None and (not queue.leaf or queue.state is not QueueState.ACTIVE):
                continue
            return path, ""
        return "", "application rejected: no placement rule matched" + (
            f" (queue {requested!r}: it must exist or may be created, be an active leaf, and allow user {user!r})"
            if requested
            else ""
        )

    def _nearest(self, path: str) -> Queue:
        while path:
            path = path.rpartition(".")[0]
            found = self.queues.get(path)
            if found is not None:
                return found
        return self.root

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def add_node(self, node: Node, capacity: Mapping[str, int], occupied: Mapping[str, int]) -> None:
        """Takes a new node in."""
        self.nodes[node.node_id] = node
        self._set_vector(node.capacity, capacity)
        node.reported_occupied = dict(occupied)
        add(node.occupied, self.types.items(occupied))
        self._measure(node)
        add(self.capacity, enumerate(node.capacity))
        self._capacity_moved = True
        if node.schedulable and self.searching:
            self.index.add(node, self._score(node))
            self._node_gained(node)

    def set_node_capacity(self, node: Node, capacity: Mapping[str, int]) -> None:
        """Replaces a node's capacity; below what is allocated, the node is over-committed until releases mend it."""
        subtract(self.capacity, enumerate(node.capacity))
        self._set_vector(node.capacity, capacity)
        add(self.capacity, enumerate(node.capacity))
        self._capacity_moved = True
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
        if not self.searching:
            return
        if schedulable:
            self.index.add(node, self._score(node))
            self._node_gained(node)
        else:
            self.index.remove(node)

    def remove_node(self, node: Node) -> None:
        """Takes a node out; its allocations must be gone before."""
        assert not node.allocations, f"{node} still has allocations"
        if node.index_key is not None:
            self.index.remove(node)
        self._gained_nodes.pop(node, None)
        subtract(self.capacity, enumerate(node.capacity))
        self._capacity_moved = True
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
            self.index.move(node, self._score(node))
            self._node_gained(node)

    def _score(self, node: Node) -> float:
        """Place in the order of nodes: the weighted used share, ascending for fair, descending for binpacking."""
        total = score = 0.0
        capacity, available = node.capacity, node.available
        for number, weight in self._weights:
            full = capacity[number]
            if full > 0:
                total += weight
                score += weight * (1.0 - available[number] / full)
        used = score / total if total else 0.0
        return -used if self.config.node_sort_policy == "binpacking" else used

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
            self._stop_waiting(app)
            self._refresh_app(app)
        for queue in app.queue.ancestry:
            queue.running_applications += step
            self._wake_app(queue)

    def _leave_queue(self, app: Application, out: Outcome, now_ns: int) -> None:
        queue = app.queue
        if queue.applications.pop(app.app_id, None) is None:
            return
        if app.waiting_at is not None:
            self._stop_waiting(app)
        self._refresh_app(app)
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
        for ask in list(app.asks.values()):
            self.remove_ask(ask, out, now_ns, Detail.REQUEST_CANCEL)
        for allocation in list(app.allocations.values()):
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
        if ask.created_ns < app.order_ns:
            app.order_ns = ask.created_ns
            self._rekey_parked(app)
        if group.parked_key is not None:
            return
        waitlist = app.queue.waitlists.get(ask.shape)
        if waitlist is not None and waitlist.place is not None and group.ready_key is None:
            waitlist.park(group, self._wait_key(group))  # what holds the others of its shape holds it too
        else:
            self._make_ready(group)

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
        self._drop_ask(ask, out)
        self._refresh_app(app)

    def _drop_ask(self, ask: Ask, out: Outcome) -> None:
        """The ask has nothing pending any more: out of its group and its application."""
        app, group = ask.app, ask.group
        ask.gone = True
        if app.asks.get(ask.key) is ask:
            del app.asks[ask.key]
        out.touch(ask, self.name)
        if group is None:
            return
        ask.group = None
        group.asks -= 1
        if group.asks:
            if group.ready_key is not None:
                self._place_ready(group)
            return
        del app.groups[group.shape, group.priority]
        if group.parked_key is not None:
            waitlist = app.queue.waitlists[group.shape]
            waitlist.unpark(group)
            if not waitlist.groups and waitlist.place is not None:
                self._forget_list(waitlist, out)
        else:
            self._unready(group)
            self._wake_next(app.queue, group.shape)

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
        app.allocations[allocation.unique_key] = allocation
        for number, value in items:
            app.allocated[number] += value
            for queue in app.queue.ancestry:
                queue.allocated[number] += value
        if node is not None:
            node.allocations[(app.app_id, allocation.unique_key)] = allocation
            add(node.allocated, items)
            self._node_took(node, items)
        if app.queue.fair_apps:
            self._rekey_parked(app)

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
        del app.allocations[allocation.unique_key]
        for number, value in items:
            app.allocated[number] -= value
            for queue in app.queue.ancestry:
                queue.allocated[number] -= value
        if node is not None:
            del node.allocations[(app.app_id, allocation.unique_key)]
            subtract(node.allocated, items)
            self._node_moved(node)
        if app.queue.fair_apps:
            self._rekey_parked(app)
        for queue in app.queue.line:
            if queue.blocked:
                self._gained_queues[queue] = None
        self._refresh_app(app)
        self._refresh(app.queue)

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
        shape = allocation.shape
        out.events.append(Event(EventType.APP, Change.REMOVE, detail, app_id, key, shape, now_ns=now_ns))
        out.events.append(
            Event(EventType.NODE, Change.REMOVE, Detail.NODE_ALLOC, allocation.node_id, key, shape, now_ns=now_ns)
        )
        if completing and allocation.app is not None:
            self.complete_if_idle(allocation.app, out, now_ns)

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
        self._refresh(app.queue)
        self.started(app, out, now_ns)
        self._tell_new(allocation, out, now_ns)

    def _occupied_event(self, node_id: str, out: Outcome, now_ns: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            absolute = self.types.quantities(node.occupied)
            out.events.append(
                Event(EventType.NODE, Change.SET, Detail.NODE_OCCUPIED, node_id, resource=absolute, now_ns=now_ns)
            )

    def _tell_new(self, allocation: Allocation, out: Outcome, now_ns: int) -> None:
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

    # ---- the cycle -------------------------------------------------------------------------------------------------

    def cycle(self, out: Outcome, now_ns: int, budget: int) -> int:
        """Makes up to ``budget`` allocations; gives how many. Fewer means: nothing more fits now."""
        if not self.deciding:
            return 0
        # 1. Shares move with the cluster's capacity: all keys anew, once.
        if self._capacity_moved:
            self._capacity_moved = False
            self._measure_fair_max()
        # 2. Who waits for what has gained is tried again.
        self._wake()
        made = 0
        root = self.root
        while made < budget:
            # 3. The best leaf: from root down, the first child in its parent's order.
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
            # 5. Limits first, then a node; a "no" parks the group with its reason.
            if self._park_over_limit(queue, app, group, out, now_ns):
                continue
            node = self._find_node(group.shape)
            if node is None:
                self._park(group, self.no_node, self._node_reason(group.shape), out, now_ns)
                continue
            # 6. The allocation, on all books.
            self._allocate(ask, group, node, out, now_ns)
            made += 1
        # 7. Whoever was woken and waits no more is off the lists.
        self._land(out)
        return made

    def _find_node(self, shape: Shape) -> Node | None:
        if shape in self._found_no_node:
            return None
        node = self.index.first_fit(shape.items)
        if node is None:
            self._found_no_node.add(shape)
        return node

    def _allocate(self, ask: Ask, group: AskGroup, node: Node, out: Outcome, now_ns: int) -> None:
        app, shape = ask.app, ask.shape
        queue = app.queue
        ordinal = ask.allocated
        ask.allocated = ordinal + 1
        allocation = Allocation(
            app,
            ask.key,
            node.node_id,
            shape,
            ask.priority,
            ask.submission,
            ask.created_ns,
            now_ns,
            ask.tags,
            ordinal,
            f"{ask.submission:x}-{ordinal}" if ask.previous_generation else "",
            ask.task_group,
            ask.placeholder,
            ask.originator,
            ask.allow_preempt_self,
            ask.allow_preempt_other,
            ask.has_preemption_policy,
            ask.execution_timeout_ms,
            ask.previous_generation,
        )
        # Inlined booking (as in `hold` and `add_pending`): this is the hottest path of all.
        self.allocations_count += 1
        app.allocations[allocation.unique_key] = allocation
        node.allocations[(app.app_id, allocation.unique_key)] = allocation
        node_allocated, available = node.allocated, node.available
        app_allocated, app_pending = app.allocated, app.pending
        ancestry = queue.ancestry
        for number, value in shape.items:
            node_allocated[number] += value
            available[number] -= value
            app_allocated[number] += value
            app_pending[number] -= value
            for q in ancestry:
                q.allocated[number] += value
                q.pending[number] -= value
        self.index.move(node, self._score(node))
        out.touch(allocation, self.name)
        if app.state is not AppState.RUNNING:
            self.started(app, out, now_ns)
        self._tell_new(allocation, out, now_ns)
        ask.pending -= 1
        if ask.pending:
            out.touch(ask, self.name)
        else:
            self._drop_ask(ask, out)
        self._refresh_app(app)
        self._refresh(queue)
        self._wake_next(queue, shape)

    # ---- limits and reasons ----------------------------------------------------------------------------------------

    def _park_over_limit(self, leaf: Queue, app: Application, group: AskGroup, out: Outcome, now_ns: int) -> bool:
        """Parks the group (or the application) when a queue's limit stands against it; says whether."""
        if not app.counted:
            for queue in leaf.ancestry:
                if queue.max_applications and queue.running_applications >= queue.max_applications:
                    self._wait_to_run(app, queue, out, now_ns)
                    return True
        items = group.shape.items
        for queue in leaf.line:
            used, limit = queue.allocated, queue.limit
            for number, value in items:
                if used[number] + value > limit[number]:
                    reason = Reason(
                        ReasonCode.QUEUE_MAX,
                        queue.path,
                        self.types.names[number],
                        value,
                        used[number],
                        limit[number],
                    )
                    self._park(group, queue.blocked, reason, out, now_ns)
                    return True
        return False

    def _node_reason(self, shape: Shape) -> Reason:
        if not self.index.count:
            return Reason(ReasonCode.NO_NODES)
        figures = self._figures
        if figures.version != self.index.version or len(figures.largest_free) < len(self.types.names):
            nodes = list(self.index)
            figures = self._figures = Figures(
                self.index.version,
                [max(column) for column in zip(*(node.available for node in nodes), strict=True)],
                [max(column) for column in zip(*(node.capacity for node in nodes), strict=True)],
            )
        names = self.types.names
        short: Reason | None = None
        for number, value in shape.items:
            free, largest = figures.largest_free[number], figures.largest_capacity[number]
            if value > largest:
                return Reason(
                    ReasonCode.LARGER_THAN_ANY_NODE, "", names[number], value, limit=largest, free=max(free, 0)
                )
            if short is None and value > free:
                short = Reason(ReasonCode.NO_NODE_HAS_ROOM, "", names[number], value, limit=largest, free=max(free, 0))
        return short or Reason(ReasonCode.FREE_RESOURCES_SCATTERED)

    # ---- ready, parked, woken --------------------------------------------------------------------------------------

    def activate(self) -> None:
        """After a fold: orders the nodes, and makes everything ready that has something pending."""
        self.searching = True
        for node in self.nodes.values():
            if node.schedulable:
                self.index.add(node, self._score(node))
        for app in self.apps.values():
            for group in app.groups.values():
                if group.parked_key is None and group.ready_key is None and group.asks:
                    self._make_ready(group)
        for queue in self.queues.values():
            self._in_flight.update(dict.fromkeys(queue.waitlists.values()))

    def _make_ready(self, group: AskGroup) -> None:
        self._place_ready(group)
        self._refresh_app(group.app)

    def _place_ready(self, group: AskGroup) -> None:
        """Puts the group among its application's ready ones, where its oldest ask belongs."""
        head = group.head()
        assert head is not None, f"{group} has nothing to try"
        key = (-group.priority, head.created_ns, head.submission)
        if group.ready_key == key:
            return
        self._unready(group)
        group.ready_key = key
        insort(group.app.ready, (*key, group))

    def _unready(self, group: AskGroup) -> None:
        if group.ready_key is None:
            return
        ready = group.app.ready
        place = bisect_left(ready, group.ready_key)
        assert ready[place][-1] is group, f"{group} is not where its key says"
        del ready[place]
        group.ready_key = None

    def _app_key(self, app: Application) -> tuple[Any, ...]:
        queue = app.queue
        priority = app.ready[0][0] if app.ready else 0
        order = (app.order_ns, app.submission)
        if queue.fair_apps:
            share = self._app_share(app)
            return (priority, share, *order) if queue.priority_first else (share, *order, priority)
        return (priority, *order) if queue.priority_first else (*order, priority)

    def _app_share(self, app: Application) -> tuple[float, ...]:
        """Its shares of the queue's guaranteed, largest first (raw quantities where there is none)."""
        guaranteed = app.queue.guaranteed or {}
        shares = [
            used / total if (total := guaranteed.get(number, 0)) > 0 else float(used)
            for number, used in enumerate(app.allocated)
            if used > 0
        ]
        shares.sort(reverse=True)
        return tuple(shares)

    def _refresh_app(self, app: Application) -> None:
        """Puts the application where it belongs among its leaf's ready ones."""
        leaf = app.queue
        old = app.ready_key
        in_queue = app.waiting_at is None and app.ready and leaf.state is not QueueState.STOPPED
        new = self._app_key(app) if in_queue else None
        if new == old:
            return
        if old is not None:
            leaf.ready_apps.remove((*old, app))
        app.ready_key = new
        if new is not None:
            leaf.ready_apps.add((*new, app))
        self._refresh(leaf)

    def _refresh(self, queue: Queue) -> None:
        """Puts the queue and its ancestors where they belong among their parents' ready ones."""
        while queue.parent is not None:
            if queue.leaf:
                active = bool(queue.ready_apps) and queue.state is not QueueState.STOPPED
            else:
                active = bool(queue.ready) and queue.state is not QueueState.STOPPED
            new = self._queue_key(queue) if active else None
            if new == queue.ready_key and new is None:
                return
            self._set_ready(queue, new)
            queue = queue.parent

    def _set_ready(self, queue: Queue, new: tuple[Any, ...] | None) -> None:
        parent = queue.parent
        assert parent is not None
        old = queue.ready_key
        if old == new:
            return
        ready = parent.ready
        if old is not None:
            del ready[bisect_left(ready, old)]
        if new is not None:
            insort(ready, (*new, queue))
        queue.ready_key = new

    def _queue_key(self, queue: Queue) -> tuple[Any, ...]:
        if queue.leaf:
            top = queue.ready_apps[0]
            priority = top[0] if queue.priority_first else top[-2]
        else:
            priority = min(entry[0] if queue.priority_first else entry[-2] for entry in queue.ready[:1])
        share = self._share(queue)
        assert queue.parent is not None
        return (priority, share, queue.path) if queue.parent.priority_first else (share, queue.path, priority)

    def _share(self, queue: Queue) -> float:
        """The queue's fair share: its most used type, of its guaranteed, else of its fair max (core-features §2.4)."""
        guaranteed, fair_max = queue.guaranteed, queue.fair_max
        best = 0.0
        for number, used in enumerate(queue.allocated):
            if used > 0:
                total = guaranteed.get(number) if guaranteed else None
                if total is None:
                    total = fair_max[number]
                share = used / total if total > 0 else 1.0
                if share > best:
                    best = share
        return best

    def _measure_fair_max(self) -> None:
        for queue in self.queues.values():  # parents come before their children
            above = self.capacity if queue.parent is None else queue.parent.fair_max
            queue.fair_max[:] = above
            for number, value in (queue.maximum or {}).items():
                queue.fair_max[number] = value
        for queue in self.queues.values():
            if queue.ready_key is not None:
                self._set_ready(queue, self._queue_key(queue))

    def _park(self, group: AskGroup, place: Place, reason: Reason, out: Outcome, now_ns: int) -> None:
        """The group waits: out of the ready ones, on the list of its shape, which is registered at ``place``."""
        app = group.app
        leaf = app.queue
        waitlist = leaf.waitlists.get(group.shape)
        if waitlist is None:
            leaf.waitlists[group.shape] = waitlist = Waitlist(leaf, group.shape)
        self._unready(group)
        waitlist.park(group, self._wait_key(group))
        waitlist.register(place)
        if not reason.same_as(waitlist.reason):
            waitlist.reason = replace(reason, since_ns=now_ns)
            out.touch(waitlist, self.name)
        self._refresh_app(app)
        if not app.counted:
            for queue in leaf.ancestry:
                self._wake_app(queue)

    def _forget_list(self, waitlist: Waitlist, out: Outcome) -> None:
        """Nobody waits on the list any more."""
        waitlist.register(None)
        del waitlist.leaf.waitlists[waitlist.shape]
        waitlist.gone = True
        out.touch(waitlist, self.name)

    def _wait_key(self, group: AskGroup) -> tuple[Any, ...]:
        app = group.app
        head = group.head()
        assert head is not None
        share = self._app_share(app) if app.queue.fair_apps else ()
        return (-group.priority, share, app.order_ns, app.submission, head.submission)

    def _rekey_parked(self, app: Application) -> None:
        for group in app.groups.values():
            if group.parked_key is not None and group.head() is not None:
                waitlist = app.queue.waitlists[group.shape]
                waitlist.unpark(group)
                waitlist.park(group, self._wait_key(group))

    def _node_took(self, node: Node, items: Iterable[tuple[int, int]]) -> None:
        subtract(node.available, items)
        if node.index_key is not None:
            self.index.move(node, self._score(node))

    def _node_gained(self, node: Node) -> None:
        self._found_no_node.clear()
        self._gained_nodes[node] = None

    def _wake(self) -> None:
        for queue in self._gained_queues:
            used, limit = queue.allocated, queue.limit
            for shape, lists in list(queue.blocked.items()):
                if all(used[number] + value <= limit[number] for number, value in shape.items):
                    self._wake_lists(lists)
        self._gained_queues.clear()
        for queue in list(self._queues_with_waiting_apps):
            if queue.waiting_apps:
                self._wake_app(queue)
            else:
                del self._queues_with_waiting_apps[queue]
        if self._gained_nodes:
            for shape, lists in list(self.no_node.items()):
                if any(node.index_key is not None and fits(shape.items, node.available) for node in self._gained_nodes):
                    self._wake_lists(lists)
            self._gained_nodes.clear()

    def _wake_lists(self, lists: dict[Waitlist, None]) -> None:
        for waitlist in list(lists):
            waitlist.register(None)
            self._in_flight[waitlist] = None
            self._wake_first(waitlist)

    def _wake_next(self, leaf: Queue, shape: Shape) -> None:
        """A group of this shape in this leaf went its way: the next one that waits may follow."""
        waitlist = leaf.waitlists.get(shape)
        if waitlist is not None and waitlist.place is None:
            self._wake_first(waitlist)

    def _wake_first(self, waitlist: Waitlist) -> None:
        while waitlist.groups:
            group: AskGroup = waitlist.groups[0][-1]
            waitlist.unpark(group)
            self._make_ready(group)
            if group.app.waiting_at is None:
                return  # else it will not be tried before its application may run: the turn goes to the next

    def _land(self, out: Outcome) -> None:
        """After a cycle: lists that are still in flight and empty have nobody left who waits."""
        for waitlist in self._in_flight:
            if waitlist.place is None and not waitlist.groups and not waitlist.gone:
                self._forget_list(waitlist, out)
        self._in_flight.clear()
        for app in self._woken_apps:
            if app.waiting_at is None and app.reason is not None:
                app.reason = None
                out.touch(app, self.name)
        self._woken_apps.clear()

    def _wait_to_run(self, app: Application, queue: Queue, out: Outcome, now_ns: int) -> None:
        reason = Reason(
            ReasonCode.QUEUE_MAX_APPLICATIONS,
            queue.path,
            used=queue.running_applications,
            limit=queue.max_applications,
        )
        if not reason.same_as(app.reason):
            app.reason = replace(reason, since_ns=now_ns)
            out.touch(app, self.name)
        app.waiting_at = queue
        app.waiting_key = (app.order_ns, app.submission)
        queue.waiting_apps.add((*app.waiting_key, app))
        self._queues_with_waiting_apps[queue] = None
        self._refresh_app(app)
        for entry in app.ready:  # its groups may have been the woken ones of their lists
            self._wake_next(app.queue, entry[-1].shape)

    def _stop_waiting(self, app: Application) -> None:
        assert app.waiting_at is not None
        app.waiting_at.waiting_apps.remove((*app.waiting_key, app))
        app.waiting_at = None
        self._woken_apps[app] = None

    def _wake_app(self, queue: Queue) -> None:
        if queue.waiting_apps and queue.running_applications < queue.max_applications:
            app: Application = queue.waiting_apps[0][-1]
            self._stop_waiting(app)
            self._refresh_app(app)

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


def _qualified(wanted: str, *, dots: bool) -> str:
    lowered = wanted.lower()
    if lowered == ROOT or lowered.startswith(f"{ROOT}."):
        return lowered
    return f"{ROOT}.{lowered if dots else lowered.replace('.', '_dot_')}"


def _path_problem(path: str) -> str:
    for part in path.split("."):
        if not acl.QUEUE_NAME.match(part):
            return "invalid queue name, expected 1 to 64 of letters, digits and _ : # / @ - in each part"
    return ""
