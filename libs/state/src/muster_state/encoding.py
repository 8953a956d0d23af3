"""The core's objects as the bytes of their records (proto/muster/bus/v1/state.proto)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from muster_core.external.model import ExternalKind
from muster_core.external.reports import ReportedObject, SourceEntry
from muster_core.model.allocation import BackfillRecord, PreemptionRecord, ReplacedPlaceholder
from muster_core.model.application import Allocation, Application, Ask, Gang
from muster_core.model.decayed_usage import UserUsage
from muster_core.model.demand import Demand
from muster_core.model.node import Node, NodeReport
from muster_core.model.queue import Queue, Waitlist
from muster_core.model.reason_history import Past
from muster_core.model.reasons import Reason
from muster_core.model.refusals import NodeRefusals
from muster_core.model.resources import Shape, saturated
from muster_proto.muster.bus.v1 import state_pb2 as pb

from muster_state import external_codec as codec
from muster_state.protobuf_wire import (
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

# The limit of an ask's refused nodes in its record: thousands must not make the record large in each round. After a
# restart, the RM is asked about the other nodes again.
REFUSALS_KEPT = 8


def _quantities(values: Mapping[str, int] | None) -> pb.Quantities | None:
    if values is None:
        return None
    try:
        return pb.Quantities(values=values)
    except ValueError:  # a sum beyond int64
        return pb.Quantities(values={name: saturated(value) for name, value in values.items()})


def _shape(shape: Shape) -> pb.Quantities:
    return pb.Quantities(values=shape.quantities)


# Asks and allocations change most often.
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


def allocation_record(partition: str, allocation: Allocation) -> bytes:
    demand = allocation.demand
    return (
        bytes_field(_ALLOCATION_DEMAND, _demand(partition, allocation.app_id, demand))
        + text_field(_ALLOCATION_NODE, allocation.node_id)
        + text_field(_ALLOCATION_UUID, allocation.uuid)
        + kept_number(_ALLOCATED, allocation.allocated_ns)
        + _kinds_of_allocation(allocation.foreign, demand.previous_generation, allocation.ordinal)
        + (
            _end_of(allocation)
            if allocation.releasing or allocation.releasing_since_ns or allocation.replaces is not None
            else NONE
        )
        + kept_text(_ALLOCATION_SOURCE, allocation.source)
        + (NONE if allocation.backfilled is None else _backfilled(allocation.backfilled))
    )


@lru_cache(maxsize=256)
def _kinds_of_allocation(foreign: bool, previous_generation: bool, ordinal: int) -> bytes:
    return pb.AllocationObject(
        foreign=foreign, previous_generation=previous_generation, ordinal=ordinal
    ).SerializeToString(deterministic=True)


def _end_of(allocation: Allocation) -> bytes:
    """The fields of an allocation that was released, or that replaced a placeholder."""
    return pb.AllocationObject(
        preempted=None if allocation.preempted is None else _preempted(allocation.preempted),
        timed_out=allocation.timed_out,
        replaced_by=allocation.replaced_by,
        told_ns=allocation.releasing_since_ns,
        replaces=None if allocation.replaces is None else _replaced(allocation.replaces),
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
    """The fields that most demands of one application share."""
    return pb.Demand(
        task_group=task_group,
        placeholder=placeholder,
        originator=originator,
        allow_preempt_self=allow_preempt_self,
        allow_preempt_other=allow_preempt_other,
        has_preemption_policy=has_preemption_policy,
        execution_timeout_ms=execution_timeout_ms,
    ).SerializeToString(deterministic=True)


def _backfilled(by: BackfillRecord) -> bytes:
    recorded = pb.BackfilledObject(application_id=by.app_id, allocation_key=by.key, due_ns=by.due_ns, end_ns=by.end_ns)
    return pb.AllocationObject(backfilled=recorded).SerializeToString(deterministic=True)


def _replaced(placeholder: ReplacedPlaceholder) -> pb.ReplacedObject:
    return pb.ReplacedObject(allocation_key=placeholder.key, created_ns=placeholder.created_ns)


def _preempted(preemption: PreemptionRecord) -> pb.PreemptedObject:
    return pb.PreemptedObject(
        rule=preemption.rule,
        application_id=preemption.app_id,
        allocation_key=preemption.key,
        queue=preemption.queue,
        since_ns=preemption.since_ns,
        victim_share_before=preemption.victim_share_before,
        victim_share_after=preemption.victim_share_after,
        asker_share_before=preemption.asker_share_before,
        asker_share_after=preemption.asker_share_after,
    )


def ask_record(partition: str, ask: Ask) -> bytes:
    recorded = pb.AskObject(
        pending=ask.pending,
        allocated=ask.allocated,
        previous_generation=ask.demand.previous_generation,
        reserved_node=ask.reserved_node,
        reserved_ns=ask.reserved_ns,
        preempts=ask.preempts,
        planned_ns=ask.planned_ns,
        lost=ask.lost,
        scaled_up=ask.scaled_up,
        mismatched=ask.mismatched,
        told=ask.notified,
    )
    if ask.refusals is not None:
        _add_refusals(recorded, ask.refusals)
    if ask.asked is not None:
        recorded.asked_node, recorded.asked_ns = ask.asked.node_id, ask.asked.since_ns
    demand = bytes_field(_ASK_DEMAND, _demand(partition, ask.app.app_id, ask.demand))
    return demand + recorded.SerializeToString(deterministic=True)


def _add_refusals(recorded: pb.AskObject, refusals: NodeRefusals) -> None:
    # (The RM is asked again about nodes on which an allocation ended, at the latest after a restart.)
    kept = [refusal for refusal in refusals.nodes.values() if refusal.node_id not in refusals.resting]
    for refusal in kept[-REFUSALS_KEPT:]:
        recorded.refusals.add(
            node_id=refusal.node_id,
            reason=refusal.reason,
            refused_ns=refusal.refused_ns,
            unanswered=refusal.unanswered,
        )
    recorded.refused_nodes, recorded.refused_rounds = len(kept), refusals.rounds
    recorded.refused_until_ns, recorded.stands_apart = refusals.until_ns, True


def waitlist_record(partition: str, waitlist: Waitlist) -> bytes:
    assert waitlist.reason is not None, f"{waitlist} is published without a reason"
    recorded = _reason(waitlist.reason)
    recorded.partition, recorded.leaf = partition, waitlist.leaf.path
    recorded.resource.CopyFrom(_shape(waitlist.shape))
    recorded.user, recorded.user_group, recorded.required_node = (
        waitlist.user,
        waitlist.user_group,
        waitlist.required_node,
    )
    recorded.apart = waitlist.apart
    recorded.past.extend(_past(waitlist.past))
    return recorded.SerializeToString(deterministic=True)


def _reason(reason: Reason) -> pb.ReasonObject:
    recorded = _figures(reason)
    recorded.message, recorded.as_of_ns = reason.sentence(), reason.as_of_ns
    recorded.lacking.extend(pb.Lacking(resource_type=name, nodes=count) for name, count in reason.lacking)
    recorded.preemption = reason.preemption or ""
    return recorded


def _past(past: Past) -> Iterator[pb.ReasonObject]:
    """The fields of a reason, without messages, which follow from the figures."""
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
        placeholder=reason.placeholder,
        closed=[pb.ClosedNodes(by=by, source=source, nodes=nodes) for by, source, nodes in reason.closed],
    )


def application_record(partition: str, app: Application) -> bytes:
    recorded = pb.ApplicationObject(
        partition=partition,
        application_id=app.app_id,
        queue=app.queue.path,
        requested_queue=app.requested_queue,
        user=app.user,
        groups=app.groups_of_user,
        tags=app.tags,
        state=app.state,
        state_log=[pb.ApplicationObject.StateLogEntry(time_ns=at_ns, state=state) for at_ns, state in app.state_log],
        submitted_ns=app.submitted_ns,
        started_ns=app.started_ns,
        finished_ns=app.finished_ns,
        submission=app.submission,
        execution_timeout_ms=app.execution_timeout_ms,
        placeholder_ask=_quantities(app.placeholder_ask),
        gang_style=app.gang_style,
        rejected_message=app.rejected_message,
        failed_message=app.failed_message,
        deadline_ns=app.deadline_ns,
        waiting=None if app.reason is None else _reason(app.reason),
        usage=[
            pb.UsageObject(kind=kind, instance_type=instance_type, resource_seconds=_quantities(used))
            for kind, by_type in app.usage.items()
            for instance_type, used in by_type.items()
        ],
        gang=None if app.gang is None else _gang(app.gang),
        source=app.source,
        most_used=_quantities(app.most_used) if app.most_used else None,
        queue_created_ns=app.queue.created_ns,
    )
    if app.past:
        recorded.past_waiting.extend(_past(app.past))
    return recorded.SerializeToString(deterministic=True)


def _gang(gang: Gang) -> pb.GangObject:
    names = gang.app.queue.types.names
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
        too_large_since_ns=gang.too_large_since_ns,
        ended=_quantities({names[number]: value for number, value in sorted(gang.ended.items()) if value}),
    )


# Records of nodes, and of sources' statements about nodes, are written by hand: thousands change in a second
# (``protobuf_wire.py``).
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
    """A field of type Quantities."""
    try:
        return bytes_field(number, amounts_field(_VALUES, values))
    except ValueError:  # a sum beyond int64
        return bytes_field(number, amounts_field(_VALUES, {name: saturated(value) for name, value in values.items()}))


def node_record(partition: str, node: Node) -> bytes:
    return (
        kept_text(_NODE_PARTITION, partition)
        + text_field(_NODE_ID, node.node_id)
        + texts_field(_NODE_ATTRIBUTES, node.attributes)
        + _amounts(_NODE_CAPACITY, node.named_capacity())
        + _amounts(_NODE_OCCUPIED, node.reported_occupied)
        + (_NODE_SCHEDULABLE if node.schedulable else NONE)
        + number_field(_NODE_SUBMISSION, node.submission)
        + kept_number(_NODE_CREATED, node.created_ns)
        + (_node_sources(node.sources) if node.sources else NONE)
        + (NONE if node.reported is None else bytes_field(_NODE_REPORTED, _report(node.reported)))
        + (_NODE_BY_OPERATOR if node.by_operator else NONE)
    )


@lru_cache(maxsize=256)
def _node_sources(sources: tuple[str, ...]) -> bytes:
    return pb.NodeObject(sources=sources).SerializeToString()


def _report(report: NodeReport) -> bytes:
    return (
        texts_field(_REPORT_ATTRIBUTES, report.attributes)
        + (NONE if report.capacity is None else _amounts(_REPORT_CAPACITY, report.capacity))
        + _amounts(_REPORT_OCCUPIED, report.occupied)
        + (_REPORT_SCHEDULABLE if report.schedulable else NONE)
        + (_REPORT_BY_OPERATOR if report.by_operator else NONE)
    )


def queue_record(partition: str, queue: Queue) -> bytes:
    return pb.QueueObject(
        partition=partition,
        path=queue.path,
        state=queue.state,
        managed=queue.managed,
        leaf=queue.leaf,
        guaranteed=_quantities(queue.by_name(queue.guaranteed)),
        max=_quantities(queue.by_name(queue.maximum)),
        properties=queue.properties,
        max_applications=queue.max_applications,
        has_guaranteed=queue.guaranteed is not None,
        has_max=queue.maximum is not None,
        quota_ns=queue.quota_ns,
        sources=queue.sources,
        own_max=_quantities(queue.by_name(queue.own_maximum)) if queue.sources else None,
        created_ns=queue.created_ns,
    ).SerializeToString(deterministic=True)


def fair_use_record(partition: str, usage: UserUsage) -> bytes:
    names = usage.leaf.types.names
    return pb.FairUseObject(
        partition=partition,
        leaf=usage.leaf.path,
        user=usage.user,
        half_life_ns=usage.half_life_ns,
        halves=usage.halves,
        changed_ns=usage.changed_ns,
        types=[
            pb.FairUseOfType(
                resource_type=names[number],
                held=str(usage.held.get(number, 0)),
                charged=str(usage.charged.get(number, 0)),
            )
            for number in sorted({*usage.held, *usage.charged}, key=names.__getitem__)
        ],
    ).SerializeToString(deterministic=True)


def source_record(source: SourceEntry) -> bytes:
    return pb.SourceObject(
        partition=source.partition,
        source=source.source,
        state=source.state,
        life=source.life,
        since_ns=source.since_ns,
        drains=source.drains,
        reason=source.reason,
        lost=source.lost,
        past_lives=source.past,
    ).SerializeToString(deterministic=True)


_EXTERNAL_SAID, _EXTERNAL_SINCE, _EXTERNAL_PROBLEM = (
    field(pb.ExternalRecord, name) for name in ("said", "since_ns", "problem")
)


def external_record(obj: ReportedObject) -> bytes:
    payload = codec.to_wire(obj.kind, obj.object_id, obj.said, stale=obj.stale)
    owner = obj.owner
    record = (
        _external_head(owner.partition, owner.source, obj.life)
        + bytes_field(_EXTERNAL_SAID, payload)
        + kept_number(_EXTERNAL_SINCE, obj.since_ns)
        + text_field(_EXTERNAL_PROBLEM, obj.problem)
    )
    if obj.kind is not ExternalKind.OFFER:
        return record
    # (Fields with higher numbers follow.)
    return record + pb.ExternalRecord(
        offer_state=obj.offer_state or "",
        idle_since_ns=obj.idle_since_ns,
        deadline_ns=obj.deadline_ns,
        withdrawn=obj.withdrawn,
    ).SerializeToString(deterministic=True)


@lru_cache(maxsize=256)
def _external_head(partition: str, source: str, life: str) -> bytes:
    return pb.ExternalRecord(partition=partition, source=source, life=life).SerializeToString(deterministic=True)
