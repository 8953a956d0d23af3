"""Whom to preempt (core-features §2.14-2.16): a search on a snapshot, that changes nothing.

What may be asked of whom stands in ``preemption_victims.py``, how a set of victims is put together in
``preemption_cover.py``, what is cut from a queue above its max in ``preemption_quota.py``. ``docs/preemption.md`` has
the rules, and the laws that every plan keeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from muster_scheduler.core import preemption_quota, preemption_victims
from muster_scheduler.core.objects import Allocation, Application, Ask, Ledger, Node, Preempted, PreemptionRule, Queue
from muster_scheduler.core.ordering import queue_share, share_of
from muster_scheduler.core.preemption_cover import (
    Branch,
    Budget,
    Class,
    Entry,
    WholeGang,
    age_of,
    could_cover,
    cover,
    least_rank,
    rank_of,
    relief_of,
)
from muster_scheduler.core.preemption_victims import Known, goes_whole, known, may_go
from muster_scheduler.core.reasons import PreemptionNo
from muster_scheduler.core.resources import Shape, add, subtract

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

# Of the nodes where victims of the lowest class suffice, so many are compared: of thousands one is as good as the next.
NODES_COMPARED_MAX = 32
# Victims that are not on the node itself, to get below a limit, are chosen among so many.
ELSEWHERE_MAX = 256
# Victims beyond those that room asks for, which the RM may want gone too.
FURTHER_MAX = 16
# Steps of the search, for one node and in all: an allocation looked at, taken or undone is one. (100,000 are ≈ 0.1 s.)
STEPS_PER_NODE_MAX = 2_000
STEPS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Victim:
    """One allocation that is to go, and why."""

    allocation: Allocation
    why: Preempted


@dataclass(frozen=True, slots=True)
class Plan:
    """What makes room for an ask.

    :param node: where the ask will go; kept free for it.
    :param victims: in the order in which they are told.
    :param entries: the same, as they were chosen.
    :param further: who else could go from the node, should the RM want more gone than room asks for (seed 000,
        PreemptionPredicates); the first ones first, and so many of them from the first on as it wants.
    """

    node: Node | None
    victims: tuple[Victim, ...]
    entries: tuple[Entry, ...] = field(default=(), compare=False, repr=False)
    further: tuple[Entry, ...] = field(default=(), compare=False, repr=False)


def search(partition: Partition, ask: Ask, now_ns: int) -> Plan | PreemptionNo:
    """Victims for an ask that waits in its queue's order."""
    return _Search(partition, ask, now_ns).run()


def search_required_node(partition: Partition, ask: Ask, node: Node, now_ns: int) -> Plan | PreemptionNo:
    """Victims on the one node that the ask must run on (§2.14). Guarantees and ``preemption.policy`` do not count."""
    looked_up = known(partition)
    if _limits_over(ask, looked_up):
        return PreemptionNo.LIMIT
    # 1. What is short there.
    room = looked_up.underway.room(node, ask)
    short = [(number, value - room[number]) for number, value in ask.shape.items if value > room[number]]
    if not short:
        return PreemptionNo.NOT_NEEDED
    numbers, needs = [number for number, _ in short], [need for _, need in short]
    # 2. Whose going would help: plain ones, then opted-out ones, then originators; the least, youngest, smallest first.
    branch = Branch(ask.app.queue, PreemptionRule.REQUIRED_NODE, ask.priority)
    opted_out = partition.config.preemption.opted_out_last
    entries = []
    gangs: dict[Application, None] = {}
    for allocation in node.allocations.values():
        demand = allocation.demand
        if allocation.app is not None and goes_whole(allocation):
            gangs[allocation.app] = None
            continue
        if not may_go(allocation) or demand.priority > ask.priority or not (demand.allow_preempt_self or opted_out):
            continue
        gains = _gains(allocation, numbers, ())
        if any(gains):
            entries.append(Entry(allocation, branch, rank_of(allocation), gains, relief_of(gains, needs)))
    for app in gangs:
        gang = looked_up.gang(app)
        if gang is not None and gang.rank[2] <= ask.priority:
            gains = _gains_of_gang(gang, app, node, numbers, ())
            if any(gains):
                entries.append(Entry(gang.oldest, branch, gang.rank, gains, relief_of(gains, needs), gang))
    if not entries:
        return PreemptionNo.NO_VICTIMS
    entries.sort(key=lambda entry: _required_node_order(entry, node))
    # 3. As many as it takes.
    chosen = cover(entries, numbers, needs, Budget(STEPS_MAX), STEPS_MAX)
    if not chosen:
        return PreemptionNo.NOT_ENOUGH_VICTIMS
    others = [entry for entry in entries if entry not in chosen and entry.gang is None]
    return replace(_plan(ask, node, chosen, now_ns), further=tuple(others[:FURTHER_MAX]))


