"""The previous generation of the interface (previous generation): repeats, UUIDs, releases of asks."""

from __future__ import annotations

import pytest
from muster_proto.si.v1 import si_pb2 as si
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import Rig


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.register()
    made.send(make.node("n", vcore=10), make.application("x", "root.c"))
    return made


def _new(rig: Rig) -> list[si.Allocation]:
    return rig.of("new")  # type: ignore[return-value]


def _released(rig: Rig) -> list[tuple[str, str]]:
    return [(item.allocationKey, item.UUID) for item in rig.of("released")]  # type: ignore[attr-defined]


def test_repeats_are_counted_down_each_with_its_uuid(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 4, vcore=3))
    assert [item.allocationKey for item in _new(rig)] == ["k"] * 3
    ask = rig.core.partitions["default"].apps["x"].asks["k"]
    assert (ask.pending, ask.allocated) == (1, 3)
    assert len({item.UUID for item in _new(rig)}) == 3
    assert all(item.UUID for item in _new(rig))
    rig.send(make.node("n2", vcore=3))
    assert len(_new(rig)) == 4
    assert rig.core.partitions["default"].apps["x"].asks == {}


def test_a_release_by_uuid_takes_one(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 3, vcore=1))
    first, second, third = (item.UUID for item in _new(rig))
    rig.send(make.release("x", uuid=second))
    assert _released(rig) == [("k", second)]
    rig.send(make.release("x", "k", uuid=third), make.release("x", uuid=second), make.release("x", uuid="unknown"))
    assert _released(rig) == [("k", second), ("k", third), ("", second), ("", "unknown")]  # two of nothing
    assert [held.uuid for held in rig.core.partitions["default"].apps["x"].allocations.values()] == [first]


def test_a_release_by_key_takes_all_of_the_ask(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 3, vcore=1), make.old_ask("x", "other", 1, vcore=1))
    rig.send(make.release("x", "k"))
    assert [key for key, _ in _released(rig)] == ["k"] * 3
    assert list(rig.core.partitions["default"].apps["x"].allocations) == ["other"]


def test_a_release_by_uuid_leaves_the_pending_repeats(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 4, vcore=5))
    assert len(_new(rig)) == 2
    rig.send(make.release("x", uuid=_new(rig)[0].UUID))
    assert len(_new(rig)) == 3
    assert rig.core.partitions["default"].apps["x"].asks["k"].pending == 1


def test_an_ask_sent_again_counts_what_it_has_had(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 2, vcore=2))
    rig.send(make.old_ask("x", "k", 2, vcore=2))
    assert len(_new(rig)) == 2
    rig.send(make.old_ask("x", "k", 3, vcore=2))
    assert len(_new(rig)) == 3
    assert len({item.UUID for item in _new(rig)}) == 3


def test_an_ask_sent_again_after_a_part_was_released_overwrites_nothing(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 3, vcore=1))
    rig.send(make.release("x", uuid=_new(rig)[0].UUID))
    rig.send(make.old_ask("x", "k", 3, vcore=1))
    assert len(_new(rig)) == 3  # it has had three
    rig.send(make.old_ask("x", "k", 5, vcore=1))
    held = rig.core.partitions["default"].apps["x"].allocations
    assert sorted(held) == ["k#1", "k#2", "k#3", "k#4"]
    rig.rebuild()
    rig.send(make.release("x", "k"))
    assert len(_released(rig)) == 5


def test_fewer_repeats_than_there_were_end_the_ask(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 4, vcore=4))
    rig.send(make.old_ask("x", "k", 2, vcore=4))
    assert rig.core.partitions["default"].apps["x"].asks == {}
    assert len(_new(rig)) == 2


def test_asks_are_released_without_their_allocations(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 4, vcore=4), make.old_ask("x", "other", 1, vcore=40))
    rig.send(make.ask_release("x", "k"))
    app = rig.core.partitions["default"].apps["x"]
    assert (list(app.asks), len(app.allocations)) == (["other"], 2)
    rig.send(make.ask_release("x"))
    assert (app.asks, len(app.allocations)) == ({}, 2)
    assert _released(rig) == []
    assert rig.keys("releasedAsks") == ["k", "other"]
    rig.send(make.ask_release("x"))
    rig.send(make.ask_release("x", "k"))
    assert rig.keys("releasedAsks") == ["k", "other", "", "k"]
    assert [item.message for item in rig.of("releasedAsks")][2:] == [  # type: ignore[attr-defined]
        "application x has no ask: there is nothing to release",
        "application x has no ask with key k: there is nothing to release",
    ]


def test_a_uuid_alone_finds_its_allocation_in_whatever_application(rig: Rig) -> None:
    rig.send(make.application("y", "root.c"))
    rig.send(make.old_ask("x", "k", 4, vcore=3), make.old_ask("y", "k", 1, vcore=1))
    uuid = next(item.UUID for item in _new(rig) if item.applicationID == "y")
    rig.send(make.release("", uuid=uuid), make.release("", uuid=uuid))
    assert _released(rig) == [("k", uuid), ("", uuid)]
    apps = rig.core.partitions["default"].apps
    assert (len(apps["y"].allocations), len(apps["x"].allocations)) == (0, 3)
    rig.send(make.release("", uuid=_new(rig)[0].UUID))  # its ask stays wanted
    assert len(apps["x"].allocations) == 3


def test_the_release_of_an_ask_may_name_its_key_alone(rig: Rig) -> None:
    rig.send(make.application("y", "root.c"))
    rig.send(*(make.old_ask(app, key, 1, vcore=40) for app in "xy" for key in ("k", "other")))
    rig.send(make.asks(make.allocation("", "k", "n", {"foreign": "static"}, vcore=1)))
    rig.send(make.ask_release("", "k"))
    apps = rig.core.partitions["default"].apps
    assert [list(apps[app].asks) for app in "xy"] == [["other"], ["other"]]
    assert list(rig.core.partitions["default"].foreign) == ["k"]
    rig.send(make.ask_release("", ""))
    assert [list(apps[app].asks) for app in "xy"] == [["other"], ["other"]]


def test_rejections_come_in_the_words_of_the_generation(rig: Rig) -> None:
    rig.send(make.old_ask("ghost", "old", 1, vcore=1), make.asks(make.allocation("ghost", "new", vcore=1)))
    assert rig.keys("rejected") == ["old"]
    assert rig.keys("rejectedAllocations") == ["new"]


def test_reported_allocations_keep_their_uuid_or_get_one(rig: Rig) -> None:
    given = make.allocation("x", "a", "n", vcore=1)
    given.UUID = "given"
    rig.send(make.asks(given, make.allocation("x", "b", "n", vcore=1)))
    uuids = [item.UUID for item in _new(rig)]
    assert uuids[0] == "given"
    assert uuids[1]
    rig.rebuild()
    rig.send(*(make.release("x", uuid=uuid) for uuid in uuids))
    assert _released(rig) == [("a", "given"), ("b", uuids[1])]


def test_uuids_stay_unique_over_registrations(rig: Rig) -> None:
    rig.send(make.old_ask("x", "k", 3, vcore=1))
    rig.register()
    rig.send(make.node("n", vcore=10), make.application("x", "root.c"), make.old_ask("x", "k", 3, vcore=1))
    uuids = [item.UUID for item in _new(rig)]
    assert len(uuids) == len(set(uuids)) == 6
