"""Whom to preempt (core-features §2.14-2.16): a search on a snapshot, that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster_scheduler.core.objects import Allocation, Ask, Node, Preempted, Queue
from muster_scheduler.core.reasons import PreemptionNo

if TYPE_CHECKING:
    from muster_scheduler.core.partition import Partition


@dataclass(frozen=True, slots=True)
class Victim:
    """One allocation that is to go, and why."""

    allocation: Allocation
    why: Preempted


@dataclass(frozen=True, slots=True)
class Plan:
    """What makes room for an ask.

    :param node: where the ask will go; kept free for it.
    :param victims: in the order in which they are told.
    """

    node: Node | None
    victims: tuple[Victim, ...]


def search(partition: Partition, ask: Ask, now_ns: int) -> Plan | PreemptionNo:
    """Victims for an ask that waits in its queue's order."""
    return PreemptionNo.NO_VICTIMS


def search_required_node(partition: Partition, ask: Ask, node: Node, now_ns: int) -> Plan | PreemptionNo:
    """Victims on the one node that the ask must run on."""
    return PreemptionNo.NO_VICTIMS


def search_quota(partition: Partition, queue: Queue, now_ns: int) -> tuple[Victim, ...]:
    """Victims in a queue that is above its max."""
    return ()
