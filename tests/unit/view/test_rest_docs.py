"""docs/rest.md is the code's: each row answers as it says, and each route has a row."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.topics import Topics
from muster_event_publisher.app import PublisherService
from muster_event_publisher.derive.rest import UsageRest
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.http_front import OWN_PATHS
from muster_gateway.http_roles import needed
from muster_scheduler.view import ViewService
from muster_scheduler.view.settings import ViewSettings
from starlette.routing import Route
from unit.view.recorded import Bench, client_of

DOCS = Path(__file__).parents[3] / "docs" / "rest.md"
TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "text as JSON": "application/json; charset=UTF-8",
    "YAML": "application/x-yaml; charset=UTF-8",
    "HTML": "text/html; charset=utf-8",
    "text": "text/plain; charset=utf-8",
    "Prometheus": "text/plain; version=",
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
# These need more than a small cluster has; their own tests have it (test_explain, test_external_rest).
NOTHING_THERE = {
    "/ws/v1/explain/preemption/{application}/{key}",
    "/ws/v1/explain/preemption/{allocation}",
    "/ws/v1/external/{source}",
}
# Without ?rm= these speak of all RMs.
OF_ALL = {"/ws/v1/scheduler/healthcheck", "/ws/v1/resource-managers", "/ws/v1/metrics"}
# The real core's, as core-features §2.19 lists them.
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


class Row(NamedTuple):
    method: str
    path: str
    answer: str
    parameters: list[str]
    statuses: list[int]
    role: str
    core: str
    differs: str

    @property
    def sample(self) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], self.path)


def _rows() -> list[Row]:
    rows = []
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[0] in ("GET", "POST", "PUT"):
            method, path, answer, parameters, statuses, role, core, differs = cells
            names = re.findall(r"`(\w+)`", parameters)
            numbers = [int(each) for each in statuses.split(", ")]
            rows.append(Row(method, path.strip("`"), answer, names, numbers, role, core, differs))
    return rows


ROWS = _rows()


def _routes() -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Of the view, and of the publisher and the gateway themselves."""
    topics = Topics(partitions=1)
    log, clock = MemoryLog(topics.specs(), SystemClock()), SystemClock()
    view = ViewService(ViewSettings(http_address=""), log, topics, clock).asgi
    of_view = {(action.method, pattern) for routes in view._routes._by_length.values() for _, pattern, action in routes}
    usage = UsageRest(DeriveSettings(), log, topics)
    publisher = PublisherService(PublisherSettings(http_address=""), log, topics, clock, extra_routes=usage.routes).asgi
    others = {("GET", route.path) for route in publisher.routes if isinstance(route, Route)}
    return of_view, others | {("GET", path) for path in OWN_PATHS}


OF_VIEW, OF_OTHERS = _routes()
VIEW_ROWS = [row for row in ROWS if (row.method, row.path) in OF_VIEW]


def test_each_route_has_one_row_and_each_row_is_a_route() -> None:
    said = [(row.method, row.path) for row in ROWS]
    assert len(said) == len(set(said))
    assert set(said) == OF_VIEW | OF_OTHERS


def test_the_real_core_s_endpoints_are_all_there() -> None:
    wanted = {f"/ws/v1/{each}" for each in CORE} | {
        f"/ws/v1/partition/{{partition}}/{each}" for each in CORE_OF_PARTITION
    }
    assert wanted <= {row.path for row in ROWS if row.core == "yes"}
    assert {row.core for row in ROWS} == {"yes", "no"}
    assert all(row.differs for row in ROWS if row.core == "yes" and not row.path.startswith("/ws/v1/partition"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_its_role_is_the_gateway_s(row: Row) -> None:
    assert str(needed(row.method, row.sample)) == row.role


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    """Of a view with one RM."""
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
@pytest.mark.parametrize("row", VIEW_ROWS, ids=lambda row: row.path)
async def test_each_row_answers(client: httpx.AsyncClient, row: Row) -> None:
    before = (await client.get("/ws/v1/loglevel")).json()
    answer = await client.request(row.method, row.sample.replace("loglevel/warning", f"loglevel/{before}"))
    wanted = 404 if row.path in NOTHING_THERE else row.statuses[0]
    assert answer.status_code == wanted, answer.text
    if wanted == row.statuses[0]:
        assert answer.headers["content-type"].startswith(TYPES[row.answer])
    if row.answer in ("JSON", "YAML", "text as JSON"):
        assert {name: answer.headers[name] for name in CORS} == CORS
        methods = "GET, OPTIONS" if row.method == "GET" else f"OPTIONS, {row.method}"
        assert answer.headers["access-control-allow-methods"] == methods
    assert answer.headers["x-muster-lag-records"] == "0"
    # 2. in other ways
    allowed = "GET, OPTIONS" if row.method == "GET" else f"OPTIONS, {row.method}"
    wrong = await client.request("DELETE", row.sample)
    assert (wrong.status_code, wrong.headers["allow"], wrong.text) == (405, allowed, "Method Not Allowed\n")
    asked = await client.options(row.sample)
    assert (asked.status_code, asked.headers["allow"], asked.content) == (200, allowed, b"")
    assert "access-control-allow-origin" not in asked.headers
    # 3. of what is not there
    if "/partition/{partition}/" in row.path:
        unknown = await client.request(row.method, row.sample.replace("/default/", "/nope/"))
        empty = row.path.endswith(("/usage/users", "/usage/groups", "/external"))
        assert (unknown.status_code, unknown.content == b"[]\n") == ((200, True) if empty else (404, False))


@pytest.mark.parametrize("row", VIEW_ROWS, ids=lambda row: row.path)
async def test_which_resource_manager(bench: Bench, row: Row) -> None:
    await bench.write(bench.rm("rm1"), bench.rm("a/b"))
    async with bench.view() as view, client_of(view) as client:
        if row.statuses[0] == 301 or "loglevel" in row.path:
            return
        unnamed = await client.request(row.method, row.sample)
        unknown = await client.request(row.method, row.sample, params={"rm": "nope"})
        named = await client.request(row.method, row.sample, params={"rm": "a/b"})
    if "rm" not in row.parameters:
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
        for row in VIEW_ROWS:
            if "rm" in row.parameters and row.statuses[0] == 200:
                answer = await client.request(row.method, row.sample)
                assert answer.status_code in (200, 404), row.path
                if answer.status_code == 200 and answer.text.startswith("["):
                    assert answer.content == b"[]\n", row.path
