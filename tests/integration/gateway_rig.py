"""A gateway over real gRPC with a scripted scheduler behind its log: the rig of the gateway's tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from muster_bus.clock import Clock, SystemClock
from muster_bus.log import Log, OutRecord
from muster_bus.topics import (
    HEADER_EVENT_ID,
    HEADER_INSTANCE,
    HEADER_RM_ID,
    HEADER_STORE_CAPACITY,
    HEADER_TRACKING,
    Topics,
    rm_state_key,
)
from muster_gateway.service import Gateway, Ready
from muster_gateway.sessions.contract import SessionStore
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.muster.v1 import audit_pb2, callbacks_pb2
from muster_proto.muster.v1.admin_pb2_grpc import AdminStub
from muster_proto.muster.v1.callbacks_pb2_grpc import CallbacksStub
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub

PATIENCE_S = 60.0
RESPONSES: dict[StreamKind, Any] = {
    StreamKind.ALLOCATION: si_pb2.AllocationResponse,
    StreamKind.APPLICATION: si_pb2.ApplicationResponse,
    StreamKind.NODE: si_pb2.NodeResponse,
    StreamKind.CALLBACK: callbacks_pb2.ToResourceManager,
}
METHODS = {
    StreamKind.ALLOCATION: "UpdateAllocation",
    StreamKind.APPLICATION: "UpdateApplication",
    StreamKind.NODE: "UpdateNode",
}


class FakeScheduler:
    """A scripted scheduler: it allocates every ask and accepts everything else.

    It refuses a registration or an update whose configuration has the word "bad". ``mute`` stops its answers. Each
    accepted registration takes a number, but its answer carries the number only if ``numbered_registrations``: both
    are legal.
    """

    numbered_registrations = False

    def __init__(self, log: Log, topics: Topics, clock: Clock | None = None) -> None:
        self._log, self._topics, self._clock = log, topics, clock or SystemClock()
        self.mute = False
        self.requests: list[envelope_pb2.RequestEnvelope] = []
        self.sequences: dict[str, int] = defaultdict(int)
        self.registrations: dict[str, int] = defaultdict(int)
        self.events: dict[str, int] = defaultdict(int)
        self.callbacks: dict[str, envelope_pb2.CallbackStream] = {}
        self._owners: list[Any] = []
        self._locks = [asyncio.Lock() for _ in range(topics.partitions)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for partition in range(self._topics.partitions):
            owner = await self._log.take_over("fake-scheduler", self._topics.requests, partition)
            reader = await self._log.reader(self._topics.requests, partition, await owner.committed())
            self._owners.append(owner)
            self._tasks.append(asyncio.create_task(self._work(partition, owner, reader)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def states(self, rm_id: str) -> list[str]:
        """The lifecycle notes of an RM, in order."""
        return [
            envelope_pb2.RmLifecycle.State.Name(request.lifecycle.state)
            for request in self.requests
            if request.rm_id == rm_id and request.WhichOneof("body") == "lifecycle"
        ]

    def bodies(self, rm_id: str, body: str) -> list[Any]:
        """The received bodies of one kind: bytes, but for notes."""
        return [getattr(r, body) for r in self.requests if r.rm_id == rm_id and r.WhichOneof("body") == body]

    def notes(self, rm_id: str) -> list[tuple[bool, int]]:
        """The notes about the RM's callback streams, in order: connected, epoch."""
        notes = self.bodies(rm_id, "callback_stream")
        return [(note.connected, note.epoch) for note in notes]

    def answers(self, rm_id: str) -> list[callbacks_pb2.FromResourceManager]:
        """The RM's answers on its callback stream."""
        bodies = self.bodies(rm_id, "callback_answers")
        return [callbacks_pb2.FromResourceManager.FromString(body) for body in bodies]

    async def emit(self, rm_id: str, kinds: Sequence[StreamKind]) -> None:
        """Write one response for each kind, in one transaction."""
        await self._commit(rm_id, lambda: [self._numbered(rm_id, kind, None) for kind in kinds])

    async def ask(self, rm_id: str, *ids: int, node_id: str = "n1") -> None:
        """Write a message to the RM's callback stream for each question, in one transaction."""

        def questions() -> list[OutRecord]:
            return [
                self._numbered(
                    rm_id,
                    StreamKind.CALLBACK,
                    callbacks_pb2.ToResourceManager(
                        predicates=[
                            callbacks_pb2.PredicatesQuestion(
                                id=number,
                                args=si_pb2.PredicatesArgs(allocationKey=f"a{number}", nodeID=node_id, allocate=True),
                                application_id="app",
                            )
                        ]
                    ),
                )
                for number in ids
            ]

        await self._commit(rm_id, questions)

    async def tell(self, rm_id: str, message: callbacks_pb2.ToResourceManager) -> None:
        """Write a message to the RM's callback stream."""
        await self._commit(rm_id, lambda: [self._numbered(rm_id, StreamKind.CALLBACK, message)])

    async def tell_often(self, rm_id: str, times: int, message: callbacks_pb2.ToResourceManager) -> None:
        """Write the same message so many times, in one transaction."""
        await self._commit(rm_id, lambda: [self._numbered(rm_id, StreamKind.CALLBACK, message) for _ in range(times)])

    async def happen(
        self, rm_id: str, *objects: str, tracked: bool = True, padding: str = "", store: int | None = None
    ) -> None:
        """Write events of the RM, in one transaction.

        :param store: the store size in the headers of untracked events.
        """

        def events() -> list[OutRecord]:
            made = [self._event(rm_id, name, padding, tracked=tracked) for name in objects]
            if store is None:
                return made
            return [each._replace(headers=(*each.headers, (HEADER_STORE_CAPACITY, b"%d" % store))) for each in made]

        await self._commit(rm_id, events)

    async def _commit(self, rm_id: str, records: Callable[[], list[OutRecord]]) -> None:
        partition = self._topics.partition_of(rm_id)
        async with self._locks[partition]:
            await self._owners[partition].commit(records(), None)

    def _event(self, rm_id: str, name: str, padding: str, *, tracked: bool) -> OutRecord:
        key = rm_id.encode()
        kind = si_pb2.EventRecord.APP if tracked else si_pb2.EventRecord.REQUEST
        value = si_pb2.EventRecord(type=kind, objectID=name, message=padding).SerializeToString()
        headers = [(HEADER_RM_ID, key), (HEADER_INSTANCE, b"i"), (HEADER_TRACKING, b"1" if tracked else b"0")]
        if tracked:
            headers.insert(0, (HEADER_EVENT_ID, b"%d" % self.events[rm_id]))
            self.events[rm_id] += 1
        partition = self._topics.partition_of(rm_id)
        return OutRecord(self._topics.events, partition, key, value, tuple(headers))

    async def _work(self, partition: int, owner: Any, reader: Any) -> None:
        while True:
            records = await reader.read(500, 0.5)
            if not records:
                continue
            envelopes = [envelope_pb2.RequestEnvelope.FromString(record.value) for record in records]
            self.requests.extend(envelopes)
            async with self._locks[partition]:
                out = [] if self.mute else [record for envelope in envelopes for record in self._answers(envelope)]
                await owner.commit(out, reader.position)

    def _answers(self, envelope: envelope_pb2.RequestEnvelope) -> list[OutRecord]:
        body = envelope.WhichOneof("body")
        if body == "register":
            return self._register(envelope)
        if body == "configuration":
            return self._configure(envelope)
        if body == "allocation":
            asked = si_pb2.AllocationRequest.FromString(envelope.allocation)
            response = si_pb2.AllocationResponse()
            for item in (*asked.asks, *asked.allocations):
                response.new.add(allocationKey=item.allocationKey, applicationID=item.applicationID, nodeID="n1")
            return [self._numbered(envelope.rm_id, StreamKind.ALLOCATION, response)]
        if body == "application":
            added = si_pb2.ApplicationRequest.FromString(envelope.application)
            accepted = [si_pb2.AcceptedApplication(applicationID=item.applicationID) for item in added.new]
            answer = si_pb2.ApplicationResponse(accepted=accepted)
            return [self._numbered(envelope.rm_id, StreamKind.APPLICATION, answer)]
        if body == "node":
            nodes = si_pb2.NodeRequest.FromString(envelope.node).nodes
            answered = si_pb2.NodeResponse(accepted=[si_pb2.AcceptedNode(nodeID=node.nodeID) for node in nodes])
            return [self._numbered(envelope.rm_id, StreamKind.NODE, answered)]
        if body == "callback_stream":
            known = self.callbacks.get(envelope.rm_id)
            if known is None or envelope.callback_stream.epoch > known.epoch:
                self.callbacks[envelope.rm_id] = envelope.callback_stream
                return [self._state(envelope.rm_id)]
        return []

    def _register(self, envelope: envelope_pb2.RequestEnvelope) -> list[OutRecord]:
        rm_id = envelope.rm_id
        config = si_pb2.RegisterResourceManagerRequest.FromString(envelope.register).config
        result = envelope_pb2.RegistrationResult(request_id=envelope.request_id, accepted="bad" not in config)
        if "bad" in config or "odd" in config:
            severity = envelope_pb2.ConfigProblem.ERROR if "bad" in config else envelope_pb2.ConfigProblem.WARNING
            result.problems.add(severity=severity, path="partitions[0].name", line=3, column=5, message="is bad")
        if not result.accepted:
            return [self._response(rm_id, envelope_pb2.ResponseEnvelope(rm_id=rm_id, registration=result))]
        self.sequences[rm_id] += 1
        self.registrations[rm_id] += 1
        number = self.sequences[rm_id] if self.numbered_registrations else 0
        answer = envelope_pb2.ResponseEnvelope(rm_id=rm_id, sequence=number, registration=result)
        return [self._response(rm_id, answer), self._state(rm_id)]

    def _state(self, rm_id: str) -> OutRecord:
        known = state_pb2.RmObject(
            rm_id=rm_id,
            state=envelope_pb2.RmLifecycle.RUNNING,
            registrations=self.registrations[rm_id],
            callbacks=self.callbacks.get(rm_id),
        )
        key = rm_state_key(rm_id)
        return OutRecord(self._topics.state, self._topics.partition_of(rm_id), key, known.SerializeToString())

    def _configure(self, envelope: envelope_pb2.RequestEnvelope) -> list[OutRecord]:
        config = si_pb2.UpdateConfigurationRequest.FromString(envelope.configuration).config
        result = envelope_pb2.RegistrationResult(request_id=envelope.request_id, accepted="bad" not in config)
        if result.accepted:
            result.changes.append("[default] root.a maxapplications: not set -> 3")
        else:
            error = envelope_pb2.ConfigProblem.ERROR
            result.problems.add(severity=error, path="partitions[0].name", line=3, column=5, message="is bad")
        warning = envelope_pb2.ConfigProblem.WARNING
        result.problems.add(severity=warning, path="checksum", line=9, column=1, message="has no effect")
        return [
            self._response(envelope.rm_id, envelope_pb2.ResponseEnvelope(rm_id=envelope.rm_id, registration=result))
        ]

    def _numbered(self, rm_id: str, kind: StreamKind, response: Any) -> OutRecord:
        self.sequences[rm_id] += 1
        response = response if response is not None else RESPONSES[kind]()
        if kind is StreamKind.CALLBACK:
            response.response_sequence = self.sequences[rm_id]
        else:
            response.responseSequence = self.sequences[rm_id]
        envelope = envelope_pb2.ResponseEnvelope(
            rm_id=rm_id, sequence=self.sequences[rm_id], stream=int(kind), response=response.SerializeToString()
        )
        return self._response(rm_id, envelope)

    def _response(self, rm_id: str, envelope: envelope_pb2.ResponseEnvelope) -> OutRecord:
        partition = self._topics.partition_of(rm_id)
        return OutRecord(self._topics.responses, partition, rm_id.encode(), envelope.SerializeToString())


