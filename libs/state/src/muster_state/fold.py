"""Folds records of ``si.state.v1`` back into a partition: for recovery, and for followers such as the view.

A fold takes recorded states. The kinds may arrive in any order with queues before applications, and applications and
nodes before asks and allocations. A fold never decides again: sums are computed from the primary objects, and pending
asks become ready only when :meth:`Partition.activate` is called, which a follower never does.

Each ``fold_*`` is an upsert: the same object again replaces the former one. Each ``drop_*`` applies a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from muster_core.allocation import item_conversion
from muster_core.applications.lifecycle import counts_as_running
from muster_core.external.model import OfferState, SourceState
from muster_core.external.reports import ExternalReports, ReportedObject, SourceEntry
from muster_core.model.allocation import BackfillRecord, PreemptionRecord, ReplacedPlaceholder, foreign_id, unique_key
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.commands import AskItem
from muster_core.model.cordons import Cordon, CordonCount, CordonKind
from muster_core.model.node import Node, NodeReport
from muster_core.model.queue import Queue, WaitKey, Waitlist
from muster_core.model.reason_history import Past, PastReason
from muster_core.model.reasons import NoPreemptionReason, Reason, ReasonCode
from muster_core.model.refusals import NodeRefusal, NodeRefusals, PendingCheck
from muster_core.model.resources import Shape
from muster_core.model.states import APP_TERMINAL, AppState, GangPhase, QueueState
from muster_core.model.task_group import TaskGroup
from muster_core.partition import Partition
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_si.tag_interning import intern_tags

from muster_state import external_codec as codec

K = TypeVar("K")
T = TypeVar("T")

# ---- order -----------------------------------------------------------------------------------------------------------


def put_in_order(partition: Partition) -> None:
    """Puts the objects of a followed partition in the order in which a fold at once adds them."""
    _sort(partition.nodes, _submission)
    _sort(partition.apps, _submission)
    _sort(partition.rejected, _submission)
    _sort(partition.foreign, _allocated)
    for queue in partition.queues.values():  # (this mapping is a set in order)
        if len(queue.applications) > 1:
            apps = sorted((partition.apps[app_id] for app_id in queue.applications), key=_submission)
            queue.applications = dict.fromkeys(app.app_id for app in apps)
    for app in partition.apps.values():
        _sort(app.asks, _submission)
        _sort(app.allocations, _allocated)
    for node in partition.nodes.values():
        _sort(node.allocations, _allocated)
        _sort(node.foreign, _allocated)


def _sort(objects: dict[K, T], order: Callable[[T], Any]) -> None:
    before = None
    for obj in objects.values():
        rank = order(obj)
        if before is not None and rank < before:
            break
        before = rank
    else:
        return
    ordered = sorted(objects.items(), key=lambda item: order(item[1]))
    objects.clear()  # (It stays the same mapping.)
    objects.update(ordered)


def _submission(obj: Node | Application | Ask) -> int:
    return obj.submission


def _allocated(allocation: Allocation) -> tuple[int, int, int]:
    return allocation.allocated_ns, allocation.submission, allocation.ordinal


# ---- queues and nodes ------------------------------------------------------------------------------------------------


def fold_queue(partition: Partition, recorded: pb.QueueObject) -> Queue:
    """Folds a recorded queue. Missing parents are created as dynamic queues; their own records follow."""
    queue = partition.queues.get(recorded.path)
    if queue is None:
        parent_path, _, name = recorded.path.rpartition(".")
        parent = partition.queues.get(parent_path)
        if parent is None:
            parent = _make_queue(partition, parent_path, leaf=False)
        parent.leaf = False
        queue = Queue(partition.types, name, parent, leaf=recorded.leaf, managed=recorded.managed)
        partition.queue_tree.attach(queue)
    queue.gone = False
    queue.leaf = recorded.leaf
    queue.managed = recorded.managed
    queue.state = QueueState(recorded.state)
    queue.max_applications = recorded.max_applications
    queue.sources, queue.external_maximum = (), None
    guaranteed = dict(recorded.guaranteed.values) if recorded.has_guaranteed else None
    maximum = dict(recorded.max.values) if recorded.has_max else None
    if recorded.sources:
        queue.set_limits(guaranteed, dict(recorded.own_max.values) if recorded.HasField("own_max") else None)
        # (The recorded max counts. The sources' own statements are looked up before the next decision.)
        queue.restrict(tuple(recorded.sources), dict(partition.types.items(maximum or {})))
    else:
        queue.set_limits(guaranteed, maximum)
    partition.queue_tree.set_properties(queue, dict(recorded.properties))
    if not queue.managed and not queue.leaf and queue.parent is not None:
        queue.template = queue.parent.template
    queue.quota_ns, queue.created_ns = recorded.quota_ns, recorded.created_ns
    queue.published = True
    if queue.parent is None:
        partition.pools.fold()
    return queue


def _make_queue(partition: Partition, path: str, *, leaf: bool) -> Queue:
    """Makes a dynamic queue. Its own record follows later, or was removed."""
    return fold_queue(partition, pb.QueueObject(path=path, leaf=leaf, state=QueueState.ACTIVE.value))


def drop_queue(partition: Partition, path: str) -> None:
    """Applies a queue's tombstone. Later records of the same transaction remove what is still in the queue."""
    queue = partition.queues.get(path)
    if queue is not None and queue.parent is not None:
        queue.gone = True
        _remove_if_empty(partition, queue)


