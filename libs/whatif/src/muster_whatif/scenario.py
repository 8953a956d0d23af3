"""One possible world: a queue configuration, and the machines of the workload with changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster_core.config.queue_config import ClusterConfig
from muster_queue_config.queue_yaml import load_queue_config

from muster_whatif.errors import InvalidScenario
from muster_whatif.workload import Workload, WorkloadNode

_CHANGE = re.compile(r"([+-])([0-9]{1,18}):(.*)")
_MACHINES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world to play a workload in.

    :param name: in reports.
    :param config: queue configuration, YAML.
    :param changes: ``+20:KIND`` adds twenty machines like those of a kind, ``-3:KIND`` takes three away.
    """

    name: str
    config: str
    changes: tuple[str, ...] = ()

    def cluster(self) -> ClusterConfig:
        """Returns the configuration. Raises InvalidScenario with the first problem and its place."""
        config, problems = load_queue_config(self.config)
        if config is None:
            raise InvalidScenario(f"{self.name}: {problems[0]}")
        return config

    def machines(self, workload: Workload) -> list[WorkloadNode]:
        """Returns the workload's machines with the changes. Raises InvalidScenario."""
        machines = list(workload.machines)
        for change in self.changes:
            machines = changed(machines, change)
        if not machines:
            raise InvalidScenario(f"{self.name}: no machine is left")
        return machines


def changed(machines: Sequence[WorkloadNode], change: str) -> list[WorkloadNode]:
    """Adds machines to, or takes them from, the end of a kind. Raises InvalidScenario."""
    parts = _CHANGE.fullmatch(change)
    if parts is None or not 1 <= int(parts[2]) <= _MACHINES_MAX:
        raise InvalidScenario(
            f"--nodes: must be +COUNT:KIND or -COUNT:KIND with a whole number from 1 to {_MACHINES_MAX:,}, got "
            f"{change[:40]!r}"
        )
    sign, count, kind = parts[1], int(parts[2]), parts[3]
    alike = [machine for machine in machines if machine.kind == kind]
    if not alike:
        kinds = ", ".join(sorted({machine.kind or "(no name)" for machine in machines}))
        raise InvalidScenario(f"nodes: there is no machine of kind {kind!r}, expected one of {kinds}")
    if sign == "+":
        return [*machines, *(replace(alike[0], name=f"{kind or 'node'}-more-{number + 1}") for number in range(count))]
    if count > len(alike):
        raise InvalidScenario(f"nodes: {change}: there are only {len(alike)} machines of that kind")
    gone = {machine.name for machine in alike[len(alike) - count :]}
    return [machine for machine in machines if machine.name not in gone]
