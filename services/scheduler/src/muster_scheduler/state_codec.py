"""The core's objects as records of ``si.state.v1``, and back (proto/muster/bus/v1/state.proto)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from muster_bus.topics import state_key, state_key_in
from muster_proto.muster.bus.v1 import state_pb2 as pb

from muster_scheduler.core import fold
from muster_scheduler.core.closing import Closed, ClosedBy
from muster_scheduler.core.commands import AskItem
from muster_scheduler.core.external import ExternalKind, OfferState, SourceState
from muster_scheduler.core.external_books import ExternalBooks, ExternalEntry, SourceEntry
from muster_scheduler.core.gang import Gang
from muster_scheduler.core.inquiries import Asked, Refusal, Refusals
from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    Demand,
    Node,
    NodeReport,
    Preempted,
    PreemptionRule,
    Queue,
    Replaced,
    Waitlist,
)
from muster_scheduler.core.outcome import Primary
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.past import Past
from muster_scheduler.core.reasons import PreemptionNo, Reason, ReasonCode
from muster_scheduler.core.resources import Shape, saturated
from muster_scheduler.core.states import AppState, GangPhase, QueueState
from muster_scheduler.external import codec
from muster_scheduler.wire import (
    NONE,
    amounts_field,
    bytes_field,
    field,
    kept_number,
    kept_text,
    number_field,
    text_field,
    texts_field,
)

# Of one ask's refused nodes recorded: thousands must not make its record large at each round. After a restart the
# RM is asked about the others again.
REFUSALS_KEPT = 8
RM, REGISTRATION = "rm", "reg"
NODE, QUEUE, APP, REJECTED, ASK, ALLOC, WHY = "node", "queue", "app", "rejected", "ask", "alloc", "why"
# Of sources outside of the RM: they are the RM's id's, not its registrations', and are folded into its books.
SOURCE, EXTERNAL = "source", "ext"


def key_of(rm_id: str, partition: str, what: Primary) -> bytes:
    """The record's key."""
    match what:
        case Node():
            return state_key_in(rm_id, NODE, (partition,), what.node_id)
        case ExternalEntry():
            return state_key_in(rm_id, EXTERNAL, (partition, what.owner.source, what.kind), what.object_id)
        case Allocation():
            by = (what.source,) if what.source and what.app is None else ()
            return state_key(rm_id, ALLOC, partition, what.app_id, what.unique_key, *by)
        case Ask():
            return state_key(rm_id, ASK, partition, what.app.app_id, what.key)
        case Waitlist():
            special = (what.user, what.user_group, what.required_node, *((str(what.apart),) if what.apart else ()))
            return state_key(rm_id, WHY, partition, what.leaf.path, what.shape.name, *(special if any(special) else ()))
        case Application():
            # (One that was not let in may have the id of one that was.)
            kind = REJECTED if what.state is AppState.REJECTED else APP
            return state_key(rm_id, kind, partition, what.app_id)
        case Queue():
            return state_key(rm_id, QUEUE, partition, what.path)
        case SourceEntry():
            return state_key(rm_id, SOURCE, partition, what.source)


def encode(partition: str, what: Primary) -> bytes:
    """The record's value: the object's whole state."""
    match what:
        case Node():
            return _node(partition, what)
        case ExternalEntry():
            return _external(what)
        case Allocation():
            return _allocation(partition, what)
        case Ask():
            return _ask(partition, what)
        case Waitlist():
            return _waitlist(partition, what)
        case Application():
            return _application(partition, what)
        case Queue():
            return _queue(partition, what)
        case SourceEntry():
            return _source(what)


def fold_value(partition: Partition, kind: str, value: bytes) -> None:
    """Takes one recorded object into a partition. Raises google.protobuf.message.DecodeError."""
    match kind:
        case "alloc":
            _fold_allocation(partition, pb.AllocationObject.FromString(value))
        case "ask":
            _fold_ask(partition, pb.AskObject.FromString(value))
        case "why":
            _fold_reason(partition, pb.ReasonObject.FromString(value))
        case "app" | "rejected":
            _fold_application(partition, pb.ApplicationObject.FromString(value))
        case "node":
            _fold_node(partition, pb.NodeObject.FromString(value))
        case "queue":
            _fold_queue(partition, pb.QueueObject.FromString(value))


