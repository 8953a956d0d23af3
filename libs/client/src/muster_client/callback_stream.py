"""The RM's callback stream: it is asked, answers, and is told (muster.v1.Callbacks, docs/callbacks.md).

It lives as the other streams do (stream.py: reconnection, backoff, what ends it), with these differences:

hello
    Each connection begins with a hello. It names the events that were processed last, if any were.

questions
    They are answered at the same time, up to ``questions_at_once`` of them; then nothing more is read. An answer is
    written as soon as it is there, several in one message when they are there together.

lost connections
    Nothing proves that an answer arrived. So the answers of the last ten seconds are sent again on the next
    connection, which does no harm; so are configurations that have no result yet.
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
from muster_bus.clock import Clock
from muster_proto.muster.v1 import admin_pb2
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

from muster_client.backoff import Backoff
from muster_client.callbacks import Callbacks
from muster_client.errors import AdminFailed, ClientError
from muster_client.metrics import ClientMetrics
from muster_client.sequences import Sequences
from muster_client.settings import ClientSettings
from muster_client.stream import Metadata, RmStream

log = structlog.get_logger(__name__)

NAME = "callback"
# A question's deadline, by default: no answer is of use for longer.
_SENT_AGAIN_S = 10.0
_SENT_KEPT = 50_000
# In one message: a question that is answered now should not wait long for those before it to be written.
_ANSWERS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 1 << 20
# What the gateway takes.
_MAX_REASON_CHARS = 1_024
_MAX_DUMP_BYTES = 512 * 1024
# Plain functions keep everything else waiting; after so many others get their turn.
_PLAIN_IN_A_ROW = 50

Answer = pb.PredicatesAnswer | pb.PreemptionPredicatesAnswer | pb.StateDumpAnswer
Q = TypeVar("Q", pb.PredicatesQuestion, pb.PreemptionPredicatesQuestion, pb.StateDumpQuestion)


def wants_callbacks(callbacks: Callbacks) -> bool:
    """Whether there is anything that needs the stream."""
    hello = _hello(callbacks)
    return hello != pb.Hello()


class CallbackStream(RmStream[Any]):
    """See the module's words."""

    def __init__(
        self,
        rm_id: str,
        callbacks: Callbacks,
        open_call: Callable[[Metadata], Any],
        deliver: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        indicate: Callable[[str, bool], Awaitable[None]],
        sequences: Sequences,
        settings: ClientSettings,
        metrics: ClientMetrics,
        clock: Clock,
        backoff: Backoff,
    ) -> None:
        super().__init__(NAME, open_call, self._hear, indicate, sequences, settings, metrics, clock, backoff)
        self._rm_id, self._callbacks, self._guard = rm_id, callbacks, deliver
        self._places = asyncio.Semaphore(settings.questions_at_once)
        self._answering: set[asyncio.Task[Answer]] = set()
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
        """Puts a configuration to the scheduler, over as many connections as it takes.

        Raises: AdminFailed; ClientClosed, and what ended the stream.
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
        """Nothing proves that an answer arrived: what was written just now gets all the time that there is."""
        linger_s = self._settings.linger_s
        if self._written and self._clock.monotonic() - self._written[-1][0] < linger_s:
            await asyncio.sleep(linger_s)

    async def welcomed(self) -> None:
        """Returns once the stream is open, and the log has it: what is sent from then on is asked about."""
        await self._welcome.wait()

    async def _connection(self) -> None:
        self._welcome.clear()
        self._writing = False
        await super()._connection()

    async def _watch(self, call: Any) -> None:
        """The stream is open when the gateway says so; its headers come before the hello was looked at."""
        await self._welcome.wait()
        self._is_open = True
        await self._indicate(self.name, True)

    async def _write(self, call: Any) -> None:
        try:
            # 1. who it is, and what may have been lost
            await call.write(pb.FromResourceManager(hello=self._hello()).SerializeToString())
            self._rewind()
            # 2. what comes
            while True:
                if (message := self._next_message()) is not None:
                    now_s = self._clock.monotonic()
                    self._written.extend((now_s, answer) for answer in _answers(message))
                    self._writing = True
                    await call.write(message.SerializeToString())
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
            return  # the connection is over; the reader says why

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
        """What is there to be written; a message that breaks off in writing is part of what is sent again."""
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
                break  # they are large
        while self._updates_unwritten:
            update = self._updates.get(self._updates_unwritten.popleft())
            if update is not None:
                message.configurations.append(update[0])
                break  # likewise
        return message if message.ByteSize() else None

    # ---- what it hears --------------------------------------------------------------------------------------------

    async def _take(self, response: Any) -> None:
        # The gateway's own messages have no number.
        self._metrics.responses_received += 1
        self._fruitless = 0
        sequence = response.response_sequence
        if self._sequences.is_duplicate(self.name, sequence):
            self._metrics.responses_dropped_as_duplicate += 1
            return
        await self._hear(response)
        self._sequences.processed(self.name, sequence)

    async def _hear(self, message: pb.ToResourceManager) -> None:
        calls = self._callbacks
        if message.HasField("welcome"):
            self._welcome.set()
        # 1. questions: answered beside what follows
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
        # 3. news: in their order, one after the other
        if message.scheduling_states and calls.on_scheduling_states:
            told = calls.on_scheduling_states
            await self._guard(lambda: _settled(told(message.scheduling_states)))
        if message.events.events:
            if calls.on_events:
                heard = calls.on_events
                await self._guard(lambda: _settled(heard(message.events.events)))
            ids = [event.id for event in message.events.events if event.HasField("id")]
            self._event_id = ids[-1] if ids else self._event_id
            if message.events.HasField("request_position"):
                self._request_position = message.events.request_position

    async def _ask(self, question: Q, answer: Callable[[Q], Answer | Coroutine[Any, Any, Answer]]) -> None:
        """Answers at once if the RM's function is a plain one, else in a task; waits while too many are answered."""
        await self._places.acquire()
        result = answer(question)
        if isinstance(result, Coroutine):
            task = asyncio.create_task(result, name=f"muster {type(question).__name__}")
            self._answering.add(task)
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
        self._answering.discard(task)
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
        def answer(said: Any) -> Answer:
            if not isinstance(said, bool | str):
                raise TypeError(f"predicates gave {said!r}, expected True, False or the reason for a no")
            return no(said) if isinstance(said, str) else pb.PredicatesAnswer(id=question.id, fits=said)

        def no(reason: str) -> Answer:
            return pb.PredicatesAnswer(id=question.id, fits=False, reason=_printable(reason))

        return self._called(self._callbacks.predicates, (question,), answer, no)

    def _preemption_predicates(self, question: pb.PreemptionPredicatesQuestion) -> Answer | Coroutine[Any, Any, Answer]:
        def answer(said: Any) -> Answer:
            if isinstance(said, bool) or not isinstance(said, int | str | None):
                raise TypeError(f"preemption_predicates gave {said!r}, expected an index, None or the reason for a no")
            if isinstance(said, int):
                response = si.PreemptionPredicatesResponse(success=True, index=said)
                return pb.PreemptionPredicatesAnswer(id=question.id, response=response)
            return no(said or "")

        def no(reason: str) -> Answer:
            response = si.PreemptionPredicatesResponse(success=False, index=-1)
            return pb.PreemptionPredicatesAnswer(id=question.id, response=response, reason=_printable(reason))

        return self._called(self._callbacks.preemption_predicates, (question,), answer, no)

    def _state_dump(self, question: pb.StateDumpQuestion) -> Answer | Coroutine[Any, Any, Answer]:
        def answer(said: Any) -> Answer:
            if not isinstance(said, str):
                raise TypeError(f"state_dump gave a {type(said).__name__}, expected JSON text")
            if (size := len(said.encode())) > _MAX_DUMP_BYTES:
                raise ValueError(f"state_dump gave {size} bytes, expected at most {_MAX_DUMP_BYTES}")
            return pb.StateDumpAnswer(id=question.id, json=said)

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
        """The function's answer; an exception of it is a "no" with the exception's text."""

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
    """As it can be sent: an exception's text may be long, or hold what UTF-8 has no bytes for."""
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
    )


async def _settled(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
