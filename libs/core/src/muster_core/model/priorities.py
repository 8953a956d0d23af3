"""The best priority in a queue whose own order does not begin with priority."""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

P = TypeVar("P")

# The limit of entries in the heap beyond twice the parts.
_HEAP_SPARE = 16


class Priorities(Generic[P]):
    """The priority of each part of a queue that has something to try: of its applications, or of its queues.

    Priorities are negated, as in the keys of orders: the best one is the smallest.
    """

    __slots__ = ("_heap", "_pushes", "_set")

    def __init__(self) -> None:
        self._set: dict[P, int] = {}
        # (priority, push, part). An entry is valid while it is the part's present priority.
        self._heap: list[tuple[int, int, P]] = []
        self._pushes = 0

    def set(self, part: P, key: tuple[Any, ...] | None) -> None:
        """Sets the priority of a part: the last value of its key. None: it has nothing to try."""
        if key is None:
            self._set.pop(part, None)
            return
        priority: int = key[-1]
        if self._set.get(part) == priority:
            return
        self._set[part] = priority
        self._pushes += 1
        heapq.heappush(self._heap, (priority, self._pushes, part))
        if len(self._heap) > 2 * len(self._set) + _HEAP_SPARE:
            self._heap = [(value, number, member) for number, (member, value) in enumerate(self._set.items())]
            heapq.heapify(self._heap)

    def best(self) -> tuple[int, P]:
        """The best priority, and a part that has it. There must be one."""
        heap = self._heap
        while self._set.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0], heap[0][2]

    def clear(self) -> None:
        """Forgets all parts."""
        self._set.clear()
        self._heap.clear()
