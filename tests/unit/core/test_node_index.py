"""The node index against a plain sorted list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from muster_core.model.node import Node
from muster_core.model.resources import ResourceTypes, fits
from muster_core.nodes import node_index
from muster_core.nodes.node_index import BLOCK_NODES_MAX, NodeIndex

SMALL = {"BLOCK_NODES_MAX": 4, "ROW_BLOCKS": 2, "WATCHED_MAX": 3, "VAIN_LOOKS_MIN": 3}
SCORES = st.sampled_from([-1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 7.5])


class Model(RuleBasedStateMachine):
    """Adds, moves and removes at random, with small blocks so that they split and join, and few watched shapes so that
    they lose their bits to others; a sorted list agrees."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes = {name: getattr(node_index, name) for name in SMALL}
        for name, size in SMALL.items():
            setattr(node_index, name, size)
        self.types = ResourceTypes()
        self.types.number("a")
        self.index = NodeIndex()
        self.nodes: dict[str, tuple[float, Node]] = {}
        self.number = 0
        self.looks = True  # after each step; else nodes move, come and go several times before somebody searches

    def teardown(self) -> None:
        for name, size in self._sizes.items():
            setattr(node_index, name, size)

    @rule(score=SCORES, free=st.lists(st.integers(-2, 9), min_size=1, max_size=4))
    def add(self, score: float, free: list[int]) -> None:
        self.number += 1
        node = Node(self.types, f"n{self.number * 7919 % 1000}-{self.number}")
        self._fill(node, free)
        self.nodes[node.node_id] = (score, node)
        self.index.add(node, score)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), score=SCORES, free=st.lists(st.integers(-2, 9), min_size=1, max_size=4))
    def move(self, data: st.DataObject, score: float, free: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        _, node = self.nodes[name]
        self._fill(node, free)
        version = self.index.version
        self.index.move(node, score)
        assert self.index.version > version
        self.nodes[name] = (score, node)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        _, node = self.nodes.pop(name)
        self.index.remove(node)
        assert node.index_key is None

    @precondition(lambda self: len(self.types.names) < 4)
    @rule()
    def new_type(self) -> None:
        self.types.number(f"type {len(self.types.names)}")

    @rule(looks=st.booleans())
    def look(self, looks: bool) -> None:
        self.looks = looks

    @rule(data=st.data())
    def search(self, data: st.DataObject) -> None:
        wanted = data.draw(
            st.dictionaries(st.integers(0, len(self.types.names) - 1), st.integers(1, 9), min_size=1, max_size=3)
        )
        items = tuple(sorted(wanted.items()))
        expected = next(
            (node for node in self._sorted() if all(node.available[number] >= value for number, value in items)), None
        )
        for _ in range(3):  # the second time, or the third, it may be watched
            assert self.index.first_fit(items) is expected
        few = [node for number, (_, node) in enumerate(self.nodes.values()) if number % 3]
        fitting = [node for node in self._sorted() if node in few and fits(items, node.available)]
        assert self.index.first_of(few, items) is next(iter(fitting), None)

    @precondition(lambda self: self.looks)
    @invariant()
    def promises_hold(self) -> None:
        """Fails unless each block's known masks are exact and each union covers its block."""
        index, watched = self.index, self.index._watched
        index._put_moved()
        for place, block in enumerate(index._blocks):
            claimed = watched.everything & ~block.known
            for node, mask in zip(block.nodes, block.masks, strict=True):
                room = sum(bit for items, bit in watched.bits.items() if fits(items, node.available))
                assert mask & block.known == room & block.known
                claimed |= mask
            assert index._unions[place] | claimed == index._unions[place]
            row = index._rows[place // node_index.ROW_BLOCKS]
            assert row | claimed == row

    @precondition(lambda self: self.looks)
    @invariant()
    def agrees(self) -> None:
        assert [node.node_id for node in self.index] == [node.node_id for node in self._sorted()]
        assert self.index.count == len(self.nodes)

    def _fill(self, node: Node, free: list[int]) -> None:
        for number in range(len(node.available)):
            node.available[number] = free[number] if number < len(free) else 0

    def _sorted(self) -> list[Node]:
        return [node for _, node in sorted(self.nodes.values(), key=lambda each: (each[0], each[1].node_id))]


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestModel = Model.TestCase


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), SCORES), min_size=BLOCK_NODES_MAX, max_size=3 * BLOCK_NODES_MAX))
def test_blocks_of_the_real_size_agree_too(nodes: list[tuple[int, float]]) -> None:
    types = ResourceTypes()
    types.number("a")
    index = NodeIndex()
    made = []
    for number, (free, score) in enumerate(nodes):
        node = Node(types, f"n{number:05}")
        node.available[0] = free
        index.add(node, score)
        made.append((score, node))
    made.sort(key=lambda each: (each[0], each[1].node_id))
    for wanted in range(1, 7):
        expected = next((node for _, node in made if node.available[0] >= wanted), None)
        assert index.first_fit(((0, wanted),)) is expected


