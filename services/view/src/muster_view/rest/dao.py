"""The core's objects in the JSON shapes of YuniKorn's REST (``muster_rest.shapes``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from muster_core.applications import usage
from muster_core.config.properties import PreemptionPolicy, QueuePolicy
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.pending_reason import ask_reason
from muster_core.model.queue import Queue
from muster_core.model.reasons import Reason
from muster_core.model.resources import saturated
from muster_core.model.states import APP_TERMINAL, AppState, QueueState
from muster_core.model.task_group import TaskGroup
from muster_core.partition import Partition
from muster_rest.shapes.base import Quantities
from muster_rest.shapes.state import (
    AllocationDao,
    ApplicationHeadDao,
    ApplicationTailDao,
    AskDao,
    AskLogDao,
    CapacityDao,
    ClusterDao,
    ForeignDao,
    LackingDao,
    NodeHeadDao,
    NodeSortingDao,
    NodeTailDao,
    PartitionDao,
    PlaceholderDao,
    QueueHeadDao,
    QueueTailDao,
    ReasonDao,
    ReportedDao,
    StateDao,
    TemplateDao,
)
from muster_runtime.secrets import masked
from muster_si.constants import ALLOC_TYPE_STATIC, FOREIGN, HOST_NAME, NODE_PARTITION, RACK_NAME
from muster_state.state_folder import RmInfo

from muster_view.rest import go_format, object_ids

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
# Go's zero time in milliseconds since 1970: YuniKorn's time for an application that never ran.
NEVER_MS = -62_135_596_800_000
CLUSTER_NAME = "kubernetes"  # a constant of YuniKorn


# ---- clusters and partitions -----------------------------------------------------------------------------------------


def cluster(info: RmInfo, partition: Partition) -> ClusterDao:
    """The cluster of one partition."""
    return ClusterDao(
        start_time=info.registered_ns,
        rm_build_information=[{**masked(info.build_info), "rmId": info.rm_id}],
        partition=partition.name,
        cluster_name=CLUSTER_NAME,
    )


def partition_info(info: RmInfo, partition: Partition) -> PartitionDao:
    """A partition: O(its applications). Ended and rejected applications count, too."""
    states = Counter(map(attrgetter("state"), partition.apps.values()))
    states.update(map(attrgetter("state"), partition.rejected.values()))
    applications = {state.value: count for state, count in states.items()}
    applications["total"] = states.total()
    capacity = partition.types.quantities(partition.capacity)
    used = partition.types.quantities(partition.root.allocated)
    weights = partition.config.node_sort_weights
    stopped = info.life == "STOPPED"
    return PartitionDao(
        cluster_id=info.rm_id,
        name=partition.name,
        capacity=CapacityDao(capacity=capacity, used_capacity=used, utilization=percent(used, capacity)),
        node_sorting_policy=NodeSortingDao(
            type=partition.config.node_sort_policy,
            resource_weights={name: go_format.number(float(weight)) for name, weight in weights.items()},
        ),
        preemption_enabled=partition.config.preemption.enabled,
        quota_preemption_enabled=partition.config.preemption.quota_enabled,
        total_nodes=len(partition.nodes),
        applications=applications,
        total_containers=containers(partition),
        state=(QueueState.STOPPED if stopped else QueueState.ACTIVE).value,
        last_state_transition_time=info.last_decided_ns if stopped else info.registered_ns,
        id=object_ids.of_partition(partition),
    )


def containers(partition: Partition) -> int:
    """The allocations of applications; foreign allocations do not count."""
    return partition.running


# ---- queues ----------------------------------------------------------------------------------------------------------


def queue_head(partition: Partition, queue: Queue, shown_partition: str) -> QueueHeadDao:
    """A queue without its children. ``shown_partition``: its partition's name, or "" (see the module's docstring)."""
    quantities = partition.types.quantities
    return QueueHeadDao(
        id=object_ids.of_queue(partition, queue),
        partition_id=object_ids.of_partition(partition),
        parent_id=object_ids.of_queue(partition, queue.parent) if queue.parent is not None else "",
        queuename=queue.path,
        status=queue.state.value,
        partition=shown_partition,
        pending_resource=quantities(queue.pending),
        max_resource=_maximum(partition, queue),
        guaranteed_resource=queue.by_name(queue.guaranteed) or {},
        allocated_resource=quantities(queue.allocated),
        preempting_resource=quantities(queue.preempting),
        headroom=headroom(partition, queue),
        is_leaf=queue.leaf,
        is_managed=queue.managed,
        properties=masked(queue.properties),
        parent=queue.parent.path if queue.parent is not None else "",
        template=_template(queue),
    )


def _template(queue: Queue) -> TemplateDao | None:
    template = queue.template
    if template is None:
        return None
    return TemplateDao(
        max_applications=template.max_applications,
        max_resource=template.maximum or {},
        guaranteed_resource=template.guaranteed or {},
        properties=masked(template.properties),
    )


class AllocatingApplications(NamedTuple):
    """The Accepted applications in a queue and below for which placeholders or a reservation exist.

    :param forming: how many of them count as running, because their placeholders are allocated.
    """

    app_ids: list[str]
    forming: int


def queue_tail(partition: Partition, queue: Queue, priority: int, allocating: AllocatingApplications) -> QueueTailDao:
    """The part of a queue's JSON after its children.

    :param priority: see :func:`current_priority`; ``allocating``: see :func:`allocating_applications`.
    """
    policy = queue.policy
    # These have no effect on a parent or a dynamic queue: the answer shows them as YuniKorn does.
    delay_ns = (policy if queue.leaf else QueuePolicy()).preemption_delay_ns
    quota_delay_ns = policy.quota_preemption_delay_ns if queue.managed else 0
    return QueueTailDao(
        child_names=[child.path for child in queue.children.values()],
        abs_used_capacity=percent(partition.types.quantities(queue.allocated), _maximum(partition, queue)),
        max_running_apps=queue.max_applications,
        running_apps=queue.running_applications - allocating.forming,
        current_priority=priority,
        allocating_accepted_apps=allocating.app_ids,
        sorting_policy=_order(queue),
        priority_sorting=queue.priority_first,
        preemption_enabled=policy.preemption is not PreemptionPolicy.DISABLED,
        is_preemption_fence=policy.preemption is PreemptionPolicy.FENCE,
        preemption_delay=go_format.duration(delay_ns),
        quota_preemption_delay=go_format.duration(quota_delay_ns),
        is_priority_fence=policy.priority_fence,
        priority_offset=policy.priority_offset,
    )


def _order(queue: Queue) -> str:
    """The order of what is in the queue."""
    if queue.fair_uses is not None:
        return queue.policy.app_sort.name
    return "fifo" if queue.leaf and not queue.fair_apps else "fair"


def headroom(partition: Partition, queue: Queue) -> Quantities:
    """The queue's headroom: the least max minus allocated on the path to root, whose max is the cluster.

    A type without a max is unlimited and left out; a used-up type is 0.
    """
    names = partition.types.names
    least = {
        number: value - partition.root.allocated[number]
        for number, value in enumerate(partition.capacity)
        if value or number in partition.types.pooled
    }
    for level in queue.line:
        for number, value in (level.maximum or {}).items():
            remaining = value - level.allocated[number]
            least[number] = min(least.get(number, remaining), remaining)
    return {names[number]: saturated(value) for number, value in least.items()}


def allocating_applications(partition: Partition, queue: Queue) -> AllocatingApplications:
    """The Accepted applications in a queue and below with allocated placeholders or a reserved node.

    (YuniKorn counts all of them against the maxima of applications; Muster does not count those with only a
    reservation.)
    """
    if not queue.leaf:
        return joined(allocating_applications(partition, child) for child in queue.children.values())
    accepted = [app for app in partition.apps_in(queue) if app.state is AppState.ACCEPTED]
    shown = [app.app_id for app in accepted if app.counted or _has_reserved(app)]
    return AllocatingApplications(shown, sum(app.counted for app in accepted))


def joined(parts: Iterable[AllocatingApplications]) -> AllocatingApplications:
    """The allocating applications of several queues."""
    collected = list(parts)
    return AllocatingApplications(
        [app_id for part in collected for app_id in part.app_ids], sum(part.forming for part in collected)
    )


def _has_reserved(app: Application) -> bool:
    """Whether an ask of the application has a reservation. O(groups): of identical asks, the first one reserves."""
    heads = (group.head() for group in app.groups.values() if group.asks)
    return any(head is not None and head.reserved_node for head in heads)


def current_priority(partition: Partition, queue: Queue) -> int:
    """The highest priority of the queue's pending asks, seen from outside of the queue."""
    if queue.leaf:
        return effective_priority(queue, leaf_priority(partition, queue))
    return effective_priority(
        queue, max((current_priority(partition, child) for child in queue.children.values()), default=INT32_MIN)
    )


