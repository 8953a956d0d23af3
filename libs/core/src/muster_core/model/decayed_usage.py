"""The use of a leaf's users, decayed: who used much lately comes later (``application.sort.policy: fairshare``).

A user's *use* of a resource type is the amount x time of all its allocations in the leaf, and each part of it counts
half after one half-life. Running allocations count up to the *horizon*: one moment for all users of the leaf, one to
two periods ahead. So an allocation counts as soon as it is made, and between two periods no user's place changes unless
its allocations do. At the end of a period the horizon moves, and only users that hold something get a new place.

The sums are in weights that double with each half-life (``decay.py``): what has passed never has to be recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from muster_core.model.decay import LEAST, DecayTime, moment, normal
from muster_core.model.sorted_queue import SortedQueue

# The horizon moves so many times in a half-life. Each time costs one new place for each user that holds something.
PERIODS = 8
# A user without allocations and applications is forgotten after so many half-lives: 2^-60 of its use is left.
FORGOTTEN_HALVES = 60
_SHARE_BITS = 32

Items = Iterable[tuple[int, int]]


class TypeNames(Protocol):
    """The names of the resource types."""

    @property
    def names(self) -> list[str]:
        """By type number."""


class UsageLeaf(Protocol):
    """The leaf whose use is counted."""

    @property
    def path(self) -> str:
        """From root."""

    @property
    def types(self) -> TypeNames:
        """The resource types."""

    @property
    def guaranteed(self) -> Mapping[int, int] | None:
        """By type number; None: not set."""

    @property
    def fair_max(self) -> list[int]:
        """By type number, the nearest max on the path up, else the cluster's capacity."""

    @property
    def ready_apps(self) -> SortedQueue:
        """The first application of each user that has something to try."""

    @property
    def priority_first(self) -> bool:
        """Whether priority comes before use."""


class UserWaitlist(Protocol):
    """A waitlist of one user."""

    @property
    def user(self) -> str:
        """The user."""

    @property
    def bench(self) -> Any:
        """Its bench at its wait point; None: it is in flight."""

    def requeue(self) -> None:
        """Puts the list at its place where it waits."""


class UserUsage:
    """The decayed use of one user in one leaf.

    :ivar half_life_ns: of the leaf.
    :ivar held: by type number, what the user's allocations in the leaf hold.
    :ivar charged: by type number, the weighted sum at the changes of ``held``: amounts that ended, less amounts that
        began, each in the weight of its time. With ``held`` in the weight of a moment, it is the use up to then.
    :ivar halves: the half-lives in whose units ``charged`` is.
    :ivar changed_ns: the last change of ``held``.
    :ivar proposed: by type number, the amounts of open proposals to the RM. Not recorded.
    :ivar place: its place among the users of the leaf; smaller goes first.
    :ivar line: (key, application) of the user's applications with something to try, best first.
    :ivar entry: the entry of the line's first one in the leaf's ``ready_apps``; None: the line is empty.
    :ivar lists: the user's waitlists that are registered at a wait point.
    """

    __slots__ = (
        "changed_ns",
        "charged",
        "entry",
        "gone",
        "half_life_ns",
        "halves",
        "held",
        "leaf",
        "line",
        "lists",
        "place",
        "proposed",
        "published",
        "user",
    )

    def __init__(self, leaf: UsageLeaf, user: str, half_life_ns: int) -> None:
        self.leaf = leaf
        self.half_life_ns = half_life_ns
        self.user = user
        self.held: dict[int, int] = {}
        self.charged: dict[int, int] = {}
        self.halves = 0
        self.changed_ns = 0
        self.proposed: dict[int, int] = {}
        self.place: tuple[int, int] = LEAST
        self.line = SortedQueue()
        self.entry: tuple[Any, ...] | None = None
        self.lists: dict[UserWaitlist, None] = {}
        self.gone = False
        self.published = False

    @property
    def idle(self) -> bool:
        """Whether the user neither holds nor waits for anything."""
        return not (self.held or self.proposed or self.line or self.lists)

    def charge(self, items: Items, sign: int, now: DecayTime) -> None:
        """Books amounts that the user holds from now on (``sign`` 1), or does not any more (-1)."""
        if now.halves > self.halves:
            steps, self.halves = now.halves - self.halves, now.halves
            self.charged = {
                number: remaining for number, value in self.charged.items() if (remaining := value >> steps)
            }
        weight = now.since(self.halves)
        for number, value in items:
            _count(self.held, number, sign * value)
            _count(self.charged, number, -sign * value * weight)

    def propose(self, items: Items, sign: int) -> None:
        """Counts a proposal to the RM (``sign`` 1), or not any more (-1)."""
        for number, value in items:
            _count(self.proposed, number, sign * value)

    def weighted(self, until: DecayTime) -> dict[int, int]:
        """By type number, the weighted use up to a moment, if the user holds until then what it holds now."""
        weight, charged, allocated = until.since(self.halves), self.charged, self.held
        if not allocated:
            return {number: max(value, 0) for number, value in charged.items()}
        totals = {number: value * weight for number, value in allocated.items()}
        for number, value in charged.items():
            totals[number] = max(totals.get(number, 0) + value, 0)
        return totals

    def __repr__(self) -> str:
        return f"UserUsage({self.user} in {self.leaf.path})"


