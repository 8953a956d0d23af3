"""The objects of a partition: queues, nodes, applications, asks in their groups, allocations.

Plain data with the sums that decisions need. Only ``partition.py`` and its parts change them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from muster_si.constants import NODE_READY_ATTRIBUTE
from sortedcontainers import SortedList

from muster_scheduler.core.closing import ClosedBy, Closer
from muster_scheduler.core.config import ChildTemplateConfig
from muster_scheduler.core.places import Bench, GangLines, Place
from muster_scheduler.core.properties import QueuePolicy
from muster_scheduler.core.reasons import Reason
from muster_scheduler.core.resources import UNLIMITED, Shape, Types, Vector, saturated
from muster_scheduler.core.states import AppState, QueueState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from muster_scheduler.core.gang import Gang
    from muster_scheduler.core.inquiries import Asked, Inquiry, Refusals
    from muster_scheduler.core.past import Past


class Ledger:
    """Something under a limit, with what counts against it: a queue, or a user or group in one.

    :ivar path: of the queue.
    :ivar who: the user or group; "": it is the queue itself.
    :ivar allocated: what counts.
    :ivar limit: as a vector, UNLIMITED where it says nothing.
    :ivar blocked: the lists that this limit holds back.
    :ivar max_applications: how many may run; 0: any number.
    :ivar waiting_apps: applications that this maximum holds back, in order.
    :ivar promised: by type number, what gangs that have started will still take here; for other gangs it is taken.
    :ivar waiting_gangs: by leaf, the gangs for which as a whole there is no room here.
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
        "waiting_gangs",
        "who",
    )

    def __init__(self, types: Types, path: str, who: str = "") -> None:
        self.types = types
        self.path = path
        self.who = who
        self.limit: Vector = types.vector(UNLIMITED)
        self.allocated: Vector = types.vector()
        self.blocked = Place()
        self.max_applications = 0
        self.running_applications = 0
        self.waiting_apps: Any = SortedList()
        self.promised: dict[int, int] = {}
        self.waiting_gangs: dict[Queue, GangLines] = {}

    @property
    def is_full(self) -> bool:
        """It runs as many applications as it may."""
        return 0 < self.max_applications <= self.running_applications

    def set_limit(self, maximum: Mapping[int, int] | None) -> None:
        """Takes a limit by type number."""
        for index in range(len(self.limit)):
            self.limit[index] = UNLIMITED
        for index, value in (maximum or {}).items():
            self.limit[index] = value


class Tracker(Ledger):
    """What one user, or one group, uses below one queue that limits it (core-features §2.7).

    :ivar group: it is a group's.
    :ivar applications: how many live applications count here; without any it is forgotten.
    """

    __slots__ = ("applications", "group")

    def __init__(self, types: Types, path: str, who: str, *, group: bool) -> None:
        super().__init__(types, path, who)
        self.blocked = Place(own=True)
        self.group = group
        self.applications = 0

    def __repr__(self) -> str:
        return f"Tracker({'group' if self.group else 'user'} {self.who} in {self.path})"


