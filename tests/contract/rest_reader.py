"""A reader of the whole REST interface. It checks each answer against its shape and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from contract import openapi
from contract import rest_shapes as shapes
from contract.rest_shapes import added, same
from contract.rest_whole import hold_together

P = "/ws/v1/partition/default"


class Reader:
    """Reads everything from a view, and checks each answer's shape."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, shape: Any, status: int = 200) -> Any:
        answer = await self.client.get(path, headers={"Accept": "application/json"}, follow_redirects=True)
        assert answer.status_code == status, (path, answer.text)
        assert answer.headers["content-type"] == "application/json; charset=UTF-8"
        if not self.client.event_hooks["response"]:  # (those of contract.openapi may be there already)
            await openapi.holds(answer)
        try:
            return shapes.valid(answer.content, shape)
        except (msgspec.ValidationError, ValueError) as error:
            raise AssertionError(f"{path}: {error}\n{answer.text[:3000]}") from error

    async def everything(self) -> None:
        dump = await self.get("/ws/v1/fullstatedump", shapes.StateDump)
        hold_together(dump)
        assert await self.get("/ws/v1/partitions", list[shapes.Partition]) == (dump.partitions or [])
        assert await self.get("/ws/v1/clusters", list[shapes.Cluster]) == (dump.cluster_info or [])
        await self.get("/ws/v1/history/apps", list[shapes.ApplicationSample])
        await self.get("/ws/v1/history/containers", list[shapes.ContainerSample])
        await self.get("/ws/v1/scheduler/healthcheck", shapes.Health)
        await self.get("/ws/v1/scheduler/node-utilizations", list[shapes.Utilization])
        if not dump.partitions:
            return
        await self.get(f"{P}/placementrules", list[shapes.Rule])
        tree = await self.get(f"{P}/queues", shapes.Queue)
        assert [tree] == dump.queues
        for queue in _below(tree):
            path = quote(queue.queuename, safe="")
            single = await self.get(f"{P}/queue/{path}", shapes.Queue)
            assert (single.partition, single.children) == ("", msgspec.UNSET)
            whole = await self.get(f"{P}/queue/{path}?subtree", shapes.Queue)
            assert whole.children == queue.children
            found = await self.get(f"{P}/queue/{path}/applications", list[shapes.Application])
            await self.get(f"{P}/queue/{path}/applications/active", list[shapes.Application])
            for app in found:
                same = await self.get(f"{P}/queue/{path}/application/{app.application_id}", shapes.Application)
                assert same == app
        apps = []
        for state in ("active", "completed", "rejected"):
            apps += await self.get(f"{P}/applications/{state}", list[shapes.Application])
        assert {app.application_id for app in apps} == {app.application_id for app in dump.applications or []}
        assert dump.partitions[0].applications["total"] == len(apps)
        for node in await self.get(f"{P}/nodes", list[shapes.Node]):
            assert await self.get(f"{P}/node/{node.node_id}", shapes.Node) == node
        for user in await self.get(f"{P}/usage/users", list[shapes.UserUsage]):
            assert await self.get(f"{P}/usage/user/{user.user_name}", shapes.UserUsage) == user
            _uses(user.queues, [app for app in apps if app.user == user.user_name])
        for group in await self.get(f"{P}/usage/groups", list[shapes.GroupUsage]):
            _uses(group.queues, [app for app in apps if app.application_id in (group.applications or [])])
            if group.group_name != "*":  # no path leads there, as in YuniKorn
                assert await self.get(f"{P}/usage/group/{group.group_name}", shapes.GroupUsage) == group
        for path in ("queue/root.nope", "application/nope", "node/nope", "usage/user/nope", "usage/group/nope"):
            await self.get(f"{P}/{path}", shapes.Error, 404)


def _uses(queues: Any, apps: list[shapes.Application]) -> None:
    held = added(each.resource for app in apps for each in app.allocations or [])
    assert same(queues.resource_usage if queues else {}, held)


def _below(queue: shapes.Queue) -> Iterator[shapes.Queue]:
    yield queue
    for child in queue.children or []:
        yield from _below(child)
