"""Names of the view's metrics: the one place."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

FOLDED = Counter("muster_view_folded_records_total", "State records folded", ["partition"])
FOLD_SECONDS = Counter("muster_view_fold_seconds_total", "Time spent folding", ["partition"])
LAG_RECORDS = Gauge("muster_view_lag_records", "State records written and not yet folded", ["partition"])
LAG_SECONDS = Gauge("muster_view_lag_seconds", "Age of the newest folded record while there are newer", ["partition"])
FOLLOW_ERRORS = Counter("muster_view_follow_errors_total", "Times that following failed", ["partition"])
REBUILDS = Counter("muster_view_rebuilds_total", "Times that a partition was folded anew", ["partition"])

REQUESTS = Counter("muster_view_requests_total", "REST requests answered", ["route", "status"])
# From a cached small answer (0.2 ms) to a dump of everything.
RENDER_SECONDS = Histogram(
    "muster_view_render_seconds",
    "From a request's start to its rendered answer",
    ["route"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
ANSWER_BYTES = Counter("muster_view_answer_bytes_total", "Bytes of answers before compression", ["route"])
