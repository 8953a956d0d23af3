"""The machine and an RM that answers predicates: gateways' notes, the registration's settings, restarts, messages."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders import snapshot
from muster_bus.log import Record
from muster_core.model.application import Ask
from muster_core.model.pending_reason import ask_reason
from muster_core.model.reasons import ReasonCode
from muster_core.model.scopes import SECOND_NS, CallbackPolicy
from muster_core.predicates import predicate_calls as questions
from muster_core.predicates.predicate_calls import PredicateCalls
from muster_proto.muster.bus.v1 import envelope_pb2 as bus
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.callback_ingest import policy_of
from muster_scheduler.emit import RESPONSE_BYTES_MAX
from muster_state.state_folder import StateFolder
from unit.scheduler_service.rig import (
    CONFIG,
    RM,
    Rig,
    allocation,
    application,
    asks,
    life,
    node,
    old_ask,
    registration,
    release,
)

GRPC_BYTES_MAX = 4 * 1024 * 1024
RECORD_BYTES_MAX = 1024 * 1024


class AskedRig(Rig):
    """A machine whose RM has a callback stream."""

    def __init__(self, *, nodes: int = 2, wants: dict[str, bool] | None = None, **extra: str) -> None:
        super().__init__()
        self.epoch = 0
        self.wants = wants if wants is not None else {"predicates": True}
        self.register_with(extra)
        self.connect()
        for number in range(nodes):
            self.send(node(f"n{number}", vcore=4))
        self.send(application("x", "root.a"), application("y", "root.b.x"))

    def register_with(self, extra: dict[str, str]) -> bus.RegistrationResult:
        request = registration(CONFIG)
        request.extraConfig.update({key.replace("_", "."): value for key, value in extra.items()})
        self.send(request)
        return self.registrations[-1]

    def note(self, epoch: int, *, connected: bool, **wants: bool) -> None:
        self.send(bus.CallbackStream(connected=connected, epoch=epoch, **wants))

    def connect(self, **wants: bool) -> None:
        self.epoch += 1
        self.note(self.epoch, connected=True, **(wants or self.wants))

    def lose(self) -> None:
        self.epoch += 1
        self.note(self.epoch, connected=False)

    @property
    def questions(self) -> list[Any]:
        return self.of("predicates")

    def answer(self, *answers: tuple[Any, bool], reason: str = "no disk") -> None:
        said = [pb.PredicatesAnswer(id=each.id, fits=fits, reason="" if fits else reason) for each, fits in answers]
        self.send(pb.FromResourceManager(predicates=said))

    def of_core(self) -> PredicateCalls:
        return self.core.partitions["default"].questions

    def policy(self) -> CallbackPolicy:
        return policy_of(self.machine.rms[RM].info)

    def the_ask(self, key: str, app_id: str = "x") -> Ask:
        return self.core.partitions["default"].apps[app_id].asks[key]

    def followed(self) -> StateFolder:
        """Return the state of a follower that has read every state record in order."""
        folder = StateFolder()
        folder.build()
        for offset, record in enumerate(self.written):
            if record.topic == self.topics.state:
                folder.fold(Record(record.topic, 0, offset, 0, record.key, record.value))
        return folder


# ---- notes ---------------------------------------------------------------------------------------------------------


def test_a_stream_asks_and_its_end_begins_the_grace() -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1)))
    assert [question.args.allocationKey for question in rig.questions] == ["k"]
    rig.lose()
    rig.wait(9)
    assert rig.keys("new") == []
    rig.answer((rig.questions[0], True))
    assert rig.keys("new") == ["k"]
    rig.wait(30)
    rig.send(asks(allocation("x", "later", vcore=1)))
    assert rig.keys("new") == ["k", "later"]
    assert len(rig.questions) == 1


def test_notes_of_older_epochs_and_repeated_ones_change_nothing() -> None:
    rig = AskedRig()
    rig.note(9, connected=True, predicates=True)
    since_ns = rig.policy().since_ns
    rig.now_ns += SECOND_NS
    for epoch, connected in ((9, True), (9, False), (8, False), (1, True), (0, False)):
        rig.note(epoch, connected=connected)
        assert rig.policy().connected
        assert rig.policy().since_ns == since_ns
        assert rig.policy().predicates
    rig.note(10, connected=False)
    assert not rig.policy().connected
    assert rig.policy().predicates  # its wishes stay in force during the grace
    rig.note(9, connected=True)
    assert not rig.policy().connected


def test_the_wishes_of_a_newer_stream_replace_the_older_ones() -> None:
    rig = AskedRig(wants={"predicates": True, "preemption_predicates": True, "scheduling_states": True})
    rig.send(asks(allocation("x", "k", vcore=1)))
    rig.connect(scheduling_states=True)
    assert rig.keys("new") == ["k"]
    policy = rig.policy()
    assert (policy.predicates, policy.preemption, policy.states) == (False, False, True)


def test_a_second_note_that_the_stream_is_gone_does_not_make_the_grace_longer() -> None:
    rig = AskedRig()
    rig.lose()
    rig.wait(20)
    rig.lose()
    rig.wait(10)
    rig.send(asks(allocation("x", "k", vcore=1)))
    assert rig.keys("new") == ["k"]


# ---- what the registration says ------------------------------------------------------------------------------------


def test_durations_come_from_the_registration() -> None:
    rig = AskedRig(muster_callbacks_timeout="2s", muster_callbacks_retry="5s", muster_callbacks_grace="0s")
    policy = rig.policy()
    assert (policy.timeout_ns, policy.retry_ns, policy.grace_ns) == (2 * SECOND_NS, 5 * SECOND_NS, 0)
    rig.send(asks(allocation("x", "k", vcore=1)))
    assert rig.questions[0].deadline_ns == rig.now_ns + 2 * SECOND_NS
    rig.lose()
    assert rig.keys("new") == ["k"]  # no grace at all


@pytest.mark.parametrize("key", ["timeout", "retry", "grace"])
@pytest.mark.parametrize("text", ["", "soon", "10", "-1s", "1e9s", "2562047h47m16s", "9999999999999h"])
def test_bad_durations_are_a_warning_and_the_default_holds(key: str, text: str) -> None:
    rig = Rig()
    request = registration(CONFIG)
    request.extraConfig[f"muster.callbacks.{key}"] = text
    rig.send(request)
    result = rig.registrations[-1]
    assert result.accepted
    (problem,) = result.problems
    assert problem.severity == bus.ConfigProblem.WARNING
    assert problem.path == f"extraConfig[muster.callbacks.{key}]"
    assert text in problem.message
    default, found = CallbackPolicy(), policy_of(rig.machine.rms[RM].info)
    assert getattr(found, f"{key}_ns") == getattr(default, f"{key}_ns")


@pytest.mark.parametrize("absent", ["accept", "Wait", " wait ", "maybe", ""])
def test_the_registration_decides_the_rule_without_a_stream(absent: str) -> None:
    rig = Rig()
    request = registration(CONFIG)
    request.extraConfig["muster.callbacks.absent"] = absent
    rig.send(request)
    waits = absent.strip().lower() == "wait"
    assert len(rig.registrations[-1].problems) == (absent in ("maybe", ""))
    rig.send(node("n", vcore=4), application("x", "root.a"), asks(allocation("x", "k", vcore=1)))
    for _ in range(20):
        rig.wait(60)
    assert bool(rig.keys("new")) is not waits
    rig.send(bus.CallbackStream(connected=True, epoch=1))  # this one does not want predicates
    assert rig.keys("new") == ["k"]


def test_the_longest_durations_are_no_number_that_a_record_cannot_hold() -> None:
    rig = AskedRig(muster_callbacks_timeout="1h", muster_callbacks_retry="1h", muster_callbacks_grace="24h")
    rig.send(asks(allocation("x", "k", vcore=1)))
    rig.answer((rig.questions[0], False))
    rig.wait(3600)
    rig.rebuild()
    assert rig.policy().timeout_ns == 3600 * SECOND_NS


def test_a_configuration_update_changes_them_for_what_is_asked_from_then_on() -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1)))
    rig.send(si.UpdateConfigurationRequest(rmID=RM, config=CONFIG, extraConfig={"muster.callbacks.timeout": "1s"}))
    rig.send(asks(allocation("x", "l", vcore=1)))
    first, second = (question.deadline_ns for question in rig.questions)
    assert first == second + 9 * SECOND_NS
    rig.wait(1)
    assert list(rig.the_ask("l").refusals.nodes) == [rig.questions[1].args.nodeID]  # type: ignore[union-attr]
    assert rig.the_ask("k").refusals is None


# ---- restarts ------------------------------------------------------------------------------------------------------


def test_after_a_restart_questions_are_asked_anew_and_answers_to_older_ones_are_nobodys() -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1)))
    (old,) = rig.questions
    rig.rebuild(random.Random(1))
    assert not rig.of_core().open
    rig.answer((old, True))
    assert rig.keys("new") == []
    rig.settle()
    new = rig.questions[-1]
    assert new.id > old.id
    rig.answer((old, False), (new, True))
    assert rig.keys("new") == ["k"]
    rig.check_counters()


def _asked_for_long(rig: AskedRig) -> None:
    rig.wait(2)
    assert rig.the_ask("k").asked is not None


def _refused(rig: AskedRig) -> None:
    rig.answer((rig.questions[0], False))
    assert len(rig.questions) == 3


def _refused_by_all(rig: AskedRig) -> None:
    _refused(rig)
    rig.answer((rig.questions[-1], False))
    assert ask_reason(rig.the_ask("k")).code is ReasonCode.REFUSED_BY_RM  # type: ignore[union-attr]


def _unanswered(rig: AskedRig) -> None:
    rig.wait(10)


def _lost(rig: AskedRig) -> None:
    rig.lose()


@pytest.mark.parametrize("phase", [_asked_for_long, _refused, _refused_by_all, _unanswered, _lost])
def test_in_whatever_phase_a_restart_comes_the_records_say_what_there_is(phase: Any) -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1), allocation("x", "l", vcore=1)))
    rig.answer((rig.questions[-1], True))
    phase(rig)
    before = rig.core.partitions["default"]
    refused = {key: _said_no(ask) for key, ask in before.apps["x"].asks.items()}
    rig.rebuild(random.Random(2))
    after = rig.core.partitions["default"]
    assert {key: _said_no(ask) for key, ask in after.apps["x"].asks.items()} == refused
    assert not rig.of_core().open
    rig.settle()
    for _ in range(12):
        for question in rig.questions:
            rig.answer((question, True))
        rig.wait(10)
    assert sorted(rig.keys("new")) == ["k", "l"]
    assert not rig.of_core().open


def _said_no(ask: Ask) -> object:
    """Return the RM's refusals without unanswered questions, which are sent again after a restart."""
    found = ask.refusals
    return None if found is None else ([each for each in found.nodes.values() if not each.unanswered], found.rounds)


