"""The resource manager's side of the scheduler interface, in asyncio: :class:`RmClient` and its helpers."""

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
