"""Decodes SI messages of both generations into the core's commands (step "ingest")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from google.protobuf.message import DecodeError
from muster_core.config.queue_config import without_rm
from muster_core.external.model import ApplyExternalChanges, SetSourceState
from muster_core.model.commands import (
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
from muster_core.model.demand import DURATION_TAG
from muster_core.model.resources import INT64_MAX
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime.secrets import masked_text
from muster_si.constants import NODE_PARTITION
from muster_si.tag_interning import intern_tags
from muster_state import external_codec as codec
from muster_state.state_folder import RmInfo

# As many digits as an int64 has.
_DIGITS_MAX = 19

# A release's message is masked up to here. (Events show less; a message may have a megabyte of secrets.)
_MESSAGE_CHARACTERS_MAX = 4_096
# More existing allocations of a node are decoded when the core takes them, some hundred in a step.
_EXISTING_AT_ONCE = 100

Items = UpdateAllocations | UpdateApplications | UpdateNodes


def allocations(value: bytes, generation: str = "", admitted_ns: int = 0) -> UpdateAllocations:
    """Decodes an AllocationRequest: the current generation's allocations and the previous one's asks. Raises
    DecodeError.

    :param generation: the RM's: an existing allocation (with a node) looks the same in both.
    :param admitted_ns: when the gateway admitted the request.
    """
    request = si.AllocationRequest.FromString(value)
    previous = generation == "previous"
    asks = [_allocation(item, request.rmID, previous=previous, admitted_ns=admitted_ns) for item in request.allocations]
    if request.asks:
        asks.extend(_ask(item, request.rmID, admitted_ns) for item in request.asks)
    if not request.HasField("releases"):
        return UpdateAllocations(asks)
    releases = [
        ReleaseItem(
            without_rm(item.partitionName, request.rmID),
            item.applicationID,
            item.allocationKey,
            _termination(item.terminationType),
            item.UUID,
            _message(item.message),
        )
        for item in request.releases.allocationsToRelease
    ]
    releases.extend(
        ReleaseItem(
            without_rm(item.partitionName, request.rmID),
            item.applicationID,
            item.allocationKey,
            _termination(item.terminationType),
            message=_message(item.message),
            ask_only=True,
        )
        for item in request.releases.allocationAsksToRelease
    )
    return UpdateAllocations(asks, releases)


def read_allocations(value: bytes, info: RmInfo, admitted_ns: int) -> UpdateAllocations:
    """Does so with the RM's generation of this moment."""
    return allocations(value, info.generation, admitted_ns)


def single(read: Callable[[], Items], index: int) -> Items:
    """Returns one item of those that ``read`` decodes."""
    return read().between(index, index + 1)


def applications(value: bytes) -> UpdateApplications:
    """Decodes an ApplicationRequest. Raises DecodeError."""
    request = si.ApplicationRequest.FromString(value)
    return UpdateApplications(
        tuple(
            AppItem(
                app_id=item.applicationID,
                queue=item.queueName,
                partition=without_rm(item.partitionName, request.rmID),
                user=item.ugi.user,
                groups=tuple(item.ugi.groups),
                tags=intern_tags(item.tags),
                execution_timeout_ms=item.executionTimeoutMilliSeconds,
                placeholder_ask=_quantities(item.placeholderAsk) if item.HasField("placeholderAsk") else None,
                gang_style=item.gangSchedulingStyle,
            )
            for item in request.new
        ),
        tuple((without_rm(item.partitionName, request.rmID), item.applicationID) for item in request.remove),
    )


def nodes(value: bytes) -> UpdateNodes:
    """Decodes a NodeRequest. Raises DecodeError."""
    request = si.NodeRequest.FromString(value)
    return UpdateNodes(tuple(_nodes(request.nodes, request.rmID)))


def summarize_request(value: bytes | None) -> tuple[str, Items | None]:
    """Returns a record's kind of request, and its items if it has some; ("", None) if the record cannot be read."""
    try:
        envelope = pb.RequestEnvelope.FromString(value or b"")
        body = envelope.WhichOneof("body") or ""
        match body:
            case "allocation":
                return body, allocations(envelope.allocation)
            case "application":
                return body, applications(envelope.application)
            case "node":
                return body, nodes(envelope.node)
    except DecodeError:
        return "", None
    return body, None


def external(changes: pb.ExternalChanges) -> list[ApplyExternalChanges | SetSourceState]:
    """Returns a source's commands, in the order in which to apply them. Raises BadDocument."""
    return [command for command in codec.decode(changes) if command is not None]