def fold_tombstone(partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
    """Takes a tombstone; ``parts`` are those of the key behind the partition."""
    match kind:
        case "alloc":
            fold.drop_allocation(partition, *parts)
        case "ask":
            fold.drop_ask(partition, parts[0], parts[1])
        case "why":
            fold.drop_reason(partition, *parts)
        case "app":
            fold.drop_application(partition, parts[0])
        case "rejected":
            fold.drop_rejected(partition, parts[0])
        case "node":
            fold.drop_node(partition, parts[0])
        case "queue":
            fold.drop_queue(partition, parts[0])


def fold_external_value(books: ExternalBooks, kind: str, value: bytes) -> None:
    """Takes a recorded source, or an object of one. Raises DecodeError, BadDocument (external/errors.py)."""
    if kind == SOURCE:
        _fold_source(books, pb.SourceObject.FromString(value))
    elif kind == EXTERNAL:
        _fold_external(books, pb.ExternalRecord.FromString(value))


def fold_external_tombstone(books: ExternalBooks, kind: str, parts: tuple[str, ...]) -> None:
    """Takes a tombstone of one of them; ``parts`` are those of the key, the partition first."""
    if kind == SOURCE:
        fold.drop_source(books, *parts)
    elif kind == EXTERNAL:
        partition, source, what, object_id = parts
        books.drop(partition, source, ExternalKind(what), object_id)


def offer_state_of(value: bytes) -> OfferState | None:
    """What became of an offer, of its record's value; None: it is of no offer. Raises DecodeError."""
    state = pb.ExternalRecord.FromString(value).offer_state
    return OfferState(state) if state else None


# ---- out -----------------------------------------------------------------------------------------------------------


def _quantities(values: Mapping[str, int] | None) -> pb.Quantities | None:
    if values is None:
        return None
    try:
        return pb.Quantities(values=values)
    except ValueError:  # a sum that no int64 holds
        return pb.Quantities(values={name: saturated(value) for name, value in values.items()})


def _shape(shape: Shape) -> pb.Quantities:
    return pb.Quantities(values=shape.quantities)


# Asks and allocations come and go most of all.
_ASK_DEMAND = field(pb.AskObject, "demand")
_ALLOCATION_DEMAND, _ALLOCATION_NODE, _ALLOCATION_UUID, _ALLOCATED, _ALLOCATION_SOURCE = (
    field(pb.AllocationObject, name) for name in ("demand", "node_id", "uuid", "allocated_ns", "source")
)
_DEMAND_KEY, _DEMAND_APP, _DEMAND_PARTITION, _DEMAND_RESOURCE, _DEMAND_PRIORITY, _DEMAND_TAGS = (
    field(pb.Demand, name) for name in ("allocation_key", "application_id", "partition", "resource", "priority", "tags")
)
_DEMAND_SUBMISSION, _DEMAND_CREATED, _DEMAND_CHANGED = (
    field(pb.Demand, name) for name in ("submission", "created_ns", "changed_ns")
)


def _allocation(partition: str, what: Allocation) -> bytes:
    demand = what.demand
    return (
        bytes_field(_ALLOCATION_DEMAND, _demand(partition, what.app_id, demand))
        + text_field(_ALLOCATION_NODE, what.node_id)
        + text_field(_ALLOCATION_UUID, what.uuid)
        + kept_number(_ALLOCATED, what.allocated_ns)
        + _kinds_of_allocation(what.foreign, demand.previous_generation, what.ordinal)
        + (_end_of(what) if what.told or what.told_ns or what.replaces is not None else NONE)
        + kept_text(_ALLOCATION_SOURCE, what.source)
    )


@lru_cache(maxsize=256)
def _kinds_of_allocation(foreign: bool, previous_generation: bool, ordinal: int) -> bytes:
    return pb.AllocationObject(
        foreign=foreign, previous_generation=previous_generation, ordinal=ordinal
    ).SerializeToString(deterministic=True)


def _end_of(what: Allocation) -> bytes:
    """Of an allocation that was told to go, or took a placeholder's place."""
    return pb.AllocationObject(
        preempted=None if what.preempted is None else _preempted(what.preempted),
        timed_out=what.timed_out,
        replaced_by=what.replaced_by,
        told_ns=what.told_ns,
        replaces=None if what.replaces is None else _replaced(what.replaces),
    ).SerializeToString(deterministic=True)


def _demand(partition: str, app_id: str, demand: Demand) -> bytes:
    return (
        text_field(_DEMAND_KEY, demand.key)
        + kept_text(_DEMAND_APP, app_id)
        + kept_text(_DEMAND_PARTITION, partition)
        + _amounts(_DEMAND_RESOURCE, demand.shape.quantities)
        + number_field(_DEMAND_PRIORITY, demand.priority)
        + texts_field(_DEMAND_TAGS, demand.tags)
        + _kinds_of_demand(
            demand.task_group,
            demand.placeholder,
            demand.originator,
            demand.allow_preempt_self,
            demand.allow_preempt_other,
            demand.has_preemption_policy,
            demand.execution_timeout_ms,
        )
        + number_field(_DEMAND_SUBMISSION, demand.submission)
        + kept_number(_DEMAND_CREATED, demand.created_ns)
        + kept_number(_DEMAND_CHANGED, demand.changed_ns)
    )


@lru_cache(maxsize=1024)
def _kinds_of_demand(
    task_group: str,
    placeholder: bool,
    originator: bool,
    allow_preempt_self: bool,
    allow_preempt_other: bool,
    has_preemption_policy: bool,
    execution_timeout_ms: int,
) -> bytes:
    """What most demands of one application have in common."""
    return pb.Demand(
        task_group=task_group,
        placeholder=placeholder,
        originator=originator,
        allow_preempt_self=allow_preempt_self,
        allow_preempt_other=allow_preempt_other,
        has_preemption_policy=has_preemption_policy,
        execution_timeout_ms=execution_timeout_ms,
    ).SerializeToString(deterministic=True)


def _replaced(placeholder: Replaced) -> pb.ReplacedObject:
    return pb.ReplacedObject(allocation_key=placeholder.key, created_ns=placeholder.created_ns)


def _preempted(why: Preempted) -> pb.PreemptedObject:
    return pb.PreemptedObject(
        rule=why.rule,
        application_id=why.app_id,
        allocation_key=why.key,
        queue=why.queue,
        since_ns=why.since_ns,
        victim_share_before=why.victim_share_before,
        victim_share_after=why.victim_share_after,
        asker_share_before=why.asker_share_before,
        asker_share_after=why.asker_share_after,
    )


def _ask(partition: str, what: Ask) -> bytes:
    recorded = pb.AskObject(
        pending=what.pending,
        allocated=what.allocated,
        previous_generation=what.demand.previous_generation,
        reserved_node=what.reserved.node_id if what.reserved is not None else "",
        reserved_ns=what.reserved_ns,
        preempts=what.preempts,
        scaled_up=what.scaled_up,
        mismatched=what.mismatched,
        told=what.told,
    )
    if what.refusals is not None:
        _add_refusals(recorded, what.refusals)
    if what.asked is not None:
        recorded.asked_node, recorded.asked_ns = what.asked.node_id, what.asked.since_ns
    demand = bytes_field(_ASK_DEMAND, _demand(partition, what.app.app_id, what.demand))
    return demand + recorded.SerializeToString(deterministic=True)


def _add_refusals(recorded: pb.AskObject, refusals: Refusals) -> None:
    for refusal in list(refusals.nodes.values())[-REFUSALS_KEPT:]:
        recorded.refusals.add(
            node_id=refusal.node_id,
            reason=refusal.reason,
            refused_ns=refusal.refused_ns,
            unanswered=refusal.unanswered,
        )
    recorded.refused_nodes, recorded.refused_rounds = len(refusals.nodes), refusals.rounds
    recorded.refused_until_ns, recorded.stands_apart = refusals.until_ns, True


def _waitlist(partition: str, what: Waitlist) -> bytes:
    assert what.reason is not None, f"{what} is published without a reason"
    recorded = _reason(what.reason)
    recorded.partition, recorded.leaf = partition, what.leaf.path
    recorded.resource.CopyFrom(_shape(what.shape))
    recorded.user, recorded.user_group, recorded.required_node = what.user, what.user_group, what.required_node
    recorded.apart = what.apart
    recorded.past.extend(_past(what.past))
    return recorded.SerializeToString(deterministic=True)


def _reason(reason: Reason) -> pb.ReasonObject:
    recorded = _figures(reason)
    recorded.message, recorded.as_of_ns = reason.sentence(), reason.as_of_ns
    recorded.lacking.extend(pb.Lacking(resource_type=name, nodes=count) for name, count in reason.lacking)
    recorded.preemption = reason.preemption or ""
    return recorded


def _past(past: Past) -> Iterator[pb.ReasonObject]:
    """Without the words: they follow from the figures."""
    for reason, until_ns, shape in past:
        recorded = _figures(reason)
        recorded.until_ns = until_ns
        if shape is not None:
            recorded.resource.CopyFrom(_shape(shape))
        yield recorded


def _figures(reason: Reason) -> pb.ReasonObject:
    return pb.ReasonObject(
        code=reason.code,
        queue=reason.queue,
        resource_type=reason.resource_type,
        asked=saturated(reason.asked),
        used=saturated(reason.used),
        limit=saturated(reason.limit),
        free=saturated(reason.free),
        since_ns=reason.since_ns,
        who=reason.who,
        node=reason.node,
        nodes=reason.nodes,
        reserved=reason.reserved,
        promised=saturated(reason.promised),
        of_group=reason.of_group,
        said=reason.said,
        closed=[pb.ClosedNodes(by=by, source=source, nodes=nodes) for by, source, nodes in reason.closed],
    )


def _application(partition: str, what: Application) -> bytes:
    recorded = pb.ApplicationObject(
        partition=partition,
        application_id=what.app_id,
        queue=what.queue.path,
        requested_queue=what.requested_queue,
        user=what.user,
        groups=what.groups_of_user,
        tags=what.tags,
        state=what.state,
        state_log=[pb.ApplicationObject.StateLogEntry(time_ns=at_ns, state=state) for at_ns, state in what.story],
        submitted_ns=what.submitted_ns,
        started_ns=what.started_ns,
        finished_ns=what.finished_ns,
        submission=what.submission,
        execution_timeout_ms=what.execution_timeout_ms,
        placeholder_ask=_quantities(what.placeholder_ask),
        gang_style=what.gang_style,
        rejected_message=what.rejected_message,
        deadline_ns=what.deadline_ns,
        waiting=None if what.reason is None else _reason(what.reason),
        usage=[
            pb.UsageObject(kind=kind, instance_type=instance_type, resource_seconds=_quantities(used))
            for kind, by_type in what.usage.items()
            for instance_type, used in by_type.items()
        ],
        gang=None if what.gang is None else _gang(what.gang),
        source=what.source,
        most_used=_quantities(what.most_used) if what.most_used else None,
        queue_created_ns=what.queue.created_ns,
    )
    if what.past:
        recorded.past_waiting.extend(_past(what.past))
    return recorded.SerializeToString(deterministic=True)


def _gang(gang: Gang) -> pb.GangObject:
    return pb.GangObject(
        phase=gang.phase,
        deadline_ns=gang.deadline_ns,
        task_groups=[
            pb.TaskGroupObject(
                name=group.name,
                resource=_shape(group.shape),
                asked=group.asked,
                replaced=group.replaced,
                timed_out=group.timed_out,
                lost=group.lost,
            )
            for group in gang.groups.values()
        ],
    )


# Nodes and what sources say of them are written by hand: thousands change in a second (``wire.py``).
_NODE_PARTITION, _NODE_ID, _NODE_SUBMISSION, _NODE_CREATED = (
    field(pb.NodeObject, name) for name in ("partition", "node_id", "submission", "created_ns")
)
_NODE_SCHEDULABLE = number_field(field(pb.NodeObject, "schedulable"), 1)
_NODE_ATTRIBUTES, _NODE_CAPACITY, _NODE_OCCUPIED, _NODE_REPORTED = (
    field(pb.NodeObject, name) for name in ("attributes", "capacity", "occupied", "reported")
)
_REPORT_ATTRIBUTES, _REPORT_CAPACITY, _REPORT_OCCUPIED = (
    field(pb.NodeReport, name) for name in ("attributes", "capacity", "occupied")
)
_REPORT_SCHEDULABLE = number_field(field(pb.NodeReport, "schedulable"), 1)
_NODE_BY_OPERATOR = number_field(field(pb.NodeObject, "by_operator"), 1)
_REPORT_BY_OPERATOR = number_field(field(pb.NodeReport, "by_operator"), 1)
_VALUES = field(pb.Quantities, "values")


def _amounts(number: int, values: Mapping[str, int]) -> bytes:
    """A field of Quantities."""
    try:
        return bytes_field(number, amounts_field(_VALUES, values))
    except ValueError:  # a sum that no int64 holds
        return bytes_field(number, amounts_field(_VALUES, {name: saturated(value) for name, value in values.items()}))


def _node(partition: str, what: Node) -> bytes:
    return (
        kept_text(_NODE_PARTITION, partition)
        + text_field(_NODE_ID, what.node_id)
        + texts_field(_NODE_ATTRIBUTES, what.attributes)
        + _amounts(_NODE_CAPACITY, what.named_capacity())
        + _amounts(_NODE_OCCUPIED, what.reported_occupied)
        + (_NODE_SCHEDULABLE if what.schedulable else NONE)
        + number_field(_NODE_SUBMISSION, what.submission)
        + kept_number(_NODE_CREATED, what.created_ns)
        + (_node_sources(what.sources) if what.sources else NONE)
        + (NONE if what.reported is None else bytes_field(_NODE_REPORTED, _report(what.reported)))
        + (_NODE_BY_OPERATOR if what.by_operator else NONE)
    )


@lru_cache(maxsize=256)
def _node_sources(sources: tuple[str, ...]) -> bytes:
    return pb.NodeObject(sources=sources).SerializeToString()


def _report(said: NodeReport) -> bytes:
    return (
        texts_field(_REPORT_ATTRIBUTES, said.attributes)
        + (NONE if said.capacity is None else _amounts(_REPORT_CAPACITY, said.capacity))
        + _amounts(_REPORT_OCCUPIED, said.occupied)
        + (_REPORT_SCHEDULABLE if said.schedulable else NONE)
        + (_REPORT_BY_OPERATOR if said.by_operator else NONE)
    )


def _queue(partition: str, what: Queue) -> bytes:
    return pb.QueueObject(
        partition=partition,
        path=what.path,
        state=what.state,
        managed=what.managed,
        leaf=what.leaf,
        guaranteed=_quantities(what.by_name(what.guaranteed)),
        max=_quantities(what.by_name(what.maximum)),
        properties=what.properties,
        max_applications=what.max_applications,
        has_guaranteed=what.guaranteed is not None,
        has_max=what.maximum is not None,
        quota_ns=what.quota_ns,
        sources=what.sources,
        own_max=_quantities(what.by_name(what.own_maximum)) if what.sources else None,
        created_ns=what.created_ns,
    ).SerializeToString(deterministic=True)


def _source(what: SourceEntry) -> bytes:
    return pb.SourceObject(
        partition=what.partition,
        source=what.source,
        state=what.state,
        life=what.life,
        since_ns=what.since_ns,
        drains=what.drains,
        reason=what.reason,
        lost=what.lost,
        past_lives=what.past,
    ).SerializeToString(deterministic=True)


_EXTERNAL_SAID, _EXTERNAL_SINCE, _EXTERNAL_PROBLEM = (
    field(pb.ExternalRecord, name) for name in ("said", "since_ns", "problem")
)


def _external(what: ExternalEntry) -> bytes:
    said = codec.to_wire(what.kind, what.object_id, what.said, stale=what.stale)
    owner = what.owner
    record = (
        _external_head(owner.partition, owner.source, what.life)
        + bytes_field(_EXTERNAL_SAID, said)
        + kept_number(_EXTERNAL_SINCE, what.since_ns)
        + text_field(_EXTERNAL_PROBLEM, what.problem)
    )
    if what.kind is not ExternalKind.OFFER:
        return record
    # (Fields with higher numbers come behind.)
    return record + pb.ExternalRecord(
        offer_state=what.offer_state or "",
        idle_since_ns=what.idle_since_ns,
        deadline_ns=what.deadline_ns,
        withdrawn=what.withdrawn,
    ).SerializeToString(deterministic=True)


@lru_cache(maxsize=256)
def _external_head(partition: str, source: str, life: str) -> bytes:
    return pb.ExternalRecord(partition=partition, source=source, life=life).SerializeToString(deterministic=True)


# ---- back ----------------------------------------------------------------------------------------------------------


def _item(demand: pb.Demand, *, previous_generation: bool, node_id: str = "", uuid: str = "") -> AskItem:
    return AskItem(
        demand.allocation_key,
        demand.application_id,
        demand.partition,
        dict(demand.resource.values.items()),
        1,
        demand.priority,
        dict(demand.tags.items()) if demand.tags else {},
        demand.task_group,
        demand.placeholder,
        demand.originator,
        demand.allow_preempt_self,
        demand.allow_preempt_other,
        demand.has_preemption_policy,
        demand.execution_timeout_ms,
        previous_generation,
        node_id,
        uuid,
    )


def _fold_allocation(partition: Partition, recorded: pb.AllocationObject) -> None:
    demand = recorded.demand
    fold.fold_allocation(
        partition,
        _item(
            demand,
            previous_generation=recorded.previous_generation,
            node_id=recorded.node_id,
            uuid=recorded.uuid,
        ),
        ordinal=recorded.ordinal,
        submission=demand.submission,
        created_ns=demand.created_ns,
        changed_ns=demand.changed_ns,
        allocated_ns=recorded.allocated_ns,
        foreign=recorded.foreign,
        preempted=_preempted_of(recorded.preempted) if recorded.HasField("preempted") else None,
        timed_out=recorded.timed_out,
        replaced_by=recorded.replaced_by if recorded.HasField("replaced_by") else None,
        told_ns=recorded.told_ns,
        replaces=_replaced_of(recorded.replaces) if recorded.HasField("replaces") else None,
        source=recorded.source,
    )


def _replaced_of(recorded: pb.ReplacedObject) -> Replaced:
    return Replaced(recorded.allocation_key, recorded.created_ns)


def _preempted_of(recorded: pb.PreemptedObject) -> Preempted:
    return Preempted(
        PreemptionRule(recorded.rule),
        recorded.application_id,
        recorded.allocation_key,
        recorded.queue,
        recorded.since_ns,
        recorded.victim_share_before,
        recorded.victim_share_after,
        recorded.asker_share_before,
        recorded.asker_share_after,
    )


def _fold_ask(partition: Partition, recorded: pb.AskObject) -> None:
    demand = recorded.demand
    fold.fold_ask(
        partition,
        _item(demand, previous_generation=recorded.previous_generation),
        pending=recorded.pending,
        allocated=recorded.allocated,
        submission=demand.submission,
        created_ns=demand.created_ns,
        reserved_node=recorded.reserved_node,
        reserved_ns=recorded.reserved_ns,
        preempts=recorded.preempts,
        scaled_up=recorded.scaled_up,
        mismatched=recorded.mismatched,
        told=recorded.told,
        refused=_refusals_of(recorded) if recorded.stands_apart else None,
        asked=Asked(recorded.asked_node, recorded.asked_ns) if recorded.asked_node else None,
    )


def _refusals_of(recorded: pb.AskObject) -> fold.FoldedRefusals:
    return fold.FoldedRefusals(
        {
            each.node_id: Refusal(each.node_id, each.reason, each.refused_ns, each.unanswered)
            for each in recorded.refusals
        },
        recorded.refused_rounds,
        recorded.refused_until_ns,
    )


def _fold_reason(partition: Partition, recorded: pb.ReasonObject) -> None:
    fold.fold_reason(
        partition,
        recorded.leaf,
        dict(recorded.resource.values),
        (recorded.user, recorded.user_group, recorded.required_node, recorded.apart),
        _reason_of(recorded),
        _past_of(recorded.past),
    )


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
        PreemptionNo(recorded.preemption) if recorded.preemption else None,
        recorded.promised,
        recorded.of_group,
        said=recorded.said,
        as_of_ns=recorded.as_of_ns,
        closed=tuple(Closed(ClosedBy(each.by), each.source, each.nodes) for each in recorded.closed),
    )


