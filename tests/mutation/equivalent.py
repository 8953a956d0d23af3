"""Mutants that change nothing anybody could notice: found by hand, each with its reason. They are not tried."""

from __future__ import annotations

from functools import cache

from mutation.mutants import Mutant, named

# Module, function, text before and after, and why it is the same.
EQUIVALENT: tuple[tuple[str, str, str, str, str], ...] = ()


@cache
def _all() -> frozenset[Mutant]:
    return frozenset(named(*each[:4]) for each in EQUIVALENT)


def is_equivalent(mutant: Mutant) -> bool:
    return mutant in _all()
