"""The state in figures, for ``muster.v1.Metrics`` (docs/metrics.md): scheduler, queues, nodes, and the view itself.

The JSON has the names of ``MetricsSnapshot`` (proto/muster/v1/metrics.proto), and only the requested sections. It is
rendered in pieces as in :mod:`render`; an empty piece lets other tasks run.

Cost: the scheduler's section is O(applications + nodes + groups of pending asks), the queues' O(queues shown), the
nodes' O(nodes) to find the fullest and then O(nodes shown).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from muster_core.model.application import Application
from muster_core.model.node import Node
from muster_core.model.queue import Queue
from muster_core.model.reasons import Reason
from muster_core.partition import Partition
from muster_rest.shapes.figures import NodeDao, ProcessDao, QueueDao, RecentDao, RuntimeDao, SchedulerDao, TallyDao
from muster_runtime.go_json import go_json
from muster_runtime.process_stats import process_figures
from muster_state.state_folder import RmEntry
from muster_state.tally import TALLIED, Tally

from muster_view.explain import asks
from muster_view.metrics.recent import RecentAllocations
from muster_view.rest import dao
from muster_view.rest.json_render import Pieces, small

T = TypeVar("T")

NODES_DEFAULT, NODES_MAX = 1_000, 10_000
# Objects of one piece: half a millisecond of counting.
_PER_STEP = 500


class Section(StrEnum):
    """The sections of a snapshot."""

    SCHEDULER = "scheduler"
    QUEUES = "queues"
    NODES = "nodes"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """The parameters of a snapshot.

    :ivar queue: shown with its descendants.
    :ivar nodes_max: the number of nodes, the fullest first.
    """

    sections: frozenset[Section]
    partition: Partition
    queue: Queue
    nodes_max: int


@dataclass(frozen=True, slots=True)
class ViewLag:
    """The lag of the view."""

    records: int
    seconds: float


def snapshot(
    state: RmEntry, query: SnapshotQuery, lag: ViewLag, recent: RecentAllocations, now_ns: int, description: str
) -> Pieces:
    """One snapshot: ``{"takenNs": …, "rmId": …, "state": …, "scheduler": {…}, "queues": […], "nodes": […], …}``."""
    partition, info = query.partition, state.info
    yield b'{"takenNs":%d,"rmId":%b' % (now_ns, go_json(info.rm_id))
    yield b',"state":%b,"stateSinceNs":%d,"paused":%b,"description":%b' % (
        go_json(info.life),
        info.life_ns,
        go_json(info.paused),
        go_json(description),
    )
    if Section.SCHEDULER in query.sections:
        yield b',"scheduler":'
        yield from _scheduler(state, partition, recent.figures(now_ns))
    if Section.QUEUES in query.sections:
        yield b',"queues":['
        yield from _queues(partition, query.queue)
        yield b"]"
    if Section.NODES in query.sections:
        yield b',"nodes":['
        yield from _nodes(partition, query.nodes_max)
        yield b"]"
    if Section.RUNTIME in query.sections:
        yield b',"runtime":%b' % go_json(_runtime(lag))
    yield b"}\n"


# ---- scheduler -------------------------------------------------------------------------------------------------------


def _scheduler(state: RmEntry, partition: Partition, recent: RecentDao) -> Pieces:
    """The scheduler's section as one value, after everything is counted."""
    pause, turns = asks.pause_of(state), asks.turns_of(state)
    states: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for apps in _batches(partition.apps.values()):
        states.update(map(attrgetter("state.value"), apps))
        for app in apps:
            if app.asks:
                reasons.update(_reasons(app, pause, turns))
        yield b""
    draining = reservations = 0
    for nodes in _batches(partition.nodes.values()):
        draining += sum(not node.schedulable for node in nodes)
        reservations += sum(len(node.reservations) for node in nodes)
        yield b""
    quantities = partition.types.quantities
    yield go_json(
        SchedulerDao(
            applications=dict(states),
            nodes=len(partition.nodes),
            nodes_draining=draining,
            asks_pending=reasons.total(),
            allocations=dao.containers(partition),
            reservations=reservations,
            pending_by_reason=dict(reasons),
            tally=_tally(state.info.tally, state.info.next_event_id),
            capacity=quantities(partition.capacity),
            allocated=quantities(partition.root.allocated),
            pending=quantities(partition.root.pending),
            recent=recent,
        )
    )


