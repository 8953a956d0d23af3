"""The objects of a partition: queues, nodes, applications, asks in their groups, allocations.

Plain data with the sums that decisions need. Only ``partition.py`` changes them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from muster_scheduler.core.resources import UNLIMITED, Shape, Types, Vector
from muster_scheduler.core.states import AppState, QueueState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from muster_scheduler.core.reasons import Reason


class Queue:
    """A queue: a parent of queues, or a leaf of applications.

    :ivar path: from root, lower case, dots between.
    :ivar ancestry: this queue and its ancestors up to root: where usage is summed.
    :ivar line: the same without root: where limits are checked (root's max is the cluster, which the nodes decide).
    :ivar guaranteed: by type number; empty: none.
    :ivar limit: own max as a vector, UNLIMITED where it says nothing.
    :ivar fair_max: by type number, the nearest max on the path from here up, else the cluster's capacity.
    :ivar ready: of a parent: (key, child) of the children with something to try, best first.
    :ivar ready_apps: of a leaf: the applications with something to try, best first.
    :ivar blocked: the lists that this queue's max holds back.
    :ivar waitlists: of a leaf: by shape, who waits there.
    :ivar waiting_apps: applications that its maximum of running ones holds back, in order.
    :ivar ready_key: under which the parent's ``ready`` holds this queue; None: it does not.
    """

    def __init__(self, types: Types, name: str, parent: Queue | None, *, leaf: bool, managed: bool) -> None:
        self.name = name
        self.parent = parent
        self.path: str = name if parent is None else f"{parent.path}.{name}"
        self.leaf = leaf
        self.managed = managed
        self.state = QueueState.ACTIVE
        self.children: dict[str, Queue] = {}
        self.ancestry: tuple[Queue, ...] = (self,) if parent is None else (self, *parent.ancestry)
        self.line: tuple[Queue, ...] = self.ancestry[:-1]
        self.types = types
        self.guaranteed: dict[int, int] | None = None
        self.maximum: dict[int, int] | None = None
        self.limit: Vector = types.vector(UNLIMITED)
        self.fair_max: Vector = types.vector()
        self.allocated: Vector = types.vector()
        self.pending: Vector = types.vector()
        self.max_applications = 0
        self.running_applications = 0
        self.properties: dict[str, str] = {}
        self.submit_acl = ""
        self.admin_acl = ""
        self.fair_apps = False
        self.priority_first = True
        self.applications: dict[str, Application] = {}
        self.ready: list[tuple[Any, ...]] = []
        self.ready_apps: Any = SortedList()
        self.ready_key: tuple[Any, ...] | None = None
        self.blocked: Place = {}
        self.waitlists: dict[Shape, Waitlist] = {}
        self.waiting_apps: Any = SortedList()
        self.gone = False
        self.published = False

    def set_limits(self, guaranteed: Mapping[str, int] | None, maximum: Mapping[str, int] | None) -> None:
        """Takes guaranteed and max, by type name; None or all-zero is "not set" (core-features §2.1)."""
        number = self.types.number
        if guaranteed is not None and any(guaranteed.values()):
            self.guaranteed = {number(name): value for name, value in guaranteed.items()}
        else:
            self.guaranteed = None
        if maximum is not None and any(maximum.values()):
            self.maximum = {number(name): value for name, value in maximum.items()}
        else:
            self.maximum = None
        for index in range(len(self.limit)):
            self.limit[index] = UNLIMITED
        for index, value in (self.maximum or {}).items():
            self.limit[index] = value

    def by_name(self, items: Mapping[int, int] | None) -> dict[str, int] | None:
        """Quantities by type name."""
        return None if items is None else {self.types.names[number]: value for number, value in items.items()}

    def __repr__(self) -> str:
        return f"Queue({self.path})"


class Node:
    """A node. ``available = capacity - allocated - occupied``; it is negative while a node is over-committed by its RM.

    :ivar reported_occupied: NodeInfo.occupiedResource, absolute; foreign allocations come on top in ``occupied``.
    :ivar index_key: its key in the node index; None: not in it (draining).
    """

    __slots__ = (
        "allocated",
        "allocations",
        "attributes",
        "available",
        "capacity",
        "created_ns",
        "foreign",
        "gone",
        "index_key",
        "node_id",
        "occupied",
        "published",
        "reported_occupied",
        "schedulable",
        "submission",
        "types",
    )

    def __init__(self, types: Types, node_id: str) -> None:
        self.types = types
        self.node_id = node_id
        self.attributes: dict[str, str] = {}
        self.capacity: Vector = types.vector()
        self.occupied: Vector = types.vector()
        self.allocated: Vector = types.vector()
        self.available: Vector = types.vector()
        self.reported_occupied: dict[str, int] = {}
        self.schedulable = True
        self.submission = 0
        self.created_ns = 0
        self.allocations: dict[tuple[str, str], Allocation] = {}
        self.foreign: dict[str, Allocation] = {}
        self.index_key: tuple[float, str] | None = None
        self.gone = False
        self.published = False

    def __repr__(self) -> str:
        return f"Node({self.node_id})"


@dataclass(slots=True, eq=False)
class Ask:
    """What an application wants: ``pending`` more allocations of one shape.

    :ivar created_ns: when it was asked for, as the RM says (tag creationTime) or as it came in.
    :ivar previous_generation: it came as si.v1.AllocationAsk, and its allocations carry a UUID (seed 001).
    """

    app: Application
    key: str
    shape: Shape
    pending: int
    priority: int
    submission: int
    created_ns: int
    tags: dict[str, str]
    allocated: int = 0
    task_group: str = ""
    placeholder: bool = False
    originator: bool = False
    allow_preempt_self: bool = False
    allow_preempt_other: bool = False
    has_preemption_policy: bool = False
    execution_timeout_ms: int = 0
    previous_generation: bool = False
    group: AskGroup | None = None
    gone: bool = False
    published: bool = False


@dataclass(slots=True, eq=False)
class Allocation:
    """A part of a node that an application holds.

    :ivar key: the ask's allocationKey; ``unique_key`` tells the allocations of one ask with repeats apart.
    :ivar foreign: held by somebody else, known so that the node's free resources are right.
    """

    app: Application | None
    key: str
    node_id: str
    shape: Shape
    priority: int
    submission: int
    created_ns: int
    allocated_ns: int
    tags: dict[str, str]
    ordinal: int = 0
    uuid: str = ""
    task_group: str = ""
    placeholder: bool = False
    originator: bool = False
    allow_preempt_self: bool = False
    allow_preempt_other: bool = False
    has_preemption_policy: bool = False
    execution_timeout_ms: int = 0
    previous_generation: bool = False
    foreign: bool = False
    gone: bool = False
    published: bool = False

    @property
    def unique_key(self) -> str:
        """See :func:`unique_key`."""
        return unique_key(self.key, self.ordinal)

    @property
    def app_id(self) -> str:
        """The application's id; "" for a foreign allocation."""
        return self.app.app_id if self.app is not None else ""


def unique_key(key: str, ordinal: int) -> str:
    """Unique within an application: the key, and '#n' from the second allocation of an ask on.

    A '#' of the key itself is doubled, so that the ask "k#1" and the second allocation of the ask "k" stay apart.
    """
    if "#" in key:
        key = key.replace("#", "##")
    return f"{key}#{ordinal}" if ordinal else key


# A group's heap may have so many places more than twice its asks.
_HEAP_SPARE = 16


class AskGroup:
    """The asks of one application that are alike in all that decides where they may go: shape and priority.

    They share one fate: when one does not fit, none does. So a group is tried, parked and woken as one.

    :ivar heap: (created_ns, submission, push, ask), oldest first; asks that are gone are skipped. (An ask that was
        changed has the submission of the one that it replaced; the number of the push tells them apart.)
    :ivar ready_key: under which the application's ``ready`` holds it; None: it does not.
    :ivar parked_key: under which its waitlist holds it; None: it is ready, or empty.
    """

    __slots__ = ("app", "asks", "heap", "parked_key", "priority", "pushes", "ready_key", "shape")

    def __init__(self, app: Application, shape: Shape, priority: int) -> None:
        self.app = app
        self.shape = shape
        self.priority = priority
        self.heap: list[tuple[int, int, int, Ask]] = []
        self.pushes = 0
        self.asks = 0
        self.ready_key: tuple[Any, ...] | None = None
        self.parked_key: tuple[Any, ...] | None = None

    @property
    def reason(self) -> Reason | None:
        """Why its asks are pending; None: the scheduler has not come to them yet."""
        if self.app.reason is not None:
            return self.app.reason
        waitlist = self.app.queue.waitlists.get(self.shape)
        return waitlist.reason if waitlist is not None else None

    def head(self) -> Ask | None:
        """The oldest ask with something pending."""
        heap = self.heap
        while heap:
            ask = heap[0][3]
            if ask.pending > 0 and not ask.gone and ask.group is self:
                return ask
            heapq.heappop(heap)
        return None

    def push(self, ask: Ask) -> None:
        """Takes an ask in."""
        ask.group = self
        self.pushes += 1
        heapq.heappush(self.heap, (ask.created_ns, ask.submission, self.pushes, ask))
        self.asks += 1

    def pull(self, ask: Ask) -> None:
        """Takes an ask out. Its place in the heap goes when it comes up, or when such places outnumber the asks."""
        ask.group = None
        self.asks -= 1
        if len(self.heap) > 2 * self.asks + _HEAP_SPARE:
            self.heap = [entry for entry in self.heap if entry[3].group is self]
            heapq.heapify(self.heap)

    def __repr__(self) -> str:
        return f"AskGroup({self.app.app_id}, {self.shape.name}, priority={self.priority})"


class Waitlist:
    """The groups of one shape in one leaf that wait, in the order in which the leaf would try them, and why.

    Same shape and same leaf: what stops the first of them stops all. So the list as a whole is registered at the one
    thing that it waits for, and only its first group is tried when that gained. While that group is tried the list is
    *in flight*: registered nowhere; success wakes the next group, a "no" registers the list where it was said.

    :ivar place: where it is registered (a queue's ``blocked``, the partition's ``no_node``); None: in flight.
    :ivar reason: the last "no" that one of them got.
    """

    __slots__ = ("gone", "groups", "leaf", "place", "published", "reason", "shape")

    def __init__(self, leaf: Queue, shape: Shape) -> None:
        self.leaf = leaf
        self.shape = shape
        self.groups: Any = SortedList()
        self.place: Place | None = None
        self.reason: Reason | None = None
        self.gone = False
        self.published = False

    def register(self, place: Place | None) -> None:
        """Moves the list to another place; None: in flight."""
        old = self.place
        if old is place:
            return
        if old is not None:
            lists = old[self.shape]
            del lists[self]
            if not lists:
                del old[self.shape]
        if place is not None:
            place.setdefault(self.shape, {})[self] = None
        self.place = place

    def park(self, group: AskGroup, key: tuple[Any, ...]) -> None:
        """Takes a group in."""
        self.groups.add((*key, group))
        group.parked_key = key

    def unpark(self, group: AskGroup) -> None:
        """Takes a group out."""
        assert group.parked_key is not None, f"{group} is not parked"
        self.groups.remove((*group.parked_key, group))
        group.parked_key = None

    def __repr__(self) -> str:
        return f"Waitlist({self.leaf.path}, {self.shape.name})"


def in_order(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Many at once, in an order that does not depend on whether they were decided or folded."""
    return sorted(allocations, key=lambda held: (held.allocated_ns, held.submission, held.ordinal))


# What lists wait for, by shape. (Dictionaries for their order, which a set does not have.)
Place = dict[Shape, dict[Waitlist, None]]


class Application:
    """An application in a leaf queue.

    :ivar submitted_ns: when it, or the oldest of its asks, was submitted: its place in FIFO (core-features §2.11).
    :ivar story: (time, state), oldest first; of a long one, how it began and how it ends.
    :ivar allocations: by unique key.
    :ivar repeats: those with an ordinal, by key and ordinal.
    :ivar by_uuid: those with a UUID.
    :ivar counted: whether it counts as running against the maxima of applications.
    :ivar waiting_at: the queue that runs as many applications as it may; ``waiting_key``: its place there.
    :ivar reason: why the application as a whole may not run; None: it may, or has not been tried.
    """

    def __init__(self, types: Types, app_id: str, queue: Queue, submission: int, submitted_ns: int) -> None:
        self.app_id = app_id
        self.queue = queue
        self.submission = submission
        self.submitted_ns = submitted_ns
        self.requested_queue = ""
        self.user = ""
        self.groups_of_user: tuple[str, ...] = ()
        self.tags: dict[str, str] = {}
        self.state = AppState.NEW
        self.story: list[tuple[int, str]] = []
        self.started_ns = 0
        self.finished_ns = 0
        self.deadline_ns = 0
        self.execution_timeout_ms = 0
        self.placeholder_ask: dict[str, int] | None = None
        self.gang_style = ""
        self.rejected_message = ""
        self.asks: dict[str, Ask] = {}
        self.allocations: dict[str, Allocation] = {}
        self.repeats: dict[str, dict[int, Allocation]] = {}
        self.by_uuid: dict[str, dict[Allocation, None]] = {}
        self.groups: dict[tuple[Shape, int], AskGroup] = {}
        self.allocated: Vector = types.vector()
        self.pending: Vector = types.vector()
        self.ready: list[tuple[Any, ...]] = []
        self.ready_key: tuple[Any, ...] | None = None
        self.counted = False
        self.waiting_at: Queue | None = None
        self.waiting_key: tuple[int, int, int] = (0, 0, 0)
        self.reason: Reason | None = None
        self.gone = False
        self.published = False

    def book(self, allocation: Allocation) -> None:
        """Puts an allocation where it is found by its key, and by its UUID."""
        self.allocations[allocation.unique_key] = allocation
        if allocation.ordinal:
            self.repeats.setdefault(allocation.key, {})[allocation.ordinal] = allocation
        if allocation.uuid:
            self.by_uuid.setdefault(allocation.uuid, {})[allocation] = None

    def unbook(self, allocation: Allocation) -> None:
        """Inverse of :meth:`book`."""
        del self.allocations[allocation.unique_key]
        if allocation.ordinal:
            repeats = self.repeats[allocation.key]
            del repeats[allocation.ordinal]
            if not repeats:
                del self.repeats[allocation.key]
        if allocation.uuid:
            same = self.by_uuid[allocation.uuid]
            del same[allocation]
            if not same:
                del self.by_uuid[allocation.uuid]

    def held(self, key: str) -> list[Allocation]:
        """The allocations of one ask, in their order."""
        repeats = self.repeats.get(key)
        found = [repeats[ordinal] for ordinal in sorted(repeats)] if repeats is not None else []
        first = self.allocations.get(unique_key(key, 0))
        return found if first is None else [first, *found]

    def made(self, key: str) -> int:
        """How many allocations an ask has had, as far as those that are still held tell."""
        repeats = self.repeats.get(key)
        if repeats is not None:
            return max(repeats) + 1
        return 1 if unique_key(key, 0) in self.allocations else 0

    def __repr__(self) -> str:
        return f"Application({self.app_id}, {self.state})"


@dataclass(slots=True)
class Figures:
    """What a search over the nodes found, each kept while its version does not change.

    :ivar free_version: of the node index: any change of any node.
    :ivar capacity_version: of the index's members and their capacities, which change rarely.
    """

    free_version: int = -1
    largest_free: Vector = field(default_factory=list)
    capacity_version: int = -1
    largest_capacity: Vector = field(default_factory=list)