class Channel:
    """A client's connection with the plain stubs of an RM."""

    def __init__(self, port: int) -> None:
        # No pooling of connections: a test's client is one of its own.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.grpc = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.stub = SchedulerStub(self.grpc)
        self.admin = AdminStub(self.grpc)
        self.callbacks = CallbacksStub(self.grpc)

    async def register(self, rm_id: str, config: str = "", **fields: Any) -> Any:
        request = si_pb2.RegisterResourceManagerRequest(rmID=rm_id, config=config, **fields)
        return await self.stub.RegisterResourceManager(request, timeout=PATIENCE_S)

    async def configure(self, rm_id: str, config: str = "", **fields: Any) -> Any:
        request = si_pb2.UpdateConfigurationRequest(rmID=rm_id, config=config, **fields)
        return await self.admin.UpdateConfiguration(request, timeout=PATIENCE_S)

    def open(
        self, kind: StreamKind, rm_id: str | None = None, resume_after: int | None = None, **metadata: str
    ) -> Stream:
        pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        if rm_id is not None:
            pairs.append(("muster-rm-id", rm_id))
        if resume_after is not None:
            pairs.append(("muster-resume-after", str(resume_after)))
        return Stream(getattr(self.stub, METHODS[kind])(metadata=tuple(pairs)))

    async def connect(
        self, rm_id: str | None = "rm", resume_after: int | None = None, **hello: Any
    ) -> CallbackConversation:
        """Open a callback stream: hello sent, welcome received."""
        stream = self.connection(rm_id, resume_after)
        await stream.send(callbacks_pb2.FromResourceManager(hello=callbacks_pb2.Hello(**hello)))
        welcome = await stream.receive()
        assert welcome.HasField("welcome"), welcome
        return stream

    def connection(self, rm_id: str | None = "rm", resume_after: int | None = None) -> CallbackConversation:
        """Open a callback stream without a hello."""
        pairs = [("muster-rm-id", rm_id)] if rm_id is not None else []
        if resume_after is not None:
            pairs.append(("muster-resume-after", str(resume_after)))
        return CallbackConversation(self.callbacks.Connect(metadata=tuple(pairs)))

    async def close(self) -> None:
        await self.grpc.close(None)


