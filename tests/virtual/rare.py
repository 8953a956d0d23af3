"""What a run must have met: each kind of fault, and branches of the product that are seldom taken.

A branch is known by what the product says of it: a line of its log, one of its counters, a kind of event. A run of CI
in which one never happened fails: then either the plan of faults, or a list here, is no longer true.
"""

from __future__ import annotations

from collections.abc import Mapping

from virtual.trouble import KINDS

# In an hour, each kind of fault at least so often; and these in sum.
EACH = 20
IN_AN_HOUR = {"asks": 10_000, "deaths": 100, "streams broken": 500}
# Faults of single calls.
CALLS = (
    "append lost", "append written", "commit lost", "commit written", "commit late", "record seen late", "log away",
    "log full", "sessions down", "sessions full",
)  # fmt: skip
# Kinds of events, of what RMs hear and of answers; lines of the product's log; its own counters.
BRANCHES: tuple[str, ...] = (
    "read after a position: 200",
    "read after a position: 503",
    "REST: 200",
    "REST: 404",
    "event: ALLOC_CANCEL",
    "event: ALLOC_NODEREMOVED",
    "event: ALLOC_REPLACED",
    "event: ALLOC_TIMEOUT",
    "event: APP_ACCEPTED",
    "event: APP_ALLOC",
    "event: APP_COMPLETED",
    "event: APP_COMPLETING",
    "event: APP_NEW",
    "event: APP_REQUEST",
    "event: APP_RUNNING",
    "event: APP_STARTING",
    "event: NODE_ALLOC",
    "event: NODE_CAPACITY",
    "event: NODE_DECOMISSION",
    "event: NODE_RESERVATION",
    "event: NODE_SCHEDULABLE",
    "event: QUEUE_APP",
    "event: QUEUE_GUARANTEED",
    "event: QUEUE_MAX",
    "event: REQUEST_CANCEL",
    "event: UG_USER_LIMIT",
    "event: UG_USER_RESOURCE",
    "heard: accepted",
    "heard: adopted",
    "heard: new",
    "heard: rejected",
    "heard: released",
    "heard: state",
    "log: audit entries wait for the log",
    "log: clock step",
    "log: clock.stepped",
    "log: command",
    "log: configuration update",
    "log: configuration updated",
    "log: event publisher started",
    "log: export waits",
    "log: gateway serves",
    "log: generation recognised",
    "log: health changed",
    "log: http request (200)",
    "log: positions not stored",
    "log: response log unavailable",
    "log: rm life",
    "log: rm paused (a look)",
    "log: rm registered",
    "log: rm resumed",
    "log: scheduler.gave_up",
    "log: scheduler.handed_over",
    "log: sessions filled from the log",
    "log: standby.again",
    "log: standby.warm",
    "log: stream ends, the log is unavailable",
    "log: stream left no trace",
    "log: stream lost (CANCELLED)",
    "log: stream lost (UNAVAILABLE)",
    "log: sweep not finished",
    "log: the log does not answer",
    "log: the log takes audit entries again",
    "log: view.not_following",
    "log: view.started",
    "log: worker.fenced",
    "log: worker.rebuild (log)",
    "log: worker.running",
    "log: worker.takes_standby",
    "metric: muster_gateway_admin_calls DumpState OK",
    "metric: muster_gateway_admin_calls Explain OK",
    "metric: muster_gateway_admin_calls ListResourceManagers OK",
    "metric: muster_gateway_admin_calls PauseResourceManager OK",
    "metric: muster_gateway_admin_calls ResumeResourceManager OK",
    "metric: muster_gateway_audit_entries accepted",
    "metric: muster_gateway_audit_entries failed",
    "metric: muster_gateway_configuration_updates OK",
    "metric: muster_gateway_configuration_updates UNAVAILABLE",
    "metric: muster_gateway_http_forwarded publisher 200",
    "metric: muster_gateway_http_forwarded view 200",
    "metric: muster_gateway_http_forwarded view 404",
    "metric: muster_gateway_items allocation",
    "metric: muster_gateway_items application",
    "metric: muster_gateway_items callback",
    "metric: muster_gateway_items node",
    "metric: muster_gateway_registrations OK",
    "metric: muster_gateway_requests allocation",
    "metric: muster_gateway_requests application",
    "metric: muster_gateway_requests callback",
    "metric: muster_gateway_requests node",
    "metric: muster_gateway_responses allocation",
    "metric: muster_gateway_responses application",
    "metric: muster_gateway_responses callback",
    "metric: muster_gateway_responses node",
    "metric: muster_gateway_rm_transitions disconnected",
    "metric: muster_gateway_rm_transitions running",
    "metric: muster_gateway_streams_ended allocation CANCELLED",
    "metric: muster_gateway_streams_ended allocation UNAVAILABLE",
    "metric: muster_gateway_streams_ended application CANCELLED",
    "metric: muster_gateway_streams_ended application UNAVAILABLE",
    "metric: muster_gateway_streams_ended callback CANCELLED",
    "metric: muster_gateway_streams_ended callback UNAVAILABLE",
    "metric: muster_gateway_streams_ended node CANCELLED",
    "metric: muster_gateway_streams_ended node UNAVAILABLE",
    "metric: muster_publisher_export_errors memory",
    "metric: muster_publisher_export_retries memory",
    "metric: muster_publisher_exported_events memory",
    "metric: muster_publisher_log_errors",
    "metric: muster_publisher_log_lookup_records",
    "metric: muster_publisher_log_lookup_seeks",
    "metric: muster_publisher_log_lookups found",
    "metric: muster_scheduler_allocations",
    "metric: muster_scheduler_applications_accepted",
    "metric: muster_scheduler_asks_rejected",
    "metric: muster_scheduler_decisions",
    "metric: muster_scheduler_dropped",
    "metric: muster_scheduler_ends",
    "metric: muster_scheduler_nodes_accepted",
    "metric: muster_scheduler_questions",
    "metric: muster_scheduler_questions_refused",
    "metric: muster_scheduler_releases",
    "metric: muster_scheduler_replacements",
    "metric: muster_scheduler_reported",
    "metric: muster_scheduler_requests_repeated",
    "metric: muster_scheduler_time_outs",
    "metric: muster_view_requests /health 200",
    "metric: muster_view_requests /health 503",
    "metric: muster_view_requests /ws/v1/clusters 200",
    "metric: muster_view_requests /ws/v1/explain/pending 200",
    "metric: muster_view_requests /ws/v1/explain/queue/{queue} 200",
    "metric: muster_view_requests /ws/v1/explain/summary 200",
    "metric: muster_view_requests /ws/v1/external 200",
    "metric: muster_view_requests /ws/v1/object-states 200",
    "metric: muster_view_requests /ws/v1/partition/{partition}/applications/{state} 200",
    "metric: muster_view_requests /ws/v1/partition/{partition}/nodes 200",
    "metric: muster_view_requests /ws/v1/partition/{partition}/placementrules 200",
    "metric: muster_view_requests /ws/v1/partition/{partition}/queues 200",
    "metric: muster_view_requests /ws/v1/partition/{partition}/usage/users 200",
    "metric: muster_view_requests /ws/v1/partitions 200",
    "metric: muster_view_requests /ws/v1/resource-manager/configuration 200",
    "metric: muster_view_requests /ws/v1/resource-managers 200",
    "operator: dump",
    "operator: follow",
    "operator: list",
    "operator: pause",
    "operator: read",
    "operator: why",
)


def missing(counts: Mapping[str, int], hours: float) -> list[str]:
    """Returns what a run should have met and did not, one line each."""
    least = max(1, round(EACH * hours))
    wanted = {f"fault {kind}": least for kind in KINDS} | {kind: 1 if kind in _RARELY else least for kind in CALLS}
    found = [f"{kind}: {counts[kind]} times, expected at least {count}"
             for kind, count in wanted.items() if counts[kind] < count]  # fmt: skip
    found += [f"{name}: {counts[name]}, expected at least {round(least * hours)}"
              for name, least in IN_AN_HOUR.items() if counts[name] < round(least * hours)]  # fmt: skip
    if hours >= 1:
        found += [f"never: {branch}" for branch in BRANCHES if not counts[branch]]
    return found


_RARELY = frozenset({"commit lost", "commit written", "commit late"})
