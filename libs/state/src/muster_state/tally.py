"""Counts of what was decided for an RM."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields

# YuniKorn's buckets: 0.1 ms to 1,000 s.
DECIDING_LIMITS_US = tuple(100 * 10**power for power in range(8))


@dataclass(slots=True)
class Tally:
    """Counts since the RM was first registered (proto TallyObject; docs/metrics.md explains each)."""

    allocated: int = 0
    released: int = 0
    preempted: int = 0
    timed_out: int = 0
    replaced: int = 0
    reported: int = 0
    ended: int = 0
    dropped: int = 0
    asks_rejected: int = 0
    applications_accepted: int = 0
    applications_rejected: int = 0
    nodes_accepted: int = 0
    nodes_rejected: int = 0
    questions: int = 0
    questions_refused: int = 0
    questions_unanswered: int = 0
    decisions: int = 0
    deciding_us: int = 0
    # Rounds by duration: each limit without the rounds below the previous one; the last entry is for longer rounds.
    deciding_spread: list[int] = field(default_factory=lambda: [0] * (len(DECIDING_LIMITS_US) + 1))

    def add(self, more: Tally) -> None:
        """Adds further counts."""
        for name in TALLIED:
            if count := getattr(more, name):
                setattr(self, name, getattr(self, name) + count)

    def spread(self, took_us: int) -> None:
        """Counts one more round of this duration."""
        self.deciding_spread[bisect_left(DECIDING_LIMITS_US, took_us)] += 1


TALLIED: tuple[str, ...] = tuple(each.name for each in fields(Tally) if each.name != "deciding_spread")
