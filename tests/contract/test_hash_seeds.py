"""The log and the answers of REST are the same to the byte in processes with different hash seeds.

Random lives show it of the log (tests/simulation); this shows it of what a view makes of it, in a few stories.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STORIES = ("company", "previous")


@pytest.mark.timeout(300)
def test_two_hash_seeds_give_the_same_records_and_answers() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "contract.rest_bodies", *STORIES],
            cwd=TESTS,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (process.communicate(timeout=280)[0].splitlines() for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert len(first) > 60
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == []
