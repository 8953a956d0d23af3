"""The core's benchmark prints all its figures, at any speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 280  # some seconds on an idle machine

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)
FIELDS = [
    "scenario",
    "nodes",
    "asks",
    "applications",
    "allocated",
    "allocations_per_s",
    "first_decile_per_s",
    "last_decile_per_s",
    "live_bytes_per_allocation",
]


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.core_bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.parametrize("scenario", ["single,20,2000,200", "mixed,10,1000,10"])
def test_a_run_is_one_json_line(scenario: str) -> None:
    done = _bench("--only", scenario)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert list(result) == FIELDS
    name, *numbers = scenario.split(",")
    assert [result[field] for field in FIELDS[:4]] == [name, *map(int, numbers)]
    assert 0.95 * result["asks"] < result["allocated"] <= result["asks"]
    assert min(result[field] for field in FIELDS[5:8]) > 0
    assert 100 < result["live_bytes_per_allocation"] < 100_000
    assert name in done.stderr


def test_idling_with_asks_that_cannot_fit_is_measured() -> None:
    done = _bench("--only", "pending", "--idle-s", "0.5")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["scenario"], result["asks"], result["allocated"]) == ("pending", 20_000, 0)
    assert result["cpu_percent"] >= 0


TENTHS = ("", "first_decile_", "last_decile_")
RATES = [f"{what}_{tenth}per_s" for what in ("placeholders", "replacements") for tenth in TENTHS]
MICROSECONDS = [
    "release_us",
    "first_decile_us",
    "last_decile_us",
    "longest_us",
    "ordinary_release_us",
    "idle_release_us",
    "idle_release_few_us",
]


@pytest.mark.parametrize(
    ("scenario", "figures"),
    [
        ("gangs,20,12,8", [*RATES, "longest_ms", "ordinary_per_s"]),
        ("gang-room,10,20,4", ["releases", *MICROSECONDS]),
        ("gang-sizes,10,20,4", ["releases", *MICROSECONDS]),
        ("gang-held,10,50,4", ["alone_per_s", "held_submitted_per_s", "idle_s", "beside_per_s"]),
    ],
)
def test_gangs_are_measured(scenario: str, figures: list[str]) -> None:
    done = _bench("--only", scenario, "--idle-s", "0.2")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    name, *numbers = scenario.split(",")
    head = ["scenario", "nodes", "gangs", "members"]
    assert [result[field] for field in head] == [name, *map(int, numbers)]
    # (An idle core costs nothing, so these two may be zero.)
    assert sorted(result) == sorted([*head, *figures, *(["ticks", "cpu_percent"] if name == "gang-held" else [])])
    assert min(result[field] for field in figures) > 0
    assert name in done.stderr


def test_a_scenario_that_there_is_not_is_refused() -> None:
    done = _bench("--only", "double,1,2,3")
    assert done.returncode == 2
    assert "expected SCENARIO,NODES,ASKS,APPLICATIONS or 'pending'" in done.stderr
    done = _bench("--only", "gang,1,2,3")
    assert done.returncode == 2
    assert "expected gangs|gang-room|gang-sizes|gang-held,NODES,GANGS,MEMBERS" in done.stderr
