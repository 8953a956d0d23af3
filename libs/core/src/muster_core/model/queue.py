"""A queue: its place in the tree, the limits of the queue and of users and groups in it, their use, and its
waitlists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from muster_core.config.properties import DEFAULT_POLICY
from muster_core.config.queue_config import ChildTemplateConfig
from muster_core.model.priorities import Priorities
from muster_core.model.reasons import Reason
from muster_core.model.resources import UNLIMITED, ResourceTypes, Shape, Vector
from muster_core.model.sorted_queue import SortedQueue
from muster_core.model.states import QueueState
from muster_core.model.wait_points import DURATION_FROM, ReservationGroup, WaitPoint, WaitQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster_core.model.decayed_usage import LeafUsage
    from muster_core.model.reason_history import Past


class Ledger:
    """A limit with what counts against it: a queue, or a user or group in a queue.

    :ivar path: the path of the queue.
    :ivar who: the user or group; "": the ledger is the queue's own.
    :ivar allocated: the amounts that count.
    :ivar limit: as a vector; UNLIMITED for types without a limit.
    :ivar blocked: the waitlists that this limit holds back.
    :ivar max_applications: how many applications may run; 0: any number.
    :ivar waiting_apps: the applications that this limit holds back, in order.
    :ivar promised: by type number, the amounts that started gangs will still take here. Other gangs cannot use them.
    """

    __slots__ = (
        "allocated",
        "blocked",
        "limit",
        "max_applications",
        "path",
        "promised",
        "running_applications",
        "types",
        "waiting_apps",
        "who",
    )

    def __init__(self, types: ResourceTypes, path: str, who: str = "") -> None:
        self.types = types
        self.path = path
        self.who = who
        self.limit: Vector = types.vector(UNLIMITED)
        self.allocated: Vector = types.vector()
        self.blocked: WaitPoint[Waitlist] = WaitPoint()
        self.max_applications = 0
        self.running_applications = 0
        self.waiting_apps = SortedQueue()
        self.promised: dict[int, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether no further application may run."""
        return 0 < self.max_applications <= self.running_applications

    def set_limit(self, maximum: Mapping[int, int] | None) -> None:
        """Sets the limit, by type number."""
        for index in range(len(self.limit)):
            self.limit[index] = UNLIMITED
        for index, value in (maximum or {}).items():
            self.limit[index] = value

    def unlink(self) -> None:
        """Forgets what refers to it. It has ended: so it is freed with its last user, without a collection."""
        self.blocked = WaitPoint()
        self.waiting_apps.clear()


class Tracker(Ledger):
    """The use of one user or one group in a queue with a limit for it.

    :ivar group: it is a group's.
    :ivar applications: how many live applications count here. Without any, the tracker is forgotten.
    """

    __slots__ = ("applications", "group")

    def __init__(self, types: ResourceTypes, path: str, who: str, *, group: bool) -> None:
        super().__init__(types, path, who)
        self.blocked = WaitPoint(own=True)
        self.group = group
        self.applications = 0

    def __repr__(self) -> str:
        return f"Tracker({'group' if self.group else 'user'} {self.who} in {self.path})"


