"""What comes in by the first door, ``apply``: one command for each SI request, as plain data.

Both generations of the interface end here in one form (``muster_scheduler.service.ingest`` makes it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from muster_scheduler.core.config import ClusterConfig
from muster_scheduler.core.external import SetSource, UpdateExternal
from muster_scheduler.core.inquiries import CallbackPolicy


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


class AskItem(NamedTuple):
    """An ask, or (with ``node_id``) an allocation that exists already.

    :param quantities: by type name; non-negative (admission saw to it), perhaps empty.
    :param wanted: how many allocations are wanted (seed 001's maxAllocations; else 1).
    """

    key: str
    app_id: str
    partition: str
    quantities: dict[str, int]
    wanted: int = 1
    priority: int = 0
    tags: dict[str, str] = {}  # noqa: RUF012 - never changed, shared as "no tags"
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


class ReleaseItem(NamedTuple):
    """A release by the RM, or its confirmation of one of ours; without key and uuid: all of the application."""

    partition: str
    app_id: str
    key: str
    termination: Termination
    uuid: str = ""
    message: str = ""
    ask_only: bool = False


@dataclass(frozen=True, slots=True)
class NodeItem:
    """One node's change; ``capacity`` and ``occupied`` None: not said.

    :param by_operator: it is an operator's word, not the RM's.
    """

    node_id: str
    action: NodeAction
    attributes: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, int] | None = None
    occupied: dict[str, int] | None = None
    existing: tuple[AskItem, ...] = ()
    partition: str = ""
    by_operator: bool = False


@dataclass(frozen=True, slots=True)
class AppItem:
    """A new application.

    :param refused: why the shell cannot let it in (its user's groups are not found); "": it can.
    """

    app_id: str
    queue: str
    partition: str
    user: str = ""
    groups: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    execution_timeout_ms: int = 0
    placeholder_ask: dict[str, int] | None = None
    gang_style: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class UpdateNodes:
    """si.v1.NodeRequest."""

    nodes: tuple[NodeItem, ...]


@dataclass(frozen=True, slots=True)
class UpdateApplications:
    """si.v1.ApplicationRequest; ``remove``: (partition, application id)."""

    new: tuple[AppItem, ...] = ()
    remove: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateAllocations:
    """si.v1.AllocationRequest: releases are taken before asks, so that a swap in one message finds room."""

    asks: tuple[AskItem, ...] | list[AskItem] = ()
    releases: tuple[ReleaseItem, ...] | list[ReleaseItem] = ()


@dataclass(frozen=True, slots=True)
class UpdateConfiguration:
    """Another configuration, valid in itself: applied whole, or answered with why not (a ConfigurationAnswer)."""

    config: ClusterConfig


@dataclass(frozen=True, slots=True)
class SetDeciding:
    """Whether anything is decided for this RM: False once it is stopped."""

    deciding: bool


@dataclass(frozen=True, slots=True)
class SetGeneration:
    """In whose words the RM is told what no item of its own asked for: the previous generation's (seed 001), or not."""

    previous: bool


@dataclass(frozen=True, slots=True)
class SetEvents:
    """Which events are wanted from now on (seed 002, "Configuration").

    :param tracking: of everything that changes.
    :param requests: what people read beside an ask: why it waits, who preempted it.
    """

    tracking: bool = True
    requests: bool = False


@dataclass(frozen=True, slots=True)
class SetCallbacks:
    """The RM's callback stream was opened, or is gone: what it wants to be asked and told from now on."""

    policy: CallbackPolicy


class Answer(NamedTuple):
    """The RM's answer to one question.

    :param reason: why not, in its words.
    :param last_victim: of those who may go, the last one that must, from 0; -1: as few as there is room with.
    """

    question: int
    fits: bool
    reason: str = ""
    last_victim: int = -1


@dataclass(frozen=True, slots=True)
class Answers:
    """What the RM answered; to questions that nobody asks any more, too: those change nothing."""

    answers: tuple[Answer, ...] | list[Answer]


Command = (
    UpdateNodes
    | UpdateApplications
    | UpdateAllocations
    | UpdateConfiguration
    | SetDeciding
    | SetGeneration
    | SetCallbacks
    | SetEvents
    | Answers
    | UpdateExternal
    | SetSource
)
