"""The remains of an RM whose state is dropped at a registration, or when the RM is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from muster_bus.topics import rm_state_key, state_key
from muster_core.external.external_books import ExternalEntry, SourceEntry
from muster_core.model.outcome import Outcome, Primary
from muster_core.model.queue import Queue
from muster_core.scheduler import SchedulerCore
from muster_state import state_codec


def take_over(dropped: Outcome | None, out: Outcome) -> list[tuple[str, Primary]]:
    """Moves unwritten decisions for an RM whose state is dropped into ``out``. Returns the objects that they removed.

    :param out: the events of the objects that end.
    """
    removed: list[tuple[str, Primary]] = []
    if dropped is None:
        return removed
    out.events[:0] = dropped.events  # these are older than the events of the end
    out.made += dropped.made
    out.reported += dropped.reported
    out.ended += dropped.ended
    out.released += dropped.released
    for place, what, alive in dropped.objects():
        if not alive:
            removed.append((place, what))
        elif isinstance(what, SourceEntry | ExternalEntry):
            out.touch(what, place)  # external sources are not part of the dropped state
    return removed


def published(core: SchedulerCore) -> list[tuple[str, Primary]]:
    """Returns every object of a core that has a record on the state topic."""
    found: list[tuple[str, Primary]] = []
    for partition in core.partitions.values():
        name = partition.name
        queues: list[Queue] = list(partition.queues.values())
        found.extend((name, foreign) for foreign in partition.foreign.values())
        found.extend((name, rejected) for rejected in partition.rejected.values())
        for app in partition.apps.values():
            found.extend((name, allocation) for allocation in app.allocations.values())
            found.extend((name, ask) for ask in app.asks.values())
            found.append((name, app))
        found.extend((name, node) for node in partition.nodes.values())
        for queue in reversed(queues):
            found.extend((name, waitlist) for waitlist in queue.waitlists.values())
            if queue.fair_uses is not None:
                found.extend((name, use) for use in queue.fair_uses.users.values())
            found.append((name, queue))
    return [(name, what) for name, what in found if what.published]


def keys_of(rm_id: str, objects: Sequence[tuple[str, Primary]]) -> list[bytes]:
    """Returns the keys of an RM's records on the state topic: its own ones first, then those of its objects."""
    own = [rm_state_key(rm_id), state_key(rm_id, state_codec.REGISTRATION, "-")]
    return own + [state_codec.key_of(rm_id, place, what) for place, what in objects]
