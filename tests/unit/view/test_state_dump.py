"""The whole state in one answer, with which history servers begin."""

from __future__ import annotations

import json

from builders import Cluster, nodes
from muster_core.model.commands import NodeAction, UpdateApplications
from muster_state.state_folder import RmEntry, RmInfo
from muster_view.rest import state_dump
from muster_view.rest.history import CountHistory
from unit.view.recorded import Bench, client_of

P = "/ws/v1/partition/default"
KEYS = [
    "timestamp",
    "partitions",
    "applications",
    "appHistory",
    "nodes",
    "clusterInfo",
    "containerHistory",
    "queues",
    "rmDiagnostics",
    "logLevel",
    "config",
    "placementRules",
]


async def test_it_is_what_the_endpoints_say(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.node("n2", vcore=10_000)
    for name in ("x", "y", "over"):
        rm.cluster.app(name, "root.b")
    rm.cluster.ask("x", "k1", vcore=3_000)
    rm.cluster.ask("over", "k2", vcore=3_000)
    rm.cluster.release("over", "k2")
    rm.cluster.wait(31)
    rm.cluster.app("bad", "root.nope")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:

        async def get(path: str) -> object:
            return (await client.get(path, headers={"Accept": "application/json"})).json()

        dump = (await client.get("/ws/v1/fullstatedump", follow_redirects=True)).json()
        assert list(dump) == KEYS
        assert dump["timestamp"] > 0
        assert dump["partitions"] == await get("/ws/v1/partitions")
        apps = {app["applicationID"]: app["applicationState"] for app in dump["applications"]}
        assert apps == {"x": "Running", "y": "New", "over": "Completed", "bad": "Rejected"}
        for state in ("active", "completed", "rejected"):
            for app in await get(f"{P}/applications/{state}"):  # type: ignore[attr-defined]
                assert app in dump["applications"]
        assert dump["nodes"] == [{"partitionName": "default", "nodesInfo": await get(f"{P}/nodes")}]
        assert dump["queues"] == [await get(f"{P}/queues")]
        assert dump["clusterInfo"] == await get("/ws/v1/clusters")
        assert dump["config"] == await get("/ws/v1/config")
        assert dump["placementRules"] == [{"partition": "default", "rules": await get(f"{P}/placementrules")}]
        assert dump["appHistory"] == await get("/ws/v1/history/apps")
        assert dump["containerHistory"] == await get("/ws/v1/history/containers")
        assert dump["logLevel"] == await get("/ws/v1/loglevel")
        assert dump["rmDiagnostics"] == {"empty": "Resource Manager did not register callback"}


def test_objects_removed_during_the_dump_are_left_out() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    for name in ("1", "2", "3"):
        cluster.node(f"n{name}", vcore=1)
        cluster.app(f"x{name}", "root.a")
    dump = state_dump.pieces(RmEntry(RmInfo("rm1"), cluster.core), CountHistory(), {}, 7)
    whole = b""
    for begun, goes in (
        (b'"applicationID":"x1"', UpdateApplications(remove=(("default", "x2"),))),
        (b'"nodeID":"n1"', nodes(NodeAction.DECOMISSION, {"n2": None})),
    ):
        while begun not in whole:
            whole += next(dump)
        cluster.do(goes)
    found = json.loads(whole + b"".join(dump))
    assert [app["applicationID"] for app in found["applications"]] == ["x1", "x3"]
    assert [node["nodeID"] for node in found["nodes"][0]["nodesInfo"]] == ["n1", "n3"]


async def test_an_rm_that_could_be_asked_is_asked_elsewhere(bench: Bench) -> None:
    rm = bench.rm()
    rm.info.callbacks.connected = rm.info.callbacks.state_dump = True
    rm.info.callbacks_since_ns = 1
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        dump = (await client.get("/debug/fullstatedump")).json()
    assert "muster admin dump" in dump["rmDiagnostics"]["empty"]


async def test_of_several_rms_one_is_named(bench: Bench) -> None:
    await bench.write(bench.rm("rm1"), bench.rm("rm2"))
    async with bench.view() as view, client_of(view) as client:
        assert (await client.get("/debug/fullstatedump")).status_code == 400
        assert (await client.get("/debug/fullstatedump?rm=rm3")).status_code == 404
        dump = (await client.get("/ws/v1/fullstatedump?rm=rm2", follow_redirects=True)).json()
    assert dump["partitions"][0]["clusterId"] == "rm2"


async def test_without_any_rm_it_is_empty(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        dump = (await client.get("/debug/fullstatedump")).json()
    assert list(dump) == ["timestamp", "rmDiagnostics", "logLevel", "config"]
    assert dump["config"]["Partitions"] == []


async def test_lists_without_anything_are_left_out(bench: Bench) -> None:
    rm = bench.rm()
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        without = (await client.get("/debug/fullstatedump")).json()
        rm.cluster.app("x", "root.a")
        await bench.write(rm)
        dump = (await client.get("/debug/fullstatedump")).json()
    assert list(without) == [key for key in KEYS if key != "applications"]
    assert without["nodes"] == [{"partitionName": "default"}]
    assert [app["applicationID"] for app in dump["applications"]] == ["x"]


async def test_a_type_that_comes_after_a_refusal(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.cluster.app("bad", "root.nope")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        assert len((await client.get(f"{P}/applications/rejected")).json()) == 1
        rm.cluster.node("n2", card=3)
        await bench.write(rm)
        (refused,) = (await client.get(f"{P}/applications/rejected")).json()
        assert "pendingResource" not in refused
        assert (await client.get("/debug/fullstatedump")).json()["applications"] == [refused]


def test_its_two_histories_are_of_one_moment() -> None:
    cluster = Cluster("{name: root, submitacl: '*', queues: [{name: a}]}")
    states, history = {"rm1": RmEntry(RmInfo("rm1"), cluster.core)}, CountHistory()
    history.take(states, 1)
    dump = b""
    for piece in state_dump.pieces(states["rm1"], history, {}, 7):
        dump += piece
        history.take(states, 2 + len(dump))  # time goes on while it is sent
    said = json.loads(dump)
    assert [each["timestamp"] for each in said["appHistory"]] == [1]
    assert [each["timestamp"] for each in said["containerHistory"]] == [1]
