"""The deadlines of a core: their order, and what one of them costs."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from muster_core import deadline_heap
from muster_core.config.queue_config import ClusterConfig, PartitionConfig, QueueConfig
from muster_core.deadline_heap import DeadlineHeap
from muster_core.model.steps import finish
from muster_core.scheduler import SchedulerCore

MANY = 20_000
HERE = SchedulerCore(ClusterConfig((PartitionConfig("default", QueueConfig("root")),))).partitions["default"]


class _Timed:
    def __init__(self) -> None:
        self.gone = False


@pytest.mark.parametrize("seed", range(10))
def test_each_comes_once_in_the_order_of_times_then_of_arrival(seed: int) -> None:
    dice, heap, expected, got = random.Random(seed), DeadlineHeap(), [], []
    for number in range(MANY // 4):
        due_ns, what = dice.randrange(5_000), _Timed()
        heap.add(due_ns, HERE, what)
        expected.append((due_ns, number, what))
        if dice.random() < 0.05:
            now_ns = dice.randrange(due_ns + 1)
            first_ns = min(each[0] for each in expected)
            assert heap.first_ns() == first_ns
            due = sorted(each[:2] for each in expected if each[0] <= now_ns)
            while (found := heap.pop_due(now_ns)) is not None:
                got.append((found[0], found[1] - 1))
            assert got[len(got) - len(due) :] == due
            expected = [each for each in expected if each[0] > now_ns]
    assert len(heap) == len(expected)
    assert heap.pop_due(-1) is None


@pytest.mark.source  # it replaces a function
def test_one_more_looks_at_few_others_and_obsolete_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = [0]
    is_awaited = deadline_heap.is_current

    def counted(*given: Any) -> bool:
        looked[0] += 1
        return is_awaited(*given)

    monkeypatch.setattr(deadline_heap, "is_current", counted)
    heap, longest = DeadlineHeap(), 0
    for number in range(MANY):
        what, before = _Timed(), looked[0]
        heap.add(number, HERE, cast("Any", what))
        longest = max(longest, looked[0] - before)
        what.gone = number % 10 != 0
    assert 0 < longest <= 4
    assert len(heap) < MANY // 3, "nine of ten were gone"


def test_they_are_dropped_in_steps() -> None:
    heap = DeadlineHeap()
    for number in range(MANY):
        heap.add(number, HERE, cast("Any", _Timed()))
    left = [len(heap) for _ in heap.clear_in_steps()]
    assert len(left) >= MANY // 2048
    assert not heap
    finish(heap.clear_in_steps())
    assert heap.first_ns() is None
