"""The unchanged configuration reproduces what happened, decision for decision: on random lives with gangs, preemption,
restarts of the resource manager and of the scheduler.

``LIVES=200`` plays so many lives; by default there are fewer.
"""

from __future__ import annotations

import os
from collections import Counter

from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.workloads import request_log
from unit.whatif.lives import CONFIG, Life

LIVES = int(os.environ.get("LIVES", "25"))
# Seed 33: some time after a restart, a list that was refused at its queue's max is refused at the nodes.
KNOWN_HARD = (33,)


def differences(life: Life) -> list[str]:
    """Return the tasks whose last start differs from what happened, in time or in node."""
    happened = request_log.read(life.run())
    played = play(happened.workload, Scenario("as it was", CONFIG))
    found = []
    for name, of in played.lives.items():
        starts = happened.starts.get(name, [])
        wanted = (starts[0][0], starts[-1][1]) if starts else (None, "")
        if (of.first_started_s, of.node) != wanted:
            found.append(f"{name}: {(of.first_started_s, of.node)} instead of {wanted}")
    return found


def test_random_lives_are_reproduced() -> None:
    seen: Counter[str] = Counter()
    wrong: dict[int, list[str]] = {}
    for seed in sorted({*range(1, LIVES + 1), *KNOWN_HARD}):
        life = Life(seed)
        found = differences(life)
        if found:
            wrong[seed] = found
        seen += Counter(
            preemptions=life.preemptions,
            replaced=life.replaced,
            rm_restarts=life.rm_restarts,
            scheduler_restarts=life.scheduler_restarts,
        )
    assert not wrong
    assert min(seen[name] for name in ("preemptions", "replaced", "rm_restarts", "scheduler_restarts")) > 0, seen
