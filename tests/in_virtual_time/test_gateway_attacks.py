"""Attacks of one tenant upon another over gRPC: each is refused without the right, and accepted with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from integration.gateway_rig import METHODS, PATIENCE_S, Channel, Rig, Stream, asks, audit_of
from muster_gateway.service import Gateway
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.v1 import admin_pb2, audit_pb2, callbacks_pb2, events_pb2, metrics_pb2
from muster_proto.muster.v1.admin_pb2_grpc import AdminStub
from muster_proto.muster.v1.callbacks_pb2_grpc import CallbacksStub
from muster_proto.muster.v1.events_pb2_grpc import EventsStub
from muster_proto.muster.v1.metrics_pb2_grpc import MetricsStub
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from virtual.plugin import advance

Code = grpc.StatusCode
# The attacks of the present test: attacker and refusal.
DENIED: list[tuple[str, str]] = []
NAMES = ("owner", "attacker", "operator", "reader", "nobody-special")
TOKENS = {name: {"role": "admin", "token": f"{name}-token-0123456789"} for name in NAMES}
POLICY = """
[[rule]]
identities = ["owner"]
act = ["mine"]

[[rule]]
identities = ["attacker"]
act = ["other-*"]
operate = ["other-*"]
read = [{rm = "other-*"}]

[[rule]]
identities = ["operator"]
proofs = ["token"]
operate = ["mine"]

[[rule]]
identities = ["operator"]
proofs = ["certificate"]
act = ["*"]

