"""The sorted line does what a sorted list does, however long it is and wherever it changes."""

from __future__ import annotations

import random

import pytest
from muster_core.model.sorted_queue import CHUNK_MAX, SortedQueue


def _line(*numbers: int) -> SortedQueue:
    line = SortedQueue()
    for number in numbers:
        line.add((number,))
    return line


def test_an_empty_line_is_false() -> None:
    line = SortedQueue()
    assert not line
    assert len(line) == 0
    assert list(line) == []


def test_entries_are_in_ascending_order_and_the_first_is_the_least() -> None:
    line = _line(3, 1, 2)
    assert line
    assert list(line) == [(1,), (2,), (3,)]
    assert line.first() == (1,)


def test_a_removed_entry_is_gone() -> None:
    line = _line(3, 1, 2)
    line.remove((1,))
    assert list(line) == [(2,), (3,)]
    assert line.first() == (2,)


def test_a_cleared_line_can_be_used_again() -> None:
    line = _line(*range(2 * CHUNK_MAX))
    line.clear()
    assert not line
    line.add((7,))
    assert list(line) == [(7,)]


def test_an_entry_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(AssertionError, match="not in the line"):
        _line(1, 3).remove((2,))


def test_the_last_parts_of_entries_are_never_compared() -> None:
    line = SortedQueue()
    first, second = object(), object()
    line.add((2, second))
    line.add((1, first))
    assert line.first()[-1] is first
    line.remove((1, first))
    assert line.first()[-1] is second


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_agree_with_a_sorted_list(seed: int) -> None:
    chance = random.Random(seed)
    line, expected = SortedQueue(), set[int]()
    most = CHUNK_MAX * chance.choice((1, 4, 9))
    for step in range(12 * CHUNK_MAX):
        growing = len(expected) < most if step % (3 * CHUNK_MAX) < 2 * CHUNK_MAX else not expected
        if growing:
            number = chance.randrange(1 << 30) if chance.random() < 0.7 else step
            if number not in expected:
                expected.add(number)
                line.add((number,))
        else:
            number = min(expected) if chance.random() < 0.7 else chance.choice(sorted(expected)[:50])
            expected.remove(number)
            line.remove((number,))
        assert bool(line) == bool(expected)
        assert not expected or line.first() == (min(expected),)
        if step % CHUNK_MAX == 0:
            assert list(line) == [(number,) for number in sorted(expected)]
    assert list(line) == [(number,) for number in sorted(expected)]
    assert len(line) == len(expected)


def test_a_long_line_that_goes_entry_by_entry_from_its_end() -> None:
    count = 3 * CHUNK_MAX
    line = _line(*range(count))
    for number in reversed(range(count)):
        line.remove((number,))
        assert len(line) == number
    assert not line
