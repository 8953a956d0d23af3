"""Statements of external sources at the machine: all are recorded, and decisions wait for the first listing."""

from __future__ import annotations

import random

import pytest
from muster_bus.log import Record
from muster_bus.topics import HEADER_ERROR, Topics, parse_state_key
from muster_core.external.model import (
    NOT_CONFIGURED,
    ExternalKind,
    ExternalNode,
    ExternalPool,
    SourceState,
)
from muster_informers.sync_gate import SyncGate, restarted_incarnation
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_scheduler.machine import SchedulerMachine
from unit.scheduler_service.rig import (
    CONFIG,
    RM,
    Rig,
    allocation,
    application,
    asks,
    forgotten,
    life,
    node,
    registration,
    said,
)

LISTING, LIVE, STALE = SourceState.LISTING, SourceState.LIVE, SourceState.STALE
H1 = ExternalNode("h1", {"vcore": 10_000, "memory": 100})
H2 = ExternalNode("h2", {"vcore": 10_000, "memory": 100})


def kept(rig: Rig, kind: str) -> list[str]:
    """Return the sorted ids of the recorded objects of a kind."""
    parsed = [parse_state_key(key) for key in rig.state]
    return sorted("/".join(parts) for _, found, parts in parsed if found == kind)


def sources(rig: Rig) -> dict[str, tuple[str, str, str]]:
    """Return name → (state, life, reason) of the recorded sources."""
    found = {}
    for key, value in rig.state.items():
        _, kind, _ = parse_state_key(key)
        if kind == "source":
            recorded = state_pb2.SourceObject.FromString(value)
            found[recorded.source] = (recorded.state, recorded.life, recorded.reason)
    return found


def gate(*names: str, life: str = "life-1") -> SyncGate:
    return SyncGate(life, {RM: tuple(("default", name) for name in names)})


def decides(rig: Rig, key: str) -> bool:
    """Return whether the machine places an ask that fits."""
    rig.send(asks(allocation("app", key, vcore=1)))
    rig.settle()
    return key in rig.keys("new")


def furnished(rig: Rig) -> Rig:
    rig.register()
    rig.send(node("n1", vcore=10_000, memory=100), application("app", "root.c"))
    return rig


# ---- before, behind and between registrations ------------------------------------------------------------------------


def test_statements_before_the_registration_are_recorded_without_the_rm() -> None:
    rig = Rig()
    written = rig.send(said(H1, ExternalPool("licence", 3), state=LIVE))
    assert not rig.dead
    assert kept(rig, "ext") == ["default/vms/node/h1", "default/vms/pool/licence"]
    assert sources(rig) == {"vms": ("LIVE", "life-1", "")}
    assert not kept(rig, "rm")
    assert {record.topic for record in written} == {rig.topics.state}
    assert rig.machine.next_deadline_ns() is None


def test_objects_deleted_before_the_registration_leave_no_record() -> None:
    rig = Rig()
    rig.send(said(H1, H2))
    rig.send(said(forgotten(ExternalKind.NODE, "h1")))
    assert kept(rig, "ext") == ["default/vms/node/h2"]
    rig.rebuild()
    rig.send(said(forgotten(ExternalKind.NODE, "h2"), forgotten(ExternalKind.NODE, "never")))
    assert kept(rig, "ext") == []


@pytest.mark.parametrize("registered", [False, True])
def test_statements_in_the_batch_of_a_registration_are_kept(registered: bool) -> None:
    rig = furnished(Rig()) if registered else Rig()
    rig.send(said(H1))
    rig.send(said(H2, forgotten(ExternalKind.NODE, "h1"), state=LIVE), registration(CONFIG))
    assert kept(rig, "ext") == ["default/vms/node/h2"]
    assert sources(rig) == {"vms": ("LIVE", "life-1", "")}


def test_statements_about_a_partition_that_the_rm_lacks_wait() -> None:
    rig = furnished(Rig())
    rig.send(said(H1, partition="other", state=LIVE))
    assert kept(rig, "ext") == ["other/vms/node/h1"]
    assert list(rig.core.partitions["default"].nodes) == ["n1"]
    rig.rebuild()
    assert kept(rig, "ext") == ["other/vms/node/h1"]


def test_sources_are_recorded_on_the_log_only() -> None:
    rig = furnished(Rig())
    answered = len(rig.responses)
    rig.send(said(H1, state=LIVE))
    rig.send(said(forgotten(ExternalKind.NODE, "h1")))
    rig.settle()
    assert len(rig.responses) == answered


# ---- what nobody here can take ---------------------------------------------------------------------------------------


