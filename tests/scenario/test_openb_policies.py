"""The node sort policies on a twelfth of the openb cluster, with demand for 130 % of its GPUs; its table and plot."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest
from muster_core.nodes.policies.registry import names
from muster_replay.trace import GPU, Trace, read_trace

OPENB = Path(__file__).parents[2] / "examples/openb"
DEMAND, SEED = 1.3, 7


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("openb_compare", OPENB / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for their module there
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(OPENB)  # as for a script: it imports what is beside it
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trace() -> Trace:
    whole = read_trace(OPENB)
    return Trace(whole.nodes[::12], whole.tasks, whole.queue_config, whole.applications)


@pytest.fixture(scope="module")
def results(compare: ModuleType, trace: Trace) -> dict[str, list[object]]:
    return {policy: [compare.run(trace, policy, DEMAND, SEED)] for policy in names()}


def test_demand_is_inflated_beyond_the_clusters_gpus(compare: ModuleType, trace: Trace) -> None:
    tasks = list(compare.inflated(trace, DEMAND, SEED))
    asked, gpus = sum(task.resources.get(GPU, 0) for task in tasks), trace.capacity()[GPU]
    assert DEMAND <= asked / gpus < DEMAND + 0.02
    assert tasks == list(compare.inflated(trace, DEMAND, SEED))
    assert tasks != list(compare.inflated(trace, DEMAND, SEED + 1))


def test_fragmentation_leaves_the_fewest_gpus_unallocated(results: dict[str, list]) -> None:  # type: ignore[type-arg]
    unallocated = {policy: runs[0].unallocated_gpus for policy, runs in results.items()}
    assert min(unallocated, key=unallocated.__getitem__) == "fragmentation"
    assert unallocated["fragmentation"] < 0.75 * unallocated["binpacking"]


def test_packing_policies_keep_whole_nodes_for_large_tasks(results: dict[str, list]) -> None:  # type: ignore[type-arg]
    refused = {policy: runs[0].refused[0] for policy, runs in results.items()}
    assert refused["fragmentation"] < refused["fair"]
    assert refused["binpacking"] < refused["fair"]


def test_every_gpu_is_allocated_or_not(compare: ModuleType, trace: Trace, results: dict[str, list]) -> None:  # type: ignore[type-arg]
    gpus = trace.capacity()[GPU] / 1000
    for (run,) in results.values():
        assert run.curve == tuple(sorted(run.curve))
        assert len(run.curve) == compare.STEPS
        assert run.unallocated_gpus / gpus == pytest.approx(1 - run.at(DEMAND, DEMAND), abs=0.02)
        assert run.stranded_gpus <= run.unallocated_gpus


def test_the_document_gets_table_and_plot(
    compare: ModuleType,
    results: dict[str, list],  # type: ignore[type-arg]
    tmp_path: Path,
) -> None:
    document = tmp_path / "node-policies.md"
    document.write_text(f"before\n{compare.BEGIN}\nold\n{compare.drawing.END}\nafter\n")
    compare.write(tmp_path, results, DEMAND)
    compare.write(tmp_path, results, DEMAND)  # again: the same
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")] == [
        "| policy",
        "| ---",
        *(f"| {policy}" for policy in names()),
    ]
    plot = ET.parse(tmp_path / "node-policies.svg").getroot()
    lines = plot.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(names())
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert all(compare.drawing.LEFT <= x <= compare.drawing.WIDTH - compare.drawing.RIGHT for x, _ in points)
        assert all(compare.drawing.TOP <= y <= compare.HEIGHT - compare.drawing.BOTTOM + 1 for _, y in points)


def test_the_committed_document_has_figures_for_each_policy(compare: ModuleType) -> None:
    text = (OPENB.parents[1] / "docs/node-policies.md").read_text()
    figures = text.partition(compare.BEGIN)[2].partition(compare.drawing.END)[0]
    assert all(f"| {policy} | " in figures for policy in names())
    assert "(node-policies.svg)" in text
