"""Decodes muster.v1.Admin's requests, with a check of each field, and encodes its answers.

A request that is refused here reaches neither the log nor the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.muster.v1 import admin_pb2 as pb
from muster_proto.si.v1 import si_pb2
from muster_runtime import rm_status_text

from muster_gateway.admission import parsed
from muster_gateway.codec import CommandAnswer, ConfigurationAnswer, encode_configuration_answer
from muster_gateway.errors import InvalidRequest
from muster_gateway.item_checks import name_problem, text_problem
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions.contract import Cursor, Session
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind

REASON_CHARACTERS_MAX = 256
_DEFAULT_PARTITION = "default"


@dataclass(frozen=True, slots=True)
class EncodedCommand:
    """A command for the scheduler.

    :param name: its name for the log and the metrics.
    :param payload: the command in the form of the log's record.
    """

    rm_id: str
    name: str
    payload: envelope_pb2.AdminCommand


@dataclass(frozen=True, slots=True)
class ExplainTarget:
    """The object to explain: the parts of the view's path, and the name of the request's field."""

    rm_id: str
    partition: str
    kind: str
    path_segments: tuple[str, ...]
    field: str


# ---- requests --------------------------------------------------------------------------------------------------------


def decode_pause(raw: bytes, limits: AdmissionLimits) -> EncodedCommand:
    """Decodes a PauseResourceManagerRequest. Raises InvalidRequest, as do all these functions."""
    request = parsed(pb.PauseResourceManagerRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    _refuse(text_problem(request.reason, "reason", REASON_CHARACTERS_MAX))
    return EncodedCommand(rm_id, "pause", envelope_pb2.AdminCommand(pause=request.reason))


def decode_resume(raw: bytes, limits: AdmissionLimits) -> EncodedCommand:
    """Decodes a ResumeResourceManagerRequest."""
    request = parsed(pb.ResumeResourceManagerRequest, raw)
    return EncodedCommand(_name(request.rm_id, "rm_id", limits), "resume", envelope_pb2.AdminCommand(resume=True))


def decode_forget(raw: bytes, limits: AdmissionLimits) -> EncodedCommand:
    """Decodes a ForgetResourceManagerRequest."""
    request = parsed(pb.ForgetResourceManagerRequest, raw)
    return forget_command(_name(request.rm_id, "rm_id", limits), force=request.force)


def forget_command(rm_id: str, *, force: bool = False) -> EncodedCommand:
    """Returns the command that forgets an RM."""
    words = envelope_pb2.AdminCommand(forget=envelope_pb2.AdminCommand.Forget(force=force))
    return EncodedCommand(rm_id, "forget", words)


def decode_drain(raw: bytes, limits: AdmissionLimits) -> EncodedCommand:
    """Decodes a DrainNodeRequest."""
    request = parsed(pb.DrainNodeRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    command = envelope_pb2.AdminCommand.DrainNode(
        partition=_partition(request.partition, limits),
        node_id=_name(request.node_id, "node_id", limits),
        schedulable=request.schedulable,
    )
    return EncodedCommand(
        rm_id, "undrain" if request.schedulable else "drain", envelope_pb2.AdminCommand(drain_node=command)
    )


def decode_end(raw: bytes, limits: AdmissionLimits) -> EncodedCommand:
    """Decodes an EndApplicationRequest."""
    request = parsed(pb.EndApplicationRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    _refuse(text_problem(request.reason, "reason", REASON_CHARACTERS_MAX))
    command = envelope_pb2.AdminCommand.EndApplication(
        partition=_partition(request.partition, limits),
        application_id=_name(request.application_id, "application_id", limits),
        reason=request.reason,
    )
    return EncodedCommand(rm_id, "end-application", envelope_pb2.AdminCommand(end_application=command))


def validate_command(rm_id: str, raw: bytes) -> EncodedCommand:
    """Returns the command that validates an UpdateConfigurationRequest. The request has passed admission."""
    return EncodedCommand(rm_id, "validate", envelope_pb2.AdminCommand(validate=raw))


def dump_command(rm_id: str) -> EncodedCommand:
    """Returns the command that asks an RM for its own state."""
    return EncodedCommand(rm_id, "dump", envelope_pb2.AdminCommand(dump_rm_state=True))


def decode_list(raw: bytes, limits: AdmissionLimits) -> str:
    """Decodes a ListResourceManagersRequest. Returns the RM; "": all."""
    rm_id: str = parsed(pb.ListResourceManagersRequest, raw).rm_id
    return _name(rm_id, "rm_id", limits) if rm_id else ""


def decode_dump(raw: bytes, limits: AdmissionLimits) -> str:
    """Decodes a DumpStateRequest. Returns the RM."""
    return _name(parsed(pb.DumpStateRequest, raw).rm_id, "rm_id", limits)


def decode_explain(raw: bytes, limits: AdmissionLimits) -> ExplainTarget:
    """Decodes an ExplainRequest."""
    request = parsed(pb.ExplainRequest, raw)
    rm_id = _name(request.rm_id, "rm_id", limits)
    partition = _partition(request.partition, limits)
    about = request.WhichOneof("about")
    match about:
        case "preemption" if not request.preemption.application_id:
            named = _name(request.preemption.allocation_key, "preemption.allocation_key", limits)
            return ExplainTarget(rm_id, partition, about, (named,), about)
        case "ask" | "preemption" | "when":
            of = getattr(request, about)
            parts = (
                _name(of.application_id, f"{about}.application_id", limits),
                _name(of.allocation_key, f"{about}.allocation_key", limits),
            )
            return ExplainTarget(rm_id, partition, about, parts, about)
        case "application_id":
            return ExplainTarget(
                rm_id, partition, "application", (_name(request.application_id, about, limits),), about
            )
        case "queue":
            _refuse(name_problem(request.queue, "queue", limits.max_queue_chars))
            return ExplainTarget(rm_id, partition, "queue", (request.queue,), about)
        case "node_id":
            return ExplainTarget(rm_id, partition, "node", (_name(request.node_id, about, limits),), about)
        case _:
            raise InvalidRequest(
                "about: not set, expected one of ask, application_id, queue, node_id, preemption, when"
            )


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


def encode_changed(
    answer: CommandAnswer,
    session: Session,
    now_ns: int,
    facts: rm_status_text.RmFacts = rm_status_text.NO_FACTS,
    *,
    paused: bool,
) -> bytes:
    """Encodes a ResourceManagerAnswer.

    :param paused: whether an operator's pause is now in force.
    """
    state = RmLifecycleState(session.state).name
    description = described(session, now_ns, facts, paused=paused)
    return pb.ResourceManagerAnswer(
        changed=answer.changed,
        state=state,
        since_ns=session.since_ns,
        description=description,
        position=answer.position,
    ).SerializeToString()


def encode_forgotten(answer: CommandAnswer) -> bytes:
    """Encodes a ForgetResourceManagerResponse."""
    response = pb.ForgetResourceManagerResponse(
        changed=answer.changed, allocations=answer.allocations, position=answer.position
    )
    return response.SerializeToString()


def encode_drained(answer: CommandAnswer) -> bytes:
    """Encodes a DrainNodeResponse."""
    response = pb.DrainNodeResponse(changed=answer.changed, allocations=answer.allocations, position=answer.position)
    return response.SerializeToString()


def encode_ended(answer: CommandAnswer) -> bytes:
    """Encodes an EndApplicationResponse."""
    response = pb.EndApplicationResponse(
        changed=answer.changed, state=answer.state, allocations=answer.allocations, position=answer.position
    )
    return response.SerializeToString()


def encode_validated(answer: CommandAnswer) -> bytes:
    """Encodes an UpdateConfigurationResponse."""
    return encode_configuration_answer(
        ConfigurationAnswer(answer.request_id, answer.accepted, answer.problems, answer.changes)
    )


def encode_explained(json: bytes, sentences: Sequence[str]) -> bytes:
    """Encodes an ExplainResponse."""
    return pb.ExplainResponse(json=json, sentences=sentences).SerializeToString()


def encode_piece(json: bytes) -> bytes:
    """Encodes a DumpStateResponse."""
    return pb.DumpStateResponse(json=json).SerializeToString()


def encode_resource_managers(managers: Iterable[Mapping[str, Any]]) -> bytes:
    """Encodes a ListResourceManagersResponse. Each element is a result of :func:`resource_manager`."""
    listed = [
        pb.ResourceManager(
            **{
                **manager,
                "streams": [pb.Stream(**stream) for stream in manager["streams"]],
                "quotas": [pb.Quota(**quota) for quota in manager["quotas"]],
            }
        )
        for manager in managers
    ]
    return pb.ListResourceManagersResponse(resource_managers=listed).SerializeToString()


def described(
    session: Session, now_ns: int, facts: rm_status_text.RmFacts, *, replay: bool = False, **paused: Any
) -> str:
    """The meaning of an RM's state, and advice.

    :param paused: as ``rm_words.description`` takes it.
    """
    return rm_status_text.description(
        RmLifecycleState(session.state).name,
        session.since_ns,
        now_ns,
        rm_id=session.rm_id,
        replay=replay,
        facts=facts,
        **paused,
    )


def resource_manager(
    session: Session,
    cursors: Mapping[StreamKind, Cursor],
    living: frozenset[str],
    registered: Mapping[str, Any] | None,
    now_ns: int,
    facts: rm_status_text.RmFacts = rm_status_text.NO_FACTS,
) -> dict[str, Any]:
    """Describes an RM, by the field names of muster.v1.ResourceManager.

    :param living: the living gateways; only their streams are shown.
    :param registered: the view's answer about the RM; None: the view does not know it yet.
    """
    rm = registered if registered is not None else {}
    state = RmLifecycleState(session.state).name
    return {
        "rm_id": session.rm_id,
        "state": state,
        "description": described(
            session,
            now_ns,
            facts,
            replay=rm_status_text.is_replay(rm.get("extraConfig", {})),
            paused=rm.get("held", False),
            paused_reason=rm.get("heldReason", ""),
            paused_since_ns=rm.get("heldSince", 0),
        ),
        "is_default": rm.get("default", False),
        "identity": rm.get("identity", ""),
        "quotas": rm.get("quotas", []),
        "since_ns": session.since_ns,
        "reason": session.state_reason,
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
        "held": rm.get("held", False),
        "held_reason": rm.get("heldReason", ""),
        "version": rm.get("version", ""),
        "policy_group": rm.get("policyGroup", ""),
        "build_info": rm.get("buildInfo", {}),
        "extra_config": rm.get("extraConfig", {}),
        "generation": rm.get("generation", ""),
        "registered_ns": rm.get("registered", 0),
        "registrations": rm.get("registrations", 0),
        "instance_uuid": rm.get("instanceUUID", ""),
        "callbacks": rm.get("callbacks", []),
    }


def _sent(session: Session, cursor: Cursor | None) -> int:
    """Returns the number of the last response sent; 0 if the cursor is older than the registration in force."""
    if cursor is None or cursor.offset < session.registered_at.offset:
        return 0
    return max(cursor.last_sent, 0)


# ---- the other side, for operators over HTTP -------------------------------------------------------------------------


def make_pause(rm_id: str, reason: str) -> bytes:
    """Encodes a PauseResourceManagerRequest."""
    return pb.PauseResourceManagerRequest(rm_id=rm_id, reason=reason).SerializeToString()


def make_resume(rm_id: str) -> bytes:
    """Encodes a ResumeResourceManagerRequest."""
    return pb.ResumeResourceManagerRequest(rm_id=rm_id).SerializeToString()


def make_forget(rm_id: str) -> bytes:
    """Encodes a ForgetResourceManagerRequest, without force."""
    return pb.ForgetResourceManagerRequest(rm_id=rm_id).SerializeToString()


def make_drain(rm_id: str, partition: str, node_id: str, *, schedulable: bool) -> bytes:
    """Encodes a DrainNodeRequest."""
    request = pb.DrainNodeRequest(rm_id=rm_id, partition=partition, node_id=node_id, schedulable=schedulable)
    return request.SerializeToString()


def make_end(rm_id: str, partition: str, application_id: str, reason: str) -> bytes:
    """Encodes an EndApplicationRequest."""
    request = pb.EndApplicationRequest(rm_id=rm_id, partition=partition, application_id=application_id, reason=reason)
    return request.SerializeToString()


def make_configuration(rm_id: str, text: str) -> bytes:
    """Encodes an UpdateConfigurationRequest without an extra configuration."""
    return si_pb2.UpdateConfigurationRequest(rmID=rm_id, config=text).SerializeToString()


def decode_configured(raw: bytes) -> tuple[bool, list[tuple[str, str, int, int, str]], list[str]]:
    """Returns whether a configuration was accepted, its problems (severity, path, line, column, message) and its
    changes, of an UpdateConfigurationResponse.
    """
    answer = pb.UpdateConfigurationResponse.FromString(raw)
    problems = [
        (
            pb.ConfigurationProblem.Severity.Name(problem.severity).lower(),
            problem.path,
            problem.line,
            problem.column,
            problem.message,
        )
        for problem in answer.problems
    ]
    return answer.accepted, problems, list(answer.changes)


def decode_changed(raw: bytes) -> tuple[bool, str]:
    """Returns whether something changed, and the RM's description, of a ResourceManagerAnswer."""
    answer = pb.ResourceManagerAnswer.FromString(raw)
    return answer.changed, answer.description


def decode_forgotten(raw: bytes) -> tuple[bool, int]:
    """Returns whether something changed, and the number of allocations, of a ForgetResourceManagerResponse."""
    answer = pb.ForgetResourceManagerResponse.FromString(raw)
    return answer.changed, answer.allocations


def decode_drained(raw: bytes) -> tuple[bool, int]:
    """Returns whether something changed, and the number of allocations, of a DrainNodeResponse."""
    answer = pb.DrainNodeResponse.FromString(raw)
    return answer.changed, answer.allocations


def decode_ended(raw: bytes) -> tuple[bool, int, str]:
    """Returns whether something changed, the number of allocations, and the application's state, of an
    EndApplicationResponse.
    """
    answer = pb.EndApplicationResponse.FromString(raw)
    return answer.changed, answer.allocations, answer.state
