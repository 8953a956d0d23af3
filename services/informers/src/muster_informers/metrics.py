"""The metrics of informers. Every name appears here once."""

from __future__ import annotations

from enum import StrEnum, unique

from prometheus_client import Counter, Gauge, Histogram


@unique
class Metric(StrEnum):
    """Names as they appear at ``/metrics``. The client library appends ``_total`` to counters."""

    OBJECTS = "muster_external_objects"
    CHANGES = "muster_external_changes"
    PROBLEMS = "muster_external_problems"
    LISTINGS = "muster_external_listings"
    FAILURES = "muster_external_failures"
    SYNC_SECONDS = "muster_external_sync_seconds"
    STATE = "muster_external_state"
    SILENT_SECONDS = "muster_external_silent_seconds"
    CACHE_PENDING = "muster_external_cache_pending"
    CACHE_SECONDS = "muster_external_cache_seconds"
    CACHE_RETRIES = "muster_external_cache_retries"
    OFFERS_RETURNED = "muster_external_offers_returned"
    NATIVE_OBJECTS = "muster_external_native_objects"
    NATIVE_SECONDS = "muster_external_native_seconds"
    PROCESS_STARTS = "muster_external_process_starts"


# From a commit on a fast disk to an unreachable log.
_CACHE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# From a handler that checks one object to a handler that did not answer in time.
_NATIVE_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)

_SOURCE = ("source",)
objects = Gauge(Metric.OBJECTS, "Objects in the informer's store, also by kind.", ("source", "kind"))
changes = Counter(
    Metric.CHANGES,
    "Reports of the source, also by type: ADDED, MODIFIED, DELETED, and DROPPED for duplicates and late versions.",
    ("source", "type"),
)
problems = Counter(Metric.PROBLEMS, "Unreadable documents, and changes on which an event handler failed.", _SOURCE)
listings = Counter(
    Metric.LISTINGS, "Completed listings, including the first one; if it grows, the watch fails.", _SOURCE
)
failures = Counter(Metric.FAILURES, "Times that the source gave no valid answer.", _SOURCE)
sync_seconds = Gauge(Metric.SYNC_SECONDS, "Time from the informer's start to the end of its first listing.", _SOURCE)
state = Gauge(Metric.STATE, "0 LISTING, 1 LIVE, 2 STALE.", _SOURCE)
silent_seconds = Gauge(Metric.SILENT_SECONDS, "Time since the last answer of the source.", _SOURCE)
cache_pending = Gauge(Metric.CACHE_PENDING, "Objects that are not yet on the log.", _SOURCE)
cache_seconds = Histogram(
    Metric.CACHE_SECONDS,
    "Time from a change's entry into the cache until it is durable.",
    _SOURCE,
    buckets=_CACHE_BUCKETS,
)
cache_retries = Counter(Metric.CACHE_RETRIES, "Records that the log did not accept at the first attempt.", _SOURCE)
offers_returned = Counter(Metric.OFFERS_RETURNED, "Offers returned to their source.", _SOURCE)
native_objects = Counter(
    Metric.NATIVE_OBJECTS,
    "The RM's own objects that an event handler saw, by outcome: TAKEN, REFUSED, or FAILED (the handler failed).",
    ("source", "became"),
)
native_seconds = Histogram(
    Metric.NATIVE_SECONDS,
    "How long a batch of the RM's requests waited for its event handler.",
    _SOURCE,
    buckets=_NATIVE_BUCKETS,
)
process_starts = Counter(
    Metric.PROCESS_STARTS,
    "Starts of the informers' process (without source); more than one means that it failed, and the log says why.",
)

# The metrics of the informers' own process, if there is one.
OF_INFORMERS = (
    objects,
    changes,
    problems,
    listings,
    failures,
    sync_seconds,
    state,
    silent_seconds,
    cache_pending,
    cache_seconds,
    cache_retries,
    offers_returned,
)
