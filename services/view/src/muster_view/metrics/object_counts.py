"""Counts made while records are folded, for the metrics of YuniKorn's core (``yunikorn_metrics.py``).

For each record it compares only the changed object, before and after the fold: O(1), whatever the cluster's size. It
does not count figures that a request can read from the state itself (the queues' sums).

There are two kinds of figures, with different lifetimes:

* a :class:`StateCounts` counts the present objects; it belongs to one folded state and is built again with it;
* :class:`Counts` only grow: they count the events since this process began. They continue when the state is folded
  again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from muster_core.model.application import Application
from muster_core.model.node import Node
from muster_core.model.states import APP_TERMINAL, AppState
from muster_core.model.steps import finish
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_state import state_codec
from muster_state.state_folder import RmEntry

USAGE_BUCKETS = 10
ROOT = "root"
ALLOCATED, RELEASED = 0, 1


@dataclass(slots=True)
class ObjectCounts:
    """The counts of one RM since this process began to follow.

    :ivar containers: allocations that began and ended ([ALLOCATED, RELEASED]), by partition and queue; the counts end
        with the
    queue, as in YuniKorn's core.
    :ivar ended: applications by queue and by final state; these counts outlive the queue, as in YuniKorn's core.
    :ivar decommissioned: removed nodes.
    """

    containers: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    ended: dict[tuple[str, AppState], int] = field(default_factory=dict)
    decommissioned: int = 0


class PartitionCounts:
    """The present counts of one partition.

    :ivar applications: by queue and state. A state that an application was in once stays, with the count 0.
    :ivar draining: the nodes that take no new allocations.
    :ivar usage: how many nodes are in each tenth of use, by type number, the emptiest tenth first. See :meth:`weigh`.
    """

    __slots__ = ("_placed", "_unweighed", "applications", "draining", "usage")

    def __init__(self) -> None:
        self.applications: dict[tuple[str, AppState], int] = {}
        self.usage: dict[int, list[int]] = {}
        self.draining: dict[Node, None] = {}
        self._placed: dict[Node, tuple[tuple[int, int], ...]] = {}
        self._unweighed: dict[Node, None] = {}

    def look_through(self, partition: Partition) -> None:
        """Counts all objects of the partition: O(applications + nodes)."""
        for node in partition.nodes.values():
            self.node_changed(node)
        for app in (*partition.apps.values(), *partition.rejected.values()):
            self.count(where(app), app.state, 1)

    def count(self, path: str, state: AppState, change: int) -> None:
        """Counts ``change`` more applications (fewer, if negative) in this state."""
        key = (path, state)
        self.applications[key] = self.applications.get(key, 0) + change

    def forget_zeros(self, path: str) -> None:
        """Drops the counts of a queue that does not exist (any more): it has no series."""
        for state in AppState:
            if not self.applications.get((path, state), 1):
                del self.applications[path, state]

    def node_changed(self, node: Node) -> None:
        """Notes a node that is new or removed, or has other sums."""
        if node.gone or node.schedulable:
            self.draining.pop(node, None)
        else:
            self.draining[node] = None
        if node.gone:
            self._unweighed.pop(node, None)
            self._lift(node)
        else:
            self._unweighed[node] = None

    def weigh(self, most: int) -> bool:
        """Puts up to ``most`` changed nodes into their tenths. Returns whether more are left."""
        while self._unweighed and most > 0:
            node, _ = self._unweighed.popitem()
            most -= 1
            self._lift(node)
            self._placed[node] = placed = tuple(_tenths(node))
            for number, tenth in placed:
                of_type = self.usage.get(number)
                if of_type is None:
                    of_type = self.usage[number] = [0] * USAGE_BUCKETS
                of_type[tenth] += 1
        return bool(self._unweighed)

    def _lift(self, node: Node) -> None:
        for number, tenth in self._placed.pop(node, ()):
            self.usage[number][tenth] -= 1


_NOWHERE = PartitionCounts()


class StateCounts:
    """All RMs of one folded state. Implements :class:`muster_state.state_folder.FoldObserver`.

    :param counts: by RM; they outlive this census.
    :param ended: gets each core that was dropped, after its end is counted.
    """

    def __init__(
        self,
        counts: dict[str, ObjectCounts],
        ended: Callable[[SchedulerCore], None] = lambda core: finish(core.dispose()),
    ) -> None:
        self.counts, self._ended = counts, ended
        # (Not weakly: a compiled partition cannot be referred to so.)
        self._partitions: dict[Partition, PartitionCounts] = {}
        # The partition of the record that is being folded, and the earlier state of its object.
        self._now = _NOWHERE
        self._app: tuple[str, AppState, int] | None = None
        self._held: dict[str, int] = {}
        self._nodes: list[Node] = []

    def counts_of(self, partition: Partition) -> PartitionCounts:
        """The counts of one partition. A new partition is counted first."""
        counts = self._partitions.get(partition)
        if counts is None:
            # A configuration may have taken others away. That takes empty ones alone, and these are soon counted again.
            for empty in [empty for empty in self._partitions if not (empty.nodes or empty.apps or empty.rejected)]:
                del self._partitions[empty]
            counts = self._counted(partition)
        return counts

    def _counted(self, partition: Partition) -> PartitionCounts:
        self._partitions[partition] = counts = PartitionCounts()
        counts.look_through(partition)
        return counts

    # ---- Witness -----------------------------------------------------------------------------------------------------

    def on_built(self, rms: Mapping[str, RmEntry]) -> None:
        """Counts all objects: O(applications)."""
        for rm_id, state in rms.items():
            self.counts.setdefault(rm_id, ObjectCounts())
            for partition in state.core.partitions.values():
                self._counted(partition)

    def before(self, _rm_id: str, partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
        """Remembers the present object under a record's key."""
        self._now = self.counts_of(partition)
        self._app, self._held, self._nodes = None, {}, []
        match kind:
            case state_codec.ALLOC:
                self._look_at_allocation(partition, parts)
            case state_codec.APP:
                app = partition.apps.get(parts[0])
                if app is not None:
                    self._app = (where(app), app.state, app.submission)
                    if app.allocations:
                        self._held[app.queue.path] = len(app.allocations)
            case state_codec.REJECTED:
                app = partition.rejected.get(parts[0])
                if app is not None:
                    self._app = (where(app), app.state, app.submission)
            case state_codec.NODE:
                node = partition.nodes.get(parts[0])
                if node is not None:
                    self._nodes.append(node)
                    for allocation in node.allocations.values():
                        if allocation.app is not None:
                            path = allocation.app.queue.path
                            self._held[path] = self._held.get(path, 0) + 1

    def after(self, rm_id: str, partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
        """Counts the change of the object."""
        census, counts = self._now, self.counts.get(rm_id)
        if counts is None:
            self.counts[rm_id] = counts = ObjectCounts()
        match kind:
            case state_codec.ALLOC:
                was = self._app is not None
                app = partition.apps.get(parts[0])
                allocation = app.allocations.get(parts[1]) if app is not None else None
                if app is not None and allocation is not None:
                    if not was:
                        _containers(counts, partition, app.queue.path)[ALLOCATED] += 1
                    node = partition.nodes.get(allocation.node_id)
                    if node is not None:
                        census.node_changed(node)
                elif self._app is not None:
                    _containers(counts, partition, self._app[0])[RELEASED] += 1
            case state_codec.APP | state_codec.REJECTED:
                self._count_application(partition, counts, kind, parts[0])
            case state_codec.NODE:
                node = partition.nodes.get(parts[0])
                if node is not None:
                    self._nodes.append(node)
                elif self._nodes:
                    counts.decommissioned += 1
                    for path, held_there in self._held.items():
                        _containers(counts, partition, path)[RELEASED] += held_there
            case state_codec.QUEUE:
                self._forget_if_gone(partition, counts, parts[0])
        for node in self._nodes:
            census.node_changed(node)

    def on_dropped(self, state: RmEntry, *, for_ever: bool) -> None:
        """Counts the end of everything of an RM that registers again or was forgotten."""
        counts = self.counts.get(state.info.rm_id)
        for partition in state.core.partitions.values():
            self._partitions.pop(partition, None)
            if counts is not None:
                for app in partition.apps.values():
                    if app.allocations:
                        _containers(counts, partition, app.queue.path)[RELEASED] += len(app.allocations)
                counts.decommissioned += len(partition.nodes)
        if for_ever:
            self.counts.pop(state.info.rm_id, None)
        self._ended(state.core)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _look_at_allocation(self, partition: Partition, parts: tuple[str, ...]) -> None:
        app = partition.apps.get(parts[0])
        allocation = app.allocations.get(parts[1]) if app is not None else None
        if app is not None and allocation is not None:
            self._app = (app.queue.path, app.state, app.submission)
            node = partition.nodes.get(allocation.node_id)
            if node is not None:
                self._nodes.append(node)

    def _count_application(self, partition: Partition, counts: ObjectCounts, kind: str, app_id: str) -> None:
        census, old = self._now, self._app
        app = (partition.apps if kind == state_codec.APP else partition.rejected).get(app_id)
        now = (where(app), app.state, app.submission) if app is not None else None
        if old == now:
            return
        if old is not None:
            census.count(old[0], old[1], -1)
        if now is not None:
            census.count(now[0], now[1], 1)
            # (A finished application gets another id when its own is used again: this is no second end. And names that
            # clients invent must not become series.)
            was_open = old is not None and old[2] == now[2] and old[1] not in APP_TERMINAL
            if now[1] in APP_TERMINAL and (was_open or (now[1] is AppState.REJECTED and now[0] in partition.queues)):
                counts.ended[now[:2]] = counts.ended.get(now[:2], 0) + 1
        elif kind == state_codec.APP:
            for path, count in self._held.items():
                _containers(counts, partition, path)[RELEASED] += count
        if old is not None:
            self._forget_if_gone(partition, counts, old[0])

    def _forget_if_gone(self, partition: Partition, counts: ObjectCounts, path: str) -> None:
        if path not in partition.queues:
            counts.containers.pop((partition.name, path), None)
            self._now.forget_zeros(path)


def where(app: Application) -> str:
    """The queue of an application; of a rejected one the queue that it asked for, which may not exist."""
    if app.state is not AppState.REJECTED:
        return app.queue.path
    path = app.requested_queue.lower()
    return path if path == ROOT or path.startswith(f"{ROOT}.") else f"{ROOT}.{path}"


def add_up(censuses: Iterable[PartitionCounts]) -> dict[AppState, int]:
    """Applications by state, of several partitions."""
    totals: dict[AppState, int] = {}
    for census in censuses:
        for (_, state), count in census.applications.items():
            totals[state] = totals.get(state, 0) + count
    return totals


def _tenths(node: Node) -> Iterable[tuple[int, int]]:
    """For each type of the node, the tenth that its used share is in. 0 is in the first, over 100 % in the last."""
    pooled = node.types.pooled
    for number, (capacity, allocated) in enumerate(zip(node.capacity, node.allocated, strict=True)):
        if capacity > 0 and number not in pooled:
            tenth = -(-allocated * USAGE_BUCKETS // capacity) - 1
            yield number, min(max(tenth, 0), USAGE_BUCKETS - 1)


def _containers(counts: ObjectCounts, partition: Partition, path: str) -> list[int]:
    key = (partition.name, path)
    totals = counts.containers.get(key)
    if totals is None:
        totals = counts.containers[key] = [0, 0]
    return totals
