"""What the endpoints need of the service that follows the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from muster_core.external.external_books import ExternalBooks
from muster_rest.shapes.events import EventStreamDao
from muster_rest.shapes.measures import HealthDao
from muster_state.follower import RmState

from muster_view.metrics import core_metrics
from muster_view.rest import object_states
from muster_view.rest.history import History


class Snapshot(Protocol):
    """What REST needs of the service."""

    def states(self) -> Mapping[str, RmState]:
        """The RMs, by id; sorted."""
        ...

    def external(self) -> Mapping[str, ExternalBooks]:
        """The objects of external sources by RM id, sorted."""
        ...

    def departed(self, rm_id: str) -> object_states.Departed:
        """What those of an RM's objects were like that are gone."""
        ...

    def lag_records(self, rm_id: str | None) -> int:
        """Of an RM's partition; None: of all."""
        ...

    def lag_s(self, rm_id: str | None) -> float:
        """Of an RM's partition; None: the largest of all."""
        ...

    def version(self) -> int:
        """The same number: the same state."""
        ...

    def torn(self, rm_id: str | None) -> bool:
        """Whether a transaction is only partly folded, in an RM's partition; None: in any."""
        ...

    async def fresh(self) -> None:
        """Returns between two folds (bounded)."""
        ...

    async def event_streams(self, rm_id: str) -> list[EventStreamDao]:
        """The open event streams of an RM."""
        ...

    def counted(self, rm_id: str | None) -> list[core_metrics.Counted]:
        """What metrics are made of; None: of all RMs."""
        ...

    def history(self) -> History:
        """How many applications and allocations there were."""
        ...

    async def health(self, rm_id: str | None) -> HealthDao | None:
        """Health checks; None: there is nothing to look at yet."""
        ...

    async def problems(self) -> list[str]:
        """What does not work, one sentence each."""
        ...
