"""Samples of the numbers of applications and allocations."""

from __future__ import annotations

import asyncio

from builders import Cluster
from muster_core.model.commands import AskItem, UpdateAllocations
from muster_state.state_folder import RmEntry, RmInfo
from muster_view.rest.history import SAMPLES_MAX, CountHistory
from unit.view.recorded import Bench, client_of

OPEN = "{name: root, submitacl: '*', queues: [{name: a}]}"


def test_running_applications_and_allocations() -> None:
    cluster, history = Cluster(OPEN), CountHistory()
    states = {"rm1": RmEntry(RmInfo("rm1"), cluster.core)}
    cluster.node("n1", vcore=10)
    cluster.app("x", "root.a")
    cluster.app("waits", "root.a")
    cluster.app("accepted", "root.a")
    cluster.ask("accepted", "too large", vcore=99)
    history.take(states, 1)
    cluster.ask("x", "k1", vcore=1)
    cluster.ask("x", "k2", vcore=1)
    history.take(states, 2)
    cluster.release("x", "k1")
    history.take(states, 3)
    assert [(each.timestamp, each.total_applications) for each in history.applications("rm1")] == [
        (1, "0"),
        (2, "1"),
        (3, "1"),
    ]
    assert [each.total_containers for each in history.containers("rm1")] == ["0", "2", "1"]


def test_allocations_that_the_rm_brings_back_count_and_foreign_ones_do_not() -> None:
    cluster, history = Cluster(OPEN), CountHistory()
    cluster.node("n1", vcore=10)
    cluster.app("x", "root.a")
    tags = {"foreign": "default"}
    cluster.do(
        UpdateAllocations(
            [
                AskItem("k1", "x", "default", {"vcore": 1}, node_id="n1"),
                AskItem("f1", "", "default", {"vcore": 1}, node_id="n1", tags=tags),
            ]
        )
    )
    history.take({"rm1": RmEntry(RmInfo("rm1"), cluster.core)}, 1)
    assert [each.total_containers for each in history.containers("rm1")] == ["1"]


def test_a_day_is_kept_and_rms_that_are_gone_are_forgotten() -> None:
    history, states = CountHistory(), {"rm1": RmEntry(RmInfo("rm1"), Cluster(OPEN).core)}
    for minute in range(SAMPLES_MAX + 5):
        history.take(states, minute)
    assert [each.timestamp for each in history.applications("rm1")][:: SAMPLES_MAX - 1] == [5, SAMPLES_MAX + 4]
    history.take({}, 0)
    assert history.containers("rm1") == []


async def test_the_service_takes_them(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10)
    rm.cluster.app("x", "root.b")
    rm.cluster.ask("x", "k1", vcore=1)
    await bench.write(rm)
    async with bench.view(history_interval_s=0.01) as view, client_of(view) as client:
        async with asyncio.timeout(60):
            found: list[dict[str, str]] = []
            while len(found) < 3:
                found = (await client.get("/ws/v1/history/containers")).json()
        assert {each["totalContainers"] for each in found} == {"1"}
        assert {each["totalApplications"] for each in (await client.get("/ws/v1/history/apps")).json()} == {"1"}
        times = [each["timestamp"] for each in found]
        assert times == sorted(times)


async def test_without_any_rm_there_is_none(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        for name in ("apps", "containers"):
            assert (await client.get(f"/ws/v1/history/{name}")).content == b"[]\n"
