"""Who may be preempted for an ask (core-features §2.15), looked up once per state and kept while nothing changes.

Seen from an ask in leaf A, an allocation in leaf V may be a victim by the rule

* GUARANTEE, when V is inside A's fence and not disabled, the ask is within a guarantee that stands on the way from A up
  to the first queue that both share, and the priority, lent and fenced on the way up and down, is not above the ask's;
* PRIORITY, when V is A, the priority is below the ask's, and the application is another.

A guarantee of a queue is a promise to what is in it against what is outside. It says nothing between the queues inside;
so only guarantees below the first shared queue count, on both sides. Then nothing is taken to and fro: what gave up an
allocation keeps its guarantee in every type of it, and with it asked again would be above.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from muster_scheduler.core.objects import (
    Allocation,
    Application,
    Ask,
    Ledger,
    Node,
    PreemptionRule,
    Queue,
    in_order,
)
from muster_scheduler.core.preemption_cover import Branch, Class, Guard, Items, WholeGang, rank_of
from muster_scheduler.core.properties import PreemptionPolicy
from muster_scheduler.core.reasons import PreemptionNo
from muster_scheduler.core.resources import Shape, add

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition

POLICY = "preemption.policy"
# By class, the allocations on each node.
ByClass = dict[Class, dict[str, list[Allocation]]]


def may_go(allocation: Allocation) -> bool:
    """Whether the allocation can be told to go at all: it was not told yet, and has not one node to run on only.

    What a source outside of the RM runs goes when that says so.
    """
    return not (allocation.told or allocation.demand.required_node or allocation.source)


def goes_whole(allocation: Allocation) -> bool:
    """Whether the allocation goes with its whole gang only: it is a member, and its queue says so.

    Members are the placeholders, and what runs in their task groups; what has no task group is on its own.
    """
    app = allocation.app
    return (
        app is not None
        and app.gang is not None
        and bool(allocation.demand.task_group)
        and app.queue.policy.gangs_preempted_whole
    )


def whole_gang(app: Application, *, opted_out: bool) -> WholeGang | None:
    """The members of an application's gang that are there and were not told to go; None: they may not go as a whole.

    A gang goes as a whole when each of its members may. Not while a placeholder is leaving for a real ask, which would
    come when all others go.

    :param opted_out: those that opted out may go, too.
    """
    gang = app.gang
    if gang is None or gang.replacing:
        return None
    members = [held for held in app.allocations.values() if held.demand.task_group and not held.told]
    if not members:
        return None
    if not all(may_go(held) and (opted_out or held.demand.allow_preempt_self) for held in members):
        return None
    return WholeGang(tuple(in_order(members)))


def is_protected(leaf: Queue) -> bool:
    """Whether ``preemption.policy: disabled`` holds for the leaf: its own word, else that of the nearest queue above.

    (In the real core dynamic queues, which take no properties from their parents, are not protected by them.)
    """
    for queue in leaf.ancestry:
        if POLICY in queue.properties:
            return queue.policy.preemption is PreemptionPolicy.DISABLED
    return False


# ---- what is on its way --------------------------------------------------------------------------------------------


class Underway:
    """Earlier preemptions that are not through: who was told to go and is still there, and for which asks.

    :ivar asks: for which victims were chosen; they come to where room is kept for them.
    :ivar going: by node, those told to go.
    :ivar gangs: by node, what comes free there with gangs that were told to go as a whole, by type number.
    """

    def __init__(self, partition: Partition) -> None:
        self.asks: dict[Ask, None] = {}
        self.going: dict[str, list[Allocation]] = {}
        self.gangs: dict[str, dict[int, int]] = {}
        self._moves: dict[Ledger, dict[int, int]] = {}
        for allocation in _told_to_go(partition.root):
            why = allocation.preempted
            asking = partition.apps.get(why.app_id) if why is not None else None
            self.take(allocation, asking.asks.get(why.key) if why is not None and asking is not None else None)

    def take(self, allocation: Allocation, ask: Ask | None) -> None:
        """One more that was told to go, and the ask for which it was, if that still waits."""
        assert allocation.app is not None, f"{allocation} is foreign"
        self.going.setdefault(allocation.node_id, []).append(allocation)
        self._move(allocation.app, allocation.shape, -1)
        if goes_whole(allocation):
            there = self.gangs.setdefault(allocation.node_id, {})
            for number, value in allocation.shape.items:
                there[number] = there.get(number, 0) + value
        if ask is not None and ask.preempts and ask not in self.asks:
            self.asks[ask] = None
            self._move(ask.app, ask.shape, 1)

    def _move(self, app: Application, shape: Shape, sign: int) -> None:
        for ledger in app.ledgers:
            moves = self._moves.setdefault(ledger, {})
            for number, value in shape.items:
                moves[number] = moves.get(number, 0) + sign * value

    def used(self, ledger: Ledger, number: int) -> int:
        """What will count there, once those told to go are gone and those they make room for are placed."""
        moves = self._moves.get(ledger)
        return ledger.allocated[number] + (moves.get(number, 0) if moves else 0)

    def room(self, node: Node, ask: Ask) -> list[int]:
        """What the ask may count on at a node, with nobody told to go for it.

        What others were told to give up is theirs for whom they were told; unless the node is kept for this ask.
        """
        if ask.reserved is not node:
            return node.available
        room = list(node.available)
        for allocation in self.going.get(node.node_id, ()):
            for number, value in allocation.shape.items:
                room[number] += value
        for other in node.reservations:
            if other is not ask and other in self.asks:
                for number, value in other.shape.items:
                    room[number] -= value
        return room

    def comes_free(self, ask: Ask, nodes: dict[str, Node]) -> bool:
        """Whether a gang that was told to go leaves room for the ask somewhere.

        For whom it goes takes the node that is kept for that ask; the others, where the rest of it was, are for all.
        """
        for node_id, there in self.gangs.items():
            node = nodes.get(node_id)
            if node is not None and node.usable and not node.reservations:
                available = node.available
                if all(value <= available[number] + there.get(number, 0) for number, value in ask.shape.items):
                    return True
        return False


def _told_to_go(queue: Queue) -> Iterator[Allocation]:
    if not any(queue.preempting):
        return
    for app in queue.applications.values():
        for allocation in app.allocations.values():
            if allocation.preempted is not None:
                yield allocation
    for child in queue.children.values():
        yield from _told_to_go(child)


# ---- kept while nothing changes ------------------------------------------------------------------------------------


class Known:
    """What was looked up in one state of a partition: for the next ask that looks while nothing changed.

    :ivar noes: what asks that are alike were told.
    :ivar underway: earlier preemptions.
    """

    def __init__(self, partition: Partition) -> None:
        self.version = partition.version
        self._opted_out = partition.config.preemption.opted_out_last
        self._leaves: dict[Queue, ByClass] = {}
        self._nodes: dict[tuple[Queue, Class], list[str]] = {}
        self._sums: dict[Node, list[tuple[Class, list[int]]]] = {}
        self._gangs: dict[Application, WholeGang | None] = {}
        # The class under which a member is listed: an application may become a gang while nothing else changes.
        self._ranks: dict[Allocation, Class] = {}
        self.underway = Underway(partition)
        self.noes: dict[tuple[object, ...], PreemptionNo] = {}

    def victims(self, leaf: Queue) -> ByClass:
        """The leaf's allocations that may go, by class and node."""
        found = self._leaves.get(leaf)
        if found is None:
            self._leaves[leaf] = found = {}
            whole = leaf.policy.gangs_preempted_whole
            for app in leaf.applications.values():
                is_gang = whole and app.gang is not None
                for allocation in app.allocations.values():
                    if is_gang and allocation.demand.task_group:
                        continue
                    if may_go(allocation) and (self._opted_out or allocation.demand.allow_preempt_self):
                        nodes = found.setdefault(rank_of(allocation), {})
                        nodes.setdefault(allocation.node_id, []).append(allocation)
                gang = self.gang(app) if is_gang else None
                if gang is not None:
                    nodes = found.setdefault(gang.rank, {})
                    for member in gang.members:
                        self._ranks[member] = gang.rank
                        nodes.setdefault(member.node_id, []).append(member)
        return found

    def gang(self, app: Application) -> WholeGang | None:
        """The application's gang, where it may go as a whole; see :func:`whole_gang`."""
        if app not in self._gangs:
            self._gangs[app] = whole_gang(app, opted_out=self._opted_out)
        return self._gangs[app]

    def nodes(self, leaf: Queue, rank: Class) -> list[str]:
        """The ids of the nodes with the leaf's allocations of one class, in order."""
        found = self._nodes.get((leaf, rank))
        if found is None:
            self._nodes[leaf, rank] = found = sorted(self.victims(leaf).get(rank, ()))
        return found

    def forget(self, told: list[Allocation]) -> None:
        """These were told to go; of gangs that go as a whole, all members."""
        for allocation in told:
            app = allocation.app
            assert app is not None, f"{allocation} is foreign"
            self._gangs.pop(app, None)
            self._forget(allocation, app.queue, self._ranks.pop(allocation, rank_of(allocation)))

    def _forget(self, allocation: Allocation, leaf: Queue, rank: Class) -> None:
        node_id = allocation.node_id
        by_class = self._leaves.get(leaf)
        if by_class is None:
            return
        nodes = by_class[rank]
        nodes[node_id].remove(allocation)
        if not nodes[node_id]:
            del nodes[node_id]
            ids = self._nodes.get((leaf, rank))
            if ids is not None:
                del ids[bisect_left(ids, node_id)]
        if not nodes:
            del by_class[rank]

    def least(self, node: Node, short: list[tuple[int, int]]) -> Class | None:
        """The class up to which everything on the node must go at least, to make the room that is short there.

        Whose it is does not count here; None: all of it is not enough.
        """
        if any(node.allocated[number] < need for number, need in short):
            return None
        sums = self._sums.get(node)
        if sums is None:
            self._sums[node] = sums = _sums_of(node)
        for rank, together in sums:
            for number, need in short:
                if together[number] < need:
                    break
            else:
                return rank
        return None


