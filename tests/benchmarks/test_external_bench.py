"""The benchmark of external resources prints all its figures, at any speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", ["core", "machine"])
def test_the_scheduler_alone(which: str) -> None:
    command = [sys.executable, "-m", "bench.external_core", which]
    command += ["--nodes", "50", "--rounds", "1", "--asks", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert min(found["change_us"], found["allocations_per_s"], found["with_changes_per_s"]) > 0
    assert {len(rates) for rates in found["rounds_per_s"].values()} == {1}


def test_a_handler_of_what_the_rm_says() -> None:
    command = [sys.executable, "-m", "bench.external_native", "--nodes", "50", "--rounds", "1", "--asks", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["allocations_per_s"]) == set(found["message_ms"]) == {"none", "here", "process"}
    assert min(found["allocations_per_s"].values()) > 0
