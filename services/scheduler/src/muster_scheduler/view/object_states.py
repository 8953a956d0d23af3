"""What objects are like now, for who makes events of them that say so (docs/history-servers.md).

``POST /ws/v1/object-states``: many at once, because events come in bursts. An object is asked for by what an event
calls it, so without its partition: the first that has it counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct
from muster_service.go_json import go_json

from muster_scheduler.core.partition import Partition
from muster_scheduler.follower import RmState
from muster_scheduler.view import ids, render
from muster_scheduler.view.errors import RequestRefused
from muster_scheduler.view.render import Pieces

# In one request: more than a chunk of a stream has events.
WANTED_MAX = 1_000


class WantedObject(Struct, forbid_unknown_fields=True):
    """One object.

    :ivar kind: rejected: an application that was not let in. (An id may belong to one that was, too.)
    :ivar keys: of an application with many asks and allocations: show those only.
    """

    kind: Literal["application", "rejected", "queue", "node"]
    id: str
    keys: list[str] = []


class ObjectStateDao(Struct, kw_only=True, rename="camel"):
    """What an object is like.

    :ivar created_nano: since when there is this one: what is older was about another of the same name.
    :ivar state: as REST answers it, as text. (A queue without its children.)
    """

    created_nano: int
    state: str


_DECODER = msgspec.json.Decoder(list[WantedObject])


def read(body: bytes) -> list[WantedObject]:
    """A request's body; an empty one asks for nothing. Raises RequestRefused."""
    try:
        wanted = _DECODER.decode(body or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(400, f"The body is no list of objects: {error}") from error
    if len(wanted) > WANTED_MAX:
        raise RequestRefused(400, f"The body has {len(wanted)} objects: expected at most {WANTED_MAX}")
    return wanted


def pieces(state: RmState, wanted: Iterable[WantedObject]) -> Pieces:
    """The list of what is asked for, in its order; null: there is no such object (any more)."""
    partitions = list(state.core.partitions.values())
    separator = b"["
    for each in wanted:
        found = next(filter(None, (_found(partition, each) for partition in partitions)), None)
        yield separator + (go_json(found) if found is not None else b"null")
        separator = b","
    yield b"[]\n" if separator == b"[" else b"]\n"


def _found(partition: Partition, wanted: WantedObject) -> ObjectStateDao | None:
    match wanted.kind:
        case "application" | "rejected":
            refused = partition.rejected.get(wanted.id)
            app = None if refused is not None and wanted.kind == "rejected" else partition.apps.get(wanted.id)
            if (app := app or refused) is None:
                return None
            return _state(ids.application_created_ns(app), render.application(partition, app, wanted.keys))
        case "queue":
            queue = partition.queues.get(wanted.id)
            return _state(queue.created_ns, render.queue(partition, queue, tree=False)) if queue is not None else None
        case "node":
            node = partition.nodes.get(wanted.id)
            return _state(node.created_ns, render.node(partition, node)) if node is not None else None


def _state(created_ns: int, shown: Pieces) -> ObjectStateDao:
    return ObjectStateDao(created_nano=created_ns, state=b"".join(shown).decode())
