"""Serialised events as columns, for stores that want columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster_event_publisher.codec import CHANGE_DETAIL_NAMES, CHANGE_TYPE_NAMES, TYPE_NAMES, decode, enum_name


class EventColumns(NamedTuple):
    """One list per field, all of one length. Enums by name and by number; quantities as sorted (type, value) pairs."""

    timestamp_ns: list[int]
    type_name: list[str]
    type_number: list[int]
    change_type_name: list[str]
    change_type_number: list[int]
    change_detail_name: list[str]
    change_detail_number: list[int]
    object_id: list[str]
    reference_id: list[str]
    message: list[str]
    resource: list[list[tuple[str, int]]]


def columns_of(values: Sequence[bytes]) -> EventColumns:
    """Decodes the events. What does not decode becomes a row that says so (its other fields are empty)."""
    out = EventColumns([], [], [], [], [], [], [], [], [], [], [])
    for value in values:
        record = decode(value)
        kind, change, detail = record.type, record.eventChangeType, record.eventChangeDetail
        out.timestamp_ns.append(record.timestampNano)
        out.type_name.append(TYPE_NAMES.get(kind) or enum_name(TYPE_NAMES, kind))
        out.type_number.append(kind)
        out.change_type_name.append(CHANGE_TYPE_NAMES.get(change) or enum_name(CHANGE_TYPE_NAMES, change))
        out.change_type_number.append(change)
        out.change_detail_name.append(CHANGE_DETAIL_NAMES.get(detail) or enum_name(CHANGE_DETAIL_NAMES, detail))
        out.change_detail_number.append(detail)
        out.object_id.append(record.objectID)
        out.reference_id.append(record.referenceID)
        out.message.append(record.message)
        quantities = record.resource.resources
        out.resource.append(sorted([(name, quantities[name].value) for name in quantities]) if quantities else [])
    return out
