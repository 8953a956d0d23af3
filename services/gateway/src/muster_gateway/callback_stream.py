"""One open callback stream of an RM. It carries the scheduler's questions and messages out, and answers to the log.

Like SI's three streams (stream.py), it has a seat with an epoch, a feed from si.responses with a cursor, resume and
flow control. The differences:

hello
    The first message has the RM's wishes. The stream reads this message before it takes the seat. So the stream sends
    the call's headers at once; ``Welcome`` then tells the RM that the stream is open.
notes to the scheduler
    When the stream has its seat, it sends the scheduler a note with the hello and the seat's epoch. The one that
    vacates the seat (this stream, a sweep, a registration) notes the end: session_manager.py. Welcome follows the note.
beginning
    The RM's first callback stream since its registration begins at the present: there were no questions before. A
    later stream resumes where the last one ended, but at most ``callback_resume_s`` back: older questions have passed
    their deadlines, and the scheduler has given them up.
three sources
    In this order: answers of the gateway itself, the feed, events. Events have the lowest priority.
request events
    The session holds the position at which they resume. A written event counts as sent. If a gateway is killed between
    writing and recording, the next one repeats the last events, unless the RM names its position. The stream before
    this one may still be ending at another gateway. So this stream reads the position again before its first push, and
    before each push it makes sure that it has its seat.
updates
    The stream puts a new configuration to the scheduler as Admin/UpdateConfiguration does: one after the other, with a
    bounded queue. If the stream breaks during an update, the configuration may be in force.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc
import structlog
from muster_bus.errors import BusError
from muster_bus.log import OutRecord

from muster_gateway import metrics
from muster_gateway.admission import check_rm_id
from muster_gateway.callback_admission import callback_steps, hello_steps
from muster_gateway.callback_codec import CallbackSubscription, connected_note, encode_result, encode_welcome
from muster_gateway.codec import ConfigurationAnswer
from muster_gateway.errors import GatewayError, InvalidRequest, LogDown, SessionStoreDown, append_failure_text
from muster_gateway.event_feed import EventFeed, SubscribedEvents
from muster_gateway.session_manager import SeatGrant, seat_loss_error
from muster_gateway.sessions.contract import UNKNOWN, Advance, Cursor
from muster_gateway.stream import RmStream, StreamContext, StreamDependencies, count_request, unexpected
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

# Puts a si.v1.UpdateConfigurationRequest to the scheduler. Raises GatewayError.
Update = Callable[[bytes], Awaitable[ConfigurationAnswer]]

_MAX_UPDATES = 16
_STORE_RETRY_S = 1.0


class CallbackStream(RmStream):
    """See the module's docstring."""

    def __init__(self, parts: StreamDependencies, context: StreamContext, update: Update) -> None:
        super().__init__(parts, StreamKind.CALLBACK, context)
        self._update = update
        self._wishes: CallbackSubscription | None = None
        self._hello_received = False
        self._events: EventFeed | None = None
        self._requests_sent = UNKNOWN  # the session's value
        self._requests_written = asyncio.Event()
        self._requests_stored = True
        self._updates: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_MAX_UPDATES)
        self._background_tasks: list[asyncio.Task[None]] = []

    async def _stop_background_tasks(self) -> None:
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        if self._events is not None:
            with contextlib.suppress(BusError):
                await self._events.close()

    # ---- taking the seat ------------------------------------------------------------------------------------------

    async def _bind(self, rm_id: str | None) -> bytes | None:
        limits = self._dependencies.settings.limits
        if rm_id is not None:
            check_rm_id(rm_id, limits)
        await self._send_headers()
        timeout_s = self._dependencies.settings.registration_timeout_s
        try:
            first = await self._first_message(timeout_s)
        except TimeoutError:
            raise InvalidRequest(f"no first message within {timeout_s:g} s: it has to carry hello") from None
        if first is grpc.aio.EOF:
            raise InvalidRequest("the stream was closed before its first message, which has to carry hello")
        self.rm_id, self._wishes = await self._in_turns(hello_steps(first, rm_id, limits))
        return bytes(first)

    async def _find_start(
        self, registered_at: Cursor, taken: SeatGrant, resume_after: int | None
    ) -> tuple[Cursor, int]:
        parts = self._dependencies
        self._requests_sent = taken.requests_sent
        since_ms = round(parts.clock.now_ns() / 1e6 - parts.settings.callback_resume_s * 1e3)
        return await parts.starting_point.find_callbacks(
            self.rm_id, registered_at, taken.stored, resume_after, since_ms
        )

    async def _seated(self) -> None:
        parts, wishes = self._dependencies, self._wishes
        assert wishes is not None, "the hello is read before the seat is taken"
        # 1. fix where responses and events begin before the scheduler knows of the stream
        move = self.unsaved_position()
        if move is not None:
            (moved,) = await parts.sessions.advance([Advance(self.rm_id, self.kind, self.epoch, move.cursor)])
            self.stored = move.cursor if moved else self.stored
        if wishes.events:
            timeout_s = parts.settings.registration_timeout_s
            sent = self._requests_sent if self._requests_sent != UNKNOWN else None
            subscribed = SubscribedEvents(
                wishes.events_after, wishes.request_events_after, wishes.request_events_only, sent
            )
            interval_s = parts.settings.request_push_interval_s
            self._events = EventFeed(
                parts.bus,
                parts.topics,
                parts.event_tails[self._partition],
                self.rm_id,
                subscribed,
                self._wake.set,
                timeout_s,
                interval_s,
                parts.tails[self._partition].positions,
                self._before_push,
            )
            await self._events.start()
        # 2. the scheduler
        await self._note(wishes)
        # 3. the RM
        self._answer(encode_welcome(parts.gateway_id))
        # 4. the tasks beside reading and writing
        self._start(self._put_updates(), "updates")
        if self._events is not None:
            self._start(self._events.run(), "events")
            self._start(self._events.push(), "request events")
            self._start(self._store_request_positions(), "place of request events")

    async def _note(self, wishes: CallbackSubscription) -> None:
        """Tells the scheduler of the stream. The note is durable when this returns. Raises LogDown."""
        parts = self._dependencies
        note = connected_note(wishes, self.epoch)
        record = parts.codec.callback_stream(self.rm_id, note, parts.clock.now_ns())
        try:
            async with asyncio.timeout(parts.settings.registration_timeout_s):
                await parts.writer.wait_writable()
                await parts.writer.append(record)
        except (BusError, TimeoutError) as error:
            raise LogDown(f"the log does not take the hello ({append_failure_text(error)}): connect again") from error

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def until_done() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except GatewayError as error:
                self.end(error)
            except Exception as error:
                self.end(unexpected(error))

        self._background_tasks.append(asyncio.create_task(until_done(), name=f"callback {name}"))

    # ---- the position of request events -----------------------------------------------------------------------------

    async def _store_request_positions(self) -> None:
        # Also checks the stream: a library of the store may swallow the cancellation that ends this task.
        while self.reason is None:
            await self._requests_written.wait()
            self._requests_written.clear()
            if not await self._store_request_position():
                await asyncio.sleep(_STORE_RETRY_S)
                self._requests_written.set()

    async def _store_request_position(self) -> bool:
        """Stores the position. Returns False if the session store fails: a later call stores it. Ends a stream that
        has lost its seat.
        """
        position = self._events.request_position if self._events is not None else None
        if position is None or position == self._requests_sent:
            return True
        try:
            lost = await self._dependencies.session_manager.store_request_position(
                self.seat, position, self._requests_sent
            )
        except GatewayError as error:
            if self._requests_stored:  # not repeated: a line a second would have no more information
                log.warning("place of request events not stored", rm_id=self.rm_id, error=str(error))
            self._requests_stored = False
            return False
        self._requests_sent, self._requests_stored = position, True
        if lost is not None:
            self.end(lost)
        return True

    async def _before_push(self) -> int | None:
        """Returns the session's position; None: it is not known. Raises GatewayError if the stream lost its seat."""
        try:
            session = await self._dependencies.sessions.get(self.rm_id)
        except SessionStoreDown:
            return None  # the events are more important than that none comes twice
        if session is None:
            return None
        if (lost := seat_loss_error(session, self.seat)) is not None:
            raise lost
        self._requests_sent = session.requests_sent
        return session.requests_sent if session.requests_sent != UNKNOWN else None

    async def _leave(self) -> None:
        await self._store_request_position()
        await super()._leave()

    # ---- messages of the RM -----------------------------------------------------------------------------------------

    async def _handle_message(self, raw: bytes) -> None:
        parts = self._dependencies
        # 1. admission
        steps = callback_steps(raw, self.rm_id, parts.settings.limits, first=not self._hello_received)
        admitted = await self._in_turns(steps)
        self._hello_received = True
        count_request(self.kind, admitted.items, len(admitted.problems))
        if admitted.problems:
            log.warning(
                "callback answers dropped", rm_id=self.rm_id, count=len(admitted.problems), first=admitted.problems[0]
            )
        # 2. answers to the log, as soon as it has room
        for payload in admitted.payloads:
            if self._inflight_bytes:
                await self._wait_for_capacity(lambda: self._inflight_bytes < parts.settings.inflight_bytes)
            await self._append(payload)
        # 3. configurations to the scheduler, one after the other
        for number, problem in admitted.refused:
            await self._answer_update(number, None, problem)
        for number, request in admitted.updates:
            try:
                self._updates.put_nowait((number, request))
            except asyncio.QueueFull:
                error = f"{_MAX_UPDATES} configurations of this stream wait for the scheduler already: try again"
                await self._answer_update(number, None, error)

    def _record(self, payload: bytes) -> OutRecord:
        return self._dependencies.codec.callback_answers(
            self.rm_id, self._partition, payload, self._dependencies.clock.now_ns()
        )

    async def _put_updates(self) -> None:
        while True:
            number, request = await self._updates.get()
            try:
                answer = await self._update(request)
            except GatewayError as error:
                metrics.configurations.labels(error.code.name).inc()
                await self._answer_update(number, None, str(error))
                continue
            metrics.configurations.labels("OK" if answer.accepted else "REFUSED").inc()
            await self._answer_update(number, answer)

    async def _answer_update(self, number: str, answer: ConfigurationAnswer | None, error: str = "") -> None:
        await self._wait_for_capacity(lambda: len(self._answers) < self._dependencies.settings.waiting_answers)
        self._answer(encode_result(number, answer, error))

    def _answer(self, message: bytes) -> None:
        self._answers.append(message)
        self._wake.set()

    # ---- messages to the RM -----------------------------------------------------------------------------------------

    async def _write_due(self) -> None:
        await super()._write_due()
        events = self._events
        # A feed that is not attached misses responses. They come first: a slow client may take minutes for its events.
        while (
            events is not None
            and self._feed is not None
            and self._feed.attached
            and self.reason is None
            and (batch := events.next_batch()) is not None
        ):
            await self._context.write(batch)
            if events.mark_sent():
                self._requests_written.set()
            await super()._write_due()
