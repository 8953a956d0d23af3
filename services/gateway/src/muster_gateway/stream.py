"""One open stream of an RM: its requests go to the log, its responses come from there.

The stream has two tasks. The *reading* task takes one message after the other: admission, room in the log, append. It
reads no further while there is no room, so the RM's own flow control stops the RM. The *writing* task sends admission's
answers and the feed's responses. Either task may end the stream with an error; the handler then sends the status.

A callback stream (callback_stream.py) is a stream with other requests and with messages beside its feed.

A half-closed stream (the RM sends no more) keeps its seat and receives until the RM cancels it: SI's responses come at
any time, whichever stream asked for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from muster_bus.clock import Clock
from muster_bus.damage import Readers
from muster_bus.errors import BusError, LogError, RecordTooLarge
from muster_bus.log import LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_runtime.addresses import host_of_peer
from muster_runtime.caller import current
from muster_runtime.chance import SYSTEM, new_id
from muster_runtime.ending import Ending
from muster_runtime.identity import Identity, Right

from muster_gateway import metrics
from muster_gateway.admission import admission_steps, check_rm_id, rm_id_steps
from muster_gateway.authentication import check_rm
from muster_gateway.codec import DecidedReport, RequestCodec
from muster_gateway.connections import Accounts
from muster_gateway.errors import (
    FirstMessageTimeout,
    GatewayError,
    InvalidRequest,
    LogDown,
    OverLimit,
    RightRevoked,
    RmShutDown,
    StreamEnded,
    Superseded,
    append_failure_text,
    quote,
)
from muster_gateway.event_tail import EventTail
from muster_gateway.message_numbers import MAX_DIGITS, MessageNumbering, numbers_of
from muster_gateway.quotas import CallerQuotas
from muster_gateway.rates import RateLimiter
from muster_gateway.response_delivery import RESUME_METADATA, CatchUp, ResponseFeed, ResponseTail, ResumePoint
from muster_gateway.session_manager import HeldSeat, SeatGrant, SessionManager
from muster_gateway.sessions.contract import NOWHERE, Advance, Cursor, SessionStore
from muster_gateway.settings import AdmissionLimits, GatewaySettings
from muster_gateway.stream_fairness import StepTurns
from muster_gateway.stream_kind import StreamKind
from muster_gateway.undecided import UndecidedRequests

log = structlog.get_logger(__name__)
T = TypeVar("T")

# With this metadata a stream belongs to an RM from the start, before its first message.
RM_METADATA = "muster-rm-id"
# With this metadata a stream announces that its RM leaves for good (the scheduler interface: "RM voluntarily shutdown",
# for which SI has no message).
SHUTDOWN_METADATA = "muster-shutdown"
# The queue is small when a stream ends. The gateway waits no longer for a client that does not read.
_LAST_WRITES_S = 1.0
_SUPERSEDE_WAIT_S = 2.0


class StreamContext(Protocol):
    """The used part of ``grpc.aio.ServicerContext``."""

    def read(self) -> Awaitable[Any]: ...
    def write(self, message: bytes) -> Awaitable[None]: ...
    def send_initial_metadata(self, metadata: tuple[()]) -> Awaitable[None]: ...
    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StreamDependencies:
    """The objects that all streams of a gateway share."""

    settings: GatewaySettings
    gateway_id: str
    bus: Readers
    topics: Topics
    clock: Clock
    writer: LogWriter
    codec: RequestCodec
    sessions: SessionStore
    session_manager: SessionManager
    tails: list[ResponseTail]
    event_tails: list[EventTail]
    catch_up: CatchUp
    starting_point: ResumePoint
    table: StreamTable
    quotas: CallerQuotas
    rates: RateLimiter
    accounts: Accounts
    step_runner: StepTurns


class StreamTable:
    """The streams of this gateway that have a seat.

    :ivar positions_moved: set when the delivered position of a stream may have moved.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[str, StreamKind], RmStream] = {}
        self.positions_moved = asyncio.Event()
        # Streams that take a seat now: for a moment they are in the store, but not yet in the table.
        self._acquiring_seats: Counter[tuple[str, StreamKind]] = Counter()

    def get(self, rm_id: str, kind: StreamKind) -> RmStream | None:
        return self._streams.get((rm_id, kind))

    def put(self, stream: RmStream) -> None:
        self._streams[stream.rm_id, stream.kind] = stream

    def remove(self, stream: RmStream) -> None:
        if self._streams.get((stream.rm_id, stream.kind)) is stream:
            del self._streams[stream.rm_id, stream.kind]

    def has_connection(self, peer: str) -> bool:
        """Tells whether a connection has a stream of an RM."""
        return any(stream._context.peer() == peer for stream in self._streams.values())

    def all(self) -> list[RmStream]:
        return list(self._streams.values())

    def has_unsaved_position(self) -> bool:
        """Tells whether there is a position to store, or may soon be one that sets no ``positions_moved``."""
        return any(stream.has_unsaved_position for stream in self._streams.values())

    def of_rm(self, rm_id: str) -> list[RmStream]:
        return [stream for kind in StreamKind if (stream := self._streams.get((rm_id, kind))) is not None]

    @contextlib.contextmanager
    def acquiring_seat(self, rm_id: str, kind: StreamKind) -> Iterator[None]:
        """Marks the time in which a stream takes a seat."""
        self._acquiring_seats[rm_id, kind] += 1
        try:
            yield
        finally:
            self._acquiring_seats[rm_id, kind] -= 1
            if not self._acquiring_seats[rm_id, kind]:
                del self._acquiring_seats[rm_id, kind]

    # ---- the interface for a sweep ----------------------------------------------------------------------------------

    def is_acquiring_seat(self, rm_id: str, kind: StreamKind) -> bool:
        return (rm_id, kind) in self._acquiring_seats

    def epoch_of(self, rm_id: str, kind: StreamKind) -> int | None:
        stream = self.get(rm_id, kind)
        return stream.epoch if stream is not None else None

    def occupied_seats(self) -> list[HeldSeat]:
        return [stream.seat for stream in self._streams.values() if not stream.has_ended]

    def is_seat_owner(self, rm_id: str, kind: StreamKind, epoch: int) -> bool:
        stream = self.get(rm_id, kind)
        return stream is not None and stream.epoch == epoch and not stream.has_ended

    def end(self, rm_id: str, kind: StreamKind, error: GatewayError) -> None:
        stream = self.get(rm_id, kind)
        if stream is not None:
            stream.end(error)