[[rule]]
identities = ["read*"]
read = [{rm = "mine"}]
role = "read"
"""


class Tenant:
    """A client with one identity's token."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.metadata = (("authorization", f"Bearer {name}-token-0123456789"),)
        self.grpc = channel.grpc

    async def unary(self, stub: Any, method: str, request: Any) -> tuple[Code, str]:
        try:
            await getattr(stub(self.grpc), method)(request, metadata=self.metadata, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return Code.OK, ""

    async def first(self, stub: Any, method: str, request: Any) -> tuple[Code, str]:
        """Return OK at the first answer of a stream."""
        call = getattr(stub(self.grpc), method)(request, metadata=self.metadata, timeout=PATIENCE_S)
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        finally:
            call.cancel()
        return Code.OK, ""

    def stream(self, kind: StreamKind, rm_id: str | None, **metadata: str) -> Stream:
        pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        if rm_id is not None:
            pairs.append(("muster-rm-id", rm_id))
        opened = getattr(SchedulerStub(self.grpc), METHODS[kind])
        return Stream(opened(metadata=(*self.metadata, *pairs)))

    def callbacks(self, rm_id: str) -> Stream:
        pairs = (*self.metadata, ("muster-rm-id", rm_id))
        return Stream(CallbacksStub(self.grpc).Connect(metadata=pairs))

    async def register(self, rm_id: str) -> tuple[Code, str]:
        return await self.unary(
            SchedulerStub, "RegisterResourceManager", si_pb2.RegisterResourceManagerRequest(rmID=rm_id)
        )


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    return file


@pytest.fixture
async def gateway(world: Rig, policy: Path) -> Gateway:
    return await world.gateway(
        tokens=TOKENS, policy_file=policy, reload_interval_s=0.05, registration_timeout_s=PATIENCE_S, view_timeout_s=0.5
    )


@pytest.fixture(autouse=True)
async def audited(world: Rig) -> AsyncIterator[None]:
    """Every attack of the test leaves an entry that names the attacker and the refusal."""
    DENIED.clear()
    yield
    for name, said in DENIED:

        async def is_told(name: str = name, said: str = said) -> bool:
            found = await audit_of(world)
            return any(
                (entry.identity, entry.proof, entry.peer, entry.door) == (name, "token", "127.0.0.1", "grpc")
                and entry.result == audit_pb2.AuditEntry.REFUSED
                and entry.method.startswith("/")
                and said.startswith(entry.reason)
                for entry in found
            )

        await advance()
        assert await is_told(), f"the audit entry of {name}: {said}"


@pytest.fixture
async def tenants(world: Rig, gateway: Gateway) -> dict[str, Tenant]:
    found = {name: Tenant(world.channel(gateway), name) for name in NAMES}
    assert await found["owner"].register("mine") == (Code.OK, "")
    assert await found["attacker"].register("other-1") == (Code.OK, "")
    return found


def _write(file: Path, text: str) -> None:
    """Replace a file at once: half of a policy would withdraw rights."""
    made = file.with_suffix(".new")
    made.write_text(text)
    made.replace(file)


def denied(answer: tuple[Code, str], name: str, deed: str, rm_id: str = "mine") -> None:
    code, said = answer
    DENIED.append((name, said))
    assert code is Code.PERMISSION_DENIED, answer
    assert said.startswith(f"{name} may not {deed} rmID '{rm_id}': it lacks the right ")


async def test_an_rm_is_registered_by_its_owner_alone(world: Rig, tenants: dict[str, Tenant]) -> None:
    registered = len(world.scheduler.bodies("mine", "register"))
    for name in ("attacker", "operator", "reader", "nobody-special"):
        code, said = await tenants[name].register("mine")
        assert code is Code.PERMISSION_DENIED
        assert f"{name} may not act as rmID 'mine'" in said
    assert len(world.scheduler.bodies("mine", "register")) == registered, "nothing reached the log"
    assert await tenants["owner"].register("mine") == (Code.OK, "")


@pytest.mark.parametrize("kind", list(METHODS))
@pytest.mark.parametrize("by", ["metadata", "message"])
async def test_streams_are_not_taken(kind: StreamKind, by: str, world: Rig, tenants: dict[str, Tenant]) -> None:
    mine = tenants["owner"].stream(kind, "mine")
    await mine.call.initial_metadata()  # the seat is taken
    for name in ("attacker", "operator", "reader"):
        theirs = tenants[name].stream(kind, "mine" if by == "metadata" else None)
        if by == "message" and name == "attacker":
            request = {StreamKind.ALLOCATION: si_pb2.AllocationRequest, StreamKind.NODE: si_pb2.NodeRequest}
            await theirs.send(request.get(kind, si_pb2.ApplicationRequest)(rmID="mine"))
        elif by == "message":
            theirs.cancel()
            continue
        denied_or_none = await theirs.status()
        assert denied_or_none[0] is Code.PERMISSION_DENIED, name
    await world.scheduler.emit("mine", [kind])
    assert (await mine.receive()).responseSequence > 0, "the owner still has its seat"


async def test_callbacks_are_not_taken(tenants: dict[str, Tenant]) -> None:
    hello = callbacks_pb2.FromResourceManager(hello=callbacks_pb2.Hello())
    theirs = tenants["attacker"].callbacks("mine")
    await theirs.send(hello)
    denied(await theirs.status(), "attacker", "act as")
    mine = tenants["owner"].callbacks("mine")
    await mine.send(hello)
    assert (await mine.receive()).HasField("welcome")


async def test_allocations_of_others_are_not_released(world: Rig, tenants: dict[str, Tenant]) -> None:
    """Neither on the other RM's stream, nor on the own stream with the other's rmID."""
    mine = tenants["owner"].stream(StreamKind.ALLOCATION, "mine")
    await mine.send(asks("mine", "a1"))
    await mine.receive()
    release = si_pb2.AllocationRelease(partitionName="default", applicationID="app", allocationKey="a1")
    request = si_pb2.AllocationRequest(
        rmID="mine", releases=si_pb2.AllocationReleasesRequest(allocationsToRelease=[release])
    )
    theirs = tenants["attacker"].stream(StreamKind.ALLOCATION, "mine")
    assert (await theirs.status())[0] is Code.PERMISSION_DENIED
    own = tenants["attacker"].stream(StreamKind.ALLOCATION, "other-1")
    await own.send(request)
    assert (await own.status())[0] is Code.INVALID_ARGUMENT
    assert len(world.scheduler.bodies("mine", "allocation")) == 1
    await mine.send(request)
    await advance()
    assert len(world.scheduler.bodies("mine", "allocation")) == 2, "the owner's release is taken"


async def test_nobody_shuts_another_rm_down(world: Rig, tenants: dict[str, Tenant]) -> None:
    mine = tenants["owner"].stream(StreamKind.NODE, "mine")
    await mine.call.initial_metadata()
    theirs = tenants["attacker"].stream(StreamKind.NODE, "mine", muster_shutdown="true")
    denied(await theirs.status(), "attacker", "act as")
    assert "STOPPED" not in world.scheduler.states("mine")
    leaving = tenants["owner"].stream(StreamKind.NODE, "mine", muster_shutdown="true")
    assert (await leaving.status())[0] is Code.OK
    await advance()
    assert "STOPPED" in world.scheduler.states("mine"), "the owner shut it down"


OPERATIONS: dict[str, Any] = {
    "PauseResourceManager": admin_pb2.PauseResourceManagerRequest(rm_id="mine"),
    "ResumeResourceManager": admin_pb2.ResumeResourceManagerRequest(rm_id="mine"),
    "ForgetResourceManager": admin_pb2.ForgetResourceManagerRequest(rm_id="mine", force=True),
    "DrainNode": admin_pb2.DrainNodeRequest(rm_id="mine", node_id="n1"),
    "EndApplication": admin_pb2.EndApplicationRequest(rm_id="mine", application_id="x"),
}


@pytest.mark.parametrize("method", OPERATIONS)
async def test_only_operators_operate(method: str, world: Rig, tenants: dict[str, Tenant], gateway: Gateway) -> None:
    for name in ("attacker", "owner", "reader"):
        denied(await tenants[name].unary(AdminStub, method, OPERATIONS[method]), name, "operate")
    assert not world.scheduler.bodies("mine", "admin"), "nothing reached the log"
    # (The scripted scheduler answers no command, so an admitted call may get no answer.)
    call = asyncio.ensure_future(tenants["operator"].unary(AdminStub, method, OPERATIONS[method]))
    await advance()
    assert world.scheduler.bodies("mine", "admin"), "the operator's command is on the log"
    call.cancel()


async def test_only_operators_dump_states(tenants: dict[str, Tenant]) -> None:
    request = admin_pb2.DumpStateRequest(rm_id="mine")
    for name in ("attacker", "owner", "reader"):
        denied(await tenants[name].first(AdminStub, "DumpState", request), name, "operate")
    code, _ = await tenants["operator"].first(AdminStub, "DumpState", request)
    assert code is Code.UNAVAILABLE, "admitted; there is no view"


async def test_owners_and_operators_configure(world: Rig, tenants: dict[str, Tenant]) -> None:
    request = si_pb2.UpdateConfigurationRequest(rmID="mine", config="new")
    for name in ("attacker", "reader"):
        for method in ("UpdateConfiguration", "ValidateConfiguration"):
            denied(await tenants[name].unary(AdminStub, method, request), name, "configure")
    assert not world.scheduler.bodies("mine", "configuration")
    for name in ("owner", "operator"):
        assert await tenants[name].unary(AdminStub, "UpdateConfiguration", request) == (Code.OK, "")


READS: list[tuple[Any, str, Any, Callable[[Tenant], Any]]] = [
    (EventsStub, "Batch", events_pb2.EventBatchRequest(rm_id="mine"), lambda each: each.unary),
    (EventsStub, "Watch", events_pb2.WatchEventsRequest(rm_id="mine"), lambda each: each.first),
    (MetricsStub, "Get", metrics_pb2.MetricsRequest(rm_id="mine"), lambda each: each.unary),
    (
        MetricsStub,
        "Watch",
        metrics_pb2.WatchMetricsRequest(what=metrics_pb2.MetricsRequest(rm_id="mine")),
        lambda each: each.first,
    ),
    (AdminStub, "Explain", admin_pb2.ExplainRequest(rm_id="mine", application_id="app"), lambda each: each.unary),
    (AdminStub, "ListResourceManagers", admin_pb2.ListResourceManagersRequest(rm_id="mine"), lambda each: each.unary),
]


@pytest.mark.parametrize(
    ("stub", "method", "request_", "call"), READS, ids=lambda each: getattr(each, "__name__", None)
)
async def test_others_are_not_read(
    stub: Any, method: str, request_: Any, call: Callable[[Tenant], Any], tenants: dict[str, Tenant]
) -> None:
    async def asked(name: str) -> tuple[Code, str]:
        answer: Awaitable[tuple[Code, str]] = call(tenants[name])(stub, method, request_)
        return await answer

    denied(await asked("attacker"), "attacker", "read")
    for name in ("owner", "operator", "reader"):
        assert (await asked(name))[0] is Code.UNAVAILABLE, "admitted; there is neither view nor publisher"
    code, said = await asked("nobody-special")
    assert (code, "may not read" in said) == (Code.PERMISSION_DENIED, True)


async def test_an_identity_without_a_rule_may_nothing(tenants: dict[str, Tenant]) -> None:
    nobody = tenants["nobody-special"]
    for answer in (
        await nobody.register("other-2"),
        await nobody.unary(AdminStub, "ListResourceManagers", admin_pb2.ListResourceManagersRequest()),
        await nobody.unary(MetricsStub, "Get", metrics_pb2.MetricsRequest()),
    ):
        assert answer[0] is Code.PERMISSION_DENIED


async def test_a_withdrawn_right_ends_streams_and_a_bad_file_withdraws_none(
    tenants: dict[str, Tenant], gateway: Gateway, policy: Path, world: Rig
) -> None:
    mine = tenants["owner"].stream(StreamKind.NODE, "mine")
    await mine.call.initial_metadata()
    theirs = tenants["attacker"].stream(StreamKind.NODE, "other-1")
    await theirs.call.initial_metadata()
    # a bad file changes nothing, not even in part
    _write(policy, POLICY.replace('["mine"]', '["none-of-mine"]') + "\n[[rule]]\nidentities = 1\n")
    await advance()
    assert gateway._doorman.problems(), "the bad file is noticed"
    (problem,) = gateway._doorman.problems()
    assert "rule[5].identities" in problem
    assert "what was read before stays in force" in problem
    assert (await gateway._check_self()).notes == [problem]
    assert await gateway.is_ready(), "a bad policy file does not make the gateway unready"
    await world.scheduler.emit("mine", [StreamKind.NODE])
    await mine.receive()
    # a good one is applied
    _write(policy, POLICY.replace('act = ["mine"]', 'act = ["none-of-mine"]'))
    code, said = await mine.status()
    assert (code, "owner has lost the right" in said) == (Code.PERMISSION_DENIED, True)
    assert not gateway._doorman.problems()
    await world.scheduler.emit("other-1", [StreamKind.NODE])
    await theirs.receive()
    assert (await tenants["owner"].register("mine"))[0] is Code.PERMISSION_DENIED
    # and the right is given back
    _write(policy, POLICY)
    again = Tenant(world.channel(gateway), "owner")

    async def let_in() -> bool:
        return (await again.register("mine"))[0] is Code.OK

    await advance()
    assert await let_in(), "the owner may again"
