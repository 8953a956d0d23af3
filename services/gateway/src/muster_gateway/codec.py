"""Converts between SI bytes and the log's records. The SI message inside an envelope stays as received."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import structlog
from google.protobuf.message import DecodeError
from muster_bus.errors import CodecError
from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics, parse_state_key
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_proto.muster.v1 import admin_pb2
from muster_queue_config.sandboxed_parser import ParseResult
from muster_rest.system_health import OwnerState
from muster_runtime.caller import current
from muster_si.positions import NO_STAMP, Positions, Stamp

from muster_gateway import metrics
from muster_gateway.quotas import RegistrationQuotas, RmLimits
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.stream_kind import StreamKind

log = structlog.get_logger(__name__)

KIND_RM = "rm"
# A verdict in the form in which it goes to the log.
JudgedConfiguration = envelope_pb2.JudgedConfiguration
# Prefix of the last part of a configuration update's request id. The scheduler answers an update as it answers a
# registration, but an update does not start the RM's life afresh. Readers of the answer distinguish the two by this
# prefix.
_CONFIGURATION = "configuration-"
_SHORT_MAX = 127  # bytes of a field whose length is one byte; the position of one partition has at most 60


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """A problem in a registration or a configuration. ``line`` and ``column`` count from 1; 0: no place in a text.

    :param severity: error or warning.
    """

    severity: str
    path: str
    line: int
    column: int
    message: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An RM of a policy group.

    :param group: its name; "": the RM is in no group.
    :param config_checksum: the value that is compared within the group.
    :param named: RMs of the group may know each other's ids.
    """

    group: str = ""
    config_checksum: str = ""
    named: bool = False


NO_GROUP = GroupMember()


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The scheduler's answer to a registration.

    :param exhausted: refused for a quota.
    :param position: of the answer, for the client (``muster_si.positions``); "": it has none.
    """

    request_id: str
    accepted: bool
    problems: tuple[ConfigProblem, ...]
    member: GroupMember = NO_GROUP
    exhausted: bool = False
    position: str = ""


@dataclass(frozen=True, slots=True)
class ConfigurationAnswer:
    """The scheduler's answer to a configuration update.

    :param changes: the changes, one line each; empty if the update was not accepted.
    :param position: as of a Registration.
    """

    request_id: str
    accepted: bool
    problems: tuple[ConfigProblem, ...]
    changes: tuple[str, ...] = ()
    member: GroupMember = NO_GROUP
    position: str = ""


class CommandCode(IntEnum):
    """The numbers are those of ``muster.bus.v1.AdminResult.Code``."""

    OK = 0
    NOT_FOUND = 1
    NOT_POSSIBLE = 2


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The scheduler's answer to an operator's command.

    :param message: the reason, unless ``code`` is OK.
    :param changed: False: the state was already as wanted.
    :param allocations: of the node or the application that the command is about.
    :param accepted: for a validation only, as ``problems`` and ``changes``.
    :param json: the RM's own state, for a dump.
    :param state: of the application that the command is about.
    :param position: as of a Registration; "" for a command that changes nothing.
    """

    request_id: str
    code: CommandCode
    message: str = ""
    changed: bool = False
    allocations: int = 0
    accepted: bool = False
    problems: tuple[ConfigProblem, ...] = ()
    changes: tuple[str, ...] = ()
    json: str = ""
    member: GroupMember = NO_GROUP
    state: str = ""
    position: str = ""


Answer = RegistrationAnswer | ConfigurationAnswer | CommandAnswer


@dataclass(slots=True)
class Response:
    """One record of si.responses. ``kind`` is None for the answer to a registration, a configuration update or a
    command, and for a kind of a later version.
    """

    rm_id: str
    sequence: int
    kind: StreamKind | None
    payload: bytes
    registration: RegistrationAnswer | None
    configuration: ConfigurationAnswer | None = None
    command: CommandAnswer | None = None
    stamp: Stamp = NO_STAMP

    @property
    def answer(self) -> Answer | None:
        """The answer for a waiting call."""
        return self.registration or self.configuration or self.command

    def answer_at(self, positions: Positions) -> Answer:
        """The answer, with its position. Only where there is one."""
        assert self.answer is not None, "the caller has checked it"
        return replace(self.answer, position=positions.text(self.stamp))

    def payload_at(self, positions: Positions | None) -> bytes:
        """The response for the stream, with its position; None: without."""
        return self.payload + position_field(positions.text(self.stamp)) if positions is not None else self.payload


