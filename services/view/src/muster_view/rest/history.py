"""The numbers of applications and allocations, minute by minute (``/history/*``).

Samples come from the state, not from counters. So they include allocations older than this process (YuniKorn forgets
those), and they never drift. Like YuniKorn's, they are in memory only and begin again with each process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from muster_core.model.states import AppState
from muster_rest.shapes.measures import ApplicationsSampleDao, ContainersSampleDao
from muster_state.state_folder import RmEntry

from muster_view.rest.dao import total_containers

# As in YuniKorn: a day of minutes.
SAMPLES_MAX = 1_440


class CountSample(NamedTuple):
    """The numbers of one RM at one moment."""

    at_ns: int
    applications: int
    containers: int


class CountHistory:
    """The samples of each RM, oldest first."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[CountSample]] = {}

    def take(self, states: Mapping[str, RmEntry], now_ns: int) -> None:
        """Takes a sample of each RM: O(applications). Drops the samples of RMs that are not registered any more."""
        for rm_id in [rm_id for rm_id in self._samples if rm_id not in states]:
            del self._samples[rm_id]
        for rm_id, state in states.items():
            samples = self._samples.setdefault(rm_id, deque(maxlen=SAMPLES_MAX))
            partitions = state.core.partitions.values()
            running = sum(
                sum(map(AppState.RUNNING.__eq__, map(attrgetter("state"), partition.apps.values())))
                for partition in partitions
            )
            samples.append(CountSample(now_ns, running, total_containers(partitions)))

    def applications(self, rm_id: str) -> list[ApplicationsSampleDao]:
        """The samples of an RM; empty for an unknown RM."""
        return [
            ApplicationsSampleDao(timestamp=sample.at_ns, total_applications=str(sample.applications))
            for sample in self._samples.get(rm_id, ())
        ]

    def containers(self, rm_id: str) -> list[ContainersSampleDao]:
        """The same for allocations."""
        return [
            ContainersSampleDao(timestamp=sample.at_ns, total_containers=str(sample.containers))
            for sample in self._samples.get(rm_id, ())
        ]
