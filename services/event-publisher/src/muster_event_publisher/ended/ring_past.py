"""Reads a ring backwards, for the search of ended objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from muster_event_publisher.ended.events import Kind, Mark, PastEvent, Selection, chosen, companion_indices
from muster_event_publisher.event_decoding import EventRecord, decode
from muster_event_publisher.ring import EventRing

# Events that are looked at between two pauses for other tasks.
_SLICE = 256


async def ring_past(ring: EventRing, below: Mark | None, selection: Selection) -> AsyncIterator[list[PastEvent]]:
    """The ring's events from before ``below`` on backwards, a slice at a time; the last one is at its lowest id."""
    name = selection.name.encode()
    end, lowest = ring.next_id, ring.lowest
    while end > lowest:
        start = max(lowest, end - _SLICE)
        values = ring.slice(start, end - start)
        if len(values) < end - start:  # the ring has dropped them meanwhile: a store has them
            return
        marks_needed = below is not None or not name
        records: list[EventRecord | None] = [
            decode(value) if value is not None and (marks_needed or name in value) else None for value in values
        ]
        if any(records):
            yield _newest_first(ring, start, values, records, below, selection)
        end = start
        await asyncio.sleep(0)


def lowest_mark(ring: EventRing) -> Mark | None:
    """The place of the ring's oldest event; None: it has none."""
    for piece in ring.pieces(ring.lowest, len(ring)):
        for index, value in enumerate(piece.values()):
            if value is not None:
                return Mark(decode(value).timestampNano, piece.first_id + index)
    return None


def _newest_first(
    ring: EventRing,
    start: int,
    values: list[bytes | None],
    records: list[EventRecord | None],
    below: Mark | None,
    selection: Selection,
) -> list[PastEvent]:
    picked: set[int] = set()
    for index, record in enumerate(records):
        if record is None or (below is not None and (record.timestampNano, start + index) >= below):
            continue
        if chosen(selection, record):
            picked.add(index)
            if selection.kind is Kind.APPLICATION:
                picked.update(_companion_indices(ring, start, index, record, bool(selection.name)))
    past_events = []
    for index in sorted(picked, reverse=True):
        record = records[index] if index < len(records) else None
        if record is None:
            value = values[index] if index < len(values) else next(iter(ring.slice(start + index, 1)), None)
            record = decode(value) if value is not None else None
        if record is not None:
            past_events.append(PastEvent(ring.instance, start + index, record))
    return past_events


def _companion_indices(ring: EventRing, start: int, index: int, record: EventRecord, nodes: bool) -> list[int]:
    behind = [decode(value) if value is not None else None for value in ring.slice(start + index + 1, 3)]
    return [index + step for step in companion_indices([record, *behind], 0, nodes=nodes)]
