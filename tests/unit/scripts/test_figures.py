"""The pages' figures come from bench's JSON, between two marks, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def _result(**trace: Any) -> dict[str, Any]:
    percentiles = {f"latency_p{p}_ms": 1.25 * p for p in (50, 95, 99)}
    scenario = {"allocations_per_s": 4321.9, "asks_per_s": 3000.0, **percentiles}
    gangs = {"placeholders_s": 1.26, "replaced_s": 2.31, "replacements_per_s": 5541.1, "ordinary_s": 1.04}
    run = {"placed": 7614, "tasks": 8152, "good": True, "complaints": [], **trace}
    return {
        "muster": "1.2.3",
        "measured_at": "2024-02-03T04:05:06Z",
        "machine": {"cores": 2, "architecture": "x86_64", "python": "3.11.7", "commit": "abc1234", "load_before": 0.1},
        "medians": {
            "embedded": {
                **dict.fromkeys(("throughput", "churn", "latency", "burst", "paced", "gangs_latency"), scenario),
                "gangs": gangs,
            }
        },
        "runs": [run],
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/figures").write_text((ROOT / "scripts/figures").read_text())
    (tmp_path / "docs").mkdir()
    for page in ("docs/performance.md", "docs/callbacks-predicates.md"):
        (tmp_path / page).write_text((ROOT / page).read_text())
    return tmp_path


def _figures(copy: Path, result: dict[str, Any], *more: str) -> int:
    (copy / "bench.json").write_text(json.dumps(result))
    command = [sys.executable, str(copy / "scripts/figures"), str(copy / "bench.json"), *more]
    return subprocess.run(command, capture_output=True, timeout=60).returncode


def test_the_table_is_written_between_the_marks_and_found_again(copy: Path) -> None:
    before = (copy / "docs/performance.md").read_text()
    assert _figures(copy, _result()) == 0
    written = (copy / "docs/performance.md").read_text()
    assert "| 10,000 asks up front: allocations/s | 4,322 |" in written
    assert "openb trace at 3,000/s: ask to allocation, p50 | 62.5 ms |" in written
    assert "onto 1,000 nodes: until all placeholders are placed | 1.3 s |" in written
    assert "replacements/s, each confirmed by the RM | 5,541 |" in written
    assert "500 real asks/s: ask to allocation, the confirmation in between, p50 | 62.5 ms |" in written
    assert "In the replays 7,614 to 7,614 of 8,152 tasks were placed" in written
    assert "every other one had a typed reason" in written
    assert written.startswith(before.partition("<!-- figures")[0])
    assert written.endswith(before.partition("<!-- end of figures -->")[2])
    assert _figures(copy, _result(), "--check") == 0
    assert _figures(copy, _result(placed=1), "--check") == 1
    assert _figures(copy, _result(placed=1)) == 0
    text = (copy / "docs/performance.md").read_text()
    table = text.partition("<!-- figures")[2].partition("<!-- end of figures -->")[0]
    assert table.count("10,000 asks up front") == 1


def test_a_wrong_replay_is_not_hidden(copy: Path) -> None:
    assert _figures(copy, _result(good=False, complaints=["allocated twice: a"])) == 0
    assert "but: allocated twice: a" in (copy / "docs/performance.md").read_text()


def test_a_page_without_marks_is_refused(copy: Path) -> None:
    (copy / "docs/performance.md").write_text("nothing\n")
    assert _figures(copy, _result()) == 1


def test_the_cost_of_turns_is_in_their_page(copy: Path) -> None:
    modes = ("all", "node", "task_group", "application", "one")
    one = {"asks": 400, "asks_per_s": 40.0, "allocations_per_s": 1234.5, "questions_each": 1.5, "violations": 0}
    scenario = {**one, "latency_p50_ms": 12.5, "latency_p99_ms": 99.0}
    stateful = {f"stateful_{mode}": {**scenario, "violations": 12 * (mode == "all")} for mode in modes}
    result = {**_result(), "medians": {"embedded": stateful, "kafka": stateful}, "runs": []}
    page = (copy / "docs/performance.md").read_text()
    before = (copy / "docs/callbacks-predicates.md").read_text()
    assert _figures(copy, result, "--check") == 1
    assert _figures(copy, result) == 0
    written = (copy / "docs/callbacks-predicates.md").read_text()
    assert "| | | `all` | `node` | `task-group` | `application` | `one` |" in written
    assert "| embedded | 400 asks at once: allocations/s | 1,234 | 1,234 | 1,234 | 1,234 | 1,234 |" in written
    assert "| kafka | 40 asks/s, one by one: ask to allocation, p50 | 12.5 ms | 12.5 ms |" in written
    assert "| kafka | two of a kind on one node | 12 | 0 | 0 | 0 | 0 |" in written
    assert written.startswith(before.partition("<!-- figures of turns")[0])
    assert written.endswith(before.partition("<!-- end of figures of turns -->")[2])
    assert _figures(copy, result, "--check") == 0
    assert (copy / "docs/performance.md").read_text() == page
    assert _figures(copy, _result()) == 0
    assert (copy / "docs/callbacks-predicates.md").read_text() == written
