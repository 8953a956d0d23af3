"""JSON as YuniKorn's core writes it: Go's ``encoding/json``.

Compact, fields in the order of the message, empty fields left out, ``<``, ``>``, ``&``, U+2028 and U+2029 escaped,
the keys of maps sorted, a line feed at the end of a body.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TypeVar

from muster_runtime.go_json import go_text
from muster_state.event_layout import CHANGE, DETAIL, OBJECT, REFERENCE, RESOURCE, TIMESTAMP, TYPE

from muster_event_publisher.event_decoding import EventRecord, decode, decodes

T = TypeVar("T")

# A cache of rendered pieces of records by their bytes: the same objects, details and resources repeat.
_FRONTS: dict[bytes, bytes | None] = {}
_DETAILS: dict[bytes, bytes | None] = {}
_BACKS: dict[bytes, bytes | None] = {}
# Upper parts of time stamps: 34 s each.
_UPPER_TIMES: dict[bytes, int | None] = {}
_PIECES_MAX = 8_192
# A longer resource is not rendered from its bytes, and not cached.
_BACK_BYTES_MAX = 2 + 127
# Chunks of streams: some 60 KB each.
_CHUNKS_MAX = 16
# ASCII that JSON takes as it is.
_PLAIN = re.compile(rb"[ !#-%\'-;=?-\[\]-~]*").fullmatch


def event_json(value: bytes) -> bytes:
    """One serialised event as a JSON object, without a line feed.

    Shape: type?, objectID?, message?, timestampNano?, eventChangeType?, eventChangeDetail?,
    referenceID?, resource (``{}`` when there is none).
    """
    return _quick(value) or event_json_by_field(value)


def event_json_by_field(value: bytes) -> bytes:
    """The same for every record, slower: all fields are read."""
    record = decode(value)
    return b"{%b}" % ",".join([*_fields(record), _resource(record)]).encode()


def _quick(value: bytes) -> bytes | None:
    """The JSON of a record in the scheduler's usual form; None for any other form.

    The usual form has the fields in the order of their numbers: type, object (no message), time, change, detail,
    reference or none, resource or none. A part of a message that begins and ends at fields is itself a message, so a
    repeated piece is rendered once, as a message.
    """
    try:
        # 1. type and object, each with one byte of length
        position = 4 + value[3]
        piece = value[:position]
        front = _FRONTS[piece] if piece in _FRONTS else _remember(_FRONTS, piece, _front(piece))
        # 2. the time: a varint of nine bytes, of which only the lower five differ much
        upper_bytes = value[position + 6 : position + 10]
        upper = _UPPER_TIMES.get(upper_bytes) or _remember(_UPPER_TIMES, upper_bytes, _upper_time(upper_bytes))
        b0, b1, b2, b3, b4 = value[position + 1 : position + 6]
        if front is None or upper is None or value[position] != TIMESTAMP or not b0 & b1 & b2 & b3 & b4 & 0x80:
            return None
        time_ns = upper | (b4 & 127) << 28 | (b3 & 127) << 21 | (b2 & 127) << 14 | (b1 & 127) << 7 | b0 & 127
        # 3. change and detail
        position += 15
        piece = value[position - 5 : position]
        details = _DETAILS[piece] if piece in _DETAILS else _remember(_DETAILS, piece, _details(piece))
        # 4. the reference
        reference = b""
        if position < len(value) and value[position] == REFERENCE:
            begin = position + 2
            position = begin + value[position + 1]
            reference = value[begin:position]
            if value[begin - 1] > 127 or position > len(value) or not reference or not _PLAIN(reference):
                return None
        # 5. the resource, to the record's end
        piece = value[position:]
        if len(piece) > _BACK_BYTES_MAX:
            return None
        back = _BACKS[piece] if piece in _BACKS else _remember(_BACKS, piece, _back(piece))
        if details is None or back is None:
            return None
    except (IndexError, ValueError):
        return None  # shorter than a record of this form
    if reference:
        return b'%b,"timestampNano":%d%b,"referenceID":"%b",%b' % (front, time_ns, details, reference, back)
    return b'%b,"timestampNano":%d%b,%b' % (front, time_ns, details, back)


def _front(piece: bytes) -> bytes | None:
    """Type and object, as the JSON object's beginning."""
    if not (piece[0] == TYPE and 0 < piece[1] < 128 and piece[2] == OBJECT and 0 < piece[3] < 128):
        return None
    if len(piece) != 4 + piece[3] or not decodes(piece):
        return None
    return b"{%b" % ",".join(_fields(decode(piece))).encode()


