"""Filters in front of handlers (seed 004: FilteringResourceEventHandler, responsibleForNode).

Several schedulers may share a fleet: each takes the nodes that it is responsible for. Who that is follows from the
node's id and the schedulers' names alone (consistent hashing: a ring on which each scheduler has many points, and a
node belongs to the next one), so all of them agree without a word, and one more or less of n moves about an n-th of the
nodes. What is on a node follows its node. Of pools, of which none may count twice, each is somebody's as well; queues
and applications are everybody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b

from muster_scheduler.core.external import (
    ExternalAllocation,
    ExternalApplication,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
)
from muster_scheduler.external.contract import EventHandler
from muster_scheduler.external.registration import Predicate, Registration
from muster_scheduler.external.store import key_of

# Points of each scheduler on the ring: with so many the fullest has about a fifth more than its share.
POINTS = 256


def responsible_for_node(node_id: str, instance: str, instances: Collection[str]) -> bool:
    """Whether a scheduler is responsible for a node. Of ``instances`` exactly one is; their order does not matter.

    Raises ValueError: ``instance`` is none of them.
    """
    names = frozenset(instances)
    if instance not in names:
        raise ValueError(f"instance: {instance!r}, expected one of {', '.join(sorted(names)) or 'none'}")
    return _ring(names)(node_id) == instance


def responsible_for(instance: str, instances: Collection[str]) -> Predicate:
    """A predicate for what a scheduler is responsible for; see the module's words. Raises ValueError as above."""
    names = frozenset(instances)
    responsible_for_node("", instance, names)
    owner = _ring(names)

    def is_responsible(what: ExternalObject) -> bool:
        match what:
            case ExternalNode() | ExternalOffer() | ExternalAllocation():
                return owner(what.node_id) == instance
            case ExternalPool():
                return owner(f"pool/{what.resource_type}") == instance
            case ExternalQueue() | ExternalApplication():
                return True

    return is_responsible


def filtering(handler: EventHandler, predicate: Predicate) -> EventHandler:
    """A handler that sees only what the predicate is true for: what starts to be so is added, what stops is deleted."""
    return Filtering(handler, predicate)


class Filtering:
    """See :func:`filtering`. (An informer does so itself for its ``predicate``; this is for handlers in handlers.)"""

    def __init__(self, handler: EventHandler, predicate: Predicate) -> None:
        self._registration = Registration(handler, predicate, None, None)

    def _is(self, what: ExternalObject, *, initial: bool = False) -> None:
        self._registration.deliver(key_of(what), what, initial=initial)

    def _is_gone(self, what: ExternalObject) -> None:
        self._registration.deliver(key_of(what), None, initial=False)

    def add_node(self, node: ExternalNode, *, initial: bool) -> None:
        self._is(node, initial=initial)

    def update_node(self, old: ExternalNode, new: ExternalNode) -> None:
        self._is(new)

    def delete_node(self, node: ExternalNode) -> None:
        self._is_gone(node)

    def add_allocation(self, allocation: ExternalAllocation, *, initial: bool) -> None:
        self._is(allocation, initial=initial)

    def update_allocation(self, old: ExternalAllocation, new: ExternalAllocation) -> None:
        self._is(new)

    def delete_allocation(self, allocation: ExternalAllocation) -> None:
        self._is_gone(allocation)

    def add_queue(self, queue: ExternalQueue, *, initial: bool) -> None:
        self._is(queue, initial=initial)

    def update_queue(self, old: ExternalQueue, new: ExternalQueue) -> None:
        self._is(new)

    def delete_queue(self, queue: ExternalQueue) -> None:
        self._is_gone(queue)

    def add_application(self, application: ExternalApplication, *, initial: bool) -> None:
        self._is(application, initial=initial)

    def update_application(self, old: ExternalApplication, new: ExternalApplication) -> None:
        self._is(new)

    def delete_application(self, application: ExternalApplication) -> None:
        self._is_gone(application)

    def add_offer(self, offer: ExternalOffer, *, initial: bool) -> None:
        self._is(offer, initial=initial)

    def update_offer(self, old: ExternalOffer, new: ExternalOffer) -> None:
        self._is(new)

    def delete_offer(self, offer: ExternalOffer) -> None:
        self._is_gone(offer)

    def add_pool(self, pool: ExternalPool, *, initial: bool) -> None:
        self._is(pool, initial=initial)

    def update_pool(self, old: ExternalPool, new: ExternalPool) -> None:
        self._is(new)

    def delete_pool(self, pool: ExternalPool) -> None:
        self._is_gone(pool)


@lru_cache(maxsize=16)
def _ring(instances: frozenset[str]) -> Callable[[str], str]:
    """From a name to whose it is."""
    points = sorted((_place(f"{instance}#{number}"), instance) for instance in instances for number in range(POINTS))
    places, owners = [place for place, _ in points], [owner for _, owner in points]

    def owner(name: str) -> str:
        return owners[bisect_right(places, _place(name)) % len(owners)]

    return owner


def _place(name: str) -> int:
    """Where a name is on the ring: the same in every process, of every version."""
    return int.from_bytes(blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest())
