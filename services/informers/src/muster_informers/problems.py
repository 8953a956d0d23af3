"""The problems of sources and handlers: keeps them, and logs each once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from muster_bus.clock import Clock
from muster_core.external.validation import sanitize
from structlog.typing import FilteringBoundLogger

PROBLEMS_MAX = 100
# A source whose data is all invalid must not fill the disk with log lines.
LINES_MAX, LINES_WINDOW_S = 20, 60.0


@dataclass(slots=True)
class SourceProblem:
    """A problem of a source or handler.

    :ivar kind: with ``object_id``, the object; "": not known, or the whole source.
    :ivar at_ns: when the problem last occurred.
    :ivar count: how often it occurred.
    """

    kind: str
    object_id: str
    text: str
    at_ns: int
    count: int = 1


class SourceProblems:
    """A source's newest problems. Each is logged once for its object and text, with a limit of lines per time."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        self._problems: OrderedDict[tuple[str, str, str], SourceProblem] = OrderedDict()
        self._lines, self._lines_since = 0, clock.monotonic()

    def newest(self) -> Sequence[SourceProblem]:
        """Returns the problems, newest first; at most :data:`PROBLEMS_MAX`."""
        return list(reversed(self._problems.values()))

    def add(self, kind: str, object_id: str, text: str) -> None:
        """Records a problem; counts a known one."""
        kind, object_id, text = str(kind), sanitize(object_id), sanitize(text)
        now_ns = self._clock.now_ns()
        if existing := self._problems.get((kind, object_id, text)):
            existing.at_ns, existing.count = now_ns, existing.count + 1
            self._problems.move_to_end((kind, object_id, text))
            return
        self._problems[kind, object_id, text] = SourceProblem(kind, object_id, text, now_ns)
        if len(self._problems) > PROBLEMS_MAX:
            self._problems.popitem(last=False)
        now = self._clock.monotonic()
        if now - self._lines_since >= LINES_WINDOW_S:
            self._lines, self._lines_since = 0, now
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._log.warning("problem with a source's statement", kind=kind, id=object_id, why=text)
        elif self._lines == LINES_MAX + 1:
            self._log.warning("further problems are not logged for a while", seconds=LINES_WINDOW_S)
