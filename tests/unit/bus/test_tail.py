"""The newest records of a partition in memory (backends/tail.py)."""

from __future__ import annotations

import random
import weakref
from typing import Any, cast

import pytest
from muster_bus.backends.tail import PartitionTail


class Item:
    """Stands for a record, and can be watched."""


@pytest.mark.parametrize("seed", range(5))
async def test_a_tail_has_what_was_not_dropped_and_keeps_little_else(seed: int) -> None:
    dice = random.Random(seed)
    tail, end, kept = PartitionTail(7), 7, cast("list[Any]", [])
    watched: weakref.WeakSet[Item] = weakref.WeakSet()
    for _ in range(2_000):
        more: list[Any] = [Item() for _ in range(dice.randint(0, 40))]
        watched.update(more)
        tail.extend(more)
        kept += more
        end += len(more)
        drop = dice.randint(0, min(len(kept), 50)) if len(kept) > 400 else 0
        tail.drop(drop)
        del kept[:drop], more
        base = end - len(kept)
        assert (tail.base, tail.end) == (base, end)
        at = dice.randint(base, end)
        assert tail.slice(at, 10) == kept[at - base : at - base + 10]
        assert tail.slice(base - 1, 10) is None
        assert len(watched) <= len(kept) * 8 / 7 + 1, "dropped records keep their memory"


async def test_a_tail_from_which_all_is_dropped_is_empty() -> None:
    tail = PartitionTail(0)
    tail.extend(cast("list[Any]", [Item(), Item()]))
    tail.drop(2)
    assert (tail.base, tail.end) == (2, 2)
    assert tail.slice(2, 10) == []