def _remove_if_empty(partition: Partition, queue: Queue) -> None:
    """Removes an empty queue that has a tombstone, and then its parents to which the same applies."""
    while queue.gone and queue.parent is not None and not queue.applications and not queue.children:
        if partition.queues.get(queue.path) is queue:
            partition.queue_tree.remove_queue(queue)
        queue = queue.parent


def fold_use(partition: Partition, recorded: pb.FairUseObject) -> None:
    """Folds the decayed use of a user. A leaf that has another order now has no use for it."""
    queue = partition.queues.get(recorded.leaf)
    uses = queue.fair_uses if queue is not None else None
    if uses is None or uses.half_life_ns != recorded.half_life_ns:
        return
    use, number = uses.get_or_create(recorded.user), partition.types.number
    use.halves, use.changed_ns, use.published = recorded.halves, recorded.changed_ns, True
    use.held = {
        number(amount.resource_type): held_amount for amount in recorded.types if (held_amount := int(amount.held))
    }
    use.charged = {
        number(amount.resource_type): charged_amount
        for amount in recorded.types
        if (charged_amount := int(amount.charged))
    }


def drop_use(partition: Partition, leaf: str, user: str) -> None:
    """Applies the tombstone of a user's decayed use."""
    queue = partition.queues.get(leaf)
    if queue is not None and queue.fair_uses is not None:
        queue.fair_uses.users.pop(user, None)


def fold_node(partition: Partition, recorded: pb.NodeObject) -> Node:
    """Folds a recorded node: the merged values, and the RM's own report if it differs."""
    attributes, schedulable = intern_tags(recorded.attributes), recorded.schedulable
    capacity, occupied = dict(recorded.capacity.values), dict(recorded.occupied.values)
    node = partition.nodes.get(recorded.node_id)
    if node is None:
        node = Node(partition.types, recorded.node_id)
        node.set_attributes(attributes)
        node.schedulable = schedulable
        node.submission, node.created_ns = recorded.submission, recorded.created_ns
        partition.node_books.add_node(node, capacity, occupied)
    else:
        partition.node_books.set_node(node, capacity, occupied)
        partition.node_books.set_node_state(node, attributes, schedulable=schedulable)
    node.sources, node.by_operator = tuple(recorded.sources), recorded.by_operator
    node.reported = _report_of(recorded.reported) if recorded.HasField("reported") else None
    if not node.sources:  # otherwise it follows from the sources' statements
        node.closed_by = None if schedulable else Cordon(CordonKind.OPERATOR if node.by_operator else CordonKind.RM)
    node.published = True
    return node


def _report_of(recorded: pb.NodeReport) -> NodeReport:
    return NodeReport(
        intern_tags(recorded.attributes),
        dict(recorded.capacity.values) if recorded.HasField("capacity") else None,
        dict(recorded.occupied.values),
        recorded.schedulable,
        recorded.by_operator,
    )


def drop_node(partition: Partition, node_id: str) -> None:
    """Applies a node's tombstone. Tombstones of its allocations came before, in the same transaction."""
    node = partition.nodes.get(node_id)
    if node is not None:
        for allocation in [*node.allocations.values(), *node.foreign.values()]:
            partition.books.uncharge(allocation)
        for ask in list(node.reservations):
            _unreserve(partition, ask)
        partition.node_books.remove_node(node)


# ---- applications ----------------------------------------------------------------------------------------------------


