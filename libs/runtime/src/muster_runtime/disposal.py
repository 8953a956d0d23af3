"""Frees large objects beside an event loop's other work.

To free 100,000 objects that only one container refers to takes 20 to 100 ms, during which nothing else runs: Python
frees all of them when the container goes. So what may be large is emptied in steps first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

# Processor time of one turn, and the pause after it: at most a fifth of a core.
_TURN_S = 0.001
_PAUSE_S = 0.004
# Items of a list that are freed at once: some 0.1 ms.
_ITEMS = 1024


class Disposal:
    """Runs steps that free memory, in turns of a millisecond.

    :param processor_s: reads the processor time of the loop's thread.
    """

    def __init__(self, processor_s: Callable[[], float]) -> None:
        self._processor_s = processor_s
        self._waiting: deque[Iterator[object]] = deque()

    def add(self, steps: Iterator[object]) -> None:
        """Runs the steps soon, or at once where no event loop runs. Nothing waits for their end."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            for _ in steps:
                pass
            return
        self._waiting.append(steps)
        if len(self._waiting) == 1:
            loop.call_later(_PAUSE_S, self._run)

    def add_lists(self, *lists: list[Any]) -> None:
        """Empties lists that nothing uses any more."""
        if any(len(items) > _ITEMS for items in lists):
            self.add(_emptied(lists))

    def _run(self) -> None:
        ends_s = self._processor_s() + _TURN_S
        while self._waiting and self._processor_s() < ends_s:
            if next(self._waiting[0], self) is self:
                self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_later(_PAUSE_S, self._run)


def _emptied(lists: tuple[list[Any], ...]) -> Iterator[None]:
    for items in lists:
        while items:
            del items[-_ITEMS:]
            yield
