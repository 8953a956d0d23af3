"""The tally counts each kind of change once, in the transaction of the change, and survives restarts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from muster_bus.log import Record
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.muster.v1.callbacks_pb2 import FromResourceManager, PredicatesAnswer
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.machine import SchedulerMachine
from muster_scheduler.metrics import WAIT_SECONDS, Metric, allocated, deciding_seconds
from muster_scheduler.tally import Stopwatch
from muster_state.state_folder import StateFolder
from muster_state.tally import TALLIED, WAIT_LIMITS_US, Tally
from prometheus_client import REGISTRY
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, SECOND_NS, Rig

# Preemption within a leaf, and gangs.
CONFIG = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, properties: {preemption.delay: 1s}}
"""
REMIND_S = 5 * 60


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.register(CONFIG)
    rig.send(make.node("n1", vcore=10_000, memory=100), make.application("app", "root.a"))
    return rig


def tally(rig: Rig) -> Tally:
    return rig.machine.rms[RM].info.tally


def recorded(rig: Rig) -> state_pb2.TallyObject:
    (value,) = (value for key, value in rig.state.items() if key.startswith(f"{RM}/rm/".encode()))
    return state_pb2.RmObject.FromString(value).tally


def counts(rig: Rig) -> dict[str, int]:
    """Return the counts that are not 0, without decisions and all ends (the rig checks those two)."""
    found = {name: getattr(tally(rig), name) for name in TALLIED}
    return {name: count for name, count in found.items() if count and name not in ("decisions", "ended")}


BEGUN = {"nodes_accepted": 1, "applications_accepted": 1}


def test_accepted_and_allocated_objects_count(rig: Rig) -> None:
    assert counts(rig) == BEGUN
    rig.send(make.asks(*(make.allocation("app", f"k{number}", vcore=1_000) for number in range(3))))
    assert counts(rig) == {**BEGUN, "allocated": 3}


def test_pending_asks_do_not_count_until_they_are_allocated(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=20_000)))
    assert counts(rig) == BEGUN
    rig.send(make.node("n2", vcore=30_000))
    assert counts(rig) == {**BEGUN, "allocated": 1, "nodes_accepted": 2}


def test_an_allocation_that_the_rm_reported_is_no_decision(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "theirs", "n1", vcore=1_000)))
    assert rig.keys("new") == ["theirs"]
    assert counts(rig) == {**BEGUN, "reported": 1}


def test_ends_by_the_rm_count_as_released(rig: Rig) -> None:
    rig.send(make.asks(*(make.allocation("app", f"k{number}", vcore=1_000) for number in range(5))))
    rig.send(make.release("app", "k0"), make.release("app", "k1", si.UNKNOWN_TERMINATION_TYPE))
    rig.send(make.release("app", "not-there"), make.release("nor-this", "k2"))
    assert counts(rig) == {**BEGUN, "allocated": 5, "released": 2}
    rig.send(make.removal("app"))
    assert counts(rig) == {**BEGUN, "allocated": 5, "released": 5}


def test_an_allocation_that_could_not_be_started_was_released_and_is_made_again(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    rig.send(make.release("app", "k", si.SCHEDULING_FAILED_ON_RM))
    rig.settle()
    assert counts(rig) == {**BEGUN, "allocated": 2, "released": 1}


def test_a_node_takes_its_allocations_with_it(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    rig.send(make.node("n1", si.NodeInfo.DECOMISSION))
    assert tally(rig).released == 1


def test_a_pending_ask_that_is_taken_back_is_no_released_allocation(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=20_000)))
    rig.send(make.release("app", "k"))
    assert counts(rig) == BEGUN


def test_rejections_count(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("nobody", "k", vcore=1), make.allocation("app", "k", "no-node", vcore=1)))
    rig.send(make.application("other", "root.unknown"), make.node("n1", vcore=1), make.node("nX", si.NodeInfo.UPDATE))
    assert counts(rig) == {**BEGUN, "asks_rejected": 2, "applications_rejected": 1, "nodes_rejected": 2}