class DecidedReport(NamedTuple):
    """The scheduler's report: requests before an offset are decided; 0: it has reported nothing.

    :param work_us: processor time (µs) that it used since the report before.
    :param work_bytes: of the requests' records that it decided with it; 0: not measured.
    :param commit_us: how long it waits for a commit (µs).
    """

    decided: int = 0
    work_us: int = 0
    work_bytes: int = 0
    commit_us: int = 0


class SentMessage(NamedTuple):
    """The number of a message whose client numbers them (proto SentMessage)."""

    client: str
    number: int
    first: int
    before: int
    more: bool


class RequestCodec:
    """Makes the records of si.requests.

    :param gateway_id: written into each envelope.
    """

    def __init__(self, topics: Topics, gateway_id: str) -> None:
        self._topics, self._gateway_id = topics, gateway_id
        self._count = 0

    def new_request_id(self) -> str:
        """Returns an id that is unique in this gateway's life, and so for ever, because gateway ids are unique."""
        self._count += 1
        return f"{self._gateway_id}/{self._count}"

    def new_configuration_id(self) -> str:
        """Returns a unique id of a configuration update. The answer is recognised by it."""
        self._count += 1
        return f"{self._gateway_id}/{_CONFIGURATION}{self._count}"

    def request(
        self,
        rm_id: str,
        partition: int,
        kind: StreamKind,
        payload: bytes,
        now_ns: int,
        sent: SentMessage | None = None,
    ) -> OutRecord:
        """Makes the record of one SI request of a stream.

        :param sent: the message's number; None: its client does not number them.
        """
        envelope = self._envelope(rm_id, now_ns)
        if sent is not None:
            envelope.sent.CopyFrom(envelope_pb2.SentMessage(**sent._asdict()))
        if kind is StreamKind.ALLOCATION:
            envelope.allocation = payload
        elif kind is StreamKind.APPLICATION:
            envelope.application = payload
        else:
            envelope.node = payload
        return self._record(rm_id, partition, envelope)

    def registration(
        self,
        rm_id: str,
        request_id: str,
        payload: bytes,
        now_ns: int,
        judged: JudgedConfiguration | None = None,
        quotas: RegistrationQuotas | None = None,
    ) -> OutRecord:
        """Makes the record of a RegisterResourceManagerRequest.

        :param judged: the verdict on its configuration.
        :param quotas: the identity that sent it, and its limits.
        """
        envelope = self._envelope(rm_id, now_ns, request_id, judged)
        envelope.register = payload
        if quotas is not None:
            envelope.identity = quotas.identity
            envelope.quotas.CopyFrom(envelope_pb2.Quotas(**asdict(quotas.rm)))
            envelope.quotas.resource_managers = quotas.resource_managers
            envelope.quotas.all_resource_managers = quotas.all_resource_managers
            envelope.quotas.elsewhere, envelope.quotas.all_elsewhere = quotas.elsewhere, quotas.all_elsewhere
        _name_caller(envelope)
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def configuration(
        self,
        rm_id: str,
        request_id: str,
        payload: bytes,
        now_ns: int,
        judged: JudgedConfiguration | None = None,
    ) -> OutRecord:
        """Makes the record of an UpdateConfigurationRequest with the verdict on its configuration.

        ``request_id`` is from :meth:`new_configuration_id`.
        """
        envelope = self._envelope(rm_id, now_ns, request_id, judged)
        envelope.configuration = payload
        _name_caller(envelope)
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def command(
        self,
        rm_id: str,
        request_id: str,
        command: envelope_pb2.AdminCommand,
        now_ns: int,
        judged: JudgedConfiguration | None = None,
    ) -> OutRecord:
        """Makes the record of an operator's command. ``judged`` is for a validation."""
        envelope = self._envelope(rm_id, now_ns, request_id, judged)
        envelope.admin.CopyFrom(command)
        _name_caller(envelope)
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def lifecycle(self, rm_id: str, state: RmLifecycleState, reason: str, now_ns: int) -> OutRecord:
        """Makes the note of a change in an RM's life."""
        envelope = self._envelope(rm_id, now_ns)
        envelope.lifecycle.state = int(state)  # type: ignore[assignment]
        envelope.lifecycle.reason = reason
        if state is RmLifecycleState.STOPPED:
            _name_caller(envelope)
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def quotas(self, rm_id: str, limits: RmLimits, now_ns: int) -> OutRecord:
        """Makes the note that an RM has these limits."""
        envelope = self._envelope(rm_id, now_ns)
        envelope.quotas_changed.CopyFrom(envelope_pb2.Quotas(**asdict(limits)))
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def notice(self, rm_id: str, message: str, now_ns: int) -> OutRecord:
        """Makes a notice for the RM's history."""
        envelope = self._envelope(rm_id, now_ns)
        envelope.notice.message = message
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def loss(self, rm_id: str, message: str, now_ns: int) -> OutRecord:
        """Makes the notice, for the RM's history, that the log lost records."""
        envelope = self._envelope(rm_id, now_ns)
        envelope.notice.message, envelope.notice.records_lost = message, True
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def callback_answers(self, rm_id: str, partition: int, payload: bytes, now_ns: int) -> OutRecord:
        """Makes the record of a muster.v1.FromResourceManager with answers only."""
        envelope = self._envelope(rm_id, now_ns)
        envelope.callback_answers = payload
        return self._record(rm_id, partition, envelope)

    def callback_stream(self, rm_id: str, note: envelope_pb2.CallbackStream, now_ns: int) -> OutRecord:
        """Makes the note that a callback stream has its seat, or is gone."""
        envelope = self._envelope(rm_id, now_ns)
        envelope.callback_stream.CopyFrom(note)
        return self._record(rm_id, self._topics.partition_of(rm_id), envelope)

    def _envelope(
        self,
        rm_id: str,
        now_ns: int,
        request_id: str = "",
        judged: JudgedConfiguration | None = None,
    ) -> envelope_pb2.RequestEnvelope:
        return envelope_pb2.RequestEnvelope(
            rm_id=rm_id,
            request_id=request_id or self.new_request_id(),
            admitted_ns=now_ns,
            gateway_id=self._gateway_id,
            judged=judged,
        )

    def _record(self, rm_id: str, partition: int, envelope: envelope_pb2.RequestEnvelope) -> OutRecord:
        return OutRecord(self._topics.requests, partition, rm_id.encode(), envelope.SerializeToString())