def search_quota(partition: Partition, queue: Queue, now_ns: int) -> tuple[Victim, ...]:
    """Victims in a queue that is above its max (§2.16)."""
    going = preemption_quota.choose(queue, opted_out=partition.config.preemption.opted_out_last)
    over_before, over_after = queue_share(queue), share_of(queue, _without(queue, going))
    victims = []
    after: dict[Queue, float] = {}
    for allocation in going:
        assert allocation.app is not None, f"{allocation} is foreign"
        leaf = allocation.app.queue
        if leaf not in after:
            after[leaf] = share_of(leaf, _without(leaf, going))
        shares = (queue_share(leaf), after[leaf], over_before, over_after)
        victims.append(Victim(allocation, Preempted(PreemptionRule.QUOTA, "", "", queue.path, now_ns, *shares)))
    return tuple(victims)


def with_further(plan: Plan, more: Collection[Allocation], ask: Ask, now_ns: int) -> Plan:
    """The plan with those of its further victims who must go too."""
    if not more or plan.node is None:
        return plan
    added = [entry for entry in plan.further if entry.allocation in more]
    return _plan(ask, plan.node, [*plan.entries, *added], now_ns)


def carried_out(partition: Partition, plan: Plan, ask: Ask, version: int) -> None:
    """Says that a plan, and nothing else, was carried out since the partition had that version.

    What was looked up for it goes on to be known, so that ten plans in a row do not look ten times at everything.
    """
    preemption_victims.go_on(partition, version, ask, [victim.allocation for victim in plan.victims])


