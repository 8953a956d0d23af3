"""Delivery under pressure: slow clients, overflowing queues, retention, a store that forgets, time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from integration.gateway_rig import PATIENCE_S, Rig, asks, crash
from manual_clock import ManualClock
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogUnavailable
from muster_gateway.sessions.contract import Advance, Cursor, Seat
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.stream_kind import SI_KINDS, StreamKind
from virtual.plugin import advance
from virtual.ports import Ports

ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE
Code = grpc.StatusCode


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
async def test_each_stream_gets_exactly_its_responses_in_spite_of_stalls(world: Rig, seed: int) -> None:
    """Random producers, stalled readers, tiny queues, breaks with resume: the received numbers are the sent numbers."""
    chance = random.Random(seed)
    gateway = await world.gateway(queue_responses=4, read_batch=7, max_catch_up_readers=2)
    rms = ["rm1", "rm2", "rm3"]
    for rm_id in rms:
        await world.registered(gateway, rm_id)
    sent: dict[tuple[str, StreamKind], list[int]] = {pair: [] for pair in itertools.product(rms, SI_KINDS)}
    done = asyncio.Event()

    async def produce() -> None:
        for _ in range(150):
            rm_id = chance.choice(rms)
            kinds = chance.choices(list(SI_KINDS), weights=(6, 2, 1), k=chance.randint(1, 12))
            first = world.scheduler.sequences[rm_id] + 1
            for number, kind in enumerate(kinds, first):
                sent[rm_id, kind].append(number)
            await world.scheduler.emit(rm_id, kinds)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.01)
        done.set()

    async def consume(rm_id: str, kind: StreamKind) -> list[int]:
        got: list[int] = []
        channel = world.channel(gateway)
        while not (done.is_set() and got == sent[rm_id, kind]):
            stream = channel.open(kind, rm_id, resume_after=got[-1] if got else None)
            # A client without a number cannot resume: a break could lose responses on their way. So it waits for its
            # first response, which each stream gets. A new stream gets time to open on a busy machine.
            patience_s = 3.0 if got else PATIENCE_S
            for _ in range(chance.randint(5, 60)):
                if done.is_set() and got == sent[rm_id, kind]:
                    break
                try:
                    async with asyncio.timeout(patience_s):
                        got.append((await stream.call.read()).responseSequence)
                except TimeoutError:
                    break
                patience_s = 0.2
                if chance.random() < 0.1:
                    await asyncio.sleep(chance.random() * 0.02)
            assert got == sent[rm_id, kind][: len(got)], "a response was doubled, lost or out of order"
            stream.cancel()
        return got

    async with asyncio.timeout(500):
        results = await asyncio.gather(produce(), *(consume(*pair) for pair in sent))
    assert dict(zip(sent, results[1:], strict=True)) == sent


async def test_a_stalled_client_overflows_its_queue_and_loses_nothing(world: Rig, ports: Ports) -> None:
    ports.network.window_bytes = 2_000
    gateway = await world.gateway(queue_responses=8, read_batch=50)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    for _ in range(40):  # the client does not read: flow control stops the gateway's writes, then its queue is full
        await world.scheduler.emit("rm", [ALLOCATION] * 250)
    feed = gateway._table.all()[0]._feed
    assert feed is not None
    await advance()
    assert not feed.attached, "the stream left the live tail"
    assert len(feed._queue) <= 8
    assert await stream.take(10_000) == list(range(3, 10_003))
    await advance()
    assert feed.attached, "it is back on the live tail"


async def test_requests_wait_while_the_log_does(world: Rig) -> None:
    gateway = await world.gateway(inflight_bytes=20_000)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    writer = gateway._servicer._dependencies.writer  # type: ignore[union-attr]
    append, waiting = writer.append, []

    def slow(record: object) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.append((record, future))
        return future

    writer.append = slow  # type: ignore[method-assign,assignment]
    message = asks("rm", *[f"{n:0100}" for n in range(50)])
    sending = asyncio.create_task(_send_all(stream, message, 200))
    await advance()
    assert len(waiting) * message.ByteSize() >= 20_000, "the stream's share is used up"
    await asyncio.sleep(0.1)
    assert len(waiting) <= 20_000 // message.ByteSize() + 1, "the gateway takes no more requests"
    writer.append = append  # type: ignore[method-assign]
    for record, future in waiting:
        future.set_result(await append(record))  # type: ignore[arg-type]
    await sending
    await advance()
    assert len(world.scheduler.bodies("rm", "allocation")) == 200, "then all of it arrives"


async def _send_all(stream: object, message: object, count: int) -> None:
    for _ in range(count):
        await stream.send(message)  # type: ignore[attr-defined]


async def test_a_failed_append_ends_the_stream_with_try_again(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await stream.send(asks("rm", "a"))
    await stream.take(1)
    writer = gateway._servicer._dependencies.writer  # type: ignore[union-attr]
    append = writer.append

    def failing(_record: object) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(LogUnavailable("broker away"))
        return future

    writer.append = failing  # type: ignore[method-assign,assignment]
    await stream.send(asks("rm", "b"))
    code, details = await stream.status()
    assert code is Code.UNAVAILABLE
    assert details == "the log does not take requests (LogUnavailable): send unanswered items again"
    writer.append = append  # type: ignore[method-assign]
    again = channel.open(ALLOCATION, "rm")
    await again.send(asks("rm", "b"))
    await again.take(1)


async def test_a_defect_ends_in_a_number_not_in_a_traceback(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    gateway._servicer._dependencies.codec.request = None  # type: ignore[union-attr,method-assign,assignment]
    await stream.send(asks("rm", "a"))
    code, details = await stream.status()
    assert code is Code.INTERNAL
    assert details.startswith("internal error ")
    assert "NoneType" not in details
    del gateway._servicer._dependencies.codec.request  # type: ignore[union-attr]
    again = channel.open(ALLOCATION, "rm")
    await again.send(asks("rm", "a"))
    await again.take(1)


async def test_responses_deleted_before_they_were_sent_are_a_loss(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    partition = world.topics.partition_of("rm")
    sent = channel.open(NODE, "rm")
    await world.scheduler.emit("rm", [NODE])
    await sent.take(1)
    sent.cancel()
    await advance()
    assert world.scheduler.states("rm")[-1] == "DISCONNECTED", "the gateway has noticed"
    await world.scheduler.emit("rm", [ALLOCATION] * 10)  # 3 to 12, at offsets 2 to 11
    assert isinstance(world.log, MemoryLog)
    world.log.store.delete_before(world.topics.responses, partition, 6)
    code, details = await channel.open(NODE, "rm").status()
    assert code is Code.DATA_LOSS
    assert details.startswith("rmID 'rm': responses 3 to 6 were deleted by retention before they were sent")
    code, details = await channel.open(ALLOCATION, "rm").status()
    assert code is Code.DATA_LOSS
    assert details.startswith("rmID 'rm': responses before offset 6 were deleted by retention before they were sent")
    code, details = await channel.open(ALLOCATION, "rm", resume_after=4).status()
    assert code is Code.DATA_LOSS
    assert details.startswith("rmID 'rm': responses 5 to 6 were deleted by retention before they were sent")
    await channel.register("rm")
    again = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await again.take(1) == [14]


async def test_a_log_that_was_replaced_is_a_loss(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    tail = gateway._tails[world.topics.partition_of("rm")]
    tail._dispatched = 1_000  # as if the session were from another log
    await world.sessions.compare_and_set(
        replace(await world.sessions.get("rm"), registered_at=Cursor(1, 900, 1))  # type: ignore[type-var]
    )
    code, details = await channel.open(ALLOCATION, "rm").status()
    assert code is Code.DATA_LOSS
    assert "the response log ends at 1, but was sent up to 900" in details


async def test_retention_of_what_was_sent_is_no_loss(world: Rig) -> None:
    channel = await world.registered(await world.gateway())
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 10)
    await stream.take(10)
    stream.cancel()
    await advance()
    assert world.scheduler.states("rm")[-1] == "DISCONNECTED", "the gateway has noticed"
    await world.scheduler.emit("rm", [ALLOCATION])
    assert isinstance(world.log, MemoryLog)
    world.log.store.delete_before(world.topics.responses, world.topics.partition_of("rm"), 11)
    assert await channel.open(ALLOCATION, "rm").take(1) == [12]


# ---- time ------------------------------------------------------------------------------------------------------------


async def test_a_dead_gateways_rm_pauses_and_stops_by_the_clock(world: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    times = {"lease_ttl_s": 10.0, "pause_timeout_s": 60.0, "clock": clock, "sessions": sessions}
    first, second = await world.gateway(**times), await world.gateway(**times)
    channel = await world.registered(first)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    await crash(first)
    life = second._servicer._dependencies.session_manager  # type: ignore[union-attr]

    async def sweep_after(seconds: float) -> str:
        clock.advance(seconds)
        await life.sweep(second._table)
        session = await sessions.get("rm")
        assert session is not None
        return session.state.name

    assert await sweep_after(9.0) == "RUNNING", "the lease still holds"
    assert await sweep_after(2.0) == "DISCONNECTED"
    assert await sweep_after(59.0) == "DISCONNECTED"
    assert await sweep_after(2.0) == "STOPPED"
    await advance()
    assert world.scheduler.states("rm") == ["RUNNING", "DISCONNECTED", "STOPPED"], "the scheduler is told once each"
    code, details = await world.channel(second).open(NODE, "rm").status()
    assert code is Code.FAILED_PRECONDITION
    assert details == "rmID 'rm' is stopped (disconnected for too long): register again"


async def test_of_two_sweeping_gateways_one_takes_each_step(world: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    times = {"lease_ttl_s": 10.0, "pause_timeout_s": 60.0, "clock": clock, "sessions": sessions}
    gateways = [await world.gateway(**times) for _ in range(3)]
    await world.registered(gateways[0])  # registered, without any stream
    for seconds in (11.0, 61.0):
        clock.advance(seconds)
        await asyncio.gather(*(g._servicer._dependencies.session_manager.sweep(g._table) for g in gateways))  # type: ignore[union-attr]
    await advance()
    assert len(world.scheduler.states("rm")) >= 3, "the notes arrive"
    assert world.scheduler.states("rm") == ["RUNNING", "DISCONNECTED", "STOPPED"]


@pytest.mark.parametrize("has_left", [False, True])
async def test_a_sweep_seats_no_stream_again_that_ended_meanwhile(
    world: Rig, monkeypatch: pytest.MonkeyPatch, has_left: bool
) -> None:
    """A stream gives up its seat during the sweep. Its RM must not be reported as back.

    :param has_left: the stream ends after the sweep has read the streams; otherwise the log delays the note.
    """
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    life, held = gateway._servicer._dependencies.session_manager, gateway._table.occupied_seats()  # type: ignore[union-attr]
    noted, announce = asyncio.Event(), life._announce
    assert [seat.kind for seat in held] == [ALLOCATION]

    async def slow(*note: Any) -> None:
        await noted.wait()
        await announce(*note)

    monkeypatch.setattr(life, "_announce", slow)
    stream.cancel()

    async def state() -> str:
        session = await world.sessions.get("rm")
        assert session is not None
        return session.state.name

    async def paused() -> bool:
        return await state() == "DISCONNECTED"

    await advance()
    assert await paused(), "the seat is free"
    if has_left:
        noted.set()
        await advance()
        assert gateway._table.get("rm", ALLOCATION) is None, "the stream is gone"
        monkeypatch.setattr(gateway._table, "occupied_seats", lambda: held)
    await life.sweep(gateway._table)
    assert await paused()
    noted.set()
    await advance()
    assert world.scheduler.states("rm") == ["RUNNING", "DISCONNECTED"], "the scheduler is told"


async def test_an_older_position_on_its_way_to_the_store_does_not_undo_the_last_one(world: Rig) -> None:
    class Slow(MemorySessions):
        """A store that applies the flush's write after the stream's later write, or after a while if there is none."""

        late: Sequence[Advance] = ()

        async def advance(self, moves: Sequence[Advance]) -> list[bool]:
            if not flushing.is_set() and moves[0].cursor.offset > positions[0]:
                self.late = moves
                flushing.set()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(overtaken.wait(), 0.5)
                    return [True]
                self.late = ()
            found = await super().advance(moves)
            if self.late:
                await super().advance(self.late)
                self.late = ()
                overtaken.set()
            return found

    flushing, overtaken = asyncio.Event(), asyncio.Event()
    positions: list[float] = [math.inf]
    gateway = await world.gateway(sessions=Slow(SystemClock()), cursor_flush_ms=5)
    channel = await world.registered(gateway)
    older = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await older.take(1)
    await advance()
    assert not gateway._table.all()[0].has_unsaved_position, "the place is stored"
    positions[0] = gateway._table.all()[0].stored.offset
    await world.scheduler.emit("rm", [ALLOCATION])
    await flushing.wait()
    await world.scheduler.emit("rm", [ALLOCATION])
    _, last = await older.take(2)
    newer = channel.open(ALLOCATION, "rm")
    assert (await older.status())[0] is Code.ABORTED
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await newer.take(1) == [last + 1]


async def test_positions_are_stored_after_a_rest_in_which_nothing_looks_for_them(world: Rig) -> None:
    gateway = await world.gateway(cursor_flush_ms=5)
    table = gateway._table
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    for _ in range(3):
        await world.scheduler.emit("rm", [ALLOCATION])
        await stream.take(1)
        last = table.all()[0]._feed.read_position  # type: ignore[union-attr]
        await advance()
        assert table.all()[0].stored == last, "the place is stored"
        await advance()
        assert table.positions_moved._waiters, "the flush waits for the next response"


async def test_many_rms_of_a_dead_gateway_wait_for_the_log_at_the_same_time(
    world: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    gateway = await world.gateway(lease_ttl_s=10.0, clock=clock, sessions=sessions)
    rms = [f"rm{number}" for number in range(40)]
    for rm_id in rms:  # registered, without any stream
        await world.registered(gateway, rm_id)
    life = gateway._servicer._dependencies.session_manager  # type: ignore[union-attr]
    announce, several, waiting = life._announce, asyncio.Event(), 0

    async def slow(*note: Any) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 10:
            several.set()
        await several.wait()
        await announce(*note)

    monkeypatch.setattr(life, "_announce", slow)
    clock.advance(11.0)
    async with asyncio.timeout(60):
        await life.sweep(gateway._table)
    for rm_id in rms:
        await advance()
        assert world.scheduler.states(rm_id) == ["RUNNING", "DISCONNECTED"], rm_id


async def test_a_store_that_lost_everything_is_filled_again_while_streams_live(world: Rig) -> None:
    gateway = await world.gateway(lease_ttl_s=0.3)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION] * 2)
    await stream.take(2)
    assert isinstance(world.sessions, MemorySessions)
    for content in (world.sessions._sessions, world.sessions._cursors, world.sessions._leases):
        content.clear()
    world.sessions._filled = ""

    async def seated() -> bool:
        session = await world.sessions.get("rm")
        return session is not None and session.seats.get(ALLOCATION) == Seat(gateway.gateway_id, 1)

    await advance()
    assert await seated(), "the session is back, and the stream has its seat"
    await world.scheduler.emit("rm", [ALLOCATION])
    assert await stream.take(1) == [4]


async def test_an_unwritten_note_is_written_by_a_later_sweep(world: Rig) -> None:
    clock = ManualClock()
    sessions = MemorySessions(clock)
    gateway = await world.gateway(lease_ttl_s=10.0, clock=clock, sessions=sessions)
    channel = await world.registered(gateway)
    stream = channel.open(ALLOCATION, "rm")
    await world.scheduler.emit("rm", [ALLOCATION])
    await stream.take(1)
    life = gateway._servicer._dependencies.session_manager  # type: ignore[union-attr]
    announce = life._announce

    async def failing(*_: object) -> None:
        from muster_gateway.errors import LogDown

        raise LogDown("the log is away")

    life._announce = failing
    stream.cancel()

    async def paused() -> bool:
        session = await sessions.get("rm")
        return session is not None and session.state.name == "DISCONNECTED"

    await advance()
    assert await paused(), "the step is taken"
    assert world.scheduler.states("rm") == ["RUNNING"]
    life._announce = announce
    clock.advance(11.0)
    await life.sweep(gateway._table)
    await advance()
    assert world.scheduler.states("rm") == ["RUNNING", "DISCONNECTED"], "the owed note is written"
