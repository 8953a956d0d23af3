"""The figures of muster.v1.Metrics, over a log in memory: every field, limits, and small steps."""

from __future__ import annotations

import os
from typing import Any

import pytest
from builders import ask
from google.protobuf import json_format
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_proto.muster.v1 import metrics_pb2
from muster_state.state_folder import RmEntry
from muster_state.tally import Tally
from muster_view.metrics.recent import RecentAllocations
from muster_view.rest import json_render, snapshot
from muster_view.rest.snapshot import Section, SnapshotQuery, ViewLag
from unit.view.recorded import Bench, Recorded, client_of

S = "/ws/v1/metrics/snapshot"
QUEUES = """
{name: root, submitacl: '*', queues: [
  {name: p, queues: [
    {name: a, resources: {guaranteed: {vcore: 2}, max: {vcore: 4}}, maxapplications: 3}, {name: b}]},
  {name: c}]}
"""


def made(bench: Bench) -> Recorded:
    """Make two nodes, one draining, and x (runs, pending asks) in p.a, y (pending asks) in p.b, z (nothing) in c."""
    rm = bench.rm(queues=QUEUES)
    rm.cluster.node("n1", vcore=10_000, memory=100)
    rm.cluster.node("n2", vcore=4_000)
    rm.do(
        UpdateNodes(
            (NodeItem("n2", NodeAction.UPDATE, occupied={"vcore": 1_000}), NodeItem("n2", NodeAction.DRAIN_NODE))
        ),
        UpdateApplications(
            tuple(
                AppItem(name, f"root.{queue}", "default", "u")
                for name, queue in (("x", "p.a"), ("y", "p.b"), ("z", "c"))
            )
        ),
    )
    rm.do(UpdateAllocations([ask("x", f"k{number}", vcore=1_500, memory=10) for number in range(4)]))
    rm.do(UpdateAllocations([ask("y", "huge", vcore=50_000)]))
    rm.info.tally = Tally(*range(1, 19))
    rm.info.next_event_id = 99
    return rm


async def get(bench: Bench, query: str = "", status: int = 200) -> Any:
    async with bench.view() as view, client_of(view) as client:
        answer = await client.get(f"{S}{query}")
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_scheduler_in_figures(bench: Bench) -> None:
    await bench.write(made(bench))
    found = await get(bench, "?sections=scheduler")
    assert found.pop("takenNs") > 0
    recent = found["scheduler"].pop("recent")
    assert (recent["allocations"], recent["perSecond"], recent["waitP99Ms"]) == (0, 0.0, None)
    assert found == {
        "rmId": "rm1",
        "state": "RUNNING",
        "stateSinceNs": 0,
        "paused": False,
        "description": "It is connected.",
        "scheduler": {
            "applications": {"Accepted": 1, "New": 1, "Running": 1},
            "nodes": 2,
            "nodesDraining": 1,
            "asksPending": 3,
            "allocations": 2,
            "reservations": 0,
            "pendingByReason": {"QUEUE_MAX": 2, "LARGER_THAN_ANY_NODE": 1},
            "tally": {
                "allocated": 1, "released": 2, "preempted": 3, "timedOut": 4, "replaced": 5, "reported": 6,
                "ended": 7, "dropped": 8, "asksRejected": 9, "applicationsAccepted": 10, "applicationsRejected": 11,
                "nodesAccepted": 12, "nodesRejected": 13, "questions": 14, "questionsRefused": 15,
                "questionsUnanswered": 16, "events": 99, "decisions": 17, "decidingUs": 18,
            },
            "capacity": {"memory": 100, "vcore": 14_000},
            "allocated": {"memory": 20, "vcore": 3_000},
            "pending": {"memory": 20, "vcore": 53_000},
        },
    }  # fmt: skip


async def test_queues_parents_first_with_what_is_below(bench: Bench) -> None:
    await bench.write(made(bench))
    queues = (await get(bench, "?sections=queues"))["queues"]
    assert [(queue["path"], queue["applications"], queue["leaf"]) for queue in queues] == [
        ("root", 3, False), ("root.p", 2, False), ("root.p.a", 1, True), ("root.p.b", 1, True), ("root.c", 1, True),
    ]  # fmt: skip
    assert queues[0]["max"] == {"memory": 100, "vcore": 14_000}, "root's max is the cluster"
    assert queues[2] == {
        "path": "root.p.a", "state": "Active", "leaf": True, "guaranteed": {"vcore": 2_000}, "max": {"vcore": 4_000},
        "allocated": {"memory": 20, "vcore": 3_000}, "pending": {"memory": 20, "vcore": 3_000}, "preempting": {},
        "applications": 1, "applicationsRunning": 1, "applicationsMax": 3,
    }  # fmt: skip