def _refusals(ask: Ask) -> object:
    found = ask.refusals
    return None if found is None else (list(found.nodes.values()), found.rounds, found.until_ns)


def test_of_many_refusals_the_last_ones_are_kept_over_a_restart() -> None:
    rig = AskedRig(nodes=30)
    rig.send(asks(allocation("x", "k", vcore=1)))
    for _ in range(3):
        answered = {question.id for question in rig.questions}
        rig.answer(*((question, False) for question in rig.questions if question.id in answered))
    refused = rig.the_ask("k").refusals
    assert refused is not None
    assert len(refused.nodes) > 8
    kept = list(refused.nodes)[-8:]
    rig.rebuild()
    again = rig.the_ask("k").refusals
    assert again is not None
    assert list(again.nodes) == kept
    assert rig.the_ask("k").apart


def test_the_grace_goes_on_over_a_restart() -> None:
    rig = AskedRig()
    rig.lose()
    rig.wait(29)
    rig.rebuild()
    rig.send(asks(allocation("x", "k", vcore=1)))
    assert rig.questions
    rig.wait(1)
    assert rig.keys("new") == ["k"]


def test_after_the_grace_a_restart_accepts_at_once() -> None:
    rig = AskedRig()
    rig.lose()
    rig.now_ns += 60 * SECOND_NS
    rig.rebuild()
    rig.send(asks(allocation("x", "k", vcore=1)))
    assert rig.keys("new") == ["k"]
    assert not rig.questions