def _past_of(recorded: Iterable[pb.ReasonObject]) -> tuple[fold.FoldedPast, ...]:
    return tuple(
        fold.FoldedPast(
            _reason_of(each), each.until_ns, dict(each.resource.values) if each.HasField("resource") else None
        )
        for each in recorded
    )


def _fold_application(partition: Partition, recorded: pb.ApplicationObject) -> None:
    asked = dict(recorded.placeholder_ask.values) if recorded.HasField("placeholder_ask") else None
    fold.fold_application(
        partition,
        fold.FoldedApplication(
            recorded.application_id,
            recorded.queue,
            recorded.requested_queue,
            recorded.user,
            tuple(recorded.groups),
            dict(recorded.tags),
            AppState(recorded.state),
            [(entry.time_ns, entry.state) for entry in recorded.state_log],
            recorded.submission,
            recorded.submitted_ns,
            recorded.started_ns,
            recorded.finished_ns,
            recorded.deadline_ns,
            recorded.execution_timeout_ms,
            asked,
            recorded.gang_style,
            recorded.rejected_message,
            _reason_of(recorded.waiting) if recorded.HasField("waiting") else None,
            _usage_of(recorded.usage),
            _gang_of(recorded.gang) if recorded.HasField("gang") else None,
            recorded.source,
            _past_of(recorded.past_waiting),
            most_used=dict(recorded.most_used.values),
            queue_created_ns=recorded.queue_created_ns,
        ),
    )


