"""What sources and handlers did wrong: kept, and told once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from muster_bus.clock import Clock
from structlog.typing import FilteringBoundLogger

from muster_scheduler.external.checks import plain

PROBLEMS_MAX = 100
# A source that says only nonsense must not fill the disk with what it says.
LINES_MAX, LINES_WINDOW_S = 20, 60.0


@dataclass(slots=True)
class Problem:
    """Something that a source or handler did wrong.

    :ivar kind: and ``object_id``: of which object; "": it cannot be told, or it is about the source as a whole.
    :ivar at_ns: when it was last seen.
    :ivar count: how often.
    """

    kind: str
    object_id: str
    text: str
    at_ns: int
    count: int = 1


class Problems:
    """A source's newest problems. Each is logged once for its object and text, and only so many lines in a while."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        self._kept: OrderedDict[tuple[str, str, str], Problem] = OrderedDict()
        self._lines, self._lines_since = 0, clock.monotonic()

    def newest(self) -> Sequence[Problem]:
        """Newest first; at most :data:`PROBLEMS_MAX`."""
        return list(reversed(self._kept.values()))

    def add(self, kind: str, object_id: str, text: str) -> None:
        """Keeps a problem; known, it is counted."""
        kind, object_id, text = str(kind), plain(object_id), plain(text)
        now_ns = self._clock.now_ns()
        if known := self._kept.get((kind, object_id, text)):
            known.at_ns, known.count = now_ns, known.count + 1
            self._kept.move_to_end((kind, object_id, text))
            return
        self._kept[kind, object_id, text] = Problem(kind, object_id, text, now_ns)
        if len(self._kept) > PROBLEMS_MAX:
            self._kept.popitem(last=False)
        now = self._clock.monotonic()
        if now - self._lines_since >= LINES_WINDOW_S:
            self._lines, self._lines_since = 0, now
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._log.warning("problem with what a source says", kind=kind, id=object_id, why=text)
        elif self._lines == LINES_MAX + 1:
            self._log.warning("further problems are not logged for a while", seconds=LINES_WINDOW_S)
