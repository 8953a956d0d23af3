"""The client's callback stream: answers, concurrency, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from muster_client import Callbacks, ClientSettings, RmClient
from muster_client.errors import AdminFailed, CallbackFailed, ClientError
from muster_proto.muster.v1 import admin_pb2
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from unit.client.fake_gateway import FakeGateway
from virtual.plugin import advance

PATIENCE_S = 60.0
QUICK = ClientSettings(
    backoff_min_ms=5, backoff_max_ms=20, close_timeout_s=2, linger_s=0.1, backoff_seed=1,
    register_timeout_s=60, welcome_timeout_s=60,
)  # fmt: skip


class Asker:
    """A scripted muster.v1.Callbacks: it sends the test's messages and keeps the client's."""

    def __init__(self) -> None:
        self.gateway = FakeGateway()
        handler = grpc.stream_stream_rpc_method_handler(
            self._connect, pb.FromResourceManager.FromString, pb.ToResourceManager.SerializeToString
        )
        self.gateway.more_handlers.append(
            grpc.method_handlers_generic_handler("muster.v1.Callbacks", {"Connect": handler})
        )
        self.hellos: list[pb.Hello] = []
        self.metadata: list[dict[str, str]] = []
        self.heard: list[pb.FromResourceManager] = []
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.unheard: list[pb.FromResourceManager] = []
        self._deaf_connections = 0
        self._sequence = 0
        self._out: asyncio.Queue[pb.ToResourceManager | None] = asyncio.Queue()

    async def _connect(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        await context.send_initial_metadata(())
        self.metadata.append({str(key): str(value) for key, value in context.invocation_metadata() or ()})
        if self.refuse:
            await context.abort(*self.refuse)
        first = await anext(aiter(requests))
        assert first.HasField("hello"), first
        self.hellos.append(first.hello)
        await context.write(pb.ToResourceManager(welcome=pb.Welcome(gateway_id="g")))
        listening = asyncio.create_task(self._listen(len(self.metadata), requests))
        try:
            while (message := await self._out.get()) is not None:
                await context.write(message)
        finally:
            listening.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")

    async def _listen(self, connection: int, requests: AsyncIterator[Any]) -> None:
        async for message in requests:
            (self.unheard if connection <= self._deaf_connections else self.heard).append(message)

    def turn_deaf(self) -> None:
        """From now on the messages of the present connections are lost. Those of later ones are heard."""
        self._deaf_connections = len(self.metadata)

    def say(self, *, numbered: bool = True, **fields: Any) -> int:
        self._sequence += numbered
        self._out.put_nowait(pb.ToResourceManager(response_sequence=self._sequence * numbered, **fields))
        return self._sequence

    def ask(self, *ids: int) -> None:
        self.say(predicates=[pb.PredicatesQuestion(id=number, application_id="app") for number in ids])

    def lose(self) -> None:
        """End the connection when all earlier messages are sent."""
        self._out.put_nowait(None)

    def answers(self) -> list[pb.PredicatesAnswer]:
        return [answer for message in self.heard for answer in message.predicates]


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    it = Asker()
    await it.gateway.start()
    yield it
    await it.gateway.stop()


def client(asker: Asker, settings: ClientSettings = QUICK, **callbacks: Any) -> RmClient:
    return RmClient(asker.gateway.address, "r1", callbacks=Callbacks(**callbacks), settings=settings)


async def answer_of(asker: Asker, **callbacks: Any) -> pb.PredicatesAnswer:
    async with client(asker, **callbacks) as rm:
        await rm.register()
        asker.ask(5)
        await advance()
        assert asker.answers(), "an answer"
    (answer,) = asker.answers()
    return answer


# ---- answers --------------------------------------------------------------------------------------------------------


class Oops(Exception):
    pass


def raising(*_: Any) -> Any:
    raise Oops("the cache is\nempty")


@pytest.mark.parametrize(
    ("said", "fits", "reason"),
    [
        (lambda _: True, True, ""),
        (lambda _: False, False, ""),
        (lambda question: f"{question.application_id} wants a GPU", False, "app wants a GPU"),
        (raising, False, "Oops: the cache is\nempty"),
        (lambda _: None, False, "TypeError: predicates gave None, expected True, False or the reason for a no"),
        (lambda _: 1, False, "TypeError: predicates gave 1, expected True, False or the reason for a no"),
        (lambda _: "n" * 2_000, False, "n" * 1_023 + "…"),
        (lambda _: "odd \udc80", False, "odd \\udc80"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_predicate_says_yes_no_or_why_not(
    asker: Asker, said: Any, fits: bool, reason: str, is_async: bool
) -> None:
    async def later(question: Any) -> Any:
        await asyncio.sleep(0)
        return said(question)

    answer = await answer_of(asker, predicates=later if is_async else said)
    assert answer == pb.PredicatesAnswer(id=5, fits=fits, reason=reason)
    assert asker.hellos == [pb.Hello(rm_id="r1", predicates=True)]


@pytest.mark.parametrize(
    ("said", "success", "index", "reason"),
    [
        (lambda question: question.args.startIndex, True, 2, ""),
        (lambda _: 0, True, 0, ""),
        (lambda _: None, False, -1, ""),
        (lambda _: "no victim helps", False, -1, "no victim helps"),
        (raising, False, -1, "Oops: the cache is\nempty"),
        (lambda _: True, False, -1, "TypeError: preemption_predicates gave True, expected an index, None or the "),
    ],
)
async def test_a_preemption_predicate_names_the_last_victim(
    asker: Asker, said: Any, success: bool, index: int, reason: str
) -> None:
    async with client(asker, preemption_predicates=said) as rm:
        await rm.register()
        args = si.PreemptionPredicatesArgs(allocationKey="a", startIndex=2)
        asker.say(preemption_predicates=[pb.PreemptionPredicatesQuestion(id=9, args=args)])
        await advance()
        assert asker.heard, "an answer"
    (answer,) = asker.heard[0].preemption_predicates
    assert (answer.id, answer.response.success, answer.response.index) == (9, success, index)
    assert answer.reason[: len(reason) or None] == reason


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (lambda: '{"pods": 3}', pb.StateDumpAnswer(id="d", json='{"pods": 3}')),
        (raising, pb.StateDumpAnswer(id="d", error="Oops: the cache is\nempty")),
        (dict, pb.StateDumpAnswer(id="d", error="TypeError: state_dump gave a dict, expected JSON text")),
        (
            lambda: "é" * 300_000,
            pb.StateDumpAnswer(id="d", error="ValueError: state_dump gave 600000 bytes, expected at most 524288"),
        ),
    ],
)
async def test_a_state_dump_is_text_or_the_reason_why_there_is_none(asker: Asker, said: Any, expected: Any) -> None:
    async with client(asker, state_dump=said) as rm:
        await rm.register()
        asker.say(state_dumps=[pb.StateDumpQuestion(id="d")])
        await advance()
        assert asker.heard, "an answer"
    assert list(asker.heard[0].state_dumps) == [expected]


async def test_a_question_without_a_callback_is_answered_no(asker: Asker) -> None:
    answer = await answer_of(asker, state_dump=lambda: "{}")
    assert (answer.fits, answer.reason) == (False, "the resource manager has no such callback")


async def test_many_questions_are_answered_at_once_and_no_more_than_allowed(asker: Asker) -> None:
    go = asyncio.Event()
    running: set[int] = set()
    most = 0

    async def slow(question: pb.PredicatesQuestion) -> bool:
        nonlocal most
        running.add(question.id)
        most = max(most, len(running))
        await go.wait()
        running.discard(question.id)
        return question.id % 2 == 0

    async with client(asker, replace(QUICK, questions_at_once=7), predicates=slow) as rm:
        await rm.register()
        asker.ask(*range(1, 21))
        asker.ask(*range(21, 41))
        await advance()
        assert len(running) == 7, "seven at once"
        assert not asker.answers()
        go.set()
        await advance()
        assert len(asker.answers()) == 40, "all are answered"
        assert rm.metrics.questions_answered == 40
    assert most == 7
    assert {answer.id: answer.fits for answer in asker.answers()} == {n: n % 2 == 0 for n in range(1, 41)}


async def test_quick_questions_are_answered_in_few_messages(asker: Asker) -> None:
    async with client(asker, predicates=lambda _: True) as rm:
        await rm.register()
        asker.ask(*range(1, 3_001))
        await advance()
        assert len(asker.answers()) == 3_000, "all are answered"
    assert len(asker.heard) < 300
    assert [answer.id for answer in asker.answers()] == list(range(1, 3_001))


# ---- news -----------------------------------------------------------------------------------------------------------


def an_event(name: str, number: int | None = None) -> pb.Event:
    return pb.Event(record=si.EventRecord(objectID=name), id=number)


async def test_news_come_in_their_order(asker: Asker) -> None:
    got: list[tuple[str, str]] = []

    async def states(items: Any) -> None:
        await asyncio.sleep(0.01)
        got.extend(("state", item.allocationKey) for item in items)

    def events(items: Any) -> None:
        got.extend(("event", item.record.objectID) for item in items)

    state = si.UpdateContainerSchedulingStateRequest
    async with client(asker, on_scheduling_states=states, on_events=events) as rm:
        await rm.register()
        asker.say(scheduling_states=[state(allocationKey="a"), state(allocationKey="b")])
        asker.say(numbered=False, events=pb.RmEvents(events=[an_event("x", 0), an_event("y")]))
        asker.say(scheduling_states=[state(allocationKey="c")])
        await advance()
        assert len(got) == 5, "all is heard"
        assert rm.last_sequence("callback") == 2
    assert got == [("state", "a"), ("state", "b"), ("event", "x"), ("event", "y"), ("state", "c")]


async def test_a_listener_that_raises_ends_the_client(asker: Asker) -> None:
    async with client(asker, on_events=raising) as rm:
        await rm.register()
        asker.say(numbered=False, events=pb.RmEvents(events=[an_event("x", 0)]))
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(CallbackFailed, match="a callback of the callback stream raised Oops"):
                await rm.wait()


async def test_the_stream_is_open_when_it_is_welcomed(asker: Asker) -> None:
    said: list[tuple[str, bool]] = []
    asker.refuse = (grpc.StatusCode.UNAVAILABLE, "not now")
    settings = replace(QUICK, welcome_timeout_s=0.05)
    async with client(asker, settings, predicates=lambda _: True, on_stream=lambda *what: said.append(what)) as rm:
        await rm.register()  # it does not wait for ever
        await advance()
        assert len(asker.metadata) > 2, "it is tried again"
        assert not [each for each in said if each[0] == "callback"]
        asker.refuse = None
        await advance()
        assert ("callback", True) in said, "it is open"


async def test_a_registration_returns_when_asks_are_going_to_be_asked_about(asker: Asker) -> None:
    said: list[tuple[str, bool]] = []
    asker.refuse = (grpc.StatusCode.UNAVAILABLE, "not now")
    async with client(asker, predicates=lambda _: True, on_stream=lambda *what: said.append(what)) as rm:
        registering = asyncio.create_task(rm.register())
        await advance()
        assert len(asker.metadata) > 2, "the stream is tried again"
        assert not registering.done()
        asker.refuse = None
        await registering
        assert ("callback", False) not in said
        assert len(asker.hellos) == 1
    async with client(asker, predicates=lambda _: True) as rm:
        await rm.register()
        await rm.attach()
        assert len(asker.hellos) == 3, "attaching waits, too"


async def test_without_a_callback_that_needs_it_there_is_no_stream(asker: Asker) -> None:
    async with client(asker, on_allocated=lambda _: None) as rm:
        await rm.register()
        await advance()
        assert len(asker.gateway.metadata) == 3, "the three streams are open"
        with pytest.raises(ClientError, match="there is no callback stream"):
            await rm.update_configuration("")
    assert not asker.metadata


# ---- lost connections ------------------------------------------------------------------------------------------------


async def test_a_new_connection_says_hello_from_where_the_old_one_was(asker: Asker) -> None:
    events: list[str] = []

    def heard(items: Any) -> None:
        events.extend(item.record.objectID for item in items)

    async with client(asker, predicates=lambda _: True, on_events=heard) as rm:
        await rm.register()
        asker.ask(1)
        asker.say(numbered=False, events=pb.RmEvents(events=[an_event("ask")], request_position=99))
        asker.say(numbered=False, events=pb.RmEvents(events=[an_event("a", 7), an_event("b", 8)]))
        asker.lose()
        await advance()
        assert len(asker.hellos) == 2, "it is back"
        assert rm.missing_sequences() == []
    first, second = asker.hellos
    assert first == pb.Hello(rm_id="r1", predicates=True, events=True)
    assert second == pb.Hello(rm_id="r1", predicates=True, events=True, events_after=8, request_events_after=99)
    assert [each.get("muster-resume-after") for each in asker.metadata] == [None, "1"]
    assert events == ["ask", "a", "b"]


async def test_answers_that_may_be_lost_are_sent_again_and_a_question_is_answered_once(asker: Asker) -> None:
    asked: list[int] = []

    def predicates(question: Any) -> bool:
        asked.append(question.id)
        return True

    async with client(asker, predicates=predicates) as rm:
        await rm.register()
        asker.turn_deaf()
        asker.ask(1, 2)
        await advance()
        assert sum(len(each.predicates) for each in asker.unheard) == 2, "nobody hears the answers"
        asker.lose()
        asker._sequence -= 1
        asker.ask(1, 2)  # with the number that it had: it comes a second time
        await advance()
        assert len(asker.answers()) == 2, "the answers come on the new connection"
        await advance()
        assert rm.metrics.responses_dropped_as_duplicate == 1, "the questions are known"
    assert asked == [1, 2]
    assert [answer.id for answer in asker.answers()] == [1, 2]


async def test_a_registration_makes_open_questions_void(asker: Asker) -> None:
    go = asyncio.Event()
    began: set[int] = set()
    cancelled: set[int] = set()

    async def slow(question: Any) -> bool:
        began.add(question.id)
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.add(question.id)
            raise
        return True

    async with client(asker, replace(QUICK, questions_at_once=2), predicates=slow) as rm:
        await rm.register()
        asker.ask(1, 2, 3)
        await advance()
        assert began == {1, 2}, "they are under way"
        asker.lose()
        await rm.register()
        await advance()
        assert cancelled == {1, 2}, "they are void"
        go.set()
        asker.ask(11, 12, 13)
        await advance()
        assert len(asker.answers()) == 3, "their places are free again"
    assert {answer.id for answer in asker.answers()} == {11, 12, 13}


async def test_long_reasons_are_spread_over_messages_that_the_gateway_takes(asker: Asker) -> None:
    async with client(asker, predicates=lambda _: "\U0001f600" * 1_024) as rm:
        await rm.register()
        asker.ask(*range(1, 2_001))
        await advance()
        assert len(asker.answers()) == 2_000, "all are answered"
    assert max(message.ByteSize() for message in asker.heard) < 2 << 20


async def test_closing_waits_for_what_is_being_answered(asker: Asker) -> None:
    began = asyncio.Event()

    async def slow(_: Any) -> bool:
        began.set()
        await asyncio.sleep(0.05)
        return True

    async with client(asker, predicates=slow) as rm:
        await rm.register()
        asker.ask(1)
        async with asyncio.timeout(PATIENCE_S):
            await began.wait()
    assert [answer.id for answer in asker.answers()] == [1]


# ---- configurations -------------------------------------------------------------------------------------------------


def updates(asker: Asker) -> list[pb.ConfigurationUpdate]:
    return [update for message in asker.heard for update in message.configurations]


async def test_a_configuration_is_updated_over_the_stream(asker: Asker) -> None:
    async with client(asker, predicates=lambda _: True) as rm:
        await rm.register()
        call = asyncio.create_task(rm.update_configuration("queues", policy_group="g", extra_config={"a": "b"}))
        await advance()
        assert updates(asker), "it is sent"
        (update,) = updates(asker)
        assert update.request == si.UpdateConfigurationRequest(
            rmID="r1", policyGroup="g", config="queues", extraConfig={"a": "b"}
        )
        problem = admin_pb2.ConfigurationProblem(severity="WARNING", path="p", line=1, column=2, message="odd")
        response = admin_pb2.UpdateConfigurationResponse(accepted=True, changes=["x"], problems=[problem])
        asker.say(numbered=False, configurations=[pb.ConfigurationResult(id="who?", error="not yours")])
        asker.say(numbered=False, configurations=[pb.ConfigurationResult(id=update.id, response=response)])
        answer = await call
    assert (answer.accepted, answer.changes) == (True, ("x",))
    assert (answer.problems[0].severity, answer.problems[0].message) == ("warning", "odd")


async def test_a_configuration_survives_a_lost_connection(asker: Asker) -> None:
    async with client(asker, predicates=lambda _: True) as rm:
        await rm.register()
        asker.turn_deaf()
        call = asyncio.create_task(rm.update_configuration("queues"))
        await advance()
        assert asker.unheard, "it is sent, and nobody hears it"
        asker.lose()
        await advance()
        assert updates(asker), "it is sent again"
        number = updates(asker)[0].id
        asker.say(numbered=False, configurations=[pb.ConfigurationResult(id=number, error="the log is away")])
        with pytest.raises(AdminFailed, match=r"no answer \(UNAVAILABLE\): the log is away"):
            await call


async def test_a_configuration_without_an_answer_fails_in_time(asker: Asker) -> None:
    async with client(asker, predicates=lambda _: True) as rm:
        await rm.register()
        with pytest.raises(AdminFailed, match=r"DEADLINE_EXCEEDED.*update it again"):
            await rm.update_configuration("queues", timeout_s=0.05)
        call = asyncio.create_task(rm.update_configuration("other queues"))
        # (The first one may have ended before it was sent.)
        await advance()
        assert updates(asker)[-1].request.config == "other queues", "it is sent"
        number = updates(asker)[-1].id
        asker.say(numbered=False, configurations=[pb.ConfigurationResult(id=number)])
        assert not (await call).accepted


async def test_closing_ends_an_update_that_waits(asker: Asker) -> None:
    async with client(asker, predicates=lambda _: True) as rm:
        await rm.register()
        call = asyncio.create_task(rm.update_configuration("queues"))
        await advance()
        assert updates(asker), "it is sent"
    with pytest.raises(ClientError):
        await call