def _nodes(items: Iterable[si.NodeInfo], rm_id: str) -> Iterable[NodeItem]:
    for item in items:
        attributes = intern_tags(item.attributes)
        try:
            action = NodeAction(item.action)
        except ValueError:
            action = NodeAction.UNKNOWN
        yield NodeItem(
            node_id=item.nodeID,
            action=action,
            attributes=attributes,
            capacity=_quantities(item.schedulableResource) if item.HasField("schedulableResource") else None,
            occupied=_quantities(item.occupiedResource) if item.HasField("occupiedResource") else None,
            existing=_existing_of(item, rm_id),
            partition=without_rm(attributes.get(NODE_PARTITION, ""), rm_id),
        )


def _existing_of(node: si.NodeInfo, rm_id: str) -> Collection[AskItem]:
    if len(node.existingAllocations) > _EXISTING_AT_ONCE:
        return ExistingAllocations(node, rm_id)
    return tuple(_existing(item, node.nodeID, rm_id) for item in node.existingAllocations)


class ExistingAllocations:
    """The existing allocations of one node. Each is decoded where it is used."""

    def __init__(self, node: si.NodeInfo, rm_id: str) -> None:
        self._node, self._rm_id = node, rm_id

    def __len__(self) -> int:
        return len(self._node.existingAllocations)

    def __iter__(self) -> Iterator[AskItem]:
        for item in self._node.existingAllocations:
            yield _existing(item, self._node.nodeID, self._rm_id)

    def __contains__(self, item: object) -> bool:
        return any(item == existing for existing in self)


def _message(text: str) -> str:
    """Returns a release's message for events: without secrets. A long one ends between two words, because half of a
    secret is not known as one.
    """
    if len(text) > _MESSAGE_CHARACTERS_MAX:
        end = text.rfind(" ", 0, _MESSAGE_CHARACTERS_MAX)
        text = text[:end] if end > 0 else f"({len(text)} characters)"
    return masked_text(text)


def _existing(item: si.Allocation, node_id: str, rm_id: str) -> AskItem:
    """Decodes an existing allocation of a node. Only the previous generation has these. If the allocation names no
    node, it is on the node whose message has it.
    """
    return replace(_allocation(item, rm_id, previous=True), node_id=item.nodeID or node_id, previous_generation=True)


def _allocation(item: si.Allocation, rm_id: str, *, previous: bool, admitted_ns: int = 0) -> AskItem:
    tags = item.allocationTags
    has_policy = item.HasField("preemptionPolicy")
    return AskItem(
        key=item.allocationKey,
        app_id=item.applicationID,
        partition=without_rm(item.partitionName, rm_id),
        quantities=_quantities(item.resourcePerAlloc),
        wanted=1,
        priority=item.priority,
        tags=intern_tags(tags),
        task_group=item.taskGroupName,
        placeholder=item.placeholder,
        originator=item.originator,
        allow_preempt_self=has_policy and item.preemptionPolicy.allowPreemptSelf,
        allow_preempt_other=has_policy and item.preemptionPolicy.allowPreemptOther,
        has_preemption_policy=has_policy,
        execution_timeout_ms=_declared_ms(tags[DURATION_TAG]) if DURATION_TAG in tags else 0,
        previous_generation=previous and bool(item.nodeID),
        node_id=item.nodeID,
        uuid=item.UUID,
        admitted_ns=admitted_ns,
    )


def _declared_ms(text: str) -> int:
    """A duration from its tag. A text that is no such number declares nothing, as an RM's time-out of 0 does."""
    return min(int(text), INT64_MAX) if text.isdecimal() and text.isascii() and len(text) <= _DIGITS_MAX else 0


def _ask(item: si.AllocationAsk, rm_id: str, admitted_ns: int) -> AskItem:
    has_policy = item.HasField("preemptionPolicy")
    return AskItem(
        key=item.allocationKey,
        app_id=item.applicationID,
        partition=without_rm(item.partitionName, rm_id),
        quantities=_quantities(item.resourceAsk),
        wanted=item.maxAllocations or 1,
        priority=item.priority,
        tags=intern_tags(item.tags),
        task_group=item.taskGroupName,
        placeholder=item.placeholder,
        originator=item.Originator,
        allow_preempt_self=has_policy and item.preemptionPolicy.allowPreemptSelf,
        allow_preempt_other=has_policy and item.preemptionPolicy.allowPreemptOther,
        has_preemption_policy=has_policy,
        execution_timeout_ms=max(item.executionTimeoutMilliSeconds, 0),
        previous_generation=True,
        admitted_ns=admitted_ns,
    )


def _quantities(resource: si.Resource) -> dict[str, int]:
    return {name: quantity.value for name, quantity in resource.resources.items()}


def _termination(number: int) -> Termination:
    try:
        return Termination(number)
    except ValueError:
        return Termination.UNKNOWN
