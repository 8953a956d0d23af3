"""The event handler ``vm-hosts``: what hosts and VMs mean for the scheduler (entry point of ``muster.event_handlers``).

* A host is a node, without what its hypervisor keeps for itself.
* A VM is an external allocation on it, with what the hypervisor adds for each VM.
* A host in maintenance takes nothing new.

``--config-path`` names a TOML file that says how much that is; without it nothing is kept and nothing added::

    [kept_per_host]
    vcore = 500                   # millicores
    memory = 536_870_912          # bytes

    [added_per_vm]
    memory = 134_217_728

What comes from other informers of the process passes as the default handler has it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from muster_informers.plugin import (
    DefaultEventHandler,
    EventHandler,
    ExternalAllocation,
    ExternalCache,
    ExternalNode,
    HandlerContext,
    HandlerSettingsWrong,
)

from muster_example_vmhosts.informer import MAINTENANCE


@dataclass(frozen=True, slots=True)
class Overheads:
    """What hypervisors use; by type of resource, in the scheduler's units."""

    kept_per_host: Mapping[str, int] = field(default_factory=dict)
    added_per_vm: Mapping[str, int] = field(default_factory=dict)


class VmHostsHandler(DefaultEventHandler):
    """What it does not say here (deletions, other kinds) is the default handler's way: object in, object out."""

    def __init__(self, cache: ExternalCache, overheads: Overheads) -> None:
        super().__init__(cache)
        self._overheads = overheads

    def add_node(self, node: ExternalNode, *, initial: bool) -> None:
        super().add_node(self._host(node), initial=initial)

    def update_node(self, old: ExternalNode, new: ExternalNode) -> None:
        super().update_node(self._host(old), self._host(new))

    def add_allocation(self, allocation: ExternalAllocation, *, initial: bool) -> None:
        super().add_allocation(self._vm(allocation), initial=initial)

    def update_allocation(self, old: ExternalAllocation, new: ExternalAllocation) -> None:
        super().update_allocation(self._vm(old), self._vm(new))

    def _host(self, node: ExternalNode) -> ExternalNode:
        kept, capacity = self._overheads.kept_per_host, node.capacity or {}
        return replace(
            node,
            capacity={name: max(0, amount - kept.get(name, 0)) for name, amount in capacity.items()},
            schedulable=node.attributes.get(MAINTENANCE) != "true",
        )

    def _vm(self, allocation: ExternalAllocation) -> ExternalAllocation:
        added, own = self._overheads.added_per_vm, allocation.quantities
        uses = {name: own.get(name, 0) + added.get(name, 0) for name in {**own, **added}}
        return replace(allocation, quantities=uses)


def read_overheads(config: bytes | None) -> Overheads:
    """What ``--config-path`` says. Raises HandlerSettingsWrong, with all that is wrong."""
    try:
        tables = tomllib.loads((config or b"").decode())
    except ValueError as error:
        raise HandlerSettingsWrong(f"handler vm-hosts: --config-path: expected TOML: {error}") from error
    known = ("kept_per_host", "added_per_vm")
    problems = [f"{name}: is not known, expected one of: {', '.join(known)}" for name in tables if name not in known]
    for name in known:
        table = tables.get(name, {})
        if not isinstance(table, dict):
            problems.append(f"{name} {table!r}: expected a table")
            continue
        problems += [
            f"{name}.{resource} {amount!r}: expected a whole number, 0 or more"
            for resource, amount in table.items()
            if type(amount) is not int or amount < 0
        ]
    if problems:
        raise HandlerSettingsWrong(*(f"handler vm-hosts: --config-path: {problem}" for problem in problems))
    return Overheads(**tables)


def make_handler(cache: ExternalCache, config: bytes | None, context: HandlerContext) -> EventHandler:
    """The entry point. Raises HandlerSettingsWrong."""
    if context.options:
        names = ", ".join(f"handler_{name}" for name in context.options)
        raise HandlerSettingsWrong(f"handler vm-hosts: {names}: it has no options, its settings are --config-path's")
    return VmHostsHandler(cache, read_overheads(config))
