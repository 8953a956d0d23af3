"""The merged values of a node that the RM and sources report (docs/external-rules.md, "Nodes")."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from builders import allocations, ask, nodes
from muster_core import invariants
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SourceState,
)
from muster_core.model.commands import (
    AskItem,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.node import Node
from muster_core.model.outcome import (
    AcceptedNode,
    ConfigurationResult,
    EventChange,
    EventDetail,
    EventType,
    Outcome,
    RejectedNode,
    ReleasedAllocation,
)
from muster_core.model.resources import TYPES_MAX
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import load_queue_config
from muster_si.constants import FOREIGN, NODE_PARTITION, NODE_READY_ATTRIBUTE, REQUIRED_NODE_TAG
from outside import Outside, forgets, says


@pytest.fixture
def cluster() -> Outside:
    made = Outside()
    made.app("x", "root.a")
    return made


def said(out: Outcome, detail: EventDetail) -> list[tuple[str, str, object]]:
    """(change, message, resource) of the events about nodes."""
    return [
        (event.change.name, event.message, event.resource)
        for event in out.events
        if event.type is EventType.NODE and event.detail is detail
    ]


class Rule(NamedTuple):
    rm: dict[str, int] | None
    sources: dict[str, ExternalNode]
    capacity: dict[str, int] | None


RULES = {
    "the RM alone": Rule({"vcore": 8}, {}, {"vcore": 8}),
    "a source alone brings it": Rule(None, {"a": ExternalNode("n", {"vcore": 4})}, {"vcore": 4}),
    "a source that does not bring": Rule(None, {"a": ExternalNode("n", {"vcore": 4}, brings=False)}, None),
    "a source with nothing to bring": Rule(None, {"a": ExternalNode("n", {"vcore": 0})}, None),
    "a source that says nothing of it": Rule(None, {"a": ExternalNode("n")}, None),
    "the source has less": Rule({"vcore": 8}, {"a": ExternalNode("n", {"vcore": 4})}, {"vcore": 4}),
    "the RM has less": Rule({"vcore": 2}, {"a": ExternalNode("n", {"vcore": 4})}, {"vcore": 2}),
    "the source has none": Rule({"vcore": 2}, {"a": ExternalNode("n", {"vcore": 0})}, {}),
    "the RM says there is none": Rule({"vcore": 2, "gpu": 0}, {"a": ExternalNode("n", {"gpu": 4})}, {"vcore": 2}),
    "a type that nobody else says": Rule({"vcore": 8}, {"a": ExternalNode("n", {"gpu": 2})}, {"vcore": 8, "gpu": 2}),
    "whole: of the others there is none": Rule(
        {"vcore": 8, "gpu": 1}, {"a": ExternalNode("n", {"vcore": 9}, whole=True)}, {"vcore": 8}
    ),
    "whole, and nothing said": Rule({"vcore": 8}, {"a": ExternalNode("n", whole=True)}, {"vcore": 8}),
    "three, type by type": Rule(
        {"vcore": 8, "memory": 5},
        {
            "a": ExternalNode("n", {"vcore": 6, "memory": 9}),
            "b": ExternalNode("n", {"vcore": 7, "memory": 4, "gpu": 1}),
        },
        {"vcore": 6, "memory": 4, "gpu": 1},
    ),
    "one brings, one restricts": Rule(
        None,
        {"a": ExternalNode("n", {"vcore": 6}), "b": ExternalNode("n", {"vcore": 2}, brings=False)},
        {"vcore": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ["the RM first", "sources first", "by turns"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_of_each_type_the_smallest_amount_counts_in_any_order(rule: Rule, order: str) -> None:
    cluster = Outside()
    steps = [lambda source=source, what=what: cluster.says(source, what) for source, what in rule.sources.items()]
    rm = [lambda: cluster.node("n", **rule.rm)] if rule.rm is not None else []
    for step in {"the RM first": rm + steps, "sources first": steps + rm, "by turns": steps[:1] + rm + steps[1:]}[
        order
    ]:
        step()
    node = cluster.partition.nodes.get("n")
    assert (node.named_capacity() if node is not None else None) == rule.capacity
    cluster.check_folds()


def test_use_adds_up(cluster: Outside) -> None:
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.CREATE, {}, capacity={"vcore": 9}, occupied={"vcore": 1}),)))
    cluster.says("a", ExternalNode("n", occupied={"vcore": 2}))
    out = cluster.says("b", ExternalNode("n", occupied={"vcore": 3, "memory": 1}))
    assert said(out, EventDetail.NODE_OCCUPIED) == [("SET", "", {"vcore": 6, "memory": 1})]
    cluster.do(
        UpdateAllocations([AskItem("f", "", "default", {"vcore": 1}, tags={FOREIGN: "static"}, node_id="n")]),
    )
    assert cluster.the_node("n").available[0] == 2
    out = cluster.forgets("b", ExternalNode("n"))
    assert said(out, EventDetail.NODE_OCCUPIED) == [("SET", "", {"vcore": 4})]


def test_a_contradiction_is_an_event_that_names_both_and_the_rule(cluster: Outside) -> None:
    cluster.node("n", vcore=8, memory=5)
    out = cluster.says("vms", ExternalNode("n", {"vcore": 6, "memory": 5, "gpu": 1}))
    words = "vcore: the resource manager says 8, source vms says 6: the smaller counts"
    assert said(out, EventDetail.NODE_CAPACITY) == [("SET", words, {"vcore": 6, "memory": 5, "gpu": 1})]
    out = cluster.says("vms", ExternalNode("n", {"vcore": 9, "memory": 5, "gpu": 1}))
    words = "vcore: the resource manager says 8, source vms says 9: the smaller counts"
    assert said(out, EventDetail.NODE_CAPACITY) == [("SET", words, {"vcore": 8, "memory": 5, "gpu": 1})]
    out = cluster.says("vms", ExternalNode("n", {"vcore": 10, "memory": 5, "gpu": 1}))
    assert len(said(out, EventDetail.NODE_CAPACITY)) == 1, "another contradiction, though the same counts"
    out = cluster.says("vms", ExternalNode("n", {"vcore": 8, "memory": 5, "gpu": 1}))
    assert said(out, EventDetail.NODE_CAPACITY) == [], "it is none any more, and the same counts"


def test_after_a_restart_the_same_contradiction_is_no_event(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    cluster.says("vms", ExternalNode("n", {"vcore": 6}))
    cluster.restart()
    out = cluster.says("vms", ExternalNode("n", {"vcore": 6}, {"vcore": 1}))
    assert said(out, EventDetail.NODE_CAPACITY) == []
    assert said(out, EventDetail.NODE_OCCUPIED) == [("SET", "", {"vcore": 1})]


def test_a_node_that_a_source_brings_names_it(cluster: Outside) -> None:
    out = cluster.says("vms", ExternalNode("n", {"vcore": 6}, {"vcore": 1}, schedulable=False))
    (added,) = [event for event in out.events if event.change is EventChange.ADD]
    assert (added.message, added.resource) == ("Node added to the scheduler (sources: vms)", {"vcore": 6})
    assert said(out, EventDetail.NODE_SCHEDULABLE) == [("SET", "schedulable: false: source vms says so", None)]
    assert out.facts == [], "the RM did not ask for it"
    node = cluster.the_node("n")
    assert (node.sources, node.reported, node.of_rm) == (("vms",), None, False)


def test_attributes_of_the_rm_come_first_and_sources_fill_in(cluster: Outside) -> None:
    item = NodeItem("n", NodeAction.CREATE, {"zone": "rm", NODE_PARTITION: "default"}, capacity={"vcore": 1})
    cluster.do(UpdateNodes((item,)))
    cluster.says("b", ExternalNode("n", attributes={"zone": "b", "rack": "b", "row": "b"}))
    cluster.says("a", ExternalNode("n", attributes={"rack": "a"}))
    expected = {"zone": "rm", NODE_PARTITION: "default", "rack": "a", "row": "b"}
    assert cluster.the_node("n").attributes == expected
    cluster.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {"rack": "rm"}),)))
    assert cluster.the_node("n").attributes == {"rack": "rm", NODE_PARTITION: "default", "zone": "b", "row": "b"}
    cluster.forgets("b", ExternalNode("n"))
    assert cluster.the_node("n").attributes == {"rack": "rm", NODE_PARTITION: "default"}


def test_a_source_says_that_a_node_is_not_ready(cluster: Outside) -> None:
    cluster.node("n", vcore=1)
    out = cluster.says("vms", ExternalNode("n", attributes={NODE_READY_ATTRIBUTE: "false"}))
    assert said(out, EventDetail.NODE_READY) == [("SET", "ready: false", None)]
    assert not cluster.the_node("n").usable


# ---- schedulable -----------------------------------------------------------------------------------------------------


def test_a_node_takes_something_new_only_while_all_say_so(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    out = cluster.says("vms", ExternalNode("n", schedulable=False))
    assert said(out, EventDetail.NODE_SCHEDULABLE) == [("SET", "schedulable: false: source vms says so", None)]
    cluster.ask("x", "k", vcore=1)
    out = cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert said(out, EventDetail.NODE_SCHEDULABLE) == [], "it was so already"
    cluster.says("vms", ExternalNode("n"))
    assert cluster.placed("x") == {}
    out = cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n": None}))
    assert said(out, EventDetail.NODE_SCHEDULABLE) == [("SET", "schedulable: true", None)]
    assert cluster.placed("x") == {"k": "n"}


def test_the_rm_cannot_reopen_a_node_that_a_source_drains(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    cluster.says("vms", ExternalNode("n", schedulable=False))
    out = cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n": None}))
    why = "node n is not draining by the RM, but by vms: DRAIN_TO_SCHEDULABLE is not possible"
    assert out.facts == [RejectedNode("n", why)]


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("part", [ExternalNode("n", {"vcore": 8}), ExternalAllocation("vm", "n", {"vcore": 1})])
def test_a_lost_source_drains_the_nodes_that_it_takes_part_in_or_keeps_them(
    cluster: Outside, part: ExternalNode | ExternalAllocation, drains: bool
) -> None:
    cluster.node("n", vcore=8)
    cluster.node("other", vcore=1)
    cluster.says("vms", part)
    cluster.sets("vms", SourceState.LIVE, drains=drains)
    out = cluster.sets("vms", SourceState.STALE, drains=drains, reason="connection refused")
    lost = [("SET", "schedulable: false: source vms is lost: connection refused", None)]
    assert said(out, EventDetail.NODE_SCHEDULABLE) == (lost if drains else [])
    cluster.ask("x", "k", vcore=5)
    assert cluster.placed("x") == ({} if drains else {"k": "n"})
    cluster.check_folds()
    cluster.restart()
    cluster.sets("vms", SourceState.LISTING, life="2", drains=drains)
    assert cluster.the_node("n").usable != drains, "as it was, until everything is listed"
    cluster.says("vms", part, life="2")
    out = cluster.sets("vms", SourceState.LIVE, life="2", drains=drains)
    assert said(out, EventDetail.NODE_SCHEDULABLE) == ([("SET", "schedulable: true", None)] if drains else [])
    assert cluster.placed("x") == {"k": "n"}


def test_one_object_that_cannot_be_relied_on_drains_its_node_only(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}), ExternalNode("m", {"vcore": 8}))
    out = cluster.distrusts("vms", ExternalNode("n"))
    words = "schedulable: false: source vms cannot be relied on for node n"
    assert said(out, EventDetail.NODE_SCHEDULABLE) == [("SET", words, None)]
    assert cluster.the_node("n").named_capacity() == {"vcore": 8}, "what it said last still counts"
    assert cluster.the_node("m").usable
    cluster.says("vms", ExternalNode("n", {"vcore": 8}))
    assert cluster.the_node("n").usable


# ---- coming and going ------------------------------------------------------------------------------------------------


def on_record(node: Node) -> tuple[object, object]:
    return node.sources, node.reported


def test_the_rm_creates_a_node_that_a_source_brought(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}))
    cluster.ask("x", "k", vcore=3)
    out = cluster.node("n", vcore=5)
    assert out.facts == [AcceptedNode("n")]
    assert [event.change for event in out.events] == [EventChange.SET], "it is no new node"
    node = cluster.the_node("n")
    assert (node.of_rm, node.named_capacity(), [*node.allocations]) == (True, {"vcore": 5}, [("x", "k")])
    again = cluster.node("n", vcore=5)
    assert [type(fact) for fact in again.facts] == [RejectedNode]


def test_the_rm_takes_its_part_away_and_the_source_keeps_the_node(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}), ExternalAllocation("vm", "n", {"vcore": 1}))
    cluster.node("n", vcore=5)
    cluster.do(
        UpdateAllocations([AskItem("f", "", "default", {"vcore": 1}, tags={FOREIGN: "static"}, node_id="n")]),
    )
    cluster.ask("x", "k", vcore=3)
    out = cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}))
    assert [type(fact).__name__ for fact in out.facts] == ["ReleasedAllocation", "UpdatedApplication", "AcceptedNode"]
    assert said(out, EventDetail.NODE_DECOMISSION) == [], "it is there"
    node = cluster.the_node("n")
    assert (node.of_rm, node.named_capacity(), [held.key for held in node.foreign.values()]) == (
        False,
        {"vcore": 8},
        ["vms/vm"],
    )
    assert node.available[0] == 7
    cluster.ask("x", "again", vcore=7)
    assert cluster.placed("x") == {"again": "n"}
    cluster.check_folds()


def test_the_rm_takes_a_node_away_that_a_source_only_restricts(cluster: Outside) -> None:
    cluster.node("n", vcore=5)
    cluster.says("vms", ExternalNode("n", {"vcore": 4}, brings=False), ExternalAllocation("vm", "n", {"vcore": 1}))
    out = cluster.do(nodes(NodeAction.DECOMISSION, {"n": None}))
    assert said(out, EventDetail.NODE_DECOMISSION) == [("REMOVE", "Node removed from the scheduler", {"vcore": 4})]
    assert cluster.partition.foreign == {}
    entry = cluster.entry("vms", ExternalKind.NODE, "n")
    assert entry.problem == "node n is not there, and this source does not bring it"
    assert cluster.entry("vms", ExternalKind.ALLOCATION, "vm").problem == "node n is not there"
    cluster.node("n", vcore=9)
    assert (cluster.the_node("n").named_capacity(), entry.problem) == ({"vcore": 4}, "")
    assert cluster.the_node("n").available[0] == 3
    cluster.check_folds()


def test_a_source_takes_a_node_away_that_only_it_said(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}))
    cluster.ask("x", "k", vcore=3)
    out = cluster.forgets("vms", ExternalNode("n"))
    (released,) = [fact for fact in out.facts if isinstance(fact, ReleasedAllocation)]
    assert (released.key, released.message) == ("k", "Node n Removed")
    assert said(out, EventDetail.NODE_DECOMISSION) == [("REMOVE", "Node removed from the scheduler", {"vcore": 8})]
    assert cluster.partition.nodes == {}


def test_a_source_takes_its_part_of_the_rms_node_away(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    cluster.ask("x", "k", vcore=3)
    cluster.says("vms", ExternalNode("n", {"vcore": 4}))
    out = cluster.forgets("vms", ExternalNode("n"))
    assert out.facts == []
    assert said(out, EventDetail.NODE_CAPACITY) == [("SET", "", {"vcore": 8})]
    assert on_record(cluster.the_node("n")) == ((), None)
    cluster.check_folds()


def test_objects_that_a_listing_omits_are_removed(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}), ExternalNode("m", {"vcore": 8}))
    cluster.says("vms", ExternalNode("m", {"vcore": 8}), life="2")
    cluster.sets("vms", SourceState.LIVE, life="2")
    assert [*cluster.partition.nodes] == ["m"]


def test_one_word_is_taken_as_a_whole(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}))
    cluster.ask("x", "k", vcore=3)
    gone = ExternalChange(ExternalKind.NODE, "n", None)
    back = ExternalChange(ExternalKind.NODE, "n", ExternalNode("n", {"vcore": 7}))
    out = cluster.do(ApplyExternalChanges("default", "vms", "1", (gone, back)))
    assert out.facts == []
    assert cluster.placed("x") == {"k": "n"}


@pytest.mark.parametrize("action", [NodeAction.UPDATE, NodeAction.DECOMISSION])
def test_the_rm_cannot_change_what_it_did_not_create(cluster: Outside, action: NodeAction) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}))
    out = cluster.do(nodes(action, {"n": {"vcore": 1}}))
    assert out.facts == [
        RejectedNode("n", f"node n was brought by vms: CREATE it first, {action.name} is not possible")
    ]
    assert cluster.the_node("n").named_capacity() == {"vcore": 8}


def test_an_operator_drains_a_node_that_a_source_brought(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 8}))
    out = cluster.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))
    assert out.facts == [AcceptedNode("n")]
    assert not cluster.the_node("n").usable
    cluster.check_folds()
    cluster.restart()
    cluster.says("vms", ExternalNode("n", {"vcore": 9}))
    assert not cluster.the_node("n").usable
    assert not cluster.the_node("n").of_rm
    cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n": None}))
    assert on_record(cluster.the_node("n")) == (("vms",), None)
    assert cluster.the_node("n").usable


def test_over_committed_by_a_source_nothing_ends_and_nothing_new_comes(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    cluster.ask("x", "k", vcore=6)
    out = cluster.says("vms", ExternalNode("n", occupied={"vcore": 4}))
    assert out.facts == []
    assert cluster.the_node("n").available == [-2, 0]
    cluster.ask("x", "more", vcore=1)
    assert cluster.pending("x") == {"more": "NO_NODE_HAS_ROOM"}


def test_a_node_with_too_many_types_is_left_out_and_says_why(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    cluster.node("other", **{f"o{number}": 1 for number in range(TYPES_MAX - 50)})
    many = {f"t{number}": 1 for number in range(100)}
    cluster.says("vms", ExternalNode("n", {"vcore": 1, **many}))
    assert "expected at most 256" in cluster.entry("vms", ExternalKind.NODE, "n").problem
    assert cluster.the_node("n").named_capacity() == {"vcore": 8}
    cluster.says("vms", ExternalNode("n", {"vcore": 1}))
    assert cluster.entry("vms", ExternalKind.NODE, "n").problem == ""
    assert cluster.the_node("n").named_capacity() == {"vcore": 1}


def fill_types(cluster: Outside) -> None:
    """Uses up all resource types of each partition."""
    left = TYPES_MAX - len(cluster.partition.types.names)
    cluster.node("full", **{f"o{number}": 1 for number in range(left)})
    assert len(cluster.partition.types.names) == TYPES_MAX


def test_a_restart_takes_what_counted_whatever_else_was_said_with_too_many_types(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    fill_types(cluster)
    one_more = {"vcore": 4, "one-more": 1}
    cluster.says("vms", ExternalQueue("root.a", one_more), ExternalPool("one-more", 3), ExternalNode("n", one_more))
    cluster.says("vms", ExternalAllocation("vm", "n", one_more), ExternalOffer("o", "n", one_more))
    entries = list(cluster.core.external.for_partition("default").entries())
    assert all("expected at most 256" in entry.problem or "256 types" in entry.problem for entry in entries)
    assert len(entries) == 5
    cluster.restart()
    assert cluster.the_node("full").named_capacity()["o0"] == 1
    assert len(cluster.partition.types.names) == TYPES_MAX
    cluster.check_folds()


def test_a_follower_that_outlives_schedulers_takes_all_types_that_they_knew_one_after_another(cluster: Outside) -> None:
    first, then = (
        [ExternalNode(each, {f"{each}-{word}-{n}": 1 for n in range(100)}) for each in "mn"] for word in "ab"
    )
    cluster.says("vms", *first)
    cluster.forgets("vms", *first)
    cluster.restart()  # (nobody speaks of these types any more)
    cluster.says("vms", *then)
    assert cluster.the_node("n").named_capacity() == then[1].capacity
    cluster.check_folds()
    assert cluster.reload("{name: root, submitacl: '*', queues: [{name: a}]}") == ()
    cluster.check_folds()


# ---- the RM registers again, partitions come and go ------------------------------------------------------------------


def test_a_registration_anew_finds_the_hosts_where_they_were(cluster: Outside) -> None:
    cluster.node("n", vcore=8)
    cluster.says("vms", ExternalNode("n", {"vcore": 4}), ExternalNode("m", {"vcore": 3}))
    cluster.register_again()
    assert [*cluster.partition.nodes] == ["m", "n"], "both are brought"
    assert cluster.the_node("n").named_capacity() == {"vcore": 4}
    cluster.node("n", vcore=2)
    assert cluster.the_node("n").named_capacity() == {"vcore": 2}
    cluster.check_folds()


def test_statements_about_a_missing_partition_wait_for_it() -> None:
    cluster = Outside()
    change = ExternalChange(ExternalKind.NODE, "n", ExternalNode("n", {"vcore": 4}))
    out = cluster.do(ApplyExternalChanges("other", "vms", "1", (change,)))
    assert out.facts == []
    entry = cluster.core.external.for_partition("other").entry("vms", ExternalKind.NODE, "n")
    assert entry is not None
    assert entry.problem == "partition other does not exist"


def test_asks_wait_for_a_host_that_comes(cluster: Outside) -> None:
    cluster.ask("x", "k", vcore=3)
    out = cluster.says("vms", ExternalNode("n", {"vcore": 4}))
    assert allocations(out) == [("x", "k", "n")]
    cluster.ask("x", "more", vcore=3)
    assert cluster.pending("x") == {"more": "NO_NODE_HAS_ROOM"}
    out = cluster.says("vms", ExternalNode("n", {"vcore": 6}))
    assert allocations(out) == [("x", "more", "n")]


def test_a_daemon_waits_for_the_host_that_it_needs(cluster: Outside) -> None:
    cluster.node("other", vcore=8)
    cluster.do(UpdateAllocations([replace(ask("x", "daemon", vcore=1), tags={REQUIRED_NODE_TAG: "n"})]))
    assert cluster.placed("x") == {}
    cluster.says("vms", ExternalNode("n", {"vcore": 4}))
    assert cluster.placed("x") == {"daemon": "n"}


def test_a_registration_anew_says_that_what_sources_brought_goes_and_comes(cluster: Outside) -> None:
    cluster.says("vms", ExternalNode("n", {"vcore": 4}), ExternalApplication("tenant", "root.a", "vic"))
    cluster.says("vms", ExternalAllocation("vm", "n", {"vcore": 1}, "tenant"))
    ended = cluster.core.end(cluster.now_ns)
    begun = SchedulerCore(cluster.core.config, external=cluster.core.external).start(cluster.now_ns)
    for out, change in ((ended, EventChange.REMOVE), (begun, EventChange.ADD)):
        told = {(each.type, each.object_id, each.reference_id) for each in out.events if each.change is change}
        assert {
            (EventType.NODE, "n", ""),
            (EventType.APP, "tenant", ""),
            (EventType.APP, "tenant", "vm"),
            (EventType.NODE, "n", "vm"),
            (EventType.USERGROUP, "vic", "root.a"),
        } <= told
        assert out.facts == []


def partitions(*names: str) -> UpdateConfiguration:
    listed = ", ".join(
        f"{{name: {name}, queues: [{{name: root, submitacl: '*', queues: [{{name: a}}]}}]}}" for name in names
    )
    config, problems = load_queue_config(f"partitions: [{listed}]")
    assert config is not None, problems
    return UpdateConfiguration(config)


def test_a_partition_that_comes_finds_what_was_said_of_it_and_one_that_goes_leaves_it() -> None:
    core = SchedulerCore(partitions("default").config)
    core.start(1)
    entries = (
        ExternalChange(ExternalKind.NODE, "n", ExternalNode("n", {"vcore": 4})),
        ExternalChange(ExternalKind.APPLICATION, "tenant", ExternalApplication("tenant", "root.a")),
        ExternalChange(ExternalKind.ALLOCATION, "vm", ExternalAllocation("vm", "n", {"vcore": 1}, "tenant")),
        ExternalChange(ExternalKind.ALLOCATION, "other", ExternalAllocation("other", "n", {"vcore": 1})),
    )
    core.apply(ApplyExternalChanges("gpu", "vms", "1", entries), 1)
    books = core.external.for_partition("gpu")
    assert {entry.problem for entry in books.entries()} == {"partition gpu does not exist"}
    core.apply(partitions("default", "gpu"), 2)
    invariants.check(core)
    assert {entry.problem for entry in books.entries()} == {""}
    assert core.partitions["gpu"].nodes["n"].available == [2, 0]
    out = core.apply(partitions("default"), 3)
    assert [fact.obstacles for fact in out.facts if isinstance(fact, ConfigurationResult)] == [()]
    assert [type(fact) for fact in out.facts] == [ConfigurationResult]
    assert {entry.problem for entry in books.entries()} == {"partition gpu does not exist"}
    invariants.check(core)


def test_clocks_of_offers_do_not_bring_back_a_partition_that_went() -> None:
    core = SchedulerCore(partitions("default", "gpu").config)
    core.start(1)
    core.apply(replace(says("vms", ExternalOffer("o", "n", {"vcore": 4}, idle_ns=10)), partition="gpu"), 1)
    assert core.next_deadline_ns() == 11
    core.apply(replace(says("vms", ExternalNode("n", {"vcore": 1})), partition="gpu"), 2)
    [*core.apply(partitions("default"), 3).objects()]
    out = core.cycle(1_000, 10)
    assert [*out.objects()] == [], "nothing of a partition that is not there changes"
    assert out.events == []
    assert {entry.problem for entry in core.external.for_partition("gpu").entries()} == {"partition gpu does not exist"}


def test_an_offer_that_only_a_partition_needed_goes_with_it() -> None:
    core = SchedulerCore(partitions("default", "gpu").config)
    core.start(1)
    lent = ExternalOffer("o", "n", {"vcore": 4})
    core.apply(replace(says("vms", lent, ExternalAllocation("vm", "n", {"vcore": 1})), partition="gpu"), 1)
    [*core.apply(replace(forgets("vms", lent), partition="gpu"), 2).objects()]
    books = core.external.for_partition("gpu")
    entry = books.entry("vms", ExternalKind.OFFER, "o")
    assert entry is not None
    assert entry.withdrawn, "the VM needs it"
    changed = {(what, alive) for _, what, alive in core.apply(partitions("default"), 3).objects()}
    assert (entry, False) in changed, "its record goes, too"
    assert books.entry("vms", ExternalKind.OFFER, "o") is None


def test_the_rms_nodes_still_keep_a_partition() -> None:
    core = SchedulerCore(partitions("default", "gpu").config)
    core.start(1)
    core.apply(UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 1}, partition="gpu"),)), 1)
    core.apply(ApplyExternalChanges("gpu", "vms", "1", (ExternalChange(ExternalKind.NODE, "n", ExternalNode("n")),)), 1)
    assert core.conflicts(partitions("default").config) == (
        "partition gpu has 1 nodes and 0 applications and cannot be removed",
    )


def test_a_node_of_the_rm_is_meant_where_a_source_brought_one_of_its_name_elsewhere() -> None:
    core = SchedulerCore(partitions("default", "gpu").config)
    core.start(1)
    core.apply(UpdateNodes((NodeItem("n", NodeAction.CREATE, capacity={"vcore": 1}, partition="gpu"),)), 1)
    core.apply(
        ApplyExternalChanges(
            "", "vms", "1", (ExternalChange(ExternalKind.NODE, "n", ExternalNode("n", {"vcore": 4})),)
        ),
        1,
    )
    out = core.apply(UpdateNodes((NodeItem("n", NodeAction.DRAIN_NODE),)), 1)
    assert out.facts == [AcceptedNode("n")]
    assert [part.nodes["n"].usable for part in core.partitions.values()] == [True, False]
