"""Nodes, applications, asks and releases, in the words of both generations.

Quantities are what the wire carries: int64; vcore in millicores, memory in bytes, everything else in its own unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import NODE_PARTITION

DEFAULT_PARTITION = "default"

Action = si.NodeInfo.ActionFromRM


def resource(quantities: Mapping[str, int]) -> si.Resource:
    """{"vcore": 1000, "memory": 2**30} as an si.Resource."""
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def quantities(value: si.Resource) -> dict[str, int]:
    """Inverse of :func:`resource`."""
    return {name: quantity.value for name, quantity in value.resources.items()}


def node(
    node_id: str,
    capacity: Mapping[str, int],
    *,
    action: Action.ValueType = si.NodeInfo.CREATE,
    occupied: Mapping[str, int] | None = None,
    attributes: Mapping[str, str] | None = None,
    partition: str = DEFAULT_PARTITION,
    existing_allocations: Iterable[si.Allocation] = (),
) -> si.NodeInfo:
    """A node to create, update, drain or decommission.

    :param occupied: held by others; None: unchanged, or nothing.
    :param existing_allocations: [001] recovered with the node; today's RMs send them as allocations with a nodeID.
    """
    return si.NodeInfo(
        nodeID=node_id,
        action=action,
        attributes={NODE_PARTITION: partition, **(attributes or {})},
        schedulableResource=resource(capacity) if capacity else None,
        occupiedResource=resource(occupied) if occupied is not None else None,
        existingAllocations=existing_allocations,
    )


def application(
    application_id: str,
    queue: str,
    *,
    user: str = "nobody",
    groups: Iterable[str] = (),
    tags: Mapping[str, str] | None = None,
    partition: str = DEFAULT_PARTITION,
    execution_timeout_ms: int = 0,
    placeholder_ask: Mapping[str, int] | None = None,
    gang_scheduling_style: str = "",
) -> si.AddApplicationRequest:
    """An application. ``queue`` is the full path of a leaf (root.a.b) or what the placement rules make of it.

    :param placeholder_ask: of a gang: what its placeholders take in all (seed 003).
    :param execution_timeout_ms: of a gang: how long placeholders may wait to be replaced; 0: 15 minutes.
    :param gang_scheduling_style: "Hard": it fails when nothing real ran by then; else it goes on without placeholders.
    """
    return si.AddApplicationRequest(
        applicationID=application_id,
        queueName=queue,
        partitionName=partition,
        ugi=si.UserGroupInformation(user=user, groups=groups),
        tags=tags,
        executionTimeoutMilliSeconds=execution_timeout_ms,
        placeholderAsk=resource(placeholder_ask) if placeholder_ask is not None else None,
        gangSchedulingStyle=gang_scheduling_style,
    )


def ask(
    key: str,
    application_id: str,
    resources: Mapping[str, int],
    *,
    priority: int = 0,
    tags: Mapping[str, str] | None = None,
    partition: str = DEFAULT_PARTITION,
    task_group: str = "",
    placeholder: bool = False,
    originator: bool = False,
    preemption_policy: si.PreemptionPolicy | None = None,
) -> si.Allocation:
    """An ask in the current generation's words (seed 000): an Allocation without a nodeID."""
    return si.Allocation(
        allocationKey=key,
        applicationID=application_id,
        partitionName=partition,
        resourcePerAlloc=resource(resources),
        priority=priority,
        allocationTags=tags,
        taskGroupName=task_group,
        placeholder=placeholder,
        originator=originator,
        preemptionPolicy=preemption_policy,
    )


def existing_allocation(
    key: str,
    application_id: str,
    node_id: str,
    resources: Mapping[str, int],
    *,
    uuid: str = "",
    task_group: str = "",
    placeholder: bool = False,
    partition: str = DEFAULT_PARTITION,
) -> si.Allocation:
    """An allocation that runs already: recovery after a registration, in both generations.

    :param uuid: [001] as it was told; "": the key.
    :param placeholder: it holds room for a real one of its task group (seed 003, "Application recovery").
    """
    return si.Allocation(
        allocationKey=key,
        UUID=uuid or key,
        applicationID=application_id,
        partitionName=partition,
        nodeID=node_id,
        resourcePerAlloc=resource(resources),
        taskGroupName=task_group,
        placeholder=placeholder,
    )


def previous_ask(
    key: str,
    application_id: str,
    resources: Mapping[str, int],
    *,
    max_allocations: int = 1,
    priority: int = 0,
    tags: Mapping[str, str] | None = None,
    partition: str = DEFAULT_PARTITION,
    execution_timeout_ms: int = 0,
    task_group: str = "",
    placeholder: bool = False,
    originator: bool = False,
    preemption_policy: si.PreemptionPolicy | None = None,
) -> si.AllocationAsk:
    """An ask in the previous generation's words (seed 001): an AllocationAsk, for up to max_allocations of a kind."""
    return si.AllocationAsk(
        allocationKey=key,
        applicationID=application_id,
        partitionName=partition,
        resourceAsk=resource(resources),
        maxAllocations=max_allocations,
        priority=priority,
        tags=tags,
        executionTimeoutMilliSeconds=execution_timeout_ms,
        taskGroupName=task_group,
        placeholder=placeholder,
        Originator=originator,
        preemptionPolicy=preemption_policy,
    )


def release(
    application_id: str,
    key: str = "",
    *,
    uuid: str = "",
    termination_type: si.TerminationType.ValueType = si.STOPPED_BY_RM,
    message: str = "",
    partition: str = DEFAULT_PARTITION,
) -> si.AllocationRelease:
    """Ends an allocation (or takes an ask back, seed 000). Without key and uuid: everything of the application.

    :param uuid: [001] names one allocation of several with the same key.
    """
    return si.AllocationRelease(
        partitionName=partition,
        applicationID=application_id,
        UUID=uuid,
        terminationType=termination_type,
        message=message,
        allocationKey=key,
    )


def confirmation(told: si.AllocationRelease) -> si.AllocationRelease:
    """Says that an allocation is gone which the scheduler told to go (preempted, timed out, replaced).

    Until then it counts. A release that the RM itself asked for (STOPPED_BY_RM) needs none.
    """
    return si.AllocationRelease(
        partitionName=told.partitionName,
        applicationID=told.applicationID,
        UUID=told.UUID,
        terminationType=told.terminationType,
        allocationKey=told.allocationKey,
    )


def previous_ask_release(
    application_id: str,
    key: str = "",
    *,
    termination_type: si.TerminationType.ValueType = si.STOPPED_BY_RM,
    message: str = "",
    partition: str = DEFAULT_PARTITION,
) -> si.AllocationAskRelease:
    """Takes an ask back in the previous generation's words (seed 001). Without a key: all of the application.

    :param termination_type: TIMEOUT confirms a placeholder ask that the scheduler dropped (seed 003); it need not be.
    """
    return si.AllocationAskRelease(
        partitionName=partition,
        applicationID=application_id,
        allocationKey=key,
        terminationType=termination_type,
        message=message,
    )


def removal(application_id: str, *, partition: str = DEFAULT_PARTITION) -> si.RemoveApplicationRequest:
    """Ends an application, with its asks and allocations."""
    return si.RemoveApplicationRequest(applicationID=application_id, partitionName=partition)
