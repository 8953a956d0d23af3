"""``/ws/v1/metrics``: the metrics of YuniKorn's core, under its names, types and labels.

docs/metrics.md gives the source of each figure, and the differences. This module writes Prometheus' text format itself,
because the core's names break rules that prometheus-client enforces (counters without ``_total``, gauges with it). The
figures of several RMs or partitions are added up, because the core has no label for them.

A rendering is an iterator of pieces, see ``json_render.py``. Cost: O(queues + nodes that changed since the last one).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from muster_core.model.queue import Queue
from muster_core.model.states import AppState
from muster_core.partition import Partition
from muster_runtime.process_stats import process_figures
from muster_state.state_folder import RmEntry
from muster_state.tally import DECIDING_LIMITS_US

from muster_view.metrics.object_counts import ALLOCATED, RELEASED, USAGE_BUCKETS, ObjectCounts, PartitionCounts, add_up
from muster_view.rest.json_render import Pieces

# Objects looked at in one piece: half a millisecond.
_QUEUES_PER_PIECE, _NODES_PER_STEP = 50, 200

_NO_LETTER = re.compile(r"[^a-zA-Z0-9_:]")
_RANGES = ("[0,10%]", *(f"({tenth * 10}%,{tenth * 10 + 10}%]" for tenth in range(1, USAGE_BUCKETS)))

Labels = tuple[tuple[str, str], ...]


class MetricDefinition(NamedTuple):
    """A metric as the core has it.

    :ivar name: a name with ``{}`` stands for one family for each queue or resource type.
    :ivar labels: without a histogram's ``le``.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


ATTEMPTS = MetricDefinition(
    "yunikorn_scheduler_container_allocation_attempt_total",
    "counter",
    ("state",),
    "Containers by result: allocated, rejected, error, released.",
)
SUBMISSIONS = MetricDefinition(
    "yunikorn_scheduler_application_submission_total",
    "counter",
    ("result",),
    "Applications that were submitted, by result: new (all of them), accepted, rejected.",
)
APPLICATIONS = MetricDefinition(
    "yunikorn_scheduler_application_total",
    "gauge",
    ("state",),
    "Applications by state: running, resuming, failing, completing, completed, failed.",
)
NODES = MetricDefinition(
    "yunikorn_scheduler_node", "gauge", ("state",), "Nodes by state: active, failed, draining, decommissioned."
)
NODE_USAGE = MetricDefinition(
    "yunikorn_scheduler_{}_node_usage_total",
    "gauge",
    ("range",),
    "Nodes by how much of this resource type is allocated on them.",
)
SCHEDULING_LATENCY = MetricDefinition(
    "yunikorn_scheduler_scheduling_latency_milliseconds",
    "histogram",
    (),
    "Time of one round of the scheduler in which something was decided, in seconds.",
)
SCHEDULING_CYCLE = MetricDefinition(
    "yunikorn_scheduler_scheduling_cycle_milliseconds",
    "histogram",
    (),
    "Time of one round of the scheduler, in seconds.",
)
TRY_NODE_LATENCY = MetricDefinition(
    "yunikorn_scheduler_trynode_latency_milliseconds",
    "histogram",
    (),
    "Time of checking the conditions of one node, in seconds. Not measured apart here: always 0.",
)
TRY_NODE_EVALUATION = MetricDefinition(
    "yunikorn_scheduler_trynode_evaluation_milliseconds",
    "histogram",
    (),
    "Time of looking for a node for one container, in seconds. Not measured apart here: always 0.",
)
TRY_PREEMPTION = MetricDefinition(
    "yunikorn_scheduler_trypreemption_latency_milliseconds",
    "histogram",
    (),
    "Time of looking for victims, in seconds. Not measured apart here: always 0.",
)
SORTING = MetricDefinition(
    "yunikorn_scheduler_node_sorting_latency_milliseconds",
    "histogram",
    ("level",),
    "Time of sorting applications and queues, in seconds. Muster sorts nothing again: always 0.",
)
QUEUE_APPLICATIONS = MetricDefinition(
    "yunikorn_queue_app", "gauge", ("queue", "state"), "Applications of a queue, by state."
)
QUEUE_APPLICATIONS_ENDED = MetricDefinition(
    "yunikorn_queue_app_total",
    "counter",
    ("queue", "state"),
    "Ended applications of a queue, by result: completed, failed, rejected. Stays when the queue is removed.",
)
QUEUE_RESOURCES = MetricDefinition(
    "yunikorn_queue_resource",
    "gauge",
    ("queue", "state", "resource"),
    "Resources of a queue: guaranteed, max, allocated, pending, preempting; and maxRunningApps, of the resource apps.",
)
QUEUE_CONTAINERS = MetricDefinition(
    "yunikorn_{}_queue_container", "counter", ("state",), "Containers of a queue: allocated, released."
)
# The names of cores up to 1.6, for dashboards of those versions: only on request.
NAMED_APPLICATIONS = MetricDefinition(
    "yunikorn_{}_queue_app", "gauge", ("state",), "Applications of a queue, by state."
)
NAMED_RESOURCES = MetricDefinition(
    "yunikorn_{}_queue_resource",
    "gauge",
    ("state", "resource"),
    "Resources of a queue: guaranteed, max, allocated, pending, preempting; and maxRunningApps, of the resource apps.",
)
EVENTS_CREATED = MetricDefinition("yunikorn_event_total_created", "gauge", (), "Events that were made.")
EVENTS_CHANNELED = MetricDefinition(
    "yunikorn_event_total_channeled", "gauge", (), "Of these, those that are on the log."
)
EVENTS_NOT_CHANNELED = MetricDefinition(
    "yunikorn_event_total_not_channeled",
    "gauge",
    (),
    "Events that were lost: always 0, they are decided and written in one.",
)
EVENTS_PROCESSED = MetricDefinition("yunikorn_event_total_processed", "gauge", (), "Events that readers may have.")

