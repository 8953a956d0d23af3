"""Random lives of a cluster with gangs, preemption and restarts, driven without muster_whatif, and recorded.

The scheduler restarts, too: its core is folded from its records. The resource manager answers at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

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
    ReleasedAllocation,
    ReleasedAsk,
    UpdatedApplication,
)
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_state import snapshot
from muster_state.state_folder import RmEntry, RmInfo
from muster_whatif.forecast.forecast import fold_entries
from muster_whatif.workloads.request_log import Record, RegistrationEntry

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_000_000_000 * SECOND_NS
CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, resources: {guaranteed: {vcore: 6}}, properties: {preemption.delay: 5s}}
          - {name: b, properties: {application.sort.policy: fair}}
          - {name: c, resources: {max: {vcore: 8}}}
"""
_OVER = ("Completed", "Failed", "Expired", "Rejected")
_CONFIRMED = (Termination.PREEMPTED_BY_SCHEDULER, Termination.TIMEOUT, Termination.PLACEHOLDER_REPLACED)


@dataclass
class Pod:
    """What the resource manager knows of a pod."""

    item: AskItem
    runs_s: float
    state: str = "new"  # waiting, running, over
    node: str = ""
    runs: int = 0
    started: int = 0  # the order of its start

    @property
    def key(self) -> str:
        return self.item.key


