"""YuniKorn's health checks, each by its real condition.

YuniKorn tests counters, so after one rejected allocation it is unhealthy until a restart. Muster tests the recorded
state itself. That costs O(cluster), so the test runs in steps, and its result is cached for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from muster_core.model.application import Application
from muster_core.model.node import Node
from muster_core.model.resources import Vector
from muster_core.partition import Partition
from muster_rest.shapes.measures import HealthCheckDao, HealthDao
from muster_runtime.secrets import masked_text
from muster_state.state_folder import RmEntry

T = TypeVar("T")

# The most findings in one message; it gives only the number of the others.
_NAMED_MAX = 5
# Objects checked between two steps.
_PER_STEP = 50


@dataclass
class HealthCheck:
    """One run over all RMs. The caller exhausts :meth:`steps` before it calls :meth:`result`."""

    states: Sequence[RmEntry]
    problems: Sequence[str]
    lagging: str = ""
    lost_sources: Sequence[str] = ()
    damaged: Sequence[str] = ()
    negative_partitions: list[str] = field(default_factory=list)
    negative_nodes: list[str] = field(default_factory=list)
    overcommitted: list[str] = field(default_factory=list)
    unequal_partitions: list[str] = field(default_factory=list)
    unequal_nodes: list[str] = field(default_factory=list)
    lost_reservations: list[str] = field(default_factory=list)
    orphans_on_nodes: list[str] = field(default_factory=list)
    orphans_of_apps: list[str] = field(default_factory=list)

    def steps(self) -> Iterator[None]:
        """Checks all objects, some at a time."""
        for state in self.states:
            for partition in state.core.partitions.values():
                yield from self._look_at(f"{state.info.rm_id}/{partition.name}", partition)

    def result(self) -> HealthDao:
        """The answer, in YuniKorn's order of checks; the last four are Muster's own."""
        checks = [
            _check("Scheduling errors", "Every record of the state could be read and applied", self.problems),
            _check("Failed nodes", "No node is registered that could not be used", ()),
            _check("Negative resources", "No partition or queue has negative resources", self.negative_partitions),
            _check("Negative resources", "No node has negative resources", self.negative_nodes, self._overcommitted()),
            _check(
                "Consistency of data",
                "A partition's capacity is the sum of its nodes'",
                self.unequal_partitions,
            ),
            _check(
                "Consistency of data",
                "A node's capacity is the sum of allocated, occupied and available",
                self.unequal_nodes,
            ),
            _check("Reservation check", "Every reservation has its node and its ask", self.lost_reservations),
            _check(
                "Orphan allocation on node check",
                "Every allocation on a node belongs to an application",
                self.orphans_on_nodes,
            ),
            _check(
                "Orphan allocation on app check",
                "Every allocation of an application is on a node",
                self.orphans_of_apps,
            ),
            _check("State lag", "The view is not far behind the scheduler", [self.lagging] if self.lagging else ()),
            _check("External sources", "Every external source is connected", self.lost_sources),
            _check("Whole log", "No damaged part of the log was passed over", self.damaged),
            # Nothing fails: the list admits nobody until somebody mends it, which no restart does.
            _check("Access lists", "Every access list admits somebody or nobody on purpose", (), self._closed()),
        ]
        return HealthDao(healthy=all(check.succeeded for check in checks), health_checks=checks)

    def _closed(self) -> str:
        return _named(
            [f"{state.info.rm_id}: {masked_text(problem)}" for state in self.states for problem in state.info.closed]
        )

    def _overcommitted(self) -> str:
        # The RM or a source may shrink a node or over-commit it: that is no failure, but worth knowing.
        return f"over-committed from outside: {_named(self.overcommitted)}" if self.overcommitted else ""

    def _look_at(self, name: str, partition: Partition) -> Iterator[None]:
        for queue in partition.queues.values():
            if _negative(queue.allocated) or _negative(queue.pending):
                self.negative_partitions.append(f"queue {name} {queue.path}")
        if _negative(partition.capacity):
            self.negative_partitions.append(f"partition {name}")
        yield
        capacity = [0] * len(partition.types.names)
        for batch in _batches(partition.nodes.values()):
            for node in batch:
                if not node.gone:
                    self._look_at_node(name, partition, node)
                    capacity = [total + value for total, value in zip(capacity, node.capacity, strict=True)]
            yield
        for number in partition.types.pooled:
            capacity[number] = partition.capacity[number]  # on no node
        if capacity != partition.capacity:
            self.unequal_partitions.append(f"partition {name}")
        for apps in _batches(partition.apps.values()):
            for app in apps:
                if not app.gone:
                    self._look_at_app(name, partition, app)
            yield

    def _look_at_node(self, name: str, partition: Partition, node: Node) -> None:
        if _negative(node.capacity) or _negative(node.allocated):
            self.negative_nodes.append(f"node {name} {node.node_id}")
        if _negative(node.available):
            self.overcommitted.append(f"{name} {node.node_id}")
        allocated = [0] * len(partition.types.names)
        for allocation in node.allocations.values():
            for number, value in allocation.shape.items:
                allocated[number] += value
            app = allocation.app
            if (
                app is None
                or app.allocations.get(allocation.unique_key) is not allocation
                or partition.apps.get(app.app_id) is not app
            ):
                self.orphans_on_nodes.append(f"{allocation.key} on node {name} {node.node_id}")
        for ask in node.reservations:
            if ask.reserved_node != node.node_id or ask.app.asks.get(ask.key) is not ask:
                self.lost_reservations.append(f"{ask.key} of application {name} {ask.app.app_id}")
        parts = zip(node.allocated, node.occupied, node.available, strict=True)
        if allocated != node.allocated or [sum(part) for part in parts] != node.capacity:
            self.unequal_nodes.append(f"node {name} {node.node_id}")

    def _look_at_app(self, name: str, partition: Partition, app: Application) -> None:
        for ask in app.asks.values():
            kept = partition.nodes.get(ask.reserved_node)
            if ask.reserved_node and (kept is None or ask not in kept.reservations):
                self.lost_reservations.append(f"{ask.key} of application {name} {app.app_id}")
        for allocation in app.allocations.values():
            node = partition.nodes.get(allocation.node_id)
            if node is None or node.allocations.get((app.app_id, allocation.unique_key)) is not allocation:
                self.orphans_of_apps.append(f"{allocation.key} of application {name} {app.app_id}")


def _negative(vector: Vector) -> bool:
    return bool(vector) and min(vector) < 0


def _batches(objects: Iterable[T]) -> Iterator[list[T]]:
    """Yields parts of a list that is copied at once."""
    iterator = iter(list(objects))
    while batch := list(islice(iterator, _PER_STEP)):
        yield batch


def _check(name: str, description: str, findings: Sequence[str], note: str = "") -> HealthCheckDao:
    diagnosis = _named(findings) if findings else note or "nothing found"
    return HealthCheckDao(name=name, succeeded=not findings, description=description, diagnosis_message=diagnosis)


def _named(findings: Sequence[str]) -> str:
    more = len(findings) - _NAMED_MAX
    return ", ".join(findings[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
