"""The order in which allocations and asks end together."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from muster_core.model.allocation import unique_key
from muster_core.model.application import Allocation, Application, Ask
from muster_core.model.steps import sorted_in_steps


def in_order(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Sorts allocations into an order that is the same whether they were decided or folded."""
    return sorted(allocations, key=_order)


def ordered_in_steps(allocations: Iterable[Allocation]) -> Generator[None, None, list[Allocation]]:
    """Does the same in steps, where there may be very many."""
    return sorted_in_steps(allocations, _order)


def held_in_steps(app: Application, key: str) -> Generator[None, None, list[Allocation]]:
    """Returns what ``app.held(key)`` does, in steps: an ask may have very many allocations."""
    allocations = yield from sorted_in_steps(app.repeats.get(key, {}).values(), _ordinal)
    if (first := app.allocations.get(unique_key(key, 0))) is not None:
        allocations.insert(0, first)
    return allocations


def asks_in_steps(asks: Iterable[Ask]) -> Generator[None, None, list[Ask]]:
    """Sorts asks by their submission, in steps."""
    return sorted_in_steps(asks, _submission)


def _order(allocation: Allocation) -> tuple[int, int, int]:
    return allocation.allocated_ns, allocation.submission, allocation.ordinal


def _ordinal(allocation: Allocation) -> int:
    return allocation.ordinal


def _submission(ask: Ask) -> int:
    return ask.submission
