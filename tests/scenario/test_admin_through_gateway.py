"""All calls of muster.v1.Admin, from the call to the RM's streams and the view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from muster_client import application, ask, node, release
from muster_client.admin import ConfigurationAnswer, Drained, Ended
from muster_client.errors import AdminFailed, AdminRefused
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.muster.v1.callbacks_pb2_grpc import CallbacksStub
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from scenario.operated import LARGER, OTHER, QUEUES, RM, World, on_every_log
from waiting import PATIENCE_S

Code = grpc.StatusCode


async def refusal(call: Awaitable[Any]) -> tuple[Code, str]:
    with pytest.raises((AdminRefused, AdminFailed)) as raised:
        await call
    return raised.value.code, raised.value.details


# ---- pause and resume -----------------------------------------------------------------------------------------------


@on_every_log
async def test_a_pause_outlives_the_scheduler_and_the_registration_and_concerns_one_rm(world: World) -> None:
    assert await world.admin.pause(RM, "new racks", timeout_s=PATIENCE_S)
    assert not await world.admin.pause(RM, "again")
    await world.rm.send_asks([ask("k3", "y", {"vcore": 1000})])
    await world.other.send_asks([ask("k3", "y", {"vcore": 1000})])
    await world.until(lambda: "k3" in world.other_told.allocated, "another RM is served")

    async def said() -> bool:
        explained = await world.admin.explain_ask(RM, "y", "k3")
        return explained.value["reason"] == "RM_HELD" and "(new racks)" in explained.sentences[0]

    await world.until(_quiet(said), "the pause is the reason")
    await world.services.restart_scheduler()
    (listed,) = await world.admin.list_resource_managers(RM)
    assert (listed.held, listed.held_reason, listed.state) == (True, "new racks", "RUNNING")
    await world.rm.register()
    await world.rm.send_nodes([node("n/1", {"vcore": 10_000})])
    await world.rm.send_applications([application("y", "root.b")])
    await world.until(lambda: world.told.accepted.count("y") == 2, "the RM is taken in again")
    await world.rm.send_asks([ask("k4", "y", {"vcore": 1000})])

    async def waits() -> bool:
        return (await world.admin.explain_ask(RM, "y", "k4")).value["reason"] == "RM_HELD"

    await world.until(_quiet(waits), "it is still paused")
    assert world.told.allocated == ["k1"]
    assert await world.admin.resume(RM)
    await world.until(lambda: "k4" in world.told.allocated, "decided again")
    assert not await world.admin.resume(RM)
    assert {opened for _, opened in world.other_told.streams} == {True}
    assert world.other.missing_sequences() == []


async def test_only_a_registered_rm_can_be_paused(world: World) -> None:
    for call in (world.admin.pause("nobody"), world.admin.resume("nobody")):
        code, details = await refusal(call)
        assert (code, details) == (
            Code.FAILED_PRECONDITION,
            "rmID 'nobody' is not registered: call RegisterResourceManager first",
        )


# ---- nodes ----------------------------------------------------------------------------------------------------------


async def test_a_node_is_drained_and_let_in_again_without_a_word_to_the_rm(world: World) -> None:
    heard = list(world.told.nodes)
    assert await world.admin.drain_node(RM, "n/1") == Drained(True, 1)
    assert await world.admin.drain_node(RM, "n/1", partition="default") == Drained(False, 1)
    await world.rm.send_asks([ask("k3", "y", {"vcore": 1000})])

    async def drained() -> bool:
        explained = await world.admin.explain_node(RM, "n/1")
        return not explained.value["schedulable"] and explained.sentences[0].startswith("It is drained by an operator:")

    await world.until(_quiet(drained), "the node says so")
    assert world.told.allocated == ["k1"]
    assert await world.admin.drain_node(RM, "n/1", schedulable=True) == Drained(True, 1)
    await world.until(lambda: "k3" in world.told.allocated, "it takes allocations again")
    assert world.told.nodes == heard
    assert world.rm.missing_sequences() == []


async def test_a_missing_node_cannot_be_drained(world: World) -> None:
    code, details = await refusal(world.admin.drain_node(RM, "n2"))
    assert (code, details) == (Code.NOT_FOUND, "node 'n2' does not exist in partition default")
    code, details = await refusal(world.admin.drain_node(RM, "n/1", partition="gpu"))
    assert (code, details) == (Code.NOT_FOUND, "partition 'gpu' does not exist")


# ---- applications ---------------------------------------------------------------------------------------------------


async def test_an_ended_application_asks_its_rm_to_end_all_and_says_why(world: World) -> None:
    code, details = await refusal(world.admin.end_application(RM, "x"))
    assert (code, "extraConfig[muster.applications.end] = true" in details) == (Code.FAILED_PRECONDITION, True)
    await world.admin.update_configuration(RM, QUEUES, extra_config={"muster.applications.end": "true"})
    await world.rm.send_asks([ask("large", "x", {"vcore": 90_000})])

    async def pending() -> bool:
        return bool((await world.admin.explain_ask(RM, "x", "large")).sentences)

    await world.until(_quiet(pending), "the ask is pending")
    assert await world.admin.end_application(RM, "x", reason="wrong input") == Ended(True, "Failing", 1)
    assert await world.admin.end_application(RM, "x", partition="default") == Ended(False, "Failing", 1)

    async def says(sentence: str) -> bool:
        return (await world.admin.explain_application(RM, "x")).sentences[0].startswith(sentence)

    await world.until(
        _quiet(lambda: says("It is failing (ended by an operator: wrong input). It has 1 allocation, which is being")),
        "it says why",
    )
    await world.services.restart_scheduler()
    await world.rm.send_releases([release("x", "k1", termination_type=si.TIMEOUT)])
    await world.until(_quiet(lambda: says("It failed")), "it failed when its RM had ended all")
    code, details = await refusal(world.admin.end_application(RM, "x"))
    assert (code, details) == (Code.NOT_FOUND, "application 'x' does not exist in partition default, or has ended")


# ---- configurations -------------------------------------------------------------------------------------------------


async def test_a_validated_configuration_is_not_applied(world: World) -> None:
    wanted = await world.admin.validate_configuration(RM, LARGER)
    assert (wanted.accepted, wanted.changes) == (True, ("[default] root.a resources.max.vcore: 3 -> 5",))
    assert await world.admin.validate_configuration(RM, LARGER) == wanted
    refused = await world.admin.validate_configuration(RM, LARGER.replace("vcore: 5", "vcore: lots"))
    assert not refused.accepted
    assert [(each.severity, each.line) for each in refused.problems if each.severity == "error"] == [("error", 9)]
    assert not (await world.admin.validate_configuration(RM, QUEUES.replace("name: default", "name: x"))).accepted
    assert world.told.allocated == ["k1"]
    assert await world.admin.update_configuration(RM, LARGER) == wanted
    await world.until(lambda: "k/2" in world.told.allocated, "now it is applied")
    again = await world.admin.validate_configuration(RM, LARGER)
    assert again == ConfigurationAnswer(True, wanted.problems, ())


# ---- looking --------------------------------------------------------------------------------------------------------


async def test_rms_are_listed_with_their_streams_and_registrations(world: World) -> None:
    async def listed() -> bool:
        found = await world.admin.list_resource_managers()
        return [each.rm_id for each in found] == sorted([RM, OTHER]) and all(
            [stream.kind for stream in each.streams] == ["allocation", "application", "node"]
            and all(stream.sent_sequence for stream in each.streams)
            for each in found
        )

    await world.until(_quiet(listed), "both with three streams, on which something was sent")
    (found,) = await world.admin.list_resource_managers(RM)
    assert (found.rm_id, found.state, found.held) == (RM, "RUNNING", False)
    assert {stream.gateway_id for stream in found.streams} == {world.gateway.gateway_id}
    assert (found.registrations, bool(found.registered_ns), bool(found.instance_uuid)) == (1, True, True)
    assert found.extra_config == {"db.password": "***", "log.level": "DEBUG"}
    code, _ = await refusal(world.admin.list_resource_managers("nobody"))
    assert code is Code.FAILED_PRECONDITION


async def test_each_thing_is_explained_and_what_is_not_there_is_not_found(world: World) -> None:
    admin = world.admin

    async def waits() -> bool:
        return (await admin.explain_ask(RM, "x", "k/2")).value["reason"] == "QUEUE_MAX"

    await world.until(_quiet(waits), "the ask waits for its queue")
    explained = await admin.explain_ask(RM, "x", "k/2")
    assert explained.sentences[0].startswith(
        "Queue root.a uses 2 cores of its max of 3 cores; 2 cores more would exceed it."
    )
    application_ = await admin.explain_application(RM, "x")
    assert application_.value["pending"] == 1
    assert application_.sentences[1] == f"k/2: {explained.sentences[0]}"
    queue = await admin.explain_queue(RM, "root.a")
    assert (queue.value["queue"], queue.value["asks"]) == ("root.a", {"QUEUE_MAX": 1})
    node_ = await admin.explain_node(RM, "n/1", partition="default")
    assert node_.value["waiting"]["reasons"] == {"QUEUE_MAX": 1}
    for call, said in (
        (admin.explain_ask(RM, "x", "k1"), "ask 'x' 'k1' in partition 'default': Ask not found"),
        (admin.explain_ask(RM, "nope", "k1"), "ask 'nope' 'k1' in partition 'default': Application not found"),
        (admin.explain_application(RM, "nope"), "application_id 'nope' in partition 'default': Application not found"),
        (admin.explain_queue(RM, "root.nope"), "queue 'root.nope' in partition 'default': Queue not found"),
        (admin.explain_node(RM, "n2"), "node_id 'n2' in partition 'default': Node not found"),
        (admin.explain_node(RM, "n/1", partition="gpu"), "node_id 'n/1' in partition 'gpu': Partition not found"),
        (admin.explain_preemption(RM, "x", "k1"), "preemption 'x' 'k1' in partition 'default': Allocation was not"),
    ):
        code, details = await refusal(call)
        assert code is Code.NOT_FOUND
        assert details.startswith(said)
    code, details = await refusal(admin.explain_queue(RM, "root..a"))
    assert code is Code.INVALID_ARGUMENT
    assert details.startswith("queue: Invalid queue name 'root..a'")
    code, _ = await refusal(admin.explain_queue("nobody", "root.a"))
    assert code is Code.FAILED_PRECONDITION


async def test_the_dump_is_one_text_with_everything_but_secrets(world: World) -> None:
    async def whole() -> bool:
        found, _ = await world.dump()
        return len(found["applications"]) == 2 and bool(found["nodes"][0]["nodesInfo"])

    await world.until(_quiet(whole), "the view has folded it")
    found, pieces = await world.dump()
    assert all(0 < len(piece) <= 65536 for piece in pieces)
    assert b"hunter2" not in b"".join(pieces)
    manager = found["resourceManager"]
    assert (manager["rm_id"], manager["state"], manager["registrations"]) == (RM, "RUNNING", 1)
    assert manager["extra_config"] == {"db.password": "***", "log.level": "DEBUG"}
    assert [each["name"] for each in found["partitions"]] == ["default"]
    assert found["config"] == QUEUES.replace("hunter2", "***")
    (root,) = found["queues"]
    assert [each["queuename"] for each in root["children"]] == ["root.a", "root.b"]
    assert sorted(each["applicationID"] for each in found["applications"]) == ["x", "y"]
    (nodes,) = found["nodes"]
    assert (nodes["partitionName"], [each["nodeID"] for each in nodes["nodesInfo"]]) == ("default", ["n/1"])
    (rules,) = found["placementRules"]
    assert rules["partition"] == "default"
    assert rules["rules"]
    assert found["rmDiagnostics"] == {"empty": "Resource Manager did not register callback"}
    other, _ = await world.dump(OTHER)
    assert other["resourceManager"]["rm_id"] == OTHER
    with pytest.raises(AdminRefused) as raised:
        await world.dump("nobody")
    assert (raised.value.code, raised.value.details) == (Code.NOT_FOUND, "rmID 'nobody' is not known")


async def test_the_rm_adds_its_own_words_to_the_dump(world: World) -> None:
    async with grpc.aio.insecure_channel(world.address) as channel:
        call = CallbacksStub(channel).Connect(metadata=(("muster-rm-id", RM),))
        hello = callbacks_pb2.Hello(rm_id=RM, state_dump=True)
        await call.write(callbacks_pb2.FromResourceManager(hello=hello))
        assert (await asyncio.wait_for(call.read(), PATIENCE_S)).HasField("welcome")

        async def wanted() -> bool:
            (found,) = await world.admin.list_resource_managers(RM)
            return found.callbacks == ("state_dump",)

        await world.until(_quiet(wanted), "the scheduler knows the stream")
        answers = [{"json": '{"cache":{"nodes":1,"token":"hunter2"}}'}, {"error": "busy"}, {"json": "{"}]
        wanted_words = [
            {"cache": {"nodes": 1, "token": "***"}},
            {"error": "the resource manager says: busy"},
            {"error": "the resource manager's dump of 1 characters is not JSON"},
        ]
        for answer, words in zip(answers, wanted_words, strict=True):
            dump = asyncio.create_task(world.dump())
            message = await asyncio.wait_for(call.read(), PATIENCE_S)
            (question,) = message.state_dumps
            said = callbacks_pb2.StateDumpAnswer(id=question.id, **answer)
            await call.write(callbacks_pb2.FromResourceManager(state_dumps=[said]))
            found, _ = await asyncio.wait_for(dump, PATIENCE_S)
            assert found["rmDiagnostics"] == words
        call.cancel()


async def test_a_stopped_rm_is_looked_at_and_not_commanded(world: World) -> None:
    async with grpc.aio.insecure_channel(world.address) as channel:
        leaving = SchedulerStub(channel).UpdateNode(metadata=(("muster-rm-id", OTHER), ("muster-shutdown", "true")))
        assert await asyncio.wait_for(leaving.read(), PATIENCE_S) is grpc.aio.EOF

    async def stopped() -> bool:
        (found,) = await world.admin.list_resource_managers(OTHER)
        return found.state == "STOPPED"

    await world.until(_quiet(stopped), "it is stopped")
    for call in (
        world.admin.pause(OTHER),
        world.admin.resume(OTHER),
        world.admin.drain_node(OTHER, "n/1"),
        world.admin.end_application(OTHER, "y"),
        world.admin.validate_configuration(OTHER, QUEUES),
    ):
        code, details = await refusal(call)
        assert code is Code.FAILED_PRECONDITION
        assert "is stopped" in details
    assert (await world.admin.explain_queue(OTHER, "root.a")).value["queue"] == "root.a"
    found, _ = await world.dump(OTHER)
    assert found["resourceManager"]["state"] == "STOPPED"
    assert found["rmDiagnostics"] == {"empty": "Resource Manager did not register callback"}


def _quiet(condition: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    """Treats NOT_FOUND as false: the view follows the log and may not know the object yet."""

    async def holds() -> bool:
        try:
            return await condition()
        except (AdminRefused, AdminFailed):
            return False

    return holds
