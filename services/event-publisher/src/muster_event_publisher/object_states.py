"""What the object of an event is like, as ``state`` in the event's JSON: for history servers (docs/history-servers.md).

The scheduler writes events without it: it would cost every decision, for readers that there seldom are. The view knows
it, so who opens a stream pays: the view is asked once for all objects of a chunk of events. What it says is what an
object is like when the event goes out, never before the event.

An object that is gone is sent as it was last seen. What is not known at all goes out without ``state``: counted, and
no reason to keep other readers waiting.
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
from muster_service.go_json import go_text
from starlette.types import ASGIApp

from muster_event_publisher import metrics
from muster_event_publisher.codec import EventRecord, decode
from muster_event_publisher.errors import ViewSilent

log = structlog.get_logger(__name__)

PATH = "/ws/v1/object-states"
_KINDS = {EventRecord.APP: "application", EventRecord.NODE: "node", EventRecord.QUEUE: "queue"}
# Of objects that are gone: so many are remembered as they were last seen.
_KEPT_BYTES = 32 * 1024 * 1024
# The view follows the log, as this service does, and may be a moment behind: so often it is asked again for something
# that should be there, this far apart, while the event is so new.
_TRIES, _TRY_AGAIN_S, _NEW_NS = 5, 0.05, 5_000_000_000
# A view that does not answer is waited for, because a history server has no other way to what it missed; then events
# go out without state, and it is tried again so much later.
_PATIENCE_S, _PAUSE_S, _AWAY_S = 30.0, 0.5, 5.0
_TIMEOUT_S = 10.0
# Chunks of streams with their states.
_CHUNKS_KEPT = 16


class ObjectKey(NamedTuple):
    """An object as an event names it."""

    rm_id: str
    kind: str
    object_id: str


class _State(msgspec.Struct, rename="camel"):
    """As the view has it (there: ObjectStateDao)."""

    created_nano: int
    state: str


_States = msgspec.json.Decoder(list[_State | None])


class ObjectStates:
    """Asks the view, and remembers.

    :param view: its address, or the view itself where it is in this process.
    :param stopping: whether the publisher is: then nobody is waited for.
    """

    def __init__(self, view: str | ASGIApp, clock: Clock, stopping: Callable[[], bool] = lambda: False) -> None:
        self._view, self._clock, self._stopping = view, clock, stopping
        self._client: httpx.AsyncClient | None = None
        self._seen: OrderedDict[ObjectKey, _State] = OrderedDict()
        self._seen_bytes = 0
        self._chunks: OrderedDict[tuple[str, str, int, int], bytes] = OrderedDict()
        self._asking = asyncio.Lock()
        self._away_until_s = float("-inf")

    async def close(self) -> None:
        """Ends the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def chunk(
        self, rm_id: str, instance: str, start: int, lines: Sequence[bytes], values: Sequence[bytes | None]
    ) -> bytes:
        """A stream's lines from the id ``start`` on; streams at the same place share them. See :meth:`add`."""
        key = (rm_id, instance, start, len(lines))
        async with self._asking:
            body = self._chunks.get(key)
            if body is None:
                body = b"".join([line + b"\n" for line in await self._add(rm_id, lines, values)])
                self._chunks[key] = body
                if len(self._chunks) > _CHUNKS_KEPT:
                    self._chunks.popitem(last=False)
        return body

    async def add(self, rm_id: str, lines: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes]:
        """The lines with the states of their objects, as far as these are known.

        :param lines: events as JSON objects, without line feeds.
        :param values: the same as they are in the log; None: the line is no event.
        """
        async with self._asking:
            return await self._add(rm_id, lines, values)

    async def _add(self, rm_id: str, lines: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes]:
        # 1. what about whom
        events = [decode(value) if value is not None else None for value in values]
        keys = [_key(rm_id, event) if event is not None else None for event in events]
        wanted: dict[ObjectKey, dict[str, None]] = {}
        for event, key in zip(events, keys, strict=True):
            if event is not None and key is not None:
                references = wanted.setdefault(key, {})
                if event.referenceID:
                    references[event.referenceID] = None
        if not wanted:
            return list(lines)
        # 2. what they are like
        found = await self._find(wanted, {key: event for event, key in zip(events, keys, strict=True) if event and key})
        # 3. each event with the object that it was about, not with a later one of the same name
        full: list[bytes] = []
        for line, event, key in zip(lines, events, keys, strict=True):
            state = None
            if event is not None and key is not None:
                candidates = (found.get(key), self._seen.get(key))
                state = next((each for each in candidates if each and each.created_nano <= event.timestampNano), None)
                if state is None:
                    metrics.STATES_MISSING.inc()
            full.append(b'%b,"state":%b}' % (line[:-1], go_text(state.state).encode()) if state is not None else line)
        for key, state in found.items():
            self._remember(key, state)
        return full

    async def _find(
        self, wanted: Mapping[ObjectKey, Mapping[str, None]], events: Mapping[ObjectKey, EventRecord]
    ) -> dict[ObjectKey, _State]:
        """What the view knows. It is given a moment for what is so new that it may not have it yet."""
        since_s = self._clock.monotonic()
        found: dict[ObjectKey, _State] = {}
        tries = 0
        while since_s >= self._away_until_s:
            missing = {key: keys for key, keys in wanted.items() if key not in found}
            try:
                found |= await self._ask(missing)
            except ViewSilent as error:
                if self._stopping() or self._clock.monotonic() - since_s >= _PATIENCE_S:
                    self._away_until_s = self._clock.monotonic() + _AWAY_S
                    log.warning("events go out without the states of their objects", error=str(error))
                    break
                await asyncio.sleep(_PAUSE_S)
                continue
            tries += 1
            if tries == _TRIES or not any(self._should_be_there(events[key]) for key in missing if key not in found):
                break
            await asyncio.sleep(_TRY_AGAIN_S)
        return found

    def _should_be_there(self, event: EventRecord) -> bool:
        """(The event is the last one of the object in its chunk.)"""
        went = event.eventChangeType == EventRecord.REMOVE and not event.referenceID
        return not went and self._clock.now_ns() - event.timestampNano < _NEW_NS

    async def _ask(self, wanted: Mapping[ObjectKey, Mapping[str, None]]) -> dict[ObjectKey, _State]:
        """Of one RM. Raises ViewSilent."""
        rm_id = next(iter(wanted)).rm_id
        body = [{"kind": key.kind, "id": key.object_id, "keys": [*keys]} for key, keys in wanted.items()]
        try:
            answer = await self._open().post(PATH, params={"rm": rm_id}, content=msgspec.json.encode(body))
            if answer.status_code == 404:  # the RM is gone
                return {}
            if answer.status_code != 200:
                raise ViewSilent(f"status {answer.status_code}")
            states = _States.decode(answer.content)
        except httpx.HTTPError as error:
            raise ViewSilent(type(error).__name__) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ViewSilent("its answer cannot be read") from error
        return {key: state for key, state in zip(wanted, states, strict=False) if state is not None}

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            here = not isinstance(self._view, str)
            self._client = httpx.AsyncClient(
                transport=httpx.ASGITransport(self._view) if not isinstance(self._view, str) else None,
                base_url="http://view" if here else str(self._view),
                timeout=_TIMEOUT_S,
                trust_env=False,  # a proxy of the environment is not for traffic between our own services
            )
        return self._client

    def _remember(self, key: ObjectKey, state: _State) -> None:
        before = self._seen.pop(key, None)
        self._seen_bytes += len(state.state) - (len(before.state) if before is not None else 0)
        self._seen[key] = state
        while self._seen_bytes > _KEPT_BYTES:
            _, oldest = self._seen.popitem(last=False)
            self._seen_bytes -= len(oldest.state)


def _key(rm_id: str, event: EventRecord) -> ObjectKey | None:
    kind = _KINDS.get(event.type)
    if kind is None or not event.objectID:
        return None
    if event.type == EventRecord.APP and event.eventChangeDetail == EventRecord.APP_REJECT:
        kind = "rejected"
    return ObjectKey(rm_id, kind, event.objectID)
