"""The scheduler's machine: registration, garbage, budgets, time, and requests that by-passed admission."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import pytest
from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics, rm_state_key
from muster_core.model.outcome import (
    EventChange,
    EventDetail,
    EventType,
    Outcome,
    PreemptionPredicateRequested,
    RejectedAsk,
)
from muster_core.model.steps import FEW
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.emit import ITEM_BYTES_MAX, MESSAGE_CHARACTERS_MAX, RESPONSE_BYTES_MAX, Emitter, write_states
from muster_scheduler.machine import SchedulerMachine
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import CONFIG, RM, SECOND_NS, Rig

RECORD_BYTES_MAX = 1 << 20


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    assert made.register().accepted
    made.send(make.node("n1", vcore=10_000, memory=100), make.application("x", "root.c"))
    return made


def _kinds(rig: Rig) -> dict[str, int]:
    found: dict[str, int] = {}
    for key in rig.state:
        kind = key.split(b"/")[1].decode()
        found[kind] = found.get(kind, 0) + 1
    return found


# ---- registration --------------------------------------------------------------------------------------------------


def test_a_registration_is_answered_by_its_id_and_announces_its_queues() -> None:
    rig = Rig()
    answer = rig.register()
    assert (answer.request_id, answer.accepted, list(answer.problems)) == ("r", True, [])
    assert rig.responses == []
    added = [event.objectID for _, event in rig.events if event.eventChangeType == si.EventRecord.ADD]
    assert added == ["root", "root.a", "root.b", "root.b.x", "root.b.y", "root.c"]
    assert _kinds(rig) == {"rm": 1, "reg": 1, "queue": 6}
    assert rig.machine.rms[RM].info.instance_uuid == "uuid-1"


def test_bad_yaml_is_answered_with_its_place_and_changes_nothing(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    before, events = dict(rig.state), len(rig.events)
    answer = rig.register("partitions:\n- queues:\n  - name: root\n    queues:\n    - name: a b\n      zork: 1\n")
    assert not answer.accepted
    assert [(p.severity, p.line, p.column) for p in answer.problems] == [
        (pb.ConfigProblem.ERROR, 6, 7),
        (pb.ConfigProblem.ERROR, 5, 13),
    ]
    assert answer.problems[1].path == "partitions[0].queues[0].queues[0].name"
    assert (rig.state, len(rig.events)) == (before, events)
    rig.send(make.asks(make.allocation("x", "k2", vcore=1)))
    assert rig.keys("new") == ["k", "k2"]


def test_bad_yaml_of_an_unknown_rm_makes_no_rm() -> None:
    rig = Rig()
    assert not rig.register("partitions: [").accepted
    assert rig.state == {}
    assert rig.machine.rms == {}


def test_warnings_come_with_the_acceptance() -> None:
    rig = Rig()
    answer = rig.register("partitions: [{queues: [{name: root, properties: {priority.ofset: one}}]}]")
    assert answer.accepted
    assert [p.severity for p in answer.problems] == [pb.ConfigProblem.WARNING]


def test_an_empty_configuration_is_the_services_default() -> None:
    rig = Rig(default_config="partitions: [{queues: [{name: root, queues: [{name: house}]}]}]")
    assert rig.register("").accepted
    assert list(rig.core.partitions["default"].queues) == ["root", "root.house"]
    rig.rebuild()
    assert list(rig.core.partitions["default"].queues) == ["root", "root.house"]


def test_registering_again_drops_everything_and_goes_on_counting(rig: Rig) -> None:
    rig.send(
        make.asks(make.allocation("x", "k", vcore=1), make.allocation("x", "waits", vcore=99_000)),
        make.asks(make.allocation("", "f", "n1", {"foreign": "static"}, memory=1)),
        make.application("made", "root.c"),
    )
    assert _kinds(rig).keys() == {"rm", "reg", "queue", "node", "app", "ask", "alloc", "why"}
    heard, seen, submitted = len(rig.responses), len(rig.events), rig.core.next_submission
    assert rig.register(
        "partitions: [{queues: [{name: root, submitacl: '*', queues: [{name: c}, {name: new}]}]}]"
    ).accepted
    assert _kinds(rig) == {"rm": 1, "reg": 1, "queue": 3}
    assert rig.machine.rms[RM].info.registrations == 2
    assert rig.machine.rms[RM].info.instance_uuid == "uuid-1"
    assert rig.core.next_submission >= submitted
    rig.send(make.node("n1", vcore=10_000), make.application("x", "root.c"))
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    assert rig.keys("new")[-1] == "k"
    assert len(rig.responses) > heard
    assert len(rig.events) > seen
    rig.check_counters()
    rig.rebuild(random.Random(1))
    assert list(rig.core.partitions["default"].apps) == ["x"]


@pytest.mark.parametrize(
    "removing",
    [make.removal("x"), make.node("n1", si.NodeInfo.DECOMISSION), make.release("x", "k"), make.release("x")],
    ids=["application", "node", "allocation", "all"],
)
def test_an_object_removed_just_before_a_registration_leaves_no_record(rig: Rig, removing: object) -> None:
    """Both are in one batch. The registration drops the state, but the removal's tombstones are still written."""
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    rig.send(removing, make.registration())
    assert _kinds(rig) == {"rm": 1, "reg": 1, "queue": 6}
    rig.rebuild(random.Random(1))
    assert rig.core.partitions["default"].nodes == {}


