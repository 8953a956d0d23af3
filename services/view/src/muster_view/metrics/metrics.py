"""The names of the view's metrics, each once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from muster_runtime import rm_status_text
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

FOLDED = Counter("muster_view_folded_records_total", "Folded state records.", ["partition"])
FOLD_SECONDS = Counter("muster_view_fold_seconds_total", "Time spent folding.", ["partition"])
LAG_RECORDS = Gauge("muster_view_lag_records", "Written state records that are not yet folded.", ["partition"])
LAG_SECONDS = Gauge(
    "muster_view_lag_seconds", "Age of the newest folded record while there are newer ones.", ["partition"]
)
FOLLOW_ERRORS = Counter("muster_view_follow_errors_total", "Failed reads of the log.", ["partition"])
REBUILDS = Counter(
    "muster_view_rebuilds_total", "Times that the view folded a partition again from the start.", ["partition"]
)

REQUESTS = Counter("muster_view_requests_total", "Answered REST requests.", ["route", "status"])
# From a cached small answer (0.2 ms) to a dump of everything.
RENDER_SECONDS = Histogram(
    "muster_view_render_seconds",
    "Time from a request's start to its rendered answer.",
    ["route"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
ANSWER_BYTES = Counter("muster_view_answer_bytes_total", "Bytes of answers before compression.", ["route"])

RM_STATE = "muster_rm_state"
RM_PAUSED = "muster_rm_paused"


class RmStateCollector(Collector):
    """The state of each RM, read when metrics are requested: a forgotten RM has no series any more.

    :param states: the state of each RM, by id, and whether an operator paused it.
    """

    def __init__(self, states: Callable[[], Mapping[str, tuple[str, bool]]]) -> None:
        self._states = states

    def collect(self) -> Iterable[GaugeMetricFamily]:
        state = GaugeMetricFamily(RM_STATE, "1 for the state that the RM is in", labels=["rm", "state"])
        paused = GaugeMetricFamily(RM_PAUSED, "1 while an operator has paused the RM", labels=["rm"])
        for rm_id, (life, is_paused) in self._states().items():
            for name in rm_status_text.STATES:
                state.add_metric([rm_id, name], int(name == life))
            paused.add_metric([rm_id], int(is_paused))
        return (state, paused)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Returns nothing: the series are known only at a request."""
        return ()

    def expose(self) -> None:
        """Adds the collector to this process's metrics."""
        REGISTRY.register(self)

    def hide(self) -> None:
        """Removes the collector from this process's metrics, if it is there."""
        with contextlib.suppress(KeyError):
            REGISTRY.unregister(self)
