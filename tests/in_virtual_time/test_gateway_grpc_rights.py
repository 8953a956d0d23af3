"""Every gRPC method of the descriptors, called without a token, with a reader's token, and with an admin's."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from integration.gateway_rig import PATIENCE_S, Rig
from muster_core.model.steps import finish
from muster_gateway import service
from muster_gateway.access.request_codec import rm_steps
from muster_gateway.errors import UnprotectedListener
from muster_gateway.service import Gateway
from muster_proto.muster.v1 import admin_pb2, audit_pb2, callbacks_pb2, events_pb2, metrics_pb2
from muster_proto.muster.v1 import health_pb2 as whole_pb2
from muster_proto.si.v1 import si_pb2
from muster_rest.grpc_methods import METHODS, by_path
from muster_runtime.identity import Right, Role

ADMIN, READER = "admin-token-0123456789", "reader-token-9876543210"
TOKENS = {"ops": {"role": "admin", "token": ADMIN}, "dashboard": {"role": "read", "token": READER}}
_FILES: tuple[Any, ...] = (
    si_pb2,
    callbacks_pb2,
    admin_pb2,
    audit_pb2,
    events_pb2,
    metrics_pb2,
    health_pb2,
    whole_pb2,
    reflection_pb2,
)
SERVICES = {each.full_name: each for file in _FILES for each in file.DESCRIPTOR.services_by_name.values()}
DESCRIPTORS = [method for each in SERVICES.values() for method in each.methods]
NOT_LET_IN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
# Methods without a right. A new one is a decision, which must be visible here.
FOR_ALL = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "muster.v1.Health"}
FOR_READERS = {"ListResourceManagers", "Explain", "Get", "Watch", "Batch"}


def path_of(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def test_the_table_has_every_method_of_every_served_service_and_no_other() -> None:
    assert set(service._SERVICES) | FOR_ALL == set(SERVICES)
    assert sorted(by_path()) == sorted(map(path_of, DESCRIPTORS))
    assert len(METHODS) == len(by_path())


@pytest.mark.parametrize("method", DESCRIPTORS, ids=path_of)
def test_a_method_needs_what_the_table_says(method: Any) -> None:
    row, fields = by_path()[path_of(method)], method.input_type.fields_by_name
    if method.containing_service.full_name in FOR_ALL:
        assert row.right is Right.NONE
        return
    assert row.right.role is (Role.READ if method.name in FOR_READERS else Role.ADMIN)
    if method.client_streaming:
        assert row.right is Right.ACT
        return
    if row.right is Right.ADMIN:
        assert row.rm == "", "a method about the process names no RM"
        return
    # The request's own field names the RM, so the check of rights reads it before the method does.
    assert row.rm in ("rm_id", "rmID", "what.rm_id")
    assert row.rm.split(".")[0] in fields
    request = GetMessageClass(method.input_type)
    made = request(what={"rm_id": "x"}) if "." in row.rm else request(**{row.rm: "x"})
    assert finish(rm_steps(row.path, made.SerializeToString())) == "x"
    assert finish(rm_steps(row.path, b"\xff\xff")) == ""


@pytest.fixture
async def closed(world: Rig) -> Gateway:
    return await world.gateway(tokens=TOKENS, registration_timeout_s=PATIENCE_S, view_url="http://127.0.0.1:9")


async def _status(channel: grpc.aio.Channel, method: Any, token: str | None) -> tuple[grpc.StatusCode, str]:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    path, empty = path_of(method), b""
    try:
        if method.client_streaming:
            call: Any = channel.stream_stream(path)(metadata=metadata, timeout=PATIENCE_S)
            await call.done_writing()
            await call.read()
            return await call.code(), await call.details()
        if method.server_streaming:
            call = channel.unary_stream(path)(empty, metadata=metadata, timeout=PATIENCE_S)
            await call.read()  # a watch has no end
            call.cancel()
            return await call.code(), await call.details()
        await channel.unary_unary(path)(empty, metadata=metadata, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_each_method_lets_in_whom_it_may_and_nobody_else(world: Rig, closed: Gateway) -> None:
    channel = world.channel(closed).grpc
    for method in DESCRIPTORS:
        path, right = path_of(method), by_path()[path_of(method)].right
        without, said = await _status(channel, method, None)
        if right is Right.NONE:
            assert without not in NOT_LET_IN, path
            continue
        assert without is grpc.StatusCode.UNAUTHENTICATED, path
        assert "authorization: Bearer TOKEN" in said
        wrong, said = await _status(channel, method, "not-a-token-of-ours-0")
        assert (wrong, "not-a-token" in said) == (grpc.StatusCode.UNAUTHENTICATED, False), path
        reader, said = await _status(channel, method, READER)
        if right.role is Role.ADMIN:
            assert reader is grpc.StatusCode.PERMISSION_DENIED, path
            if right is Right.ADMIN:
                assert said == "this needs the role admin, and dashboard has read"
                continue
            assert said.startswith("dashboard may not ")
            assert f'it lacks the right "{right}"' in said
        else:
            assert reader not in NOT_LET_IN, path
        assert (await _status(channel, method, ADMIN))[0] not in NOT_LET_IN, path


async def test_without_tokens_only_this_machine_and_no_proxy_is_let_in(world: Rig) -> None:
    gateway = await world.gateway()
    channel = await world.registered(gateway)
    for name, value in (("x-forwarded-for", "192.0.2.7"), ("via", "1.1 proxy"), ("x-envoy-external-address", "::1")):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.stub.RegisterResourceManager(
                si_pb2.RegisterResourceManagerRequest(rmID="rm"), metadata=((name, value),), timeout=PATIENCE_S
            )
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "proxy" in (raised.value.details() or "")


async def test_a_wide_address_without_tokens_does_not_start_unless_it_is_meant(world: Rig) -> None:
    with pytest.raises(UnprotectedListener, match=r"gateway\.grpc_address 0\.0\.0\.0:0"):
        await world.gateway(grpc_address="0.0.0.0:0")
    gateway = await world.gateway(grpc_address="0.0.0.0:0", grpc_open=True)
    await world.registered(gateway)
