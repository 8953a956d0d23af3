"""What a counter of this process has, for tests that compare it before and after."""

from __future__ import annotations

from prometheus_client import REGISTRY


def by_status(counter: str, **labels: str) -> dict[str, float]:
    """Returns the values of a counter's samples with these labels, by their label ``status``."""
    return {
        sample.labels["status"]: sample.value
        for metric in REGISTRY.collect()
        if metric.name == counter
        for sample in metric.samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    }
