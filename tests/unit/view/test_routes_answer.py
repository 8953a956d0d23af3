"""Each route of the view gives the answers that its row in the table promises."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from muster_rest.parameters import RM
from muster_rest.route import Media, Route
from muster_rest.route_table import through_the_gateway
from muster_rest.view_routes import VIEW
from unit.view.recorded import Bench, client_of

TYPES = {
    Media.JSON: "application/json; charset=UTF-8",
    Media.TEXT_AS_JSON: "application/json; charset=UTF-8",
    Media.YAML: "application/x-yaml; charset=UTF-8",
    Media.HTML: "text/html; charset=utf-8",
    Media.TEXT: "text/plain; charset=utf-8",
    Media.PROMETHEUS: "text/plain; version=",
}
CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-headers": "X-Requested-With,Content-Type,Accept,Origin",
}
SAMPLES = {
    "partition": "default",
    "queue": "root.a",
    "application": "x",
    "key": "k2",
    "allocation": "k2",
    "state": "active",
    "node": "n1",
    "user": "alice",
    "group": "alice",
    "profile": "cmdline",
    "level": "warning",
    "source": "vms",
}
# A small cluster cannot show these; they have their own tests (test_explain, test_external_rest).
NOTHING_THERE = {
    "/ws/v1/explain/preemption/{application}/{key}",
    "/ws/v1/explain/preemption/{allocation}",
    "/ws/v1/external/{source}",
}
# Without ?rm= these answer for all RMs.
OF_ALL = {"/ws/v1/scheduler/healthcheck", "/ws/v1/resource-managers", "/ws/v1/metrics"}
# YuniKorn's endpoints.
CORE = [
    "clusters",
    "metrics",
    "config",
    "validate-conf",
    "history/apps",
    "history/containers",
    "partitions",
    "scheduler/healthcheck",
    "scheduler/node-utilizations",
    "events/batch",
    "events/stream",
    "stack",
    "fullstatedump",
]
CORE_OF_PARTITION = [
    "placementrules",
    "queues",
    "queue/{queue}",
    "queue/{queue}/applications",
    "queue/{queue}/applications/{state}",
    "applications/{state}",
    "application/{application}",
    "queue/{queue}/application/{application}",
    "nodes",
    "node/{node}",
    "usage/users",
    "usage/groups",
    "usage/user/{user}",
    "usage/group/{group}",
]


def _sample(route: Route) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], route.path)


def test_yunikorn_s_endpoints_are_all_there() -> None:
    wanted = {f"/ws/v1/{each}" for each in CORE} | {
        f"/ws/v1/partition/{{partition}}/{each}" for each in CORE_OF_PARTITION
    }
    assert wanted <= {route.path for route in through_the_gateway() if route.core}


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    limit = "limits: [{limit: some, groups: [alice], maxapplications: 5}]"
    rm = bench.rm(
        queues=f"{{name: root, submitacl: '*', {limit}, queues: [{{name: a, resources: {{max: {{vcore: 4}}}}}}]}}"
    )
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k1", vcore=3_000)
    rm.cluster.ask("x", "k2", vcore=2_000)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        yield client


@pytest.mark.usefixtures("logs_as_before")
@pytest.mark.parametrize("row", VIEW, ids=lambda row: row.path)
async def test_each_row_answers(client: httpx.AsyncClient, row: Route) -> None:
    before = (await client.get("/ws/v1/loglevel")).json()
    answer = await client.request(row.method, _sample(row).replace("loglevel/warning", f"loglevel/{before}"))
    wanted = 404 if row.path in NOTHING_THERE else row.statuses[0]
    assert answer.status_code == wanted, answer.text
    if wanted == row.statuses[0]:
        assert answer.headers["content-type"].startswith(TYPES[row.media])
    if row.media in (Media.JSON, Media.YAML, Media.TEXT_AS_JSON):
        assert {name: answer.headers[name] for name in CORS} == CORS
        methods = "GET, OPTIONS" if row.method == "GET" else f"OPTIONS, {row.method}"
        assert answer.headers["access-control-allow-methods"] == methods
    assert answer.headers["x-muster-lag-records"] == "0"
    # 2. other methods and forms
    allowed = "GET, OPTIONS" if row.method == "GET" else f"OPTIONS, {row.method}"
    wrong = await client.request("DELETE", _sample(row))
    assert (wrong.status_code, wrong.headers["allow"], wrong.text) == (405, allowed, "Method Not Allowed\n")
    asked = await client.options(_sample(row))
    assert (asked.status_code, asked.headers["allow"], asked.content) == (200, allowed, b"")
    assert "access-control-allow-origin" not in asked.headers
    # 3. objects that do not exist
    if "/partition/{partition}/" in row.path:
        unknown = await client.request(row.method, _sample(row).replace("/default/", "/nope/"))
        empty = row.path.endswith(("/usage/users", "/usage/groups", "/external"))
        assert (unknown.status_code, unknown.content == b"[]\n") == ((200, True) if empty else (404, False))


@pytest.mark.parametrize("row", VIEW, ids=lambda row: row.path)
async def test_which_resource_manager(bench: Bench, row: Route) -> None:
    await bench.write(bench.rm("rm1"), bench.rm("a/b"))
    async with bench.view() as view, client_of(view) as client:
        if row.statuses[0] == 301 or "loglevel" in row.path:
            return
        unnamed = await client.request(row.method, _sample(row))
        unknown = await client.request(row.method, _sample(row), params={"rm": "nope"})
        named = await client.request(row.method, _sample(row), params={"rm": "a/b"})
    if RM not in row.parameters:
        assert unnamed.status_code == unknown.status_code == named.status_code == 200
        return
    assert {unnamed.status_code, unknown.status_code, named.status_code} <= {*row.statuses, 404}
    assert (unknown.status_code, unknown.json()["message"]) == (404, "Resource manager not found: 'nope'")
    if row.path in OF_ALL:
        assert unnamed.status_code == 200
        assert 400 not in row.statuses
    else:
        assert unnamed.status_code == 400
        assert unnamed.json()["message"].endswith('name one with "rm": a/b, rm1')
    assert named.status_code in (200, 404)
    assert named.status_code == 200 or "Resource manager" not in named.text


async def test_without_any_resource_manager_lists_are_empty_and_the_rest_is_not_there(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        for row in VIEW:
            if RM in row.parameters and row.statuses[0] == 200:
                answer = await client.request(row.method, _sample(row))
                assert answer.status_code in (200, 404), row.path
                if answer.status_code == 200 and answer.text.startswith("["):
                    assert answer.content == b"[]\n", row.path
