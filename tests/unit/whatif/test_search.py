"""The smallest purchase that reaches a goal, against trying every number."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster_cli import simulate
from muster_whatif.capacity_search import CapacityGoal, search
from muster_whatif.errors import InvalidScenario
from muster_whatif.matrix import ExperimentPoint, run
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.stats import figures
from muster_whatif.workload_source import WorkloadSource

LOADED = "generate:tasks=150,nodes=3,cores=8,load=1.6"


def test_the_number_is_the_smallest_that_is_enough() -> None:
    source, goal = WorkloadSource(LOADED), CapacityGoal.parse("p95 wait < 60 s")
    config = source.read().config
    more, steps = search(
        ExperimentPoint(source, Scenario("s", config)), "node", goal, lambda point: run([point], processes=1)[0]
    )
    assert more is not None
    assert more > 0
    reached = [
        goal.is_reached(figures(play(source.read(), Scenario("s", config, (f"+{count}:node",) if count else ()))))
        for count in range(more + 1)
    ]
    assert reached == [False] * more + [True]
    assert {step.more for step in steps if step.is_reached} >= {more}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("p95 wait of root.ml < 10m", ("p95", "queues", "root.ml", 600)),
        ("max wait of user ann < 1.5 h", ("max", "users", "ann", 5_400)),
        ("p50 wait of priority 3 < 2 d", ("p50", "priorities", "3", 172_800)),
        ("p50 wait < 5 min", ("p50", "", "", 300)),
    ],
)
def test_goals(text: str, found: tuple[str, str, str, float]) -> None:
    goal = CapacityGoal.parse(text)
    assert (goal.percentile, goal.group, goal.name, goal.below_s) == found


@pytest.mark.parametrize("text", ["p95 < 3", "p94 wait < 3 s", "p95 wait of root.ml > 3 s", "p95 wait < 3 weeks"])
def test_other_goals_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(InvalidScenario, match=r"expected \(p50\|p95\|max\) wait"):
        CapacityGoal.parse(text)


def test_a_goal_of_nobody_is_refused() -> None:
    source = WorkloadSource("generate:tasks=5,nodes=1")
    found = run([ExperimentPoint(source, Scenario("s", source.read().config))])[0]
    with pytest.raises(InvalidScenario, match=r"no task of 'root\.ml', expected one of root\.queue-1"):
        CapacityGoal.parse("p95 wait of root.ml < 1 s").is_reached(found)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = {"tick_s": 0.0, "until_s": None, "keep": tmp_path, "json_file": None}
    assert simulate.search(WorkloadSource(LOADED), None, "node", "p95 wait < 60 s", **asked) == 0
    out = capsys.readouterr().out
    assert "more machines of kind node" in out
    assert "reached" in out


def test_no_purchase_helps_a_task_that_fits_no_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "narrow.yaml"
    config.write_text(
        "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: "
        "[{name: queue-1, resources: {max: {vcore: 100m}}}, {name: queue-2}, {name: queue-3}]}]}]"
    )
    asked = {"tick_s": 0.0, "until_s": None, "keep": None, "json_file": None}
    source = WorkloadSource("generate:tasks=5,nodes=1")
    assert simulate.search(source, config, "node", "max wait of root.queue-1 < 1 s", **asked) == 1
    assert "not even" in capsys.readouterr().out