class Queue(Ledger):
    """A queue: a parent of queues, or a leaf of applications.

    :ivar path: from root, lower case, separated by dots.
    :ivar ancestry: this queue and its ancestors up to root: usage is summed in all of them.
    :ivar line: the same without root: limits are checked in these. (Root's max is the capacity of the nodes, except for
        pooled types, which are on no node.)
    :ivar guaranteed: by type number; None: not set.
    :ivar maximum: its max by type number; None: not set. It is, by type, the smaller of its configured max
        (``own_maximum``) and what the external ``sources`` say (``external_maximum``).
    :ivar fair_max: by type number, the nearest max on the path up, else the cluster's capacity.
    :ivar preempting: the part of ``allocated`` that preemption has released.
    :ivar held_priorities: of a leaf: the number of its allocations, by priority.
    :ivar policy: the policy that its properties mean.
    :ivar template: the settings of new dynamic leaves below it.
    :ivar ready: of a parent: (key, child) of the children with something to try, best first.
    :ivar ready_apps: of a leaf: the applications with something to try, best first.
    :ivar backfills: of root: asks that declare how long they run may use reserved nodes.
    :ivar fair_apps: of a leaf: its applications are in the order of their shares.
    :ivar fair_uses: of a leaf whose applications are in the order of decayed use: the use of its users. Then
        ``ready_apps`` has only the first application of each user.
    :ivar applications: of a leaf: the ids of the live applications in it (:meth:`PartitionState.apps_in`).
    :ivar ready_priorities: if priority does not come first in this queue: the priorities of the ready entries.
    :ivar waitlists: of a leaf: its waitlists.
    :ivar ready_key: its key in the parent's ``ready``; None: it is not there.
    :ivar quota_ns: when allocations above its max will be preempted; 0: never.
    :ivar created_ns: when it was announced; 0: it was announced before this was recorded.
    """

    __slots__ = (
        "admin_acl",
        "ancestry",
        "applications",
        "backfills",
        "children",
        "created_ns",
        "external_maximum",
        "fair_apps",
        "fair_max",
        "fair_uses",
        "gone",
        "guaranteed",
        "held_priorities",
        "leaf",
        "line",
        "managed",
        "maximum",
        "name",
        "own_maximum",
        "parent",
        "pending",
        "policy",
        "preempting",
        "priority_first",
        "properties",
        "published",
        "quota_ns",
        "ready",
        "ready_apps",
        "ready_key",
        "ready_priorities",
        "sources",
        "state",
        "submit_acl",
        "template",
        "waitlists",
    )

    def __init__(self, types: ResourceTypes, name: str, parent: Queue | None, *, leaf: bool, managed: bool) -> None:
        super().__init__(types, name if parent is None else f"{parent.path}.{name}")
        self.name = name
        self.parent = parent
        self.leaf = leaf
        self.managed = managed
        self.state = QueueState.ACTIVE
        self.children: dict[str, Queue] = {}
        self.ancestry: tuple[Queue, ...] = (self,) if parent is None else (self, *parent.ancestry)
        self.line: tuple[Queue, ...] = self.ancestry[:-1]
        self.guaranteed: dict[int, int] | None = None
        self.maximum: dict[int, int] | None = None
        self.fair_max: Vector = types.vector()
        self.pending: Vector = types.vector()
        self.preempting: Vector = types.vector()
        self.held_priorities: dict[int, int] = {}
        self.properties: dict[str, str] = {}
        self.policy = DEFAULT_POLICY
        self.backfills = False
        self.fair_apps = False
        self.fair_uses: LeafUsage | None = None
        self.priority_first = True
        self.template: ChildTemplateConfig | None = None
        self.submit_acl = ""
        self.admin_acl = ""
        self.applications: dict[str, None] = {}
        self.ready: list[tuple[Any, ...]] = []
        self.ready_apps = SortedQueue()
        self.ready_priorities: Priorities[Any] = Priorities()
        self.ready_key: tuple[Any, ...] | None = None
        self.waitlists: dict[WaitKey, Waitlist] = {}
        self.quota_ns = 0
        self.created_ns = 0
        self.own_maximum: dict[int, int] | None = None
        self.sources: tuple[str, ...] = ()
        self.external_maximum: dict[int, int] | None = None
        self.gone = False
        self.published = False

    def set_limits(self, guaranteed: Mapping[str, int] | None, maximum: Mapping[str, int] | None) -> None:
        """Sets its own guaranteed amounts and max, by type name. None, or all zero, means "not set"."""
        number = self.types.number
        if guaranteed is not None and any(guaranteed.values()):
            self.guaranteed = {number(name): value for name, value in guaranteed.items()}
        else:
            self.guaranteed = None
        if maximum is not None and any(maximum.values()):
            self.own_maximum = {number(name): value for name, value in maximum.items()}
        else:
            self.own_maximum = None
        self.restrict(self.sources, self.external_maximum)

    def restrict(self, sources: tuple[str, ...], external: dict[int, int] | None) -> None:
        """Sets the max of external sources: by type, the smaller of this and the configured amount counts. All zero
        means zero.
        """
        self.sources, self.external_maximum = sources, external
        own = self.own_maximum
        if external is None or own is None:
            self.maximum = own if external is None else external
        else:
            self.maximum = {**own, **external}
            for number, value in own.items():
                self.maximum[number] = min(value, self.maximum[number])
        self.set_limit(self.maximum)

    def by_name(self, items: Mapping[int, int] | None) -> dict[str, int] | None:
        """Quantities by type name."""
        return None if items is None else {self.types.names[number]: value for number, value in items.items()}

    def unlink(self) -> None:
        """See :meth:`Ledger.unlink`."""
        super().unlink()
        for waitlist in self.waitlists.values():
            waitlist.unlink()
        self.waitlists.clear()
        self.children.clear()
        self.ready.clear()
        self.ready_apps, self.ready_priorities, self.fair_uses = SortedQueue(), Priorities(), None
        self.ancestry = self.line = () if self.parent is None else self.parent.ancestry

    def __repr__(self) -> str:
        return f"Queue({self.path})"


