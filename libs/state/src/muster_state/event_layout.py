"""The bytes of an event: the tag before each field of ``si.v1.EventRecord``.

The scheduler writes the fields in the order of their numbers, as protobuf does, and omits zero and empty ones. Code
that reads the bytes of events (the publisher's ring, its JSON) takes the tags from here. Each tag is one byte.
"""

from __future__ import annotations

from muster_proto.si.v1 import si_pb2 as si

from muster_state.protobuf_wire import field, number_tag, tag


def _number(name: str) -> int:
    return number_tag(field(si.EventRecord, name))[0]


def _bytes(name: str) -> int:
    return tag(field(si.EventRecord, name))[0]


TYPE = _number("type")
OBJECT = _bytes("objectID")
MESSAGE = _bytes("message")
TIMESTAMP = _number("timestampNano")
CHANGE = _number("eventChangeType")
DETAIL = _number("eventChangeDetail")
REFERENCE = _bytes("referenceID")
RESOURCE = _bytes("resource")

# A present-day time stamp in nanoseconds takes nine bytes as a varint: 63 bits, which always fit an int64.
TIMESTAMP_BYTES = 9
