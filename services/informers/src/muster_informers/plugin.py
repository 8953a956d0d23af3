"""All names that a plugin's informer or event handler needs, in one place (docs/external.md).

This interface is stable: within a major version names are added, but none is renamed or removed. Other modules are
internal.
"""

from __future__ import annotations

from muster_bus.clock import Clock
from muster_core.external.errors import (
    BadDocument,
    CursorExpired,
    HandlerSettingsWrong,
    InformerSettingsWrong,
    NotTaken,
    SourceSaysNonsense,
    SourceUnavailable,
)
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    id_of,
    kind_of,
)

from muster_informers.contract import (
    ChangeType,
    Delta,
    Document,
    EventHandler,
    ExternalCache,
    HandlerContext,
    HandlerFactory,
    InformerContext,
    InformerFactory,
    Listing,
    ListWatch,
    OfferTaker,
    Options,
)
from muster_informers.documents import read_document
from muster_informers.filters import filtering, responsible_for_node
from muster_informers.handlers.base import BaseEventHandler
from muster_informers.handlers.default import DefaultEventHandler
from muster_informers.native_handler import NATIVE
from muster_informers.registry import register_event_handler, register_informer

__all__ = [
    "NATIVE",
    "BadDocument",
    "BaseEventHandler",
    "ChangeType",
    "Clock",
    "CursorExpired",
    "DefaultEventHandler",
    "Delta",
    "Document",
    "EventHandler",
    "ExternalAllocation",
    "ExternalApplication",
    "ExternalCache",
    "ExternalKind",
    "ExternalNode",
    "ExternalObject",
    "ExternalOffer",
    "ExternalPool",
    "ExternalQueue",
    "HandlerContext",
    "HandlerFactory",
    "HandlerSettingsWrong",
    "InformerContext",
    "InformerFactory",
    "InformerSettingsWrong",
    "ListWatch",
    "Listing",
    "NotTaken",
    "OfferTaker",
    "Options",
    "SourceSaysNonsense",
    "SourceUnavailable",
    "filtering",
    "id_of",
    "kind_of",
    "read_document",
    "register_event_handler",
    "register_informer",
    "responsible_for_node",
]
