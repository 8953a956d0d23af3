"""The core's objects in the JSON shapes of YuniKorn's REST (core-features §2.19, rest-readers).

A field with a default is left out when it has that value (Go's omitempty); one without a default is always there. The
order of fields is the real core's. An object that can hold very many others (a node or an application with its
allocations, a queue with its children) is cut into a head and a tail, between which :mod:`render` puts the others one
by one.

What readers depend on and what looks odd: times are nanoseconds, but ``startTime`` of an application is milliseconds;
``priority`` is text; ``allocationTime`` is the time of the ask (``bindTime``, ours, is that of the allocation);
``partition`` of a queue is filled for root only; priorities without asks are the lowest int32; placeholders do not
count in ``usedResource`` of an application.

``id``, ``partition_id``, ``queueID`` and ``parentID`` are not the real core's but those that history servers need
(:mod:`ids`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter

from msgspec import Struct, field
from muster_service.secrets import masked
from muster_si.constants import ALLOC_TYPE_STATIC, FOREIGN, HOST_NAME, RACK_NAME

from muster_scheduler.core import usage
from muster_scheduler.core.gang import TaskGroup
from muster_scheduler.core.objects import Allocation, Application, Ask, Node, Queue
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.properties import PreemptionPolicy, QueuePolicy
from muster_scheduler.core.reasons import Reason
from muster_scheduler.core.resources import saturated
from muster_scheduler.core.states import APP_TERMINAL, AppState, QueueState
from muster_scheduler.follower import RmInfo
from muster_scheduler.view import go, ids

Quantities = dict[str, int]

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
# Go's zero time in milliseconds since 1970: what the real core says of an application that never ran.
NEVER_MS = -62_135_596_800_000
CLUSTER_NAME = "kubernetes"  # a constant of the real core


class _Shape(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """How all of them are written."""


class ClusterDao(_Shape, kw_only=True):
    """One partition's cluster."""

    start_time: int = 0
    rm_build_information: list[dict[str, str]] = []
    partition: str
    cluster_name: str


class CapacityDao(_Shape, kw_only=True):
    """Of a partition."""

    capacity: Quantities = {}
    used_capacity: Quantities = {}
    utilization: Quantities = {}


class NodeSortingDao(_Shape, kw_only=True):
    """A partition's order of nodes."""

    type: str = ""
    resource_weights: dict[str, float | int] = {}


class PartitionDao(_Shape, kw_only=True):
    """A partition."""

    cluster_id: str
    name: str
    capacity: CapacityDao
    node_sorting_policy: NodeSortingDao
    preemption_enabled: bool
    quota_preemption_enabled: bool
    total_nodes: int = 0
    applications: dict[str, int] = {}
    total_containers: int = 0
    state: str = ""
    last_state_transition_time: int = 0
    id: str


class TemplateDao(_Shape, kw_only=True):
    """What dynamic leaves below a queue get."""

    max_applications: int = 0
    max_resource: Quantities = {}
    guaranteed_resource: Quantities = {}
    properties: dict[str, str] = {}


class QueueHeadDao(_Shape, kw_only=True):
    """A queue, up to its children."""

    id: str
    partition_id: str = field(name="partition_id")
    parent_id: str = field(default="", name="parentID")
    queuename: str
    status: str = ""
    partition: str
    pending_resource: Quantities = {}
    max_resource: Quantities = {}
    guaranteed_resource: Quantities = {}
    allocated_resource: Quantities = {}
    preempting_resource: Quantities = {}
    headroom: Quantities = {}
    is_leaf: bool
    is_managed: bool
    properties: dict[str, str] = {}
    parent: str = ""
    template: TemplateDao | None = None


class QueueTailDao(_Shape, kw_only=True):
    """A queue, from behind its children."""

    child_names: list[str] = []
    abs_used_capacity: Quantities = {}
    max_running_apps: int = 0
    running_apps: int = 0
    current_priority: int
    allocating_accepted_apps: list[str] = []
    sorting_policy: str = ""
    priority_sorting: bool
    preemption_enabled: bool
    is_preemption_fence: bool
    preemption_delay: str = ""
    quota_preemption_delay: str = ""
    is_priority_fence: bool
    priority_offset: int = 0


