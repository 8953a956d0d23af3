"""Recorded time advances as time elapses, also when the system clock is set."""

from __future__ import annotations

from itertools import pairwise

import pytest
from muster_bus.clock import NO_ANCHOR, STEP_NS, Anchor, SystemClock, step_text

SECOND, DAY = 10**9, 86_400 * 10**9
START = 1_700_000_000 * SECOND


class Machine:
    """A machine with a wall clock that can be set."""

    def __init__(self) -> None:
        self.wall_ns, self.elapsed_ns, self.boot = START, 50 * SECOND, "one"

    def sleep(self, ns: int) -> None:
        self.wall_ns += ns
        self.elapsed_ns += ns

    def clock(self) -> SystemClock:
        return SystemClock(lambda: self.wall_ns, lambda: self.elapsed_ns, self.boot)

    def reboot(self) -> None:
        self.boot, self.elapsed_ns = "two", SECOND


def test_it_follows_the_wall_clock_and_its_small_corrections() -> None:
    machine = Machine()
    clock = machine.clock()
    for correction in (0, SECOND, -SECOND, STEP_NS, 0):
        machine.sleep(10 * SECOND)
        machine.wall_ns += correction
        assert clock.now_ns() == machine.wall_ns
    machine.wall_ns -= SECOND
    before = clock.now_ns()
    assert before == machine.wall_ns + SECOND, "it never goes back"
    machine.sleep(2 * SECOND)
    assert clock.now_ns() == machine.wall_ns
    assert clock.offset_ns == 0


@pytest.mark.parametrize("step", [400 * DAY, -400 * DAY, 3 * SECOND, -3 * SECOND])
def test_a_step_there_and_back_changes_no_duration(step: int) -> None:
    machine = Machine()
    clock = machine.clock()
    times = [clock.now_ns()]
    for change in (step, 0, -step, 0):
        machine.wall_ns += change
        machine.sleep(10 * SECOND)
        times.append(clock.now_ns())
        assert abs(clock.now_ns() + clock.offset_ns - machine.wall_ns) <= STEP_NS
    assert [after - before for before, after in pairwise(times)] == [10 * SECOND] * 4
    assert clock.offset_ns == 0, "it is back where it was"


@pytest.mark.parametrize("step", [400 * DAY, -400 * DAY, 0])
def test_a_later_process_of_the_same_boot_goes_on(step: int) -> None:
    machine = Machine()
    clock = machine.clock()
    before, anchor = clock.now_ns(), clock.anchor()
    machine.sleep(100 * SECOND)
    machine.wall_ns += step
    later = machine.clock()
    later.resume(anchor)
    assert later.now_ns() - before == 100 * SECOND
    assert later.offset_ns == step
    machine.sleep(SECOND)
    machine.wall_ns -= step
    third = machine.clock()
    third.resume(later.anchor())
    assert third.now_ns() - before == 101 * SECOND
    assert third.offset_ns == 0


def test_after_another_boot_the_wall_clock_is_all_there_is() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns += 400 * DAY
    clock.now_ns()
    anchor = clock.anchor()
    machine.reboot()
    for before in (anchor, NO_ANCHOR, Anchor(5, "", 5)):
        later = machine.clock()
        later.resume(before)
        assert (later.now_ns(), later.offset_ns) == (machine.wall_ns, 0)


def test_the_operating_systems_clock_has_a_boot_and_no_step() -> None:
    clock = SystemClock()
    first = clock.now_ns()
    assert clock.now_ns() >= first
    assert clock.offset_ns == 0
    again = SystemClock()
    again.resume(clock.anchor())
    assert again.now_ns() >= first


@pytest.mark.parametrize(
    ("step", "told"), [(400 * DAY, "forward by 400.0 days"), (-90 * SECOND, "back by 1.5 minutes"), (3 * SECOND, "3 s")]
)
def test_a_step_is_told_in_words(step: int, told: str) -> None:
    assert told in step_text(step)
