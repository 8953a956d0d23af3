"""The data of a partition: its objects by their ids, its sums, and notes for later.

Every part of a partition gets this data, and changes it. ``muster_core.partition`` builds the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from muster_core.model.predicate_checks import OpenChecks
from muster_core.model.quotas import RmQuotaState
from muster_core.model.resources import ResourceTypes, Vector
from muster_core.model.states import APP_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from muster_core.config.queue_config import PartitionConfig
    from muster_core.model.application import Allocation, Application
    from muster_core.model.node import Node
    from muster_core.model.queue import Queue


class HasDeadline(Protocol):
    """An object that can have deadlines. The partition knows what follows for each kind (``Partition.on_deadline``)."""

    @property
    def gone(self) -> bool:
        """Whether its deadlines are obsolete."""


class PartitionState:
    """The data of one partition of one RM.

    :ivar rm_id: the RM's id, for display. No decision depends on it.
    :ivar searching: False while states are folded, and always in a follower: the nodes are not indexed then.
    :ivar apps: by id. Finished ones stay until they expire; once their id is used again, under ``<id>-<seconds>``.
    :ivar rejected: by id, the latest rejected applications, oldest first.
    :ivar foreign: foreign allocations on the nodes, by :attr:`Allocation.foreign_id`.
    :ivar root: the queue above all others, set by the partition's first configuration.
    :ivar capacity: the sum over all nodes, including draining ones; for pooled types, what the pools have.
    :ivar deciding: False: the scheduler makes no decisions, for example because the RM is stopped.
    :ivar previous_generation: the RM gets a message that an application starts, before it runs (previous generation).
    :ivar capacity_moved: the capacity changed since shares were last computed.
    :ivar capacity_version: grows when a node enters or leaves the index, or changes its capacity.
    :ivar version: grows with each change that can change a decision: of allocations, nodes, limits.
    :ivar checks: the open checks to the RM.
    :ivar deadlines: (when, object) of new deadlines that the scheduler has not put on its clock yet.
    :ivar moved_offers: ids of nodes with offers whose use, or whose offers, changed since the last review.
    :ivar reserved: the nodes with a reservation.
    :ivar contested: those reserved by age that may have room for an ask of higher rank: after the search, the room is
        given by rank.
    :ivar victims: by the application and key of an ask, how many allocations that were released for it still run.
    :ivar allocations_count: the number of allocations, including foreign ones.
    :ivar asks_pending: the number of allocations that are asked for.
    :ivar text_bytes: the size of all kept tags and attributes.
    :ivar users: by name, the number of live applications.
    :ivar quotas: of the RM; all its partitions share them.
    :ivar known_victims: room for what preemption keeps between two searches (``victims.py``).
    """

    root: Queue

    def __init__(self, config: PartitionConfig, *, searching: bool, rm_id: str) -> None:
        self.name = config.name
        self.rm_id = rm_id
        self.searching = searching
        self.config = config
        self.types = ResourceTypes()
        self.types.bounded = searching
        self.nodes: dict[str, Node] = {}
        self.apps: dict[str, Application] = {}
        self.rejected: dict[str, Application] = {}
        self.queues: dict[str, Queue] = {}
        self.foreign: dict[str, Allocation] = {}
        self.capacity: Vector = self.types.vector()
        self.deciding = True
        self.previous_generation = False
        self.capacity_moved = True
        self.capacity_version = 0
        self.version = 0
        self.checks = OpenChecks()
        self.deadlines: list[tuple[int, HasDeadline]] = []
        self.moved_offers: dict[str, None] = {}
        self.reserved: dict[Node, None] = {}
        self.contested: dict[Node, None] = {}
        self.victims: dict[tuple[str, str], int] = {}
        self.allocations_count = 0
        self.asks_pending = 0
        self.text_bytes = 0
        self.users: dict[str, int] = {}
        self.quotas = RmQuotaState({config.name: self})
        self.known_victims: Any = None

    def apps_in(self, leaf: Queue) -> list[Application]:
        """The live applications in a leaf, in order of submission. A parent has none."""
        return [self.apps[app_id] for app_id in leaf.applications]

    def apps_below(self, queue: Queue) -> Iterator[Application]:
        """The live applications in the queue and in all queues below it."""
        yield from self.apps_in(queue)
        for child in queue.children.values():
            yield from self.apps_below(child)

    @property
    def running(self) -> int:
        """The number of allocations of applications, without foreign ones."""
        return self.allocations_count - len(self.foreign)

    def live_application(self, app_id: str) -> Application | None:
        """The live application with this id; None: there is none."""
        app = self.apps.get(app_id)
        return None if app is None or app.state in APP_TERMINAL else app
