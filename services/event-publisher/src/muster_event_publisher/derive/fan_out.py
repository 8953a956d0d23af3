"""Routes each event to the topic of its kind. Pure.

The record keeps its key, value, headers and partition. A header ``origin`` adds its place on ``si.events``. A reader
of the derived topic can therefore drop repeats: by (instance, id), or, for shim events without an id, by the offset in
``origin``, which only grows.
"""

from __future__ import annotations

from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ORIGIN, EventKind, Topics

from muster_event_publisher.event_decoding import EventRecord

_KINDS: dict[int, EventKind] = {
    EventRecord.REQUEST: "request",
    EventRecord.APP: "app",
    EventRecord.NODE: "node",
    EventRecord.QUEUE: "queue",
    EventRecord.USERGROUP: "usergroup",
}


class FanOut:
    """The topics by kind of event."""

    def __init__(self, topics: Topics) -> None:
        self._topics = {number: topics.events_of(kind) for number, kind in _KINDS.items()}

    def route(self, record: Record, event: EventRecord) -> OutRecord | None:
        """The record for the topic of the event's kind; None for a kind without a topic (a newer interface's)."""
        topic = self._topics.get(event.type)
        if topic is None:
            return None
        origin = b"%b/%d/%d" % (record.topic.encode(), record.partition, record.offset)
        headers = (*record.headers, (HEADER_ORIGIN, origin))
        return OutRecord(topic, record.partition, record.key, record.value, headers)
