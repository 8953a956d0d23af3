"""One RM's present state as records, as they would be on ``si.state.v1``.

A :class:`muster_state.state_folder.StateFolder` makes the same core of them, in another process.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster_bus.topics import state_key
from muster_core.model.application import Application
from muster_core.model.outcome import Primary
from muster_core.scheduler import SchedulerCore

from muster_state import state_codec
from muster_state.state_folder import RmEntry, encode_registration, encode_rm

Entry = tuple[bytes, bytes]


def entries(state: RmEntry) -> Iterator[Entry]:
    """Returns key and value of each record, in small steps: the caller may pause between two, and may drop the rest.

    Rejected applications are left out: nothing follows from them. While the caller pauses, the state may change; an
    object that has ended meanwhile is left out with what belongs to it.
    """
    info, core = state.info, state.core
    rm_id = info.rm_id
    yield state_key(rm_id, state_codec.RM, "-"), encode_rm(info, core.next_submission)
    yield state_key(rm_id, state_codec.REGISTRATION, "-"), encode_registration(info)
    for partition, obj in _objects(core):
        yield state_codec.key_of(rm_id, partition, obj), state_codec.encode(partition, obj)


def _objects(core: SchedulerCore) -> Iterator[tuple[str, Primary]]:
    for name, books in list(core.external.partitions.items()):
        for owner in list(books.sources.values()):
            yield name, owner
            for entry in list(owner.entries.values()):
                yield name, entry
    for name, partition in list(core.partitions.items()):
        queues = list(partition.queues.values())
        for queue in queues:
            yield name, queue
            for use in list(queue.fair_uses.users.values()) if queue.fair_uses is not None else ():
                if not use.gone:
                    yield name, use
        for node in list(partition.nodes.values()):
            if not node.gone:
                yield name, node
        for foreign in list(partition.foreign.values()):
            if not foreign.gone:
                yield name, foreign
        for app in list(partition.apps.values()):
            yield from ((name, obj) for obj in _of_application(app))
        for queue in queues:
            for waitlist in list(queue.waitlists.values()):
                if waitlist.reason is not None:
                    yield name, waitlist


def _of_application(app: Application) -> Iterator[Primary]:
    if app.gone:
        return
    yield app
    for ask in list(app.asks.values()):
        if not ask.gone and not app.gone:
            yield ask
    for allocation in list(app.allocations.values()):
        if not allocation.gone and not app.gone:
            yield allocation
