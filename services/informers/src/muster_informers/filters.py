"""Filters in front of handlers (the event handler framework: FilteringResourceEventHandler, responsibleForNode).

Several schedulers may share a fleet: each is responsible for some of the nodes. The node's id and the schedulers' names
decide (consistent hashing: each scheduler has many points on a ring, and a node belongs to the next point). So all
schedulers agree without communication, and a scheduler that joins or leaves n others moves about an n-th of the nodes.
Allocations and offers follow their node. Each pool belongs to one scheduler, too, because it must not count twice.
Queues and applications belong to all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b

from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
)

from muster_informers.contract import EventHandler
from muster_informers.handler_registration import HandlerRegistration, Predicate
from muster_informers.handlers.base import AnyKindEventHandler
from muster_informers.indexer import key_of

# Points of each scheduler on the ring: with so many, the largest share is about a fifth above the average.
POINTS = 256


def responsible_for_node(node_id: str, instance: str, instances: Collection[str]) -> bool:
    """Whether a scheduler is responsible for a node. Exactly one of ``instances`` is; their order does not matter.

    Raises ValueError: ``instance`` is none of them.
    """
    names = frozenset(instances)
    if instance not in names:
        raise ValueError(f"instance: {instance!r}, expected one of {', '.join(sorted(names)) or 'none'}")
    return owner_of_node(node_id, names) == instance


def owner_of_node(node_id: str, instances: Collection[str]) -> str:
    """Returns the scheduler that is responsible for a node."""
    return _ring(frozenset(instances))(node_id)


def responsible_for(instance: str, instances: Collection[str]) -> Predicate:
    """A predicate for the objects of one scheduler; see the module's docstring. Raises ValueError as above."""
    names = frozenset(instances)
    responsible_for_node("", instance, names)
    owner = _ring(names)

    def is_responsible(obj: ExternalObject) -> bool:
        match obj:
            case ExternalNode() | ExternalOffer() | ExternalAllocation():
                return owner(obj.node_id) == instance
            case ExternalPool():
                return owner(f"pool/{obj.resource_type}") == instance
            case ExternalQueue() | ExternalApplication():
                return True

    return is_responsible


def filtering(handler: EventHandler, predicate: Predicate) -> EventHandler:
    """A handler that sees only objects that pass the predicate: an object that starts to pass is added, one that stops
    is deleted.
    """
    return FilteringHandler(handler, predicate)


class FilteringHandler(AnyKindEventHandler):
    """See :func:`filtering`. (An informer filters by its own ``predicate``; this class is for handlers inside
    handlers.)
    """

    def __init__(self, handler: EventHandler, predicate: Predicate) -> None:
        self._registration = HandlerRegistration(handler, predicate, None, None)

    def added(self, obj: ExternalObject, *, initial: bool) -> None:
        self._registration.deliver(key_of(obj), obj, initial=initial)

    def updated(self, old: ExternalObject, new: ExternalObject) -> None:
        self._registration.deliver(key_of(new), new, initial=False)

    def deleted(self, obj: ExternalObject) -> None:
        self._registration.deliver(key_of(obj), None, initial=False)


@lru_cache(maxsize=16)
def _ring(instances: frozenset[str]) -> Callable[[str], str]:
    """Returns the function from a name to its scheduler."""
    points = sorted(
        (_ring_point(f"{instance}#{number}"), instance) for instance in instances for number in range(POINTS)
    )
    places, owners = [point for point, _ in points], [owner for _, owner in points]

    def owner(name: str) -> str:
        return owners[bisect_right(places, _ring_point(name)) % len(owners)]

    return owner


def _ring_point(name: str) -> int:
    """The point of a name on the ring: the same in every process and every version."""
    return int.from_bytes(blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest())
