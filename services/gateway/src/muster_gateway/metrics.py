"""The gateway's metrics. Every name appears here once."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import Counter, Gauge, Histogram


class Metric(StrEnum):
    """Names as they appear at ``/metrics``. The client library appends ``_total`` to counters."""

    STREAMS_OPEN = "muster_gateway_streams_open"
    STREAMS_ENDED = "muster_gateway_streams_ended"
    STREAMS_SILENT = "muster_gateway_streams_silent"
    CALLS_OPEN = "muster_gateway_calls_open"
    CALLS_REFUSED = "muster_gateway_calls_refused"
    CALLS_RESET = "muster_gateway_calls_reset"
    STREAMS_SLOWED = "muster_gateway_streams_slowed"
    STREAMS_SLOWED_SECONDS = "muster_gateway_streams_slowed_seconds"
    CONNECTIONS = "muster_gateway_connections"
    CONNECTIONS_OPEN = "muster_gateway_connections_open"
    CONNECTIONS_ENDED = "muster_gateway_connections_ended"
    REQUESTS = "muster_gateway_requests"
    ITEMS = "muster_gateway_items"
    ITEMS_REJECTED = "muster_gateway_items_rejected"
    RESPONSES = "muster_gateway_responses"
    OVERFLOWS = "muster_gateway_overflows"
    CATCH_UPS = "muster_gateway_catch_ups_open"
    WAITING = "muster_gateway_responses_waiting"
    REGISTRATIONS = "muster_gateway_registrations"
    REGISTRATION_SECONDS = "muster_gateway_registration_seconds"
    CONFIGURATIONS = "muster_gateway_configuration_updates"
    CONFIGURATION_SECONDS = "muster_gateway_configuration_update_seconds"
    ADMIN_CALLS = "muster_gateway_admin_calls"
    ADMIN_SECONDS = "muster_gateway_admin_seconds"
    TRANSITIONS = "muster_gateway_rm_transitions"
    READY = "muster_gateway_ready"
    HEALTH_GRADE = "muster_health_grade"
    PARTITION_OWNER = "muster_partition_owner"
    OLDEST_REQUEST_SECONDS = "muster_oldest_undecided_request_seconds"
    EVENTS = "muster_gateway_events"
    UNREADABLE = "muster_gateway_unreadable_responses"
    UNREADABLE_EVENTS = "muster_gateway_unreadable_events"
    REQUEST_EVENTS_DROPPED = "muster_gateway_request_events_dropped"
    REQUEST_EVENTS_EMPTY = "muster_gateway_request_events_empty"
    EVENTS_CALLS = "muster_gateway_events_calls"
    INTERNAL_ERRORS = "muster_gateway_internal_errors"
    HTTP_FORWARDED = "muster_gateway_http_forwarded"
    HTTP_REFUSED = "muster_gateway_http_refused"
    GRPC_REFUSED = "muster_gateway_grpc_refused"
    AUDIT_ENTRIES = "muster_gateway_audit_entries"
    AUDIT_COALESCED = "muster_gateway_audit_coalesced"
    AUDIT_WAITING = "muster_gateway_audit_waiting"
    AUDIT_LOST = "muster_gateway_audit_lost"
    METRICS_CALLS = "muster_gateway_metrics_calls"
    METRICS_WATCHERS = "muster_gateway_metrics_watchers"
    SNAPSHOTS_WATCHED = "muster_gateway_metrics_snapshots_watched"
    SNAPSHOT_SECONDS = "muster_gateway_metrics_snapshot_seconds"


# A registration waits for one transaction of the scheduler: milliseconds embedded, up to the time-out of seconds.
_REGISTRATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

streams_open = Gauge(Metric.STREAMS_OPEN, "Open streams of RMs.", ["kind"])
streams_ended = Counter(Metric.STREAMS_ENDED, "Ended streams, by gRPC status.", ["kind", "status"])
streams_silent = Gauge(Metric.STREAMS_SILENT, "Streams that have not named their RM yet.")
calls_open = Gauge(Metric.CALLS_OPEN, "Open gRPC calls of all services.")
calls_refused = Counter(
    Metric.CALLS_REFUSED,
    "Calls over a limit of their caller: silent, peer, identity, connections, resets, no_message, rate, metadata.",
    ["reason"],
)
calls_reset = Counter(Metric.CALLS_RESET, "Calls that their client cancelled within a second.")
streams_slowed = Counter(
    Metric.STREAMS_SLOWED,
    "Messages after which a stream waited, by whose rate: rm or identity.",
    ["whose"],
)
streams_slowed_seconds = Counter(Metric.STREAMS_SLOWED_SECONDS, "Seconds that streams had to wait for their rate.")
connections = Gauge(Metric.CONNECTIONS, "Connections with open calls.")
connections_open = Gauge(Metric.CONNECTIONS_OPEN, "gRPC connections, with calls or without.")
connections_ended = Counter(
    Metric.CONNECTIONS_ENDED,
    "gRPC connections that the gateway ended: flood, too_many, too_many_of_host.",
    ["reason"],
)
requests = Counter(Metric.REQUESTS, "Messages read from streams.", ["kind"])
items = Counter(Metric.ITEMS, "Items in these messages.", ["kind"])
items_rejected = Counter(
    Metric.ITEMS_REJECTED, "Items that admission rejected, or dropped on callback streams.", ["kind"]
)
responses = Counter(Metric.RESPONSES, "Responses written to streams, including those of admission.", ["kind"])
overflows = Counter(Metric.OVERFLOWS, "Times that a slow stream left the live tail.", ["kind"])
catch_ups = Gauge(Metric.CATCH_UPS, "Streams that currently read the response log on their own.")
waiting = Gauge(Metric.WAITING, "Responses read from the log but not yet written to their stream.", ["kind"])
registrations = Counter(Metric.REGISTRATIONS, "Answered registrations, by gRPC status.", ["status"])
registration_seconds = Histogram(
    Metric.REGISTRATION_SECONDS, "Time from a registration's arrival to its answer.", buckets=_REGISTRATION_BUCKETS
)
configurations = Counter(
    Metric.CONFIGURATIONS, "Answered configuration updates: OK, REFUSED by the scheduler, or a gRPC status.", ["status"]
)
configuration_seconds = Histogram(
    Metric.CONFIGURATION_SECONDS,
    "Time from a configuration update's arrival to its answer.",
    buckets=_REGISTRATION_BUCKETS,
)
admin_calls = Counter(
    Metric.ADMIN_CALLS, "Calls of muster.v1.Admin except updates, by gRPC status.", ["method", "status"]
)
admin_seconds = Histogram(Metric.ADMIN_SECONDS, "Duration of these calls.", ["method"], buckets=_REGISTRATION_BUCKETS)
transitions = Counter(Metric.TRANSITIONS, "Changes of RM states by this gateway.", ["state"])
ready = Gauge(Metric.READY, "1 while health reports SERVING.")
health_grade = Gauge(Metric.HEALTH_GRADE, "Grade of each part of Muster: 0 ok, 1 degraded, 2 failed.", ["part"])
partition_owner = Gauge(Metric.PARTITION_OWNER, "1 while a scheduler decides for this partition.", ["partition"])
oldest_request_seconds = Gauge(
    Metric.OLDEST_REQUEST_SECONDS,
    "Age of the oldest request of this gateway that is not decided; 0: none.",
    ["partition"],
)
unreadable = Counter(Metric.UNREADABLE, "Records of the response log that did not decode.")
events = Counter(Metric.EVENTS, "Events put on callback streams.")
unreadable_events = Counter(Metric.UNREADABLE_EVENTS, "Records of the event log that did not decode.")
request_events_dropped = Counter(
    Metric.REQUEST_EVENTS_DROPPED, "Unsent request events that a callback stream's full store dropped."
)
request_events_empty = Counter(Metric.REQUEST_EVENTS_EMPTY, "Skipped request events that were nil or empty.")
events_calls = Counter(
    Metric.EVENTS_CALLS, "Calls of muster.v1.Events passed to the publisher, by gRPC status.", ["method", "status"]
)
internal_errors = Counter(Metric.INTERNAL_ERRORS, "Unexpected exceptions (defects).")
http_forwarded = Counter(Metric.HTTP_FORWARDED, "Forwarded HTTP requests, by target and status.", ["target", "status"])
http_refused = Counter(
    Metric.HTTP_REFUSED,
    "HTTP requests answered with 401, 403 or 429, by reason (muster_gateway.authentication.AuthFailure, or rate).",
    ["reason"],
)
grpc_refused = Counter(
    Metric.GRPC_REFUSED,
    "gRPC calls ended with UNAUTHENTICATED or PERMISSION_DENIED, by reason "
    "(muster_gateway.authentication.AuthFailure).",
    ["reason"],
)
audit_entries = Counter(Metric.AUDIT_ENTRIES, "Audit entries that this gateway wrote, by result.", ["result"])
audit_coalesced = Counter(Metric.AUDIT_COALESCED, "Calls that only count in the audit entry of others.")
audit_waiting = Gauge(Metric.AUDIT_WAITING, "Audit entries that wait for the log.")
audit_lost = Counter(Metric.AUDIT_LOST, "Audit entries that are not on the log, because it took none for too long.")
metrics_calls = Counter(Metric.METRICS_CALLS, "Ended calls of muster.v1.Metrics, by gRPC status.", ["method", "status"])
metrics_watchers = Gauge(Metric.METRICS_WATCHERS, "Current watches of metrics.")
snapshots_watched = Counter(Metric.SNAPSHOTS_WATCHED, "Snapshots written to watches.")
snapshot_seconds = Histogram(
    Metric.SNAPSHOT_SECONDS, "Time from the request to the view to the encoded snapshot.", buckets=_REGISTRATION_BUCKETS
)