def bad(**fields: object) -> bytes:
    changes = pb.ExternalChanges(**fields)  # type: ignore[arg-type]
    return pb.RequestEnvelope(rm_id=RM, external=changes).SerializeToString()


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (bad(), "external changes: source: '', expected a name"),
        (bad(source="vms", life="l"), "external changes: neither changes nor a note, expected one of them"),
        (
            bad(source="vms", life="l", changes=[pb.ExternalChange(kind="ship", id="x")]),
            f"external changes: changes[0]: kind: 'ship', expected one of {', '.join(ExternalKind)}",
        ),
        (
            bad(
                source="vms",
                life="l",
                changes=[
                    pb.ExternalChange(kind="pool", id="a", pool=pb.ExternalPool(quantity=3)),
                    pb.ExternalChange(kind="pool", id="b", pool=pb.ExternalPool(quantity=-3)),
                ],
            ),
            "external changes: changes[1]: quantity: -3, expected an integer from 0 to 9007199254740992",
        ),
        (
            bad(source="vms", life="l", note=pb.ExternalSourceNote(state="GONE")),
            "external changes: note.state: 'GONE', expected one of LISTING, LIVE, STALE",
        ),
    ],
)
def test_bad_content_goes_to_the_dead_letters_and_changes_nothing(value: bytes, why: str, registered: bool) -> None:
    rig = furnished(Rig()) if registered else Rig()
    before = dict(rig.state)
    rig.send(value, said(H1))
    assert rig.dead == [(value, why)]
    assert {key for key in rig.state if key not in before} >= {
        key for key in rig.state if parse_state_key(key)[1] == "ext"
    }
    assert kept(rig, "ext") == ["default/vms/node/h1"]
    assert rig.machine.next_deadline_ns() is None or registered


def test_an_rm_without_a_usable_name_is_nobodys() -> None:
    rig = Rig()
    rig.send(said(H1, rm_id="a\nb"))
    assert [why for _, why in rig.dead] == [r"rm_id: 'a\nb' has U+000A, expected no character that breaks a line"]
    assert not rig.state


def test_a_record_in_the_wrong_partition_is_refused() -> None:
    topics = Topics(partitions=4)
    machine = SchedulerMachine(topics, lambda: "uuid")
    machine.finish_fold(0)
    wrong = (topics.partition_of(RM) + 1) % 4
    outputs = machine.apply([Record(topics.requests, wrong, 0, 0, RM.encode(), said(H1))], 0)
    (letter,) = outputs
    assert letter.topic == topics.dead_letters
    assert dict(letter.headers)[HEADER_ERROR].decode() == f"RM {RM!r} belongs to partition {topics.partition_of(RM)}"
    outputs = machine.apply([Record(topics.requests, topics.partition_of(RM), 1, 0, RM.encode(), said(H1))], 0)
    assert [(record.topic, record.partition) for record in outputs] == [(topics.state, topics.partition_of(RM))] * 2


# ---- the gate --------------------------------------------------------------------------------------------------------


def test_nothing_is_decided_before_every_source_has_passed() -> None:
    rig = furnished(Rig(gate=gate("vms", "offers")))
    assert not decides(rig, "k1")
    rig.send(said(state=LISTING), said(H1))
    assert not decides(rig, "k2")
    rig.send(said(state=LIVE))
    assert not decides(rig, "k3")
    rig.send(said(source="offers", state=LISTING))
    rig.settle()
    assert not rig.keys("new")
    rig.send(said(source="offers", state=LIVE))
    rig.settle()
    assert sorted(rig.keys("new")) == ["k1", "k2", "k3"]
    assert decides(rig, "k4")


def test_a_source_that_is_given_up_has_passed() -> None:
    rig = furnished(Rig(gate=gate("vms")))
    assert not decides(rig, "k1")
    rig.send(said(state=STALE, reason="it does not answer"))
    assert decides(rig, "k2")


def test_statements_of_an_earlier_life_do_not_open_the_gate() -> None:
    rig = Rig(gate=gate("vms"))
    rig.send(said(H1, state=LIVE))
    rig.gate = gate("vms", life="life-2")
    rig.rebuild()
    furnished(rig)
    assert not decides(rig, "k1")
    rig.send(said(state=LIVE))  # a record of the earlier process, late
    assert not decides(rig, "k2")
    rig.send(said(H1, life="life-2"))  # (the new life begins with its listing)
    assert not decides(rig, "k3")
    rig.send(said(life="life-2", state=LIVE))
    assert decides(rig, "k4")


def test_informers_of_an_owner_that_is_gone_end_no_life_of_this_start() -> None:
    """A scheduler that was paused goes on, and its informers list before it notices that it was fenced."""
    rig = Rig(gate=gate("vms"))
    rig.send(registration())
    rig.send(said(H1, state=LIVE))
    rig.send(said(state=LISTING, life="of the paused one"))
    rig.send(said(H1, state=LIVE, life="of the paused one"))
    rig.send(said(forgotten(ExternalKind.NODE, "h1"), H2))
    assert sources(rig)["vms"] == ("LIVE", "life-1", "")
    assert kept(rig, "ext") == ["default/vms/node/h2"]
    rig.rebuild()
    assert sources(rig)["vms"] == ("LIVE", "life-1", "")


