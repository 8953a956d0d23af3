"""Folds ``si.state.v1``: for the scheduler's recovery, and for followers such as the view or a standby.

First the folder collects the newest state of each key, without decoding. A compacted topic holds objects in the order
of their last change, and objects cannot be built in that order. ``settle`` then builds all of them in the order of
kinds. After that, a follower applies records in the order of the log, which the scheduler has chosen so that they can
be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from itertools import islice
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError
from muster_bus.clock import NO_ANCHOR, Anchor
from muster_bus.errors import CodecError
from muster_bus.log import Record
from muster_bus.topics import parse_state_key
from muster_core.config.queue_config import ClusterConfig
from muster_core.external.errors import BadDocument
from muster_core.external.offers import REPORT_NS
from muster_core.external.reports import ExternalReports
from muster_core.model.commands import SetEvents, SetGeneration, SetSchedulingEnabled, UpdateConfiguration
from muster_core.model.quotas import QuotaLimits
from muster_core.model.steps import Steps, finish
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_proto.muster.bus.v1 import envelope_pb2, state_pb2
from muster_queue_config.queue_yaml import Recorded, checksum, load_recorded
from muster_runtime import event_settings
from muster_si.positions import NO_STAMP, Stamp

from muster_state import fold, state_codec, tally
from muster_state.message_dedup import AcceptedNumbers, MessageDedup
from muster_state.stamps import Stamps
from muster_state.tally import Tally

# Parents first. Sources come before the core that has them.
_EXTERNAL = (state_codec.SOURCE, state_codec.EXTERNAL)
_KIND_ORDER = (
    state_codec.QUEUE,
    state_codec.USE,
    state_codec.NODE,
    state_codec.APP,
    state_codec.REJECTED,
    state_codec.ASK,
    state_codec.ALLOC,
    state_codec.WHY,
)
_UNLIMITED = QuotaLimits()
_QUOTA_NAMES = [each.name for each in fields(QuotaLimits)]
# A key of a registration's extraConfig: the rule without the RM's callback stream, accept or wait.
CALLBACKS_ABSENT_KEY = "muster.callbacks.absent"
WAIT, ACCEPT = "wait", "accept"


def waits_for_callbacks(extra_config: Mapping[str, str]) -> bool:
    """Whether nothing may be placed while the RM's callback stream is not open."""
    return extra_config.get(CALLBACKS_ABSENT_KEY, ACCEPT).strip().lower() == WAIT


class PauseKind(IntEnum):
    """The kinds of times without decisions for an RM (proto PauseObject.Kind)."""

    OPERATOR = 0  # an operator had paused it
    ABSENT = 1  # it must be asked, and its callback stream was not open
    LISTING = 2  # an external source had not listed yet


# A smaller registration has few queues.
_STEPPED_BYTES = 4 * 1024
# Limit of queues for which ``leaving`` is called, parents first. Each call takes some 25 µs.
_LEAVING_QUEUES_MAX = 1_000
_PAUSE_KINDS: frozenset[int] = frozenset(PauseKind)
# Limit of a registration's record, below the log's 1 MiB.
REGISTRATION_BYTES_MAX = 960 * 1024


class Pause(NamedTuple):
    """A time without decisions for an RM: start, end, and the operator's reason, or the source."""

    since_ns: int
    until_ns: int
    reason: str
    kind: PauseKind = PauseKind.OPERATOR


