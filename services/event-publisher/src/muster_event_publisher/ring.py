"""The ring: the newest events of one RM in memory (seed 002, event storage)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

# Events per block. A full block never changes again, so it can be kept in another form (compressed) later.
BLOCK = 1024
# Gaps that are remembered for answers; older ones remain in the log file and the metric.
_GAPS_KEPT = 100


class Taken(NamedTuple):
    """What :meth:`EventRing.extend` found.

    :param missing: first and last id that should have come before these events, None when none.
    :param repeated: how many of the given events had been taken before (passed over).
    """

    missing: tuple[int, int] | None
    repeated: int


class EventRing:
    """The newest events of one RM, by id.

    It holds the ids from ``lowest`` to ``next_id - 1``: the newest ``capacity`` ids. An id that the log does not have
    (a gap) holds its place as None, so positions and ids stay the same thing. Appending costs O(1) per event; reading
    n events costs O(n) wherever they are.

    Values are serialised ``si.v1.EventRecord``; they are not parsed here.
    """

    def __init__(self, rm_id: str, instance: str, capacity: int) -> None:
        self.rm_id, self.instance = rm_id, instance
        self.changed = Signal()
        self._capacity = capacity
        self._blocks: dict[int, list[bytes | None]] = {}
        self._oldest_block = 0
        self._lowest = 0
        self._next: int | None = None
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_KEPT)

    def __len__(self) -> int:
        return self.next_id - self._lowest

    @property
    def lowest(self) -> int:
        """The lowest id held; equal to ``next_id`` when nothing is held."""
        return self._lowest

    @property
    def next_id(self) -> int:
        """The id that the next event has."""
        return 0 if self._next is None else self._next

    @property
    def highest(self) -> int:
        """The highest id held; 0 when there was never an event (seed 002's answer)."""
        return max(self.next_id - 1, 0)

    @property
    def capacity(self) -> int:
        return self._capacity

    def resize(self, capacity: int) -> None:
        """Sets how many ids are held; the newest stay."""
        self._capacity = capacity
        self._evict()

    def extend(self, first_id: int, values: list[bytes]) -> Taken:
        """Takes events with the ids ``first_id``, ``first_id + 1`` … and wakes who waits."""
        missing, repeated = None, 0
        if self._next is None:
            self._begin_at(first_id)
        expected = self.next_id
        if first_id < expected:
            repeated = min(expected - first_id, len(values))
            values = values[repeated:]
        elif first_id > expected:
            missing = (expected, first_id - 1)
            self._gaps.append(missing)
            if first_id - expected >= self._capacity:
                self._begin_at(first_id)
            else:
                self._append([None] * (first_id - expected))
        if values:
            self._append(values)
            self._evict()
            self.changed.notify()
        return Taken(missing, repeated)

    def slice(self, start: int, count: int) -> list[bytes | None]:
        """Up to ``count`` events from id ``start`` on; empty when ``start`` is outside of what is held."""
        if not self._lowest <= start < self.next_id or count <= 0:
            return []
        end = min(start + count, self.next_id)
        out: list[bytes | None] = []
        while start < end:
            number, index = divmod(start, BLOCK)
            part = self._blocks[number][index : index + end - start]
            out += part
            start += len(part)
        return out

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Known gaps (first and last missing id) that touch the ids from ``start`` to ``end - 1``."""
        return [gap for gap in self._gaps if gap[0] < end and gap[1] >= start]

    def _begin_at(self, event_id: int) -> None:
        number, index = divmod(event_id, BLOCK)
        self._blocks = {number: [None] * index}
        self._oldest_block, self._lowest, self._next = number, event_id, event_id

    def _append(self, values: list[bytes] | list[None]) -> None:
        done, event_id = 0, self.next_id
        while done < len(values):
            number, index = divmod(event_id, BLOCK)
            part = values[done : done + BLOCK - index]
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = []
            block += part
            done += len(part)
            event_id += len(part)
        self._next = event_id

    def _evict(self) -> None:
        self._lowest = max(self._lowest, self.next_id - self._capacity)
        while self._oldest_block < self._lowest // BLOCK:
            self._blocks.pop(self._oldest_block, None)
            self._oldest_block += 1


class Signal:
    """Wakes everyone who waits. Who checks, then waits without an await in between, misses nothing."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def notify(self) -> None:
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self, timeout_s: float | None) -> bool:
        """True when notified; False when the time was up."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait({self._future}, timeout=timeout_s)
        return bool(done)


class Rings:
    """The rings of all RMs, by rmID."""

    def __init__(self, capacity: int) -> None:
        self.changed = Signal()
        self._capacity = capacity
        self._rings: dict[str, EventRing] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def get(self, rm_id: str) -> EventRing | None:
        return self._rings.get(rm_id)

    def rm_ids(self) -> list[str]:
        return sorted(self._rings)

    def all(self) -> list[EventRing]:
        return list(self._rings.values())

    def ring_for(self, rm_id: str, instance: str) -> EventRing:
        """The RM's ring; a new one for a new RM, and for a new instance of a known one (its ids begin anew)."""
        ring = self._rings.get(rm_id)
        if ring is None or ring.instance != instance:
            previous, ring = ring, EventRing(rm_id, instance, self._capacity)
            self._rings[rm_id] = ring
            self.changed.notify()
            if previous is not None:
                previous.changed.notify()
        return ring

    def wake_all(self) -> None:
        """Wakes all who wait, so that they see that the service stops."""
        self.changed.notify()
        for ring in self._rings.values():
            ring.changed.notify()
