"""Names of the publisher's metrics: the one place."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

EVENTS = Counter("muster_publisher_events_total", "Tracking events taken from the log", ["rm"])
SHIM_EVENTS = Counter("muster_publisher_shim_events_total", "Events that are for the RM's shim only")
REQUESTS_SENT = Counter("muster_publisher_request_events_sent_total", "Of these, written to who watches", ["rm"])
REQUESTS_DROPPED = Counter(
    "muster_publisher_request_events_dropped_total", "Of these, pushed out of the RM's full store unsent", ["rm"]
)
REQUESTS_EMPTY = Counter("muster_publisher_request_events_empty_total", "Of these, nil or empty, passed over")
MISSING = Counter("muster_publisher_events_missing_total", "Event ids that the log does not hold (gaps)", ["rm"])
REPEATED = Counter("muster_publisher_events_repeated_total", "Events whose id was seen before, passed over", ["rm"])
MALFORMED = Counter("muster_publisher_events_malformed_total", "Records without the headers of an event, passed over")
RING_EVENTS = Gauge("muster_publisher_ring_events", "Events in the ring", ["rm"])
RING_BYTES = Gauge("muster_publisher_ring_bytes", "Bytes that the ring's events take, as of the last look", ["rm"])
RING_PACK_SECONDS = Histogram(
    "muster_publisher_ring_pack_seconds",
    "Time of packing one block of a ring",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
)
RING_UNPACKED = Counter("muster_publisher_ring_blocks_unpacked_total", "Blocks of rings that were unpacked for readers")
BATCH_SECONDS = Histogram(
    "muster_publisher_batch_seconds", "Time of one batch answer, sending not included", ["source"]
)
FOLLOW_LAG = Gauge(
    "muster_publisher_follow_lag_offsets", "Log offsets not yet taken, as of the last look", ["partition"]
)
LOG_ERRORS = Counter("muster_publisher_log_errors_total", "Reads of the log that failed")

STREAMS = Gauge("muster_publisher_streams", "Open event streams")
STREAMS_REFUSED = Counter("muster_publisher_streams_refused_total", "Streams refused by a limit", ["limit"])
STREAMS_DROPPED = Counter("muster_publisher_streams_dropped_total", "Streams ended by the publisher", ["reason"])
REQUESTS_UNREADABLE = Counter(
    "muster_publisher_request_events_unreadable_total", "Of these, without readable bytes, passed over"
)
WATCHERS = Gauge("muster_publisher_watchers", "Open calls of muster.v1.Events/Watch")
WATCHED = Counter("muster_publisher_events_watched_total", "Events written to these calls")
WATCHES_ENDED = Counter("muster_publisher_watches_ended_total", "Such calls that ended, by gRPC status", ["status"])
BATCHES = Counter("muster_publisher_batch_calls_total", "Calls of muster.v1.Events/Batch, by gRPC status", ["status"])
STATES_MISSING = Counter(
    "muster_publisher_object_states_missing_total", "Events sent without the state of their object: it is not known"
)
LOG_LOOKUPS = Counter("muster_publisher_log_lookups_total", "Reads of events older than the ring", ["outcome"])
LOG_LOOKUP_RECORDS = Counter("muster_publisher_log_lookup_records_total", "Records of the log that these have read")
LOG_LOOKUP_SEEKS = Counter(
    "muster_publisher_log_lookup_seeks_total", "Times that these went to another offset: on Kafka a fetch anew"
)
OLD_READS = Gauge("muster_publisher_old_reads", "Answers that read events older than the ring, now")
OLD_READS_WAITING = Gauge("muster_publisher_old_reads_waiting", "Answers that wait for their turn to do so")
OLD_READS_REFUSED = Counter(
    "muster_publisher_old_reads_refused_total", "Such answers that were refused by a limit", ["limit"]
)

EXPORTED = Counter("muster_publisher_exported_events_total", "Events handed to a store, durable", ["sink"])
EXPORT_SECONDS = Histogram("muster_publisher_export_seconds", "Time of one durable write", ["sink"])
EXPORT_ERRORS = Counter("muster_publisher_export_errors_total", "Writes to a store that failed", ["sink"])
EXPORT_RETRIES = Counter("muster_publisher_export_retries_total", "Attempts after one that failed", ["sink"])
EXPORT_DEAD_LETTERS = Counter(
    "muster_publisher_export_dead_letters_total", "Events that a store refused, put to the dead letters", ["sink"]
)
EXPORT_FILES = Counter("muster_publisher_export_files_total", "Files written", ["sink"])
EXPORT_EXPIRED = Counter(
    "muster_publisher_export_expired_total", "Events older than the store's retention, passed over", ["sink"]
)
EXPORT_LAG_SECONDS = Gauge(
    "muster_publisher_export_lag_seconds", "Age of the oldest event that is not in the store", ["sink", "partition"]
)
EXPORT_LAG = Gauge(
    "muster_publisher_export_lag_offsets", "Log offsets between the follower and the store", ["sink", "partition"]
)
EXPORT_MISSING = Counter(
    "muster_publisher_export_missing_total", "Offsets that retention deleted before a store had them", ["sink"]
)
UNREADABLE = Counter("muster_publisher_events_unreadable_total", "Event records whose bytes do not decode")

DERIVED = Counter("muster_publisher_derived_events_total", "Events that something was derived from", ["partition"])
DERIVE_MISSING = Counter(
    "muster_publisher_derive_missing_total", "Offsets that retention deleted before anything was derived from them"
)
DERIVE_LAG = Gauge("muster_publisher_derive_lag_offsets", "Log offsets that nothing is derived from yet", ["partition"])
USAGE_LEFT_OUT = Counter(
    "muster_publisher_usage_left_out_total", "Quantities not summed: a subject held too many different types of them"
)
USAGE_RECORDS = Gauge("muster_publisher_usage_records", "Records of usage in memory, for REST")
USAGE_UNREADABLE = Counter("muster_publisher_usage_unreadable_total", "Records of usage that cannot be read")
