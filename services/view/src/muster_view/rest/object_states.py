"""The present states of objects, for the event publisher, which adds them to events (docs/history-servers.md).

``POST /ws/v1/object-states`` takes many objects at once, because events come in bursts. The request names an object as
an event does, so without its partition. Several objects may have had one name. The view keeps the last states of
removed objects for a while; else a short-lived object would be unknown at the request.

The answer names the id of the next event. A caller whose events are not included yet asks again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from muster_core.partition import Partition
from muster_rest.shapes.explain import PreemptedDao
from muster_rest.shapes.objects import ObjectStateDao, WantedObject
from muster_runtime.go_json import go_json, go_text
from muster_state import state_codec
from muster_state.state_folder import RmEntry

from muster_view.errors import HttpError
from muster_view.explain import preemption
from muster_view.rest import json_render, object_ids
from muster_view.rest.json_render import Pieces

# In one request: more than a chunk of a stream has events.
WANTED_MAX = 1_000
# Limits for removed objects: bytes in each of the log's partitions, and objects with one name.
_KEPT_BYTES, _KEPT_OF_NAME = 8 * 1024 * 1024, 4
# Preempted allocations that have ended, of one RM.
_PREEMPTED_KEPT = 100


class ObjectKey(NamedTuple):
    """An object's name in events, and its kind (that of its record)."""

    rm_id: str
    kind: str
    object_id: str


_DECODER = msgspec.json.Decoder(list[WantedObject])


def read(body: bytes) -> list[WantedObject]:
    """The objects in a request's body; an empty body names none. Raises RequestRefused."""
    try:
        objects = _DECODER.decode(body or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"The body is not a list of objects: {error}") from error
    if len(objects) > WANTED_MAX:
        raise HttpError(400, f"The body has {len(objects)} objects: expected at most {WANTED_MAX}")
    return objects


class RemovedObjects:
    """The last states of removed objects: the newest ones, up to some megabytes."""

    def __init__(self) -> None:
        self._known: OrderedDict[ObjectKey, list[ObjectStateDao]] = OrderedDict()
        self._bytes = 0
        self._preempted: dict[str, deque[PreemptedDao]] = {}

    def add(self, rm_id: str, partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
        """Takes an object's tombstone; ``kind`` and ``parts`` are those of its key."""
        if kind == "alloc":
            self._note_preempted(rm_id, partition, parts)
            return
        object_kind = _KINDS.get(kind)
        state = _find_state(partition, WantedObject(object_kind, parts[0])) if object_kind is not None else None
        if object_kind is None or state is None:
            return
        key = ObjectKey(rm_id, object_kind, parts[0])
        states = self._known.setdefault(key, [])
        self._known.move_to_end(key)
        states.insert(0, state)
        self._bytes += len(state.state)
        if len(states) > _KEPT_OF_NAME:
            self._bytes -= len(states.pop().state)
        while self._bytes > _KEPT_BYTES:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= sum(len(old_state.state) for old_state in oldest)

    def _note_preempted(self, rm_id: str, partition: Partition, parts: tuple[str, ...]) -> None:
        app = partition.apps.get(parts[0])
        allocation = app.allocations.get(parts[1]) if app is not None else None
        if allocation is not None and (record := allocation.preempted) is not None:
            preempted = preemption.preempted(partition, allocation, record, record.since_ns)
            self._preempted.setdefault(rm_id, deque(maxlen=_PREEMPTED_KEPT)).append(preempted)

    def preempted(self, rm_id: str) -> list[PreemptedDao]:
        """The RM's preempted allocations that have ended since the follower started, the latest last; at most 100."""
        return list(self._preempted.get(rm_id, ()))

    def find(self, key: ObjectKey) -> list[ObjectStateDao]:
        """The removed objects of that name, the latest first."""
        return self._known.get(key, [])


def pieces(state: RmEntry, departed: RemovedObjects, objects: Iterable[WantedObject]) -> Pieces:
    """``{"instanceUUID", "nextEventID", "states"}``: a list for each requested object, the latest of its name first.

    The states include all events before ``nextEventID`` and no others, as long as no fold runs meanwhile.
    """
    info = state.info
    head = f'{{"instanceUUID":{go_text(info.instance_uuid)},"nextEventID":{info.next_event_id},"states":['
    partitions = list(state.core.partitions.values())
    separator = head.encode()
    for obj in objects:
        present = (_find_state(partition, obj) for partition in partitions)
        gone = departed.find(ObjectKey(info.rm_id, obj.kind, obj.id))
        yield separator + go_json([object_state for object_state in (*present, *gone) if object_state is not None])
        separator = b","
    yield b"%b]}\n" % (separator if separator != b"," else b"")


_KINDS: dict[str, Literal["application", "rejected", "queue", "node"]] = {
    state_codec.APP: "application",
    state_codec.REJECTED: "rejected",
    state_codec.QUEUE: "queue",
    state_codec.NODE: "node",
}


def _find_state(partition: Partition, obj: WantedObject) -> ObjectStateDao | None:
    match obj.kind:
        case "application" | "rejected":
            refused = partition.rejected.get(obj.id)
            app = None if refused is not None and obj.kind == "rejected" else partition.apps.get(obj.id)
            if (app := app or refused) is None:
                return None
            return _state(object_ids.application_created_ns(app), json_render.application(partition, app, obj.keys))
        case "queue":
            queue = partition.queues.get(obj.id)
            return (
                _state(queue.created_ns, json_render.queue(partition, queue, tree=False)) if queue is not None else None
            )
        case "node":
            node = partition.nodes.get(obj.id)
            return _state(node.created_ns, json_render.node(partition, node)) if node is not None else None


def _state(created_ns: int, shown: Pieces) -> ObjectStateDao:
    return ObjectStateDao(created_nano=created_ns, state=b"".join(shown).decode())
