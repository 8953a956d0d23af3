"""A do/undo search: which allocations, told to go, give what is needed, and take from nobody what is theirs.

Two kinds of bounds meet. A *need* is an amount of one type that has to come free: room on a node, or below a limit. A
*guard* is a queue with a guarantee, and how much of each type may still go before the queue would be below it. Taking
an entry lowers needs and guards; :func:`cover` takes in order of cost, undoes what led nowhere, and in the end takes
nothing that the rest could do without.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any

from muster_scheduler.core.objects import Allocation, Node, PreemptionRule, Queue
from muster_scheduler.core.resources import Shape

# Opted out of preemption, originator, priority, how many go together (see `size_class`): the order in which victims are
# chosen.
Class = tuple[bool, bool, int, int]
Items = tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class Guard:
    """A queue that is not to fall under its guarantee.

    :ivar spare: of each guaranteed type, how much may still go; below zero: it is under its guarantee already.
    """

    queue: Queue
    spare: dict[int, int]

    def allows(self, items: Items) -> bool:
        """Whether so much may go."""
        spare = self.spare
        for number, value in items:  # noqa: SIM110 - all() with its generator takes three times as long
            if spare.get(number, value) < value:
                return False
        return True

    def take(self, items: Items, sign: int) -> None:
        """So much goes (1), or stays after all (-1)."""
        spare = self.spare
        for number, value in items:
            if number in spare:
                spare[number] -= sign * value


@dataclass(slots=True, eq=False)
class Branch:
    """A leaf whose allocations may be victims.

    :ivar priority_max: theirs at most; None: any.
    :ivar guards: those of the leaf and of its ancestors that the ask's queue does not share.
    :ivar whole_gangs: of its gangs all members go, or none.
    """

    leaf: Queue
    rule: PreemptionRule
    priority_max: int | None
    guards: tuple[Guard, ...] = ()
    whole_gangs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.whole_gangs = self.leaf.policy.gangs_preempted_whole

    def allows(self, items: Items) -> bool:
        """Whether so much may go from the leaf."""
        for guard in self.guards:  # noqa: SIM110
            if not guard.allows(items):
                return False
        return True


class WholeGang:
    """The members of a gang that go together (``gang.preemption: whole``).

    :ivar members: in the order in which they are told.
    :ivar oldest: the member by which its age counts.
    :ivar rank: its class: that of the dearest member, in each respect.
    :ivar losses: how many opted out, how many are originators, how many there are.
    :ivar items: what they hold together.
    :ivar on_nodes: by node, what they hold there, by type number.
    """

    __slots__ = ("items", "losses", "members", "oldest", "on_nodes", "rank")

    def __init__(self, members: tuple[Allocation, ...]) -> None:
        self.members = members
        self.oldest = max(members, key=age_of)
        opted_out = sum(not member.allow_preempt_self for member in members)
        originators = sum(member.originator for member in members)
        self.losses = (opted_out, originators, len(members))
        priority = max(member.priority for member in members)
        self.rank: Class = (opted_out > 0, originators > 0, priority, size_class(len(members)))
        together: dict[int, int] = {}
        self.on_nodes: dict[str, dict[int, int]] = {}
        for member in members:
            there = self.on_nodes.setdefault(member.node_id, {})
            for number, value in member.shape.items:
                together[number] = together.get(number, 0) + value
                there[number] = there.get(number, 0) + value
        self.items: Items = tuple(sorted(together.items()))


def size_class(count: int) -> int:
    """0 for one, 1 for two, 2 up to four, 3 up to eight: as many classes as nodes can be looked through for."""
    return (count - 1).bit_length()


class Entry:
    """An allocation that may be a victim, or a gang that goes as a whole.

    :ivar allocation: of a gang, its oldest member.
    :ivar items: what goes, wherever it is.
    :ivar gains: what each need would be lowered by.
    :ivar order: its place: class, then what helps most, then the youngest.
    """

    __slots__ = ("allocation", "branch", "gains", "gang", "items", "order", "rank")

    def __init__(
        self,
        allocation: Allocation,
        branch: Branch,
        rank: Class,
        gains: tuple[int, ...],
        relief: float,
        gang: WholeGang | None = None,
    ) -> None:
        self.allocation = allocation
        self.branch = branch
        self.rank = rank
        self.gains = gains
        self.gang = gang
        self.items: Items = allocation.demand.shape.items if gang is None else gang.items
        self.order: tuple[Any, ...] = (rank, -relief, *age_of(allocation))

    @property
    def members(self) -> tuple[Allocation, ...]:
        """All that go with it."""
        return (self.allocation,) if self.gang is None else self.gang.members

    @property
    def losses(self) -> tuple[int, int, int]:
        """How many of them opted out, how many are originators, how many there are."""
        return (self.rank[0], self.rank[1], 1) if self.gang is None else self.gang.losses

    def is_on(self, node: Node) -> bool:
        """Whether any of them is on the node."""
        if self.gang is None:
            return self.allocation.node_id == node.node_id
        return node.node_id in self.gang.on_nodes

    def take(self, sign: int) -> None:
        """It goes (1), or stays after all (-1): what the guards have to spare."""
        for guard in self.branch.guards:
            guard.take(self.items, sign)

    def moved(self, gains: tuple[int, ...]) -> Entry:
        """The same among more needs, to which it gives nothing."""
        entry = copy(self)
        entry.gains = gains
        return entry


def age_of(allocation: Allocation) -> tuple[int, int, int, int]:
    """The younger the less: when it was asked for, as the RM says, then when it was made. No two have the same."""
    demand = allocation.demand
    return (-demand.created_ns, -allocation.allocated_ns, -demand.submission, -allocation.ordinal)


@dataclass(slots=True)
class Budget:
    """How many steps a search may still take. One that ran out ends without an answer where there might be one."""

    steps: int
    ran_out: bool = field(default=False)

    def spend(self, steps: int) -> bool:
        """Says whether there were so many left."""
        self.steps -= steps
        if self.steps < 0:
            self.ran_out = True
        return self.steps >= 0


def rank_of(allocation: Allocation) -> Class:
    """The class of an allocation that goes alone."""
    demand = allocation.demand
    return (not demand.allow_preempt_self, demand.originator, demand.priority, 0)


def relief_of(gains: tuple[int, ...], needs: list[int]) -> float:
    """How much of the needs so much would cover."""
    return sum(min(gain, need) / need for gain, need in zip(gains, needs, strict=True) if gain > 0)


def cover(entries: list[Entry], numbers: list[int], needs: list[int], budget: Budget, steps_max: int) -> list[Entry]:
    """Entries that cover the needs (by type number), none of which could stay; empty: there are none.

    :param entries: in the order in which they are to be chosen.
    :param steps_max: after so many steps it gives up, as when the budget runs out.
    """
    if not could_cover(entries, numbers, needs):
        return []
    chosen = _choose(entries, needs, Budget(min(steps_max, max(budget.steps, 0))), budget)
    return _trim(chosen, needs)


def least_rank(entries: list[Entry], needs: list[int]) -> Class | None:
    """The class up to which entries are needed at least, guards apart; None: all of them are not enough."""
    left = list(needs)
    for entry in entries:
        for place, gain in enumerate(entry.gains):
            left[place] -= gain
        if max(left) <= 0:
            return entry.rank
    return None


def could_cover(entries: list[Entry], numbers: list[int], needs: list[int]) -> bool:
    """Whether all of them together would do, guards counted leaf by leaf: quick, and wrong on the safe side only."""
    by_branch: dict[Branch, list[int]] = {}
    for entry in entries:
        sums = by_branch.get(entry.branch)
        if sums is None:
            by_branch[entry.branch] = list(entry.gains)
        else:
            for place, gain in enumerate(entry.gains):
                sums[place] += gain
    for place, (number, need) in enumerate(zip(numbers, needs, strict=True)):
        total = 0
        for branch, sums in by_branch.items():
            most = sums[place]
            for guard in branch.guards:
                most = min(most, max(guard.spare.get(number, most), 0))
            total += most
        if total < need:
            return False
    return True


def _choose(entries: list[Entry], needs: list[int], own: Budget, budget: Budget) -> list[Entry]:
    """Depth first: take what is next and helps; where that leads nowhere, undo the last and go on without its kind."""
    count = len(entries)
    rest = _sums_from(entries, len(needs))
    left = list(needs)
    taken: list[int] = []
    barred: dict[tuple[Branch, Shape | Items, tuple[int, ...]], int] = {}
    place = 0
    while any(need > 0 for need in left):
        if not own.spend(1) or not budget.spend(1):
            budget.ran_out = True
            for index in taken:
                _take(entries[index], left, -1)
            return []
        if place < count and all(need <= most for need, most in zip(left, rest[place], strict=True)):
            entry = entries[place]
            helps = any(need > 0 and gain > 0 for need, gain in zip(left, entry.gains, strict=True))
            free = barred.get(_kind(entry), len(taken) + 1) > len(taken)
            if helps and free and entry.branch.allows(entry.items):
                _take(entry, left, 1)
                taken.append(place)
            place += 1
            continue
        if not taken:
            return []
        place = taken.pop()
        _take(entries[place], left, -1)
        # Another of its kind in its place would lead nowhere either.
        barred = {kind: depth for kind, depth in barred.items() if depth <= len(taken)}
        barred[_kind(entries[place])] = len(taken)
        place += 1
    return [entries[index] for index in taken]


def _trim(chosen: list[Entry], needs: list[int]) -> list[Entry]:
    """Lets everybody stay whom the others make needless, the dearest first. Undoes what is left on the guards."""
    left = list(needs)
    for entry in chosen:
        for place, gain in enumerate(entry.gains):
            left[place] -= gain
    kept = []
    for entry in reversed(chosen):
        if all(need + gain <= 0 for need, gain in zip(left, entry.gains, strict=True)):
            for place, gain in enumerate(entry.gains):
                left[place] += gain
        else:
            kept.append(entry)
        entry.take(-1)
    kept.reverse()
    return kept


def _take(entry: Entry, left: list[int], sign: int) -> None:
    for place, gain in enumerate(entry.gains):
        left[place] -= sign * gain
    entry.take(sign)


def _kind(entry: Entry) -> tuple[Branch, Shape | Items, tuple[int, ...]]:
    """Entries of one kind may stand for each other."""
    return (entry.branch, entry.allocation.demand.shape if entry.gang is None else entry.items, entry.gains)


def _sums_from(entries: list[Entry], count: int) -> list[list[int]]:
    sums = [[0] * count]
    for entry in reversed(entries):
        sums.append([gain + more for gain, more in zip(entry.gains, sums[-1], strict=True)])
    sums.reverse()
    return sums