def test_a_preemption_counts_once_in_spite_of_reminders(rig: Rig) -> None:
    victims = [make.allocation("app", f"v{number}", vcore=5_000) for number in range(2)]
    for victim in victims:
        victim.preemptionPolicy.allowPreemptSelf = True
    rig.send(make.asks(*victims), make.application("urgent", "root.a"))
    asked = make.allocation("urgent", "k", vcore=5_000)
    asked.priority, asked.preemptionPolicy.allowPreemptOther = 10, True
    rig.send(make.asks(asked))
    rig.wait(60)
    assert tally(rig).preempted == 1, rig.of("released")
    heard = len(rig.of("released"))
    rig.wait(REMIND_S)
    assert len(rig.of("released")) > heard, "the release is repeated"
    (victim,) = {release.allocationKey for release in rig.of("released")}  # type: ignore[attr-defined]
    rig.send(make.release("app", victim, si.PREEMPTED_BY_SCHEDULER))
    assert counts(rig) == {**BEGUN, "applications_accepted": 2, "allocated": 3, "preempted": 1}


def test_a_time_out_counts_at_its_release(rig: Rig) -> None:
    ask = make.old_ask("app", "k", vcore=1_000)
    ask.asks[0].executionTimeoutMilliSeconds = 1_000
    rig.send(ask)
    rig.wait(2)
    rig.wait(REMIND_S)
    assert counts(rig) == {**BEGUN, "allocated": 1, "timed_out": 1}
    rig.send(make.release("app", "k", si.TIMEOUT))
    assert counts(rig) == {**BEGUN, "allocated": 1, "timed_out": 1}


def test_a_replacement_is_one_placeholder_and_two_allocations(rig: Rig) -> None:
    placeholder = make.allocation("app", "p", vcore=1_000)
    placeholder.placeholder, placeholder.taskGroupName = True, "workers"
    real = make.allocation("app", "real", vcore=1_000)
    real.taskGroupName = "workers"
    rig.send(make.asks(placeholder))
    rig.send(make.asks(real))
    rig.settle()
    assert counts(rig) == {**BEGUN, "allocated": 1, "replaced": 1}
    rig.send(make.release("app", "p", si.PLACEHOLDER_REPLACED))
    assert counts(rig) == {**BEGUN, "allocated": 2, "replaced": 1}


def test_questions_and_what_became_of_them(rig: Rig) -> None:
    rig.send(pb.CallbackStream(connected=True, predicates=True, epoch=1))
    rig.send(make.asks(*(make.allocation("app", f"k{number}", vcore=1_000) for number in range(3))))
    assert counts(rig) == {**BEGUN, "questions": 3}
    yes, no, _ = (question.id for question in rig.of("predicates"))  # type: ignore[attr-defined]
    answers = [PredicatesAnswer(id=yes, fits=True), PredicatesAnswer(id=no, reason="a taint")]
    rig.send(FromResourceManager(predicates=answers), FromResourceManager(predicates=answers))
    assert counts(rig) == {**BEGUN, "questions": 3, "questions_refused": 1, "allocated": 1}
    rig.now_ns += 10 * SECOND_NS
    rig.tick()
    assert tally(rig).questions_unanswered == 1
    assert tally(rig).questions_refused == 1


def test_a_registration_again_keeps_the_tally(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    before = counts(rig)
    rig.register(CONFIG)
    assert counts(rig) == {**before, "dropped": 1}
    assert (recorded(rig).allocated, recorded(rig).ended, recorded(rig).dropped) == (1, 1, 1)
    rig.send(make.node("n1", vcore=1_000))
    assert tally(rig).nodes_accepted == 2


def test_undecided_asks_dropped_by_a_registration_do_not_count(rig: Rig) -> None:
    rig.send(make.node("n2", vcore=1), make.registration(CONFIG))
    assert tally(rig).nodes_accepted == 1
    assert recorded(rig).nodes_accepted == 1


def test_two_rms_have_two_tallies(rig: Rig) -> None:
    rig.register(CONFIG, "rm-2")
    rig.send(make.node("n1", vcore=1_000), rm_id="rm-2")
    assert rig.machine.rms["rm-2"].info.tally.nodes_accepted == 1
    assert counts(rig) == BEGUN


def test_a_record_without_a_tally_is_one_that_begins_at_0(rig: Rig) -> None:
    (key,) = (key for key in rig.state if key.startswith(f"{RM}/rm/".encode()))
    old = state_pb2.RmObject.FromString(rig.state[key])
    old.ClearField("tally")
    rig.state[key] = old.SerializeToString()
    rig.rebuild()
    assert tally(rig) == Tally()


def test_allocations_dropped_by_a_registration_count_as_ended(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "theirs", "n1", vcore=1), make.allocation("app", "k", vcore=1_000)))
    # The same batch reports one more, which has no answer.
    rig.send(make.asks(make.allocation("app", "late", "n1", vcore=1)), make.registration(CONFIG))
    assert counts(rig) == {**BEGUN, "allocated": 1, "reported": 2, "dropped": 3}
    assert tally(rig).ended == 3
    rig.rebuild()
    assert tally(rig).ended == 3


