"""Quotas: how much a resource manager may have. They keep one RM from taking everybody's memory.

A quota counts everything in the RM's partitions, whoever brought it. Only what the RM itself adds is refused, and only
when it comes: a decision never adds to what counts. So no quota is checked on the way of a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class QuotaKind(StrEnum):
    """What a quota counts. The values are the names of settings, metrics and views."""

    NODES = "nodes"
    QUEUES = "queues"
    """Configured and dynamic ones."""
    APPLICATIONS = "applications"
    """Live ones. Finished ones that are kept count, but leave when a new one needs their place."""
    ASKS = "asks"
    """Allocations that are asked for: an ask with repeats counts as often as it repeats."""
    ALLOCATIONS = "allocations"
    """Allocations, and those that are asked for."""
    USERS = "users"
    """Users of live applications, in each partition."""
    TEXT_BYTES = "text_bytes"
    """Tags and attributes of nodes, applications, asks and allocations, keys and values together."""


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of one RM; 0: no limit. The fields are the values of :class:`QuotaKind`."""

    nodes: int = 0
    queues: int = 0
    applications: int = 0
    asks: int = 0
    allocations: int = 0
    users: int = 0
    text_bytes: int = 0


class QuotaCounts(Protocol):
    """What is counted of one partition."""

    asks_pending: int
    allocations_count: int
    text_bytes: int

    @property
    def nodes(self) -> Sized: ...
    @property
    def queues(self) -> Sized: ...
    @property
    def apps(self) -> Sized: ...
    @property
    def users(self) -> Sized: ...


class RmQuotaState:
    """The quotas of one RM.

    :param partitions: of the RM; the mapping may change.
    :ivar limits: those in force.
    :ivar refused: how many items were refused since somebody took the counts.
    """

    def __init__(self, partitions: Mapping[str, QuotaCounts]) -> None:
        self._partitions = partitions
        self.limits = QuotaLimits()
        self.refused: dict[QuotaKind, int] = {}

    def used(self, kind: QuotaKind) -> int:
        """What counts now. O(partitions)."""
        partitions = self._partitions.values()
        match kind:
            case QuotaKind.NODES:
                return sum(len(partition.nodes) for partition in partitions)
            case QuotaKind.QUEUES:
                return sum(len(partition.queues) for partition in partitions)
            case QuotaKind.APPLICATIONS:
                return sum(len(partition.apps) for partition in partitions)
            case QuotaKind.ASKS:
                return sum(partition.asks_pending for partition in partitions)
            case QuotaKind.ALLOCATIONS:
                return sum(partition.asks_pending + partition.allocations_count for partition in partitions)
            case QuotaKind.USERS:
                return sum(len(partition.users) for partition in partitions)
            case QuotaKind.TEXT_BYTES:
                return sum(partition.text_bytes for partition in partitions)

    def limit(self, kind: QuotaKind) -> int:
        """The limit in force; 0: none."""
        limit: int = getattr(self.limits, kind)
        return limit

    def is_full(self, kind: QuotaKind) -> bool:
        """Whether nothing more of this kind is accepted."""
        limit = self.limit(kind)
        return limit > 0 and self.used(kind) >= limit

    def problem(self, kind: QuotaKind, more: int) -> str:
        """Why so many more are not accepted; "": they are. Counts the refusal."""
        limit: int = getattr(self.limits, kind)
        if not limit or more <= 0:
            return ""
        total = self.used(kind) + more
        if total <= limit:
            return ""
        self.refused[kind] = self.refused.get(kind, 0) + 1
        return f"quota {kind}: {total} with this one, expected at most {limit} for this resource manager"

    def asks_problem(self, more: int, more_text: int) -> str:
        """As :meth:`problem`, for pending allocations and their tags. (It runs for each ask, so it avoids calls.)"""
        limits, pending, allocated, text = self.limits, more, 0, more_text
        for partition in self._partitions.values():
            pending += partition.asks_pending
            allocated += partition.allocations_count
            text += partition.text_bytes
        if more > 0:
            if pending > limits.asks > 0:
                return self.problem(QuotaKind.ASKS, more)
            if pending + allocated > limits.allocations > 0:
                return self.problem(QuotaKind.ALLOCATIONS, more)
        if text > limits.text_bytes > 0:
            return self.problem(QuotaKind.TEXT_BYTES, more_text)
        return ""

    def queues_problem(self, queue_count: int) -> str:
        """Why a configuration with which the RM has so many queues is refused; "": it is not."""
        limit = self.limits.queues
        if not limit or queue_count <= limit:
            return ""
        self.refused[QuotaKind.QUEUES] = self.refused.get(QuotaKind.QUEUES, 0) + 1
        return (
            f"quota queues: {queue_count} with this configuration, expected at most {limit} for this resource manager"
        )

    def take_refused(self) -> dict[QuotaKind, int]:
        """Returns the counts of refused items, and starts them anew."""
        refused, self.refused = self.refused, {}
        return refused


def text_bytes(texts: Mapping[str, str]) -> int:
    """The size of tags or attributes in UTF-8. (It runs twice for each ask with tags.)"""
    text = "".join([*texts, *texts.values()])
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