def test_numbers_of_questions_never_come_again() -> None:
    rig = AskedRig()
    dice = random.Random(3)
    for number in range(40):
        rig.send(asks(allocation("x", f"k{number}", vcore=1)))
        fate = dice.random()
        if fate < 0.2:
            rig.rebuild(dice)
            rig.settle()
        elif fate < 0.3:
            rig.register_with({})
            rig.epoch += 1
            rig.connect()
            rig.send(node("n0", vcore=40), application("x", "root.a"))
        elif fate < 0.7:
            rig.answer(*((question, dice.random() < 0.5) for question in rig.questions[-3:]))
    numbers = [question.id for question in rig.questions]
    assert len(numbers) > 40
    assert numbers == sorted(set(numbers))


def test_a_registration_forgets_questions_and_what_the_older_stream_wanted() -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1)))
    (old,) = rig.questions
    rig.register_with({})
    rig.send(node("n0", vcore=4), application("x", "root.a"), asks(allocation("x", "k", vcore=1)))
    assert rig.keys("new") == ["k"]  # no predicates until the stream is open
    rig.answer((old, False))
    rig.epoch += 1
    rig.connect()
    rig.send(asks(allocation("x", "l", vcore=1)))
    assert len(rig.questions) == 2


def test_a_stopped_rm_is_asked_nothing_and_a_yes_from_before_places_nothing() -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1)))
    rig.send(life(bus.RmLifecycle.STOPPED))
    rig.answer((rig.questions[0], True))
    rig.wait(100)
    assert rig.keys("new") == []
    assert len(rig.questions) == 1
    rig.rebuild()
    rig.settle()
    assert len(rig.questions) == 1


