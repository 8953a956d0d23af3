"""The callback stream, with a scripted scheduler. (On SQLite and Kafka: integration/test_callback_stores.py.)"""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import grpc
import pytest
from integration.gateway_rig import PATIENCE_S, Rig, asks, crash, scheduler_silent
from manual_clock import ManualClock
from muster_bus.backends.memory import MemoryLog
from muster_bus.log import OutRecord
from muster_gateway import metrics
from muster_gateway.errors import LogDown
from muster_gateway.service import Gateway
from muster_gateway.sessions.contract import NOBODY, Seat
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.v1 import admin_pb2
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.muster.v1.callbacks_pb2_grpc import CallbacksStub
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from virtual.plugin import advance

ALLOCATION, NODE, CALLBACK = StreamKind.ALLOCATION, StreamKind.NODE, StreamKind.CALLBACK


Code = grpc.StatusCode


Said = pb.FromResourceManager


async def test_an_rm_is_asked_and_answers(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = await channel.connect(predicates=True, scheduling_states=True)
    assert stream.got[0] == pb.ToResourceManager(welcome=pb.Welcome(gateway_id=gateway.gateway_id))
    await advance()
    assert world.scheduler.notes("rm") == [(True, 1)], "the scheduler knows of it"
    note = world.scheduler.bodies("rm", "callback_stream")[0]
    assert (note.predicates, note.preemption_predicates, note.scheduling_states) == (True, False, True)
    assert (note.state_dump, note.events) == (False, False)
    await world.scheduler.ask("rm", 1, 2, 3)
    assert await stream.asked(3) == [1, 2, 3]
    assert [message.response_sequence for message in stream.got[1:]] == [2, 3, 4]
    await stream.say(2, 1)
    await stream.say(3, fits=False)
    await advance()
    assert len(world.scheduler.answers("rm")) == 2, "the answers are on the log"
    first, second = world.scheduler.answers("rm")
    assert [(answer.id, answer.fits) for answer in first.predicates] == [(2, True), (1, True)]
    assert [(answer.id, answer.fits) for answer in second.predicates] == [(3, False)]
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"


async def test_all_messages_arrive_unchanged(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect(state_dump=True)
    message = pb.ToResourceManager(
        preemption_predicates=[
            pb.PreemptionPredicatesQuestion(
                id=9,
                args=si.PreemptionPredicatesArgs(allocationKey="a", preemptAllocationKeys=["b", "c"], startIndex=1),
                preempt_application_ids=["x", "y"],
            )
        ],
        scheduling_states=[si.UpdateContainerSchedulingStateRequest(allocationKey="a", state="RESERVED")],
        state_dumps=[pb.StateDumpQuestion(id="d")],
    )
    await quick.scheduler.tell("rm", message)
    assert await stream.receive() == message  # (the scheduler's number is in it by now)
    said = Said(
        preemption_predicates=[pb.PreemptionPredicatesAnswer(id=9, response={"success": True, "index": 1})],  # type: ignore[arg-type]
        state_dumps=[pb.StateDumpAnswer(id="d", json='{"pods": []}')],
    )
    await stream.send(said)
    await advance()
    assert quick.scheduler.answers("rm") == [said], "both answers are on the log"


async def test_the_hello_may_name_the_rm_and_carry_an_answer(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = channel.connection(None)
    await stream.send(Said(hello=pb.Hello(rm_id="rm"), predicates=[pb.PredicatesAnswer(id=7)]))
    assert (await stream.receive()).HasField("welcome")
    await advance()
    assert len(quick.scheduler.answers("rm")) == 1, "the answer is on the log"
    assert not quick.scheduler.answers("rm")[0].HasField("hello")


async def test_a_callback_stream_alone_keeps_an_rm_running(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    asked = await channel.connect(predicates=True)
    allocations = channel.open(ALLOCATION, "rm")
    await allocations.send(asks("rm", "a"))
    await allocations.take(1)
    allocations.cancel()
    await asyncio.sleep(0.2)
    assert world.scheduler.states("rm") == ["RUNNING"]
    asked.cancel()
    await advance()
    assert world.scheduler.states("rm") == ["RUNNING", "DISCONNECTED"], "without any stream it pauses"


@pytest.mark.parametrize(
    ("rm_id", "message", "details"),
    [
        ("rm", Said(predicates=[pb.PredicatesAnswer(id=1)]), "hello: absent, expected in the stream's first message"),
        ("rm", Said(hello=pb.Hello(rm_id="x")), "hello.rm_id: 'x', expected 'rm': the metadata says so"),
        (None, Said(hello=pb.Hello()), "hello.rm_id: empty, expected 1 to 256 characters"),
    ],
)
async def test_a_wrong_hello_is_refused(quick: Rig, rm_id: str | None, message: Any, details: str) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = channel.connection(rm_id)
    await stream.send(message)
    assert await stream.status() == (Code.INVALID_ARGUMENT, details)
    assert quick.scheduler.notes("rm") == []


async def test_a_stream_closed_without_hello_is_refused(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = channel.connection()
    await stream.half_close()
    code, details = await stream.status()
    assert code is Code.INVALID_ARGUMENT
    assert details == "the stream was closed before its first message, which has to carry hello"


async def test_a_stream_that_says_no_hello_is_not_waited_for(quick: Rig) -> None:
    gateway = await quick.gateway(registration_timeout_s=3.0)
    await quick.registered(gateway)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        call = CallbacksStub(channel).Connect(metadata=(("muster-rm-id", "rm"),))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "no first message within 3 s: it has to carry hello"


async def test_a_gateway_that_stops_tells_streams_that_have_said_nothing(quick: Rig) -> None:
    gateway = await quick.gateway()
    await quick.registered(gateway)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        calls = [
            CallbacksStub(channel).Connect(metadata=(("muster-rm-id", "rm"),)),
            SchedulerStub(channel).UpdateNode(),
        ]
        for call in calls:
            await call.initial_metadata()
        await gateway.stop()
        for call in calls:
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert "this gateway is stopping" in str(await call.details())


async def test_a_second_hello_ends_the_stream(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect()
    await stream.send(Said(hello=pb.Hello()))
    code, details = await stream.status()
    assert code is Code.INVALID_ARGUMENT
    assert details == "hello: a second one, expected in the stream's first message only"
    await advance()
    assert quick.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"


async def test_an_rm_that_is_not_registered_or_stopped_has_no_callback_stream(quick: Rig) -> None:
    channel = quick.channel(await quick.gateway())

    async def refusal() -> tuple[Code, str]:
        stream = channel.connection()
        await stream.send(Said(hello=pb.Hello()))
        return await stream.status()

    assert await refusal() == (
        Code.FAILED_PRECONDITION,
        "rmID 'rm' is not registered: call RegisterResourceManager first",
    )
    await channel.register("rm")
    stream = await channel.connect()
    await channel.open(NODE, "rm", muster_shutdown="true").status()
    assert (await stream.status())[0] is Code.OK
    assert await refusal() == (Code.FAILED_PRECONDITION, "rmID 'rm' is stopped (the RM shut down): register again")
    await advance()
    assert quick.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"


async def test_bad_answers_are_dropped_and_everything_goes_on(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect(predicates=True)
    await stream.say(0, 1, 0)
    await stream.send(Said(state_dumps=[pb.StateDumpAnswer()]))
    await stream.say(2)
    await advance()
    assert len(quick.scheduler.answers("rm")) == 2, "what was good is on the log"
    assert [[a.id for a in said.predicates] for said in quick.scheduler.answers("rm")] == [[1], [2]]
    await quick.scheduler.ask("rm", 5)
    assert await stream.asked(1) == [5]


async def test_garbage_ends_only_its_own_stream(quick: Rig) -> None:
    gateway = await quick.gateway()
    rms = ["rm", "other"]
    channels = {rm_id: await quick.registered(gateway, rm_id) for rm_id in rms}
    other = await channels["other"].connect("other", predicates=True)
    allocations = channels["rm"].open(ALLOCATION, "rm")
    await allocations.send(asks("rm", "a"))
    await allocations.take(1)
    for garbage in (b"\xff\xff\xff", b"\x0a\x7f", b"\x12\x02\xff\xff"):
        raw = channels["rm"].grpc.stream_stream("/muster.v1.Callbacks/Connect")(metadata=(("muster-rm-id", "rm"),))
        await raw.write(Said(hello=pb.Hello()).SerializeToString())
        await raw.read()
        await raw.write(garbage)
        async with asyncio.timeout(PATIENCE_S):
            assert await raw.code() is Code.INVALID_ARGUMENT
        assert "that are no muster.v1.FromResourceManager" in await raw.details()
    await quick.scheduler.ask("other", 1)
    assert await other.asked(1) == [1]
    await allocations.send(asks("rm", "b"))
    await allocations.take(1)


async def test_a_newer_stream_takes_the_place_on_any_gateway(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    channel = await world.registered(first)
    older = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1)
    assert await older.asked(1) == [1]
    newer = await channel.connect(predicates=True)
    assert await older.status() == (
        Code.ABORTED,
        "superseded: a newer callback stream of rmID 'rm' was opened",
    )
    await world.scheduler.ask("rm", 2)
    assert await newer.asked(1) == [2]
    last = newer.got[-1].response_sequence
    elsewhere = await world.channel(second).connect(state_dump=True, resume_after=last)
    assert (await newer.status())[0] is Code.ABORTED
    await world.scheduler.ask("rm", 3)
    assert await elsewhere.asked(1) == [3]
    await advance()
    assert world.scheduler.notes("rm") == [(True, 1), (True, 2), (True, 3)], "it was never away"


async def test_a_registration_ends_the_stream_and_its_end_is_noted(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1)
    await stream.asked(1)
    await channel.register("rm")
    assert await stream.status() == (Code.ABORTED, "superseded: rmID 'rm' registered again, open new streams")
    await advance()
    assert world.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"
    await world.scheduler.ask("rm", 2)  # no recipient: the new registration has had no stream
    again = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 3)
    assert await again.asked(1) == [3]
    await advance()
    assert world.scheduler.notes("rm")[2:] == [(True, 3)], "the scheduler knows of the new one"


async def test_too_many_streams_are_refused_whatever_their_kind(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway(max_streams=3))
    for rm_id in ("rm", "rm2", "rm3"):
        await channel.register(rm_id)
        await channel.connect(rm_id)
    refused = channel.connection()
    assert (await refused.status())[0] is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("tells", [True, False], ids=["with a number", "without"])
async def test_no_question_is_lost_between_streams(world: Rig, *, tells: bool) -> None:
    gateways = [await world.gateway(), await world.gateway()]
    channel = await world.registered(gateways[0])
    stream = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1, 2)
    assert await stream.asked(2) == [1, 2]
    await advance()
    assert _stored(gateways[0]) == 3, "the place is stored"
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 2), "the gateway has noticed"
    await world.scheduler.ask("rm", 3, 4)
    last = stream.got[-1].response_sequence if tells else None
    stream = await world.channel(gateways[1]).connect(predicates=True, resume_after=last)
    await world.scheduler.ask("rm", 5)
    assert await stream.asked(3) == [3, 4, 5]


def _stored(gateway: Gateway) -> int:
    return max((stream.stored.sequence for stream in gateway._table.all()), default=0)


async def test_unprocessed_messages_are_sent_again(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1, 2, 3)
    assert await stream.asked(3) == [1, 2, 3]
    processed = stream.got[1].response_sequence
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 2), "the gateway has noticed"
    assert await (await channel.connect(predicates=True, resume_after=processed)).asked(2) == [2, 3]
    assert await (await channel.connect(predicates=True, resume_after=0)).asked(3) == [1, 2, 3]


async def test_questions_before_a_gateways_death_are_sent_again(quick: Rig) -> None:
    first, second = await quick.gateway(cursor_flush_ms=60_000.0), await quick.gateway()
    stream = await (await quick.registered(first)).connect(predicates=True)
    await quick.scheduler.ask("rm", 1)
    assert await stream.asked(1) == [1]
    await crash(first)
    assert await (await quick.channel(second).connect(predicates=True)).asked(1) == [1]


async def test_old_questions_are_not_worth_a_search(quick: Rig) -> None:
    """Questions older than callback_resume_s are skipped, whatever number the RM has processed."""
    gateway = await quick.gateway(callback_resume_s=0.5)
    channel = await quick.registered(gateway)
    stream = await channel.connect(predicates=True)
    await quick.scheduler.ask("rm", 1)
    await stream.asked(1)
    stream.cancel()
    await advance()
    assert quick.scheduler.notes("rm")[-1] == (False, 2), "the gateway has noticed"
    await quick.scheduler.ask("rm", 2)
    await quick.scheduler.emit("other", [NODE] * 1_000)
    await asyncio.sleep(0.6)
    numbers = itertools.count(3)

    async def go_on_asking() -> None:  # (on a busy machine the stream may come later than callback_resume_s)
        while True:
            await quick.scheduler.ask("rm", next(numbers))
            await asyncio.sleep(0.1)

    asking = asyncio.create_task(go_on_asking())
    for resume_after in (None, stream.got[-1].response_sequence, 0):
        stream = await channel.connect(predicates=True, resume_after=resume_after)
        assert (await stream.asked(1))[0] >= 3, resume_after
        stream.cancel()
        await advance()
        assert not gateway._table.all(), "the gateway has noticed"
    asking.cancel()


async def test_questions_that_retention_deleted_end_nothing(quick: Rig) -> None:
    gateway = await quick.gateway()
    channel = await quick.registered(gateway)
    stream = await channel.connect(predicates=True)
    await quick.scheduler.ask("rm", 1)
    await stream.asked(1)
    stream.cancel()
    await advance()
    assert quick.scheduler.notes("rm")[-1] == (False, 2), "the gateway has noticed"
    await quick.scheduler.ask("rm", 2, 3, 4)
    assert isinstance(quick.log, MemoryLog)
    responses, partition = quick.topics.responses, quick.topics.partition_of("rm")
    quick.log.store.delete_before(responses, partition, 4)  # question 4's offset
    stream = await channel.connect(predicates=True, resume_after=stream.got[-1].response_sequence)
    assert await stream.asked(1) == [4]


async def test_a_gateway_that_stops_notes_the_end_and_the_next_one_goes_on(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    channel = await world.registered(first)
    stream = await channel.connect(predicates=True)
    await world.scheduler.ask("rm", 1)
    await stream.asked(1)
    await first.stop()
    code, details = await stream.status()
    assert code is Code.UNAVAILABLE
    assert details.startswith("this gateway is stopping: connect again")
    await advance()
    assert world.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"
    await world.scheduler.ask("rm", 2)
    stream = await world.channel(second).connect(predicates=True)
    assert await stream.asked(1) == [2]
    await advance()
    assert world.scheduler.notes("rm")[-1] == (True, 3), "and of the new one"


async def test_the_callback_stream_of_a_dead_gateway_is_noted_while_others_keep_the_rm_running(quick: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    times = {"lease_ttl_s": 10.0, "clock": clock, "sessions": sessions}
    first, second = await quick.gateway(**times), await quick.gateway(**times)
    channel = await quick.registered(first)
    await channel.connect(predicates=True)
    allocations = quick.channel(second).open(ALLOCATION, "rm")
    await allocations.send(asks("rm", "a"))
    await allocations.take(1)
    await crash(first)
    life = second._servicer._dependencies.session_manager  # type: ignore[union-attr]
    clock.advance(9.0)
    await life.sweep(second._table)
    assert quick.scheduler.notes("rm") == [(True, 1)], "the lease still holds"
    clock.advance(2.0)
    await life.sweep(second._table)
    await advance()
    assert quick.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"
    await life.sweep(second._table)
    await allocations.send(asks("rm", "b"))
    await allocations.take(1)
    assert quick.scheduler.notes("rm") == [(True, 1), (False, 2)], "once"
    assert quick.scheduler.states("rm") == ["RUNNING"]


async def test_the_end_is_noted_when_the_rm_pauses_because_its_only_gateway_died(quick: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    times = {"lease_ttl_s": 10.0, "clock": clock, "sessions": sessions}
    first, second = await quick.gateway(**times), await quick.gateway(**times)
    await (await quick.registered(first)).connect(predicates=True)
    await crash(first)
    clock.advance(11.0)
    await second._servicer._dependencies.session_manager.sweep(second._table)  # type: ignore[union-attr]
    await advance()
    assert quick.scheduler.notes("rm") == [(True, 1), (False, 2)], "the scheduler knows of its end"
    await advance()
    assert quick.scheduler.states("rm") == ["RUNNING", "DISCONNECTED"], "it knows of the pause"


async def test_an_end_that_could_not_be_noted_is_noted_by_a_later_sweep(quick: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    gateway = await quick.gateway(lease_ttl_s=10.0, clock=clock, sessions=sessions)
    channel = await quick.registered(gateway)
    stream = await channel.connect(predicates=True)
    life = gateway._servicer._dependencies.session_manager  # type: ignore[union-attr]
    send_callbacks_disconnected = life._send_callbacks_disconnected

    async def failing(*_: object) -> None:
        raise LogDown("the log is away")

    life._send_callbacks_disconnected = failing
    stream.cancel()

    async def left() -> bool:
        session = await sessions.get("rm")
        return session is not None and session.callbacks_owed

    await advance()
    assert await left(), "the seat is free, and the note owed"
    life._send_callbacks_disconnected = send_callbacks_disconnected
    clock.advance(11.0)
    await life.sweep(gateway._table)
    await advance()
    assert quick.scheduler.notes("rm") == [(True, 1), (False, 3)], "the owed note is written"
    session = await sessions.get("rm")
    assert session is not None
    assert not session.callbacks_announced


async def test_a_gateway_that_was_taken_for_dead_gives_the_stream_up(quick: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    times = {"lease_ttl_s": 10.0, "clock": clock, "sessions": sessions}
    first, second = await quick.gateway(**times), await quick.gateway(**times)
    channel = await quick.registered(first)
    stream = await channel.connect(predicates=True)
    clock.advance(11.0)  # the first one is silent
    await second._servicer._dependencies.session_manager.sweep(second._table)  # type: ignore[union-attr]
    await first._servicer._dependencies.session_manager.sweep(first._table)  # type: ignore[union-attr]
    assert (await stream.status())[0] is Code.ABORTED
    await channel.connect(predicates=True)
    expected = [(True, 1), (False, 2), (True, 3)]
    await advance()
    assert quick.scheduler.notes("rm") == expected, "the scheduler knows each time"


async def test_a_store_that_lost_everything_goes_on_with_the_epochs_of_the_log(world: Rig) -> None:
    gateway = await world.gateway(lease_ttl_s=0.3)
    channel = await world.registered(gateway)
    for _ in range(3):
        stream = await channel.connect(predicates=True)
    await advance()
    assert world.scheduler.notes("rm") == [(True, 1), (True, 2), (True, 3)], "it is in the state"
    await world.scheduler.ask("rm", 0)
    await stream.asked(1)
    _forget(world)

    async def seated() -> bool:
        session = await gateway.sessions.get("rm")
        return session is not None and session.seats.get(CALLBACK, NOBODY) == Seat(gateway.gateway_id, 3)

    await advance()
    assert await seated(), "the session is back, and the stream has its seat"
    await world.scheduler.ask("rm", 1)
    assert await stream.asked(1) == [1]
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 4), "the end is noted"


async def test_a_stream_that_ended_while_the_store_was_empty_is_noted(world: Rig) -> None:
    """The gateway died together with the store, so only the log knows of the stream."""
    gateway = await world.gateway(lease_ttl_s=0.3)
    channel = await world.registered(gateway)
    stream = await channel.connect(predicates=True)
    await advance()
    assert world.scheduler.notes("rm"), "the scheduler has heard of it"
    await world.scheduler.ask("rm", 0)  # (in the transaction after the one that records it)
    await stream.asked(1)
    await crash(gateway)
    _forget(world)
    other = await world.gateway(lease_ttl_s=0.3)
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 2), "the end is noted"
    await world.channel(other).connect(predicates=True)
    await advance()
    assert world.scheduler.notes("rm")[-1] == (True, 3), "later streams count"


def _forget(world: Rig) -> None:
    store = world.sessions
    assert isinstance(store, MemorySessions)
    for content in (store._sessions, store._cursors, store._leases):
        content.clear()
    store._filled = ""


Told = list[tuple[str, int | None]]


def apart(told: Told) -> tuple[list[tuple[str, int]], list[str]]:
    """Split into tracked events and request events, each in its order."""
    return [(name, number) for name, number in told if number is not None], [n for n, number in told if number is None]


async def test_events_come_in_order_from_now_on(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    await world.scheduler.happen("rm", "before")
    stream = await channel.connect(events=True)
    await world.scheduler.happen("rm", "a", "b")
    await world.scheduler.happen("other", "not mine")
    await world.scheduler.happen("rm", "ask", tracked=False)
    await world.scheduler.happen("rm", "c")
    assert apart(await stream.events(4)) == ([("a", 1), ("b", 2), ("c", 3)], ["ask"])


async def test_a_stream_without_the_wish_gets_no_events(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect(predicates=True)
    await quick.scheduler.happen("rm", "a")
    await quick.scheduler.ask("rm", 1)
    assert await stream.asked(1) == [1]
    assert await stream.silent()


@pytest.mark.parametrize("after", [0, 503, 1_499, 2_998])
async def test_events_go_on_behind_an_id(world: Rig, after: int) -> None:
    channel = await world.registered(await world.gateway())
    for start in range(0, 3_000, 100):  # between events of other RMs, and the RM's own without an id
        await world.scheduler.happen("rm", *[f"e{n}" for n in range(start, start + 100)])
        await world.scheduler.happen("rm", f"ask{start}", tracked=False)
        await world.scheduler.happen("other", *["x"] * 60)
    stream = await channel.connect(events=True, events_after=after)
    await world.scheduler.happen("rm", "last")
    tracked = [*((f"e{number}", number) for number in range(after + 1, 3_000)), ("last", 3_000)]
    asks = [f"ask{number - 99}" for number in range(after, 3_000) if number % 100 == 99]
    assert apart(await stream.events(len(tracked) + len(asks))) == (tracked, asks)


async def test_an_id_that_is_none_yet_means_what_comes_behind_it(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    await quick.scheduler.happen("rm", "a", "b")
    stream = await channel.connect(events=True, events_after=3)
    await quick.scheduler.happen("rm", "c", "d", "e")
    await quick.scheduler.happen("rm", "ask", tracked=False)
    assert apart(await stream.events(2)) == ([("e", 4)], ["ask"])


async def test_request_events_come_at_the_interval_and_wait_for_it(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway(request_push_interval_s=3.0))
    stream = await channel.connect(events=True)
    await quick.scheduler.happen("rm", "k1", "k2", tracked=False)
    await quick.scheduler.happen("rm", "a")
    assert await stream.events(1) == [("a", 0)], "it does not wait for them"
    assert await stream.events(2) == [("k1", None), ("k2", None)]


async def test_the_newest_request_events_are_kept_and_the_rest_counted(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect(events=True, request_events_only=True)
    before = metrics.request_events_dropped._value.get()
    names = [f"k{number}" for number in range(2_500)]
    await quick.scheduler.happen("rm", "tracked")
    await quick.scheduler.happen("rm", *names, tracked=False)
    told = apart(await stream.events(1_000))
    assert told == ([], names[-1_000:])
    assert stream.got[-1].events.request_events_dropped == 1_500
    assert metrics.request_events_dropped._value.get() - before == 1_500
    # the store of the RM has another capacity now
    await quick.scheduler.happen("rm", *names[:20], tracked=False, store=5)
    assert apart(await stream.events(5)) == ([], names[15:20])


@pytest.mark.parametrize("only", [False, True])
async def test_no_request_event_comes_twice_or_is_lost_between_streams(world: Rig, *, only: bool) -> None:
    channel = await world.registered(await world.gateway())
    got: list[str] = []
    after: int | None = None
    last_id = 0
    for turn in range(4):
        wishes = {"request_events_after": after} if after is not None else {}
        if not only:
            wishes |= {"events_after": last_id} if turn else {}
        stream = await channel.connect(events=True, request_events_only=only, **wishes)
        await world.scheduler.happen("rm", f"open{turn}", tracked=False)
        await world.scheduler.happen("rm", f"t{turn}")
        want = 1 if turn == 0 else 2
        told: Told = []
        while len([name for name, number in told if number is None]) < want:
            told += await stream.events(1)
        got += apart(told)[1]
        last_id = max([last_id, *(number for _, number in apart(told)[0])])
        after = stream.got[-1].events.request_position
        stream.cancel()
        await world.scheduler.happen("rm", f"closed{turn}", tracked=False)
    assert got == [name for turn in range(4) for name in (f"open{turn}", f"closed{turn}")][:-1]


async def test_request_events_made_while_no_stream_is_open_arrive_once_and_in_order(world: Rig) -> None:
    """The RM names no position. The gateway's stored position counts, over reconnects and restarts of the gateway."""
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    await world.scheduler.happen("rm", "a0", "a1", tracked=False)
    await world.scheduler.happen("other", "not mine", tracked=False)
    # 1. the first stream ever
    stream = await channel.connect(events=True)
    assert await stream.events(2) == [("a0", None), ("a1", None)]
    await world.scheduler.happen("rm", "a2", tracked=False)
    assert await stream.events(1) == [("a2", None)]
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 2), "the stream has left"
    # 2. again, at the same gateway, with tracked events between
    await world.scheduler.happen("rm", "t0", "t1")
    await world.scheduler.happen("rm", "b0", "b1", tracked=False)
    stream = await channel.connect(request_events_only=True)
    assert await stream.events(2) == [("b0", None), ("b1", None)]
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 4), "the stream has left"
    # 3. again, at another one
    await gateway.stop()
    await world.scheduler.happen("rm", "c0", tracked=False)
    channel = world.channel(await world.gateway())
    stream = await channel.connect(events=True, events_after=0)
    told = await stream.events(2)
    assert apart(told) == ([("t1", 1)], ["c0"])
    stream.cancel()
    await advance()
    assert world.scheduler.notes("rm")[-1] == (False, 6), "the stream has left"
    # 4. without new events
    stream = await channel.connect(request_events_only=True)
    assert await stream.silent()


async def test_processed_messages_of_a_killed_gateway_are_not_sent_again(world: Rig) -> None:
    gateway = await world.gateway(lease_ttl_s=0.3)
    channel = await world.registered(gateway)
    stream = await channel.connect(request_events_only=True)
    await world.scheduler.happen("rm", "a", tracked=False)
    assert await stream.events(1) == [("a", None)]

    async def noted() -> bool:
        session = await gateway.sessions.get("rm")
        return session is not None and session.requests_sent >= 0

    await advance()
    assert await noted(), "where it goes on is stored"
    await crash(gateway)
    await world.scheduler.happen("rm", "b", tracked=False)
    stream = await world.channel(await world.gateway(lease_ttl_s=0.3)).connect(request_events_only=True)
    assert await stream.events(1) == [("b", None)]


async def test_a_stream_that_opens_late_gets_the_newest_that_a_store_keeps(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    names = [f"k{number}" for number in range(1_200)]
    await quick.scheduler.happen("rm", *names, tracked=False)
    stream = await channel.connect(events=True)
    assert apart(await stream.events(1_000)) == ([], names[-1_000:])
    assert stream.got[-1].events.request_events_dropped == 200


async def test_a_position_of_another_log_says_nothing(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    await quick.scheduler.happen("rm", "before", tracked=False)
    stream = await channel.connect(request_events_only=True, request_events_after=2**60)
    await quick.scheduler.happen("rm", "a", tracked=False)
    told = await stream.events(1)
    told += await stream.events(1) if len(told) == 1 else []
    assert told == [("before", None), ("a", None)], "neither was sent before"


async def test_nil_and_empty_request_events_are_skipped(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect(events=True)
    partition = quick.topics.partition_of("rm")
    writer = await quick.log.writer("garbage")
    headers = (("tracking", b"0"), ("store", b"many"))
    for value in (None, b"", b"\xff\xff\xff"):
        await writer.append(OutRecord(quick.topics.events, partition, b"rm", value, headers))
    await quick.scheduler.happen("rm", "good", tracked=False)
    assert await stream.events(1) == [("good", None)]
    await writer.close()


async def test_events_that_retention_deleted_show_by_their_ids(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    await quick.scheduler.happen("rm", *[f"e{n}" for n in range(10)])
    assert isinstance(quick.log, MemoryLog)
    quick.log.store.delete_before(quick.topics.events, quick.topics.partition_of("rm"), 6)
    stream = await channel.connect(events=True, events_after=2)
    assert await stream.events(4) == [(f"e{n}", n) for n in range(6, 10)]


async def test_a_slow_reader_holds_its_own_events_up_and_loses_none(world: Rig) -> None:
    gateway = await world.gateway()
    channel, other = await world.registered(gateway), await world.registered(gateway, "other")
    stream = await channel.connect(events=True, predicates=True)
    for start in range(0, 10_000, 500):
        await world.scheduler.happen("rm", *[f"e{n}" for n in range(start, start + 500)], padding="x" * 1_000)
    feed = gateway._table.get("rm", CALLBACK)._events  # type: ignore[union-attr]
    await advance()
    assert feed._waiting_bytes >= 500_000, "what may wait is full"
    await asyncio.sleep(0.2)
    assert feed._waiting_bytes < 600_000, "the gateway reads no further"
    quick_one = await other.connect("other", events=True)
    await world.scheduler.happen("other", "mine")
    assert await quick_one.events(1) == [("mine", 0)], "another RM notices nothing"
    responses = gateway._table.get("rm", CALLBACK)._feed  # type: ignore[union-attr]
    seen = responses.read_position  # type: ignore[union-attr]
    await world.scheduler.ask("rm", 1)
    await advance()
    assert responses.read_position != seen, "the question is there"  # type: ignore[union-attr]
    got: list[tuple[str, int | None]] = []
    questions: list[int] = []
    while len(got) < 10_000:
        message = await stream.receive()
        questions += [question.id for question in message.predicates]
        got += [(each.record.objectID, each.id) for each in message.events.events]
        assert message.ByteSize() < 300_000
    assert got == [(f"e{n}", n) for n in range(10_000)]
    assert questions == [1], "the question did not wait for the last event"


async def test_a_client_that_breaks_off_in_the_middle_of_a_write_is_no_defect(quick: Rig) -> None:
    gateway = await quick.gateway()
    channel = await quick.registered(gateway)
    await quick.scheduler.happen("rm", *[f"e{n}" for n in range(4_000)], padding="x" * 500)
    before = metrics.internal_errors._value.get()
    for _ in range(30):
        stream = await channel.connect(events=True, events_after=0)
        for _ in range(3):
            await stream.receive()
        stream.cancel()
    await advance()
    assert not gateway._table.all()
    assert not gateway._calls, "all are over"
    assert metrics.internal_errors._value.get() == before


async def test_messages_under_way_at_a_break_are_sent_again(quick: Rig) -> None:
    gateway = await quick.gateway(resend_window_s=5.0)
    channel = await quick.registered(gateway)
    state = si.UpdateContainerSchedulingStateRequest(reason="x" * 2_000)
    seen = [1]  # (the registration's number)
    for _ in range(10):
        stream = await channel.connect(scheduling_states=True)
        await quick.scheduler.tell_often("rm", 200, pb.ToResourceManager(scheduling_states=[state]))
        for _ in range(3):
            sequence = (await stream.receive()).response_sequence
            assert sequence <= seen[-1] + 1, "nothing between is left out"
            seen.append(max(sequence, seen[-1]))
        stream.cancel()
        await advance()
        assert not gateway._table.all(), "the gateway has noticed"


async def test_an_unreadable_event_is_passed_over(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect(events=True)
    partition = quick.topics.partition_of("rm")
    writer = await quick.log.writer("garbage")
    headers = (("id", b"0"), ("tracking", b"1"))
    await writer.append(OutRecord(quick.topics.events, partition, b"rm", b"\xff\xff", headers))
    await quick.scheduler.happen("rm", "good")
    assert (await stream.events(1))[0][0] == "good"
    await writer.close()


def a_configuration(number: str, config: str, rm_id: str = "rm") -> pb.ConfigurationUpdate:
    return pb.ConfigurationUpdate(id=number, request=si.UpdateConfigurationRequest(rmID=rm_id, config=config))


async def test_configurations_are_put_to_the_scheduler_in_order_and_answered(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = await channel.connect()
    await stream.send(Said(configurations=[a_configuration("1", "good"), a_configuration("2", "bad")]))
    (first,) = (await stream.receive()).configurations
    (second,) = (await stream.receive()).configurations
    assert (first.id, first.response.accepted, first.error) == ("1", True, "")
    assert list(first.response.changes) == ["[default] root.a maxapplications: not set -> 3"]
    assert (second.id, second.response.accepted, second.error) == ("2", False, "")
    problem = second.response.problems[0]
    assert (problem.severity, problem.line, problem.message) == (admin_pb2.ConfigurationProblem.ERROR, 3, "is bad")
    await world.scheduler.ask("rm", 1)
    assert await stream.asked(1) == [1]


async def test_a_configuration_that_gets_no_answer_is_answered_with_an_error(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway(registration_timeout_s=3.0))
    stream = await channel.connect()
    await stream.send(Said(configurations=[a_configuration("x", "good", rm_id="other")]))
    (result,) = (await stream.receive()).configurations
    assert result.error == "configurations[0].request.rmID: 'other', expected 'rm': a stream belongs to one RM"
    await advance()
    assert quick.scheduler.notes("rm"), "the scheduler has heard of the stream"
    quick.scheduler.mute = True
    await stream.send(Said(configurations=[a_configuration("y", "good")]))
    (result,) = (await stream.receive()).configurations
    assert result.id == "y"
    assert re.fullmatch(f"{scheduler_silent()}: update it again", result.error)
    quick.scheduler.mute = False
    await stream.send(Said(configurations=[a_configuration("z", "good")]))
    assert (await stream.receive()).configurations[0].response.accepted


async def test_only_so_many_configurations_wait(quick: Rig) -> None:
    channel = await quick.registered(await quick.gateway())
    stream = await channel.connect()
    await advance()
    assert quick.scheduler.notes("rm"), "the scheduler has heard of the stream"
    quick.scheduler.mute = True
    await stream.send(Said(configurations=[a_configuration(f"{n}", "good") for n in range(30)]))
    results = [(await stream.receive()).configurations[0] for _ in range(13)]
    assert all("wait for the scheduler already: try again" in result.error for result in results)
    # (It is chance whether the first one is already under way when the last ones come.)
    assert {result.id for result in results} <= {f"{n}" for n in range(16, 30)}
    await stream.say(1)
    await advance()
    assert quick.scheduler.answers("rm"), "answers do not wait for configurations"


async def test_a_sweep_leaves_a_seat_alone_that_is_just_being_taken(quick: Rig) -> None:
    go = asyncio.Event()

    class Slow(MemorySessions):
        async def cursors(self, rm_id: str) -> Any:
            await go.wait()
            return await super().cursors(rm_id)

    sessions = Slow(quick.clock)
    gateway = await quick.gateway(sessions=sessions)
    channel = await quick.registered(gateway)
    connecting = asyncio.create_task(channel.connect(predicates=True))

    async def taken() -> bool:
        session = await sessions.get("rm")
        return session is not None and CALLBACK in session.seats

    await advance()
    assert await taken(), "the seat is taken"
    await gateway._servicer._dependencies.session_manager.sweep(gateway._table)  # type: ignore[union-attr]
    go.set()
    stream = await connecting
    await quick.scheduler.ask("rm", 1)
    assert await stream.asked(1) == [1]
    await gateway._servicer._dependencies.session_manager.sweep(gateway._table)  # type: ignore[union-attr]
    session = await sessions.get("rm")
    assert session is not None
    assert session.seats[CALLBACK] == Seat(gateway.gateway_id, 1)
    assert quick.scheduler.notes("rm") == [(True, 1)]
