"""The generation of the interface that an RM speaks: its detection and its effects."""

from __future__ import annotations

import pytest
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import generation
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig


def registered(version: str = "", **extra: str) -> Rig:
    rig = Rig()
    request = make.registration()
    request.version = version
    request.extraConfig.update({key.replace("__", "."): value for key, value in extra.items()})
    rig.send(request)
    assert rig.registrations[-1].accepted
    return rig


def known(rig: Rig) -> tuple[str, str]:
    """Return the generation, which must be the recorded one, too."""
    info = rig.machine.rms[RM].info
    if len(rig.responses):
        record = state_pb2.RmObject.FromString(rig.state[f"{RM}/rm/-".encode()])
        assert (record.generation, record.generation_by) == (info.generation, info.generation_by)
    return info.generation, info.generation_by


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.3.0", "previous"),
        ("v1.5.2", "previous"),
        ("1.6.0", "current"),
        ("v1.7.0-0.20250101-abcdef", "current"),
        ("2.0.0", "current"),
        ("1.10.0", "current"),
        ("1.0", ""),  # the interface's own versions have three numbers
        ("0.1", ""),  # what shims of either generation send
        ("", ""),
        ("latest", ""),
        ("1", ""),
        ("1.3.0 of ours", ""),
        ("१.३", ""),
    ],
)
def test_the_version_says_it_where_it_is_one_of_the_interface(version: str, said: str) -> None:
    assert known(registered(version)) == (said, "version" if said else "")


def test_the_key_comes_before_the_version() -> None:
    rig = registered("1.7.0", muster__generation=" Previous ")
    assert known(rig) == ("previous", "extraConfig[muster.generation]")
    assert not rig.registrations[-1].problems


def test_a_key_that_says_nothing_known_is_a_warning_and_is_passed_over() -> None:
    rig = registered("1.3.0", muster__generation="latest")
    (problem,) = rig.registrations[-1].problems
    assert (problem.severity, problem.path) == (pb.ConfigProblem.WARNING, "extraConfig[muster.generation]")
    assert problem.message == "'latest', expected current or previous: it is found out otherwise"
    assert known(rig) == ("previous", "version")


SEEN = {
    "AllocationAsk": make.old_ask("x", "k", 1, vcore=1),
    "AllocationAskRelease": make.ask_release("x", "k"),
    "AllocationRelease.UUID": make.release("x", uuid="u"),
    "Allocation.UUID": make.asks(si.Allocation(allocationKey="k", applicationID="x", nodeID="n", UUID="u")),
    "NodeInfo.existingAllocations": si.NodeRequest(
        nodes=[si.NodeInfo(nodeID="m", action=si.NodeInfo.CREATE, existingAllocations=[make.allocation("x", "k")])]
    ),
    "Allocation without nodeID": make.asks(make.allocation("x", "k", vcore=1)),
}


@pytest.mark.parametrize("field", SEEN)
def test_else_what_is_seen_shows_it_and_the_first_one_counts(field: str) -> None:
    rig = registered("0.1")
    rig.send(make.node("n", vcore=9), make.application("x", "root.c"), make.life(pb.RmLifecycle.RUNNING))
    rig.send(make.asks(make.allocation("x", "runs", "n", vcore=1)))
    rig.send(make.asks(make.allocation("", "f", "n", {"foreign": "static"}, vcore=1)), make.release("x", "runs"))
    assert known(rig) == ("", "")  # these fields are the same in both generations
    rig.send(SEEN[field])
    expected = ("current" if field == "Allocation without nodeID" else "previous", field)
    assert known(rig) == expected
    other = SEEN["Allocation without nodeID" if expected[0] == "previous" else "AllocationAsk"]
    rig.send(other)
    assert known(rig) == expected
    rig.rebuild()
    assert known(rig) == expected
    assert rig.core.partitions["default"].previous_generation == (expected[0] == "previous")
    rig.send(make.registration())
    assert rig.machine.rms[RM].info.generation == ""  # a new registration: unknown again


def test_a_generation_named_by_the_registration_stays() -> None:
    rig = registered(muster__generation="current")
    rig.send(SEEN["AllocationAsk"])
    assert known(rig)[0] == "current"


def test_a_seen_item_counts_before_the_version() -> None:
    rig = registered("1.0.0")
    assert rig.core.partitions["default"].previous_generation
    rig.send(SEEN["Allocation without nodeID"])
    assert known(rig) == ("current", "Allocation without nodeID")
    assert not rig.core.partitions["default"].previous_generation
    rig = registered("1.6.0")
    rig.send(SEEN["AllocationAsk"])
    assert known(rig) == ("previous", "AllocationAsk")


def test_a_configuration_update_may_say_it() -> None:
    rig = registered("1.7.0")
    rig.send(si.UpdateConfigurationRequest(rmID=RM, extraConfig={"muster.generation": "previous"}))
    assert known(rig)[0] == "previous"
    assert rig.core.partitions["default"].previous_generation