def test_an_empty_index_finds_nothing() -> None:
    index = NodeIndex()
    assert index.first_fit(((0, 1),)) is None
    assert list(index) == []


def _filled(count: int) -> tuple[NodeIndex, list[Node]]:
    """Nodes with room for 9 that have only room for 1 now."""
    types = ResourceTypes()
    types.number("a")
    index = NodeIndex()
    nodes = [Node(types, f"n{number:04}") for number in range(count)]
    for node in nodes:
        node.available[0] = 9
        index.add(node, 0.0)
    for node in nodes:
        node.available[0] = 1
        index.move(node, 0.0)
    return index, nodes


def test_full_nodes_are_not_walked_through_again_and_again() -> None:
    """After a search without a result the shape is watched; after a second one every row is skipped."""
    index, nodes = _filled(500)
    assert index.first_fit(((0, 5),)) is None
    assert index._watched.bits == {((0, 5),): 1}
    assert index.first_fit(((0, 5),)) is None
    assert not any(index._rows)
    nodes[321].available[0] = 5
    index.move(nodes[321], 0.0)
    assert index.first_fit(((0, 5),)) is nodes[321]


def test_a_block_learns_all_shapes_at_once_for_nodes_that_are_alike_and_others() -> None:
    index, nodes = _filled(50)
    for node, free in zip(nodes, [1, 1, 6, 6, 7, 1, 7], strict=False):
        node.available[0] = free
    shapes = [((0, wanted),) for wanted in (5, 6, 7)]
    index._put_moved()
    for items in shapes:
        index._watch(items, 0)
    assert index.first_fit(shapes[2]) is nodes[4]
    block, watched = index._blocks[0], index._watched
    assert block.known == watched.everything
    assert block.masks[:7] == [watched.mask(node.available) for node in nodes[:7]]
    assert [index.first_fit(items) for items in shapes] == [nodes[2], nodes[2], nodes[4]]


def test_a_watched_shape_leads_larger_ones_past_the_full_nodes() -> None:
    index, nodes = _filled(500)
    assert index.first_fit(((0, 5),)) is None
    assert index.first_fit(((0, 5),)) is None
    nodes[400].available[0] = 6
    index.move(nodes[400], 0.0)
    nodes[450].available[0] = 8
    index.move(nodes[450], 0.0)
    assert index.first_fit(((0, 7),)) is nodes[450]
    assert index._vain <= 3 * BLOCK_NODES_MAX  # the blocks of the two nodes alone were opened
    assert ((0, 7),) not in index._watched.bits


def test_shapes_that_never_come_twice_are_led_by_a_sample() -> None:
    index, _ = _filled(300)
    for wanted in range(2, 1_000):
        assert index.first_fit(((0, wanted),)) is None
    assert len(index._watched.bits) < 10  # what is smaller than all of them answers for all


def test_no_more_shapes_are_watched_than_there_are_bits() -> None:
    index, _ = _filled(40)
    for wanted in range(2_000, 1, -1):
        assert index.first_fit(((0, wanted),)) is None
    assert len(index._watched.bits) <= node_index.WATCHED_MAX
    assert index._watched.everything < 1 << node_index.WATCHED_MAX


def test_emptied_blocks_join_their_neighbours() -> None:
    types = ResourceTypes()
    types.number("a")
    index = NodeIndex()
    nodes = [Node(types, f"n{number:04}") for number in range(2_000)]
    for node in nodes:
        index.add(node, 0.0)
    for node in nodes[5:]:
        index.remove(node)
    assert len(index._blocks) == 1
    assert list(index) == nodes[:5]
