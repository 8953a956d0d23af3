"""The events of one RM for its callback stream, from the RM's partition of si.events.

reading
    A feed reads with a reader of its own until it has caught up, then together with all feeds that have caught up
    (event_tail.py).
place
    The feed begins at the end of the log, or after the event with a given id. It finds that event by bisection: an RM's
    ids grow with offsets, without gaps. If retention has deleted the event, the feed begins at the oldest event left;
    the RM notices the gap in the ids.
room
    The events that were read and not yet written are bounded. At the limit the feed falls behind the others, and its
    own reader waits for the stream's writer. So a slow RM uses a bounded amount of memory, and loses nothing that the
    log keeps.
batches
    The writer takes all waiting events when it is free. An idle stream sends an event as soon as it is read; a busy one
    sends many together.
request events
    Events of asks (REQUEST, NONE) have no id; their offset is their position. They wait for the push interval in a
    store of their own, which keeps the newest ones when it is full. Sending removes them from the store. A stream
    begins with the request events that the RM lacks: after the position that the RM names, else after the place where
    its last stream ended (``request_position``), else with those that a store would have kept. So events that occur
    without an open stream wait in the log. The next stream reads them into its store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from muster_bus.damage import Readers
from muster_bus.errors import BusError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import LogReader, Record
from muster_bus.topics import (
    HEADER_EVENT_ID,
    HEADER_STAMP,
    HEADER_STORE_CAPACITY,
    HEADER_TRACKING,
    Topics,
    event_id_of,
)
from muster_runtime.request_store import RequestStore, capacity_of
from muster_si.positions import NO_STAMP, Positions, Stamp

from muster_gateway import metrics
from muster_gateway.callback_codec import encode_events, encode_requests
from muster_gateway.codec import position_field
from muster_gateway.errors import LogDown
from muster_gateway.event_tail import EventTail

log = structlog.get_logger(__name__)

# A question that arrives while a batch is being written waits for the batch, so batches are small.
BATCH_EVENTS, BATCH_BYTES = 250, 128 * 1024
_WAITING_EVENTS, _WAITING_BYTES = 4 * BATCH_EVENTS, 4 * BATCH_BYTES
_READ_RECORDS = 500
_READ_WAIT_S = 1.0
_PROBE_WAIT_S = 0.2
_RETRY_MIN_S, _RETRY_MAX_S = 0.05, 2.0
# The search ends at this distance: one read covers it.
_SEARCH_SPAN = 500
# A stream looks back at most this many records of the partition for request events: about one second of reading.
_REQUESTS_BACKLOG_MAX = 100_000


class _QueuedEvent(NamedTuple):
    value: bytes
    id: int


@dataclass(frozen=True, slots=True)
class SubscribedEvents:
    """The events that a stream wants of its RM.

    :param after: events with a higher id; None: only new ones.
    :param requests_after: the RM has request events up to this position; None: it names none.
    :param requests_only: request events only.
    :param requests_sent: position of the last request event that earlier streams sent; None: not known.
    """

    after: int | None
    requests_after: int | None = None
    requests_only: bool = False
    requests_sent: int | None = None


class EventFeed:
    """See the module's docstring. Call ``start``, then ``run`` and ``push`` in tasks, then ``close``.

    :param tail: of the RM's partition.
    :param wake: called when there is a batch to write.
    :param search_timeout_s: a search for the place that takes longer ends; the feed then reads on from where it is.
    :param push_interval_s: interval between batches of request events.
    :param positions: gives the batches' positions; None: they get none.
    :param before_push: awaited before each push. It returns the position of the last request event that the RM's
        streams are known to have sent. Raises GatewayError: this stream may send none.
    """

    def __init__(
        self,
        bus: Readers,
        topics: Topics,
        tail: EventTail,
        rm_id: str,
        subscribed: SubscribedEvents,
        wake: Callable[[], None],
        search_timeout_s: float,
        push_interval_s: float,
        positions: Positions | None = None,
        before_push: Callable[[], Awaitable[int | None]] | None = None,
    ) -> None:
        self._bus, self._topic, self._partition = bus, topics.events, topics.partition_of(rm_id)
        self.key = rm_id.encode()
        self._tail, self._rm_id, self._subscription, self._wake = tail, rm_id, subscribed, wake
        self._search_timeout_s, self._push_interval_s = search_timeout_s, push_interval_s
        self._reader: LogReader | None = None
        self._end_at_start = 0
        self._passed = subscribed.after is None  # whether the place of the tracked events is behind the reader
        self._processed_to = -1  # records up to this offset are taken, or belong to other RMs
        self._waiting: deque[_QueuedEvent] = deque()
        self._waiting_bytes = 0
        self._capacity_freed = asyncio.Event()
        self._left_behind = asyncio.Event()
        self._behind_at = 0
        self._store = RequestStore()
        self._requests = self._store.reader()
        self._push_due = False
        self._before_push = before_push
        self._has_pushed = False
        self._sent_until = -1  # an earlier stream sent request events up to this position after this one began
        self._positions, self._stamp = positions, NO_STAMP  # of the newest event that was read

    async def start(self) -> None:
        """Records the present end of the log. Raises LogDown."""
        try:
            self._reader = await self._bus.reader(self._topic, self._partition)
            self._end_at_start = await self._reader.end_offset()
        except LogUnavailable as error:
            raise LogDown(f"the event log does not answer: {type(error).__name__}") from error

    async def run(self) -> None:
        """Reads until cancelled. Waits while the log is unreachable."""
        position: int | None = None
        while True:
            # 1. alone, until it has caught up
            await self._read_alone(position)
            # 2. with the others, as long as it has room
            await self._left_behind.wait()
            position = self._behind_at

    @property
    def request_position(self) -> int | None:
        """Request events up to this position were sent, or dropped by the store; None: not yet known."""
        waiting = self._store.first_position
        after = self._requests_after()
        position = max(self._processed_to if waiting is None else waiting - 1, -1 if after is None else after)
        return position if position >= 0 else None

    def offer(self, record: Record) -> bool:
        """Takes a record of the RM. Returns False, and changes nothing, if there is no room."""
        taken = self._offer(record)
        if taken:
            self._stamp = _stamp_of(record) or self._stamp
            self._processed_to = max(self._processed_to, record.offset)
        return taken

    def _offer(self, record: Record) -> bool:
        number = _id_of(record)
        if number is None:
            self._add_request(record)
            return True
        if record.value is None or not self._matches(record, number):
            self._passed |= self._subscription.after is not None and number >= self._subscription.after
            return True
        if len(self._waiting) >= _WAITING_EVENTS or self._waiting_bytes >= _WAITING_BYTES:
            return False
        self._passed |= self._subscription.after is not None
        self._waiting.append(_QueuedEvent(record.value, number))
        self._waiting_bytes += len(record.value)
        self._wake()
        return True

    def on_detached(self, offset: int) -> None:
        """The tail calls this when the feed had no room. The feed must read by itself from ``offset`` on."""
        self._behind_at = offset
        self._left_behind.set()

    async def _read_alone(self, position: int | None) -> None:
        """Returns when the tail gives the next records.

        :param position: None: the feed must find it.
        """
        retry_s = _RETRY_MIN_S
        while True:
            try:
                if self._reader is None:
                    self._reader = await self._bus.reader(self._topic, self._partition, position)
                reader = self._reader
                if position is None:
                    position = await self._start_offset(reader)
                    reader.seek(position)
                records = await reader.read(_READ_RECORDS, _READ_WAIT_S)
                for record in records:
                    while record.key == self.key and not self.offer(record):
                        self._capacity_freed.clear()
                        await self._capacity_freed.wait()
                self._processed_to = max(self._processed_to, reader.position - 1)
                retry_s = _RETRY_MIN_S
                self._left_behind.clear()
                if self._has_caught_up(reader.position, len(records)):
                    self._reader = None
                    with contextlib.suppress(BusError):
                        await reader.close()
                    return
            except OffsetOutOfRange as error:
                log.warning("events deleted before they were sent", rm_id=self._rm_id, error=str(error))
                assert self._reader is not None, "it was read from"
                self._reader.seek(error.first)
            except LogUnavailable as error:
                log.warning("event log unavailable", rm_id=self._rm_id, error=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_MAX_S)

    def _has_caught_up(self, position: int, records: int) -> bool:
        """Joins the tail if possible. A nearly full feed does not: the tail would leave it behind at once."""
        if 2 * len(self._waiting) > _WAITING_EVENTS or 2 * self._waiting_bytes > _WAITING_BYTES:
            return False
        return self._tail.subscribe(self, position, at_end=records < _READ_RECORDS)

    async def push(self) -> None:
        """Releases request events at each interval, until cancelled. Raises GatewayError."""
        while True:
            await asyncio.sleep(self._push_interval_s)
            if not self._requests:
                continue
            if self._before_push is not None:
                sent = await self._before_push()
                if sent is not None and not self._has_pushed:
                    self._pass_over(sent)
            self._has_pushed = True
            self._push_due = bool(self._requests)
            self._wake()

    def _pass_over(self, sent: int) -> None:
        """Drops the request events that an earlier stream sent after this one began: it was still ending."""
        if sent != self._subscription.requests_sent and not self._is_position_named:
            self._sent_until = sent
            self._requests.skip_to(sent)

    async def close(self) -> None:
        self._tail.unsubscribe(self)
        if self._reader is not None:
            await self._reader.close()

    def next_batch(self) -> bytes | None:
        """Returns a muster.v1.ToResourceManager with the next events; None: there are none."""
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

    def mark_sent(self) -> bool:
        """Records that the batch of :meth:`next_batch` was written. Returns whether it had request events."""
        waiting = len(self._store)
        self._requests.sent()
        return len(self._store) < waiting

    def _encoded(self, batch: Sequence[object], result: tuple[bytes | None, int]) -> bytes | None:
        encoded, unreadable = result
        if encoded is not None and self._positions is not None:
            encoded += position_field(self._positions.text(self._stamp))
        metrics.events.inc(len(batch) - unreadable)
        if unreadable:
            metrics.unreadable_events.inc(unreadable)
            log.error("unreadable events", rm_id=self._rm_id, count=unreadable, of=len(batch))
        return encoded

    def _next(self) -> list[_QueuedEvent]:
        batch: list[_QueuedEvent] = []
        size = 0
        while self._waiting and len(batch) < BATCH_EVENTS:
            if size and size + len(self._waiting[0].value) > BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
            size += len(batch[-1].value)
        self._waiting_bytes -= size
        self._capacity_freed.set()
        return batch

    def _matches(self, record: Record, number: int) -> bool:
        if self._subscription.requests_only:
            return False
        after = self._subscription.after
        return record.offset >= self._end_at_start if after is None else number > after

    def _add_request(self, record: Record) -> None:
        """Takes a request event. Never raises, whatever the record holds."""
        if not self._matches_request(record.offset) or record.offset <= self._sent_until:
            return
        store = self._store
        dropped, empty = store.dropped, store.empty
        capacity = capacity_of(dict(record.headers).get(HEADER_STORE_CAPACITY))
        if capacity is not None and capacity != store.capacity:
            store.resize(capacity)
        store.add(record.offset, record.value)
        metrics.request_events_dropped.inc(store.dropped - dropped)
        metrics.request_events_empty.inc(store.empty - empty)

    def _matches_request(self, offset: int) -> bool:
        if offset >= self._end_at_start:
            return True
        after = self._requests_after()
        return offset > after if after is not None else self._passed

    def _requests_after(self) -> int | None:
        """Returns the position that the RM names, else the place where its last stream ended.

        A position that this log has not reached belongs to another log and is ignored.
        """
        if self._is_position_named:
            return self._subscription.requests_after
        sent = self._subscription.requests_sent
        return sent if sent is not None and sent < self._end_at_start else None

    @property
    def _is_position_named(self) -> bool:
        """Whether the RM names a position of this log."""
        after = self._subscription.requests_after
        return after is not None and after < self._end_at_start

    async def _start_offset(self, reader: LogReader) -> int:
        """Returns the offset to read from: at or before the first wanted event."""
        offset = await self._tracked_start_offset(reader)
        after = self._requests_after()
        if after is None and self._subscription.after is not None:
            return offset  # an RM that names its last event and no position gets the request events after that event
        if after is None or after != self._subscription.requests_after:
            after = max(-1 if after is None else after, self._end_at_start - 1 - _REQUESTS_BACKLOG_MAX)
        return min(offset, max(after + 1, await reader.first_offset()))

    async def _tracked_start_offset(self, reader: LogReader) -> int:
        after = self._subscription.after
        if after is None or (self._subscription.requests_only and self._requests_after() is not None):
            return self._end_at_start
        low, high = await reader.first_offset(), self._end_at_start
        try:
            async with asyncio.timeout(self._search_timeout_s):
                while high - low > _SEARCH_SPAN:
                    middle = (low + high) // 2
                    first_event = await self._first_from(reader, middle, high)
                    if first_event is None or first_event[1] > after:
                        high = middle
                    else:
                        low = first_event[0]
        except TimeoutError:
            log.warning("events searched for too long", rm_id=self._rm_id, after=after, records_left=high - low)
        return low

    async def _first_from(self, reader: LogReader, offset: int, end: int) -> tuple[int, int] | None:
        """Returns offset and id of the RM's first tracked event in [offset, end)."""
        reader.seek(offset)
        while reader.position < end:
            for record in await reader.read(_READ_RECORDS, _PROBE_WAIT_S):
                if record.offset >= end:
                    return None
                if record.key == self.key and (number := _id_of(record)) is not None:
                    return record.offset, number
        return None


def _stamp_of(record: Record) -> Stamp | None:
    """Returns the stamp of the events from this one on; None: it has that of the event before."""
    header = dict(record.headers).get(HEADER_STAMP)
    return Stamp.of_header(header) if header is not None else None


def _id_of(record: Record) -> int | None:
    """Returns the event's id; None for an untracked event, which is only for the RM."""
    headers = dict(record.headers)
    return event_id_of(headers.get(HEADER_EVENT_ID)) if headers.get(HEADER_TRACKING) != b"0" else None
