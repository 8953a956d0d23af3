"""``muster events``: new events (``watch``) and past ones (``batch``), for people and for programs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from muster_client.errors import AdminFailed, AdminRefused
from muster_client.events_client import Event, EventBatch, EventFilter, EventsClient, Place
from muster_runtime.terminal import print_json, print_lines

from muster_cli import numbers
from muster_cli.errors import CommandError, UsageError
from muster_cli.events_flags import EventSelection
from muster_cli.operator_client import access_to, refusal

# Columns wide enough for most values; a longer value moves the rest of its line to the right.
_COLUMNS = (("time (UTC)", 23), ("id", 8), ("what", 34), ("object", 28), ("reference", 28))
_AGO = re.compile(r"([0-9]+)(s|m|h|d)")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NS = 1_000_000_000


def batch(selection: EventSelection, count: int, timeout_s: float) -> int:
    """Prints up to ``count`` events. Returns the exit code.

    :param timeout_s: of each answer, which has at most 1,000 events.

    Raises UsageError for invalid flags, CommandError when the call is refused or not answered.
    """
    chosen, start = _chosen(selection), _start_position(selection)

    async def print_events(client: EventsClient) -> None:
        remaining, at, instance, printer = count, start, "", _Printer(selection.json)
        while remaining:
            event_batch = await client.batch(
                selection.rm,
                place=at,
                wanted=chosen,
                count=min(remaining, 1_000),
                instance=instance,
                timeout_s=timeout_s,
            )
            printer.print(event_batch)
            remaining -= len(event_batch.events)
            if event_batch.next_id >= event_batch.end_id:
                break
            at, instance = Place(id=event_batch.next_id), event_batch.instance

    return _run(selection, print_events)


def watch(selection: EventSelection, *, requests: bool, requests_only: bool) -> int:
    """Prints new events until interrupted. Raises as :func:`batch`."""
    chosen, start = _chosen(selection), _start_position(selection)

    async def print_events(client: EventsClient) -> None:
        printer = _Printer(selection.json)
        watched = client.watch(
            selection.rm,
            place=start,
            wanted=chosen,
            request_events=requests or requests_only,
            tracked_events=not requests_only,
        )
        async with aclosing(watched) as batches:
            async for event_batch in batches:
                printer.print(event_batch)

    return _run(selection, print_events)


# ---- what is asked ---------------------------------------------------------------------------------------------------


def _chosen(selection: EventSelection) -> EventFilter:
    try:
        return EventFilter(
            _upper(selection.type),
            _upper(selection.change),
            _upper(selection.detail),
            selection.object,
            selection.app,
            selection.queue,
        )
    except ValueError as error:
        flags = {"types": "--type", "change_types": "--change", "change_details": "--detail"}
        name, _, reason = str(error).partition(": ")
        raise UsageError(f"{flags.get(name, name)} {reason}") from error


def _upper(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.upper() for name in names)


def _start_position(selection: EventSelection) -> Place | None:
    since_ns = time_ns(selection.since) if selection.since else None
    if sum(option is not None for option in (selection.start, since_ns, selection.newest)) > 1:
        raise UsageError("--start, --since, --newest: expected one of them")
    if selection.start is None and since_ns is None and selection.newest is None:
        return None
    return Place(selection.start, since_ns, selection.newest)


def time_ns(text: str, flag: str = "--since") -> int:
    """Returns the time that a flag names, ns since the epoch. Raises UsageError."""
    if ago := _AGO.fullmatch(text):
        at = datetime.now(UTC) - timedelta(seconds=numbers.AGO_S.within(flag, float(ago[1]) * _UNITS_S[ago[2]], text))
    else:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            numbers.AGO_S.within(flag, None, text)
            raise
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, round(at.timestamp() * 1e6) * 1_000)


def _run(selection: EventSelection, call: Callable[[EventsClient], Awaitable[None]]) -> int:
    access = access_to(selection.gateway, selection.flags)

    async def connected() -> None:
        async with EventsClient(selection.gateway, access=access) as client:
            await call(client)

    try:
        asyncio.run(connected())
    except AdminRefused as error:
        raise refusal(selection.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{selection.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


# ---- printed ---------------------------------------------------------------------------------------------------------


class _Printer:
    def __init__(self, as_json: bool) -> None:
        self._as_json, self._is_header_printed, self._dropped = as_json, False, 0

    def print(self, event_batch: EventBatch) -> None:
        if not self._as_json and not self._is_header_printed:
            self._is_header_printed = True
            print_lines("  ".join(f"{name:<{width}}" for name, width in _COLUMNS) + "  resource, message")
        for first, last in event_batch.missing:
            self._note({"missing": [first, last]}, f"events {first} to {last} no longer exist")
        if event_batch.requests_dropped > self._dropped:
            count = event_batch.requests_dropped - self._dropped
            self._note({"requestEventsDropped": count}, f"{count} request events were dropped from their full store")
        self._dropped = event_batch.requests_dropped
        for event in event_batch.events:
            if self._as_json:
                print_json(event.as_json(), indent=None)
            else:
                print_lines(as_line(event))

    def _note(self, value: dict[str, Any], text: str) -> None:
        if self._as_json:
            print_json(value, indent=None)
        else:
            print_lines(f"muster: {text}", error=True)


def as_line(event: Event) -> str:
    """An event for people: columns, then the parts without a fixed width."""
    record = event.record
    seconds, rest_ns = divmod(record.timestampNano, _NS)
    at = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{rest_ns // 1_000_000:03}"
    values = (
        at,
        "-" if event.id is None else str(event.id),
        " ".join(name for name in event.names if name != "DETAILS_NONE"),
        _plain(record.objectID),
        _plain(record.referenceID) or "-",
    )
    columns = [f"{value:<{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True)]
    quantities = " ".join(f"{_plain(name)}={value}" for name, value in event.resource.items())
    return "  ".join((*columns, *filter(None, (quantities, _plain(record.message))))).rstrip()


def _plain(text: str) -> str:
    """An RM's text without characters that control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
