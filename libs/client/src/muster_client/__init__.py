"""The resource manager's side of the scheduler interface, in asyncio: :class:`RmClient` and its helpers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster_client.access import Access
    from muster_client.admin import AdminClient
    from muster_client.builders import (
        application,
        ask,
        confirmation,
        existing_allocation,
        node,
        previous_ask,
        previous_ask_release,
        quantities,
        release,
        removal,
        resource,
    )
    from muster_client.callbacks import Callbacks, Rejection
    from muster_client.client import RmClient
    from muster_client.events_client import EventFilter, EventsClient, Place
    from muster_client.settings import ClientSettings

__all__ = [
    "Access",
    "AdminClient",
    "Callbacks",
    "ClientSettings",
    "EventFilter",
    "EventsClient",
    "Place",
    "Rejection",
    "RmClient",
    "application",
    "ask",
    "confirmation",
    "existing_allocation",
    "node",
    "previous_ask",
    "previous_ask_release",
    "quantities",
    "release",
    "removal",
    "resource",
]

_MODULES = {
    "Access": "access",
    "AdminClient": "admin",
    "Callbacks": "callbacks",
    "ClientSettings": "settings",
    "EventFilter": "events_client",
    "EventsClient": "events_client",
    "Place": "events_client",
    "Rejection": "callbacks",
    "RmClient": "client",
}  # (the others: builders)


def __getattr__(name: str) -> Any:
    # Loaded at the first use: a command that asks over HTTP needs no gRPC, which takes a fifth of its start.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'builders')}"), name)