class LeafUsage:
    """The decayed use of all users of one leaf.

    :ivar period: the number of the period in which the present horizon was set; the horizon is the end of the next one.
    :ivar due_ns: when the horizon moves; 0: there are no users.
    """

    __slots__ = ("due_ns", "gone", "half_life_ns", "horizon", "leaf", "period", "period_ns", "users")

    def __init__(self, leaf: UsageLeaf, half_life_ns: int) -> None:
        self.leaf = leaf
        self.half_life_ns = half_life_ns
        self.period_ns = max(half_life_ns // PERIODS, 1)
        self.users: dict[str, UserUsage] = {}
        self.period = -1
        self.horizon = DecayTime(0, 1)
        self.due_ns = 0
        self.gone = False

    def get_or_create(self, user: str) -> UserUsage:
        """The use of a user; a new one if there is none."""
        usage = self.users.get(user)
        if usage is None:
            self.users[user] = usage = UserUsage(self.leaf, user, self.half_life_ns)
        return usage

    def now(self, now_ns: int) -> DecayTime:
        """The moment of a time."""
        return moment(now_ns, self.half_life_ns)

    def look_ahead(self, now_ns: int) -> None:
        """Sets the horizon of this time."""
        self.period = now_ns // self.period_ns
        self.horizon = moment((self.period + 2) * self.period_ns, self.half_life_ns)

    def measure(self, use: UserUsage) -> bool:
        """Computes the user's place again. Returns whether it changed."""
        leaf = self.leaf
        guaranteed, fair_max = leaf.guaranteed or {}, leaf.fair_max
        until, used = self.horizon, use.weighted(self.horizon)
        if use.proposed:  # as if they had run for half a half-life; a decision follows soon
            weight = until.since(use.halves) >> 1
            for number, value in use.proposed.items():
                used[number] = used.get(number, 0) + value * weight
        most = 0
        for number, value in used.items():
            total = guaranteed.get(number) or fair_max[number]
            share = (value << _SHARE_BITS) // total if total > 0 else 0
            most = max(most, share)
        old, use.place = use.place, normal(most, use.halves)
        return use.place != old

    def key(self, user: str, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """The key of something of the user in the leaf's order, from its key among the user's own."""
        position = self.get_or_create(user).place
        return (key[0], position, *key[1:]) if self.leaf.priority_first else (position, *key)

    def move(self, use: UserUsage) -> None:
        """The user's use changed, or its part up to the horizon: moves what is the user's in the leaf to its place."""
        if self.measure(use):
            for waitlist in use.lists:
                waitlist.requeue()
            self.requeue_user(use.user)

    def move_all(self) -> None:
        """The amounts changed of which the users' shares are parts."""
        for use in self.users.values():
            self.move(use)

    def requeue_user(self, user: str) -> None:
        """Puts the first application of a user's line at its place in the leaf."""
        use = self.get_or_create(user)
        line, old, ready = use.line, use.entry, self.leaf.ready_apps
        new = None
        if line:
            *key, app = line.first()
            new = (*self.key(user, tuple(key)), app)
        if new == old:
            return
        if old is not None:
            ready.remove(old)
        if new is not None:
            ready.add(new)
        use.entry = new

    def forget(self) -> list[UserUsage]:
        """Forgets all users: the leaf is removed, or has another order now. Returns their use."""
        self.gone = True
        usages = [use for _, use in sorted(self.users.items())]
        for use in usages:
            use.gone = True
        return usages

    def registered(self, waitlist: UserWaitlist) -> None:
        """Notes that a waitlist was registered at a wait point, or at none."""
        lists = self.get_or_create(waitlist.user).lists
        if waitlist.bench is not None:
            lists[waitlist] = None
        else:
            lists.pop(waitlist, None)

    def clear_lines(self) -> None:
        """Empties the users' lines, because the rules change."""
        for use in self.users.values():
            use.line.clear()
            use.entry = None

    def __repr__(self) -> str:
        return f"LeafUsage({self.leaf.path})"


def _count(sums: dict[int, int], number: int, value: int) -> None:
    if value:
        total = sums.get(number, 0) + value
        if total:
            sums[number] = total
        else:
            del sums[number]
