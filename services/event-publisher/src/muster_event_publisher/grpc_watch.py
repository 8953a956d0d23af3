"""Answers ``muster.v1.Events``: one cursor per caller over ring, log and history, through a filter.

A caller has no buffer of events. It has a cursor, which is the next id to read. Newer events come from the ring, older
ones from the log or from history; at the end the caller waits. So a caller reads old and live events in one walk, and a
slow caller costs the others nothing. An event is decoded and encoded once for all callers that read it at about the
same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog
from muster_bus.clock import Clock
from muster_runtime.backoff import aligned_s
from muster_runtime.default_rm import resolve_rm
from muster_runtime.ending import Ending
from muster_runtime.read_scope import EVERYTHING, ReadScope
from muster_runtime.request_store import RequestReader

from muster_event_publisher import metrics
from muster_event_publisher.app_queues import AppQueues
from muster_event_publisher.errors import (
    BadRequest,
    EventNotYetWritten,
    GrpcError,
    NoEvents,
    OldEventsUnavailable,
    PreconditionFailed,
    TooManyOldReads,
    TooManyReaders,
    TooManyWatchers,
    Unavailable,
    WatchEnded,
    rm_list_clause,
)
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.filters import (
    LOOKBACK_EVENTS,
    EventFields,
    EventFilter,
    QueueIndex,
    passes_request,
    passing,
)
from muster_event_publisher.grpc_codec import (
    QUEUE_APP_MARK,
    DecodedEvent,
    EventQuery,
    StartPosition,
    count_of,
    decoded,
    encode_batch,
    encode_watched,
    request_event,
)
from muster_event_publisher.old_read_limiter import ReadSlots
from muster_event_publisher.request_store import RequestStores
from muster_event_publisher.ring import EventRing
from muster_event_publisher.subscriber_limits import LagLimits, SubscriberCounts

log = structlog.get_logger(__name__)

# Events of one step, and bytes of one message: well under gRPC's 4 MiB.
_CHUNK, _CHUNK_BYTES = 256, 512 * 1024
# Events older than the ring in one read: to begin a read costs as much as reading some thousand events.
_OLD_CHUNK = 8 * _CHUNK
_BATCH_BYTES = 3 * 1024 * 1024
# A batch examines at most so many events: a filter that no event passes must not make one call read everything.
_BATCH_EXAMINED_MAX = 100_000
_REQUESTS, _REQUESTS_BYTES = 250, 128 * 1024
# Decoded events kept per RM: about as many as several callers read within a second or two.
_DECODED_MAX = 8_192
# How often the lag and stall of all callers are checked.
_CHECK_INTERVAL_S = 1.0
# Events that are examined to find the time of a missing one, before its time counts as unknown.
_PROBE = 64


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """See the settings of the same names.

    :param push_interval_s: how often request events are sent.
    """

    lag_records: int
    stall_s: float
    keepalive_s: float
    push_interval_s: float


class WalkStep(NamedTuple):
    """The result of examining the next events.

    :param encoded: the events that passed, encoded.
    :param missing: ranges of ids (first and last) that ring, log and history do not have.
    :param examined: how many ids were examined.
    """

    encoded: list[bytes]
    missing: list[tuple[int, int]]
    examined: int
    source: str


class ReadResult(NamedTuple):
    """Events with consecutive ids; None: missing."""

    first_id: int
    values: Sequence[bytes | None]
    source: str


class DecodedEvents:
    """Decoded events of one instance of an RM, and its applications' queues."""

    def __init__(self, ring: EventRing, queue_of_object: Callable[[str], str]) -> None:
        self.instance = ring.instance
        self.queues = QueueIndex(queue_of_object=queue_of_object)
        self._slots: list[tuple[int, DecodedEvent] | None] = [None] * _DECODED_MAX
        self._indexed = 0
        self._indexing = asyncio.Lock()

    def get(self, event_id: int, value: bytes) -> DecodedEvent:
        """The event, decoded."""
        slot = event_id % _DECODED_MAX
        cached = self._slots[slot]
        if cached is not None and cached[0] == event_id:
            return cached[1]
        event = decoded(event_id, value)
        self._slots[slot] = (event_id, event)
        return event

    async def index(self, ring: EventRing) -> None:
        """Learns the applications' queues from the ring's events that it has not seen yet."""
        if self._indexed >= ring.next_id:
            return
        async with self._indexing:
            while self._indexed < ring.next_id:
                start = max(self._indexed, ring.lowest)
                values = ring.slice(start, 4 * _CHUNK)
                for event_id, value in enumerate(values, start):
                    # (Looking for three bytes costs a hundredth of decoding.)
                    if value is not None and QUEUE_APP_MARK in value:
                        self.queues.learn(event_id, decoded(event_id, value).fields)
                self._indexed = start + len(values)
                if not values:
                    break
                await asyncio.sleep(0)


