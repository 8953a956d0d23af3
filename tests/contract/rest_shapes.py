"""The JSON of each REST answer as types, written from what YuniKorn's core sends and its readers read.

They are the test's own, on purpose not those of the view: a field that changes there must fail here. A field that is
UNSET by default may be absent and is never null; when it is there, it is neither zero nor empty (Go's ``omitempty``).
All others are always there: also those that Go would leave out when they are empty, but that never are, such as an
allocation's node. No other field is there: those that only Muster has stand below ``# ours``. That a field is absent
which follows from others is found by ``check``, or by what the parts of a dump say of each other (rest_whole.py).

Numbers are integers of 64 bits without a fraction, because a reader in Go ends at ``1.0``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

INT32_MIN = -(1 << 31)
# Go's zero time in milliseconds: what an application has that never started.
NEVER_MS = -62_135_596_800_000
# No application of a test waits so long; a time in nanoseconds, taken for milliseconds, is later by far.
_LONG_NS = 400 * 24 * 3600 * 1_000_000_000

Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Unsigned = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Quantities = dict[str, Int]
Texts = dict[str, str]
# Never empty.
Time = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(min_length=1)]
Amounts = Annotated[dict[str, Int], Meta(min_length=1)]
SomeTexts = Annotated[dict[str, str], Meta(min_length=1)]
Duration = Annotated[str, Meta(pattern=r"^(0s|(\d+h)?(\d+m)?(\d+(\.\d+)?(s|ms|µs|ns)))$")]
# A ULID: 48 bits of time, 80 that are its own, in Crockford's base 32.
Ulid = Annotated[str, Meta(pattern=r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$")]
NumberText = Annotated[str, Meta(pattern=r"^-?\d+$")]

_EMPTY: tuple[object, ...] = (0, "", False, [], {})


class Shape(Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """A struct as Go writes it: no unknown fields, and no empty value in a field that may be absent."""

    def __post_init__(self) -> None:
        for each in msgspec.structs.fields(type(self)):
            value = getattr(self, each.name)
            if value is UNSET:
                continue
            SEEN.add((type(self).__name__, each.name))
            if each.default is UNSET and any(value == empty for empty in _EMPTY):
                raise ValueError(f"{each.encode_name} is there though it is {value!r}")
        self.check()

    def check(self) -> None:
        """What else holds; raises ValueError."""


class Error(Shape, kw_only=True, rename=None):
    status_code: int
    message: str
    description: str

    def check(self) -> None:
        _hold(self.message == self.description, "both texts of an error are equal")
        _hold(self.message != "", "an error says what is wrong")


class Cluster(Shape, kw_only=True):
    start_time: Time
    rm_build_information: Annotated[list[SomeTexts], Meta(min_length=1)]
    partition: str
    cluster_name: str

    def check(self) -> None:
        _hold(self.cluster_name == "kubernetes", "a constant of YuniKorn")
        for each in self.rm_build_information:
            _hold("rmId" in each, "the web UI shows it")


class Capacity(Shape, kw_only=True):
    capacity: Quantities | UnsetType = UNSET
    used_capacity: Quantities | UnsetType = UNSET
    utilization: Quantities | UnsetType = UNSET


class NodeSorting(Shape, kw_only=True):
    type: Name
    resource_weights: dict[str, float]


class Partition(Shape, kw_only=True):
    cluster_id: str
    name: str
    capacity: Capacity
    node_sorting_policy: NodeSorting
    preemption_enabled: bool
    quota_preemption_enabled: bool
    total_nodes: Int | UnsetType = UNSET
    applications: dict[str, Int]
    total_containers: Int | UnsetType = UNSET
    state: Name
    last_state_transition_time: Time
    # history servers
    id: Ulid

    def check(self) -> None:
        counts = dict(self.applications)
        _hold("total" in counts, "the web UI reads it without looking")
        total = counts.pop("total")
        _hold(total == sum(counts.values()), f"{total} applications in all, by state {counts}")
        _hold(set(counts) <= APPLICATION_STATES, f"states {sorted(counts)}")


APPLICATION_STATES = {
    "New",
    "Accepted",
    "Running",
    "Rejected",
    "Completing",
    "Completed",
    "Failing",
    "Failed",
    "Expired",
    "Resuming",
}


class Filter(Shape, kw_only=True):
    type: str
    user_list: list[str] | UnsetType = UNSET
    group_list: list[str] | UnsetType = UNSET
    user_exp: str | UnsetType = UNSET
    group_exp: str | UnsetType = UNSET


class Rule(Shape, kw_only=True):
    name: str
    parameters: SomeTexts
    filter: Filter | UnsetType = UNSET
    parent_rule: Rule | UnsetType = UNSET

    def check(self) -> None:
        unknown = set(self.parameters) - {"create", "queue", "qualified", "tagName"}
        _hold(not unknown, f"parameters {unknown}")


class Template(Shape, kw_only=True):
    max_applications: Unsigned | UnsetType = UNSET
    max_resource: Quantities | UnsetType = UNSET
    guaranteed_resource: Quantities | UnsetType = UNSET
    properties: Texts | UnsetType = UNSET


class Queue(Shape, kw_only=True):
    queuename: str
    status: Name
    partition: str
    pending_resource: Quantities | UnsetType = UNSET
    max_resource: Quantities | UnsetType = UNSET
    guaranteed_resource: Quantities | UnsetType = UNSET
    allocated_resource: Quantities | UnsetType = UNSET
    preempting_resource: Quantities | UnsetType = UNSET
    headroom: Quantities | UnsetType = UNSET
    is_leaf: bool
    is_managed: bool
    properties: Texts | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    # (A template without anything in it is a struct that is there.)
    template: Template | UnsetType = UNSET
    children: list[Queue] | UnsetType = UNSET
    child_names: list[str] | UnsetType = UNSET
    abs_used_capacity: Quantities | UnsetType = UNSET
    max_running_apps: Unsigned | UnsetType = UNSET
    running_apps: Unsigned | UnsetType = UNSET
    current_priority: Int32
    allocating_accepted_apps: list[str] | UnsetType = UNSET
    sorting_policy: Name
    priority_sorting: bool
    preemption_enabled: bool
    is_preemption_fence: bool
    preemption_delay: Duration
    quota_preemption_delay: Duration
    is_priority_fence: bool
    priority_offset: Int32 | UnsetType = UNSET
    # history servers
    id: Ulid
    partition_id: Ulid = field(name="partition_id")
    parent_id: Ulid | UnsetType = field(default=UNSET, name="parentID")

    def check(self) -> None:
        above, _, _ = self.queuename.rpartition(".")
        _hold((self.parent or "") == above, f"{self.queuename} stands below {self.parent}")
        _hold(bool(self.parent_id) == bool(above), "all but root have a parent")
        _hold(self.partition == "" or above == "", "only root names its partition")
        _hold(self.status in {"Active", "Draining", "Stopped"}, f"status {self.status}")
        _hold(self.sorting_policy in {"fifo", "fair"}, f"sorting policy {self.sorting_policy}")
        for child in self.children or []:
            _hold(child.partition == "", f"{child.queuename} names its partition")
            _hold(child.parent_id == self.id, f"{child.queuename} has another parent's id")
            _hold(child.partition_id == self.partition_id, f"{child.queuename} is in another partition")
            _hold(child.queuename in (self.child_names or []), f"{child.queuename} is not among the names")
        if self.is_leaf:
            _hold(not self.child_names, "a leaf has no children")
            if not self.pending_resource:
                _hold(self.current_priority == INT32_MIN, f"priority {self.current_priority} with nothing pending")


class State(Shape, kw_only=True):
    time: Time
    application_state: Name


class Placeholders(Shape, kw_only=True):
    task_group_name: Name
    count: Unsigned
    min_resource: Amounts
    replaced: Int | UnsetType = UNSET
    timed_out: Int | UnsetType = field(default=UNSET, name="timedout")


class AskLog(Shape, kw_only=True):
    message: Name
    last_occurrence: Time
    count: Int32


class Ask(Shape, kw_only=True):
    allocation_key: str
    allocation_tags: Texts | UnsetType = UNSET
    request_time: Time
    resource: Amounts
    priority: NumberText
    required_node_id: str | UnsetType = UNSET
    application_id: Name
    placeholder: bool | UnsetType = UNSET
    task_group_name: str | UnsetType = UNSET
    allocation_log: list[AskLog] | UnsetType = UNSET
    triggered_preemption: bool | UnsetType = UNSET
    originator: bool | UnsetType = UNSET
    scheduling_attempted: bool | UnsetType = UNSET
    triggered_scale_up: bool | UnsetType = UNSET
    # ours
    pending_count: Int | UnsetType = UNSET
    pending_reason: dict[str, Any] | UnsetType = UNSET

    def check(self) -> None:
        told = [bool(each) for each in (self.scheduling_attempted, self.pending_reason, self.allocation_log)]
        for each in self.allocation_log or []:
            _hold(_near(each.last_occurrence, self.request_time), f"asked at {self.request_time}, {each}")
        _hold(len(set(told)) == 1, f"attempted, why it is pending, and the log of it: {told}")
        _hold(not self.placeholder or bool(self.task_group_name), "a placeholder is one of a task group")
        required = (self.allocation_tags or {}).get("yunikorn.apache.org/requiredNode")
        _hold((self.required_node_id or None) == required, f"required is {self.required_node_id}, of {required}")


class Allocation(Shape, kw_only=True):
    allocation_key: str
    allocation_tags: Texts | UnsetType = UNSET
    request_time: Time
    allocation_time: Time
    allocation_delay: Int | UnsetType = UNSET
    resource: Amounts
    priority: NumberText
    node_id: Name
    application_id: Name
    placeholder: bool | UnsetType = UNSET
    placeholder_used: bool | UnsetType = UNSET
    task_group_name: str | UnsetType = UNSET
    preempted: bool | UnsetType = UNSET
    originator: bool | UnsetType = UNSET
    # ours
    bind_time: Time
    uuid: str | UnsetType = UNSET
    source: str | UnsetType = UNSET

    def check(self) -> None:
        delay_ns = self.allocation_time - self.request_time
        _hold((self.allocation_delay or 0) == delay_ns, f"delayed by {self.allocation_delay} of {delay_ns}")
        _hold(
            _near(self.bind_time, self.allocation_time), f"asked at {self.allocation_time}, bound at {self.bind_time}"
        )
        _hold(not delay_ns or self.placeholder_used is True, "only what took a placeholder's place was delayed")
        _hold(not self.placeholder or bool(self.task_group_name), "a placeholder is one of a task group")


class Application(Shape, kw_only=True):
    application_id: str = field(name="applicationID")
    used_resource: Quantities | UnsetType = UNSET
    max_used_resource: Quantities | UnsetType = UNSET
    pending_resource: Quantities | UnsetType = UNSET
    partition: str
    queue_name: str
    submission_time: Time
    finished_time: Int | UnsetType = UNSET
    requests: list[Ask] | UnsetType = UNSET
    allocations: list[Allocation] | UnsetType = UNSET
    application_state: Name
    user: str | UnsetType = UNSET
    groups: list[str] | UnsetType = UNSET
    rejected_message: str | UnsetType = UNSET
    state_log: Annotated[list[State], Meta(min_length=1)]
    placeholder_data: list[Placeholders] | UnsetType = UNSET
    has_reserved: bool | UnsetType = UNSET
    reservations: list[str] | UnsetType = UNSET
    max_request_priority: Int32 | UnsetType = UNSET
    start_time: Int
    resource_history: ResourceHistory
    backoff_deadline: str | UnsetType = UNSET
    # history servers
    id: Ulid
    partition_id: Ulid = field(name="partition_id")
    queue_id: Ulid = field(name="queueID")
    # ours
    source: str | UnsetType = UNSET

    def check(self) -> None:
        _hold(self.application_state in APPLICATION_STATES, f"state {self.application_state}")
        _hold(bool(self.rejected_message) == (self.application_state == "Rejected"), "the refused are told why")
        times = [entry.time for entry in self.state_log]
        _hold(times == sorted(times), f"states in order of time: {times}")
        _hold(_near(self.submission_time, times[0]), f"submitted at {self.submission_time}, heard of at {times[0]}")
        _hold(_near(self.finished_time or times[-1], times[-1]), f"finished at {self.finished_time}, {times[-1]}")
        _hold(self.state_log[-1].application_state == self.application_state, "the story ends with the state")
        over = self.application_state in {"Completed", "Failed", "Expired", "Rejected"}
        _hold(bool(self.finished_time) == over, f"{self.application_state}, finished {self.finished_time}")
        _hold(bool(self.user) or self.application_state == "Rejected", "it is somebody's")
        _hold(bool(self.groups) or self.application_state == "Rejected", "who has groups")
        _hold(bool(self.has_reserved) == bool(self.reservations), f"reserved for {self.reservations}")
        held = [each for each in self.allocations or [] if not each.placeholder]
        _hold(same(self.used_resource, added(each.resource for each in held)), f"it uses {self.used_resource}")
        asked = added(each.resource for each in self.requests or [] for _ in range(each.pending_count or 1))
        _hold(same(self.pending_resource, asked), f"{self.pending_resource} is pending of {asked}")
        kept = {each.task_group_name: each for each in self.placeholder_data or []}
        for each in (*(self.allocations or []), *(self.requests or [])):
            _hold(
                not each.placeholder or each.task_group_name in kept, f"{each.task_group_name} is none of {list(kept)}"
            )
        for name, group in kept.items():
            came = [each for each in held if each.placeholder_used and each.task_group_name == name]
            _hold((group.replaced or 0) >= len(came), f"{name}: {group.replaced} replaced by {len(came)}")
        most = self.max_used_resource or {}
        _hold(all(most.get(name, 0) >= value for name, value in (self.used_resource or {}).items()), f"most: {most}")
        if self.start_time != NEVER_MS:
            later_ns = self.start_time * 1_000_000 - self.submission_time
            _hold(-1_000_000 < later_ns < _LONG_NS, f"startTime {self.start_time} is no time in milliseconds")
        if not self.requests:
            _hold(self.max_request_priority == INT32_MIN, f"priority {self.max_request_priority} without asks")


class ResourceHistory(Shape, kw_only=True):
    resource_usage: dict[str, Quantities] | UnsetType = UNSET
    preempted_resource: dict[str, Quantities] | UnsetType = UNSET
    placeholder_resource: dict[str, Quantities] | UnsetType = UNSET


class Foreign(Shape, kw_only=True):
    allocation_key: str
    allocation_tags: SomeTexts
    allocation_time: Time
    resource: Amounts
    priority: NumberText
    node_id: Name
    preemptable: bool | UnsetType = UNSET
    # ours
    source: str | UnsetType = UNSET


class Node(Shape, kw_only=True):
    node_id: str = field(name="nodeID")
    host_name: str | UnsetType = UNSET
    rack_name: str | UnsetType = UNSET
    # (Absent when empty in YuniKorn; the web UI needs an object.)
    attributes: Texts
    capacity: Quantities | UnsetType = UNSET
    allocated: Quantities | UnsetType = UNSET
    occupied: Quantities | UnsetType = UNSET
    available: Quantities | UnsetType = UNSET
    utilized: Quantities | UnsetType = UNSET
    allocations: list[Allocation] | UnsetType = UNSET
    foreign_allocations: list[Foreign] | UnsetType = UNSET
    schedulable: bool
    is_reserved: bool
    reservations: list[str] | UnsetType = UNSET
    # history servers
    id: Ulid
    partition_id: Ulid = field(name="partition_id")
    # ours
    sources: list[str] | UnsetType = UNSET
    reported: dict[str, Any] | UnsetType = UNSET

    def check(self) -> None:
        _hold(self.is_reserved == bool(self.reservations), f"reserved {self.is_reserved}, by {self.reservations}")
        for name, capacity in (self.capacity or {}).items():
            parts = [(each or {}).get(name, 0) for each in (self.allocated, self.occupied, self.available)]
            _hold(sum(parts) == capacity, f"{name}: {parts} of {capacity}")
        _hold(0 not in (self.available or {}).values(), "zero drops out of available")


class Usage(Shape, kw_only=True):
    """Applications are in leaves: a queue uses what those below it use."""

    queue_path: str
    resource_usage: Quantities | UnsetType = UNSET
    running_applications: list[str] | UnsetType = UNSET
    max_resources: Quantities | UnsetType = UNSET
    max_applications: Unsigned | UnsetType = UNSET
    children: list[Usage] | UnsetType = UNSET

    def check(self) -> None:
        if self.children:
            below = added(child.resource_usage or {} for child in self.children)
            _hold(same(self.resource_usage, below), f"{self.queue_path} uses {self.resource_usage}, below it {below}")
            for child in self.children:
                running = set(child.running_applications or [])
                _hold(running <= set(self.running_applications or []), f"{running} run below {self.queue_path}")


class UserUsage(Shape, kw_only=True):
    user_name: str
    groups: Texts | UnsetType = UNSET
    queues: Usage | UnsetType = UNSET


class GroupUsage(Shape, kw_only=True):
    group_name: str
    applications: list[str] | UnsetType = UNSET
    queues: Usage | UnsetType = UNSET


class Bucket(Shape, kw_only=True):
    bucket_name: Name
    num_of_nodes: Int | UnsetType = UNSET
    node_names: list[str] | UnsetType = UNSET

    def check(self) -> None:
        _hold((self.num_of_nodes or 0) == len(self.node_names or []), f"{self.num_of_nodes}: {self.node_names}")


class TypeUtilization(Shape, kw_only=True):
    type: Name
    utilization: list[Bucket]

    def check(self) -> None:
        names = [bucket.bucket_name for bucket in self.utilization]
        _hold(names == [f"{low}-{low + 10}%" for low in range(0, 100, 10)], f"buckets {names}")


class Utilization(Shape, kw_only=True):
    cluster_id: str
    partition: str
    utilizations: list[TypeUtilization]  # (may be empty: there it is left out then, and the web UI fails)


class Check(Shape, kw_only=True, rename="pascal"):
    name: Name
    succeeded: bool
    description: Name
    diagnosis_message: Name


class Health(Shape, kw_only=True, rename="pascal"):
    healthy: bool
    health_checks: Annotated[list[Check], Meta(min_length=1)]

    def check(self) -> None:
        _hold(self.healthy == all(each.succeeded for each in self.health_checks), "healthy means all of them")


class ApplicationSample(Shape, kw_only=True):
    timestamp: Time
    total_applications: NumberText


class ContainerSample(Shape, kw_only=True):
    timestamp: Time
    total_containers: NumberText


class Validated(Shape, kw_only=True):
    allowed: bool
    reason: str | UnsetType = UNSET

    def check(self) -> None:
        _hold(self.allowed == (self.reason is UNSET), "who is refused is told why")


class ConfigResources(Shape, kw_only=True, rename="pascal"):
    guaranteed: Texts | UnsetType = UNSET
    max: Texts | UnsetType = UNSET


class ConfigLimit(Shape, kw_only=True, rename="pascal"):
    limit: str
    users: list[str] | UnsetType = UNSET
    groups: list[str] | UnsetType = UNSET
    max_resources: Texts | UnsetType = UNSET
    max_applications: Unsigned | UnsetType = UNSET


class ConfigTemplate(Shape, kw_only=True, rename="pascal"):
    max_applications: Unsigned | UnsetType = UNSET
    properties: Texts | UnsetType = UNSET
    resources: ConfigResources


class ConfigQueue(Shape, kw_only=True, rename="pascal"):
    name: str
    parent: bool | UnsetType = UNSET
    resources: ConfigResources
    max_applications: Unsigned | UnsetType = UNSET
    properties: Texts | UnsetType = UNSET
    admin_acl: str | UnsetType = field(default=UNSET, name="AdminACL")
    submit_acl: str | UnsetType = field(default=UNSET, name="SubmitACL")
    child_template: ConfigTemplate
    queues: list[ConfigQueue] | UnsetType = UNSET
    limits: list[ConfigLimit] | UnsetType = UNSET


class ConfigFilter(Shape, kw_only=True, rename="pascal"):
    type: str
    users: list[str] | UnsetType = UNSET
    groups: list[str] | UnsetType = UNSET


class ConfigRule(Shape, kw_only=True, rename="pascal"):
    name: str
    create: bool | UnsetType = UNSET
    filter: ConfigFilter
    parent: ConfigRule | UnsetType = UNSET
    value: str | UnsetType = UNSET


class ConfigPreemption(Struct, forbid_unknown_fields=True, kw_only=True, rename="pascal"):
    # (Pointers in Go: false is not the same as absent.)
    enabled: bool | UnsetType = UNSET
    quota_preemption_enabled: bool | UnsetType = UNSET
    # ours
    opt_out: str | UnsetType = UNSET


class ConfigNodeSort(Shape, kw_only=True, rename="pascal"):
    type: str
    resource_weights: dict[str, float] | UnsetType = UNSET


class ConfigResolver(Shape, kw_only=True):
    type: str | UnsetType = UNSET  # (the only one with a name of its own)


class ConfigPartition(Shape, kw_only=True, rename="pascal"):
    name: str
    queues: list[ConfigQueue]
    placement_rules: list[ConfigRule] | UnsetType = UNSET
    limits: list[ConfigLimit] | UnsetType = UNSET
    preemption: ConfigPreemption
    node_sort_policy: ConfigNodeSort
    user_group_resolver: ConfigResolver
    # ours
    reservation: dict[str, Any] | UnsetType = UNSET

    def check(self) -> None:
        _hold([queue.name.lower() for queue in self.queues] == ["root"], "one root")
        if self.limits:
            _hold(self.limits == self.queues[0].limits, "root has its partition's limits")


class Config(Shape, kw_only=True, rename="pascal"):
    partitions: list[ConfigPartition]
    checksum: Annotated[str, Meta(pattern="^[0-9A-F]{64}$")] | UnsetType = UNSET
    extra: Texts | UnsetType = UNSET
    deadlock_detection_enabled: bool
    deadlock_timeout_seconds: Int


class EventQuantity(Shape, kw_only=True):
    value: Int | UnsetType = UNSET


class EventResource(Shape, kw_only=True):
    resources: dict[str, EventQuantity] | UnsetType = UNSET


class Event(Shape, kw_only=True):
    # (Enums are numbers; zero is left out as any other.)
    type: Annotated[int, Meta(ge=1, le=5)]
    object_id: Name = field(name="objectID")
    message: str | UnsetType = UNSET
    timestamp_nano: Time
    event_change_type: Unsigned | UnsetType = UNSET
    event_change_detail: Unsigned | UnsetType = UNSET
    reference_id: str | UnsetType = field(default=UNSET, name="referenceID")
    resource: EventResource
    # history servers
    state: str | UnsetType = UNSET


class EventBatch(Shape, kw_only=True):
    instance: str = field(name="InstanceUUID")
    lowest: Unsigned = field(name="LowestID")
    highest: Unsigned = field(name="HighestID")
    records: list[Event] | None = field(name="EventRecords")

    def check(self) -> None:
        _hold(self.records != [], "without records it is null")


class NodesOf(Shape, kw_only=True):
    partition_name: str
    nodes_info: list[Node] | UnsetType = UNSET


class RulesOf(Shape, kw_only=True):
    partition: str
    rules: Annotated[list[Rule], Meta(min_length=1)]


class EventStream(Shape, kw_only=True, rename="pascal"):
    name: str
    created_at: str


class StateDump(Shape, kw_only=True):
    timestamp: Int
    partitions: list[Partition] | UnsetType = UNSET
    applications: list[Application] | UnsetType = UNSET
    app_history: list[ApplicationSample] | UnsetType = UNSET
    nodes: list[NodesOf] | UnsetType = UNSET
    cluster_info: list[Cluster] | UnsetType = UNSET
    container_history: list[ContainerSample] | UnsetType = UNSET
    queues: list[Queue] | UnsetType = UNSET
    rm_diagnostics: dict[str, Any]
    log_level: str
    config: Config
    placement_rules: list[RulesOf] | UnsetType = UNSET
    event_streams: list[EventStream] | UnsetType = UNSET


def added(amounts: Iterable[Quantities]) -> Quantities:
    """The sum of the amounts, for each resource type."""
    total: Counter[str] = Counter()
    for each in amounts:
        total.update(each)
    return dict(total)


def same(one: Quantities | UnsetType, other: Quantities | UnsetType) -> bool:
    """Whether there is as much of each type; of one that is not there, or all that is not there: none."""
    first, second = (dict(one or {}), dict(other or {}))
    return all(first.get(name, 0) == second.get(name, 0) for name in first.keys() | second.keys())


# Every field that was there in an answer: what no scenario shows is not tested.
SEEN: set[tuple[str, str]] = set()

# What no story of contract/test_rest_shapes.py shows, and why.
NEVER_SEEN = {
    ("Event", "state"),  # the publisher asks the view for it: e2e/test_rest_forms.py
    ("Application", "backoff_deadline"),  # there is no backoff: what cannot fit is parked
    ("StateDump", "event_streams"),  # the publisher is asked for them: in_virtual_time/test_rest_beside_the_core.py
    ("EventStream", "name"),
    ("EventStream", "created_at"),
    ("ConfigPartition", "reservation"),  # ours, in docs/configuration.md
    ("Application", "source"),  # external resources have tests of their own
    ("Allocation", "source"),
    ("Foreign", "source"),
    ("Node", "sources"),
    ("Node", "reported"),
}


def unseen() -> set[tuple[str, str]]:
    """The fields of all shapes that no answer had."""
    every = {
        (name, each.name)
        for name, shape in globals().items()
        if isinstance(shape, type) and issubclass(shape, Shape) and shape is not Shape
        for each in msgspec.structs.fields(shape)
    }
    return every - SEEN


_FRACTION = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+|[eE])')
# Only these are floats.
_WEIGHTS = re.compile(r'"[rR]esourceWeights":\{[^}]*\}')


def valid(body: bytes, shape: Any) -> Any:
    """An answer's body in a shape. Raises msgspec.ValidationError, and ValueError for what no type can say."""
    _hold(body.endswith(b"\n"), "a line feed at the end, as Go's encoder writes it")
    for escaped in (b"<", b">", b"&"):
        _hold(escaped not in body, f"{escaped.decode()} is escaped")
    for found in _FRACTION.findall(_WEIGHTS.sub("", body.decode())):
        _hold(found[:1] == '"', f"a number with a fraction: {found}")
    return msgspec.json.decode(body, type=shape, strict=True)


def _near(one_ns: int, other_ns: int) -> bool:
    """Whether both are in the same unit. (The clock of the stories begins a few minutes after 1970.)"""
    return one_ns < 100 * other_ns and other_ns < 100 * one_ns


def _hold(condition: bool, words: str) -> None:
    if not condition:
        raise ValueError(words)
