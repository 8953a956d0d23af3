"""Recorded objects, folded back into a partition: recovery, and followers such as the view.

A fold takes states as they were recorded, in any order of kinds that puts queues before applications, applications and
nodes before asks and allocations. It never decides again (design §2): sums are recomputed from the primary objects,
what is pending becomes ready only when :meth:`Partition.activate` is called, which a follower never does.

Each ``fold_*`` is an upsert: the same object again replaces what was there. Each ``drop_*`` takes a tombstone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_scheduler.core.closing import ClosedBy, Closer
from muster_scheduler.core.commands import AskItem
from muster_scheduler.core.external import ExternalKind, ExternalObject, OfferState, SourceState
from muster_scheduler.core.external_books import ExternalBooks, ExternalEntry, SourceEntry
from muster_scheduler.core.gang import TaskGroup
from muster_scheduler.core.inquiries import Asked, Refusal, Refusals
from muster_scheduler.core.lifecycle import counts_as_running
from muster_scheduler.core.objects import (
    Application,
    Ask,
    Node,
    NodeReport,
    Preempted,
    Queue,
    Replaced,
    WaitKey,
    Waitlist,
    foreign_id,
    unique_key,
)
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.past import Past, PastReason
from muster_scheduler.core.reasons import Reason
from muster_scheduler.core.resources import Shape
from muster_scheduler.core.states import APP_TERMINAL, AppState, GangPhase, QueueState


@dataclass(frozen=True, slots=True)
class FoldedTaskGroup:
    """A recorded task group: what its placeholders and asks do not say themselves."""

    name: str
    quantities: dict[str, int]
    asked: int
    replaced: int
    timed_out: int
    lost: int


@dataclass(frozen=True, slots=True)
class FoldedGang:
    """A recorded gang."""

    phase: GangPhase
    deadline_ns: int
    task_groups: tuple[FoldedTaskGroup, ...]


@dataclass(frozen=True, slots=True)
class FoldedApplication:
    """A recorded application."""

    app_id: str
    queue: str
    requested_queue: str
    user: str
    groups: tuple[str, ...]
    tags: dict[str, str]
    state: AppState
    story: list[tuple[int, str]]
    submission: int
    submitted_ns: int
    started_ns: int = 0
    finished_ns: int = 0
    deadline_ns: int = 0
    execution_timeout_ms: int = 0
    placeholder_ask: dict[str, int] | None = None
    gang_style: str = ""
    rejected_message: str = ""
    waiting: Reason | None = None
    usage: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    gang: FoldedGang | None = None
    source: str = ""
    past: tuple[FoldedPast, ...] = ()
    most_used: dict[str, int] = field(default_factory=dict)
    queue_created_ns: int = 0


@dataclass(frozen=True, slots=True)
class FoldedPast:
    """A recorded reason that is over; of an application's the size of the asks whose it was; None: all of them."""

    reason: Reason
    until_ns: int
    quantities: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FoldedRefusals:
    """The nodes that the RM refused for a recorded ask: the last ones, by id."""

    nodes: dict[str, Refusal]
    rounds: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class FoldedQueue:
    """A recorded queue, as far as the configuration's text does not say it all.

    :param sources: outside of the RM, that have a part in ``maximum``; then ``own_maximum`` is what it is without them.
    """

    path: str
    leaf: bool
    managed: bool
    state: QueueState
    guaranteed: dict[str, int] | None = None
    maximum: dict[str, int] | None = None
    max_applications: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    quota_ns: int = 0
    sources: tuple[str, ...] = ()
    own_maximum: dict[str, int] | None = None
    created_ns: int = 0