class FilteredCursor:
    """A cursor over the events of an RM, through a filter. ``cursor``: the next id to examine.

    :param turns: the right to read events older than the ring; None: each such read waits for its turn.
    """

    def __init__(
        self,
        source: EventSource,
        ring: EventRing,
        decoded_events: DecodedEvents,
        cursor: int,
        event_filter: EventFilter,
        turns: ReadSlots | None = None,
    ) -> None:
        self.ring, self.cursor = ring, cursor
        self._source, self._decoded_events, self._event_filter, self._slots = (
            source,
            decoded_events,
            event_filter,
            turns,
        )
        self._ahead: ReadResult | None = None
        self._before: list[EventFields | None] = []
        self._before_end = -1

    async def advance(self, parts_max: int = _CHUNK, bytes_max: int = _CHUNK_BYTES) -> WalkStep | None:
        """Examines the next events; None: there are no more now.

        It stops after ``parts_max`` events that pass, or when the next one would exceed ``bytes_max`` bytes.
        Raises Unavailable: older events cannot be read now.
        """
        if self.cursor >= self.ring.next_id:
            return None
        if self._event_filter.queue:
            await self._decoded_events.index(self.ring)
        start = self.cursor
        # 1. the next events, and the few before that the filter needs
        read = await self._next(start)
        before = await self._lookback(read.first_id) if self._event_filter.needs_lookback else []
        missing = [(start, read.first_id - 1)] if read.first_id > start else []
        first_id = read.first_id - len(before)
        events = [
            self._decoded_events.get(event_id, value) if value is not None else None
            for event_id, value in enumerate(read.values, read.first_id)
        ]
        fields = before + [event.fields if event is not None else None for event in events]
        if self._event_filter.queue and read.source != "ring":
            for event_id, event in enumerate(fields, first_id):
                if event is not None:
                    self._decoded_events.queues.learn(event_id, event)
        # 2. the events that pass, as many as there is room for
        parts: list[bytes] = []
        size, end = 0, read.first_id + len(events)
        for index in passing(self._event_filter, fields, len(before), first_id, self._decoded_events.queues):
            passed = events[index - len(before)]
            assert passed is not None, "missing events do not pass"
            if len(parts) == parts_max or (parts and size + len(passed.encoded) > bytes_max):
                end = first_id + index
                break
            parts.append(passed.encoded)
            size += len(passed.encoded)
        # 3. the missing ids among them
        missing += _ranges(events[: end - read.first_id], read.first_id)
        self.cursor = end
        kept = fields[: end - first_id][-LOOKBACK_EVENTS:]
        self._before, self._before_end = kept, end
        return WalkStep(parts, missing, end - start, read.source)

    async def _next(self, start: int) -> ReadResult:
        """The next events. From the second read of events older than the ring on, it reads more than needed, ahead."""
        ahead = self._ahead
        index = start - ahead.first_id if ahead is not None else -1
        if ahead is None or not 0 <= index < len(ahead.values):
            count = _CHUNK if ahead is None else _OLD_CHUNK
            read = await _read(
                self._source, self.ring, start, count if start < self.ring.lowest else _CHUNK, self._slots
            )
            self._ahead = ahead = read if read.source != "ring" else None
            if ahead is None or read.first_id != start:
                return read._replace(values=read.values[:_CHUNK])
            index = 0
        return ReadResult(start, ahead.values[index : index + _CHUNK], ahead.source)

    async def _lookback(self, first_id: int) -> list[EventFields | None]:
        """Up to LOOKBACK_EVENTS events before an id."""
        if self._before_end == first_id:
            return self._before
        start = max(0, first_id - LOOKBACK_EVENTS)
        if start == first_id:
            return []
        read = await _read(self._source, self.ring, start, first_id - start, self._slots)
        values = list(read.values)[: max(0, first_id - read.first_id)]
        if read.first_id + len(values) != first_id:
            return []
        return [
            self._decoded_events.get(event_id, value).fields if value is not None else None
            for event_id, value in enumerate(values, read.first_id)
        ]


