"""That an auditor notices: lives of a core that was broken on purpose, until one of the expected checks fails."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest


def must_be_noticed(
    what: str, checks: set[str], seeds: Collection[int], noticed_in: Callable[[int], list[str]]
) -> None:
    """Fails when no life notices it.

    :param noticed_in: lives one seed; gives the checks that failed.
    """
    noticed: list[str] = []
    for seed in seeds:
        noticed += noticed_in(seed)
        if checks & set(noticed):
            return
    pytest.fail(f"{len(seeds)} lives with {what} broken, and the auditor noticed {noticed}")