# ---- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.source
def test_thousands_of_questions_are_split_into_messages_that_every_hop_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "OPEN_FIRST", 1 << 30)
    rig = AskedRig(nodes=0)
    rig.send(node("n", vcore=1_000_000))
    rig.responses.clear()
    long = "k" * 200
    rig.send(asks(*(allocation("x", f"{long}{number:05}", vcore=1) for number in range(6000))))
    rig.settle()
    messages = [told for _, told in rig.responses if isinstance(told, pb.ToResourceManager)]
    assert len(messages) > 3
    assert max(told.ByteSize() for told in messages) < min(2 * RESPONSE_BYTES_MAX, RECORD_BYTES_MAX)
    keys = [question.args.allocationKey for told in messages for question in told.predicates]
    assert keys == [f"{long}{number:05}" for number in range(6000)]
    numbers = [question.id for told in messages for question in told.predicates]
    assert numbers == sorted(numbers)


def test_a_thousand_long_refusals_make_no_large_records() -> None:
    rig = AskedRig(nodes=200)
    rig.send(asks(allocation("x", "k", vcore=1)))
    for _ in range(12):
        rig.answer(*((question, False) for question in rig.questions[-32:]), reason="r" * 1000)
    key = next(key for key in rig.state if b"/ask/" in key)
    assert len(rig.state[key]) < 8 * 1024


def test_every_question_comes_after_what_made_it_possible_and_before_what_it_makes() -> None:
    rig = AskedRig()
    rig.send(asks(allocation("x", "k", vcore=1)))
    rig.answer((rig.questions[0], True))
    kinds = [
        type(told).__name__
        for _, told in rig.responses
        if getattr(told, "predicates", None) or getattr(told, "new", None)
    ]
    assert kinds == ["ToResourceManager", "AllocationResponse"]
    rig.check_counters()


