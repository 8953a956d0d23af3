"""What must be true of a partition at all times. Tests check it at every teardown; the service in production, now and
then, and after every recovery. A violation is a defect: better to stop and fold the log again than to go on."""

from __future__ import annotations

from collections.abc import Iterator

from muster_scheduler.core.objects import Application, Queue, Tracker
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.core.states import APP_TERMINAL


class InvariantViolated(AssertionError):
    """The state contradicts itself; the message says where."""


def check(core: SchedulerCore, *, exhausted: bool = False) -> None:
    """Checks every partition: O(cluster), so not on a hot path.

    :param exhausted: the last cycle ran to its end: then nothing may be ready, and everything pending has a reason.
    Raises InvariantViolated.
    """
    for partition in core.partitions.values():
        _check_nodes(partition)
        _check_queues(partition)
        _check_applications(partition)
        _check_trackers(partition)
        if exhausted and partition.deciding:
            _check_reasons(partition)


def _must(truth: bool, what: str) -> None:
    if not truth:
        raise InvariantViolated(what)


def _check_nodes(partition: Partition) -> None:
    types = partition.types
    capacity = [0] * len(types.names)
    for node in partition.nodes.values():
        allocated = [0] * len(types.names)
        for allocation in node.allocations.values():
            _must(allocation.node_id == node.node_id, f"{node} holds {allocation.key} of node {allocation.node_id}")
            for number, value in allocation.shape.items:
                allocated[number] += value
        _must(allocated == node.allocated, f"{node}: allocated {node.allocated}, its allocations sum to {allocated}")
        occupied = types.vector()
        for number, value in types.items(node.reported_occupied):
            occupied[number] += value
        for foreign in node.foreign.values():
            for number, value in foreign.shape.items:
                occupied[number] += value
        _must(occupied == node.occupied, f"{node}: occupied {node.occupied}, but {occupied} is held by others")
        types.release(occupied)
        for number, free in enumerate(node.available):
            whole = node.capacity[number] - node.allocated[number] - node.occupied[number]
            _must(free == whole, f"{node}: {free} {types.names[number]} available, should be {whole}")
            capacity[number] += node.capacity[number]
        listed = node.schedulable and not node.reservations and partition.searching
        _must((node.index_key is not None) == listed, f"{node}: in the index, but not to be searched (or not)")
        for ask in node.reservations:
            _must(ask.reserved is node and not ask.gone, f"{node} is kept free for {ask}, which does not know")
        daemons = sum(bool(ask.demand.required_node) for ask in node.reservations)
        _must(daemons in (0, len(node.reservations)), f"{node} is kept free for a daemon and for others")
        _must(len(node.reservations) <= 1 or daemons > 1, f"{node} is kept free for more than one")
    _must(
        capacity == partition.capacity, f"partition {partition.name}: capacity {partition.capacity}, nodes {capacity}"
    )
    indexed = list(partition.index)
    _must(len(indexed) == partition.index.count, "the node index has lost count")
    keys = [node.index_key for node in indexed]
    _must(keys == sorted(keys, key=lambda key: key or (0.0, "")), "the node index is out of order")


def _check_queues(partition: Partition) -> None:
    for queue in partition.queues.values():
        allocated, pending, running = _sums(queue)
        _must(allocated == queue.allocated, f"{queue}: allocated {queue.allocated}, applications sum to {allocated}")
        _must(pending == queue.pending, f"{queue}: pending {queue.pending}, applications sum to {pending}")
        _must(
            running == queue.running_applications,
            f"{queue}: {queue.running_applications} applications running, counted {running}",
        )

        preempting = [0] * len(queue.types.names)
        for app in _below(queue):
            for allocation in app.allocations.values():
                if allocation.preempted is not None:
                    for number, value in allocation.shape.items:
                        preempting[number] += value
        _must(preempting == queue.preempting, f"{queue}: preempting {queue.preempting}, marks sum to {preempting}")


def _below(queue: Queue) -> Iterator[Application]:
    yield from queue.applications.values()
    for child in queue.children.values():
        yield from _below(child)


