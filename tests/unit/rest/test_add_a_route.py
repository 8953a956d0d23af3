"""Adding an endpoint takes one route and one handler: served, role-checked, described."""

from __future__ import annotations

from dataclasses import replace

import httpx
import msgspec
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_gateway.route_rights import RouteRights
from muster_rest import openapi
from muster_rest.parameters import RM
from muster_rest.route import Route
from muster_rest.route_table import GATEWAY, PUBLISHER, VIEW, RouteTable, through_the_gateway
from muster_rest.shapes.base import MusterShape
from muster_runtime.identity import Right
from muster_view.fold_gate import FoldGate
from muster_view.rest import json_render
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.rest import ViewRest
from muster_view.settings import ViewSettings
from unit.view.recorded import Bench


class DrainDao(MusterShape, kw_only=True):
    """The nodes that are drained."""

    partition: str
    nodes: list[str]


# 1. the route
DRAINS = Route(
    "GET",
    "/ws/v1/partition/{partition}/drains",
    "nodes.drains",
    "The nodes that are drained",
    DrainDao,
    right=Right.ADMIN,
    parameters=(RM,),
)


# 2. the handler
async def drains(call: HttpCall) -> HttpAnswer:
    return HttpAnswer(json_render.body(DrainDao(partition=call.path["partition"], nodes=["n1"])))


SERVICES = (replace(VIEW, routes=(*VIEW.routes, DRAINS)), PUBLISHER, GATEWAY)


async def test_it_is_served() -> None:
    settings, topics, clock = ViewSettings(http_address=""), Topics(partitions=1), SystemClock()
    log = MemoryLog(topics.specs(), clock)
    await log.start()
    async with Bench(log, topics, clock).view() as view:
        gate = FoldGate(clock, settings.snapshot_hold_s)
        served = ViewRest(view, settings, clock, gate, routes=SERVICES[0].routes, more={DRAINS.handler: drains})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://view") as client:
            answer = await client.get("/ws/v1/partition/default/drains")
            wrong = await client.post("/ws/v1/partition/default/drains")
            near = await client.get("/ws/v1/Partition/default/drains/")
    await log.close()
    assert msgspec.json.decode(answer.content, type=DrainDao) == DrainDao(partition="default", nodes=["n1"])
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, OPTIONS")
    assert (near.status_code, near.headers["location"]) == (301, "/ws/v1/partition/default/drains")


def test_the_gateway_knows_its_right_and_its_service() -> None:
    rights = RouteRights(through_the_gateway(SERVICES))
    assert rights.needed("GET", "/ws/v1/partition/default/drains") is Right.ADMIN
    assert rights.needed("GET", "/ws/v1/partition/default/nodes") is Right.READ
    assert RouteTable(SERVICES).of("/ws/v1/partition/default/drains") is SERVICES[0]


def test_it_is_in_the_openapi_document() -> None:
    document = openapi.document(through_the_gateway(SERVICES))
    operation = document["paths"][DRAINS.path]["get"]
    assert operation["security"] == [{"token": ["admin"]}]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Drain"
    }
    assert document["components"]["schemas"]["Drain"]["required"] == ["partition", "nodes"]
