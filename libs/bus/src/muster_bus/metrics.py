"""The bus's metrics. Every name appears here once.

The objects are in prometheus-client's default registry, so a process that imports the bus exposes them.
"""

from __future__ import annotations

from enum import StrEnum, unique

from prometheus_client import Counter, Gauge, Histogram


@unique
class Metric(StrEnum):
    """Names as they appear at ``/metrics``. The client library appends ``_total`` to counters."""

    RECORDS_WRITTEN = "muster_bus_records_written"
    RECORDS_READ = "muster_bus_records_read"
    TRANSACTION_SECONDS = "muster_bus_transaction_seconds"
    TRANSACTION_RECORDS = "muster_bus_transaction_records"
    TRANSACTIONS_FAILED = "muster_bus_transactions_failed"
    APPEND_QUEUE_BYTES = "muster_bus_append_queue_bytes"
    FENCED = "muster_bus_fenced"
    REBUILDS = "muster_bus_rebuilds"
    QUARANTINED = "muster_bus_quarantined"
    FOLD_SECONDS = "muster_bus_fold_seconds"
    LAG_RECORDS = "muster_bus_lag_records"
    APPLY_SECONDS = "muster_bus_apply_seconds"
    LOG_BYTES = "muster_bus_log_bytes"
    WAL_BYTES = "muster_bus_wal_bytes"
    MAINTENANCE_REMOVED = "muster_bus_maintenance_removed_records"
    GROUP_GENERATIONS = "muster_bus_group_generations"
    DAMAGED_PARTS = "muster_bus_damaged_parts"
    STANDBY_LAG_RECORDS = "muster_bus_standby_lag_records"


# From an fsync on a fast disk (0.2 ms) to the transaction deadline (10 s).
_COMMIT_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZE_BUCKETS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)

records_written = Counter(Metric.RECORDS_WRITTEN, "Durable records.", ["topic"])
records_read = Counter(Metric.RECORDS_READ, "Records delivered to readers.", ["topic"])
transaction_seconds = Histogram(
    Metric.TRANSACTION_SECONDS, "Time from the call of commit to its answer.", ["backend"], buckets=_COMMIT_BUCKETS
)
transaction_records = Histogram(
    Metric.TRANSACTION_RECORDS, "Records in one transaction.", ["backend"], buckets=_SIZE_BUCKETS
)
transactions_failed = Counter(
    Metric.TRANSACTIONS_FAILED,
    "Commits that failed or whose outcome is unknown, including fencing.",
    ["backend", "reason"],
)
append_queue_bytes = Gauge(Metric.APPEND_QUEUE_BYTES, "Appended bytes that are not yet durable.")
fenced = Counter(Metric.FENCED, "Times that another process took over a partition of this process.", ["partition"])
rebuilds = Counter(
    Metric.REBUILDS, "Times that a partition's machine was dropped and built again.", ["partition", "reason"]
)
quarantined = Counter(Metric.QUARANTINED, "Input records put aside because the machine fails on them.", ["partition"])
fold_seconds = Histogram(
    Metric.FOLD_SECONDS,
    "Time from taking over a partition to the first read.",
    ["partition"],
    buckets=(0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
)
lag_records = Gauge(Metric.LAG_RECORDS, "Input offsets between the position and the end.", ["partition"])
apply_seconds = Histogram(
    Metric.APPLY_SECONDS,
    "Duration of one call of the machine's apply or tick.",
    ["partition"],
    buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1),
)
log_bytes = Gauge(Metric.LOG_BYTES, "Size of the embedded log's file.")
wal_bytes = Gauge(Metric.WAL_BYTES, "Size of the embedded log's write-ahead log at the last checkpoint.")
maintenance_removed = Counter(
    Metric.MAINTENANCE_REMOVED, "Records removed by retention or compaction (embedded log).", ["topic", "why"]
)
group_generations = Counter(
    Metric.GROUP_GENERATIONS, "Times that a group shared its partitions out and this process got a share.", ["group"]
)
damaged_parts = Gauge(Metric.DAMAGED_PARTS, "Damaged parts of the log that a reader passed over.", ["topic"])
standby_lag_records = Gauge(
    Metric.STANDBY_LAG_RECORDS, "State records that a standby has not folded yet.", ["partition"]
)
