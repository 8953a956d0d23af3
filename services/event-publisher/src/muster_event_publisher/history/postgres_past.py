"""Reads the tables of :mod:`muster_event_publisher.history.postgres` backwards, for the search of ended objects.

One object's events are found by the indices of names. Lives are read from the tables of the days, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
from msgspec.json import decode

from muster_event_publisher.ended import events
from muster_event_publisher.ended.events import Kind, Mark, PastEvent, Selection, Stretch
from muster_event_publisher.event_decoding import EventRecord
from muster_event_publisher.history.postgres import DAY_NS, day_of, storable
from muster_event_publisher.history.rebuild import serialised
from muster_event_publisher.history.thread_yield import SLICE, pause

# Events of one statement.
_ROWS_MAX = 5_000
_COLUMNS = (
    "instance, id, timestamp_ns, type_number, change_type_number, change_detail_number, object_id, reference_id, "
    "message, resource, record"
)
# Days of one read.
_DAYS_MAX = 31
_NEWEST = Mark((1 << 63) - 1, (1 << 63) - 1)


async def past(
    connection: asyncpg.Connection, schema: str, rm_id: str, below: Mark | None, selection: Selection, most: int
) -> Stretch:
    """See :class:`muster_event_publisher.ended.events.PastReader`. Raises asyncpg's errors."""
    mark = below or _NEWEST
    where, text = _where(selection)
    if selection.name:
        rows = await _select(connection, schema, where, rm_id, mark, 0, text)
        past_events = await asyncio.to_thread(_decoded, rows)
        down_to = past_events[-1].mark if len(past_events) >= _ROWS_MAX else None
    else:
        rows, down_to = await _in_days(connection, schema, where, rm_id, mark, text)
        past_events = await asyncio.to_thread(_decoded, rows)
    if selection.kind is Kind.APPLICATION and past_events:
        past_events = _merged(
            past_events, await _companion_events(connection, schema, rm_id, past_events, bool(selection.name))
        )
    return Stretch(past_events, down_to, most)


def _where(selection: Selection) -> tuple[str, str]:
    """The condition of a selection, as :func:`muster_event_publisher.ended.events.chosen`; $5 is the text or name."""
    if selection.name:
        fits, text = "{} = $5", storable(selection.name)
    else:
        fits, text = "strpos(lower({}), $5) > 0", storable(selection.text.lower())
    own = f"type_number = {events.TYPES[selection.kind]} and {fits.format('object_id')}"
    if not selection.name:
        details = ", ".join(map(str, sorted(events.DETAILS[selection.kind])))
        makes_life = f"change_detail_number in ({details})"
        if selection.kind is Kind.APPLICATION:
            makes_life += f" or (change_type_number = {events.ADD} and change_detail_number = {events.ALLOCATED})"
        own += f" and ({makes_life})"
    if selection.kind is Kind.QUEUE:
        own += f" and change_type_number <> {events.NONE}"
    if selection.kind is not Kind.APPLICATION:
        return own, text
    joined = f"type_number = {events.QUEUE} and change_detail_number = {events.QUEUE_APP}"
    if selection.name:
        joined = f"({joined} or type_number = {events.USERGROUP} and change_detail_number = {events.APP_LINK})"
    return f"(({own}) or ({joined} and {fits.format('reference_id')}))", text


async def _in_days(
    connection: asyncpg.Connection, schema: str, where: str, rm_id: str, mark: Mark, text: str
) -> tuple[list[Any], Mark | None]:
    """The newest events before ``mark``, a day's table at a time; and down to where they were read."""
    tables = await connection.fetch(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = $1::text::regclass",
        f"{schema}.events",
    )
    days = sorted({day for (name,) in tables if (day := day_of(name)) is not None}, reverse=True)
    rows: list[Any] = []
    for number, day in enumerate(day for day in days if day * DAY_NS <= mark.at_ns):
        if len(rows) >= _ROWS_MAX or number >= _DAYS_MAX:
            return rows, Mark((day + 1) * DAY_NS, 0)
        of_day = await _select(connection, schema, where, rm_id, mark, max(day * DAY_NS, 0), text)
        rows += of_day
        if len(of_day) >= _ROWS_MAX:
            return rows, Mark(of_day[-1]["timestamp_ns"], of_day[-1]["id"])
        mark = Mark(day * DAY_NS, 0)
    return rows, None


async def _select(
    connection: asyncpg.Connection, schema: str, where: str, rm_id: str, mark: Mark, from_ns: int, text: str
) -> Sequence[Any]:
    rows: Sequence[Any] = await connection.fetch(
        f"""
        select {_COLUMNS} from {schema}.events
        where rm = $1 and timestamp_ns <= $2 and (timestamp_ns, id) < ($2, $3) and timestamp_ns >= $4 and {where}
        order by timestamp_ns desc, id desc limit {_ROWS_MAX}
        """,  # noqa: S608
        storable(rm_id),
        mark.at_ns,
        mark.id,
        from_ns,
        text,
    )
    return rows


async def _companion_events(
    connection: asyncpg.Connection, schema: str, rm_id: str, past_events: Sequence[PastEvent], nodes: bool
) -> list[PastEvent]:
    """The events of the nodes and users of the allocations; without nodes of each application's newest one only."""
    begun: Mapping[Any, PastEvent] = {
        (event.instance, event.id if nodes else event.record.objectID): event
        for event in reversed(past_events)
        if event.record.type == events.APP and event.record.eventChangeDetail == events.ALLOCATED
        and event.record.eventChangeType == events.ADD
    }  # fmt: skip
    chosen: list[PastEvent] = []
    by_instance: dict[str, list[PastEvent]] = {}
    for event in begun.values():
        by_instance.setdefault(event.instance, []).append(event)
    node = f"or e.type_number = {events.NODE} and e.change_detail_number = {events.NODE_ALLOCATED}" if nodes else ""
    for instance, of in by_instance.items():
        places = [event.id + step for event in of for step in range(1, events.COMPANION_EVENTS_MAX + 1)]
        times = [event.record.timestampNano for event in of for _ in range(events.COMPANION_EVENTS_MAX)]
        rows = await connection.fetch(
            f"""
            select {", ".join(f"e.{name.strip()}" for name in _COLUMNS.split(","))}
            from unnest($3::bigint[], $4::bigint[]) as place(id, at_ns)
            join {schema}.events e on e.instance = $2 and e.rm = $1 and e.id = place.id and e.timestamp_ns = place.at_ns
            where e.type_number = {events.USERGROUP} and e.change_detail_number = {events.USER_RESOURCE} {node}
            """,  # noqa: S608
            storable(rm_id),
            storable(instance),
            places,
            times,
        )
        chosen += await asyncio.to_thread(_decoded, rows)
    return chosen


def _merged(past_events: list[PastEvent], others: list[PastEvent]) -> list[PastEvent]:
    """All of them, newest first, each once."""
    every = {(event.instance, event.id): event for event in (*past_events, *others)}
    return sorted(every.values(), key=lambda event: event.mark, reverse=True)


def _decoded(rows: Sequence[Any]) -> list[PastEvent]:
    past_events = []
    for number, row in enumerate(rows, start=1):
        past_events.append(_event(row))
        if number % SLICE == 0:
            pause()
    return past_events


def _event(row: Any) -> PastEvent:
    instance, event_id, at_ns, kind, change, detail, name, reference, message, resource, record = row
    if record is None:
        record = serialised(at_ns, kind, change, detail, name, reference, message, list(decode(resource).items()))
    return PastEvent(instance, event_id, EventRecord.FromString(record))
