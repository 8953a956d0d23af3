"""The gateway's audit entries: every Admin call that the scheduler does not answer, and every refused attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import httpx
import pytest
from integration.gateway_rig import PATIENCE_S, Rig, audit_of
from muster_client.audit_client import AuditClient, AuditQuery
from muster_client.errors import AdminRefused
from muster_gateway import audit
from muster_gateway.service import Gateway
from muster_proto.muster.v1 import admin_pb2, audit_pb2
from muster_proto.si.v1 import si_pb2
from muster_rest.grpc_methods import METHODS, by_path
from virtual.plugin import advance

OPS, READER = "ops-token-0123456789", "reader-token-0123456789"
TOKENS = {"ops": {"role": "admin", "token": OPS}, "reader": {"role": "read", "token": READER}}
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods
REGISTER = si_pb2.DESCRIPTOR.services_by_name["Scheduler"].methods_by_name["RegisterResourceManager"]
READ = audit_pb2.DESCRIPTOR.services_by_name["Audit"].methods_by_name["Read"]
AUDITED = [*ADMIN, REGISTER, READ]
Entry = audit_pb2.AuditEntry


def path_of(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


@pytest.fixture(autouse=True)
def one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows end when a test says so, however slow the machine is."""
    monkeypatch.setattr(audit, "WINDOW_S", 3_600.0)


@pytest.fixture
async def gateway(world: Rig) -> Gateway:
    return await world.gateway(
        tokens=TOKENS, registration_timeout_s=PATIENCE_S, view_timeout_s=0.2, http_address="127.0.0.1:0"
    )


async def call(gateway: Gateway, world: Rig, method: Any, token: str, request: bytes = b"") -> grpc.StatusCode:
    channel = world.channel(gateway).grpc
    metadata = (("authorization", f"Bearer {token}"),)
    opened: Any = channel.unary_stream(path_of(method))(request, metadata=metadata, timeout=PATIENCE_S)
    try:
        while await opened.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await opened.code()


async def entries(world: Rig, count: int, method: str) -> list[Entry]:
    async def enough() -> list[Entry]:
        found = [entry for entry in await audit_of(world) if entry.method == method]
        return found if len(found) >= count else []

    await advance()
    found: list[Entry] = await enough()
    assert found, f"{count} audit entries of {method}"
    return found


async def until_noted(gateway: Gateway, count: int) -> None:
    """Wait until so many calls of this window are noted: a caller has its status a moment before."""
    window = gateway._audit._window
    await advance()
    assert sum(1 + each.count for each in window.values()) >= count, f"{count} calls are noted"


def test_the_table_says_that_admin_calls_and_registrations_are_audited() -> None:
    table = by_path()
    assert {method.path for method in METHODS if method.audited} == {path_of(method) for method in AUDITED}
    actions = [table[path_of(method)].action for method in AUDITED]
    assert len(set(actions)) == len(actions), "each action has another name"


@pytest.mark.parametrize("method", AUDITED, ids=lambda method: method.name)
async def test_every_admin_call_and_refused_attempt_has_an_entry(method: Any, gateway: Gateway, world: Rig) -> None:
    wanted = by_path()[path_of(method)]
    # 1. without a known token
    assert await call(gateway, world, method, "wrong-token-0123456789") is grpc.StatusCode.UNAUTHENTICATED
    (refused,) = await entries(world, 1, wanted.path)
    assert (refused.identity, refused.proof, refused.peer) == ("", "none", "127.0.0.1")
    assert (refused.door, refused.action, refused.result) == ("grpc", wanted.action, Entry.REFUSED)
    # 2. admitted; most methods refuse the empty request, and the scheduler gets none
    code = await call(gateway, world, method, OPS)
    _, done = await entries(world, 2, wanted.path)
    assert (done.identity, done.proof, done.action) == ("ops", "token", wanted.action)
    assert done.result == (Entry.ACCEPTED if code is grpc.StatusCode.OK else Entry.FAILED)
    assert done.reason.startswith("" if code is grpc.StatusCode.OK else code.name)


