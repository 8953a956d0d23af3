"""An operator's commands: pauses survive restarts and registrations, drains send nothing to the RM, validations apply
nothing, dumps are passed on. Each command is answered and leaves other RMs alone."""

from __future__ import annotations

import random

import pytest
from builders import SECOND_NS
from muster_bus.log import Record
from muster_core import invariants
from muster_core.config.queue_config import INDEPENDENT
from muster_core.external.model import ExternalApplication, ExternalNode, SourceState
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.admin_commands import DUMP_BYTES_MAX, DUMP_WAITS_NS, DUMPS_WAITING_MAX, NO_CALLBACK
from muster_scheduler.end_application import KEY
from muster_state.state_folder import Pause, StateFolder
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import CONFIG, RM, Rig

OK, NOT_FOUND, NOT_POSSIBLE = pb.AdminResult.OK, pb.AdminResult.NOT_FOUND, pb.AdminResult.NOT_POSSIBLE


class AdminRig(Rig):
    """A rig that also keeps the answers to commands and the messages to callback streams."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[pb.AdminResult] = []
        self.asked: list[callbacks_pb2.ToResourceManager] = []

    def _take_response(self, envelope: pb.ResponseEnvelope) -> None:
        if envelope.HasField("admin"):
            assert envelope.sequence == 0
            self.results.append(envelope.admin)
        elif envelope.stream == pb.STREAM_CALLBACK:
            message = callbacks_pb2.ToResourceManager.FromString(envelope.response)
            assert message.response_sequence == envelope.sequence
            self.asked.append(message)
            self.responses.append((envelope.sequence, si.NodeResponse()))  # it takes a place in the order
        else:
            super()._take_response(envelope)

    def command(self, request_id: str = "r", rm_id: str = RM, **command: object) -> pb.AdminResult:
        self.say(request_id, rm_id, **command)
        return self.results[-1]

    def say(self, request_id: str = "r", rm_id: str = RM, **command: object) -> None:
        envelope = pb.RequestEnvelope(rm_id=rm_id, request_id=request_id, admin=pb.AdminCommand(**command))  # type: ignore[arg-type]
        self.send(envelope.SerializeToString(), rm_id=rm_id)

    def callbacks(self, rm_id: str = RM, **note: object) -> None:
        envelope = pb.RequestEnvelope(rm_id=rm_id, callback_stream=pb.CallbackStream(**note))  # type: ignore[arg-type]
        self.send(envelope.SerializeToString(), rm_id=rm_id)

    def answer_dump(self, *answers: callbacks_pb2.StateDumpAnswer, rm_id: str = RM) -> None:
        message = callbacks_pb2.FromResourceManager(state_dumps=answers)
        envelope = pb.RequestEnvelope(rm_id=rm_id, callback_answers=message.SerializeToString())
        self.send(envelope.SerializeToString(), rm_id=rm_id)


@pytest.fixture
def rig() -> AdminRig:
    rig = AdminRig()
    assert rig.register().accepted
    rig.send(make.node("n", vcore=10_000), make.application("x", "root.c"))
    return rig


def drain(node_id: str = "n", partition: str = "", *, schedulable: bool = False) -> pb.AdminCommand.DrainNode:
    return pb.AdminCommand.DrainNode(partition=partition, node_id=node_id, schedulable=schedulable)


def ask(rig: Rig, key: str, rm_id: str = RM) -> None:
    rig.send(make.asks(make.allocation("x", key, vcore=1000)), rm_id=rm_id)


# ---- pause and resume -----------------------------------------------------------------------------------------------


def test_paused_takes_what_is_said_and_decides_nothing_until_resumed(rig: AdminRig) -> None:
    ask(rig, "k1")
    assert rig.command(pause="new racks") == pb.AdminResult(request_id="r", changed=True)
    ask(rig, "k2")
    rig.send(make.node("n2", vcore=1000), make.application("y", "root.c"))
    rig.wait(5)
    assert rig.keys("new") == ["k1"]
    assert [each.nodeID for each in rig.of("accepted") if isinstance(each, si.AcceptedNode)] == ["n", "n2"]
    assert rig.command(pause="other words") == pb.AdminResult(request_id="r")
    assert rig.machine.rms[RM].info.paused_reason == "new racks"
    rig.send(make.release("x", "k1"))
    assert rig.command(resume=True).changed
    assert rig.keys("new") == ["k1", "k2"]
    assert not rig.command(resume=True).changed
    rig.check_counters()


@pytest.mark.parametrize("seed", range(3))
def test_a_pause_survives_the_machine(rig: AdminRig, seed: int) -> None:
    rig.command(pause="new racks")
    ask(rig, "k")
    rig.rebuild(random.Random(seed))
    rig.settle()
    assert (rig.machine.rms[RM].info.paused, rig.machine.rms[RM].info.paused_reason) == (True, "new racks")
    ask(rig, "k2")
    assert rig.keys("new") == []
    assert rig.command(resume=True).changed
    assert sorted(rig.keys("new")) == ["k", "k2"]
    rig.rebuild()
    assert not rig.machine.rms[RM].info.paused


def test_a_pause_survives_the_rm_which_cannot_lift_it(rig: AdminRig) -> None:
    rig.command(pause="crash loop")
    assert rig.register().accepted
    rig.send(make.node("n", vcore=10_000), make.application("x", "root.c"))
    ask(rig, "k")
    rig.rebuild()
    rig.settle()
    assert rig.keys("new") == []
    assert rig.machine.rms[RM].info.paused_reason == "crash loop"
    rig.command(resume=True)
    assert rig.keys("new") == ["k"]


def test_reported_allocations_are_adopted_while_paused(rig: AdminRig) -> None:
    rig.command(pause="")
    rig.send(make.asks(make.allocation("x", "runs", "n", vcore=1000)))
    assert rig.keys("new") == ["runs"]


def test_stopped_and_paused_both_must_end(rig: AdminRig) -> None:
    rig.command(pause="")
    ask(rig, "k")
    rig.send(make.life(pb.RmLifecycle.STOPPED))
    rig.command(resume=True)
    assert rig.keys("new") == []
    rig.command(pause="")
    rig.send(make.life(pb.RmLifecycle.RUNNING))
    assert rig.keys("new") == []
    rig.command(resume=True)
    assert rig.keys("new") == ["k"]


def test_another_rm_notices_nothing(rig: AdminRig) -> None:
    rig.register(rm_id="rm-2")
    for body in (make.node("n", vcore=10_000), make.application("x", "root.c")):
        body.rmID = "rm-2"
        rig.send(body, rm_id="rm-2")
    rig.command(pause="", rm_id=RM)
    ask(rig, "k", rm_id="rm-2")
    assert rig.keys("new") == ["k"]


def test_pauses_that_are_over_are_remembered_whatever_happens(rig: AdminRig) -> None:
    def pauses() -> list[tuple[int, int, str]]:
        return [(whole_s(since_ns), whole_s(until_ns), why) for since_ns, until_ns, why, _ in known()]

    def whole_s(at_ns: int) -> int:
        return (at_ns - start_ns) // SECOND_NS

    def known() -> tuple[Pause, ...]:
        followed = follower(rig).rms[RM].info.pauses
        assert rig.machine.rms[RM].info.pauses == followed
        return followed

    start_ns = rig.now_ns
    rig.wait(10)
    rig.command(pause="new racks")
    rig.wait(20)
    rig.command(resume=True)
    assert pauses() == [(10, 30, "new racks")]
    rig.rebuild()
    rig.settle()
    assert pauses() == [(10, 30, "new racks")]
    rig.command(pause="a slip")
    rig.command(resume=True)
    assert pauses() == [(10, 30, "new racks")], "the RM was paused for a moment"
    rig.command(pause="again")
    rig.wait(5)
    assert rig.register().accepted
    assert pauses() == [(10, 30, "new racks")]
    rig.wait(5)
    rig.command(resume=True)
    assert pauses() == [(10, 30, "new racks"), (30, 40, "again")]
    for number in range(8):
        rig.command(pause=f"p{number}")
        rig.wait(1)
        rig.command(resume=True)
    rig.rebuild()
    assert [why for *_, why in pauses()] == [f"p{number}" for number in range(8)]


def test_a_node_says_that_an_operator_drained_it(rig: AdminRig) -> None:
    def drained() -> bool:
        return rig.machine.rms[RM].core.partitions["default"].nodes["n"].by_operator

    rig.command(drain_node=pb.AdminCommand.DrainNode(node_id="n"))
    assert drained()
    rig.rebuild()
    rig.settle()
    assert drained()
    rig.command(drain_node=pb.AdminCommand.DrainNode(node_id="n", schedulable=True))
    assert not drained()


def follower(rig: AdminRig) -> StateFolder:
    folder = StateFolder()
    folder.build()
    for offset, record in enumerate(rig.written):
        if record.topic == rig.topics.state:
            folder.fold(Record(record.topic, 0, offset, 0, record.key, record.value))
    return folder


def test_a_follower_sees_it(rig: AdminRig) -> None:
    rig.command(pause="new racks")
    info = follower(rig).rms[RM].info
    assert (info.paused, info.paused_reason) == (True, "new racks")


# ---- drain ----------------------------------------------------------------------------------------------------------


def test_a_drained_node_keeps_what_it_has_and_gets_nothing(rig: AdminRig) -> None:
    ask(rig, "k1")
    heard = len(rig.responses)
    assert rig.command(drain_node=drain()) == pb.AdminResult(request_id="r", changed=True, allocations=1)
    assert len(rig.responses) == heard, "the RM did not ask, and gets no answer"
    assert [each.eventChangeDetail for _, each in rig.events][-1] == si.EventRecord.NODE_SCHEDULABLE
    ask(rig, "k2")
    assert rig.keys("new") == ["k1"]
    assert rig.command(drain_node=drain()) == pb.AdminResult(request_id="r", allocations=1)
    rig.rebuild()
    assert rig.command(drain_node=drain(partition="default", schedulable=True)).changed
    assert rig.keys("new") == ["k1", "k2"]
    assert not rig.command(drain_node=drain(schedulable=True)).changed
    rig.check_counters()


def test_a_node_that_a_source_drains_is_drained_by_the_operator_beside_it(rig: AdminRig) -> None:
    lost = {"state": SourceState.STALE, "reason": "away"}
    rig.send(make.said(ExternalNode("n", {"vcore": 9_000}), ExternalNode("own", {"vcore": 9_000}), **lost))
    for node_id in ("n", "own"):
        result = rig.command(drain_node=drain(node_id, schedulable=True))
        assert (result.code, result.changed) == (NOT_POSSIBLE, False)
        assert result.message.endswith("because of the statements of vms")
        assert rig.command(drain_node=drain(node_id)).changed
        assert not rig.command(drain_node=drain(node_id)).changed
    rig.send(make.said(state=SourceState.LIVE))
    ask(rig, "k")
    assert rig.keys("new") == [], "the operator's drain stays in force"
    assert rig.command(drain_node=drain("own", schedulable=True)).changed
    assert rig.keys("new") == ["k"]
    rig.check_counters()


def test_only_the_answer_to_the_operator_is_taken_away(rig: AdminRig) -> None:
    bodies = [
        make.envelope(make.node("n2", vcore=1000)),
        pb.RequestEnvelope(rm_id=RM, request_id="r", admin=pb.AdminCommand(drain_node=drain("n2"))),
        make.envelope(make.node("n2", vcore=1000)),
    ]
    rig.send(*(body.SerializeToString() for body in bodies))
    assert rig.results[-1].changed
    assert [each.nodeID for each in rig.of("accepted") if isinstance(each, si.AcceptedNode)] == ["n", "n2"]
    assert [each.nodeID for each in rig.of("rejected")] == ["n2"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (drain("m"), "node 'm' does not exist in partition default"),
        (drain("n", "gpu"), "partition 'gpu' does not exist"),
        (drain("", ""), "node '' does not exist"),
        (drain("x" * 1000), "does not exist"),
    ],
)
def test_no_such_node(rig: AdminRig, wanted: pb.AdminCommand.DrainNode, said: str) -> None:
    before = dict(rig.state)
    result = rig.command(drain_node=wanted)
    assert result.code == NOT_FOUND
    assert said in result.message
    assert len(result.message) < 400
    assert rig.state == before


# ---- the end of an application ---------------------------------------------------------------------------------------


def end(app_id: str = "x", partition: str = "", reason: str = "") -> pb.AdminCommand.EndApplication:
    return pb.AdminCommand.EndApplication(partition=partition, application_id=app_id, reason=reason)


def declare(rig: AdminRig, said: str = "true") -> pb.RegistrationResult:
    """Changes the registration's extra configuration, and nothing else."""
    request = si.UpdateConfigurationRequest(rmID=RM, config=CONFIG, extraConfig={KEY: said})
    envelope = pb.RequestEnvelope(rm_id=RM, request_id="u", configuration=request.SerializeToString())
    rig.send(envelope.SerializeToString())
    return rig.registrations[-1]


