"""Waits before reconnections."""

from __future__ import annotations

from random import Random

import pytest
from manual_clock import ManualClock
from muster_client.backoff import Backoff


def test_doubles_within_its_bounds_with_jitter() -> None:
    backoff = Backoff(100, 1_000, ManualClock(), chance=Random(7))
    waits = [backoff.failed() for _ in range(8)]
    for wait_s, ceiling_s in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0), strict=True):
        assert ceiling_s / 2 <= wait_s <= ceiling_s
    assert len(set(waits)) == len(waits)


def test_the_same_seed_gives_the_same_waits() -> None:
    first, second = (Backoff(10, 500, ManualClock(), chance=Random(3)) for _ in range(2))
    assert [first.failed() for _ in range(20)] == [second.failed() for _ in range(20)]


def test_a_success_or_a_try_that_held_starts_a_new_row() -> None:
    clock = ManualClock()
    backoff = Backoff(100, 10_000, clock, chance=Random(1), settled_after_s=5)
    for _ in range(5):
        backoff.failed()
    backoff.succeeded()
    assert backoff.failed() <= 0.1
    for _ in range(5):
        backoff.started()
        clock.advance(1)
        backoff.failed()
    assert backoff.failures == 6
    backoff.started()
    clock.advance(5)
    assert backoff.failed() <= 0.1


def test_hundreds_of_failures_stay_bounded() -> None:
    backoff = Backoff(1, 2_000, ManualClock(), chance=Random(1))
    assert max(backoff.failed() for _ in range(500)) <= 2.0


@pytest.mark.parametrize(("ms_min", "ms_max"), [(0, 10), (-1, 10), (10, 5)])
def test_bounds_must_make_sense(ms_min: int, ms_max: int) -> None:
    with pytest.raises(ValueError, match="0 < ms_min <= ms_max"):
        Backoff(ms_min, ms_max, ManualClock(), chance=Random(1))
