"""Tests that failed beside others run again by themselves, where that is asked for (tests/confirmed.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import confirmed

# A test that fails as often as its parameter says, and counts its runs.
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("fails", {fails})
def test_it(fails, request):
    runs = Path(f"{{request.node.name}}.runs")
    before = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (before + 1))
    assert before >= fails
"""


def run(directory: Path, fails: list[int], **environment: str) -> tuple[int, str]:
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_it.py").write_text(TESTS.format(fails=fails))
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("MUSTER_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, confirmed.__file__, str(Path(sys.executable).with_name("pytest")), "-q", "test_it.py"],
        cwd=directory,
        env={**plain, "MUSTER_UNSTEADY": str(directory / "unsteady"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def unsteady(directory: Path) -> str:
    file = directory / "unsteady"
    return file.read_text() if file.exists() else ""


def test_a_failure_counts_at_once_where_nothing_else_is_asked_for(tmp_path: Path) -> None:
    status, _ = run(tmp_path, [0, 1])
    assert status == 1
    assert unsteady(tmp_path) == ""


def test_a_test_that_fails_once_is_named_and_does_not_fail_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, [0, 1], MUSTER_CONFIRM_FAILURES="1")
    assert status == 0
    assert "UNSTEADY: test_it.py::test_it[1]" in output
    assert unsteady(tmp_path) == "test_it.py::test_it[1]\n"


def test_a_test_that_fails_by_itself_fails_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, [0, 2], MUSTER_CONFIRM_FAILURES="1")
    assert status == 1
    assert "UNSTEADY" not in output
    assert unsteady(tmp_path) == ""


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    status, output = run(tmp_path, [1] * (confirmed.MOST_FAILED + 1), MUSTER_CONFIRM_FAILURES="1")
    assert status == 1
    assert "too many to be tried again" in output


def test_a_run_that_passes_is_not_repeated(tmp_path: Path) -> None:
    status, output = run(tmp_path, [0], MUSTER_CONFIRM_FAILURES="1")
    assert (status, unsteady(tmp_path)) == (0, "")
    assert "again" not in output
