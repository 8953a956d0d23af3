"""The search for victims of preemption, on a snapshot. The search changes nothing.

Each rule is a module in ``rules/``; ``registry.py`` has their order. ``victims.py`` finds possible victims,
and ``cover_search.py`` puts a set of victims together. ``docs/preemption.md`` describes the rules, and the laws
that every plan keeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.queue import Ledger, Queue
from muster_core.model.reasons import NoPreemptionReason
from muster_core.model.resources import Shape
from muster_core.preemption import registry
from muster_core.preemption import victims as victim_sets
from muster_core.preemption.cover_search import (
    STEPS_MAX,
    Class,
    SearchBudget,
    VictimLeaf,
    VictimUnit,
    WholeGang,
    age_of,
    could_cover,
    cover,
    least_rank,
    rank_of,
    relief_of,
)
from muster_core.preemption.plan import (
    FURTHER_MAX,
    Plan,
    Victim,
    gains_of,
    gains_of_gang,
    limits_over,
    plan_of,
)
from muster_core.preemption.victims import is_evictable, is_evicted_whole, victim_cache
from muster_core.queues.rank import may_use

if TYPE_CHECKING:
    from muster_core.external.reports import ReportedObject
    from muster_core.model.partition_state import PartitionState
    from muster_core.preemption.search_context import SearchContext

# The limit of compared nodes on which victims of the lowest class suffice: among thousands, one is as good as another.
NODES_COMPARED_MAX = 32
# To get below a limit, the search considers so many victims on other nodes.
ELSEWHERE_MAX = 256
# The steps of the search on one node; the whole search has ``STEPS_MAX``.
STEPS_PER_NODE_MAX = 2_000


def search(cluster: SearchContext, ask: Ask, now_ns: int) -> Plan | NoPreemptionReason:
    """Finds victims for an ask that waits in its queue's order."""
    return _Search(cluster, ask, now_ns).run()


def searches(state: PartitionState) -> int:
    """How many searches were made since something changed. Answers that were known do not count."""
    return victim_cache(state).searches


def search_required_node(state: PartitionState, ask: Ask, node: Node, now_ns: int) -> Plan | NoPreemptionReason:
    """Finds victims on the one node on which the ask must run."""
    first_no: NoPreemptionReason | None = None
    for rule in registry.required_node_rules():
        result = rule.plan(ask, node, victim_cache(state), now_ns)
        if not isinstance(result, NoPreemptionReason):
            return result
        first_no = first_no or result
    return first_no or NoPreemptionReason.NO_VICTIMS


def search_quota(state: PartitionState, queue: Queue, now_ns: int) -> tuple[Victim, ...]:
    """Finds victims in a queue that is above its max."""
    opted_out = state.config.preemption.opted_out_last
    for rule in registry.queue_rules():
        if victims := rule.cut(state, queue, now_ns, opted_out=opted_out):
            return victims
    return ()


def search_revoked(node: Node, lack: dict[int, int], entry: ReportedObject, now_ns: int) -> tuple[Victim, ...]:
    """Finds victims that do not fit on the node without an offer.

    :param lack: by type number, how much more is used on the node than the node has without the offer.
    """
    for rule in registry.offer_rules():
        if victims := rule.evict(node, lack, entry, now_ns):
            return victims
    return ()


def with_further(plan: Plan, more: Collection[Allocation], ask: Ask, now_ns: int) -> Plan:
    """Adds those of the plan's further victims that must be released, too."""
    if not more:
        return plan
    added = [entry for entry in plan.further if entry.allocation in more]
    return plan_of(ask, plan.node, [*plan.entries, *added], now_ns)


def carry_cache_over(state: PartitionState, plan: Plan, ask: Ask, version: int) -> None:
    """Records that the partition has changed since that version only by this plan.

    So the data of the search stay valid, and ten plans in a row do not read the whole partition ten times.
    """
    victim_sets.carry_over(state, version, ask, [victim.allocation for victim in plan.victims])


