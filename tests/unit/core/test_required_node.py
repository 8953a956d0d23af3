"""Daemons: asks that can run on one node only."""

from __future__ import annotations

from dataclasses import replace

from builders import Cluster, ask, nodes
from muster_core.model.commands import AskItem, NodeAction, NodeItem, UpdateAllocations, UpdateNodes
from muster_core.model.outcome import Outcome, ReleasedAllocation

QUEUES = "{name: root, submitacl: '*', queues: [{name: q}, {name: daemons}]}"


def daemon(key: str, node_id: str, memory: int = 2, priority: int = 0) -> UpdateAllocations:
    item = ask("d", key, memory=memory, priority=priority)
    return UpdateAllocations([replace(item, tags={"yunikorn.apache.org/requiredNode": node_id})])


def cluster_of(*node_ids: str) -> Cluster:
    cluster = Cluster(QUEUES).having({}, {"d": "root.daemons", "x": "root.q"})
    for node_id in node_ids:
        cluster.node(node_id, memory=4)
    return cluster


def released(out: Outcome) -> list[str]:
    return [fact.key for fact in out.facts if isinstance(fact, ReleasedAllocation)]


def test_a_full_node_that_comes_brings_its_daemon_to_its_right() -> None:
    cluster = cluster_of()
    cluster.do(daemon("k", "late"))
    assert cluster.pending("d") == {"k": "REQUIRED_NODE_UNKNOWN"}
    victim = AskItem("v", "x", "default", {"memory": 4}, allow_preempt_self=True)
    late = NodeItem("late", NodeAction.CREATE, capacity={"memory": 4}, existing=(victim,))
    out = cluster.do(UpdateNodes((late,)))
    assert cluster.pending("d") == {"k": "REQUIRED_NODE_FULL"}
    assert [each.key for each in cluster.the_node("late").reservations] == ["k"]
    assert released(out) == ["v"]
    cluster.release("x", "v")
    assert cluster.placed("d") == {"k": "late"}


def test_a_node_that_goes_is_not_known_any_more() -> None:
    cluster = cluster_of("n")
    cluster.ask("x", "full", memory=4)
    cluster.do(daemon("k", "n"))
    cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}))
    assert cluster.pending("d") == {"k": "REQUIRED_NODE_UNKNOWN"}
    cluster.node("n", memory=4)
    assert cluster.placed("d") == {"k": "n"}


def test_a_daemon_that_wants_another_node_gives_the_first_one_up() -> None:
    cluster = cluster_of("n", "m")
    cluster.ask("x", "full", memory=4)
    (full,) = cluster.placed("x").values()
    other = "m" if full == "n" else "n"
    cluster.do(daemon("k", full))
    assert [each.key for each in cluster.the_node(full).reservations] == ["k"]
    cluster.do(daemon("k", other))
    assert cluster.placed("d") == {"k": other}
    assert not cluster.the_node(full).reservations


def test_a_daemon_keeps_a_draining_node_that_others_give_up() -> None:
    cluster = cluster_of("n")
    cluster.ask("x", "full", memory=3)
    cluster.ask("x", "large", memory=4)
    cluster.wait(2)
    assert [each.key for each in cluster.the_node("n").reservations] == ["large"]
    cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert not cluster.the_node("n").reservations
    cluster.do(daemon("k", "n"))
    assert [each.key for each in cluster.the_node("n").reservations] == ["k"]
    cluster.release("x", "full")
    assert (cluster.placed("d"), cluster.placed("x")) == ({"k": "n"}, {})


def test_a_daemon_larger_than_its_node_reserves_nothing() -> None:
    cluster = cluster_of("n")
    cluster.do(daemon("k", "n", memory=5))
    cluster.wait(100)
    assert not cluster.the_node("n").reservations
    cluster.do(nodes(NodeAction.UPDATE, {"n": {"memory": 5}}))
    assert cluster.placed("d") == {"k": "n"}


def test_the_most_urgent_daemon_goes_first_in_any_order_of_reservations() -> None:
    cluster = cluster_of("n")
    cluster.ask("x", "full", memory=4)
    cluster.do(daemon("low", "n", memory=3))
    cluster.do(daemon("high", "n", memory=4, priority=5))
    assert [each.key for each in cluster.the_node("n").reservations] == ["low", "high"]
    cluster.release("x", "full")
    assert cluster.placed("d") == {"high": "n"}


def test_nodes_that_never_came_are_forgotten_with_their_daemons() -> None:
    cluster = cluster_of()
    for number in range(10):
        cluster.do(daemon("k", f"n{number}"))
    assert list(cluster.partition.waiting.required) == ["n9"]
    cluster.release("d", "k")
    assert not cluster.partition.waiting.required
