"""Metrics of the informers' own process, at the scheduler's ``/metrics``.

The child sends its samples once a second. The parent exposes the last ones instead of its own, which never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from muster_core.external.model import SourceState
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric as Collected
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from muster_informers import metrics
from muster_informers.informer import STATE_NUMBERS
from muster_informers.pipe_messages import MetricFamily


def families() -> tuple[MetricFamily, ...]:
    """Returns the present metrics of this process's informers."""
    return tuple(_family(collected) for collector in metrics.OF_INFORMERS for collected in collector.collect())


class ChildSamples(Collector):
    """Exposes the last samples of another process. Between ``begin`` and ``end`` they replace this process's own."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._families: Sequence[MetricFamily] = families()

    def begin(self) -> None:
        for collector in metrics.OF_INFORMERS:
            with suppress(KeyError):
                self._registry.unregister(collector)
        self._registry.register(self)

    def end(self) -> None:
        with suppress(KeyError):
            self._registry.unregister(self)
        for collector in metrics.OF_INFORMERS:
            with suppress(ValueError):  # another collector may have done so
                self._registry.register(collector)

    def replace(self, metric_families: Sequence[MetricFamily]) -> None:
        self._families = metric_families

    def mark_stale(self) -> None:
        """Marks the sources of the other process, which has ended, as stale."""
        self._families = [
            _all_set(family, STATE_NUMBERS[SourceState.STALE]) if family.name == metrics.Metric.STATE else family
            for family in self._families
        ]

    def collect(self) -> Iterator[Collected]:
        for family in self._families:
            collected = Collected(family.name, family.documentation, family.type)
            collected.samples = [Sample(name, labels, value) for name, labels, value in family.samples]
            yield collected

    def describe(self) -> Iterable[Collected]:
        return ()  # its names are those of the metrics that it replaces


def _family(collected: Collected) -> MetricFamily:
    samples = tuple((sample.name, dict(sample.labels), float(sample.value)) for sample in collected.samples)
    return MetricFamily(collected.name, collected.documentation, collected.type, samples)


def _all_set(family: MetricFamily, value: float) -> MetricFamily:
    samples = tuple((name, labels, float(value)) for name, labels, _ in family.samples)
    return MetricFamily(family.name, family.documentation, family.type, samples)
