"""Makes events from a store's columns: the opposite of ``columns.py``."""

from __future__ import annotations

from collections.abc import Iterable

from muster_event_publisher.event_decoding import EventRecord


def serialised(
    timestamp_ns: int,
    type_number: int,
    change_type_number: int,
    change_detail_number: int,
    object_id: str,
    reference_id: str,
    message: str,
    resource: Iterable[tuple[str, int]],
) -> bytes:
    """The event as si.v1.EventRecord, with the fields of the original, but not always the same bytes."""
    record = EventRecord(
        type=type_number,  # type: ignore[arg-type]
        objectID=object_id,
        message=message,
        timestampNano=timestamp_ns,
        eventChangeType=change_type_number,  # type: ignore[arg-type]
        eventChangeDetail=change_detail_number,  # type: ignore[arg-type]
        referenceID=reference_id,
    )
    quantities = record.resource.resources if resource else {}
    for name, value in resource:
        quantities[name].value = value
    return record.SerializeToString()
