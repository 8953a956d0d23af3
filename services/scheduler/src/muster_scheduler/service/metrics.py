"""The scheduler's metrics: every name, once.

The same counts as in the RM's tally (docs/metrics.md), since this process began. What a failed transaction had counted
is counted again with the transaction that replaces it; exact are the tally's figures.
"""

from __future__ import annotations

from enum import StrEnum, unique

from prometheus_client import Counter

from muster_scheduler.follower import TALLIED, Tally


@unique
class Metric(StrEnum):
    """Names as they appear at ``/metrics``; counters get ``_total`` from the client library."""

    ALLOCATED = "muster_scheduler_allocations"
    RELEASED = "muster_scheduler_releases"
    PREEMPTED = "muster_scheduler_preemptions"
    TIMED_OUT = "muster_scheduler_time_outs"
    REPLACED = "muster_scheduler_replacements"
    ASKS_REJECTED = "muster_scheduler_asks_rejected"
    APPLICATIONS_ACCEPTED = "muster_scheduler_applications_accepted"
    APPLICATIONS_REJECTED = "muster_scheduler_applications_rejected"
    NODES_ACCEPTED = "muster_scheduler_nodes_accepted"
    NODES_REJECTED = "muster_scheduler_nodes_rejected"
    QUESTIONS = "muster_scheduler_questions"
    QUESTIONS_REFUSED = "muster_scheduler_questions_refused"
    QUESTIONS_UNANSWERED = "muster_scheduler_questions_unanswered"
    DECISIONS = "muster_scheduler_decisions"
    DECIDING_SECONDS = "muster_scheduler_deciding_seconds"


_RM = ("rm",)
allocated = Counter(Metric.ALLOCATED, "Allocations made; those that the RM reported itself do not count.", _RM)
released = Counter(Metric.RELEASED, "Allocations that ended at the RM's word.", _RM)
preempted = Counter(Metric.PREEMPTED, "Allocations told to go by preemption.", _RM)
timed_out = Counter(Metric.TIMED_OUT, "Allocations told to go because their time was up.", _RM)
replaced = Counter(Metric.REPLACED, "Placeholders told to go for a real allocation.", _RM)
asks_rejected = Counter(Metric.ASKS_REJECTED, "Asks and reported allocations rejected.", _RM)
applications_accepted = Counter(Metric.APPLICATIONS_ACCEPTED, "Applications accepted.", _RM)
applications_rejected = Counter(Metric.APPLICATIONS_REJECTED, "Applications rejected.", _RM)
nodes_accepted = Counter(Metric.NODES_ACCEPTED, "New nodes and changes of nodes accepted.", _RM)
nodes_rejected = Counter(Metric.NODES_REJECTED, "New nodes and changes of nodes rejected.", _RM)
questions = Counter(Metric.QUESTIONS, "Questions put to the RM's callbacks.", _RM)
questions_refused = Counter(Metric.QUESTIONS_REFUSED, "Of these: answered with no.", _RM)
questions_unanswered = Counter(Metric.QUESTIONS_UNANSWERED, "Of these: not answered in time.", _RM)
decisions = Counter(Metric.DECISIONS, "Rounds of the scheduler in which something was decided.", _RM)
deciding_seconds = Counter(Metric.DECIDING_SECONDS, "Time that these took, until ready to be written.", _RM)

_BY_TALLY: dict[str, Counter] = {
    "allocated": allocated,
    "released": released,
    "preempted": preempted,
    "timed_out": timed_out,
    "replaced": replaced,
    "asks_rejected": asks_rejected,
    "applications_accepted": applications_accepted,
    "applications_rejected": applications_rejected,
    "nodes_accepted": nodes_accepted,
    "nodes_rejected": nodes_rejected,
    "questions": questions,
    "questions_refused": questions_refused,
    "questions_unanswered": questions_unanswered,
    "decisions": decisions,
    "deciding_us": deciding_seconds,
}
_UNITS = {"deciding_us": 1e-6}


class RmCounters:
    """One RM's counters."""

    def __init__(self, rm_id: str) -> None:
        self._counters = [(name, _BY_TALLY[name].labels(rm_id), _UNITS.get(name, 1)) for name in TALLIED]

    def add(self, more: Tally) -> None:
        """Counts what came on top."""
        for name, counter, unit in self._counters:
            if count := getattr(more, name):
                counter.inc(count * unit)
