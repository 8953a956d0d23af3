"""A generated workload: arrivals at random, run times that are log-normal, sizes from a list; all from one seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

from muster_si.constants import CPU, MEMORY

from muster_whatif.errors import InvalidWorkload
from muster_whatif.workload import Workload, WorkloadNode, WorkloadTask

_SIZES = ((1_000, 4), (2_000, 8), (4_000, 16), (8_000, 32))  # vcore in thousandths, memory in GiB
_WEIGHTS = (8, 4, 2, 1)
_GIB = 1 << 30
_TASKS_OF_AN_APPLICATION = 20
# The least and the most of each value: more needs more memory or time than a machine has, or is no workload.
_RANGES: dict[str, tuple[float, float]] = {
    "tasks": (1, 10_000_000),
    "nodes": (1, 1_000_000),
    "cores": (1, 100_000),
    "load": (0.001, 1_000),
    "median_run_s": (0.001, 1e9),
    "spread": (0, 5),
    "users": (1, 1_000_000),
    "queues": (1, 10_000),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True, slots=True)
class Generator:
    """What to generate.

    :param load: the share of the machines' cores that the tasks would use on average if none waited.
    :param median_run_s: of the run times; likewise ``spread``, the standard deviation of their logarithm.
    """

    tasks: int = 10_000
    nodes: int = 100
    cores: int = 32
    load: float = 0.9
    median_run_s: float = 600.0
    spread: float = 1.0
    users: int = 5
    queues: int = 3
    seed: int = 1

    @classmethod
    def parse(cls, text: str) -> Generator:
        """Reads ``tasks=1000,nodes=20,load=1.1``. Raises InvalidWorkload."""
        kinds = {field.name: (float if field.type == "float" else int) for field in fields(cls)}
        values: dict[str, float | int] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in kinds:
                raise InvalidWorkload(f"generated workload: {name!r}, expected one of {', '.join(kinds)}")
            least, most = _RANGES[name]
            try:
                values[name] = kinds[name](value)
            except ValueError:
                values[name] = math.nan
            if not least <= values[name] <= most:
                constraint = "a whole number" if kinds[name] is int else "a number"
                raise InvalidWorkload(
                    f"generate: {name}: must be {constraint} from {least:,} to {most:,}, got {value[:40]!r}"
                )
        return cls(**values)  # type: ignore[arg-type]


def generate(parameters: Generator) -> Workload:
    """Returns the workload of a seed: the same for the same values."""
    dice = random.Random(parameters.seed)  # noqa: S311 - a simulation
    machines = [
        WorkloadNode(f"node-{index + 1}", {CPU: 1_000 * parameters.cores, MEMORY: 4 * parameters.cores * _GIB}, "node")
        for index in range(parameters.nodes)
    ]
    mean_vcore = sum(size[0] * weight for size, weight in zip(_SIZES, _WEIGHTS, strict=True)) / sum(_WEIGHTS)
    mean_run_s = parameters.median_run_s * math.exp(parameters.spread**2 / 2)
    rate = parameters.load * parameters.nodes * parameters.cores * 1_000 / (mean_vcore * mean_run_s)
    sizes = [{CPU: vcore, MEMORY: memory * _GIB} for vcore, memory in _SIZES]  # shared by the tasks: a million is many
    tasks: list[WorkloadTask] = []
    moment_s = 0.0
    for number in range(parameters.tasks):
        moment_s += dice.expovariate(rate)
        user, queue = dice.randrange(parameters.users), dice.randrange(parameters.queues)
        (quantities,) = dice.choices(sizes, _WEIGHTS)
        tasks.append(
            WorkloadTask(
                f"task-{number + 1}",
                f"app-{queue}-{user}-{number // (_TASKS_OF_AN_APPLICATION * parameters.users * parameters.queues)}",
                f"root.queue-{queue + 1}",
                f"user-{user + 1}",
                quantities,
                moment_s,
                dice.lognormvariate(math.log(parameters.median_run_s), parameters.spread),
            )
        )
    leaves = "".join(f"          - name: queue-{number + 1}\n" for number in range(parameters.queues))
    config = (
        "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n        queues:\n"
        + leaves
    )
    machines_text = f"{parameters.nodes:,} machines of {parameters.cores} cores"
    facts = [f"{parameters.tasks:,} tasks on {machines_text}, load {parameters.load:g}, seed {parameters.seed}"]
    return Workload(f"generated, seed {parameters.seed}", machines, tasks, config, facts)