# ---- followers -----------------------------------------------------------------------------------------------------


def test_a_follower_sees_what_the_scheduler_does() -> None:
    rig = AskedRig(nodes=4)
    dice = random.Random(5)
    for number in range(60):
        fate = dice.random()
        if fate < 0.4:
            rig.send(asks(allocation(dice.choice("xy"), f"k{number}", vcore=dice.randint(1, 2))))
        elif fate < 0.5:
            rig.send(old_ask("x", f"o{number}", 3, vcore=1))
        elif fate < 0.6:
            held = rig.keys("new")
            rig.send(release("x", dice.choice(held))) if held else rig.tick()
        else:
            rig.answer(*((question, dice.random() < 0.6) for question in rig.questions[-6:]))
        rig.wait(dice.choice([0, 0.5, 2, 11]))
        if number % 6:
            continue
        folder = rig.followed()
        core = folder.rms[RM].core
        for app in rig.core.partitions["default"].apps.values():
            for key, ask in app.asks.items():
                theirs = core.partitions["default"].apps[app.app_id].asks[key]
                assert (theirs.pending, theirs.asked) == (ask.pending, ask.asked)
                assert _refusals(theirs) == _refusals(ask)
                if ask.asked is not None or not ask.asking:
                    assert ask_reason(theirs) == ask_reason(ask)
        if not rig.of_core().open:
            theirs, ours = snapshot(core)["default"], snapshot(rig.core)["default"]
            assert {what: theirs[what] for what in ("nodes", "apps")} == {  # type: ignore[index]
                what: ours[what]  # type: ignore[index]
                for what in ("nodes", "apps")
            }
    rig.check_counters()


def test_answers_in_bytes_that_are_none_go_to_the_dead_letters() -> None:
    rig = AskedRig()
    rig.send(bus.RequestEnvelope(rm_id=RM, callback_answers=b"\xff\xff\xff").SerializeToString())
    assert len(rig.dead) == 1
    rig.send(asks(allocation("x", "k", vcore=1)))
    rig.answer((rig.questions[0], True))
    assert rig.keys("new") == ["k"]


def test_another_rms_answers_are_nobodys() -> None:
    rig = AskedRig()
    rig.send(registration(CONFIG, "rm-2"), rm_id="rm-2")
    rig.send(asks(allocation("x", "k", vcore=1)))
    said = pb.FromResourceManager(predicates=[pb.PredicatesAnswer(id=rig.questions[0].id, fits=True)])
    rig.send(said, rm_id="rm-2")
    assert rig.keys("new") == []


def test_preemption_is_asked_in_the_interfaces_words_and_answered_likewise() -> None:
    rig = AskedRig(nodes=1, wants={"preemption_predicates": True})
    rig.send(application("poor", "root.b.x"), application("rich", "root.b.y"))
    victims = [allocation("poor", f"v{number}", vcore=1) for number in range(4)]
    asking = allocation("rich", "p", vcore=1)
    for each in (*victims, asking):
        each.preemptionPolicy.allowPreemptSelf = each.preemptionPolicy.allowPreemptOther = True
    rig.send(asks(*victims))
    rig.send(asks(asking))
    for _ in range(40):
        rig.wait(1)
        if rig.of("preemption_predicates"):
            break
    (question,) = rig.of("preemption_predicates")
    assert question.args.allocationKey == "p"
    assert not rig.of("released")
    answer = pb.PreemptionPredicatesAnswer(
        id=question.id, response=si.PreemptionPredicatesResponse(success=True, index=question.args.startIndex)
    )
    rig.send(pb.FromResourceManager(preemption_predicates=[answer]))
    gone = [each.allocationKey for each in rig.of("released")]
    assert gone
    assert gone == list(question.args.preemptAllocationKeys)[: len(gone)]