def test_what_a_registration_replaces_is_freed_at_once(rig: Rig) -> None:
    def living() -> int:
        return sum(type(each).__name__ in ("Node", "Allocation", "Ask") for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = living()
        rig.send(make.asks(*(make.allocation("x", f"k{number}", vcore=900) for number in range(15))))
        assert living() >= before + 15
        rig.register()
        assert living() == before - 1, "the node is gone, too"
    finally:
        gc.enable()


def test_rms_live_side_by_side(rig: Rig) -> None:
    rig.register(rm_id="other/rm")
    rig.send(make.node("n1", vcore=1), make.application("x", "root.c"), rm_id="other/rm")
    assert set(rig.machine.rms) == {RM, "other/rm"}
    before = {key: value for key, value in rig.state.items() if key.startswith(b"rm-1/")}
    rig.register(rm_id="other/rm")
    assert {key: value for key, value in rig.state.items() if key.startswith(b"rm-1/")} == before
    rig.rebuild(random.Random(2))
    assert rig.core.partitions["default"].nodes.keys() == {"n1"}
    assert rig.machine.rms["other/rm"].core.partitions["default"].nodes == {}


# ---- what cannot be read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff" * 50,
        pb.RequestEnvelope(rm_id=RM).SerializeToString(),
        pb.RequestEnvelope(allocation=b"").SerializeToString(),
        pb.RequestEnvelope(rm_id="stranger", allocation=b"").SerializeToString(),
        pb.RequestEnvelope(rm_id="s" * 100_000, allocation=b"").SerializeToString(),
        pb.RequestEnvelope(rm_id=RM, allocation=b"\xff\xff").SerializeToString(),
        pb.RequestEnvelope(rm_id=RM, application=b"\x0a\x05\xff").SerializeToString(),
        pb.RequestEnvelope(rm_id=RM, node=b"\x0b").SerializeToString(),
        pb.RequestEnvelope(rm_id=RM, register=b"\xff").SerializeToString(),
        pb.RequestEnvelope(rm_id=RM, lifecycle=pb.RmLifecycle(state=99)).SerializeToString(),
        pb.RequestEnvelope(rm_id=RM, lifecycle=pb.RmLifecycle()).SerializeToString(),
    ],
    ids=range(12),
)
def test_garbage_goes_to_the_dead_letters_alone(rig: Rig, value: bytes) -> None:
    before = dict(rig.state)
    rig.send(value)
    assert rig.state == before
    ((kept, why),) = rig.dead
    if "left out" not in why:
        assert kept == value
    assert 0 < len(why) < 400
    rig.send(make.asks(make.allocation("x", "k1", vcore=1)), value, make.asks(make.allocation("x", "k2", vcore=1)))
    assert rig.keys("new") == ["k1", "k2"]
    rig.check_counters()