def fold_application(partition: Partition, recorded: pb.ApplicationObject) -> Application:
    """Folds a recorded application."""
    state = AppState(recorded.state)
    if state is AppState.REJECTED:
        return _fold_rejected(partition, recorded)
    app = partition.apps.get(recorded.application_id)
    if app is None or app.submission != recorded.submission:
        if app is not None:
            drop_application(partition, recorded.application_id)
        app = Application(
            partition.types,
            recorded.application_id,
            _queue_of(partition, recorded, state),
            recorded.submission,
            recorded.submitted_ns,
        )
        _take_request(app, recorded)
        app.execution_timeout_ms = recorded.execution_timeout_ms
        if recorded.HasField("placeholder_ask"):
            app.placeholder_ask = dict(recorded.placeholder_ask.values)
        app.gang_style = recorded.gang_style
        app.state, app.source = state, recorded.source
        partition.lifecycle.add_application(app)
    app.state = state
    if recorded.HasField("gang"):
        _fold_gang(partition, app, recorded.gang)
    running = counts_as_running(app)
    if running != app.counted:
        app.counted = running
        for ledger in app.ledgers:
            ledger.running_applications += 1 if running else -1
    app.state_log = _story_of(recorded)
    app.submitted_ns = recorded.submitted_ns
    app.started_ns, app.finished_ns = recorded.started_ns, recorded.finished_ns
    app.usage, app.most_used = _usage_of(recorded.usage), dict(recorded.most_used.values)
    app.rejected_message, app.failed_message = recorded.rejected_message, recorded.failed_message
    app.reason = _reason_of(recorded.waiting) if recorded.HasField("waiting") else None
    app.past = _past_of(partition, recorded.past_waiting)
    if state in APP_TERMINAL and app.app_id in app.queue.applications:
        del app.queue.applications[app.app_id]
        partition.limits.detach(app)
        _remove_if_empty(partition, app.queue)
    if recorded.deadline_ns != app.deadline_ns:
        app.deadline_ns = recorded.deadline_ns
        if recorded.deadline_ns:
            partition.deadlines.append((recorded.deadline_ns, app))
    app.published = True
    return app


def _queue_of(partition: Partition, recorded: pb.ApplicationObject, state: AppState) -> Queue:
    """The queue of an application that is new to the partition."""
    queue = partition.queues.get(recorded.queue)
    created_ns = recorded.queue_created_ns
    earlier = created_ns and queue is not None and queue.created_ns != created_ns
    if state in APP_TERMINAL and (queue is None or earlier):
        # Its dynamic queue was removed, even if there is a new one with this name. The finished application still names
        # it.
        queue = Queue(partition.types, recorded.queue, None, leaf=True, managed=False)
        queue.created_ns = created_ns
    return _make_queue(partition, recorded.queue, leaf=True) if queue is None else queue


def _take_request(app: Application, recorded: pb.ApplicationObject) -> None:
    """Takes the RM's request for the application."""
    app.requested_queue, app.user = recorded.requested_queue, recorded.user
    app.groups_of_user, app.tags = tuple(recorded.groups), intern_tags(recorded.tags)


def _story_of(recorded: pb.ApplicationObject) -> list[tuple[int, str]]:
    return [(entry.time_ns, entry.state) for entry in recorded.state_log]


def _usage_of(recorded: Iterable[pb.UsageObject]) -> dict[str, dict[str, dict[str, int]]]:
    usage: dict[str, dict[str, dict[str, int]]] = {}
    for used in recorded:
        usage.setdefault(used.kind, {})[used.instance_type] = dict(used.resource_seconds.values)
    return usage


def _fold_gang(partition: Partition, app: Application, recorded: pb.GangObject) -> None:
    gang = partition.gangs.get_or_create(app)
    gang.phase, gang.deadline_ns = GangPhase(recorded.phase), recorded.deadline_ns
    gang.too_large_since_ns = recorded.too_large_since_ns
    for recorded_group in recorded.task_groups:
        group = gang.groups.get(recorded_group.name)
        if group is None:
            shape = partition.types.shape(dict(recorded_group.resource.values))
            gang.groups[recorded_group.name] = group = TaskGroup(recorded_group.name, shape)
        group.asked, group.replaced = recorded_group.asked, recorded_group.replaced
        group.timed_out, group.lost = recorded_group.timed_out, recorded_group.lost
    number = partition.types.number
    if recorded.HasField("ended"):
        gang.ended = {number(name): value for name, value in recorded.ended.values.items()}
        return
    gang.ended = {}  # (An earlier version recorded only how many ended.)
    for group in gang.groups.values():
        for index, value in group.shape.items:
            ended = value * (group.replaced + group.timed_out + group.lost)
            gang.ended[index] = gang.ended.get(index, 0) + ended