def _name_caller(envelope: envelope_pb2.RequestEnvelope) -> None:
    """Tells the scheduler who asks, for the audit entry of the outcome. The caller's own entry is not needed then."""
    caller = current()
    caller.carried = True
    identity = caller.identity
    envelope.caller.CopyFrom(
        envelope_pb2.RequestCaller(
            identity=identity.name, proof=identity.proof, peer=caller.peer, door=caller.door, method=caller.method
        )
    )


def read_response(record: Record) -> Response:
    """Decodes the envelope; the SI response inside stays bytes. Raises CodecError."""
    try:
        envelope = envelope_pb2.ResponseEnvelope.FromString(record.value or b"")
    except DecodeError as error:
        raise CodecError(f"{record.topic}[{record.partition}]@{record.offset} is no ResponseEnvelope") from error
    if envelope.HasField("registration"):
        response = _answer_in(envelope, envelope.registration)
    elif envelope.HasField("admin"):
        response = _command_answer_in(envelope, envelope.admin)
    else:
        kind = _KINDS.get(envelope.stream)
        response = Response(envelope.rm_id, envelope.sequence, kind, envelope.response, None)
    response.stamp = Stamp(envelope.stamp_before, envelope.stamp_step)
    return response


def readable_response(record: Record) -> Response | None:
    """Does the same; None for a record that is no ResponseEnvelope, which is counted and logged."""
    try:
        return read_response(record)
    except CodecError as error:
        metrics.unreadable.inc()
        log.error("unreadable response", error=str(error))
        return None


# The tag of the field ``position`` of the responses of si.v1 and of a callback stream's messages: 50002, of bytes.
_POSITION_TAG = b"\x92\xb5\x18"


def position_field(position: str) -> bytes:
    """Returns a position as a field of a response, to be appended to the response's bytes; empty for ""."""
    if not position:
        return b""
    text = position.encode()
    if len(text) > _SHORT_MAX:
        raise ValueError(f"position: must have at most {_SHORT_MAX} characters, got {len(text)}")
    return _POSITION_TAG + bytes((len(text),)) + text