def leaf_priority(partition: Partition, leaf: Queue) -> int:
    """The highest priority of a leaf's pending asks; the lowest int32 when none is pending."""
    return max((max_priority(app) for app in partition.apps_in(leaf) if app.groups), default=INT32_MIN)


def effective_priority(queue: Queue, highest: int) -> int:
    """The highest priority inside a queue as it counts outside of the queue."""
    policy = queue.policy
    if highest == INT32_MIN:
        return highest
    if policy.priority_fence:
        return policy.priority_offset
    return min(max(highest + policy.priority_offset, INT32_MIN), INT32_MAX)


def _maximum(partition: Partition, queue: Queue) -> Quantities:
    if queue.parent is None:
        # (A pool is shown when it is empty, too.)
        return partition.types.quantities(partition.capacity) | (queue.by_name(queue.maximum) or {})
    return queue.by_name(queue.maximum) or {}


# ---- applications ----------------------------------------------------------------------------------------------------


def application_head(partition: Partition, app: Application) -> ApplicationHeadDao:
    """The part of an application's JSON before its asks and allocations."""
    return ApplicationHeadDao(
        id=object_ids.of_application(partition, app),
        partition_id=object_ids.of_partition(partition),
        queue_id=object_ids.of_queue_of(partition, app),
        application_id=app.app_id,
        used_resource=usage.allocated_by_type(app),
        max_used_resource=usage.peak_by_type(app),
        # (A rejected application has nothing pending: its sums do not grow with later types.)
        pending_resource=partition.types.quantities(app.pending) if app.state is not AppState.REJECTED else {},
        partition=partition.name,
        queue_name=app.requested_queue if app.state is AppState.REJECTED else app.queue.path,
        submission_time=app.submitted_ns,
        finished_time=app.finished_ns,
    )


