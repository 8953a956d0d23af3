"""The dashboard as code: what Grafana shows of Muster.

    python deploy/compose/grafana/dashboard.py      writes dashboards/muster.json

A panel says what it shows, in which unit, and asks with PromQL. tests/unit/deploy holds the file to this code, and
every name in a query to a metric that there is; tests/e2e/test_dashboard.py asks a real Prometheus every query.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parent / "dashboards" / "muster.json"
DATASOURCE = {"type": "prometheus", "uid": "muster-prometheus"}
_COLUMNS, _HEIGHT, _STAT_HEIGHT = 24, 8, 4
# Grafana's: at least four scrapes, so that a rate has two samples even when one is missed.
_OVER = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; ``asks``: (legend, PromQL).

    :ivar unit: Grafana's name of it.
    :ivar width: of 24 columns.
    """

    title: str
    asks: tuple[tuple[str, str], ...]
    unit: str = "short"
    about: str = ""
    kind: str = "timeseries"
    width: int = 8
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below one heading."""

    title: str
    panels: tuple[Panel, ...] = field(default_factory=tuple)


def _quantiles(histogram: str, by: str = "", parts: tuple[float, ...] = (0.5, 0.99)) -> tuple[tuple[str, str], ...]:
    """So many of a hundred took no longer."""
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        (f"{legend}p{part * 100:g}", f"histogram_quantile({part}, sum by ({labels}) (rate({histogram}_bucket{_OVER})))")
        for part in parts
    )


def _stat(title: str, expression: str, unit: str = "short", about: str = "") -> Panel:
    return Panel(title, (("", expression),), unit, about, kind="stat", width=4)


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{_OVER}))"


def _of_root(state: str) -> str:
    """A part of all that there is."""
    return _part(
        *(f'sum by (resource) (yunikorn_queue_resource{{queue="root", state="{each}"}})' for each in (state, "max"))
    )


def _of_queues(state: str) -> str:
    return (
        f'sum by (queue, resource) (yunikorn_queue_resource{{state="{state}", queue=~"$queue", resource=~"$resource"}})'
    )


def _part(part: str, whole: str) -> str:
    """Nothing where the whole is 0."""
    return f"{part} / ({whole} > 0)"


_EACH_QUEUE = "{{queue}} {{resource}}"
_CONTAINERS = '{__name__=~"yunikorn_.+_queue_container"}, "of", "$1", "__name__", "yunikorn_(.+)_queue_container"'

ROWS = (
    Row(
        "Cluster",
        (
            _stat("Nodes", 'sum(yunikorn_scheduler_node{state="active"})'),
            _stat("Draining nodes", 'sum(yunikorn_scheduler_node{state="draining"})'),
            _stat("Running applications", 'sum(yunikorn_scheduler_application_total{state="running"})'),
            _stat(
                "Allocations a second",
                f'sum(rate(yunikorn_scheduler_container_allocation_attempt_total{{state="allocated"}}{_OVER}))',
                "ops",
            ),
            _stat("Log not folded yet", "sum(muster_view_lag_records)", about="What this dashboard does not know yet."),
            _stat("Open streams of RMs", "sum(muster_gateway_streams_open)"),
            Panel(
                "Allocated of the cluster",
                (("{{resource}}", _of_root("allocated")),),
                "percentunit",
                most=1,
            ),
            Panel(
                "Pending of the cluster",
                (("{{resource}}", _of_root("pending")),),
                "percentunit",
                "The pending amounts beyond the allocated ones, as a share of the cluster's capacity.",
            ),
            Panel(
                "Containers",
                (("{{state}}", _rate("yunikorn_scheduler_container_allocation_attempt_total", "state")),),
                "ops",
            ),
            Panel(
                "Applications by state",
                (("{{state}}", "sum by (state) (yunikorn_scheduler_application_total)"),),
            ),
            Panel(
                "Submitted applications",
                (("{{result}}", _rate("yunikorn_scheduler_application_submission_total", "result")),),
                "ops",
            ),
            Panel("Nodes by state", (("{{state}}", "sum by (state) (yunikorn_scheduler_node)"),)),
            Panel(
                "Nodes by how much of vcore is allocated",
                (("{{range}}", "sum by (range) (yunikorn_scheduler_vcore_node_usage_total)"),),
                kind="bargauge",
            ),
            Panel(
                "Told to go by the scheduler",
                (
                    ("preempted", f"sum(rate(muster_scheduler_preemptions_total{_OVER}))"),
                    ("timed out", f"sum(rate(muster_scheduler_time_outs_total{_OVER}))"),
                    ("placeholder replaced", f"sum(rate(muster_scheduler_replacements_total{_OVER}))"),
                ),
                "ops",
            ),
            Panel(
                "Rejected",
                (
                    ("asks", f"sum(rate(muster_scheduler_asks_rejected_total{_OVER}))"),
                    ("applications", f"sum(rate(muster_scheduler_applications_rejected_total{_OVER}))"),
                    ("nodes", f"sum(rate(muster_scheduler_nodes_rejected_total{_OVER}))"),
                ),
                "ops",
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel(
                "Allocated",
                ((_EACH_QUEUE, _of_queues("allocated")),),
                width=12,
            ),
            Panel(
                "Pending",
                ((_EACH_QUEUE, _of_queues("pending")),),
                width=12,
            ),
            Panel(
                "Allocated of max",
                ((_EACH_QUEUE, _part(_of_queues("allocated"), _of_queues("max"))),),
                "percentunit",
                most=1,
            ),
            Panel(
                "Allocated of guaranteed",
                ((_EACH_QUEUE, _part(_of_queues("allocated"), _of_queues("guaranteed"))),),
                "percentunit",
            ),
            Panel(
                "Being preempted",
                ((_EACH_QUEUE, _of_queues("preempting")),),
            ),
            Panel(
                "Running applications",
                (("{{queue}}", 'sum by (queue) (yunikorn_queue_app{state="running", queue=~"$queue"})'),),
            ),
            Panel(
                "Ended applications",
                (
                    (
                        "{{queue}} {{state}}",
                        f'sum by (queue, state) (rate(yunikorn_queue_app_total{{queue=~"$queue"}}{_OVER}))',
                    ),
                ),
                "ops",
            ),
            Panel(
                "Containers",
                (("{{of}} {{state}}", f"sum by (of, state) (rate(label_replace({_CONTAINERS})[1m:5s]))"),),
                "ops",
                "The core has one metric for each queue, with the queue's path in its name.",
            ),
        ),
    ),
    Row(
        "Scheduler",
        (
            Panel(
                "From ask to allocation",
                _quantiles("muster_scheduler_allocation_wait_seconds"),
                "s",
                "From the ask's admission, also while the cluster is full or the scheduler is behind.",
            ),
            Panel(
                "Time of one round",
                _quantiles("yunikorn_scheduler_scheduling_latency_milliseconds"),
                "s",
                "In seconds, in spite of its name: as in YuniKorn's core.",
            ),
            Panel(
                "Busy deciding",
                (("{{rm}}", _rate("muster_scheduler_deciding_seconds_total", "rm")),),
                "percentunit",
                "1 would be a core of its own.",
            ),
            Panel(
                "Allocations of one round",
                (
                    (
                        "{{rm}}",
                        _part(
                            _rate("muster_scheduler_allocations_total", "rm"),
                            _rate("muster_scheduler_decisions_total", "rm"),
                        ),
                    ),
                ),
            ),
            Panel("Time of one call of the machine", _quantiles("muster_bus_apply_seconds"), "s"),
            Panel(
                "Questions to RMs",
                (
                    ("asked", f"sum(rate(muster_scheduler_questions_total{_OVER}))"),
                    ("refused", f"sum(rate(muster_scheduler_questions_refused_total{_OVER}))"),
                    ("not answered", f"sum(rate(muster_scheduler_questions_unanswered_total{_OVER}))"),
                ),
                "ops",
            ),
            Panel(
                "Time from take-over to the first read",
                (("{{job}}", "histogram_quantile(0.99, sum by (le, job) (muster_bus_fold_seconds_bucket))"),),
                "s",
                "Of all take-overs since the process began: there are few.",
            ),
        ),
    ),
    Row(
        "Log",
        (
            Panel("Time of one transaction", _quantiles("muster_bus_transaction_seconds", "backend"), "s"),
            Panel(
                "Records of one transaction",
                (
                    (
                        "{{backend}}",
                        _part(
                            _rate("muster_bus_transaction_records_sum", "backend"),
                            _rate("muster_bus_transaction_records_count", "backend"),
                        ),
                    ),
                ),
            ),
            Panel("Written records", (("{{topic}}", _rate("muster_bus_records_written_total", "topic")),), "ops"),
            Panel(
                "Lag, in records",
                (
                    ("scheduler", "sum(muster_bus_lag_records)"),
                    ("view", "sum(muster_view_lag_records)"),
                    ("event publisher", "sum(max by (partition) (muster_publisher_follow_lag_offsets))"),
                    ("usage", "sum(muster_publisher_derive_lag_offsets)"),
                ),
                about="What is on the log and was not taken yet: the depth of each reader's queue.",
            ),
            Panel(
                "Waiting to be written",
                (("log", "sum(muster_bus_append_queue_bytes)"),),
                "bytes",
            ),
            Panel("Size of the embedded log", (("", "sum(muster_bus_log_bytes)"),), "bytes"),
            Panel(
                "Failures",
                (
                    ("transactions", f"sum(rate(muster_bus_transactions_failed_total{_OVER})) or vector(0)"),
                    ("take-overs", f"sum(rate(muster_bus_fenced_total{_OVER})) or vector(0)"),
                    ("rebuilds", f"sum(rate(muster_bus_rebuilds_total{_OVER})) or vector(0)"),
                    ("quarantined records", f"sum(rate(muster_bus_quarantined_total{_OVER})) or vector(0)"),
                    ("defects at the gateway", f"sum(rate(muster_gateway_internal_errors_total{_OVER}))"),
                ),
                "ops",
                width=24,
            ),
        ),
    ),
    Row(
        "Gateway",
        (
            Panel("Open streams", (("{{kind}}", "sum by (kind) (muster_gateway_streams_open)"),)),
            Panel("Items from RMs", (("{{kind}}", _rate("muster_gateway_items_total", "kind")),), "ops"),
            Panel("Responses to RMs", (("{{kind}}", _rate("muster_gateway_responses_total", "kind")),), "ops"),
            Panel(
                "Responses waiting to be sent",
                (("{{kind}}", "sum by (kind) (muster_gateway_responses_waiting)"),),
                about="Read from the log, and not yet taken by a stream: a slow RM.",
            ),
            Panel("Time of a registration", _quantiles("muster_gateway_registration_seconds"), "s"),
            Panel(
                "Quotas reached",
                (("{{quota}}", "sum by (quota) (muster_scheduler_quotas_reached)"),),
                about="RMs for which something was refused a short while ago: docs/security.md, Quotas.",
            ),
            Panel(
                "HTTP requests passed on",
                (("{{target}} {{status}}", _rate("muster_gateway_http_forwarded_total", "target, status")),),
                "reqps",
            ),
        ),
    ),
    Row(
        "View",
        (
            Panel("REST requests", (("{{route}}", _rate("muster_view_requests_total", "route")),), "reqps"),
            Panel(
                "Time of a REST answer, p99",
                _quantiles("muster_view_render_seconds", "route", (0.99,)),
                "s",
            ),
            Panel(
                "Behind the log",
                (("partition {{partition}}", "max by (partition) (muster_view_lag_seconds)"),),
                "s",
                "How old the newest folded record is, while there are newer ones.",
            ),
            Panel("Folded records", (("", f"sum(rate(muster_view_folded_records_total{_OVER}))"),), "ops"),
            Panel("Busy folding", (("", f"sum(rate(muster_view_fold_seconds_total{_OVER}))"),), "percentunit"),
            Panel("Answers", (("", f"sum(rate(muster_view_answer_bytes_total{_OVER}))"),), "Bps"),
        ),
    ),
    Row(
        "Events",
        (
            Panel("Events", (("{{rm}}", f"max by (rm) (rate(muster_publisher_events_total{_OVER}))"),), "ops"),
            Panel("Events in the ring", (("{{rm}}", "max by (rm) (muster_publisher_ring_events)"),)),
            Panel(
                "Open streams of events",
                (("REST", "sum(muster_publisher_streams)"), ("gRPC", "sum(muster_publisher_watchers)")),
            ),
            Panel("Exported events", (("{{sink}}", _rate("muster_publisher_exported_events_total", "sink")),), "ops"),
            Panel(
                "Behind the events, by store",
                (("{{sink}}", "max by (sink) (muster_publisher_export_lag_seconds)"),),
                "s",
            ),
            Panel("Time of one durable write", _quantiles("muster_publisher_export_seconds", "sink"), "s"),
        ),
    ),
    Row(
        "Processes",
        (
            Panel("CPU", (("{{job}} {{instance}}", f"rate(process_cpu_seconds_total{_OVER})"),), "percentunit"),
            Panel("Memory", (("{{job}} {{instance}}", "process_resident_memory_bytes"),), "bytes"),
            Panel(
                "Garbage collections",
                (("{{job}} {{instance}}", f"sum by (job, instance) (rate(python_gc_collections_total{_OVER}))"),),
                "ops",
            ),
        ),
    ),
)

VARIABLES = (
    ("queue", "Queue", "label_values(yunikorn_queue_resource, queue)"),
    ("resource", "Resource", 'label_values(yunikorn_queue_resource{state="allocated"}, resource)'),
)


def dashboard() -> dict[str, Any]:
    """Grafana's JSON."""
    return {
        "uid": "muster",
        "title": "Muster",
        "tags": ["muster", "yunikorn"],
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_variable(*each) for each in VARIABLES]},
        "panels": _placed(),
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed() -> list[dict[str, Any]]:
    """Rows below each other, their panels from left to right as far as there is room."""
    found: list[dict[str, Any]] = []
    down = 0
    for row in ROWS:
        at = {"x": 0, "y": down, "w": _COLUMNS, "h": 1}
        found.append({"id": len(found) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": at})
        down += 1
        across = tallest = 0
        for panel in row.panels:
            height = _STAT_HEIGHT if panel.kind == "stat" else _HEIGHT
            if across + panel.width > _COLUMNS:
                across, down, tallest = 0, down + tallest, 0
            at = {"x": across, "y": down, "w": panel.width, "h": height}
            found.append({"id": len(found) + 1, "gridPos": at, **_panel(panel)})
            across, tallest = across + panel.width, max(tallest, height)
        down += tallest
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend or panel.title,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
            }
            for number, (legend, expression) in enumerate(panel.asks)
        ],
    }
    if panel.about:
        made["description"] = panel.about
    if panel.kind == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    else:
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    return made


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