def encode_judged(result: ParseResult, bytes_max: int) -> JudgedConfiguration:
    """Encodes the verdict on a configuration for its request. The read configuration is in it if it has at most
    ``bytes_max``; without it the scheduler reads the text.
    """
    problems = [
        envelope_pb2.ConfigProblem(
            severity=(
                envelope_pb2.ConfigProblem.ERROR if problem.severity == "error" else envelope_pb2.ConfigProblem.WARNING
            ),
            path=problem.path,
            line=problem.line,
            column=problem.column,
            message=problem.message,
        )
        for problem in result.problems
    ]
    has_room = len(result.compiled) <= bytes_max
    return JudgedConfiguration(
        accepted=result.accepted, compiled=result.compiled if has_room else b"", problems=problems
    )


_OWNER_STATES = {
    envelope_pb2.SchedulerHeartbeat.SERVING: OwnerState.SERVING,
    envelope_pb2.SchedulerHeartbeat.STARTING: OwnerState.STARTING,
    envelope_pb2.SchedulerHeartbeat.STUCK: OwnerState.STUCK,
}
# Of one heartbeat, as its writer bounds it, too.
_PROBLEMS_MAX, _PROBLEM_CHARS = 20, 400


class Owned(NamedTuple):
    """A partition in a heartbeat.

    :ivar for_s: how long it has been in this state; 0 while it serves.
    :ivar problem: why it does not serve.
    """

    state: OwnerState
    for_s: float
    problem: str


class Heartbeat(NamedTuple):
    """What a scheduler says of itself.

    :ivar instance: of this start of the process.
    :ivar session_s: after this silence the others of its group take its partitions over; 0: not known.
    :ivar owned: by partition; none: it stops.
    :ivar problems: what an operator must know although partitions are decided.
    :ivar external: external sources that are away.
    """

    instance: str
    session_s: float
    owned: dict[int, Owned]
    problems: tuple[str, ...] = ()
    external: tuple[str, ...] = ()


def read_report(record: Record) -> DecidedReport | Heartbeat | None:
    """Decodes a record without a key: the scheduler's report that it has decided all requests before an offset, or its
    heartbeat. None: it is neither. Raises CodecError.
    """
    try:
        envelope = envelope_pb2.ResponseEnvelope.FromString(record.value or b"")
    except DecodeError as error:
        raise CodecError(f"{record.topic}[{record.partition}]@{record.offset} is no ResponseEnvelope") from error
    if envelope.decided:
        return DecidedReport(envelope.decided, envelope.work_us, envelope.work_bytes, envelope.commit_us)
    return _heartbeat(envelope.heartbeat) if envelope.HasField("heartbeat") else None


def _heartbeat(heartbeat: envelope_pb2.SchedulerHeartbeat) -> Heartbeat:
    return Heartbeat(
        heartbeat.instance,
        heartbeat.session_timeout_ms / 1000,
        {
            owned.partition: Owned(
                _OWNER_STATES.get(owned.state, OwnerState.STARTING), owned.for_ms / 1000, owned.problem[:_PROBLEM_CHARS]
            )
            for owned in heartbeat.owned
        },
        tuple(problem[:_PROBLEM_CHARS] for problem in heartbeat.problems[:_PROBLEMS_MAX]),
        tuple(problem[:_PROBLEM_CHARS] for problem in heartbeat.external[:_PROBLEMS_MAX]),
    )


def encode_configuration_answer(answer: ConfigurationAnswer) -> bytes:
    """Encodes a muster.v1.UpdateConfigurationResponse."""
    problems = [
        admin_pb2.ConfigurationProblem(
            severity=_SEVERITIES.get(problem.severity, admin_pb2.ConfigurationProblem.SEVERITY_UNKNOWN),
            path=problem.path,
            line=problem.line,
            column=problem.column,
            message=problem.message,
        )
        for problem in answer.problems
    ]
    return admin_pb2.UpdateConfigurationResponse(
        accepted=answer.accepted, problems=problems, changes=answer.changes, position=answer.position
    ).SerializeToString()


