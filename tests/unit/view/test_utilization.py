"""Utilization of nodes: ten buckets for each resource type."""

from __future__ import annotations

import pytest
from muster_view.rest.utilization import bucket_of
from unit.view.recorded import Bench, client_of


@pytest.mark.parametrize(
    ("used", "bucket"), [(0, 0), (1, 0), (10, 0), (11, 1), (20, 1), (90, 8), (91, 9), (100, 9), (250, 9)]
)
def test_which_bucket(used: int, bucket: int) -> None:
    assert bucket_of(used) == bucket


async def test_every_node_is_in_one_bucket_of_each_type_it_has(bench: Bench) -> None:
    rm = bench.rm()
    for number in range(1, 4):
        rm.cluster.node(f"n{number}", vcore=10, memory=100)
    rm.cluster.node("gpu", vcore=10, gpu=1)
    rm.cluster.app("x", "root.b")
    rm.cluster.ask("x", "k1", vcore=7, memory=25)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        (found,) = (await client.get("/ws/v1/scheduler/node-utilizations")).json()
    assert (found["clusterId"], found["partition"]) == ("rm1", "default")
    assert [each["type"] for each in found["utilizations"]] == ["gpu", "memory", "vcore"]
    names = [f"{low}-{low + 10}%" for low in range(0, 100, 10)]
    filled = {}
    for each in found["utilizations"]:
        assert [bucket["bucketName"] for bucket in each["utilization"]] == names
        for bucket in each["utilization"]:
            assert bucket.get("numOfNodes", 0) == len(bucket.get("nodeNames", []))
        filled[each["type"]] = [bucket.get("numOfNodes", 0) for bucket in each["utilization"]]
    assert filled == {
        "gpu": [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "memory": [2, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        "vcore": [3, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    }


async def test_without_nodes_there_are_no_types_and_without_rms_no_partitions(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        assert (await client.get("/ws/v1/scheduler/node-utilizations")).content == b"[]\n"
        await bench.write(bench.rm())
        assert (await client.get("/ws/v1/scheduler/node-utilizations")).json() == [
            {"clusterId": "rm1", "partition": "default", "utilizations": []}
        ]