class _Search:
    """One search for one ask."""

    def __init__(self, cluster: SearchContext, ask: Ask, now_ns: int) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._ask = ask
        self._now_ns = now_ns
        self._items = ask.shape.items
        self._known = victim_cache(cluster.state)
        self._budget = SearchBudget(STEPS_MAX)
        # The limits against the ask: (ledger, type number), and by how much the ask exceeds them.
        self._over = limits_over(ask, self._known.underway)
        self._branches: dict[Queue, VictimLeaf] = {}
        self._pools: dict[Node, _NodeVictims | None] = {}
        self._claimed: dict[Node, None] = {}  # nodes that are kept for other asks
        self._least: dict[Node, Class | None] = {}  # by node, no lower class makes room there; None: no class does
        # The gains and relief of allocations that are alike, by what is short on the node and needed in all.
        self._alike_on_nodes: dict[tuple[int, ...], dict[_Kind, tuple[tuple[int, ...], float]]] = {}
        self._elsewhere: list[VictimUnit] = []
        # The same entries, by how many needs on the node come before theirs, to which they give nothing.
        self._padded: dict[int, list[VictimUnit]] = {}

    def run(self) -> Plan | NoPreemptionReason:
        """Tries each rule alone, in the order of the registry, then all rules together."""
        # 1. Cases in which no victim helps.
        ask = self._ask
        app = ask.app
        if not app.counted and not app.independent and any(ledger.is_full for ledger in app.ledgers):
            return NoPreemptionReason.LIMIT
        gang = ask.app.gang
        if gang is not None and gang.waits_for_room and self._cluster.room.blocking_limit(ask.app) is not None:
            return NoPreemptionReason.LIMIT
        node = self._node_with_room()
        if not self._over and (
            node is not None or self._known.underway.comes_free(ask, self._state.nodes)  # the room is there or will be
        ):
            return NoPreemptionReason.NOT_NEEDED
        # 2. The stored answer for asks that are alike.
        alike = self._alike()
        age = ask.age
        stored = self._known.noes.get(alike)
        # (Of asks that are alike, an older one may use nodes that are reserved against the younger one.)
        if stored is not None and stored[1] <= age:
            return stored[0]
        self._known.searches += 1
        # 3. The leaves from which each rule lets the ask take.
        over = [ledger for ledger, _ in self._over]
        reaches = [rule.reach(ask, self._known.underway, over) for rule in registry.ask_rules()]
        by_rule = [[branch for branch in reach.branches if self._classes(branch)] for reach in reaches]
        stages = [branches for branches in by_rule if branches]
        if len(stages) > 1:
            stages.append(_together(stages))
        # 4. Rule by rule, then all rules together.
        for branches in stages:
            plan = self._with(branches, node)
            if plan is not None:
                return plan
        # 5. The reason for no plan.
        if stages and not self._budget.ran_out:
            no = self._why_not_enough(stages[-1])
        elif self._budget.ran_out:
            no = NoPreemptionReason.TOO_MANY_WAYS
        else:
            no = next((reach.no for reach in reaches if reach.no is not None), NoPreemptionReason.NO_VICTIMS)
        self._known.noes[alike] = no, age
        return no

    def _alike(self) -> tuple[object, ...]:
        ask, app = self._ask, self._ask.app
        if ask.refusals is not None:
            return (ask,)  # like no other ask: the RM refused nodes for it
        # (By PRIORITY, the application's own allocations are no victims: an ask of one that holds lower priorities is
        # like no other.)
        single = app.lowest_held < ask.priority or (registry.looks_at_every_own() and app.allocations)
        own = app.app_id if single else ""
        return (app.queue, ask.shape, ask.priority, app.trackers, own, ask.reserved_node)

    def _node_with_room(self) -> Node | None:
        """The node for the ask if only limits stop it."""
        reserved = self._state.nodes.get(self._ask.reserved_node)
        if reserved is not None and self._may_use(reserved) and not self._short(reserved):
            return reserved
        index, refusals = self._cluster.node_books.index, self._ask.refusals
        if refusals is not None:
            match = next(iter(index.fitting(self._items, refusals.nodes, 1)), None)
        else:
            match = index.first_fit(self._items)
        if match is None:
            for node in self._state.reserved:  # the reservations of some may give way
                if not self._short(node) and self._may_use(node):
                    return node
        return match

    def _may_use(self, node: Node) -> bool:
        return self._is_open(node) and may_use(self._ask, node)

    def _is_open(self, node: Node) -> bool:
        refusals = self._ask.refusals
        return node.usable and (refusals is None or node.node_id not in refusals.nodes)

    def _short(self, node: Node) -> list[tuple[int, int]]:
        room = self._known.underway.room(node, self._ask)
        return [(number, value - room[number]) for number, value in self._items if value > room[number]]

    def _classes(self, branch: VictimLeaf) -> list[Class]:
        most = branch.priority_max
        if most is not None and min(branch.leaf.held_priorities, default=most + 1) > most:
            return []  # (looking up the leaf's allocations takes long)
        return sorted(rank for rank in self._known.victims(branch.leaf) if most is None or rank[2] <= most)

    def _why_not_enough(self, branches: list[VictimLeaf]) -> NoPreemptionReason:
        for ledger, _ in self._over:
            if not any(ledger in app.ledgers for branch in branches for app in self._state.apps_in(branch.leaf)):
                return NoPreemptionReason.LIMIT
        # Would a node do that is kept for another ask? (The branches are still those of the last stage.)
        for node in self._claimed:
            if not self._over and not self._short(node):
                return NoPreemptionReason.NODES_CLAIMED
            pool = self._pool(node)
            if pool is not None:
                self._budget.spend(len(pool.entries))
                if cover(pool.entries, pool.numbers, pool.needs, self._budget, STEPS_PER_NODE_MAX):
                    return NoPreemptionReason.NODES_CLAIMED
            if self._budget.steps < 0:
                break
        return NoPreemptionReason.TOO_MANY_WAYS if self._budget.ran_out else NoPreemptionReason.NOT_ENOUGH_VICTIMS

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _with(self, branches: list[VictimLeaf], with_room: Node | None) -> Plan | None:
        """Finds the best plan with victims from these leaves."""
        self._branches = {branch.leaf: branch for branch in branches}
        self._pools, self._least = {}, {}
        self._alike_on_nodes = {}
        best = _BestPlan()
        if self._over:
            # A limit is exceeded: victims may be anywhere. So the search looks at each node once, with victims of all
            # classes.
            self._elsewhere = self._relieving(branches)
            self._padded = {}
            for node in (with_room,) if with_room is not None else self._nodes(branches, None):
                self._compare(node, None, best)
                if best.enough(self._budget):
                    break
        else:
            # Class by class: the first class that makes room on some node is the lowest that can.
            for rank in sorted({rank for branch in branches for rank in self._classes(branch)}):
                for node in self._nodes(branches, rank):
                    self._compare(node, rank, best)
                    if best.enough(self._budget):
                        break
                if best.node is not None or self._budget.steps < 0:
                    break
        if best.node is None:
            return None
        plan = plan_of(self._ask, best.node, best.entries, self._now_ns)
        if not self._cluster.questions.preemption:
            return plan
        return replace(plan, further=self._further(best.node, best.entries))

    def _further(self, node: Node, chosen: list[VictimUnit]) -> tuple[VictimUnit, ...]:
        """Further allocations on the node that may be released, in order. No number of them takes a queue below its
        guarantee.
        """
        going = {member for entry in chosen for member in entry.members}
        candidates: list[VictimUnit] = []
        for allocation in node.allocations.values():
            branch = self._branches.get(allocation.app.queue) if allocation.app is not None else None
            alone = branch is not None and not (branch.whole_gangs and is_evicted_whole(allocation))
            if branch is not None and alone and allocation not in going and self._is_victim(allocation, branch):
                candidates.append(VictimUnit(allocation, branch, rank_of(allocation), (), 0.0))
        candidates.sort(key=_order)
        taken = list(chosen)
        for entry in chosen:
            entry.apply(1)
        for entry in candidates:
            if len(taken) - len(chosen) < FURTHER_MAX and entry.branch.allows(entry.items):
                entry.apply(1)
                taken.append(entry)
        for entry in taken:
            entry.apply(-1)
        return tuple(taken[len(chosen) :])

    def _nodes(self, branches: list[VictimLeaf], rank: Class | None) -> Iterator[Node]:
        """The nodes that hold victims, of one class or of any: the reserved node first, then by id."""
        nodes = self._state.nodes
        reserved = nodes.get(self._ask.reserved_node)
        if reserved is not None:
            yield reserved
        ids = heapq.merge(
            *(
                self._known.nodes(branch.leaf, victim_rank)
                for branch in branches
                for victim_rank in ((rank,) if rank is not None else self._classes(branch))
                if branch.priority_max is None or victim_rank[2] <= branch.priority_max
            )
        )
        last = ""
        for node_id in ids:
            if node_id != last:
                last = node_id
                node = nodes[node_id]
                if node is not reserved:
                    yield node

    def _compare(self, node: Node, rank: Class | None, best: _BestPlan) -> None:
        """Keeps the node if it is the best so far."""
        # 1. The node's shortages, and the victims that would help. They are the same for every class, so most nodes end
        #    here.
        if rank is not None:
            if node not in self._least:
                self._least[node] = self._known.least(node, self._short(node))
            least = self._least[node]
            if least is None or rank < least:
                return
        if node in self._pools:
            pool = self._pools[node]
        else:
            pool = None
            if self._may_use(node):
                pool = self._pool(node)
            elif self._is_open(node):
                self._claimed[node] = None
            self._pools[node] = pool
            if rank is not None:
                self._least[node] = pool.least if pool is not None else None
        if pool is None or (rank is not None and rank < pool.least):
            return
        entries, numbers, needs = pool.entries, pool.numbers, pool.needs
        if rank is not None:
            entries = [entry for entry in entries if entry.rank <= rank]
        # 2. Victims that cover the needs. If any class may go, those of the highest class are left out as long as that
        #    works.
        chosen: list[VictimUnit] = []
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
            best.take(self._cost(node, chosen), node, chosen)

    def _pool(self, node: Node) -> _NodeVictims | None:
        """The needs of the ask on the node, and the victims that could cover them; None: they cannot."""
        short = self._short(node)
        numbers = [*(number for number, _ in short), *(number for _, number in self._over)]
        needs = [*(need for _, need in short), *self._over.values()]
        self._budget.spend(len(node.allocations))
        entries = self._entries(node, numbers[: len(short)], needs) if short else self._elsewhere
        least = least_rank(entries, needs)
        if least is None or not could_cover(entries, numbers, needs):
            return None
        return _NodeVictims(entries, numbers, needs, least)

    def _entries(self, node: Node, short: list[int], needs: list[int]) -> list[VictimUnit]:
        """The victims that may free what is short on the node, and those that relieve the limits, in order."""
        entries = []
        ledgers = tuple(self._over)
        alike = self._alike_on_nodes.setdefault((*short, *needs), {})
        gangs: dict[Application, VictimLeaf] = {}
        for allocation in node.allocations.values():
            app = allocation.app
            branch = self._branches.get(app.queue) if app is not None else None
            if branch is None or app is None:
                continue
            if branch.whole_gangs and is_evicted_whole(allocation):
                gangs[app] = branch
                continue
            if not self._is_victim(allocation, branch):
                continue
            shape = allocation.demand.shape
            key = (shape, branch, app if ledgers else None)
            cached = alike.get(key)
            if cached is None:
                gains = gains_of(allocation, short, ledgers)
                alike[key] = cached = (gains, relief_of(gains, needs) if branch.allows(shape.items) else 0.0)
            if cached[1]:
                entries.append(VictimUnit(allocation, branch, rank_of(allocation), *cached))
        for app, branch in gangs.items():
            gang = self._may_take(app, branch)
            if gang is not None:
                gains = gains_of_gang(gang, app, node, short, ledgers)
                relief = relief_of(gains, needs)
                if relief:
                    entries.append(VictimUnit(gang.oldest, branch, gang.rank, gains, relief, gang))
        padded = self._padded.get(len(short))
        if padded is None:
            none = (0,) * len(short)
            self._padded[len(short)] = padded = [entry.moved(none + entry.gains) for entry in self._elsewhere]
        entries += [entry for entry in padded if not entry.is_on(node)]
        entries.sort(key=_order)
        return entries

    def _is_victim(self, allocation: Allocation, branch: VictimLeaf) -> bool:
        most = branch.priority_max
        if not is_evictable(allocation) or (most is not None and allocation.demand.priority > most):
            return False
        if allocation.app is branch.spared:
            return False
        return allocation.demand.allow_preempt_self or self._state.config.preemption.opted_out_last

    def _may_take(self, app: Application, branch: VictimLeaf) -> WholeGang | None:
        """The application's gang, if the whole gang may be a victim; else None."""
        gang, most = self._known.gang(app), branch.priority_max
        if gang is None or (most is not None and gang.rank[2] > most):
            return None
        if app is branch.spared:
            return None
        return gang if branch.allows(gang.items) else None

    def _relieving(self, branches: list[VictimLeaf]) -> list[VictimUnit]:
        """The victims whose release relieves the exceeded limits, in order."""
        ledgers, needs = tuple(self._over), list(self._over.values())
        units: list[VictimUnit] = []
        for rank in sorted({rank for branch in branches for rank in self._classes(branch)}):
            best = heapq.nsmallest(ELSEWHERE_MAX - len(units), self._relieving_of(branches, rank, ledgers, needs))
            for relief, *_, allocation, branch, gains, gang in best:
                units.append(VictimUnit(allocation, branch, rank, gains, -relief, gang))
            if len(units) >= ELSEWHERE_MAX:
                break
        return units

    def _relieving_of(
        self, branches: list[VictimLeaf], rank: Class, ledgers: tuple[tuple[Ledger, int], ...], needs: list[int]
    ) -> Iterator[tuple[Any, ...]]:
        """Yields those of one class: (negated relief, age, allocation, branch, gains, gang)."""
        for branch in branches:
            alike: dict[tuple[Application, Shape], tuple[tuple[int, ...], float]] = {}
            gangs: dict[Application, None] = {}
            for allocations in self._known.victims(branch.leaf).get(rank, {}).values():
                for allocation in allocations:
                    app = allocation.app
                    if app is None:
                        continue
                    if branch.whole_gangs and is_evicted_whole(allocation):
                        gangs[app] = None
                        continue
                    if not self._is_victim(allocation, branch):
                        continue
                    shape = allocation.demand.shape
                    cached = alike.get((app, shape))
                    if cached is None:
                        gains = gains_of(allocation, (), ledgers) if branch.allows(shape.items) else ()
                        alike[app, shape] = cached = (gains, -relief_of(gains, needs) if gains else 0.0)
                    if cached[1]:
                        yield (cached[1], *age_of(allocation), allocation, branch, cached[0], None)
            for app in gangs:
                gang = self._may_take(app, branch)
                if gang is not None:
                    gains = gains_of_gang(gang, app, None, (), ledgers)
                    relief = relief_of(gains, needs)
                    if relief:
                        yield (-relief, *age_of(gang.oldest), gang.oldest, branch, gains, gang)

    def _cost(self, node: Node, victims: list[VictimUnit]) -> tuple[Any, ...]:
        losses = [entry.losses for entry in victims]
        return (
            sum(opted_out for opted_out, _, _ in losses),
            sum(originators for _, originators, _ in losses),
            max(entry.rank[2] for entry in victims),
            sum(count for _, _, count in losses),
            node.node_id != self._ask.reserved_node,
            -min(entry.allocation.created_ns for entry in victims),
            node.node_id,
        )


