"""Reasons of pending asks: each code, with correct figures that stay correct."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from builders import Cluster, ask, nodes
from muster_core.model.commands import NodeAction, UpdateAllocations
from muster_core.model.cordons import CordonCount, CordonKind
from muster_core.model.reasons import Reason, ReasonCode

LEAF = "{name: root, submitacl: '*', queues: [{name: a}]}"


def _cluster(queues: str = LEAF) -> Cluster:
    cluster = Cluster(queues)
    cluster.app("x", "root.a")
    return cluster


def _reason(cluster: Cluster, app_id: str = "x", key: str = "k") -> Reason:
    reason = cluster.reason(app_id, key)
    assert isinstance(reason, Reason)
    return reason


def test_no_nodes() -> None:
    cluster = _cluster()
    cluster.ask("x", "k", vcore=1)
    reason = _reason(cluster)
    assert (reason.code, reason.since_ns) == (ReasonCode.NO_NODES, cluster.now_ns)
    assert reason.sentence() == "The partition has no node."


def test_a_partition_whose_nodes_all_drain_has_none() -> None:
    cluster = _cluster()
    cluster.do(nodes(NodeAction.CREATE_DRAIN, {"n": {"vcore": 9}}))
    cluster.ask("x", "k", vcore=1)
    assert _reason(cluster).code is ReasonCode.NO_NODES
    assert _reason(cluster).closed == (CordonCount(CordonKind.RM, "", 1),)
    assert _reason(cluster).sentence().endswith("no schedulable node: 1 node is drained by the resource manager.")


def test_larger_than_any_node() -> None:
    cluster = _cluster()
    cluster.node("n1", vcore=4, memory=1)
    cluster.node("n2", vcore=6, memory=100)
    cluster.ask("x", "k", memory=50, vcore=7)
    reason = _reason(cluster)
    assert reason == Reason(
        ReasonCode.LARGER_THAN_ANY_NODE,
        "",
        "vcore",
        asked=7,
        limit=6,
        free=6,
        since_ns=cluster.now_ns,
        nodes=2,
        lacking=(("memory", 1), ("vcore", 2)),
    )
    assert reason.sentence() == (
        "It asks for 0.007 cores, and the largest node has 0.006 cores in all. "
        "Of 2 nodes 1 lacks memory and 2 lack vcore. Waiting does not help: a larger node would, or asking for less."
    )


def test_no_node_has_room() -> None:
    cluster = _cluster()
    cluster.node("n1", vcore=6)
    cluster.ask("x", "held", vcore=4)
    cluster.ask("x", "k", vcore=3)
    assert _reason(cluster) == Reason(
        ReasonCode.NO_NODE_HAS_ROOM,
        "",
        "vcore",
        asked=3,
        limit=6,
        free=2,
        since_ns=cluster.now_ns,
        nodes=1,
        lacking=(("vcore", 1),),
    )
    assert _reason(cluster).sentence() == "It asks for 0.003 cores, and no node has more than 0.002 cores free."


def test_a_node_over_its_capacity_has_nothing_free_rather_than_less() -> None:
    cluster = _cluster()
    cluster.node("n", vcore=6)
    cluster.ask("x", "held", vcore=6)
    cluster.do(nodes(NodeAction.UPDATE, {"n": {"vcore": 4}}))
    cluster.ask("x", "k", vcore=1)
    reason = _reason(cluster)
    assert (reason.code, reason.free, reason.limit) == (ReasonCode.NO_NODE_HAS_ROOM, 0, 4)


def test_free_resources_scattered() -> None:
    cluster = _cluster()
    cluster.node("n1", vcore=9, memory=1)
    cluster.node("n2", vcore=1, memory=9)
    cluster.ask("x", "k", vcore=5, memory=5)
    reason = _reason(cluster)
    assert reason == Reason(
        ReasonCode.FREE_RESOURCES_SCATTERED,
        since_ns=cluster.now_ns,
        nodes=2,
        lacking=(("memory", 1), ("vcore", 1)),
    )
    assert "No single node has every requested resource free" in reason.sentence()


@pytest.mark.parametrize(
    ("queues", "app_queue", "limited"),
    [
        ("{name: a, resources: {max: {memory: 10}}}", "root.a", "root.a"),
        ("{name: p, resources: {max: {memory: 10}}, queues: [{name: a}]}", "root.p.a", "root.p"),
    ],
)
def test_queue_max_names_the_queue_whose_max_it_is(queues: str, app_queue: str, limited: str) -> None:
    cluster = Cluster(f"{{name: root, submitacl: '*', queues: [{queues}]}}").having(
        {"n": {"memory": 100}}, {"x": app_queue}
    )
    cluster.ask("x", "held", memory=8)
    cluster.ask("x", "k", memory=3)
    reason = _reason(cluster)
    assert reason == Reason(ReasonCode.QUEUE_MAX, limited, "memory", asked=3, used=8, limit=10, since_ns=cluster.now_ns)
    assert reason.sentence() == f"Queue {limited} uses 8 bytes of its max of 10 bytes; 3 bytes more would exceed it."


def test_queue_max_applications() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}")
    cluster.node("n", vcore=100)
    for name in ("x", "y"):
        cluster.app(name, "root.a")
        cluster.ask(name, "k", vcore=1)
    reason = _reason(cluster, "y")
    assert reason == Reason(ReasonCode.QUEUE_MAX_APPLICATIONS, "root.a", used=1, limit=1, since_ns=cluster.now_ns)
    assert reason.sentence() == "Queue root.a runs 1 application and may run 1."
    assert cluster.application("y").reason is reason


@pytest.mark.parametrize("code", list(ReasonCode))
def test_each_has_a_sentence(code: ReasonCode) -> None:
    sentence = Reason(code, "root.a", "vcore", 1, 2, 3, 4).sentence()
    assert sentence.endswith(".")
    assert len(sentence) < 140


def test_the_same_no_again_keeps_its_beginning() -> None:
    cluster = _cluster()
    cluster.node("n", vcore=2)
    cluster.ask("x", "k", vcore=2)
    cluster.ask("x", "k2", vcore=2)
    since_ns = _reason(cluster, key="k2").since_ns
    cluster.wait(5)
    cluster.node("m", vcore=1)  # still no room, and the largest node is as before
    assert _reason(cluster, key="k2").since_ns == since_ns


def test_other_nodes_mean_another_no() -> None:
    cluster = _cluster()
    cluster.ask("x", "k", vcore=5)
    assert _reason(cluster).code is ReasonCode.NO_NODES
    cluster.node("n", vcore=4)
    assert (_reason(cluster).code, _reason(cluster).limit) == (ReasonCode.LARGER_THAN_ANY_NODE, 4)
    cluster.wait(1)
    cluster.app("y", "root.a")
    cluster.ask("y", "held", vcore=1)
    cluster.do(nodes(NodeAction.UPDATE, {"n": {"vcore": 5}}))
    assert (_reason(cluster).code, _reason(cluster).free) == (ReasonCode.NO_NODE_HAS_ROOM, 4)
    assert _reason(cluster).since_ns == cluster.now_ns
    cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert _reason(cluster).code is ReasonCode.NO_NODES


def test_asks_of_one_shape_and_leaf_share_one_reason() -> None:
    cluster = _cluster()
    cluster.do(UpdateAllocations([ask("x", f"k{number}", priority=number, vcore=1) for number in range(5)]))
    assert len({id(cluster.reason("x", f"k{number}")) for number in range(5)}) == 1


def test_a_reason_ends_with_the_wait() -> None:
    cluster = _cluster("{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}")
    cluster.node("n", vcore=1)
    cluster.app("y", "root.a")
    cluster.ask("x", "k", vcore=1)
    cluster.ask("y", "k", vcore=1)
    cluster.release("x", "k")
    assert cluster.placed("y") == {"k": "n"}
    assert cluster.application("y").reason is None
    assert cluster.queue("root.a").waitlists == {}


@pytest.mark.parametrize(
    ("reason", "clause", "helps"),
    [
        (
            Reason(ReasonCode.QUEUE_MAX, "root.a", "vcore", 3000, limit=2000),
            "queue root.a may use 2 cores in all", "max",
        ),
        (
            Reason(ReasonCode.USER_LIMIT, "root", "vcore", 3000, limit=2000, who="ann"),
            "user ann may use 2 cores in all in queue root", "limit",
        ),
        (Reason(ReasonCode.QUEUE_MAX, "root", "license", 5, limit=4), "the pool of license has 4 in all", "pool"),
    ],
)  # fmt: skip
def test_an_ask_above_a_limit_alone_says_that_waiting_does_not_help(reason: Reason, clause: str, helps: str) -> None:
    assert reason.clause().endswith(f", and {clause}")
    assert re.search(
        rf"Waiting does not help: a (higher|larger) {helps} would, or asking for less\.", reason.sentence()
    )
    fits = replace(reason, asked=reason.limit, used=1)
    assert "would go over" in fits.clause() or "more" in fits.clause()
    assert "Waiting does not help" not in fits.sentence()


def test_a_gang_above_a_limit_alone_says_that_waiting_does_not_help() -> None:
    reason = Reason(ReasonCode.GANG_ROOM, "root.a", "vcore", 5000, limit=4000)
    assert (
        reason.clause()
        == "its gang starts as a whole and asks for 5 cores in all, and queue root.a may use 4 cores in all"
    )


def test_where_nodes_are_closed_waiting_may_help() -> None:
    reason = Reason(ReasonCode.LARGER_THAN_ANY_NODE, "", "vcore", 5000, limit=4000)
    assert "Waiting does not help" in reason.sentence()
    assert "Waiting" not in replace(reason, closed=(CordonCount(CordonKind.OPERATOR, "", 1),)).sentence()
