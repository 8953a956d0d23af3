"""The bench of neighbours: its rows, its control, and what it notes of a loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.neighbours.burning import spawn
from bench.neighbours.processes import long_callbacks, processor_s
from bench.neighbours.rows import QUIET_RM, all_rows, neighbour
from bench.neighbours_bench import INSTRUMENT, THIS, measure, table, together


def test_rows_have_names_of_their_own_and_neighbours_share_the_quiet_rm_s_log_partition() -> None:
    rows = all_rows()
    assert {"asks", "configs", "metrics", "streams"} <= set(rows)
    assert all(row.about for row in rows.values())
    assert len({neighbour(number) for number in range(30)} | {QUIET_RM}) == 31


def test_long_callbacks_of_a_loop_are_noted_with_what_ran(tmp_path: Path) -> None:
    program = (
        "import asyncio, time\n"
        "async def busy():\n"
        "    until = time.thread_time() + 0.02\n"
        "    while time.thread_time() < until: pass\n"
        "    await asyncio.sleep(0)\n"
        "asyncio.run(busy())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(INSTRUMENT), "MUSTER_BENCH_CALLBACKS": str(tmp_path)}
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    assert process.wait(60) == 0
    found = long_callbacks(tmp_path, process.pid, began, time.monotonic())
    assert found["max_ms"] >= 20
    assert "busy" in found["longest"][0]["what"]
    assert long_callbacks(tmp_path, process.pid, 0, began)["from_1_ms"] == 0


@pytest.mark.timeout(60)
async def test_a_burner_uses_its_share_of_a_core() -> None:
    burner, *others = await spawn([*THIS, "--burn"], [0.2, 0.0])
    try:
        assert not others
        while processor_s(burner.pid) < 1.0:  # (its start uses half a second, then it burns)
            assert burner.returncode is None
    finally:
        burner.kill()
        await burner.wait()


@pytest.mark.timeout(180)
async def test_a_row_is_measured_in_all_phases_and_shown() -> None:
    rows = all_rows()
    found = await measure(rows["metrics"], 0.5, plain=False)
    for phase in ("quiet", "beside", "after", "control"):
        assert found[phase]["p50"] > 0
    assert found["memory"]["after"]["followers"] > 0
    assert found["callbacks"]["beside"]["main"]["from_1_ms"] >= 0
    results = json.loads(json.dumps({"metrics": together([found, found])}))
    assert results["metrics"]["beside"] == found["beside"]
    assert "40 readers" in table(results, rows)
