"""What a core would have on the state topic, what it computed and does not record, and where two of them differ."""

from __future__ import annotations

from typing import Any

from muster_bus.topics import parse_state_key
from muster_core.model.outcome import Primary
from muster_core.scheduler import SchedulerCore
from muster_proto.muster.bus.v1 import state_pb2 as pb
from muster_state import state_codec
from muster_state.encoding import REFUSALS_KEPT

RM = "rm"
MESSAGES: dict[str, Any] = {
    "node": pb.NodeObject,
    "queue": pb.QueueObject,
    "use": pb.FairUseObject,
    "app": pb.ApplicationObject,
    "rejected": pb.ApplicationObject,
    "ask": pb.AskObject,
    "alloc": pb.AllocationObject,
    "why": pb.ReasonObject,
    "source": pb.SourceObject,
    "ext": pb.ExternalRecord,
}


def published(core: SchedulerCore) -> dict[bytes, bytes]:
    """Everything that a core would have on the state topic."""
    found: dict[bytes, bytes] = {}
    for name, partition in core.partitions.items():
        objects: list[Primary] = [*partition.queues.values(), *partition.nodes.values(), *partition.foreign.values()]
        objects += partition.rejected.values()
        for queue in partition.queues.values():
            objects += queue.waitlists.values()
            if queue.fair_uses is not None:  # (those that never held anything have no record)
                objects += [use for use in queue.fair_uses.users.values() if use.changed_ns]
        for app in partition.apps.values():
            objects += [app, *app.asks.values(), *app.allocations.values()]
        for what in objects:
            found[state_codec.key_of(RM, name, what)] = state_codec.encode(name, what)
    return found


def as_folded(key: bytes, value: bytes) -> bytes:
    """A record as a fold writes it: of many refused nodes the last ones are recorded, and how many there were."""
    if parse_state_key(key)[1] == state_codec.ASK:
        ask = pb.AskObject.FromString(value)
        if ask.refused_nodes > REFUSALS_KEPT:
            ask.refused_nodes = REFUSALS_KEPT
            return ask.SerializeToString(deterministic=True)
    return value


def sums(core: SchedulerCore) -> dict[Any, Any]:
    """What a core computed and does not record, by type name: a fold may meet the types in another order."""
    found: dict[Any, Any] = {}
    for name, partition in core.partitions.items():
        names = partition.types.names
        for node in partition.nodes.values():
            found[name, "node", node.node_id] = [
                _named(vector, names) for vector in (node.allocated, node.occupied, node.available)
            ]
        for queue in partition.queues.values():
            found[name, "queue", queue.path] = (
                [_named(vector, names) for vector in (queue.allocated, queue.pending, queue.preempting)],
                queue.running_applications,
                queue.policy,
                sorted(queue.applications),
            )
        for tracker in partition.limits:
            found[name, tracker.path, tracker.who, tracker.group] = (
                _named(tracker.allocated, names),
                tracker.running_applications,
                tracker.applications,
            )
    return found


def _named(vector: list[int], names: list[str]) -> dict[str, int]:
    return {name: value for name, value in zip(names, vector, strict=True) if value}


def difference(left: dict[Any, Any], right: dict[Any, Any]) -> str:
    """The first of what is not the same in both, in words."""
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return "; ".join(f"{key!r}: {_shown(key, left.get(key))} and {_shown(key, right.get(key))}" for key in keys[:3])


def _shown(key: Any, value: Any) -> str:
    if isinstance(key, bytes) and isinstance(value, bytes):
        return " ".join(str(MESSAGES[parse_state_key(key)[1]].FromString(value)).split())
    return repr(value)
