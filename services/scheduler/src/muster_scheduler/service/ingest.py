"""SI messages of both generations as the core's commands (step "ingest")."""

from __future__ import annotations

from collections.abc import Iterable

from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import NODE_PARTITION

from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_scheduler.core.external import SetSource, UpdateExternal
from muster_scheduler.external import codec

_NO_TAGS: dict[str, str] = {}


def allocations(value: bytes, generation: str = "") -> UpdateAllocations:
    """An AllocationRequest: seed 000's allocations and seed 001's asks. Raises DecodeError.

    :param generation: of the RM: an allocation that exists (with a node) looks the same in both.
    """
    request = si.AllocationRequest.FromString(value)
    previous = generation == "previous"
    asks = [_allocation(item, previous=previous) for item in request.allocations]
    if request.asks:
        asks.extend(_ask(item) for item in request.asks)
    if not request.HasField("releases"):
        return UpdateAllocations(asks)
    releases = [
        ReleaseItem(
            item.partitionName,
            item.applicationID,
            item.allocationKey,
            _termination(item.terminationType),
            item.UUID,
            item.message,
        )
        for item in request.releases.allocationsToRelease
    ]
    releases.extend(
        ReleaseItem(
            item.partitionName,
            item.applicationID,
            item.allocationKey,
            _termination(item.terminationType),
            message=item.message,
            ask_only=True,
        )
        for item in request.releases.allocationAsksToRelease
    )
    return UpdateAllocations(asks, releases)


def applications(value: bytes) -> UpdateApplications:
    """An ApplicationRequest. Raises DecodeError."""
    request = si.ApplicationRequest.FromString(value)
    return UpdateApplications(
        tuple(
            AppItem(
                item.applicationID,
                item.queueName,
                item.partitionName,
                item.ugi.user,
                tuple(item.ugi.groups),
                dict(item.tags),
                item.executionTimeoutMilliSeconds,
                _quantities(item.placeholderAsk) if item.HasField("placeholderAsk") else None,
                item.gangSchedulingStyle,
            )
            for item in request.new
        ),
        tuple((item.partitionName, item.applicationID) for item in request.remove),
    )


def nodes(value: bytes) -> UpdateNodes:
    """A NodeRequest. Raises DecodeError."""
    request = si.NodeRequest.FromString(value)
    return UpdateNodes(tuple(_nodes(request.nodes)))


def external(changes: pb.ExternalChanges) -> list[UpdateExternal | SetSource]:
    """What a source says, to be applied in this order. Raises BadDocument."""
    return [command for command in codec.decode(changes) if command is not None]


def _nodes(items: Iterable[si.NodeInfo]) -> Iterable[NodeItem]:
    for item in items:
        attributes = dict(item.attributes)
        try:
            action = NodeAction(item.action)
        except ValueError:
            action = NodeAction.UNKNOWN
        yield NodeItem(
            item.nodeID,
            action,
            attributes,
            _quantities(item.schedulableResource) if item.HasField("schedulableResource") else None,
            _quantities(item.occupiedResource) if item.HasField("occupiedResource") else None,
            tuple(_existing(existing, item.nodeID) for existing in item.existingAllocations),
            attributes.get(NODE_PARTITION, ""),
        )


def _existing(item: si.Allocation, node_id: str) -> AskItem:
    """Only the previous generation has them; each is on the node that it comes with, unless it says otherwise."""
    return _allocation(item, previous=True)._replace(node_id=item.nodeID or node_id, previous_generation=True)


def _allocation(item: si.Allocation, *, previous: bool) -> AskItem:
    tags = item.allocationTags
    has_policy = item.HasField("preemptionPolicy")
    return AskItem(
        item.allocationKey,
        item.applicationID,
        item.partitionName,
        _quantities(item.resourcePerAlloc),
        1,
        item.priority,
        dict(tags) if tags else _NO_TAGS,
        item.taskGroupName,
        item.placeholder,
        item.originator,
        has_policy and item.preemptionPolicy.allowPreemptSelf,
        has_policy and item.preemptionPolicy.allowPreemptOther,
        has_policy,
        0,
        previous and bool(item.nodeID),
        item.nodeID,
        item.UUID,
    )


def _ask(item: si.AllocationAsk) -> AskItem:
    has_policy = item.HasField("preemptionPolicy")
    return AskItem(
        item.allocationKey,
        item.applicationID,
        item.partitionName,
        _quantities(item.resourceAsk),
        item.maxAllocations or 1,
        item.priority,
        dict(item.tags),
        item.taskGroupName,
        item.placeholder,
        item.Originator,
        has_policy and item.preemptionPolicy.allowPreemptSelf,
        has_policy and item.preemptionPolicy.allowPreemptOther,
        has_policy,
        max(item.executionTimeoutMilliSeconds, 0),
        True,
    )


def _quantities(resource: si.Resource) -> dict[str, int]:
    return {name: quantity.value for name, quantity in resource.resources.items()}


def _termination(number: int) -> Termination:
    try:
        return Termination(number)
    except ValueError:
        return Termination.UNKNOWN
