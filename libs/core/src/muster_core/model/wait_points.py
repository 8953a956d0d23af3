"""Wait points of waitlists: a limit, the nodes, a required node. Also which list is woken there.

A wait point finds the shapes that fit into what it gained. The waitlists of one leaf and one shape that wait there
share a *bench*: a refusal for the first list is a refusal for all. So only the first one is woken. When that list has
been served, or is stopped by a limit of its own (its user's), the next one is woken. So if 3,000 users wait there and
room is gained, the cost grows with the allocations that become possible, not with the users.

Where asks are backfilled, those that declare other durations are on other lists. These share a bench all the same,
unless the leaf is in the order of decayed use: room on a node that nobody reserved does not depend on the duration, and
on a reserved one a refusal for a list is a refusal for all that last as long or longer. They also share a *party*: only
the first of them reserves a node, as if they were one list.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from sortedcontainers import SortedList

from muster_core.model.resources import Shape, Vector, fits, saturated

if TYPE_CHECKING:
    from muster_core.model.reasons import Reason

# This many shapes or more are compared in a matrix; for fewer, one by one is faster.
SHAPES_MANY = 64
# The limit of entries in a line's heap beyond twice its lists.
_HEAP_SPARE = 16
# :attr:`WaitlistLike.apart` of lists whose asks must be alone, for each scope. Smaller values are submission numbers.
ALONE_FROM = 1 << 62
# The same of lists whose asks declare how long they run, for each duration in ms, where such asks may be backfilled.
DURATION_FROM = 1 << 63


class UserOrder(Protocol):
    """The places of a leaf's users."""

    def key(self, user: str, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """The key of something of the user in the leaf's order, from its key among the user's own."""


class WaitlistLeaf(Protocol):
    """The leaf of the lists."""

    @property
    def fair_apps(self) -> bool:
        """Whether each allocation may change which list is the first."""

    @property
    def fair_uses(self) -> UserOrder | None:
        """The places of users, if these come before the places of lists."""

    @property
    def priority_first(self) -> bool:
        """Whether its order begins with priority."""


class WaitlistLike(Protocol):
    """A list that waits: its shape, its leaf, and its groups in order."""

    @property
    def shape(self) -> Shape:
        """The amounts that each of its asks takes."""

    @property
    def leaf(self) -> WaitlistLeaf:
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
    def party_key(self) -> tuple[Any, ...] | None:
        """What lists have in common that reserve as if they were one; None: each list reserves for itself."""

    @property
    def groups(self) -> Any:
        """Its groups in order."""

    @property
    def urgent(self) -> Any:
        """Its groups by priority, then in order; None: the leaf's order begins with priority."""


W = TypeVar("W", bound=WaitlistLike)
A = TypeVar("A")


class WaitlistHeap(Generic[W]):
    """Lists of one leaf, in the order of a place that each has: mostly, the order in which the leaf tries them."""

    __slots__ = ("_heap", "_pushes", "lists", "place")

    def __init__(self, lists: dict[W, None], position_of: Callable[[W], tuple[Any, ...]]) -> None:
        self.lists = lists
        self.place = position_of
        # (key of the first group, push, list). An entry is valid while the list is here and still has that first group.
        self._heap: list[tuple[Any, int, W]] = []
        self._pushes = 0

    def push(self, waitlist: W) -> None:
        """Puts a list at its place: the list is new here, or its first group changed."""
        if not waitlist.groups:
            return
        self._pushes += 1
        heapq.heappush(self._heap, (self.place(waitlist), self._pushes, waitlist))
        if len(self._heap) > 2 * len(self.lists) + _HEAP_SPARE:
            self._heap = [
                (self.place(queued), number, queued) for number, queued in enumerate(self.lists) if queued.groups
            ]
            heapq.heapify(self._heap)

    def first(self) -> W | None:
        """The list with the first place; None: there is none."""
        heap = self._heap
        while heap:
            key, _, waitlist = heap[0]
            if waitlist in self.lists and waitlist.groups and self.place(waitlist) == key:
                return waitlist
            heapq.heappop(heap)
        return None


class ReservationGroup(WaitlistHeap[W]):
    """Lists of which only the first reserves a node: they differ in the duration that their asks declare."""

    __slots__ = ("_moved", "key")

    def __init__(self, key: tuple[Any, ...], moved: dict[ReservationGroup[W], None]) -> None:
        super().__init__({}, place_of)
        self.key = key
        self._moved = moved

    def push(self, waitlist: W) -> None:
        super().push(waitlist)
        self._moved[self] = None

    def remove(self, waitlist: W) -> None:
        """Removes a list."""
        del self.lists[waitlist]
        self._moved[self] = None


class WaitQueue(WaitlistHeap[W]):
    """The lists of one leaf, shape and required node at one wait point, in the order in which the leaf tries them.

    :ivar leaf: the leaf of the lists.
    :ivar moving: one of the lists is being tried, and the next may follow: a list that is added now must not wait
        behind it.
    :ivar durations: the lists by the durations that their asks declare; None: these declare none.
    :ivar last: the last reason that a list here was refused for; ``uneven``: some lists here may have another one.
    :ivar urgent: if priority does not come first in the leaf: the lists by the best priority on each. ``pressing``: the
        list that was woken last because it is the first of these.
    """

    __slots__ = ("_sorted", "durations", "last", "leaf", "moving", "pressing", "uneven", "urgent")

    def __init__(self, leaf: WaitlistLeaf, *, timed: bool) -> None:
        super().__init__({}, place_of)
        self.leaf = leaf
        self.moving = False
        self.urgent: WaitlistHeap[W] | None = None if leaf.priority_first else WaitlistHeap(self.lists, urgency_of)
        self.pressing: W | None = None
        self.durations: dict[int, dict[W, None]] | None = {} if timed else None
        self._sorted: Any = SortedList() if timed else None
        self.last: Reason | None = None
        self.uneven = False

    def push(self, waitlist: W) -> None:
        super().push(waitlist)
        if self.urgent is not None:
            self.urgent.push(waitlist)

    def add(self, waitlist: W) -> None:
        """Adds a list."""
        self.lists[waitlist] = None
        if self.durations is not None:
            if waitlist.apart not in self.durations:
                self.durations[waitlist.apart] = {}
                self._sorted.add(waitlist.apart)
            self.durations[waitlist.apart][waitlist] = None
        self.push(waitlist)

    def remove(self, waitlist: W) -> None:
        """Removes a list."""
        del self.lists[waitlist]
        if self.durations is not None:
            alike = self.durations[waitlist.apart]
            del alike[waitlist]
            if not alike:
                del self.durations[waitlist.apart]
                self._sorted.remove(waitlist.apart)

    def first_within(self, most_ms: int, after: tuple[Any, ...], *, urgent: bool = False) -> W | None:
        """The first list behind the place of those that last for at most so long; None: there is none.

        :param urgent: of these, the one with the best priority.
        """
        best: W | None = None
        first: tuple[Any, ...] = ()
        if self.durations is not None:
            for apart in self._sorted.irange(None, DURATION_FROM + most_ms):
                for waitlist in self.durations[apart]:
                    if waitlist.groups and (position := place_of(waitlist)) > after:
                        its = urgency_of(waitlist) if urgent else position
                        if best is None or its < first:
                            best, first = waitlist, its
        return best


def place_of(waitlist: WaitlistLike) -> tuple[Any, ...]:
    """The place of a list with groups among those of its leaf: that of its first group."""
    return placed(waitlist, waitlist.groups[0][:-1])


def urgency_of(waitlist: WaitlistLike) -> tuple[Any, ...]:
    """The place of a list with groups among those of its leaf, by priority: that of its most urgent group."""
    urgency: tuple[Any, ...] = waitlist.urgent[0][:-1]
    return urgency


def placed(waitlist: WaitlistLike, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The place among the lists of its leaf that a list has with a first group of this key."""
    places = waitlist.leaf.fair_uses
    return key if places is None else places.key(waitlist.user, key)


class WaitPoint(Generic[W]):
    """Something at which lists wait.

    :ivar own: a refusal here concerns only the lists of one user or group, not the whole leaf.
    :ivar fronts: by party, the list that was the first when nothing was being tried.
    :ivar moved: parties whose first list may be another one since then.
    """

    __slots__ = ("_fitting", "_parties", "_shapes", "fronts", "moved", "own")

    def __init__(self, *, own: bool = False, parties: bool = False) -> None:
        self.own = own
        self._parties: dict[tuple[Any, ...], ReservationGroup[W]] | None = {} if parties else None
        self.fronts: dict[tuple[Any, ...], W] = {}
        self.moved: dict[ReservationGroup[W], None] = {}
        self._shapes: dict[Shape, dict[tuple[WaitlistLeaf, str, int], WaitQueue[W]]] = {}
        self._fitting = _ShapeFilter(self._shapes)

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def __contains__(self, shape: object) -> bool:
        return shape in self._shapes

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, waitlist: W) -> WaitQueue[W]:
        """Adds a list. Returns its bench."""
        shape = waitlist.shape
        benches = self._shapes.get(shape)
        if benches is None:
            benches = self._shapes[shape] = {}
            self._fitting.added(shape)
        key = _bench_key(waitlist)
        bench = benches.get(key)
        if bench is None:
            bench = benches[key] = WaitQueue(waitlist.leaf, timed=waitlist.apart >= DURATION_FROM)
        bench.add(waitlist)
        return bench

    def join_party(self, waitlist: W) -> ReservationGroup[W] | None:
        """Adds a list to its party; None: it reserves for itself."""
        key = waitlist.party_key
        if self._parties is None or key is None:
            return None
        party = self._parties.get(key)
        if party is None:
            party = self._parties[key] = ReservationGroup(key, self.moved)
        party.lists[waitlist] = None
        party.push(waitlist)
        return party

    def remove(self, waitlist: W) -> None:
        """Removes a list."""
        bench = self.bench_of(waitlist)
        assert bench is not None, f"{waitlist} is on no bench"
        bench.remove(waitlist)
        self._leave_party(waitlist)
        if bench.lists:
            return
        shape = waitlist.shape
        benches = self._shapes[shape]
        del benches[_bench_key(waitlist)]
        if not benches:
            del self._shapes[shape]
            self._fitting.removed(shape)

    def _leave_party(self, waitlist: W) -> None:
        key = waitlist.party_key
        if self._parties is not None and key is not None:
            party = self._parties[key]
            party.remove(waitlist)
            if not party.lists:
                del self._parties[key]

    def forget(self, waitlist: W) -> None:
        """Forgets a list that is gone."""
        key = waitlist.party_key
        if key is not None and self.fronts.get(key) is waitlist:
            del self.fronts[key]

    def benches(self, shape: Shape) -> list[WaitQueue[W]]:
        """The benches for the shape."""
        return list(self._shapes.get(shape, {}).values())

    def bench_of(self, waitlist: W) -> WaitQueue[W] | None:
        """The bench of the list; None: the list is not here."""
        return self._shapes.get(waitlist.shape, {}).get(_bench_key(waitlist))

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


def _bench_key(waitlist: WaitlistLike) -> tuple[WaitlistLeaf, str, int]:
    if waitlist.leaf.fair_uses is not None:
        # (Each allocation moves all lists of its user: of one user, a bench may have one list only.)
        return (waitlist.leaf, waitlist.required_node, waitlist.apart)
    return (waitlist.leaf, waitlist.required_node, min(waitlist.apart, DURATION_FROM))


def _fits_one(shape: Shape, free: Sequence[Vector]) -> bool:
    return any(fits(shape.items, vector) for vector in free)


class GangQueues(Generic[A]):
    """The gangs of one leaf that wait at one ledger for room for all of them: a line for each total size, in order."""

    __slots__ = ("_fitting", "_lines")

    def __init__(self) -> None:
        self._lines: dict[Shape, Any] = {}
        self._fitting = _ShapeFilter(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[tuple[Shape, A]]:
        for total, line in self._lines.items():
            for entry in line:
                yield total, entry[-1]

    def add(self, total: Shape, key: tuple[int, ...], app: A) -> None:
        """Adds an application whose gang needs this total."""
        line = self._lines.get(total)
        if line is None:
            line = self._lines[total] = SortedList()
            self._fitting.added(total)
        line.add((*key, app))

    def remove(self, total: Shape, key: tuple[int, ...], app: A) -> None:
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


class _ShapeFilter:
    """Finds which shapes of a mapping fit: one by one while they are few, in a matrix once they are many.

    The owner reports what it adds to the mapping, and what it removes.
    """

    __slots__ = ("_shapes", "_table")

    def __init__(self, shapes: Mapping[Shape, Any]) -> None:
        self._shapes = shapes
        self._table: _ShapeMatrix | None = None

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
            self._table = _ShapeMatrix(self._shapes)
        return self._table.within(free)


class _ShapeMatrix:
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
        width = max((number + 1 for number, _ in shape.items), default=0)
        if row >= rows or width > columns:
            self._amounts = np.pad(self._amounts, ((0, rows if row >= rows else 0), (0, max(width - columns, 0))))
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