class StateDao(_Shape, kw_only=True):
    """An entry of an application's story."""

    time: int = 0
    application_state: str = ""


class ApplicationHeadDao(_Shape, kw_only=True):
    """An application, up to its asks and allocations."""

    id: str
    partition_id: str = field(name="partition_id")
    queue_id: str = field(name="queueID")
    application_id: str = field(name="applicationID")
    used_resource: Quantities = {}
    max_used_resource: Quantities = {}
    pending_resource: Quantities = {}
    partition: str
    queue_name: str
    submission_time: int = 0
    finished_time: int = 0


class PlaceholderDao(_Shape, kw_only=True):
    """The placeholders of one task group of an application.

    ``count``: how many were asked for in all; ``minResource``: of each.
    """

    task_group_name: str = ""
    count: int = 0
    min_resource: Quantities = {}
    replaced: int = 0
    timed_out: int = field(default=0, name="timedout")


class ApplicationTailDao(_Shape, kw_only=True):
    """An application, from behind its asks and allocations. ``source`` is ours: outside of the RM, that brought it."""

    application_state: str = ""
    user: str = ""
    groups: list[str] = []
    rejected_message: str = ""
    state_log: list[StateDao] = []
    placeholder_data: list[PlaceholderDao] = []
    has_reserved: bool = False
    reservations: list[str] = []
    max_request_priority: int = 0
    start_time: int = 0
    resource_history: dict[str, dict[str, Quantities]]
    source: str = ""


class LackingDao(_Shape, kw_only=True):
    """So many nodes have too little of a type (ours)."""

    resource_type: str
    nodes: int


class ReasonDao(_Shape, kw_only=True):
    """Why an ask is pending (ours): the fields of :class:`muster_scheduler.core.reasons.Reason`."""

    code: str
    queue: str = ""
    resource_type: str = ""
    asked: int = 0
    used: int = 0
    limit: int = 0
    free: int = 0
    who: str = ""
    node: str = ""
    nodes: int = 0
    reserved: int = 0
    lacking: list[LackingDao] = []
    preemption: str = ""
    promised: int = 0
    task_group_name: str = ""
    placed: int = 0
    members: int = 0
    placeholder: str = ""
    because: ReasonDao | None = None
    message: str
    since: int = 0


class AskLogDao(_Shape, kw_only=True):
    """What happened to an ask."""

    message: str = ""
    last_occurrence: int = 0
    count: int = 0


class AskDao(_Shape, kw_only=True):
    """An ask with something pending. ``pendingCount`` (for repeats) and ``pendingReason`` are ours."""

    allocation_key: str
    allocation_tags: dict[str, str] = {}
    request_time: int = 0
    resource: Quantities = {}
    priority: str = ""
    required_node_id: str = ""
    application_id: str = ""
    placeholder: bool = False
    task_group_name: str = ""
    allocation_log: list[AskLogDao] = []
    triggered_preemption: bool = False
    originator: bool = False
    scheduling_attempted: bool = False
    triggered_scale_up: bool = False
    pending_count: int = 1
    pending_reason: ReasonDao | None = None


class AllocationDao(_Shape, kw_only=True):
    """An allocation. ``bindTime``, (previous generation only) ``uuid`` and ``source`` (outside of the RM) are ours."""

    allocation_key: str
    allocation_tags: dict[str, str] = {}
    request_time: int = 0
    allocation_time: int = 0
    allocation_delay: int = 0
    resource: Quantities = {}
    priority: str = ""
    node_id: str = ""
    application_id: str = ""
    placeholder: bool = False
    placeholder_used: bool = False
    task_group_name: str = ""
    preempted: bool = False
    originator: bool = False
    bind_time: int = 0
    uuid: str = ""
    source: str = ""


