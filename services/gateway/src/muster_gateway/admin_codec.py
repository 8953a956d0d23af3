"""muster.v1.Admin in bytes: what is asked for, judged field by field, and what is answered.

A request that is refused here reaches neither the log nor the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.muster.v1 import admin_pb2 as pb

from muster_gateway.admission import name_problem, parsed, text_problem
from muster_gateway.codec import CommandAnswer, ConfigurationAnswer, encode_configuration_answer
from muster_gateway.errors import InvalidRequest
from muster_gateway.rm_life import RmState
from muster_gateway.sessions.contract import Cursor, Session
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind

REASON_CHARACTERS_MAX = 256
_DEFAULT_PARTITION = "default"


@dataclass(frozen=True, slots=True)
class Command:
    """Something that goes to the scheduler.

    :param what: for the log and the metrics.
    :param words: as the log's record has them.
    """

    rm_id: str
    what: str
    words: envelope_pb2.AdminCommand


@dataclass(frozen=True, slots=True)
class Explained:
    """What is to be explained, as parts of the view's path, and how the request's fields call them."""

    rm_id: str
    partition: str
    kind: str
    parts: tuple[str, ...]
    field: str


# ---- requests --------------------------------------------------------------------------------------------------------


def decode_pause(raw: bytes, limits: AdmissionLimits) -> Command:
    """A PauseResourceManagerRequest. Raises InvalidRequest, as all of these."""
    request = parsed(pb.PauseResourceManagerRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    _refuse(text_problem(request.reason, "reason", REASON_CHARACTERS_MAX))
    return Command(rm_id, "pause", envelope_pb2.AdminCommand(pause=request.reason))


def decode_resume(raw: bytes, limits: AdmissionLimits) -> Command:
    """A ResumeResourceManagerRequest."""
    request = parsed(pb.ResumeResourceManagerRequest, raw)
    return Command(_name(request.rm_id, "rm_id", limits), "resume", envelope_pb2.AdminCommand(resume=True))


def decode_drain(raw: bytes, limits: AdmissionLimits) -> Command:
    """A DrainNodeRequest."""
    request = parsed(pb.DrainNodeRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    wanted = envelope_pb2.AdminCommand.DrainNode(
        partition=_partition(request.partition, limits),
        node_id=_name(request.node_id, "node_id", limits),
        schedulable=request.schedulable,
    )
    return Command(rm_id, "undrain" if request.schedulable else "drain", envelope_pb2.AdminCommand(drain_node=wanted))


def validate_command(rm_id: str, raw: bytes) -> Command:
    """An UpdateConfigurationRequest that was admitted as one, only to be looked at."""
    return Command(rm_id, "validate", envelope_pb2.AdminCommand(validate=raw))


def dump_command(rm_id: str) -> Command:
    """What the RM itself says of its state."""
    return Command(rm_id, "dump", envelope_pb2.AdminCommand(dump_rm_state=True))


def decode_list(raw: bytes, limits: AdmissionLimits) -> str:
    """A ListResourceManagersRequest: the RM; "": all."""
    rm_id: str = parsed(pb.ListResourceManagersRequest, raw).rm_id
    return _name(rm_id, "rm_id", limits) if rm_id else ""


def decode_dump(raw: bytes, limits: AdmissionLimits) -> str:
    """A DumpStateRequest: the RM."""
    return _name(parsed(pb.DumpStateRequest, raw).rm_id, "rm_id", limits)


def decode_explain(raw: bytes, limits: AdmissionLimits) -> Explained:
    """An ExplainRequest."""
    request = parsed(pb.ExplainRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    partition = _partition(request.partition, limits)
    about = request.WhichOneof("about")
    match about:
        case "preemption" if not request.preemption.application_id:
            named = _name(request.preemption.allocation_key, "preemption.allocation_key", limits)
            return Explained(rm_id, partition, about, (named,), about)
        case "ask" | "preemption":
            of = getattr(request, about)
            parts = (
                _name(of.application_id, f"{about}.application_id", limits),
                _name(of.allocation_key, f"{about}.allocation_key", limits),
            )
            return Explained(rm_id, partition, about, parts, about)
        case "application_id":
            return Explained(rm_id, partition, "application", (_name(request.application_id, about, limits),), about)
        case "queue":
            _refuse(name_problem(request.queue, "queue", limits.max_queue_chars))
            return Explained(rm_id, partition, "queue", (request.queue,), about)
        case "node_id":
            return Explained(rm_id, partition, "node", (_name(request.node_id, about, limits),), about)
        case _:
            raise InvalidRequest("about: not set, expected one of ask, application_id, queue, node_id, preemption")


def _name(value: str, field: str, limits: AdmissionLimits) -> str:
    _refuse(name_problem(value, field, limits.max_id_chars))
    return value


def _partition(value: str, limits: AdmissionLimits) -> str:
    _refuse(text_problem(value, "partition", limits.max_id_chars))
    return value or _DEFAULT_PARTITION


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise InvalidRequest(problem)


# ---- answers ---------------------------------------------------------------------------------------------------------


def encode_changed(answer: CommandAnswer) -> bytes:
    """As ResourceManagerAnswer."""
    return pb.ResourceManagerAnswer(changed=answer.changed).SerializeToString()


def encode_drained(answer: CommandAnswer) -> bytes:
    """As DrainNodeResponse."""
    return pb.DrainNodeResponse(changed=answer.changed, allocations=answer.allocations).SerializeToString()


def encode_validated(answer: CommandAnswer) -> bytes:
    """As UpdateConfigurationResponse."""
    return encode_configuration_answer(
        ConfigurationAnswer(answer.request_id, answer.accepted, answer.problems, answer.changes)
    )


def encode_explained(json: bytes, sentences: Sequence[str]) -> bytes:
    """As ExplainResponse."""
    return pb.ExplainResponse(json=json, sentences=sentences).SerializeToString()


def encode_piece(json: bytes) -> bytes:
    """As DumpStateResponse."""
    return pb.DumpStateResponse(json=json).SerializeToString()


def encode_resource_managers(managers: Iterable[Mapping[str, Any]]) -> bytes:
    """As ListResourceManagersResponse; each as :func:`resource_manager` makes it."""
    listed = [
        pb.ResourceManager(**{**each, "streams": [pb.Stream(**stream) for stream in each["streams"]]})
        for each in managers
    ]
    return pb.ListResourceManagersResponse(resource_managers=listed).SerializeToString()


def resource_manager(
    session: Session,
    cursors: Mapping[StreamKind, Cursor],
    living: frozenset[str],
    registered: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What is known of an RM, by the names of muster.v1.ResourceManager.

    :param living: the gateways; the streams of another one are nobody's any more.
    :param registered: what the view says of it; None: it does not know it yet.
    """
    known = registered if registered is not None else {}
    return {
        "rm_id": session.rm_id,
        "state": RmState(session.state).name,
        "since_ns": session.since_ns,
        "reason": session.why,
        "streams": [
            {
                "kind": kind.name.lower(),
                "gateway_id": seat.gateway_id,
                "epoch": seat.epoch,
                "sent_sequence": _sent(session, cursors.get(kind)),
            }
            for kind, seat in sorted(session.seats.items())
            if seat.gateway_id in living
        ],
        "held": known.get("held", False),
        "held_reason": known.get("heldReason", ""),
        "version": known.get("version", ""),
        "policy_group": known.get("policyGroup", ""),
        "build_info": known.get("buildInfo", {}),
        "extra_config": known.get("extraConfig", {}),
        "generation": known.get("generation", ""),
        "registered_ns": known.get("registered", 0),
        "registrations": known.get("registrations", 0),
        "instance_uuid": known.get("instanceUUID", ""),
        "callbacks": known.get("callbacks", []),
    }


def _sent(session: Session, cursor: Cursor | None) -> int:
    """The last response that was sent; of a cursor from before the registration in force: none yet."""
    if cursor is None or cursor.offset < session.registered_at.offset:
        return 0
    return max(cursor.last_sent, 0)
