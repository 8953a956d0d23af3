"""The life of nodes in the words of seed 000, and of seed 001 where it says more."""

from __future__ import annotations

import pytest
from builders import Cluster, allocations, ask, nodes
from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_scheduler.core.outcome import (
    AcceptedNode,
    Change,
    Detail,
    EventType,
    Outcome,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
)
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.queue_yaml import load_queue_config


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    made.app("x", "root.a")
    return made


def _node_events(out: Outcome) -> list[tuple[Change, Detail, object]]:
    return [(e.change, e.detail, e.resource) for e in out.events if e.type is EventType.NODE]


def test_create(cluster: Cluster) -> None:
    out = cluster.do(nodes(NodeAction.CREATE, {"n": {"vcore": 5, "memory": 0}}))
    assert out.facts == [AcceptedNode("n")]
    assert _node_events(out) == [(Change.ADD, Detail.NONE, {"vcore": 5})]
    assert allocations(cluster.ask("x", "k", vcore=5)) == [("x", "k", "n")]


def test_create_of_a_node_that_exists_is_rejected_and_changes_nothing(cluster: Cluster) -> None:
    cluster.node("n", vcore=5)
    for action in (NodeAction.CREATE, NodeAction.CREATE_DRAIN):
        out = cluster.do(nodes(action, {"n": {"vcore": 50}}))
        (fact,) = out.facts
        assert isinstance(fact, RejectedNode)
        assert "existing node n, node name must be unique" in fact.reason
        assert out.events == []
    assert cluster.the_node("n").capacity == [5, 0]


def test_create_drain_waits_for_drain_to_schedulable(cluster: Cluster) -> None:
    cluster.do(nodes(NodeAction.CREATE_DRAIN, {"n": {"vcore": 5}}))
    cluster.ask("x", "k", vcore=1)
    assert cluster.pending("x") == {"k": "NO_NODES"}
    out = cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n": None}))
    assert _node_events(out)[0] == (Change.SET, Detail.NODE_SCHEDULABLE, None)
    assert allocations(out) == [("x", "k", "n")]


def test_drain_keeps_what_runs_and_takes_no_more(cluster: Cluster) -> None:
    cluster.node("n", vcore=5)
    cluster.ask("x", "k", vcore=1)
    out = cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert out.facts == []
    assert [event.message for event in out.events] == ["schedulable: false"]
    cluster.ask("x", "k2", vcore=1)
    assert (cluster.placed("x"), cluster.pending("x")) == ({"k": "n"}, {"k2": "NO_NODES"})
    assert not cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert cluster.partition.capacity == [5, 0]  # a draining node counts still


def test_drain_to_schedulable_of_a_node_that_does_not_drain_is_an_error(cluster: Cluster) -> None:
    cluster.node("n", vcore=5)
    out = cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n": None}))
    assert out.facts == [RejectedNode("n", "node n is not draining: DRAIN_TO_SCHEDULABLE is not possible")]


@pytest.mark.parametrize(
    "action",
    [NodeAction.UPDATE, NodeAction.DRAIN_NODE, NodeAction.DRAIN_TO_SCHEDULABLE, NodeAction.DECOMISSION],
)
def test_a_change_of_an_unknown_node_fails(cluster: Cluster, action: NodeAction) -> None:
    out = cluster.do(nodes(action, {"ghost": {"vcore": 1}}))
    assert out.facts == [
        RejectedNode("ghost", f"node ghost does not exist in partition default: {action.name} is not possible")
    ]
    assert out.events == []
    assert cluster.partition.nodes == {}


def test_an_action_that_is_not_set_is_rejected(cluster: Cluster) -> None:
    out = cluster.do(nodes(NodeAction.UNKNOWN, {"n": {"vcore": 1}}))
    assert out.facts == [RejectedNode("n", "node n: action is not set")]


def test_an_unknown_partition_is_rejected(cluster: Cluster) -> None:
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 1}, partition="gpu"),)))
    assert out.facts == [RejectedNode("n", "failed to find partition 'gpu' for node n")]


def test_update_replaces_capacity_occupied_and_attributes_where_said(cluster: Cluster) -> None:
    first = NodeItem("n", NodeAction.CREATE, {"a": "1"}, {"vcore": 5, "memory": 5}, {"memory": 1})
    assert _node_events(cluster.do(UpdateNodes((first,)))) == [
        (Change.ADD, Detail.NONE, {"vcore": 5, "memory": 5}),
        (Change.SET, Detail.NODE_OCCUPIED, {"memory": 1}),
    ]
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"b": "2"}),)))
    node = cluster.the_node("n")
    assert out.facts == out.events == []
    assert (node.attributes, node.capacity, node.occupied) == ({"b": "2"}, [5, 5], [0, 1])
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, capacity={"vcore": 9}, occupied={"vcore": 2}),)))
    assert _node_events(out) == [
        (Change.SET, Detail.NODE_CAPACITY, {"vcore": 9}),
        (Change.SET, Detail.NODE_OCCUPIED, {"vcore": 2}),
    ]
    assert (node.available, node.attributes) == ([7, 0], {"b": "2"})
    assert cluster.partition.capacity == [9, 0]


