"""The core's objects as records of ``si.state.v1``, and back (proto/muster/bus/v1/state.proto)."""

from __future__ import annotations

from muster_bus.topics import state_key, state_key_in
from muster_core.external.model import ExternalKind, OfferState
from muster_core.external.reports import ExternalReports, ReportedObject, SourceEntry
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.decayed_usage import UserUsage
from muster_core.model.node import Node
from muster_core.model.outcome import Primary
from muster_core.model.queue import Queue, Waitlist
from muster_core.model.states import AppState
from muster_core.partition import Partition
from muster_proto.muster.bus.v1 import state_pb2 as pb

from muster_state import fold
from muster_state.encoding import (
    allocation_record,
    application_record,
    ask_record,
    external_record,
    fair_use_record,
    node_record,
    queue_record,
    source_record,
    waitlist_record,
)

RM, REGISTRATION = "rm", "reg"
# The kind of a forgotten RM's record.
FORGOTTEN = "forgotten"
NODE, QUEUE, APP, REJECTED, ASK, ALLOC, WHY = "node", "queue", "app", "rejected", "ask", "alloc", "why"
# Kinds of external sources. They belong to the RM's id, not to its registrations, and are folded into its books.
SOURCE, EXTERNAL = "source", "ext"
# The kind of users' decayed use.
USE = "use"


def key_of(rm_id: str, partition: str, obj: Primary) -> bytes:
    """The record's key."""
    match obj:
        case Node():
            return state_key_in(rm_id, NODE, (partition,), obj.node_id)
        case ReportedObject():
            return state_key_in(rm_id, EXTERNAL, (partition, obj.owner.source, obj.kind), obj.object_id)
        case Allocation():
            by = (obj.source,) if obj.source and obj.app is None else ()
            return state_key(rm_id, ALLOC, partition, obj.app_id, obj.unique_key, *by)
        case Ask():
            return state_key(rm_id, ASK, partition, obj.app.app_id, obj.key)
        case Waitlist():
            special = (obj.user, obj.user_group, obj.required_node, *((str(obj.apart),) if obj.apart else ()))
            return state_key(rm_id, WHY, partition, obj.leaf.path, obj.shape.name, *(special if any(special) else ()))
        case Application():
            # (A rejected application may have the id of an accepted one.)
            kind = REJECTED if obj.state is AppState.REJECTED else APP
            return state_key(rm_id, kind, partition, obj.app_id)
        case Queue():
            return state_key(rm_id, QUEUE, partition, obj.path)
        case UserUsage():
            return state_key(rm_id, USE, partition, obj.leaf.path, obj.user)
        case SourceEntry():
            return state_key(rm_id, SOURCE, partition, obj.source)


def encode(partition: str, obj: Primary) -> bytes:
    """The record's value: the whole state of the object."""
    match obj:
        case Node():
            return node_record(partition, obj)
        case ReportedObject():
            return external_record(obj)
        case Allocation():
            return allocation_record(partition, obj)
        case Ask():
            return ask_record(partition, obj)
        case Waitlist():
            return waitlist_record(partition, obj)
        case Application():
            return application_record(partition, obj)
        case Queue():
            return queue_record(partition, obj)
        case UserUsage():
            return fair_use_record(partition, obj)
        case SourceEntry():
            return source_record(obj)


def fold_value(partition: Partition, kind: str, value: bytes) -> None:
    """Folds one recorded object into a partition. Raises google.protobuf.message.DecodeError."""
    match kind:
        case "alloc":
            fold.fold_allocation(partition, pb.AllocationObject.FromString(value))
        case "ask":
            fold.fold_ask(partition, pb.AskObject.FromString(value))
        case "why":
            fold.fold_reason(partition, pb.ReasonObject.FromString(value))
        case "app" | "rejected":
            fold.fold_application(partition, pb.ApplicationObject.FromString(value))
        case "node":
            fold.fold_node(partition, pb.NodeObject.FromString(value))
        case "queue":
            fold.fold_queue(partition, pb.QueueObject.FromString(value))
        case "use":
            fold.fold_use(partition, pb.FairUseObject.FromString(value))


def fold_tombstone(partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
    """Applies a tombstone. ``parts``: the parts of the key after the partition."""
    match kind:
        case "alloc":
            fold.drop_allocation(partition, *parts)
        case "ask":
            fold.drop_ask(partition, parts[0], parts[1])
        case "why":
            fold.drop_reason(partition, *parts)
        case "app":
            fold.drop_application(partition, parts[0])
        case "rejected":
            fold.drop_rejected(partition, parts[0])
        case "node":
            fold.drop_node(partition, parts[0])
        case "queue":
            fold.drop_queue(partition, parts[0])
        case "use":
            fold.drop_use(partition, parts[0], parts[1])


def fold_external_value(books: ExternalReports, kind: str, value: bytes) -> None:
    """Folds a recorded source, or an object of one. Raises DecodeError, BadDocument (external/errors.py)."""
    if kind == SOURCE:
        fold.fold_source(books, pb.SourceObject.FromString(value))
    elif kind == EXTERNAL:
        fold.fold_external(books, pb.ExternalRecord.FromString(value))


def fold_external_tombstone(books: ExternalReports, kind: str, parts: tuple[str, ...]) -> None:
    """Applies the tombstone of a source or its object. ``parts``: the parts of the key, the partition first."""
    if kind == SOURCE:
        fold.drop_source(books, *parts)
    elif kind == EXTERNAL:
        partition, source, object_kind, object_id = parts
        books.remove(partition, source, ExternalKind(object_kind), object_id)


def offer_state_of(value: bytes) -> OfferState | None:
    """The offer's state from its record's value; None: the record is of no offer. Raises DecodeError."""
    state = pb.ExternalRecord.FromString(value).offer_state
    return OfferState(state) if state else None
