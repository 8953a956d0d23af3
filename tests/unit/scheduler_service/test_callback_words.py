"""The questions and messages on the callback stream, field by field, and the causes of each."""

from __future__ import annotations

from muster_core.model.outcome import (
    PredicateRequested,
    PreemptionPredicateRequested,
    ScaleUpHint,
    SchedulingState,
    SchedulingStateChanged,
)
from muster_proto.muster.bus.v1 import envelope_pb2 as bus
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import callback_encoding
from muster_scheduler.callback_encoding import TOO_SMALL_MESSAGE, CallbackFact
from unit.scheduler_service.rig import CONFIG, RM, Rig, allocation, application, asks, node

State = si.UpdateContainerSchedulingStateRequest


def _said(fact: CallbackFact) -> pb.ToResourceManager:
    message = pb.ToResourceManager()
    assert callback_encoding.add(message, fact, 20) > 0
    return message


def test_predicates_name_ask_node_and_purpose() -> None:
    for allocate in (True, False):
        (question,) = _said(PredicateRequested(7, "default", "x", "k", "n1", allocate, 99)).predicates
        assert question.args == si.PredicatesArgs(allocationKey="k", nodeID="n1", allocate=allocate)
        asked = (question.id, question.application_id, question.partition_name, question.deadline_ns)
        assert asked == (7, "x", "default", 99)


def test_preemption_predicates_name_the_victims_and_how_many_of_them_go_in_any_case() -> None:
    victims = (("y", "a"), ("z", "b"), ("y", "c"))
    (question,) = _said(PreemptionPredicateRequested(8, "p", "x", "k", "n1", victims, 2, 99)).preemption_predicates
    assert question.args == si.PreemptionPredicatesArgs(
        allocationKey="k", nodeID="n1", preemptAllocationKeys=["a", "b", "c"], startIndex=1
    )
    assert list(question.preempt_application_ids) == ["y", "z", "y"]
    asked = (question.id, question.application_id, question.partition_name, question.deadline_ns)
    assert asked == (8, "x", "p", 99)


def test_scheduling_states_say_where_an_ask_stands_and_why() -> None:
    for state, number in ((SchedulingState.SKIPPED, State.SKIPPED), (SchedulingState.RESERVED, State.RESERVED)):
        (told,) = _said(SchedulingStateChanged("x", "k", state, "why" * 20)).scheduling_states
        assert told == State(applicationID="x", allocationKey="k", state=number, reason=("why" * 20)[:20])


def test_a_cluster_that_is_too_small_is_a_failed_ask() -> None:
    (told,) = _said(ScaleUpHint("default", "x", "k", 5)).scheduling_states
    assert told == State(applicationID="x", allocationKey="k", state=State.FAILED, reason=TOO_SMALL_MESSAGE)


# ---- the machine ---------------------------------------------------------------------------------------------------


def _connected(**wants: bool) -> Rig:
    """A machine whose RM has a callback stream and a node."""
    rig = Rig()
    rig.register(CONFIG)
    note = bus.CallbackStream(connected=True, epoch=1, **wants)
    rig.send(bus.RequestEnvelope(rm_id=RM, callback_stream=note).SerializeToString())
    rig.send(node("n1", vcore=4), application("x", "root.a"), application("y", "root.b.x"))
    return rig


def _states(rig: Rig) -> list[tuple[str, str]]:
    return [(told.allocationKey, State.SchedulingState.Name(told.state)) for told in rig.of("scheduling_states")]


def test_an_ask_over_its_queues_max_is_skipped() -> None:
    rig = _connected(scheduling_states=True)
    rig.send(asks(allocation("y", "k", vcore=13_000)))  # the queue's max is 12
    rig.wait(2)
    assert _states(rig) == [("k", "SKIPPED")]


def test_an_ask_that_waits_gets_a_node_and_is_reserved_and_one_for_which_no_node_will_do_has_failed() -> None:
    rig = _connected(scheduling_states=True)
    rig.send(asks(allocation("x", "runs", vcore=3), allocation("x", "large", vcore=4)))
    rig.wait(5)
    assert ("large", "RESERVED") in _states(rig)
    assert ("large", "FAILED") in _states(rig)


def test_an_rm_without_the_wish_gets_no_messages() -> None:
    rig = _connected(predicates=True)
    rig.send(asks(allocation("y", "k", vcore=13_000)))
    rig.wait(5)
    assert _states(rig) == []


def test_a_question_comes_before_the_allocation_and_the_answer_decides() -> None:
    rig = _connected(predicates=True)
    rig.send(asks(allocation("x", "k", vcore=1)))
    (question,) = rig.of("predicates")
    assert question.args == si.PredicatesArgs(allocationKey="k", nodeID="n1", allocate=True)
    assert rig.keys("new") == []
    answer = pb.FromResourceManager(predicates=[pb.PredicatesAnswer(id=question.id, fits=True)])
    rig.send(bus.RequestEnvelope(rm_id=RM, callback_answers=answer.SerializeToString()).SerializeToString())
    assert rig.keys("new") == ["k"]
