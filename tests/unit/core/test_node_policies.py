"""The policies whose order depends on the shape, compared with plain models, and their effect."""

from __future__ import annotations

import pytest
from builders import Cluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from muster_core.model.commands import UpdateConfiguration
from muster_core.model.node import Node
from muster_core.model.resources import INT64_MAX, ResourceTypes, Shape
from muster_core.nodes.node_index import NodeIndex
from muster_core.nodes.policies import shape_index
from muster_core.nodes.policies.dotproduct import DotProductIndex
from muster_core.nodes.policies.fragmentation import WORKLOAD_SHAPES_MAX, FragmentationIndex, ShapeFrequencies, weight
from muster_core.nodes.policies.registry import names, policy_named
from muster_core.nodes.policies.shape_index import ShapeIndex

MILLI = "nvidia.com/gpu-milli"
GPU = "amd.com/gpu"
NAMES = ["vcore", "memory", MILLI, GPU, "disk"]


# ---- plain models: one node at a time, whole numbers -------------------------------------------------------------


def dot_product(node: Node, items: tuple[tuple[int, int], ...]) -> float:
    total = 0.0
    for number, quantity in items:
        capacity = max(node.capacity[number], 1)
        total += (quantity / capacity) * (node.available[number] / capacity)
    return -total


def unusable(names: list[str], free: list[int], workload: dict[Shape, int]) -> int:
    """The free GPUs that the workload cannot use, in thousandths times weight."""
    total = 0
    for shape, count in workload.items():
        wanted = dict(shape.items)
        can = all(free[number] >= quantity for number, quantity in wanted.items())
        for number, name in enumerate(names):
            milli = {MILLI: 1, GPU: 1000}.get(name, 0) * wanted.get(number, 0)
            if milli:
                pool = max(free[number], 0) * {MILLI: 1, GPU: 1000}[name]
                rest = pool % 1000
                total += weight(count) * (pool if not can else rest if rest < min(milli, 1000) else 0)
    return total


def growth(names: list[str], node: Node, items: tuple[tuple[int, int], ...], workload: dict[Shape, int]) -> int:
    after = list(node.available)
    for number, quantity in items:
        after[number] -= quantity
    return unusable(names, after, workload) - unusable(names, node.available, workload)


