"""The trace that ships with the project, and invalid traces."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from muster_replay.errors import TraceError
from muster_replay.trace import GPU, read_trace, total
from muster_si.constants import CPU, MEMORY

OPENB = Path(__file__).parents[3] / "examples" / "openb"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,1000,2,1,T4\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p2,500,1,1,460,,LS,Running,90000,0,0\n"
    "p1,500,1,0,,,BE,Running,5,0,0\n"
)


def write(directory: Path, nodes: str = NODES, pods: str = PODS) -> Path:
    (directory / "nodes.csv.gz").write_bytes(gzip.compress(nodes.encode()))
    (directory / "pods.csv.gz").write_bytes(gzip.compress(pods.encode()))
    (directory / "queues.yaml").write_text("partitions: []\n")
    return directory


def test_openb_is_what_its_source_says() -> None:
    trace = read_trace(OPENB)
    assert (len(trace.nodes), len(trace.tasks), len(trace.applications)) == (1_523, 8_152, 1_461)
    assert trace.capacity()[GPU] == 6_212_000
    assert trace.capacity()[CPU] == 125_514_000
    demand = total([task.resources for task in trace.tasks])
    assert demand[GPU] // 1_000 == 6_086
    assert demand[CPU] // 1_000 == 85_436
    assert len({tuple(sorted(task.resources.items())) for task in trace.tasks}) == 151
    assert [task.created_s for task in trace.tasks] == sorted(task.created_s for task in trace.tasks)


def test_units_queue_and_order(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path))
    assert trace.nodes[0].resources == {CPU: 1_000, MEMORY: 2 * 2**20, GPU: 1_000}
    first, second = trace.tasks
    assert (first.name, first.resources) == ("p1", {CPU: 500, MEMORY: 2**20})
    assert second.resources[GPU] == 460
    asked = second.as_ask()
    assert (asked.allocationKey, asked.nodeID) == ("p2", "")
    applications = trace.as_applications()
    assert [(item.queueName, item.partitionName) for item in applications] == [
        ("root.openb.be", "default"),
        ("root.openb.ls", "default"),
    ]
    assert applications[1].applicationID == asked.applicationID == "ls-day001-500-1-1-460"
    node = trace.nodes[0].as_node()
    assert node.attributes["si/instance-type"] == "T4"


@pytest.mark.parametrize(
    ("nodes", "pods", "words"),
    [
        (NODES.replace("1000", "-1"), PODS, r"nodes.csv.gz line 2: column cpu_milli is '-1', expected a count"),
        (NODES.replace("1000", "1.5"), PODS, r"column cpu_milli is '1.5'"),
        (NODES.replace("n1", ""), PODS, r"line 2: column sn is empty"),
        (NODES.replace("gpu,", "gpus,"), PODS, r"column gpu is missing"),
        (NODES + "n1,1,1,0,\n", PODS, r"n1 is there twice"),
        (NODES, PODS + "p1,5,1,0,,,BE,Running,5,0,0\n", r"pods.csv.gz: p1 is there twice"),
        (NODES, PODS.replace("90000", "soon"), r"pods.csv.gz line 2: column creation_time is 'soon'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, nodes: str, pods: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read_trace(write(tmp_path, nodes, pods))


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nodes\.csv\.gz"):
        read_trace(tmp_path)
    write(tmp_path)
    (tmp_path / "queues.yaml").write_bytes(b"\xff")
    with pytest.raises(TraceError, match=r"queues\.yaml"):
        read_trace(tmp_path)
    (tmp_path / "queues.yaml").unlink()
    assert "name: openb" in read_trace(tmp_path).queue_config
    (tmp_path / "pods.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(TraceError, match=r"pods\.csv\.gz"):
        read_trace(tmp_path)