def fold_queue(partition: Partition, folded: FoldedQueue) -> Queue:
    """Takes a recorded queue. Missing parents are made, as dynamic ones; their own records follow."""
    queue = partition.queues.get(folded.path)
    if queue is None:
        parent_path, _, name = folded.path.rpartition(".")
        parent = partition.queues.get(parent_path)
        if parent is None:
            parent = fold_queue(partition, FoldedQueue(parent_path, leaf=False, managed=False, state=QueueState.ACTIVE))
        parent.leaf = False
        queue = Queue(partition.types, name, parent, leaf=folded.leaf, managed=folded.managed)
        partition.queue_tree.link(queue)
    queue.gone = False
    queue.leaf = folded.leaf
    queue.managed = folded.managed
    queue.state = folded.state
    queue.max_applications = folded.max_applications
    queue.sources, queue.external_maximum = (), None
    if folded.sources:
        queue.set_limits(folded.guaranteed, folded.own_maximum)
        # (What counts is what was recorded; what each source says is looked up before anything is decided again.)
        queue.restrict(folded.sources, dict(partition.types.items(folded.maximum or {})))
    else:
        queue.set_limits(folded.guaranteed, folded.maximum)
    partition.queue_tree.set_properties(queue, folded.properties)
    if not queue.managed and not queue.leaf and queue.parent is not None:
        queue.template = queue.parent.template
    queue.quota_ns, queue.created_ns = folded.quota_ns, folded.created_ns
    queue.published = True
    if queue.parent is None:
        partition.pools.fold()
    return queue


def drop_queue(partition: Partition, path: str) -> None:
    """Takes a queue's tombstone. What is still in it leaves it by a record of the same transaction, which follows."""
    queue = partition.queues.get(path)
    if queue is not None and queue.parent is not None:
        queue.gone = True
        _remove_if_empty(partition, queue)


def _remove_if_empty(partition: Partition, queue: Queue) -> None:
    """Takes a queue away whose tombstone came, and its parents for which the same is true."""
    while queue.gone and queue.parent is not None and not queue.applications and not queue.children:
        if partition.queues.get(queue.path) is queue:
            partition.queue_tree.remove_queue(queue)
        queue = queue.parent


def fold_node(
    partition: Partition,
    node_id: str,
    attributes: Mapping[str, str],
    capacity: Mapping[str, int],
    occupied: Mapping[str, int],
    *,
    schedulable: bool,
    submission: int,
    created_ns: int,
    sources: tuple[str, ...] = (),
    reported: NodeReport | None = None,
    by_operator: bool = False,
) -> Node:
    """Takes a recorded node: what counts; ``reported`` is what the RM itself said, where that differs."""
    node = partition.nodes.get(node_id)
    if node is None:
        node = Node(partition.types, node_id)
        node.set_attributes(attributes)
        node.schedulable = schedulable
        node.submission, node.created_ns = submission, created_ns
        partition.node_books.add_node(node, capacity, occupied)
    else:
        partition.node_books.set_node(node, capacity, occupied)
        partition.node_books.set_node_state(node, attributes, schedulable=schedulable)
    node.sources, node.reported, node.by_operator = sources, reported, by_operator
    if not sources:  # else it follows from what they say
        node.closed_by = None if schedulable else Closer(ClosedBy.OPERATOR if by_operator else ClosedBy.RM)
    node.published = True
    return node


def drop_node(partition: Partition, node_id: str) -> None:
    """Takes a node's tombstone; its allocations' tombstones came before, in the same transaction."""
    node = partition.nodes.get(node_id)
    if node is not None:
        for allocation in [*node.allocations.values(), *node.foreign.values()]:
            partition.unhold(allocation)
        for ask in list(node.reservations):
            _unreserve(ask)
        partition.node_books.remove_node(node)


