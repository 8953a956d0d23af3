"""Where a workload comes from: one text names it, and every process of a matrix can read it again."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

from muster_whatif.errors import InvalidWorkload
from muster_whatif.workload import Workload
from muster_whatif.workloads import generator, openb, swf, workload_file

# What people declare: a round time that is long enough. Seconds.
ROUND_S = (
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3_600 * hours for hours in (1, 2, 4, 8, 12)),
    *(86_400 * days for days in (1, 2, 4, 7, 14, 30, 60, 90, 180, 365)),
)
GENERATE = "generate:"
SAVED = ".workload.json"


def user_of(application_id: str, users: int) -> str:
    """The user of an application, by a hash of its id: u1 has most, and the user of rank k a part like 1 / k."""
    parts = list(accumulate(1 / rank for rank in range(1, users + 1)))
    point = int.from_bytes(sha256(application_id.encode()).digest()[:8]) / (1 << 64) * parts[-1]
    return f"u{bisect_right(parts, point) + 1}"


def rounded_up_s(seconds: float) -> float:
    """The next of ROUND_S; beyond them the time itself."""
    index = bisect_left(ROUND_S, seconds)
    return ROUND_S[index] if index < len(ROUND_S) else seconds


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """A workload's source.

    :param text: a folder with nodes.csv.gz and pods.csv.gz, a file ``*.swf``, ``*.swf.gz`` or
        ``*.workload.json``, or ``generate:`` with the generator's values.
    :param seed: of the generator; None: that of ``text``.
    :param speed: so many times as dense do tasks arrive; they run as long as before.
    :param declare: so many times their run time do tasks declare as execution time-out, at least once, rounded up as
        people do; 0: they declare nothing.
    :param users: so many users share the tasks, for a trace that names none: the user of rank k has a part like 1 / k,
        and a hash of the application decides; 0: as the trace says.
    :param part: of the machines, taken evenly in their order: 0.1 keeps every tenth.
    """

    text: str
    seed: int | None = None
    speed: float = 1.0
    declare: float = 0.0
    users: int = 0
    part: float = 1.0

    @property
    def is_generated(self) -> bool:
        return self.text.startswith(GENERATE)

    def first_seed(self) -> int:
        """Returns the generator's seed. Raises InvalidWorkload."""
        return self._generator().seed

    def read(self) -> Workload:
        """Returns the workload. Raises InvalidWorkload."""
        workload = self._read()
        _validate(workload)
        tasks, facts = list(workload.tasks), list(workload.facts)
        if self.speed != 1.0:
            tasks = [replace(task, arrives_s=task.arrives_s / self.speed) for task in tasks]
            facts.append(f"tasks arrive {self.speed:g} times as fast")
        if self.declare:
            times = max(self.declare, 1.0)
            tasks = [replace(task, declares_s=rounded_up_s(task.runs_s * times)) for task in tasks]
            facts.append(f"tasks declare {times:g} times their run time, rounded up, as execution time-out")
        if self.users:
            tasks = [replace(task, user=user_of(task.application_id, self.users)) for task in tasks]
            facts.append(f"{self.users:,} users share the tasks: the user of rank k has a part like 1 / k")
        machines = workload.machines
        if self.part != 1.0:
            machines = [
                machine
                for index, machine in enumerate(machines)
                if int((index + 1) * self.part) > int(index * self.part)
            ]
            facts.append(f"{len(machines):,} of the machines, taken evenly")
        return replace(workload, machines=machines, tasks=tasks, facts=facts)

    def _generator(self) -> generator.Generator:
        parameters = generator.Generator.parse(self.text.removeprefix(GENERATE))
        return parameters if self.seed is None else replace(parameters, seed=self.seed)

    def _read(self) -> Workload:
        if self.is_generated:
            return generator.generate(self._generator())
        path = Path(self.text)
        if path.is_dir():
            return openb.read(path)
        if ".swf" in (suffix.lower() for suffix in path.suffixes):
            return swf.read(path)
        if path.name.endswith(SAVED):
            return workload_file.read(path)
        raise InvalidWorkload(
            f"{self.text}: expected a folder with nodes.csv.gz and pods.csv.gz, a file .swf, .swf.gz or "
            f"{SAVED}, or {GENERATE}…"
        )


def _validate(workload: Workload) -> None:
    """A play knows tasks by their names, and none may end before it arrives. Raises InvalidWorkload."""
    names: set[str] = set()
    for task in workload.tasks:
        if task.name in names:
            raise InvalidWorkload(f"{workload.name}: task {task.name!r} must be there once, got it again")
        names.add(task.name)
        for field, value_s in (("arrives_s", task.arrives_s), ("runs_s", task.runs_s)):
            if not 0 <= value_s < math.inf:
                raise InvalidWorkload(
                    f"{workload.name}: {field} of task {task.name!r} must be at least 0, got {value_s}"
                )
