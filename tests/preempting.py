"""Clusters in which somebody preempts, and the laws of preemption (docs/preemption.md) in naive words.

The laws are checked by sums over all allocations and walks over all queues: slow, and on purpose unlike the search.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from builders import Cluster
from muster_core.config.queue_config import (
    ClusterConfig,
    LimitConfig,
    PartitionConfig,
    PreemptionConfig,
    QueueConfig,
)
from muster_core.model.application import Allocation, Ask
from muster_core.model.commands import (
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    SetEvents,
    Termination,
    UpdateAllocations,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.node import Node
from muster_core.model.outcome import ConfigurationResult, Outcome, ReleasedAllocation
from muster_core.model.queue import Ledger, Queue
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config

REQUIRED_NODE = "yunikorn.apache.org/requiredNode"
TYPES = ("vcore", "memory", "gpu")


class Arena(Cluster):
    """A cluster whose items say what they mean to preemption.

    :ivar text: its configuration; "": it was made of plain data.
    """

    def __init__(
        self, root: QueueConfig | str, *, preemption: PreemptionConfig | None = None, nodesort: str = "fair"
    ) -> None:
        super().__init__("{name: root, submitacl: '*'}", nodesort=nodesort)
        preemption = preemption or PreemptionConfig()
        if isinstance(root, str):
            self.text = configuration(root, preemption)
            config, problems = load_queue_config(self.text)
            assert config is not None, problems
        else:
            self.text = ""
            config = ClusterConfig((PartitionConfig("default", root, preemption=preemption),))
        self.core = SchedulerCore(config)
        self.core.apply(SetEvents(requests=True), self.now_ns)
        self.outcomes = [self.core.start(self.now_ns)]

    def reload(self, root: str, *, preemption: PreemptionConfig | None = None) -> Outcome:
        self.text = configuration(root, preemption or self.partition.config.preemption)
        config, problems = load_queue_config(self.text)
        assert config is not None, problems
        out = self.do(UpdateConfiguration(config))
        assert not any(fact.obstacles for fact in out.facts if isinstance(fact, ConfigurationResult)), out.facts
        return out

    def want(self, app_id: str, key: str, **what: Any) -> Outcome:
        """An ask; see :func:`item` for the words."""
        return self.do(UpdateAllocations([item(app_id, key, **what)]))

    def held(self, app_id: str, key: str, node_id: str, **what: Any) -> Outcome:
        return self.want(app_id, key, node_id=node_id, **what)

    def confirm(self, out: Outcome) -> Outcome:
        """The RM confirms everything that it was told to preempt."""
        releases = [
            ReleaseItem("default", app_id, key, Termination.PREEMPTED_BY_SCHEDULER) for app_id, key in told(out)
        ]
        return self.do(UpdateAllocations((), releases))

    def the_ask(self, app_id: str, key: str) -> Ask:
        return self.application(app_id).asks[key]


def configuration(root: str, preemption: PreemptionConfig) -> str:
    said = {
        "enabled": str(preemption.enabled).lower(),
        "quotapreemptionenabled": str(preemption.quota_enabled).lower(),
        "optout": "last" if preemption.opted_out_last else "never",
    }
    words = ", ".join(f"{word}: {value}" for word, value in said.items())
    return f"partitions: [{{name: default, preemption: {{{words}}}, queues: [{root}]}}]"


def item(
    app_id: str,
    key: str,
    *,
    priority: int = 0,
    wanted: int = 1,
    victim: bool = True,
    preempts: bool = True,
    originator: bool = False,
    required_node: str = "",
    node_id: str = "",
    task_group: str = "",
    placeholder: bool = False,
    **quantities: int,
) -> AskItem:
    """An ask, or with ``node_id`` an allocation that exists: by default it may be preempted and may preempt."""
    return AskItem(
        key,
        app_id,
        "default",
        quantities,
        wanted=wanted,
        priority=priority,
        tags={REQUIRED_NODE: required_node} if required_node else {},
        task_group=task_group,
        placeholder=placeholder,
        originator=originator,
        allow_preempt_self=victim,
        allow_preempt_other=preempts,
        has_preemption_policy=True,
        node_id=node_id,
    )


def told(out: Outcome) -> list[tuple[str, str]]:
    """(application, key) of those who were told to go, in order."""
    return [
        (fact.app_id, fact.key)
        for fact in out.facts
        if isinstance(fact, ReleasedAllocation) and fact.termination is Termination.PREEMPTED_BY_SCHEDULER
    ]


# ---- the laws, in naive words --------------------------------------------------------------------------------------


class Laws:
    """The laws for one ask in one state."""

    def __init__(self, partition: Partition, ask: Ask) -> None:
        self.partition = partition
        self.ask = ask
        self.items = ask.shape.items
        self.path = ask.app.queue.ancestry
        self.all = [held for app in self.partition.apps.values() for held in app.allocations.values()]
        self.marked = [held for held in self.all if held.preempted is not None]
        owners = {(held.preempted.app_id, held.preempted.key) for held in self.marked if held.preempted is not None}
        self.coming = [
            other
            for app in self.partition.apps.values()
            for other in app.asks.values()
            if (app.app_id, other.key) in owners and other.preempts
        ]

    def used(self, ledger: Ledger, number: int, *, coming: bool) -> int:
        """Of those who were not told to go; ``coming``: and of those for whom the others were."""
        held = [each for each in self.all if each.preempted is None and ledger in each.app.ledgers]  # type: ignore[union-attr]
        soon = [other for other in self.coming if ledger in other.app.ledgers] if coming else []
        return sum(dict(each.shape.items).get(number, 0) for each in [*held, *soon])

    def over(self, without: Iterable[Allocation] = ()) -> list[tuple[Ledger, int]]:
        """The limits that the ask would go over when these are gone."""
        gone = list(without)
        found = []
        for ledger in self.ask.app.bounds:
            freed = [each for each in gone if each.app is not None and ledger in each.app.ledgers]
            for number, value in self.items:
                less = sum(dict(each.shape.items).get(number, 0) for each in freed)
                if self.used(ledger, number, coming=True) - less + value > ledger.limit[number]:
                    found.append((ledger, number))
        return found

    def fence(self) -> Queue:
        limits = {ledger for ledger, _ in self.over()}
        for queue in self.path:
            if queue.parent is None or queue in limits or queue.properties.get("preemption.policy") == "fence":
                return queue
        raise AssertionError("root is a fence")

    def entitled(self, shared: Queue) -> bool:
        """Law 5: against what is below ``shared`` but elsewhere, a guarantee below it must speak for the ask."""
        below = self.path[: self.path.index(shared)]
        spoken = False
        for number, value in self.items:
            guaranteed = [queue for queue in below if queue.guaranteed is not None and number in queue.guaranteed]
            if guaranteed:
                nearest = guaranteed[0]
                assert nearest.guaranteed is not None
                if self.used(nearest, number, coming=True) + value > nearest.guaranteed[number]:
                    return False
                spoken = True
        return spoken

    def shared(self, leaf: Queue) -> Queue:
        return next(queue for queue in self.path if queue in leaf.ancestry)

    def priority_allows(self, held: Allocation) -> bool:
        """Law 4: up from the ask to the first shared queue, and down to the victim."""
        leaf = held.app.queue  # type: ignore[union-attr]
        shared = self.shared(leaf)
        worth = self.ask.priority
        for queue in self.path[: self.path.index(shared)]:
            offset = queue.policy.priority_offset
            worth = offset if queue.policy.priority_fence else worth + offset
        for queue in reversed(leaf.ancestry[: leaf.ancestry.index(shared)]):
            offset = queue.policy.priority_offset
            if queue.policy.priority_fence:
                return offset <= worth
            worth -= offset
        return held.priority <= worth

    def together(self, held: Allocation) -> list[Allocation]:
        """Those with whom it goes or stays: the rest of its gang where the queue says so, else only itself."""
        if not is_of_whole_gang(held):
            return [held]
        assert held.app is not None
        return [each for each in held.app.allocations.values() if is_of_whole_gang(each) and not was_told(each)]

    def rule(self, held: Allocation) -> str | None:
        """By which rule it may be a victim, guarantees of its own queues apart: all that go together, or none."""
        if is_of_whole_gang(held) and is_replacing(held):
            return None
        rules = {self._own_rule(each) for each in self.together(held)}
        return None if None in rules or was_told(held) else rules.pop()

    def _own_rule(self, held: Allocation) -> str | None:
        if held.app is None or was_told(held) or held.demand.required_node:
            return None
        if not held.allow_preempt_self and not self.partition.config.preemption.opted_out_last:
            return None
        leaf = held.app.queue
        said = [
            queue.properties["preemption.policy"] for queue in leaf.ancestry if "preemption.policy" in queue.properties
        ]
        if said and said[0] == "disabled":
            return None
        if leaf is self.ask.app.queue:
            lower = held.priority < self.ask.priority and held.app is not self.ask.app
            return "PRIORITY" if lower and leaf.policy.preempts_by_priority else None
        if self.fence() not in leaf.ancestry or not self.entitled(self.shared(leaf)):
            return None
        return "GUARANTEE" if self.priority_allows(held) else None

    def robbed(self, victims: Iterable[Allocation]) -> list[Queue]:
        """Law 1: the queues that would be under their guarantee in a type that they give up."""
        gone = [held for held in victims if held.app is not None and held.app.queue is not self.ask.app.queue]
        found = []
        for queue in self.partition.queues.values():
            if queue in self.path or not queue.guaranteed:
                continue
            from_here = [held for held in gone if held.app is not None and queue in held.app.queue.ancestry]
            for number, least in queue.guaranteed.items():
                less = sum(dict(held.shape.items).get(number, 0) for held in from_here)
                if less and self.used(queue, number, coming=False) - less < least:
                    found.append(queue)
        return found

    def usable(self) -> list[Node]:
        return [
            node
            for node in self.partition.nodes.values()
            if node.schedulable and all(other is self.ask or self.outranks(other) for other in node.reservations)
        ]

    def outranks(self, other: Ask) -> bool:
        """Law 6: a reservation by age gives way to asks of higher rank (decision 258)."""
        if other.preempts or other.demand.required_node:
            return False
        shared = self.shared(other.app.queue)
        sides = []
        for ask in (self.ask, other):
            below = ask.app.queue.ancestry[: ask.app.queue.ancestry.index(shared)]
            priority, guaranteed = ask.priority, []
            for queue in below:
                offset = queue.policy.priority_offset
                priority = offset if queue.policy.priority_fence else priority + offset
            for number, value in ask.shape.items:
                nearest = next((queue for queue in below if number in (queue.guaranteed or {})), None)
                if nearest is not None and nearest.guaranteed is not None:
                    guaranteed.append((value, nearest.allocated[number], nearest.guaranteed[number]))
            within = bool(guaranteed) and all(used + value <= least for value, used, least in guaranteed)
            sides.append((within, any(used < least for _, used, least in guaranteed), priority))
        (within, unmet, priority), (others_within, others_unmet, others_priority) = sides
        if within and not others_unmet:
            return True
        if others_within and not unmet:
            return False
        if priority != others_priority:
            return priority > others_priority
        return (self.ask.created_ns, self.ask.submission) < (other.created_ns, other.submission)

    def fits(self, node: Node, victims: Iterable[Allocation]) -> bool:
        gone = [held for held in victims if held.node_id == node.node_id]
        soon: list[Ask] = []
        if self.ask.reserved_node == node.node_id:
            gone += [held for held in self.marked if held.node_id == node.node_id]
            soon += [other for other in self.coming if other.reserved_node == node.node_id and other is not self.ask]
        for number, value in self.items:
            freed = sum(dict(held.shape.items).get(number, 0) for held in gone)
            taken = sum(dict(other.shape.items).get(number, 0) for other in soon)
            if node.available[number] + freed - taken < value:
                return False
        return True

    def helps(self, node: Node, victims: list[Allocation]) -> bool:
        """Whether the ask may be placed on the node when these are gone."""
        return self.fits(node, victims) and not self.over(victims)

    def candidates(self) -> list[Allocation]:
        return [held for held in self.all if self.rule(held) is not None]

    def lawful_sets(self) -> Iterator[tuple[Node, tuple[Allocation, ...]]]:
        """All of them, small ones first. (Law 2 apart: what is not needed can be left out of any of these.)"""
        candidates = list(dict.fromkeys(tuple(self.together(held)) for held in self.candidates()))
        usable = self.usable()
        for size in range(1, len(candidates) + 1):
            for units in combinations(candidates, size):
                chosen = tuple(held for unit in units for held in unit)
                if self.robbed(chosen):
                    continue
                for node in usable:
                    if self.helps(node, list(chosen)):
                        yield node, chosen

    def check(self, node: Node | None, victims: list[Allocation], rules: list[str]) -> None:
        assert node is not None
        assert node in self.usable(), f"{node} is not there for the ask"
        assert victims, "a plan without victims"
        assert len(set(victims)) == len(victims)
        for held, rule in zip(victims, rules, strict=True):
            assert self.rule(held) == rule, f"{held} may go by {self.rule(held)}, not by {rule}"
        assert not self.robbed(victims), f"{self.robbed(victims)} would be under their guarantee"
        assert self.helps(node, victims), "the ask still has no place"
        for held in victims:
            unit = self.together(held)
            assert set(unit) <= set(victims), f"{held} goes, and not all of its gang"
            rest = [other for other in victims if other not in unit]
            assert not self.helps(node, rest), f"{held} is a needless victim"


def was_told(held: Allocation) -> bool:
    return held.preempted is not None or held.timed_out or held.replaced_by is not None


def is_replacing(held: Allocation) -> bool:
    """Whether a placeholder of its application is leaving for a real ask."""
    return held.app is not None and any(each.replaced_by for each in held.app.allocations.values())


def is_of_whole_gang(held: Allocation) -> bool:
    """Whether it is a member of a gang that is preempted as a whole."""
    if held.app is None or held.app.gang is None or not held.task_group:
        return False
    return held.app.queue.properties.get("gang.preemption") == "whole"


# ---- random clusters -----------------------------------------------------------------------------------------------


def random_arena(dice: random.Random, *, allocations: int, gangs: bool = False) -> Arena:
    """A tree of queues with guarantees, maxima, fences, offsets; nodes full of allocations; asks that wait.

    :param gangs: many allocations are members of gangs, most of which are preempted as a whole.
    """
    arena = Arena(
        _random_queue(dice, "root", 0, gangs=gangs),
        preemption=PreemptionConfig(opted_out_last=dice.random() < 0.3),
        nodesort=dice.choice(["fair", "binpacking"]),
    )
    # 1. Nodes, and applications; more in the first leaf, so that somebody has too much.
    leaves = [queue.path for queue in arena.partition.queues.values() if queue.leaf]
    names = [f"n{n}" for n in range(dice.randint(1, 3))]
    for name in names:
        arena.node(name, **dict.fromkeys(TYPES, 1000))
    for n in range(dice.randint(3, 5)):
        arena.app(f"app{n}", leaves[0] if n < 2 else dice.choice(leaves), user=dice.choice(["ann", "bob"]))
    apps = list(arena.partition.apps)
    own = random.Random(dice.random()) if gangs else dice  # (so that what is said of gangs moves nothing else)
    of_gangs = [app_id for app_id in apps if gangs and own.random() < 0.6]
    # 2. What runs, and nodes that are as good as full of it.
    for n in range(allocations):
        arena.now_ns += dice.choice([0, 10**9])
        node_id = dice.choice(names)
        what: dict[str, Any] = _random_quantities(dice, 3)
        app_id = dice.choice([*apps, apps[0]])
        if app_id in of_gangs and own.random() < 0.85:
            what |= {"task_group": own.choice(["t", "t", "u"]), "placeholder": own.random() < 0.6}
        arena.held(
            app_id,
            f"held{n}",
            node_id,
            priority=dice.choice([0, 0, 1, 2, 3]),
            victim=dice.random() < 0.85,
            originator=dice.random() < 0.15,
            required_node=node_id if dice.random() < 0.05 else "",
            **what,
        )
    for name in names:
        node = arena.the_node(name)
        capacity = {kind: node.allocated[arena.partition.types.number(kind)] + dice.choice([0, 0, 1]) for kind in TYPES}
        arena.do(UpdateNodes((NodeItem(name, NodeAction.UPDATE, capacity=capacity),)))
    # 3. What waits.
    for n in range(dice.randint(1, 4)):
        app_id = dice.choice([*apps[1:], apps[-1]])
        arena.want(app_id, f"ask{n}", priority=dice.choice([0, 1, 2, 3]), **_random_quantities(dice, 3))
    # 4. Some placeholders give way to real asks, and the RM has not confirmed it yet.
    for app_id in of_gangs:
        if own.random() < 0.2:
            kind = own.choice(TYPES)
            arena.want(app_id, "real", priority=own.choice([0, 1]), task_group=own.choice(["t", "u"]), **{kind: 1})
    return arena


def _random_quantities(dice: random.Random, most: int) -> dict[str, int]:
    return {kind: dice.randint(1, most) for kind in dice.sample(TYPES, dice.choice([1, 1, 2, 2, 3]))}


def _random_queue(dice: random.Random, name: str, depth: int, *, gangs: bool) -> QueueConfig:
    names = [f"q{n}" for n in range(dice.randint(2, 3))] if depth == 0 else []
    if depth == 1 and dice.random() < 0.5:
        names = [f"q{n}" for n in range(2)]
    properties = {}
    if depth and dice.random() < 0.15:
        properties["preemption.policy"] = dice.choice(["fence", "disabled"])
    if depth and dice.random() < 0.2:
        properties["priority.offset"] = str(dice.choice([-2, -1, 1, 2]))
    if depth and dice.random() < 0.1:
        properties["priority.policy"] = "fence"
    if dice.random() < 0.1:
        properties["preemption.priority"] = "disabled"
    if gangs and dice.random() < 0.7:
        properties["gang.preemption"] = "whole"
    limits: tuple[LimitConfig, ...] = ()
    if dice.random() < 0.15:
        limits = (LimitConfig(users=("*",), max_resources={"vcore": dice.randint(2, 12)}),)
    return QueueConfig(
        name,
        parent=depth == 0,
        queues=tuple(_random_queue(dice, child, depth + 1, gangs=gangs) for child in names),
        guaranteed=_some(dice, 0.7, 0, 9) if depth else None,
        maximum=_some(dice, 0.25, 4, 16) if depth else None,
        properties=properties,
        limits=limits,
        submit_acl="*",
    )


def _some(dice: random.Random, chance: float, low: int, high: int) -> dict[str, int] | None:
    if dice.random() > chance:
        return None
    return {kind: dice.randint(low, high) for kind in TYPES if dice.random() < 0.6}
