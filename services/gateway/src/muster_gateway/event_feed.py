"""The events of one RM, for its callback stream, out of the RM's partition of si.events.

reading
    With a reader of its own until it has caught up, then together with all others that have (event_tail.py).

place
    From the end of the log on, or behind the event with a given id, which is found by halving: an RM's ids grow with
    offsets, without gaps. An id that retention has deleted begins at what is left; the RM sees it by the ids.

room
    What was read and not yet written is bounded; then it falls behind the others, and its own reader waits for the
    stream's writer. So a slow RM costs this much memory and no more, and loses nothing that the log keeps.

batches
    The writer takes what is there when it is free. An idle stream sends an event as soon as it is read; a busy one
    sends many together.

request events
    Those of asks (REQUEST, NONE) have no id. They wait in a store of their own, which keeps the newest when it is full,
    until the push interval (seed 002, "SHIM events"); sent, they are gone from it. Their offset is their position: an
    RM that names the last one that it had gets what came since, and nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from muster_bus.errors import BusError, LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader, Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_STORE_CAPACITY, HEADER_TRACKING, Topics, event_id_of
from muster_service.request_store import RequestStore, capacity_of

from muster_gateway import metrics
from muster_gateway.callback_codec import encode_events, encode_requests
from muster_gateway.errors import LogDown
from muster_gateway.event_tail import EventTail

log = structlog.get_logger(__name__)

# A question that comes while a batch is written waits for it: so batches stay small.
BATCH_EVENTS, BATCH_BYTES = 250, 128 * 1024
_WAITING_EVENTS, _WAITING_BYTES = 4 * BATCH_EVENTS, 4 * BATCH_BYTES
_READ_RECORDS = 500
_READ_WAIT_S = 1.0
_PROBE_WAIT_S = 0.2
_RETRY_MIN_S, _RETRY_MAX_S = 0.05, 2.0
# The search stops halving at this distance: one read covers it.
_SEARCH_SPAN = 500


class _Waiting(NamedTuple):
    value: bytes
    id: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a stream wants to hear of its RM's events.

    :param after: events with a higher id; None: those that are written from now on.
    :param requests_after: request events behind this position; None: those behind ``after``, or from now on.
    :param requests_only: nothing but request events.
    """

    after: int | None
    requests_after: int | None = None
    requests_only: bool = False


