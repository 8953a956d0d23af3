"""Quotas of two tenants of one `muster up`: one is at its limits, the other goes on; over kill -9 and a new policy."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from muster_client import AdminClient, Callbacks, RmClient, application, ask, node
from muster_client.access import Access
from muster_client.callbacks import Rejection
from muster_client.errors import AdminFailed, AdminRefused, RegistrationRejected
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from up import Up
from up import up as up_with

QUEUES = """
partitions:
  - name: default
    placementrules: [{name: provided, create: true}]
    queues: [{name: root, submitacl: '*', queues: [{name: a}, {name: users, parent: true}]}]
"""
RULES = """
[[rule]]
identities = ["red"]
act = ["rm-red*"]

[[rule]]
identities = ["blue"]
act = ["rm-blue"]

[[rule]]
identities = ["ops"]
role = "admin"
"""
RED = """
[[quota]]
identities = ["red"]
identity_resource_managers = 1
nodes = 2
queues = 4
applications = 3
asks = 3
allocations = 4
users = 2
text_bytes = 400
"""
KINDS = ("nodes", "queues", "applications", "asks", "allocations", "users", "text_bytes")


def access(name: str) -> Access:
    return Access(token=f"{name}-token-0123456789") if name else Access()


@dataclass
class Tenant:
    """An RM, and all its answers.

    :ivar answers: by id of a node, application or ask: "" for accepted or allocated, else the reason.
    """

    rm: RmClient
    answers: dict[str, str] = field(default_factory=dict)

    async def answered(self, *ids: str) -> list[str]:
        async with asyncio.timeout(60):
            while not all(each in self.answers for each in ids):  # noqa: ASYNC110 - answers come by callbacks
                await asyncio.sleep(0.02)
        return [self.answers.pop(each) for each in ids]

    async def nodes(self, *ids: str, **attributes: str) -> list[str]:
        items = [node(each, {"vcore": 1_000}) for each in ids]
        for item in items:
            item.attributes.update(attributes)
        await self.rm.send_nodes(items)
        return await self.answered(*ids)

    async def applications(self, *ids: str, queue: str = "root.a", user: str = "ann") -> list[str]:
        await self.rm.send_applications([application(each, queue, user=user) for each in ids])
        return await self.answered(*ids)

    async def asks(self, *ids: str, vcore: int = 500, tags: dict[str, str] | None = None) -> list[str]:
        """Small ones, which get answers."""
        await self.rm.send_asks([ask(each, "one", {"vcore": vcore}, tags=tags or {}) for each in ids])
        return await self.answered(*ids)


@asynccontextmanager
async def working(up: Up, name: str, rm_id: str, *, anew: bool = True) -> AsyncIterator[Tenant]:
    answers: dict[str, str] = {}

    def applied(accepted: Any, rejected: Any, _: Any) -> None:
        answers.update({each.applicationID: "" for each in accepted})
        answers.update({each.applicationID: each.reason for each in rejected})

    def nodes_answered(accepted: Any, rejected: Any) -> None:
        answers.update({each.nodeID: "" for each in accepted})
        answers.update({each.nodeID: each.reason for each in rejected})

    def refused(rejections: Any) -> None:
        each: Rejection
        for each in rejections:
            answers[each.allocation_key] = each.reason

    def allocated(new: Any) -> None:
        answers.update({each.allocationKey: "" for each in new})

    callbacks = Callbacks(
        on_application=applied, on_node=nodes_answered, on_rejected_allocation=refused, on_allocated=allocated
    )
    async with RmClient(up.grpc, rm_id, config=QUEUES, access=access(name), callbacks=callbacks) as rm:
        await (rm.register() if anew else rm.attach())
        yield Tenant(rm, answers)


@asynccontextmanager
async def muster(tmp_path: Path, rules: str) -> AsyncIterator[tuple[Up, Path]]:
    policy = tmp_path / "policy.toml"
    _write(policy, rules)
    tokens = json.dumps({name: {"role": "admin", "token": access(name).token} for name in ("red", "blue", "ops")})
    up = Up(
        tmp_path,
        *("--set", f"gateway.tokens={tokens}"),
        *("--set", f"gateway.policy_file={policy}"),
        *("--set", "gateway.reload_interval_s=0.1"),
    )
    try:
        await up.start()
        yield up, policy
    finally:
        up.process.kill()


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def over(kind: str, wanted: int, limit: int) -> str:
    return f"quota {kind}: {wanted} with this one, expected at most {limit} for this resource manager"


async def test_an_rm_at_its_quotas_stops_and_the_other_goes_on(tmp_path: Path) -> None:
    async with muster(tmp_path, RULES + RED) as (up, policy):
        await _at_its_quotas(up, policy)


async def _at_its_quotas(up: Up, policy: Path) -> None:
    async with working(up, "red", "rm-red") as red, working(up, "blue", "rm-blue") as blue:
        for tenant, limited in ((red, True), (blue, False)):
            await _fill(tenant, limited=limited)
        await _more_rms(up)
        await _shown(up)
    up.process.kill()
    await up.start()
    async with working(up, "red", "rm-red", anew=False) as red, working(up, "blue", "rm-blue", anew=False) as blue:
        assert await red.nodes("n4") == [f"node n4: {over('nodes', 3, 2)}"]
        assert await blue.nodes("n4") == [""]
        await _shown(up)
        # released: there is room again
        await red.rm.send_nodes([si.NodeInfo(nodeID="n2", action=si.NodeInfo.DECOMISSION)])
        assert await red.answered("n2") == [""]
        assert await red.nodes("n4") == [""]
        # another policy: at once, without a new registration
        _write(policy, RULES + RED.replace("nodes = 2", "nodes = 3"))
        async with asyncio.timeout(60):
            while await red.nodes("n5") != [""]:  # noqa: ASYNC110 - the file is read some time later
                await asyncio.sleep(0.05)
        assert await red.nodes("n6") == [f"node n6: {over('nodes', 4, 3)}"]
    assert "Traceback" not in up.process.log_file.read_text()


async def _fill(tenant: Tenant, *, limited: bool) -> None:
    """Reaches each quota, and goes one beyond it."""

    def expected(story: str) -> list[str]:
        return [story if limited else ""]

    assert await tenant.nodes("n1", "n2") == ["", ""]
    assert await tenant.nodes("n3") == expected(f"node n3: {over('nodes', 3, 2)}")
    assert await tenant.applications("one") == [""]
    assert await tenant.applications("two", queue="root.users.x", user="bob") == [""]
    assert await tenant.applications("queue", queue="root.users.y", user="bob") == expected(
        f"failed to place application queue: queue 'root.users.y': {over('queues', 5, 4)}"
    )
    assert await tenant.applications("user", user="cat") == expected(f"application user: {over('users', 3, 2)}")
    assert await tenant.applications("three") == [""]
    assert await tenant.applications("four") == expected(f"application four: {over('applications', 4, 3)}")
    assert await tenant.asks("a1", "a2") == ["", ""]
    (long,) = await tenant.asks("long", tags={"k": "v" * 400})
    assert ("quota text_bytes: " in long) is limited, long
    large = ["w1", "w2"]
    await tenant.rm.send_asks([ask(each, "one", {"vcore": 100_000}) for each in large])
    assert await tenant.asks("a3") == expected(f"allocation a3: {over('allocations', 5, 4)}")
    release = si.AllocationRelease(partitionName="default", applicationID="one", allocationKey="a1")
    await tenant.rm.send_releases([release])
    await tenant.rm.send_asks([ask("w3", "one", {"vcore": 100_000})])
    assert await tenant.asks("a4", "a5", vcore=1) == expected(f"allocation a4: {over('asks', 4, 3)}") + expected(
        f"allocation a5: {over('asks', 4, 3)}"
    )


async def _more_rms(up: Up) -> None:
    async with RmClient(up.grpc, "rm-red-2", access=access("red")) as another:
        with pytest.raises(RegistrationRejected) as refused:
            await another.register()
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        expected = "quota resource_managers: 2 resource managers of identity red with this one, expected at most 1"
        assert expected in refused.value.details


async def _shown(up: Up) -> None:
    """Each quota that was reached has one event, is in the RM's list, and is in health."""
    async with aiohttp.ClientSession(up.http, headers=access("red").headers()) as client, asyncio.timeout(60):
        found: list[str] = []
        while len(found) < len(KINDS):
            async with client.get("/ws/v1/events/batch?rm=rm-red&count=10000") as answer:
                # (No answer: the publisher has not heard of the RM yet.)
                records = (await answer.json())["EventRecords"] or [] if answer.status == 200 else []
            found = sorted(
                each["message"].split()[1] for each in records if each.get("message", "").startswith("quota ")
            )
            await asyncio.sleep(0.05)
        assert found == sorted(KINDS)
        reached: set[str] = set()
        while reached != set(KINDS):  # (the view may be behind the events)
            async with client.get("/ws/v1/resource-managers") as answer:
                listed = await answer.json() if answer.status == 200 else []
            for shown in listed:
                assert shown["identity"] == "red"
                reached = {each["name"] for each in shown["quotas"] if each["reached"]}
            await asyncio.sleep(0.05)
        said = ""
        while "rm rm-red: quota nodes reached: 2 of 2" not in said:
            async with client.get("/health", headers=access("ops").headers()) as answer:
                said = await answer.text()
                assert answer.status == 200
            await asyncio.sleep(0.05)
    async with AdminClient(up.grpc, access=access("red")) as admin:
        (listed,) = await admin.list_resource_managers()
    by_name = {each.name: (each.used, each.limit, each.reached) for each in listed.quotas}
    assert by_name["nodes"] == (2, 2, True)
    assert by_name["queues"] == (4, 4, True)