class _Search:
    """One search for one ask."""

    def __init__(self, partition: Partition, ask: Ask, now_ns: int) -> None:
        self._partition = partition
        self._ask = ask
        self._now_ns = now_ns
        self._items = ask.shape.items
        self._known = known(partition)
        self._budget = Budget(STEPS_MAX)
        # What stands against the ask beside the nodes: (whose limit, type), and by how much.
        self._over = _limits_over(ask, self._known)
        self._branches: dict[Queue, Branch] = {}
        self._pools: dict[Node, _Pool | None] = {}
        self._least: dict[Node, Class | None] = {}  # no lower class makes room there; None: none does
        # What allocations give, by what is short on a node and what is needed in all; by shape and where they count.
        self._alike_on_nodes: dict[tuple[int, ...], dict[_Kind, tuple[tuple[int, ...], float]]] = {}
        self._elsewhere: list[Entry] = []
        self._padded: dict[int, list[Entry]] = {}  # the same, with no gains for so many needs on a node before theirs

    def run(self) -> Plan | PreemptionNo:
        """Tries GUARANTEE, then PRIORITY, then both together."""
        ask = self._ask
        # 1. What no victim can help.
        if not ask.app.counted and any(_is_full(ledger) for ledger in ask.app.ledgers):
            return PreemptionNo.LIMIT
        gang = ask.app.gang
        if gang is not None and gang.waits_for_room and self._partition.gangs.lacking_room(ask.app) is not None:
            return PreemptionNo.LIMIT
        node = self._node_with_room()
        if not self._over and (
            node is not None or self._known.underway.comes_free(ask, self._partition.nodes)  # no need to take more
        ):
            return PreemptionNo.NOT_NEEDED
        # 2. Asks that are alike were told already?
        alike = self._alike()
        no = self._known.noes.get(alike)
        if no is not None:
            return no
        # 3. Who may be a victim, by which rule.
        outside = preemption_victims.outside(ask, self._known.underway, (ledger for ledger, _ in self._over))
        inside = preemption_victims.inside(ask)
        by_guarantee = [branch for branch in outside.branches if self._classes(branch)]
        by_priority = [inside] if inside is not None and self._classes(inside) else []
        # 4. Rule by rule.
        stages = [by_guarantee, by_priority, [*by_guarantee, *by_priority] if by_guarantee and by_priority else []]
        for branches in stages:
            found = self._with(branches, node) if branches else None
            if found is not None:
                return found
        # 5. Why not.
        if self._budget.ran_out:
            no = PreemptionNo.TOO_MANY_WAYS
        elif by_guarantee or by_priority:
            no = self._why_not_enough([*by_guarantee, *by_priority])
        else:
            no = outside.no or PreemptionNo.NO_VICTIMS
        self._known.noes[alike] = no
        return no

    def _alike(self) -> tuple[object, ...]:
        ask, app = self._ask, self._ask.app
        if ask.refusals is not None:
            return (ask,)  # like no other: the RM refused nodes for it
        # (Its own application's allocations are no victims by PRIORITY: one that holds some is like no other.)
        own = app.app_id if app.allocations else ""
        return (app.queue, ask.shape, ask.priority, app.trackers, own, ask.reserved)

    def _node_with_room(self) -> Node | None:
        """Where the ask would go at once, if only limits stand against it."""
        reserved = self._ask.reserved
        if reserved is not None and self._may_use(reserved) and not self._short(reserved):
            return reserved
        if self._ask.refusals is not None:
            return next(iter(self._partition.index.fitting(self._items, self._ask.refusals.nodes, 1)), None)
        return self._partition.index.first_fit(self._items)

    def _may_use(self, node: Node) -> bool:
        refusals = self._ask.refusals
        if refusals is not None and node.node_id in refusals.nodes:
            return False
        return node.usable and (not node.reservations or self._ask.reserved is node)

    def _short(self, node: Node) -> list[tuple[int, int]]:
        room = self._known.underway.room(node, self._ask)
        return [(number, value - room[number]) for number, value in self._items if value > room[number]]

    def _classes(self, branch: Branch) -> list[Class]:
        most = branch.priority_max
        return sorted(rank for rank in self._known.victims(branch.leaf) if most is None or rank[2] <= most)

    def _why_not_enough(self, branches: list[Branch]) -> PreemptionNo:
        for ledger, _ in self._over:
            if not any(ledger in app.ledgers for branch in branches for app in branch.leaf.applications.values()):
                return PreemptionNo.LIMIT
        return PreemptionNo.NOT_ENOUGH_VICTIMS

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _with(self, branches: list[Branch], with_room: Node | None) -> Plan | None:
        """The best plan with victims from these leaves."""
        self._branches = {branch.leaf: branch for branch in branches}
        self._pools, self._least = {}, {}
        self._alike_on_nodes = {}
        found = _Best()
        if self._over:
            # A limit is in the way: victims may be anywhere, so that each node is looked at once, with all of them.
            self._elsewhere = self._relieving(branches)
            self._padded = {}
            for node in (with_room,) if with_room is not None else self._nodes(branches, None):
                self._compare(node, None, found)
                if found.enough(self._budget):
                    break
        else:
            # Class by class: the first that makes room somewhere is the lowest that can.
            for rank in sorted({rank for branch in branches for rank in self._classes(branch)}):
                for node in self._nodes(branches, rank):
                    self._compare(node, rank, found)
                    if found.enough(self._budget):
                        break
                if found.node is not None or self._budget.steps < 0:
                    break
        if found.node is None:
            return None
        plan = _plan(self._ask, found.node, found.entries, self._now_ns)
        if not self._partition.questions.preemption:
            return plan
        return replace(plan, further=self._further(found.node, found.entries))

    def _further(self, node: Node, chosen: list[Entry]) -> tuple[Entry, ...]:
        """Who else may go from the node, in order: with any number of them no queue falls under its guarantee."""
        going = {member for entry in chosen for member in entry.members}
        found: list[Entry] = []
        for allocation in node.allocations.values():
            branch = self._branches.get(allocation.app.queue) if allocation.app is not None else None
            alone = branch is not None and not (branch.whole_gangs and goes_whole(allocation))
            if branch is not None and alone and allocation not in going and self._is_victim(allocation, branch):
                found.append(Entry(allocation, branch, rank_of(allocation), (), 0.0))
        found.sort(key=_order)
        taken = list(chosen)
        for entry in chosen:
            entry.take(1)
        for entry in found:
            if len(taken) - len(chosen) < FURTHER_MAX and entry.branch.allows(entry.items):
                entry.take(1)
                taken.append(entry)
        for entry in taken:
            entry.take(-1)
        return tuple(taken[len(chosen) :])

    def _nodes(self, branches: list[Branch], rank: Class | None) -> Iterator[Node]:
        """The nodes that hold victims, of one class or any: the one kept for the ask first, then by id."""
        reserved, nodes = self._ask.reserved, self._partition.nodes
        if reserved is not None:
            yield reserved
        ids = heapq.merge(
            *(
                self._known.nodes(branch.leaf, each)
                for branch in branches
                for each in ((rank,) if rank is not None else self._classes(branch))
                if branch.priority_max is None or each[2] <= branch.priority_max
            )
        )
        last = ""
        for node_id in ids:
            if node_id != last:
                last = node_id
                node = nodes[node_id]
                if node is not reserved:
                    yield node

    def _compare(self, node: Node, rank: Class | None, found: _Best) -> None:
        """Takes the node when it is the best so far."""
        # 1. What it lacks, and whose going would help: the same for every class, so that a node is soon passed over.
        if rank is not None:
            if node not in self._least:
                self._least[node] = self._known.least(node, self._short(node))
            least = self._least[node]
            if least is None or rank < least:
                return
        if node in self._pools:
            pool = self._pools[node]
        else:
            self._pools[node] = pool = self._pool(node)
            if rank is not None:
                self._least[node] = pool.least if pool is not None else None
        if pool is None or (rank is not None and rank < pool.least):
            return
        entries, numbers, needs = pool.entries, pool.numbers, pool.needs
        if rank is not None:
            entries = [entry for entry in entries if entry.rank <= rank]
        # 2. Those that cover it; when any class may go, with the dearest left out as long as that does.
        chosen: list[Entry] = []
        while True:
            self._budget.spend(len(entries))
            tried = cover(entries, numbers, needs, self._budget, STEPS_PER_NODE_MAX)
            if not tried:
                break
            chosen = tried
            if rank is not None:
                break
            dearest = chosen[-1].rank
            entries = [entry for entry in entries if entry.rank < dearest]
        if chosen:
            found.take(self._cost(node, chosen), node, chosen)

    def _pool(self, node: Node) -> _Pool | None:
        """What is needed for the ask to go to the node, and those who could give it; None: they cannot."""
        if not self._may_use(node):
            return None
        short = self._short(node)
        numbers = [*(number for number, _ in short), *(number for _, number in self._over)]
        needs = [*(need for _, need in short), *self._over.values()]
        self._budget.spend(len(node.allocations))
        entries = self._entries(node, numbers[: len(short)], needs) if short else self._elsewhere
        least = least_rank(entries, needs)
        if least is None or not could_cover(entries, numbers, needs):
            return None
        return _Pool(entries, numbers, needs, least)

    def _entries(self, node: Node, short: list[int], needs: list[int]) -> list[Entry]:
        """The victims that may make the room that is short there, and those that bring limits down, in order."""
        entries = []
        ledgers = tuple(self._over)
        alike = self._alike_on_nodes.setdefault((*short, *needs), {})
        gangs: dict[Application, Branch] = {}
        for allocation in node.allocations.values():
            app = allocation.app
            branch = self._branches.get(app.queue) if app is not None else None
            if branch is None or app is None:
                continue
            if branch.whole_gangs and goes_whole(allocation):
                gangs[app] = branch
                continue
            if not self._is_victim(allocation, branch):
                continue
            shape = allocation.demand.shape
            key = (shape, branch, app if ledgers else None)
            seen = alike.get(key)
            if seen is None:
                gains = _gains(allocation, short, ledgers)
                alike[key] = seen = (gains, relief_of(gains, needs) if branch.allows(shape.items) else 0.0)
            if seen[1]:
                entries.append(Entry(allocation, branch, rank_of(allocation), *seen))
        for app, branch in gangs.items():
            gang = self._may_take(app, branch)
            if gang is not None:
                gains = _gains_of_gang(gang, app, node, short, ledgers)
                relief = relief_of(gains, needs)
                if relief:
                    entries.append(Entry(gang.oldest, branch, gang.rank, gains, relief, gang))
        padded = self._padded.get(len(short))
        if padded is None:
            none = (0,) * len(short)
            self._padded[len(short)] = padded = [entry.moved(none + entry.gains) for entry in self._elsewhere]
        entries += [entry for entry in padded if not entry.is_on(node)]
        entries.sort(key=_order)
        return entries

    def _is_victim(self, allocation: Allocation, branch: Branch) -> bool:
        most = branch.priority_max
        if not may_go(allocation) or (most is not None and allocation.demand.priority > most):
            return False
        if branch.rule is PreemptionRule.PRIORITY and allocation.app is self._ask.app:
            return False
        return allocation.demand.allow_preempt_self or self._partition.config.preemption.opted_out_last

    def _may_take(self, app: Application, branch: Branch) -> WholeGang | None:
        """The application's gang, where all of it may be a victim."""
        gang, most = self._known.gang(app), branch.priority_max
        if gang is None or (most is not None and gang.rank[2] > most):
            return None
        if branch.rule is PreemptionRule.PRIORITY and app is self._ask.app:
            return None
        return gang if branch.allows(gang.items) else None

    def _relieving(self, branches: list[Branch]) -> list[Entry]:
        """Those whose going brings the limits down that stand against the ask, in order."""
        ledgers, needs = tuple(self._over), list(self._over.values())
        found: list[Entry] = []
        for rank in sorted({rank for branch in branches for rank in self._classes(branch)}):
            best = heapq.nsmallest(ELSEWHERE_MAX - len(found), self._relieving_of(branches, rank, ledgers, needs))
            for relief, *_, allocation, branch, gains, gang in best:
                found.append(Entry(allocation, branch, rank, gains, -relief, gang))
            if len(found) >= ELSEWHERE_MAX:
                break
        return found

    def _relieving_of(
        self, branches: list[Branch], rank: Class, ledgers: tuple[tuple[Ledger, int], ...], needs: list[int]
    ) -> Iterator[tuple[Any, ...]]:
        """Those of one class: (relief with the sign turned, age, allocation, branch, gains, gang)."""
        for branch in branches:
            alike: dict[tuple[Application, Shape], tuple[tuple[int, ...], float]] = {}
            gangs: dict[Application, None] = {}
            for held in self._known.victims(branch.leaf).get(rank, {}).values():
                for allocation in held:
                    app = allocation.app
                    if app is None:
                        continue
                    if branch.whole_gangs and goes_whole(allocation):
                        gangs[app] = None
                        continue
                    if not self._is_victim(allocation, branch):
                        continue
                    shape = allocation.demand.shape
                    seen = alike.get((app, shape))
                    if seen is None:
                        gains = _gains(allocation, (), ledgers) if branch.allows(shape.items) else ()
                        alike[app, shape] = seen = (gains, -relief_of(gains, needs) if gains else 0.0)
                    if seen[1]:
                        yield (seen[1], *age_of(allocation), allocation, branch, seen[0], None)
            for app in gangs:
                gang = self._may_take(app, branch)
                if gang is not None:
                    gains = _gains_of_gang(gang, app, None, (), ledgers)
                    relief = relief_of(gains, needs)
                    if relief:
                        yield (-relief, *age_of(gang.oldest), gang.oldest, branch, gains, gang)

    def _cost(self, node: Node, victims: list[Entry]) -> tuple[Any, ...]:
        losses = [entry.losses for entry in victims]
        return (
            sum(opted_out for opted_out, _, _ in losses),
            sum(originators for _, originators, _ in losses),
            max(entry.rank[2] for entry in victims),
            sum(count for _, _, count in losses),
            node is not self._ask.reserved,
            -min(entry.allocation.created_ns for entry in victims),
            node.node_id,
        )


