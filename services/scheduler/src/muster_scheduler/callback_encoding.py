"""Encodes questions and messages for the RM's callback stream as muster.v1.Callbacks has them (step "emit")."""

from __future__ import annotations

from muster_core.config.queue_config import INDEPENDENT
from muster_core.model.outcome import (
    PredicateRequested,
    PreemptionPredicateRequested,
    ScaleUpHint,
    SchedulingState,
    SchedulingStateChanged,
)
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si

# YuniKorn's text when it wants a larger cluster. Used where no reason is recorded.
TOO_SMALL_MESSAGE = "request is waiting for cluster resources become available"
# A placeholder until the response has its number. The RM must answer with the knowledge of all earlier messages.
AFTER_THE_LAST = 1
CallbackFact = PredicateRequested | PreemptionPredicateRequested | SchedulingStateChanged | ScaleUpHint


def add(message: pb.ToResourceManager, fact: CallbackFact, characters_max: int) -> int:
    """Adds a fact to a message. Returns the fact's size in bytes.

    :param characters_max: limit of a reason.
    """
    match fact:
        case PredicateRequested():
            question = message.predicates.add(
                id=fact.question,
                application_id=application_of(fact.app_id),
                partition_name=fact.partition,
                deadline_ns=fact.due_ns,
                after_response=AFTER_THE_LAST if fact.after_last else 0,
            )
            question.args.allocationKey, question.args.nodeID = fact.key, fact.node_id
            question.args.allocate = fact.allocate
            return question.ByteSize()
        case PreemptionPredicateRequested():
            preempting = message.preemption_predicates.add(
                id=fact.question,
                application_id=application_of(fact.app_id),
                partition_name=fact.partition,
                deadline_ns=fact.due_ns,
                preempt_application_ids=[application_of(app_id) for app_id, _ in fact.victims],
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
        case ScaleUpHint():
            return _state(
                message,
                fact.app_id,
                fact.key,
                SchedulingState.FAILED,
                fact.reason[:characters_max] or TOO_SMALL_MESSAGE,
            )


def application_of(app_id: str) -> str:
    """Returns the application's id for the RM; "" for an independent allocation."""
    return "" if app_id == INDEPENDENT else app_id


def _state(message: pb.ToResourceManager, app_id: str, key: str, state: SchedulingState, reason: str) -> int:
    report = message.scheduling_states.add(
        applicationID=application_of(app_id),
        allocationKey=key,
        state=int(state),
        reason=reason,
    )
    return report.ByteSize()