def _answer_in(envelope: envelope_pb2.ResponseEnvelope, result: envelope_pb2.RegistrationResult) -> Response:
    request_id, accepted = result.request_id, result.accepted
    problems = tuple(_problem(problem) for problem in result.problems)
    response = Response(envelope.rm_id, envelope.sequence, None, b"", None)
    if request_id.rpartition("/")[2].startswith(_CONFIGURATION):
        changes, member = tuple(result.changes), _member(result.policy_group)
        response.configuration = ConfigurationAnswer(request_id, accepted, problems, changes, member)
    else:
        response.registration = RegistrationAnswer(
            request_id, accepted, problems, _member(result.policy_group), result.exhausted
        )
    return response


def _command_answer_in(envelope: envelope_pb2.ResponseEnvelope, result: envelope_pb2.AdminResult) -> Response:
    response = Response(envelope.rm_id, envelope.sequence, None, b"", None)
    response.command = CommandAnswer(
        result.request_id,
        CommandCode(result.code) if result.code in _CODES else CommandCode.NOT_POSSIBLE,
        result.message,
        result.changed,
        result.allocations,
        result.accepted,
        tuple(_problem(problem) for problem in result.problems),
        tuple(result.changes),
        result.json,
        _member(result.policy_group),
        result.state,
    )
    return response


_CODES = {int(code) for code in CommandCode}
_KINDS = {int(kind): kind for kind in StreamKind}
_STATES = {int(state) for state in RmLifecycleState}
_SEVERITIES = {
    "error": admin_pb2.ConfigurationProblem.ERROR,
    "warning": admin_pb2.ConfigurationProblem.WARNING,
}


def _problem(problem: envelope_pb2.ConfigProblem) -> ConfigProblem:
    severity = envelope_pb2.ConfigProblem.Severity.Name(problem.severity).lower()
    return ConfigProblem(severity, problem.path, problem.line, problem.column, problem.message)


def _member(member: envelope_pb2.PolicyGroupMember) -> GroupMember:
    return GroupMember(member.group, member.config_checksum, member.named) if member.group else NO_GROUP


@dataclass(frozen=True, slots=True)
class RmStateRecord:
    """An RM's entry on si.state."""

    rm_id: str
    state: RmLifecycleState
    registrations: int
    callbacks_epoch: int = 0
    callbacks_connected: bool = False


def read_forgotten(record: Record) -> RmStateRecord:
    """Reads the entry that is kept of an RM that an operator removed. Raises CodecError."""
    try:
        rm_id, _, _ = parse_state_key(record.key or b"")
        value = state_pb2.ForgottenObject.FromString(record.value or b"")
    except (ValueError, DecodeError) as error:
        raise CodecError(f"{record.topic}[{record.partition}]@{record.offset} is no ForgottenObject") from error
    return RmStateRecord(rm_id, RmLifecycleState.INIT, value.registrations, value.callbacks_epoch)


def read_rm_state(record: Record) -> RmStateRecord | None:
    """Reads the RM in a state record; ``None`` for other kinds of objects. A tombstone gives INIT. Raises
    CodecError.
    """
    try:
        rm_id, kind, _ = parse_state_key(record.key or b"")
    except ValueError as error:
        raise CodecError(f"{record.topic}[{record.partition}]@{record.offset} has a strange key") from error
    if kind != KIND_RM:
        return None
    if record.value is None:
        return RmStateRecord(rm_id, RmLifecycleState.INIT, 0)
    try:
        value = state_pb2.RmObject.FromString(record.value)
    except DecodeError as error:
        raise CodecError(f"{record.topic}[{record.partition}]@{record.offset} is no RmObject") from error
    state = RmLifecycleState(value.state) if value.state in _STATES else RmLifecycleState.RUNNING
    return RmStateRecord(rm_id, state, value.registrations, value.callbacks.epoch, value.callbacks.connected)


def read_registration(record: Record) -> tuple[str, GroupMember, str]:
    """Reads an RM, its policy group and the identity that registered it from a registration's record. Raises
    CodecError.
    """
    try:
        rm_id, _, _ = parse_state_key(record.key or b"")
        value = state_pb2.RegistrationObject.FromString(record.value or b"")
    except (ValueError, DecodeError) as error:
        raise CodecError(f"{record.topic}[{record.partition}]@{record.offset} is no RegistrationObject") from error
    if not value.config_checksum:  # an old record without a checksum: not compared until the RM registers again
        return rm_id, NO_GROUP, value.identity
    return rm_id, GroupMember(value.policy_group, value.config_checksum), value.identity
