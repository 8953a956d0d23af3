"""The scheduler's metrics. Every name appears here once.

The counts are those of the RM's tally (docs/metrics.md), since this process began. After a failed transaction, the one
that replaces it is counted again. The tally's figures are exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from enum import StrEnum, unique
from itertools import accumulate

from muster_state.tally import TALLIED, WAIT_LIMITS_US, Tally
from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


@unique
class Metric(StrEnum):
    """Names as they appear at ``/metrics``. The client library appends ``_total`` to counters."""

    ALLOCATED = "muster_scheduler_allocations"
    RELEASED = "muster_scheduler_releases"
    PREEMPTED = "muster_scheduler_preemptions"
    TIMED_OUT = "muster_scheduler_time_outs"
    REPLACED = "muster_scheduler_replacements"
    REPORTED = "muster_scheduler_reported"
    ENDED = "muster_scheduler_ends"
    DROPPED = "muster_scheduler_dropped"
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


WAIT_SECONDS = "muster_scheduler_allocation_wait_seconds"


PARTITIONS = "muster_scheduler_partitions"
CLOCK_DIFFERENCE = "muster_scheduler_clock_difference_seconds"
REPEATED = "muster_scheduler_requests_repeated"


@unique
class QuotaMetric(StrEnum):
    """Of quotas; these counts are not in the tally."""

    REFUSED = "muster_scheduler_quota_refused"
    RMS_REFUSED = "muster_scheduler_rms_refused"
    REACHED = "muster_scheduler_quotas_reached"


_RM = ("rm",)
requests_repeated = Counter(REPEATED, "Requests passed over, because their client had sent them before.")
allocated = Counter(Metric.ALLOCATED, "Allocations by the scheduler, without those that the RM reported.", _RM)
released = Counter(Metric.RELEASED, "Allocations that the RM ended.", _RM)
preempted = Counter(Metric.PREEMPTED, "Allocations that preemption released.", _RM)
timed_out = Counter(Metric.TIMED_OUT, "Allocations released because their time was up.", _RM)
replaced = Counter(Metric.REPLACED, "Placeholders released for a real allocation.", _RM)
reported = Counter(Metric.REPORTED, "Allocations that the RM or an external source reported.", _RM)
ended = Counter(Metric.ENDED, "Ended allocations, for any cause.", _RM)
dropped = Counter(Metric.DROPPED, "Allocations that ended because the RM registered again.", _RM)
asks_rejected = Counter(Metric.ASKS_REJECTED, "Rejected asks and reported allocations.", _RM)
applications_accepted = Counter(Metric.APPLICATIONS_ACCEPTED, "Accepted applications.", _RM)
applications_rejected = Counter(Metric.APPLICATIONS_REJECTED, "Rejected applications.", _RM)
nodes_accepted = Counter(Metric.NODES_ACCEPTED, "Accepted new nodes and changes of nodes.", _RM)
nodes_rejected = Counter(Metric.NODES_REJECTED, "Rejected new nodes and changes of nodes.", _RM)
questions = Counter(Metric.QUESTIONS, "Predicate calls to the RM.", _RM)
questions_refused = Counter(Metric.QUESTIONS_REFUSED, "Predicate calls answered with no.", _RM)
questions_unanswered = Counter(Metric.QUESTIONS_UNANSWERED, "Predicate calls without an answer in time.", _RM)
decisions = Counter(Metric.DECISIONS, "Rounds of the scheduler with a result.", _RM)
quota_refused = Counter(QuotaMetric.REFUSED, "Items refused because a quota of their RM was reached.", ["rm", "quota"])
rms_refused = Counter(
    QuotaMetric.RMS_REFUSED,
    "Registrations refused because of too many RMs: of their identity, or of all.",
    ["quota"],
)
quotas_reached = Gauge(QuotaMetric.REACHED, "RMs that have reached this quota.", ["quota"])
deciding_seconds = Counter(Metric.DECIDING_SECONDS, "Duration of these rounds, until their records are ready.", _RM)

partitions = Gauge(
    PARTITIONS, "Partitions that this scheduler owns, follows as a standby, and could take over at once.", ["as"]
)

clock_difference_seconds = Gauge(
    CLOCK_DIFFERENCE, "The system clock less recorded time: the largest difference of the partitions owned here."
)

_BY_TALLY: dict[str, Counter] = {
    "allocated": allocated,
    "released": released,
    "preempted": preempted,
    "timed_out": timed_out,
    "replaced": replaced,
    "reported": reported,
    "ended": ended,
    "dropped": dropped,
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


def forget(counter: Counter, *labels: str) -> None:
    """Removes a series, if there is one."""
    with contextlib.suppress(KeyError):
        counter.remove(*labels)


class AllocationWaits(Collector):
    """How long asks waited for their allocations, by RM, as a histogram.

    (prometheus-client's own takes one observation at a time, which would cost more than the allocation's other counts.)
    """

    def __init__(self) -> None:
        self._by_rm: dict[str, tuple[Tally, list[float]]] = {}

    def observe(self, rm_id: str, waits_us: Sequence[int]) -> None:
        """Counts some allocations of an RM."""
        series = self._by_rm.get(rm_id)
        if series is None:
            series = self._by_rm[rm_id] = (Tally(), [0.0])
        series[0].waited(waits_us)
        series[1][0] += sum(waits_us) / 1e6

    def forget(self, rm_id: str) -> None:
        """Removes the series of a forgotten RM."""
        self._by_rm.pop(rm_id, None)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yields the histogram."""
        family = HistogramMetricFamily(WAIT_SECONDS, "Time from an ask's admission to its allocation.", labels=_RM)
        limits = [*(f"{limit_us / 1e6:g}" for limit_us in WAIT_LIMITS_US), "+Inf"]
        for rm_id, (tally, seconds) in list(self._by_rm.items()):
            buckets = list(zip(limits, accumulate(tally.wait_spread), strict=True))
            family.add_metric([rm_id], buckets, seconds[0])
        yield family


allocation_waits = AllocationWaits()
REGISTRY.register(allocation_waits)


class RmCounters:
    """One RM's counters."""

    def __init__(self, rm_id: str) -> None:
        self._rm_id = rm_id
        self._counters = [(name, _BY_TALLY[name].labels(rm_id), _UNITS.get(name, 1)) for name in TALLIED]

    def remove(self) -> None:
        """Removes the series of a forgotten RM."""
        for name in TALLIED:
            forget(_BY_TALLY[name], self._rm_id)
        allocation_waits.forget(self._rm_id)

    def add(self, more: Tally, waits_us: Sequence[int] = ()) -> None:
        """Adds an outcome's counts, and how long the asks of its allocations have waited."""
        if waits_us:
            allocation_waits.observe(self._rm_id, waits_us)
        for name, counter, unit in self._counters:
            if count := getattr(more, name):
                counter.inc(count * unit)
