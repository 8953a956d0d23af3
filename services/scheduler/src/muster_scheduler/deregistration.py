"""The remains of an RM whose state is dropped at a registration, or when the RM is forgotten."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from muster_bus.topics import rm_state_key, state_key
from muster_core.external.reports import ReportedObject, SourceEntry
from muster_core.model.outcome import Outcome, Primary
from muster_core.model.steps import LIGHT_STEP, clear_list_in_steps, emptied
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_state import state_codec


def absorb_unwritten(dropped: Outcome | None, out: Outcome) -> Generator[None, None, list[tuple[str, Primary]]]:
    """Moves unwritten decisions for an RM whose state is dropped into ``out``. Returns the objects that they removed.
    In steps.

    :param out: the events of the objects that end.
    """
    removed: list[tuple[str, Primary]] = []
    if dropped is None:
        return removed
    # Those dropped are older than the events of the end.
    events, out.events = out.events, dropped.events
    for count, event in enumerate(emptied(events), 1):
        out.events.append(event)
        if not count % LIGHT_STEP:
            yield
    yield from clear_list_in_steps(dropped.facts)
    out.made += dropped.made
    out.reported += dropped.reported
    out.ended += dropped.ended
    out.released += dropped.released
    for changed_object in dropped.objects_in_steps(LIGHT_STEP):
        if changed_object is None:
            yield
            continue
        partition, obj, alive = changed_object
        if not alive:
            removed.append((partition, obj))
        elif isinstance(obj, SourceEntry | ReportedObject):
            out.mark_changed(obj, partition)  # external sources are not part of the dropped state
    return removed


def published_objects(core: SchedulerCore) -> Iterator[tuple[str, Primary]]:
    """Yields every object of a core that has a record on the state topic."""
    for partition in core.partitions.values():
        for obj in _objects_of(partition):
            if obj.published:
                yield partition.name, obj


def _objects_of(partition: Partition) -> Iterator[Primary]:
    yield from partition.foreign.values()
    yield from partition.rejected.values()
    for app in partition.apps.values():
        yield from app.allocations.values()
        yield from app.asks.values()
        yield app
    yield from partition.nodes.values()
    for queue in reversed(partition.queues.values()):
        yield from queue.waitlists.values()
        if queue.fair_uses is not None:
            yield from queue.fair_uses.users.values()
        yield queue


def own_keys(rm_id: str) -> list[bytes]:
    """Returns the keys of an RM's own records on the state topic."""
    return [rm_state_key(rm_id), state_key(rm_id, state_codec.REGISTRATION, "-")]
