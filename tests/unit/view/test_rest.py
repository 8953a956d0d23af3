"""Every route with its statuses, headers and quirks, over a log in memory."""

from __future__ import annotations

import asyncio
import gzip

import httpx
import pytest
from muster_core.model.commands import AskItem, UpdateAllocations
from muster_runtime.go_json import go_json
from muster_view.rest import dao, json_render
from unit.view.recorded import Bench, client_of

HEADERS = {
    "content-type": "application/json; charset=UTF-8",
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, OPTIONS",
    "access-control-allow-headers": "X-Requested-With,Content-Type,Accept,Origin",
    "vary": "Accept-Encoding",
}
P = "/ws/v1/partition/default"
NO_NAME = "Invalid queue name 'root.a!': each part between dots takes 1 to 64 of letters, digits and _ : # / @ -"
# path, status, the error's text or None
TABLE = [
    ("/ws/v1/clusters", 200, None),
    ("/ws/v1/partitions", 200, None),
    (f"{P}/queues", 200, None),
    ("/ws/v1/partition/nope/queues", 404, "Partition not found"),
    ("/ws/v1/partition/Default/queues", 404, "Partition not found"),
    (f"{P}/queue/root", 200, None),
    (f"{P}/queue/root.A", 200, None),
    (f"{P}/queue/root.a?subtree", 200, None),
    (f"{P}/queue/root.nope", 404, "Queue not found"),
    ("/ws/v1/partition/nope/queue/root", 404, "Partition not found"),
    # If there are two errors, the answer is the one that YuniKorn's endpoint checks first.
    ("/ws/v1/partition/nope/queue/root.a%21", 404, "Partition not found"),
    ("/ws/v1/partition/nope/queue/root.%25zz", 404, "Partition not found"),
    ("/ws/v1/partition/nope/queue/root.a%21/applications/active", 404, "Partition not found"),
    ("/ws/v1/partition/nope/queue/root.%25zz/applications/nope", 404, "Partition not found"),
    ("/ws/v1/partition/nope/queue/root.a%21/applications", 400, NO_NAME),
    ("/ws/v1/partition/nope/queue/root.%25zz/applications", 400, "Queue name 'root.%zz' is not escaped as a query is"),
    ("/ws/v1/partition/nope/queue/root.a%21/application/x", 404, "Partition not found"),
    ("/ws/v1/partition/nope/queue/root.%25zz/application/x", 400, "Queue name 'root.%zz' is not escaped as a query is"),
    ("/ws/v1/partition/nope/applications/nope", 404, "Partition not found"),
    ("/ws/v1/partition/nope/node/nope", 404, "Partition not found"),
    (f"{P}/queue/root.nope/applications/nope", 404, "Queue not found"),
    (f"{P}/queue/root.a%21/application/nope", 400, NO_NAME),
    (f"{P}/queue/root.nope/application/nope", 404, "Queue not found"),
    (f"{P}/queue/root.%2540x", 404, "Queue not found"),
    (f"{P}/queue/root.%25zz", 400, "Queue name 'root.%zz' is not escaped as a query is"),
    (f"{P}/queue/root.a%21", 400, NO_NAME),
    (
        f"{P}/queue/root..a",
        400,
        "Invalid queue name 'root..a': each part between dots takes 1 to 64 of letters, digits and _ : # / @ -",
    ),
    (f"{P}/queue/root.a/applications", 200, None),
    (f"{P}/queue/root/applications", 200, None),
    (f"{P}/queue/root.nope/applications", 404, "Queue not found"),
    (f"{P}/queue/root.a/applications/active", 200, None),
    (f"{P}/queue/root.a/applications/completed", 400, "Application state 'completed' is not known: expected active"),
    (f"{P}/queue/root.a/application/x", 200, None),
    (f"{P}/queue/root.b/application/x", 404, "Application not found"),
    (f"{P}/application/x", 200, None),
    (f"{P}/application/nope", 404, "Application not found"),
    ("/ws/v1/partition/nope/application/x", 404, "Partition not found"),
    (f"{P}/applications/active", 200, None),
    (f"{P}/applications/ACTIVE?status=Running", 200, None),
    (
        f"{P}/applications/active?status=over",
        400,
        "Application status 'over' is not known: expected one of accepted, completing, failing, new, resuming, running",
    ),
    (f"{P}/applications/completed", 200, None),
    (f"{P}/applications/rejected", 200, None),
    (
        f"{P}/applications/nope",
        400,
        "Application state 'nope' is not known: expected active, completed or rejected",
    ),
    (f"{P}/nodes", 200, None),
    ("/ws/v1/partition/nope/nodes", 404, "Partition not found"),
    (f"{P}/node/n1", 200, None),
    (f"{P}/node/N1", 404, "Node not found"),
    (f"{P}/placementrules", 200, None),
    ("/ws/v1/partition/nope/placementrules", 404, "Partition not found"),
    ("/ws/v1/scheduler/healthcheck", 200, None),
    ("/ws/v1/scheduler/healthcheck?rm=nope", 404, "Resource manager not found: 'nope'"),
    ("/ws/v1/explain/pending", 200, None),
    ("/ws/v1/explain/summary", 200, None),
    ("/ws/v1/explain/summary?rm=rm1", 200, None),
    ("/ws/v1/explain/summary?rm=rm2", 404, "Resource manager not found: 'rm2'"),
    ("/ws/v1/clusters?rm=rm2", 404, "Resource manager not found: 'rm2'"),
]


