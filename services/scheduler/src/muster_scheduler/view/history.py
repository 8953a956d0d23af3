"""How many applications ran and allocations there were, minute by minute (``/history/*``, core-features §2.19).

Taken from the state, not counted from what happened: so allocations that were there before this process are in it (the
real core forgets those), and nothing drifts. Kept in memory, as there: it begins anew with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from muster_scheduler.core.states import AppState
from muster_scheduler.follower import RmState
from muster_scheduler.view.dao import total_containers

# As in the real core: a day of minutes.
SAMPLES_MAX = 1_440


class Sample(NamedTuple):
    """One RM at one moment."""

    at_ns: int
    applications: int
    containers: int


class ApplicationsDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """Applications that ran. The number is text: so the real core has it, and readers expect it."""

    timestamp: int = 0
    total_applications: str = ""


class ContainersDao(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """Allocations that there were."""

    timestamp: int = 0
    total_containers: str = ""


class History:
    """The samples of each RM, oldest first."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}

    def take(self, states: Mapping[str, RmState], now_ns: int) -> None:
        """Takes a sample of each RM: O(applications), at the speed of counting. RMs that are gone are forgotten."""
        for rm_id in self._samples.keys() - states.keys():
            del self._samples[rm_id]
        for rm_id, state in states.items():
            samples = self._samples.setdefault(rm_id, deque(maxlen=SAMPLES_MAX))
            partitions = state.core.partitions.values()
            running = sum(
                sum(map(AppState.RUNNING.__eq__, map(attrgetter("state"), each.apps.values()))) for each in partitions
            )
            samples.append(Sample(now_ns, running, total_containers(partitions)))

    def applications(self, rm_id: str) -> list[ApplicationsDao]:
        """Of an RM; none for one that is not known."""
        return [
            ApplicationsDao(timestamp=sample.at_ns, total_applications=str(sample.applications))
            for sample in self._samples.get(rm_id, ())
        ]

    def containers(self, rm_id: str) -> list[ContainersDao]:
        """Likewise."""
        return [
            ContainersDao(timestamp=sample.at_ns, total_containers=str(sample.containers))
            for sample in self._samples.get(rm_id, ())
        ]
