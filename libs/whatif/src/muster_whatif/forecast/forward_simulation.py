"""Runs a core forward from its present state: a resource manager that asks for what it is given.

Allocations end after the lengths that a forecast has drawn for them. What the scheduler preempts is confirmed at once
and asked for again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator

from muster_core.allocation.backfill import in_force_ms
from muster_core.model.application import Allocation
from muster_core.model.commands import (
    AppItem,
    AskItem,
    ReleaseItem,
    SetEvents,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.demand import Demand
from muster_core.model.outcome import NewAllocation, Outcome, ReleasedAllocation
from muster_core.scheduler import SchedulerCore
from muster_si.constants import CREATION_TIME

from muster_whatif.forecast.run_time_model import PastAsk, RunTimeKey
from muster_whatif.workload import NS_PER_S

_BUDGET = 10_000  # allocations in one cycle
_TURNS_BETWEEN = 64  # between two looks at the clock
# What happens within 1/200 of the time since the run's begin is handled together: a day has then few more turns than an
# hour, and no start is wrong by more than that part of its time.
_TOGETHER = 200
_CONFIRMED = frozenset({Termination.PREEMPTED_BY_SCHEDULER, Termination.TIMEOUT, Termination.PLACEHOLDER_REPLACED})

# Partition, application, allocation key.
AskName = tuple[str, str, str]
# Key, declared milliseconds (0: none), seconds that it has run, application → the length; None: not known.
Draw = Callable[[RunTimeKey, int, float, str], float | None]


def pending(core: SchedulerCore) -> list[AskName]:
    """Returns the asks that wait."""
    return [
        (partition.name, app.app_id, ask.key)
        for partition in core.partitions.values()
        for app in partition.apps.values()
        for ask in app.asks.values()
        if ask.pending > 0
    ]


def key_of(allocation: Allocation, demand: Demand) -> RunTimeKey:
    """Returns the key under which an allocation's length is known."""
    assert allocation.app is not None
    return RunTimeKey(allocation.app.queue.path, allocation.app.user, demand.task_group)


