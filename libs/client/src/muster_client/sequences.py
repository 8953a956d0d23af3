"""Duplicates and gaps in the numbered responses.

An RM has one order of responses, numbered from 1 without gaps, spread over its streams. So one stream sees growing
numbers with holes (the other streams' numbers), and a hole in the union of them that stays is a lost response.
"""

from __future__ import annotations

from collections import OrderedDict

_MISSING_KEPT = 10_000  # a hole is closed within a second; more than this many at a time are counted, not kept


class Sequences:
    """What was seen of one RM's response numbers, over all its streams."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._highest = 0
        self._missing: OrderedDict[int, None] = OrderedDict()
        self.missing_ever = 0

    def last(self, stream: str) -> int:
        """The last number processed on a stream; 0: none. That is what ``muster-resume-after`` carries."""
        return self._last.get(stream, 0)

    def is_duplicate(self, stream: str, sequence: int) -> bool:
        """Whether the stream has processed this number. Unnumbered responses (0) never are."""
        return 0 < sequence <= self._last.get(stream, 0)

    def processed(self, stream: str, sequence: int) -> None:
        """The response was given to the callbacks, and they took it."""
        if sequence == 0:
            return
        self._last[stream] = max(sequence, self._last.get(stream, 0))
        if sequence <= self._highest:
            self._missing.pop(sequence, None)
            return
        if self._highest:
            self._miss(self._highest + 1, sequence)
        self._highest = sequence

    def missing(self) -> list[int]:
        """Numbers below the highest one that no stream has brought (yet), oldest first."""
        return list(self._missing)

    def restart(self) -> None:
        """A registration: what came before it is void. The streams' positions stay, since numbers go on."""
        self._missing.clear()
        self._highest = 0

    def _miss(self, first: int, end: int) -> None:
        self.missing_ever += end - first
        for number in range(max(first, end - _MISSING_KEPT), end):
            self._missing[number] = None
        while len(self._missing) > _MISSING_KEPT:
            self._missing.popitem(last=False)
