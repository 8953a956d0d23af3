"""What sources say about very many objects, and what a new configuration ends: the core pauses after each few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from muster_core import invariants
from muster_core.config.queue_config import ClusterConfig, PartitionConfig, QueueConfig
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.model.commands import Command, UpdateConfiguration
from muster_core.model.outcome import ConfigurationResult, Outcome
from muster_core.model.steps import LIGHT_STEP, STEP
from muster_core.scheduler import SchedulerCore

# Each allocation of a source that comes or ends changes two objects, and has up to three events.
GROWTH_OF_ONE = 6
FEW, MANY = 1_000, 3_000
HOST, APP = ExternalNode("h", {"vcore": 1 << 40}), ExternalApplication("a", "root.a", "ann")


def _partition(name: str) -> PartitionConfig:
    return PartitionConfig(name, QueueConfig("root", queues=(QueueConfig("a"), QueueConfig("b"))))


BOTH, ONE = (ClusterConfig(tuple(map(_partition, names))) for names in (("default", "others"), ("default",)))


def _said(*objects: ExternalObject, life: str = "1") -> ApplyExternalChanges:
    changes = tuple(ExternalChange(kind_of(each), id_of(each), each) for each in objects)
    return ApplyExternalChanges("others", "vms", life, changes)


def _gone(kind: ExternalKind, object_id: str) -> ApplyExternalChanges:
    return ApplyExternalChanges("others", "vms", "1", (ExternalChange(kind, object_id, None),))


def _live(life: str = "1") -> SetSourceState:
    return SetSourceState("others", "vms", life, SourceState.LIVE)


def _core(count: int, *others: ExternalObject) -> SchedulerCore:
    """So many VMs of an application of a source, on one host."""
    core = SchedulerCore(BOTH)
    core.start(1)
    vms = (ExternalAllocation(f"v{number}", "h", {"vcore": 1}, "a") for number in range(count))
    core.apply(_said(*others, *vms), 2)
    core.apply(_live(), 2)
    invariants.check(core)
    return core


def _grows(steps: Iterator[None], out: Outcome) -> tuple[int, int]:
    """The most that the outcome grows in one step, and the number of steps."""
    longest = before = count = 0
    for _ in steps:
        longest, before, count = max(longest, out.size - before), out.size, count + 1
    return max(longest, out.size - before), count


COMMANDS: dict[str, tuple[Command, tuple[ExternalObject, ...]]] = {
    "a listing without them": (_live("2"), (HOST, APP)),
    "their host goes": (_gone(ExternalKind.NODE, "h"), (HOST, APP)),
    "their application goes": (_gone(ExternalKind.APPLICATION, "a"), (HOST, APP)),
    "their host comes": (_said(HOST), (APP,)),
    "their application comes": (_said(APP), (HOST,)),
    "the configuration leaves their partition out": (UpdateConfiguration(ONE), (HOST, APP)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_step_has_few_objects_however_many_a_source_has(name: str) -> None:
    command, others = COMMANDS[name]
    counts = []
    for size in (FEW, MANY):
        core, out = _core(size, *others), Outcome()
        longest, count = _grows(core.apply_in_steps(command, 3, out), out)
        assert out.size > size, "each VM left something"
        assert longest <= 2 * STEP * GROWTH_OF_ONE, "the work of one step"
        assert all(not fact.obstacles for fact in out.facts if isinstance(fact, ConfigurationResult))
        invariants.check(core)
        counts.append(count)
    assert counts[1] >= 1.8 * counts[0] > 0, "the number of steps grows with the objects"


def test_a_new_core_takes_what_sources_said_before_in_steps() -> None:
    books, out = _core(MANY, HOST, APP).external, Outcome()
    core = SchedulerCore(BOTH, external=books)
    longest, count = _grows(core.start_in_steps(3, out), out)
    assert out.size > MANY
    assert longest <= 2 * STEP * GROWTH_OF_ONE
    assert count >= MANY // STEP


def test_the_invariants_are_checked_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = [0]
    must: Callable[..., Any] = invariants._must

    def counted(*given: Any) -> None:
        checked[0] += 1
        must(*given)

    monkeypatch.setattr(invariants, "_must", counted)
    for size in (FEW, MANY):
        core, checked[0], longest, before, count = _core(size, HOST, APP), 0, 0, 0, 0
        checked[0] = 0
        for _ in invariants.check_in_steps(core, merges=False):
            longest, before, count = max(longest, checked[0] - before), checked[0], count + 1
        assert checked[0] > 3 * size, "each VM is looked at more than once"
        assert longest <= 6 * LIGHT_STEP
        assert count >= size // LIGHT_STEP
