"""JSON as YuniKorn's core writes it: Go's ``encoding/json``.

Compact, fields in the order of the message, empty fields left out, ``<``, ``>``, ``&``, U+2028 and U+2029 escaped,
the keys of maps sorted, a line feed at the end of a body.
"""

from __future__ import annotations

from muster_service.go_json import go_text

from muster_event_publisher.codec import Resource, decode

# Resources rendered before, by their bytes.
_KNOWN: dict[bytes, str] = {}
_KNOWN_MAX = 4096


def event_json(value: bytes) -> bytes:
    """One serialised event as a JSON object, without a line feed.

    Shape (core-features §2.18): type?, objectID?, message?, timestampNano?, eventChangeType?, eventChangeDetail?,
    referenceID?, resource (``{}`` when there is none).
    """
    record = decode(value)
    parts: list[str] = []
    add = parts.append
    if record.type:
        add(f'"type":{record.type}')
    if record.objectID:
        add(f'"objectID":{go_text(record.objectID)}')
    if record.message:
        add(f'"message":{go_text(record.message)}')
    if record.timestampNano:
        add(f'"timestampNano":{record.timestampNano}')
    if record.eventChangeType:
        add(f'"eventChangeType":{record.eventChangeType}')
    if record.eventChangeDetail:
        add(f'"eventChangeDetail":{record.eventChangeDetail}')
    if record.referenceID:
        add(f'"referenceID":{go_text(record.referenceID)}')
    add(_resource_json(record.resource))
    return f"{{{','.join(parts)}}}".encode()


def missing_json(event_id: int) -> bytes:
    """What holds the place of an event that the log does not have, so that positions in a batch remain ids."""
    return b'{"message":"event %d is missing from the log","resource":{}}' % event_id


def batch_json(instance: str, lowest: int, highest: int, events: list[bytes] | None) -> bytes:
    """The body of a batch answer; ``None`` or no events: ``"EventRecords":null``."""
    records = b"[%b]" % b",".join(events) if events else b"null"
    head = f'{{"InstanceUUID":{go_text(instance)},"LowestID":{lowest},"HighestID":{highest},"EventRecords":'
    return b"%b%b}\n" % (head.encode(), records)


def instance_line(instance: str) -> bytes:
    """A stream's first line, and the line that keeps it alive."""
    return f'{{"InstanceUUID":{go_text(instance)}}}\n'.encode()


def resync_line(instance: str, first_missing: int, next_id: int) -> bytes:
    """Says in a stream that events are missing, and which id the next event line has."""
    text = go_text(f"events {first_missing} to {next_id - 1} are missing from the log")
    return f'{{"InstanceUUID":{go_text(instance)},"NextID":{next_id},"message":{text}}}\n'.encode()


class EventLines:
    """Renders events of one RM by id, and remembers the newest ones rendered.

    Every stream asks for the same events at about the same time, so each is rendered once. Direct-mapped: memory is
    bounded by ``slots`` whatever ids are asked.
    """

    def __init__(self, slots: int) -> None:
        self._slots: list[tuple[int, bytes] | None] = [None] * max(slots, 1)

    def get(self, event_id: int, value: bytes | None) -> bytes:
        """The event's JSON without a line feed; a stand-in for one that is missing."""
        if value is None:
            return missing_json(event_id)
        place = event_id % len(self._slots)
        found = self._slots[place]
        if found is not None and found[0] == event_id:
            return found[1]
        line = event_json(value)
        self._slots[place] = (event_id, line)
        return line


def _resource_json(resource: Resource) -> str:
    # The same few resources come again and again; comparing bytes is cheaper than reading the map.
    key = resource.SerializeToString()
    if not key:
        return '"resource":{}'
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _KNOWN_MAX:
            _KNOWN.clear()
        quantities = resource.resources
        inner = ",".join([f"{go_text(name)}:{_quantity(quantities[name].value)}" for name in sorted(quantities)])
        known = _KNOWN[key] = f'"resource":{{"resources":{{{inner}}}}}' if inner else '"resource":{}'
    return known


def _quantity(value: int) -> str:
    return f'{{"value":{value}}}' if value else "{}"
