"""How often what happened to an RM (proto TallyObject): counted from an outcome, before it is recorded with it.

What is counted is part of the transaction that it counts: a crash loses neither without the other.
"""

from __future__ import annotations

from collections.abc import Callable

from muster_scheduler.core.commands import Termination
from muster_scheduler.core.outcome import (
    AcceptedApplication,
    AcceptedNode,
    NewAllocation,
    Outcome,
    PredicatesAsked,
    PreemptionPredicatesAsked,
    QuestionRefused,
    RejectedApplication,
    RejectedAsk,
    RejectedNode,
    ReleasedAllocation,
)
from muster_scheduler.follower import Tally


def counted(out: Outcome) -> Tally:
    """What one outcome adds: O(facts).

    Decisions count, echoes do not: an allocation that the RM reported itself, a reminder of one that was told to go.
    """
    more = Tally(decisions=1)
    for fact in out.facts:
        match fact:
            case NewAllocation():
                more.allocated += not fact.adopted
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
            case PredicatesAsked() | PreemptionPredicatesAsked():
                more.questions += 1
            case QuestionRefused():
                if fact.unanswered:
                    more.questions_unanswered += 1
                else:
                    more.questions_refused += 1
    # Not every release at the RM's word is told to it, nor is each that it is told one of an allocation.
    more.released = out.released
    return more


def _count_told(more: Tally, termination: Termination) -> None:
    match termination:
        case Termination.PREEMPTED_BY_SCHEDULER:
            more.preempted += 1
        case Termination.TIMEOUT:
            more.timed_out += 1
        case Termination.PLACEHOLDER_REPLACED:
            more.replaced += 1


class Stopwatch:
    """Which RM the machine's time goes to: one reading of the clock for each piece of work.

    :param monotonic_s: seconds since some fixed moment.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._since_s = 0.0
        self._spent_s: dict[str, float] = {}

    def start(self) -> None:
        """Work begins; whose it is, the next call says."""
        self._since_s = self._monotonic_s()

    def lap(self, rm_id: str) -> None:
        """What went on until now was for this RM."""
        now_s = self._monotonic_s()
        self._spent_s[rm_id] = self._spent_s.get(rm_id, 0.0) + now_s - self._since_s
        self._since_s = now_s

    def forget(self) -> None:
        """What is not taken by now led to no decision."""
        self._spent_s.clear()

    def take_us(self, rm_id: str) -> int:
        """All that was for this RM until now, once."""
        self.lap(rm_id)
        return round(self._spent_s.pop(rm_id) * 1e6)
