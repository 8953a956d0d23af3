"""The gateway over real gRPC, with a scripted scheduler, on the memory and the SQLite log."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from integration.gateway_rig import PATIENCE_S, Rig, an_ask, asks, crash
from muster_gateway.errors import Superseded
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.stream_kind import SI_KINDS, StreamKind
from muster_proto.si.v1 import si_pb2
from virtual.plugin import advance

ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE
Code = grpc.StatusCode


@pytest.fixture
def world(embedded: Rig) -> Rig:
    return embedded


# ---- registration ---------------------------------------------------------------------------------------------------


async def test_a_registration_is_answered_by_the_scheduler(world: Rig) -> None:
    gateway = await world.gateway()
    await world.registered(gateway, "rm")
    (body,) = world.scheduler.bodies("rm", "register")
    assert si_pb2.RegisterResourceManagerRequest.FromString(body).rmID == "rm"
    await advance()
    assert world.scheduler.states("rm") == ["RUNNING"], "the scheduler hears that the RM runs"


async def test_a_refused_registration_names_every_problem_with_its_place(world: Rig) -> None:
    channel = world.channel(await world.gateway())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.register("rm", config="bad")
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert "error: partitions[0].name (line 3, column 5): is bad" in (caught.value.details() or "")
    status = await channel.open(NODE, "rm").status()
    assert status[0] is Code.FAILED_PRECONDITION


async def test_warnings_come_with_the_answer(world: Rig) -> None:
    channel = world.channel(await world.gateway())
    call = channel.stub.RegisterResourceManager(si_pb2.RegisterResourceManagerRequest(rmID="rm", config="odd"))
    await call
    trailing = dict(await call.trailing_metadata())
    assert trailing["muster-warning-bin"] == b"warning: partitions[0].name (line 3, column 5): is bad"


async def test_a_silent_scheduler_is_said_in_time(world: Rig) -> None:
    channel = world.channel(await world.gateway(registration_timeout_s=0.2))
    world.scheduler.mute = True
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.register("rm")
    assert caught.value.code() is Code.UNAVAILABLE
    assert caught.value.details() == "the scheduler did not answer within 0.2 s: register again"


async def test_concurrent_registrations_are_all_answered_and_the_last_is_in_force(world: Rig) -> None:
    channel = world.channel(await world.gateway())
    await asyncio.gather(*(channel.register("rm", version=str(n)) for n in range(10)))
    session = await world.sessions.get("rm")
    assert session is not None
    assert session.registered_at.offset == world.scheduler.sequences["rm"] == 10


# ---- opening a stream ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
async def test_an_open_stream_says_so_before_anything_is_sent(world: Rig, *, named: bool) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway, "rm")
    stream = channel.open(NODE, "rm" if named else None)
    async with asyncio.timeout(PATIENCE_S):
        await stream.call.initial_metadata()
    assert not stream.call.done()
    assert (gateway._table.get("rm", NODE) is not None) is named, "a stream that names its RM has its seat at once"
    await stream.send(
        si_pb2.NodeRequest(rmID="rm", nodes=[si_pb2.NodeInfo(nodeID="n1", action=si_pb2.NodeInfo.CREATE)])
    )
    assert [node.nodeID for node in (await stream.receive()).accepted] == ["n1"]


# ---- three streams --------------------------------------------------------------------------------------------------


async def test_three_streams_of_two_rms_each_get_their_own(world: Rig) -> None:
    gateway = await world.gateway()
    for rm_id in ("rm1", "rm2"):
        channel = await world.registered(gateway, rm_id)
        allocation, application, node = channel.open(ALLOCATION), channel.open(APPLICATION), channel.open(NODE)
        await node.send(si_pb2.NodeRequest(rmID=rm_id, nodes=[si_pb2.NodeInfo(nodeID="n1", action=1)]))
        await application.send(
            si_pb2.ApplicationRequest(rmID=rm_id, new=[si_pb2.AddApplicationRequest(applicationID="app")])
        )
        await allocation.send(asks(rm_id, f"{rm_id}-a", f"{rm_id}-b"))
        assert [a.nodeID for a in (await node.receive()).accepted] == ["n1"]
        assert [a.applicationID for a in (await application.receive()).accepted] == ["app"]
        assert [a.allocationKey for a in (await allocation.receive()).new] == [f"{rm_id}-a", f"{rm_id}-b"]
        assert await node.silent()


async def test_a_fully_admitted_message_is_passed_on_unchanged(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    message = asks("rm", "a")
    unknown = message.SerializeToString() + b"\xfa\x07\x03new"  # a field of a later version of the interface
    stream = channel.grpc.stream_stream("/si.v1.Scheduler/UpdateAllocation")()
    await stream.write(unknown)
    await advance()
    assert world.scheduler.bodies("rm", "allocation") == [unknown], "the bytes arrive"
    stream.cancel()


async def test_bad_items_are_answered_at_once_and_the_rest_goes_on(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    request = asks("rm", "good")
    request.allocations.append(an_ask(""))
    await stream.send(request)
    answers = [await stream.receive(), await stream.receive()]
    rejection = next(answer for answer in answers if answer.rejectedAllocations)
    assert rejection.responseSequence == 0
    assert "allocations[1].allocationKey: empty" in rejection.rejectedAllocations[0].reason
    assert world.scheduler.bodies("rm", "allocation") == [asks("rm", "good").SerializeToString()]


async def test_order_of_one_streams_requests_is_kept(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION)
    for number in range(300):
        await stream.send(asks("rm", f"k{number}"))
    await stream.take(300)
    assert [answer.new[0].allocationKey for answer in stream.got] == [f"k{n}" for n in range(300)]


async def test_a_large_message_is_split_and_nothing_of_it_is_lost(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION)
    keys = [f"key-{n:06}-{'x' * 200}" for n in range(8_000)]
    await stream.send(asks("rm", *keys))
    got: list[str] = []
    while len(got) < len(keys):
        got += [allocation.allocationKey for allocation in (await stream.receive()).new]
    assert got == keys


async def test_a_half_closed_stream_goes_on_receiving(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION)
    await stream.send(asks("rm", "a"))
    await stream.half_close()
    assert await stream.take(1) == [2]
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await stream.take(1) == [3]


# ---- who may open one -----------------------------------------------------------------------------------------------


async def test_an_unregistered_rm_is_refused_and_others_continue(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    good = channel.open(ALLOCATION)
    await good.send(asks("rm", "a"))
    await good.take(1)
    stranger = channel.open(ALLOCATION)
    await stranger.send(asks("nobody", "a"))
    code, details = await stranger.status()
    assert (code, details) == (
        Code.FAILED_PRECONDITION,
        "rmID 'nobody' is not registered: call RegisterResourceManager first",
    )
    await good.send(asks("rm", "b"))
    assert len(await good.take(1)) == 1


async def test_a_stream_belongs_to_one_rm(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    await channel.register("other")
    stream = channel.open(ALLOCATION)
    await stream.send(asks("rm", "a"))
    await stream.send(asks("other", "b"))
    code, details = await stream.status()
    assert code is Code.INVALID_ARGUMENT
    assert details == "rmID: 'other', expected 'rm': a stream belongs to one RM"
    assert world.scheduler.bodies("other", "allocation") == []


async def test_a_newer_stream_supersedes_the_older_one(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    older = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 3)
    assert await older.take(3) == [2, 3, 4]
    newer = channel.open(ALLOCATION, "rm")
    code, details = await older.status()
    assert code is Code.ABORTED
    assert details == "superseded: a newer allocation stream of rmID 'rm' was opened"
    await world.scheduler.emit("rm", [ALLOCATION] * 2)
    assert await newer.take(2) == [5, 6]
    await advance()
    assert world.scheduler.states("rm")[-1] == "RUNNING", "it never paused for good"


async def test_streams_of_an_earlier_registration_end(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    older = [channel.open(kind, "rm") for kind in SI_KINDS]
    await world.scheduler.emit("rm", list(SI_KINDS))
    for stream in older:
        await stream.take(1)
    await world.scheduler.emit("rm", [NODE])  # not for the new registration
    await channel.register("rm")
    for stream in older:
        code, details = await stream.status()
        assert code is Code.ABORTED
        assert details == "superseded: rmID 'rm' registered again, open new streams"
    newer = channel.open(NODE, "rm")
    await world.scheduler.emit("rm", [NODE])
    assert await newer.take(1) == [world.scheduler.sequences["rm"]]


async def test_too_many_streams_are_refused(world: Rig) -> None:
    gateway = await world.gateway(max_streams=3)
    channel = await world.registered(gateway)
    streams = [channel.open(kind, "rm") for kind in SI_KINDS]
    await world.scheduler.emit("rm", list(SI_KINDS))
    for stream in streams:
        await stream.take(1)
    code, _ = await channel.open(NODE, "rm").status()
    assert code is Code.RESOURCE_EXHAUSTED
    streams[0].cancel()
    await advance()
    assert len(gateway._calls) < 3, "a cancelled stream makes room"  # type: ignore[union-attr]
    again = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await again.take(1)


# ---- resume after a break --------------------------------------------------------------------------------------------


async def test_after_a_break_the_stream_goes_on_where_it_was(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION, NODE, ALLOCATION])
    assert await stream.take(2) == [2, 4]
    stream.cancel()
    await advance()
    assert world.scheduler.states("rm")[-1] == "DISCONNECTED", "without streams it is paused"
    await world.scheduler.emit("rm", [NODE, ALLOCATION, ALLOCATION])
    stream = channel.open(ALLOCATION, "rm")
    assert await stream.take(2) == [6, 7]
    assert await channel.open(NODE, "rm").take(2) == [3, 5]
    await advance()
    assert world.scheduler.states("rm")[-1] == "RUNNING", "with streams it runs"


async def test_a_stream_that_broke_off_gets_again_what_may_not_have_arrived(world: Rig) -> None:
    channel = await world.registered(await world.gateway(resend_window_s=60.0))
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION, ALLOCATION])
    assert await stream.take(2) == [2, 3]
    stream.cancel()
    await advance()
    assert world.scheduler.states("rm")[-1] == "DISCONNECTED", "the gateway has noticed"
    assert await channel.open(ALLOCATION, "rm").take(2) == [2, 3]
    exact = channel.open(ALLOCATION, "rm", resume_after=3)
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await exact.take(1) == [4]


@pytest.mark.parametrize(("resume_after", "expected"), [(0, [2, 3, 4, 5, 6]), (3, [4, 5, 6]), (5, [6]), (6, [])])
async def test_the_rms_own_number_wins(world: Rig, resume_after: int, expected: list[int]) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 4)
    assert await stream.take(4) == [2, 3, 4, 5]
    stream.cancel()
    await world.scheduler.emit("rm", [ALLOCATION])
    again = channel.open(ALLOCATION, "rm", resume_after=resume_after)
    assert await again.take(len(expected)) == expected
    assert await again.silent()


async def test_a_number_far_back_is_found_by_halving(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    for _ in range(20):
        await world.scheduler.emit("rm", [ALLOCATION, NODE, APPLICATION] * 50)
        await world.scheduler.emit("another", [ALLOCATION] * 50)
    numbers = await stream.take(1000)
    stream.cancel()
    for place in (0, 3, 499, 998, 999):
        again = channel.open(ALLOCATION, "rm", resume_after=numbers[place])
        assert await again.take(999 - place) == numbers[place + 1 :]
        assert await again.silent(0.02)


async def test_a_number_that_was_never_given_is_refused(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    await world.scheduler.emit("rm", [NODE])
    code, details = await channel.open(ALLOCATION, "rm", resume_after=99).status()
    assert code is Code.INVALID_ARGUMENT
    assert "muster-resume-after: 99, expected at most 2" in details


async def test_a_number_of_an_earlier_registration_means_from_the_beginning(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    await world.scheduler.emit("rm", [ALLOCATION] * 10)
    await channel.register("rm")  # 12
    early = channel.open(ALLOCATION, "rm", resume_after=0)
    await advance()
    assert world.scheduler.states("rm").count("RUNNING") >= 1, "it is open"
    await world.scheduler.emit("rm", [NODE, ALLOCATION, ALLOCATION])
    assert await early.take(2) == [14, 15]
    for number in (0, 5, 11):
        early.cancel()
        early = channel.open(ALLOCATION, "rm", resume_after=number)
        assert await early.take(2) == [14, 15]
    node = channel.open(NODE, "rm", resume_after=3)
    assert await node.take(1) == [13]


async def test_after_a_crash_of_the_gateway_nothing_is_missing(world: Rig) -> None:
    first = await world.gateway(cursor_flush_ms=60_000)
    channel = await world.registered(first)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 5)
    assert await stream.take(5) == [2, 3, 4, 5, 6]
    await crash(first)
    await world.scheduler.emit("rm", [ALLOCATION] * 2)
    second = await world.gateway()
    plain = world.channel(second).open(ALLOCATION, "rm")
    assert await plain.take(7) == [2, 3, 4, 5, 6, 7, 8], "no position was stored, so all are sent again"
    exact = world.channel(second).open(ALLOCATION, "rm", resume_after=6)
    assert await exact.take(2) == [7, 8]


async def test_a_stopping_gateway_hands_over_without_loss_or_double(world: Rig) -> None:
    first = await world.gateway(cursor_flush_ms=60_000)
    channel = await world.registered(first)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 5)
    await stream.take(5)
    stopping = asyncio.create_task(first.stop())
    code, details = await stream.status()
    assert code is Code.UNAVAILABLE
    assert "this gateway is stopping" in details
    await stopping
    await first.wait()
    assert len(stream.got) == 5
    await world.scheduler.emit("rm", [ALLOCATION])
    again = world.channel(await world.gateway()).open(ALLOCATION, "rm")
    assert await again.take(1) == [7]


async def test_two_gateways_an_rm_moves_from_one_to_the_other(world: Rig) -> None:
    first, second = await world.gateway(), await world.gateway()
    channel = await world.registered(first)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 3)
    assert await stream.take(3) == [2, 3, 4]
    await advance()
    assert not first._table.all()[0].has_unsaved_position, "the position is stored"
    moved = world.channel(second).open(ALLOCATION, "rm")
    await advance()
    assert second._table.all(), "the second gateway has the seat"
    await world.scheduler.emit("rm", [ALLOCATION] * 2)
    assert await moved.take(2) == [5, 6]
    code, _ = await stream.status()
    assert code is Code.ABORTED, "the older stream ends as soon as its gateway stores a position"


async def test_a_rebuilt_session_store_knows_the_rm_and_where_it_registered(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    await world.scheduler.emit("rm", [ALLOCATION] * 3)
    await channel.register("rm")  # number 5: earlier responses are void
    await world.scheduler.emit("rm", [ALLOCATION] * 2)
    fresh = await world.gateway(sessions=MemorySessions(world.clock))
    assert await world.channel(fresh).open(ALLOCATION, "rm").take(2) == [6, 7]
    assert await world.channel(fresh).open(ALLOCATION, "rm", resume_after=6).take(1) == [7]


async def test_an_rm_that_shuts_down_is_not_reported_as_superseded(world: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seats are given up before its streams end. A stored position in between must not end them as superseded."""
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    (open_stream,) = gateway._table.all()
    life = open_stream._dependencies.session_manager
    shut_down = life.shut_down

    async def and_then_others_notice(rm_id: str) -> None:
        await shut_down(rm_id)
        open_stream.end(Superseded("noticed in between"))

    monkeypatch.setattr(life, "shut_down", and_then_others_notice)
    leaving = channel.open(NODE, "rm", muster_shutdown="true")
    assert (await leaving.status())[0] is Code.OK
    assert (await stream.status())[0] is Code.OK