@dataclass(slots=True)
class RmInfo:
    """The recorded data of an RM itself (proto RmObject and RegistrationObject).

    :ivar compiled: ``config`` as read, by ``muster_queue_config.config_codec``; b"": it was not kept.
    :ivar life: INIT, RUNNING, DISCONNECTED or STOPPED; ``life_ns``: since when, 0: not known.
    :ivar next_event_id: the id of the next event; all lower ones were written.
    :ivar last_decided_ns: the highest time that a decision used; time continues from there.
    :ivar tally: the RM's counts; they continue over registrations.
    :ivar paused: an operator paused the RM; this continues over registrations until an operator resumes it.
    :ivar paused_ns: since when; 0: it is not paused, or the time is not known.
    :ivar pauses: past times without decisions, the last ones of each kind. They are in the registration's record, which
        is seldom written.
    :ivar absent_ns: since when it is absent (see ``is_absent``); 0: it is not absent, or the time is not known.
    :ivar generation: the interface's generation that the RM speaks, current or previous; "": not known yet.
        ``generation_by``: how it is known.
    :ivar callbacks: the last known state of the RM's callback stream; ``connected`` False: there is none.
    :ivar callbacks_since_ns: since when the stream is in that state.
    :ivar identity: the name of the identity that registered; "": not known.
    :ivar quotas: the limits in force.
    :ivar quotas_reached: by quota, when an item was last refused for it; see muster_scheduler.rm_quotas.
    :ivar sent: the messages taken of clients that number them; they continue over registrations.
    :ivar awaited: external sources for which this start of the scheduler waits before it decides.
    :ivar awaited_ns: since when it waits for any; 0: it does not wait.
    :ivar stamp: of the last transaction that wrote the RM's object (``muster_si.positions``).
    :ivar closed: access lists in ``config`` that only earlier versions accepted; not recorded, each reading finds them.
    """

    rm_id: str
    version: str = ""
    policy_group: str = ""
    build_info: dict[str, str] = field(default_factory=dict)
    config: str = ""
    compiled: bytes = b""
    extra_config: dict[str, str] = field(default_factory=dict)
    life: str = "INIT"
    life_ns: int = 0
    registered_ns: int = 0
    registrations: int = 0
    next_event_id: int = 0
    next_response_sequence: int = 1
    last_allocation_response: int = 0
    next_submission: int = 1
    instance_uuid: str = ""
    last_decided_ns: int = 0
    tally: Tally = field(default_factory=Tally)
    paused: bool = False
    paused_reason: str = ""
    paused_ns: int = 0
    pauses: tuple[Pause, ...] = ()
    callbacks: envelope_pb2.CallbackStream = field(default_factory=envelope_pb2.CallbackStream)
    callbacks_since_ns: int = 0
    generation: str = ""
    generation_by: str = ""
    awaited: tuple[str, ...] = ()
    awaited_ns: int = 0
    absent_ns: int = 0
    clock: Anchor = NO_ANCHOR
    identity: str = ""
    quotas: QuotaLimits = _UNLIMITED
    quotas_reached: dict[str, int] = field(default_factory=dict)
    sent: MessageDedup = field(default_factory=MessageDedup)
    stamp: Stamp = NO_STAMP
    closed: tuple[str, ...] = ()

    @property
    def is_absent(self) -> bool:
        """Whether the RM must be asked before a placement, but its callback stream is not open."""
        return waits_for_callbacks(self.extra_config) and not self.callbacks.connected

    def configured(self, read: Recorded) -> ClusterConfig:
        """Takes what a reading found. Raises CodecError if the text cannot be read any more."""
        if read.config is None:
            raise CodecError(f"the recorded queue configuration of RM {self.rm_id} is not valid: {read.problems[0]}")
        self.compiled, self.closed = read.compiled, tuple(map(str, read.problems))
        return read.config

    @property
    def decides(self) -> bool:
        """Whether the scheduler makes decisions for the RM."""
        return self.life != "STOPPED" and not self.paused and not self.awaited


class ForgottenRm(NamedTuple):
    """The data kept of an RM that an operator forgot (proto ForgottenObject): its numbers continue if it registers
    again.
    """

    forgotten_ns: int
    registrations: int
    next_event_id: int
    next_response_sequence: int
    next_submission: int
    instance_uuid: str
    last_decided_ns: int
    callbacks_epoch: int
    stamp_before: int = 0
    stamp_step: int = 0

    @classmethod
    def of(cls, info: RmInfo, next_submission: int, now_ns: int) -> ForgottenRm:
        """The data to keep of an RM that is forgotten now."""
        return cls(
            now_ns,
            info.registrations,
            info.next_event_id,
            info.next_response_sequence,
            next_submission,
            info.instance_uuid,
            now_ns,
            info.callbacks.epoch,
        )

    def go_on(self, info: RmInfo, now_ns: int) -> None:
        """Continues the numbers of a forgotten RM that registers again."""
        info.registrations = self.registrations + 1
        info.instance_uuid = self.instance_uuid
        info.next_event_id = self.next_event_id
        info.next_response_sequence = self.next_response_sequence
        info.next_submission = self.next_submission
        if self.callbacks_epoch:  # its stream ended, but the order of the gateways' notes continues
            info.callbacks = envelope_pb2.CallbackStream(epoch=self.callbacks_epoch)
            info.callbacks_since_ns = now_ns