async def test_the_scheduler_alone_writes_what_it_carries_out(gateway: Gateway, world: Rig) -> None:
    request = si_pb2.RegisterResourceManagerRequest(rmID="rm-1", version="1").SerializeToString()
    assert await call(gateway, world, REGISTER, OPS, request) is grpc.StatusCode.OK
    assert await call(gateway, world, REGISTER, READER, request) is grpc.StatusCode.PERMISSION_DENIED
    found = await entries(world, 1, path_of(REGISTER))
    assert [(entry.identity, entry.rm_id, entry.result) for entry in found] == [("reader", "rm-1", Entry.REFUSED)]
    (sent,) = (each for each in world.scheduler.requests if each.WhichOneof("body") == "register")
    caller = sent.caller
    assert (caller.identity, caller.proof, caller.peer, caller.door) == ("ops", "token", "127.0.0.1", "grpc")


async def test_requests_of_streams_name_no_caller(gateway: Gateway, world: Rig) -> None:
    request = si_pb2.RegisterResourceManagerRequest(rmID="rm-1").SerializeToString()
    assert await call(gateway, world, REGISTER, OPS, request) is grpc.StatusCode.OK
    channel = world.channel(gateway).grpc
    metadata = (("authorization", f"Bearer {OPS}"), ("muster-rm-id", "rm-1"))
    stream: Any = channel.stream_stream("/si.v1.Scheduler/UpdateNode")(metadata=metadata)
    await stream.write(
        si_pb2.NodeRequest(rmID="rm-1", nodes=[si_pb2.NodeInfo(nodeID="n1", action=1)]).SerializeToString()
    )
    await advance()
    assert world.scheduler.bodies("rm-1", "node"), "the node's request is on the log"
    stream.cancel()
    assert not any(each.HasField("caller") for each in world.scheduler.requests if each.WhichOneof("body") == "node")


async def test_a_flood_of_attempts_is_counted(gateway: Gateway, world: Rig) -> None:
    method = ADMIN[0]
    for _ in range(50):
        await call(gateway, world, method, "wrong-token-0123456789")
    (first,) = await entries(world, 1, path_of(method))
    assert first.count == 1, "the first at once"
    gateway._audit.flush_window()
    _, more = await entries(world, 2, path_of(method))
    assert more.count == 49
    assert 0 < more.first_ns <= more.recorded_ns


async def test_many_kinds_of_attempts_do_not_fill_the_log(gateway: Gateway, world: Rig) -> None:
    for number in range(audit.PER_WINDOW_MAX + 60):
        request = admin_pb2.PauseResourceManagerRequest(rm_id=f"rm-{number}").SerializeToString()
        pause = next(each for each in ADMIN if each.name == "PauseResourceManager")
        await call(gateway, world, pause, READER, request)
    gateway._audit.flush_window()

    async def several() -> list[Entry]:
        return [entry for entry in await audit_of(world) if entry.action == "several"]

    await advance()
    (summed,) = await several()
    assert summed.count == 60
    assert len(await audit_of(world)) == audit.PER_WINDOW_MAX + 1


async def test_http_refusals_and_changes_are_audited(gateway: Gateway, world: Rig) -> None:
    async def ask(head: str, token: str) -> None:
        method, path = head.split()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as client:
            await client.request(method, path, headers={"authorization": f"Bearer {token}"})

    await ask("GET /ws/v1/partitions?rm=mine", "wrong-token-0123456789")
    (refused,) = await entries(world, 1, "GET /ws/v1/partitions")
    assert (refused.door, refused.identity, refused.rm_id, refused.result) == ("http", "", "mine", Entry.REFUSED)
    await ask("PUT /ws/v1/loglevel/debug", READER)
    (denied,) = await entries(world, 1, "PUT /ws/v1/loglevel/debug")
    assert (denied.identity, denied.result, denied.action) == ("reader", Entry.REFUSED, "admin")


async def test_no_secret_is_in_an_entry(gateway: Gateway, world: Rig) -> None:
    pause = next(each for each in ADMIN if each.name == "PauseResourceManager")
    request = admin_pb2.PauseResourceManagerRequest(rm_id="password=hunter2-Very-Secret-1").SerializeToString()
    await call(gateway, world, pause, READER, request)
    await call(gateway, world, pause, "wrong-token-0123456789", request)
    found = await entries(world, 2, path_of(pause))
    assert not any(word in str(found) for word in ("hunter2", "wrong-token", READER))


