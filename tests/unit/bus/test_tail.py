"""The newest records of a partition in memory (backends/tail.py)."""

from __future__ import annotations

import random
import weakref
from typing import Any, cast

import pytest
from muster_bus.backends.tail import PartitionTail


class Item:
    """Stands for a record, and can be watched."""


def items(count: int) -> list[Any]:
    return [Item() for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
async def test_a_tail_has_what_was_not_dropped_and_keeps_nothing_else(seed: int) -> None:
    dice = random.Random(seed)
    tail, base, kept, sizes = PartitionTail(7), 7, cast("list[Any]", []), 0
    watched: weakref.WeakSet[Item] = weakref.WeakSet()
    for _ in range(1_000):
        more = items(dice.choice([0, 1, 1, 3, 40, 300, 1_000]))
        watched.update(more)
        sizes += 10 * len(more)
        tail.extend(more, 10 * len(more))
        kept += more
        end = base + len(kept)
        while len(kept) > 2_000:
            sizes -= tail.drop_oldest()
            gone = tail.base - base
            assert 0 < gone <= 256, "one step frees few records"
            base += gone
            del kept[:gone]
        del more
        assert (tail.base, tail.end) == (base, end)
        at, most = dice.randint(base, end), dice.choice([1, 10, 700])
        assert list(tail.slice(at, most) or ()) == kept[at - base : at - base + most]
        assert tail.slice(base - 1, 10) is None
        assert len(watched) == len(kept), "dropped records keep their memory"
    while tail.base < tail.end:
        sizes -= tail.drop_oldest()
    assert sizes == 0, "what came in goes out"


async def test_a_tail_from_which_all_is_dropped_is_empty() -> None:
    tail = PartitionTail(0)
    assert tail.extend(items(2), 20) == 1
    assert tail.drop_oldest() == 20
    assert tail.drop_oldest() == 0
    assert (tail.base, tail.end) == (2, 2)
    assert tail.slice(2, 10) == ()


async def test_records_that_nobody_kept_are_not_there_and_later_ones_are() -> None:
    tail = PartitionTail(0)
    woken: list[int] = []
    tail.on_more(lambda: woken.append(tail.end))
    before, after = items(3), items(2)
    tail.extend(before, 3)
    tail.skip(10)
    assert (tail.base, tail.end, woken) == (13, 13, [3, 13])
    assert tail.slice(2, 10) is None
    tail.extend(after, 2)
    assert tail.slice(12, 10) is None
    assert tail.slice(13, 10) == after
    assert tail.slice(14, 10) == after[1:]
    assert tail.drop_oldest() == 3, "older records go first"
    assert (tail.base, tail.end) == (13, 15)


async def test_large_records_are_parts_of_their_own() -> None:
    tail = PartitionTail(0)
    for _ in range(10):
        assert tail.extend(items(1), 60_000) == 1
    assert tail.drop_oldest() == 60_000


async def test_all_before_an_offset_goes_at_once() -> None:
    tail = PartitionTail(0)
    kept = items(600)
    tail.extend(kept, 600)
    tail.drop_before(300)
    assert tail.slice(299, 1) is None
    assert tail.slice(300, 1_000) == kept[300:]
