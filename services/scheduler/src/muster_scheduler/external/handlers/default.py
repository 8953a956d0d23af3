"""The handler ``default``: everything that the source says counts (seed 004: the default event handling suite)."""

from __future__ import annotations

from muster_scheduler.core.external import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
)
from muster_scheduler.external.contract import ExternalCache, HandlerContext
from muster_scheduler.external.errors import HandlerSettingsWrong


class DefaultEventHandler:
    """Puts what is added or changed into the cache, and takes out what is gone.

    An update is put again even if nothing changed: that is what a resync is for.
    """

    def __init__(self, cache: ExternalCache) -> None:
        self.cache = cache

    def add_node(self, node: ExternalNode, *, initial: bool) -> None:
        self.cache.put(node)

    def update_node(self, old: ExternalNode, new: ExternalNode) -> None:
        self.cache.put(new)

    def delete_node(self, node: ExternalNode) -> None:
        self.cache.delete(ExternalKind.NODE, node.node_id)

    def add_allocation(self, allocation: ExternalAllocation, *, initial: bool) -> None:
        self.cache.put(allocation)

    def update_allocation(self, old: ExternalAllocation, new: ExternalAllocation) -> None:
        self.cache.put(new)

    def delete_allocation(self, allocation: ExternalAllocation) -> None:
        self.cache.delete(ExternalKind.ALLOCATION, allocation.key)

    def add_queue(self, queue: ExternalQueue, *, initial: bool) -> None:
        self.cache.put(queue)

    def update_queue(self, old: ExternalQueue, new: ExternalQueue) -> None:
        self.cache.put(new)

    def delete_queue(self, queue: ExternalQueue) -> None:
        self.cache.delete(ExternalKind.QUEUE, queue.path)

    def add_application(self, application: ExternalApplication, *, initial: bool) -> None:
        self.cache.put(application)

    def update_application(self, old: ExternalApplication, new: ExternalApplication) -> None:
        self.cache.put(new)

    def delete_application(self, application: ExternalApplication) -> None:
        self.cache.delete(ExternalKind.APPLICATION, application.app_id)

    def add_offer(self, offer: ExternalOffer, *, initial: bool) -> None:
        self.cache.put(offer)

    def update_offer(self, old: ExternalOffer, new: ExternalOffer) -> None:
        self.cache.put(new)

    def delete_offer(self, offer: ExternalOffer) -> None:
        self.cache.delete(ExternalKind.OFFER, offer.offer_id)

    def add_pool(self, pool: ExternalPool, *, initial: bool) -> None:
        self.cache.put(pool)

    def update_pool(self, old: ExternalPool, new: ExternalPool) -> None:
        self.cache.put(new)

    def delete_pool(self, pool: ExternalPool) -> None:
        self.cache.delete(ExternalKind.POOL, pool.resource_type)


def make_handler(cache: ExternalCache, config: bytes | None, context: HandlerContext) -> DefaultEventHandler:
    """The factory (entry point). It has no settings of its own; what ``--config-path`` names is for others.

    Raises HandlerSettingsWrong: options of its own are given.
    """
    if context.options:
        names = ", ".join(f"handler_{name}" for name in sorted(context.options))
        raise HandlerSettingsWrong(f"{names}: the handler 'default' has no options, expected none that begin so")
    return DefaultEventHandler(cache)
