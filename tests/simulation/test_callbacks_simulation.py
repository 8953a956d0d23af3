"""Random lives of a scheduler that asks its resource manager, from seeds: see README.md.

These are a slice; ``make simulate-callbacks`` lives thousands. More of them: ``MUSTER_SIMULATION_SEEDS=500 pytest …``.
"""

from __future__ import annotations

import json
import os

import pytest
from simulation import twice
from simulation.callbacks import story
from simulation.callbacks_life import CallbackLife

SEEDS = range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "30")))
STEPS = 70


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_in_a_random_life_nothing_is_decided_that_the_rm_did_not_agree_to(seed: int) -> None:
    """Asked, answered, refused, withdrawn, restarted; and when the RM agrees to all, whatever fits is placed."""
    if twice.failure(CallbackLife(seed), STEPS) is not None:
        pytest.fail(story(seed, STEPS), pytrace=False)


def test_the_same_seed_gives_the_same_answers_under_another_hash_seed() -> None:
    running = [twice.lines_of("simulation.callbacks", hash_seed, 6, 60) for hash_seed in twice.HASH_SEEDS]
    first, second = (
        [json.loads(line) for line in process.communicate(timeout=100)[0].splitlines()] for process in running
    )
    assert [process.returncode for process in running] == [0, 0]
    assert [each.get("seed") for each in first] == [*range(6), None]
    assert first == second
