"""Random lives of a scheduler beside other managers, from seeds: see README.md.

These are a slice; ``make simulate-external`` lives a thousand. More of them: ``MUSTER_SIMULATION_SEEDS=500 pytest …``.
"""

from __future__ import annotations

import json
import os

import pytest
from simulation import twice
from simulation.external import story
from simulation.external_life import ExternalLife

SEEDS = range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "24")))
STEPS = 50


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_in_a_random_life_no_host_is_over_committed_as_far_as_was_told(seed: int) -> None:
    """Nor is anything put where it may not, or offered by nobody; nor decided too early; and the records say it all."""
    if twice.failure(ExternalLife(seed), STEPS) is not None:
        pytest.fail(story(seed, STEPS), pytrace=False)


def test_where_nobody_tells_the_scheduler_of_vms_hosts_are_over_committed() -> None:
    """The law can fail: the same lives without informers break it, nearly all of them."""
    lives = [ExternalLife(seed, informed=False) for seed in range(12)]
    for life in lives:
        life.live(STEPS)
    assert sum(bool(life.over_commits) for life in lives) >= 10


def test_the_same_seed_gives_the_same_answers_under_another_hash_seed() -> None:
    running = [twice.lines_of("simulation.external", hash_seed, 6, 40) for hash_seed in twice.HASH_SEEDS]
    first, second = (
        [json.loads(line) for line in process.communicate(timeout=100)[0].splitlines()] for process in running
    )
    assert [process.returncode for process in running] == [0, 0]
    assert [each.get("seed") for each in first] == [*range(6), None]
    assert first == second
