"""The possible victims of a partition, looked up once per state and kept while nothing changes.

The rules (``rules/``) decide which of these may be victims for an ask.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from muster_core.config.properties import PreemptionPolicy
from muster_core.model.allocation_order import in_order
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.node import Node
from muster_core.model.queue import Ledger, Queue
from muster_core.model.reasons import NoPreemptionReason
from muster_core.model.resources import Shape, add
from muster_core.preemption.cover_search import Class, Items, WholeGang, rank_of

if TYPE_CHECKING:
    from muster_core.model.partition_state import PartitionState

POLICY = "preemption.policy"
# By class, the allocations on each node.
ByClass = dict[Class, dict[str, list[Allocation]]]


def is_evictable(allocation: Allocation) -> bool:
    """Whether the scheduler may release the allocation: it is not released yet, and it does not require one node.

    An allocation of an external source goes only when its source says so.
    """
    return not (allocation.releasing or allocation.demand.required_node or allocation.source)


def is_evicted_whole(allocation: Allocation) -> bool:
    """Whether the allocation goes only with its whole gang: it is a member, and its queue asks for whole gangs.

    A gang's members are its placeholders and the allocations in its task groups. An allocation without a task group
    goes alone.
    """
    app = allocation.app
    return (
        app is not None
        and app.gang is not None
        and bool(allocation.demand.task_group)
        and app.queue.policy.gangs_preempted_whole
    )


def whole_gang(app: Application, *, opted_out: bool, without: Container[Allocation] = ()) -> WholeGang | None:
    """The gang members that run and are not released yet; None: the gang may not go as a whole.

    A gang goes as a whole if each of its members may go. It may not go while a placeholder is leaving for a real ask:
    the ask would be allocated when all others go.

    :param opted_out: members that opted out may go, too.
    :param without: these members count as released already.
    """
    gang = app.gang
    if gang is None or gang.replacing:
        return None
    members = [
        member
        for member in app.allocations.values()
        if member.demand.task_group and not member.releasing and member not in without
    ]
    if not members:
        return None
    if not all(is_evictable(member) and (opted_out or member.demand.allow_preempt_self) for member in members):
        return None
    return WholeGang(tuple(in_order(members)))


def is_protected(leaf: Queue) -> bool:
    """Whether ``preemption.policy: disabled`` holds for the leaf. The leaf's own property counts, else that of the
    nearest queue above that has it.

    (In YuniKorn, dynamic queues take no properties from their parents, so a parent's property does not protect them.)
    """
    for queue in leaf.ancestry:
        if POLICY in queue.properties:
            return queue.policy.preemption is PreemptionPolicy.DISABLED
    return False


# ---- preemptions under way -----------------------------------------------------------------------------------------


class PendingPreemptions:
    """Earlier preemptions that are not finished: released allocations that still run, and the asks that they make room
    for.

    :ivar asks: asks with chosen victims; each goes to the node that is reserved for it.
    :ivar going: by node id, the released allocations.
    :ivar gangs: by node id, the amounts that whole released gangs free there, by type number.
    """

    def __init__(self, state: PartitionState) -> None:
        self.asks: dict[Ask, None] = {}
        self.going: dict[str, list[Allocation]] = {}
        self.gangs: dict[str, dict[int, int]] = {}
        self._moves: dict[Ledger, dict[int, int]] = {}
        for allocation in _releasing(state, state.root):
            record = allocation.preempted
            asking = state.apps.get(record.app_id) if record is not None else None
            self.add(allocation, asking.asks.get(record.key) if record is not None and asking is not None else None)

    def add(self, allocation: Allocation, ask: Ask | None) -> None:
        """Adds a released allocation, and the ask for which it was released if that ask still waits."""
        assert allocation.app is not None, f"{allocation} is foreign"
        self.going.setdefault(allocation.node_id, []).append(allocation)
        self._move(allocation.app, allocation.shape, -1)
        if is_evicted_whole(allocation):
            on_node = self.gangs.setdefault(allocation.node_id, {})
            for number, value in allocation.shape.items:
                on_node[number] = on_node.get(number, 0) + value
        if ask is not None and ask.preempts and ask not in self.asks:
            self.asks[ask] = None
            self._move(ask.app, ask.shape, 1)

    def _move(self, app: Application, shape: Shape, sign: int) -> None:
        for ledger in app.ledgers:
            moves = self._moves.setdefault(ledger, {})
            for number, value in shape.items:
                moves[number] = moves.get(number, 0) + sign * value

    def used(self, ledger: Ledger, number: int) -> int:
        """The amount that will count at the limit when the released allocations are gone and the asks for them are
        placed.
        """
        moves = self._moves.get(ledger)
        return ledger.allocated[number] + (moves.get(number, 0) if moves else 0)

    def room(self, node: Node, ask: Ask) -> list[int]:
        """The room that the ask may count on at a node if nothing more is released for it.

        The room of victims belongs to the asks for which they were released, unless the node is reserved for this ask.
        """
        if ask.reserved_node != node.node_id:
            return node.available
        room = list(node.available)
        for allocation in self.going.get(node.node_id, ()):
            for number, value in allocation.shape.items:
                room[number] += value
        for holder in node.reservations:
            if holder is not ask and holder in self.asks:
                for number, value in holder.shape.items:
                    room[number] -= value
        return room

    def comes_free(self, ask: Ask, nodes: dict[str, Node]) -> bool:
        """Whether a released gang leaves room for the ask on some node.

        The ask for which the gang goes takes the node that is reserved for it. The gang's room on other nodes is for
        all asks.
        """
        for node_id, freed in self.gangs.items():
            node = nodes.get(node_id)
            if node is not None and node.usable and not node.reservations:
                available = node.available
                if all(value <= available[number] + freed.get(number, 0) for number, value in ask.shape.items):
                    return True
        return False


def _releasing(state: PartitionState, queue: Queue) -> Iterator[Allocation]:
    if not any(queue.preempting):
        return
    for app in state.apps_in(queue):
        for allocation in app.allocations.values():
            if allocation.preempted is not None:
                yield allocation
    for child in queue.children.values():
        yield from _releasing(state, child)


# ---- kept while nothing changes ------------------------------------------------------------------------------------


class VictimCache:
    """The data that a search looked up in one state of a partition, for the next search while nothing changes.

    :ivar opted_out: allocations that opted out may go too, last.
    :ivar noes: the negative results of searches, by kind of ask, for asks that are alike; and how old the ask was.
    :ivar searches: how many searches there were.
    :ivar underway: earlier preemptions that are not finished.
    """

    def __init__(self, state: PartitionState) -> None:
        self._apps = state.apps  # (not the state, which refers to this object: no cycle keeps a past state alive)
        self.version = state.version
        self.opted_out = state.config.preemption.opted_out_last
        self._leaves: dict[Queue, ByClass] = {}
        self._nodes: dict[tuple[Queue, Class], list[str]] = {}
        self._sums: dict[Node, list[tuple[Class, list[int]]]] = {}
        self._gangs: dict[Application, WholeGang | None] = {}
        # The class under which a member is listed. An application may become a gang while nothing else changes.
        self._ranks: dict[Allocation, Class] = {}
        self.underway = PendingPreemptions(state)
        self.noes: dict[tuple[object, ...], tuple[NoPreemptionReason, tuple[int, int]]] = {}
        self.searches = 0

    def victims(self, leaf: Queue) -> ByClass:
        """The leaf's allocations that may go, by class and node id."""
        by_class = self._leaves.get(leaf)
        if by_class is None:
            self._leaves[leaf] = by_class = {}
            whole = leaf.policy.gangs_preempted_whole
            for app in (self._apps[app_id] for app_id in leaf.applications):
                is_gang = whole and app.gang is not None
                for allocation in app.allocations.values():
                    if is_gang and allocation.demand.task_group:
                        continue
                    if is_evictable(allocation) and (self.opted_out or allocation.demand.allow_preempt_self):
                        nodes = by_class.setdefault(rank_of(allocation), {})
                        nodes.setdefault(allocation.node_id, []).append(allocation)
                gang = self.gang(app) if is_gang else None
                if gang is not None:
                    nodes = by_class.setdefault(gang.rank, {})
                    for member in gang.members:
                        self._ranks[member] = gang.rank
                        nodes.setdefault(member.node_id, []).append(member)
        return by_class

    def gang(self, app: Application) -> WholeGang | None:
        """The application's gang, if it may go as a whole; see :func:`whole_gang`."""
        if app not in self._gangs:
            self._gangs[app] = whole_gang(app, opted_out=self.opted_out)
        return self._gangs[app]

    def nodes(self, leaf: Queue, rank: Class) -> list[str]:
        """The ids of the nodes with the leaf's allocations of one class, in order."""
        node_ids = self._nodes.get((leaf, rank))
        if node_ids is None:
            self._nodes[leaf, rank] = node_ids = sorted(self.victims(leaf).get(rank, ()))
        return node_ids

    def forget(self, released: list[Allocation]) -> None:
        """Forgets released allocations; of gangs that go as a whole, all members are in ``released``."""
        for allocation in released:
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
        """The class up to which everything on the node must go, at least, to free what is short there.

        All allocations count here, of any owner. None: all of them do not suffice.
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
    """By class, the amounts that the node's allocations of this class and lower classes hold together."""
    by_class: dict[Class, list[Items]] = {}
    for allocation in node.allocations.values():
        if is_evictable(allocation):
            by_class.setdefault(rank_of(allocation), []).append(allocation.demand.shape.items)
    together = [0] * len(node.available)
    sums = []
    for rank in sorted(by_class):
        for items in by_class[rank]:
            add(together, items)
        sums.append((rank, list(together)))
    return sums


def victim_cache(state: PartitionState) -> VictimCache:
    """The known data of the partition in its present state."""
    cache: VictimCache | None = state.known_victims
    if cache is None or cache.version != state.version:
        state.known_victims = cache = VictimCache(state)
    return cache


def carry_over(state: PartitionState, version: int, ask: Ask, released: list[Allocation]) -> None:
    """Keeps the known data, without the allocations that were released for the ask. Nothing else changed since the
    version.
    """
    cache: VictimCache | None = state.known_victims
    if cache is not None and cache.version == version:
        cache.version = state.version
        cache.noes.clear()
        cache.searches = 0
        cache.forget(released)
        for allocation in released:
            cache.underway.add(allocation, ask)