def _gang_of(recorded: pb.GangObject) -> fold.FoldedGang:
    return fold.FoldedGang(
        GangPhase(recorded.phase),
        recorded.deadline_ns,
        tuple(
            fold.FoldedTaskGroup(
                group.name,
                dict(group.resource.values),
                group.asked,
                group.replaced,
                group.timed_out,
                group.lost,
            )
            for group in recorded.task_groups
        ),
    )


def _usage_of(recorded: Iterable[pb.UsageObject]) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for used in recorded:
        found.setdefault(used.kind, {})[used.instance_type] = dict(used.resource_seconds.values)
    return found


def _fold_node(partition: Partition, recorded: pb.NodeObject) -> None:
    fold.fold_node(
        partition,
        recorded.node_id,
        dict(recorded.attributes),
        dict(recorded.capacity.values),
        dict(recorded.occupied.values),
        schedulable=recorded.schedulable,
        submission=recorded.submission,
        created_ns=recorded.created_ns,
        sources=tuple(recorded.sources),
        reported=_report_of(recorded.reported) if recorded.HasField("reported") else None,
        by_operator=recorded.by_operator,
    )


def _report_of(recorded: pb.NodeReport) -> NodeReport:
    return NodeReport(
        dict(recorded.attributes),
        dict(recorded.capacity.values) if recorded.HasField("capacity") else None,
        dict(recorded.occupied.values),
        recorded.schedulable,
        recorded.by_operator,
    )