def _fold_rejected(partition: Partition, recorded: pb.ApplicationObject) -> Application:
    app = Application(
        partition.types, recorded.application_id, partition.root, recorded.submission, recorded.submitted_ns
    )
    partition.types.release(app.allocated, app.pending)
    _take_request(app, recorded)
    app.rejected_message, app.state = recorded.rejected_message, AppState.REJECTED
    app.state_log, app.finished_ns, app.deadline_ns = _story_of(recorded), recorded.finished_ns, recorded.deadline_ns
    app.published = True
    partition.rejected.pop(app.app_id, None)
    partition.rejected[app.app_id] = app
    partition.deadlines.append((app.deadline_ns, app))
    return app


def drop_rejected(partition: Partition, app_id: str) -> None:
    """Applies a rejected application's tombstone."""
    partition.rejected.pop(app_id, None)


def drop_application(partition: Partition, app_id: str) -> None:
    """Applies an application's tombstone."""
    app = partition.apps.get(app_id)
    if app is None:
        return
    for key in list(app.asks):
        drop_ask(partition, app_id, key)
    for allocation in list(app.allocations.values()):
        partition.books.uncharge(allocation)
    if app.counted:
        app.counted = False
        for ledger in app.ledgers:
            ledger.running_applications -= 1
    partition.lifecycle.forget_application(app)


# ---- asks and allocations --------------------------------------------------------------------------------------------


def _item(demand: pb.Demand, *, previous_generation: bool, node_id: str = "", uuid: str = "") -> AskItem:
    return AskItem(
        key=demand.allocation_key,
        app_id=demand.application_id,
        partition=demand.partition,
        quantities=dict(demand.resource.values.items()),
        wanted=1,
        priority=demand.priority,
        tags=intern_tags(demand.tags),
        task_group=demand.task_group,
        placeholder=demand.placeholder,
        originator=demand.originator,
        allow_preempt_self=demand.allow_preempt_self,
        allow_preempt_other=demand.allow_preempt_other,
        has_preemption_policy=demand.has_preemption_policy,
        execution_timeout_ms=demand.execution_timeout_ms,
        previous_generation=previous_generation,
        node_id=node_id,
        uuid=uuid,
    )


def fold_ask(partition: Partition, recorded: pb.AskObject) -> None:
    """Folds a recorded ask. An ask of an application that does not exist any more is ignored."""
    recorded_demand = recorded.demand
    drop_ask(partition, recorded_demand.application_id, recorded_demand.allocation_key)
    app = partition.apps.get(recorded_demand.application_id)
    if app is None:
        return
    item = _item(recorded_demand, previous_generation=recorded.previous_generation)
    shape = partition.types.shape(item.quantities)
    demand = item_conversion.demand_of(item, shape, recorded_demand.submission, recorded_demand.created_ns)
    demand.created_ns = recorded_demand.created_ns
    ask = Ask(app, demand, recorded.pending, recorded.allocated)
    ask.preempts, ask.scaled_up, ask.mismatched = recorded.preempts, recorded.scaled_up, recorded.mismatched
    ask.published = True
    ask.notified = recorded.told
    ask.asked = PendingCheck(recorded.asked_node, recorded.asked_ns) if recorded.asked_node else None
    if recorded.stands_apart:
        ask.refusals = _refusals_of(recorded)
        for node_id in ask.refusals.nodes:
            refusing = partition.nodes.get(node_id)
            if refusing is not None:
                refusing.refused_by[ask] = None
    app.asks[ask.key] = ask
    partition.books.add_pending(ask, recorded.pending)
    if demand.placeholder:
        partition.gangs.adjust_pending(ask, recorded.pending)
    if ask.open > 0:  # otherwise placeholders are being released for it
        partition.asks.group_of(ask).push(ask)
    node = partition.nodes.get(recorded.reserved_node) if recorded.reserved_node else None
    if node is not None:
        ask.reserved_node, ask.reserved_ns = node.node_id, recorded.reserved_ns
        node.reservations[ask] = None
    # (Version 0.2.0 recorded that an ask had preempted once, even if its node was lost since, and not when.)
    ask.planned_ns, ask.lost = recorded.planned_ns, recorded.lost
    if ask.preempts and not ask.planned_ns:
        ask.planned_ns = ask.reserved_ns or ask.created_ns
    ask.preempts = ask.preempts and bool(ask.reserved_node)


