"""The log has each time without decisions for an RM, with its cause, so that explanations can show it."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

import pytest
from builders import SECOND_NS
from muster_bus.log import Record
from muster_core.external.model import SourceState
from muster_informers.sync_gate import SyncGate
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2 as pb_state
from muster_proto.si.v1 import si_pb2 as si
from muster_rest.shapes.explain import PastDao, PendingDao
from muster_state import state_folder
from muster_state.state_folder import PauseKind, RmEntry, StateFolder
from muster_view.explain import asks
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig

ABSENT = {"muster.callbacks.absent": "wait"}


class Told(NamedTuple):
    """One reason; times in seconds since the rig's start; ``until`` None: it still holds."""

    reason: str
    since: float
    until: float | None = None


class World:
    """A machine with one RM, whose ask waits (its node is too small), and followers of its log."""

    def __init__(self, gate: SyncGate | None = None, **extra: str) -> None:
        self.rig = Rig(gate=gate)
        self.start_ns = self.rig.now_ns
        self.register(**extra)

    def register(self, **extra: str) -> None:
        request = make.registration()
        request.extraConfig.update(extra)
        self.rig.send(request)
        self.rig.send(make.node("n", vcore=1), make.application("x", "root.c"))
        self.rig.send(make.asks(make.allocation("x", "k", vcore=1000)))

    def stream(self, epoch: int, *, connected: bool = True) -> None:
        self.rig.send(pb.CallbackStream(connected=connected, epoch=epoch, predicates=True))

    def followers(self) -> list[RmEntry]:
        """Return a follower of all records, and one that starts now on the compacted topic."""
        followed, anew = StateFolder(), StateFolder()
        followed.build()
        topic = self.rig.topics.state
        for offset, record in enumerate(each for each in self.rig.written if each.topic == topic):
            followed.fold(Record(topic, 0, offset, 0, record.key, record.value))
        for offset, (key, value) in enumerate(self.rig.state.items()):
            anew.fold(Record(topic, 0, offset, 0, key, value))
        anew.build()
        return [followed.rms[RM], anew.rms[RM]]

    def asked(self) -> PendingDao:
        """Return the ask's explanation; it must be the same from all followers and from the scheduler's own state."""
        first, *others = [self._asked(each) for each in (*self.followers(), self.rig.machine.rms[RM])]
        for other in others:
            assert other == first
        return first

    def _asked(self, state: RmEntry) -> PendingDao:
        partition = state.core.partitions["default"]
        return asks.ask(state, partition, partition.apps["x"].asks["k"], self.rig.now_ns)

    def told(self) -> list[Told]:
        asked = self.asked()
        past = [Told(each.reason, self._s(each.since), self._s(each.until)) for each in asked.history]
        return [*past, Told(asked.reason, self._s(asked.since))]

    def _s(self, at_ns: int) -> float:
        return (at_ns - self.start_ns) / SECOND_NS


def test_a_wait_for_the_callback_stream_has_its_times() -> None:
    world = World(**ABSENT)
    world.rig.wait(10)
    assert world.told() == [Told("RM_ABSENT", 0)]
    world.stream(1)
    world.rig.wait(5)
    assert world.told() == [Told("RM_ABSENT", 0, 10), Told("LARGER_THAN_ANY_NODE", 10)]
    assert [each.message for each in world.asked().history] == [
        "The resource manager wants predicate calls before placements, but its callback stream was closed."
    ]
    world.stream(2, connected=False)
    world.rig.wait(20)
    held = [Told("RM_ABSENT", 0, 10), Told("LARGER_THAN_ANY_NODE", 10, 15)]
    assert world.told() == [*held, Told("RM_ABSENT", 15)]
    world.stream(3)
    world.rig.wait(1)
    after = [*held, Told("RM_ABSENT", 15, 35), Told("LARGER_THAN_ANY_NODE", 35)]
    assert world.told() == after
    world.rig.rebuild(random.Random(1))
    world.rig.wait(1)
    assert world.told() == after


@pytest.mark.parametrize(
    ("extra", "away_s"),
    [
        pytest.param(ABSENT, 0.9, id="its stream comes back within a moment"),
        pytest.param({}, 5, id="it need not be asked"),
    ],
)
def test_no_absence_is_reported_if_the_rm_need_not_be_asked(extra: dict[str, str], away_s: float) -> None:
    world = World(**extra)
    world.stream(1)
    world.rig.wait(5)
    world.stream(2, connected=False)
    world.rig.wait(away_s)
    world.stream(3)
    assert world.told() == [Told("LARGER_THAN_ANY_NODE", 0)]


def test_absence_begins_and_ends_with_the_configuration_that_asks_for_it() -> None:
    def configure(absent: str) -> None:
        extra = {"muster.callbacks.absent": absent}
        world.rig.send(si.UpdateConfigurationRequest(rmID=RM, config=make.CONFIG, extraConfig=extra))

    world = World()
    world.stream(1)
    world.stream(2, connected=False)
    world.rig.wait(10)
    configure("wait")
    world.rig.wait(10)
    assert world.told() == [Told("LARGER_THAN_ANY_NODE", 0, 10), Told("RM_ABSENT", 10)]
    configure("accept")
    world.rig.wait(10)
    assert world.told() == [
        Told("LARGER_THAN_ANY_NODE", 0, 10), Told("RM_ABSENT", 10, 20), Told("LARGER_THAN_ANY_NODE", 20),
    ]  # fmt: skip