class ForeignDao(_Shape, kw_only=True):
    """What somebody else holds of a node. ``source`` is ours: outside of the RM, that runs it."""

    allocation_key: str
    allocation_tags: dict[str, str] = {}
    allocation_time: int = 0
    resource: Quantities = {}
    priority: str = ""
    node_id: str = ""
    preemptable: bool = False
    source: str = ""


class NodeHeadDao(_Shape, kw_only=True):
    """A node, up to its allocations. ``attributes`` is always there: the web UI takes it for an object unseen."""

    id: str
    partition_id: str = field(name="partition_id")
    node_id: str = field(name="nodeID")
    host_name: str = ""
    rack_name: str = ""
    attributes: dict[str, str]
    capacity: Quantities = {}
    allocated: Quantities = {}
    occupied: Quantities = {}
    available: Quantities = {}
    utilized: Quantities = {}


class ReportedDao(_Shape, kw_only=True):
    """What the RM itself says of a node of which others speak, too. ``created`` false: it only drains it."""

    created: bool
    capacity: Quantities = {}
    occupied: Quantities = {}
    attributes: dict[str, str] = {}
    schedulable: bool


class NodeTailDao(_Shape, kw_only=True):
    """A node, from behind its allocations. From ``sources`` on it is ours: who outside of the RM speaks of it.

    ``reported``: what the RM itself says; absent beside sources: nothing. (Where they differ, explain says.)
    """

    schedulable: bool
    is_reserved: bool
    reservations: list[str] = []
    sources: list[str] = []
    reported: ReportedDao | None = None


class HealthCheckDao(Struct, omit_defaults=True, kw_only=True, rename="pascal"):
    """One health check (capitals are the real core's)."""

    name: str = ""
    succeeded: bool
    description: str = ""
    diagnosis_message: str = ""


class HealthDao(Struct, omit_defaults=True, kw_only=True, rename="pascal"):
    """All health checks."""

    healthy: bool
    health_checks: list[HealthCheckDao] = []


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
    """A partition: O(its applications), at the speed of counting. Those that are over and those refused count, too."""
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
            type=partition.config.node_sort_policy or "fair",
            resource_weights={name: go.number(float(weight)) for name, weight in weights.items()},
        ),
        preemption_enabled=partition.config.preemption.enabled,
        quota_preemption_enabled=partition.config.preemption.quota_enabled,
        total_nodes=len(partition.nodes),
        applications=applications,
        total_containers=containers(partition),
        state=(QueueState.STOPPED if stopped else QueueState.ACTIVE).value,
        last_state_transition_time=info.last_decided_ns if stopped else info.registered_ns,
        id=ids.of_partition(partition),
    )


def containers(partition: Partition) -> int:
    """Allocations of applications; what others hold does not count."""
    return partition.allocations_count - len(partition.foreign)


# ---- queues ----------------------------------------------------------------------------------------------------------


