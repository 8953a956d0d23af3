"""Adds the state of its object to each event's JSON as ``state``, for history servers (docs/history-servers.md).

The scheduler writes events without the state, because it would slow every decision for few readers. The view knows it,
so only streams pay for it: the publisher asks the view once for all objects of a chunk of events, and again while the
view has not read the last of these events. The state is the object's when the event is sent, never from before the
event.

The state of an object that is gone is the last one seen. An event of an unknown object is sent without ``state``, and
counted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import httpx
import msgspec
import structlog
from muster_bus.clock import Clock
from muster_rest.shapes.objects import ObjectStateDao, ObjectStatesDao
from muster_rest.view_routes import OBJECT_STATES
from muster_runtime.go_json import go_text
from muster_runtime.service_client import ServiceClient
from starlette.types import ASGIApp

from muster_event_publisher import metrics
from muster_event_publisher.errors import ViewUnavailable
from muster_event_publisher.event_decoding import EventRecord, decode

log = structlog.get_logger(__name__)

_KINDS = {EventRecord.APP: "application", EventRecord.NODE: "node", EventRecord.QUEUE: "queue"}
# Bytes of the last states of objects that are gone.
_CACHE_BYTES_MAX = 32 * 1024 * 1024
# The view follows the log like this service and may be a moment behind: after this time it is asked again.
_TRY_AGAIN_S = 0.02
# The publisher waits _PATIENCE_S for a view that does not answer or stays behind, because a history server cannot ask
# for missed states later. Then it sends events with the states it has, and asks the view again after _AWAY_S.
_PATIENCE_S, _PAUSE_S, _AWAY_S = 30.0, 0.5, 5.0
_TIMEOUT_S = 10.0
# Chunks of streams with their states.
_CHUNKS_MAX = 16


class ObjectKey(NamedTuple):
    """An object as an event names it."""

    rm_id: str
    kind: str
    object_id: str


_ANSWERS = msgspec.json.Decoder(ObjectStatesDao)
_StatesByKey = dict[ObjectKey, list[ObjectStateDao]]


class EventSlice(NamedTuple):
    """Consecutive events of one RM.

    :param lines: as JSON objects, without line feeds.
    :param values: as the log has them; None: the line is no event.
    :param first_id: the id of the first event; the others follow without a gap.
    """

    rm_id: str
    instance: str
    first_id: int
    lines: Sequence[bytes]
    values: Sequence[bytes | None]


class ObjectStates:
    """Asks the view for states, and caches them.

    :param view: its address, or the view itself when it runs in this process.
    :param stopping: whether the publisher stops: then it does not wait for the view.
    """

    def __init__(self, view: str | ASGIApp, clock: Clock, stopping: Callable[[], bool] = lambda: False) -> None:
        self._clock, self._stopping = clock, stopping
        self._sibling = ServiceClient(view, _TIMEOUT_S)
        self._cached_states: OrderedDict[ObjectKey, ObjectStateDao] = OrderedDict()
        self._cached_bytes = 0
        self._chunks: OrderedDict[tuple[str, str, int, int], bytes] = OrderedDict()
        self._lock = asyncio.Lock()
        self._unavailable_until_s: dict[str, float] = {}

    async def close(self) -> None:
        """Ends the connections."""
        await self._sibling.close()

    async def chunk(self, events: EventSlice) -> bytes:
        """A stream's lines; streams at the same place share them. See :meth:`add`."""
        key = (events.rm_id, events.instance, events.first_id, len(events.lines))
        async with self._lock:
            body = self._chunks.get(key)
            if body is None:
                body = b"".join([line + b"\n" for line in await self._add(events)])
                self._chunks[key] = body
                if len(self._chunks) > _CHUNKS_MAX:
                    self._chunks.popitem(last=False)
        return body

    async def add(self, events: EventSlice) -> list[bytes]:
        """The lines with the states of their objects, if these are known."""
        async with self._lock:
            return await self._add(events)

    async def _add(self, events: EventSlice) -> list[bytes]:
        # 1. the objects of the events
        records = [decode(value) if value is not None else None for value in events.values]
        keys = [_key(events.rm_id, record) if record is not None else None for record in records]
        objects: dict[ObjectKey, dict[str, None]] = {}
        for record, key in zip(records, keys, strict=True):
            if record is not None and key is not None:
                references = objects.setdefault(key, {})
                if record.referenceID:
                    references[record.referenceID] = None
        if not objects:
            return list(events.lines)
        # 2. the view's states
        states_by_key = await self._find(objects, events)
        # 3. match each event with its own object, not with a later one of the same name
        full: list[bytes] = []
        for line, record, key in zip(events.lines, records, keys, strict=True):
            state = None
            if record is not None and key is not None:
                remembered = self._cached_states.get(key)
                candidates = (*states_by_key.get(key, ()), *([remembered] if remembered is not None else []))
                state = _matching_state(candidates, record)
                if state is None:
                    metrics.STATES_MISSING.inc()
            full.append(b'%b,"state":%b}' % (line[:-1], go_text(state.state).encode()) if state is not None else line)
        for key, states in states_by_key.items():
            if states:
                self._remember(key, states[0])
        return full

    async def _find(self, objects: Mapping[ObjectKey, Mapping[str, None]], events: EventSlice) -> _StatesByKey:
        """The view's states of the objects, once it has read all of the events."""
        since_s = self._clock.monotonic()
        states_by_key: _StatesByKey = {}
        behind = events.first_id + len(events.values)
        while since_s >= self._unavailable_until_s.get(events.rm_id, since_s):
            pause_s = _TRY_AGAIN_S
            try:
                answer = await self._request_states(events.rm_id, objects)
            except ViewUnavailable as error:
                problem, pause_s = str(error), _PAUSE_S
            else:
                states_by_key = dict(zip(objects, answer.states, strict=False))
                if answer.instance_uuid != events.instance or answer.next_event_id >= behind:
                    break
                problem = f"it has seen the events before {answer.next_event_id} only, wanted before {behind}"
            if self._stopping() or self._clock.monotonic() - since_s >= _PATIENCE_S:
                self._unavailable_until_s[events.rm_id] = self._clock.monotonic() + _AWAY_S
                log.warning("events go out without the states of their objects", view=problem)
                break
            await asyncio.sleep(pause_s)
        return states_by_key

    async def _request_states(self, rm_id: str, objects: Mapping[ObjectKey, Mapping[str, None]]) -> ObjectStatesDao:
        """Raises ViewUnavailable, also when the view does not know the RM (yet)."""
        body = [{"kind": key.kind, "id": key.object_id, "keys": [*keys]} for key, keys in objects.items()]
        try:
            answer = await self._sibling.client.post(
                OBJECT_STATES.path, params={"rm": rm_id}, content=msgspec.json.encode(body)
            )
            if answer.status_code != 200:
                raise ViewUnavailable(f"status {answer.status_code}")
            return _ANSWERS.decode(answer.content)
        except httpx.HTTPError as error:
            raise ViewUnavailable(type(error).__name__) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ViewUnavailable("its answer cannot be read") from error

    def _remember(self, key: ObjectKey, state: ObjectStateDao) -> None:
        before = self._cached_states.pop(key, None)
        self._cached_bytes += len(state.state) - (len(before.state) if before is not None else 0)
        self._cached_states[key] = state
        while self._cached_bytes > _CACHE_BYTES_MAX:
            _, oldest = self._cached_states.popitem(last=False)
            self._cached_bytes -= len(oldest.state)


def _matching_state(candidates: Sequence[ObjectStateDao], record: EventRecord) -> ObjectStateDao | None:
    """The object of an event; ``candidates``: the objects with its name, the latest first.

    An RM that registers again ends all old objects and creates the new ones at one time. So an object that is removed
    at the time when another one of its name was created is the older one, if it is known.
    """
    then_ns = record.timestampNano
    if record.eventChangeType == EventRecord.REMOVE:
        older = next((candidate for candidate in candidates if candidate.created_nano < then_ns), None)
        if older is not None:
            return older
    return next((candidate for candidate in candidates if candidate.created_nano <= then_ns), None)


def _key(rm_id: str, event: EventRecord) -> ObjectKey | None:
    kind = _KINDS.get(event.type)
    if kind is None or not event.objectID:
        return None
    if event.type == EventRecord.APP and event.eventChangeDetail == EventRecord.APP_REJECT:
        kind = "rejected"
    return ObjectKey(rm_id, kind, event.objectID)