def _upper_time(piece: bytes) -> int | None:
    if len(piece) != 4 or any(byte < 128 for byte in piece[:3]) or not 0 < piece[3] < 128:
        return None
    return sum((byte & 127) << (35 + 7 * index) for index, byte in enumerate(piece))


def _details(piece: bytes) -> bytes | None:
    """A change of one byte and a detail of two, with a comma before each."""
    if not (piece[0] == CHANGE and 0 < piece[1] < 128 and piece[2] == DETAIL and piece[3] > 127 and 0 < piece[4] < 128):
        return None
    return "".join([f",{field}" for field in _fields(decode(piece))]).encode()


def _back(piece: bytes) -> bytes | None:
    """One resource or none, as the JSON object's end."""
    if piece and not (len(piece) > 1 and piece[0] == RESOURCE and piece[1] < 128 and len(piece) == 2 + piece[1]):
        return None
    return b"%b}" % _resource(decode(piece)).encode() if decodes(piece) else None


def _remember(cache: dict[bytes, T], piece: bytes, rendered: T) -> T:
    if len(cache) >= _PIECES_MAX:
        cache.clear()
    cache[piece] = rendered
    return rendered


def _fields(record: EventRecord) -> list[str]:
    """All but the resource; those that are not zero or empty."""
    parts: list[str] = []
    if record.type:
        parts.append(f'"type":{record.type}')
    if record.objectID:
        parts.append(f'"objectID":{go_text(record.objectID)}')
    if record.message:
        parts.append(f'"message":{go_text(record.message)}')
    if record.timestampNano:
        parts.append(f'"timestampNano":{record.timestampNano}')
    if record.eventChangeType:
        parts.append(f'"eventChangeType":{record.eventChangeType}')
    if record.eventChangeDetail:
        parts.append(f'"eventChangeDetail":{record.eventChangeDetail}')
    if record.referenceID:
        parts.append(f'"referenceID":{go_text(record.referenceID)}')
    return parts


def missing_json(event_id: int) -> bytes:
    """The stand-in for an event that the log does not have, so that positions in a batch remain ids."""
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
    """The line of a stream that reports missing events and the id of the next event line."""
    text = go_text(f"events {first_missing} to {next_id - 1} are missing from the log")
    return f'{{"InstanceUUID":{go_text(instance)},"NextID":{next_id},"message":{text}}}\n'.encode()


class EventLines:
    """Renders events of one RM by id, and caches the newest renderings.

    All streams ask for the same events at about the same time, so each event is rendered once. The cache is
    direct-mapped: ``slots`` bounds its memory for any ids.
    """

    def __init__(self, slots: int) -> None:
        self._slots: list[tuple[int, bytes] | None] = [None] * max(slots, 1)
        self._chunks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def get(self, event_id: int, value: bytes | None) -> bytes:
        """The event's JSON without a line feed; a stand-in for a missing event."""
        if value is None:
            return missing_json(event_id)
        slot = event_id % len(self._slots)
        cached = self._slots[slot]
        if cached is not None and cached[0] == event_id:
            return cached[1]
        line = event_json(value)
        self._slots[slot] = (event_id, line)
        return line

    def chunk(self, start: int, end: int) -> bytes | None:
        """The stream lines of the events ``start`` to ``end - 1``, if another stream has just sent them."""
        return self._chunks.get((start, end))

    def store_chunk(self, start: int, end: int, body: bytes) -> None:
        """Remembers them for the streams that are at the same place."""
        self._chunks[start, end] = body
        if len(self._chunks) > _CHUNKS_MAX:
            self._chunks.popitem(last=False)


def _resource(record: EventRecord) -> str:
    quantities = record.resource.resources
    inner = ",".join([f"{go_text(name)}:{_quantity(quantities[name].value)}" for name in sorted(quantities)])
    return f'"resource":{{"resources":{{{inner}}}}}' if inner else '"resource":{}'


def _quantity(value: int) -> str:
    return f'{{"value":{value}}}' if value else "{}"
