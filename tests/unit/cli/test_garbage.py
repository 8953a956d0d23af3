"""Full collections when memory has grown."""

from __future__ import annotations

import gc
import weakref

import pytest
from muster_cli.garbage import Growth

MIB = 1 << 20


class Circle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def garbage() -> weakref.ref[Circle]:
    gc.collect()
    gc.disable()
    return weakref.ref(Circle())


@pytest.fixture(autouse=True)
def collecting() -> object:
    yield
    gc.enable()


def grown(*values_mib: int) -> list[bool]:
    """Whether each look collects, if the resident memory has these values; after a collection it has the next one."""
    values = iter(values_mib)
    growth = Growth(lambda: next(values) * MIB)
    found = []
    while True:
        try:
            found.append(growth.look())
        except StopIteration:
            return found


def test_memory_that_grew_by_a_quarter_is_collected(garbage: weakref.ref[Circle]) -> None:
    assert grown(1_000, 1_240) == [False]
    assert garbage() is not None
    assert grown(1_000, 1_250, 1_100) == [True]
    assert garbage() is None


@pytest.mark.usefixtures("garbage")
def test_a_small_process_may_grow_by_64_mib() -> None:
    assert grown(100, 150, 163) == [False, False]
    assert grown(100, 164, 120) == [True]


@pytest.mark.usefixtures("garbage")
def test_growth_counts_from_the_last_collection_and_from_the_least_memory_since() -> None:
    assert grown(1_000, 1_250, 1_200, 1_400, 1_500, 1_500) == [True, False, True]
    assert grown(1_000, 600, 749, 750, 700) == [False, False, True]