def states(rig: AdminRig) -> list[tuple[str, str]]:
    return [(each.state, each.message) for each in rig.of("updated") if isinstance(each, si.UpdatedApplication)]


@pytest.mark.parametrize("seed", range(3))
def test_an_ended_application_fails_when_its_rm_has_ended_all(rig: AdminRig, seed: int) -> None:
    assert not declare(rig).problems
    ask(rig, "k1")
    ask(rig, "k2")
    rig.send(make.asks(make.allocation("x", "large", vcore=90_000)))
    result = rig.command(end_application=end(reason="stuck, password=hunter2"))
    assert result == pb.AdminResult(request_id="r", changed=True, state="Failing", allocations=2)
    told = [(each.allocationKey, each.terminationType) for each in rig.of("released")]
    assert sorted(told) == [(key, si.TIMEOUT) for key in ("k1", "k2", "large")]
    assert states(rig)[-1] == ("Failing", "ended by an operator: stuck, password=***")
    assert [each.eventChangeDetail for _, each in rig.events][-1] == si.EventRecord.APP_FAILING
    # It is so over a take-over, and to end it once more changes nothing.
    rig.rebuild(random.Random(seed))
    rig.settle()
    told_before = len(rig.of("released"))
    assert rig.command(end_application=end()) == pb.AdminResult(request_id="r", state="Failing", allocations=2)
    assert len(rig.of("released")) == told_before
    app = rig.machine.rms[RM].core.partitions["default"].apps["x"]
    assert app.failed_message == "ended by an operator: stuck, password=***"
    ask(rig, "late")
    assert [each.allocationKey for each in rig.of("rejectedAllocations")] == ["late"]
    rig.send(*(make.release("x", key, si.TIMEOUT) for key in ("k1", "k2")))
    assert states(rig)[-1][0] == "Failed"
    assert rig.command(end_application=end()).code == NOT_FOUND
    rig.check_counters()


