"""One of the RM's three streams: opens, writes, reads, and opens again.

Its life, as a table:

| state | what happens | next |
|---|---|---|
| opening | the client makes the call, with rmID and resume position | open, lost |
| open | the writer empties the journal, the reader gives responses to the client | lost, refused, unknown, closed |
| lost | the journal is rewound; a backoff | opening |
| refused | a status that a retry does not cure: StreamRefused ends the client | – |
| unknown | FAILED_PRECONDITION or DATA_LOSS: ReregistrationNeeded goes to the client | – |
| taken over | ABORTED more than three times within a minute: Superseded ends the client | – |
| closed | the RM closed: half-close, then the gateway's end | – |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import grpc
import grpc.aio
import structlog

from muster_client.backoff import Backoff
from muster_client.clock import Clock
from muster_client.errors import ClientClosed, ClientError, ReregistrationNeeded, StreamRefused, Superseded
from muster_client.metrics import ClientMetrics
from muster_client.outbox import Outbox
from muster_client.sequences import Sequences
from muster_client.settings import ClientSettings

log = structlog.get_logger(__name__)

RESUME_METADATA = "muster-resume-after"  # the last responseSequence processed on this stream
# They number the stream's messages, so that the scheduler takes each one once.
CLIENT_METADATA = "muster-client"
FIRST_MESSAGE_METADATA = "muster-first-message"

_Code = grpc.StatusCode
_HOPELESS = frozenset(
    {
        _Code.INVALID_ARGUMENT,
        _Code.NOT_FOUND,
        _Code.PERMISSION_DENIED,
        _Code.UNAUTHENTICATED,
        _Code.UNIMPLEMENTED,
        _Code.OUT_OF_RANGE,
    }
)
_UNKNOWN = frozenset({_Code.FAILED_PRECONDITION, _Code.DATA_LOSS})
_SUSPECT = frozenset({_Code.INTERNAL, _Code.UNKNOWN, _Code.RESOURCE_EXHAUSTED, _Code.ALREADY_EXISTS})


# The text of gRPC's client for a stream that ended during a write.
_NOT_WRITTEN = "Internal error from Core"
# One take-over may be due to an own stream that the gateway believed alive. A fight between two clients lasts longer.
_TAKEN_OVER_AT_MOST = 3
_TAKEN_OVER_WITHIN_S = 60.0
# Muster's gateway sends its headers when a stream has its place. gRPC allows a server to send them with its first
# response, which may come much later. A server that refuses the stream or is absent answers sooner than this.
_OPEN_AFTER_S = 1.0


class SequencedResponse(Protocol):
    """The common part of the three responses."""

    @property
    def responseSequence(self) -> int: ...  # noqa: N802 - the field's name on the wire


R = TypeVar("R", bound=SequencedResponse)
Metadata = tuple[tuple[str, str], ...]


class _ConnectionLost(Exception):
    """The end of a connection, for any reason."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details


