"""Types, shapes and vectors: the algebra, and the rules for absent types."""

from __future__ import annotations

import gc

import pytest
from builders import Cluster
from hypothesis import given
from hypothesis import strategies as st
from muster_core.model.resources import (
    INT64_MAX,
    INT64_MIN,
    TYPES_MAX,
    UNLIMITED,
    ResourceTypes,
    TooManyTypes,
    add,
    fits,
    saturated,
    subtract,
)

NAMES = st.sampled_from(["vcore", "memory", "gpu", "pods", "disk"])
QUANTITIES = st.dictionaries(NAMES, st.integers(0, INT64_MAX), max_size=5)


@given(QUANTITIES, st.lists(QUANTITIES))
def test_subtracting_what_was_added_restores_any_sum(first: dict[str, int], rest: list[dict[str, int]]) -> None:
    types = ResourceTypes()
    vector = types.vector()
    add(vector, types.items(first))
    before = list(vector)
    for each in rest:
        add(vector, types.shape(each).items)
    for each in reversed(rest):
        subtract(vector, types.shape(each).items)
    assert vector == before + [0] * (len(vector) - len(before))


@given(st.lists(QUANTITIES, max_size=8))
def test_a_sum_does_not_depend_on_order(parts: list[dict[str, int]]) -> None:
    types = ResourceTypes()
    one, other = types.vector(), types.vector()
    for each in parts:
        add(one, types.items(each))
    for each in reversed(parts):
        add(other, types.items(each))
    assert one == other
    assert types.quantities(one) == {
        name: saturated(total) for name in types.names if (total := sum(part.get(name, 0) for part in parts))
    }


@given(QUANTITIES, QUANTITIES)
def test_fits_is_every_type_at_most_what_is_free(asked: dict[str, int], free: dict[str, int]) -> None:
    types = ResourceTypes()
    vector = types.vector()
    shape = types.shape(asked)
    add(vector, types.items(free))
    assert fits(shape.items, vector) == all(value <= free.get(name, 0) for name, value in asked.items())


@given(QUANTITIES, st.randoms())
def test_equal_demands_are_one_shape(quantities: dict[str, int], dice: object) -> None:
    types = ResourceTypes()
    shuffled = list(quantities.items())
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert types.shape(quantities) is types.shape(dict(shuffled))


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(min_size=1, max_size=4), st.integers(0, 9), max_size=3),
)
def test_two_shapes_have_two_names(one: dict[str, int], other: dict[str, int]) -> None:
    types = ResourceTypes()
    assert (types.shape(one).name == types.shape(other).name) == (one == other)


def test_a_shape_reads_its_types_in_the_order_of_their_names() -> None:
    types = ResourceTypes()
    types.number("vcore")
    shape = types.shape({"vcore": 1, "memory": 2, "gpu": 0})
    assert shape.items == ((types.number("memory"), 2), (types.number("vcore"), 1))
    assert shape.name == "gpu=0,memory=2,vcore=1"


def test_zero_is_kept_in_what_was_asked_and_costs_no_type() -> None:
    types = ResourceTypes()
    shape = types.shape({"vcore": 1, "gpu": 0})
    assert shape.quantities == {"vcore": 1, "gpu": 0}
    assert types.names == ["vcore"]
    assert shape is not types.shape({"vcore": 1})


def test_shapes_of_the_past_are_forgotten() -> None:
    types = ResourceTypes()
    kept = types.shape({"vcore": 1})
    for size in range(1000):
        types.shape({"vcore": 2 + size})
    gc.collect()
    assert types.shape({"vcore": 1}) is kept
    assert len(types._shapes) == 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, 0),
        (INT64_MAX, INT64_MAX),
        (INT64_MAX + 1, INT64_MAX),
        (1 << 200, INT64_MAX),
        (INT64_MIN, INT64_MIN),
        (INT64_MIN - 1, INT64_MIN),
    ],
)
def test_outgoing_amounts_are_cut_to_int64(value: int, told: int) -> None:
    assert saturated(value) == told


def test_sums_beyond_int64_are_exact_inside_and_saturated_outside() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    for number in range(3):
        cluster.node(f"n{number}", memory=INT64_MAX)
    partition = cluster.partition
    memory = partition.types.number("memory")
    assert partition.capacity[memory] == 3 * INT64_MAX
    assert partition.types.quantities(partition.capacity) == {"memory": INT64_MAX}
    cluster.app("x", "root.a")
    for number in range(4):
        cluster.ask("x", f"k{number}", memory=INT64_MAX)
    assert len(cluster.placed("x")) == 3
    assert cluster.queue("root").allocated[memory] == 3 * INT64_MAX


def test_a_new_type_lengthens_every_vector_by_its_fill() -> None:
    types = ResourceTypes()
    used, limit = types.vector(), types.vector(UNLIMITED)
    types.number("a")
    assert (used, limit) == ([0], [UNLIMITED])
    types.release(used)
    types.number("b")
    assert (used, limit) == ([0], [UNLIMITED, UNLIMITED])


def test_too_many_types_leave_none_of_them_behind() -> None:
    types = ResourceTypes()
    for number in range(TYPES_MAX - 1):
        types.number(f"t{number}")
    with pytest.raises(TooManyTypes, match=r"'y'.*knows 255 types already, expected at most 256"):
        types.reserve(["x", "y", "z"])
    with pytest.raises(TooManyTypes):
        types.shape({"p": 1, "q": 1})
    assert len(types.names) == TYPES_MAX - 1
    types.reserve(["p", "p", "t0"])  # (it is one, however often it is named)
    assert len(types.names) == TYPES_MAX


def test_a_fold_accepts_any_number_of_recorded_types() -> None:
    types = ResourceTypes()
    types.bounded = False
    types.reserve(f"t{number}" for number in range(TYPES_MAX + 1))
    assert types.number("one more") == TYPES_MAX + 1
    types.bounded = True
    types.reserve(["t0", "one more"])
    with pytest.raises(TooManyTypes, match=r"'x'.*knows 258 types already"):
        types.reserve(["t0", "x"])
    with pytest.raises(TooManyTypes):
        types.number("x")


# ---- what is missing --------------------------------------------------------------------------


def test_a_type_that_a_node_does_not_name_is_zero_there() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}").having({"n": {"vcore": 10}}, {"x": "root.a"})
    cluster.ask("x", "k", vcore=1, gpu=1)
    assert cluster.pending("x") == {"k": "LARGER_THAN_ANY_NODE"}
    cluster.ask("x", "zero", vcore=1, gpu=0)
    assert "zero" in cluster.placed("x")
