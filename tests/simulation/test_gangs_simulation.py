"""Random lives with gangs, from seeds, to the end of every placeholder and application: see README.md.

These are a slice; ``make simulate-gangs`` lives thousands. More of them: ``MUSTER_SIMULATION_SEEDS=500 pytest …``.
"""

from __future__ import annotations

import json
import os

import pytest
from muster_scheduler.core.commands import (
    AppItem,
    AskItem,
    Command,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateNodes,
)
from simulation import twice
from simulation.gangs import story
from simulation.gangs_life import GangLife, play
from simulation.life import Step

SEEDS = range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", "40")))
STEPS = 150
SHRINKING_S = 20.0


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_random_life_of_gangs_keeps_every_promise_and_ends(seed: int) -> None:
    """Seed 003: start, replacement, time-out, completion, recovery; nothing counted twice, nothing left behind."""
    if twice.failure(GangLife(seed), STEPS) is not None:
        pytest.fail(story(seed, STEPS, SHRINKING_S), pytrace=False)


def test_the_same_seed_gives_the_same_gangs_under_another_hash_seed() -> None:
    running = [twice.lines_of("simulation.gangs", hash_seed, 6, 120) for hash_seed in twice.HASH_SEEDS]
    first, second = (
        [json.loads(line) for line in process.communicate(timeout=100)[0].splitlines()] for process in running
    )
    assert [process.returncode for process in running] == [0, 0]
    assert [each.get("seed") for each in first] == [*range(6), None]
    assert first == second


@pytest.mark.parametrize("priority", [0, 5])
def test_the_auditor_lets_an_ask_that_comes_again_keep_what_leaves_for_it(priority: int) -> None:
    """One placeholder leaves for an ask with repeats, the other is too small; then the ask is sent again."""
    root = {"name": "root", "submitacl": "*", "queues": [{"name": "a"}]}
    document = {"partitions": [{"name": "default", "preemption": {"enabled": False}, "queues": [root]}]}
    placeholder = AskItem("p1", "x", "default", {"vcore": 4000}, task_group="t", placeholder=True)
    real = AskItem("r", "x", "default", {"vcore": 4000}, wanted=2, task_group="t", previous_generation=True)
    said: list[Command] = [
        UpdateNodes((NodeItem("n1", NodeAction.CREATE, capacity={"vcore": 7000}),)),
        UpdateApplications((AppItem("x", "root.a", "default", "ann", placeholder_ask={"vcore": 7000}),)),
        UpdateAllocations((placeholder, placeholder._replace(key="p2", quantities={"vcore": 3000}))),
        UpdateAllocations((real,)),
        UpdateAllocations((real._replace(priority=priority),)),
        UpdateAllocations((), (ReleaseItem("default", "x", "p1", Termination.PLACEHOLDER_REPLACED),)),
    ]
    run, error = play(document, [Step(1, [(command, None)]) for command in said])
    assert error is None
    assert run.tally["told: placeholder mismatched"] == run.tally["confirmed: replaced"] == 1
    assert run.tally["replaced: on the same node"] == 1
