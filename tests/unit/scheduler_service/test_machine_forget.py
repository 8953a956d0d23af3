"""`muster admin forget` at the machine: its records, the RM's remaining numbers, and later registrations."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from muster_bus.log import OutRecord, Record
from muster_bus.topics import parse_state_key
from muster_core.external.model import ExternalNode, SourceState
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_state.state_folder import StateFolder
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig

STOPPED, DISCONNECTED = pb.RmLifecycle.STOPPED, pb.RmLifecycle.DISCONNECTED
Code = pb.AdminResult


def furnished() -> Rig:
    rig = Rig()
    rig.register()
    rig.send(make.node("n1", vcore=10, memory=100), make.application("app", "root.c"))
    rig.send(make.asks(*(make.allocation("app", f"k{number}", vcore=4) for number in range(3))))
    rig.settle()
    return rig


def forget(rig: Rig, *, force: bool = False) -> tuple[pb.AdminResult, list[OutRecord]]:
    written = rig.send(pb.AdminCommand(forget=pb.AdminCommand.Forget(force=force)))
    (answer,) = [
        pb.ResponseEnvelope.FromString(record.value or b"").admin
        for record in written
        if record.topic == rig.topics.responses
    ]
    return answer, written


def kinds(rig: Rig) -> list[str]:
    return sorted({parse_state_key(key)[1] for key in rig.state})


def test_a_stopped_rm_ends_with_events_that_add_up_and_leaves_its_numbers_only() -> None:
    rig = furnished()
    rig.send(make.life(STOPPED))
    answer, written = forget(rig)
    assert (answer.code, answer.changed, answer.allocations) == (Code.OK, True, 2)
    assert rig.machine.rms == {}
    assert kinds(rig) == ["forgotten"]
    (kept,) = (state_pb2.ForgottenObject.FromString(value) for value in rig.state.values())
    assert (kept.rm_id, kept.next_event_id, kept.registrations) == (RM, len(rig.events), 1)
    assert [record.topic for record in written][-2:] == [rig.topics.responses, rig.topics.audit]
    balance: Counter[tuple[int, str]] = Counter()
    for _, event in rig.events:
        if event.eventChangeDetail in (si.EventRecord.APP_ALLOC, si.EventRecord.ALLOC_CANCEL):
            sign = 1 if event.eventChangeType == si.EventRecord.ADD else -1
            balance[event.type, event.objectID] += sign
    assert set(balance.values()) == {0}, "each ADD has a REMOVE"
    rig.check_counters()


@pytest.mark.parametrize("state", [pb.RmLifecycle.RUNNING, DISCONNECTED])
def test_an_rm_that_is_not_stopped_is_forgotten_by_force_only(state: pb.RmLifecycle.State.ValueType) -> None:
    rig = furnished()
    rig.send(make.life(state))
    before = dict(rig.state)
    answer, _ = forget(rig)
    assert answer.code == Code.NOT_POSSIBLE
    name = pb.RmLifecycle.State.Name(state)
    assert answer.message.startswith(f"rm_id '{RM}' is {name}")
    assert "expected STOPPED" in answer.message
    assert rig.state == before
    answer, _ = forget(rig, force=True)
    assert answer.changed
    assert kinds(rig) == ["forgotten"]


def test_to_forget_again_changes_nothing_and_an_unknown_rm_is_not_found() -> None:
    rig = furnished()
    answer, written = forget(rig)
    rig.send(make.life(STOPPED))
    assert forget(rig)[0].changed
    for _ in range(2):
        answer, written = forget(rig)
        assert (answer.code, answer.changed, len(written)) == (Code.OK, False, 3), "stamp, answer, audit entry"
        rig.rebuild()
    written = rig.send(pb.AdminCommand(forget=pb.AdminCommand.Forget()), rm_id="nobody")
    assert pb.ResponseEnvelope.FromString(written[0].value or b"").admin.code == Code.NOT_FOUND


@pytest.mark.parametrize("rebuilt", [False, True])
def test_numbers_go_on_when_it_registers_again(rebuilt: bool) -> None:
    rig = furnished()
    rig.send(pb.CallbackStream(connected=True, epoch=7), make.life(STOPPED))
    uuid = rig.machine.rms[RM].info.instance_uuid
    forget(rig)
    if rebuilt:
        rig.rebuild(random.Random(3))
    rig.register()
    info = rig.machine.rms[RM].info
    assert (info.instance_uuid, info.registrations, info.callbacks.epoch) == (uuid, 2, 7)
    assert (info.paused, info.tally.allocated) == (False, 0), "the RM is new except for its numbers"
    assert "forgotten" not in kinds(rig)
    rig.send(make.node("n1", vcore=10, memory=100), make.application("app", "root.c"))
    rig.send(make.asks(make.allocation("app", "k0", vcore=4)))
    rig.settle()
    rig.check_counters()
    rig.rebuild()
    assert list(rig.machine.rms) == [RM]


def test_requests_under_way_are_skipped() -> None:
    rig = furnished()
    rig.send(make.life(STOPPED), pb.AdminCommand(forget=pb.AdminCommand.Forget()), make.life(STOPPED))
    assert rig.machine.rms == {}
    rig.send(make.asks(make.allocation("app", "late", vcore=1)), pb.CallbackStream(connected=False, epoch=2))
    assert rig.dead == []
    rig.send(make.asks(make.allocation("app", "x", vcore=1)), rm_id="nobody")
    assert len(rig.dead) == 1, "a request of an unknown RM is a dead letter"


def test_decisions_of_the_same_batch_are_announced_before_the_end() -> None:
    rig = furnished()
    rig.send(
        make.asks(make.allocation("app", "more", vcore=1)),
        make.release("app", "k0"),
        make.life(STOPPED),
        pb.AdminCommand(forget=pb.AdminCommand.Forget()),
    )
    assert kinds(rig) == ["forgotten"]
    rig.check_counters()


def test_a_follower_that_reads_along_has_nothing_left_either() -> None:
    rig = furnished()
    folder = StateFolder()
    for offset, (key, value) in enumerate(rig.state.items()):
        folder.fold(Record(rig.topics.state, 0, offset, 0, key, value))
    folder.build()
    rig.send(make.life(STOPPED))
    _, written = forget(rig)
    for offset, record in enumerate(record for record in written if record.topic == rig.topics.state):
        folder.fold(Record(rig.topics.state, 0, 1_000 + offset, 0, record.key, record.value))
    assert folder.rms == {}
    assert list(folder.forgotten) == [RM]


def test_statements_of_sources_belong_to_the_id_and_stay() -> None:
    rig = furnished()
    rig.send(make.said(ExternalNode("host", {"vcore": 8}, brings=False), state=SourceState.LIVE))
    rig.send(make.life(STOPPED))
    forget(rig)
    assert kinds(rig) == ["ext", "forgotten", "source"]
    rig.rebuild()
    rig.register()
    assert {"ext", "source"} <= set(kinds(rig))
