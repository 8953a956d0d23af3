"""The scheduler's machine: one partition of the requests with all its RMs (steps "ingest", "core", "emit").

For each batch of requests it takes these steps: 1 decode, 2 apply to the RM's core, 3 cycle the touched cores, 4 emit.
Unreadable requests go to the dead letters; the core answers a bad item in a request. Neither stops the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial

import structlog
from google.protobuf.message import DecodeError
from muster_bus.clock import Anchor
from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics
from muster_core import invariants
from muster_core.external.errors import BadDocument
from muster_core.model.commands import (
    SetCallbacks,
    SetGeneration,
    SetSchedulingEnabled,
    UpdateApplications,
    UpdateConfiguration,
)
from muster_core.model.outcome import ConfigurationResult, Outcome
from muster_core.model.steps import FEW, finish
from muster_core.scheduler import SchedulerCore
from muster_informers.sync_gate import SyncGate
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_queue_config.queue_yaml import checksum
from muster_runtime import event_settings
from muster_runtime.secrets import masked_text
from muster_state.state_folder import (
    RmEntry,
    RmInfo,
    events_of,
)

from muster_scheduler import (
    audit,
    callback_ingest,
    config_validation,
    end_application,
    generation,
    group_configuration,
    history_notices,
    ingest,
    metrics,
    pauses,
)
from muster_scheduler.admin_commands import CHANGES_MAX, AdminCommands
from muster_scheduler.config_validation import ConfigValidator
from muster_scheduler.consult import RequestVerdict
from muster_scheduler.dead_letters import UnreadableRequest, dead_letter
from muster_scheduler.emit import Emitter, write_states
from muster_scheduler.external_reports import ExternalReportIngest
from muster_scheduler.group_configuration import GroupConfigurations
from muster_scheduler.group_resolution import UserGroups, with_groups
from muster_scheduler.recorded_time import ClockSteps, NoSteps, RecordedTime
from muster_scheduler.registrar import RmRegistrar
from muster_scheduler.rm_quotas import ReachedQuotas, RmQuotas
from muster_scheduler.rm_table import RmTable
from muster_scheduler.tally import Stopwatch, migrate_tally

log = structlog.get_logger(__name__)

_LIVES = frozenset(pb.RmLifecycle.State.values()) - {pb.RmLifecycle.UNKNOWN}
_SHOWN_MAX = 256  # characters of an id in a reason
# Requests that an RM may cause before it registers. For these, an unknown RM does not reveal a record that is in the
# wrong partition.
_BEFORE_REGISTRATION = frozenset({"register", "external"})
_NO_GATE = SyncGate()
# A tick begins no further RM's decisions after so long. The other RMs' come next, after new requests.
_TURN_S = 0.01
# Allocations that an RM gets in one go however many share a batch.
_LEAST_ALLOCATIONS = 8
# Records of one part of a long output.
_PART = 1024


class SchedulerMachine:
    """Implements :class:`muster_bus.state_machine.StateMachine`.

    :param new_uuid: returns a new InstanceUUID (the core gets ids as arguments).
    :param configurations: finds the text for RMs that register with an empty configuration; a text is the default.
    :param max_allocations_batch: see SchedulerSettings.
    :param check_invariants_every_ns: 0: only at recovery.
    :param groups: finds the groups of users that come without groups.
    :param monotonic_s: measures the duration of decisions. It ends a turn, as the end of a batch does; what is decided
        for one RM does not depend on the others' turns.
    :param times: recorded time of the partition; default: as the worker's clock.
    :param steps: gets the steps of the wall clock.
    :param reached: gets the quotas that RMs have reached.
    :param holds: outcomes grow until ``flush``, over several calls; otherwise each call returns its records.
    :param dispose: runs steps that free memory, and for which nothing waits.
    :param gate: the external sources that the scheduler must wait for; without a life: none, and the machine gives up
        none.
    """

    def __init__(
        self,
        topics: Topics,
        new_uuid: Callable[[], str],
        configurations: GroupConfigurations | str = "",
        max_allocations_batch: int = 200,
        check_invariants_every_ns: int = 0,
        groups: UserGroups | None = None,
        monotonic_s: Callable[[], float] = lambda: 0.0,
        gate: SyncGate = _NO_GATE,
        times: RecordedTime | None = None,
        steps: ClockSteps | None = None,
        *,
        holds: bool = False,
        reached: ReachedQuotas | None = None,
        dispose: Callable[[Generator[None, None, None]], None] = finish,
    ) -> None:
        self._topics = topics
        self._new_uuid = new_uuid
        self._policy_groups = GroupConfigurations(configurations) if isinstance(configurations, str) else configurations
        self._budget = max_allocations_batch
        self._check_every_ns = check_invariants_every_ns
        self._groups = groups if groups is not None else UserGroups()
        self._judge = ConfigValidator(self._groups)
        self._admin = AdminCommands(self._judge, self._text_for, self._policy_groups.member)
        self._audit = audit.AuditRecorder(topics)
        self._holds = holds
        # RMs whose pending outcome is decided and waits for the end of its transaction.
        self._held: set[str] = set()
        self._checked_ns = 0
        self._watch = Stopwatch(monotonic_s)
        self._roster = roster = RmTable()
        self._folder, self._emitters, self._outcomes = roster.folder, roster.emitters, roster.outcomes
        self._unexhausted, self._unwritten = roster.unexhausted, roster.unwritten
        self._deadlines = roster.deadlines
        self._folder.dispose = dispose
        # Event handlers' verdicts on the next requests, by offset (``consult.py``).
        self._verdicts: Mapping[int, RequestVerdict] = {}
        self._times = times if times is not None else RecordedTime(NoSteps())
        self._steps = steps if steps is not None else ClockSteps(monotonic_s)
        self._sources = ExternalReportIngest(roster, gate)
        self._quotas = RmQuotas(roster, reached if reached is not None else ReachedQuotas(monotonic_s))
        self._registrar = RmRegistrar(
            topics,
            roster,
            new_uuid,
            self._policy_groups,
            self._judge,
            self._admin,
            self._sources,
            self._times,
            self._quotas,
            dispose,
        )

    @property
    def rms(self) -> dict[str, RmEntry]:
        """Returns the RMs of the partition, by id (for tests and health)."""
        return self._folder.rms

    # ---- recovery --------------------------------------------------------------------------------------------------

    def fold(self, record: Record) -> None:
        """Takes one record of the state topic."""
        self._folder.fold(record)

    def build_state(self) -> Iterator[None]:
        """Builds the cores in steps and checks them, for a standby. From then on ``fold`` applies each record."""
        yield from self._folder.build_steps()
        for state in self._folder.rms.values():
            yield from invariants.check_in_steps(state.core, merges=False)
            yield

    def finish_fold(self, now_ns: int) -> None:
        """Builds the cores and checks them, once the state is complete. A standby has done both before."""
        followed = self._folder.settled
        self._folder.finish()
        self._times.resume(now_ns, *self._last_decided())
        self._checked_ns = now_ns = self._times.recorded(now_ns)
        for rm_id, state in self._folder.rms.items():
            for problem in state.info.closed:
                log.warning("recorded configuration admits nobody", rm=rm_id, problem=masked_text(problem))
            state.info.clock = self._times.anchor
            self._folded_pauses(state.info, now_ns)
            state.core.apply(SetSchedulingEnabled(state.info.decides), state.info.last_decided_ns)
            state.core.activate(now_ns, state.info.last_decided_ns)
            if not followed:
                invariants.check(state.core, merges=False)
            migrate_tally(state.info.tally, sum(partition.running for partition in state.core.partitions.values()))
            self._emitters[rm_id] = Emitter(self._topics, state.info, self._roster.stamps)
            self._unexhausted[rm_id] = None
        self._quotas.on_folded(now_ns)
        self._unwritten |= self._folder.compiled_anew  # writes these RMs' registrations
        self._folder.compiled_anew = {}
        for rm_id, state in self._folder.rms.items():
            out = self._outcomes[rm_id] = Outcome()
            state.core.apply(SetCallbacks(callback_ingest.policy_of(state.info)), now_ns, out)
        for rm_id in self._folder.external:
            self._sources.give_up_forgotten(rm_id, now_ns)

    def _last_decided(self) -> tuple[int, Anchor]:
        """Returns the latest recorded time, and the newest anchor; a forgotten RM has none."""
        infos = (state.info for state in self._folder.rms.values())
        newest = max(infos, key=lambda info: info.last_decided_ns, default=None)
        last_ns = max((kept.last_decided_ns for kept in self._folder.forgotten.values()), default=0)
        return (last_ns, Anchor()) if newest is None else (max(last_ns, newest.last_decided_ns), newest.clock)

    def _folded_pauses(self, info: RmInfo, now_ns: int) -> None:
        """Resumes the pauses that were in force before the restart."""
        if info.is_absent and not info.absent_ns:  # an old record without this time
            info.absent_ns = info.callbacks_since_ns or info.registered_ns
        if pauses.mark_awaited(info, self._sources.awaited(info.rm_id), now_ns):
            self._unwritten[info.rm_id] = None

    # ---- questions to event handlers, before a batch ----------------------------------------------------------------

    def core_of(self, rm_id: str) -> tuple[SchedulerCore | None, int]:
        """Returns an RM's core, and the number of its registrations."""
        state = self._folder.rms.get(rm_id)
        return (None, 0) if state is None else (state.core, state.info.registrations)

    def set_verdicts(self, verdicts: Mapping[int, RequestVerdict]) -> None:
        """Takes event handlers' verdicts on the next requests."""
        self._verdicts = verdicts

    # ---- the flow --------------------------------------------------------------------------------------------------

    def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
        """Takes requests in order. Returns the records of one transaction."""
        return [record for part in self.apply_in_steps(records, now_ns) for record in part]

    def apply_in_steps(self, records: Sequence[Record], now_ns: int) -> Iterator[Sequence[OutRecord]]:
        """Does the same in steps: yields the records in parts, and empty parts before."""
        now_ns = self._times.recorded(now_ns)
        self._watch.start()
        outputs: list[OutRecord] = []
        touched: dict[str, None] = {}
        for count, record in enumerate(records, 1):
            self._roster.stamps.note_request(record.offset)
            try:
                rm_id = yield from self._take(record, now_ns, outputs)
                touched[rm_id] = None
                self._watch.lap(rm_id)
            except UnreadableRequest as error:
                outputs.append(dead_letter(self._topics.dead_letters, record, str(error)))
            self._audit.end(outputs, self._times.anchor.offset_ns + now_ns)
            if not count % FEW:  # (a request of one item is a tenth of a millisecond)
                yield ()
                self._watch.start()
        yield from self._decide(touched, now_ns, outputs)
        yield from _in_parts(outputs)

    def tick(self, now_ns: int) -> list[OutRecord]:
        """Makes the decisions for which a deadline has come, or that the last budget did not cover. RMs take turns."""
        return [record for part in self.tick_in_steps(now_ns) for record in part]

    def tick_in_steps(self, now_ns: int) -> Iterator[Sequence[OutRecord]]:
        """Does the same in steps, as :meth:`apply_in_steps`."""
        now_ns = self._times.recorded(now_ns)
        if step := self._times.take_step():
            self._tell_step(step, now_ns)
        self._roster.stamps.note_step()
        undecided = dict.fromkeys(rm_id for rm_id in self._outcomes if rm_id not in self._held)
        due = {**undecided, **dict.fromkeys(self._deadlines.take_due(now_ns)), **self._unexhausted}
        yield from self._check_invariants(now_ns)
        self._watch.start()
        outputs: list[OutRecord] = []
        ends_s = self._watch.now_s() + _TURN_S
        for rm_id in due:
            if rm_id not in undecided and self._watch.now_s() >= ends_s:
                self._unexhausted.setdefault(rm_id)  # its deadline is taken: it is due in the next turn
                continue
            yield from self._decide({rm_id: None}, now_ns, outputs)
        yield from _in_parts(outputs)

    def _paused(self, rm_id: str, steps: Iterator[None]) -> Iterator[Sequence[OutRecord]]:
        """Runs steps for an RM, with an empty part after each. What others do meanwhile is not the RM's time."""
        for _ in steps:
            self._watch.lap(rm_id)
            yield ()
            self._watch.start()

    def next_deadline_ns(self) -> int | None:
        """Returns the time of the next ``tick``."""
        undecided = any(rm_id not in self._held for rm_id in self._outcomes)
        if self._unexhausted or undecided:
            return 0
        deadlines = [due_ns for due_ns in (self._deadlines.first_ns(), self._times.step_due_ns()) if due_ns is not None]
        if self._check_every_ns:
            deadlines.append(self._checked_ns + self._check_every_ns)
        return self._times.clock_ns(min(deadlines)) if deadlines else None

    def _tell_step(self, message: str, now_ns: int) -> None:
        """Records that the wall clock stepped."""
        self._steps.note(message)
        for rm_id in self._folder.rms:
            history_notices.add_event(message, now_ns, self._outcomes.setdefault(rm_id, Outcome()))

    def _decide(self, touched: dict[str, None], now_ns: int, outputs: list[OutRecord]) -> Iterator[Sequence[OutRecord]]:
        budget = max(min(_LEAST_ALLOCATIONS, self._budget), self._budget // max(1, len(touched)))
        for rm_id in touched:
            state = self._folder.rms.get(rm_id)
            self._held.discard(rm_id)
            if state is None:
                if (waiting := self._outcomes.pop(rm_id, None)) is not None:
                    yield from self._paused(rm_id, write_states(self._topics, rm_id, waiting, outputs))
                continue
            if rm_id in self._unwritten:
                del self._unwritten[rm_id]
                emitter = self._emitters[rm_id]
                outputs += (emitter.rm_record(state.core.next_submission, 1), emitter.registration_record())
            out = self._outcomes.pop(rm_id, None)
            if out is None:
                out = Outcome()
            yield from self._paused(rm_id, state.core.cycle_in_steps(now_ns, budget, out))
            self._quotas.notify_reached(state, now_ns, out)
            self._unexhausted.pop(rm_id, None)
            if not state.core.exhausted:
                self._unexhausted[rm_id] = None  # behind all others
            # A core's deadline changes only when it takes a command or decides, so not all RMs need a look.
            self._deadlines.set(rm_id, state.core.next_deadline_ns())
            if out:
                state.info.last_decided_ns = now_ns
                if self._holds:
                    self._outcomes[rm_id] = out
                    self._held.add(rm_id)
                    self._watch.lap(rm_id)
                else:
                    yield from self._paused(rm_id, self._emit_steps(state, out, outputs))
        if not self._holds:
            self._watch.forget()

    def flush(self, now_ns: int) -> Iterator[Sequence[OutRecord]]:
        """Yields the records of the outcomes that were held back, and an empty part after each few milliseconds."""
        for rm_id in [rm_id for rm_id in self._outcomes if rm_id in self._held]:
            state = self._folder.rms.get(rm_id)
            if state is None:
                continue
            outputs: list[OutRecord] = []
            self._watch.start()
            yield from self._paused(rm_id, self._emit_steps(state, self._outcomes.pop(rm_id), outputs))
            yield from _in_parts(outputs)
        self._held.clear()
        self._watch.forget()

    def pending_records(self) -> int:
        """Returns about how many records :meth:`flush` gives."""
        return sum(out.size for rm_id, out in self._outcomes.items() if rm_id in self._held)

    def _emit_steps(self, state: RmEntry, out: Outcome, outputs: list[OutRecord]) -> Iterator[None]:
        rm_id = state.info.rm_id
        state.info.clock = self._times.anchor
        took_us = partial(self._watch.take_us, rm_id)
        return self._emitters[rm_id].emit_steps(out, state.core.next_submission, outputs, took_us)

    def _check_invariants(self, now_ns: int) -> Iterator[Sequence[OutRecord]]:
        if self._check_every_ns and now_ns >= self._checked_ns + self._check_every_ns:
            self._checked_ns = now_ns
            for state in self._folder.rms.values():
                for _ in invariants.check_in_steps(state.core, merges=False):
                    yield ()

    # ---- one request -----------------------------------------------------------------------------------------------

    def _take(self, record: Record, now_ns: int, outputs: list[OutRecord]) -> Generator[Sequence[OutRecord], None, str]:
        try:
            envelope = pb.RequestEnvelope.FromString(record.value or b"")
            body = envelope.WhichOneof("body")
            rm_id = envelope.rm_id
            if body is None or not rm_id:
                raise UnreadableRequest("an envelope without a body or without rm_id")
            self._audit.begin(record, envelope, body, len(outputs))
            if body in _BEFORE_REGISTRATION and self._topics.partition_of(rm_id) != record.partition:
                raise UnreadableRequest(
                    f"RM {rm_id[:_SHOWN_MAX]!r} belongs to partition {self._topics.partition_of(rm_id)}"
                )
            if body == "external":
                yield from self._paused(
                    rm_id, self._sources.apply_in_steps(rm_id, ingest.external(envelope.external), now_ns)
                )
                return rm_id
            if body == "register":
                request = si.RegisterResourceManagerRequest.FromString(envelope.register)
                yield from self._paused(rm_id, self._registrar.register(envelope, request, now_ns, outputs))
                return rm_id
            if body == "admin" and envelope.admin.WhichOneof("command") == "forget":
                force = envelope.admin.forget.force
                forgetting = self._registrar.forget(rm_id, envelope.request_id, now_ns, outputs, force=force)
                yield from self._paused(rm_id, forgetting)
                return rm_id
            state = self._taking(rm_id, envelope, body)
            if state is None:
                return rm_id
            out = self._roster.outcome(rm_id)
            match body:
                case "allocation":
                    read = partial(ingest.read_allocations, envelope.allocation, state.info, envelope.admitted_ns)
                    verdict = self._verdicts.get(record.offset)
                    yield from self._take_items(state, read, verdict, now_ns, outputs)
                case "application":
                    read_apps = partial(ingest.applications, envelope.application)
                    verdict = self._verdicts.get(record.offset)
                    yield from self._take_items(state, read_apps, verdict, now_ns, outputs)
                case "node":
                    read_nodes = partial(ingest.nodes, envelope.node)
                    verdict = self._verdicts.get(record.offset)
                    yield from self._take_items(state, read_nodes, verdict, now_ns, outputs)
                case "lifecycle":
                    self._live(state, envelope.lifecycle, now_ns, out, outputs)
                case "configuration":
                    update = si.UpdateConfigurationRequest.FromString(envelope.configuration)
                    judged = envelope.judged if envelope.HasField("judged") else None
                    yield from self._configure(state, envelope.request_id, update, judged, now_ns, outputs)
                case "admin":
                    emitter = self._emitters[rm_id]
                    yield from self._paused(rm_id, self._admin.execute(state, envelope, emitter, now_ns, out, outputs))
                case "callback_stream":
                    self._connect(state, envelope.callback_stream, now_ns, out, outputs)
                case "callback_answers":
                    message = callbacks_pb2.FromResourceManager.FromString(envelope.callback_answers)
                    state.core.apply(callback_ingest.answers(message), now_ns, out)
                    self._admin.on_dumps(rm_id, message.state_dumps, self._emitters[rm_id], outputs)
                case "quotas_changed":
                    self._quotas.change(state, envelope.quotas_changed, now_ns)
                case "notice":
                    yield from self._note(state, envelope.notice, now_ns, outputs)
                case _:
                    raise UnreadableRequest(f"a body of the kind {body}, which this version does not know")
        except DecodeError as error:
            raise UnreadableRequest("not a RequestEnvelope with an SI request in it") from error
        except BadDocument as error:
            raise UnreadableRequest(f"external changes: {error}") from error
        return rm_id

    def _taking(self, rm_id: str, envelope: pb.RequestEnvelope, body: str) -> RmEntry | None:
        """Returns the RM that takes a request; None if the request is passed over. Raises UnreadableRequest."""
        state = self._folder.rms.get(rm_id)
        if state is None:
            if rm_id in self._folder.forgotten:  # the request was under way when the RM was forgotten
                log.info("request of a forgotten rm passed over", rm=rm_id, body=body)
                return None
            raise UnreadableRequest(f"RM {rm_id[:_SHOWN_MAX]!r} is not registered")
        if envelope.HasField("sent") and not state.info.sent.accept(body, envelope.sent):
            metrics.requests_repeated.inc()
            return None
        return state

    def _take_items(
        self,
        state: RmEntry,
        read: Callable[[], ingest.Items],
        verdict: RequestVerdict | None,
        now_ns: int,
        outputs: list[OutRecord],
    ) -> Iterator[Sequence[OutRecord]]:
        """Takes an RM's request about nodes, applications or allocations.

        :param read: decodes the request with the RM's generation of that moment.
        :param verdict: an event handler's: each item then follows the handler's changes for it.
        """
        if verdict is None:
            yield from self._take_request(state, read(), read, now_ns, outputs)
            return
        info = state.info
        items, read_as = read(), info.generation
        for at in range(items.count):
            if changes := verdict.commands_before(at, info.registrations):
                yield from self._paused(info.rm_id, self._sources.apply_in_steps(info.rm_id, changes, now_ns))
            if read_as != info.generation:
                items, read_as = read(), info.generation
            item = verdict.apply_to(items.between(at, at + 1), at, self._outcomes.setdefault(info.rm_id, Outcome()))
            if item is not None:
                yield from self._take_request(state, item, partial(ingest.single, read, at), now_ns, outputs)

    def _take_request(
        self,
        state: RmEntry,
        items: ingest.Items,
        read: Callable[[], ingest.Items],
        now_ns: int,
        outputs: list[OutRecord],
    ) -> Iterator[Sequence[OutRecord]]:
        """Takes a request's items, and notices the RM's generation.

        :param read: decodes the same items again, after the RM's generation has changed.
        """
        rm_id, core = state.info.rm_id, state.core
        out = self._outcomes.setdefault(rm_id, Outcome())
        if isinstance(items, UpdateApplications):
            items = with_groups(self._groups, core, items, now_ns)
            yield from self._paused(rm_id, core.apply_in_steps(items, now_ns, out))
            return
        evidence = generation.generation_evidence(items) if state.info.generation_by in generation.TO_BE_SEEN else None
        if evidence is not None:
            yield from self._paused(rm_id, core.apply_in_steps(items.between(0, evidence.at), now_ns, out))
            out = yield from self._recognise(state, evidence, now_ns, outputs)
            items = read()
            items = items.between(evidence.at, items.count)
        yield from self._paused(rm_id, core.apply_in_steps(items, now_ns, out))

    def _recognise(
        self, state: RmEntry, evidence: generation.GenerationEvidence, now_ns: int, outputs: list[OutRecord]
    ) -> Generator[Sequence[OutRecord], None, Outcome]:
        """Takes the generation that an item shows. Returns the outcome to continue with."""
        info = state.info
        if info.generation != evidence.generation:
            # Events that earlier items caused carry the earlier texts.
            yield from self._emit_pending(state, now_ns, outputs)
        info.generation, info.generation_by = evidence.generation, evidence.by
        out = self._outcomes.setdefault(info.rm_id, Outcome())
        state.core.apply(SetGeneration(info.generation == generation.PREVIOUS), now_ns, out)
        log.info("generation recognised", rm=info.rm_id, generation=info.generation, by=info.generation_by)
        return out

    def _emit_pending(self, state: RmEntry, now_ns: int, outputs: list[OutRecord]) -> Iterator[Sequence[OutRecord]]:
        """Writes the pending outcome before a change that affects its encoding."""
        pending = self._outcomes.pop(state.info.rm_id, None)
        if pending:
            state.info.last_decided_ns = now_ns
            yield from self._paused(state.info.rm_id, self._emit_steps(state, pending, outputs))

    def _text_for(self, info: RmInfo, config: str) -> tuple[str, list[pb.ConfigProblem]]:
        """Returns the configuration of an RM that sends this one, and the problems of its source."""
        return self._policy_groups.text_for(config, info.policy_group, info.rm_id, self._folder.rms)

    def _live(self, state: RmEntry, note: pb.RmLifecycle, now_ns: int, out: Outcome, outputs: list[OutRecord]) -> None:
        if note.state not in _LIVES:
            raise UnreadableRequest(f"a lifecycle note with the unknown state {note.state}")
        life = pb.RmLifecycle.State.Name(note.state)
        if life == state.info.life:
            return
        state.info.life, state.info.life_ns = life, now_ns
        state.core.apply(SetSchedulingEnabled(state.info.decides), now_ns, out)
        outputs.append(self._emitters[state.info.rm_id].rm_record(state.core.next_submission))

    def _note(
        self, state: RmEntry, notice: pb.Notice, now_ns: int, outputs: list[OutRecord]
    ) -> Iterator[Sequence[OutRecord]]:
        if notice.records_lost:
            yield from self._emit_pending(state, now_ns, outputs)
            state.info.instance_uuid = self._new_uuid()
            emitter = self._emitters[state.info.rm_id] = Emitter(self._topics, state.info, self._roster.stamps)
            outputs += (emitter.rm_record(state.core.next_submission, 1), emitter.registration_record())
        out = self._outcomes.setdefault(state.info.rm_id, Outcome())
        history_notices.apply_notice(notice.message, state.core, now_ns, out, records_lost=notice.records_lost)

    def _connect(
        self, state: RmEntry, note: pb.CallbackStream, now_ns: int, out: Outcome, outputs: list[OutRecord]
    ) -> None:
        """Takes a note that the RM's callback stream was opened or has ended."""
        info, emitter = state.info, self._emitters[state.info.rm_id]
        if not callback_ingest.take_note(info, note, now_ns):
            return
        if pauses.mark_absence(info, now_ns):
            self._unwritten[info.rm_id] = None
        state.core.apply(SetCallbacks(callback_ingest.policy_of(info)), now_ns, out)
        if not note.connected:
            self._admin.on_callback_lost(info.rm_id, emitter, outputs)
        outputs.append(emitter.rm_record(state.core.next_submission))

    def _configure(
        self,
        state: RmEntry,
        request_id: str,
        update: si.UpdateConfigurationRequest,
        judged: pb.JudgedConfiguration | None,
        now_ns: int,
        outputs: list[OutRecord],
    ) -> Iterator[Sequence[OutRecord]]:
        """Takes another configuration at run time, as a whole or not at all. The answer has the changes or the reason.

        The extra configuration is taken in either case, as by YuniKorn, unless the registration would become too large
        for a record.
        """
        info, emitter = state.info, self._emitters[state.info.rm_id]
        # Writes earlier decisions first, because followers apply the new configuration to the state that they have
        # then.
        yield from self._emit_pending(state, now_ns, outputs)
        text, text_problems = self._text_for(info, update.config)
        config, compiled, all_problems = self._judge.validate(text, judged, info.rm_id)
        all_problems += text_problems + group_configuration.other_group(update.policyGroup, info.policy_group)
        if any(problem.severity == pb.ConfigProblem.ERROR for problem in text_problems):
            config = None
        added = dict(update.extraConfig)
        if problem := config_validation.too_large_with(info, text, added):
            all_problems.append(problem)
            config, added = None, {}
        changes: list[str] = []
        accepted = config is not None
        out = Outcome()
        info.extra_config, problems = event_settings.merged(info.extra_config, added)
        all_problems += config_validation.event_warnings(problems)
        state.core.apply(events_of(info), now_ns, out)
        emitter.reload_settings()
        if config is not None and checksum(text) != checksum(info.config):
            yield from self._paused(info.rm_id, config_validation.add_changes(state.core.config, config, changes))
            command = UpdateConfiguration(config)
            yield from self._paused(info.rm_id, state.core.apply_in_steps(command, now_ns, out))
            (answer,) = (fact for fact in out.facts if isinstance(fact, ConfigurationResult))
            out.facts.remove(answer)
            all_problems += [
                pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, message=obstacle) for obstacle in answer.obstacles
            ]
            if answer.obstacles:
                accepted, changes = False, []
            else:
                info.config, info.compiled, info.closed = text, compiled, ()
        named, by = generation.declared_generation(added, "")
        if named:
            info.generation, info.generation_by = named, by
            state.core.apply(SetGeneration(named == generation.PREVIOUS), now_ns, out)
        all_problems += generation.problems_of(added)
        all_problems += callback_ingest.problems_of(added) + end_application.problems_of(added)
        state.core.apply(SetCallbacks(callback_ingest.policy_of(info)), now_ns, out)
        pauses.mark_absence(info, now_ns)
        outputs += (emitter.rm_record(state.core.next_submission, 1), emitter.registration_record())
        if out:
            self._outcomes[info.rm_id] = out
            emitter.expect_outcome()
        member = self._policy_groups.member(info.config, info.policy_group) if accepted else None
        outputs.append(
            emitter.registration(
                request_id, all_problems, accepted=accepted, changes=changes[:CHANGES_MAX], policy_group=member
            )
        )
        log.info("configuration updated", rm=info.rm_id, accepted=accepted, changes=len(changes))


def _in_parts(outputs: list[OutRecord]) -> Iterator[Sequence[OutRecord]]:
    """Yields records in parts, with an empty part between: the caller looks at each record."""
    if len(outputs) <= _PART:
        if outputs:
            yield outputs
        return
    outputs.reverse()
    while outputs:  # (A long list is not freed at once.)
        part = outputs[-_PART:]
        del outputs[-_PART:]
        part.reverse()
        yield part
        yield ()