def test_an_application_with_nothing_fails_at_once(rig: AdminRig) -> None:
    declare(rig)
    assert rig.command(end_application=end(partition="default")) == pb.AdminResult(
        request_id="r", changed=True, state="Failed"
    )
    assert [state for state, _ in states(rig)][-2:] == ["Failing", "Failed"]
    rig.send(make.application("x", "root.c"))
    ask(rig, "k")
    assert rig.keys("new") == ["k"], "its id is free again"
    rig.check_counters()


def test_an_rm_that_did_not_declare_it_keeps_its_applications(rig: AdminRig) -> None:
    ask(rig, "k")
    for said in (None, "false", "maybe"):
        if said is not None:
            problems = declare(rig, said).problems
            assert [each.path for each in problems] == ([f"extraConfig[{KEY}]"] if said == "maybe" else [])
        before = dict(rig.state)
        result = rig.command(end_application=end())
        assert result.code == NOT_POSSIBLE
        assert f"expected extraConfig[{KEY}] = true" in result.message
        assert rig.state == before
    declare(rig, "True")
    assert rig.command(end_application=end()).changed


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (end("y"), "application 'y' does not exist in partition default, or has ended"),
        (end("x", "gpu"), "partition 'gpu' does not exist"),
        (end("x" * 1000), "does not exist"),
    ],
)
def test_no_such_application(rig: AdminRig, wanted: pb.AdminCommand.EndApplication, said: str) -> None:
    declare(rig)
    result = rig.command(end_application=wanted)
    assert result.code == NOT_FOUND
    assert said in result.message
    assert len(result.message) < 400


