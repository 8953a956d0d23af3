"""Builds nodes, applications, asks and releases in the messages of both generations.

Quantities are int64, as on the wire: vcore in millicores, memory in bytes, every other type in its own unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import NODE_PARTITION

DEFAULT_PARTITION = "default"

Action = si.NodeInfo.ActionFromRM


def resource(quantities: Mapping[str, int]) -> si.Resource:
    """Builds an si.Resource from quantities like {"vcore": 1000, "memory": 2**30}."""
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
    """Builds a node to create, update, drain or decommission.

    :param occupied: resources that others hold; None: unchanged, or nothing.
    :param existing_allocations: (previous generation) recovered with the node; RMs of the current generation send them
        as allocations with a nodeID.
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
    """Builds an application. ``queue`` is the full path of a leaf (root.a.b), or input for the placement rules.

    :param placeholder_ask: of a gang: the sum of its placeholders' resources (the gang design).
    :param execution_timeout_ms: of a gang: how long placeholders may wait for their replacement; 0: 15 minutes.
    :param gang_scheduling_style: "Hard": the application fails if no real allocation runs by then; otherwise it
        continues without placeholders.
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
    """Builds an ask of the current generation: an Allocation without a nodeID."""
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
    """Builds an allocation that already runs: for recovery after a registration, in both generations.

    :param uuid: (previous generation) the UUID that the scheduler gave; "": the key.
    :param placeholder: it holds room for a real ask of its task group (the gang design, "Application recovery").
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
    """Builds an ask of the previous generation: an AllocationAsk, for up to max_allocations allocations."""
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
    """Builds the release of an allocation, or the withdrawal of an ask (the scheduler interface). Without key and uuid:
    everything of the application.

    :param uuid: (previous generation) names one of several allocations with the same key.
    """
    return si.AllocationRelease(
        partitionName=partition,
        applicationID=application_id,
        UUID=uuid,
        terminationType=termination_type,
        message=message,
        allocationKey=key,
    )


def confirmation(release: si.AllocationRelease) -> si.AllocationRelease:
    """Builds the confirmation that an allocation has ended, after the scheduler released it (preempted, timed out,
    replaced).

    The allocation counts until then. A release that the RM itself asked for (STOPPED_BY_RM) needs no confirmation.
    """
    return si.AllocationRelease(
        partitionName=release.partitionName,
        applicationID=release.applicationID,
        UUID=release.UUID,
        terminationType=release.terminationType,
        allocationKey=release.allocationKey,
    )


def previous_ask_release(
    application_id: str,
    key: str = "",
    *,
    termination_type: si.TerminationType.ValueType = si.STOPPED_BY_RM,
    message: str = "",
    partition: str = DEFAULT_PARTITION,
) -> si.AllocationAskRelease:
    """Builds the withdrawal of an ask of the previous generation. Without a key: all asks of the application.

    :param termination_type: TIMEOUT confirms a placeholder ask that the scheduler dropped (the gang design). This
        confirmation is optional.
    """
    return si.AllocationAskRelease(
        partitionName=partition,
        applicationID=application_id,
        allocationKey=key,
        terminationType=termination_type,
        message=message,
    )


def removal(application_id: str, *, partition: str = DEFAULT_PARTITION) -> si.RemoveApplicationRequest:
    """Builds the removal of an application, with its asks and allocations."""
    return si.RemoveApplicationRequest(applicationID=application_id, partitionName=partition)
