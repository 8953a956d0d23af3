"""Turns an outcome into records: states, numbered responses, events with their ids (step "emit").

One :class:`Emitter` writes for one RM. It owns the two counters that number responses and events. The counters are
recorded with the RM's object in the same transaction, so they survive together with the records that they numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
from muster_bus.contention import Work
from muster_bus.log import Headers, OutRecord
from muster_bus.topics import (
    HEADER_EVENT_ID,
    HEADER_INSTANCE,
    HEADER_RM_ID,
    HEADER_STAMP,
    HEADER_STORE_CAPACITY,
    HEADER_TRACKING,
    Topics,
    rm_state_key,
    state_key,
)
from muster_core.model.outcome import (
    AcceptedApplication,
    AcceptedNode,
    Event,
    EventChange,
    EventType,
    Fact,
    NewAllocation,
    Outcome,
    PredicateRequested,
    PreemptionPredicateRequested,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
    ReleasedAsk,
    ScaleUpHint,
    SchedulingStateChanged,
    UpdatedApplication,
)
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_rest.system_health import OwnerState, SchedulerFacts
from muster_runtime import event_settings
from muster_si.positions import NO_STAMP, Stamp
from muster_state import state_codec
from muster_state.stamps import Stamps
from muster_state.state_folder import RmInfo, encode_registration, encode_rm
from muster_state.tally import Tally

from muster_scheduler import callback_encoding
from muster_scheduler.callback_encoding import application_of
from muster_scheduler.event_wire import MESSAGE_CHARACTERS_MAX, encode_event, shape_wire
from muster_scheduler.metrics import RmCounters
from muster_scheduler.tally import count_fact, count_outcome

log = structlog.get_logger(__name__)

_OWNER_STATES = {
    OwnerState.SERVING: pb.SchedulerHeartbeat.SERVING,
    OwnerState.STARTING: pb.SchedulerHeartbeat.STARTING,
    OwnerState.STUCK: pb.SchedulerHeartbeat.STUCK,
}
# Of one heartbeat.
_PROBLEMS_MAX, _PROBLEM_CHARS = 20, 400
# A response becomes one gRPC message and one log record; this is well under both limits (4 MiB and 1 MiB). Only a
# single larger item makes a larger response, and that response has no other item before it.
RESPONSE_BYTES_MAX = 256 * 1024
ITEM_BYTES_MAX = 64 * 1024
# Limit of a question about thousands of victims; a log record cannot hold a larger one.
QUESTION_BYTES_MAX = 768 * 1024
# Objects, facts or events of one step: about half a millisecond.
_STEP = 64
_STEP_BYTES = 64 << 10

_ALLOCATION, _APPLICATION, _NODE = pb.STREAM_ALLOCATION, pb.STREAM_APPLICATION, pb.STREAM_NODE


T = TypeVar("T")

# Makes an OutRecord without its Python function: each change of a source makes three.
_out_record: Callable[[tuple[str, int, bytes, bytes | None, Headers]], OutRecord] = partial(tuple.__new__, OutRecord)


class Emitter:
    """Turns one RM's outcomes into records of one transaction.

    :param stamps: of the partition.
    """

    def __init__(self, topics: Topics, info: RmInfo, stamps: Stamps | None = None) -> None:
        self._topics, self._stamps = topics, stamps if stamps is not None else Stamps()
        self._partition = topics.partition_of(info.rm_id)
        self._key = info.rm_id.encode()
        self._instance = (HEADER_INSTANCE, info.instance_uuid.encode())
        self._rm = (HEADER_RM_ID, self._key)
        self._counters = RmCounters(info.rm_id)
        self.info = info
        self.reload_settings()

    def emit(self, out: Outcome, next_submission: int, records: list[OutRecord]) -> None:
        """Appends the records of an outcome. The RM's own object comes first, so that followers know it first."""
        for _ in self.emit_steps(out, next_submission, records):
            pass

    def emit_steps(
        self, out: Outcome, next_submission: int, records: list[OutRecord], took_us: Callable[[], int] = lambda: 0
    ) -> Iterator[None]:
        """Does the same in steps of some milliseconds. A small outcome is one step; a large one is emptied meanwhile.

        :param took_us: returns the duration of the outcome so far (µs).
        """
        self._stamps.begin()
        index = len(records)
        more = count_outcome(out)
        yield from write_states(self._topics, self.info.rm_id, out, records)
        states = len(records) - index
        waits_us: list[int] = []
        yield from self._responses(out.facts, more, waits_us, records)
        yield from self._events(out.events, records, self._stamps.now)
        more.deciding_us = took_us()
        self.info.tally.add(more)
        self.info.tally.spread(more.deciding_us)
        # The decision's own time is a part of each ask's wait: the ask and its allocation may have one time.
        waits_us = [wait_us + more.deciding_us for wait_us in waits_us]
        self.info.tally.waited(waits_us)
        self._counters.add(more, waits_us)
        records.insert(index, self.rm_record(next_submission, states))

    def emit_forgotten(self, out: Outcome, records: list[OutRecord]) -> Iterator[None]:
        """Appends the last events of a forgotten RM, and removes the RM from this process's metrics; in steps."""
        yield from self._events(out.events, records)
        self._counters.remove()

    def reload_settings(self) -> None:
        """Reads the RM's event settings again."""
        settings, _ = event_settings.read(self.info.extra_config)
        capacity = (HEADER_STORE_CAPACITY, b"%d" % settings.request_store_capacity)
        self._untracked = (self._rm, self._instance, (HEADER_TRACKING, b"0"), capacity)

    def rm_record(self, next_submission: int, states: int = 0) -> OutRecord:
        """Returns the record of the RM's own object, with the present counters and a stamp of its own.

        :param states: number of the state records that follow it.
        """
        key = rm_state_key(self.info.rm_id)
        self.info.stamp = self._stamps.record()
        return OutRecord(self._topics.state, self._partition, key, encode_rm(self.info, next_submission, states))

    def registration_record(self) -> OutRecord:
        """Returns the record of the RM's registration. It must follow the RM's own object."""
        key = state_key(self.info.rm_id, state_codec.REGISTRATION, "-")
        return OutRecord(self._topics.state, self._partition, key, encode_registration(self.info))

    def registration(
        self,
        request_id: str,
        problems: list[pb.ConfigProblem],
        *,
        accepted: bool,
        changes: Sequence[str] = (),
        policy_group: pb.PolicyGroupMember | None = None,
        exhausted: bool = False,
    ) -> OutRecord:
        """Returns the answer to a registration or a configuration update. It has no sequence: the answer is for the
        gateway that asked.
        """
        result = pb.RegistrationResult(
            request_id=request_id,
            accepted=accepted,
            problems=problems,
            changes=changes,
            policy_group=policy_group,
            exhausted=exhausted,
        )
        envelope = self._envelope(registration=result)
        return OutRecord(self._topics.responses, self._partition, self._key, envelope.SerializeToString())

    def expect_outcome(self) -> None:
        """Gives the next answer the stamp of an outcome that is still to be written."""
        self._stamps.note_step()

    def admin_result(self, result: pb.AdminResult, *, is_change: bool = False) -> OutRecord:
        """Returns the answer to an operator's command. It has no sequence.

        :param is_change: readers can know that they have passed the command: its transaction has a stamp in the state.
        """
        stamp = self._stamps.now if is_change else NO_STAMP
        return admin_result(self._topics, self.info.rm_id, result, stamp)

    def callback(self, message: callbacks_pb2.ToResourceManager, stamp: Stamp = NO_STAMP) -> OutRecord:
        """Returns a record for the RM's callback stream. Takes the next number of the RM's responses.

        :param stamp: as in the state; none where the transaction has none there.
        """
        sequence = self.info.next_response_sequence
        self.info.next_response_sequence = sequence + 1
        message.response_sequence = sequence
        envelope = pb.ResponseEnvelope(
            rm_id=self.info.rm_id,
            sequence=sequence,
            stream=pb.STREAM_CALLBACK,
            response=message.SerializeToString(deterministic=True),
            stamp_before=stamp.before,
            stamp_step=stamp.step,
        )
        return OutRecord(self._topics.responses, self._partition, self._key, envelope.SerializeToString())

    def _envelope(self, **content: Any) -> pb.ResponseEnvelope:
        before, step = self._stamps.now
        return pb.ResponseEnvelope(rm_id=self.info.rm_id, stamp_before=before, stamp_step=step, **content)

    def tombstone(self, key: bytes) -> OutRecord:
        """Returns the record that an object was removed."""
        return OutRecord(self._topics.state, self._partition, key, None)

    # ---- responses -------------------------------------------------------------------------------------------------

    def _responses(
        self, facts: list[Fact], more: Tally, waits_us: list[int], records: list[OutRecord]
    ) -> Iterator[None]:
        """Appends the responses. ``waits_us`` gets how long the ask of each new allocation has waited."""
        allocations = si.AllocationResponse()
        applications = si.ApplicationResponse()
        nodes = si.NodeResponse()
        callbacks = callbacks_pb2.ToResourceManager()
        flush = partial(self._flush, allocations, applications, nodes, callbacks, records)
        uuids = self.info.generation == "previous"  # the current generation has no field for them
        size, offset_ns = 0, self.info.clock.offset_ns
        for fact in _emptied(facts):
            if fact is None:
                yield
                continue
            count_fact(more, waits_us, fact, offset_ns)
            if size > RESPONSE_BYTES_MAX:
                flush()
                size = 0
            match fact:
                case NewAllocation():
                    if allocations.released or allocations.releasedAsks:
                        # A receiver reads `new` before `released`. Flushes, so that the facts' order stays.
                        self._flush_one(_ALLOCATION, allocations, records)
                    size = _add_new(allocations, fact, size, flush, uuids=uuids)
                case ReleasedAllocation():
                    released = allocations.released.add(
                        partitionName=fact.partition,
                        applicationID=application_of(fact.app_id),
                        UUID=fact.uuid if uuids or fact.previous_generation else "",
                        terminationType=int(fact.termination),
                        message=fact.message[:MESSAGE_CHARACTERS_MAX],
                        allocationKey=fact.key,
                    )
                    size += released.ByteSize()
                case ReleasedAsk():
                    # The current generation has one kind of release.
                    asks = allocations.releasedAsks if fact.previous_generation else allocations.released
                    dropped = asks.add(
                        partitionName=fact.partition,
                        applicationID=application_of(fact.app_id),
                        terminationType=int(fact.termination),
                        message=fact.message[:MESSAGE_CHARACTERS_MAX],
                        allocationKey=fact.key,
                    )
                    size += dropped.ByteSize()
                case RejectedAsk():
                    rejected = allocations.rejected if fact.previous_generation else allocations.rejectedAllocations
                    refused = rejected.add(allocationKey=fact.key, applicationID=fact.app_id, reason=fact.reason)
                    size += refused.ByteSize()
                case AcceptedApplication():
                    size += applications.accepted.add(applicationID=fact.app_id).ByteSize()
                case RejectedApplication():
                    size += applications.rejected.add(applicationID=fact.app_id, reason=fact.reason).ByteSize()
                case UpdatedApplication():
                    if allocations.released or allocations.releasedAsks:
                        # The RM gets the releases before the state change that followed them (the gang design,
                        # "Cleanup").
                        self._flush_one(_ALLOCATION, allocations, records)
                    updated = applications.updated.add(
                        applicationID=fact.app_id,
                        state=fact.state,
                        stateTransitionTimestamp=fact.now_ns,
                        message=fact.message,
                    )
                    size += updated.ByteSize()
                case AcceptedNode():
                    size += nodes.accepted.add(nodeID=fact.node_id).ByteSize()
                case RejectedNode():
                    size += nodes.rejected.add(nodeID=fact.node_id, reason=fact.reason).ByteSize()
                case ScaleUpHint() if not self.info.callbacks.scheduling_states:
                    pass  # the RM does not want this
                case PreemptionPredicateRequested():
                    question = callbacks_pb2.ToResourceManager()
                    added = callback_encoding.add(question, fact, MESSAGE_CHARACTERS_MAX)
                    if added > QUESTION_BYTES_MAX:
                        log.warning("question too large to be asked", rm=self.info.rm_id, victims=len(fact.victims))
                        continue  # the question counts as unanswered at its deadline
                    if added > ITEM_BYTES_MAX:
                        flush()
                        size = 0
                    callbacks.MergeFrom(question)
                    size += added
                case PredicateRequested() | SchedulingStateChanged() | ScaleUpHint():
                    size += callback_encoding.add(callbacks, fact, MESSAGE_CHARACTERS_MAX)
        flush()

    def _flush(
        self,
        allocations: si.AllocationResponse,
        applications: si.ApplicationResponse,
        nodes: si.NodeResponse,
        callbacks: callbacks_pb2.ToResourceManager,
        records: list[OutRecord],
    ) -> None:
        self._flush_one(_NODE, nodes, records)
        self._flush_one(_APPLICATION, applications, records)
        self._flush_one(_ALLOCATION, allocations, records)
        if callbacks.ByteSize():
            for question in callbacks.predicates:
                if question.after_response:
                    question.after_response = self.info.last_allocation_response
            records.append(self.callback(callbacks, self._stamps.now))
            callbacks.Clear()

    def _flush_one(
        self,
        stream: pb.StreamKind.ValueType,
        response: si.AllocationResponse | si.ApplicationResponse | si.NodeResponse,
        records: list[OutRecord],
    ) -> None:
        if not response.ByteSize():
            return
        sequence = self.info.next_response_sequence
        self.info.next_response_sequence = sequence + 1
        if stream == _ALLOCATION:
            self.info.last_allocation_response = sequence
        response.responseSequence = sequence
        envelope = self._envelope(
            sequence=sequence, stream=stream, response=response.SerializeToString(deterministic=True)
        )
        records.append(OutRecord(self._topics.responses, self._partition, self._key, envelope.SerializeToString()))
        response.Clear()

    # ---- events ----------------------------------------------------------------------------------------------------

    def _events(self, events: list[Event], records: list[OutRecord], stamp: Stamp = NO_STAMP) -> Iterator[None]:
        """Appends the events. The first one has the stamp of all of them."""
        topic, number, key, rm, instance = self._topics.events, self._partition, self._key, self._rm, self._instance
        untracked, tracked, request = self._untracked, (HEADER_TRACKING, b"1"), EventType.REQUEST
        next_id, offset_ns = self.info.next_event_id, self.info.clock.offset_ns
        stamped: Headers = ((HEADER_STAMP, stamp.header()),) if stamp > NO_STAMP else ()
        for event in _emptied(events):
            if event is None:
                yield
                continue
            if offset_ns:  # an event has the time of day
                event = event._replace(now_ns=event.now_ns + offset_ns)
            value = encode_event(event)
            if event.type is request and event.change is EventChange.NONE:
                # For the shim only (the event history design): the event gets no id of the tracked order.
                records.append(_out_record((topic, number, key, value, (*untracked, *stamped))))
            else:
                headers = ((HEADER_EVENT_ID, b"%d" % next_id), rm, instance, tracked, *stamped)
                next_id += 1
                records.append(_out_record((topic, number, key, value, headers)))
            stamped = ()
        self.info.next_event_id = next_id


