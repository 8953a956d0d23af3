"""Finds duplicates and gaps in the numbered responses.

An RM's responses have one order, numbered from 1 without gaps, spread over its streams. So one stream sees growing
numbers with holes (the other streams' numbers). A hole in the union of all streams that stays is a lost response.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

_MISSING_KEPT = 10_000  # a hole is closed within a second; more than this many are counted but not kept


class Sequences:
    """One RM's response numbers, over all its streams."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._highest = 0
        self._missing: OrderedDict[int, None] = OrderedDict()
        self.missing_ever = 0
        self._begun = False
        self._moved: list[asyncio.Future[None]] = []

    async def reached(self, stream: str, sequence: int) -> None:
        """Returns when the stream has processed this number or a higher one.

        If another process registered the RM, its progress is unknown. Then this returns at once until the first
        response.
        """
        while self.last(stream) < sequence and (self._begun or self.last(stream)):
            moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._moved.append(moved)
            await moved

    def last(self, stream: str) -> int:
        """Returns the last number processed on a stream; 0: none. ``muster-resume-after`` carries this number."""
        return self._last.get(stream, 0)

    def is_duplicate(self, stream: str, sequence: int) -> bool:
        """Tells whether the stream has processed this number. Unnumbered responses (0) are never duplicates."""
        return 0 < sequence <= self._last.get(stream, 0)

    def processed(self, stream: str, sequence: int) -> None:
        """Records that the callbacks have taken the response."""
        if sequence == 0:
            return
        self._last[stream] = max(sequence, self._last.get(stream, 0))
        moved, self._moved = self._moved, []
        for waiter in moved:
            if not waiter.done():
                waiter.set_result(None)
        if sequence <= self._highest:
            self._missing.pop(sequence, None)
            return
        if self._highest:
            self._miss(self._highest + 1, sequence)
        self._highest = sequence

    def missing(self) -> list[int]:
        """Returns numbers below the highest one that no stream has brought yet, oldest first."""
        return list(self._missing)

    def restart(self) -> None:
        """Starts afresh at a registration. The streams' positions stay, because numbers continue."""
        self._missing.clear()
        self._highest = 0
        self._begun = True

    def _miss(self, first: int, end: int) -> None:
        self.missing_ever += end - first
        for number in range(max(first, end - _MISSING_KEPT), end):
            self._missing[number] = None
        while len(self._missing) > _MISSING_KEPT:
            self._missing.popitem(last=False)
