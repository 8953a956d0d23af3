"""The laws notice what features miss of each other: the core is broken on purpose where two of them meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from muster_core.allocation.long_wait import LongWait
from muster_core.predicates.questions import Questions
from simulation.noticing import must_be_noticed
from simulation.stories import KINDS, MIXED, new_life

# Lives in which it comes up; then others are tried.
HINTS = (23, 1, 3)
SEEDS = range(30)
STEPS = 50

Break = Callable[[pytest.MonkeyPatch], None]


def _limits_of_sources_leave_proposals(patch: pytest.MonkeyPatch) -> None:
    """What is proposed stays so, where a source lowers a limit or uses it up."""
    patch.setattr(Questions, "limits_shrank", lambda *_: None)


def _vms_leave_proposals(patch: pytest.MonkeyPatch) -> None:
    """What is proposed stays so, where a VM takes the room."""
    patch.setattr(Questions, "node_shrank", lambda *_: None)


def _an_awaited_answer_keeps_it_busy(patch: pytest.MonkeyPatch) -> None:
    """The scheduler decides over and over again while the RM is asked about one proposal at a time."""
    patch.setattr(LongWait, "waiting", property(lambda self: bool(self._due)))


BREAKS: dict[Break, set[str]] = {
    _limits_of_sources_leave_proposals: {"queue", "pool"},
    _vms_leave_proposals: {"over-commit", "offer"},
    _an_awaited_answer_keeps_it_busy: {"rest"},
}
FIRST: dict[Break, list[int]] = {
    _limits_of_sources_leave_proposals: [375],
    _an_awaited_answer_keeps_it_busy: [6],
    _vms_leave_proposals: [3],
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__.strip("_"))
def test_the_auditor_notices(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    life = partial(new_life, KINDS[MIXED], check_core=False)
    must_be_noticed(broken.__doc__ or "", BREAKS[broken], [*FIRST.get(broken, ()), *HINTS, *SEEDS], STEPS, life)