def encode_forgotten(rm_id: str, kept: ForgottenRm) -> bytes:
    """Encodes the value of a forgotten RM's record."""
    return state_pb2.ForgottenObject(rm_id=rm_id, **kept._asdict()).SerializeToString(deterministic=True)


def _decode_forgotten(value: bytes) -> ForgottenRm:
    recorded = state_pb2.ForgottenObject.FromString(value)
    return ForgottenRm(*(getattr(recorded, name) for name in ForgottenRm._fields))


@dataclass(slots=True)
class RmEntry:
    """One RM: its recorded data, and its core."""

    info: RmInfo
    core: SchedulerCore


def encode_rm(info: RmInfo, next_submission: int, records: int = 0) -> bytes:
    """Encodes the value of an RM's record, which changes with each transaction.

    :param records: number of the state records behind it that have its stamp.
    """
    return state_pb2.RmObject(
        rm_id=info.rm_id,
        state=envelope_pb2.RmLifecycle.State.Value(info.life),
        registered_ns=info.registered_ns,
        registrations=info.registrations,
        next_event_id=info.next_event_id,
        next_response_sequence=info.next_response_sequence,
        last_allocation_response=info.last_allocation_response,
        next_submission=next_submission,
        instance_uuid=info.instance_uuid,
        last_decided_ns=info.last_decided_ns,
        tally=tally.encode(info.tally),
        held=info.paused,
        held_reason=info.paused_reason,
        callbacks=info.callbacks if info.callbacks_since_ns else None,
        callbacks_since_ns=info.callbacks_since_ns,
        generation=info.generation,
        generation_by=info.generation_by,
        state_ns=info.life_ns,
        held_ns=info.paused_ns,
        absent_ns=info.absent_ns,
        awaited=info.awaited,
        awaited_ns=info.awaited_ns,
        clock=state_pb2.ClockAnchor(**info.clock._asdict()) if any(info.clock) else None,
        quotas_reached=info.quotas_reached,
        sent=[state_pb2.SentObject(**numbers._asdict()) for numbers in info.sent.all()],
        stamp_before=info.stamp.before,
        stamp_step=info.stamp.step,
        stamp_records=records,
    ).SerializeToString(deterministic=True)


def encode_registration(info: RmInfo) -> bytes:
    """Encodes the value of a registration's record, which changes only with a registration.

    The read configuration is in it if there is room: without it, a start reads the text.
    """
    recorded = _registration(info)
    if recorded.ByteSize() > REGISTRATION_BYTES_MAX:
        recorded.ClearField("compiled")
    return recorded.SerializeToString(deterministic=True)


def _registration(info: RmInfo) -> state_pb2.RegistrationObject:
    return state_pb2.RegistrationObject(
        version=info.version,
        policy_group=info.policy_group,
        build_info=info.build_info,
        config=info.config,
        extra_config=info.extra_config,
        registrations=info.registrations,
        config_checksum=checksum(info.config),
        compiled=info.compiled,
        identity=info.identity,
        quotas=encode_quotas(info.quotas) if info.quotas != _UNLIMITED else None,
        pauses=[
            state_pb2.PauseObject(
                since_ns=since_ns, until_ns=until_ns, reason=reason, kind=state_pb2.PauseObject.Kind.ValueType(kind)
            )
            for since_ns, until_ns, reason, kind in info.pauses
        ],
    )


def encode_quotas(limits: QuotaLimits) -> envelope_pb2.Quotas:
    """Encodes the limits of an RM."""
    return envelope_pb2.Quotas(**asdict(limits))


def quotas_of(recorded: envelope_pb2.Quotas) -> QuotaLimits:
    """Inverse of :func:`encode_quotas`."""
    return QuotaLimits(**{name: getattr(recorded, name) for name in _QUOTA_NAMES})


def _pauses_of(recorded: state_pb2.RegistrationObject) -> tuple[Pause, ...]:
    # (This version ignores kinds of a later version.)
    pauses = [pause for pause in recorded.pauses if pause.kind in _PAUSE_KINDS]
    return tuple(Pause(pause.since_ns, pause.until_ns, pause.reason, PauseKind(pause.kind)) for pause in pauses)