class RmStream:
    """See the module's docstring. Used once: ``run``, then ``finish``, which may outlive the handler."""

    def __init__(self, parts: StreamDependencies, kind: StreamKind, context: StreamContext) -> None:
        self._dependencies, self.kind, self._context = parts, kind, context
        self._caller = current()
        self.rm_id = ""
        self.epoch = 0
        self._registered_at = NOWHERE
        self._partition = 0
        self.stored: Cursor = NOWHERE  # the session store's value
        self.storing: asyncio.Future[None] | None = None  # set while a position is being stored
        self._feed: ResponseFeed | None = None
        self._last_cursor: Cursor | None = None
        self._resumes = False  # the client names its place
        self._tail: ResponseTail | None = None
        self._headers_sent = False
        self._ending: Ending[GatewayError] = Ending(f"a stream of kind {kind.name}")
        self._cut_off = False  # a write found that the call had ended
        # Set when the RM is about to leave: the reason for the end, whichever task notices first that the seat is lost.
        self._leaving: GatewayError | None = None
        self._wake = asyncio.Event()
        self._finished = asyncio.Event()
        self._capacity_freed = asyncio.Event()
        self._answers: deque[bytes] = deque()
        self._inflight_bytes = 0
        self._undecided = UndecidedRequests(parts.settings)
        self._numbers: MessageNumbering | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    # ---- the handler's side ---------------------------------------------------------------------------------------

    async def run(self) -> GatewayError:
        """Serves the stream until it ends. Returns the reason. Raises GatewayError if it fails before it has a seat."""
        # 1. the stream's RM, and the place where it resumes
        metadata = _metadata(self._context.invocation_metadata())
        resume_after = _resume_after(metadata.get(RESUME_METADATA))
        self._resumes = resume_after is not None
        self._numbers = numbers_of(metadata)
        first = await self._bind(metadata.get(RM_METADATA))
        self._check_right()
        if metadata.get(SHUTDOWN_METADATA) == "true":
            return await self._shut_down()
        # 2. the seat
        await self._acquire_seat(resume_after)
        await self._send_headers()
        await self._seated()
        await self._dependencies.quotas.on_stream_opened(self.rm_id, self._caller.identity)
        # 3. both directions
        self._reading = asyncio.create_task(self._read_requests(first), name=f"read {self.kind.name}")
        self._writing = asyncio.create_task(self._write_responses(), name=f"write {self.kind.name}")
        ending = await self._ending.wait()
        await asyncio.wait({self._writing}, timeout=_LAST_WRITES_S)
        return ending

    def end(self, error: GatewayError) -> None:
        """Ends the stream. The first reason counts."""
        self._ending.by(self._leaving or error)
        self._wake.set()
        self._capacity_freed.set()

    @property
    def reason(self) -> GatewayError | None:
        """The reason to end; None: the stream goes on."""
        return self._ending.cause

    @property
    def identity(self) -> Identity:
        """The present identity of the caller."""
        return self._caller.identity

    @property
    def seat(self) -> HeldSeat:
        return HeldSeat(self.rm_id, self.kind, self.epoch, self._registered_at)

    @property
    def has_ended(self) -> bool:
        """Whether the stream has a reason to end. It may still have its seat."""
        return self.reason is not None

    async def finish(self) -> None:
        """Stores the last position and leaves the seat. Never raises: a sweep repairs failures here."""
        broke_off = self.reason is None or self._cut_off
        if self.reason is None:
            self.end(StreamEnded("the call is over"))
        try:
            await self._stop_background_tasks()
            await self._stop_writing()
            if broke_off and self._feed is not None:
                self._last_cursor = self._feed.safe_cursor(self._dependencies.settings.resend_window_s)
            if self._feed is not None and self._tail is not None:
                self._tail.detach(self._feed)
            if self.epoch:
                await self._leave()
        except GatewayError as error:
            log.warning("stream left no trace", rm_id=self.rm_id, kind=self.kind.name, error=str(error))
        finally:
            self._dependencies.table.remove(self)
            self._finished.set()
            # Freed with its last user, without a collection of garbage: where an error was raised, it is a variable.
            self._reading = self._writing = None
            assert self.reason is not None
            self.reason.__traceback__ = self.reason.__context__ = self.reason.__cause__ = None

    async def wait_finished(self, timeout_s: float) -> None:
        """Returns when the stream has left its seat, or after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._finished.wait()
        except TimeoutError:
            log.warning("stream does not end", rm_id=self.rm_id, kind=self.kind.name)

    @property
    def has_unsaved_position(self) -> bool:
        """Whether the stream has a position to store, or is about to have one."""
        feed = self._feed
        if feed is None:
            return False
        return feed.is_moving or self.unsaved_position() is not None or self._cursor_of(feed) != feed.delivered

    def unsaved_position(self) -> Advance | None:
        """Returns the cursor to store, if it has moved since the last time."""
        if self._feed is None or not self.epoch:
            return None
        cursor = self._cursor_of(self._feed)
        return Advance(self.rm_id, self.kind, self.epoch, cursor) if cursor != self.stored else None

    def _cursor_of(self, feed: ResponseFeed) -> Cursor:
        """The cursor to store. A client that names no number may not have what was written last: this gateway may die,
        and so may the connection. (A question that is lost passes its deadline, and comes again.)
        """
        if self._last_cursor is not None:
            return self._last_cursor
        if self._resumes or self.kind is StreamKind.CALLBACK:
            return feed.delivered
        return feed.safe_cursor(self._dependencies.settings.resend_window_s)

    async def _stop_background_tasks(self) -> None:
        """Ends the tasks beside reading and writing. Never raises."""

    async def _stop_writing(self) -> None:
        writing = self._writing
        if writing is None:
            return
        await asyncio.wait({writing}, timeout=_LAST_WRITES_S)
        if not writing.done():
            writing.cancel()
            await asyncio.wait({writing})

    async def _leave(self) -> None:
        if self.storing is not None:  # the store may take two positions in any order, and the last one counts
            await asyncio.wait({self.storing})
        move = self.unsaved_position()
        if move is not None:
            await self._dependencies.sessions.advance([move])
        # If superseded, another stream has the seat or is about to take it; the RM was never away.
        if not isinstance(self.reason, Superseded):
            await self._dependencies.session_manager.release_seat(self.rm_id, self.kind, self.epoch)

    # ---- taking the seat ------------------------------------------------------------------------------------------

    async def _bind(self, rm_id: str | None) -> bytes | None:
        """Finds the stream's RM. Returns the first message if it was needed for that."""
        limits = self._dependencies.settings.limits
        if rm_id is not None:
            check_rm_id(rm_id, limits)
            self.rm_id = rm_id
            return None
        await self._send_headers()  # a client that waits for the headers before it writes would wait for ever
        timeout_s = self._dependencies.settings.calls.first_message_timeout_s
        try:
            first = await self._first_message(timeout_s)
        except TimeoutError:
            metrics.calls_refused.labels("no_message").inc()
            raise FirstMessageTimeout(
                f"no message within {timeout_s:g} s (gateway.calls.first_message_timeout_s): an RM may open its "
                f"streams long before its first message, if the metadata {RM_METADATA} names its rmID"
            ) from None
        if first is grpc.aio.EOF:
            raise InvalidRequest(f"the stream was closed before a message or the metadata {RM_METADATA} named its rmID")
        self.rm_id = await self._in_turns(rm_id_steps(self.kind, first, limits))
        return bytes(first)

    def _check_right(self) -> None:
        """Raises PermissionDenied if the caller may not act as the RM. Ends the stream when the caller loses that
        right.
        """
        caller = self._caller
        check_rm(Right.ACT, caller, self.rm_id)
        caller.on_withdrawn(lambda: self.end(RightRevoked(caller.identity.name)))

    async def _first_message(self, timeout_s: float | None) -> Any:
        """Returns the first message, or EOF. Raises the error that ends the stream meanwhile, or TimeoutError.

        A stream may be silent for ever beside a stream of its connection that has named its RM: a plain client opens
        all its streams at its start, and has nothing to say on some of them while its cluster is idle.
        """
        reading = asyncio.ensure_future(self._context.read())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            waiting = partial(asyncio.wait, {reading, ending}, timeout=timeout_s)
            while not (await waiting(return_when=asyncio.FIRST_COMPLETED))[0]:
                if not self._dependencies.table.has_connection(self._context.peer()):
                    raise TimeoutError
            if self.reason is not None:
                raise self.reason
            return await reading
        finally:
            for task in (reading, ending):
                task.cancel()

    async def _send_headers(self) -> None:
        """Sends the call's headers, once. From them a client knows that the stream is open.

        Without this, gRPC would send them with the first response, which may come much later. A stream that names its
        RM in the metadata gets them when it has its seat.
        """
        if self._headers_sent:
            return
        self._headers_sent = True
        try:
            await self._context.send_initial_metadata(())
        except grpc.aio.InternalError as error:  # the client has left
            raise StreamEnded("the call is over") from error

    async def _acquire_seat(self, resume_after: int | None) -> None:
        parts = self._dependencies
        # 1. an older stream of this gateway ends first, so that its last position is stored before this one reads it
        await self._replace(parts.table.get(self.rm_id, self.kind))
        # 2. the seat; the epoch tells whether a stream that came in between is older or newer
        with parts.table.acquiring_seat(self.rm_id, self.kind):
            taken = await parts.session_manager.acquire_seat(self.rm_id, self.kind)
            self.epoch, self.stored, self._registered_at = taken.epoch, taken.stored, taken.registered_at
            between = parts.table.get(self.rm_id, self.kind)
            if between is not None and between.epoch > self.epoch:
                raise Superseded.by_stream(self.rm_id, self.kind)
            parts.table.put(self)
        await self._replace(between)
        # 3. the place where responses continue
        registered_at = taken.registered_at
        if registered_at == NOWHERE:
            registered_at = await parts.starting_point.registration(self.rm_id)
            await parts.session_manager.store_registration_position(self.rm_id, registered_at)
            self._registered_at = registered_at
        start, skip = await self._find_start(registered_at, taken, resume_after)
        settings = parts.settings
        self._partition = parts.topics.partition_of(self.rm_id)
        self._tail = parts.tails[self._partition]
        self._feed = ResponseFeed(
            self.rm_id,
            self.kind,
            start,
            skip,
            settings.queue_responses,
            settings.queue_bytes,
            self._wake.set,
            parts.clock.monotonic,
            self._tail.positions,
        )
        parts.table.positions_moved.set()

    async def _find_start(
        self, registered_at: Cursor, taken: SeatGrant, resume_after: int | None
    ) -> tuple[Cursor, int]:
        return await self._dependencies.starting_point.find(self.rm_id, registered_at, taken.stored, resume_after)

    async def _seated(self) -> None:
        """Called when the stream has its seat and its place in the log, before anything is read or written."""

    async def _replace(self, older: RmStream | None) -> None:
        if older is not None:
            older.end(Superseded.by_stream(self.rm_id, self.kind))
            await older.wait_finished(_SUPERSEDE_WAIT_S)

    async def _shut_down(self) -> GatewayError:
        leaving = RmShutDown("the RM shut down")
        streams = self._dependencies.table.of_rm(self.rm_id)
        for stream in streams:
            stream._leaving = leaving
        try:
            await self._dependencies.session_manager.shut_down(self.rm_id)
        except GatewayError:
            for stream in streams:
                stream._leaving = None
            raise
        for stream in self._dependencies.table.of_rm(self.rm_id):
            stream.end(leaving)
        return leaving

    # ---- requests -------------------------------------------------------------------------------------------------

    async def _read_requests(self, first: bytes | None) -> None:
        pace = self._dependencies.rates.pacer_for(self._caller, self.rm_id)
        try:
            with self._dependencies.accounts.stream(self._context.peer()) as account:
                raw = first if first is not None else await self._context.read()
                while raw is not grpc.aio.EOF and self.reason is None:
                    account.message(len(raw))
                    if (wait_s := pace.consume(len(raw))) > 0:
                        await self._rest(wait_s)
                    await self._handle_message(raw)
                    raw = await self._context.read()
        except GatewayError as error:
            self.end(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # any error ends this stream alone
            if self.reason is None:  # after the end, a read may fail in any way
                self.end(unexpected(error))

    async def _rest(self, wait_s: float) -> None:
        """Returns after so long, or when the stream has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ending.wait()

    async def _handle_message(self, raw: bytes) -> None:
        parts, kind = self._dependencies, self.kind
        # 1. admission, in turns with other streams
        admitted = await self._in_turns(admission_steps(kind, raw, self.rm_id, self._record_limits()))
        count_request(kind, admitted.items, admitted.rejected)
        for answer in admitted.answers:
            await self._wait_for_capacity(lambda: len(self._answers) < parts.settings.waiting_answers)
            self._answers.append(answer)
            self._wake.set()
        # 2. the log, as soon as it has room
        if self._numbers is not None:
            self._numbers.begin(len(admitted.payloads))
        for payload in admitted.payloads:
            if self._inflight_bytes:
                await self._wait_for_capacity(lambda: self._inflight_bytes < parts.settings.inflight_bytes)
            await self._wait_for_decisions()
            await self._append(payload, admitted.items / len(admitted.payloads))

    async def _in_turns(self, steps: Generator[None, None, T]) -> T:
        """Runs steps in turn with other callers'. (A stream that has not named its RM yet is one by its host.)"""
        return await self._dependencies.step_runner.run(self.rm_id or host_of_peer(self._context.peer()), steps)

    async def _append(self, payload: bytes, items: float = 1) -> None:
        parts = self._dependencies
        try:
            await parts.writer.wait_writable()
            record = self._record(payload)
            taken = asyncio.ensure_future(parts.writer.append(record))
        except BusError as error:
            raise append_error(error) from error
        size = len(payload)
        self._undecided.add(items, len(record.value or b""))
        if taken.done():
            self._appended(0, taken)
        else:
            self._inflight_bytes += size
            taken.add_done_callback(partial(self._appended, size))

    def _record(self, payload: bytes) -> OutRecord:
        sent = self._numbers.next() if self._numbers is not None else None
        now_ns = self._dependencies.clock.now_ns()
        return self._dependencies.codec.request(self.rm_id, self._partition, self.kind, payload, now_ns, sent)

    def _appended(self, size: int, taken: asyncio.Future[int]) -> None:
        self._inflight_bytes -= size
        self._capacity_freed.set()
        if taken.cancelled():
            self.end(LogDown("the log did not take a request: send unanswered items again"))
        elif (error := taken.exception()) is not None:
            self.end(append_error(error))
        else:
            self._undecided.appended(taken.result(), self._tail.report if self._tail is not None else DecidedReport())

    async def _wait_for_decisions(self) -> None:
        """Returns when the scheduler has decided enough of the stream's requests, or says nothing of its decisions."""
        tail, feed = self._tail, self._feed
        assert tail is not None
        assert feed is not None
        tail.active.record(feed.key)
        while self.reason is None and self._undecided.is_full(tail.report, *self._neighbours()):
            tail.throttled.record(feed.key)
            if not await tail.wait_decided():
                self._undecided.forget()
                break
        if self.reason is not None:
            raise self.reason

    def _record_limits(self) -> AdmissionLimits:
        """Returns the limits of the next message, with the present size of records."""
        if self._tail is None:
            return self._dependencies.settings.limits
        return self._undecided.record_limits(self._tail.report, *self._neighbours())

    def _neighbours(self) -> tuple[int, int]:
        """Returns how many other RMs of the partition are active, and how many share what RMs may have undecided."""
        tail, feed = self._tail, self._feed
        assert tail is not None
        assert feed is not None
        return tail.active.other_count(feed.key), 1 + tail.throttled.other_count(feed.key)

    async def _wait_for_capacity(self, has_capacity: Callable[[], bool]) -> None:
        while not has_capacity() and self.reason is None:
            self._capacity_freed.clear()
            await self._capacity_freed.wait()
        if self.reason is not None:
            raise self.reason

    # ---- responses ------------------------------------------------------------------------------------------------

    async def _write_responses(self) -> None:
        assert self._feed is not None
        assert self._tail is not None
        try:
            while True:
                # 1. queued responses
                self._wake.clear()
                await self._write_due()
                if self.reason is not None:
                    return
                if self._feed.error is not None:
                    raise self._feed.error
                # 2. missed responses
                if not self._feed.attached:
                    await self._dependencies.catch_up.run(self._feed, self._tail, self._write_due)
                # 3. new responses
                elif not self._feed.has_due and not self._answers:
                    await self._wake.wait()
        except GatewayError as error:
            self.end(error)  # what happens while the rest is written comes later
            with contextlib.suppress(grpc.aio.InternalError):
                await self._write_answers()
        except LogError as error:
            self.end(LogDown(f"the response log does not answer: {type(error).__name__}"))
        except grpc.aio.InternalError:  # the RM broke off during a write; the handler notices that, too
            self._cut_off = self.reason is None
            self.end(StreamEnded("the call is over"))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if self.reason is None:
                self.end(unexpected(error))

    async def _write_due(self) -> None:
        """Writes the queue: admission's answers first, then responses until the stream must end."""
        feed = self._feed
        assert feed is not None
        write, written = self._context.write, 0
        await self._write_answers()
        while self.reason is None and (due := feed.next_due()) is not None:
            await write(due.payload)
            feed.mark_written(due)
            written += 1
            if self._answers:
                await self._write_answers()
        if written:
            _RESPONSES[self.kind].inc(written)

    async def _write_answers(self) -> None:
        while self._answers:
            await self._context.write(self._answers.popleft())
            self._capacity_freed.set()
            _RESPONSES[self.kind].inc()


def unexpected(error: Exception) -> GatewayError:
    """Logs a defect with a number. Returns the client's error, which has only the number."""
    number = new_id(SYSTEM, 6)
    metrics.internal_errors.inc()
    log.error("internal error", number=number, exc_info=error)
    return GatewayError(f"internal error {number}: the gateway's log has the details")


def append_error(error: BaseException) -> GatewayError:
    """Returns the client's error if the log does not take a request."""
    if isinstance(error, RecordTooLarge):
        return OverLimit(f"request: {error.size_bytes} bytes as a record, expected at most {error.limit_bytes}")
    if isinstance(error, BusError):
        return LogDown(f"the log does not take requests ({append_failure_text(error)}): send unanswered items again")
    return unexpected(error if isinstance(error, Exception) else RuntimeError(repr(error)))


# Looked up once: a call of labels() per message costs as much as the message's admission.
_REQUESTS = {kind: metrics.requests.labels(kind.name.lower()) for kind in StreamKind}
_ITEMS = {kind: metrics.items.labels(kind.name.lower()) for kind in StreamKind}
_ITEMS_REJECTED = {kind: metrics.items_rejected.labels(kind.name.lower()) for kind in StreamKind}
_RESPONSES = {kind: metrics.responses.labels(kind.name.lower()) for kind in StreamKind}


def count_request(kind: StreamKind, items: int, rejected: int) -> None:
    """Counts one message read from a stream."""
    _REQUESTS[kind].inc()
    _ITEMS[kind].inc(items)
    if rejected:
        _ITEMS_REJECTED[kind].inc(rejected)


def _metadata(pairs: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    return {name: value for name, value in pairs or () if isinstance(value, str)}


def _resume_after(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise InvalidRequest(f"{RESUME_METADATA}: {quote(text)}, expected a response's number (0 or more)")
    return int(text)
