"""Messages to the autoscaler: once for each ask that only a larger cluster can place."""

from __future__ import annotations

from builders import Cluster, ask, nodes
from muster_core.model.commands import NodeAction, UpdateAllocations
from muster_core.model.outcome import Outcome, ScaleUpHint

QUEUES = "{name: root, submitacl: '*', queues: [{name: q, resources: {max: {memory: 10}}}, {name: open}]}"


def told(out: Outcome) -> list[tuple[str, str]]:
    return [(fact.app_id, fact.key) for fact in out.facts if isinstance(fact, ScaleUpHint)]


def test_each_ask_is_reported_once() -> None:
    cluster = Cluster(QUEUES).having({"n": {"memory": 4}}, {"x": "root.open"})
    cluster.do(UpdateAllocations([ask("x", f"k{number}", memory=5) for number in range(3)]))
    assert told(cluster.wait(1)) == [("x", "k0"), ("x", "k1"), ("x", "k2")]
    assert told(cluster.wait(100)) == []
    cluster.ask("x", "k3", memory=5)
    cluster.ask("x", "k0", memory=5, priority=3)  # sent again
    assert told(cluster.wait(1)) == [("x", "k3")]


def test_all_asks_that_move_from_a_limit_to_the_nodes_are_reported() -> None:
    cluster = Cluster(QUEUES).having({"n": {"memory": 10}}, {"filler": "root.q"})
    cluster.ask("filler", "k", memory=5)
    for app_id in ("x", "y", "z"):
        cluster.app(app_id, "root.q")
        cluster.ask(app_id, "k", memory=8)
        assert cluster.pending(app_id) == {"k": "QUEUE_MAX"}
    assert told(cluster.wait(5)) == []
    cluster.do(nodes(NodeAction.UPDATE, {"n": {"memory": 6}}))
    cluster.release("filler", "k")
    assert sorted(told(cluster.wait(1))) == [("x", "k"), ("y", "k"), ("z", "k")]


def test_asks_stopped_by_a_limit_meanwhile_are_reported_once_the_limit_allows() -> None:
    cluster = Cluster(QUEUES).having({"n": {"memory": 4}}, {"x": "root.q"})
    cluster.ask("x", "large", memory=8)
    cluster.ask("x", "small", memory=3, priority=-1)  # 3 of 10 used: 8 more would exceed it
    assert told(cluster.wait(1)) == []
    cluster.release("x", "small")
    assert told(cluster.wait(1)) == [("x", "large")]


def test_asks_that_exist_for_less_than_a_second_are_not_reported() -> None:
    cluster = Cluster(QUEUES).having({"n": {"memory": 4}}, {"x": "root.open"})
    cluster.ask("x", "k", memory=5)
    cluster.release("x", "k")
    assert told(cluster.wait(1)) == []
