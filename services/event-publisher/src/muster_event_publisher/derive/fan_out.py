"""Each event to the topic of its kind. Pure.

The record keeps its key, its value, its headers and its partition; the header ``origin`` says where it was on
``si.events``. So who reads such a topic can drop repeats: by (instance, id), or, for events of the shim that have no
id, by the origin's offset, which grows.
"""

from __future__ import annotations

from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ORIGIN, EventKind, Topics

from muster_event_publisher.codec import EventRecord

_KINDS: dict[int, EventKind] = {
    EventRecord.REQUEST: "request",
    EventRecord.APP: "app",
    EventRecord.NODE: "node",
    EventRecord.QUEUE: "queue",
    EventRecord.USERGROUP: "usergroup",
}


class FanOut:
    """Knows the topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = {number: topics.events_of(kind) for number, kind in _KINDS.items()}

    def route(self, record: Record, event: EventRecord) -> OutRecord | None:
        """The record for the topic of the event's kind; None for a kind that has none (a newer interface's)."""
        topic = self._topics.get(event.type)
        if topic is None:
            return None
        origin = b"%b/%d/%d" % (record.topic.encode(), record.partition, record.offset)
        headers = (*record.headers, (HEADER_ORIGIN, origin))
        return OutRecord(topic, record.partition, record.key, record.value, headers)
