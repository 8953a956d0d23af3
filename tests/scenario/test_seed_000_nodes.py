"""The life of nodes, as the scheduler interface and its previous generation describe it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, allocations, ask, nodes
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    SetEvents,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_core.model.outcome import (
    AcceptedNode,
    EventChange,
    EventDetail,
    EventType,
    Outcome,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
)
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_si.constants import REQUIRED_NODE_TAG


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    made.app("x", "root.a")
    return made


def _node_events(out: Outcome) -> list[tuple[EventChange, EventDetail, object]]:
    return [(e.change, e.detail, e.resource) for e in out.events if e.type is EventType.NODE]


def test_create(cluster: Cluster) -> None:
    out = cluster.do(nodes(NodeAction.CREATE, {"n": {"vcore": 5, "memory": 0}}))
    assert out.facts == [AcceptedNode("n")]
    assert _node_events(out) == [(EventChange.ADD, EventDetail.NONE, {"vcore": 5})]
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
    assert _node_events(out)[0] == (EventChange.SET, EventDetail.NODE_SCHEDULABLE, None)
    assert allocations(out) == [("x", "k", "n")]


def test_drain_keeps_what_runs_and_takes_no_more(cluster: Cluster) -> None:
    cluster.node("n", vcore=5)
    cluster.ask("x", "k", vcore=1)
    out = cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert out.facts == [AcceptedNode("n")]
    assert [event.message for event in out.events] == ["schedulable: false"]
    cluster.ask("x", "k2", vcore=1)
    assert (cluster.placed("x"), cluster.pending("x")) == ({"k": "n"}, {"k2": "NO_NODES"})
    again = cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert (again.facts, again.events) == ([AcceptedNode("n")], [])
    assert cluster.partition.capacity == [5, 0]  # a draining node counts still


def test_a_repeated_node_action_changes_nothing(cluster: Cluster) -> None:
    """The k8shim enables each node twice when it starts."""
    cluster.node("n", vcore=5)
    for action in (NodeAction.DRAIN_TO_SCHEDULABLE, NodeAction.DRAIN_NODE, NodeAction.DRAIN_TO_SCHEDULABLE):
        cluster.do(nodes(action, {"n": None}))
        version = cluster.partition.version
        again = cluster.do(nodes(action, {"n": None}))
        assert (again.facts, again.events) == ([AcceptedNode("n")], [])
        assert not list(again.objects())
        assert cluster.partition.version == version


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


def test_update_replaces_capacity_occupied_and_attributes_where_said(cluster: Cluster) -> None:
    first = NodeItem("n", NodeAction.CREATE, {"a": "1"}, capacity={"vcore": 5, "memory": 5}, occupied={"memory": 1})
    assert _node_events(cluster.do(UpdateNodes((first,)))) == [
        (EventChange.ADD, EventDetail.NONE, {"vcore": 5, "memory": 5}),
        (EventChange.SET, EventDetail.NODE_OCCUPIED, {"memory": 1}),
    ]
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"b": "2"}),)))
    node = cluster.the_node("n")
    assert (out.facts, out.events) == ([AcceptedNode("n")], [])
    assert (node.attributes, node.capacity, node.occupied) == ({"b": "2"}, [5, 5], [0, 1])
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, capacity={"vcore": 9}, occupied={"vcore": 2}),)))
    assert _node_events(out) == [
        (EventChange.SET, EventDetail.NODE_CAPACITY, {"vcore": 9}),
        (EventChange.SET, EventDetail.NODE_OCCUPIED, {"vcore": 2}),
    ]
    assert (node.available, node.attributes) == ([7, 0], {"b": "2"})
    assert cluster.partition.capacity == [9, 0]


def test_an_update_that_says_nothing_new_writes_nothing(cluster: Cluster) -> None:
    item = NodeItem("n", NodeAction.CREATE, {"a": "1"}, capacity={"vcore": 5, "memory": 0}, occupied={"memory": 1})
    cluster.do(UpdateNodes((item,)))
    again = NodeItem("n", NodeAction.UPDATE, {"a": "1"}, capacity={"memory": 0, "vcore": 5}, occupied={"memory": 1})
    out = cluster.do(UpdateNodes((again,)))
    assert (out.facts, out.events, list(out.objects())) == ([AcceptedNode("n")], [], [])


def test_a_type_that_a_node_names_no_more_is_0_as_before(cluster: Cluster) -> None:
    """It is no event; but it is on record: what the RM says there is none of, nobody else can bring (the event handler
    framework)."""
    cluster.node("n", vcore=5, memory=0)
    out = cluster.do(nodes(NodeAction.UPDATE, {"n": {"vcore": 5}}))
    assert (out.facts, out.events) == ([AcceptedNode("n")], [])
    assert cluster.the_node("n").reported is None


@pytest.mark.parametrize("said", ["false", "False", "0"])
def test_a_node_that_is_not_ready_takes_daemons_only(cluster: Cluster, said: str) -> None:
    """The previous generation, NodeReadyAttribute. (A daemon may be what makes the node ready.)"""
    cluster.do(
        UpdateNodes((NodeItem("n", NodeAction.CREATE, {"ready": "true", "si/hostname": "h"}, capacity={"vcore": 9}),))
    )
    cluster.ask("x", "runs", vcore=1)
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"ready": said}, capacity={"vcore": 9}),)))
    assert out.facts == [AcceptedNode("n")]
    assert [(e.detail, e.message) for e in out.events] == [(EventDetail.NODE_READY, "ready: false")]
    assert cluster.the_node("n").attributes == {"ready": said, "si/hostname": "h"}
    cluster.ask("x", "waits", vcore=1)
    cluster.do(UpdateAllocations([replace(ask("x", "daemon", vcore=1), tags={REQUIRED_NODE_TAG: "n"})]))
    assert (set(cluster.placed("x")), cluster.pending("x")) == ({"runs", "daemon"}, {"waits": "NO_NODES"})
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"ready": "true"}),)))
    assert [(e.detail, e.message) for e in out.events][:1] == [(EventDetail.NODE_READY, "ready: true")]
    assert allocations(out) == [("x", "waits", "n")]


def test_a_node_that_drains_and_is_not_ready_needs_both_again(cluster: Cluster) -> None:
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE_DRAIN, {"ready": "false"}, capacity={"vcore": 9}),)))
    cluster.ask("x", "k", vcore=1)
    out = cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n": None}))
    assert (out.facts, allocations(out)) == ([AcceptedNode("n")], [])
    assert allocations(cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"ready": "true"}),)))) == [
        ("x", "k", "n")
    ]


@pytest.mark.parametrize("action", [NodeAction.CREATE, NodeAction.UPDATE])
def test_a_ready_flag_that_is_none_is_refused_and_changes_nothing(cluster: Cluster, action: NodeAction) -> None:
    if action is NodeAction.UPDATE:
        cluster.node("n", vcore=1)
    out = cluster.do(UpdateNodes((NodeItem("n", action, {"ready": "perhaps"}, capacity={"vcore": 7}),)))
    assert out.facts == [RejectedNode("n", "node n: attributes['ready']: 'perhaps', expected true or false")]
    assert cluster.partition.capacity == ([1, 0] if action is NodeAction.UPDATE else [0, 0])


def test_new_attributes_replace_those_reported_before(cluster: Cluster) -> None:
    first = {"si/hostname": "h", "si/rackname": "r", "si/node-partition": "default"}
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, first, capacity={"vcore": 1}),)))
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"si/rackname": "s", "ready": "false"}),)))
    kept = {"si/node-partition": "default"}
    assert cluster.the_node("n").attributes == {"si/rackname": "s", "ready": "false", **kept}
    assert not cluster.the_node("n").ready
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"si/os": "linux"}),)))
    assert cluster.the_node("n").attributes == {"si/os": "linux", **kept}
    assert cluster.the_node("n").ready


def test_a_node_stays_in_its_partition_and_is_found_there() -> None:
    config, problems = load_queue_config(
        "partitions: [{name: default, queues: [{name: root}]}, {name: gpu, queues: [{name: root}]}]"
    )
    assert config is not None, problems
    core = SchedulerCore(config)

    def send(action: NodeAction, partition: str) -> list[object]:
        item = NodeItem("n", action, {}, capacity={"vcore": 1}, partition=partition)
        return list(core.apply(UpdateNodes((item,)), 0).facts)

    assert send(NodeAction.CREATE, "gpu") == [AcceptedNode("n")]
    assert send(NodeAction.UPDATE, "default") == [
        RejectedNode(
            "n",
            "node n is in partition gpu, not in default: "
            "a node does not change its partition, DECOMISSION and CREATE it",
        )
    ]
    assert send(NodeAction.DRAIN_NODE, "") == [AcceptedNode("n")]
    assert not core.partitions["gpu"].nodes["n"].schedulable
    assert send(NodeAction.CREATE, "default") == [AcceptedNode("n")]  # of the same name, in another partition
    assert send(NodeAction.DRAIN_TO_SCHEDULABLE, "gpu") == [AcceptedNode("n")]
    assert send(NodeAction.DECOMISSION, "default") == [AcceptedNode("n")]
    assert send(NodeAction.DECOMISSION, "") == [AcceptedNode("n")]
    assert not any(partition.nodes for partition in core.partitions.values())


def test_existing_allocations_are_answered_each_and_the_node_is_accepted(cluster: Cluster) -> None:
    """The previous generation, NodeInfo.existingAllocations: adopted whatever the limits say, or rejected; each
    once."""
    existing = (
        ask("x", "fits", vcore=1),
        ask("x", "too large", vcore=9),
        ask("ghost", "k", vcore=1),
        AskItem("nothing", "x", "default", {"vcore": 0}),
        ask("x", "fits", vcore=1),
    )
    cluster.do(SetEvents(requests=True))
    out = cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 5}, existing=existing),)))
    assert out.facts[0] == AcceptedNode("n")
    assert allocations(out) == [("x", "fits", "n"), ("x", "too large", "n"), ("x", "fits", "n")]
    assert [fact for fact in out.facts if isinstance(fact, RejectedAsk)] == [
        RejectedAsk("k", "ghost", "failed to find application ghost", False),
        RejectedAsk("nothing", "x", "allocation contains no resources", False),
    ]
    assert cluster.the_node("n").available == [-5, 0]
    (told,) = [e for e in out.events if e.type is EventType.REQUEST]
    assert (told.object_id, told.reference_id) == ("too large", "x")
    assert told.message == "adopted as the resource manager reports it: node n has 5 vcore less than it holds"
    again = cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 5}, existing=existing[:1]),)))
    assert [type(fact) for fact in again.facts] == [RejectedNode, RejectedAsk]
    assert again.facts[1].reason.startswith("node n was rejected: failure while adding new node")  # type: ignore[union-attr]
    gone = cluster.do(UpdateNodes((NodeItem("n", NodeAction.DECOMISSION, existing=existing[:1]),)))
    assert RejectedAsk("fits", "x", "node n is removed", False) in gone.facts


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
    removals = [(e.type, e.detail) for e in out.events if e.change is EventChange.REMOVE]
    assert removals[:2] == [(EventType.APP, EventDetail.ALLOC_NODEREMOVED), (EventType.NODE, EventDetail.NODE_ALLOC)]
    assert removals[-1] == (EventType.NODE, EventDetail.NODE_DECOMISSION)
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
    core.apply(
        UpdateNodes(
            (
                NodeItem(
                    "n", NodeAction.CREATE, {}, capacity={"vcore": 5}, occupied=None, existing=existing, partition="gpu"
                ),
            )
        ),
        2,
    )
    assert list(core.partitions["gpu"].apps["x"].allocations) == ["k"]
    assert core.partitions["default"].nodes == {}
