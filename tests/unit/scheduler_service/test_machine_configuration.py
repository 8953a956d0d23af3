"""A new configuration while the RM runs applies as a whole or not at all. The answer lists the changes."""

from __future__ import annotations

import random

import pytest
from muster_bus.log import Record
from muster_core import invariants
from muster_core.model.states import QueueState
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_state.state_folder import StateFolder
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig

BEFORE = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, resources: {max: {vcore: 2}}}
          - {name: b}
"""


def _update(config: str, **extra: str) -> si.UpdateConfigurationRequest:
    return si.UpdateConfigurationRequest(rmID=RM, policyGroup="queues", config=config, extraConfig=extra)


def _rig() -> Rig:
    rig = Rig()
    assert rig.register(BEFORE).accepted
    rig.send(
        make.node("n", vcore=10_000),
        make.application("x", "root.a"),
        make.application("y", "root.b"),
        make.asks(make.allocation("x", "k1", vcore=2000), make.allocation("x", "k2", vcore=2000)),
        make.asks(make.allocation("y", "k3", vcore=1000)),
    )
    assert rig.keys("new") == ["k1", "k3"]
    return rig


def _followed(rig: Rig) -> StateFolder:
    folder = StateFolder()
    folder.build()
    for offset, record in enumerate(rig.written):
        if record.topic == rig.topics.state:
            folder.fold(Record(record.topic, 0, offset, 0, record.key, record.value))
    return folder


def test_a_larger_max_is_used_at_once_and_reported_line_by_line() -> None:
    rig = _rig()
    rig.send(_update(BEFORE.replace("vcore: 2", "vcore: 5")))
    answer = rig.registrations[-1]
    assert answer.accepted
    assert list(answer.changes) == ["[default] root.a resources.max.vcore: 2 -> 5"]
    assert rig.keys("new") == ["k1", "k3", "k2"]
    (changed,) = [e for _, e in rig.events if e.eventChangeDetail == si.EventRecord.QUEUE_MAX][-1:]
    assert (changed.objectID, changed.resource.resources["vcore"].value) == ("root.a", 5000)


def test_a_queue_that_vanishes_drains_and_goes_when_it_is_empty() -> None:
    rig = _rig()
    rig.send(_update(BEFORE.replace("          - {name: b}\n", "")))
    assert rig.registrations[-1].accepted
    queue = rig.core.partitions["default"].queues["root.b"]
    assert queue.state is QueueState.DRAINING
    rig.send(make.asks(make.allocation("y", "k4", vcore=1000)))
    assert "k4" in rig.keys("new")  # running allocations continue
    rig.send(make.application("z", "root.b"))
    assert "not" in rig.of("rejected")[-1].reason or "no placement rule" in rig.of("rejected")[-1].reason
    rig.send(si.ApplicationRequest(rmID=RM, remove=[si.RemoveApplicationRequest(applicationID="y")]))
    rig.now_ns += 11 * 10**9
    rig.tick()
    assert "root.b" not in rig.core.partitions["default"].queues
    rig.send(_update(BEFORE))
    assert rig.core.partitions["default"].queues["root.b"].state is QueueState.ACTIVE


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("partitions: [", "line 1"),
        (BEFORE.replace("vcore: 2", "vcore: two"), "invalid quantity"),
        (BEFORE.replace("{name: b}", "{name: b, queues: [{name: c}]}"), "cannot become a parent"),
        (BEFORE.replace("name: default", "name: other"), "has 1 nodes"),
    ],
)
def test_a_configuration_that_cannot_be_applied_changes_nothing(config: str, said: str) -> None:
    rig = _rig()
    before, events = dict(rig.state), len(rig.events)
    rig.send(_update(config))
    answer = rig.registrations[-1]
    assert not answer.accepted
    assert any(
        said in problem.message or said in f"line {problem.line}"
        for problem in answer.problems
        if problem.severity == pb.ConfigProblem.ERROR
    ), answer
    assert not answer.changes
    assert len(rig.events) == events
    changed = {key for key in rig.state if rig.state[key] != before.get(key)}
    assert all(key.split(b"/")[1] in (b"rm", b"reg") for key in changed)
    assert rig.machine.rms[RM].info.config == BEFORE


def test_the_same_text_is_accepted_without_a_change() -> None:
    rig = _rig()
    events = len(rig.events)
    rig.send(_update(BEFORE + f"checksum: {'a' * 64}\n"))
    assert rig.registrations[-1].accepted
    assert not rig.registrations[-1].changes
    assert len(rig.events) == events


def test_extra_configuration_counts_even_beside_a_bad_text() -> None:
    rig = _rig()
    rig.send(_update("partitions: [", **{"log.level": "DEBUG"}))
    assert rig.machine.rms[RM].info.extra_config["log.level"] == "DEBUG"


def test_earlier_decisions_of_the_batch_are_written_first() -> None:
    rig = _rig()
    rig.send(
        make.asks(make.allocation("y", "k5", vcore=1000)),
        _update(BEFORE.replace("vcore: 2", "vcore: 4")),
        make.asks(make.allocation("y", "k6", vcore=1000)),
    )
    assert set(rig.keys("new")) == {"k1", "k2", "k3", "k5", "k6"}
    rig.check_counters()


def test_followers_and_a_new_machine_know_the_new_configuration() -> None:
    rig = _rig()
    rig.send(_update(BEFORE.replace("vcore: 2", "vcore: 4").replace("{name: b}", "{name: c, maxapplications: 3}")))
    follower = _followed(rig).rms[RM]
    invariants.check(follower.core)
    for core in (rig.core, follower.core):
        queues = core.partitions["default"].queues
        assert queues["root.a"].by_name(queues["root.a"].maximum) == {"vcore": 4000}
        assert queues["root.b"].state is QueueState.DRAINING
        assert queues["root.c"].max_applications == 3
    rig.rebuild(random.Random(1))
    queues = rig.core.partitions["default"].queues
    assert queues["root.b"].state is QueueState.DRAINING
    assert set(queues["root.b"].applications) == {"y"}
    assert rig.machine.rms[RM].info.config != BEFORE


def test_random_configurations_one_after_the_other_fold_to_the_same() -> None:
    dice = random.Random(7)
    rig = _rig()
    for step in range(40):
        queues = "\n".join(
            f"          - {{name: {name}, resources: {{max: {{vcore: {dice.randint(1, 9)}}}}}}}"
            for name in dice.sample("abcd", dice.randint(1, 4))
        )
        rig.send(_update(BEFORE.split("        queues:\n          -", maxsplit=1)[0] + f"        queues:\n{queues}\n"))
        assert rig.registrations[-1].accepted
        rig.send(make.application(f"z{step}", f"root.{dice.choice('abcd')}"))
        rig.send(make.asks(make.allocation(f"z{step}", f"k{step}", vcore=dice.randint(1, 3) * 1000)))
        rig.now_ns += dice.choice([0, 11 * 10**9])
        rig.tick()
        invariants.check(rig.core, exhausted=True)
        follower = _followed(rig).rms[RM].core
        invariants.check(follower)
        mine, theirs = (core.partitions["default"].queues for core in (rig.core, follower))
        assert {path: (queue.state, queue.allocated, queue.maximum) for path, queue in mine.items()} == {
            path: (queue.state, queue.allocated, queue.maximum) for path, queue in theirs.items()
        }


def test_an_rm_does_not_grow_over_what_a_record_holds() -> None:
    """Each update is small enough alone. All of them together are too large for the RM's record."""
    rig = _rig()
    info = rig.machine.rms[RM].info
    accepted = []
    for number in range(4):
        extra = {f"k{number}-{key}": "v" * 1_000 for key in range(400)}
        rig.send(_update(BEFORE.replace("vcore: 2", f"vcore: {3 + number}"), **extra))
        accepted.append(rig.registrations[-1].accepted)
        assert (f"k{number}-0" in info.extra_config) is accepted[-1]
    assert accepted == [True, True, False, False]
    assert "vcore: 4" in info.config
    (problem,) = rig.registrations[-1].problems
    assert (problem.severity, problem.path) == (pb.ConfigProblem.ERROR, "extraConfig")
    assert problem.message.endswith("with the configuration, expected at most 983,040")
    rig.send(_update(BEFORE.replace("vcore: 2", "vcore: 7"), **{"k0-0": ""}))
    assert rig.registrations[-1].accepted, "an update of the same size is accepted"
    assert max(len(record.value or b"") for record in rig.written) < 1 << 20


def test_a_registration_that_a_record_does_not_hold_is_refused() -> None:
    rig = Rig(default_config=BEFORE + "#" * 700_000)
    request = make.registration("")
    request.extraConfig["a"] = "v" * 300_000
    rig.send(request)
    answer = rig.registrations[-1]
    assert not answer.accepted
    assert [problem.path for problem in answer.problems] == ["extraConfig"]
    assert RM not in rig.machine.rms
    del request.extraConfig["a"]
    rig.send(request)
    assert rig.registrations[-1].accepted