class EventFeed:
    """See the module's words. ``start``, then ``run`` and ``push`` in tasks, then ``close``.

    :param tail: of the RM's partition.
    :param wake: called when there is a batch to write.
    :param search_timeout_s: a search for the place that takes longer goes on by reading from where it is.
    :param push_interval_s: how often request events are given.
    """

    def __init__(
        self,
        bus: Log,
        topics: Topics,
        tail: EventTail,
        rm_id: str,
        wanted: Wanted,
        wake: Callable[[], None],
        search_timeout_s: float,
        push_interval_s: float,
    ) -> None:
        self._bus, self._topic, self._partition = bus, topics.events, topics.partition_of(rm_id)
        self.key = rm_id.encode()
        self._tail, self._rm_id, self._wanted, self._wake = tail, rm_id, wanted, wake
        self._search_timeout_s, self._push_interval_s = search_timeout_s, push_interval_s
        self._reader: LogReader | None = None
        self._end_at_start = 0
        self._passed = wanted.after is None  # whether the place of the tracked events lies behind
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._left_behind = asyncio.Event()
        self._behind_at = 0
        self._store = RequestStore()
        self._requests = self._store.reader()
        self._push_due = False

    async def start(self) -> None:
        """Notes what "now" is. Raises LogDown."""
        try:
            self._reader = await self._bus.reader(self._topic, self._partition)
            self._end_at_start = await self._reader.end_offset()
        except LogUnavailable as error:
            raise LogDown(f"the event log does not answer: {type(error).__name__}") from error

    async def run(self) -> None:
        """Reads until cancelled. The log's absence is waited out."""
        position: int | None = None
        while True:
            # 1. by itself, until it has caught up
            await self._read_alone(position)
            # 2. with the others, for as long as it has room
            await self._left_behind.wait()
            position = self._behind_at

    def offer(self, record: Record) -> bool:
        """Takes a record of the RM's; False: there is no room for it, and nothing has happened."""
        number = _id_of(record)
        if number is None:
            self._take_request(record)
            return True
        if record.value is None or not self._is_wanted(record, number):
            self._passed |= self._wanted.after is not None and number >= self._wanted.after
            return True
        if len(self._waiting) >= _WAITING_EVENTS or self._waiting_bytes >= _WAITING_BYTES:
            return False
        self._passed |= self._wanted.after is not None
        self._waiting.append(_Waiting(record.value, number))
        self._waiting_bytes += len(record.value)
        self._wake()
        return True

    def left_behind(self, offset: int) -> None:
        """It has to read by itself from there on."""
        self._behind_at = offset
        self._left_behind.set()

    async def _read_alone(self, position: int | None) -> None:
        """Returns when the tail gives what comes next.

        :param position: None: it is to be found.
        """
        retry_s = _RETRY_MIN_S
        while True:
            try:
                if self._reader is None:
                    self._reader = await self._bus.reader(self._topic, self._partition, position)
                reader = self._reader
                if position is None:
                    position = await self._place(reader)
                    reader.seek(position)
                records = await reader.read(_READ_RECORDS, _READ_WAIT_S)
                for record in records:
                    while record.key == self.key and not self.offer(record):
                        self._room.clear()
                        await self._room.wait()
                retry_s = _RETRY_MIN_S
                self._left_behind.clear()
                if self._has_caught_up(reader.position, len(records)):
                    self._reader = None
                    with contextlib.suppress(BusError):
                        await reader.close()
                    return
            except OffsetGone as error:
                log.warning("events deleted before they were sent", rm_id=self._rm_id, error=str(error))
                assert self._reader is not None, "it was read from"
                self._reader.seek(error.first)
            except LogUnavailable as error:
                log.warning("event log unavailable", rm_id=self._rm_id, error=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_MAX_S)

    def _has_caught_up(self, position: int, records: int) -> bool:
        """Joins the tail if it can. One that is nearly full would be left behind again at once."""
        if 2 * len(self._waiting) > _WAITING_EVENTS or 2 * self._waiting_bytes > _WAITING_BYTES:
            return False
        return self._tail.join(self, position, at_end=records < _READ_RECORDS)

    async def push(self) -> None:
        """Gives request events, interval after interval, until cancelled."""
        while True:
            await asyncio.sleep(self._push_interval_s)
            if self._requests:
                self._push_due = True
                self._wake()

    async def close(self) -> None:
        self._tail.leave(self)
        if self._reader is not None:
            await self._reader.close()

    def next_batch(self) -> bytes | None:
        """A muster.v1.ToResourceManager with the next events; None: there are none."""
        while self._push_due:
            batch = self._requests.take(BATCH_EVENTS, BATCH_BYTES)
            self._push_due = bool(self._requests)
            if batch:
                values = [(event.value, None) for event in batch]
                encoded = self._encoded(values, encode_requests(values, batch[-1].position, self._requests.dropped))
                if encoded is not None:
                    return encoded
        while self._waiting:
            tracked = self._next()
            encoded = self._encoded(tracked, encode_events(tracked))
            if encoded is not None:
                return encoded
        return None

    def sent(self) -> None:
        """What :meth:`next_batch` gave was written."""
        self._requests.sent()

    def _encoded(self, batch: Sequence[object], made: tuple[bytes | None, int]) -> bytes | None:
        encoded, unreadable = made
        metrics.events.inc(len(batch) - unreadable)
        if unreadable:
            metrics.unreadable_events.inc(unreadable)
            log.error("unreadable events", rm_id=self._rm_id, count=unreadable, of=len(batch))
        return encoded

    def _next(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < BATCH_EVENTS:
            if size and size + len(self._waiting[0].value) > BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
            size += len(batch[-1].value)
        self._waiting_bytes -= size
        self._room.set()
        return batch

    def _is_wanted(self, record: Record, number: int) -> bool:
        if self._wanted.requests_only:
            return False
        after = self._wanted.after
        return record.offset >= self._end_at_start if after is None else number > after

    def _take_request(self, record: Record) -> None:
        """Never raises, whatever the record holds."""
        if not self._is_wanted_request(record.offset):
            return
        store = self._store
        dropped, empty = store.dropped, store.empty
        capacity = capacity_of(dict(record.headers).get(HEADER_STORE_CAPACITY))
        if capacity is not None and capacity != store.capacity:
            store.resize(capacity)
        store.add(record.offset, record.value)
        metrics.request_events_dropped.inc(store.dropped - dropped)
        metrics.request_events_empty.inc(store.empty - empty)

    def _is_wanted_request(self, offset: int) -> bool:
        if offset >= self._end_at_start:
            return True
        after = self._requests_after()
        if after is not None:
            return offset > after
        return self._passed and self._wanted.after is not None

    def _requests_after(self) -> int | None:
        """The position that the RM names; None also for one that this log has not reached: it is another log's."""
        after = self._wanted.requests_after
        return after if after is not None and after < self._end_at_start else None

    async def _place(self, reader: LogReader) -> int:
        """Where to read from: at or before the first event that is wanted."""
        place = await self._tracked_place(reader)
        after = self._requests_after()
        return place if after is None else min(place, max(after + 1, await reader.first_offset()))

    async def _tracked_place(self, reader: LogReader) -> int:
        after = self._wanted.after
        if after is None or (self._wanted.requests_only and self._requests_after() is not None):
            return self._end_at_start
        low, high = await reader.first_offset(), self._end_at_start
        try:
            async with asyncio.timeout(self._search_timeout_s):
                while high - low > _SEARCH_SPAN:
                    middle = (low + high) // 2
                    found = await self._first_from(reader, middle, high)
                    if found is None or found[1] > after:
                        high = middle
                    else:
                        low = found[0]
        except TimeoutError:
            log.warning("events searched for too long", rm_id=self._rm_id, after=after, records_left=high - low)
        return low

    async def _first_from(self, reader: LogReader, offset: int, end: int) -> tuple[int, int] | None:
        """Offset and id of the RM's first tracked event in [offset, end)."""
        reader.seek(offset)
        while reader.position < end:
            for record in await reader.read(_READ_RECORDS, _PROBE_WAIT_S):
                if record.offset >= end:
                    return None
                if record.key == self.key and (number := _id_of(record)) is not None:
                    return record.offset, number
        return None


def _id_of(record: Record) -> int | None:
    """None: untracked, for the RM only."""
    headers = dict(record.headers)
    return event_id_of(headers.get(HEADER_EVENT_ID)) if headers.get(HEADER_TRACKING) != b"0" else None
