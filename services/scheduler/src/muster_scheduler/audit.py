"""The audit entries of what the scheduler carries out: registrations, configurations, operators' commands, shutdowns.

An entry stands in the same transaction as its outcome, so there is exactly one, whatever restarts. Its id is the place
of the request. All other requests cost one look into a set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ERROR, Topics
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1.audit_pb2 import AuditEntry
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime.secrets import masked_text

_AUDITED = frozenset({"register", "configuration", "admin", "lifecycle"})
_ACTIONS = {"drain_node": "drain", "end_application": "end-application"}
_REASON_CHARACTERS_MAX = 512
_ID_CHARACTERS_MAX = 256
_PROBLEMS_MAX = 3


@dataclass(slots=True)
class _OpenRequest:
    """A request whose outcome follows.

    :ivar start: number of the batch's records before it.
    """

    record: Record
    envelope: pb.RequestEnvelope
    body: str
    start: int


class AuditRecorder:
    """Makes the entries of one partition. Each audited request is between :meth:`begin` and :meth:`end`."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._open: _OpenRequest | None = None

    def begin(self, record: Record, envelope: pb.RequestEnvelope, body: str, start: int) -> None:
        """Notes a request before it is carried out, if it is audited."""
        if body in _AUDITED and _is_audited(envelope, body):
            self._open = _OpenRequest(record, envelope, body, start)

    def end(self, outputs: list[OutRecord], recorded_ns: int) -> None:
        """Appends the entry of the request that began, if it is audited.

        :param outputs: the records of the batch; the request's answer is one of its own.
        :param recorded_ns: ns since the epoch.
        """
        if self._open is None:
            return
        opened, self._open = self._open, None
        records = outputs[opened.start :]
        if opened.body == "lifecycle" and not records:
            return  # a repeated note
        envelope, record = opened.envelope, opened.record
        caller = envelope.caller
        entry = AuditEntry(
            id=f"{record.partition}-{record.offset}",
            recorded_ns=recorded_ns,
            identity=caller.identity,
            proof=caller.proof,
            peer=caller.peer,
            door=caller.door,
            method=caller.method,
            rm_id=envelope.rm_id[:_ID_CHARACTERS_MAX],
            gateway_id=envelope.gateway_id,
            request_id=envelope.request_id,
            request_partition=record.partition,
            request_offset=record.offset,
            count=1,
        )
        _describe(entry, opened)
        if records and records[-1].topic == self._topics.dead_letters:
            entry.result = AuditEntry.FAILED
            reason = dict(records[-1].headers).get(HEADER_ERROR, b"").decode(errors="replace")
        elif opened.body == "lifecycle":
            entry.result, reason = AuditEntry.ACCEPTED, envelope.lifecycle.reason
        else:
            entry.result, reason = _result(records, self._topics.responses, envelope.request_id)
        entry.reason = masked_text(reason)[:_REASON_CHARACTERS_MAX]
        value = entry.SerializeToString(deterministic=True)
        outputs.append(OutRecord(self._topics.audit, record.partition, envelope.rm_id.encode(), value))


def _is_audited(envelope: pb.RequestEnvelope, body: str) -> bool:
    if body == "lifecycle":
        return envelope.lifecycle.state == pb.RmLifecycle.STOPPED
    # A dump changes nothing, and the gateway writes the entry of the whole call.
    return body != "admin" or envelope.admin.WhichOneof("command") != "dump_rm_state"


def _describe(entry: AuditEntry, opened: _OpenRequest) -> None:
    """Sets action and objects."""
    envelope = opened.envelope
    match opened.body:
        case "register":
            entry.action = "register"
            _configuration(entry, envelope.register, si.RegisterResourceManagerRequest)
        case "configuration":
            entry.action = "configure"
            _configuration(entry, envelope.configuration, si.UpdateConfigurationRequest)
        case "lifecycle":
            entry.action = "stop"
        case _:
            _command(entry, envelope.admin)


def _command(entry: AuditEntry, command: pb.AdminCommand) -> None:
    which = command.WhichOneof("command")
    entry.action = _ACTIONS.get(which or "", which or "unknown")
    match which:
        case "pause":
            entry.objects["why"] = masked_text(command.pause)
        case "drain_node":
            drain = command.drain_node
            entry.action = "undrain" if drain.schedulable else "drain"
            entry.objects["node_id"] = masked_text(drain.node_id[:_ID_CHARACTERS_MAX])
            entry.objects["partition"] = masked_text(drain.partition[:_ID_CHARACTERS_MAX]) or "default"
        case "end_application":
            end = command.end_application
            entry.objects["application_id"] = masked_text(end.application_id[:_ID_CHARACTERS_MAX])
            entry.objects["partition"] = masked_text(end.partition[:_ID_CHARACTERS_MAX]) or "default"
            if end.reason:
                entry.objects["why"] = masked_text(end.reason)
        case "validate":
            _configuration(entry, command.validate, si.UpdateConfigurationRequest)
        case "forget" if command.forget.force:
            entry.objects["force"] = "true"


def _configuration(
    entry: AuditEntry,
    raw: bytes,
    kind: type[si.RegisterResourceManagerRequest] | type[si.UpdateConfigurationRequest],
) -> None:
    """Names the configuration by its digest: the text may hold secrets."""
    try:
        request = kind.FromString(raw)
    except DecodeError:
        return
    if request.config:
        entry.objects["config_sha256"] = hashlib.sha256(request.config.encode()).hexdigest()
    if request.extraConfig:
        names = ",".join(sorted(request.extraConfig))
        entry.objects["extra_config"] = masked_text(names)[:_ID_CHARACTERS_MAX]
    if isinstance(request, si.RegisterResourceManagerRequest) and request.version:
        entry.objects["version"] = masked_text(request.version[:_ID_CHARACTERS_MAX])


def _result(records: Sequence[OutRecord], responses: str, request_id: str) -> tuple[AuditEntry.Result.ValueType, str]:
    """Returns the result and its reason, from the answer among a request's records."""
    for record in reversed(records):
        if record.topic != responses or not record.value:
            continue
        answer = pb.ResponseEnvelope.FromString(record.value)
        if answer.HasField("registration") and answer.registration.request_id == request_id:
            accepted = answer.registration.accepted
            problems = [] if accepted else answer.registration.problems
            return (AuditEntry.ACCEPTED if accepted else AuditEntry.REFUSED), _problems(problems)
        if answer.HasField("admin") and answer.admin.request_id == request_id:
            result = answer.admin
            if result.code != pb.AdminResult.OK:
                return AuditEntry.REFUSED, result.message
            reason = "" if result.accepted else _problems(result.problems)
            return (AuditEntry.REFUSED if reason else AuditEntry.ACCEPTED), reason
    return AuditEntry.FAILED, "the resource manager is gone: there is no answer"


def _problems(problems: Sequence[pb.ConfigProblem]) -> str:
    errors = [error for error in problems if error.severity == pb.ConfigProblem.ERROR]
    summary = "; ".join(
        f"{error.path}: {error.message}" if error.path else error.message for error in errors[:_PROBLEMS_MAX]
    )
    return f"{summary}; and {len(errors) - _PROBLEMS_MAX} more" if len(errors) > _PROBLEMS_MAX else summary
