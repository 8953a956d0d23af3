"""``/ws/v1/ended``: what ended, from the history. An endpoint of Muster's own (docs/ended.md).

Each parameter is checked by name. Errors have the same form as those of the events' endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from muster_rest.publisher_routes import ENDED
from muster_rest.shapes.ended import EndedAllocationDao, EndedDao, EndedObjectDao, EndedStateDao
from muster_rest.shapes.events import EventDao
from muster_runtime.default_rm import default_from_headers
from muster_runtime.read_scope import ReadScope, scope_from_headers
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from muster_event_publisher.ended.events import Kind, Mark, Selection
from muster_event_publisher.ended.lives import REJECTED, REMOVED, Life, allocations_of
from muster_event_publisher.ended.search import EndedSearch
from muster_event_publisher.errors import HttpError, OldEventsUnavailable, quote, rm_list_clause
from muster_event_publisher.event_json import event_json
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.rest import answer_json, get_endpoint, query_of, routes_of, run_until_disconnected

_PARAMETERS = tuple(each.name for each in ENDED.parameters)
_COUNT, _COUNT_MAX = 100, 1_000
_KINDS = ", ".join(Kind)


class _BatchQuery(NamedTuple):
    """A request that is understood."""

    rm_id: str
    selection: Selection
    below: Mark | None
    incarnations_max: int
    events: bool


class EndedRest:
    """The endpoint.

    :ivar routes: for the publisher's REST.
    """

    def __init__(self, source: EventSource, search: EndedSearch) -> None:
        self._source, self._search = source, search
        self.routes: list[BaseRoute] = routes_of({ENDED.handler: get_endpoint(self._ended)})

    async def _ended(self, request: Request) -> ASGIApp:
        query = self._parse_query(request)
        return await run_until_disconnected(request, lambda: self._answer(request, query))

    async def _answer(self, request: Request, query: _BatchQuery) -> ASGIApp:
        try:
            async with self._source.old_reads.batch_slot() as turns:
                ended = await self._search.search(
                    query.rm_id, query.selection, query.below, query.incarnations_max, turns
                )
        except OldEventsUnavailable as error:
            raise HttpError(503, str(error)) from error
        nothing = not ended.is_of_rm and not ended.incarnations and ended.next is None
        if query.rm_id and nothing and query.rm_id not in self._registered():
            raise HttpError(
                404, f'parameter "rm": no events of {quote(query.rm_id)}{rm_list_clause(self._registered())}'
            )
        answer = EndedDao(
            source="history",
            rm_id=query.rm_id,
            kind=query.selection.kind.value,
            ended=await asyncio.to_thread(_objects, ended.incarnations, query),
            stores=self._search.stores,
            next=ended.next.text if ended.next is not None else "",
            note=ended.note,
        )
        return await answer_json(request, msgspec.json.encode(answer) + b"\n")

    def _registered(self) -> list[str]:
        return self._source.settings.registered()

    def _parse_query(self, request: Request) -> _BatchQuery:
        """Raises RequestRefused."""
        query = query_of(request)
        for name in query:
            if name not in _PARAMETERS:
                raise HttpError(400, f"parameter {quote(name)} is unknown, expected {', '.join(_PARAMETERS)}")
        headers = request.headers.raw
        name, text = query.get("name", ""), query.get("q", "")
        if name and text:
            raise HttpError(400, 'parameters "name" and "q": expected one of them')
        selection = Selection(_kind(query.get("kind", "")), name, text)
        return _BatchQuery(
            self._rm(query.get("rm", ""), default_from_headers(headers), scope_from_headers(headers)),
            selection,
            _before(query.get("before", "")),
            _count(query.get("count", "")),
            _flag(query, "events"),
        )

    def _rm(self, rm_id: str, default_rm: str, reach: ReadScope) -> str:
        """The RM: a forgotten one, too, if the request names it. Raises RequestRefused."""
        if rm_id:
            if not reach.can_read_all_of(rm_id):
                visible = [
                    registered_id for registered_id in self._registered() if reach.can_read_all_of(registered_id)
                ]
                raise HttpError(404, f'parameter "rm": no events of {quote(rm_id)}{rm_list_clause(visible)}')
            return rm_id
        ring = self._source.choose(None, default_rm, reach)
        return ring.rm_id if ring is not None else ""


def _objects(lives: Iterable[Life], query: _BatchQuery) -> list[EndedObjectDao]:
    return [_object(life, query) for life in lives]


def _object(life: Life, query: _BatchQuery) -> EndedObjectDao:
    has_all = bool(query.selection.name)
    return EndedObjectDao(
        name=life.name,
        state=life.state or "Unknown",
        sentence=sentence(life),
        begin=life.begin_ns,
        end=life.end_ns,
        is_whole=life.is_whole,
        instance=life.instance,
        message=life.message,
        queue_name=life.queue,
        user=life.user,
        group=life.group,
        asks=life.asks if has_all else 0,
        allocations=life.allocations,
        applications=life.applications,
        resource=life.resource,
        guaranteed=life.guaranteed,
        state_log=[EndedStateDao(time=at_ns, state=state) for at_ns, state in reversed(life.states)],
        allocation_log=_allocations(life) if has_all else [],
        events=_events(life) if has_all and query.events else [],
    )


def _allocations(life: Life) -> list[EndedAllocationDao]:
    return [
        EndedAllocationDao(
            allocation_key=allocation.key,
            node_id=allocation.node,
            asked=allocation.requested_ns,
            begin=allocation.begin_ns,
            end=allocation.end_ns,
            ended=allocation.ended,
            message=allocation.message,
            resource=allocation.resource,
        )
        for allocation in allocations_of(life)
    ]


def _events(life: Life) -> list[EventDao]:
    return [
        msgspec.json.decode(event_json(event.record.SerializeToString()), type=EventDao)
        for event in reversed(life.events)
    ]


def sentence(life: Life) -> str:
    """A life in a sentence, for people."""
    subject, name = life.kind.value.capitalize(), _plain(life.name)
    since = f"from {_utc(life.begin_ns)} " if life.begin_ns else ""
    if life.end is None:
        newest = f", last {life.state}" if life.state else ""
        return f"{subject} {name}: the history has no end of it{newest}; the log may have lost it."
    until = _utc(life.end_ns)
    if life.kind is not Kind.APPLICATION:
        return f"{subject} {name} was there {since}until {until}, when it was removed (from the history)."
    if life.state == REJECTED:
        reason = f": {_plain(life.message).rstrip('.')}" if life.message else ""
        return f"{subject} {name} was rejected at {until} (from the history){reason}."
    how = "when it was removed" if life.state == REMOVED else f"and ended as {life.state}"
    queue = f"was in queue {_plain(life.queue)}" if life.queue else "was there"
    return f"{subject} {name} {queue} {since}until {until}, {how} (from the history)."


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _utc(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _kind(text: str) -> Kind:
    try:
        return Kind(text) if text else Kind.APPLICATION
    except ValueError:
        raise HttpError(400, f'parameter "kind": must be one of {_KINDS}, got {quote(text)}') from None


def _count(text: str) -> int:
    if not text:
        return _COUNT
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _COUNT_MAX:
        return int(text)
    raise HttpError(400, f'parameter "count": must be from 1 to {_COUNT_MAX}, got {quote(text)}')


def _before(text: str) -> Mark | None:
    try:
        return Mark.parse(text) if text else None
    except ValueError:
        raise HttpError(400, f'parameter "before": must be the next of an answer, got {quote(text)}') from None


def _flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "")
    if text not in ("", "true", "false"):
        raise HttpError(400, f'parameter "{name}": must be true or false, got {quote(text)}')
    return text == "true"