RUNTIME = MetricDefinition(
    "yunikorn_runtime_go_mem_stats",
    "gauge",
    ("MemStats",),
    "Memory of this process, in Go's words as far as they have a meaning in Python.",
)

# All of them, in the order of the text.
FAMILIES = tuple(family for family in tuple(globals().values()) if isinstance(family, MetricDefinition))

# The core's states of applications as a whole; a queue has the others, too.
_OF_ALL = (
    AppState.RUNNING,
    AppState.RESUMING,
    AppState.FAILING,
    AppState.COMPLETING,
    AppState.COMPLETED,
    AppState.FAILED,
)
_LIMITS_S = tuple(f"{limit_us / 1e6:g}" for limit_us in DECIDING_LIMITS_US)


@dataclass(frozen=True, slots=True)
class RmSample:
    """One requested RM, and its counts.

    :ivar partitions: its partitions, each with its census.
    """

    state: RmEntry
    counts: ObjectCounts
    partitions: tuple[tuple[Partition, PartitionCounts], ...]


class HistoricTypes:
    """The resource types that a queue once had, by queue and state: they stay at 0, so that graphs have no holes."""

    def __init__(self) -> None:
        self._types: dict[str, dict[str, dict[str, None]]] = {}

    def union(self, path: str, state: str, names: Iterable[str]) -> Iterable[str]:
        """The present types, and those of earlier renderings."""
        of_queue = self._types.get(path)
        if of_queue is None:
            of_queue = self._types[path] = {}
        before = of_queue.get(state)
        if before is None:
            before = of_queue[state] = {}
        before.update(dict.fromkeys(names))
        return before

    def forget_but(self, paths: Mapping[str, object]) -> None:
        """Drops removed queues: they have no series."""
        for path in [path for path in self._types if path not in paths]:
            del self._types[path]


def exposition(rms: Sequence[RmSample], historic_types: HistoricTypes, *, by_name: bool = False) -> Pieces:
    """The text, family by family.

    :param historic_types: kept from one rendering of these RMs to the next.
    :param by_name: adds a family for each queue, as cores up to 1.6 have them, which doubles the text for queues.
    """
    yield from _of_scheduler(rms)
    yield from _of_nodes(rms)
    yield from _of_decisions(rms)
    yield from _of_queues(rms, historic_types, by_name)
    yield from _of_events(rms)
    yield from _of_process()


# ---- families --------------------------------------------------------------------------------------------------------


def _of_scheduler(rms: Sequence[RmSample]) -> Pieces:
    tallies = [rm.state.info.tally for rm in rms]
    accepted = sum(tally.applications_accepted for tally in tallies)
    rejected = sum(tally.applications_rejected for tally in tallies)
    attempts = {
        "allocated": sum(tally.allocated + tally.reported for tally in tallies),
        "rejected": sum(tally.asks_rejected for tally in tallies),
        "error": 0,
        "released": sum(tally.ended for tally in tallies),
    }
    yield _simple(ATTEMPTS, attempts)
    yield _simple(SUBMISSIONS, {"new": accepted + rejected, "accepted": accepted, "rejected": rejected})
    states = add_up(census for rm in rms for _, census in rm.partitions)
    yield _simple(APPLICATIONS, {state.lower(): states.get(state, 0) for state in _OF_ALL})


