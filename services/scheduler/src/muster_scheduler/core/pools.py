"""Pools: types of resources that are on no node, as licences are (seed 004; docs/external-rules.md, "Pools").

While a source says that there is a pool of a type, the type is *pooled* in the partition: whoever asks for it may run
on any node, as long as the pool has enough. So a pool is a limit of the root queue, kept as all limits are: asks wait
there and are woken there, gangs' promises count, preemption sees it, reasons name it. On the side of the nodes each has
UNLIMITED of a pooled type, so that no search has to know of pools.

What counts stands in the root queue (its max, and the sources that say so) and is recorded with it; a fold takes it
from there. It is merged anew only when a source says something.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from muster_scheduler.core.external import ExternalPool
from muster_scheduler.core.external_books import ExternalEntry
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.resources import TooManyTypes, fits

if TYPE_CHECKING:
    from muster_scheduler.core.objects import Application
    from muster_scheduler.core.partition import Partition


class Pools:
    """The pools of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def settle(self, out: Outcome, now_ns: int) -> None:
        """Makes the pools what the sources say now.

        One that shrinks below what is used takes nothing back; one that goes leaves its type to the nodes.
        """
        partition = self._partition
        totals: dict[str, int] = {}
        sources: dict[str, None] = {}
        for name, entries in sorted(partition.external.books.pools.items()):
            problem = ""
            try:
                partition.types.reserve((name,))
                totals[name] = total_of(entries)
                sources.update((entry.source, None) for entry in entries)
            except TooManyTypes as error:
                problem = str(error)
            for entry in sorted(entries, key=lambda each: each.order):
                partition.external.set_problem(entry, problem, out)
        root, maximum = partition.root, dict(partition.types.items(totals)) or None
        if (root.sources, root.external_maximum) == (tuple(sorted(sources)), maximum):
            return
        before = (root.guaranteed, root.maximum)
        apps = self._unbind() if bool(maximum) != bool(partition.types.pooled) else []
        root.restrict(tuple(sorted(sources)), maximum)
        if self._take():
            for node in partition.nodes.values():
                for ask in [ask for ask in node.reservations if not fits(ask.shape.items, node.capacity)]:
                    partition.unreserve(ask, out, now_ns)  # it waits for what only a pool had
        for app in apps:
            partition.limits.bind(app)
            partition.gangs.promise(app)
        partition.version += 1
        partition.capacity_version += 1
        partition.queue_tree.limit_events(root, *before, out, now_ns)
        partition.waiting.stir((root,))
        out.touch(root, partition.name)

    def fold(self) -> None:
        """Takes what was recorded of the root queue."""
        if self._take():
            for queue in self._partition.queues.values():
                for app in queue.applications.values():
                    self._partition.limits.bind(app)

    def _unbind(self) -> list[Application]:
        """Everybody's limits are about to be others: what gangs are promised there is withdrawn."""
        partition = self._partition
        apps = [app for queue in partition.queues.values() for app in queue.applications.values()]
        for app in apps:
            partition.gangs.withdraw(app)
        return apps

    def _take(self) -> bool:
        """Takes the pools that root has now; says whether they are of other types than before."""
        partition = self._partition
        maximum = partition.root.external_maximum or {}
        pooled = frozenset(maximum)
        changed = pooled != partition.types.pooled
        if changed:
            partition.node_books.take_pools(pooled)
        for number, total in maximum.items():
            partition.capacity[number] = total
        partition.capacity_moved = True
        return changed

    def why_held(self, name: str) -> str:
        """Why nothing new takes from the pool of a type whatever it has; "": it does."""
        entries = sorted(self._partition.external.books.pools.get(name, ()), key=lambda each: each.order)
        if not entries or not _is_held(entries):
            return ""
        return "; ".join(_why(entry) for entry in entries)


def total_of(entries: Collection[ExternalEntry]) -> int:
    """What there is of a pool for all here: the smallest amount that is said, less what others use of it.

    Nothing, while none of those who speak of it can be relied on, and all of them drain.
    """
    if _is_held(entries):
        return 0
    said = [entry.said for entry in entries if isinstance(entry.said, ExternalPool)]
    return max(min(each.quantity for each in said) - sum(each.occupied for each in said), 0)


def _is_held(entries: Collection[ExternalEntry]) -> bool:
    return all(entry.holds for entry in entries)


def _why(entry: ExternalEntry) -> str:
    owner = entry.owner
    if not owner.lost:
        return f"source {owner.source} cannot be relied on for it"
    return f"source {owner.source} is lost{': ' if owner.reason else ''}{owner.reason}"
