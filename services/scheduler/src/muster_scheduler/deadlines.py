"""The next deadline of each RM's core."""

from __future__ import annotations

import heapq


class Deadlines:
    """One time for each RM that has a deadline. A change of a time costs O(log RMs)."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        # The heap may hold outdated entries of an RM. They are dropped when they come first.
        self._heap: list[tuple[int, str]] = []

    def set(self, rm_id: str, deadline_ns: int | None) -> None:
        """Sets or removes an RM's deadline.

        :param deadline_ns: None: the RM has none.
        """
        if deadline_ns is None:
            self._of.pop(rm_id, None)
        elif self._of.get(rm_id) != deadline_ns:
            self._of[rm_id] = deadline_ns
            heapq.heappush(self._heap, (deadline_ns, rm_id))

    def first_ns(self) -> int | None:
        """Returns the earliest deadline; None if there is none."""
        while self._heap:
            deadline_ns, rm_id = self._heap[0]
            if self._of.get(rm_id) == deadline_ns:
                return deadline_ns
            heapq.heappop(self._heap)
        return None

    def take_due(self, now_ns: int) -> list[str]:
        """Returns the RMs that are due, earliest first, and removes their deadlines."""
        due: list[str] = []
        while (first_ns := self.first_ns()) is not None and first_ns <= now_ns:
            rm_id = heapq.heappop(self._heap)[1]
            del self._of[rm_id]
            due.append(rm_id)
        return due
