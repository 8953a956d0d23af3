"""Recorded time of one partition: it goes on over restarts, whatever the wall clock does (muster_bus.clock).

The clock's time and the partition's differ by a constant while a machine lives: another process may have recorded a
time that this process's clock has not reached. Deadlines, and all that a core compares, are recorded times. Only an
event's time of day gets the offset of the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog
from muster_bus.clock import STEP_NS, Anchor, step_text

log = structlog.get_logger(__name__)

# Health shows a step for so long.
_SHOWN_S = 3600.0


class Source(Protocol):
    """A clock that knows of its steps; see :class:`muster_bus.clock.SystemClock`."""

    offset_ns: int

    def anchor(self) -> Anchor: ...


class NoSteps:
    """The source of a clock that never steps, and whose machine is not known."""

    offset_ns = 0

    def anchor(self) -> Anchor:
        return Anchor()


class Steps:
    """The steps that the machines of a process saw, for health. Each is logged once."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._seen: dict[str, float] = {}

    def note(self, message: str) -> None:
        now_s = self._monotonic_s()
        if now_s - self._seen.get(message, float("-inf")) > _SHOWN_S:
            log.warning("clock step", story=message)
        self._seen[message] = now_s

    def problems(self) -> list[str]:
        """Returns the steps of the last hour."""
        now_s = self._monotonic_s()
        return [story for story, seen_s in self._seen.items() if now_s - seen_s < _SHOWN_S]


class RecordedTime:
    """See the module's docstring.

    :ivar anchor: for the records of RMs; it changes only with a step.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shift_ns = 0
        self._last_ns = 0
        self._source_offset_ns = source.offset_ns
        self._step = ""
        self.anchor = Anchor()

    def resume(self, now_ns: int, last_ns: int, before: Anchor) -> None:
        """Continues after the last recorded time.

        :param now_ns: the clock's time.
        :param last_ns: 0: nothing was recorded.
        :param before: the anchor of the last recorded time.
        """
        self._last_ns = last_ns
        present = self._source.anchor()
        wall_ns = now_ns + self._source.offset_ns
        if last_ns:
            if present.boot_id and present.boot_id == before.boot_id:
                since_boot_ns = now_ns - present.booted_ns
                resumed_ns = max(last_ns, before.booted_ns + since_boot_ns)
            else:  # the wall clock is all there is; a clock that was set back says nothing
                resumed_ns = max(last_ns, wall_ns - before.offset_ns)
            offset_ns = wall_ns - resumed_ns
            if -STEP_NS <= offset_ns <= STEP_NS:
                resumed_ns = wall_ns
            if not -STEP_NS <= (step_ns := wall_ns - resumed_ns - before.offset_ns) <= STEP_NS:
                self._step = step_text(step_ns)
            self._shift_ns = resumed_ns - now_ns
        self._set_anchor()

    def recorded(self, now_ns: int) -> int:
        """Returns the recorded time at a time of the clock. Never runs backwards."""
        if self._source.offset_ns != self._source_offset_ns:
            self._step = step_text(self._source.offset_ns - self._source_offset_ns)
            self._source_offset_ns = self._source.offset_ns
            self._set_anchor()
        self._last_ns = max(self._last_ns, now_ns + self._shift_ns)
        return self._last_ns

    def clock_ns(self, recorded_ns: int) -> int:
        """Returns the clock's time at a recorded time."""
        return recorded_ns - self._shift_ns

    @property
    def stepped(self) -> bool:
        """Whether :meth:`take_step` has a step to report."""
        return bool(self._step) or self._source.offset_ns != self._source_offset_ns

    def take_step(self) -> str:
        """Returns the text of a step that was not reported yet, once; "": there is none."""
        step, self._step = self._step, ""
        return step

    def _set_anchor(self) -> None:
        present = self._source.anchor()
        offset_ns = self._source.offset_ns - self._shift_ns
        offset_ns = 0 if -STEP_NS <= offset_ns <= STEP_NS else offset_ns
        self.anchor = Anchor(offset_ns, present.boot_id, present.booted_ns + self._shift_ns if present.boot_id else 0)