def application_tail(app: Application) -> ApplicationTailDao:
    """The part of an application's JSON after its asks and allocations."""
    reservations = [ask.key for ask in app.asks.values() if ask.reserved_node]
    return ApplicationTailDao(
        application_state=app.state.value,
        user=app.user,
        groups=list(app.groups_of_user),
        rejected_message=app.rejected_message,
        state_log=[StateDao(time=at_ns, application_state=str(state)) for at_ns, state in app.state_log],
        placeholder_data=[placeholders(group) for group in app.gang.groups.values()] if app.gang is not None else [],
        has_reserved=bool(reservations),
        reservations=reservations,
        max_request_priority=max_priority(app),
        start_time=app.started_ns // 1_000_000 if app.started_ns else NEVER_MS,
        resource_history=app.usage,
        source=app.source,
    )


def placeholders(group: TaskGroup) -> PlaceholderDao:
    """One task group."""
    return PlaceholderDao(
        task_group_name=group.name,
        count=group.asked,
        min_resource=group.shape.quantities,
        replaced=group.replaced,
        timed_out=group.timed_out,
    )


def max_priority(app: Application) -> int:
    """The highest priority of its pending asks; the lowest int32 when it has none."""
    return max((group.priority for group in app.groups.values() if group.asks), default=INT32_MIN)


def is_active(app: Application) -> bool:
    """Whether the application is in its queue still."""
    return app.state not in APP_TERMINAL


def is_completed(app: Application) -> bool:
    """Whether the application has ended: completed, failed or expired."""
    return app.state in APP_TERMINAL and app.state is not AppState.REJECTED


# ---- asks and allocations --------------------------------------------------------------------------------------------


def ask(ask: Ask) -> AskDao:
    """An ask."""
    reason = ask_reason(ask)
    ask_dao = AskDao(
        allocation_key=ask.key,
        allocation_tags=masked(ask.tags),
        request_time=ask.created_ns,
        resource=ask.shape.quantities,
        priority=str(ask.priority),
        required_node_id=ask.demand.required_node,
        application_id=ask.app.app_id,
        placeholder=ask.placeholder,
        task_group_name=ask.task_group,
        triggered_preemption=ask.planned_ns > 0,
        originator=ask.originator,
        triggered_scale_up=ask.scaled_up,
        pending_count=ask.pending,
    )
    if reason is not None:
        shown = reason_of(reason)
        ask_dao.scheduling_attempted = True
        ask_dao.allocation_log = [AskLogDao(message=shown.message, last_occurrence=reason.since_ns, count=1)]
        ask_dao.pending_reason = shown
    return ask_dao


