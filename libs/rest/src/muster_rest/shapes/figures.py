"""The state in figures: ``/ws/v1/metrics/snapshot`` (docs/metrics.md)."""

from __future__ import annotations

from msgspec import Struct

from muster_rest.shapes.base import MusterShape, Quantities


class TallyDao(MusterShape, kw_only=True):
    """The RM's counts, and the number of its events."""

    allocated: int
    released: int
    preempted: int
    timed_out: int
    replaced: int
    reported: int
    ended: int
    dropped: int
    asks_rejected: int
    applications_accepted: int
    applications_rejected: int
    nodes_accepted: int
    nodes_rejected: int
    questions: int
    questions_refused: int
    questions_unanswered: int
    events: int
    decisions: int
    deciding_us: int


class RecentDao(MusterShape, kw_only=True):
    """The RM's allocations of the last minute; ``seconds``: of that time. A wait is null if there was no allocation."""

    seconds: float
    allocations: int
    per_second: float
    wait_p50_ms: float | None
    wait_p99_ms: float | None


class SchedulerDao(MusterShape, kw_only=True):
    """One partition's figures; ``tally`` and ``recent`` are the RM's. Older views have no ``recent``."""

    applications: dict[str, int]
    nodes: int
    nodes_draining: int
    asks_pending: int
    allocations: int
    reservations: int
    pending_by_reason: dict[str, int]
    tally: TallyDao
    capacity: Quantities
    allocated: Quantities
    pending: Quantities
    recent: RecentDao | None = None


class QueueDao(MusterShape, kw_only=True):
    """A queue."""

    path: str
    state: str
    leaf: bool
    guaranteed: Quantities
    max: Quantities
    allocated: Quantities
    pending: Quantities
    preempting: Quantities
    applications: int
    applications_running: int
    applications_max: int


class NodeDao(MusterShape, kw_only=True):
    """A node."""

    node_id: str
    schedulable: bool
    capacity: Quantities
    allocated: Quantities
    occupied: Quantities
    available: Quantities
    allocations: int
    used_percent: int


class ProcessDao(MusterShape, kw_only=True):
    """A process. ``host`` and ``pid`` identify it: a gateway in the same process has the same ones."""

    name: str
    host: str
    pid: int
    cpu_seconds: float
    memory_bytes: int
    garbage_collections: int
    uptime_seconds: float


class RuntimeDao(MusterShape, kw_only=True):
    """The view itself."""

    processes: list[ProcessDao]
    view_lag_records: int
    view_lag_seconds: float


class SnapshotDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """The state in figures, with the requested sections only. Older views have no ``state``."""

    taken_ns: int
    rm_id: str
    state: str = ""
    state_since_ns: int = 0
    paused: bool = False
    description: str = ""
    scheduler: SchedulerDao | None = None
    queues: list[QueueDao] = []
    nodes: list[NodeDao] = []
    runtime: RuntimeDao | None = None
