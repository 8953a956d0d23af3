"""A handler's place at an informer: what it was told, and what of that cannot be relied on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from muster_scheduler.core.external import ExternalKind, ExternalObject
from muster_scheduler.external.contract import EventHandler
from muster_scheduler.external.store import Key

Predicate = Callable[[ExternalObject], bool]
# (kind, id), and of an allocation perhaps what to believe of it.
Distrust = Callable[..., None]
Forget = Callable[[ExternalKind, str], None]
Ready = Callable[[], Awaitable[None]]


class Registration:
    """A handler's place at an informer.

    :ivar told: what the handler knows, by key: its last add or update that succeeded.
    :ivar doubtful: what was distrusted since.
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
        self.told: dict[Key, ExternalObject] = {}
        self.doubtful: dict[Key, None] = {}
        self.caught_up = True
        self.tasks: list[asyncio.Task[None]] = []
        self.resync_s = 0.0
        # (Any: each method takes what belongs to its kind.)
        self._calls: dict[ExternalKind, tuple[Any, Any, Any]] = {
            kind: (
                getattr(handler, f"add_{kind}"),
                getattr(handler, f"update_{kind}"),
                getattr(handler, f"delete_{kind}"),
            )
            for kind in ExternalKind
        }

    def deliver(self, key: Key, what: ExternalObject | None, *, initial: bool) -> None:
        """Tells the handler of an object's new state; None: it is gone. Raises what the handler raises."""
        told = self.told.get(key)
        if what is not None and (self.predicate is None or self.predicate(what)):
            if told is None:
                self._calls[key.kind][0](what, initial=initial)
            else:
                self._calls[key.kind][1](told, what)
            self.told[key] = what
            self.doubtful.pop(key, None)
        elif told is not None:
            # (Forgotten first: should the handler fail, there is nothing that could be tried again.)
            del self.told[key]
            self.doubtful.pop(key, None)
            self._calls[key.kind][2](told)
