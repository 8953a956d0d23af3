"""Recorded time advances as time elapses, to 0.1 %, whatever happens to the system clock."""

from __future__ import annotations

import threading
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_bus.backends.sqlite_mark import read_mark, write_mark
from muster_bus.clock import (
    NO_ANCHOR,
    STEP_NS,
    Anchor,
    SlewedTime,
    StepLimit,
    SystemClock,
    day_ns,
    recorded_ns,
    step_text,
)
from muster_bus.log_mark import LogMark

SECOND, DAY = 10**9, 86_400 * 10**9
START = 1_700_000_000 * SECOND


class Machine:
    """A machine with a wall clock that can be set."""

    def __init__(self) -> None:
        self.wall_ns, self.elapsed_ns, self.boot = START, 50 * SECOND, "one"

    def sleep(self, ns: int, rate: float = 1.0) -> None:
        """:param rate: of the wall clock."""
        self.wall_ns += round(ns * rate)
        self.elapsed_ns += ns

    def clock(self) -> SystemClock:
        return SystemClock(lambda: self.wall_ns, lambda: self.elapsed_ns, self.boot)

    def reboot(self) -> None:
        self.boot, self.elapsed_ns = "two", SECOND


def within(duration_ns: int, elapsed_ns: int) -> bool:
    """Whether a duration is what elapsed, to 0.1 % and the rounding of one reading a millisecond."""
    return abs(duration_ns - elapsed_ns) <= elapsed_ns // 1000 + 2 + elapsed_ns // 1_000_000


def test_it_follows_small_corrections_slowly_and_wholly() -> None:
    machine = Machine()
    clock = machine.clock()
    for correction in (SECOND, -SECOND, STEP_NS, -STEP_NS):
        machine.wall_ns += correction
        for _ in range(2_100):
            before = clock.now_ns()
            machine.sleep(SECOND)
            assert within(clock.now_ns() - before, SECOND)
        assert clock.now_ns() == machine.wall_ns
        assert clock.offset_ns == 0
    assert clock.stepped_ns == 0


def test_a_machine_that_slept_was_away_for_so_long() -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock.now_ns()
    machine.sleep(8 * 3600 * SECOND)
    assert clock.now_ns() - before == 8 * 3600 * SECOND


CHANGES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 10**7), st.integers(0, 100 * SECOND), st.integers(0, DAY)),  # elapses
        st.one_of(st.integers(-STEP_NS, STEP_NS), st.integers(-400 * DAY, 400 * DAY), st.just(0)),  # the clock is set
        st.sampled_from((1.0, 1.0, 0.999, 1.0005, 3.0, 0.0, -2.0)),  # it runs so fast
    ),
    max_size=40,
)