class Queue(Ledger):
    """A queue: a parent of queues, or a leaf of applications.

    :ivar path: from root, lower case, dots between.
    :ivar ancestry: this queue and its ancestors up to root: where usage is summed.
    :ivar line: the same without root: where limits are checked (root's max is the cluster, which the nodes decide; but
        for pooled types, which are on no node).
    :ivar guaranteed: by type number; None: none.
    :ivar maximum: its max by type number; None: none. Of what it has of its own (``own_maximum``) and what ``sources``
        outside of the RM say (``external_maximum``), likewise by type number, the smaller one.
    :ivar fair_max: by type number, the nearest max on the path from here up, else the cluster's capacity.
    :ivar preempting: the part of ``allocated`` that was told to go.
    :ivar policy: what its properties mean.
    :ivar template: what dynamic leaves below it get.
    :ivar ready: of a parent: (key, child) of the children with something to try, best first.
    :ivar ready_apps: of a leaf: the applications with something to try, best first.
    :ivar lent: where priority does not come first in here: how many of the ready have which (negative) priority.
    :ivar waitlists: of a leaf: who waits there.
    :ivar ready_key: under which the parent's ``ready`` holds this queue; None: it does not.
    :ivar quota_ns: when what is above its max will be preempted; 0: never.
    :ivar created_ns: when it was announced; 0: before that was recorded.
    """

    def __init__(self, types: Types, name: str, parent: Queue | None, *, leaf: bool, managed: bool) -> None:
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
        self.properties: dict[str, str] = {}
        self.policy = QueuePolicy()
        self.fair_apps = False
        self.priority_first = True
        self.template: ChildTemplateConfig | None = None
        self.submit_acl = ""
        self.admin_acl = ""
        self.applications: dict[str, Application] = {}
        self.ready: list[tuple[Any, ...]] = []
        self.ready_apps: Any = SortedList()
        self.lent: dict[int, int] = {}
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
        """Takes guaranteed and max of its own, by type name; None or all-zero is "not set" (core-features §2.1)."""
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
        """Takes what sources outside of the RM say of its max: the smaller counts, type by type; all-zero is zero."""
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

    def __repr__(self) -> str:
        return f"Queue({self.path})"


@dataclass(slots=True)
class NodeReport:
    """What the RM itself says of a node, of which sources speak, too.

    :ivar capacity: by type name, zeros included; None: it did not create the node, it only drains it.
    :ivar by_operator: it is an operator who drains it.
    """

    attributes: dict[str, str]
    capacity: dict[str, int] | None
    occupied: dict[str, int]
    schedulable: bool = True
    by_operator: bool = False


