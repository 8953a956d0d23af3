"""What a resource manager sent and heard, as a workload: with gangs, priorities, preemptions and restarts.

A record is a command that the resource manager sent, a fact that it heard, or :class:`RegistrationEntry`. A task
arrives with its first ask and runs from its last start to its release. An ask with the key of another one and ``#n`` is
the same task again, after a preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from muster_core.model.commands import AskItem, NodeAction, UpdateAllocations, UpdateApplications, UpdateNodes
from muster_core.model.outcome import NewAllocation

from muster_whatif.workload import NS_PER_S, BareApplication, Workload, WorkloadGang, WorkloadNode, WorkloadTask


@dataclass(frozen=True, slots=True)
class RegistrationEntry:
    """The resource manager registered."""


Record = tuple[int, object]  # nanoseconds, and the command, fact or registration


@dataclass(frozen=True, slots=True)
class ReplayableWorkload:
    """A workload out of records.

    :ivar starts: task → (seconds, node) of each of its starts.
    :ivar until_s: the last record.
    """

    workload: Workload
    starts: dict[str, list[tuple[float, str]]]
    until_s: float


def read(records: Iterable[Record]) -> ReplayableWorkload:
    """Returns the workload of one resource manager."""
    return _RequestLogReader().read(list(records))


class _RequestLogReader:
    def __init__(self) -> None:
        self._machines: dict[str, WorkloadNode] = {}
        self._apps: dict[str, BareApplication] = {}  # with nanoseconds
        self._gangs: dict[str, WorkloadGang] = {}
        self._asks: dict[str, tuple[int, AskItem]] = {}
        self._starts: dict[str, list[tuple[int, str]]] = {}
        self._ends: dict[str, int] = {}
        self._registered: list[int] = []

    def read(self, records: list[Record]) -> ReplayableWorkload:
        for now_ns, message in records:
            self._apply_message(now_ns, message)
        begin_ns = records[0][0] if records else 0
        until_ns = records[-1][0] if records else 0

        def seconds(moment_ns: int) -> float:
            return (moment_ns - begin_ns) / NS_PER_S

        tasks = [self._task(name, came_ns, item, seconds, until_ns) for name, (came_ns, item) in self._asks.items()]
        tasks.sort(key=lambda task: task.arrives_s)
        asking = {item.app_id for _, item in self._asks.values()}
        bare = [
            replace(app, arrives_s=seconds(int(app.arrives_s)))
            for app_id, app in self._apps.items()
            if app_id not in asking
        ]
        workload = Workload(
            "recorded",
            list(self._machines.values()),
            tasks,
            gangs=list(self._gangs.values()),
            bare=bare,
            restarts_s=[seconds(at_ns) for at_ns in self._registered[1:]],
        )
        starts = {
            name: [(seconds(at_ns), node) for at_ns, node in task_starts] for name, task_starts in self._starts.items()
        }
        return ReplayableWorkload(workload, starts, seconds(until_ns))

    def _apply_message(self, now_ns: int, message: object) -> None:
        match message:
            case RegistrationEntry():
                self._registered.append(now_ns)
            case UpdateNodes():
                for node in message.nodes:
                    if node.action is NodeAction.CREATE and node.node_id not in self._machines:
                        self._machines[node.node_id] = WorkloadNode(node.node_id, dict(node.capacity or {}), "node")
            case UpdateApplications():
                for app in message.new:
                    bare = BareApplication(app.app_id, app.queue, app.user, now_ns)
                    self._apps.setdefault(app.app_id, bare)
                    if app.placeholder_ask:
                        timeout_s = app.execution_timeout_ms / 1_000
                        gang = WorkloadGang(app.app_id, app.placeholder_ask, app.gang_style or "Soft", timeout_s)
                        self._gangs.setdefault(app.app_id, gang)
            case UpdateAllocations():
                for ask in message.asks:
                    if not ask.node_id:
                        self._asks.setdefault(_name(ask.key), (now_ns, ask))
                for release in message.releases:
                    self._ends[_name(release.key)] = now_ns
            case NewAllocation(adopted=False):
                allocation = message.allocation
                self._starts.setdefault(_name(allocation.key), []).append((now_ns, allocation.node_id))

    def _task(
        self, name: str, came_ns: int, item: AskItem, seconds: Callable[[int], float], until_ns: int
    ) -> WorkloadTask:
        app = self._apps[item.app_id]
        started = self._starts.get(name)
        end_ns = self._ends.get(name, until_ns)
        ran_ns = max(end_ns - started[-1][0], 0) if started else until_ns
        return WorkloadTask(
            name,
            item.app_id,
            app.queue,
            app.user,
            item.quantities,
            seconds(came_ns),
            ran_ns / NS_PER_S,
            item.priority,
            item.task_group,
            item.placeholder,
        )


def _name(key: str) -> str:
    return key.partition("#")[0]
