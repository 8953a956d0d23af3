"""Encodes a source's statements as a record of ``si.requests.v1``, and decodes them (proto ExternalChanges): cache →
log → ingest.

Nothing that :mod:`checks` rejects is written or read. A record with one bad change is bad as a whole, because Muster's
own writers make none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from muster_core.config.queue_config import partition_name
from muster_core.external.errors import BadDocument
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SetSourceState,
    SourceState,
)
from muster_core.external.validation import (
    REASON_CHARACTERS_MAX,
    problem_of,
    problem_of_read,
    quote,
    sanitize,
    source_problem,
    text_problem,
)
from muster_proto.muster.bus.v1 import envelope_pb2 as pb

from muster_state.protobuf_wire import (
    NONE,
    amounts_field,
    bytes_field,
    field,
    kept_text,
    number_field,
    text_field,
    texts_field,
)

T = TypeVar("T")

_KINDS = {kind.value: kind for kind in ExternalKind}
_STATES = {state.value: state for state in SourceState}


class SourceStateNote(NamedTuple):
    """The state of a source, which applies after the changes of its record; as in the core's SetSourceState."""

    state: SourceState
    drains: bool = True
    reason: str = ""


def encode(
    rm_id: str,
    partition: str,
    source: str,
    life: str,
    changes: Sequence[ExternalChange] = (),
    note: SourceStateNote | None = None,
) -> bytes:
    """Encodes one record's value. The caller decides how many changes fit (:func:`size_of`).

    Raises BadDocument for the first change that cannot go to the log; ``check`` does so for each change alone.
    """
    message = pb.ExternalChanges(partition=partition, source=source, life=life)
    for change in changes:
        check(change)  # (an object may have been changed after the cache checked it)
        message.changes.append(to_proto(change))
    if note is not None:
        message.note.state = note.state.value
        message.note.drains = note.drains
        message.note.reason = sanitize(note.reason)
    return pb.RequestEnvelope(rm_id=rm_id, external=message).SerializeToString(deterministic=True)


def check(change: ExternalChange) -> None:
    """Raises BadDocument for a change that cannot go to the log, with its kind and id if they can be read."""
    if problem := problem_of(change):
        raise BadDocument(problem, str(change.kind), sanitize(str(change.object_id), 256))


def size_of(change: ExternalChange) -> int:
    """The bytes that a checked change takes in a record, with its own frame."""
    return to_proto(change).ByteSize() + 8


def change_bytes(change: ExternalChange) -> bytes:
    """Encodes a checked change alone, for :func:`change_of`."""
    return to_proto(change).SerializeToString(deterministic=True)


def change_of(value: bytes) -> ExternalChange:
    """Decodes the result of :func:`change_bytes`. Raises BadDocument."""
    return from_proto(pb.ExternalChange.FromString(value))


def to_proto(change: ExternalChange, *, stale: bool = False) -> pb.ExternalChange:
    """Encodes a checked change as its message. (By keywords: filling a map afterwards takes five times as long.)

    :param stale: mark the object as stale, for records.
    """
    kind, object_id, is_stale = change.kind.value, change.object_id, stale or change.stale
    match change.what:
        case ExternalNode() as node:
            return pb.ExternalChange(
                kind=kind,
                id=object_id,
                stale=is_stale,
                node=pb.ExternalNode(
                    has_capacity=node.capacity is not None,
                    capacity=node.capacity,
                    occupied=node.occupied,
                    attributes=node.attributes,
                    schedulable=node.schedulable,
                    whole=node.whole,
                    brings=node.brings,
                ),
            )
        case ExternalAllocation() as allocation:
            return pb.ExternalChange(
                kind=kind,
                id=object_id,
                stale=is_stale,
                allocation=pb.ExternalAllocation(
                    node_id=allocation.node_id,
                    resource=allocation.quantities,
                    application_id=allocation.app_id,
                    priority=allocation.priority,
                    tags=allocation.tags,
                ),
            )
        case ExternalQueue() as queue:
            queue_message = pb.ExternalQueue(max=queue.maximum)
            return pb.ExternalChange(kind=kind, id=object_id, stale=is_stale, queue=queue_message)
        case ExternalApplication() as app:
            owner = pb.ExternalApplication(queue=app.queue, user=app.user, groups=app.groups, tags=app.tags)
            return pb.ExternalChange(kind=kind, id=object_id, stale=is_stale, application=owner)
        case ExternalOffer() as offer:
            offered = pb.ExternalOffer(
                node_id=offer.node_id,
                resource=offer.quantities,
                attributes=offer.attributes,
                idle_ns=offer.idle_ns,
                revoked=offer.revoked,
                grace_ns=offer.grace_ns,
            )
            return pb.ExternalChange(kind=kind, id=object_id, stale=is_stale, offer=offered)
        case ExternalPool() as pool:
            amount = pb.ExternalPool(quantity=pool.quantity, occupied=pool.occupied)
            return pb.ExternalChange(kind=kind, id=object_id, stale=is_stale, pool=amount)
    return pb.ExternalChange(kind=kind, id=object_id, stale=is_stale)


_KIND, _ID = field(pb.ExternalChange, "kind"), field(pb.ExternalChange, "id")
_IS_STALE = number_field(field(pb.ExternalChange, "stale"), 1)
_NODE, _ALLOCATION = field(pb.ExternalChange, "node"), field(pb.ExternalChange, "allocation")
_NODE_CAPACITY, _NODE_OCCUPIED, _NODE_ATTRIBUTES = (
    field(pb.ExternalNode, name) for name in ("capacity", "occupied", "attributes")
)
_HAS_CAPACITY, _SCHEDULABLE, _WHOLE, _BRINGS = (
    number_field(field(pb.ExternalNode, name), 1) for name in ("has_capacity", "schedulable", "whole", "brings")
)
_ON_NODE, _AMOUNTS, _OF_APP, _PRIORITY, _TAGS = (
    field(pb.ExternalAllocation, name) for name in ("node_id", "resource", "application_id", "priority", "tags")
)