def test_an_operators_pause_precedes_a_simultaneous_absence() -> None:
    world = World(**ABSENT)
    world.rig.wait(10)
    world.rig.send(pb.AdminCommand(pause="new racks"))
    world.rig.wait(10)
    assert world.told() == [Told("RM_ABSENT", 0, 10), Told("RM_HELD", 10)]
    world.stream(1)
    world.rig.wait(10)
    assert world.told() == [Told("RM_ABSENT", 0, 10), Told("RM_HELD", 10)]
    world.rig.send(pb.AdminCommand(resume=True))
    world.rig.wait(10)
    world.stream(2, connected=False)
    world.rig.wait(10)
    before = [Told("RM_ABSENT", 0, 10), Told("RM_HELD", 10, 30), Told("LARGER_THAN_ANY_NODE", 30, 40)]
    assert world.told() == [*before, Told("RM_ABSENT", 40)]
    world.rig.send(pb.AdminCommand(pause="again"))
    world.rig.wait(10)
    world.rig.send(pb.AdminCommand(resume=True))
    world.rig.wait(10)
    assert world.told() == [*before, Told("RM_ABSENT", 40, 50), Told("RM_HELD", 50, 60), Told("RM_ABSENT", 60)]


@pytest.mark.parametrize("ends", [SourceState.LIVE, SourceState.STALE])
def test_a_wait_for_a_source_has_its_times(ends: SourceState) -> None:
    world = World(SyncGate("life-1", {RM: (("default", "vms"),)}))
    world.rig.wait(10)
    world.rig.send(make.said(state=SourceState.LISTING))
    assert world.told() == [Told("SOURCE_LISTING", 0)], "the wait began with the registration"
    world.rig.wait(10)
    world.rig.send(make.said(state=ends))
    world.rig.wait(5)
    after = [Told("SOURCE_LISTING", 0, 20), Told("LARGER_THAN_ANY_NODE", 20)]
    assert world.told() == after
    assert [each.message for each in world.asked().history] == [
        "Nothing was scheduled until source vms had listed all its objects."
    ]
    world.rig.rebuild()
    world.rig.wait(5)
    assert world.told() == after


def test_a_scheduler_that_starts_again_waits_from_then_on_and_goes_on_with_a_wait_that_was_not_over() -> None:
    world = World(SyncGate("life-1", {RM: (("default", "vms"),)}))
    world.rig.send(make.said(state=SourceState.LIVE))
    world.rig.wait(10)
    world.rig.gate = SyncGate("life-2", {RM: (("default", "vms"),)})
    world.rig.rebuild()
    world.rig.wait(1)
    world.rig.send(make.said(state=SourceState.LISTING, life="life-2"))
    assert world.told() == [Told("LARGER_THAN_ANY_NODE", 0, 10), Told("SOURCE_LISTING", 10)]
    world.rig.wait(9)
    world.rig.gate = SyncGate("life-3", {RM: (("default", "vms"),)})
    world.rig.rebuild()
    world.rig.wait(10)
    world.rig.send(make.said(state=SourceState.LIVE, life="life-3"))
    world.rig.wait(5)
    after = [Told("LARGER_THAN_ANY_NODE", 0, 10), Told("SOURCE_LISTING", 10, 30), Told("LARGER_THAN_ANY_NODE", 30)]
    assert world.told() == after


def test_a_start_without_the_source_ends_the_wait_for_it() -> None:
    world = World(SyncGate("life-1", {RM: (("default", "vms"),)}))
    world.rig.wait(10)
    world.rig.gate = SyncGate("life-2")
    world.rig.rebuild()
    world.rig.settle()
    world.rig.wait(5)
    assert world.told() == [Told("SOURCE_LISTING", 0, 10), Told("LARGER_THAN_ANY_NODE", 10)]


def test_a_source_that_lists_again_while_all_is_decided_is_no_reason() -> None:
    world = World(SyncGate("life-1", {RM: (("default", "vms"),)}))
    world.rig.send(make.said(state=SourceState.LIVE))
    world.rig.wait(5)
    world.rig.send(make.said(state=SourceState.LISTING))
    world.rig.wait(5)
    assert world.told() == [Told("LARGER_THAN_ANY_NODE", 0)]


def test_of_each_kind_the_last_eight_are_kept() -> None:
    """A stream that opens and ends often does not push out an operator's pause. The history of an ask is bounded."""
    world = World(**ABSENT)
    world.rig.send(pb.AdminCommand(pause="new racks"))
    world.rig.wait(2)
    world.rig.send(pb.AdminCommand(resume=True))
    for epoch in range(1, 21):
        world.stream(2 * epoch)
        world.rig.wait(2)
        world.stream(2 * epoch + 1, connected=False)
        world.rig.wait(2)
    pauses = world.followers()[1].info.pauses
    assert [each.kind for each in pauses] == [PauseKind.OPERATOR] + 8 * [PauseKind.ABSENT]
    history: list[PastDao] = world.asked().history
    assert len(history) == 8
    assert all(one.until <= other.since for one, other in pairwise(history))


def test_a_pause_of_a_kind_that_a_later_version_knows_is_passed_over() -> None:
    known = pb_state.PauseObject(since_ns=1, until_ns=2, reason="known")
    later = pb_state.PauseObject(since_ns=3, until_ns=4, kind=99)  # type: ignore[arg-type]
    read = state_folder._pauses_of(pb_state.RegistrationObject(pauses=[known, later]))
    assert [each.reason for each in read] == ["known"]
