"""Every number of every message of a client, at its extremes and where an enumeration has no value: nothing breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from muster_gateway import metrics
from muster_proto.muster.v1 import admin_pb2, audit_pb2, callbacks_pb2, metrics_pb2
from muster_proto.si.v1 import si_pb2 as si
from scenario.test_large_messages import ADMIN, CALLBACKS, ONE, PATIENCE_S, SCHEDULER, World, world

__all__ = ["world"]

_INT32 = (-(2**31), -1, 5, 99, 2**31 - 1)
_INT64 = (-(2**63), -1, 2**53 + 1, 2**63 - 1)
VALUES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_ENUM: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT32: (2**31, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (2**53 + 1, 2**63, 2**64 - 1),
}


def changed(message: Any, descriptor: Descriptor | None = None) -> Iterator[tuple[str, Any]]:
    """Copies of a message, each with one number changed, in all messages that it has."""
    for field in (descriptor or message.DESCRIPTOR).fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.name == "ResourcesEntry":
                for value in _INT64:
                    copy = type(message)()
                    copy.CopyFrom(message)
                    copy.resources["vcore"].value = value
                    yield f"{field.name}={value}", copy
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            if field.is_repeated:
                inner = inner[0] if inner else None
            elif not message.HasField(field.name):
                inner = None
            for what, other in changed(inner) if inner is not None else ():
                copy = type(message)()
                copy.CopyFrom(message)
                target = getattr(copy, field.name)
                (target[0] if field.is_repeated else target).CopyFrom(other)
                yield f"{field.name}.{what}", copy
        else:
            for value in VALUES.get(field.type, ()):
                copy = type(message)()
                copy.CopyFrom(message)
                if field.is_repeated:
                    getattr(copy, field.name).append(value)
                else:
                    setattr(copy, field.name, value)
                yield f"{field.name}={value}", copy


ALLOCATION = si.Allocation(allocationKey="k", applicationID="app", resourcePerAlloc=ONE, nodeID="n")
REQUESTS: dict[str, Any] = {
    "UpdateAllocation": si.AllocationRequest(
        rmID="rm",
        asks=[si.AllocationAsk(allocationKey="k", applicationID="app", resourceAsk=ONE)],
        allocations=[ALLOCATION],
        releases=si.AllocationReleasesRequest(
            allocationsToRelease=[si.AllocationRelease(applicationID="app", allocationKey="k")],
            allocationAsksToRelease=[si.AllocationAskRelease(applicationID="app", allocationKey="k")],
        ),
    ),
    "UpdateApplication": si.ApplicationRequest(
        rmID="rm", new=[si.AddApplicationRequest(applicationID="app", queueName="root.a", placeholderAsk=ONE)]
    ),
    "UpdateNode": si.NodeRequest(
        rmID="rm",
        nodes=[
            si.NodeInfo(
                nodeID="n", action=1, schedulableResource=ONE, occupiedResource=ONE, existingAllocations=[ALLOCATION]
            )
        ],
    ),
}


@pytest.fixture(autouse=True)
def no_defect() -> Iterator[None]:
    before = metrics.internal_errors._value.get()
    yield
    assert metrics.internal_errors._value.get() == before


async def to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_numbers_of_streams(world: World) -> None:
    for method, request in REQUESTS.items():
        call = world.stream(SCHEDULER + method)
        tried = 0
        for _, message in changed(request):
            await call.write(message.SerializeToString())
            tried += 1
        # a message without an RM ends the stream: everything before it was judged
        await call.write(b"")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(to_the_end(call), PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "rmID: '', expected 'rm'" in str(caught.value.details()), method
        assert tried > 5


async def outcome(world: World, *messages: bytes) -> tuple[grpc.StatusCode, str]:
    """How a callback stream ends or begins; it is closed then."""
    call = world.stream(f"{CALLBACKS}Connect")
    try:
        for message in messages:
            await call.write(message)
        await call.done_writing()
        if await asyncio.wait_for(call.read(), PATIENCE_S) is not grpc.aio.EOF:
            return grpc.StatusCode.OK, ""
        return await call.code(), await call.details()
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    finally:
        call.cancel()


@pytest.mark.parametrize("number", [-(2**31), -1, 5, 99, 2**31 - 1])
async def test_no_other_number_of_open_proposals(world: World, number: int) -> None:
    hello = callbacks_pb2.Hello(predicates=True, open_proposals=number)  # type: ignore[arg-type]
    code, details = await outcome(world, callbacks_pb2.FromResourceManager(hello=hello).SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == (
        f"hello.open_proposals: {number}, expected one of 0 (OPEN_PROPOSALS_ALL), 1 (OPEN_PROPOSALS_NODE), "
        "2 (OPEN_PROPOSALS_TASK_GROUP), 3 (OPEN_PROPOSALS_APPLICATION), 4 (OPEN_PROPOSALS_ONE)"
    )


async def test_numbers_of_callbacks(world: World) -> None:
    hello = callbacks_pb2.Hello(predicates=True, events=True, state_dump=True)
    first = callbacks_pb2.FromResourceManager(hello=hello)
    answers = callbacks_pb2.FromResourceManager(
        predicates=[callbacks_pb2.PredicatesAnswer(id=1)],
        preemption_predicates=[
            callbacks_pb2.PreemptionPredicatesAnswer(
                id=1, response=si.PreemptionPredicatesResponse(success=True, index=1)
            )
        ],
    )
    for what, message in [*changed(first), *changed(answers)]:
        messages = [] if message.HasField("hello") else [first.SerializeToString()]
        code, details = await outcome(world, *messages, message.SerializeToString())
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), (what, code, details)
        if "open_proposals" not in what:
            assert code is grpc.StatusCode.OK, (what, details)


UNARY: dict[str, Any] = {
    f"{ADMIN}{name.removesuffix('Request')}": message
    for name, message in {
        "PauseResourceManagerRequest": admin_pb2.PauseResourceManagerRequest(rm_id="rm"),
        "DrainNodeRequest": admin_pb2.DrainNodeRequest(rm_id="rm", node_id="n"),
        "EndApplicationRequest": admin_pb2.EndApplicationRequest(rm_id="rm", application_id="a"),
    }.items()
}
UNARY["/muster.v1.Metrics/Get"] = metrics_pb2.MetricsRequest(rm_id="rm")
UNARY["/muster.v1.Metrics/Watch"] = metrics_pb2.WatchMetricsRequest(what=metrics_pb2.MetricsRequest(rm_id="rm"))
UNARY["/muster.v1.Audit/Read"] = audit_pb2.ReadAuditRequest(rm_id="rm")


async def test_numbers_of_operators_requests(world: World) -> None:
    for path, request in UNARY.items():
        for what, message in changed(request):
            call = world.channel.unary_stream(path)(message.SerializeToString())
            try:
                await asyncio.wait_for(call.read(), PATIENCE_S)
                code = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                code = error.code()
            finally:
                call.cancel()
            assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (path, what)
            assert code is not grpc.StatusCode.UNIMPLEMENTED, path
