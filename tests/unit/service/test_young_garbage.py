"""Young garbage is collected during long work, a little at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from muster_runtime import young_garbage
from muster_runtime.young_garbage import YoungGarbage


@pytest.fixture
def generations() -> Iterator[list[int]]:
    """The generations that are collected."""
    found: list[int] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(noted)
    yield found
    gc.callbacks.remove(noted)


def test_after_enough_work_it_collects_by_turns_whatever_was_freed(
    generations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(young_garbage, "_WORK_S", 0.0)
    young = YoungGarbage()
    generations.clear()
    for _ in range(4):
        young.collect_if_due()
    assert generations == [0, 1, 0, 1]
    assert gc.get_count()[0] < 100, "what was made before is old now"


def test_it_collects_nothing_too_soon_or_where_collections_are_off(
    generations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(young_garbage, "_WORK_S", 3600.0)
    young = YoungGarbage()
    generations.clear()
    young.collect_if_due()
    monkeypatch.setattr(young_garbage, "_WORK_S", 0.0)
    gc.disable()
    try:
        young.collect_if_due()
    finally:
        gc.enable()
    assert generations == []
