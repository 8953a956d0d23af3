"""Malformed and hostile requests to gateway and scheduler get a clear error, change nothing and stop nothing.

One partition, two RMs: *victim*, in whose name everything bad is sent, and *witness*, whose good request afterwards is
answered: it stands behind the bad one in the one order of the partition, so whatever the bad one could do is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from integration.gateway_rig import PATIENCE_S, Channel, Stream
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics, parse_state_key
from muster_gateway.service import Gateway
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import AdmissionLimits, GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.si.v1 import si_pb2
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from unstamped import STAMP

ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE
Code = grpc.StatusCode
VICTIM, WITNESS = "victim", "witness"
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: "*"
        queues:
          - name: a
            resources:
              max: {vcore: 10, memory: 100}
          - name: parent
            parent: true
"""
REJECTED = "rejected"
LIMITS = AdmissionLimits(max_items=1_000)
MAX_MESSAGE_BYTES = 1 << 20


@dataclass
class World:
    log: MemoryLog
    topics: Topics
    gateway: Gateway
    channel: Channel
    processed: dict[tuple[str, StreamKind], int] = field(default_factory=dict)

    def open(self, kind: StreamKind, rm_id: str) -> Stream:
        """Opens a stream that resumes after the last response that the RM processed."""
        return self.channel.open(kind, rm_id, resume_after=self.processed.get((rm_id, kind)))

    def close(self, kind: StreamKind, rm_id: str, stream: Stream) -> None:
        numbers = [answer.responseSequence for answer in stream.got]
        self.processed[rm_id, kind] = max(numbers, default=self.processed.get((rm_id, kind), 0))
        stream.cancel()

    async def state(self, rm_id: str) -> dict[bytes, bytes]:
        """The RM's objects on the log; the RM itself without its counters and clock."""
        reader = await self.log.reader(self.topics.state, 0)
        end, found = await reader.end_offset(), dict[bytes, bytes]()
        while reader.position < end:
            for record in await reader.read(1_000, 0.1):
                owner, kind, _ = parse_state_key(record.key or b"")
                if owner != rm_id or kind == "rejected":  # who was turned away is remembered; that harms nobody
                    continue
                if record.value is None:
                    found.pop(record.key or b"", None)
                else:
                    found[record.key or b""] = _essence(kind, record.value)
        await reader.close()
        return found