def reason_of(reason: Reason) -> ReasonDao:
    """A typed reason with its figures and its sentence."""
    return ReasonDao(
        code=reason.code.value,
        queue=reason.queue,
        resource_type=reason.resource_type,
        asked=saturated(reason.asked),
        used=saturated(reason.used),
        limit=saturated(reason.limit),
        free=saturated(reason.free),
        who=reason.who,
        node=reason.node,
        nodes=reason.nodes,
        reserved=reason.reserved,
        lacking=[LackingDao(resource_type=name, nodes=count) for name, count in reason.lacking],
        preemption=reason.preemption.value if reason.preemption is not None else "",
        promised=saturated(reason.promised),
        task_group_name=reason.task_group,
        placed=reason.placed,
        members=reason.members,
        placeholder=reason.placeholder,
        because=reason_of(reason.because) if reason.because is not None else None,
        message=reason.sentence(),
        since=reason.since_ns,
    )


def allocation(allocation: Allocation) -> AllocationDao:
    """An allocation. A replacement has the request time of its placeholder."""
    replaces = allocation.replaces
    asked_ns = allocation.created_ns if replaces is None else replaces.created_ns
    return AllocationDao(
        allocation_key=allocation.key,
        allocation_tags=masked(allocation.tags),
        request_time=asked_ns,
        allocation_time=allocation.created_ns,
        allocation_delay=allocation.created_ns - asked_ns,
        resource=allocation.shape.quantities,
        priority=str(allocation.priority),
        node_id=allocation.node_id,
        application_id=allocation.app_id,
        placeholder=allocation.placeholder,
        placeholder_used=replaces is not None,
        task_group_name=allocation.task_group,
        preempted=allocation.preempted is not None,
        originator=allocation.originator,
        bind_time=allocation.allocated_ns,
        uuid=allocation.uuid,
        source=allocation.source,
    )


def foreign(allocation: Allocation) -> ForeignDao:
    """A foreign allocation."""
    return ForeignDao(
        allocation_key=allocation.key,
        allocation_tags=masked(allocation.tags),
        allocation_time=allocation.created_ns,
        resource=allocation.shape.quantities,
        priority=str(allocation.priority),
        node_id=allocation.node_id,
        preemptable=not allocation.source and allocation.tags.get(FOREIGN) != ALLOC_TYPE_STATIC,
        source=allocation.source,
    )


# ---- nodes -----------------------------------------------------------------------------------------------------------


def node_head(partition: Partition, node: Node) -> NodeHeadDao:
    """The part of a node's JSON before its allocations."""
    quantities = partition.types.quantities
    capacity, allocated = quantities(node.capacity), quantities(node.allocated)
    return NodeHeadDao(
        id=object_ids.of_node(partition, node),
        partition_id=object_ids.of_partition(partition),
        node_id=node.node_id,
        host_name=node.attributes.get(HOST_NAME, ""),
        rack_name=node.attributes.get(RACK_NAME, ""),
        # (Like YuniKorn, it gives the partition's full name, whatever the RM sent.)
        attributes={**masked(node.attributes), NODE_PARTITION: f"[{partition.rm_id}]{partition.name}"},
        capacity=capacity,
        allocated=allocated,
        occupied=quantities(node.occupied),
        available=quantities(node.available),
        utilized=percent(allocated, capacity),
    )


def node_tail(node: Node) -> NodeTailDao:
    """The part of a node's JSON after its allocations."""
    return NodeTailDao(
        schedulable=node.schedulable,
        is_reserved=bool(node.reservations),
        reservations=[ask.key for ask in node.reservations],
        sources=list(node.sources),
        reported=reported(node),
    )


def reported(node: Node) -> ReportedDao | None:
    """The RM's own report of a node; None: it has none, or no source reports the node."""
    report = node.reported
    if report is None or not node.sources:
        return None
    return ReportedDao(
        created=report.capacity is not None,
        capacity=report.capacity or {},
        occupied=report.occupied,
        attributes=masked(report.attributes),
        schedulable=report.schedulable,
    )


# ---- figures ---------------------------------------------------------------------------------------------------------


def percent(used: Mapping[str, int], total: Mapping[str, int]) -> Quantities:
    """The used share in whole percent, of the types that both amounts name."""
    return {name: _share(value, total[name]) for name, value in used.items() if name in total}


def _share(used: int, total: int) -> int:
    if used <= 0:
        return 0
    if total <= 0:
        return 100
    return min(used * 100 // total, INT32_MAX)


def total_containers(partitions: Iterable[Partition]) -> int:
    """The same over several partitions."""
    return sum(map(containers, partitions))
