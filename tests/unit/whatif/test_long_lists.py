"""Long waitlists: that one search answers for all groups that are alike changes no decision."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from muster_core.allocation.preemptors import Preemptors
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.workload import Workload
from muster_whatif.workload_source import WorkloadSource

GUARANTEED = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: queue-1, resources: {guaranteed: {vcore: 30}}}
          - {name: queue-2, maxapplications: 3}
          - {name: queue-3}
"""


def workload(seed: int) -> Workload:
    """More than fits, with tasks that are larger than any node, and with rare tasks of higher priorities."""
    made = WorkloadSource(f"generate:tasks=500,nodes=20,cores=4,load=1.4,median_run_s=200,seed={seed}").read()
    dice = random.Random(f"long-lists-{seed}")
    tasks = [replace(task, priority=dice.choice([0] * 12 + [1, 1, 2])) for task in made.tasks]
    return replace(made, tasks=tasks, config=GUARANTEED if seed % 2 else made.config)


@pytest.mark.source
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lists_are_played_as_if_each_group_were_looked_at(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = workload(seed)
    tick_s = 10.0 if seed == 3 else 0.0
    played = play(made, Scenario("alike", made.config), tick_s=tick_s)
    monkeypatch.setattr(Preemptors, "_is_single", lambda *_: True)
    one_by_one = play(made, Scenario("single", made.config), tick_s=tick_s)
    assert played.lives == one_by_one.lives
    assert any(life.preempted for life in played.lives.values())
    assert any(life.first_started_s is None for life in played.lives.values())
