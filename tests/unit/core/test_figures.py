"""The counts in a reason, and the node to keep free, against a plain look at every node, through random lives."""

from __future__ import annotations

import random

import pytest
from builders import Cluster, nodes
from muster_core.model.commands import NodeAction
from muster_core.model.node import Node
from muster_core.model.reasons import ReasonCode
from muster_core.model.resources import INT64_MAX, Shape, fits

QUEUES = "{name: root, submitacl: '*', queues: [{name: q}]}"


def _score(node: Node, shape: Shape) -> float:
    wanted = dict(shape.items)
    return sum(max(free - wanted.get(number, 0), 0) / free for number, free in enumerate(node.available) if free > 0)


def _check(cluster: Cluster, shape: Shape) -> None:
    partition = cluster.partition
    usable = [node for node in partition.nodes.values() if node.schedulable]
    reason = partition.figures.reason(shape)
    if not usable:
        assert reason.code is ReasonCode.NO_NODES
        return
    lacking = {partition.types.names[n]: sum(v > node.available[n] for node in usable) for n, v in shape.items}
    assert (reason.nodes, dict(reason.lacking)) == (
        len(usable),
        {name: count for name, count in lacking.items() if count},
    )
    if reason.code in (ReasonCode.LARGER_THAN_ANY_NODE, ReasonCode.NO_NODE_HAS_ROOM):
        number = partition.types.numbers[reason.resource_type]
        assert reason.free == max(0, *(node.available[number] for node in usable))
        assert reason.limit == max(node.capacity[number] for node in usable)
        larger = any(value > max(node.capacity[n] for node in usable) for n, value in shape.items)
        assert (reason.code is ReasonCode.LARGER_THAN_ANY_NODE) == larger
    could = [node for node in usable if not node.reservations and fits(shape.items, node.capacity)]
    found = partition.figures.best_to_reserve(shape)
    if not found:
        assert could == []
        return
    (best,) = found
    assert best in could
    scores = [_score(node, shape) for node in could]
    assert _score(best, shape) == pytest.approx(min(scores))


@pytest.mark.parametrize("seed", range(12))
def test_the_figures_are_those_of_all_nodes(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster(QUEUES)
    cluster.app("x", "root.q")
    types = cluster.partition.types
    for step in range(80):
        known = list(cluster.partition.nodes)
        kind = dice.choice(["node", "ask", "ask", "gone", "drain", "back", "resize", "wait"])
        if kind == "node" or not known:
            capacity = {name: dice.randint(1, 20) for name in dice.sample(["memory", "gpu", "disk"], 2)}
            cluster.node(f"n{step}", **capacity)
        elif kind == "ask":
            cluster.ask("x", f"k{step}", memory=dice.randint(0, 9), gpu=dice.randint(1, 9))
        elif kind == "gone":
            cluster.do(nodes(NodeAction.DECOMISSION, {dice.choice(known): None}))
        elif kind == "resize":
            cluster.do(nodes(NodeAction.UPDATE, {dice.choice(known): {"memory": dice.randint(0, 20), "gpu": 4}}))
        elif kind == "wait":
            cluster.wait(3)
        else:
            action = NodeAction.DRAIN_NODE if kind == "drain" else NodeAction.DRAIN_TO_SCHEDULABLE
            cluster.do(nodes(action, {dice.choice(known): None}))
        for wanted in ({"memory": 5}, {"memory": 3, "gpu": 2}, {"gpu": 30}, {"disk": 1, "memory": 19}):
            _check(cluster, types.shape(wanted))


def test_sums_beyond_64_bits_are_counted_as_on_the_wire() -> None:
    cluster = Cluster(QUEUES).having({"n": {"memory": INT64_MAX}}, {"x": "root.q"})
    shape = cluster.partition.types.shape({"memory": INT64_MAX})
    assert cluster.partition.figures.best_to_reserve(shape) == [cluster.the_node("n")]
    cluster.ask("x", "k", memory=INT64_MAX)
    cluster.ask("x", "more", memory=INT64_MAX)
    assert cluster.pending("x") == {"more": "NO_NODE_HAS_ROOM"}


def test_alike_shapes_have_their_reason_once_until_a_node_changes() -> None:
    cluster = Cluster(QUEUES)
    cluster.node("n", memory=4)
    shape = cluster.partition.types.shape({"memory": 5})
    first = cluster.partition.figures.reason(shape)
    assert cluster.partition.figures.reason(shape) is first
    cluster.do(nodes(NodeAction.UPDATE, {"n": {"memory": 3}}))
    assert cluster.partition.figures.reason(shape).limit == 3
