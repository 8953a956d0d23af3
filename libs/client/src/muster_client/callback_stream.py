"""The RM's callback stream: takes the scheduler's questions and messages, and sends answers (muster.v1.Callbacks,
docs/callbacks.md).

It works like the other streams (resumable_stream.py: reconnection, backoff, ends), with these differences:

hello
    Each connection begins with a hello. The hello names the last processed events, if any.
questions
    Up to ``questions_at_once`` questions are answered at the same time; above this the stream reads no more. It writes
    an answer as soon as there is one, and several that are ready together in one message.
lost connections
    Nothing proves that an answer arrived. So the next connection sends the answers of the last ten seconds again, which
    does no harm, and also the configurations that have no result yet.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from muster_proto.muster.v1 import admin_pb2
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

from muster_client.backoff import Backoff
from muster_client.callbacks import Callbacks
from muster_client.clock import Clock
from muster_client.errors import AdminFailed, ClientError
from muster_client.metrics import ClientMetrics
from muster_client.resumable_stream import Metadata, ResumableStream
from muster_client.sequences import Sequences
from muster_client.settings import ClientSettings

log = structlog.get_logger(__name__)

NAME = "callback"
ALLOCATION = "allocation"
# The default deadline of a question; a later answer is of no use.
_SENT_AGAIN_S = 10.0
_SENT_KEPT = 50_000
# Limits of one message, so that an answer does not wait long for earlier ones to be written.
_ANSWERS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 1 << 20
# The gateway's limits.
_MAX_REASON_CHARS = 1_024
_MAX_DUMP_BYTES = 512 * 1024
# Plain functions block all other tasks. After this many, other tasks get a turn.
_PLAIN_IN_A_ROW = 50

Answer = pb.PredicatesAnswer | pb.PreemptionPredicatesAnswer | pb.StateDumpAnswer
Q = TypeVar("Q", pb.PredicatesQuestion, pb.PreemptionPredicatesQuestion, pb.StateDumpQuestion)


def wants_callbacks(callbacks: Callbacks) -> bool:
    """Tells whether any callback needs the stream."""
    hello = _hello(callbacks)
    return hello != pb.Hello()


class CallbackStream(ResumableStream[Any]):
    """See the module's docstring."""

    def __init__(
        self,
        rm_id: str,
        callbacks: Callbacks,
        open_call: Callable[[Metadata], Any],
        deliver: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        on_position: Callable[[str], None],
        indicate: Callable[[str, bool], Awaitable[None]],
        sequences: Sequences,
        settings: ClientSettings,
        metrics: ClientMetrics,
        clock: Clock,
        backoff: Backoff,
        life: str,
    ) -> None:
        super().__init__(NAME, open_call, self._handle, indicate, sequences, settings, metrics, clock, backoff, life)
        self._rm_id, self._callbacks, self._guard = rm_id, callbacks, deliver
        self._on_position = on_position
        self._places = asyncio.Semaphore(settings.questions_at_once)
        self._answering: dict[asyncio.Task[Answer], None] = {}  # in the order of the questions
        self._unwritten: deque[Answer] = deque()
        self._written: deque[tuple[float, Answer]] = deque(maxlen=_SENT_KEPT)
        self._updates: dict[str, tuple[pb.ConfigurationUpdate, asyncio.Future[pb.ConfigurationResult]]] = {}
        self._updates_unwritten: deque[str] = deque()
        self._update_count = 0
        self._event_id: int | None = None
        self._request_position: int | None = None
        self._welcome = asyncio.Event()
        self._plain_in_a_row = 0
        self._writing = False

    # ---- configurations -------------------------------------------------------------------------------------------

    async def update_configuration(
        self, request: si.UpdateConfigurationRequest, timeout_s: float
    ) -> admin_pb2.UpdateConfigurationResponse:
        """Puts a configuration to the scheduler, over as many connections as needed.

        Raises: AdminFailed; ClientClosed, and the error that ended the stream.
        """
        self._must_be_usable(self._generation)
        self._update_count += 1
        number = str(self._update_count)
        answered: asyncio.Future[pb.ConfigurationResult] = asyncio.get_running_loop().create_future()
        self._updates[number] = pb.ConfigurationUpdate(id=number, request=request), answered
        self._updates_unwritten.append(number)
        self._changed.set()
        try:
            async with asyncio.timeout(timeout_s):
                result = await answered
        except TimeoutError:
            text = f"no answer within {timeout_s:g} s: the configuration may be in force, update it again"
            raise AdminFailed(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        finally:
            del self._updates[number]
        if result.error:
            raise AdminFailed(grpc.StatusCode.UNAVAILABLE, result.error)
        return result.response

    # ---- the life of the stream -----------------------------------------------------------------------------------

    def begin(self) -> None:
        self._welcome.clear()
        for task in self._answering:
            task.cancel()
        self._unwritten.clear()
        self._written.clear()
        super().begin()

    def end(self, error: ClientError) -> None:
        super().end(error)
        for task in self._answering:
            task.cancel()
        for _, answered in self._updates.values():
            if not answered.done():
                answered.set_exception(error)

    async def written(self) -> None:
        while self._unwritten or self._answering or self._writing:
            self._room.clear()
            await self._room.wait()

    async def proven(self) -> None:
        """Waits ``linger_s`` after a recent answer, because nothing proves that an answer arrived."""
        linger_s = self._settings.linger_s
        if self._written and self._clock.monotonic() - self._written[-1][0] < linger_s:
            await asyncio.sleep(linger_s)

    async def welcomed(self) -> None:
        """Returns when the stream is open and on the log: the scheduler then sends questions about everything sent
        later.
        """
        await self._welcome.wait()

    async def _connection(self) -> None:
        self._welcome.clear()
        self._writing = False
        await super()._connection()

    async def _watch(self, call: Any) -> None:
        """Marks the stream as open at the gateway's Welcome. The call's headers come before the gateway has checked the
        hello.
        """
        await self._welcome.wait()
        self._is_open = True
        await self._indicate(self.name, True)

    async def _write(self, call: Any) -> None:
        try:
            # 1. the hello, and the messages that may be lost
            await call.write(pb.FromResourceManager(hello=self._hello()).SerializeToString())
            self._rewind()
            # 2. new messages
            while True:
                if (message := self._next_message()) is not None:
                    now_s = self._clock.monotonic()
                    self._written.extend((now_s, answer) for answer in _answers(message))
                    self._writing = True
                    await call.write(message.SerializeToString(deterministic=True))
                    self._writing = False
                    self._metrics.messages_sent += 1
                    self._room.set()
                elif self._closing.is_set() and not self._answering:
                    await call.done_writing()
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the connection is over; the reader reports the reason

    def _hello(self) -> pb.Hello:
        hello = _hello(self._callbacks)
        hello.rm_id = self._rm_id
        if hello.events and self._event_id is not None:
            hello.events_after = self._event_id
        if hello.events and self._request_position is not None:
            hello.request_events_after = self._request_position
        return hello

    def _rewind(self) -> None:
        since_s = self._clock.monotonic() - _SENT_AGAIN_S
        again = [answer for at_s, answer in self._written if at_s >= since_s]
        self._written.clear()
        self._unwritten.extendleft(reversed(again))
        self._metrics.messages_sent_again += len(again)
        self._updates_unwritten = deque(self._updates)

    def _next_message(self) -> pb.FromResourceManager | None:
        """Returns the next message to write. A message that breaks off during the write is among those sent again."""
        message, size = pb.FromResourceManager(), 0
        for _ in range(min(len(self._unwritten), _ANSWERS_AT_ONCE)):
            if size >= _BYTES_AT_ONCE:
                break
            answer = self._unwritten.popleft()
            size += answer.ByteSize()
            if isinstance(answer, pb.PredicatesAnswer):
                message.predicates.append(answer)
            elif isinstance(answer, pb.PreemptionPredicatesAnswer):
                message.preemption_predicates.append(answer)
            else:
                message.state_dumps.append(answer)
                break  # dumps are large
        while self._updates_unwritten:
            update = self._updates.get(self._updates_unwritten.popleft())
            if update is not None:
                message.configurations.append(update[0])
                break  # configurations are large, too
        return message if message.ByteSize() else None

    # ---- messages of the gateway ------------------------------------------------------------------------------------

    async def _take(self, response: Any) -> None:
        # The gateway's own messages have no number.
        self._metrics.responses_received += 1
        self._fruitless = 0
        sequence = response.response_sequence
        if self._sequences.is_duplicate(self.name, sequence):
            self._metrics.responses_dropped_as_duplicate += 1
            return
        await self._handle(response)
        self._sequences.processed(self.name, sequence)

    async def _handle(self, message: pb.ToResourceManager) -> None:
        calls = self._callbacks
        if message.position:
            self._on_position(message.position)
        if message.HasField("welcome"):
            self._welcome.set()
        # 1. questions: answered while later messages are handled
        after = max((predicates.after_response for predicates in message.predicates), default=0)
        if not after or await self._told(after):
            for predicates in message.predicates:
                await self._ask(predicates, self._predicates)
        for preemption in message.preemption_predicates:
            await self._ask(preemption, self._preemption_predicates)
        for dump in message.state_dumps:
            await self._ask(dump, self._state_dump)
        # 2. answers
        for result in message.configurations:
            update = self._updates.get(result.id)
            if update is not None and not update[1].done():
                update[1].set_result(result)
        # 3. notifications: in order, one after the other
        if message.scheduling_states and calls.on_scheduling_states:
            on_states = calls.on_scheduling_states
            await self._guard(lambda: _settled(on_states(message.scheduling_states)))
        if message.events.events:
            if calls.on_events:
                heard = calls.on_events
                await self._guard(lambda: _settled(heard(message.events.events)))
            ids = [event.id for event in message.events.events if event.HasField("id")]
            self._event_id = ids[-1] if ids else self._event_id
            if message.events.HasField("request_position"):
                self._request_position = message.events.request_position

    async def _told(self, after: int) -> bool:
        """Waits until the client has handled the earlier allocations. Returns False if that took too long."""
        try:
            async with asyncio.timeout(_SENT_AGAIN_S):
                await self._sequences.reached(ALLOCATION, after)
        except TimeoutError:
            log.warning("questions not answered: earlier responses are missing", rm=self._rm_id, after=after)
            return False
        return True

    async def _ask(self, question: Q, answer: Callable[[Q], Answer | Coroutine[Any, Any, Answer]]) -> None:
        """Answers a question: at once if the RM's function is plain, else in a task. Waits while too many are open."""
        await self._places.acquire()
        result = answer(question)
        if isinstance(result, Coroutine):
            task = asyncio.create_task(result, name=f"muster {type(question).__name__}")
            self._answering[task] = None
            task.add_done_callback(self._answered_later)
            return
        self._places.release()
        self._say(result)
        self._plain_in_a_row += 1
        if self._plain_in_a_row >= _PLAIN_IN_A_ROW:
            self._plain_in_a_row = 0
            await asyncio.sleep(0)

    def _answered_later(self, task: asyncio.Task[Answer]) -> None:
        self._places.release()
        self._answering.pop(task, None)
        if not task.cancelled():
            self._say(task.result())
        self._changed.set()
        self._room.set()

    def _say(self, answer: Answer) -> None:
        self._metrics.questions_answered += 1
        self._unwritten.append(answer)
        self._changed.set()

    # ---- the RM's functions ---------------------------------------------------------------------------------------

    def _predicates(self, question: pb.PredicatesQuestion) -> Answer | Coroutine[Any, Any, Answer]:
        def answer(result: Any) -> Answer:
            if not isinstance(result, bool | str):
                raise TypeError(f"predicates gave {result!r}, expected True, False or the reason for a no")
            return no(result) if isinstance(result, str) else pb.PredicatesAnswer(id=question.id, fits=result)

        def no(reason: str) -> Answer:
            return pb.PredicatesAnswer(id=question.id, fits=False, reason=_printable(reason))

        return self._called(self._callbacks.predicates, (question,), answer, no)

    def _preemption_predicates(self, question: pb.PreemptionPredicatesQuestion) -> Answer | Coroutine[Any, Any, Answer]:
        def answer(result: Any) -> Answer:
            if isinstance(result, bool) or not isinstance(result, int | str | None):
                raise TypeError(
                    f"preemption_predicates gave {result!r}, expected an index, None or the reason for a no"
                )
            if isinstance(result, int):
                response = si.PreemptionPredicatesResponse(success=True, index=result)
                return pb.PreemptionPredicatesAnswer(id=question.id, response=response)
            return no(result or "")

        def no(reason: str) -> Answer:
            response = si.PreemptionPredicatesResponse(success=False, index=-1)
            return pb.PreemptionPredicatesAnswer(id=question.id, response=response, reason=_printable(reason))

        return self._called(self._callbacks.preemption_predicates, (question,), answer, no)

    def _state_dump(self, question: pb.StateDumpQuestion) -> Answer | Coroutine[Any, Any, Answer]:
        def answer(result: Any) -> Answer:
            if not isinstance(result, str):
                raise TypeError(f"state_dump gave a {type(result).__name__}, expected JSON text")
            if (size := len(result.encode())) > _MAX_DUMP_BYTES:
                raise ValueError(f"state_dump gave {size} bytes, expected at most {_MAX_DUMP_BYTES}")
            return pb.StateDumpAnswer(id=question.id, json=result)

        def no(reason: str) -> Answer:
            return pb.StateDumpAnswer(id=question.id, error=_printable(reason))

        return self._called(self._callbacks.state_dump, (), answer, no)

    def _called(
        self,
        function: Callable[..., Any] | None,
        arguments: tuple[Any, ...],
        answer: Callable[[Any], Answer],
        no: Callable[[str], Answer],
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """Calls an RM's function. If it raises, the answer is "no" with the exception's text."""

        def failed(error: Exception) -> Answer:
            self._metrics.questions_failed += 1
            log.error("a callback raised", rm=self._rm_id, exc_info=error)
            return no(f"{type(error).__name__}: {error}")

        async def later(result: Awaitable[Any]) -> Answer:
            try:
                return answer(await result)
            except Exception as error:
                return failed(error)

        if function is None:
            return no("the resource manager has no such callback")
        try:
            result = function(*arguments)
            return later(result) if inspect.isawaitable(result) else answer(result)
        except Exception as error:
            return failed(error)


def _printable(reason: str) -> str:
    """Makes a reason fit for sending: an exception's text may be long, or hold characters that UTF-8 cannot encode."""
    cut = reason if len(reason) <= _MAX_REASON_CHARS else f"{reason[: _MAX_REASON_CHARS - 1]}…"
    return cut.encode(errors="backslashreplace").decode()


def _answers(message: pb.FromResourceManager) -> Iterator[Answer]:
    yield from message.predicates
    yield from message.preemption_predicates
    yield from message.state_dumps


def _hello(callbacks: Callbacks) -> pb.Hello:
    return pb.Hello(
        predicates=callbacks.predicates is not None,
        preemption_predicates=callbacks.preemption_predicates is not None,
        scheduling_states=callbacks.on_scheduling_states is not None,
        state_dump=callbacks.state_dump is not None,
        events=callbacks.on_events is not None,
        request_events_only=callbacks.on_events is not None and callbacks.request_events_only,
        open_proposals=callbacks.open_proposals if callbacks.predicates is not None else pb.OPEN_PROPOSALS_ALL,
    )


async def _settled(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
