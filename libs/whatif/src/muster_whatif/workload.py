"""What a simulation plays: machines, and tasks with the time at which each arrives and how long it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NS_PER_S = 1_000_000_000

Quantities = dict[str, int]


@dataclass(frozen=True, slots=True)
class WorkloadNode:
    """A node.

    :param quantities: capacity by resource type, in the scheduler interface's units (vcore in thousandths).
    :param kind: machines of one kind are alike; names in ``--nodes`` and ``--without``.
    """

    name: str
    quantities: Quantities
    kind: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadTask:
    """A task: one ask, and one allocation that ends after its run time.

    :param arrives_s: seconds from the beginning of the workload; likewise ``runs_s``, from its start.
    :param task_group: of a gang; "": none.
    :param placeholder: it holds room for a task of its task group, and ends when the scheduler releases it.
    :param declares_s: how long it says that it runs at the most (execution time-out); 0: it says nothing.
    """

    name: str
    application_id: str
    queue: str
    user: str
    quantities: Quantities
    arrives_s: float
    runs_s: float
    priority: int = 0
    task_group: str = ""
    placeholder: bool = False
    declares_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadGang:
    """What an application announces of its gang.

    :param quantities: of all its placeholders together.
    :param style: Soft or Hard.
    :param timeout_s: of its placeholders; 0: the scheduler's own.
    """

    application_id: str
    quantities: Quantities
    style: str = "Soft"
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BareApplication:
    """An application that came without asks, because it was refused, for example. Even so it took a number."""

    application_id: str
    queue: str
    user: str
    arrives_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload.

    :param tasks: in the order in which they arrive.
    :param config: queue configuration (YAML) that it comes with; "": none.
    :param gangs: of the applications that have one.
    :param bare: applications without asks, in the order in which they arrive.
    :param restarts_s: moments at which the RM restarts: it registers anew, and reports its nodes, applications, running
        allocations and pending asks in the order in which they came.
    :param facts: sentences about it for the report: where it comes from, what had to be assumed.
    """

    name: str
    machines: Sequence[WorkloadNode]
    tasks: Sequence[WorkloadTask]
    config: str = ""
    facts: Sequence[str] = ()
    gangs: Sequence[WorkloadGang] = ()
    bare: Sequence[BareApplication] = ()
    restarts_s: Sequence[float] = ()

    def kinds(self) -> Counter[str]:
        """Returns the number of machines of each kind."""
        return Counter(machine.kind for machine in self.machines)


def total(machines: Sequence[WorkloadNode]) -> Quantities:
    """Returns the capacity of all machines by type."""
    sums: Quantities = {}
    for machine in machines:
        for name, quantity in machine.quantities.items():
            sums[name] = sums.get(name, 0) + quantity
    return sums