async def test_one_queue_with_what_is_below_it(bench: Bench) -> None:
    await bench.write(made(bench))
    queues = (await get(bench, "?sections=queues&queue=root.P"))["queues"]
    assert [(queue["path"], queue["applications"]) for queue in queues] == [
        ("root.p", 2),
        ("root.p.a", 1),
        ("root.p.b", 1),
    ]


async def test_nodes_fullest_first(bench: Bench) -> None:
    rm = made(bench)
    rm.cluster.node("n3", vcore=1_000)
    await bench.write(rm)
    nodes = (await get(bench, "?sections=nodes"))["nodes"]
    assert [(node["nodeId"], node["usedPercent"], node["schedulable"]) for node in nodes] == [
        ("n1", 30, True), ("n2", 25, False), ("n3", 0, True),
    ]  # fmt: skip
    assert nodes[0] == {
        "nodeId": "n1", "schedulable": True, "capacity": {"memory": 100, "vcore": 10_000},
        "allocated": {"memory": 20, "vcore": 3_000}, "occupied": {}, "available": {"memory": 80, "vcore": 7_000},
        "allocations": 2, "usedPercent": 30,
    }  # fmt: skip
    assert nodes[1]["occupied"] == {"vcore": 1_000}
    assert [node["nodeId"] for node in (await get(bench, "?sections=nodes&nodes=2"))["nodes"]] == ["n1", "n2"]


async def test_an_over_committed_node_is_more_than_full(bench: Bench) -> None:
    rm = made(bench)
    rm.do(UpdateNodes((NodeItem("n1", NodeAction.UPDATE, capacity={"vcore": 1_000}),)))
    await bench.write(rm)
    (node,) = (await get(bench, "?sections=nodes&nodes=1"))["nodes"]
    assert (node["nodeId"], node["usedPercent"]) == ("n1", 300)
    assert node["available"] == {"memory": -20, "vcore": -2_000}


async def test_asks_of_one_group_are_counted_together_and_those_that_are_alone_too(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=10_000)
    rm.do(UpdateApplications((AppItem("g", "root.b", "default", "u"),)))
    rm.do(UpdateAllocations([AskItem("p", "g", "default", {"vcore": 1_000}, task_group="t", placeholder=True)]))
    rm.do(UpdateAllocations([AskItem("real", "g", "default", {"vcore": 1_000}, task_group="t")]))
    rm.do(UpdateAllocations([ask("g", "huge", vcore=20_000), ask("g", "huge2", vcore=20_000)]))
    await bench.write(rm)
    scheduler = (await get(bench, "?sections=scheduler"))["scheduler"]
    assert scheduler["asksPending"] == 3
    assert scheduler["pendingByReason"] == {"PLACEHOLDER_LEAVING": 1, "LARGER_THAN_ANY_NODE": 2}


async def test_nothing_is_decided_says_so_for_all(bench: Bench) -> None:
    rm = made(bench)
    rm.info.life = "STOPPED"
    await bench.write(rm)
    assert (await get(bench, "?sections=scheduler"))["scheduler"]["pendingByReason"] == {"RM_STOPPED": 3}


async def test_the_view_itself(bench: Bench) -> None:
    await bench.write(made(bench))
    runtime = (await get(bench, "?sections=runtime"))["runtime"]
    assert (runtime["viewLagRecords"], runtime["viewLagSeconds"]) == (0, 0)
    (process,) = runtime["processes"]
    assert (process["name"], process["pid"]) == ("view", os.getpid())
    assert process["memoryBytes"] > 1 << 20
    assert process["cpuSeconds"] > 0
    assert process["garbageCollections"] > 0
    assert process["uptimeSeconds"] > 0