@dataclass
class Stream:
    """One bidirectional call; every wait is bounded."""

    call: Any
    got: list[Any] = field(default_factory=list)

    async def send(self, message: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.call.write(message)

    async def half_close(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.call.done_writing()

    async def receive(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, f"the stream ended: {await self.call.code()} {await self.call.details()}"
        self.got.append(message)
        return message

    async def take(self, count: int) -> list[int]:
        """Return the numbers of the next ``count`` responses."""
        return [(await self.receive()).responseSequence for _ in range(count)]

    async def silent(self, wait_s: float = 0.1) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self.call.read()
        except TimeoutError:
            return True
        return False

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """Read the rest of the stream, and return the call's status."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(grpc.RpcError):
                while (message := await self.call.read()) is not grpc.aio.EOF:
                    self.got.append(message)
            return await self.call.code(), await self.call.details()

    def cancel(self) -> None:
        self.call.cancel()


class CallbackConversation(Stream):
    async def asked(self, count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            ids += [question.id for question in (await self.receive()).predicates]
        return ids

    async def events(self, count: int) -> list[tuple[str, int | None]]:
        """Return the next events: the object, and the id if there is one."""
        events: list[tuple[str, int | None]] = []
        while len(events) < count:
            told = (await self.receive()).events.events
            events += [(each.record.objectID, each.id if each.HasField("id") else None) for each in told]
        return events

    async def say(self, *ids: int, fits: bool = True) -> None:
        said = [callbacks_pb2.PredicatesAnswer(id=number, fits=fits) for number in ids]
        await self.send(callbacks_pb2.FromResourceManager(predicates=said))


@dataclass
class Rig:
    """A log, a fake scheduler, and the gateways and clients that a test starts.

    :param open_sessions: opens the store for each gateway; None: the gateways share ``sessions``.
    """

    log: Log
    topics: Topics
    scheduler: FakeScheduler
    clock: Clock
    sessions: SessionStore
    open_sessions: Callable[[], SessionStore] | None = None
    gateways: list[Gateway] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)

    async def gateway(
        self,
        sessions: SessionStore | None = None,
        clock: Clock | None = None,
        ready_when: Sequence[Ready] = (),
        **settings: Any,
    ) -> Gateway:
        """Start a gateway, with short times by default."""
        chosen = {
            "grpc_address": "127.0.0.1:0",
            "http_address": "",
            "registration_timeout_s": PATIENCE_S,
            "cursor_flush_ms": 10.0,
            "resend_window_s": 0.0,
            "request_push_interval_s": 0.05,
            "stop_grace_s": 0.05,
            # Nobody: at the usual ports there may be another Muster of this machine.
            "view_url": "http://127.0.0.1:1",
            "publisher_url": "http://127.0.0.1:1",
            "publisher_grpc_url": "grpc://127.0.0.1:1",
            **settings,
        }
        if sessions is None:
            sessions = self.open_sessions() if self.open_sessions is not None else self.sessions
        gateway = Gateway(
            GatewaySettings(**chosen), self.log, self.topics, sessions, clock or self.clock, ready_when=ready_when
        )
        await gateway.start()
        self.gateways.append(gateway)
        return gateway

    def channel(self, gateway: Gateway) -> Channel:
        channel = Channel(gateway.grpc_port)
        self.channels.append(channel)
        return channel

    async def registered(self, gateway: Gateway, rm_id: str = "rm") -> Channel:
        channel = self.channel(gateway)
        await channel.register(rm_id)
        return channel


@contextlib.asynccontextmanager
async def rig(
    log: Log,
    topics: Topics,
    sessions: SessionStore | None = None,
    open_sessions: Callable[[], SessionStore] | None = None,
) -> AsyncIterator[Rig]:
    """A rig on a started log. At the end, everything but the log is stopped."""
    clock = SystemClock()
    scheduler = FakeScheduler(log, topics)
    await scheduler.start()
    it = Rig(log, topics, scheduler, clock, sessions or MemorySessions(clock), open_sessions)
    try:
        yield it
    finally:
        for channel in it.channels:
            await channel.close()
        for gateway in it.gateways:
            await gateway.stop()
        await scheduler.stop()


async def crash(gateway: Gateway) -> None:
    """End a gateway like ``kill -9``: it stores no position, gives up no seat or lease, and writes no note."""
    dead = _DeadStore()
    gateway.sessions = dead  # type: ignore[assignment]
    servicer = gateway._servicer
    assert servicer is not None
    object.__setattr__(servicer._dependencies, "sessions", dead)
    servicer._dependencies.session_manager._sessions = dead  # type: ignore[assignment]
    await gateway._listeners.stop_grpc(None)
    await gateway.stop()


class _DeadStore:
    """The store of a dead process: every call fails."""

    def __getattr__(self, name: str) -> Any:
        async def gone(*_: Any) -> Any:
            from muster_gateway.errors import SessionStoreDown

            raise SessionStoreDown(f"{name}: this process is dead")

        return gone


def scheduler_silent(partition: int = 0) -> str:
    """Returns the pattern of what a call says that gets no decision: the state of the whole may name the partition
    already, or not yet.
    """
    named = rf"no scheduler has answered for partition {partition} for \d+ s"
    return rf"({named}|the scheduler did not answer within [\d.]+ s)"


def an_ask(key: str, application: str = "app", **fields: Any) -> si_pb2.Allocation:
    resource = si_pb2.Resource(resources={"vcore": si_pb2.Quantity(value=1000)})
    chosen = {"allocationKey": key, "applicationID": application, "resourcePerAlloc": resource, **fields}
    return si_pb2.Allocation(**chosen)


def asks(rm_id: str, *keys: str) -> si_pb2.AllocationRequest:
    """Return a request with one ask for each key."""
    return si_pb2.AllocationRequest(rmID=rm_id, allocations=[an_ask(key) for key in keys])


async def audit_of(world: Rig) -> list[audit_pb2.AuditEntry]:
    """Return the audit entries on the log, by partition."""
    found: list[audit_pb2.AuditEntry] = []
    for partition in range(world.topics.partitions):
        reader = await world.log.reader(world.topics.audit, partition)
        try:
            end = await reader.end_offset()
            while reader.position < end:
                records = await reader.read(500, 1.0)
                found += (audit_pb2.AuditEntry.FromString(record.value or b"") for record in records)
        finally:
            await reader.close()
    return found
