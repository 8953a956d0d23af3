"""Pools: resource types that are on no node, such as licences (the event handler framework; docs/external-rules.md,
"Pools").

While a source names a pool of a type, the type is *pooled* in the partition. An ask for the type may run on any node,
as long as the pool has enough. So a pool is a limit of the root queue, and works like every limit: asks wait at the
limit and are woken there, promises to gangs count, preemption respects it, reasons name it. Each node has UNLIMITED of
a pooled type, so that no search has to know of pools.

The root queue holds the merged pools (its max, and the sources of it), and is recorded with them; a fold takes them
from there. The pools are merged again only when a source says something.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from muster_core.external.model import ExternalPool
from muster_core.external.problems import set_problem
from muster_core.external.reports import ReportedObject
from muster_core.model.outcome import Outcome
from muster_core.model.resources import TooManyTypes, fits

if TYPE_CHECKING:
    from muster_core.allocation.reservations import Reservations
    from muster_core.allocation.scheduling_queue import SchedulingQueue
    from muster_core.external.reports import PartitionReports
    from muster_core.gangs.gangs import Gangs
    from muster_core.model.application import Application
    from muster_core.model.partition_state import PartitionState
    from muster_core.nodes.node_accounting import NodeAccounting
    from muster_core.queues.limits import UserLimits
    from muster_core.queues.queue_tree import QueueTree


class Pools:
    """The pools of one partition."""

    def __init__(
        self,
        state: PartitionState,
        *,
        external_books: PartitionReports,
        limits: UserLimits,
        node_books: NodeAccounting,
        queue_tree: QueueTree,
        gangs: Gangs,
        reservations: Reservations,
        waiting: SchedulingQueue,
    ) -> None:
        self._state = state
        self._external_books = external_books
        self._limits = limits
        self._node_books = node_books
        self._queue_tree = queue_tree
        self._gangs = gangs
        self._reservations = reservations
        self._waiting = waiting

    def reconcile(self, out: Outcome, now_ns: int) -> None:
        """Gives the pools the merged values of the sources' present statements.

        A pool that shrinks below its use releases no allocation. When a pool is removed, its type counts on the nodes
        again.
        """
        state = self._state
        totals: dict[str, int] = {}
        sources: dict[str, None] = {}
        for name, entries in sorted(self._external_books.pools.items()):
            problem = ""
            try:
                state.types.reserve((name,))
                totals[name] = total_of(entries)
                sources.update((entry.source, None) for entry in entries)
            except TooManyTypes as error:
                problem = str(error)
            for entry in sorted(entries, key=lambda entry: entry.order):
                set_problem(entry, problem, out)
        root, maximum = state.root, dict(state.types.items(totals)) or None
        if (root.sources, root.external_maximum) == (tuple(sorted(sources)), maximum):
            return
        before = (root.guaranteed, root.maximum)
        apps = self._unbind() if bool(maximum) != bool(state.types.pooled) else []
        root.restrict(tuple(sorted(sources)), maximum)
        if self._take():
            for node in state.nodes.values():
                for ask in [ask for ask in node.reservations if not fits(ask.shape.items, node.capacity)]:
                    self._reservations.unreserve(ask, out, now_ns, "the ask waits for what only a pool had")
        for app in apps:
            self._limits.bind(app)
            self._gangs.add_promises(app)
        state.version += 1
        state.capacity_version += 1
        self._queue_tree.limit_events(root, *before, out, now_ns)
        self._waiting.wake_ledgers((root,))
        out.mark_changed(root, state.name)

    def fold(self) -> None:
        """Takes the pools from the root queue's record."""
        if self._take():
            for queue in self._state.queues.values():
                for app in self._state.apps_in(queue):
                    self._limits.bind(app)

    def _unbind(self) -> list[Application]:
        """Withdraws the promises to all gangs before the applications' limits change. Returns the applications."""
        state = self._state
        apps = [app for queue in state.queues.values() for app in state.apps_in(queue)]
        for app in apps:
            self._gangs.remove_promises(app)
        return apps

    def _take(self) -> bool:
        """Takes root's present pools. Returns whether the pooled types changed."""
        state = self._state
        maximum = state.root.external_maximum or {}
        pooled = frozenset(maximum)
        changed = pooled != state.types.pooled
        if changed:
            self._node_books.set_pooled_types(pooled)
        for number, total in maximum.items():
            state.capacity[number] = total
        state.capacity_moved = True
        return changed

    def block_reason(self, name: str) -> str:
        """Why no new ask can take from the pool of a type, even if the pool has room; "": an ask can."""
        entries = sorted(self._external_books.pools.get(name, ()), key=lambda entry: entry.order)
        if not entries or not _is_held(entries):
            return ""
        return "; ".join(_why(entry) for entry in entries)


def total_of(entries: Collection[ReportedObject]) -> int:
    """The total of a pool: the smallest amount that a source names, minus the use by others.

    The total is 0 if none of its sources can be relied on, and all of them drain.
    """
    if _is_held(entries):
        return 0
    pools = [entry.said for entry in entries if isinstance(entry.said, ExternalPool)]
    return max(min(pool.quantity for pool in pools) - sum(pool.occupied for pool in pools), 0)


def _is_held(entries: Collection[ReportedObject]) -> bool:
    return all(entry.holds for entry in entries)


def _why(entry: ReportedObject) -> str:
    owner = entry.owner
    if not owner.lost:
        return f"source {owner.source} cannot be relied on for it"
    return f"source {owner.source} is lost{': ' if owner.reason else ''}{owner.reason}"
