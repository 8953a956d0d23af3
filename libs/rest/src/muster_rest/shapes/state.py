"""A resource manager's clusters, partitions, queues, applications and nodes, in the JSON of YuniKorn's REST.

An object that can hold very many others (a node or an application with its allocations, a queue with its children) has
a head and a tail, and the view puts the others between them one by one.

Times are nanoseconds, but ``startTime`` of an application is milliseconds. ``priority`` is text. ``allocationTime`` is
the time of the ask; ``bindTime``, Muster's own, is that of the allocation. ``partition`` of a queue is filled for root
only. Priorities without asks are the lowest int32. ``usedResource`` of an application is without its placeholders.

``id``, ``partition_id``, ``queueID`` and ``parentID`` are Muster's own: history servers need them.
"""

from __future__ import annotations

from msgspec import field

from muster_rest.shapes.base import Quantities, YuniKornShape, joined


class ClusterDao(YuniKornShape, kw_only=True):
    """One partition's cluster."""

    start_time: int = 0
    rm_build_information: list[dict[str, str]] = []
    partition: str
    cluster_name: str


class CapacityDao(YuniKornShape, kw_only=True):
    """The capacity of a partition, and its use."""

    capacity: Quantities = {}
    used_capacity: Quantities = {}
    utilization: Quantities = {}


class NodeSortingDao(YuniKornShape, kw_only=True):
    """A partition's order of nodes."""

    type: str = ""
    resource_weights: dict[str, float | int] = {}


class PartitionDao(YuniKornShape, kw_only=True):
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


class TemplateDao(YuniKornShape, kw_only=True):
    """The settings of dynamic leaves below a queue."""

    max_applications: int = 0
    max_resource: Quantities = {}
    guaranteed_resource: Quantities = {}
    properties: dict[str, str] = {}


class QueueHeadDao(YuniKornShape, kw_only=True):
    """A queue: the fields before its children."""

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


class QueueTailDao(YuniKornShape, kw_only=True):
    """A queue: the fields after its children."""

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


class StateDao(YuniKornShape, kw_only=True):
    """An entry of an application's state log."""

    time: int = 0
    application_state: str = ""


class ApplicationHeadDao(YuniKornShape, kw_only=True):
    """An application: the fields before its asks and allocations."""

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


class PlaceholderDao(YuniKornShape, kw_only=True):
    """The placeholders of one task group of an application.

    ``count``: how many were asked for in all; ``minResource``: the size of each.
    """

    task_group_name: str = ""
    count: int = 0
    min_resource: Quantities = {}
    replaced: int = 0
    timed_out: int = field(default=0, name="timedout")


class ApplicationTailDao(YuniKornShape, kw_only=True):
    """An application: the fields after its asks and allocations. ``source`` (Muster's own): the source that brought
    it.
    """

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


class LackingDao(YuniKornShape, kw_only=True):
    """How many nodes have too little of a type (Muster's own)."""

    resource_type: str
    nodes: int


class ReasonDao(YuniKornShape, kw_only=True):
    """Why an ask is pending (Muster's own): the fields of :class:`muster_core.model.reasons.Reason`."""

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


class AskLogDao(YuniKornShape, kw_only=True):
    """An entry of an ask's log."""

    message: str = ""
    last_occurrence: int = 0
    count: int = 0


class AskDao(YuniKornShape, kw_only=True):
    """A pending ask. ``pendingCount`` (for repeats) and ``pendingReason`` are Muster's own."""

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


class AllocationDao(YuniKornShape, kw_only=True):
    """An allocation. ``bindTime``, ``uuid`` (previous generation only) and ``source`` (external) are Muster's own."""

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


class ForeignDao(YuniKornShape, kw_only=True):
    """A foreign allocation. ``source`` (Muster's own): the external source that runs it."""

    allocation_key: str
    allocation_tags: dict[str, str] = {}
    allocation_time: int = 0
    resource: Quantities = {}
    priority: str = ""
    node_id: str = ""
    preemptable: bool = False
    source: str = ""


class NodeHeadDao(YuniKornShape, kw_only=True):
    """A node, before its allocations. ``attributes`` is never empty, because the web UI reads it without a check."""

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


class ReportedDao(YuniKornShape, kw_only=True):
    """The RM's own report of a node that sources report, too. ``created`` false: the RM only drains it."""

    created: bool
    capacity: Quantities = {}
    occupied: Quantities = {}
    attributes: dict[str, str] = {}
    schedulable: bool


class NodeTailDao(YuniKornShape, kw_only=True):
    """A node, after its allocations. The fields from ``sources`` on are Muster's own: the external sources that report
    it.

    ``reported``: the RM's own report; absent beside sources: it has none. (The explanation shows differences.)
    """

    schedulable: bool
    is_reserved: bool
    reservations: list[str] = []
    sources: list[str] = []
    reported: ReportedDao | None = None


QueueDao = joined("QueueDao", "A queue.", QueueHeadDao, {"children": "list[QueueDao]"}, QueueTailDao)
ApplicationDao = joined(
    "ApplicationDao",
    "An application.",
    ApplicationHeadDao,
    {"requests": list[AskDao], "allocations": list[AllocationDao]},
    ApplicationTailDao,
)
NodeDao = joined(
    "NodeDao",
    "A node.",
    NodeHeadDao,
    {"allocations": list[AllocationDao], "foreignAllocations": list[ForeignDao]},
    NodeTailDao,
)
