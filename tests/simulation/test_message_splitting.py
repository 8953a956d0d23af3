"""Cutting a message into single items, in order, never changes the outcome: random messages of both generations.

What "the same outcome" means, and who hears what: ``messages.py``. One life that failed: the line that it prints.
"""

from __future__ import annotations

import os

import pytest
from simulation.messages import SplitLife

LIVES = int(os.environ.get("MUSTER_SPLIT_LIVES", "150"))
LIVES_EACH = 50
# What must have come up in the lives, or they show nothing.
SEEN = {
    *(
        f"AllocationResponse.{field}"
        for field in ("new", "released", "rejected", "releasedAsks", "rejectedAllocations")
    ),
    *(f"ApplicationResponse.{field}" for field in ("accepted", "rejected", "updated")),
    *(f"NodeResponse.{field}" for field in ("accepted", "rejected")),
    *(f"the gateway: {field}" for field in ("rejected", "rejectedAllocations")),
    *(f"generation: {generation}" for generation in ("", "current", "previous")),
}


@pytest.mark.parametrize("first", range(0, LIVES, LIVES_EACH), ids=lambda first: f"from-seed-{first}")
def test_one_message_or_many_the_same_outcome(first: int) -> None:
    seen: set[str] = set()
    for seed in range(first, first + LIVES_EACH):
        life = SplitLife(seed)
        life.live()
        seen |= life.seen
    assert seen >= SEEN
