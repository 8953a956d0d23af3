"""Registers RMs and forgets them (the machine's part)."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable
from itertools import chain
from typing import TypeVar

import structlog
from muster_bus.log import OutRecord
from muster_bus.topics import Topics, state_key
from muster_core.model.application import Allocation
from muster_core.model.commands import SetCallbacks, SetQuotas
from muster_core.model.outcome import Outcome, Primary
from muster_core.model.steps import STEP, Pace, Steps, emptied
from muster_core.requests.deregistration import FORGOTTEN
from muster_core.scheduler import SchedulerCore
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime import event_settings
from muster_state import state_codec
from muster_state.state_folder import ForgottenRm, RmEntry, RmInfo, core_in_steps, encode_forgotten, quotas_of

from muster_scheduler import callback_ingest, config_validation, end_application, generation, pauses
from muster_scheduler.admin_commands import AdminCommands, may_forget, never_registered
from muster_scheduler.config_validation import ConfigValidator
from muster_scheduler.deregistration import absorb_unwritten, own_keys, published_objects
from muster_scheduler.emit import Emitter, admin_result, write_states
from muster_scheduler.external_reports import ExternalReportIngest
from muster_scheduler.group_configuration import GroupConfigurations
from muster_scheduler.recorded_time import RecordedTime
from muster_scheduler.rm_quotas import RmQuotas
from muster_scheduler.rm_table import RmTable

log = structlog.get_logger(__name__)

T = TypeVar("T")


class RmRegistrar:
    """Begins and ends the lives of a partition's RMs.

    :param new_uuid: returns a new InstanceUUID.
    :param times: gives the anchor of the recorded time.
    :param dispose: gets the steps that take an ended core apart: nothing waits for them.
    """

    def __init__(
        self,
        topics: Topics,
        roster: RmTable,
        new_uuid: Callable[[], str],
        policy_groups: GroupConfigurations,
        judge: ConfigValidator,
        admin: AdminCommands,
        sources: ExternalReportIngest,
        times: RecordedTime,
        quotas: RmQuotas,
        dispose: Callable[[Steps], None],
    ) -> None:
        self._topics = topics
        self._roster = roster
        self._new_uuid = new_uuid
        self._policy_groups = policy_groups
        self._judge = judge
        self._admin = admin
        self._sources = sources
        self._times = times
        self._quotas = quotas
        self._dispose = dispose

    def register(
        self,
        envelope: pb.RequestEnvelope,
        request: si.RegisterResourceManagerRequest,
        now_ns: int,
        outputs: list[OutRecord],
    ) -> Steps:
        """Registers an RM, for the first time or again, or refuses it. The answer has the reasons. In steps."""
        rm_id = envelope.rm_id
        existing = self._roster.folder.rms.get(rm_id)
        text, text_problems = self._policy_groups.text_for(
            request.config, request.policyGroup, rm_id, self._roster.folder.rms
        )
        judged = envelope.judged if envelope.HasField("judged") else None
        # (Each part of the work on many queues is a step.)
        config, compiled, all_problems = yield from _then_pause(self._judge.validate(text, judged, rm_id))
        all_problems += text_problems
        extra_config, problems = event_settings.merged({}, request.extraConfig)
        all_problems += config_validation.event_warnings(problems)
        info = RmInfo(
            rm_id,
            request.version,
            request.policyGroup,
            dict(request.buildInfo),
            text,
            compiled,
            extra_config,
            life="RUNNING",
            life_ns=now_ns,
            registered_ns=now_ns,
            registrations=1,
        )
        if problem := config_validation.too_large(info):
            all_problems.append(problem)
        refused = config is None or any(problem.severity == pb.ConfigProblem.ERROR for problem in all_problems)
        over = self._quotas.problems(envelope, existing, config) if config is not None and not refused else []
        if config is None or refused or over:
            emitter = Emitter(self._topics, existing.info if existing is not None else RmInfo(rm_id))
            exhausted = bool(over)
            outputs.append(
                emitter.registration(envelope.request_id, all_problems + over, accepted=False, exhausted=exhausted)
            )
            return
        info.identity, info.quotas = envelope.identity, quotas_of(envelope.quotas)
        info.generation, info.generation_by = generation.declared_generation(request.extraConfig, request.version)
        all_problems += generation.problems_of(request.extraConfig)
        pauses.mark_awaited(info, self._sources.awaited(rm_id), now_ns)
        dropped = self._roster.outcomes.pop(rm_id, None)
        forgotten = self._roster.folder.forgotten.pop(rm_id, None)
        # The numbers continue, also those of a forgotten RM: an event's id, once given, means that event for ever.
        before = (
            ForgottenRm.of(existing.info, existing.core.next_submission, now_ns) if existing is not None else forgotten
        )
        if before is not None:
            before.go_on(info, now_ns)
        else:
            info.instance_uuid = self._new_uuid()
        if existing is not None:
            info.tally, info.quotas_reached = existing.info.tally, existing.info.quotas_reached
            info.sent = existing.info.sent
            # An operator's pause concerns the RM, not one registration of it. An RM that restarts, by itself or in a
            # crash loop, must not lift the pause.
            info.paused, info.paused_reason = existing.info.paused, existing.info.paused_reason
            info.paused_ns, info.pauses = existing.info.paused_ns, existing.info.pauses
            self._roster.unwritten.pop(rm_id, None)  # the registration's record includes it
            self._admin.on_callback_lost(rm_id, self._roster.emitters[rm_id], outputs)
        pauses.mark_absence(info, now_ns)
        # Sources report for the RM's id: the new core finds their reports where the old one left them.
        core = yield from core_in_steps(
            info, searching=True, config=config, external=self._roster.folder.books_of(rm_id)
        )
        core.apply(SetQuotas(info.quotas), now_ns)
        info.last_decided_ns, info.clock = now_ns, self._times.anchor
        emitter = Emitter(self._topics, info, self._roster.stamps)
        out = Outcome()
        if existing is not None:
            yield from existing.core.end_in_steps(now_ns, out)
        yield from core.start_in_steps(now_ns, out, existing.core if existing is not None else None)
        removed = yield from absorb_unwritten(dropped, out)
        core.apply(SetCallbacks(callback_ingest.policy_of(info)), now_ns, out)
        all_problems += callback_ingest.problems_of(info.extra_config) + end_application.problems_of(info.extra_config)
        # First the RM's object, then the tombstones of its old objects, then its new objects.
        outputs += (emitter.rm_record(core.next_submission, 1), emitter.registration_record())
        if forgotten is not None:
            outputs.append(emitter.tombstone(state_key(rm_id, state_codec.FORGOTTEN, "-")))
        kept = yield from _kept_keys(rm_id, core)
        # Decisions of the same batch before this registration belong to the state that is now dropped. Objects that
        # they removed still have records.
        ended = chain(emptied(removed), published_objects(existing.core) if existing is not None else ())
        yield from _tombstones(emitter, ended, kept, outputs)
        outputs.append(self._accepted(emitter, envelope.request_id, all_problems))
        self._enter(RmEntry(info, core), emitter, out)
        if existing is not None:
            self._dispose(existing.core.dispose())
        log.info("rm registered", rm=rm_id, registrations=info.registrations, warnings=len(all_problems))

    def _accepted(self, emitter: Emitter, request_id: str, problems: list[pb.ConfigProblem]) -> OutRecord:
        info = emitter.info
        member = self._policy_groups.member(info.config, info.policy_group)
        emitter.expect_outcome()  # the queues follow
        return emitter.registration(request_id, problems, accepted=True, policy_group=member)

    def _enter(self, state: RmEntry, emitter: Emitter, out: Outcome) -> None:
        rm_id = state.info.rm_id
        self._roster.folder.rms[rm_id] = state
        self._quotas.on_registered(state)
        self._roster.emitters[rm_id] = emitter
        self._roster.outcomes[rm_id] = out

    def forget(self, rm_id: str, request_id: str, now_ns: int, outputs: list[OutRecord], *, force: bool) -> Steps:
        """Forgets an RM that will not return. Its objects end, as at a registration, and the RM itself is removed. In
        steps.

        The RM's numbers stay. Reports of external sources belong to the RM's id and stay: they may be older than the
        RM, and no source repeats them.
        """
        state = self._roster.folder.rms.get(rm_id)
        result = pb.AdminResult(request_id=request_id)
        if state is None and rm_id not in self._roster.folder.forgotten:
            never_registered(rm_id, result)
        if state is None and rm_id in self._roster.folder.forgotten:  # readers must know that they have passed this
            outputs.append(self._forgotten_record(rm_id, self._roster.folder.forgotten[rm_id]))
            outputs.append(admin_result(self._topics, rm_id, result, self._roster.stamps.now))
            return
        if state is None or not may_forget(state.info, now_ns, result, force=force):
            outputs.append(admin_result(self._topics, rm_id, result))
            return
        # 1. the events of the objects that end, after those of earlier decisions
        out = Outcome()
        yield from state.core.end_in_steps(now_ns, out, reason=FORGOTTEN)
        removed = yield from absorb_unwritten(self._roster.outcomes.pop(rm_id, None), out)
        emitter = self._roster.emitters.pop(rm_id)
        self._admin.on_callback_lost(rm_id, emitter, outputs)
        # 2. first the RM's own record, so that followers drop the RM as a whole
        outputs += map(emitter.tombstone, own_keys(rm_id))
        yield from _tombstones(emitter, emptied(removed), (), outputs)
        result.allocations = yield from _tombstones(emitter, published_objects(state.core), (), outputs)
        yield from write_states(self._topics, rm_id, out, outputs)  # states of external sources
        yield from emitter.emit_forgotten(out, outputs)
        # 3. the numbers, which the events have advanced
        kept = ForgottenRm.of(state.info, state.core.next_submission, now_ns)
        outputs.append(self._forgotten_record(rm_id, kept))
        result.changed = True
        outputs.append(admin_result(self._topics, rm_id, result, self._roster.stamps.now))
        # 4. the machine's own entries
        self._roster.drop(rm_id, kept)
        self._quotas.forget(rm_id)
        self._dispose(state.core.dispose())
        log.info("rm forgotten", rm=rm_id, was=state.info.life, force=force, allocations=result.allocations)

    def _forgotten_record(self, rm_id: str, kept: ForgottenRm) -> OutRecord:
        before, step = self._roster.stamps.record()
        value = encode_forgotten(rm_id, kept._replace(stamp_before=before, stamp_step=step))
        key = state_key(rm_id, state_codec.FORGOTTEN, "-")
        return OutRecord(self._topics.state, self._topics.partition_of(rm_id), key, value)


def _then_pause(value: T) -> Generator[None, None, T]:
    """Returns the value that was made, after a pause."""
    yield
    return value


def _kept_keys(rm_id: str, core: SchedulerCore) -> Generator[None, None, set[bytes]]:
    """Returns the keys of a new core's objects, in steps."""
    kept: set[bytes] = set()
    pace = Pace()
    for partition in core.partitions.values():
        for queue in partition.queues.values():
            for obj in (queue, *(queue.fair_uses.users.values() if queue.fair_uses is not None else ())):
                kept.add(state_codec.key_of(rm_id, partition.name, obj))
                if pace.is_over():
                    yield
    return kept


def _tombstones(
    emitter: Emitter, objects: Iterable[tuple[str, Primary]], kept: Container[bytes], outputs: list[OutRecord]
) -> Generator[None, None, int]:
    """Appends the tombstones of objects in steps, without those of the ``kept`` keys. Returns how many of the objects
    are allocations.
    """
    allocations = 0
    for count, (partition, obj) in enumerate(objects, 1):
        key = state_codec.key_of(emitter.info.rm_id, partition, obj)
        if key not in kept:
            outputs.append(emitter.tombstone(key))
        if isinstance(obj, Allocation) and not obj.foreign:
            allocations += 1
        if not count % STEP:
            yield
    return allocations
