"""A backtracking search for allocations whose release covers the needs and violates no guarantee.

Two kinds of bounds meet. A *need* is an amount of one type that has to come free: room on a node, or below a limit. A
*guard* is a queue with a guarantee, and how much of each type may still go before the queue would be below the
guarantee. Taking an entry lowers needs and guards. :func:`cover` takes entries in order of cost, undoes those that lead
to no solution, and at the end keeps only necessary entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster_core.model.application import Allocation, Application
from muster_core.model.node import Node
from muster_core.model.queue import Queue
from muster_core.model.resources import Shape

# (opted out of preemption, originator, priority, size class of those that go together: :func:`size_class`). Victims are
# chosen in this order.
Class = tuple[bool, bool, int, int]
Items = tuple[tuple[int, int], ...]
# The steps of a whole search. A step looks at, takes or undoes one allocation. (100,000 steps take ≈ 0.1 s.)
STEPS_MAX = 200_000


@dataclass(slots=True, eq=False)
class GuaranteeGuard:
    """A queue that must not fall below its guarantee.

    :ivar spare: how much of each guaranteed type may still go; negative: the queue is below its guarantee already.
    """

    queue: Queue
    spare: dict[int, int]

    def allows(self, items: Items) -> bool:
        """Whether this amount may be released."""
        spare = self.spare
        for number, value in items:  # noqa: SIM110 - all() with its generator takes three times as long
            if spare.get(number, value) < value:
                return False
        return True

    def apply(self, items: Items, sign: int) -> None:
        """Counts this amount as released (1), or takes the count back (-1)."""
        spare = self.spare
        for number, value in items:
            if number in spare:
                spare[number] -= sign * value


@dataclass(slots=True, eq=False)
class VictimLeaf:
    """A leaf whose allocations may be victims.

    :ivar rule: the name of the rule that allows it.
    :ivar priority_max: the highest priority of its victims; None: any priority.
    :ivar guards: the guards of the leaf, and of those of its ancestors that are not ancestors of the ask's queue.
    :ivar spared: the application whose allocations stay; None: allocations of all applications may go.
    :ivar whole_gangs: either all members of a gang go, or none.
    """

    leaf: Queue
    rule: str
    priority_max: int | None
    guards: tuple[GuaranteeGuard, ...] = ()
    spared: Application | None = None
    whole_gangs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.whole_gangs = self.leaf.policy.gangs_preempted_whole

    def allows(self, items: Items) -> bool:
        """Whether this amount may be released from the leaf."""
        for guard in self.guards:  # noqa: SIM110
            if not guard.allows(items):
                return False
        return True


class WholeGang:
    """The members of a gang that go together (``gang.preemption: whole``).

    :ivar members: in the order of their release.
    :ivar oldest: the member whose age counts for the gang.
    :ivar rank: the gang's class: in each respect the highest of its members.
    :ivar losses: how many members opted out, how many are originators, how many members there are.
    :ivar items: the amounts that the members hold together.
    :ivar on_nodes: by node id, the amounts that the members hold there, by type number.
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
            on_node = self.on_nodes.setdefault(member.node_id, {})
            for number, value in member.shape.items:
                together[number] = together.get(number, 0) + value
                on_node[number] = on_node.get(number, 0) + value
        self.items: Items = tuple(sorted(together.items()))


def size_class(count: int) -> int:
    """The class of a gang's size: 0 for one, 1 for two, 2 up to four, 3 up to eight. Few classes bound how often the
    search goes through the nodes.
    """
    return (count - 1).bit_length()


