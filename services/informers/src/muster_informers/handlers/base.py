"""Base classes of handlers: one does nothing, the other treats objects of all kinds alike."""

from __future__ import annotations

from muster_core.external.external import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
)


class BaseEventHandler:
    """An :class:`~muster_informers.contract.EventHandler` whose methods do nothing."""

    def add_node(self, node: ExternalNode, *, initial: bool) -> None: ...

    def update_node(self, old: ExternalNode, new: ExternalNode) -> None: ...

    def delete_node(self, node: ExternalNode) -> None: ...

    def add_allocation(self, allocation: ExternalAllocation, *, initial: bool) -> None: ...

    def update_allocation(self, old: ExternalAllocation, new: ExternalAllocation) -> None: ...

    def delete_allocation(self, allocation: ExternalAllocation) -> None: ...

    def add_queue(self, queue: ExternalQueue, *, initial: bool) -> None: ...

    def update_queue(self, old: ExternalQueue, new: ExternalQueue) -> None: ...

    def delete_queue(self, queue: ExternalQueue) -> None: ...

    def add_application(self, application: ExternalApplication, *, initial: bool) -> None: ...

    def update_application(self, old: ExternalApplication, new: ExternalApplication) -> None: ...

    def delete_application(self, application: ExternalApplication) -> None: ...

    def add_offer(self, offer: ExternalOffer, *, initial: bool) -> None: ...

    def update_offer(self, old: ExternalOffer, new: ExternalOffer) -> None: ...

    def delete_offer(self, offer: ExternalOffer) -> None: ...

    def add_pool(self, pool: ExternalPool, *, initial: bool) -> None: ...

    def update_pool(self, old: ExternalPool, new: ExternalPool) -> None: ...

    def delete_pool(self, pool: ExternalPool) -> None: ...


class AnyKindEventHandler(BaseEventHandler):
    """Three methods instead of eighteen: ``add_node``, ``add_allocation`` and the like call ``added``, and so on."""

    def added(self, what: ExternalObject, *, initial: bool) -> None:
        """:param initial: the object came with the first listing."""

    def updated(self, old: ExternalObject, new: ExternalObject) -> None: ...

    def deleted(self, what: ExternalObject) -> None: ...


def _add(handler: AnyKindEventHandler, what: ExternalObject, *, initial: bool) -> None:
    handler.added(what, initial=initial)


def _update(handler: AnyKindEventHandler, old: ExternalObject, new: ExternalObject) -> None:
    handler.updated(old, new)


def _delete(handler: AnyKindEventHandler, what: ExternalObject) -> None:
    handler.deleted(what)


for _kind in ExternalKind:
    for _verb in (_add, _update, _delete):
        setattr(AnyKindEventHandler, f"{_verb.__name__[1:]}_{_kind.value}", _verb)
