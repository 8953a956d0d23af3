"""Random lives of an RM and sources beside it: whatever is said in whatever order, what counts follows from all of it.

At each step the rules are computed a second time (``external_invariants.py``, by ``Cluster.do``), and what is folded
from the records is what is live. ``MUSTER_EXTERNAL_SEEDS`` says how many lives.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from builders import SECOND_NS
from muster_bus.topics import parse_state_key
from muster_core import invariants
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalNode,
    ExternalObject,
    ExternalQueue,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.model.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import NewAllocation, Primary, ReleasedAllocation, UpdatedApplication
from muster_core.scheduler import SchedulerCore
from muster_si.constants import FOREIGN
from muster_state import state_codec
from outside import RM, Outside

SEEDS = range(int(os.environ.get("MUSTER_EXTERNAL_SEEDS", "8")))
STEPS = 60
TREES = (
    "{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 9}}}, {name: b}, {name: c}]}",
    "{name: root, submitacl: '*', queues: [{name: a}, {name: b, resources: {max: {vcore: 5}}}]}",
    "{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 9, gpu: 1}}}, {name: c}]}",
)
NODES = [f"n{number}" for number in range(4)]
SOURCES = ["mesos", "vms"]
RM_KEYS = ["f", "vms/v0", "v0", *(f"k{number}" for number in range(10))]


RECORDED = ("source", "ext", "queue", "node", "app", "alloc", "ask")


def records(core: SchedulerCore) -> dict[bytes, bytes]:
    """The required records of all objects, without the reasons of asks."""
    found: dict[bytes, bytes] = {}
    for name, part in core.partitions.items():
        objects: list[Primary] = [*part.queues.values(), *part.nodes.values(), *part.foreign.values()]
        for app in part.apps.values():
            objects += [app, *app.asks.values(), *app.allocations.values()]
        for what in objects:
            found[state_codec.key_of(RM, name, what)] = state_codec.encode(name, what)
    for source in core.external.all_sources():
        for entry in (source, *source.entries.values()):
            found[state_codec.key_of(RM, entry.partition, entry)] = state_codec.encode(entry.partition, entry)
    return found


class Life:
    """One life with random reports."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = Outside(self.dice.choice(TREES))
        self.lives = dict.fromkeys(SOURCES, 1)
        self.tally: Counter[str] = Counter()
        self.cluster.do(
            UpdateApplications(tuple(AppItem(f"x{n}", f"root.{q}", "default", "al") for n, q in enumerate("ab")))
        )

    def amounts(self, most: int = 8) -> dict[str, int]:
        names = self.dice.sample(["vcore", "memory", "gpu"], self.dice.randint(1, 3))
        return {
            name: self.dice.choice([0, 1, self.dice.randint(1, most)]) * (1000 if name == "vcore" else 1)
            for name in names
        }

    def step(self) -> None:
        dice, cluster = self.dice, self.cluster
        kind = dice.random()
        if kind < 0.03:
            cluster.restart(dice.randint(0, 99))
            self.tally["restart"] += 1
        elif kind < 0.05:
            cluster.register_again()
            self.tally["register"] += 1
        elif kind < 0.08:
            obstacles = cluster.reload(dice.choice(TREES))
            self.tally["reload"] += not obstacles
        else:
            commands = [self.command() for _ in range(dice.choice([1, 1, 2, 4]))]
            cluster.now_ns += dice.choice([1, 40 * SECOND_NS])
            out = cluster.do(*commands)
            for fact in out.facts:
                match fact:
                    case NewAllocation():
                        assert not fact.allocation.source, fact
                    case UpdatedApplication():
                        app = cluster.partition.apps.get(fact.app_id)
                        assert app is None or not app.source or app.submitted_ns == cluster.now_ns, fact
                    case ReleasedAllocation() if not fact.message.endswith(
                        ("nothing to release", "nothing is released")
                    ):
                        assert fact.key in RM_KEYS, fact
        self.count()
        if dice.random() < 0.2:
            cluster.check_folds()
            recorded = {key: value for key, value in cluster.kept.items() if parse_state_key(key)[1] in RECORDED}
            assert records(cluster.core) == recorded
            assert records(cluster.folded()) == recorded

    def count(self) -> None:
        part = self.cluster.partition
        for node in part.nodes.values():
            self.tally["brought"] += not node.of_rm
            self.tally["merged"] += node.of_rm and bool(node.sources)
            self.tally["disputed"] += bool(node.disputed)
            self.tally["closed"] += bool(node.sources) and not node.schedulable
            self.tally["containers on brought nodes"] += not node.of_rm and any(
                not held.source for held in node.allocations.values()
            )
        self.tally["foreign"] += sum(bool(held.source) for held in part.foreign.values())
        self.tally["owned"] += sum(bool(held.source) for app in part.apps.values() for held in app.allocations.values())
        self.tally["restricted"] += sum(bool(queue.sources) for queue in part.queues.values())
        self.tally["dormant"] += sum(
            bool(entry.problem) for entry in self.cluster.core.external.for_partition("default").entries()
        )

    def command(self) -> Command:
        dice = self.dice
        if dice.random() < 0.5:
            return self.outside()
        match dice.randint(0, 4):
            case 0 | 1:
                action = dice.choice([*NodeAction][1:])
                creates = action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN)
                return UpdateNodes(
                    (
                        NodeItem(
                            dice.choice(NODES),
                            action,
                            dice.choice([{}, {"zone": "rm"}]),
                            capacity=self.amounts() if creates or dice.random() < 0.5 else None,
                            occupied=self.amounts(2) if dice.random() < 0.3 else None,
                        ),
                    )
                )
            case 2 | 3:
                asks = [
                    AskItem(
                        f"k{dice.randint(0, 9)}", f"x{dice.randint(0, 1)}", "default", {"vcore": dice.randint(1, 3000)}
                    )
                ]
                if dice.random() < 0.3:
                    key = dice.choice(["f", "vms/v0", "v0"])
                    asks.append(
                        AskItem(key, "", "default", {"vcore": 1}, tags={FOREIGN: "static"}, node_id=dice.choice(NODES))
                    )
                return UpdateAllocations(asks)
            case _:
                app_id, key = dice.choice(
                    [("", "f"), ("", "vms/v0"), ("x0", "k1"), ("x1", ""), ("e0", ""), ("e1", "v0")]
                )
                releases = [ReleaseItem("default", app_id, key, Termination.STOPPED_BY_RM)]
                if dice.random() < 0.3:
                    app_id = dice.choice(["e0", "x1"])
                    return dice.choice(
                        [
                            UpdateApplications(remove=(("default", app_id),)),
                            UpdateApplications((AppItem(app_id, "root.b", "default", "al"),)),
                        ]
                    )
                return UpdateAllocations((), releases)

    def outside(self) -> Command:
        dice = self.dice
        source = dice.choice(SOURCES)
        life = f"life-{self.lives[source]}"
        roll = dice.random()
        if roll < 0.08:
            self.lives[source] += 1
            return SetSourceState(
                "default", source, f"life-{self.lives[source]}", SourceState.LISTING, dice.random() < 0.7
            )
        if roll < 0.2:
            state = dice.choice([SourceState.LIVE, SourceState.STALE, SourceState.STALE, SourceState.LISTING])
            return SetSourceState("default", source, life, state, dice.random() < 0.7, "because")
        if roll < 0.23 and self.lives[source] > 1:
            life = f"life-{self.lives[source] - 1}"
        changes = []
        for _ in range(dice.choice([1, 1, 2, 5])):
            what = self.an_object()
            fate = dice.random()
            if fate < 0.7:
                changes.append(ExternalChange(kind_of(what), id_of(what), what))
            else:
                changes.append(ExternalChange(kind_of(what), id_of(what), None, stale=fate > 0.9))
        return ApplyExternalChanges("default", source, life, tuple(changes))

    def an_object(self) -> ExternalObject:
        dice = self.dice
        match dice.randint(0, 9):
            case 0 | 1 | 2 | 3:
                return ExternalNode(
                    dice.choice(NODES),
                    dice.choice([None, self.amounts(), self.amounts()]),
                    self.amounts(2) if dice.random() < 0.4 else {},
                    dice.choice([{}, {"zone": "ext"}, {"rack": str(dice.randint(0, 2))}]),
                    dice.random() < 0.8,
                    dice.random() < 0.3,
                    dice.random() < 0.6,
                )
            case 4 | 5 | 6:
                app_id = dice.choice(["", "", "e0", "e1", "x0"])
                return ExternalAllocation(f"e{dice.randint(0, 4)}", dice.choice(NODES), self.amounts(3), app_id)
            case 7 | 8:
                queue = dice.choice(["root.a", "root.b", "root.c", "root.made.here", "root"])
                return ExternalApplication(dice.choice(["e0", "e1", "x0"]), queue, dice.choice(["", "vic"]))
            case _:
                return ExternalQueue(dice.choice(["root.a", "root.B", "root.c", "root"]), self.amounts(9))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_the_merged_values_follow_from_all_statements(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.cluster.check_folds()
    invariants.check(life.cluster.core)


def test_lives_meet_what_they_are_about() -> None:
    tally: Counter[str] = Counter()
    for seed in range(1000, 1008):
        life = Life(seed)
        for _ in range(STEPS):
            life.step()
        tally += life.tally
    missing = [
        name
        for name in ("restart", "register", "reload", "brought", "merged", "disputed", "closed", "foreign", "owned",
                     "restricted", "dormant", "containers on brought nodes")
        if tally[name] < 3
    ]  # fmt: skip
    assert not missing, tally