def test_an_update_that_says_nothing_new_writes_nothing(cluster: Cluster) -> None:
    item = NodeItem("n", NodeAction.CREATE, {"a": "1"}, {"vcore": 5, "memory": 0}, {"memory": 1})
    cluster.do(UpdateNodes((item,)))
    again = NodeItem("n", NodeAction.UPDATE, {"a": "1"}, {"vcore": 5}, {"memory": 1})
    assert not cluster.do(UpdateNodes((again,)))


def test_more_capacity_and_less_occupied_make_room(cluster: Cluster) -> None:
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 5}, occupied={"vcore": 3}),)))
    cluster.do(UpdateAllocations([ask("x", "a", vcore=4), ask("x", "b", vcore=4)]))
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, occupied={"vcore": 1}),)))
    assert allocations(out) == [("x", "a", "n")]
    assert allocations(cluster.do(nodes(NodeAction.UPDATE, {"n": {"vcore": 9}}))) == [("x", "b", "n")]


def test_capacity_below_what_is_allocated_mends_with_releases(cluster: Cluster) -> None:
    cluster.node("n", vcore=9)
    cluster.do(UpdateAllocations([ask("x", f"k{number}", vcore=3) for number in range(3)]))
    cluster.do(nodes(NodeAction.UPDATE, {"n": {"vcore": 4}}))
    assert cluster.the_node("n").available == [-5, 0]
    cluster.ask("x", "more", vcore=1)
    cluster.release("x", "k0")
    assert "more" not in cluster.placed("x")
    cluster.release("x", "k1")
    assert cluster.placed("x") == {"k2": "n", "more": "n"}


def test_decomission_releases_and_asks_elsewhere_go_on(cluster: Cluster) -> None:
    cluster.node("n", vcore=5)
    cluster.do(UpdateAllocations([ask("x", "a", vcore=2), ask("x", "b", vcore=2), ask("x", "waits", vcore=4)]))
    foreign = AskItem("f", "", "default", {"vcore": 1}, tags={"foreign": "static"}, node_id="n")
    cluster.do(UpdateAllocations([foreign]))
    out = cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}), nodes(NodeAction.CREATE, {"m": {"vcore": 5}}))
    released = [fact for fact in out.facts if isinstance(fact, ReleasedAllocation)]
    assert [(fact.key, fact.termination, fact.message) for fact in released] == [
        ("a", Termination.STOPPED_BY_RM, "Node n Removed"),
        ("b", Termination.STOPPED_BY_RM, "Node n Removed"),
    ]
    removals = [(e.type, e.detail) for e in out.events if e.change is Change.REMOVE]
    assert removals[:2] == [(EventType.APP, Detail.ALLOC_NODEREMOVED), (EventType.NODE, Detail.NODE_ALLOC)]
    assert removals[-1] == (EventType.NODE, Detail.NODE_DECOMISSION)
    assert cluster.placed("x") == {"waits": "m"}
    assert cluster.partition.foreign == {}
    assert list(cluster.partition.nodes) == ["m"]


def test_a_node_may_come_back_under_its_name(cluster: Cluster) -> None:
    cluster.node("n", vcore=5)
    cluster.ask("x", "k", vcore=5)
    cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}), nodes(NodeAction.CREATE, {"n": {"vcore": 5}}))
    assert cluster.the_node("n").allocated == [0, 0]
    assert allocations(cluster.ask("x", "k", vcore=5)) == [("x", "k", "n")]


def test_a_new_node_brings_its_allocations(cluster: Cluster) -> None:
    """Seed 001: NodeInfo.existingAllocations."""
    existing = (
        AskItem("k", "x", "", {"vcore": 2}, uuid="u-1"),
        AskItem("k2", "x", "", {"vcore": 1}),
        AskItem("lost", "ghost", "", {"vcore": 2}),
    )
    item = NodeItem("n", NodeAction.CREATE, capacity={"vcore": 5}, existing=existing)
    out = cluster.do(UpdateNodes((item,)))
    assert AcceptedNode("n") in out.facts
    assert [fact.key for fact in out.facts if isinstance(fact, RejectedAsk)] == ["lost"]
    held = cluster.application("x").allocations
    assert held["k"].uuid == "u-1"
    assert held["k2"].uuid  # ids are made for those that have none
    assert cluster.the_node("n").available == [2, 0]


def test_nodes_of_another_partition_bring_theirs_there() -> None:
    config, _ = load_queue_config(
        "partitions: [{queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}, "
        "{name: gpu, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
    )
    assert config is not None
    core = SchedulerCore(config)
    core.apply(UpdateApplications((AppItem("x", "root.a", "gpu", "u"),)), 1)
    existing = (AskItem("k", "x", "", {"vcore": 2}),)
    core.apply(UpdateNodes((NodeItem("n", NodeAction.CREATE, {}, {"vcore": 5}, None, existing, "gpu"),)), 2)
    assert list(core.partitions["gpu"].apps["x"].allocations) == ["k"]
    assert core.partitions["default"].nodes == {}
