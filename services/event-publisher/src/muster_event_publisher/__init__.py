"""The event publisher: reads ``si.events``, keeps the ring, answers REST, writes history. It changes nothing."""

from muster_event_publisher.app import PublisherService
from muster_event_publisher.settings import PublisherSettings

__all__ = ["PublisherService", "PublisherSettings"]
