"""The counts of an RM that the scheduler records with it (proto TallyObject)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter

from muster_proto.muster.bus.v1 import state_pb2

# YuniKorn's buckets: 0.1 ms to 1,000 s.
DECIDING_LIMITS_US = tuple(100 * 10**power for power in range(8))
# From an ask to its allocation: 1 ms, 2 ms, 5 ms, 10 ms … to 500,000 s.
WAIT_LIMITS_US: tuple[int, ...] = tuple(first * 10**power for power in range(3, 12) for first in (1, 2, 5))


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
    # Allocations by the time since their ask, in the same way.
    wait_spread: list[int] = field(default_factory=lambda: [0] * (len(WAIT_LIMITS_US) + 1))

    def add(self, more: Tally) -> None:
        """Adds further counts."""
        for name in TALLIED:
            if count := getattr(more, name):
                setattr(self, name, getattr(self, name) + count)

    def spread(self, took_us: int) -> None:
        """Counts one more round of this duration."""
        self.deciding_spread[bisect_left(DECIDING_LIMITS_US, took_us)] += 1

    def waited(self, waits_us: Iterable[int]) -> None:
        """Counts the times from asks to their allocations."""
        for wait_us in waits_us:
            self.wait_spread[bisect_left(WAIT_LIMITS_US, wait_us)] += 1


_SPREADS = ("deciding_spread", "wait_spread")
TALLIED: tuple[str, ...] = tuple(each.name for each in fields(Tally) if each.name not in _SPREADS)
_values = attrgetter(*TALLIED)


def encode(tally: Tally) -> state_pb2.TallyObject:
    """Encodes the counts."""
    return state_pb2.TallyObject(
        deciding_spread=_without_zeros(tally.deciding_spread),
        wait_spread=_without_zeros(tally.wait_spread),
        **{name: count for name, count in zip(TALLIED, _values(tally), strict=True) if count},
    )


def decode(recorded: state_pb2.TallyObject) -> Tally:
    """Inverse of :func:`encode`."""
    tally = Tally(*_values(recorded))
    for index, count in enumerate(recorded.deciding_spread):
        tally.deciding_spread[index] = count
    for index, count in enumerate(recorded.wait_spread):
        tally.wait_spread[index] = count
    return tally


def _without_zeros(spread: list[int]) -> list[int]:
    """The counts without zeros at the end, because each transaction records them."""
    used = len(spread)
    while used and not spread[used - 1]:
        used -= 1
    return spread[:used]