_Kind = tuple[Shape, Branch, Application | None]


class _Pool(NamedTuple):
    """Who may give what an ask needs on one node, in order.

    :ivar numbers: the types that are needed; ``needs``: how much of each.
    :ivar least: no class below it suffices.
    """

    entries: list[Entry]
    numbers: list[int]
    needs: list[int]
    least: Class


class _Best:
    """The best of the nodes compared so far."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.entries: list[Entry] = []
        self._cost: tuple[Any, ...] = ()
        self._compared = 0

    def take(self, cost: tuple[Any, ...], node: Node, entries: list[Entry]) -> None:
        """One more node that would do."""
        self._compared += 1
        if self.node is None or cost < self._cost:
            self._cost, self.node, self.entries = cost, node, entries

    def enough(self, budget: Budget) -> bool:
        """Whether to look no further."""
        return self._compared >= NODES_COMPARED_MAX or budget.steps < 0


def _order(entry: Entry) -> tuple[Any, ...]:
    return entry.order


def _limits_over(ask: Ask, looked_up: Known) -> dict[tuple[Ledger, int], int]:
    """(Whose limit, type) and by how much the ask would go over it."""
    found = {}
    for ledger in ask.app.bounds:
        for number, value in ask.shape.items:
            over = looked_up.underway.used(ledger, number) + value - ledger.limit[number]
            if over > 0:
                found[ledger, number] = over
    return found


def _is_full(ledger: Ledger) -> bool:
    return 0 < ledger.max_applications <= ledger.running_applications


def _gains(allocation: Allocation, numbers: Iterable[int], limits: tuple[tuple[Ledger, int], ...]) -> tuple[int, ...]:
    """What would come free of these types on its node, and of those below these limits."""
    items = dict(allocation.shape.items)
    gains = [items.get(number, 0) for number in numbers]
    if limits and allocation.app is not None:
        gains += _below_limits(items, allocation.app, limits)
    return tuple(gains)


def _gains_of_gang(
    gang: WholeGang,
    app: Application,
    node: Node | None,
    numbers: Iterable[int],
    limits: tuple[tuple[Ledger, int], ...],
) -> tuple[int, ...]:
    """The same of a gang that goes as a whole: of these types on one node, and below limits all that it holds."""
    there = gang.on_nodes.get(node.node_id, {}) if node is not None else {}
    gains = [there.get(number, 0) for number in numbers]
    if limits:
        gains += _below_limits(dict(gang.items), app, limits)
    return tuple(gains)


def _below_limits(items: dict[int, int], app: Application, limits: tuple[tuple[Ledger, int], ...]) -> list[int]:
    return [items.get(number, 0) if ledger in app.ledgers else 0 for ledger, number in limits]


def _required_node_order(entry: Entry, node: Node) -> tuple[Any, ...]:
    allocation = entry.allocation
    opted_out, originator, priority, together = entry.rank
    size = max(value / node.capacity[number] if node.capacity[number] else 1.0 for number, value in entry.items)
    return (
        originator,
        opted_out,
        priority,
        together,
        -allocation.created_ns,
        size,
        *age_of(allocation),
    )


# ---- plans ---------------------------------------------------------------------------------------------------------


def _plan(ask: Ask, node: Node, entries: list[Entry], now_ns: int) -> Plan:
    asker = ask.app.queue
    going = [(member, entry.branch.rule) for entry in entries for member in entry.members]
    freed = [member for member, _ in going]
    after: dict[Queue, float] = {}
    for member in freed:
        leaf = member.app.queue if member.app is not None else asker
        if leaf not in after:
            after[leaf] = share_of(leaf, _without(leaf, freed, ask if leaf is asker else None))
    asker_after = share_of(asker, _without(asker, freed, ask))
    victims = []
    for member, rule in going:
        leaf = member.app.queue if member.app is not None else asker
        why = Preempted(
            rule,
            ask.app.app_id,
            ask.key,
            asker.path,
            now_ns,
            queue_share(leaf),
            after[leaf],
            queue_share(asker),
            asker_after,
        )
        victims.append(Victim(member, why))
    return Plan(node, tuple(victims), tuple(entries))


def _without(queue: Queue, going: Iterable[Allocation], coming: Ask | None = None) -> list[int]:
    """What the queue would use without some, and with one more."""
    used = list(queue.allocated)
    for allocation in going:
        if allocation.app is not None and queue in allocation.app.ledgers:
            subtract(used, allocation.shape.items)
    if coming is not None:
        add(used, coming.shape.items)
    return used