@dataclass
class Life:
    """One life, from a seed.

    :ivar records: what was sent and heard.
    """

    seed: int
    records: list[Record] = field(default_factory=list)
    preemptions: int = 0
    replaced: int = 0
    scheduler_restarts: int = 0
    rm_restarts: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._pods: dict[str, Pod] = {}
        self._order: dict[str, None] = {}  # of arrival at the scheduler, as it stands
        self._apps: dict[str, AppItem] = {}
        self._alive: dict[str, None] = {}
        self._now_ns, self._starts = BEGIN_NS, 0
        self._plan: list[tuple[int, int, str, object]] = []
        self._number = 0
        self._nodes = tuple(
            NodeItem(f"n{number}", NodeAction.CREATE, capacity={"vcore": 1_000 * self._dice.choice((2, 4))})
            for number in range(self._dice.randint(3, 5))
        )
        self._core = self._new_core()

    # ---- the plan of a life ------------------------------------------------------------------------------------------

    def run(self) -> list[Record]:
        """Lives until everything is over, or for two hours."""
        dice = self._dice
        moment_s = 0.0
        for number in range(dice.randint(6, 12)):
            moment_s += dice.expovariate(1 / 20)
            self._at(moment_s, "app", number)
        self._at(dice.uniform(10, 200), "rm restarts", None)
        for _ in range(2):
            self._at(dice.uniform(10, 300), "scheduler restarts", None)
        self._register()
        while True:
            due = sorted(each for each in self._plan if each[0] <= self._now_ns)
            self._plan = [each for each in self._plan if each[0] > self._now_ns]
            # as a resource manager does: what ended first, then a restart, then what is new
            self._end([str(what) for _, _, kind, what in due if kind == "end"])
            for kind, does in (("rm restarts", self._restart), ("scheduler restarts", self._fold)):
                for each in due:
                    if each[2] == kind:
                        does()
            self._submit([int(str(what)) for _, _, kind, what in due if kind == "app"])
            self._decide()
            moments = [each[0] for each in self._plan]
            deadline_ns = self._core.next_deadline_ns()
            if deadline_ns is not None and any(pod.state in ("waiting", "running") for pod in self._pods.values()):
                moments.append(deadline_ns)
            if not moments or min(moments) > BEGIN_NS + 7_200 * SECOND_NS:
                return self.records
            self._now_ns = max(min(moments), self._now_ns)

    def _at(self, seconds: float, kind: str, what: object) -> None:
        self._number += 1
        self._plan.append((BEGIN_NS + round(seconds * SECOND_NS), self._number, kind, what))

    # ---- what the resource manager does ------------------------------------------------------------------------------

    def _submit(self, numbers: list[int]) -> None:
        apps: list[AppItem] = []
        pods: list[Pod] = []
        for number in numbers:
            dice = self._dice
            app_id, queue = f"app-{number}", dice.choice(("root.a", "root.b", "root.b", "root.c"))
            count, cores = dice.randint(1, 5), dice.randint(1, 2)
            is_gang, runs_s = dice.random() < 0.4, dice.uniform(5, 120)
            vcore = {"vcore": 1_000 * cores}
            user = dice.choice(("ann", "bob"))
            app = AppItem(app_id, queue, "default", user, (user,))
            if is_gang:
                app = replace(
                    app,
                    placeholder_ask={"vcore": 1_000 * cores * count},
                    gang_style=dice.choice(("Soft", "Hard")),
                    execution_timeout_ms=dice.choice((0, 60_000)),
                )
                pods += [
                    self._pod(f"{app_id}.p{index}", app_id, vcore, 0.0, task_group="g", placeholder=True)
                    for index in range(count)
                ]
            group = "g" if is_gang else ""
            pods += [
                self._pod(f"{app_id}.t{index}", app_id, vcore, runs_s * dice.uniform(0.5, 1.5), task_group=group)
                for index in range(count)
            ]
            apps.append(app)
            self._apps[app_id] = app
            self._alive[app_id] = None
        if apps:
            self._send(UpdateApplications(tuple(apps)))
            pods = [pod for pod in pods if pod.state == "new"]  # not those of an application that was refused
            if pods:
                self._send_asks(pods)

    def _pod(self, key: str, app_id: str, quantities: dict[str, int], runs_s: float, **more: object) -> Pod:
        item = AskItem(
            key,
            app_id,
            "default",
            quantities,
            priority=self._dice.choice((0, 0, 10)) if "placeholder" not in more else 0,
            allow_preempt_other=True,
            allow_preempt_self=True,
            has_preemption_policy=True,
            **more,  # type: ignore[arg-type]
        )
        self._pods[key] = pod = Pod(item, runs_s)
        return pod

    def _send_asks(self, pods: list[Pod]) -> None:
        for pod in pods:
            pod.state = "waiting"
            self._order.pop(pod.key, None)  # (it waits anew, behind the others)
            self._order[pod.key] = None
        self._send(UpdateAllocations([self._named(pod) for pod in pods]))

    def _named(self, pod: Pod) -> AskItem:
        return replace(pod.item, key=f"{pod.key}#{pod.runs}") if pod.runs else pod.item

    def _end(self, keys: list[str]) -> None:
        releases = []
        for what in keys:
            key, _, run = what.partition("@")
            pod = self._pods[key]
            if pod.state == "running" and pod.runs == int(run):
                pod.state = "over"
                releases.append(self._release(pod, Termination.STOPPED_BY_RM))
        if releases:
            self._send(UpdateAllocations((), releases))

    def _release(self, pod: Pod, termination: Termination) -> ReleaseItem:
        run = pod.runs - 1
        return ReleaseItem("default", pod.item.app_id, f"{pod.key}#{run}" if run else pod.key, termination)

    def _restart(self) -> None:
        """The resource manager registers anew."""
        self.rm_restarts += 1
        self._core = self._new_core()
        self._register()
        running = sorted((pod for pod in self._pods.values() if pod.state == "running"), key=lambda pod: pod.started)
        waiting = [self._pods[key] for key in self._order if self._pods[key].state == "waiting"]
        used = {pod.item.app_id for pod in (*running, *waiting)}
        self._alive = {app_id: None for app_id in self._alive if app_id in used}
        self._send(UpdateApplications(tuple(self._apps[app_id] for app_id in self._alive)))
        held = [replace(pod.item, key=self._release(pod, Termination.UNKNOWN).key, node_id=pod.node) for pod in running]
        self._send(UpdateAllocations(held))
        self._send(UpdateAllocations([self._named(pod) for pod in waiting]))

    def _fold(self) -> None:
        """The scheduler restarts: nothing may differ."""
        self.scheduler_restarts += 1
        info = RmInfo("rm", config=CONFIG, life="RUNNING", registered_ns=BEGIN_NS, registrations=1)
        info.last_decided_ns = self._now_ns
        info.extra_config = {}
        self._core = fold_entries(list(snapshot.entries(RmEntry(info, self._core))), self._now_ns).core
        self._core.apply(SetEvents(tracking=False, requests=False), self._now_ns)

    def _register(self) -> None:
        self.records.append((self._now_ns, RegistrationEntry()))
        self._hear(self._core.start(self._now_ns))
        self._hear(self._core.apply(SetEvents(tracking=False, requests=False), self._now_ns))
        self._send(UpdateNodes(self._nodes))

    # ---- both ways ---------------------------------------------------------------------------------------------------

    def _new_core(self) -> SchedulerCore:
        config, _ = load_queue_config(CONFIG)
        assert config is not None
        return SchedulerCore(config)

    def _send(self, command: UpdateNodes | UpdateApplications | UpdateAllocations) -> None:
        self.records.append((self._now_ns, command))
        self._hear(self._core.apply(command, self._now_ns))

    def _decide(self) -> None:
        while True:
            out = self._core.cycle(self._now_ns, 100)
            done, again = self._core.exhausted, self._hear(out)
            if done and not again:
                return

    def _hear(self, out: Outcome) -> bool:
        confirmed: list[ReleaseItem] = []
        again: list[Pod] = []
        for fact in out.facts:
            self.records.append((self._now_ns, fact))
            match fact:
                case NewAllocation(adopted=False):
                    pod = self._pods[fact.allocation.key.partition("#")[0]]
                    pod.state, pod.node, pod.runs = "running", fact.allocation.node_id, pod.runs + 1
                    self._starts += 1
                    pod.started = self._starts
                    if not pod.item.placeholder:
                        self._number += 1
                        end_ns = self._now_ns + round(pod.runs_s * SECOND_NS)
                        self._plan.append((end_ns, self._number, "end", f"{pod.key}@{pod.runs}"))
                case ReleasedAllocation() if fact.termination in _CONFIRMED and not fact.reminder:
                    pod = self._pods[fact.key.partition("#")[0]]
                    confirmed.append(ReleaseItem("default", fact.app_id, fact.key, fact.termination))
                    pod.state = "over"
                    self.preemptions += fact.termination is Termination.PREEMPTED_BY_SCHEDULER
                    self.replaced += fact.termination is Termination.PLACEHOLDER_REPLACED
                    if not pod.item.placeholder:
                        again.append(pod)
                case RejectedApplication():
                    self._alive.pop(fact.app_id, None)
                    for pod in self._pods.values():
                        if pod.item.app_id == fact.app_id:
                            pod.state = "over"
                case ReleasedAsk():
                    self._pods[fact.key.partition("#")[0]].state = "over"
                case UpdatedApplication() if fact.state in _OVER:
                    self._alive.pop(fact.app_id, None)
        if confirmed:
            self._send(UpdateAllocations((), confirmed))
        if again:
            self._send_asks(again)
        return bool(confirmed)
