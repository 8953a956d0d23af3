"""Metrics of the informers' own process, at the scheduler's ``/metrics``.

The child tells its samples once a second; the parent shows the last ones in the place of its own, which nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric as Collected
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from muster_scheduler.core.external import SourceState
from muster_scheduler.external import metrics
from muster_scheduler.external.informer import STATE_NUMBERS
from muster_scheduler.external.pipe import Family


def families() -> tuple[Family, ...]:
    """Of the informers of this process, now."""
    return tuple(_family(each) for collector in metrics.OF_INFORMERS for each in collector.collect())


class ChildSamples(Collector):
    """Shows what another process told last. Between ``begin`` and ``end`` it stands in for this process's own."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._families: Sequence[Family] = families()

    def begin(self) -> None:
        for each in metrics.OF_INFORMERS:
            with suppress(KeyError):
                self._registry.unregister(each)
        self._registry.register(self)

    def end(self) -> None:
        with suppress(KeyError):
            self._registry.unregister(self)
        for each in metrics.OF_INFORMERS:
            with suppress(ValueError):  # (another one has done so)
                self._registry.register(each)

    def take(self, told: Sequence[Family]) -> None:
        self._families = told

    def lost(self) -> None:
        """The other process is gone: its sources are not heard."""
        self._families = [
            _all_set(each, STATE_NUMBERS[SourceState.STALE]) if each.name == metrics.Metric.STATE else each
            for each in self._families
        ]

    def collect(self) -> Iterator[Collected]:
        for each in self._families:
            collected = Collected(each.name, each.documentation, each.type)
            collected.samples = [Sample(name, labels, value) for name, labels, value in each.samples]
            yield collected

    def describe(self) -> Iterable[Collected]:
        return ()  # (its names are those of the ones that it stands in for)


def _family(collected: Collected) -> Family:
    samples = tuple((each.name, dict(each.labels), float(each.value)) for each in collected.samples)
    return Family(collected.name, collected.documentation, collected.type, samples)


def _all_set(family: Family, value: float) -> Family:
    samples = tuple((name, labels, float(value)) for name, labels, _ in family.samples)
    return Family(family.name, family.documentation, family.type, samples)