class Model(RuleBasedStateMachine):
    """Adds, moves, removes and brings back nodes at random while the workload changes; a look at each node agrees."""

    policy = "dotproduct"

    def __init__(self) -> None:
        super().__init__()
        self._kept = shape_index.KEPT_SHAPES_MAX
        shape_index.KEPT_SHAPES_MAX = 3
        self.types = ResourceTypes()
        for name in NAMES[:4]:
            self.types.number(name)
        self.index = policy_named(self.policy).new_index(self.types)
        assert isinstance(self.index, ShapeIndex)
        self.nodes: dict[str, Node] = {}
        self.scores: dict[str, float] = {}
        self.work: dict[Shape, int] = {}
        self.number = 0

    def teardown(self) -> None:
        shape_index.KEPT_SHAPES_MAX = self._kept

    quantities = st.dictionaries(
        st.sampled_from(NAMES[:4]), st.sampled_from([1, 2, 300, 500, 700, 1000, 2000]), min_size=1, max_size=3
    )
    room = st.lists(st.sampled_from([-300, 0, 1, 2, 300, 700, 1000, 1700, 2000, 4000]), min_size=4, max_size=4)
    score = st.sampled_from([-1.0, -0.5, -0.0, 0.0])

    def _fill(self, node: Node, free: list[int], score: float) -> None:
        for number, amount in enumerate(free):
            node.available[number] = amount
            node.capacity[number] = max(node.capacity[number], amount)
        self.scores[node.node_id] = score

    @rule(free=room, score=score)
    def add(self, free: list[int], score: float) -> None:
        self.number += 1
        node = Node(self.types, f"n{self.number * 7919 % 1000}-{self.number}")
        self._fill(node, free, score)
        self.nodes[node.node_id] = node
        self.index.add(node, score)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), free=room, score=score)
    def move(self, data: st.DataObject, free: list[int], score: float) -> None:
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        self._fill(node, free, score)
        if node.index_key is not None:
            self.index.move(node, score)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def take_out_or_bring_back(self, data: st.DataObject) -> None:
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        if node.index_key is None:
            self.index.add(node, self.scores[node.node_id])
        else:
            self.index.remove(node)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        """Replaces a node by another one with the same id."""
        old = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        if old.index_key is not None:
            self.index.remove(old)
        node = Node(self.types, old.node_id)
        self._fill(node, old.available[:4], 0.0)
        self.nodes[node.node_id] = node
        self.index.add(node, 0.0)

    @precondition(lambda self: len(self.types.names) == 4)
    @rule()
    def new_type(self) -> None:
        self.types.number(NAMES[4])

    @rule(quantities=quantities, count=st.integers(1, 40))
    def more_work(self, quantities: dict[str, int], count: int) -> None:
        shape = self.types.shape(quantities)
        self.work[shape] = self.work.get(shape, 0) + count
        self.index.count_shape(shape, count)

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def less_work(self, data: st.DataObject) -> None:
        shape = data.draw(st.sampled_from(sorted(self.work, key=lambda shape: shape.name)))
        count = data.draw(st.integers(1, self.work[shape]))
        self.index.count_shape(shape, -count)
        self.work[shape] -= count
        if not self.work[shape]:
            del self.work[shape]

    @rule(quantities=quantities, data=st.data())
    def search(self, quantities: dict[str, int], data: st.DataObject) -> None:
        items = self.types.shape(quantities).items
        fitting = [
            node
            for node in self.nodes.values()
            if node.index_key is not None and all(node.available[number] >= amount for number, amount in items)
        ]
        order = sorted(fitting, key=lambda node: self._key(node, items))
        assert self.index.first_fit(items) is next(iter(order), None)
        few = [node for node in self.nodes.values() if data.draw(st.booleans())]
        expected = next((node for node in order if node in few), None)
        assert self.index.first_of(few, items) is expected

    @rule(quantities=quantities)
    def the_past_makes_no_difference(self, quantities: dict[str, int]) -> None:
        """Fails unless a new index with the same nodes and work finds the same nodes."""
        other = policy_named(self.policy).new_index(self.types)
        for node in sorted(self.nodes.values(), key=lambda node: node.node_id[::-1]):
            if node.index_key is not None:
                other.add(node, self.scores[node.node_id])
        for shape in sorted(self.work, key=lambda shape: shape.name, reverse=True):
            other.count_shape(shape, self.work[shape])
        items = self.types.shape(quantities).items
        assert other.first_fit(items) is self.index.first_fit(items)

    def _key(self, node: Node, items: tuple[tuple[int, int], ...]) -> tuple[float, float, str]:
        return (dot_product(node, items), self.scores[node.node_id], node.node_id)


class FragmentationModel(Model):
    policy = "fragmentation"

    def _key(self, node: Node, items: tuple[tuple[int, int], ...]) -> tuple[float, float, str]:
        return (growth(self.types.names, node, items, self.work), self.scores[node.node_id], node.node_id)


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
FragmentationModel.TestCase.settings = Model.TestCase.settings
TestDotProduct = Model.TestCase
TestFragmentation = FragmentationModel.TestCase


# ---- by hand -------------------------------------------------------------------------------------------------------


class Bench:
    """Nodes with what they have free, and a search."""

    def __init__(self, policy: str, nodes: dict[str, dict[str, int]]) -> None:
        self.types = ResourceTypes()
        for free in nodes.values():
            self.types.reserve(free)
        self.index = policy_named(policy).new_index(self.types)
        for name, free in nodes.items():
            node = Node(self.types, name)
            for number, amount in self.types.items(free):
                node.capacity[number] = max(amount, 8000)
                node.available[number] = amount
            self.index.add(node, 0.0)

    def work(self, count: int, **quantities: int) -> None:
        self.index.count_shape(self.types.shape(_named(quantities)), count)

    def first(self, **quantities: int) -> str:
        found = self.index.first_fit(self.types.shape(_named(quantities)).items)
        return "" if found is None else found.node_id


def _named(quantities: dict[str, int]) -> dict[str, int]:
    return {MILLI if name == "gpu" else name: amount for name, amount in quantities.items()}


def _fragmenting(**nodes: dict[str, int]) -> Bench:
    return Bench("fragmentation", {name: _named(free) for name, free in nodes.items()})


def test_a_share_of_a_gpu_goes_to_the_gpu_that_is_partly_taken() -> None:
    """Most of the work wants whole GPUs: of n1's 500 it can use nothing anyway, n2's whole one it could."""
    bench = _fragmenting(n0={"vcore": 99, "gpu": 2_000}, n1={"vcore": 99, "gpu": 500}, n2={"vcore": 99, "gpu": 1_000})
    bench.work(10, vcore=4, gpu=1_000)
    bench.work(5, vcore=4, gpu=500)
    assert bench.first(vcore=4, gpu=500) == "n1"
    assert bench.first(vcore=4, gpu=1_000) == "n0"  # no difference: the first by id


