"""Plays a workload: the resource manager of a simulation, in virtual time.

The core is the scheduler's own, and it gets what a resource manager would send: nodes, applications, asks, releases.
Time is the next moment at which something happens, so a week takes as long as its decisions do.

One turn, at one moment:

1. tasks whose run time is over are released; if the resource manager restarts, it registers anew;
2. tasks that arrive are asked for, their application first if there is none;
3. the core decides until nothing more fits;
4. each outcome is heard: a start, a preemption (confirmed at once; the task is asked for again), a placeholder that is
   released (confirmed at once), a rejection.

The next moment is the earliest end, arrival, restart or deadline of the core.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetEvents,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import (
    NewAllocation,
    Outcome,
    RejectedApplication,
    RejectedAsk,
    ReleasedAllocation,
    ReleasedAsk,
    UpdatedApplication,
)
from muster_core.scheduler import SchedulerCore

from muster_whatif.scenario import Scenario
from muster_whatif.workload import NS_PER_S, BareApplication, Workload, WorkloadTask, total

# Far from 0, which the core takes for "never".
BEGIN_NS = 1_000_000_000 * NS_PER_S
_BUDGET = 10_000  # allocations in one cycle
_NODES_AT_ONCE = 1_000
# New objects until a young collection; young ones until a middle one; middle ones until a full one.
_YOUNG, _MIDDLE, _FULL = 50_000, 20, 1_000
# The states in which an application takes no more asks.
_OVER = frozenset({"Completed", "Failed", "Expired", "Rejected"})
_RELEASED_BY_SCHEDULER = frozenset(
    {Termination.PREEMPTED_BY_SCHEDULER, Termination.TIMEOUT, Termination.PLACEHOLDER_REPLACED}
)


@dataclass(slots=True)
class TaskOutcome:
    """What became of a task. Times are seconds from the beginning; None: it did not happen.

    :ivar started_s: of the run that ended, or runs at the end.
    :ivar first_started_s: of the first run; a preempted task has several.
    """

    task: WorkloadTask
    first_started_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    node: str = ""
    preempted: int = 0
    rejected: str = ""


@dataclass(slots=True)
class SimulationResult:
    """A workload that was played.

    :ivar until_s: the last moment.
    :ivar decisions: allocations that the core made.
    :ivar used: (moment, quantities in use from then on) at each change.
    """

    scenario: Scenario
    lives: dict[str, TaskOutcome]
    capacity: dict[str, int]
    until_s: float = 0.0
    decisions: int = 0
    used: list[tuple[float, dict[str, int]]] = field(default_factory=list)


def play(
    workload: Workload,
    scenario: Scenario,
    *,
    until_s: float | None = None,
    tick_s: float = 0.0,
    progress: Callable[[int], None] = lambda _: None,
    look_at_s: Sequence[float] = (),
    look: Callable[[SchedulerCore, int], None] = lambda *_: None,
) -> SimulationResult:
    """Plays the workload to its end.

    :param until_s: the last moment; None: when all tasks have ended, or nothing can start any more.
    :param tick_s: what happens within one tick is handled together, at the tick's end. 0: each moment for itself.
    :param progress: called with the number of tasks that have ended or were refused.
    :param look: called with the core and its time at the first turn at or after each of these moments.

    Raises InvalidScenario.
    """
    with _collecting_rarely():
        return _Simulation(workload, scenario, tick_s, progress, sorted(look_at_s), look).run(until_s)


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Holds full garbage collections back: each walks all tasks, and a play leaves few circles."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Simulation:
    """One play. Used once."""

    def __init__(
        self,
        workload: Workload,
        scenario: Scenario,
        tick_s: float,
        progress: Callable[[int], None],
        look_at_s: Sequence[float] = (),
        look: Callable[[SchedulerCore, int], None] = lambda *_: None,
    ) -> None:
        self._look_at_s, self._look = deque(look_at_s), look
        self._tick_ns = round(tick_s * NS_PER_S)
        self._cluster = scenario.cluster()
        self._core = SchedulerCore(self._cluster)
        self._partition = next(iter(self._core.partitions))
        self._machines = scenario.machines(workload)
        self._progress = progress
        self._played = SimulationResult(
            scenario, {task.name: TaskOutcome(task) for task in workload.tasks}, total(self._machines)
        )
        self._gangs = {gang.application_id: gang for gang in workload.gangs}
        self._bare = deque(workload.bare)
        self._restarts_ns = deque(BEGIN_NS + round(restart_s * NS_PER_S) for restart_s in sorted(workload.restarts_s))
        self._arrivals = iter(workload.tasks)
        self._next: WorkloadTask | None = next(self._arrivals, None)
        self._ends: list[tuple[int, int, str, int]] = []  # (moment, order, task, which run)
        self._order = 0
        self._runs: dict[str, int] = {}  # task → number of its runs
        self._apps: dict[str, WorkloadTask] = {}  # those that take asks, with their first task
        self._waiting: dict[str, None] = {}  # asked for, and neither started nor refused
        self._running: dict[str, None] = {}  # in the order of their starts
        self._again: list[str] = []  # preempted tasks, and those whose application has completed meanwhile
        self._using: dict[str, int] = {}
        self._over = 0

    def run(self, until_s: float | None) -> SimulationResult:
        now_ns = BEGIN_NS
        last_ns = None if until_s is None else BEGIN_NS + round(until_s * NS_PER_S)
        self._begin(now_ns)
        while True:
            # 1. to 4. of the module's docstring
            before = self._played.decisions
            changed = self._end_due(now_ns)
            while self._restarts_ns and self._restarts_ns[0] <= now_ns:
                self._restarts_ns.popleft()
                self._restart(now_ns)
            changed |= self._arrive(now_ns)
            self._decide(now_ns)
            if changed or self._played.decisions != before:
                self._note_use(now_ns)
            self._played.until_s = _seconds(now_ns)
            while self._look_at_s and self._look_at_s[0] <= self._played.until_s:
                self._look_at_s.popleft()
                self._look(self._core, now_ns)
            following_ns = self._following_ns()
            if following_ns is None or (last_ns is not None and following_ns > last_ns):
                break
            now_ns = max(following_ns, now_ns)
        self._progress(self._over)
        return self._played

    # ---- what the resource manager sends -----------------------------------------------------------------------------

    def _begin(self, now_ns: int) -> None:
        self._apply_outcome(self._core.start(now_ns), now_ns)
        self._apply_outcome(self._core.apply(SetEvents(tracking=False, requests=False), now_ns), now_ns)
        for first in range(0, len(self._machines), _NODES_AT_ONCE):
            nodes = tuple(
                NodeItem(machine.name, NodeAction.CREATE, dict(machine.attributes), capacity=machine.quantities)
                for machine in self._machines[first : first + _NODES_AT_ONCE]
            )
            self._apply_outcome(self._core.apply(UpdateNodes(nodes), now_ns), now_ns)

    def _end_due(self, now_ns: int) -> bool:
        releases = []
        while self._ends and self._ends[0][0] <= now_ns:
            _, _, name, run = heapq.heappop(self._ends)
            life = self._played.lives[name]
            if run != self._runs[name] or life.started_s is None or life.ended_s is not None:
                continue  # it was preempted meanwhile
            life.ended_s = _seconds(now_ns)
            self._use(life.task, -1)
            self._running.pop(name, None)
            self._finish()
            task = life.task
            releases.append(self._release(task, Termination.STOPPED_BY_RM))
        if releases:
            self._apply_outcome(self._core.apply(UpdateAllocations((), releases), now_ns), now_ns)
        return bool(releases)

    def _arrive(self, now_ns: int) -> bool:
        tasks = [self._played.lives[name].task for name in self._again]
        self._again.clear()
        while self._next is not None and BEGIN_NS + round(self._next.arrives_s * NS_PER_S) <= now_ns:
            tasks.append(self._next)
            self._next = next(self._arrivals, None)
        bare = []
        while self._bare and BEGIN_NS + round(self._bare[0].arrives_s * NS_PER_S) <= now_ns:
            bare.append(self._bare.popleft())
        if bare:
            items = tuple(self._application(app) for app in bare)
            self._apply_outcome(self._core.apply(UpdateApplications(items), now_ns), now_ns)
        if not tasks:
            return False
        new: dict[str, WorkloadTask] = {}
        for task in tasks:
            if task.application_id not in self._apps:
                new.setdefault(task.application_id, task)
        if new:
            self._apps.update(new)
            items = tuple(self._application(task) for task in new.values())
            self._apply_outcome(self._core.apply(UpdateApplications(items), now_ns), now_ns)
        tasks = [task for task in tasks if not self._played.lives[task.name].rejected]
        self._waiting.update(dict.fromkeys(task.name for task in tasks))
        self._apply_outcome(self._core.apply(UpdateAllocations([self._ask(task) for task in tasks]), now_ns), now_ns)
        return True

    def _restart(self, now_ns: int) -> None:
        """The resource manager registers anew, and reports what it has."""
        self._core = SchedulerCore(self._cluster)
        self._begin(now_ns)
        lives = self._played.lives
        used = {lives[name].task.application_id for name in (*self._running, *self._waiting)}
        self._apps = {app_id: task for app_id, task in self._apps.items() if app_id in used}
        items = tuple(self._application(task) for task in self._apps.values())
        self._apply_outcome(self._core.apply(UpdateApplications(items), now_ns), now_ns)
        allocations = [self._ask(lives[name].task, lives[name].node) for name in self._running]
        self._apply_outcome(self._core.apply(UpdateAllocations(allocations), now_ns), now_ns)
        asks = [self._ask(lives[name].task) for name in self._waiting]
        self._apply_outcome(self._core.apply(UpdateAllocations(asks), now_ns), now_ns)

    def _application(self, task: WorkloadTask | BareApplication) -> AppItem:
        gang = self._gangs.get(task.application_id)
        named = (task.application_id, task.queue, self._partition, task.user, (task.user,))
        if gang is None:
            return AppItem(*named)
        return AppItem(
            *named,
            placeholder_ask=gang.quantities,
            gang_style=gang.style,
            execution_timeout_ms=round(gang.timeout_s * 1_000),
        )

    def _ask(self, task: WorkloadTask, node: str = "") -> AskItem:
        """Returns an ask; with a node, the task's running allocation."""
        return AskItem(
            self._key_of_run(task.name) if node else self._key(task),
            task.application_id,
            self._partition,
            task.quantities,
            priority=task.priority,
            node_id=node,
            task_group=task.task_group,
            placeholder=task.placeholder,
            allow_preempt_other=True,
            allow_preempt_self=True,
            has_preemption_policy=True,
            execution_timeout_ms=ceil(task.declares_s * 1000),
        )

    def _key(self, task: WorkloadTask) -> str:
        """A task that runs again is another pod, with a name of its own."""
        runs = self._runs.get(task.name, 0)
        return f"{task.name}#{runs}" if runs else task.name

    def _release(self, task: WorkloadTask, termination: Termination) -> ReleaseItem:
        return ReleaseItem(self._partition, task.application_id, self._key_of_run(task.name), termination)

    def _key_of_run(self, name: str) -> str:
        runs = self._runs[name] - 1
        return f"{name}#{runs}" if runs else name

    # ---- decisions and what is heard of them -------------------------------------------------------------------------

    def _decide(self, now_ns: int) -> None:
        while True:
            has_confirmed = self._apply_outcome(self._core.cycle(now_ns, _BUDGET), now_ns)
            if self._again:
                self._arrive(now_ns)
            elif self._core.exhausted and not has_confirmed:
                return

    def _apply_outcome(self, out: Outcome, now_ns: int) -> bool:
        """Takes an outcome. Returns whether releases were confirmed: they have made room."""
        confirmed: list[ReleaseItem] = []
        for fact in out.facts:
            match fact:
                case NewAllocation(adopted=False):
                    self._started(fact, now_ns)
                case ReleasedAllocation() if fact.termination in _RELEASED_BY_SCHEDULER and not fact.reminder:
                    confirmed.append(self._released(fact, now_ns))
                case ReleasedAsk():
                    self._refused(fact.key, fact.message or "withdrawn by the scheduler")
                case RejectedAsk():
                    self._refused(fact.key, fact.reason)
                case RejectedApplication():
                    self._refused_application(fact.app_id, fact.reason)
                case UpdatedApplication() if fact.state in _OVER:
                    self._apps.pop(fact.app_id, None)
        if confirmed:
            self._apply_outcome(self._core.apply(UpdateAllocations((), confirmed), now_ns), now_ns)
        return bool(confirmed)

    def _started(self, fact: NewAllocation, now_ns: int) -> None:
        name = _task_name(fact.allocation.key)
        life, seconds = self._played.lives[name], _seconds(now_ns)
        self._played.decisions += 1
        self._runs[name] = run = self._runs.get(name, 0) + 1
        life.started_s, life.node = seconds, fact.allocation.node_id
        if life.first_started_s is None:
            life.first_started_s = seconds
        self._use(life.task, 1)
        self._waiting.pop(name, None)
        self._running[name] = None
        if life.task.placeholder:
            return  # the scheduler ends it
        self._order += 1
        heapq.heappush(self._ends, (now_ns + round(life.task.runs_s * NS_PER_S), self._order, name, run))

    def _released(self, fact: ReleasedAllocation, now_ns: int) -> ReleaseItem:
        name = _task_name(fact.key)
        life = self._played.lives[name]
        item = ReleaseItem(self._partition, fact.app_id, fact.key, fact.termination)
        if life.started_s is not None and life.ended_s is None:
            self._use(life.task, -1)
            self._running.pop(name, None)
            if life.task.placeholder:
                life.ended_s = _seconds(now_ns)
                self._finish()
                return item
            life.started_s, life.preempted = None, life.preempted + 1
            self._again.append(name)
        return item

    def _refused(self, key: str, reason: str) -> None:
        life = self._played.lives.get(_task_name(key))
        if life is not None and life.started_s is None and not life.rejected:
            life.rejected = reason
            self._waiting.pop(life.task.name, None)
            self._finish()

    def _refused_application(self, app_id: str, reason: str) -> None:
        self._apps.pop(app_id, None)
        for life in self._played.lives.values():
            if life.task.application_id == app_id and life.started_s is None and not life.rejected:
                life.rejected = reason
                self._waiting.pop(life.task.name, None)
                self._finish()

    # ---- time and use ------------------------------------------------------------------------------------------------

    def _following_ns(self) -> int | None:
        """Returns the next moment at which something happens; None: nothing does."""
        moments = []
        if self._ends:
            moments.append(self._ends[0][0])
        if self._next is not None:
            moments.append(BEGIN_NS + round(self._next.arrives_s * NS_PER_S))
        if self._bare:
            moments.append(BEGIN_NS + round(self._bare[0].arrives_s * NS_PER_S))
        if self._restarts_ns and (moments or self._waits()):
            moments.append(self._restarts_ns[0])
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and (moments or self._waits()):
            moments.append(deadline_ns)
        if not moments:
            return None
        first_ns = min(moments)
        return first_ns + -first_ns % self._tick_ns if self._tick_ns else first_ns

    def _waits(self) -> bool:
        """Whether a task could still start: a deadline of the core (a preemption) may help it."""
        return len(self._played.lives) > self._over

    def _use(self, task: WorkloadTask, sign: int) -> None:
        for name, quantity in task.quantities.items():
            self._using[name] = self._using.get(name, 0) + sign * quantity

    def _note_use(self, now_ns: int) -> None:
        moment, used = _seconds(now_ns), self._played.used
        if used and used[-1][0] == moment:
            used.pop()
        used.append((moment, dict(self._using)))

    def _finish(self) -> None:
        self._over += 1
        if self._over % 1_000 == 0:
            self._progress(self._over)


def _task_name(key: str) -> str:
    return key.partition("#")[0]


def _seconds(now_ns: int) -> float:
    return (now_ns - BEGIN_NS) / NS_PER_S


def steps(played: SimulationResult, resource: str) -> Iterator[tuple[float, float, int]]:
    """Returns (from, to, quantity in use) over the play."""
    points = [*played.used, (played.until_s, {})]
    for (begin, used), (end, _) in itertools.pairwise(points):
        yield begin, end, used.get(resource, 0)