@pytest.mark.parametrize("body", ["register", "configuration", "callback_answers"])
def test_possible_secrets_are_no_part_of_a_dead_letter(rig: Rig, body: str) -> None:
    value = pb.RequestEnvelope(rm_id=RM, request_id="r/7", **{body: b"\xff password: hunter2"}).SerializeToString()
    rig.send(value)
    ((kept, why),) = rig.dead
    assert b"hunter2" not in kept
    assert pb.RequestEnvelope.FromString(kept) == pb.RequestEnvelope(rm_id=RM, request_id="r/7")
    assert f"its {body} is left out" in why
    assert f"{len(value)} bytes" in why


def test_an_rm_of_another_partition_is_not_taken_in() -> None:
    topics = Topics(partitions=8)
    machine = SchedulerMachine(topics, lambda: "u")
    machine.finish_fold(1)
    wrong = (topics.partition_of(RM) + 1) % 8
    value = make.envelope(make.registration()).SerializeToString()
    outputs = machine.apply([Record(topics.requests, wrong, 0, 0, RM.encode(), value)], 2)
    assert [record.topic for record in outputs] == [topics.dead_letters, topics.audit]
    assert machine.rms == {}


def test_random_bytes_never_stop_the_machine(rig: Rig) -> None:
    dice = random.Random(7)
    good = make.envelope(make.asks(make.allocation("x", "k", vcore=1))).SerializeToString()
    for _ in range(2_000):
        value = bytearray(dice.choice([good, make.envelope(make.node("n2", vcore=1)).SerializeToString()]))
        for _ in range(dice.randint(1, 4)):
            value[dice.randrange(len(value))] = dice.randrange(256)
        rig.send(bytes(value))
    rig.send(make.asks(make.allocation("x", "after", vcore=1)))
    assert rig.keys("new")[-1] == "after"
    rig.check_counters()


# ---- what admission would have refused -----------------------------------------------------------------------------


def test_negative_quantities_change_nothing(rig: Rig) -> None:
    before = {key: value for key, value in rig.state.items() if b"/rm/" not in key}
    rig.send(make.asks(make.allocation("x", "k", vcore=-1)))
    rig.send(make.asks(make.allocation("x", "k2", "n1", vcore=5, memory=-1)))
    rig.send(make.old_ask("x", "k3", vcore=-(1 << 63)))
    rig.send(make.node("n2", vcore=-5), make.node("n1", si.NodeInfo.UPDATE, vcore=-5))
    assert rig.keys("rejectedAllocations") == ["k", "k2"]
    assert rig.keys("rejected")[0] == "k3"
    reasons = [item.reason for item in rig.of("rejected") if isinstance(item, si.RejectedNode)]
    assert reasons == [f"node {name} contains negative resources: vcore -5" for name in ("n2", "n1")]
    assert {key: value for key, value in rig.state.items() if b"/rm/" not in key} == before


def test_counts_below_one_and_huge_ones(rig: Rig) -> None:
    rig.send(make.old_ask("x", "negative", -1, vcore=1), make.old_ask("x", "unset", 0, vcore=1))
    assert rig.keys("rejected") == ["negative"]
    assert rig.keys("new") == ["unset"]
    rig.send(make.old_ask("x", "huge", (1 << 31) - 1, vcore=6_000))
    assert rig.core.partitions["default"].apps["x"].asks["huge"].pending == (1 << 31) - 2
    rig.rebuild()
    assert rig.core.partitions["default"].apps["x"].asks["huge"].pending == (1 << 31) - 2


def test_the_largest_quantities_are_only_never_satisfied(rig: Rig) -> None:
    most = (1 << 63) - 1
    rig.send(make.asks(*(make.allocation("x", f"k{n}", memory=most, vcore=most) for n in range(20))))
    rig.send(make.node("n2", memory=most), make.node("n3", memory=most))
    rig.rebuild()
    assert len(rig.core.partitions["default"].apps["x"].asks) == 20


def test_unknown_enum_values(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    rig.send(make.release("x", "k", 77))
    assert [item.terminationType for item in rig.of("released")] == [si.STOPPED_BY_RM]  # type: ignore[attr-defined]
    rig.send(make.node("n2", 77, vcore=1))
    (rejected,) = rig.of("rejected")
    assert rejected.nodeID == "n2"  # type: ignore[attr-defined]


def test_one_key_twice_in_a_message_is_an_ask_and_its_update(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1), make.allocation("x", "k", vcore=2)))
    (made,) = rig.of("new")
    assert made.resourcePerAlloc == make.resource(vcore=2)  # type: ignore[attr-defined]
    rig.send(make.application("y", "root.c"), make.application("y", "root.a"))
    assert [item.applicationID for item in rig.of("rejected")] == ["y"]  # type: ignore[attr-defined]


