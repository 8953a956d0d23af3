"""What the RM and the sources say, as records of the requests; and what a machine writes, read again."""

from __future__ import annotations

from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics
from muster_core.external.model import ApplyExternalChanges, SetSourceState
from muster_core.model.commands import (
    AskItem,
    Command,
    NodeItem,
    PredicateAnswers,
    ReleaseItem,
    SetCallbacks,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.scopes import CallbackPolicy, Scope
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_state import external_codec as codec
from simulation.books import SECOND_NS, Amounts

RM = "rm"
TOPICS = Topics(partitions=1)
# All events are made, so that all are audited.
EXTRA = {"event.requestEventsEnabled": "true"}
Said = si.AllocationResponse | si.ApplicationResponse | si.NodeResponse | callbacks_pb2.ToResourceManager


def value_of(command: Command, epoch: int = 0) -> bytes:
    """The command as the value of a record of the requests; ``epoch``: of the callback stream that comes or goes."""
    match command:
        case ApplyExternalChanges():
            return codec.encode(RM, command.partition, command.source, command.life, command.changes)
        case SetSourceState():
            note = codec.SourceStateNote(command.state, command.drains, command.reason)
            return codec.encode(RM, command.partition, command.source, command.life, (), note)
    envelope = pb.RequestEnvelope(rm_id=RM, request_id="r")
    match command:
        case UpdateNodes():
            envelope.node = si.NodeRequest(nodes=[_node(item) for item in command.nodes], rmID=RM).SerializeToString()
        case UpdateApplications():
            request = si.ApplicationRequest(rmID=RM)
            for new in command.new:
                owner = si.UserGroupInformation(user=new.user, groups=new.groups)
                app = request.new.add(
                    applicationID=new.app_id,
                    queueName=new.queue,
                    partitionName=new.partition,
                    ugi=owner,
                    executionTimeoutMilliSeconds=new.execution_timeout_ms,
                    gangSchedulingStyle=new.gang_style,
                )
                if new.placeholder_ask is not None:
                    app.placeholderAsk.CopyFrom(_resource(new.placeholder_ask))
            for partition, app_id in command.remove:
                request.remove.add(applicationID=app_id, partitionName=partition)
            envelope.application = request.SerializeToString()
        case UpdateAllocations():
            asked = si.AllocationRequest(allocations=[_allocation(item) for item in command.asks], rmID=RM)
            if command.releases:
                asked.releases.allocationsToRelease.extend(_release(item) for item in command.releases)
            envelope.allocation = asked.SerializeToString()
        case SetCallbacks():
            envelope.callback_stream.CopyFrom(_stream(command, epoch))
        case PredicateAnswers():
            envelope.callback_answers = _answers(command).SerializeToString()
        case _:
            raise TypeError(type(command))
    return envelope.SerializeToString()


def _stream(command: SetCallbacks, epoch: int) -> pb.CallbackStream:
    policy = command.policy
    return pb.CallbackStream(
        connected=policy.connected,
        predicates=policy.predicates,
        preemption_predicates=policy.preemption,
        scheduling_states=policy.states,
        epoch=epoch,
        open_proposals=_ALONE[policy.alone],
    )


_ALONE = {
    Scope.ALL: callbacks_pb2.OPEN_PROPOSALS_ALL,
    Scope.NODE: callbacks_pb2.OPEN_PROPOSALS_NODE,
    Scope.TASK_GROUP: callbacks_pb2.OPEN_PROPOSALS_TASK_GROUP,
    Scope.APPLICATION: callbacks_pb2.OPEN_PROPOSALS_APPLICATION,
    Scope.ONE: callbacks_pb2.OPEN_PROPOSALS_ONE,
}


def _answers(command: PredicateAnswers) -> callbacks_pb2.FromResourceManager:
    """(One with a last victim is about a preemption; the other kind is read alike.)"""
    message = callbacks_pb2.FromResourceManager()
    for each in command.answers:
        if each.last_victim < 0:
            message.predicates.add(id=each.question, fits=each.fits, reason=each.reason)
        else:
            response = si.PreemptionPredicatesResponse(success=each.fits, index=each.last_victim)
            message.preemption_predicates.add(id=each.question, response=response, reason=each.reason)
    return message


def registration(config: str, policy: CallbackPolicy | None = None) -> bytes:
    """The RM registers; ``policy``: how long what takes that is asked of it, when it wants to be asked."""
    extra = dict(EXTRA)
    if policy is not None:
        extra["muster.callbacks.timeout"] = f"{policy.timeout_ns // SECOND_NS}s"
        extra["muster.callbacks.retry"] = f"{policy.retry_ns // SECOND_NS}s"
        extra["muster.callbacks.grace"] = f"{policy.grace_ns // SECOND_NS}s"
        extra["muster.callbacks.absent"] = "wait" if policy.waits else "accept"
    request = si.RegisterResourceManagerRequest(
        rmID=RM, version="1", policyGroup="queues", config=config, extraConfig=extra
    )
    return pb.RequestEnvelope(rm_id=RM, request_id="r", register=request.SerializeToString()).SerializeToString()


def configuration(config: str) -> bytes:
    request = si.UpdateConfigurationRequest(rmID=RM, policyGroup="queues", config=config)
    return pb.RequestEnvelope(rm_id=RM, request_id="r", configuration=request.SerializeToString()).SerializeToString()


def record(offset: int, value: bytes) -> Record:
    return Record(TOPICS.requests, 0, offset, 0, RM.encode(), value)


def answers(envelope: pb.ResponseEnvelope) -> Said:
    """What is in a message on one of the RM's streams."""
    match envelope.stream:
        case pb.STREAM_ALLOCATION:
            return si.AllocationResponse.FromString(envelope.response)
        case pb.STREAM_APPLICATION:
            return si.ApplicationResponse.FromString(envelope.response)
        case pb.STREAM_CALLBACK:
            return callbacks_pb2.ToResourceManager.FromString(envelope.response)
        case _:
            return si.NodeResponse.FromString(envelope.response)


def canonical(output: OutRecord) -> bytes:
    """The record's content in one form: the order of maps in a record is not defined."""
    value = output.value
    if value is not None and output.topic == TOPICS.responses:
        envelope = pb.ResponseEnvelope.FromString(value)
        if envelope.stream:
            envelope.response = answers(envelope).SerializeToString(deterministic=True)
        value = envelope.SerializeToString(deterministic=True)
    elif value is not None and output.topic == TOPICS.events:
        value = si.EventRecord.FromString(value).SerializeToString(deterministic=True)
    return repr((output.topic, output.key, value)).encode()


def amounts(resource: si.Resource) -> Amounts:
    return {name: quantity.value for name, quantity in resource.resources.items()}


def _resource(quantities: Amounts) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def _node(item: NodeItem) -> si.NodeInfo:
    info = si.NodeInfo(nodeID=item.node_id, action=int(item.action), attributes=item.attributes)  # type: ignore[arg-type]
    if item.capacity is not None:
        info.schedulableResource.CopyFrom(_resource(item.capacity))
    if item.occupied is not None:
        info.occupiedResource.CopyFrom(_resource(item.occupied))
    return info


def _allocation(item: AskItem) -> si.Allocation:
    return si.Allocation(
        allocationKey=item.key,
        applicationID=item.app_id,
        partitionName=item.partition,
        nodeID=item.node_id,
        resourcePerAlloc=_resource(item.quantities),
        allocationTags=item.tags,
        priority=item.priority,
        taskGroupName=item.task_group,
        placeholder=item.placeholder,
        preemptionPolicy=si.PreemptionPolicy(
            allowPreemptSelf=item.allow_preempt_self, allowPreemptOther=item.allow_preempt_other
        ),
    )


def _release(item: ReleaseItem) -> si.AllocationRelease:
    return si.AllocationRelease(
        partitionName=item.partition,
        applicationID=item.app_id,
        allocationKey=item.key,
        terminationType=int(item.termination),  # type: ignore[arg-type]
        message=item.message,
    )