def decided_report(topics: Topics, partition: int, position: int, work: Work) -> OutRecord:
    """Returns the record that says that all requests before a position of the partition are decided, and what work
    that was.
    """
    us, size, commit_us = work
    envelope = pb.ResponseEnvelope(decided=position, work_us=us, work_bytes=size, commit_us=commit_us)
    return OutRecord(topics.responses, partition, None, envelope.SerializeToString())


def heartbeat(
    topics: Topics, partition: int, instance: str, session_timeout_s: float, facts: SchedulerFacts
) -> OutRecord:
    """Returns the record that says what a scheduler owns, and what is the matter with it."""
    owned = [
        pb.SchedulerHeartbeat.Owned(
            partition=owner.partition,
            state=_OWNER_STATES[owner.state],
            for_ms=round(owner.for_s * 1000),
            problem=owner.problem[:_PROBLEM_CHARS],
        )
        for owner in facts.owners
        if owner.state in _OWNER_STATES
    ]
    message = pb.SchedulerHeartbeat(
        instance=instance,
        session_timeout_ms=round(session_timeout_s * 1000),
        owned=owned,
        problems=[problem[:_PROBLEM_CHARS] for problem in facts.problems[:_PROBLEMS_MAX]],
        external=[problem[:_PROBLEM_CHARS] for problem in facts.external[:_PROBLEMS_MAX]],
    )
    return OutRecord(topics.responses, partition, None, pb.ResponseEnvelope(heartbeat=message).SerializeToString())