def _of_nodes(rms: Sequence[RmSample]) -> Pieces:
    active = draining = 0
    usage: dict[str, list[int]] = {}
    for rm in rms:
        for partition, census in rm.partitions:
            active += len(partition.nodes)
            draining += len(census.draining)
            while census.weigh(_NODES_PER_STEP):
                yield b""
            names = partition.types.names
            for number, tenths in census.usage.items():
                buckets = usage.setdefault(names[number], [0] * USAGE_BUCKETS)
                buckets[:] = [a + b for a, b in zip(buckets, tenths, strict=True)]
    states = {
        "active": active,
        "failed": sum(rm.state.info.tally.nodes_rejected for rm in rms),
        "draining": draining,
        "decommissioned": sum(rm.counts.decommissioned for rm in rms),
    }
    yield _simple(NODES, states)
    exposed: dict[str, None] = {}
    for name in sorted(usage):
        family = NODE_USAGE._replace(name=NODE_USAGE.name.format(metric_name(name)))
        if family.name not in exposed:  # (of two types that look the same as names, the first)
            exposed[family.name] = None
            yield _simple(family, dict(zip(_RANGES, usage[name], strict=True)))


def _of_decisions(rms: Sequence[RmSample]) -> Pieces:
    tallies = [rm.state.info.tally for rm in rms]
    spread = [sum(bucket) for bucket in zip(*(tally.deciding_spread for tally in tallies), strict=True)]
    seconds = sum(tally.deciding_us for tally in tallies) / 1e6
    for family in (SCHEDULING_LATENCY, SCHEDULING_CYCLE):
        yield _head(family) + _histogram(family.name, "", spread or _NOTHING, seconds)
    for family in (TRY_NODE_LATENCY, TRY_NODE_EVALUATION, TRY_PREEMPTION):
        yield _head(family) + _histogram(family.name, "", _NOTHING, 0.0)
    levels = (_histogram(SORTING.name, f'level="{level}"', _NOTHING, 0.0) for level in ("app", "queue"))
    yield _head(SORTING) + b"".join(levels)


_USED = ("allocated", "pending", "preempting")
_NOTHING = [0] * (len(DECIDING_LIMITS_US) + 1)


def _of_queues(rms: Sequence[RmSample], historic_types: HistoricTypes, by_name: bool) -> Pieces:
    queues: dict[str, list[tuple[Partition, Queue]]] = {}
    applications: dict[str, dict[AppState, int]] = {}
    containers: dict[str, list[int]] = {}
    ended: dict[tuple[str, AppState], int] = {}
    for rm in rms:
        for partition, census in rm.partitions:
            for path, queue in partition.queues.items():
                queues.setdefault(path, []).append((partition, queue))
                if queue.leaf:
                    total = containers.setdefault(metric_name(path), [0, 0])
                    counted = rm.counts.containers.get((partition.name, path), (0, 0))
                    total[ALLOCATED] += counted[ALLOCATED]
                    total[RELEASED] += counted[RELEASED]
            yield b""
            for (path, state), count in census.applications.items():
                if path in partition.queues:
                    states = applications.setdefault(path, {})
                    states[state] = states.get(state, 0) + count
            yield b""
        for key, count in rm.counts.ended.items():
            ended[key] = ended.get(key, 0) + count
    historic_types.forget_but(queues)
    yield _head(QUEUE_APPLICATIONS)
    for paths in _batches(sorted(applications)):
        yield b"".join(
            _sample(QUEUE_APPLICATIONS.name, (("queue", path), ("state", state.lower())), count)
            for path in paths
            for state, count in applications[path].items()
        )
    yield _head(QUEUE_APPLICATIONS_ENDED)
    yield b"".join(
        _sample(QUEUE_APPLICATIONS_ENDED.name, (("queue", path), ("state", state.lower())), count)
        for (path, state), count in sorted(ended.items())
    )
    yield _head(QUEUE_RESOURCES)
    # (Of two queues that look the same as names, the first.)
    named: dict[str, tuple[str, list[tuple[Labels, int]]]] = {}
    for paths in _batches(sorted(queues)):
        pieces: list[bytes] = []
        for path in paths:
            samples = list(_queue_resources(path, queues[path], historic_types))
            of_queue = ("queue", path)
            pieces += [_sample(QUEUE_RESOURCES.name, (of_queue, *labels), value) for labels, value in samples]
            if by_name:
                named.setdefault(metric_name(path), (path, samples))
        yield b"".join(pieces)
    yield from _named(named, applications)
    for names in _batches(sorted(containers)):
        yield b"".join(
            _simple(
                QUEUE_CONTAINERS._replace(name=QUEUE_CONTAINERS.name.format(name)),
                {"allocated": containers[name][ALLOCATED], "released": containers[name][RELEASED]},
            )
            for name in names
        )