class ResumableStream(Generic[R]):
    """A stream that outlives its connections.

    :param name: allocation, application or node.
    :param open_call: makes the gRPC call with the given metadata; requests are bytes.
    :param deliver: takes a response to the callbacks; returns when they have processed it.
    :param indicate: called when the stream is opened (True) and lost (False).
    :param life: an id of this object, by which the gateway tells it from others of the same RM.
    """

    def __init__(
        self,
        name: str,
        open_call: Callable[[Metadata], Any],
        deliver: Callable[[R], Awaitable[None]],
        indicate: Callable[[str, bool], Awaitable[None]],
        sequences: Sequences,
        settings: ClientSettings,
        metrics: ClientMetrics,
        clock: Clock,
        backoff: Backoff,
        life: str,
    ) -> None:
        self.name = name
        self.journal = Outbox(settings.journal_messages, settings.journal_bytes, settings.resend_window_s)
        self._open_call, self._deliver, self._indicate = open_call, deliver, indicate
        self._sequences, self._settings, self._metrics, self._clock = sequences, settings, metrics, clock
        self._backoff = backoff
        self._life = life
        self._changed = asyncio.Event()  # the writer has something to do
        self._room = asyncio.Event()  # ``send`` may have room again
        self._answer = asyncio.Event()  # something was answered
        self._closing = asyncio.Event()
        self._ended: ClientError | None = None
        self._generation = 0  # number of registrations: a call that waits during one belongs to the earlier one
        self._opened_before = self._is_open = False
        self._fruitless = 0  # losses in a row without a response in between
        self._taken_over: deque[float] = deque()  # times of the last take-overs by another connection

    async def send(
        self, payload: bytes, keys: Iterable[Hashable], hints: Iterable[Hashable] = (), *, proves: bool = True
    ) -> None:
        """Appends a message to the stream's order. Waits while the network or the journal has no room.

        Keys, hints and proof: see :meth:`Outbox.append`.

        Raises: ClientClosed; ReregistrationNeeded if a new registration made the message void while it waited.
        """
        generation = self._generation
        while True:
            self._must_be_usable(generation)
            now = self._clock.monotonic()
            if self.journal.unsent < self._settings.unsent_messages and self.journal.has_room(now):
                break
            self._room.clear()
            with contextlib.suppress(TimeoutError):  # room also comes with time: see Journal.has_room
                await asyncio.wait_for(self._room.wait(), timeout=self.journal.room_in_s(now) + 1.0)
        self.journal.append(payload, keys, hints, proves=proves)
        self._changed.set()

    async def all_answered(self, waits: Callable[[], bool] = lambda: False) -> None:
        """Returns when every answerable item of this stream has its answer. Raises as :meth:`send`.

        :param waits: tells whether there are further items that the journal does not know.
        """
        generation = self._generation
        while self.journal.unanswered or waits():
            self._must_be_usable(generation)
            self._answer.clear()
            await self._answer.wait()
        self._must_be_usable(generation)

    def answered(self, key: Hashable, *, numbered: bool) -> bool:
        """See :meth:`Outbox.answered`."""
        return self.journal.answered(key, numbered=numbered)

    async def written(self) -> None:
        """Returns when no message waits for the network."""
        while self.journal.unsent:
            self._room.clear()
            await self._room.wait()

    async def proven(self) -> None:
        """Returns when all written messages are known to be taken."""
        while self.journal.kept:
            self._room.clear()
            await self._room.wait()

    def begin(self) -> None:
        """Drops the earlier state, at a registration."""
        self.journal.clear()
        self._opened_before = self._sequences.last(self.name) > 0
        self._fruitless = 0
        self._ended = None
        self._taken_over.clear()
        self._generation += 1
        self._wake()

    def close(self) -> None:
        """Half-closes the stream once the journal is written; ``run`` then returns."""
        self._closing.set()
        self._changed.set()

    def end(self, error: ClientError) -> None:
        """Ends the stream until the next registration. Waiting callers get the error."""
        self._ended = error
        self._wake()

    async def run(self) -> None:
        """Keeps the stream open until it is closed.

        Raises: StreamRefused, Superseded, ReregistrationNeeded, and the errors of ``deliver`` (CallbackFailed).
        """
        while True:
            # 1. open and use the connection until it ends
            self._backoff.started()
            try:
                await self._connection()
            except _ConnectionLost as lost:
                ending = lost
            else:
                return
            # 2. decide whether a retry makes sense
            if self._closing.is_set():
                return
            self._metrics.streams_lost += 1
            self._raise_if_final(ending)
            # 3. wait, then rewind the messages that may be lost
            wait_s = self._backoff.failed()
            again = self.journal.lost()
            self._metrics.messages_sent_again += again
            log.info("stream lost", stream=self.name, status=str(ending), again=again, wait_s=round(wait_s, 3))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), timeout=wait_s)

    async def _connection(self) -> None:
        call = self._open_call(self._metadata())
        self._metrics.streams_opened += 1
        self._opened_before = True
        beside = [
            asyncio.create_task(self._write(call), name=f"muster {self.name} writer"),
            asyncio.create_task(self._watch(call), name=f"muster {self.name} watcher"),
        ]
        try:
            await self._read(call)
        finally:
            call.cancel()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if self._is_open:
                self._is_open = False
                await self._indicate(self.name, False)

    def _metadata(self) -> Metadata:
        # Without a position, the gateway begins where the RM's stream ended; after a registration, that is just behind
        # it.
        last = self._sequences.last(self.name)
        numbers = (CLIENT_METADATA, self._life), (FIRST_MESSAGE_METADATA, str(self.journal.next_number))
        return (*numbers, (RESUME_METADATA, str(last))) if self._opened_before else numbers

    async def _write(self, call: Any) -> None:
        try:
            while True:
                entry = self.journal.first_unsent()
                if entry is not None:
                    self.journal.begun(entry)
                    await call.write(entry.payload)
                    self.journal.sent(entry, self._clock.monotonic())
                    self._metrics.messages_sent += 1
                    self._room.set()
                elif self._closing.is_set():
                    await call.done_writing()
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the connection is over; the reader reports the reason

    async def _watch(self, call: Any) -> None:
        """Marks the call as open: at the gateway's headers, or if it has not been refused for a while."""
        headers = asyncio.ensure_future(call.initial_metadata())
        await asyncio.wait({headers}, timeout=_OPEN_AFTER_S)
        if not call.done():
            self._is_open = True
            await self._indicate(self.name, True)
        await headers

    async def _read(self, call: Any) -> None:
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                await self._take(response)
            code, details = await call.code(), await call.details()
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not call.done() or (task is not None and task.cancelling()):
                raise
            # grpc.aio raises CancelledError for this status
            code, details = _Code.CANCELLED, "cancelled by the gateway"
        if code is _Code.OK and self._closing.is_set():
            return
        if code is _Code.INTERNAL and details == _NOT_WRITTEN:
            code = _Code.UNAVAILABLE  # the gateway did not refuse anything
        raise _ConnectionLost(code, details)

    async def _take(self, response: R) -> None:
        self._metrics.responses_received += 1
        self._fruitless = 0
        sequence = response.responseSequence
        if self._sequences.is_duplicate(self.name, sequence):
            self._metrics.responses_dropped_as_duplicate += 1
            return
        await self._deliver(response)
        self._sequences.processed(self.name, sequence)
        self._answer.set()
        self._room.set()

    def _raise_if_final(self, lost: _ConnectionLost) -> None:
        if lost.code in _UNKNOWN:
            raise ReregistrationNeeded(lost.details)
        if lost.code is _Code.ABORTED:
            now_s = self._clock.monotonic()
            self._taken_over.append(now_s)
            while now_s - self._taken_over[0] > _TAKEN_OVER_WITHIN_S:
                self._taken_over.popleft()
            if len(self._taken_over) > _TAKEN_OVER_AT_MOST:
                raise Superseded(f"{self.name} stream: {lost.details}")
        if lost.code in _HOPELESS:
            raise StreamRefused(self.name, lost.code, lost.details)
        if lost.code in _SUSPECT:
            self._fruitless += 1
            if self._fruitless >= self._settings.fruitless_attempts:
                raise StreamRefused(self.name, lost.code, lost.details)

    def _must_be_usable(self, generation: int) -> None:
        if self._ended is not None:
            raise self._ended
        if self._closing.is_set():
            raise ClientClosed(f"the {self.name} stream is closed")
        if generation != self._generation:
            raise ReregistrationNeeded("the RM was registered again meanwhile; report its state again")

    def _wake(self) -> None:
        self._changed.set()
        self._room.set()
        self._answer.set()
