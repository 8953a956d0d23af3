"""Deadlines count elapsed time, over steps of the clock and over restarts. Events have the time of day."""

from __future__ import annotations

import pytest
from muster_bus.clock import NO_ANCHOR, STEP_NS, Anchor, SystemClock
from muster_scheduler.recorded_time import RecordedTime, Steps
from unit.bus.test_clock import DAY, SECOND, Machine


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
    assert not times.stepped
    machine.wall_ns += step
    machine.sleep(SECOND)
    clock.now_ns()
    assert times.stepped
    assert times.recorded(clock.now_ns()) - before == SECOND
    assert "400.0 days" in times.take_step()
    assert not times.stepped
    assert times.take_step() == ""
    assert wall_of(times, clock) == machine.wall_ns
    machine.wall_ns -= step
    machine.sleep(SECOND)
    assert times.recorded(clock.now_ns()) - before == 2 * SECOND
    assert "400.0 days" in times.take_step()
    assert times.anchor.offset_ns == 0


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
    assert again.clock_ns(again.recorded(later.now_ns())) == later.now_ns()


def test_recorded_time_from_the_future_goes_on_at_once_after_another_boot() -> None:
    machine = Machine()
    last = machine.wall_ns + 400 * DAY  # like data of a version without anchors
    machine.reboot()
    clock = machine.clock()
    times = resumed(clock, last, NO_ANCHOR)
    assert "back by 400.0 days" in times.take_step()
    assert times.recorded(clock.now_ns()) == last
    machine.sleep(5 * SECOND)
    assert times.recorded(clock.now_ns()) == last + 5 * SECOND
    assert wall_of(times, clock) == machine.wall_ns
    # and the next restart reports no step
    again = resumed(clock, last + 5 * SECOND, times.anchor)
    assert again.take_step() == ""


def test_after_another_boot_the_wall_clock_says_how_long_it_was() -> None:
    machine = Machine()
    clock = machine.clock()
    last = clock.now_ns()
    machine.reboot()
    machine.wall_ns += 30 * DAY
    clock = machine.clock()
    times = resumed(clock, last, Anchor(0, "one", last - 50 * SECOND))
    assert times.recorded(clock.now_ns()) == machine.wall_ns
    assert times.take_step() == ""


def test_health_shows_a_step_for_an_hour() -> None:
    now_s = 0.0
    steps = Steps(lambda: now_s)
    steps.note("it stepped")
    steps.note("it stepped")
    assert steps.problems() == ["it stepped"]
    now_s = 3601.0
    assert steps.problems() == []


def test_the_bound_is_small() -> None:
    assert STEP_NS <= 5 * SECOND
