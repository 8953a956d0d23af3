"""What goes out of both doors: response facts, events, and the objects that changed. Plain data for one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from muster_scheduler.core.commands import Termination
from muster_scheduler.core.external_books import ExternalEntry, SourceEntry
from muster_scheduler.core.objects import Allocation, Application, Ask, Node, Queue, Waitlist
from muster_scheduler.core.resources import Shape

Quantities = Shape | dict[str, int] | None


class EventType(IntEnum):
    """si.v1.EventRecord.Type."""

    REQUEST = 1
    APP = 2
    NODE = 3
    QUEUE = 4
    USERGROUP = 5


class Change(IntEnum):
    """si.v1.EventRecord.ChangeType."""

    NONE = 0
    SET = 1
    ADD = 2
    REMOVE = 3


class Detail(IntEnum):
    """si.v1.EventRecord.ChangeDetail, as far as the core says it."""

    NONE = 0
    REQUEST_CANCEL = 100
    REQUEST_TIMEOUT = 102
    APP_ALLOC = 200
    APP_REQUEST = 201
    APP_REJECT = 202
    APP_NEW = 203
    APP_ACCEPTED = 204
    APP_STARTING = 205
    APP_RUNNING = 206
    APP_COMPLETING = 207
    APP_COMPLETED = 208
    APP_FAILING = 209
    APP_FAILED = 210
    APP_RESUMING = 211
    APP_EXPIRED = 212
    APP_CANNOTRUN_QUEUE = 213
    APP_RUNNABLE_QUEUE = 214
    APP_CANNOTRUN_QUOTA = 215
    APP_RUNNABLE_QUOTA = 216
    NODE_DECOMISSION = 300
    NODE_READY = 301
    NODE_SCHEDULABLE = 302
    NODE_ALLOC = 303
    NODE_CAPACITY = 304
    NODE_OCCUPIED = 305
    NODE_RESERVATION = 306
    QUEUE_CONFIG = 400
    QUEUE_DYNAMIC = 401
    QUEUE_TYPE = 402
    QUEUE_MAX = 403
    QUEUE_GUARANTEED = 404
    QUEUE_APP = 405
    QUEUE_PREEMPTION = 407
    ALLOC_CANCEL = 500
    ALLOC_PREEMPT = 501
    ALLOC_TIMEOUT = 502
    ALLOC_REPLACED = 503
    ALLOC_NODEREMOVED = 504
    UG_USER_LIMIT = 600
    UG_GROUP_LIMIT = 601
    UG_APP_LINK = 602
    UG_USER_RESOURCE = 603
    UG_GROUP_RESOURCE = 604


class Event(NamedTuple):
    """One event (seed 002); the shell adds its id."""

    type: EventType
    change: Change
    detail: Detail
    object_id: str
    reference_id: str = ""
    resource: Quantities = None
    message: str = ""
    now_ns: int = 0


# As Event(…), without its Python function.
_event: Callable[[tuple[EventType, Change, Detail, str, str, Quantities, str, int]], Event] = partial(
    tuple.__new__, Event
)


class NewAllocation(NamedTuple):
    """An allocation was made, or adopted from the RM's report and only echoed."""

    partition: str
    allocation: Allocation
    adopted: bool = False


class ReleasedAllocation(NamedTuple):
    """An allocation ended: acknowledged for the RM, or decided here.

    :ivar reminder: it was told to go before, and is told again.
    """

    partition: str
    app_id: str
    key: str
    uuid: str
    termination: Termination
    message: str
    previous_generation: bool
    reminder: bool = False


class ReleasedAsk(NamedTuple):
    """An ask is pending no more, by the scheduler's decision."""

    partition: str
    app_id: str
    key: str
    termination: Termination
    message: str
    previous_generation: bool


class RejectedAsk(NamedTuple):
    """An ask (or an existing allocation) that cannot be taken."""

    key: str
    app_id: str
    reason: str
    previous_generation: bool


class AcceptedApplication(NamedTuple):
    """The application is in its queue."""

    app_id: str


class RejectedApplication(NamedTuple):
    """The application cannot be taken."""

    app_id: str
    reason: str


class UpdatedApplication(NamedTuple):
    """The application's state changed."""

    app_id: str
    state: str
    now_ns: int
    message: str


class AcceptedNode(NamedTuple):
    """The node is known now."""

    node_id: str


class RejectedNode(NamedTuple):
    """The node's change cannot be taken; nothing of it happened."""

    node_id: str
    reason: str


class TooSmallCluster(NamedTuple):
    """An ask fits its queues and its user's limits, and no node: a larger cluster would help (autoscaling)."""

    partition: str
    app_id: str
    key: str
    now_ns: int


class PredicatesAsked(NamedTuple):
    """The RM is asked whether the ask may go to the node, before it does (seed 000, PredicatesArgs)."""

    question: int
    partition: str
    app_id: str
    key: str
    node_id: str
    allocate: bool
    due_ns: int