def _essence(kind: str, value: bytes) -> bytes:
    if kind != "rm":
        return value
    rm = state_pb2.RmObject.FromString(value)
    for counter in (
        "next_event_id",
        "next_response_sequence",
        "last_allocation_response",
        "next_submission",
        "last_decided_ns",
        "state",
        "state_ns",
        "tally",
        "clock",
        *STAMP,
    ):
        rm.ClearField(counter)
    return rm.SerializeToString(deterministic=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = SystemClock()
    topics = Topics(partitions=1)
    log = MemoryLog(topics.specs(), clock)
    await log.start()
    scheduler = SchedulerService(SchedulerSettings(), log, topics, clock)
    await scheduler.start()
    settings = GatewaySettings(
        grpc_address="127.0.0.1:0",
        http_address="",
        limits=LIMITS,
        max_message_bytes=MAX_MESSAGE_BYTES,
        stop_grace_s=0.05,
    )
    gateway = Gateway(settings, log, topics, MemorySessions(clock), clock)
    await gateway.start()
    channel = Channel(gateway.grpc_port)
    it = World(log, topics, gateway, channel)
    for rm_id in (VICTIM, WITNESS):
        await channel.register(rm_id, config=QUEUES)
        await _furnish(it, rm_id)
    yield it
    await channel.close()
    await gateway.stop()
    await scheduler.stop()
    await log.close()


async def _furnish(world: World, rm_id: str) -> None:
    """Adds a node, an application, an allocation and a pending ask, which bad input could harm."""
    node = world.open(NODE, rm_id)
    await node.send(si_pb2.NodeRequest(rmID=rm_id, nodes=[a_node("n1")]))
    assert (await node.receive()).accepted[0].nodeID == "n1"
    application = world.open(APPLICATION, rm_id)
    await application.send(si_pb2.ApplicationRequest(rmID=rm_id, new=[an_application("app")]))
    assert (await application.receive()).accepted[0].applicationID == "app"
    allocation = world.open(ALLOCATION, rm_id)
    await allocation.send(si_pb2.AllocationRequest(rmID=rm_id, allocations=[an_allocation("runs")]))
    assert (await allocation.receive()).new[0].allocationKey == "runs"
    # (Over the max of its queue: nothing happens to such an ask as time goes by.)
    pending = an_allocation("waits", resourcePerAlloc=resource(memory=200))
    await allocation.send(si_pb2.AllocationRequest(rmID=rm_id, allocations=[pending]))
    # what stands behind it is answered when its work is done
    more = an_allocation("runs-too", resourcePerAlloc=resource(memory=1))
    await allocation.send(si_pb2.AllocationRequest(rmID=rm_id, allocations=[more]))
    assert (await allocation.receive()).new[0].allocationKey == "runs-too"
    for kind, stream in ((NODE, node), (APPLICATION, application), (ALLOCATION, allocation)):
        world.close(kind, rm_id, stream)


# ---- good parts, to be spoilt -------------------------------------------------------------------------------------


def resource(**quantities: int) -> si_pb2.Resource:
    return si_pb2.Resource(resources={name: si_pb2.Quantity(value=value) for name, value in quantities.items()})


def a_node(node_id: str, **changes: Any) -> si_pb2.NodeInfo:
    capacity = resource(vcore=10, memory=100)
    fields = {"nodeID": node_id, "action": si_pb2.NodeInfo.CREATE, "schedulableResource": capacity}
    return si_pb2.NodeInfo(**{**fields, **changes})


def an_application(application_id: str, **changes: Any) -> si_pb2.AddApplicationRequest:
    owner = si_pb2.UserGroupInformation(user="alice", groups=["users"])
    fields = {"applicationID": application_id, "queueName": "root.a", "partitionName": "default", "ugi": owner}
    return si_pb2.AddApplicationRequest(**{**fields, **changes})


def an_allocation(key: str, **changes: Any) -> si_pb2.Allocation:
    fields = {
        "allocationKey": key,
        "applicationID": "app",
        "partitionName": "default",
        "resourcePerAlloc": resource(vcore=2, memory=1),
    }
    return si_pb2.Allocation(**{**fields, **changes})


def an_old_ask(key: str, **changes: Any) -> si_pb2.AllocationAsk:
    fields = {
        "allocationKey": key,
        "applicationID": "app",
        "partitionName": "default",
        "resourceAsk": resource(vcore=1),
        "maxAllocations": 1,
    }
    return si_pb2.AllocationAsk(**{**fields, **changes})


# ---- ways to send; each gives a status or REJECTED, and the text --------------------------------------------------

Outcome = tuple[Code | str, str]
Send = Callable[[World], Awaitable[Outcome]]


def registration(**fields: Any) -> Send:
    async def send(world: World) -> Outcome:
        return await _failure(world.channel.register(**{"rm_id": "new", **fields}))

    return send


def raw_unary(method: str, content: bytes) -> Send:
    async def send(world: World) -> Outcome:
        return await _failure(_call(world, method, content))

    async def _call(world: World, method: str, content: bytes) -> Any:
        return await world.channel.grpc.unary_unary(method)(content, timeout=PATIENCE_S)

    return send


async def _failure(call: Awaitable[Any]) -> Outcome:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


def stream(
    kind: StreamKind, *messages: Any, rm_id: str | None = None, half_close: bool = False, **metadata: str
) -> Send:
    """A stream that is to end with a status. Messages: SI messages, or bytes."""

    async def send(world: World) -> Outcome:
        call = world.channel.open(kind, rm_id, **metadata)
        if any(isinstance(message, bytes) for message in messages):
            name = {ALLOCATION: "UpdateAllocation", APPLICATION: "UpdateApplication", NODE: "UpdateNode"}[kind]
            call.cancel()
            call = Stream(world.channel.grpc.stream_stream(f"/si.v1.Scheduler/{name}")())
        with contextlib.suppress(grpc.RpcError):
            for message in messages:
                await call.send(message)
            if half_close:
                await call.half_close()
        return await call.status()

    return send


def item(kind: StreamKind, **fields: Any) -> Send:
    """A request with one item, which must be rejected on its stream."""

    async def send(world: World) -> Outcome:
        types = {
            ALLOCATION: si_pb2.AllocationRequest,
            APPLICATION: si_pb2.ApplicationRequest,
            NODE: si_pb2.NodeRequest,
        }
        call = world.open(kind, VICTIM)
        await call.send(types[kind](rmID=VICTIM, **fields))
        while True:
            answer = await call.receive()
            rejections = [*answer.rejected, *getattr(answer, "rejectedAllocations", ())]
            if rejections:
                world.close(kind, VICTIM, call)
                return REJECTED, rejections[-1].reason
            assert not getattr(answer, "accepted", ()), "bad input was accepted"

    return send


def allocations(*items: si_pb2.Allocation) -> Send:
    return item(ALLOCATION, allocations=items)


def old_asks(*items: si_pb2.AllocationAsk) -> Send:
    return item(ALLOCATION, asks=items)


def releases(*items: si_pb2.AllocationRelease) -> Send:
    return item(ALLOCATION, releases=si_pb2.AllocationReleasesRequest(allocationsToRelease=items))


def applications(*items: si_pb2.AddApplicationRequest) -> Send:
    return item(APPLICATION, new=items)


def nodes(*items: si_pb2.NodeInfo) -> Send:
    return item(NODE, nodes=items)


LONG = "x" * 300
BAD_YAML = "partitions:\n  - name: default\n    queues:\n      - name: root\n       bad: [1\n"
BAD_QUEUE_NAME = (
    "partitions:\n  - name: default\n    queues:\n      - name: root\n        queues:\n          - name: 'a b'\n"
)
BAD_QUANTITY = (
    "partitions:\n  - name: default\n    queues:\n      - name: root\n        queues:\n"
    "          - name: a\n            resources:\n              max: {memory: -5}\n"
)

CASES: list[tuple[str, Send, Code | str, str]] = [
    # registration
    (
        "registration: not protobuf",
        raw_unary("/si.v1.Scheduler/RegisterResourceManager", b"\xff\xff"),
        Code.INVALID_ARGUMENT,
        "no si.v1.RegisterResourceManagerRequest",
    ),
    ("registration: empty rmID", registration(rm_id=""), Code.INVALID_ARGUMENT, "rmID: empty"),
    (
        "registration: over-long rmID",
        registration(rm_id=LONG),
        Code.INVALID_ARGUMENT,
        "expected at most 256 characters",
    ),
    (
        "registration: newline in rmID",
        registration(rm_id="a\nb"),
        Code.INVALID_ARGUMENT,
        "expected no control characters",
    ),
    ("registration: broken YAML", registration(config=BAD_YAML), Code.INVALID_ARGUMENT, "(line 5, column "),
    ("registration: bad queue name", registration(config=BAD_QUEUE_NAME), Code.INVALID_ARGUMENT, "(line 6, column "),
    ("registration: negative limit", registration(config=BAD_QUANTITY), Code.INVALID_ARGUMENT, "(line 8, column "),
    (
        "registration of a living RM: broken YAML",
        registration(rm_id=VICTIM, config=BAD_YAML),
        Code.INVALID_ARGUMENT,
        "(line 5, column ",
    ),
    (
        "registration: configuration too large",
        registration(config="#" * 1_000_000),
        Code.RESOURCE_EXHAUSTED,
        "config: 1000000 characters",
    ),
    (
        "registration: over the message limit",
        registration(config="#" * (2 << 20)),
        Code.RESOURCE_EXHAUSTED,
        "larger than max",
    ),
    ("unknown method", raw_unary("/si.v1.Scheduler/Delete", b""), Code.UNIMPLEMENTED, ""),
    ("unknown service", raw_unary("/evil.v1.Scheduler/Register", b""), Code.UNIMPLEMENTED, ""),
    # streams as a whole
    (
        "stream: unknown RM",
        stream(ALLOCATION, si_pb2.AllocationRequest(rmID="nobody", allocations=[an_allocation("k")])),
        Code.FAILED_PRECONDITION,
        "rmID 'nobody' is not registered",
    ),
    (
        "stream: unknown RM in metadata",
        stream(NODE, rm_id="nobody"),
        Code.FAILED_PRECONDITION,
        "rmID 'nobody' is not registered",
    ),
    ("stream: no rmID", stream(NODE, si_pb2.NodeRequest(nodes=[a_node("n2")])), Code.INVALID_ARGUMENT, "rmID: empty"),
    ("stream: empty message first", stream(NODE, b""), Code.INVALID_ARGUMENT, "rmID: empty"),
    (
        "stream: not protobuf",
        stream(APPLICATION, b"\x0a\xff\xff\xff"),
        Code.INVALID_ARGUMENT,
        "no si.v1.ApplicationRequest",
    ),
    ("stream: text that is no UTF-8", stream(NODE, b"\x12\x02\xff\xfe"), Code.INVALID_ARGUMENT, "no si.v1.NodeRequest"),
    (
        "stream: half-closed before anything",
        stream(ALLOCATION, half_close=True),
        Code.INVALID_ARGUMENT,
        "the stream was closed before",
    ),
    (
        "stream: another rmID than bound by metadata",
        stream(NODE, si_pb2.NodeRequest(rmID=WITNESS, nodes=[a_node("n2")]), rm_id=VICTIM),
        Code.INVALID_ARGUMENT,
        "rmID: 'witness', expected 'victim'",
    ),
    (
        "stream: another rmID than the first message",
        stream(NODE, si_pb2.NodeRequest(rmID=VICTIM), si_pb2.NodeRequest(rmID=WITNESS, nodes=[a_node("n2")])),
        Code.INVALID_ARGUMENT,
        "rmID: 'witness', expected 'victim'",
    ),
    (
        "stream: rmID lost on the way",
        stream(NODE, si_pb2.NodeRequest(rmID=VICTIM), si_pb2.NodeRequest(nodes=[a_node("n2")])),
        Code.INVALID_ARGUMENT,
        "rmID: '', expected 'victim'",
    ),
    (
        "stream: oversized message",
        stream(
            ALLOCATION,
            si_pb2.AllocationRequest(
                rmID=VICTIM, allocations=[an_allocation("k" * 200 + str(n)) for n in range(5_000)]
            ),
        ),
        Code.RESOURCE_EXHAUSTED,
        "larger than max",
    ),
    (
        "stream: too many items",
        stream(
            ALLOCATION, si_pb2.AllocationRequest(rmID=VICTIM, allocations=[an_allocation(str(n)) for n in range(1_001)])
        ),
        Code.RESOURCE_EXHAUSTED,
        "1001 items, expected at most 1000",
    ),
    (
        "stream: resume number is no number",
        stream(NODE, rm_id=VICTIM, muster_resume_after="-1"),
        Code.INVALID_ARGUMENT,
        "muster-resume-after: '-1'",
    ),
    (
        "stream: resume number never given",
        stream(NODE, rm_id=VICTIM, muster_resume_after="999999"),
        Code.INVALID_ARGUMENT,
        "muster-resume-after: 999999",
    ),
    (
        "stream: shutdown of an unknown RM",
        stream(NODE, rm_id="nobody", muster_shutdown="true"),
        Code.FAILED_PRECONDITION,
        "not registered",
    ),
    # asks and allocations
    ("allocation: empty key", allocations(an_allocation("")), REJECTED, "allocations[0].allocationKey: empty"),
    ("allocation: over-long key", allocations(an_allocation(LONG)), REJECTED, "expected at most 256 characters"),
    (
        "allocation: escape sequence in key",
        allocations(an_allocation("\x1b[2J")),
        REJECTED,
        "expected no control characters",
    ),
    (
        "allocation: control characters in its application",
        allocations(an_allocation("k", applicationID="a\nb")),
        REJECTED,
        "expected no control characters",
    ),
    ("allocation: unknown application", allocations(an_allocation("k", applicationID="ghost")), REJECTED, "ghost"),
    ("allocation: unknown partition", allocations(an_allocation("k", partitionName="ghost")), REJECTED, "ghost"),
    (
        "allocation: no resource",
        allocations(an_allocation("k", resourcePerAlloc=None)),
        REJECTED,
        "expected at least one positive quantity",
    ),
    ("allocation: zero", allocations(an_allocation("k", resourcePerAlloc=resource(vcore=0))), REJECTED, "all zero"),
    (
        "allocation: negative",
        allocations(an_allocation("k", resourcePerAlloc=resource(vcore=-1))),
        REJECTED,
        "resourcePerAlloc['vcore']: -1",
    ),
    (
        "allocation: overflowing",
        allocations(an_allocation("k", resourcePerAlloc=resource(vcore=2**63 - 1))),
        REJECTED,
        "expected at most",
    ),
    (
        "allocation: the most negative",
        allocations(an_allocation("k", resourcePerAlloc=resource(vcore=-(2**63)))),
        REJECTED,
        "expected no negative",
    ),
    (
        "allocation: unnamed resource type",
        allocations(an_allocation("k", resourcePerAlloc=resource(**{"": 1}))),
        REJECTED,
        "name of a type: empty",
    ),
    (
        "allocation: 200 resource types",
        allocations(an_allocation("k", resourcePerAlloc=resource(**{f"t{n}": 1 for n in range(200)}))),
        REJECTED,
        "200 types",
    ),
    ("allocation: on an unknown node", allocations(an_allocation("k", nodeID="ghost")), REJECTED, "ghost"),
    ("ask: negative repeats", old_asks(an_old_ask("k", maxAllocations=-1)), REJECTED, "maxAllocations: -1"),
    (
        "ask: absurd repeats",
        old_asks(an_old_ask("k", maxAllocations=2**31 - 1)),
        REJECTED,
        "maxAllocations: 2147483647",
    ),
    (
        "ask: absurd time-out",
        old_asks(an_old_ask("k", executionTimeoutMilliSeconds=2**63 - 1)),
        REJECTED,
        "executionTimeoutMilliSeconds",
    ),
    ("ask: unknown application", old_asks(an_old_ask("k", applicationID="ghost")), REJECTED, "ghost"),
    ("release: of nothing", releases(si_pb2.AllocationRelease()), REJECTED, "neither allocationKey nor applicationID"),
    # applications
    ("application: empty id", applications(an_application("")), REJECTED, "applicationID: empty"),
    ("application: duplicate of a living one", applications(an_application("app")), REJECTED, "app"),
    ("application: unknown queue", applications(an_application("b", queueName="root.ghost")), REJECTED, "root.ghost"),
    (
        "application: queue that is no leaf",
        applications(an_application("b", queueName="root.parent")),
        REJECTED,
        "root.parent",
    ),
    ("application: unknown partition", applications(an_application("b", partitionName="ghost")), REJECTED, "ghost"),
    ("application: no user", applications(an_application("b", ugi=None)), REJECTED, "user"),
    (
        "application: hostile user",
        applications(an_application("b", ugi=si_pb2.UserGroupInformation(user="a\x00b"))),
        REJECTED,
        "ugi.user",
    ),
    (
        "application: negative gang",
        applications(an_application("b", placeholderAsk=resource(vcore=-1))),
        REJECTED,
        "placeholderAsk['vcore']: -1",
    ),
    (
        "application: 600 KiB of tags",
        applications(an_application("b", tags={"k": "v" * 600_000})),
        REJECTED,
        "tags: 600001 bytes",
    ),
    (
        "application: removal of nothing",
        item(APPLICATION, remove=[si_pb2.RemoveApplicationRequest()]),
        REJECTED,
        "remove[0].applicationID: empty",
    ),
    # nodes
    ("node: empty id", nodes(a_node("")), REJECTED, "nodes[0].nodeID: empty"),
    ("node: no action", nodes(a_node("n2", action=0)), REJECTED, "action: 0"),
    ("node: unknown action", nodes(a_node("n2", action=42)), REJECTED, "action: 42"),
    ("node: exists already", nodes(a_node("n1")), REJECTED, "n1"),
    ("node: update of an unknown one", nodes(a_node("ghost", action=2)), REJECTED, "ghost"),
    ("node: removal of an unknown one", nodes(a_node("ghost", action=4)), REJECTED, "ghost"),
    (
        "node: negative capacity",
        nodes(a_node("n2", schedulableResource=resource(memory=-1))),
        REJECTED,
        "schedulableResource['memory']: -1",
    ),
    (
        "node: overflowing capacity",
        nodes(a_node("n2", schedulableResource=resource(memory=2**63 - 1))),
        REJECTED,
        "expected at most",
    ),
    ("node: unknown partition", nodes(a_node("n2", attributes={"si/node-partition": "ghost"})), REJECTED, "ghost"),
    (
        "node: with a bad existing allocation",
        nodes(a_node("n2", existingAllocations=[an_allocation("")])),
        REJECTED,
        "existingAllocations[0].allocationKey: empty",
    ),
]


@pytest.mark.parametrize(("send", "expected", "text"), [pytest.param(s, e, t, id=n) for n, s, e, t in CASES])
async def test_bad_input_gets_a_clear_error_and_changes_nothing(
    world: World, send: Send, expected: Code | str, text: str
) -> None:
    before = await world.state(VICTIM)
    assert len(before) >= 5, "no state to protect: the test proves nothing"
    outcome, story = await send(world)
    assert outcome == expected, story
    assert text in story
    assert "Traceback" not in story
    await _witness_is_served(world)
    assert await world.state(VICTIM) == before
    assert await world.state("new") == {}


async def test_a_key_twice_in_one_message_is_an_ask_and_its_update(world: World) -> None:
    call = world.open(ALLOCATION, VICTIM)
    twice = [an_allocation("dup", resourcePerAlloc=resource(memory=1)), an_allocation("dup")]
    await call.send(si_pb2.AllocationRequest(rmID=VICTIM, allocations=twice))
    answer = await call.receive()
    assert not answer.rejectedAllocations
    (made,) = answer.new
    assert made.resourcePerAlloc == twice[1].resourcePerAlloc


async def test_a_release_of_a_type_that_is_not_known_yet_ends_what_it_names(world: World) -> None:
    call = world.open(ALLOCATION, VICTIM)
    release = si_pb2.AllocationRelease(
        partitionName="default", applicationID="app", allocationKey="runs", terminationType=99
    )
    releases = si_pb2.AllocationReleasesRequest(allocationsToRelease=[release])
    await call.send(si_pb2.AllocationRequest(rmID=VICTIM, releases=releases))
    answer = await call.receive()
    assert not answer.rejectedAllocations
    (ended,) = answer.released
    assert (ended.allocationKey, ended.terminationType) == ("runs", si_pb2.STOPPED_BY_RM)


async def test_good_items_beside_bad_ones_are_served(world: World) -> None:
    call = world.open(NODE, VICTIM)
    await call.send(si_pb2.NodeRequest(rmID=VICTIM, nodes=[a_node(""), a_node("n2"), a_node("n3", action=77)]))
    answers = [await call.receive(), await call.receive()]
    assert [node.nodeID for answer in answers for node in answer.accepted] == ["n2"]
    assert len([node for answer in answers for node in answer.rejected]) == 2


async def _witness_is_served(world: World) -> None:
    """Waits for the answer to another RM's good request, which follows everything sent before."""
    allocation = world.open(ALLOCATION, WITNESS)
    key = "good"
    good = an_allocation(key, resourcePerAlloc=resource(memory=1))
    await allocation.send(si_pb2.AllocationRequest(rmID=WITNESS, allocations=[good]))
    while key not in [made.allocationKey for made in (await allocation.receive()).new]:
        pass
    allocation.cancel()
