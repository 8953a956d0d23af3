"""A node explained over REST: its allocations, asks that wait, its state; ids of any shape; 404."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import httpx
import pytest
from builders import nodes
from muster_core.external.model import ApplyExternalChanges, ExternalChange, ExternalOffer, kind_of
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    NodeItem,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from muster_gateway.view_client import ViewClient, path_of
from muster_si.constants import REQUIRED_NODE_TAG
from muster_state.state_folder import RmEntry
from muster_view.explain import node
from muster_view.explain.asks import pause_of
from unit.view.recorded import Bench, client_of

E = "/ws/v1/explain"


async def get(http: httpx.AsyncClient, path: str, status: int = 200) -> Any:
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_node_with_work_and_with_asks_that_wait(bench: Bench) -> None:
    rm = bench.rm()
    cluster = rm.cluster
    cluster.node("n1", vcore=3, memory=100)
    for app, queue in (("x", "root.a"), ("y", "root.b")):
        cluster.app(app, queue)
    cluster.ask("x", "runs", vcore=2, memory=10)
    for key in ("k1", "k2"):
        cluster.ask("y", key, vcore=2)
    cluster.ask("y", "k3", memory=91)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as http:
        found = await get(http, f"{E}/node/n1")
    assert found["partition"] == "default"
    assert (found["schedulable"], found["ready"]) == (True, True)
    assert found["capacity"] == {"vcore": 3, "memory": 100}
    assert found["available"] == {"vcore": 1, "memory": 90}
    assert found["waiting"] == {
        "asks": 3, "fit": 0, "reasons": {}, "elsewhere": 0,
        "lacking": [{"resourceType": "memory", "asks": 1}, {"resourceType": "vcore", "asks": 2}],
    }  # fmt: skip
    (runs,) = found["allocations"]
    assert (runs["applicationID"], runs["allocationKey"], runs["told"]) == ("x", "runs", "")
    assert found["message"] == (
        "It has 1 allocation. Of 3 pending asks it has room for none; for 1 it has too little memory, "
        "for 2 it has too little vcore."
    )


async def test_offers_that_are_wanted_back_say_until_when(bench: Bench) -> None:
    rm = bench.rm()
    cluster = rm.cluster

    def says(*offers: ExternalOffer) -> None:
        changes = tuple(ExternalChange(kind_of(each), each.offer_id, each) for each in offers)
        rm.do(ApplyExternalChanges("default", "mesos", "life", changes))

    lent = [ExternalOffer(name, "agent", {"vcore": 4}, grace_ns=60 * 10**9) for name in ("o1", "o2", "o3")]
    says(*lent)
    cluster.app("x", "root.a")
    cluster.ask("x", "runs", vcore=12)
    says(replace(lent[0], revoked=True), replace(lent[1], revoked=True, grace_ns=90 * 10**9))
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as http:
        found = await get(http, f"{E}/node/agent")
    deadline = cluster.now_ns + 60 * 10**9
    assert found["wantedBack"][0] == {
        "source": "mesos", "offer": "o1", "resource": {"vcore": 4}, "withdrawn": False, "deadline": deadline,
    }  # fmt: skip
    assert [each["offer"] for each in found["wantedBack"]] == ["o1", "o2"]
    until = datetime.fromtimestamp(deadline // 10**9, tz=UTC)
    assert (
        "Offer o1 of source mesos and 1 more were revoked: allocations that do not fit without them are "
        f"preempted from {until:%Y-%m-%d %H:%M:%S} UTC." in found["message"]
    )


async def test_asks_that_fit_but_wait_have_their_reason(bench: Bench) -> None:
    rm = bench.rm()
    cluster = rm.cluster
    cluster.node("n1", vcore=100_000)
    cluster.app("x", "root.a")  # max: 4 vcores
    for number in range(6):
        cluster.ask("x", f"k{number}", vcore=1_000)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as http:
        found = await get(http, f"{E}/node/n1")
        assert found["waiting"]["fit"] == 2
        assert found["waiting"]["reasons"] == {"QUEUE_MAX": 2}
        rm.info.paused, rm.info.paused_reason = True, "new racks"
        await bench.write(rm)
        found = await get(http, f"{E}/node/n1")
    assert found["waiting"]["reasons"] == {"RM_HELD": 2}
    assert found["message"].startswith("An operator paused the resource manager (new racks); nothing is scheduled")


async def test_drained_and_not_ready_and_full(bench: Bench) -> None:
    rm = bench.rm()
    cluster = rm.cluster
    cluster.node("n1", vcore=1)
    cluster.app("y", "root.b")
    cluster.ask("y", "k", vcore=1)
    cluster.do(nodes(NodeAction.DRAIN_NODE, {"n1": None}))
    cluster.do(UpdateNodes((NodeItem("n1", NodeAction.UPDATE, {"ready": "false"}),)))
    found = _of(rm, "n1")
    assert (found["schedulable"], found["ready"]) == (False, False)
    assert found["message"] == (
        "It is drained by the resource manager: only asks that require this node can start on it. "
        "It has 1 allocation. "
        "No vcore is free. Its partition has no pending asks."
    )
    cluster.do(nodes(NodeAction.DRAIN_TO_SCHEDULABLE, {"n1": None}))
    said = "It is not ready: only asks that require this node can start on it."
    assert _of(rm, "n1")["message"].startswith(said)
    cluster.do(UpdateNodes((NodeItem("n1", NodeAction.UPDATE, capacity={"vcore": 2}),)))
    daemon = AskItem("daemon", "y", "default", {"vcore": 1}, tags={REQUIRED_NODE_TAG: "n1"})
    cluster.do(UpdateAllocations([daemon]))
    assert [each["allocationKey"] for each in _of(rm, "n1")["allocations"]] == ["k", "daemon"]


def test_foreign_allocations_are_listed_separately(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=4)
    rm.do(UpdateAllocations([AskItem("f1", "", "default", {"vcore": 1}, tags={"foreign": "static"}, node_id="n1")]))
    found = _of(rm, "n1")
    assert [each["allocationKey"] for each in found["foreign"]] == ["f1"]
    assert found["allocations"] == []
    assert found["occupied"] == {"vcore": 1}
    assert "It has no allocation, and 1 foreign allocation." in found["message"]


def test_many_that_wait_are_looked_at_in_many_small_steps(bench: Bench) -> None:
    """Other requests are answered between two steps, so no step may visit all asks."""
    groups, applications = 1_000, 500
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1)
    idle = tuple(AppItem(f"idle-{n}", "root.b", "default", "alice") for n in range(applications))
    rm.do(UpdateApplications(idle))
    rm.cluster.app("y", "root.b")
    rm.do(UpdateAllocations([AskItem(f"k{n}", "y", "default", {"memory": n + 1}) for n in range(groups)]))
    partition = rm.cluster.partition
    pieces = list(node.explain(partition, partition.nodes["n1"], 0, pause=None))
    empty = list(takewhile(lambda piece: not piece, pieces))
    assert len(empty) == (groups + applications + 1) // node._PER_STEP
    assert json.loads(b"".join(pieces))["waiting"]["asks"] == groups


def test_allocations_that_end_between_two_pieces_are_left_out(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=1)
    for app in ("x", "y"):
        rm.cluster.app(app, "root.b")
        rm.do(UpdateAllocations([AskItem(f"k{n}", app, "default", {"memory": n + 1}) for n in range(300)]))
    partition = rm.cluster.partition
    pieces = node.explain(partition, partition.nodes["n1"], 0, pause=None)
    assert next(pieces) == b""
    rm.do(UpdateApplications((), (("default", "x"), ("default", "y"))))
    found = json.loads(b"".join(pieces))
    # (The step before had visited these asks. x and the current application are left out.)
    assert found["waiting"]["asks"] == node._PER_STEP - 2


@pytest.mark.parametrize("node_id", ["a/b", "100%", "n ü", "..", "%2F", "a?b#c"])
async def test_ids_of_any_shape(bench: Bench, node_id: str) -> None:
    rm = bench.rm()
    rm.cluster.node(node_id, vcore=4)
    await bench.write(rm)
    async with bench.view() as view:
        answer = await ViewClient(view.asgi, 10, 100_000).get(path_of("explain", "node", node_id), "rm1")
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["node"] == node_id


async def test_a_missing_node_is_not_found(bench: Bench) -> None:
    rm = bench.rm()
    rm.cluster.node("n1", vcore=4)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as http:
        assert (await get(http, f"{E}/node/n2", 404))["message"] == "Node not found"
        assert (await get(http, f"{E}/node/n1?partition=other", 404))["message"] == "Partition not found"
        assert (await get(http, f"{E}/node/n1?rm=other", 404))["message"] == "Resource manager not found: 'other'"


def _of(rm: Any, node_id: str) -> dict[str, Any]:
    partition = rm.cluster.partition
    pieces = node.explain(partition, partition.nodes[node_id], 0, pause=pause_of(RmEntry(rm.info, rm.cluster.core)))
    found: dict[str, Any] = json.loads(b"".join(pieces))
    return found
