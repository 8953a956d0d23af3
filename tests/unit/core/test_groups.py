"""Asks in groups, allocations under their keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Cluster, ask, nodes
from hypothesis import given
from hypothesis import strategies as st
from muster_core.model.allocation import unique_key
from muster_core.model.commands import NodeAction, ReleaseItem, Termination, UpdateAllocations

LEAF = "{name: root, submitacl: '*', queues: [{name: a}]}"
KEYS = st.text(alphabet="k#1", max_size=6)


@given(KEYS, st.integers(0, 20), KEYS, st.integers(0, 20))
def test_unique_keys_are_unique(one: str, first: int, other: str, second: int) -> None:
    assert (unique_key(one, first) == unique_key(other, second)) == ((one, first) == (other, second))


@given(st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=6))
def test_any_keys_live_side_by_side(wanted: list[tuple[str, int]]) -> None:
    cluster = Cluster(LEAF).having({"n": {"vcore": 1000}}, {"x": "root.a"})
    most: dict[str, int] = {}
    for key, count in wanted:
        cluster.ask("x", key, wanted=count, vcore=1)
        most[key] = max(count, most.get(key, 0))
    app = cluster.application("x")
    assert {key: len(app.allocations_of(key)) for key in most} == most
    for key in most:
        cluster.release("x", key) if key else cluster.do(
            UpdateAllocations((), [ReleaseItem("default", "x", "", Termination.STOPPED_BY_RM)])
        )
    assert not cluster.application("x").allocations


def test_an_ask_sent_again_with_other_tags_keeps_its_place_beside_others_of_its_kind() -> None:
    cluster = Cluster(LEAF)
    cluster.app("x", "root.a")
    for key in "abc":
        cluster.ask("x", key, vcore=1)
    for round_number in range(5):
        for key in "abc":
            item = replace(ask("x", key, vcore=1), tags={"round": str(round_number)})
            cluster.do(UpdateAllocations([item]))
    cluster.node("n", vcore=3)
    assert list(cluster.placed("x")) == ["a", "b", "c"]


@pytest.mark.parametrize("room", [0, 1000])
def test_a_group_does_not_remember_asks_that_are_gone(room: int) -> None:
    cluster = Cluster(LEAF).having({"n": {"vcore": room}}, {"x": "root.a"})
    cluster.ask("x", "stays", vcore=2000)
    for number in range(300):
        cluster.ask("x", f"k{number}", vcore=2000)
        cluster.release("x", f"k{number}")
    (group,) = cluster.application("x").groups.values()
    assert len(group.heap) < 40


def test_asks_that_are_no_longer_pending_leave_nothing() -> None:
    cluster = Cluster(LEAF).having({"n": {"vcore": 1}}, {"x": "root.a"})
    for size in range(2, 300):
        cluster.ask("x", "k", vcore=size)
        cluster.release("x", "k")
    waiting, leaf = cluster.partition.waiting, cluster.queue("root.a")
    assert not any((waiting.no_node, leaf.blocked, leaf.waitlists, cluster.application("x").groups))
    assert not waiting.found_no_node
    assert not waiting._in_flight


def test_a_budget_that_runs_out_loses_no_group() -> None:
    cluster = Cluster(LEAF)
    for number in range(9):
        cluster.app(f"x{number}", "root.a")
        cluster.ask(f"x{number}", "k", vcore=1)
    cluster.core.apply(nodes(NodeAction.CREATE, {"n": {"vcore": 8}}), cluster.now_ns)
    for _ in range(9):
        cluster.do(budget=1)
    cluster.do()
    assert sum(len(cluster.placed(f"x{number}")) for number in range(9)) == 8
    assert cluster.pending("x8") == {"k": "NO_NODE_HAS_ROOM"}
    cluster.node("m", vcore=1)
    assert cluster.queue("root.a").waitlists == {}
