"""The laws notice what features miss of each other: the core is broken on purpose where two of them meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from muster_core.predicates.predicate_calls import PredicateCalls
from simulation.noticing import must_be_noticed
from simulation.stories import KINDS, MIXED, new_life

# Lives in which it comes up; then others are tried.
HINTS = (23, 1, 3)
SEEDS = range(30)
STEPS = 50

Break = Callable[[pytest.MonkeyPatch], None]


def _vms_leave_proposals(patch: pytest.MonkeyPatch) -> None:
    """What is proposed stays so, where a VM takes the room."""
    patch.setattr(PredicateCalls, "on_node_shrunk", lambda *_: None)


BREAKS: dict[Break, set[str]] = {
    _vms_leave_proposals: {"over-commit", "offer"},  # rare
}
FIRST: dict[Break, list[int]] = {
    _vms_leave_proposals: [3],
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__.strip("_"))
def test_the_auditor_notices(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    life = partial(new_life, KINDS[MIXED], check_core=False)
    must_be_noticed(broken.__doc__ or "", BREAKS[broken], [*FIRST.get(broken, ()), *HINTS, *SEEDS], STEPS, life)