def fold_application(partition: Partition, folded: FoldedApplication) -> Application:
    """Takes a recorded application."""
    if folded.state is AppState.REJECTED:
        return _fold_rejected(partition, folded)
    app = partition.apps.get(folded.app_id)
    if app is None or app.submission != folded.submission:
        if app is not None:
            drop_application(partition, folded.app_id)
        queue = partition.queues.get(folded.queue)
        earlier = folded.queue_created_ns and queue is not None and queue.created_ns != folded.queue_created_ns
        if folded.state in APP_TERMINAL and (queue is None or earlier):
            # Its dynamic queue is gone, whether or not there is one of its name again; the finished application still
            # says where it was.
            queue = Queue(partition.types, folded.queue, None, leaf=True, managed=False)
            queue.created_ns = folded.queue_created_ns
        if queue is None:
            queue = fold_queue(partition, FoldedQueue(folded.queue, leaf=True, managed=False, state=QueueState.ACTIVE))
        app = Application(partition.types, folded.app_id, queue, folded.submission, folded.submitted_ns)
        app.requested_queue = folded.requested_queue
        app.user, app.groups_of_user, app.tags = folded.user, folded.groups, folded.tags
        app.execution_timeout_ms = folded.execution_timeout_ms
        app.placeholder_ask, app.gang_style = folded.placeholder_ask, folded.gang_style
        app.state, app.source = folded.state, folded.source
        partition.lifecycle.add_application(app)
    app.state = folded.state
    if folded.gang is not None:
        _fold_gang(partition, app, folded.gang)
    running = counts_as_running(app)
    if running != app.counted:
        app.counted = running
        for ledger in app.ledgers:
            ledger.running_applications += 1 if running else -1
    app.story = folded.story
    app.submitted_ns = folded.submitted_ns
    app.started_ns, app.finished_ns = folded.started_ns, folded.finished_ns
    app.usage, app.most_used = folded.usage, folded.most_used
    app.rejected_message, app.reason = folded.rejected_message, folded.waiting
    app.past = _past(partition, folded.past)
    if app.state in APP_TERMINAL and app.queue.applications.pop(app.app_id, None) is not None:
        partition.limits.leave(app)
        _remove_if_empty(partition, app.queue)
    if folded.deadline_ns != app.deadline_ns:
        app.deadline_ns = folded.deadline_ns
        if folded.deadline_ns:
            partition.deadlines.append((folded.deadline_ns, app))
    app.published = True
    return app


def _fold_gang(partition: Partition, app: Application, folded: FoldedGang) -> None:
    gang = partition.gangs.of(app)
    gang.phase, gang.deadline_ns = folded.phase, folded.deadline_ns
    for recorded in folded.task_groups:
        group = gang.groups.get(recorded.name)
        if group is None:
            shape = partition.types.shape(recorded.quantities)
            gang.groups[recorded.name] = group = TaskGroup(recorded.name, shape)
        group.asked, group.replaced = recorded.asked, recorded.replaced
        group.timed_out, group.lost = recorded.timed_out, recorded.lost


def _fold_rejected(partition: Partition, folded: FoldedApplication) -> Application:
    app = Application(partition.types, folded.app_id, partition.root, folded.submission, folded.submitted_ns)
    partition.types.release(app.allocated, app.pending)
    app.requested_queue, app.user, app.groups_of_user = folded.requested_queue, folded.user, folded.groups
    app.tags, app.rejected_message, app.state = folded.tags, folded.rejected_message, folded.state
    app.story, app.finished_ns, app.deadline_ns = folded.story, folded.finished_ns, folded.deadline_ns
    app.published = True
    partition.rejected.pop(app.app_id, None)
    partition.rejected[app.app_id] = app
    partition.deadlines.append((app.deadline_ns, app))
    return app


def drop_rejected(partition: Partition, app_id: str) -> None:
    """Takes a rejected application's tombstone."""
    partition.rejected.pop(app_id, None)


def drop_application(partition: Partition, app_id: str) -> None:
    """Takes an application's tombstone."""
    app = partition.apps.get(app_id)
    if app is None:
        return
    for key in list(app.asks):
        drop_ask(partition, app_id, key)
    for allocation in list(app.allocations.values()):
        partition.unhold(allocation)
    if app.counted:
        app.counted = False
        for ledger in app.ledgers:
            ledger.running_applications -= 1
    partition.lifecycle.forget_application(app)


