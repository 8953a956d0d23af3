"""The ring: the newest events of one RM in memory (the event history design, event storage)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muster_event_publisher import metrics, ring_blocks

# Events per block. Larger blocks pack a little better, but each read of an old event unpacks a whole one: about 1.5 ms.
BLOCK = 2048
# The newest full blocks stay unpacked: followers read only these.
_PLAIN_BLOCKS = 3
# With more unpacked blocks than this, extend() packs some before it returns; else a burst would fill the memory.
_UNPACKED_MAX = 64
# Blocks that are kept unpacked after a read, of all rings together: about 0.4 MB each.
_REMEMBERED_BLOCKS = 32
# Gaps that are remembered for answers; older ones remain in the log file and the metric.
_GAPS_MAX = 100

_Values = Sequence[bytes | None]


class ExtendResult(NamedTuple):
    """The result of :meth:`EventRing.append`.

    :param missing: first and last id that are missing before these events; None: none is missing.
    :param repeated: how many of the events the ring had already (and ignored).
    """

    missing: tuple[int, int] | None
    repeated: int


class UnpackedBlocks:
    """A cache of blocks that a reader has unpacked; the blocks used last stay."""

    def __init__(self, blocks_max: int = _REMEMBERED_BLOCKS) -> None:
        self._blocks_max = blocks_max
        self._cached: OrderedDict[bytes, _Values] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cached)

    def open(self, block: bytes) -> _Values:
        """The block's events. The block's bytes are the key: they never change, and their hash is computed once."""
        values = self._cached.get(block)
        if values is not None:
            self._cached.move_to_end(block)
            return values
        values = ring_blocks.unpack(block)
        metrics.RING_UNPACKED.inc()
        self._cached[block] = values
        if len(self._cached) > self._blocks_max:
            self._cached.popitem(last=False)
        return values


@dataclass(frozen=True, slots=True)
class RingSlice:
    """Events with consecutive ids in one block; they stay readable after the ring has dropped the block."""

    first_id: int
    count: int
    _block: bytes | list[bytes | None] | None
    _index: int
    _unpacked: UnpackedBlocks

    def values(self) -> _Values:
        """The events; None for an id that the log does not have. Unpacks at most one block."""
        if self._block is None:
            return [None] * self.count
        values = self._unpacked.open(self._block) if isinstance(self._block, bytes) else self._block
        return values[self._index : self._index + self.count]


class EventRing:
    """The newest events of one RM, by id.

    The ring holds the ids from ``lowest`` to ``next_id - 1``: the newest ``capacity`` ids. An id that the log does not
    have (a gap) takes its place as None, so an id gives its position. Appending costs O(1) per event; reading n events
    costs O(n) wherever they are.

    Values are serialised ``si.v1.EventRecord``. The newest values stay as they are; full blocks of older ones are
    packed (:mod:`~muster_event_publisher.ring_blocks`), one block per call of :meth:`pack`, so that no task waits long.

    :param unpacked: shared by the rings of a publisher.
    """

    def __init__(self, rm_id: str, instance: str, capacity: int, unpacked: UnpackedBlocks | None = None) -> None:
        self.rm_id, self.instance = rm_id, instance
        self.changed = Signal()
        self._capacity = capacity
        self._unpacked = unpacked if unpacked is not None else UnpackedBlocks()
        # By number; a packed block is bytes. A block is absent when the log has none of its events (a gap).
        self._blocks: dict[int, bytes | list[bytes | None]] = {}
        self._full: deque[int] = deque()
        self._lowest = self._first = 0
        self._size_bytes = 0
        self._next: int | None = None
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS_MAX)

    def __len__(self) -> int:
        return self.next_id - self._lowest

    @property
    def lowest(self) -> int:
        """The lowest id held; equal to ``next_id`` when nothing is held."""
        return self._lowest

    @property
    def first_id(self) -> int:
        """The first id that the ring ever had."""
        return self._first

    @property
    def next_id(self) -> int:
        """The id of the next event."""
        return 0 if self._next is None else self._next

    @property
    def highest(self) -> int:
        """The highest id held; 0 when there was never an event (the event history design's answer)."""
        return max(self.next_id - 1, 0)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def plain_from(self) -> int:
        """Events from this id on are not packed: reading them costs nothing."""
        full = [number for number in self._full if number in self._blocks]
        oldest = full[0] if full else self.next_id // BLOCK
        return max(oldest * BLOCK, self._lowest)

    @property
    def size_bytes(self) -> int:
        """The size of the events, without Python's overhead per object."""
        return self._size_bytes

    def resize(self, capacity: int) -> None:
        """Sets how many ids are held; the newest stay."""
        self._capacity = capacity
        self._evict()

    def append(self, first_id: int, values: list[bytes]) -> ExtendResult:
        """Takes events with the ids ``first_id``, ``first_id + 1`` … and wakes the waiting readers."""
        missing, repeated = None, 0
        if self._next is None:
            self._begin_at(first_id)
            self._first = first_id
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
                self._pass_over(first_id)
        if values:
            self._append(values)
            self._evict()
            while len(self._full) > _UNPACKED_MAX:
                self.pack()
            self.changed.notify()
        return ExtendResult(missing, repeated)

    def pack(self) -> bool:
        """Packs the oldest block that is full, plain and not among the newest: about 3 ms. False: there is none."""
        while len(self._full) > _PLAIN_BLOCKS:
            number = self._full.popleft()
            block = self._blocks.get(number)
            if isinstance(block, list):
                with metrics.RING_PACK_SECONDS.time():
                    self._blocks[number] = packed = ring_blocks.pack(block)
                self._size_bytes += len(packed) - _size_of(block)
                return True
        return False

    def pieces(self, start: int, count: int) -> list[RingSlice]:
        """Up to ``count`` events from id ``start`` on, as pieces to be read one by one.

        There are none when the ring does not hold ``start``.
        """
        if not self._lowest <= start < self.next_id or count <= 0:
            return []
        end = min(start + count, self.next_id)
        out: list[RingSlice] = []
        while start < end:
            number, index = divmod(start, BLOCK)
            size = min(BLOCK - index, end - start)
            block = self._blocks.get(number)
            if isinstance(block, list):
                block, index = block[index : index + size], 0
            out.append(RingSlice(start, size, block, index, self._unpacked))
            start += size
        return out

    def slice(self, start: int, count: int) -> list[bytes | None]:
        """Up to ``count`` events from id ``start`` on; empty when the ring does not hold ``start``."""
        out: list[bytes | None] = []
        for piece in self.pieces(start, count):
            out += piece.values()
        return out

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Known gaps (first and last missing id) that touch the ids from ``start`` to ``end - 1``."""
        return [gap for gap in self._gaps if gap[0] < end and gap[1] >= start]

    def _begin_at(self, event_id: int) -> None:
        number, index = divmod(event_id, BLOCK)
        self._blocks = {number: [None] * index}
        self._size_bytes = 0
        self._full.clear()
        self._lowest = self._next = event_id

    def _pass_over(self, event_id: int) -> None:
        """Leaves the ids before ``event_id`` empty; it creates no blocks in between."""
        number, index = divmod(self.next_id, BLOCK)
        last, last_index = divmod(event_id, BLOCK)
        if index:
            block = self._blocks[number]
            assert isinstance(block, list), "the block that is being filled is not packed"
            block += [None] * ((last_index if last == number else BLOCK) - index)
            if len(block) == BLOCK:
                self._full.append(number)
        if last_index and (last != number or not index):
            self._blocks[last] = [None] * last_index
        self._next = event_id

    def _append(self, values: list[bytes]) -> None:
        done, event_id = 0, self.next_id
        while done < len(values):
            number, index = divmod(event_id, BLOCK)
            part = values[done : done + BLOCK - index]
            block = self._blocks.setdefault(number, [])
            assert isinstance(block, list), "the block that is being filled is not packed"
            block += part
            self._size_bytes += sum(map(len, part))
            if len(block) == BLOCK:
                self._full.append(number)
            done += len(part)
            event_id += len(part)
        self._next = event_id

    def _evict(self) -> None:
        before = self._lowest // BLOCK
        self._lowest = max(self._lowest, self.next_id - self._capacity)
        oldest = self._lowest // BLOCK
        if oldest == before:
            return
        if oldest - before < len(self._blocks):
            gone = list(range(before, oldest))
        else:
            gone = [number for number in self._blocks if number < oldest]
        for number in gone:
            self._size_bytes -= _size_of(self._blocks.pop(number, b""))
        while self._full and self._full[0] < oldest:
            self._full.popleft()


def _size_of(block: bytes | list[bytes | None]) -> int:
    return len(block) if isinstance(block, bytes) else sum(len(value) for value in block if value is not None)


class Signal:
    """Wakes all waiting tasks. A task that checks and then waits, without an await in between, misses nothing."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def notify(self) -> None:
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self, timeout_s: float | None) -> bool:
        """True: notified; False: the time-out was over."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait({self._future}, timeout=timeout_s)
        return bool(done)


class Rings:
    """The rings of all RMs, by rmID.

    :param capacity: of each ring, or a function that gives it for an RM.
    """

    def __init__(self, capacity: int | Callable[[str], int]) -> None:
        self.changed = Signal()
        self.capacity_of: Callable[[str], int] = capacity if callable(capacity) else lambda _rm_id: capacity
        self._unpacked = UnpackedBlocks()
        self._rings: dict[str, EventRing] = {}
        self._former: dict[str, EventRing] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def get(self, rm_id: str) -> EventRing | None:
        return self._rings.get(rm_id)

    def of(self, rm_id: str) -> list[EventRing]:
        """The RM's ring, and behind it that of the instance before, as far as it was there."""
        return [ring[rm_id] for ring in (self._rings, self._former) if rm_id in ring]

    def rm_ids(self) -> list[str]:
        return sorted(self._rings)

    def all(self) -> list[EventRing]:
        return list(self._rings.values())

    def ring_for(self, rm_id: str, instance: str) -> EventRing:
        """The RM's ring; a new ring for a new RM, and for a new instance of a known RM (its ids begin again at 0)."""
        ring = self._rings.get(rm_id)
        if ring is None or ring.instance != instance:
            previous, ring = ring, EventRing(rm_id, instance, self.capacity_of(rm_id), self._unpacked)
            self._rings[rm_id] = ring
            self.changed.notify()
            if previous is not None:
                self._former[rm_id] = previous
                previous.changed.notify()
        return ring

    def resize(self, rm_id: str) -> None:
        """Gives the RM's ring its present capacity, and wakes its readers and those that wait for a ring."""
        ring = self._rings.get(rm_id)
        if ring is not None:
            ring.resize(self.capacity_of(rm_id))
            ring.changed.notify()
            self.changed.notify()

    def wake_all(self) -> None:
        """Wakes all waiting tasks, so that they see that the service stops."""
        self.changed.notify()
        for ring in self._rings.values():
            ring.changed.notify()