# ---- what it changes -----------------------------------------------------------------------------------------------


def _lived(rig: Rig, *, tags: dict[str, str] | None = None) -> None:
    rig.send(make.node("n", vcore=9), make.application("x", "root.c", tags=tags or {}))


def _states(rig: Rig) -> list[str]:
    return [update.state for update in rig.of("updated")]  # type: ignore[attr-defined]


def _details(rig: Rig) -> list[int]:
    return [event.eventChangeDetail for _, event in rig.events if event.type == si.EventRecord.APP]


def test_an_rm_of_the_previous_generation_gets_the_start_of_an_application_once() -> None:
    rig = registered()
    _lived(rig)
    rig.send(make.old_ask("x", "k", 1, vcore=1))
    assert _states(rig) == ["Accepted", "Starting", "Running"]
    details = _details(rig)
    starting = details.index(si.EventRecord.APP_STARTING)
    assert details[starting + 1] == si.EventRecord.APP_RUNNING
    rig.rebuild()
    rig.send(make.release("x", "k"))
    rig.send(make.old_ask("x", "again", 1, vcore=1))
    assert _states(rig) == ["Accepted", "Starting", "Running", "Completing", "Running"]
    assert [state for _, state in rig.core.partitions["default"].apps["x"].state_log][1:4] == [
        "Accepted",
        "Starting",
        "Running",
    ]
    starts = [update for update in rig.of("updated") if update.state == "Starting"]  # type: ignore[attr-defined]
    assert [(update.message, update.stateTransitionTimestamp > 0) for update in starts] == [("runApplication", True)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("generation", "tag", "starts"),
    [("previous", "true", False), ("previous", "false", True), ("current", "false", False)],
)
def test_the_tag_and_the_current_generation_leave_it_out(generation: str, tag: str, starts: bool) -> None:
    rig = registered(muster__generation=generation)
    _lived(rig, tags={"application.stateaware.disable": tag})
    rig.send(make.old_ask("x", "k", 1, vcore=1))
    assert ("Starting" in _states(rig)) == starts
    assert (si.EventRecord.APP_STARTING in _details(rig)) == starts


def test_each_generation_gets_only_its_own_fields() -> None:
    rigs = {name: registered(muster__generation=name) for name in ("previous", "current")}
    policy = si.PreemptionPolicy(allowPreemptSelf=True)
    for rig in rigs.values():
        _lived(rig)
        reported = make.allocation("x", "reported", "n", vcore=1)
        reported.originator = True
        reported.preemptionPolicy.CopyFrom(policy)
        rig.send(make.asks(reported))
    old = make.old_ask("x", "k", 1, vcore=1)
    old.asks[0].Originator = True
    old.asks[0].preemptionPolicy.CopyFrom(policy)
    rigs["previous"].send(old)
    for made in rigs["previous"].of("new"):
        assert made.UUID  # type: ignore[attr-defined]
        assert not made.originator  # type: ignore[attr-defined]
        assert not made.HasField("preemptionPolicy")  # type: ignore[attr-defined]
    new = make.allocation("x", "k", vcore=1)
    new.originator = True
    new.preemptionPolicy.CopyFrom(policy)
    rigs["current"].send(make.asks(new), make.release("x", "reported"))
    for made in rigs["current"].of("new"):
        assert not made.UUID  # type: ignore[attr-defined]
        assert made.originator  # type: ignore[attr-defined]
        assert made.preemptionPolicy == policy  # type: ignore[attr-defined]
    assert [(item.allocationKey, item.UUID) for item in rigs["current"].of("released")] == [("reported", "")]  # type: ignore[attr-defined]


def test_two_rms_of_both_generations_on_one_scheduler_are_each_answered_in_their_words() -> None:
    rig = Rig()
    for rm_id in ("old", "new"):
        rig.send(make.registration(rm_id=rm_id), rm_id=rm_id)
        rig.send(make.node("n", vcore=2), make.application("x", "root.c"), rm_id=rm_id)
    rig.send(make.old_ask("x", "k", 3, vcore=1), make.old_ask("ghost", "k", 1, vcore=1), rm_id="old")
    rig.send(
        make.asks(make.allocation("x", "k", vcore=1), make.allocation("ghost", "k", vcore=1)),
        rm_id="new",
    )
    infos = {rm_id: rig.machine.rms[rm_id].info.generation for rm_id in ("old", "new")}
    assert infos == {"old": "previous", "new": "current"}
    rig.send(make.ask_release("x", "k"), rm_id="old")
    rig.send(make.release("x", "k"), rm_id="new")
    assert len(rig.of("rejected")) == len(rig.of("rejectedAllocations")) == 1
    assert [len(rig.of(field)) for field in ("new", "releasedAsks", "released")] == [3, 1, 1]
    assert _states(rig).count("Starting") == 1
    assert generation.CURRENT == "current"