_Kind = tuple[Shape, VictimLeaf, Application | None]


class _NodeVictims(NamedTuple):
    """The victims that can give what an ask needs on one node, in order.

    :ivar numbers: the numbers of the needed types; ``needs``: how much of each.
    :ivar least: the lowest class that can suffice.
    """

    entries: list[VictimUnit]
    numbers: list[int]
    needs: list[int]
    least: Class


class _BestPlan:
    """The best node of those compared so far."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.entries: list[VictimUnit] = []
        self._cost: tuple[Any, ...] = ()
        self._compared = 0

    def take(self, cost: tuple[Any, ...], node: Node, entries: list[VictimUnit]) -> None:
        """Compares one more node on which victims suffice."""
        self._compared += 1
        if self.node is None or cost < self._cost:
            self._cost, self.node, self.entries = cost, node, entries

    def enough(self, budget: SearchBudget) -> bool:
        """Whether the search may stop."""
        return self._compared >= NODES_COMPARED_MAX or budget.steps < 0


def _together(stages: list[list[VictimLeaf]]) -> list[VictimLeaf]:
    """The branches of all rules. If several rules reach a leaf, the first rule's branch counts."""
    by_leaf: dict[Queue, VictimLeaf] = {}
    for branch in (branch for branches in stages for branch in branches):
        by_leaf.setdefault(branch.leaf, branch)
    return list(by_leaf.values())


def _order(entry: VictimUnit) -> tuple[Any, ...]:
    return entry.order