class VictimUnit:
    """An allocation that may be a victim, or a gang that goes as a whole.

    :ivar allocation: the allocation; of a gang, its oldest member.
    :ivar items: the amounts that go, on all nodes.
    :ivar gains: by how much each need would fall.
    :ivar order: the order of choice: by class, then what helps most, then the youngest.
    """

    __slots__ = ("allocation", "branch", "gains", "gang", "items", "order", "rank")

    def __init__(
        self,
        allocation: Allocation,
        branch: VictimLeaf,
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
        """All allocations that go with this entry."""
        return (self.allocation,) if self.gang is None else self.gang.members

    @property
    def losses(self) -> tuple[int, int, int]:
        """How many members opted out, how many are originators, how many members there are."""
        return (self.rank[0], self.rank[1], 1) if self.gang is None else self.gang.losses

    def is_on(self, node: Node) -> bool:
        """Whether any member is on the node."""
        if self.gang is None:
            return self.allocation.node_id == node.node_id
        return node.node_id in self.gang.on_nodes

    def apply(self, sign: int) -> None:
        """Counts the entry as released (1) at the guards, or takes the count back (-1)."""
        for guard in self.branch.guards:
            guard.apply(self.items, sign)

    def moved(self, gains: tuple[int, ...]) -> VictimUnit:
        """The same entry with the gains for a longer list of needs."""
        entry = VictimUnit(self.allocation, self.branch, self.rank, gains, 0.0, self.gang)
        entry.order = self.order
        return entry


def age_of(allocation: Allocation) -> tuple[int, int, int, int]:
    """A sort key, smaller for younger allocations: by creation of the ask, as the RM says, then by allocation. Keys are
    unique.
    """
    demand = allocation.demand
    return (-demand.created_ns, -allocation.allocated_ns, -demand.submission, -allocation.ordinal)


@dataclass(slots=True)
class SearchBudget:
    """The steps that a search may still take. A search whose budget runs out ends without an answer, although one may
    exist.
    """

    steps: int
    ran_out: bool = field(default=False)

    def spend(self, steps: int) -> bool:
        """Takes so many steps. Returns whether so many were left."""
        self.steps -= steps
        if self.steps < 0:
            self.ran_out = True
        return self.steps >= 0


def rank_of(allocation: Allocation) -> Class:
    """The class of an allocation that goes alone."""
    demand = allocation.demand
    return (not demand.allow_preempt_self, demand.originator, demand.priority, 0)


def relief_of(gains: tuple[int, ...], needs: list[int]) -> float:
    """How much of the needs the gains would cover: the sum over all needs of a fraction from 0 to 1."""
    return sum(min(gain, need) / need for gain, need in zip(gains, needs, strict=True) if gain > 0)


def cover(
    entries: list[VictimUnit], numbers: list[int], needs: list[int], budget: SearchBudget, steps_max: int
) -> list[VictimUnit]:
    """Finds a set of entries that covers the needs, each of them necessary; empty: there is none.

    :param entries: in the order in which they are chosen.

    :param numbers: the type number of each need.
    :param steps_max: the search gives up after so many steps, as it does when the budget runs out.
    """
    if not could_cover(entries, numbers, needs):
        return []
    chosen = _choose(entries, needs, SearchBudget(min(steps_max, max(budget.steps, 0))), budget)
    return _trim(chosen, needs)


def least_rank(entries: list[VictimUnit], needs: list[int]) -> Class | None:
    """The lowest class up to which entries, regardless of guards, cover the needs; None: all entries do not suffice."""
    remaining = list(needs)
    for entry in entries:
        for index, gain in enumerate(entry.gains):
            remaining[index] -= gain
        if max(remaining) <= 0:
            return entry.rank
    return None


def could_cover(entries: list[VictimUnit], numbers: list[int], needs: list[int]) -> bool:
    """Whether all entries together would cover the needs, with guards counted leaf by leaf. A quick check: False is
    certain, True is not.
    """
    by_branch: dict[VictimLeaf, list[int]] = {}
    for entry in entries:
        sums = by_branch.get(entry.branch)
        if sums is None:
            by_branch[entry.branch] = list(entry.gains)
        else:
            for index, gain in enumerate(entry.gains):
                sums[index] += gain
    for index, (number, need) in enumerate(zip(numbers, needs, strict=True)):
        total = 0
        for branch, sums in by_branch.items():
            most = sums[index]
            for guard in branch.guards:
                most = min(most, max(guard.spare.get(number, most), 0))
            total += most
        if total < need:
            return False
    return True


def _choose(entries: list[VictimUnit], needs: list[int], own: SearchBudget, budget: SearchBudget) -> list[VictimUnit]:
    """Searches depth first: takes the next entry that helps. At a dead end, undoes the last entry and skips others of
    its kind.
    """
    count = len(entries)
    suffix_sums = _sums_from(entries, len(needs))
    remaining = list(needs)
    taken: list[int] = []
    barred: dict[tuple[VictimLeaf, Shape | Items, tuple[int, ...]], int] = {}
    position = 0
    while any(need > 0 for need in remaining):
        if not own.spend(1) or not budget.spend(1):
            budget.ran_out = True
            for index in taken:
                _apply_entry(entries[index], remaining, -1)
            return []
        if position < count and all(need <= most for need, most in zip(remaining, suffix_sums[position], strict=True)):
            entry = entries[position]
            helps = any(need > 0 and gain > 0 for need, gain in zip(remaining, entry.gains, strict=True))
            free = barred.get(_kind(entry), len(taken) + 1) > len(taken)
            if helps and free and entry.branch.allows(entry.items):
                _apply_entry(entry, remaining, 1)
                taken.append(position)
            position += 1
            continue
        if not taken:
            return []
        position = taken.pop()
        _apply_entry(entries[position], remaining, -1)
        # Another entry of this kind would be a dead end, too.
        barred = {kind: depth for kind, depth in barred.items() if depth <= len(taken)}
        barred[_kind(entries[position])] = len(taken)
        position += 1
    return [entries[index] for index in taken]


def _trim(chosen: list[VictimUnit], needs: list[int]) -> list[VictimUnit]:
    """Drops entries that are not necessary beside the others, those of the highest class first. Then takes back the
    counts of the chosen entries at the guards.
    """
    remaining = list(needs)
    for entry in chosen:
        for index, gain in enumerate(entry.gains):
            remaining[index] -= gain
    kept = []
    for entry in reversed(chosen):
        if all(need + gain <= 0 for need, gain in zip(remaining, entry.gains, strict=True)):
            for index, gain in enumerate(entry.gains):
                remaining[index] += gain
        else:
            kept.append(entry)
        entry.apply(-1)
    kept.reverse()
    return kept


def _apply_entry(entry: VictimUnit, remaining: list[int], sign: int) -> None:
    for index, gain in enumerate(entry.gains):
        remaining[index] -= sign * gain
    entry.apply(sign)


def _kind(entry: VictimUnit) -> tuple[VictimLeaf, Shape | Items, tuple[int, ...]]:
    """Entries of one kind can replace each other."""
    return (entry.branch, entry.allocation.demand.shape if entry.gang is None else entry.items, entry.gains)


def _sums_from(entries: list[VictimUnit], count: int) -> list[list[int]]:
    sums = [[0] * count]
    for entry in reversed(entries):
        sums.append([gain + more for gain, more in zip(entry.gains, sums[-1], strict=True)])
    sums.reverse()
    return sums
