"""The bound of a stream's undecided requests: by items, and beside others by the work that the scheduler reports."""

from __future__ import annotations

import pytest
from muster_gateway.codec import DecidedReport
from muster_gateway.settings import GatewaySettings
from muster_gateway.undecided import UndecidedRequests

SETTINGS = GatewaySettings()
WORK_US = SETTINGS.undecided_work_shared_ms * 1000
KIB = 1024
ALONE, BESIDE_ONE = (0, 1), (1, 1)


def learnt(us_per_byte: float) -> tuple[UndecidedRequests, DecidedReport]:
    """Requests whose cost is learnt from reports, and the last of these."""
    undecided, report = UndecidedRequests(SETTINGS), DecidedReport()
    for offset in range(60):
        undecided.add(10, 4 * KIB)
        undecided.appended(offset, DecidedReport(1))
        report = DecidedReport(offset + 1, round(us_per_byte * 4 * KIB), 4 * KIB)
        undecided.after(report)
    return undecided, report


def room(undecided: UndecidedRequests, report: DecidedReport, neighbours: tuple[int, int], size: int) -> int:
    """How many records of one item and this size a stream may have undecided."""
    for count in range(100_000):
        if undecided.is_full(report, *neighbours):
            return count
        undecided.add(1, size)
    raise AssertionError("no bound")


def test_undecided_work_shrinks_with_the_reports() -> None:
    undecided = UndecidedRequests(SETTINGS)
    for offset, items in ((3, 10.0), (5, 20.0), (9, 30.0)):
        undecided.add(items, 512)
        undecided.appended(offset, DecidedReport(1))
    undecided.add(5.0, 0)  # the log does not have it yet
    assert undecided.after(DecidedReport(3)) == 68.0
    assert undecided.after(DecidedReport(6)) == 36.0
    assert undecided.after(DecidedReport(10)) == 5.0
    assert undecided.after(DecidedReport(100)) == 5.0
    undecided.appended(11, DecidedReport(10))
    assert undecided.after(DecidedReport(12)) == 0.0


def test_without_reports_nothing_is_remembered() -> None:
    undecided = UndecidedRequests(SETTINGS)
    for offset in range(100):
        undecided.add(1.0, 100)
        undecided.appended(offset, DecidedReport())
    assert undecided.after(DecidedReport()) == pytest.approx(0.0)


@pytest.mark.parametrize("cost", [0.2, 1.5, 20.0])
def test_beside_others_the_work_of_undecided_requests_is_bounded_whatever_an_item_costs(cost: float) -> None:
    undecided, report = learnt(cost)
    assert undecided.cost == pytest.approx(cost, rel=0.01)
    size = KIB
    work_us = room(undecided, report, BESIDE_ONE, size) * size * cost
    assert WORK_US <= work_us <= WORK_US + size * cost * 1.01


def test_the_bound_by_work_is_for_many_items_tighter_than_the_one_by_items() -> None:
    """2,000 applications of 80 bytes and 120 µs each: before, 250 of them stood on the log."""
    undecided, report = learnt(1.5)
    assert room(undecided, report, BESIDE_ONE, 80) <= 40


def test_an_rm_that_is_alone_has_no_bound_by_work() -> None:
    undecided, report = learnt(20.0)
    assert room(undecided, report, ALONE, 0) == SETTINGS.undecided_items
    assert undecided.record_limits(report, *ALONE) is SETTINGS.limits


def test_rms_that_are_held_back_share_what_is_possible_and_idle_ones_take_nothing() -> None:
    counts = []
    for neighbours in ((1, 1), (50, 1), (50, 4)):
        undecided, report = learnt(1.5)
        counts.append(room(undecided, report, neighbours, 64))
    assert counts[0] == counts[1]
    assert counts[2] == pytest.approx(counts[0] / 4, abs=1)


def test_a_stream_has_one_request_on_the_log_however_much_it_costs() -> None:
    undecided, report = learnt(1_000.0)
    assert room(undecided, report, (1, 20), 8 * KIB) == 1


def test_what_is_decided_during_a_commit_is_ready_beside_it() -> None:
    undecided, report = learnt(1.5)
    slow, slowest = report._replace(commit_us=12_000), report._replace(commit_us=10_000_000)
    assert room(undecided, slow, BESIDE_ONE, KIB) * KIB * 1.5 == pytest.approx(WORK_US + 12_000, abs=2 * KIB)
    assert room(undecided, slowest, BESIDE_ONE, 16 * KIB) * 16 * KIB * 1.5 < WORK_US + 100_000


def test_records_of_a_large_message_are_a_part_of_the_work() -> None:
    for cost, most in ((0.001, SETTINGS.limits.record_bytes), (1.0, 2 * KIB), (1_000.0, KIB // 2)):
        undecided, report = learnt(cost)
        limits = undecided.record_limits(report, *BESIDE_ONE)
        assert limits.record_bytes <= most
        assert limits.record_bytes >= KIB // 2
        assert limits.record_items == SETTINGS.limits.record_items
        assert undecided.record_limits(report, *BESIDE_ONE) is limits


def test_a_small_transaction_and_one_of_others_say_nothing_of_the_cost() -> None:
    undecided = UndecidedRequests(SETTINGS)
    first = undecided.cost
    undecided.add(1, 100)
    undecided.appended(0, DecidedReport(0))
    undecided.add(1, 100)
    undecided.appended(1, DecidedReport(1))
    undecided.after(DecidedReport(2, 1_000_000, 100))  # mostly the commit's own cost
    undecided.add(1, 100)
    undecided.appended(2, DecidedReport(1))
    undecided.after(DecidedReport(3, 1_000_000, 64 * KIB))  # another RM's
    undecided.add(1, 4 * KIB)
    undecided.appended(3, DecidedReport(1))
    undecided.after(DecidedReport(4, 0, 0))  # a scheduler that measures nothing
    assert undecided.cost == first