def test_a_gpu_on_a_node_with_few_cores_goes_to_an_ask_for_few_cores() -> None:
    """The workload wants 8 cores and cannot use n2's GPU. An ask for 2 cores should go there."""
    bench = _fragmenting(n1={"vcore": 32, "gpu": 1_000}, n2={"vcore": 4, "gpu": 1_000})
    bench.work(20, vcore=8, gpu=1_000)
    assert bench.first(vcore=2, gpu=1_000) == "n2"
    assert bench.first(vcore=8, gpu=1_000) == "n1"


def test_work_without_gpus_leaves_the_cores_beside_free_gpus_alone() -> None:
    bench = _fragmenting(n1={"vcore": 8, "gpu": 1_000}, n2={"vcore": 8, "gpu": 0}, n3={"vcore": 16, "gpu": 1_000})
    bench.work(20, vcore=8, gpu=1_000)
    assert bench.first(vcore=6) == "n2"
    assert bench.first(vcore=9) == "n3"


def test_the_workload_decides_what_is_a_fragment() -> None:
    """On the same two nodes, 600 left is a fragment if the workload wants 700, and none if it wants 300."""
    nodes = {"n1": {"vcore": 64, "gpu": 900}, "n2": {"vcore": 64, "gpu": 1_000}}
    large, small = _fragmenting(**nodes), _fragmenting(**nodes)
    large.work(9, vcore=1, gpu=700)
    assert large.first(vcore=1, gpu=300) == "n2"  # leaves 700; n1 would be left with 600
    small.work(9, vcore=1, gpu=300)
    small.work(1, vcore=1, gpu=650)
    assert small.first(vcore=1, gpu=300) == "n2"
    small.work(99, vcore=1, gpu=1_000)
    assert small.first(vcore=1, gpu=300) == "n1"  # whole ones are wanted now


def test_without_a_workload_or_gpus_the_fullest_node_comes_first() -> None:
    types = ResourceTypes()
    types.reserve(["vcore", "memory"])
    index = policy_named("fragmentation").new_index(types)
    for name, score in (("n1", -0.2), ("n2", -0.7), ("n3", -0.7)):
        node = Node(types, name)
        node.available[:] = [4, 4]
        index.add(node, score)
    shape = types.shape({"vcore": 2})
    index.count_shape(shape, 3)
    found = index.first_fit(shape.items)
    assert found is not None
    assert found.node_id == "n2"


def test_whole_units_are_gpus_of_a_thousand() -> None:
    types = ResourceTypes()
    types.reserve(["vcore", GPU])
    index = policy_named("fragmentation").new_index(types)
    for name, free in (("n1", [8, 2]), ("n2", [2, 2])):
        node = Node(types, name)
        node.available[:] = free
        index.add(node, 0.0)
    index.count_shape(types.shape({"vcore": 4, GPU: 1}), 1)
    found = index.first_fit(types.shape({"vcore": 1, GPU: 1}).items)
    assert found is not None
    assert found.node_id == "n2"


def test_dotproduct_goes_where_most_is_free_of_what_is_wanted() -> None:
    bench = Bench("dotproduct", {"n1": {"vcore": 2_000, "memory": 6_000}, "n2": {"vcore": 6_000, "memory": 2_000}})
    assert bench.first(vcore=1_500, memory=100) == "n2"
    assert bench.first(vcore=100, memory=1_500) == "n1"
    assert bench.first(vcore=1_000, memory=1_000) == "n1"  # no difference: the first by id


def test_dotproduct_measures_in_parts_of_the_capacity() -> None:
    """Half of a small node is more than a fifth of a large one, though it is fewer cores."""
    bench = Bench("dotproduct", {"large": {"vcore": 40_000}, "small": {"vcore": 4_000}})
    small, large = (next(node for node in bench.index if node.node_id == name) for name in ("small", "large"))
    large.available[0] = 8_000
    bench.index.move(large, 0.0)
    assert small.available[0] < large.available[0]
    assert bench.first(vcore=1_000) == "small"


def test_amounts_beyond_64_bits_are_as_good_as_the_largest() -> None:
    types = ResourceTypes()
    types.reserve(["vcore", MILLI])
    for policy in ("dotproduct", "fragmentation"):
        index = policy_named(policy).new_index(types)
        for name, free in (("n1", -(1 << 70)), ("n2", 1 << 70)):
            node = Node(types, name)
            node.capacity[:] = [1 << 70, 1 << 70]
            node.available[:] = [free, free]
            index.add(node, 0.0)
        shape = types.shape({"vcore": INT64_MAX, MILLI: INT64_MAX})
        index.count_shape(shape, 1 << 40)
        found = index.first_fit(shape.items)
        assert found is not None
        assert found.node_id == "n2"