def _sums_of(node: Node) -> list[tuple[Class, list[int]]]:
    """By class, what the node's allocations of this class and the lower ones hold together."""
    by_class: dict[Class, list[Items]] = {}
    for held in node.allocations.values():
        if may_go(held):
            by_class.setdefault(rank_of(held), []).append(held.demand.shape.items)
    together = [0] * len(node.available)
    sums = []
    for rank in sorted(by_class):
        for items in by_class[rank]:
            add(together, items)
        sums.append((rank, list(together)))
    return sums


_KNOWN: WeakKeyDictionary[Partition, Known] = WeakKeyDictionary()


def known(partition: Partition) -> Known:
    """What is known of the partition as it is now."""
    found = _KNOWN.get(partition)
    if found is None or found.version != partition.version:
        _KNOWN[partition] = found = Known(partition)
    return found


def go_on(partition: Partition, version: int, ask: Ask, told: list[Allocation]) -> None:
    """What is known stays known, but that these were told to go for the ask: nothing else changed since the version."""
    found = _KNOWN.get(partition)
    if found is not None and found.version == version:
        found.version = partition.version
        found.noes.clear()
        found.forget(told)
        for allocation in told:
            found.underway.take(allocation, ask)


# ---- by guarantee --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outside:
    """The leaves from which an ask may preempt by GUARANTEE; ``no``: why there are none, when that is known."""

    branches: list[Branch]
    no: PreemptionNo | None = None


