"""The auditors notice mutants of the core and the fold, each by the law that it breaks (law_mutants.py).

Not an assertion of the core, nor its invariants, which are not looked at here: the core must have no part in it.
"""

from __future__ import annotations

from functools import partial

import pytest
from mutation.applying import applied
from mutation.mutants import named
from simulation.law_mutants import MUTANTS, LawMutant
from simulation.manager import CALLBACKS, EXTERNAL, GANGS
from simulation.noticing import must_be_noticed
from simulation.stories import KINDS, MIXED, new_life

# By kind of life: the lives that are tried behind the mutant's own, and their steps.
LIVES = {"": (250, 50), GANGS: (40, 150), CALLBACKS: (60, 70), EXTERNAL: (60, 50), MIXED: (30, 50)}


@pytest.mark.parametrize(
    ("features", "mutant"),
    [
        pytest.param(features, mutant, id=f"{features or 'plain'}-{mutant.says}")
        for features, mutants in MUTANTS.items()
        for mutant in mutants
    ],
)
def test_the_auditor_notices(features: str, mutant: LawMutant) -> None:
    count, steps = LIVES[features]
    with applied(named(mutant.module, mutant.function, mutant.before, mutant.after, mutant.nth)):
        seeds = list(dict.fromkeys([mutant.seed, *range(count)]))
        must_be_noticed(mutant.says, {mutant.law}, seeds, steps, partial(new_life, KINDS[features], check_core=False))
