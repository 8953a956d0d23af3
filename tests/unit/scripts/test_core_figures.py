"""The core's figures come from bench-core's JSON lines: two tables, each between its marks, nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ORDINARY = {
    "scenario": "single",
    "nodes": 1_000,
    "asks": 50_000,
    "applications": 10,
    "allocated": 50_000,
    "allocations_per_s": 34_567.8,
    "first_decile_per_s": 40_000.0,
    "last_decile_per_s": 30_000.0,
    "live_bytes_per_allocation": 850,
}
RATES = {
    f"{what}_{which}per_s": value
    for what, value in (("placeholders", 20_000.0), ("replacements", 15_000.0))
    for which in ("", "first_decile_", "last_decile_")
}
GANGS = {"scenario": "gangs", "nodes": 1_000, "gangs": 200, "members": 64, **RATES, "ordinary_per_s": 30_000.4}
HELD = {
    "scenario": "gang-held",
    "nodes": 1_000,
    "gangs": 10_000,
    "members": 64,
    "cpu_percent": 0.04,
    "beside_per_s": 29_910.4,
    "alone_per_s": 30_437.1,
}
ROOM = {
    "scenario": "gang-sizes",
    "nodes": 1_000,
    "gangs": 2_000,
    "members": 8,
    "release_us": 99.5,
    "first_decile_us": 97.4,
    "last_decile_us": 98.6,
    "ordinary_release_us": 169.4,
    "idle_release_us": 118.3,
    "idle_release_few_us": 127.3,
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    (tmp_path / "scripts/core-figures").write_text((ROOT / "scripts/core-figures").read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/performance.md").write_text((ROOT / "docs/performance.md").read_text())
    return tmp_path


def _figures(copy: Path, *lines: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (copy / "core.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = [sys.executable, str(copy / "scripts/core-figures"), str(copy / "core.jsonl")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _parts(text: str) -> tuple[str, str, str]:
    """The core's table, that of gangs, and all the rest."""
    begins = ("<!-- core figures", "<!-- gang figures")
    ends = ("<!-- end of core figures -->", "<!-- end of gang figures -->")
    before, _, rest = text.partition(begins[0])
    core, _, rest = rest.partition(ends[0])
    between, _, rest = rest.partition(begins[1])
    gangs, _, after = rest.partition(ends[1])
    return core, gangs, before + between + after


def test_both_tables_are_written_between_their_marks(copy: Path) -> None:
    before = _parts((copy / "docs/performance.md").read_text())
    done = _figures(copy, ORDINARY, GANGS, HELD, ROOM)
    assert done.returncode == 0, done.stderr
    core, gangs, rest = _parts((copy / "docs/performance.md").read_text())
    assert rest == before[2]
    assert "| single | 10 | 50,000 | 34,568 (1,440) | - (1,324) | - (912) |" in core
    assert "1 runs by" in core
    assert "0.75 to 0.75 times" in core
    assert "| 200 | 64 | 1,000 | 20,000 | 15,000 | 30,000 | 1.00 and 1.00 |" in gangs
    assert "10,000 real asks that wait for a gang's last member: 0.0 % CPU at rest" in gangs
    assert "beside them 29,910/s, 30,437/s without" in gangs
    assert "of which no two ask the same wait for room in a full queue: a release costs 100 µs (97 in the" in gangs


def test_a_table_without_lines_stays(copy: Path) -> None:
    before = _parts((copy / "docs/performance.md").read_text())
    assert _figures(copy, GANGS).returncode == 0
    after = _parts((copy / "docs/performance.md").read_text())
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1]
    assert _figures(copy, ORDINARY).returncode == 0
    assert _parts((copy / "docs/performance.md").read_text())[1] == after[1]


def test_a_page_without_marks_is_refused_and_not_written(copy: Path) -> None:
    without = (copy / "docs/performance.md").read_text().replace("<!-- end of gang figures -->", "")
    (copy / "docs/performance.md").write_text(without)
    done = _figures(copy, ORDINARY, GANGS)
    assert done.returncode == 1
    assert "not exactly one pair of marks: <!-- gang figures" in done.stderr
    assert (copy / "docs/performance.md").read_text() == without
