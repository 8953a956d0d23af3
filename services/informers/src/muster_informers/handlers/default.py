"""The handler ``default``: all objects of the source count (the event handler framework: the default event handling
suite).
"""

from __future__ import annotations

from muster_core.external.errors import HandlerSettingsWrong
from muster_core.external.model import ExternalObject, id_of, kind_of

from muster_informers.contract import ExternalCache, HandlerContext
from muster_informers.handlers.base import AnyKindEventHandler


class DefaultEventHandler(AnyKindEventHandler):
    """Puts added and changed objects into the cache, and deletes removed ones.

    Also puts an update without a change: that is the purpose of a resync.
    """

    def __init__(self, cache: ExternalCache) -> None:
        self.cache = cache

    def added(self, obj: ExternalObject, *, initial: bool) -> None:
        self.cache.put(obj)

    def updated(self, old: ExternalObject, new: ExternalObject) -> None:
        self.cache.put(new)

    def deleted(self, obj: ExternalObject) -> None:
        self.cache.delete(kind_of(obj), id_of(obj))


def make_handler(cache: ExternalCache, config: bytes | None, context: HandlerContext) -> DefaultEventHandler:
    """The factory (entry point). It has no settings; the file of ``--config-path`` is for other handlers.

    Raises HandlerSettingsWrong: options of its own are given.
    """
    if context.options:
        names = ", ".join(f"handler_{name}" for name in sorted(context.options))
        raise HandlerSettingsWrong(f"{names}: the handler 'default' has no options, expected none that begin so")
    return DefaultEventHandler(cache)