def test_informers_that_began_again_in_the_same_start_are_those_that_are_awaited() -> None:
    rig = furnished(Rig())
    rig.gate = gate("vms", life="life-2")
    rig.rebuild()
    rig.send(said(H1, life="life-20#2", state=LIVE))
    assert not decides(rig, "a")
    rig.send(said(H1, life=restarted_incarnation("life-2", 2), state=SourceState.LISTING))
    assert not decides(rig, "b")
    rig.send(said(life=restarted_incarnation("life-2", 2), state=LIVE))
    assert decides(rig, "c")


def test_a_source_that_lists_again_later_does_not_close_the_gate() -> None:
    rig = furnished(Rig(gate=gate("vms")))
    rig.send(said(state=LIVE))
    assert decides(rig, "k1")
    rig.send(said(state=LISTING))
    assert decides(rig, "k2")
    rig.send(said(state=STALE))
    assert decides(rig, "k3")


def test_a_machine_that_is_built_anew_in_the_same_life_waits_for_those_that_had_not_passed() -> None:
    rig = furnished(Rig(gate=gate("vms", "offers")))
    rig.send(said(state=LIVE))
    rig.rebuild(random.Random(4))
    assert not decides(rig, "k1")
    rig.send(said(source="offers", state=LIVE))
    rig.settle()
    assert rig.keys("new") == ["k1"]
    rig.rebuild(random.Random(5))
    assert decides(rig, "k2")


def test_an_rm_that_registers_while_a_source_is_awaited_waits_too() -> None:
    rig = Rig(gate=gate("vms"))
    furnished(rig)
    furnished(rig)
    assert not decides(rig, "k1")
    rig.send(said(state=LIVE))
    rig.settle()
    assert rig.keys("new") == ["k1"]


def test_other_rms_do_not_wait() -> None:
    other = SyncGate("life-1", {"rm-2": (("default", "vms"),)})
    assert decides(furnished(Rig(gate=other)), "k1")


def test_an_operators_pause_and_a_stop_outlast_the_gate() -> None:
    rig = furnished(Rig(gate=gate("vms")))
    rig.send(pb.AdminCommand(pause="maintenance"))
    rig.send(said(state=LIVE))
    assert not decides(rig, "k1")
    rig.send(life(pb.RmLifecycle.STOPPED), pb.AdminCommand(resume=True))
    assert not decides(rig, "k2")
    rig.send(life(pb.RmLifecycle.RUNNING))
    rig.settle()
    assert sorted(rig.keys("new")) == ["k1", "k2"]


def test_neither_a_resume_nor_a_life_opens_the_gate() -> None:
    rig = furnished(Rig(gate=gate("vms")))
    rig.send(pb.AdminCommand(pause="maintenance"), pb.AdminCommand(resume=True))
    rig.send(life(pb.RmLifecycle.DISCONNECTED), life(pb.RmLifecycle.RUNNING))
    assert not decides(rig, "k1")


# ---- informers that are configured no more ---------------------------------------------------------------------------


@pytest.mark.parametrize("registered", [False, True])
def test_a_source_without_an_informer_is_stale_and_said_so_once(registered: bool) -> None:
    rig = Rig(gate=gate("vms", "old"))
    if registered:
        rig.register()
    rig.send(said(H1, state=LIVE), said(H2, source="old", state=LIVE))
    rig.gate = gate("vms", life="life-2")
    rig.rebuild()
    rig.settle()
    assert sources(rig) == {"vms": ("LIVE", "life-1", ""), "old": ("STALE", "life-1", NOT_CONFIGURED)}
    assert kept(rig, "ext") == ["default/old/node/h2", "default/vms/node/h1"]
    written = len(rig.written)
    rig.rebuild()
    rig.settle()
    states = [record for record in rig.written[written:] if parse_state_key(record.key or b"")[1] == "source"]
    assert states == []
    # It is configured again: the informer reports that itself.
    rig.gate = gate("vms", "old", life="life-3")
    rig.rebuild()
    rig.send(said(H2, source="old", life="life-3", state=LIVE))
    assert sources(rig)["old"] == ("LIVE", "life-3", "")


def test_a_machine_that_knows_of_no_informers_gives_none_up() -> None:
    rig = Rig()
    rig.send(said(H1, state=LIVE))
    rig.rebuild()
    rig.settle()
    assert sources(rig) == {"vms": ("LIVE", "life-1", "")}