# Shape, the ledgers of user and group, required node, apart: groups with the same values wait for the same.
WaitKey = tuple[Shape, tuple[Tracker, ...], str, int]


class Waitlist:
    """The groups in one leaf that wait for the same reason, in the order in which the leaf would try them.

    The groups share leaf, shape, limits of users and required node (if any), so the limit or the lack of room that
    stops the first one stops all. The list as a whole is registered at the wait point that refused it, and only its
    first group is tried when that wait point gains. While the group is tried, the list is *in flight*, registered
    nowhere. A success wakes the next group; a refusal registers the list at the wait point that refused. (An ask for
    which the RM refused nodes is alone on a list, and asks of other durations are on other lists where such asks are
    backfilled: ``apart``.)

    :ivar wait_point: where the list is registered (a ledger's ``blocked``, the partition's ``no_node``, a required
        node); None: in flight.
    :ivar bench: the list's bench at that wait point; ``party``: the lists with which it reserves as if they were one
        (None: it reserves for itself).
    :ivar relay: the wait point that woke the list, until the other lists of its bench know the result.
    :ivar urgent: if priority does not come first in the leaf: its groups by priority, then in order.
    :ivar reason: the last reason; ``past``: the reasons before it (``reason_history.py``).
    :ivar due_ns: when it may reserve or preempt because of a long wait; 0: no deadline is set.
    :ivar tried: its turn was handled once with its present first ask.
    :ivar seen_ns: until when its turns were handled before a restart; 0: it was tried since then, or there was none.
    """

    __slots__ = (
        "apart",
        "bench",
        "due_ns",
        "gone",
        "groups",
        "key",
        "leaf",
        "party",
        "party_key",
        "past",
        "published",
        "reason",
        "relay",
        "required_node",
        "seen_ns",
        "shape",
        "trackers",
        "tried",
        "urgent",
        "wait_point",
    )

    def __init__(self, leaf: Queue, key: WaitKey) -> None:
        self.leaf = leaf
        self.key = key
        self.shape, self.trackers, self.required_node, self.apart = key
        together = (not self.apart or self.apart >= DURATION_FROM) and leaf.ancestry[-1].backfills
        self.party_key: tuple[Any, ...] | None = (leaf, *key[:-1]) if together else None
        self.groups: Any = SortedList()
        self.urgent: Any = None if leaf.priority_first else SortedList()
        self.wait_point: WaitPoint[Waitlist] | None = None
        self.bench: WaitQueue[Waitlist] | None = None
        self.party: ReservationGroup[Waitlist] | None = None
        self.relay: WaitPoint[Waitlist] | None = None
        self.reason: Reason | None = None
        self.past: Past = ()
        self.due_ns = 0
        self.tried = False
        self.seen_ns = 0
        self.gone = False
        self.published = False

    @property
    def user(self) -> str:
        """The user whose limits hold here, or ""."""
        return next((tracker.who for tracker in self.trackers if not tracker.group), "")

    @property
    def user_group(self) -> str:
        """The group whose limits hold here, or ""."""
        return next((tracker.who for tracker in self.trackers if tracker.group), "")

    @property
    def is_blocked(self) -> bool:
        """Whether a new group would be stopped, too: no group of its bench is being tried."""
        return self.bench is not None and not self.bench.moving

    def register(self, wait_point: WaitPoint[Waitlist] | None) -> None:
        """Moves the list to another wait point; None: in flight."""
        old = self.wait_point
        if old is wait_point:
            return
        if old is not None:
            old.remove(self)
        self.wait_point = wait_point
        self.bench = wait_point.add(self) if wait_point is not None else None
        self.party = wait_point.join_party(self) if wait_point is not None and self.party_key is not None else None
        if self.leaf.fair_uses is not None:
            self.leaf.fair_uses.registered(self)

    def unlink(self) -> None:
        """Leaves its wait point, which has ended, and forgets its groups."""
        self.wait_point = self.relay = self.bench = self.party = None
        self.groups.clear()
        if self.urgent is not None:
            self.urgent.clear()

    def requeue(self) -> None:
        """Puts the list at its place where it waits: its first group changed."""
        if self.bench is not None:
            self.bench.push(self)
        if self.party is not None:
            self.party.push(self)

    def __repr__(self) -> str:
        return f"Waitlist({self.leaf.path}, {self.shape.name})"