async def test_the_trail_is_read_by_admins_with_filters_and_followed(gateway: Gateway, world: Rig) -> None:
    pause = next(each for each in ADMIN if each.name == "PauseResourceManager")
    request = admin_pb2.PauseResourceManagerRequest(rm_id="rm-1").SerializeToString()
    await call(gateway, world, pause, READER, request)
    await entries(world, 1, path_of(pause))
    address = f"127.0.0.1:{gateway.grpc_port}"
    async with AuditClient(address, metadata=(("authorization", f"Bearer {READER}"),)) as reader:
        with pytest.raises(AdminRefused):
            [batch async for batch in reader.read(AuditQuery())]
    async with AuditClient(address, metadata=(("authorization", f"Bearer {OPS}"),)) as client:

        async def read(query: AuditQuery) -> list[dict[str, Any]]:
            return [entry async for batch in client.read(query) for entry in batch]

        (found,) = await read(AuditQuery(rm_id="rm-1", identity="reader", action="pause", result="refused"))
        assert found["reason"]
        assert await read(AuditQuery(rm_id="rm-2")) == []
        assert await read(AuditQuery(rm_id="rm-1", until_ns=found["recorded_ns"])) == []
        assert await read(AuditQuery(rm_id="rm-1", since_ns=found["recorded_ns"])) == [found]
        following = client.read(AuditQuery(rm_id="rm-9"), follow=True)
        assert await anext(following) == [], "the present entries come first"
        request = admin_pb2.PauseResourceManagerRequest(rm_id="rm-9").SerializeToString()
        await call(gateway, world, pause, READER, request)
        async with asyncio.timeout(PATIENCE_S):
            (new,) = await anext(following)
        assert new["rm_id"] == "rm-9"
        assert any(each["action"] == "audit" for each in await read(AuditQuery(identity="ops")))


async def test_silent_streams_and_calls_without_a_request_are_audited(world: Rig) -> None:
    gateway = await world.gateway(calls={"first_message_timeout_s": 0.2}, tokens=TOKENS)
    metadata = (("authorization", f"Bearer {OPS}"),)
    channel = world.channel(gateway).grpc
    silent: list[Any] = [channel.stream_stream("/si.v1.Scheduler/UpdateNode")(metadata=metadata) for _ in range(5)]
    for each in silent:
        assert await each.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    headers: Any = channel.stream_stream("/muster.v1.Admin/DumpState")(metadata=metadata)
    assert await headers.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until_noted(gateway, len(silent) + 1)
    gateway._audit.flush_window()
    first, more = await entries(world, 2, "/si.v1.Scheduler/UpdateNode")
    assert (first.identity, first.action, first.result, first.count) == ("ops", "call", Entry.REFUSED, 1)
    assert first.reason.startswith("DEADLINE_EXCEEDED: no message within 0.2 s")
    assert more.count == 4, "equal ones are counted"
    (early,) = await entries(world, 1, "/muster.v1.Admin/DumpState")
    assert (early.identity, early.action) == ("", "call"), "it ended before anybody was identified"
    assert early.reason.startswith("no request within 0.2 s")


async def test_silent_streams_that_give_way_are_audited(world: Rig) -> None:
    gateway = await world.gateway(calls={"max_silent": 2})
    channel = world.channel(gateway).grpc
    opened: list[Any] = []
    for _ in range(5):
        opened.append(channel.stream_stream("/si.v1.Scheduler/UpdateNode")())
        await opened[-1].initial_metadata()
    await advance()
    assert sum(each.done() for each in opened) == 3, "the oldest ones gave way"
    await until_noted(gateway, 3)
    gateway._audit.flush_window()
    found = await entries(world, 2, "/si.v1.Scheduler/UpdateNode")
    assert sum(entry.count for entry in found) == 3
    assert "more than 2 streams that have not said their rmID" in found[0].reason


async def test_refused_streams_are_audited(world: Rig) -> None:
    gateway = await world.gateway(max_streams=3, tokens=TOKENS)
    channel = world.channel(gateway).grpc
    request = si_pb2.RegisterResourceManagerRequest(rmID="rm-1").SerializeToString()
    assert await call(gateway, world, REGISTER, OPS, request) is grpc.StatusCode.OK
    metadata = (("authorization", f"Bearer {OPS}"), ("muster-rm-id", "rm-1"))
    for name in ("UpdateNode", "UpdateApplication", "UpdateAllocation"):
        await channel.stream_stream(f"/si.v1.Scheduler/{name}")(metadata=metadata).initial_metadata()
    other: Any = channel.stream_stream("/muster.v1.Callbacks/Connect")(metadata=metadata)
    assert await other.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (found,) = await entries(world, 1, "/muster.v1.Callbacks/Connect")
    assert (found.identity, found.action, found.result) == ("ops", "call", Entry.REFUSED)
    assert "expected at most 3" in found.reason