def _take_rm(info: RmInfo, recorded: state_pb2.RmObject) -> None:
    info.life, info.life_ns = envelope_pb2.RmLifecycle.State.Name(recorded.state), recorded.state_ns
    info.registered_ns = recorded.registered_ns
    info.registrations = recorded.registrations
    info.next_event_id = recorded.next_event_id
    info.next_response_sequence = recorded.next_response_sequence
    info.last_allocation_response = recorded.last_allocation_response
    info.next_submission = recorded.next_submission
    info.instance_uuid = recorded.instance_uuid
    info.last_decided_ns = recorded.last_decided_ns
    info.tally = tally.decode(recorded.tally)
    info.paused, info.paused_reason, info.paused_ns = recorded.held, recorded.held_reason, recorded.held_ns
    info.absent_ns, info.awaited, info.awaited_ns = recorded.absent_ns, tuple(recorded.awaited), recorded.awaited_ns
    info.callbacks, info.callbacks_since_ns = recorded.callbacks, recorded.callbacks_since_ns
    info.generation, info.generation_by = recorded.generation, recorded.generation_by
    info.quotas_reached = dict(recorded.quotas_reached)
    info.sent = MessageDedup.of(
        AcceptedNumbers(numbers.stream, numbers.client, numbers.up_to, numbers.beyond) for numbers in recorded.sent
    )
    info.clock = Anchor(recorded.clock.offset_ns, recorded.clock.boot_id, recorded.clock.booted_ns)
    info.stamp = Stamp(recorded.stamp_before, recorded.stamp_step)


def new_core(
    info: RmInfo, *, searching: bool, config: ClusterConfig | None = None, external: ExternalReports | None = None
) -> SchedulerCore:
    """Makes an empty core for an RM. ``config``: its configuration, if its text was read already.

    :param external: the statements of external sources for the RM; they outlive the core.

    Raises CodecError if the recorded configuration cannot be read any more.
    """
    return finish(core_in_steps(info, searching=searching, config=config, external=external))


def core_in_steps(
    info: RmInfo, *, searching: bool, config: ClusterConfig | None = None, external: ExternalReports | None = None
) -> Generator[None, None, SchedulerCore]:
    """Does what :func:`new_core` does, in steps: there may be very many queues."""
    config = config or info.configured(load_recorded(info.config, info.compiled))
    until_ns = info.registered_ns + REPORT_NS if info.registrations > 1 else 0
    core = SchedulerCore(
        config, searching=searching, external=external, rm_id=info.rm_id, reports_until_ns=until_ns, built=False
    )
    yield from core.build_in_steps()
    core.next_submission = info.next_submission
    core.apply(SetSchedulingEnabled(info.decides), info.last_decided_ns)
    core.apply(SetGeneration(info.generation == "previous"), info.last_decided_ns)
    core.apply(events_of(info), info.last_decided_ns)
    return core


def events_of(info: RmInfo) -> SetEvents:
    """The events that the RM's extra configuration asks for."""
    settings, _ = event_settings.read(info.extra_config)
    return SetEvents(settings.tracks, settings.tells_requests)


