"""The contract of node sort policies, for Muster's own and one of an external package."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import Cluster, configured
from from_outside import install
from muster_core.model.node import Node
from muster_core.model.resources import ResourceTypes, fits
from muster_core.nodes.node_index import NodeIndex
from muster_core.nodes.policies import registry
from muster_core.nodes.policies.policy import NodePolicy
from muster_queue_config import node_policies
from muster_queue_config.queue_yaml import load_queue_config

# The whole of it: one module and one entry. It prefers nodes with an odd capacity, which nobody wants.
ODD = """
from muster_core.nodes.policies.policy import NodePolicy

def score(node, weights):
    return -sum(weight * (node.capacity[number] % 2) for number, weight in weights)

POLICY = NodePolicy("odd", score=score)
"""
GROUP = node_policies.GROUP
NAMES = ["vcore", "memory", "nvidia.com/gpu-milli"]
WEIGHTS = [(0, 1.0), (1, 2.0), (2, 0.5)]
QUEUES = "{name: root, submitacl: '*', queues: [{name: a}]}"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the path and the registry."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[None]:
    install(tmp_path / "odd", "odd_order", "odd_order_for_muster", ODD, GROUP, "odd = odd_order_for_muster:POLICY")
    yield
    sys.modules.pop("odd_order_for_muster", None)


@pytest.fixture(params=[*(policy.name for policy in registry.SHIPPED), "odd"])
def policy(request: pytest.FixtureRequest, odd: None) -> NodePolicy:
    assert node_policies.find(request.param) == ""
    return registry.policy_named(request.param)


class World:
    """Random nodes in an index that is kept up to date step by step."""

    def __init__(self, policy: NodePolicy, seed: int) -> None:
        self.dice = random.Random(seed)
        self.policy = policy
        self.types = ResourceTypes()
        self.types.reserve(NAMES)
        self.nodes: dict[str, Node] = {}
        self.index = policy.new_index(self.types)
        self.shapes = [
            self.types.shape(dict(zip(NAMES, wanted, strict=True)))
            for wanted in ((1, 1, 0), (2, 1, 500), (5, 2, 0), (1, 4, 1_000), (3, 3, 300))
        ]
        self.work = dict.fromkeys(self.shapes, 3)
        for shape, count in self.work.items():
            self.index.count_shape(shape, count)

    def score(self, node: Node) -> float:
        return self.policy.score(node, WEIGHTS)

    def fill(self, node: Node) -> None:
        for number, most in enumerate((8, 8, 2_000)):
            node.capacity[number] = self.dice.randint(0, most)
            node.available[number] = self.dice.randint(-1, node.capacity[number])

    def step(self) -> None:
        kind = self.dice.choice(["add", "add", "move", "move", "remove", "back"])
        listed = [node for node in self.nodes.values() if node.index_key is not None]
        gone = [node for node in self.nodes.values() if node.index_key is None]
        if kind == "add":
            name = f"n{self.dice.randrange(10_000)}"
            if name not in self.nodes:
                self.nodes[name] = node = Node(self.types, name)
                self.fill(node)
                self.index.add(node, self.score(node))
        elif kind == "move" and listed:
            node = self.dice.choice(listed)
            self.fill(node)
            self.index.move(node, self.score(node))
        elif kind == "remove" and listed:
            self.index.remove(self.dice.choice(listed))
        elif kind == "back" and gone:
            node = self.dice.choice(gone)
            self.index.add(node, self.score(node))

    def counted_anew(self) -> NodeIndex:
        """A new index of copies of the nodes, which come in another order."""
        fresh = self.policy.new_index(self.types)
        for shape in reversed(self.shapes):
            fresh.count_shape(shape, self.work[shape])
        for node in sorted(self.nodes.values(), key=lambda node: node.node_id[::-1]):
            if node.index_key is not None:
                copy = Node(self.types, node.node_id)
                copy.capacity[:], copy.available[:] = node.capacity, node.available
                fresh.add(copy, self.score(copy))
        return fresh


def ids(nodes: list[Node]) -> list[str]:
    return [node.node_id for node in nodes]


@pytest.mark.parametrize("seed", range(5))
def test_an_index_kept_up_to_date_finds_what_a_new_one_finds(policy: NodePolicy, seed: int) -> None:
    world = World(policy, seed)
    for number in range(120):
        world.step()
        if number % 10:
            continue
        fresh = world.counted_anew()
        for shape in world.shapes:
            kept = world.index.fitting(shape.items, (), len(world.nodes))
            assert ids(kept) == ids(fresh.fitting(shape.items, (), len(world.nodes)))
            first, found = fresh.first_fit(shape.items), world.index.first_fit(shape.items)
            assert (first and first.node_id) == (found and found.node_id)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_total_and_the_searches_agree_with_it(policy: NodePolicy, seed: int) -> None:
    world = World(policy, 100 + seed)
    for _ in range(80):
        world.step()
    listed = [node for node in world.nodes.values() if node.index_key is not None]
    for shape in world.shapes:
        order = world.index.fitting(shape.items, (), len(world.nodes))
        assert sorted(ids(order)) == sorted(node.node_id for node in listed if fits(shape.items, node.available))
        assert world.index.first_fit(shape.items) is next(iter(order), None)
        few = [node for node in listed if world.dice.random() < 0.3]
        assert world.index.first_of(few, shape.items) is next((node for node in order if node in few), None)
        without = set(ids(order[::2]))
        assert world.index.fitting(shape.items, without, 3) == [n for n in order if n.node_id not in without][:3]


def test_alike_nodes_come_in_the_order_of_their_ids(policy: NodePolicy) -> None:
    world = World(policy, 0)
    for name in ("c", "a", "d", "b"):
        node = Node(world.types, name)
        node.capacity[:], node.available[:] = [8, 8, 2_000], [7, 7, 2_000]
        world.index.add(node, world.score(node))
    assert ids(world.index.fitting(world.shapes[0].items, (), 9)) == ["a", "b", "c", "d"]


def test_a_score_is_a_number_and_depends_on_the_node_and_the_weights_only(policy: NodePolicy) -> None:
    world = World(policy, 3)
    for number in range(200):
        node, twin = Node(world.types, f"n{number}"), Node(world.types, "another")
        world.fill(node)
        twin.capacity[:], twin.available[:] = node.capacity, node.available
        assert world.score(node) == world.score(node) == world.score(twin)
        assert math.isfinite(world.score(node))
        assert policy.score(node, []) == 0.0
        without = [(number, weight) for number, weight in WEIGHTS if number]
        before = policy.score(node, without)
        node.capacity[0], node.available[0] = 100, 1
        assert policy.score(node, without) == before  # of a type without a weight


def test_a_cluster_places_and_goes_on_after_a_reload(policy: NodePolicy) -> None:
    cluster = Cluster(QUEUES, nodesort=policy.name)
    cluster.app("x", "root.a")
    for number in range(6):
        cluster.node(f"n{number}", vcore=4 + number, memory=8)
    for number in range(12):
        cluster.ask("x", f"k{number}", vcore=1, memory=1)
    assert cluster.partition.allocations_count == 12
    cluster.reload(QUEUES, nodesort="fair")
    cluster.reload(QUEUES, nodesort=policy.name)
    kept = {node.node_id: node.index_key for node in cluster.partition.nodes.values()}
    cluster.partition.node_books.reindex()
    assert {node.node_id: node.index_key for node in cluster.partition.nodes.values()} == kept


# ---- from outside --------------------------------------------------------------------------------------------------


def problem(nodesort: str) -> str:
    config, problems = load_queue_config(f"partitions: [{{nodesortpolicy: {{type: {nodesort}}}, queues: []}}]")
    assert config is None
    (found,) = problems
    assert found.path == "partitions[0].nodesortpolicy.type"
    return found.message


def test_a_policy_from_outside_orders_the_nodes(odd: None) -> None:
    cluster = Cluster(QUEUES, nodesort="odd")
    cluster.app("x", "root.a")
    for number in range(4, 8):
        cluster.node(f"n{number}", vcore=number)
    for number in range(8):
        cluster.ask("x", f"k{number}", vcore=1)
    assert {node.node_id: len(node.allocations) for node in cluster.partition.nodes.values()} == {
        "n4": 0, "n5": 5, "n6": 0, "n7": 3,
    }  # fmt: skip
    assert str(configured(QUEUES, nodesort="odd").partitions[0].node_sort_policy) == "odd"


def test_an_unknown_policy_is_refused_with_the_names_that_there_are(odd: None) -> None:
    assert problem("od") == ("undefined policy: od; expected one of fair, binpacking, fragmentation, dotproduct, odd")
    assert "odd_order_for_muster" not in sys.modules


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere_to_be_found\n", "cannot be loaded: ModuleNotFoundError"),
        ("POLICY = 3\n", "is no NodePolicy with the name bad"),
        (ODD, "is no NodePolicy with the name bad"),
    ],
)
def test_a_policy_that_cannot_be_used_is_a_problem_of_the_configuration(tmp_path: Path, code: str, said: str) -> None:
    install(tmp_path / "bad", "bad_order", "bad_order_for_muster", code, GROUP, "bad = bad_order_for_muster:POLICY")
    try:
        found = problem("bad")
    finally:
        sys.modules.pop("bad_order_for_muster", None)
    assert said in found
    assert "bad_order 1.2 (bad_order_for_muster:POLICY)" in found


def test_two_packages_with_one_name_are_both_named(odd: None, tmp_path: Path) -> None:
    install(
        tmp_path / "other", "other_order", "other_order_for_muster", ODD, GROUP, "odd = other_order_for_muster:POLICY"
    )
    found = problem("odd")
    assert "odd_order 1.2" in found
    assert "other_order 1.2" in found


def test_another_policy_with_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="fair is there already"):
        registry.register(NodePolicy("fair", score=lambda node, weights: 0.0))
