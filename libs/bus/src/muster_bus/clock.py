"""Clocks. Muster gets the time from a clock object, never directly from the operating system.

A process has two elapsed times. The event loop's counts what asyncio's timers count: waits, leases, retries and
watchdogs compare it (:meth:`Clock.monotonic`). The one that recorded time is made of also counts while the machine
sleeps. A simulation gives the second one out of its loop's.

The terms:

wall clock
    The time of day as the operating system has it. Whoever sets it makes it *step*: it moves by another amount than
    the time that has elapsed.
elapsed time
    The time since the boot of the machine, including the time that it slept. Nobody can set it.
recorded time
    The time that Muster works with: nanoseconds since 1970 that advance with elapsed time. It approaches the wall clock
    by at most 1/1000 of what elapses, so that a duration between recorded times is what has elapsed, to 0.1 %,
    whatever happens to the wall clock.
time of day
    What an event shows. It approaches the wall clock alike, but is the wall clock's at once if they differ by more than
    :data:`STEP_NS`, however many steps led there.
offset
    The time of day less recorded time.
anchor
    What a later process needs to continue recorded time: the offset, and the recorded time at the boot of the machine.
    Only a process of the same boot knows how long it was away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
from muster_runtime.elapsed import loop_time

log = structlog.get_logger(__name__)

# The time of day and the wall clock differ by less if nobody sets the clock: time servers slew the wall clock and
# elapsed time alike, and step by less than a second.
STEP_NS = 2_000_000_000
# Recorded time approaches the wall clock by one part in so many: 1 s in 17 minutes. Time servers slew as fast.
SLEW_DIVISOR = 1000
# What is missing to the wall clock is measured again after so long. In a shorter time there is less than 1 µs to slew.
_MEASURED_EVERY_NS = 1_000_000
# Readings of both clocks within so long are of one moment; it is tried so often.
_ONE_MOMENT_NS, _READINGS = 50_000, 3
# A clock that runs too fast steps again and again. The log has so many steps at once, and then one a minute.
STEPS_AT_ONCE, STEP_EVERY_NS = 10, 60_000_000_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Linux can shift elapsed time for a container. The kernel's own, unshifted one has this name.
_TIME_NAMESPACE, _OWN_TIME = Path("/proc/self/ns/time"), "time:[4026531834]"


class Anchor(NamedTuple):
    """See *anchor*.

    :param boot_id: "": not known.
    :param booted_ns: recorded time at the boot.
    """

    offset_ns: int = 0
    boot_id: str = ""
    booted_ns: int = 0


NO_ANCHOR = Anchor()


class Clock(Protocol):
    """A source of time."""

    def now_ns(self) -> int:
        """Returns recorded time in nanoseconds since 1970, UTC. Never less than an earlier result of the same clock."""
        ...

    def monotonic(self) -> float:
        """Returns the event loop's time in seconds, as asyncio's sleeps and time-outs count. For durations."""
        ...

    def processor_s(self) -> float:
        """Returns the processor time of this thread, in seconds. For shares of work, which a busy machine stretches."""
        ...


class SlewedTime:
    """A time that advances with elapsed time, and approaches a target by at most 1/1000 of what elapses.

    Between two results lies what has elapsed between their readings, to 1/1000 and 1 ns. It never runs backwards.

    :ivar missing_ns: the target less this time, as last measured.
    """

    __slots__ = ("_elapsed_ns", "_latest_ns", "_time_ns", "missing_ns")

    def __init__(self, elapsed_ns: int, time_ns: int) -> None:
        self.restart(elapsed_ns, time_ns)

    def restart(self, elapsed_ns: int, time_ns: int) -> None:
        """Sets the time at a reading of elapsed time."""
        self._elapsed_ns, self._time_ns, self._latest_ns, self.missing_ns = elapsed_ns, time_ns, time_ns, 0

    def at(self, elapsed_ns: int, target_ns: int) -> int:
        """Returns the time at a reading of elapsed time, and notes where the target is."""
        passed_ns = elapsed_ns - self._elapsed_ns
        if passed_ns <= 0:
            return self._latest_ns
        most_ns = passed_ns // SLEW_DIVISOR
        time_ns = self._time_ns + passed_ns + max(-most_ns, min(most_ns, self.missing_ns))
        self._latest_ns = time_ns = max(time_ns, self._latest_ns)
        if passed_ns >= _MEASURED_EVERY_NS:
            self._elapsed_ns, self._time_ns, self.missing_ns = elapsed_ns, time_ns, target_ns - time_ns
        return time_ns


class StepLimit:
    """Limits how often steps are reported: ten at once, and then one a minute."""

    __slots__ = ("_full_ns",)

    def __init__(self) -> None:
        self._full_ns = -(1 << 63)  # when all ten may be reported again

    def due_ns(self) -> int:
        """Returns the time from which the next step may be reported."""
        return self._full_ns - (STEPS_AT_ONCE - 1) * STEP_EVERY_NS

    def is_allowed(self, now_ns: int) -> bool:
        """Tells whether a step may be reported now, and counts it if so."""
        if now_ns < self.due_ns():
            return False
        self._full_ns = max(self._full_ns, now_ns) + STEP_EVERY_NS
        return True


class SystemClock:
    """The operating system's time.

    Several threads may use it.

    :param wall_ns: reads the wall clock.
    :param elapsed_ns: reads the time since the boot, including the time that the machine slept; None: the operating
        system's. (An event loop's own time stands still while the machine sleeps.)
    :param boot_id: of the machine; None: as the operating system says.
    :param monotonic_s: reads the event loop's time; None: that of the loop that runs now, in whose life the clock is
        used; the operating system's if none runs yet, since asyncio's own loops read that.
    :param processor_s: reads the processor time of a thread.
    :ivar offset_ns: the time of day less recorded time; 0 unless the clock stepped.
    :ivar stepped_ns: the sum of all steps.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] | None = None,
        boot_id: str | None = None,
        monotonic_s: Callable[[], float] | None = None,
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._wall_ns, self._processor_s = wall_ns, processor_s
        self._monotonic_s = monotonic_s if monotonic_s is not None else loop_time()
        self._elapsed_ns = elapsed_ns if elapsed_ns is not None else _since_boot_ns
        self._boot_id = boot_id if boot_id is not None else _this_boot()
        self._lock = threading.Lock()
        self.offset_ns = self.stepped_ns = 0
        self._limit, self._unlogged_ns = StepLimit(), 0
        elapsed, began_ns = self._read()
        self._recorded, self._day = SlewedTime(elapsed, began_ns), SlewedTime(elapsed, began_ns)
        self._last = (began_ns, elapsed)  # recorded time, and the elapsed time at that moment

    def now_ns(self) -> int:
        with self._lock:
            elapsed_ns, wall_ns = self._read()
            now_ns, day_ns = self._recorded.at(elapsed_ns, wall_ns), self._day.at(elapsed_ns, wall_ns)
            step_ns = wall_ns - day_ns
            if not -STEP_NS <= step_ns <= STEP_NS:
                self._day.restart(elapsed_ns, wall_ns)
                day_ns = wall_ns
                self._stepped(step_ns, elapsed_ns, day_ns - now_ns)
            self.offset_ns = day_ns - now_ns
            self._last = (now_ns, elapsed_ns)
            return now_ns

    def monotonic(self) -> float:
        return self._monotonic_s()

    def processor_s(self) -> float:
        return self._processor_s()

    def anchor(self) -> Anchor:
        """Returns the anchor for a later process."""
        with self._lock:
            now_ns, elapsed_ns = self._last
            return Anchor(self.offset_ns, self._boot_id, now_ns - elapsed_ns)

    def resume(self, before: Anchor, last_ns: int = 0) -> None:
        """Continues the recorded time of an earlier process. Call it before any other method.

        After another boot only the wall clock says how much time has passed; recorded time does not go back, though.

        :param last_ns: the latest known recorded time.
        """
        with self._lock:
            elapsed_ns, wall_ns = self._read()
            if before.boot_id and before.boot_id == self._boot_id:
                now_ns = max(before.booted_ns + elapsed_ns, last_ns)
                day_ns = now_ns + before.offset_ns
            else:
                now_ns, day_ns = max(wall_ns, last_ns), wall_ns
            self._recorded.restart(elapsed_ns, now_ns)
            self._day.restart(elapsed_ns, day_ns)
            self._last, self.offset_ns = (now_ns, elapsed_ns), day_ns - now_ns
        self.now_ns()

    def _read(self) -> tuple[int, int]:
        """Returns elapsed time and the wall clock at one moment: a thread may lose its turn between two readings."""
        for _ in range(_READINGS):
            elapsed_ns, wall_ns = self._elapsed_ns(), self._wall_ns()
            if self._elapsed_ns() - elapsed_ns < _ONE_MOMENT_NS:
                break
        return elapsed_ns, wall_ns

    def _stepped(self, step_ns: int, elapsed_ns: int, offset_ns: int) -> None:
        self.stepped_ns += step_ns
        self._unlogged_ns += step_ns
        if self._limit.is_allowed(elapsed_ns):
            log.warning("clock.stepped", seconds=self._unlogged_ns / 1e9, offset_s=offset_ns / 1e9)
            self._unlogged_ns = 0


