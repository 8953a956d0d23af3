"""The metrics of informers: every name, once."""

from __future__ import annotations

from enum import StrEnum, unique

from prometheus_client import Counter, Gauge, Histogram


@unique
class Metric(StrEnum):
    """Names as they appear at ``/metrics``; counters get ``_total`` from the client library."""

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
    PROCESS_STARTS = "muster_external_process_starts"


# From a commit on a fast disk to a log that is away for a while.
_CACHE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_SOURCE = ("source",)
objects = Gauge(Metric.OBJECTS, "Objects in an informer's store.", ("source", "kind"))
changes = Counter(
    Metric.CHANGES,
    "What a source said: ADDED, MODIFIED, DELETED, or DROPPED (doubles, late versions).",
    ("source", "type"),
)
problems = Counter(Metric.PROBLEMS, "Documents that cannot be read, and changes on which a handler failed.", _SOURCE)
listings = Counter(Metric.LISTINGS, "Listings taken, the first one included.", _SOURCE)
failures = Counter(Metric.FAILURES, "Times that a source did not answer as it should.", _SOURCE)
sync_seconds = Gauge(Metric.SYNC_SECONDS, "From an informer's start to the end of its first listing.", _SOURCE)
state = Gauge(Metric.STATE, "How far a source is: 0 LISTING, 1 LIVE, 2 STALE.", _SOURCE)
silent_seconds = Gauge(Metric.SILENT_SECONDS, "Since a source was last heard.", _SOURCE)
cache_pending = Gauge(Metric.CACHE_PENDING, "Objects that are not on the log yet.", _SOURCE)
cache_seconds = Histogram(
    Metric.CACHE_SECONDS, "From a change's way into the cache until it is durable.", _SOURCE, buckets=_CACHE_BUCKETS
)
cache_retries = Counter(Metric.CACHE_RETRIES, "Records that the log did not take at once.", _SOURCE)
offers_returned = Counter(Metric.OFFERS_RETURNED, "Offers given back to their source.", _SOURCE)
process_starts = Counter(Metric.PROCESS_STARTS, "Starts of the informers' own process; more than one: it has failed.")

# Those that the informers' own process has, if there is one.
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
