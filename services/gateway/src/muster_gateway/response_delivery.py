"""From si.responses to streams: one live tail per partition, and a reader of its own for a stream that lags.

feed
    The responses that one stream must still send: a bounded queue, and the place (*read_position*) behind the last
    record that the feed took. Records of other kinds move *read_position*, too. Records come in log order from one
    producer at a time: the live tail while the feed is *attached*, else the stream's own catch-up.
attach
    A feed may attach when it has seen everything that the tail has dispatched. Both live in one event loop, and there
    is no await between the comparison and the attaching. So no record is lost and none comes twice: if the tail
    dispatches a record below *read_position*, the feed skips it.
overflow
    A full queue detaches its feed. Nothing is dropped: the stream continues by catch-up from *read_position*.
broken streams
    gRPC does not tell which responses a client received. So the cursor of a broken stream goes back by a short time
    (``settled``), and that of a plain client is always that far behind, because its gateway may die: it may get some
    responses twice, but misses none. A client that names the last response it processed gets each once.
gaps
    An RM's responses of all kinds share one numbering without gaps, and a feed sees the numbers of all kinds. A missing
    number means that retention deleted it: ResponsesLost. Callback streams are an exception: a question as old as that
    has passed its deadline, so the stream continues with the oldest record of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet

import structlog
from muster_bus.damage import DamagedParts, Readers
from muster_bus.errors import CodecError, LogDamaged, LogError, LogUnavailable, OffsetOutOfRange
from muster_bus.log import Log, LogReader, PushReader, Record
from muster_bus.topics import Topics
from muster_runtime.backoff import aligned_s
from muster_runtime.elapsed import elapsed_s
from muster_si.positions import Positions, log_digest

from muster_gateway import metrics
from muster_gateway.codec import Answer, DecidedReport, RegistrationAnswer, Response, read_report, readable_response
from muster_gateway.errors import GatewayError, InvalidRequest, ResponsesLost, SchedulerTimeout, Superseded, quote
from muster_gateway.scheduler_reports import SchedulerReports
from muster_gateway.sessions.contract import UNKNOWN, Cursor
from muster_gateway.stream_fairness import ActiveRms
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

# With this metadata a stream names the last response that its RM processed (``responseSequence``). It gets only later
# ones.
RESUME_METADATA = "muster-resume-after"
# Responses of two seconds at a stream's highest rate.
_MAX_RECENT = 20_000
# A read returns after this wait, so that the loop can check whether the reader is still needed.
TAIL_WAIT_S = 1.0
CATCH_UP_WAIT_S = 0.2
# So many records are dispatched within the commit that made them; more of them in turns with other tasks.
_AT_ONCE = 64
_RETRY_MIN_S, _RETRY_MAX_S = 0.05, 2.0
# Longer than any transaction of the scheduler takes while it works.
_REPORT_S = 2.0
# An RM that had to wait for decisions shares what is possible for one to two of these times.
_THROTTLED_S = 1.0
# The search ends at this distance: one read covers it.
_SEARCH_SPAN = 500


class DueResponse(NamedTuple):
    """A response that waits to be written, and the cursor after it."""

    payload: bytes
    after: Cursor


class ResponseFeed:
    """See the module's docstring.

    :param start: cursor of everything already seen.
    :param resume_after: responses up to this number are not sent again.
    :param wake: called when the stream has something to do.
    :param positions: gives the responses' positions; None: they get none.
    """

    def __init__(
        self,
        rm_id: str,
        kind: StreamKind,
        start: Cursor,
        resume_after: int,
        max_responses: int,
        max_bytes: int,
        wake: Callable[[], None],
        now_s: Callable[[], float],
        positions: Positions | None = None,
    ) -> None:
        self._positions = positions
        self.rm_id, self.kind, self.key = rm_id, kind, rm_id.encode()
        self.attached = False
        self.error: GatewayError | None = None
        self._read_position = start
        self._written = start
        self._resume_after = resume_after
        self._queue: deque[DueResponse] = deque()
        self._queued_bytes = 0
        self._writing = False
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self.may_miss = kind is StreamKind.CALLBACK
        self._wake, self._now_s = wake, now_s
        self._recent: deque[tuple[float, Cursor]] = deque(maxlen=_MAX_RECENT)
        _FEEDS[kind].add(self)

    @property
    def is_moving(self) -> bool:
        """Whether ``delivered`` may move without a new record."""
        return self._writing or bool(self._queue) or not self.attached

    @property
    def read_position(self) -> Cursor:
        """The place behind the last record taken."""
        return self._read_position

    @property
    def delivered(self) -> Cursor:
        """The cursor to store: everything before it was written, or is not for this stream."""
        return self._written if self._queue or self._writing else self._read_position

    def has_capacity(self) -> bool:
        """Tells whether one more response may be queued. A single one may be larger than the whole limit."""
        return not self._queue or (len(self._queue) < self._max_responses and self._queued_bytes < self._max_bytes)

    def offer(self, offset: int, response: Response) -> None:
        """Takes the RM's next record, whatever its kind. The caller has checked :meth:`has_capacity`.

        Raises Superseded for a newer registration, ResponsesLost for a gap.
        """
        if offset < self._read_position.offset:
            return
        sequence = response.sequence
        if response.registration is not None:
            self._pass_registration(offset, sequence, response.registration)
            return
        # the answer to a configuration update or a command has no number, and the stream continues
        if response.answer is not None:
            self.skip_to(offset + 1)
            return
        last = self._read_position.sequence
        if last != UNKNOWN and sequence > last + 1 and not self.may_miss:
            raise ResponsesLost(
                self.rm_id,
                f"responses {last + 1} to {sequence - 1} were deleted by retention "
                "before they were sent, or are in a damaged part of the log",
            )
        mine = response.kind is self.kind and sequence > last
        self._read_position = Cursor(
            max(sequence, last), offset + 1, sequence if mine else self._read_position.last_sent
        )
        if mine and sequence > self._resume_after:
            payload = response.payload_at(self._positions)
            self._queue.append(DueResponse(payload, self._read_position))
            self._queued_bytes += len(payload)
            self._wake()

    def skip_to(self, offset: int) -> None:
        """Moves ``read_position``: the RM has no record before ``offset``."""
        if offset > self._read_position.offset:
            self._read_position = self._read_position._replace(offset=offset)

    @property
    def has_due(self) -> bool:
        """Whether a response waits."""
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        """The number of waiting responses."""
        return len(self._queue)

    def is_half_full(self) -> bool:
        """Tells whether the producer should wait for the stream instead of filling the feed further."""
        return len(self._queue) * 2 > self._max_responses or self._queued_bytes * 2 > self._max_bytes

    def next_due(self) -> DueResponse | None:
        """Takes the next response. The caller writes it and then calls ``written``."""
        if not self._queue:
            return None
        due = self._queue.popleft()
        self._queued_bytes -= len(due.payload)
        self._writing = True
        return due

    def mark_written(self, due: DueResponse) -> None:
        """Records that the response was written."""
        self._recent.append((self._now_s(), self._written))
        self._writing = False
        self._written = due.after

    def safe_cursor(self, window_s: float) -> Cursor:
        """Returns the cursor before the first write of the last ``window_s``, or the oldest one remembered. No later
        call may ask for a longer time: what was before is forgotten.
        """
        since_s, recent = self._now_s() - window_s, self._recent
        while recent and recent[0][0] <= since_s:
            recent.popleft()
        return recent[0][1] if recent else self.delivered

    def fail(self, error: GatewayError) -> None:
        """Ends the feed with an error. The stream still sends the queued responses."""
        self.attached = False
        self.error = error
        self._wake()

    def overflow(self) -> None:
        """Leaves the tail. The stream catches up from ``read_position`` after its queue is written."""
        self.attached = False
        metrics.overflows.labels(self.kind.name.lower()).inc()
        self._wake()

    def _pass_registration(self, offset: int, sequence: int, registration: RegistrationAnswer) -> None:
        if registration.accepted:
            raise Superseded.by_registration(self.rm_id)
        # A refused registration may or may not have a number; the next response tells.
        last = self._read_position.sequence
        counted = last != UNKNOWN and sequence == last + 1
        self._read_position = self._read_position._replace(sequence=sequence if counted else last, offset=offset + 1)


# Counted only when metrics are read, so that responses pay nothing for it.
_FEEDS: dict[StreamKind, WeakSet[ResponseFeed]] = {kind: WeakSet() for kind in StreamKind}


def _count_waiting(kind: StreamKind) -> Callable[[], float]:
    return lambda: sum(feed.waiting for feed in list(_FEEDS[kind]))


for _kind in StreamKind:
    metrics.waiting.labels(_kind.name.lower()).set_function(_count_waiting(_kind))


# For a tail or a catch-up that nobody asks about its health.
_UNSEEN = DamagedParts("the responses in them are not sent")


def _damaged(error: LogDamaged) -> str:
    return f"responses from offset {error.first_offset} to {error.next_offset} are in a damaged part of the log"


@dataclass(slots=True)
class _PendingCall:
    key: bytes
    answer: asyncio.Future[tuple[Answer, Cursor]]


class ResponseTail:
    """Follows one partition of si.responses from its end, and gives each record to its feed or its waiting call.

    :param on_positions_moved: called after records were given to feeds: their positions may move now.
    :param owners: gets the schedulers' reports.
    :param now_s: reads the event loop's time.
    """

    def __init__(
        self,
        bus: Log,
        topics: Topics,
        partition: int,
        batch: int,
        on_positions_moved: Callable[[], None] = lambda: None,
        damage: DamagedParts = _UNSEEN,
        owners: SchedulerReports | None = None,
        now_s: Callable[[], float] = elapsed_s,
    ) -> None:
        self._bus, self._topics, self.partition, self._batch = bus, topics, partition, batch
        self._on_positions_moved, self._damage, self._owners, self._now_s = on_positions_moved, damage, owners, now_s
        self._reader: LogReader | None = None
        self._dispatched = 0
        self._feeds: dict[bytes, dict[StreamKind, ResponseFeed]] = {}
        self._waiting: dict[str, _PendingCall] = {}
        self._waiting_keys: dict[bytes, int] = {}
        self.answering = True
        self.report = DecidedReport()  # the scheduler's last one
        self.positions: Positions | None = None  # since the start
        self._reports = asyncio.Event()
        self.active = ActiveRms(now_s())
        self.throttled = ActiveRms(now_s(), _THROTTLED_S)  # those whose streams wait for decisions
        # With a reader that calls back, records are dispatched right when they come, while the loop waits.
        self._prompt: PushReader | None = None
        self._waits = False
        self._more = asyncio.Event()
        self._failure: Exception | None = None

    async def wait_decided(self) -> bool:
        """Returns at the scheduler's next report of its decisions. False: it does not report.

        (It is away, or older than reports; or this is the start. The log then takes requests without a limit.)
        """
        if not self.report.decided:
            return False
        try:
            async with asyncio.timeout(_REPORT_S):
                await self._reports.wait()
        except TimeoutError:
            self.report = DecidedReport()
        return self.report.decided > 0

    def _report(self, record: Record) -> None:
        with contextlib.suppress(CodecError):
            report = read_report(record)
            if report is not None and self._owners is not None:
                self._owners.on_report(self.partition, report)
            if isinstance(report, DecidedReport):
                self.report = report
                reports, self._reports = self._reports, asyncio.Event()
                reports.set()

    async def start(self) -> None:
        """Opens a reader at the partition's end."""
        self.positions = Positions(log_digest(await self._bus.identity()), self.partition)
        self._reader = await self._bus.reader(self._topics.responses, self.partition)
        self._dispatched = await self._reader.end_offset()
        self._reader.seek(self._dispatched)
        if isinstance(self._reader, PushReader):
            self._prompt = self._reader
            self._prompt.on_more(self._dispatch_now)

    async def run(self) -> None:
        """Reads and dispatches until cancelled. Waits while the log is unreachable."""
        assert self._reader is not None
        retry_s = _RETRY_MIN_S
        while True:
            try:
                # 1. read, 2. dispatch; there is no await in between
                records = await self._next(self._reader)
                self._dispatch(records, self._reader.position)
                self.answering, retry_s = True, _RETRY_MIN_S
            except OffsetOutOfRange as error:
                self._jump(error.first, error)
            except LogDamaged as error:
                self._damage.note(error)
                self._jump(error.next_offset, error)
            except LogUnavailable as error:
                self.answering = False
                log.warning("response log unavailable", partition=self.partition, error=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_MAX_S)

    async def _next(self, reader: LogReader) -> Sequence[Record]:
        """Reads. Raises LogError."""
        if self._prompt is None:
            return await reader.read(self._batch, TAIL_WAIT_S)
        records = await reader.read(self._batch, 0)
        if records:
            return records
        self._more.clear()
        self._waits = True
        try:
            async with asyncio.timeout(aligned_s(TAIL_WAIT_S)):
                await self._more.wait()
        except TimeoutError:
            pass
        finally:
            self._waits = False
        if self._failure is not None:
            raise self._failure
        return await reader.read(self._batch, 0)

    def _dispatch_now(self) -> None:
        """Dispatches records right when they become visible: the loop then has nothing to do for them."""
        if not self._waits or self._prompt is None:
            return  # the loop reads on by itself
        try:
            records = self._prompt.read_now(_AT_ONCE)
            self._dispatch(records, self._prompt.position)
            if len(records) < _AT_ONCE:
                return
        except LogError:
            pass  # the loop meets it, too
        except Exception as error:  # a defect here must end the loop, not the log
            self._failure = error
        self._waits = False
        self._more.set()

    async def close(self) -> None:
        """Closes the reader. The owners of feeds and waits end those."""
        if self._reader is not None:
            await self._reader.close()

    def attach(self, feed: ResponseFeed) -> bool:
        """Attaches the feed if it has seen everything that was dispatched. Returns whether it did."""
        if feed.read_position.offset < self._dispatched:
            return False
        self._feeds.setdefault(feed.key, {})[feed.kind] = feed
        feed.attached = True
        return True

    def detach(self, feed: ResponseFeed) -> None:
        """Detaches the feed if it is attached."""
        feed.attached = False
        feeds = self._feeds.get(feed.key)
        if feeds is not None and feeds.get(feed.kind) is feed:
            del feeds[feed.kind]
            if not feeds:
                del self._feeds[feed.key]

    def register_call(self, rm_id: str, request_id: str) -> asyncio.Future[tuple[Answer, Cursor]]:
        """Returns a future for the answer to a request with this id, and the cursor behind it. The caller must call
        ``forget``.
        """
        key = rm_id.encode()
        answer: asyncio.Future[tuple[Answer, Cursor]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = _PendingCall(key, answer)
        self._waiting_keys[key] = self._waiting_keys.get(key, 0) + 1
        return answer

    def cancel_call(self, request_id: str) -> None:
        """Ends the wait for this answer."""
        waiting = self._waiting.pop(request_id)
        self._waiting_keys[waiting.key] -= 1
        if not self._waiting_keys[waiting.key]:
            del self._waiting_keys[waiting.key]

    def _dispatch(self, records: Sequence[Record], position: int) -> None:
        now_s = self._now_s()
        self.active.expire(now_s)
        self.throttled.expire(now_s)
        for record in records:
            if record.key is None:
                self._report(record)
                continue
            self.active.record(record.key)
            feeds = self._feeds.get(record.key)
            if feeds is None and record.key not in self._waiting_keys:
                continue
            if (response := readable_response(record)) is None:
                continue
            if response.answer is not None and self.positions is not None:
                self._answer(record.offset, response.sequence, response.answer_at(self.positions))
            if feeds is not None:
                for feed in list(feeds.values()):
                    self._offer(feed, record.offset, response)
        self._dispatched = position
        if records:
            self._on_positions_moved()

    def _offer(self, feed: ResponseFeed, offset: int, response: Response) -> None:
        if not feed.has_capacity():
            self.detach(feed)
            feed.overflow()
            return
        try:
            feed.offer(offset, response)
        except GatewayError as error:
            self.detach(feed)
            feed.fail(error)

    def _answer(self, offset: int, sequence: int, answer: Answer) -> None:
        waiting = self._waiting.get(answer.request_id)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result((answer, _behind_registration(offset, sequence)))

    def _jump(self, position: int, error: LogError) -> None:
        """Detaches all feeds, because records are gone or damaged. Each finds lost responses by its own catch-up."""
        assert self._reader is not None
        log.error("responses are gone before they were read", partition=self.partition, error=str(error))
        for feed in [feed for feeds in self._feeds.values() for feed in feeds.values()]:
            self.detach(feed)
            feed.overflow()
        self._dispatched = position
        self._reader.seek(position)


class CatchUp:
    """Brings lagging feeds to the live tail, a bounded number at the same time."""

    def __init__(self, bus: Log, topics: Topics, batch: int, max_readers: int, damage: DamagedParts = _UNSEEN) -> None:
        self._bus, self._topics, self._batch, self._damage = bus, topics, batch, damage
        self._reader_slots = asyncio.Semaphore(max_readers)

    async def run(self, feed: ResponseFeed, tail: ResponseTail, room: Callable[[], Awaitable[None]]) -> None:
        """Returns when the feed is attached.

        :param room: writes the queued responses; awaited before each record that finds the queue full.

        Raises Superseded, ResponsesLost, LogError.
        """
        if tail.attach(feed):
            return
        async with self._reader_slots:
            reader = await self._bus.reader(self._topics.responses, tail.partition, max(feed.read_position.offset, 0))
            metrics.catch_ups.inc()
            try:
                while not tail.attach(feed):
                    await self._read_on(reader, feed, room)
            finally:
                metrics.catch_ups.dec()
                await reader.close()

    async def _read_on(self, reader: LogReader, feed: ResponseFeed, room: Callable[[], Awaitable[None]]) -> None:
        try:
            records = await reader.read(self._batch, CATCH_UP_WAIT_S)
        except OffsetOutOfRange as error:
            if error.position > error.end:
                raise ResponsesLost(
                    feed.rm_id,
                    f"the response log ends at {error.end}, but was sent up to {error.position} (was it replaced?)",
                ) from error
            if (
                feed.read_position.sequence == UNKNOWN and not feed.may_miss
            ):  # no number tells whether the deleted records were this RM's
                raise ResponsesLost(
                    feed.rm_id, f"responses before offset {error.first} were deleted by retention before they were sent"
                ) from error
            reader.seek(error.first)
            feed.skip_to(error.first)
            return
        except LogDamaged as error:
            self._damage.note(error)
            if feed.read_position.sequence == UNKNOWN and not feed.may_miss:
                raise ResponsesLost(feed.rm_id, f"{_damaged(error)} before they were sent") from error
            reader.seek(error.next_offset)
            feed.skip_to(error.next_offset)
            return
        for record in records:
            if record.key == feed.key:
                response = readable_response(record)
                if not feed.has_capacity():
                    await room()
                if response is not None:
                    feed.offer(record.offset, response)
        feed.skip_to(reader.position)
        if feed.is_half_full():
            await room()


class ResumePoint:
    """Finds where a stream's responses begin, from the session and from the RM's own number."""

    def __init__(self, bus: Readers, topics: Topics, batch: int, timeout_s: float) -> None:
        self._bus, self._topics, self._batch, self._timeout_s = bus, topics, batch, timeout_s

    async def find(
        self, rm_id: str, registered_at: Cursor, stored: Cursor, resume_after: int | None
    ) -> tuple[Cursor, int]:
        """Returns the start cursor, and the number up to which nothing is sent. Usually this reads nothing from the
        log.

        1. The stored cursor, if it belongs to the registration in force; else the place just behind that registration.
        2. The RM's own number wins. A smaller one is searched backwards; a larger one must exist.

        :param stored: NOWHERE if not known.

        Raises InvalidRequest for a number that was never given, SchedulerTimeout if the search takes too long.
        """
        start = stored if stored.offset >= registered_at.offset else registered_at
        if resume_after is None:
            return start, 0
        if start.sequence != UNKNOWN and start.last_sent <= resume_after <= start.sequence:
            return start, resume_after
        if resume_after <= registered_at.sequence:
            return registered_at, 0
        highest = start
        if resume_after > start.sequence:
            highest = await self._bounded(self._highest, rm_id, start)
            # no response since the registration: the number is from an earlier registration
            if highest.sequence == UNKNOWN:
                return start, 0
            if resume_after > highest.sequence:
                raise InvalidRequest(
                    f"{RESUME_METADATA}: {resume_after}, expected at most {highest.sequence}, "
                    f"the last response of rmID {quote(rm_id)}"
                )
            if start.sequence != UNKNOWN:
                return start, resume_after
        return await self._bounded(self._behind, rm_id, resume_after, registered_at, highest), resume_after

    async def find_callbacks(
        self, rm_id: str, registered_at: Cursor, stored: Cursor, resume_after: int | None, since_ms: int
    ) -> tuple[Cursor, int]:
        """Does the same for a callback stream. It needs nothing that is older than ``since_ms``.

        1. The first stream since the registration begins at the present: there were no questions before.
        2. Otherwise the stored cursor; but if the RM processed less than was sent, back to ``since_ms`` at most.
        """
        skip = resume_after or 0
        if stored.offset < registered_at.offset:
            return await self._bounded(self._now, rm_id), skip
        low = (
            stored
            if resume_after is None or stored.last_sent <= resume_after
            else registered_at._replace(sequence=UNKNOWN, last_sent=UNKNOWN)
        )
        return await self._bounded(self._not_before, rm_id, low, since_ms), skip

    async def registration(self, rm_id: str) -> Cursor:
        """Finds the answer to the registration in force if the session lost its place. Reads the whole partition."""
        return await self._bounded(self._last_registration, rm_id)

    async def _bounded(self, search: Callable[..., Awaitable[Cursor]], rm_id: str, *arguments: object) -> Cursor:
        partition = self._topics.partition_of(rm_id)
        reader = await self._bus.reader(self._topics.responses, partition)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await search(reader, rm_id.encode(), *arguments)
        except TimeoutError as error:
            raise SchedulerTimeout(f"the responses of rmID {quote(rm_id)} were not found in time: try again") from error
        finally:
            await reader.close()

    async def _now(self, reader: LogReader, _key: bytes) -> Cursor:
        return Cursor(UNKNOWN, await reader.end_offset(), UNKNOWN)

    async def _not_before(self, reader: LogReader, _key: bytes, low: Cursor, since_ms: int) -> Cursor:
        """Returns ``low``, or the first record written at ``since_ms`` or later, by bisection: time grows with
        offsets.
        """
        first, end = await reader.first_offset(), await reader.end_offset()
        bottom, top = max(low.offset, first), end
        if low.offset <= end and await self._is_recent(reader, bottom, end, since_ms):
            return low._replace(offset=bottom)
        while bottom < top:
            middle = (bottom + top) // 2
            if await self._is_recent(reader, middle, end, since_ms):
                top = middle
            else:
                bottom = middle + 1
        return Cursor(UNKNOWN, top, UNKNOWN)

    async def _is_recent(self, reader: LogReader, offset: int, end: int, since_ms: int) -> bool:
        """Tells whether the first record from ``offset`` on is recent. The end of the log counts as recent."""
        reader.seek(offset)
        while reader.position < end:
            for record in await reader.read(1, CATCH_UP_WAIT_S):
                return record.timestamp_ms >= since_ms
        return True

    async def _last_registration(self, reader: LogReader, key: bytes) -> Cursor:
        """Returns the place behind the last accepted registration in the log; else the first record, with unknown
        number.
        """
        first, end = await reader.first_offset(), await reader.end_offset()
        cursor = Cursor(UNKNOWN, first, UNKNOWN)
        reader.seek(first)
        while reader.position < end:
            for record in await reader.read(self._batch, CATCH_UP_WAIT_S):
                response = readable_response(record) if record.key == key else None
                if response is not None and response.registration is not None and response.registration.accepted:
                    cursor = _behind_registration(record.offset, response.sequence)
        return cursor

    async def _behind(self, reader: LogReader, key: bytes, sequence: int, low: Cursor, high: Cursor) -> Cursor:
        """Returns a cursor behind everything up to ``sequence``, by bisection: numbers grow with offsets."""
        first = await reader.first_offset()
        bottom, top = max(low.offset, first), high.offset
        while top - bottom > _SEARCH_SPAN:
            middle = (bottom + top) // 2
            cursor = await self._first_between(reader, key, middle, top)
            if cursor is None or cursor.sequence > sequence:
                top = middle
            else:
                bottom = cursor.offset
        # Some numbers up to ``sequence`` may still follow. The feed skips them and notices whether any is missing.
        cursor = await self._first_between(reader, key, bottom, top)
        # A registration need not have a number. If it is still in the log, nothing after it can be missing.
        whole = bottom == low.offset and (low.offset > first or first == 0)
        passed = cursor.sequence - 1 if cursor is not None and (cursor.sequence <= sequence or whole) else sequence
        return Cursor(passed, bottom, passed)

    async def _highest(self, reader: LogReader, key: bytes, start: Cursor) -> Cursor:
        """Returns the RM's last response in the log; ``start`` if there is none after it."""
        end, highest = await reader.end_offset(), start
        reader.seek(max(start.offset, await reader.first_offset()))
        while reader.position < end:
            for record in await reader.read(self._batch, CATCH_UP_WAIT_S):
                response = readable_response(record) if record.key == key else None
                # An answer without a number (to a refused registration, for example) is no response.
                if response is not None and response.sequence and response.sequence > highest.sequence:
                    highest = Cursor(response.sequence, record.offset + 1, response.sequence)
        return highest

    async def _first_between(self, reader: LogReader, key: bytes, bottom: int, top: int) -> Cursor | None:
        """Returns number and offset of the RM's first record in [bottom, top)."""
        reader.seek(bottom)
        while reader.position < top:
            for record in await reader.read(self._batch, CATCH_UP_WAIT_S):
                if record.offset >= top:
                    return None
                response = readable_response(record) if record.key == key else None
                if response is not None and response.sequence:
                    return Cursor(response.sequence, record.offset, response.sequence)
        return None


def _behind_registration(offset: int, sequence: int) -> Cursor:
    """A registration's answer may have a number or not (0)."""
    return Cursor(sequence or UNKNOWN, offset + 1, sequence or UNKNOWN)