def _reasons(app: Application, pause: Reason | None, turns: asks.ScopeWaits) -> Counter[str]:
    """The number of its pending asks by reason. Asks of one group share a reason, which is looked up once."""
    counts: Counter[str] = Counter()
    grouped = 0
    for group in app.groups.values():
        if group.asks and (head := group.head()) is not None:
            counts[asks.reason_of(head, pause=pause, turns=turns).code.value] += group.asks
            grouped += group.asks
    if grouped < len(app.asks):
        # Asks that wait for their released placeholder are in no group.
        for ask in app.asks.values():
            if ask.group is None:
                counts[asks.reason_of(ask, pause=pause, turns=turns).code.value] += 1
    return counts


def _tally(tally: Tally, events: int) -> TallyDao:
    return TallyDao(events=events, **{name: getattr(tally, name) for name in TALLIED})


# ---- queues ----------------------------------------------------------------------------------------------------------


def _queues(partition: Partition, top: Queue) -> Pieces:
    """A queue and all queues below, parents first. Root's max is the cluster."""
    quantities = partition.types.quantities
    shown = list(_with_below(top))
    applications = {queue: len(queue.applications) for queue in shown}
    for queue in reversed(shown):
        if queue is not top and queue.parent is not None:
            applications[queue.parent] += applications[queue]
    yield b""

    def made(queue: Queue) -> QueueDao:
        is_root = queue.parent is None
        return QueueDao(
            path=queue.path,
            state=queue.state.value,
            leaf=queue.leaf,
            guaranteed=queue.by_name(queue.guaranteed) or {},
            max=(quantities(partition.capacity) if is_root else {}) | (queue.by_name(queue.maximum) or {}),
            allocated=quantities(queue.allocated),
            pending=quantities(queue.pending),
            preempting=quantities(queue.preempting),
            applications=applications[queue],
            applications_running=queue.running_applications,
            applications_max=queue.max_applications,
        )

    yield from small((queue for queue in shown if not queue.gone), made)


def _with_below(queue: Queue) -> Iterator[Queue]:
    yield queue
    for child in queue.children.values():
        yield from _with_below(child)


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _nodes(partition: Partition, most: int) -> Pieces:
    """The fullest nodes; among equally full ones the oldest."""
    by_percent: dict[int, list[Node]] = {}
    for nodes in _batches(partition.nodes.values()):
        for node in nodes:
            if not node.gone:
                by_percent.setdefault(used_percent(node), []).append(node)
        yield b""
    fullest = (node for percent in sorted(by_percent, reverse=True) for node in by_percent[percent] if not node.gone)
    quantities = partition.types.quantities

    def made(node: Node) -> NodeDao:
        return NodeDao(
            node_id=node.node_id,
            schedulable=node.schedulable,
            capacity=quantities(node.capacity),
            allocated=quantities(node.allocated),
            occupied=quantities(node.occupied),
            available=quantities(node.available),
            allocations=len(node.allocations),
            used_percent=used_percent(node),
        )

    yield from small(islice(fullest, most), made)


def used_percent(node: Node) -> int:
    """How full a node is, in whole percent: the highest used share of any of its types.

    It is 100 for use of a type that the node does not have, and more when the RM has over-committed the node.
    """
    fullest = 0
    for available, capacity in zip(node.available, node.capacity, strict=True):
        if capacity > 0:
            used = (capacity - available) * 100 // capacity
            if used > fullest:
                fullest = used
        elif available < 0:
            fullest = max(fullest, 100)
    return min(fullest, dao.INT32_MAX)


# ---- runtime ---------------------------------------------------------------------------------------------------------


def _runtime(lag: ViewLag) -> RuntimeDao:
    stats = process_figures()
    process = ProcessDao(
        name="view",
        host=stats.host,
        pid=stats.pid,
        cpu_seconds=round(stats.cpu_seconds, 3),
        memory_bytes=stats.memory_bytes,
        garbage_collections=stats.garbage_collections,
        uptime_seconds=round(stats.uptime_seconds, 3),
    )
    return RuntimeDao(processes=[process], view_lag_records=lag.records, view_lag_seconds=round(lag.seconds, 3))


def _batches(objects: Iterable[T]) -> Iterator[list[T]]:
    """Yields parts of the present objects."""
    iterator = iter(list(objects))
    while batch := list(islice(iterator, _PER_STEP)):
        yield batch