@pytest.fixture
async def filled(bench: Bench) -> Bench:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k1", vcore=3_000)
    rm.cluster.ask("x", "k2", vcore=2_000)
    await bench.write(rm)
    return bench


@pytest.mark.parametrize(("path", "status", "message"), TABLE, ids=[row[0] for row in TABLE])
async def test_each_route(filled: Bench, path: str, status: int, message: str | None) -> None:
    async with filled.view() as view, client_of(view) as client:
        answer = await client.get(path)
    assert answer.status_code == status
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.content.endswith(b"\n")
    if message is not None:
        assert answer.json() == {"status_code": status, "message": message, "description": message}
        assert list(answer.json()) == ["status_code", "message", "description"]


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/ws/v1/partitions/", "/ws/v1/partitions"),
        ("/WS/v1/Clusters?rm=a%26b&x=<", "/ws/v1/clusters?rm=a%26b&x=<"),
        ("/ws/v1/partition/De fault/Nodes", "/ws/v1/partition/De%20fault/nodes"),
    ],
)
async def test_nearly_right_paths_are_sent_on(filled: Bench, path: str, location: str) -> None:
    async with filled.view() as view, client_of(view) as client:
        request = client.build_request("GET", "/")
        raw, _, query = path.partition("?")
        request.url = httpx.URL("http://view").copy_with(path=raw, query=query.encode() if query else None)
        answer = await client.send(request)
        assert answer.status_code == 301
        assert answer.headers["location"].replace("%3C", "<") == location
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert b"Moved Permanently" in answer.content
        assert b"<a href" in answer.content
        assert b'x=<"' not in answer.content  # the answer escapes the path


