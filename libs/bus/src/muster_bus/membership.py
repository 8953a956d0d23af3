"""The membership of a group whose members share the partitions of a topic: the contract, and the trivial group.

The terms:

member
    A process that takes a share of the partitions. A member that is silent for the session time-out is no member any
    more; the others get its partitions.
owned
    The partitions that a member runs. The group gives each partition to one member. For a moment two members may
    believe that they own it: one that is paused, or has not heard of the change. Only the log's fencing
    (``Log.take_over``) decides which of them writes.
standby
    A partition that a member follows, so that it can take the partition over in a moment. Each partition has one
    standby, as far as the members' limits allow: the next in line.
warm
    A standby that has read the state to its end. A partition moves from a living owner to a warm standby only.
generation
    The number of a share-out. Each change of the members, and each report that changes the shares, makes a new one.

``backends.kafka_group`` uses Kafka's own group protocol. :class:`Given` is the group of one member with partitions by
hand, on every backend. ``tests/contract/test_membership.py`` runs over both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from muster_bus.clock import Clock


@dataclass(frozen=True, slots=True)
class Assignment:
    """A member's share.

    :param owned: partitions that it runs.
    :param standbys: partitions that it follows.
    :param moving: those standbys that will be its own when they are warm.
    :param members: number of members, this one included.
    """

    generation: int
    owned: frozenset[int]
    standbys: frozenset[int] = frozenset()
    moving: frozenset[int] = frozenset()
    members: int = 1


class Membership(Protocol):
    """One process's membership. The methods may be called from the event loop that called ``start`` only."""

    @property
    def assignment(self) -> Assignment | None:
        """The newest share; None before the first one. It stays while the group is out of reach."""
        ...

    async def start(self) -> None:
        """Begins to join. Returns at once; ``changed`` tells of the first share."""
        ...

    async def changed(self, after: Assignment | None) -> Assignment:
        """Returns the newest share when it is another object than ``after``."""
        ...

    def report_warm(self, warm: Collection[int]) -> None:
        """Says which standbys are warm."""
        ...

    def rejoin(self) -> None:
        """Asks for a new share: this member was fenced, so another one believes that it owns a partition."""
        ...

    def retire(self) -> None:
        """Gives the partitions away, if there is another member. The next shares are empty; a lone member keeps all."""
        ...

    def error_text(self) -> str:
        """Returns why the group cannot be reached, in a sentence; "": it can."""
        ...

    async def close(self) -> None:
        """Leaves the group, so that the others need not wait for the session's end. Bounded in time."""
        ...


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """What a member says about itself.

    :param group: name of the group; without the topics' prefix.
    :param topic: the topic whose partitions are shared.
    :param partitions: their number.
    :param standbys_max: limit of the partitions that this member follows; 0: none, and partitions move to it cold.
    :param session_timeout_s: silence after which a member is dropped.
    :param heartbeat_s: interval of its signs of life; also how soon it hears of a change.
    """

    group: str
    topic: str
    partitions: int
    standbys_max: int
    session_timeout_s: float
    heartbeat_s: float


@runtime_checkable
class GroupLog(Protocol):
    """A log on which several processes can share partitions."""

    def membership(self, terms: GroupTerms, clock: Clock) -> Membership:
        """Returns a membership that has not started."""
        ...


class FixedMembership:
    """See :class:`Membership`: the partitions of a member that shares with nobody."""

    def __init__(self, partitions: Collection[int]) -> None:
        self._assignment = Assignment(1, frozenset(partitions))

    @property
    def assignment(self) -> Assignment:
        return self._assignment

    async def start(self) -> None:
        """There is nothing to join."""

    async def changed(self, after: Assignment | None) -> Assignment:
        if after is self._assignment:
            await asyncio.Event().wait()
        return self._assignment

    def report_warm(self, warm: Collection[int]) -> None:
        """Nobody asks."""

    def rejoin(self) -> None:
        """The share never changes."""

    def retire(self) -> None:
        """There is nobody to give partitions to."""

    def error_text(self) -> str:
        return ""

    async def close(self) -> None:
        """There is nothing to leave."""
