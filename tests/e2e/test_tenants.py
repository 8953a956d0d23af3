"""Two tenants of one `muster up`: each sees its own resource manager only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from muster_client import AdminClient, EventsClient, RmClient, application, ask, node
from muster_client.access import Access
from muster_client.errors import AdminRefused
from muster_client.metrics_client import MetricsClient
from up import Up

NAMES = ("red", "blue", "ops")
QUEUES = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: queue-of-%s}]}]}]"
RULES = {
    "red": '[[rule]]\nidentities = ["red"]\nact = ["rm-red"]\n',
    "blue": '[[rule]]\nidentities = ["blue"]\nact = ["rm-blue"]\n',
    "ops": '[[rule]]\nidentities = ["ops"]\noperate = ["*"]\nrole = "admin"\n',
}


def access(name: str) -> Access:
    return Access(token=f"{name}-token-0123456789")


@asynccontextmanager
async def working(up: Up, name: str) -> AsyncIterator[RmClient]:
    """A tenant's RM with a node and an ask that is pending."""
    async with RmClient(up.grpc, f"rm-{name}", config=QUEUES % name, access=access(name)) as rm:
        await rm.register()
        await rm.send_nodes([node(f"node-of-{name}", {"vcore": 1_000})])
        await rm.nodes_answered()
        await rm.send_applications([application(f"app-of-{name}", f"root.queue-of-{name}", user=name)])
        await rm.applications_answered()
        await rm.send_asks([ask("too-large", f"app-of-{name}", {"vcore": 9_000})])
        yield rm


async def test_each_sees_its_own_and_nothing_else(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("".join(RULES.values()))
    tokens = json.dumps({name: {"role": "admin", "token": access(name).token} for name in NAMES})
    up = Up(
        tmp_path,
        *("--set", f"gateway.tokens={tokens}"),
        *("--set", f"gateway.policy_file={policy}"),
        *("--set", "gateway.reload_interval_s=0.1"),
    )
    try:
        await up.start()
        async with working(up, "red"), working(up, "blue"):
            await _over_http(up)
            await _over_grpc(up)
            await _withdrawn(up, policy)
        log = up.process.log_file.read_text()
        assert "Traceback" not in log
        assert access("red").token not in log
    finally:
        up.process.kill()


async def _over_http(up: Up) -> None:
    for own, other in (("red", "blue"), ("blue", "red")):
        async with aiohttp.ClientSession(up.http, headers=access(own).headers()) as client:

            async def got(path: str, client: aiohttp.ClientSession = client) -> tuple[int, str]:
                async with client.get(path) as answer:
                    return answer.status, await answer.text()

            async with asyncio.timeout(60):
                for path in ("/ws/v1/explain/pending", "/ws/v1/events/batch"):  # each has a follower of its own
                    while f"app-of-{own}" not in (await got(path))[1]:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            for path in (
                "/ws/v1/resource-managers",
                "/ws/v1/partitions",
                "/ws/v1/clusters",
                "/ws/v1/partition/default/queues",
                "/ws/v1/partition/default/nodes",
                "/ws/v1/partition/default/applications/active",
                "/ws/v1/partition/default/usage/users",
                "/ws/v1/config",
                "/ws/v1/metrics",
                "/ws/v1/explain/pending",
                "/ws/v1/events/batch",
                "/ws/v1/scheduler/healthcheck",
            ):
                status, said = await got(path)
                assert status == 200, (path, said)
                assert not any(f"{word}-{other}" in said for word in ("rm", "node-of", "app-of", "queue-of")), path
                mark = "?" if "?" not in path else "&"
                status, said = await got(f"{path}{mark}rm=rm-{other}")
                assert status == 403, path
                assert f"{own} may not read rmID 'rm-{other}'" in said
                assert (await got(f"{path}{mark}rm=rm-nobody"))[0] == 403, "its existence must stay hidden"
            for path in ("/metrics", "/debug/stack", f"/debug/fullstatedump?rm=rm-{own}", "/ws/v1/loglevel"):
                assert (await got(path))[0] == 403, path
            assert (await got("/health"))[1] == "SERVING\n"
    async with aiohttp.ClientSession(up.http, headers=access("ops").headers()) as client:
        async with client.get("/ws/v1/resource-managers") as answer:
            assert sorted(each["rmID"] for each in await answer.json()) == ["rm-blue", "rm-red"]
        async with client.get("/debug/fullstatedump?rm=rm-red") as answer:
            assert "app-of-red" in await answer.text()


async def _over_grpc(up: Up) -> None:
    async with AdminClient(up.grpc, access=access("red")) as admin:
        assert [each.rm_id for each in await admin.list_resource_managers()] == ["rm-red"]
        assert "too-large" in (await admin.explain_ask("rm-red", "app-of-red", "too-large")).json.decode()
        await _refused(admin.explain_ask("rm-blue", "app-of-blue", "too-large"))
        await _refused(admin.drain_node("rm-blue", "node-of-blue"))
    async with MetricsClient(up.grpc, access=access("red")) as figures:
        assert (await figures.get()).rm_id == "rm-red", "the only RM that it may read"
        await _refused(figures.get("rm-blue"))
    async with EventsClient(up.grpc, access=access("blue")) as events:
        assert (await events.batch()).rm_id == "rm-blue"
        await _refused(events.batch("rm-red"))
    async with AdminClient(up.grpc, access=access("ops")) as admin:
        assert (await admin.drain_node("rm-blue", "node-of-blue")).changed
        assert b"app-of-red" in b"".join([piece async for piece in admin.dump_state("rm-red")])


async def _to_the_end(first: Any, watch: AsyncIterator[Any]) -> None:
    await first
    async for _ in watch:
        pass


async def _refused(call: Any) -> None:
    with pytest.raises(AdminRefused) as raised:
        await call
    assert raised.value.code is grpc.StatusCode.PERMISSION_DENIED


async def _withdrawn(up: Up, policy: Path) -> None:
    """The streams of an identity end with its rights, over both doors; another's go on."""
    reading = EventsClient(up.grpc, access=access("red"))
    async with (
        aiohttp.ClientSession(up.http, headers=access("red").headers()) as client,
        client.get("/ws/v1/events/stream?count=1") as lines,
        reading,
    ):
        assert lines.status == 200
        assert await lines.content.readline()
        watch = reading.watch("rm-red", resume=False)
        first = asyncio.ensure_future(anext(watch))
        await asyncio.to_thread(policy.write_text, RULES["blue"] + RULES["ops"])
        async with asyncio.timeout(60):
            try:
                while await lines.content.readline():
                    pass
            except aiohttp.ClientError:
                pass
            with pytest.raises(AdminRefused) as raised:
                await _to_the_end(first, watch)
        assert raised.value.code is grpc.StatusCode.PERMISSION_DENIED
        async with client.get("/ws/v1/partitions") as answer:
            assert answer.status == 403
    async with AdminClient(up.grpc, access=access("blue")) as admin:
        assert [each.rm_id for each in await admin.list_resource_managers()] == ["rm-blue"]