def fold_ask(
    partition: Partition,
    item: AskItem,
    *,
    pending: int,
    allocated: int,
    submission: int,
    created_ns: int,
    reserved_node: str = "",
    reserved_ns: int = 0,
    preempts: bool = False,
    scaled_up: bool = False,
    mismatched: bool = False,
    told: int = 0,
    refused: FoldedRefusals | None = None,
    asked: Asked | None = None,
) -> None:
    """Takes a recorded ask. One of an application that is not there any more is ignored."""
    drop_ask(partition, item.app_id, item.key)
    app = partition.apps.get(item.app_id)
    if app is None:
        return
    shape = partition.types.shape(item.quantities)
    demand = partition.demand_of(item, shape, submission, created_ns)
    demand.created_ns = created_ns
    ask = Ask(app, demand, pending, allocated)
    ask.preempts, ask.scaled_up, ask.mismatched, ask.published = preempts, scaled_up, mismatched, True
    ask.told = told
    ask.asked = asked
    if refused is not None:
        ask.refusals = Refusals(ask, dict(refused.nodes), refused.rounds, refused.until_ns)
        for node_id in refused.nodes:
            refusing = partition.nodes.get(node_id)
            if refusing is not None:
                refusing.refused_by[ask] = None
    app.asks[ask.key] = ask
    partition.add_pending(app, shape.items, pending)
    if demand.placeholder:
        partition.gangs.pend(ask, pending)
    if ask.open > 0:  # else placeholders are leaving for it
        partition.group_of(ask).push(ask)
    node = partition.nodes.get(reserved_node) if reserved_node else None
    if node is not None:
        ask.reserved, ask.reserved_ns = node, reserved_ns
        node.reservations[ask] = None


def drop_ask(partition: Partition, app_id: str, key: str) -> None:
    """Takes an ask's tombstone."""
    app = partition.apps.get(app_id)
    ask = app.asks.pop(key, None) if app is not None else None
    if app is None or ask is None:
        return
    partition.add_pending(app, ask.shape.items, -ask.pending)
    if ask.demand.placeholder:
        partition.gangs.pend(ask, -ask.pending)
    ask.gone = True
    for node_id in ask.refusals.nodes if ask.refusals is not None else ():
        refusing = partition.nodes.get(node_id)
        if refusing is not None:
            refusing.refused_by.pop(ask, None)
    _unreserve(ask)
    if ask.group is not None:
        partition.leave_group(ask, None)


def _unreserve(ask: Ask) -> None:
    if ask.reserved is not None:
        del ask.reserved.reservations[ask]
        ask.reserved, ask.reserved_ns = None, 0


def fold_allocation(
    partition: Partition,
    item: AskItem,
    *,
    ordinal: int,
    submission: int,
    created_ns: int,
    allocated_ns: int,
    foreign: bool,
    changed_ns: int = 0,
    preempted: Preempted | None = None,
    timed_out: bool = False,
    replaced_by: str | None = None,
    told_ns: int = 0,
    replaces: Replaced | None = None,
    source: str = "",
) -> None:
    """Takes a recorded allocation."""
    drop_allocation(partition, "" if foreign else item.app_id, unique_key(item.key, ordinal), source)
    app = None if foreign else partition.apps.get(item.app_id)
    if app is None and not foreign:
        return
    shape = partition.types.shape(item.quantities)
    allocation = partition.allocation_of(item, app, shape, submission, allocated_ns)
    allocation.demand.created_ns, allocation.demand.changed_ns = created_ns, changed_ns
    allocation.ordinal, allocation.published = ordinal, True
    allocation.preempted, allocation.timed_out = preempted, timed_out
    allocation.replaced_by, allocation.told_ns, allocation.replaces = replaced_by, told_ns, replaces
    allocation.source = source
    partition.hold(allocation, partition.nodes.get(item.node_id))


def drop_allocation(partition: Partition, app_id: str, unique: str, source: str = "") -> None:
    """Takes an allocation's tombstone, with its unique key; ``app_id`` "": a foreign one, of a source or the RM's."""
    if not app_id:
        old = partition.foreign.get(foreign_id(unique.replace("##", "#"), source))
    else:
        app = partition.apps.get(app_id)
        old = app.allocations.get(unique) if app is not None else None
    if old is not None:
        partition.unhold(old)


