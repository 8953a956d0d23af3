"""Random lives of a cluster, with seeds that reproduce them, and an auditor of its own: see README.md.

These are a slice; ``make test-long`` lives more, ``make simulate`` and its likes thousands. As many as you want:
``MUSTER_SIMULATION_SEEDS=500 pytest``;
one that failed: ``-k 'seed-17'``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace

import pytest
from muster_core.model.commands import (
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
from simulation import stories
from simulation.__main__ import HASH_SEEDS, lines_of
from simulation.common_laws import History
from simulation.external_life import ExternalLife
from simulation.life import Life, play
from simulation.manager import CALLBACKS, EXTERNAL, GANGS
from simulation.run import Step
from simulation.stories import KINDS, MIXED

SHRINKING_S = 20.0
# By kind: how many lives, of how many steps; and lives beyond these that found something once, or in which an operator
# ends applications.
SLICES = {
    "": (6, 60, (5514, 5670)),
    GANGS: (3, 150, (22,)),
    CALLBACKS: (3, 70, (22,)),
    EXTERNAL: (4, 50, ()),
    MIXED: (4, 50, ()),
}


def _slice(features: str) -> list[int]:
    count, _, found = SLICES[features]
    return list(dict.fromkeys([*range(int(os.environ.get("MUSTER_SIMULATION_SEEDS", count))), *found]))


def _keeps_every_promise(features: str, seed: int) -> None:
    failure = stories.failure(KINDS[features], seed, SLICES[features][1], SHRINKING_S)
    if failure:
        pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize("seed", _slice(""), ids=lambda seed: f"seed-{seed}")
def test_a_random_life_keeps_every_promise(seed: int) -> None:
    """Every answer, every decision, every reason, every record; restarts in the middle; folded and followed alike."""
    _keeps_every_promise("", seed)


@pytest.mark.parametrize("seed", _slice(GANGS), ids=lambda seed: f"seed-{seed}")
def test_a_random_life_of_gangs_keeps_every_promise_and_ends(seed: int) -> None:
    """The gang design: start, replacement, time-out, completion, recovery; nothing counted twice, nothing left
    behind."""
    _keeps_every_promise(GANGS, seed)


@pytest.mark.parametrize("seed", _slice(CALLBACKS), ids=lambda seed: f"seed-{seed}")
def test_in_a_random_life_nothing_is_decided_that_the_rm_did_not_agree_to(seed: int) -> None:
    """Asked, answered, refused, withdrawn, restarted; and when the RM agrees to all, whatever fits is placed."""
    _keeps_every_promise(CALLBACKS, seed)


@pytest.mark.parametrize("seed", _slice(EXTERNAL), ids=lambda seed: f"seed-{seed}")
def test_in_a_random_life_no_host_is_over_committed_by_the_reports(seed: int) -> None:
    """Nor is anything put where it may not, or offered by nobody; nor decided too early; and the records say it all."""
    _keeps_every_promise(EXTERNAL, seed)


@pytest.mark.parametrize("seed", _slice(MIXED), ids=lambda seed: f"seed-{seed}")
def test_in_a_random_life_gangs_predicates_and_external_resources_keep_their_promises_together(seed: int) -> None:
    """What an RM agrees to is held to what sources said meanwhile; and the scheduler comes to rest while it waits."""
    _keeps_every_promise(MIXED, seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("features", list(KINDS), ids=lambda features: features or "any")
def test_the_same_seed_gives_the_same_life_under_another_hash_seed(features: str) -> None:
    seeds = range(3)
    running = [lines_of(KINDS[features], hash_seed, seeds, 60) for hash_seed in HASH_SEEDS]
    first, second = (
        [json.loads(line) for line in process.communicate(timeout=280)[0].splitlines()] for process in running
    )
    assert [process.returncode for process in running] == [0, 0]
    assert [each.get("seed") for each in first] == [*seeds, None]
    assert first == second


def test_without_reports_of_vms_hosts_are_over_committed() -> None:
    """The law can fail: the same lives without informers break it, nearly all of them."""
    lives = [ExternalLife(seed, informed=False) for seed in range(6)]
    for life in lives:
        life.live(50)
    assert sum(bool(life.over_commits) for life in lives) >= 5


# History adds up (docs/events.md, "Sums") in lives of every kind. Those are too few to meet all that can come together:
# here are short ones more (800 in `make test-long`), in which RMs change what they want, report, take back, register
# again, and the scheduler restarts. (`make simulate-gangs` begins with 0.)
FIRST, PART, SHORT = 1_000_000, 100, 30
PARTS = int(os.environ.get("MUSTER_HISTORY_LIVES", "100")) // PART
# What must have come up in each part, or it shows nothing.
MET = {
    *("ask: changed", "ask item: repeats", "allocated: placeholder", "adopted: real", "changed while it runs"),
    *("ask: cancelled", "confirmed: replaced", "told: placeholder timed out", "ask: again after a failure on the RM"),
    *("RM: registered anew", "restart"),
}


@pytest.mark.parametrize("part", range(PARTS))
def test_history_adds_up_in_random_lives(part: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(FIRST + part * PART, FIRST + (part + 1) * PART):
        life = Life(seed, {GANGS}, tally, check_core=False)
        next(law for law in life.run.laws if isinstance(law, History)).every = 1
        try:
            life.live(SHORT)
        except Exception as error:
            pytest.fail(f"{error}; again: make simulate-gangs SEED={seed} STEPS={SHORT}")
    assert tally["history: compared"] > PART * SHORT
    assert tally.keys() >= MET


@pytest.mark.parametrize("priority", [0, 5])
def test_the_auditor_lets_an_ask_that_comes_again_keep_what_leaves_for_it(priority: int) -> None:
    """One placeholder leaves for an ask with repeats, the other is too small; then the ask is sent again."""
    root = {"name": "root", "submitacl": "*", "queues": [{"name": "a"}]}
    partition = {
        "name": "default",
        "nodesortpolicy": {"type": "fair"},
        "preemption": {"enabled": False, "quotapreemptionenabled": False, "optout": "never"},
        "reservation": {"enabled": True, "delay": "2s", "timeout": "60m"},
        "placementrules": [{"name": "provided", "create": False}],
        "queues": [root],
    }
    document = {"partitions": [partition]}
    placeholder = AskItem("p1", "x", "default", {"vcore": 4000}, task_group="t", placeholder=True)
    real = AskItem("r", "x", "default", {"vcore": 4000}, wanted=2, task_group="t", previous_generation=True)
    said: list[Command] = [
        UpdateNodes((NodeItem("n1", NodeAction.CREATE, capacity={"vcore": 7000}),)),
        UpdateApplications((AppItem("x", "root.a", "default", "ann", placeholder_ask={"vcore": 7000}),)),
        UpdateAllocations((placeholder, replace(placeholder, key="p2", quantities={"vcore": 3000}))),
        UpdateAllocations((real,)),
        UpdateAllocations((replace(real, priority=priority),)),
        UpdateAllocations((), (ReleaseItem("default", "x", "p1", Termination.PLACEHOLDER_REPLACED),)),
    ]
    run, error = play(document, [Step(1, [(command, None)]) for command in said], {GANGS})
    assert error is None
    assert run.tally["told: placeholder mismatched"] == run.tally["confirmed: replaced"] == 1
    assert run.tally["replaced: on the same node"] == 1
