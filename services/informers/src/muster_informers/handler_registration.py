"""A handler's registration at an informer: the objects that the handler knows, and which of them are distrusted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from muster_core.external.model import ExternalKind, ExternalObject

from muster_informers.contract import EventHandler
from muster_informers.indexer import SourceKey

Predicate = Callable[[ExternalObject], bool]
# Called with (kind, id), and for an unreadable allocation perhaps with the state to assume.
Distrust = Callable[..., None]
Forget = Callable[[ExternalKind, str], None]
Ready = Callable[[], Awaitable[None]]


class HandlerRegistration:
    """The registration of a handler at an informer.

    :ivar delivered: the objects that the handler knows, by key: of each the last add or update that succeeded.
    :ivar doubtful: the keys that were distrusted since.
    """

    def __init__(
        self,
        handler: EventHandler,
        predicate: Predicate | None,
        distrust: Distrust | None,
        ready: Ready | None,
        forget: Forget | None = None,
    ) -> None:
        self.handler = handler
        self.predicate = predicate
        self.distrust = distrust
        self.forget = forget
        self.ready = ready
        self.delivered: dict[SourceKey, ExternalObject] = {}
        self.doubtful: dict[SourceKey, None] = {}
        self.caught_up = True
        self.tasks: list[asyncio.Task[None]] = []
        self.resync_s = 0.0
        # (Any: each method takes objects of its own kind.)
        self._calls: dict[ExternalKind, tuple[Any, Any, Any]] = {
            kind: (
                getattr(handler, f"add_{kind}"),
                getattr(handler, f"update_{kind}"),
                getattr(handler, f"delete_{kind}"),
            )
            for kind in ExternalKind
        }

    def deliver(self, key: SourceKey, obj: ExternalObject | None, *, initial: bool) -> None:
        """Gives the handler an object's new state; None: the object was removed. Raises the handler's exceptions."""
        previous = self.delivered.get(key)
        if obj is not None and (self.predicate is None or self.predicate(obj)):
            if previous is None:
                self._calls[key.kind][0](obj, initial=initial)
            else:
                self._calls[key.kind][1](previous, obj)
            self.delivered[key] = obj
            self.doubtful.pop(key, None)
        elif previous is not None:
            # (Forgotten first: if the handler fails, a deletion cannot be tried again.)
            del self.delivered[key]
            self.doubtful.pop(key, None)
            self._calls[key.kind][2](previous)