def admin_result(topics: Topics, rm_id: str, result: pb.AdminResult, stamp: Stamp = NO_STAMP) -> OutRecord:
    """Returns the answer to an operator's command. The RM may be unknown."""
    envelope = pb.ResponseEnvelope(rm_id=rm_id, admin=result, stamp_before=stamp.before, stamp_step=stamp.step)
    return OutRecord(topics.responses, topics.partition_of(rm_id), rm_id.encode(), envelope.SerializeToString())


def write_states(topics: Topics, rm_id: str, out: Outcome, records: list[OutRecord]) -> Iterator[None]:
    """Appends the records of an outcome's objects, in steps. Removes the objects from the outcome."""
    topic, number = topics.state, topics.partition_of(rm_id)
    size = 0  # of the step so far: an ask may have thousands of tags
    for changed_object in out.objects_in_steps(_STEP):
        if changed_object is None:
            size = 0
            yield
            continue
        partition, obj, alive = changed_object
        key = state_codec.key_of(rm_id, partition, obj)
        value = state_codec.encode(partition, obj) if alive else None
        records.append(_out_record((topic, number, key, value, ())))
        size += len(value or b"")
        if size >= _STEP_BYTES:
            size = 0
            yield


def _emptied(items: list[T]) -> Iterator[T | None]:
    """Yields the items, and None after each step. A list of several steps is emptied: its items are freed one by
    one.
    """
    if len(items) <= _STEP:
        yield from items
        return
    items.reverse()
    count = 0
    while items:
        yield items.pop()
        count += 1
        if not count % _STEP:
            yield None


