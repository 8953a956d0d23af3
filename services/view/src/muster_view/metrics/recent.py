"""The scheduler's allocations of the last minute: how many a second, and how long their asks waited.

Both come from the tally that the scheduler records (docs/metrics.md). Every reader shows these figures: the page,
``muster top``, REST and gRPC.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from muster_rest.shapes.figures import RecentDao
from muster_state.tally import WAIT_LIMITS_US, Tally

WINDOW_NS = 60_000_000_000
# Two kept counts lie at least so far apart.
_STEP_NS = 1_000_000_000


class _Counts(NamedTuple):
    at_ns: int
    allocated: int
    spread: tuple[int, ...]


class RecentAllocations:
    """One RM's counts of the last minute, from its records as they are folded. The times are the scheduler's."""

    def __init__(self) -> None:
        # The first one is at least as old as the window, if the RM is known for so long.
        self._counts: deque[_Counts] = deque()

    def note(self, at_ns: int, tally: Tally) -> None:
        """Takes the counts as they are from this time on."""
        counts = self._counts
        if counts and tally.allocated < counts[-1].allocated:  # the RM was forgotten, and counts anew
            counts.clear()
        now = _Counts(at_ns, tally.allocated, tuple(tally.wait_spread))
        if len(counts) > 1 and at_ns - counts[-2].at_ns < _STEP_NS:
            counts[-1] = now
        else:
            counts.append(now)
        self._drop(at_ns)

    def figures(self, now_ns: int) -> RecentDao:
        """Returns the figures of the minute before now."""
        self._drop(now_ns)
        if not self._counts:
            return RecentDao(seconds=0.0, allocations=0, per_second=0.0, wait_p50_ms=None, wait_p99_ms=None)
        first, last = self._counts[0], self._counts[-1]
        # (A second at least: few allocations right after the start are no rate.)
        seconds = min(max(now_ns - first.at_ns, _STEP_NS), WINDOW_NS) / 1e9
        allocated = last.allocated - first.allocated
        spread = [now - then for now, then in zip(last.spread, first.spread, strict=True)]
        return RecentDao(
            seconds=round(seconds, 3),
            allocations=allocated,
            per_second=round(allocated / seconds, 3),
            wait_p50_ms=quantile_ms(spread, 0.5),
            wait_p99_ms=quantile_ms(spread, 0.99),
        )

    def _drop(self, now_ns: int) -> None:
        counts = self._counts
        while len(counts) > 1 and counts[1].at_ns <= now_ns - WINDOW_NS:
            counts.popleft()


def quantile_ms(spread: Sequence[int], part: float) -> float | None:
    """Returns the wait that this part of some allocations did not exceed; None: there were none.

    Within a bucket the allocations count as evenly spread, as for PromQL's ``histogram_quantile``.
    """
    total = sum(spread)
    if not total:
        return None
    rank = part * total
    before = lower_us = 0
    for count, upper_us in zip(spread, WAIT_LIMITS_US, strict=False):
        if count and before + count >= rank:
            return round((lower_us + (upper_us - lower_us) * (rank - before) / count) / 1e3, 3)
        before, lower_us = before + count, upper_us
    return lower_us / 1e3  # longer than the last limit
