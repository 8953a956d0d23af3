"""The orders of asks, applications, queues and nodes; ties are deterministic."""

from __future__ import annotations

from dataclasses import replace

from builders import Cluster, allocations, ask, nodes
from muster_core.model.commands import (
    AppItem,
    NodeAction,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.node import Node
from muster_core.model.resources import ResourceTypes
from muster_core.nodes.policies.policy import minus_used_share, used_share


def _leaf(properties: str = "", more: str = "") -> Cluster:
    return Cluster(f"{{name: root, submitacl: '*', queues: [{{name: a, properties: {{{properties}}}{more}}}]}}")


def _served(cluster: Cluster, *asks: object, free: int = 100) -> list[tuple[str, str]]:
    """The order in which asks are placed that came while nothing was free."""
    cluster.do(UpdateAllocations(list(asks)))  # type: ignore[arg-type]
    out = cluster.do(nodes(NodeAction.CREATE, {"n": {"vcore": free}}))
    return [(app, key) for app, key, _ in allocations(out)]


def test_fifo_takes_the_oldest_ask_for_the_submission() -> None:
    cluster = _leaf()
    cluster.app("first", "root.a")
    cluster.wait(5)
    cluster.app("second", "root.a")
    old = replace(ask("second", "k", vcore=1), tags={"creationTime": "900"})
    assert _served(cluster, ask("first", "k", vcore=1), old) == [("second", "k"), ("first", "k")]
    assert cluster.application("second").submitted_ns == 900 * 10**9


def test_an_age_in_the_future_or_no_number_is_now() -> None:
    cluster = _leaf()
    cluster.app("x", "root.a")
    for number, text in enumerate(["99999999999", "-5", "1e9", "", "³", "9" * 400]):
        item = replace(ask("x", f"k{number}", vcore=1), tags={"creationTime": text})
        cluster.do(UpdateAllocations([item]))
        assert cluster.application("x").asks[f"k{number}"].created_ns == cluster.now_ns


def test_groups_that_wait_for_one_reason_are_served_in_the_leafs_order() -> None:
    """With room for one at a time, the list of a shape keeps the leaf's order."""
    for properties, expected in (("", ["late", "early"]), ("application.sort.priority: disabled", ["early", "late"])):
        cluster = _leaf(properties)
        cluster.app("early", "root.a")
        cluster.wait(1)
        cluster.app("late", "root.a")
        cluster.do(UpdateAllocations([ask("early", "k", vcore=1), ask("late", "k", priority=9, vcore=1)]))
        served = []
        for number in range(2):
            out = cluster.do(nodes(NodeAction.CREATE, {f"n{number}": {"vcore": 1}}))
            served += [app for app, _, _ in allocations(out)]
        assert served == expected


def test_queues_by_share_of_guaranteed_then_of_max_then_by_name() -> None:
    cluster = Cluster(
        "{name: root, submitacl: '*', queues: ["
        "{name: c}, {name: b, resources: {max: {vcore: 4}}}, {name: a, resources: {guaranteed: {vcore: 2}}}]}"
    )
    cluster.node("n", vcore=100_000)
    for leaf in "abc":
        cluster.app(leaf, f"root.{leaf}")
    asks = [ask(leaf, f"{leaf}{number}", vcore=1000) for leaf in "abc" for number in range(3)]
    out = cluster.do(UpdateAllocations(asks))
    # shares after each: a 1/2, b 1/4, c 1/100
    assert [key for _, key, _ in allocations(out)] == ["a0", "b0", "c0", "c1", "c2", "b1", "a1", "b2", "a2"]


def test_a_release_moves_the_queues_above_even_when_its_leaf_wants_nothing() -> None:
    cluster = Cluster(
        "{name: root, submitacl: '*', queues: [{name: p, queues: [{name: idle}, {name: busy}]}, {name: q}]}"
    )
    cluster.node("n", vcore=10)
    for name, queue in (("i", "root.p.idle"), ("b", "root.p.busy"), ("q", "root.q")):
        cluster.app(name, queue)
    cluster.ask("i", "held", vcore=5)
    cluster.ask("q", "held", vcore=3)
    out = cluster.do(
        UpdateAllocations([ask("b", "k", vcore=1), ask("q", "k", vcore=1)]),
        UpdateAllocations((), [_release("i", "held")]),
    )
    assert [app for app, _, _ in allocations(out)] == ["b", "q"]


def _release(app_id: str, key: str) -> ReleaseItem:
    return ReleaseItem("default", app_id, key, Termination.STOPPED_BY_RM)


def test_node_scores() -> None:
    types = ResourceTypes()
    vcore, memory = types.number("vcore"), types.number("memory")
    node = Node(types, "n")
    node.capacity[:], node.available[:] = [10, 100], [5, 100]
    even = [(vcore, 1.0), (memory, 1.0)]
    assert used_share(node, even) == 0.25
    assert minus_used_share(node, even) == -0.25
    assert used_share(node, [(vcore, 3.0), (memory, 1.0)]) == 0.375
    assert used_share(node, []) == 0.0
    node.capacity[memory] = 0
    assert used_share(node, even) == 0.5  # of a type that it has not: no part of the score


def test_the_same_life_gives_the_same_order_whatever_the_ids() -> None:
    """Submission, not names: applications and asks with other names are served in the same order."""

    def life(names: list[str]) -> list[int]:
        cluster = _leaf("application.sort.policy: fair")
        for name in names:
            cluster.do(UpdateApplications((AppItem(name, "root.a", "default", "u"),)))
        served = _served(cluster, *(ask(name, f"{name}{n}", vcore=1) for n in range(3) for name in names))
        return [names.index(app) for app, _ in served]

    assert life(["a", "b", "c"]) == life(["zz", "x", "y"]) == [0, 1, 2] * 3
