"""Waits: growing before retries, and in step with other work that repeats."""

from __future__ import annotations

import asyncio

import pytest
from muster_runtime.backoff import aligned_s, backoff_s


class Clocked(asyncio.SelectorEventLoop):
    """A loop whose clock stands."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


def in_step_at(now_s: float, wait_s: float) -> float:
    loop = Clocked()
    loop.now_s = now_s

    async def ask() -> float:
        return aligned_s(wait_s)

    try:
        return loop.run_until_complete(ask())
    finally:
        loop.close()


def test_a_wait_doubles_with_each_failure_up_to_its_bound() -> None:
    assert [backoff_s(failures, 0.5, 3.0) for failures in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff_s(10_000, 0.5, 3.0) == 3.0


@pytest.mark.parametrize(
    ("now_s", "wait_s", "until_s"),
    [
        (100.0, 1.0, 101.0),
        (100.01, 1.0, 101.0),  # a loop that woke at a whole second, and worked for a moment
        (100.2, 1.0, 101.0),
        (100.5, 1.0, 102.0),
        (100.9, 1.0, 102.0),
        (100.01, 5.0, 105.0),
        (100.3, 3.4, 104.0),
    ],
)
def test_waits_in_step_end_at_a_whole_second(now_s: float, wait_s: float, until_s: float) -> None:
    assert now_s + in_step_at(now_s, wait_s) == pytest.approx(until_s)


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.1, 0.999])
def test_a_wait_under_a_second_stays_as_it_is(wait_s: float) -> None:
    assert in_step_at(100.7, wait_s) == wait_s


@pytest.mark.parametrize("tenths", range(10))
def test_a_wait_in_step_is_hardly_shorter_and_less_than_a_second_longer(tenths: int) -> None:
    for wait_s in (1.0, 1.5, 10 / 3):
        assert wait_s - 0.25 <= in_step_at(7 + tenths / 10, wait_s) <= wait_s + 0.75