def _named(
    named: Mapping[str, tuple[str, list[tuple[Labels, int]]]], applications: Mapping[str, Mapping[AppState, int]]
) -> Pieces:
    for names in _batches(named):
        pieces: list[bytes] = []
        for name in names:
            path, samples = named[name]
            states = {state.lower(): count for state, count in applications.get(path, {}).items()}
            if states:
                pieces.append(_simple(NAMED_APPLICATIONS._replace(name=NAMED_APPLICATIONS.name.format(name)), states))
            family = NAMED_RESOURCES._replace(name=NAMED_RESOURCES.name.format(name))
            pieces.append(_head(family))
            pieces += [_sample(family.name, labels, value) for labels, value in samples]
        yield b"".join(pieces)


def _queue_resources(
    path: str, queues: Sequence[tuple[Partition, Queue]], historic_types: HistoricTypes
) -> Iterator[tuple[Labels, int]]:
    states: dict[str, dict[str, int]] = {
        name: {} for name in ("guaranteed", "max", "allocated", "pending", "preempting")
    }
    most = 0
    for partition, queue in queues:
        # Root's max is the cluster, plus the configured amounts of types that are on no node.
        capacity = partition.types.quantities(partition.capacity) if queue.parent is None else {}
        _add(states["guaranteed"], queue.by_name(queue.guaranteed) or {})
        _add(states["max"], capacity | (queue.by_name(queue.maximum) or {}))
        _add(states["allocated"], partition.types.quantities(queue.allocated))
        _add(states["pending"], partition.types.quantities(queue.pending))
        _add(states["preempting"], partition.types.quantities(queue.preempting))
        most += queue.max_applications
    used = historic_types.union(path, "used", states["allocated"] | states["pending"] | states["preempting"])
    for state, quantities in states.items():
        # (A used type has a series for each kind of use, so that a graph begins with 0.)
        shown = used if state in _USED else historic_types.union(path, state, quantities)
        for resource in shown:
            yield (("state", state), ("resource", resource)), quantities.get(resource, 0)
    yield (("state", "maxRunningApps"), ("resource", "apps")), most


def _of_events(rms: Sequence[RmSample]) -> Pieces:
    created = sum(rm.state.info.next_event_id for rm in rms)
    for family in (EVENTS_CREATED, EVENTS_CHANNELED, EVENTS_PROCESSED):
        yield _head(family) + _sample(family.name, (), created)
    yield _head(EVENTS_NOT_CHANNELED) + _sample(EVENTS_NOT_CHANNELED.name, (), 0)


def _of_process() -> Pieces:
    figures = process_figures()
    yield _simple(
        RUNTIME,
        {
            "Sys": figures.memory_bytes,
            "HeapObjects": sys.getallocatedblocks(),
            "NumGC": figures.garbage_collections,
        },
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def metric_name(name: str) -> str:
    """A queue's path or a resource type as part of a metric's name, in the core's form."""
    cleaned = _NO_LETTER.sub("_", name)
    return f"_{cleaned}" if cleaned[:1].isdigit() else cleaned


def _simple(family: MetricDefinition, values: Mapping[str, int]) -> bytes:
    """A family with one label."""
    (label,) = family.labels
    return _head(family) + b"".join(_sample(family.name, ((label, value),), count) for value, count in values.items())


def _head(family: MetricDefinition) -> bytes:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.type}\n".encode()


def _sample(name: str, labels: Labels, value: int) -> bytes:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value}\n".encode() if inside else f"{name} {value}\n".encode()


def _histogram(name: str, labels: str, spread: Sequence[int], seconds: float) -> bytes:
    """One series of a histogram: the count between each limit and the one before; the count beyond the last limit ends
    it.
    """
    before, around = f"{labels}," if labels else "", f"{{{labels}}}" if labels else ""
    sums = list(accumulate(spread))
    buckets = "".join(
        f'{name}_bucket{{{before}le="{limit}"}} {count}\n'
        for limit, count in zip((*_LIMITS_S, "+Inf"), sums, strict=True)
    )
    return f"{buckets}{name}_sum{around} {seconds:.6f}\n{name}_count{around} {sums[-1]}\n".encode()


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0) + value


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    some: list[str] = []
    for name in names:
        some.append(name)
        if len(some) == _QUEUES_PER_PIECE:
            yield some
            some = []
    if some:
        yield some