def test_each_policy_has_its_search() -> None:
    kinds = {policy: type(policy_named(policy).new_index(ResourceTypes())) for policy in names()}
    assert kinds == {
        "fair": NodeIndex,
        "binpacking": NodeIndex,
        "dotproduct": DotProductIndex,
        "fragmentation": FragmentationIndex,
    }


@pytest.mark.parametrize("policy", ["dotproduct", "fragmentation"])
def test_an_empty_cluster_has_no_node(policy: str) -> None:
    types = ResourceTypes()
    index = policy_named(policy).new_index(types)
    types.number("vcore")
    assert index.first_fit(((0, 1),)) is None
    assert index.first_of([], ((0, 1),)) is None


# ---- the workload --------------------------------------------------------------------------------------------------


def test_a_weight_is_a_count_with_two_digits() -> None:
    assert [weight(count) for count in range(20)] == [
        0,
        1,
        2,
        3,
        4,
        4,
        6,
        6,
        8,
        8,
        8,
        8,
        12,
        12,
        12,
        12,
        16,
        16,
        16,
        16,
    ]


def test_the_workload_changes_seldom_while_counts_grow() -> None:
    types, workload = ResourceTypes(), ShapeFrequencies()
    shapes = [types.shape({MILLI: 100 + number}) for number in range(20)]
    for _ in range(1_000):
        for shape in shapes:
            workload.add(shape, 1)
    assert workload.version <= 20 * 2 * 10
    assert workload.shapes() == [(shape, 768) for shape in sorted(shapes, key=lambda shape: shape.name)]


def test_the_workload_is_the_most_frequent_shapes() -> None:
    types, workload = ResourceTypes(), ShapeFrequencies()
    rare = [types.shape({MILLI: number}) for number in range(1, 1_001)]
    often = types.shape({MILLI: 5_000})
    for shape in rare:
        workload.add(shape, 1)
    workload.add(often, 50)
    version = workload.version
    assert len(workload.shapes()) == WORKLOAD_SHAPES_MAX
    assert workload.shapes()[0] == (often, 48)
    last = max(rare, key=lambda shape: shape.name)
    workload.add(last, -1)  # far behind the most frequent
    assert workload.version == version
    for shape in rare:
        workload.add(shape, -1 if shape is not last else 0)
    workload.add(often, -50)
    assert workload.shapes() == []


def test_the_core_tells_what_is_pending_and_allocated() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}", nodesort="fragmentation")
    cluster.app("x", "root.a")
    cluster.node("n", vcore=10, **{MILLI: 2_000})
    index = cluster.partition.index
    assert isinstance(index, FragmentationIndex)
    cluster.ask("x", "one", vcore=1, **{MILLI: 500})
    cluster.ask("x", "many", wanted=5, vcore=1, **{MILLI: 700})
    cluster.ask("x", "none", vcore=1)
    counts = [(dict(shape.quantities)[MILLI], count) for shape, count in index.workload.shapes()]
    assert counts == [(700, 4), (500, 1)]
    cluster.release("x", "one")
    cluster.release("x", "many")
    assert index.workload.shapes() == []


def test_another_policy_knows_the_work_that_there_is() -> None:
    queues = "{name: root, submitacl: '*', queues: [{name: a}]}"
    cluster = Cluster(queues)
    cluster.app("x", "root.a")
    cluster.node("n1", vcore=10, **{MILLI: 1_000})
    cluster.node("n2", vcore=4, **{MILLI: 2_000})
    cluster.ask("x", "held", wanted=2, vcore=4, **{MILLI: 500})
    cluster.ask("x", "waits", vcore=8, **{MILLI: 1_500})
    assert type(cluster.partition.index) is NodeIndex
    config = Cluster(queues, nodesort="fragmentation").core.config
    cluster.do(UpdateConfiguration(config))
    index = cluster.partition.index
    assert isinstance(index, FragmentationIndex)
    counts = [(dict(shape.quantities)[MILLI], count) for shape, count in index.workload.shapes()]
    assert counts == [(500, 2), (1_500, 1)]
    assert [node.node_id for node in index] == sorted(
        ("n1", "n2"), key=lambda name: (cluster.partition.node_books.score(cluster.the_node(name)), name)
    )
