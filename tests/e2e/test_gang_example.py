"""The example of a gang, as a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from e2e.gang_rig import Muster

EXAMPLE = Path(__file__).parents[2] / "examples" / "gang.py"


async def test_the_example_of_a_gang_is_a_page_and_runs(muster: Muster) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 80
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(EXAMPLE), muster.gateway],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:3]) == [f"hold room for room-{number}" for number in range(3)]
    assert sorted(lines[3:]) == sorted(
        [f"end room-{number}: replacing allocationKey: worker-{number}" for number in range(3)]
        + [f"run worker-{number}" for number in range(3)]
    )
