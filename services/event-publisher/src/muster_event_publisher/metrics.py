"""Names of the publisher's metrics: the one place."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

EVENTS = Counter("muster_publisher_events_total", "Tracking events read from the log.", ["rm"])
SHIM_EVENTS = Counter(
    "muster_publisher_shim_events_total", "Request events (only for the RM's shim) read from the log."
)
REQUESTS_SENT = Counter("muster_publisher_request_events_sent_total", "Request events written to watches.", ["rm"])
REQUESTS_DROPPED = Counter(
    "muster_publisher_request_events_dropped_total", "Unsent request events that the RM's full store dropped.", ["rm"]
)
REQUESTS_EMPTY = Counter(
    "muster_publisher_request_events_empty_total", "Skipped request events that were nil or empty."
)
MISSING = Counter("muster_publisher_events_missing_total", "Event ids that the log lacks (gaps).", ["rm"])
REPEATED = Counter("muster_publisher_events_repeated_total", "Skipped events with an id that was seen before.", ["rm"])
MALFORMED = Counter("muster_publisher_events_malformed_total", "Skipped records without the headers of an event.")
RING_EVENTS = Gauge("muster_publisher_ring_events", "Events in the ring.", ["rm"])
RING_BYTES = Gauge("muster_publisher_ring_bytes", "Bytes of the ring's events, at the last check.", ["rm"])
RING_PACK_SECONDS = Histogram(
    "muster_publisher_ring_pack_seconds",
    "Time to pack one block of a ring.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
)
RING_UNPACKED = Counter("muster_publisher_ring_blocks_unpacked_total", "Blocks of rings unpacked for readers.")
BATCH_SECONDS = Histogram(
    "muster_publisher_batch_seconds", "Time to build one batch answer, without sending it.", ["source"]
)
FOLLOW_LAG = Gauge(
    "muster_publisher_follow_lag_offsets", "Log offsets that are not yet read, at the last check.", ["partition"]
)
LOG_ERRORS = Counter("muster_publisher_log_errors_total", "Failed reads of the log.")

STREAMS = Gauge("muster_publisher_streams", "Open event streams.")
STREAMS_REFUSED = Counter("muster_publisher_streams_refused_total", "Streams refused by a limit.", ["limit"])
STREAMS_DROPPED = Counter("muster_publisher_streams_dropped_total", "Streams ended by the publisher.", ["reason"])
REQUESTS_UNREADABLE = Counter(
    "muster_publisher_request_events_unreadable_total", "Skipped request events without readable bytes."
)
WATCHERS = Gauge("muster_publisher_watchers", "Open calls of muster.v1.Events/Watch.")
WATCHED = Counter("muster_publisher_events_watched_total", "Events written to these calls.")
WATCHES_ENDED = Counter(
    "muster_publisher_watches_ended_total", "Ended calls of muster.v1.Events/Watch, by gRPC status.", ["status"]
)
BATCHES = Counter("muster_publisher_batch_calls_total", "Calls of muster.v1.Events/Batch, by gRPC status.", ["status"])
STATES_MISSING = Counter(
    "muster_publisher_object_states_missing_total",
    "Events sent without the state of their object, because it is unknown.",
)
LOG_LOOKUPS = Counter("muster_publisher_log_lookups_total", "Reads of events older than the ring.", ["outcome"])
LOG_LOOKUP_RECORDS = Counter("muster_publisher_log_lookup_records_total", "Records of the log that these reads took.")
LOG_LOOKUP_SEEKS = Counter(
    "muster_publisher_log_lookup_seeks_total",
    "Seeks to another offset in these reads; on Kafka each one is a new fetch.",
)
OLD_READS = Gauge(
    "muster_publisher_old_reads",
    "Answers that currently read events older than the ring, at most publisher.old_reads_max.",
)
OLD_READS_WAITING = Gauge("muster_publisher_old_reads_waiting", "Answers that wait for their turn to do so.")
OLD_READS_REFUSED = Counter(
    "muster_publisher_old_reads_refused_total",
    "Answers of this kind that were refused: waiting (too many waited), wait (it waited too long).",
    ["limit"],
)

EXPORTED = Counter("muster_publisher_exported_events_total", "Events that a store has made durable.", ["sink"])
EXPORT_SECONDS = Histogram("muster_publisher_export_seconds", "Time of one durable write.", ["sink"])
EXPORT_ERRORS = Counter("muster_publisher_export_errors_total", "Failed writes to a store.", ["sink"])
EXPORT_RETRIES = Counter("muster_publisher_export_retries_total", "Attempts after a failed write.", ["sink"])
EXPORT_DEAD_LETTERS = Counter(
    "muster_publisher_export_dead_letters_total",
    "Events that a store refused and that went to the dead letters.",
    ["sink"],
)
EXPORT_FILES = Counter("muster_publisher_export_files_total", "Written files.", ["sink"])
EXPORT_EXPIRED = Counter(
    "muster_publisher_export_expired_total", "Skipped events that are older than the store's retention.", ["sink"]
)
EXPORT_LAG_SECONDS = Gauge(
    "muster_publisher_export_lag_seconds", "Age of the oldest event that is not in the store.", ["sink", "partition"]
)
EXPORT_LAG = Gauge(
    "muster_publisher_export_lag_offsets", "Log offsets between the follower and the store.", ["sink", "partition"]
)
EXPORT_PARTITIONS = Gauge("muster_publisher_export_partitions", "Partitions that this publisher exports.")
EXPORT_MISSING = Counter(
    "muster_publisher_export_missing_total", "Offsets that retention deleted before the store had them.", ["sink"]
)
UNREADABLE = Counter("muster_publisher_events_unreadable_total", "Event records whose bytes do not decode.")

DERIVED = Counter("muster_publisher_derived_events_total", "Events processed by derivation.", ["partition"])
DERIVE_MISSING = Counter(
    "muster_publisher_derive_missing_total", "Offsets that retention deleted before derivation read them."
)
DERIVE_LAG = Gauge(
    "muster_publisher_derive_lag_offsets", "Log offsets that derivation has not yet read.", ["partition"]
)
USAGE_OMITTED = Counter(
    "muster_publisher_usage_left_out_total",
    "Quantities that are not summed because a subject has too many resource types.",
)
USAGE_RECORDS = Gauge("muster_publisher_usage_records", "Usage records in memory, for REST.")
USAGE_UNREADABLE = Counter("muster_publisher_usage_unreadable_total", "Unreadable usage records.")