class ForwardSimulation:
    """One run. Used once.

    :param comers: asks that are still to come, in their order.
    :param goes_on: whether there is time for a further turn; asked now and then.
    :ivar started_ns: of the asks that started, the time of their first allocation.
    """

    def __init__(
        self,
        core: SchedulerCore,
        draw: Draw,
        now_ns: int,
        comers: Iterator[PastAsk] | None = None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._comers, self._goes_on = comers if comers is not None else iter(()), goes_on
        self._next: PastAsk | None = next(self._comers, None)
        self._comer = 0
        self._core, self._draw, self._now_ns = core, draw, now_ns
        self._ends: list[tuple[int, int, str, str, str]] = []  # (moment, order, partition, application, unique key)
        self._runs: dict[tuple[str, str, str], int] = {}  # allocation → order of its end
        self._order = self._again = 0
        self.started_ns: dict[AskName, int] = {}

    def run(self, ask_names: Collection[AskName], until_ns: int) -> dict[AskName, int]:
        """Runs until all of these asks have started, or the time is over. Returns ``started_ns``."""
        core, now_ns, remaining = self._core, self._now_ns, set(ask_names)  # (now_ns stays the begin)
        core.apply(SetEvents(tracking=False, requests=False), now_ns)
        # 1. what runs, and what the scheduler has released already
        confirmed = []
        for partition in core.partitions.values():
            for app in partition.apps.values():
                for allocation in app.allocations.values():
                    self._will_end(
                        partition.name, allocation, allocation.demand, (now_ns - allocation.allocated_ns) / NS_PER_S
                    )
                    if allocation.releasing and not allocation.source:
                        confirmed.append(_release(partition.name, allocation, Termination.STOPPED_BY_RM))
        if confirmed:
            self._apply_outcome(core.apply(UpdateAllocations((), confirmed), now_ns), remaining)
        # 2. one moment after the other
        turns = 0
        while remaining and (turns % _TURNS_BETWEEN or self._goes_on()):
            turns += 1
            self._end_due(remaining)
            self._arrive(remaining)
            while True:
                confirmed_some = self._apply_outcome(core.cycle(self._now_ns, _BUDGET), remaining)
                if core.exhausted and not confirmed_some:
                    break
            following = (
                self._ends[0][0] if self._ends else None,
                self._next.came_ns if self._next is not None else None,
                core.next_deadline_ns(),
            )
            moments = [moment_ns for moment_ns in following if moment_ns]
            if not moments or min(moments) > until_ns:
                break
            self._now_ns = max(min(moments), self._now_ns + (self._now_ns - now_ns) // _TOGETHER)
        return self.started_ns

    def _will_end(self, partition: str, allocation: Allocation, demand: Demand, elapsed_s: float = 0.0) -> None:
        if allocation.app is None or allocation.source:
            return  # another manager's
        length_s = self._draw(key_of(allocation, demand), in_force_ms(allocation), elapsed_s, allocation.app.app_id)
        if length_s is None:
            return  # nobody knows it: it holds its room
        self._order += 1
        name = (partition, allocation.app.app_id, allocation.unique_key)
        self._runs[name] = self._order
        remaining_ns = round(max(length_s - elapsed_s, 0.0) * NS_PER_S)
        heapq.heappush(self._ends, (self._now_ns + remaining_ns, self._order, *name))

    def _end_due(self, remaining: set[AskName]) -> None:
        releases = []
        while self._ends and self._ends[0][0] <= self._now_ns:
            _, order, *name = heapq.heappop(self._ends)
            partition, app_id, unique = name
            if self._runs.pop((partition, app_id, unique), None) != order:
                continue
            app = self._core.partitions[partition].apps.get(app_id)
            allocation = app.allocations.get(unique) if app is not None else None
            if allocation is not None:
                releases.append(_release(partition, allocation, Termination.STOPPED_BY_RM))
        if releases:
            self._apply_outcome(self._core.apply(UpdateAllocations((), releases), self._now_ns), remaining)

    def _arrive(self, remaining: set[AskName]) -> None:
        apps: dict[str, AppItem] = {}
        asks = []
        partition = next(iter(self._core.partitions))
        while self._next is not None and self._next.came_ns <= self._now_ns:
            came, self._next = self._next, next(self._comers, None)
            self._comer += 1
            if came.application_id not in self._core.partitions[partition].apps:
                apps[came.application_id] = AppItem(
                    came.application_id, came.key.queue, partition, came.key.user, (came.key.user,)
                )
            asks.append(
                AskItem(
                    f"comer-{self._comer}",
                    came.application_id,
                    partition,
                    dict(came.quantities),
                    priority=came.priority,
                    task_group=came.key.task_group,
                    allow_preempt_self=came.may_be_preempted,
                    allow_preempt_other=came.preempts,
                    has_preemption_policy=True,
                )
            )
        if apps:
            self._apply_outcome(self._core.apply(UpdateApplications(tuple(apps.values())), self._now_ns), remaining)
        if asks:
            self._apply_outcome(self._core.apply(UpdateAllocations(asks), self._now_ns), remaining)

    def _apply_outcome(self, out: Outcome, remaining: set[AskName]) -> bool:
        """Takes an outcome, and confirms its releases. Returns whether there were any: they have made room."""
        confirmed_some = False
        while True:
            confirmed, again = [], []
            for fact in out.facts:
                if isinstance(fact, NewAllocation):
                    allocation = fact.allocation
                    name = (fact.partition, allocation.app_id, allocation.key)
                    if name in remaining:
                        remaining.discard(name)
                        self.started_ns[name] = self._now_ns
                    self._will_end(fact.partition, allocation, fact.demand)
                elif isinstance(fact, ReleasedAllocation) and fact.termination in _CONFIRMED and not fact.reminder:
                    confirmed.append(ReleaseItem(fact.partition, fact.app_id, fact.key, fact.termination, fact.uuid))
                    if fact.termination is Termination.PREEMPTED_BY_SCHEDULER:
                        again += self._asked_again(fact)
            if not confirmed:
                return confirmed_some
            confirmed_some = True
            out = self._core.apply(UpdateAllocations(again, confirmed), self._now_ns)

    def _asked_again(self, fact: ReleasedAllocation) -> list[AskItem]:
        app = self._core.partitions[fact.partition].apps.get(fact.app_id)
        allocations = app.allocations_of(fact.key) if app is not None else []
        if not allocations or allocations[0].demand.placeholder:
            return []
        demand = allocations[0].demand
        self._again += 1
        return [
            AskItem(
                f"{fact.key}+{self._again}",
                fact.app_id,
                fact.partition,
                dict(demand.shape.quantities),
                priority=demand.priority,
                tags={name: text for name, text in demand.tags.items() if name != CREATION_TIME},
                task_group=demand.task_group,
                allow_preempt_self=demand.allow_preempt_self,
                allow_preempt_other=demand.allow_preempt_other,
                has_preemption_policy=demand.has_preemption_policy,
                execution_timeout_ms=demand.execution_timeout_ms,
            )
        ]


def _release(partition: str, allocation: Allocation, termination: Termination) -> ReleaseItem:
    return ReleaseItem(partition, allocation.app_id, allocation.key, termination, allocation.uuid)
