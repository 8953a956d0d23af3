"""Clocks. Muster gets the time from a clock object, never directly from the operating system.

The terms:

wall clock
    The time of day as the operating system has it. Whoever sets it makes it *step*: it moves by another amount than
    the time that has elapsed.
recorded time
    The time that Muster works with: nanoseconds since 1970 that go on as time elapses. It follows the wall clock as
    long as that does not step. A step changes the *offset* (wall clock less recorded time) instead, so that all
    durations between recorded times stay what has elapsed. What shows a time of day adds the offset.
anchor
    What a later process needs to continue recorded time: the offset, and the recorded time at the boot of the machine.
    Only a process of the same boot knows how long it was away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

log = structlog.get_logger(__name__)

# The wall clock and elapsed time differ by less if nobody sets the clock: time servers slew both alike, and step by
# less than a second. Recorded time follows a difference up to this at once.
STEP_NS = 2_000_000_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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
        """Returns seconds since some fixed moment. For measuring durations."""
        ...


class SystemClock:
    """The operating system's time.

    Several threads may use it.

    :param wall_ns: reads the wall clock.
    :param elapsed_ns: reads the time since the boot, including the time that the machine slept.
    :param boot_id: of the machine; None: as the operating system says.
    :ivar offset_ns: the wall clock less recorded time; 0 unless the clock stepped.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] | None = None,
        boot_id: str | None = None,
    ) -> None:
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns if elapsed_ns is not None else _since_boot_ns
        self._boot_id = boot_id if boot_id is not None else _this_boot()
        self.offset_ns = 0
        # One object, so that a reading is whole for every thread: recorded time, and the elapsed time at that moment.
        self._last = (wall_ns(), self._elapsed_ns())

    def now_ns(self) -> int:
        last_ns, last_elapsed_ns = self._last
        elapsed_ns = self._elapsed_ns()
        gone_on_ns = last_ns + elapsed_ns - last_elapsed_ns
        now_ns = self._wall_ns() - self.offset_ns
        step_ns = now_ns - gone_on_ns
        if not -STEP_NS <= step_ns <= STEP_NS:
            self._take_step(step_ns)
            now_ns = gone_on_ns
        if now_ns < last_ns:
            now_ns = last_ns
        self._last = (now_ns, elapsed_ns)
        return now_ns

    def monotonic(self) -> float:
        return time.monotonic()

    def anchor(self) -> Anchor:
        """Returns the anchor for a later process."""
        now_ns, elapsed_ns = self._last
        return Anchor(self.offset_ns, self._boot_id, now_ns - elapsed_ns)

    def resume(self, before: Anchor) -> None:
        """Continues the recorded time of an earlier process, if it was of this boot. Call it before any other method.

        (After another boot only the wall clock says how much time has passed.)
        """
        if not before.boot_id or before.boot_id != self._boot_id:
            return
        elapsed_ns = self._elapsed_ns()
        self.offset_ns = before.offset_ns
        self._last = (before.booted_ns + elapsed_ns, elapsed_ns)
        self.now_ns()

    def _take_step(self, step_ns: int) -> None:
        offset_ns = self.offset_ns + step_ns
        self.offset_ns = 0 if -STEP_NS <= offset_ns <= STEP_NS else offset_ns
        log.warning("clock.stepped", seconds=step_ns / 1e9, offset_s=self.offset_ns / 1e9)


def step_text(step_ns: int) -> str:
    """Says how the wall clock stepped, in a sentence."""
    size_s, way = abs(step_ns) / 1e9, "forward" if step_ns > 0 else "back"
    size = next((f"{size_s / unit_s:.1f} {name}" for unit_s, name in _UNITS if size_s >= unit_s), f"{size_s:.0f} s")
    return f"the system clock was set {way} by {size}; durations go on as if it had not been"


_UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(_ELAPSED)


# Unlike CLOCK_MONOTONIC, it counts the time that the machine sleeps. Linux has it.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _this_boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