def test_what_is_not_the_rms_is_not_ended(rig: AdminRig) -> None:
    declare(rig)
    foreign = make.allocation("", "own", vcore=1000)
    rig.send(make.asks(foreign), make.said(ExternalApplication("batch", "root.c")))
    for app_id, said in ((INDEPENDENT, "the scheduler's own application"), ("batch", "brought by source vms")):
        assert app_id in rig.machine.rms[RM].core.partitions["default"].apps, app_id
        result = rig.command(end_application=end(app_id))
        assert (result.code, result.changed) == (NOT_POSSIBLE, False)
        assert said in result.message


# ---- validate -------------------------------------------------------------------------------------------------------


def update(config: str, **extra: str) -> bytes:
    return si.UpdateConfigurationRequest(rmID=RM, config=config, extraConfig=extra).SerializeToString()


CHANGED = CONFIG.replace("maxapplications: 2", "maxapplications: 3")


def test_a_validated_configuration_is_answered_as_an_update_and_not_applied(rig: AdminRig) -> None:
    before, written = dict(rig.state), len(rig.written)
    result = rig.command(validate=update(CHANGED, **{"log.level": "DEBUG"}))
    assert (result.code, result.accepted, list(result.problems)) == (OK, True, [])
    assert list(result.changes) == ["[default] root.a maxapplications: 2 -> 3"]
    assert rig.state == before
    assert len(rig.written) == written + 2, "the answer and its audit entry, and nothing else"
    assert rig.machine.rms[RM].info.config == CONFIG
    assert "log.level" not in rig.machine.rms[RM].info.extra_config
    rig.send(si.UpdateConfigurationRequest(rmID=RM, config=CHANGED))
    applied = rig.registrations[-1]
    assert (applied.accepted, list(applied.changes)) == (True, list(result.changes))
    assert list(rig.command(validate=update(CHANGED)).changes) == []