def test_too_many_resource_types_are_refused_and_leave_none_behind(rig: Rig) -> None:
    many = {f"t{number}": 1 for number in range(300)}
    rig.send(make.node("n2", **many), make.asks(make.allocation("x", "k", **many)))
    assert rig.core.partitions["default"].types.names == ["vcore", "memory"]
    assert rig.keys("rejectedAllocations") == ["k"]
    info = si.NodeInfo(nodeID="n3", action=si.NodeInfo.CREATE, existingAllocations=[make.allocation("x", "e", **many)])
    rig.send(si.NodeRequest(nodes=[info]))
    assert [item.nodeID for item in rig.of("accepted") if isinstance(item, si.AcceptedNode)] == ["n1", "n3"]
    assert [item.nodeID for item in rig.of("rejected")] == ["n2"]  # type: ignore[attr-defined]


def test_existing_allocations_are_on_the_node_that_they_come_with_or_rejected(rig: Rig) -> None:
    existing = [make.allocation("x", "unsaid", vcore=1), make.allocation("x", "here", "n3", vcore=1)]
    existing.append(make.allocation("x", "elsewhere", "n1", vcore=1))
    info = si.NodeInfo(nodeID="n3", action=si.NodeInfo.CREATE, existingAllocations=existing)
    rig.send(si.NodeRequest(nodes=[info]))
    held = rig.core.partitions["default"].apps["x"].allocations
    assert {key: allocation.node_id for key, allocation in held.items()} == {"unsaid": "n3", "here": "n3"}
    (rejected,) = rig.of("rejectedAllocations")
    assert (rejected.allocationKey, "n3" in rejected.reason, "n1" in rejected.reason) == ("elsewhere", True, True)  # type: ignore[attr-defined]


def test_a_path_without_end_is_refused(rig: Rig) -> None:
    rig.send(make.application("deep", "root" + ".d" * 100_000))
    (rejected,) = rig.of("rejected")
    assert "at most 32 levels" in rejected.reason  # type: ignore[attr-defined]
    assert all(len(record.value or b"") < 10_000 for record in rig.written)


# ---- sizes ---------------------------------------------------------------------------------------------------------


def test_no_record_is_larger_than_a_log_takes(rig: Rig) -> None:
    """Items near the limit of a request follow others. Each response stays within the log's limit of a record."""
    large = {"pod": "x" * 900_000}
    rig.send(
        make.asks(
            *(make.allocation("x", f"s{n}", tags={"pod": "y" * 20_000}, vcore=1) for n in range(14)),
            make.allocation("x", "l1", tags=large, vcore=1),
            make.allocation("x", "l2", tags=large, vcore=1),
        )
    )
    rig.send(make.release("x", "s1", message="words " * 150_000), make.release("x", "s2", message="m" * 900_000))
    assert rig.keys("new") == [*(f"s{n}" for n in range(14)), "l1", "l2"]
    messages = [item.message for item in rig.of("released")]  # type: ignore[attr-defined]
    assert messages == [("words " * 200)[:MESSAGE_CHARACTERS_MAX], "(900000 characters)"]
    assert max(len(record.value or b"") for record in rig.written) < RECORD_BYTES_MAX
    assert ITEM_BYTES_MAX < RESPONSE_BYTES_MAX
    rig.check_counters()


def test_a_text_counts_with_its_bytes(rig: Rig) -> None:
    """Rejected asks with names of four bytes a character, then an allocation that fits a record only alone."""
    asked = [make.allocation("\U0001f600" * 256, "\U0001f600" * 253 + f"{n:03}", vcore=1) for n in range(330)]
    rig.send(make.asks(*asked[:325], make.allocation("x", "l", tags={"pod": "y" * 60_000}, vcore=1), *asked[325:]))
    assert rig.keys("new") == ["l"]
    assert len(rig.keys("rejectedAllocations")) == len(asked)
    assert max(len(record.value or b"") for record in rig.written) < 2 * RESPONSE_BYTES_MAX


