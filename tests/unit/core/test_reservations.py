"""Reservations: which ask gets a node, keeps it and gives it up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, ask, nodes
from muster_core.model.commands import NodeAction, ReleaseItem, Termination, UpdateAllocations
from muster_core.model.outcome import EventDetail

QUEUES = (
    "{name: root, submitacl: '*', queues: [{name: q}, {name: other}, {name: capped, resources: {max: {memory: 4}}}]}"
)


def crowded(*node_ids: str, partition: str = "") -> Cluster:
    """Each node has 10, of which 6 are taken: 4 are free."""
    cluster = Cluster(QUEUES, partition=partition)
    cluster.app("filler", "root.other")
    for node_id in node_ids or ("n1",):
        cluster.node(node_id, memory=10)
        cluster.ask("filler", f"on {node_id}", memory=6)
    return cluster


def kept_for(cluster: Cluster, node_id: str = "n1") -> list[tuple[str, str]]:
    return [(each.app.app_id, each.key) for each in cluster.the_node(node_id).reservations]


def wants_all(cluster: Cluster, *app_ids: str, queue: str = "root.q") -> None:
    for app_id in app_ids:
        cluster.app(app_id, queue)
        cluster.ask(app_id, "all", memory=10)


def test_the_next_applications_ask_gets_the_node_when_the_first_one_is_withdrawn() -> None:
    cluster = crowded()
    wants_all(cluster, "first", "second")
    cluster.wait(2)
    assert kept_for(cluster) == [("first", "all")]
    cluster.release("first", "all")
    assert kept_for(cluster) == [("second", "all")]


def test_the_next_applications_ask_gets_a_node_when_the_first_one_is_placed() -> None:
    cluster = crowded("n1", "n2")
    wants_all(cluster, "first", "second")
    cluster.wait(2)
    cluster.release("filler", "on n1")
    assert cluster.placed("first") == {"all": "n1"}
    assert kept_for(cluster, "n2") == [("second", "all")]


def test_an_application_that_must_wait_to_run_leaves_its_turn_to_the_next() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: q, maxapplications: 1}, {name: other}]}")
    cluster.app("filler", "root.other")
    cluster.node("n1", memory=10)
    cluster.ask("filler", "k", memory=6)
    wants_all(cluster, "first")
    cluster.app("quick", "root.q")
    cluster.ask("quick", "k", memory=1)  # now the leaf runs as many as it may
    cluster.wait(5)
    assert kept_for(cluster) == []
    cluster.ask("quick", "all", memory=10)
    cluster.wait(5)
    assert kept_for(cluster) == [("quick", "all")]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: c.ask("first", "all", memory=10, priority=7), id="priority"),
        pytest.param(
            lambda c: c.do(UpdateAllocations([replace(ask("first", "all", memory=10), allow_preempt_other=True)])),
            id="flags",
        ),
    ],
)
def test_an_ask_sent_again_for_as_much_keeps_its_node(change: object) -> None:
    cluster = crowded()
    wants_all(cluster, "first")
    cluster.wait(2)
    since_ns = cluster.application("first").asks["all"].reserved_ns
    cluster.wait(1)
    out = change(cluster)  # type: ignore[operator]
    assert kept_for(cluster) == [("first", "all")]
    assert cluster.application("first").asks["all"].reserved_ns == since_ns
    assert not [event for event in out.events if event.detail is EventDetail.NODE_RESERVATION]
    cluster.app("small", "root.q")
    cluster.ask("small", "k", memory=1)
    assert cluster.pending("small") == {"k": "RESERVED_FOR_OTHERS"}
    cluster.release("filler", "on n1")
    assert cluster.placed("first") == {"all": "n1"}


def test_an_ask_sent_again_for_another_amount_waits_for_its_turn_anew() -> None:
    cluster = crowded()
    wants_all(cluster, "first")
    cluster.wait(2)
    out = cluster.ask("first", "all", memory=9)
    changes = [event.change.name for event in out.events if event.detail is EventDetail.NODE_RESERVATION]
    assert changes == ["REMOVE", "ADD"]  # it is as old as before
    assert kept_for(cluster) == [("first", "all")]


def test_of_several_asks_whose_nodes_have_room_the_most_urgent_goes_first() -> None:
    cluster = Cluster(
        "{name: root, submitacl: '*', queues: ["
        "{name: p, resources: {max: {memory: 10}}, queues: [{name: a}, {name: b}]}, {name: other}]}"
    )
    cluster.app("filler", "root.other")
    for node_id in ("n1", "n2"):
        cluster.node(node_id, memory=10)
        cluster.ask("filler", f"on {node_id}", memory=6)
    cluster.app("low", "root.p.a")
    cluster.app("high", "root.p.b")
    cluster.ask("low", "all", memory=10)
    cluster.wait(2)
    cluster.ask("high", "all", memory=9, priority=5)
    cluster.wait(2)
    nodes_of = {key: node_id for node_id in ("n1", "n2") for key in kept_for(cluster, node_id)}
    assert set(nodes_of) == {("low", "all"), ("high", "all")}
    low, high = nodes_of["low", "all"], nodes_of["high", "all"]
    for command in (f"on {low}", f"on {high}"):
        cluster.core.apply(_gone(command), cluster.now_ns)
    cluster.do()
    assert (cluster.placed("low"), cluster.placed("high")) == ({}, {"all": high})
    assert cluster.pending("low") == {"all": "QUEUE_MAX"}


def _gone(key: str) -> UpdateAllocations:
    return UpdateAllocations((), [ReleaseItem("default", "filler", key, Termination.STOPPED_BY_RM)])


def test_room_on_its_node_while_a_limit_holds_it_back_is_taken_when_the_limit_moves() -> None:
    cluster = Cluster(QUEUES).having({}, {"filler": "root.other", "x": "root.capped"})
    cluster.node("n1", memory=4)
    cluster.ask("filler", "k", memory=2)
    cluster.ask("x", "all", memory=4)
    cluster.wait(2)
    assert kept_for(cluster) == [("x", "all")]
    cluster.node("n2", memory=1)
    cluster.ask("x", "one", memory=1, priority=1)
    assert cluster.placed("x") == {"one": "n2"}
    cluster.release("filler", "k")
    assert cluster.pending("x") == {"all": "QUEUE_MAX"}
    assert kept_for(cluster) == [("x", "all")]
    cluster.release("x", "one")
    assert cluster.placed("x") == {"all": "n1"}


def test_a_reservation_whose_ask_waits_for_room_outlives_the_timeout() -> None:
    cluster = crowded(partition="reservation: {timeout: 1m},")
    wants_all(cluster, "first")
    cluster.wait(2)
    for _ in range(3):
        out = cluster.wait(61)
        assert not [event for event in out.events if event.detail is EventDetail.NODE_RESERVATION]
    assert kept_for(cluster) == [("first", "all")]


def test_a_reservation_whose_ask_is_over_a_limit_is_given_up_in_time() -> None:
    cluster = Cluster(QUEUES, partition="reservation: {timeout: 1m},").having(
        {}, {"filler": "root.other", "x": "root.capped"}
    )
    cluster.node("n1", memory=4)
    cluster.ask("filler", "k", memory=2)
    cluster.ask("x", "all", memory=4)
    cluster.wait(2)
    cluster.node("n2", memory=1)
    cluster.ask("x", "one", memory=1, priority=1)
    cluster.wait(59)
    assert kept_for(cluster) == [("x", "all")]
    cluster.wait(1)
    assert kept_for(cluster) == []


def test_the_best_of_many_nodes_is_the_one_that_the_ask_would_use_up_most() -> None:
    cluster = Cluster(QUEUES)
    cluster.app("filler", "root.other")
    for number, free in enumerate([3, 8, 9, 8]):
        cluster.node(f"n{number}", memory=10)
        cluster.ask("filler", f"k{number}", memory=10 - free)
        cluster.do(nodes(NodeAction.DRAIN_NODE, {f"n{number}": None}))
    for number in range(4):
        cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {f"n{number}": None}))
    (best,) = cluster.partition.figures.best_to_reserve(cluster.partition.types.shape({"memory": 7}))
    assert best is cluster.the_node("n0")  # nothing would be left of what is free there
    (best,) = cluster.partition.figures.best_to_reserve(cluster.partition.types.shape({"memory": 2}))
    assert best is cluster.the_node("n0")
    several = cluster.partition.figures.best_to_reserve(cluster.partition.types.shape({"memory": 7}), most=3)
    assert [node.node_id for node in several] == ["n0", "n1", "n3"]
    assert cluster.partition.figures.best_to_reserve(cluster.partition.types.shape({"memory": 11})) == []
    assert cluster.partition.figures.best_to_reserve(cluster.partition.types.shape({"gpu": 1})) == []
