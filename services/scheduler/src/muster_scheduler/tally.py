"""Counts the content of an RM's outcomes (proto TallyObject). The counts are recorded with the outcome.

They are part of the transaction that they count, so a crash never loses one without the other.
"""

from __future__ import annotations

from collections.abc import Callable

from muster_core.model.commands import Termination
from muster_core.model.outcome import (
    AcceptedApplication,
    AcceptedNode,
    Fact,
    NewAllocation,
    Outcome,
    PredicateRefused,
    PredicateRequested,
    PreemptionPredicateRequested,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
)
from muster_state.tally import Tally


def count_outcome(out: Outcome) -> Tally:
    """Returns an outcome's counts, without those of its facts."""
    more = Tally(decisions=1)
    # Some releases that the RM requested are not sent to it, and some that are sent concern no allocation. Objects made
    # right before a registration are not sent at all.
    more.allocated, more.reported = out.made, out.reported
    more.ended, more.released, more.dropped = out.ended, out.released, out.dropped
    return more


def count_fact(more: Tally, waits_us: list[int], fact: Fact, offset_ns: int) -> None:
    """Adds the count of a fact; of a new allocation, how long its ask has waited.

    Decisions count; repetitions do not: an allocation that the RM reported itself, a reminder of a release.
    """
    match fact:
        case NewAllocation():
            if not fact.adopted:
                waits_us.append(_waited_us(fact, offset_ns))
        case ReleasedAllocation():
            if not fact.reminder:
                _count_told(more, fact.termination)
        case RejectedAsk():
            more.asks_rejected += 1
        case AcceptedApplication():
            more.applications_accepted += 1
        case RejectedApplication():
            more.applications_rejected += 1
        case AcceptedNode():
            more.nodes_accepted += 1
        case RejectedNode():
            more.nodes_rejected += 1
        case PredicateRequested() | PreemptionPredicateRequested():
            more.questions += 1
        case PredicateRefused():
            if fact.unanswered:
                more.questions_unanswered += 1
            else:
                more.questions_refused += 1


def _waited_us(fact: NewAllocation, offset_ns: int) -> int:
    """Returns how long the ask of an allocation has waited (µs), up to the decision's beginning.

    It waits from the moment at which its gateway admitted it; if that is not known any more, from its creation.

    :param offset_ns: the wall clock less recorded time. (Gateway and scheduler may have clocks that differ a little.)
    """
    demand, allocated_ns = fact.demand, fact.allocation.allocated_ns
    waited_ns = (
        allocated_ns + offset_ns - demand.admitted_ns if demand.admitted_ns else allocated_ns - demand.created_ns
    )
    return max(waited_ns, 0) // 1000


def migrate_tally(tally: Tally, running: int) -> None:
    """Corrects the tally of versions that counted neither reported allocations nor each end.

    In every case, begun allocations minus ended allocations are the running ones.
    """
    gap = tally.allocated + tally.reported - tally.ended - running
    tally.ended += max(gap, 0)
    tally.reported += max(-gap, 0)


def _count_told(more: Tally, termination: Termination) -> None:
    match termination:
        case Termination.PREEMPTED_BY_SCHEDULER:
            more.preempted += 1
        case Termination.TIMEOUT:
            more.timed_out += 1
        case Termination.PLACEHOLDER_REPLACED:
            more.replaced += 1


class Stopwatch:
    """Measures the machine's time per RM, with one reading of the clock for each piece of work.

    :param monotonic_s: seconds since some fixed moment.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._since_s = 0.0
        self._spent_s: dict[str, float] = {}

    def start(self) -> None:
        """Notes the beginning of a piece of work. The next call names its RM."""
        self._since_s = self._monotonic_s()

    def now_s(self) -> float:
        """Returns the clock's present value."""
        return self._monotonic_s()

    def lap(self, rm_id: str) -> None:
        """Adds the time since the last call to this RM."""
        now_s = self._monotonic_s()
        self._spent_s[rm_id] = self._spent_s.get(rm_id, 0.0) + now_s - self._since_s
        self._since_s = now_s

    def forget(self) -> None:
        """Drops the remaining times, which led to no decision."""
        self._spent_s.clear()

    def take_us(self, rm_id: str) -> int:
        """Returns and resets the time of this RM (µs)."""
        self.lap(rm_id)
        return round(self._spent_s.pop(rm_id) * 1e6)