def day_ns(clock: Clock) -> int:
    """Returns the time of day (*time of day*): to compare with times of events, and with clocks of others."""
    now_ns = clock.now_ns()
    return now_ns + clock.offset_ns if isinstance(clock, SystemClock) else now_ns


def recorded_ns(clock: Clock, anchor: Anchor) -> int:
    """Returns the recorded time of another process now, for readers of its records.

    :param anchor: of its last record.
    """
    now_ns = clock.now_ns()
    if not isinstance(clock, SystemClock) or anchor == NO_ANCHOR:
        return now_ns
    present = clock.anchor()
    if anchor.boot_id and anchor.boot_id == present.boot_id:
        return now_ns - present.booted_ns + anchor.booted_ns
    return now_ns + present.offset_ns - anchor.offset_ns


def step_text(step_ns: int) -> str:
    """Describes how the wall clock stepped, in a sentence."""
    way = "forward" if step_ns > 0 else "back"
    return f"the system clock was set {way} by {length_text(step_ns)}; durations go on as if it had not been"


def length_text(length_ns: int) -> str:
    """Formats a length of time: ``400.0 days``, ``3 s``. Its sign does not count."""
    size_s = abs(length_ns) / 1e9
    return next((f"{size_s / unit_s:.1f} {name}" for unit_s, name in _UNITS if size_s >= unit_s), f"{size_s:.0f} s")


_UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(_ELAPSED)


# Unlike CLOCK_MONOTONIC, it counts the time that the machine sleeps: what runs elsewhere went on. Linux has it.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _this_boot() -> str:
    """Returns what two processes have in common if their elapsed times are the same; "": not known."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        return ""
    try:
        namespace = str(_TIME_NAMESPACE.readlink())
    except OSError:  # a kernel without such namespaces
        return boot_id
    return boot_id if namespace == _OWN_TIME else f"{boot_id} {namespace}"
