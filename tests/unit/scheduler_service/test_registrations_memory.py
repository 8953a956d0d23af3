"""An RM that registers again and again, with many queues, leaves nothing of its earlier registrations in memory."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from unit.scheduler_service.rig import Rig

KINDS = ("Queue", "Partition")
REGISTRATIONS, QUEUES = 6, 40


def config(turn: int) -> str:
    leaves = ", ".join(f"{{name: q{number}, resources: {{max: {{vcore: {turn}}}}}}}" for number in range(QUEUES))
    return f"partitions: [{{name: default, queues: [{{name: root, submitacl: '*', queues: [{leaves}]}}]}}]"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def living() -> Counter[str]:
    return Counter(name for each in gc.get_objects() if (name := type(each).__name__) in KINDS)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("followed", [False, True])
def test_many_registrations_take_the_memory_of_one(*, followed: bool) -> None:
    rig = Rig()
    rig.register(config(1))
    if followed:
        rig.follow()
    one = living()
    assert one["Queue"] > QUEUES
    for turn in range(2, REGISTRATIONS + 2):
        assert rig.register(config(turn)).accepted
    more = living() - one
    # (An ended core's empty root stays in the circle of its parts until a collection.)
    assert more["Queue"] <= more["Partition"] <= REGISTRATIONS * (1 + followed)