async def test_a_fast_rm_is_slowed_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    slow = '[[quota]]\nidentities = ["red"]\nrequests_per_s = 20\n'
    async with muster(tmp_path, RULES + slow) as (up, policy):
        async with working(up, "red", "rm-red") as red, working(up, "blue", "rm-blue") as blue:
            await _fast(up, red, blue)
        _write(policy, RULES + slow + "identity_requests_per_s = 0.5\n")  # five calls at once
        async with AdminClient(up.grpc, access=access("red")) as admin:
            with pytest.raises((AdminFailed, AdminRefused)) as refused:
                await _for_ever(admin)
            assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "identity 'red' sends more than 0.5 requests" in refused.value.details
        async with aiohttp.ClientSession(up.http, headers=access("red").headers()) as client:
            status, said, after_s = 200, "", ""
            while status == 200:  # it may take some more
                async with client.get("/ws/v1/partitions") as answer:
                    status, said, after_s = answer.status, await answer.text(), answer.headers.get("Retry-After", "")
            assert (status, int(after_s) > 0) == (429, True)
            assert "identity 'red' sends more than 0.5 requests" in said
            async with client.get("/ws/v1/partitions", headers=access("blue").headers()) as answer:
                assert answer.status == 200
        async with AdminClient(up.grpc, access=access("blue")) as admin:
            assert [each.rm_id for each in await admin.list_resource_managers()] == ["rm-blue"]


