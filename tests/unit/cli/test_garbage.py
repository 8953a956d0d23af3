"""What a process that lives has of young objects (gc_tuning.py)."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator

import pytest
from muster_cli import gc_tuning

LIVE, CAME = 30_000, 60_000


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc_tuning.collect_young()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_where_as_much_ends_as_begins_young_objects_stay_few() -> None:
    live: deque[list[None]] = deque(([] for _ in range(LIVE)), LIVE)
    gc.collect()
    young = gc_tuning.Young()
    young.collect()
    for number in range(CAME):
        live.append([])  # (and the oldest one ends)
        if number % 1_000 == 0:
            assert len(gc.get_objects(generation=0)) < 3_000
            assert len(gc.get_objects(generation=1)) < 6_000
            young.collect()


@pytest.mark.usefixtures("thresholds")
def test_pythons_own_count_does_not_see_them() -> None:
    """Otherwise nothing would have to be collected by time."""
    live: deque[list[None]] = deque(([] for _ in range(LIVE)), LIVE)
    gc.collect()
    most = 0
    for number in range(CAME):
        live.append([])
        if number % 5_000 == 0:
            most = max(most, len(gc.get_objects(generation=0)))
    assert most > 20_000


@pytest.mark.usefixtures("thresholds")
def test_no_threshold_leads_to_a_full_collection() -> None:
    full = 0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        full += phase == "start" and info["generation"] == 2

    gc.callbacks.append(collected)
    try:
        kept = [[number] for number in range(1_000_000)]
    finally:
        gc.callbacks.remove(collected)
    assert len(kept) == 1_000_000
    assert full == 0
