"""The scheduler's machine: one partition of the requests, all of its RMs (steps "ingest", "core", "emit").

For each batch of requests, in numbered steps: 1 decode, 2 apply to the RM's core, 3 cycle the cores that were touched,
4 emit. What cannot be read goes to the dead letters; a bad item in a request is answered by the core; neither stops
the partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import structlog
from google.protobuf.message import DecodeError
from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ERROR, HEADER_ORIGIN, Topics
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_service import event_settings

from muster_scheduler import state_codec
from muster_scheduler.core import invariants
from muster_scheduler.core.commands import (
    AppItem,
    SetCallbacks,
    SetDeciding,
    SetGeneration,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_scheduler.core.config import partition_name
from muster_scheduler.core.external import NOT_CONFIGURED, SetSource, SourceState, UpdateExternal
from muster_scheduler.core.external_books import ExternalEntry, SourceEntry
from muster_scheduler.core.objects import Queue
from muster_scheduler.core.outcome import ConfigurationAnswer, Outcome, Primary
from muster_scheduler.core.placement import is_forced
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.external.checks import name_problem
from muster_scheduler.external.errors import BadDocument
from muster_scheduler.external.gate import Gate
from muster_scheduler.follower import RmInfo, RmState, StateFolder, events_of, new_core
from muster_scheduler.queue_yaml import checksum
from muster_scheduler.service import callback_stream, configuration, generation, ingest, pauses, policy_groups
from muster_scheduler.service.admin_commands import CHANGES_MAX, AdminCommands
from muster_scheduler.service.emit import Emitter, write_states
from muster_scheduler.service.errors import UnknownUser
from muster_scheduler.service.policy_groups import PolicyGroups
from muster_scheduler.service.tally import Stopwatch
from muster_scheduler.service.users import UserGroups

log = structlog.get_logger(__name__)


_LIVES = frozenset(pb.RmLifecycle.State.values()) - {pb.RmLifecycle.UNKNOWN}
_SHOWN_MAX = 256  # characters of an id in a reason
# What may come before the RM has registered: not knowing the RM does not say that it is somebody else's.
_BEFORE_REGISTRATION = frozenset({"register", "external"})
_NO_GATE = Gate()
_MAY_HOLD_SECRETS = frozenset({"register", "configuration", "admin", "callback_answers"})


class _Unreadable(Exception):
    """A record that says nothing to the scheduler; the text says why, without its content."""


class SchedulerMachine:
    """Implements :class:`muster_bus.machine.Machine`.

    :param new_uuid: gives a fresh InstanceUUID (ids are arguments).
    :param configurations: has the text for RMs that register with an empty configuration; a text: it is the default.
    :param max_allocations_batch: see SchedulerSettings.
    :param check_invariants_every_ns: 0: only at recovery.
    :param groups: finds the groups of users who come without.
    :param monotonic_s: for measuring how long decisions take; it decides nothing.
    :param gate: which sources outside of the RMs nothing is decided without; without a life: none, and none is judged.
    """

    def __init__(
        self,
        topics: Topics,
        new_uuid: Callable[[], str],
        configurations: PolicyGroups | str = "",
        max_allocations_batch: int = 2000,
        check_invariants_every_ns: int = 0,
        groups: UserGroups | None = None,
        monotonic_s: Callable[[], float] = lambda: 0.0,
        gate: Gate = _NO_GATE,
    ) -> None:
        self._topics = topics
        self._new_uuid = new_uuid
        self._policy_groups = PolicyGroups(configurations) if isinstance(configurations, str) else configurations
        self._budget = max_allocations_batch
        self._check_every_ns = check_invariants_every_ns
        self._groups = groups if groups is not None else UserGroups()
        self._admin = AdminCommands(self._groups, self._text_for)
        self._gate = gate
        self._checked_ns = 0
        self._watch = Stopwatch(monotonic_s)
        self._folder = StateFolder()
        self._emitters: dict[str, Emitter] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._unexhausted: dict[str, None] = {}
        # Those of which a pause is over that is not on the log yet.
        self._paused: dict[str, None] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._deadline_of: dict[str, int] = {}
        self._now_ns = 0

    @property
    def rms(self) -> dict[str, RmState]:
        """The RMs of the partition, by id (for tests and health)."""
        return self._folder.rms

    # ---- recovery --------------------------------------------------------------------------------------------------

    def fold(self, record: Record) -> None:
        """Takes one record of the state topic."""
        self._folder.take(record)

    def folded(self, now_ns: int) -> None:
        """Everything is collected: builds the cores, and checks them."""
        self._folder.settle()
        for rm_id, state in self._folder.rms.items():
            self._folded_pauses(state.info, max(now_ns, state.info.last_decided_ns))
            state.core.apply(SetDeciding(state.info.decides), state.info.last_decided_ns)
            state.core.activate(now_ns, state.info.last_decided_ns)
            invariants.check(state.core, merges=False)
            self._emitters[rm_id] = Emitter(self._topics, state.info)
            self._now_ns = max(self._now_ns, state.info.last_decided_ns)
            self._unexhausted[rm_id] = None
        self._checked_ns = now_ns = self._time(now_ns)
        for rm_id, state in self._folder.rms.items():
            out = self._outcomes[rm_id] = Outcome()
            state.core.apply(SetCallbacks(callback_stream.policy_of(state.info)), now_ns, out)
        for rm_id in self._folder.external:
            self._give_up_forgotten(rm_id, now_ns)

    def _folded_pauses(self, info: RmInfo, now_ns: int) -> None:
        """What is not decided for since the scheduler was started: what it was not decided for before goes on."""
        if info.is_absent and not info.absent_ns:  # recorded before this was
            info.absent_ns = info.callbacks_since_ns or info.registered_ns
        if pauses.mark_awaited(info, self._awaited(info.rm_id), now_ns):
            self._paused[info.rm_id] = None

    # ---- the flow --------------------------------------------------------------------------------------------------

    def apply(self, records: Sequence[Record], now_ns: int) -> list[OutRecord]:
        """Takes requests in order; gives what one transaction carries."""
        now_ns = self._time(now_ns)
        self._watch.start()
        outputs: list[OutRecord] = []
        touched: dict[str, None] = {}
        for record in records:
            try:
                rm_id = self._take(record, now_ns, outputs)
            except _Unreadable as why:
                outputs.append(self._dead_letter(record, str(why)))
            else:
                touched[rm_id] = None
                self._watch.lap(rm_id)
        return self._decide(touched, now_ns, outputs)

    def tick(self, now_ns: int) -> list[OutRecord]:
        """Decides what time causes, or what the last budget left over."""
        now_ns = self._time(now_ns)
        due = {**dict.fromkeys(self._unexhausted), **dict.fromkeys(self._outcomes)}
        while (first := self._first_deadline()) is not None and first[0] <= now_ns:
            heapq.heappop(self._deadlines)
            del self._deadline_of[first[1]]
            due[first[1]] = None
        self._check_invariants(now_ns)
        self._watch.start()
        return self._decide(due, now_ns, [])

    def next_deadline_ns(self) -> int | None:
        """When ``tick`` is due."""
        if self._unexhausted or self._outcomes:
            return 0
        first = self._first_deadline()
        deadlines = [] if first is None else [first[0]]
        if self._check_every_ns:
            deadlines.append(self._checked_ns + self._check_every_ns)
        return min(deadlines, default=None)

    def _first_deadline(self) -> tuple[int, str] | None:
        """The RM whose deadline comes first, and when."""
        while self._deadlines:
            first = self._deadlines[0]
            if self._deadline_of.get(first[1]) == first[0]:
                return first
            heapq.heappop(self._deadlines)  # it has another one now, or none
        return None

    def _set_deadline(self, state: RmState) -> None:
        """A core's deadline moves only when it takes something or decides: so not all RMs need to be looked at."""
        rm_id, deadline_ns = state.info.rm_id, state.core.next_deadline_ns()
        if deadline_ns is None:
            self._deadline_of.pop(rm_id, None)
        elif self._deadline_of.get(rm_id) != deadline_ns:
            self._deadline_of[rm_id] = deadline_ns
            heapq.heappush(self._deadlines, (deadline_ns, rm_id))

    def _time(self, now_ns: int) -> int:
        """Time does not run backwards, not over a restart on another machine either."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _decide(self, touched: dict[str, None], now_ns: int, outputs: list[OutRecord]) -> list[OutRecord]:
        for rm_id in touched:
            state = self._folder.rms.get(rm_id)
            if state is None:
                if (waiting := self._outcomes.pop(rm_id, None)) is not None:
                    write_states(self._topics, rm_id, waiting, outputs)
                continue
            if rm_id in self._paused:
                del self._paused[rm_id]
                emitter = self._emitters[rm_id]
                outputs += (emitter.rm_record(state.core.next_submission), emitter.registration_record())
            out = state.core.cycle(now_ns, self._budget, self._outcomes.pop(rm_id, None))
            if state.core.exhausted:
                self._unexhausted.pop(rm_id, None)
            else:
                self._unexhausted[rm_id] = None
            self._set_deadline(state)
            if out:
                state.info.last_decided_ns = now_ns
                self._emit(state, out, outputs)
        self._watch.forget()
        return outputs

    def _emit(self, state: RmState, out: Outcome, outputs: list[OutRecord]) -> None:
        rm_id = state.info.rm_id
        took_us = partial(self._watch.take_us, rm_id)
        self._emitters[rm_id].emit(out, state.core.next_submission, outputs, took_us)

    def _check_invariants(self, now_ns: int) -> None:
        if self._check_every_ns and now_ns >= self._checked_ns + self._check_every_ns:
            self._checked_ns = now_ns
            for state in self._folder.rms.values():
                invariants.check(state.core, merges=False)

    # ---- one request -----------------------------------------------------------------------------------------------

    def _take(self, record: Record, now_ns: int, outputs: list[OutRecord]) -> str:
        try:
            envelope = pb.RequestEnvelope.FromString(record.value or b"")
            body = envelope.WhichOneof("body")
            rm_id = envelope.rm_id
            if body is None or not rm_id:
                raise _Unreadable("an envelope without a body or without rm_id")
            if body in _BEFORE_REGISTRATION and self._topics.partition_of(rm_id) != record.partition:
                raise _Unreadable(f"RM {rm_id[:_SHOWN_MAX]!r} belongs to partition {self._topics.partition_of(rm_id)}")
            if body == "external":
                self._hear(rm_id, ingest.external(envelope.external), now_ns)
                return rm_id
            if body == "register":
                request = si.RegisterResourceManagerRequest.FromString(envelope.register)
                self._register(envelope, request, now_ns, outputs)
                return rm_id
            state = self._folder.rms.get(rm_id)
            if state is None:
                raise _Unreadable(f"RM {rm_id[:_SHOWN_MAX]!r} is not registered")
            out = self._outcomes.get(rm_id)
            if out is None:
                out = self._outcomes[rm_id] = Outcome()
            match body:
                case "allocation":
                    asked = ingest.allocations(envelope.allocation, state.info.generation)
                    if state.info.generation_by in generation.TO_BE_SEEN and self._recognised(
                        state, asked, now_ns, out
                    ):
                        asked = ingest.allocations(envelope.allocation, state.info.generation)
                    state.core.apply(asked, now_ns, out)
                case "application":
                    command = ingest.applications(envelope.application)
                    state.core.apply(self._with_groups(state.core, command, now_ns), now_ns, out)
                case "node":
                    nodes = ingest.nodes(envelope.node)
                    if state.info.generation_by in generation.TO_BE_SEEN:
                        self._recognised(state, nodes, now_ns, out)
                    state.core.apply(nodes, now_ns, out)
                case "lifecycle":
                    self._live(state, envelope.lifecycle, now_ns, out, outputs)
                case "configuration":
                    update = si.UpdateConfigurationRequest.FromString(envelope.configuration)
                    self._configure(state, envelope.request_id, update, now_ns, outputs)
                case "admin":
                    emitter = self._emitters[rm_id]
                    self._admin.take(state, envelope.request_id, envelope.admin, emitter, now_ns, out, outputs)
                case "callback_stream":
                    self._connect(state, envelope.callback_stream, now_ns, out, outputs)
                case "callback_answers":
                    message = callbacks_pb2.FromResourceManager.FromString(envelope.callback_answers)
                    state.core.apply(callback_stream.answers(message), now_ns, out)
                    self._admin.dumps_answered(rm_id, message.state_dumps, self._emitters[rm_id], outputs)
                case _:
                    raise _Unreadable(f"a body of the kind {body}, which nobody here takes")
        except DecodeError as error:
            raise _Unreadable("not a RequestEnvelope with an SI request in it") from error
        except BadDocument as error:
            raise _Unreadable(f"external changes: {error}") from error
        return rm_id

    def _recognised(self, state: RmState, command: UpdateAllocations | UpdateNodes, now_ns: int, out: Outcome) -> bool:
        """Whether the request shows which generation of the interface the RM speaks."""
        info = state.info
        found, by = generation.seen(command)
        if not found:
            return False
        info.generation, info.generation_by = found, by
        state.core.apply(SetGeneration(info.generation == generation.PREVIOUS), now_ns, out)
        log.info("generation recognised", rm=info.rm_id, generation=info.generation, by=info.generation_by)
        return True

    def _text_for(self, info: RmInfo, config: str) -> tuple[str, list[pb.ConfigProblem]]:
        """The configuration of an RM that sends this one, and what is to be said of where it comes from."""
        rms, groups = self._folder.rms, self._policy_groups
        text, told = groups.text_for(config, info.policy_group, info.rm_id, rms)
        return text, told or groups.warnings(text, info.policy_group, info.rm_id, rms)

    def _live(self, state: RmState, note: pb.RmLifecycle, now_ns: int, out: Outcome, outputs: list[OutRecord]) -> None:
        if note.state not in _LIVES:
            raise _Unreadable(f"a lifecycle note with the unknown state {note.state}")
        life = pb.RmLifecycle.State.Name(note.state)
        if life == state.info.life:
            return
        state.info.life, state.info.life_ns = life, now_ns
        state.core.apply(SetDeciding(state.info.decides), now_ns, out)
        outputs.append(self._emitters[state.info.rm_id].rm_record(state.core.next_submission))

    def _connect(
        self, state: RmState, note: pb.CallbackStream, now_ns: int, out: Outcome, outputs: list[OutRecord]
    ) -> None:
        """The RM's callback stream was opened, or is gone."""
        info, emitter = state.info, self._emitters[state.info.rm_id]
        if not callback_stream.take_note(info, note, now_ns):
            return
        if pauses.mark_absence(info, now_ns):
            self._paused[info.rm_id] = None
        state.core.apply(SetCallbacks(callback_stream.policy_of(info)), now_ns, out)
        if not note.connected:
            self._admin.callback_gone(info.rm_id, emitter, outputs)
        outputs.append(emitter.rm_record(state.core.next_submission))

    def _with_groups(self, core: SchedulerCore, command: UpdateApplications, now_ns: int) -> UpdateApplications:
        """Adds the groups of users who bring none, as the partition's resolver finds them."""
        resolvers = {name: partition.config.user_group_resolver for name, partition in core.partitions.items()}
        if not any(resolvers.values()):
            return command  # the core gives each user a group of his own
        found: list[AppItem] = []
        for item in command.new:
            resolver = resolvers.get(partition_name(item.partition), "")
            if item.user and not item.groups and resolver:
                try:
                    groups = self._groups.resolve(item.user, (), resolver, now_ns)
                    found.append(replace(item, groups=groups))
                except UnknownUser as error:
                    # What runs already is taken in whatever the directory says.
                    forced = is_forced(item.tags)
                    found.append(item if forced else replace(item, refused=error.reason))
            else:
                found.append(item)
        return UpdateApplications(tuple(found), command.remove)

    def _configure(
        self,
        state: RmState,
        request_id: str,
        update: si.UpdateConfigurationRequest,
        now_ns: int,
        outputs: list[OutRecord],
    ) -> None:
        """Another configuration while running: whole, or not at all; the answer says what changed or why not.

        The extra configuration is taken in either case, as by the real core (core-features §2.9); unless all that the
        RM registered with would be too large to be recorded.
        """
        info, emitter = state.info, self._emitters[state.info.rm_id]
        # What was decided before goes out before: followers take the new configuration on what they then know.
        pending = self._outcomes.pop(info.rm_id, None)
        if pending:
            info.last_decided_ns = now_ns
            self._emit(state, pending, outputs)
        text, found = self._text_for(info, update.config)
        config, told = configuration.judge(text, self._groups)
        told += found + policy_groups.other_group(update.policyGroup, info.policy_group)
        if any(problem.severity == pb.ConfigProblem.ERROR for problem in found):
            config = None
        added = dict(update.extraConfig)
        if problem := configuration.too_large_with(info, text, added):
            told.append(problem)
            config, added = None, {}
        changes: list[str] = []
        accepted = config is not None
        out = Outcome()
        info.extra_config, problems = event_settings.merged(info.extra_config, added)
        told += configuration.event_warnings(problems)
        state.core.apply(events_of(info), now_ns, out)
        emitter.take_settings()
        if config is not None and checksum(text) != checksum(info.config):
            changes = configuration.changes(state.core.config, config)
            state.core.apply(UpdateConfiguration(config), now_ns, out)
            (answer,) = (fact for fact in out.facts if isinstance(fact, ConfigurationAnswer))
            out.facts.remove(answer)
            told += [pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, message=why) for why in answer.obstacles]
            if answer.obstacles:
                accepted, changes = False, []
            else:
                info.config = text
        named, by = generation.said(added, "")
        if named:
            info.generation, info.generation_by = named, by
            state.core.apply(SetGeneration(named == generation.PREVIOUS), now_ns, out)
        told += generation.problems_of(added)
        told += callback_stream.problems_of(added)
        state.core.apply(SetCallbacks(callback_stream.policy_of(info)), now_ns, out)
        pauses.mark_absence(info, now_ns)
        outputs += (emitter.rm_record(state.core.next_submission), emitter.registration_record())
        if out:
            self._outcomes[info.rm_id] = out
        outputs.append(emitter.registration(request_id, told, accepted=accepted, changes=changes[:CHANGES_MAX]))
        log.info("configuration updated", rm=info.rm_id, accepted=accepted, changes=len(changes))

    # ---- sources outside of the RM ---------------------------------------------------------------------------------

    def _hear(self, rm_id: str, commands: Sequence[UpdateExternal | SetSource], now_ns: int) -> None:
        """What a source says, whether its RM is registered or not."""
        if problem := name_problem(rm_id, "rm_id"):
            raise _Unreadable(problem)
        state = self._folder.rms.get(rm_id)
        out = self._outcomes.get(rm_id)
        if out is None:
            out = self._outcomes[rm_id] = Outcome()
        for command in commands:
            if state is not None:
                state.core.apply(command, now_ns, out)
                continue
            for changed in self._folder.books_of(rm_id).apply(command, now_ns):
                out.touch(changed.what, changed.what.partition)
        if state is not None and state.info.awaited:
            if pauses.mark_awaited(state.info, self._awaited(rm_id), now_ns):
                self._paused[rm_id] = None
            if not state.info.awaited:
                log.info("all sources are known", rm=rm_id)
                state.core.apply(SetDeciding(state.info.decides), now_ns, out)

    def _awaited(self, rm_id: str) -> tuple[str, ...]:
        """The sources that have not passed in this life of the informers: nothing is decided without them."""
        books = self._folder.external.get(rm_id)
        found = []
        for partition, source in self._gate.awaited(rm_id):
            entry = books.source(partition, source) if books is not None else None
            if entry is None or not self._gate.is_of_this_start(entry.life) or entry.state is SourceState.LISTING:
                found.append(source)
        return tuple(found)

    def _give_up_forgotten(self, rm_id: str, now_ns: int) -> None:
        """Sources that no informer brings any more: what they said last may be true no more; said once."""
        if not self._gate.life:
            return  # whoever made this machine knows of no informers, neither which there are nor which there are not
        brought = set(self._gate.awaited(rm_id))
        for entry in list(self._folder.books_of(rm_id).all_sources()):
            if (entry.partition, entry.source) in brought or entry.reason == NOT_CONFIGURED:
                continue
            command = SetSource(
                entry.partition, entry.source, entry.life, SourceState.STALE, entry.drains, NOT_CONFIGURED
            )
            log.warning("source without an informer", rm=rm_id, partition=entry.partition, source=entry.source)
            self._hear(rm_id, (command,), now_ns)

    # ---- registration ----------------------------------------------------------------------------------------------

    def _register(
        self,
        envelope: pb.RequestEnvelope,
        request: si.RegisterResourceManagerRequest,
        now_ns: int,
        outputs: list[OutRecord],
    ) -> None:
        rm_id = envelope.rm_id
        known = self._folder.rms.get(rm_id)
        text, found = self._text_for(RmInfo(rm_id, policy_group=request.policyGroup), request.config)
        config, told = configuration.judge(text, self._groups)
        told += found
        extra_config, problems = event_settings.merged({}, request.extraConfig)
        told += configuration.event_warnings(problems)
        info = RmInfo(
            rm_id,
            request.version,
            request.policyGroup,
            dict(request.buildInfo),
            text,
            extra_config,
            life="RUNNING",
            life_ns=now_ns,
            registered_ns=now_ns,
            registrations=1,
        )
        if problem := configuration.too_large(info):
            told.append(problem)
        if config is None or any(each.severity == pb.ConfigProblem.ERROR for each in told):
            emitter = Emitter(self._topics, known.info if known is not None else RmInfo(rm_id))
            outputs.append(emitter.registration(envelope.request_id, told, accepted=False))
            return
        info.generation, info.generation_by = generation.said(request.extraConfig, request.version)
        told += generation.problems_of(request.extraConfig)
        pauses.mark_awaited(info, self._awaited(rm_id), now_ns)
        dropped = self._outcomes.pop(rm_id, None)
        if known is None:
            info.instance_uuid = self._new_uuid()
        else:
            info.registrations = known.info.registrations + 1
            info.instance_uuid = known.info.instance_uuid
            info.next_event_id = known.info.next_event_id
            info.next_response_sequence = known.info.next_response_sequence
            info.next_submission = known.core.next_submission
            info.tally = known.info.tally
            # A pause is the operator's, and about the RM, not about one life of it: an RM that starts anew, by itself
            # or in a crash loop, must not lift it.
            info.held, info.held_reason = known.info.held, known.info.held_reason
            info.held_ns, info.pauses = known.info.held_ns, known.info.pauses
            if known.info.callbacks.epoch:  # its stream ends, the order of the gateways' notes goes on
                info.callbacks = pb.CallbackStream(epoch=known.info.callbacks.epoch)
                info.callbacks_since_ns = now_ns
            self._paused.pop(rm_id, None)  # the registration's record comes with it
            self._admin.callback_gone(rm_id, self._emitters[rm_id], outputs)
        pauses.mark_absence(info, now_ns)
        # What sources said belongs to the RM's id: the new core finds it where the old one left it.
        core = new_core(info, searching=True, config=config, external=self._folder.books_of(rm_id))
        info.last_decided_ns = now_ns
        emitter = Emitter(self._topics, info)
        out = Outcome() if known is None else known.core.end(now_ns)
        core.start(now_ns, out)
        removed: list[tuple[str, Primary]] = []
        if dropped is not None:  # what ended, ended after it came
            out.events[:0] = dropped.events
            out.released += dropped.released
            for place, what, alive in dropped.objects():
                if not alive:
                    removed.append((place, what))
                elif isinstance(what, SourceEntry | ExternalEntry):
                    out.touch(what, place)  # it is no part of what the registration drops
        core.apply(SetCallbacks(callback_stream.policy_of(info)), now_ns, out)
        told += callback_stream.problems_of(info.extra_config)
        # First the RM's object, then the tombstones of what it had, then what it has now.
        outputs += (emitter.rm_record(core.next_submission), emitter.registration_record())
        kept = {
            state_codec.key_of(rm_id, partition.name, queue)
            for partition in core.partitions.values()
            for queue in partition.queues.values()
        }
        # What was decided before this registration in the same batch belongs to the state that now goes; what it had
        # removed has a record still.
        for place, what in [*removed, *(_published(known.core) if known is not None else ())]:
            key = state_codec.key_of(rm_id, place, what)
            if key not in kept:
                outputs.append(emitter.tombstone(key))
        outputs.append(emitter.registration(envelope.request_id, told, accepted=True))
        self._folder.rms[rm_id] = RmState(info, core)
        self._emitters[rm_id] = emitter
        self._outcomes[rm_id] = out
        log.info("rm registered", rm=rm_id, registrations=info.registrations, warnings=len(told))

    def _dead_letter(self, record: Record, why: str) -> OutRecord:
        origin = f"{record.topic}/{record.partition}/{record.offset}"
        log.warning("request to the dead letters", origin=origin, why=why)
        value, left_out = _without_secrets(record.value or b"")
        headers = (*record.headers, (HEADER_ERROR, f"{why}{left_out}".encode()), (HEADER_ORIGIN, origin.encode()))
        return OutRecord(self._topics.dead_letters, record.partition, record.key, value, headers)


