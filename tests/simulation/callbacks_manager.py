"""A random resource manager that wants to be asked: what it says next, and how it answers.

It knows the cluster from the core's own objects (what it says must only be possible, not right), and the questions from
what it was sent. It answers late, twice, in any order, never, with ids that nobody gave; what it refuses changes with
time. Its stream breaks and comes back. At the end it agrees to everything.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster_scheduler.core.commands import (
    Answer,
    Answers,
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetCallbacks,
    SetDeciding,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_scheduler.core.inquiries import CallbackPolicy
from muster_scheduler.core.objects import Allocation, Application, Ask
from muster_scheduler.core.outcome import Fact, PredicatesAsked, PreemptionPredicatesAsked
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.core.states import APP_TERMINAL
from muster_si.constants import REQUIRED_NODE_TAG
from simulation import gangs_worlds, worlds
from simulation.books import SECOND_NS, Document

APPS_MAX, NODES_MAX, ASKS_MAX = 7, 9, 30
ADVANCES = (
    *(0,) * 8,
    1,
    *(SECOND_NS // 4,) * 5,
    *(SECOND_NS,) * 5,
    *(2 * SECOND_NS,) * 3,
    *(5 * SECOND_NS,) * 2,
    *(10 * SECOND_NS,) * 2,
    16 * SECOND_NS,
    31 * SECOND_NS,
)
KINDS = (
    *("ask",) * 18,
    *("app",) * 5,
    *("gang",) * 3,
    *("node",) * 3,
    *("release",) * 6,
    *("confirm",) * 8,
    *("cancel",) * 3,
    *("again",) * 3,
    *("drain",) * 2,
    *("update",) * 2,
    *("adopt",) * 2,
    *("fail",) * 2,
    *("clear",) * 1,
    *("remove",) * 1,
    *("gone",) * 1,
    *("reload",) * 1,
    *("decide",) * 1,
    *("stream",) * 3,
)
_CONFIRMED = {
    "preempted": Termination.PREEMPTED_BY_SCHEDULER,
    "timed_out": Termination.TIMEOUT,
    "replaced": Termination.PLACEHOLDER_REPLACED,
}


@dataclass(slots=True)
class Manners:
    """How the RM of one life is.

    :param refuses: how much of (ask, node) it refuses; ``moods_ns``: after how long it thinks otherwise.
    :param whole_nodes: it refuses nodes for all, not for single asks.
    :param late: in how many steps it answers. ``silent``: how much it never answers.
    """

    predicates: bool
    preemption: bool
    states: bool
    refuses: float
    moods_ns: int
    whole_nodes: bool
    late: int
    silent: float
    breaks: bool
    waits: bool
    timeout_ns: int
    retry_ns: int
    grace_ns: int


def manners(dice: random.Random) -> Manners:
    """Any."""
    return Manners(
        dice.random() < 0.9,
        dice.random() < 0.6,
        dice.random() < 0.5,
        dice.choice([0.0, 0.1, 0.3, 0.3, 0.6, 0.9]),
        dice.choice([3, 10, 30, 1_000]) * SECOND_NS,
        dice.random() < 0.3,
        dice.choice([0, 0, 1, 3, 8]),
        dice.choice([0.0, 0.0, 0.1, 0.4]),
        dice.random() < 0.4,
        dice.random() < 0.3,
        dice.choice([2, 10, 10]) * SECOND_NS,
        dice.choice([3, 10, 10]) * SECOND_NS,
        dice.choice([0, 5, 30]) * SECOND_NS,
    )


class ResourceManager:
    """Makes commands, and answers.

    :ivar offered: the configuration that the last UpdateConfiguration carries.
    :ivar patient: the end: it agrees to all, at once, and its stream is there.
    """

    def __init__(
        self, dice: random.Random, manners: Manners, another: Callable[[], Document], tally: Counter[str]
    ) -> None:
        self._dice = dice
        self.manners = manners
        self._another = another
        self._step = 0
        self._number = 0
        self._due: list[tuple[int, Fact]] = []
        self.offered: Document | None = None
        self.patient = False
        self.tally = tally
        self.policy = CallbackPolicy()
        self._deciding = True
        self._gangs: dict[str, dict[str, tuple[dict[str, int], int]]] = {}
        self._shapes = [self._amounts() for _ in range(dice.randint(1, 4))]
        self._many_apps = dice.random() < 0.3

    # ---- answers ---------------------------------------------------------------------------------------------------

    def hear(self, facts: list[Fact]) -> None:
        """Questions go on its pile."""
        for fact in facts:
            if isinstance(fact, PredicatesAsked | PreemptionPredicatesAsked):
                self._due.append((self._step + (0 if self.patient else self._dice.randint(0, self.manners.late)), fact))

    def answers(self, now_ns: int) -> list[Answers]:
        """What it answers in this step."""
        dice, self._step = self._dice, self._step + 1
        due = [fact for step, fact in self._due if step <= self._step]
        self._due = [each for each in self._due if each[0] > self._step]
        if not self.policy.connected:
            if due and dice.random() < 0.5:
                return []  # lost with the stream
            if due and not self.patient:
                self._due += [(self._step + 1, fact) for fact in due]
                return []
        found: list[Answer] = []
        for fact in due:
            assert isinstance(fact, PredicatesAsked | PreemptionPredicatesAsked)
            if not self.patient and dice.random() < self.manners.silent:
                self.tally["RM: a question is never answered"] += 1
                continue
            no = self.refuses(fact, now_ns)
            last = -1
            if isinstance(fact, PreemptionPredicatesAsked) and dice.random() < 0.5:
                last = dice.randrange(-1, len(fact.victims) + 1)
                self.tally["RM: wants further victims gone"] += fact.least <= last
            found.append(Answer(fact.question, not no, f"{fact.node_id} will not do" if no else "", last))
            self.tally[f"RM: says {'no' if no else 'yes'} to {type(fact).__name__}"] += 1
            if dice.random() < 0.05:
                found.append(found[-1]._replace(fits=dice.random() < 0.5))
                self.tally["RM: answers twice"] += 1
        if dice.random() < 0.03:
            found.append(Answer(dice.choice([0, 1, 1 << 40]), True))
        if dice.random() < 0.5:
            dice.shuffle(found)
        if found and dice.random() < 0.3:
            return [Answers([each]) for each in found]
        return [Answers(found)] if found else []

    def refuses(self, fact: PredicatesAsked | PreemptionPredicatesAsked, now_ns: int) -> bool:
        """Its mood: by node, ask and time."""
        if self.patient or not self.manners.refuses:
            return False
        about = (fact.node_id, "" if self.manners.whole_nodes else fact.key, now_ns // self.manners.moods_ns)
        return zlib.crc32(repr(about).encode()) % 1000 < self.manners.refuses * 1000

    # ---- saying ----------------------------------------------------------------------------------------------------

    def advance_ns(self) -> int:
        """How much later the next step is."""
        return self._dice.choice(ADVANCES)

    def commands(self, core: SchedulerCore, now_ns: int) -> Iterator[Command]:
        """What it says in one step; each command is made when the one before was taken."""
        for _ in range(self._dice.choice((0, 1, 1, 2, 3))):
            command = self._command(core, next(iter(core.partitions.values())), now_ns)
            if command is not None:
                yield command

    def connect(self, now_ns: int, *, connected: bool) -> SetCallbacks:
        """Its stream comes, or goes."""
        how = self.manners
        wanting = connected or self.policy.since_ns > 0
        self.policy = CallbackPolicy(
            predicates=(how.predicates and wanting) or (how.waits and not connected),
            preemption=how.preemption and wanting,
            states=how.states and wanting,
            connected=connected,
            since_ns=now_ns,
            timeout_ns=how.timeout_ns,
            retry_ns=how.retry_ns,
            grace_ns=how.grace_ns,
            waits=how.waits,
        )
        self.tally[f"stream: {'comes' if connected else 'goes'}"] += 1
        return SetCallbacks(self.policy)

    def _command(self, core: SchedulerCore, partition: Partition, now_ns: int) -> Command | None:
        dice = self._dice
        if not partition.nodes:
            return UpdateNodes(tuple(self._new_node() for _ in range(dice.randint(2, 5))))
        apps = live(partition)
        if len(apps) < 2:
            return self._app(partition)
        kind = dice.choice(KINDS)
        match kind:
            case "ask":
                return self._ask(partition, dice.choice(apps))
            case "app":
                return self._app(partition)
            case "gang":
                return self._gang(partition)
            case "node":
                return UpdateNodes((self._new_node(),)) if len(partition.nodes) < NODES_MAX else None
            case "release" | "fail":
                return self._release(apps, fails=kind == "fail")
            case "confirm":
                return self._confirm(apps)
            case "cancel":
                asks = [ask for app in apps for ask in app.asks.values()]
                return UpdateAllocations((), [cancelled(dice.choice(asks))]) if asks else None
            case "again":
                return self._again(apps)
            case "drain":
                node = dice.choice(list(partition.nodes.values()))
                action = NodeAction.DRAIN_NODE if node.schedulable else NodeAction.DRAIN_TO_SCHEDULABLE
                return UpdateNodes((NodeItem(node.node_id, action, partition=partition.name),))
            case "update":
                return self._update(partition)
            case "adopt":
                return self._adopt(partition, dice.choice(apps))
            case "clear":
                return UpdateAllocations(
                    (), [ReleaseItem(partition.name, dice.choice(apps).app_id, "", Termination.STOPPED_BY_RM)]
                )
            case "remove":
                return UpdateApplications((), ((partition.name, dice.choice(apps).app_id),))
            case "gone":
                node_id = dice.choice(list(partition.nodes))
                again = self._new_node(node_id) if dice.random() < 0.5 else None
                gone = NodeItem(node_id, NodeAction.DECOMISSION, partition=partition.name)
                return UpdateNodes((gone,) if again is None else (gone, again))
            case "reload":
                self.offered = self._another()
                config = worlds.read(worlds.text_of(self.offered))
                assert config is not None
                return UpdateConfiguration(config)
            case "decide":
                self._deciding = not self._deciding or dice.random() < 0.5
                return SetDeciding(self._deciding)
            case "stream":
                if self.policy.connected and not self.manners.breaks:
                    return None
                return self.connect(now_ns, connected=not self.policy.connected)
        raise AssertionError(kind)

    def decide(self) -> Command:
        """The RM runs (again)."""
        self._deciding = True
        return SetDeciding(True)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _new_node(self, node_id: str = "") -> NodeItem:
        self._number += 1
        action = NodeAction.CREATE_DRAIN if self._dice.random() < 0.05 else NodeAction.CREATE
        return NodeItem(node_id or f"n{self._number}", action, {}, self._capacity(), partition="default")

    def _capacity(self) -> dict[str, int]:
        dice = self._dice
        return {"vcore": dice.randint(2, 8) * 1000, "memory": dice.randint(2, 9)}

    def _update(self, partition: Partition) -> Command:
        dice = self._dice
        node_id = dice.choice(list(partition.nodes))
        fate = dice.random()
        if fate < 0.4:
            item = NodeItem(node_id, NodeAction.UPDATE, {"label": str(dice.randint(0, 9))}, partition="default")
        elif fate < 0.8:
            item = NodeItem(node_id, NodeAction.UPDATE, {}, self._capacity(), partition="default")
        else:
            item = NodeItem(node_id, NodeAction.UPDATE, occupied=self._amounts(), partition="default")
        return UpdateNodes((item,))

    # ---- applications ----------------------------------------------------------------------------------------------

    def _app(self, partition: Partition) -> Command | None:
        dice = self._dice
        if len(live(partition)) >= APPS_MAX * (2 if self._many_apps else 1):
            return None
        leaves = [queue.path for queue in partition.queues.values() if queue.leaf and queue.managed]
        if not leaves:
            return None
        self._number += 1
        item = AppItem(f"app{self._number}", dice.choice(leaves), "default", dice.choice(gangs_worlds.USERS))
        return UpdateApplications((item,))

    def _gang(self, partition: Partition) -> Command | None:
        app = self._app(partition)
        if app is None:
            return None
        assert isinstance(app, UpdateApplications)
        dice, item = self._dice, app.new[0]
        groups = {
            name: (dict(dice.choice(self._shapes)), dice.randint(1, 3))
            for name in ("driver", "workers")[: dice.choice([1, 1, 2])]
        }
        total: dict[str, int] = {}
        for size, members in groups.values():
            for kind, value in size.items():
                total[kind] = total.get(kind, 0) + value * members
        self._gangs[item.app_id] = groups
        gang = AppItem(
            item.app_id,
            item.queue,
            item.partition,
            item.user,
            execution_timeout_ms=dice.choice([0, 10_000, 40_000]),
            placeholder_ask=total if dice.random() < 0.85 else None,
            gang_style=dice.choice(["Soft", "Hard"]),
        )
        return UpdateApplications((gang,))

    # ---- asks ------------------------------------------------------------------------------------------------------

    def _ask(self, partition: Partition, app: Application) -> Command | None:
        dice = self._dice
        if sum(len(each.asks) for each in live(partition)) > ASKS_MAX:
            return None
        groups = self._gangs.get(app.app_id)
        if not groups:
            shape = dict(dice.choice(self._shapes)) if dice.random() < 0.8 else self._amounts()
            count = dice.choice([1, 1, 2, 4])
            item = self._item(partition, app, shape)
            return UpdateAllocations([item._replace(key=f"{item.key}.{number}") for number in range(count)])
        name = dice.choice(list(groups))
        size, members = groups[name]
        known = app.gang.groups.get(name) if app.gang is not None else None
        if known is None or (known.asked < members and dice.random() < 0.5):
            count = members - (known.asked if known is not None else 0)
            items = [self._item(partition, app, size, daemon=False) for _ in range(count)]
            return UpdateAllocations([each._replace(task_group=name, placeholder=True, wanted=1) for each in items])
        if dice.random() < 0.25:
            kind = dice.choice(list(size))
            size = {**size, kind: max(size[kind] + dice.choice([-500, 500]) if kind == "vcore" else size[kind], 1)}
        count = dice.randint(1, members)
        items = [self._item(partition, app, size) for _ in range(count)]
        return UpdateAllocations([each._replace(task_group=name) for each in items])

    def _item(self, partition: Partition, app: Application, shape: dict[str, int], *, daemon: bool = True) -> AskItem:
        dice = self._dice
        self._number += 1
        previous = dice.random() < 0.2
        on = dice.choice(list(partition.nodes)) if daemon and dice.random() < 0.1 else ""
        return AskItem(
            f"k{self._number}",
            app.app_id,
            "default",
            dict(shape),
            dice.randint(2, 6) if previous and dice.random() < 0.5 else 1,
            dice.choice([0, 0, 0, 5]),
            {REQUIRED_NODE_TAG: on} if on else {},
            allow_preempt_self=dice.random() < 0.7,
            allow_preempt_other=dice.random() < 0.6,
            has_preemption_policy=True,
            previous_generation=previous,
        )

    def _amounts(self) -> dict[str, int]:
        dice = self._dice
        return {"vcore": dice.choice([500, 1000, 1000, 2000, 3000]), "memory": dice.choice([1, 1, 2, 3])}

    def _again(self, apps: list[Application]) -> Command | None:
        dice = self._dice
        asks = [ask for app in apps for ask in app.asks.values()]
        if not asks:
            return None
        ask = dice.choice(asks)
        item = said(ask)
        fate = dice.random()
        if fate < 0.3:
            item = item._replace(quantities={kind: max(value // 2, 1) for kind, value in item.quantities.items()})
        elif fate < 0.5:
            item = item._replace(priority=item.priority + 1)
        elif fate < 0.7 and item.previous_generation:
            item = item._replace(wanted=max(item.wanted + dice.choice([-1, 1]), 1))
        return UpdateAllocations([item])

    # ---- allocations -----------------------------------------------------------------------------------------------

    def _release(self, apps: list[Application], *, fails: bool) -> Command | None:
        dice = self._dice
        held = [each for app in apps for each in app.allocations.values()]
        if not held:
            return None
        chosen = dice.sample(held, min(len(held), dice.randint(1, 3)))
        kind = Termination.SCHEDULING_FAILED_ON_RM if fails else Termination.STOPPED_BY_RM
        return UpdateAllocations((), [stopped(each, kind) for each in chosen])

    def _confirm(self, apps: list[Application]) -> Command | None:
        told = [each for app in apps for each in app.allocations.values() if each.told]
        if not told:
            return None
        chosen = self._dice.sample(told, self._dice.randint(1, len(told)))
        return UpdateAllocations((), [confirmed(each) for each in chosen])

    def _adopt(self, partition: Partition, app: Application) -> Command:
        dice = self._dice
        node_id = dice.choice(list(partition.nodes))
        item = self._item(partition, app, self._amounts(), daemon=False)
        if app.asks and dice.random() < 0.7:
            item = said(dice.choice(list(app.asks.values())))
        return UpdateAllocations([item._replace(node_id=node_id, wanted=1)])

    # ---- the end ---------------------------------------------------------------------------------------------------

    def report(self, partition: Partition) -> list[Command]:
        """After a registration: what there was. What was told to go is gone."""
        nodes = tuple(
            NodeItem(
                node.node_id,
                NodeAction.CREATE if node.schedulable else NodeAction.CREATE_DRAIN,
                dict(node.attributes),
                partition.types.quantities(node.capacity),
                partition="default",
            )
            for node in partition.nodes.values()
        )
        apps = tuple(
            AppItem(
                app.app_id,
                app.queue.path,
                "default",
                app.user,
                execution_timeout_ms=app.execution_timeout_ms,
                placeholder_ask=app.placeholder_ask,
                gang_style=app.gang_style,
            )
            for app in live(partition)
        )
        held = [each for app in live(partition) for each in app.allocations.values() if not each.told]
        items = [
            said(each)._replace(node_id=each.node_id, uuid=each.uuid if each.previous_generation else "")
            for each in held
        ]
        asks = [said(ask) for app in live(partition) for ask in app.asks.values()]
        self.policy = CallbackPolicy()
        return [UpdateNodes(nodes), UpdateApplications(apps), UpdateAllocations(items), UpdateAllocations(asks)]

    def wind_up(self, partition: Partition, number: int) -> Iterator[Command]:
        """Everything ends."""
        told = [each for app in partition.apps.values() for each in app.allocations.values() if each.told]
        if told:
            yield UpdateAllocations((), [confirmed(each) for each in told])
        if number:
            yield UpdateApplications((), tuple((partition.name, app.app_id) for app in live(partition)))


def live(partition: Partition) -> list[Application]:
    """The applications that go on."""
    return [app for app in partition.apps.values() if app.state not in APP_TERMINAL and app.state != "Failing"]


def said(what: Ask | Allocation) -> AskItem:
    """What was asked for, in the words in which it was."""
    demand = what.demand
    wanted = what.pending + what.allocated if isinstance(what, Ask) else 1
    return AskItem(
        demand.key,
        what.app.app_id if what.app is not None else "",
        "default",
        dict(demand.shape.quantities),
        wanted,
        demand.priority,
        dict(demand.tags),
        demand.task_group,
        demand.placeholder,
        demand.originator,
        demand.allow_preempt_self,
        demand.allow_preempt_other,
        demand.has_preemption_policy,
        demand.execution_timeout_ms,
        demand.previous_generation,
    )


def cancelled(ask: Ask) -> ReleaseItem:
    """Takes an ask back."""
    return ReleaseItem("default", ask.app.app_id, ask.key, Termination.STOPPED_BY_RM, ask_only=True)


def stopped(held: Allocation, kind: Termination = Termination.STOPPED_BY_RM) -> ReleaseItem:
    """Ends an allocation."""
    return ReleaseItem("default", held.app_id, held.key, kind, held.uuid)


def confirmed(held: Allocation) -> ReleaseItem:
    """What was told to go went."""
    how = "preempted" if held.preempted is not None else "timed_out" if held.timed_out else "replaced"
    return stopped(held, _CONFIRMED[how])
