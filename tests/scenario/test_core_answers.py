"""Exactly one answer for every item, whatever an RM sends (the scheduler interface; seed-vs-core "an answer for every
item").

An application is accepted or rejected; so is each item of a node; an ask is rejected, allocated or pending, and pending
with a reason; an allocation that the RM reports is echoed or rejected; a release is acknowledged, whether there was
anything to release or not.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from builders import Cluster
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import (
    AcceptedApplication,
    AcceptedNode,
    NewAllocation,
    Outcome,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
    ReleasedAsk,
)
from muster_core.model.pending_reason import group_reason

SEEDS = range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "12")))
QUEUES = """{name: root, submitacl: '*', queues: [
  {name: a, maxapplications: 2}, {name: b, resources: {max: {vcore: 10}}},
  {name: c, properties: {application.sort.policy: fair}}]}"""
PARTITIONS = ("default", "", "Default", "elsewhere")


def _quantities(dice: random.Random) -> dict[str, int]:
    names = dice.sample(["vcore", "memory", "gpu"], dice.randint(0, 3))
    return {name: dice.choice([-1, 0, 1, 2, 3, 5, 1 << 62]) for name in names}


def _told(out: Outcome, *kinds: type) -> list[object]:
    return [fact for fact in out.facts if isinstance(fact, kinds)]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_every_item_has_one_answer(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster(QUEUES)
    for _ in range(80):
        cluster.wait(dice.choice([0, 1, 20]))
        dice.choice([_applications, _nodes, _asks, _asks, _asks, _releases])(cluster, dice)


def _applications(cluster: Cluster, dice: random.Random) -> None:
    ids = [f"app{dice.randint(1, 5)}" for _ in range(dice.randint(1, 3))]
    items = tuple(
        AppItem(
            app_id,
            dice.choice(["root.a", "root.b", "root.c", "root.ghost", "", "root.a b"]),
            dice.choice(PARTITIONS),
            dice.choice(["u", "u", ""]),
        )
        for app_id in ids
    )
    out = cluster.do(UpdateApplications(items))
    answers = _told(out, AcceptedApplication, RejectedApplication)
    assert Counter(fact.app_id for fact in answers) == Counter(ids)  # type: ignore[attr-defined]
    for fact in _told(out, AcceptedApplication):
        assert fact.app_id in cluster.partition.apps  # type: ignore[attr-defined]


def _nodes(cluster: Cluster, dice: random.Random) -> None:
    node_id, action = f"n{dice.randint(1, 4)}", dice.choice(list(NodeAction))
    node = cluster.partition.nodes.get(node_id)
    was_schedulable = node is not None and node.schedulable
    item = NodeItem(
        node_id,
        action,
        capacity=dice.choice([None, _quantities(dice), {"vcore": 9, "memory": 9}]),
        occupied=dice.choice([None, None, _quantities(dice)]),
        partition=dice.choice(PARTITIONS),
    )
    out = cluster.do(UpdateNodes((item,)))
    answers = _told(out, AcceptedNode, RejectedNode)
    assert len(answers) == 1
    now = cluster.partition.nodes.get(node_id)
    if isinstance(answers[0], RejectedNode):
        assert now is node
        assert (now is not None and now.schedulable) == was_schedulable
        assert not out.events
        return
    match action:
        case NodeAction.CREATE | NodeAction.CREATE_DRAIN:
            assert now is not None
            assert now.schedulable == (action is NodeAction.CREATE)
        case NodeAction.DECOMISSION:
            assert node is not None
            assert now is None
        case NodeAction.DRAIN_NODE | NodeAction.DRAIN_TO_SCHEDULABLE:
            assert now is not None
            assert now.schedulable == (action is NodeAction.DRAIN_TO_SCHEDULABLE)
        case _:
            assert action is NodeAction.UPDATE
            assert now is node is not None


def _asks(cluster: Cluster, dice: random.Random) -> None:
    keys = dice.sample(range(1, 13), dice.randint(1, 4))
    items = [
        AskItem(
            f"k{key}",
            f"app{dice.randint(1, 6)}",
            dice.choice(PARTITIONS),
            _quantities(dice),
            wanted=dice.choice([-2, 0, 1, 1, 1, 3]),
            priority=dice.randint(-1, 2),
            node_id=dice.choice(["", "", "", "n1", "n2", "n9"]),
            previous_generation=dice.random() < 0.3,
            tags=dice.choice([{}, {}, {}, {"foreign": "x"}]),
        )
        for key in keys
    ]
    had = {
        (item.app_id, item.key): ask.allocated
        for item in items
        if (app := cluster.partition.live_application(item.app_id)) and (ask := app.asks.get(item.key))
    }
    out = cluster.do(UpdateAllocations(items))
    rejected = Counter(fact.key for fact in _told(out, RejectedAsk))  # type: ignore[attr-defined]
    for item in items:
        foreign = "foreign" in item.tags
        app = cluster.partition.apps.get(item.app_id)
        taken = (
            item.key in cluster.partition.foreign
            if foreign
            else app is not None and (item.key in app.asks or bool(app.allocations_of(item.key)))
        )
        # Sent again for no more than it has had already: it ends, whether what it had is still held or not.
        taken = taken or had.get((item.app_id, item.key), 0) >= item.wanted
        assert rejected[item.key] in (0, 1)
        assert taken or rejected[item.key], f"no answer for {item}"
        if app is not None and item.key in app.asks:
            group = app.asks[item.key].group
            assert group is not None
            assert group_reason(group) is not None
        if item.node_id or foreign:
            echoed = sum(fact.allocation.key == item.key for fact in _told(out, NewAllocation) if fact.adopted)  # type: ignore[attr-defined]
            assert echoed + rejected[item.key] == 1, f"not one answer for {item}"
    assert not set(rejected) - {item.key for item in items}


def _releases(cluster: Cluster, dice: random.Random) -> None:
    app_id = f"app{dice.randint(1, 5)}"
    app = cluster.partition.live_application(app_id)
    held = list(app.allocations.values()) if app is not None else []
    key, uuid = dice.choice([f"k{dice.randint(1, 12)}", f"k{dice.randint(1, 12)}", ""]), ""
    if held and dice.random() < 0.5:
        chosen = dice.choice(held)
        key, uuid = dice.choice([(chosen.key, ""), (chosen.key, chosen.uuid), ("", chosen.uuid)])
    kind = dice.choice([Termination.UNKNOWN, Termination.STOPPED_BY_RM, Termination.TIMEOUT])
    expected = [a for a in held if (a.uuid == uuid if uuid else not key or a.key == key)]
    asks = list(app.asks) if app is not None and not uuid and kind is not Termination.TIMEOUT else []
    dropped = {ask for ask in asks if ask == key or not key} - {a.key for a in expected}
    item = ReleaseItem("default", app_id, key, kind, uuid)
    out = cluster.do(UpdateAllocations((), [item, item]))
    told = Counter((fact.key, fact.uuid) for fact in _told(out, ReleasedAllocation))  # type: ignore[attr-defined]
    in_vain = 1 if expected or dropped else 2  # the second item finds nothing, perhaps the first one neither
    assert told == Counter((a.key, a.uuid) for a in expected) + Counter({(key, uuid): in_vain})
    assert {fact.key for fact in _told(out, ReleasedAsk)} == dropped  # type: ignore[attr-defined]
    assert all(allocation.gone for allocation in expected)
    made = [fact.allocation for fact in _told(out, NewAllocation)]  # type: ignore[attr-defined]
    assert not {id(a) for a in expected} & {id(a) for a in made}