def test_changes_fit_a_record_even_with_long_lines(rig: AdminRig) -> None:
    def config(value: str) -> str:
        queues = (f"          - {{name: q{number}, properties: {{p: {value * 190}}}}}\n" for number in range(1_100))
        return CONFIG + "".join(queues)

    rig.register(config("\U0001f600"))
    longest = max(
        len(record.value or b"")
        for record in rig.send(si.UpdateConfigurationRequest(rmID=RM, config=config("\U0001f601")))
    )
    assert len(rig.registrations[-1].changes) == 1_000
    assert rig.registrations[-1].changes[0].startswith("[default] root.q0 properties.p: \U0001f600")
    assert longest < 2**20, "the answer must fit a record"


@pytest.mark.parametrize("where", ["properties", "childtemplate.properties"])
def test_secrets_among_a_queues_properties_are_masked_in_what_changes(rig: AdminRig, where: str) -> None:
    def config(said: str) -> str:
        nested = f"parent: true, childtemplate: {{properties: {said}}}"
        return f"{CONFIG}          - {{name: d, {nested if '.' in where else f'properties: {said}'}}}\n"

    rig.send(si.UpdateConfigurationRequest(rmID=RM, config=config("{plain: w}")))
    told = [
        [f"[default] root.d {where}.db.password: not set -> ***", f"[default] root.d {where}.plain: w -> a://b:***@c"],
        [f"[default] root.d {where}.db.password: *** -> ***", f"[default] root.d {where}.plain: a://b:***@c -> y"],
    ]
    for said, expected in zip(("hunter1, plain: 'a://b:hunter3@c'", "hunter2, plain: y"), told, strict=True):
        changed = config(f"{{db.password: {said}}}")
        assert sorted(rig.command(validate=update(changed)).changes) == expected
        rig.send(si.UpdateConfigurationRequest(rmID=RM, config=changed))
        assert sorted(rig.registrations[-1].changes) == expected


@pytest.mark.parametrize(
    "config",
    [
        "partitions: [",
        CONFIG.replace("vcore: 12", "vcore: twelve"),
        CONFIG.replace("name: default", "name: other"),
        CONFIG.replace("- {name: c}", "- {name: c, queues: [{name: d}]}"),
        CONFIG.replace("- name: default\n", "- name: default\n    usergroupresolver: {type: ldap}\n"),
    ],
)
def test_validation_refuses_like_an_update_with_the_same_message(rig: AdminRig, config: str) -> None:
    result = rig.command(validate=update(config))
    rig.send(si.UpdateConfigurationRequest(rmID=RM, config=config))
    applied = rig.registrations[-1]
    assert not applied.accepted
    assert not result.accepted
    assert list(result.problems) == list(applied.problems)
    assert any(each.severity == pb.ConfigProblem.ERROR for each in result.problems)
    assert list(result.changes) == []


# ---- the RM's own dump ----------------------------------------------------------------------------------------------


def test_without_a_callback_stream_that_dumps_there_is_none(rig: AdminRig) -> None:
    assert rig.command(dump_rm_state=True) == pb.AdminResult(request_id="r", code=NOT_POSSIBLE, message=NO_CALLBACK)
    rig.callbacks(connected=True, predicates=True, epoch=1)
    assert rig.command(dump_rm_state=True).message == NO_CALLBACK
    assert rig.asked == []


