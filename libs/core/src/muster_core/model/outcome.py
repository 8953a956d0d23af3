"""The results of both entry points: response facts, events, and changed objects, as plain data for one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from muster_core.external.reports import ReportedObject, SourceEntry
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import Termination
from muster_core.model.decayed_usage import UserUsage
from muster_core.model.demand import Demand
from muster_core.model.node import Node
from muster_core.model.queue import Queue, Waitlist
from muster_core.model.resources import Shape
from muster_core.model.steps import LIGHT_STEP, STEP, emptied

Quantities = Shape | dict[str, int] | None


class EventType(IntEnum):
    """si.v1.EventRecord.Type."""

    REQUEST = 1
    APP = 2
    NODE = 3
    QUEUE = 4
    USERGROUP = 5


class EventChange(IntEnum):
    """si.v1.EventRecord.ChangeType."""

    NONE = 0
    SET = 1
    ADD = 2
    REMOVE = 3


class EventDetail(IntEnum):
    """si.v1.EventRecord.ChangeDetail: the values that the core uses."""

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
    """One event (the event history design). The shell adds its id."""

    type: EventType
    change: EventChange
    detail: EventDetail
    object_id: str
    reference_id: str = ""
    resource: Quantities = None
    message: str = ""
    now_ns: int = 0


# Makes an Event from all its fields, without the cost of its Python function: each allocation makes three events.
event_of: Callable[[tuple[EventType, EventChange, EventDetail, str, str, Quantities, str, int]], Event] = partial(
    tuple.__new__, Event
)


class NewAllocation(NamedTuple):
    """An allocation was made, or adopted from the RM's report and only echoed.

    :ivar demand: the allocation's demand at this moment. The RM may change it within the same outcome.
    """

    partition: str
    allocation: Allocation
    demand: Demand
    adopted: bool = False


class ReleasedAllocation(NamedTuple):
    """An allocation ended, acknowledged for the RM; or the scheduler released it.

    :ivar reminder: the RM got the release before; this is a reminder.
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
    """The scheduler has removed an ask that was pending."""

    partition: str
    app_id: str
    key: str
    termination: Termination
    message: str
    previous_generation: bool


class RejectedAsk(NamedTuple):
    """An ask (or an existing allocation) is rejected."""

    key: str
    app_id: str
    reason: str
    previous_generation: bool


class AcceptedApplication(NamedTuple):
    """The application is in its queue."""

    app_id: str


class RejectedApplication(NamedTuple):
    """The application is rejected."""

    app_id: str
    reason: str


class UpdatedApplication(NamedTuple):
    """The application's state changed."""

    app_id: str
    state: str
    now_ns: int
    message: str


class AcceptedNode(NamedTuple):
    """The node is accepted."""

    node_id: str


class RejectedNode(NamedTuple):
    """The node's change is rejected; nothing of it was applied."""

    node_id: str
    reason: str


class ScaleUpHint(NamedTuple):
    """An ask fits its queues and its user's limits, but no node: a larger cluster would help (autoscaling).

    :ivar reason: the reason's sentence.
    """

    partition: str
    app_id: str
    key: str
    now_ns: int
    reason: str = ""


class PredicateRequested(NamedTuple):
    """A question to the RM: may the ask go to the node? (The scheduler interface, PredicatesArgs.)

    :ivar after_last: the question takes turns: the RM must have handled all earlier responses before it answers.
    """

    question: int
    partition: str
    app_id: str
    key: str
    node_id: str
    allocate: bool
    due_ns: int
    after_last: bool = False


class PreemptionPredicateRequested(NamedTuple):
    """A question to the RM: may the ask go to the node once these victims have ended? (The scheduler interface,
    PreemptionPredicatesArgs.)

    :ivar victims: (application id, allocation key), in the order of their release. The first ``least`` go in any case,
        the others if the RM says so.
    """

    question: int
    partition: str
    app_id: str
    key: str
    node_id: str
    victims: tuple[tuple[str, str], ...]
    least: int
    due_ns: int


class PredicateRefused(NamedTuple):
    """The RM refused a question, or did not answer in time. This fact is for the tally; the RM gets no message."""

    question: int
    unanswered: bool


class SchedulingState(IntEnum):
    """si.v1.UpdateContainerSchedulingStateRequest.SchedulingState: the values that the core uses."""

    SKIPPED = 1
    RESERVED = 3
    FAILED = 4


class SchedulingStateChanged(NamedTuple):
    """The state of an ask, for an RM that wants to know (the scheduler interface,
    UpdateContainerSchedulingStateRequest).
    """

    app_id: str
    key: str
    state: SchedulingState
    reason: str


