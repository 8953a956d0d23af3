"""Wait points of waitlists: a limit, the nodes, a required node. Also which list is woken there.

A wait point finds the shapes that fit into what it gained. The waitlists of one leaf and one shape that wait there
share a *bench*: a refusal for the first list is a refusal for all. So only the first one is woken. When that list has
been served, or is stopped by a limit of its own (its user's), the next one is woken. So if 3,000 users wait there and
room is gained, the cost grows with the allocations that become possible, not with the users.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from sortedcontainers import SortedList

from muster_core.model.resources import Shape, Vector, fits, saturated

# This many shapes or more are compared in a matrix; for fewer, one by one is faster.
SHAPES_MANY = 64
# The limit of entries in a bench's heap beyond twice its lists.
_HEAP_SPARE = 16


class Places(Protocol):
    """The places of a leaf's users."""

    def key(self, user: str, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """The key of something of the user in the leaf's order, from its key among the user's own."""


class Leaf(Protocol):
    """The leaf of the lists."""

    @property
    def fair_apps(self) -> bool:
        """Whether each allocation may change which list is the first."""

    @property
    def fair_uses(self) -> Places | None:
        """The places of users, if these come before the places of lists."""


class Waiter(Protocol):
    """A list that waits: its shape, its leaf, and its groups in order."""

    @property
    def shape(self) -> Shape:
        """The amounts that each of its asks takes."""

    @property
    def leaf(self) -> Leaf:
        """The leaf."""

    @property
    def required_node(self) -> str:
        """The one node for which it waits; "": any node."""

    @property
    def apart(self) -> int:
        """The value that separates it from lists that are alike."""

    @property
    def user(self) -> str:
        """The user whose limits hold here, or ""."""

    @property
    def groups(self) -> Any:
        """Its groups in order."""


W = TypeVar("W", bound=Waiter)
A = TypeVar("A")


class Bench(Generic[W]):
    """The lists of one leaf, shape and required node at one wait point, in the order in which the leaf tries them.

    :ivar leaf: the leaf of the lists.
    :ivar lists: the lists.
    :ivar moving: one of the lists is being tried, and the next may follow: a list that is added now must not wait
        behind it.
    """

    __slots__ = ("_heap", "_pushes", "leaf", "lists", "moving")

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.lists: dict[W, None] = {}
        self.moving = False
        # (key of the first group, push, list). An entry is valid while the list is here and still has that first group.
        self._heap: list[tuple[Any, int, W]] = []
        self._pushes = 0

    def push(self, waitlist: W) -> None:
        """Puts a list into the heap: the list is new here, or its first group changed."""
        if not waitlist.groups:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (_place(waitlist), self._pushes, waitlist))
        if len(self._heap) > 2 * len(self.lists) + _HEAP_SPARE:
            self._heap = [(_place(each), number, each) for number, each in enumerate(self.lists) if each.groups]
            heapq.heapify(self._heap)

    def first(self) -> W | None:
        """The list whose first group the leaf would try first; None: there is none."""
        heap = self._heap
        while heap:
            key, _, waitlist = heap[0]
            if waitlist in self.lists and waitlist.groups and _place(waitlist) == key:
                return waitlist
            heapq.heappop(heap)
        return None


def _place(waitlist: Waiter) -> tuple[Any, ...]:
    """The place of a list with groups among those of its leaf: that of its first group."""
    key: tuple[Any, ...] = waitlist.groups[0][:-1]
    places = waitlist.leaf.fair_uses
    return key if places is None else places.key(waitlist.user, key)


class WaitPoint(Generic[W]):
    """Something at which lists wait.

    :ivar own: a refusal here concerns only the lists of one user or group, not the whole leaf.
    """

    __slots__ = ("_fitting", "_shapes", "own")

    def __init__(self, *, own: bool = False) -> None:
        self.own = own
        self._shapes: dict[Shape, dict[tuple[Leaf, str, int], Bench[W]]] = {}
        self._fitting = _Fitting(self._shapes)

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def __contains__(self, shape: object) -> bool:
        return shape in self._shapes

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, waitlist: W) -> Bench[W]:
        """Adds a list. Returns its bench."""
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
        bench.push(waitlist)
        return bench

    def remove(self, waitlist: W) -> None:
        """Removes a list."""
        bench = self.bench_of(waitlist)
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

    def benches(self, shape: Shape) -> list[Bench[W]]:
        """The benches for the shape."""
        return list(self._shapes.get(shape, {}).values())

    def bench_of(self, waitlist: W) -> Bench[W] | None:
        """The bench of the list; None: the list is not here."""
        return self._shapes.get(waitlist.shape, {}).get((waitlist.leaf, waitlist.required_node, waitlist.apart))

    def lists(self, shape: Shape) -> Iterator[W]:
        """The lists that wait here for the shape."""
        for bench in self.benches(shape):
            yield from bench.lists

    def fitting(self, free: Sequence[Vector]) -> list[Shape]:
        """The shapes that fit into one of these: the free amounts of each node that gained, or the room below the
        limit.
        """
        if len(free) > 1:
            peak = [max(column) for column in zip(*free, strict=True)]
            return [shape for shape in self._fitting.within(peak) if _fits_one(shape, free)]
        return self._fitting.within(free[0]) if free else []


def _fits_one(shape: Shape, free: Sequence[Vector]) -> bool:
    return any(fits(shape.items, each) for each in free)


class GangLines(Generic[A]):
    """The gangs of one leaf that wait at one ledger for room for all of them: a line for each total size, in order."""

    __slots__ = ("_fitting", "_lines")

    def __init__(self) -> None:
        self._lines: dict[Shape, Any] = {}
        self._fitting = _Fitting(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[tuple[Shape, A]]:
        for total, line in self._lines.items():
            for entry in line:
                yield total, entry[-1]

    def add(self, total: Shape, key: tuple[int, int, int], app: A) -> None:
        """Adds an application whose gang needs this total."""
        line = self._lines.get(total)
        if line is None:
            line = self._lines[total] = SortedList()
            self._fitting.added(total)
        line.add((*key, app))

    def remove(self, total: Shape, key: tuple[int, int, int], app: A) -> None:
        """Removes the application."""
        line = self._lines[total]
        line.remove((*key, app))
        if not line:
            del self._lines[total]
            self._fitting.removed(total)

    def first(self, room: Vector) -> A | None:
        """The first application for whose gang there is room; None: there is none."""
        best = min((self._lines[total][0] for total in self._fitting.within(room)), default=None)
        return None if best is None else best[-1]


class _Fitting:
    """Finds which shapes of a mapping fit: one by one while they are few, in a matrix once they are many.

    The owner reports what it adds to the mapping, and what it removes.
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
        """The shapes that fit into these free amounts."""
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
        # (A missing type counts as zero, and zero fits everywhere, even on an over-committed node.)
        room = np.array([saturated(max(value, 0)) for value in free[: amounts.shape[1]]], dtype=np.int64)
        return [self._shapes[row] for row in np.flatnonzero((amounts <= room).all(axis=1))]