async def test_an_rm_that_shuts_down_is_stopped_and_its_streams_end_well(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    leaving = channel.open(NODE, "rm", muster_shutdown="true")
    assert (await leaving.status())[0] is Code.OK
    assert (await stream.status())[0] is Code.OK
    await advance()
    assert world.scheduler.states("rm")[-1] == "STOPPED", "the scheduler hears it"
    code, details = await channel.open(NODE, "rm").status()
    assert code is Code.FAILED_PRECONDITION
    assert details == "rmID 'rm' is stopped (the RM shut down): register again"
    await channel.register("rm")
    again = channel.open(NODE, "rm")
    await world.scheduler.emit("rm", [NODE])
    await again.take(1)


async def test_cancelled_streams_leave_nothing_behind(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    before = len(asyncio.all_tasks())
    for _ in range(20):
        stream = channel.open(ALLOCATION, "rm")
        await world.scheduler.emit("rm", [ALLOCATION])
        await stream.take(1)
        stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stream.call.code()
        await advance()
        assert not gateway._table.all(), "the gateway has noticed"
    await advance()
    assert not gateway._table.all()
    assert not gateway._calls, "no stream is left"  # type: ignore[union-attr]
    await advance()
    assert len(asyncio.all_tasks()) <= before, "no task is left"
    assert gateway._tails[0]._feeds == {}
    assert gateway._tails[1]._feeds == {}