class Node:
    """A node. ``available = capacity - allocated - occupied``; it is negative while a node is over-committed by its RM.

    :ivar schedulable: the RM does not drain it; ``ready``: its attributes do not say that it is not.
    :ivar by_operator: the RM's own drain is an operator's.
    :ivar closed_by: who keeps it from what is new, or wants back what is lent of it; None: nobody, but it may not be
        ready. Of a node that sources speak of it is not recorded (``PartitionExternal.closer_of``).
    :ivar reported_occupied: NodeInfo.occupiedResource, absolute (with what sources outside of the RM say on top);
        foreign allocations come on top in ``occupied``.
    :ivar sources: those outside of the RM that take part in it, sorted. What counts is in the other fields.
    :ivar reported: what the RM itself says, where that is not just what counts; None: it is, or (with ``sources``) they
        brought the node, and the RM says nothing.
    :ivar pooled: by type number, what is said of its own of types that are pooled: it does not count (``pools.py``).
    :ivar lent: a source lends parts of it, or did: what is used of it matters to ``offers.py``.
    :ivar disputed: where the RM or one source says more than another, in words; "": nowhere.
    :ivar index_key: its key in the node index; None: not in it (draining, or reserved).
    :ivar reservations: the asks that it is kept free for, in order.
    :ivar inquiries: what the RM is being asked about it; what it would place here counts in ``allocated`` already.
    :ivar refused_by: the asks for which the RM refused it.
    """

    __slots__ = (
        "allocated",
        "allocations",
        "attributes",
        "available",
        "by_operator",
        "capacity",
        "closed_by",
        "created_ns",
        "disputed",
        "foreign",
        "gone",
        "index_key",
        "inquiries",
        "lent",
        "node_id",
        "occupied",
        "pooled",
        "published",
        "ready",
        "refused_by",
        "reported",
        "reported_occupied",
        "reservations",
        "schedulable",
        "sources",
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
        self.pooled: dict[int, int] = {}
        self.reported_occupied: dict[str, int] = {}
        self.sources: tuple[str, ...] = ()
        self.reported: NodeReport | None = None
        self.disputed = ""
        self.lent = False
        self.schedulable = self.ready = True
        self.by_operator = False
        self.closed_by: Closer | None = None
        self.submission = 0
        self.created_ns = 0
        self.allocations: dict[tuple[str, str], Allocation] = {}
        self.foreign: dict[str, Allocation] = {}
        self.index_key: tuple[float, str] | None = None
        self.reservations: dict[Ask, None] = {}
        self.inquiries: dict[Inquiry, None] = {}
        self.refused_by: dict[Ask, None] = {}
        self.gone = False
        self.published = False

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Takes what the RM says of it, also whether it is ready (seed 001, NodeReadyAttribute)."""
        self.attributes = dict(attributes)
        self.ready = is_ready(attributes) is not False

    def named_capacity(self) -> dict[str, int]:
        """Its capacity as it was said, by type name: that of pooled types too, which does not count."""
        types = self.types
        found = types.quantities(self.capacity)
        if self.pooled:
            found.update((types.names[number], saturated(value)) for number, value in self.pooled.items())
        return found

    @property
    def of_rm(self) -> bool:
        """The RM created it; False: sources brought it."""
        return not self.sources if self.reported is None else self.reported.capacity is not None

    @property
    def usable(self) -> bool:
        """New allocations may go there (a daemon's go there in any case)."""
        return self.schedulable and self.ready

    @property
    def closer(self) -> Closer | None:
        """Who closes it, as far as it knows itself."""
        if self.schedulable and not self.ready:
            return _NOT_READY
        return self.closed_by

    def __repr__(self) -> str:
        return f"Node({self.node_id})"


_NOT_READY = Closer(ClosedBy.NOT_READY)
# As Go's strconv.ParseBool reads them, with which RMs and the real core do.
_READY = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


def is_ready(attributes: Mapping[str, str]) -> bool | None:
    """What a node's attributes say of its being ready; None: nothing that can be read."""
    return _READY.get(attributes.get(NODE_READY_ATTRIBUTE, ""))


@dataclass(slots=True, eq=False)
class Demand:
    """What was asked for, in the RM's words: shared by an ask and all the allocations made for it; never changed.

    :ivar submission: order of arrival; an ask that is sent again keeps its number.
    :ivar created_ns: when it was asked for, as the RM says (tag creationTime) or as it came in.
    :ivar previous_generation: it came as si.v1.AllocationAsk, and its allocations carry a UUID (seed 001).
    :ivar required_node: the one node that it may run on (a daemon); "": any.
    :ivar changed_ns: of an allocation that the RM changed while it ran: since when it has this size; 0: from the start.
    """

    key: str
    shape: Shape
    priority: int
    submission: int
    created_ns: int
    tags: dict[str, str]
    task_group: str = ""
    placeholder: bool = False
    originator: bool = False
    allow_preempt_self: bool = False
    allow_preempt_other: bool = False
    has_preemption_policy: bool = False
    execution_timeout_ms: int = 0
    previous_generation: bool = False
    required_node: str = ""
    changed_ns: int = 0

    def same_as(self, other: Demand) -> bool:
        """Whether an RM that sent both asked for the same."""
        return all(getattr(self, name) == getattr(other, name) for name in _SAID)


_SAID = tuple(name for name in Demand.__slots__ if name not in ("key", "submission", "changed_ns"))


class _Demanded:
    """The words of the demand, read through."""

    __slots__ = ()
    demand: Demand

    @property
    def key(self) -> str:
        """The allocationKey."""
        return self.demand.key

    @property
    def shape(self) -> Shape:
        """What it takes."""
        return self.demand.shape

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.demand.priority

    @property
    def submission(self) -> int:
        """Order of arrival."""
        return self.demand.submission

    @property
    def created_ns(self) -> int:
        """When it was asked for."""
        return self.demand.created_ns

    @property
    def tags(self) -> dict[str, str]:
        """As the RM said."""
        return self.demand.tags

    @property
    def task_group(self) -> str:
        """The gang's part that it belongs to, or ""."""
        return self.demand.task_group

    @property
    def placeholder(self) -> bool:
        """It holds room for a later ask of its task group."""
        return self.demand.placeholder

    @property
    def originator(self) -> bool:
        """It is the application's first pod, preempted last."""
        return self.demand.originator

    @property
    def allow_preempt_self(self) -> bool:
        """It may be preempted."""
        return self.demand.allow_preempt_self

    @property
    def allow_preempt_other(self) -> bool:
        """It may preempt."""
        return self.demand.allow_preempt_other

    @property
    def has_preemption_policy(self) -> bool:
        """The RM said something about preemption at all."""
        return self.demand.has_preemption_policy

    @property
    def execution_timeout_ms(self) -> int:
        """How long it may run (seed 001); 0 or less: for ever."""
        return self.demand.execution_timeout_ms

    @property
    def previous_generation(self) -> bool:
        """It came as si.v1.AllocationAsk."""
        return self.demand.previous_generation


# What people were told of an ask last (``telling.py``): it does not fit in its queue, or in the quota of its user or
# group; the RM refuses every node for it; nothing may be preempted on the node that it must have. (They are recorded.)
TOLD_QUEUE, TOLD_USER, TOLD_REFUSED, TOLD_NO_VICTIM = 1, 2, 4, 8


class Ask(_Demanded):
    """What an application wants: ``pending`` more allocations of one demand.

    :ivar allocated: how many allocations were made for it.
    :ivar reserved: the node that is kept free for it; ``reserved_ns``: since when.
    :ivar preempts: victims were chosen for it; it does so once.
    :ivar scaled_up: the RM was told that the cluster is too small for it (autoscaling).
    :ivar mismatched: no placeholder of its task group was as large: it goes its way without them.
    :ivar inquiries: what the RM is being asked about its places; each stands for one of the pending ones.
    :ivar asked: what the RM has been asked for long, and not answered.
    :ivar refusals: the nodes that the RM refused for it; with any, it stands apart from those like it.
    :ivar told: what people were told of it last: the sum of ``TOLD_…``.
    """

    __slots__ = (
        "allocated",
        "app",
        "asked",
        "demand",
        "gone",
        "group",
        "inquiries",
        "mismatched",
        "pending",
        "preempts",
        "published",
        "refusals",
        "reserved",
        "reserved_ns",
        "scaled_up",
        "told",
    )

    def __init__(self, app: Application, demand: Demand, pending: int = 1, allocated: int = 0) -> None:
        self.app = app
        self.demand = demand
        self.pending = pending
        self.allocated = allocated
        self.group: AskGroup | None = None
        self.reserved: Node | None = None
        self.reserved_ns = 0
        self.preempts = False
        self.scaled_up = False
        self.mismatched = False
        self.inquiries: dict[Inquiry, None] | None = None
        self.asked: Asked | None = None
        self.refusals: Refusals | None = None
        self.told = 0
        self.gone = False
        self.published = False

    @property
    def open(self) -> int:
        """How many of the pending ones neither have a placeholder that makes room, nor wait for the RM's answer."""
        left = self.pending if self.inquiries is None else self.pending - len(self.inquiries)
        gang = self.app.gang
        if gang is None or not gang.replacing:
            return left
        return left - len(gang.replacing.get(self.demand.key, ()))

    @property
    def apart(self) -> int:
        """Tells it from those like it while nodes are refused for it; 0: it shares their fate."""
        return self.demand.submission if self.refusals is not None else 0

    @property
    def awaits_placeholders(self) -> bool:
        """Placeholders were told to go for it. What is reserved for it is for that then."""
        gang = self.app.gang
        return gang is not None and self.demand.key in gang.replacing

    @property
    def reason(self) -> Reason | None:
        """Why it is pending; None: the scheduler has not come to it yet."""
        if self.asked is not None:
            return self.asked.reason
        if self.group is not None:
            return self.group.reason
        if self.inquiries:
            return next(iter(self.inquiries)).asked.reason
        gang = self.app.gang
        return gang.leaving_reason(self) if gang is not None else None

    def __repr__(self) -> str:
        return f"Ask({self.app.app_id}, {self.demand.key})"


class PreemptionRule(StrEnum):
    """By which rule an allocation was preempted."""

    # For a queue under its guarantee, from one above its own.
    GUARANTEE = "GUARANTEE"
    # For a higher priority in the same leaf.
    PRIORITY = "PRIORITY"
    # For an ask that can run on this node only.
    REQUIRED_NODE = "REQUIRED_NODE"
    # Its queue is above its max, which was lowered.
    QUOTA = "QUOTA"
    # What it runs on was lent, and is wanted back by its source.
    REVOKED = "REVOKED"


@dataclass(frozen=True, slots=True)
class Replaced:
    """The placeholder whose place a real allocation took."""

    key: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """Why an allocation must go, and for whom: the whole story of one preemption.

    Shares are the fair share of a queue (used of guaranteed, else of its fair max), without and with what is preempted.

    :param app_id: of the ask that it makes room for, and ``key``, ``queue``: its key and leaf; of QUOTA: "" , "" and
        the queue that is over its max; of REVOKED: "", the source and its offer (``mesos/o-17``), "".
    """

    rule: PreemptionRule
    app_id: str
    key: str
    queue: str
    since_ns: int
    victim_share_before: float = 0.0
    victim_share_after: float = 0.0
    asker_share_before: float = 0.0
    asker_share_after: float = 0.0


class Allocation(_Demanded):
    """A part of a node that an application holds.

    :ivar ordinal: n of an ask with repeats, from 0; ``unique_key`` tells them apart.
    :ivar foreign: held by somebody else, known so that the node's free resources are right.
    :ivar preempted: it was told to go, and counts until the RM confirms.
    :ivar timed_out: it was told to go because its time was up, and counts until the RM confirms.
    :ivar replaced_by: of a placeholder: the key of the real ask for which it was told to go, and counts until the RM
        confirms; "": that ask is gone meanwhile; None: it was not.
    :ivar agreed_node: of a placeholder: where the RM agreed to the ask that takes its place; "": it was not asked (or
        before a restart), it may be its own node or the one that is kept for the ask.
    :ivar told_ns: when it was told to go, whyever; 0: it was not. ``reminder_ns``: when it will be told again.
    :ivar replaces: the placeholder whose place it took.
    :ivar source: outside of the RM, that runs it; "": the RM does. The RM is told nothing of it.
    :ivar shown: a follower's, whose allocations never change: as text, once it was asked for. The core leaves it alone.
    """

    __slots__ = (
        "agreed_node",
        "allocated_ns",
        "app",
        "demand",
        "foreign",
        "gone",
        "node_id",
        "ordinal",
        "preempted",
        "published",
        "reminder_ns",
        "replaced_by",
        "replaces",
        "shown",
        "source",
        "timed_out",
        "told_ns",
        "uuid",
    )

    def __init__(
        self,
        app: Application | None,
        demand: Demand,
        node_id: str,
        allocated_ns: int,
        ordinal: int = 0,
        uuid: str = "",
    ) -> None:
        self.app = app
        self.demand = demand
        self.node_id = node_id
        self.allocated_ns = allocated_ns
        self.ordinal = ordinal
        self.uuid = uuid
        self.foreign = app is None
        self.preempted: Preempted | None = None
        self.timed_out = False
        self.replaced_by: str | None = None
        self.agreed_node = ""
        self.told_ns = self.reminder_ns = 0
        self.replaces: Replaced | None = None
        self.source = ""
        self.shown: bytes | None = None
        self.gone = False
        self.published = False

    @property
    def unique_key(self) -> str:
        """See :func:`unique_key`."""
        return unique_key(self.demand.key, self.ordinal)

    @property
    def foreign_id(self) -> str:
        """Under which a foreign allocation is filed: the RM's by its key, which may be any name; a source's apart."""
        return foreign_id(self.demand.key, self.source)

    @property
    def told(self) -> bool:
        """It was told to go, and counts until the RM confirms that it went."""
        return self.preempted is not None or self.timed_out or self.replaced_by is not None

    @property
    def app_id(self) -> str:
        """The application's id; "" for a foreign allocation."""
        return self.app.app_id if self.app is not None else ""

    def __repr__(self) -> str:
        return f"Allocation({self.app_id}, {self.unique_key} on {self.node_id})"


def unique_key(key: str, ordinal: int) -> str:
    """Unique within an application: the key, and '#n' from the second allocation of an ask on.

    A '#' of the key itself is doubled, so that the ask "k#1" and the second allocation of the ask "k" stay apart.
    """
    if "#" in key:
        key = key.replace("#", "##")
    return f"{key}#{ordinal}" if ordinal else key


def foreign_id(key: str, source: str) -> str:
    """See :attr:`Allocation.foreign_id`. (No name that comes in has this character.)"""
    return f"{key}\0{source}" if source else key


def made_uuid(submission: int, ordinal: int, now_ns: int) -> str:
    """An allocation's UUID, where the RM gave none (seed 001): unique, over a log that was lost too.

    (Numbers of submission begin anew then, time does not; and the RM reports what it was given before.)
    """
    return f"{submission:x}-{ordinal}-{now_ns:x}"


# A group's heap may have so many places more than twice its asks.
_HEAP_SPARE = 16


class AskGroup:
    """The asks of one application that are alike in all that decides where they may go, and what for.

    They share one fate: when one does not fit, none does. So a group is tried, parked and woken as one.

    :ivar heap: (created_ns, submission, push, ask), oldest first; asks that are gone are skipped. (An ask that was
        changed has the submission of the one that it replaced; the number of the push tells them apart.)
    :ivar wait_key: which of its leaf's waitlists it would wait on.
    :ivar ready_key: under which the application's ``ready`` holds it; None: it does not.
    :ivar parked_key: under which its waitlist holds it; None: it is ready, or empty.
    :ivar unreported: asks that the RM was not told of as too large for the cluster; perhaps gone meanwhile.
    :ivar task_group: of asks that placeholders hold room for, or "".
    :ivar placeholder: they are placeholders' asks.
    :ivar apart: of one ask alone, for which the RM refused nodes (:attr:`Ask.apart`); 0: of all that are alike.
    :ivar told_skipped: of which ask, and for what, the RM was told last that it is skipped.
    :ivar held: the gang keeps it from being tried (:meth:`Gang.holds`): it is neither ready nor parked.
    :ivar stood: what stood against its asks when people were told of them last (``telling.py``); None: never.
    :ivar untold: those of them who came since.
    """

    __slots__ = (
        "apart",
        "app",
        "asks",
        "heap",
        "held",
        "key",
        "parked_key",
        "placeholder",
        "preempts",
        "priority",
        "pushes",
        "ready_key",
        "required_node",
        "shape",
        "stood",
        "task_group",
        "told_skipped",
        "unreported",
        "untold",
        "wait_key",
    )

    def __init__(self, app: Application, key: GroupKey) -> None:
        self.app = app
        self.key = key
        self.shape, self.priority, self.required_node, self.preempts, self.task_group, self.placeholder = key[:6]
        self.apart: int = key[6]
        self.wait_key: WaitKey = (self.shape, app.trackers, self.required_node, self.apart)
        self.heap: list[tuple[int, int, int, Ask]] = []
        self.pushes = 0
        self.asks = 0
        self.ready_key: tuple[Any, ...] | None = None
        self.parked_key: tuple[Any, ...] | None = None
        self.unreported: list[Ask] = []
        self.told_skipped: tuple[int, str] | None = None
        self.held = False
        self.stood: int | None = None
        self.untold: list[Ask] | None = None

    @property
    def reason(self) -> Reason | None:
        """Why its asks are pending; None: the scheduler has not come to them yet."""
        if self.app.reason is not None:
            return self.app.reason
        held = self.app.gang.hold_reason(self) if self.app.gang is not None else None
        if held is not None:
            return held
        waitlist = self.app.queue.waitlists.get(self.wait_key)
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
        demand = ask.demand
        heapq.heappush(self.heap, (demand.created_ns, demand.submission, self.pushes, ask))
        self.asks += 1
        if not ask.scaled_up:
            self.unreported.append(ask)

    def pull(self, ask: Ask) -> None:
        """Takes an ask out. Its place in the heap goes when it comes up, or when such places outnumber the asks."""
        ask.group = None
        self.asks -= 1
        if len(self.heap) > 2 * self.asks + _HEAP_SPARE:
            self.heap = [entry for entry in self.heap if entry[3].group is self]
            heapq.heapify(self.heap)
        if len(self.unreported) > 2 * self.asks + _HEAP_SPARE:
            self.unreported = [waiting for waiting in self.unreported if waiting.group is self]

    def __repr__(self) -> str:
        return f"AskGroup({self.app.app_id}, {self.shape.name}, priority={self.priority})"


class Waitlist:
    """The groups in one leaf that wait for the same, in the order in which the leaf would try them, and why.

    Same shape, same leaf, same user limits, same required node (if any): what stops the first of them stops all. So the
    list as a whole is registered at the one thing that it waits for, and only its first group is tried when that
    gained. While that group is tried the list is *in flight*: registered nowhere; success wakes the next group, a "no"
    registers the list where it was said. (An ask for which the RM refused nodes is alone on a list: ``apart``.)

    :ivar place: where it is registered (a ledger's ``blocked``, the partition's ``no_node``, a node that is required);
        None: in flight.
    :ivar bench: with whom it waits there.
    :ivar awake: the one that was woken last.
    :ivar relay: the place that it was woken from, while those who wait with it there do not know how it went.
    :ivar reason: the last "no" that one of them got; ``past``: those before it (``past.py``).
    :ivar due_ns: when it comes to its rights of waiting long (a reservation, a preemption); 0: not asked for.
    :ivar tried: its turn was seen to once since its first ask is the first.
    :ivar seen_ns: until when its turns were seen to before a restart; 0: there was none.
    :ivar unreported: its groups with asks that the RM was not told of as too large for the cluster.
    """

    __slots__ = (
        "apart",
        "awake",
        "bench",
        "due_ns",
        "gone",
        "groups",
        "key",
        "leaf",
        "past",
        "place",
        "published",
        "reason",
        "relay",
        "required_node",
        "seen_ns",
        "shape",
        "trackers",
        "tried",
        "unreported",
    )

    def __init__(self, leaf: Queue, key: WaitKey) -> None:
        self.leaf = leaf
        self.key = key
        self.shape, self.trackers, self.required_node, self.apart = key
        self.groups: Any = SortedList()
        self.place: Place | None = None
        self.bench: Bench | None = None
        self.awake: AskGroup | None = None
        self.relay: Place | None = None
        self.reason: Reason | None = None
        self.past: Past = ()
        self.due_ns = 0
        self.tried = False
        self.seen_ns = 0
        self.unreported: dict[AskGroup, None] = {}
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
    def holds(self) -> bool:
        """What stops its groups stops a new one too: nobody is about to find out otherwise."""
        return self.bench is not None and not self.bench.moving

    def register(self, place: Place | None) -> None:
        """Moves the list to another place; None: in flight."""
        old = self.place
        if old is place:
            return
        if old is not None:
            old.remove(self)
        self.place = place
        if place is not None:
            place.add(self)

    def park(self, group: AskGroup, key: tuple[Any, ...]) -> None:
        """Takes a group in."""
        group.held = False
        self.groups.add((*key, group))
        group.parked_key = key
        group.app.parked += 1
        if group.unreported:
            self.unreported[group] = None
        if self.bench is not None and self.groups[0][-1] is group:
            self.bench.place(self)

    def unpark(self, group: AskGroup) -> None:
        """Takes a group out."""
        assert group.parked_key is not None, f"{group} is not parked"
        was_first = self.bench is not None and self.groups[0][-1] is group
        self.groups.remove((*group.parked_key, group))
        group.parked_key = None
        group.app.parked -= 1
        self.unreported.pop(group, None)
        if was_first and self.bench is not None:
            self.bench.place(self)

    def __repr__(self) -> str:
        return f"Waitlist({self.leaf.path}, {self.shape.name})"


def in_order(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Many at once, in an order that does not depend on whether they were decided or folded."""
    return sorted(allocations, key=lambda held: (held.allocated_ns, held.submission, held.ordinal))


# Shape, priority, required node, whether it may preempt, task group, placeholder, apart: what makes asks of one
# application alike.
GroupKey = tuple[Shape, int, str, bool, str, bool, int]
# Shape, the user's and group's ledgers, required node, apart: what makes them wait for the same.
WaitKey = tuple[Shape, tuple[Tracker, ...], str, int]


class Application:
    """An application in a leaf queue.

    :ivar submitted_ns: when it, or the oldest of its asks, was submitted: its place in FIFO (core-features §2.11).
    :ivar story: (time, state), oldest first; of a long one, how it began and how it ends.
    :ivar allocations: by unique key.
    :ivar repeats: those with an ordinal, by key and ordinal.
    :ivar by_uuid: those with a UUID.
    :ivar trackers: its user's and its group's ledgers on the way up, where limits stand.
    :ivar bounds: whose limits its asks must keep, in the order of looking: those, then its queues below root (and root,
        while anything is pooled).
    :ivar ledgers: where its allocations count: those, and all of its queues.
    :ivar usage: what it has used so far, see ``usage.py``.
    :ivar most_used: by type name, the most that its real allocations or its placeholders held at once, as of the last
        end of one: what they hold now may be more.
    :ivar share: its fair share, as long as neither what it holds nor its queue's guaranteed changed; None: to measure.
    :ivar parked: how many of its groups are parked.
    :ivar counted: whether it counts as running against the maxima of applications.
    :ivar waiting_at: who runs as many applications as it may: a queue, user or group; ``waiting_key``: its place there.
    :ivar waits_whole: it waits there for room for its gang, not to run.
    :ivar reason: why the application as a whole may not run; None: it may, or has not been tried. ``past``: what it, or
        its asks of one shape, waited for before (``past.py``).
    :ivar gang: its placeholders; None: it has none, and announced none.
    :ivar proposed: how many of its asks are booked on a node while the RM is asked.
    :ivar source: outside of the RM, that brought it; "": the RM did. It never completes by itself.
    """

    def __init__(self, types: Types, app_id: str, queue: Queue, submission: int, submitted_ns: int) -> None:
        self.app_id = app_id
        self.queue = queue
        self.submission = submission
        self.submitted_ns = submitted_ns
        self.requested_queue = ""
        self.user = ""
        self.groups_of_user: tuple[str, ...] = ()
        self.user_group = ""
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
        self.usage: dict[str, dict[str, dict[str, int]]] = {}
        self.most_used: dict[str, int] = {}
        self.asks: dict[str, Ask] = {}
        self.allocations: dict[str, Allocation] = {}
        self.repeats: dict[str, dict[int, Allocation]] = {}
        self.by_uuid: dict[str, dict[Allocation, None]] = {}
        self.groups: dict[GroupKey, AskGroup] = {}
        self.trackers: tuple[Tracker, ...] = ()
        self.bounds: tuple[Ledger, ...] = queue.line
        self.ledgers: tuple[Ledger, ...] = queue.ancestry
        self.allocated: Vector = types.vector()
        self.pending: Vector = types.vector()
        self.ready: list[tuple[Any, ...]] = []
        self.ready_key: tuple[Any, ...] | None = None
        self.parked = 0
        self.share: tuple[float, ...] | None = None
        self.counted = False
        self.waiting_at: Ledger | None = None
        self.waits_whole = False
        self.waiting_key: tuple[int, int, int] = (0, 0, 0)
        self.reason: Reason | None = None
        self.past: Past = ()
        self.gang: Gang | None = None
        self.proposed = 0
        self.source = ""
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
