"""The books of a replay: counts, and the detection of defects."""

from __future__ import annotations

import pytest
from muster_replay.accounts import Accounts, percentile

CPU = "vcore"


def books() -> Accounts:
    return Accounts({f"t{n}": {CPU: 4} for n in range(4)}, {"n1": {CPU: 8}, "n2": {CPU: 8}})


def test_latency_runs_from_the_first_handing_over() -> None:
    b = books()
    b.asked(["t0"], 1.0)
    b.asked(["t0"], 5.0)
    b.allocated("t0", "n1", 1.5)
    assert b.latencies_s == [0.5]
    assert b.open() == {"t1", "t2", "t3"}


def test_a_second_allocation_is_a_defect_on_the_same_node_too() -> None:
    b = books()
    b.asked(["t0"], 1.0)
    for _ in range(2):
        b.allocated("t0", "n1", 2.0)
    assert b.placed_twice == ["t0"]
    assert b.used() == {CPU: 4}


def test_an_allocation_without_an_ask_is_a_defect() -> None:
    b = books()
    b.allocated("t0", "n1", 2.0)
    assert b.never_asked == ["t0"]


def test_overcommitted_nodes_are_found_and_unknown_ones_too() -> None:
    b = books()
    b.asked(["t0", "t1", "t2", "t3"], 0.0)
    b.allocated("t0", "n1", 1.0)
    b.allocated("t1", "n1", 1.0)
    assert b.overcommitted() == []
    b.allocated("t2", "n1", 1.0)
    b.allocated("t3", "n9", 1.0)
    assert b.overcommitted() == ["n1", "n9"]


def test_a_rejected_task_is_not_open() -> None:
    b = books()
    b.refused("t0", "no")
    assert "t0" not in b.open()


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (95, 95), (99, 99), (100, 100), (0, 1)])
def test_percentiles_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == value


def test_percentile_of_nothing_is_zero() -> None:
    assert percentile([], 99) == 0.0
