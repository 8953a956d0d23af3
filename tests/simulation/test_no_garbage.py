"""In random lives nothing ends in a circle of references, which would wait for a collection of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from muster_core.config.queue_config import ClusterConfig
from muster_core.model.steps import finish
from muster_core.scheduler import SchedulerCore
from simulation.circles import unreachable
from simulation.stories import KINDS, Kind, new_life

pytestmark = pytest.mark.source  # it replaces a method

LIVES, STEPS = 2, 40
OUTLIVE_CORES = {"ReportedObject", "SourceEntry"}  # the statements of external sources


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SchedulerCore]]:
    """All cores that begin. They stay, so that only what ended within one can be garbage."""
    found: list[SchedulerCore] = []
    begin = SchedulerCore.__init__

    def noted(self: SchedulerCore, *given: Any, **more: Any) -> None:
        found.append(self)
        begin(self, *given, **more)

    finish(SchedulerCore(ClusterConfig(())).dispose())  # (The first one makes what all later ones share.)
    monkeypatch.setattr(SchedulerCore, "__init__", noted)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()
    found.clear()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.features or "any")
def test_what_ends_in_a_life_leaves_no_circle(kind: Kind, cores: list[SchedulerCore]) -> None:
    for seed in range(LIVES):
        life = new_life(kind, seed, check_core=False)
        life.live(STEPS)
        assert not unreachable(), f"seed {seed}"
        # Nor do whole cores, once they are taken apart: those that lived, that were folded, and that followed.
        for core in cores:
            finish(core.dispose())
        cores.clear()
        del life, core
        assert unreachable().keys() <= OUTLIVE_CORES, f"seed {seed}: taken apart"
