"""What really happened, as a workload: nodes, and for each ask when it came and how long its allocation ran.

What the history cannot know is assumed, and said:

| a task that | runs for |
|---|---|
| ended | as long as it ran |
| still runs | to the history's end, whenever it starts |
| never ran | half of the ended ones of its queue, or of all queues, or to the history's end |

Asks that were withdrawn before they ran are left out. Nodes are there from the beginning, with their last capacity.
Events name no priority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from muster_whatif.workload import NS_PER_S, Workload, WorkloadNode, WorkloadTask

from muster_cli.errors import CommandError
from muster_cli.history.duckdb_store import HistoryDatabase

_NODES = """
    SELECT object_id, arg_max(resource, id) FROM events
    WHERE type = 'NODE' AND resource IS NOT NULL
        AND (change_type = 'ADD' AND change_detail = 'DETAILS_NONE' OR change_detail = 'NODE_CAPACITY')
    GROUP BY object_id ORDER BY min(id)
"""
_ASKS = """
    SELECT object_id, reference_id, min(timestamp_ns), arg_max(resource, id) FROM events
    WHERE type = 'APP' AND change_type = 'ADD' AND change_detail = 'APP_REQUEST'
    GROUP BY object_id, reference_id ORDER BY min(id)
"""
_WITHDRAWN = """
    SELECT object_id, reference_id FROM events
    WHERE type = 'APP' AND change_type = 'REMOVE'
        AND change_detail IN ('REQUEST_CANCEL', 'REQUEST_TIMEOUT', 'APP_REQUEST')
"""
# Runs of one ask that follow each other are one: the RM changed its size, or it took its placeholder's place.
_RUNS = """
    SELECT application, allocation_key, epoch_ns(min(begin_time)), sum(seconds), bool_or(end_time IS NULL)
    FROM allocations WHERE begin_time IS NOT NULL AND coalesce(ended, '') <> 'preempted'
    GROUP BY application, allocation_key
"""
_APPLICATIONS = (
    "SELECT application, arg_max(queue, life), arg_max(user_name, life) FROM applications GROUP BY application"
)


_BEYOND_S = 1.0  # what still runs gives no room at the history's last moment


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A workload out of the history.

    :ivar started_s: task → seconds from the beginning to its first real start.
    :ivar until_s: the history's end.
    """

    workload: Workload
    started_s: Mapping[str, float]
    until_s: float


def read(history: HistoryDatabase) -> RecordedWorkload:
    """Returns what a history of one RM holds. Raises CommandError."""
    ask = history.connection.execute
    rms = {span.rm for span in history.spans}
    if len(rms) != 1:
        raise CommandError(f"the history has {len(rms)} RMs ({', '.join(sorted(rms))}): name one with --rm")
    asks = ask(_ASKS).fetchall()
    nodes = ask(_NODES).fetchall()
    if not asks or not nodes:
        raise CommandError("the history has no asks or no nodes: there is nothing to play")
    newest_ns = max(span.newest_ns for span in history.spans)
    runs = {(app, key): (begin_ns, seconds, runs_on) for app, key, begin_ns, seconds, runs_on in ask(_RUNS).fetchall()}
    withdrawn = {(app, key) for app, key in ask(_WITHDRAWN).fetchall()} - set(runs)
    places = {app: (queue or "root.default", user or "nobody") for app, queue, user in ask(_APPLICATIONS).fetchall()}
    begin_ns = min(asked_ns for _, _, asked_ns, _ in asks)
    lasted = _MeanRunTimes(runs, places)
    tasks, started_s, counts = [], {}, dict.fromkeys(("run on", "never ran"), 0)
    for app, key, asked_ns, resource in asks:
        if (app, key) in withdrawn:
            continue
        queue, user = places.get(app, ("root.default", "nobody"))
        name, run = f"{app}/{key}", runs.get((app, key))
        to_the_end_s = (newest_ns - asked_ns) / NS_PER_S + _BEYOND_S
        if run is None:
            counts["never ran"] += 1
            runs_s = lasted.of(queue) or to_the_end_s
        else:
            started_ns, seconds, runs_on = run
            started_s[name] = (started_ns - begin_ns) / NS_PER_S
            counts["run on"] += runs_on
            runs_s = to_the_end_s if runs_on else float(seconds)
        tasks.append(
            WorkloadTask(name, app, queue, user, _quantities(resource), (asked_ns - begin_ns) / NS_PER_S, runs_s)
        )
    tasks.sort(key=lambda task: task.arrives_s)
    (rm,) = rms
    facts = _facts(tasks, nodes, counts, len(withdrawn))
    machines = [WorkloadNode(name, _quantities(resource), "node") for name, resource in nodes]
    workload = Workload(f"history of {rm}", _by_kind(machines), tasks, "", facts)
    return RecordedWorkload(workload, started_s, (newest_ns - begin_ns) / NS_PER_S)


class _MeanRunTimes:
    """How long ended allocations ran."""

    def __init__(
        self, runs: Mapping[tuple[str, str], tuple[int, float | None, bool]], places: Mapping[str, tuple[str, str]]
    ) -> None:
        times: dict[str, list[float]] = defaultdict(list)
        for (app, _), (_, seconds, runs_on) in runs.items():
            if not runs_on and seconds is not None:
                times[places.get(app, ("root.default", ""))[0]].append(float(seconds))
        self._of = {queue: median(run_times_s) for queue, run_times_s in times.items()}
        every = [run_time_s for run_times_s in times.values() for run_time_s in run_times_s]
        self._of_all = median(every) if every else 0.0

    def of(self, queue: str) -> float:
        """Returns half of the ended ones' time in seconds; 0: nothing has ended."""
        return self._of.get(queue, self._of_all)


def _by_kind(machines: Sequence[WorkloadNode]) -> list[WorkloadNode]:
    """Names machines of one size alike, the most frequent size first: size-1, size-2."""
    sizes: dict[tuple[tuple[str, int], ...], int] = defaultdict(int)
    for machine in machines:
        sizes[tuple(sorted(machine.quantities.items()))] += 1
    order = {size: f"size-{number}" for number, size in enumerate(sorted(sizes, key=lambda size: -sizes[size]), 1)}
    return [
        WorkloadNode(machine.name, machine.quantities, order[tuple(sorted(machine.quantities.items()))])
        for machine in machines
    ]


def _quantities(resource: Any) -> dict[str, int]:
    return {name: int(quantity) for name, quantity in dict(resource or {}).items()}


def _facts(
    tasks: Sequence[WorkloadTask], nodes: Sequence[object], counts: Mapping[str, int], withdrawn: int
) -> list[str]:
    facts = [f"{len(nodes):,} nodes, all from the beginning, and {len(tasks):,} asks"]
    if counts["run on"]:
        facts.append(f"{counts['run on']:,} still run: to the history's end, where the play ends")
    if counts["never ran"]:
        facts.append(
            f"{counts['never ran']:,} never ran: as long as half of the ended ones of their queue, if there are any"
        )
    if withdrawn:
        facts.append(f"{withdrawn:,} asks that were withdrawn before they ran are left out")
    return facts
