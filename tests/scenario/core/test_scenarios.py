"""Every scenario of this folder, one test each; and once more with a restart after each step."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario.core.runner import Scenario, read_scenarios, run

FILES = sorted(Path(__file__).parent.glob("*.yaml"))
SCENARIOS = [scenario for file in FILES for scenario in read_scenarios(file)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario(scenario: Scenario) -> None:
    run(scenario)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_restart_after_each_step_makes_no_difference(scenario: Scenario) -> None:
    run(scenario, restarts=True)


def test_no_two_scenarios_have_one_name() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert sorted(names) == sorted(set(names))
