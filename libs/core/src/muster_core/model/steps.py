"""Long work in steps: a generator that pauses after each few objects, so that its caller may do other work between.

Nothing else may use the core between two steps. Whoever has no other work runs all steps with :func:`finish`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping
from itertools import islice, pairwise
from typing import Any, TypeVar

#: Asks, allocations or other objects of one step: about a millisecond.
STEP = 128
#: Asks or releases of a request, or tries to place an ask, of one step: about half a millisecond.
SOME = 32
#: Applications and nodes of one step, which may have up to a hundred other objects each.
FEW = 8
#: What items of one step may add to an outcome: about as much as STEP allocations that end.
GROWTH = 4 * STEP
# Sorted at once: about a millisecond, too.
_SORTED_AT_ONCE = 1024
# Sorted runs that are joined at once.
_RUNS_AT_ONCE = 8
# Objects that are freed, or only moved, cost a tenth.
LIGHT_STEP = 1024

Steps = Generator[None, None, None]
T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Runs all steps. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Pace:
    """Divides work of nested loops into steps.

    :param step: the amount of work of one step; 0: as many objects as usual.
    """

    __slots__ = ("_left", "_step")

    def __init__(self, step: int = 0) -> None:
        self._left = self._step = step or STEP

    def is_over(self, work: int = 1) -> bool:
        """Counts work. Returns whether the step is over: the caller pauses then."""
        self._left -= work
        if self._left > 0:
            return False
        self._left = self._step
        return True


def emptied(items: list[T]) -> Iterator[T]:
    """Yields the items in their order, and removes each from the list: a long one is not freed at once."""
    items.reverse()
    while items:
        yield items.pop()


def sorted_in_steps(items: Iterable[T], key: Callable[[T], Any]) -> Generator[None, None, list[T]]:
    """Returns what ``sorted(items, key=key)`` does. O(n) for items that are nearly in order already."""
    source = iter(items)
    runs: list[list[T]] = []
    while run := sorted(islice(source, _SORTED_AT_ONCE), key=key):
        if runs and key(run[0]) < key(runs[-1][-1]):
            # Neighbours overlap where a decision's objects are in two runs: together they are often in order again.
            both = sorted(runs[-1] + run, key=key)
            runs[-1], run = both[:_SORTED_AT_ONCE], both[_SORTED_AT_ONCE:]
        runs.append(run)
        if len(run) == _SORTED_AT_ONCE:
            yield
    if all(key(before[-1]) <= key(after[0]) for before, after in pairwise(runs)):
        joined: list[T] = []
        for count, run in enumerate(emptied(runs), 1):
            joined += run
            if not count % _RUNS_AT_ONCE:
                yield
        return joined
    merged: list[T] = []
    for item in heapq.merge(*map(emptied, runs), key=key):
        merged.append(item)
        if not len(merged) % _SORTED_AT_ONCE:
            yield
    return merged


def clear_in_steps(mapping: MutableMapping[Any, Any]) -> Steps:
    """Empties a mapping, from its end. What nothing else refers to is freed step by step."""
    count = 0
    while mapping:
        mapping.popitem()
        count += 1
        if not count % LIGHT_STEP:
            yield


def clear_list_in_steps(items: list[Any]) -> Steps:
    """Empties a list likewise."""
    while items:
        del items[-LIGHT_STEP:]
        yield
