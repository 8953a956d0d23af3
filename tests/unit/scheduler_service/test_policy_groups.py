"""RMs that share a configuration name one policy group (the scheduler interface)."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.group_configuration import GroupConfigurations
from muster_scheduler.machine import SchedulerMachine
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import Rig


def config(leaf: str) -> str:
    return f"partitions:\n- name: default\n  queues:\n  - {{name: root, submitacl: '*', queues: [{{name: {leaf}}}]}}\n"


def started(groups: GroupConfigurations) -> Rig:
    rig = Rig()
    rig.machine = SchedulerMachine(rig.topics, lambda: "uuid", groups)
    return rig


def register(rig: Rig, rm_id: str, group: str, text: str = "") -> pb.RegistrationResult:
    request = si.RegisterResourceManagerRequest(rmID=rm_id, policyGroup=group, config=text)
    rig.send(request, rm_id=rm_id)
    return rig.registrations[-1]


def leaves(rig: Rig, rm_id: str) -> list[str]:
    queues = rig.machine.rms[rm_id].core.partitions["default"].queues.values()
    return [queue.name for queue in queues if queue.leaf]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "batch.yaml").write_text(config("from-file"))
    (tmp_path.parent / "outside.yaml").write_text(config("outside"))
    return tmp_path


def test_an_empty_configuration_is_the_groups_file_else_the_default(directory: Path) -> None:
    rig = started(GroupConfigurations(config("default"), directory))
    for group, leaf in (("batch", "from-file"), ("other", "default"), ("", "default"), ("../outside", "default")):
        answer = register(rig, f"rm-{leaf}-{len(group)}", group)
        assert (answer.accepted, list(answer.problems)) == (True, [])
        assert leaves(rig, f"rm-{leaf}-{len(group)}") == [leaf]
    register(rig, "own", "batch", config("own"))
    assert leaves(rig, "own") == ["own"]


def test_the_files_text_is_recorded_and_not_read_again_after_a_restart(directory: Path) -> None:
    rig = started(GroupConfigurations("", directory))
    register(rig, "rm", "batch")
    (directory / "batch.yaml").write_text(config("another"))
    rig.rebuild()
    assert leaves(rig, "rm") == ["from-file"]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"partitions: [{name: default, queues: [{name: notroot", b"x" * (2 << 20)]
)
def test_a_file_that_cannot_be_taken_refuses_the_registration(directory: Path, content: bytes) -> None:
    (directory / "batch.yaml").write_bytes(content)
    rig = started(GroupConfigurations(config("default"), directory))
    answer = register(rig, "rm", "batch")
    assert not answer.accepted
    assert any(problem.severity == pb.ConfigProblem.ERROR for problem in answer.problems)
    assert "rm" not in rig.machine.rms


def test_another_rm_of_the_group_lends_its_configuration_where_the_operator_wants_it() -> None:
    for shared, leaf in ((True, "b"), (False, "default")):
        rig = started(GroupConfigurations(config("default"), shared=shared))
        register(rig, "first", "batch", config("a"))
        rig.wait(1)
        register(rig, "second", "batch", config("b"))
        register(rig, "stopped", "batch", config("c"))
        rig.send(make.life(pb.RmLifecycle.STOPPED), rm_id="stopped")
        register(rig, "elsewhere", "other", config("d"))
        register(rig, "rm", "batch")
        assert leaves(rig, "rm") == [leaf]


def test_an_answer_says_what_an_rm_of_a_group_is_compared_by() -> None:
    """(The gateway compares: it knows the RMs of all partitions.)"""
    for shared in (True, False):
        rig = started(GroupConfigurations(config("default"), shared=shared))
        first, same, other = (register(rig, f"rm-{n}", "batch", config(leaf)) for n, leaf in enumerate("aab"))
        assert [each.policy_group.group for each in (first, same, other)] == ["batch"] * 3
        assert [each.policy_group.named for each in (first, same, other)] == [shared] * 3
        assert first.policy_group == same.policy_group != other.policy_group
        assert not first.problems
        assert not other.problems
        assert not register(rig, "rm-3", "", config("a")).HasField("policy_group")
        assert not register(rig, "rm-4", "batch", "partitions: [").HasField("policy_group")
        rig.send(si.UpdateConfigurationRequest(rmID="rm-0", config=config("b")), rm_id="rm-0")
        assert rig.registrations[-1].policy_group == other.policy_group
        rig.send(si.UpdateConfigurationRequest(rmID="rm-0", config="partitions: ["), rm_id="rm-0")
        assert not rig.registrations[-1].HasField("policy_group")


def test_configurations_from_a_file_or_the_default_are_compared_too(directory: Path) -> None:
    rig = started(GroupConfigurations(config("default"), directory))
    assert register(rig, "a", "batch").policy_group == register(rig, "b", "batch", config("from-file")).policy_group
    assert register(rig, "c", "g").policy_group == register(rig, "d", "g", config("default")).policy_group


def test_an_update_that_names_another_group_is_taken_with_a_warning() -> None:
    rig = started(GroupConfigurations())
    register(rig, "rm", "batch", config("a"))
    rig.send(si.UpdateConfigurationRequest(rmID="rm", config=config("b"), policyGroup="other"), rm_id="rm")
    answer = rig.registrations[-1]
    assert answer.accepted
    assert [problem.message for problem in answer.problems] == [
        "'other', but the resource manager registered with 'batch': that stays"
    ]
    assert rig.machine.rms["rm"].info.policy_group == "batch"