def fold_reason(
    partition: Partition,
    leaf: str,
    quantities: Mapping[str, int],
    special: tuple[str, str, str, int],
    reason: Reason,
    past: tuple[FoldedPast, ...] = (),
) -> None:
    """Takes a recorded reason of asks in a leaf that wait for the same.

    :param special: the user and the group whose limits hold for them, and the node that is required, each perhaps "";
        and the submission of the one ask that stands apart, or 0.
    :param past: what they waited for before.
    """
    queue = partition.queues.get(leaf)
    key = _wait_key(partition, queue, partition.types.shape(quantities), *special) if queue is not None else None
    if queue is None or key is None:
        return
    waitlist = queue.waitlists.get(key)
    if waitlist is None:
        queue.waitlists[key] = waitlist = Waitlist(queue, key)
    waitlist.reason, waitlist.past = reason, _past(partition, past)
    waitlist.tried = True
    waitlist.published = True


def _past(partition: Partition, folded: tuple[FoldedPast, ...]) -> Past:
    return tuple(
        PastReason(
            each.reason,
            each.until_ns,
            None if each.quantities is None else partition.types.shape(each.quantities),
        )
        for each in folded
    )


def _wait_key(
    partition: Partition, leaf: Queue, shape: Shape, user: str, group: str, required_node: str, apart: int
) -> WaitKey | None:
    """None: nobody is left whom these limits concern."""
    trackers = partition.limits.trackers_of(leaf, user, group) if user or group else ()
    return None if trackers is None else (shape, trackers, required_node, apart)


def drop_reason(
    partition: Partition,
    leaf: str,
    shape_name: str,
    user: str = "",
    group: str = "",
    required_node: str = "",
    apart: str = "",
) -> None:
    """Takes a reason's tombstone, which knows the shape by name only."""
    queue = partition.queues.get(leaf)
    about = (shape_name, user, group, required_node, apart)
    for key, waitlist in list(queue.waitlists.items()) if queue is not None else ():
        found = (key[0].name, waitlist.user, waitlist.user_group, key[2], str(key[3]) if key[3] else "")
        if found == about and queue is not None:
            del queue.waitlists[key]


# ---- what sources outside of the RM said -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoldedSource:
    """A recorded source."""

    partition: str
    source: str
    state: SourceState
    life: str
    since_ns: int
    drains: bool
    reason: str
    lost: bool
    past: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldedExternal:
    """A recorded object of a source."""

    partition: str
    source: str
    kind: ExternalKind
    object_id: str
    said: ExternalObject
    life: str
    since_ns: int
    stale: bool
    problem: str
    offer_state: OfferState | None
    idle_since_ns: int
    deadline_ns: int
    withdrawn: bool


def fold_source(books: ExternalBooks, folded: FoldedSource) -> SourceEntry:
    """Takes a recorded source."""
    source = _source(books, folded.partition, folded.source)
    source.state, source.life, source.since_ns = folded.state, folded.life, folded.since_ns
    source.drains, source.reason, source.lost, source.past = folded.drains, folded.reason, folded.lost, folded.past
    source.published = True
    return source


def fold_external(books: ExternalBooks, folded: FoldedExternal) -> ExternalEntry:
    """Takes a recorded object of a source. A source of which nothing is known yet is told of by its own record."""
    books.drop(folded.partition, folded.source, folded.kind, folded.object_id)
    entry = ExternalEntry(
        _source(books, folded.partition, folded.source),
        folded.kind,
        folded.object_id,
        folded.said,
        folded.life,
        folded.since_ns,
        folded.stale,
        folded.problem,
        folded.offer_state,
        folded.idle_since_ns,
        folded.deadline_ns,
        folded.withdrawn,
        published=True,
    )
    books.put(entry)
    return entry


def drop_source(books: ExternalBooks, partition: str, source: str) -> None:
    """Takes a source's tombstone; those of its objects came before, in the same transaction."""
    books.of(partition).sources.pop(source, None)


def _source(books: ExternalBooks, partition: str, source: str) -> SourceEntry:
    known = books.of(partition).sources
    found = known.get(source)
    if found is None:
        known[source] = found = SourceEntry(partition, source)
    return found
