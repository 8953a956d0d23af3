"""Recorded time of one partition: it goes on over restarts, whatever the wall clock does (muster_bus.clock).

The clock's time and the partition's may differ: another process may have recorded a time that this process's clock has
not reached. Both approach the wall clock by at most 1/1000 of what elapses. Deadlines, and all that a core compares,
are recorded times. Only an event's time of day gets the offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog
from muster_bus.clock import SLEW_DIVISOR, STEP_NS, Anchor, SlewedTime, StepLimit, length_text, step_text

log = structlog.get_logger(__name__)

# Health shows a step for so long.
_SHOWN_S = 3600.0
# From this difference on, health has a line. It is slewed in 17 hours.
DIFFERENCE_SHOWN_NS = 60_000_000_000
# Two times that are as near are the same: readings of two clocks are never exact.
_NEAR_NS = 1_000_000


class AnchorSource(Protocol):
    """A clock that knows of its steps; see :class:`muster_bus.clock.SystemClock`."""

    offset_ns: int
    stepped_ns: int

    def anchor(self) -> Anchor: ...


class NoSteps:
    """The source of a clock that never steps, and whose machine is not known."""

    offset_ns = 0  # (one assignment each, for mypyc)
    stepped_ns = 0

    def anchor(self) -> Anchor:
        return Anchor()


class ClockSteps:
    """The steps that the machines of a process saw, for health. Each is logged once."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._latest, self._noted_s = "", float("-inf")

    def note(self, message: str) -> None:
        now_s = self._monotonic_s()
        if message != self._latest or now_s - self._noted_s > _SHOWN_S:  # several machines note the same step
            log.warning("clock step", story=message)
        self._latest, self._noted_s = message, now_s

    def problems(self) -> list[str]:
        """Returns the last step, if it was within the last hour."""
        return [self._latest] if self._monotonic_s() - self._noted_s < _SHOWN_S else []


class RecordedTime:
    """See the module's docstring.

    :ivar anchor: for the records of RMs.
    """

    def __init__(self, source: AnchorSource) -> None:
        self._source = source
        self._time: SlewedTime | None = None
        # A time of the clock, and the recorded time at that moment.
        self._clock_ns = self._last_ns = 0
        self._told_ns = source.stepped_ns
        self._limit, self._story = StepLimit(), ""
        self.anchor = Anchor()

    def resume(self, now_ns: int, last_ns: int, before: Anchor) -> None:
        """Continues after the last recorded time.

        After another boot, or on another host, it is the wall clock's, but never less than the last one.

        :param now_ns: the clock's time.
        :param last_ns: 0: nothing was recorded.
        :param before: the anchor of the last recorded time.
        """
        present, wall_ns = self._source.anchor(), now_ns + self._source.offset_ns
        elapsed_ns, resumed_ns, stepped_ns = now_ns - present.booted_ns, now_ns, 0
        if last_ns:
            same = bool(present.boot_id) and present.boot_id == before.boot_id
            resumed_ns = max(last_ns, before.booted_ns + elapsed_ns if same else wall_ns)
            stepped_ns = wall_ns - resumed_ns - before.offset_ns
            if not same and resumed_ns == wall_ns:  # only the wall clock could say how long it was
                self._story = _advanced_text(before.offset_ns) if before.offset_ns > STEP_NS else ""
            elif not -STEP_NS <= stepped_ns <= STEP_NS:
                self._story = step_text(stepped_ns)
        self._time = SlewedTime(elapsed_ns, resumed_ns)
        self.recorded(now_ns)

    def recorded(self, now_ns: int) -> int:
        """Returns the recorded time at a time of the clock. Never runs backwards."""
        now_ns = max(now_ns, self._clock_ns)
        present, day_ns = self._source.anchor(), now_ns + self._source.offset_ns
        elapsed_ns = now_ns - present.booted_ns
        if self._time is None:
            self._time = SlewedTime(elapsed_ns, now_ns)
        last_ns = self._time.at(elapsed_ns, day_ns)
        self._clock_ns, self._last_ns = now_ns, last_ns
        offset_ns = 0 if abs(day_ns - last_ns) < _NEAR_NS else day_ns - last_ns
        self.anchor = Anchor(offset_ns, present.boot_id, last_ns - elapsed_ns if present.boot_id else 0)
        return last_ns

    def clock_ns(self, recorded_ns: int) -> int:
        """Returns the clock's time at a recorded time; while either is slewed, the earliest that it may be."""
        left_ns = recorded_ns - self._last_ns
        missing_ns = self._time.missing_ns if self._time is not None else 0
        if max(abs(missing_ns), abs(self.anchor.offset_ns), abs(self._source.offset_ns)) >= _NEAR_NS:
            left_ns -= 2 * max(left_ns, 0) // SLEW_DIVISOR
        return self._clock_ns + left_ns

    @property
    def difference_ns(self) -> int:
        """The time of day less recorded time; 0 before :meth:`resume`."""
        return 0 if self._time is None else self._clock_ns + self._source.offset_ns - self._last_ns

    def step_due_ns(self) -> int | None:
        """Returns the recorded time from which :meth:`take_step` has a step to report; None: there is none."""
        if self._story:
            return 0
        step_ns = self._source.stepped_ns - self._told_ns
        return None if -STEP_NS <= step_ns <= STEP_NS else max(0, self._limit.due_ns())

    def take_step(self) -> str:
        """Returns the text of the steps that were not reported yet, once; "": there is none to report now."""
        if story := self._story:
            self._story = ""
            return story
        step_ns = self._source.stepped_ns - self._told_ns
        if -STEP_NS <= step_ns <= STEP_NS or not self._limit.is_allowed(self._last_ns):
            return ""
        self._told_ns += step_ns
        return step_text(step_ns)


def difference_text(difference_ns: int) -> str:
    """Describes that the wall clock and recorded time differ; "": they differ by less than health shows."""
    if -DIFFERENCE_SHOWN_NS <= difference_ns <= DIFFERENCE_SHOWN_NS:
        return ""
    way = "ahead of" if difference_ns > 0 else "behind"
    return (
        f"the system clock is {length_text(difference_ns)} {way} recorded time, which approaches it by 3.6 s an hour: "
        "times of objects differ from times of events by as much"
    )


def _advanced_text(length_ns: int) -> str:
    return (
        f"recorded time went forward by {length_text(length_ns)} to the system clock's: this is another boot of the "
        "machine, or another machine"
    )
