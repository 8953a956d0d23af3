"""The events of one RM, for its callback stream: a reader of its own on the RM's partition of si.events.

place
    From the end of the log on, or behind the event with a given id, which is found by halving: an RM's ids grow with
    offsets, without gaps. An id that retention has deleted begins at what is left; the RM sees it by the ids.

room
    What was read and not yet written is bounded; then the reader waits for the stream's writer. So a slow RM costs
    this much memory and no more, and loses nothing that the log keeps.

batches
    The writer takes what is there when it is free. An idle stream sends an event as soon as it is read; a busy one
    sends many together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog
from muster_bus.errors import LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader, Record
from muster_bus.topics import HEADER_EVENT_ID, HEADER_TRACKING, Topics

from muster_gateway import metrics
from muster_gateway.callback_codec import encode_events
from muster_gateway.errors import LogDown

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
    id: int | None


class EventFeed:
    """See the module's words. ``start``, then ``run`` in a task, then ``close``.

    :param after: events with a higher id are given; None: those that are written from ``start`` on.
    :param wake: called when there is a batch to write.
    :param search_timeout_s: a search for the place that takes longer goes on by reading from where it is.
    """

    def __init__(
        self,
        bus: Log,
        topics: Topics,
        rm_id: str,
        after: int | None,
        wake: Callable[[], None],
        search_timeout_s: float,
    ) -> None:
        self._bus, self._topic, self._partition = bus, topics.events, topics.partition_of(rm_id)
        self._rm_id, self._key, self._after, self._wake = rm_id, rm_id.encode(), after, wake
        self._search_timeout_s = search_timeout_s
        self._reader: LogReader | None = None
        self._end_at_start = 0
        self._passed = after is None  # whether untracked events, which have no id, lie behind the place
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._room = asyncio.Event()

    async def start(self) -> None:
        """Notes what "now" is. Raises LogDown."""
        try:
            self._reader = await self._bus.reader(self._topic, self._partition)
            self._end_at_start = await self._reader.end_offset()
        except LogUnavailable as error:
            raise LogDown(f"the event log does not answer: {type(error).__name__}") from error

    async def run(self) -> None:
        """Reads until cancelled. The log's absence is waited out."""
        reader, retry_s, placed = self._reader, _RETRY_MIN_S, False
        assert reader is not None
        while True:
            try:
                if not placed:
                    reader.seek(await self._place(reader))
                    placed = True
                for record in await reader.read(_READ_RECORDS, _READ_WAIT_S):
                    if record.key == self._key:
                        await self._take(record)
                retry_s = _RETRY_MIN_S
            except OffsetGone as error:
                log.warning("events deleted before they were sent", rm_id=self._rm_id, error=str(error))
                reader.seek(error.first)
            except LogUnavailable as error:
                log.warning("event log unavailable", rm_id=self._rm_id, error=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_MAX_S)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    def next_batch(self) -> bytes | None:
        """A muster.v1.ToResourceManager with the next events; None: there are none."""
        while self._waiting:
            batch = self._next()
            encoded, unreadable = encode_events(batch)
            metrics.events.inc(len(batch) - unreadable)
            if unreadable:
                metrics.unreadable_events.inc(unreadable)
                log.error("unreadable events", rm_id=self._rm_id, count=unreadable, of=len(batch))
            if encoded is not None:
                return encoded
        return None

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

    async def _take(self, record: Record) -> None:
        if not self._is_wanted(record) or record.value is None:
            return
        number = _id_of(record)
        while len(self._waiting) >= _WAITING_EVENTS or self._waiting_bytes >= _WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(_Waiting(record.value, number))
        self._waiting_bytes += len(record.value)
        self._wake()

    def _is_wanted(self, record: Record) -> bool:
        number = _id_of(record)
        if self._after is None:
            return True
        if number is not None:
            self._passed |= number >= self._after
            return number > self._after
        return self._passed or record.offset >= self._end_at_start

    async def _place(self, reader: LogReader) -> int:
        """Where to read from: at or before the first event that is wanted."""
        if self._after is None:
            return self._end_at_start
        low, high = await reader.first_offset(), self._end_at_start
        try:
            async with asyncio.timeout(self._search_timeout_s):
                while high - low > _SEARCH_SPAN:
                    middle = (low + high) // 2
                    found = await self._first_from(reader, middle, high)
                    if found is None or found[1] > self._after:
                        high = middle
                    else:
                        low = found[0]
        except TimeoutError:
            log.warning("events searched for too long", rm_id=self._rm_id, after=self._after, records_left=high - low)
        return low

    async def _first_from(self, reader: LogReader, offset: int, end: int) -> tuple[int, int] | None:
        """Offset and id of the RM's first tracked event in [offset, end)."""
        reader.seek(offset)
        while reader.position < end:
            for record in await reader.read(_READ_RECORDS, _PROBE_WAIT_S):
                if record.offset >= end:
                    return None
                if record.key == self._key and (number := _id_of(record)) is not None:
                    return record.offset, number
        return None


def _id_of(record: Record) -> int | None:
    """None: untracked, for the RM only."""
    headers = dict(record.headers)
    number = headers.get(HEADER_EVENT_ID, b"")
    return int(number) if headers.get(HEADER_TRACKING) != b"0" and number.isdigit() else None