def test_the_rm_is_asked_and_its_answer_is_the_operators(rig: AdminRig) -> None:
    rig.callbacks(connected=True, state_dump=True, epoch=1)
    rig.say("gateway/1", dump_rm_state=True)
    rig.say("gateway/2", dump_rm_state=True)
    assert rig.results == []
    assert [each.id for message in rig.asked for each in message.state_dumps] == ["gateway/1", "gateway/2"]
    answer = callbacks_pb2.StateDumpAnswer
    rig.answer_dump(answer(id="gateway/2", json='{"a":1}'), answer(id="nobody's", json="{}"))
    rig.answer_dump(answer(id="gateway/1", error="not now"))
    rig.answer_dump(answer(id="gateway/1", json="{}"), answer(id="gateway/2", json="{}"))
    assert rig.results == [
        pb.AdminResult(request_id="gateway/2", json='{"a":1}'),
        pb.AdminResult(request_id="gateway/1", code=NOT_POSSIBLE, message="the resource manager says: not now"),
    ]
    ask(rig, "k")
    rig.rebuild()
    ask(rig, "k2")
    rig.check_counters()


def test_the_number_of_a_question_survives_the_machine(rig: AdminRig) -> None:
    rig.callbacks(connected=True, state_dump=True, epoch=1)
    rig.say("a", dump_rm_state=True)
    rig.rebuild()
    ask(rig, "k")
    rig.check_counters()


def test_another_rms_answer_is_not_taken(rig: AdminRig) -> None:
    rig.register(rm_id="rm-2")
    rig.callbacks(connected=True, state_dump=True, epoch=1)
    rig.say("a", dump_rm_state=True)
    rig.answer_dump(callbacks_pb2.StateDumpAnswer(id="a", json="{}"), rm_id="rm-2")
    assert rig.results == []


def test_too_large_an_answer_is_none(rig: AdminRig) -> None:
    rig.callbacks(connected=True, state_dump=True, epoch=1)
    rig.say("a", dump_rm_state=True)
    rig.answer_dump(callbacks_pb2.StateDumpAnswer(id="a", json='"' + "ü" * (DUMP_BYTES_MAX // 2) + '"'))
    assert rig.results[-1].code == NOT_POSSIBLE
    assert "524,290 bytes, expected at most 524,288" in rig.results[-1].message


def test_a_stream_that_ends_fails_the_waiting_dumps(rig: AdminRig) -> None:
    rig.callbacks(connected=True, state_dump=True, epoch=1)
    rig.say("a", dump_rm_state=True)
    rig.callbacks(connected=False, epoch=2)
    assert (rig.results[-1].request_id, rig.results[-1].code) == ("a", NOT_POSSIBLE)
    assert "ended before it answered" in rig.results[-1].message
    rig.callbacks(connected=True, state_dump=True, epoch=3)
    rig.say("b", dump_rm_state=True)
    rig.register()
    assert (rig.results[-1].request_id, rig.results[-1].code) == ("b", NOT_POSSIBLE)
    assert rig.machine._admin._dumps == {}


def test_an_rm_that_never_answers_leaks_nothing(rig: AdminRig) -> None:
    rig.callbacks(connected=True, state_dump=True, epoch=1)
    for number in range(DUMPS_WAITING_MAX):
        rig.say(f"r{number}", dump_rm_state=True)
    assert rig.results == []
    refused = rig.command("over", dump_rm_state=True)
    assert refused.code == NOT_POSSIBLE
    assert "8 dumps of the resource manager are waited for already" in refused.message
    for round_ in range(50):
        rig.now_ns += DUMP_WAITS_NS
        rig.say(f"later{round_}", dump_rm_state=True)
    assert len(rig.asked) == DUMPS_WAITING_MAX + 50
    assert sum(map(len, rig.machine._admin._dumps.values())) == 1


# ---- what nobody knows ----------------------------------------------------------------------------------------------


def test_a_command_of_a_later_version_is_answered(rig: AdminRig) -> None:
    before = dict(rig.state)
    result = rig.command()
    assert result.code == NOT_POSSIBLE
    assert "does not know the command" in result.message
    assert rig.state == before


def test_unreadable_commands_and_unknown_rms_are_dead_letters(rig: AdminRig) -> None:
    before = dict(rig.state)
    rig.say(validate=b"\xff\xff")
    rig.say(rm_id="nobody", pause="")
    unreadable, unknown = (why for _, why in rig.dead)
    assert unreadable.startswith("not a RequestEnvelope with an SI request in it (its admin is left out")
    assert unknown == "RM 'nobody' is not registered"
    assert rig.results == []
    assert rig.state == before
    invariants.check(rig.core)
