"""Names of the publisher's metrics: the one place."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

EVENTS = Counter("muster_publisher_events_total", "Tracking events taken from the log", ["rm"])
SHIM_EVENTS = Counter("muster_publisher_shim_events_total", "Events that are for the RM's shim only, passed over")
MISSING = Counter("muster_publisher_events_missing_total", "Event ids that the log does not hold (gaps)", ["rm"])
REPEATED = Counter("muster_publisher_events_repeated_total", "Events whose id was seen before, passed over", ["rm"])
MALFORMED = Counter("muster_publisher_events_malformed_total", "Records without the headers of an event, passed over")
RING_EVENTS = Gauge("muster_publisher_ring_events", "Events in the ring", ["rm"])
FOLLOW_LAG = Gauge(
    "muster_publisher_follow_lag_offsets", "Log offsets not yet taken, as of the last look", ["partition"]
)
LOG_ERRORS = Counter("muster_publisher_log_errors_total", "Reads of the log that failed")

STREAMS = Gauge("muster_publisher_streams", "Open event streams")
STREAMS_REFUSED = Counter("muster_publisher_streams_refused_total", "Streams refused by a limit", ["limit"])
STREAMS_DROPPED = Counter("muster_publisher_streams_dropped_total", "Streams ended by the publisher", ["reason"])
LOG_LOOKUPS = Counter("muster_publisher_log_lookups_total", "Reads of events older than the ring", ["outcome"])

EXPORTED = Counter("muster_publisher_exported_events_total", "Events handed to a store, durable", ["sink"])
EXPORT_SECONDS = Histogram("muster_publisher_export_seconds", "Time of one durable write", ["sink"])
EXPORT_ERRORS = Counter("muster_publisher_export_errors_total", "Writes to a store that failed", ["sink"])
EXPORT_LAG = Gauge(
    "muster_publisher_export_lag_offsets", "Log offsets between the follower and the store", ["sink", "partition"]
)
EXPORT_MISSING = Counter(
    "muster_publisher_export_missing_total", "Offsets that retention deleted before a store had them", ["sink"]
)
UNREADABLE = Counter("muster_publisher_events_unreadable_total", "Event records whose bytes do not decode")
