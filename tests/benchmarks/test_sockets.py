"""The driver in Go measures both systems: each scenario ends, with the figures that its tables show."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.harness import embedded

from bench.compare_bench import ROOT, git, system, worktree
from bench.peer_bench import ROWS
from bench.sockets import SCENARIOS, Scenario, System, build, measure, muster, peer

pytestmark = pytest.mark.usefixtures("not_forked")  # the processes are measured

SMALL = {
    "front": "--nodes 10 --asks 300 --applications 10",
    "large": "--nodes 20 --asks 500 --applications 10",
    "mixed": "--nodes 10 --asks 300 --applications 20",
    "churn": "--nodes 10 --asks 300 --applications 10",
    "clock-500": "--nodes 10 --seconds 0.5",
    "clock-100": "--nodes 10 --seconds 0.5",
}


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build("driver", "server")


@pytest.mark.parametrize("name", ["peer", "embedded"])
def test_each_scenario_gives_the_figures_of_its_rows(tmp_path: Path, name: str) -> None:
    systems: dict[str, System] = {"peer": peer, "embedded": lambda place: muster(embedded(place))}
    small = [Scenario(each.name, f"{each.arguments} {SMALL[each.name]}") for each in SCENARIOS]
    found = measure(small, {name: systems[name]}, 1, tmp_path)
    for row in ROWS:
        if row.figure != "cpu_ms_followers" or name == "embedded":
            assert row.figure in found[row.scenario][name][0], row


def test_another_revision_runs_its_own_code(tmp_path: Path) -> None:
    with worktree("HEAD") as before:
        core = before / "libs" / "core" / "src" / "muster_core" / "__init__.py"
        core.write_text("raise SystemExit('the other revision')\n")
        place = tmp_path / "other"
        place.mkdir()
        with pytest.raises(Exception, match="the other revision"), system(before)(place):
            pass
        assert str(before) in git("worktree", "list")
    assert str(before) not in git("worktree", "list")
    assert (ROOT / "libs").exists()