class PreemptionPredicatesAsked(NamedTuple):
    """The RM is asked whether the ask may go to the node once these are gone (seed 000, PreemptionPredicatesArgs).

    :ivar victims: (application id, allocation key), in the order in which they would be told; the first ``least`` go in
        any case, the others if the RM says so.
    """

    question: int
    partition: str
    app_id: str
    key: str
    node_id: str
    victims: tuple[tuple[str, str], ...]
    least: int
    due_ns: int


class QuestionRefused(NamedTuple):
    """The RM said no to a question, or nothing in time. For the tally; it is not told."""

    question: int
    unanswered: bool


class SchedulingState(IntEnum):
    """si.v1.UpdateContainerSchedulingStateRequest.SchedulingState, as far as the core says it."""

    SKIPPED = 1
    RESERVED = 3
    FAILED = 4


class SchedulingStateChanged(NamedTuple):
    """Where an ask stands, for an RM that wants to know (seed 000, UpdateContainerSchedulingStateRequest)."""

    app_id: str
    key: str
    state: SchedulingState
    reason: str


class ConfigurationAnswer(NamedTuple):
    """Another configuration is in force; or it is not, and nothing changed.

    :ivar obstacles: why not; empty: it is.
    """

    obstacles: tuple[str, ...]


Fact = (
    NewAllocation
    | ReleasedAllocation
    | ReleasedAsk
    | RejectedAsk
    | AcceptedApplication
    | RejectedApplication
    | UpdatedApplication
    | AcceptedNode
    | RejectedNode
    | TooSmallCluster
    | PredicatesAsked
    | PreemptionPredicatesAsked
    | QuestionRefused
    | SchedulingStateChanged
    | ConfigurationAnswer
)
Primary = Node | Queue | Application | Ask | Allocation | Waitlist | SourceEntry | ExternalEntry


_PARENTS_FIRST: dict[type, int] = {
    kind: place
    for place, kind in enumerate(
        (SourceEntry, ExternalEntry, Queue, Node, Application, Ask, Allocation, Waitlist),
    )
}
_QUEUES = _PARENTS_FIRST[Queue]


def _depth(what: tuple[str, Primary]) -> int:
    return what[1].path.count(".") if isinstance(what[1], Queue) else 0


class Outcome:
    """Collects what one transaction will carry, over as many commands and cycles as the shell puts into it.

    :ivar facts: for the RM, in the order in which they became true.
    :ivar events: in the same order.
    :ivar tracking: whether anybody wants events of what changes; the core's doors set it (:meth:`track`).
    :ivar requests: whether the RM wants events that people read beside their asks; likewise (:meth:`tell_people`).
    :ivar released: allocations that went because the RM said so, or removed their node. (Events may be off.)
    """

    __slots__ = ("_touched", "events", "facts", "released", "requests", "tracking")

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.events: list[Event] = []
        self.tracking = True
        self.requests = False
        self.released = 0
        self._touched: dict[Primary, str] = {}

    def track(
        self,
        about: EventType,
        change: Change,
        detail: Detail,
        object_id: str,
        reference_id: str = "",
        resource: Quantities = None,
        message: str = "",
        *,
        now_ns: int,
    ) -> None:
        """An event of something that changed, unless nobody wants any."""
        if self.tracking:
            self.events.append(_event((about, change, detail, object_id, reference_id, resource, message, now_ns)))

    def tell_people(self, key: str, app_id: str, resource: Quantities, message: str, now_ns: int) -> None:
        """An event about an ask or its allocation that changes nothing, for people (seed 002, "SHIM events")."""
        if self.requests:
            self.events.append(
                Event(EventType.REQUEST, Change.NONE, Detail.NONE, key, app_id, resource, message, now_ns)
            )

    def touch(self, changed: Primary, partition: str) -> None:
        """The object changed (or went). Told any number of times, it is written once."""
        self._touched[changed] = partition

    def objects(self) -> Iterator[tuple[str, Primary, bool]]:
        """(partition, object, whether it is alive) of what must be written; to be drained once.

        First what is gone, children before parents; then what is alive, parents before children: in the order in which
        a follower can take them. An object that came and went within this outcome is not written at all.
        """
        gone: list[list[tuple[str, Primary]]] = [[] for _ in _PARENTS_FIRST]
        alive: list[list[tuple[str, Primary]]] = [[] for _ in _PARENTS_FIRST]
        for changed, partition in self._touched.items():
            if not changed.gone:
                changed.published = True
                alive[_PARENTS_FIRST[type(changed)]].append((partition, changed))
            elif changed.published:
                changed.published = False
                gone[_PARENTS_FIRST[type(changed)]].append((partition, changed))
        self._touched.clear()
        for queues in (gone[_QUEUES], alive[_QUEUES]):
            queues.sort(key=_depth)
        for kind in reversed(gone):
            yield from ((partition, changed, False) for partition, changed in reversed(kind))
        for kind in alive:
            yield from ((partition, changed, True) for partition, changed in kind)

    def __bool__(self) -> bool:
        return bool(self.facts or self.events or self._touched)
