"""That an auditor notices: lives of a core that was broken on purpose, until one of the expected checks fails."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from simulation.books import AuditFailure
from simulation.external_life import ExternalLife
from simulation.life import Life


def must_be_noticed(
    what: str,
    checks: Collection[str],
    seeds: Collection[int],
    steps: int,
    new_life: Callable[[int], Life | ExternalLife],
) -> None:
    """Fails if no life notices the break. (A broken core may also crash; then the next life is tried.)"""
    noticed: list[str] = []
    for seed in seeds:
        try:
            new_life(seed).live(steps)
        except AuditFailure as failure:
            noticed.append(failure.check)
        except Exception as error:
            noticed.append(type(error).__name__)
        if set(checks) & set(noticed):
            return
    pytest.fail(f"{len(seeds)} lives with {what} broken, and the auditor noticed {noticed}")
