"""Where lists wait: at a limit, at the nodes, at the one node that they require. And who of them is woken there.

A place finds the shapes that would fit into what it gained. The lists of one leaf and one shape that wait there share
a *bench*: what the place says to the first of them it says to all. So only the first is woken; when it has what it
wanted, or is stopped by something of its own (its user's limit), the next one is. A gain in front of 3,000 users who
wait for the same costs what it makes possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sortedcontainers import SortedList

from muster_scheduler.core.resources import Shape, Vector, fits, saturated

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Application, Queue, Waitlist

# From so many shapes on they are compared in a matrix; below, one by one is faster.
SHAPES_MANY = 64
# And so many nodes at once.
_GAINED_MANY = 16
# A bench's heap may have so many entries more than twice its lists.
_HEAP_SPARE = 16


class Bench:
    """The lists of one leaf, shape and required node at one place, in the order in which the leaf would try them.

    :ivar leaf: whose they are.
    :ivar lists: they themselves.
    :ivar moving: one of them is being tried, and the next may follow: who comes now must not wait behind it.
    """

    __slots__ = ("_heap", "_pushes", "leaf", "lists", "moving")

    def __init__(self, leaf: Queue) -> None:
        self.leaf = leaf
        self.lists: dict[Waitlist, None] = {}
        self.moving = False
        # (the first group's place, push, list); an entry counts while the list is here and its first group is there.
        self._heap: list[tuple[Any, int, Waitlist]] = []
        self._pushes = 0

    def place(self, waitlist: Waitlist) -> None:
        """The list is new here, or has another first group."""
        if not waitlist.groups:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (waitlist.groups[0][:-1], self._pushes, waitlist))
        if len(self._heap) > 2 * len(self.lists) + _HEAP_SPARE:
            self._heap = [(each.groups[0][:-1], number, each) for number, each in enumerate(self.lists) if each.groups]
            heapq.heapify(self._heap)

    def first(self) -> Waitlist | None:
        """The list whose first group the leaf would try first."""
        heap = self._heap
        while heap:
            key, _, waitlist = heap[0]
            if waitlist in self.lists and waitlist.groups and waitlist.groups[0][:-1] == key:
                return waitlist
            heapq.heappop(heap)
        return None


class Place:
    """Something that lists wait at.

    :ivar own: what it says holds for those whom it concerns only (a user's or group's limit), not for the whole leaf.
    """

    __slots__ = ("_fitting", "_shapes", "own")

    def __init__(self, *, own: bool = False) -> None:
        self.own = own
        self._shapes: dict[Shape, dict[tuple[Queue, str, int], Bench]] = {}
        self._fitting = _Fitting(self._shapes)

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def __contains__(self, shape: object) -> bool:
        return shape in self._shapes

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, waitlist: Waitlist) -> None:
        """The list waits here."""
        shape = waitlist.shape
        benches = self._shapes.get(shape)
        if benches is None:
            benches = self._shapes[shape] = {}
            self._fitting.added(shape)
        key = (waitlist.leaf, waitlist.required_node, waitlist.apart)
        bench = benches.get(key)
        if bench is None:
            bench = benches[key] = Bench(waitlist.leaf)
        bench.lists[waitlist] = None
        waitlist.bench = bench
        bench.place(waitlist)

    def remove(self, waitlist: Waitlist) -> None:
        """The list waits here no more."""
        bench, waitlist.bench = waitlist.bench, None
        assert bench is not None, f"{waitlist} is on no bench"
        del bench.lists[waitlist]
        if bench.lists:
            return
        shape = waitlist.shape
        benches = self._shapes[shape]
        del benches[waitlist.leaf, waitlist.required_node, waitlist.apart]
        if not benches:
            del self._shapes[shape]
            self._fitting.removed(shape)

    def benches(self, shape: Shape) -> list[Bench]:
        """Those who wait here for the shape."""
        return list(self._shapes.get(shape, {}).values())

    def bench_of(self, waitlist: Waitlist) -> Bench | None:
        """Those who wait here for the same as the list."""
        return self._shapes.get(waitlist.shape, {}).get((waitlist.leaf, waitlist.required_node, waitlist.apart))

    def lists(self, shape: Shape) -> Iterator[Waitlist]:
        """Those who wait here for the shape, one by one."""
        for bench in self.benches(shape):
            yield from bench.lists

    def fitting(self, free: Sequence[Vector]) -> list[Shape]:
        """The shapes that fit into one of these: what is free on each of the nodes that gained, or below the limit."""
        if len(free) > 1:
            peak = [max(column) for column in zip(*free, strict=True)]
            return [shape for shape in self._fitting.within(peak) if _fits_one(shape, free)]
        return self._fitting.within(free[0]) if free else []


def _fits_one(shape: Shape, free: Sequence[Vector]) -> bool:
    return any(fits(shape.items, each) for each in free)


class GangLines:
    """The gangs of one leaf that wait at one ledger for room for all of them: a line for each size, in order."""

    __slots__ = ("_fitting", "_lines")

    def __init__(self) -> None:
        self._lines: dict[Shape, Any] = {}
        self._fitting = _Fitting(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[tuple[Shape, Application]]:
        return ((total, entry[-1]) for total, line in self._lines.items() for entry in line)

    def add(self, total: Shape, key: tuple[int, int, int], app: Application) -> None:
        """The application waits for so much."""
        line = self._lines.get(total)
        if line is None:
            line = self._lines[total] = SortedList()
            self._fitting.added(total)
        line.add((*key, app))

    def remove(self, total: Shape, key: tuple[int, int, int], app: Application) -> None:
        """It waits no more."""
        line = self._lines[total]
        line.remove((*key, app))
        if not line:
            del self._lines[total]
            self._fitting.removed(total)

    def first(self, room: Vector) -> Application | None:
        """The first of all for whom there is room; None: there is for nobody."""
        best = min((self._lines[total][0] for total in self._fitting.within(room)), default=None)
        return None if best is None else best[-1]


class _Fitting:
    """Which of the shapes that a mapping has fit: one by one while they are few, in a matrix once they are many.

    Its owner says what was added to the mapping, and removed.
    """

    __slots__ = ("_shapes", "_table")

    def __init__(self, shapes: Mapping[Shape, Any]) -> None:
        self._shapes = shapes
        self._table: _Table | None = None

    def added(self, shape: Shape) -> None:
        if self._table is not None:
            self._table.add(shape)

    def removed(self, shape: Shape) -> None:
        if self._table is not None:
            self._table.remove(shape)

    def within(self, free: Vector) -> list[Shape]:
        """Those that fit into so much."""
        if len(self._shapes) < SHAPES_MANY:
            self._table = None
            return [shape for shape in self._shapes if fits(shape.items, free)]
        if self._table is None:
            self._table = _Table(self._shapes)
        return self._table.within(free)


class _Table:
    """Many shapes as rows of a matrix."""

    __slots__ = ("_amounts", "_rows", "_shapes")

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._shapes: list[Shape] = []
        self._rows: dict[Shape, int] = {}
        self._amounts: Any = np.zeros((2 * SHAPES_MANY, 1), dtype=np.int64)
        for shape in shapes:
            self.add(shape)

    def add(self, shape: Shape) -> None:
        row = self._rows[shape] = len(self._shapes)
        self._shapes.append(shape)
        rows, columns = self._amounts.shape
        wanted = max((number + 1 for number, _ in shape.items), default=0)
        if row >= rows or wanted > columns:
            self._amounts = np.pad(self._amounts, ((0, rows if row >= rows else 0), (0, max(wanted - columns, 0))))
        amounts = self._amounts[row]
        amounts[:] = 0
        for number, value in shape.items:
            amounts[number] = saturated(value)

    def remove(self, shape: Shape) -> None:
        row = self._rows.pop(shape)
        last = self._shapes.pop()
        if last is not shape:
            self._shapes[row] = last
            self._rows[last] = row
            self._amounts[row] = self._amounts[len(self._shapes)]

    def within(self, free: Vector) -> list[Shape]:
        amounts = self._amounts[: len(self._shapes)]
        # (What is missing is zero, and everything has room for nothing: a node that is over-committed too.)
        room = np.array([saturated(max(value, 0)) for value in free[: amounts.shape[1]]], dtype=np.int64)
        return [self._shapes[row] for row in np.flatnonzero((amounts <= room).all(axis=1))]