async def test_everything_is_the_interfaces_message(bench: Bench) -> None:
    await bench.write(made(bench))
    found = await get(bench)
    for process in found["runtime"]["processes"]:
        del process["host"], process["pid"]
    parsed = json_format.ParseDict(found, metrics_pb2.MetricsSnapshot())
    assert [field.name for field, _ in parsed.ListFields()] == [
        "taken_ns", "rm_id", "scheduler", "queues", "nodes", "runtime", "state", "description",
    ]  # fmt: skip
    for one in (parsed.scheduler.tally, parsed.scheduler):
        told = {field.name for field, _ in one.ListFields()}
        assert {field.name for field in one.DESCRIPTOR.fields} - told <= {"reservations"}


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("?sections=queue", 400, "Section 'queue' is not known: expected some of scheduler, queues, nodes, runtime"),
        ("?sections=nodes&nodes=0", 400, "Number of nodes '0': expected 1 to 10000"),
        ("?nodes=10001", 400, "Number of nodes '10001': expected 1 to 10000"),
        ("?nodes=-1", 400, "Number of nodes '-1': expected 1 to 10000"),
        (f"?nodes={'9' * 50}", 400, f"Number of nodes '{'9' * 50}': expected 1 to 10000"),
        ("?partition=nope", 404, "Partition not found: 'nope'"),
        ("?queue=root.nope", 404, "Queue not found: 'root.nope'"),
        (
            "?queue=root..a",
            400,
            "Invalid queue name 'root..a': each part between dots takes 1 to 64 of letters, digits and _ : # / @ -",
        ),
        ("?rm=nope", 404, "Resource manager not found: 'nope'"),
    ],
)
async def test_invalid_parameters_get_a_clear_answer(bench: Bench, query: str, status: int, message: str) -> None:
    await bench.write(made(bench))
    assert (await get(bench, query, status))["message"] == message


async def test_without_an_rm_there_is_nothing_to_show(bench: Bench) -> None:
    assert (await get(bench, "", 404))["message"] == "No resource manager is registered"


async def test_of_several_rms_one_is_named(bench: Bench) -> None:
    await bench.write(made(bench), bench.rm("other"))
    assert (await get(bench, "", 400))["message"].startswith("Several resource managers are registered")
    assert (await get(bench, "?rm=other"))["rmId"] == "other"


async def test_it_follows(bench: Bench) -> None:
    rm = made(bench)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        before = (await client.get(f"{S}?sections=scheduler")).json()["scheduler"]
        rm.do(UpdateAllocations((), [ReleaseItem("default", "x", "k0", Termination.STOPPED_BY_RM)]))
        rm.info.tally.released += 1
        await bench.write(rm)
        after = (await client.get(f"{S}?sections=scheduler")).json()["scheduler"]
    assert after["tally"]["released"] == before["tally"]["released"] + 1
    assert (before["asksPending"], after["asksPending"]) == (3, 2)


def test_ten_thousand_nodes_are_looked_at_in_many_small_steps(bench: Bench) -> None:
    """Other requests are answered between two steps, so no step may visit all nodes."""
    rm = bench.rm()
    rm.do(UpdateNodes(tuple(NodeItem(f"n{n}", NodeAction.CREATE, capacity={"vcore": 1_000}) for n in range(10_000))))
    partition = rm.cluster.partition
    wanted = SnapshotQuery(frozenset(Section), partition, partition.root, 1_000)
    pieces = list(
        snapshot.snapshot(RmEntry(rm.info, rm.cluster.core), wanted, ViewLag(0, 0.0), RecentAllocations(), 1, "")
    )
    assert len(pieces) > 2 * 10_000 / 500 + 1_000 / 100
    assert max(piece.count(b'"nodeId"') for piece in pieces) <= json_render._PER_PIECE


def test_a_node_that_goes_between_two_pieces_is_left_out(bench: Bench) -> None:
    rm = bench.rm()
    rm.do(UpdateNodes(tuple(NodeItem(f"n{n}", NodeAction.CREATE, capacity={"vcore": 1_000}) for n in range(300))))
    partition = rm.cluster.partition
    wanted = SnapshotQuery(frozenset({Section.NODES}), partition, partition.root, 1_000)
    shown = b""
    for piece in snapshot.snapshot(
        RmEntry(rm.info, rm.cluster.core), wanted, ViewLag(0, 0.0), RecentAllocations(), 1, ""
    ):
        if b'"n0"' in piece:
            rm.do(UpdateNodes((NodeItem("n299", NodeAction.DECOMISSION),)))
        shown += piece
    assert b'"n298"' in shown
    assert b'"n299"' not in shown