@given(CHANGES)
def test_no_steps_and_no_rate_change_a_duration_by_over_a_thousandth(changes: list[tuple[int, int, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    seen = [(clock.now_ns(), machine.elapsed_ns, clock.offset_ns)]
    for elapses, step, rate in changes:
        machine.sleep(elapses, rate)
        machine.wall_ns += step
        seen.append((clock.now_ns(), machine.elapsed_ns, clock.offset_ns))
        assert abs(day_ns(clock) - machine.wall_ns) <= STEP_NS
    for (before, from_ns, _), (after, to_ns, _) in combinations(seen, 2):
        assert after >= before
        assert within(after - before, to_ns - from_ns)


@pytest.mark.parametrize("step", [1_900_000_000, -1_900_000_000])
def test_small_steps_in_a_row_are_one_step(step: int) -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock.now_ns()
    for _ in range(20):
        machine.wall_ns += step
        machine.sleep(1_500_000_000)
        clock.now_ns()
    assert within(clock.now_ns() - before, 30 * SECOND)
    assert abs(day_ns(clock) - machine.wall_ns) <= STEP_NS
    assert abs(clock.stepped_ns - 20 * step) <= STEP_NS + SECOND


@pytest.mark.parametrize("step", [400 * DAY, -400 * DAY, 3 * SECOND, -3 * SECOND])
def test_a_step_there_and_back_changes_no_duration(step: int) -> None:
    machine = Machine()
    clock = machine.clock()
    times = [clock.now_ns()]
    for change in (step, 0, -step, 0, 0):
        machine.wall_ns += change
        machine.sleep(10 * SECOND)
        times.append(clock.now_ns())
        assert day_ns(clock) == machine.wall_ns
    assert all(within(after - before, 10 * SECOND) for before, after in pairwise(times))
    machine.sleep(100 * SECOND)
    clock.now_ns()
    assert clock.offset_ns == 0, "it is back where it was"


def test_a_large_step_is_approached_too() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns += 60 * SECOND
    for _ in range(60 * 1000 // 10 + 2):
        machine.sleep(10 * SECOND)
        clock.now_ns()
        assert day_ns(clock) == machine.wall_ns, "the time of day is not slewed with it"
    assert clock.now_ns() == machine.wall_ns
    assert clock.offset_ns == 0


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
    assert within(third.now_ns() - before, 101 * SECOND)
    assert abs(third.offset_ns) <= SECOND // 1000


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


def test_after_another_boot_it_does_not_go_back() -> None:
    machine = Machine()
    last = machine.clock().now_ns()
    machine.reboot()
    machine.wall_ns = 0  # the battery of the clock is empty
    later = machine.clock()
    later.resume(NO_ANCHOR, last)
    assert (later.now_ns(), day_ns(later)) == (last, 0)
    machine.wall_ns = last + 60 * SECOND  # a time server is heard
    machine.sleep(SECOND)
    assert within(later.now_ns() - last, SECOND)
    assert day_ns(later) == machine.wall_ns


def test_the_side_file_has_the_last_recorded_time(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    write_mark(path, LogMark("id", {}), clock=Anchor(1, "boot", 2), recorded_ns=3)
    assert read_mark(path)[2:] == (Anchor(1, "boot", 2), 3)
    write_mark(path, LogMark("id", {}))
    assert read_mark(path)[2:] == (NO_ANCHOR, 0)


def test_readers_compute_the_recorded_time_of_another_process() -> None:
    machine = Machine()
    scheduler = machine.clock()
    scheduler.now_ns()
    machine.wall_ns += 400 * DAY
    scheduler.now_ns()
    reader = machine.clock()  # it began after the step
    machine.sleep(10 * SECOND)
    expected = scheduler.now_ns()
    for boot in ("one", "of another host"):
        anchor = scheduler.anchor()._replace(boot_id=boot)
        assert within(recorded_ns(reader, anchor) - expected + 10 * SECOND, 10 * SECOND)
    assert recorded_ns(reader, NO_ANCHOR) == machine.wall_ns


def test_threads_that_read_at_once_never_see_it_run_back() -> None:
    machine, lock = Machine(), threading.Lock()

    def elapsed() -> int:
        with lock:
            machine.elapsed_ns += 999
        return machine.elapsed_ns

    clock = SystemClock(lambda: machine.wall_ns, elapsed, "one")
    wrong: list[tuple[int, int]] = []

    def read() -> None:
        before = clock.now_ns()
        for _ in range(2_000):
            now = clock.now_ns()
            if now < before:
                wrong.append((before, now))
            before = now

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_readings_more_often_than_it_measures_are_slewed_as_much() -> None:
    slewed = SlewedTime(0, START)
    elapsed = 0
    while elapsed < SECOND // 20:
        elapsed += 777
        slewed.at(elapsed, START + elapsed + SECOND)
    assert slewed.at(elapsed, START) - START - elapsed == pytest.approx(elapsed / 1000, rel=0.03)


def test_many_steps_are_reported_once_a_minute() -> None:
    limit, reported = StepLimit(), 0
    for second in range(600):
        reported += limit.is_allowed(second * SECOND)
        assert (limit.due_ns() > second * SECOND) == (reported > 9 + second // 60)
    assert reported == 10 + 9
    assert sum(limit.is_allowed(10_000 * SECOND) for _ in range(20)) == 10


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
