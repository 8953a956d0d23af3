"""Unschedulable nodes: counted at each change, the same after a restart, and explained."""

from __future__ import annotations

import pytest
from builders import nodes
from muster_core.external.model import ExternalNode, ExternalOffer, SourceState
from muster_core.model.commands import NodeAction, NodeItem, UpdateNodes
from muster_core.model.cordons import Cordon, CordonCount, CordonKind, closed_counts, describe_cordons
from muster_core.model.reasons import Reason, ReasonCode
from muster_si.constants import NODE_READY_ATTRIBUTE
from outside import Outside
from preempting import told as released

LEAF = "{name: root, submitacl: '*', queues: [{name: a}]}"


def cluster(*names: str) -> Outside:
    found = Outside(LEAF)
    for name in names:
        found.node(name, vcore=8)
    found.app("x", "root.a")
    return found


def closed(found: Outside) -> list[tuple[str, str, int]]:
    """The number of nodes by closer; the same for a restarted scheduler."""
    found.check_folds()
    now = found.partition.figures.closed()
    found.restart()
    assert found.partition.figures.closed() == now
    return [(by.value, source, count) for by, source, count in now]


def drain(found: Outside, name: str, *, by_operator: bool = False, back: bool = False) -> None:
    action = NodeAction.DRAIN_TO_SCHEDULABLE if back else NodeAction.DRAIN_NODE
    found.do(UpdateNodes((NodeItem(name, action, by_operator=by_operator),)))


def test_the_last_change_decides_the_drainer_of_a_node() -> None:
    found = cluster("n")
    drain(found, "n", by_operator=True)
    assert closed(found) == [("OPERATOR", "", 1)]
    drain(found, "n")
    assert closed(found) == [("RM", "", 1)]
    drain(found, "n", by_operator=True)
    assert closed(found) == [("OPERATOR", "", 1)]
    found.do(nodes(NodeAction.UPDATE, {"n": {"vcore": 9}}))
    assert closed(found) == [("OPERATOR", "", 1)]
    drain(found, "n", back=True)
    assert closed(found) == []
    drain(found, "n")
    assert closed(found) == [("RM", "", 1)]
    found.do(nodes(NodeAction.DECOMISSION, {"n": None}))
    assert closed(found) == []


def test_an_operator_drains_a_node_that_a_source_brought() -> None:
    found = cluster()
    found.says("vms", ExternalNode("n", {"vcore": 4}))
    drain(found, "n", by_operator=True)
    assert closed(found) == [("OPERATOR", "", 1)]
    drain(found, "n")
    assert closed(found) == [("RM", "", 1)]
    found.says("vms", ExternalNode("n", {"vcore": 4}, schedulable=False))
    assert closed(found) == [("RM", "", 1)], "whose word comes first"
    drain(found, "n", back=True)
    assert closed(found) == [("SOURCE", "vms", 1)]
    found.says("vms", ExternalNode("n", {"vcore": 4}))
    assert closed(found) == []


def test_a_node_is_closed_by_its_first_closer() -> None:
    found = cluster("n", "m")
    found.do(UpdateNodes((NodeItem("n", NodeAction.UPDATE, {NODE_READY_ATTRIBUTE: "false"}),)))
    assert closed(found) == [("NOT_READY", "", 1)]
    found.says("vms", ExternalNode("n", schedulable=False), ExternalNode("m"))
    found.sets("vms", SourceState.LIVE)
    assert closed(found) == [("SOURCE", "vms", 1)]
    found.sets("vms", SourceState.STALE, reason="no word for a minute")
    assert closed(found) == [("SOURCE", "vms", 1), ("SOURCE_LOST", "vms", 1)]
    drain(found, "m")
    assert closed(found) == [("RM", "", 1), ("SOURCE", "vms", 1)]
    found.sets("vms", SourceState.LIVE)
    drain(found, "m", back=True)
    assert closed(found) == [("SOURCE", "vms", 1)]


def test_an_offer_is_revoked_then_taken_back_then_forgotten() -> None:
    found = cluster()
    lent = ExternalOffer("o1", "n", {"vcore": 4})
    found.says("mesos", lent)
    found.sets("mesos", SourceState.LIVE)
    found.ask("x", "runs", vcore=4)
    assert closed(found) == []
    back = ExternalOffer("o1", "n", {"vcore": 4}, revoked=True, grace_ns=30_000_000_000)
    found.says("mesos", back)
    assert closed(found) == [("WANTED_BACK", "mesos", 1)]
    found.ask("x", "waits", vcore=1)
    said = found.reason("x", "waits")
    assert isinstance(said, Reason)
    assert said.sentence() == (
        "It asks for 0.001 cores, and no node has any, even when empty. 1 node is revoked by source mesos."
    )
    assert released(found.wait(30)) == [("x", "runs")]
    found.release("x", "runs")
    assert "n" not in found.partition.nodes
    assert closed(found) == [("WANTED_BACK", "mesos", 1)], "taken back"
    said = found.reason("x", "waits")
    assert isinstance(said, Reason)
    assert (said.code, said.closed) == (ReasonCode.NO_NODES, (CordonCount(CordonKind.WANTED_BACK, "mesos", 1),))
    found.forgets("mesos", back)
    assert closed(found) == []


def test_an_unused_returned_offer_does_not_count_as_wanted_back() -> None:
    found = cluster()
    found.says("mesos", ExternalOffer("o1", "n", {"vcore": 4}, idle_ns=5_000_000_000))
    found.sets("mesos", SourceState.LIVE)
    found.wait(5)
    assert "n" not in found.partition.nodes
    assert closed(found) == []
    found.node("n", vcore=8)
    found.says("mesos", ExternalOffer("o2", "n", {"vcore": 4}))
    assert closed(found) == []


def test_a_node_that_comes_again_is_not_taken_back() -> None:
    found = cluster()
    found.says("mesos", ExternalOffer("o1", "n", {"vcore": 4}, revoked=True))
    found.sets("mesos", SourceState.LIVE)
    assert closed(found) == [("WANTED_BACK", "mesos", 1)]
    found.node("n", vcore=8)
    assert closed(found) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, ""),
        ({Cordon(CordonKind.RM): 1}, "1 node is drained by the resource manager"),
        (
            {Cordon(CordonKind.SOURCE, "b"): 2, Cordon(CordonKind.SOURCE, "a"): 1, Cordon(CordonKind.OPERATOR): 1_200},
            "1,200 nodes are drained by an operator, 1 is closed by source a and 2 are closed by source b",
        ),
        ({Cordon(CordonKind.RM): 0, Cordon(CordonKind.NOT_READY): 3}, "3 nodes are not ready"),
    ],
)
def test_the_words(counts: dict[Cordon, int], expected: str) -> None:
    assert describe_cordons(closed_counts(counts)) == expected