def _refusals_of(recorded: pb.AskObject) -> NodeRefusals:
    nodes = {
        refusal.node_id: NodeRefusal(refusal.node_id, refusal.reason, refusal.refused_ns, refusal.unanswered)
        for refusal in recorded.refusals
    }
    return NodeRefusals(nodes, recorded.refused_rounds, recorded.refused_until_ns)


def drop_ask(partition: Partition, app_id: str, key: str) -> None:
    """Applies an ask's tombstone."""
    app = partition.apps.get(app_id)
    ask = app.asks.pop(key, None) if app is not None else None
    if app is None or ask is None:
        return
    partition.books.add_pending(ask, -ask.pending)
    if ask.demand.placeholder:
        partition.gangs.adjust_pending(ask, -ask.pending)
    ask.gone = True
    for node_id in ask.refusals.nodes if ask.refusals is not None else ():
        refusing = partition.nodes.get(node_id)
        if refusing is not None:
            refusing.refused_by.pop(ask, None)
    _unreserve(partition, ask)
    if ask.group is not None:
        partition.asks.leave_group(ask, None)


def _unreserve(partition: Partition, ask: Ask) -> None:
    if ask.reserved_node:
        del partition.nodes[ask.reserved_node].reservations[ask]
        ask.reserved_node, ask.reserved_ns = "", 0


def fold_allocation(partition: Partition, recorded: pb.AllocationObject) -> None:
    """Folds a recorded allocation. An allocation of an application that does not exist any more is ignored."""
    demand, foreign, source = recorded.demand, recorded.foreign, recorded.source
    app_id = "" if foreign else demand.application_id
    drop_allocation(partition, app_id, unique_key(demand.allocation_key, recorded.ordinal), source)
    app = None if foreign else partition.apps.get(app_id)
    if app is None and not foreign:
        return
    node = partition.nodes.get(recorded.node_id)
    # (The node's own text: another one for each of its allocations would take 6 MiB for 100,000.)
    node_id = node.node_id if node is not None else recorded.node_id
    item = _item(demand, previous_generation=recorded.previous_generation, node_id=node_id, uuid=recorded.uuid)
    shape = partition.types.shape(item.quantities)
    allocation = item_conversion.allocation_of(item, app, shape, demand.submission, recorded.allocated_ns)
    allocation.demand.created_ns, allocation.demand.changed_ns = demand.created_ns, demand.changed_ns
    allocation.ordinal, allocation.published = recorded.ordinal, True
    allocation.preempted = _preempted_of(recorded.preempted) if recorded.HasField("preempted") else None
    allocation.timed_out, allocation.releasing_since_ns = recorded.timed_out, recorded.told_ns
    allocation.replaced_by = recorded.replaced_by if recorded.HasField("replaced_by") else None
    allocation.replaces = _replaced_of(recorded.replaces) if recorded.HasField("replaces") else None
    if recorded.HasField("backfilled"):
        by = recorded.backfilled
        allocation.backfilled = BackfillRecord(by.application_id, by.allocation_key, by.due_ns, by.end_ns)
    allocation.source = source
    partition.books.charge(allocation, node)


def _replaced_of(recorded: pb.ReplacedObject) -> ReplacedPlaceholder:
    return ReplacedPlaceholder(recorded.allocation_key, recorded.created_ns)


def _preempted_of(recorded: pb.PreemptedObject) -> PreemptionRecord:
    return PreemptionRecord(
        recorded.rule,
        recorded.application_id,
        recorded.allocation_key,
        recorded.queue,
        recorded.since_ns,
        recorded.victim_share_before,
        recorded.victim_share_after,
        recorded.asker_share_before,
        recorded.asker_share_after,
    )


def drop_allocation(partition: Partition, app_id: str, unique: str, source: str = "") -> None:
    """Applies an allocation's tombstone. ``app_id`` "": the allocation is a foreign one, of a source or the RM."""
    if not app_id:
        old = partition.foreign.get(foreign_id(unique.replace("##", "#"), source))
    else:
        app = partition.apps.get(app_id)
        old = app.allocations.get(unique) if app is not None else None
    if old is not None:
        partition.books.uncharge(old)


# ---- reasons ---------------------------------------------------------------------------------------------------------


