"""Two processes' metrics in one answer."""

from __future__ import annotations

import exposed
from muster_runtime.exposition import merged
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector


def of(counted: float, measured: float, *only: str) -> bytes:
    registry = CollectorRegistry()
    Counter("c", "Counted: a\nb.", ["x"], registry=registry).labels('a "b" 1').inc(counted)
    Gauge("g", "Measured.", registry=registry).set(measured)
    Histogram("h", "Took.", registry=registry, buckets=(1, 2)).observe(counted)
    for name in only:
        Gauge(name, "", registry=registry).set(7)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def test_each_family_comes_once() -> None:
    first, second = of(1, 10, "mine"), of(1.5, 20, "yours")
    found = exposed.parse(merged(first, second, "other_").decode())
    assert found["c_total"].values("x") == {'a "b" 1': 2.5}
    assert found["g"].value() == 10
    buckets = {dict(labels).get("le", name): value for (name, labels), value in found["h"].samples.items()}
    assert (buckets["1.0"], buckets["2.0"], buckets["+Inf"], buckets["h_count"], buckets["h_sum"]) == (1, 2, 2, 2, 2.5)
    assert (found["mine"].value(), found["yours"].value()) == (7, 7)
    alone = exposed.parse(first.decode())
    assert found["process_open_fds"].value() == alone["process_open_fds"].value()
    assert found["other_process_open_fds"].value() > 0
    assert exposed.parse(merged(first, b"", "other_").decode()) == alone