def _add_new(
    response: si.AllocationResponse, fact: NewAllocation, size: int, flush: Callable[[], None], *, uuids: bool
) -> int:
    """Adds an allocation to the responses so far, of ``size`` bytes. Returns their new size."""
    added = _new(response, fact, uuids)
    if added > ITEM_BYTES_MAX and size:
        del response.new[-1]  # too large to go with the others
        flush()
        size, added = 0, _new(response, fact, uuids)
    return size + added


def _new(response: si.AllocationResponse, fact: NewAllocation, uuids: bool) -> int:
    allocation, demand = fact.allocation, fact.demand
    previous = demand.previous_generation
    added = response.new.add(
        allocationKey=demand.key,
        allocationTags=demand.tags,
        UUID=allocation.uuid if uuids or previous else "",
        resourcePerAlloc=shape_wire(demand.shape)[0],
        priority=demand.priority,
        nodeID=allocation.node_id,
        applicationID=application_of(allocation.app_id),
        partitionName=fact.partition,
        taskGroupName=demand.task_group,
        placeholder=demand.placeholder,
    )
    if previous:
        return added.ByteSize()  # the previous generation's Allocation has no more fields
    if demand.originator:
        added.originator = True
    if demand.has_preemption_policy:
        added.preemptionPolicy.allowPreemptSelf = demand.allow_preempt_self
        added.preemptionPolicy.allowPreemptOther = demand.allow_preempt_other
    return added.ByteSize()