class EventHub:
    """Answers Batch, and holds the open calls of Watch. The RMs' own limits apply, as in REST.

    :param requests: the RMs' request events.
    :param app_queues: the queues of applications whose QUEUE_APP events are too old.
    """

    def __init__(
        self,
        source: EventSource,
        requests: RequestStores,
        limits: WatchLimits,
        clock: Clock,
        app_queues: AppQueues,
    ) -> None:
        self.source, self.requests, self.limits, self.clock = source, requests, limits, clock
        self._app_queues = app_queues
        self.stopping = False
        self.open: SubscriberCounts[EventWatch] = SubscriberCounts(metrics.WATCHERS)
        self._decoded_by_rm: dict[str, DecodedEvents] = {}

    # ---- once ------------------------------------------------------------------------------------------------------

    async def batch(self, query: EventQuery, default_rm: str = "", reach: ReadScope = EVERYTHING) -> bytes:
        """An EventBatch. Raises GrpcError.

        :param default_rm: the RM that is meant when there are several and the call names none.
        """
        self.check_open()
        rm_id, ring = self._resolve_rm(query, default_rm, reach)
        if ring is None:
            raise NoEvents(f"rm_id: no events of {rm_id!a} yet")
        _check_instance(ring, query)
        count = count_of(query, max(self.source.settings.settings_for(rm_id).rest_response_size, 1))
        async with self.source.old_reads.batch_slot() as turns:
            return await self._batch(ring, query, count, turns)

    async def _batch(self, ring: EventRing, query: EventQuery, count: int, turns: ReadSlots) -> bytes:
        cursor = await self._begin(ring, query.start or StartPosition(id=0), query, turns)
        walk = FilteredCursor(self.source, ring, self.decoded_events(ring), cursor, query.event_filter, turns)
        parts: list[bytes] = []
        missing: list[tuple[int, int]] = []
        source, examined, size = "", 0, 0
        while len(parts) < count and examined < _BATCH_EXAMINED_MAX and size < _BATCH_BYTES - _CHUNK_BYTES:
            step = await walk.advance(count - len(parts))
            if step is None:
                break
            parts += step.encoded
            # (Without a place the batch begins with the oldest event left: nothing is missing before it.)
            missing += step.missing if query.start or examined else [m for m in step.missing if m[0]]
            source, examined = source or step.source, examined + step.examined
            size += sum(map(len, step.encoded))
            await asyncio.sleep(0)
        return encode_batch(
            ring.rm_id, ring.instance, parts, walk.cursor, ring.next_id, merge_ranges(missing), source or "ring"
        )

    # ---- again and again -------------------------------------------------------------------------------------------

    def watch(self, query: EventQuery, host: str, default_rm: str = "", reach: ReadScope = EVERYTHING) -> EventWatch:
        """A call of Watch, which counts until it is closed. Raises GrpcError.

        :param host: the caller's address, for the limits; ``default_rm``: as for :meth:`batch`.
        """
        self.check_open()
        rm_id, ring = self._resolve_rm(query, default_rm, reach)
        if ring is not None:
            _check_instance(ring, query)
        settings = self.source.settings.settings_for(rm_id)
        for count, most, of in (
            (self.open.of_rm(rm_id), settings.max_streams, ""),
            (self.open.of_host(rm_id, host), settings.max_streams_per_host, f" of {host}"),
        ):
            if count >= most:
                raise TooManyWatchers(f"{count} calls{of} watch events of {rm_id!a}, expected at most {most}")
        watch = EventWatch(self, query, host, rm_id, ring)
        self.open.enter(watch)
        return watch

    async def run_watchdog(self) -> None:
        """Regularly ends the calls that are too far behind or stalled; never returns."""
        while True:
            await asyncio.sleep(aligned_s(_CHECK_INTERVAL_S))
            for watch in self.open:
                watch.check()

    def stop(self) -> None:
        """Refuses new calls and ends the open ones."""
        self.stopping = True
        for watch in self.open:
            watch.end(_stopping())
        self.source.rings.wake_all()

    def check_open(self) -> None:
        if self.stopping:
            raise _stopping()

    # ---- what both need --------------------------------------------------------------------------------------------

    def decoded_events(self, ring: EventRing) -> DecodedEvents:
        """The decoded events and queues of the RM's present instance."""
        cached = self._decoded_by_rm.get(ring.rm_id)
        if cached is None or cached.instance != ring.instance:
            cached = self._decoded_by_rm[ring.rm_id] = DecodedEvents(
                ring, partial(self._app_queues.queue_of, ring.rm_id)
            )
        return cached

    def _resolve_rm(self, query: EventQuery, default_rm: str, reach: ReadScope) -> tuple[str, EventRing | None]:
        """The RM that is meant, and its ring, if it has one. Raises GrpcError."""
        settings, rings = self.source.settings, self.source.rings
        visible = sorted(
            visible_id for visible_id in {*rings.rm_ids(), *settings.registered()} if reach.can_read_all_of(visible_id)
        )
        rm_id = query.rm_id
        if not rm_id:
            is_stopped_by_rm = settings.stopped_by_rm(visible)
            meant = resolve_rm(is_stopped_by_rm, default_rm)
            if meant is None:
                raise BadRequest(f"rm_id: empty, expected an RM's id{rm_list_clause(list(is_stopped_by_rm))}")
            rm_id = meant
        is_known = rm_id in visible or (reach.can_read_all_of(rm_id) and self.requests.get(rm_id) is not None)
        if not query.requests and reach.can_read_all_of(rm_id):
            self.check_tracked(rm_id)
        ring = rings.get(rm_id)
        if not is_known or (ring is None and not query.requests):
            raise NoEvents(f"rm_id: no events of {rm_id!a}{rm_list_clause(visible)}")
        return rm_id, ring

    def check_tracked(self, rm_id: str) -> None:
        if not self.source.settings.tracks(rm_id):
            raise PreconditionFailed(
                f"rm_id: events of {rm_id!a} are not tracked (service.event.trackingEventsEnabled)"
            )

    async def first_id(self, ring: EventRing, query: EventQuery) -> int:
        """The id that a Watch begins with. Raises GrpcError."""
        return ring.next_id if query.start is None else await self._begin(ring, query.start, query, None)

    async def _begin(self, ring: EventRing, start: StartPosition, query: EventQuery, turns: ReadSlots | None) -> int:
        if start.id is not None:
            # A caller that names the instance has seen it, perhaps at another publisher that is a little ahead.
            if start.id > ring.next_id + (self.limits.lag_records if query.instance else 0):
                raise EventNotYetWritten(
                    f"from.id: {start.id} is not there yet, the next event has the id {ring.next_id}"
                )
            return start.id
        if start.newest is not None:
            return max(0, ring.next_id - start.newest)
        assert start.time_ns is not None, "one of them is set"
        return await _first_since(self.source, ring, start.time_ns, turns)


