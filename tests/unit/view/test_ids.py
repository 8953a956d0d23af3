"""Ids of objects: unique, sorted by age, and the same from every view (docs/history-servers.md)."""

from __future__ import annotations

import re
from typing import Any

from builders import nodes
from muster_bus.topics import Topics
from muster_core.model.commands import NodeAction, UpdateApplications
from muster_view.rest import object_ids
from unit.view.recorded import Bench, Recorded, client_of

P = "/ws/v1/partition/default"
DYNAMIC = "{name: root, submitacl: '*', queues: [{name: a}, {name: d, parent: true}]}"
RULES = "placementrules: [{name: provided, create: true}],"


def lives(rm: Recorded) -> None:
    rm.cluster.node("n1", vcore=10)
    rm.cluster.app("x", "root.a")
    rm.cluster.app("y", "root.d.new")
    rm.cluster.app("bad", "root.a.b")


async def test_they_are_the_same_from_each_view_and_after_a_restart(bench: Bench) -> None:
    rm = bench.rm(queues=DYNAMIC, partition=RULES)
    await bench.write(rm)
    found: list[Any] = []
    async with bench.view() as view, client_of(view) as client:
        lives(rm)
        await bench.write(rm)
        found.append(await asked(client))
    async with bench.view() as view, client_of(view) as client:
        found.append(await asked(client))
    assert found[0] == found[1]
    everything = [each for kind in found[0].values() for each in kind.values()]
    assert len(everything) == len(set(everything)) == 9, found[0]
    assert all(re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", each) for each in everything)


async def asked(client: Any) -> dict[str, dict[str, str]]:
    dump = (await client.get("/debug/fullstatedump")).json()
    (root,) = dump["queues"]
    queues = {each["queuename"]: each for each in walked(root)}
    apps = dump["applications"]
    ((node,),) = [each["nodesInfo"] for each in dump["nodes"]]
    (partition,) = dump["partitions"]
    for each in (*queues.values(), *apps, node):
        assert each["partition_id"] == partition["id"]
    for app in apps:
        assert app["queueID"] == queues.get(app["queueName"], root)["id"]
    for path, queue in queues.items():
        assert queue.get("parentID") == (queues[path.rpartition(".")[0]]["id"] if "." in path else None)
    return {
        "partition": {partition["name"]: partition["id"]},
        "queue": {path: each["id"] for path, each in queues.items()},
        "application": {each["applicationID"]: each["id"] for each in apps},
        "node": {node["nodeID"]: node["id"]},
    }


def walked(queue: Any) -> list[Any]:
    return [queue, *(below for child in queue.get("children", []) for below in walked(child))]


async def test_an_application_or_a_queue_that_comes_again_is_another_one_and_sorts_behind(bench: Bench) -> None:
    rm = bench.rm(queues=DYNAMIC, partition=RULES)
    cluster = rm.cluster
    seen: dict[str, list[str]] = {"app": [], "queue": [], "node": []}
    for _ in range(2):
        cluster.node("n1", vcore=10)
        cluster.app("y", "root.d.new")
        partition = cluster.partition
        seen["app"].append(object_ids.of_application(partition, cluster.application("y")))
        seen["queue"].append(object_ids.of_queue(partition, cluster.queue("root.d.new")))
        seen["node"].append(object_ids.of_node(partition, cluster.the_node("n1")))
        cluster.do(UpdateApplications(remove=(("default", "y"),)), nodes(NodeAction.DECOMISSION, {"n1": None}))
        cluster.wait(60)
        assert "root.d.new" not in partition.queues
    for kind in ("app", "queue"):
        first, second = seen[kind]
        assert first < second
    # A history server has one row for each node name. With another id it could not store the node, nor restart.
    assert len(set(seen["node"])) == 1


def test_of_two_resource_managers_they_differ() -> None:
    one, other = (Recorded(Topics(partitions=2), rm_id).cluster for rm_id in ("rm1", "rm2"))
    assert object_ids.of_partition(one.partition) != object_ids.of_partition(other.partition)
    assert object_ids.of_queue(one.partition, one.partition.root) != object_ids.of_queue(
        other.partition, other.partition.root
    )
