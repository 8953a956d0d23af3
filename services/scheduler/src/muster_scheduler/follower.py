"""Folds ``si.state.v1``: how the scheduler recovers, and how the view (or a standby) follows.

First everything is collected, newest state per key, without decoding: a compacted topic holds objects in the order of
their last change, which is not an order in which they can be built. ``settle`` then builds it all in the order of
kinds. From there on, a follower's records are applied as they come: the order in which the scheduler wrote them is one
in which they can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster_bus.errors import CodecError
from muster_bus.log import Record
from muster_bus.topics import parse_state_key
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2

from muster_scheduler import state_codec
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.queue_yaml import load_queue_config

# Parents first: queues before applications, both and nodes before what refers to them.
_KIND_ORDER = (
    state_codec.QUEUE,
    state_codec.NODE,
    state_codec.APP,
    state_codec.ASK,
    state_codec.ALLOC,
    state_codec.WHY,
)


@dataclass(slots=True)
class RmInfo:
    """What is recorded of an RM itself (proto RmObject).

    :ivar life: INIT, RUNNING, PAUSED or STOPPED.
    :ivar next_event_id: the id of the next event; all below were written.
    :ivar last_decided_ns: the highest time that a decision used; time goes on from there.
    """

    rm_id: str
    version: str = ""
    policy_group: str = ""
    build_info: dict[str, str] = field(default_factory=dict)
    config: str = ""
    extra_config: dict[str, str] = field(default_factory=dict)
    life: str = "INIT"
    registered_ns: int = 0
    registrations: int = 0
    next_event_id: int = 0
    next_response_sequence: int = 1
    next_submission: int = 1
    instance_uuid: str = ""
    last_decided_ns: int = 0


@dataclass(slots=True)
class RmState:
    """One RM: what is known of it, and its core."""

    info: RmInfo
    core: SchedulerCore


def encode_rm(info: RmInfo, next_submission: int) -> bytes:
    """The value of an RM's record."""
    return state_pb2.RmObject(
        rm_id=info.rm_id,
        version=info.version,
        policy_group=info.policy_group,
        build_info=info.build_info,
        config=info.config,
        extra_config=info.extra_config,
        state=envelope_pb2.RmLifecycle.State.Value(info.life),
        registered_ns=info.registered_ns,
        registrations=info.registrations,
        next_event_id=info.next_event_id,
        next_response_sequence=info.next_response_sequence,
        next_submission=next_submission,
        instance_uuid=info.instance_uuid,
        last_decided_ns=info.last_decided_ns,
    ).SerializeToString()


def decode_rm(value: bytes) -> RmInfo:
    """Inverse of :func:`encode_rm`."""
    recorded = state_pb2.RmObject.FromString(value)
    return RmInfo(
        recorded.rm_id,
        recorded.version,
        recorded.policy_group,
        dict(recorded.build_info),
        recorded.config,
        dict(recorded.extra_config),
        envelope_pb2.RmLifecycle.State.Name(recorded.state),
        recorded.registered_ns,
        recorded.registrations,
        recorded.next_event_id,
        recorded.next_response_sequence,
        recorded.next_submission,
        recorded.instance_uuid,
        recorded.last_decided_ns,
    )


def new_core(info: RmInfo, *, searching: bool) -> SchedulerCore:
    """An empty core for an RM. Raises CodecError when its recorded configuration cannot be read any more."""
    config, problems = load_queue_config(info.config)
    if config is None:
        raise CodecError(f"the recorded queue configuration of RM {info.rm_id} is not valid: {problems[0]}")
    core = SchedulerCore(config, searching=searching)
    core.next_submission = info.next_submission
    for partition in core.partitions.values():
        partition.deciding = info.life != "STOPPED"
    return core


class StateFolder:
    """Folds state records of one or more partitions of the topic.

    :ivar rms: by id, once settled.
    """

    def __init__(self) -> None:
        self.rms: dict[str, RmState] = {}
        self.settled = False
        self._collected: dict[bytes, bytes] = {}

    def take(self, record: Record) -> None:
        """Takes one record. Raises CodecError for a record that nobody of this version wrote."""
        if record.key is None:
            raise CodecError(f"state record {record.partition}/{record.offset} has no key")
        if self.settled:
            self._apply(record.key, record.value)
        elif record.value is None:
            self._collected.pop(record.key, None)
        else:
            self._collected[record.key] = record.value

    def settle(self) -> None:
        """Builds what was collected."""
        by_kind: dict[str, list[tuple[bytes, bytes]]] = {}
        for key, value in self._collected.items():
            _, kind, _ = parse_state_key(key)
            by_kind.setdefault(kind, []).append((key, value))
        self._collected = {}
        self.settled = True
        for kind in (state_codec.RM, *_KIND_ORDER):
            for key, value in self._ordered(kind, by_kind.get(kind, ())):
                self._apply(key, value)

    def _ordered(self, kind: str, records: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
        """In an order that does not depend on which object changed last: parents first, then by submission."""
        match kind:
            case state_codec.QUEUE:
                return sorted(records)
            case state_codec.NODE:
                return sorted(records, key=lambda record: state_pb2.NodeObject.FromString(record[1]).submission)
            case state_codec.APP:
                return sorted(records, key=lambda record: state_pb2.ApplicationObject.FromString(record[1]).submission)
            case state_codec.ASK:
                return sorted(records, key=lambda record: state_pb2.AskObject.FromString(record[1]).demand.submission)
        return records

    def _apply(self, key: bytes, value: bytes | None) -> None:
        rm_id, kind, parts = parse_state_key(key)
        if kind == state_codec.RM:
            self._apply_rm(rm_id, value)
            return
        state = self.rms.get(rm_id)
        partition = state.core.partitions.get(parts[0]) if state is not None else None
        if partition is None:
            return  # of a partition that a later configuration no longer has
        if value is None:
            state_codec.fold_tombstone(partition, kind, parts[1:])
        else:
            state_codec.fold_value(partition, kind, value)

    def _apply_rm(self, rm_id: str, value: bytes | None) -> None:
        if value is None:
            self.rms.pop(rm_id, None)
            return
        info = decode_rm(value)
        known = self.rms.get(rm_id)
        if known is None or known.info.registrations != info.registrations or known.info.config != info.config:
            self.rms[rm_id] = RmState(info, new_core(info, searching=False))
            return
        known.info = info
        for partition in known.core.partitions.values():
            partition.deciding = info.life != "STOPPED"
            partition.deadlines.clear()  # a follower has no clock
