"""Random lives of gangs, followed record by record: what the view says of them is what the deciding core would say.

The lives are those of ``tests/simulation`` (seeded); after each step both are asked everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from muster_bus.log import Record
from muster_scheduler import state_codec
from muster_scheduler.core.commands import Command, UpdateConfiguration
from muster_scheduler.core.outcome import Outcome
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.follower import RmInfo, RmState, StateFolder
from muster_scheduler.view import explain, explain_gang, explain_queue, render
from muster_service.go_json import go_json
from simulation import gangs_life
from simulation.gangs_life import RM, GangLife, GangRun

SEEDS, STEPS = (0, 1, 9, 18, 19, 25, 31, 56, 84), 150


class FollowedRun(GangRun):
    """A run with a follower beside it.

    :ivar follower: None: it begins anew after this step (the configuration is not in the records of a run).
    """

    follower: StateFolder | None = None

    def _register(self) -> None:
        self.follower = None
        super()._register()

    def _apply(self, command: Command, *rest: Any) -> None:
        if isinstance(command, UpdateConfiguration):
            self.follower = None
        super()._apply(command, *rest)

    def _write(self, out: Outcome) -> None:
        for partition, what, alive in out.objects():
            key = state_codec.key_of(RM, partition, what)
            value = state_codec.encode(partition, what) if alive else None
            if value is None:
                self.topic.pop(key, None)
            else:
                self.topic[key] = value
            if self.follower is not None:
                self.follower.take(Record("state", 0, 0, 0, key, value))

    def execute(self, *step: Any, **more: Any) -> None:
        super().execute(*step, **more)
        if self.follower is None or more.get("restart"):
            self.follower = StateFolder()
            self.follower.settle()
            self.follower.rms[RM] = RmState(RmInfo(RM), self.folded())
        if self.core.exhausted:
            where = f"step {len(self.steps)}"
            decided, followed = self.all_that_is_said(self.core), self.all_that_is_said(self.follower.rms[RM].core)
            for (what, said), (again, found) in zip(decided, followed, strict=True):
                assert (where, what, unordered(said)) == (where, again, unordered(found))

    def all_that_is_said(self, core: SchedulerCore) -> Iterator[tuple[str, Any]]:
        state = RmState(RmInfo("rm", life="RUNNING"), core)
        for partition in core.partitions.values():
            for path, queue in sorted(partition.queues.items()):
                yield path, json.loads(go_json(explain_queue.explained(partition, queue, self.now_ns, halt=None)))
            yield "queues", json.loads(b"".join(render.queue(partition, partition.root, tree=True)))
            for app_id, app in sorted(partition.apps.items()):
                yield app_id, json.loads(b"".join(render.application(partition, app)))
                yield app_id, json.loads(b"".join(explain.application(state, partition, app, self.now_ns)))
            for node_id, node in sorted(partition.nodes.items()):
                yield node_id, json.loads(b"".join(render.node(partition, node)))


def unordered(value: Any) -> Any:
    """Lists have no order in REST."""
    if isinstance(value, dict):
        return {name: unordered(each) for name, each in value.items()}
    return sorted((unordered(each) for each in value), key=repr) if isinstance(value, list) else value


def promised(partition: Partition) -> dict[str, dict[str, int]]:
    """By queue, what the deciding core keeps for gangs that have started."""
    names = partition.types.names
    return {
        path: {names[number]: value for number, value in queue.promised.items()}
        for path, queue in partition.queues.items()
        if queue.parent is not None
    }


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_what_is_said_of_gangs_is_said_by_a_follower_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(gangs_life, "GangRun", FollowedRun)
    life = GangLife(seed, check_core=False)
    for _ in range(STEPS):
        life.step()
        for partition in life.run.core.partitions.values():
            shown = {path: explain_gang.promised_in(partition, partition.queues[path]) for path in promised(partition)}
            assert shown == promised(partition)


def test_these_lives_meet_what_gangs_wait_for() -> None:
    seen: set[str] = set()
    for seed in SEEDS[:4]:
        life = GangLife(seed, check_core=False)
        for _ in range(STEPS):
            life.step()
            seen |= explain.summary(RmState(RmInfo("rm", life="RUNNING"), life.run.core)).counts.keys()
    assert seen >= {"GANG_ROOM", "GANG_FORMING", "PLACEHOLDER_LEAVING", "QUEUE_MAX"}