class FoldObserver(Protocol):
    """Watches the changes of records that are folded after ``settle``, for code that counts."""

    def on_built(self, rms: Mapping[str, RmEntry]) -> None:
        """Is called when all collected records are folded."""

    def before(self, rm_id: str, partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
        """Is called before a record is folded. ``parts``: the parts of its key after the partition."""

    def after(self, rm_id: str, partition: Partition, kind: str, parts: tuple[str, ...]) -> None:
        """Is called after the record was folded."""

    def on_dropped(self, state: RmEntry, *, for_ever: bool) -> None:
        """Takes apart a core that was dropped: the RM registers again, or (``for_ever``) was forgotten."""


# Arguments: RM, partition, kind, and the parts of the key after the partition.
Leaving = Callable[[str, Partition, str, tuple[str, ...]], None]


class StateFolder:
    """Folds state records of one or more partitions of the topic.

    :param witness: watches each change.
    :param leaving: called before a tombstone is folded, after ``settle``, as ``FoldObserver.before`` is; and for the
        queues of an RM that registers again.
    :ivar rms: by id, after ``settle``.
    :ivar forgotten: RMs that an operator forgot, by id.
    :ivar compiled_anew: ids of RMs whose record had no usable ``compiled``; their ``RmInfo`` has it now.
    :ivar external: by RM id, the statements of external sources; also for RMs that have not registered (yet).
    :ivar stamps: the newest stamp among the records.
    :ivar dispose: without a witness, gets the steps that take a dropped core apart.
    """

    def __init__(self, witness: FoldObserver | None = None, leaving: Leaving | None = None) -> None:
        self._witness, self._leaving = witness, leaving
        self.rms: dict[str, RmEntry] = {}
        self.forgotten: dict[str, ForgottenRm] = {}
        self.external: dict[str, ExternalReports] = {}
        self.stamps = Stamps()
        self.dispose: Callable[[Steps], None] = finish
        self.settled = False
        self._following = False
        self._collected: dict[bytes, bytes] = {}
        self._registering: dict[str, RmInfo] = {}
        self._read_ahead: dict[str, Recorded] = {}
        self.compiled_anew: dict[str, None] = {}

    def fold(self, record: Record) -> None:
        """Takes one record. Raises CodecError for a record that this version does not write."""
        if record.key is None:
            raise CodecError(f"state record {record.partition}/{record.offset} has no key")
        if self.settled:
            self._following = True
            self._fold(record.key, record.value)
        elif record.value is None:
            self._collected.pop(record.key, None)
        else:
            self._collected[record.key] = record.value

    def take_in_steps(self, record: Record) -> Iterable[None]:
        """As :meth:`fold`, for a caller that pauses while the queues of a registration are built. The RM is not there
        meanwhile.
        """
        key, value = record.key, record.value
        if self.settled and key is not None and value is not None and len(value) >= _STEPPED_BYTES:
            rm_id, kind, _ = parse_state_key(key)
            if kind == state_codec.REGISTRATION:
                return self._fold_registration(rm_id, key, value)
        self.fold(record)
        return ()

    def _fold_registration(self, rm_id: str, key: bytes, value: bytes) -> Steps:
        self._following = True
        self.stamps.fold_record()
        try:
            yield from self._apply_registration(rm_id, state_pb2.RegistrationObject.FromString(value))
        except CodecError:
            raise
        except Exception as error:
            raise _unfoldable(key, error) from error

    def read_ahead(self, key: bytes, value: bytes) -> None:
        """Parses the configuration of a registration's record before the record is taken: the largest ones take
        seconds.

        (It only uses texts and objects of its own, so it may run beside the event loop.)
        """
        recorded = state_pb2.RegistrationObject.FromString(value)
        text, registered = recorded.config, self.rms.get(parse_state_key(key)[0])
        if registered is not None and (registered.info.registrations, registered.info.config) == (
            recorded.registrations,
            text,
        ):
            return  # a pause ended: the configuration will not be read
        if (read := load_recorded(text, recorded.compiled)).config is not None:
            self._read_ahead = {text: read}

    def build(self) -> None:
        """Builds the objects from all collected records."""
        for _ in self.build_steps():
            pass

    def build_steps(self) -> Iterator[None]:
        """As :meth:`build`, for a caller that pauses between two objects. No record may be taken before the end."""
        by_kind: dict[str, list[tuple[bytes, bytes]]] = {}
        for key, value in self._collected.items():
            try:
                _, raw, *_ = key.split(b"/", 2)
                kind = raw.decode()
            except ValueError as error:
                raise _unfoldable(key, error) from error
            by_kind.setdefault(kind, []).append((key, value))
        self._collected = {}
        self.settled = True
        for kind in (*_EXTERNAL, state_codec.FORGOTTEN, state_codec.RM, state_codec.REGISTRATION):
            for key, value in self._in_order(kind, by_kind.pop(kind, ())):
                self._fold(key, value)
                yield
        for kind in _KIND_ORDER:
            partitions: dict[bytes, Partition | None] = {}
            for key, value in self._in_order(kind, by_kind.pop(kind, ())):
                self._build(kind, key, value, partitions)
                yield
        self.stamps.fold_all()
        if self._witness is not None:
            self._witness.on_built(self.rms)

    def _build(self, kind: str, key: bytes, value: bytes, partitions: dict[bytes, Partition | None]) -> None:
        """Builds one object. Raises CodecError. ``partitions``: partitions by keys without their last part."""
        try:
            before = key.rpartition(b"/")[0]
            if before not in partitions:
                rm_id, _, parts = parse_state_key(key)
                partitions[before] = self._partition_of(rm_id, parts)
            if (partition := partitions[before]) is not None:
                state_codec.fold_value(partition, kind, value)
        except CodecError:
            raise
        except Exception as error:
            raise _unfoldable(key, error) from error

    def _partition_of(self, rm_id: str, parts: tuple[str, ...]) -> Partition | None:
        """Returns the partition that a key's parts name; None: a later configuration does not have it any more."""
        state = self.rms.get(rm_id)
        return state.core.partitions.get(parts[0]) if state is not None else None

    def finish(self) -> None:
        """Ends a fold, whether the records were folded at once or followed."""
        if self.settled:
            self._rearm()
        else:
            self.build()

    def _rearm(self) -> None:
        """Makes the state of a follower what a fold of the same records at once would make it.

        A follower drops deadlines, leaves numbers at those of the registration, and has objects in the order of their
        last change.
        """
        for state in self.rms.values():
            state.core.next_submission = state.info.next_submission
            state.core.forget_deadlines()
            for partition in state.core.partitions.values():
                fold.put_in_order(partition)
                for app in (*partition.apps.values(), *partition.rejected.values()):
                    if app.deadline_ns:
                        partition.deadlines.append((app.deadline_ns, app))

    def books_of(self, rm_id: str) -> ExternalReports:
        """The statements of sources for an RM: one object for all its registrations."""
        reports = self.external.get(rm_id)
        if reports is None:
            self.external[rm_id] = reports = ExternalReports()
        return reports

    def _ordered(self, kind: str, records: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
        """The records in an order that does not depend on the last changes: parents first, then by submission."""
        match kind:
            case state_codec.QUEUE:
                return sorted(records)
            case state_codec.NODE:
                return sorted(records, key=lambda record: state_pb2.NodeObject.FromString(record[1]).submission)
            case state_codec.APP | state_codec.REJECTED:
                return sorted(records, key=lambda record: state_pb2.ApplicationObject.FromString(record[1]).submission)
            case state_codec.ASK:
                return sorted(records, key=lambda record: state_pb2.AskObject.FromString(record[1]).demand.submission)
            case state_codec.ALLOC:
                return sorted(records, key=lambda record: _allocated(state_pb2.AllocationObject.FromString(record[1])))
        return records

    def _in_order(self, kind: str, records: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
        try:
            return self._ordered(kind, records)
        except DecodeError as error:
            raise CodecError(f"a record of kind {kind} cannot be read") from error

    def _fold(self, key: bytes, value: bytes | None) -> None:
        """Applies a record. Raises CodecError: a record that refers to nothing fails deep in the core."""
        try:
            self._apply(key, value)
        except CodecError:
            raise
        except Exception as error:
            raise _unfoldable(key, error) from error

    def _apply(self, key: bytes, value: bytes | None) -> None:
        rm_id, kind, parts = parse_state_key(key)
        if kind == state_codec.RM:
            self._apply_rm(rm_id, value)
            return
        self.stamps.fold_record()
        if kind == state_codec.REGISTRATION:
            if value is not None:
                finish(self._apply_registration(rm_id, state_pb2.RegistrationObject.FromString(value)))
            return
        if kind == state_codec.FORGOTTEN:
            if value is None:
                self.forgotten.pop(rm_id, None)
            else:
                self.forgotten[rm_id] = kept = _decode_forgotten(value)
                self.stamps.fold(kept.stamp_before, kept.stamp_step)
            return
        if kind in _EXTERNAL:
            self._apply_external(rm_id, kind, parts, value)
            return
        partition = self._partition_of(rm_id, parts)
        if partition is None:
            return
        witness = self._witness if self._following else None
        if witness is not None:
            witness.before(rm_id, partition, kind, parts[1:])
        if value is None:
            if self._leaving is not None and self._following:
                self._leaving(rm_id, partition, kind, parts[1:])
            state_codec.fold_tombstone(partition, kind, parts[1:])
        else:
            state_codec.fold_value(partition, kind, value)
        if witness is not None:
            witness.after(rm_id, partition, kind, parts[1:])
        if self._following:
            partition.deadlines.clear()  # a follower has no clock

    def _apply_external(self, rm_id: str, kind: str, parts: tuple[str, ...], value: bytes | None) -> None:
        books = self.books_of(rm_id)
        if value is None:
            state_codec.fold_external_tombstone(books, kind, parts)
            return
        try:
            state_codec.fold_external_value(books, kind, value)
        except BadDocument as error:
            raise CodecError(f"RM {rm_id}: the record {kind} {'/'.join(parts)} cannot be read: {error}") from error

    def _apply_rm(self, rm_id: str, value: bytes | None) -> None:
        if value is None:
            self._drop(rm_id, for_ever=True)
            return
        recorded = state_pb2.RmObject.FromString(value)
        self.stamps.fold(recorded.stamp_before, recorded.stamp_step, recorded.stamp_records)
        state = self.rms.get(rm_id)
        if state is None or state.info.registrations != recorded.registrations:
            # (The next record has the registration's data. Until then the RM is not shown.)
            self._drop(rm_id, for_ever=False)
            self._registering[rm_id] = info = RmInfo(rm_id)
            _take_rm(info, recorded)
            return
        _take_rm(state.info, recorded)
        state.core.apply(SetSchedulingEnabled(state.info.decides), state.info.last_decided_ns)
        state.core.apply(SetGeneration(recorded.generation == "previous"), state.info.last_decided_ns)

    def _drop(self, rm_id: str, *, for_ever: bool) -> None:
        dropped = self.rms.pop(rm_id, None)
        if dropped is None:
            return
        if self._leaving is not None and self._following and not for_ever:
            # Queues have no tombstones here, because new ones with the same names follow. (``leaving`` is not called
            # for applications and nodes, which may be very many, nor for more queues than one go allows.)
            for partition in dropped.core.partitions.values():
                for path in islice(partition.queues, _LEAVING_QUEUES_MAX):
                    self._leaving(rm_id, partition, state_codec.QUEUE, (path,))
        if self._witness is not None:
            self._witness.on_dropped(dropped, for_ever=for_ever)
        else:
            self.dispose(dropped.core.dispose())

    def _apply_registration(self, rm_id: str, recorded: state_pb2.RegistrationObject) -> Steps:
        info = self._registering.pop(rm_id, None)
        state = self.rms.get(rm_id)
        if info is None and state is not None and state.info.registrations == recorded.registrations:
            self._reconfigure(state, recorded)
            return
        if info is None or info.registrations != recorded.registrations:
            raise CodecError(f"RM {rm_id}: the record of registration {recorded.registrations} has no RM beside it")
        info.version, info.policy_group, info.config = recorded.version, recorded.policy_group, recorded.config
        info.compiled = recorded.compiled
        info.build_info, info.extra_config = dict(recorded.build_info), dict(recorded.extra_config)
        info.pauses = _pauses_of(recorded)
        info.identity, info.quotas = recorded.identity, quotas_of(recorded.quotas)
        read = self._read_ahead.pop(info.config, None) or load_recorded(info.config, info.compiled)
        config = info.configured(read)
        core = yield from core_in_steps(info, searching=False, config=config, external=self.books_of(rm_id))
        self.rms[rm_id] = RmEntry(info, core)
        if info.compiled != recorded.compiled:
            self.compiled_anew[rm_id] = None

    def _reconfigure(self, state: RmEntry, recorded: state_pb2.RegistrationObject) -> None:
        """Applies a registration's record of a known RM: another configuration (the queues' own records follow), or an
        ended pause.
        """
        state.info.pauses = _pauses_of(recorded)
        state.info.identity, state.info.quotas = recorded.identity, quotas_of(recorded.quotas)
        state.info.extra_config = dict(recorded.extra_config)
        state.core.apply(events_of(state.info), state.info.last_decided_ns)
        if state.info.config == recorded.config:
            return
        state.info.config = recorded.config
        read = self._read_ahead.pop(recorded.config, None) or load_recorded(recorded.config, recorded.compiled)
        state.core.apply(UpdateConfiguration(state.info.configured(read)), state.info.last_decided_ns)


def _allocated(recorded: state_pb2.AllocationObject) -> tuple[int, int, int]:
    return recorded.allocated_ns, recorded.demand.submission, recorded.ordinal


def _unfoldable(key: bytes, error: Exception) -> CodecError:
    return CodecError(f"the state record {key[:200]!r} cannot be folded ({type(error).__name__})")
