"""The view shows the folded state exactly as it shows the scheduler's own core."""

from __future__ import annotations

import json

import pytest
from muster_core.model.commands import AskItem, UpdateAllocations
from muster_view.rest import dao, json_render
from unit.view.recorded import Bench, Recorded, client_of
from unordered import unordered

QUEUES = """
{name: root, submitacl: '*', limits: [{limit: l, users: ['*'], maxapplications: 9}], queues: [
  {name: a, resources: {guaranteed: {vcore: 4m}}, properties: {preemption.delay: 1s, priority.offset: '3'}},
  {name: b, properties: {preemption.policy: fence}},
  {name: p, parent: true, childtemplate: {maxapplications: 2, resources: {max: {vcore: 1}}}}]}
"""
P = "/ws/v1/partition/default"
DAEMON = {"yunikorn.apache.org/requiredNode": "n2"}


def busy(rm: Recorded) -> None:
    """Reservations, daemons, preemption, limits, dynamic queues, applications of every kind."""
    cluster = rm.cluster
    cluster.node("n1", vcore=10)
    cluster.node("n2", vcore=2)
    for app, queue in (("x", "root.a"), ("y", "root.b"), ("d", "root.b"), ("z", "root.p.dynamic")):
        cluster.app(app, queue)
    cluster.do(
        UpdateAllocations([AskItem(f"v{n}", "y", "default", {"vcore": 2}, allow_preempt_self=True) for n in range(6)])
    )
    cluster.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 2}, priority=5, allow_preempt_other=True)]))
    cluster.do(UpdateAllocations([AskItem("daemon", "d", "default", {"vcore": 1}, tags=DAEMON)]))
    cluster.ask("d", "large", vcore=9)
    cluster.ask("z", "k", vcore=2)
    cluster.wait(4)
    assert any(held.preempted for held in cluster.application("y").allocations.values())
    assert any(node.reservations for node in cluster.partition.nodes.values())


@pytest.mark.parametrize("piecemeal", [False, True], ids=["collected", "followed"])
async def test_the_shown_is_the_decided(bench: Bench, *, piecemeal: bool) -> None:
    rm = bench.rm(queues=QUEUES)
    await bench.write(rm)
    if not piecemeal:
        busy(rm)
        await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        if piecemeal:
            busy(rm)
            await bench.write(rm)
        partition = rm.cluster.partition
        expected = {
            f"{P}/queues": json_render.line(
                json_render.queue(partition, partition.root, tree=True, shown_partition=partition.name)
            ),
            "/ws/v1/partitions": json_render.body([dao.partition_info(rm.info, partition)]),
            **{
                f"{P}/node/{node.node_id}": json_render.line(json_render.node(partition, node))
                for node in partition.nodes.values()
            },
            **{
                f"{P}/application/{app.app_id}": json_render.line(json_render.application(partition, app))
                for app in partition.apps.values()
            },
        }
        for path, pieces in expected.items():
            answer = await client.get(path)
            assert unordered(answer.json()) == unordered(json.loads(b"".join(pieces))), path
        health = (await client.get("/ws/v1/scheduler/healthcheck")).json()
        assert health["Healthy"], health
