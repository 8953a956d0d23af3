"""One message of an RM is many steps of the loop, whatever is in it; each item gets its verdict."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import grpc
import pytest
from loop_steps import LoopSteps, measured_steps
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_gateway.service import Gateway
from muster_gateway.sessions import make_sessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.wire_fields import framed
from muster_proto.muster.v1 import admin_pb2, callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings

QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}]}]}]"
PATIENCE_S = 60.0
# The longest one takes 10 ms on a quiet machine. Before, these took 60 to 1,500.
STEP_MAX_S = 0.06
SCHEDULER, CALLBACKS, ADMIN = "/si.v1.Scheduler/", "/muster.v1.Callbacks/", "/muster.v1.Admin/"


@dataclass
class World:
    channel: grpc.aio.Channel

    def stream(self, path: str) -> Any:
        return self.channel.stream_stream(path)(metadata=[("muster-rm-id", "rm")])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    settings, clock = LogSettings(backend="memory", partitions=1), SystemClock()
    topics, log = settings.topics(), make_log(settings, clock)
    chosen = GatewaySettings(
        grpc_address="127.0.0.1:0", http_address="", registration_timeout_s=PATIENCE_S, stop_grace_s=0.05
    )
    async with AsyncExitStack() as stack:
        await log.start()
        stack.push_async_callback(log.close)
        scheduler = SchedulerService(SchedulerSettings(), log, topics, clock)
        await scheduler.start()
        stack.push_async_callback(scheduler.stop)
        gateway = Gateway(chosen, log, topics, make_sessions(chosen, clock), clock)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}", options=options)
        )
        request = si.RegisterResourceManagerRequest(rmID="rm", config=QUEUES)
        await channel.unary_unary(f"{SCHEDULER}RegisterResourceManager")(request.SerializeToString())
        gc.collect()
        gc.disable()  # what a collection of this test's objects takes is not a message's
        try:
            yield World(channel)
        finally:
            gc.enable()


def field(number: int, body: bytes) -> bytes:
    return framed(number << 3 | 2, body)


@lru_cache(maxsize=4)
def tags(number: int, count: int) -> bytes:
    """A map of texts as a field. (Protobuf takes seconds to make a large one.)"""
    entries = (b"\x0a\x07t%06d\x12\x01v" % entry for entry in range(count))
    return b"".join([field(number, entry) for entry in entries])


@lru_cache(maxsize=4)
def types(count: int) -> bytes:
    """The content of a resource."""
    return b"".join([field(1, b"\x0a\x07r%06d\x12\x02\x08\x01" % entry) for entry in range(count)])


ONE = si.Resource(resources={"vcore": si.Quantity(value=1)})


def allocation(**more: Any) -> si.Allocation:
    return si.Allocation(**{"allocationKey": "bad", "applicationID": "app", "resourcePerAlloc": ONE, **more})


def ask(**more: Any) -> si.AllocationAsk:
    return si.AllocationAsk(**{"allocationKey": "bad", "applicationID": "app", "resourceAsk": ONE, **more})


def asks(*items: si.Allocation, raw: bytes = b"") -> bytes:
    """The items, and last a good ask of no application, which the scheduler rejects."""
    good = allocation(allocationKey="good", applicationID="none")
    return raw + si.AllocationRequest(rmID="rm", allocations=[*items, good]).SerializeToString()


def nodes(bad: bytes) -> bytes:
    bad = si.NodeInfo(nodeID="bad", action=si.NodeInfo.CREATE).SerializeToString() + bad
    return field(1, bad) + si.NodeRequest(rmID="rm", nodes=[GOOD_NODE]).SerializeToString()


GOOD_NODE = si.NodeInfo(nodeID="good", action=si.NodeInfo.CREATE)
GOOD_APP = si.AddApplicationRequest(applicationID="good", queueName="root.none")

# The message; and what is said of its bad item.
REJECTED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "an ask with 290,000 tags": (
        "UpdateAllocation",
        lambda: asks(raw=field(4, allocation().SerializeToString() + tags(2, 290_000))),
        "allocations[0].allocationTags: 290000 entries, expected at most 4096",
    ),
    "an ask of the previous generation with 200,000": (
        "UpdateAllocation",
        lambda: asks(raw=field(1, ask().SerializeToString() + tags(8, 200_000))),
        "asks[0].tags: 200000 entries, expected at most 4096",
    ),
    "an ask with 240,000 types": (
        "UpdateAllocation",
        lambda: asks(raw=field(4, b"\x0a\x03bad" + field(5, types(240_000)))),
        "allocations[0].resourcePerAlloc: 240000 types, expected at most 128",
    ),
    "an ask of the previous generation with them": (
        "UpdateAllocation",
        lambda: asks(raw=field(1, b"\x0a\x03bad" + field(4, types(240_000)))),
        "asks[0].resourceAsk: 240000 types, expected at most 128",
    ),
    "an ask with a long key": (
        "UpdateAllocation",
        lambda: asks(allocation(allocationKey="bad" + "x" * 3_900_000)),
        "expected at most 256 characters",
    ),
    "an ask of 3.9 MB of fields that nobody knows": (
        "UpdateAllocation",
        lambda: asks(raw=field(4, allocation().SerializeToString() + b"\xf8\x01\x00" * 1_290_000)),
        "allocations[0]: 3870025 bytes, expected at most 981952",
    ),
    "a node with 290,000 attributes": (
        "UpdateNode",
        lambda: nodes(tags(3, 290_000)),
        "nodes[0].attributes: 290000 entries, expected at most 4096",
    ),
    "an existing allocation with 290,000 tags": (
        "UpdateNode",
        lambda: nodes(field(6, allocation().SerializeToString() + tags(2, 290_000))),
        "nodes[0].existingAllocations[0].allocationTags: 290000 entries, expected at most 4096",
    ),
    "an application with 2,000,000 groups": (
        "UpdateApplication",
        lambda: (
            field(1, b"\x0a\x03bad" + field(4, b"\x12\x00" * 2_000_000))
            + si.ApplicationRequest(rmID="rm", new=[GOOD_APP]).SerializeToString()
        ),
        "new[0].ugi.groups: 2000000 groups, expected at most 1024",
    ),
}
RESPONSES = {
    "UpdateAllocation": si.AllocationResponse,
    "UpdateApplication": si.ApplicationResponse,
    "UpdateNode": si.NodeResponse,
}


async def responses(call: Any, method: str, enough: Callable[[list[Any]], bool]) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while not enough(found):
            found.append(RESPONSES[method].FromString(await call.read()))
    return found


def rejections(found: list[Any], method: str) -> list[tuple[str, str]]:
    rejected = [each for answer in found for each in (*answer.rejected, *getattr(answer, "rejectedAllocations", ()))]
    name = {"UpdateAllocation": "allocationKey", "UpdateApplication": "applicationID", "UpdateNode": "nodeID"}[method]
    return [(getattr(each, name), each.reason) for each in rejected]


def short(steps: LoopSteps) -> None:
    assert steps.longest_s < STEP_MAX_S, steps.longest()


@pytest.mark.parametrize("name", REJECTED)
async def test_only_the_item_over_a_limit_is_rejected(world: World, name: str) -> None:
    method, make, reason = REJECTED[name]
    raw = make()
    assert len(raw) <= 4 << 20
    call = world.stream(SCHEDULER + method)

    def enough(found: list[Any]) -> bool:
        good = [True for key, _ in rejections(found, method) if key == "good"]
        good += [True for answer in found for each in getattr(answer, "accepted", ()) if "good" in str(each)]
        return len(rejections(found, method)) + len(good) >= 2 and bool(good)

    with measured_steps() as steps:
        await call.write(raw)
        found = await responses(call, method, enough)
    call.cancel()
    (bad,) = [(key, why) for key, why in rejections(found, method) if key.startswith("bad")]
    assert reason in bad[1]
    short(steps)


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "2,000,000 empty asks": ("UpdateAllocation", lambda: b"\x0a\x00" * 2_000_000 + asks()),
    "2,000,000 empty allocations": ("UpdateAllocation", lambda: b"\x22\x00" * 2_000_000 + asks()),
    "2,000,000 empty releases": ("UpdateAllocation", lambda: field(2, b"\x0a\x00" * 2_000_000) + asks()),
    "2,000,000 empty applications": ("UpdateApplication", lambda: b"\x0a\x00" * 2_000_000 + b"\x1a\x02rm"),
    "2,000,000 empty nodes": ("UpdateNode", lambda: b"\x0a\x00" * 2_000_000 + b"\x12\x02rm"),
    "a node with 2,000,000 empty allocations": (
        "UpdateNode",
        lambda: field(1, GOOD_NODE.SerializeToString() + b"\x32\x00" * 2_000_000) + b"\x12\x02rm",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_too_many_items_are_counted_and_not_parsed(world: World, name: str) -> None:
    method, make = REFUSED[name]
    call, raw = world.stream(SCHEDULER + method), make()
    with measured_steps() as steps:
        await call.write(raw)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "items, expected at most 50000" in str(caught.value.details())
    short(steps)


async def test_fifty_thousand_bad_items_are_answered_in_parts(world: World) -> None:
    call = world.stream(f"{SCHEDULER}UpdateAllocation")
    raw = si.AllocationRequest(
        rmID="rm",
        allocations=[allocation(allocationKey=f"k{number}", resourcePerAlloc=None) for number in range(50_000)],
    ).SerializeToString()
    with measured_steps() as steps:
        await call.write(raw)
        answers = await responses(
            call, "UpdateAllocation", lambda found: sum(len(each.rejectedAllocations) for each in found) >= 50_000
        )
    call.cancel()
    keys = [each.allocationKey for answer in answers for each in answer.rejectedAllocations]
    assert keys == [f"k{number}" for number in range(50_000)]
    assert max(each.ByteSize() for each in answers) < 256 * 1024
    short(steps)


async def test_a_registration_with_many_entries_is_refused_in_steps(world: World) -> None:
    request = si.RegisterResourceManagerRequest(rmID="other").SerializeToString() + tags(6, 150_000)
    update = si.UpdateConfigurationRequest(rmID="rm").SerializeToString() + tags(5, 150_000)
    for path, raw in (
        (f"{SCHEDULER}RegisterResourceManager", request),
        (f"{ADMIN}UpdateConfiguration", update),
        (f"{ADMIN}ValidateConfiguration", update),
    ):
        with measured_steps() as steps, pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.channel.unary_unary(path)(raw, timeout=PATIENCE_S)
        assert caught.value.details() == "extraConfig: 150000 entries, expected at most 4096"
        short(steps)


async def test_a_request_that_has_names_only_has_no_megabytes(world: World) -> None:
    raw = admin_pb2.ListResourceManagersRequest(rm_id="rm").SerializeToString() * 900_000
    with measured_steps() as steps, pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.channel.unary_unary(f"{ADMIN}ListResourceManagers")(raw, timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == f"request: {len(raw)} bytes, expected at most 524288"
    short(steps)


async def test_callback_answers_of_one_message_are_many_steps(world: World) -> None:
    call = world.stream(f"{CALLBACKS}Connect")
    message = callbacks_pb2.FromResourceManager
    update = callbacks_pb2.ConfigurationUpdate(id="last", request=si.UpdateConfigurationRequest(rmID="another"))
    answers = [callbacks_pb2.PredicatesAnswer(id=number, fits=True) for number in range(1, 50_001)]
    large = field(5, b"\x0a\x05first" + field(2, b"\x12\x02rm" + tags(5, 150_000)))
    raw = large + message(predicates=answers, configurations=[update]).SerializeToString()
    raw += b"\x1a\x00" * 400_000  # answers to preemption without an id
    with measured_steps() as steps:
        await call.write(message(hello=callbacks_pb2.Hello(predicates=True)).SerializeToString())
        await call.write(raw)
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 2:
                found += callbacks_pb2.ToResourceManager.FromString(await call.read()).configurations
    call.cancel()
    assert [each.id for each in found] == ["first", "last"]
    assert "request.extraConfig: 150000 entries, expected at most 4096" in found[0].error
    short(steps)
