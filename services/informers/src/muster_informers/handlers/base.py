"""Base classes of handlers: one does nothing, the other treats objects of all kinds alike."""

from __future__ import annotations

from typing import Any

from muster_core.external.model import ExternalKind, ExternalObject


class BaseEventHandler:
    """An :class:`~muster_informers.contract.EventHandler` whose methods do nothing."""

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    add_node = update_node = delete_node = _nothing
    add_allocation = update_allocation = delete_allocation = _nothing
    add_queue = update_queue = delete_queue = _nothing
    add_application = update_application = delete_application = _nothing
    add_offer = update_offer = delete_offer = _nothing
    add_pool = update_pool = delete_pool = _nothing


class AnyKindEventHandler(BaseEventHandler):
    """Three methods instead of eighteen: ``add_node``, ``add_allocation`` and the like call ``added``, and so on."""

    def added(self, obj: ExternalObject, *, initial: bool) -> None:
        """:param initial: the object came with the first listing."""

    def updated(self, old: ExternalObject, new: ExternalObject) -> None: ...

    def deleted(self, obj: ExternalObject) -> None: ...


def _add(handler: AnyKindEventHandler, obj: ExternalObject, *, initial: bool) -> None:
    handler.added(obj, initial=initial)


def _update(handler: AnyKindEventHandler, old: ExternalObject, new: ExternalObject) -> None:
    handler.updated(old, new)


def _delete(handler: AnyKindEventHandler, obj: ExternalObject) -> None:
    handler.deleted(obj)


for _kind in ExternalKind:
    for _verb in (_add, _update, _delete):
        setattr(AnyKindEventHandler, f"{_verb.__name__[1:]}_{_kind.value}", _verb)
