"""Deadlines count elapsed time, over steps of the clock and over restarts. Events have the time of day."""

from __future__ import annotations

import pytest
from muster_bus.clock import NO_ANCHOR, STEP_NS, Anchor, SystemClock
from muster_scheduler.recorded_time import DIFFERENCE_SHOWN_NS, ClockSteps, NoSteps, RecordedTime, difference_text
from unit.bus.test_clock import DAY, SECOND, Machine, within


def resumed(clock: SystemClock, last_ns: int, before: Anchor) -> RecordedTime:
    times = RecordedTime(clock)
    times.resume(clock.now_ns(), last_ns, before)
    return times


def wall_of(times: RecordedTime, clock: SystemClock) -> int:
    return times.recorded(clock.now_ns()) + times.anchor.offset_ns


@pytest.mark.parametrize("step", [400 * DAY, -400 * DAY])
def test_a_step_is_told_once_and_shown_in_the_time_of_day_only(step: int) -> None:
    machine = Machine()
    clock = machine.clock()
    times = resumed(clock, 0, NO_ANCHOR)
    before = times.recorded(clock.now_ns())
    assert times.step_due_ns() is None
    machine.wall_ns += step
    machine.sleep(SECOND)
    clock.now_ns()
    assert times.step_due_ns() == 0
    assert times.recorded(clock.now_ns()) - before == SECOND
    assert "400.0 days" in times.take_step()
    assert times.step_due_ns() is None
    assert times.take_step() == ""
    assert wall_of(times, clock) == machine.wall_ns
    machine.wall_ns -= step
    machine.sleep(SECOND)
    assert within(times.recorded(clock.now_ns()) - before, 2 * SECOND)
    assert "400.0 days" in times.take_step()
    assert abs(times.anchor.offset_ns) <= 2 * SECOND // 1000


@pytest.mark.parametrize("step", [1_900_000_000, -1_900_000_000])
def test_small_steps_in_a_row_are_told_in_sum_and_not_each(step: int) -> None:
    machine = Machine()
    clock = machine.clock()
    times = resumed(clock, 0, NO_ANCHOR)
    before = times.recorded(clock.now_ns())
    told: list[tuple[int, str]] = []
    for number in range(200):
        machine.wall_ns += step
        machine.sleep(1_500_000_000)
        times.recorded(clock.now_ns())
        due_ns = times.step_due_ns()
        text = times.take_step()
        assert bool(text) == (due_ns is not None and due_ns <= times.recorded(clock.now_ns()))
        told += [(number, text)] if text else []
    assert within(times.recorded(clock.now_ns()) - before, 300 * SECOND)
    assert len(told) <= 10 + 300 // 60, "ten, and then one a minute"
    assert "3.8 s" in told[0][1] or "4 s" in told[0][1]
    assert "1.3 minutes" in told[-1][1], "the sum of those that were not told"


@pytest.mark.parametrize("step", [400 * DAY, -400 * DAY, 0])
@pytest.mark.parametrize("knows", [True, False], ids=["the clock resumes", "the clock begins anew"])
def test_a_restart_of_the_same_boot_counts_what_elapsed(step: int, *, knows: bool) -> None:
    machine = Machine()
    clock = machine.clock()
    times = resumed(clock, 0, NO_ANCHOR)
    last = times.recorded(clock.now_ns())
    anchor = clock.anchor()
    machine.sleep(60 * SECOND)
    machine.wall_ns += step
    later = machine.clock()
    if knows:
        later.resume(anchor)
    again = resumed(later, last, times.anchor)
    assert again.recorded(later.now_ns()) - last == 60 * SECOND
    assert wall_of(again, later) == machine.wall_ns
    assert bool(again.take_step()) == bool(step)
    # a deadline is never late: while it is slewed, the clock may wake the worker a little early
    for left_ns in (SECOND, 3600 * SECOND):
        due_ns = again.clock_ns(again.recorded(later.now_ns()) + left_ns) - later.now_ns()
        assert left_ns * 998 // 1000 <= due_ns <= left_ns
        assert step or due_ns == left_ns


def test_recorded_time_from_the_future_goes_on_at_once_after_another_boot() -> None:
    machine = Machine()
    last = machine.wall_ns + 400 * DAY  # like data of a version without anchors
    machine.reboot()
    clock = machine.clock()
    times = resumed(clock, last, NO_ANCHOR)
    assert "back by 400.0 days" in times.take_step()
    assert times.recorded(clock.now_ns()) == last
    machine.sleep(5 * SECOND)
    now = times.recorded(clock.now_ns())
    assert within(now - last, 5 * SECOND)
    assert wall_of(times, clock) == machine.wall_ns
    # and the next restart reports no step
    again = resumed(clock, now, times.anchor)
    assert again.take_step() == ""


@pytest.mark.parametrize("offset", [0, 400 * DAY, -400 * DAY])
def test_after_another_boot_it_is_the_wall_clock(offset: int) -> None:
    machine = Machine()
    clock = machine.clock()
    last = clock.now_ns()
    machine.reboot()
    machine.wall_ns += 30 * DAY
    clock = machine.clock()
    times = resumed(clock, last, Anchor(offset, "one", last - 50 * SECOND))
    assert times.recorded(clock.now_ns()) == machine.wall_ns
    assert times.anchor.offset_ns == 0
    told = times.take_step()
    assert told.startswith("recorded time went forward by 400.0 days") if offset > 0 else told == ""


def test_partitions_of_one_process_keep_the_times_of_those_who_had_them() -> None:
    machine = Machine()
    clock = machine.clock()
    last = clock.now_ns() + 3 * SECOND  # of a host whose clock is ahead
    own, others = resumed(clock, 0, NO_ANCHOR), resumed(clock, last, Anchor(0, "another host", last - DAY))
    began = others.recorded(clock.now_ns())
    assert began == last
    before = began
    for _ in range(3_100):
        machine.sleep(SECOND)
        now = others.recorded(clock.now_ns())
        assert within(now - before, SECOND)
        before = now
    assert others.recorded(clock.now_ns()) == own.recorded(clock.now_ns()) == machine.wall_ns
    assert others.anchor.offset_ns == own.anchor.offset_ns == 0


def test_health_shows_the_last_step_for_an_hour_and_a_difference_as_long_as_it_is() -> None:
    now_s = 0.0
    steps = ClockSteps(lambda: now_s)
    assert steps.problems() == []
    steps.note("it stepped")
    steps.note("it stepped again")
    assert steps.problems() == ["it stepped again"]
    now_s = 3601.0
    assert steps.problems() == []
    machine = Machine()
    clock = machine.clock()
    times = resumed(clock, 0, NO_ANCHOR)
    assert times.difference_ns == 0
    machine.wall_ns += 2 * DIFFERENCE_SHOWN_NS
    machine.sleep(SECOND)
    times.recorded(clock.now_ns())
    assert times.difference_ns == 2 * DIFFERENCE_SHOWN_NS
    assert "the system clock is 2.0 minutes ahead of recorded time" in difference_text(times.difference_ns)
    assert "behind recorded time" in difference_text(-times.difference_ns)
    assert difference_text(DIFFERENCE_SHOWN_NS) == ""


def test_a_clock_whose_machine_is_not_known_is_its_own_measure() -> None:
    times = RecordedTime(NoSteps())
    assert times.difference_ns == 0
    assert [times.recorded(now) for now in (5, 9, 3, 20)] == [5, 9, 9, 20]
    assert times.anchor == NO_ANCHOR


def test_the_bound_is_small() -> None:
    assert STEP_NS <= 5 * SECOND
