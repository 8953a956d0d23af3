"""Absent resource managers: which RM is meant, how each interface shows it, and how an operator forgets one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from e2e.gang_rig import Muster, P, muster_here
from muster_client import Callbacks, EventsClient, Place, RmClient, application, ask, node
from muster_client.admin import AdminClient
from muster_client.errors import AdminRefused
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from muster_replay.local_process import muster_command
from waiting import eventually

PATIENCE_S = 60.0
# A test of many waits and command lines; each of these may take long on a busy machine.
WHOLE_S = 240.0
pytestmark = pytest.mark.timeout(600)
SETTINGS = ["log.partitions=2", "gateway.lease_ttl_s=0.6", "publisher.request_push_interval_s=0.1"]
# Paths that mean one RM each, without which YuniKorn's readers do not work.
OF_ONE_RM = (
    "/ws/v1/clusters",
    "/ws/v1/partitions",
    f"{P}/queues",
    f"{P}/nodes",
    "/ws/v1/config",
    "/ws/v1/events/batch",
    "/ws/v1/usage?kind=queue",
    "/ws/v1/explain/summary",
)


@asynccontextmanager
async def an_rm(muster: Muster, rm_id: str, vcore: int = 8_000) -> AsyncIterator[RmClient]:
    """An RM with a running allocation, which shuts down at the end."""
    running = asyncio.Event()
    callbacks = Callbacks(on_allocated=lambda _: running.set())
    async with RmClient(muster.gateway, rm_id, callbacks=callbacks) as rm:
        await rm.register()
        await rm.send_nodes([node(f"{rm_id}-n1", {"vcore": vcore})])
        await rm.send_applications([application("app", "root.default")])
        await rm.applications_answered()
        await rm.send_asks([ask("k1", "app", {"vcore": 1_000})])
        await running.wait()
        yield rm


async def shut_down(muster: Muster, rm_id: str) -> None:
    async with grpc.aio.insecure_channel(muster.gateway) as channel:
        metadata = (("muster-rm-id", rm_id), ("muster-shutdown", "true"))
        call = SchedulerStub(channel).UpdateNode(metadata=metadata)
        await call.done_writing()
        await call.code()
    await in_state(muster, rm_id, "STOPPED")


async def in_state(muster: Muster, rm_id: str, state: str) -> None:
    async def is_so() -> bool:
        found = {each["rmID"]: each for each in await get(muster, "/ws/v1/resource-managers")}
        return rm_id in found and found[rm_id]["life"] == state

    await eventually(is_so, f"{rm_id} is {state}")


async def ask_http(muster: Muster, path: str, **query: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=muster.http, timeout=PATIENCE_S) as http:
        return await http.get(path, params=query or None)


async def get(muster: Muster, path: str, **query: str) -> Any:
    answer = await ask_http(muster, path, **query)
    assert answer.status_code == 200, (path, answer.status_code, answer.text)
    return answer.json()


async def muster_cli(muster: Muster, *arguments: str) -> tuple[int, str]:
    command = muster_command(*arguments, "--gateway", muster.gateway)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def whose(muster: Muster) -> dict[str, Any]:
    """For each path without an RM: its status, and the RM of the answer if it shows one."""
    found: dict[str, Any] = {path: (await ask_http(muster, path)).status_code for path in OF_ONE_RM}
    answer = await ask_http(muster, f"{P}/nodes")
    found["node"] = answer.json()[0]["nodeID"] if answer.status_code == 200 else ""
    return found


def all_of(rm_id: str) -> dict[str, Any]:
    return {**dict.fromkeys(OF_ONE_RM, 200), "node": f"{rm_id}-n1"}


async def test_rest_without_rm_means_the_only_one_that_is_not_stopped(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(WHOLE_S),
        muster_here(tmp_path, SETTINGS) as muster,
        an_rm(muster, "old"),
        an_rm(muster, "new") as new,
    ):

        async def several() -> bool:
            return set((await whose(muster)).values()) == {400, ""}

        await eventually(several, "two that live: each is named, or nobody is meant")
        await shut_down(muster, "old")
        await eventually(lambda: _same(muster, "new"), "one that is stopped does not count")
        assert (await get(muster, f"{P}/nodes", rm="old"))[0]["nodeID"] == "old-n1", "a named RM is shown"
        async with EventsClient(muster.gateway) as events:
            assert (await events.batch(place=Place(id=0))).rm_id == "new"
        assert (await muster_cli(muster, "admin", "rms"))[0] == 0
        code, said = await muster_cli(muster, "admin", "drain", "new-n1")
        assert (code, "is drained" in said) == (0, True), said
        # One that is away, but may be back at any moment, counts.
        await new.close()
        await in_state(muster, "new", "DISCONNECTED")
        assert await whose(muster) == all_of("new")
        async with an_rm(muster, "third"):
            assert (await ask_http(muster, "/ws/v1/partitions")).status_code == 400


async def _same(muster: Muster, rm_id: str) -> bool:
    return await whose(muster) == all_of(rm_id)


async def test_default_rm_selects_one_of_several_rms(tmp_path: Path) -> None:
    settings = [*SETTINGS, "gateway.default_rm=b/ü"]
    async with asyncio.timeout(WHOLE_S), muster_here(tmp_path, settings) as muster, an_rm(muster, "a"):
        assert (await whose(muster))["node"] == "a-n1", "the only RM is the default"
        async with RmClient(muster.gateway, "b2") as other:
            await other.register()
            assert (await ask_http(muster, "/ws/v1/partitions")).status_code == 400, "the default RM does not exist"
    settings[-1] = "gateway.default_rm=b"
    async with (
        asyncio.timeout(WHOLE_S),
        muster_here(tmp_path / "2", settings) as muster,
        an_rm(muster, "a"),
        an_rm(muster, "b"),
    ):
        await eventually(lambda: _same(muster, "b"), "the default is meant, of events and usage too")
        found = {each["rmID"]: each["default"] for each in await get(muster, "/ws/v1/resource-managers")}
        assert found == {"a": False, "b": True}
        async with httpx.AsyncClient(base_url=muster.http, timeout=PATIENCE_S) as http:
            said = await http.get(f"{P}/nodes", headers={"X-Muster-Default-Rm": "a"})
            assert said.json()[0]["nodeID"] == "b-n1", "only the parameter rm names an RM"
        code, said_there = await muster_cli(muster, "admin", "drain", "b-n1")
        assert (code, "is drained" in said_there) == (0, True), said_there


async def test_an_rm_that_is_forgotten_is_nowhere_and_its_history_stays(tmp_path: Path) -> None:
    async with asyncio.timeout(WHOLE_S):
        async with (
            muster_here(tmp_path, SETTINGS) as muster,
            AdminClient(muster.gateway) as admin,
            an_rm(muster, "stays"),
            an_rm(muster, "goes"),
        ):
            code, said = await muster_cli(muster, "admin", "forget", "goes")
            assert (code, "is RUNNING" in said, "STOPPED" in said) == (1, True, True), said
            await shut_down(muster, "goes")
            code, said = await muster_cli(muster, "admin", "forget", "goes")
            assert (code, said) == (0, "goes is forgotten, 1 allocation ended with it.\n")
            assert (await muster_cli(muster, "admin", "forget", "goes")) == (0, "goes is forgotten already.\n")
            code, said = await muster_cli(muster, "admin", "forget", "nobody")
            assert (code, "NOT_FOUND" in said) == (2, True), said
            await _is_nowhere(muster, admin)
            last_id = await _adds_up(muster)
        # a restart of everything does not bring it back
        async with muster_here(tmp_path, SETTINGS) as muster, AdminClient(muster.gateway) as admin:
            await _is_nowhere(muster, admin)
            assert await _adds_up(muster) == last_id
            # the same id again: new, and no event's id is used twice
            async with an_rm(muster, "goes"), EventsClient(muster.gateway) as events:

                async def two_more() -> list[int | None]:
                    found = await events.batch("goes", place=Place(id=last_id + 1))
                    ids = [each.id for each in found.events][:2]
                    return ids if len(ids) == 2 else []

                assert await eventually(two_more, "two more events") == [last_id + 1, last_id + 2]
                assert len(await get(muster, f"{P}/nodes", rm="goes")) == 1
                assert {each.rm_id for each in await admin.list_resource_managers()} == {"goes", "stays"}


async def _is_nowhere(muster: Muster, admin: AdminClient) -> None:
    assert [each.rm_id for each in await admin.list_resource_managers()] == ["stays"]

    async def gone() -> bool:
        return [each["rmID"] for each in await get(muster, "/ws/v1/resource-managers")] == ["stays"]

    await eventually(gone, "the view has dropped it")
    await eventually(lambda: _same(muster, "stays"), "it does not count where none is named")
    assert (await ask_http(muster, "/ws/v1/partitions", rm="goes")).status_code == 404
    for path in ("/metrics", "/ws/v1/metrics"):
        text = (await ask_http(muster, path)).text
        mine = [line for line in text.splitlines() if 'rm="goes"' in line]
        assert [line for line in mine if not line.startswith("muster_publisher_")] == []


async def _adds_up(muster: Muster) -> int:
    """All that the RM's events added they took away; gives the last one's id. (The publisher follows the log.)"""

    async def last_id() -> tuple[int] | None:
        found = await events.batch("goes", place=Place(id=0), count=10_000)
        sums: Counter[tuple[str, str]] = Counter()
        for each in found.events:
            kind, change, detail = each.names
            if detail in ("APP_ALLOC", "ALLOC_CANCEL", "NODE_ALLOC"):
                sums[kind, each.record.objectID] += {"ADD": 1, "REMOVE": -1}[change]
        ended = [each for each in found.events if each.names == ("NODE", "REMOVE", "NODE_DECOMISSION")]
        if not ended:
            return None
        assert sums, "something ran"
        assert set(sums.values()) == {0}, sums
        return (max(each.id or 0 for each in found.events),)

    async with EventsClient(muster.gateway) as events:
        (found,) = await eventually(last_id, "the end of the RM's node is an event")
    return int(found)


async def test_a_gateway_that_dies_between_request_and_answer_leaves_nothing_half_forgotten(tmp_path: Path) -> None:
    async with asyncio.timeout(WHOLE_S):
        async with muster_here(tmp_path, SETTINGS) as muster, an_rm(muster, "rm"):
            await shut_down(muster, "rm")
            gateway = muster.services["gateway"]
            forgotten = gateway._admin._session_manager.complete_forget

            died = asyncio.Event()

            async def dies(*_: object) -> None:
                died.set()
                raise asyncio.CancelledError

            gateway._admin._session_manager.complete_forget = (
                dies  # the answer is there, the session does not hear of it
            )
            async with AdminClient(muster.gateway) as admin:
                forgetting = asyncio.create_task(admin.forget("rm", timeout_s=WHOLE_S))
                await died.wait()
                await asyncio.wait({forgetting}, timeout=2.0)  # (no answer comes)
                forgetting.cancel()
                with pytest.raises((Exception, asyncio.CancelledError), match=r".*"):
                    await forgetting
            assert (await gateway.sessions.get("rm")).state.name == "STOPPED"
            gateway._admin._session_manager.complete_forget = forgotten
        async with muster_here(tmp_path, SETTINGS) as muster, AdminClient(muster.gateway) as admin:

            async def nobody() -> bool:
                return await admin.list_resource_managers() == []

            await eventually(nobody, "a sweep has asked the scheduler what became of it")
            assert not (await admin.forget("rm")).changed


async def test_a_live_rm_is_forgotten_by_force_and_comes_back_as_new(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(WHOLE_S),
        muster_here(tmp_path, SETTINGS) as muster,
        an_rm(muster, "rm"),
        AdminClient(muster.gateway) as admin,
    ):
        with pytest.raises(AdminRefused) as refused:
            await admin.forget("rm")
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        assert (await admin.forget("rm", force=True)).allocations == 1
        assert await admin.list_resource_managers() == []

        async def again() -> bool:
            listed = await admin.list_resource_managers()
            return [each.rm_id for each in listed] == ["rm"]

        async with RmClient(muster.gateway, "rm") as fresh:
            await fresh.register()
            await eventually(again, "it registered again")
            assert await get(muster, f"{P}/nodes", rm="rm") == []
            await fresh.send_nodes([node("n9", {"vcore": 1_000})])

            async def one_node() -> bool:
                return len(await get(muster, f"{P}/nodes", rm="rm")) == 1

            await eventually(one_node, "its streams work")


async def test_an_absent_rm_says_so_wherever_its_figures_are_shown(tmp_path: Path) -> None:
    settings = [*SETTINGS, "gateway.pause_timeout_s=600"]
    async with asyncio.timeout(WHOLE_S), muster_here(tmp_path, settings) as muster:
        async with an_rm(muster, "rm"), AdminClient(muster.gateway) as admin:
            answer = await ask_http(muster, "/ws/v1/partitions")
            assert answer.headers["x-muster-rm-state"] == "RUNNING"
            assert await admin.pause("rm", "racks")
            said = await ask_http(muster, "/ws/v1/partitions")
            assert said.headers["x-muster-rm-state"] == "RUNNING, paused"
        await in_state(muster, "rm", "DISCONNECTED")
        muster.clock.forward(120)
        assert (await ask_http(muster, f"{P}/queues")).headers["x-muster-rm-state"] == "DISCONNECTED, paused"
        # a pause that is lifted is no RM that is back
        code, told = await muster_cli(muster, "admin", "resume")
        assert code == 0
        assert "resumed" not in told
        assert told.startswith("rm is no longer paused, but DISCONNECTED. All its streams were lost 2 min ago.")
        await _is_told(muster, "DISCONNECTED", "Start the resource manager")
        muster.clock.forward(600)
        await in_state(muster, "rm", "STOPPED")
        await _is_told(muster, "STOPPED", "`muster admin forget rm`")


async def _is_told(muster: Muster, state: str, what_to_do: str) -> None:
    """By REST, metrics, the CLI and top: the same word, and what to do."""
    assert (await ask_http(muster, "/ws/v1/partitions")).headers["x-muster-rm-state"] == state
    (rm,) = await get(muster, "/ws/v1/resource-managers")
    assert rm["life"] == state
    assert rm["lifeSince"] > 0
    assert what_to_do in rm["description"]
    summary = await get(muster, "/ws/v1/explain/summary")
    assert summary["life"] == state
    assert what_to_do in summary["description"]
    code, said = await muster_cli(muster, "admin", "rms")
    assert (code, state in said, what_to_do in " ".join(said.split())) == (0, True, True), said
    code, said = await muster_cli(muster, "top", "--once")
    assert (code, state in said, what_to_do in " ".join(said.split())) == (0, True, True), said
    snapshot = await get(muster, "/ws/v1/metrics/snapshot")
    assert snapshot["state"] == state
    assert what_to_do in snapshot["description"]
    lines = (await ask_http(muster, "/metrics")).text.splitlines()
    states = {line.split('state="')[1].split('"')[0]: line[-3:] for line in lines if "muster_rm_state{" in line}
    assert [name for name, value in states.items() if value == "1.0"] == [state], states
