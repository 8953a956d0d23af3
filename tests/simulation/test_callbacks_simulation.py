"""Random lives of a scheduler that asks its resource manager, from seeds: see README.md.

These are a slice; ``make simulate-callbacks`` lives thousands. More of them: ``MUSTER_SIMULATION_SEEDS=500 pytest …``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.callbacks import failure, story
from simulation.callbacks_life import CallbackLife

SEEDS = range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "30")))
STEPS = 70


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_in_a_random_life_nothing_is_decided_that_the_rm_did_not_agree_to(seed: int) -> None:
    """Asked, answered, refused, withdrawn, restarted; and when the RM agrees to all, whatever fits is placed."""
    if failure(CallbackLife(seed), STEPS) is not None:
        pytest.fail(story(seed, STEPS), pytrace=False)


def test_the_same_seed_gives_the_same_answers_under_another_hash_seed() -> None:
    command = [sys.executable, "-m", "simulation.callbacks", "--lines", "--seeds", "6", "--steps", "60"]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (
        [json.loads(line) for line in process.communicate(timeout=100)[0].splitlines()] for process in running
    )
    assert [process.returncode for process in running] == [0, 0]
    assert [each.get("seed") for each in first] == [*range(6), None]
    assert first == second
