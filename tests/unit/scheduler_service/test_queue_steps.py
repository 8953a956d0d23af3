"""Queues of a registration or a configuration are built in short goes, in the scheduler and in followers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from builders import snapshot
from muster_bus.log import OutRecord, Record
from muster_core.model.steps import SOME
from muster_core.queues.queue_tree import QueueTree
from muster_proto.si.v1 import si_pb2 as si
from muster_state.state_folder import StateFolder
from unit.scheduler_service.rig import RM, Rig, envelope, registration

QUEUES = 300
# (The last queues that are made and the first that are announced may be in one step.)
MOST = 2 * SOME
pytestmark = pytest.mark.source


def config(most: int) -> str:
    leaves = ", ".join(f"{{name: q{number}, resources: {{max: {{vcore: {most}}}}}}}" for number in range(QUEUES))
    return f"partitions: [{{name: default, queues: [{{name: root, submitacl: '*', queues: [{leaves}]}}]}}]"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues that are made, configured or announced, in order."""
    done: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(QueueTree, name)

        def method(self: QueueTree, *arguments: Any) -> Any:
            done.append(name)
            return original(self, *arguments)

        return method

    for name in ("configure_queue", "announce_queue"):
        monkeypatch.setattr(QueueTree, name, noted(name))
    return done


def longest(steps: Iterable[object], work: list[str]) -> int:
    """The most queues of one step."""
    most, before = 0, len(work)
    for _ in steps:
        most, before = max(most, len(work) - before), len(work)
    return max(most, len(work) - before)


def records(rig: Rig, body: object) -> Sequence[Record]:
    return [Record(rig.topics.requests, 0, 0, 0, RM.encode(), envelope(body).SerializeToString())]


def test_a_registration_is_many_steps_of_the_scheduler(work: list[str]) -> None:
    rig, expected = Rig(), Rig()
    expected.register(config(1))
    work.clear()
    assert longest(rig.machine.apply_in_steps(records(rig, registration(config(1))), rig.now_ns), work) <= MOST
    assert work.count("configure_queue") == work.count("announce_queue") == QUEUES + 1
    assert snapshot(rig.core) == snapshot(expected.core)


def test_another_configuration_is_many_steps_of_the_scheduler(work: list[str]) -> None:
    rig, expected = Rig(), Rig()
    update = si.UpdateConfigurationRequest(rmID=RM, config=config(2))
    for each in (rig, expected):
        each.register(config(1))
    expected.send(update)
    work.clear()
    assert longest(rig.machine.apply_in_steps(records(rig, update), rig.now_ns), work) <= MOST
    assert work.count("configure_queue") == QUEUES + 1
    assert snapshot(rig.core) == snapshot(expected.core)
    assert [each.maximum for each in rig.core.partitions["default"].queues.values()] == [
        each.maximum for each in expected.core.partitions["default"].queues.values()
    ]


@pytest.mark.parametrize("before", [False, True])
def test_a_follower_builds_a_registration_in_many_steps(work: list[str], *, before: bool) -> None:
    rig, folder = Rig(), StateFolder()
    folder.build()
    if before:
        rig.register(config(1))
        for record in state_of(rig, rig.written):
            folder.fold(record)
    rig.written.clear()
    rig.register(config(2))
    for record in state_of(rig, rig.written):
        work.clear()
        steps = 0
        for _ in folder.take_in_steps(record):
            steps += 1
            assert RM not in folder.rms, "half of a core is shown"
            assert len(work) <= MOST * steps
        assert len(work) <= MOST * (steps + 1)
    assert snapshot(folder.rms[RM].core) == snapshot(rig.core)


def state_of(rig: Rig, written: Iterable[OutRecord]) -> Iterable[Record]:
    for offset, record in enumerate(each for each in written if each.topic == rig.topics.state):
        yield Record(record.topic, 0, offset, 0, record.key, record.value)
