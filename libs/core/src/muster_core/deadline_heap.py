"""When a core must look at which object."""

from __future__ import annotations

import heapq

from muster_core.model.partition_state import HasDeadline
from muster_core.model.steps import Steps, clear_list_in_steps
from muster_core.partition import Partition, is_current

_Entry = tuple[int, int, Partition, HasDeadline]

# With fewer deadlines than this, a search for obsolete ones does not pay.
_MIN = 1024
# Old deadlines that each new one moves.
_MOVED = 4


class DeadlineHeap:
    """The deadlines of one core, in the order of their times, then of their arrival.

    Obsolete deadlines would keep objects that are gone in memory until their time. So when the heap has doubled, it is
    renewed: each deadline that comes moves a few of the old heap to a new one, without those that are obsolete. No step
    of this grows with the number of deadlines.
    """

    __slots__ = ("_heap", "_most", "_number", "_old")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._old: list[_Entry] = []  # a heap, too: it shrinks from its end
        self._number = 0
        self._most = _MIN

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def add(self, due_ns: int, partition: Partition, obj: HasDeadline) -> None:
        """Adds the deadline of an object. O(log n)."""
        self._number += 1
        heapq.heappush(self._heap, (due_ns, self._number, partition, obj))
        if self._old:
            self._move()
        elif len(self._heap) > self._most:
            self._old, self._heap = self._heap, []

    def first_ns(self) -> int | None:
        """The time of the first deadline; None: there is none."""
        heap = self._first_heap()
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> _Entry | None:
        """Removes the first deadline whose time has come; None: there is none."""
        heap = self._first_heap()
        return heapq.heappop(heap) if heap and heap[0][0] <= now_ns else None

    def clear(self) -> None:
        """Drops all deadlines."""
        self._heap.clear()
        self._old.clear()

    def clear_in_steps(self) -> Steps:
        """Does the same in steps."""
        yield from clear_list_in_steps(self._heap)
        yield from clear_list_in_steps(self._old)

    def _first_heap(self) -> list[_Entry]:
        if self._old and (not self._heap or self._old[0][:2] < self._heap[0][:2]):
            return self._old
        return self._heap

    def _move(self) -> None:
        for _ in range(_MOVED):
            if not self._old:
                break
            entry = self._old.pop()
            if is_current(entry[3], entry[0]):
                heapq.heappush(self._heap, entry)
        if not self._old:
            self._most = max(_MIN, 2 * len(self._heap))