class EventWatch:
    """One call of Watch: made by :meth:`EventHub.watch`, closed by its caller.

    :ivar ending: has a cause when the publisher must end it.
    """

    def __init__(self, hub: EventHub, query: EventQuery, host: str, rm_id: str, ring: EventRing | None) -> None:
        self.host, self.query, self.rm_id = host, query, rm_id
        self.ending: Ending[GrpcError] = Ending("a call of Watch")
        self._hub, self._ring = hub, ring
        self._walk: FilteredCursor | None = None
        self._reader: RequestReader | None = None
        self._position: int | None = query.requests_after
        self._patience = self._patience_for(0)
        self._last_sent_s = hub.clock.monotonic()
        self._push_at = self._last_sent_s

    @property
    def continuation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The places to continue from, as gRPC metadata."""
        metadata = []
        if self._walk is not None:
            metadata += [("muster-next-id", str(self._walk.cursor)), ("muster-instance", self._walk.ring.instance)]
        if self._position is not None:
            metadata.append(("muster-request-position", str(self._position)))
        return tuple(metadata)

    def close(self) -> None:
        """Frees the call's place in the limits."""
        if self._reader is not None:
            self._reader.close()
        self._hub.open.leave(self)

    def end(self, error: GrpcError) -> None:
        """Ends the call; the first reason counts."""
        self.ending.by(error)

    def check(self) -> None:
        """Ends the call when its caller is too far behind, or has read nothing for too long."""
        if self.ending.cause is not None:
            return
        walk = self._walk
        over = self._patience.exceeded_limit(walk.ring.next_id - walk.cursor if walk is not None else 0)
        if over is not None:
            _, words = over
            where = f"go on with from.id {walk.cursor}" if walk is not None else "call again"
            self.end(WatchEnded(f"the caller {words}: {where}"))

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """WatchedEvents, the first one at once. A message counts as sent when the next one is requested.

        Raises GrpcError.
        """
        hub = self._hub
        self._open_store()
        yield await self._first()
        while True:
            if self.ending.cause is not None:
                raise self.ending.cause
            hub.check_open()
            if not self.query.requests:
                hub.check_tracked(self.rm_id)
            has_sent = False
            # 1. the next tracked events
            step = await self._walk.advance() if self._walk is not None else None
            if step is not None and (step.encoded or step.missing):
                yield self._message(step.encoded, step.missing)
                metrics.WATCHED.inc(len(step.encoded))
                has_sent = True
            # 2. request events, at the push interval
            if self._reader is not None and hub.clock.monotonic() >= self._push_at:
                async for message in self._push(self._reader):
                    yield message
                    has_sent = True
            # 3. a sign of life with the cursor
            if not has_sent and self._is_quiet():
                yield self._message([])
            # 4. nothing left: wait for more
            if step is None:
                self._patience.caught_up()
                await self._wait()
            elif not has_sent:
                await asyncio.sleep(0)

    def sending(self, now: bool) -> None:
        """Notes whether a write to the caller is under way."""
        self._patience.sending(now)

    async def _first(self) -> bytes:
        """The first message: the call is open, with the place where it begins."""
        ring = self._ring
        if ring is not None and self.query.tracked:
            cursor = await self._hub.first_id(ring, self.query)
            self._begin_at(ring, cursor)
        return self._message([])

    def _begin_at(self, ring: EventRing, cursor: int) -> None:
        self._walk = FilteredCursor(
            self._hub.source, ring, self._hub.decoded_events(ring), cursor, self.query.event_filter
        )
        self._patience = self._patience_for(max(0, ring.next_id - cursor))

    def _patience_for(self, behind: int) -> LagLimits:
        return LagLimits(self._hub.limits.lag_records, self._hub.limits.stall_s, self._hub.clock, behind)

    def _open_store(self) -> None:
        if self.query.requests:
            self._reader = self._hub.requests.store_for(self.rm_id).reader(self.query.requests_after)
            self._push_at = self._next_push()

    def _next_push(self) -> float:
        return self._hub.clock.monotonic() + self._hub.limits.push_interval_s

    async def _push(self, reader: RequestReader) -> AsyncGenerator[bytes, None]:
        while reader:
            taken = reader.take(_REQUESTS, _REQUESTS_BYTES)
            parts: list[bytes] = []
            for event in taken:
                decoded_event = request_event(event.value)
                if decoded_event is None:
                    metrics.REQUESTS_UNREADABLE.inc()
                elif self._passes(decoded_event.fields):
                    parts.append(decoded_event.encoded)
            self._position = taken[-1].position
            yield self._message(parts)
            reader.sent()
            metrics.REQUESTS_SENT.labels(self.rm_id).inc(len(parts))
        self._push_at = self._next_push()

    def _passes(self, fields: EventFields) -> bool:
        event_filter, ring = self.query.event_filter, self._ring
        if ring is None:
            return passes_request(event_filter, fields, 0, QueueIndex())
        return passes_request(event_filter, fields, ring.next_id, self._hub.decoded_events(ring).queues)

    def _message(self, parts: Sequence[bytes], missing: Sequence[tuple[int, int]] = ()) -> bytes:
        self._last_sent_s = self._hub.clock.monotonic()
        ring, walk = self._ring, self._walk
        end_id = ring.next_id if ring is not None else 0
        return encode_watched(
            self.rm_id,
            ring.instance if ring is not None else "",
            parts,
            walk.cursor if walk is not None else end_id,
            end_id,
            merge_ranges(missing),
            self._position,
            self._reader.dropped if self._reader is not None else 0,
        )

    def _is_quiet(self) -> bool:
        keepalive_s = self._hub.limits.keepalive_s
        return bool(keepalive_s) and self._hub.clock.monotonic() - self._last_sent_s >= keepalive_s

    async def _wait(self) -> None:
        """Waits until there may be a message to send."""
        hub = self._hub
        rings = hub.source.rings
        self._follow_ring(rings.get(self.rm_id))
        now_s = hub.clock.monotonic()
        due = [self._last_sent_s + hub.limits.keepalive_s] if hub.limits.keepalive_s else []
        due += [self._push_at] if self._reader is not None else []
        timeout_s = max(0.0, min(due) - now_s) if due else None
        if self._walk is None:
            await rings.changed.wait(timeout_s)
        elif self._walk.cursor >= self._walk.ring.next_id:
            await self._walk.ring.changed.wait(timeout_s)

    def _follow_ring(self, ring: EventRing | None) -> None:
        """Notices the RM's first event, and another instance. Raises WatchEnded."""
        if ring is None or ring is self._ring:
            return
        if self._ring is not None and ring.instance != self._ring.instance:
            raise WatchEnded("the RM's event ids start again with another instance: call again without one")
        began, self._ring = self._ring is not None, ring
        if self.query.tracked:
            # (This call has waited for the RM's first event, so it begins with it.)
            self._begin_at(ring, self._walk.cursor if began and self._walk is not None else ring.lowest)


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, with adjacent ones joined."""
    merged: list[tuple[int, int]] = []
    for first, last in ranges:
        if merged and merged[-1][1] + 1 == first:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


def _ranges(events: Sequence[DecodedEvent | None], first_id: int) -> list[tuple[int, int]]:
    return [(event_id, event_id) for event_id, event in enumerate(events, first_id) if event is None]


def _stopping() -> Unavailable:
    return Unavailable("the event publisher is stopping: call again")


def _check_instance(ring: EventRing, query: EventQuery) -> None:
    if query.instance and query.instance != ring.instance:
        raise PreconditionFailed(
            f"instance: {query.instance!a} is gone; event ids started again with instance {ring.instance!a}"
        )


async def _read(source: EventSource, ring: EventRing, start: int, count: int, turns: ReadSlots | None) -> ReadResult:
    """Events from an id on, or from the next id that exists. Raises Unavailable, TooManyReaders.

    :param turns: the right to read events older than the ring; None: the read waits for its turn.
    """
    if start < ring.lowest:
        try:
            old = await source.old(ring, start, count, turns)
        except TooManyOldReads as error:
            raise TooManyReaders(str(error)) from error
        except OldEventsUnavailable as error:
            raise Unavailable(str(error)) from error
        if old is not None and old.first_id < ring.lowest and old.values:
            return ReadResult(old.first_id, old.values, old.source)
        return ReadResult(ring.lowest, ring.slice(ring.lowest, count), "ring")
    return ReadResult(start, ring.slice(start, count), "ring")


async def _first_since(source: EventSource, ring: EventRing, time_ns: int, turns: ReadSlots | None) -> int:
    """The id of the first event at or after a time; ids grow with time, so a binary search finds it."""

    async def is_before(event_id: int, end: int) -> tuple[bool, int]:
        """Whether the first event from an id on is before the time, and its id."""
        read = await _read(source, ring, event_id, _PROBE, turns)
        for number, value in enumerate(read.values, read.first_id):
            if number >= end:
                break
            if value is not None:
                return decoded(number, value).fields.time_ns < time_ns, number
        return False, end

    low, high = ring.lowest, ring.next_id
    if low < high and not (await is_before(low, high))[0]:
        low, high = 0, ring.lowest  # older than the ring
    while low < high:
        middle = (low + high) // 2
        early, number = await is_before(middle, high)
        if early:
            low = number + 1
        else:
            high = middle
    # (Ids before it may be missing: the result is an id that exists.)
    return (await _read(source, ring, low, 1, turns)).first_id if low < ring.next_id else low
