"""The interface between the endpoints and the service that follows the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from muster_core.external.reports import ExternalReports
from muster_rest.shapes.events import EventStreamDao
from muster_rest.shapes.measures import HealthDao
from muster_rest.system_health import ServiceFacts
from muster_state.state_folder import RmEntry
from muster_whatif.forecast.run_time_model import RunTimeHistory

from muster_view.metrics import yunikorn_metrics
from muster_view.metrics.recent import RecentAllocations
from muster_view.rest import object_states
from muster_view.rest.history import CountHistory


class StateSource(Protocol):
    """The data that REST needs from the service."""

    def states(self) -> Mapping[str, RmEntry]:
        """The RMs, by id; sorted."""
        ...

    def external(self) -> Mapping[str, ExternalReports]:
        """The objects of external sources by RM id, sorted."""
        ...

    def removed_objects(self, rm_id: str) -> object_states.RemovedObjects:
        """The last states of an RM's removed objects."""
        ...

    def run_time_history(self, rm_id: str) -> RunTimeHistory | None:
        """An RM's allocations that ended, as far as the service has seen it; None: none did."""
        ...

    def recent(self, rm_id: str) -> RecentAllocations:
        """An RM's allocations of the last minute."""
        ...

    def lag_records(self, rm_id: str | None) -> int:
        """The number of records that are not folded yet, in an RM's partition; None: in all partitions."""
        ...

    def lag_s(self, rm_id: str | None) -> float:
        """The age of the newest folded record, in an RM's partition; None: the largest of all."""
        ...

    def log_partition(self, rm_id: str) -> int:
        """The log partition of an RM."""
        ...

    def version(self) -> int:
        """A number that changes with the state: equal numbers mean an equal state."""
        ...

    def is_partial(self, rm_id: str | None) -> bool:
        """Whether a transaction is only partly folded, in an RM's partition; None: in any."""
        ...

    async def wait_fresh(self) -> None:
        """Returns between two folds (bounded)."""
        ...

    async def event_streams(self, rm_id: str) -> list[EventStreamDao]:
        """The open event streams of an RM."""
        ...

    def rm_samples(self, rm_id: str | None) -> list[yunikorn_metrics.RmSample]:
        """The figures for metrics; None: of all RMs."""
        ...

    def history(self) -> CountHistory:
        """The numbers of applications and allocations over time."""
        ...

    async def health(self, rm_id: str | None) -> HealthDao | None:
        """The health checks; None: no state is folded yet."""
        ...

    async def facts(self) -> ServiceFacts:
        """Whether nothing hinders the view, and its problems. (A damaged part of the log is one, but no hindrance.)"""
        ...
