"""The allocations of the last minute: their rate and waits, from the recorded counts."""

from __future__ import annotations

import pytest
from muster_state.tally import WAIT_LIMITS_US, Tally
from muster_view.metrics.recent import RecentAllocations, quantile_ms
from unit.view.recorded import Bench, client_of

SECOND_NS = 1_000_000_000
START_NS = 1_000 * SECOND_NS


def counted(*waits_ms: float) -> Tally:
    """Return the counts after allocations whose asks waited so long."""
    tally = Tally(allocated=len(waits_ms))
    tally.waited([round(each * 1_000) for each in waits_ms])
    return tally


@pytest.mark.parametrize(
    ("waits_ms", "p50", "p99"),
    [
        ([1.5] * 100, 1.5, 1.99),  # evenly between 1 ms and 2 ms
        ([0.1] * 50 + [40] * 50, 1.0, 49.4),
        ([10**9], 500_000_000.0, 500_000_000.0),  # longer than every limit
    ],
)
def test_a_quantile_lies_between_the_limits_of_its_count(waits_ms: list[float], p50: float, p99: float) -> None:
    spread = counted(*waits_ms).wait_spread
    assert (quantile_ms(spread, 0.5), quantile_ms(spread, 0.99)) == (pytest.approx(p50), pytest.approx(p99))


def test_without_allocations_there_is_no_quantile() -> None:
    assert quantile_ms([0] * (len(WAIT_LIMITS_US) + 1), 0.5) is None


def test_figures_are_those_of_the_last_minute() -> None:
    recent = RecentAllocations()
    recent.note(START_NS, counted())
    waits: list[float] = []
    for second in range(1, 121):
        waits += [1.5] * 10 if second <= 60 else [150.0] * 20
        recent.note(START_NS + second * SECOND_NS, counted(*waits))
    found = recent.figures(START_NS + 60 * SECOND_NS + 60 * SECOND_NS)
    assert (found.seconds, found.allocations, found.per_second) == (60.0, 1_200, 20.0)
    assert found.wait_p50_ms is not None
    assert 100 <= found.wait_p50_ms <= 200
    later = recent.figures(START_NS + 1_000 * SECOND_NS)
    assert (later.allocations, later.per_second, later.wait_p99_ms) == (0, 0.0, None)


def test_many_transactions_in_a_second_are_few_counts_and_none_is_lost() -> None:
    recent = RecentAllocations()
    recent.note(START_NS, counted())
    for number in range(1, 5_001):
        recent.note(START_NS + number * 1_000_000, counted(*[1.0] * number) if number in (1, 5_000) else Tally(number))
    assert len(recent._counts) <= 8
    assert recent.figures(START_NS + 5 * SECOND_NS).allocations == 5_000
    # The last of them is a minute old: nothing is recent.
    assert recent.figures(START_NS + 65 * SECOND_NS).allocations == 0


def test_right_after_the_start_the_time_since_it_counts() -> None:
    recent = RecentAllocations()
    assert recent.figures(START_NS).allocations == 0
    recent.note(START_NS, counted(*[1.0] * 1_000))  # before the view's start
    recent.note(START_NS + 10 * SECOND_NS, counted(*[1.0] * 1_050))
    found = recent.figures(START_NS + 10 * SECOND_NS)
    assert (found.seconds, found.allocations, found.per_second) == (10.0, 50, 5.0)


def test_counts_that_begin_anew_are_not_negative() -> None:
    recent = RecentAllocations()
    recent.note(START_NS, counted(*[1.0] * 100))
    recent.note(START_NS + 5 * SECOND_NS, counted())
    recent.note(START_NS + 10 * SECOND_NS, counted(1.0))
    assert recent.figures(START_NS + 10 * SECOND_NS).allocations == 1


async def test_rest_has_the_figures_of_what_was_folded(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.now_ns = rm.info.last_decided_ns = bench.clock.now_ns()
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        place = "/ws/v1/metrics/snapshot?sections=scheduler"
        before = (await client.get(place)).json()["scheduler"]["recent"]
        assert (before["allocations"], before["waitP50Ms"], before["waitP99Ms"]) == (0, None, None)
        rm.info.tally.allocated += 3
        rm.info.tally.waited([15_000, 15_000, 15_000])
        rm.info.last_decided_ns = bench.clock.now_ns()
        await bench.write(rm)
        found = (await client.get(place)).json()["scheduler"]["recent"]
        assert (found["allocations"], found["waitP50Ms"]) == (3, 15.0)
        assert 0 < found["perSecond"] <= 3