def fold_reason(partition: Partition, recorded: pb.ReasonObject) -> None:
    """Folds a recorded reason of asks in a leaf that wait together, and their past reasons."""
    queue = partition.queues.get(recorded.leaf)
    if queue is None:
        return
    shape = partition.types.shape(dict(recorded.resource.values))
    special = (recorded.user, recorded.user_group, recorded.required_node, recorded.apart)
    key = _wait_key(partition, queue, shape, *special)
    if key is None:
        return
    waitlist = queue.waitlists.get(key)
    if waitlist is None:
        queue.waitlists[key] = waitlist = Waitlist(queue, key)
    waitlist.reason, waitlist.past = _reason_of(recorded), _past_of(partition, recorded.past)
    waitlist.tried = True
    waitlist.published = True


def _reason_of(recorded: pb.ReasonObject) -> Reason:
    return Reason(
        ReasonCode(recorded.code),
        recorded.queue,
        recorded.resource_type,
        recorded.asked,
        recorded.used,
        recorded.limit,
        recorded.free,
        recorded.since_ns,
        recorded.who,
        recorded.node,
        recorded.nodes,
        recorded.reserved,
        tuple((lacking.resource_type, lacking.nodes) for lacking in recorded.lacking),
        NoPreemptionReason(recorded.preemption) if recorded.preemption else None,
        recorded.promised,
        recorded.of_group,
        said=recorded.said,
        placeholder=recorded.placeholder,
        as_of_ns=recorded.as_of_ns,
        closed=tuple(CordonCount(CordonKind(cordon.by), cordon.source, cordon.nodes) for cordon in recorded.closed),
    )


def _past_of(partition: Partition, recorded: Iterable[pb.ReasonObject]) -> Past:
    """Past reasons. ``resource`` of an application's past reason is the size of the asks that had it; absent: all
    asks.
    """
    return tuple(
        PastReason(
            _reason_of(past_reason),
            past_reason.until_ns,
            partition.types.shape(dict(past_reason.resource.values)) if past_reason.HasField("resource") else None,
        )
        for past_reason in recorded
    )


def _wait_key(
    partition: Partition, leaf: Queue, shape: Shape, user: str, group: str, required_node: str, apart: int
) -> WaitKey | None:
    """The waitlist's key; None: no application under these limits is left."""
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
    """Applies a reason's tombstone, which names the shape only."""
    queue = partition.queues.get(leaf)
    about = (shape_name, user, group, required_node, apart)
    for key, waitlist in list(queue.waitlists.items()) if queue is not None else ():
        waitlist_id = (key[0].name, waitlist.user, waitlist.user_group, key[2], str(key[3]) if key[3] else "")
        if waitlist_id == about and queue is not None:
            del queue.waitlists[key]


# ---- external sources ----------------------------------------------------------------------------------------------


def fold_source(books: ExternalReports, recorded: pb.SourceObject) -> SourceEntry:
    """Folds a recorded source."""
    source = _source(books, recorded.partition, recorded.source)
    source.state, source.life, source.since_ns = SourceState(recorded.state), recorded.life, recorded.since_ns
    source.drains, source.reason, source.lost = recorded.drains, recorded.reason, recorded.lost
    source.past = tuple(recorded.past_lives)
    source.published = True
    return source


def fold_external(books: ExternalReports, recorded: pb.ExternalRecord) -> ReportedObject:
    """Folds a recorded object of a source. If the source is not known yet, its own record follows."""
    stale = recorded.said.stale
    recorded.said.stale = False  # (A received change has an object or says that it is stale.)
    change = codec.from_proto(recorded.said)
    assert change.what is not None, f"the record of {change.kind} {change.object_id} has no object"
    books.remove(recorded.partition, recorded.source, change.kind, change.object_id)
    entry = ReportedObject(
        _source(books, recorded.partition, recorded.source),
        change.kind,
        change.object_id,
        change.what,
        recorded.life,
        recorded.since_ns,
        stale,
        recorded.problem,
        OfferState(recorded.offer_state) if recorded.offer_state else None,
        recorded.idle_since_ns,
        recorded.deadline_ns,
        recorded.withdrawn,
        published=True,
    )
    books.add(entry)
    return entry


def drop_source(books: ExternalReports, partition: str, source: str) -> None:
    """Applies a source's tombstone. Tombstones of its objects came before, in the same transaction."""
    books.for_partition(partition).sources.pop(source, None)


def _source(books: ExternalReports, partition: str, source: str) -> SourceEntry:
    sources = books.for_partition(partition).sources
    entry = sources.get(source)
    if entry is None:
        sources[source] = entry = SourceEntry(partition, source)
    return entry
