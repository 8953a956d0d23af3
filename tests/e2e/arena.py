"""Muster as `muster up` runs it, and RMs in one partition of it: one that is attacked, one that watches.

Tests with generated input run many examples against one arena, each from outside of its event loop.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import structlog
from e2e.gang_rig import Muster, muster_here
from e2e.spoilt import (
    ALLOCATION,
    APP,
    APPLICATION,
    BREAKER,
    LIMITS,
    NODE,
    NODE_ID,
    QUEUES,
    RUNS,
    SECRET,
    VICTIM,
    WAITS,
    WITNESS,
    allocation,
    application,
    node,
    release,
    resource,
)
from integration.gateway_rig import METHODS, PATIENCE_S, Channel, Stream
from muster_bus.log import OutRecord, Record
from muster_core import invariants
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime import logs
from muster_scheduler import service as scheduler_app
from muster_scheduler.deregistration import published_objects
from muster_scheduler.machine import SchedulerMachine
from muster_state import state_codec
from muster_state.state_folder import RmEntry
from waiting import eventually

RMS = (VICTIM, WITNESS, BREAKER)


class Arena:
    """Streams of the victim and the witness stay open all the time; the breaker's come and go.

    :ivar logged: everything that this process logged since the arena was opened.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, muster: Muster, logged: io.StringIO, machines: list[SchedulerMachine]
    ) -> None:
        self._loop, self.muster, self.logged, self._machines = loop, muster, logged, machines
        self.channel = Channel(int(muster.gateway.rpartition(":")[2]))
        self.streams: dict[tuple[str, StreamKind], Stream] = {}
        self._processed: dict[tuple[str, StreamKind], int] = {}
        self._served = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    # ---- who is there ----------------------------------------------------------------------------------------------

    async def furnish(self) -> None:
        """Gives each RM a node, an application, an allocation and a pending ask, which bad input could harm."""
        for rm_id in RMS:
            await self.channel.register(rm_id, QUEUES, extraConfig={"ldap.password": SECRET}, version="1")
            for kind in (NODE, APPLICATION, ALLOCATION):
                self.streams[rm_id, kind] = self.channel.open(kind, rm_id)
            await self.streams[rm_id, NODE].send(si.NodeRequest(rmID=rm_id, nodes=[node(nodeID=NODE_ID)]))
            assert (await self.streams[rm_id, NODE].receive()).accepted[0].nodeID == NODE_ID
            new = si.ApplicationRequest(rmID=rm_id, new=[application(applicationID=APP)])
            await self.streams[rm_id, APPLICATION].send(new)
            assert (await self.streams[rm_id, APPLICATION].receive()).accepted[0].applicationID == APP
            asks = self.streams[rm_id, ALLOCATION]
            await asks.send(si.AllocationRequest(rmID=rm_id, allocations=[allocation(allocationKey=RUNS)]))
            assert (await asks.receive()).new[0].allocationKey == RUNS
            # (Over its queue's max: nothing happens to it as time goes by.)
            waits = allocation(allocationKey=WAITS, resourcePerAlloc=resource(memory=1_000))
            await asks.send(si.AllocationRequest(rmID=rm_id, allocations=[waits]))
            await self.serve(rm_id)
        for kind in (NODE, APPLICATION, ALLOCATION):
            stream = self.streams.pop((BREAKER, kind))
            self._processed[BREAKER, kind] = max((answer.responseSequence for answer in stream.got), default=0)
            stream.cancel()

    def _open(self, rm_id: str, kind: StreamKind) -> Stream:
        """The stream opened at the start, or a new one if a failed example ended it."""
        stream = self.streams[rm_id, kind]
        if stream.call.done():
            processed = max((answer.responseSequence for answer in stream.got), default=0)
            stream = self.streams[rm_id, kind] = self.channel.open(kind, rm_id, resume_after=processed)
        return stream

    async def serve(self, rm_id: str) -> None:
        """A good ask of an RM is allocated on the stream that was open all along, and ends again.

        In one partition it stands behind everything that was sent before: what that could do is done.
        """
        self._served += 1
        key, stream = f"good-{self._served}", self._open(rm_id, ALLOCATION)
        await stream.send(si.AllocationRequest(rmID=rm_id, allocations=[allocation(allocationKey=key)]))
        while key not in [made.allocationKey for made in (await stream.receive()).new]:
            pass
        ended = si.AllocationReleasesRequest(allocationsToRelease=[release(allocationKey=key)])
        await stream.send(si.AllocationRequest(rmID=rm_id, releases=ended))
        while key not in [gone.allocationKey for gone in (await stream.receive()).released]:
            pass

    # ---- what they have --------------------------------------------------------------------------------------------

    @property
    def machine(self) -> SchedulerMachine:
        """The machine of the only partition. No input may make a worker replace it."""
        (machine,) = self._machines
        return machine

    def state(self, rm_id: str) -> dict[bytes, bytes]:
        """The scheduler's records of an RM, without its counters and its rejected applications."""
        known: RmEntry = self.machine.rms[rm_id]
        invariants.check(known.core)
        found = {
            state_codec.key_of(rm_id, partition, what): state_codec.encode(partition, what)
            for partition, what in published_objects(known.core)
            if b"/rejected/" not in state_codec.key_of(rm_id, partition, what)
        }
        # (A good ask that lives for a second counts in what its application has used: no input did that.)
        for partition in known.core.partitions.values():
            for app in partition.apps.values():
                key = state_codec.key_of(rm_id, partition.name, app)
                told = state_pb2.ApplicationObject.FromString(found[key])
                told.ClearField("usage")
                found[key] = told.SerializeToString(deterministic=True)
        info = known.info
        found[b"rm"] = repr((info.life, info.registrations, info.config, info.extra_config, info.version)).encode()
        return found

    def states(self) -> dict[str, dict[bytes, bytes]]:
        """The states of all RMs, without the changes that opened and closed streams cause."""
        return {rm_id: {key: value for key, value in self.state(rm_id).items() if key != b"rm"} for rm_id in RMS} | {
            "configurations": {rm_id.encode(): self.machine.rms[rm_id].info.config.encode() for rm_id in RMS},
            "held": {rm_id.encode(): self.machine.rms[rm_id].info.paused_reason.encode() for rm_id in RMS},
        }

    # ---- what is sent ----------------------------------------------------------------------------------------------

    async def rejections(self, kind: StreamKind, message: Any, count: int) -> list[str]:
        """Sends a message on the victim's stream, and returns that many rejections as "what: reason"."""
        stream = self._open(VICTIM, kind)
        await stream.send(message)
        found: list[str] = []
        while len(found) < count:
            try:
                answer = await stream.receive()
            except TimeoutError:
                raise AssertionError(f"{len(found)} of {count} answered: {found}\n{message}") from None
            assert not getattr(answer, "accepted", ()), f"accepted: {answer}"
            assert not getattr(answer, "new", ()), f"allocated: {answer}"
            assert not getattr(answer, "released", ()), f"released: {answer}"
            found += [each.reason for each in (*answer.rejected, *getattr(answer, "rejectedAllocations", ()))]
        return found

    async def broken(self, kind: StreamKind, messages: tuple[bytes, ...]) -> tuple[grpc.StatusCode, str]:
        """A stream of the breaker that must end with a status."""
        stream = Stream(self.channel.grpc.stream_stream(f"/si.v1.Scheduler/{METHODS[kind]}")())
        with suppress(grpc.RpcError):
            for message in messages:
                await stream.send(message)
        return await stream.status()

    async def register(self, raw: bytes) -> tuple[grpc.StatusCode, str]:
        """A registration as bytes."""
        call = self.channel.grpc.unary_unary("/si.v1.Scheduler/RegisterResourceManager")
        try:
            await call(raw, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    async def call(self, method: str, raw: bytes, *, answers_many: bool) -> tuple[str, str, bytes]:
        """A call of muster.v1 as bytes. Returns the status, its text and the first answer."""
        path, answer = f"/muster.v1.{method}", b""
        try:
            if answers_many:
                call = self.channel.grpc.unary_stream(path)(raw, timeout=PATIENCE_S)
                answer = await call.read()
                call.cancel()
                answer = b"" if answer is grpc.aio.EOF else answer
            else:
                answer = await self.channel.grpc.unary_unary(path)(raw, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or "", b""
        return "OK", "", answer

    def callbacks(self) -> Stream:
        """A callback stream that has said nothing yet."""
        return Stream(self.channel.grpc.stream_stream("/muster.v1.Callbacks/Connect")())

    async def ended(self, stream: Stream, messages: tuple[bytes, ...]) -> tuple[str, str]:
        """Sends messages, the last of which ends the stream; its status and the status' text."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            for message in messages:
                await stream.send(message)
        code, story = await stream.status()
        return code.name, story

    async def heard(self, stream: Stream) -> callbacks_pb2.ToResourceManager:
        """The next message on a callback stream."""
        return callbacks_pb2.ToResourceManager.FromString(await stream.receive())

    async def append(self, value: bytes | None, key: bytes = VICTIM.encode()) -> None:
        """Appends a record as another gateway would."""
        writer = await self.muster.log.writer("stranger")
        await writer.append(OutRecord(self.muster.topics.requests, 0, key, value))
        await writer.close()

    async def dead_letters(self) -> list[Record]:
        reader = await self.muster.log.reader(self.muster.topics.dead_letters, 0)
        end, found = await reader.end_offset(), list[Record]()
        while reader.position < end:
            found += await reader.read(1_000, 0.1)
        await reader.close()
        return found

    async def view(self, rm_id: str) -> Any:
        """The RM's queues, applications, nodes and partitions as REST shows them, without what time changes."""
        async with httpx.AsyncClient(base_url=self.muster.http, timeout=PATIENCE_S) as http:
            shown = {}
            for path in ("queues", "nodes", "applications/active"):
                answer = await http.get(f"/ws/v1/partition/default/{path}", params={"rm": rm_id})
                assert answer.status_code == httpx.codes.OK, answer.text
                shown[path] = answer.json()
            return shown

    async def view_shows(self, rm_id: str, expected: Any) -> None:
        """Waits until the view shows this of an RM."""
        shown: Any = None

        async def same() -> bool:
            nonlocal shown
            shown = await self.view(rm_id)
            return bool(shown == expected)

        try:
            await eventually(same, "the view shows what it showed before")
        except AssertionError:
            assert shown == expected

    async def close(self) -> None:
        for stream in self.streams.values():
            stream.cancel()
        await self.channel.close()


@contextmanager
def opened(directory: Path) -> Iterator[Arena]:
    """An arena that is furnished, in an event loop of its own."""
    settings = ["log.partitions=1", "log.sqlite_synchronous=normal", "gateway.stop_grace_s=0.5"]
    # Each example may cancel a stream at once: on a quick machine that is more than the gateway lets one client reset.
    settings += ["gateway.calls.max_resets=1000000"]
    settings += [f"gateway.limits.{name}={value}" for name, value in LIMITS.items()]
    with _logging() as logged, _machines() as machines, asyncio.Runner() as runner:
        loop, stack = runner.get_loop(), AsyncExitStack()
        try:
            muster = runner.run(stack.enter_async_context(muster_here(directory, settings)))
            arena = Arena(loop, muster, logged, machines)
            runner.run(arena.furnish())
            yield arena
            runner.run(arena.close())
        finally:
            runner.run(stack.aclose())


@contextmanager
def _logging() -> Iterator[io.StringIO]:
    """Everything is logged, as `muster up` writes it, into a text."""
    root, logged = logging.getLogger(), io.StringIO()
    before = structlog.get_config(), root.handlers[:], root.level
    logs.configure("debug", "json", logged)
    try:
        yield logged
    finally:
        structlog.configure(**before[0])
        root.handlers[:], root.level = before[1], before[2]


@contextmanager
def _machines() -> Iterator[list[SchedulerMachine]]:
    made: list[SchedulerMachine] = []

    class Remembered(SchedulerMachine):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_app, "SchedulerMachine", Remembered)
        yield made
