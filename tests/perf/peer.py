"""What the peer reaches: Apache YuniKorn's core behind a thin gRPC server in Go, in memory, nothing durable.

Medians of three on a quiet machine with two cores, driven over gRPC by a Go client, 100 asks in a message.
"""

from __future__ import annotations

PEER = {
    "what": "YuniKorn core (be3bb487, July 2026) behind gRPC in Go, in memory",
    "cores": 2,
    "throughput": {
        "nodes_s": 0.016,
        "allocations_per_s": 8_772,
        "latency_p50_ms": 646,
        "latency_p95_ms": 1_062,
        "latency_p99_ms": 1_065,
        "server_cpu_s": 4.3,
        "server_rss_mb": 228,
    },
    "churn": {"releases_per_s": 5_172, "allocations_per_s": 5_038},
    "latency": {"asks_per_s": 500, "latency_p50_ms": 0.4, "latency_p95_ms": 0.8, "latency_p99_ms": 2.1},
}