def test_a_question_about_thousands_of_victims_goes_alone_or_not_at_all(rig: Rig) -> None:
    def asked(question: int, victims: int) -> PreemptionPredicateRequested:
        names = tuple((f"app-{'a' * 36}", f"{number:036}") for number in range(victims))
        return PreemptionPredicateRequested(question, "default", "x", "k", "n", names, 1, 99)

    out = Outcome()
    records: list[OutRecord] = []
    out.facts += [asked(number, 1_000) for number in range(1, 5)]
    out.facts += [asked(5, 8_000), asked(6, 20_000), asked(7, 1)]
    Emitter(rig.topics, rig.machine.rms[RM].info).emit(out, 1, records)
    values = [each.value or b"" for each in records if each.topic == rig.topics.responses]
    told = [
        callbacks_pb2.ToResourceManager.FromString(pb.ResponseEnvelope.FromString(each).response) for each in values
    ]
    questions = [question.id for message in told for question in message.preemption_predicates]
    assert questions == [1, 2, 3, 4, 5, 7]
    assert max(len(record.value or b"") for record in records) < RECORD_BYTES_MAX


def test_a_large_outcome_is_written_in_steps_and_the_rm_s_object_stays_first(rig: Rig) -> None:
    out = Outcome()
    out.facts += [RejectedAsk(f"k{number}", "x", "no", False) for number in range(1_000)]
    for number in range(1_000):
        out.add_user_event(f"k{number}", "x", None, "no", 1)
        out.add_event(EventType.APP, EventChange.SET, EventDetail.NONE, f"k{number}", now_ns=1)
    records: list[OutRecord] = []
    written = [len(records) for _ in Emitter(rig.topics, rig.machine.rms[RM].info).emit_steps(out, 1, records)]
    events = [each for each in records if each.topic == rig.topics.events]
    assert len(written) >= len(events) // 300
    assert max(after - before for before, after in pairwise([0, *written, len(events)])) <= 300
    assert records[0].key == rm_state_key(RM)
    assert [each.key for each in records].count(rm_state_key(RM)) == 1


def test_many_requests_of_one_ask_are_many_steps(rig: Rig) -> None:
    asks = [make.envelope(make.asks(make.allocation("x", f"k{number}", vcore=1))) for number in range(128)]
    records = [
        Record(rig.topics.requests, 0, offset, 0, RM.encode(), each.SerializeToString())
        for offset, each in enumerate(asks, 1_000)
    ]
    partition = next(iter(rig.machine.rms[RM].core.partitions.values()))
    sizes = [0]
    for _ in rig.machine.apply_in_steps(records, rig.now_ns):
        app = partition.apps["x"]
        sizes.append(len(app.asks) + len(app.allocations))
    assert max(after - before for before, after in pairwise(sizes)) <= FEW


def test_asks_of_many_tags_are_written_few_in_a_step(rig: Rig) -> None:
    tags = {f"tag-{number}": "x" * 8 for number in range(4_096)}
    many = [make.allocation("x", f"k{number}", vcore=1 << 30, tags=tags) for number in range(12)]
    rig.send(make.asks(*many))
    partition = next(iter(rig.machine.rms[RM].core.partitions.values()))
    out, records = Outcome(), list[OutRecord]()
    for each in partition.apps["x"].asks.values():
        out.mark_changed(each, partition.name)
    written = [len(records) for _ in write_states(rig.topics, RM, out, records)]
    assert len(records) == 12
    assert max(after - before for before, after in pairwise([0, *written, len(records)])) <= 1


def test_many_answers_make_several_responses(rig: Rig) -> None:
    rig.send(make.asks(*(make.allocation("nobody", f"{n}-{'k' * 200}", vcore=1) for n in range(3_000))))
    responses = [response for _, response in rig.responses if isinstance(response, si.AllocationResponse)]
    assert len(responses) > 2
    assert all(response.ByteSize() < 2 * RESPONSE_BYTES_MAX for response in responses)
    assert len(rig.keys("rejectedAllocations")) == 3_000