def outside(ask: Ask, underway: Underway, over: Iterable[Ledger]) -> Outside:
    """Walks up to the fence, then down into every leaf within it that may give something up.

    :param over: whose limits stand against the ask: a queue among them is a fence, since only what counts in it helps.
    """
    leaf, items = ask.app.queue, ask.shape.items
    limits = set(over)
    # 1. Up: what the ask's priority is worth at each queue, and whether a guarantee below speaks for it.
    worth: dict[Queue, int] = {}
    entitled: dict[Queue, bool] = {}
    within: dict[int, bool] = {}
    priority = ask.priority
    for queue in leaf.ancestry:
        worth[queue] = priority
        entitled[queue] = bool(within) and all(within.values())
        if queue.parent is None or queue in limits or queue.policy.preemption is PreemptionPolicy.FENCE:
            break
        for number, value in items:
            least = (queue.guaranteed or {}).get(number)
            if least is not None and number not in within:
                within[number] = underway.used(queue, number) + value <= least
        policy = queue.policy
        priority = policy.priority_offset if policy.priority_fence else priority + policy.priority_offset
    fence = queue
    if fence is leaf:
        return Outside([], PreemptionNo.LIMIT if leaf in limits else PreemptionNo.FENCED)
    if not any(entitled.values()):
        return Outside([], PreemptionNo.OVER_GUARANTEE if within else PreemptionNo.NO_GUARANTEE)
    # 2. Down.
    branches: list[Branch] = []
    asked = {number for number, _ in items}
    for queue, speaks in entitled.items():
        if speaks:
            for child in queue.children.values():
                if child not in worth:
                    branches.extend(_below(child, worth[queue], asked, ()))
    return Outside(branches, None if branches else PreemptionNo.NO_VICTIMS)


def _below(queue: Queue, priority: int | None, asked: set[int], guards: tuple[Guard, ...]) -> Iterator[Branch]:
    """The leaves of a subtree that have something to give; ``priority`` None: a fence above them let all in."""
    allocated = queue.allocated
    if not any(allocated[number] > 0 for number in asked):
        return
    policy = queue.policy
    if priority is not None:
        if not policy.priority_fence:
            priority -= policy.priority_offset
        elif policy.priority_offset > priority:
            return
        else:
            priority = None
    if queue.guaranteed:
        preempting = queue.preempting
        spare = {number: allocated[number] - preempting[number] - least for number, least in queue.guaranteed.items()}
        if all(spare.get(number, 1) <= 0 for number in asked):
            return
        guards = (*guards, Guard(queue, spare))
    if not queue.leaf:
        for child in queue.children.values():
            yield from _below(child, priority, asked, guards)
    elif not is_protected(queue):
        yield Branch(queue, PreemptionRule.GUARANTEE, priority, guards)


# ---- by priority ---------------------------------------------------------------------------------------------------


def inside(ask: Ask) -> Branch | None:
    """The ask's own leaf, from which it may preempt lower priorities; None: it may not."""
    leaf = ask.app.queue
    if not leaf.policy.preempts_by_priority or is_protected(leaf):
        return None
    return Branch(leaf, PreemptionRule.PRIORITY, ask.priority - 1)
