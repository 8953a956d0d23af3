"""What the RM is asked and told beside SI's streams, in the words of muster.v1.Callbacks (step "emit")."""

from __future__ import annotations

from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

from muster_scheduler.core.outcome import (
    PredicatesAsked,
    PreemptionPredicatesAsked,
    SchedulingState,
    SchedulingStateChanged,
    TooSmallCluster,
)

# As the real core says it when it wants a larger cluster (core-features §2.17).
TOO_SMALL_MESSAGE = "request is waiting for cluster resources become available"
CallbackFact = PredicatesAsked | PreemptionPredicatesAsked | SchedulingStateChanged | TooSmallCluster


def add(message: pb.ToResourceManager, fact: CallbackFact, characters_max: int) -> int:
    """Adds a fact; gives its size in bytes.

    :param characters_max: of a reason.
    """
    match fact:
        case PredicatesAsked():
            question = message.predicates.add(
                id=fact.question,
                application_id=fact.app_id,
                partition_name=fact.partition,
                deadline_ns=fact.due_ns,
            )
            question.args.allocationKey, question.args.nodeID = fact.key, fact.node_id
            question.args.allocate = fact.allocate
            return question.ByteSize()
        case PreemptionPredicatesAsked():
            preempting = message.preemption_predicates.add(
                id=fact.question,
                application_id=fact.app_id,
                partition_name=fact.partition,
                deadline_ns=fact.due_ns,
                preempt_application_ids=[app_id for app_id, _ in fact.victims],
                args=si.PreemptionPredicatesArgs(
                    allocationKey=fact.key,
                    nodeID=fact.node_id,
                    preemptAllocationKeys=[key for _, key in fact.victims],
                    startIndex=fact.least - 1,
                ),
            )
            return preempting.ByteSize()
        case SchedulingStateChanged():
            return _state(message, fact.app_id, fact.key, fact.state, fact.reason[:characters_max])
        case TooSmallCluster():
            return _state(message, fact.app_id, fact.key, SchedulingState.FAILED, TOO_SMALL_MESSAGE)


def _state(message: pb.ToResourceManager, app_id: str, key: str, state: SchedulingState, reason: str) -> int:
    told = message.scheduling_states.add(
        applicationID=app_id,
        allocationKey=key,
        state=int(state),
        reason=reason,
    )
    return told.ByteSize()