def queue_head(partition: Partition, queue: Queue, shown_partition: str) -> QueueHeadDao:
    """A queue up to its children. ``shown_partition``: its partition's name, or "" (see the module's words)."""
    quantities = partition.types.quantities
    return QueueHeadDao(
        id=ids.of_queue(partition, queue),
        partition_id=ids.of_partition(partition),
        parent_id=ids.of_queue(partition, queue.parent) if queue.parent is not None else "",
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


def queue_tail(partition: Partition, queue: Queue, priority: int, forming: list[str]) -> QueueTailDao:
    """A queue from behind its children.

    :param priority: see :func:`current_priority`; ``forming``: see :func:`forming_applications`.
    """
    policy = queue.policy
    # Of a parent, and of a dynamic queue, these have no effect: they are shown as the real core does.
    delay_ns = (policy if queue.leaf else QueuePolicy()).preemption_delay_ns
    quota_delay_ns = policy.quota_preemption_delay_ns if queue.managed else 0
    return QueueTailDao(
        child_names=[child.path for child in queue.children.values()],
        abs_used_capacity=percent(partition.types.quantities(queue.allocated), _maximum(partition, queue)),
        max_running_apps=queue.max_applications,
        running_apps=queue.running_applications - len(forming),
        current_priority=priority,
        allocating_accepted_apps=forming,
        sorting_policy="fifo" if queue.leaf and not queue.fair_apps else "fair",
        priority_sorting=queue.priority_first,
        preemption_enabled=policy.preemption is not PreemptionPolicy.DISABLED,
        is_preemption_fence=policy.preemption is PreemptionPolicy.FENCE,
        preemption_delay=go.duration(delay_ns),
        quota_preemption_delay=go.duration(quota_delay_ns),
        is_priority_fence=policy.priority_fence,
        priority_offset=policy.priority_offset,
    )


def headroom(partition: Partition, queue: Queue) -> Quantities:
    """What the queue may still get: the least of max minus allocated on the way to root, whose max is the cluster.

    A type that no max names is unlimited and left out; one that is used up is there with 0.
    """
    names = partition.types.names
    least = {
        number: value - partition.root.allocated[number]
        for number, value in enumerate(partition.capacity)
        if value or number in partition.types.pooled
    }
    for level in queue.line:
        for number, value in (level.maximum or {}).items():
            left = value - level.allocated[number]
            least[number] = min(least.get(number, left), left)
    return {names[number]: saturated(value) for number, value in least.items()}


def forming_applications(queue: Queue) -> list[str]:
    """The applications in a queue and below that count as running though only their placeholders do."""
    if queue.leaf:
        return [app.app_id for app in queue.applications.values() if app.counted and app.state is AppState.ACCEPTED]
    return [app_id for child in queue.children.values() for app_id in forming_applications(child)]


def current_priority(queue: Queue) -> int:
    """The highest priority that something pending has, seen from outside of the queue (core-features §2.17)."""
    if queue.leaf:
        return lent_priority(queue, leaf_priority(queue))
    return lent_priority(queue, max(map(current_priority, queue.children.values()), default=INT32_MIN))


def leaf_priority(leaf: Queue) -> int:
    """The highest priority that something pending has in a leaf; the lowest int32 when nothing is."""
    return max((max_priority(app) for app in leaf.applications.values() if app.groups), default=INT32_MIN)


def lent_priority(queue: Queue, highest: int) -> int:
    """What the highest priority inside of a queue is outside of it."""
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
    """An application up to its asks and allocations."""
    return ApplicationHeadDao(
        id=ids.of_application(partition, app),
        partition_id=ids.of_partition(partition),
        queue_id=ids.of_queue_of(partition, app),
        application_id=app.app_id,
        used_resource=usage.held(app),
        max_used_resource=usage.most_held(app),
        # (Of one that was refused nothing is pending: its sums do not grow with the types that come later.)
        pending_resource=partition.types.quantities(app.pending) if app.state is not AppState.REJECTED else {},
        partition=partition.name,
        queue_name=app.requested_queue if app.state is AppState.REJECTED else app.queue.path,
        submission_time=app.submitted_ns,
        finished_time=app.finished_ns,
    )


def application_tail(app: Application) -> ApplicationTailDao:
    """An application from behind its asks and allocations."""
    reservations = [wanted.key for wanted in app.asks.values() if wanted.reserved is not None]
    return ApplicationTailDao(
        application_state=app.state.value,
        user=app.user,
        groups=list(app.groups_of_user),
        rejected_message=app.rejected_message,
        state_log=[StateDao(time=at_ns, application_state=str(state)) for at_ns, state in app.story],
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
    """Whether it is over: completed, failed or expired."""
    return app.state in APP_TERMINAL and app.state is not AppState.REJECTED


# ---- asks and allocations --------------------------------------------------------------------------------------------


def ask(wanted: Ask) -> AskDao:
    """An ask."""
    reason = wanted.reason
    found = AskDao(
        allocation_key=wanted.key,
        allocation_tags=wanted.tags,
        request_time=wanted.created_ns,
        resource=wanted.shape.quantities,
        priority=str(wanted.priority),
        required_node_id=wanted.demand.required_node,
        application_id=wanted.app.app_id,
        placeholder=wanted.placeholder,
        task_group_name=wanted.task_group,
        triggered_preemption=wanted.preempts,
        originator=wanted.originator,
        triggered_scale_up=wanted.scaled_up,
        pending_count=wanted.pending,
    )
    if reason is not None:
        shown = reason_of(reason)
        found.scheduling_attempted = True
        found.allocation_log = [AskLogDao(message=shown.message, last_occurrence=reason.since_ns, count=1)]
        found.pending_reason = shown
    return found


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


def allocation(held: Allocation) -> AllocationDao:
    """An allocation. One that took a placeholder's place was asked for when that was."""
    replaces = held.replaces
    asked_ns = held.created_ns if replaces is None else replaces.created_ns
    return AllocationDao(
        allocation_key=held.key,
        allocation_tags=held.tags,
        request_time=asked_ns,
        allocation_time=held.created_ns,
        allocation_delay=held.created_ns - asked_ns,
        resource=held.shape.quantities,
        priority=str(held.priority),
        node_id=held.node_id,
        application_id=held.app_id,
        placeholder=held.placeholder,
        placeholder_used=replaces is not None,
        task_group_name=held.task_group,
        preempted=held.preempted is not None,
        originator=held.originator,
        bind_time=held.allocated_ns,
        uuid=held.uuid,
        source=held.source,
    )


def foreign(held: Allocation) -> ForeignDao:
    """A foreign allocation."""
    return ForeignDao(
        allocation_key=held.key,
        allocation_tags=held.tags,
        allocation_time=held.created_ns,
        resource=held.shape.quantities,
        priority=str(held.priority),
        node_id=held.node_id,
        preemptable=not held.source and held.tags.get(FOREIGN) != ALLOC_TYPE_STATIC,
        source=held.source,
    )


# ---- nodes -----------------------------------------------------------------------------------------------------------


def node_head(partition: Partition, node: Node) -> NodeHeadDao:
    """A node up to its allocations."""
    quantities = partition.types.quantities
    capacity, allocated = quantities(node.capacity), quantities(node.allocated)
    return NodeHeadDao(
        id=ids.of_node(partition, node),
        partition_id=ids.of_partition(partition),
        node_id=node.node_id,
        host_name=node.attributes.get(HOST_NAME, ""),
        rack_name=node.attributes.get(RACK_NAME, ""),
        attributes=node.attributes,
        capacity=capacity,
        allocated=allocated,
        occupied=quantities(node.occupied),
        available=quantities(node.available),
        utilized=percent(allocated, capacity),
    )


def node_tail(node: Node) -> NodeTailDao:
    """A node from behind its allocations."""
    return NodeTailDao(
        schedulable=node.schedulable,
        is_reserved=bool(node.reservations),
        reservations=[wanted.key for wanted in node.reservations],
        sources=list(node.sources),
        reported=reported(node),
    )


def reported(node: Node) -> ReportedDao | None:
    """What the RM itself says of a node; None: nothing, or it alone speaks of it."""
    report = node.reported
    if report is None or not node.sources:
        return None
    return ReportedDao(
        created=report.capacity is not None,
        capacity=report.capacity or {},
        occupied=report.occupied,
        attributes=report.attributes,
        schedulable=report.schedulable,
    )


# ---- figures ---------------------------------------------------------------------------------------------------------


def percent(used: Mapping[str, int], total: Mapping[str, int]) -> Quantities:
    """Used of total in whole percent, of the types that both name (core-features §2.4)."""
    return {name: _share(value, total[name]) for name, value in used.items() if name in total}


def _share(used: int, total: int) -> int:
    if used <= 0:
        return 0
    if total <= 0:
        return 100
    return min(used * 100 // total, INT32_MAX)


def total_containers(partitions: Iterable[Partition]) -> int:
    """Over several partitions."""
    return sum(map(containers, partitions))