def test_a_release_and_a_new_allocation_of_one_key_keep_their_order(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    both = make.release("x", "k")
    both.allocations.append(make.allocation("x", "k", vcore=1))
    rig.send(both)
    fields = [
        field.name
        for _, response in rig.responses
        for field, _ in response.ListFields()  # type: ignore[attr-defined]
        if field.name in ("new", "released")
    ]
    assert fields == ["new", "released", "new"]


# ---- budgets and time ----------------------------------------------------------------------------------------------


def test_the_next_ticks_decide_the_rest_of_a_budget() -> None:
    rig = Rig(budget=3)
    rig.register()
    assert rig.machine.next_deadline_ns() is None
    rig.send(
        make.node("n", vcore=10),
        make.application("x", "root.c"),
        make.asks(*(make.allocation("x", f"k{n}", vcore=1) for n in range(12))),
    )
    assert len(rig.keys("new")) == 3
    steps = []
    while rig.machine.next_deadline_ns() == 0:
        before = len(rig.keys("new"))
        rig.tick()
        steps.append(len(rig.keys("new")) - before)
    assert steps == [3, 3, 1]
    assert rig.keys("new") == [f"k{n}" for n in range(10)]
    assert (rig.machine.next_deadline_ns() or 0) > rig.now_ns  # asks without room may reserve and preempt later
    assert rig.tick() == []


def test_a_rebuilt_machine_goes_on_with_what_was_left_over() -> None:
    rig = Rig(budget=2)
    rig.register()
    rig.send(
        make.node("n", vcore=10),
        make.application("x", "root.c"),
        make.asks(*(make.allocation("x", f"k{n}", vcore=1) for n in range(7))),
    )
    rig.rebuild(random.Random(3))
    rig.settle()
    assert rig.keys("new") == [f"k{n}" for n in range(7)]
    rig.check_counters()


def test_a_clock_set_back_does_not_turn_time_back(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    late_ns = rig.now_ns
    rig.now_ns -= 500 * SECOND_NS
    rig.send(make.asks(make.allocation("x", "k2", vcore=1)))
    assert {event.timestampNano for _, event in rig.events} == {late_ns}
    # after a restart durations continue at once, and events have the time of day
    rig.rebuild()
    rig.settle()
    rig.send(make.release("x", "k"), make.release("x", "k2"))
    told = [event for _, event in rig.events if "was set back by 8.3 minutes" in event.message]
    assert [event.objectID for event in told] == ["root"]
    assert rig.events[-1][1].timestampNano == rig.now_ns
    deadline_ns = rig.machine.next_deadline_ns()
    assert deadline_ns is not None
    assert 0.998 * 30 * SECOND_NS <= deadline_ns - rig.now_ns <= 30 * SECOND_NS
    (rm,) = rig.machine.rms.values()
    assert rm.info.last_decided_ns == late_ns, "recorded time does not turn back"
    rig.now_ns += 31 * SECOND_NS
    rig.settle()
    assert rig.machine.next_deadline_ns() != rig.now_ns
    rig.rebuild()
    rig.settle()
    assert len([event for _, event in rig.events if "was set back" in event.message]) == 1, "the step is reported once"


def test_a_deadline_is_met_after_a_rebuild_too(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    rig.send(make.release("x", "k"))
    rig.wait(10)
    rig.rebuild()
    rig.wait(19.9)
    assert rig.core.partitions["default"].apps["x"].state == "Completing"
    rig.wait(0.2)
    assert rig.core.partitions["default"].apps["x"].state == "Completed"
    rig.rebuild()
    rig.wait(72 * 3600 + 1)
    assert rig.core.partitions["default"].apps == {}
    assert _kinds(rig) == {"rm": 1, "reg": 1, "queue": 6, "node": 1}


def test_an_empty_dynamic_queue_is_swept_after_a_rebuild_too() -> None:
    rig = Rig()
    rig.register(
        "partitions: [{placementrules: [{name: provided, create: true}], queues: [{name: root, submitacl: '*'}]}]"
    )
    rig.send(make.application("x", "root.deep.er"))
    rig.send(make.removal("x"))
    rig.rebuild()
    rig.settle()
    assert "root.deep.er" in rig.core.partitions["default"].queues
    rig.wait(11)
    assert list(rig.core.partitions["default"].queues) == ["root"]
    assert _kinds(rig) == {"rm": 1, "reg": 1, "queue": 1}


def test_invariants_are_looked_at_now_and_then() -> None:
    rig = Rig(check_every_ns=60 * SECOND_NS)
    rig.register()
    assert rig.machine.next_deadline_ns() == rig.now_ns + 60 * SECOND_NS
    rig.core.partitions["default"].capacity.append(1)
    rig.now_ns += 61 * SECOND_NS
    with pytest.raises(AssertionError):
        rig.machine.tick(rig.now_ns)


# ---- life ----------------------------------------------------------------------------------------------------------


def test_a_stopped_rm_gets_no_decisions_until_it_lives_again(rig: Rig) -> None:
    rig.send(make.life(pb.RmLifecycle.DISCONNECTED), make.asks(make.allocation("x", "paused", vcore=1)))
    assert rig.keys("new") == ["paused"]
    rig.send(make.life(pb.RmLifecycle.STOPPED))
    rig.send(make.asks(make.allocation("x", "stopped", vcore=1)), make.asks(make.allocation("y", "bad", vcore=1)))
    assert (rig.keys("new"), rig.keys("rejectedAllocations")) == (["paused"], ["bad"])
    rig.rebuild()
    rig.settle()
    assert rig.keys("new") == ["paused"]
    assert rig.machine.rms[RM].info.life == "STOPPED"
    rig.send(make.life(pb.RmLifecycle.RUNNING))
    assert rig.keys("new") == ["paused", "stopped"]


def test_registering_makes_a_stopped_rm_run(rig: Rig) -> None:
    rig.send(make.life(pb.RmLifecycle.STOPPED))
    rig.register(CONFIG)
    rig.send(make.node("n1", vcore=5), make.application("x", "root.c"), make.asks(make.allocation("x", "k", vcore=1)))
    assert rig.keys("new") == ["k"]


# ---- records that replace records ----------------------------------------------------------------------------------


def test_an_id_used_again_and_removed_in_one_batch_leaves_one_record(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1)))
    rig.send(make.release("x", "k"))
    rig.wait(31)
    rig.send(make.application("x", "root.c"), make.removal("x"))
    finished = [key for key in rig.state if b"/app/" in key]
    assert finished == [b"rm-1/app/default/x-1031"]
    rig.rebuild()
    assert list(rig.core.partitions["default"].apps) == ["x-1031"]


def test_an_adopted_allocation_moved_and_released_in_one_batch_leaves_no_record(rig: Rig) -> None:
    rig.send(make.node("n2", vcore=5), make.asks(make.allocation("x", "k", "n1", vcore=1)))
    rig.send(make.asks(make.allocation("x", "k", "n2", vcore=2)), make.release("x", "k"))
    assert "alloc" not in _kinds(rig)
    rig.rebuild()


def test_the_age_of_an_application_outlives_its_oldest_ask(rig: Rig) -> None:
    """FIFO order is the same after a rebuild, although the ask that gave the application its age is gone."""
    rig.send(make.application("young", "root.c"))
    rig.now_ns += SECOND_NS
    rig.send(make.application("old", "root.c"))
    rig.send(make.asks(make.allocation("old", "k", tags={"creationTime": "5"}, vcore=1)))
    rig.send(make.release("old", "k"))
    rig.rebuild()
    rig.send(make.asks(make.allocation("young", "a", vcore=20_000), make.allocation("old", "b", vcore=20_000)))
    rig.send(make.node("big", vcore=40_000))
    assert rig.keys("new") == ["k", "b", "a"]


def test_a_loss_of_records_renews_the_instance_and_repeats_every_object(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("x", "k", vcore=1), make.allocation("x", "k2", vcore=9999)))
    before = dict(rig.state)
    (rm,) = rig.machine.rms.values()
    instance, events = rm.info.instance_uuid, rm.info.next_event_id
    written = rig.send(pb.Notice(message="records are missing", records_lost=True))
    assert rm.info.instance_uuid != instance
    states = [record.key for record in written if record.topic == rig.topics.state]
    assert states[0] == rm_state_key(make.RM)
    assert {*states} == before.keys(), "a consumer that dropped all objects gets them again"
    assert rig.events[-1][1].message == "records are missing"
    assert rm.info.next_event_id == events + 1, "ids go on"
    rig.rebuild()
    rig.check_counters()