@pytest.mark.parametrize("term", [si.TIMEOUT, si.PREEMPTED_BY_SCHEDULER, si.STOPPED_BY_RM])
def test_each_end_counts_once_whatever_the_rm_calls_it(rig: Rig, term: si.TerminationType.ValueType) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    rig.send(make.release("app", "k", term))
    assert (tally(rig).allocated, tally(rig).ended) == (1, 1)


def test_another_size_of_an_allocation_is_neither_an_end_nor_a_report(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    rig.send(make.asks(make.allocation("app", "k", "n1", vcore=2_000)))
    assert (tally(rig).allocated, tally(rig).reported, tally(rig).ended) == (1, 0, 0)


@pytest.mark.parametrize(
    ("counted", "closed"), [((9, 0, 0), (9, 0, 7)), ((1, 0, 0), (1, 1, 0)), ((2, 5, 5), (2, 5, 5))]
)
def test_counts_missing_in_an_earlier_version_are_corrected(
    rig: Rig, counted: tuple[int, int, int], closed: tuple[int, int, int]
) -> None:
    rig.send(make.asks(*(make.allocation("app", f"k{number}", vcore=1_000) for number in range(2))))
    (key,) = (key for key in rig.state if key.startswith(f"{RM}/rm/".encode()))
    old = state_pb2.RmObject.FromString(rig.state[key])
    old.tally.allocated, old.tally.reported, old.tally.ended = counted
    rig.state[key] = old.SerializeToString()
    rig.rebuild()
    assert (tally(rig).allocated, tally(rig).reported, tally(rig).ended) == closed


# ---- exactly once ----------------------------------------------------------------------------------------------------


class Killed(Rig):
    """Sometimes loses a machine before its transaction is committed. The next machine gets the same requests."""

    def __init__(self, dice: random.Random, chance: float) -> None:
        self.dice, self.chance, self.kills = dice, chance, 0
        super().__init__()

    def send(self, *bodies: object, rm_id: str = RM) -> list[object]:  # type: ignore[override]
        values = [make.envelope(body, rm_id).SerializeToString() for body in bodies]
        topic = self.topics.requests
        batch = [Record(topic, 0, number, 0, rm_id.encode(), value) for number, value in enumerate(values)]
        while self.dice.random() < self.chance:
            self.machine.apply(batch, self.now_ns)  # its output is never written
            self.kills += 1
            self.rebuild()
        return self._take(self.machine.apply(batch, self.now_ns))  # type: ignore[return-value]

    def tick(self) -> list[object]:  # type: ignore[override]
        while self.dice.random() < self.chance:
            self.machine.tick(self.now_ns)
            self.kills += 1
            self.rebuild()
        return self._take(self.machine.tick(self.now_ns))  # type: ignore[return-value]


def _life(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    rig.register(CONFIG)
    for number in range(1, 5):
        rig.send(make.application(f"app{number}", "root.a"), make.node(f"n{number}", vcore=9_000))
    for step in range(80):
        app, key, node = f"app{dice.randint(1, 4)}", f"k{dice.randint(1, 20)}", f"n{dice.randint(1, 4)}"
        request: object = dice.choice(
            [
                make.application(app, dice.choice(["root.a", "root.none"])),
                make.node(node, vcore=dice.randint(1, 9) * 1_000),
                make.asks(make.allocation(app, key, vcore=1_000), make.allocation(app, f"x{step}", vcore=500)),
                make.asks(make.allocation(app, f"theirs{step}", node, vcore=100)),
                make.release(app, key),
                make.registration(CONFIG) if dice.random() < 0.1 else make.removal(app),
            ]
        )
        rig.send(request)
        rig.settle()
        rig.now_ns += SECOND_NS


def _answers(rig: Rig, kind: type, field: str) -> int:
    return sum(len(getattr(response, field)) for _, response in rig.responses if isinstance(response, kind))


def _told(rig: Rig) -> dict[str, int]:
    """Return the same counts, computed from the RM's responses."""
    ended = (si.EventRecord.ALLOC_CANCEL, si.EventRecord.ALLOC_NODEREMOVED)
    anew = "the resource manager registered again"  # allocations that go with it are not released
    return {
        "allocated": sum(not key.startswith("theirs") for key in rig.keys("new")),
        "released": sum(event.eventChangeDetail in ended and event.message != anew for _, event in rig.events),
        "asks_rejected": _answers(rig, si.AllocationResponse, "rejectedAllocations"),
        "applications_accepted": _answers(rig, si.ApplicationResponse, "accepted"),
        "applications_rejected": _answers(rig, si.ApplicationResponse, "rejected"),
        "nodes_accepted": _answers(rig, si.NodeResponse, "accepted"),
        "nodes_rejected": _answers(rig, si.NodeResponse, "rejected"),
    }


@pytest.mark.parametrize("seed", range(5))
def test_it_counts_what_was_written_once_however_often_machines_are_lost(seed: int) -> None:
    rig = Killed(random.Random(seed), 0.3)
    _life(rig, seed)
    assert rig.kills > 10
    told = _told(rig)
    assert all(told.values()), told
    assert {name: getattr(recorded(rig), name) for name in told} == told
    assert {name: getattr(tally(rig), name) for name in told} == told


def test_a_follower_has_the_same_tally(rig: Rig) -> None:
    follower = StateFolder()
    follower.build()
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    for offset, record in enumerate(rig.written):
        if record.topic == rig.topics.state:
            follower.fold(Record(record.topic, 0, offset, 0, record.key, record.value))
    assert follower.rms[RM].info.tally == tally(rig) != Tally()


# ---- time ------------------------------------------------------------------------------------------------------------


class Ticking:
    """A clock that advances by a millisecond at each reading."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def test_decisions_and_their_time_are_counted_with_the_rm_that_they_were_for() -> None:
    rig = Rig()
    rig.machine = machine = SchedulerMachine(rig.topics, lambda: "uuid", monotonic_s=Ticking())
    machine.finish_fold(rig.now_ns)
    rig.register(CONFIG)
    registered = replace(tally(rig))
    # Four goes of the input, then the decision and the output.
    assert (registered.decisions, registered.deciding_us) == (1, 5_000)
    rig.send(make.node("n1", vcore=1_000), make.node("n2", vcore=1_000))
    assert (tally(rig).decisions, tally(rig).deciding_us) == (2, 8_000)
    rig.tick()  # it has no effect
    rig.send(make.asks())
    assert (tally(rig).decisions, tally(rig).deciding_us) == (2, 8_000)
    rig.send(make.node("n3", vcore=1_000))
    assert (tally(rig).decisions, tally(rig).deciding_us) == (3, 10_000)
    assert recorded(rig).deciding_us == 10_000


def test_time_that_led_to_nothing_is_forgotten() -> None:
    watch = Stopwatch(Ticking())
    watch.start()
    watch.lap("a")
    watch.lap("b")
    assert watch.take_us("b") == 2_000
    watch.forget()
    assert watch.take_us("a") == 1_000


# ---- Prometheus ------------------------------------------------------------------------------------------------------


def test_prometheus_sees_the_same_counts() -> None:
    rig, rm_id = Rig(), "rm-of-metrics"
    rig.register(CONFIG, rm_id)
    rig.send(make.node("n1", vcore=10_000), make.application("app", "root.a"), rm_id=rm_id)
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)), rm_id=rm_id)
    assert allocated.labels(rm_id)._value.get() == 1
    assert deciding_seconds.labels(rm_id)._value.get() == 0  # the clock of this machine stands still


def test_each_count_has_a_metric_of_its_own() -> None:
    assert len(set(Metric)) == len(TALLIED)
    recorded_fields = {field.name for field in state_pb2.TallyObject.DESCRIPTOR.fields}
    assert recorded_fields == {*TALLIED, "deciding_spread", "wait_spread"}


def test_each_round_is_spread_by_how_long_it_took_and_that_outlives_machines(rig: Rig) -> None:
    assert sum(tally(rig).deciding_spread) == tally(rig).decisions > 0
    tally(rig).spread(5_000_000)
    rig.send(make.asks(make.allocation("app", "k", vcore=1_000)))
    before = list(tally(rig).deciding_spread)
    assert before[5] == 1
    assert list(recorded(rig).deciding_spread) == before[:6]  # without trailing zeros
    folder = StateFolder()
    for number, (key, value) in enumerate(rig.state.items()):
        folder.fold(Record("state", 0, number, 0, key, value))
    folder.build()
    assert folder.rms[RM].info.tally.deciding_spread == before


# ---- from an ask to its allocation -----------------------------------------------------------------------------------


def waits(spread: list[int]) -> list[tuple[float, int]]:
    """Return the counts that are not 0, each with the limit below it, in ms."""
    limits = [0, *WAIT_LIMITS_US]
    return [(limits[place] / 1_000, count) for place, count in enumerate(spread) if count]


def admitted(rig: Rig, ago_ms: int, request: si.AllocationRequest, rm_id: str = RM) -> bytes:
    """Return a request's record whose gateway admitted it so long ago."""
    record = make.envelope(request, rm_id)
    record.admitted_ns = rig.machine.rms[rm_id].info.clock.offset_ns + rig.now_ns - ago_ms * 1_000_000
    return record.SerializeToString()


def test_an_ask_waits_from_its_admission_to_its_allocation(rig: Rig) -> None:
    """In the log before the scheduler reads it, and until there is room."""
    rig.send(admitted(rig, 700, make.asks(make.allocation("app", "behind", vcore=6_000))))
    assert waits(tally(rig).wait_spread) == [(500, 1)], "it was allocated when it was read"
    rig.send(admitted(rig, 3, make.asks(*(make.allocation("app", f"full-{n}", vcore=3_000) for n in range(2)))))
    assert waits(tally(rig).wait_spread) == [(2, 1), (500, 1)], "one has room at once"
    rig.now_ns += 30 * SECOND_NS
    # (A change of the pending ask is no new ask.)
    rig.send(admitted(rig, 3, make.asks(make.allocation("app", "full-1", vcore=3_500))))
    rig.send(make.release("app", "behind"))
    assert waits(tally(rig).wait_spread) == [(2, 1), (500, 1), (20_000, 1)]
    assert tally(rig).allocated == 3


def test_the_waits_are_recorded_and_outlive_machines(rig: Rig) -> None:
    rig.send(admitted(rig, 40, make.asks(make.allocation("app", "k", vcore=1_000))))
    assert waits(list(recorded(rig).wait_spread)) == [(20, 1)]
    folder = StateFolder()
    for number, (key, value) in enumerate(rig.state.items()):
        folder.fold(Record("state", 0, number, 0, key, value))
    folder.build()
    assert folder.rms[RM].info.tally.wait_spread == tally(rig).wait_spread


def test_an_allocation_that_the_rm_reports_has_not_waited(rig: Rig) -> None:
    rig.send(make.asks(make.allocation("app", "runs", node_id="n1", vcore=1_000)))
    assert (tally(rig).reported, sum(tally(rig).wait_spread)) == (1, 0)


def test_prometheus_has_the_waits_as_a_histogram() -> None:
    rig, rm_id = Rig(), "rm-of-waits"
    rig.register(CONFIG, rm_id)
    rig.send(make.node("n1", vcore=10_000), make.application("app", "root.a"), rm_id=rm_id)
    request = make.asks(*(make.allocation("app", f"k{n}", vcore=1_000) for n in range(3)))
    rig.send(admitted(rig, 250, request, rm_id), rm_id=rm_id)

    def value(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"{WAIT_SECONDS}_{name}", {"rm": rm_id, **labels})

    assert [value("bucket", le=limit) for limit in ("0.2", "0.5", "+Inf")] == [0, 3, 3]
    assert (value("count"), value("sum")) == (3, pytest.approx(0.75))
