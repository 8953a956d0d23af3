"""Random lives of gangs, followed record by record: the view explains them as the deciding core would.

The lives are those of ``tests/simulation`` (seeded). Each step ends with a comparison of all explanations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from muster_bus.log import Record
from muster_core.model.commands import Command, UpdateConfiguration
from muster_core.model.outcome import Event, Fact, Outcome
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_runtime.go_json import go_json
from muster_state.state_folder import RmEntry, RmInfo, StateFolder
from muster_view.explain import asks, gang
from muster_view.explain import queue as explain_queue
from muster_view.rest import json_render
from simulation.life import Life
from simulation.manager import GANGS
from simulation.records import RM
from simulation.run import Law, Run
from unordered import unordered

SEEDS, STEPS = (7, 11, 1, 9, 18, 25, 31, 56, 84), 80


class Followed(Law):
    """Compares a follower's explanations with the core's after each cycle that ran to its end."""

    def __init__(self) -> None:
        self._follower: StateFolder | None = None

    def registers(self, run: Run) -> None:
        self._follower = None

    def taken(self, run: Run, command: Command, facts: list[Fact], events: list[Event]) -> None:
        if isinstance(command, UpdateConfiguration):  # (the run's records do not have it)
            self._follower = None

    def record(self, key: bytes, value: bytes | None) -> None:
        if self._follower is not None:
            self._follower.fold(Record("state", 0, 0, 0, key, value))

    def restarted(self, run: Run, info: RmInfo) -> None:
        self._follower = None

    def wrote(self, run: Run, out: Outcome) -> None:
        if self._follower is None:
            self._follower = StateFolder()
            self._follower.build()
            self._follower.rms[RM] = RmEntry(RmInfo(RM), run.folded())
        if run.core.exhausted:
            where = f"step {len(run.steps)}"
            decided, followed = all_that_is_said(run.core, run), all_that_is_said(self._follower.rms[RM].core, run)
            for (what, said), (again, found) in zip(decided, followed, strict=True):
                assert (where, what, unordered(said)) == (where, again, unordered(found))


def all_that_is_said(core: SchedulerCore, run: Run) -> Iterator[tuple[str, Any]]:
    state = RmEntry(RmInfo("rm", life="RUNNING"), core)
    for partition in core.partitions.values():
        for path, queue in sorted(partition.queues.items()):
            yield path, json.loads(go_json(explain_queue.explain(partition, queue, run.now_ns, pause=None)))
        yield "queues", json.loads(b"".join(json_render.queue(partition, partition.root, tree=True)))
        for app_id, app in sorted(partition.apps.items()):
            yield app_id, json.loads(b"".join(json_render.application(partition, app)))
            yield app_id, json.loads(b"".join(asks.application(state, partition, app, run.now_ns)))
        for node_id, node in sorted(partition.nodes.items()):
            yield node_id, json.loads(b"".join(json_render.node(partition, node)))


def promised(partition: Partition) -> dict[str, dict[str, int]]:
    """Return, by queue, the room that the deciding core keeps for started gangs."""
    names = partition.types.names
    return {
        path: {names[number]: value for number, value in queue.promised.items()}
        for path, queue in partition.queues.items()
        if queue.parent is not None
    }


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_a_follower_explains_gangs_like_the_scheduler(seed: int) -> None:
    life = Life(seed, {GANGS}, check_core=False, more=[Followed()])
    for _ in range(STEPS):
        life.step()
        for partition in life.run.core.partitions.values():
            shown = {path: gang.promised_in(partition, partition.queues[path]) for path in promised(partition)}
            assert shown == promised(partition)


def test_these_lives_meet_what_gangs_wait_for() -> None:
    seen: set[str] = set()
    for seed in SEEDS[:4]:
        life = Life(seed, {GANGS}, check_core=False)
        for _ in range(STEPS):
            life.step()
            seen |= asks.summary(RmEntry(RmInfo("rm", life="RUNNING"), life.run.core), "").counts.keys()
    assert seen >= {"GANG_ROOM", "GANG_FORMING", "PLACEHOLDER_LEAVING", "QUEUE_MAX"}
