"""The plan of `muster demo --live`: a small cluster, its queues, and what its users do, from a seed (pure).

The first round is always the same, so that the first half minute shows a gang, a preemption and a drained node. Later
rounds differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from muster_si.constants import CPU, MEMORY

from muster_replay.trace import Resources

GPU = "nvidia.com/gpu"
PRODUCTION, RESEARCH = "root.production", "root.research"
TRAINING, BATCH = "root.training", "root.batch"

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        properties: {preemption.delay: 1s}
        queues:
          - name: production          # what it is guaranteed is taken back from others
            resources: {guaranteed: {vcore: 360, memory: 1Ti}}
          - name: research
            resources: {guaranteed: {vcore: 120, memory: 400Gi}, max: {vcore: 400}}
            properties: {application.sort.policy: fair}
            limits:
              - {limit: each user, users: ['*'], maxresources: {vcore: 160}}
          - name: training            # gangs
            resources: {guaranteed: {vcore: 128, memory: 1Ti, nvidia.com/gpu: 32}}
          - name: batch               # what is left
            properties: {application.sort.policy: fair}
"""

_GIB = 1 << 30
_CPU_NODE: Resources = {CPU: 32_000, MEMORY: 128 * _GIB}
_GPU_NODE: Resources = {CPU: 64_000, MEMORY: 512 * _GIB, GPU: 8}
NODES: dict[str, Resources] = {
    **{f"cpu-{number:02}": _CPU_NODE for number in range(1, 21)},
    **{f"gpu-{number:02}": _GPU_NODE for number in range(1, 7)},
}

ROUND_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """An application: equal tasks that end after a while.

    :param gang: its tasks start together.
    :param may_preempt: its asks may preempt; its tasks then are never victims.
    :param runs_s: from, to: a task runs as long as something between.
    """

    name: str
    queue: str
    user: str
    tasks: int
    resources: Resources
    runs_s: tuple[float, float]
    gang: bool = False
    may_preempt: bool = False


class Drain(NamedTuple):
    """A node gets no new tasks, until ``Undrain``."""

    node: str


class Undrain(NamedTuple):
    """See Drain."""

    node: str


class PlanStep(NamedTuple):
    """What happens at a time, in seconds after the start."""

    at_s: float
    what: Job | Drain | Undrain


def plan(seed: int = 1) -> Iterator[PlanStep]:
    """Returns steps without end, in the order of their times."""
    chance = random.Random(seed)  # noqa: S311 - a demo
    numbers: dict[str, int] = {}
    begins_s = 0.0
    while True:
        steps = _round(chance, numbers, later=begins_s > 0)
        for at_s, action in sorted(steps, key=lambda step: step[0]):
            yield PlanStep(begins_s + at_s, action)
        begins_s += ROUND_S


def _round(chance: random.Random, numbers: dict[str, int], *, later: bool) -> list[PlanStep]:
    """Returns the steps of a round, with times from its begin on, not in order."""

    def about(at_s: float) -> float:
        return at_s + (chance.uniform(-1.5, 1.5) if later else 0.0)

    def job(user: str, queue: str, tasks: int, vcores: int, runs_s: tuple[float, float], gpus: int = 0) -> Job:
        numbers[user] = numbers.get(user, 0) + 1
        resources = {CPU: vcores * 1_000, MEMORY: vcores * 3 * _GIB, **({GPU: gpus} if gpus else {})}
        count = max(1, round(tasks * chance.uniform(0.7, 1.3))) if later else tasks
        return Job(
            f"{user}-{numbers[user]}",
            queue,
            user,
            tasks if queue == TRAINING else count,
            resources,
            runs_s,
            gang=queue == TRAINING,
            may_preempt=queue == PRODUCTION,
        )

    node = chance.choice(list(NODES)) if later else "cpu-07"
    steps = [PlanStep(0.0, job("web", PRODUCTION, 10, 6, (25.0, 40.0)))]
    steps += [PlanStep(at_s, job("dora", BATCH, 45, 4, (12.0, 30.0))) for at_s in (0.0, 4.0, 15.0, 24.0)]
    steps += [PlanStep(at_s, job("emil", BATCH, 60, 2, (8.0, 20.0))) for at_s in (1.0, 9.0, 19.0)]
    steps += [PlanStep(at_s, job("anna", RESEARCH, 12, 8, (8.0, 15.0))) for at_s in (2.0, 17.0)]
    steps += [PlanStep(at_s, job("ben", RESEARCH, 6, 16, (6.0, 18.0), gpus=1)) for at_s in (7.0, 22.0)]
    steps += [PlanStep(about(at_s), job("carla", TRAINING, 6, 8, (12.0, 18.0), gpus=4)) for at_s in (5.0, 13.0, 21.0)]
    # More than is free: batch has to go.
    steps += [PlanStep(about(10.0), job("web", PRODUCTION, 36, 8, (10.0, 16.0)))]
    steps += [PlanStep(about(14.0), Drain(node)), PlanStep(about(26.0), Undrain(node))]
    return steps