@pytest.mark.parametrize("path", ["/", "/ws/v1", "/ws/v1/nope", "/ws/v1/partition//queues", "/ws/v2/clusters"])
async def test_unknown_paths(filled: Bench, path: str) -> None:
    async with filled.view() as view, client_of(view) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.content) == (404, b"404 page not found\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "PATCH"])
async def test_other_methods(filled: Bench, method: str) -> None:
    async with filled.view() as view, client_of(view) as client:
        answer = await client.request(method, "/ws/v1/clusters")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, OPTIONS"
        unknown = await client.request(method, "/ws/v1/clusters/")
        assert unknown.status_code == 404


async def test_a_post_to_a_nearly_right_path_is_redirected_with_its_body(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        answer = await client.post("/ws/v1/Validate-Conf/?x=1", content=b"partitions: 5")
        assert (answer.status_code, answer.headers["location"]) == (308, "/ws/v1/validate-conf?x=1")
        assert b"Permanent Redirect" in answer.content
        judged = await client.post("/ws/v1/Validate-Conf/", content=b"partitions: 5", follow_redirects=True)
        assert judged.json()["allowed"] is False
        assert (await client.get("/ws/v1/validate-conf/")).status_code == 404  # nobody may get it


async def test_an_id_with_a_slash_is_found_by_its_escaped_path(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, submitacl: '*', queues: [{name: 'a/b@c'}, {name: a, queues: [{name: x}]}]}")
    rm.cluster.node("rack/1 ü", vcore=4_000)
    rm.cluster.app("2026/11", "root.a/b@c", user="team/x")
    rm.cluster.ask("2026/11", "k", vcore=1)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        node = await client.get(f"{P}/node/rack%2F1%20%C3%BC")
        assert (node.status_code, node.json()["nodeID"]) == (200, "rack/1 ü")
        assert (await client.get(f"{P}/application/2026%2f11")).json()["applicationID"] == "2026/11"
        for queue in ("root.a%2Fb@c", "root.a%252Fb@c"):  # the latter as YuniKorn wants it
            assert (await client.get(f"{P}/queue/{queue}")).json()["queuename"] == "root.a/b@c"
            apps = await client.get(f"{P}/queue/{queue}/applications/active")
            assert [app["applicationID"] for app in apps.json()] == ["2026/11"]
            assert (await client.get(f"{P}/queue/{queue}/application/2026%2F11")).status_code == 200
        for user in ("team%2Fx", "team%252Fx"):
            assert (await client.get(f"{P}/usage/user/{user}")).json()["userName"] == "team/x"
        # A path that is YuniKorn's after unescaping is that path.
        assert (await client.get(f"{P}/queue/root.a%2Fapplications")).json() == []
        for nowhere in ("node/rack/1", "node/rack%252F1", "queue/root.a/b@c"):
            assert (await client.get(f"{P}/{nowhere}")).status_code == 404


async def test_options_says_what_is_allowed_and_nothing_else(filled: Bench) -> None:
    async with filled.view() as view, client_of(view) as client:
        answer = await client.options("/ws/v1/clusters")
    assert (answer.status_code, answer.content) == (200, b"")
    assert dict(answer.headers) == {"allow": "GET, OPTIONS", "content-length": "0"}


async def test_bodies(filled: Bench) -> None:
    async with filled.view() as view, client_of(view) as client:
        tree = (await client.get(f"{P}/queues")).json()
        assert (tree["queuename"], tree["partition"]) == ("root", "default")
        assert [child["queuename"] for child in tree["children"]] == ["root.a", "root.b"]
        single = (await client.get(f"{P}/queue/root")).json()
        assert (single["partition"], "children" in single) == ("", False)
        whole = (await client.get(f"{P}/queue/root?subtree")).json()
        assert [child["partition"] for child in whole["children"]] == ["", ""]
        (app,) = (await client.get(f"{P}/applications/active")).json()
        assert app == (await client.get(f"{P}/application/x")).json()
        assert app == (await client.get(f"{P}/queue/root.a/applications")).json()[0]
        assert [each["allocationKey"] for each in app["allocations"]] == ["k1"]
        assert app["requests"][0]["pendingReason"]["code"] == "QUEUE_MAX"
        (node,) = (await client.get(f"{P}/nodes")).json()
        assert node == (await client.get(f"{P}/node/n1")).json()
        assert node["allocated"] == {"vcore": 3_000}
        for none in ("applications/active?status=new", "applications/completed", "queue/root/applications"):
            assert (await client.get(f"{P}/{none}")).content == b"[]\n"


async def test_lists_are_in_the_order_in_which_things_came(bench: Bench) -> None:
    rm = bench.rm()
    for name in ("n2", "n10", "n1"):
        rm.cluster.node(name, vcore=10)
        rm.cluster.app(f"app-{name}", "root.b")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        nodes = (await client.get(f"{P}/nodes")).json()
        assert [node["nodeID"] for node in nodes] == ["n2", "n10", "n1"]
        for path in ("applications/active", "queue/root.b/applications", "queue/root.b/applications/active"):
            apps = (await client.get(f"{P}/{path}")).json()
            assert [app["applicationID"] for app in apps] == ["app-n2", "app-n10", "app-n1"]


async def test_of_active_applications_those_with_a_status(filled: Bench) -> None:
    async with filled.view() as view, client_of(view) as client:
        for path in ("applications", "queue/root.a/applications"):
            for query, found in (("active", 1), ("Active?status=RUNNING", 1), ("active?status=new", 0)):
                answer = await client.get(f"{P}/{path}/{query}")
                assert (answer.status_code, len(answer.json())) == (200, found), (path, query)
            assert (await client.get(f"{P}/{path}/active?status=over")).status_code == 400


async def test_a_finished_application_is_under_completed_only(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("x", "root.a")
    rm.cluster.ask("x", "k1", vcore=1)
    rm.cluster.release("x", "k1")
    rm.cluster.wait(31)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        (app,) = (await client.get(f"{P}/applications/completed")).json()
        assert (app["applicationState"], app["finishedTime"]) == ("Completed", rm.cluster.now_ns)
        assert (await client.get(f"{P}/applications/active")).json() == []
        assert (await client.get(f"{P}/application/x")).status_code == 404


async def test_without_any_rm(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        assert (await client.get("/ws/v1/partitions")).content == b"[]\n"
        assert (await client.get("/ws/v1/clusters")).content == b"[]\n"
        assert (await client.get(f"{P}/queues")).status_code == 404
        assert (await client.get("/ws/v1/explain/summary")).status_code == 404
        assert (await client.get("/ws/v1/scheduler/healthcheck")).json()["Healthy"] is True


async def test_with_several_rms_a_request_must_name_one(bench: Bench) -> None:
    first, second = bench.rm("rm1"), bench.rm("a/b")
    first.cluster.node("n1", vcore=1)
    second.cluster.node("m1", vcore=1)
    await bench.write(first, second)
    async with bench.view() as view, client_of(view) as client:
        for path in ("/ws/v1/partitions", f"{P}/nodes", f"{P}/queue/root", "/ws/v1/explain/pending"):
            unnamed = await client.get(path)
            assert unnamed.status_code == 400
            assert unnamed.json()["message"] == (
                'Several resource managers are registered, name one with "rm": a/b, rm1'
            )
        assert [node["nodeID"] for node in (await client.get(f"{P}/nodes?rm=rm1")).json()] == ["n1"]
        assert [node["nodeID"] for node in (await client.get(f"{P}/nodes?rm=a/b")).json()] == ["m1"]
        assert (await client.get("/ws/v1/partitions?rm=a%2Fb")).json()[0]["clusterId"] == "a/b"
        # A readiness probe names no RM: the answer is for all.
        assert (await client.get("/ws/v1/scheduler/healthcheck")).json()["Healthy"] is True


async def test_each_answer_is_about_the_rm_that_is_named(bench: Bench) -> None:
    rms = [bench.rm("rm1"), bench.rm("rm2")]
    for number, rm in enumerate(rms):
        rm.cluster.node(f"n-{rm.rm_id}", vcore=10)
        rm.cluster.app("x", "root.b")
        for key in range(number + 1):
            rm.cluster.ask("x", f"k{key}", vcore=1)
    rms[1].cluster.app("y", "root.b")
    rms[1].cluster.ask("y", "k", vcore=1)
    await bench.write(*rms)
    async with bench.view(health_interval_s=0, history_interval_s=0.01) as view, client_of(view) as client:
        for rm_id, apps, allocated in (("rm1", 1, 1), ("rm2", 2, 3)):
            rm_query = {"rm": rm_id}
            async with asyncio.timeout(60):
                samples: list[dict[str, str]] = []
                while not samples:
                    samples = (await client.get("/ws/v1/history/apps", params=rm_query)).json()
            assert samples[-1]["totalApplications"] == str(apps)
            samples = (await client.get("/ws/v1/history/containers", params=rm_query)).json()
            assert samples[-1]["totalContainers"] == str(allocated)
            (found,) = (await client.get("/ws/v1/scheduler/node-utilizations", params=rm_query)).json()
            assert found["clusterId"] == rm_id
            assert found["utilizations"][0]["utilization"][allocated - 1]["nodeNames"] == [f"n-{rm_id}"]
            text = (await client.get("/ws/v1/metrics", params=rm_query)).text
            assert f'yunikorn_scheduler_application_total{{state="running"}} {apps}\n' in text
        assert 'yunikorn_scheduler_application_total{state="running"} 3\n' in (await client.get("/ws/v1/metrics")).text
        # If a parameter comes twice, the first one counts.
        (cluster,) = (await client.get("/ws/v1/partitions?rm=rm2&rm=rm1")).json()
        assert cluster["clusterId"] == "rm2"
        # A fault of one RM is no fault of the other.
        view.states()["rm2"].core.partitions["default"].capacity[0] += 1
        for query, healthy in (("?rm=rm1", True), ("?rm=rm2", False), ("", False)):
            answer = await client.get(f"/ws/v1/scheduler/healthcheck{query}")
            assert (answer.status_code, answer.json()["Healthy"]) == (200, healthy)


async def test_before_anything_is_known_there_is_no_health(filled: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_rm_id: str | None) -> None:
        return None

    async with filled.view() as view, client_of(view) as client:
        monkeypatch.setattr(view, "health", nothing)
        answer = await client.get("/ws/v1/scheduler/healthcheck")
        assert (answer.status_code, answer.json()["message"]) == (404, "Health check is not available")


async def test_compression_from_1400_bytes_for_clients_that_accept_it(bench: Bench) -> None:
    rm = bench.rm()
    for number in range(30):
        rm.cluster.node(f"n{number}", vcore=1)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        client.event_hooks = {}  # (they would read the body)
        async with client.stream("GET", f"{P}/nodes", headers={"Accept-Encoding": "br, gzip"}) as answer:
            raw = b"".join([part async for part in answer.aiter_raw()])
            assert answer.headers["content-encoding"] == "gzip"
            assert int(answer.headers["content-length"]) == len(raw)
        for refused in ("identity", "gzip;q=0", "br"):
            plain = await client.get(f"{P}/nodes", headers={"Accept-Encoding": refused})
            assert "content-encoding" not in plain.headers
            assert gzip.decompress(raw) == plain.content
        small = await client.get("/ws/v1/clusters", headers={"Accept-Encoding": "gzip"})
        assert "content-encoding" not in small.headers


@pytest.mark.parametrize(("size", "smaller"), [(1399, False), (1400, True)])
async def test_the_smallest_answer_that_is_compressed(bench: Bench, size: int, *, smaller: bool) -> None:
    rm = bench.rm()
    rm.info.build_info = {"buildVersion": ""}
    without = len(go_json([dao.cluster(rm.info, rm.cluster.partition)])) + 1
    rm.info.build_info = {"buildVersion": "1" * (size - without)}
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        answer = await client.get("/ws/v1/clusters", headers={"Accept-Encoding": "gzip"})
        assert len(answer.content) == size
        assert ("content-encoding" in answer.headers) is smaller


@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_a_very_large_answer_is_sent_while_it_is_rendered(bench: Bench, coding: str) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("x", "root.b")
    items = [AskItem(f"k{n}", "x", "default", {"vcore": 1}, tags={"t": "t" * 100}) for n in range(1_000)]
    rm.do(UpdateAllocations(items))
    await bench.write(rm)
    async with bench.view(snapshot_bytes_max=1 << 16) as view, client_of(view) as client:
        answer = await client.get(f"{P}/applications/active", headers={"Accept-Encoding": coding})
        assert answer.headers["x-muster-consistency"] == "object"
        assert "content-length" not in answer.headers
        assert len(answer.json()[0]["allocations"]) == 1_000
        small = await client.get("/ws/v1/clusters")
        assert small.headers["x-muster-consistency"] == "snapshot"


async def test_a_defect_while_answering_is_a_500_with_a_body(filled: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> json_render.Pieces:
        yield b"["
        raise KeyError("secret of the state")

    monkeypatch.setattr(json_render, "node", broken)
    async with filled.view() as view, client_of(view) as client:
        answer = await client.get(f"{P}/nodes")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert (await client.get("/ws/v1/clusters")).status_code == 200


async def test_metrics_and_health_of_the_process(filled: Bench) -> None:
    async with filled.view() as view, client_of(view) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (200, {"healthy": True, "problems": []})
        for path in ("/metrics", "/ws/v1/metrics"):
            metrics = await client.get(path)
            # YuniKorn's version of the text format: readers in Go refuse versions that they do not know.
            assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert 'muster_view_requests_total{route="/health",status="200"}' in metrics.text
            assert "muster_view_lag_records" in metrics.text


async def test_the_lag_is_in_a_header(filled: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with filled.view() as view, client_of(view) as client:
        answer = await client.get("/ws/v1/clusters")
        assert answer.headers["x-muster-lag-records"] == "0"
        # The lag of the named RM, or of all.
        monkeypatch.setattr(view, "lag_records", {"rm1": 3, None: 9}.__getitem__)
        for path, lag in (("/ws/v1/clusters", "3"), ("/ws/v1/metrics?rm=rm1", "3"), ("/ws/v1/metrics", "9")):
            assert (await client.get(path)).headers["x-muster-lag-records"] == lag