class ConfigurationResult(NamedTuple):
    """The answer to a new configuration: it is in force, or it was rejected and nothing changed.

    :ivar obstacles: why it was rejected; empty: it is in force.
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
    | ScaleUpHint
    | PredicateRequested
    | PreemptionPredicateRequested
    | PredicateRefused
    | SchedulingStateChanged
    | ConfigurationResult
)
Primary = Node | Queue | UserUsage | Application | Ask | Allocation | Waitlist | SourceEntry | ReportedObject


_PARENTS_FIRST: dict[type, int] = {
    kind: place
    for place, kind in enumerate(
        (SourceEntry, ReportedObject, Queue, UserUsage, Node, Application, Ask, Allocation, Waitlist),
    )
}
_QUEUES = _PARENTS_FIRST[Queue]


def _depth(change: tuple[str, Primary]) -> int:
    return change[1].path.count(".") if isinstance(change[1], Queue) else 0


class Outcome:
    """Collects the content of one transaction, over as many commands and cycles as the shell puts into it.

    :ivar facts: facts for the RM, in the order in which they became true.
    :ivar events: in the same order.
    :ivar tracking: whether any reader wants events of changes; the core's entry points set it (:meth:`add_event`).
    :ivar requests: whether the RM wants events for people about asks; set likewise (:meth:`add_user_event`).
    :ivar made: the number of allocations decided; ``reported``: those that the RM or a source reported. (Events may be
        off.)
    :ivar ended: the number of allocations that ended, for any reason; ``released``: those that the RM released, or
        whose node it removed; ``dropped``: those that ended because the RM registered again.
    """

    __slots__ = (
        "_touched",
        "dropped",
        "ended",
        "events",
        "facts",
        "made",
        "released",
        "reported",
        "requests",
        "tracking",
    )

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.events: list[Event] = []
        self.tracking = True
        self.requests = False
        self.made = self.reported = 0
        self.ended = self.released = self.dropped = 0
        self._touched: dict[Primary, str] = {}

    def add_event(
        self,
        about: EventType,
        change: EventChange,
        detail: EventDetail,
        object_id: str,
        reference_id: str = "",
        resource: Quantities = None,
        message: str = "",
        *,
        now_ns: int,
    ) -> None:
        """Adds an event of a change, if events are wanted."""
        if self.tracking:
            self.events.append(event_of((about, change, detail, object_id, reference_id, resource, message, now_ns)))

    def add_user_event(self, key: str, app_id: str, resource: Quantities, message: str, now_ns: int) -> None:
        """Adds an event for people about an ask or its allocation, which changes nothing (the event history design,
        "SHIM events").
        """
        if self.requests:
            self.events.append(
                Event(EventType.REQUEST, EventChange.NONE, EventDetail.NONE, key, app_id, resource, message, now_ns)
            )

    @property
    def size(self) -> int:
        """Returns about how many records the outcome becomes; 0 only for nothing."""
        return len(self.events) + len(self._touched) + (len(self.facts) + 7) // 8

    def mark_changed(self, changed: Primary, partition: str) -> None:
        """Notes that the object changed or went. However often it is noted, it is written once."""
        self._touched[changed] = partition

    def objects(self) -> Iterator[tuple[str, Primary, bool]]:
        """Yields (partition, object, whether it is alive) for what must be written. To be consumed once.

        Removed objects come first, children before parents; then living ones, parents before children. A follower can
        apply them in this order. An object that was added and removed within this outcome is not written.
        """
        return filter(None, self.objects_in_steps())

    def objects_in_steps(self, step: int = STEP) -> Iterator[tuple[str, Primary, bool] | None]:
        """Does the same, with None after each few objects: other work may run there.

        Nothing refers to an object longer than needed, so that removed ones are freed one by one.

        :param step: the number of yielded objects between two None; more are sorted at a time.
        """
        gone: list[list[tuple[str, Primary]]] = [[] for _ in _PARENTS_FIRST]
        alive: list[list[tuple[str, Primary]]] = [[] for _ in _PARENTS_FIRST]
        touched, self._touched = self._touched, {}
        count = 0
        while touched:  # the last ones first
            changed, partition = touched.popitem()
            if not changed.gone:
                changed.published = True
                alive[_PARENTS_FIRST[type(changed)]].append((partition, changed))
            elif changed.published:
                changed.published = False
                gone[_PARENTS_FIRST[type(changed)]].append((partition, changed))
            count += 1
            if not count % LIGHT_STEP:
                yield None
        for queues in (gone[_QUEUES], alive[_QUEUES]):
            queues.reverse()
            queues.sort(key=_depth)
            queues.reverse()
        count = 0
        for kind in reversed(gone):
            for partition, changed in emptied(kind):
                yield partition, changed, False
                count += 1
                if not count % step:
                    yield None
        for kind in alive:
            while kind:
                partition, changed = kind.pop()
                yield partition, changed, True
                count += 1
                if not count % step:
                    yield None

    def __bool__(self) -> bool:
        return bool(self.facts or self.events or self._touched)