def to_wire(kind: ExternalKind, object_id: str, obj: ExternalObject, *, stale: bool) -> bytes:
    """Encodes an object as the bytes of its change, like :func:`to_proto` with ``deterministic=True``: by hand for
    kinds of which thousands change in a second.
    """
    match obj:
        case ExternalNode():
            number, payload = _NODE, _node_wire(obj)
        case ExternalAllocation():
            number, payload = _ALLOCATION, _allocation_wire(obj)
        case _:
            return to_proto(ExternalChange(kind, object_id, obj), stale=stale).SerializeToString(deterministic=True)
    return (
        kept_text(_KIND, kind)
        + text_field(_ID, object_id)
        + (_IS_STALE if stale else NONE)
        + bytes_field(number, payload)
    )


def _node_wire(node: ExternalNode) -> bytes:
    return (
        (NONE if node.capacity is None else amounts_field(_NODE_CAPACITY, node.capacity) + _HAS_CAPACITY)
        + amounts_field(_NODE_OCCUPIED, node.occupied)
        + texts_field(_NODE_ATTRIBUTES, node.attributes)
        + (_SCHEDULABLE if node.schedulable else NONE)
        + (_WHOLE if node.whole else NONE)
        + (_BRINGS if node.brings else NONE)
    )


def _allocation_wire(allocation: ExternalAllocation) -> bytes:
    return (
        text_field(_ON_NODE, allocation.node_id)
        + amounts_field(_AMOUNTS, allocation.quantities)
        + kept_text(_OF_APP, allocation.app_id)
        + number_field(_PRIORITY, allocation.priority)
        + texts_field(_TAGS, allocation.tags)
    )


def decode(message: pb.ExternalChanges) -> tuple[ApplyExternalChanges | None, SetSourceState | None]:
    """Decodes a record's content into commands, to be applied in this order. Raises BadDocument."""
    partition, source, life = partition_name(message.partition), message.source, message.life
    if problem := source_problem(partition, source, life):
        raise BadDocument(problem)
    changes: list[ExternalChange] = []
    for index, item in enumerate(message.changes):
        try:
            changes.append(from_proto(item))
        except BadDocument as error:
            raise BadDocument(f"changes[{index}]: {error}", error.kind, error.object_id) from None
    note: SetSourceState | None = None
    if message.HasField("note"):
        state = _STATES.get(message.note.state)
        if state is None:
            raise BadDocument(f"note.state: {quote(message.note.state)}, expected one of {', '.join(_STATES)}")
        if problem := text_problem(message.note.reason, "note.reason", REASON_CHARACTERS_MAX):
            raise BadDocument(problem)
        note = SetSourceState(partition, source, life, state, message.note.drains, message.note.reason)
    if not changes and note is None:
        raise BadDocument("neither changes nor a note, expected one of them")
    return (ApplyExternalChanges(partition, source, life, tuple(changes)) if changes else None), note


def from_proto(message: pb.ExternalChange) -> ExternalChange:
    """Decodes a message into a change. Raises BadDocument."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise BadDocument(f"kind: {quote(message.kind)}, expected one of {', '.join(_KINDS)}")
    field = message.WhichOneof("what")
    if field is not None and field != kind:
        raise BadDocument(f"kind: {kind}, with an object of kind {field}")
    obj = None if field is None else _object(message, kind)
    change = ExternalChange(kind, message.id, obj, message.stale)
    if problem := problem_of_read(change):
        raise BadDocument(problem, kind.value, sanitize(change.object_id, 256))
    if isinstance(obj, ExternalNode) and obj.capacity is None and message.node.capacity:
        raise BadDocument("capacity: given beside has_capacity false, expected one or the other", kind, message.id)
    return change


def _object(message: pb.ExternalChange, kind: ExternalKind) -> ExternalObject:
    match kind:
        case ExternalKind.NODE:
            node = message.node
            return ExternalNode(
                message.id,
                _in_order(node.capacity) if node.has_capacity else None,
                _in_order(node.occupied),
                _in_order(node.attributes),
                node.schedulable,
                node.whole,
                node.brings,
            )
        case ExternalKind.ALLOCATION:
            allocation = message.allocation
            return ExternalAllocation(
                message.id,
                allocation.node_id,
                _in_order(allocation.resource),
                allocation.application_id,
                allocation.priority,
                _in_order(allocation.tags),
            )
        case ExternalKind.QUEUE:
            return ExternalQueue(message.id, _in_order(message.queue.max))
        case ExternalKind.APPLICATION:
            app = message.application
            return ExternalApplication(message.id, app.queue, app.user, tuple(app.groups), _in_order(app.tags))
        case ExternalKind.OFFER:
            offer = message.offer
            return ExternalOffer(
                message.id,
                offer.node_id,
                _in_order(offer.resource),
                _in_order(offer.attributes),
                offer.idle_ns,
                offer.revoked,
                offer.grace_ns,
            )
        case ExternalKind.POOL:
            return ExternalPool(message.id, message.pool.quantity, message.pool.occupied)


def _in_order(entries: Mapping[str, T]) -> dict[str, T]:
    """Sorted by name: a protobuf map has no order, and decisions must not depend on one."""
    ordered: dict[str, T] = {}
    if entries:
        for name in sorted(entries):  # (a map's items() is slow, and a comprehension is a call)
            ordered[name] = entries[name]
    return ordered