async def _fast(up: Up, red: Tenant, blue: Tenant) -> None:
    for tenant in (red, blue):
        await tenant.nodes("n1")
        await tenant.applications("one")
    keys = [f"k{number}" for number in range(260)]  # some 200 at once, then 20 in a second
    for key in keys:
        await red.rm.send_asks([ask(key, "one", {"vcore": 1})])
    assert await blue.asks("mine") == [""]
    assert await red.answered(*keys) == [""] * len(keys)
    async with aiohttp.ClientSession(up.http, headers=access("red").headers()) as client, asyncio.timeout(60):
        said = ""
        while "quota of requests reached: this resource manager sends more than 20 requests" not in said:
            async with client.get("/ws/v1/events/batch?rm=rm-red&count=10000") as answer:
                said = await answer.text()
            await asyncio.sleep(0.05)


async def _for_ever(admin: AdminClient) -> None:
    async with asyncio.timeout(60):
        while True:
            await admin.list_resource_managers()


# ---- attacks ---------------------------------------------------------------------------------------------------------

MEMORY_BYTES_MAX = 1 << 30


def resident(up: Up) -> int:
    """Bytes of all processes of a Muster."""
    pid = up.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = [int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in (pid, *children)]
    return sum(pages) * resource.getpagesize()


async def _register_many(up: Up, count: int) -> dict[grpc.StatusCode, int]:
    codes: Counter[grpc.StatusCode] = Counter()
    at_once = asyncio.Semaphore(32)
    async with grpc.aio.insecure_channel(up.grpc) as channel:
        register = SchedulerStub(channel).RegisterResourceManager

        async def one(number: int) -> None:
            async with at_once:
                try:
                    await register(si.RegisterResourceManagerRequest(rmID=f"rm-{number}"), timeout=60)
                except grpc.aio.AioRpcError as error:
                    codes[error.code()] += 1
                else:
                    codes[grpc.StatusCode.OK] += 1

        await asyncio.gather(*map(one, range(count)))
    return codes


@pytest.mark.slow
@pytest.mark.usefixtures("not_forked")  # (its processes' memory is what it counts)
async def test_three_thousand_rms_fit_into_a_gibibyte_and_the_next_one_is_refused(tmp_path: Path) -> None:
    async with up_with(tmp_path) as up:
        assert await _register_many(up, 3_040) == {grpc.StatusCode.OK: 3_000, grpc.StatusCode.RESOURCE_EXHAUSTED: 40}
        assert resident(up) < MEMORY_BYTES_MAX
        up.process.kill()
        await up.start()
        assert resident(up) < MEMORY_BYTES_MAX
        async with RmClient(up.grpc, "one-more") as another:
            with pytest.raises(RegistrationRejected, match="quota all_resource_managers: 3001 resource managers"):
                await another.register()
        async with RmClient(up.grpc, "rm-7") as known:
            await known.register()


@pytest.mark.usefixtures("not_forked")  # (its processes' memory is what it counts)
async def test_forty_thousand_dynamic_queues_of_one_rm_stop_at_its_quota(tmp_path: Path) -> None:
    async with up_with(tmp_path, "--set", "gateway.quotas.rm.queues=500") as up:
        begun = resident(up)
        async with working(up, "", "rm-red") as red, working(up, "", "rm-blue") as blue:
            ids = [f"app-{number}" for number in range(40_000)]
            for first in range(0, len(ids), 2_000):
                news = [application(each, f"root.users.{each}", user="ann") for each in ids[first : first + 2_000]]
                await red.rm.send_applications(news)
            assert await blue.applications("one", queue="root.users.mine") == [""]
            answers = await red.answered(*ids)
        assert sum(each == "" for each in answers) == 500 - 3
        assert all("quota queues: 501 with this one, expected at most 500" in each for each in answers if each)
        assert resident(up) - begun < 200 << 20