def _without_secrets(value: bytes) -> tuple[bytes, str]:
    """A record as people may keep it: an RM's configuration and state may hold secrets, so they are left out.

    Gives the value, and words for what is missing.
    """
    try:
        envelope = pb.RequestEnvelope.FromString(value)
    except DecodeError:
        return value, ""  # nobody's: a gateway writes envelopes
    body = envelope.WhichOneof("body")
    if body not in _MAY_HOLD_SECRETS or (body == "admin" and envelope.admin.WhichOneof("command") != "validate"):
        return value, ""
    size = len(value)
    envelope.ClearField(body)
    return envelope.SerializeToString(), f" (its {body} is left out, as it may hold secrets: {size} bytes in all)"


def _published(core: SchedulerCore) -> list[tuple[str, Primary]]:
    """Every object of a core that has a record on the state topic."""
    found: list[tuple[str, Primary]] = []
    for partition in core.partitions.values():
        name = partition.name
        queues: list[Queue] = list(partition.queues.values())
        found.extend((name, foreign) for foreign in partition.foreign.values())
        found.extend((name, rejected) for rejected in partition.rejected.values())
        for app in partition.apps.values():
            found.extend((name, allocation) for allocation in app.allocations.values())
            found.extend((name, ask) for ask in app.asks.values())
            found.append((name, app))
        found.extend((name, node) for node in partition.nodes.values())
        for queue in reversed(queues):
            found.extend((name, waitlist) for waitlist in queue.waitlists.values())
            found.append((name, queue))
    return [(name, what) for name, what in found if what.published]
