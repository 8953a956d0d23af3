"""The operator's client: the request and the result of each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from muster_client.admin import AdminClient, Drained, Ended, Explanation, Forgotten, OpenStream, Paused, ResourceManager
from muster_client.errors import AdminFailed, AdminRefused
from muster_proto.muster.v1 import admin_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from unit.client.admin_gateway import AdminGateway, running

Code = grpc.StatusCode
MANAGER = pb.ResourceManager(
    rm_id="rm", state="DISCONNECTED", since_ns=1, reason="all streams closed", held=True, held_reason="racks",
    version="1", policy_group="queues", build_info={"a": "b"}, extra_config={"c": "d"}, generation="previous",
    registered_ns=2,
    registrations=3, instance_uuid="u", callbacks=["events"],
    streams=[pb.Stream(kind="node", gateway_id="g", epoch=4, sent_sequence=5)],
)  # fmt: skip


@pytest.fixture
def gateway() -> Iterator[AdminGateway]:
    with running() as it:
        yield it


ASK = pb.AskId(application_id="x", allocation_key="k")
EXPLAINED = pb.ExplainResponse(json=b'{"a":1}', sentences=["One.", "Two."])
CALLS: list[tuple[Callable[[AdminClient], Awaitable[Any]], str, Any, Any, Any]] = [
    (
        lambda admin: admin.pause("rm", "racks"), "PauseResourceManager",
        pb.PauseResourceManagerRequest(rm_id="rm", reason="racks"), pb.ResourceManagerAnswer(changed=True),
        Paused(True, "", 0, ""),
    ),
    (
        lambda admin: admin.resume("rm"), "ResumeResourceManager",
        pb.ResumeResourceManagerRequest(rm_id="rm"),
        pb.ResourceManagerAnswer(state="STOPPED", since_ns=3, description="away"), Paused(False, "STOPPED", 3, "away"),
    ),
    (
        lambda admin: admin.forget("rm", force=True), "ForgetResourceManager",
        pb.ForgetResourceManagerRequest(rm_id="rm", force=True),
        pb.ForgetResourceManagerResponse(changed=True, allocations=4), Forgotten(True, 4),
    ),
    (
        lambda admin: admin.drain_node("rm", "n", partition="p"), "DrainNode",
        pb.DrainNodeRequest(rm_id="rm", partition="p", node_id="n"),
        pb.DrainNodeResponse(changed=True, allocations=7), Drained(True, 7),
    ),
    (
        lambda admin: admin.drain_node("rm", "n", schedulable=True), "DrainNode",
        pb.DrainNodeRequest(rm_id="rm", node_id="n", schedulable=True), pb.DrainNodeResponse(), Drained(False, 0),
    ),
    (
        lambda admin: admin.end_application("rm", "x", partition="p", reason="stuck"), "EndApplication",
        pb.EndApplicationRequest(rm_id="rm", partition="p", application_id="x", reason="stuck"),
        pb.EndApplicationResponse(changed=True, state="Failing", allocations=7), Ended(True, "Failing", 7),
    ),
    (
        lambda admin: admin.list_resource_managers(), "ListResourceManagers",
        pb.ListResourceManagersRequest(), pb.ListResourceManagersResponse(), [],
    ),
    (
        lambda admin: admin.list_resource_managers("rm"), "ListResourceManagers",
        pb.ListResourceManagersRequest(rm_id="rm"), pb.ListResourceManagersResponse(resource_managers=[MANAGER]),
        [ResourceManager(
            "rm", "DISCONNECTED", 1, "all streams closed", (OpenStream("node", "g", 4, 5),), True, "racks", "1",
            "queues", {"a": "b"}, {"c": "d"}, "previous", 2, 3, "u", ("events",),
        )],
    ),
    (
        lambda admin: admin.explain_ask("rm", "x", "k", partition="p"), "Explain",
        pb.ExplainRequest(rm_id="rm", partition="p", ask=ASK), EXPLAINED, Explanation(b'{"a":1}', ("One.", "Two.")),
    ),
    (
        lambda admin: admin.explain_application("rm", "x"), "Explain",
        pb.ExplainRequest(rm_id="rm", application_id="x"), EXPLAINED, Explanation(b'{"a":1}', ("One.", "Two.")),
    ),
    (
        lambda admin: admin.explain_queue("rm", "root.a"), "Explain",
        pb.ExplainRequest(rm_id="rm", queue="root.a"), EXPLAINED, Explanation(b'{"a":1}', ("One.", "Two.")),
    ),
    (
        lambda admin: admin.explain_node("rm", "n"), "Explain",
        pb.ExplainRequest(rm_id="rm", node_id="n"), EXPLAINED, Explanation(b'{"a":1}', ("One.", "Two.")),
    ),
    (
        lambda admin: admin.explain_preemption("rm", "x", "k"), "Explain",
        pb.ExplainRequest(rm_id="rm", preemption=ASK), EXPLAINED, Explanation(b'{"a":1}', ("One.", "Two.")),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "method", "sent", "answer", "made"), CALLS)
async def test_each_call(
    gateway: AdminGateway,
    call: Callable[[AdminClient], Awaitable[Any]],
    method: str,
    sent: Any,
    answer: Any,
    made: Any,
) -> None:
    gateway.answers[method] = answer
    async with AdminClient(gateway.address) as admin:
        assert await call(admin) == made
    assert gateway.called == [(method, sent)]


@pytest.mark.parametrize(("call", "method"), [(call, method) for call, method, *_ in CALLS])
async def test_each_refusal(gateway: AdminGateway, call: Callable[[AdminClient], Awaitable[Any]], method: str) -> None:
    async with AdminClient(gateway.address) as admin:
        gateway.answers[method] = (Code.NOT_FOUND, "node 'n' does not exist")
        with pytest.raises(AdminRefused, match="node 'n' does not exist") as refused:
            await call(admin)
        assert refused.value.code is Code.NOT_FOUND
        gateway.answers[method] = (Code.UNAVAILABLE, "try again")
        with pytest.raises(AdminFailed, match="try again"):
            await call(admin)


async def test_a_configuration_that_is_only_looked_at(gateway: AdminGateway) -> None:
    gateway.answers["ValidateConfiguration"] = pb.UpdateConfigurationResponse(accepted=True, changes=["one"])
    async with AdminClient(gateway.address) as admin:
        answer = await admin.validate_configuration("rm", "text", policy_group="g")
    assert (answer.accepted, answer.changes) == (True, ("one",))
    sent = si.UpdateConfigurationRequest(rmID="rm", policyGroup="g", config="text")
    assert gateway.called == [("ValidateConfiguration", sent)]
    assert gateway.asked == []


def test_an_explanation_can_be_read() -> None:
    assert Explanation(b'{"a":[1]}', ()).value == {"a": [1]}


# ---- dumps ----------------------------------------------------------------------------------------------------------


async def test_a_dump_comes_in_its_pieces(gateway: AdminGateway) -> None:
    gateway.answers["DumpState"] = [pb.DumpStateResponse(json=piece) for piece in (b'{"a"', b":1", b"}")]
    async with AdminClient(gateway.address) as admin:
        assert [piece async for piece in admin.dump_state("rm")] == [b'{"a"', b":1", b"}"]
    assert gateway.called == [("DumpState", pb.DumpStateRequest(rm_id="rm"))]


async def test_a_dump_that_breaks_off_raises(gateway: AdminGateway) -> None:
    gateway.answers["DumpState"] = [pb.DumpStateResponse(json=b"{"), (Code.UNAVAILABLE, "the view broke off")]
    got = []
    async with AdminClient(gateway.address) as admin:
        with pytest.raises(AdminFailed, match="the view broke off"):
            got.extend([piece async for piece in admin.dump_state("rm")])
        gateway.answers["DumpState"] = [(Code.NOT_FOUND, "rmID 'rm' is not known")]
        with pytest.raises(AdminRefused, match="is not known"):
            got.extend([piece async for piece in admin.dump_state("rm")])
    assert got == []


async def test_a_caller_may_stop_reading_early(gateway: AdminGateway) -> None:
    gateway.answers["DumpState"] = [pb.DumpStateResponse(json=b"x" * 60_000)] * 100
    async with AdminClient(gateway.address) as admin:
        dump = admin.dump_state("rm")
        assert len(await anext(dump)) == 60_000
        await dump.aclose()
        assert len([piece async for piece in admin.dump_state("rm")]) == 100