def _fold_queue(partition: Partition, recorded: pb.QueueObject) -> None:
    fold.fold_queue(
        partition,
        fold.FoldedQueue(
            recorded.path,
            recorded.leaf,
            recorded.managed,
            QueueState(recorded.state),
            dict(recorded.guaranteed.values) if recorded.has_guaranteed else None,
            dict(recorded.max.values) if recorded.has_max else None,
            recorded.max_applications,
            dict(recorded.properties),
            recorded.quota_ns,
            tuple(recorded.sources),
            dict(recorded.own_max.values) if recorded.HasField("own_max") else None,
            recorded.created_ns,
        ),
    )


def _fold_source(books: ExternalBooks, recorded: pb.SourceObject) -> None:
    fold.fold_source(
        books,
        fold.FoldedSource(
            recorded.partition,
            recorded.source,
            SourceState(recorded.state),
            recorded.life,
            recorded.since_ns,
            recorded.drains,
            recorded.reason,
            recorded.lost,
            tuple(recorded.past_lives),
        ),
    )


def _fold_external(books: ExternalBooks, recorded: pb.ExternalRecord) -> None:
    stale = recorded.said.stale
    recorded.said.stale = False  # (as it came: an object or the word that it is stale)
    said = codec.from_proto(recorded.said)
    assert said.what is not None, f"the record of {said.kind} {said.object_id} has no object"
    fold.fold_external(
        books,
        fold.FoldedExternal(
            recorded.partition,
            recorded.source,
            said.kind,
            said.object_id,
            said.what,
            recorded.life,
            recorded.since_ns,
            stale,
            recorded.problem,
            OfferState(recorded.offer_state) if recorded.offer_state else None,
            recorded.idle_since_ns,
            recorded.deadline_ns,
            recorded.withdrawn,
        ),
    )