def _check_trackers(partition: Partition) -> None:
    """Users' and groups' ledgers hold what their applications hold."""
    size = len(partition.types.names)
    expected: dict[Tracker, tuple[list[int], int, int]] = {}
    for queue in partition.queues.values():
        for app in queue.applications.values():
            _must(app.bounds == (*app.trackers, *queue.line), f"{app} keeps other limits than it counts in")
            _must(app.ledgers == (*app.trackers, *queue.ancestry), f"{app} counts elsewhere than where it is")
            for tracker in app.trackers:
                allocated, running, members = expected.get(tracker, ([0] * size, 0, 0))
                summed = [held + own for held, own in zip(allocated, app.allocated, strict=True)]
                expected[tracker] = (summed, running + app.counted, members + 1)
    found = list(partition.limits)
    _must(len(found) == len(expected), f"{len(found)} trackers, of which {len(expected)} are in use")
    for tracker, (allocated, running, members) in expected.items():
        _must(allocated == tracker.allocated, f"{tracker}: {tracker.allocated}, its applications sum to {allocated}")
        _must(
            running == tracker.running_applications, f"{tracker}: {tracker.running_applications} running, not {running}"
        )
        _must(members == tracker.applications, f"{tracker}: {tracker.applications} applications, not {members}")


def _sums(queue: Queue) -> tuple[list[int], list[int], int]:
    size = len(queue.types.names)
    allocated, pending, running = [0] * size, [0] * size, 0
    for app in queue.applications.values():
        for number in range(size):
            allocated[number] += app.allocated[number]
            pending[number] += app.pending[number]
        running += app.counted
    for child in queue.children.values():
        child_allocated, child_pending, child_running = _sums(child)
        for number in range(size):
            allocated[number] += child_allocated[number]
            pending[number] += child_pending[number]
        running += child_running
    return allocated, pending, running


def _check_applications(partition: Partition) -> None:
    size = len(partition.types.names)
    for app in partition.apps.values():
        allocated, pending = [0] * size, [0] * size
        for allocation in app.allocations.values():
            for number, value in allocation.shape.items:
                allocated[number] += value
        for ask in app.asks.values():
            _must(ask.pending > 0, f"{app}: ask {ask.key} has nothing pending")
            if ask.reserved is not None:
                _must(ask in ask.reserved.reservations, f"{ask} thinks that {ask.reserved} is kept free for it")
            for number, value in ask.shape.items:
                pending[number] += value * ask.pending
        _must(allocated == app.allocated, f"{app}: allocated {app.allocated}, its allocations sum to {allocated}")
        _must(pending == app.pending, f"{app}: pending {app.pending}, its asks sum to {pending}")
        if app.state in APP_TERMINAL:
            _must(not app.asks and not app.allocations, f"{app} is over, but holds asks or allocations")
        _check_allocations(app)
        for group in app.groups.values():
            count = sum(1 for ask in app.asks.values() if ask.group is group)
            _must(count == group.asks, f"{group} counts {group.asks} asks, has {count}")
        parked = sum(group.parked_key is not None for group in app.groups.values())
        _must(parked == app.parked, f"{app}: {app.parked} groups parked, not {parked}")


def _check_allocations(app: Application) -> None:
    repeats = uuids = 0
    for key, allocation in app.allocations.items():
        _must(key == allocation.unique_key, f"{app}: {allocation.unique_key} is filed under {key}")
        if allocation.ordinal:
            repeats += 1
            found = app.repeats.get(allocation.key, {}).get(allocation.ordinal)
            _must(found is allocation, f"{app}: {key} is not found by its number")
        if allocation.uuid:
            uuids += 1
            _must(allocation in app.by_uuid.get(allocation.uuid, {}), f"{app}: {key} is not found by its UUID")
    _must(repeats == sum(map(len, app.repeats.values())), f"{app} remembers repeats that are gone")
    _must(uuids == sum(map(len, app.by_uuid.values())), f"{app} remembers UUIDs that are gone")


def _check_reasons(partition: Partition) -> None:
    for app in partition.apps.values():
        _must(app.reason is None or app.waiting_at is not None, f"{app} has a reason not to run, but does not wait")
        for ask in app.asks.values():
            group = ask.group
            _must(group is not None and group.reason is not None, f"{app}: ask {ask.key} is pending without a reason")
    for queue in partition.queues.values():
        _must(not queue.ready and not queue.ready_apps, f"{queue} has something ready after an exhausted cycle")
        for waitlist in queue.waitlists.values():
            _must(bool(waitlist.groups) and waitlist.place is not None, f"{waitlist} is kept, but nobody waits on it")
            _must(waitlist.holds and waitlist.relay is None, f"{waitlist} waits for one of its bench that is not tried")
