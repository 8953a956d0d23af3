"""The commands of the entry point ``apply``, as plain data: one for each SI request.

The core handles the items of a request one after the other, each as if it came in a request of its own. So an RM may
split its messages as it likes. (A decision may come between two requests, but never between two items of one.)

Both generations of the interface become this one form (``muster_scheduler.ingest`` makes it).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from typing import NamedTuple

from muster_core.config.queue_config import ClusterConfig
from muster_core.external.model import ApplyExternalChanges, SetSourceState
from muster_core.model.quotas import QuotaLimits
from muster_core.model.scopes import CallbackPolicy


class NodeAction(IntEnum):
    """si.v1.NodeInfo.ActionFromRM."""

    UNKNOWN = 0
    CREATE = 1
    UPDATE = 2
    DRAIN_NODE = 3
    DECOMISSION = 4
    DRAIN_TO_SCHEDULABLE = 5
    CREATE_DRAIN = 6


class Termination(IntEnum):
    """si.v1.TerminationType."""

    UNKNOWN = 0
    STOPPED_BY_RM = 1
    TIMEOUT = 2
    PREEMPTED_BY_SCHEDULER = 3
    PLACEHOLDER_REPLACED = 4
    SCHEDULING_FAILED_ON_RM = 5


@dataclass(slots=True)
class AskItem:
    """An ask, or (with ``node_id``) an existing allocation. It never changes. (A frozen class costs twice as much.)

    :param quantities: by type name; not negative (admission checks that), perhaps empty.
    :param wanted: the number of wanted allocations (the previous generation's maxAllocations; else 1).
    :param admitted_ns: when the gateway admitted it, by the gateway's wall clock; 0: not known. No decision uses it.
    """

    key: str
    app_id: str
    partition: str
    quantities: dict[str, int]
    _: KW_ONLY
    wanted: int = 1
    priority: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    task_group: str = ""
    placeholder: bool = False
    originator: bool = False
    allow_preempt_self: bool = False
    allow_preempt_other: bool = False
    has_preemption_policy: bool = False
    execution_timeout_ms: int = 0
    previous_generation: bool = False
    node_id: str = ""
    uuid: str = ""
    admitted_ns: int = 0


class ReleaseItem(NamedTuple):
    """A release by the RM, or its confirmation of a release by the scheduler. Without key and uuid: all of the
    application.
    """

    partition: str
    app_id: str
    key: str
    termination: Termination
    uuid: str = ""
    message: str = ""
    ask_only: bool = False


@dataclass(frozen=True, slots=True)
class NodeItem:
    """One node's change. ``capacity`` and ``occupied`` None: not given.

    :param by_operator: the change is an operator's, not the RM's.
    """

    node_id: str
    action: NodeAction
    attributes: dict[str, str] = field(default_factory=dict)
    _: KW_ONLY
    capacity: dict[str, int] | None = None
    occupied: dict[str, int] | None = None
    existing: Collection[AskItem] = ()
    partition: str = ""
    by_operator: bool = False


@dataclass(frozen=True, slots=True)
class AppItem:
    """A new application.

    :param refused: why the shell cannot admit it (the groups of its user are not found); "": it can.
    """

    app_id: str
    queue: str
    partition: str
    user: str = ""
    groups: tuple[str, ...] = ()
    _: KW_ONLY
    tags: dict[str, str] = field(default_factory=dict)
    execution_timeout_ms: int = 0
    placeholder_ask: dict[str, int] | None = None
    gang_style: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class UpdateNodes:
    """si.v1.NodeRequest."""

    nodes: tuple[NodeItem, ...]

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self.nodes)

    def between(self, first: int, end: int) -> UpdateNodes:
        """The items from ``first`` up to before ``end``, in the order in which they are handled; likewise in other
        requests.
        """
        return UpdateNodes(self.nodes[first:end])


@dataclass(frozen=True, slots=True)
class UpdateApplications:
    """si.v1.ApplicationRequest, handled in this order; ``remove``: (partition, application id)."""

    new: tuple[AppItem, ...] = ()
    remove: tuple[tuple[str, str], ...] = ()

    @property
    def count(self) -> int:
        return len(self.new) + len(self.remove)

    def between(self, first: int, end: int) -> UpdateApplications:
        added = len(self.new)
        return UpdateApplications(self.new[first:end], self.remove[max(first - added, 0) : max(end - added, 0)])


@dataclass(frozen=True, slots=True)
class UpdateAllocations:
    """si.v1.AllocationRequest: releases come before asks, so that a swap in one message finds room."""

    asks: tuple[AskItem, ...] | list[AskItem] = ()
    releases: tuple[ReleaseItem, ...] | list[ReleaseItem] = ()

    @property
    def count(self) -> int:
        return len(self.releases) + len(self.asks)

    def between(self, first: int, end: int) -> UpdateAllocations:
        released = len(self.releases)
        return UpdateAllocations(self.asks[max(first - released, 0) : max(end - released, 0)], self.releases[first:end])


@dataclass(frozen=True, slots=True)
class EndApplication:
    """An operator ends an application of the RM. An unknown or finished one, or one that is failing already, stays as
    it is.

    :param message: why, for the RM and for people.
    """

    partition: str
    app_id: str
    message: str


@dataclass(frozen=True, slots=True)
class UpdateConfiguration:
    """A new configuration, valid in itself. The core applies all of it, or answers with the obstacles
    (ConfigurationAnswer).
    """

    config: ClusterConfig


@dataclass(frozen=True, slots=True)
class SetSchedulingEnabled:
    """Whether the scheduler decides for this RM; False: the RM is stopped or paused."""

    deciding: bool


@dataclass(frozen=True, slots=True)
class SetGeneration:
    """Whether the RM gets messages that no item asked for in the previous generation's form."""

    previous: bool


@dataclass(frozen=True, slots=True)
class SetEvents:
    """Which events are wanted from now on (the event history design, "Configuration").

    :param tracking: events of everything that changes.
    :param requests: events for people about asks: why an ask waits, what preempted it.
    """

    tracking: bool = True
    requests: bool = False


@dataclass(frozen=True, slots=True)
class SetCallbacks:
    """The RM's new policy, because its callback stream was opened or has ended."""

    policy: CallbackPolicy


class PredicateAnswer(NamedTuple):
    """The RM's answer to one question.

    :param reason: why not, as the RM gave it.
    :param last_victim: the index of the last of the possible victims that must go, from 0; -1: only as many as are
        needed to make room.
    """

    question: int
    fits: bool
    reason: str = ""
    last_victim: int = -1


@dataclass(frozen=True, slots=True)
class PredicateAnswers:
    """The RM's answers. Answers to questions that are not open any more change nothing."""

    answers: tuple[PredicateAnswer, ...] | list[PredicateAnswer]


@dataclass(frozen=True, slots=True)
class SetQuotas:
    """The RM's limits. What the RM has already stays, also above a lower limit."""

    limits: QuotaLimits


Command = (
    UpdateNodes
    | UpdateApplications
    | UpdateAllocations
    | EndApplication
    | UpdateConfiguration
    | SetSchedulingEnabled
    | SetGeneration
    | SetCallbacks
    | SetEvents
    | SetQuotas
    | PredicateAnswers
    | ApplyExternalChanges
    | SetSourceState
)
